//! The daemons that are measured, each with an account of its own.

use super::contender::{RECYCLED, WARM};
use super::cpu::Account;
use super::harness::{Daemon, wait_for};
use super::program::{MODULES, PROFILE, Program};
use std::time::Duration;

/// Sandboxes of a profile that wait at most: more than the calls of one client in one turn.
pub const POOL: u64 = 48;
/// Interpreters that wait: as many as a turn of eight clients uses.
pub const INTERPRETERS: usize = 16;
/// As many as there are clients at most: no call waits in the daemon's queue while the others have no queue at all.
pub const MAX_CONCURRENT_EXECS: usize = 64;
/// Filling a shelf is a matter of seconds.
const FILL_DEADLINE: Duration = Duration::from_secs(60);

/// A daemon and what it uses. The account goes last.
pub struct Served {
    /// The daemon.
    pub daemon: Daemon,
    /// Its processor time.
    pub account: Account,
}

/// A profile as the measured one, but for its network namespaces.
fn recycled() -> String {
    format!(
        "id = \"{RECYCLED}\"\ndescription = \"network namespaces are used again\"\nextends = \"{PROFILE}\"\n\
         [network]\ntcp = \"loopback\"\nnet_namespace = \"recycled\"\n"
    )
}

/// The daemon's configuration: no minimum, so that only a profile that is asked for has a pool.
pub fn config(pool: u64, durability: &str) -> String {
    config_before_pool(durability) + &format!("min = 0\nmax = {pool}\n")
}

/// The same up to the size of the pool.
pub fn config_before_pool(durability: &str) -> String {
    format!("max_concurrent_execs = {MAX_CONCURRENT_EXECS}\n[evidence]\ndurability = \"{durability}\"\n[pool]\n")
}

/// What makes interpreters wait.
pub fn warm_python(idle: usize) -> String {
    let modules: Vec<String> = MODULES.iter().map(|module| format!("\"{module}\"")).collect();
    format!(
        "[warm_python]\nprofiles = [\"{PROFILE}\"]\nmin = {idle}\nmax = {idle}\npreload = [{}]\n",
        modules.join(", ")
    )
}

impl Served {
    /// Starts one.
    pub fn start(name: &str, config: &str) -> Self {
        let mut account = Account::new(name);
        let daemon = account.start(|| Daemon::start_with(config, &[(RECYCLED, &recycled())]));
        Self { daemon, account }
    }

    /// Makes the pool of a profile as large as it may be: each call that finds it empty makes it larger.
    pub fn fill(&self, profile: &str) {
        let request = Program::True.request(profile);
        wait_for("the pool is as large as it may be", FILL_DEADLINE, || {
            if self.daemon.pool(profile)["target"].as_u64() >= Some(POOL) {
                return Some(());
            }
            std::thread::scope(|scope| (0..POOL).for_each(|_| drop(scope.spawn(|| self.daemon.exec(&request)))));
            None
        });
        self.daemon.wait_for_pool();
    }

    fn metric(&self, name: &str) -> Option<u64> {
        let metrics = self.daemon.request("GET", "/metrics", None).text;
        let values =
            metrics.lines().filter_map(|line| line.strip_prefix(name)?.rsplit(' ').next()?.parse::<u64>().ok());
        values.reduce(|sum, value| sum + value)
    }

    /// Whether so many interpreters wait.
    pub fn interpreters_wait(&self, count: usize) -> bool {
        self.metric("sandbox_warm_python ") >= Some(count as u64)
    }

    /// Python that had to be started for its call.
    pub fn started_cold(&self) -> u64 {
        self.metric("sandbox_warm_python_total{start=\"cold\"").unwrap_or(0)
    }

    /// Stops it; it must end well.
    pub fn stop(mut self) {
        let ended = self.daemon.stop();
        assert!(ended.success(), "the daemon did not stop well: {ended}; its log:\n{}", self.daemon.log());
    }
}

/// All of them.
pub struct Daemons {
    /// Every sandbox is built when it is asked for.
    pub cold: Served,
    /// Sandboxes wait.
    pub warm: Served,
    /// The same, with records that survive power loss.
    pub fsync: Served,
    /// Interpreters wait.
    pub python: Served,
}

impl Daemons {
    /// Starts them. The shelves are filled by whoever measures.
    pub fn start() -> Self {
        Self {
            cold: Served::start("cold", &config(0, "process")),
            warm: Served::start(WARM, &config(POOL, "process")),
            fsync: Served::start("fsync", &config(POOL, "fsync")),
            python: Served::start("python", &(config(POOL, "process") + &warm_python(INTERPRETERS))),
        }
    }

    /// Stops them; each must end well.
    pub fn stop(self) {
        let Self { cold, warm, fsync, python } = self;
        [cold, warm, fsync, python].into_iter().for_each(Served::stop);
    }
}
