//! Segments: older records, sealed into files in the export format, each ending in a signed checkpoint.
//!
//! The file is written, synced and verified before the first record leaves the database; they then leave it a few
//! hundred at a time, between other commits. A start finds a file whose records are still there and goes on.

use super::db;
use super::export::{verify_export, write_segment};
use super::id::Digest;
use super::job::Job;
use super::line::{Fields, at_ms, kind};
use super::{EvidenceError, Journal, Shared};
use rusqlite::{Connection, OptionalExtension};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// Name of the directory below the journal's.
pub const SEGMENTS_DIR: &str = "segments";
/// Records that leave the database in one commit.
const FORGET_EVERY: u64 = 512;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// A file of sealed records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Where it is.
    pub path: PathBuf,
    /// Its first record.
    pub first: u64,
    /// Its last record, a checkpoint.
    pub last: u64,
    chain: String,
}

/// The segments of a chain, or of all, in the order of chains and records.
pub(super) fn files(directory: &Path, chain: Option<&str>) -> Result<Vec<Sealed>, EvidenceError> {
    let directory = directory.join(SEGMENTS_DIR);
    let failed = |source| EvidenceError::Host { what: "list", path: directory.clone(), source };
    let entries = match fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let mut parts = name.strip_suffix(".ndjson").unwrap_or_default().split('-');
        if let (Some(of), Some(Ok(first)), Some(Ok(last)), None) =
            (parts.next(), parts.next().map(str::parse), parts.next().map(str::parse), parts.next())
            && chain.is_none_or(|chain| chain == of)
        {
            found.push(Sealed { chain: of.to_owned(), path, first, last });
        }
    }
    // Ids of chains sort by time.
    found.sort_by(|a, b| (&a.chain, a.first).cmp(&(&b.chain, b.first)));
    Ok(found)
}

/// Looks whether the live database is too large or too old, and has it sealed if so. Called on the writer's thread.
pub(super) fn consider(shared: &Arc<Shared>, connection: &Connection, now_ms: u64) {
    let goal = match goal(shared, connection, now_ms) {
        Ok(Some(goal)) => goal,
        Ok(None) => return,
        Err(error) => return tracing::warn!(%error, "evidence: could not look whether records should be sealed"),
    };
    let Some(inner) = shared.journal.get().and_then(std::sync::Weak::upgrade) else { return };
    start(Journal { inner }, move |journal| journal.seal_blocking(goal).map(drop));
}

/// Up to where records should be sealed.
fn goal(shared: &Shared, connection: &Connection, now_ms: u64) -> rusqlite::Result<Option<u64>> {
    let Some(state) = db::state(connection)? else { return Ok(None) };
    let (first, last) = (state.sealed_seq + 1, db::last_seq(connection, &state)?);
    if db::used_bytes(connection)? > shared.settings.live_max_bytes {
        return Ok(Some(first + (last.saturating_sub(first)) / 2));
    }
    let sql = "SELECT substr(line, 1, 64) FROM records WHERE seq = ?1";
    let line: Option<Vec<u8>> = connection.prepare_cached(sql)?.query_row([first], |row| row.get(0)).optional()?;
    let Some(oldest) = line.as_deref().and_then(at_ms) else { return Ok(None) };
    let most = u64::from(shared.settings.live_max_days) * DAY_MS;
    if now_ms.saturating_sub(oldest) <= most {
        return Ok(None);
    }
    // The older half of the time goes, so that segments are not made every day.
    let before = now_ms - most / 2;
    let sql = "SELECT substr(line, 1, 64) FROM records WHERE seq = ?1";
    let mut start = connection.prepare_cached(sql)?;
    let (mut low, mut high) = (first, last);
    while low < high {
        let middle = low + (high - low) / 2;
        let line: Option<Vec<u8>> = start.query_row([middle], |row| row.get(0)).optional()?;
        match line.as_deref().and_then(at_ms) {
            Some(at_ms) if at_ms < before => low = middle + 1,
            _ => high = middle,
        }
    }
    Ok(Some(low))
}

/// Runs `work` on a thread of its own, unless records are being sealed already.
fn start(journal: Journal, work: impl FnOnce(&Journal) -> Result<(), EvidenceError> + Send + 'static) {
    if journal.inner.shared.sealing.swap(true, Ordering::AcqRel) {
        return;
    }
    let run = move || {
        if let Err(error) = work(&journal) {
            tracing::error!(error = &error as &dyn std::error::Error, "evidence: records could not be sealed");
        }
        journal.inner.shared.sealing.store(false, Ordering::Release);
    };
    if let Err(error) = std::thread::Builder::new().name("evidence-seal".to_owned()).spawn(run) {
        tracing::error!(%error, "evidence: no thread to seal records");
    }
}

impl Journal {
    /// Seals the records up to the last checkpoint at or before `upto` into a segment; none if there is no such one.
    pub async fn seal(&self, upto: u64) -> Result<Option<Sealed>, EvidenceError> {
        self.settle().await?;
        let journal = self.clone();
        match tokio::task::spawn_blocking(move || journal.seal_blocking(upto)).await {
            Ok(result) => result,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    fn seal_blocking(&self, upto: u64) -> Result<Option<Sealed>, EvidenceError> {
        let shared = &self.inner.shared;
        // One at a time; and nobody reads the whole meanwhile.
        let _whole = shared.whole.blocking_write();
        let Some(sealed) = shared.with_reader(|connection| write(shared, connection, upto))? else { return Ok(None) };
        self.forget(sealed.last)?;
        tracing::info!(file = %sealed.path.display(), first = sealed.first, last = sealed.last, "evidence: records were sealed");
        Ok(Some(sealed))
    }

    /// Goes on with what an earlier start did not finish.
    pub(super) fn resume_sealing(&self) {
        let shared = &self.inner.shared;
        let pending = || {
            let sealed =
                shared.with_reader(|connection| Ok(db::state(connection)?.map_or(0, |state| state.sealed_seq)))?;
            let last = files(&shared.directory, Some(&shared.chain))?.pop().filter(|file| file.last > sealed);
            Ok::<_, EvidenceError>(last)
        };
        match pending() {
            Ok(None) => {}
            Err(error) => tracing::warn!(%error, "evidence: could not look for unfinished segments"),
            Ok(Some(file)) => start(self.clone(), move |journal| {
                let _whole = journal.inner.shared.whole.blocking_write();
                check(&file.path, &journal.inner.shared)?;
                journal.forget(file.last)
            }),
        }
    }

    /// Has the writer remove what was sealed, a little at a time.
    fn forget(&self, last: u64) -> Result<(), EvidenceError> {
        loop {
            let part = self.inner.shared.with_reader(|connection| next_part(connection, last))?;
            let Some((upto, hash, keys)) = part else { return Ok(()) };
            let (reply, answer) = oneshot::channel();
            let sent = self.inner.writer.send(Job::Forget { upto, hash, keys, reply });
            sent.map_err(|_| EvidenceError::Closed)?;
            answer.blocking_recv().map_err(|_| EvidenceError::Closed)??;
        }
    }
}

type Part = (u64, Digest, Vec<(i64, u64)>);

/// The next records to be removed: up to where, the hash there, and their keys.
fn next_part(connection: &mut Connection, last: u64) -> Result<Option<Part>, EvidenceError> {
    let snapshot = connection.transaction()?;
    let Some(state) = db::state(&snapshot)? else { return Ok(None) };
    let upto = last.min(state.sealed_seq + FORGET_EVERY).min(state.indexed_seq);
    if upto <= state.sealed_seq {
        return Ok(None);
    }
    let sql = "SELECT seq, hash, line FROM records WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq";
    let mut statement = snapshot.prepare_cached(sql)?;
    let mut rows = statement.query((state.sealed_seq + 1, upto))?;
    let (mut hash, mut keys, mut each) = (state.sealed_hash, Vec::new(), Vec::new());
    while let Some(row) = rows.next()? {
        let seq: u64 = row.get(0)?;
        hash = row.get(1)?;
        let line = row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?;
        let fields = Fields::parse(line).map_err(|source| EvidenceError::Unreadable { seq, source })?;
        each.clear();
        fields.names().keys(&mut each);
        keys.extend(each.iter().map(|&key| (key, seq)));
    }
    Ok(Some((upto, hash, keys)))
}

/// Writes and checks a segment; it has its name only when it is whole.
fn write(shared: &Shared, connection: &mut Connection, upto: u64) -> Result<Option<Sealed>, EvidenceError> {
    let snapshot = connection.transaction()?;
    let Some(state) = db::state(&snapshot)? else { return Ok(None) };
    // One record stays in any case: the next start takes the chain's time from it.
    let (first, most) = (state.sealed_seq + 1, db::last_seq(&snapshot, &state)? - 1);
    let Some(last) = checkpoint_before(&snapshot, first, upto.min(state.indexed_seq).min(most))? else {
        return Ok(None);
    };
    let directory = shared.directory.join(SEGMENTS_DIR);
    let failed = |what, path: &Path| {
        let path = path.to_owned();
        move |source| EvidenceError::Host { what, path, source }
    };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(failed("make", &directory))?;
    let path = directory.join(format!("{}-{first:012}-{last:012}.ndjson", state.chain));
    let draft = directory.join("segment.new");
    let written = (|| {
        let make = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft);
        let mut out = BufWriter::with_capacity(1 << 18, make.map_err(failed("make", &draft))?);
        write_segment(&snapshot, &state, shared.public_key, (first, last), &mut out)?;
        let synced = out.flush().and_then(|()| out.get_ref().sync_all());
        synced.map_err(failed("write", &draft))?;
        check(&draft, shared)?;
        fs::rename(&draft, &path).map_err(failed("name", &path))?;
        File::open(&directory).and_then(|directory| directory.sync_all()).map_err(failed("sync", &directory))
    })();
    if let Err(error) = written {
        // The next one overwrites it anyway; until then it would only take space.
        let _ = fs::remove_file(&draft);
        return Err(error);
    }
    Ok(Some(Sealed { path, first, last, chain: state.chain }))
}

fn check(path: &Path, shared: &Shared) -> Result<(), EvidenceError> {
    let wrong = |bad: String| EvidenceError::Segment { path: path.to_owned(), bad };
    let read =
        File::open(path).map_err(|source| EvidenceError::Host { what: "read", path: path.to_owned(), source })?;
    let verdict = verify_export(BufReader::with_capacity(1 << 18, read), &shared.public_key, None)
        .map_err(|error| wrong(error.to_string()))?;
    verdict.bad.map_or(Ok(()), |bad| Err(wrong(bad.to_string())))
}

/// The last checkpoint at or before `upto`.
pub(super) fn checkpoint_before(connection: &Connection, first: u64, upto: u64) -> Result<Option<u64>, EvidenceError> {
    let sql = "SELECT seq, line FROM records WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq DESC";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query((first, upto))?;
    while let Some(row) = rows.next()? {
        let seq: u64 = row.get(0)?;
        let line = row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?;
        let fields = Fields::parse(line).map_err(|source| EvidenceError::Unreadable { seq, source })?;
        if &*fields.kind == kind::CHECKPOINT {
            return Ok(Some(seq));
        }
    }
    Ok(None)
}
