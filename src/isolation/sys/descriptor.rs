//! Descriptors that came with the process instead of being made by it.

use super::checked;
use nix::errno::Errno;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// A copy, closed on exec and ours alone, of a descriptor that whoever started us left open under this number.
pub fn copy_inherited(raw: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: the call takes and returns numbers; one that is no open descriptor gives EBADF.
    let copy = checked(libc::c_long::from(unsafe { libc::fcntl(raw, libc::F_DUPFD_CLOEXEC, 3) }))?;
    // A descriptor fits: the kernel returned it as an int.
    let copy = RawFd::try_from(copy).map_err(|_| Errno::EBADF)?;
    // SAFETY: the call above made this descriptor for us, so it is open and nobody else closes it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}
