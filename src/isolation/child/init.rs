//! Pid 1 of a sandbox: builds it, forks the program's process, then reaps and reports.
#![forbid(unsafe_code)]

use super::calls::{self, Done, Errno, Fd, Patience};
use super::numbers::*;
use super::sheet::{Mask, Sheet};
use super::{FAULT_EXIT, Handles, Step, Steps, program, status_record};
use core::ffi::CStr;

/// Where the root tree is moved in the warden's own minimal root, before it becomes the root (`plan::NEW_ROOT`).
const NEW_ROOT: &CStr = c"/new";
/// Tags of `Status` for a program's end.
const EXITED: u8 = 2;
const SIGNALED: u8 = 3;

/// From the warden's clone to init's end.
pub fn run(sheet: &Sheet<'_>, handles: &Handles) -> ! {
    let mut steps = Steps::new(handles.status, sheet.sabotage);
    calls::set_name(c"sandboxd-init");
    for (index, &tasks) in handles.join().iter().enumerate() {
        // "0" is the writer itself: no look-up by pid, no lock over all of the group's threads (cgroups(7)).
        steps.take(Step::JoinCgroup, index, || calls::write(tasks, b"0"));
    }
    steps.take(Step::CgroupNamespace, 0, calls::new_cgroup_namespace);
    let oom_score = steps.take(Step::OpenOomScore, 0, || calls::open(c"/proc/self/oom_score_adj", O_WRONLY));
    steps.take(Step::AwaitMaps, 0, || match calls::receive_byte(handles.orders)? {
        Some(_) => Ok(()),
        None => Err(Errno(EPIPE)), // the warden is gone
    });
    steps.take(Step::BecomeRoot, 0, || calls::become_user(0));
    steps.take(Step::ParentDeath, 0, || {
        // The signal is for deaths to come: a warden that is dead already has closed its end.
        calls::parent_death_signal()?;
        if calls::is_hung_up(handles.orders)? { Err(Errno(EPIPE)) } else { Ok(()) }
    });
    steps.take(Step::CloseDescriptors, 0, || {
        (0..3).try_for_each(|place| calls::dup_to(handles.null, place))?;
        let mut keep = [Fd(0), Fd(1), Fd(2), handles.orders, handles.status, handles.tree, handles.over, oom_score];
        keep.sort_unstable_by_key(|fd| fd.0);
        calls::close_all_but(&keep)
    });
    steps.take(Step::Hostname, 0, || calls::set_host_name(b"sandbox"));
    if handles.own_net {
        steps.take(Step::Loopback, 0, calls::loopback_up);
    }
    steps.take(Step::MakePrivate, 0, || calls::mount(None, c"/", None, MS_REC | MS_PRIVATE, None));
    steps.take(Step::MoveTree, 0, || calls::move_mount(handles.tree, NEW_ROOT));
    steps.take(Step::MountProc, 0, mount_proc);
    for (index, mask) in sheet.masks().enumerate() {
        steps.take(Step::MaskProc, index, || {
            let (mask, path) = whole(mask)?;
            mask_proc(mask, path)
        });
    }
    for (index, area) in sheet.areas().enumerate() {
        steps.take(Step::MountTmpfs, index, || {
            let (target, options) = whole(area)?;
            calls::mount(Some(c"tmpfs"), target, Some(c"tmpfs"), MS_NOSUID | MS_NODEV, Some(options))
        });
    }
    steps.take(Step::MountPts, 0, mount_pts);
    steps.take(Step::PivotRoot, 0, enter_new_root);
    let rules = steps.take(Step::LandlockRules, 0, || landlock_rules(sheet));
    steps.take(Step::DropBoundingSet, 0, calls::drop_bounding_set);

    // How the program's process learns that we have given everything up.
    let [told, tell] = steps.take(Step::ForkProgram, 0, calls::pipe);
    match steps.take(Step::ForkProgram, 1, calls::fork) {
        None => program::run(sheet, handles, rules, [told, tell], steps),
        Some(program) => reap(sheet, program, handles, tell, steps, oom_score),
    }
}

/// A part of the sheet that can't be read is a mistake of ours.
fn whole<T>(part: Option<T>) -> Done<T> {
    part.ok_or(Errno(EPROTO))
}

/// Mounts it and steps into it: the masks' names are found from there.
fn mount_proc() -> Done {
    let flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
    // hidepid=2: a process of another uid (our init) can't be seen at all, so it leaks no environ, maps or fds.
    calls::mount(Some(c"proc"), c"/new/proc", Some(c"proc"), flags, Some(c"hidepid=2"))?;
    calls::change_directory(c"/new/proc")
}

fn mask_proc(mask: Mask, path: &CStr) -> Done {
    let bind = |source: &CStr| calls::mount(Some(source), path, None, MS_BIND, None);
    match mask {
        Mask::File => bind(c"../dev/null"),
        Mask::Directory => bind(c"../var/empty"),
        Mask::ReadOnly => {
            bind(path)?;
            let flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
            calls::mount(None, path, None, flags, None)
        }
    }
}

fn mount_pts() -> Done {
    let options = c"newinstance,ptmxmode=0666,mode=0620,max=64";
    calls::mount(Some(c"devpts"), c"/new/dev/pts", Some(c"devpts"), MS_NOSUID | MS_NOEXEC, Some(options))
}

fn enter_new_root() -> Done {
    calls::change_directory(NEW_ROOT)?;
    // The old root lands on top of the new one and is taken off at once: no directory for it is needed.
    calls::pivot_root(c".", c".")?;
    calls::unmount_lazily(c".")?;
    calls::change_directory(c"/")
}

/// None where the kernel has no Landlock and the profile does not ask for it.
fn landlock_rules(sheet: &Sheet<'_>) -> Done<Option<Fd>> {
    let Some(landlock) = &sheet.landlock else { return Ok(None) };
    let rules = calls::landlock_ruleset(&landlock.attributes, landlock.attributes_len)?;
    for rule in landlock.rules() {
        let (path, access) = whole(rule)?;
        calls::landlock_allow(rules, path, access)?;
    }
    Ok(Some(rules))
}

/// Gives up what init does not need, then waits for the program and everything that was orphaned to us.
///
/// The program's end is told to the front at once. If nothing else is left, the warden is told as well, and kills us when
/// nobody waits for an answer: what is taken apart with us would be in its way. Else init's death ends the rest, and the
/// warden sees that.
fn reap(sheet: &Sheet<'_>, program: i32, handles: &Handles, tell: Fd, mut steps: Steps, oom_score: Fd) -> ! {
    // A step that fails ends init, and with it everything in this pid namespace.
    let gives_up: [&dyn Fn() -> Done; 9] = [
        // The kernel's out-of-memory killer takes init first, and with it the whole sandbox. cgroup v2 has
        // `memory.oom.group` for this; on v1 it is the only way that needs no watcher.
        &|| calls::write(oom_score, b"1000"),
        &|| calls::close(handles.orders),
        &calls::clear_ambient,
        &calls::lock_securebits,
        &calls::clear_capabilities,
        &calls::set_not_dumpable,
        &calls::set_no_new_privs,
        &|| calls::load_filter(sheet.init_filter),
        &|| calls::write(tell, b"I"),
    ];
    for (index, give_up) in gives_up.into_iter().enumerate() {
        steps.take(Step::InitGivesUp, index, give_up);
    }
    let status = loop {
        match calls::wait(Patience::Wait) {
            Ok(Some((pid, status))) if pid == program => break status,
            Ok(_) | Err(Errno(EINTR)) => {}
            Err(_) => calls::exit_now(FAULT_EXIT),
        }
    };
    // wait(2): the low seven bits are the signal, 0 for an exit. We did not ask to hear of stops.
    let end = match status & 0x7f {
        0 => status_record(EXITED, 0, 0, (status >> 8) & 0xff),
        signal => status_record(SIGNALED, 0, 0, signal),
    };
    // The front first, which looks for this word when it hears of the end from the warden. Nobody to tell if it is gone.
    let _ = calls::send(steps.status, &end);
    if nothing_is_left() && calls::write(handles.over, &1u64.to_ne_bytes()).is_ok() {
        calls::rest();
    }
    calls::exit_now(0) // whatever the program left behind ends with us
}

/// Whether no process is left but init: whatever is in this pid namespace is a child of init, or will be before it is gone.
fn nothing_is_left() -> bool {
    loop {
        match calls::wait(Patience::Look) {
            Ok(Some(_)) | Err(Errno(EINTR)) => {}
            Ok(None) => return false,
            Err(errno) => return errno == Errno(ECHILD),
        }
    }
}
