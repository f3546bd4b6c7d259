//! Workspaces as the warden sees them: ids below one directory, opened without following anything, mapped and detached.
#![forbid(unsafe_code)]

use super::protocol::{Run, Workspace};
use crate::isolation::idmap::{Range, Ranges};
use crate::isolation::sys::{SingleThreaded, TreeAttributes, clone_tree, idmap_tree};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use std::os::fd::{AsFd, OwnedFd};

/// The directory that holds all projects.
#[derive(Debug)]
pub(super) struct Workspaces(OwnedFd);

const READ_ONLY: TreeAttributes = TreeAttributes { read_only: true, no_dev: true, no_exec: false };
const WRITABLE: TreeAttributes = TreeAttributes { read_only: false, no_dev: true, no_exec: false };

impl Workspaces {
    pub(super) fn new(directory: OwnedFd) -> Self {
        Self(directory)
    }

    /// Opens a path made of ids only. A link anywhere on the way is refused, as is anything outside.
    fn open(&self, path: &str) -> Result<OwnedFd, Errno> {
        let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC).resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_MAGICLINKS
                | ResolveFlag::RESOLVE_NO_XDEV,
        );
        openat2(&self.0, path, how)
    }

    /// Whether id-mapped mounts work where the workspaces are.
    pub(super) fn try_idmap(&self, ranges: &mut Ranges, proof: &SingleThreaded) -> Result<(), Errno> {
        let range = ranges.take().ok_or(Errno::EAGAIN)?;
        let tried = self.mapped(".", READ_ONLY, range, ranges, proof).map(drop);
        ranges.give_back(range);
        tried
    }

    fn mapped(
        &self,
        path: &str,
        attributes: TreeAttributes,
        range: Range,
        ranges: &mut Ranges,
        proof: &SingleThreaded,
    ) -> Result<OwnedFd, Errno> {
        let directory = self.open(path)?;
        let tree = clone_tree(directory.as_fd(), c"", false)?;
        let namespace = ranges.workspace_map(range, proof)?;
        idmap_tree(tree.as_fd(), namespace, attributes)?;
        Ok(tree)
    }

    /// The mounts of a run, in the order in which the program's process expects them: inputs, work, artifacts.
    pub(super) fn mounts(
        &self,
        run: &Run,
        range: Range,
        ranges: &mut Ranges,
        proof: &SingleThreaded,
    ) -> Result<Vec<OwnedFd>, Errno> {
        let areas = match &run.workspace {
            Workspace::ThrowAway { inputs: false } => vec![],
            // The daemon's own names begin with a dot, which no project id does.
            Workspace::ThrowAway { inputs: true } => vec![(format!(".{}/inputs", run.exec), READ_ONLY)],
            Workspace::Project(project) => vec![
                (format!("{project}/inputs"), READ_ONLY),
                (format!("{project}/work"), WRITABLE),
                (format!("{project}/artifacts/{}", run.exec), WRITABLE),
            ],
        };
        areas.into_iter().map(|(path, attributes)| self.mapped(&path, attributes, range, ranges, proof)).collect()
    }
}
