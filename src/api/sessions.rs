//! `/v1/sandboxes/{id}/sessions`: interpreters that are kept between execs. They begin with an exec that names one.

use super::error::ApiError;
use super::handlers::{Path, RequestId, State};
use super::openapi::op;
use super::routes::{Route, delete, get, post};
use super::wire::{SessionAnswer, SessionsAnswer};
use crate::model::{Principal, SandboxId, Timestamp};
use crate::pipeline::{Call, Failure, SessionView};
use axum::extract::State as AxumState;
use axum::http::StatusCode;
use axum::{Extension, Json};

/// Its routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        get(
            "/v1/sandboxes/{sandbox_id}/sessions",
            list,
            op("list_sessions", "Interpreters that are kept between execs.")
                .answers::<SessionsAnswer>(200, "All of them."),
        ),
        get(
            "/v1/sandboxes/{sandbox_id}/sessions/{session_name}",
            show,
            op("show_session", "A session as it stands.").answers::<SessionAnswer>(200, "It."),
        ),
        delete(
            "/v1/sandboxes/{sandbox_id}/sessions/{session_name}",
            remove,
            op("delete_session", "End its interpreter and forget it.").sends(204, "It is gone.", &[]),
        ),
        post(
            "/v1/sandboxes/{sandbox_id}/sessions/{session_name}/reset",
            reset,
            op("reset_session", "End its interpreter; the next call begins with a new one.")
                .answers::<SessionAnswer>(200, "It as it stands."),
        ),
        post(
            "/v1/sandboxes/{sandbox_id}/sessions/{session_name}/interrupt",
            interrupt,
            op("interrupt_session", "Interrupt the call that runs, as Ctrl-C would.")
                .answers::<SessionAnswer>(200, "It as it stands."),
        ),
    ]
}

fn answer(view: SessionView) -> SessionAnswer {
    SessionAnswer {
        name: view.name,
        kind: view.kind,
        state: view.state,
        died: view.died,
        calls: view.calls,
        running_exec_id: view.running.map(|exec| exec.to_string()),
        waiting: view.waiting,
        created_at: Timestamp::from_ms(view.created_at_ms),
        last_used_at: Timestamp::from_ms(view.last_used_ms),
        idle_s: view.idle_s,
    }
}

fn failed(id: &RequestId) -> impl Fn(Failure) -> ApiError + '_ {
    |failure| ApiError::from(failure).of_request(&id.0)
}

pub(super) async fn list(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
) -> Result<Json<SessionsAnswer>, ApiError> {
    let views = state.pipeline.sessions(&principal, &SandboxId::from(sandbox)).await.map_err(failed(&id))?;
    Ok(Json(SessionsAnswer { items: views.into_iter().map(answer).collect(), next_cursor: None }))
}

pub(super) async fn show(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    Path((sandbox, name)): Path<(String, String)>,
) -> Result<Json<SessionAnswer>, ApiError> {
    let view = state.pipeline.session(&principal, &SandboxId::from(sandbox), &name).await;
    view.map(|view| Json(answer(view))).map_err(failed(&id))
}

pub(super) async fn remove(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path((sandbox, name)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    state.pipeline.remove_session(&call, &SandboxId::from(sandbox), &name).await.map_err(failed(&id))?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn reset(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path((sandbox, name)): Path<(String, String)>,
) -> Result<Json<SessionAnswer>, ApiError> {
    let view = state.pipeline.reset_session(&call, &SandboxId::from(sandbox), &name).await;
    view.map(|view| Json(answer(view))).map_err(failed(&id))
}

pub(super) async fn interrupt(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path((sandbox, name)): Path<(String, String)>,
) -> Result<Json<SessionAnswer>, ApiError> {
    let view = state.pipeline.interrupt_session(&call, &SandboxId::from(sandbox), &name).await;
    view.map(|view| Json(answer(view))).map_err(failed(&id))
}
