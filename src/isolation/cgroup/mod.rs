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

mod ground;
mod group;

pub use ground::Ground;
pub use group::Group;

use crate::model::{CgroupMode, Layer, Limits};
use group::Part;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;
use nix::sys::uio::pread;
use nix::unistd::{UnlinkatFlags, unlinkat, write};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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

impl Tree {
    /// Opens what a start made, while its names can still be seen.
    pub fn open(ground: &Ground) -> Result<Self, CgroupError> {
        let base = |place: &ground::Place| {
            let path = place.parent.join(&ground.name);
            let (parent, directory) = (open_directory(&place.parent)?, open_directory(&path)?);
            Ok(Base { controller: place.controller, parent, directory: directory.into(), path })
        };
        Ok(Self {
            mode: ground.mode,
            bases: ground.places.iter().map(base).collect::<Result<_, _>>()?,
            name: ground.name.clone(),
            layers: ground.layers.clone(),
            spare: RefCell::default(),
        })
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
