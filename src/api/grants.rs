//! `/v1/grants`: issued and revoked by issuers, seen by those they are for.

use super::access::now_ms;
use super::error::ApiError;
use super::handlers::{Body, Path, RequestId, State};
use super::openapi::op;
use super::routes::{Route, get, page, post};
use super::wire::{GrantAnswer, GrantsAnswer, NewGrantRequest, RevokeGrantRequest};
use super::words::Words;
use crate::model::{GrantId, Owner, Principal, Timestamp};
use crate::pipeline::{Call, Failure, GrantView, GrantWish};
use crate::policy::grant::Fingerprint;
use crate::terms::allowset::AllowanceSet;
use axum::extract::State as AxumState;
use axum::http::StatusCode;
use axum::{Extension, Json};

/// Its routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        post(
            "/v1/grants",
            issue,
            op("issue_grant", "Give one call what it may do (issuer).")
                .takes::<NewGrantRequest>()
                .keyed()
                .answers::<GrantAnswer>(201, "It is in force.")
                .makes("grant_id")
                .fails(&[400, 403, 409]),
        ),
        get(
            "/v1/grants",
            list,
            op("list_grants", "Grants that the caller may see, newest first.")
                .query(page(0, "grant_id"))
                .answers::<GrantsAnswer>(200, "A page of them.")
                .fails(&[404]),
        ),
        get(
            "/v1/grants/{grant_id}",
            show,
            op("show_grant", "A grant as it stands.").answers::<GrantAnswer>(200, "It."),
        ),
        post(
            "/v1/grants/{grant_id}/revoke",
            revoke,
            op("revoke_grant", "Take a grant back; what runs under it ends (issuer).")
                .takes::<RevokeGrantRequest>()
                .answers::<GrantAnswer>(200, "It as it stands.")
                .fails(&[403]),
        ),
    ]
}

fn answer(view: GrantView) -> GrantAnswer {
    let GrantView { grant, spent, remaining, revoke_reason } = view;
    let state = match (grant.revoked_at, grant.expires_at.ms() <= now_ms()) {
        (Some(_), _) => "revoked",
        (None, true) => "expired",
        (None, false) => "live",
    };
    GrantAnswer {
        grant_id: grant.grant_id.to_string(),
        state: state.to_owned(),
        tenant: grant.tenant,
        subject: grant.subject,
        tool: grant.tool,
        call_id: grant.call_id,
        capabilities: serde_json::to_value(&grant.capabilities).unwrap_or_default(),
        expires_at: grant.expires_at,
        budget: grant.budget,
        spent,
        remaining,
        decision_key_fingerprint: grant.decision_key_fingerprint.to_string(),
        issued_by: grant.issued_by,
        created_at: grant.created_at,
        revoked_at: grant.revoked_at,
        revoke_reason,
    }
}

fn wish(principal: &Principal, request: NewGrantRequest) -> Result<GrantWish, ApiError> {
    let fingerprint = match (request.decision_key_fingerprint, request.decision_key) {
        (Some(given), None) => given.parse().map_err(|error| ApiError::field("decision_key_fingerprint", error))?,
        (None, Some(key)) => Fingerprint::of(key.as_bytes()),
        (Some(_), Some(_)) => return Err(ApiError::field("decision_key", "given beside its fingerprint; choose one")),
        // A decision that nobody named is one of its own: an id's digits can't be guessed and never come again.
        (None, None) => Fingerprint::of(GrantId::generate().as_str().as_bytes()),
    };
    let expires_at = match (request.expires_at, request.expires_in_ms) {
        (Some(at), None) => at,
        (None, Some(after)) => Timestamp::from_ms(now_ms().saturating_add(after)),
        _ => return Err(ApiError::field("expires_at", "give either expires_at or expires_in_ms")),
    };
    let capabilities: AllowanceSet =
        serde_json::from_value(request.capabilities).map_err(|error| ApiError::field("capabilities", error))?;
    Ok(GrantWish {
        owner: Owner {
            tenant: request.tenant.unwrap_or_else(|| principal.owner.tenant.clone()),
            subject: request.subject,
        },
        tool: request.tool,
        call_id: request.call_id,
        capabilities,
        expires_at,
        budget: request.budget,
        decision_key_fingerprint: fingerprint,
    })
}

fn failed(id: &RequestId) -> impl Fn(Failure) -> ApiError + '_ {
    |failure| ApiError::from(failure).of_request(&id.0)
}

pub(super) async fn issue(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Body(request): Body<NewGrantRequest>,
) -> Result<(StatusCode, Json<GrantAnswer>), ApiError> {
    let wish = wish(&call.principal, request).map_err(|error| error.of_request(&id.0))?;
    let view = state.pipeline.issue_grant(&call, wish).await.map_err(failed(&id))?;
    Ok((StatusCode::CREATED, Json(answer(view))))
}

pub(super) async fn list(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    mut words: Words,
) -> Result<Json<GrantsAnswer>, ApiError> {
    let read = |words: &mut Words| Ok((words.take("cursor")?.map(GrantId::from), words.limit()?));
    let (after, limit) = read(&mut words).map_err(|error: ApiError| error.of_request(&id.0))?;
    let (views, next) = state.pipeline.grants(&principal, after, limit).await.map_err(failed(&id))?;
    let items = views.into_iter().map(answer).collect();
    Ok(Json(GrantsAnswer { items, next_cursor: next.map(|next| next.to_string()) }))
}

pub(super) async fn show(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    Path(grant): Path<String>,
) -> Result<Json<GrantAnswer>, ApiError> {
    let view = state.pipeline.grant(&principal, &GrantId::from(grant)).await.map_err(failed(&id))?;
    Ok(Json(answer(view)))
}

pub(super) async fn revoke(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(grant): Path<String>,
    Body(request): Body<RevokeGrantRequest>,
) -> Result<Json<GrantAnswer>, ApiError> {
    let grant = GrantId::from(grant);
    let view = state.pipeline.revoke_grant(&call, &grant, &request.reason).await.map_err(failed(&id))?;
    Ok(Json(answer(view)))
}
