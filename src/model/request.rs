//! What a caller asks for, as it comes over the wire. Unknown keys are refused.

use super::live::Tty;
use super::object::{object, objects};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The profile of a request that names none.
pub const DEFAULT_PROFILE: &str = "python-default";

/// `POST /v1/execs`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecRequest {
    /// Profile to run under.
    #[serde(default = "default_profile")]
    pub profile: String,
    /// Project whose workspace is used; without one the work area is thrown away.
    #[serde(default)]
    pub project_id: Option<String>,
    /// Skill that the exec is part of.
    #[serde(default)]
    pub skill_id: Option<String>,
    /// The caller's own reference.
    #[serde(default)]
    pub task_ref: Option<String>,
    /// Grant under which it runs.
    #[serde(default)]
    pub grant_id: Option<String>,
    /// The call that the grant is for, if the caller says so.
    #[serde(default)]
    pub call_id: Option<String>,
    /// Whether the caller waits.
    #[serde(default)]
    pub mode: Mode,
    /// Wall-clock limit; the same as `policy_overrides.limits.wall_ms`.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Standard input as text.
    #[serde(default)]
    pub stdin: Option<String>,
    /// Standard input as bytes.
    #[serde(default)]
    pub stdin_base64: Option<String>,
    /// Whether standard input stays open for `POST /v1/execs/{id}/stdin` after what is given here. Left out: in the
    /// background if nothing is given, else not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_open: Option<bool>,
    /// The terminal that the program gets in place of pipes; not where the caller waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<Tty>,
    /// The program.
    #[serde(deserialize_with = "object")]
    pub exec: ExecSpec,
    /// Files to lay down in `/workspace/inputs` before it starts.
    #[serde(default, deserialize_with = "objects")]
    pub inputs: Vec<Input>,
    /// What is to be narrower than the profile.
    #[serde(default, deserialize_with = "object")]
    pub policy_overrides: PolicyOverrides,
    /// What the answer is to tell beside the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
}

/// More than an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// Which paths of the work area changed while the exec ran, whoever changed them.
    Files,
}

fn default_profile() -> String {
    DEFAULT_PROFILE.to_owned()
}

/// How the answer comes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// When the exec has ended.
    #[default]
    Wait,
    /// At once, with the id.
    Background,
    /// As events.
    Stream,
}

/// What kind of code it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Python.
    Python,
    /// Bash.
    Shell,
    /// A program, never through a shell.
    Process,
}

/// The program of an exec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecSpec {
    /// What kind.
    pub kind: Kind,
    /// `process`: a path or a name to look up in PATH.
    #[serde(default)]
    pub command: Option<String>,
    /// Arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// `python`, `shell`: the code.
    #[serde(default)]
    pub code: Option<String>,
    /// Directory below `/workspace/work`.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Variables beside the profile's.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// One input file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// Path below `/workspace/inputs`.
    pub path: String,
    /// Its content as text.
    #[serde(default)]
    pub text: Option<String>,
    /// Its content as bytes.
    #[serde(default)]
    pub base64: Option<String>,
}

/// What a request narrows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyOverrides {
    /// Limits by name.
    #[serde(default)]
    pub limits: BTreeMap<String, u64>,
    /// Sizes by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sizes: BTreeMap<String, u64>,
    /// Allowances, in the words of a grant; absent: all that the others permit, empty: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<serde_json::Value>,
    /// Allow-lists, in the words of a profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow: Option<serde_json::Value>,
}
