//! What a session's interpreter said of one call. It is the word of a process that runs unread code: shown, never
//! believed.

use serde::{Deserialize, Serialize};

/// One place on the way to an exception.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Frame {
    /// The file; `<call 3>` is the code of the session's third call.
    pub file: String,
    /// The line in it.
    pub line: u64,
    /// The function, `<module>` outside of any.
    pub function: String,
    /// The line's text, if it is known.
    pub source: String,
}

/// An exception that the code did not catch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Traceback {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// What it says.
    pub message: String,
    /// The way to it, outermost first.
    pub frames: Vec<Frame>,
    /// Outer frames that were left out.
    pub frames_left_out: u64,
    /// All of it as the interpreter prints it, causes included.
    pub text: String,
}

/// How a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Its interpreter starts with the next call.
    New,
    /// It waits for a call.
    Idle,
    /// It runs one.
    Running,
    /// Its interpreter is gone, and with it what it knew.
    Dead,
}

/// A call of a session, beside how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CallReport {
    /// The session.
    pub name: String,
    /// Which call of its interpreter it was, from 1 on.
    pub call: u64,
    /// How the session stands after it.
    pub state: SessionState,
    /// How the interpreter died, if it did.
    pub died: Option<String>,
    /// Value of the last expression, as `repr` shows it.
    pub value: Option<String>,
    /// Whether that was cut.
    pub value_truncated: bool,
    /// The exception that ended it.
    pub error: Option<Traceback>,
    /// Pictures of figures that were open at its end, by their names among its artifacts.
    pub figures: Vec<String>,
    /// Whether it was interrupted: by its caller, or because its time was over.
    pub interrupted: bool,
    /// Bytes that the session wrote while no call ran; nobody has them.
    pub stray_bytes: u64,
}
