//! Starting a program in new namespaces without copying the memory of who starts it.
//!
//! `CLONE_VM | CLONE_VFORK | CLONE_FILES`: the child borrows the parent's memory and table of descriptors, which stand still until the child has called execve or
//! has ended. In between it makes a fixed list of calls and nothing else: one piece of assembler, no stack, no Rust. A call
//! that fails ends the child, and the parent finds the errno.

use super::descriptor::Places;
use super::fork::{CloneArgs, SingleThreaded};
use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// `_LINUX_CAPABILITY_VERSION_3`, and the process itself.
static CAPABILITY_HEADER: [u32; 2] = [0x2008_0522, 0];

/// A capability by its number (linux/capability.h).
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub enum Capability {
    /// To become another group.
    SetGid = 6,
    /// To become another user.
    SetUid = 7,
    /// To empty the bounding set and lock the securebits.
    SetPcap = 8,
    /// To bring a network interface up.
    NetAdmin = 12,
    /// To mount.
    SysAdmin = 21,
}

/// What effective, permitted and inheritable become, in two words each.
#[derive(Debug)]
pub struct CapabilitySets([u32; 6]);

impl CapabilitySets {
    /// These, in all three sets: what is inheritable can be made ambient, and what is ambient survives execve.
    #[must_use]
    pub fn of(capabilities: &[Capability]) -> Self {
        let bits = capabilities.iter().fold(0, |bits, &capability| bits | 1 << capability as u32);
        Self([bits, bits, bits, 0, 0, 0])
    }
}

/// One call that the child makes; what it points to lives for `'a`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Call<'a> {
    number: libc::c_long,
    arguments: [usize; 5],
    of: PhantomData<&'a ()>,
}

impl<'a> Call<'a> {
    fn new<const N: usize>(number: libc::c_long, given: [usize; N]) -> Self {
        let mut arguments = [0; 5];
        arguments[..N].copy_from_slice(&given);
        Self { number, arguments, of: PhantomData }
    }

    /// Takes a table of its own, with the descriptors below `end` and no other: the parent may have very many.
    fn own_descriptors_below(end: RawFd) -> Self {
        let (first, last) = (end as usize, libc::c_uint::MAX as usize);
        Self::new(libc::SYS_close_range, [first, last, libc::CLOSE_RANGE_UNSHARE as usize])
    }

    /// Takes these capabilities for all that it has.
    #[must_use]
    pub fn set_capabilities(sets: &'a CapabilitySets) -> Self {
        let header = (&raw const CAPABILITY_HEADER).expose_provenance();
        Self::new(libc::SYS_capset, [header, (&raw const sets.0).expose_provenance()])
    }

    /// Keeps an inheritable capability across execve.
    #[must_use]
    pub fn raise_ambient(capability: Capability) -> Self {
        let (option, raise) = (libc::PR_CAP_AMBIENT as usize, libc::PR_CAP_AMBIENT_RAISE as usize);
        Self::new(libc::SYS_prctl, [option, raise, capability as usize, 0, 0])
    }

    /// Becomes the program in this file.
    #[must_use]
    pub fn execute(file: BorrowedFd<'a>, words: &'a ExecWords<'a>) -> Self {
        let empty = c"".as_ptr().expose_provenance();
        let [argv, envp] = [words.argv.as_ptr(), words.envp.as_ptr()].map(<*const _>::expose_provenance);
        let file = file.as_raw_fd() as usize;
        Self::new(libc::SYS_execveat, [file, empty, argv, envp, libc::AT_EMPTY_PATH as usize])
    }
}

/// Arguments of a program, without an environment.
#[derive(Debug)]
pub struct ExecWords<'a> {
    argv: [*const c_char; 4],
    envp: [*const c_char; 1],
    of: PhantomData<&'a CStr>,
}

impl<'a> ExecWords<'a> {
    /// Its own name and two words.
    #[must_use]
    pub fn new(name: &'a CStr, words: [&'a CStr; 2]) -> Self {
        let [first, second] = words.map(CStr::as_ptr);
        Self { argv: [name.as_ptr(), first, second, std::ptr::null()], envp: [std::ptr::null()], of: PhantomData }
    }
}

/// Clones with these namespace flags and, if given, straight into a cgroup (v2); the child, which has the descriptors up to
/// the end of `places`, makes `calls`, the last of which is to be [`Call::execute`]. The child's pid and a descriptor for
/// it, or the errno of the call that failed.
pub fn start(
    _proof: &SingleThreaded,
    flags: u64,
    cgroup: Option<BorrowedFd<'_>>,
    places: &Places,
    calls: &[Call<'_>],
) -> Result<(Pid, OwnedFd), Errno> {
    // CLONE_FILES: the table is not copied whole only to be closed again at execve; the child's first call takes its part.
    let first = Call::own_descriptors_below(places.end());
    let calls: Vec<Call<'_>> = std::iter::once(first).chain(calls.iter().copied()).collect();
    let mut pidfd: RawFd = -1;
    let shared = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES) as u64;
    let args = CloneArgs::new(flags | shared, cgroup, &mut pidfd);
    let mut failed: isize = 0;
    // SAFETY: `args` is a clone_args of the size given and `pidfd` outlives the call. The child shares our memory while we
    // stand still; it makes the calls of the list, whose pointers are good for as long as the borrow of `calls` (every
    // constructor above takes what it points to by that lifetime), and writes `failed`. One thread, says the proof:
    // nobody else runs in this memory meanwhile.
    let pid = unsafe { clone_and_call(&args, &calls, &mut failed) };
    if pid < 0 {
        return Err(Errno::from_raw(-pid as i32));
    }
    // SAFETY: on success the kernel has stored a new descriptor in `pidfd` that nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    if failed != 0 {
        // It has ended, or is about to. ECHILD: there is nothing left to collect.
        while waitid(Id::PIDFd(pidfd.as_fd()), WaitPidFlag::WEXITED) == Err(Errno::EINTR) {}
        return Err(Errno::from_raw(-failed as i32));
    }
    Ok((Pid::from_raw(pid as i32), pidfd))
}

/// Exit code of a child whose call failed; the parent knows which errno.
const FAILED_EXIT: i32 = 127;

/// clone3(2); in the child the calls, one after the other, up to the first that fails.
#[cfg(target_arch = "x86_64")]
unsafe fn clone_and_call(args: &CloneArgs, calls: &[Call<'_>], failed: &mut isize) -> isize {
    let returned: isize;
    // SAFETY: the block changes no memory but `failed` and no register that is not named. The child never leaves it: it ends in
    // execve or exit. It uses no stack, so the parent's is as it was when it goes on.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 9f",
            "2:",
            "test r13, r13",
            "jz 4f",
            "mov rax, [r12]",
            "mov rdi, [r12 + 8]",
            "mov rsi, [r12 + 16]",
            "mov rdx, [r12 + 24]",
            "mov r10, [r12 + 32]",
            "mov r8, [r12 + 40]",
            "syscall",
            "test rax, rax",
            "js 3f",
            "add r12, 48",
            "dec r13",
            "jmp 2b",
            "3:",
            "mov [r14], rax",
            "4:",
            "mov eax, {exit_group}",
            "mov edi, {failed_exit}",
            "syscall",
            "ud2",
            "9:",
            exit_group = const libc::SYS_exit_group,
            failed_exit = const FAILED_EXIT,
            inlateout("rax") libc::SYS_clone3 as isize => returned,
            inlateout("rdi") args => _,
            inlateout("rsi") size_of::<CloneArgs>() => _,
            in("r12") calls.as_ptr(),
            in("r13") calls.len(),
            in("r14") failed,
            lateout("rdx") _, lateout("r10") _, lateout("r8") _, lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    returned
}

/// clone3(2); in the child the calls, one after the other, up to the first that fails.
#[cfg(target_arch = "aarch64")]
unsafe fn clone_and_call(args: &CloneArgs, calls: &[Call<'_>], failed: &mut isize) -> isize {
    let returned: isize;
    // SAFETY: the block changes no memory but `failed` and no register that is not named. The child never leaves it: it ends in
    // execve or exit. It uses no stack, so the parent's is as it was when it goes on.
    unsafe {
        std::arch::asm!(
            "svc 0",
            "cbnz x0, 9f",
            "2:",
            "cbz x13, 4f",
            "ldp x8, x0, [x12]",
            "ldp x1, x2, [x12, 16]",
            "ldp x3, x4, [x12, 32]",
            "svc 0",
            "tbnz x0, 63, 3f",
            "add x12, x12, 48",
            "sub x13, x13, 1",
            "b 2b",
            "3:",
            "str x0, [x14]",
            "4:",
            "mov x8, {exit_group}",
            "mov x0, {failed_exit}",
            "svc 0",
            "brk 1",
            "9:",
            exit_group = const libc::SYS_exit_group,
            failed_exit = const FAILED_EXIT,
            inlateout("x8") libc::SYS_clone3 => _,
            inlateout("x0") args => returned,
            inlateout("x1") size_of::<CloneArgs>() => _,
            inlateout("x12") calls.as_ptr() => _,
            inlateout("x13") calls.len() => _,
            in("x14") failed,
            lateout("x2") _, lateout("x3") _, lateout("x4") _,
            options(nostack),
        );
    }
    returned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_six_words_in_a_row() {
        assert_eq!(size_of::<Call<'_>>(), 48, "the assembler steps by this");
    }
}
