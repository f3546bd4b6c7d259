//! Reading: a part of a file at once, or a file in pieces. Regular files only, and never waiting for one.

use super::area::AreaDir;
use super::beneath::open_beneath;
use super::error::{WorkspaceError, at, errno_of};
use super::meta::{FileKind, Meta, hex, size};
use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, Mode, fstat};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

/// The most that one [`AreaDir::read`] gives; more comes in pieces.
pub const READ_MAX: u64 = 16 << 20;
/// How much is read at a time where we read for ourselves.
pub(super) const CHUNK: usize = 128 << 10;

/// A part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The bytes from the offset asked for.
    pub bytes: Vec<u8>,
    /// The file they are of.
    pub meta: Meta,
}

/// A file on its way to somebody, from one offset to another.
#[derive(Debug)]
pub struct Download {
    file: File,
    path: String,
    meta: Meta,
    at: u64,
    end: u64,
}

impl Download {
    /// The file, as it was when it was opened.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Bytes still to come.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.end - self.at
    }

    /// Narrows it to `length` bytes from `offset` on, or to what there is of them.
    #[must_use]
    pub fn range(mut self, offset: u64, length: u64) -> Self {
        self.at = offset.min(self.meta.size);
        self.end = self.at.saturating_add(length).min(self.meta.size);
        self
    }

    /// Fills the front of `buffer`; 0 when all has come. A file that ends before the length it was opened with is an
    /// error: whoever reads it was promised that length. What it grew by is not sent.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, WorkspaceError> {
        let most = usize::try_from(self.left()).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        loop {
            match self.file.read_at(&mut buffer[..most], self.at) {
                Ok(0) => return Err(WorkspaceError::Shrank { path: self.path.clone() }),
                Ok(count) => {
                    self.at += count as u64;
                    return Ok(count);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(at(&self.path, "read a file")(errno_of(&error))),
            }
        }
    }

    /// The digest of what is left of it.
    pub fn sha256(mut self) -> Result<String, WorkspaceError> {
        let mut digest = Sha256::new();
        let mut buffer = vec![0; CHUNK];
        loop {
            match self.read(&mut buffer)? {
                0 => return Ok(hex(digest)),
                count => digest.update(&buffer[..count]),
            }
        }
    }
}

/// Opens a regular file below a directory, to read it.
pub(super) fn open_file(
    directory: impl AsFd,
    path: &(impl NixPath + ?Sized),
    flags: OFlag,
) -> Result<(File, FileStat), Errno> {
    let file = open_beneath(directory, path, flags, Mode::empty())?;
    // Only now do we know what it is: between a look at the name and the opening a program may have swapped it.
    let stat = fstat(&file)?;
    match FileKind::of(&stat) {
        FileKind::File => Ok((file.into(), stat)),
        FileKind::Directory => Err(Errno::EISDIR),
        FileKind::Link | FileKind::Other => Err(Errno::ENODEV),
    }
}

impl AreaDir {
    /// Opens a file to be read in pieces.
    pub fn download(&self, path: &str) -> Result<Download, WorkspaceError> {
        let (file, stat) = open_file(self.root(), path, OFlag::O_RDONLY).map_err(at(path, "open a file"))?;
        Ok(Download { file, path: path.to_owned(), meta: Meta::of(&stat), at: 0, end: size(&stat) })
    }

    /// Reads `length` bytes from `offset` on, or what there is of them; at most [`READ_MAX`] at a time.
    pub fn read(&self, path: &str, offset: u64, length: u64) -> Result<Content, WorkspaceError> {
        let mut download = self.download(path)?.range(offset, length);
        if download.left() > READ_MAX {
            return Err(WorkspaceError::TooLarge { what: "bytes", limit: READ_MAX });
        }
        let mut bytes = vec![0; usize::try_from(download.left()).expect("16 MiB fit")];
        let mut filled = 0;
        while filled < bytes.len() {
            filled += download.read(&mut bytes[filled..])?;
        }
        Ok(Content { bytes, meta: download.meta })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fixture, as_nobody};
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_part_of_a_file_is_what_was_asked_for() {
        let fixture = Fixture::new();
        fs::write(fixture.work("f"), "0123456789").expect("a file");
        fs::set_permissions(fixture.work("f"), PermissionsExt::from_mode(0o4751)).expect("a mode");
        let area = fixture.area();
        for (offset, length, expected) in [
            (0, 100, "0123456789"),
            (0, 3, "012"),
            (7, 2, "78"),
            (7, 100, "789"),
            (10, 1, ""),
            (u64::MAX, u64::MAX, ""),
            (3, u64::MAX, "3456789"),
            (4, 0, ""),
        ] {
            let content = area.read("f", offset, length).expect("the file");
            assert_eq!(content.bytes, expected.as_bytes(), "{offset} {length}");
            assert_eq!((content.meta.size, content.meta.mode), (10, 0o751));
        }
    }

    #[test]
    fn only_regular_files_are_read_and_nothing_waits() {
        let fixture = Fixture::new();
        let area = fixture.area();
        fs::create_dir(fixture.work("d")).expect("a directory");
        nix::unistd::mkfifo(&fixture.work("fifo"), Mode::from_bits_truncate(0o644)).expect("a FIFO");
        let _socket = UnixListener::bind(fixture.work("socket")).expect("a socket");
        symlink("/etc/passwd", fixture.work("link")).expect("a link");
        let open = |path: &str| area.download(path).expect_err("nothing to read");
        assert!(matches!(open("d"), WorkspaceError::IsADirectory { .. }));
        assert!(matches!(open("."), WorkspaceError::IsADirectory { .. }));
        assert!(matches!(open("fifo"), WorkspaceError::NotARegularFile { .. }));
        assert!(matches!(open("socket"), WorkspaceError::NotARegularFile { .. }));
        assert!(matches!(open("link"), WorkspaceError::Boundary("path")));
        assert!(matches!(open("none"), WorkspaceError::NoSuchFile { .. }));
    }

    #[test]
    fn a_large_file_comes_in_pieces_only() {
        let fixture = Fixture::new();
        let area = fixture.area();
        let file = File::create(fixture.work("f")).expect("a file");
        file.set_len(READ_MAX + 1).expect("a sparse file");
        let all = area.read("f", 0, u64::MAX);
        assert!(matches!(all, Err(WorkspaceError::TooLarge { what: "bytes", limit: READ_MAX })));
        assert_eq!(area.read("f", READ_MAX, u64::MAX).expect("its end").bytes, [0]);
    }

    #[test]
    fn a_file_that_shrinks_while_it_is_read_is_reported() {
        let fixture = Fixture::new();
        let area = fixture.area();
        fs::write(fixture.work("f"), vec![b'x'; 1000]).expect("a file");
        let mut download = area.download("f").expect("the file");
        let mut buffer = [0; 600];
        assert_eq!(download.read(&mut buffer).expect("the first part"), 600);
        File::options().write(true).open(fixture.work("f")).expect("the file").set_len(700).expect("shorter");
        assert_eq!(download.read(&mut buffer).expect("what is left"), 100);
        assert!(matches!(download.read(&mut buffer), Err(WorkspaceError::Shrank { path }) if path == "f"));
    }

    #[test]
    fn a_file_that_grows_is_sent_as_long_as_it_was() {
        let fixture = Fixture::new();
        let area = fixture.area();
        fs::write(fixture.work("f"), "abc").expect("a file");
        let mut download = area.download("f").expect("the file");
        fs::write(fixture.work("f"), "abcdef").expect("longer");
        let mut buffer = [0; 10];
        assert_eq!((download.read(&mut buffer).expect("read"), &buffer[..3]), (3, &b"abc"[..]));
        assert_eq!(download.read(&mut buffer).expect("its end"), 0);
        let digest = area.download("f").expect("the file").range(0, 3).sha256().expect("a digest");
        assert_eq!(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn a_file_that_its_owner_may_not_read_is_a_clear_no() {
        as_nobody(|fixture| {
            fs::write(fixture.work("f"), "x").expect("a file");
            fs::set_permissions(fixture.work("f"), PermissionsExt::from_mode(0o0)).expect("locked");
            assert!(matches!(fixture.area().read("f", 0, 1), Err(WorkspaceError::Denied { .. })));
        });
    }
}
