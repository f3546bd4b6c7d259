//! `/v1/tokens`: made, listed and revoked by an admin. The secret is in the answer to its making and nowhere else.

use super::access::now_ms;
use super::error::ApiError;
use super::handlers::{Body, Path, RequestId, State};
use super::openapi::op;
use super::routes::{Route, delete, get, post};
use super::wire::{NewTokenRequest, TokenAnswer, TokensAnswer};
use crate::ledger::{NewToken, TokenRow};
use crate::model::{Principal, Role, TokenId};
use crate::policy::Refusal;
use axum::extract::State as AxumState;
use axum::http::StatusCode;
use axum::{Extension, Json};

/// Longest name, tenant or subject: they stand in tables and logs.
const WORD_MAX: usize = 128;

/// Its routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        post(
            "/v1/tokens",
            create,
            op("create_token", "Make a token that stands in for a caller (admin).")
                .takes::<NewTokenRequest>()
                .answers::<TokenAnswer>(201, "It, and this once its secret.")
                .makes("token_id")
                .fails(&[403]),
        ),
        get(
            "/v1/tokens",
            list,
            op("list_tokens", "All tokens (admin).")
                .answers::<TokensAnswer>(200, "Without their secrets.")
                .fails(&[403]),
        ),
        delete(
            "/v1/tokens/{token_id}",
            revoke,
            op("revoke_token", "Take a token back (admin).")
                .answers::<TokenAnswer>(200, "It as it stands.")
                .fails(&[403]),
        ),
    ]
}

fn admin(principal: &Principal, request: &RequestId) -> Result<(), ApiError> {
    let refused = || ApiError::from(Refusal::RoleMissing { role: Role::Admin }).of_request(&request.0);
    principal.has(Role::Admin).then_some(()).ok_or_else(refused)
}

fn answer(row: &TokenRow, secret: Option<String>) -> TokenAnswer {
    TokenAnswer {
        token_id: row.id.to_string(),
        name: row.name.clone(),
        tenant: row.tenant.clone(),
        subject: row.subject.clone(),
        roles: row.roles.clone(),
        profiles: row.profiles.clone(),
        created_at_ms: row.created_at_ms,
        expires_at_ms: row.expires_at_ms,
        revoked_at_ms: row.revoked_at_ms,
        secret,
    }
}

fn checked(request: NewTokenRequest) -> Result<NewToken, ApiError> {
    for (field, word) in [("name", &request.name), ("tenant", &request.tenant), ("subject", &request.subject)] {
        if word.is_empty() || word.len() > WORD_MAX || word.chars().any(char::is_control) {
            return Err(ApiError::field(field, "has 1 to 128 bytes and no control characters"));
        }
    }
    if request.expires_at_ms.is_some_and(|end| end <= now_ms()) {
        return Err(ApiError::field("expires_at_ms", "lies in the past"));
    }
    Ok(NewToken {
        name: request.name,
        tenant: request.tenant,
        subject: request.subject,
        roles: request.roles.iter().map(|role| role.name().to_owned()).collect(),
        profiles: request.profiles,
        expires_at_ms: request.expires_at_ms,
    })
}

pub(super) async fn create(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    Body(request): Body<NewTokenRequest>,
) -> Result<(StatusCode, Json<TokenAnswer>), ApiError> {
    admin(&principal, &id)?;
    let new = checked(request).map_err(|error| error.of_request(&id.0))?;
    let failed = |error| ApiError::from(error).of_request(&id.0);
    let now = now_ms();
    let (token, secret) = state.ledger.create_token(new.clone(), now).await.map_err(failed)?;
    let row = TokenRow {
        id: token,
        name: new.name,
        tenant: new.tenant,
        subject: new.subject,
        roles: new.roles,
        profiles: new.profiles,
        created_at_ms: now,
        expires_at_ms: new.expires_at_ms,
        revoked_at_ms: None,
    };
    Ok((StatusCode::CREATED, Json(answer(&row, Some(secret.reveal().to_owned())))))
}

pub(super) async fn list(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
) -> Result<Json<TokensAnswer>, ApiError> {
    admin(&principal, &id)?;
    let rows = state.ledger.list_tokens().await.map_err(|error| ApiError::from(error).of_request(&id.0))?;
    Ok(Json(TokensAnswer { items: rows.iter().map(|row| answer(row, None)).collect(), next_cursor: None }))
}

pub(super) async fn revoke(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    Path(token): Path<String>,
) -> Result<Json<TokenAnswer>, ApiError> {
    admin(&principal, &id)?;
    let token = TokenId::from(token);
    let row =
        state.ledger.revoke_token(&token, now_ms()).await.map_err(|error| ApiError::from(error).of_request(&id.0))?;
    Ok(Json(answer(&row, None)))
}
