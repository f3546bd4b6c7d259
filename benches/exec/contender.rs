//! Who is measured: one call of each starts a program, waits for it and has its whole output.

use super::cpu::Whose;
use super::harness::{Client, Daemon};
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The profile that sandboxd runs the programs under.
pub const PROFILE: &str = "python-default";

/// What is run. The same file for everybody, by its path: no PATH is searched, no wrapper of a version manager is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `true`: nothing but the start.
    True,
    /// `python3 -c pass`: the least that an interpreter does.
    Python,
}

impl Program {
    /// All of them.
    pub const ALL: [Program; 2] = [Program::True, Program::Python];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Program::True => "true",
            Program::Python => "python3 -c pass",
        }
    }

    fn argv(self) -> &'static [&'static str] {
        match self {
            Program::True => &["/usr/bin/true"],
            Program::Python => &["/usr/bin/python3", "-c", "pass"],
        }
    }

    /// Whether there is something to measure; says so if not.
    pub fn is_installed(self) -> bool {
        let there = std::path::Path::new(self.argv()[0]).exists();
        if !there {
            println!("left out: {} (there is no {})", self.name(), self.argv()[0]);
        }
        there
    }

    /// Calls of one client in one turn: some tens of milliseconds, so that a round is short against the machine's moods.
    pub fn batch(self, clients: usize) -> usize {
        match (self, clients) {
            (Program::True, 1) => 20,
            // Many times what waits in the pool: this is about what can be kept up.
            (Program::True, 64) => 4,
            (Program::True, _) => 25,
            (Program::Python, 1) => 5,
            (Program::Python, _) => 2,
        }
    }
}

/// An installed `bwrap`.
#[derive(Debug)]
pub struct Bubblewrap {
    /// What it says of itself.
    pub version: String,
}

impl Bubblewrap {
    /// Looks for it in PATH.
    pub fn find() -> Option<Self> {
        let output = Command::new("bwrap").arg("--version").output().ok()?;
        Some(Self { version: String::from_utf8_lossy(&output.stdout).trim().to_owned() })
    }
}

const BUBBLEWRAP: &str = "bwrap --unshare-all --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib \
                          --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp";

/// One client: makes one call after the other.
pub enum Caller {
    /// Starts the words as a child of ours. std does it with posix_spawn, the fastest fork+exec there is.
    Spawn(Vec<String>),
    /// Asks the daemon on a connection of its own.
    Daemon(Box<Client>, Value),
}

impl Caller {
    /// One call, from nothing to everything that the program said. Panics if it did not do what it should.
    pub fn call(&mut self) {
        match self {
            Caller::Spawn(words) => {
                let child = Command::new(&words[0])
                    .args(&words[1..])
                    .env_clear()
                    .env("PATH", "/usr/local/bin:/usr/bin:/bin")
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .expect("an installed program can be started");
                let output = child.wait_with_output().expect("a child of ours can be waited for"); // closes stdin first
                let silent = output.stdout.is_empty() && output.stderr.is_empty();
                assert!(output.status.success() && silent, "{words:?}: {output:?}");
            }
            Caller::Daemon(client, request) => {
                let answer =
                    client.request("POST", "/v1/execs", Some(request)).expect("the daemon answers on this connection");
                let good = answer.status == 200 && answer.body["status"] == "ok" && answer.body["exit_code"] == 0;
                assert!(good && answer.stdout().is_empty() && answer.stderr().is_empty(), "{}", answer.text);
            }
        }
    }
}

/// One of those that are compared, with its clients.
pub struct Contender<'a> {
    /// raw, bwrap, cold or warm.
    pub name: &'static str,
    /// One per client.
    pub callers: Vec<Caller>,
    /// Whose processor time it uses.
    pub cpu: Whose,
    daemon: Option<&'a Daemon>,
}

impl Contender<'_> {
    /// Waits until its last call is cleared up and the pool is full: neither is the next one's burden, and both are its own cost.
    pub fn settle(&self) {
        let Some(daemon) = self.daemon else { return };
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            // Long enough for namespaces and groups to go.
            std::thread::sleep(Duration::from_millis(20));
            let pool = daemon.pool(PROFILE);
            if pool["idle"] == pool["target"] || Instant::now() >= deadline {
                return;
            }
        }
    }
}

/// The two daemons: one without a pool, one with.
pub struct Daemons {
    /// Every sandbox is built when it is asked for.
    pub cold: Daemon,
    /// `POOL` sandboxes wait.
    pub warm: Daemon,
    /// The same, with records that survive power loss.
    pub fsync: Daemon,
}

/// Sandboxes of the profile that wait: more than the calls of one client in one turn.
pub const POOL: u64 = 24;

impl Daemons {
    /// Starts both and fills the pool.
    pub fn start(max_concurrent_execs: usize) -> Self {
        let start = |max: u64, durability: &str| {
            // No minimum: only the profile that is measured has a pool.
            let text = format!(
                "max_concurrent_execs = {max_concurrent_execs}\n[pool]\nmin = 0\nmax = {max}\n[evidence]\ndurability = \"{durability}\"\n"
            );
            Daemon::start_with(&text, &[])
        };
        let daemons = Self { cold: start(0, "process"), warm: start(POOL, "process"), fsync: start(POOL, "fsync") };
        let request = json!({"profile": PROFILE, "exec": {"kind": "process", "command": "/usr/bin/true"}});
        for daemon in [&daemons.warm, &daemons.fsync] {
            while daemon.pool(PROFILE)["target"].as_u64() < Some(POOL) {
                // Each call that finds the pool empty makes it larger.
                std::thread::scope(|scope| (0..POOL).for_each(|_| drop(scope.spawn(|| daemon.exec(&request)))));
            }
            daemon.wait_for_pool();
        }
        daemons
    }
}

/// All contenders for a program; the first is the one that the others are compared with.
pub fn all<'a>(
    daemons: &'a Daemons,
    program: Program,
    bubblewrap: Option<&Bubblewrap>,
    clients: usize,
) -> Vec<Contender<'a>> {
    let argv = program.argv();
    let words = |before: &str| before.split_whitespace().chain(argv.iter().copied()).map(str::to_owned).collect();
    let request = request(program);
    let each = |make: &dyn Fn() -> Caller| (0..clients).map(|_| make()).collect();
    let ours = |name, callers| Contender { name, callers, cpu: Whose::Ours, daemon: None };
    let mut all = vec![ours("raw", each(&|| Caller::Spawn(words(""))))];
    if bubblewrap.is_some() {
        all.push(ours("bwrap", each(&|| Caller::Spawn(words(BUBBLEWRAP)))));
    }
    for (name, daemon) in [("cold", &daemons.cold), ("warm", &daemons.warm)] {
        let callers = each(&|| Caller::Daemon(Box::new(daemon.client()), request.clone()));
        all.push(Contender { name, callers, cpu: Whose::of(daemon), daemon: Some(daemon) });
    }
    all
}

/// What the daemon is asked for.
pub fn request(program: Program) -> Value {
    let argv = program.argv();
    json!({"profile": PROFILE, "exec": {"kind": "process", "command": argv[0], "args": argv[1..]}})
}

/// The two kinds of records, by the daemons that keep them.
pub fn journals<'a>(daemons: &'a Daemons, clients: usize) -> Vec<Contender<'a>> {
    let request = request(Program::True);
    let contender = |(name, daemon): (&'static str, &'a Daemon)| {
        let callers =
            (0..clients).map(|_| Caller::Daemon(Box::new(daemon.client()), request.clone())).collect::<Vec<_>>();
        Contender { name, callers, cpu: Whose::of(daemon), daemon: Some(daemon) }
    };
    [("process", &daemons.warm), ("fsync", &daemons.fsync)].map(contender).into()
}
