//! Snapshots of a sandbox: taken, listed, brought back, forked into a new sandbox, compared and removed.
//!
//! ```text
//! take      row: making ─▶ copy on disk ─▶ row: kept           while programs run, too: a copy is of one moment
//! restore   alone in the workspace? ─▶ row: restoring ─▶ copy ─▶ limit ─▶ exchange ─▶ row: kept
//! remove    row: removing ─▶ disk ─▶ no row
//! ```
//!
//! The ledger hears of each step before the disk does, so that a start after a kill finds by the rows what to finish and
//! what to undo. Whoever hangs up does not stop what has begun.

use super::admission::Listed;
use super::sandboxes::of_files;
use super::{Call, Failure, Judged, Pipeline, SandboxView, SandboxWish, now_ms};
use crate::evidence::{Begin, Operation};
use crate::executor::Part;
use crate::ledger::{LedgerError, NewSnapshot, SandboxRow, SnapshotRow, SnapshotState};
use crate::model::{ExecId, Limit, Owner, Principal, ProjectId, SandboxId, SnapshotId};
use crate::policy::{FileArea, FileAsk, FileOperation, FileRule, Refusal, judge_file, judge_sandbox};
use crate::workspace::{Changes, DiffPage, Store, Tree, WorkspaceError};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

/// Who uses a workspace now: many at once, or one that exchanges it.
#[derive(Debug, Default)]
pub(super) struct Uses(Mutex<HashMap<ProjectId, Arc<RwLock<()>>>>);

impl Uses {
    fn of(&self, project: &ProjectId) -> Arc<RwLock<()>> {
        let mut uses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        uses.retain(|_, other| Arc::strong_count(other) > 1); // those that nobody holds or waits for
        uses.entry(project.clone()).or_default().clone()
    }

    /// Uses a workspace beside others. Waits for a moment if it is just being exchanged.
    pub(super) async fn share(&self, project: Option<&ProjectId>) -> Option<OwnedRwLockReadGuard<()>> {
        Some(self.of(project?).read_owned().await)
    }

    /// Alone in a workspace, or not at all.
    fn alone(&self, project: &ProjectId) -> Result<OwnedRwLockWriteGuard<()>, Refusal> {
        self.of(project).try_write_owned().map_err(|_| Refusal::WorkspaceBusy)
    }
}

/// What an exec found, if a report of it was asked for. Dropped unused, the next start removes what was kept.
pub(super) struct Reporting(Option<(Owner, ProjectId, u64)>);

impl Reporting {
    /// What changed. An exec that ran is not undone because its report can't be made.
    pub(super) async fn end(&self, pipeline: &Pipeline, listed: &Listed) -> Option<Changes> {
        let (owner, project, since_ms) = self.0.as_ref()?;
        let changes = pipeline.report(owner, project, &listed.exec, *since_ms).await;
        changes
            .inspect_err(|failure| tracing::error!(exec = %listed.exec, ?failure, "what an exec changed is not known"))
            .ok()
    }
}

/// Between which trees of a sandbox a diff is.
#[derive(Debug, Clone)]
pub struct DiffWish {
    /// From this snapshot.
    pub from: SnapshotId,
    /// To this one; none: to the files as they are now.
    pub to: Option<SnapshotId>,
    /// Which part of the list.
    pub page: DiffPage,
}

impl Pipeline {
    fn asks_snapshot(call: &Call, sandbox: &SandboxId, what: &str) -> Begin {
        Begin { sandbox_id: Some(sandbox.to_string()), ..call.begin(Operation::Sandbox, what) }
    }

    /// Carries on, whoever hangs up.
    async fn in_any_case<T: Send + 'static>(
        work: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Failure> {
        tokio::spawn(work).await.map_err(|panic| {
            tracing::error!(%panic, "the task of a snapshot panicked");
            Failure::Internal
        })?
    }

    /// The sandbox of this caller, which is thereby used, and the bytes that its work may take.
    async fn own_sandbox(&self, principal: &Principal, id: &SandboxId) -> Result<(SandboxRow, u64), Failure> {
        if self.draining() {
            return Err(Refusal::Draining.into());
        }
        let row = self.0.ledger.touch_sandbox(&principal.owner, id, now_ms()).await.map_err(Failure::Ledger)?;
        let in_force = self.0.source.current().await;
        let profile = judge_sandbox(principal, &row.profile, &in_force.profiles)?;
        Ok((row, profile.limits.get(Limit::WorkBytes)))
    }

    /// Work on the store, off the async threads.
    pub(super) async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, WorkspaceError> + Send + 'static,
    ) -> Result<T, Failure> {
        let store = self.0.store.clone();
        let done = tokio::task::spawn_blocking(move || work(&store)).await.map_err(|_| Failure::Internal)?;
        done.map_err(|error| match error {
            WorkspaceError::NoSnapshots => Refusal::SnapshotsUnsupported.into(),
            error => of_files(error),
        })
    }

    /// Keeps the files of a sandbox as they are now.
    pub async fn take_snapshot(
        &self,
        call: &Call,
        sandbox: &SandboxId,
        name: Option<String>,
    ) -> Result<SnapshotRow, Failure> {
        let asked = Self::asks_snapshot(call, sandbox, "snapshot.create");
        let (pipeline, principal, sandbox) = (self.clone(), call.principal.clone(), sandbox.clone());
        let work = async move { pipeline.take(&principal, &sandbox, name).await };
        self.recorded(asked, Self::in_any_case(work)).await.map(|(row, _)| row)
    }

    async fn take(
        &self,
        principal: &Principal,
        sandbox: &SandboxId,
        name: Option<String>,
    ) -> Result<SnapshotRow, Failure> {
        if name.as_ref().is_some_and(|name| name.is_empty() || name.chars().any(char::is_control)) {
            let problem = "has at least one character and no control characters".to_owned();
            return Err(Refusal::InvalidField { field: "name".to_owned(), problem }.into());
        }
        let (row, _) = self.own_sandbox(principal, sandbox).await?;
        if !self.0.store.has_volumes() {
            return Err(Refusal::SnapshotsUnsupported.into());
        }
        let _turn = self.0.turns.take(&row.project_id).await;
        let _use = self.0.uses.share(Some(&row.project_id)).await;
        let new = NewSnapshot {
            owner: principal.owner.clone(),
            sandbox_id: sandbox.clone(),
            project_id: row.project_id,
            name,
        };
        let most = self.0.settings.max_snapshots;
        let made = self.0.ledger.begin_snapshot(new, most, now_ms()).await.map_err(Failure::Ledger)?;
        let SnapshotRow { owner, project_id, id, .. } = made.clone();
        let taken = self.on_disk(move |store| store.take(&owner, &project_id, &Tree::Snapshot(id))).await;
        if let Err(failure) = taken {
            self.0.ledger.forget_snapshot(&made.id).await.map_err(Failure::Ledger)?;
            return Err(failure);
        }
        self.0.ledger.mark_snapshot(&made.id, SnapshotState::Kept).await.map_err(Failure::Ledger)?;
        Ok(SnapshotRow { state: SnapshotState::Kept, ..made })
    }

    /// The snapshots of a sandbox, newest first.
    pub async fn snapshots(&self, principal: &Principal, sandbox: &SandboxId) -> Result<Vec<SnapshotRow>, Failure> {
        self.sandbox(principal, sandbox).await?;
        let rows = self.0.ledger.snapshots_of(sandbox).await.map_err(Failure::Ledger)?;
        let there = |row: &SnapshotRow| matches!(row.state, SnapshotState::Kept | SnapshotState::Restoring);
        Ok(rows.into_iter().filter(there).collect())
    }

    /// Brings the files of a sandbox back to what a snapshot has. Refused while anything runs in it.
    pub async fn restore_snapshot(&self, call: &Call, sandbox: &SandboxId, id: &SnapshotId) -> Result<(), Failure> {
        let asked = Self::asks_snapshot(call, sandbox, "snapshot.restore");
        let (pipeline, principal, sandbox, id) = (self.clone(), call.principal.clone(), sandbox.clone(), id.clone());
        let work = async move { pipeline.bring_back(&principal, &sandbox, &id).await };
        self.recorded(asked, Self::in_any_case(work)).await.map(|((), _)| ())
    }

    async fn bring_back(&self, principal: &Principal, sandbox: &SandboxId, id: &SnapshotId) -> Result<(), Failure> {
        let (row, work_bytes) = self.own_sandbox(principal, sandbox).await?;
        let _turn = self.0.turns.take(&row.project_id).await;
        let ledger = &self.0.ledger;
        let found = ledger.get_snapshot(&principal.owner, Some(sandbox), id).await.map_err(Failure::Ledger)?;
        let _alone = self.0.uses.alone(&row.project_id)?;
        let live = ledger.live_sandboxes().await.map_err(Failure::Ledger)?;
        let same = live.into_iter().filter(|other| other.owner == row.owner && other.project_id == row.project_id);
        // An interpreter that is kept has the old files mounted, between its calls as well.
        if self.0.sessions.live_in(&same.map(|other| other.id).collect::<Vec<_>>()) {
            return Err(Refusal::WorkspaceBusy.into());
        }
        ledger.mark_snapshot(id, SnapshotState::Restoring).await.map_err(Failure::Ledger)?;
        let done = self.exchange(&principal.owner, &found, work_bytes).await;
        ledger.mark_snapshot(id, SnapshotState::Kept).await.map_err(Failure::Ledger)?;
        done
    }

    async fn exchange(&self, owner: &Owner, found: &SnapshotRow, work_bytes: u64) -> Result<(), Failure> {
        let project = &found.project_id;
        let (whose, which, id) = (owner.clone(), project.clone(), found.id.clone());
        self.on_disk(move |store| store.begin_restore(&whose, &which, &id)).await?;
        let (whose, which) = (owner.clone(), project.clone());
        if let Err(error) = self.0.executor.bound(project, Part::Next, work_bytes).await {
            self.on_disk(move |store| store.abandon_restore(&whose, &which)).await?;
            return Err(Failure::Run(error));
        }
        self.on_disk(move |store| store.finish_restore(&whose, &which)).await
    }

    /// Removes a snapshot.
    pub async fn remove_snapshot(&self, call: &Call, sandbox: &SandboxId, id: &SnapshotId) -> Result<(), Failure> {
        let asked = Self::asks_snapshot(call, sandbox, "snapshot.delete");
        let (pipeline, principal, sandbox, id) = (self.clone(), call.principal.clone(), sandbox.clone(), id.clone());
        let work = async move {
            let (row, _) = pipeline.own_sandbox(&principal, &sandbox).await?;
            let _turn = pipeline.0.turns.take(&row.project_id).await;
            let ledger = &pipeline.0.ledger;
            let found = ledger.get_snapshot(&principal.owner, Some(&sandbox), &id).await.map_err(Failure::Ledger)?;
            pipeline.drop_snapshot(&found).await
        };
        self.recorded(asked, Self::in_any_case(work)).await.map(|((), _)| ())
    }

    /// Removes a snapshot from disk and ledger; one of a project that is gone has no disk.
    pub(super) async fn drop_snapshot(&self, row: &SnapshotRow) -> Result<(), Failure> {
        self.0.ledger.mark_snapshot(&row.id, SnapshotState::Removing).await.map_err(Failure::Ledger)?;
        let SnapshotRow { owner, project_id, id, .. } = row.clone();
        match self.on_disk(move |store| store.drop_tree(&owner, &project_id, &Tree::Snapshot(id))).await {
            Ok(()) | Err(Failure::Run(crate::executor::RunError::Workspace(WorkspaceError::NotYours))) => {}
            Err(failure) => return Err(failure),
        }
        self.0.ledger.forget_snapshot(&row.id).await.map_err(Failure::Ledger)
    }

    /// A new sandbox with the files of a snapshot, under the same profile unless another is named.
    pub async fn fork_snapshot(
        &self,
        call: &Call,
        sandbox: &SandboxId,
        id: &SnapshotId,
        profile: Option<String>,
        wish: SandboxWish,
    ) -> Result<SandboxView, Failure> {
        let ledger = &self.0.ledger;
        let found = async {
            let row = ledger.get_sandbox(&call.principal.owner, sandbox).await?;
            ledger.get_snapshot(&call.principal.owner, Some(sandbox), id).await?;
            Ok::<_, LedgerError>(row.profile)
        };
        let asked = Self::asks_snapshot(call, sandbox, "sandbox.create");
        let its = self.told(&asked, found.await.map_err(Failure::Ledger)).await?;
        let wish = SandboxWish { profile: profile.unwrap_or(its), from_snapshot: Some(id.clone()), ..wish };
        self.create_sandbox(call, wish).await
    }

    /// Which paths of a sandbox changed since a snapshot.
    pub async fn diff_snapshot(&self, call: &Call, sandbox: &SandboxId, wish: DiffWish) -> Result<Changes, Failure> {
        let asked = Self::asks_snapshot(call, sandbox, "snapshot.diff");
        self.recorded(asked, self.diff(&call.principal, sandbox, wish)).await.map(|(changes, _)| changes)
    }

    async fn diff(&self, principal: &Principal, sandbox: &SandboxId, wish: DiffWish) -> Result<Changes, Failure> {
        let (row, _) = self.own_sandbox(principal, sandbox).await?;
        let in_force = self.0.source.current().await;
        let profile = judge_sandbox(principal, &row.profile, &in_force.profiles)?;
        let ask = FileAsk {
            operation: FileOperation::List, // it tells names and sizes
            area: &FileArea::Work,
            path: ".",
            to: None,
            bytes: 0,
            grant_id: None,
            call_id: None,
        };
        judge_file(principal, &row.project_id, FileRule::Sandbox { profile, grant: None }, &ask, now_ms())?;
        let ledger = &self.0.ledger;
        let find = async |id: &SnapshotId| {
            ledger.get_snapshot(&principal.owner, Some(sandbox), id).await.map_err(Failure::Ledger)
        };
        let from = find(&wish.from).await?;
        let to = match &wish.to {
            Some(id) => Tree::Snapshot(find(id).await?.id),
            None => Tree::Live,
        };
        let _use = self.0.uses.share(Some(&row.project_id)).await;
        let (owner, project, tree) = (principal.owner.clone(), row.project_id, Tree::Snapshot(from.id));
        self.on_disk(move |store| store.changes(&owner, &project, (&tree, from.created_at_ms), &to, &wish.page)).await
    }

    /// Keeps what an exec finds, if its request wants to know what it changes.
    pub(super) async fn begin_report(&self, listed: &Listed, judged: &Judged) -> Result<Reporting, Failure> {
        if judged.request.report.is_none() {
            return Ok(Reporting(None));
        }
        let Some(project) = judged.permit.project() else {
            let problem = "needs a project or a sandbox; a throw-away work area begins empty".to_owned();
            return Err(Refusal::InvalidField { field: "report".to_owned(), problem }.into());
        };
        let (owner, since_ms) = (judged.permit.owner(), now_ms());
        self.keep_before(owner, project, &listed.exec).await?;
        Ok(Reporting(Some((owner.clone(), project.clone(), since_ms))))
    }

    /// Bytes of the store's filesystem, and how many of them are free.
    #[must_use]
    pub fn store_room(&self) -> (u64, u64) {
        self.0.store.room()
    }

    /// What an exec found is kept aside, until its report is made.
    async fn keep_before(&self, owner: &Owner, project: &ProjectId, exec: &ExecId) -> Result<(), Failure> {
        let (owner, project, tree) = (owner.clone(), project.clone(), Tree::Before(exec.clone()));
        self.on_disk(move |store| {
            store.claim(&owner, &project)?; // the first exec of a project reports, too
            store.take(&owner, &project, &tree)
        })
        .await
    }

    /// What changed since an exec began; what was kept for it goes.
    async fn report(
        &self,
        owner: &Owner,
        project: &ProjectId,
        exec: &ExecId,
        since_ms: u64,
    ) -> Result<Changes, Failure> {
        let (owner, project, tree) = (owner.clone(), project.clone(), Tree::Before(exec.clone()));
        self.on_disk(move |store| {
            let page = DiffPage { after: None, limit: REPORT_MAX };
            let changes = store.changes(&owner, &project, (&tree, since_ms), &Tree::Live, &page);
            store.drop_tree(&owner, &project, &tree)?;
            changes
        })
        .await
    }

    /// Removes the snapshots of an ended sandbox; its project may stay, if another sandbox has it.
    pub(super) async fn drop_snapshots_of(&self, sandbox: &SandboxId) -> Result<(), Failure> {
        for row in self.0.ledger.snapshots_of(sandbox).await.map_err(Failure::Ledger)? {
            self.drop_snapshot(&row).await?;
        }
        Ok(())
    }

    /// At the start: brings rows and disk together.
    pub(super) async fn reconcile_snapshots(&self) -> Result<(), LedgerError> {
        let ledger = &self.0.ledger;
        let rows = ledger.all_snapshots().await?;
        let mut kept = HashSet::new();
        for row in rows {
            let there = self.0.store.has_snapshot(&row.owner, &row.project_id, &row.id);
            match row.state {
                SnapshotState::Kept if there => drop(kept.insert(row.id)),
                SnapshotState::Restoring if there => {
                    tracing::warn!(snapshot = %row.id, "a dead daemon was restoring it; that has happened whole or not at all");
                    ledger.mark_snapshot(&row.id, SnapshotState::Kept).await?;
                    kept.insert(row.id);
                }
                // Nobody was told of one that was being made, and one that was being removed is not wanted.
                state => {
                    tracing::warn!(snapshot = %row.id, ?state, there, "a dead daemon left half a snapshot; it goes");
                    ledger.mark_snapshot(&row.id, SnapshotState::Removing).await?;
                    if let Err(failure) = self.drop_snapshot(&row).await {
                        tracing::error!(snapshot = %row.id, ?failure, "half a snapshot is still there");
                    }
                }
            }
        }
        match self.on_disk(move |store| store.settle_snapshots(&kept)).await {
            Ok(0) => {}
            Ok(removed) => tracing::warn!(removed, "snapshots that no row knows are gone"),
            Err(failure) => tracing::error!(?failure, "snapshots that no row knows are still there"),
        }
        Ok(())
    }
}

/// Changes that an exec's report names.
const REPORT_MAX: usize = 1000;
