//! An exec while it lives, as those who are not its caller reach it: its log, its standard input, its signals, its end.
//!
//! ```text
//! not yet ──go──▶ open ──close, or the program no longer reads──▶ closed
//! ```
//!
//! Input comes in pieces, each written whole before the next; a program that does not read keeps its writer waiting and
//! nobody else. What was given is counted, hashed for the record, and bounded by the permit.

use super::client::RunHandle;
use super::log::Log;
use super::stop::Stop;
use crate::model::ProgramSignal;
use crate::workspace::Store;
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;

/// One exec from its listing until nobody wants to know of it.
#[derive(Debug)]
pub struct Live {
    /// Ends it.
    pub stop: Stop,
    /// What it says.
    pub log: Log,
    pub(super) input: Input,
    pub(super) control: OnceLock<RunHandle>,
    signals: AtomicU64,
}

/// Why input or a signal does not reach a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreached {
    /// It has not started.
    NotStarted,
    /// It takes no more: its input was closed, by a caller or by itself.
    Closed,
    /// It may be given only so many bytes more.
    TooMuch {
        /// How many.
        left: u64,
    },
}

/// What was sent to a program while it ran, for its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// Pieces of input.
    pub pieces: u64,
    /// Their bytes.
    pub bytes: u64,
    /// SHA-256 over all of them.
    pub digest: [u8; 32],
    /// Signals.
    pub signals: u64,
}

impl Live {
    /// An exec that is to come. With a store its log is bounded in memory.
    #[must_use]
    pub fn new(store: Option<Arc<Store>>) -> Self {
        let (input, control) = (Input::default(), OnceLock::new());
        Self { stop: Stop::default(), log: Log::new(store), input, control, signals: AtomicU64::new(0) }
    }

    /// One that has ended, of which only the log is left.
    #[must_use]
    pub fn ended(log: Log) -> Self {
        Self { log, ..Self::new(None) }
    }

    /// Gives it more input.
    pub async fn write(&self, bytes: &[u8]) -> Result<(), Unreached> {
        self.input.write(bytes).await
    }

    /// Says that no more input comes.
    pub async fn close_input(&self) -> Result<(), Unreached> {
        self.input.close().await
    }

    /// Sends a signal to the process group of its program.
    pub fn signal(&self, signal: ProgramSignal) -> Result<(), Unreached> {
        let run = self.control.get().ok_or(Unreached::NotStarted)?;
        self.signals.fetch_add(1, Ordering::Relaxed);
        run.signal(signal);
        Ok(())
    }

    /// What was sent to it while it ran, if anything.
    #[must_use]
    pub fn sent(&self) -> Option<Sent> {
        let posted = self.input.posted.lock().unwrap_or_else(PoisonError::into_inner);
        let signals = self.signals.load(Ordering::Relaxed);
        let digest = posted.digest.clone().finalize().into();
        (posted.pieces + signals > 0).then_some(Sent { pieces: posted.pieces, bytes: posted.bytes, digest, signals })
    }
}

/// Standard input of one exec.
#[derive(Debug, Default)]
pub(super) struct Input {
    to: tokio::sync::Mutex<To>,
    /// Bytes that may still come.
    left: AtomicU64,
    /// Bytes that the program was given, those of its request included.
    taken: AtomicU64,
    posted: Mutex<Posted>,
}

#[derive(Debug, Default)]
enum To {
    #[default]
    NotYet,
    Pipe(pipe::Sender),
    Closed,
}

#[derive(Debug, Default)]
struct Posted {
    pieces: u64,
    bytes: u64,
    digest: Sha256,
}

impl Input {
    /// Opens it, writes what came with the request, and closes it if nothing may follow.
    pub(super) async fn begin(&self, to: Option<pipe::Sender>, bytes: &[u8], more: Option<u64>) {
        self.left.store(more.unwrap_or(0), Ordering::Relaxed);
        let mut guard = self.to.lock().await;
        *guard = to.map_or(To::Closed, To::Pipe);
        self.put(&mut guard, bytes).await;
        if more.is_none() {
            *guard = To::Closed;
        }
    }

    /// Bytes that the program was given.
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    async fn write(&self, bytes: &[u8]) -> Result<(), Unreached> {
        let mut to = self.to.lock().await;
        match *to {
            To::NotYet => return Err(Unreached::NotStarted),
            To::Closed => return Err(Unreached::Closed),
            To::Pipe(_) => {}
        }
        let left = self.left.load(Ordering::Relaxed);
        let left_then = left.checked_sub(bytes.len() as u64).ok_or(Unreached::TooMuch { left })?;
        self.left.store(left_then, Ordering::Relaxed);
        {
            let mut posted = self.posted.lock().unwrap_or_else(PoisonError::into_inner);
            posted.pieces += 1;
            posted.bytes += bytes.len() as u64;
            posted.digest.update(bytes);
        }
        self.put(&mut to, bytes).await;
        if matches!(*to, To::Closed) { Err(Unreached::Closed) } else { Ok(()) }
    }

    pub(super) async fn close(&self) -> Result<(), Unreached> {
        let mut to = self.to.lock().await;
        match *to {
            To::NotYet => Err(Unreached::NotStarted),
            To::Pipe(_) | To::Closed => {
                *to = To::Closed;
                Ok(())
            }
        }
    }

    /// Writes all of it, or closes: a program that reads no more is within its rights.
    async fn put(&self, to: &mut To, bytes: &[u8]) {
        let To::Pipe(pipe) = to else { return };
        let mut rest = bytes;
        while !rest.is_empty() {
            match pipe.write(rest).await {
                Ok(taken @ 1..) => {
                    self.taken.fetch_add(taken as u64, Ordering::Relaxed);
                    rest = &rest[taken..];
                }
                Ok(0) | Err(_) => {
                    *to = To::Closed; // EPIPE: nobody reads
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pump::input_pipe;
    use super::*;
    use std::io::Read;

    #[tokio::test]
    async fn input_comes_in_pieces_until_it_is_closed() {
        let live = Live::new(None);
        assert_eq!(live.write(b"x").await, Err(Unreached::NotStarted));
        let (ours, theirs) = input_pipe(true).expect("a pipe");
        live.input.begin(ours, b"a", Some(3)).await;
        live.write(b"bc").await.expect("open");
        assert_eq!(live.write(b"de").await, Err(Unreached::TooMuch { left: 1 }));
        live.write(b"d").await.expect("open");
        live.close_input().await.expect("open");
        assert_eq!(live.write(b"e").await, Err(Unreached::Closed));
        let mut read = String::new();
        std::fs::File::from(theirs).read_to_string(&mut read).expect("text");
        assert_eq!((read.as_str(), live.input.taken()), ("abcd", 4));
        let sent = live.sent().expect("something");
        assert_eq!((sent.pieces, sent.bytes, sent.signals), (2, 3, 0));
    }

    #[tokio::test]
    async fn a_reader_that_leaves_does_not_stop_us() {
        let live = Live::new(None);
        let (ours, theirs) = input_pipe(true).expect("a pipe");
        drop(theirs);
        live.input.begin(ours, b"hello", None).await;
        assert_eq!((live.input.taken(), live.write(b"x").await), (0, Err(Unreached::Closed)));
    }
}
