//! The shipped filters, run in a small BPF interpreter and held against what their files say.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;

use libseccomp::{ScmpArch, ScmpSyscall};

use super::spec::{Case, Condition, Verdict};
use super::*;

mod wrong_files;

const FILTERS: [&str; 2] = ["default", "strict"];
const ARCHES: [ScmpArch; 2] = [ScmpArch::X8664, ScmpArch::Aarch64];

/// `AUDIT_ARCH_*` of `linux/audit.h`.
const AUDIT_X86_64: u32 = 0xc000_003e;
const AUDIT_I386: u32 = 0x4000_0003;
const AUDIT_AARCH64: u32 = 0xc000_00b7;
const AUDIT_ARM: u32 = 0x4000_0028;

const RET_ALLOW: u32 = 0x7fff_0000;
const RET_ERRNO: u32 = 0x0005_0000;
const ALLOWED: u32 = RET_ALLOW;
const EPERM: u32 = RET_ERRNO | libc::EPERM as u32;
const ENOSYS: u32 = RET_ERRNO | libc::ENOSYS as u32;

/// Rubbish in the half of a register that the kernel does not read for an `int`.
const RUBBISH: u64 = 0xdead_beef_0000_0000;

// ── The interpreter ──

/// What the kernel shows a filter: `struct seccomp_data`, little-endian.
struct Call {
    arch: u32,
    number: u32,
    args: [u64; 6],
}

impl Call {
    fn word(&self, offset: u32) -> u32 {
        match offset {
            0 => self.number,
            4 => self.arch,
            16..64 if offset.is_multiple_of(4) => {
                let arg = self.args[(offset as usize - 16) / 8];
                if offset.is_multiple_of(8) { arg as u32 } else { (arg >> 32) as u32 }
            }
            _ => panic!("load from offset {offset}"),
        }
    }
}

/// The answer, and how many instructions it took. Panics at an opcode that libseccomp has no business emitting.
fn run(program: &[Instruction], call: &Call) -> (u32, usize) {
    let (mut a, mut at, mut steps) = (0u32, 0usize, 0usize);
    loop {
        let Instruction { code, jt, jf, k } = program[at];
        at += 1;
        steps += 1;
        let holds = match code {
            0x20 => {
                a = call.word(k);
                continue;
            } // LD W ABS
            0x54 => {
                a &= k;
                continue;
            } // ALU AND K
            0x05 => {
                at += k as usize;
                continue;
            } // JMP JA
            0x06 => return (k, steps), // RET K
            0x15 => a == k,            // JMP JEQ K
            0x25 => a > k,             // JMP JGT K
            0x35 => a >= k,            // JMP JGE K
            0x45 => a & k != 0,        // JMP JSET K
            _ => panic!("opcode {code:#x} at {}", at - 1),
        };
        at += usize::from(if holds { jt } else { jf });
    }
}

fn audit(arch: ScmpArch) -> u32 {
    match arch {
        ScmpArch::X8664 => AUDIT_X86_64,
        ScmpArch::Aarch64 => AUDIT_AARCH64,
        _ => unreachable!("not supported"),
    }
}

fn spec(name: &str) -> FilterSpec {
    parse(name, &shipped(name).unwrap(), &shipped).unwrap()
}

/// A compiled filter that can be asked by name.
struct Subject {
    arch: ScmpArch,
    name: &'static str,
    program: Vec<Instruction>,
}

impl Subject {
    fn new(name: &'static str, arch: ScmpArch) -> Self {
        let program = spec(name).compile_for(arch).unwrap().program;
        Self { arch, name, program }
    }

    fn number(&self, call: &str) -> Option<u32> {
        let number = ScmpSyscall::from_name_by_arch(call, self.arch).ok()?;
        u32::try_from(i32::from(number)).ok()
    }

    fn name_of(&self, number: u32) -> Option<String> {
        let number = i32::try_from(number).ok()?;
        ScmpSyscall::from(number).get_name_by_arch(self.arch).ok()
    }

    fn ask_number(&self, number: u32, args: [u64; 6]) -> u32 {
        run(&self.program, &Call { arch: audit(self.arch), number, args }).0
    }

    #[track_caller]
    fn expect(&self, call: &str, args: &[u64], expected: u32) {
        let Some(number) = self.number(call) else {
            return;
        };
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        let answer = self.ask_number(number, all);
        assert_eq!(
            answer, expected,
            "{} on {:?}: {call}{args:x?} gives {answer:#x}, not {expected:#x}",
            self.name, self.arch
        );
    }
}

fn subjects() -> impl Iterator<Item = Subject> {
    FILTERS.into_iter().flat_map(|name| ARCHES.map(|arch| Subject::new(name, arch)))
}

fn both_arches(name: &'static str) -> [Subject; 2] {
    ARCHES.map(|arch| Subject::new(name, arch))
}

// ── What the files say, without libseccomp ──

fn holds(case: &Case, args: &[u64; 6]) -> bool {
    case.iter().all(|condition| condition.any_of.contains(&(args[condition.arg as usize] & condition.mask)))
}

fn decide(verdict: &Verdict, args: &[u64; 6]) -> u32 {
    let any = |cases: &[Case]| cases.iter().any(|case| holds(case, args));
    match verdict {
        Verdict::Allow => ALLOWED,
        Verdict::Refuse => EPERM,
        Verdict::Absent => ENOSYS,
        Verdict::AllowIf(cases) => {
            if any(cases) {
                ALLOWED
            } else {
                EPERM
            }
        }
        Verdict::RefuseIf(cases) => {
            if any(cases) {
                EPERM
            } else {
                ALLOWED
            }
        }
    }
}

/// Arguments around everything a verdict looks at: each value, its neighbours, with rubbish above, and plain ones,
/// in all combinations over the first three arguments.
fn grid(verdict: &Verdict) -> Vec<[u64; 6]> {
    let cases = match verdict {
        Verdict::AllowIf(cases) | Verdict::RefuseIf(cases) => cases.as_slice(),
        _ => &[],
    };
    let mut values: [BTreeSet<u64>; 3] = std::array::from_fn(|_| BTreeSet::from([0]));
    for Condition { arg, mask, any_of } in cases.iter().flatten() {
        let values = &mut values[*arg as usize];
        values.extend([1, 0xff, 1 << 31, 1 << 32, u64::MAX]);
        if mask.count_ones() < 16 {
            values.extend((0..64).map(|bit| 1 << bit).filter(|bit| mask & bit != 0));
        }
        for value in any_of {
            let (above, below) = (value.wrapping_add(1), value.wrapping_sub(1));
            values.extend([*value, above, below, value | RUBBISH, value | 1 << 32, value | !mask]);
        }
    }
    let [first, second, third] = &values;
    let mut grid = Vec::new();
    for a in first {
        for b in second {
            grid.extend(third.iter().map(|c| [*a, *b, *c, 0, 0, 0]));
        }
    }
    grid
}

#[test]
fn every_call_gets_what_its_file_says() {
    for subject in subjects() {
        let spec = spec(subject.name);
        let mut asked_conditional = 0;
        for number in 0..1024 {
            let call = subject.name_of(number).unwrap_or_default();
            let verdict = spec.rulings.get(&call).map_or(&Verdict::Absent, |ruling| &ruling.verdict);
            let grid = grid(verdict);
            asked_conditional += grid.len() - 1;
            for args in grid {
                let (answer, expected) = (subject.ask_number(number, args), decide(verdict, &args));
                assert_eq!(answer, expected, "{} on {:?}: {number} {call}{args:x?}", subject.name, subject.arch);
            }
        }
        assert!(asked_conditional > 1_000, "the grid is too thin: {asked_conditional}");
    }
}

#[test]
fn no_shipped_condition_looks_beyond_the_grid_of_three_arguments() {
    for name in FILTERS {
        for ruling in spec(name).rulings.values() {
            if let Verdict::AllowIf(cases) | Verdict::RefuseIf(cases) = &ruling.verdict {
                assert!(cases.iter().flatten().all(|condition| condition.arg < 3), "{}", ruling.place);
            }
        }
    }
}

// ── What must hold, whatever the files say ──

/// Refused whatever the arguments.
const DANGEROUS: &str = "
    unshare setns mount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen fsconfig fsmount
    fspick mount_setattr statmount listmount swapon swapoff reboot kexec_load kexec_file_load init_module
    finit_module delete_module create_module query_module iopl ioperm modify_ldt bpf perf_event_open ptrace
    process_vm_readv process_vm_writev kcmp process_madvise process_mrelease userfaultfd io_uring_setup
    io_uring_enter io_uring_register io_setup io_submit keyctl add_key request_key open_by_handle_at
    name_to_handle_at fanotify_init fanotify_mark quotactl quotactl_fd acct settimeofday clock_settime
    clock_adjtime adjtimex sethostname setdomainname syslog lookup_dcookie nfsservctl uselib ustat sysfs _sysctl
    vhangup vmsplice move_pages migrate_pages mbind set_mempolicy set_mempolicy_home_node get_mempolicy
    pidfd_getfd memfd_secret sched_setattr get_robust_list remap_file_pages clone3 cachestat set_thread_area
";

#[test]
fn dangerous_calls_are_refused_whatever_their_arguments() {
    assert!(DANGEROUS.split_whitespace().count() >= 70);
    for subject in subjects() {
        let numbers: Vec<_> =
            DANGEROUS.split_whitespace().filter_map(|call| Some((call, subject.number(call)?))).collect();
        assert!(numbers.len() > 50, "only {} of them exist on {:?}", numbers.len(), subject.arch);
        for (call, number) in numbers {
            for args in [[0; 6], [1; 6], [u64::MAX; 6], [RUBBISH; 6]] {
                let answer = subject.ask_number(number, args);
                assert!(answer == EPERM || answer == ENOSYS, "{}: {call}{args:x?} gives {answer:#x}", subject.name);
            }
        }
        subject.expect("clone3", &[], ENOSYS);
        subject.expect("mount", &[], EPERM);
    }
}

/// What any Python, shell or compiled program needs, under every filter.
const NEEDED: &str = "
    read write openat close fstat newfstatat statx lseek mmap mprotect munmap brk mremap madvise rt_sigaction
    rt_sigprocmask rt_sigreturn sigaltstack pread64 pwrite64 readv writev access faccessat faccessat2 openat2
    pipe2 dup2 dup3 fcntl flock close_range execve fork vfork exit exit_group wait4 waitid kill tgkill futex
    set_tid_address set_robust_list rseq membarrier arch_prctl getrandom prlimit64 sched_getaffinity sched_yield
    getcpu sysinfo uname times getrusage clock_gettime clock_nanosleep nanosleep timerfd_create signalfd4
    eventfd2 epoll_create1 epoll_wait epoll_pwait epoll_pwait2 poll ppoll select pselect6 getdents64 getcwd
    chdir rename renameat2 mkdir unlink unlinkat symlink readlink chmod fchmodat fchown utimensat ftruncate
    fallocate fsync fdatasync copy_file_range sendfile splice getxattr listxattr statfs umask getuid capget
    setsid setresuid bind connect listen accept4 sendmsg recvmsg getsockopt restart_syscall mincore
";

#[test]
fn needed_calls_pass() {
    for subject in subjects() {
        for call in NEEDED.split_whitespace() {
            subject.expect(call, &[u64::MAX; 6], ALLOWED);
        }
    }
}

#[test]
fn default_opens_what_strict_closes() {
    let calls = "
        shmget semop msgsnd mq_open inotify_init1 mlock mlockall pkey_alloc memfd_create execveat capset
        setpriority pidfd_open pidfd_send_signal landlock_create_ruleset sync
    ";
    for call in calls.split_whitespace() {
        both_arches("default").iter().for_each(|subject| subject.expect(call, &[], ALLOWED));
        both_arches("strict").iter().for_each(|subject| subject.expect(call, &[], EPERM));
    }
}

#[test]
fn strict_allows_nothing_that_default_does_not() {
    let spec = spec("strict");
    for arch in ARCHES {
        let (default, strict) = (Subject::new("default", arch), Subject::new("strict", arch));
        for number in 0..1024 {
            let call = strict.name_of(number).unwrap_or_default();
            let verdict = spec.rulings.get(&call).map_or(&Verdict::Absent, |ruling| &ruling.verdict);
            for args in grid(verdict) {
                if strict.ask_number(number, args) == ALLOWED {
                    assert_eq!(default.ask_number(number, args), ALLOWED, "{call}{args:x?}");
                }
            }
        }
    }
}

#[test]
fn clone_makes_threads_and_children_but_no_namespaces() {
    let pthread = 0x003d_0f00; // VM|FS|FILES|SIGHAND|THREAD|SYSVSEM|SETTLS|PARENT_SETTID|CHILD_CLEARTID
    let fork = 0x0120_0011; // CHILD_SETTID|CHILD_CLEARTID|SIGCHLD
    let posix_spawn = 0x4111; // VM|VFORK|SIGCHLD
    for subject in subjects() {
        for flags in [pthread, fork, posix_spawn, fork | 0x80, fork | RUBBISH] {
            subject.expect("clone", &[flags], ALLOWED);
        }
        for namespace in [0x2_0000, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000] {
            for flags in [namespace, namespace | fork, namespace | pthread, namespace | RUBBISH] {
                subject.expect("clone", &[flags], EPERM);
            }
        }
        subject.expect("unshare", &[0x80], EPERM); // CLONE_NEWTIME
    }
}

#[test]
fn sockets_are_unix_tcp_udp_and_route_netlink_only() {
    const FLAGS: u64 = 0x8_0800; // SOCK_CLOEXEC|SOCK_NONBLOCK
    let (unix, inet, inet6, netlink) = (1, 2, 10, 16);
    let (stream, dgram, raw, seqpacket, packet) = (1, 2, 3, 5, 10);
    // family, type, protocol, allowed by default, allowed by strict
    let table = [
        (unix, stream, 0, true, true),
        (unix, dgram, 0, true, true),
        (unix, seqpacket, 0, true, true),
        (unix, raw, 0, false, false),
        (inet, stream, 0, true, false),
        (inet, stream, 6, true, false),
        (inet, dgram, 17, true, false),
        (inet6, stream, 0, true, false),
        (inet6, dgram, 0, true, false),
        (inet, stream, 132, false, false), // SCTP
        (inet, stream, 262, false, false), // MPTCP
        (inet, dgram, 1, false, false),    // ICMP
        (inet, dgram, 115, false, false),  // L2TP
        (inet, raw, 0, false, false),
        (inet, raw, 1, false, false),
        (inet6, raw, 58, false, false),
        (inet, packet, 3, false, false),
        (inet, 6, 33, false, false), // DCCP
        (netlink, raw, 0, true, false),
        (netlink, dgram, 0, true, false),
        (netlink, raw, 9, false, false),    // NETLINK_AUDIT
        (netlink, raw, 12, false, false),   // NETLINK_NETFILTER
        (netlink, dgram, 15, false, false), // NETLINK_KOBJECT_UEVENT
        (netlink, dgram, 16, false, false), // NETLINK_GENERIC
    ];
    for subject in subjects() {
        for (family, kind, protocol, default, strict) in table {
            let open = if subject.name == "default" { default } else { strict };
            let expected = if open { ALLOWED } else { EPERM };
            subject.expect("socket", &[family, kind, protocol], expected);
            subject.expect("socket", &[family, kind | FLAGS, protocol], expected);
            subject.expect("socket", &[family | RUBBISH, kind | RUBBISH, protocol | RUBBISH], expected);
            let pair = if family == unix && open { ALLOWED } else { EPERM };
            subject.expect("socketpair", &[family, kind | FLAGS, protocol], pair);
        }
        for family in (0..=64).filter(|family| ![unix, inet, inet6, netlink].contains(family)) {
            for kind in 0..16 {
                subject.expect("socket", &[family, kind, 0], EPERM);
                subject.expect("socket", &[family | RUBBISH, kind, 0], EPERM);
                subject.expect("socketpair", &[family, kind, 0], EPERM);
            }
        }
    }
}

#[test]
fn terminal_injection_is_refused_with_rubbish_in_the_upper_half_too() {
    for subject in subjects() {
        for request in [0x5412, 0x541c, 0x541d, 0x5423, 0xaa00, 0x5000_940e] {
            for garbage in [0, 1 << 32, RUBBISH, 0xffff_ffff_0000_0000] {
                subject.expect("ioctl", &[0, request | garbage], EPERM);
            }
        }
        for request in [0x5401, 0x802c_542a, 0x5413, 0x541b, 0x5421, 0x5451, 0x4004_9409] {
            subject.expect("ioctl", &[0, request], ALLOWED);
            subject.expect("ioctl", &[0, request | RUBBISH], ALLOWED);
        }
    }
    for subject in both_arches("default") {
        subject.expect("ioctl", &[0, 0x540e], ALLOWED); // TIOCSCTTY, for pty.fork
        subject.expect("ioctl", &[0, 0x8004_5430], ALLOWED); // TIOCGPTN
    }
}

#[test]
fn calls_with_many_faces_show_the_harmless_ones() {
    for subject in subjects() {
        for persona in [0, 0xffff_ffff, u64::MAX] {
            subject.expect("personality", &[persona], ALLOWED);
        }
        for persona in [0x4_0000, 0x40_0000, 0x8, 0x10_0000, 0x4_0000 | RUBBISH] {
            subject.expect("personality", &[persona], EPERM);
        }
        // mode 0644 with each type: none, file, FIFO, socket; then character, block, directory, symlink
        for (kind, expected) in [
            (0, ALLOWED),
            (0o10_0000, ALLOWED),
            (0o01_0000, ALLOWED),
            (0o14_0000, ALLOWED),
            (0o02_0000, EPERM),
            (0o06_0000, EPERM),
            (0o04_0000, EPERM),
            (0o12_0000, EPERM),
        ] {
            subject.expect("mknod", &[0, kind | 0o644], expected);
            subject.expect("mknodat", &[0, 0, kind | 0o644 | RUBBISH], expected);
        }
        for option in [1, 4, 15, 38, 0x5356_4d41, 15 | RUBBISH] {
            subject.expect("prctl", &[option], ALLOWED);
        }
        for option in [35, 53, 57, 62, 67, 28, 35 | RUBBISH] {
            subject.expect("prctl", &[option], EPERM);
        }
        for (level, option, expected) in
            [(1, 2, ALLOWED), (6, 1, ALLOWED), (6, 31, EPERM), (1, 26, EPERM), (1, 50, EPERM)]
        {
            subject.expect("setsockopt", &[3, level, option], expected);
            subject.expect("setsockopt", &[3, level | RUBBISH, option | RUBBISH], expected);
        }
    }
    for subject in both_arches("default") {
        for (policy, expected) in [
            (0, ALLOWED),
            (3, ALLOWED),
            (5, ALLOWED),
            (0x4000_0000, ALLOWED),
            (1, EPERM),
            (2, EPERM),
            (6, EPERM),
            (7, EPERM),
            (0x4000_0001, EPERM),
        ] {
            subject.expect("sched_setscheduler", &[0, policy], expected);
        }
        for (operation, flags, expected) in
            [(1, 0, ALLOWED), (1, 1, ALLOWED), (1, 8, EPERM), (1, 4, EPERM), (3, 0, EPERM)]
        {
            subject.expect("seccomp", &[operation, flags], expected);
        }
    }
}

#[test]
fn foreign_abis_and_unknown_numbers_get_enosys() {
    for subject in subjects() {
        for number in (0..1024).chain([5000, 0x3fff_ffff]) {
            if number > 500 {
                assert_eq!(subject.ask_number(number, [0; 6]), ENOSYS, "{number}");
            }
            for arch in [AUDIT_X86_64, AUDIT_I386, AUDIT_AARCH64, AUDIT_ARM, 0] {
                if arch != audit(subject.arch) {
                    let (answer, _) = run(&subject.program, &Call { arch, number, args: [0; 6] });
                    assert_eq!(answer, ENOSYS, "architecture {arch:#x}, number {number}");
                }
            }
            // x32: the same numbers with bit 30, and its own from 512 on; and what lies above.
            for high in [0x4000_0000, 0x8000_0000, 0xc000_0000] {
                assert_eq!(subject.ask_number(number | high, [0; 6]), ENOSYS, "{:#x}", number | high);
            }
        }
        assert_eq!(subject.ask_number(u32::MAX, [0; 6]), ENOSYS);
    }
}

#[test]
fn frequent_calls_take_few_instructions() {
    // A tree over some 350 calls is 9 deep, and libseccomp spends about 4 more on architecture, x32 and answer.
    const FEW: usize = 20;
    for subject in subjects() {
        for call in
            ["read", "write", "futex", "close", "openat", "mmap", "epoll_pwait", "clock_nanosleep", "recvmsg", "brk"]
        {
            let number = subject.number(call).unwrap();
            let (_, steps) = run(&subject.program, &Call { arch: audit(subject.arch), number, args: [0; 6] });
            println!(
                "{} {:?}: {call} takes {steps} of {} instructions",
                subject.name,
                subject.arch,
                subject.program.len()
            );
            assert!(steps <= FEW, "{call} takes {steps}");
        }
        let deepest = (0..500)
            .map(|number| run(&subject.program, &Call { arch: audit(subject.arch), number, args: [0; 6] }).1)
            .max();
        println!("{} {:?}: at most {deepest:?}, all arguments zero", subject.name, subject.arch);
    }
}

#[test]
fn no_marker_is_left_and_no_jump_leaves_the_program() {
    for subject in subjects() {
        assert!(subject.program.len() <= Filter::MAX_INSTRUCTIONS);
        for (at, instruction) in subject.program.iter().enumerate() {
            let reach = match instruction.code {
                0x05 => instruction.k as usize,
                code if code & 0x07 == 0x05 => usize::from(instruction.jt.max(instruction.jf)),
                0x06 => {
                    assert!([ALLOWED, EPERM, ENOSYS].contains(&instruction.k), "{at}: returns {:#x}", instruction.k);
                    continue;
                }
                _ => 0,
            };
            assert!(at + 1 + reach < subject.program.len());
        }
    }
}

#[test]
fn the_same_text_gives_the_same_hash() {
    for name in FILTERS {
        let (one, two) = (spec(name).compile().unwrap(), spec(name).compile().unwrap());
        assert_eq!(one, two);
        assert_eq!(one.hash.len(), 64);
        assert_eq!(one.name, name);
    }
    assert_ne!(spec("default").compile().unwrap().hash, spec("strict").compile().unwrap().hash);
}

#[test]
fn an_instruction_survives_its_bytes_and_is_as_large_as_the_kernels() {
    let instruction = Instruction { code: 0x15, jt: 1, jf: 2, k: 0xdead_beef };
    assert_eq!(Instruction::from_bytes(&instruction.to_bytes()), instruction);
    assert_eq!(size_of::<Instruction>(), size_of::<libc::sock_filter>());
    assert_eq!(align_of::<Instruction>(), align_of::<libc::sock_filter>());
}

// ── The files themselves ──

#[test]
fn every_shipped_rule_says_why() {
    for (name, text) in SHIPPED {
        let file: toml::Table = toml::from_str(text).unwrap();
        for kind in ["allow", "refuse", "absent", "allow_if", "refuse_if"] {
            for rule in file.get(kind).and_then(|rules| rules.as_array()).into_iter().flatten() {
                let why = rule.get("why").and_then(|why| why.as_str()).unwrap_or_default();
                assert!(why.trim().len() > 10, "{name}.toml, {kind}: {rule}");
            }
        }
    }
}

/// A typo in `refuse` or `absent` would go unseen, since the default refuses unknown names as well.
#[test]
fn every_refused_name_is_known_or_newer_than_libseccomp() {
    let newer = "
        statmount listmount listns lsm_get_self_attr lsm_set_self_attr lsm_list_modules setxattrat getxattrat
        listxattrat removexattrat open_tree_attr file_getattr file_setattr cachestat mseal fchmodat2
        map_shadow_stack futex_wake futex_wait futex_requeue
    ";
    for name in FILTERS {
        for (call, ruling) in &spec(name).rulings {
            let known = ScmpSyscall::from_name(call).is_ok() || newer.split_whitespace().any(|newer| newer == call);
            assert!(known, "{}: {call}", ruling.place);
        }
    }
}
