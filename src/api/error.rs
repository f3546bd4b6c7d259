//! The only mapping to HTTP: every refusal and fault to its status, code, class and words.
//!
//! The chain of causes goes to the log under the request id; the caller gets the message made here.

mod refused;

use super::wire::{ErrorAnswer, ErrorBody};
use crate::evidence::EvidenceError;
use crate::executor::RunError;
use crate::isolation::probe::Kernel;
use crate::isolation::warden::protocol::Refused;
use crate::isolation::warden::words::WordsError;
use crate::ledger::LedgerError;
use crate::model::{Class, Layer};
use crate::pipeline::Failure;
use crate::policy::Refusal;
use crate::workspace::WorkspaceError;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use nix::errno::Errno;
use serde_json::{Value, json};

/// An error on its way to the caller.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    code: &'static str,
    class: Class,
    message: String,
    details: Value,
    retryable: bool,
    request_id: String,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, class: Class, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, code, class, message, details: json!({}), retryable: false, request_id: String::new() }
    }

    fn details(self, details: Value) -> Self {
        Self { details, ..self }
    }

    fn retryable(self) -> Self {
        Self { retryable: true, ..self }
    }

    /// The error under the id of its request.
    pub(super) fn of_request(self, request_id: &str) -> Self {
        Self { request_id: request_id.to_owned(), ..self }
    }

    pub(super) fn unauthenticated() -> Self {
        let message =
            "no [access] rule of the daemon's config matches this caller; add its uid or put it in a listed group";
        Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", Class::PermissionDeny, message)
    }

    pub(super) fn not_found() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not_found",
            Class::Schema,
            "there is no such thing here; GET /v1/health answers",
        )
    }

    pub(super) fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            Class::Schema,
            "this address does not take that method",
        )
    }

    pub(super) fn body_too_large(limit: usize) -> Self {
        let message = format!("the body is larger than {limit} bytes; put large data into a project's workspace");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", Class::CapabilityBlocked, message)
            .details(json!({"limit_bytes": limit}))
    }

    pub(super) fn not_json() -> Self {
        let message = "the body is said to be something other than JSON; send content-type: application/json";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_json", Class::Schema, message)
            .details(json!({"field": "content-type"}))
    }

    pub(super) fn body_timed_out() -> Self {
        let message = "the body did not come in time; nothing was done";
        Self::new(StatusCode::REQUEST_TIMEOUT, "body_timed_out", Class::Timeout, message).retryable()
    }

    pub(super) fn bad_body(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_body", Class::Schema, message)
    }

    pub(super) fn field(field: &str, problem: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_field", Class::Schema, format!("{field}: {problem}"))
            .details(json!({"field": field}))
    }

    /// A key that was used for something else, or is in use.
    pub(super) fn key_taken(code: &'static str, message: &str) -> Self {
        Self::new(StatusCode::CONFLICT, code, Class::Schema, message).details(json!({"field": "idempotency-key"}))
    }

    /// Nobody else finds room at a program.
    pub(super) fn too_many_attached() -> Self {
        let message = "as many callers are attached to this exec as may be; try again when one has left";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_attached", Class::BudgetExceeded, message).retryable()
    }

    /// The same, for what may work later.
    pub(super) fn try_again(self) -> Self {
        self.retryable()
    }

    /// The same about fields that have other names where the caller wrote them: the longest prefix first.
    pub(super) fn in_words_of(mut self, names: &[(&str, &str)]) -> Self {
        let Some(field) = self.details.get("field").and_then(Value::as_str).map(str::to_owned) else { return self };
        let renamed = names.iter().find_map(|(theirs, ours)| Some(format!("{ours}{}", field.strip_prefix(theirs)?)));
        if let Some(renamed) = renamed {
            self.message = self.message.replacen(&field, &renamed, 1);
            self.details["field"] = renamed.into();
        }
        self
    }

    fn invalid_path(field: &str, reason: impl serde::Serialize, message: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_path", Class::Schema, message)
            .details(json!({"field": field, "reason": reason}))
    }

    fn boundary(field: &str) -> Self {
        let message = format!("{field} leads through a link or across the boundary of the workspace");
        Self::new(StatusCode::FORBIDDEN, "boundary", Class::CapabilityBlocked, message).details(json!({"field": field}))
    }

    fn of_file(status: StatusCode, code: &'static str, class: Class, error: &WorkspaceError, path: &str) -> Self {
        Self::new(status, code, class, error.to_string()).details(json!({"path": path}))
    }

    fn layer_missing(layer: Layer, what: impl std::fmt::Display) -> Self {
        let (name, cure) = (layer.name(), Kernel::cure(layer));
        let message = format!("layer {name} can't be had in full: {what}; nothing was started. Cure: {cure}");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "layer_missing", Class::Unavailable, message)
            .details(json!({"layer": name, "cure": cure}))
    }

    fn no_grant(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, code, Class::PermissionDeny, message).details(json!({"field": "grant_id"}))
    }

    /// The exec could not be carried out by our fault; nothing of the program ran.
    fn execution_failed() -> Self {
        let message = "the exec could not be carried out; the daemon's log has the cause under this request id";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "execution_failed", Class::ExecutionFailed, message)
    }

    fn internal() -> Self {
        let message = "the daemon failed; its log has the cause under this request id";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", Class::Internal, message)
    }
}

impl From<WordsError> for ApiError {
    fn from(error: WordsError) -> Self {
        let field = match &error {
            WordsError::Nul(field)
            | WordsError::Empty(field)
            | WordsError::WordTooLong(field)
            | WordsError::TooMany(field) => {
                format!("exec.{field}")
            }
            WordsError::TooLarge | WordsError::Malformed => "exec".to_owned(),
        };
        Self::field(&field, error)
    }
}

impl From<WorkspaceError> for ApiError {
    fn from(error: WorkspaceError) -> Self {
        match error {
            WorkspaceError::NotYours => Refusal::NoSuchProject.into(),
            WorkspaceError::Missing(field) => Refusal::NoSuchDirectory { field: field.to_owned() }.into(),
            WorkspaceError::Boundary(field) => Self::boundary(field),
            WorkspaceError::NoSuchFile { ref path } => {
                Self::of_file(StatusCode::NOT_FOUND, "no_such_file", Class::Schema, &error, path)
            }
            WorkspaceError::Exists { ref path } => {
                Self::of_file(StatusCode::CONFLICT, "exists", Class::Schema, &error, path)
            }
            WorkspaceError::NotEmpty { ref path } => {
                Self::of_file(StatusCode::CONFLICT, "not_empty", Class::Schema, &error, path)
            }
            WorkspaceError::NotADirectory { ref path } => {
                Self::of_file(StatusCode::CONFLICT, "not_a_directory", Class::Schema, &error, path)
            }
            WorkspaceError::IsADirectory { ref path } => {
                Self::of_file(StatusCode::CONFLICT, "is_a_directory", Class::Schema, &error, path)
            }
            WorkspaceError::NotARegularFile { ref path } => {
                Self::of_file(StatusCode::FORBIDDEN, "not_a_regular_file", Class::CapabilityBlocked, &error, path)
            }
            WorkspaceError::Denied { ref path } => {
                Self::of_file(StatusCode::FORBIDDEN, "locked", Class::CapabilityBlocked, &error, path)
            }
            WorkspaceError::Busy { ref path } | WorkspaceError::Shrank { ref path } => {
                Self::of_file(StatusCode::CONFLICT, "busy", Class::CapabilityBlocked, &error, path).retryable()
            }
            WorkspaceError::Silent => {
                Self::new(StatusCode::REQUEST_TIMEOUT, "body_timed_out", Class::Timeout, error.to_string()).retryable()
            }
            WorkspaceError::IntoItself => Self::invalid_path("to", "into_itself", error.to_string()),
            WorkspaceError::Mismatch { what } => Self::field(what, &error),
            WorkspaceError::BadCursor => Self::field("cursor", &error),
            WorkspaceError::TooLarge { what, limit } => {
                Self::new(StatusCode::FORBIDDEN, "too_large", Class::CapabilityBlocked, error.to_string())
                    .details(json!({"what": what, "limit": limit}))
            }
            WorkspaceError::NoSnapshots => Refusal::SnapshotsUnsupported.into(),
            WorkspaceError::OverLimit { bytes, files, most_bytes, most_files } => {
                let message = format!("{error}; remove files and try again");
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "no_space", Class::BudgetExceeded, message).details(
                    json!({"bytes": bytes, "files": files, "most_bytes": most_bytes, "most_files": most_files}),
                )
            }
            WorkspaceError::NoSpace => {
                let message = "the disk or the quota of the workspace is full; remove files and try again";
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "no_space", Class::BudgetExceeded, message)
            }
            WorkspaceError::Host { what, source } => {
                tracing::error!(what, %source, "the workspace failed");
                Self::execution_failed()
            }
        }
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let errno = |raw: i32| Errno::from_raw(raw).desc();
        match refused {
            Refused::Layer(index) => {
                let layer = Layer::ALL.get(usize::from(index)).copied().unwrap_or(Layer::Mount);
                Self::layer_missing(layer, "the host does not have it")
            }
            Refused::Workspace(raw) => Self::layer_missing(Layer::Workspace, errno(raw)),
            Refused::Cgroup(raw) => Self::layer_missing(Layer::Memory, errno(raw)),
            Refused::Spawn(raw) => match Errno::from_raw(raw) {
                // What clone3 answers where namespaces are forbidden, used up or unknown.
                Errno::EPERM | Errno::ENOSPC | Errno::EUSERS | Errno::EINVAL => {
                    Self::layer_missing(Layer::User, errno(raw))
                }
                other => {
                    let message = format!("the sandbox could not be made: {}; nothing was started", other.desc());
                    let (status, class) = (StatusCode::SERVICE_UNAVAILABLE, Class::Unavailable);
                    Self::new(status, "sandbox_unavailable", class, message).retryable()
                }
            },
            Refused::Busy => Refusal::QueueFull { retry_after_ms: 1000 }.into(),
            // The front checks both before it asks; a warden that disagrees has another set of profiles.
            Refused::Profile | Refused::Wider(_) => {
                tracing::error!(?refused, "front and warden disagree about a profile");
                Self::internal()
            }
        }
    }
}

impl From<RunError> for ApiError {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Words(error) => error.into(),
            RunError::Workspace(error) => error.into(),
            RunError::Overtaken => {
                let message = "the profiles changed while the exec was being started; try again";
                let (status, class) = (StatusCode::SERVICE_UNAVAILABLE, Class::Unavailable);
                Self::new(status, "profiles_changed", class, message).retryable()
            }
            RunError::Refused(refused) => refused.into(),
            RunError::Layer(fault) => match fault.step.layer() {
                Some(layer) => Self::layer_missing(layer, fault),
                None => {
                    tracing::error!(%fault, "a sandbox failed before its program started");
                    Self::execution_failed()
                }
            },
            RunError::Gone(gone) => {
                let (status, class) = (StatusCode::SERVICE_UNAVAILABLE, Class::Unavailable);
                Self::new(status, "warden_gone", class, gone.to_string()).retryable()
            }
            RunError::Pipes(error) => {
                tracing::error!(%error, "could not make pipes");
                Self::execution_failed()
            }
        }
    }
}

impl From<LedgerError> for ApiError {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::TokenNotFound(_) | LedgerError::NotFound(_) => {
                Self::new(StatusCode::NOT_FOUND, "not_found", Class::Schema, "there is no such thing of yours")
            }
            LedgerError::SandboxNotFound(_) => {
                let message = "there is no such sandbox of yours; it may have expired";
                Self::new(StatusCode::NOT_FOUND, "no_such_sandbox", Class::Schema, message)
            }
            LedgerError::SnapshotNotFound(_) => {
                let message = "there is no such snapshot of yours";
                Self::new(StatusCode::NOT_FOUND, "no_such_snapshot", Class::Schema, message)
            }
            LedgerError::TooManySnapshots(most) => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_snapshots", Class::BudgetExceeded, error.to_string())
                    .details(json!({"most": most}))
            }
            LedgerError::ExecNotFound(_) => {
                let message = "there is no such exec of yours, or it left nothing";
                Self::new(StatusCode::NOT_FOUND, "no_such_exec", Class::Schema, message)
            }
            LedgerError::TooLong { field, .. } => Self::field(field, &error),
            LedgerError::EmptyKey => Self::field("idempotency-key", &error),
            LedgerError::TooManyClaims(most) => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_keys", Class::BudgetExceeded, error.to_string())
                    .details(json!({"most": most, "retry_after_ms": 1000}))
                    .retryable()
            }
            LedgerError::TooManySandboxes(most) => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_sandboxes", Class::BudgetExceeded, error.to_string())
                    .details(json!({"most": most}))
            }
            LedgerError::FingerprintUsed => {
                let message = "this decision was turned into a grant before; one decision gives one grant, ever";
                Self::new(StatusCode::CONFLICT, "fingerprint_used", Class::PermissionDeny, message)
                    .details(json!({"field": "decision_key_fingerprint"}))
            }
            error => {
                tracing::error!(error = &error as &dyn std::error::Error, "the ledger failed");
                Self::internal()
            }
        }
    }
}

impl From<EvidenceError> for ApiError {
    fn from(error: EvidenceError) -> Self {
        let (status, class) = (StatusCode::SERVICE_UNAVAILABLE, Class::Unavailable);
        match error {
            EvidenceError::Full { .. } => {
                let message = "the disk of the daemon's evidence is full, so nothing is started; make room on it";
                Self::new(status, "evidence_full", class, message).retryable()
            }
            EvidenceError::Closed => {
                let message = "the daemon is going down and records nothing more; try again in a moment";
                Self::new(status, "draining", class, message).retryable()
            }
            error => {
                tracing::error!(error = &error as &dyn std::error::Error, "the journal of evidence failed");
                let message = "no record can be written, so nothing is started; the daemon's log has the cause";
                Self::new(status, "evidence_unavailable", class, message).retryable()
            }
        }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(refusal) => refusal.into(),
            Failure::Run(error) => error.into(),
            Failure::Ledger(error) => error.into(),
            Failure::Evidence(error) => error.into(),
            Failure::Internal => Self::internal(),
        }
    }
}

impl ApiError {
    /// What the caller reads.
    pub(super) fn body(self) -> ErrorBody {
        ErrorBody {
            code: self.code.to_owned(),
            class: self.class.name().to_owned(),
            message: self.message,
            details: self.details,
            retryable: self.retryable,
            request_id: self.request_id,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let retry_after = self.details.get("retry_after_ms").and_then(Value::as_u64);
        let status = self.status;
        let mut response = (status, Json(ErrorAnswer { error: self.body() })).into_response();
        if let Some(ms) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000)));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_of_files_has_its_status_and_family() {
        let path = || "a".to_owned();
        for (error, status, code, class) in [
            (WorkspaceError::NotYours, 404, "no_such_project", Class::Schema),
            (WorkspaceError::Boundary("path"), 403, "boundary", Class::CapabilityBlocked),
            (WorkspaceError::NoSuchFile { path: path() }, 404, "no_such_file", Class::Schema),
            (WorkspaceError::Exists { path: path() }, 409, "exists", Class::Schema),
            (WorkspaceError::NotEmpty { path: path() }, 409, "not_empty", Class::Schema),
            (WorkspaceError::Denied { path: path() }, 403, "locked", Class::CapabilityBlocked),
            (WorkspaceError::TooLarge { what: "bytes", limit: 7 }, 403, "too_large", Class::CapabilityBlocked),
            (WorkspaceError::NoSpace, 507, "no_space", Class::BudgetExceeded),
            (
                WorkspaceError::OverLimit { bytes: 2, files: 1, most_bytes: 1, most_files: 1 },
                507,
                "no_space",
                Class::BudgetExceeded,
            ),
            (WorkspaceError::BadCursor, 422, "invalid_field", Class::Schema),
        ] {
            let words = error.to_string();
            let error = ApiError::from(error);
            assert_eq!((error.status.as_u16(), error.code, error.class), (status, code, class), "{words}");
        }
    }
}
