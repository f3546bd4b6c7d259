//! The drivers of a store, and what a project looks like under each.
//!
//! ```text
//! directory   <project>/{inputs, work, .new, artifacts/<exec>}                plain directories, only measured
//! btrfs       <project>/live/{inputs, work, .new}                             one subvolume, one limit
//!             <project>/artifacts/<exec>                                      one subvolume each, limited while it runs
//!             <project>/snapshots/<id>                                        read-only copies of live
//!             <project>/next                                                  a live to come: restore makes, exchanges
//!             <project>/before/<exec>                                         what an exec found, until its report is made
//! ```
//!
//! Which one a project is, its own directories say: one that a plain store made stays readable under btrfs.
//! Making, copying and removing subvolumes is open to their owner, who we are; limits are root's, and the warden sets them.

use super::beneath::{for_each_name, look, open_beneath, open_own, open_unlocked};
use super::error::{WorkspaceError, host};
use super::meta::FileKind;
use super::remove::remove_tree;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Work and inputs of a project that has limits. The warden knows it by the same name.
pub(super) const LIVE: &str = "live";
/// What is to become it.
pub(super) const NEXT: &str = "next";
/// Kept copies of it.
pub(super) const SNAPSHOTS: &str = "snapshots";
/// Copies that an exec's report is made from.
pub(super) const BEFORE: &str = "before";
/// The most entries that are removed one by one where a subvolume can't be removed whole.
const ENTRIES: u64 = 100_000_000;

/// Whether a copy may be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copied {
    /// It stays as it is.
    ReadOnly,
    /// It goes its own way.
    Writable,
}

/// What a filesystem with subvolumes does. Directories are open for reading; names are single.
pub trait Volumes: Debug + Send + Sync {
    /// Makes an empty subvolume.
    fn make(&self, parent: BorrowedFd<'_>, name: &str) -> Result<(), Errno>;
    /// Copies one, at once and whole.
    fn copy(&self, source: BorrowedFd<'_>, parent: BorrowedFd<'_>, name: &str, copied: Copied) -> Result<(), Errno>;
    /// Lets a read-only one be written to, and thereby removed.
    fn open_up(&self, top: BorrowedFd<'_>) -> Result<(), Errno>;
    /// Removes one with everything in it.
    fn remove(&self, parent: BorrowedFd<'_>, name: &str) -> Result<(), Errno>;
}

/// The directory that a project's work and inputs are in, and whether it has a limit.
pub(super) fn home(root: &OwnedFd) -> Result<(OwnedFd, bool), Errno> {
    match open_own(root, LIVE) {
        Ok(live) => Ok((live, true)),
        Err(Errno::ENOENT) => open_own(root, ".").map(|root| (root, false)),
        Err(errno) => Err(errno),
    }
}

/// A directory of ours, open for requests.
pub(super) fn readable(directory: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    open_beneath(directory, name, OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())
}

/// Makes a subvolume unless there is one of that name.
pub(super) fn make(volumes: &dyn Volumes, parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    match volumes.make(readable(parent, ".")?.as_fd(), name) {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Copies the subvolume `name` of `from` to `new` in `to`.
pub(super) fn copy(
    volumes: &dyn Volumes,
    (from, name): (&OwnedFd, &str),
    (to, new): (&OwnedFd, &str),
    copied: Copied,
) -> Result<(), Errno> {
    volumes.copy(readable(from, name)?.as_fd(), readable(to, ".")?.as_fd(), new, copied)
}

/// Removes a subvolume, or a directory that is none; nothing there is as good.
pub(super) fn remove(volumes: &dyn Volumes, parent: &OwnedFd, name: &str) -> Result<(), WorkspaceError> {
    let failed = host("remove a subvolume");
    // A program may have locked its top, and what is read-only can't be removed by its owner.
    let opened = match open_unlocked(parent, name).or_else(|errno| match errno {
        Errno::EROFS => open_own(parent, name), // no program has ever seen this one
        errno => Err(errno),
    }) {
        Err(Errno::ENOENT) => return Ok(()),
        opened => opened.map_err(&failed)?,
    };
    readable(&opened, ".").and_then(|top| volumes.open_up(top.as_fd())).map_err(&failed)?;
    match readable(parent, ".").and_then(|parent| volumes.remove(parent.as_fd(), name)) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        // A mount without the option that lets owners do it, a plain directory, or one with another in it: the long way.
        Err(Errno::EPERM | Errno::EACCES | Errno::ENOTEMPTY | Errno::EINVAL | Errno::ENOTTY) => {
            remove_tree(&opened, name, ENTRIES)?;
            unlinkat(parent, name, UnlinkatFlags::RemoveDir).map_err(failed)
        }
        Err(errno) => Err(failed(errno)),
    }
}

/// Removes every subvolume in the directory `name` of a project, if it is there.
pub(super) fn remove_all_in(volumes: &dyn Volumes, root: &OwnedFd, name: &str) -> Result<(), WorkspaceError> {
    let directory = match open_own(root, name) {
        Err(Errno::ENOENT) => return Ok(()),
        opened => opened.map_err(host("remove subvolumes"))?,
    };
    for one in names_in(&directory)? {
        if look(&directory, one.as_str()).is_ok_and(|stat| FileKind::of(&stat) == FileKind::Directory) {
            remove(volumes, &directory, &one)?;
        }
    }
    Ok(())
}

/// The names in a directory of ours.
pub(super) fn names_in(directory: &OwnedFd) -> Result<Vec<String>, WorkspaceError> {
    let mut names = Vec::new();
    for_each_name(directory, |name| {
        names.extend(name.to_str().map(str::to_owned)); // all of ours are text
        true
    })
    .map_err(host("list a directory of the store"))?;
    Ok(names)
}

/// Removes all subvolumes of a project; what is left is plain directories.
pub(super) fn dismantle(volumes: &dyn Volumes, root: &OwnedFd) -> Result<(), WorkspaceError> {
    for one in [LIVE, NEXT] {
        remove(volumes, root, one)?;
    }
    for many in [SNAPSHOTS, BEFORE, "artifacts"] {
        remove_all_in(volumes, root, many)?;
    }
    Ok(())
}

/// Removes what a daemon that was killed left half-way in a project. The live tree is whole in any case: what is in
/// `next` is either a copy that never took its place, or the one whose place was taken.
pub(super) fn mend(volumes: &dyn Volumes, root: &OwnedFd) -> Result<(), WorkspaceError> {
    remove(volumes, root, NEXT)?;
    remove_all_in(volumes, root, BEFORE)
}
