//! What changed between two trees of a project: both are walked at once, in the order of names.
//!
//! Copies share their inodes' numbers and times of change with what they were made from, so a file that nobody touched is
//! told by these alone. No program can set the time of change; but two changes within one tick of the clock look like one,
//! so a file that changed in the last moment before the first tree was taken is read, as is one that was touched.
//! Reading has a bound; beyond it what was touched counts as modified.
//!
//! A page is a whole walk that says nothing before its cursor: correct whatever happens between two pages.

use super::beneath::{look, open_directory, open_own, sorted_names};
use super::error::{WorkspaceError, host};
use super::meta::{FileKind, size};
use super::read::open_file;
use super::snapshots::Tree;
use super::store::Store;
use super::walk::{ENTRIES, LEVELS};
use crate::model::{Owner, ProjectId};
use nix::errno::Errno;
use nix::fcntl::{OFlag, readlinkat};
use nix::sys::stat::FileStat;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The most bytes of files that one walk compares.
const READ_MAX: u64 = 1 << 30;
/// A file that changed so shortly before a tree was taken may have changed again in the same tick.
const MOMENT_MS: i64 = 2_000;
const CHUNK: usize = 128 << 10;

/// What happened to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It is only in the second tree.
    Added,
    /// It is in both, with another content, kind or mode.
    Modified,
    /// It is only in the first tree.
    Deleted,
}

/// A path that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// Below the work area.
    pub path: PathBuf,
    /// How.
    pub change: Change,
    /// What it is now, or was.
    pub kind: FileKind,
    /// Its length now; none if it is gone.
    pub size: Option<u64>,
    /// Its length before; none if it was not there.
    pub old_size: Option<u64>,
}

/// Part of a list of changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// In the order of paths.
    pub items: Vec<Changed>,
    /// Where the next page begins; none after the last.
    pub next: Option<String>,
    /// False if some of it could not be seen: locked, too deep, too much.
    pub complete: bool,
}

/// Which part of a list.
#[derive(Debug, Clone, Default)]
pub struct DiffPage {
    /// After the path that the page before ended with.
    pub after: Option<String>,
    /// At most so many.
    pub limit: usize,
}

struct Walk {
    /// A moment before which the first tree was not taken, in milliseconds since 1970.
    taken_ms: i64,
    after: Option<PathBuf>,
    limit: usize,
    entries: u64,
    bytes: u64,
    found: Changes,
}

impl Store {
    /// What changed from one tree of a project to another; the first was not taken before `taken_ms`.
    pub fn changes(
        &self,
        owner: &Owner,
        project: &ProjectId,
        (from, taken_ms): (&Tree, u64),
        to: &Tree,
        page: &DiffPage,
    ) -> Result<Changes, WorkspaceError> {
        let root = self.owned(project, owner)?;
        let work = |tree: &Tree| tree.open(&root).and_then(|top| open_own(top, "work")).map_err(host("compare trees"));
        let mut walk = Walk {
            taken_ms: i64::try_from(taken_ms).unwrap_or(i64::MAX),
            after: page.after.as_deref().map(path_of).transpose()?,
            limit: page.limit.max(1),
            entries: ENTRIES,
            bytes: READ_MAX,
            found: Changes { complete: true, ..Changes::default() },
        };
        walk.both(Some(&work(from)?), Some(&work(to)?), &mut PathBuf::new(), 1);
        let mut found = walk.found;
        if found.items.len() > walk.limit {
            found.items.truncate(walk.limit);
            found.next = found.items.last().map(|last| hex(last.path.as_os_str().as_bytes()));
        }
        Ok(found)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The path of a cursor: its bytes in hex, as a name need not be text.
fn path_of(cursor: &str) -> Result<PathBuf, WorkspaceError> {
    let pairs = cursor.as_bytes().chunks(2).map(|pair| {
        std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2).and_then(|pair| u8::from_str_radix(pair, 16).ok())
    });
    let bytes: Option<Vec<u8>> = pairs.collect();
    bytes.map(|bytes| PathBuf::from(OsString::from_vec(bytes))).ok_or(WorkspaceError::BadCursor)
}

type Side<'a> = Option<&'a OwnedFd>;

impl Walk {
    fn full(&self) -> bool {
        self.found.items.len() > self.limit // one more than asked for says that there is a next page
    }

    fn say(&mut self, path: &Path, change: Change, old: Option<&FileStat>, new: Option<&FileStat>) {
        if self.after.as_deref().is_some_and(|after| path <= after) {
            return;
        }
        let Some(shown) = new.or(old) else { return };
        self.found.items.push(Changed {
            path: path.to_owned(),
            change,
            kind: FileKind::of(shown),
            size: new.map(size),
            old_size: old.map(size),
        });
    }

    /// Names of one side; what can't be listed is said to be missing from the list.
    fn names(&mut self, side: Side<'_>) -> Vec<OsString> {
        let Some(directory) = side else { return Vec::new() };
        match sorted_names(directory, usize::try_from(self.entries).unwrap_or(usize::MAX)) {
            Ok((names, complete)) => {
                self.found.complete &= complete;
                names
            }
            Err(Errno::ENOENT) => Vec::new(),
            Err(_) => {
                self.found.complete = false;
                Vec::new()
            }
        }
    }

    fn both(&mut self, old: Side<'_>, new: Side<'_>, path: &mut PathBuf, depth: usize) {
        let names: BTreeSet<OsString> = self.names(old).into_iter().chain(self.names(new)).collect();
        for name in names {
            if self.full() {
                return;
            }
            if self.entries == 0 || depth > LEVELS {
                self.found.complete = false;
                return;
            }
            self.entries -= 1;
            path.push(&name);
            self.one(old, new, &name, path, depth);
            path.pop();
        }
    }

    fn one(&mut self, old: Side<'_>, new: Side<'_>, name: &OsStr, path: &mut PathBuf, depth: usize) {
        let mut stat = |side: Side<'_>| match side.map(|directory| look(directory, name)) {
            Some(Ok(stat)) => Some(stat),
            Some(Err(Errno::ENOENT)) | None => None,
            Some(Err(_)) => {
                self.found.complete = false;
                None
            }
        };
        let (was, is) = (stat(old), stat(new));
        match (&was, &is) {
            (None, None) => return, // vanished under the walk
            (None, Some(_)) => self.say(path, Change::Added, None, is.as_ref()),
            (Some(_), None) => self.say(path, Change::Deleted, was.as_ref(), None),
            (Some(before), Some(now)) => {
                if !self.same((old, before), (new, now), name) {
                    self.say(path, Change::Modified, was.as_ref(), is.as_ref());
                }
            }
        }
        let mut below = |side: Side<'_>, stat: Option<&FileStat>| {
            let directory = stat.is_some_and(|stat| FileKind::of(stat) == FileKind::Directory);
            let opened = side.filter(|_| directory).map(|parent| open_directory(parent, name));
            match opened {
                Some(Ok(opened)) => Some(opened),
                Some(Err(errno)) => {
                    self.found.complete &= matches!(errno, Errno::ENOENT | Errno::ENOTDIR);
                    None
                }
                None => None,
            }
        };
        let (was, is) = (below(old, was.as_ref()), below(new, is.as_ref()));
        if was.is_some() || is.is_some() {
            self.both(was.as_ref(), is.as_ref(), path, depth + 1);
        }
    }

    fn same(&mut self, (old, was): (Side<'_>, &FileStat), (new, is): (Side<'_>, &FileStat), name: &OsStr) -> bool {
        let kind = FileKind::of(was);
        if kind != FileKind::of(is) || was.st_mode != is.st_mode {
            return false;
        }
        let (Some(old), Some(new)) = (old, new) else { return false };
        match kind {
            FileKind::Directory => true, // what is in it speaks for itself
            FileKind::Link => readlinkat(old, name).ok() == readlinkat(new, name).ok(),
            FileKind::Other => (was.st_ino, was.st_rdev) == (is.st_ino, is.st_rdev),
            FileKind::File => {
                let times = |stat: &FileStat| (stat.st_ino, stat.st_ctime, stat.st_ctime_nsec);
                let changed_ms = is.st_ctime.saturating_mul(1000).saturating_add(is.st_ctime_nsec / 1_000_000);
                let settled = changed_ms.saturating_add(MOMENT_MS) < self.taken_ms;
                was.st_size == is.st_size
                    && ((settled && times(was) == times(is)) || self.same_content(old, new, name, size(is)))
            }
        }
    }

    fn same_content(&mut self, old: &OwnedFd, new: &OwnedFd, name: &OsStr, length: u64) -> bool {
        let Some(left) = self.bytes.checked_sub(length) else { return false };
        self.bytes = left;
        let open = |directory: &OwnedFd| open_file(directory, name, OFlag::O_RDONLY).map(|(file, _)| file);
        match (open(old), open(new)) {
            (Ok(old), Ok(new)) => equal(old, new).unwrap_or(false),
            _ => false, // what can't be read can't be said to be the same
        }
    }
}

fn equal(mut old: File, mut new: File) -> std::io::Result<bool> {
    let (mut left, mut right) = (vec![0; CHUNK], vec![0; CHUNK]);
    loop {
        let count = old.read(&mut left)?;
        if count == 0 {
            return Ok(new.read(&mut right[..1])? == 0);
        }
        match new.read_exact(&mut right[..count]) {
            Ok(()) if left[..count] == right[..count] => {}
            Ok(()) => return Ok(false),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}
