//! A directory as one tar stream: files, directories and links as links. Nothing else, and never through a link.

use super::area::AreaDir;
use super::beneath::open_directory;
use super::error::{WorkspaceError, at, errno_of, host};
use super::meta::{FileKind, size};
use super::read::open_file;
use super::walk::{Met, walk};
use nix::errno::Errno;
use nix::fcntl::{OFlag, readlinkat};
use nix::sys::stat::FileStat;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use tar::{Builder, EntryType, Header};

/// How much an archive may hold.
#[derive(Debug, Clone, Copy)]
pub struct ArchiveBounds {
    /// The most entries.
    pub entries: u64,
    /// The most bytes of content.
    pub bytes: u64,
}

/// What an archive holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Archived {
    /// Entries.
    pub entries: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// What an archive can't hold: FIFOs, sockets, devices, and what vanished meanwhile.
    pub skipped: u64,
}

/// Exactly as many bytes of a file as its header says, or an error.
struct Exact<'a> {
    file: &'a File,
    left: u64,
    shrank: bool,
}

impl Read for Exact<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.file.read(&mut buffer[..most])?;
        self.shrank = count == 0 && most > 0;
        if self.shrank {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count as u64;
        Ok(count)
    }
}

impl AreaDir {
    /// Writes everything below a directory to `out`, names relative to it. After an error the stream is no archive:
    /// it has no end, and whoever reads it sees that.
    pub fn archive(&self, path: &str, bounds: ArchiveBounds, out: impl Write) -> Result<Archived, WorkspaceError> {
        let top = open_directory(self.root(), path).map_err(at(path, "open a directory"))?;
        let mut builder = Builder::new(out);
        let mut archived = Archived::default();
        let whole = walk(&top, bounds.entries, &mut |met| match met {
            Met::Shut { path, why: Errno::ELOOP } => {
                tracing::debug!(path = %path.display(), "too deep for an archive");
                Err(WorkspaceError::TooLarge { what: "levels", limit: super::walk::LEVELS as u64 })
            }
            Met::Shut { path, why } => Err(at(&path.to_string_lossy(), "read a directory")(why)),
            Met::Entry { directory, name, path, stat } => {
                add(&mut builder, directory, name, path, stat, bounds.bytes, &mut archived)
            }
        })?;
        if !whole {
            return Err(WorkspaceError::TooLarge { what: "entries", limit: bounds.entries });
        }
        let sent = builder.into_inner().and_then(|mut out| out.flush());
        sent.map_err(|error| host("send an archive")(errno_of(&error)))?;
        Ok(archived)
    }
}

fn header(kind: EntryType, stat: &FileStat) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o777);
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header.set_size(0);
    header
}

fn add(
    builder: &mut Builder<impl Write>,
    directory: &OwnedFd,
    name: &OsStr,
    path: &Path,
    stat: &FileStat,
    most: u64,
    archived: &mut Archived,
) -> Result<(), WorkspaceError> {
    let send = |error: io::Error| host("send an archive")(errno_of(&error));
    let passed_over = |errno| matches!(errno, Errno::ENOENT | Errno::ELOOP | Errno::ENODEV | Errno::EISDIR);
    match FileKind::of(stat) {
        FileKind::Directory => {
            builder.append_data(&mut header(EntryType::Directory, stat), path, io::empty()).map_err(send)?;
        }
        FileKind::Link => match readlinkat(directory, name) {
            Ok(target) => {
                builder.append_link(&mut header(EntryType::Symlink, stat), path, target).map_err(send)?;
            }
            Err(_) => {
                archived.skipped += 1; // no link any more
                return Ok(());
            }
        },
        FileKind::File => match open_file(directory, name, OFlag::O_RDONLY) {
            Ok((file, stat)) => {
                archived.bytes = archived.bytes.saturating_add(size(&stat));
                if archived.bytes > most {
                    return Err(WorkspaceError::TooLarge { what: "bytes", limit: most });
                }
                let mut header = header(EntryType::Regular, &stat);
                header.set_size(size(&stat));
                let mut exact = Exact { file: &file, left: size(&stat), shrank: false };
                let added = builder.append_data(&mut header, path, &mut exact);
                if exact.shrank {
                    return Err(WorkspaceError::Shrank { path: path.to_string_lossy().into_owned() });
                }
                added.map_err(send)?;
            }
            Err(errno) if passed_over(errno) => {
                archived.skipped += 1; // another kind since the look, or gone
                return Ok(());
            }
            Err(errno) => return Err(at(&path.to_string_lossy(), "read a file")(errno)),
        },
        FileKind::Other => {
            archived.skipped += 1;
            return Ok(());
        }
    }
    archived.entries += 1;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fixture, as_nobody};
    use super::*;
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    const BOUNDS: ArchiveBounds = ArchiveBounds { entries: 1000, bytes: 1 << 20 };

    fn unpack(archive: &[u8]) -> BTreeMap<String, (EntryType, u32, String)> {
        let mut found = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries().expect("an archive") {
            let mut entry = entry.expect("an entry");
            let path = entry.path().expect("a path").to_string_lossy().into_owned();
            let kind = entry.header().entry_type();
            let mut content = String::new();
            entry.read_to_string(&mut content).expect("text");
            if let Some(target) = entry.link_name().expect("a link's target") {
                content = target.to_string_lossy().into_owned();
            }
            found.insert(path, (kind, entry.header().mode().expect("a mode"), content));
        }
        found
    }

    #[test]
    fn an_archive_holds_files_directories_and_links_as_links() {
        let fixture = Fixture::new();
        let area = fixture.area();
        let long = format!("d/{}", "n".repeat(200));
        fs::create_dir(fixture.work("d")).expect("a directory");
        fs::write(fixture.work(&long), "long").expect("a file with a long name");
        fs::write(fixture.work("d/f"), "content").expect("a file");
        fs::set_permissions(fixture.work("d/f"), PermissionsExt::from_mode(0o4711)).expect("a mode");
        symlink("/etc/passwd", fixture.work("link")).expect("a link out");
        nix::unistd::mkfifo(&fixture.work("fifo"), nix::sys::stat::Mode::S_IRUSR).expect("a FIFO");
        let mut archive = Vec::new();
        let archived = area.archive(".", BOUNDS, &mut archive).expect("an archive");
        assert_eq!(archived, Archived { entries: 4, bytes: 11, skipped: 1 });
        let found = unpack(&archive);
        assert_eq!(found.len(), 4, "{found:?}");
        assert_eq!(found["d/f"], (EntryType::Regular, 0o711, "content".to_owned()));
        assert_eq!(found[&long].2, "long");
        assert_eq!((found["link"].0, found["link"].2.as_str()), (EntryType::Symlink, "/etc/passwd"));
        let mut below = Vec::new();
        area.archive("d", BOUNDS, &mut below).expect("an archive");
        assert!(unpack(&below).contains_key("f"), "names are relative to the directory asked for");
    }

    #[test]
    fn an_archive_has_bounds() {
        let fixture = Fixture::new();
        let area = fixture.area();
        (0..4).for_each(|n| fs::write(fixture.work(&n.to_string()), "12345").expect("a file"));
        let with = |bounds| area.archive(".", bounds, io::sink());
        assert!(matches!(
            with(ArchiveBounds { entries: 3, ..BOUNDS }),
            Err(WorkspaceError::TooLarge { what: "entries", limit: 3 })
        ));
        assert!(matches!(
            with(ArchiveBounds { bytes: 19, ..BOUNDS }),
            Err(WorkspaceError::TooLarge { what: "bytes", limit: 19 })
        ));
        assert_eq!(with(ArchiveBounds { entries: 4, bytes: 20 }).expect("just so").bytes, 20);
        assert!(matches!(area.archive("0", BOUNDS, io::sink()), Err(WorkspaceError::NotADirectory { .. })));
        fs::create_dir_all(fixture.work(&"d/".repeat(150))).expect("directories");
        assert!(matches!(with(BOUNDS), Err(WorkspaceError::TooLarge { what: "levels", .. })));
    }

    #[test]
    fn a_file_that_shrinks_under_the_archive_is_reported() {
        let fixture = Fixture::new();
        fs::write(fixture.work("f"), vec![b'x'; 100_000]).expect("a file");
        /// Shortens the file as soon as its header goes by.
        struct Shortens(std::path::PathBuf);
        impl Write for Shortens {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                File::options().write(true).open(&self.0)?.set_len(10)?;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let archived = fixture.area().archive(".", BOUNDS, Shortens(fixture.work("f")));
        assert!(matches!(archived, Err(WorkspaceError::Shrank { path }) if path == "f"));
    }

    #[test]
    fn what_can_not_be_read_is_not_left_out_in_silence() {
        as_nobody(|fixture| {
            fs::write(fixture.work("f"), "x").expect("a file");
            fs::set_permissions(fixture.work("f"), PermissionsExt::from_mode(0o0)).expect("locked");
            let archived = fixture.area().archive(".", BOUNDS, io::sink());
            assert!(matches!(archived, Err(WorkspaceError::Denied { path }) if path == "f"));
        });
    }
}
