//! Evidence: a journal of every operation that reached policy, which can't be changed without being noticed.
//!
//! ```text
//! begin, end, refuse ── Journal (cheap clone) ──▶ a list ──▶ one commit at a time ──▶ <dir>/evidence.db (+ -wal, -shm)
//!                    ◀── after the commit ──────────────────┘  seq, hash             slate             the newest, if `Process`
//!                                                                                    checkpoint.json   the last signature
//! list, get, verify, export ── own read-only connections ──▶                         segments/*.ndjson what was sealed
//! ```
//!
//! **What it promises.** A begin is durable before [`Journal::begin`] comes back, an end before [`OpenRecord::end`]
//! does; every begin gets exactly one end, at the latest at the next start, as `lost`. Records hang together in a chain
//! of hashes ([`chain`]) that is signed every so often: a record that was changed, dropped, moved or added is found, in
//! the database, in segments and, with nothing but the public key, in an export ([`verify_export`]). A damaged journal is
//! set aside, never replaced in silence: the first record of the next chain names it. On a full disk nothing is begun
//! (with a slate: once it could not be moved, a quarter second at most), and what runs is still recorded to its end.
//!
//! **Who commits.** With [`Durability::Process`] whoever waits, for all that lie on the list by then: a commit is one write to
//! the slate. Whatever takes longer (a disk that is waited for, signatures, the index, sealing) is the thread "evidence"'s.
//!
//! **What lasts.** With [`Durability::Fsync`] (the default) everything answered survives power loss, with
//! [`Durability::Process`] `kill -9`.
//!
//! **What it does not hold.** Contents, environment values, standard input, tokens: only digests, amounts and names.
//!
//! **What it does not know.** Clocks (time comes in; within the chain it never goes back), HTTP, who may read what.
#![forbid(unsafe_code)]

mod aside;
mod ballast;
pub mod chain;
mod db;
mod draft;
mod export;
mod id;
mod job;
mod keys;
mod line;
mod owner;
mod read;
mod record;
mod recover;
mod segment;
mod signing;
mod slate;
mod verify;

pub use aside::SetAside;
pub use chain::{Bad, Fault, Verdict};
pub use db::FILE_NAME;
pub use export::{ExportError, Exported, Scope, verify_export};
pub use id::{Digest, EvidenceId, NotADigest, NotAnId};
pub use line::{Fields, Previous, Record, Text};
pub use owner::Place;
pub use read::{Filter, LONGEST_PAGE, Page, Shown};
pub use record::{Begin, BudgetUsed, End, Operation, Refused, SideEffect, Status};
pub use recover::Opened;
pub use segment::{SEGMENTS_DIR, Sealed};
pub use signing::{KeyError, NotAKey, PUBLIC_NAME, PublicKey, SECRET_NAME};

use crate::sqlite::file::{FileError, is_damage};
use crate::sqlite::writer::{Laid, Writer};
use db::KIND;
use draft::Draft;
use job::Job;
use owner::Owner;
use record::Matter;
use rusqlite::{Connection, OpenFlags};
use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{broadcast, oneshot};

/// Records that a slow follower may fall behind by before it has to look into the journal again.
const FOLLOWED_KEPT: usize = 4096;
/// Connections that are kept for the next reader.
const READERS_KEPT: usize = 4;
/// How long a reader waits for SQLite's own short locks.
const READER_PATIENCE: Duration = Duration::from_secs(5);

/// What an answered call outlives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// The end of the power: the disk has it.
    #[default]
    Fsync,
    /// The end of the process: the kernel has it.
    Process,
}

/// `[evidence]` of the config.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EvidenceSettings {
    /// What an answered call outlives.
    pub durability: Durability,
    /// A live database of more than this has its older half sealed into a segment.
    pub live_max_bytes: u64,
    /// Records older than this are sealed into a segment.
    pub live_max_days: u32,
}

impl Default for EvidenceSettings {
    fn default() -> Self {
        Self { durability: Durability::Fsync, live_max_bytes: 1 << 30, live_max_days: 90 }
    }
}

/// What can go wrong. All of it is the host's fault, but `NotOpen` and `BegunBefore`, which are the caller's.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    /// The file can't be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no key to sign with.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Another file of the journal failed.
    #[error("cannot {what} {path}")]
    Host {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The thread could not be started.
    #[error("cannot start the journal's thread")]
    Thread(#[source] io::Error),
    /// The journal was closed, or its thread died.
    #[error("the journal of evidence is closed")]
    Closed,
    /// There is no room for a record, so nothing may start.
    #[error("the disk of {path} is full; nothing is started until there is room for its evidence")]
    Full {
        /// Which file.
        path: PathBuf,
        /// What SQLite said, if it was asked.
        #[source]
        source: Option<Arc<rusqlite::Error>>,
    },
    /// A read failed.
    #[error("a statement of the journal of evidence failed")]
    Statement(#[from] rusqlite::Error),
    /// The transaction that the record was part of failed; nothing of it was kept.
    #[error("the journal of evidence could not commit")]
    Commit(#[source] Arc<rusqlite::Error>),
    /// A line in the file is no record; `verify` says more.
    #[error("record {seq} of the journal cannot be read; `sandboxctl evidence verify` says more")]
    Unreadable {
        /// Its place.
        seq: u64,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The begin has an end, or is none.
    #[error("{0} is not open")]
    NotOpen(EvidenceId),
    /// A begin was used twice.
    #[error("{0} was begun before")]
    BegunBefore(EvidenceId),
    /// An export could not be written.
    #[error("the export could not be written")]
    Export(#[source] io::Error),
    /// A segment was written and does not verify; the records stay where they are.
    #[error("the segment {path} does not verify: {bad}")]
    Segment {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        bad: String,
    },
}

/// A handle on the journal; clones share one thread and one file.
#[derive(Clone)]
pub struct Journal {
    inner: Arc<Inner>,
}

struct Inner {
    writer: Writer<Owner>,
    shared: Arc<Shared>,
}

/// What the thread and the handles see.
pub(crate) struct Shared {
    directory: PathBuf,
    path: PathBuf,
    settings: EvidenceSettings,
    chain: String,
    public_key: PublicKey,
    state: Mutex<Live>,
    starved: AtomicBool,
    sealing: AtomicBool,
    /// Readers of the files as a whole (verify, export) and the removal of sealed records keep out of each other's way.
    whole: tokio::sync::RwLock<()>,
    followers: broadcast::Sender<Arc<Record>>,
    /// None once the journal is closed.
    readers: Mutex<Option<Vec<Connection>>>,
    journal: OnceLock<Weak<Inner>>,
}

/// Where the chain stands.
#[derive(Debug, Clone, Copy)]
struct Live {
    head: Place,
    /// Where the database ends; what is behind it stands on the slate.
    settled: Place,
    open: usize,
}

/// Figures of the journal.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Records in the whole chain.
    pub records: u64,
    /// How many of them are in segments.
    pub sealed: u64,
    /// Operations that run.
    pub open: usize,
    /// The head, as `verify` shows it.
    pub head: Digest,
    /// Bytes of the live database that are in use.
    pub live_bytes: u64,
    /// The disk is full: nothing is begun.
    pub full: bool,
    /// What an answered call outlives.
    pub durability: Durability,
}

impl Journal {
    /// Opens (or makes) the journal in `directory`, closes what a dead daemon left open as `lost` and starts the thread.
    /// A journal that is damaged is set aside and a new chain begun. Blocks: call it at start-up, as the user that is
    /// to own the files.
    pub fn open(
        directory: &Path,
        settings: &EvidenceSettings,
        now_ms: u64,
    ) -> Result<(Journal, Opened), EvidenceError> {
        let (owner, opened) = recover::open(directory, settings, now_ms)?;
        let shared = owner.shared.clone();
        let writer = Writer::start("evidence", owner).map_err(EvidenceError::Thread)?;
        let inner = Arc::new(Inner { writer, shared: shared.clone() });
        // A fresh Shared has none.
        let _ = shared.journal.set(Arc::downgrade(&inner));
        let journal = Journal { inner };
        journal.resume_sealing();
        Ok((journal, opened))
    }

    /// Records that an operation is about to start; comes back when that is durable. The handle closes the record.
    ///
    /// A caller that stops waiting leaves no open record: it is closed as `lost`.
    pub fn begin(&self, begin: Begin) -> impl Future<Output = Result<OpenRecord, EvidenceError>> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        let record = OpenRecord { journal: self.clone(), matter: begin.subject_matter(), armed: false };
        let laid = self.inner.writer.lay(Job::Begin(Draft::begin(&begin), record, reply)).ok();
        answered(laid, answer)
    }

    /// Records that policy denied an operation: one record, no end.
    pub fn refuse(
        &self,
        begin: &Begin,
        refused: &Refused,
    ) -> impl Future<Output = Result<EvidenceId, EvidenceError>> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        let laid = self.inner.writer.lay(Job::Refuse(Draft::refusal(begin, refused), reply)).ok();
        answered(laid, answer)
    }

    /// Signs for everything recorded so far; the place of the signature.
    pub async fn checkpoint(&self) -> Result<Place, EvidenceError> {
        let (reply, answer) = oneshot::channel();
        let laid = self.inner.writer.lay(Job::Checkpoint(reply)).ok();
        answered(laid, answer).await
    }

    /// Every record that is committed from now on. A follower that lags hears of it and finds the rest with
    /// [`Journal::list`].
    #[must_use]
    pub fn follow(&self) -> broadcast::Receiver<Arc<Record>> {
        self.inner.shared.followers.subscribe()
    }

    /// Where the chain stands.
    #[must_use]
    pub fn head(&self) -> Place {
        self.inner.shared.live().head
    }

    /// The key that verifies this journal.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        self.inner.shared.public_key
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.shared.path
    }

    /// Figures.
    pub async fn stats(&self) -> Result<Stats, EvidenceError> {
        let shared = self.inner.shared.clone();
        let (sealed, live_bytes) = self
            .read(|connection| {
                let sealed = db::state(connection)?.map_or(0, |state| state.sealed_seq);
                Ok((sealed, db::used_bytes(connection)?))
            })
            .await?;
        let live = shared.live();
        Ok(Stats {
            records: live.head.seq,
            sealed,
            open: live.open,
            head: live.head.hash,
            live_bytes,
            full: shared.starved.load(Ordering::Relaxed),
            durability: shared.settings.durability,
        })
    }

    /// Waits for what was asked before, signs for it and closes the file. Other handles find the journal
    /// [`EvidenceError::Closed`]; what is still open then is closed as `lost` at the next start.
    pub async fn close(self) {
        self.inner.writer.close().await;
    }

    /// Has all that was recorded so far moved into the database, where readers look.
    async fn settle(&self) -> Result<(), EvidenceError> {
        let live = self.inner.shared.live();
        if live.head == live.settled {
            return Ok(());
        }
        let (reply, answer) = oneshot::channel();
        match answered(self.inner.writer.lay(Job::Settle(reply)).ok(), answer).await {
            // A full disk keeps nobody from reading what is there.
            Err(EvidenceError::Full { .. } | EvidenceError::Commit(_)) => Ok(()),
            settled => settled,
        }
    }

    /// Runs `work` on a read-only connection, away from the async threads.
    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, EvidenceError> + Send + 'static,
    ) -> Result<T, EvidenceError> {
        self.settle().await?;
        let shared = self.inner.shared.clone();
        let done = tokio::task::spawn_blocking(move || shared.with_reader(work)).await;
        match done {
            Ok(result) => result,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

/// Has a job done that was laid down, and waits for it. Without one: the journal is closed.
async fn answered<T>(
    laid: Option<Laid<Owner>>,
    answer: oneshot::Receiver<Result<T, EvidenceError>>,
) -> Result<T, EvidenceError> {
    let laid = laid.ok_or(EvidenceError::Closed)?;
    laid.commit();
    answer.await.map_err(|_| EvidenceError::Closed)?
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("path", &self.inner.shared.path).finish_non_exhaustive()
    }
}

/// An operation that was begun. It ends by value; one that is dropped ends as `lost`.
#[must_use = "an open record is closed with `end`; dropped, it says that the operation was lost"]
pub struct OpenRecord {
    journal: Journal,
    matter: Matter,
    armed: bool,
}

impl OpenRecord {
    /// Id of the begin, and of the whole operation.
    #[must_use]
    pub fn id(&self) -> &EvidenceId {
        &self.matter.begin
    }

    /// Records how it ended; comes back when that is durable. Sent at once: a caller that stops waiting takes nothing
    /// back.
    pub fn end(mut self, end: End) -> impl Future<Output = Result<EvidenceId, EvidenceError>> + Send + use<> {
        self.armed = false;
        let (reply, answer) = oneshot::channel();
        let job = Job::End(Draft::end(&self.matter, &end), self.matter.begin.clone(), Some(reply));
        answered(self.journal.inner.writer.lay(job).ok(), answer)
    }

    fn arm(&mut self) {
        self.armed = true;
    }
}

impl Drop for OpenRecord {
    fn drop(&mut self) {
        if self.armed {
            let end = End::lost("the daemon let go of the operation without an end", 0);
            let job = Job::End(Draft::end(&self.matter, &end), self.matter.begin.clone(), None);
            // A closed journal keeps it open; the next start closes it.
            let _ = self.journal.inner.writer.send(job);
        }
    }
}

impl fmt::Debug for OpenRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenRecord").field("id", &self.matter.begin).finish_non_exhaustive()
    }
}

impl Shared {
    fn live(&self) -> Live {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moved(&self, live: Live) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = live;
    }

    fn set_starved(&self, starved: bool) {
        self.starved.store(starved, Ordering::Relaxed);
    }

    fn follows(&self) -> bool {
        self.followers.receiver_count() > 0
    }

    fn tell(&self, record: Record) {
        // Nobody listening is fine.
        let _ = self.followers.send(Arc::new(record));
    }

    fn readers(&self) -> std::sync::MutexGuard<'_, Option<Vec<Connection>>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close_readers(&self) {
        *self.readers() = None;
    }

    fn with_reader<T>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<T, EvidenceError>,
    ) -> Result<T, EvidenceError> {
        let kept = self.readers().as_mut().ok_or(EvidenceError::Closed)?.pop();
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let result = work(&mut connection).map_err(|error| self.blame(error));
        if let Some(readers) = self.readers().as_mut().filter(|readers| readers.len() < READERS_KEPT) {
            readers.push(connection);
        }
        result
    }

    fn connect(&self) -> Result<Connection, EvidenceError> {
        let flags =
            OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let named = |source| EvidenceError::from(KIND.blame(source, &self.path));
        let connection = Connection::open_with_flags(&self.path, flags).map_err(named)?;
        connection.busy_timeout(READER_PATIENCE).map_err(named)?;
        for (pragma, value) in [("trusted_schema", "OFF"), ("cell_size_check", "ON"), ("temp_store", "MEMORY")] {
            connection.pragma_update(None, pragma, value).map_err(named)?;
        }
        Ok(connection)
    }

    /// `error` as a word about the file, if that is where the fault lies.
    fn blame(&self, error: EvidenceError) -> EvidenceError {
        match error {
            EvidenceError::Statement(source) if is_damage(&source) => KIND.blame(source, &self.path).into(),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests;
