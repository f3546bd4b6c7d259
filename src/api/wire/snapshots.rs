//! Snapshots and what changed, on the wire.

use crate::model::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `POST /v1/sandboxes/{id}/snapshots`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSnapshotRequest {
    /// What you call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// `POST /v1/sandboxes/{id}/snapshots/{id}/fork`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkRequest {
    /// The profile of the new sandbox; that of the old one if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// How long it lives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
    /// How long it may lie unused; until its end if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_s: Option<u64>,
    /// What it is found by.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// A snapshot of a sandbox's work and inputs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SnapshotAnswer {
    /// Its id.
    pub snapshot_id: String,
    /// Of which sandbox.
    pub sandbox_id: String,
    /// What its owner calls it.
    pub name: Option<String>,
    /// When it was taken.
    pub created_at: Timestamp,
}

/// `GET /v1/sandboxes/{id}/snapshots`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SnapshotsAnswer {
    /// Newest first.
    pub items: Vec<SnapshotAnswer>,
    /// Always null: there are few.
    pub next_cursor: Option<String>,
}

/// A path that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ChangeAnswer {
    /// Below the work area; what is no text in it is replaced.
    pub path: String,
    /// `added`, `modified` or `deleted`.
    pub change: String,
    /// `file`, `directory`, `link` or `other`.
    pub kind: String,
    /// Its length now; null if it is gone.
    pub size: Option<u64>,
    /// Its length before; null if it was not there.
    pub old_size: Option<u64>,
}

/// `GET /v1/sandboxes/{id}/snapshots/{id}/diff`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ChangesAnswer {
    /// In the order of paths.
    pub items: Vec<ChangeAnswer>,
    /// Where the next page begins; null after the last.
    pub next_cursor: Option<String>,
    /// False if some of it could not be seen: locked, too deep, too much.
    pub complete: bool,
}

/// `GET /v1/store`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct StoreAnswer {
    /// `btrfs` or `directory`.
    pub driver: String,
    /// Whether the kernel limits what a project takes.
    pub enforced: bool,
    /// Whether sandboxes can have snapshots.
    pub snapshots: bool,
    /// Bytes of the filesystem that it lies on.
    pub bytes_total: u64,
    /// Bytes of it that are free.
    pub bytes_free: u64,
    /// Why it is not one with limits; null: it is.
    pub lacking: Option<String>,
}
