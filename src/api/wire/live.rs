//! Execs that live on: their start, their output in parts, their events, what is sent to them.

use super::ExecRecord;
use crate::model::{Channel, Ending, LimitHit, PolicyOverrides, Tty, Usage};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// 202: an exec in the background.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LaunchedAnswer {
    /// Its id.
    pub exec_id: String,
    /// `running`, or `queued` until there is a place.
    pub status: String,
}

/// Bytes as text where they are UTF-8, as base64 where they are not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Bytes {
    /// Text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// What is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        match String::from_utf8(bytes) {
            Ok(text) => Self { text: Some(text), base64: None },
            Err(error) => Self { text: None, base64: Some(BASE64.encode(error.as_bytes())) },
        }
    }
}

impl Bytes {
    /// The bytes; none of base64 that is none.
    #[must_use]
    pub fn decode(self) -> Vec<u8> {
        match (self.text, self.base64) {
            (Some(text), _) => text.into_bytes(),
            (None, Some(encoded)) => BASE64.decode(encoded).unwrap_or_default(),
            (None, None) => Vec::new(),
        }
    }
}

/// A piece of output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct OutputChunk {
    /// The position after it: `after` of the next call.
    pub seq: u64,
    /// Of which stream.
    pub stream: Channel,
    /// The bytes.
    #[serde(flatten)]
    pub bytes: Bytes,
}

/// `GET /v1/execs/{id}/output`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct OutputAnswer {
    /// Which exec.
    pub exec_id: String,
    /// What it wrote after `after`, in order; empty if `wait_ms` passed without any.
    pub chunks: Vec<OutputChunk>,
    /// `after` of the next call.
    pub next: u64,
    /// Whether nothing comes any more. How it ended is in `exit`.
    pub ended: bool,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExitEvent>,
}

/// One line of a stream, and the `data` of a server-sent event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventAnswer {
    /// The position after it: `after`, or `Last-Event-ID`, of whoever comes back.
    pub seq: u64,
    /// Which exec.
    pub exec_id: String,
    /// What.
    #[serde(flatten)]
    pub event: EventKind,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// It is known and waits for a place, if only for a moment.
    Queued,
    /// Its program starts.
    Started,
    /// It wrote.
    Stdout(Bytes),
    /// It wrote to standard error.
    Stderr(Bytes),
    /// A limit was met.
    Limit(LimitHit),
    /// It has ended; always last.
    Exit(Box<ExitEvent>),
}

impl EventKind {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            EventKind::Queued => "queued",
            EventKind::Started => "started",
            EventKind::Stdout(_) => "stdout",
            EventKind::Stderr(_) => "stderr",
            EventKind::Limit(_) => "limit",
            EventKind::Exit(_) => "exit",
        }
    }
}

/// How an exec ended, for those who follow it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ExitEvent {
    /// In one word.
    pub status: Ending,
    /// Exit code, if the program exited.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it.
    pub signal: Option<String>,
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_reason: Option<String>,
    /// The code that an answer would have had, if it could not be run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// Whether output was cut.
    pub stdout_truncated: bool,
    /// Whether error output was cut.
    pub stderr_truncated: bool,
    /// What the kernel counted; null for one that did not run.
    pub usage: Option<Usage>,
    /// Evidence of its begin.
    pub evidence_begin: Option<String>,
    /// Evidence of its end.
    pub evidence_end: Option<String>,
    /// Where what it left is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifacts_dir: Option<String>,
}

/// `POST /v1/execs/{id}/stdin`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct StdinAnswer {
    /// Bytes that the program's input took.
    pub written: u64,
    /// Whether it was closed after them.
    pub closed: bool,
}

/// `POST /v1/execs/{id}/signal`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    /// `TERM`, `INT`, …
    pub signal: String,
}

/// A text frame of a caller that is attached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AttachAsk {
    /// The terminal has another size.
    Resize(Tty),
    /// A signal to the program.
    Signal {
        /// `TERM`, `INT`, …
        signal: String,
    },
    /// No more input comes.
    Eof,
    /// The caller goes and the program stays.
    Detach,
}

/// A text frame for a caller that is attached. Binary frames are what the program writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AttachSays {
    /// First of all.
    Attached {
        /// Which exec.
        exec_id: String,
        /// Whether it has a terminal.
        tty: bool,
        /// Whether binary frames of the caller reach the program.
        writer: bool,
    },
    /// The next binary frame begins here; each byte of one counts one further.
    Seq {
        /// `after` of whoever comes back.
        seq: u64,
    },
    /// Standard error, where it does not come among the binary frames.
    Stderr {
        /// The position after it.
        seq: u64,
        /// What.
        #[serde(flatten)]
        bytes: Bytes,
    },
    /// The program has ended; the connection closes after this.
    Exit(Box<ExitEvent>),
    /// The caller is not attached any more; the program goes on.
    Detached {
        /// `taken_over`, `draining`.
        reason: String,
    },
    /// A frame that could not be followed; the connection stays.
    Error {
        /// Why.
        message: String,
    },
}

/// `POST /v1/sandboxes/{id}/services`: one of `argv`, `command` (shell) and `code` (Python).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceRequest {
    /// What it is called in its sandbox.
    pub name: String,
    /// The program and its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// A command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Python code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Arguments of the command line or the code.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Directory below the work area.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Variables beside the profile's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Wall-clock limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// What is to be narrower than the profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_overrides: Option<PolicyOverrides>,
    /// The caller's own reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_ref: Option<String>,
    /// Grant under which it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant_id: Option<String>,
}

/// A service of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ServiceAnswer {
    /// Its name.
    pub name: String,
    /// What is known of its exec.
    pub exec: ExecRecord,
}

/// `GET /v1/sandboxes/{id}/services`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ServicesAnswer {
    /// By name.
    pub items: Vec<ServiceAnswer>,
    /// Always null: there are few.
    pub next_cursor: Option<String>,
}
