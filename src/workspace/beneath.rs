//! The second wall for paths: `openat2` below a descriptor, through no link of any kind, and single names from there on.
//!
//! Everything here works with errnos; whoever called knows which path a caller gave and makes the words.

use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{FchmodatFlags, FileStat, Mode, fchmodat, fstat, fstatat, mkdirat};
use rustix::fs::Dir;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// A lookup that raced with a rename answers EAGAIN and may be tried again; so does a lease, where it does not help.
const TRIES: usize = 4;
/// What the owner of a directory needs to work in it.
const OWNERS: u32 = 0o700;

fn open(
    directory: impl AsFd,
    path: &(impl NixPath + ?Sized),
    flags: OFlag,
    mode: Mode,
    resolve: ResolveFlag,
) -> Result<OwnedFd, Errno> {
    let no_links = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).mode(mode).resolve(no_links | resolve);
    let mut last = Errno::EAGAIN;
    for _ in 0..TRIES {
        match openat2(&directory, path, how) {
            Err(errno @ (Errno::EAGAIN | Errno::EINTR)) => last = errno,
            answer => return answer,
        }
    }
    Err(last)
}

/// Opens `path` below `directory`, on the same filesystem and through no link.
///
/// `O_NONBLOCK` is always on: a FIFO or a lease that a program planted must not make us wait.
pub(super) fn open_beneath(
    directory: impl AsFd,
    path: &(impl NixPath + ?Sized),
    flags: OFlag,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let calm = if flags.contains(OFlag::O_PATH) { OFlag::empty() } else { OFlag::O_NONBLOCK | OFlag::O_NOCTTY };
    open(directory, path, flags | calm, mode, ResolveFlag::RESOLVE_NO_XDEV)
}

/// Opens a directory, to look names up in it.
pub(super) fn open_directory(directory: impl AsFd, path: &(impl NixPath + ?Sized)) -> Result<OwnedFd, Errno> {
    open_beneath(directory, path, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty())
}

/// Opens one of the daemon's own directories: a project or an area, which may be a mount of its own.
pub(super) fn open_own(directory: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    open(directory, name, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty(), ResolveFlag::empty())
}

/// Makes one of the daemon's own directories if it is not there and opens it.
pub(super) fn make_own(parent: impl AsFd, name: &str, mode: u32) -> Result<OwnedFd, Errno> {
    match mkdirat(&parent, name, Mode::from_bits_truncate(mode)) {
        Ok(()) | Err(Errno::EEXIST) => open_own(&parent, name),
        Err(errno) => Err(errno),
    }
}

/// Makes a directory if it is not there and opens it.
pub(super) fn make_directory(parent: impl AsFd, name: &str, mode: u32) -> Result<OwnedFd, Errno> {
    match mkdirat(&parent, name, Mode::from_bits_truncate(mode)) {
        Ok(()) | Err(Errno::EEXIST) => open_directory(&parent, name),
        Err(errno) => Err(errno),
    }
}

/// Opens the directory at `path`, making what is missing on the way; what was made is durable.
pub(super) fn make_directories(top: impl AsFd, path: &str) -> Result<OwnedFd, Errno> {
    let mut directory = open_directory(&top, ".")?;
    for name in path.split('/').filter(|name| !matches!(*name, "" | ".")) {
        match mkdirat(&directory, single(name)?, Mode::from_bits_truncate(0o755)) {
            Ok(()) => sync_directory(&directory)?,
            Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
        directory = open_directory(&directory, name)?;
    }
    Ok(directory)
}

/// Opens one of our own directories and gives its owner the rights back that a program may have taken: without them
/// neither we nor any later program could work in it.
pub(super) fn open_unlocked(parent: impl AsFd, name: &str) -> Result<OwnedFd, Errno> {
    let directory = open_own(&parent, name)?;
    let mode = fstat(&directory)?.st_mode & 0o777;
    if mode & OWNERS != OWNERS {
        unlock(&parent, name, mode)?;
    }
    Ok(directory)
}

/// Gives the owner, who we are, all rights over a directory. By name, as a locked one can't be opened; not through a
/// link, and what a program may swap in meanwhile is its own too.
pub(super) fn unlock(parent: impl AsFd, name: &(impl NixPath + ?Sized), mode: u32) -> Result<(), Errno> {
    let mode = Mode::from_bits_truncate((mode & 0o777) | OWNERS);
    fchmodat(parent, name, mode, FchmodatFlags::NoFollowSymlink)
}

/// The path of the directory and the name in it. Names that are not names are refused: nothing may reach upwards.
pub(super) fn split(path: &str) -> Result<(&str, &str), Errno> {
    let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
    Ok((parent, single(name)?))
}

fn single(name: &str) -> Result<&str, Errno> {
    match name {
        "" | "." | ".." => Err(Errno::EXDEV),
        name if name.contains(['/', '\0']) => Err(Errno::EXDEV),
        name => Ok(name),
    }
}

/// What a name is, links not followed.
pub(super) fn look(directory: impl AsFd, name: &(impl NixPath + ?Sized)) -> Result<FileStat, Errno> {
    fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)
}

/// Makes names in a directory durable.
pub(super) fn sync_directory(directory: impl AsFd) -> Result<(), Errno> {
    match open_beneath(&directory, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty()) {
        Ok(readable) => nix::unistd::fsync(readable),
        // A directory that its owner may write and not read: the kernel writes it in its own time.
        Err(Errno::EACCES) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Hands every name in a directory to `each`, in the order of the disk, until it has had enough.
pub(super) fn for_each_name(directory: impl AsFd, mut each: impl FnMut(&OsStr) -> bool) -> Result<(), Errno> {
    let raw = |error: rustix::io::Errno| Errno::from_raw(error.raw_os_error());
    let readable = open_beneath(&directory, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())?;
    for entry in Dir::new(readable).map_err(raw)? {
        let entry = entry.map_err(raw)?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." && !each(OsStr::from_bytes(name)) {
            break;
        }
    }
    Ok(())
}

/// All names of a directory, sorted, and whether that was all: at most `most` of them.
pub(super) fn sorted_names(directory: impl AsFd, most: usize) -> Result<(Vec<OsString>, bool), Errno> {
    let mut names = Vec::new();
    let mut complete = true;
    for_each_name(directory, |name| {
        complete = names.len() < most;
        if complete {
            names.push(name.to_owned());
        }
        complete
    })?;
    names.sort_unstable();
    Ok((names, complete))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Fixture, as_nobody};
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn nothing_leads_out_or_through_a_link() {
        let fixture = Fixture::new();
        std::fs::create_dir_all(fixture.work("a/b")).expect("directories");
        symlink("b", fixture.work("a/inner")).expect("a link inside");
        symlink("/etc", fixture.work("out")).expect("a link out");
        let root = fixture.area().root().try_clone().expect("a descriptor");
        assert!(open_directory(&root, "a/b").is_ok());
        assert_eq!(open_directory(&root, "a/inner").err(), Some(Errno::ELOOP));
        assert_eq!(open_directory(&root, "out").err(), Some(Errno::ELOOP));
        assert_eq!(open_directory(&root, "..").err(), Some(Errno::EXDEV));
        assert_eq!(open_directory(&root, "/etc").err(), Some(Errno::EXDEV));
        assert_eq!(make_directories(&root, "out/x").err(), Some(Errno::ELOOP));
        assert_eq!(make_directories(&root, "a/../../x").err(), Some(Errno::EXDEV));
    }

    #[test]
    fn a_path_ends_in_a_real_name() {
        assert_eq!(split("a/b/c"), Ok(("a/b", "c")));
        assert_eq!(split("c"), Ok((".", "c")));
        for bad in [".", "..", "a/..", "a/.", "a/", "", "a/b\0"] {
            assert_eq!(split(bad), Err(Errno::EXDEV), "{bad:?}");
        }
    }

    #[test]
    fn a_fifo_does_not_make_us_wait() {
        let fixture = Fixture::new();
        nix::unistd::mkfifo(&fixture.work("fifo"), Mode::from_bits_truncate(0o644)).expect("a FIFO");
        let root = fixture.area().root().try_clone().expect("a descriptor");
        assert!(open_beneath(&root, "fifo", OFlag::O_RDONLY, Mode::empty()).is_ok());
        assert_eq!(open_beneath(&root, "fifo", OFlag::O_WRONLY, Mode::empty()).err(), Some(Errno::ENXIO));
    }

    #[test]
    fn an_area_that_a_program_locked_is_opened_up_again() {
        as_nobody(|fixture| {
            let path = fixture.work("");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o0)).expect("the owner may");
            assert_eq!(std::fs::read_dir(&path).err().and_then(|error| error.raw_os_error()), Some(libc::EACCES));
            fixture.area();
            assert_eq!(std::fs::metadata(&path).expect("the area").permissions().mode() & 0o777, 0o700);
        });
    }
}
