//! Opening: what is there is checked, what is damaged is set aside and named, what was left open is closed as `lost`.

use super::aside::{self, Noted, SetAside, host, last_set_aside, noted};
use super::ballast::Ballast;
use super::chain::{NOTHING, Shown, Walk, link};
use super::db::{self, FILE_NAME, KIND, StateRow};
use super::draft::Draft;
use super::id::{Digest, EvidenceId, Short};
use super::job::Job;
use super::line::{Fields, Genesis, Previous, kind, place};
use super::owner::{CHECKPOINT_EVERY, Fresh, Open, Owner, Place, body, id_key};
use super::record::{End, Matter};
use super::signing::{Key, KeyError, PublicKey, SECRET_NAME};
use super::slate::{self, Slate};
use super::{Durability, EvidenceError, EvidenceSettings, FOLLOWED_KEPT, Live, Shared};
use crate::sqlite::file::{Check, FileError, beside};
use crate::sqlite::writer::{BATCH, Commit};
use nix::fcntl::{Flock, FlockArg};
use rusqlite::Connection;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;
use tokio::sync::{broadcast, oneshot};

/// Keeps a second daemon out.
const LOCK_NAME: &str = "lock";
/// Bytes that SQLite's log keeps between two uses.
const LOG_KEPT_BYTES: u64 = 64 << 20;
/// Records at the end of the chain that a start checks: at least one signature is among them.
const TAIL: u64 = 2 * CHECKPOINT_EVERY + BATCH as u64;

/// What opening found, for the log and the doctor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// Where the chain stands now.
    pub head: Place,
    /// Begins that a dead daemon left open; they are closed as `lost` now.
    pub lost: Vec<EvidenceId>,
    /// Records that a killed daemon had answered and not moved into the database; they are there now.
    pub from_slate: usize,
    /// A journal that could not be used.
    pub set_aside: Option<SetAside>,
    /// Something an operator should know and that does not stop the journal.
    pub warnings: Vec<String>,
}

/// Why an attempt to open failed.
enum Attempt {
    /// What lies there can't be used.
    Damaged(String),
    Failed(EvidenceError),
}

impl From<EvidenceError> for Attempt {
    fn from(error: EvidenceError) -> Self {
        match error {
            EvidenceError::File(error) if error.is_damage() => Self::Damaged(in_words(&error)),
            error => Self::Failed(error),
        }
    }
}

impl From<FileError> for Attempt {
    fn from(error: FileError) -> Self {
        EvidenceError::from(error).into()
    }
}

fn in_words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        words.push_str(": ");
        words.push_str(&error.to_string());
        source = error.source();
    }
    words
}

/// Opens the journal for its writer.
pub(super) fn open(
    directory: &Path,
    settings: &EvidenceSettings,
    now_ms: u64,
) -> Result<(Owner, Opened), EvidenceError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(host("make", directory))?;
    let directory = fs::canonicalize(directory).map_err(host("find", directory))?;
    let lock = lock(&directory)?;
    let path = directory.join(FILE_NAME);
    let key = Key::open(&directory, path.exists())?;
    let mut warnings = Vec::new();
    let mut set_aside = None;
    // Once more at most: what is made anew is sound, or the host is not.
    let loaded = loop {
        match attempt(&directory, &path, settings, key.public(), now_ms, &mut warnings) {
            Ok(loaded) => break loaded,
            Err(Attempt::Damaged(why)) if set_aside.is_none() => {
                set_aside = Some(aside::set_aside(&directory, &path, why, now_ms, key.public())?);
            }
            Err(Attempt::Damaged(why)) => return Err(host("use", &path)(io::Error::other(why))),
            Err(Attempt::Failed(error)) => return Err(error),
        }
    };
    let mut ballast = Ballast::below(&directory);
    if let Err(error) = ballast.take() {
        warnings.push(format!(
            "there is no room for the ballast of the journal ({error}); nothing is begun until there is"
        ));
    }
    let starved_at = (!ballast.is_held()).then(Instant::now);
    let slate = match settings.durability {
        Durability::Fsync => None,
        // Without one every record is a commit of its own.
        Durability::Process => match Slate::open(&directory) {
            Ok(slate) => Some(slate),
            Err(error) => {
                warnings.push(format!("there is no slate for the newest records ({error}); each takes longer"));
                None
            }
        },
    };
    let shared = Arc::new(Shared {
        directory: directory.clone(),
        path: path.clone(),
        settings: settings.clone(),
        chain: loaded.state.chain.clone(),
        public_key: key.public(),
        state: Mutex::new(Live { head: loaded.head, settled: loaded.head, open: loaded.open.len() }),
        starved: AtomicBool::new(starved_at.is_some()),
        sealing: AtomicBool::new(false),
        whole: tokio::sync::RwLock::new(()),
        followers: broadcast::channel(FOLLOWED_KEPT).0,
        readers: Mutex::new(Some(Vec::new())),
        journal: OnceLock::new(),
    });
    let matters: Vec<_> = loaded.matters.into_values().collect();
    let mut owner = Owner {
        connection: loaded.connection,
        directory,
        path,
        key,
        settings: settings.clone(),
        chain: loaded.state.chain,
        head: loaded.head,
        at_ms: loaded.at_ms,
        indexed_seq: loaded.state.indexed_seq,
        unindexed: loaded.unindexed,
        open: loaded.open,
        ended_rows: loaded.ended_rows,
        known: loaded.known,
        unsigned: loaded.unsigned,
        unsigned_since: (loaded.unsigned > 0).then(Instant::now),
        upkeep_after: None,
        slate,
        fresh: Fresh::default(),
        ballast,
        starved_at,
        shared,
        _lock: lock,
    };
    let lost = close_open(&mut owner, matters, now_ms)?;
    let opened = Opened { head: owner.head, lost, from_slate: loaded.from_slate, set_aside, warnings };
    Ok((owner, opened))
}

fn lock(directory: &Path) -> Result<Flock<File>, EvidenceError> {
    let path = directory.join(LOCK_NAME);
    let open = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = open.map_err(host("open", &path))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock)
        .map_err(|_| FileError::InUse { what: KIND.what, path: directory.join(FILE_NAME) }.into())
}

/// A journal that was found sound, in memory.
struct Loaded {
    connection: Connection,
    state: StateRow,
    head: Place,
    at_ms: u64,
    unsigned: u64,
    unindexed: Vec<(i64, u64)>,
    open: HashMap<EvidenceId, Open>,
    matters: HashMap<EvidenceId, Matter>,
    ended_rows: Vec<u64>,
    known: HashSet<Short>,
    from_slate: usize,
}

fn attempt(
    directory: &Path,
    path: &Path,
    settings: &EvidenceSettings,
    key: PublicKey,
    now_ms: u64,
    warnings: &mut Vec<String>,
) -> Result<Loaded, Attempt> {
    let noted = noted(directory, key, warnings);
    if let Some(noted) = noted.as_ref().filter(|_| !path.exists() && !beside(path, "-wal").exists()) {
        return Err(Attempt::Damaged(format!("{FILE_NAME} is gone; it was signed for up to record {}", noted.seq)));
    }
    // SQLite removes its log when the last daemon closed the file as it should; then nothing was torn.
    let torn = fs::metadata(beside(path, "-wal")).is_ok_and(|log| log.len() > 0);
    let (connection, path) = KIND.open(directory, FILE_NAME, if torn { Check::Whole } else { Check::Touched })?;
    let named = |source| Attempt::from(KIND.blame(source, &path));
    // A long read keeps the log from starting anew; it must not stay as long as it grew then.
    connection.pragma_update(None, "journal_size_limit", LOG_KEPT_BYTES).map_err(named)?;
    if settings.durability == Durability::Fsync {
        connection.pragma_update(None, "synchronous", "FULL").map_err(named)?;
    }
    let state = match db::state(&connection).map_err(named)? {
        Some(state) => state,
        None => {
            let records: u64 =
                connection.query_row("SELECT count(*) FROM records", [], |row| row.get(0)).map_err(named)?;
            if let Some(noted) = noted {
                return Err(Attempt::Damaged(format!("it is empty; it was signed for up to record {}", noted.seq)));
            }
            if records > 0 {
                return Err(Attempt::Damaged("it has records and no chain".to_owned()));
            }
            let previous = last_set_aside(directory).map_err(Attempt::Failed)?;
            begin_chain(&connection, key, previous.as_ref(), now_ms).map_err(named)?
        }
    };
    if state.public_key != key.to_hex() {
        let path = directory.join(SECRET_NAME);
        return Err(Attempt::Failed(KeyError::Another { path }.into()));
    }
    let from_slate = slate::recover(&slate::read(directory)?, &connection, &state).map_err(named)?;
    Ok(Loaded { from_slate, ..load(connection, state, key, noted.as_ref(), &path)? })
}

/// The first record of a chain.
fn begin_chain(
    connection: &Connection,
    key: PublicKey,
    previous: Option<&Previous>,
    now_ms: u64,
) -> rusqlite::Result<StateRow> {
    let id = EvidenceId::generate();
    let genesis = body(&Genesis { id: &id, kind: kind::GENESIS, public_key: key.to_hex(), previous });
    let mut line = Vec::new();
    place(1, now_ms, None, &mut line);
    line.extend_from_slice(&genesis[1..]);
    let hash = link(&NOTHING, &Digest::of(&line));
    let state = StateRow {
        chain: id.to_string(),
        public_key: key.to_hex(),
        indexed_seq: 1,
        sealed_seq: 0,
        sealed_hash: NOTHING,
    };
    connection.execute_batch("BEGIN IMMEDIATE")?;
    connection.execute("INSERT INTO records (seq, hash, line) VALUES (1, ?1, ?2)", (&hash, &line))?;
    connection.execute("INSERT INTO keys (key, seq) VALUES (?1, 1)", id_key(&id))?;
    connection.execute(
        "INSERT INTO state (one, chain, public_key, indexed_seq, sealed_seq, sealed_hash) VALUES (1, ?1, ?2, 1, 0, ?3)",
        (&state.chain, &state.public_key, &NOTHING),
    )?;
    connection.execute_batch("COMMIT")?;
    Ok(state)
}

/// Checks the end of the chain and reads what the writer needs of it.
fn load(
    connection: Connection,
    state: StateRow,
    key: PublicKey,
    noted: Option<&Noted>,
    path: &Path,
) -> Result<Loaded, Attempt> {
    let named = |source| Attempt::from(KIND.blame(source, path));
    let last = db::last_seq(&connection, &state).map_err(named)?;
    let lost_end =
        |seq| Attempt::Damaged(format!("its end is missing: record {seq} was signed for, {last} is the last"));
    if last < state.sealed_seq || last < state.indexed_seq {
        return Err(lost_end(state.indexed_seq.max(state.sealed_seq)));
    }
    if let Some(noted) = noted.filter(|noted| noted.chain == state.chain) {
        let there = db::hash_at(&connection, &state, noted.seq).map_err(named)?;
        if noted.seq > last {
            return Err(lost_end(noted.seq));
        }
        if noted.seq >= state.sealed_seq && there.map(|hash| hash.to_string()).as_deref() != Some(&*noted.head) {
            return Err(Attempt::Damaged(format!("record {} is not the one that was signed for", noted.seq)));
        }
    }
    let from = last.saturating_sub(TAIL).min(state.indexed_seq).max(state.sealed_seq);
    let start = db::hash_at(&connection, &state, from).map_err(named)?;
    let start = start.or((from == 0).then_some(NOTHING)).ok_or_else(|| lost_end(from))?;
    let mut loaded = Loaded {
        head: Place { seq: from, hash: start },
        at_ms: 0,
        unsigned: 0,
        unindexed: Vec::new(),
        open: HashMap::new(),
        matters: HashMap::new(),
        ended_rows: Vec::new(),
        known: HashSet::new(),
        from_slate: 0,
        state,
        connection,
    };
    let mut walk = Walk::new(key, None);
    walk.enter(&loaded.state.chain, from, start);
    loaded.open_rows().map_err(named)??;
    loaded.tail(&mut walk).map_err(named)??;
    let verdict = walk.finish(None);
    (loaded.head, loaded.unsigned) = (Place { seq: verdict.last_seq, hash: verdict.head }, verdict.unsigned);
    Ok(loaded)
}

impl Loaded {
    /// The table of open begins.
    fn open_rows(&mut self) -> rusqlite::Result<Result<(), Attempt>> {
        let mut statement = self.connection.prepare("SELECT seq, line FROM open ORDER BY seq")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?)))?;
        for row in rows {
            let (seq, line): (u64, Vec<u8>) = row?;
            let fields = Fields::parse(&line).ok();
            let Some(matter) = fields.as_ref().and_then(matter_of) else {
                return Ok(Err(Attempt::Damaged(format!("its note of the open record {seq} cannot be read"))));
            };
            self.open.insert(matter.begin.clone(), Open { seq, line: None });
            self.matters.insert(matter.begin.clone(), matter);
        }
        let mut statement = self.connection.prepare("SELECT digest FROM enforcements")?;
        let digests = statement.query_map([], |row| row.get::<_, Vec<u8>>(0))?;
        for digest in digests {
            self.known.extend(<[u8; 16]>::try_from(digest?).map(Short));
        }
        Ok(Ok(()))
    }

    /// The last records: a good end of the chain, and what is not indexed yet.
    fn tail(&mut self, walk: &mut Walk) -> rusqlite::Result<Result<(), Attempt>> {
        let mut statement =
            self.connection.prepare("SELECT seq, hash, line FROM records WHERE seq > ?1 ORDER BY seq")?;
        let mut rows = statement.query([walk.seq()])?;
        let mut keys = Vec::new();
        while let Some(row) = rows.next()? {
            let (Ok(seq), Ok(hash), Ok(line)) = (row.get::<_, u64>(0), row.get(1), row.get_ref(2)?.as_blob()) else {
                return Ok(Err(Attempt::Damaged(format!("record {} cannot be read", walk.seq() + 1))));
            };
            let fields = match walk.step(seq, &Shown::Line(line), &hash) {
                Ok(fields) => fields.expect("a line was shown"),
                Err(bad) => return Ok(Err(Attempt::Damaged(bad.to_string()))),
            };
            self.at_ms = fields.at_ms;
            if seq <= self.state.indexed_seq {
                continue;
            }
            keys.clear();
            fields.names().keys(&mut keys);
            self.unindexed.extend(keys.iter().map(|&key| (key, seq)));
            if &*fields.kind == kind::BEGIN
                && let Some(matter) = matter_of(&fields)
            {
                self.open.insert(matter.begin.clone(), Open { seq, line: Some(line.to_vec()) });
                self.matters.insert(matter.begin.clone(), matter);
            } else if let Some(Ok(begin)) = fields.begin.as_deref().map(str::parse::<EvidenceId>) {
                self.matters.remove(&begin);
                if let Some(Open { seq, line: None }) = self.open.remove(&begin) {
                    self.ended_rows.push(seq);
                }
            }
        }
        Ok(Ok(()))
    }
}

fn matter_of(fields: &Fields<'_>) -> Option<Matter> {
    Some(Matter {
        begin: fields.id.parse().ok()?,
        tenant: fields.tenant.as_deref()?.to_owned(),
        subject: fields.subject.as_deref()?.to_owned(),
        exec_id: fields.exec_id.as_deref().map(str::to_owned),
        sandbox_id: fields.sandbox_id.as_deref().map(str::to_owned),
        grant_id: fields.grant_id.as_deref().map(str::to_owned),
    })
}

/// Every begin without an end gets one.
fn close_open(owner: &mut Owner, matters: Vec<Matter>, now_ms: u64) -> Result<Vec<EvidenceId>, EvidenceError> {
    let end = End::lost("the daemon ended before the operation did", now_ms);
    let mut lost = Vec::with_capacity(matters.len());
    for some in matters.chunks(BATCH) {
        let (mut jobs, mut answers) = (Vec::new(), Vec::new());
        for matter in some {
            let (reply, answer) = oneshot::channel();
            jobs.push(Job::End(Draft::end(matter, &end), matter.begin.clone(), Some(reply)));
            answers.push(answer);
        }
        owner.commit(&mut jobs);
        for (matter, mut answer) in some.iter().zip(answers) {
            answer.try_recv().map_err(|_| EvidenceError::Closed)??;
            lost.push(matter.begin.clone());
        }
    }
    Ok(lost)
}
