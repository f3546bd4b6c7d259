//! Root trees: one per profile, built once in the warden's own mount namespace and copied for each sandbox.
//!
//! ```text
//! /                tmpfs, read-only: the skeleton            /proc /tmp /run /home/sandbox  mounted by the child
//! /usr, /bin …     the host's (or the image's), read-only    /workspace/{inputs,work,artifacts}  likewise
//! /etc             generated (host) or the image's own       /dev  tmpfs, read-only, five nodes and links
//! ```
//!
//! No part of the host's /root, /home, /var, /boot, /opt, /srv, /mnt or /sys is in it.
#![forbid(unsafe_code)]

use super::sys::{TreeAttributes, clone_tree, set_tree_attributes};
use super::{etc, plan, store};
use crate::model::Rootfs;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::{chdir, pivot_root};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};

/// A tree that could not be built.
#[derive(Debug, thiserror::Error)]
pub enum RootfsError {
    /// A file or directory of the skeleton.
    #[error("could not write {path} of the root tree")]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A mount.
    #[error("could not {what} {path}")]
    Mount {
        /// bind, mount, …
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: Errno,
    },
    /// The profile names a directory that can't be a root.
    #[error("rootfs {0} is not a directory with a usr or bin below it")]
    NotARoot(PathBuf),
}

/// Top-level names of the host that are shown. Links (merged /usr) are made again as links.
const HOST_NAMES: &[&str] = &["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Top-level names of an image that are ours to make.
const OUR_NAMES: &[&str] =
    &["proc", "sys", "dev", "tmp", "run", "home", "root", "var", "workspace", "boot", "mnt", "media"];
/// Mount points and places that every root has.
const SKELETON: &[&str] = &[
    "proc",
    "tmp",
    "run",
    "dev",
    "etc",
    "home/sandbox",
    "workspace/inputs",
    "workspace/work",
    "workspace/artifacts",
    "var/empty",
    "var/lib/dpkg",
    "var/lib/apt/lists/partial",
    "var/cache/apt/archives/partial",
];
/// Character devices of major 1 that a program may use.
const DEVICES: &[(&str, u64)] = &[("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)];

fn writing(path: &Path) -> impl FnOnce(io::Error) -> RootfsError {
    let path = path.to_owned();
    move |source| RootfsError::Write { path, source }
}

fn mounting(what: &'static str, path: &Path) -> impl FnOnce(Errno) -> RootfsError {
    let path = path.to_owned();
    move |source| RootfsError::Mount { what, path, source }
}

fn mount_tmpfs(target: &Path, options: &str, extra: MsFlags) -> Result<(), RootfsError> {
    mount(Some("tmpfs"), target, Some("tmpfs"), MsFlags::MS_NOSUID | extra, Some(options))
        .map_err(mounting("mount tmpfs on", target))
}

/// Binds `source` with all below it, read-only.
fn bind_read_only(source: &Path, target: &Path) -> Result<(), RootfsError> {
    let path = CString::new(source.as_os_str().as_bytes()).expect("paths hold no NUL");
    let tree = clone_tree(AT_FDCWD, &path, true).map_err(mounting("open", source))?;
    let read_only = TreeAttributes { read_only: true, no_dev: true, no_exec: false };
    set_tree_attributes(tree.as_fd(), read_only).map_err(mounting("make read-only", source))?;
    attach(tree.as_fd(), target)
}

fn attach(tree: BorrowedFd<'_>, target: &Path) -> Result<(), RootfsError> {
    use rustix::mount::{MoveMountFlags, move_mount};
    move_mount(tree, "", rustix::fs::CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(|errno| mounting("attach", target)(Errno::from_raw(errno.raw_os_error())))
}

/// Shows the entry `name` of `from` in the tree: a link as a link, a directory or file as a read-only bind.
fn show(from: &Path, name: &str, tree: &Path) -> Result<(), RootfsError> {
    let (source, target) = (from.join(name), tree.join(name));
    let Ok(known) = source.symlink_metadata() else { return Ok(()) };
    if known.is_symlink() {
        let link = std::fs::read_link(&source).map_err(writing(&source))?;
        return symlink(link, &target).map_err(writing(&target));
    }
    if known.is_dir() {
        std::fs::create_dir_all(&target).map_err(writing(&target))?;
    } else if known.is_file() {
        std::fs::write(&target, "").map_err(writing(&target))?;
    } else {
        return Ok(());
    }
    bind_read_only(&source, &target)
}

fn make_devices(tree: &Path) -> Result<(), RootfsError> {
    let dev = tree.join("dev");
    // The one mount without nodev: the nodes below are all that it holds, and it becomes read-only with the tree.
    mount_tmpfs(&dev, "size=64k,nr_inodes=32,mode=0755", MsFlags::MS_NOEXEC)?;
    for &(name, minor) in DEVICES {
        let path = dev.join(name);
        mknod(&path, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(1, minor))
            .map_err(mounting("make the device", &path))?;
        // mknod's mode goes through the umask.
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
        std::fs::set_permissions(&path, mode).map_err(writing(&path))?;
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        symlink(target, dev.join(name)).map_err(writing(&dev))?;
    }
    for name in ["pts", "shm"] {
        std::fs::create_dir(dev.join(name)).map_err(writing(&dev))?;
    }
    Ok(())
}

/// Builds the tree of one profile at `tree`, an empty directory.
pub fn build(rootfs: &Rootfs, tree: &Path) -> Result<(), RootfsError> {
    mount_tmpfs(tree, "size=32m,nr_inodes=16k,mode=0755", MsFlags::MS_NODEV)?;
    for name in SKELETON {
        let path = tree.join(name);
        std::fs::create_dir_all(&path).map_err(writing(&path))?;
    }
    symlink("/run", tree.join("var/run")).map_err(writing(tree))?;
    // An empty package database: tools that only read it (apt list, dpkg -l) find nothing instead of failing.
    let status = tree.join("var/lib/dpkg/status");
    std::fs::write(&status, "").map_err(writing(&status))?;
    match rootfs {
        Rootfs::Host => {
            for name in HOST_NAMES {
                show(Path::new("/"), name, tree)?;
            }
            etc::generate(&tree.join("etc")).map_err(writing(&tree.join("etc")))?;
        }
        Rootfs::Directory(directory) => {
            if !directory.join("usr").is_dir() && !directory.join("bin").exists() {
                return Err(RootfsError::NotARoot(directory.clone()));
            }
            let mut names: Vec<_> = std::fs::read_dir(directory)
                .map_err(writing(directory))?
                .flatten()
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .filter(|name| !OUR_NAMES.contains(&name.as_str()))
                .collect();
            names.sort();
            for name in names {
                show(directory, &name, tree)?;
            }
        }
    }
    make_devices(tree)?;
    let root = open(tree, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(mounting("open", tree))?;
    let read_only = TreeAttributes { read_only: true, ..TreeAttributes::default() };
    set_tree_attributes(root.as_fd(), read_only).map_err(mounting("make read-only", tree))
}

/// Where the warden's own root has the workspaces.
pub const WORKSPACES: &str = "/workspaces";

/// Moves this process into a mount namespace of its own whose root holds nothing but the trees, the workspaces and a /proc.
///
/// `scratch` is an empty directory of ours; nothing stays mounted on it outside. `workspaces` is a directory, or the
/// device of a store. Returns the tree of each rootfs.
pub fn enter_warden_root(
    scratch: &Path,
    workspaces: &Path,
    roots: &[Rootfs],
) -> Result<Vec<Result<CString, RootfsError>>, RootfsError> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)
        .map_err(mounting("leave the namespace of", Path::new("/")))?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .map_err(mounting("make private", Path::new("/")))?;
    // 0755: a child looks names up in it as root of a user namespace, which is nobody here.
    mount_tmpfs(scratch, "size=64k,nr_inodes=1k,mode=0755", MsFlags::MS_NODEV)?;
    let place = |name: &str| scratch.join(name.trim_start_matches('/'));
    for name in ["proc", WORKSPACES, plan::NEW_ROOT, "trees"] {
        std::fs::create_dir(place(name)).map_err(writing(&place(name)))?;
    }
    // Not recursive: a /proc with something mounted in it would not count as one that is fully visible.
    let bind = |source: &Path, name: &str| {
        mount(Some(source), &place(name), None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .map_err(mounting("bind", source))
    };
    bind(Path::new("/proc"), "proc")?;
    if workspaces.metadata().is_ok_and(|known| known.file_type().is_block_device()) {
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some(workspaces), &place(WORKSPACES), Some("btrfs"), flags, Some(store::OPTIONS))
            .map_err(mounting("mount the store's", workspaces))?;
    } else {
        bind(workspaces, WORKSPACES)?;
    }
    let mut trees: Vec<Result<CString, RootfsError>> = Vec::with_capacity(roots.len());
    for (index, rootfs) in roots.iter().enumerate() {
        // Profiles with the same root share its tree, which nobody can write to: each mount here is copied at every fork.
        let same = roots[..index].iter().position(|earlier| earlier == rootfs);
        if let Some(Ok(tree)) = same.map(|place| &trees[place]) {
            let shared = tree.clone();
            trees.push(Ok(shared));
            continue;
        }
        let name = format!("/trees/{index}");
        std::fs::create_dir(place(&name)).map_err(writing(&place(&name)))?;
        // One bad root must not take the others down: its profile is refused, the rest work.
        trees.push(build(rootfs, &place(&name)).map(|()| CString::new(name).expect("digits hold no NUL")));
    }
    chdir(scratch).map_err(mounting("enter", scratch))?;
    pivot_root(".", ".").map_err(mounting("change the root to", scratch))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(mounting("leave the old root at", scratch))?;
    chdir("/").map_err(mounting("enter", scratch))?;
    Ok(trees)
}
