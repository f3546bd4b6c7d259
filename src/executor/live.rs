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
use super::terminal::Terminal;
use crate::model::{ProgramSignal, Tty};
use crate::workspace::Store;
use sha2::{Digest, Sha256};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::{MutexGuard, OwnedSemaphorePermit, Semaphore, watch};

/// One exec from its listing until nobody wants to know of it.
#[derive(Debug)]
pub struct Live {
    /// Ends it.
    pub stop: Stop,
    /// What it says.
    pub log: Log,
    pub(super) input: Input,
    pub(super) control: OnceLock<RunHandle>,
    /// While it has one.
    pub(super) terminal: Mutex<Option<Arc<Terminal>>>,
    has_terminal: AtomicBool,
    signals: AtomicU64,
    /// Who writes: each that attaches to write is one more.
    writer: watch::Sender<u64>,
    places: Arc<Semaphore>,
}

/// Callers that may be attached to one exec at once.
const ATTACHED_MAX: usize = 128;

/// A place at an exec, until this is dropped.
#[derive(Debug)]
pub struct Attachment(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

/// The one attached caller whose input reaches the program, until another takes over.
#[derive(Debug)]
pub struct Writer {
    live: Arc<Live>,
    number: u64,
}

impl Writer {
    /// Resolves when another has taken over.
    pub async fn taken_over(&self) {
        let mut writer = self.live.writer.subscribe();
        // The sender lives as long as the exec.
        let _ = writer.wait_for(|writer| *writer != self.number).await;
    }

    /// Gives the program input, if this still is the writer.
    pub async fn write(&self, bytes: &[u8]) -> Result<(), Unreached> {
        if *self.live.writer.borrow() != self.number {
            return Ok(()); // it is about to be told
        }
        self.live.write(bytes).await
    }
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
    /// It has no terminal.
    NoTerminal,
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
        Self {
            stop: Stop::default(),
            log: Log::new(store),
            input: Input::default(),
            control: OnceLock::new(),
            terminal: Mutex::default(),
            has_terminal: AtomicBool::new(false),
            signals: AtomicU64::new(0),
            writer: watch::Sender::new(0),
            places: Arc::new(Semaphore::new(ATTACHED_MAX)),
        }
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

    /// Sends a signal to the process group of its program; at a terminal those that a key would send go to whatever is
    /// in its foreground.
    pub fn signal(&self, signal: ProgramSignal) -> Result<(), Unreached> {
        let run = self.control.get().ok_or(Unreached::NotStarted)?;
        self.signals.fetch_add(1, Ordering::Relaxed);
        if !self.terminal().is_some_and(|terminal| terminal.signal(signal)) {
            run.signal(signal);
        }
        Ok(())
    }

    fn terminal(&self) -> Option<Arc<Terminal>> {
        self.terminal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// It has a terminal from now on, or none any more.
    pub(super) fn set_terminal(&self, terminal: Option<Arc<Terminal>>) {
        self.has_terminal.fetch_or(terminal.is_some(), Ordering::Relaxed);
        *self.terminal.lock().unwrap_or_else(PoisonError::into_inner) = terminal;
    }

    /// Whether its program has, or had, a terminal.
    #[must_use]
    pub fn has_terminal(&self) -> bool {
        self.has_terminal.load(Ordering::Relaxed)
    }

    /// Gives its terminal another size.
    pub fn resize(&self, tty: Tty) -> Result<(), Unreached> {
        let terminal = self.terminal().ok_or(Unreached::NoTerminal)?;
        terminal.resize(tty).map_err(|_| Unreached::Closed)
    }

    /// A place for one more caller, if there is one.
    #[must_use]
    pub fn attach(&self) -> Option<Attachment> {
        self.places.clone().try_acquire_owned().ok().map(Attachment)
    }

    /// Takes over from whoever writes.
    #[must_use]
    pub fn writer(self: &Arc<Self>) -> Writer {
        let mut number = 0;
        self.writer.send_modify(|writer| {
            *writer += 1;
            number = *writer;
        });
        Writer { live: self.clone(), number }
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

/// Input that is open and belongs to the request until it has been fed.
pub(super) struct Opening<'a> {
    input: &'a Input,
    to: MutexGuard<'a, To>,
    more: bool,
}

impl Opening<'_> {
    /// Writes what came with the request, and closes if nothing may follow.
    pub(super) async fn feed(mut self, bytes: &[u8]) {
        self.input.put(&mut self.to, bytes).await;
        if !self.more {
            *self.to = To::Closed;
        }
    }
}

/// Where input goes.
#[derive(Debug, Default)]
pub(super) enum To {
    #[default]
    NotYet,
    Pipe(pipe::Sender),
    Terminal(Arc<Terminal>),
    Closed,
}

/// What a terminal's line discipline takes for the end of input.
const END_OF_FILE: &[u8] = &[4];

#[derive(Debug, Default)]
struct Posted {
    pieces: u64,
    bytes: u64,
    digest: Sha256,
}

impl Input {
    /// Ends it with its program.
    pub(super) async fn end(&self) {
        *self.to.lock().await = To::Closed;
    }

    /// Opens it, for so many bytes beside those of the request. Whoever sends some waits until those are fed.
    pub(super) async fn open(&self, to: To, more: Option<u64>) -> Opening<'_> {
        self.left.store(more.unwrap_or(0), Ordering::Relaxed);
        let mut guard = self.to.lock().await;
        *guard = to;
        Opening { input: self, to: guard, more: more.is_some() }
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
            To::Pipe(_) | To::Terminal(_) => {}
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

    async fn close(&self) -> Result<(), Unreached> {
        let mut to = self.to.lock().await;
        match *to {
            To::NotYet => Err(Unreached::NotStarted),
            To::Terminal(_) => {
                self.put(&mut to, END_OF_FILE).await;
                Ok(())
            }
            To::Pipe(_) | To::Closed => {
                *to = To::Closed;
                Ok(())
            }
        }
    }

    /// Writes all of it, or closes: a program that reads no more is within its rights.
    async fn put(&self, to: &mut To, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = match to {
                To::Pipe(pipe) => pipe.write(rest).await,
                To::Terminal(terminal) => terminal.write(rest).await,
                To::NotYet | To::Closed => return,
            };
            match written {
                Ok(taken @ 1..) => {
                    self.taken.fetch_add(taken as u64, Ordering::Relaxed);
                    rest = &rest[taken..];
                }
                Ok(0) | Err(_) => {
                    *to = To::Closed; // EPIPE, EIO: nobody reads
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
        let opening = live.input.open(To::Pipe(ours.expect("our end")), Some(3)).await;
        opening.feed(b"a").await;
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
        live.input.open(To::Pipe(ours.expect("our end")), None).await.feed(b"hello").await;
        assert_eq!((live.input.taken(), live.write(b"x").await), (0, Err(Unreached::Closed)));
    }
}
