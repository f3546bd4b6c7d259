//! Verifying the journal where it lies: segments, then the live chain, and that the index says what the lines say.

use super::chain::{Bad, Fault, Shown, Verdict, Walk};
use super::db::{self, StateRow};
use super::export::walk_export;
use super::id::{Digest, Short};
use super::line::Fields;
use super::segment;
use super::{EvidenceError, Journal, Shared};
use rusqlite::Connection;
use std::collections::HashSet;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::BufReader;

/// Sums that are kept of the index, 8 bytes each: one per record, or per some records of a longer journal.
const SUMS: u64 = 1 << 20;

impl Journal {
    /// Walks along everything that is here. With `expect_head` the chain must hold the head that somebody kept.
    pub async fn verify(&self, expect_head: Option<Digest>) -> Result<Verdict, EvidenceError> {
        let shared = self.inner.shared.clone();
        let journal = self.clone();
        let _whole = journal.inner.shared.whole.read().await;
        self.read(move |connection| verify(connection, &shared, expect_head)).await
    }
}

fn verify(connection: &mut Connection, shared: &Shared, expect_head: Option<Digest>) -> Result<Verdict, EvidenceError> {
    // What is committed before the snapshot is taken must be in it.
    let known = shared.live().settled;
    let snapshot = connection.transaction()?;
    let state = db::state(&snapshot)?.ok_or(EvidenceError::Closed)?;
    let mut walk = Walk::new(shared.public_key, expect_head);
    for file in segment::files(&shared.directory, None)? {
        let name = || file.path.file_name().map(|name| name.to_string_lossy().into_owned());
        let failed = |source| EvidenceError::Host { what: "read", path: file.path.clone(), source };
        let mut reader = BufReader::with_capacity(1 << 18, File::open(&file.path).map_err(failed)?);
        let bad = match walk_export(&mut reader, &mut walk) {
            Ok(bad) => bad,
            Err(super::ExportError::Read(source)) => return Err(failed(source)),
            Err(super::ExportError::Header) => {
                Some(Bad { seq: file.first, id: None, fault: Fault::Unreadable, file: None })
            }
        };
        if let Some(bad) = bad {
            return Ok(walk.finish(Some(Bad { file: name(), ..bad })));
        }
        walk.segment_done();
    }
    if walk.chain() != Some(&state.chain) {
        walk.enter(&state.chain, state.sealed_seq, state.sealed_hash);
    } else if walk.seq() < state.sealed_seq {
        let missing = Bad { seq: walk.seq() + 1, id: None, fault: Fault::Missing, file: None };
        return Ok(walk.finish(Some(missing)));
    }
    let bad = live(&snapshot, shared, &state, &mut walk)?;
    let cut =
        (walk.seq() < known.seq).then(|| Bad { seq: walk.seq() + 1, id: None, fault: Fault::Missing, file: None });
    Ok(walk.finish(bad.or(cut)))
}

/// Sums over what the index holds of each record, or of some records together.
struct Sums {
    first: u64,
    last: u64,
    each: u64,
    seeds: [u64; 2],
    sums: Vec<u64>,
}

impl Sums {
    fn new(first: u64, last: u64, seeds: [u64; 2]) -> Self {
        let records = (last + 1).saturating_sub(first);
        let each = records.div_ceil(SUMS).max(1);
        let sums = vec![0; usize::try_from(records.div_ceil(each)).expect("at most SUMS")];
        Self { first, last, each, seeds, sums }
    }

    fn add(&mut self, key: i64, seq: u64) {
        if (self.first..=self.last).contains(&seq) {
            // A product of two numbers with secret parts: nobody can make another row with the same one on purpose.
            let product = u128::from(key.cast_unsigned() ^ self.seeds[0]) * u128::from((seq ^ self.seeds[1]) | 1);
            #[expect(clippy::cast_possible_truncation, reason = "both halves are added")]
            let mixed = (product >> 64) as u64 ^ product as u64;
            let place = usize::try_from((seq - self.first) / self.each).expect("below SUMS");
            self.sums[place] = self.sums[place].wrapping_add(mixed);
        }
    }

    /// The first records whose sums differ, of those before `end`.
    fn differs(&self, other: &Self, end: u64) -> Option<(u64, u64)> {
        let place = self.sums.iter().zip(&other.sums).position(|(a, b)| a != b)? as u64;
        let first = self.first + place * self.each;
        let last = (first + self.each - 1).min(self.last).min(end.saturating_sub(1));
        (first < end).then_some((first, last))
    }
}

fn live(
    snapshot: &Connection,
    shared: &Shared,
    state: &StateRow,
    walk: &mut Walk,
) -> Result<Option<Bad>, EvidenceError> {
    let first = walk.seq() + 1;
    let random = RandomState::new();
    let seeds = [random.hash_one(1), random.hash_one(2)];
    let mut wanted = Sums::new(first, state.indexed_seq, seeds);
    let mut found = Sums::new(first, state.indexed_seq, seeds);
    let reports = reports(snapshot)?;
    let (bad, indexed) = std::thread::scope(|scope| {
        // The index is in an order of its own; beside the walk it costs no time. What it reads does not change: records
        // up to indexed_seq are only removed by sealing, which waits for us.
        let index = scope.spawn(|| shared.with_reader(|connection| sum_index(connection, &mut found)));
        let bad = lines(snapshot, walk, |fields, keys| {
            let seq = fields.seq;
            keys.iter().for_each(|&key| wanted.add(key, seq));
            let reference = fields.enforcement_reference();
            reference.is_none_or(|text| Short::parse(text).is_some_and(|digest| reports.contains(&digest)))
        });
        let indexed = index.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (bad, indexed)
    });
    indexed?;
    let bad = bad?;
    let end = bad.as_ref().map_or(u64::MAX, |bad| bad.seq);
    let Some((from, to)) = wanted.differs(&found, end) else { return Ok(bad) };
    let seq = if from == to { Some(from) } else { first_misplaced(snapshot, from, to, seeds)? };
    Ok(seq.map(|seq| Bad { seq, id: id_at(snapshot, seq), fault: Fault::Index, file: None }).or(bad))
}

/// Every line of the database from the walk's place on; `check` sees each good one with its keys.
fn lines(
    snapshot: &Connection,
    walk: &mut Walk,
    mut check: impl FnMut(&Fields<'_>, &[i64]) -> bool,
) -> Result<Option<Bad>, EvidenceError> {
    let mut statement = snapshot.prepare_cached("SELECT seq, hash, line FROM records WHERE seq > ?1 ORDER BY seq")?;
    let mut rows = statement.query([walk.seq()])?;
    let mut keys = Vec::new();
    while let Some(row) = rows.next()? {
        let seq = row.get(0)?;
        let (Ok(hash), Ok(line)) = (row.get(1), row.get_ref(2)?.as_blob()) else {
            return Ok(Some(Bad { seq, id: None, fault: Fault::Altered, file: None }));
        };
        let fields = match walk.step(seq, &Shown::Line(line), &hash) {
            Ok(fields) => fields.expect("a line was shown"),
            Err(bad) => return Ok(Some(bad)),
        };
        keys.clear();
        fields.names().keys(&mut keys);
        if !check(&fields, &keys) {
            return Ok(Some(Bad { seq, id: Some(fields.id.to_string()), fault: Fault::Enforcement, file: None }));
        }
    }
    Ok(None)
}

fn sum_index(connection: &Connection, sums: &mut Sums) -> Result<(), EvidenceError> {
    let mut statement = connection.prepare("SELECT key, seq FROM keys")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        sums.add(row.get(0)?, row.get(1)?);
    }
    Ok(())
}

/// The first of some records whose index differs.
fn first_misplaced(
    snapshot: &Connection,
    first: u64,
    last: u64,
    seeds: [u64; 2],
) -> Result<Option<u64>, EvidenceError> {
    let (mut wanted, mut found) = (Sums::new(first, last, seeds), Sums::new(first, last, seeds));
    sum_index(snapshot, &mut found)?;
    let mut statement = snapshot.prepare("SELECT seq, line FROM records WHERE seq BETWEEN ?1 AND ?2")?;
    let mut rows = statement.query((first, last))?;
    let mut keys = Vec::new();
    while let Some(row) = rows.next()? {
        let seq = row.get(0)?;
        let line = row.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?;
        let fields = Fields::parse(line).map_err(|source| EvidenceError::Unreadable { seq, source })?;
        keys.clear();
        fields.names().keys(&mut keys);
        keys.iter().for_each(|&key| wanted.add(key, seq));
    }
    Ok(wanted.differs(&found, u64::MAX).map(|(first, _)| first))
}

fn id_at(snapshot: &Connection, seq: u64) -> Option<String> {
    let sql = "SELECT line FROM records WHERE seq = ?1";
    let line: Vec<u8> = snapshot.query_row(sql, [seq], |row| row.get(0)).ok()?;
    Fields::parse(&line).ok().map(|fields| fields.id.to_string())
}

/// The reports that ends may refer to; one that was changed is not among them.
fn reports(snapshot: &Connection) -> Result<HashSet<Short>, EvidenceError> {
    let mut statement = snapshot.prepare("SELECT digest, text FROM enforcements")?;
    let rows = statement.query_map([], |row| Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, String>(1)?)))?;
    let mut sound = HashSet::new();
    for row in rows {
        let (digest, text) = row?;
        let short = Short::of(&text);
        if short.0[..] == digest[..] {
            sound.insert(short);
        }
    }
    Ok(sound)
}
