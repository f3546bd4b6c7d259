//! `Idempotency-Key`: the same POST sent again gets the first answer instead of a second run.
//!
//! A request with a key goes on when its caller hangs up: the caller may come back for the answer. What went wrong on
//! our side, or may go right later, is not kept: the same request then runs again.

use super::access::now_ms;
use super::error::ApiError;
use super::handlers::{BODY_MAX, BODY_PATIENCE, RequestId, State};
use crate::ledger::{Claimed, IdempotencyKey};
use crate::model::{Mode, Principal};
use axum::Extension;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State as AxumState};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Says that an answer was given before.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Lets a request through once for each key.
pub(super) async fn once(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(RequestId(id)): Extension<RequestId>,
    request: Request,
    next: Next,
) -> Response {
    let Some(key) = request.headers().get(KEY).filter(|_| request.method() == Method::POST) else {
        return next.run(request).await;
    };
    let refused = |error: ApiError| error.of_request(&id).into_response();
    let Ok(key) = key.to_str().map(str::to_owned) else {
        return refused(ApiError::field("idempotency-key", "must be plain text"));
    };
    let (parts, body) = request.into_parts();
    let Ok(body) = tokio::time::timeout(BODY_PATIENCE, to_bytes(body, BODY_MAX)).await else {
        return refused(ApiError::body_timed_out());
    };
    let Ok(body) = body else { return refused(ApiError::body_too_large(BODY_MAX)) };
    let route = format!("{} {}", parts.method, parts.uri.path());
    let key = IdempotencyKey { owner: principal.owner, route, key };
    let claim = match state.ledger.claim(key, Sha256::digest(&body).into(), now_ms()).await {
        Ok(Claimed::Fresh(claim)) => claim,
        Ok(Claimed::Replay { status, body: Some(body) }) => return replay(status, body),
        Ok(Claimed::Replay { status, body: None }) => {
            let message = format!("this was done before and answered with {status}; the answer was too large to keep");
            return refused(ApiError::key_taken("answer_not_kept", &message));
        }
        Ok(Claimed::Conflict) => {
            return refused(ApiError::key_taken(
                "key_reused",
                "this key came with another body before; choose another",
            ));
        }
        Ok(Claimed::InFlight) => {
            let message = "this request is being worked on; come back for its answer";
            return refused(ApiError::key_taken("in_flight", message).try_again());
        }
        Err(error) => return refused(error.into()),
    };
    let work = async move {
        let (parts, body) = next.run(Request::from_parts(parts, Body::from(body))).await.into_parts();
        // Answers of these addresses are JSON that was in memory before.
        let Ok(body) = to_bytes(body, usize::MAX).await else {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        };
        let passing = parts.status.is_server_error() || parts.status == StatusCode::TOO_MANY_REQUESTS;
        if passing {
            drop(claim);
        } else if let Err(error) = claim.complete(parts.status.as_u16(), body.to_vec()).await {
            tracing::error!(error = &error as &dyn std::error::Error, "an answer could not be kept under its key");
        }
        Response::from_parts(parts, Body::from(body))
    };
    tokio::spawn(work).await.unwrap_or_else(|panic| {
        tracing::error!(%panic, "a request with an idempotency key panicked");
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    })
}

/// A stream can't be kept and given again, so a key on one would be a lie.
pub(super) fn not_for_streams(mode: Mode, headers: &HeaderMap) -> Result<(), ApiError> {
    let both = mode == Mode::Stream && headers.contains_key(KEY);
    let problem = "goes with mode wait or background: events can't be given a second time from here; use their seq";
    if both { Err(ApiError::field("idempotency-key", problem)) } else { Ok(()) }
}

fn replay(status: u16, body: Vec<u8>) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let mut response = (status, body).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    response
}
