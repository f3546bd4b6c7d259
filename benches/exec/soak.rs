//! `--soak`: very many execs, and whether anything grows.

use super::daemons::{self, Served};
use super::goals::{self, Goal, Unit};
use super::harness::{Snapshot, processes, wait_for};
use super::program::{PROFILE, Program};
use std::time::{Duration, Instant};

/// As many at once as the throughput goals have.
const CLIENTS: usize = 8;
/// Looks on the way.
const LOOKS: usize = 10;
const WARDEN_MOST_MIB: f64 = 4.0;
const FRONT_MOST_MIB: f64 = 40.0;
/// Flat: from the first look to the last, heaps settle but don't grow with the number of execs.
const GROWN_MOST_KIB: f64 = 512.0;

/// Longer than anything rests in the warden to be used again.
const REST: Duration = Duration::from_millis(1500);
const REST_DEADLINE: Duration = Duration::from_secs(30);

/// Resident memory of both, in KiB.
#[derive(Debug, Clone, Copy)]
struct Resident {
    warden: f64,
    front: f64,
}

impl Resident {
    fn of(served: &Served) -> Self {
        let kib = |pid| processes::resident_kib(pid) as f64;
        Self { warden: kib(served.daemon.warden_pid()), front: kib(served.daemon.front_pid()) }
    }

    fn goals(self, execs: u64) -> [Goal; 2] {
        [("warden", self.warden, WARDEN_MOST_MIB), ("front", self.front, FRONT_MOST_MIB)].map(|(who, kib, most)| {
            Goal::most(format!("resident memory of the {who}"), most, Unit::MiB, kib / 1024.0)
                .noted(format!("after {execs} execs"))
        })
    }
}

/// How much both have now, after whatever they did.
pub fn resident(served: &Served) -> Vec<Goal> {
    let health = served.daemon.request("GET", "/v1/health", None);
    Resident::of(served).goals(health.body["execs_started"].as_u64().unwrap_or(0)).into()
}

/// What is there when nothing is about to be used again: groups of ended execs rest for a moment.
fn at_rest(served: &Served) -> Snapshot {
    let mut before = served.daemon.snapshot_of_host();
    wait_for("what is there stays the same", REST_DEADLINE, || {
        std::thread::sleep(REST);
        let now = served.daemon.snapshot_of_host();
        let same = now.more_than(&before).is_empty() && before.more_than(&now).is_empty();
        before = now;
        same.then_some(())
    });
    before
}

fn look(served: &Served, execs: usize, begun: Instant) -> (Resident, Snapshot) {
    served.daemon.wait_for_pool();
    let (resident, there) = (Resident::of(served), at_rest(served));
    println!(
        "  {execs:>8} execs{:>7.0} s   warden {:>6.0} KiB, front {:>6.0} KiB resident; descriptors {} and {}; {} cgroups, {} mounts, {} processes",
        begun.elapsed().as_secs_f64(),
        resident.warden,
        resident.front,
        there.warden_fds,
        there.front_fds,
        there.cgroups,
        there.mounts,
        there.processes,
    );
    (resident, there)
}

/// As many of each profile wait at the first look as at the last: a pool that follows demand would count as growth.
const POOL: usize = 4;

/// So many execs, with ten looks on the way.
pub fn run(execs: usize) {
    let config = format!("{}min = {POOL}\nmax = {POOL}\n", daemons::config_before_pool("process"));
    let served = Served::start("soak", &config);
    let request = Program::True.request(PROFILE);
    let per_client = (execs / LOOKS / CLIENTS).max(1);
    println!("{} execs of true by {CLIENTS} clients", per_client * CLIENTS * LOOKS);
    let begun = Instant::now();
    let mut looks = Vec::new();
    for step in 1..=LOOKS {
        let client = || {
            let mut client = served.daemon.client();
            for _ in 0..per_client {
                let answer = client.request("POST", "/v1/execs", Some(&request)).expect("an answer");
                assert_eq!(answer.body["status"], "ok", "{}", answer.text);
            }
        };
        std::thread::scope(|scope| (0..CLIENTS).for_each(|_| drop(scope.spawn(client))));
        looks.push(look(&served, step * per_client * CLIENTS, begun));
    }
    let ((first, before), (last, after)) = (&looks[0], &looks[LOOKS - 1]);
    let mut all: Vec<Goal> = last.goals((per_client * CLIENTS * LOOKS) as u64).into();
    for (who, grown) in [("warden", last.warden - first.warden), ("front", last.front - first.front)] {
        all.push(Goal::most(format!("growth of the {who} since the first look"), GROWN_MOST_KIB, Unit::KiB, grown));
    }
    let more = after.more_than(before);
    all.push(Goal::most("things left over", 0.0, Unit::Count, more.len() as f64).noted(more.join("; ")));
    print!("{}", goals::table(&all));
    served.stop();
}
