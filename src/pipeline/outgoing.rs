//! Files on their way out: whole, in part, or a directory as tar, in pieces through a short channel.

use super::files::{Effect, PATIENCE, Permitted};
use super::{Failure, Pipeline};
use crate::policy::FilePermit;
use crate::workspace::{ArchiveBounds, AreaDir, Meta, WorkspaceError};
use bytes::Bytes;
use std::io;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Pieces that wait for a slow reader.
const PIECES: usize = 4;
/// Bytes of a piece.
const PIECE: usize = 128 << 10;
/// How much an archive holds.
pub(super) const ARCHIVE: ArchiveBounds = ArchiveBounds { entries: 1_000_000, bytes: 64 << 30 };

/// Which part of a file is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// All of it.
    Whole,
    /// So many bytes from there on.
    Part {
        /// From where.
        offset: u64,
        /// How many.
        length: u64,
    },
    /// Nothing: the caller has it.
    Unchanged,
    /// Nothing: there is no such part.
    OutOfRange,
}

/// A file, or a directory as an archive, on its way out.
#[derive(Debug)]
pub struct Outgoing {
    /// What it is of.
    pub meta: Meta,
    /// Which part comes; archives come whole.
    pub choice: Choice,
    /// Whether it is a directory as tar.
    pub archive: bool,
    /// The bytes. An error is the end of a stream that is not whole.
    pub body: mpsc::Receiver<io::Result<Bytes>>,
}

struct Head {
    meta: Meta,
    choice: Choice,
    archive: bool,
}

impl Pipeline {
    /// Sends what a permit is for; the first word says what comes.
    pub(super) async fn send(
        &self,
        permit: Permitted,
        choose: impl FnOnce(&Meta) -> Choice + Send + 'static,
    ) -> Result<Outgoing, Failure> {
        let (head, heard) = oneshot::channel();
        let (pieces, body) = mpsc::channel(PIECES);
        let out = Out { pieces, runtime: Handle::current(), sent: 0 };
        let send = move |area: &AreaDir, permit: &FilePermit| {
            let mut out = out;
            let done = send_one(area, permit, choose, head, &mut out);
            if let Err(error) = &done {
                out.break_off(error); // if nothing was promised yet, nobody reads it
            }
            done.map(|()| ((), Effect { read: out.sent, ..Effect::default() }))
        };
        let task = tokio::spawn(self.clone().carry(permit, send));
        match heard.await {
            Ok(Head { meta, choice, archive }) => Ok(Outgoing { meta, choice, archive, body }),
            Err(_) => match task.await {
                Ok(Err(failure)) => Err(failure),
                Ok(Ok(())) | Err(_) => Err(Failure::Internal), // it said nothing and did not fail
            },
        }
    }
}

/// The way out, from a thread that may wait.
struct Out {
    pieces: mpsc::Sender<io::Result<Bytes>>,
    runtime: Handle,
    sent: u64,
}

impl Out {
    fn piece(&mut self, piece: Bytes) -> io::Result<()> {
        let length = piece.len() as u64;
        match self.runtime.block_on(timeout(PATIENCE, self.pieces.send(Ok(piece)))) {
            Ok(Ok(())) => {
                self.sent += length;
                Ok(())
            }
            Ok(Err(_)) => Err(io::Error::new(io::ErrorKind::BrokenPipe, "the reader went away")),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the reader was slow for too long")),
        }
    }

    /// The reader was promised more: the connection has to break, or what follows would be read as the rest.
    fn break_off(&self, error: &WorkspaceError) {
        tracing::debug!(error = error as &dyn std::error::Error, "a download broke off");
        let broken = Err(io::Error::other("the download broke off"));
        // A reader that is slow or gone breaks off by itself.
        let _ = self.runtime.block_on(timeout(PATIENCE, self.pieces.send(broken)));
    }
}

/// Says what comes with the first piece: what fails before is an answer of its own and no broken stream.
struct Announced<'a> {
    head: Option<(oneshot::Sender<Head>, Head)>,
    out: &'a mut Out,
}

impl io::Write for Announced<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some((sender, head)) = self.head.take() {
            let _ = sender.send(head); // nobody listening any more shows at the next line
        }
        self.out.piece(Bytes::copy_from_slice(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn send_one(
    area: &AreaDir,
    permit: &FilePermit,
    choose: impl FnOnce(&Meta) -> Choice,
    head: oneshot::Sender<Head>,
    out: &mut Out,
) -> Result<(), WorkspaceError> {
    let path = permit.path();
    let download = match area.download(path) {
        Err(WorkspaceError::IsADirectory { .. }) => {
            let meta = area.stat(path)?;
            let bytes = ARCHIVE.bytes.min(permit.read_bytes_max());
            let head = Some((head, Head { meta, choice: Choice::Whole, archive: true }));
            let buffered = io::BufWriter::with_capacity(PIECE, Announced { head, out });
            return area.archive(path, ArchiveBounds { bytes, ..ARCHIVE }, buffered).map(drop);
        }
        download => download?,
    };
    let meta = download.meta().clone();
    let choice = choose(&meta);
    let mut download = match choice {
        Choice::Whole => download,
        Choice::Part { offset, length } => download.range(offset, length),
        Choice::Unchanged | Choice::OutOfRange => download.range(0, 0),
    };
    if download.left() > permit.read_bytes_max() {
        return Err(WorkspaceError::TooLarge { what: "bytes", limit: permit.read_bytes_max() });
    }
    let _ = head.send(Head { meta, choice, archive: false }); // nobody listening any more shows at the first piece
    let mut buffer = vec![0; PIECE];
    loop {
        match download.read(&mut buffer)? {
            0 => return Ok(()),
            count => {
                let sent = out.piece(Bytes::copy_from_slice(&buffer[..count]));
                sent.map_err(|source| WorkspaceError::Host { what: "send a file", source })?;
            }
        }
    }
}
