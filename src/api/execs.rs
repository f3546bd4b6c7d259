//! `/v1/execs`: what ran, and what it left.

use super::download::{self, Wanted};
use super::error::ApiError;
use super::files::{FILE, a_file};
use super::handlers::{Path, RequestId, State};
use super::openapi::{Op, Param, op};
use super::routes::{Route, delete, get, page, post};
use super::snapshots::changes;
use super::wire::{ArtifactAnswer, ArtifactsAnswer, EvidencePair, ExecAnswer, ExecRecord, ExecsAnswer, LaunchedAnswer};
use super::words::Words;
use super::{handlers, live};
use crate::ledger::{ExecFilter, ExecRow, ExecStatus};
use crate::model::ExecRequest;
use crate::model::{ExecId, Principal, SandboxId, Timestamp};
use crate::pipeline::{Call, Failure, FileWish, Finished};
use crate::policy::{FileArea, Refusal};
use crate::workspace::{Artifact, ManifestBounds};
use axum::extract::State as AxumState;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::{Extension, Json};
use serde_json::json;

/// How much of an artifacts directory one list looks at.
const BOUNDS: ManifestBounds = ManifestBounds { entries: 10_000, bytes: 256 << 20 };

/// What an exec can be answered with beside its outcome.
const EXEC: &[u16] = &[400, 403, 404, 409, 429, 502, 504, 507];
pub(super) fn an_exec(op: Op) -> Op {
    op.keyed()
        .answers::<ExecAnswer>(200, "It ran, whatever its program did; with `mode` `stream` its events.")
        .or_as(live::EVENTS)
        .answers::<LaunchedAnswer>(202, "With `mode` `background`: it runs, or waits for a place.")
        .fails(EXEC)
}

/// Its routes.
pub(super) fn routes() -> Vec<Route> {
    let exec_states = "queued running ok nonzero_exit signaled timed_out oom_killed cpu_exceeded cancelled revoked lost failed_to_start";
    let exec_states: Vec<&str> = exec_states.split(' ').collect();
    vec![
        post(
            "/v1/execs",
            handlers::run_exec,
            an_exec(op("run_exec", "Run a program to its end.").takes::<ExecRequest>()).makes("exec_id"),
        ),
        get(
            "/v1/execs",
            list,
            op("list_execs", "What ran, newest first.")
                .query([
                    Param::text("task_id", "With this `task_ref`."),
                    Param::text("sandbox_id", "In this sandbox."),
                    Param::text("project_id", "In this project.")
                        .like(json!({"type": "string", "pattern": "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$"})),
                    Param::one_of("status", "In this state.", &exec_states),
                    Param::number("since_ms", "That came from this moment on, in milliseconds since 1970."),
                    Param::number("until_ms", "That came before this moment."),
                ])
                .query(page(1000, "exec_id"))
                .answers::<ExecsAnswer>(200, "A page of them.")
                .fails(&[404]),
        ),
        get(
            "/v1/execs/{exec_id}",
            show,
            op("show_exec", "What is known of an exec.").answers::<ExecRecord>(200, "Its record."),
        ),
        delete(
            "/v1/execs/{exec_id}",
            handlers::cancel_exec,
            op("cancel_exec", "End an exec.").sends(202, "It is being ended.", &[]),
        ),
        get(
            "/v1/execs/{exec_id}/artifacts",
            artifacts,
            op("list_artifacts", "What an exec left.").answers::<ArtifactsAnswer>(200, "Every file.").fails(FILE),
        ),
        get(
            "/v1/execs/{exec_id}/artifacts/{*path}",
            artifact_file,
            a_file(op("download_artifact", "One file that an exec left.")),
        ),
    ]
}

fn artifact(artifact: &Artifact) -> ArtifactAnswer {
    ArtifactAnswer {
        path: artifact.path.to_string_lossy().into_owned(),
        size: artifact.size,
        sha256: artifact.sha256.clone(),
    }
}

/// The answer to an exec that ran.
pub(super) fn answer_of(finished: Finished) -> ExecAnswer {
    let (begin, end) = finished.evidence;
    let mut answer = ExecAnswer::new(finished.exec.to_string(), finished.profile, finished.outcome);
    answer.risk = serde_json::to_value(&finished.risk).unwrap_or_default();
    answer.evidence = Some(EvidencePair { begin: begin.to_string(), end: end.to_string() });
    answer.files = finished.files.map(changes);
    if let Some(left) = finished.left {
        answer.stdout_path = Some(format!("{}/stdout.txt", left.directory));
        answer.stderr_path = Some(format!("{}/stderr.txt", left.directory));
        answer.artifacts = left.manifest.map(|manifest| manifest.files.iter().map(artifact).collect());
        answer.artifacts_dir = Some(left.directory);
    }
    answer
}

pub(super) fn record(row: ExecRow) -> ExecRecord {
    let ExecRow { started, status, .. } = row;
    let at = |at_ms: Option<u64>| at_ms.map(Timestamp::from_ms);
    ExecRecord {
        exec_id: started.exec_id.to_string(),
        status: status.name(),
        sandbox_id: started.sandbox_id.map(|id| id.to_string()),
        project_id: started.project_id.map(|id| id.to_string()),
        task_ref: started.task_ref,
        skill_id: started.skill_id,
        grant_id: started.grant_id.map(|id| id.to_string()),
        profile: started.profile,
        kind: crate::policy::capability_of(started.kind).name().to_owned(),
        command: started.command,
        args: started.args,
        cwd: started.cwd,
        env_keys: started.env_keys,
        policy: serde_json::from_str(&started.policy).unwrap_or_default(),
        exit_code: row.exit_code,
        signal: row.signal,
        error_reason: row.error_reason,
        queued_at: Timestamp::from_ms(started.queued_at_ms),
        started_at: at(started.started_at_ms),
        ended_at: at(row.ended_at_ms),
        duration_ms: row.duration_ms,
        stdout_truncated: row.stdout_truncated,
        stderr_truncated: row.stderr_truncated,
        usage: row.usage,
        artifacts_dir: started.artifacts_path,
        evidence_begin: started.evidence_begin,
        evidence_end: row.evidence_end,
    }
}

fn failed(id: &RequestId) -> impl Fn(Failure) -> ApiError + '_ {
    |failure| ApiError::from(failure).of_request(&id.0)
}

fn exec_id(id: &RequestId, given: &str) -> Result<ExecId, ApiError> {
    given.parse().map_err(|_| ApiError::from(Refusal::NoSuchExec).of_request(&id.0))
}

/// Filter, cursor and limit.
fn read(words: &mut Words) -> Result<(ExecFilter, Option<ExecId>, usize), ApiError> {
    let unknown = |field: &'static str| move |_| ApiError::field(field, "is no such id");
    let status = words.take("status")?.map(|name| {
        let known = "queued, running, ok, nonzero_exit, signaled, timed_out, oom_killed, cpu_exceeded, cancelled, \
             revoked, lost, failed_to_start";
        let unknown = || ApiError::field("status", format!("is not known; there are {known}"));
        ExecStatus::from_name(&name).ok_or_else(unknown)
    });
    let filter = ExecFilter {
        task_ref: words.take("task_id")?,
        sandbox_id: words.take("sandbox_id")?.map(SandboxId::from),
        project_id: words.take("project_id")?.map(|id| id.parse().map_err(unknown("project_id"))).transpose()?,
        status: status.transpose()?,
        since_ms: words.number("since_ms")?,
        until_ms: words.number("until_ms")?,
    };
    let after = words.take("cursor")?.map(|id| id.parse().map_err(unknown("cursor"))).transpose()?;
    Ok((filter, after, words.limit()?))
}

pub(super) async fn list(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    mut words: Words,
) -> Result<Json<ExecsAnswer>, ApiError> {
    let (filter, after, limit) = read(&mut words).map_err(|error| error.of_request(&id.0))?;
    words.end().map_err(|error| error.of_request(&id.0))?;
    let page = state.pipeline.execs(&principal, filter, after, limit).await.map_err(failed(&id))?;
    let items = page.items.into_iter().map(record).collect();
    Ok(Json(ExecsAnswer { items, next_cursor: page.next.map(|next| next.to_string()) }))
}

pub(super) async fn show(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    Path(exec): Path<String>,
) -> Result<Json<ExecRecord>, ApiError> {
    let exec = exec_id(&id, &exec)?;
    let row = state.pipeline.exec_row(&principal, &exec).await.map_err(failed(&id))?;
    Ok(Json(record(row)))
}

pub(super) async fn artifacts(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(exec): Path<String>,
) -> Result<Json<ArtifactsAnswer>, ApiError> {
    let exec = exec_id(&id, &exec)?;
    let manifest = state.pipeline.artifacts_of(&call, &exec, BOUNDS).await.map_err(failed(&id))?;
    let items = manifest.files.iter().map(artifact).collect();
    Ok(Json(ArtifactsAnswer { items, complete: manifest.complete, next_cursor: None }))
}

pub(super) async fn artifact_file(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path((exec, path)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let exec = exec_id(&id, &exec)?;
    let wish = FileWish { area: FileArea::Artifacts(exec.clone()), path, ..FileWish::default() };
    let wanted = Wanted::read(&headers);
    let sent = state.pipeline.download_artifact(&call, &exec, wish, move |meta| wanted.choose(meta)).await;
    sent.map(download::response).map_err(failed(&id))
}
