//! Sessions on the wire.

use crate::model::{Kind, SessionState, Timestamp};
use serde::{Deserialize, Serialize};

/// A session as it stands: `GET /v1/sandboxes/{id}/sessions/{name}`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SessionAnswer {
    /// Its name within the sandbox.
    pub name: String,
    /// `python` or `shell`.
    pub kind: Kind,
    /// `new`, `idle`, `running` or `dead`.
    pub state: SessionState,
    /// How it died; null: it did not.
    pub died: Option<String>,
    /// Calls that its interpreter was given.
    pub calls: u64,
    /// The exec that runs in it.
    pub running_exec_id: Option<String>,
    /// Calls that wait for their turn.
    pub waiting: usize,
    /// When its name was first used.
    pub created_at: Timestamp,
    /// When its last call ended.
    pub last_used_at: Timestamp,
    /// How long it may lie idle.
    pub idle_s: u64,
}

/// `GET /v1/sandboxes/{id}/sessions`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SessionsAnswer {
    /// By name.
    pub items: Vec<SessionAnswer>,
    /// Always null: there are few.
    pub next_cursor: Option<String>,
}
