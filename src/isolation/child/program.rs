//! Pid 2 of a sandbox: gives up its rights, waits for its run, waits for the word and becomes the program.
//!
//! Whatever does not depend on the run is done before the wait: rights, limits of the profile, the filter. What is left
//! when the run comes is a dozen calls, all of which the filter lets through (`seccomp::can_be_loaded_ahead`).
//!
//! An interpreter that waits with its imports done (`executor/session/warm.rs`) is a program like any other here; only
//! its files come later, when it is confined (`Files::Later`).
#![forbid(unsafe_code)]

use super::calls::{self, Done, Errno, Fd, Fds};
use super::numbers::*;
use super::order::{Files, Order};
use super::room::{Room, WORDS_MAX, room};
use super::sheet::{Landlock, Sheet};
use super::{FAULT_EXIT, Handles, Step, Steps, terminal};
use core::ffi::CStr;

/// User and group of the program (`plan::INSIDE_UID`).
pub const INSIDE_UID: u32 = 1000;
/// What a caller's files are below of, the working directory, and where a run leaves what is to be kept (`plan.rs`).
const WORKSPACE: &CStr = c"/workspace";
const WORK: &CStr = c"/workspace/work";
const ARTIFACTS: &CStr = c"/workspace/artifacts";
/// Above anything that could be one of 0, 1, 2 or the status socket.
const FIRST_LIFTED: i32 = 16;
/// What most orders fit in: touched ahead, so that no fault on it comes later.
const USUAL_ORDER: usize = 4096;
/// Standard input, output and error.
const STDIO: usize = 3;
/// Where a session's interpreter finds its calls; its answers and its interrupts are the two after it.
const CONTROL: i32 = 100;
/// The words that are said here; `warden/protocol.rs` has the same.
const WAITING: u8 = b'W';
const GO: u8 = b'G';
const PIDFD: u8 = b'P';
/// From the fork to execve. `rules` and `steps` come from init, whose copy of them is its own; on the pipe it tells that it has
/// no rights any more.
pub fn run(sheet: &Sheet<'_>, handles: &Handles, rules: Option<Fd>, [told, tell]: [Fd; 2], mut steps: Steps) -> ! {
    let [orders, status] = steps.take(Step::LowerDescriptors, 0, || lower([handles.orders, handles.status]));
    steps.status = status;
    steps.take(Step::NewSession, 0, calls::new_session);
    for (index, limit) in sheet.rlimits.iter().filter(|limit| !limit.late).enumerate() {
        steps.take(Step::Rlimits, index, || calls::limit(limit.resource, limit.amount));
    }
    steps.take(Step::Signals, 0, || {
        calls::set_umask(0o022);
        calls::reset_signals(sheet.ignored_signals)
    });
    steps.take(Step::Securebits, 0, calls::lock_securebits);
    steps.take(Step::BecomeUser, 0, || calls::become_user(INSIDE_UID));
    steps.take(Step::ClearCapabilities, 0, || calls::clear_ambient().and_then(|()| calls::clear_capabilities()));
    steps.take(Step::NoNewPrivs, 0, calls::set_no_new_privs);
    steps.take(Step::AwaitInit, 0, || {
        calls::close(tell)?; // else an init that died would not be heard
        match calls::read_byte(told)? {
            Some(_) => calls::close(told),
            None => calls::exit_now(FAULT_EXIT), // init has said why it is gone, and takes us along
        }
    });
    if sheet.filter_ahead {
        steps.take(Step::SeccompAhead, 0, || calls::load_filter(sheet.filter));
    }
    let Room { order: buffer, argv, envp, path } = room();
    buffer[..USUAL_ORDER].fill(0xff);
    (argv[0], envp[0], path[0]) = (core::ptr::null(), core::ptr::null(), 0xff);
    calls::set_name(c"sandboxd-parked"); // for ps: it waits for a run
    steps.take(Step::TellWaiting, 0, || match calls::send(orders, &[WAITING]) {
        Err(Errno(EPIPE)) => Ok(()), // a warden that is gone is met at the next step
        sent => sent,
    });
    let (order, fds) = steps.take(Step::ReceiveRun, 0, || receive(orders, buffer));
    calls::set_name(c"sandboxd-init");
    let (stdio, control) = fds.as_slice().split_at(STDIO);

    if let (Some(rules), Some(landlock)) = (rules, &sheet.landlock) {
        steps.take(Step::LandlockWorkspace, 0, || allow_workspace(rules, landlock, order.files));
    }
    let opened = order.terminal.map(|size| steps.take(Step::OpenTerminal, 0, || terminal::open(size)));
    steps.take(Step::Stdio, 0, || match opened {
        Some((_, slave)) => take_stdio([slave.0; STDIO]),
        None => take_stdio([stdio[0], stdio[1], stdio[2]]),
    });
    steps.take(Step::Stdio, 1, || take_control(control));
    if order.session {
        // As the program's user and after the session has begun: the kernel remembers who asked, and for which group.
        steps.take(Step::Stdio, 2, || calls::interrupt_on_input(Fd(CONTROL + 2)));
    }
    if let Some((master, _)) = opened {
        steps.take(Step::Terminal, 0, || terminal::take(master, status));
    }
    if order.signals {
        // It names us and nobody who has our number later.
        steps.take(Step::OfferSignals, 0, || calls::send_with(orders, &[PIDFD], calls::own_pidfd()?));
    }
    steps.take(Step::EnterCwd, 0, || enter_cwd(order.cwd));
    for (index, (&amount, ahead)) in order.rlimits.iter().zip(&sheet.rlimits).enumerate() {
        if amount != ahead.amount || ahead.late {
            steps.take(Step::NarrowRlimits, index, || calls::limit(ahead.resource, amount));
        }
    }
    if let Some(rules) = rules {
        steps.take(Step::Landlock, 0, || calls::landlock_restrict(rules));
    }

    // Everything execve needs is laid out before the filter is on.
    let (argv, envp) = (pointers(order.argv(), argv), pointers(order.env(), envp));
    steps.take(Step::AwaitGo, 0, || match calls::receive_byte(status)? {
        Some(GO) => Ok(()),
        _ => Err(Errno(EPIPE)), // the front is gone, or said something else
    });
    if !sheet.filter_ahead {
        steps.take(Step::Seccomp, 0, || calls::load_filter(sheet.filter));
    }
    steps.take(Step::Exec, 0, || Err(execute_first(&order, path, argv, envp)))
}

/// Copies these to the lowest numbers and closes whatever is up high: the rules were opened after the warden's descriptors
/// were closed and are low already.
fn lower([orders, status]: [Fd; 2]) -> Done<[Fd; 2]> {
    let lowered = [calls::dup_from(orders, 3)?, calls::dup_from(status, 3)?];
    let keep: [Fd; FIRST_LIFTED as usize] = core::array::from_fn(|fd| Fd(fd as i32));
    calls::close_all_but(&keep)?;
    Ok(lowered)
}

fn receive(orders: Fd, buffer: &mut [u8]) -> Done<(Order<'_>, Fds)> {
    let (len, fds) = calls::receive(orders, buffer)?;
    let order = Order::read(&buffer[..len]).ok_or(Errno(EPROTO))?;
    if fds.as_slice().len() != usize::from(order.fds) || fds.as_slice().len() < STDIO {
        return Err(Errno(EBADMSG));
    }
    Ok((order, fds))
}

/// Adds the rules that only the run knows of.
fn allow_workspace(rules: Fd, landlock: &Landlock<'_>, files: Files) -> Done {
    let allow = |path: &CStr| calls::landlock_allow(rules, path, landlock.write);
    match files {
        Files::Areas => Ok(()), // what init mounted is in the rules already
        Files::Project => allow(WORK).and_then(|()| allow(ARTIFACTS)),
        Files::Later => allow(WORKSPACE), // `attach.rs` says why; what is not to be written is mounted so
    }
}

/// Puts the three descriptors at 0, 1 and 2; everything else goes with execve (we still need the status socket and the rules).
fn take_stdio(fds: [i32; STDIO]) -> Done {
    // Lifted first, or one copy could close another's source: the kernel may have handed 0, 1 and 2 out again.
    let mut lifted = [Fd(-1); STDIO];
    for (place, &fd) in lifted.iter_mut().zip(&fds) {
        *place = calls::dup_from(Fd(fd), FIRST_LIFTED)?;
    }
    for (place, &fd) in (0..).zip(&lifted) {
        calls::dup_to(fd, place)?;
    }
    calls::close_on_exec_from(Fd(3))
}

/// Puts a session's three descriptors at their places, where they stay open. Nothing else is up there.
fn take_control(fds: &[i32]) -> Done {
    for (&fd, place) in fds.iter().zip(CONTROL..) {
        let placed = calls::dup_from(Fd(fd), place)?;
        calls::keep_open(placed)?;
        if placed.0 != place {
            return Err(Errno(EBADF));
        }
    }
    Ok(())
}

/// Enters a directory below the work area: no link on the way, nothing outside.
fn enter_cwd(cwd: &CStr) -> Done {
    let work = calls::open(WORK, O_PATH | O_DIRECTORY)?;
    let directory = calls::open_directory_beneath(work, if cwd.is_empty() { c"." } else { cwd })?;
    calls::enter_directory(directory)
}

/// Pointers to these words, and a null at the end. The order was counted: they fit.
fn pointers<'a>(words: impl Iterator<Item = &'a CStr>, room: &'a mut [*const u8]) -> &'a [*const u8] {
    let mut count = 0;
    for word in words.take(WORDS_MAX) {
        room[count] = word.as_ptr().cast();
        count += 1;
    }
    room[count] = core::ptr::null();
    &room[..=count]
}

/// Executes the command itself if it has a slash, else its name in each directory of the program's PATH. A file that is
/// there but may not be executed is what is reported, as execvp(3) does.
fn execute_first(order: &Order<'_>, room: &mut [u8], argv: &[*const u8], envp: &[*const u8]) -> Errno {
    let command = order.command.to_bytes();
    if command.contains(&b'/') {
        return match calls::execute(order.command, argv, envp) {
            Errno(ENOTDIR) => Errno(ENOENT),
            errno => errno,
        };
    }
    let path = order.env().find_map(|variable| variable.to_bytes().strip_prefix(b"PATH=")).unwrap_or_default();
    let mut worst = Errno(ENOENT);
    for directory in path.split(|&byte| byte == b':').filter(|directory| !directory.is_empty()) {
        let Some(candidate) = join(room, directory, command) else { return Errno(ENAMETOOLONG) };
        match calls::execute(candidate, argv, envp) {
            Errno(ENOENT | ENOTDIR) => {}
            errno @ Errno(EACCES) => worst = errno,
            errno => return errno,
        }
    }
    worst
}

/// `directory/name` as a C string in this room, if it fits.
fn join<'a>(room: &'a mut [u8], directory: &[u8], name: &[u8]) -> Option<&'a CStr> {
    let len = directory.len() + 1 + name.len();
    room.get_mut(..directory.len())?.copy_from_slice(directory);
    *room.get_mut(directory.len())? = b'/';
    room.get_mut(directory.len() + 1..len)?.copy_from_slice(name);
    *room.get_mut(len)? = 0;
    CStr::from_bytes_with_nul(&room[..=len]).ok()
}
