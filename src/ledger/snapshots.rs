//! Snapshots of sandboxes: a row before there is anything on disk, and until nothing is there any more.
//!
//! ```text
//! making ──▶ kept ◀──▶ restoring
//!    │         └──▶ removing ──▶ no row
//!    └── a daemon died: removed with whatever of it is on disk, as nobody was told of it
//! ```
//!
//! What a daemon that died left is found by its state at the next start.

use super::{Ledger, LedgerError, SandboxId, fits, read_back, read_id, stored, writer::Lasting};
use crate::model::{Owner, ProjectId, SnapshotId};
use rusqlite::{Connection, OptionalExtension, Row, params};

/// Bytes of a snapshot's name.
const NAME_MAX: usize = 128;
const COLUMNS: &str = "id, tenant, subject, sandbox_id, project_id, name, state, created_at_ms";

/// How far a snapshot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotState {
    /// Nobody was told of it yet.
    Making,
    /// It is there.
    Kept,
    /// It is there, and its sandbox is being brought back to it.
    Restoring,
    /// It goes.
    Removing,
}

impl SnapshotState {
    const ALL: [Self; 4] = [Self::Making, Self::Kept, Self::Restoring, Self::Removing];

    fn name(self) -> &'static str {
        match self {
            Self::Making => "making",
            Self::Kept => "kept",
            Self::Restoring => "restoring",
            Self::Removing => "removing",
        }
    }
}

/// A snapshot to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSnapshot {
    /// Whose it is.
    pub owner: Owner,
    /// Of which sandbox.
    pub sandbox_id: SandboxId,
    /// In which project it lies.
    pub project_id: ProjectId,
    /// What its owner calls it.
    pub name: Option<String>,
}

/// A snapshot as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRow {
    /// Its id.
    pub id: SnapshotId,
    /// Whose it is.
    pub owner: Owner,
    /// Of which sandbox.
    pub sandbox_id: SandboxId,
    /// In which project it lies.
    pub project_id: ProjectId,
    /// What its owner calls it.
    pub name: Option<String>,
    /// How far it is.
    pub state: SnapshotState,
    /// When it was made.
    pub created_at_ms: u64,
}

impl Ledger {
    /// Writes down that a snapshot is about to be made, if its sandbox has less than `most`.
    pub async fn begin_snapshot(&self, new: NewSnapshot, most: u64, now_ms: u64) -> Result<SnapshotRow, LedgerError> {
        fits("name", new.name.as_ref().map_or(0, String::len), NAME_MAX)?;
        let row = SnapshotRow {
            id: SnapshotId::generate(),
            owner: new.owner,
            sandbox_id: new.sandbox_id,
            project_id: new.project_id,
            name: new.name,
            state: SnapshotState::Making,
            created_at_ms: now_ms,
        };
        let work = move |connection: &Connection| {
            let sql = "SELECT count(*) FROM snapshots WHERE sandbox_id = ?1";
            let count: i64 = connection.prepare_cached(sql)?.query_row([row.sandbox_id.as_str()], |row| row.get(0))?;
            if read_back(count) >= most {
                return Err(LedgerError::TooManySnapshots(most));
            }
            let sql = format!("INSERT INTO snapshots ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)");
            connection.prepare_cached(&sql)?.execute(params![
                row.id.as_str(),
                row.owner.tenant,
                row.owner.subject,
                row.sandbox_id.as_str(),
                row.project_id.as_str(),
                row.name,
                row.state.name(),
                stored(row.created_at_ms),
            ])?;
            Ok(row)
        };
        self.call(Lasting::PowerLoss, work, |row| row).await
    }

    /// Says how far a snapshot is.
    pub async fn mark_snapshot(&self, id: &SnapshotId, state: SnapshotState) -> Result<(), LedgerError> {
        let id = id.clone();
        let work = move |connection: &Connection| {
            let sql = "UPDATE snapshots SET state = ?1 WHERE id = ?2";
            match connection.prepare_cached(sql)?.execute(params![state.name(), id.as_str()])? {
                0 => Err(LedgerError::SnapshotNotFound(id)),
                _ => Ok(()),
            }
        };
        self.call(Lasting::PowerLoss, work, |()| ()).await
    }

    /// Forgets a snapshot of which nothing is on disk.
    pub async fn forget_snapshot(&self, id: &SnapshotId) -> Result<(), LedgerError> {
        let id = id.clone();
        let work = move |connection: &Connection| {
            connection.prepare_cached("DELETE FROM snapshots WHERE id = ?1")?.execute([id.as_str()])?;
            Ok(())
        };
        self.call(Lasting::Kill, work, |()| ()).await
    }

    /// A snapshot of this owner that is there; of one sandbox, if it is named.
    pub async fn get_snapshot(
        &self,
        owner: &Owner,
        sandbox: Option<&SandboxId>,
        id: &SnapshotId,
    ) -> Result<SnapshotRow, LedgerError> {
        let (owner, sandbox, id) = (owner.clone(), sandbox.cloned(), id.clone());
        let work = move |connection: &Connection| {
            let sql = format!("SELECT {COLUMNS} FROM snapshots WHERE id = ?1");
            let row = connection.prepare_cached(&sql)?.query_row([id.as_str()], read).optional()?;
            row.filter(|row| row.owner == owner && sandbox.is_none_or(|sandbox| row.sandbox_id == sandbox))
                .filter(|row| matches!(row.state, SnapshotState::Kept | SnapshotState::Restoring))
                .ok_or(LedgerError::SnapshotNotFound(id))
        };
        self.call(Lasting::Kill, work, |row| row).await
    }

    /// Every snapshot of a sandbox, newest first, whatever its state.
    pub async fn snapshots_of(&self, sandbox: &SandboxId) -> Result<Vec<SnapshotRow>, LedgerError> {
        let sandbox = sandbox.clone();
        let work = move |connection: &Connection| {
            let sql = format!("SELECT {COLUMNS} FROM snapshots WHERE sandbox_id = ?1 ORDER BY seq DESC");
            let mut statement = connection.prepare_cached(&sql)?;
            Ok(statement.query_map([sandbox.as_str()], read)?.collect::<Result<Vec<_>, _>>()?)
        };
        self.call(Lasting::Kill, work, |rows| rows).await
    }

    /// Every snapshot of everybody: for a start that compares them with the disk.
    pub async fn all_snapshots(&self) -> Result<Vec<SnapshotRow>, LedgerError> {
        let work = |connection: &Connection| {
            let sql = format!("SELECT {COLUMNS} FROM snapshots ORDER BY seq");
            Ok(connection.prepare(&sql)?.query_map([], read)?.collect::<Result<Vec<_>, _>>()?)
        };
        self.call(Lasting::Kill, work, |rows| rows).await
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<SnapshotRow> {
    let state: String = row.get(6)?;
    let state = SnapshotState::ALL.into_iter().find(|known| known.name() == state);
    Ok(SnapshotRow {
        id: SnapshotId::from(row.get::<_, String>(0)?),
        owner: Owner { tenant: row.get(1)?, subject: row.get(2)? },
        sandbox_id: SandboxId::from(row.get::<_, String>(3)?),
        project_id: read_id(row, 4)?,
        name: row.get(5)?,
        state: state.ok_or(rusqlite::Error::InvalidQuery)?,
        created_at_ms: read_back(row.get(7)?),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fresh, owners};
    use super::*;

    #[tokio::test]
    async fn a_snapshot_is_its_owners_once_it_is_kept() {
        let (_directory, ledger) = fresh();
        let [me, other] = owners();
        let new = NewSnapshot {
            owner: me.clone(),
            sandbox_id: SandboxId::generate(),
            project_id: "p".parse().expect("an id"),
            name: Some("n".to_owned()),
        };
        let sandbox = new.sandbox_id.clone();
        let row = ledger.begin_snapshot(new.clone(), 1, 7).await.expect("the first");
        let missing = |found: Result<SnapshotRow, LedgerError>| matches!(found, Err(LedgerError::SnapshotNotFound(_)));
        assert!(missing(ledger.get_snapshot(&me, None, &row.id).await), "not yet");
        let more = ledger.begin_snapshot(new.clone(), 1, 8).await;
        assert!(matches!(more, Err(LedgerError::TooManySnapshots(1))), "{more:?}");
        ledger.mark_snapshot(&row.id, SnapshotState::Kept).await.expect("kept");
        let kept = ledger.get_snapshot(&me, Some(&sandbox), &row.id).await.expect("mine");
        assert_eq!(kept, SnapshotRow { state: SnapshotState::Kept, ..row.clone() });
        assert!(missing(ledger.get_snapshot(&other, None, &row.id).await));
        assert!(missing(ledger.get_snapshot(&me, Some(&SandboxId::generate()), &row.id).await));
        ledger.mark_snapshot(&row.id, SnapshotState::Removing).await.expect("on its way out");
        assert!(missing(ledger.get_snapshot(&me, None, &row.id).await));
        assert_eq!(ledger.all_snapshots().await.expect("a list").len(), 1);
        ledger.forget_snapshot(&row.id).await.expect("gone");
        assert_eq!(ledger.snapshots_of(&sandbox).await.expect("a list"), []);
        let long = NewSnapshot { name: Some("x".repeat(NAME_MAX + 1)), ..new };
        assert!(matches!(ledger.begin_snapshot(long, 1, 9).await, Err(LedgerError::TooLong { field: "name", .. })));
    }
}
