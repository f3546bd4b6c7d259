//! What is kept of an exec: a row in the ledger, and with a project the record in its artifacts directory.
//!
//! Rows are posted, not waited for: what must be durable before the first instruction is evidence's business. An exec
//! without a project leaves nothing on disk, so that the way that is taken most stays the fastest.

use super::admission::Listed;
use super::{Failure, Finished, Judged, Pipeline, now_ms};
use crate::executor::RunError;
use crate::ledger::{ExecEnded, ExecFilter, ExecNote, ExecPage, ExecRow, ExecStarted, LedgerError, OldExec};
use crate::model::{Ending, ExecId, ExecRequest, Limit, Limits, Mode, Principal, Timestamp, Usage};
use crate::policy::{Permit, Refusal};
use crate::terms::{Safety, SideEffects};
use crate::workspace::{AreaKind, Manifest, ManifestBounds};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Entries of an artifacts directory that are listed.
const ENTRIES_MAX: u64 = 10_000;
/// What our own files may add to what a program may leave.
const OWN_BYTES: u64 = 16 << 20;
const DAY_MS: u64 = 86_400_000;
/// Bytes of a caller's own reference.
const REFERENCE_MAX: usize = 256;

/// `[retention]` of the config.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionSettings {
    /// Days for which it is known what ran.
    pub exec_days: u64,
    /// Execs of one owner that are known; beyond it the oldest go.
    pub execs_per_owner: u64,
}

impl Default for RetentionSettings {
    fn default() -> Self {
        Self { exec_days: 30, execs_per_owner: 100_000 }
    }
}

/// What an exec left in its project.
#[derive(Debug, Clone)]
pub struct Left {
    /// Its directory, as callers know it.
    pub directory: String,
    /// What is in it; none if that could not be written down.
    pub manifest: Option<Manifest>,
}

/// The row of an exec that runs. Dropped without an end, it was not started.
pub(super) struct Noted {
    /// None: it could not be noted.
    note: Option<ExecNote>,
    exec: ExecId,
    queued_at_ms: u64,
    /// None: it waits for a place.
    started_at_ms: Option<u64>,
    end: Option<ExecEnded>,
}

impl Noted {
    fn end(&self, ending: Ending, error_reason: Option<String>) -> ExecEnded {
        ExecEnded {
            exec_id: self.exec.clone(),
            ending,
            exit_code: None,
            signal: None,
            error_reason,
            started_at_ms: self.started_at_ms,
            ended_at_ms: now_ms(),
            stdout_truncated: false,
            stderr_truncated: false,
            usage: Usage::default(),
            evidence_end: None,
        }
    }

    /// It has a place.
    pub(super) fn starts(&mut self) {
        self.started_at_ms = Some(now_ms());
        if let Some(note) = &mut self.note {
            note.runs(self.started_at_ms, None);
        }
    }

    /// It was begun under this record.
    pub(super) fn begun(&mut self, begin: String) {
        if let Some(note) = &mut self.note {
            note.runs(None, Some(begin));
        }
    }

    /// It ended like this.
    pub(super) fn ended(&mut self, finished: &Finished) {
        let outcome = &finished.outcome;
        self.end = Some(ExecEnded {
            evidence_end: Some(finished.evidence.1.to_string()),
            exit_code: outcome.exit_code,
            signal: outcome.signal.clone(),
            stdout_truncated: outcome.stdout.truncated(),
            stderr_truncated: outcome.stderr.truncated(),
            usage: outcome.usage,
            ..self.end(outcome.ending, outcome.start_error.clone())
        });
    }

    /// It could not be run.
    pub(super) fn failed(&mut self, failure: &Failure) {
        let (ending, reason) = match failure {
            Failure::Run(RunError::Gone(gone)) => (Ending::Lost, gone.to_string()),
            Failure::Run(error) => (Ending::FailedToStart, error.to_string()),
            Failure::Ledger(error) => (Ending::FailedToStart, error.to_string()),
            Failure::Evidence(error) => (Ending::FailedToStart, error.to_string()),
            Failure::Refused(Refusal::CancelledInQueue) => {
                (Ending::Cancelled, "cancelled, or left by its caller, while it waited for a place".to_owned())
            }
            Failure::Refused(_) | Failure::Internal => return,
        };
        self.end = Some(self.end(ending, Some(reason)));
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let end = self
            .end
            .take()
            .unwrap_or_else(|| self.end(Ending::FailedToStart, Some("refused; its caller was told why".to_owned())));
        if let Some(note) = &mut self.note {
            note.ended(end);
        }
    }
}

/// The policy of an exec, as its row keeps it.
#[derive(Serialize)]
struct PolicyNote<'a> {
    profile_hash: &'a str,
    policy_version_hash: &'a str,
    limits: &'a Limits,
    safety: Safety,
    side_effects: &'a SideEffects,
    session: Option<&'a str>,
}

/// Refuses a reference that the ledger could not keep.
pub(super) fn check_reference(request: &ExecRequest) -> Result<(), Refusal> {
    match &request.task_ref {
        Some(reference) if reference.len() > REFERENCE_MAX => Err(Refusal::InvalidField {
            field: "task_ref".to_owned(),
            problem: format!("has at most {REFERENCE_MAX} bytes"),
        }),
        _ => Ok(()),
    }
}

impl Pipeline {
    /// Takes note that an exec starts, or waits for a place. One that starts now and whose caller waits is posted when the
    /// warden is at work on it.
    pub(super) fn note(&self, listed: &Listed, judged: &Judged, started_at_ms: Option<u64>) -> Noted {
        let Judged { permit, request, in_force, .. } = judged;
        let policy = PolicyNote {
            profile_hash: permit.profile_hash(),
            policy_version_hash: &in_force.version_hash,
            limits: permit.limits(),
            safety: permit.safety(),
            side_effects: permit.side_effects(),
            session: listed.session.as_ref().map(|wish| wish.name.as_str()),
        };
        let row = ExecStarted {
            exec_id: listed.exec.clone(),
            owner: permit.owner().clone(),
            sandbox_id: listed.sandbox.clone(),
            project_id: permit.project().cloned(),
            task_ref: request.task_ref.clone(),
            skill_id: request.skill_id.clone(),
            grant_id: permit.grant().cloned(),
            profile: permit.profile_id().to_owned(),
            kind: permit.kind(),
            command: permit.command().to_owned(),
            args: request.exec.args.clone(), // the permit's own hold the code
            cwd: Some(permit.cwd().to_owned()).filter(|cwd| !cwd.is_empty()),
            env_keys: permit.env().keys().cloned().collect(),
            policy: serde_json::to_string(&policy).expect("a policy holds nothing that JSON lacks"),
            queued_at_ms: listed.at_ms,
            started_at_ms,
            artifacts_path: permit.artifacts_path(&listed.exec),
            evidence_begin: None,
        };
        let failed = |error: &LedgerError| {
            tracing::error!(exec = %listed.exec, error = error as &dyn std::error::Error, "an exec has no row");
        };
        let mut note = self.0.ledger.note_exec(row).inspect_err(failed).ok();
        match (&mut note, permit.mode()) {
            (Some(note), Mode::Background | Mode::Stream) => note.post_at_once(),
            (Some(note), Mode::Wait) if started_at_ms.is_none() => note.post(),
            (Some(_), Mode::Wait) | (None, _) => {}
        }
        Noted { note, exec: listed.exec.clone(), queued_at_ms: listed.at_ms, started_at_ms, end: None }
    }

    /// Writes down what an exec left, if it had a project. A disk that is full does not undo an exec that ran.
    pub(super) async fn keep(
        &self,
        listed: &Listed,
        judged: &Judged,
        noted: &Noted,
        finished: &Finished,
    ) -> Option<Left> {
        let outcome = &finished.outcome;
        let (permit, exec) = (&judged.permit, &listed.exec);
        let (project, directory) = (permit.project()?.clone(), permit.artifacts_path(exec)?);
        let meta = meta(listed, judged, noted, finished);
        let (store, owner, kind) = (self.0.store.clone(), permit.owner().clone(), AreaKind::Artifacts(exec.clone()));
        let (stdout, stderr) = (outcome.stdout.kept.clone(), outcome.stderr.kept.clone());
        let bytes = permit.limits().get(Limit::ArtifactsBytes).saturating_add(OWN_BYTES);
        let record = move || {
            let area = store.area(&owner, &project, &kind)?;
            area.record(&stdout, &stderr, &meta, ManifestBounds { entries: ENTRIES_MAX, bytes })
        };
        let manifest = match tokio::task::spawn_blocking(record).await {
            Ok(Ok(manifest)) => Some(manifest),
            Ok(Err(error)) => {
                tracing::error!(%exec, error = &error as &dyn std::error::Error, "what an exec left is not recorded");
                None
            }
            Err(panic) => {
                tracing::error!(%exec, %panic, "what an exec left is not recorded");
                None
            }
        };
        Some(Left { directory, manifest })
    }

    /// How many files an exec left in its project, and their bytes, before ours are beside them.
    pub(super) async fn weigh(&self, permit: &Permit, exec: &ExecId) -> (u64, u64) {
        let Some(project) = permit.project().cloned() else { return (0, 0) };
        let (store, owner, kind) = (self.0.store.clone(), permit.owner().clone(), AreaKind::Artifacts(exec.clone()));
        let bounds = ManifestBounds { entries: ENTRIES_MAX, bytes: 0 }; // sizes only, no digests
        let weigh = move || store.area(&owner, &project, &kind)?.manifest(bounds);
        match tokio::task::spawn_blocking(weigh).await {
            Ok(Ok(manifest)) => {
                let bytes = manifest.files.iter().fold(0_u64, |sum, file| sum.saturating_add(file.size));
                (manifest.files.len() as u64, bytes)
            }
            // What can't be counted is not paid for; the record of what it left says the same a moment later.
            Ok(Err(error)) => {
                tracing::error!(%exec, error = &error as &dyn std::error::Error, "what an exec left is not counted");
                (0, 0)
            }
            Err(_) => (0, 0),
        }
    }

    /// An exec of this caller.
    pub async fn exec_row(&self, principal: &Principal, id: &ExecId) -> Result<ExecRow, Failure> {
        self.0.ledger.get_exec(&principal.owner, id).await.map_err(Failure::Ledger)
    }

    /// Execs of this caller, newest first.
    pub async fn execs(
        &self,
        principal: &Principal,
        filter: ExecFilter,
        after: Option<ExecId>,
        limit: usize,
    ) -> Result<ExecPage, Failure> {
        self.0.ledger.list_execs(&principal.owner, filter, after, limit).await.map_err(Failure::Ledger)
    }

    /// Forgets execs that are older than anybody wants to know, with what they left. Files go before rows: whoever dies in
    /// between finds the rows again at the next start.
    pub(super) async fn forget(&self) {
        let RetentionSettings { exec_days, execs_per_owner } = self.0.settings.retention;
        let before = now_ms().saturating_sub(exec_days.saturating_mul(DAY_MS));
        let forgotten = async {
            let mut all = 0;
            loop {
                let old = self.0.ledger.old_execs(before, execs_per_owner).await?;
                let gone = self.remove_artifacts(old).await;
                match self.0.ledger.forget_execs(gone).await? {
                    0 => break, // none is left, or what is left can't be removed: the next look tries again
                    some => all += some,
                }
            }
            Ok::<_, LedgerError>(all + self.0.ledger.forget_sandboxes(before).await?)
        };
        match forgotten.await {
            Ok(0) => {}
            Ok(rows) => tracing::info!(rows, "forgot old execs and sandboxes"),
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "old execs and sandboxes can't be forgotten");
            }
        }
    }
}

impl Pipeline {
    /// Removes what these execs left; which of them have nothing any more.
    async fn remove_artifacts(&self, old: Vec<OldExec>) -> Vec<ExecId> {
        let store = self.0.store.clone();
        let remove = move || {
            let removed = |OldExec { exec_id, owner, project_id }: OldExec| {
                let Some(project) = project_id else { return Some(exec_id) };
                match store.remove_artifacts(&owner, &project, &exec_id) {
                    Ok(()) => Some(exec_id),
                    Err(error) => {
                        tracing::error!(exec = %exec_id, error = &error as &dyn std::error::Error, "old artifacts stay");
                        None
                    }
                }
            };
            old.into_iter().filter_map(removed).collect()
        };
        tokio::task::spawn_blocking(remove).await.unwrap_or_default() // a panic is in the log; the next look tries again
    }
}

/// `meta.json`: what stood around the exec. No code, no values of variables.
fn meta(listed: &Listed, judged: &Judged, noted: &Noted, finished: &Finished) -> serde_json::Value {
    let (outcome, (begin, end)) = (&finished.outcome, &finished.evidence);
    let Judged { permit, request, in_force, .. } = judged;
    let stream = |output: &crate::model::Output| json!({"bytes": output.total, "truncated": output.truncated()});
    json!({
        "exec_id": listed.exec,
        "sandbox_id": listed.sandbox,
        "session": outcome.call,
        "project_id": permit.project(),
        "task_ref": request.task_ref,
        "grant_id": permit.grant(),
        "kind": permit.kind(),
        "command": permit.command(),
        "args": request.exec.args,
        "cwd": permit.cwd(),
        "env_keys": permit.env().keys().collect::<Vec<_>>(),
        "policy": {
            "profile": permit.profile_id(),
            "profile_hash": permit.profile_hash(),
            "policy_version_hash": in_force.version_hash,
            "safety": permit.safety(),
            "side_effects": permit.side_effects(),
            "limits": permit.limits(),
        },
        "mounts": [
            {"path": "/workspace/inputs", "access": "ro"},
            {"path": "/workspace/work", "access": "rw"},
            {"path": "/workspace/artifacts", "access": "rw"},
        ],
        "status": outcome.ending,
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "start_error": outcome.start_error,
        "stdout": stream(&outcome.stdout),
        "stderr": stream(&outcome.stderr),
        "queued_at": Timestamp::from_ms(noted.queued_at_ms),
        "started_at": noted.started_at_ms.map(Timestamp::from_ms),
        "ended_at": Timestamp::from_ms(now_ms()),
        "usage": outcome.usage,
        "limits_hit": outcome.limits_hit,
        "enforcement": outcome.enforcement,
        "log": listed.session.is_none().then(|| super::kept::written_down(&listed.live.log)),
        "evidence": {"begin": begin.to_string(), "end": end.to_string()},
    })
}
