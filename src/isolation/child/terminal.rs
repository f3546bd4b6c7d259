//! The program's terminal, out of the sandbox's own devpts: no other sandbox and nobody on the host has a name for it.
//!
//! The master goes to the front over the status socket, before the program's first instruction; the slave becomes the
//! program's 0, 1 and 2 and, once it leads a session, its controlling terminal.

use super::super::plan::INSIDE_UID;
use super::super::warden::protocol::Status;
use super::super::warden::wire;
use crate::model::Tty;
use nix::errno::Errno;
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{Gid, Uid, fchown};
use rustix::fs::{CWD, OFlags, openat};
use rustix::process::ioctl_tiocsctty;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

fn to_errno(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

/// Opens a terminal: its master, and its slave three times.
pub(super) fn open(tty: Tty) -> Result<(OwnedFd, Vec<OwnedFd>), Errno> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = openat(CWD, c"/dev/pts/ptmx", flags, rustix::fs::Mode::empty()).map_err(to_errno)?;
    unlockpt(&master).map_err(to_errno)?;
    // By descriptor, not by name: whatever /dev/pts has, this is the other end of ours.
    let peer = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = ioctl_tiocgptpeer(&master, peer).map_err(to_errno)?;
    fchown(&slave, Some(Uid::from_raw(INSIDE_UID)), Some(Gid::from_raw(INSIDE_UID)))?;
    fchmod(&slave, Mode::S_IRUSR | Mode::S_IWUSR | Mode::S_IWGRP)?;
    let size = Winsize { ws_row: tty.rows, ws_col: tty.cols, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&master, size).map_err(to_errno)?;
    let mut slaves = Vec::with_capacity(3);
    for _ in 0..2 {
        slaves.push(rustix::io::fcntl_dupfd_cloexec(&slave, 0).map_err(to_errno)?);
    }
    slaves.push(slave);
    Ok((master, slaves))
}

/// Makes 0 the controlling terminal of this session and hands its master to the front.
pub(super) fn take(master: OwnedFd, status: BorrowedFd<'_>) -> Result<(), Errno> {
    ioctl_tiocsctty(rustix::stdio::stdin()).map_err(to_errno)?;
    wire::send(status, &Status::Terminal.encode(), &[master.as_fd()])
}
