//! Files of a sandbox, on the wire.

use crate::model::Timestamp;
use serde::{Deserialize, Serialize};

/// What the kernel says of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FileAnswer {
    /// Its path in its area; what is no text in it is replaced.
    pub path: String,
    /// The path byte for byte, if it is no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// `file`, `directory`, `link` or `other`.
    pub kind: String,
    /// Its length in bytes.
    pub size: u64,
    /// Its permissions in octal.
    pub mode: String,
    /// When its content changed last, as a program may have set it.
    pub modified_at: Timestamp,
    /// Changes with its content.
    pub etag: String,
    /// The digest of what was written, where something was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// `GET …/filesystem/files`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ContentAnswer {
    /// The file.
    #[serde(flatten)]
    pub file: FileAnswer,
    /// Where the content begins.
    pub offset: u64,
    /// How many bytes of it are here.
    pub length: u64,
    /// Whether the file goes on.
    pub truncated: bool,
    /// The content, if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// The content, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_base64: Option<String>,
}

/// `PUT …/filesystem/files`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteRequest {
    /// Where.
    pub path: String,
    /// `work` or `inputs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub area: Option<String>,
    /// The content as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// The content as bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_base64: Option<String>,
    /// Permissions in octal: `"755"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Whether it goes to the end of the file.
    #[serde(default)]
    pub append: bool,
    /// Whether a file of that name is an error.
    #[serde(default)]
    pub create_only: bool,
    /// Whether missing directories are made.
    #[serde(default)]
    pub parents: bool,
    /// The grant under which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant_id: Option<String>,
    /// The call that the grant is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
}

/// `POST …/filesystem/directories`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MakeDirectoryRequest {
    /// Where.
    pub path: String,
    /// `work` or `inputs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub area: Option<String>,
    /// Whether missing directories are made; one that is there is then no error.
    #[serde(default)]
    pub parents: bool,
    /// The grant under which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant_id: Option<String>,
    /// The call that the grant is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
}

/// `POST …/filesystem/move`
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// From where.
    pub from: String,
    /// To where, in the same area.
    pub to: String,
    /// `work` or `inputs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub area: Option<String>,
    /// Whether what has the name is replaced.
    #[serde(default)]
    pub replace: bool,
    /// The grant under which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant_id: Option<String>,
    /// The call that the grant is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
}

/// Answer to a new directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MadeAnswer {
    /// Its path.
    pub path: String,
}

/// Answer to a move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MovedAnswer {
    /// From where.
    pub from: String,
    /// To where.
    pub to: String,
}

/// `DELETE …/filesystem/files`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RemovedAnswer {
    /// Its path.
    pub path: String,
    /// How many entries are gone.
    pub removed: u64,
}

/// `GET …/filesystem/directories`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DirectoryAnswer {
    /// In the order of names, a directory before what is in it; paths are relative to the area.
    pub items: Vec<FileAnswer>,
    /// Where the next page begins; null after the last.
    pub next_cursor: Option<String>,
}
