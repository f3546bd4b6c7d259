//! Sandboxes: a workspace and a profile that many execs share, until their time is over.
//!
//! A sandbox is **live** until it is deleted, and **due** when its end has come or nobody has used it for `idle_ms`. A due
//! one can't be used or prolonged any more; whoever clears up ends it with [`Ledger::end_due_sandbox`], which says no if
//! it is not due after all. A deleted one is unknown to its owner; its row stays until [`Ledger::forget_sandboxes`].

use super::page::Wheres;
use super::{LONGEST_PAGE, Ledger, LedgerError, SandboxId, fits, read_back, read_id, stored, writer::Lasting};
use crate::model::{Owner, ProjectId};
use rusqlite::{Connection, OptionalExtension, Row, params, types::Value};
use std::collections::BTreeMap;

/// Labels of one sandbox.
const LABELS_MAX: usize = 32;
/// Bytes of a label's name.
const LABEL_NAME_MAX: usize = 64;
/// Bytes of a label's value.
const LABEL_VALUE_MAX: usize = 256;
/// Bytes of a profile's name.
const PROFILE_MAX: usize = 64;

const TABLE: &str = "sandboxes";
/// The columns of a [`SandboxRow`], in the order that [`read`] wants.
pub(super) const COLUMNS: &str = "id, tenant, subject, profile, project_id, labels, created_at_ms, expires_at_ms, idle_ms, \
     last_used_ms, deleted_at_ms";
/// Live, and its time is over at ?1.
const DUE: &str = "deleted_at_ms IS NULL AND (expires_at_ms <= ?1 OR last_used_ms + idle_ms <= ?1)";
/// Live, and its time is not over at ?1.
const USABLE: &str =
    "deleted_at_ms IS NULL AND expires_at_ms > ?1 AND (idle_ms IS NULL OR last_used_ms + idle_ms > ?1)";

/// A sandbox to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSandbox {
    /// Whose it is.
    pub owner: Owner,
    /// The profile that its execs run under.
    pub profile: String,
    /// The project whose workspace it is.
    pub project_id: ProjectId,
    /// What its owner finds it by.
    pub labels: BTreeMap<String, String>,
    /// When it ends.
    pub expires_at_ms: u64,
    /// How long it may lie unused; none: until its end.
    pub idle_ms: Option<u64>,
}

/// A sandbox as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRow {
    /// Its id.
    pub id: SandboxId,
    /// Whose it is.
    pub owner: Owner,
    /// The profile that its execs run under.
    pub profile: String,
    /// The project whose workspace it is.
    pub project_id: ProjectId,
    /// What its owner finds it by.
    pub labels: BTreeMap<String, String>,
    /// When it was made.
    pub created_at_ms: u64,
    /// When it ends.
    pub expires_at_ms: u64,
    /// How long it may lie unused; none: until its end.
    pub idle_ms: Option<u64>,
    /// When it was used last.
    pub last_used_ms: u64,
    /// When it was deleted, if it was.
    pub deleted_at_ms: Option<u64>,
}

/// Which sandboxes to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxFilter {
    /// Those that have all of these labels.
    pub labels: BTreeMap<String, String>,
}

/// Part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxPage {
    /// Newest first.
    pub items: Vec<SandboxRow>,
    /// Where the next page begins; none after the last.
    pub next: Option<SandboxId>,
}

impl Ledger {
    /// Makes a sandbox.
    pub async fn create_sandbox(&self, new: NewSandbox, now_ms: u64) -> Result<SandboxRow, LedgerError> {
        self.create_sandbox_within(new, u64::MAX, now_ms).await
    }

    /// Makes a sandbox, if its owner has less than `most` live ones.
    pub async fn create_sandbox_within(
        &self,
        new: NewSandbox,
        most: u64,
        now_ms: u64,
    ) -> Result<SandboxRow, LedgerError> {
        check_labels(&new.labels)?;
        fits("profile", new.profile.len(), PROFILE_MAX)?;
        let row = SandboxRow {
            id: SandboxId::generate(),
            owner: new.owner,
            profile: new.profile,
            project_id: new.project_id,
            labels: new.labels,
            created_at_ms: now_ms,
            expires_at_ms: new.expires_at_ms,
            idle_ms: new.idle_ms,
            last_used_ms: now_ms,
            deleted_at_ms: None,
        };
        let work = move |connection: &Connection| {
            if live_count(connection, &row.owner)? >= most {
                return Err(LedgerError::TooManySandboxes(most));
            }
            insert(connection, &row).map(|()| row)
        };
        self.call(Lasting::PowerLoss, work, |row| row).await
    }

    /// The live sandbox of this owner, due or not.
    pub async fn get_sandbox(&self, owner: &Owner, id: &SandboxId) -> Result<SandboxRow, LedgerError> {
        let (owner, id) = (owner.clone(), id.clone());
        let work = move |connection: &Connection| {
            find(connection, &id)?
                .filter(|row| row.owner == owner && row.deleted_at_ms.is_none())
                .ok_or(LedgerError::SandboxNotFound(id))
        };
        self.call(Lasting::Kill, work, |row| row).await
    }

    /// A page of at most `limit` live sandboxes of this owner, newest first, after the one that the page before named as
    /// `next`, which may have been deleted since.
    pub async fn list_sandboxes(
        &self,
        owner: &Owner,
        filter: SandboxFilter,
        after: Option<SandboxId>,
        limit: usize,
    ) -> Result<SandboxPage, LedgerError> {
        check_labels(&filter.labels)?;
        let (owner, limit) = (owner.clone(), limit.clamp(1, LONGEST_PAGE));
        let work = move |connection: &Connection| page(connection, &owner, &filter, after, limit);
        self.call(Lasting::Kill, work, |page| page).await
    }

    /// Says that the sandbox is used now: its idle time begins anew. A due one is not found.
    pub async fn touch_sandbox(&self, owner: &Owner, id: &SandboxId, now_ms: u64) -> Result<SandboxRow, LedgerError> {
        self.keep_sandbox(owner, id, 0, now_ms).await
    }

    /// Moves the end of the sandbox to `expires_at_ms`, unless it is later already, and says that it is used now. A due
    /// one is not found.
    pub async fn keep_sandbox(
        &self,
        owner: &Owner,
        id: &SandboxId,
        expires_at_ms: u64,
        now_ms: u64,
    ) -> Result<SandboxRow, LedgerError> {
        let (owner, id) = (owner.clone(), id.clone());
        let work = move |connection: &Connection| {
            let sql = format!(
                "UPDATE sandboxes SET last_used_ms = max(last_used_ms, ?1), expires_at_ms = max(expires_at_ms, ?5)
                 WHERE id = ?2 AND tenant = ?3 AND subject = ?4 AND {USABLE} RETURNING {COLUMNS}"
            );
            let values = params![stored(now_ms), id.as_str(), owner.tenant, owner.subject, stored(expires_at_ms)];
            let row = connection.prepare_cached(&sql)?.query_row(values, read).optional()?;
            row.ok_or(LedgerError::SandboxNotFound(id))
        };
        self.call(Lasting::Kill, work, |row| row).await
    }

    /// Deletes the live sandbox of this owner. Done again it is not found.
    pub async fn delete_sandbox(&self, owner: &Owner, id: &SandboxId, now_ms: u64) -> Result<SandboxRow, LedgerError> {
        let (owner, id) = (owner.clone(), id.clone());
        let work = move |connection: &Connection| {
            let sql = format!(
                "UPDATE sandboxes SET deleted_at_ms = ?1
                 WHERE id = ?2 AND tenant = ?3 AND subject = ?4 AND deleted_at_ms IS NULL RETURNING {COLUMNS}"
            );
            let values = params![stored(now_ms), id.as_str(), owner.tenant, owner.subject];
            let row = connection.prepare_cached(&sql)?.query_row(values, read).optional()?;
            row.ok_or(LedgerError::SandboxNotFound(id))
        };
        self.call(Lasting::PowerLoss, work, |row| row).await
    }

    /// At most `limit` sandboxes of anybody whose time is over, oldest first. They stay live until they are ended.
    pub async fn due_sandboxes(&self, now_ms: u64, limit: usize) -> Result<Vec<SandboxRow>, LedgerError> {
        let limit = limit.clamp(1, LONGEST_PAGE);
        let work = move |connection: &Connection| {
            let sql = format!("SELECT {COLUMNS} FROM sandboxes WHERE {DUE} ORDER BY seq LIMIT {limit}");
            let mut statement = connection.prepare(&sql)?;
            Ok(statement.query_map([stored(now_ms)], read)?.collect::<Result<Vec<_>, _>>()?)
        };
        self.call(Lasting::Kill, work, |rows| rows).await
    }

    /// Deletes a sandbox if it is still due. None: it was used, prolonged or deleted in the meantime.
    pub async fn end_due_sandbox(&self, id: &SandboxId, now_ms: u64) -> Result<Option<SandboxRow>, LedgerError> {
        let id = id.clone();
        let work = move |connection: &Connection| {
            let sql = format!("UPDATE sandboxes SET deleted_at_ms = ?1 WHERE id = ?2 AND {DUE} RETURNING {COLUMNS}");
            let values = params![stored(now_ms), id.as_str()];
            Ok(connection.prepare_cached(&sql)?.query_row(values, read).optional()?)
        };
        self.call(Lasting::PowerLoss, work, |row| row).await
    }

    /// Every live sandbox of everybody, oldest first, due or not: for a start that compares them with the disk.
    pub async fn live_sandboxes(&self) -> Result<Vec<SandboxRow>, LedgerError> {
        let work = |connection: &Connection| {
            let sql = format!("SELECT {COLUMNS} FROM sandboxes WHERE deleted_at_ms IS NULL ORDER BY seq");
            Ok(connection.prepare(&sql)?.query_map([], read)?.collect::<Result<Vec<_>, _>>()?)
        };
        self.call(Lasting::Kill, work, |rows| rows).await
    }

    /// Removes the rows of sandboxes that were deleted before `deleted_before_ms`; how many that were.
    pub async fn forget_sandboxes(&self, deleted_before_ms: u64) -> Result<usize, LedgerError> {
        let work = move |connection: &Connection| {
            let sql = "DELETE FROM sandboxes WHERE deleted_at_ms < ?1";
            Ok(connection.prepare_cached(sql)?.execute([stored(deleted_before_ms)])?)
        };
        self.call(Lasting::Kill, work, |count| count).await
    }
}

fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), LedgerError> {
    fits("labels", labels.len(), LABELS_MAX)?;
    for (name, value) in labels {
        fits("the name of a label", name.len(), LABEL_NAME_MAX)?;
        fits("the value of a label", value.len(), LABEL_VALUE_MAX)?;
    }
    Ok(())
}

fn live_count(connection: &Connection, owner: &Owner) -> Result<u64, LedgerError> {
    let sql = "SELECT count(*) FROM sandboxes WHERE tenant = ?1 AND subject = ?2 AND deleted_at_ms IS NULL";
    let count = connection.prepare_cached(sql)?.query_row([&owner.tenant, &owner.subject], |row| row.get(0))?;
    Ok(read_back(count))
}

fn insert(connection: &Connection, row: &SandboxRow) -> Result<(), LedgerError> {
    let labels = serde_json::to_string(&row.labels).map_err(LedgerError::Names)?;
    connection
        .prepare_cached(
            "INSERT INTO sandboxes (id, tenant, subject, profile, project_id, labels, created_at_ms, expires_at_ms,
                 idle_ms, last_used_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        )?
        .execute(params![
            row.id.as_str(),
            row.owner.tenant,
            row.owner.subject,
            row.profile,
            row.project_id.as_str(),
            labels,
            stored(row.created_at_ms),
            stored(row.expires_at_ms),
            row.idle_ms.map(countable),
            stored(row.last_used_ms),
        ])?;
    Ok(())
}

/// An idle time that can be added to a time without leaving SQLite's numbers.
fn countable(idle_ms: u64) -> i64 {
    stored(idle_ms).min(i64::MAX / 2)
}

fn find(connection: &Connection, id: &SandboxId) -> Result<Option<SandboxRow>, LedgerError> {
    let mut statement = connection.prepare_cached(&format!("SELECT {COLUMNS} FROM sandboxes WHERE id = ?1"))?;
    Ok(statement.query_row([id.as_str()], read).optional()?)
}

fn page(
    connection: &Connection,
    owner: &Owner,
    filter: &SandboxFilter,
    after: Option<SandboxId>,
    limit: usize,
) -> Result<SandboxPage, LedgerError> {
    let mut wheres = Wheres::of(owner);
    if let Some(id) = after
        && !wheres.after(connection, TABLE, "id", owner, id.as_str())?
    {
        return Err(LedgerError::SandboxNotFound(id));
    }
    wheres.and("deleted_at_ms IS NULL", []);
    for (name, value) in &filter.labels {
        let has = "EXISTS (SELECT 1 FROM json_each(labels) AS label WHERE label.key = ? AND label.value = ?)";
        wheres.and(has, [Value::Text(name.clone()), Value::Text(value.clone())]);
    }
    let (items, more) = wheres.page(connection, TABLE, COLUMNS, limit, read)?;
    let next = items.last().filter(|_| more).map(|row| row.id.clone());
    Ok(SandboxPage { items, next })
}

pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<SandboxRow> {
    let labels = serde_json::from_str(&row.get::<_, String>(5)?);
    let wrong = |error| rusqlite::Error::FromSqlConversionFailure(5, rusqlite::types::Type::Text, Box::new(error));
    Ok(SandboxRow {
        id: SandboxId::from(row.get::<_, String>(0)?),
        owner: Owner { tenant: row.get(1)?, subject: row.get(2)? },
        profile: row.get(3)?,
        project_id: read_id(row, 4)?,
        labels: labels.map_err(wrong)?,
        created_at_ms: read_back(row.get(6)?),
        expires_at_ms: read_back(row.get(7)?),
        idle_ms: row.get::<_, Option<i64>>(8)?.map(read_back),
        last_used_ms: read_back(row.get(9)?),
        deleted_at_ms: row.get::<_, Option<i64>>(10)?.map(read_back),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fresh, owners};
    use super::*;

    fn sandbox(owner: &Owner, expires_at_ms: u64, idle_ms: Option<u64>) -> NewSandbox {
        NewSandbox {
            owner: owner.clone(),
            profile: "python-default".to_owned(),
            project_id: "p1".parse().expect("an id"),
            labels: BTreeMap::new(),
            expires_at_ms,
            idle_ms,
        }
    }

    fn labels(given: &[(&str, &str)]) -> BTreeMap<String, String> {
        given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[tokio::test]
    async fn a_sandbox_is_its_owners_alone() {
        let (_directory, ledger) = fresh();
        let [me, other] = owners();
        let row = ledger.create_sandbox(sandbox(&me, 1000, Some(100)), 1).await.expect("a sandbox");
        let id = row.id.clone();
        assert_eq!(ledger.get_sandbox(&me, &id).await.expect("mine"), row);
        let unknown = |result: Result<SandboxRow, LedgerError>| matches!(result, Err(LedgerError::SandboxNotFound(_)));
        assert!(unknown(ledger.get_sandbox(&other, &id).await));
        assert!(unknown(ledger.touch_sandbox(&other, &id, 2).await));
        assert!(unknown(ledger.keep_sandbox(&other, &id, 5000, 2).await));
        assert!(unknown(ledger.delete_sandbox(&other, &id, 2).await));
        let page = ledger.list_sandboxes(&other, SandboxFilter::default(), None, 10).await.expect("a page");
        assert_eq!(page.items, []);
        let page = ledger.list_sandboxes(&other, SandboxFilter::default(), Some(id.clone()), 10).await;
        assert!(matches!(page, Err(LedgerError::SandboxNotFound(_))), "{page:?}");
        assert_eq!(ledger.get_sandbox(&me, &id).await.expect("unchanged"), row);
    }

    #[tokio::test]
    async fn a_sandbox_ends_by_time_by_idleness_or_by_its_owner() {
        let (directory, ledger) = fresh();
        let [me, _] = owners();
        let by_time = ledger.create_sandbox(sandbox(&me, 100, None), 0).await.expect("a sandbox").id;
        let by_idleness = ledger.create_sandbox(sandbox(&me, 1000, Some(50)), 0).await.expect("a sandbox").id;
        let kept = ledger.create_sandbox(sandbox(&me, u64::MAX, Some(u64::MAX)), 0).await.expect("a sandbox").id;
        let due = async |now| -> Vec<SandboxId> {
            ledger.due_sandboxes(now, 10).await.expect("a list").into_iter().map(|row| row.id).collect()
        };
        assert_eq!(due(49).await, []);
        assert_eq!(due(50).await, std::slice::from_ref(&by_idleness));
        assert_eq!(ledger.touch_sandbox(&me, &by_idleness, 49).await.expect("in time").last_used_ms, 49);
        assert_eq!(due(98).await, []);
        assert_eq!(ledger.end_due_sandbox(&by_idleness, 98).await.expect("an answer"), None, "not due after all");
        assert_eq!(due(100).await, [by_time.clone(), by_idleness.clone()]);
        assert!(ledger.touch_sandbox(&me, &by_idleness, 100).await.is_err(), "too late");
        assert!(ledger.keep_sandbox(&me, &by_time, 500, 100).await.is_err(), "too late");
        assert_eq!(ledger.keep_sandbox(&me, &by_time, 500, 99).await.expect("in time").expires_at_ms, 500);
        assert_eq!(ledger.keep_sandbox(&me, &by_time, 400, 99).await.expect("no shorter").expires_at_ms, 500);
        let ended = ledger.end_due_sandbox(&by_idleness, 100).await.expect("an answer").expect("due");
        assert_eq!(ended.deleted_at_ms, Some(100));
        assert_eq!(ledger.end_due_sandbox(&by_idleness, 100).await.expect("an answer"), None, "once");
        assert_eq!(ledger.delete_sandbox(&me, &kept, 101).await.expect("deleted").deleted_at_ms, Some(101));
        assert!(matches!(ledger.delete_sandbox(&me, &kept, 102).await, Err(LedgerError::SandboxNotFound(_))));
        assert!(matches!(ledger.get_sandbox(&me, &kept).await, Err(LedgerError::SandboxNotFound(_))));
        ledger.close().await;

        let ledger = Ledger::open(directory.path()).expect("the same ledger");
        let live: Vec<_> = ledger.live_sandboxes().await.expect("a list").into_iter().map(|row| row.id).collect();
        assert_eq!(live, [by_time]);
        assert_eq!(ledger.forget_sandboxes(101).await.expect("a count"), 1, "the one that was deleted at 100");
        assert_eq!(ledger.forget_sandboxes(u64::MAX).await.expect("a count"), 1);
    }

    #[tokio::test]
    async fn pages_hold_what_has_the_labels_once() {
        let (_directory, ledger) = fresh();
        let [me, other] = owners();
        let mut expected = Vec::new();
        for n in 0..20 {
            let mut new = sandbox(if n % 5 == 4 { &other } else { &me }, 1000, None);
            let parity = if n % 2 == 0 { "even" } else { "odd" };
            new.labels = labels(&[("parity", parity), ("n", &n.to_string()), ("a\"b$.", "1")]);
            let row = ledger.create_sandbox(new, n).await.expect("a sandbox");
            if n % 5 != 4 && n % 2 == 0 {
                expected.insert(0, row.id);
            }
        }
        let even = SandboxFilter { labels: labels(&[("parity", "even"), ("a\"b$.", "1")]) };
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = ledger.list_sandboxes(&me, even.clone(), after.clone(), 3).await.expect("a page");
            assert!(page.items.len() <= 3);
            seen.extend(page.items.into_iter().map(|row| row.id));
            after = page.next;
            let Some(cursor) = &after else { break };
            ledger.delete_sandbox(&me, cursor, 5).await.expect("a cursor that is deleted still marks its place");
        }
        assert_eq!(seen, expected);
        for none in [labels(&[("parity", "even"), ("n", "1")]), labels(&[("even", "parity")]), labels(&[("n", "")])] {
            let page = ledger.list_sandboxes(&me, SandboxFilter { labels: none }, None, 10).await.expect("a page");
            assert_eq!(page.items, []);
        }
    }

    #[tokio::test]
    async fn labels_are_bounded() {
        let (_directory, ledger) = fresh();
        let [me, _] = owners();
        let many: Vec<String> = (0..=LABELS_MAX).map(|n| n.to_string()).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|n| (n.as_str(), "x")).collect();
        let (long_name, long_value) = ("n".repeat(LABEL_NAME_MAX + 1), "v".repeat(LABEL_VALUE_MAX + 1));
        for wrong in [labels(&many), labels(&[(&long_name, "x")]), labels(&[("x", &long_value)])] {
            let new = NewSandbox { labels: wrong, ..sandbox(&me, 1000, None) };
            let refused = ledger.create_sandbox(new, 1).await;
            assert!(matches!(refused, Err(LedgerError::TooLong { .. })), "{refused:?}");
        }
        let new = NewSandbox { labels: labels(&many[1..]), ..sandbox(&me, 1000, None) };
        assert_eq!(ledger.create_sandbox(new, 1).await.expect("as many as fit").labels.len(), LABELS_MAX);
    }
}
