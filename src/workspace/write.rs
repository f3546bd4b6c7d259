//! Writing. A file is written in the project's `.new`, made durable and renamed into place: nobody sees half of one,
//! no program can touch it before, and a name that a program planted is replaced and never written through.
//!
//! ```text
//! begin ─▶ write, write, … ─▶ commit(expected)   the name stands for the new file, durably
//!      └──────────┴─▶ dropped                    nothing was
//! ```
//!
//! Only an append writes to a file that is there, and only to one that has no other name.

use super::area::{AreaDir, Existing, Parents, parent_for};
use super::beneath::{look, open_beneath, split, sync_directory};
use super::error::{WorkspaceError, at, errno_of, host};
use super::meta::{FileKind, Meta, hex, size};
use super::read::open_file;
use crate::model::ExecId;
use nix::errno::Errno;
use nix::fcntl::{OFlag, RenameFlags, renameat, renameat2};
use nix::sys::stat::{FileStat, Mode, fchmod, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::OwnedFd;

/// The mode of a new file where nobody names one.
const DEFAULT_MODE: u32 = 0o644;
/// Permissions; never the bits that lend an identity.
const PERMISSIONS: u32 = 0o777;
/// How often an append looks again at a name that changes under it.
const APPEND_TRIES: usize = 8;

/// How a file comes into being.
#[derive(Debug, Clone, Copy)]
pub struct Make {
    /// What happens to the file that has the name.
    pub existing: Existing,
    /// What happens if directories are missing.
    pub parents: Parents,
    /// Its mode; none: that of the file it replaces, or 644. Other bits than permissions are dropped.
    pub mode: Option<u32>,
    /// The most bytes the whole file may have.
    pub limit: u64,
}

/// What a caller said that it would send.
#[derive(Debug, Clone, Copy, Default)]
pub struct Expected<'a> {
    /// The length.
    pub size: Option<u64>,
    /// The digest in lower-case hex.
    pub sha256: Option<&'a str>,
}

/// A file that is in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The file.
    pub meta: Meta,
    /// The digest of what was written by this call.
    pub sha256: String,
}

/// A file that is being written. Dropped before its commit, it was never there.
#[derive(Debug)]
pub struct Upload {
    root: OwnedFd,
    staged: Staged,
    path: String,
    make: Make,
    written: u64,
    digest: Sha256,
}

/// A file in the staging directory, removed unless it was renamed away.
#[derive(Debug)]
pub(super) struct Staged {
    directory: OwnedFd,
    name: String,
    pub(super) file: File,
    placed: bool,
}

impl Staged {
    pub(super) fn new(area: &AreaDir) -> Result<Self, WorkspaceError> {
        let failed = host("begin a file");
        let directory = area.staging().try_clone().map_err(|error| failed(errno_of(&error)))?;
        let name = ExecId::generate().to_string();
        let file = new_file(&directory, &name).map_err(failed)?;
        Ok(Self { directory, name, file, placed: false })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), WorkspaceError> {
        self.file.write_all(bytes).map_err(|error| host("write a file")(errno_of(&error)))
    }

    /// Content and mode on disk; only then may a name stand for it.
    pub(super) fn settle(&self, mode: u32) -> Result<(), WorkspaceError> {
        fchmod(&self.file, Mode::from_bits_truncate(mode & PERMISSIONS)).map_err(host("set a file's mode"))?;
        self.file.sync_all().map_err(|error| host("write a file")(errno_of(&error)))
    }

    /// Renames it to a name in `parent`. The name is durable when this returns.
    pub(super) fn place(&mut self, parent: &OwnedFd, name: &str, existing: Existing) -> Result<FileStat, Errno> {
        match rename_to(&self.directory, &self.name, parent, name, existing) {
            Ok(()) => self.placed = true,
            Err(Errno::EXDEV) => self.carry(parent, name, existing)?,
            Err(errno) => return Err(errno),
        }
        sync_directory(parent)?;
        fstat(&self.file)
    }

    /// The way where a rename can't cross: an area that is a filesystem of its own, or the first Landlock, which
    /// refuses every move between directories (before Linux 5.19). Programs may see the file on the way.
    fn carry(&mut self, parent: &OwnedFd, name: &str, existing: Existing) -> Result<(), Errno> {
        let beside = format!(".{}.new", self.name);
        let mut copy = new_file(parent, &beside)?;
        let carried = (|| {
            self.file.rewind()?;
            io::copy(&mut self.file, &mut copy)?;
            fchmod(&copy, Mode::from_bits_truncate(fstat(&self.file)?.st_mode & PERMISSIONS))?;
            copy.sync_all()
        })();
        let placed =
            carried.map_err(|error| errno_of(&error)).and_then(|()| rename_to(parent, &beside, parent, name, existing));
        match placed {
            Ok(()) => self.file = copy, // the staged one goes with us
            Err(_) => drop(unlinkat(parent, beside.as_str(), UnlinkatFlags::NoRemoveDir)), // the first error counts
        }
        placed
    }
}

fn new_file(directory: &OwnedFd, name: &str) -> Result<File, Errno> {
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL;
    open_beneath(directory, name, flags, Mode::from_bits_truncate(0o600)).map(File::from)
}

fn rename_to(from: &OwnedFd, name: &str, to: &OwnedFd, new: &str, existing: Existing) -> Result<(), Errno> {
    match existing {
        Existing::Refuse => renameat2(from, name, to, new, RenameFlags::RENAME_NOREPLACE),
        Existing::Replace => renameat(from, name, to, new),
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.placed
            && let Err(error) = unlinkat(&self.directory, self.name.as_str(), UnlinkatFlags::NoRemoveDir)
        {
            tracing::warn!(name = self.name, %error, "could not remove a half-written file; the next start will");
        }
    }
}

impl Upload {
    /// Bytes so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Takes the next bytes. After an error nothing can come of the file.
    pub fn write(&mut self, chunk: &[u8]) -> Result<(), WorkspaceError> {
        let written = self.written.saturating_add(chunk.len() as u64);
        if written > self.make.limit {
            return Err(WorkspaceError::TooLarge { what: "bytes", limit: self.make.limit });
        }
        self.staged.write(chunk)?;
        self.digest.update(chunk);
        self.written = written;
        Ok(())
    }

    /// Puts the file in place, durably, if it is what was announced.
    pub fn commit(mut self, expected: Expected<'_>) -> Result<Written, WorkspaceError> {
        let sha256 = hex(self.digest);
        if expected.size.is_some_and(|size| size != self.written) {
            return Err(WorkspaceError::Mismatch { what: "size" });
        }
        if expected.sha256.is_some_and(|announced| !announced.eq_ignore_ascii_case(&sha256)) {
            return Err(WorkspaceError::Mismatch { what: "sha256" });
        }
        let failed = at(&self.path, "write a file");
        let (parent, name) = split(&self.path).map_err(&failed)?;
        let parent = parent_for(&self.root, parent, self.make.parents).map_err(&failed)?;
        let kept = replaceable(look(&parent, name), self.make.existing).map_err(&failed)?;
        self.staged.settle(self.make.mode.or(kept).unwrap_or(DEFAULT_MODE))?;
        let stat = self.staged.place(&parent, name, self.make.existing).map_err(&failed)?;
        Ok(Written { meta: Meta::of(&stat), sha256 })
    }
}

/// Whether a file may take the place of what was found; the mode that it had.
fn replaceable(found: Result<FileStat, Errno>, existing: Existing) -> Result<Option<u32>, Errno> {
    let stat = match found {
        Err(Errno::ENOENT) => return Ok(None),
        found => found?,
    };
    match (FileKind::of(&stat), existing) {
        (FileKind::Directory, _) => Err(Errno::EISDIR),
        (_, Existing::Refuse) => Err(Errno::EEXIST),
        (FileKind::Link, _) => Err(Errno::ELOOP),
        (FileKind::Other, _) => Err(Errno::ENODEV),
        (FileKind::File, Existing::Replace) => Ok(Some(stat.st_mode)),
    }
}

impl AreaDir {
    /// Begins a file. What can be known to fail fails now, not after the last byte.
    pub fn upload(&self, path: &str, make: Make) -> Result<Upload, WorkspaceError> {
        let failed = at(path, "write a file");
        if path == "." {
            return Err(failed(Errno::EISDIR));
        }
        match (self.parent(path), make.parents) {
            (Ok((parent, name)), _) => drop(replaceable(look(parent, name), make.existing).map_err(&failed)?),
            (Err(Errno::ENOENT), Parents::Make) => {}
            (Err(errno), _) => return Err(failed(errno)),
        }
        let root = self.root().try_clone().map_err(|error| host("begin a file")(errno_of(&error)))?;
        let staged = Staged::new(self)?;
        Ok(Upload { root, staged, path: path.to_owned(), make, written: 0, digest: Sha256::new() })
    }

    /// Writes a whole file at once.
    pub fn write(&self, path: &str, content: &[u8], make: Make) -> Result<Written, WorkspaceError> {
        let mut upload = self.upload(path, make)?;
        upload.write(content)?;
        upload.commit(Expected::default())
    }

    /// Writes to the end of a file, or makes it. In place, as whoever has it open expects: an append that runs out of
    /// space may leave a part. A file with several names is refused: the others may be anywhere.
    pub fn append(&self, path: &str, content: &[u8], make: Make) -> Result<Written, WorkspaceError> {
        let failed = at(path, "append to a file");
        for _ in 0..APPEND_TRIES {
            let (mut file, stat) = match open_file(self.root(), path, OFlag::O_WRONLY | OFlag::O_APPEND) {
                Ok(opened) => opened,
                Err(Errno::ENOENT) => {
                    match self.write(path, content, Make { existing: Existing::Refuse, ..make }) {
                        Err(WorkspaceError::Exists { .. }) => continue, // somebody was faster
                        written => return written,
                    }
                }
                Err(errno) => return Err(failed(errno)),
            };
            if stat.st_nlink > 1 {
                return Err(WorkspaceError::Boundary("path"));
            }
            // Its one name must be the one that we came by, not one that is left elsewhere since ours was taken away.
            if !self.still_the_only_name(path, &stat).map_err(&failed)? {
                continue;
            }
            if size(&stat).saturating_add(content.len() as u64) > make.limit {
                return Err(WorkspaceError::TooLarge { what: "bytes", limit: make.limit });
            }
            let written = file.write_all(content).and_then(|()| file.sync_all());
            written.map_err(|error| failed(errno_of(&error)))?;
            let sha256 = hex(Sha256::new_with_prefix(content));
            return Ok(Written { meta: Meta::of(&fstat(&file).map_err(&failed)?), sha256 });
        }
        Err(WorkspaceError::Busy { path: path.to_owned() })
    }

    fn still_the_only_name(&self, path: &str, opened: &FileStat) -> Result<bool, Errno> {
        match self.parent(path).and_then(|(parent, name)| look(parent, name)) {
            Ok(now) => Ok((now.st_dev, now.st_ino, now.st_nlink) == (opened.st_dev, opened.st_ino, 1)),
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Contents;
    use super::super::testing::{Fixture, as_nobody, on_a_small_disk, with_work_on_a_disk_of_its_own};
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    const MAKE: Make = Make { existing: Existing::Replace, parents: Parents::MustExist, mode: None, limit: 1 << 20 };
    const NEW: Make = Make { existing: Existing::Refuse, ..MAKE };

    #[test]
    fn a_file_is_written_whole_and_its_mode_is_kept() {
        let fixture = Fixture::new();
        let area = fixture.area();
        let written = area.write("f", b"abc", Make { mode: Some(0o6750), ..NEW }).expect("written");
        assert_eq!(written.sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!((written.meta.size, written.meta.mode), (3, 0o750), "no setuid bit");
        assert_eq!(fs::metadata(fixture.work("f")).expect("f").mode() & 0o7777, 0o750);
        assert!(matches!(area.write("f", b"x", NEW), Err(WorkspaceError::Exists { .. })));
        let before = fs::metadata(fixture.work("f")).expect("f").ino();
        let written = area.write("f", b"other", MAKE).expect("replaced");
        assert_eq!(written.meta.mode, 0o750, "the mode of the file it replaced");
        assert_ne!(fs::metadata(fixture.work("f")).expect("f").ino(), before, "a new file, not the old one rewritten");
        assert_eq!(area.write("g", b"", MAKE).expect("written").meta.mode, 0o644);
        assert_eq!(fixture.staged(), 0);
    }

    #[test]
    fn nothing_is_written_through_what_a_program_planted() {
        let fixture = Fixture::new();
        let area = fixture.area();
        fs::write(fixture.path("inputs/other"), "untouched").expect("a file of another area");
        fs::hard_link(fixture.path("inputs/other"), fixture.work("hard")).expect("a hard link");
        symlink("../inputs/other", fixture.work("soft")).expect("a link");
        symlink("../inputs", fixture.work("dir")).expect("a link to a directory");
        nix::unistd::mkfifo(&fixture.work("fifo"), Mode::from_bits_truncate(0o644)).expect("a FIFO");
        fs::create_dir(fixture.work("d")).expect("a directory");
        for make in [area.write("soft", b"x", MAKE), area.append("soft", b"x", MAKE)] {
            assert!(matches!(make, Err(WorkspaceError::Boundary("path"))));
        }
        for make in [area.write("dir/other", b"x", MAKE), area.append("dir/other", b"x", MAKE)] {
            assert!(matches!(make, Err(WorkspaceError::Boundary("path"))));
        }
        for make in [area.write("fifo", b"x", MAKE), area.append("fifo", b"x", MAKE)] {
            assert!(matches!(make, Err(WorkspaceError::NotARegularFile { .. })));
        }
        for make in [area.write("d", b"x", MAKE), area.append("d", b"x", MAKE), area.write(".", b"x", MAKE)] {
            assert!(matches!(make, Err(WorkspaceError::IsADirectory { .. })));
        }
        assert!(matches!(area.append("hard", b"x", MAKE), Err(WorkspaceError::Boundary("path"))));
        area.write("hard", b"mine", MAKE).expect("the name is replaced");
        assert_eq!(fs::read(fixture.path("inputs/other")).expect("the other"), b"untouched");
        assert_eq!(fs::read(fixture.work("hard")).expect("ours"), b"mine");
        assert_eq!(fixture.staged(), 0);
    }

    #[test]
    fn parents_are_made_when_asked() {
        let fixture = Fixture::new();
        let area = fixture.area();
        assert!(matches!(area.write("a/b/f", b"x", NEW), Err(WorkspaceError::NoSuchFile { .. })));
        area.write("a/b/f", b"x", Make { parents: Parents::Make, ..NEW }).expect("written");
        area.append("c/d/f", b"x", Make { parents: Parents::Make, ..MAKE }).expect("written");
        assert_eq!(fs::read(fixture.work("a/b/f")).expect("f"), b"x");
        assert_eq!(fs::read(fixture.work("c/d/f")).expect("f"), b"x");
    }

    #[test]
    fn an_append_goes_to_the_end_and_keeps_the_file() {
        let fixture = Fixture::new();
        let area = fixture.area();
        area.append("log", b"one\n", Make { mode: Some(0o600), ..MAKE }).expect("made");
        let before = fs::metadata(fixture.work("log")).expect("the file").ino();
        let written = area.append("log", b"two\n", MAKE).expect("appended");
        assert_eq!((written.meta.size, written.meta.mode), (8, 0o600));
        assert_eq!(fs::read(fixture.work("log")).expect("the file"), b"one\ntwo\n");
        assert_eq!(fs::metadata(fixture.work("log")).expect("the file").ino(), before);
        let small = Make { limit: 9, ..MAKE };
        assert!(matches!(area.append("log", b"xx", small), Err(WorkspaceError::TooLarge { limit: 9, .. })));
    }

    #[test]
    fn concurrent_appends_lose_nothing() {
        let fixture = Fixture::new();
        let area = fixture.area();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..25).for_each(|_| drop(area.append("log", b"line\n", MAKE).expect("appended"))));
            }
        });
        assert_eq!(fs::read(fixture.work("log")).expect("the file"), b"line\n".repeat(100));
    }

    #[test]
    fn an_upload_that_is_not_what_was_announced_was_never_there() {
        let fixture = Fixture::new();
        let area = fixture.area();
        let begin = || {
            let mut upload = area.upload("f", Make { limit: 6, ..MAKE }).expect("begun");
            upload.write(b"abc").expect("three bytes");
            upload
        };
        drop(begin());
        assert!(matches!(begin().write(b"defg"), Err(WorkspaceError::TooLarge { limit: 6, .. })));
        let size = Expected { size: Some(4), sha256: None };
        assert!(matches!(begin().commit(size), Err(WorkspaceError::Mismatch { what: "size" })));
        let digest = Expected { size: Some(3), sha256: Some("00") };
        assert!(matches!(begin().commit(digest), Err(WorkspaceError::Mismatch { what: "sha256" })));
        assert!(!fixture.work("f").exists());
        assert_eq!(fixture.staged(), 0);
        let right = Some("BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD");
        begin().commit(Expected { size: Some(3), sha256: right }).expect("committed");
        assert_eq!(fs::read(fixture.work("f")).expect("f"), b"abc");
    }

    #[test]
    fn two_that_make_the_same_file_do_not_overwrite_each_other() {
        let fixture = Fixture::new();
        let area = fixture.area();
        let first = area.upload("f", NEW).expect("begun");
        let second = area.upload("f", NEW).expect("begun");
        first.commit(Expected::default()).expect("the first");
        assert!(matches!(second.commit(Expected::default()), Err(WorkspaceError::Exists { .. })));
    }

    #[test]
    fn a_full_disk_is_said_as_such_and_leaves_nothing() {
        on_a_small_disk(256 << 10, |fixture| {
            let area = fixture.area();
            let large = vec![1; 512 << 10];
            area.write("kept", b"old", MAKE).expect("there is space");
            assert!(matches!(area.write("kept", &large, MAKE), Err(WorkspaceError::NoSpace)));
            assert!(matches!(area.write("new", &large, MAKE), Err(WorkspaceError::NoSpace)));
            assert_eq!(fs::read(fixture.work("kept")).expect("the file"), b"old", "not half of the new one");
            assert!(!fixture.work("new").exists());
            assert_eq!(fixture.staged(), 0);
            assert!(matches!(area.append("kept", &large, MAKE), Err(WorkspaceError::NoSpace)));
            area.remove("kept", Contents::Refuse).expect("removing needs no space");
            area.write("kept", b"again", MAKE).expect("there is space again");
        });
    }

    #[test]
    fn an_area_on_a_disk_of_its_own_is_written_to_as_well() {
        with_work_on_a_disk_of_its_own(256 << 10, |fixture| {
            let area = fixture.area();
            let written = area.write("f", b"abc", Make { mode: Some(0o640), ..NEW }).expect("written");
            assert_eq!((written.meta.size, written.meta.mode), (3, 0o640));
            assert!(matches!(area.write("f", b"x", NEW), Err(WorkspaceError::Exists { .. })));
            area.write("f", b"other", MAKE).expect("replaced");
            area.append("f", b" end", MAKE).expect("appended");
            assert_eq!(fs::read(fixture.work("f")).expect("f"), b"other end");
            assert!(matches!(area.write("g", &vec![1; 512 << 10], MAKE), Err(WorkspaceError::NoSpace)));
            assert_eq!(fs::read_dir(fixture.work("")).expect("the area").count(), 1, "nothing is left beside");
            assert_eq!(fixture.staged(), 0);
        });
    }

    #[test]
    fn a_directory_that_its_owner_may_not_write_is_a_clear_no() {
        as_nobody(|fixture| {
            let area = fixture.area();
            fs::create_dir(fixture.work("d")).expect("a directory");
            fs::write(fixture.work("d/f"), "x").expect("a file");
            fs::set_permissions(fixture.work("d/f"), PermissionsExt::from_mode(0o400)).expect("read-only");
            fs::set_permissions(fixture.work("d"), PermissionsExt::from_mode(0o500)).expect("read-only");
            assert!(matches!(area.write("d/f", b"x", MAKE), Err(WorkspaceError::Denied { .. })));
            assert!(matches!(area.append("d/f", b"x", MAKE), Err(WorkspaceError::Denied { .. })));
            assert_eq!(fixture.staged(), 0);
        });
    }
}
