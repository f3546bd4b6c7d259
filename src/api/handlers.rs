//! What all requests go through on their way in, and the handlers that belong to no resource of their own.

use super::access::{Access, Peer};
use super::doctor::Doctor;
use super::error::ApiError;
use super::openapi::op;
use super::routes::{Route, get, post};
use super::wire::DoctorAnswer;
use super::wire::{AdmissionAnswer, ExplainAnswer, HealthAnswer, PoolAnswer, ProfileAnswer, ProfilesAnswer};
use super::{execs, idempotency, live};
use crate::evidence::Journal;
use crate::executor::{ProfileState, Warden};
use crate::ledger::Ledger;
use crate::model::{ExecId, ExecRequest, Mode, Object, Principal, Rootfs};
use crate::observe::{self, Metrics};
use crate::pipeline::{Call, InForce, Pipeline, PressureView};
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path as AxumPath, Request, State as AxumState};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::de::{DeserializeOwned, IgnoredAny};
use std::sync::Arc;
use std::time::Duration;

/// Largest body: inputs and standard input of one exec.
pub const BODY_MAX: usize = 16 << 20;
/// How long a whole JSON body may take.
pub(super) const BODY_PATIENCE: Duration = Duration::from_secs(30);
/// What is read of the body of a caller that nobody knows, and for how long.
const UNKNOWN_BODY_MAX: usize = 64 << 10;
const UNKNOWN_BODY_PATIENCE: Duration = Duration::from_secs(1);
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// What handlers share.
#[derive(Clone)]
pub struct State {
    /// The way to execs.
    pub pipeline: Pipeline,
    /// Who may call.
    pub access: Access,
    /// What is known of the host.
    pub doctor: Arc<Doctor>,
    /// Tokens, grants and budgets.
    pub ledger: Ledger,
    /// What is counted.
    pub metrics: Metrics,
    /// What was done.
    pub journal: Journal,
    /// Asked for the figures of its pool, and for nothing else.
    pub warden: Warden,
}

/// The id of one request, in its answer and in the log.
#[derive(Clone)]
pub(super) struct RequestId(pub(super) Arc<str>);

/// Its routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        get(
            "/v1/health",
            health,
            op("health", "Version, kernel, profiles, load.").answers::<HealthAnswer>(200, "How it is."),
        ),
        get(
            "/v1/doctor",
            doctor,
            op("doctor", "Every check with its state and cure.").answers::<DoctorAnswer>(200, "All checks."),
        ),
        get("/metrics", metrics, op("metrics", "Figures for Prometheus.").sends(200, "All of them.", &["text/plain"])),
        get(
            "/v1/profiles",
            list_profiles,
            op("list_profiles", "Profiles as enforced.").answers::<ProfilesAnswer>(200, "All of them."),
        ),
        get(
            "/v1/profiles/{profile_id}",
            show_profile,
            op("show_profile", "One profile as enforced.").answers::<ProfileAnswer>(200, "It."),
        ),
        post(
            "/v1/explain",
            explain,
            op("explain", "What would be said to an exec; nothing is started.")
                .takes::<ExecRequest>()
                .answers::<ExplainAnswer>(200, "That.")
                .fails(&[400, 403, 404]),
        ),
    ]
}

/// Gives every request an id and puts it on its answer.
pub(super) async fn number(mut request: Request, next: Next) -> Response {
    // An exec id's digits are unique enough; the prefix tells the two apart.
    let id: Arc<str> = ExecId::generate().as_str().replacen("ex_", "rq_", 1).into();
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = next.run(request).await;
    let value = HeaderValue::from_str(&id).expect("an id is plain ASCII");
    response.headers_mut().insert(REQUEST_ID, value);
    response
}

/// Level 0: nobody gets past here without a principal.
pub(super) async fn identify(AxumState(state): AxumState<State>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().copied();
    let id = request.extensions().get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default();
    // A header that is not text is a token that can't be one.
    let authorization = request.headers().get(header::AUTHORIZATION).map(|value| value.to_str().unwrap_or(""));
    let Some(principal) = peer.and_then(|peer| state.access.identify(peer, authorization)) else {
        tracing::warn!(request = %id, ?peer, "a caller without an access rule");
        // Read before the answer: a client that still writes would find its connection broken instead of a 401.
        let body = axum::body::to_bytes(request.into_body(), UNKNOWN_BODY_MAX);
        let _ = tokio::time::timeout(UNKNOWN_BODY_PATIENCE, body).await;
        return ApiError::unauthenticated().of_request(&id).into_response();
    };
    let trace_id = request.headers().get(TRACEPARENT).and_then(|value| trace_id(value.to_str().ok()?));
    let call = Call { principal: principal.clone(), request_id: id.to_string(), trace_id: trace_id.clone() };
    request.extensions_mut().insert(principal);
    request.extensions_mut().insert(call);
    let mut response = next.run(request).await;
    if let Some(passed_on) = trace_id.and_then(|trace| HeaderValue::from_str(&traceparent(&trace)).ok()) {
        response.headers_mut().insert(TRACEPARENT, passed_on);
    }
    response
}

/// The trace of a W3C `traceparent`: version, 32 digits that are not all 0, 16 digits, flags.
fn trace_id(header: &str) -> Option<String> {
    let mut parts = header.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &str, length| text.len() == length && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let known = hex(version, 2) && version != "ff" && hex(trace, 32) && hex(span, 16) && hex(flags, 2);
    (known && trace.bytes().any(|b| b != b'0') && span.bytes().any(|b| b != b'0')).then(|| trace.to_owned())
}

/// The same trace, with a span of our own.
fn traceparent(trace: &str) -> String {
    let digits = crate::evidence::Digest::of(ExecId::generate().as_str()).to_string();
    format!("00-{trace}-{}-01", &digits[..16])
}

/// A JSON body whose mistakes name their field.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let id = request.extensions().get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default();
        if !is_json(request.headers()) {
            return Err(ApiError::not_json().of_request(&id).into_response());
        }
        let Ok(bytes) = tokio::time::timeout(BODY_PATIENCE, Bytes::from_request(request, state)).await else {
            return Err(ApiError::body_timed_out().of_request(&id).into_response());
        };
        let bytes = bytes.map_err(|rejection| {
            let error = match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => ApiError::body_too_large(BODY_MAX),
                _ => ApiError::bad_body("the body ended early"),
            };
            error.of_request(&id).into_response()
        })?;
        parse(&bytes).map(Body).map_err(|error| error.of_request(&id).into_response())
    }
}

/// Whether a body may be JSON by what its sender calls it: nothing, JSON, or what curl says of any `-d`.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return true };
    let kind = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    matches!(&*kind, "application/json" | "application/x-www-form-urlencoded")
        || (kind.starts_with("application/") && kind.ends_with("+json"))
}

/// Ids in an address. One that is no text is as unknown as any other that nobody made.
pub(super) struct Path<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let id = parts.extensions.get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default();
        let read = AxumPath::from_request_parts(parts, state).await;
        read.map(|AxumPath(read)| Self(read)).map_err(|_| ApiError::not_found().of_request(&id))
    }
}

/// The body of `POST /v1/execs` as a request, or the answer that its caller gets instead.
pub fn parse_exec(bytes: &[u8]) -> Result<ExecRequest, Box<Response>> {
    parse(bytes).map_err(|error| Box::new(error.into_response()))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    match serde_json::from_slice(bytes) {
        Ok(Object(value)) => Ok(value),
        Err(_) => parse_again(bytes),
    }
}

/// Parses what was found wrong once more, now with an eye on where.
fn parse_again<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let Object(value) = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        // serde_json calls some wrong types a syntax error; whether it is JSON at all is a question of its own.
        match serde_json::from_slice::<IgnoredAny>(bytes) {
            Err(syntax) => ApiError::bad_body(format!("the body is not JSON: {syntax}")),
            Ok(_) => {
                let problem = error.inner().to_string();
                ApiError::field(&field_of(&error.path().to_string(), &problem), problem)
            }
        }
    })?;
    json.end().map_err(|error| ApiError::bad_body(format!("something follows the JSON body: {error}")))?;
    Ok(value)
}

/// The field that a data error is about: for an unknown or a missing one serde names it only in its words.
fn field_of(path: &str, problem: &str) -> String {
    let named = ["unknown field `", "missing field `", "duplicate field `"]
        .iter()
        .find_map(|start| problem.strip_prefix(start)?.split('`').next());
    match (path, named) {
        (".", Some(name)) => name.to_owned(),
        (parent, Some(name)) if parent.rsplit('.').next() != Some(name) => format!("{parent}.{name}"),
        (path, _) => path.to_owned(),
    }
}

pub(super) async fn run_exec(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(RequestId(id)): Extension<RequestId>,
    headers: HeaderMap,
    Body(request): Body<ExecRequest>,
) -> Result<Response, ApiError> {
    idempotency::not_for_streams(request.mode, &headers).map_err(|error| error.of_request(&id))?;
    let done = match request.mode {
        Mode::Wait => {
            state.pipeline.exec(&call, &request).await.map(|ended| Json(execs::answer_of(ended)).into_response())
        }
        Mode::Background | Mode::Stream => {
            state.pipeline.launch(&call, &request).await.map(|launched| live::launched(launched, &headers))
        }
    };
    match done {
        Ok(response) => Ok(response),
        Err(failure) => {
            let error = ApiError::from(failure).of_request(&id);
            tracing::info!(request = %id, ?error, "exec refused or failed");
            Err(error)
        }
    }
}

/// What would be said to an exec; nothing is started. The no is the error that the exec itself would get.
pub(super) async fn explain(
    AxumState(state): AxumState<State>,
    Extension(call): Extension<Call>,
    Extension(RequestId(id)): Extension<RequestId>,
    Body(request): Body<ExecRequest>,
) -> Result<Json<ExplainAnswer>, ApiError> {
    let explained = state.pipeline.explain(&call, &request).await;
    let verdict = explained.map_err(|failure| ApiError::from(failure).of_request(&id))?;
    Ok(Json(ExplainAnswer {
        allowed: verdict.refusal.is_none(),
        layer: serde_json::to_value(verdict.layer).unwrap_or_default(),
        rule: verdict.rule,
        profile_hash: verdict.profile_hash,
        refusal: verdict.refusal.map(|refusal| ApiError::from(refusal).of_request(&id).body()),
        changes: serde_json::to_value(verdict.changes).unwrap_or_default(),
        sufficient: verdict.sufficient,
        alternatives: verdict.alternatives,
    }))
}

pub(super) async fn cancel_exec(
    AxumState(state): AxumState<State>,
    Extension(principal): Extension<Principal>,
    Extension(RequestId(id)): Extension<RequestId>,
    Path(exec): Path<String>,
) -> Result<StatusCode, ApiError> {
    let unknown = || ApiError::from(crate::policy::Refusal::NoSuchExec).of_request(&id);
    let exec: ExecId = exec.parse().map_err(|_| unknown())?;
    state.pipeline.cancel(&principal, &exec).map_err(|refusal| ApiError::from(refusal).of_request(&id))?;
    Ok(StatusCode::ACCEPTED)
}

pub(super) async fn health(AxumState(state): AxumState<State>) -> Json<HealthAnswer> {
    let pipeline = &state.pipeline;
    let in_force = pipeline.in_force().await;
    let host = state.doctor.host();
    Json(HealthAnswer {
        status: if pipeline.draining() { "draining" } else { "ok" }.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: host.kernel.release.clone(),
        landlock_abi: host.kernel.landlock_abi,
        cgroup_mode: host.cgroup_mode,
        controllers: host.cgroup_layers.iter().map(|layer| layer.name().to_owned()).collect(),
        profiles: usable(&in_force),
        policy_version_hash: in_force.version_hash.clone(),
        profiles_error: in_force.error.clone(),
        running: pipeline.running(),
        queued: pipeline.queued(),
        execs_started: pipeline.started(),
        healthy: state.doctor.answer(&in_force).ok,
        pool: pool(&state.warden, &in_force).await,
        admission: admission(pipeline.pressure()),
    })
}

pub(super) async fn metrics(AxumState(state): AxumState<State>) -> ([(HeaderName, &'static str); 1], String) {
    let in_force = state.pipeline.in_force().await;
    for of in pool(&state.warden, &in_force).await {
        let PoolAnswer { profile, idle, busy, target, hits, misses } = of;
        observe::pool(profile, [idle, busy, target].map(u64::from), hits, misses);
    }
    let text = state.metrics.render(
        state.pipeline.running(),
        state.pipeline.queued(),
        state.pipeline.live_sessions(),
        state.pipeline.waiting_ahead(),
        state.pipeline.pressure().held_back.is_some(),
    );
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

fn admission(view: PressureView) -> AdmissionAnswer {
    let PressureView { pressure_known, memory_known, held_back } = view;
    AdmissionAnswer { pressure_known, memory_known, held_back: held_back.map(|short| short.name().to_owned()) }
}

async fn pool(warden: &Warden, in_force: &InForce) -> Vec<PoolAnswer> {
    let pools = warden.pool().await.unwrap_or_default(); // a warden that is gone ends the daemon in a moment
    let answer = |(profile, pool): (&crate::profile::Profile, crate::executor::PoolGauges)| PoolAnswer {
        profile: profile.id.clone(),
        idle: pool.idle,
        busy: pool.busy,
        target: pool.target,
        hits: pool.hits,
        misses: pool.misses,
    };
    in_force.profiles.iter().zip(pools).map(answer).collect()
}

pub(super) async fn doctor(AxumState(state): AxumState<State>) -> Response {
    let in_force = state.pipeline.in_force().await;
    Json(state.doctor.examine(&in_force, &state.journal, state.pipeline.pressure()).await).into_response()
}

/// Profiles whose every required layer is there.
fn usable(in_force: &InForce) -> Vec<String> {
    let profiles = in_force.profiles.iter().zip(&in_force.states);
    let usable = profiles.filter(|(_, state)| **state == ProfileState::Usable);
    usable.map(|(profile, _)| profile.id.clone()).collect()
}

/// A profile as it is enforced.
fn profile_answer(in_force: &InForce, place: usize) -> Option<ProfileAnswer> {
    let profile = in_force.profiles.iter().nth(place)?;
    Some(ProfileAnswer {
        id: profile.id.clone(),
        description: profile.description.clone(),
        hash: profile.hash().to_owned(),
        state: match in_force.states.get(place)? {
            ProfileState::Usable => "usable".to_owned(),
            ProfileState::Missing(layer) => format!("layer {} is missing", layer.name()),
            ProfileState::NoRoot => "its root tree could not be built".to_owned(),
        },
        rootfs: match &profile.rootfs {
            Rootfs::Host => "host".to_owned(),
            Rootfs::Directory(path) => path.display().to_string(),
        },
        capabilities: profile.capabilities(),
        terms: serde_json::to_value(&profile.terms).unwrap_or_default(),
        grant_required: profile.grant_required,
        security_mode: profile.security_mode,
        require: profile.require.clone(),
        landlock_min_abi: profile.landlock_min_abi,
        seccomp: in_force.filters.get(place)?.clone(),
        tcp: profile.tcp,
        net_namespace: profile.net_namespace,
        limits: profile.limits,
        env: profile.env.clone(),
    })
}

pub(super) async fn list_profiles(AxumState(state): AxumState<State>) -> Json<ProfilesAnswer> {
    let in_force = state.pipeline.in_force().await;
    let places = 0..in_force.profiles.iter().len();
    let items = places.filter_map(|place| profile_answer(&in_force, place)).collect();
    Json(ProfilesAnswer { items, next_cursor: None })
}

pub(super) async fn show_profile(
    AxumState(state): AxumState<State>,
    Extension(RequestId(id)): Extension<RequestId>,
    Path(profile): Path<String>,
) -> Result<Json<ProfileAnswer>, ApiError> {
    let in_force = state.pipeline.in_force().await;
    let place = in_force.profiles.find(&profile).map(|(place, _)| usize::from(place));
    let found = place.and_then(|place| profile_answer(&in_force, place));
    found.map(Json).ok_or_else(|| ApiError::not_found().of_request(&id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_taken_from_a_good_header_only() {
        let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(trace_id(&format!("00-{trace}-00f067aa0ba902b7-01")).as_deref(), Some(trace));
        assert!(trace_id(&traceparent(trace)).is_some_and(|again| again == trace));
        for bad in [
            "",
            "00",
            &format!("ff-{trace}-00f067aa0ba902b7-01"),
            &format!("00-{trace}-0000000000000000-01"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            &format!("00-{}-00f067aa0ba902b7-01", trace.to_uppercase()),
        ] {
            assert_eq!(trace_id(bad), None, "{bad}");
        }
    }

    fn field(json: &str) -> String {
        let error = parse::<ExecRequest>(json.as_bytes()).expect_err("a bad request");
        serde_json::to_value(format!("{error:?}")).expect("text").to_string()
    }

    #[test]
    fn mistakes_in_a_body_name_their_field() {
        for (json, expected) in [
            (r#"{"exec":{"kind":"process","command":"true"},"colour":1}"#, "colour"),
            (r#"{"exec":{"kind":"process","colour":1}}"#, "exec.colour"),
            (r#"{"exec":{"kind":"rocket"}}"#, "exec.kind"),
            (r#"{"exec":{"kind":"process","args":[1]}}"#, "exec.args[0]"),
            (r#"{"timeout_ms":-1,"exec":{"kind":"process"}}"#, "timeout_ms"),
            (r#"{"timeout_ms":18446744073709551616,"exec":{"kind":"process"}}"#, "timeout_ms"),
            (
                r#"{"policy_overrides":{"limits":{"pids":-1}},"exec":{"kind":"process"}}"#,
                "policy_overrides.limits.pids",
            ),
            ("{}", "exec"),
        ] {
            assert!(field(json).contains(&format!("\\\"{expected}\\\"")), "{json}: {}", field(json));
        }
    }
}
