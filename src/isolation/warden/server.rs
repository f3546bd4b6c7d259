//! The warden's loop.
#![forbid(unsafe_code)]

use super::protocol::{Cause, MESSAGE_MAX, RUN_FDS, Refused, Reply, Request, Run, RunNumber};
use super::setup::{Grounds, Prepared, set_number};
use super::wire;
use super::workspaces::Workspaces;
use crate::isolation::cgroup::Group;
use crate::isolation::idmap::{Range, Ranges};
use crate::isolation::plan::SandboxPlan;
use crate::isolation::spawn::{Sandbox, spawn};
use crate::model::{Layer, Limit, Limits};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::unistd::{Gid, Uid, fchown};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Epoll tags: the front, else twice a run's number (its pidfd) or that plus one (its memory event).
const FRONT: u64 = u64::MAX;
/// Events taken per turn.
const EVENTS: usize = 64;
/// Runs at once, whatever the front asks for.
const RUNS_MAX: usize = 1024;
/// How long a group whose last task is still being unhooked is left alone before it is removed.
const RETRY: Duration = Duration::from_millis(20);

/// One run from Accepted to Ended.
#[derive(Debug)]
struct Live {
    sandbox: Sandbox,
    group: Group,
    range: Range,
    /// v1: readable when the group is out of memory.
    oom: Option<OwnedFd>,
    limits: Limits,
    deadline: Instant,
    /// When the processor time could be used up at the earliest.
    next_cpu_look: Instant,
    cause: Cause,
}

/// Why the loop ends.
enum End {
    FrontGone,
    Asked,
    Misspoken(String),
}

/// The warden's state.
pub(super) struct Server {
    front: OwnedFd,
    grounds: Grounds,
    ranges: Ranges,
    workspaces: Workspaces,
    prepared: Vec<Prepared>,
    /// Which set of profiles `prepared` is.
    set: u64,
    epoll: Epoll,
    runs: HashMap<RunNumber, Live>,
    /// Groups of ended runs that the kernel did not let go of at once.
    retired: Vec<Group>,
    buffer: Vec<u8>,
}

impl Server {
    pub(super) fn new(
        front: OwnedFd,
        grounds: Grounds,
        ranges: Ranges,
        workspaces: Workspaces,
        prepared: Vec<Prepared>,
        set: u64,
    ) -> Self {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .expect("epoll_create1 fails only without memory or descriptors");
        epoll.add(&front, EpollEvent::new(EpollFlags::EPOLLIN, FRONT)).expect("a new epoll takes a socket");
        let (runs, retired, buffer) = (HashMap::new(), Vec::new(), vec![0; MESSAGE_MAX]);
        Self { front, grounds, ranges, workspaces, prepared, set, epoll, runs, retired, buffer }
    }

    /// Serves until the front is gone or asks for the end; then nothing of any run is left. The exit code.
    pub(super) fn serve(mut self) -> i32 {
        let end = loop {
            if let Err(end) = self.turn() {
                break end;
            }
        };
        let code = match &end {
            End::Asked => 0,
            End::FrontGone => {
                tracing::warn!(runs = self.runs.len(), "the front is gone; ending every run");
                1
            }
            End::Misspoken(error) => {
                tracing::error!(%error, "the front sent something that is no message; ending everything");
                2
            }
        };
        self.end_everything();
        code
    }

    /// One turn of the loop: wait, act on what happened, look at the clock.
    fn turn(&mut self) -> Result<(), End> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.epoll.wait(&mut events, self.patience()) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(errno) => return Err(End::Misspoken(format!("epoll_wait: {errno}"))),
        };
        for event in &events[..count] {
            match event.data() {
                FRONT => self.hear_front()?,
                tag if tag & 1 == 0 => self.finish(RunNumber(tag / 2))?,
                tag => self.out_of_memory(RunNumber(tag / 2)),
            }
        }
        self.look_at_clock();
        self.retired.retain_mut(|group| group.remove().is_err());
        Ok(())
    }

    /// How long nothing can be due.
    fn patience(&self) -> EpollTimeout {
        let now = Instant::now();
        let due = self.runs.values().map(|run| run.deadline.min(run.next_cpu_look)).min();
        let retry = (!self.retired.is_empty()).then(|| now + RETRY);
        match due.into_iter().chain(retry).min() {
            // One millisecond more: a wait that ends just before the deadline would spin.
            Some(due) => EpollTimeout::try_from(due.saturating_duration_since(now) + Duration::from_millis(1))
                .unwrap_or(EpollTimeout::from(u16::MAX)),
            None => EpollTimeout::NONE,
        }
    }

    fn hear_front(&mut self) -> Result<(), End> {
        let (len, fds) = match wire::receive(self.front.as_fd(), &mut self.buffer) {
            Ok((0, _)) | Err(Errno::ECONNRESET) => return Err(End::FrontGone),
            Ok(received) => received,
            Err(errno) => return Err(End::Misspoken(errno.to_string())),
        };
        match Request::decode(&self.buffer[..len]) {
            Ok(Request::Run(run)) if fds.len() == RUN_FDS => {
                let reply = self.start(&run, len, &fds);
                self.reply_to_run(run.number, reply)
            }
            Ok(Request::Kill(number)) if fds.is_empty() => {
                // A run that has just ended by itself is no mistake.
                if let Some(run) = self.runs.get_mut(&number) {
                    run.end(Cause::Killed);
                }
                Ok(())
            }
            Ok(Request::Reload) if fds.is_empty() => self.reload(),
            Ok(Request::Shutdown) if fds.is_empty() => Err(End::Asked),
            Ok(_) => Err(End::Misspoken(format!("{} descriptors beside a message", fds.len()))),
            Err(error) => Err(End::Misspoken(error.to_string())),
        }
    }

    /// Reads the profiles again. Runs keep what they have; the trees of a bad reading are never in force.
    fn reload(&mut self) -> Result<(), End> {
        let reloaded = match self.grounds.footing(&mut self.ranges) {
            Ok(footing) => {
                self.workspaces = footing.workspaces;
                self.prepared = footing.prepared;
                self.set = set_number(&footing.ready.digest);
                Some(footing.ready)
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "could not put the profiles in force; the last good ones stay");
                None
            }
        };
        wire::send(self.front.as_fd(), &Reply::Reloaded(reloaded).encode(), &[]).map_err(|_| End::FrontGone)
    }

    fn reply_to_run(&self, number: RunNumber, started: Result<OwnedFd, Refused>) -> Result<(), End> {
        let sent = match started {
            Ok(status) => wire::send(self.front.as_fd(), &Reply::Accepted(number).encode(), &[status.as_fd()]),
            Err(refused) => wire::send(self.front.as_fd(), &Reply::Refused(number, refused).encode(), &[]),
        };
        sent.map_err(|_| End::FrontGone)
    }

    fn plan(&self, run: &Run) -> Result<&SandboxPlan, Refused> {
        if run.set != self.set {
            return Err(Refused::Profile);
        }
        match self.prepared.get(usize::from(run.profile)) {
            None => Err(Refused::Profile),
            Some(Prepared::Missing(layer)) => Err(Refused::Layer(layer_index(*layer))),
            Some(Prepared::Usable(plan)) => Ok(plan),
        }
    }

    /// Starts a run whose datagram is the first `len` bytes of the buffer. Its status socket, or why not.
    fn start(&mut self, run: &Run, len: usize, stdio: &[OwnedFd]) -> Result<OwnedFd, Refused> {
        let plan = self.plan(run)?;
        if let Some(limit) = run.limits.first_wider_than(&plan.limits) {
            return Err(Refused::Wider(limit));
        }
        if self.runs.contains_key(&run.number) || self.runs.len() >= RUNS_MAX {
            return Err(Refused::Busy);
        }
        let range = self.ranges.take().ok_or(Refused::Busy)?;
        let started = self.start_in(run, len, stdio, range);
        if started.is_err() {
            self.ranges.give_back(range);
        }
        started
    }

    fn start_in(&mut self, run: &Run, len: usize, stdio: &[OwnedFd], range: Range) -> Result<OwnedFd, Refused> {
        let spawn_error = |errno: Errno| Refused::Spawn(errno as i32);
        let mounts = self
            .workspaces
            .mounts(run, range, &mut self.ranges, &self.grounds.proof)
            .map_err(|errno| Refused::Workspace(errno as i32))?;
        let group =
            self.grounds.tree.group(run.number.0, &run.limits).map_err(|errno| Refused::Cgroup(errno as i32))?;
        let oom = group.watch_oom().map_err(|errno| Refused::Cgroup(errno as i32))?;
        for fd in stdio {
            give_pipe_to(range, fd).map_err(spawn_error)?;
        }
        let plan = self.plan(run)?;
        let (sandbox, status) =
            spawn(&self.grounds.proof, plan, &group, &self.ranges, range, self.grounds.null.as_fd())
                .map_err(spawn_error)?;
        let fds: Vec<BorrowedFd<'_>> = stdio.iter().chain(&mounts).map(AsFd::as_fd).collect();
        sandbox.order(&self.buffer[..len], &fds).map_err(spawn_error)?;

        let tag = run.number.0 * 2;
        self.epoll.add(sandbox.pidfd(), EpollEvent::new(EpollFlags::EPOLLIN, tag)).map_err(spawn_error)?;
        if let Some(event) = &oom {
            self.epoll.add(event, EpollEvent::new(EpollFlags::EPOLLIN, tag + 1)).map_err(spawn_error)?;
        }
        let now = Instant::now();
        let limits = run.limits;
        let live = Live {
            sandbox,
            group,
            range,
            oom,
            limits,
            deadline: now + Duration::from_millis(limits.get(Limit::WallMs)),
            next_cpu_look: now + soonest(&limits, 0),
            cause: Cause::Itself,
        };
        self.runs.insert(run.number, live);
        Ok(status)
    }

    /// Every process of this run is gone: count, tell, give back.
    fn finish(&mut self, number: RunNumber) -> Result<(), End> {
        let Some(mut run) = self.runs.remove(&number) else { return Ok(()) };
        // The descriptors may be open in a child that was forked meanwhile, so closing does not take them out.
        let _ = self.epoll.delete(run.sandbox.pidfd());
        if let Some(event) = &run.oom {
            let _ = self.epoll.delete(event);
        }
        run.sandbox.reap();
        if run.cause == Cause::Itself && run.group.was_out_of_memory() {
            run.cause = Cause::Oom;
        }
        let ended = Reply::Ended(number, run.cause, run.group.counted());
        if run.group.remove().is_err() {
            self.retired.push(run.group);
        }
        self.ranges.give_back(run.range);
        wire::send(self.front.as_fd(), &ended.encode(), &[]).map_err(|_| End::FrontGone)
    }

    fn out_of_memory(&mut self, number: RunNumber) {
        if let Some(run) = self.runs.get_mut(&number) {
            // v1 kills one process; the rest of the group goes with it here, as v2 does by itself.
            run.end(Cause::Oom);
        }
    }

    fn look_at_clock(&mut self) {
        let now = Instant::now();
        for run in self.runs.values_mut() {
            if now >= run.deadline {
                run.end(Cause::Wall);
                // Dying takes a moment; look again if it takes long.
                run.deadline = now + Duration::from_secs(1);
            }
            if now >= run.next_cpu_look {
                let used_us = run.group.cpu_us();
                if used_us >= run.limits.get(Limit::CpuMs) * 1000 {
                    run.end(Cause::Cpu);
                    run.next_cpu_look = now + Duration::from_secs(1);
                } else {
                    run.next_cpu_look = now + soonest(&run.limits, used_us);
                }
            }
        }
    }

    fn end_everything(mut self) {
        for run in self.runs.values_mut() {
            run.end(Cause::Killed);
        }
        for (_, mut run) in self.runs.drain() {
            run.sandbox.reap();
            self.retired.push(run.group);
        }
        // Groups let go within milliseconds; a second is for a machine that stands still. What is left the next start sweeps.
        let patience = Instant::now() + Duration::from_secs(1);
        while !self.retired.is_empty() && Instant::now() < patience {
            self.retired.retain_mut(|group| group.remove().is_err());
            std::thread::sleep(Duration::from_millis(1));
        }
        self.grounds.tree.remove();
    }
}

impl Live {
    /// Ends the run; the first cause is the one that is told.
    fn end(&mut self, cause: Cause) {
        if self.cause == Cause::Itself {
            self.cause = cause;
        }
        self.group.kill();
        self.sandbox.kill();
    }
}

/// Time until the processor time can be used up at the earliest: all cores that the run may use, at full speed.
fn soonest(limits: &Limits, used_us: u64) -> Duration {
    let left_us = (limits.get(Limit::CpuMs) * 1000).saturating_sub(used_us);
    let wall_us = left_us.saturating_mul(1000) / limits.get(Limit::CpuMillis);
    // Not less than a few milliseconds: near the limit the looks would otherwise crowd.
    Duration::from_micros(wall_us).max(Duration::from_millis(5))
}

fn layer_index(layer: Layer) -> u8 {
    layer as u8
}

/// Gives a pipe to the program's user, so that /dev/stdout and its kin can be opened by name. Nothing but a nameless
/// pipe is taken: whatever else the front could open is not for a program.
fn give_pipe_to(range: Range, fd: &OwnedFd) -> Result<(), Errno> {
    /// `PIPEFS_MAGIC` of linux/magic.h.
    const PIPEFS: i64 = 0x5049_5045;
    let files = rustix::fs::fstatfs(fd).map_err(|errno| Errno::from_raw(errno.raw_os_error()))?;
    if files.f_type as i64 != PIPEFS {
        return Err(Errno::EBADF);
    }
    let (uid, gid) = (Uid::from_raw(range.host_user()), Gid::from_raw(range.host_user()));
    fchown(fd, Some(uid), Some(gid))
}
