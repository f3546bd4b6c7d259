//! One sandbox as the warden holds it: waiting, running or dying.
#![forbid(unsafe_code)]

use super::protocol::{Cause, Counted, INTERRUPT_GRACE_MS, Run, RunNumber, Workspace};
use crate::isolation::cgroup::Group;
use crate::isolation::idmap::Range;
use crate::isolation::spawn::Sandbox;
use crate::model::{Limit, Limits};
use nix::errno::Errno;
use nix::unistd::{Gid, Uid, fchown};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Longer than any session rests: the front ends an idle one.
const RESTS: Duration = Duration::from_secs(10 * 365 * 86_400);

/// A sandbox from its fork to the end of its last process.
#[derive(Debug)]
pub(super) struct Held {
    pub sandbox: Sandbox,
    pub group: Group,
    pub range: Range,
    /// Its network namespace, if that is used again.
    pub net: Option<OwnedFd>,
    /// The front's end of its status socket, until the front has it.
    pub status: Option<OwnedFd>,
    pub state: State,
}

/// What a sandbox is for. It goes down this list and never up, so none is given to two runs.
#[derive(Debug)]
pub(super) enum State {
    /// It waits for a run of the profile with this index.
    Waiting(usize),
    /// It is this run's.
    Running(Box<Running>),
    /// It was killed and nobody is told of its end.
    Dying,
}

/// One run from Accepted to Ended.
#[derive(Debug)]
pub(super) struct Running {
    pub number: RunNumber,
    pub profile: usize,
    pub limits: Limits,
    /// The profile's time on the wall and of the processor: no call of a session has more.
    most_ms: (u64, u64),
    pub begun: Instant,
    pub deadline: Instant,
    /// When the processor time could be used up at the earliest.
    pub next_cpu_look: Instant,
    pub cause: Cause,
    /// Whether its files may still come: nothing was attached, and no call has begun.
    pub later: bool,
    /// Whether files of somebody's hang on its mounts.
    pub has_files: bool,
}

impl Running {
    /// A run that begins now.
    pub(super) fn new(run: &Run, profile: usize, most: &Limits) -> Self {
        let (number, limits, later) = (run.number, run.limits, run.workspace == Workspace::Later);
        let has_files = !matches!(run.workspace, Workspace::Later | Workspace::ThrowAway { inputs: false });
        let now = Instant::now();
        let deadline = now + Duration::from_millis(limits.get(Limit::WallMs));
        let next_cpu_look = now + soonest(&limits, 0);
        let most_ms = (most.get(Limit::WallMs), most.get(Limit::CpuMs));
        let cause = Cause::Itself;
        Self { number, profile, limits, most_ms, begun: now, deadline, next_cpu_look, cause, later, has_files }
    }
}

impl Held {
    /// The run, if it is one's.
    pub(super) fn running(&self) -> Option<&Running> {
        match &self.state {
            State::Running(run) => Some(&**run),
            State::Waiting(_) | State::Dying => None,
        }
    }

    /// Ends it. For a run the first cause is the one that is told.
    pub(super) fn end(&mut self, cause: Cause) {
        match &mut self.state {
            State::Running(run) if run.cause == Cause::Itself => run.cause = cause,
            State::Running(_) | State::Dying => {}
            State::Waiting(_) => self.state = State::Dying,
        }
        self.group.kill();
        self.sandbox.kill();
    }

    /// A session begins a call: its clocks start, within what its profile permits.
    pub(super) fn call(&mut self, wall_ms: u64, cpu_ms: u64) {
        let used_us = self.group.cpu_us();
        let State::Running(run) = &mut self.state else { return };
        let now = Instant::now();
        let wall_ms = wall_ms.min(run.most_ms.0 + INTERRUPT_GRACE_MS);
        let cpu_ms = cpu_ms.min(run.most_ms.1);
        let set = run.limits.set(Limit::CpuMs, cpu_ms);
        debug_assert!(set.is_ok(), "the record's reader has checked it");
        run.deadline = now + Duration::from_millis(wall_ms);
        run.next_cpu_look = now + soonest(&run.limits, used_us);
        run.later = false;
    }

    /// A session's call is answered: nothing ends it but processor time that it still uses, as much as one call's.
    /// What was used since the last answer; from here on the next call's is counted.
    pub(super) fn rest(&mut self) -> Option<Counted> {
        let State::Running(run) = &mut self.state else { return None };
        let counted = self.group.counted();
        self.group.begin_run();
        let now = Instant::now();
        run.deadline = now + RESTS;
        run.next_cpu_look = now + soonest(&run.limits, 0);
        Some(counted)
    }

    /// Ends a run whose time is up.
    pub(super) fn look_at_clock(&mut self, now: Instant) {
        let State::Running(run) = &mut self.state else { return };
        let mut cause = None;
        if now >= run.deadline {
            cause = Some(Cause::Wall);
            // Dying takes a moment; look again if it takes long.
            run.deadline = now + Duration::from_secs(1);
        }
        if now >= run.next_cpu_look {
            let used_us = self.group.cpu_us();
            if used_us >= run.limits.get(Limit::CpuMs) * 1000 {
                cause = cause.or(Some(Cause::Cpu));
                run.next_cpu_look = now + Duration::from_secs(1);
            } else {
                run.next_cpu_look = now + soonest(&run.limits, used_us);
            }
        }
        if let Some(cause) = cause {
            self.end(cause);
        }
    }
}

/// Time until the processor time can be used up at the earliest: all cores that the run may use, at full speed.
fn soonest(limits: &Limits, used_us: u64) -> Duration {
    let left_us = (limits.get(Limit::CpuMs) * 1000).saturating_sub(used_us);
    let wall_us = left_us.saturating_mul(1000) / limits.get(Limit::CpuMillis);
    // Not less than a few milliseconds: near the limit the looks would otherwise crowd.
    Duration::from_micros(wall_us).max(Duration::from_millis(5))
}

/// Gives a pipe to the program's user, so that /dev/stdout and its kin can be opened by name. Nothing but a nameless
/// pipe is taken: whatever else the front could open is not for a program.
pub(super) fn give_pipe_to(range: Range, fd: &OwnedFd) -> Result<(), Errno> {
    /// `PIPEFS_MAGIC` of linux/magic.h.
    const PIPEFS: i64 = 0x5049_5045;
    let files = rustix::fs::fstatfs(fd).map_err(|errno| Errno::from_raw(errno.raw_os_error()))?;
    if files.f_type as i64 != PIPEFS {
        return Err(Errno::EBADF);
    }
    let (uid, gid) = (Uid::from_raw(range.host_user()), Gid::from_raw(range.host_user()));
    fchown(fd, Some(uid), Some(gid))
}
