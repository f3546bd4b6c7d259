//! Resource limits of one process: a second wall beside the group's limits, and the only one for some.
#![forbid(unsafe_code)]

use super::warden::protocol::Life;
use crate::model::{Limit, Limits};
use nix::sys::resource::{RLIM_INFINITY, Resource};

/// Memory that may be locked: enough for a key store, too little to pin a host down.
const MEMLOCK_BYTES: u64 = 8 << 20;
/// The kernel's own default for POSIX message queues.
const MSGQUEUE_BYTES: u64 = 819_200;
/// Queued signals of one uid.
const SIGPENDING: u64 = 4096;

/// The group's own limit should speak first, as it counts how often; this one holds if it should ever not.
const NPROC_SLACK: u64 = 64;

/// One resource with its amount, soft and hard alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rlimit {
    resource: Resource,
    amount: u64,
}

impl Rlimit {
    /// Whether it waits for the run: below a small limit there is no room to lift descriptors, and a session has no
    /// processor time of its own, which a limit that was set could not be raised to.
    #[must_use]
    pub fn comes_late(self) -> bool {
        matches!(self.resource, Resource::RLIMIT_NOFILE | Resource::RLIMIT_CPU)
    }

    /// The kernel's number of the resource.
    #[must_use]
    pub fn number(self) -> u32 {
        self.resource as u32
    }

    /// Soft and hard limit. The child sets less if the daemon itself was given less: raising needs CAP_SYS_RESOURCE, and
    /// less than asked for is never a hole.
    #[must_use]
    pub fn amount(self) -> u64 {
        self.amount
    }
}

/// All resource limits of a run.
#[must_use]
pub fn of(limits: &Limits, life: Life) -> [Rlimit; 11] {
    // One more second than the group's processor time: the warden's clock should speak first.
    // A session lives for many calls, each with its own: there the warden's clock is the only one.
    let cpu_seconds = match life {
        Life::Once => limits.get(Limit::CpuMs).div_ceil(1000) + 1,
        Life::Session => RLIM_INFINITY,
    };
    [
        (Resource::RLIMIT_NOFILE, limits.get(Limit::Nofile)),
        (Resource::RLIMIT_CORE, 0),
        (Resource::RLIMIT_FSIZE, limits.get(Limit::FsizeBytes)),
        (Resource::RLIMIT_STACK, limits.get(Limit::StackBytes)),
        (Resource::RLIMIT_NPROC, limits.get(Limit::Pids) + NPROC_SLACK),
        (Resource::RLIMIT_CPU, cpu_seconds),
        (Resource::RLIMIT_MEMLOCK, MEMLOCK_BYTES),
        (Resource::RLIMIT_MSGQUEUE, MSGQUEUE_BYTES),
        (Resource::RLIMIT_SIGPENDING, SIGPENDING),
        (Resource::RLIMIT_NICE, 0),
        (Resource::RLIMIT_RTPRIO, 0),
    ]
    .map(|(resource, amount)| Rlimit { resource, amount })
}
