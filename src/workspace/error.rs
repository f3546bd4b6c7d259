//! What can go wrong with files, and which errno says so.

use nix::errno::Errno;
use std::io;

/// What can go wrong with files.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// Somebody else's project, or none at all: nobody learns which.
    #[error("the project belongs to another principal")]
    NotYours,
    /// A directory is not there.
    #[error("{0} is not a directory of the workspace")]
    Missing(&'static str),
    /// A link, or a way out.
    #[error("{0} leads through a link or out of the workspace")]
    Boundary(&'static str),
    /// Whoever sends a file has stopped sending.
    #[error("the sender was silent for too long; nothing of the file is kept")]
    Silent,
    /// Nothing of that name.
    #[error("there is no {path}")]
    NoSuchFile {
        /// The path asked for.
        path: String,
    },
    /// The name is taken.
    #[error("{path} exists")]
    Exists {
        /// The path asked for.
        path: String,
    },
    /// A directory was needed.
    #[error("{path} is not a directory")]
    NotADirectory {
        /// The path asked for.
        path: String,
    },
    /// A file was needed.
    #[error("{path} is a directory")]
    IsADirectory {
        /// The path asked for.
        path: String,
    },
    /// A FIFO, a socket or a device: nothing that we read or write.
    #[error("{path} is not a regular file")]
    NotARegularFile {
        /// The path asked for.
        path: String,
    },
    /// The directory has something in it.
    #[error("{path} is not empty")]
    NotEmpty {
        /// The path asked for.
        path: String,
    },
    /// A program took the rights away from its owner, who we are.
    #[error("the modes of {path}, or of a directory on its way, shut its owner out; change them from inside")]
    Denied {
        /// The path asked for.
        path: String,
    },
    /// A program holds it in a way that would make us wait.
    #[error("{path} is in use")]
    Busy {
        /// The path asked for.
        path: String,
    },
    /// The file became shorter while it was being read: what was read is not the whole of it.
    #[error("{path} became shorter while it was being read")]
    Shrank {
        /// The path asked for.
        path: String,
    },
    /// A directory can't be moved into itself.
    #[error("a directory can't be moved into itself")]
    IntoItself,
    /// What arrived is not what was announced.
    #[error("the {what} is not the one announced")]
    Mismatch {
        /// `size` or `sha256`.
        what: &'static str,
    },
    /// A cursor that no page gave out.
    #[error("the cursor is not one that a page gave out")]
    BadCursor,
    /// More than this operation takes.
    #[error("more than {limit} {what}")]
    TooLarge {
        /// What there is too much of: `bytes`, `entries`, `levels`.
        what: &'static str,
        /// The most that is taken.
        limit: u64,
    },
    /// The store has none.
    #[error("this workspace lies in a plain directory, which has no snapshots")]
    NoSnapshots,
    /// A plain directory, which the kernel does not limit, holds more than its profile gives it.
    #[error(
        "the work area holds {bytes} bytes in {files} files and directories, and may hold {most_bytes} in {most_files}"
    )]
    OverLimit {
        /// Bytes on disk.
        bytes: u64,
        /// Everything in it.
        files: u64,
        /// What it may hold.
        most_bytes: u64,
        /// How much of it.
        most_files: u64,
    },
    /// The disk or a quota is full.
    #[error("there is no space left for it")]
    NoSpace,
    /// The host's fault.
    #[error("could not {what}")]
    Host {
        /// What we were doing.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
}

/// The longest path that the kernel takes, its end included.
const PATH_MAX: u64 = 4096;

/// For what only the host can spoil.
pub(super) fn host(what: &'static str) -> impl Fn(Errno) -> WorkspaceError {
    move |errno| match errno {
        Errno::ENOSPC | Errno::EDQUOT => WorkspaceError::NoSpace,
        errno => WorkspaceError::Host { what, source: errno.into() },
    }
}

/// For what a caller named and a program may have had its hand in.
pub(super) fn at(path: &str, what: &'static str) -> impl Fn(Errno) -> WorkspaceError {
    move |errno| {
        let path = path.to_owned();
        match errno {
            Errno::ENOENT => WorkspaceError::NoSuchFile { path },
            Errno::EEXIST => WorkspaceError::Exists { path },
            Errno::ENOTDIR => WorkspaceError::NotADirectory { path },
            Errno::EISDIR => WorkspaceError::IsADirectory { path },
            Errno::ENOTEMPTY => WorkspaceError::NotEmpty { path },
            Errno::ELOOP | Errno::EXDEV => WorkspaceError::Boundary("path"),
            Errno::EACCES | Errno::EPERM => WorkspaceError::Denied { path },
            Errno::EAGAIN | Errno::ETXTBSY | Errno::EBUSY => WorkspaceError::Busy { path },
            // What open(2) answers for a socket, and for a FIFO that nobody reads.
            Errno::ENXIO | Errno::ENODEV => WorkspaceError::NotARegularFile { path },
            Errno::ENAMETOOLONG => WorkspaceError::TooLarge { what: "bytes of path", limit: PATH_MAX - 1 },
            errno => host(what)(errno),
        }
    }
}

/// The errno in an error of std's; EIO where there is none.
pub(super) fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_named_is_the_hosts_fault() {
        let named = [
            Errno::ENOENT,
            Errno::EEXIST,
            Errno::ENOTDIR,
            Errno::EISDIR,
            Errno::ENOTEMPTY,
            Errno::ELOOP,
            Errno::EXDEV,
            Errno::EACCES,
            Errno::EPERM,
            Errno::EAGAIN,
            Errno::ETXTBSY,
            Errno::ENXIO,
            Errno::ENAMETOOLONG,
            Errno::ENOSPC,
            Errno::EDQUOT,
        ];
        for errno in named {
            assert!(!matches!(at("f", "read")(errno), WorkspaceError::Host { .. }), "{errno}");
        }
        assert!(matches!(at("f", "read")(Errno::EIO), WorkspaceError::Host { what: "read", .. }));
        assert!(matches!(host("x")(Errno::EDQUOT), WorkspaceError::NoSpace));
        assert!(matches!(host("x")(Errno::EACCES), WorkspaceError::Host { .. }));
    }
}
