//! A no, with the rule that said it and the field it is about.

use super::compose::Origin;
use super::grant::GrantDenial;
use super::guard::{ConsentReason, Denial, List};
use crate::model::{Capability, Class, ConfirmationId, Meter, Role, Timestamp};
use crate::terms::path::PathReason;
use serde_json::Value;

/// Why a request is not permitted. `api/error.rs` gives each its status, code and class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// No profile has that name.
    UnknownProfile {
        /// What was asked for.
        given: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The caller may not use that profile.
    ProfileNotAllowed {
        /// Which.
        profile: String,
    },
    /// The caller does not have the role.
    RoleMissing {
        /// Which.
        role: Role,
    },
    /// The profile does not declare the capability.
    CapabilityNotSupported {
        /// What was needed.
        capability: Capability,
        /// For what.
        operation: &'static str,
        /// What the profile has.
        available: Vec<String>,
    },
    /// A path that does not stay where it belongs.
    InvalidPath {
        /// Which field.
        field: String,
        /// Why.
        reason: PathReason,
    },
    /// A field whose value can't be used.
    InvalidField {
        /// Which field.
        field: String,
        /// What is wrong and what would be right.
        problem: String,
    },
    /// The root has no program for a capability that the profile declares.
    RuntimeMissing {
        /// Which.
        capability: Capability,
    },
    /// An override that asks for more than the profile and the grant give.
    Widens {
        /// Which field.
        field: String,
        /// What was asked for.
        asked: Value,
        /// What is given.
        permitted: Value,
    },
    /// The profile runs nothing without a grant.
    GrantMissing {
        /// Which profile.
        profile: String,
    },
    /// No such grant of this caller. Another's is as unknown as none.
    NoSuchGrant,
    /// The grant was taken back.
    GrantRevoked {
        /// When.
        at: Timestamp,
    },
    /// The grant's time is over.
    GrantExpired {
        /// Since when.
        at: Timestamp,
    },
    /// The grant is for another tool or another call.
    GrantForOther {
        /// `tool` or `call_id`.
        field: &'static str,
        /// What it is for.
        granted: String,
    },
    /// The guard's no, and the side that said it.
    Denied {
        /// Who.
        origin: Origin,
        /// What.
        denial: Box<Denial>,
    },
    /// A person has to agree first.
    ConsentNeeded {
        /// Why.
        reason: ConsentReason,
        /// What exactly has to be agreed to.
        digest: String,
    },
    /// A person said no.
    ConsentDenied {
        /// To which confirmation.
        confirmation: ConfirmationId,
        /// Why.
        reason: String,
    },
    /// Nobody answered in time.
    ConsentTimedOut {
        /// Which confirmation.
        confirmation: ConfirmationId,
        /// How long it waited.
        waited_ms: u64,
    },
    /// No such confirmation for this caller.
    NoSuchConfirmation,
    /// Nobody agrees to its own request.
    OwnConfirmation,
    /// What waits is not what the approver has seen.
    OtherDigest {
        /// What waits.
        digest: String,
    },
    /// The grant's budget does not have that much.
    BudgetExceeded {
        /// Of what.
        meter: Meter,
        /// What was asked for.
        asked: u64,
        /// What is there.
        left: u64,
    },
    /// As many execs of this caller run under the profile as may.
    Concurrency {
        /// How many may.
        most: u64,
        /// When to try again.
        retry_after_ms: u64,
    },
    /// The project belongs to somebody else, or there is none: the answer is the same.
    NoSuchProject,
    /// No such exec of this caller.
    NoSuchExec,
    /// No such service in this sandbox.
    NoSuchService,
    /// A service of that name runs already.
    ServiceRuns,
    /// The exec has ended: nothing reaches it any more.
    ExecEnded,
    /// The exec has not started yet.
    NotStarted,
    /// The program takes no more input.
    StdinClosed,
    /// The program may be given no more than so many bytes.
    StdinTooMuch {
        /// How many are left.
        left: u64,
    },
    /// What an exec wrote is not kept any more, or not in its order.
    OutputGone,
    /// Its caller cancelled it while it waited for a place; nothing was started.
    CancelledInQueue,
    /// No such session of this caller.
    NoSuchSession,
    /// The interpreter of the session is gone, and with it what it knew.
    SessionDead {
        /// Which session.
        name: String,
        /// How it died.
        died: String,
    },
    /// As many calls wait in the session as may.
    SessionBusy {
        /// How many may.
        most: u64,
        /// When to try again.
        retry_after_ms: u64,
    },
    /// The sandbox or its owner has as many sessions as it may.
    TooManySessions {
        /// How many it may have.
        most: u64,
    },
    /// A directory of the workspace is not there.
    NoSuchDirectory {
        /// Which field.
        field: String,
    },
    /// A link or another boundary on the way.
    Boundary {
        /// Which field.
        field: String,
    },
    /// All places are taken and the queue is full.
    QueueFull {
        /// When to try again.
        retry_after_ms: u64,
    },
    /// The store has no snapshots, or the project is one of a store without them.
    SnapshotsUnsupported,
    /// Something runs in the workspace, or its files are being changed.
    WorkspaceBusy,
    /// The daemon is going down.
    Draining,
}

impl From<GrantDenial> for Refusal {
    fn from(denial: GrantDenial) -> Self {
        match denial {
            GrantDenial::NotYours => Self::NoSuchGrant,
            GrantDenial::Revoked { at } => Self::GrantRevoked { at },
            GrantDenial::Expired { at } => Self::GrantExpired { at },
            GrantDenial::OtherTool { granted } => Self::GrantForOther { field: "tool", granted },
            GrantDenial::OtherCall { granted } => Self::GrantForOther { field: "call_id", granted },
        }
    }
}

impl Refusal {
    /// The precise reason, in answers, evidence and metrics.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.said().0
    }

    /// Its family.
    #[must_use]
    pub fn class(&self) -> Class {
        self.said().1
    }

    fn said(&self) -> (&'static str, Class) {
        match self {
            Self::UnknownProfile { .. } => ("unknown_profile", Class::Schema),
            Self::ProfileNotAllowed { .. } => ("profile_not_allowed", Class::PermissionDeny),
            Self::RoleMissing { .. } => ("role_missing", Class::PermissionDeny),
            Self::CapabilityNotSupported { .. } => ("capability_not_supported", Class::Schema),
            Self::InvalidPath { .. } | Self::NoSuchDirectory { .. } => ("invalid_path", Class::Schema),
            Self::InvalidField { .. } => ("invalid_field", Class::Schema),
            Self::RuntimeMissing { .. } => ("runtime_capability_missing", Class::Unavailable),
            Self::Widens { .. } => ("override_widens", Class::DenyTool),
            Self::GrantMissing { .. } => ("grant_missing", Class::PermissionDeny),
            Self::NoSuchGrant => ("no_such_grant", Class::PermissionDeny),
            Self::GrantRevoked { .. } => ("grant_revoked", Class::PermissionDeny),
            Self::GrantExpired { .. } => ("grant_expired", Class::PermissionDeny),
            Self::GrantForOther { .. } => ("grant_for_other", Class::PermissionDeny),
            Self::Denied { origin, denial } => denied(*origin, denial),
            Self::ConsentNeeded { .. } => ("consent_needed", Class::DenyTool),
            Self::ConsentDenied { .. } => ("consent_denied", Class::DenyTool),
            Self::ConsentTimedOut { .. } => ("consent_timed_out", Class::Timeout),
            Self::NoSuchConfirmation => ("no_such_confirmation", Class::Schema),
            Self::OwnConfirmation => ("own_confirmation", Class::PermissionDeny),
            Self::OtherDigest { .. } => ("other_digest", Class::Schema),
            Self::BudgetExceeded { .. } => ("budget_exceeded", Class::BudgetExceeded),
            Self::Concurrency { .. } => ("concurrency", Class::BudgetExceeded),
            Self::NoSuchProject => ("no_such_project", Class::Schema),
            Self::NoSuchExec => ("no_such_exec", Class::Schema),
            Self::NoSuchService => ("no_such_service", Class::Schema),
            Self::ServiceRuns => ("service_runs", Class::Schema),
            Self::ExecEnded => ("exec_ended", Class::Schema),
            Self::NotStarted => ("not_started", Class::Schema),
            Self::StdinClosed => ("stdin_closed", Class::Schema),
            Self::StdinTooMuch { .. } => ("too_large", Class::CapabilityBlocked),
            Self::OutputGone => ("output_gone", Class::Schema),
            Self::CancelledInQueue => ("cancelled", Class::Schema),
            Self::NoSuchSession => ("no_such_session", Class::Schema),
            Self::SessionDead { .. } => ("session_dead", Class::ExecutionFailed),
            Self::SessionBusy { .. } => ("session_busy", Class::BudgetExceeded),
            Self::TooManySessions { .. } => ("too_many_sessions", Class::BudgetExceeded),
            Self::Boundary { .. } => ("boundary", Class::CapabilityBlocked),
            Self::QueueFull { .. } => ("queue_full", Class::BudgetExceeded),
            Self::SnapshotsUnsupported => ("snapshots_not_supported", Class::Unavailable),
            Self::WorkspaceBusy => ("workspace_busy", Class::BudgetExceeded),
            Self::Draining => ("draining", Class::Unavailable),
        }
    }
}

/// The guard's no.
fn denied(origin: Origin, denial: &Denial) -> (&'static str, Class) {
    match denial {
        Denial::Capability { .. } | Denial::Resource { .. } if origin == Origin::Grant => {
            ("grant_does_not_cover", Class::PermissionDeny)
        }
        Denial::Capability { .. } => ("capability_narrowed", Class::DenyTool),
        Denial::Resource { capability: Capability::Process, .. } | Denial::NotListed { list: List::Tools, .. } => {
            ("tool_not_allowed", Class::DenyTool)
        }
        Denial::Resource { .. } => ("resource_not_allowed", Class::CapabilityBlocked),
        Denial::NotListed { list, .. } => (list.refusal_code(), Class::CapabilityBlocked),
        Denial::ShellNeeded { .. } => ("shell_not_allowed", Class::DenyTool),
        Denial::Variable { .. } => ("variable_not_allowed", Class::DenyTool),
        Denial::Argument { .. } => ("argument_not_allowed", Class::DenyTool),
        Denial::TooLarge { .. } => ("too_large", Class::CapabilityBlocked),
    }
}
