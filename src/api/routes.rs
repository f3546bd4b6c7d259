//! The routes: one table, of which both the router and its description are made.
//!
//! To add a route, add a line to [`table`]: method, path, handler, and an [`Op`](super::openapi::Op) that says what it
//! takes and answers. A new id in a path also wants a line in `openapi::IDS`, a new type `#[derive(utoipa::ToSchema)]`.
//! Then write the copy in docs anew (`SANDBOXD_WRITE_DOCS=1 cargo test --lib openapi`). `tests/openapi.rs` asks every route
//! of the table, as its owner with generated requests and as a stranger.

use super::error::ApiError;
use super::handlers::{self, BODY_MAX, RequestId, State, identify, number};
use super::openapi::{DOCUMENT, Op, Param, id_pattern, op};
use super::words::Words;
use super::{
    confirmations, evidence, execs, files, grants, idempotency, live, sandboxes, services, sessions, snapshots, tokens,
};
use axum::extract::{DefaultBodyLimit, Request};
use axum::handler::Handler;
use axum::http::{Method, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use axum::{Extension, Router};
use serde_json::json;
use std::sync::Arc;

/// One route with its description.
pub(super) struct Route {
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) op: Op,
    handler: MethodRouter<State>,
}

fn route<H: Handler<T, State>, T: 'static>(method: Method, path: &'static str, handler: H, op: Op) -> Route {
    let filter = MethodFilter::try_from(method.clone()).expect("a method of the table");
    Route { method, path, op, handler: on(filter, handler) }
}

/// A `GET`.
pub(super) fn get<H: Handler<T, State>, T: 'static>(path: &'static str, handler: H, op: Op) -> Route {
    route(Method::GET, path, handler, op)
}

/// A `POST`.
pub(super) fn post<H: Handler<T, State>, T: 'static>(path: &'static str, handler: H, op: Op) -> Route {
    route(Method::POST, path, handler, op)
}

/// A `PUT`.
pub(super) fn put<H: Handler<T, State>, T: 'static>(path: &'static str, handler: H, op: Op) -> Route {
    route(Method::PUT, path, handler, op)
}

/// A `DELETE`.
pub(super) fn delete<H: Handler<T, State>, T: 'static>(path: &'static str, handler: H, op: Op) -> Route {
    route(Method::DELETE, path, handler, op)
}

/// Words of a list that comes in pages; its cursor is the id of something, or has no meaning outside.
pub(super) fn page(most: u64, of: &str) -> [Param; 2] {
    let limit = json!({"type": "integer", "minimum": 1, "maximum": u64::MAX, "default": 100});
    let about =
        if most == 1000 { "How many items at most; more than 1000 are not sent at once." } else { "How many items." };
    let cursor = Param::text("cursor", "`next_cursor` of the page before.");
    let cursor = if of.is_empty() { cursor } else { cursor.like(id_pattern(of)) };
    [cursor, Param::text("limit", about).like(limit)]
}

/// Every route.
pub(super) fn table() -> Vec<Route> {
    let own =
        get("/openapi.json", openapi, op("openapi", "This description.").sends(200, "It.", &["application/json"]));
    [
        execs::routes(),
        live::routes(),
        sandboxes::routes(),
        services::routes(),
        sessions::routes(),
        snapshots::routes(),
        files::routes(),
        handlers::routes(),
        tokens::routes(),
        grants::routes(),
        confirmations::routes(),
        evidence::routes(),
        vec![own],
    ]
    .into_iter()
    .flatten()
    .collect()
}

async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str())
}

/// Lets through only words of the query that are described, each once unless it may come many times.
async fn known_words(
    Extension(RequestId(id)): Extension<RequestId>,
    words: Words,
    request: Request,
    next: Next,
    known: &[Param],
) -> Response {
    let checked = words.known(|name| known.iter().find(|param| param.name == name).map(|param| param.many));
    match checked {
        Ok(()) => next.run(request).await,
        Err(error) => error.of_request(&id).into_response(),
    }
}

/// All routes. The connection's [`Peer`](super::Peer) must be among a request's extensions.
pub fn router(state: State) -> Router {
    let mut router = Router::new();
    for Route { path, op, mut handler, .. } in table() {
        if op.keyed {
            handler = handler.route_layer(from_fn_with_state(state.clone(), idempotency::once));
        }
        if path.ends_with("/upload") {
            // Streamed, so bounded by the profile's largest file and not by what fits into memory.
            handler = handler.layer(DefaultBodyLimit::disable());
        }
        let known: Arc<[Param]> = op.query.into();
        let check = move |id: Extension<RequestId>, words: Words, request: Request, next: Next| {
            let known = known.clone();
            async move { known_words(id, words, request, next, &known).await }
        };
        router = router.route(path, handler.route_layer(from_fn(check)));
    }
    router
        .fallback(|Extension(RequestId(id))| async move { ApiError::not_found().of_request(&id) })
        .method_not_allowed_fallback(|Extension(RequestId(id))| async move {
            ApiError::method_not_allowed().of_request(&id)
        })
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(from_fn_with_state(state.clone(), identify))
        .layer(from_fn(number))
        .with_state(state)
}
