//! Subvolumes of btrfs, as the front makes, copies and removes them: with no right but that of their owner.

use crate::isolation::sys;
use crate::workspace::{Copied, Volumes};
use nix::errno::Errno;
use std::os::fd::BorrowedFd;

/// btrfs.
#[derive(Debug, Clone, Copy)]
pub struct Btrfs;

impl Volumes for Btrfs {
    fn make(&self, parent: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
        sys::make_subvolume(parent, name)
    }

    fn copy(&self, source: BorrowedFd<'_>, parent: BorrowedFd<'_>, name: &str, copied: Copied) -> Result<(), Errno> {
        sys::copy_subvolume(source, parent, name, copied == Copied::ReadOnly)
    }

    fn open_up(&self, top: BorrowedFd<'_>) -> Result<(), Errno> {
        match sys::make_writable(top) {
            Err(Errno::EINVAL | Errno::ENOTTY) => Ok(()), // no subvolume: nothing to open up
            opened => opened,
        }
    }

    fn remove(&self, parent: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
        sys::remove_subvolume(parent, name)
    }
}
