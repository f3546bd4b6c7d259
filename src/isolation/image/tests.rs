//! What the child shares with the daemon only by number or by shape.

use super::super::fault::{Fault, Step};
use super::super::order::order;
use super::super::plan::{INSIDE_UID, SandboxPlan};
use super::super::warden::protocol::{MESSAGE_MAX, Run, RunNumber, STATUS_LEN, Status, Workspace};
use super::super::warden::wire::FDS_MAX;
use super::super::warden::words::{COUNT_MAX, Words};
use super::*;
use crate::model::{ExecId, Limits, Tcp, Tty};

#[allow(dead_code, missing_docs, reason = "the child's own")]
#[path = "../child/order.rs"]
mod child_order;
#[allow(dead_code, missing_docs, reason = "the child's own")]
#[path = "../child/sheet.rs"]
mod child_sheet;
#[allow(dead_code, missing_docs, reason = "the child's own")]
#[path = "../child/fields.rs"]
mod fields;
use child_sheet as sheet;

/// The child's source, for constants that are private there.
const PROGRAM: &str = include_str!("../child/program.rs");
const ROOM: &str = include_str!("../child/room.rs");
const CALLS: &str = include_str!("../child/calls.rs");
const MAIN: &str = include_str!("../child/main.rs");

const IGNORED: u64 = 1 << 63 | 1;

#[test]
fn what_this_process_ignores_is_seen() {
    // Rust's own start ignores it in every program.
    assert_eq!(ignored_signals() >> (libc::SIGPIPE - 1) & 1, 1);
}

fn plan() -> SandboxPlan {
    let filter = vec![Instruction { code: 0x06, jt: 1, jf: 2, k: 0x7fff_0000 }];
    SandboxPlan::new(c"/tree", Limits::default(), 7, Tcp::None, filter, |name, _| {
        matches!(name, "acpi" | "keys" | "sys")
    })
}

#[test]
fn a_plan_is_read_by_the_child_as_it_was_written() {
    let mut plan = plan();
    plan.sabotage = Some(Step::Exec);
    let bytes = write_sheet(&plan, IGNORED);
    let read = child_sheet::Sheet::read(&bytes).expect("its own sheet");
    assert_eq!((read.sabotage, read.filter_ahead), (Step::Exec as u8, plan.filter_ahead));
    assert_eq!(read.ignored_signals, IGNORED);
    assert_eq!(read.filter, [0x06, 0, 1, 2, 0, 0, 0xff, 0x7f], "struct sock_filter");
    assert_eq!(read.init_filter.len(), 8 * plan.init_filter.len());
    for (read, written) in read.rlimits.iter().zip(rlimits::of(&plan.limits, Life::Once)) {
        assert_eq!((read.resource, read.amount, read.late), (written.number(), written.amount(), written.comes_late()));
    }
    let masks: Vec<_> = read.masks().map(|mask| mask.expect("whole").1.to_str().expect("ASCII")).collect();
    assert_eq!(masks, ["acpi", "keys", "sys"]);
    let kinds: Vec<u8> = read.masks().map(|mask| mask.expect("whole").0 as u8).collect();
    assert_eq!(kinds, [1, 0, 2]);
    let areas: Vec<_> = read.areas().map(|area| area.expect("whole")).collect();
    assert_eq!(areas.len(), plan.areas.len());
    assert!(
        areas.iter().zip(&plan.areas).all(|(read, (path, options))| *read == (path.as_c_str(), options.as_c_str()))
    );
    let landlock = read.landlock.expect("ABI 7 has it");
    let rules: Vec<_> = landlock.rules().map(|rule| rule.expect("whole")).collect();
    assert_eq!(rules.len(), 2 + Area::ALL.len());
    let wanted = landlock::wanted(7, Tcp::None).expect("ABI 7 has it");
    assert_eq!(rules[0], (c"/", wanted.read));
    assert_eq!((landlock.attributes, landlock.attributes_len, landlock.write), (wanted.attributes, 24, wanted.write));
}

#[test]
fn a_sheet_that_is_cut_short_is_none() {
    let bytes = write_sheet(&plan(), IGNORED);
    for len in 0..bytes.len() {
        assert!(child_sheet::Sheet::read(&bytes[..len]).is_none(), "{len} of {} bytes", bytes.len());
    }
}

#[test]
fn without_landlock_the_child_is_told_of_none() {
    let plan = SandboxPlan::new(c"/tree", Limits::default(), 0, Tcp::None, Vec::new(), |_, _| false);
    assert!(child_sheet::Sheet::read(&write_sheet(&plan, IGNORED)).expect("its own sheet").landlock.is_none());
    assert_eq!(
        landlock::wanted(1, Tcp::None).map(|wanted| (wanted.attributes_len, wanted.attributes[1])),
        Some((8, 0))
    );
    assert_eq!(
        landlock::wanted(4, Tcp::None).map(|wanted| (wanted.attributes_len, wanted.attributes[2])),
        Some((16, 0))
    );
}

fn run() -> Run {
    Run {
        number: RunNumber(7),
        profile: 0,
        set: 0,
        exec: ExecId::generate(),
        limits: Limits::default(),
        workspace: Workspace::Project("p".parse().expect("an id")),
        life: Life::Session,
        signals: true,
        tty: Some(Tty { cols: 80, rows: 25 }),
        words: Words::new("sh", "src", ["sh", "-c", ""], ["PATH=/bin", "A="]).expect("short words"),
    }
}

#[test]
fn an_order_is_read_by_the_child_as_it_was_written() {
    let (run, bytes) = (run(), order(&run()));
    let read = child_order::Order::read(&bytes).expect("its own order");
    assert!(read.files == child_order::Files::Project && read.session && read.signals);
    assert_eq!((read.terminal, usize::from(read.fds)), (Some((25, 80)), run.fds()));
    assert_eq!((read.command, read.cwd), (c"sh", c"src"));
    assert_eq!(read.argv().collect::<Vec<_>>(), [c"sh", c"-c", c""]);
    assert_eq!(read.env().collect::<Vec<_>>(), [c"PATH=/bin", c"A="]);
    assert_eq!(read.rlimits, rlimits::of(&run.limits, Life::Session).map(rlimits::Rlimit::amount));
}

#[test]
fn an_order_that_is_cut_short_or_followed_by_something_is_none() {
    let mut bytes = order(&run());
    for len in 0..bytes.len() {
        assert!(child_order::Order::read(&bytes[..len]).is_none(), "{len} of {} bytes", bytes.len());
    }
    bytes.push(0);
    assert!(child_order::Order::read(&bytes).is_none());
}

/// The value of a constant in the child's source.
fn constant(source: &str, name: &str) -> String {
    let line = source.lines().find(|line| line.contains(&format!("const {name}:")));
    let value = line.and_then(|line| line.split_once('=')).map(|(_, value)| value.trim().trim_end_matches(';'));
    value.unwrap_or_else(|| panic!("the child has no {name}")).to_owned()
}

#[test]
fn what_the_child_has_by_value_is_what_the_daemon_has() {
    use super::super::plan::{WORK, WORKSPACE};
    use super::super::warden::protocol::{GO, PIDFD, RUN_FDS, WAITING};
    assert_eq!(constant(PROGRAM, "INSIDE_UID"), INSIDE_UID.to_string());
    assert_eq!(constant(PROGRAM, "WORKSPACE"), format!("c{WORKSPACE:?}"));
    assert_eq!(constant(PROGRAM, "WORK"), format!("c{WORK:?}"));
    assert_eq!(constant(PROGRAM, "ARTIFACTS"), format!("c{:?}", Area::Artifacts.path()));
    assert_eq!(constant(PROGRAM, "STDIO"), RUN_FDS.to_string());
    for (name, byte) in [("GO", GO), ("PIDFD", PIDFD), ("WAITING", WAITING)] {
        assert_eq!(constant(PROGRAM, name), format!("b'{}'", char::from(byte)));
    }
    assert_eq!(constant(ROOM, "ORDER_MAX"), "256 * 1024 + 1024");
    assert_eq!(MESSAGE_MAX, 256 * 1024 + 1024);
    assert_eq!(constant(ROOM, "WORDS_MAX"), COUNT_MAX.to_string());
    assert_eq!(constant(CALLS, "FDS_MAX"), FDS_MAX.to_string());
}

#[test]
fn the_childs_status_record_is_the_protocols() {
    let status = Status::Fault(Fault { step: Step::Exec, index: 0x0102, errno: 0x0304_0506 });
    let record = status.encode();
    // As `status_record` of child/main.rs lays it out: version, tag, step, 0, index, 0, 0, number.
    assert_eq!(record.len(), STATUS_LEN);
    assert_eq!(record, [1, 1, Step::Exec as u8, 0, 2, 1, 0, 0, 6, 5, 4, 3]);
    assert!(MAIN.contains("record[..3].copy_from_slice(&[VERSION, tag, step])"), "version, tag, step");
    assert!(MAIN.contains("record[4..6].copy_from_slice(&index.to_le_bytes())"), "then the index");
    assert!(MAIN.contains("record[8..].copy_from_slice(&number.to_le_bytes())"), "then the number");
}

#[test]
fn the_childs_numbers_are_the_kernels() {
    use numbers::*;
    macro_rules! same {
        ($($ours:ident = $theirs:expr,)*) => { $(assert_eq!($ours as i128, $theirs as i128, stringify!($ours));)* };
    }
    same! {
        SYS_WRITE = libc::SYS_write, SYS_CLOSE = libc::SYS_close, SYS_MMAP = libc::SYS_mmap,
        SYS_RT_SIGACTION = libc::SYS_rt_sigaction, SYS_RT_SIGPROCMASK = libc::SYS_rt_sigprocmask,
        SYS_IOCTL = libc::SYS_ioctl, SYS_GETPID = libc::SYS_getpid, SYS_SOCKET = libc::SYS_socket,
        SYS_SENDTO = libc::SYS_sendto, SYS_RECVFROM = libc::SYS_recvfrom, SYS_SENDMSG = libc::SYS_sendmsg,
        SYS_RECVMSG = libc::SYS_recvmsg, SYS_CLONE = libc::SYS_clone, SYS_EXECVE = libc::SYS_execve,
        SYS_WAIT4 = libc::SYS_wait4, SYS_FCNTL = libc::SYS_fcntl, SYS_CHDIR = libc::SYS_chdir,
        SYS_FCHDIR = libc::SYS_fchdir, SYS_FCHMOD = libc::SYS_fchmod, SYS_FCHOWN = libc::SYS_fchown,
        SYS_UMASK = libc::SYS_umask, SYS_SETSID = libc::SYS_setsid, SYS_SETGROUPS = libc::SYS_setgroups,
        SYS_SETRESUID = libc::SYS_setresuid, SYS_SETRESGID = libc::SYS_setresgid, SYS_CAPSET = libc::SYS_capset,
        SYS_PIVOT_ROOT = libc::SYS_pivot_root, SYS_PRCTL = libc::SYS_prctl, SYS_MOUNT = libc::SYS_mount,
        SYS_UMOUNT2 = libc::SYS_umount2, SYS_SETHOSTNAME = libc::SYS_sethostname, SYS_EXIT_GROUP = libc::SYS_exit_group,
        SYS_OPENAT = libc::SYS_openat, SYS_PPOLL = libc::SYS_ppoll, SYS_UNSHARE = libc::SYS_unshare,
        SYS_DUP3 = libc::SYS_dup3, SYS_PRLIMIT64 = libc::SYS_prlimit64, SYS_SECCOMP = libc::SYS_seccomp,
        SYS_MOVE_MOUNT = libc::SYS_move_mount, SYS_PIDFD_OPEN = libc::SYS_pidfd_open,
        SYS_CLOSE_RANGE = libc::SYS_close_range, SYS_OPENAT2 = libc::SYS_openat2,
        SYS_LANDLOCK_CREATE_RULESET = libc::SYS_landlock_create_ruleset,
        SYS_LANDLOCK_ADD_RULE = libc::SYS_landlock_add_rule, SYS_LANDLOCK_RESTRICT_SELF = libc::SYS_landlock_restrict_self,
        EINTR = libc::EINTR, ENOENT = libc::ENOENT, EBADF = libc::EBADF, ECHILD = libc::ECHILD, EACCES = libc::EACCES,
        ENOTDIR = libc::ENOTDIR, EINVAL = libc::EINVAL, EPIPE = libc::EPIPE, ENAMETOOLONG = libc::ENAMETOOLONG,
        EPROTO = libc::EPROTO, EBADMSG = libc::EBADMSG, EMSGSIZE = libc::EMSGSIZE, EHWPOISON = libc::EHWPOISON,
        O_WRONLY = libc::O_WRONLY, O_RDWR = libc::O_RDWR, O_NOCTTY = libc::O_NOCTTY, O_NONBLOCK = libc::O_NONBLOCK,
        O_ASYNC = libc::O_ASYNC, O_CLOEXEC = libc::O_CLOEXEC, O_PATH = libc::O_PATH, O_DIRECTORY = libc::O_DIRECTORY,
        RESOLVE_NO_MAGICLINKS = libc::RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS = libc::RESOLVE_NO_SYMLINKS,
        RESOLVE_BENEATH = libc::RESOLVE_BENEATH,
        F_SETFD = libc::F_SETFD, F_SETFL = libc::F_SETFL, F_SETOWN = libc::F_SETOWN,
        F_DUPFD_CLOEXEC = libc::F_DUPFD_CLOEXEC, CLOSE_RANGE_CLOEXEC = libc::CLOSE_RANGE_CLOEXEC,
        PROT_READ = libc::PROT_READ, MAP_PRIVATE = libc::MAP_PRIVATE,
        CLONE_NEWCGROUP = libc::CLONE_NEWCGROUP, SIGINT = libc::SIGINT, SIGKILL = libc::SIGKILL, SIGCHLD = libc::SIGCHLD,
        SIG_SETMASK = libc::SIG_SETMASK, WNOHANG = libc::WNOHANG, WALL = libc::__WALL, POLLHUP = libc::POLLHUP,
        MS_RDONLY = libc::MS_RDONLY, MS_NOSUID = libc::MS_NOSUID, MS_NODEV = libc::MS_NODEV, MS_NOEXEC = libc::MS_NOEXEC,
        MS_REMOUNT = libc::MS_REMOUNT, MS_BIND = libc::MS_BIND, MS_REC = libc::MS_REC, MS_PRIVATE = libc::MS_PRIVATE,
        MNT_DETACH = libc::MNT_DETACH, MOVE_MOUNT_F_EMPTY_PATH = libc::MOVE_MOUNT_F_EMPTY_PATH,
        AF_INET = libc::AF_INET, SOCK_DGRAM = libc::SOCK_DGRAM, SOCK_CLOEXEC = libc::SOCK_CLOEXEC,
        SOL_SOCKET = libc::SOL_SOCKET, SCM_RIGHTS = libc::SCM_RIGHTS, MSG_CTRUNC = libc::MSG_CTRUNC,
        MSG_TRUNC = libc::MSG_TRUNC, MSG_NOSIGNAL = libc::MSG_NOSIGNAL, MSG_CMSG_CLOEXEC = libc::MSG_CMSG_CLOEXEC,
        SIOCSIFFLAGS = libc::SIOCSIFFLAGS, IFF_UP = libc::IFF_UP, IFF_RUNNING = libc::IFF_RUNNING,
        TIOCSCTTY = libc::TIOCSCTTY, TIOCSWINSZ = libc::TIOCSWINSZ, TIOCSPTLCK = libc::TIOCSPTLCK,
        TIOCGPTPEER = libc::TIOCGPTPEER,
        PR_SET_PDEATHSIG = libc::PR_SET_PDEATHSIG, PR_SET_DUMPABLE = libc::PR_SET_DUMPABLE,
        PR_SET_NAME = libc::PR_SET_NAME, PR_CAPBSET_DROP = libc::PR_CAPBSET_DROP,
        PR_SET_SECUREBITS = libc::PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS = libc::PR_SET_NO_NEW_PRIVS,
        PR_CAP_AMBIENT = libc::PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = libc::PR_CAP_AMBIENT_CLEAR_ALL,
        SECCOMP_SET_MODE_FILTER = libc::SECCOMP_SET_MODE_FILTER,
    }
    assert_eq!(AT_FDCWD as i32, libc::AT_FDCWD);
    assert_eq!(size_of::<libc::msghdr>(), 56, "child/calls.rs lays it out by hand");
    assert_eq!(size_of::<libc::cmsghdr>(), 16);
    assert_eq!(size_of::<libc::ifreq>(), 40);
}

#[test]
fn neither_file_can_be_changed_by_anybody() {
    let all = SealFlag::F_SEAL_SEAL | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
    for sealed in [program().expect("the program"), super::sheet(&plan()).expect("a sheet")] {
        let seals = fcntl(&sealed.file, FcntlArg::F_GET_SEALS).expect("a memory file");
        assert_eq!(seals & all.bits(), all.bits());
        assert!(write(&sealed.file, b"x").is_err(), "it is open to be read");
    }
}
