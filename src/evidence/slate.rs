//! The slate: a file of a fixed size that the newest records stand on until they are moved into the database together.
//!
//! ```text
//! record ─▶ one write behind the last one ─▶ answered            entry: length, hash, line
//! some hundred records, a quarter second, or a reader ─▶ one transaction ─▶ the next record stands at the start again
//! ```
//!
//! A commit of the database is pages, locks and a few thousand instructions that nobody else executes; a write to the slate
//! is the record. The kernel has it then, which is all that [`Durability::Process`](super::Durability) promises; under
//! `Fsync` there is no slate.
//!
//! Nothing is ever wiped off. What stands there counts if it goes on where the database ends: its hash is the chain's with
//! its line added. An older entry does not, half of one does not, and neither does what follows it.

use super::EvidenceError;
use super::aside::host;
use super::chain::link;
use super::db::{self, StateRow};
use super::id::{Digest, Short};
use super::line::{Fields, kind};
use super::owner::{Place, Row};
use rusqlite::Connection;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Name below the journal's directory.
pub(super) const NAME: &str = "slate";
/// Its size: a thousand records. What does not fit goes into the database at once.
const BYTES: u64 = 1 << 20;

/// The slate, open.
#[derive(Debug)]
pub(super) struct Slate {
    file: File,
    /// Where the next entry goes.
    end: u64,
    /// Entries on their way; kept for its room.
    buffer: Vec<u8>,
}

impl Slate {
    /// Opens it, with all of its space taken: a full disk is met here and not later.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        let path = directory.join(NAME);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        super::ballast::hold(&file, BYTES)?;
        Ok(Self { file, end: 0, buffer: Vec::new() })
    }

    /// Writes these records behind the others. False, and nothing is written, if they do not fit.
    pub(super) fn write(&mut self, rows: &[Row]) -> io::Result<bool> {
        self.buffer.clear();
        for row in rows {
            let len = u32::try_from(row.line.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
            self.buffer.extend_from_slice(&len.to_le_bytes());
            self.buffer.extend_from_slice(&row.hash.0);
            self.buffer.extend_from_slice(&row.line);
        }
        let end = self.end + self.buffer.len() as u64;
        if end > BYTES {
            return Ok(false);
        }
        self.file.write_all_at(&self.buffer, self.end)?;
        self.end = end;
        Ok(true)
    }

    /// The database has all of it.
    pub(super) fn wipe(&mut self) {
        self.end = 0;
    }
}

/// What stands on it. Without a file that is nothing; one that can't be read may hold what was answered.
pub(super) fn read(directory: &Path) -> Result<Vec<u8>, EvidenceError> {
    let path = directory.join(NAME);
    match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(host("read", &path)),
    }
}

/// Moves what a dead daemon left on the slate into the database. How many records that were.
pub(super) fn recover(bytes: &[u8], connection: &Connection, state: &StateRow) -> rusqlite::Result<usize> {
    let seq = db::last_seq(connection, state)?;
    let Some(hash) = db::hash_at(connection, state, seq)? else { return Ok(0) };
    let rows: Vec<Row> = entries(bytes, Place { seq, hash }).collect();
    if rows.is_empty() {
        return Ok(0);
    }
    connection.execute_batch("BEGIN IMMEDIATE")?;
    for row in &rows {
        insert(connection, row)?;
        let fields = Fields::parse(&row.line).ok().filter(|fields| &*fields.kind == kind::ENFORCEMENT);
        if let Some(report) = fields.and_then(|fields| fields.enforcement) {
            insert_report(connection, Short::of(report.get()), report.get())?;
        }
    }
    connection.execute_batch("COMMIT")?;
    Ok(rows.len())
}

/// The entries that go on where the chain ends.
fn entries(bytes: &[u8], mut head: Place) -> impl Iterator<Item = Row> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (len, after) = rest.split_first_chunk::<4>()?;
        let (hash, after) = after.split_first_chunk::<32>()?;
        let (line, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        let hash = Digest(*hash);
        if line.is_empty() || link(&head.hash, &Digest::of(line)) != hash {
            return None;
        }
        rest = after;
        head = Place { seq: head.seq + 1, hash };
        Some(Row { seq: head.seq, hash, line: line.to_vec() })
    })
}

/// A record's row.
pub(super) fn insert(connection: &Connection, row: &Row) -> rusqlite::Result<()> {
    let sql = "INSERT INTO records (seq, hash, line) VALUES (?1, ?2, ?3)";
    connection.prepare_cached(sql)?.execute((row.seq, &row.hash, &row.line)).map(drop)
}

/// A report's row; it may be there.
pub(super) fn insert_report(connection: &Connection, digest: Short, text: &str) -> rusqlite::Result<()> {
    let sql = "INSERT OR IGNORE INTO enforcements (digest, text) VALUES (?1, ?2)";
    connection.prepare_cached(sql)?.execute((&digest.0, text)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::chain::NOTHING;

    /// Bytes of an entry before its line.
    const HEAD: usize = 4 + 32;
    const START: Place = Place { seq: 0, hash: NOTHING };

    fn rows(from: Place, lines: &[&str]) -> Vec<Row> {
        let mut head = from;
        let row = |line: &&str| {
            head = Place { seq: head.seq + 1, hash: link(&head.hash, &Digest::of(line)) };
            Row { seq: head.seq, hash: head.hash, line: line.as_bytes().to_vec() }
        };
        lines.iter().map(row).collect()
    }

    fn lines(directory: &Path, from: Place) -> Vec<String> {
        let bytes = fs::read(directory.join(NAME)).expect("the slate");
        entries(&bytes, from).map(|row| String::from_utf8(row.line).expect("text")).collect()
    }

    #[test]
    fn what_was_written_is_read_and_what_was_there_before_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut slate = Slate::open(directory.path()).expect("a slate");
        let first = rows(START, &["one", "two, which is longer", "three"]);
        assert!(slate.write(&first[..2]).expect("written") && slate.write(&first[2..]).expect("written"));
        assert_eq!(lines(directory.path(), START), ["one", "two, which is longer", "three"]);
        // The database has them; the next ones stand over them.
        slate.wipe();
        let head = Place { seq: 3, hash: first[2].hash };
        assert!(slate.write(&rows(head, &["four"])).expect("written"));
        assert_eq!(lines(directory.path(), head), ["four"]);
        assert_eq!(lines(directory.path(), START), Vec::<String>::new(), "it does not go on from there");
    }

    #[test]
    fn half_an_entry_is_none_and_ends_the_reading() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut slate = Slate::open(directory.path()).expect("a slate");
        slate.write(&rows(START, &["one", "two", "three"])).expect("written");
        let path = directory.path().join(NAME);
        let whole = fs::read(&path).expect("the slate");
        let second = HEAD + 3;
        for place in second..second + HEAD + 3 {
            let mut torn = whole.clone();
            torn[place] ^= 1;
            fs::write(&path, &torn).expect("written");
            assert_eq!(lines(directory.path(), START), ["one"], "byte {place}");
            fs::write(&path, &whole[..place]).expect("written");
            assert_eq!(lines(directory.path(), START), ["one"], "cut at {place}");
        }
    }

    #[test]
    fn what_does_not_fit_is_not_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut slate = Slate::open(directory.path()).expect("a slate");
        let long = "x".repeat(BYTES as usize - 2 * HEAD - 1);
        let written = rows(START, &[&long, "y", "z"]);
        assert!(slate.write(&written[..2]).expect("written"));
        assert!(!slate.write(&written[2..]).expect("refused"));
        assert_eq!(lines(directory.path(), START).len(), 2);
        assert_eq!(fs::metadata(directory.path().join(NAME)).expect("the slate").len(), BYTES);
    }

    #[test]
    fn no_slate_is_an_empty_one_and_one_that_cannot_be_read_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(read(directory.path()).expect("nothing"), Vec::<u8>::new());
        fs::create_dir(directory.path().join(NAME)).expect("a directory in its place");
        assert!(read(directory.path()).is_err());
    }
}
