//! Loop devices: a file as a disk (linux/loop.h).

use super::checked;
use nix::errno::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

const LOOP_GET_STATUS64: libc::c_ulong = 0x4c05;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
/// Unbinds itself when the last one that has it open is gone.
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `struct loop_info64`
#[repr(C)]
#[derive(Clone, Copy)]
struct Status {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`
#[repr(C)]
struct Configuration {
    fd: u32,
    block_size: u32,
    status: Status,
    reserved: [u64; 8],
}

const NOTHING: Status = Status {
    device: 0,
    inode: 0,
    rdevice: 0,
    offset: 0,
    size_limit: 0,
    number: 0,
    encrypt_type: 0,
    encrypt_key_size: 0,
    flags: 0,
    file_name: [0; 64],
    crypt_name: [0; 64],
    encrypt_key: [0; 32],
    init: [0; 2],
};

/// The number of a loop device that has no file. Somebody else may be faster to use it.
pub fn free_loop(control: BorrowedFd<'_>) -> Result<u32, Errno> {
    // SAFETY: the request takes no argument and returns a number.
    let number = checked(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) }.into())?;
    u32::try_from(number).map_err(|_| Errno::ERANGE)
}

/// Ties a file to a loop device until the last one that has the device open is gone. EBUSY: it has a file already.
pub fn bind_loop(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<(), Errno> {
    let fd = u32::try_from(file.as_raw_fd()).map_err(|_| Errno::EBADF)?;
    let status = Status { flags: LO_FLAGS_AUTOCLEAR, ..NOTHING };
    let configuration = Configuration { fd, block_size: 0, status, reserved: [0; 8] };
    // SAFETY: the request reads a loop_config, which outlives the call; the descriptor in it is open.
    let returned = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, std::ptr::from_ref(&configuration)) };
    checked(returned.into()).map(drop)
}

/// Device and inode of the file that a loop device has. ENXIO: none.
pub fn loop_file(device: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    let mut status = NOTHING;
    // SAFETY: the request writes a loop_info64, which outlives the call.
    let returned = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64 as _, std::ptr::from_mut(&mut status)) };
    checked(returned.into())?;
    Ok((status.device, status.inode))
}
