//! Cgroups: one small interface over v2 and v1.
//!
//! ```text
//! v2   <own>/                       the group systemd delegated to us (Delegate=yes)
//!      <own>/daemon                 front and warden, so that <own> may have controllers for its children
//!      <own>/sandboxd-<pid>/x<n>    one per run
//! v1   <own of each controller>/sandboxd-<pid>/x<n>
//! ```
//!
//! cgroups-rs finds the hierarchies and our own group in them. From then on everything is descriptor-relative:
//! the warden lives in a mount namespace in which /sys does not exist, and a name can't be swapped under it.
//! A child is never moved by its pid: on v2 it is born in the group, on v1 it writes itself into `tasks`.
#![forbid(unsafe_code)]

use super::warden::protocol::Counted;
use crate::model::{CgroupMode, Layer, Limit, Limits};
use cgroups_rs::hierarchies::{V1, is_cgroup2_unified_mode};
use cgroups_rs::{Controllers, Hierarchy};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, read, unlinkat, write};
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Our group below the daemon's own; the pid of the daemon follows.
const PREFIX: &str = "sandboxd-";
/// The leaf that the daemon itself moves to on v2.
const DAEMON_LEAF: &str = "daemon";
/// Window of the cpu controller, in microseconds: the kernel's default.
const CPU_PERIOD_US: u64 = 100_000;
/// Our init is a task of the group as well.
const INIT_TASKS: u64 = 1;

/// What can fail at start.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// Our own group can't be found.
    #[error("could not find the daemon's own cgroup")]
    Own(#[source] cgroups_rs::error::Error),
    /// A group can't be made or opened.
    #[error("could not {what} the cgroup {path}")]
    Group {
        /// make, open, …
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: Errno,
    },
}

/// The controllers we use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Controller {
    Memory,
    Pids,
    Cpu,
    /// v1 only: counts processor time (v2's `cpu.stat` does).
    Cpuacct,
    /// v2: all in one directory.
    Unified,
}

/// One directory per hierarchy below which runs have their groups.
#[derive(Debug)]
struct Base {
    controller: Controller,
    /// The daemon's own group, in which `directory` is.
    parent: OwnedFd,
    directory: OwnedFd,
    path: PathBuf,
}

/// The daemon's part of the cgroup tree.
#[derive(Debug)]
pub struct Tree {
    mode: CgroupMode,
    bases: Vec<Base>,
    name: String,
    /// Layers that this tree can hold.
    layers: Vec<Layer>,
    /// What is missing, with the cure.
    degraded: Vec<String>,
}

fn nix_read(file: &OwnedFd) -> Result<String, Errno> {
    let mut buffer = [0u8; 4096]; // every file read here is shorter
    let len = read(file, &mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..len]).into_owned())
}

fn read_at(directory: &OwnedFd, name: &str) -> Result<String, Errno> {
    nix_read(&openat(directory, name, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?)
}

fn write_at(directory: &OwnedFd, name: &str, value: &str) -> Result<(), Errno> {
    let file = openat(directory, name, OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    write(&file, value.as_bytes()).map(drop)
}

/// A number alone in a file.
fn number_at(directory: &OwnedFd, name: &str) -> Option<u64> {
    read_at(directory, name).ok()?.trim().parse().ok()
}

/// The number after `key ` in a file of such lines.
fn keyed_at(directory: &OwnedFd, name: &str, key: &str) -> Option<u64> {
    let text = read_at(directory, name).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

fn open_directory(path: &Path) -> Result<OwnedFd, CgroupError> {
    open(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(|source| CgroupError::Group { what: "open", path: path.to_owned(), source })
}

fn make_directory(parent: &Path, name: &str) -> Result<(OwnedFd, PathBuf), CgroupError> {
    let path = parent.join(name);
    match nix::unistd::mkdir(&path, Mode::from_bits_truncate(0o755)) {
        Ok(()) | Err(Errno::EEXIST) => Ok((open_directory(&path)?, path)),
        Err(source) => Err(CgroupError::Group { what: "make", path, source }),
    }
}

/// Whether systemd runs this machine and has not said that the group is ours: then it may take the controllers back, at
/// its next reload for one. It says so in an attribute (systemd's CGROUP_DELEGATION.md; `user.` since 252).
fn is_kept_by_systemd(own: &OwnedFd) -> bool {
    let says = |name: &str| {
        let mut value = [0u8; 1];
        rustix::fs::fgetxattr(own, name, &mut value[..]) == Ok(1) && value == *b"1"
    };
    Path::new("/run/systemd/system").is_dir() && !says("trusted.delegate") && !says("user.delegate")
}

/// Removes what an earlier daemon left: groups of ours whose daemon is gone. Errors are left for the next start.
fn sweep(own: &Path) {
    for entry in std::fs::read_dir(own).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if comm.starts_with("sandboxd") && pid != std::process::id().to_string() {
            continue; // another daemon is alive and well
        }
        for group in std::fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            if group.file_type().is_ok_and(|kind| kind.is_dir()) {
                let _ = std::fs::remove_dir(group.path());
            }
        }
        let _ = std::fs::remove_dir(entry.path());
    }
}

impl Tree {
    /// Finds our own group, clears what a dead daemon left and makes this daemon's part.
    pub fn make() -> Result<Self, CgroupError> {
        let own = cgroups_rs::cgroup::get_cgroups_relative_paths().map_err(CgroupError::Own)?;
        if is_cgroup2_unified_mode() { Self::make_v2(&own) } else { Self::make_v1(&own) }
    }

    fn make_v1(own: &HashMap<String, String>) -> Result<Self, CgroupError> {
        let hierarchies = V1::new();
        let wanted = [
            (Controller::Memory, Controllers::Mem, "memory", Some(Layer::Memory)),
            (Controller::Pids, Controllers::Pids, "pids", Some(Layer::Pids)),
            (Controller::Cpu, Controllers::Cpu, "cpu", Some(Layer::Cpu)),
            (Controller::Cpuacct, Controllers::CpuAcct, "cpuacct", None),
        ];
        let name = format!("{PREFIX}{}", std::process::id());
        let mut tree = Self { mode: CgroupMode::V1, bases: vec![], name, layers: vec![], degraded: vec![] };
        for (controller, known, word, layer) in wanted {
            let Some(mount) = hierarchies.get_mount_point(known) else {
                tree.degraded
                    .push(format!("cgroup v1 controller {word} is not mounted; mount it or boot with cgroup v2"));
                continue;
            };
            let relative = own.get(word).map_or("", |path| path.trim_start_matches('/'));
            // In a container the path may be the host's while the mount shows only our part of it.
            let parent = [mount.join(relative), mount].into_iter().find(|path| path.is_dir()).unwrap_or_default();
            sweep(&parent);
            let (directory, path) = make_directory(&parent, &tree.name)?;
            tree.bases.push(Base { controller, parent: open_directory(&parent)?, directory, path });
            tree.layers.extend(layer);
        }
        Ok(tree)
    }

    fn make_v2(own: &HashMap<String, String>) -> Result<Self, CgroupError> {
        let relative = own.get("").map_or("", |path| path.trim_start_matches('/'));
        let root = cgroups_rs::hierarchies::V2::new().root();
        let mut parent = [root.join(relative), root].into_iter().find(|path| path.is_dir()).unwrap_or_default();
        // A restarted daemon may be born in the leaf that its predecessor made.
        if parent.file_name().is_some_and(|name| name == DAEMON_LEAF) {
            parent.pop();
        }
        sweep(&parent);
        let mut degraded = Vec::new();
        // A group with processes can't give controllers to children, so we step into a leaf (cgroups(7), "no internal processes").
        let (leaf, leaf_path) = make_directory(&parent, DAEMON_LEAF)?;
        write_at(&leaf, "cgroup.procs", "0").map_err(|source| CgroupError::Group {
            what: "enter",
            path: leaf_path,
            source,
        })?;
        let own_group = open_directory(&parent)?;
        let enable = |directory: &OwnedFd, degraded: &mut Vec<String>| {
            for word in ["memory", "pids", "cpu", "io"] {
                match write_at(directory, "cgroup.subtree_control", &format!("+{word}")) {
                    Ok(()) => {}
                    Err(_) if word == "io" => {} // used where present, asked for by nobody
                    Err(errno) => {
                        let why = match errno {
                            Errno::EBUSY => "other processes are in the daemon's own group",
                            _ => errno.desc(),
                        };
                        degraded.push(format!(
                            "cgroup v2 controller {word} is not delegated ({why}); run under systemd with Delegate=yes"
                        ));
                    }
                }
            }
        };
        enable(&own_group, &mut degraded);
        if is_kept_by_systemd(&own_group) {
            let path = parent.display();
            degraded.push(format!("systemd has not delegated the cgroup {path}; run under systemd with Delegate=yes"));
        }
        let name = format!("{PREFIX}{}", std::process::id());
        let (directory, path) = make_directory(&parent, &name)?;
        let mut ignored = Vec::new(); // the parent has told already
        enable(&directory, &mut ignored);
        let enabled = read_at(&directory, "cgroup.subtree_control").unwrap_or_default();
        let layers = [("memory", Layer::Memory), ("pids", Layer::Pids), ("cpu", Layer::Cpu)]
            .into_iter()
            .filter(|(word, _)| enabled.split_whitespace().any(|on| on == *word))
            .map(|(_, layer)| layer)
            .collect();
        let bases = vec![Base { controller: Controller::Unified, parent: own_group, directory, path }];
        Ok(Self { mode: CgroupMode::V2, bases, name, layers, degraded })
    }

    /// v1 or v2.
    #[must_use]
    pub fn mode(&self) -> CgroupMode {
        self.mode
    }

    /// Layers whose limits this tree can hold.
    #[must_use]
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// What is missing and what would cure it.
    #[must_use]
    pub fn degraded(&self) -> &[String] {
        &self.degraded
    }

    /// Makes the group of one run with its limits.
    pub fn group(&self, number: u64, limits: &Limits) -> Result<Group, Errno> {
        let name = format!("x{number}");
        let mut group = Group { name, parts: Vec::with_capacity(self.bases.len()) };
        for base in &self.bases {
            mkdirat(&base.directory, group.name.as_str(), Mode::from_bits_truncate(0o755))?;
            let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            let directory = openat(&base.directory, group.name.as_str(), flags, Mode::empty())?;
            let parent = base.directory.try_clone().map_err(|_| Errno::EMFILE)?;
            let tasks = match base.controller {
                Controller::Unified => None,
                _ => Some(openat(&directory, "tasks", OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())?),
            };
            group.parts.push(Part { controller: base.controller, parent, directory, tasks });
        }
        for part in &group.parts {
            part.limit(limits, &self.layers)?;
        }
        Ok(group)
    }

    /// Removes the daemon's part, if all groups in it are gone.
    pub fn remove(&self) {
        for base in &self.bases {
            // By descriptor: where the warden lives, the path does not exist.
            if let Err(errno) = unlinkat(&base.parent, self.name.as_str(), UnlinkatFlags::RemoveDir) {
                tracing::warn!(group = %base.path.display(), %errno, "could not remove our cgroup; the next start will");
            }
        }
    }
}

#[derive(Debug)]
struct Part {
    controller: Controller,
    parent: OwnedFd,
    directory: OwnedFd,
    /// v1: what the child writes "0" to.
    tasks: Option<OwnedFd>,
}

impl Part {
    fn limit(&self, limits: &Limits, layers: &[Layer]) -> Result<(), Errno> {
        let set = |name: &str, value: u64| write_at(&self.directory, name, &value.to_string());
        let memory = limits.get(Limit::MemoryBytes);
        let pids = limits.get(Limit::Pids) + INIT_TASKS;
        let quota_us = limits.get(Limit::CpuMillis) * CPU_PERIOD_US / 1000;
        // A kernel without swap accounting lacks the file; without swap there is nothing to limit.
        let where_present = |result: Result<(), Errno>| match result {
            Err(Errno::ENOENT) => Ok(()),
            other => other,
        };
        match self.controller {
            Controller::Memory => {
                set("memory.limit_in_bytes", memory)?;
                where_present(set("memory.memsw.limit_in_bytes", memory))
            }
            Controller::Pids => set("pids.max", pids),
            Controller::Cpu => {
                set("cpu.cfs_period_us", CPU_PERIOD_US)?;
                set("cpu.cfs_quota_us", quota_us)
            }
            Controller::Cpuacct => Ok(()),
            Controller::Unified => {
                if layers.contains(&Layer::Memory) {
                    set("memory.max", memory)?;
                    set("memory.oom.group", 1)?;
                    where_present(set("memory.swap.max", 0))?;
                }
                if layers.contains(&Layer::Pids) {
                    set("pids.max", pids)?;
                }
                if layers.contains(&Layer::Cpu) {
                    write_at(&self.directory, "cpu.max", &format!("{quota_us} {CPU_PERIOD_US}"))?;
                }
                Ok(())
            }
        }
    }
}

/// The group of one run, in every hierarchy. Dropped, it is removed; its processes must be gone by then.
#[derive(Debug)]
pub struct Group {
    name: String,
    parts: Vec<Part>,
}

impl Group {
    fn part(&self, v1: Controller) -> Option<&Part> {
        self.parts.iter().find(|part| part.controller == v1 || part.controller == Controller::Unified)
    }

    /// v2: the directory to be born into.
    #[must_use]
    pub fn born_into(&self) -> Option<BorrowedFd<'_>> {
        let part = self.parts.iter().find(|part| part.controller == Controller::Unified)?;
        Some(part.directory.as_fd())
    }

    /// v1: the files that the child writes "0" to.
    #[must_use]
    pub fn joins(&self) -> Vec<BorrowedFd<'_>> {
        self.parts.iter().filter_map(|part| part.tasks.as_ref()).map(AsFd::as_fd).collect()
    }

    /// v1: an event descriptor that becomes readable when the group is out of memory. On v2 the kernel kills the group itself.
    pub fn watch_oom(&self) -> Result<Option<OwnedFd>, Errno> {
        let Some(part) = self.parts.iter().find(|part| part.controller == Controller::Memory) else { return Ok(None) };
        let event =
            rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK)
                .map_err(|errno| Errno::from_raw(errno.raw_os_error()))?;
        let control = openat(&part.directory, "memory.oom_control", OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
        let order = format!("{} {}", event.as_raw_fd(), control.as_raw_fd());
        write_at(&part.directory, "cgroup.event_control", &order)?;
        Ok(Some(event))
    }

    /// Kills all of it at once where the kernel can (v2). Elsewhere the pid namespace's init takes all with it.
    pub fn kill(&self) {
        if let Some(part) = self.parts.iter().find(|part| part.controller == Controller::Unified) {
            // cgroup.kill is there since 5.14; before it the death of init does the same a moment later.
            let _ = write_at(&part.directory, "cgroup.kill", "1");
        }
    }

    /// Processor time so far, in microseconds.
    #[must_use]
    pub fn cpu_us(&self) -> u64 {
        let counted = match self.part(Controller::Cpuacct) {
            Some(part) if part.controller == Controller::Unified => keyed_at(&part.directory, "cpu.stat", "usage_usec"),
            Some(part) => number_at(&part.directory, "cpuacct.usage").map(|ns| ns / 1000),
            None => None,
        };
        counted.unwrap_or(0)
    }

    /// Whether the kernel killed something in it for want of memory.
    #[must_use]
    pub fn was_out_of_memory(&self) -> bool {
        self.part(Controller::Memory).is_some_and(|part| {
            let file = if part.controller == Controller::Unified { "memory.events" } else { "memory.oom_control" };
            keyed_at(&part.directory, file, "oom_kill").is_some_and(|kills| kills > 0)
        })
    }

    /// What the kernel counted.
    #[must_use]
    pub fn counted(&self) -> Counted {
        let memory_peak_bytes = self.part(Controller::Memory).and_then(|part| {
            let unified = part.controller == Controller::Unified;
            number_at(&part.directory, if unified { "memory.peak" } else { "memory.max_usage_in_bytes" })
        });
        let pids = self.part(Controller::Pids);
        Counted {
            cpu_us: self.cpu_us(),
            memory_peak_bytes,
            pids_peak: pids.and_then(|part| number_at(&part.directory, "pids.peak")),
            pids_refused: pids.and_then(|part| keyed_at(&part.directory, "pids.events", "max")).unwrap_or(0),
        }
    }

    /// Removes it from every hierarchy. EBUSY while a dying process is still counted: try again.
    pub fn remove(&mut self) -> Result<(), Errno> {
        while let Some(part) = self.parts.last() {
            match unlinkat(&part.parent, self.name.as_str(), UnlinkatFlags::RemoveDir) {
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
