// Wall: other processes. `pid` is one that is not ours: the sandbox's pid 1 inside, a `sleep` of the test outside;
// `host-pid` is a process of the host in both. Signal 0 only: it checks the permission and delivers nothing.
#include "probe.h"
#include <sched.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/uio.h>

static pid_t given(const char *key) {
    pid_t pid = (pid_t)arg_number(key, 0);
    if (pid <= 0) {
        say_absent(0, "no %s given", key);
        _exit(0);
    }
    return pid;
}
static pid_t other(void) { return given("pid"); }
static pid_t host(void) { return given("host-pid"); }

// A process that is not there (ESRCH) cannot be reached.
static void judge(long result) {
    if (result < 0 && errno == ESRCH)
        say_absent(errno, "no such process");
    else
        judge_call(result);
}

static pid_t target(const struct attempt *self) { return self->number ? host() : other(); }

static void signal_it(const struct attempt *self) { judge(kill(target(self), 0)); }
static void signal_group(const struct attempt *self) { judge(kill(-target(self), 0)); }
static void signal_thread(const struct attempt *self) { judge(syscall(SYS_tkill, target(self), 0)); }
static void signal_tgkill(const struct attempt *self) { pid_t pid = target(self); judge(syscall(SYS_tgkill, pid, pid, 0)); }
static void queue_signal(const struct attempt *self) {
    siginfo_t what = {.si_code = SI_QUEUE};
    judge(syscall(SYS_rt_sigqueueinfo, target(self), 0, &what));
}
static void signal_pidfd(const struct attempt *self) {
    long fd = syscall(SYS_pidfd_open, target(self), 0);
    judge(fd < 0 ? fd : syscall(SYS_pidfd_send_signal, fd, 0, NULL, 0));
}
static void take_descriptor(const struct attempt *self) {
    long fd = syscall(SYS_pidfd_open, target(self), 0);
    judge(fd < 0 ? fd : syscall(SYS_pidfd_getfd, fd, 0, 0));
}
// SIGIO to a process of our choice: the owner is checked when the signal is sent, so this only counts where F_SETOWN is
// accepted and the pid exists.
static void own_signal(const struct attempt *self) {
    int ends[2];
    judge(pipe(ends) < 0 ? -1 : fcntl(ends[0], F_SETOWN, target(self)));
}
static void trace(const struct attempt *self) {
    pid_t pid = target(self);
    long result = syscall(SYS_ptrace, PTRACE_SEIZE, pid, 0L, 0L);
    judge(result); // we end at once, which lets go of it
}
static void read_memory(const struct attempt *self) {
    char into;
    struct iovec here = {&into, 1}, there = {(void *)1, 1}; // nothing is mapped there
    judge(syscall(SYS_process_vm_readv, target(self), &here, 1UL, &there, 1UL, 0UL));
}
static void limits(const struct attempt *self) {
    struct rlimit now;
    judge(syscall(SYS_prlimit64, target(self), RLIMIT_CORE, NULL, &now));
}
static void affinity(const struct attempt *self) {
    unsigned long mask[16] = {0};
    // An empty mask is refused by everyone who gets that far.
    judge(syscall(SYS_sched_setaffinity, target(self), sizeof mask, mask));
}
static void priority(const struct attempt *self) {
    pid_t pid = target(self);
    errno = 0;
    int now = getpriority(PRIO_PROCESS, (id_t)pid);
    judge(now == -1 && errno ? -1 : setpriority(PRIO_PROCESS, (id_t)pid, now));
}
static void io_priority(const struct attempt *self) {
    pid_t pid = target(self);
    long now = syscall(SYS_ioprio_get, 1, pid);
    judge(now < 0 ? now : syscall(SYS_ioprio_set, 1, pid, now));
}
static void robust_list(const struct attempt *self) {
    void *head;
    size_t length;
    judge(syscall(SYS_get_robust_list, target(self), &head, &length));
}
static void compare(const struct attempt *self) { judge(syscall(SYS_kcmp, target(self), getpid(), 0, 0UL, 0UL)); }

static void enter(const struct attempt *self) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", other(), self->text);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        judge_path(-1);
    else
        judge_call(syscall(SYS_setns, fd, 0));
}
static void enter_pidfd(const struct attempt *self) {
    long fd = syscall(SYS_pidfd_open, other(), 0);
    judge(fd < 0 ? fd : syscall(SYS_setns, fd, self->number));
}

// Everyone we could signal, by trying all small pids and the given host pid.
static void reachable(const struct attempt *self) {
    (void)self;
    int reached = 0;
    pid_t last = 0;
    for (pid_t pid = 2; pid < 33000; pid++)
        if (pid != getpid() && pid != probe_pid && kill(pid, 0) == 0) {
            reached++;
            last = pid;
        }
    if (reached)
        say_worked("%d processes, the last is %d", reached, last);
    else
        say_refused(EPERM, "nobody but ourselves");
}

static void few_pids(const struct attempt *self) {
    (void)self;
    pid_t pid = probe_pid;
    if (pid < 100)
        say_refused(0, "we are pid %d", pid);
    else
        say_worked("we are pid %d: these are the host's numbers", pid);
}

#define HOST 1
static const struct attempt attempts[] = {
    {"host", "signal-host-process", signal_it, 0, HOST},
    {"host", "signal-host-group", signal_group, 0, HOST},
    {"host", "tkill-host-process", signal_thread, 0, HOST},
    {"host", "tgkill-host-process", signal_tgkill, 0, HOST},
    {"host", "sigqueue-host-process", queue_signal, 0, HOST},
    {"host", "pidfd-signal-host-process", signal_pidfd, 0, HOST},
    {"host", "sigio-host-process", own_signal, 0, HOST},
    {"host", "ptrace-host-process", trace, 0, HOST},
    {"host", "read-memory-of-host-process", read_memory, 0, HOST},
    {"host", "limits-of-host-process", limits, 0, HOST},
    {"host", "priority-of-host-process", priority, 0, HOST},
    {"host", "affinity-of-host-process", affinity, 0, HOST},
    {"host", "reachable-processes", reachable, 0, 0},
    {"host", "host-pid-numbers", few_pids, 0, 0},

    {"init", "signal-init", signal_it, 0, 0},
    {"init", "tkill-init", signal_thread, 0, 0},
    {"init", "tgkill-init", signal_tgkill, 0, 0},
    {"init", "sigqueue-init", queue_signal, 0, 0},
    {"init", "pidfd-signal-init", signal_pidfd, 0, 0},
    {"init", "take-descriptor-of-init", take_descriptor, 0, 0},
    {"init", "ptrace-init", trace, 0, 0},
    {"init", "read-memory-of-init", read_memory, 0, 0},
    {"init", "limits-of-init", limits, 0, 0},
    {"init", "priority-of-init", priority, 0, 0},
    {"init", "io-priority-of-init", io_priority, 0, 0},
    {"init", "affinity-of-init", affinity, 0, 0},
    {"init", "robust-list-of-init", robust_list, 0, 0},
    {"init", "kcmp-with-init", compare, 0, 0},

    {"namespaces", "enter-mnt", enter, "mnt", 0},
    {"namespaces", "enter-pid", enter, "pid", 0},
    {"namespaces", "enter-net", enter, "net", 0},
    {"namespaces", "enter-ipc", enter, "ipc", 0},
    {"namespaces", "enter-uts", enter, "uts", 0},
    {"namespaces", "enter-user", enter, "user", 0},
    {"namespaces", "enter-cgroup", enter, "cgroup", 0},
    {"namespaces", "enter-all-by-pidfd", enter_pidfd, 0, CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC},
};

const struct wall wall_processes = {"processes", attempts, COUNT(attempts), 15};
