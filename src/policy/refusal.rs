//! A no, with the rule that said it and the field it is about.

use crate::model::{Capability, Role};
use crate::terms::path::PathReason;

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
    /// An override that asks for more than the profile gives.
    Widens {
        /// Which field.
        field: String,
        /// What was asked for.
        asked: u64,
        /// What the profile gives.
        permitted: u64,
    },
    /// The project belongs to somebody else, or there is none: the answer is the same.
    NoSuchProject,
    /// No such exec of this caller.
    NoSuchExec,
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
    /// The daemon is going down.
    Draining,
}
