//! Sandboxes and what ran, on the wire.

use crate::model::{Input, Mode, PolicyOverrides, Report, Timestamp, Tty, Usage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `POST /v1/sandboxes`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSandboxRequest {
    /// The profile of everything in it; the usual one if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The project whose workspace it is; one of its own if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// How long it lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
    /// How long it may lie unused; until its end if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<u64>,
    /// What it is found by.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The snapshot of yours whose files it begins with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_snapshot: Option<String>,
}

/// `POST /v1/sandboxes/{id}/keepalive`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeepaliveRequest {
    /// How long from now on; a sandbox that lives longer stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
}

/// A sandbox as it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SandboxAnswer {
    /// Its id.
    pub sandbox_id: String,
    /// The profile of everything in it.
    pub profile: String,
    /// The project whose workspace it is.
    pub project_id: String,
    /// What it is found by.
    pub labels: BTreeMap<String, String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it ends.
    pub expires_at: Timestamp,
    /// How long it may lie unused; null: until its end.
    pub idle_s: Option<u64>,
    /// When it was used last.
    pub last_used_at: Timestamp,
    /// `live`, or `expired` in the moment before it goes.
    pub state: String,
}

/// `GET /v1/sandboxes`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SandboxesAnswer {
    /// Newest first.
    pub items: Vec<SandboxAnswer>,
    /// Where the next page begins; null after the last.
    pub next_cursor: Option<String>,
}

/// One capability in `GET /v1/sandboxes/{id}/capabilities`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CapabilityAnswer {
    /// Which.
    pub capability: String,
    /// Whether it can be used.
    pub enabled: bool,
    /// What the profile declares of it.
    pub operations: Vec<String>,
    /// Why it can't be used; null: it can.
    pub reason: Option<String>,
}

/// `GET /v1/sandboxes/{id}/capabilities`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CapabilitiesAnswer {
    /// Every capability that there is.
    pub items: Vec<CapabilityAnswer>,
    /// Always null: there are few.
    pub next_cursor: Option<String>,
}

/// `POST /v1/sandboxes/{id}/python/exec`, `/shell/exec`, `/process/exec`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxExecRequest {
    /// Python: the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Python and shell: the session whose state it shares; it begins with its first call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// How long the session may lie idle, if this call begins it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_idle_s: Option<u64>,
    /// Shell: the command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Process: the program and its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Python and shell: arguments of the code.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Wall-clock limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Directory below the work area.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Variables beside the profile's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Standard input as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Standard input as bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_base64: Option<String>,
    /// How the answer comes.
    #[serde(default, skip_serializing_if = "is_wait")]
    pub mode: Mode,
    /// Whether standard input stays open for more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_open: Option<bool>,
    /// The terminal that the program gets in place of pipes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<Tty>,
    /// Files to lay down in the inputs area before it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<Input>,
    /// What is to be narrower than the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_overrides: Option<PolicyOverrides>,
    /// The caller's own reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_ref: Option<String>,
    /// Grant under which it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant_id: Option<String>,
    /// The call that the grant is for, if the caller says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    /// What the answer is to tell beside the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
}

fn is_wait(mode: &Mode) -> bool {
    *mode == Mode::Wait
}

/// A file that an exec left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ArtifactAnswer {
    /// Its path in the artifacts directory.
    pub path: String,
    /// Its length in bytes.
    pub size: u64,
    /// Its digest; null if it could not be read, or is beyond what is read for digests.
    pub sha256: Option<String>,
}

/// `GET /v1/execs/{id}/artifacts`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ArtifactsAnswer {
    /// Every regular file, in the order of names.
    pub items: Vec<ArtifactAnswer>,
    /// False if there is more than the list shows, or a digest is missing.
    pub complete: bool,
    /// Always null: the list is cut, not paged.
    pub next_cursor: Option<String>,
}

/// What is known of an exec: `GET /v1/execs/{id}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ExecRecord {
    /// Its id.
    pub exec_id: String,
    /// `queued`, `running`, or how it ended.
    pub status: String,
    /// The sandbox that it was part of.
    pub sandbox_id: Option<String>,
    /// The project whose workspace it had.
    pub project_id: Option<String>,
    /// The caller's own reference.
    pub task_ref: Option<String>,
    /// The skill that it was part of.
    pub skill_id: Option<String>,
    /// The grant that paid.
    pub grant_id: Option<String>,
    /// Its profile.
    pub profile: String,
    /// `python`, `shell` or `process`.
    pub kind: String,
    /// The program.
    pub command: String,
    /// Its arguments, without code; cut if they are long.
    pub args: Vec<String>,
    /// Its directory below the work area; null: the area itself.
    pub cwd: Option<String>,
    /// Names of its variables.
    pub env_keys: Vec<String>,
    /// The policy in force.
    pub policy: serde_json::Value,
    /// Exit code, if the program exited.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it.
    pub signal: Option<String>,
    /// Why it failed, if it did.
    pub error_reason: Option<String>,
    /// When it came.
    pub queued_at: Timestamp,
    /// When it started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// From its start to its end.
    pub duration_ms: Option<u64>,
    /// Whether output was cut.
    pub stdout_truncated: bool,
    /// Whether error output was cut.
    pub stderr_truncated: bool,
    /// What the kernel counted.
    pub usage: Option<Usage>,
    /// Where its artifacts are; null: it had no project.
    pub artifacts_dir: Option<String>,
    /// Evidence of its begin.
    pub evidence_begin: Option<String>,
    /// Evidence of its end.
    pub evidence_end: Option<String>,
}

/// `GET /v1/execs`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ExecsAnswer {
    /// Newest first.
    pub items: Vec<ExecRecord>,
    /// Where the next page begins; null after the last.
    pub next_cursor: Option<String>,
}
