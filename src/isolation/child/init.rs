//! Pid 1 of a sandbox: builds it, forks the program's process, then reaps and reports.

use super::super::attach::move_tree_to;
use super::super::fault::Step;
use super::super::landlock::Rules;
use super::super::plan::{Area, Mask, NEW_ROOT, ProcMask, SandboxPlan};
use super::super::sys::{self, SingleThreaded};
use super::super::warden::protocol::Status;
use super::{Steps, program};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{MsgFlags, recv, send};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Pid, Uid, chdir, pivot_root, setgroups, sethostname, setresgid, setresuid, write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// What the warden leaves open for a child.
#[derive(Debug)]
pub struct Handles<'a> {
    /// Orders from the warden.
    pub orders: BorrowedFd<'a>,
    /// Reports to the front.
    pub status: BorrowedFd<'a>,
    /// /dev/null, for 0, 1 and 2 until the program's own come: what we open must not land there.
    pub null: BorrowedFd<'a>,
    /// The detached root tree.
    pub tree: BorrowedFd<'a>,
    /// Written by init when the program and all it started are gone and reaped, a moment before init is.
    pub over: BorrowedFd<'a>,
    /// v1: the `tasks` files of the groups to join.
    pub join: &'a [BorrowedFd<'a>],
    /// Whether the network namespace is its own, to be brought up. One that is used again is up, and the host's.
    pub own_net: bool,
}

/// The child's side of the fork.
pub fn init_main(plan: &SandboxPlan, handles: &Handles<'_>, proof: &SingleThreaded) -> ! {
    let (orders, status) = (handles.orders.as_raw_fd(), handles.status.as_raw_fd());
    let mut steps = Steps { status, sabotage: plan.sabotage, last: None };

    let _ = nix::sys::prctl::set_name(c"sandboxd-init"); // for ps; a name that does not take is no reason to stop
    for (index, tasks) in handles.join.iter().enumerate() {
        // "0" is the writer itself: no look-up by pid, no lock over all of the group's threads (cgroups(7)).
        steps.take(Step::JoinCgroup, index, || write(tasks, b"0").map(drop));
    }
    steps.take(Step::CgroupNamespace, 0, || unshare(CloneFlags::CLONE_NEWCGROUP));
    let oom_score = steps.take(Step::OpenOomScore, 0, || {
        open(c"/proc/self/oom_score_adj", OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())
    });
    steps.take(Step::AwaitMaps, 0, || await_maps(orders));
    steps.take(Step::BecomeRoot, 0, become_root);
    steps.take(Step::ParentDeath, 0, || sys::parent_death_signal().and_then(|()| still_there(handles.orders)));
    steps.take(Step::CloseDescriptors, 0, || {
        let (tree, over) = (handles.tree.as_raw_fd(), handles.over.as_raw_fd());
        let mut keep: [RawFd; 8] = [0, 1, 2, orders, status, tree, over, oom_score.as_raw_fd()];
        keep.sort_unstable();
        replace_stdio(handles.null).and_then(|()| sys::close_all_but(&keep))
    });
    steps.take(Step::Hostname, 0, || sethostname("sandbox"));
    if handles.own_net {
        steps.take(Step::Loopback, 0, sys::loopback_up);
    }
    steps.take(Step::MakePrivate, 0, || {
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
    });
    steps.take(Step::MoveTree, 0, || move_tree_to(handles.tree, NEW_ROOT));
    steps.take(Step::MountProc, 0, mount_proc);
    for (index, mask) in plan.masks.iter().enumerate() {
        steps.take(Step::MaskProc, index, || mask_proc(mask));
    }
    for (index, (target, options)) in plan.areas.iter().enumerate() {
        steps.take(Step::MountTmpfs, index, || {
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            mount(Some("tmpfs"), target.as_c_str(), Some("tmpfs"), flags, Some(options.as_c_str()))
        });
    }
    steps.take(Step::MountPts, 0, mount_pts);
    steps.take(Step::PivotRoot, 0, enter_new_root);
    let rules = steps.take(Step::LandlockRules, 0, || landlock_rules(plan));
    steps.take(Step::DropBoundingSet, 0, sys::drop_bounding_set);

    match steps.take(Step::ForkProgram, 0, || sys::fork_plain(proof)) {
        None => program::program_main(plan, handles, rules, steps),
        Some(program) => reap(plan, program, handles, steps, &oom_score),
    }
}

fn replace_stdio(null: BorrowedFd<'_>) -> Result<(), Errno> {
    use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
    let replaced = dup2_stdin(null).and_then(|()| dup2_stdout(null)).and_then(|()| dup2_stderr(null));
    replaced.map_err(|errno| Errno::from_raw(errno.raw_os_error()))
}

fn await_maps(orders: RawFd) -> Result<(), Errno> {
    let mut byte = [0u8; 1];
    match recv(orders, &mut byte, MsgFlags::empty())? {
        1 => Ok(()),
        _ => Err(Errno::EPIPE), // the warden is gone
    }
}

/// The death signal is for deaths to come: a warden that is dead already has closed its end.
fn still_there(orders: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut fds = [PollFd::new(orders, PollFlags::empty())];
    poll(&mut fds, PollTimeout::ZERO)?;
    let gone = fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP));
    if gone { Err(Errno::EPIPE) } else { Ok(()) }
}

fn become_root() -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(0), Gid::from_raw(0));
    setgroups(&[])?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)
}

fn mount_proc() -> Result<(), Errno> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    // hidepid=2: a process of another uid (our init) can't be seen at all, so it leaks no environ, maps or fds.
    mount(Some("proc"), c"/new/proc", Some("proc"), flags, Some("hidepid=2"))
}

fn mask_proc(mask: &ProcMask) -> Result<(), Errno> {
    let path = mask.path.as_c_str();
    let bind = |source| mount(Some(source), path, None::<&str>, MsFlags::MS_BIND, None::<&str>);
    match mask.mask {
        Mask::File => bind(c"/new/dev/null"),
        Mask::Directory => bind(c"/new/var/empty"),
        Mask::ReadOnly => {
            bind(path)?;
            let flags = MsFlags::MS_REMOUNT
                | MsFlags::MS_BIND
                | MsFlags::MS_RDONLY
                | MsFlags::MS_NOSUID
                | MsFlags::MS_NODEV
                | MsFlags::MS_NOEXEC;
            mount(None::<&str>, path, None::<&str>, flags, None::<&str>)
        }
    }
}

fn mount_pts() -> Result<(), Errno> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount(Some("devpts"), c"/new/dev/pts", Some("devpts"), flags, Some("newinstance,ptmxmode=0666,mode=0620,max=64"))
}

fn enter_new_root() -> Result<(), Errno> {
    chdir(NEW_ROOT)?;
    // The old root lands on top of the new one and is taken off at once: no directory for it is needed.
    pivot_root(".", ".")?;
    umount2(".", MntFlags::MNT_DETACH)?;
    chdir("/")
}

fn landlock_rules(plan: &SandboxPlan) -> Result<Rules, Errno> {
    let mut rules = Rules::new(plan.landlock_abi, plan.tcp)?.allow_read("/")?.allow_devices("/dev")?;
    for area in Area::ALL {
        rules = rules.allow_write(area.path())?;
    }
    Ok(rules)
}

/// Gives up what init does not need, then waits for the program and everything that was orphaned to us.
///
/// The program's end is told to the front at once. If nothing else is left, the warden is told as well: it need not wait
/// until init's own memory and namespaces are taken apart. Else init's death ends the rest, and the warden sees that.
fn reap(plan: &SandboxPlan, program: Pid, handles: &Handles<'_>, mut steps: Steps, oom_score: &OwnedFd) -> ! {
    use rustix::process::{WaitOptions, wait};
    let orders = handles.orders.as_raw_fd();
    // A step that fails ends init, and with it everything in this pid namespace.
    let gives_up: [&dyn Fn() -> Result<(), Errno>; 8] = [
        &|| prefer_for_oom(oom_score),
        &|| nix::unistd::close(orders),
        &sys::clear_ambient,
        &sys::lock_securebits,
        &sys::clear_capabilities,
        &sys::set_not_dumpable,
        &sys::set_no_new_privs,
        &|| sys::load_seccomp(&plan.init_filter),
    ];
    for (index, give_up) in gives_up.into_iter().enumerate() {
        steps.take(Step::InitGivesUp, index, give_up);
    }
    loop {
        // rustix keeps the raw status: nix has no word for a death by a real-time signal.
        let end = match wait(WaitOptions::empty()) {
            Ok(Some((pid, end))) if pid.as_raw_nonzero().get() == program.as_raw() => end,
            Ok(_) | Err(rustix::io::Errno::INTR) => continue,
            Err(_) => sys::exit_now(super::FAULT_EXIT),
        };
        let end = match (end.exit_status(), end.terminating_signal()) {
            (Some(code), _) => Status::Exited(code),
            (None, Some(signal)) => Status::Signaled(signal),
            (None, None) => continue, // stopped or continued; we did not ask to hear of it
        };
        // Nobody to tell if the front is gone. Leaving ends whatever the program left behind.
        let _ = send(steps.status, &end.encode(), MsgFlags::MSG_NOSIGNAL);
        // __WALL: those too that were cloned to end without a signal.
        let any = WaitOptions::NOHANG | WaitOptions::from_bits_retain(libc::__WALL as u32);
        if nothing_is_left(|| wait(any)) {
            let _ = write(handles.over, &1u64.to_ne_bytes()); // a warden that does not hear it sees our death
        }
        sys::exit_now(0);
    }
}

/// Whether no process is left but init: whatever is in this pid namespace is a child of init, or will be before it is gone.
fn nothing_is_left<T>(mut reap_one: impl FnMut() -> Result<Option<T>, rustix::io::Errno>) -> bool {
    loop {
        match reap_one() {
            Ok(Some(_)) | Err(rustix::io::Errno::INTR) => {}
            Ok(None) => return false,
            Err(errno) => return errno == rustix::io::Errno::CHILD,
        }
    }
}

/// Makes the kernel's out-of-memory killer take init first, and with it the whole sandbox. cgroup v2 has
/// `memory.oom.group` for this; on v1 it is the only way that needs no watcher.
fn prefer_for_oom(oom_score: &OwnedFd) -> Result<(), Errno> {
    write(oom_score, b"1000").map(drop)
}
