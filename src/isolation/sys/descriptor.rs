//! Descriptors under numbers of our choice: those that came with the process, and places that are kept for a child.

use super::checked;
use nix::errno::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// A copy, closed on exec and ours alone, of a descriptor that whoever started us left open under this number.
pub fn copy_inherited(raw: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: the call takes and returns numbers; one that is no open descriptor gives EBADF.
    let copy = checked(libc::c_long::from(unsafe { libc::fcntl(raw, libc::F_DUPFD_CLOEXEC, 3) }))?;
    // A descriptor fits: the kernel returned it as an int.
    let copy = RawFd::try_from(copy).map_err(|_| Errno::EBADF)?;
    // SAFETY: the call above made this descriptor for us, so it is open and nobody else closes it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Has execve close every descriptor from `first` on.
pub fn close_on_exec_from(first: RawFd) -> Result<(), Errno> {
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: close_range takes plain numbers, and with this flag closes nothing now.
    checked(unsafe { libc::syscall(libc::SYS_close_range, first as libc::c_uint, libc::c_uint::MAX, flags) }).map(drop)
}

/// A row of numbers under which a child finds what it is given. Below them little is open, above them everything that belongs
/// to other sandboxes: a child copies the table up to the row's end and never sees the rest (`vfork.rs`).
#[derive(Debug)]
pub struct Places {
    /// What stands in a place that is free.
    null: OwnedFd,
    first: RawFd,
    count: usize,
}

impl Places {
    /// Keeps `count` numbers from `first` on. EBUSY if one of them is taken.
    pub fn keep(null: BorrowedFd<'_>, first: RawFd, count: usize) -> Result<Self, Errno> {
        let null = null.try_clone_to_owned().map_err(|_| Errno::EMFILE)?;
        for place in (first..).take(count) {
            // SAFETY: the call takes and returns numbers; the descriptor is open for as long as `null` lives.
            let made = unsafe { libc::fcntl(null.as_raw_fd(), libc::F_DUPFD_CLOEXEC, place) };
            if checked(libc::c_long::from(made))? != libc::c_long::from(place) {
                return Err(Errno::EBUSY);
            }
        }
        Ok(Self { null, first, count })
    }

    /// The first number.
    #[must_use]
    pub fn first(&self) -> RawFd {
        self.first
    }

    /// The number after the last.
    #[must_use]
    pub fn end(&self) -> RawFd {
        self.first + self.count as RawFd
    }

    /// Puts copies of these into the first places, open across execve. What is dropped frees its places.
    pub fn fill(&self, fds: impl IntoIterator<Item = RawFd>) -> Result<Filled<'_>, Errno> {
        let mut filled = Filled { places: self, count: 0 };
        for fd in fds {
            if filled.count == self.count {
                return Err(Errno::EMFILE);
            }
            self.put(fd, filled.count, 0)?;
            filled.count += 1;
        }
        Ok(filled)
    }

    fn put(&self, fd: RawFd, index: usize, flags: libc::c_int) -> Result<(), Errno> {
        let place = self.first + index as RawFd;
        // SAFETY: dup3 takes numbers; what is closed under `place` was put there by `keep` or by this call.
        checked(libc::c_long::from(unsafe { libc::dup3(fd, place, flags) })).map(drop)
    }
}

/// Places that are in use.
#[derive(Debug)]
pub struct Filled<'a> {
    places: &'a Places,
    count: usize,
}

impl Drop for Filled<'_> {
    fn drop(&mut self) {
        for index in 0..self.count {
            // It can't fail: both numbers are open.
            let _ = self.places.put(self.places.null.as_raw_fd(), index, libc::O_CLOEXEC);
        }
    }
}

/// A namespace of the process of a pidfd.
#[derive(Debug, Clone, Copy)]
pub enum NamespaceKind {
    /// Mounts.
    Mount,
    /// Network.
    Net,
    /// System V and POSIX queues.
    Ipc,
}

/// `PIDFD_GET_IPC_NAMESPACE` and its kin of linux/pidfd.h (6.11): `_IO(0xff, …)`.
const PIDFD_GET_IPC_NAMESPACE: libc::c_ulong = 0xff02;
const PIDFD_GET_MNT_NAMESPACE: libc::c_ulong = 0xff03;
const PIDFD_GET_NET_NAMESPACE: libc::c_ulong = 0xff04;

/// The namespace of a living process, without a look into /proc; an older kernel says ENOTTY or EINVAL.
pub fn namespace_of(pidfd: BorrowedFd<'_>, kind: NamespaceKind) -> Result<OwnedFd, Errno> {
    let request = match kind {
        NamespaceKind::Mount => PIDFD_GET_MNT_NAMESPACE,
        NamespaceKind::Net => PIDFD_GET_NET_NAMESPACE,
        NamespaceKind::Ipc => PIDFD_GET_IPC_NAMESPACE,
    };
    // SAFETY: these requests take no argument; the borrow keeps the descriptor open.
    let made = checked(libc::c_long::from(unsafe { libc::ioctl(pidfd.as_raw_fd(), request as _, 0) }))?;
    let made = RawFd::try_from(made).map_err(|_| Errno::EBADF)?;
    // SAFETY: the call made this descriptor for us (close-on-exec), so nobody else closes it.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}
