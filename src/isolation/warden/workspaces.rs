//! Workspaces as the warden sees them: ids below one directory, opened without following anything, mapped and detached.
#![forbid(unsafe_code)]

use super::protocol::Workspace;
use super::store::{self, Bound, LIVE};
use crate::isolation::idmap::{Range, Ranges};
use crate::isolation::sys::{SingleThreaded, TreeAttributes, clone_tree, idmap_tree};
use crate::model::{ExecId, Limit, Limits, ProjectId};
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
    fn open(&self, path: &str, access: OFlag) -> Result<OwnedFd, Errno> {
        let how = OpenHow::new().flags(access | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC).resolve(
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
        let directory = self.open(path, OFlag::O_PATH)?;
        let tree = clone_tree(directory.as_fd(), c"", false)?;
        let namespace = ranges.workspace_map(range, proof)?;
        idmap_tree(tree.as_fd(), namespace, attributes)?;
        Ok(tree)
    }

    /// The mounts of a run, in the order in which the program's process expects them: inputs, work, artifacts.
    pub(super) fn mounts(
        &self,
        exec: &ExecId,
        workspace: &Workspace,
        limits: &Limits,
        range: Range,
        ranges: &mut Ranges,
        proof: &SingleThreaded,
    ) -> Result<Mounts, Errno> {
        let mut artifacts = None;
        let areas = match workspace {
            Workspace::ThrowAway { inputs: false } | Workspace::Later => vec![],
            // The daemon's own names begin with a dot, which no project id does.
            Workspace::ThrowAway { inputs: true } => vec![(format!(".{exec}/inputs"), READ_ONLY)],
            Workspace::Project(project) => {
                let left = format!("{project}/artifacts/{exec}");
                let home = match self.subvolume(project, LIVE)? {
                    None => project.to_string(),
                    Some(live) => {
                        self.limit(&live, Some(limits.get(Limit::WorkBytes)))?;
                        let top = self.open(&left, OFlag::O_RDONLY)?;
                        self.limit(&top, Some(limits.get(Limit::ArtifactsBytes)))?;
                        artifacts = Some(top);
                        format!("{project}/{LIVE}")
                    }
                };
                vec![(format!("{home}/inputs"), READ_ONLY), (format!("{home}/work"), WRITABLE), (left, WRITABLE)]
            }
        };
        let mapped = areas.into_iter().map(|(path, attributes)| self.mapped(&path, attributes, range, ranges, proof));
        Ok(Mounts { trees: mapped.collect::<Result<_, _>>()?, artifacts })
    }

    /// A project's subvolume, held open at its top; none if its areas are plain directories.
    fn subvolume(&self, project: &ProjectId, name: &str) -> Result<Option<OwnedFd>, Errno> {
        match self.open(&format!("{project}/{name}"), OFlag::O_RDONLY) {
            Ok(top) => Ok(Some(top)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Limits a subvolume, or takes its limit away.
    pub(super) fn limit(&self, top: &OwnedFd, bytes: Option<u64>) -> Result<(), Errno> {
        store::limit(top, &self.open(".", OFlag::O_RDONLY)?, bytes)
    }

    /// Limits a part of a project.
    pub(super) fn bound(&self, bound: &Bound) -> Result<(), Errno> {
        let part = self.subvolume(&bound.project, bound.part.name())?.ok_or(Errno::ENOENT)?;
        self.limit(&part, Some(bound.bytes))
    }
}

/// What a run gets of the workspaces.
#[derive(Debug)]
pub(super) struct Mounts {
    /// To be moved into place.
    pub(super) trees: Vec<OwnedFd>,
    /// The artifacts, if they have a limit, which goes with the program: what the front writes there is not its doing.
    pub(super) artifacts: Option<OwnedFd>,
}
