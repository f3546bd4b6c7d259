//! The group of one run: its limits, its counters, its end.

use super::super::warden::protocol::Counted;
use super::{Controller, nix_open, read_text};
use crate::model::{Layer, Limit, Limits};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, mkdirat};
use nix::sys::uio::pwrite;
use nix::unistd::{UnlinkatFlags, unlinkat, write};
use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

/// Window of the cpu controller, in microseconds: the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;
/// Our init is a task of the group as well.
const INIT_TASKS: u64 = 1;
/// Tasks at once in a sandbox whose program starts no other: init and the program. Every run reaches it, so a group
/// that never had more counts the next run's peak as rightly as a new one.
const LEAST_TASKS: u64 = 2;
/// A group that still holds more than this (page cache of a project's files, for the most part) is not used again.
const REST_BYTES: u64 = 1 << 20;

impl Controller {
    /// v1: what is read for each run. A v2 group is used once, so there each file is opened when it is asked for.
    fn counters(self) -> &'static [&'static str] {
        match self {
            Controller::Memory => &["memory.oom_control", "memory.max_usage_in_bytes", "memory.usage_in_bytes"],
            Controller::Pids => &["pids.current", "pids.peak", "pids.events"],
            Controller::Cpuacct => &["cpuacct.usage"],
            Controller::Cpu | Controller::Unified => &[],
        }
    }
}

/// A group in one hierarchy.
#[derive(Debug)]
pub(super) struct Part {
    controller: Controller,
    parent: Rc<OwnedFd>,
    name: Rc<str>,
    /// v2: what a child is born into.
    directory: Option<OwnedFd>,
    /// v1: what a child writes to, to join.
    tasks: Option<OwnedFd>,
    /// Counters that were read once stay open: opening costs more than reading.
    open: RefCell<Vec<(&'static str, OwnedFd)>>,
}

impl Part {
    pub(super) fn make(controller: Controller, parent: &Rc<OwnedFd>, name: &Rc<str>) -> Result<Self, Errno> {
        mkdirat(parent, &**name, Mode::from_bits_truncate(0o755))?;
        let directory = match controller {
            Controller::Unified => Some(nix_open(parent, name, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?),
            _ => None,
        };
        let (parent, name) = (parent.clone(), name.clone());
        let mut part = Self { controller, parent, name, directory, tasks: None, open: RefCell::default() };
        if controller != Controller::Unified {
            part.tasks = Some(part.open_file("tasks", OFlag::O_WRONLY)?);
        }
        // A group that is used again has the same descriptors open as one that was not.
        for name in controller.counters() {
            let _ = part.with(name, |_| Ok(())); // pids.peak is there since 6.1
        }
        Ok(part)
    }

    fn open_file(&self, name: &str, flags: OFlag) -> Result<OwnedFd, Errno> {
        nix_open(&self.parent, &format!("{}/{name}", self.name), flags)
    }

    fn write(&self, name: &str, value: &str) -> Result<(), Errno> {
        write(&self.open_file(name, OFlag::O_WRONLY)?, value.as_bytes()).map(drop)
    }

    fn with<T>(&self, name: &'static str, act: impl FnOnce(&OwnedFd) -> Result<T, Errno>) -> Result<T, Errno> {
        let mut open = self.open.borrow_mut();
        let place = match open.iter().position(|(known, _)| *known == name) {
            Some(place) => place,
            None => {
                let file = self.open_file(name, OFlag::O_RDWR).or_else(|_| self.open_file(name, OFlag::O_RDONLY))?;
                open.push((name, file));
                open.len() - 1
            }
        };
        act(&open[place].1)
    }

    /// A number alone in a file.
    fn number(&self, name: &'static str) -> Option<u64> {
        self.with(name, read_text).ok()?.trim().parse().ok()
    }

    /// The number after `key ` in a file of such lines.
    fn keyed(&self, name: &'static str, key: &str) -> Option<u64> {
        let text = self.with(name, read_text).ok()?;
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
    }

    /// Sets a counter back, through the descriptor by which it will be read: v2 counts the peak per descriptor.
    fn reset(&self, name: &'static str) -> Result<(), Errno> {
        self.with(name, |file| pwrite(file, b"0", 0).map(drop))
    }

    /// Sets the limits. `now` are those in force, if any.
    fn limit(&self, now: Option<&Limits>, limits: &Limits, layers: &[Layer]) -> Result<(), Errno> {
        let set = |name: &str, value: u64| self.write(name, &value.to_string());
        let changed = |limit: Limit| now.is_none_or(|now| now.get(limit) != limits.get(limit));
        let memory = limits.get(Limit::MemoryBytes);
        let pids = limits.get(Limit::Pids) + INIT_TASKS;
        let quota_us = limits.get(Limit::CpuMillis) * CPU_PERIOD_US / 1000;
        // A kernel without swap accounting lacks the file; without swap there is nothing to limit.
        let where_present = |result: Result<(), Errno>| match result {
            Err(Errno::ENOENT) => Ok(()),
            other => other,
        };
        match self.controller {
            Controller::Memory if changed(Limit::MemoryBytes) => {
                // The sum with swap is never below memory alone: whichever way it goes, one order of the two is refused.
                if set("memory.limit_in_bytes", memory).is_err() {
                    where_present(set("memory.memsw.limit_in_bytes", memory))?;
                    return set("memory.limit_in_bytes", memory);
                }
                where_present(set("memory.memsw.limit_in_bytes", memory))
            }
            Controller::Pids if changed(Limit::Pids) => set("pids.max", pids),
            Controller::Cpu => {
                if now.is_none() {
                    set("cpu.cfs_period_us", CPU_PERIOD_US)?;
                }
                if changed(Limit::CpuMillis) { set("cpu.cfs_quota_us", quota_us) } else { Ok(()) }
            }
            Controller::Memory | Controller::Pids | Controller::Cpuacct => Ok(()),
            Controller::Unified => {
                if layers.contains(&Layer::Memory) && changed(Limit::MemoryBytes) {
                    set("memory.max", memory)?;
                    set("memory.oom.group", 1)?;
                    where_present(set("memory.swap.max", 0))?;
                }
                if layers.contains(&Layer::Pids) && changed(Limit::Pids) {
                    set("pids.max", pids)?;
                }
                if layers.contains(&Layer::Cpu) && changed(Limit::CpuMillis) {
                    self.write("cpu.max", &format!("{quota_us} {CPU_PERIOD_US}"))?;
                }
                Ok(())
            }
        }
    }
}

/// The group of one run, in every hierarchy. Dropped, it is removed; its processes must be gone by then.
#[derive(Debug)]
pub struct Group {
    name: Rc<str>,
    parts: Vec<Part>,
    /// The limits in force.
    limits: Option<Limits>,
    /// v1: readable when the group is out of memory.
    oom: Option<OwnedFd>,
    /// Processor time that was used before the run began, in microseconds.
    cpu_before_us: u64,
}

impl Group {
    pub(super) fn new(name: Rc<str>) -> Self {
        Self { name, parts: Vec::new(), limits: None, oom: None, cpu_before_us: 0 }
    }

    pub(super) fn push(&mut self, part: Part) {
        self.parts.push(part);
    }

    fn part(&self, v1: Controller) -> Option<&Part> {
        self.parts.iter().find(|part| part.controller == v1 || part.controller == Controller::Unified)
    }

    /// Sets those limits that are not in force yet.
    pub fn limit(&mut self, limits: &Limits, layers: &[Layer]) -> Result<(), Errno> {
        for part in &self.parts {
            part.limit(self.limits.as_ref(), limits, layers)?;
        }
        self.limits = Some(*limits);
        Ok(())
    }

    /// From here on the counters are the run's: what the sandbox used while it was built and while it waited is not.
    pub fn begin_run(&mut self) {
        if let Some(memory) = self.part(Controller::Memory) {
            let unified = memory.controller == Controller::Unified;
            // v2 before 6.12 can't: there the peak includes the few hundred KiB that building a sandbox takes.
            let _ = memory.reset(if unified { "memory.peak" } else { "memory.max_usage_in_bytes" });
        }
        self.cpu_before_us = self.cpu_total_us();
    }

    /// v2: the directory to be born into.
    #[must_use]
    pub fn born_into(&self) -> Option<BorrowedFd<'_>> {
        self.parts.iter().find_map(|part| part.directory.as_ref()).map(AsFd::as_fd)
    }

    /// v1: the files that the child writes "0" to.
    #[must_use]
    pub fn joins(&self) -> Vec<BorrowedFd<'_>> {
        self.parts.iter().filter_map(|part| part.tasks.as_ref()).map(AsFd::as_fd).collect()
    }

    /// v1: has the kernel tell when the group is out of memory. On v2 it kills the group itself.
    pub(super) fn watch_oom(&mut self) -> Result<(), Errno> {
        let Some(part) = self.parts.iter().find(|part| part.controller == Controller::Memory) else { return Ok(()) };
        let event =
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK)
                .map_err(|errno| Errno::from_raw(errno.raw_os_error()))?;
        let order =
            part.with("memory.oom_control", |control| Ok(format!("{} {}", event.as_raw_fd(), control.as_raw_fd())));
        part.write("cgroup.event_control", &order?)?;
        self.oom = Some(event);
        Ok(())
    }

    /// v1: readable when the group is out of memory.
    #[must_use]
    pub fn oom(&self) -> Option<BorrowedFd<'_>> {
        self.oom.as_ref().map(AsFd::as_fd)
    }

    /// Kills all of it at once where the kernel can (v2). Elsewhere the pid namespace's init takes all with it.
    pub fn kill(&self) {
        if let Some(part) = self.parts.iter().find(|part| part.controller == Controller::Unified) {
            // cgroup.kill is there since 5.14; before it the death of init does the same a moment later.
            let _ = part.write("cgroup.kill", "1");
        }
    }

    fn cpu_total_us(&self) -> u64 {
        let counted = match self.part(Controller::Cpuacct) {
            Some(part) if part.controller == Controller::Unified => part.keyed("cpu.stat", "usage_usec"),
            Some(part) => part.number("cpuacct.usage").map(|ns| ns / 1000),
            None => None,
        };
        counted.unwrap_or(0)
    }

    /// Processor time of the run so far, in microseconds.
    #[must_use]
    pub fn cpu_us(&self) -> u64 {
        self.cpu_total_us().saturating_sub(self.cpu_before_us)
    }

    /// Whether the kernel killed something in it for want of memory.
    #[must_use]
    pub fn was_out_of_memory(&self) -> bool {
        self.part(Controller::Memory).is_some_and(|part| {
            let file = if part.controller == Controller::Unified { "memory.events" } else { "memory.oom_control" };
            part.keyed(file, "oom_kill").is_some_and(|kills| kills > 0)
        })
    }

    /// What the kernel counted of the run.
    #[must_use]
    pub fn counted(&self) -> Counted {
        let memory_peak_bytes = self.part(Controller::Memory).and_then(|part| {
            let unified = part.controller == Controller::Unified;
            part.number(if unified { "memory.peak" } else { "memory.max_usage_in_bytes" })
        });
        let pids = self.part(Controller::Pids);
        Counted {
            cpu_us: self.cpu_us(),
            memory_peak_bytes,
            pids_peak: pids.and_then(|part| part.number("pids.peak")),
            pids_refused: pids.and_then(|part| part.keyed("pids.events", "max")).unwrap_or(0),
        }
    }

    /// Whether nothing of an earlier run is in it: no task and next to no memory.
    pub(super) fn is_empty(&self) -> bool {
        let memory = self.part(Controller::Memory).and_then(|part| part.number("memory.usage_in_bytes"));
        memory.is_none_or(|bytes| bytes <= REST_BYTES)
    }

    /// v1: whether the kernel has told that the group was out of memory. It tells before it looks for a victim and may find
    /// none, so this is not [`Group::was_out_of_memory`]; and it would be told to the next run as well.
    fn was_told_of_oom(&self) -> bool {
        self.oom.as_ref().is_some_and(|event| rustix::io::read(event, &mut [0; size_of::<u64>()]).is_ok())
    }

    /// Makes a group of an ended run fit for another one, if it can be. What can't be set back is made anew.
    pub(super) fn make_fit(&mut self) -> bool {
        if self.was_told_of_oom() {
            return false;
        }
        // v2's memory and pids peaks can't be set back on every kernel, and it has one directory to make, not four.
        if self.parts.iter().any(|part| part.controller == Controller::Unified) || self.was_out_of_memory() {
            return false;
        }
        self.cpu_before_us = 0;
        self.renew_pids().is_ok() && self.refill_cpu().is_ok()
    }

    /// `pids.peak` and `pids.events` can't be set back: a group whose run had more than the least is replaced.
    fn renew_pids(&mut self) -> Result<(), Errno> {
        let Some(place) = self.parts.iter().position(|part| part.controller == Controller::Pids) else { return Ok(()) };
        let part = &self.parts[place];
        let least = part.number("pids.peak") == Some(LEAST_TASKS) && part.keyed("pids.events", "max") == Some(0);
        if least {
            // The last task is unhooked a moment after its death is told.
            return if part.number("pids.current") == Some(0) { Ok(()) } else { Err(Errno::EBUSY) };
        }
        unlinkat(&part.parent, &*self.name, UnlinkatFlags::RemoveDir)?;
        let parent = part.parent.clone();
        let old = self.parts.remove(place);
        drop(old);
        let part = Part::make(Controller::Pids, &parent, &self.name)?;
        // The other limits stay as they are, so this one is set to what they were set with.
        if let Some(limits) = &self.limits {
            part.limit(None, limits, &[])?;
        }
        self.parts.insert(place, part);
        Ok(())
    }

    /// A quota that is written anew is full again: the next run does not pay for the last one's.
    fn refill_cpu(&self) -> Result<(), Errno> {
        let (Some(part), Some(limits)) =
            (self.parts.iter().find(|part| part.controller == Controller::Cpu), &self.limits)
        else {
            return Ok(());
        };
        let quota_us = limits.get(Limit::CpuMillis) * CPU_PERIOD_US / 1000;
        part.write("cpu.cfs_quota_us", &quota_us.to_string())
    }

    /// Removes it from every hierarchy. EBUSY while a dying process is still counted: try again.
    pub fn remove(&mut self) -> Result<(), Errno> {
        while let Some(part) = self.parts.last() {
            match unlinkat(&part.parent, &*self.name, UnlinkatFlags::RemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => drop(self.parts.pop()),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(errno) = self.remove() {
            tracing::warn!(group = %self.name, %errno, "could not remove a run's cgroup; the next start will");
        }
    }
}
