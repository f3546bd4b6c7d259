//! `/v1/confirmations`: what waits for a person, and the person's answer.

use super::error::ApiError;
use super::handlers::{Body, Path, RequestId, State};
use super::openapi::op;
use super::routes::{Route, get, post};
use super::wire::{ApproveRequest, ConfirmationsAnswer, DenyRequest, EditRequest};
use crate::model::{ConfirmationId, Principal};
use crate::pipeline::{Call, ConfirmationView, Edit, Failure};
use axum::extract::State as AxumState;
use axum::{Extension, Json};

/// Longest reason of a denial.
const REASON_MAX: usize = 512;

/// Its routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        get(
            "/v1/confirmations",
            list,
            op("list_confirmations", "What waits for an approver.")
                .answers::<ConfirmationsAnswer>(200, "Oldest first."),
        ),
        post(
            "/v1/confirmations/{confirmation_id}/approve",
            approve,
            op("approve", "Agree to exactly what the digest names.")
                .takes::<ApproveRequest>()
                .answers::<ConfirmationView>(200, "What was agreed to.")
                .fails(&[403, 409]),
        ),
        post(
            "/v1/confirmations/{confirmation_id}/deny",
            deny,
            op("deny", "Say no.")
                .takes::<DenyRequest>()
                .answers::<ConfirmationView>(200, "What was denied.")
                .fails(&[403]),
        ),
        post(
            "/v1/confirmations/{confirmation_id}/edit",
            edit,
            op("edit", "Change what waits, within what its caller may.")
                .takes::<EditRequest>()
                .answers::<ConfirmationView>(200, "It, with another digest.")
                .fails(&[403, 502]),
        ),
    ]
}

fn failed(id: &RequestId) -> impl Fn(Failure) -> ApiError + '_ {
    |failure| ApiError::from(failure).of_request(&id.0)
}

pub(super) async fn list(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
) -> Json<ConfirmationsAnswer> {
    let views = state.pipeline.confirmations(&principal);
    let items = views.iter().map(|view| serde_json::to_value(view).unwrap_or_default()).collect();
    Json(ConfirmationsAnswer { items, next_cursor: None })
}

pub(super) async fn approve(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(confirmation): Path<String>,
    Body(request): Body<ApproveRequest>,
) -> Result<Json<ConfirmationView>, ApiError> {
    let confirmation = ConfirmationId::from(confirmation);
    state.pipeline.approve(&call, &confirmation, &request.digest).await.map(Json).map_err(failed(&id))
}

pub(super) async fn deny(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(confirmation): Path<String>,
    Body(request): Body<DenyRequest>,
) -> Result<Json<ConfirmationView>, ApiError> {
    if request.reason.len() > REASON_MAX || request.reason.chars().any(char::is_control) {
        let problem = format!("has at most {REASON_MAX} bytes and no control characters");
        return Err(ApiError::field("reason", problem).of_request(&id.0));
    }
    let confirmation = ConfirmationId::from(confirmation);
    state.pipeline.deny(&call, &confirmation, &request.reason).await.map(Json).map_err(failed(&id))
}

pub(super) async fn edit(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(confirmation): Path<String>,
    Body(request): Body<EditRequest>,
) -> Result<Json<ConfirmationView>, ApiError> {
    let EditRequest { exec, policy_overrides, timeout_ms } = request;
    let edit = Edit { exec, policy_overrides, timeout_ms };
    state.pipeline.edit(&call, &ConfirmationId::from(confirmation), edit).await.map(Json).map_err(failed(&id))
}
