//! `/v1/sandboxes`: a workspace and a profile that many execs share.

use super::error::ApiError;
use super::execs::an_exec;
use super::execs::answer_of;
use super::handlers::{Body, Path, RequestId, State};
use super::openapi::{Param, op};
use super::routes::{Route, delete, get, page, post};
use super::wire::{
    CapabilitiesAnswer, CapabilityAnswer, KeepaliveRequest, NewSandboxRequest, SandboxAnswer, SandboxExecRequest,
    SandboxesAnswer,
};
use super::words::Words;
use super::{idempotency, live};
use crate::model::{DEFAULT_PROFILE, ExecRequest, ExecSpec, Kind, Mode, Principal, SandboxId, SnapshotId, Timestamp};
use crate::pipeline::{Call, Failure, SandboxView, SandboxWish, SessionWish};
use axum::extract::State as AxumState;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::json;
use std::collections::BTreeMap;

/// Its routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        post(
            "/v1/sandboxes",
            create,
            op("create_sandbox", "Make a workspace under a profile.")
                .takes::<NewSandboxRequest>()
                .keyed()
                .answers::<SandboxAnswer>(201, "It is there.")
                .makes("sandbox_id")
                .fails(&[400, 403, 404, 409, 429, 507]),
        ),
        get(
            "/v1/sandboxes",
            list,
            op("list_sandboxes", "The caller's sandboxes, newest first.")
                .query([Param::text("label", "`name=value`; all must hold.")
                    .like(json!({"type": "string", "pattern": "="}))
                    .many()])
                .query(page(1000, "sandbox_id"))
                .answers::<SandboxesAnswer>(200, "A page of them.")
                .fails(&[404]),
        ),
        get(
            "/v1/sandboxes/{sandbox_id}",
            show,
            op("show_sandbox", "A sandbox as it stands.").answers::<SandboxAnswer>(200, "It."),
        ),
        delete(
            "/v1/sandboxes/{sandbox_id}",
            remove,
            op("delete_sandbox", "End what runs in it and remove its workspace.")
                .sends(204, "It is gone.", &[])
                .fails(&[403, 409]),
        ),
        post(
            "/v1/sandboxes/{sandbox_id}/keepalive",
            keep,
            op("keep_sandbox", "Move its end, never nearer.")
                .takes::<KeepaliveRequest>()
                .answers::<SandboxAnswer>(200, "It as it stands.")
                .fails(&[403]),
        ),
        get(
            "/v1/sandboxes/{sandbox_id}/capabilities",
            capabilities,
            op("list_capabilities", "Every known capability, and whether it can be used.")
                .answers::<CapabilitiesAnswer>(200, "All of them."),
        ),
        post(
            "/v1/sandboxes/{sandbox_id}/python/exec",
            python,
            an_exec(op("run_python", "Run Python code in a sandbox.").takes_part::<SandboxExecRequest>(
                "PythonExecRequest",
                &["command", "argv"],
                &["code"],
            )),
        ),
        post(
            "/v1/sandboxes/{sandbox_id}/shell/exec",
            shell,
            an_exec(op("run_shell", "Run a command line in a sandbox.").takes_part::<SandboxExecRequest>(
                "ShellExecRequest",
                &["code", "argv"],
                &["command"],
            )),
        ),
        post(
            "/v1/sandboxes/{sandbox_id}/process/exec",
            process,
            an_exec(
                op("run_process", "Run a program in a sandbox, never through a shell.")
                    .takes_part::<SandboxExecRequest>(
                        "ProcessExecRequest",
                        &["code", "session", "session_idle_s", "command", "args"],
                        &["argv"],
                    ),
            ),
        ),
    ]
}

pub(super) fn answer(SandboxView { row, expired }: SandboxView) -> SandboxAnswer {
    SandboxAnswer {
        sandbox_id: row.id.to_string(),
        profile: row.profile,
        project_id: row.project_id.to_string(),
        labels: row.labels,
        created_at: Timestamp::from_ms(row.created_at_ms),
        expires_at: Timestamp::from_ms(row.expires_at_ms),
        idle_s: row.idle_ms.map(|idle| idle / 1000),
        last_used_at: Timestamp::from_ms(row.last_used_ms),
        state: if expired { "expired" } else { "live" }.to_owned(),
    }
}

fn failed(id: &RequestId) -> impl Fn(Failure) -> ApiError + '_ {
    |failure| ApiError::from(failure).of_request(&id.0)
}

pub(super) async fn create(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Body(request): Body<NewSandboxRequest>,
) -> Result<(StatusCode, Json<SandboxAnswer>), ApiError> {
    let NewSandboxRequest { profile, project_id, ttl_s, idle_s, labels, from_snapshot } = request;
    let profile = profile.unwrap_or_else(|| DEFAULT_PROFILE.to_owned());
    let from_snapshot = from_snapshot.map(SnapshotId::from);
    let wish = SandboxWish { profile, project_id, ttl_s, idle_s, labels, from_snapshot };
    let view = state.pipeline.create_sandbox(&call, wish).await.map_err(failed(&id))?;
    Ok((StatusCode::CREATED, Json(answer(view))))
}

fn labels(words: &mut Words) -> Result<BTreeMap<String, String>, ApiError> {
    let split = |label: String| match label.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(ApiError::field("label", "write it as name=value")),
    };
    words.take_all("label").into_iter().map(split).collect()
}

pub(super) async fn list(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    mut words: Words,
) -> Result<Json<SandboxesAnswer>, ApiError> {
    let read = |words: &mut Words| Ok((labels(words)?, words.take("cursor")?, words.limit()?));
    let (labels, cursor, limit) = read(&mut words).map_err(|error: ApiError| error.of_request(&id.0))?;
    words.end().map_err(|error| error.of_request(&id.0))?;
    let page = state.pipeline.sandboxes(&principal, labels, cursor.map(SandboxId::from), limit).await;
    let (views, next) = page.map_err(failed(&id))?;
    let items = views.into_iter().map(answer).collect();
    Ok(Json(SandboxesAnswer { items, next_cursor: next.map(|next| next.to_string()) }))
}

pub(super) async fn show(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
) -> Result<Json<SandboxAnswer>, ApiError> {
    let view = state.pipeline.sandbox(&principal, &SandboxId::from(sandbox)).await.map_err(failed(&id))?;
    Ok(Json(answer(view)))
}

pub(super) async fn keep(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
    Body(request): Body<KeepaliveRequest>,
) -> Result<Json<SandboxAnswer>, ApiError> {
    let sandbox = SandboxId::from(sandbox);
    let view = state.pipeline.keep_sandbox(&principal, &sandbox, request.ttl_s).await.map_err(failed(&id))?;
    Ok(Json(answer(view)))
}

pub(super) async fn remove(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
) -> Result<StatusCode, ApiError> {
    state.pipeline.delete_sandbox(&call, &SandboxId::from(sandbox)).await.map_err(failed(&id))?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn capabilities(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(id): Extension<RequestId>,
    Path(sandbox): Path<String>,
) -> Result<Json<CapabilitiesAnswer>, ApiError> {
    let sandbox = SandboxId::from(sandbox);
    let views = state.pipeline.sandbox_capabilities(&principal, &sandbox).await.map_err(failed(&id))?;
    let items = views.into_iter().map(|view| CapabilityAnswer {
        capability: view.capability.name().to_owned(),
        enabled: view.enabled,
        operations: view.operations.into_iter().map(str::to_owned).collect(),
        reason: view.reason,
    });
    Ok(Json(CapabilitiesAnswer { items: items.collect(), next_cursor: None }))
}

pub(super) async fn python(
    state: AxumState<State>,
    call: Extension<Call>,
    id: Extension<RequestId>,
    sandbox: Path<String>,
    headers: HeaderMap,
    body: Body<SandboxExecRequest>,
) -> Result<Response, ApiError> {
    run(Kind::Python, state, (call, id), sandbox, headers, body).await
}

pub(super) async fn shell(
    state: AxumState<State>,
    call: Extension<Call>,
    id: Extension<RequestId>,
    sandbox: Path<String>,
    headers: HeaderMap,
    body: Body<SandboxExecRequest>,
) -> Result<Response, ApiError> {
    run(Kind::Shell, state, (call, id), sandbox, headers, body).await
}

pub(super) async fn process(
    state: AxumState<State>,
    call: Extension<Call>,
    id: Extension<RequestId>,
    sandbox: Path<String>,
    headers: HeaderMap,
    body: Body<SandboxExecRequest>,
) -> Result<Response, ApiError> {
    run(Kind::Process, state, (call, id), sandbox, headers, body).await
}

async fn run(
    kind: Kind,
    AxumState(state): AxumState<State>,
    (Extension(call), Extension(RequestId(id))): (Extension<Call>, Extension<RequestId>),
    Path(sandbox): Path<String>,
    headers: HeaderMap,
    Body(request): Body<SandboxExecRequest>,
) -> Result<Response, ApiError> {
    let session = session_of(kind, &request).map_err(|error| error.of_request(&id))?;
    let (request, sandbox) = (request_of(kind, request), SandboxId::from(sandbox));
    let request = request.map_err(|error| error.of_request(&id))?;
    idempotency::not_for_streams(request.mode, &headers).map_err(|error| error.of_request(&id))?;
    let pipeline = &state.pipeline;
    let done = match request.mode {
        Mode::Wait => {
            let ran = pipeline.exec_in(&call, &sandbox, request, session).await;
            ran.map(|ended| Json(answer_of(ended)).into_response())
        }
        Mode::Background | Mode::Stream => {
            let launched = pipeline.launch_in(&call, &sandbox, request).await;
            launched.map(|launched| live::launched(launched, &headers))
        }
    };
    match done {
        Ok(response) => Ok(response),
        Err(failure) => {
            let error = ApiError::from(failure).in_words_of(&words_of(kind)).of_request(&id);
            tracing::info!(request = %id, ?error, "exec refused or failed");
            Err(error)
        }
    }
}

/// The same things under their names in `POST /v1/execs` and here.
pub(super) fn words_of(kind: Kind) -> [(&'static str, &'static str); 4] {
    let code = if kind == Kind::Shell { "command" } else { "code" };
    [
        ("exec.code", code),
        ("exec.command", "argv[0]"),
        ("exec.args", if kind == Kind::Process { "argv" } else { "args" }),
        ("exec.", ""),
    ]
}

/// The session that it asks for.
fn session_of(kind: Kind, request: &SandboxExecRequest) -> Result<Option<SessionWish>, ApiError> {
    match (&request.session, request.session_idle_s) {
        (Some(_), _) if kind == Kind::Process => {
            Err(ApiError::field("session", "a program has none; python/exec and shell/exec do"))
        }
        (Some(_), _) if request.mode != Mode::Wait => {
            Err(ApiError::field("mode", "a call of a session is waited for; use \"wait\""))
        }
        (Some(name), idle_s) => Ok(Some(SessionWish { name: name.clone(), idle_s })),
        (None, Some(_)) => Err(ApiError::field("session_idle_s", "is for a session; name one")),
        (None, None) => Ok(None),
    }
}

/// The request for an exec, but for profile and project, which are the sandbox's.
pub(super) fn request_of(kind: Kind, request: SandboxExecRequest) -> Result<ExecRequest, ApiError> {
    let foreign = |field: &str| ApiError::field(field, "is not known here");
    let missing = |field: &str, problem: &str| ApiError::field(field, format!("missing: {problem}"));
    let (code, command, args) = match kind {
        Kind::Python => {
            let code = request.code.ok_or_else(|| missing("code", "the Python code"))?;
            if request.command.is_some() || request.argv.is_some() {
                return Err(foreign(if request.command.is_some() { "command" } else { "argv" }));
            }
            (Some(code), None, request.args)
        }
        Kind::Shell => {
            let code = request.command.ok_or_else(|| missing("command", "the command line"))?;
            if request.code.is_some() || request.argv.is_some() {
                return Err(foreign(if request.code.is_some() { "code" } else { "argv" }));
            }
            (Some(code), None, request.args)
        }
        Kind::Process => {
            let mut argv = request.argv.ok_or_else(|| missing("argv", "the program and its arguments"))?;
            if request.code.is_some() || request.command.is_some() || !request.args.is_empty() {
                let field = [("code", request.code.is_some()), ("command", request.command.is_some())];
                return Err(foreign(field.iter().find(|(_, given)| *given).map_or("args", |(name, _)| name)));
            }
            if argv.is_empty() {
                return Err(ApiError::field("argv", "empty: name a program"));
            }
            let command = argv.remove(0);
            (None, Some(command), argv)
        }
    };
    Ok(ExecRequest {
        profile: String::new(),
        project_id: None,
        skill_id: None,
        task_ref: request.task_ref,
        grant_id: request.grant_id,
        call_id: request.call_id,
        mode: request.mode,
        timeout_ms: request.timeout_ms,
        stdin: request.stdin,
        stdin_base64: request.stdin_base64,
        stdin_open: request.stdin_open,
        tty: request.tty,
        exec: ExecSpec { kind, command, args, code, cwd: request.cwd, env: request.env },
        inputs: request.inputs,
        policy_overrides: request.policy_overrides.unwrap_or_default(),
        report: request.report,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_takes_its_own_words() {
        let of = |kind, json: serde_json::Value| {
            request_of(kind, serde_json::from_value(json).expect("known fields")).map_err(|error| format!("{error:?}"))
        };
        let spec = of(Kind::Process, serde_json::json!({"argv": ["ls", "-l"]})).expect("good").exec;
        assert_eq!((spec.command.as_deref(), spec.args), (Some("ls"), vec!["-l".to_owned()]));
        assert_eq!(of(Kind::Shell, serde_json::json!({"command": "a"})).expect("good").exec.code.as_deref(), Some("a"));
        for (kind, json, field) in [
            (Kind::Python, serde_json::json!({}), "code"),
            (Kind::Python, serde_json::json!({"code": "1", "argv": []}), "argv"),
            (Kind::Shell, serde_json::json!({"command": "1", "code": "1"}), "code"),
            (Kind::Process, serde_json::json!({"argv": []}), "argv"),
            (Kind::Process, serde_json::json!({"argv": ["a"], "args": ["b"]}), "args"),
        ] {
            let error = of(kind, json.clone()).expect_err("a mistake");
            assert!(error.contains(&format!("\"{field}\"")), "{json}: {error}");
        }
    }
}
