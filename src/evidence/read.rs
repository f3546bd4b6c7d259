//! Finding records: lists by filter, newest first, and one by its id.
//!
//! A list intersects the index of each name that the filter asks for, by jumping from one to the next place that all of
//! them could share. The records that are not indexed yet, a few hundred, are read as they are. A page is bounded in what
//! it looks at, so a filter that matches nothing in a long journal answers with a short page and a cursor.

use super::db::{self, StateRow};
use super::id::{EvidenceId, Short};
use super::keys::{Field, Names, key};
use super::line::{Fields, Record, at_ms};
use super::{EvidenceError, Journal};
use rusqlite::{Connection, OptionalExtension};
use std::borrow::Cow;

/// Most records of a page.
pub const LONGEST_PAGE: usize = 1000;
/// Places that one page looks at: some ten milliseconds.
const LOOKS: usize = 8_000;
/// Bytes of a line that hold its time.
const START: usize = 64;

/// Which records; all that is given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this account.
    pub tenant: Option<String>,
    /// Of this caller.
    pub subject: Option<String>,
    /// Of this exec.
    pub exec_id: Option<String>,
    /// Of this sandbox.
    pub sandbox_id: Option<String>,
    /// Under this grant.
    pub grant_id: Option<String>,
    /// Ends and refusals with this status.
    pub status: Option<String>,
    /// Ends and refusals with this code.
    pub code: Option<String>,
    /// At this time or later.
    pub since_ms: Option<u64>,
    /// Before this time.
    pub until_ms: Option<u64>,
}

impl Filter {
    /// Whether everything matches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a record matches. Records of the chain's own match no filter but the empty one; checkpoints and
    /// enforcement reports not even that.
    #[must_use]
    pub fn matches(&self, fields: &Fields<'_>) -> bool {
        let same = |asked: &Option<String>, found: Option<&str>| asked.is_none() || asked.as_deref() == found;
        (fields.is_operation() || (self.is_empty() && fields.public_key.is_some()))
            && same(&self.tenant, fields.tenant.as_deref())
            && same(&self.subject, fields.subject.as_deref())
            && same(&self.exec_id, fields.exec_id.as_deref())
            && same(&self.sandbox_id, fields.sandbox_id.as_deref())
            && same(&self.grant_id, fields.grant_id.as_deref())
            && same(&self.status, fields.status.as_deref())
            && same(&self.code, fields.code.as_deref())
            && self.since_ms.is_none_or(|since| fields.at_ms >= since)
            && self.until_ms.is_none_or(|until| fields.at_ms < until)
    }

    fn keys(&self) -> Vec<i64> {
        fn cow(text: &Option<String>) -> Option<Cow<'_, str>> {
            text.as_deref().map(Cow::Borrowed)
        }
        let names = Names {
            id: None,
            begin: None,
            tenant: cow(&self.tenant),
            subject: cow(&self.subject),
            exec_id: cow(&self.exec_id),
            sandbox_id: cow(&self.sandbox_id),
            grant_id: cow(&self.grant_id),
            status: self.status.as_deref(),
            code: cow(&self.code),
        };
        let mut keys = Vec::new();
        names.keys(&mut keys);
        keys
    }
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Newest first.
    pub items: Vec<Record>,
    /// Where the next page goes on; none: that was all. A page with one may be short or empty.
    pub next_cursor: Option<u64>,
}

/// One record with what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The record.
    pub record: Record,
    /// The end of a begin, the begin of an end; none if there is none, or it was sealed.
    pub counterpart: Option<Record>,
    /// What stood around the operation, as JSON.
    pub enforcement: Option<String>,
}

impl Journal {
    /// Records that match, newest first, before the place `cursor` that an earlier page gave. Sealed ones are not in it.
    pub async fn list(&self, filter: Filter, cursor: Option<u64>, limit: usize) -> Result<Page, EvidenceError> {
        self.read(move |connection| list(connection, &filter, cursor, limit.clamp(1, LONGEST_PAGE))).await
    }

    /// One record by its id, with its counterpart; none if there is none, or it was sealed.
    pub async fn get(&self, id: EvidenceId) -> Result<Option<Shown>, EvidenceError> {
        self.read(move |connection| get(connection, &id)).await
    }
}

/// Reads along the chain, downwards.
struct Search<'c> {
    connection: &'c Connection,
    filter: &'c Filter,
    limit: usize,
    looks: usize,
    items: Vec<Record>,
}

fn list(
    connection: &mut Connection,
    filter: &Filter,
    cursor: Option<u64>,
    limit: usize,
) -> Result<Page, EvidenceError> {
    let snapshot = connection.transaction()?;
    let Some(state) = db::state(&snapshot)? else { return Ok(Page { items: Vec::new(), next_cursor: None }) };
    let mut lowest = state.sealed_seq + 1;
    let mut highest = db::last_seq(&snapshot, &state)?;
    if let Some(cursor) = cursor {
        highest = highest.min(cursor.saturating_sub(1));
    }
    if let Some(since) = filter.since_ms {
        lowest = first_at(&snapshot, since, lowest, highest)?;
    }
    if let Some(until) = filter.until_ms {
        highest = first_at(&snapshot, until, lowest, highest)? - 1;
    }
    let mut search = Search { connection: &snapshot, filter, limit, looks: LOOKS, items: Vec::new() };
    let keys = filter.keys();
    let mut stopped = search.scan(lowest.max(state.indexed_seq + 1), highest)?;
    if stopped.is_none() {
        let highest = highest.min(state.indexed_seq);
        stopped = if keys.is_empty() { search.scan(lowest, highest)? } else { search.leap(&keys, lowest, highest)? };
    }
    Ok(Page { items: search.items, next_cursor: stopped.filter(|&place| place > lowest) })
}

/// The first place whose record is not earlier than `time`; one behind `highest` if there is none. The chain's time
/// never goes back.
fn first_at(connection: &Connection, time: u64, lowest: u64, highest: u64) -> Result<u64, EvidenceError> {
    let mut start = connection.prepare_cached("SELECT substr(line, 1, ?2) FROM records WHERE seq = ?1")?;
    let (mut low, mut high) = (lowest, highest + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        let line: Option<Vec<u8>> = start.query_row((middle, START), |row| row.get(0)).optional()?;
        if line.as_deref().and_then(at_ms).is_some_and(|at_ms| at_ms < time) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

impl Search<'_> {
    /// Looks at every record from `highest` down. Comes back with the place it stopped at before the end.
    fn scan(&mut self, lowest: u64, highest: u64) -> Result<Option<u64>, EvidenceError> {
        if lowest > highest {
            return Ok(None);
        }
        let sql = "SELECT seq, hash, line FROM records WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq DESC";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query((lowest, highest))?;
        while let Some(row) = rows.next()? {
            let seq = row.get(0)?;
            if let Some(place) = self.look(seq, row)? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Looks at the places that all keys share, from `highest` down.
    fn leap(&mut self, keys: &[i64], lowest: u64, highest: u64) -> Result<Option<u64>, EvidenceError> {
        let sql = "SELECT seq FROM keys WHERE key = ?1 AND seq BETWEEN ?2 AND ?3 ORDER BY seq DESC LIMIT 1";
        let mut next = self.connection.prepare_cached(sql)?;
        let mut fetch = self.connection.prepare_cached("SELECT seq, hash, line FROM records WHERE seq = ?1")?;
        let mut place = highest;
        let mut agreed = 0;
        for key in keys.iter().cycle() {
            if self.looks == 0 {
                return Ok(Some(place + 1));
            }
            self.looks -= 1;
            let found: Option<u64> = next.query_row((key, lowest, place), |row| row.get(0)).optional()?;
            let Some(found) = found else { return Ok(None) };
            agreed = if found == place { agreed + 1 } else { 1 };
            place = found;
            if agreed >= keys.len() {
                let mut rows = fetch.query([place])?;
                if let Some(row) = rows.next()?
                    && let Some(stopped) = self.look(place, row)?
                {
                    return Ok(Some(stopped));
                }
                if place == lowest {
                    return Ok(None);
                }
                place -= 1;
                agreed = 0;
            }
        }
        Ok(None)
    }

    /// Takes a record if it matches; the cursor, if the page ends with it.
    fn look(&mut self, seq: u64, row: &rusqlite::Row<'_>) -> Result<Option<u64>, EvidenceError> {
        let record = record_of(row)?;
        let fields = record.fields().map_err(|source| EvidenceError::Unreadable { seq, source })?;
        self.looks = self.looks.saturating_sub(1);
        if self.filter.matches(&fields) {
            self.items.push(record);
        }
        Ok((self.items.len() >= self.limit || self.looks == 0).then_some(seq))
    }
}

fn record_of(row: &rusqlite::Row<'_>) -> Result<Record, EvidenceError> {
    let seq = row.get(0)?;
    let line = String::from_utf8(row.get(2)?).map_err(|_| {
        let source = <serde_json::Error as serde::de::Error>::custom("it is not text");
        EvidenceError::Unreadable { seq, source }
    })?;
    Ok(Record { seq, hash: row.get(1)?, line })
}

fn get(connection: &mut Connection, id: &EvidenceId) -> Result<Option<Shown>, EvidenceError> {
    let snapshot = connection.transaction()?;
    let Some(state) = db::state(&snapshot)? else { return Ok(None) };
    let (asked, theirs) = find(&snapshot, &state, id.as_str())?;
    let Some(record) = asked else { return Ok(None) };
    let unreadable = |source| EvidenceError::Unreadable { seq: record.seq, source };
    let begin = record.fields().map_err(unreadable)?.begin.map(|begin| begin.to_string());
    let counterpart = match begin {
        Some(begin) => find(&snapshot, &state, &begin)?.0,
        None => theirs,
    };
    let mut enforcement = None;
    for one in [Some(&record), counterpart.as_ref()].into_iter().flatten() {
        let fields = one.fields().map_err(|source| EvidenceError::Unreadable { seq: one.seq, source })?;
        if let Some(digest) = fields.enforcement_reference().and_then(Short::parse) {
            let sql = "SELECT text FROM enforcements WHERE digest = ?1";
            enforcement =
                snapshot.prepare_cached(sql)?.query_row([&digest.0], |row| row.get(0)).optional()?.or(enforcement);
        }
    }
    Ok(Some(Shown { record, counterpart, enforcement }))
}

/// The record with this id, and the end of it.
fn find(
    connection: &Connection,
    state: &StateRow,
    id: &str,
) -> Result<(Option<Record>, Option<Record>), EvidenceError> {
    let sql = "SELECT seq, hash, line FROM records WHERE seq IN (SELECT seq FROM keys WHERE key = ?1) \
               UNION ALL SELECT seq, hash, line FROM records WHERE seq > ?2";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query((key(Field::Id, id), state.indexed_seq))?;
    let (mut itself, mut end) = (None, None);
    while let Some(row) = rows.next()? {
        let record = record_of(row)?;
        let fields = record.fields().map_err(|source| EvidenceError::Unreadable { seq: record.seq, source })?;
        if *fields.id == *id {
            itself = Some(record);
        } else if fields.begin.as_deref() == Some(id) {
            end = Some(record);
        }
    }
    Ok((itself, end))
}
