//! What there is to know of a file without reading it.

use nix::libc;
use nix::sys::stat::FileStat;
use sha2::{Digest, Sha256};

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link. Nothing here ever follows one.
    Link,
    /// A FIFO, a socket or a device. Nothing here ever reads one.
    Other,
}

impl FileKind {
    /// The name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            FileKind::File => "file",
            FileKind::Directory => "directory",
            FileKind::Link => "link",
            FileKind::Other => "other",
        }
    }

    pub(super) fn of(stat: &FileStat) -> Self {
        match stat.st_mode & libc::S_IFMT {
            libc::S_IFREG => FileKind::File,
            libc::S_IFDIR => FileKind::Directory,
            libc::S_IFLNK => FileKind::Link,
            _ => FileKind::Other,
        }
    }
}

/// What the kernel says of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// What it is.
    pub kind: FileKind,
    /// Length in bytes.
    pub size: u64,
    /// The permission bits; no others.
    pub mode: u32,
    /// When the content changed last, in milliseconds since 1970. A program may have set it to anything.
    pub mtime_ms: i64,
    /// Changes whenever content or modes do, whatever a program does to its clocks.
    pub etag: String,
}

impl Meta {
    pub(super) fn of(stat: &FileStat) -> Self {
        // The time of change is the kernel's own: unlike the time of modification, no program sets it.
        let etag = format!(
            "{:x}-{:x}-{:x}.{:x}-{:x}.{:x}",
            stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec
        );
        Self {
            kind: FileKind::of(stat),
            size: size(stat),
            mode: stat.st_mode & 0o777,
            mtime_ms: stat.st_mtime.saturating_mul(1000).saturating_add(stat.st_mtime_nsec / 1_000_000),
            etag,
        }
    }
}

/// A length, which the kernel never makes negative.
pub(super) fn size(stat: &FileStat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// A digest as people read it.
pub(super) fn hex(digest: Sha256) -> String {
    use std::fmt::Write as _;
    digest.finalize().iter().fold(String::with_capacity(64), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes everything");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::Fixture;
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_change_that_hides_behind_the_old_time_still_changes_the_etag() {
        let fixture = Fixture::new();
        let area = fixture.area();
        std::fs::write(fixture.work("f"), "one").expect("a file");
        let file = std::fs::File::options().write(true).open(fixture.work("f")).expect("the file");
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        file.set_modified(time).expect("a time");
        let before = area.stat("f").expect("the file");
        assert_eq!(before.mtime_ms, 1_000_000_000);
        assert_eq!(area.stat("f").expect("the file"), before, "nothing changed");
        // The kernel's clock for files ticks every few milliseconds.
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        while area.stat("f").expect("the file").etag == before.etag && std::time::Instant::now() < deadline {
            std::fs::write(fixture.work("f"), "two").expect("the same length");
            file.set_modified(time).expect("the same time");
        }
        let after = area.stat("f").expect("the file");
        assert_eq!((after.mtime_ms, after.size), (before.mtime_ms, before.size));
        assert_ne!(after.etag, before.etag);
    }
}
