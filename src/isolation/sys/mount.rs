//! The parts of the new mount API that rustix lacks.

use super::checked;
use nix::errno::Errno;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// `struct mount_attr` of mount_setattr(2) (Linux 5.12).
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

const MOUNT_ATTR_RDONLY: u64 = 0x1;
const MOUNT_ATTR_NOSUID: u64 = 0x2;
const MOUNT_ATTR_NODEV: u64 = 0x4;
const MOUNT_ATTR_NOEXEC: u64 = 0x8;
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
const OPEN_TREE_CLONE: libc::c_uint = 1;

/// Flags put on a whole tree of mounts.
#[derive(Debug, Clone, Copy, Default)]
pub struct TreeAttributes {
    /// Read-only.
    pub read_only: bool,
    /// Device nodes do not work.
    pub no_dev: bool,
    /// Programs can't be started from it.
    pub no_exec: bool,
}

impl TreeAttributes {
    fn bits(self) -> u64 {
        // nosuid has no switch: no mount of a sandbox ever honours a set-uid bit.
        let mut bits = MOUNT_ATTR_NOSUID;
        for (wanted, bit) in
            [(self.read_only, MOUNT_ATTR_RDONLY), (self.no_dev, MOUNT_ATTR_NODEV), (self.no_exec, MOUNT_ATTR_NOEXEC)]
        {
            if wanted {
                bits |= bit;
            }
        }
        bits
    }
}

fn setattr(dir: RawFd, path: &CStr, flags: libc::c_int, attr: &MountAttr) -> Result<(), Errno> {
    // SAFETY: mount_setattr reads a path (a C string) and a mount_attr of the size given; both outlive the call.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            dir,
            path.as_ptr(),
            flags | libc::AT_EMPTY_PATH,
            std::ptr::from_ref(attr),
            size_of::<MountAttr>(),
        )
    };
    checked(returned).map(drop)
}

/// Sets the flags on the mount at `tree` and on all mounts below it, and makes them private.
pub fn set_tree_attributes(tree: BorrowedFd<'_>, attributes: TreeAttributes) -> Result<(), Errno> {
    let attr = MountAttr { attr_set: attributes.bits(), propagation: libc::MS_PRIVATE, ..MountAttr::default() };
    setattr(tree.as_raw_fd(), c"", libc::AT_RECURSIVE, &attr)
}

/// Maps the owners of a detached mount through `userns`: an owner that is id X there is seen as what X maps to.
pub fn idmap_tree(tree: BorrowedFd<'_>, userns: BorrowedFd<'_>, attributes: TreeAttributes) -> Result<(), Errno> {
    let attr = MountAttr {
        attr_set: attributes.bits() | MOUNT_ATTR_IDMAP,
        userns_fd: userns.as_raw_fd() as u64,
        ..MountAttr::default()
    };
    setattr(tree.as_raw_fd(), c"", 0, &attr)
}

/// A detached copy of the mount at `path` (relative to `dir`; empty for `dir` itself), with what is below it if `recursive`.
pub fn clone_tree(dir: BorrowedFd<'_>, path: &CStr, recursive: bool) -> Result<OwnedFd, Errno> {
    let mut flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as libc::c_uint | libc::AT_EMPTY_PATH as libc::c_uint;
    if recursive {
        flags |= libc::AT_RECURSIVE as libc::c_uint;
    }
    // SAFETY: open_tree reads a C string that outlives the call and returns a new descriptor.
    let fd = checked(unsafe { libc::syscall(libc::SYS_open_tree, dir.as_raw_fd(), path.as_ptr(), flags) })?;
    // SAFETY: the descriptor is new and ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}
