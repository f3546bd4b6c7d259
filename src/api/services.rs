//! `/v1/sandboxes/{id}/services`: background execs with a name, which end with their sandbox.

use super::error::ApiError;
use super::execs::record;
use super::handlers::{Body, Path, RequestId, State};
use super::live;
use super::live::{failed, read_output};
use super::openapi::op;
use super::routes::{Route, delete, get, post};
use super::sandboxes::{request_of, words_of};
use super::wire::{LaunchedAnswer, OutputAnswer, SandboxExecRequest, ServiceAnswer, ServiceRequest, ServicesAnswer};
use super::words::Words;
use crate::model::{Kind, Principal, SandboxId};
use crate::pipeline::{Call, ServiceView};
use axum::extract::State as AxumState;
use axum::http::StatusCode;
use axum::{Extension, Json};

/// Its routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        post(
            "/v1/sandboxes/{sandbox_id}/services",
            start,
            op("start_service", "Start a program that runs on under a name. Nothing starts it again when it ends.")
                .takes::<ServiceRequest>()
                .keyed()
                .answers::<LaunchedAnswer>(202, "It runs, or waits for a place.")
                .fails(&[400, 403, 404, 409, 429, 502, 504, 507]),
        ),
        get(
            "/v1/sandboxes/{sandbox_id}/services",
            list,
            op("list_services", "The services of a sandbox, by name, ended ones included.")
                .answers::<ServicesAnswer>(200, "All of them."),
        ),
        get(
            "/v1/sandboxes/{sandbox_id}/services/{service}/logs",
            logs,
            op("read_service_logs", "What a service wrote, from a position on; waits for more if asked to.")
                .query(live::output_words())
                .answers::<OutputAnswer>(200, "Some of it, and whether it was all.")
                .fails(&[410]),
        ),
        delete(
            "/v1/sandboxes/{sandbox_id}/services/{service}",
            stop,
            op("stop_service", "Ask a service to end with TERM; after five seconds it is ended.")
                .answers::<ServiceAnswer>(200, "It has ended."),
        ),
    ]
}

/// Which of the three it is, and the request that the sandbox's own address would get.
fn split(request: ServiceRequest) -> Result<(String, Kind, SandboxExecRequest), ApiError> {
    let ServiceRequest { name, argv, command, code, args, cwd, env, timeout_ms, policy_overrides, task_ref, grant_id } =
        request;
    let kind = match (&argv, &command, &code) {
        (Some(_), None, None) => Kind::Process,
        (None, Some(_), None) => Kind::Shell,
        (None, None, Some(_)) => Kind::Python,
        _ => return Err(ApiError::field("argv", "give one of argv, command and code")),
    };
    let exec = SandboxExecRequest {
        argv,
        command,
        code,
        args,
        cwd,
        env,
        timeout_ms,
        policy_overrides,
        task_ref,
        grant_id,
        ..SandboxExecRequest::default()
    };
    Ok((name, kind, exec))
}

async fn start(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
    Body(request): Body<ServiceRequest>,
) -> Result<(StatusCode, Json<LaunchedAnswer>), ApiError> {
    let (name, kind, request) = split(request).map_err(|error| error.of_request(&id.0))?;
    let request = request_of(kind, request).map_err(|error| error.of_request(&id.0))?;
    let launched = state.pipeline.start_service(&call, &SandboxId::from(sandbox), &name, request).await;
    let launched = launched.map_err(|failure| failed(&id)(failure).in_words_of(&words_of(kind)))?;
    let status = if launched.queued { "queued" } else { "running" }.to_owned();
    Ok((StatusCode::ACCEPTED, Json(LaunchedAnswer { exec_id: launched.exec.to_string(), status })))
}

fn answer(ServiceView { name, row }: ServiceView) -> ServiceAnswer {
    ServiceAnswer { name, exec: record(row) }
}

async fn list(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
) -> Result<Json<ServicesAnswer>, ApiError> {
    let views = state.pipeline.services(&principal, &SandboxId::from(sandbox)).await.map_err(failed(&id))?;
    Ok(Json(ServicesAnswer { items: views.into_iter().map(answer).collect(), next_cursor: None }))
}

async fn logs(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    Path((sandbox, service)): Path<(String, String)>,
    words: Words,
) -> Result<Json<OutputAnswer>, ApiError> {
    let exec = state.pipeline.service(&principal, &SandboxId::from(sandbox), &service).await.map_err(failed(&id))?;
    read_output(&state, &principal, &id, exec, words).await
}

async fn stop(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    Path((sandbox, service)): Path<(String, String)>,
) -> Result<Json<ServiceAnswer>, ApiError> {
    let stopped = state.pipeline.stop_service(&principal, &SandboxId::from(sandbox), &service).await;
    stopped.map(|view| Json(answer(view))).map_err(failed(&id))
}
