//! What is left to do when a sandbox has ended: its workspace goes, unless another live sandbox of its owner has it.
//!
//! ```text
//! live ── deleted, or due and ended ──▶ ended ── sandbox_cleared ──▶ cleared ── forget_sandboxes ──▶ no row
//! ```
//!
//! An ended sandbox that was not cleared is found again at the next start: a daemon that died in between leaves nothing.

use super::sandboxes::{COLUMNS, SandboxRow, read};
use super::{Ledger, LedgerError, SandboxId, stored, writer::Lasting};
use crate::model::{Owner, ProjectId};
use rusqlite::{Connection, params};

impl Ledger {
    /// Whether a live sandbox of this owner has the project.
    pub async fn project_in_use(&self, owner: &Owner, project: &ProjectId) -> Result<bool, LedgerError> {
        let (owner, project) = (owner.clone(), project.clone());
        let work = move |connection: &Connection| {
            let sql = "SELECT EXISTS (SELECT 1 FROM sandboxes
                 WHERE project_id = ?1 AND tenant = ?2 AND subject = ?3 AND deleted_at_ms IS NULL)";
            let values = [project.as_str(), &owner.tenant, &owner.subject];
            Ok(connection.prepare_cached(sql)?.query_row(values, |row| row.get(0))?)
        };
        self.call(Lasting::Kill, work, |used| used).await
    }

    /// Says that the workspace of an ended sandbox was seen to.
    pub async fn sandbox_cleared(&self, id: &SandboxId, now_ms: u64) -> Result<(), LedgerError> {
        let id = id.clone();
        let work = move |connection: &Connection| {
            let sql = "UPDATE sandboxes SET cleared_at_ms = ?1 WHERE id = ?2 AND deleted_at_ms IS NOT NULL";
            connection.prepare_cached(sql)?.execute(params![stored(now_ms), id.as_str()])?;
            Ok(())
        };
        self.call(Lasting::Kill, work, |()| ()).await
    }

    /// Every ended sandbox whose workspace may still be there, oldest first: for the start.
    pub async fn uncleared_sandboxes(&self) -> Result<Vec<SandboxRow>, LedgerError> {
        let work = |connection: &Connection| {
            let sql = format!(
                "SELECT {COLUMNS} FROM sandboxes WHERE deleted_at_ms IS NOT NULL AND cleared_at_ms IS NULL ORDER BY seq"
            );
            Ok(connection.prepare(&sql)?.query_map([], read)?.collect::<Result<Vec<_>, _>>()?)
        };
        self.call(Lasting::Kill, work, |rows| rows).await
    }

    /// Says, without waiting, that the sandbox is used now. One that is due or gone stays so.
    pub fn post_touch(&self, id: &SandboxId, now_ms: u64) {
        let id = id.clone();
        self.post(move |connection| {
            let sql = "UPDATE sandboxes SET last_used_ms = max(last_used_ms, ?1)
                 WHERE id = ?2 AND deleted_at_ms IS NULL AND expires_at_ms > ?1
                     AND (idle_ms IS NULL OR last_used_ms + idle_ms > ?1)";
            connection.prepare_cached(sql)?.execute(params![stored(now_ms), id.as_str()])?;
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{fresh, owners};
    use super::*;
    use crate::ledger::NewSandbox;
    use std::collections::BTreeMap;

    fn sandbox(owner: &Owner, project: &str) -> NewSandbox {
        NewSandbox {
            owner: owner.clone(),
            profile: "shell".to_owned(),
            project_id: project.parse().expect("an id"),
            labels: BTreeMap::new(),
            expires_at_ms: 1000,
            idle_ms: Some(100),
        }
    }

    #[tokio::test]
    async fn an_ended_sandbox_is_found_until_it_is_cleared() {
        let (directory, ledger) = fresh();
        let [me, other] = owners();
        let mine = ledger.create_sandbox(sandbox(&me, "p"), 0).await.expect("a sandbox");
        let project = mine.project_id.clone();
        assert!(ledger.project_in_use(&me, &project).await.expect("an answer"));
        assert!(!ledger.project_in_use(&other, &project).await.expect("an answer"));
        assert!(ledger.uncleared_sandboxes().await.expect("a list").is_empty());
        ledger.delete_sandbox(&me, &mine.id, 1).await.expect("deleted");
        ledger.close().await;
        let ledger = Ledger::open(directory.path()).expect("the same ledger");
        assert!(!ledger.project_in_use(&me, &project).await.expect("an answer"));
        let left = ledger.uncleared_sandboxes().await.expect("a list");
        assert_eq!(left.iter().map(|row| &row.id).collect::<Vec<_>>(), [&mine.id]);
        ledger.sandbox_cleared(&mine.id, 2).await.expect("noted");
        assert!(ledger.uncleared_sandboxes().await.expect("a list").is_empty());
    }

    #[tokio::test]
    async fn an_owner_has_at_most_so_many_sandboxes() {
        let (_directory, ledger) = fresh();
        let [me, other] = owners();
        let first = ledger.create_sandbox_within(sandbox(&me, "p"), 1, 0).await.expect("the first");
        let more = ledger.create_sandbox_within(sandbox(&me, "q"), 1, 0).await;
        assert!(matches!(more, Err(LedgerError::TooManySandboxes(1))), "{more:?}");
        ledger.create_sandbox_within(sandbox(&other, "q"), 1, 0).await.expect("another's");
        ledger.delete_sandbox(&me, &first.id, 1).await.expect("deleted");
        ledger.create_sandbox_within(sandbox(&me, "p"), 1, 0).await.expect("in its place");
    }

    #[tokio::test]
    async fn a_touch_that_nobody_waits_for_keeps_a_sandbox_and_wakes_no_dead_one() {
        let (_directory, ledger) = fresh();
        let [me, _] = owners();
        let row = ledger.create_sandbox(sandbox(&me, "p"), 0).await.expect("a sandbox");
        ledger.post_touch(&row.id, 90);
        assert_eq!(ledger.get_sandbox(&me, &row.id).await.expect("a row").last_used_ms, 90);
        ledger.post_touch(&row.id, 190); // idle since 90: its time is over
        assert_eq!(ledger.get_sandbox(&me, &row.id).await.expect("a row").last_used_ms, 90);
    }
}
