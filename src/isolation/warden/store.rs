//! Limits on areas of a store that has them: what the warden sets before a program runs, and for the front on its word.
//!
//! The front makes, copies and removes subvolumes by itself, as any owner of a directory may. A limit is root's, so that
//! one thing is asked for: `Bound` names a project and one of two parts of it, and an amount that no profile is below.
#![forbid(unsafe_code)]

use super::protocol::{ProtocolError, RunNumber};
use super::record::{Reader, Writer};
use crate::isolation::sys::limit_subvolume;
use crate::model::{Limit, ProjectId};
use nix::errno::Errno;
use nix::sys::stat::fstat;
use std::os::fd::{AsFd, OwnedFd};

/// The subvolume of a project that holds its work and inputs.
pub const LIVE: &str = "live";
/// The one that is about to take its place.
pub const NEXT: &str = "next";
/// Inode of the top of every subvolume (`BTRFS_FIRST_FREE_OBJECTID`).
const TOP: u64 = 256;

/// Which subvolume of a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The one in use.
    Live,
    /// The one to come.
    Next,
}

impl Part {
    pub(super) fn name(self) -> &'static str {
        match self {
            Part::Live => LIVE,
            Part::Next => NEXT,
        }
    }
}

/// `Bound`: how much a part of a project may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    /// Number to answer under, of the same row as those of runs.
    pub number: RunNumber,
    /// Which project.
    pub project: ProjectId,
    /// Which part of it.
    pub part: Part,
    /// The most that it may hold.
    pub bytes: u64,
}

impl Bound {
    pub(super) fn write(&self, out: Writer) -> Writer {
        out.u64(self.number.0).text(self.project.as_str()).u8(self.part as u8).u64(self.bytes)
    }

    pub(super) fn read(fields: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        let number = fields.number()?;
        let project = fields.id("project")?;
        let part = match fields.u8("part")? {
            0 => Part::Live,
            1 => Part::Next,
            other => return Err(ProtocolError::Unknown("part", other)),
        };
        let bytes = Limit::WorkBytes.check(fields.u64("bytes")?)?;
        Ok(Self { number, project, part, bytes })
    }
}

/// Limits a subvolume that is held open at its top. What is none is refused: the limit would be its neighbour's.
pub(super) fn limit(top: &OwnedFd, outside: &OwnedFd, bytes: Option<u64>) -> Result<(), Errno> {
    if fstat(top)?.st_ino != TOP {
        return Err(Errno::ENOTSUP);
    }
    limit_subvolume(top.as_fd(), outside.as_fd(), bytes)
}
