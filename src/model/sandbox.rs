//! Choices that a profile makes about the shape of a sandbox.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What a sandbox's root is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rootfs {
    /// The host's programs and libraries, read-only, with a generated /etc.
    Host,
    /// A directory that holds a whole root.
    Directory(PathBuf),
}

/// May a program use TCP inside its own (loopback-only) network namespace?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Tcp {
    /// Bind and connect on the sandbox's own loopback.
    Loopback,
    /// Neither: Landlock refuses both.
    None,
}

/// Whose network namespace is a sandbox's?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NetNamespace {
    /// Its own, made for it and gone with it.
    #[default]
    Fresh,
    /// One that may have been another exec's before, looked through and found as new.
    Recycled,
}

impl Serialize for Rootfs {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Rootfs::Host => serializer.serialize_str("host"),
            Rootfs::Directory(path) => serializer.collect_str(&path.display()),
        }
    }
}
