//! What goes over the wire beside the request: answers, errors, health. `sandboxctl` sees only this and `model`.

mod files;
mod live;
mod sandboxes;
mod sessions;
mod snapshots;

pub use files::*;
pub use live::*;
pub use sandboxes::*;
pub use sessions::*;
pub use snapshots::*;

use crate::model::{
    Amounts, Budget, CallReport, CapabilitySet, Ending, Enforcement, ExecSpec, Layer, LimitHit, Limits, NetNamespace,
    Outcome, Output, PolicyOverrides, Role, SeccompReport, Tcp, Timestamp, Usage,
};
use crate::terms::SecurityMode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// Answer to an exec that ran, whatever its program did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ExecAnswer {
    /// Its id.
    pub exec_id: String,
    /// The profile it ran under.
    pub profile: String,
    /// The end in one word.
    pub status: Ending,
    /// Exit code, if the program exited.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it.
    pub signal: Option<String>,
    /// `failed_to_start`: why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_error: Option<String>,
    /// Standard output, if it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// Standard output, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    /// Standard error, if it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// Standard error, if it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
    /// Whether output was cut.
    pub stdout_truncated: bool,
    /// Whether error output was cut.
    pub stderr_truncated: bool,
    /// What the kernel counted.
    pub usage: Usage,
    /// Limits that were reached.
    pub limits_hit: Vec<LimitHit>,
    /// What stood around it.
    pub enforcement: Enforcement,
    /// What its code looked like: a hint, `{"level", "findings", "parsed"}`.
    #[serde(default)]
    pub risk: serde_json::Value,
    /// Of a call of a session: what its interpreter said, and how it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<Box<CallReport>>,
    /// Its records.
    #[serde(default)]
    pub evidence: Option<EvidencePair>,
    /// Where what it left is; absent without a project, as are the next three.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifacts_dir: Option<String>,
    /// Its output, as far as it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_path: Option<String>,
    /// Its error output, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_path: Option<String>,
    /// Every file that it left; absent if they could not be listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifacts: Option<Vec<ArtifactAnswer>>,
    /// Which paths of the work area changed while it ran, if `report` asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<ChangesAnswer>,
}

/// The records of one exec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EvidencePair {
    /// Written before its program's first instruction.
    pub begin: String,
    /// Written before its answer.
    pub end: String,
}

/// Text where the kept bytes are UTF-8 (a cut may have split the last character), base64 where they are not.
fn as_text(output: &Output) -> (Option<String>, Option<String>) {
    let kept = &output.kept;
    match std::str::from_utf8(kept) {
        Ok(text) => (Some(text.to_owned()), None),
        Err(error) if output.truncated() && error.error_len().is_none() => {
            (Some(String::from_utf8_lossy(&kept[..error.valid_up_to()]).into_owned()), None)
        }
        Err(_) => (None, Some(BASE64.encode(kept))),
    }
}

impl ExecAnswer {
    /// The answer for an outcome.
    #[must_use]
    pub fn new(exec_id: String, profile: String, outcome: Outcome) -> Self {
        let (stdout, stdout_base64) = as_text(&outcome.stdout);
        let (stderr, stderr_base64) = as_text(&outcome.stderr);
        Self {
            exec_id,
            profile,
            status: outcome.ending,
            exit_code: outcome.exit_code,
            signal: outcome.signal,
            start_error: outcome.start_error,
            stdout,
            stdout_base64,
            stderr,
            stderr_base64,
            stdout_truncated: outcome.stdout.truncated(),
            stderr_truncated: outcome.stderr.truncated(),
            usage: outcome.usage,
            limits_hit: outcome.limits_hit,
            enforcement: outcome.enforcement,
            risk: serde_json::Value::Null,
            session: outcome.call,
            evidence: None,
            artifacts_dir: None,
            stdout_path: None,
            stderr_path: None,
            artifacts: None,
            files: None,
        }
    }
}

/// Every error has this shape.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ErrorAnswer {
    /// The error.
    pub error: ErrorBody,
}

/// What went wrong, for programs and for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ErrorBody {
    /// The precise reason in snake case.
    pub code: String,
    /// The stable family.
    pub class: String,
    /// For people; names the thing and, where known, the cure.
    pub message: String,
    /// For programs: the field, the limit, the layer.
    pub details: serde_json::Value,
    /// Whether the same request may work later.
    pub retryable: bool,
    /// Find it in the log by this.
    pub request_id: String,
}

/// State of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CheckState {
    /// As it should be.
    Ok,
    /// Works, but less than it could.
    Degraded,
    /// Does not work.
    Failed,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Check {
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: CheckState,
    /// What was found.
    pub found: String,
    /// What would make it better; absent when it is as it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cure: Option<String>,
}

/// `GET /v1/doctor`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DoctorAnswer {
    /// Whether no check failed.
    pub ok: bool,
    /// All checks.
    pub checks: Vec<Check>,
}

/// `GET /v1/health`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HealthAnswer {
    /// `ok` or `draining`.
    pub status: String,
    /// Version of the daemon.
    pub version: String,
    /// Kernel release.
    pub kernel: String,
    /// Landlock ABI.
    pub landlock_abi: u32,
    /// `v1` or `v2`.
    pub cgroup_mode: crate::model::CgroupMode,
    /// Controllers that hold limits.
    pub controllers: Vec<String>,
    /// Profiles that can be used.
    pub profiles: Vec<String>,
    /// Hash over all profiles in force.
    #[serde(default)]
    pub policy_version_hash: String,
    /// Why a newer set of profiles is not in force, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiles_error: Option<String>,
    /// Execs that are running.
    pub running: usize,
    /// Execs that wait for a place.
    pub queued: usize,
    /// Sandboxes that were asked for since the start; a refusal asks for none.
    pub execs_started: u64,
    /// Whether every check of the doctor passed.
    pub healthy: bool,
    /// Sandboxes that wait for a run, by profile; empty if the warden can't say.
    #[serde(default)]
    pub pool: Vec<PoolAnswer>,
    /// Whether execs wait because the host is short of something.
    #[serde(default)]
    pub admission: AdmissionAnswer,
}

/// What is known of the host, and what follows for execs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AdmissionAnswer {
    /// Whether the kernel tells pressure (PSI).
    pub pressure_known: bool,
    /// Whether it tells how much memory is available.
    pub memory_known: bool,
    /// Why execs are held back in the queue, if they are: `cpu`, `memory` or `available`.
    pub held_back: Option<String>,
}

/// The waiting sandboxes of one profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PoolAnswer {
    /// Whose.
    pub profile: String,
    /// How many wait.
    pub idle: u16,
    /// How many run a program.
    pub busy: u16,
    /// How many should wait, by recent demand.
    pub target: u16,
    /// Runs that got a waiting sandbox since the profiles were read.
    pub hits: u64,
    /// Runs that had to build their own.
    pub misses: u64,
}

/// `POST /v1/tokens`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTokenRequest {
    /// What its owner calls it.
    pub name: String,
    /// The account it acts for.
    pub tenant: String,
    /// The caller within it.
    pub subject: String,
    /// What it may do.
    pub roles: Vec<Role>,
    /// Profiles it may use; all if left out.
    #[serde(default)]
    pub profiles: Option<Vec<String>>,
    /// When it ends, in milliseconds since the epoch; never if left out.
    #[serde(default)]
    pub expires_at_ms: Option<u64>,
}

/// A token, without its secret but for the one answer that makes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TokenAnswer {
    /// Its id.
    pub token_id: String,
    /// What its owner calls it.
    pub name: String,
    /// The account it acts for.
    pub tenant: String,
    /// The caller within it.
    pub subject: String,
    /// What it may do.
    pub roles: Vec<String>,
    /// Profiles it may use; null: all.
    pub profiles: Option<Vec<String>>,
    /// When it was made.
    pub created_at_ms: u64,
    /// When it ends; null: never.
    pub expires_at_ms: Option<u64>,
    /// When it was revoked; null: it is live.
    pub revoked_at_ms: Option<u64>,
    /// Shown once, when it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// `GET /v1/tokens`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TokensAnswer {
    /// All of them, oldest first.
    pub items: Vec<TokenAnswer>,
    /// Always null: there are few.
    pub next_cursor: Option<String>,
}

/// `POST /v1/grants`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewGrantRequest {
    /// The account that is charged; the issuer's own if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// For whom.
    pub subject: String,
    /// For which tool: `python.exec`, `shell.exec`, `process.exec`, `filesystem.read`, …, a skill's id, or `*`.
    pub tool: String,
    /// For which call.
    pub call_id: String,
    /// What it permits: `"shell"`, `"filesystem:read"`, or an allowance with its resources.
    pub capabilities: serde_json::Value,
    /// Until when, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// Or for how long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
    /// What may be used up; what is left out has no end.
    #[serde(default)]
    pub budget: Budget,
    /// The decision it comes from: one decision gives one grant, ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision_key_fingerprint: Option<String>,
    /// The decision's key itself, of which the fingerprint is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision_key: Option<String>,
}

/// `POST /v1/grants/{id}/revoke`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeGrantRequest {
    /// Why; it goes into the evidence of what it ends.
    pub reason: String,
}

/// A grant as it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct GrantAnswer {
    /// Its id.
    pub grant_id: String,
    /// `live`, `expired` or `revoked`.
    pub state: String,
    /// The account that is charged.
    pub tenant: String,
    /// For whom.
    pub subject: String,
    /// For which tool.
    pub tool: String,
    /// For which call.
    pub call_id: String,
    /// What it permits.
    pub capabilities: serde_json::Value,
    /// Until when.
    pub expires_at: Timestamp,
    /// What may be used up; what is left out has no end.
    pub budget: Budget,
    /// What was used up or is held by running execs.
    pub spent: Amounts,
    /// What is left.
    pub remaining: Budget,
    /// The decision it comes from.
    pub decision_key_fingerprint: String,
    /// Who issued it.
    pub issued_by: String,
    /// When.
    pub created_at: Timestamp,
    /// When it was taken back; null: it was not.
    pub revoked_at: Option<Timestamp>,
    /// Why.
    pub revoke_reason: Option<String>,
}

/// `GET /v1/grants`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct GrantsAnswer {
    /// Newest first.
    pub items: Vec<GrantAnswer>,
    /// Where the next page begins; null after the last.
    pub next_cursor: Option<String>,
}

/// `POST /v1/confirmations/{id}/approve`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApproveRequest {
    /// The digest of what the approver has seen; anything else is not approved.
    pub digest: String,
}

/// `POST /v1/confirmations/{id}/deny`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DenyRequest {
    /// Why; the caller reads it.
    #[serde(default)]
    pub reason: String,
}

/// `POST /v1/confirmations/{id}/edit`: what is left out stays; the answer has the new digest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EditRequest {
    /// Another program.
    #[serde(default)]
    pub exec: Option<ExecSpec>,
    /// What is narrower than the profile.
    #[serde(default)]
    pub policy_overrides: Option<PolicyOverrides>,
    /// Less time.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
}

/// `GET /v1/confirmations`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ConfirmationsAnswer {
    /// What waits, oldest first: `confirmation_id tenant subject profile reason digest argv cwd env_keys inputs
    /// stdin_bytes task_ref created_at expires_at`.
    pub items: Vec<serde_json::Value>,
    /// Always null: few wait.
    pub next_cursor: Option<String>,
}

/// `POST /v1/explain`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ExplainAnswer {
    /// Whether the exec would start.
    pub allowed: bool,
    /// Whose rule decides: `access`, `profile`, `grant`, `request`, `approver`, `host`, `daemon`.
    pub layer: serde_json::Value,
    /// Which rule.
    pub rule: String,
    /// The hash that evidence would carry.
    pub profile_hash: Option<String>,
    /// The error that the exec would get.
    pub refusal: Option<ErrorBody>,
    /// The smallest changes that would allow it: `layer`, `of`, `field`, `how` (`add`, `set`), `value`.
    pub changes: serde_json::Value,
    /// Whether it would start with them; that was tried.
    pub sufficient: bool,
    /// Profiles under which it would start as it is.
    pub alternatives: Vec<String>,
}

/// A record of the chain as it was written: its place, its hash, its id, and what its kind has beside them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EvidenceRecord {
    /// Its place in the chain.
    pub seq: u64,
}

/// `GET /v1/evidence`: records as they stand in the chain, each with its hash.
#[derive(Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EvidencePage {
    /// Newest first.
    #[schema(value_type = Vec<EvidenceRecord>)]
    pub items: Vec<Box<RawValue>>,
    /// Where the next page goes on; null: that was all. A page with one may be short.
    pub next_cursor: Option<String>,
}

/// `GET /v1/evidence/{id}`
#[derive(Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EvidenceAnswer {
    /// The record.
    #[schema(value_type = EvidenceRecord)]
    pub record: Box<RawValue>,
    /// The end of a begin, the begin of an end.
    #[schema(value_type = Option<EvidenceRecord>)]
    pub counterpart: Option<Box<RawValue>>,
    /// What stood around the operation.
    #[schema(value_type = Option<serde_json::Value>)]
    pub enforcement: Option<Box<RawValue>>,
}

/// `GET /v1/evidence/key`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EvidenceKeyAnswer {
    /// `ed25519`.
    pub algorithm: String,
    /// 64 hexadecimal digits.
    pub public_key: String,
    /// The same as a PEM file.
    pub pem: String,
}

/// `GET /v1/profiles/{id}`: a profile as it is enforced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ProfileAnswer {
    /// Its name.
    pub id: String,
    /// For whom it is.
    pub description: String,
    /// SHA-256 of everything it says.
    pub hash: String,
    /// `usable`, or what this host lacks for it.
    pub state: String,
    /// `host` or a directory.
    pub rootfs: String,
    /// What callers may do: `shell` is all of it, `filesystem:read` one operation.
    pub capabilities: CapabilitySet,
    /// All that it says about uses: allowances with their resources, lists, sizes, templates, consent.
    pub terms: serde_json::Value,
    /// Whether nothing runs without a grant.
    pub grant_required: bool,
    /// What a hint of risk leads to.
    pub security_mode: SecurityMode,
    /// Layers without which nothing runs.
    pub require: Vec<Layer>,
    /// Landlock ABI from which that layer counts as there.
    pub landlock_min_abi: u32,
    /// Its filter.
    pub seccomp: SeccompReport,
    /// TCP inside.
    pub tcp: Tcp,
    /// Whether its network namespaces are used again.
    pub net_namespace: NetNamespace,
    /// The most any run may have.
    pub limits: Limits,
    /// Environment of every program.
    pub env: BTreeMap<String, String>,
}

/// `GET /v1/profiles`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ProfilesAnswer {
    /// All of them.
    pub items: Vec<ProfileAnswer>,
    /// Always null: there are few.
    pub next_cursor: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_that_is_not_text_comes_as_base64() {
        let output = Output { kept: vec![0xff, 0xfe], total: 2 };
        assert_eq!(as_text(&output), (None, Some("//4=".to_owned())));
    }

    #[test]
    fn a_cut_through_a_character_is_still_text() {
        let output = Output { kept: "aä".as_bytes()[..2].to_vec(), total: 3 };
        assert_eq!(as_text(&output), (Some("a".to_owned()), None));
    }
}
