//! The requests of btrfs that we make: subvolumes and the limits of their quota groups (linux/btrfs.h).
//!
//! Making, copying and removing a subvolume is open to the owner of its directory, so the front does it without any
//! right of its own. Quotas are root's.

use nix::errno::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

const MAGIC: u8 = 0x94;
/// `BTRFS_SUBVOL_NAME_MAX` and its NUL.
const NAME_LEN: usize = 4040;
/// `BTRFS_SUBVOL_RDONLY`.
const READ_ONLY: u64 = 1 << 1;
/// `BTRFS_QUOTA_CTL_ENABLE`.
const QUOTA_ENABLE: u64 = 1;
/// `BTRFS_QGROUP_LIMIT_MAX_RFER`: everything that the subvolume refers to, its metadata included.
const MAX_REFERENCED: u64 = 1;
/// `BTRFS_SUPER_MAGIC` of linux/magic.h.
const SUPER_MAGIC: u64 = 0x9123_683e;
/// Inode of the top of every subvolume (`BTRFS_FIRST_FREE_OBJECTID`).
const TOP: u64 = 256;
/// The limit that is none (`BTRFS_QGROUP_…`: -1 clears).
const NO_LIMIT: u64 = u64::MAX;

/// `struct btrfs_ioctl_vol_args_v2`
#[repr(C)]
pub struct VolumeArguments {
    fd: i64,
    transid: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; NAME_LEN],
}

/// `struct btrfs_ioctl_quota_ctl_args`
#[repr(C)]
pub struct QuotaArguments {
    command: u64,
    status: u64,
}

/// `struct btrfs_ioctl_qgroup_limit_args`
#[repr(C)]
#[derive(Default)]
pub struct LimitArguments {
    /// That of a subvolume has its id.
    group: u64,
    flags: u64,
    max_referenced: u64,
    max_exclusive: u64,
    reserved_referenced: u64,
    reserved_exclusive: u64,
}

/// `struct btrfs_ioctl_ino_lookup_args`
#[repr(C)]
pub struct LookupArguments {
    /// In: 0, the subvolume the descriptor is in. Out: its id.
    tree: u64,
    object: u64,
    name: [u8; 4080],
}

nix::ioctl_readwrite!(ino_lookup, MAGIC, 18, LookupArguments);
nix::ioctl_write_ptr!(snap_create_v2, MAGIC, 23, VolumeArguments);
nix::ioctl_write_ptr!(subvol_create_v2, MAGIC, 24, VolumeArguments);
nix::ioctl_read!(subvol_get_flags, MAGIC, 25, u64);
nix::ioctl_write_ptr!(subvol_set_flags, MAGIC, 26, u64);
nix::ioctl_readwrite!(quota_ctl, MAGIC, 40, QuotaArguments);
nix::ioctl_read!(qgroup_limit, MAGIC, 43, LimitArguments);
nix::ioctl_write_ptr!(snap_destroy_v2, MAGIC, 63, VolumeArguments);

fn arguments(fd: i64, flags: u64, name: &str) -> Result<VolumeArguments, Errno> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() >= NAME_LEN || bytes.contains(&0) || bytes.contains(&b'/') {
        return Err(Errno::EINVAL);
    }
    let mut field = [0; NAME_LEN];
    field[..bytes.len()].copy_from_slice(bytes);
    Ok(VolumeArguments { fd, transid: 0, flags, unused: [0; 4], name: field })
}

/// Whether what the descriptor is in is btrfs.
#[must_use]
pub fn is_btrfs(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|files| files.f_type as u64 & 0xffff_ffff == SUPER_MAGIC)
}

/// Makes an empty subvolume `name` in a directory that was opened for reading.
pub fn make_subvolume(parent: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    let arguments = arguments(0, 0, name)?;
    // SAFETY: the request reads a vol_args_v2, which outlives the call, from an open descriptor.
    unsafe { subvol_create_v2(parent.as_raw_fd(), &arguments) }.map(drop)
}

/// Copies the subvolume at `source` to `name` in `parent`, at once and whole; its data is shared until it is written to.
pub fn copy_subvolume(
    source: BorrowedFd<'_>,
    parent: BorrowedFd<'_>,
    name: &str,
    read_only: bool,
) -> Result<(), Errno> {
    let flags = if read_only { READ_ONLY } else { 0 };
    let arguments = arguments(source.as_raw_fd().into(), flags, name)?;
    // SAFETY: the request reads a vol_args_v2, which outlives the call; both descriptors in it are open.
    unsafe { snap_create_v2(parent.as_raw_fd(), &arguments) }.map(drop)
}

/// Lets a subvolume, held open at its top, be written to: only then may its owner remove it.
pub fn make_writable(subvolume: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut flags = 0;
    // SAFETY: the request writes one u64, which outlives the call.
    unsafe { subvol_get_flags(subvolume.as_raw_fd(), &mut flags) }?;
    if flags & READ_ONLY == 0 {
        return Ok(());
    }
    flags &= !READ_ONLY;
    // SAFETY: the request reads one u64, which outlives the call.
    unsafe { subvol_set_flags(subvolume.as_raw_fd(), &flags) }.map(drop)
}

/// Removes the subvolume `name` of a directory with everything in it. The space comes back in the kernel's own time.
pub fn remove_subvolume(parent: BorrowedFd<'_>, name: &str) -> Result<(), Errno> {
    let arguments = arguments(0, 0, name)?;
    // SAFETY: the request reads a vol_args_v2, which outlives the call.
    unsafe { snap_destroy_v2(parent.as_raw_fd(), &arguments) }.map(drop)
}

/// Has the filesystem count what each subvolume refers to. Done again, nothing happens.
pub fn enable_quotas(root: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut arguments = QuotaArguments { command: QUOTA_ENABLE, status: 0 };
    // SAFETY: the request reads and writes a quota_ctl_args, which outlives the call.
    unsafe { quota_ctl(root.as_raw_fd(), &mut arguments) }.map(drop)
}

/// Limits what the subvolume that a descriptor is in may refer to; none takes the limit away.
///
/// The request is made on `outside`, a directory of another subvolume: it takes a little room where it is made, and a
/// subvolume that is full has none.
pub fn limit_subvolume(subvolume: BorrowedFd<'_>, outside: BorrowedFd<'_>, bytes: Option<u64>) -> Result<(), Errno> {
    let mut found = LookupArguments { tree: 0, object: TOP, name: [0; 4080] };
    // SAFETY: the request reads and writes an ino_lookup_args, which outlives the call.
    unsafe { ino_lookup(subvolume.as_raw_fd(), &mut found) }?;
    let (group, max_referenced) = (found.tree, bytes.unwrap_or(NO_LIMIT));
    let mut arguments = LimitArguments { group, flags: MAX_REFERENCED, max_referenced, ..LimitArguments::default() };
    // SAFETY: the request reads a qgroup_limit_args (its number says otherwise), which outlives the call.
    unsafe { qgroup_limit(outside.as_raw_fd(), &mut arguments) }.map(drop)
}
