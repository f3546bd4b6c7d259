// Wall: system calls that a payload has no business making. Arguments are ones the kernel cannot carry out, or ones
// that end with the child, so that nothing happens even where the call is permitted.
#include "probe.h"
#include <linux/capability.h>
#include <linux/kcmp.h>
#include <linux/perf_event.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/sysmacros.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <time.h>

// Newer than the headers we may be built with.
enum {
    NR_memfd_secret = 447, NR_set_mempolicy_home_node = 450, NR_statmount = 457, NR_listmount = 458,
    NR_lsm_set_self_attr = 460, NR_open_tree_attr = 467,
};
#define HIGH_BIT (1UL << 32) // above what the kernel looks at in an `int` argument

#define ATTEMPT(id, expression)                                                                                        \
    static void id(const struct attempt *self) {                                                                       \
        (void)self;                                                                                                    \
        judge_call(expression);                                                                                        \
    }

static const char nowhere[] = "/tmp/.probe-does-not-exist";

// The plain case: call `number` with arguments that are wrong in every way.
static void call_invalid(const struct attempt *self) { judge_call(syscall(self->number, -1L, -1L, -1L, -1L, -1L, -1L)); }
static void call_null(const struct attempt *self) { judge_call(syscall(self->number, 0L, 0L, 0L, 0L, 0L, 0L)); }

static void call_unshare(const struct attempt *self) { judge_call(syscall(SYS_unshare, (unsigned long)self->number)); }
static void call_setns(const struct attempt *self) { judge_call(syscall(SYS_setns, -1, (unsigned long)self->number)); }

static void finish_clone(long child) {
    if (child == 0)
        _exit(0);
    int error = errno;
    if (child > 0)
        waitpid((pid_t)child, NULL, __WALL);
    errno = error;
    judge_call(child);
}

static void call_clone(const struct attempt *self) {
    finish_clone(syscall(SYS_clone, (unsigned long)self->number | SIGCHLD, 0L, 0L, 0L, 0L));
}

static void call_clone3(const struct attempt *self) {
    struct clone_args wish = {.flags = (unsigned long)self->number, .exit_signal = SIGCHLD};
    finish_clone(syscall(SYS_clone3, &wish, sizeof wish));
}

// Mounts: a file system type that does not exist, a fresh directory that is no mount point.
ATTEMPT(call_mount, syscall(SYS_mount, "none", scratch_dir(), "probe-no-such-fs", 0UL, NULL))
ATTEMPT(call_umount2, syscall(SYS_umount2, scratch_dir(), 0))
ATTEMPT(call_pivot_root, syscall(SYS_pivot_root, nowhere, nowhere))
ATTEMPT(call_chroot, syscall(SYS_chroot, "/"))
ATTEMPT(call_open_tree, syscall(SYS_open_tree, AT_FDCWD, "/", 1 /* OPEN_TREE_CLONE */))
ATTEMPT(call_move_mount, syscall(SYS_move_mount, -1, nowhere, -1, nowhere, 0))
ATTEMPT(call_fsopen, syscall(SYS_fsopen, "tmpfs", 0))
ATTEMPT(call_fsconfig, syscall(SYS_fsconfig, -1, 0, "probe", NULL, 0))
ATTEMPT(call_fspick, syscall(SYS_fspick, AT_FDCWD, nowhere, 0))
ATTEMPT(call_mount_setattr, syscall(SYS_mount_setattr, -1, "", 0, NULL, 0UL))

// The host as a whole.
ATTEMPT(call_swapon, syscall(SYS_swapon, nowhere, 0))
ATTEMPT(call_swapoff, syscall(SYS_swapoff, nowhere))
ATTEMPT(call_reboot, syscall(SYS_reboot, 0x0badL, 0x0badL, 0x0badL, NULL))
ATTEMPT(call_kexec_load, syscall(SYS_kexec_load, 0UL, 0UL, NULL, ~0UL))
ATTEMPT(call_kexec_file_load, syscall(SYS_kexec_file_load, -1, -1, 0UL, NULL, ~0UL))
ATTEMPT(call_init_module, syscall(SYS_init_module, NULL, 0UL, ""))
ATTEMPT(call_finit_module, syscall(SYS_finit_module, -1, "", ~0))
ATTEMPT(call_delete_module, syscall(SYS_delete_module, "probe_no_such_module", O_NONBLOCK))
ATTEMPT(call_acct, syscall(SYS_acct, nowhere))
ATTEMPT(call_quotactl, syscall(SYS_quotactl, 0x800007 << 8, nowhere, 0, NULL))
ATTEMPT(call_settimeofday, syscall(SYS_settimeofday, NULL, NULL))
ATTEMPT(call_sethostname, syscall(SYS_sethostname, NULL, -1))
ATTEMPT(call_setdomainname, syscall(SYS_setdomainname, NULL, -1))
ATTEMPT(call_syslog, syscall(SYS_syslog, 10 /* size of the buffer */, NULL, 0))

static void call_clock_settime(const struct attempt *self) {
    (void)self;
    struct timespec never = {.tv_sec = 0, .tv_nsec = -1};
    judge_call(syscall(SYS_clock_settime, CLOCK_REALTIME, &never));
}

static void call_adjtime(const struct attempt *self) {
    struct timex wish = {.modes = ADJ_SETOFFSET, .time = {.tv_sec = 0, .tv_usec = -1}};
    judge_call(self->number == SYS_clock_adjtime ? syscall(SYS_clock_adjtime, CLOCK_REALTIME, &wish)
                                                 : syscall(SYS_adjtimex, &wish));
}

static void call_vhangup(const struct attempt *self) {
    (void)self;
    setsid(); // without a terminal there is nothing to hang up
    judge_call(syscall(SYS_vhangup));
}

// The kernel's larger doors.
static void call_bpf(const struct attempt *self) {
    (void)self;
    uint32_t array_of_one[32] = {2 /* BPF_MAP_TYPE_ARRAY */, 4, 4, 1};
    judge_call(syscall(SYS_bpf, 0 /* BPF_MAP_CREATE */, array_of_one, sizeof array_of_one));
}

static void call_perf_event_open(const struct attempt *self) {
    (void)self;
    struct perf_event_attr event = {.type = PERF_TYPE_SOFTWARE, .size = sizeof event, .config = PERF_COUNT_SW_CPU_CLOCK, .disabled = 1};
    judge_call(syscall(SYS_perf_event_open, &event, 0, -1, -1, 0UL));
}

static void call_fanotify_mark(const struct attempt *self) {
    (void)self;
    judge_call(syscall(SYS_fanotify_mark, -1, 1U, 0ULL, -1, nowhere));
}

static void call_open_by_handle_at(const struct attempt *self) {
    (void)self;
    struct { unsigned bytes; int type; unsigned char handle[8]; } stale = {.bytes = 8, .type = 1, .handle = {0xff, 0xff, 0xff, 0xff}};
    judge_call(syscall(SYS_open_by_handle_at, open("/", O_RDONLY | O_DIRECTORY), &stale, O_RDONLY));
}

static void call_name_to_handle_at(const struct attempt *self) {
    (void)self;
    struct { unsigned bytes; int type; unsigned char handle[128]; } handle = {.bytes = 128};
    int mount_id;
    judge_call(syscall(SYS_name_to_handle_at, AT_FDCWD, "/", &handle, &mount_id, 0));
}

ATTEMPT(call_userfaultfd, syscall(SYS_userfaultfd, O_CLOEXEC))
ATTEMPT(call_io_uring_setup, syscall(SYS_io_uring_setup, 1U, NULL))
ATTEMPT(call_io_uring_enter, syscall(SYS_io_uring_enter, -1, 0U, 0U, 0U, NULL, 0UL))
ATTEMPT(call_io_uring_register, syscall(SYS_io_uring_register, -1, 0U, NULL, 0U))
ATTEMPT(call_add_key, syscall(SYS_add_key, "user", "probe", "x", 1UL, -2 /* this process's keyring */))
ATTEMPT(call_request_key, syscall(SYS_request_key, "user", "probe-no-such-key", NULL, 0))
ATTEMPT(call_keyctl, syscall(SYS_keyctl, 0 /* GET_KEYRING_ID */, -3 /* session keyring */, 1))
ATTEMPT(call_fanotify_init, syscall(SYS_fanotify_init, 4 /* FAN_CLASS_CONTENT */, O_RDONLY))
ATTEMPT(call_memfd_secret, syscall(NR_memfd_secret, 0))
ATTEMPT(call_lookup_dcookie, syscall(SYS_lookup_dcookie, 0ULL, NULL, 0UL))
ATTEMPT(call_uselib, syscall(SYS_uselib, nowhere))
ATTEMPT(call_sysfs, syscall(SYS_sysfs, 3))
ATTEMPT(call_pidfd_getfd, syscall(SYS_pidfd_getfd, -1, 0, 0U))
ATTEMPT(call_process_madvise, syscall(SYS_process_madvise, -1, NULL, 0UL, 4, 0U))
ATTEMPT(call_kcmp, syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, 0UL, 1UL))
ATTEMPT(call_move_pages, syscall(SYS_move_pages, 0, 0UL, NULL, NULL, NULL, ~0))
ATTEMPT(call_migrate_pages, syscall(SYS_migrate_pages, 0, 0UL, NULL, NULL))
ATTEMPT(call_mbind, syscall(SYS_mbind, 0UL, 0UL, ~0, NULL, 0UL, 0U))
ATTEMPT(call_set_mempolicy, syscall(SYS_set_mempolicy, 0, NULL, 0UL))

// Other processes' memory. The process is a child of ours, so only a filter says no.
static void with_child(long (*act)(pid_t child)) {
    pid_t child = fork();
    if (child == 0) {
        alarm(10);
        pause();
        _exit(0);
    }
    long result = act(child);
    int error = errno;
    kill(child, SIGKILL);
    waitpid(child, NULL, __WALL);
    errno = error;
    judge_call(result);
}

static long seize(pid_t child) { return syscall(SYS_ptrace, PTRACE_SEIZE, child, 0L, 0L); }
static long attach(pid_t child) { return syscall(SYS_ptrace, PTRACE_ATTACH, child, 0L, 0L); }
static char memory_word[8];
static long read_memory(pid_t child) {
    char into[8];
    struct iovec here = {into, 8}, there = {memory_word, 8};
    return syscall(SYS_process_vm_readv, child, &here, 1UL, &there, 1UL, 0UL);
}
static long write_memory(pid_t child) {
    char from[8] = {0};
    struct iovec here = {from, 8}, there = {memory_word, 8};
    return syscall(SYS_process_vm_writev, child, &here, 1UL, &there, 1UL, 0UL);
}
static void call_seize(const struct attempt *self) { (void)self; with_child(seize); }
static void call_attach(const struct attempt *self) { (void)self; with_child(attach); }
static void call_read_memory(const struct attempt *self) { (void)self; with_child(read_memory); }
static void call_write_memory(const struct attempt *self) { (void)self; with_child(write_memory); }
ATTEMPT(call_traceme, syscall(SYS_ptrace, PTRACE_TRACEME, 0L, 0L, 0L))

// Identity and privileges. Judged by effect: an unmapped id answers EINVAL, which is a no as well.
static void identity(int raised) {
    int error = errno;
    if (raised)
        say_worked("uid %d gid %d", geteuid(), getegid());
    else
        say_refused(error, "uid %d gid %d", geteuid(), getegid());
}
static void call_setuid(const struct attempt *self) { (void)self; identity(syscall(SYS_setuid, 0) == 0 && geteuid() == 0); }
static void call_setgid(const struct attempt *self) { (void)self; identity(syscall(SYS_setgid, 0) == 0 && getegid() == 0); }
static void call_setreuid(const struct attempt *self) { (void)self; identity(syscall(SYS_setreuid, 0, 0) == 0 && geteuid() == 0); }
static void call_setregid(const struct attempt *self) { (void)self; identity(syscall(SYS_setregid, 0, 0) == 0 && getegid() == 0); }
static void call_setresuid(const struct attempt *self) { (void)self; identity(syscall(SYS_setresuid, 0, 0, 0) == 0 && geteuid() == 0); }
static void call_setresgid(const struct attempt *self) { (void)self; identity(syscall(SYS_setresgid, 0, 0, 0) == 0 && getegid() == 0); }
static void call_setuid_other(const struct attempt *self) { (void)self; identity(syscall(SYS_setresuid, 1234, 1234, 1234) == 0); }
static void call_setfsuid(const struct attempt *self) { (void)self; syscall(SYS_setfsuid, 0); identity(syscall(SYS_setfsuid, -1) == 0); }
static void call_setgroups(const struct attempt *self) {
    (void)self;
    gid_t wheel[] = {0, 4, 6};
    identity(syscall(SYS_setgroups, 3, wheel) == 0);
}

static long set_capabilities(unsigned inheritable) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    if (syscall(SYS_capget, &header, data) < 0)
        return -1;
    data[0].permitted |= 1U << CAP_CHOWN;
    data[0].effective |= 1U << CAP_CHOWN;
    data[0].inheritable |= inheritable;
    return syscall(SYS_capset, &header, data);
}
ATTEMPT(call_capset, set_capabilities(0))
static void call_ambient(const struct attempt *self) {
    (void)self;
    set_capabilities(1U << CAP_CHOWN);
    judge_call(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_CHOWN, 0, 0));
}
ATTEMPT(call_capbset, prctl(PR_CAPBSET_DROP, CAP_WAKE_ALARM, 0, 0, 0))
ATTEMPT(call_securebits, prctl(PR_SET_SECUREBITS, 0, 0, 0, 0))
ATTEMPT(call_set_mm, prctl(PR_SET_MM, 9999, 0, 0, 0))
ATTEMPT(call_io_flusher, prctl(57 /* PR_SET_IO_FLUSHER */, 1, 0, 0, 0))
ATTEMPT(call_personality, syscall(SYS_personality, (unsigned long)ADDR_NO_RANDOMIZE))
ATTEMPT(call_personality_exec, syscall(SYS_personality, (unsigned long)READ_IMPLIES_EXEC))

static void call_scheduler(const struct attempt *self) {
    struct sched_param first = {.sched_priority = 1};
    judge_call(syscall(SYS_sched_setscheduler, 0, (int)self->number, &first));
}
static void call_sched_deadline(const struct attempt *self) {
    (void)self;
    struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t runtime, deadline, period; } wish = {
        48, 6 /* SCHED_DEADLINE */, 0, 0, 0, 1000000, 100000000, 100000000};
    judge_call(syscall(SYS_sched_setattr, 0, &wish, 0U));
}
ATTEMPT(call_ioprio, syscall(SYS_ioprio_set, 1, 0, 1 << 13 /* real time */))

static void call_mknod(const struct attempt *self) {
    char path[128];
    snprintf(path, sizeof path, "%s/node", scratch_dir());
    // 1:3 is /dev/null and 7:250 a loop device nobody has: even if it works there is nothing to break.
    judge_call(syscall(SYS_mknodat, AT_FDCWD, path, (mode_t)self->number | 0600,
                       self->number == S_IFCHR ? makedev(1, 3) : makedev(7, 250)));
}

// Terminals: on a descriptor that is none the kernel says ENOTTY, a filter EPERM.
static void call_ioctl(const struct attempt *self) {
    char letter = 'x';
    judge_call(syscall(SYS_ioctl, open("/dev/null", O_RDWR), (unsigned long)self->number, &letter));
}
static void call_ioctl_high(const struct attempt *self) {
    char letter = 'x';
    judge_call(syscall(SYS_ioctl, open("/dev/null", O_RDWR), (unsigned long)self->number | HIGH_BIT, &letter));
}

// Other ABIs of the same kernel, which a filter for x86-64 alone does not see.
static void call_x32(const struct attempt *self) {
    long result = syscall(0x40000000L | self->number, -1L, -1L, -1L, -1L, -1L, -1L);
    judge_call(result);
}
static void call_int80(const struct attempt *self) {
#if defined(__x86_64__)
    long result = self->number;
    __asm__ volatile("int $0x80" : "+a"(result) : "b"(0), "c"(0), "d"(0), "S"(0), "D"(0) : "memory", "r8", "r9", "r10", "r11");
    result = (int)result;
    if (result < 0) {
        errno = (int)-result;
        result = -1;
    }
    judge_call(result);
#else
    (void)self;
    say_absent(ENOSYS, "no 32-bit gate on this machine");
#endif
}

static const struct attempt attempts[] = {
    {"mounts", "mount", call_mount, 0, 0},
    {"mounts", "umount2", call_umount2, 0, 0},
    {"mounts", "pivot_root", call_pivot_root, 0, 0},
    {"mounts", "chroot", call_chroot, 0, 0},
    {"mounts", "open_tree", call_open_tree, 0, 0},
    {"mounts", "open_tree_attr", call_invalid, 0, NR_open_tree_attr},
    {"mounts", "move_mount", call_move_mount, 0, 0},
    {"mounts", "fsopen", call_fsopen, 0, 0},
    {"mounts", "fsconfig", call_fsconfig, 0, 0},
    {"mounts", "fsmount", call_invalid, 0, SYS_fsmount},
    {"mounts", "fspick", call_fspick, 0, 0},
    {"mounts", "mount_setattr", call_mount_setattr, 0, 0},
    {"mounts", "statmount", call_invalid, 0, NR_statmount},
    {"mounts", "listmount", call_invalid, 0, NR_listmount},

    {"namespaces", "unshare-newns", call_unshare, 0, CLONE_NEWNS},
    {"namespaces", "unshare-newuts", call_unshare, 0, CLONE_NEWUTS},
    {"namespaces", "unshare-newipc", call_unshare, 0, CLONE_NEWIPC},
    {"namespaces", "unshare-newuser", call_unshare, 0, CLONE_NEWUSER},
    {"namespaces", "unshare-newpid", call_unshare, 0, CLONE_NEWPID},
    {"namespaces", "unshare-newnet", call_unshare, 0, CLONE_NEWNET},
    {"namespaces", "unshare-newcgroup", call_unshare, 0, CLONE_NEWCGROUP},
    {"namespaces", "unshare-newtime", call_unshare, 0, CLONE_NEWTIME},
    {"namespaces", "unshare-newuser-and-newns", call_unshare, 0, CLONE_NEWUSER | CLONE_NEWNS},
    {"namespaces", "setns-any", call_setns, 0, 0},
    {"namespaces", "setns-newns", call_setns, 0, CLONE_NEWNS},
    {"namespaces", "setns-newuser", call_setns, 0, CLONE_NEWUSER},
    {"namespaces", "setns-newpid", call_setns, 0, CLONE_NEWPID},
    {"namespaces", "setns-newnet", call_setns, 0, CLONE_NEWNET},
    {"namespaces", "clone-newns", call_clone, 0, CLONE_NEWNS},
    {"namespaces", "clone-newuts", call_clone, 0, CLONE_NEWUTS},
    {"namespaces", "clone-newipc", call_clone, 0, CLONE_NEWIPC},
    {"namespaces", "clone-newuser", call_clone, 0, CLONE_NEWUSER},
    {"namespaces", "clone-newpid", call_clone, 0, CLONE_NEWPID},
    {"namespaces", "clone-newnet", call_clone, 0, CLONE_NEWNET},
    {"namespaces", "clone-newcgroup", call_clone, 0, CLONE_NEWCGROUP},
    {"namespaces", "clone-newuser-and-newpid", call_clone, 0, CLONE_NEWUSER | CLONE_NEWPID},
    {"namespaces", "clone-newuser-high-bits", call_clone, 0, CLONE_NEWUSER | (1L << 40)},
    {"namespaces", "clone3-newuser", call_clone3, 0, CLONE_NEWUSER},
    {"namespaces", "clone3-newns", call_clone3, 0, CLONE_NEWNS},
    {"namespaces", "clone3-newtime", call_clone3, 0, CLONE_NEWTIME},

    {"host", "swapon", call_swapon, 0, 0},
    {"host", "swapoff", call_swapoff, 0, 0},
    {"host", "reboot", call_reboot, 0, 0},
    {"host", "kexec_load", call_kexec_load, 0, 0},
    {"host", "kexec_file_load", call_kexec_file_load, 0, 0},
    {"host", "init_module", call_init_module, 0, 0},
    {"host", "finit_module", call_finit_module, 0, 0},
    {"host", "delete_module", call_delete_module, 0, 0},
#if defined(__x86_64__)
    {"host", "iopl", call_invalid, 0, SYS_iopl}, // level -1
    {"host", "ioperm", call_invalid, 0, SYS_ioperm},
    {"host", "modify_ldt", call_null, 0, SYS_modify_ldt}, // reads an empty table
    {"host", "uselib", call_uselib, 0, 0},
    {"host", "sysfs", call_sysfs, 0, 0},
    {"host", "create_module", call_null, 0, SYS_create_module},
    {"host", "query_module", call_null, 0, SYS_query_module},
    {"host", "get_kernel_syms", call_null, 0, SYS_get_kernel_syms},
    {"host", "ustat", call_invalid, 0, SYS_ustat},
#endif
    {"host", "acct", call_acct, 0, 0},
    {"host", "quotactl", call_quotactl, 0, 0},
    {"host", "quotactl_fd", call_invalid, 0, 443},
    {"host", "settimeofday", call_settimeofday, 0, 0},
    {"host", "clock_settime", call_clock_settime, 0, 0},
    {"host", "clock_adjtime", call_adjtime, 0, SYS_clock_adjtime},
    {"host", "adjtimex", call_adjtime, 0, SYS_adjtimex},
    {"host", "sethostname", call_sethostname, 0, 0},
    {"host", "setdomainname", call_setdomainname, 0, 0},
    {"host", "syslog", call_syslog, 0, 0},
    {"host", "vhangup", call_vhangup, 0, 0},
    {"host", "nfsservctl", call_null, 0, SYS_nfsservctl},
    {"host", "lookup_dcookie", call_lookup_dcookie, 0, 0},
    {"host", "lsm_set_self_attr", call_invalid, 0, NR_lsm_set_self_attr},

    {"kernel", "bpf", call_bpf, 0, 0},
    {"kernel", "perf_event_open", call_perf_event_open, 0, 0},
    {"kernel", "userfaultfd", call_userfaultfd, 0, 0},
    {"kernel", "io_uring_setup", call_io_uring_setup, 0, 0},
    {"kernel", "io_uring_enter", call_io_uring_enter, 0, 0},
    {"kernel", "io_uring_register", call_io_uring_register, 0, 0},
    {"kernel", "add_key", call_add_key, 0, 0},
    {"kernel", "request_key", call_request_key, 0, 0},
    {"kernel", "keyctl", call_keyctl, 0, 0},
    {"kernel", "open_by_handle_at", call_open_by_handle_at, 0, 0},
    {"kernel", "name_to_handle_at", call_name_to_handle_at, 0, 0},
    {"kernel", "fanotify_init", call_fanotify_init, 0, 0},
    {"kernel", "fanotify_mark", call_fanotify_mark, 0, 0},
    {"kernel", "memfd_secret", call_memfd_secret, 0, 0},
    {"kernel", "move_pages", call_move_pages, 0, 0},
    {"kernel", "migrate_pages", call_migrate_pages, 0, 0},
    {"kernel", "mbind", call_mbind, 0, 0},
    {"kernel", "set_mempolicy", call_set_mempolicy, 0, 0},
    {"kernel", "set_mempolicy_home_node", call_invalid, 0, NR_set_mempolicy_home_node},
    {"kernel", "personality-no-randomize", call_personality, 0, 0},
    {"kernel", "personality-read-implies-exec", call_personality_exec, 0, 0},

    {"tracing", "ptrace-traceme", call_traceme, 0, 0},
    {"tracing", "ptrace-attach-child", call_attach, 0, 0},
    {"tracing", "ptrace-seize-child", call_seize, 0, 0},
    {"tracing", "process_vm_readv-child", call_read_memory, 0, 0},
    {"tracing", "process_vm_writev-child", call_write_memory, 0, 0},
    {"tracing", "kcmp", call_kcmp, 0, 0},
    {"tracing", "pidfd_getfd", call_pidfd_getfd, 0, 0},
    {"tracing", "process_madvise", call_process_madvise, 0, 0},

    {"identity", "setuid-0", call_setuid, 0, 0},
    {"identity", "setgid-0", call_setgid, 0, 0},
    {"identity", "setreuid-0", call_setreuid, 0, 0},
    {"identity", "setregid-0", call_setregid, 0, 0},
    {"identity", "setresuid-0", call_setresuid, 0, 0},
    {"identity", "setresgid-0", call_setresgid, 0, 0},
    {"identity", "setresuid-1234", call_setuid_other, 0, 0},
    {"identity", "setfsuid-0", call_setfsuid, 0, 0},
    {"identity", "setgroups", call_setgroups, 0, 0},
    {"identity", "capset", call_capset, 0, 0},
    {"identity", "ambient-capability", call_ambient, 0, 0},
    {"identity", "bounding-set-drop", call_capbset, 0, 0},
    {"identity", "securebits-clear", call_securebits, 0, 0},
    {"identity", "prctl-set-mm", call_set_mm, 0, 0},
    {"identity", "prctl-io-flusher", call_io_flusher, 0, 0},
    {"identity", "sched-fifo", call_scheduler, 0, SCHED_FIFO},
    {"identity", "sched-rr", call_scheduler, 0, SCHED_RR},
    {"identity", "sched-deadline", call_sched_deadline, 0, 0},
    {"identity", "ioprio-realtime", call_ioprio, 0, 0},
    {"identity", "mknod-char", call_mknod, 0, S_IFCHR},
    {"identity", "mknod-block", call_mknod, 0, S_IFBLK},

    {"terminal", "ioctl-tiocsti", call_ioctl, 0, 0x5412},
    {"terminal", "ioctl-tioclinux", call_ioctl, 0, 0x541c},
    {"terminal", "ioctl-tiocsti-high-bits", call_ioctl_high, 0, 0x5412},
    {"terminal", "ioctl-tioclinux-high-bits", call_ioctl_high, 0, 0x541c},

    {"abi", "x32-getpid", call_x32, 0, 39},
    {"abi", "x32-mount", call_x32, 0, 165},
    {"abi", "int80-getpid", call_int80, 0, 20},
    {"abi", "int80-mount", call_int80, 0, 21},
    {"abi", "int80-unshare", call_int80, 0, 310},
    {"abi", "int80-ptrace", call_int80, 0, 26}, // PTRACE_TRACEME
};

const struct wall wall_syscalls = {"syscalls", attempts, COUNT(attempts), 15};
