//! Where workspaces lie: a directory as it is, or a btrfs whose subvolumes have limits of their own.
//!
//! ```text
//! <state_dir>/store.img ─▶ loop device (unbinds itself) ─▶ btrfs ─┬▶ a detached mount: the front's, seen by nobody else
//!                                                                 └▶ /workspaces in the warden's own mount namespace
//! ```
//!
//! Nothing of it is mounted where the host could see it, and nothing has to be cleared up: when the last process of a
//! dead daemon is gone, the kernel unmounts and unbinds. A start that comes before that finds the device that still
//! has the file and mounts it once more, which is the same filesystem; a second device over one file would ruin it.
//!
//! The image is root's: what the service user could have written is never mounted.
#![forbid(unsafe_code)]

use super::sys::{self, bind_loop, free_loop, loop_file};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::stat::Mode;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Lets the owner of a subvolume remove it; making one needs no option.
pub const OPTIONS: &str = "user_subvol_rm_allowed";
/// How long a dying daemon is waited for.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// How often another process may take the free device that we were told of.
const BIND_TRIES: usize = 16;
/// Loop devices that are looked at for one that has the file already.
const DEVICES: u32 = 4096;
/// The subvolume of the trial.
const TRIAL: &str = ".trial";

/// A store that can't be had.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file or device.
    #[error("could not open {path}")]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not made by root, or others may write to it.
    #[error(
        "{0} is not a file that root alone may write to; it is not mounted (make one with `sandboxctl store init`)"
    )]
    NotRoots(PathBuf),
    /// Another daemon has it.
    #[error("{0} is in use by another daemon; stop it, or choose another state_dir")]
    Locked(PathBuf),
    /// No loop device.
    #[error("no loop device for {path} (is the module loop loaded?)")]
    Loop {
        /// Of which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Errno,
    },
    /// No mount.
    #[error("could not mount {device} as btrfs (is the module btrfs loaded? `btrfs check` says whether it is whole)")]
    Mount {
        /// Of which device.
        device: PathBuf,
        /// Why.
        #[source]
        source: Errno,
    },
    /// Subvolumes or their limits.
    #[error("the store has no subvolumes with limits: could not {what}")]
    Limits {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: Errno,
    },
}

/// A mounted image.
#[derive(Debug)]
pub struct Image {
    /// Its loop device, by which the warden mounts it again.
    pub device: PathBuf,
    /// The top of its detached mount.
    pub root: OwnedFd,
    /// Held for as long as anybody of the daemon lives.
    pub lock: Flock<File>,
}

fn opening(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Open { path, source }
}

fn raw(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

impl Image {
    /// Locks, binds and mounts the image at `path`.
    pub fn mount(path: &Path) -> Result<Self, StoreError> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).map_err(opening(path))?;
        let known = file.metadata().map_err(opening(path))?;
        if !known.is_file() || known.uid() != 0 || known.mode() & 0o022 != 0 {
            return Err(StoreError::NotRoots(path.to_owned()));
        }
        let lock = lock(file, path)?;
        let (device, held) = device_of(&lock, path)?;
        let mounted = detached(&device).map_err(|source| StoreError::Mount { device: device.clone(), source })?;
        drop(held); // the mount holds it from here on
        // The mount's own descriptor is for moving it only; requests want one that reads.
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = nix::fcntl::openat(&mounted, ".", flags, Mode::empty())
            .map_err(|source| StoreError::Mount { device: device.clone(), source })?;
        Ok(Self { device, root, lock })
    }
}

fn lock(file: File, path: &Path) -> Result<Flock<File>, StoreError> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    let mut file = file;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err(_) if Instant::now() >= deadline => return Err(StoreError::Locked(path.to_owned())),
            Err((back, _)) => file = back,
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The loop device that has the file: one that is there already, or a free one.
fn device_of(file: &Flock<File>, path: &Path) -> Result<(PathBuf, File), StoreError> {
    let known = file.metadata().map_err(opening(path))?;
    let ours = (known.dev(), known.ino());
    let open = |device: &Path| OpenOptions::new().read(true).write(true).open(device);
    let name = |number: u32| PathBuf::from(format!("/dev/loop{number}"));
    for number in 0..DEVICES {
        let device = name(number);
        match device.metadata() {
            Ok(known) if known.file_type().is_block_device() => {}
            Ok(_) => continue,
            Err(_) if number >= 256 => break, // numbers may have gaps, but not many
            Err(_) => continue,
        }
        let Ok(held) = open(&device) else { continue };
        // While we have it open it does not unbind itself.
        if loop_file(held.as_fd()).is_ok_and(|theirs| theirs == ours) {
            return Ok((device, held));
        }
    }
    let control_path = Path::new("/dev/loop-control");
    let control = open(control_path).map_err(opening(control_path))?;
    let failed = |source| StoreError::Loop { path: path.to_owned(), source };
    for _ in 0..BIND_TRIES {
        let device = name(free_loop(control.as_fd()).map_err(failed)?);
        let held = open(&device).map_err(opening(&device))?;
        match bind_loop(held.as_fd(), file.as_fd()) {
            Ok(()) => return Ok((device, held)),
            Err(Errno::EBUSY) => {} // somebody was faster
            Err(errno) => return Err(failed(errno)),
        }
    }
    Err(failed(Errno::EBUSY))
}

/// A mount of a btrfs that no namespace has.
fn detached(device: &Path) -> Result<OwnedFd, Errno> {
    use rustix::mount::{fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen};
    let context = fsopen("btrfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(raw)?;
    fsconfig_set_string(context.as_fd(), "source", device).map_err(raw)?;
    fsconfig_set_flag(context.as_fd(), OPTIONS).map_err(raw)?;
    fsconfig_create(context.as_fd()).map_err(raw)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(raw)
}

/// Whether this kernel can do what an image needs.
#[must_use]
pub fn kernel_has_btrfs() -> bool {
    std::fs::read_to_string("/proc/filesystems").is_ok_and(|list| list.lines().any(|line| line.trim() == "btrfs"))
}

/// Whether a directory lies on btrfs.
#[must_use]
pub fn on_btrfs(directory: &OwnedFd) -> bool {
    sys::is_btrfs(directory.as_fd())
}

/// Has the filesystem count what subvolumes hold.
pub fn count(root: &OwnedFd) -> Result<(), StoreError> {
    sys::enable_quotas(root.as_fd()).map_err(|source| StoreError::Limits { what: "enable quotas", source })
}

/// Tries a subvolume with a limit, so that what is said of the store was tried and not guessed.
pub fn try_limits(root: &OwnedFd) -> Result<(), StoreError> {
    let failed = |what| move |source| StoreError::Limits { what, source };
    match sys::make_subvolume(root.as_fd(), TRIAL) {
        Ok(()) | Err(Errno::EEXIST) => {} // a daemon that was killed here left it
        Err(source) => return Err(failed("make a subvolume")(source)),
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let limited = nix::fcntl::openat(root, TRIAL, flags, Mode::empty())
        .and_then(|trial| sys::limit_subvolume(trial.as_fd(), root.as_fd(), Some(1 << 20)));
    let removed = sys::remove_subvolume(root.as_fd(), TRIAL);
    limited.map_err(failed("limit a subvolume"))?;
    removed.map_err(failed("remove a subvolume"))
}
