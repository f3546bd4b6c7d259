//! Snapshots of a project, bringing one back, and a new project from one. All of it takes as long for a terabyte as for
//! nothing.
//!
//! ```text
//! take      live ─copy, read-only─▶ snapshots/<id>
//! restore   snapshots/<id> ─copy─▶ next        (the caller has the warden limit it)
//!           exchange(live, next)               one system call: before it nothing has happened, after it everything
//!           remove next                        what was live
//! fork      snapshots/<id> ─copy─▶ .made-<project>/live, and when the ledger has its sandbox, renamed to <project>
//! ```
//!
//! Whatever a daemon leaves that dies in between, the next start can tell: `next` goes, `.made-…` goes or is renamed by
//! the ledger's word, and snapshots without a row go.

use super::beneath::{make_own, open_own, sync_directory};
use super::error::{WorkspaceError, host};
use super::store::{Durable, Store};
use super::volumes::{self, BEFORE, Copied, LIVE, NEXT, SNAPSHOTS, Volumes};
use crate::model::{ExecId, Owner, ProjectId, SnapshotId};
use nix::errno::Errno;
use nix::fcntl::{RenameFlags, renameat2};
use std::collections::HashSet;
use std::os::fd::OwnedFd;

/// A project that has no sandbox yet; no project id begins with a dot.
pub(super) const MADE: &str = ".made-";

/// One state of a project's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tree {
    /// As they are now.
    Live,
    /// As a snapshot has them.
    Snapshot(SnapshotId),
    /// As an exec found them.
    Before(ExecId),
}

impl Tree {
    pub(super) fn open(&self, root: &OwnedFd) -> Result<OwnedFd, Errno> {
        let kept = |place: &str, name: &str| open_own(open_own(root, place)?, name);
        match self {
            Tree::Live => open_own(root, LIVE),
            Tree::Snapshot(id) => kept(SNAPSHOTS, id.as_str()),
            Tree::Before(exec) => kept(BEFORE, exec.as_str()),
        }
    }

    /// Where it lies, and its name there.
    fn place(&self) -> (&'static str, &str) {
        match self {
            Tree::Live => (".", LIVE),
            Tree::Snapshot(id) => (SNAPSHOTS, id.as_str()),
            Tree::Before(exec) => (BEFORE, exec.as_str()),
        }
    }
}

impl Store {
    fn volumes(&self) -> Result<&dyn Volumes, WorkspaceError> {
        self.volumes.as_deref().ok_or(WorkspaceError::NoSnapshots)
    }

    /// The project's directory, if it can have snapshots.
    fn with_snapshots(&self, owner: &Owner, project: &ProjectId) -> Result<(&dyn Volumes, OwnedFd), WorkspaceError> {
        let root = self.owned(project, owner)?;
        match open_own(&root, LIVE) {
            Ok(_) => Ok((self.volumes()?, root)),
            Err(Errno::ENOENT) => Err(WorkspaceError::NoSnapshots),
            Err(errno) => Err(host("open the project")(errno)),
        }
    }

    /// Keeps the files as they are now under a name that no other tree has.
    pub fn take(&self, owner: &Owner, project: &ProjectId, tree: &Tree) -> Result<(), WorkspaceError> {
        let (volumes, root) = self.with_snapshots(owner, project)?;
        let failed = host("take a snapshot");
        let (place, name) = tree.place();
        let place = make_own(&root, place, 0o700).map_err(&failed)?;
        volumes::copy(volumes, (&root, LIVE), (&place, name), Copied::ReadOnly).map_err(failed)
    }

    /// Removes a kept tree; one that is gone is as good.
    pub fn drop_tree(&self, owner: &Owner, project: &ProjectId, tree: &Tree) -> Result<(), WorkspaceError> {
        let root = self.owned(project, owner)?;
        let (place, name) = tree.place();
        match open_own(&root, place) {
            Ok(place) => volumes::remove(self.volumes()?, &place, name),
            Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(host("remove a snapshot")(errno)),
        }
    }

    /// Lays a copy of a snapshot beside the live files. Nothing has happened to these yet.
    pub fn begin_restore(&self, owner: &Owner, project: &ProjectId, id: &SnapshotId) -> Result<(), WorkspaceError> {
        let (volumes, root) = self.with_snapshots(owner, project)?;
        let failed = host("restore a snapshot");
        volumes::remove(volumes, &root, NEXT)?; // what a failed one left
        let place = open_own(&root, SNAPSHOTS).map_err(&failed)?;
        volumes::copy(volumes, (&place, id.as_str()), (&root, NEXT), Copied::Writable).map_err(failed)
    }

    /// Puts the copy in the place of the live files, which go. One step: it has happened or it has not.
    pub fn finish_restore(&self, owner: &Owner, project: &ProjectId) -> Result<(), WorkspaceError> {
        let (volumes, root) = self.with_snapshots(owner, project)?;
        renameat2(&root, NEXT, &root, LIVE, RenameFlags::RENAME_EXCHANGE).map_err(host("restore a snapshot"))?;
        sync_directory(&root).map_err(host("restore a snapshot"))?;
        volumes::remove(volumes, &root, NEXT)
    }

    /// Gives a restore up; what it had laid down goes.
    pub fn abandon_restore(&self, owner: &Owner, project: &ProjectId) -> Result<(), WorkspaceError> {
        let (volumes, root) = self.with_snapshots(owner, project)?;
        volumes::remove(volumes, &root, NEXT)
    }

    /// Makes a project that nobody can use before [`Store::adopt`]: with the files of a snapshot, or empty. An empty plain
    /// directory is on the disk some time later.
    pub fn prepare(
        &self,
        owner: &Owner,
        project: &ProjectId,
        from: Option<(&ProjectId, &SnapshotId)>,
    ) -> Result<(), WorkspaceError> {
        let durable = if from.is_some() { Durable::Now } else { self.empty_projects() };
        let root = self.own_root(&format!("{MADE}{project}"), owner, &ExecId::generate(), durable)?;
        if let Some((source, id)) = from {
            let (volumes, source) = self.with_snapshots(owner, source)?;
            let failed = host("fork a snapshot");
            let place = open_own(&source, SNAPSHOTS).map_err(&failed)?;
            volumes::copy(volumes, (&place, id.as_str()), (&root, LIVE), Copied::Writable).map_err(failed)?;
        }
        let root = self.furnish(root)?;
        self.make_areas(&root, durable)
    }

    /// Gives a prepared project its name: from here on it is there.
    pub fn adopt(&self, project: &ProjectId, durable: Durable) -> Result<(), WorkspaceError> {
        let made = format!("{MADE}{project}");
        let failed = host("make a project");
        renameat2(&*self.projects, made.as_str(), &*self.projects, project.as_str(), RenameFlags::RENAME_NOREPLACE)
            .map_err(&failed)?;
        match durable {
            Durable::Now => sync_directory(&*self.projects).map_err(failed),
            Durable::Later => Ok(()),
        }
    }

    /// Removes a prepared project that is not wanted after all.
    pub fn discard(&self, project: &ProjectId) -> Result<(), WorkspaceError> {
        self.discard_made(&format!("{MADE}{project}"))
    }

    fn discard_made(&self, made: &str) -> Result<(), WorkspaceError> {
        let root = open_own(&*self.projects, made).map_err(host("remove a project"))?;
        self.remove_gone(made, &root)
    }

    /// At the start: of the projects that were being made, those with a live sandbox get their name, the others go.
    pub fn settle_made(&self, wanted: &HashSet<ProjectId>) -> Result<(), WorkspaceError> {
        for name in volumes::names_in(&self.projects)? {
            let Some(project) = name.strip_prefix(MADE) else { continue };
            let wanted = project.parse().ok().filter(|project| wanted.contains(project));
            let settled = match &wanted {
                Some(project) => self.adopt(project, Durable::Now),
                None => self.discard_made(&name),
            };
            tracing::warn!(project, wanted = wanted.is_some(), ?settled, "a dead daemon was making a project");
        }
        Ok(())
    }

    /// At the start: removes every snapshot that `kept` does not name. How many there were.
    pub fn settle_snapshots(&self, kept: &HashSet<SnapshotId>) -> Result<usize, WorkspaceError> {
        let Some(volumes) = self.volumes.as_deref() else { return Ok(0) };
        let mut removed = 0;
        for project in volumes::names_in(&self.projects)? {
            let place = match open_own(&*self.projects, &project).and_then(|root| open_own(root, SNAPSHOTS)) {
                Ok(place) => place,
                Err(_) => continue, // no project, or one without snapshots
            };
            for name in volumes::names_in(&place)? {
                if !kept.contains(&SnapshotId::from(name.as_str())) {
                    volumes::remove(volumes, &place, &name)?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }

    /// At the start: whether a snapshot is on disk.
    pub fn has_snapshot(&self, owner: &Owner, project: &ProjectId, id: &SnapshotId) -> bool {
        self.owned(project, owner).is_ok_and(|root| Tree::Snapshot(id.clone()).open(&root).is_ok())
    }
}
