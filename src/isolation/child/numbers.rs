//! Numbers of the kernel: calls, flags, requests. This program has no C library to take them from; a test of the daemon
//! compares each with the one that the `libc` crate has (`isolation/image.rs`).

macro_rules! calls {
    ($($name:ident $x86_64:literal $aarch64:literal)*) => {
        $(
            #[cfg(target_arch = "x86_64")]
            pub const $name: usize = $x86_64;
            #[cfg(target_arch = "aarch64")]
            pub const $name: usize = $aarch64;
        )*
    };
}

calls! {
    SYS_READ 0 63
    SYS_WRITE 1 64
    SYS_CLOSE 3 57
    SYS_MMAP 9 222
    SYS_RT_SIGACTION 13 134
    SYS_RT_SIGPROCMASK 14 135
    SYS_IOCTL 16 29
    SYS_GETPID 39 172
    SYS_SOCKET 41 198
    SYS_SENDTO 44 206
    SYS_RECVFROM 45 207
    SYS_SENDMSG 46 211
    SYS_RECVMSG 47 212
    SYS_CLONE 56 220
    SYS_EXECVE 59 221
    SYS_WAIT4 61 260
    SYS_FCNTL 72 25
    SYS_CHDIR 80 49
    SYS_FCHDIR 81 50
    SYS_FCHMOD 91 52
    SYS_FCHOWN 93 55
    SYS_UMASK 95 166
    SYS_SETSID 112 157
    SYS_SETGROUPS 116 159
    SYS_SETRESUID 117 147
    SYS_SETRESGID 119 149
    SYS_CAPSET 126 91
    SYS_PIVOT_ROOT 155 41
    SYS_PRCTL 157 167
    SYS_MOUNT 165 40
    SYS_UMOUNT2 166 39
    SYS_SETHOSTNAME 170 161
    SYS_EXIT_GROUP 231 94
    SYS_OPENAT 257 56
    SYS_PPOLL 271 73
    SYS_UNSHARE 272 97
    SYS_DUP3 292 24
    SYS_PIPE2 293 59
    SYS_PRLIMIT64 302 261
    SYS_SECCOMP 317 277
    SYS_MOVE_MOUNT 429 429
    SYS_PIDFD_OPEN 434 434
    SYS_CLOSE_RANGE 436 436
    SYS_OPENAT2 437 437
    SYS_LANDLOCK_CREATE_RULESET 444 444
    SYS_LANDLOCK_ADD_RULE 445 445
    SYS_LANDLOCK_RESTRICT_SELF 446 446
}

pub const EPERM: i32 = 1;
pub const ENOENT: i32 = 2;
pub const EINTR: i32 = 4;
pub const EBADF: i32 = 9;
pub const ECHILD: i32 = 10;
pub const EACCES: i32 = 13;
pub const ENOTDIR: i32 = 20;
pub const EINVAL: i32 = 22;
pub const EPIPE: i32 = 32;
pub const ENAMETOOLONG: i32 = 36;
pub const EPROTO: i32 = 71;
pub const EBADMSG: i32 = 74;
pub const EMSGSIZE: i32 = 90;
pub const EHWPOISON: i32 = 133;

pub const AT_FDCWD: usize = -100_i32 as usize;
pub const O_WRONLY: usize = 0o1;
pub const O_RDWR: usize = 0o2;
pub const O_NOCTTY: usize = 0o400;
pub const O_NONBLOCK: usize = 0o4000;
pub const O_ASYNC: usize = 0o20000;
pub const O_CLOEXEC: usize = 0o2_000_000;
pub const O_PATH: usize = 0o10_000_000;
#[cfg(target_arch = "x86_64")]
pub const O_DIRECTORY: usize = 0o200_000;
#[cfg(target_arch = "aarch64")]
pub const O_DIRECTORY: usize = 0o40_000;
pub const RESOLVE_NO_MAGICLINKS: u64 = 0x02;
pub const RESOLVE_NO_SYMLINKS: u64 = 0x04;
pub const RESOLVE_BENEATH: u64 = 0x08;

pub const F_SETFD: usize = 2;
pub const F_SETFL: usize = 4;
pub const F_SETOWN: usize = 8;
/// asm-generic/fcntl.h.
pub const F_SETSIG: usize = 10;
pub const F_DUPFD_CLOEXEC: usize = 1030;
pub const CLOSE_RANGE_CLOEXEC: usize = 4;

pub const PROT_READ: usize = 1;
pub const MAP_PRIVATE: usize = 2;

pub const CLONE_NEWCGROUP: usize = 0x0200_0000;
pub const SIGINT: usize = 2;
pub const SIGKILL: usize = 9;
pub const SIGCHLD: usize = 17;
pub const SIG_SETMASK: usize = 2;
pub const WNOHANG: usize = 1;
pub const WALL: usize = 0x4000_0000;
pub const POLLHUP: i16 = 0x10;

pub const MS_RDONLY: usize = 1;
pub const MS_NOSUID: usize = 2;
pub const MS_NODEV: usize = 4;
pub const MS_NOEXEC: usize = 8;
pub const MS_REMOUNT: usize = 32;
pub const MS_BIND: usize = 4096;
pub const MS_REC: usize = 16384;
pub const MS_PRIVATE: usize = 1 << 18;
pub const MNT_DETACH: usize = 2;
pub const MOVE_MOUNT_F_EMPTY_PATH: usize = 4;

pub const AF_INET: usize = 2;
pub const SOCK_DGRAM: usize = 2;
pub const SOCK_CLOEXEC: usize = 0o2_000_000;
pub const SOL_SOCKET: i32 = 1;
pub const SCM_RIGHTS: i32 = 1;
pub const MSG_CTRUNC: i32 = 0x8;
pub const MSG_TRUNC: i32 = 0x20;
pub const MSG_NOSIGNAL: usize = 0x4000;
pub const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;
pub const SIOCSIFFLAGS: usize = 0x8914;
pub const IFF_UP: i16 = 1;
pub const IFF_RUNNING: i16 = 0x40;

pub const TIOCSCTTY: usize = 0x540E;
pub const TIOCSWINSZ: usize = 0x5414;
/// `_IOW('T', 0x31, int)` and `_IO('T', 0x41)` of asm-generic/ioctls.h.
pub const TIOCSPTLCK: usize = 0x4004_5431;
pub const TIOCGPTPEER: usize = 0x5441;

pub const PR_SET_PDEATHSIG: usize = 1;
pub const PR_SET_DUMPABLE: usize = 4;
pub const PR_SET_NAME: usize = 15;
pub const PR_CAPBSET_DROP: usize = 24;
pub const PR_SET_SECUREBITS: usize = 28;
pub const PR_SET_NO_NEW_PRIVS: usize = 38;
pub const PR_CAP_AMBIENT: usize = 47;
pub const PR_CAP_AMBIENT_CLEAR_ALL: usize = 4;
pub const SECCOMP_SET_MODE_FILTER: usize = 1;
pub const LANDLOCK_RULE_PATH_BENEATH: usize = 1;

/// `_LINUX_CAPABILITY_VERSION_3`: two words per set.
pub const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// NOROOT, NO_SETUID_FIXUP and NO_CAP_AMBIENT_RAISE set, KEEP_CAPS clear, all four locked (linux/securebits.h).
pub const SECUREBITS: usize = 0x01 | 0x02 | 0x04 | 0x08 | 0x20 | 0x40 | 0x80;
