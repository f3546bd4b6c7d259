//! `kill -9` of each part at random moments under light load: nothing survives, nobody hangs, the next start is clean.
//!
//! Only processes that the test's own daemon made are killed, by pidfd, after a look at whose they are.

use super::{cgroups_of, marked, marker, output_of, processes, program, shell, started_by, wait_for};
use crate::harness::{Answer, Client, Daemon};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Kills per part.
const ROUNDS: usize = 10;
/// Clients at once.
const CLIENTS: usize = 4;
/// No answer in this time is a hang.
const PATIENCE: Duration = Duration::from_secs(20);
/// In which time the rest must be gone when one part was killed.
const GONE: Duration = Duration::from_secs(3);

fn random(below: u64) -> u64 {
    RandomState::new().build_hasher().finish() % below
}

/// A random moment of the next so many milliseconds.
fn a_moment(within_ms: u64) {
    std::thread::sleep(Duration::from_micros(random(within_ms * 1000)));
}

/// SIGKILL to `pid` if, looked at through a handle that can't come to mean another, it still is what it should be.
fn kill_if(pid: i32, still: impl FnOnce() -> bool) -> bool {
    let Some(raw) = Pid::from_raw(pid) else { return false };
    let Ok(handle) = pidfd_open(raw, PidfdFlags::empty()) else { return false };
    still() && pidfd_send_signal(&handle, Signal::KILL).is_ok()
}

/// Raises a flag when it goes out of sight, also by a panic.
struct Raise<'a>(&'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A daemon that is to be killed, and the word by which every process that was ever forked from it is known.
struct Victim {
    daemon: Daemon,
    config: String,
}

impl Victim {
    fn launch() -> Self {
        let daemon = Daemon::launch("", &[]);
        let config = daemon.run_dir().parent().unwrap().join("sandboxd.toml").display().to_string();
        Self { daemon, config }
    }

    fn start() -> Self {
        let victim = Self::launch();
        victim.daemon.wait_for_health();
        victim
    }

    /// Everything of the daemon whose front had that pid is gone, and another start on the same directories is clean.
    fn assert_clean_restart(&mut self, marker: &str, front: i32) {
        wait_for("every payload is gone", GONE, || marked(marker).is_empty().then_some(()));
        let end = Instant::now() + super::patient(GONE);
        while !started_by(&self.config, front).is_empty() {
            let told = || started_by(&self.config, front).into_iter().map(describe).collect::<Vec<_>>().join("; ");
            assert!(Instant::now() < end, "forked from the dead daemon and alive: {}", told());
            std::thread::sleep(Duration::from_millis(5));
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&*self.daemon.run_dir().to_string_lossy()), "a mount is left on the host");
        self.daemon.restart();
        assert_eq!(output_of(&self.daemon, &program("echo", &["again"])), "again\n");
        assert_eq!(cgroups_of(front), Vec::<std::path::PathBuf>::new(), "cgroups of the dead daemon");
        let left = std::fs::read_dir(self.daemon.state_dir().join("workspace/projects")).unwrap().count();
        assert_eq!(left, 0, "throw-away files of the dead daemon");
    }
}

impl Drop for Victim {
    /// A failed test must not leave its daemon's processes to the host; nobody else has this configuration's name.
    fn drop(&mut self) {
        if std::thread::panicking() {
            for pid in marked(&self.config) {
                kill_if(pid, || marked(&self.config).contains(&pid));
            }
        }
    }
}

/// A process in words: its name, what it waits in, whether its ids are mapped.
fn describe(pid: i32) -> String {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let mapped = if read("uid_map").trim().is_empty() { "ids not mapped yet" } else { "ids mapped" };
    format!("{pid} {} in {} ({mapped})", processes::comm(pid), read("wchan"))
}

/// Payloads that run now: children of the daemon's inits.
fn payloads(daemon: &Daemon) -> Vec<i32> {
    let inits = daemon.init_pids();
    let below = processes::descendants(daemon.front_pid());
    below.into_iter().filter(|pid| processes::stat(*pid).is_some_and(|stat| inits.contains(&stat.parent))).collect()
}

/// A random one of them, once there is one.
fn one_of(find: impl Fn() -> Vec<i32>) -> i32 {
    wait_for("there is one to kill", PATIENCE, || {
        let found = find();
        let at = random(found.len().max(1) as u64);
        found.get(usize::try_from(at).unwrap()).copied()
    })
}

/// Four clients run short programs one after the other while `act` happens, and until it is over. What they got.
fn under_load<T>(daemon: &Daemon, marker: &str, act: impl FnOnce() -> T) -> (T, Vec<io::Result<Answer>>) {
    let over = AtomicBool::new(false);
    let got = Mutex::new(Vec::new());
    let socket = daemon.socket();
    // Long enough to be found and looked at again before it ends.
    let nap = super::patient(Duration::from_millis(20 + 10 * random(7))).as_secs_f64();
    let request = shell(&format!("sleep {nap}; : {marker}"));
    let acted = std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    let answer = Client::connect_within(&socket, PATIENCE)
                        .and_then(|mut client| client.request("POST", "/v1/execs", Some(&request)));
                    assert!(start.elapsed() < super::patient(PATIENCE), "a client hung: {answer:?}");
                    let failed = answer.is_err();
                    got.lock().unwrap().push(answer);
                    if failed {
                        std::thread::sleep(Duration::from_millis(5)); // the daemon is away
                    }
                }
            });
        }
        let _over = Raise(&over);
        wait_for("the load is on", PATIENCE, || (!got.lock().unwrap().is_empty()).then_some(()));
        act()
    });
    (acted, got.into_inner().unwrap())
}

/// Everybody got an answer of the daemon.
fn answers(got: Vec<io::Result<Answer>>) -> Vec<Answer> {
    got.into_iter().map(|answer| answer.expect("an answer while the daemon is up")).collect()
}

#[test]
fn a_killed_payload_is_told_as_killed() {
    let daemon = Daemon::start();
    let marker = marker();
    let before = daemon.snapshot_at_rest();
    let (killed, got) = under_load(&daemon, &marker, || {
        let kills = (0..ROUNDS).map(|_| {
            a_moment(60);
            let pid = one_of(|| payloads(&daemon));
            kill_if(pid, || payloads(&daemon).contains(&pid))
        });
        kills.filter(|killed| *killed).count()
    });
    let answers = answers(got);
    let signaled = answers.iter().filter(|answer| answer.exec_status() == "signaled").count();
    for answer in &answers {
        let (status, signal) = (answer.exec_status(), answer.body["signal"].as_str());
        assert!(matches!((status, signal), ("ok", None) | ("signaled", Some("SIGKILL"))), "{}", answer.text);
    }
    println!("{killed} killed, {signaled} told, {} execs", answers.len());
    assert!(signaled >= 1 && signaled <= killed, "{signaled} of {killed}");
    daemon.assert_nothing_left(&before);
}

#[test]
fn a_killed_init_is_told_as_lost() {
    let daemon = Daemon::start();
    let marker = marker();
    let before = daemon.snapshot_at_rest();
    let (killed, got) = under_load(&daemon, &marker, || {
        let kills = (0..ROUNDS).map(|_| {
            a_moment(60);
            let pid = one_of(|| daemon.init_pids());
            kill_if(pid, || daemon.init_pids().contains(&pid))
        });
        kills.filter(|killed| *killed).count()
    });
    let answers = answers(got);
    let told = answers.iter().filter(|answer| answer.exec_status() == "lost" || answer.status >= 500).count();
    for answer in &answers {
        assert!(["ok", "lost"].contains(&answer.exec_status()) || answer.status >= 500, "{}", answer.text);
    }
    println!("{killed} killed, {told} told, {} execs", answers.len());
    assert!(told >= 1 && told <= killed, "{told} of {killed}");
    daemon.assert_nothing_left(&before);
    assert_eq!(marked(&marker), Vec::<i32>::new());
}

#[test]
fn a_killed_warden_ends_the_daemon_and_everything_in_it() {
    let mut victim = Victim::start();
    let marker = marker();
    for _ in 0..ROUNDS {
        let daemon = &victim.daemon;
        let (front, warden) = (daemon.front_pid(), daemon.warden_pid());
        let ((), got) = under_load(daemon, &marker, || {
            a_moment(150);
            assert!(kill_if(warden, || daemon.warden_pid() == warden));
            wait_for("the front is gone as well", GONE, || (!processes::alive(front)).then_some(()));
        });
        for answer in got.into_iter().flatten() {
            assert!(answer.status == 503 || ["ok", "lost"].contains(&answer.exec_status()), "{}", answer.text);
        }
        let ended = victim.daemon.wait_for_end(GONE);
        assert!(ended.code().is_some_and(|code| code != 0), "{ended:?}");
        victim.assert_clean_restart(&marker, front);
    }
}

#[test]
fn clients_of_a_killed_warden_are_told_so() {
    let Victim { daemon, .. } = &mut Victim::start();
    let marker = marker();
    let mut client = Client::connect_within(&daemon.socket(), PATIENCE).unwrap();
    client.send("POST", "/v1/execs", Some(&shell(&format!("sleep 50; : {marker}")).to_string()), &[]).unwrap();
    super::wait_for_marked(&marker);
    let warden = daemon.warden_pid();
    assert!(kill_if(warden, || daemon.warden_pid() == warden));
    let answer = client.receive().unwrap();
    assert_eq!((answer.status, &answer.body["error"]["retryable"]), (503, &true.into()), "{}", answer.text);
    assert_eq!(answer.body["error"]["class"], "PROVIDER.UNAVAILABLE");
    assert!(daemon.wait_for_end(GONE).code().is_some_and(|code| code != 0));
    wait_for("the payload is gone", GONE, || marked(&marker).is_empty().then_some(()));
}

#[test]
fn a_killed_front_takes_the_warden_and_everything_along() {
    let mut victim = Victim::start();
    let marker = marker();
    for _ in 0..ROUNDS {
        let front = victim.daemon.front_pid();
        under_load(&victim.daemon, &marker, || {
            a_moment(150);
            assert!(kill_if(front, || processes::comm(front) == "sandboxd-front"));
        });
        victim.daemon.kill_front(); // only collects it
        wait_for("the warden has removed the cgroups", GONE, || cgroups_of(front).is_empty().then_some(()));
        victim.assert_clean_restart(&marker, front);
    }
}

/// Nobody is left to clean up: the kernel ends the processes, the next start removes the rest.
#[test]
fn front_and_warden_killed_together_leave_nothing_alive() {
    let mut victim = Victim::start();
    let marker = marker();
    for round in 0..ROUNDS {
        let (front, warden) = (victim.daemon.front_pid(), victim.daemon.warden_pid());
        under_load(&victim.daemon, &marker, || {
            a_moment(150);
            let order = if round % 2 == 0 { [warden, front] } else { [front, warden] };
            for pid in order {
                kill_if(pid, || processes::comm(pid).starts_with("sandboxd-"));
            }
        });
        victim.daemon.kill_front(); // only collects it
        victim.assert_clean_restart(&marker, front);
    }
}

/// The moments at which a warden has just forked are rare; these look for them.
#[test]
fn a_warden_killed_while_it_makes_sandboxes_leaves_none_behind() {
    let mut victim = Victim::start();
    let marker = marker();
    for _ in 0..3 * ROUNDS {
        let daemon = &victim.daemon;
        let (front, warden) = (daemon.front_pid(), daemon.warden_pid());
        under_load(daemon, &marker, || {
            let newborn = || daemon.init_pids().into_iter().find(|pid| processes::stat(*pid).is_some());
            wait_for("a sandbox is being made", PATIENCE, newborn);
            assert!(kill_if(warden, || processes::comm(warden) == "sandboxd-warden"));
            wait_for("the front is gone as well", GONE, || (!processes::alive(front)).then_some(()));
        });
        victim.daemon.wait_for_end(GONE);
        victim.assert_clean_restart(&marker, front);
    }
}

#[test]
fn a_front_killed_while_it_starts_leaves_nothing() {
    for _ in 0..ROUNDS {
        let mut victim = Victim::launch();
        a_moment(80);
        let front = victim.daemon.front_pid();
        victim.daemon.kill_front();
        victim.assert_clean_restart("no payload has this", front);
    }
}

/// Whoever watches the front starts it again at once, while the old warden may still be ending its sandboxes.
#[test]
fn a_start_right_after_a_kill_is_not_turned_away() {
    let mut victim = Victim::start();
    let marker = marker();
    for _ in 0..ROUNDS {
        let front = victim.daemon.front_pid();
        under_load(&victim.daemon, &marker, || {
            a_moment(50);
            assert!(kill_if(front, || processes::comm(front) == "sandboxd-front"));
        });
        victim.daemon.kill_front(); // only collects it
        victim.daemon.restart();
        assert_eq!(output_of(&victim.daemon, &program("echo", &["again"])), "again\n");
        wait_for("the old cgroups are gone", GONE, || cgroups_of(front).is_empty().then_some(()));
    }
}
