//! One area of one project, held open: every operation on its files begins here.

use super::beneath::{look, make_directories, open_directory, split, sync_directory};
use super::error::{WorkspaceError, at};
use super::meta::{FileKind, Meta};
use crate::model::ExecId;
use nix::errno::Errno;
use nix::fcntl::{RenameFlags, renameat, renameat2};
use nix::sys::stat::{Mode, fstat, mkdirat};
use std::os::fd::OwnedFd;

/// Which area of a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AreaKind {
    /// What programs work in.
    Work,
    /// What programs may read only.
    Inputs,
    /// What one exec leaves.
    Artifacts(ExecId),
}

/// What happens to a file that has the name already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It stays, and the caller hears of it.
    Refuse,
    /// It is replaced, at once and whole.
    Replace,
}

/// What happens if directories on the way are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parents {
    /// They are made.
    Make,
    /// It is an error.
    MustExist,
}

/// An area, open. Paths are relative to it and normalised; `.` is the area itself.
#[derive(Debug)]
pub struct AreaDir {
    root: OwnedFd,
    staging: OwnedFd,
}

impl AreaDir {
    pub(super) fn new(root: OwnedFd, staging: OwnedFd) -> Self {
        Self { root, staging }
    }

    pub(super) fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Where files are written before they have a name in the area.
    pub(super) fn staging(&self) -> &OwnedFd {
        &self.staging
    }

    /// The directory that `path` lies in, and its name there.
    pub(super) fn parent<'a>(&self, path: &'a str) -> Result<(OwnedFd, &'a str), Errno> {
        let (parent, name) = split(path)?;
        Ok((open_directory(&self.root, parent)?, name))
    }

    /// What is at `path`; a link is a link.
    pub fn stat(&self, path: &str) -> Result<Meta, WorkspaceError> {
        let stat = match path {
            "." => fstat(&self.root),
            path => self.parent(path).and_then(|(parent, name)| look(parent, name)),
        };
        stat.map(|stat| Meta::of(&stat)).map_err(at(path, "look at a file"))
    }

    /// Makes a directory. With [`Parents::Make`] one that is there already is as good as a new one.
    pub fn make_directory(&self, path: &str, parents: Parents) -> Result<(), WorkspaceError> {
        let failed = at(path, "make a directory");
        match parents {
            Parents::Make => make_directories(&self.root, path).map(drop).map_err(failed),
            Parents::MustExist if path == "." => Err(failed(Errno::EEXIST)),
            Parents::MustExist => {
                let (parent, name) = self.parent(path).map_err(&failed)?;
                mkdirat(&parent, name, Mode::from_bits_truncate(0o755)).map_err(&failed)?;
                sync_directory(&parent).map_err(failed)
            }
        }
    }

    /// Moves a file, a link or a directory to another name of the same area.
    pub fn rename(&self, from: &str, to: &str, existing: Existing) -> Result<(), WorkspaceError> {
        let failed = at(to, "move a file");
        let (from_parent, from_name) = self.parent(from).map_err(at(from, "move a file"))?;
        // Looked at first, so that the words are about the right one of the two; the kernel looks again.
        let moved = look(&from_parent, from_name).map_err(at(from, "move a file"))?;
        let (to_parent, to_name) = self.parent(to).map_err(|errno| match failed(errno) {
            WorkspaceError::Boundary(_) => WorkspaceError::Boundary("to"),
            error => error,
        })?;
        let renamed = match existing {
            Existing::Refuse => renameat2(&from_parent, from_name, &to_parent, to_name, RenameFlags::RENAME_NOREPLACE),
            Existing::Replace => renameat(&from_parent, from_name, &to_parent, to_name),
        };
        renamed.map_err(|errno| match errno {
            Errno::EINVAL if FileKind::of(&moved) == FileKind::Directory => WorkspaceError::IntoItself,
            Errno::EEXIST if existing == Existing::Replace => WorkspaceError::NotEmpty { path: to.to_owned() },
            Errno::ENOENT => WorkspaceError::NoSuchFile { path: from.to_owned() },
            errno => failed(errno),
        })?;
        sync_directory(&to_parent).and_then(|()| sync_directory(&from_parent)).map_err(failed)
    }
}

/// The directory that a new file goes into.
pub(super) fn parent_for(root: &OwnedFd, parent: &str, parents: Parents) -> Result<OwnedFd, Errno> {
    match parents {
        Parents::Make => make_directories(root, parent),
        Parents::MustExist => open_directory(root, parent),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fixture, as_nobody};
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_link_is_shown_and_never_followed() {
        let fixture = Fixture::new();
        let area = fixture.area();
        symlink("/etc", fixture.work("out")).expect("a link");
        assert_eq!(area.stat("out").expect("the link").kind, FileKind::Link);
        assert!(matches!(area.stat("out/passwd"), Err(WorkspaceError::Boundary("path"))));
        assert_eq!(area.stat(".").expect("the area").kind, FileKind::Directory);
        assert!(matches!(area.stat("none"), Err(WorkspaceError::NoSuchFile { path }) if path == "none"));
        fs::write(fixture.work("f"), "x").expect("a file");
        assert!(matches!(area.stat("f/x"), Err(WorkspaceError::NotADirectory { .. })));
    }

    #[test]
    fn directories_are_made_one_by_one_and_not_through_links() {
        let fixture = Fixture::new();
        let area = fixture.area();
        let outside = tempfile::tempdir().expect("a directory");
        symlink(outside.path(), fixture.work("out")).expect("a link");
        assert!(matches!(area.make_directory("a/b", Parents::MustExist), Err(WorkspaceError::NoSuchFile { .. })));
        area.make_directory("a/b/c", Parents::Make).expect("made");
        area.make_directory("a/b/c", Parents::Make).expect("there already");
        area.make_directory("a/d", Parents::MustExist).expect("made");
        assert!(matches!(area.make_directory("a/d", Parents::MustExist), Err(WorkspaceError::Exists { .. })));
        assert!(matches!(area.make_directory(".", Parents::MustExist), Err(WorkspaceError::Exists { .. })));
        assert!(matches!(area.make_directory("out/x", Parents::Make), Err(WorkspaceError::Boundary("path"))));
        fs::write(fixture.work("f"), "x").expect("a file");
        assert!(matches!(area.make_directory("f/x", Parents::Make), Err(WorkspaceError::NotADirectory { .. })));
        assert!(fixture.work("a/b/c").is_dir() && fs::read_dir(outside.path()).expect("it").next().is_none());
    }

    #[test]
    fn a_move_replaces_only_when_asked() {
        let fixture = Fixture::new();
        let area = fixture.area();
        for (name, content) in [("a", "one"), ("b", "two")] {
            fs::write(fixture.work(name), content).expect("a file");
        }
        assert!(matches!(area.rename("a", "b", Existing::Refuse), Err(WorkspaceError::Exists { path }) if path == "b"));
        assert_eq!(fs::read(fixture.work("b")).expect("b"), b"two");
        area.rename("a", "b", Existing::Replace).expect("replaced");
        assert_eq!(fs::read(fixture.work("b")).expect("b"), b"one");
        assert!(
            matches!(area.rename("a", "c", Existing::Refuse), Err(WorkspaceError::NoSuchFile { path }) if path == "a")
        );
    }

    #[test]
    fn a_move_stays_in_its_area_and_in_order() {
        let fixture = Fixture::new();
        let area = fixture.area();
        symlink("/tmp", fixture.work("out")).expect("a link");
        fs::create_dir_all(fixture.work("d/e")).expect("directories");
        fs::create_dir_all(fixture.work("full/x")).expect("directories");
        fs::write(fixture.work("f"), "x").expect("a file");
        assert!(matches!(area.rename("f", "out/f", Existing::Replace), Err(WorkspaceError::Boundary("to"))));
        assert!(matches!(area.rename("out/f", "g", Existing::Replace), Err(WorkspaceError::Boundary("path"))));
        assert!(matches!(area.rename("d", "d/e/d", Existing::Refuse), Err(WorkspaceError::IntoItself)));
        assert!(matches!(area.rename("d", "full", Existing::Replace), Err(WorkspaceError::NotEmpty { .. })));
        assert!(matches!(area.rename("f", "full", Existing::Replace), Err(WorkspaceError::IsADirectory { .. })));
        assert!(matches!(area.rename(".", "g", Existing::Replace), Err(WorkspaceError::Boundary("path"))));
        area.rename("out", "link", Existing::Refuse).expect("the link itself moves");
        area.rename("d/e", "e", Existing::Refuse).expect("a directory moves");
        assert!(fixture.work("e").is_dir() && fixture.work("link").is_symlink());
    }

    #[test]
    fn what_a_program_locked_is_a_clear_no() {
        as_nobody(|fixture| {
            let area = fixture.area();
            fs::create_dir(fixture.work("locked")).expect("a directory");
            fs::write(fixture.work("locked/f"), "x").expect("a file");
            fs::set_permissions(fixture.work("locked"), PermissionsExt::from_mode(0o0)).expect("locked");
            assert!(matches!(area.stat("locked/f"), Err(WorkspaceError::Denied { path }) if path == "locked/f"));
            assert!(matches!(area.make_directory("locked/d", Parents::Make), Err(WorkspaceError::Denied { .. })));
            assert_eq!(area.stat("locked").expect("itself").mode, 0);
        });
    }
}
