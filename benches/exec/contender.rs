//! Who is measured: one call of each starts a program, waits for it and has its whole output.

use super::cpu::Account;
use super::daemons::{Daemons, INTERPRETERS, Served};
use super::harness::Client;
use super::peers::Peer;
use super::program::{PROFILE, Program};
use serde_json::Value;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Stands for a name that nobody else has; among the words of a peer.
const OWN_NAME: &str = "@id";

/// One client: makes one call after the other.
pub struct Caller {
    way: Way,
    output_bytes: usize,
}

enum Way {
    /// Starts the words as a child of ours. std does it with posix_spawn, the fastest fork+exec there is.
    Spawn(Vec<String>),
    /// Asks the daemon on a connection of its own.
    Daemon(Box<Client>, Value),
}

impl Caller {
    /// Starts these words, which say as much as the program does.
    pub fn spawn(words: Vec<String>, program: Program) -> Self {
        Self { way: Way::Spawn(words), output_bytes: program.output_bytes() }
    }

    fn daemon(served: &Served, profile: &str, program: Program) -> Self {
        let way = Way::Daemon(Box::new(served.daemon.client()), program.request(profile));
        Self { way, output_bytes: program.output_bytes() }
    }

    /// One call, from nothing to everything that the program said. Panics if it did not do what it should.
    pub fn call(&mut self) {
        self.try_call().unwrap_or_else(|why| panic!("{why}"));
    }

    /// The same; in words, what was not as it should be.
    pub fn try_call(&mut self) -> Result<(), String> {
        match &mut self.way {
            Way::Spawn(words) => {
                static NEXT: AtomicU64 = AtomicU64::new(0);
                let own_name =
                    || format!("sandboxd-bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
                let arguments = words[1..].iter().map(|word| if word == OWN_NAME { own_name() } else { word.clone() });
                let child = Command::new(&words[0])
                    .args(arguments)
                    .env_clear()
                    .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .map_err(|error| format!("{words:?}: {error}"))?;
                let output = child.wait_with_output().expect("a child of ours can be waited for"); // closes stdin first
                let good = output.status.success() && output.stderr.is_empty();
                let said = String::from_utf8_lossy(&output.stderr);
                if good && output.stdout.len() == self.output_bytes {
                    Ok(())
                } else {
                    Err(format!("{}: {said}", output.status))
                }
            }
            Way::Daemon(client, request) => {
                let answer = client.request("POST", "/v1/execs", Some(request)).map_err(|error| error.to_string())?;
                let good = answer.status == 200 && answer.body["status"] == "ok" && answer.body["exit_code"] == 0;
                let said = answer.stdout().len() == self.output_bytes && answer.stderr().is_empty();
                if good && said { Ok(()) } else { Err(answer.text.chars().take(2000).collect()) }
            }
        }
    }
}

/// What waits for the calls of one of ours.
enum Shelf<'a> {
    /// Nothing.
    Empty,
    /// Sandboxes of a profile.
    Pool(&'a Served, &'static str),
    /// Interpreters.
    Interpreters(&'a Served),
}

/// One of those that are compared, with its clients.
pub struct Contender<'a> {
    /// raw, a peer's, or one of `OURS`.
    pub name: &'static str,
    /// One per client.
    pub callers: Vec<Caller>,
    /// Its processor time.
    pub account: &'a Account,
    shelf: Shelf<'a>,
}

/// What everybody gets after its turn: long enough for namespaces and groups to go.
const REST: Duration = Duration::from_millis(30);
/// A shelf that is not full by then has something else wrong with it; the misses tell.
const FULL_DEADLINE: Duration = Duration::from_secs(5);

impl Contender<'_> {
    /// Waits until its last call is cleared up and its shelf is full: neither is the next one's burden, and both are its
    /// own cost.
    pub fn settle(&self) {
        std::thread::sleep(REST);
        let deadline = Instant::now() + FULL_DEADLINE;
        while !self.is_full() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn is_full(&self) -> bool {
        match &self.shelf {
            Shelf::Empty => true,
            Shelf::Pool(served, profile) => {
                let pool = served.daemon.pool(profile);
                pool["idle"] == pool["target"]
            }
            Shelf::Interpreters(served) => served.interpreters_wait(INTERPRETERS),
        }
    }

    /// Makes its shelf as large as it can be: what was not asked for in a while has become fewer.
    pub fn fill(&self) {
        if let Shelf::Pool(served, profile) = &self.shelf {
            served.fill(profile);
        }
        self.settle();
    }

    /// Calls that found nothing waiting, so far.
    pub fn misses(&self) -> u64 {
        match &self.shelf {
            Shelf::Empty => 0,
            Shelf::Pool(served, profile) => served.daemon.pool(profile)["misses"].as_u64().unwrap_or(0),
            Shelf::Interpreters(served) => served.started_cold(),
        }
    }
}

/// Sandboxes are built when they are asked for.
pub const COLD: &str = "cold";
/// Sandboxes wait.
pub const WARM: &str = "warm";
/// They wait, and their network namespaces are used again.
pub const RECYCLED: &str = "recycled";
/// They wait, and records survive power loss.
pub const FSYNC: &str = "fsync";
/// Python's interpreters wait.
pub const WARM_PYTHON: &str = "warm python";
/// Ours.
pub const OURS: [&str; 5] = [COLD, WARM, RECYCLED, FSYNC, WARM_PYTHON];
/// The one that the others are compared with.
pub const RAW: &str = "raw";

/// The contenders by `names` for a program; the first is raw.
pub fn line_up<'a>(
    raw: &'a Account,
    peers: &'a [Peer],
    daemons: &'a Daemons,
    names: &[&str],
    program: Program,
    clients: usize,
) -> Vec<Contender<'a>> {
    let each = |make: &dyn Fn() -> Caller| (0..clients).map(|_| make()).collect();
    let spawned = |name, account, make: &dyn Fn() -> Caller| Contender {
        name,
        callers: each(make),
        account,
        shelf: Shelf::Empty,
    };
    let mut all = vec![spawned(RAW, raw, &|| Caller::spawn(program.argv(), program))];
    all.extend(peers.iter().map(|peer| spawned(peer.name, &peer.account, &|| peer.caller(program))));
    let served = |name, served: &'a Served, profile: &'static str, shelf| Contender {
        name,
        callers: each(&|| Caller::daemon(served, profile, program)),
        account: &served.account,
        shelf,
    };
    let Daemons { cold, warm, fsync, python } = daemons;
    all.extend([
        served(COLD, cold, PROFILE, Shelf::Empty),
        served(WARM, warm, PROFILE, Shelf::Pool(warm, PROFILE)),
        served(RECYCLED, warm, RECYCLED, Shelf::Pool(warm, RECYCLED)),
        served(FSYNC, fsync, PROFILE, Shelf::Pool(fsync, PROFILE)),
        served(WARM_PYTHON, python, PROFILE, Shelf::Interpreters(python)),
    ]);
    all.retain(|contender| names.contains(&contender.name) || contender.name == RAW);
    all
}
