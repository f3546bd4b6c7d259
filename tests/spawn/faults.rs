//! Real failures: what a step is given makes it fail, without a switch in the code. And two runs that end well.

use super::Test;
use super::attempt::{Attempt, ByHand, Seen, Word, words};
use super::world::{DEADLINE, World};
use nix::errno::Errno;
use nix::sys::wait::{WaitStatus, waitpid};
use sandboxd::isolation::fault::Step;
use sandboxd::isolation::order::order;
use sandboxd::isolation::plan::{Mask, NEW_ROOT, ProcMask};
use sandboxd::isolation::seccomp::Instruction;
use sandboxd::isolation::spawn::{Inside, NAMESPACES, socket_pair, spawn, start};
use sandboxd::isolation::sys;
use sandboxd::isolation::warden::protocol::{MESSAGE_MAX, Request, RunNumber, Status, Workspace};
use sandboxd::isolation::warden::words::WORD_MAX;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// All of them.
pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    let mut add = |name: &str, body: fn(&mut World)| tests.push(Test::new(format!("faults::{name}"), body));
    add("without_a_fault_the_program_runs_and_its_exit_code_is_told", a_good_run);
    add("without_a_fault_the_signal_that_ends_a_program_is_told", a_run_that_ends_by_a_signal);
    add("without_a_fault_a_program_gets_as_many_words_as_may_be_asked_for", a_run_with_the_most_words);
    add("without_a_fault_a_filter_that_comes_last_holds_as_well", a_run_whose_filter_comes_last);
    add("without_landlock_a_plan_that_does_without_it_runs_behind_the_other_walls", a_run_without_landlock);
    add("a_child_is_born_with_five_rights_and_no_more", the_rights_of_a_child);
    add("a_group_that_takes_no_tasks_is_enospc", a_full_group);
    add("a_group_whose_want_of_memory_was_told_is_not_used_again", a_group_that_was_told_of_oom);
    add("a_warden_that_dies_before_the_maps_are_told_leaves_no_process", a_warden_that_dies_early);
    add("maps_that_nobody_wrote_leave_nobody_to_become", no_maps);
    add("a_root_tree_that_is_no_mount_is_einval", a_tree_that_is_no_mount);
    add("a_masked_path_that_does_not_exist_is_enoent_with_its_place", a_mask_of_nothing);
    add("mount_options_that_tmpfs_does_not_know_are_einval_with_their_place", bad_mount_options);
    add("orders_that_are_garbage_are_eproto", garbage_orders);
    add("orders_that_are_another_message_are_eproto", another_message);
    add("orders_that_are_too_long_are_emsgsize", long_orders);
    add("orders_with_too_few_descriptors_are_ebadmsg", few_descriptors);
    add("orders_with_too_many_descriptors_are_ebadmsg", many_descriptors);
    add("orders_that_never_come_because_the_warden_closed_are_eproto", no_orders);
    add("a_workspace_that_is_no_mount_is_einval_and_nothing_runs", a_workspace_that_is_no_mount);
    add("a_cwd_that_does_not_exist_is_enoent", |world| bad_cwd(world, "nowhere", Errno::ENOENT));
    add("a_cwd_that_is_a_link_is_eloop", |world| bad_cwd(world, "link", Errno::ELOOP));
    add("a_cwd_that_is_a_file_is_enotdir", |world| bad_cwd(world, "no-program", Errno::ENOTDIR));
    add("a_cwd_outside_is_exdev", |world| bad_cwd(world, "directory/../..", Errno::EXDEV));
    add("a_front_that_hangs_up_instead_of_go_runs_nothing", a_front_that_hangs_up);
    add("a_front_that_says_something_else_than_go_is_epipe", a_front_that_misspeaks);
    add("a_filter_that_is_no_program_is_einval", a_bad_filter);
    add("a_command_that_does_not_exist_is_enoent", |world| bad_command(world, "/no/such/file", Errno::ENOENT));
    add("a_name_that_is_not_in_path_is_enoent", |world| bad_command(world, "no-such-name", Errno::ENOENT));
    add("a_command_that_is_not_executable_is_eacces", |world| bad_command(world, "not-executable", Errno::EACCES));
    add("a_command_that_is_a_directory_is_eacces", |world| bad_command(world, "directory", Errno::EACCES));
    add("a_command_that_is_no_program_is_enoexec", |world| bad_command(world, "no-program", Errno::ENOEXEC));
    add("a_script_without_its_interpreter_is_enoent", |world| bad_command(world, "no-interpreter", Errno::ENOENT));
    tests
}

/// The kernel tells before it looks for somebody to kill. What nobody has read of that would end the next run.
fn a_group_that_was_told_of_oom(world: &mut World) {
    let (good, range) = world.lend();
    let used_again = !world.joins_by_birth(); // v2 makes one for each run
    assert_eq!(world.would_use_again(good), used_again);
    let (told, second) = world.lend();
    if let Some(event) = told.oom() {
        rustix::io::write(event, &1u64.to_ne_bytes()).expect("an event can be told");
    }
    assert!(!world.would_use_again(told));
    world.give_back(range);
    world.give_back(second);
}

fn copy(fd: BorrowedFd<'_>) -> OwnedFd {
    fd.try_clone_to_owned().expect("a descriptor can be copied")
}

fn a_good_run(world: &mut World) {
    let code = "pwd; id -u; exit 7";
    let mut attempt = Attempt::of(world, "sh", &["sh", "-c", code]);
    attempt.run.words = words("sh", "directory", &["sh", "-c", code], "/nowhere:/usr/bin:/bin");
    let output = "/workspace/work/directory\n1000\n".to_owned();
    assert_eq!(attempt.make(world), Seen { statuses: vec![Status::Exited(7)], output });
}

fn a_run_whose_filter_comes_last(world: &mut World) {
    let mut attempt = Attempt::of(world, "sh", &["sh", "-c", "grep ^Seccomp: /proc/self/status"]);
    attempt.plan.filter_ahead = false;
    let output = "Seccomp:\t2\n".to_owned();
    assert_eq!(attempt.make(world), Seen { statuses: vec![Status::Exited(0)], output });
}

/// `/proc/self/comm` may be written as far as mounts and modes go: of all walls only Landlock says no.
fn a_run_without_landlock(world: &mut World) {
    let code = "(echo x >/proc/self/comm) 2>/dev/null && echo open || echo shut; grep ^Seccomp: /proc/self/status";
    let seen = Attempt::of(world, "sh", &["sh", "-c", code]).make(world);
    assert_eq!(seen, Seen { statuses: vec![Status::Exited(0)], output: "shut\nSeccomp:\t2\n".to_owned() });
    // Whatever becomes of the workspace: each kind of it adds its own rule.
    for workspace in [Workspace::ThrowAway { inputs: false }, Attempt::new(world).run.workspace] {
        let mut attempt = Attempt::of(world, "sh", &["sh", "-c", code]);
        if matches!(workspace, Workspace::ThrowAway { .. }) {
            attempt.mounts.clear();
        }
        attempt.run.workspace = workspace;
        attempt.plan.landlock_abi = 0;
        let output = "open\nSeccomp:\t2\n".to_owned();
        assert_eq!(attempt.make(world), Seen { statuses: vec![Status::Exited(0)], output });
    }
}

fn a_run_with_the_most_words(world: &mut World) {
    // Two words of nearly the most that one may have; with command, cwd and the rest nearly the most of all together.
    let long = "x".repeat(WORD_MAX - 64);
    let args = ["sh", "-c", "echo ${#1} ${#2}", "sh", &long, &long];
    let seen = Attempt::of(world, "/bin/sh", &args).make(world);
    let output = format!("{0} {0}\n", long.len());
    assert_eq!(seen, Seen { statuses: vec![Status::Exited(0)], output });
}

fn a_run_that_ends_by_a_signal(world: &mut World) {
    let seen = Attempt::of(world, "/bin/sh", &["sh", "-c", "echo ran; kill -KILL $$"]).make(world);
    assert_eq!(seen, Seen { statuses: vec![Status::Signaled(9)], output: "ran\n".to_owned() });
}

fn a_full_group(world: &mut World) {
    let mut attempt = Attempt::new(world);
    attempt.by_hand = Some(ByHand { join: Some(copy(world.full.as_fd())), ..ByHand::default() });
    attempt.make(world).assert_fault(Step::JoinCgroup, 0, Errno::ENOSPC);
}

/// While it waits for its maps a child has done nothing yet: what it holds there is all that it ever holds.
fn the_rights_of_a_child(world: &mut World) {
    /// SETGID, SETUID, SETPCAP, NET_ADMIN, SYS_ADMIN (linux/capability.h).
    const RIGHTS: u64 = 1 << 6 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 21;
    let (group, range) = world.lend();
    let (plan, tree) = (world.plan(), world.root());
    let [(orders, orders_in), (status, status_in)] = [(); 2].map(|()| socket_pair().expect("a socket pair"));
    let join = group.joins();
    let inside = Inside {
        orders: orders_in.as_fd(),
        status: status_in.as_fd(),
        tree: tree.as_fd(),
        over: world.kit.null(),
        join: &join,
        own_net: true,
    };
    let namespaces = NAMESPACES | libc::CLONE_NEWNET;
    let (child, _pidfd) =
        start(&world.proof, &plan, &world.kit, &inside, namespaces, group.born_into()).expect("a child");
    let known = std::fs::read_to_string(format!("/proc/{child}/status")).expect("it waits");
    drop((orders, orders_in, status, status_in)); // nobody tells it of its maps: it ends
    waitpid(child, None).expect("a child of ours");
    drop(join);
    world.take_back(group, range);
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        let line = known.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':')).expect("a set");
        assert_eq!(u64::from_str_radix(line.trim(), 16), Ok(RIGHTS), "{set} in {known}");
    }
}

/// The warden dies between the fork and its word that the maps are written, when the child has no death signal yet.
fn a_warden_that_dies_early(world: &mut World) {
    let (group, range) = world.lend();
    let plan = world.plan();
    // Whom the stand-in leaves behind becomes our child, so that we can end it if the engine does not.
    nix::sys::prctl::set_child_subreaper(true).expect("orphans can be asked for");
    let Some(stand_in) = sys::fork_plain(&world.proof).expect("a process can be forked") else {
        sys::load_seccomp(&death_at_sendmsg()).expect("root loads any valid filter");
        // sendmsg is what `spawn` tells the child with; the kernel ends us there. The child makes no such call.
        let _ = spawn(&world.proof, &plan, &group, &world.ranges, range, &world.kit, None);
        sys::exit_now(0);
    };
    let ended = waitpid(stand_in, None).expect("our child");
    assert!(matches!(ended, WaitStatus::Signaled(..)), "the stand-in was to die in spawn: {ended:?}");
    let orphan = await_no_child();
    nix::sys::prctl::set_child_subreaper(false).expect("orphans can be left to others");
    world.take_back(group, range);
    assert_eq!(orphan, None, "init outlived its warden, in AwaitMaps, for {DEADLINE:?}");
}

/// Kills the process at sendmsg(2), allows everything else. The numbers are those of this machine's own ABI.
fn death_at_sendmsg() -> Vec<Instruction> {
    let sendmsg = u32::try_from(libc::SYS_sendmsg).expect("call numbers are small");
    let statement = |code: u32, k: u32| Instruction { code: code as u16, jt: 0, jf: 0, k };
    vec![
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0), // seccomp_data.nr
        Instruction { code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, jt: 0, jf: 1, k: sendmsg },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ]
}

/// Waits until this process has no children; kills and names one that is still there at the deadline.
fn await_no_child() -> Option<nix::unistd::Pid> {
    use nix::sys::signal::{Signal, kill};
    use nix::sys::wait::WaitPidFlag;
    let end = Instant::now() + DEADLINE;
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Err(Errno::ECHILD) => return None,
            Ok(WaitStatus::StillAlive) if Instant::now() >= end => break,
            Ok(WaitStatus::StillAlive) => std::thread::sleep(Duration::from_millis(1)),
            Ok(_) => {}
            Err(errno) => panic!("waitpid: {errno}"),
        }
    }
    let own = std::process::id();
    let children = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).expect("a list of children");
    let orphan = children.split_whitespace().next().and_then(|pid| pid.parse().ok()).map(nix::unistd::Pid::from_raw);
    if let Some(orphan) = orphan {
        kill(orphan, Signal::SIGKILL).expect("a child of ours");
        waitpid(orphan, None).expect("a child of ours");
    }
    orphan
}

fn no_maps(world: &mut World) {
    let mut attempt = Attempt::new(world);
    attempt.by_hand = Some(ByHand { no_maps: true, ..ByHand::default() });
    attempt.make(world).assert_fault(Step::BecomeRoot, 0, Errno::EPERM);
}

fn a_tree_that_is_no_mount(world: &mut World) {
    let mut attempt = Attempt::new(world);
    attempt.by_hand = Some(ByHand { tree: Some(copy(world.kit.null())), ..ByHand::default() });
    attempt.make(world).assert_fault(Step::MoveTree, 0, Errno::EINVAL);
}

fn a_mask_of_nothing(world: &mut World) {
    let mut attempt = Attempt::new(world);
    let path = CString::new(format!("{NEW_ROOT}/proc/no-such-file")).expect("no NUL");
    let place = u16::try_from(attempt.plan.masks.len()).expect("a few masks");
    attempt.plan.masks.push(ProcMask { path, mask: Mask::File });
    attempt.make(world).assert_fault(Step::MaskProc, place, Errno::ENOENT);
}

fn bad_mount_options(world: &mut World) {
    let mut attempt = Attempt::new(world);
    attempt.plan.areas[2].1 = c"size=plenty".to_owned();
    attempt.make(world).assert_fault(Step::MountTmpfs, 2, Errno::EINVAL);
}

fn bad_orders(world: &mut World, order: Vec<u8>, errno: Errno) {
    let mut attempt = Attempt::new(world);
    attempt.order = Some(order);
    attempt.by_hand = Some(ByHand::default()); // `spawn`'s socket may have no room for one that is too long
    attempt.make(world).assert_fault(Step::ReceiveRun, 0, errno);
}

fn garbage_orders(world: &mut World) {
    bad_orders(world, vec![0xa5; 100], Errno::EPROTO);
}

fn another_message(world: &mut World) {
    bad_orders(world, Request::Kill(RunNumber(1)).encode(), Errno::EPROTO);
}

fn long_orders(world: &mut World) {
    // Right in all but its length: nothing that is cut off may be left out in silence.
    let mut order = order(&Attempt::new(world).run);
    order.resize(MESSAGE_MAX + 1, b'x');
    bad_orders(world, order, Errno::EMSGSIZE);
}

fn few_descriptors(world: &mut World) {
    let mut attempt = Attempt::new(world);
    attempt.stdio = 2;
    attempt.make(world).assert_fault(Step::ReceiveRun, 0, Errno::EBADMSG);
}

fn many_descriptors(world: &mut World) {
    let mut attempt = Attempt::new(world);
    attempt.stdio = 4;
    attempt.make(world).assert_fault(Step::ReceiveRun, 0, Errno::EBADMSG);
}

fn no_orders(world: &mut World) {
    let mut attempt = Attempt::new(world);
    attempt.by_hand = Some(ByHand { no_orders: true, ..ByHand::default() });
    attempt.make(world).assert_fault(Step::ReceiveRun, 0, Errno::EPROTO);
}

fn a_workspace_that_is_no_mount(world: &mut World) {
    let mut attempt = Attempt::new(world);
    attempt.mounts[1] = copy(world.kit.null());
    let refused = Seen { statuses: Vec::new(), output: format!("not attached: {}", Errno::EINVAL) };
    assert_eq!(attempt.make(world), refused);
}

fn bad_cwd(world: &mut World, cwd: &str, errno: Errno) {
    let mut attempt = Attempt::new(world);
    attempt.run.words = words("/bin/sh", cwd, &["sh", "-c", "echo ran"], "/usr/bin:/bin");
    attempt.make(world).assert_fault(Step::EnterCwd, 0, errno);
}

/// Nobody hears of this one, but nothing may run: `make` has seen every process end.
fn a_front_that_hangs_up(world: &mut World) {
    let mut attempt = Attempt::new(world);
    attempt.word = Word::HangUp;
    assert_eq!(attempt.make(world).output, "");
}

fn a_front_that_misspeaks(world: &mut World) {
    let mut attempt = Attempt::new(world);
    attempt.word = Word::Say(b'g');
    attempt.make(world).assert_fault(Step::AwaitGo, 0, Errno::EPIPE);
}

/// Init loads the same filter for itself, before the program is told to go: it is the one that reports.
fn a_bad_filter(world: &mut World) {
    const INIT_LOADS_ITS_FILTER: u16 = 7;
    let bad = || vec![Instruction { code: u16::MAX, jt: 0, jf: 0, k: 0 }];
    let mut attempt = Attempt::new(world);
    attempt.plan.init_filter = bad();
    attempt.make(world).assert_fault(Step::InitGivesUp, INIT_LOADS_ITS_FILTER, Errno::EINVAL);
    for (ahead, step) in [(true, Step::SeccompAhead), (false, Step::Seccomp)] {
        let mut attempt = Attempt::new(world);
        attempt.plan.filter = bad();
        attempt.plan.filter_ahead = ahead;
        attempt.make(world).assert_fault(step, 0, Errno::EINVAL);
    }
}

/// `command` is a path from the root, or a name: `work` of the workspace is in PATH.
fn bad_command(world: &mut World, command: &str, errno: Errno) {
    let mut attempt = Attempt::new(world);
    attempt.run.words = words(command, "", &[command], "/nowhere:/workspace/work:/usr/bin");
    attempt.make(world).assert_fault(Step::Exec, 0, errno);
}
