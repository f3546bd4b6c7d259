//! Walking a tree that a program may be changing: names sorted, one descriptor a level, bounded in levels and entries.

use super::area::AreaDir;
use super::beneath::{look, open_directory, sorted_names};
use super::error::{WorkspaceError, at};
use super::meta::{FileKind, size};
use nix::errno::Errno;
use nix::sys::stat::FileStat;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// How deep a walk goes: each level holds a descriptor.
pub(super) const LEVELS: usize = 100;
/// The most entries that a walk looks at where nobody says less.
pub(super) const ENTRIES: u64 = 1_000_000;

/// What a walk meets.
pub(super) enum Met<'a> {
    /// An entry, looked at without following it. Its directory comes before what is in it.
    Entry { directory: &'a OwnedFd, name: &'a OsStr, path: &'a Path, stat: &'a FileStat },
    /// What can't be looked at or entered: locked by its owner, or too deep.
    Shut { path: &'a Path, why: Errno },
}

/// Walks everything below `top`, in the order of names. False: there was more than `entries`.
///
/// What vanishes or changes its kind under the walk is passed over, as if the walk had come a moment later.
pub(super) fn walk(
    top: &OwnedFd,
    entries: u64,
    visit: &mut impl FnMut(Met<'_>) -> Result<(), WorkspaceError>,
) -> Result<bool, WorkspaceError> {
    let mut left = entries;
    level(top, &mut PathBuf::new(), 1, &mut left, visit)
}

fn level(
    directory: &OwnedFd,
    path: &mut PathBuf,
    depth: usize,
    left: &mut u64,
    visit: &mut impl FnMut(Met<'_>) -> Result<(), WorkspaceError>,
) -> Result<bool, WorkspaceError> {
    let most = usize::try_from(*left).unwrap_or(usize::MAX);
    let (names, complete) = match sorted_names(directory, most) {
        Ok(names) => names,
        Err(Errno::ENOENT) => return Ok(true), // removed while we held it
        Err(why) => return visit(Met::Shut { path, why }).map(|()| true),
    };
    for name in names {
        if *left == 0 {
            return Ok(false);
        }
        *left -= 1;
        let stat = match look(directory, name.as_os_str()) {
            Ok(stat) => stat,
            Err(Errno::ENOENT) => continue,
            Err(why) => {
                visit(Met::Shut { path: &path.join(&name), why })?;
                continue;
            }
        };
        path.push(&name);
        visit(Met::Entry { directory, name: &name, path, stat: &stat })?;
        if FileKind::of(&stat) == FileKind::Directory {
            let opened = if depth < LEVELS { open_directory(directory, name.as_os_str()) } else { Err(Errno::ELOOP) };
            let whole = match opened {
                Ok(below) => level(&below, path, depth + 1, left, visit)?,
                Err(Errno::ENOENT | Errno::ENOTDIR) => true,
                // A link in the place of a directory answers like one that is too deep; only the latter is one still.
                Err(Errno::ELOOP) if depth < LEVELS => true,
                Err(why) => visit(Met::Shut { path, why }).map(|()| true)?,
            };
            if !whole {
                return Ok(false);
            }
        }
        path.pop();
    }
    Ok(complete)
}

/// What a tree takes on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes on disk, holes not counted, a file with several names once.
    pub bytes: u64,
    /// Lengths of regular files together, holes counted.
    pub length_bytes: u64,
    /// Everything that is not a directory.
    pub files: u64,
    /// Directories, without the area itself.
    pub directories: u64,
    /// False if some of it could not be seen: locked, too deep, too much.
    pub complete: bool,
}

impl AreaDir {
    /// What the area takes on disk.
    pub fn disk_usage(&self) -> Result<DiskUsage, WorkspaceError> {
        let mut usage = DiskUsage { complete: true, ..DiskUsage::default() };
        let mut several_names = HashSet::new();
        let root = open_directory(self.root(), ".").map_err(at(".", "measure an area"))?;
        let whole = walk(&root, ENTRIES, &mut |met| {
            match met {
                Met::Shut { .. } => usage.complete = false,
                Met::Entry { stat, .. } => {
                    let kind = FileKind::of(stat);
                    let counter = if kind == FileKind::Directory { &mut usage.directories } else { &mut usage.files };
                    *counter += 1;
                    let again = kind != FileKind::Directory
                        && stat.st_nlink > 1
                        && !several_names.insert((stat.st_dev, stat.st_ino));
                    if !again {
                        usage.bytes = usage.bytes.saturating_add(disk_bytes(stat));
                        let length = if kind == FileKind::File { size(stat) } else { 0 };
                        usage.length_bytes = usage.length_bytes.saturating_add(length);
                    }
                }
            }
            Ok(())
        })?;
        usage.complete &= whole;
        Ok(usage)
    }
}

/// The kernel counts in blocks of 512 bytes, whatever the filesystem's are.
fn disk_bytes(stat: &FileStat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fixture, as_nobody};
    use super::*;
    use std::fs::{self, File};
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn paths(fixture: &Fixture, entries: u64) -> (Vec<String>, bool) {
        let mut seen = Vec::new();
        let whole = walk(fixture.area().root(), entries, &mut |met| {
            match met {
                Met::Entry { path, .. } => seen.push(path.display().to_string()),
                Met::Shut { path, why } => seen.push(format!("{} shut: {why:?}", path.display())),
            }
            Ok(())
        });
        (seen, whole.expect("a walk"))
    }

    #[test]
    fn a_walk_goes_in_order_and_not_through_links() {
        let fixture = Fixture::new();
        for directory in ["b/x", "a", "b.d"] {
            fs::create_dir_all(fixture.work(directory)).expect("directories");
        }
        symlink("/etc", fixture.work("a/etc")).expect("a link");
        fs::write(fixture.work("b/f"), "").expect("a file");
        let all = ["a", "a/etc", "b", "b/f", "b/x", "b.d"];
        assert_eq!(paths(&fixture, 100), (all.map(str::to_owned).to_vec(), true));
        assert_eq!(paths(&fixture, 6), (all.map(str::to_owned).to_vec(), true));
        let (seen, whole) = paths(&fixture, 4);
        assert_eq!((seen.len(), whole), (4, false));
    }

    #[test]
    fn a_walk_ends_where_it_is_too_deep() {
        let fixture = Fixture::new();
        fs::create_dir_all(fixture.work(&"d/".repeat(LEVELS + 5))).expect("directories");
        let (seen, whole) = paths(&fixture, 1000);
        assert_eq!((seen.len(), whole), (LEVELS + 1, true));
        assert!(seen[LEVELS].ends_with("shut: ELOOP"), "{}", seen[LEVELS]);
        assert!(!fixture.area().disk_usage().expect("a measure").complete);
    }

    #[test]
    fn usage_counts_blocks_once() {
        let fixture = Fixture::new();
        let area = fixture.area();
        fs::create_dir(fixture.work("d")).expect("a directory");
        File::create(fixture.work("sparse")).expect("a file").set_len(1 << 30).expect("a hole");
        fs::write(fixture.work("d/f"), vec![1; 10_000]).expect("a file");
        File::open(fixture.work("d/f")).expect("it").sync_all().expect("blocks are counted when they are written");
        fs::hard_link(fixture.work("d/f"), fixture.work("d/g")).expect("a second name");
        let usage = area.disk_usage().expect("a measure");
        assert_eq!((usage.files, usage.directories, usage.complete), (3, 1, true));
        assert_eq!(usage.length_bytes, (1 << 30) + 10_000);
        assert!((10_000..100_000).contains(&usage.bytes), "{}", usage.bytes);
    }

    #[test]
    fn a_locked_directory_is_said_to_be_shut() {
        as_nobody(|fixture| {
            fs::create_dir_all(fixture.work("d/e")).expect("directories");
            fs::set_permissions(fixture.work("d"), PermissionsExt::from_mode(0o0)).expect("locked");
            assert_eq!(paths(fixture, 100), (vec!["d".to_owned(), "d shut: EACCES".to_owned()], true));
        });
    }
}
