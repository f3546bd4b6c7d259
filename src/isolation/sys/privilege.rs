//! Giving things up: capabilities, securebits, descriptors; and the filter that comes last.

use super::checked;
use crate::isolation::seccomp::Instruction;
use nix::errno::Errno;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// `_LINUX_CAPABILITY_VERSION_3`: two words per set.
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// Highest capability number to try; the kernel answers EINVAL past its own last one.
const CAPABILITY_LAST_TRIED: libc::c_ulong = 63;

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn prctl(option: libc::c_int, value: libc::c_ulong) -> Result<libc::c_long, Errno> {
    let none: libc::c_ulong = 0;
    // SAFETY: only options that take plain numbers are passed here (see the callers in this file).
    checked(unsafe { libc::prctl(option, value, none, none, none) }.into())
}

/// Empties effective, permitted and inheritable.
pub fn clear_capabilities() -> Result<(), Errno> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION_3, pid: 0 };
    let data = [CapabilityData::default(); 2];
    // SAFETY: capset wants a header and, for version 3, an array of two data structs; both outlive the call.
    checked(unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) }).map(drop)
}

/// Empties the ambient set.
pub fn clear_ambient() -> Result<(), Errno> {
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong).map(drop)
}

/// Empties the bounding set. Needs CAP_SETPCAP, so it comes before the sets are cleared.
pub fn drop_bounding_set() -> Result<(), Errno> {
    for capability in 0..=CAPABILITY_LAST_TRIED {
        match prctl(libc::PR_CAPBSET_DROP, capability) {
            Ok(_) => {}
            Err(Errno::EINVAL) => return Ok(()), // past the kernel's last capability
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// execve can no longer add privileges.
pub fn set_no_new_privs() -> Result<(), Errno> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map(drop)
}

/// No core dump, and /proc/self belongs to root: nobody of our uid can read our memory.
pub fn set_not_dumpable() -> Result<(), Errno> {
    prctl(libc::PR_SET_DUMPABLE, 0).map(drop)
}

/// Closes every descriptor but those in `keep`, which must be sorted.
pub fn close_all_but(keep: &[RawFd]) -> Result<(), Errno> {
    let close_range = |first: RawFd, last: libc::c_uint| {
        // SAFETY: close_range takes plain numbers. Descriptors that Rust owners still name are closed only in a
        // child that leaves by execve or _exit, so no owner's drop runs after this.
        checked(unsafe { libc::syscall(libc::SYS_close_range, first as libc::c_uint, last, 0) }).map(drop)
    };
    let mut first: RawFd = 0;
    for &fd in keep {
        if fd > first {
            close_range(first, (fd - 1) as libc::c_uint)?;
        }
        first = fd + 1;
    }
    close_range(first, libc::c_uint::MAX)
}

/// Brings the loopback interface of this network namespace up.
pub fn loopback_up() -> Result<(), Errno> {
    // SAFETY: socket(2) takes plain numbers.
    let fd = checked(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) }.into())?;
    // SAFETY: the descriptor is new and ours alone.
    let socket = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    // SAFETY: ifreq is plain old data; all zero is a valid value of it.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, &byte) in request.ifr_name.iter_mut().zip(b"lo\0") {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads an ifreq that outlives the call.
    checked(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) }.into()).map(drop)
}

/// Loads a compiled filter. Needs no_new_privs, or root.
pub fn load_seccomp(program: &[Instruction]) -> Result<(), Errno> {
    let len = libc::c_ushort::try_from(program.len()).map_err(|_| Errno::E2BIG)?;
    let prog = libc::sock_fprog { len, filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut() };
    // SAFETY: SECCOMP_SET_MODE_FILTER reads a sock_fprog whose pointer and length describe `program`;
    // `Instruction` is repr(C) with the layout of sock_filter, and the kernel does not write to it.
    let returned = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const prog) };
    checked(returned).map(drop)
}

/// The Landlock ABI of this kernel.
pub fn landlock_abi() -> Result<u32, Errno> {
    const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: with this flag the call reads nothing and returns a number.
    let abi = checked(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, LANDLOCK_CREATE_RULESET_VERSION)
    })?;
    Ok(u32::try_from(abi).unwrap_or(0))
}

/// Has a signal do what it does by default, whatever our parent left behind.
pub fn default_signal(signal: libc::c_int) {
    // SAFETY: SIG_DFL is a valid disposition; no handler of ours is replaced.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

/// Ignores a signal from now on.
pub fn ignore_signal(signal: libc::c_int) {
    // SAFETY: SIG_IGN is a valid disposition; no handler of ours is replaced.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}
