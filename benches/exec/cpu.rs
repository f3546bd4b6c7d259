//! Processor time of a contender: its clients, whatever it starts, and what the kernel does for it afterwards.
//!
//! Each contender has a group of cpuacct (cgroup v1) in which its clients' threads and its daemon are, and so everything
//! that they ever start: counted in nanoseconds, whoever waits for it. Where there is no such hierarchy (v2 alone, whose
//! groups take no single threads), raw and the peers are counted by what the kernel says of ended children, which misses
//! what a peer leaves in a pid namespace that it does not wait for, and a daemon by the ticks (10 ms) of its processes;
//! its clients are then not counted. `exact` says which way it was.
//!
//! Network namespaces and groups are taken down by threads of the kernel's own. All of those are counted for everybody
//! alike, during its turn and the rest after it: on a quiet machine they work for whoever's turn it is.

use super::harness::{Daemon, processes};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

/// Kernel threads are the children of this one.
const KTHREADD: i32 = 2;

/// Milliseconds so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Used {
    /// Of the contender's own processes.
    pub own: f64,
    /// Of the kernel's threads.
    pub kernel: f64,
}

impl Used {
    /// Adds what was used between two looks.
    pub fn add(&mut self, before: Used, after: Used) {
        self.own += after.own - before.own;
        self.kernel += after.kernel - before.kernel;
    }

    /// Both.
    pub fn sum(self) -> f64 {
        self.own + self.kernel
    }
}

/// Where a contender's time is counted. Dropped after everything in it has ended.
#[derive(Debug)]
pub struct Account {
    group: Option<PathBuf>,
    /// Without a group: the daemon's processes, or none for this process and its ended children.
    daemon: Vec<i32>,
}

impl Account {
    /// A new one.
    pub fn new(name: &str) -> Self {
        let group = parent().map(|parent| parent.join(format!("sandboxd-bench-{}-{name}", std::process::id())));
        if let Some(group) = &group {
            fs::create_dir(group).expect("a group of cpuacct can be made");
        }
        Self { group, daemon: Vec::new() }
    }

    /// Whether every nanosecond is counted.
    pub fn exact(&self) -> bool {
        self.group.is_some()
    }

    /// Counts this thread, and everything that it starts, here. Writing "0" moves the writer alone, without a wait.
    pub fn join(&self) {
        if let Some(group) = &self.group {
            fs::write(group.join("tasks"), "0").expect("a thread can join a group");
        }
    }

    /// Starts a daemon that is counted here.
    pub fn start(&mut self, start: impl FnOnce() -> Daemon + Send) -> Daemon {
        let begun = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.join();
                start()
            });
            thread.join()
        });
        let daemon = begun.expect("a daemon that does not start has said why");
        let warden = daemon.warden_pid();
        let sweeper = processes::descendants(warden).into_iter().find(|pid| processes::comm(*pid) == "sandboxd-sweep");
        self.daemon = [daemon.front_pid(), warden].into_iter().chain(sweeper).collect();
        daemon
    }

    /// What was used so far.
    pub fn now(&self) -> Used {
        let own = match &self.group {
            Some(group) => number(&group.join("cpuacct.usage")) / 1e6,
            None if self.daemon.is_empty() => of_us_and_our_children(),
            None => self.daemon.iter().map(|pid| with_children(*pid)).sum(),
        };
        Used { own, kernel: kernel_threads() }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if let Some(group) = &self.group {
            // A thread that has just ended may still be on its way out.
            let gone = (0..100).any(|_| {
                fs::remove_dir(group).is_ok() || {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                    false
                }
            });
            if !gone {
                eprintln!("{} is left: something in it has not ended", group.display());
            }
        }
    }
}

/// Our own group of cpuacct, if this kernel has it and we may make more below.
fn parent() -> Option<&'static Path> {
    static PARENT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let text = fs::read_to_string("/proc/self/cgroup").ok()?;
        let (names, path) = text.lines().find_map(|line| {
            let (names, path) = line.split_once(':')?.1.split_once(':')?;
            names.split(',').any(|name| name == "cpuacct").then_some((names, path))
        })?;
        let group = Path::new("/sys/fs/cgroup").join(names).join(path.trim_start_matches('/'));
        group.join("cpuacct.usage").exists().then_some(group)
    };
    PARENT.get_or_init(find).as_deref()
}

fn number(path: &Path) -> f64 {
    let text = fs::read_to_string(path).expect("our group can be read");
    text.trim().parse().expect("a number of nanoseconds")
}

fn of_us_and_our_children() -> f64 {
    let usage = [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN].into_iter().filter_map(|who| getrusage(who).ok());
    usage.map(|usage| (usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1000.0).sum()
}

/// User and system time of a process and its ended children: fields 14 to 17 of its stat, in ticks of ten milliseconds.
fn with_children(pid: i32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the daemon lives");
    let after_name = text.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after_name.split_whitespace().skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 * 10.0
}

/// All of them: /proc/PID/schedstat counts nanoseconds.
fn kernel_threads() -> f64 {
    static COUNTED: Mutex<(BTreeMap<i32, u64>, u64)> = Mutex::new((BTreeMap::new(), 0));
    let threads =
        processes::all().into_iter().filter(|pid| processes::stat(*pid).is_some_and(|stat| stat.parent == KTHREADD));
    let nanoseconds = |pid: i32| -> Option<u64> {
        fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?.split_whitespace().next()?.parse().ok()
    };
    let now: BTreeMap<i32, u64> = threads.filter_map(|pid| Some((pid, nanoseconds(pid)?))).collect();
    let mut counted = COUNTED.lock().expect("nobody panics while counting");
    let (before, total) = &mut *counted;
    // By thread: one that has ended takes nothing back with it.
    *total += now.iter().map(|(pid, now)| now.saturating_sub(before.get(pid).copied().unwrap_or(0))).sum::<u64>();
    *before = now;
    *total as f64 / 1e6
}
