//! The system calls of this program, one function each; beside `start.rs` and `room.rs` all that is unsafe here.
//!
//! Descriptors are plain numbers: this process ends by execve or `_exit`, and what must not outlive either is
//! close-on-exec. Every function gives back the kernel's own error.

use super::numbers::*;
use core::arch::asm;
use core::ffi::CStr;

/// An error number of the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

/// An open descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fd(pub i32);

/// What a call comes to.
pub type Done<T = ()> = Result<T, Errno>;

/// Makes a call. The caller vouches for what its arguments point to.
#[cfg(target_arch = "x86_64")]
unsafe fn raw(number: usize, a: [usize; 6]) -> isize {
    let returned: isize;
    // SAFETY: the instruction changes rax, rcx and r11, which are named; what the kernel does with memory is the caller's.
    unsafe {
        asm!(
            "syscall", inlateout("rax") number => returned, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack),
        );
    }
    returned
}

/// Makes a call. The caller vouches for what its arguments point to.
#[cfg(target_arch = "aarch64")]
unsafe fn raw(number: usize, a: [usize; 6]) -> isize {
    let returned: isize;
    // SAFETY: the instruction changes x0, which is named; what the kernel does with memory is the caller's.
    unsafe {
        asm!(
            "svc 0", in("x8") number, inlateout("x0") a[0] => returned, in("x1") a[1], in("x2") a[2], in("x3") a[3],
            in("x4") a[4], in("x5") a[5], options(nostack),
        );
    }
    returned
}

/// Makes a call whose pointers are good: checked, or nothing but numbers. Not for callers outside this file.
fn call<const N: usize>(number: usize, arguments: [usize; N]) -> Done<usize> {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    // SAFETY: every caller in this file passes numbers, C strings, or slices and structures with their own size, all of which
    // outlive the call; where the kernel writes, it is into a buffer that the caller holds alone.
    let returned = unsafe { raw(number, all) };
    if (-4095..0).contains(&returned) { Err(Errno(-returned as i32)) } else { Ok(returned as usize) }
}

fn done(returned: Done<usize>) -> Done {
    returned.map(drop)
}

fn at(path: &CStr) -> usize {
    path.as_ptr().expose_provenance()
}

fn maybe_at(path: Option<&CStr>) -> usize {
    path.map_or(0, at)
}

fn place<T: ?Sized>(of: &T) -> usize {
    core::ptr::from_ref(of).cast::<u8>().expose_provenance()
}

/// The same where the kernel writes.
fn writable<T>(of: &mut T) -> usize {
    core::ptr::from_mut(of).expose_provenance()
}

fn number(fd: Fd) -> usize {
    fd.0 as usize
}

/// Leaves at once.
pub fn exit_now(code: i32) -> ! {
    loop {
        let _ = call(SYS_EXIT_GROUP, [code as usize]); // it does not come back
    }
}

/// Sleeps until a signal ends us.
pub fn rest() -> ! {
    loop {
        let _ = call(SYS_PPOLL, [0, 0, 0, 0, 0]); // no descriptors, no time: like pause(2), which not every machine has
    }
}

pub fn write(fd: Fd, bytes: &[u8]) -> Done {
    done(call(SYS_WRITE, [number(fd), place(bytes), bytes.len()]))
}

/// A pipe: where it is read, where it is written.
pub fn pipe() -> Done<[Fd; 2]> {
    let mut ends = [0i32; 2];
    call(SYS_PIPE2, [writable(&mut ends), O_CLOEXEC])?;
    Ok(ends.map(Fd))
}

/// Waits for one byte; none if nobody can write any more.
pub fn read_byte(pipe: Fd) -> Done<Option<u8>> {
    let mut byte = [0u8];
    loop {
        match call(SYS_READ, [number(pipe), writable(&mut byte), 1]) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(byte[0])),
            Err(Errno(EINTR)) => {}
            Err(errno) => return Err(errno),
        }
    }
}

pub fn close(fd: Fd) -> Done {
    done(call(SYS_CLOSE, [number(fd)]))
}

/// Closes every descriptor from `first` to `last`.
fn close_range(first: usize, last: usize, flags: usize) -> Done {
    done(call(SYS_CLOSE_RANGE, [first, last, flags]))
}

/// Closes every descriptor but those in `keep`, which must be sorted.
pub fn close_all_but(keep: &[Fd]) -> Done {
    let mut first = 0;
    for &fd in keep {
        if number(fd) > first {
            close_range(first, number(fd) - 1, 0)?;
        }
        first = number(fd) + 1;
    }
    close_range(first, u32::MAX as usize, 0)
}

/// Has execve close every descriptor from `first` on.
pub fn close_on_exec_from(first: Fd) -> Done {
    close_range(number(first), u32::MAX as usize, CLOSE_RANGE_CLOEXEC)
}

/// Puts a copy of `fd` at this place, open across execve.
pub fn dup_to(fd: Fd, place: i32) -> Done {
    done(call(SYS_DUP3, [number(fd), place as usize, 0]))
}

/// A copy of `fd` at the lowest free number from `least` on, close-on-exec.
pub fn dup_from(fd: Fd, least: i32) -> Done<Fd> {
    call(SYS_FCNTL, [number(fd), F_DUPFD_CLOEXEC, least as usize]).map(|fd| Fd(fd as i32))
}

/// Keeps a descriptor open across execve.
pub fn keep_open(fd: Fd) -> Done {
    done(call(SYS_FCNTL, [number(fd), F_SETFD, 0]))
}

/// From here on whatever comes in on this descriptor is SIGINT for our process group: no pid is looked up when it
/// happens, and nobody but the kernel sends it.
pub fn interrupt_on_input(fd: Fd) -> Done {
    let group = own_pid().wrapping_neg();
    for (command, value) in [(F_SETSIG, SIGINT), (F_SETOWN, group), (F_SETFL, O_ASYNC | O_NONBLOCK)] {
        call(SYS_FCNTL, [number(fd), command, value])?;
    }
    Ok(())
}

pub fn own_pid() -> usize {
    call(SYS_GETPID, []).unwrap_or(0) // it can't fail
}

pub fn open(path: &CStr, flags: usize) -> Done<Fd> {
    call(SYS_OPENAT, [AT_FDCWD, at(path), flags | O_CLOEXEC, 0]).map(|fd| Fd(fd as i32))
}

/// openat2(2): a directory by a path that leads through no link and not out of `below`.
pub fn open_directory_beneath(below: Fd, path: &CStr) -> Done<Fd> {
    let resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
    let how: [u64; 3] = [(O_PATH | O_DIRECTORY | O_CLOEXEC) as u64, 0, resolve];
    call(SYS_OPENAT2, [number(below), at(path), place(&how), size_of_val(&how)]).map(|fd| Fd(fd as i32))
}

pub fn change_directory(path: &CStr) -> Done {
    done(call(SYS_CHDIR, [at(path)]))
}

pub fn enter_directory(fd: Fd) -> Done {
    done(call(SYS_FCHDIR, [number(fd)]))
}

/// Maps a file to be read, for as long as we live.
pub fn map(fd: Fd, len: usize) -> Done<&'static [u8]> {
    let start = call(SYS_MMAP, [0, len, PROT_READ, MAP_PRIVATE, number(fd), 0])?;
    let start = core::ptr::with_exposed_provenance::<u8>(start);
    // SAFETY: the kernel has mapped so many bytes there, nothing unmaps them, and the file is sealed against change.
    Ok(unsafe { core::slice::from_raw_parts(start, len) })
}

// ── sockets

/// `struct msghdr` with one `iovec`.
#[repr(C)]
struct Message {
    name: usize,
    name_len: u32,
    parts: usize,
    parts_len: usize,
    control: usize,
    control_len: usize,
    flags: i32,
}

/// `struct cmsghdr` and room for as many descriptors as come beside a message (`wire::FDS_MAX`, and one for alignment).
#[repr(C, align(8))]
struct Control {
    len: usize,
    level: i32,
    kind: i32,
    fds: [i32; FDS_MAX + 1],
}

/// Most descriptors beside one message.
pub const FDS_MAX: usize = 9;
/// Bytes of a `cmsghdr`.
const CONTROL_HEADER: usize = 16;

/// Sends bytes; a peer that is gone is an error, never a signal.
pub fn send(socket: Fd, bytes: &[u8]) -> Done {
    done(call(SYS_SENDTO, [number(socket), place(bytes), bytes.len(), MSG_NOSIGNAL, 0, 0]))
}

/// Sends bytes with one descriptor beside them.
pub fn send_with(socket: Fd, bytes: &[u8], fd: Fd) -> Done {
    let mut fds = [0; FDS_MAX + 1];
    fds[0] = fd.0;
    let control = Control { len: CONTROL_HEADER + size_of::<i32>(), level: SOL_SOCKET, kind: SCM_RIGHTS, fds };
    let part = [place(bytes), bytes.len()];
    let message = Message {
        name: 0,
        name_len: 0,
        parts: place(&part),
        parts_len: 1,
        control: place(&control),
        control_len: CONTROL_HEADER + 8, // CMSG_SPACE of one descriptor
        flags: 0,
    };
    done(call(SYS_SENDMSG, [number(socket), place(&message), MSG_NOSIGNAL]))
}

/// Waits for one byte; none if the peer is gone.
pub fn receive_byte(socket: Fd) -> Done<Option<u8>> {
    let mut byte = [0u8];
    loop {
        let buffer = writable(&mut byte);
        match call(SYS_RECVFROM, [number(socket), buffer, 1, 0, 0, 0]) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(byte[0])),
            Err(Errno(EINTR)) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Waits for one datagram: its length and its descriptors, close-on-exec. One that does not fit is EMSGSIZE.
pub fn receive(socket: Fd, buffer: &mut [u8]) -> Done<(usize, Fds)> {
    let mut control = Control { len: 0, level: 0, kind: 0, fds: [-1; FDS_MAX + 1] };
    let part = [buffer.as_mut_ptr().expose_provenance(), buffer.len()];
    let mut message = Message {
        name: 0,
        name_len: 0,
        parts: place(&part),
        parts_len: 1,
        control: writable(&mut control),
        control_len: size_of::<Control>(),
        flags: 0,
    };
    let len = loop {
        let header = writable(&mut message);
        match call(SYS_RECVMSG, [number(socket), header, MSG_CMSG_CLOEXEC]) {
            Err(Errno(EINTR)) => {}
            received => break received?,
        }
    };
    if message.flags & (MSG_TRUNC | MSG_CTRUNC) != 0 {
        return Err(Errno(EMSGSIZE));
    }
    let has = message.control_len >= CONTROL_HEADER && control.level == SOL_SOCKET && control.kind == SCM_RIGHTS;
    let count = if has { (control.len - CONTROL_HEADER) / size_of::<i32>() } else { 0 };
    Ok((len, Fds { fds: control.fds, count: count.min(FDS_MAX) }))
}

/// Descriptors that came beside a message.
pub struct Fds {
    fds: [i32; FDS_MAX + 1],
    count: usize,
}

impl Fds {
    pub fn as_slice(&self) -> &[i32] {
        &self.fds[..self.count]
    }
}

/// Whether the other end of a socket is closed.
pub fn is_hung_up(socket: Fd) -> Done<bool> {
    #[repr(C)]
    struct Poll {
        fd: i32,
        events: i16,
        revents: i16,
    }
    let mut poll = Poll { fd: socket.0, events: 0, revents: 0 };
    let at_once: [u64; 2] = [0, 0];
    call(SYS_PPOLL, [writable(&mut poll), 1, place(&at_once), 0, 0])?;
    Ok(poll.revents & POLLHUP != 0)
}

/// Brings the loopback interface of this network namespace up.
pub fn loopback_up() -> Done {
    /// `struct ifreq`: a name of 16 bytes, then a union of 24.
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        flags: i16,
        rest: [u8; 22],
    }
    let socket = Fd(call(SYS_SOCKET, [AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0])? as i32);
    let mut request = Request { name: [0; 16], flags: IFF_UP | IFF_RUNNING, rest: [0; 22] };
    request.name[..2].copy_from_slice(b"lo");
    let up = ioctl(socket, SIOCSIFFLAGS, place(&request));
    close(socket)?;
    done(up)
}

// ── terminals

/// The argument is a number, or points to what the request wants; private, as only callers here know which.
fn ioctl(fd: Fd, request: usize, argument: usize) -> Done<usize> {
    call(SYS_IOCTL, [number(fd), request, argument])
}

pub fn unlock_terminal(master: Fd) -> Done {
    let unlocked = 0i32;
    done(ioctl(master, TIOCSPTLCK, place(&unlocked)))
}

/// The other end of a terminal, by descriptor and not by name.
pub fn terminal_peer(master: Fd) -> Done<Fd> {
    ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC).map(|fd| Fd(fd as i32))
}

pub fn set_terminal_size(master: Fd, rows: u16, cols: u16) -> Done {
    let size: [u16; 4] = [rows, cols, 0, 0];
    done(ioctl(master, TIOCSWINSZ, place(&size)))
}

pub fn take_terminal(fd: Fd) -> Done {
    done(ioctl(fd, TIOCSCTTY, 0))
}

pub fn change_owner(fd: Fd, uid: u32, gid: u32) -> Done {
    done(call(SYS_FCHOWN, [number(fd), uid as usize, gid as usize]))
}

pub fn change_mode(fd: Fd, mode: usize) -> Done {
    done(call(SYS_FCHMOD, [number(fd), mode]))
}

// ── mounts and namespaces

pub fn mount(source: Option<&CStr>, target: &CStr, kind: Option<&CStr>, flags: usize, data: Option<&CStr>) -> Done {
    done(call(SYS_MOUNT, [maybe_at(source), at(target), maybe_at(kind), flags, maybe_at(data)]))
}

pub fn unmount_lazily(target: &CStr) -> Done {
    done(call(SYS_UMOUNT2, [at(target), MNT_DETACH]))
}

pub fn pivot_root(new: &CStr, old: &CStr) -> Done {
    done(call(SYS_PIVOT_ROOT, [at(new), at(old)]))
}

/// Attaches a detached tree.
pub fn move_mount(tree: Fd, target: &CStr) -> Done {
    done(call(SYS_MOVE_MOUNT, [number(tree), at(c""), AT_FDCWD, at(target), MOVE_MOUNT_F_EMPTY_PATH]))
}

pub fn new_cgroup_namespace() -> Done {
    done(call(SYS_UNSHARE, [CLONE_NEWCGROUP]))
}

pub fn set_host_name(name: &[u8]) -> Done {
    done(call(SYS_SETHOSTNAME, [place(name), name.len()]))
}

// ── processes

/// Forks: the child's pid in the parent, none in the child. There is one thread, so nothing else stands still half-way.
pub fn fork() -> Done<Option<i32>> {
    let pid = call(SYS_CLONE, [SIGCHLD, 0, 0, 0, 0])?;
    Ok((pid != 0).then_some(pid as i32))
}

/// What `wait` is to do if nobody has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Wait for it.
    Wait,
    /// Come back. Whoever was cloned to end without a signal is looked for as well.
    Look,
}

/// Any child that has ended, with its status as the kernel gives it; none if all live.
pub fn wait(patience: Patience) -> Done<Option<(i32, i32)>> {
    let mut status = 0i32;
    let options = if patience == Patience::Look { WNOHANG | WALL } else { 0 };
    let pid = call(SYS_WAIT4, [-1isize as usize, writable(&mut status), options, 0])?;
    Ok((pid != 0).then_some((pid as i32, status)))
}

pub fn own_pidfd() -> Done<Fd> {
    call(SYS_PIDFD_OPEN, [own_pid(), 0]).map(|fd| Fd(fd as i32))
}

/// Replaces this process; comes back only on failure. Both lists end with a null pointer and hold pointers to C strings.
pub fn execute(path: &CStr, argv: &[*const u8], envp: &[*const u8]) -> Errno {
    let ends = |list: &[*const u8]| list.last().is_some_and(|last| last.is_null());
    if !ends(argv) || !ends(envp) {
        return Errno(EINVAL);
    }
    match call(SYS_EXECVE, [at(path), place(argv), place(envp)]) {
        Err(errno) => errno,
        Ok(_) => Errno(EINVAL), // it does not come back
    }
}

pub fn new_session() -> Done {
    done(call(SYS_SETSID, []))
}

pub fn set_umask(mask: usize) {
    let _ = call(SYS_UMASK, [mask]); // it can't fail
}

/// Default disposition for the signals that the warden ignores (bit 0 is signal 1), and an empty mask: neither is the
/// program's business. Handlers are gone since we were executed.
pub fn reset_signals(ignored: u64) -> Done {
    /// `_NSIG`.
    const SIGNALS: usize = 64;
    let default: [u64; 4] = [0; 4];
    let none: u64 = 0;
    for signal in (1..=SIGNALS).filter(|signal| ignored >> (signal - 1) & 1 == 1) {
        let _ = call(SYS_RT_SIGACTION, [signal, place(&default), 0, size_of_val(&none)]); // KILL and STOP are EINVAL
    }
    done(call(SYS_RT_SIGPROCMASK, [SIG_SETMASK, place(&none), 0, size_of_val(&none)]))
}

/// Sets a limit, soft and hard alike. An amount above what we were given becomes that: raising it needs a right that the
/// daemon may lack, and less than asked for is never a hole.
pub fn limit(resource: u32, amount: u64) -> Done {
    let set = |amount: u64| {
        let new: [u64; 2] = [amount; 2];
        done(call(SYS_PRLIMIT64, [0, resource as usize, place(&new), 0]))
    };
    match set(amount) {
        Err(Errno(EPERM)) => {
            let mut old: [u64; 2] = [0; 2];
            call(SYS_PRLIMIT64, [0, resource as usize, 0, writable(&mut old)])?;
            set(amount.min(old[1]))
        }
        done => done,
    }
}

// ── rights

/// Only options that take plain numbers, or a name that outlives the call.
fn prctl(option: usize, value: usize) -> Done<usize> {
    call(SYS_PRCTL, [option, value, 0, 0, 0])
}

/// For ps; a name that does not take is no reason to stop.
pub fn set_name(name: &CStr) {
    let _ = prctl(PR_SET_NAME, at(name));
}

/// SIGKILL for us when the parent dies.
pub fn parent_death_signal() -> Done {
    done(prctl(PR_SET_PDEATHSIG, SIGKILL))
}

pub fn clear_ambient() -> Done {
    done(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL))
}

/// Empties the bounding set. Needs CAP_SETPCAP.
pub fn drop_bounding_set() -> Done {
    for capability in 0..64 {
        match prctl(PR_CAPBSET_DROP, capability) {
            Ok(_) => {}
            Err(Errno(EINVAL)) => return Ok(()), // past the kernel's last capability
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

pub fn lock_securebits() -> Done {
    done(prctl(PR_SET_SECUREBITS, SECUREBITS))
}

pub fn set_not_dumpable() -> Done {
    done(prctl(PR_SET_DUMPABLE, 0))
}

pub fn set_no_new_privs() -> Done {
    done(prctl(PR_SET_NO_NEW_PRIVS, 1))
}

/// Empties effective, permitted and inheritable.
pub fn clear_capabilities() -> Done {
    let header: [u32; 2] = [CAPABILITY_VERSION_3, 0];
    let none: [u32; 6] = [0; 6];
    done(call(SYS_CAPSET, [place(&header), place(&none)]))
}

/// Becomes this user and group and no other, without further groups: groups, then gid, then uid, as the other way round
/// the first two would be refused.
pub fn become_user(id: u32) -> Done {
    let id = id as usize;
    call(SYS_SETGROUPS, [0, 0])?;
    call(SYS_SETRESGID, [id, id, id])?;
    done(call(SYS_SETRESUID, [id, id, id]))
}

/// Loads a filter: `program` is an array of the kernel's `sock_filter`, eight bytes each.
pub fn load_filter(program: &[u8]) -> Done {
    #[repr(C)]
    struct Program {
        len: u16,
        filter: usize,
    }
    let prog = Program { len: (program.len() / 8) as u16, filter: place(program) };
    done(call(SYS_SECCOMP, [SECCOMP_SET_MODE_FILTER, 0, place(&prog)]))
}

// ── Landlock

/// A ruleset that refuses what `attributes` names; so many bytes of it as this kernel's ABI has.
pub fn landlock_ruleset(attributes: &[u64; 3], len: usize) -> Done<Fd> {
    call(SYS_LANDLOCK_CREATE_RULESET, [place(attributes), len.min(24), 0]).map(|fd| Fd(fd as i32))
}

/// Lets all below `path` be accessed so.
pub fn landlock_allow(rules: Fd, path: &CStr, access: u64) -> Done {
    #[repr(C, packed)]
    struct Beneath {
        access: u64,
        parent: i32,
    }
    let parent = open(path, O_PATH)?;
    let rule = Beneath { access, parent: parent.0 };
    let added = call(SYS_LANDLOCK_ADD_RULE, [number(rules), LANDLOCK_RULE_PATH_BENEATH, place(&rule), 0]);
    close(parent)?;
    done(added)
}

/// Puts the wall up around us. Needs no_new_privs.
pub fn landlock_restrict(rules: Fd) -> Done {
    done(call(SYS_LANDLOCK_RESTRICT_SELF, [number(rules), 0]))
}
