//! `/v1/sandboxes/{id}/snapshots` and `/v1/store`.

use super::error::ApiError;
use super::handlers::{Body, Path, RequestId, State};
use super::openapi::{Param, op};
use super::routes::{Route, delete, get, page, post};
use super::sandboxes::answer as sandbox_answer;
use super::wire::{
    ChangeAnswer, ChangesAnswer, ForkRequest, NewSnapshotRequest, SandboxAnswer, SnapshotAnswer, SnapshotsAnswer,
    StoreAnswer,
};
use super::words::Words;
use crate::ledger::SnapshotRow;
use crate::model::{Principal, SandboxId, SnapshotId, Timestamp};
use crate::pipeline::{Call, DiffWish, Failure, SandboxWish};
use crate::workspace::{Change, Changes, DiffPage};
use axum::extract::State as AxumState;
use axum::http::StatusCode;
use axum::{Extension, Json};
use serde_json::json;

/// The most changes in one page.
const PAGE_MAX: usize = 1000;

/// Its routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        post(
            "/v1/sandboxes/{sandbox_id}/snapshots",
            create,
            op("create_snapshot", "Keep work and inputs as they are now, at once at any size.")
                .takes::<NewSnapshotRequest>()
                .keyed()
                .answers::<SnapshotAnswer>(201, "It is kept.")
                .makes("snapshot_id")
                .fails(&[403, 409, 429, 507]),
        ),
        get(
            "/v1/sandboxes/{sandbox_id}/snapshots",
            list,
            op("list_snapshots", "The snapshots of a sandbox, newest first.")
                .answers::<SnapshotsAnswer>(200, "All of them."),
        ),
        delete(
            "/v1/sandboxes/{sandbox_id}/snapshots/{snapshot_id}",
            remove,
            op("delete_snapshot", "Remove a snapshot.").sends(204, "It is gone.", &[]).fails(&[403, 409]),
        ),
        post(
            "/v1/sandboxes/{sandbox_id}/snapshots/{snapshot_id}/restore",
            restore,
            op("restore_snapshot", "Bring work and inputs back, whole or not at all; not while anything runs.")
                .sends(204, "They are as the snapshot has them.", &[])
                .fails(&[403, 409, 507]),
        ),
        post(
            "/v1/sandboxes/{sandbox_id}/snapshots/{snapshot_id}/fork",
            fork,
            op("fork_snapshot", "Make a new sandbox with the files of a snapshot.")
                .takes::<ForkRequest>()
                .keyed()
                .answers::<SandboxAnswer>(201, "It is there.")
                .fails(&[403, 409, 429, 507]),
        ),
        get(
            "/v1/sandboxes/{sandbox_id}/snapshots/{snapshot_id}/diff",
            diff,
            op("diff_snapshot", "Which paths of the work area changed since a snapshot.")
                .query([Param::text("to", "Another snapshot of the sandbox; the files as they are now if left out.")
                    .like(json!({"type": "string", "pattern": "^sn_[0-9a-hjkmnp-tv-z]{26}$"}))])
                .query(page(1000, ""))
                .answers::<ChangesAnswer>(200, "A page of them.")
                .fails(&[400, 403, 409]),
        ),
        get(
            "/v1/store",
            store,
            op("show_store", "Where workspaces lie, and what holds there.").answers::<StoreAnswer>(200, "It."),
        ),
    ]
}

fn answer(row: SnapshotRow) -> SnapshotAnswer {
    SnapshotAnswer {
        snapshot_id: row.id.to_string(),
        sandbox_id: row.sandbox_id.to_string(),
        name: row.name,
        created_at: Timestamp::from_ms(row.created_at_ms),
    }
}

/// Changes as callers read them.
pub(super) fn changes(changes: Changes) -> ChangesAnswer {
    let items = changes.items.into_iter().map(|changed| ChangeAnswer {
        path: changed.path.to_string_lossy().into_owned(),
        change: match changed.change {
            Change::Added => "added",
            Change::Modified => "modified",
            Change::Deleted => "deleted",
        }
        .to_owned(),
        kind: changed.kind.name().to_owned(),
        size: changed.size,
        old_size: changed.old_size,
    });
    ChangesAnswer { items: items.collect(), next_cursor: changes.next, complete: changes.complete }
}

fn failed(id: &RequestId) -> impl Fn(Failure) -> ApiError + '_ {
    |failure| ApiError::from(failure).of_request(&id.0)
}

fn ids((sandbox, snapshot): (String, String)) -> (SandboxId, SnapshotId) {
    (SandboxId::from(sandbox), SnapshotId::from(snapshot))
}

async fn create(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
    Body(request): Body<NewSnapshotRequest>,
) -> Result<(StatusCode, Json<SnapshotAnswer>), ApiError> {
    let taken = state.pipeline.take_snapshot(&call, &SandboxId::from(sandbox), request.name).await;
    Ok((StatusCode::CREATED, Json(answer(taken.map_err(failed(&id))?))))
}

async fn list(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
) -> Result<Json<SnapshotsAnswer>, ApiError> {
    let rows = state.pipeline.snapshots(&principal, &SandboxId::from(sandbox)).await.map_err(failed(&id))?;
    Ok(Json(SnapshotsAnswer { items: rows.into_iter().map(answer).collect(), next_cursor: None }))
}

async fn remove(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(path): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let (sandbox, snapshot) = ids(path);
    state.pipeline.remove_snapshot(&call, &sandbox, &snapshot).await.map_err(failed(&id))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn restore(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(path): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let (sandbox, snapshot) = ids(path);
    state.pipeline.restore_snapshot(&call, &sandbox, &snapshot).await.map_err(failed(&id))?;
    Ok(StatusCode::NO_CONTENT)
}

async fn fork(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(path): Path<(String, String)>,
    Body(request): Body<ForkRequest>,
) -> Result<(StatusCode, Json<SandboxAnswer>), ApiError> {
    let (sandbox, snapshot) = ids(path);
    let ForkRequest { profile, ttl_s, idle_s, labels } = request;
    let wish = SandboxWish { ttl_s, idle_s, labels, ..SandboxWish::default() };
    let view = state.pipeline.fork_snapshot(&call, &sandbox, &snapshot, profile, wish).await.map_err(failed(&id))?;
    Ok((StatusCode::CREATED, Json(sandbox_answer(view))))
}

async fn diff(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(path): Path<(String, String)>,
    mut words: Words,
) -> Result<Json<ChangesAnswer>, ApiError> {
    let (sandbox, from) = ids(path);
    let read = |words: &mut Words| Ok((words.take("to")?, words.take("cursor")?, words.limit()?));
    let (to, after, limit) = read(&mut words).map_err(|error: ApiError| error.of_request(&id.0))?;
    let page = DiffPage { after, limit: limit.min(PAGE_MAX) };
    let wish = DiffWish { from, to: to.map(SnapshotId::from), page };
    let found = state.pipeline.diff_snapshot(&call, &sandbox, wish).await.map_err(failed(&id))?;
    Ok(Json(changes(found)))
}

async fn store(AxumState(state): AxumState<State>) -> Json<StoreAnswer> {
    let store = &state.doctor.host().store;
    let (bytes_total, bytes_free) = state.pipeline.store_room();
    Json(StoreAnswer {
        driver: store.driver.to_owned(),
        enforced: store.lacking.is_none(),
        snapshots: store.lacking.is_none(),
        bytes_total,
        bytes_free,
        lacking: store.lacking.clone(),
    })
}
