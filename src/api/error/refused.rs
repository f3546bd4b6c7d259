//! What a no is on the wire: its status, its code, what it says and what would help.

use super::ApiError;
use crate::policy::Refusal;
use axum::http::StatusCode;
use serde_json::json;

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let (code, class) = (refusal.code(), refusal.class());
        match refusal {
            Refusal::UnknownProfile { given, known } => {
                let message = format!("profile {given:?} is not known; there are {}", known.join(", "));
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, class, message)
                    .details(json!({"field": "profile", "known": known}))
            }
            Refusal::ProfileNotAllowed { profile } => {
                let message = format!(
                    "this caller may not use the profile {profile}; an [access] rule or its token says which it may"
                );
                Self::new(StatusCode::FORBIDDEN, code, class, message)
                    .details(json!({"field": "profile", "profile": profile}))
            }
            Refusal::RoleMissing { role } => {
                let message = format!("this needs the role {}, which an [access] rule or a token gives", role.name());
                Self::new(StatusCode::FORBIDDEN, code, class, message).details(json!({"role": role.name()}))
            }
            Refusal::CapabilityNotSupported { capability, operation, available } => {
                let name = capability.name();
                let message = format!("the profile does not declare {name}:{operation}; use one that does");
                Self::new(StatusCode::BAD_REQUEST, code, class, message)
                    .details(json!({"capability": name, "operation": operation, "available": available}))
            }
            Refusal::InvalidPath { field, reason } => {
                let message = format!("{field} must be a relative path that stays in its area");
                Self::invalid_path(&field, reason, message)
            }
            Refusal::InvalidField { field, problem } => Self::field(&field, problem),
            Refusal::RuntimeMissing { capability } => {
                let (name, programs) = (capability.name(), capability.programs());
                let message = format!(
                    "the profile declares {name}, but its root has none of {}; install one there or use another rootfs",
                    programs.join(", ")
                );
                Self::new(StatusCode::BAD_GATEWAY, code, class, message)
                    .details(json!({"capability": name, "programs": programs}))
            }
            Refusal::GrantMissing { profile } => {
                let message = format!("profile {profile} runs nothing without a grant; give grant_id");
                Self::no_grant(code, message)
            }
            Refusal::NoSuchGrant => Self::no_grant(code, "there is no such grant of yours"),
            Refusal::GrantRevoked { at } => Self::no_grant(code, format!("the grant was revoked at {at}")),
            Refusal::GrantExpired { at } => Self::no_grant(code, format!("the grant expired at {at}")),
            Refusal::GrantForOther { field, granted } => {
                Self::no_grant(code, format!("the grant's {field} is {granted}, which this call is not"))
                    .details(json!({"field": field, "granted": granted}))
            }
            Refusal::Denied { origin, denial } => {
                let (message, rule) = (format!("{denial}, says the {}", origin.name()), denial.rule());
                Self::new(StatusCode::FORBIDDEN, code, class, message).details(json!({"origin": origin, "rule": rule}))
            }
            Refusal::ConsentNeeded { reason, digest } => {
                let message = "a person has to agree to this first; an approver answers at /v1/confirmations";
                Self::new(StatusCode::FORBIDDEN, code, class, message)
                    .details(json!({"reason": reason, "digest": digest}))
            }
            Refusal::ConsentDenied { confirmation, reason } => {
                Self::new(StatusCode::FORBIDDEN, code, class, format!("a person said no: {reason}"))
                    .details(json!({"confirmation_id": confirmation}))
            }
            Refusal::ConsentTimedOut { confirmation, waited_ms } => {
                let message =
                    format!("nobody agreed within {waited_ms} ms; ask an approver to look at /v1/confirmations");
                Self::new(StatusCode::GATEWAY_TIMEOUT, code, class, message)
                    .details(json!({"confirmation_id": confirmation, "waited_ms": waited_ms}))
                    .retryable()
            }
            Refusal::NoSuchConfirmation => {
                let message = "there is no such confirmation waiting that you may see";
                Self::new(StatusCode::NOT_FOUND, code, class, message)
            }
            Refusal::OwnConfirmation => {
                let message = "nobody agrees to its own request; another approver has to";
                Self::new(StatusCode::FORBIDDEN, code, class, message)
            }
            Refusal::OtherDigest { digest } => {
                let message = "what waits is not what this digest names; look at it again";
                Self::new(StatusCode::CONFLICT, code, class, message)
                    .details(json!({"field": "digest", "digest": digest}))
            }
            Refusal::BudgetExceeded { meter, asked, left } => {
                let name = meter.name();
                let message = format!(
                    "the grant's budget has {left} {name} left and this needs {asked}; running execs hold theirs"
                );
                Self::new(StatusCode::TOO_MANY_REQUESTS, code, class, message)
                    .details(json!({"meter": name, "asked": asked, "left": left}))
            }
            Refusal::Concurrency { most, retry_after_ms } => {
                let message = format!("{most} execs of yours run under this profile, which is all it permits at once");
                Self::new(StatusCode::TOO_MANY_REQUESTS, code, class, message)
                    .details(json!({"most": most, "retry_after_ms": retry_after_ms}))
                    .retryable()
            }
            Refusal::Widens { field, asked, permitted } => {
                let message = format!("{field} is {asked}, but {permitted} is permitted; a request may only narrow");
                Self::new(StatusCode::FORBIDDEN, code, class, message)
                    .details(json!({"field": field, "asked": asked, "permitted": permitted}))
            }
            Refusal::NoSuchProject => {
                Self::new(StatusCode::NOT_FOUND, code, class, "there is no such project of yours")
                    .details(json!({"field": "project_id"}))
            }
            Refusal::NoSuchExec => {
                Self::new(StatusCode::NOT_FOUND, code, class, "there is no such running exec of yours")
            }
            Refusal::NoSuchService => {
                Self::new(StatusCode::NOT_FOUND, code, class, "the sandbox has no service of that name")
            }
            Refusal::ServiceRuns => {
                let message = "a service of that name runs in the sandbox; stop it first or choose another name";
                Self::new(StatusCode::CONFLICT, code, class, message).details(json!({"field": "name"}))
            }
            Refusal::ExecEnded => {
                Self::new(StatusCode::CONFLICT, code, class, "the exec has ended; nothing reaches it any more")
            }
            Refusal::NotStarted => {
                let message = "the exec waits for a place and has not started; try again when its events say so";
                Self::new(StatusCode::CONFLICT, code, class, message).retryable()
            }
            Refusal::StdinClosed => {
                let message = "the program takes no more input: it was closed, or started without stdin_open";
                Self::new(StatusCode::CONFLICT, code, class, message)
            }
            Refusal::StdinTooMuch { left } => {
                let message = format!("the program may be given {left} bytes more, by its profile, request or grant");
                Self::new(StatusCode::FORBIDDEN, code, class, message).details(json!({"left": left}))
            }
            Refusal::OutputGone => {
                let message = "what it wrote is not kept any more: without a project it stays for a while only";
                Self::new(StatusCode::GONE, code, class, message)
            }
            Refusal::CancelledInQueue => {
                let message = "the exec was cancelled while it waited for a place; nothing was started";
                Self::new(StatusCode::CONFLICT, code, class, message)
            }
            Refusal::NoSuchSession => {
                Self::new(StatusCode::NOT_FOUND, code, class, "there is no such session in this sandbox")
            }
            Refusal::SessionDead { name, died } => {
                let message = format!(
                    "the session {name} is dead: {died}; what it knew is gone. \
                     Cure: POST …/sessions/{name}/reset, then call it again"
                );
                Self::new(StatusCode::CONFLICT, code, class, message)
                    .details(json!({"field": "session", "session": name, "died": died, "cure": "reset"}))
            }
            Refusal::SessionBusy { most, retry_after_ms } => {
                let message = format!("{most} calls wait in this session, which is all that may; use another one");
                Self::new(StatusCode::TOO_MANY_REQUESTS, code, class, message)
                    .details(json!({"field": "session", "most": most, "retry_after_ms": retry_after_ms}))
                    .retryable()
            }
            Refusal::TooManySessions { most } => {
                let message = format!("there are {most} sessions already, which is all that may be; remove one");
                Self::new(StatusCode::TOO_MANY_REQUESTS, code, class, message).details(json!({"most": most}))
            }
            Refusal::NoSuchDirectory { field } => {
                let message = format!("{field} is not a directory of the work area; make it first or leave it out");
                Self::invalid_path(&field, "not_found", message)
            }
            Refusal::Boundary { field } => Self::boundary(&field),
            Refusal::QueueFull { retry_after_ms } => {
                let message = "all places are taken and the queue is full; try again, or raise max_concurrent_execs";
                Self::new(StatusCode::TOO_MANY_REQUESTS, code, class, message)
                    .details(json!({"retry_after_ms": retry_after_ms}))
                    .retryable()
            }
            Refusal::SnapshotsUnsupported => {
                let message = "this workspace lies in a plain directory, which has no snapshots; a store with them is \
                               made by `sandboxctl store init --size 10G` before the daemon starts, and holds new projects";
                Self::new(StatusCode::CONFLICT, code, class, message)
                    .details(json!({"cure": "sandboxctl store init --size 10G"}))
            }
            Refusal::WorkspaceBusy => {
                let message = "something runs in this workspace or changes its files; wait for its end, or cancel it";
                Self::new(StatusCode::CONFLICT, code, class, message).retryable()
            }
            Refusal::Draining => {
                let message = "the daemon is going down and takes no new execs; try again in a moment";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, code, class, message).retryable()
            }
        }
    }
}
