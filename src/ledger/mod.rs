//! The ledger: tokens, grants, budgets, sandboxes, execs and idempotency keys, in one SQLite file that one thread owns.
//!
//! ```text
//! async callers ── Ledger (cheap clone) ──▶ channel ──▶ thread "ledger" ──▶ <state_dir>/ledger.db (+ -wal)
//!               ◀── oneshot, after the commit ─────────┘   all that wait = one transaction
//! ```
//!
//! **What it promises.** An answer comes after the commit. One writer puts everything in an order, so two callers can
//! never overspend together. A reservation counts as spent from the moment it is given: a killed daemon can lose
//! what its callers did not use, never let them use it twice. Secrets of tokens are not in the file, only their SHA-256.
//!
//! **What lasts.** Everything answered survives `kill -9`; of what is posted (rows of execs: what nobody waits for) the last
//! 5 ms do not, unless somebody asked for one meanwhile; the evidence has them. Power loss is another matter: the file runs with
//! `synchronous=NORMAL`, so the last moments of *budgets* (reserve, settle) may be forgotten then, which hands a
//! grant back what was spent in them. Tokens, new grants and revocations are synced to the disk before they are answered.
//!
//! **Who may open it.** One process: SQLite's lock is held for as long as it is open, so reservations found open at start
//! belong to a dead daemon. They are settled as fully used, in every meter, and listed in [`Ledger::recovered`].
//!
//! **Whose rows.** Sandboxes, execs and keys are asked for by their owner: another's row is as unknown as none.
//!
//! **What it does not know.** Clocks (time comes in), what a capability means (an opaque text), roles, HTTP. Tokens and
//! grants are never deleted: a `decision_key_fingerprint` is single use for ever because its grant stays. Sandboxes, execs
//! and keys go when they are old.
#![forbid(unsafe_code)]

mod budgets;
mod clearing;
mod db;
mod execs;
mod grants;
mod idempotency;
mod noting;
mod page;
mod sandboxes;
mod snapshots;
mod tokens;
mod writer;

pub use budgets::{LostReservation, Reservation};
pub use execs::{ExecEnded, ExecFilter, ExecPage, ExecRow, ExecStarted, ExecStatus, OldExec};
pub use grants::{GrantFilter, GrantPage, GrantRow, LONGEST_PAGE, NewGrant, Revocation};
pub use idempotency::{Claim, Claimed, IdempotencyKey};
pub use noting::ExecNote;
pub use sandboxes::{NewSandbox, SandboxFilter, SandboxPage, SandboxRow};
pub use snapshots::{NewSnapshot, SnapshotRow, SnapshotState};
pub use tokens::{NewToken, TokenRow, TokenSecret};

use crate::model::{ExecId, GrantId, Meter, SandboxId, SnapshotId, TokenId};
use crate::sqlite::file::FileError;
use crate::sqlite::writer::Writer;
use rusqlite::Connection;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use tokio::sync::broadcast;
use writer::{Call, Lasting};

/// Name of the file below the state directory.
pub const FILE_NAME: &str = "ledger.db";
/// Revocations that a slow listener may fall behind by before it has to look into the ledger again.
const REVOCATIONS_KEPT: usize = 1024;

/// What can go wrong. `*NotFound`, `Revoked`, `Expired`, `Exceeded`, `FingerprintUsed`, `TooManySandboxes` and `TooManyClaims` are
/// the ledger's "no", `TooLong`, `EmptyKey` and `AmountTooLarge` the caller's mistake; the others are faults of the host.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The file can't be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The thread could not be started.
    #[error("cannot start the ledger's thread")]
    Thread(#[source] io::Error),
    /// The ledger was closed, or its thread died.
    #[error("the ledger is closed")]
    Closed,
    /// A statement failed; nothing of its call was kept.
    #[error("a statement of the ledger failed")]
    Statement(#[from] rusqlite::Error),
    /// The transaction that the call was part of failed; nothing of it was kept.
    #[error("the ledger could not commit")]
    Commit(#[source] Arc<rusqlite::Error>),
    /// A list in a row is not JSON.
    #[error("the list of names in a row of the ledger cannot be read or written")]
    Names(#[source] serde_json::Error),
    /// No such token.
    #[error("there is no token {0}")]
    TokenNotFound(TokenId),
    /// No such grant.
    #[error("there is no grant {0}")]
    NotFound(GrantId),
    /// The grant was taken back.
    #[error("grant {grant_id} was revoked: {}", .revocation.reason)]
    Revoked {
        /// Which grant.
        grant_id: GrantId,
        /// When and why.
        revocation: Revocation,
    },
    /// The grant's time is over.
    #[error("grant {grant_id} has expired")]
    Expired {
        /// Which grant.
        grant_id: GrantId,
        /// When that was.
        expires_at_ms: u64,
    },
    /// The budget does not have that much.
    #[error("the budget has {left} {} left, {asked} were asked for", .which.name())]
    Exceeded {
        /// The first meter that does not have enough.
        which: Meter,
        /// What was asked for.
        asked: u64,
        /// What is there.
        left: u64,
    },
    /// This decision was turned into a grant before.
    #[error("this decision_key_fingerprint was used before; a decision gives one grant")]
    FingerprintUsed,
    /// More than can be counted.
    #[error("budget.{} is {given}; the most is {}", .which.name(), budgets::COUNTABLE)]
    AmountTooLarge {
        /// Which meter.
        which: Meter,
        /// What was asked for.
        given: u64,
    },
    /// The reservation was settled before.
    #[error("there is no such open reservation")]
    NotReserved,
    /// No such sandbox of this owner, or it was deleted or has ended.
    #[error("there is no sandbox {0}")]
    SandboxNotFound(SandboxId),
    /// The owner has as many sandboxes as it may.
    #[error("this owner has {0} sandboxes, which is all it may have; delete one")]
    TooManySandboxes(u64),
    /// No such snapshot of this owner.
    #[error("there is no snapshot {0}")]
    SnapshotNotFound(SnapshotId),
    /// The sandbox has as many snapshots as it may.
    #[error("this sandbox has {0} snapshots, which is all it may have; delete one")]
    TooManySnapshots(u64),
    /// No such exec of this owner.
    #[error("there is no exec {0}")]
    ExecNotFound(ExecId),
    /// A field is longer than its column takes.
    #[error("{field} has {given} bytes or entries; the most is {most}")]
    TooLong {
        /// Which field.
        field: &'static str,
        /// What was given.
        given: usize,
        /// The bound.
        most: usize,
    },
    /// An empty key stands for nothing.
    #[error("an idempotency key has at least one character")]
    EmptyKey,
    /// Too much of an owner's is under way.
    #[error("this owner has {0} idempotency keys in flight; wait for one to end")]
    TooManyClaims(usize),
}

/// A handle on the ledger; clones share one thread and one file.
#[derive(Clone)]
pub struct Ledger {
    shared: Arc<Shared>,
}

struct Shared {
    writer: Writer<writer::Owner>,
    /// Every token that is not revoked, so that neither a known nor an unknown secret costs disk. Only the writer changes it.
    tokens: RwLock<tokens::TokenMap>,
    revocations: broadcast::Sender<Revocation>,
    recovered: Vec<LostReservation>,
    path: PathBuf,
}

impl Ledger {
    /// Opens (or makes) `<state_dir>/ledger.db`, brings its schema up to date, settles what a dead daemon left open and
    /// starts the thread. Blocks: call it at start-up, as the user that is to own the file, after the warden has forked.
    pub fn open(state_dir: &Path) -> Result<Ledger, LedgerError> {
        let (connection, path) = db::open(state_dir)?;
        let named = |error| writer::blame_file(error, &path);
        let recovered = budgets::recover(&connection).map_err(named)?;
        idempotency::recover(&connection).map_err(named)?;
        let tokens = tokens::load(&connection).map_err(named)?;
        let writer = writer::start(connection, path.clone())?;
        let (revocations, _) = broadcast::channel(REVOCATIONS_KEPT);
        Ok(Ledger { shared: Arc::new(Shared { writer, tokens: RwLock::new(tokens), revocations, recovered, path }) })
    }

    /// Waits for what was asked before, then closes the file. Other handles find the ledger [`LedgerError::Closed`].
    pub async fn close(self) {
        self.shared.writer.close().await;
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// What a dead daemon had reserved and not settled. It was counted as used, all of it.
    #[must_use]
    pub fn recovered(&self) -> &[LostReservation] {
        &self.shared.recovered
    }

    /// Runs `work` inside the writer's next transaction and, once that is committed, `after` on its result, still on the
    /// writer's thread: what `after` changes in memory is in the order of the commits.
    async fn call<T, U>(
        &self,
        lasting: Lasting,
        work: impl FnOnce(&Connection) -> Result<T, LedgerError> + Send + 'static,
        after: impl FnOnce(T) -> U + Send + 'static,
    ) -> Result<U, LedgerError>
    where
        T: Send + 'static,
        U: Send + 'static,
    {
        let (call, answer) = Call::new(work, after);
        self.shared.writer.send((lasting, call)).map_err(|_| LedgerError::Closed)?;
        answer.await.map_err(|_| LedgerError::Closed)?
    }

    /// The same without waiting: for destructors and for the way of an exec. What fails is logged, nobody else hears it.
    fn post(&self, work: impl FnOnce(&Connection) -> Result<(), LedgerError> + Send + 'static) {
        // A closed ledger keeps the reservation open; the next start counts it as used.
        self.shared.writer.post((Lasting::Kill, posted(work)));
    }

    /// The same, and the writer does not let it linger.
    fn post_at_once(&self, work: impl FnOnce(&Connection) -> Result<(), LedgerError> + Send + 'static) {
        let _ = self.shared.writer.send((Lasting::Kill, posted(work))); // as above
    }
}

fn posted(work: impl FnOnce(&Connection) -> Result<(), LedgerError> + Send + 'static) -> Box<dyn writer::Job> {
    let logged = |error: &LedgerError| {
        tracing::error!(error = error as &dyn std::error::Error, "ledger: a call that nobody waits for failed");
    };
    Call::new(move |connection: &Connection| work(connection).inspect_err(logged), |()| ()).0
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("path", &self.shared.path).finish_non_exhaustive()
    }
}

/// Milliseconds or an amount as SQLite keeps them. A time beyond its numbers is its last one; amounts never are.
fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Refuses what is longer than `most`.
fn fits(field: &'static str, given: usize, most: usize) -> Result<(), LedgerError> {
    if given > most { Err(LedgerError::TooLong { field, given, most }) } else { Ok(()) }
}

/// A column that holds an id.
fn read_id<T: std::str::FromStr>(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<T>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    let wrong = |error| rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error));
    row.get::<_, String>(column)?.parse().map_err(wrong)
}

/// Milliseconds or an amount as they were kept; the schema holds nothing below zero.
fn read_back(stored: i64) -> u64 {
    u64::try_from(stored).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Budget, Owner};

    /// A ledger in a directory that goes away with the test.
    pub(super) fn fresh() -> (tempfile::TempDir, Ledger) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let ledger = Ledger::open(directory.path()).expect("a new ledger");
        (directory, ledger)
    }

    /// Someone, and someone else.
    pub(super) fn owners() -> [Owner; 2] {
        ["uid:7", "uid:8"].map(|subject| Owner { tenant: "acme".to_owned(), subject: subject.to_owned() })
    }

    /// A grant for `budget`; `decision` is its fingerprint. It ends at 1000 ms.
    pub(super) fn grant(decision: &str, budget: Budget) -> NewGrant {
        NewGrant {
            tenant: "acme".to_owned(),
            subject: "uid:7".to_owned(),
            tool: "exec".to_owned(),
            call_id: "call-1".to_owned(),
            capabilities: r#"[{"capability":"python","operations":["exec"]}]"#.to_owned(),
            expires_at_ms: 1000,
            budget,
            decision_key_fingerprint: decision.to_owned(),
            issued_by: "uid:0".to_owned(),
        }
    }

    #[tokio::test]
    async fn a_closed_ledger_says_so_to_its_other_handles() {
        let (_directory, ledger) = fresh();
        let other = ledger.clone();
        ledger.close().await;
        assert!(matches!(other.get(&GrantId::generate()).await, Err(LedgerError::Closed)));
    }
}
