//! Removing: names are taken out of directories that are held open, so nothing that a program swaps or renames
//! meanwhile leads anywhere else, and a link is removed as the link it is.
//!
//! A tree may be deeper than any path is long. Where it is deeper than we like to hold descriptors, the rest is renamed
//! to the top of what is being removed and comes up for removal there.

use super::area::AreaDir;
use super::beneath::{look, open_beneath, sync_directory, unlock};
use super::error::{WorkspaceError, at};
use super::meta::FileKind;
use crate::model::ExecId;
use nix::errno::Errno;
use nix::fcntl::{OFlag, renameat};
use nix::sys::stat::{Mode, fchmod, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use rustix::fs::Dir;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// How many levels hold a descriptor at once.
const LEVELS: usize = 32;
/// How many names are read before they are removed; a directory's memory is bounded by it.
const NAMES: usize = 1024;
/// How often a name that changes its kind, or a directory that fills again, is tried anew.
const TRIES: usize = 16;
/// The most entries that one call removes; the next call goes on.
const ENTRIES: u64 = 1_000_000;

/// Whether a directory goes with what is in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// Only an empty one goes.
    Refuse,
    /// All of it goes.
    Remove,
}

impl AreaDir {
    /// Removes a file, a link or a directory. `.` with [`Contents::Remove`] empties the area, which itself stays.
    /// Answers how many entries are gone.
    pub fn remove(&self, path: &str, contents: Contents) -> Result<u64, WorkspaceError> {
        let failed = at(path, "remove a file");
        match (path, contents) {
            (".", Contents::Refuse) => return Err(failed(Errno::ENOTEMPTY)),
            (".", Contents::Remove) => return remove_tree(self.root(), path, ENTRIES),
            _ => {}
        }
        let (parent, name) = self.parent(path).map_err(&failed)?;
        for _ in 0..TRIES {
            let stat = look(&parent, name).map_err(&failed)?;
            let mut removed = 1;
            let gone = if FileKind::of(&stat) == FileKind::Directory {
                if contents == Contents::Remove {
                    match open_to_empty(&parent, OsStr::new(name)) {
                        Ok(directory) => removed += remove_tree(&directory, path, ENTRIES)?,
                        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => continue, // swapped since the look
                        Err(errno) => return Err(failed(errno)),
                    }
                }
                unlinkat(&parent, name, UnlinkatFlags::RemoveDir)
            } else {
                unlinkat(&parent, name, UnlinkatFlags::NoRemoveDir)
            };
            match gone {
                Ok(()) => {
                    sync_directory(&parent).map_err(failed)?;
                    return Ok(removed);
                }
                Err(Errno::ENOTDIR | Errno::EISDIR) => {} // another kind since the look
                Err(Errno::ENOTEMPTY) if contents == Contents::Remove => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        Err(failed(Errno::ENOTEMPTY))
    }
}

/// Empties a directory, which stays. Answers how many entries are gone; gives up after looking at `most`.
pub(super) fn remove_tree(directory: &OwnedFd, path: &str, most: u64) -> Result<u64, WorkspaceError> {
    let failed = at(path, "remove a directory");
    let top = open_to_empty(directory, OsStr::new(".")).map_err(&failed)?;
    let mut removal = Removal { top: &top, left: most, removed: 0 };
    match removal.empty(&top, 1) {
        Ok(()) => Ok(removal.removed),
        Err(Errno::E2BIG) => Err(WorkspaceError::TooLarge { what: "entries", limit: most }),
        Err(errno) => Err(failed(errno)),
    }
}

/// Opens a directory with every right of its owner, giving back what a program took away.
fn open_to_empty(parent: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    let opened = match open_beneath(&parent, name, flags, Mode::empty()) {
        Err(Errno::EACCES) if name != "." => {
            unlock(&parent, name, 0)?;
            open_beneath(&parent, name, flags, Mode::empty())
        }
        opened => opened,
    }?;
    if fstat(&opened)?.st_mode & 0o700 != 0o700 {
        fchmod(&opened, Mode::from_bits_truncate(0o700))?;
    }
    Ok(opened)
}

/// A removal under way.
struct Removal<'a> {
    top: &'a OwnedFd,
    /// How many entries may still be looked at: a program that fills faster than we empty does not keep us for ever.
    left: u64,
    removed: u64,
}

impl Removal<'_> {
    fn empty(&mut self, directory: &OwnedFd, depth: usize) -> Result<(), Errno> {
        let mut fruitless = 0;
        while fruitless < TRIES {
            let names = some_names(directory)?;
            if names.is_empty() {
                return Ok(());
            }
            let before = self.removed;
            for name in &names {
                self.remove_one(directory, name, depth)?;
            }
            fruitless = if self.removed > before { 0 } else { fruitless + 1 };
        }
        Err(Errno::ENOTEMPTY)
    }

    fn remove_one(&mut self, directory: &OwnedFd, name: &OsStr, depth: usize) -> Result<(), Errno> {
        self.left = self.left.checked_sub(1).ok_or(Errno::E2BIG)?;
        for _ in 0..TRIES {
            match unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
                Err(Errno::EISDIR | Errno::EPERM) => {} // unlink(2): either, for a directory
                unlinked => return self.count(unlinked),
            }
            match unlinkat(directory, name, UnlinkatFlags::RemoveDir) {
                Err(Errno::ENOTDIR) => continue,
                Err(Errno::ENOTEMPTY | Errno::EEXIST) => {}
                removed => return self.count(removed),
            }
            let below = match open_to_empty(directory, name) {
                Ok(below) => below,
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => continue,
                Err(errno) => return Err(errno),
            };
            if depth < LEVELS {
                self.empty(&below, depth + 1)?;
                continue;
            }
            // Up to the top, where a later round meets it. That needs the right to write to it, which it now gives.
            drop(below);
            let fresh = format!(".{}.gone", ExecId::generate());
            return match renameat(directory, name, self.top, fresh.as_str()) {
                Ok(()) | Err(Errno::ENOENT) => Ok(()),
                Err(errno) => Err(errno),
            };
        }
        Err(Errno::ENOTEMPTY)
    }

    fn count(&mut self, gone: Result<(), Errno>) -> Result<(), Errno> {
        match gone {
            Ok(()) => self.removed += 1,
            Err(Errno::ENOENT) => {} // somebody was faster
            Err(errno) => return Err(errno),
        }
        Ok(())
    }
}

/// The first names of a directory as it is now.
fn some_names(directory: &OwnedFd) -> Result<Vec<OsString>, Errno> {
    let raw = |error: rustix::io::Errno| Errno::from_raw(error.raw_os_error());
    let mut names = Vec::new();
    for entry in Dir::read_from(directory).map_err(raw)? {
        let entry = match entry {
            Err(rustix::io::Errno::NOENT) => break, // removed under us: it has no names
            entry => entry.map_err(raw)?,
        };
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
        if names.len() == NAMES {
            break;
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fixture, as_nobody};
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_directory_goes_with_its_contents_only_when_asked() {
        let fixture = Fixture::new();
        let area = fixture.area();
        fs::create_dir_all(fixture.work("d/e")).expect("directories");
        fs::write(fixture.work("d/f"), "x").expect("a file");
        assert!(matches!(area.remove("d", Contents::Refuse), Err(WorkspaceError::NotEmpty { path }) if path == "d"));
        assert_eq!(area.remove("d/e", Contents::Refuse).expect("an empty one"), 1);
        assert_eq!(area.remove("d", Contents::Remove).expect("all of it"), 2);
        assert!(matches!(area.remove("d", Contents::Remove), Err(WorkspaceError::NoSuchFile { .. })));
    }

    #[test]
    fn links_are_removed_and_what_they_point_to_stays() {
        let fixture = Fixture::new();
        let area = fixture.area();
        let outside = tempfile::tempdir().expect("a directory");
        fs::write(outside.path().join("kept"), "x").expect("a file");
        fs::create_dir(fixture.work("d")).expect("a directory");
        symlink(outside.path(), fixture.work("d/link")).expect("a link");
        symlink(outside.path(), fixture.work("link")).expect("a link");
        assert!(matches!(area.remove("link/kept", Contents::Refuse), Err(WorkspaceError::Boundary("path"))));
        area.remove("link", Contents::Remove).expect("the link itself");
        area.remove("d", Contents::Remove).expect("with the link in it");
        assert!(outside.path().join("kept").exists() && !fixture.work("link").is_symlink());
    }

    #[test]
    fn the_area_itself_stays() {
        let fixture = Fixture::new();
        let area = fixture.area();
        fs::write(fixture.work("f"), "x").expect("a file");
        assert!(matches!(area.remove(".", Contents::Refuse), Err(WorkspaceError::NotEmpty { .. })));
        assert_eq!(area.remove(".", Contents::Remove).expect("emptied"), 1);
        assert!(fs::read_dir(fixture.work("")).expect("the area").next().is_none());
        assert!(matches!(area.remove("a/..", Contents::Remove), Err(WorkspaceError::Boundary(_))));
    }

    #[test]
    fn a_tree_deeper_than_any_path_is_removed() {
        const DEPTH: usize = 3000; // twice PATH_MAX in bytes
        let fixture = Fixture::new();
        let area = fixture.area();
        let mut directory = area.root().try_clone().expect("a descriptor");
        for _ in 0..DEPTH {
            nix::sys::stat::mkdirat(&directory, "dd", Mode::from_bits_truncate(0o755)).expect("a directory");
            directory = super::super::beneath::open_directory(&directory, "dd").expect("it");
        }
        drop(directory);
        area.remove("dd", Contents::Remove).expect("removed");
        assert!(fs::read_dir(fixture.work("")).expect("the area").next().is_none());
    }

    #[test]
    fn a_directory_of_many_names_is_removed() {
        let fixture = Fixture::new();
        fs::create_dir(fixture.work("d")).expect("a directory");
        (0..3 * NAMES).for_each(|n| fs::write(fixture.work(&format!("d/{n}")), "").expect("a file"));
        assert_eq!(fixture.area().remove("d", Contents::Remove).expect("removed"), 3 * NAMES as u64 + 1);
    }

    #[test]
    fn a_bound_on_entries_holds() {
        let fixture = Fixture::new();
        (0..5).for_each(|n| fs::write(fixture.work(&n.to_string()), "").expect("a file"));
        let removed = remove_tree(fixture.area().root(), ".", 3);
        assert!(matches!(removed, Err(WorkspaceError::TooLarge { what: "entries", limit: 3 })));
        assert_eq!(fs::read_dir(fixture.work("")).expect("the area").count(), 2);
    }

    #[test]
    fn modes_that_lock_the_owner_out_do_not_keep_a_tree() {
        as_nobody(|fixture| {
            let area = fixture.area();
            fs::create_dir_all(fixture.work("d/e/f")).expect("directories");
            fs::write(fixture.work("d/e/f/g"), "x").expect("a file");
            fs::create_dir(fixture.work("shut")).expect("an empty directory");
            for (path, mode) in [("d/e/f/g", 0), ("d/e/f", 0), ("d/e", 0o500), ("d", 0), ("shut", 0)] {
                fs::set_permissions(fixture.work(path), PermissionsExt::from_mode(mode)).expect("locked");
            }
            assert!(matches!(area.remove("d/e", Contents::Remove), Err(WorkspaceError::Denied { .. })));
            area.remove("d", Contents::Remove).expect("removed");
            area.remove("shut", Contents::Refuse).expect("removed");
            assert!(fs::read_dir(fixture.work("")).expect("the area").next().is_none());
        });
    }
}
