//! Pid 2 of a sandbox: gives up its rights, waits for its run, waits for the word and becomes the program.
//!
//! Whatever does not depend on the run is done before the wait: rights, limits of the profile, the filter. What is left
//! when the run comes is a dozen calls, all of which the filter lets through (`seccomp::can_be_loaded_ahead`).
//!
//! An interpreter that waits with its imports done (`executor/session/warm.rs`) is a program like any other here; only
//! its files come later, when it is confined (`Workspace::Later`).

use super::super::fault::Step;
use super::super::landlock::Rules;
use super::super::plan::{Area, INSIDE_UID, SandboxPlan, WORK, WORKSPACE};
use super::super::sys;
use super::super::warden::protocol::{GO, Life, MESSAGE_MAX, PIDFD, RUN_FDS, Request, Run, WAITING, Workspace};
use super::super::warden::words::Words;
use super::super::{rlimits, warden::wire};
use super::init::Handles;
use super::{Steps, terminal};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::prctl::set_name;
use nix::sys::socket::{MsgFlags, recv, send};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Uid, fchdir, setgroups, setresgid, setresuid, setsid};
use std::ffi::{CStr, CString};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};

/// Above anything that could be one of 0, 1, 2 or the status socket.
const FIRST_LIFTED: RawFd = 16;
/// What most orders fit in: touched ahead, so that no fault on it comes later.
const USUAL_ORDER: usize = 4096;

/// Where a session's interpreter finds its calls; its answers and its interrupts are the two after it.
const CONTROL: RawFd = 100;

/// What a run brings: its order and the descriptors beside it.
struct Orders {
    run: Box<Run>,
    fds: Vec<OwnedFd>,
}

/// From the fork to execve. `rules` and `steps` come from init, whose copy of them is its own.
pub(super) fn program_main(plan: &SandboxPlan, handles: &Handles<'_>, rules: Rules, mut steps: Steps) -> ! {
    let [orders, lowered] = steps.take(Step::LowerDescriptors, 0, || lower([handles.orders, handles.status]));
    let (orders, status) = (orders.as_fd(), lowered.as_raw_fd());
    steps.status = status;
    steps.take(Step::NewSession, 0, || setsid().map(drop));
    let ahead = rlimits::of(&plan.limits, Life::Once);
    for (index, limit) in ahead.into_iter().filter(|limit| !limit.comes_late()).enumerate() {
        steps.take(Step::Rlimits, index, || limit.set());
    }
    steps.take(Step::Signals, 0, || {
        umask(Mode::from_bits_truncate(0o022));
        sys::reset_signals()
    });
    steps.take(Step::Securebits, 0, sys::lock_securebits);
    steps.take(Step::BecomeUser, 0, become_user);
    steps.take(Step::ClearCapabilities, 0, || sys::clear_ambient().and_then(|()| sys::clear_capabilities()));
    steps.take(Step::NoNewPrivs, 0, sys::set_no_new_privs);
    if plan.filter_ahead {
        steps.take(Step::SeccompAhead, 0, || sys::load_seccomp(&plan.filter));
    }
    // Not given back: execve takes all of it, and giving back costs a call.
    let mut buffer = ManuallyDrop::new(vec![0u8; MESSAGE_MAX]);
    buffer[..USUAL_ORDER].fill(0xff);
    let _ = set_name(c"sandboxd-parked"); // for ps: it waits for a run
    steps.take(Step::TellWaiting, 0, || tell_waiting(orders));
    let Orders { run, mut fds } = steps.take(Step::ReceiveRun, 0, || receive(orders, &mut buffer));
    let _ = set_name(c"sandboxd-init");
    let control = fds.split_off(RUN_FDS);

    let rules = steps.take(Step::LandlockWorkspace, 0, || match run.workspace {
        Workspace::ThrowAway { .. } => Ok(rules), // the areas that init mounted are in the rules already
        Workspace::Project(_) => rules.allow_write(WORK)?.allow_write(Area::Artifacts.path()),
        Workspace::Later => rules.allow_write(WORKSPACE), // `attach.rs` says why; what is not to be written is mounted so
    });
    let terminal = run.tty.map(|tty| steps.take(Step::OpenTerminal, 0, || terminal::open(tty)));
    let (master, fds) = match terminal {
        Some((master, slaves)) => (Some(master), slaves),
        None => (None, fds),
    };
    steps.take(Step::Stdio, 0, || take_stdio(fds));
    steps.take(Step::Stdio, 1, || take_control(&control));
    if run.life == Life::Session {
        // As the program's user and after the session has begun: the kernel remembers who asked, and for which group.
        steps.take(Step::Stdio, 2, || sys::interrupt_on_input(CONTROL + 2));
    }
    if let Some(master) = master {
        steps.take(Step::Terminal, 0, || terminal::take(master, lowered.as_fd()));
    }
    if run.signals {
        steps.take(Step::OfferSignals, 0, || offer_signals(orders));
    }
    steps.take(Step::EnterCwd, 0, || enter_cwd(run.words.cwd()));
    for (index, (limit, ahead)) in rlimits::of(&run.limits, run.life).into_iter().zip(ahead).enumerate() {
        if limit != ahead || limit.comes_late() {
            steps.take(Step::NarrowRlimits, index, || limit.set());
        }
    }
    steps.take(Step::Landlock, 0, || rules.restrict_without_new_privs());

    // Everything execve needs is laid out before the filter is on.
    let candidates = candidates(&run.words);
    let argv = pointers(run.words.argv());
    let envp = pointers(run.words.env());
    steps.take(Step::AwaitGo, 0, || await_go(status));
    if !plan.filter_ahead {
        steps.take(Step::Seccomp, 0, || sys::load_seccomp(&plan.filter));
    }
    match steps.take(Step::Exec, 0, || exec_first(&candidates, &argv, &envp)) {}
}

/// Copies these to the lowest numbers and closes whatever is up high: the rules were opened after the warden's descriptors
/// were closed and are low already.
fn lower(fds: [BorrowedFd<'_>; 2]) -> Result<[OwnedFd; 2], Errno> {
    let low = |fd| rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(|errno| Errno::from_raw(errno.raw_os_error()));
    let [orders, status] = fds.map(low);
    let lowered = [orders?, status?];
    let keep: [RawFd; FIRST_LIFTED as usize] = std::array::from_fn(|fd| fd as RawFd);
    sys::close_all_but(&keep)?;
    Ok(lowered)
}

/// The warden's copy of this word is read only if it has mounts to attach.
fn tell_waiting(orders: BorrowedFd<'_>) -> Result<(), Errno> {
    match send(orders.as_raw_fd(), &[WAITING], MsgFlags::MSG_NOSIGNAL) {
        Ok(_) | Err(Errno::EPIPE) => Ok(()), // a warden that is gone is met at the next step
        Err(errno) => Err(errno),
    }
}

fn receive(orders: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Orders, Errno> {
    let (len, fds) = wire::receive(orders, buffer)?;
    let Ok(Request::Run(run)) = Request::decode(&buffer[..len]) else { return Err(Errno::EPROTO) };
    if fds.len() != run.fds() {
        return Err(Errno::EBADMSG);
    }
    Ok(Orders { run, fds })
}

/// Puts the three descriptors at 0, 1 and 2; everything else goes with execve (we still need the status socket and the rules).
fn take_stdio(fds: Vec<OwnedFd>) -> Result<(), Errno> {
    // All came in above 2 or were moved there: 0, 1 and 2 were closed with the warden's descriptors, so the kernel
    // may have handed them out again. Lift each first, or one dup2 could close another's source.
    let to_errno = |errno: rustix::io::Errno| Errno::from_raw(errno.raw_os_error());
    let mut lifted = Vec::with_capacity(RUN_FDS);
    for fd in fds {
        lifted.push(rustix::io::fcntl_dupfd_cloexec(&fd, FIRST_LIFTED).map_err(to_errno)?);
    }
    let [stdin, stdout, stderr]: [OwnedFd; RUN_FDS] = lifted.try_into().map_err(|_| Errno::EBADF)?;
    rustix::stdio::dup2_stdin(stdin).map_err(to_errno)?;
    rustix::stdio::dup2_stdout(stdout).map_err(to_errno)?;
    rustix::stdio::dup2_stderr(stderr).map_err(to_errno)?;
    sys::close_on_exec_from(3)
}

/// Puts a session's three descriptors at their places, where they stay open. Nothing else is up there.
fn take_control(fds: &[OwnedFd]) -> Result<(), Errno> {
    for (fd, place) in fds.iter().zip(CONTROL..) {
        let placed = rustix::io::fcntl_dupfd_cloexec(fd, place).map_err(|e| Errno::from_raw(e.raw_os_error()))?;
        rustix::io::fcntl_setfd(&placed, rustix::io::FdFlags::empty())
            .map_err(|e| Errno::from_raw(e.raw_os_error()))?;
        if placed.into_raw_fd() != place {
            return Err(Errno::EBADF);
        }
    }
    Ok(())
}

/// Enters a directory below the work area: no link on the way, nothing outside.
fn enter_cwd(cwd: &CStr) -> Result<(), Errno> {
    let work = nix::fcntl::open(WORK, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let directory = openat2(&work, if cwd.is_empty() { c"." } else { cwd }, how)?;
    fchdir(&directory)
}

/// A pidfd of ourselves, for the warden to signal by: it names us and nobody who has our number later.
fn offer_signals(orders: BorrowedFd<'_>) -> Result<(), Errno> {
    use rustix::process::{PidfdFlags, getpid, pidfd_open};
    let own = pidfd_open(getpid(), PidfdFlags::empty()).map_err(|errno| Errno::from_raw(errno.raw_os_error()))?;
    wire::send(orders, &[PIDFD], &[own.as_fd()])
}

fn become_user() -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(INSIDE_UID), Gid::from_raw(INSIDE_UID));
    setgroups(&[])?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)
}

fn await_go(status: RawFd) -> Result<(), Errno> {
    let mut byte = [0u8; 1];
    loop {
        match recv(status, &mut byte, MsgFlags::empty()) {
            Ok(1) if byte[0] == GO => return Ok(()),
            Ok(_) => return Err(Errno::EPIPE), // the front is gone, or said something else
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// What to try: the command itself if it has a slash, else its name in each directory of the program's PATH.
fn candidates(words: &Words) -> Vec<CString> {
    let command = words.command();
    if command.to_bytes().contains(&b'/') {
        return vec![command.to_owned()];
    }
    let path = words.env().find_map(|variable| variable.to_bytes().strip_prefix(b"PATH=")).unwrap_or_default();
    path.split(|&byte| byte == b':')
        .filter(|directory| !directory.is_empty())
        .map(|directory| {
            let joined = [directory, b"/", command.to_bytes()].concat();
            CString::new(joined).expect("both parts came out of C strings")
        })
        .collect()
}

fn pointers<'a>(words: impl Iterator<Item = &'a CStr>) -> Vec<*const libc::c_char> {
    words.map(CStr::as_ptr).chain([std::ptr::null()]).collect()
}

/// Tries each; a file that is there but may not be executed is what is reported, as execvp(3) does.
fn exec_first(
    candidates: &[CString],
    argv: &[*const libc::c_char],
    envp: &[*const libc::c_char],
) -> Result<std::convert::Infallible, Errno> {
    let mut worst = Errno::ENOENT;
    for path in candidates {
        match sys::execve(path, argv, envp) {
            Ok(never) => match never {},
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(Errno::EACCES) => worst = Errno::EACCES,
            Err(errno) => return Err(errno),
        }
    }
    Err(worst)
}
