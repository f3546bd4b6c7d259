//! The warden's loop.
#![forbid(unsafe_code)]

mod later;
mod quiet;

use super::held::{Held, Running, State, give_pipe_to};
use super::pool::{Pool, PoolBounds, Slot};
use super::protocol::{Cause, MESSAGE_MAX, Refused, Reply, Request, Run, RunNumber};
use super::setup::{Footing, Grounds, Prepared, set_number};
use super::store;
use super::sweep::Sweeper;
use super::wire;
use super::workspaces::Workspaces;
use crate::isolation::attach::Attach;
use crate::isolation::cgroup::Group;
use crate::isolation::idmap::{Range, Ranges};
use crate::isolation::order::order;
use crate::isolation::plan::SandboxPlan;
use crate::isolation::spawn::spawn;
use crate::model::{Layer, Limit};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use quiet::{FALL, IDLE, LIGHT, MAPS_IDLE, QUIET, RUSH};
use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Epoll tags: the front, else `TAGS` times a sandbox's slot and what happened to it.
const FRONT: u64 = u64::MAX;
const TAGS: u64 = 4;
/// Init is dead, and with it every process of the sandbox.
const DEAD: u64 = 0;
/// The group is out of memory.
const MEMORY: u64 = 1;
/// The program and all it started are gone; init leaves.
const OVER: u64 = 2;
/// Events taken per turn: the end of a sandbox takes a tenth of a millisecond, and who asks for a run waits for no more of them.
const EVENTS: usize = 8;
/// Runs at once, whatever the front asks for.
const RUNS_MAX: usize = 1024;
/// How long a group whose last task is still being unhooked is left alone before it is removed.
const RETRY: Duration = Duration::from_millis(20);
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
    /// Every sandbox there is.
    held: HashMap<Slot, Held>,
    last_slot: u64,
    /// The sandbox of each run.
    runs: HashMap<RunNumber, Slot>,
    /// The artifacts of each run that have a limit while it lasts.
    limited: HashMap<RunNumber, OwnedFd>,
    bounds: PoolBounds,
    pool: Pool,
    /// Sandboxes whose run is over and told; their init rests.
    spent: VecDeque<Slot>,
    /// Those of them that were killed and whose end has not been seen.
    falling: HashSet<Slot>,
    /// When the last of them was killed.
    killed: Instant,
    sweeper: Sweeper,
    /// When the front last asked for a run, when a run last began or ended, and since when the pool lacks something
    /// without a build.
    heard: Instant,
    stirred: Instant,
    lacking: Option<Instant>,
    /// Whether the last run was asked for right after the one before it.
    rushed: bool,
    /// Groups of ended runs that the kernel did not let go of at once.
    retired: Vec<Group>,
    buffer: Vec<u8>,
}

fn pool_for(bounds: PoolBounds, prepared: &[Prepared]) -> Pool {
    let usable = prepared.iter().map(|prepared| matches!(prepared, Prepared::Usable(_)));
    Pool::new(bounds, usable, Instant::now())
}

impl Server {
    pub(super) fn new(
        front: OwnedFd,
        grounds: Grounds,
        ranges: Ranges,
        footing: Footing,
        bounds: PoolBounds,
        sweeper: Sweeper,
    ) -> Self {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .expect("epoll_create1 fails only without memory or descriptors");
        epoll.add(&front, EpollEvent::new(EpollFlags::EPOLLIN, FRONT)).expect("a new epoll takes a socket");
        let Footing { workspaces, prepared, ready } = footing;
        let now = Instant::now();
        Self {
            front,
            grounds,
            ranges,
            workspaces,
            set: set_number(&ready.digest),
            epoll,
            held: HashMap::new(),
            last_slot: 0,
            runs: HashMap::new(),
            limited: HashMap::new(),
            bounds,
            pool: pool_for(bounds, &prepared),
            prepared,
            spent: VecDeque::new(),
            falling: HashSet::new(),
            killed: now,
            sweeper,
            heard: now,
            stirred: now,
            lacking: Some(now),
            rushed: false,
            retired: Vec::new(),
            buffer: vec![0; MESSAGE_MAX],
        }
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

    /// One turn of the loop: wait, act on what happened, look at the clock; if the front is silent, look after the pool.
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
                tag => {
                    let slot = Slot(tag / TAGS);
                    match tag % TAGS {
                        DEAD => self.finish(slot)?,
                        MEMORY => self.out_of_memory(slot),
                        _ => self.over(slot)?,
                    }
                }
            }
        }
        let now = Instant::now();
        for held in self.held.values_mut() {
            held.look_at_clock(now);
        }
        for group in std::mem::take(&mut self.retired) {
            self.retire(group);
        }
        self.take_apart(now);
        // What is built next takes the groups of what falls.
        if !self.some_fall(now) && (count == 0 || now >= self.heard + QUIET) {
            self.look_after_pool(now);
        }
        Ok(())
    }

    /// How long nothing can be due.
    fn patience(&self) -> EpollTimeout {
        let now = Instant::now();
        let running = self.held.values().filter_map(Held::running);
        let clock = running.map(|run| run.deadline.min(run.next_cpu_look)).min();
        let retry = (!self.retired.is_empty()).then(|| now + RETRY);
        let fallen = self.some_fall(now).then(|| self.killed + FALL);
        let apart = (!self.spent.is_empty()).then(|| self.stirred + QUIET);
        let pool = self.pool.due().map(|due| due.max(self.may_build()));
        let trim = (self.grounds.tree.spare() > 0 && !self.pool.is_lacking()).then_some(self.heard + IDLE);
        let keeps = self.ranges.keeps_maps() || self.grounds.nets.borrow().spare() > 0;
        let maps = keeps.then_some(self.heard + MAPS_IDLE);
        let quiet = apart.into_iter().chain(pool).chain(trim).chain(maps).min();
        // While some fall nothing of the quiet's is done, and what is due would spin.
        match clock.into_iter().chain(retry).chain(fallen.or(quiet)).min() {
            Some(due) if due <= now => EpollTimeout::ZERO,
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
            Ok(Request::Run(run)) if fds.len() == run.fds() => {
                let now = Instant::now();
                self.rushed = now < self.heard + RUSH;
                self.heard = now;
                self.lacking.get_or_insert(now);
                let reply = self.start(&run, &fds);
                self.stirred = Instant::now();
                self.reply_to_run(run.number, reply)
            }
            Ok(Request::Kill(number)) if fds.is_empty() => {
                // A run that has just ended by itself is no mistake.
                if let Some(held) = self.runs.get(&number).and_then(|slot| self.held.get_mut(slot)) {
                    held.end(Cause::Killed);
                }
                Ok(())
            }
            Ok(Request::Signal(number, signal)) if fds.is_empty() => {
                if let Some(held) = self.runs.get(&number).and_then(|slot| self.held.get_mut(slot)) {
                    // ESRCH: it has not started, or has just ended; nobody is left to hear it.
                    let _ = held.sandbox.signal_program(signal);
                }
                Ok(())
            }
            Ok(Request::Bound(bound)) if fds.is_empty() => {
                let done = self.bound(&bound).err().map_or(0, |errno| errno as i32);
                self.tell(&Reply::Bounded(bound.number, done))
            }
            Ok(Request::Call { number, wall_ms, cpu_ms }) if fds.is_empty() => {
                if let Some(held) = self.runs.get(&number).and_then(|slot| self.held.get_mut(slot)) {
                    held.call(wall_ms, cpu_ms);
                }
                Ok(()) // one that has just ended says so itself
            }
            Ok(Request::Rest(number)) if fds.is_empty() => {
                let rested =
                    self.runs.get(&number).and_then(|slot| self.held.get_mut(slot)).and_then(super::held::Held::rest);
                rested.map_or(Ok(()), |counted| self.tell(&Reply::Rested(number, counted)))
            }
            Ok(Request::Attach { number, exec, workspace }) if fds.is_empty() => {
                let done = self.attach_later(number, &exec, &workspace).err().map_or(0, |errno| errno as i32);
                self.tell(&Reply::Attached(number, done))
            }
            Ok(Request::Reload) if fds.is_empty() => self.reload(),
            Ok(Request::Stats) if fds.is_empty() => self.tell(&self.stats()),
            Ok(Request::Shutdown) if fds.is_empty() => Err(End::Asked),
            Ok(_) => Err(End::Misspoken(format!("{} descriptors beside a message", fds.len()))),
            Err(error) => Err(End::Misspoken(error.to_string())),
        }
    }

    fn tell(&self, reply: &Reply) -> Result<(), End> {
        wire::send(self.front.as_fd(), &reply.encode(), &[]).map_err(|_| End::FrontGone)
    }

    fn stats(&self) -> Reply {
        let of = |profile| self.held.values().filter_map(Held::running).filter(move |run| run.profile == profile);
        Reply::Stats(self.pool.gauges(|profile| u16::try_from(of(profile).count()).unwrap_or(u16::MAX)))
    }

    /// Reads the profiles again. Runs keep what they have; the trees of a bad reading are never in force.
    fn reload(&mut self) -> Result<(), End> {
        let reloaded = match self.grounds.footing(&mut self.ranges) {
            Ok(footing) => {
                // What waits was built from the old profiles.
                for slot in self.pool.drain() {
                    self.discard(slot);
                }
                self.workspaces = footing.workspaces;
                self.prepared = footing.prepared;
                self.set = set_number(&footing.ready.digest);
                self.pool = pool_for(self.bounds, &self.prepared);
                Some(footing.ready)
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "could not put the profiles in force; the last good ones stay");
                None
            }
        };
        self.tell(&Reply::Reloaded(reloaded))
    }

    /// No part of a project may hold more than some profile gives.
    fn bound(&self, bound: &store::Bound) -> Result<(), Errno> {
        let widest = self.prepared.iter().filter_map(|prepared| match prepared {
            Prepared::Usable(plan) => Some(plan.limits.get(Limit::WorkBytes)),
            Prepared::Missing(_) => None,
        });
        if widest.max().is_none_or(|most| bound.bytes > most) {
            return Err(Errno::EPERM);
        }
        self.workspaces.bound(bound)
    }

    fn reply_to_run(&self, number: RunNumber, started: Result<OwnedFd, Refused>) -> Result<(), End> {
        match started {
            Ok(status) => wire::send(self.front.as_fd(), &Reply::Accepted(number).encode(), &[status.as_fd()])
                .map_err(|_| End::FrontGone),
            Err(refused) => self.tell(&Reply::Refused(number, refused)),
        }
    }

    fn plan(&self, profile: usize) -> Result<&SandboxPlan, Refused> {
        match self.prepared.get(profile) {
            None => Err(Refused::Profile),
            Some(Prepared::Missing(layer)) => Err(Refused::Layer(layer_index(*layer))),
            Some(Prepared::Usable(plan)) => Ok(plan),
        }
    }

    /// Starts a run. Its status socket, or why not.
    fn start(&mut self, run: &Run, stdio: &[OwnedFd]) -> Result<OwnedFd, Refused> {
        let profile = usize::from(run.profile);
        if run.set != self.set {
            return Err(Refused::Profile);
        }
        if let Some(limit) = run.limits.first_wider_than(&self.plan(profile)?.limits) {
            return Err(Refused::Wider(limit));
        }
        if self.runs.contains_key(&run.number) || self.runs.len() >= RUNS_MAX {
            return Err(Refused::Busy);
        }
        while let Some(slot) = self.pool.take(profile) {
            match self.assign(slot, run, stdio) {
                // It died while it waited: no reason for a run to fail.
                Err(Refused::Spawn(errno)) if errno != Errno::EBADF as i32 => self.discard(slot),
                Err(refused) => {
                    self.discard(slot);
                    return Err(refused);
                }
                Ok(status) => {
                    self.pool.hit(profile);
                    return Ok(status);
                }
            }
        }
        self.pool.miss(profile);
        let slot = self.build(profile)?;
        self.assign(slot, run, stdio).inspect_err(|_| self.discard(slot))
    }

    /// Builds a sandbox of a profile, which then waits for its order.
    fn build(&mut self, profile: usize) -> Result<Slot, Refused> {
        let range = self.ranges.take().ok_or(Refused::Busy)?;
        self.last_slot += 1;
        let slot = Slot(self.last_slot);
        match self.build_in(profile, slot, range) {
            Ok(held) => {
                self.held.insert(slot, held);
                Ok(slot)
            }
            Err(refused) => {
                self.ranges.give_back(range);
                Err(refused)
            }
        }
    }

    fn build_in(&mut self, profile: usize, slot: Slot, range: Range) -> Result<Held, Refused> {
        let spawn_error = |errno: Errno| Refused::Spawn(errno as i32);
        let plan = self.plan(profile)?;
        let group = self.grounds.tree.group(slot.0, &plan.limits).map_err(|errno| Refused::Cgroup(errno as i32))?;
        let Grounds { proof, kit, nets, .. } = &self.grounds;
        let net = self.grounds.net(plan).map_err(spawn_error)?;
        let nets = nets.borrow();
        let net_in = net.as_ref().map(|net| (&*nets, net.as_fd()));
        let (sandbox, status) = spawn(proof, plan, &group, &self.ranges, range, kit, net_in).map_err(spawn_error)?;
        let event = |what| EpollEvent::new(EpollFlags::EPOLLIN, slot.0 * TAGS + what);
        self.epoll.add(sandbox.pidfd(), event(DEAD)).map_err(spawn_error)?;
        // Once: these stay readable, and there is one end.
        let once = |what| EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT, slot.0 * TAGS + what);
        self.epoll.add(sandbox.over(), once(OVER)).map_err(spawn_error)?;
        if let Some(memory) = group.oom() {
            self.epoll.add(memory, once(MEMORY)).map_err(spawn_error)?;
        }
        Ok(Held { sandbox, group, range, net, status: Some(status), state: State::Waiting(profile) })
    }

    /// Makes a waiting sandbox this run's. Its status socket. On an error it is good for nothing any more.
    fn assign(&mut self, slot: Slot, run: &Run, stdio: &[OwnedFd]) -> Result<OwnedFd, Refused> {
        let spawn_error = |errno: Errno| Refused::Spawn(errno as i32);
        let held = self.held.get_mut(&slot).ok_or(Refused::Spawn(Errno::ESRCH as i32))?;
        let State::Waiting(profile) = held.state else { return Err(spawn_error(Errno::ESRCH)) };
        let range = held.range;
        let most = match self.prepared.get(profile) {
            Some(Prepared::Usable(plan)) => plan.limits,
            _ => return Err(Refused::Profile),
        };
        let mounts = self
            .workspaces
            .mounts(&run.exec, &run.workspace, &run.limits, range, &mut self.ranges, &self.grounds.proof)
            .map_err(|errno| Refused::Workspace(errno as i32))?;
        for fd in stdio {
            give_pipe_to(range, fd).map_err(spawn_error)?;
        }
        match Attach::of(&run.workspace, &run.limits, &most, &mounts.trees)
            .and_then(|attach| held.sandbox.attach(&attach))
        {
            Err(Errno::ESRCH) => return Err(spawn_error(Errno::ESRCH)),
            attached => attached.map_err(|errno| Refused::Workspace(errno as i32))?,
        }
        let cgroup_error = |errno: Errno| Refused::Cgroup(errno as i32);
        held.group.limit(&run.limits, self.grounds.tree.layers()).map_err(cgroup_error)?;
        held.group.begin_run();
        let fds: Vec<BorrowedFd<'_>> = stdio.iter().map(AsFd::as_fd).collect();
        held.sandbox.order_if_alive(&order(run), &fds).map_err(spawn_error)?;
        held.state = State::Running(Box::new(Running::new(run, profile, &most)));
        self.runs.insert(run.number, slot);
        self.limited.extend(mounts.artifacts.map(|top| (run.number, top)));
        held.status.take().ok_or(Refused::Spawn(Errno::ESRCH as i32))
    }

    /// Ends a sandbox that no run has.
    fn discard(&mut self, slot: Slot) {
        if let Some(held) = self.held.get_mut(&slot) {
            held.state = State::Dying;
            held.end(Cause::Killed);
        }
    }

    /// Every process of a caller in this sandbox is gone: count and tell. Init rests until it is killed, and `finish` gives
    /// back.
    fn over(&mut self, slot: Slot) -> Result<(), End> {
        let Some(held) = self.held.get_mut(&slot) else { return Ok(()) };
        match std::mem::replace(&mut held.state, State::Dying) {
            State::Running(run) => {
                let ended = ended(&run, &held.group);
                let used = if let Reply::Ended(_, _, counted) = &ended { counted.memory_peak_bytes } else { None };
                if run.has_files || used.is_none_or(|used| used > LIGHT) {
                    held.sandbox.kill();
                } else {
                    self.spent.push_back(slot);
                }
                self.end_run(run.number, &ended)
            }
            // A waiting one whose program's process died: `finish` replaces it.
            other => {
                held.state = other;
                held.sandbox.kill();
                Ok(())
            }
        }
    }

    /// Tells how a run ended; from then on the front does with what it left as it likes.
    fn end_run(&mut self, number: RunNumber, ended: &Reply) -> Result<(), End> {
        self.runs.remove(&number);
        self.stirred = Instant::now();
        if let Some(Err(errno)) = self.limited.remove(&number).map(|top| self.workspaces.limit(&top, None)) {
            tracing::warn!(%errno, "the limit on what a run left can't be taken away; it may not be recorded");
        }
        self.tell(ended)
    }

    /// Every process of this sandbox is gone: count and tell if that is not done, give back.
    fn finish(&mut self, slot: Slot) -> Result<(), End> {
        let Some(mut held) = self.held.remove(&slot) else { return Ok(()) };
        self.falling.remove(&slot);
        let ended = match &held.state {
            State::Running(run) => self.end_run(run.number, &ended(run, &held.group)),
            State::Waiting(profile) => {
                tracing::warn!(profile, "a waiting sandbox died; another one takes its place");
                self.pool.lost(*profile, slot, Instant::now());
                Ok(())
            }
            State::Dying => Ok(()),
        };
        // From here on nobody waits for us. The descriptors may be open in a child that was forked meanwhile, so closing
        // does not take them out.
        let _ = self.epoll.delete(held.sandbox.pidfd());
        let _ = self.epoll.delete(held.sandbox.over());
        if let Some(event) = held.group.oom() {
            let _ = self.epoll.delete(event);
        }
        held.sandbox.reap();
        if let Some(mounts) = held.sandbox.take_mounts() {
            self.sweeper.take(&mounts);
        }
        self.sweeper.take_later(&held.sandbox.take_slow());
        if let Some(net) = held.net.take() {
            self.grounds.nets.borrow_mut().give_back(net);
        }
        self.ranges.give_back(held.range);
        self.retire(held.group);
        ended
    }

    fn retire(&mut self, group: Group) {
        self.retired.extend(self.grounds.tree.take_back(group));
    }

    fn out_of_memory(&mut self, slot: Slot) {
        if let Some(held) = self.held.get_mut(&slot) {
            // v1 kills one process; the rest of the group goes with it here, as v2 does by itself.
            held.end(Cause::Oom);
        }
    }

    fn end_everything(mut self) {
        for held in self.held.values_mut() {
            held.end(Cause::Killed);
        }
        for (_, mut held) in self.held.drain() {
            held.sandbox.reap();
            self.retired.push(held.group);
        }
        self.grounds.tree.trim();
        // Groups let go within milliseconds; a second is for a machine that stands still. What is left the next start sweeps.
        let patience = Instant::now() + Duration::from_secs(1);
        while !self.retired.is_empty() && Instant::now() < patience {
            self.retired.retain_mut(|group| group.remove().is_err());
            std::thread::sleep(Duration::from_millis(1));
        }
        self.grounds.tree.remove();
    }
}

/// How a run ended, by what the warden did to it and what its group counted.
fn ended(run: &Running, group: &Group) -> Reply {
    let killed_for_memory = run.cause == Cause::Itself && group.was_out_of_memory();
    let cause = if killed_for_memory { Cause::Oom } else { run.cause };
    Reply::Ended(run.number, cause, group.counted())
}

fn layer_index(layer: Layer) -> u8 {
    layer as u8
}
