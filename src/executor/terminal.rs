//! The front's end of a program's terminal.
//!
//! A program may close every slave and open one again later, so "nobody there" is not the end: the program's own is.

use super::log::Log;
use super::stop::ByteBudget;
use crate::isolation::sys::signal_foreground;
use crate::model::{Channel, ProgramSignal, Tty};
use rustix::termios::{Winsize, tcsetwinsize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// One read: the kernel hands out a page of a terminal at a time.
const CHUNK: usize = 16 * 1024;
/// How long to leave a terminal alone that nobody has open.
const NOBODY_THERE: Duration = Duration::from_millis(50);

/// A terminal's master.
#[derive(Debug)]
pub(super) struct Terminal(AsyncFd<OwnedFd>);

impl Terminal {
    pub(super) fn new(master: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&master, true)?;
        // What its successor is unsafe for can't happen here: an OwnedFd names one descriptor and keeps it open.
        #[expect(deprecated, reason = "the successor is unsafe, and unsafe has one home")]
        let master = AsyncFd::with_interest(master, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self(master))
    }

    async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = |master: &OwnedFd| rustix::io::read(master, &mut *buffer).map_err(io::Error::from);
        self.0.async_io(Interest::READABLE, read).await
    }

    pub(super) async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let write = |master: &OwnedFd| rustix::io::write(master, bytes).map_err(io::Error::from);
        self.0.async_io(Interest::WRITABLE, write).await
    }

    /// Gives it another size; its foreground group is told by the kernel.
    pub(super) fn resize(&self, tty: Tty) -> io::Result<()> {
        let size = Winsize { ws_row: tty.rows, ws_col: tty.cols, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(self.0.get_ref(), size)?)
    }

    /// Sends a signal to its foreground group; false for those that the kernel does not send that way.
    pub(super) fn signal(&self, signal: ProgramSignal) -> bool {
        signal_foreground(self.0.get_ref().as_fd(), signal.number().into()).is_ok()
    }

    /// Puts all that it shows into the log, until the program has ended and nothing is left; how it ended.
    pub(super) async fn drain<T>(&self, log: &Log, budget: &ByteBudget<'_>, ended: impl Future<Output = T>) -> T {
        tokio::pin!(ended);
        let mut over = None;
        let mut chunk = vec![0; CHUNK];
        loop {
            let read = tokio::select! {
                biased;
                read = self.read(&mut chunk) => read,
                ended = &mut ended, if over.is_none() => {
                    over = Some(ended);
                    continue;
                }
            };
            match read {
                Ok(length @ 1..) => {
                    log.append(Channel::Stdout, &chunk[..length]);
                    budget.count(length as u64);
                    log.make_room().await;
                }
                // EIO: nobody has it open.
                Ok(0) | Err(_) => match over {
                    Some(ended) => return ended, // and nobody will
                    None => over = tokio::time::timeout(NOBODY_THERE, &mut ended).await.ok(),
                },
            }
        }
    }
}
