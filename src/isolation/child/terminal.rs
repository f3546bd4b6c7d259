//! The program's terminal, out of the sandbox's own devpts: no other sandbox and nobody on the host has a name for it.
//!
//! The master goes to the front over the status socket, before the program's first instruction; the slave becomes the
//! program's 0, 1 and 2 and, once it leads a session, its controlling terminal.
#![forbid(unsafe_code)]

use super::calls::{self, Done, Fd};
use super::numbers::{O_NOCTTY, O_RDWR};
use super::program::INSIDE_UID;
use super::status_record;

/// rw for its owner, w for its group.
const MODE: usize = 0o620;
/// Tag of `Status::Terminal`.
const TERMINAL: u8 = 4;

/// Opens a terminal: its master and its slave.
pub fn open((rows, cols): (u16, u16)) -> Done<(Fd, Fd)> {
    let master = calls::open(c"/dev/pts/ptmx", O_RDWR | O_NOCTTY)?;
    calls::unlock_terminal(master)?;
    let slave = calls::terminal_peer(master)?;
    calls::change_owner(slave, INSIDE_UID, INSIDE_UID)?;
    calls::change_mode(slave, MODE)?;
    calls::set_terminal_size(master, rows, cols)?;
    Ok((master, slave))
}

/// Makes 0 the controlling terminal of this session and hands its master to the front.
pub fn take(master: Fd, status: Fd) -> Done {
    calls::take_terminal(Fd(0))?;
    calls::send_with(status, &status_record(TERMINAL, 0, 0, 0), master)
}
