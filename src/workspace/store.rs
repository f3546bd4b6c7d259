//! Projects and throw-away areas on disk: whose they are, what an exec finds in them, and how they go.

use super::area::{AreaDir, AreaKind};
use super::beneath::{
    for_each_name, look, make_directory, make_own, open_beneath, open_directory, open_own, open_unlocked,
    sync_directory,
};
use super::error::{WorkspaceError, errno_of, host};
use super::remove::remove_tree;
use super::snapshots::MADE;
use super::volumes::{self, Volumes, home};
use crate::model::{ExecId, Owner, ProjectId};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// The file that says whose a project is. No program sees it: only the three areas are mounted.
const OWNER: &str = ".owner";
/// Where files are written before they are renamed into an area. No program sees it either.
const STAGING: &str = ".new";
/// A project on its way out; no project id begins with a dot.
const GONE: &str = ".gone-";
/// The most entries that the removal of a project looks at; what is left goes at the next start.
const PROJECT_ENTRIES: u64 = 100_000_000;

/// When what was made is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durable {
    /// When the call comes back.
    Now,
    /// In the kernel's own time. For an empty plain directory of a sandbox whose row is in the ledger: should the power fail first,
    /// the next start makes it again ([`Store::claim`]). A file that is written and synced in it takes the names above
    /// it along: filesystems with a journal write what came before, too.
    Later,
}

/// All workspaces of a daemon.
#[derive(Debug)]
pub struct Store {
    pub(super) projects: Arc<OwnedFd>,
    /// None: the driver is `directory`.
    pub(super) volumes: Option<Arc<dyn Volumes>>,
}

/// Where the files of one exec are; dropped, a throw-away one is gone.
#[derive(Debug)]
pub enum Laid {
    /// A project's areas.
    Project {
        /// Whether they have limits.
        bounded: bool,
    },
    /// Nothing on disk, or inputs only.
    ThrowAway {
        /// The directory to remove.
        inputs: Option<ThrowAway>,
    },
}

/// A directory on disk that goes with its exec.
#[derive(Debug)]
pub struct ThrowAway {
    projects: Arc<OwnedFd>,
    name: String,
}

impl Drop for ThrowAway {
    fn drop(&mut self) {
        let name = &self.name;
        let gone = open_own(&self.projects, name).map_err(host("remove a throw-away directory"));
        if let Err(error) = gone.and_then(|gone| remove_gone(&self.projects, name, &gone)) {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(name, error, "could not remove a throw-away directory; the next start will");
        }
    }
}

impl Store {
    /// Opens a directory of projects without limits; see [`Store::over`].
    pub fn open(projects: &Path) -> Result<Self, WorkspaceError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = nix::fcntl::openat(AT_FDCWD, projects, flags, Mode::empty())
            .map_err(host("open the projects directory"))?;
        Self::over(directory, None)
    }

    /// A store over the projects directory, which start-up has made. Removes what execs of a dead daemon left.
    pub fn over(projects: OwnedFd, volumes: Option<Arc<dyn Volumes>>) -> Result<Self, WorkspaceError> {
        let store = Self { projects: Arc::new(projects), volumes };
        for name in volumes::names_in(&store.projects)? {
            if name.strip_prefix('.').is_some_and(|id| id.parse::<ExecId>().is_ok()) {
                drop(ThrowAway { projects: store.projects.clone(), name });
            } else if name.starts_with(GONE) {
                let gone = open_own(&store.projects, &name).map_err(host("remove a project"));
                if let Err(error) = gone.and_then(|gone| store.remove_gone(&name, &gone)) {
                    tracing::warn!(name, error = &error as &dyn std::error::Error, "a removed project is still there");
                }
            } else if !name.starts_with(MADE) {
                store.mend(&name); // whether one that was being made is wanted, the ledger says
            }
        }
        Ok(store)
    }

    /// Bytes of the filesystem below, and how many of them are free; zeros if it does not say.
    #[must_use]
    pub fn room(&self) -> (u64, u64) {
        let room = rustix::fs::fstatvfs(&*self.projects);
        room.map_or((0, 0), |room| {
            (room.f_blocks.saturating_mul(room.f_frsize), room.f_bavail.saturating_mul(room.f_frsize))
        })
    }

    /// Whether projects have limits and snapshots.
    #[must_use]
    pub fn has_volumes(&self) -> bool {
        self.volumes.is_some()
    }

    /// When an empty project is on the disk. Subvolumes at once: a synced file or a snapshot in one does not take the names
    /// above it along (seen after a power cut).
    #[must_use]
    pub fn empty_projects(&self) -> Durable {
        if self.has_volumes() { Durable::Now } else { Durable::Later }
    }

    /// Removes what a dead daemon left half-way in a project.
    fn mend(&self, project: &str) {
        clear_staging(&self.projects, project);
        let (Some(volumes), Ok(root)) = (&self.volumes, open_own(&self.projects, project)) else { return };
        if let Err(error) = volumes::mend(volumes.as_ref(), &root) {
            tracing::warn!(project, error = &error as &dyn std::error::Error, "what a dead daemon left is still there");
        }
    }

    /// Removes a project that was renamed out of the way.
    pub(super) fn remove_gone(&self, name: &str, root: &OwnedFd) -> Result<(), WorkspaceError> {
        if let Some(volumes) = &self.volumes {
            volumes::dismantle(volumes.as_ref(), root)?;
        }
        remove_gone(&self.projects, name, root)
    }

    /// Makes the project for `owner` if there is none; an error if it is another's.
    pub fn claim(&self, owner: &Owner, project: &ProjectId) -> Result<(), WorkspaceError> {
        let root = self.own_project(project, owner, &ExecId::generate())?;
        self.make_areas(&root, Durable::Now)
    }

    /// The areas of a project.
    pub(super) fn make_areas(&self, root: &OwnedFd, durable: Durable) -> Result<(), WorkspaceError> {
        let (home, _) = home(root).map_err(host("make an area"))?;
        // Work last: where it is, the others are, and a start that looks for it finds out what a dead daemon left half-made.
        for (place, area) in [(&home, "inputs"), (root, "artifacts"), (&home, "work")] {
            make_own(place, area, 0o755).map_err(host("make an area"))?;
        }
        match durable {
            Durable::Now => sync_directory(root).and_then(|()| sync_directory(&self.projects)),
            Durable::Later => Ok(()),
        }
        .map_err(host("make a project"))
    }

    /// Opens an area of a project of `owner`. Makes nothing: what is not there is another's.
    pub fn area(&self, owner: &Owner, project: &ProjectId, kind: &AreaKind) -> Result<AreaDir, WorkspaceError> {
        let root = self.owned(project, owner)?;
        let failed = host("open an area");
        let (home, _) = home(&root).map_err(&failed)?;
        let area = match kind {
            AreaKind::Work => open_unlocked(&home, "work"),
            AreaKind::Inputs => open_unlocked(&home, "inputs"),
            AreaKind::Artifacts(exec) => {
                open_own(&root, "artifacts").and_then(|artifacts| open_unlocked(artifacts, exec.as_str()))
            }
        };
        let area = area.map_err(|errno| match (errno, kind) {
            (Errno::ENOENT, AreaKind::Artifacts(exec)) => WorkspaceError::NoSuchFile { path: exec.to_string() },
            (Errno::ENOENT, _) => WorkspaceError::NotYours,
            (errno, _) => failed(errno),
        })?;
        // What an exec left is recorded even if its program has filled the work area up.
        let beside = if matches!(kind, AreaKind::Artifacts(_)) { &root } else { &home };
        let staging = make_own(beside, STAGING, 0o700).map_err(&failed)?;
        Ok(AreaDir::new(area, staging))
    }

    /// Removes a project of `owner` with everything in it. Whoever asks for it from here on finds none; a removal that
    /// is cut short is finished at the next start.
    pub fn remove(&self, owner: &Owner, project: &ProjectId) -> Result<(), WorkspaceError> {
        let root = self.owned(project, owner)?;
        let name = format!("{GONE}{}", ExecId::generate());
        let failed = host("remove a project");
        renameat(&self.projects, project.as_str(), &self.projects, name.as_str()).map_err(|errno| match errno {
            Errno::ENOENT => WorkspaceError::NotYours, // somebody else was faster
            errno => failed(errno),
        })?;
        sync_directory(&self.projects).map_err(&failed)?;
        self.remove_gone(&name, &root)
    }

    /// Removes what an exec left in a project of `owner`. What is not there, or is another's by now, is as good as gone.
    pub fn remove_artifacts(&self, owner: &Owner, project: &ProjectId, exec: &ExecId) -> Result<(), WorkspaceError> {
        let failed = host("remove artifacts");
        let root = match self.owned(project, owner) {
            Err(WorkspaceError::NotYours) => return Ok(()),
            root => root?,
        };
        let artifacts = match open_own(&root, "artifacts") {
            Err(Errno::ENOENT) => return Ok(()),
            artifacts => artifacts.map_err(&failed)?,
        };
        if let Some(volumes) = &self.volumes {
            return volumes::remove(volumes.as_ref(), &artifacts, exec.as_str());
        }
        let directory = match open_unlocked(&artifacts, exec.as_str()) {
            Err(Errno::ENOENT) => return Ok(()),
            directory => directory.map_err(&failed)?,
        };
        remove_tree(&directory, exec.as_str(), PROJECT_ENTRIES)?;
        unlinkat(&artifacts, exec.as_str(), UnlinkatFlags::RemoveDir).map_err(failed)
    }

    /// Lays down what an exec needs on disk.
    pub fn lay<'a>(
        &self,
        exec: &ExecId,
        owner: &Owner,
        project: Option<&ProjectId>,
        cwd: &str,
        inputs: impl ExactSizeIterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<Laid, WorkspaceError> {
        match project {
            Some(project) => {
                let root = self.own_project(project, owner, exec)?;
                let (home, bounded) = home(&root).map_err(host("open the project"))?;
                make_own(&home, "inputs", 0o755).map_err(host("make the inputs area"))?;
                make_own(&home, "work", 0o755).map_err(host("make the work area"))?;
                let inputs_area = open_unlocked(&home, "inputs").map_err(host("open the inputs area"))?;
                // A program that locked it for its owner must not keep the next one from starting.
                let work = open_unlocked(&home, "work").map_err(host("open the work area"))?;
                let artifacts = make_own(&root, "artifacts", 0o755).map_err(host("make the artifacts area"))?;
                if let (true, Some(volumes)) = (bounded, &self.volumes) {
                    volumes::make(volumes.as_ref(), &artifacts, exec.as_str()).map_err(host("make the artifacts"))?;
                }
                make_own(&artifacts, exec.as_str(), 0o755).map_err(host("make the artifacts directory"))?;
                check_cwd(&work, cwd)?;
                for (path, content) in inputs {
                    write_input(&inputs_area, path, content)?;
                }
                Ok(Laid::Project { bounded })
            }
            // The work area of such an exec is an empty tmpfs: no directory can be there before it starts.
            None if !cwd.is_empty() => Err(WorkspaceError::Missing("exec.cwd")),
            None if inputs.len() == 0 => Ok(Laid::ThrowAway { inputs: None }),
            None => {
                let name = format!(".{exec}");
                let directory = make_own(&self.projects, &name, 0o700).map_err(host("make a throw-away directory"))?;
                let guard = ThrowAway { projects: self.projects.clone(), name };
                let area = make_own(&directory, "inputs", 0o755).map_err(host("make the inputs area"))?;
                for (path, content) in inputs {
                    write_input(&area, path, content)?;
                }
                Ok(Laid::ThrowAway { inputs: Some(guard) })
            }
        }
    }

    /// The project's directory, made for `owner` if there is none; an error if it is another's.
    fn own_project(&self, project: &ProjectId, owner: &Owner, exec: &ExecId) -> Result<OwnedFd, WorkspaceError> {
        let root = self.own_root(project.as_str(), owner, exec, Durable::Now)?;
        self.furnish(root)
    }

    /// Gives a project's directory what every one has: its subvolume, where there are some, and room to write in.
    pub(super) fn furnish(&self, root: OwnedFd) -> Result<OwnedFd, WorkspaceError> {
        let plain = open_own(&root, "work").is_ok(); // made by a store without limits, and it stays one
        if let (false, Some(volumes)) = (plain, &self.volumes) {
            volumes::make(volumes.as_ref(), &root, volumes::LIVE).map_err(host("make the project's subvolume"))?;
        }
        let (home, _) = home(&root).map_err(host("open the project"))?;
        // Now, while there is space: a later reader must not need any.
        for place in [&home, &root] {
            make_own(place, STAGING, 0o700).map_err(host("make the staging directory"))?;
        }
        Ok(root)
    }

    /// A directory of a project with its owner's name in it, made if there is none.
    pub(super) fn own_root(
        &self,
        name: &str,
        owner: &Owner,
        exec: &ExecId,
        durable: Durable,
    ) -> Result<OwnedFd, WorkspaceError> {
        let root = make_own(&self.projects, name, 0o700).map_err(host("open the project"))?;
        let unclaimed = match look(&root, OWNER) {
            Err(errno) => errno == Errno::ENOENT,
            // Nobody writes an empty one: the power failed before the kernel had written the name (`Durable::Later`).
            Ok(known) if known.st_size == 0 => {
                unlinkat(&root, OWNER, UnlinkatFlags::NoRemoveDir).map_err(host("claim the project"))?;
                true
            }
            Ok(_) => false,
        };
        // Written aside and linked into place: of two first callers exactly one becomes the owner, and nobody
        // ever reads half a name.
        if unclaimed {
            let aside = format!("{OWNER}.{exec}");
            let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
            let file = open_beneath(&root, aside.as_str(), flags, Mode::from_bits_truncate(0o600))
                .map_err(host("claim the project"))?;
            let failed = |source| WorkspaceError::Host { what: "claim the project", source };
            let mut file = File::from(file);
            file.write_all(name_of(owner).as_bytes()).map_err(failed)?;
            if durable == Durable::Now {
                file.sync_all().map_err(failed)?;
            }
            let linked = linkat(&root, aside.as_str(), &root, OWNER, AtFlags::empty());
            unlinkat(&root, aside.as_str(), UnlinkatFlags::NoRemoveDir).map_err(host("claim the project"))?;
            if let Err(errno) = linked
                && errno != Errno::EEXIST
            {
                return Err(host("claim the project")(errno));
            }
        }
        check_owner(root, owner)
    }

    /// The project's directory, if it is there and `owner`'s.
    pub(super) fn owned(&self, project: &ProjectId, owner: &Owner) -> Result<OwnedFd, WorkspaceError> {
        match open_own(&self.projects, project.as_str()) {
            Ok(root) => check_owner(root, owner),
            Err(Errno::ENOENT) => Err(WorkspaceError::NotYours),
            Err(errno) => Err(host("open the project")(errno)),
        }
    }
}

fn name_of(owner: &Owner) -> String {
    format!("{}\n{}\n", owner.tenant, owner.subject)
}

/// The directory again if it is `owner`'s. One that nobody has claimed yet is nobody's.
fn check_owner(root: OwnedFd, owner: &Owner) -> Result<OwnedFd, WorkspaceError> {
    let file = match open_beneath(&root, OWNER, OFlag::O_RDONLY, Mode::empty()) {
        Err(Errno::ENOENT) => return Err(WorkspaceError::NotYours),
        file => file.map_err(host("read the project's owner"))?,
    };
    let mut theirs = String::new();
    let read = File::from(file).take(4096).read_to_string(&mut theirs);
    read.map_err(|source| WorkspaceError::Host { what: "read the project's owner", source })?;
    if theirs == name_of(owner) { Ok(root) } else { Err(WorkspaceError::NotYours) }
}

/// Removes what a dead daemon was writing. Programs never saw it, so nothing in it can be a trap.
fn clear_staging(projects: &OwnedFd, project: &str) {
    let Ok(root) = open_own(projects, project) else { return };
    let home = home(&root).map(|(home, _)| home);
    for staging in [open_own(&root, STAGING), home.and_then(|home| open_own(home, STAGING))].into_iter().flatten() {
        clear(&staging, project);
    }
}

fn clear(staging: &OwnedFd, project: &str) {
    let mut names = Vec::new();
    let listed = for_each_name(staging, |name| {
        names.push(name.to_owned());
        true
    });
    for name in names {
        if let Err(error) = unlinkat(staging, name.as_os_str(), UnlinkatFlags::NoRemoveDir) {
            tracing::warn!(project, ?name, %error, "a half-written file of a dead daemon can't be removed");
        }
    }
    if let Err(error) = listed {
        tracing::warn!(project, %error, "what a dead daemon was writing can't be seen");
    }
}

/// Removes a project that was renamed out of the way.
fn remove_gone(projects: &OwnedFd, name: &str, root: &OwnedFd) -> Result<(), WorkspaceError> {
    remove_tree(root, name, PROJECT_ENTRIES)?;
    unlinkat(projects, name, UnlinkatFlags::RemoveDir).map_err(host("remove a project"))
}

fn check_cwd(work: &OwnedFd, cwd: &str) -> Result<(), WorkspaceError> {
    if cwd.is_empty() {
        return Ok(());
    }
    match open_directory(work, cwd) {
        Ok(_) => Ok(()),
        Err(Errno::ENOENT | Errno::ENOTDIR) => Err(WorkspaceError::Missing("exec.cwd")),
        // EACCES: a program locked the directory for its owner, who we are.
        Err(Errno::ELOOP | Errno::EXDEV | Errno::EACCES) => Err(WorkspaceError::Boundary("exec.cwd")),
        Err(errno) => Err(host("open the working directory")(errno)),
    }
}

fn write_input(area: &OwnedFd, path: &str, content: &[u8]) -> Result<(), WorkspaceError> {
    let refused = |errno| match errno {
        Errno::ELOOP | Errno::EXDEV | Errno::ENOTDIR | Errno::EISDIR => WorkspaceError::Boundary("inputs"),
        errno => host("write an input")(errno),
    };
    let failed = |error: std::io::Error| host("write an input")(errno_of(&error));
    let mut directory = area.try_clone().map_err(failed)?;
    let (parents, name) = path.rsplit_once('/').map_or(("", path), |(parents, name)| (parents, name));
    for parent in parents.split('/').filter(|name| !name.is_empty()) {
        directory = make_directory(&directory, parent, 0o755).map_err(refused)?;
    }
    // Beside, then renamed: a file of that name may be running in another exec, and nobody ever sees half of one.
    let beside = format!(".{}.new", ExecId::generate());
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
    // Executable: an input may be a program, and the area is read-only inside.
    let file = open_beneath(&directory, beside.as_str(), flags, Mode::from_bits_truncate(0o755)).map_err(refused)?;
    let written = File::from(file).write_all(content).map_err(failed);
    let placed = written.and_then(|()| renameat(&directory, beside.as_str(), &directory, name).map_err(refused));
    if placed.is_err() {
        let _ = unlinkat(&directory, beside.as_str(), UnlinkatFlags::NoRemoveDir); // the error that counts is the first
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fixture, as_nobody, owner as principal, project};
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn nothing() -> std::vec::IntoIter<(&'static str, &'static [u8])> {
        vec![].into_iter()
    }

    #[test]
    fn a_project_belongs_to_whoever_came_first() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(directory.path()).expect("a store");
        let project: ProjectId = "p1".parse().expect("a name");
        let exec = ExecId::generate();
        store.lay(&exec, &principal("a"), Some(&project), "", nothing()).expect("the first caller's");
        store.lay(&ExecId::generate(), &principal("a"), Some(&project), "", nothing()).expect("again");
        let other = store.lay(&ExecId::generate(), &principal("b"), Some(&project), "", nothing());
        assert!(matches!(other, Err(WorkspaceError::NotYours)));
        assert!(directory.path().join("p1/artifacts").join(exec.as_str()).is_dir());
    }

    #[test]
    fn an_owner_whose_name_the_power_took_is_written_again() {
        let fixture = Fixture::new();
        std::fs::write(fixture.path(OWNER), "").expect("an empty file");
        let work = || fixture.store.area(&principal("a"), &project(), &AreaKind::Work);
        assert!(matches!(work(), Err(WorkspaceError::NotYours)), "until it is claimed it is nobody's");
        fixture.store.claim(&principal("a"), &project()).expect("the start claims it for the ledger's owner");
        assert!(work().is_ok());
    }

    #[test]
    fn throw_away_inputs_are_gone_with_their_exec() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(directory.path()).expect("a store");
        let exec = ExecId::generate();
        let files: Vec<(&str, &[u8])> = vec![("a/b.txt", b"hello")];
        let laid = store.lay(&exec, &principal("a"), None, "", files.into_iter()).expect("laid down");
        let file = directory.path().join(format!(".{exec}/inputs/a/b.txt"));
        assert_eq!(std::fs::read(&file).expect("the input"), b"hello");
        drop(laid);
        assert_eq!(std::fs::read_dir(directory.path()).expect("the store").count(), 0);
    }

    #[test]
    fn a_dead_daemons_throw_away_areas_are_removed_at_start() {
        let directory = tempfile::tempdir().expect("a directory");
        let left = directory.path().join(format!(".{}", ExecId::generate()));
        std::fs::create_dir_all(left.join("inputs")).expect("what a crash left");
        std::fs::create_dir_all(directory.path().join("p1/work")).expect("a project");
        Store::open(directory.path()).expect("a store");
        assert!(!left.exists() && directory.path().join("p1/work").exists());
    }

    #[test]
    fn a_cwd_through_a_link_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(directory.path()).expect("a store");
        let project: ProjectId = "p1".parse().expect("a name");
        let lay = |cwd: &str| store.lay(&ExecId::generate(), &principal("a"), Some(&project), cwd, nothing());
        lay("").expect("the project");
        std::os::unix::fs::symlink("/etc", directory.path().join("p1/work/out")).expect("a link out");
        assert!(matches!(lay("out"), Err(WorkspaceError::Boundary("exec.cwd"))));
        assert!(matches!(lay("nowhere"), Err(WorkspaceError::Missing("exec.cwd"))));
    }

    #[test]
    fn anothers_project_and_none_at_all_look_the_same_and_reading_makes_none() {
        let fixture = Fixture::new();
        let other: ProjectId = "p2".parse().expect("a name");
        for (subject, project) in [("b", &project()), ("a", &other)] {
            let area = fixture.store.area(&principal(subject), project, &AreaKind::Work);
            assert!(matches!(area, Err(WorkspaceError::NotYours)));
            assert!(matches!(fixture.store.remove(&principal(subject), project), Err(WorkspaceError::NotYours)));
        }
        assert!(fixture.work("").is_dir() && !fixture.path("../p2").exists());
        let unknown = AreaKind::Artifacts(ExecId::generate());
        let area = fixture.store.area(&principal("a"), &project(), &unknown);
        assert!(matches!(area, Err(WorkspaceError::NoSuchFile { .. })));
    }

    #[test]
    fn a_project_that_nobody_has_claimed_yet_is_nobodys() {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(directory.path().join("p1/work")).expect("a project without an owner");
        let store = Store::open(directory.path()).expect("a store");
        let area = store.area(&principal("a"), &project(), &AreaKind::Work);
        assert!(matches!(area, Err(WorkspaceError::NotYours)));
    }

    #[test]
    fn a_removed_project_is_gone_with_everything_that_programs_locked() {
        as_nobody(|fixture| {
            std::fs::create_dir_all(fixture.work("a/b")).expect("directories");
            std::fs::write(fixture.work("a/b/f"), "x").expect("a file");
            std::fs::set_permissions(fixture.work("a/b"), PermissionsExt::from_mode(0o0)).expect("locked");
            std::fs::set_permissions(fixture.work("a"), PermissionsExt::from_mode(0o0)).expect("locked");
            fixture.store.remove(&principal("a"), &project()).expect("removed");
            assert_eq!(std::fs::read_dir(fixture.path("..")).map(Iterator::count).ok(), None, "the project is gone");
            fixture.store.claim(&principal("b"), &project()).expect("the name is free again");
            assert!(std::fs::read_dir(fixture.work("")).expect("a new work area").next().is_none());
        });
    }

    #[test]
    fn what_a_dead_daemon_left_half_done_is_cleared_at_start() {
        let fixture = Fixture::new();
        fixture.area();
        std::fs::write(fixture.path(".new/half"), "x").expect("half a file");
        let gone = fixture.path("../.gone-x");
        std::fs::create_dir_all(gone.join("work/d")).expect("half a removed project");
        Store::open(&fixture.path("..")).expect("a store");
        assert_eq!(fixture.staged(), 0);
        assert!(!gone.exists() && fixture.work("").is_dir());
    }

    #[test]
    fn a_locked_work_area_does_not_keep_the_next_exec_from_starting() {
        as_nobody(|fixture| {
            std::fs::set_permissions(fixture.work(""), PermissionsExt::from_mode(0o0)).expect("locked");
            let exec = ExecId::generate();
            fixture.store.lay(&exec, &principal("a"), Some(&project()), "", nothing()).expect("laid down");
            assert_eq!(std::fs::metadata(fixture.work("")).expect("work").permissions().mode() & 0o700, 0o700);
        });
    }
}
