//! Choices that a profile makes about the shape of a sandbox.

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tcp {
    /// Bind and connect on the sandbox's own loopback.
    Loopback,
    /// Neither: Landlock refuses both.
    None,
}
