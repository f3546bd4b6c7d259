//! Exports: the chain as lines of JSON that verify anywhere, and the segments, which are the same.
//!
//! ```text
//! {"sandboxd_evidence":1,"chain":"ev_…","first_seq":1,"prev":"000…","public_key":"…"}
//! {"hash":"<64 digits>","record":{"seq":1,…}}                        a record: the bytes behind "record": are its line
//! {"hash":"<64 digits>","digest":"<64 digits>","seq":2}              one that the filter withholds
//! {"hash":"<64 digits>","record":{"seq":3,…,"kind":"checkpoint",…}}  the last is a signature
//! ```

use super::chain::{Bad, Fault, NOTHING, Shown, Verdict, Walk};
use super::db::{self, StateRow};
use super::id::{Digest, unhex};
use super::line::Fields;
use super::read::Filter;
use super::segment;
use super::signing::PublicKey;
use super::{EvidenceError, Journal, Place, Shared};
use rusqlite::Connection;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};

/// The version of the format.
const VERSION: u32 = 1;
/// Longest line; the longest record that can be written is far below.
const LINE_MAX: u64 = 1 << 20;
const HASH: &[u8] = b"{\"hash\":\"";
const RECORD: &[u8] = b"\",\"record\":";
const DIGEST: &[u8] = b"\",\"digest\":\"";
const SEQ: &[u8] = b"\",\"seq\":";

/// What of the chain is exported.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scope {
    /// From this place on; none: from the first record that is here, sealed ones included.
    pub from_seq: Option<u64>,
    /// Other records are withheld: only their digests are in the export, and it still verifies.
    pub filter: Filter,
}

/// What an export holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exported {
    /// Records, withheld ones included.
    pub records: u64,
    /// Of which only the digest is there.
    pub withheld: u64,
    /// The last one, a checkpoint.
    pub head: Place,
}

/// Why something could not be verified at all.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// It could not be read.
    #[error("the export could not be read")]
    Read(#[from] io::Error),
    /// It does not begin as an export does.
    #[error("this is no export of evidence: its first line is not {{\"sandboxd_evidence\":{VERSION},…}}")]
    Header,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Header {
    sandboxd_evidence: u32,
    chain: String,
    first_seq: u64,
    prev: String,
    public_key: String,
}

impl Journal {
    /// Signs for what is there and writes it all to `out`, which comes back.
    pub async fn export<W: Write + Send + 'static>(
        &self,
        scope: Scope,
        mut out: W,
    ) -> Result<(W, Exported), EvidenceError> {
        let head = match self.checkpoint().await {
            Ok(head) => Some(head),
            // A full disk keeps nobody from reading: up to the last signature then.
            Err(EvidenceError::Full { .. }) => None,
            Err(error) => return Err(error),
        };
        let shared = self.inner.shared.clone();
        // Sealed records must not leave the database before they are read.
        let whole = self.clone();
        let _whole = whole.inner.shared.whole.read().await;
        self.read(move |connection| {
            let exported = export(connection, &shared, &scope, head, &mut out)?;
            out.flush().map_err(EvidenceError::Export)?;
            Ok((out, exported))
        })
        .await
    }
}

fn export(
    connection: &mut Connection,
    shared: &Shared,
    scope: &Scope,
    head: Option<Place>,
    out: &mut impl Write,
) -> Result<Exported, EvidenceError> {
    let snapshot = connection.transaction()?;
    let state = db::state(&snapshot)?.ok_or(EvidenceError::Closed)?;
    let head = match head {
        Some(head) => head,
        None => last_signed(&snapshot, &state)?,
    };
    let mut writing = Writing { out, scope, next: 0, withheld: 0, records: 0 };
    for file in segment::files(&shared.directory, Some(&state.chain))? {
        if file.last >= scope.from_seq.unwrap_or(0) && file.last <= state.sealed_seq {
            let failed = |source| EvidenceError::Host { what: "read", path: file.path.clone(), source };
            let mut reader = BufReader::new(File::open(&file.path).map_err(failed)?);
            writing.copy(&mut reader, shared).map_err(failed)?;
        }
    }
    let first = scope.from_seq.unwrap_or(0).max(state.sealed_seq + 1);
    if writing.records == 0 {
        let prev = db::hash_at(&snapshot, &state, first - 1)?.unwrap_or(NOTHING);
        writing.header(&state, shared.public_key, first, prev).map_err(EvidenceError::Export)?;
    }
    writing.live(&snapshot, first, head.seq)?;
    Ok(Exported { records: writing.records, withheld: writing.withheld, head })
}

/// The last checkpoint; what was sealed ends in one.
fn last_signed(connection: &Connection, state: &StateRow) -> Result<Place, EvidenceError> {
    let last = db::last_seq(connection, state)?;
    let seq = segment::checkpoint_before(connection, state.sealed_seq + 1, last)?.unwrap_or(state.sealed_seq);
    let hash = db::hash_at(connection, state, seq)?.unwrap_or(NOTHING);
    Ok(Place { seq, hash })
}

/// Writes the records `first` to `last` of the database as an export of their own.
pub(super) fn write_segment(
    connection: &Connection,
    state: &StateRow,
    key: PublicKey,
    (first, last): (u64, u64),
    out: &mut impl Write,
) -> Result<(), EvidenceError> {
    let prev = db::hash_at(connection, state, first - 1)?.unwrap_or(NOTHING);
    let mut writing = Writing { out, scope: &Scope::default(), next: 0, withheld: 0, records: 0 };
    writing.header(state, key, first, prev).map_err(EvidenceError::Export)?;
    writing.live(connection, first, last)
}

struct Writing<'a, W> {
    out: &'a mut W,
    scope: &'a Scope,
    next: u64,
    withheld: u64,
    records: u64,
}

impl<W: Write> Writing<'_, W> {
    fn header(&mut self, state: &StateRow, key: PublicKey, first_seq: u64, prev: Digest) -> io::Result<()> {
        let (chain, prev, public_key) = (state.chain.clone(), prev.to_string(), key.to_hex());
        let header = Header { sandboxd_evidence: VERSION, chain, first_seq, prev, public_key };
        serde_json::to_writer(&mut *self.out, &header)?;
        self.out.write_all(b"\n")
    }

    /// The records of the database.
    fn live(&mut self, connection: &Connection, first: u64, last: u64) -> Result<(), EvidenceError> {
        let sql = "SELECT seq, hash, line FROM records WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq";
        let mut statement = connection.prepare_cached(sql)?;
        let mut rows = statement.query((first, last))?;
        while let Some(row) = rows.next()? {
            let line = row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?;
            self.record(row.get(0)?, &row.get(1)?, line).map_err(EvidenceError::Export)?;
        }
        Ok(())
    }

    /// The records of a segment. The first one's header serves for all.
    fn copy(&mut self, reader: &mut impl BufRead, shared: &Shared) -> io::Result<()> {
        let broken = || io::Error::new(io::ErrorKind::InvalidData, "the segment is damaged; verify says where");
        let (mut line, mut head) = (Vec::new(), NOTHING);
        read_line(reader, &mut line)?;
        let header: Header = serde_json::from_slice(&line).map_err(|_| broken())?;
        head = header.prev.parse().unwrap_or(head);
        while read_line(reader, &mut line)? {
            let (hash, shown, seq) = parse(&line).ok_or_else(broken)?;
            let Shown::Line(record) = shown else { return Err(broken()) };
            if seq >= self.scope.from_seq.unwrap_or(0) {
                if self.records == 0 {
                    let state = StateRow {
                        chain: header.chain.clone(),
                        public_key: String::new(),
                        indexed_seq: 0,
                        sealed_seq: 0,
                        sealed_hash: NOTHING,
                    };
                    self.header(&state, shared.public_key, seq, head)?;
                }
                self.record(seq, &hash, record)?;
            }
            head = hash;
        }
        Ok(())
    }

    fn record(&mut self, seq: u64, hash: &Digest, line: &[u8]) -> io::Result<()> {
        // What can't be read is not withheld: it is for the verifier to see.
        let shown = self.scope.filter.is_empty()
            || Fields::parse(line).map_or(true, |fields| !fields.is_operation() || self.scope.filter.matches(&fields));
        self.records += 1;
        self.next = seq + 1;
        if shown {
            write!(self.out, "{{\"hash\":\"{hash}\",\"record\":")?;
            self.out.write_all(line)?;
            self.out.write_all(b"}\n")
        } else {
            self.withheld += 1;
            writeln!(self.out, "{{\"hash\":\"{hash}\",\"digest\":\"{}\",\"seq\":{seq}}}", Digest::of(line))
        }
    }
}

/// Checks an export, or a segment, with nothing but the public key: every record, every signature, and that the last
/// record is one. With `expect_head` also that the chain still holds the head that somebody kept.
pub fn verify_export(
    mut reader: impl BufRead,
    key: &PublicKey,
    expect_head: Option<Digest>,
) -> Result<Verdict, ExportError> {
    let mut walk = Walk::new(*key, expect_head);
    let bad = walk_export(&mut reader, &mut walk)?;
    Ok(walk.finish(bad))
}

/// Walks along one file; its first bad record.
pub(super) fn walk_export(reader: &mut impl BufRead, walk: &mut Walk) -> Result<Option<Bad>, ExportError> {
    let mut line = Vec::new();
    read_line(reader, &mut line)?;
    let header: Header = serde_json::from_slice(&line).map_err(|_| ExportError::Header)?;
    let prev: Digest = header.prev.parse().map_err(|_| ExportError::Header)?;
    if header.sandboxd_evidence != VERSION || header.first_seq == 0 {
        return Err(ExportError::Header);
    }
    let missing = |walk: &Walk, fault| Some(Bad { seq: walk.seq() + 1, id: None, fault, file: None });
    if walk.chain() != Some(&header.chain) {
        walk.enter(&header.chain, header.first_seq - 1, prev);
    } else if (header.first_seq - 1, prev) != (walk.seq(), walk.head()) {
        return Ok(missing(walk, Fault::Missing));
    }
    loop {
        let whole = match read_line(reader, &mut line) {
            Ok(whole) => whole,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(missing(walk, Fault::Unreadable)),
            Err(error) => return Err(error.into()),
        };
        if !whole {
            let tail = || Bad { seq: walk.seq(), id: None, fault: Fault::Tail, file: None };
            return Ok((!walk.is_signed()).then(tail));
        }
        let Some((hash, shown, seq)) = parse(&line) else { return Ok(missing(walk, Fault::Unreadable)) };
        if let Err(bad) = walk.step(seq, &shown, &hash) {
            return Ok(Some(bad));
        }
    }
}

/// The next line without its end; false if there is none.
fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let read = reader.take(LINE_MAX).read_until(b'\n', line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if read as u64 == LINE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a line is too long"));
    }
    Ok(read > 0)
}

/// A line of an export: hash, what is shown, place.
fn parse(line: &[u8]) -> Option<(Digest, Shown<'_>, u64)> {
    let digest = |text: &[u8]| {
        let mut bytes = [0; 32];
        unhex(text, &mut bytes).then_some(Digest(bytes))
    };
    let (hash, rest) = line.strip_prefix(HASH)?.split_at_checked(64)?;
    let hash = digest(hash)?;
    if let Some(record) = rest.strip_prefix(RECORD) {
        let record = record.strip_suffix(b"}")?;
        let seq = number(record.strip_prefix(b"{\"seq\":")?)?;
        return Some((hash, Shown::Line(record), seq));
    }
    let (withheld, rest) = rest.strip_prefix(DIGEST)?.split_at_checked(64)?;
    let seq = rest.strip_prefix(SEQ)?.strip_suffix(b"}")?;
    let seq = number(seq).filter(|_| seq.iter().all(u8::is_ascii_digit))?;
    Some((hash, Shown::Withheld(digest(withheld)?), seq))
}

/// The number at the start of a text.
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}
