//! Forking: only from a process with one thread, and the type says so.

use super::checked;
use nix::errno::Errno;
use nix::unistd::Pid;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Proof that this process had one thread when it was asked. Not `Send`, so no other thread can hold it;
/// nothing that holds it starts one.
#[derive(Debug)]
pub struct SingleThreaded(PhantomData<*const ()>);

impl SingleThreaded {
    /// The proof, or how many threads there are.
    pub fn prove() -> Result<Self, usize> {
        match std::fs::read_dir("/proc/self/task").map(Iterator::count) {
            Ok(1) => Ok(Self(PhantomData)),
            Ok(threads) => Err(threads),
            Err(_) => Err(0),
        }
    }
}

/// libc's constant of this name is cut to 32 bits.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Which side of a fork we are on.
#[derive(Debug)]
pub enum Forked {
    /// The parent: the child's pid and a descriptor for it.
    Parent(Pid, OwnedFd),
    /// The child.
    Child,
}

/// `struct clone_args` of clone3(2), version 2 (with `cgroup`, Linux 5.7).
#[repr(C, align(8))]
#[derive(Default)]
pub(super) struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

impl CloneArgs {
    /// A child with these flags and, if given, in this cgroup (v2); a descriptor for it goes to `pidfd`, which must outlive
    /// the call.
    pub(super) fn new(flags: u64, cgroup: Option<BorrowedFd<'_>>, pidfd: &mut RawFd) -> Self {
        let (into, cgroup) = cgroup.map_or((0, 0), |group| (CLONE_INTO_CGROUP, group.as_raw_fd() as u64));
        Self {
            flags: flags | into | libc::CLONE_PIDFD as u64,
            pidfd: std::ptr::from_mut(pidfd).expose_provenance() as u64,
            exit_signal: libc::SIGCHLD as u64,
            cgroup,
            ..Self::default()
        }
    }
}

/// Forks with these namespace flags and, if given, straight into a cgroup (v2). The child shares no memory.
pub fn fork_sandbox(_proof: &SingleThreaded, flags: u64, cgroup: Option<BorrowedFd<'_>>) -> Result<Forked, Errno> {
    let mut pidfd: RawFd = -1;
    let args = CloneArgs::new(flags, cgroup, &mut pidfd);
    // SAFETY: clone3 wants a valid clone_args of the size given: `args` is that struct, zero but for what
    // is set above, and `pidfd` outlives the call. Without CLONE_VM the child has its own memory and stack,
    // and the proof says that no other thread can have held a lock at this moment.
    let pid = checked(unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) })?;
    if pid == 0 {
        return Ok(Forked::Child);
    }
    // SAFETY: on success the kernel has stored a new descriptor in `pidfd` that nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Forked::Parent(Pid::from_raw(pid as i32), pidfd))
}

/// Forks an ordinary child: `Some(pid)` in the parent, `None` in the child.
pub fn fork_plain(_proof: &SingleThreaded) -> Result<Option<Pid>, Errno> {
    // SAFETY: fork(2) is unsafe because a lock may be held by another thread; the proof rules that out.
    let pid = checked(unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) })?;
    Ok((pid != 0).then(|| Pid::from_raw(pid as i32)))
}

/// Leaves at once: no destructors, no atexit handlers, no flushing of the parent's buffers.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit(2) has no conditions.
    unsafe { libc::_exit(code) }
}

/// Has the kernel send us SIGKILL when the parent dies. Cleared by the kernel on a change of uid, so it is set after.
pub fn parent_death_signal() -> Result<(), Errno> {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number by value.
    checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) }.into()).map(drop)
}

/// `PIDFD_SIGNAL_PROCESS_GROUP` of linux/pidfd.h, Linux 6.9.
const PROCESS_GROUP: libc::c_uint = 1 << 2;

/// Sends a signal to the process group that the process of this pidfd leads; before Linux 6.9 to that process alone.
pub fn signal_group(pidfd: BorrowedFd<'_>, signal: libc::c_int) -> Result<(), Errno> {
    let send = |flags: libc::c_uint| {
        let info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: pidfd_send_signal takes a descriptor, which the borrow keeps open, plain numbers, and a siginfo that may
        // be null.
        let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal, info, flags) };
        checked(sent).map(drop)
    };
    match send(PROCESS_GROUP) {
        Err(Errno::EINVAL) => send(0),
        sent => sent,
    }
}
