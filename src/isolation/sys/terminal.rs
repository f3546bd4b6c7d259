//! Terminals, where no crate of ours has the request.

use super::checked;
use nix::errno::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `TIOCSIG` of asm-generic/ioctls.h.
const TIOCSIG: libc::c_ulong = 0x4004_5436;

/// Sends SIGINT, SIGQUIT or SIGTSTP to the foreground group of the terminal whose master this is; others are EINVAL.
pub fn signal_foreground(master: BorrowedFd<'_>, signal: libc::c_int) -> Result<(), Errno> {
    // SAFETY: TIOCSIG takes a signal number by value; the borrow keeps the descriptor open.
    checked(unsafe { libc::ioctl(master.as_raw_fd(), TIOCSIG as _, signal) }.into()).map(drop)
}
