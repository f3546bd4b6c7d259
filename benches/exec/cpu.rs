//! Processor time of a contender, with what the kernel does for it afterwards.
//!
//! A sandbox costs its makers, and then the kernel's own threads, which take network namespaces and groups down. All
//! kernel threads are counted for everybody alike: on a quiet machine they work for whoever's turn it is. What bubblewrap
//! runs in its pid namespace is not waited for by us, so most of its time is not seen here.

use super::harness::{Daemon, processes};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::fs;

/// Kernel threads are the children of this one.
const KTHREADD: i32 = 2;

/// Whose time counts, beside the kernel's threads'.
#[derive(Debug, Clone)]
pub enum Whose {
    /// This process and its ended children: raw and bubblewrap.
    Ours,
    /// A daemon's processes and their ended children. The client's part is not counted.
    Daemon(Vec<i32>),
}

impl Whose {
    /// Front, warden and sweeper of a daemon.
    pub fn of(daemon: &Daemon) -> Self {
        let warden = daemon.warden_pid();
        let sweeper = processes::descendants(warden).into_iter().find(|pid| processes::comm(*pid) == "sandboxd-sweep");
        Self::Daemon([daemon.front_pid(), warden].into_iter().chain(sweeper).collect())
    }

    /// Milliseconds so far.
    pub fn now(&self) -> f64 {
        let own = match self {
            Whose::Ours => [UsageWho::RUSAGE_SELF, UsageWho::RUSAGE_CHILDREN]
                .into_iter()
                .filter_map(|who| getrusage(who).ok())
                .map(|usage| (usage.user_time() + usage.system_time()).num_microseconds() as f64 / 1000.0)
                .sum(),
            Whose::Daemon(pids) => pids.iter().map(|pid| with_children(*pid)).sum::<f64>(),
        };
        own + kernel_threads()
    }
}

/// User and system time of a process and its ended children: fields 14 to 17 of its stat, in ticks of ten milliseconds.
fn with_children(pid: i32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the daemon lives");
    let after_name = text.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = after_name.split_whitespace().skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 * 10.0
}

fn kernel_threads() -> f64 {
    let threads =
        processes::all().into_iter().filter(|pid| processes::stat(*pid).is_some_and(|stat| stat.parent == KTHREADD));
    let nanoseconds = |pid: i32| -> Option<u64> {
        fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?.split_whitespace().next()?.parse().ok()
    };
    threads.filter_map(nanoseconds).sum::<u64>() as f64 / 1e6
}
