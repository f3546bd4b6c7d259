//! What whoever commits does: gives records their place, hashes, commits all that waits at once; and what the journal's
//! thread does beside: signs, writes the index.
//!
//! A commit is a write to the slate, from which records are moved into the database together; or, where there is none, the
//! records' own table and nothing else: one or two pages. What lists need (the index, the table of open
//! begins) is written for some hundred records together; readers look through the few newest lines themselves.

use super::ballast::Ballast;
use super::chain::link;
use super::draft::Definition;
use super::id::{Digest, EvidenceId, Short};
use super::job::Job;
use super::line::{Checkpoint, Defined, Record, kind, place};
use super::signing::Key;
use super::slate::{self, Slate};
use super::{Durability, EvidenceError, EvidenceSettings, Live, Shared};
use crate::sqlite::writer::Commit;
use nix::fcntl::Flock;
use rusqlite::{Connection, ErrorCode};
use serde_json::value::RawValue;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Records that are indexed together.
pub(super) const INDEX_EVERY: u64 = 512;
/// Records that are signed for together.
pub(super) const CHECKPOINT_EVERY: u64 = 1024;
/// Records that may wait for the index or a signature beyond that: nobody waits for either until then.
const SLACK: u64 = 256;
/// Records that are moved from the slate together,
const SETTLE_EVERY: usize = 256;
/// and how long one stands there at most.
const SETTLE_AFTER: Duration = Duration::from_millis(250);
/// How long a record waits for a signature at most.
const CHECKPOINT_AFTER: Duration = Duration::from_secs(10);
/// A clock that is further behind the chain than this is recorded beside the chain's time; less is the queue's doing.
const CLOCK_SLACK_MS: u64 = 1000;
/// Records of a commit that whoever waits may make: a fraction of a millisecond.
const QUICK: usize = 32;
/// How long a full disk is believed to stay full.
const STARVED_FOR: Duration = Duration::from_millis(200);

/// A place in the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// How many records there are up to it.
    pub seq: u64,
    /// The hash of the last of them.
    pub hash: Digest,
}

/// A begin without an end.
pub(super) struct Open {
    pub seq: u64,
    /// Its line, until it stands in the table of open begins.
    pub line: Option<Vec<u8>>,
}

/// The thread's own.
pub(super) struct Owner {
    pub connection: Connection,
    pub directory: PathBuf,
    pub path: PathBuf,
    pub key: Key,
    pub settings: EvidenceSettings,
    pub chain: String,
    pub head: Place,
    pub at_ms: u64,
    pub indexed_seq: u64,
    /// Keys of the records after that.
    pub unindexed: Vec<(i64, u64)>,
    pub open: HashMap<EvidenceId, Open>,
    /// Rows of the table of open begins that have ended.
    pub ended_rows: Vec<u64>,
    pub known: HashSet<Short>,
    pub unsigned: u64,
    pub unsigned_since: Option<Instant>,
    /// When what the thread does beside is tried again, if it failed.
    pub upkeep_after: Option<Instant>,
    /// None: every record goes into the database at once.
    pub slate: Option<Slate>,
    pub fresh: Fresh,
    pub ballast: Ballast,
    pub starved_at: Option<Instant>,
    pub shared: Arc<Shared>,
    /// Held until the file is closed.
    pub _lock: Flock<File>,
}

/// A row that is on its way into the file.
pub(super) struct Row {
    pub seq: u64,
    pub hash: Digest,
    pub line: Vec<u8>,
}

/// What stands on the slate and not in the database.
#[derive(Default)]
pub(super) struct Fresh {
    rows: Vec<Row>,
    reports: Vec<Definition>,
    since: Option<Instant>,
}

/// What one transaction changes in memory, once it is committed.
struct Change {
    head: Place,
    at_ms: u64,
    rows: Vec<Row>,
    keys: Vec<(i64, u64)>,
    /// Ids of begins, and where their row is.
    opened: Vec<(EvidenceId, usize)>,
    ended: Vec<EvidenceId>,
    defined: Vec<Definition>,
    /// What each job comes to.
    answers: Vec<Result<EvidenceId, EvidenceError>>,
    checkpoint: Option<(Place, String)>,
    indexed: bool,
    /// The database has it; else the slate.
    settled: bool,
}

/// What goes with the jobs.
#[derive(Clone, Copy)]
struct Extras {
    checkpoint: bool,
    index: bool,
}

impl Commit for Owner {
    type Job = Job;

    fn commit(&mut self, batch: &mut Vec<Job>) {
        let mut jobs: Vec<Job> = std::mem::take(batch);
        if self.is_starved() && !jobs.iter().all(Job::is_end) {
            self.feed();
        }
        if self.is_starved() {
            jobs = self.only_ends(jobs, None);
        }
        let wanted = jobs.iter().any(|job| matches!(job, Job::Checkpoint(_)));
        let extras =
            if self.is_starved() { Extras { checkpoint: false, index: false } } else { self.extras(&jobs, wanted) };
        let written = match self.write_on_slate(&jobs, extras) {
            Some(change) => Ok(change),
            None => self.write(&jobs, extras),
        };
        match written {
            Ok(change) => self.done(jobs, change),
            Err(error) if lacks_room(&error) => {
                self.starve(&error);
                let ends = self.only_ends(jobs, Some(&Arc::new(error)));
                match self.write(&ends, Extras { checkpoint: false, index: false }) {
                    Ok(change) => self.done(ends, change),
                    Err(error) => self.failed(ends, error),
                }
            }
            Err(error) => self.failed(jobs, error),
        }
    }

    /// Quick is what the kernel only has to take note of: one or two pages.
    fn is_quick(&self, jobs: &[Job]) -> bool {
        let Extras { checkpoint, index } = self.extras(jobs, false);
        let nothing_beside = !(checkpoint || index || self.is_starved());
        self.settings.durability == Durability::Process
            && nothing_beside
            && jobs.len() <= QUICK
            && jobs.iter().all(Job::is_record)
    }

    fn patience(&self) -> Option<Duration> {
        let Extras { checkpoint, index } = self.upkeep();
        match self.upkeep_after {
            Some(after) => Some(after.saturating_duration_since(Instant::now())),
            None if checkpoint || index || self.fresh.rows.len() >= SETTLE_EVERY => Some(Duration::ZERO),
            None => {
                let left =
                    |since: Option<Instant>, most: Duration| since.map(|since| most.saturating_sub(since.elapsed()));
                let settle = left(self.fresh.since, SETTLE_AFTER);
                settle.into_iter().chain(left(self.unsigned_since, CHECKPOINT_AFTER)).min()
            }
        }
    }

    fn idle(&mut self) {
        self.keep_up(self.upkeep());
    }

    fn close(mut self) {
        if self.unsigned > 0 || !self.unindexed.is_empty() {
            self.keep_up(Extras { checkpoint: true, index: true });
        }
        self.shared.close_readers();
        if let Err((_, error)) = self.connection.close() {
            tracing::warn!(path = %self.path.display(), error = error.to_string(), "evidence: closing failed");
        }
    }
}

impl Owner {
    /// Moves what stands on the slate, signs and indexes.
    fn keep_up(&mut self, extras: Extras) {
        let mut written = self.write(&[], extras);
        if let Err(error) = &written
            && lacks_room(error)
            && !self.fresh.rows.is_empty()
        {
            self.starve(error);
            written = self.write(&[], Extras { checkpoint: false, index: false });
        }
        match written {
            Ok(change) => self.done(Vec::new(), change),
            Err(error) => {
                tracing::warn!(path = %self.path.display(), error = error.to_string(), "evidence: no checkpoint could be written");
                self.upkeep_after = Some(Instant::now() + CHECKPOINT_AFTER);
            }
        }
        if extras.index {
            // What the log holds goes to its places now. By itself SQLite does so within a commit, at 1000 pages, which is
            // more than these records take. What can't go yet goes the next time.
            let _ = self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        }
    }

    /// What has to go with these jobs: what is asked for, and what the thread did not get to.
    fn extras(&self, jobs: &[Job], wanted: bool) -> Extras {
        let more = jobs.len() as u64;
        Extras {
            checkpoint: (wanted && (self.unsigned > 0 || jobs.len() > 1))
                || self.unsigned + more >= CHECKPOINT_EVERY + SLACK,
            index: wanted || self.head.seq - self.indexed_seq + more >= INDEX_EVERY + SLACK,
        }
    }

    /// What the thread has to do when nothing comes.
    fn upkeep(&self) -> Extras {
        let overdue = self.unsigned_since.is_some_and(|since| since.elapsed() >= CHECKPOINT_AFTER);
        Extras {
            checkpoint: overdue || self.unsigned >= CHECKPOINT_EVERY,
            index: overdue || self.head.seq - self.indexed_seq >= INDEX_EVERY,
        }
    }

    fn is_starved(&self) -> bool {
        self.starved_at.is_some()
    }

    /// The disk is full: what runs gets the ballast, nothing new is begun.
    fn starve(&mut self, error: &rusqlite::Error) {
        if self.ballast.is_held() {
            tracing::error!(path = %self.path.display(), error = error.to_string(),
                "evidence: there is no room; the ballast is let go of for what runs, nothing new is begun");
            if let Err(error) = self.ballast.let_go() {
                tracing::error!(%error, "evidence: the ballast could not be let go of");
            }
        }
        self.starved_at = Some(Instant::now());
        self.shared.set_starved(true);
    }

    /// Tries to have the ballast again; with it there is room for new records.
    pub(super) fn feed(&mut self) {
        if self.starved_at.is_some_and(|since| since.elapsed() < STARVED_FOR) {
            return;
        }
        match self.ballast.take() {
            Ok(()) => {
                tracing::info!(path = %self.path.display(), "evidence: there is room again");
                self.starved_at = None;
            }
            Err(_) => self.starved_at = Some(Instant::now()),
        }
        self.shared.set_starved(self.is_starved());
    }

    /// Answers everything but ends with "the disk is full", and keeps those.
    fn only_ends(&self, jobs: Vec<Job>, error: Option<&Arc<rusqlite::Error>>) -> Vec<Job> {
        let (ends, others): (Vec<_>, Vec<_>) = jobs.into_iter().partition(Job::is_end);
        for job in others {
            job.refuse(match error {
                Some(error) if !is_full(error) => EvidenceError::Commit(error.clone()),
                source => EvidenceError::Full { path: self.path.clone(), source: source.cloned() },
            });
        }
        ends
    }

    fn failed(&self, jobs: Vec<Job>, error: rusqlite::Error) {
        tracing::error!(path = %self.path.display(), error = error.to_string(), jobs = jobs.len(), "evidence: commit failed");
        let error = Arc::new(error);
        for job in jobs {
            job.refuse(EvidenceError::Commit(error.clone()));
        }
    }

    /// Plain records with nothing beside: on the slate, if there is one and they fit.
    fn write_on_slate(&mut self, jobs: &[Job], extras: Extras) -> Option<Change> {
        let plain = !(extras.checkpoint || extras.index) && jobs.iter().all(Job::is_record);
        if !plain || self.is_starved() || self.slate.is_none() {
            return None;
        }
        let change = self.compose(jobs);
        match self.slate.as_mut()?.write(&change.rows) {
            Ok(true) => Some(change),
            Ok(false) => None,
            Err(error) => {
                tracing::error!(%error, path = %self.path.display(), "evidence: the slate can't be written; each record goes into the database");
                self.slate = None;
                None
            }
        }
    }

    /// One transaction: all of it or nothing, in the file and in memory.
    fn write(&self, jobs: &[Job], extras: Extras) -> rusqlite::Result<Change> {
        // Synced in any case: what is signed must not be forgotten, else the checkpoint's file would accuse the journal.
        let sync = extras.checkpoint && self.settings.durability == Durability::Process;
        if sync {
            self.connection.pragma_update(None, "synchronous", "FULL")?;
        }
        let result = self.transaction(jobs, extras);
        if result.is_err() && !self.connection.is_autocommit() {
            // It is undone at the latest when the file is closed.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        if sync {
            // Staying at FULL is slower, not wrong.
            let _ = self.connection.pragma_update(None, "synchronous", "NORMAL");
        }
        result
    }

    fn transaction(&self, jobs: &[Job], extras: Extras) -> rusqlite::Result<Change> {
        let step = |sql: &str| self.connection.prepare_cached(sql)?.execute([]).map(drop);
        let mut change = Change { settled: true, indexed: extras.index, ..self.compose(jobs) };
        if extras.checkpoint {
            self.sign(&mut change);
        }
        step("BEGIN IMMEDIATE")?;
        for job in jobs {
            if let Job::Forget { upto, hash, keys, .. } = job {
                self.forget(*upto, hash, keys)?;
            }
        }
        for row in self.fresh.rows.iter().chain(&change.rows) {
            slate::insert(&self.connection, row)?;
        }
        for report in self.fresh.reports.iter().chain(&change.defined) {
            slate::insert_report(&self.connection, report.digest, &report.text)?;
        }
        if extras.index {
            self.index(&change)?;
        }
        step("COMMIT")?;
        Ok(change)
    }

    /// What these jobs make of the chain.
    fn compose(&self, jobs: &[Job]) -> Change {
        let mut change = Change {
            head: self.head,
            at_ms: self.at_ms,
            rows: Vec::with_capacity(jobs.len() + 2),
            keys: Vec::with_capacity(jobs.len() * 8),
            opened: Vec::new(),
            ended: Vec::new(),
            defined: Vec::new(),
            answers: Vec::with_capacity(jobs.len()),
            checkpoint: None,
            indexed: false,
            settled: false,
        };
        for job in jobs {
            let answer = self.place(job, &mut change);
            change.answers.push(answer);
        }
        change
    }

    /// Gives a job its record.
    fn place(&self, job: &Job, change: &mut Change) -> Result<EvidenceId, EvidenceError> {
        let draft = match job {
            Job::Begin(draft, ..) if self.open.contains_key(&draft.id) => {
                return Err(EvidenceError::BegunBefore(draft.id.clone()));
            }
            Job::Begin(draft, ..) => {
                change.opened.push((draft.id.clone(), change.rows.len()));
                draft
            }
            Job::End(_, begin, _) if !self.open.contains_key(begin) || change.ended.contains(begin) => {
                return Err(EvidenceError::NotOpen(begin.clone()));
            }
            Job::End(draft, begin, _) => {
                if let Some(definition) = &draft.enforcement {
                    self.define(definition, change);
                }
                change.ended.push(begin.clone());
                draft
            }
            Job::Refuse(draft, _) => draft,
            // Nobody is told this id.
            Job::Checkpoint(_) | Job::Settle(_) | Job::Forget { .. } => return Ok(EvidenceId::generate()),
        };
        append(&draft.body, draft.at_ms, &draft.keys, change);
        Ok(draft.id.clone())
    }

    /// A record for a report that the chain does not have yet.
    fn define(&self, definition: &Definition, change: &mut Change) {
        let known = self.known.contains(&definition.digest);
        if known || change.defined.iter().any(|defined| defined.digest == definition.digest) {
            return;
        }
        let id = EvidenceId::generate();
        let report: &RawValue = serde_json::from_str(&definition.text).expect("it was written as JSON");
        let body = body(&Defined { id: &id, kind: kind::ENFORCEMENT, enforcement: report });
        append(&body, 0, &id_key(&id), change);
        change.defined.push(definition.clone());
    }

    /// A signed record for the head.
    fn sign(&self, change: &mut Change) {
        let covered = change.head;
        let signature = self.key.sign(&self.chain, covered.seq, &covered.hash);
        let id = EvidenceId::generate();
        let checkpoint = Checkpoint {
            id: &id,
            kind: kind::CHECKPOINT,
            chain: &self.chain,
            head: covered.hash,
            signature: signature.clone(),
        };
        append(&body(&checkpoint), 0, &id_key(&id), change);
        change.checkpoint = Some((covered, signature));
    }

    /// Writes what lists need, for all records since the last time.
    fn index(&self, change: &Change) -> rusqlite::Result<()> {
        let mut keys = [&self.unindexed[..], &change.keys[..]].concat();
        keys.sort_unstable();
        let mut insert = self.connection.prepare_cached("INSERT OR IGNORE INTO keys (key, seq) VALUES (?1, ?2)")?;
        for (key, seq) in keys {
            insert.execute((key, seq))?;
        }
        let mut opening = self.connection.prepare_cached("INSERT INTO open (seq, line) VALUES (?1, ?2)")?;
        for (id, open) in &self.open {
            if let Some(line) = open.line.as_ref().filter(|_| !change.ended.contains(id)) {
                opening.execute((open.seq, line))?;
            }
        }
        for (_, row) in &change.opened {
            let row = &change.rows[*row];
            opening.execute((row.seq, &row.line))?;
        }
        let mut closing = self.connection.prepare_cached("DELETE FROM open WHERE seq = ?1")?;
        for seq in &self.ended_rows {
            closing.execute([seq])?;
        }
        for id in &change.ended {
            if let Some(open) = self.open.get(id).filter(|open| open.line.is_none()) {
                closing.execute([open.seq])?;
            }
        }
        self.connection.prepare_cached("UPDATE state SET indexed_seq = ?1")?.execute([change.head.seq]).map(drop)
    }

    /// Removes sealed records.
    fn forget(&self, upto: u64, hash: &Digest, keys: &[(i64, u64)]) -> rusqlite::Result<()> {
        let mut delete = self.connection.prepare_cached("DELETE FROM keys WHERE key = ?1 AND seq = ?2")?;
        for key in keys {
            delete.execute(*key)?;
        }
        self.connection.prepare_cached("DELETE FROM records WHERE seq <= ?1")?.execute([upto])?;
        let sql = "UPDATE state SET sealed_seq = ?1, sealed_hash = ?2";
        self.connection.prepare_cached(sql)?.execute((upto, hash)).map(drop)
    }

    /// The records are written: takes them over into memory and answers.
    fn done(&mut self, jobs: Vec<Job>, change: Change) {
        let Change { head, at_ms, rows, keys, opened, ended, defined, answers, checkpoint, indexed, settled } = change;
        self.unsigned = if checkpoint.is_some() { 0 } else { self.unsigned + rows.len() as u64 };
        self.unsigned_since =
            if self.unsigned == 0 { None } else { self.unsigned_since.or_else(|| Some(Instant::now())) };
        if checkpoint.is_some() || indexed {
            self.upkeep_after = None;
        }
        (self.head, self.at_ms) = (head, at_ms);
        if jobs.iter().any(|job| matches!(job, Job::Forget { .. })) {
            self.known.clear(); // every segment is to hold the reports that its ends refer to
        }
        self.known.extend(defined.iter().map(|report| report.digest));
        if indexed {
            self.indexed_seq = head.seq;
            self.unindexed.clear();
            self.ended_rows.clear();
            self.open.values_mut().for_each(|open| open.line = None);
        } else {
            self.unindexed.extend(keys);
        }
        for id in &ended {
            if let Some(open) = self.open.remove(id)
                && open.line.is_none()
                && !indexed
            {
                self.ended_rows.push(open.seq);
            }
        }
        for (id, row) in opened {
            let line = (!indexed).then(|| rows[row].line.clone());
            self.open.insert(id, Open { seq: rows[row].seq, line });
        }
        let before = self.shared.live().settled;
        self.shared.moved(Live { head, settled: if settled { head } else { before }, open: self.open.len() });
        if let Some((covered, signature)) = &checkpoint {
            super::aside::note_checkpoint(&self.directory, &self.chain, *covered, signature);
        }
        for (job, answer) in jobs.into_iter().zip(answers) {
            job.answer(answer, head);
        }
        if self.shared.follows() {
            for Row { seq, hash, line } in &rows {
                let line = String::from_utf8(line.clone()).expect("lines are JSON");
                self.shared.tell(Record { seq: *seq, hash: *hash, line });
            }
        }
        if settled {
            self.fresh = Fresh::default();
            self.slate.iter_mut().for_each(Slate::wipe);
        } else {
            self.fresh.since.get_or_insert_with(Instant::now);
            self.fresh.rows.extend(rows);
            self.fresh.reports.extend(defined);
        }
        if checkpoint.is_some() && !self.is_starved() {
            super::segment::consider(&self.shared, &self.connection, at_ms);
        }
    }
}

/// One row more: its place, its hash.
fn append(body: &[u8], clock_ms: u64, keys: &[i64], change: &mut Change) {
    let seq = change.head.seq + 1;
    let at_ms = clock_ms.max(change.at_ms);
    let behind = clock_ms != 0 && at_ms - clock_ms > CLOCK_SLACK_MS;
    let mut line = Vec::with_capacity(body.len() + 48);
    place(seq, at_ms, behind.then_some(clock_ms), &mut line);
    line.extend_from_slice(&body[1..]);
    let hash = link(&change.head.hash, &Digest::of(&line));
    change.keys.extend(keys.iter().map(|&key| (key, seq)));
    change.head = Place { seq, hash };
    change.at_ms = at_ms;
    change.rows.push(Row { seq, hash, line });
}

/// The JSON of a record of the chain's own.
pub(super) fn body(record: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(record).expect("a record holds nothing that JSON lacks")
}

/// What a record of the chain's own is found by.
pub(super) fn id_key(id: &EvidenceId) -> [i64; 1] {
    [super::keys::key(super::keys::Field::Id, id.as_str())]
}

/// Whether there is no room.
fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

/// Whether room may help: SQLite calls a used up quota, or no room for the log's index, a failure of the device.
fn lacks_room(error: &rusqlite::Error) -> bool {
    is_full(error) || error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure)
}
