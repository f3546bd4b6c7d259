//! What is recorded: begins, ends and refusals as their makers give them.
//!
//! Nothing here can hold contents: what was read, written or passed is there as digests and amounts.

use super::draft::bounded;
use super::id::{Digest, EvidenceId};
use crate::model::{Ending, Enforcement, Usage};
use serde::ser::{Serialize, Serializer};
use std::borrow::Cow;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$of])* $variant,)* }

        impl $name {
            /// All of them.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The word in records, filters and answers.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }

            /// The one of that name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($word => Some($name::$variant),)* _ => None }
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> { s.serialize_str(self.name()) }
        }
    };
}

words! {
    /// What kind of operation it was.
    Operation {
        /// A program, python or shell code.
        Exec = "exec",
        /// A file of a workspace.
        File = "file",
        /// A sandbox made or removed.
        Sandbox = "sandbox",
        /// A grant issued or revoked.
        Grant = "grant",
        /// A confirmation asked for, given or denied.
        Confirmation = "confirmation",
        /// A skill invoked.
        Skill = "skill",
        /// A request that the daemon made for a program.
        Net = "net",
        /// A page of the browser.
        Browser = "browser",
    }
}

words! {
    /// How it ended, in one word.
    Status {
        /// As it should.
        Ok = "ok",
        /// With another exit code than 0.
        NonzeroExit = "nonzero_exit",
        /// By a signal.
        Signaled = "signaled",
        /// Its wall clock ran out.
        TimedOut = "timed_out",
        /// Its memory ran out.
        OomKilled = "oom_killed",
        /// Its processor time ran out.
        CpuExceeded = "cpu_exceeded",
        /// By its caller.
        Cancelled = "cancelled",
        /// By whoever took its grant back.
        Revoked = "revoked",
        /// Nobody knows: the daemon died, or let go of it.
        Lost = "lost",
        /// It never started.
        FailedToStart = "failed_to_start",
        /// The daemon or the host failed.
        Failed = "failed",
        /// Policy said no; nothing was begun.
        Refused = "refused",
    }
}

impl From<Ending> for Status {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Ok => Self::Ok,
            Ending::NonzeroExit => Self::NonzeroExit,
            Ending::Signaled => Self::Signaled,
            Ending::TimedOut => Self::TimedOut,
            Ending::OomKilled => Self::OomKilled,
            Ending::CpuExceeded => Self::CpuExceeded,
            Ending::Cancelled => Self::Cancelled,
            Ending::Revoked => Self::Revoked,
            Ending::Lost => Self::Lost,
            Ending::FailedToStart => Self::FailedToStart,
        }
    }
}

/// An operation that is about to start, or that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    /// Id of the record and of the whole operation (the envelope).
    pub id: EvidenceId,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// What kind.
    pub operation: Operation,
    /// The account.
    pub tenant: String,
    /// The caller within it.
    pub subject: String,
    /// What was asked for: `process.exec:python`.
    pub capability: String,
    /// The tool that was named.
    pub tool: Option<String>,
    /// The caller's id of its call.
    pub call_id: Option<String>,
    /// Id of the profile.
    pub profile: Option<String>,
    /// Hash of the effective policy.
    pub profile_hash: Option<Digest>,
    /// Hash of all policy that was in force.
    pub policy_version_hash: Option<Digest>,
    /// Digest of what went in.
    pub inputs_digest: Option<Digest>,
    /// The exec.
    pub exec_id: Option<String>,
    /// The sandbox.
    pub sandbox_id: Option<String>,
    /// The grant that was used.
    pub grant_id: Option<String>,
    /// The caller's task.
    pub task_ref: Option<String>,
    /// The HTTP request.
    pub request_id: Option<String>,
    /// The trace it belongs to.
    pub trace_id: Option<String>,
}

impl Begin {
    /// A begin with a new id and nothing that may be left out.
    #[must_use]
    pub fn new(operation: Operation, tenant: &str, subject: &str, capability: &str, at_ms: u64) -> Self {
        Self {
            id: EvidenceId::generate(),
            at_ms,
            operation,
            tenant: tenant.to_owned(),
            subject: subject.to_owned(),
            capability: capability.to_owned(),
            tool: None,
            call_id: None,
            profile: None,
            profile_hash: None,
            policy_version_hash: None,
            inputs_digest: None,
            exec_id: None,
            sandbox_id: None,
            grant_id: None,
            task_ref: None,
            request_id: None,
            trace_id: None,
        }
    }

    /// Whose it is and what it is about: what its end repeats.
    pub(super) fn subject_matter(&self) -> Matter {
        let owned = |text: &str| bounded(text).into_owned();
        Matter {
            begin: self.id.clone(),
            tenant: owned(&self.tenant),
            subject: owned(&self.subject),
            exec_id: self.exec_id.as_deref().map(owned),
            sandbox_id: self.sandbox_id.as_deref().map(owned),
            grant_id: self.grant_id.as_deref().map(owned),
        }
    }
}

/// What an end has in common with its begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Matter {
    pub begin: EvidenceId,
    pub tenant: String,
    pub subject: String,
    pub exec_id: Option<String>,
    pub sandbox_id: Option<String>,
    pub grant_id: Option<String>,
}

/// Something that stayed behind, as digest and amounts.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct SideEffect {
    /// What kind: `files_written`, `http_post`.
    pub what: Cow<'static, str>,
    /// Digest of what it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// How many.
    pub count: u64,
    /// How much.
    pub bytes: u64,
}

/// What was taken from a grant's budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct BudgetUsed {
    /// Calls.
    #[serde(skip_serializing_if = "is_zero")]
    pub calls: u64,
    /// Bytes that went in.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes_in: u64,
    /// Bytes that came out.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes_out: u64,
    /// Processor time.
    #[serde(skip_serializing_if = "is_zero")]
    pub cpu_ms: u64,
    /// Graphics processor time.
    #[serde(skip_serializing_if = "is_zero")]
    pub gpu_ms: u64,
    /// Files.
    #[serde(skip_serializing_if = "is_zero")]
    pub file_count: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(amount: &u64) -> bool {
    *amount == 0
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// When, in milliseconds since 1970. 0: nobody knows, the record takes the time of the one before it.
    pub at_ms: u64,
    /// In one word.
    pub status: Status,
    /// Family of the error (`QUOTA.BUDGET_EXCEEDED`).
    pub class: Option<String>,
    /// The precise error.
    pub code: Option<String>,
    /// The program's exit code.
    pub exit_code: Option<i32>,
    /// Digest of what came out.
    pub outputs_digest: Option<Digest>,
    /// What stayed behind.
    pub side_effects: Vec<SideEffect>,
    /// What was taken from the grant's budget.
    pub budget_used: Option<BudgetUsed>,
    /// What the kernel counted.
    pub usage: Option<Usage>,
    /// What stood around it.
    pub enforcement: Option<Enforcement>,
    /// In words, for people.
    pub reason: Option<String>,
}

impl End {
    /// An end with nothing that may be left out.
    #[must_use]
    pub fn new(status: Status, at_ms: u64) -> Self {
        Self {
            at_ms,
            status,
            class: None,
            code: None,
            exit_code: None,
            outputs_digest: None,
            side_effects: Vec::new(),
            budget_used: None,
            usage: None,
            enforcement: None,
            reason: None,
        }
    }

    pub(super) fn lost(reason: &str, at_ms: u64) -> Self {
        Self { reason: Some(reason.to_owned()), ..Self::new(Status::Lost, at_ms) }
    }
}

/// Why policy said no.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The precise error (`capability_not_supported`).
    pub code: String,
    /// Its family (`SCHEMA.VALIDATION_FAILED`).
    pub class: String,
    /// The rule that said no, or the field it is about; never a value.
    pub reason: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_of_a_status_and_an_operation_reads_back() {
        for &status in Status::ALL {
            assert_eq!(Status::from_name(status.name()), Some(status));
        }
        for &operation in Operation::ALL {
            assert_eq!(Operation::from_name(operation.name()), Some(operation));
        }
    }
}
