//! Listing: sorted by name, a page at a time. A page costs the memory of a page, however many names a program made.

use super::area::AreaDir;
use super::beneath::{for_each_name, look, open_directory};
use super::error::{WorkspaceError, at};
use super::meta::{FileKind, Meta};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nix::errno::Errno;
use std::collections::BinaryHeap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The most names that one page looks at.
const NAMES: u64 = 1_000_000;
/// How deep a list goes, whatever was asked for: each level holds a descriptor.
const LEVELS: usize = super::walk::LEVELS;

/// What to list.
#[derive(Debug, Clone, Copy)]
pub struct Listing<'a> {
    /// The directory.
    pub path: &'a str,
    /// How many levels: 1 is the directory alone. More than 100 are 100.
    pub levels: usize,
    /// The most entries of a page; at least 1.
    pub limit: usize,
    /// The `next` of the page before.
    pub after: Option<&'a str>,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its path, relative to the directory listed. Programs may choose names that are not UTF-8.
    pub path: PathBuf,
    /// What it is; a link is a link.
    pub meta: Meta,
}

/// A part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// In the order of names, a directory before what is in it.
    pub entries: Vec<Entry>,
    /// Where the next page begins; none: this was the last.
    pub next: Option<String>,
}

/// A page being filled.
struct Filling {
    entries: Vec<Entry>,
    /// One more than the page holds: whoever finds it knows that there is a next page.
    most: usize,
    /// How many names may still be looked at.
    names: u64,
}

impl AreaDir {
    /// Lists a directory. Names that come or go between two pages may be missed or not; the others are all there, once.
    pub fn list(&self, listing: Listing<'_>) -> Result<Page, WorkspaceError> {
        let failed = at(listing.path, "list a directory");
        let after = listing.after.map(decode).transpose()?.unwrap_or_default();
        let after: Vec<&OsStr> = after.iter().collect();
        let directory = open_directory(self.root(), listing.path).map_err(&failed)?;
        let limit = listing.limit.max(1);
        let mut filling = Filling { entries: Vec::new(), most: limit.saturating_add(1), names: NAMES };
        filling.directory(&directory, Path::new(""), &after, listing.levels.clamp(1, LEVELS)).map_err(|errno| {
            match errno {
                Errno::E2BIG => WorkspaceError::TooLarge { what: "entries", limit: NAMES },
                errno => failed(errno),
            }
        })?;
        let mut entries = filling.entries;
        let more = entries.len() > limit;
        entries.truncate(limit);
        let next = entries.last().filter(|_| more).map(|last| encode(&last.path));
        Ok(Page { entries, next })
    }
}

impl Filling {
    fn full(&self) -> bool {
        self.entries.len() >= self.most
    }

    /// Adds what is in a directory and comes after `after`, whose first name may be one of its own.
    fn directory(&mut self, directory: &OwnedFd, path: &Path, after: &[&OsStr], levels: usize) -> Result<(), Errno> {
        let mut passed = None;
        if let Some((&first, rest)) = after.split_first() {
            // The page before ended in here: the entry itself was on it, what is in it may not have been.
            if levels > 1 {
                self.below(directory, first, &path.join(first), rest, levels)?;
            }
            passed = Some(first.to_owned());
        }
        while !self.full() {
            let (names, all) = self.names_after(directory, passed.as_deref())?;
            for name in &names {
                let stat = match look(directory, name.as_os_str()) {
                    Err(Errno::ENOENT) => continue,
                    stat => stat?,
                };
                let path = path.join(name);
                let is_directory = FileKind::of(&stat) == FileKind::Directory;
                self.entries.push(Entry { path: path.clone(), meta: Meta::of(&stat) });
                if is_directory && levels > 1 && !self.full() {
                    self.below(directory, name, &path, &[], levels)?;
                }
                if self.full() {
                    return Ok(());
                }
            }
            if all {
                return Ok(());
            }
            passed = names.into_iter().next_back();
        }
        Ok(())
    }

    /// Goes one level down, if that is still a directory and lets its owner in.
    fn below(
        &mut self,
        directory: &OwnedFd,
        name: &OsStr,
        path: &Path,
        after: &[&OsStr],
        levels: usize,
    ) -> Result<(), Errno> {
        let shut = |errno| matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::EACCES);
        match open_directory(directory, name).and_then(|below| self.directory(&below, path, after, levels - 1)) {
            Err(errno) if shut(errno) => Ok(()),
            done => done,
        }
    }

    /// The first names after one, sorted, as many as the page still takes; whether there are no others.
    fn names_after(&mut self, directory: &OwnedFd, after: Option<&OsStr>) -> Result<(Vec<OsString>, bool), Errno> {
        let most = self.most - self.entries.len();
        // The largest on top: it is the one that a smaller name pushes out.
        let mut smallest: BinaryHeap<OsString> = BinaryHeap::new();
        let mut all = true;
        let mut names = self.names;
        for_each_name(directory, |name| {
            names = names.saturating_sub(1);
            if after.is_none_or(|after| name > after) {
                if smallest.len() < most {
                    smallest.push(name.to_owned());
                } else {
                    all = false;
                    if let Some(mut largest) = smallest.peek_mut()
                        && name < largest.as_os_str()
                    {
                        *largest = name.to_owned();
                    }
                }
            }
            names > 0
        })?;
        self.names = names;
        if names == 0 { Err(Errno::E2BIG) } else { Ok((smallest.into_sorted_vec(), all)) }
    }
}

fn encode(path: &Path) -> String {
    URL_SAFE_NO_PAD.encode(path.as_os_str().as_bytes())
}

fn decode(cursor: &str) -> Result<PathBuf, WorkspaceError> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| WorkspaceError::BadCursor)?;
    let path = PathBuf::from(OsString::from_vec(bytes));
    // What we give out is made of names alone; and a name is opened below its directory, whatever it says.
    let names = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    let plain = !path.as_os_str().is_empty() && !path.as_os_str().as_bytes().contains(&0);
    if names && plain { Ok(path) } else { Err(WorkspaceError::BadCursor) }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fixture, as_nobody};
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    const ALL: Listing<'static> = Listing { path: ".", levels: 1, limit: 1000, after: None };

    fn paths(page: &Page) -> Vec<String> {
        page.entries.iter().map(|entry| entry.path.display().to_string()).collect()
    }

    /// All pages of a list, each no longer than it may be.
    fn pages(area: &AreaDir, listing: Listing<'_>) -> Vec<String> {
        let mut found = Vec::new();
        let mut after: Option<String> = None;
        for _ in 0..1000 {
            let page = area.list(Listing { after: after.as_deref(), ..listing }).expect("a page");
            assert!(page.entries.len() <= listing.limit);
            found.extend(paths(&page));
            after = page.next;
            if after.is_none() {
                return found;
            }
        }
        panic!("the pages do not end");
    }

    #[test]
    fn entries_come_sorted_with_what_they_are() {
        let fixture = Fixture::new();
        let area = fixture.area();
        fs::write(fixture.work("b"), "12345").expect("a file");
        fs::set_permissions(fixture.work("b"), PermissionsExt::from_mode(0o640)).expect("a mode");
        fs::create_dir(fixture.work("a")).expect("a directory");
        symlink("/etc/passwd", fixture.work("c")).expect("a link");
        nix::unistd::mkfifo(&fixture.work("d"), nix::sys::stat::Mode::S_IRUSR).expect("a FIFO");
        let page = area.list(ALL).expect("a list");
        assert_eq!((paths(&page), page.next.clone()), (["a", "b", "c", "d"].map(str::to_owned).to_vec(), None));
        let kinds: Vec<_> = page.entries.iter().map(|entry| entry.meta.kind.name()).collect();
        assert_eq!(kinds, ["directory", "file", "link", "other"]);
        assert_eq!((page.entries[1].meta.size, page.entries[1].meta.mode), (5, 0o640));
        assert!(page.entries[1].meta.mtime_ms > 1_600_000_000_000);
        assert!(matches!(area.list(Listing { path: "b", ..ALL }), Err(WorkspaceError::NotADirectory { .. })));
        assert!(matches!(area.list(Listing { path: "c", ..ALL }), Err(WorkspaceError::Boundary("path"))));
        assert!(matches!(area.list(Listing { path: "x", ..ALL }), Err(WorkspaceError::NoSuchFile { .. })));
    }

    #[test]
    fn pages_of_every_size_make_the_same_list() {
        let fixture = Fixture::new();
        let area = fixture.area();
        for directory in ["a/b/c", "a/d", "a.x", "e/f", "empty"] {
            fs::create_dir_all(fixture.work(directory)).expect("directories");
        }
        for file in ["a/1", "a/b/2", "a/b/c/3", "a/b/c/4", "e/f/5", "z"] {
            fs::write(fixture.work(file), "").expect("a file");
        }
        let deep = [
            "a", "a/1", "a/b", "a/b/2", "a/b/c", "a/b/c/3", "a/b/c/4", "a/d", "a.x", "e", "e/f", "e/f/5", "empty", "z",
        ];
        for limit in 1..=15 {
            assert_eq!(pages(&area, Listing { levels: 100, limit, ..ALL }), deep, "{limit}");
            let two: Vec<_> = deep.iter().filter(|path| path.matches('/').count() < 2).copied().collect();
            assert_eq!(pages(&area, Listing { levels: 2, limit, ..ALL }), two, "{limit}");
            let below = ["1", "b", "b/2", "b/c", "b/c/3", "b/c/4", "d"];
            assert_eq!(pages(&area, Listing { path: "a", levels: 9, limit, ..ALL }), below, "{limit}");
            assert_eq!(pages(&area, Listing { limit, ..ALL }), ["a", "a.x", "e", "empty", "z"], "{limit}");
        }
    }

    #[test]
    fn names_that_come_and_go_between_pages_disturb_no_others() {
        let fixture = Fixture::new();
        let area = fixture.area();
        (0..10).for_each(|n| fs::write(fixture.work(&format!("f{n}")), "").expect("a file"));
        let first = area.list(Listing { limit: 4, ..ALL }).expect("a page");
        fs::remove_file(fixture.work("f3")).expect("the last of the page");
        fs::remove_file(fixture.work("f4")).expect("the first of the next");
        fs::write(fixture.work("a"), "").expect("before all");
        let next = first.next.expect("a cursor");
        let second = area.list(Listing { after: Some(&next), ..ALL }).expect("a page");
        assert_eq!(paths(&second), ["f5", "f6", "f7", "f8", "f9"]);
    }

    #[test]
    fn a_name_that_is_no_text_is_listed() {
        let fixture = Fixture::new();
        let area = fixture.area();
        let name = OsStr::from_bytes(b"\xff\xfe");
        fs::write(fixture.work("").join(name), "").expect("a file");
        fs::write(fixture.work("a"), "").expect("a file");
        let first = area.list(Listing { limit: 1, ..ALL }).expect("a page");
        let second = area.list(Listing { after: first.next.as_deref(), ..ALL }).expect("a page");
        assert_eq!(second.entries[0].path.as_os_str(), name);
    }

    #[test]
    fn a_cursor_that_we_did_not_give_leads_nowhere() {
        let fixture = Fixture::new();
        let area = fixture.area();
        let cursors = ["!", "", &URL_SAFE_NO_PAD.encode("../x"), &URL_SAFE_NO_PAD.encode("/etc")];
        for cursor in cursors {
            let page = area.list(Listing { after: Some(cursor), levels: 9, ..ALL });
            assert!(matches!(page, Err(WorkspaceError::BadCursor)), "{cursor}");
        }
        symlink("/etc", fixture.work("out")).expect("a link");
        let through = URL_SAFE_NO_PAD.encode("out/a");
        let page = area.list(Listing { after: Some(&through), levels: 9, ..ALL }).expect("a page");
        assert_eq!(page.entries, []);
    }

    #[test]
    fn a_locked_directory_is_shown_and_not_entered() {
        as_nobody(|fixture| {
            let area = fixture.area();
            fs::create_dir_all(fixture.work("d/e")).expect("directories");
            fs::set_permissions(fixture.work("d"), PermissionsExt::from_mode(0o0)).expect("locked");
            assert_eq!(pages(&area, Listing { levels: 9, ..ALL }), ["d"]);
            assert!(matches!(area.list(Listing { path: "d", ..ALL }), Err(WorkspaceError::Denied { .. })));
        });
    }
}
