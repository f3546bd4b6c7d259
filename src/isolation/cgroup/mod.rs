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
//!
//! Making and removing a group in four hierarchies costs more than many programs do, so on v1 groups that hold nothing
//! of their run any more are used again ([`Tree::take_back`]): no task, no memory, and no count that can't be set back.
#![forbid(unsafe_code)]

mod group;

pub use group::Group;

use crate::model::{CgroupMode, Layer, Limits};
use cgroups_rs::hierarchies::{V1, is_cgroup2_unified_mode};
use cgroups_rs::{Controllers, Hierarchy};
use group::Part;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use nix::sys::uio::pread;
use nix::unistd::{UnlinkatFlags, unlinkat, write};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Our group below the daemon's own; the pid of the daemon follows.
const PREFIX: &str = "sandboxd-";
/// The leaf that the daemon itself moves to on v2.
const DAEMON_LEAF: &str = "daemon";
/// Groups that wait to be used again, at most.
const SPARE_MAX: usize = 64;

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
    directory: Rc<OwnedFd>,
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
    /// v1: groups of ended runs, the one that rests longest first.
    spare: RefCell<VecDeque<Group>>,
}

fn nix_open(directory: &OwnedFd, name: &str, flags: OFlag) -> Result<OwnedFd, Errno> {
    openat(directory, name, flags | OFlag::O_CLOEXEC, Mode::empty())
}

/// The text of an open file, from its beginning.
fn read_text(file: &OwnedFd) -> Result<String, Errno> {
    let mut buffer = [0u8; 4096]; // every file read here is shorter
    let len = pread(file, &mut buffer, 0)?;
    Ok(String::from_utf8_lossy(&buffer[..len]).into_owned())
}

fn read_at(directory: &OwnedFd, name: &str) -> Result<String, Errno> {
    read_text(&nix_open(directory, name, OFlag::O_RDONLY)?)
}

fn write_at(directory: &OwnedFd, name: &str, value: &str) -> Result<(), Errno> {
    write(&nix_open(directory, name, OFlag::O_WRONLY)?, value.as_bytes()).map(drop)
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

/// The cure for a v2 group that is not the daemon's alone.
const ALONE: &str = "run under systemd with Delegate=yes; in a container, as its command and not behind a shell";
/// How long the groups of a dead daemon are tried again: their last processes may be dying yet.
const SWEEP_PATIENCE: Duration = Duration::from_millis(200);
const SWEEP_PAUSE: Duration = Duration::from_millis(2);

/// What is to be told of a host whose swap no group accounts for: there `limit` is not among the files of a group.
fn swap_beyond(group: &Path, limit: &str) -> Option<String> {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default(); // a kernel without swap has no such file
    let has_swap = swaps.lines().nth(1).is_some(); // the first line is a heading
    (has_swap && !group.join(limit).exists()).then(|| {
        "memory: the host swaps and its groups do not count that, so a sandbox may have swap beyond its limit; boot with \
         swapaccount=1, or turn swap off"
            .to_owned()
    })
}

/// Removes a group in which nobody lives; waits for those who die.
fn remove_dead(group: &Path, deadline: Instant) {
    while let Err(error) = std::fs::remove_dir(group)
        && error.kind() == std::io::ErrorKind::ResourceBusy
        && Instant::now() < deadline
    {
        std::thread::sleep(SWEEP_PAUSE);
    }
}

/// Removes what an earlier daemon left: groups of ours whose daemon is gone. Errors are left for the next start.
fn sweep(own: &Path) {
    let deadline = Instant::now() + SWEEP_PATIENCE;
    for entry in std::fs::read_dir(own).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else { continue };
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if comm.starts_with("sandboxd") && pid != std::process::id().to_string() {
            continue; // another daemon is alive and well
        }
        for group in std::fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            if group.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove_dead(&group.path(), deadline);
            }
        }
        remove_dead(&entry.path(), deadline);
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
        let (mode, spare) = (CgroupMode::V1, RefCell::default());
        let mut tree = Self { mode, bases: vec![], name, layers: vec![], degraded: vec![], spare };
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
            if controller == Controller::Memory {
                tree.degraded.extend(swap_beyond(&path, "memory.memsw.limit_in_bytes"));
            }
            let base = Base { controller, parent: open_directory(&parent)?, directory: directory.into(), path };
            tree.bases.push(base);
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
                        degraded.push(format!("cgroup v2 controller {word} is not delegated ({why}); {ALONE}"));
                    }
                }
            }
        };
        enable(&own_group, &mut degraded);
        if is_kept_by_systemd(&own_group) {
            let path = parent.display();
            degraded.push(format!("systemd has not delegated the cgroup {path}; {ALONE}"));
        }
        let name = format!("{PREFIX}{}", std::process::id());
        let (directory, path) = make_directory(&parent, &name)?;
        let mut ignored = Vec::new(); // the parent has told already
        enable(&directory, &mut ignored);
        let enabled = read_at(&directory, "cgroup.subtree_control").unwrap_or_default();
        let layers: Vec<Layer> = [("memory", Layer::Memory), ("pids", Layer::Pids), ("cpu", Layer::Cpu)]
            .into_iter()
            .filter(|(word, _)| enabled.split_whitespace().any(|on| on == *word))
            .map(|(_, layer)| layer)
            .collect();
        if layers.contains(&Layer::Memory) {
            degraded.extend(swap_beyond(&path, "memory.swap.max"));
        }
        let controller = Controller::Unified;
        let bases = vec![Base { controller, parent: own_group, directory: directory.into(), path }];
        Ok(Self { mode: CgroupMode::V2, bases, name, layers, degraded, spare: RefCell::default() })
    }

    /// The name of the daemon's part.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
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

    /// A group with these limits for one run: one that was used before and is empty, or a new one named for `number`.
    pub fn group(&self, number: u64, limits: &Limits) -> Result<Group, Errno> {
        // The one that rests longest: what its run left to the kernel's own pace is gone by now, or it is not fit.
        loop {
            let Some(mut group) = self.spare.borrow_mut().pop_front() else { break };
            if group.is_empty() && group.limit(limits, &self.layers).is_ok() {
                return Ok(group);
            }
            // Dropped, it is removed.
        }
        let name: Rc<str> = format!("x{number}").into();
        let mut group = Group::new(name.clone());
        for base in &self.bases {
            group.push(Part::make(base.controller, &base.directory, &name)?);
        }
        group.limit(limits, &self.layers)?;
        group.watch_oom()?;
        Ok(group)
    }

    /// Takes a group whose processes are gone: to be used again, or to be removed. Given back for another try while the
    /// kernel still counts a task in it.
    #[must_use]
    pub fn take_back(&self, mut group: Group) -> Option<Group> {
        if self.spare() < SPARE_MAX && group.make_fit() {
            self.spare.borrow_mut().push_back(group);
            return None;
        }
        group.remove().is_err().then_some(group)
    }

    /// Groups that wait to be used again.
    #[must_use]
    pub fn spare(&self) -> usize {
        self.spare.borrow().len()
    }

    /// Removes the groups that wait to be used again.
    pub fn trim(&self) {
        self.spare.borrow_mut().clear();
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
