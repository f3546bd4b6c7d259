//! Workspaces as the front sees them: projects and throw-away areas on disk, owned by the service user.
//!
//! ```text
//! <state_dir>/workspace/projects/<project_id>/{inputs, work, artifacts/<exec_id>}   and .owner
//!                                .<exec_id>/inputs                                  throw-away, gone with the exec
//! ```
//!
//! Every path that a caller or a program had a hand in is opened relative to a descriptor, below it, through no link.
//! It decides nothing: paths come here normalised, and whose a project is, is a file's word.
#![forbid(unsafe_code)]

use crate::model::{ExecId, Owner, ProjectId};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, OpenHow, ResolveFlag, openat2, renameat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The file that says whose a project is. No program sees it: only the three areas are mounted.
const OWNER: &str = ".owner";

/// What can go wrong with files.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// Somebody else's project.
    #[error("the project belongs to another principal")]
    NotYours,
    /// A directory is not there.
    #[error("{0} is not a directory of the workspace")]
    Missing(&'static str),
    /// A link, or a way out.
    #[error("{0} leads through a link or out of the workspace")]
    Boundary(&'static str),
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

fn host(what: &'static str) -> impl FnOnce(Errno) -> WorkspaceError {
    move |errno| WorkspaceError::Host { what, source: errno.into() }
}

/// Opens `path` below `directory`, through no link of any kind.
fn open_beneath(directory: impl AsFd, path: &str, flags: OFlag, mode: Mode) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .mode(mode)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    openat2(directory, path, how)
}

fn open_directory(directory: impl AsFd, path: &str) -> Result<OwnedFd, Errno> {
    open_beneath(directory, path, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty())
}

/// Makes a directory if it is not there and opens it.
fn make_directory(parent: impl AsFd, name: &str, mode: u32) -> Result<OwnedFd, Errno> {
    match mkdirat(&parent, name, Mode::from_bits_truncate(mode)) {
        Ok(()) | Err(Errno::EEXIST) => open_directory(&parent, name),
        Err(errno) => Err(errno),
    }
}

/// All workspaces of a daemon.
#[derive(Debug)]
pub struct Store {
    projects: OwnedFd,
    path: PathBuf,
}

/// Where the files of one exec are; dropped, a throw-away one is gone.
#[derive(Debug)]
pub enum Laid {
    /// A project's areas.
    Project,
    /// Nothing on disk, or inputs only.
    ThrowAway {
        /// The directory to remove.
        inputs: Option<ThrowAway>,
    },
}

/// A directory on disk that goes with its exec.
#[derive(Debug)]
pub struct ThrowAway(PathBuf);

impl Drop for ThrowAway {
    fn drop(&mut self) {
        // Programs had it read-only, so nothing in it can be a trap.
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "could not remove a throw-away directory; the next start will");
        }
    }
}

impl Store {
    /// Opens the projects directory, which start-up has made, and removes what execs of a dead daemon left.
    pub fn open(projects: &Path) -> Result<Self, WorkspaceError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = nix::fcntl::openat(AT_FDCWD, projects, flags, Mode::empty())
            .map_err(host("open the projects directory"))?;
        for entry in std::fs::read_dir(projects).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let left_over =
                name.to_str().and_then(|name| name.strip_prefix('.')).is_some_and(|id| id.parse::<ExecId>().is_ok());
            if left_over {
                drop(ThrowAway(entry.path()));
            }
        }
        Ok(Self { projects: directory, path: projects.to_owned() })
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
                let inputs_area = make_directory(&root, "inputs", 0o755).map_err(host("make the inputs area"))?;
                let work = make_directory(&root, "work", 0o755).map_err(host("make the work area"))?;
                let artifacts = make_directory(&root, "artifacts", 0o755).map_err(host("make the artifacts area"))?;
                make_directory(&artifacts, exec.as_str(), 0o755).map_err(host("make the artifacts directory"))?;
                check_cwd(&work, cwd)?;
                for (path, content) in inputs {
                    write_input(&inputs_area, path, content)?;
                }
                Ok(Laid::Project)
            }
            // The work area of such an exec is an empty tmpfs: no directory can be there before it starts.
            None if !cwd.is_empty() => Err(WorkspaceError::Missing("exec.cwd")),
            None if inputs.len() == 0 => Ok(Laid::ThrowAway { inputs: None }),
            None => {
                let name = format!(".{exec}");
                let directory =
                    make_directory(&self.projects, &name, 0o700).map_err(host("make a throw-away directory"))?;
                let guard = ThrowAway(self.path.join(&name));
                let area = make_directory(&directory, "inputs", 0o755).map_err(host("make the inputs area"))?;
                for (path, content) in inputs {
                    write_input(&area, path, content)?;
                }
                Ok(Laid::ThrowAway { inputs: Some(guard) })
            }
        }
    }

    /// The project's directory, made for `owner` if there is none; an error if it is another's.
    fn own_project(&self, project: &ProjectId, owner: &Owner, exec: &ExecId) -> Result<OwnedFd, WorkspaceError> {
        let root = make_directory(&self.projects, project.as_str(), 0o700).map_err(host("open the project"))?;
        let mine = format!("{}\n{}\n", owner.tenant, owner.subject);
        // Written aside and linked into place: of two first callers exactly one becomes the owner, and nobody
        // ever reads half a name.
        if matches!(open_beneath(&root, OWNER, OFlag::O_PATH, Mode::empty()), Err(Errno::ENOENT)) {
            let aside = format!("{OWNER}.{exec}");
            let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
            let file = open_beneath(&root, &aside, flags, Mode::from_bits_truncate(0o600))
                .map_err(host("claim the project"))?;
            let failed = |source| WorkspaceError::Host { what: "claim the project", source };
            let mut file = File::from(file);
            file.write_all(mine.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
            let linked = linkat(&root, aside.as_str(), &root, OWNER, AtFlags::empty());
            unlinkat(&root, aside.as_str(), UnlinkatFlags::NoRemoveDir).map_err(host("claim the project"))?;
            if let Err(errno) = linked
                && errno != Errno::EEXIST
            {
                return Err(host("claim the project")(errno));
            }
        }
        let file =
            open_beneath(&root, OWNER, OFlag::O_RDONLY, Mode::empty()).map_err(host("read the project's owner"))?;
        let mut theirs = String::new();
        let read = File::from(file).take(4096).read_to_string(&mut theirs);
        read.map_err(|source| WorkspaceError::Host { what: "read the project's owner", source })?;
        if theirs == mine { Ok(root) } else { Err(WorkspaceError::NotYours) }
    }
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
    let mut directory = area.try_clone().map_err(|source| WorkspaceError::Host { what: "write an input", source })?;
    let (parents, name) = path.rsplit_once('/').map_or(("", path), |(parents, name)| (parents, name));
    for parent in parents.split('/').filter(|name| !name.is_empty()) {
        directory = make_directory(&directory, parent, 0o755).map_err(refused)?;
    }
    // Beside, then renamed: a file of that name may be running in another exec, and nobody ever sees half of one.
    let beside = format!(".{}.new", ExecId::generate());
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
    // Executable: an input may be a program, and the area is read-only inside.
    let file = open_beneath(&directory, &beside, flags, Mode::from_bits_truncate(0o755)).map_err(refused)?;
    let written =
        File::from(file).write_all(content).map_err(|source| WorkspaceError::Host { what: "write an input", source });
    let placed = written.and_then(|()| renameat(&directory, beside.as_str(), &directory, name).map_err(refused));
    if placed.is_err() {
        let _ = unlinkat(&directory, beside.as_str(), UnlinkatFlags::NoRemoveDir); // the error that counts is the first
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(subject: &str) -> Owner {
        Owner { tenant: "t".into(), subject: subject.into() }
    }

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
}
