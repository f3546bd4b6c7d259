//! Sandboxes: a profile and a workspace that many execs share, from the first wish to the last file.
//!
//! ```text
//! create ─▶ live ── exec, files, keepalive ─▶ … ── deleted, expired or idle ─▶ cancel what runs ─▶ remove the workspace
//! ```
//!
//! A workspace goes with the last live sandbox of its owner that has it. What a daemon could not finish, the next one
//! does when it starts.

use super::{Call, Failure, Finished, InForce, Pipeline, SessionWish, now_ms};
use crate::evidence::{Begin, Operation};
use crate::executor::{Part, RunError};
use crate::ledger::{LedgerError, NewSandbox, SandboxFilter, SandboxRow};
use crate::model::{Capability, ExecRequest, Limit, Principal, ProjectId, SandboxId, SnapshotId};
use crate::policy::{Refusal, judge_sandbox};
use crate::workspace::{AreaKind, Durable, WorkspaceError};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;

/// How often the reaper looks.
const LOOK: Duration = Duration::from_millis(500);
/// Shorter, and a sandbox could be idle between two looks at what runs in it.
const IDLE_MIN_S: u64 = 2;
/// Sandboxes that one look ends.
const DUE_MAX: usize = 100;
/// Looks between two removals of old rows: half an hour.
const LOOKS_PER_RETENTION: u64 = 3600;

/// `[sandboxes]` of the config.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxSettings {
    /// Life of a sandbox that asks for none.
    pub default_ttl_s: u64,
    /// The longest that may be asked for at a time.
    pub max_ttl_s: u64,
    /// Live sandboxes of one owner.
    pub max_per_owner: u64,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self { default_ttl_s: 3600, max_ttl_s: 7 * 86_400, max_per_owner: 256 }
    }
}

/// What a caller asks for.
#[derive(Debug, Clone, Default)]
pub struct SandboxWish {
    /// Of which profile.
    pub profile: String,
    /// Over which project; none: one of its own.
    pub project_id: Option<String>,
    /// For how long.
    pub ttl_s: Option<u64>,
    /// How long it may lie unused.
    pub idle_s: Option<u64>,
    /// What it is found by.
    pub labels: BTreeMap<String, String>,
    /// The snapshot whose files it begins with; it then has a project of its own.
    pub from_snapshot: Option<SnapshotId>,
}

/// A sandbox as it stands.
#[derive(Debug, Clone)]
pub struct SandboxView {
    /// What the ledger knows of it.
    pub row: SandboxRow,
    /// Whether its time is over and the reaper about to come.
    pub expired: bool,
}

impl SandboxView {
    fn new(row: SandboxRow) -> Self {
        let now = now_ms();
        let idle = row.idle_ms.is_some_and(|idle| row.last_used_ms.saturating_add(idle) <= now);
        Self { expired: idle || row.expires_at_ms <= now, row }
    }
}

/// One capability of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapabilityView {
    /// Which.
    pub capability: Capability,
    /// Whether it can be used.
    pub enabled: bool,
    /// Which operations its profile declares.
    pub operations: Vec<&'static str>,
    /// Why it can't, if it can't.
    pub reason: Option<String>,
}

/// One after the other for each project: nobody gets a workspace that another is just removing.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<ProjectId, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    pub(super) async fn take(&self, project: &ProjectId) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1); // those that nobody holds or waits for
            turns.entry(project.clone()).or_default().clone()
        };
        turn.lock_owned().await
    }
}

fn invalid(field: &str, problem: impl Into<String>) -> Failure {
    Refusal::InvalidField { field: field.to_owned(), problem: problem.into() }.into()
}

/// A fault of the workspace as a failure.
pub(super) fn of_files(error: WorkspaceError) -> Failure {
    Failure::Run(RunError::Workspace(error))
}

fn check_labels(labels: &BTreeMap<String, String>) -> Result<(), Failure> {
    let plain = |text: &str| !text.chars().any(char::is_control);
    match labels
        .iter()
        .find(|(name, value)| name.is_empty() || name.contains('=') || !plain(name.as_str()) || !plain(value.as_str()))
    {
        Some(_) => Err(invalid(
            "labels",
            "a name has at least one character and no =; neither it nor its value has control characters",
        )),
        None => Ok(()),
    }
}

impl Pipeline {
    fn ttl_ms(&self, ttl_s: Option<u64>) -> Result<u64, Failure> {
        let SandboxSettings { default_ttl_s, max_ttl_s, .. } = self.0.settings.sandboxes;
        match ttl_s.unwrap_or(default_ttl_s) {
            ttl if (1..=max_ttl_s).contains(&ttl) => Ok(ttl * 1000),
            _ => Err(invalid("ttl_s", format!("must be 1 to {max_ttl_s}"))),
        }
    }

    /// Makes a sandbox and its workspace.
    pub async fn create_sandbox(&self, call: &Call, wish: SandboxWish) -> Result<SandboxView, Failure> {
        let asked = Begin { profile: Some(wish.profile.clone()), ..call.begin(Operation::Sandbox, "sandbox.create") };
        self.recorded(asked, self.make_sandbox(&call.principal, wish)).await.map(|(view, _)| view)
    }

    async fn make_sandbox(&self, principal: &Principal, wish: SandboxWish) -> Result<SandboxView, Failure> {
        let in_force = self.0.source.current().await;
        let work_bytes = judge_sandbox(principal, &wish.profile, &in_force.profiles)?.limits.get(Limit::WorkBytes);
        if self.draining() {
            return Err(Refusal::Draining.into());
        }
        let ttl_ms = self.ttl_ms(wish.ttl_s)?;
        let max_ttl_s = self.0.settings.sandboxes.max_ttl_s;
        if wish.idle_s.is_some_and(|idle| !(IDLE_MIN_S..=max_ttl_s).contains(&idle)) {
            return Err(invalid("idle_s", format!("must be {IDLE_MIN_S} to {max_ttl_s}")));
        }
        check_labels(&wish.labels)?;
        let named = wish.project_id.as_deref().map(str::parse).transpose();
        let named: Option<ProjectId> =
            named.map_err(|error: crate::model::IdError| invalid("project_id", error.to_string()))?;
        if named.is_some() && wish.from_snapshot.is_some() {
            return Err(invalid("project_id", "a sandbox that begins with a snapshot has a project of its own"));
        }
        let fresh = named.is_none();
        let project_id = named.unwrap_or_else(own_project);
        let _turn = self.0.turns.take(&project_id).await;
        let new = NewSandbox {
            owner: principal.owner.clone(),
            profile: wish.profile,
            project_id: project_id.clone(),
            labels: wish.labels,
            expires_at_ms: now_ms().saturating_add(ttl_ms),
            idle_ms: wish.idle_s.map(|idle| idle * 1000),
        };
        let pipeline = self.clone();
        // Whoever hangs up does not leave half of one.
        let made = tokio::spawn(async move {
            let _turn = _turn;
            if fresh {
                pipeline.make_fresh(new, wish.from_snapshot, work_bytes).await
            } else {
                pipeline.make_over(new, work_bytes).await
            }
        });
        let row = made.await.map_err(|_| Failure::Internal)??;
        tracing::info!(sandbox = %row.id, profile = row.profile, project = %row.project_id, "sandbox created");
        Ok(SandboxView::new(row))
    }

    /// A sandbox over a project that its owner names and may have already.
    async fn make_over(&self, new: NewSandbox, work_bytes: u64) -> Result<SandboxRow, Failure> {
        let (owner, project) = (new.owner.clone(), new.project_id.clone());
        self.on_disk(move |store| store.claim(&owner, &project)).await?;
        self.bound_live(&new.project_id, work_bytes).await?;
        let most = self.0.settings.sandboxes.max_per_owner;
        self.0.ledger.create_sandbox_within(new, most, now_ms()).await.map_err(Failure::Ledger)
    }

    /// A sandbox with a project of its own: prepared aside, then its row, then its name. A start after a kill finds
    /// either both or, by the row, what to do. An empty plain directory it makes again by the row alone, so that one is
    /// prepared while the row is on its way to the disk.
    async fn make_fresh(
        &self,
        new: NewSandbox,
        from: Option<SnapshotId>,
        work_bytes: u64,
    ) -> Result<SandboxRow, Failure> {
        let (owner, project) = (new.owner.clone(), new.project_id.clone());
        let source = match from {
            None => None,
            Some(id) => {
                let found = self.0.ledger.get_snapshot(&owner, None, &id).await.map_err(Failure::Ledger)?;
                // It must not be removed under us.
                Some((self.0.turns.take(&found.project_id).await, found))
            }
        };
        let durable = if source.is_some() { Durable::Now } else { self.0.store.empty_projects() };
        let snapshot = source.as_ref().map(|(_, found)| (found.project_id.clone(), found.id.clone()));
        let preparing = self.on_disk(move |store| {
            let from = snapshot.as_ref().map(|(project, id)| (project, id));
            store.prepare(&owner, &project, from).inspect_err(|_| {
                let _ = store.discard(&project); // the first error counts
            })
        });
        let most = self.0.settings.sandboxes.max_per_owner;
        let project = new.project_id.clone();
        let noting = self.0.ledger.create_sandbox_within(new, most, now_ms());
        let (prepared, row) = match durable {
            Durable::Later => tokio::join!(preparing, noting),
            Durable::Now => (Ok(preparing.await?), noting.await),
        };
        let row = match row {
            Ok(row) => row,
            Err(error) => {
                if prepared.is_ok() {
                    self.on_disk(move |store| store.discard(&project)).await?;
                }
                return Err(Failure::Ledger(error));
            }
        };
        let named = async {
            prepared?;
            self.on_disk(move |store| store.adopt(&project, durable)).await?;
            self.bound_live(&row.project_id, work_bytes).await
        };
        if let Err(failure) = named.await {
            let row = self.0.ledger.delete_sandbox(&row.owner, &row.id, now_ms()).await.map_err(Failure::Ledger)?;
            let pipeline = self.clone();
            tokio::spawn(async move { pipeline.clear_or_log(&row).await }); // it waits for the turn that we have
            return Err(failure);
        }
        Ok(row)
    }

    /// Limits a project's areas from the first file on; each exec sets its own limit again.
    async fn bound_live(&self, project: &ProjectId, bytes: u64) -> Result<(), Failure> {
        if self.0.store.has_volumes() {
            self.0.executor.bound(project, Part::Live, bytes).await.map_err(Failure::Run)?;
        }
        Ok(())
    }

    /// A sandbox of this caller.
    pub async fn sandbox(&self, principal: &Principal, id: &SandboxId) -> Result<SandboxView, Failure> {
        let row = self.0.ledger.get_sandbox(&principal.owner, id).await.map_err(Failure::Ledger)?;
        Ok(SandboxView::new(row))
    }

    /// Sandboxes of this caller, newest first, and where the next page begins.
    pub async fn sandboxes(
        &self,
        principal: &Principal,
        labels: BTreeMap<String, String>,
        after: Option<SandboxId>,
        limit: usize,
    ) -> Result<(Vec<SandboxView>, Option<SandboxId>), Failure> {
        let filter = SandboxFilter { labels };
        let page = self.0.ledger.list_sandboxes(&principal.owner, filter, after, limit).await;
        let page = page.map_err(Failure::Ledger)?;
        Ok((page.items.into_iter().map(SandboxView::new).collect(), page.next))
    }

    /// Gives a sandbox more time, counted from now; it never gets less.
    pub async fn keep_sandbox(
        &self,
        principal: &Principal,
        id: &SandboxId,
        ttl_s: Option<u64>,
    ) -> Result<SandboxView, Failure> {
        let now = now_ms();
        let until = now.saturating_add(self.ttl_ms(ttl_s)?);
        let row = self.0.ledger.keep_sandbox(&principal.owner, id, until, now).await.map_err(Failure::Ledger)?;
        Ok(SandboxView::new(row))
    }

    /// Ends a sandbox: what runs in it is cancelled, its workspace goes. Whoever hangs up does not stop that.
    pub async fn delete_sandbox(&self, call: &Call, id: &SandboxId) -> Result<(), Failure> {
        let asked = Begin { sandbox_id: Some(id.to_string()), ..call.begin(Operation::Sandbox, "sandbox.delete") };
        self.recorded(asked, self.drop_sandbox(&call.principal, id)).await.map(|((), _)| ())
    }

    async fn drop_sandbox(&self, principal: &Principal, id: &SandboxId) -> Result<(), Failure> {
        let row = self.0.ledger.delete_sandbox(&principal.owner, id, now_ms()).await.map_err(Failure::Ledger)?;
        let pipeline = self.clone();
        let cleared = tokio::spawn(async move { pipeline.clear(&row).await }).await;
        cleared.map_err(|_| Failure::Internal)?
    }

    /// What can be done in a sandbox, and why the rest can't.
    pub async fn sandbox_capabilities(
        &self,
        principal: &Principal,
        id: &SandboxId,
    ) -> Result<Vec<CapabilityView>, Failure> {
        let row = self.0.ledger.get_sandbox(&principal.owner, id).await.map_err(Failure::Ledger)?;
        let in_force = self.0.source.current().await;
        Ok(Capability::ALL.iter().map(|&capability| capability_of(&in_force, &row.profile, capability)).collect())
    }

    /// Runs something in a sandbox, under its profile and in its workspace.
    pub async fn exec_in(
        &self,
        call: &Call,
        id: &SandboxId,
        request: ExecRequest,
        session: Option<SessionWish>,
    ) -> Result<Finished, Failure> {
        let request = self.request_in(&call.principal, id, request).await?;
        let ran = self.exec_of(call, &request, Some(id), session).await;
        self.0.ledger.post_touch(id, now_ms());
        ran
    }

    /// A request with the profile and the project of a sandbox.
    pub(super) async fn request_in(
        &self,
        principal: &Principal,
        id: &SandboxId,
        request: ExecRequest,
    ) -> Result<ExecRequest, Failure> {
        let row = self.0.ledger.get_sandbox(&principal.owner, id).await.map_err(Failure::Ledger)?;
        Ok(ExecRequest { profile: row.profile, project_id: Some(row.project_id.to_string()), ..request })
    }

    /// Says that a sandbox is used now; one whose time is over can't be.
    pub(super) async fn use_sandbox(&self, principal: &Principal, id: Option<&SandboxId>) -> Result<(), Failure> {
        let Some(id) = id else { return Ok(()) };
        self.0.ledger.touch_sandbox(&principal.owner, id, now_ms()).await.map(drop).map_err(Failure::Ledger)
    }

    /// Cancels what runs in an ended sandbox and removes its workspace, unless another of its owner's has it.
    async fn clear(&self, row: &SandboxRow) -> Result<(), Failure> {
        self.end_sessions(&row.id).await;
        self.0.admission.cancel_sandbox(&row.id).await;
        self.end_sessions(&row.id).await; // of a call that had just been let in
        self.0.services.forget(&row.id);
        let _turn = self.0.turns.take(&row.project_id).await;
        if !self.0.ledger.project_in_use(&row.owner, &row.project_id).await.map_err(Failure::Ledger)? {
            let (store, owner, project) = (self.0.store.clone(), row.owner.clone(), row.project_id.clone());
            let removed = tokio::task::spawn_blocking(move || store.remove(&owner, &project)).await;
            match removed.map_err(|_| Failure::Internal)? {
                Ok(()) | Err(WorkspaceError::NotYours) => {} // gone is gone
                Err(error) => return Err(of_files(error)),
            }
        }
        self.drop_snapshots_of(&row.id).await?;
        self.0.ledger.sandbox_cleared(&row.id, now_ms()).await.map_err(Failure::Ledger)?;
        tracing::info!(sandbox = %row.id, project = %row.project_id, "sandbox ended");
        Ok(())
    }

    /// Brings ledger and disk together at the start, before the first caller.
    pub async fn reconcile(&self) -> Result<(), LedgerError> {
        let ledger = &self.0.ledger;
        let lost = ledger.close_open_execs(now_ms()).await?;
        if !lost.is_empty() {
            tracing::warn!(execs = lost.len(), "a dead daemon left execs open; they are kept as lost");
        }
        let live = ledger.live_sandboxes().await?;
        let wanted = live.iter().map(|row| row.project_id.clone()).collect();
        if let Err(failure) = self.on_disk(move |store| store.settle_made(&wanted)).await {
            tracing::error!(?failure, "projects that a dead daemon was making are as it left them");
        }
        for row in ledger.uncleared_sandboxes().await? {
            tracing::warn!(sandbox = %row.id, project = %row.project_id, "an ended sandbox still had its workspace");
            self.clear_or_log(&row).await;
        }
        self.reconcile_snapshots().await?;
        let (store, rows) = (self.0.store.clone(), live.clone());
        let mend = move || {
            for row in rows {
                if let Err(WorkspaceError::NotYours) = store.area(&row.owner, &row.project_id, &AreaKind::Work) {
                    let mended = store.claim(&row.owner, &row.project_id);
                    tracing::warn!(sandbox = %row.id, project = %row.project_id, ?mended, "a live sandbox had no workspace");
                }
            }
        };
        let _ = tokio::task::spawn_blocking(mend).await; // a panic is in the log; the sandboxes then say what is wrong
        tracing::info!(sandboxes = live.len(), "sandboxes of the ledger");
        Ok(())
    }

    async fn clear_or_log(&self, row: &SandboxRow) {
        if let Err(failure) = self.clear(row).await {
            tracing::error!(sandbox = %row.id, ?failure, "the workspace of an ended sandbox stays until the next start");
        }
    }

    /// Ends sandboxes whose time is over, and forgets what is old, for as long as the daemon lives.
    pub async fn reap(self) {
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        for look in 0_u64.. {
            ticks.tick().await;
            for busy in self.0.admission.busy_sandboxes() {
                self.0.ledger.post_touch(&busy, now_ms());
            }
            self.end_idle_sessions();
            if let Err(error) = self.end_due().await {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "sandboxes whose time is over can't be ended"
                );
            }
            self.0.kept.forget_old();
            if look % LOOKS_PER_RETENTION == 0 {
                self.forget().await;
            }
        }
    }

    async fn end_due(&self) -> Result<(), LedgerError> {
        for due in self.0.ledger.due_sandboxes(now_ms(), DUE_MAX).await? {
            // None: it was used, prolonged or deleted in the meantime.
            if let Some(row) = self.0.ledger.end_due_sandbox(&due.id, now_ms()).await? {
                let pipeline = self.clone();
                // A large workspace must not keep the others waiting.
                tokio::spawn(async move { pipeline.clear_or_log(&row).await });
            }
        }
        Ok(())
    }
}

/// A project that nobody else has: an id's digits never come again.
fn own_project() -> ProjectId {
    SandboxId::generate().as_str().replacen('_', "-", 1).parse().expect("letters, digits and a hyphen")
}

fn capability_of(in_force: &InForce, profile: &str, capability: Capability) -> CapabilityView {
    let disabled = |operations, reason| CapabilityView { capability, enabled: false, operations, reason: Some(reason) };
    let Some((index, found)) = in_force.profiles.find(profile) else {
        return disabled(Vec::new(), format!("the profile {profile} is not there any more"));
    };
    let operations = found.capabilities().operations(capability);
    if operations.is_empty() {
        return disabled(operations, format!("the profile {profile} does not declare it"));
    }
    if in_force.lacking.get(usize::from(index)).is_some_and(|lacking| lacking.contains(capability)) {
        let programs = capability.programs().join(", ");
        return disabled(operations, format!("the root of the profile {profile} has none of {programs}"));
    }
    CapabilityView { capability, enabled: true, operations, reason: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_of_its_own_is_a_name_that_a_project_may_have() {
        let project = own_project();
        assert!(project.as_str().starts_with("sb-") && project != own_project(), "{project}");
    }

    #[tokio::test]
    async fn turns_of_one_project_come_one_after_the_other() {
        let turns = Turns::default();
        let [one, two]: [ProjectId; 2] = ["one", "two"].map(|id| id.parse().expect("an id"));
        let first = turns.take(&one).await;
        let _other = turns.take(&two).await; // does not wait
        let waiting = turns.take(&one);
        tokio::pin!(waiting);
        assert!(tokio::time::timeout(Duration::from_millis(20), waiting.as_mut()).await.is_err());
        drop(first);
        let _second = waiting.await;
    }

    #[test]
    fn labels_are_plain_words() {
        let labels = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
        assert!(check_labels(&labels("team", "a=b ü")).is_ok());
        for (name, value) in [("", "x"), ("a=b", "x"), ("a\n", "x"), ("a", "x\0")] {
            assert!(check_labels(&labels(name, value)).is_err(), "{name:?} {value:?}");
        }
    }
}
