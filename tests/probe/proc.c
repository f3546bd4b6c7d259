// Wall: what /proc and /sys tell about the host, and the switches in them. Switches are opened for writing and closed;
// files are read for a few bytes, because a mask (an empty file bound over) opens like the real one.
#include "probe.h"
#include <ctype.h>
#include <dirent.h>

static void readable(const struct attempt *self) {
    int fd = open(self->text, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    char bytes[16];
    if (fd < 0) {
        judge_path(-1);
        return;
    }
    ssize_t got = read(fd, bytes, sizeof bytes);
    if (got == 0)
        say_refused(0, "empty");
    else if (got > 0 || errno == EAGAIN)
        say_worked("it can be read");
    else
        judge_path(-1);
}

static void writable(const struct attempt *self) {
    int fd = open(self->text, O_WRONLY | O_CLOEXEC);
    struct stat what;
    if (fd >= 0 && fstat(fd, &what) == 0 && S_ISCHR(what.st_mode))
        say_refused(0, "masked");
    else
        judge_path(fd);
}

// For what reading would use up (the kernel's log): opening it is the permission check.
static void openable(const struct attempt *self) {
    int fd = open(self->text, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat what;
    if (fd >= 0 && fstat(fd, &what) == 0 && S_ISCHR(what.st_mode))
        say_refused(0, "masked");
    else
        judge_path(fd);
}

// Lines that begin with an address other than zero: the host's memory layout.
static void addresses(const struct attempt *self) {
    FILE *file = fopen(self->text, "re");
    char line[512];
    if (!file) {
        judge_path(-1);
        return;
    }
    for (int lines = 0; lines < 100000 && fgets(line, sizeof line, file); lines++)
        if (strspn(line, " 0-:") < strspn(line, " 0123456789abcdef-:") && strtoull(line, NULL, 16) + 1 > 1) {
            say_worked("addresses are there");
            return;
        }
    say_refused(0, "no address in it");
}

static void lists(const struct attempt *self) {
    DIR *dir = opendir(self->text);
    if (!dir) {
        judge_path(-1);
        return;
    }
    int entries = 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        entries += entry->d_name[0] != '.';
    if (entries)
        say_worked("%d entries", entries);
    else
        say_absent(0, "empty");
}

// Files of a process that is not ours. `pid` has no default: outside, pid 1 is nobody's business.
static const char *of_other(const struct attempt *self) {
    static char path[256];
    if (!arg("pid", NULL)) {
        say_absent(0, "no pid given");
        _exit(0);
    }
    snprintf(path, sizeof path, "/proc/%s/%s", arg("pid", NULL), self->text);
    return path;
}
static void other_readable(const struct attempt *self) {
    // Opening is the permission check; nothing of it is read. environ and maps check at open as well.
    int fd = open(of_other(self), (int)self->number | O_NONBLOCK | O_CLOEXEC);
    judge_path(fd);
}
static void other_link(const struct attempt *self) {
    char target[256];
    judge_path(readlink(of_other(self), target, sizeof target));
}
static void other_lists(const struct attempt *self) {
    struct attempt there = *self;
    there.text = of_other(self);
    lists(&there);
}

static void host_pid(const struct attempt *self) {
    (void)self;
    char path[64];
    const char *pid = arg("host-pid", NULL);
    if (!pid) {
        say_absent(0, "no host-pid given");
        return;
    }
    snprintf(path, sizeof path, "/proc/%s", pid);
    struct stat what;
    judge_path(stat(path, &what));
}

static void many_pids(const struct attempt *self) {
    (void)self;
    DIR *dir = opendir("/proc");
    int pids = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        pids += isdigit((unsigned char)entry->d_name[0]) != 0;
    if (pids > 10)
        say_worked("%d processes", pids);
    else
        say_refused(0, "%d processes", pids);
}

static void cgroup_path(const struct attempt *self) {
    (void)self;
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[1024];
    if (!file) {
        judge_path(-1);
        return;
    }
    while (fgets(line, sizeof line, file)) {
        char *path = strrchr(line, ':');
        if (path && strcmp(path, ":/\n") != 0 && strncmp(path, ":/..", 4) != 0) {
            path[strcspn(path, "\n")] = 0;
            say_worked("%s", path + 1);
            return;
        }
    }
    say_refused(0, "only roots");
}

static const struct attempt attempts[] = {
    {"secrets", "proc-kcore", readable, "/proc/kcore", 0},
    {"secrets", "proc-kallsyms", readable, "/proc/kallsyms", 0},
    {"secrets", "proc-kallsyms-addresses", addresses, "/proc/kallsyms", 0},
    {"secrets", "proc-keys", readable, "/proc/keys", 0},
    {"secrets", "proc-key-users", readable, "/proc/key-users", 0},
    {"secrets", "proc-timer-list", readable, "/proc/timer_list", 0},
    {"secrets", "proc-kmsg", openable, "/proc/kmsg", 0},
    {"secrets", "proc-kpagecount", readable, "/proc/kpagecount", 0},
    {"secrets", "proc-kpageflags", readable, "/proc/kpageflags", 0},
    {"secrets", "proc-kpagecgroup", readable, "/proc/kpagecgroup", 0},
    {"secrets", "proc-sched-debug", readable, "/proc/sched_debug", 0},
    {"secrets", "proc-slabinfo", readable, "/proc/slabinfo", 0},
    {"secrets", "proc-vmallocinfo", readable, "/proc/vmallocinfo", 0},
    {"secrets", "proc-pagetypeinfo", readable, "/proc/pagetypeinfo", 0},
    {"secrets", "proc-modules", readable, "/proc/modules", 0},
    {"secrets", "proc-iomem-addresses", addresses, "/proc/iomem", 0},
    {"secrets", "proc-ioports-addresses", addresses, "/proc/ioports", 0},
    {"secrets", "proc-interrupts", readable, "/proc/interrupts", 0},
    {"secrets", "proc-latency-stats", readable, "/proc/latency_stats", 0},
    {"secrets", "proc-mtrr", readable, "/proc/mtrr", 0},
    {"secrets", "proc-acpi", lists, "/proc/acpi", 0},
    {"secrets", "proc-scsi", lists, "/proc/scsi", 0},
    {"secrets", "proc-asound", lists, "/proc/asound", 0},

    {"switches", "write-sysrq-trigger", writable, "/proc/sysrq-trigger", 0},
    {"switches", "write-core-pattern", writable, "/proc/sys/kernel/core_pattern", 0},
    {"switches", "write-modprobe", writable, "/proc/sys/kernel/modprobe", 0},
    {"switches", "write-hotplug", writable, "/proc/sys/kernel/hotplug", 0},
    {"switches", "write-sysrq", writable, "/proc/sys/kernel/sysrq", 0},
    {"switches", "write-panic", writable, "/proc/sys/kernel/panic", 0},
    {"switches", "write-hostname", writable, "/proc/sys/kernel/hostname", 0},
    {"switches", "write-randomize", writable, "/proc/sys/kernel/randomize_va_space", 0},
    {"switches", "write-kptr-restrict", writable, "/proc/sys/kernel/kptr_restrict", 0},
    {"switches", "write-ns-last-pid", writable, "/proc/sys/kernel/ns_last_pid", 0},
    {"switches", "write-shmmax", writable, "/proc/sys/kernel/shmmax", 0},
    {"switches", "write-shm-rmid-forced", writable, "/proc/sys/kernel/shm_rmid_forced", 0},
    {"switches", "write-overcommit", writable, "/proc/sys/vm/overcommit_memory", 0},
    {"switches", "write-drop-caches", writable, "/proc/sys/vm/drop_caches", 0},
    {"switches", "write-panic-on-oom", writable, "/proc/sys/vm/panic_on_oom", 0},
    {"switches", "write-hugepages", writable, "/proc/sys/vm/nr_hugepages", 0},
    {"switches", "write-mmap-min-addr", writable, "/proc/sys/vm/mmap_min_addr", 0},
    {"switches", "write-file-max", writable, "/proc/sys/fs/file-max", 0},
    {"switches", "write-suid-dumpable", writable, "/proc/sys/fs/suid_dumpable", 0},
    {"switches", "write-binfmt-misc", writable, "/proc/sys/fs/binfmt_misc/register", 0},
    {"switches", "write-protected-symlinks", writable, "/proc/sys/fs/protected_symlinks", 0},
    {"switches", "write-mqueue-max", writable, "/proc/sys/fs/mqueue/queues_max", 0},
    {"switches", "write-ip-forward", writable, "/proc/sys/net/ipv4/ip_forward", 0},
    {"switches", "write-port-start", writable, "/proc/sys/net/ipv4/ip_unprivileged_port_start", 0},
    {"switches", "write-max-user-namespaces", writable, "/proc/sys/user/max_user_namespaces", 0},

    {"other-process", "other-environ", other_readable, "environ", O_RDONLY},
    {"other-process", "other-maps", other_readable, "maps", O_RDONLY},
    {"other-process", "other-smaps", other_readable, "smaps", O_RDONLY},
    {"other-process", "other-mem", other_readable, "mem", O_RDWR},
    {"other-process", "other-auxv", other_readable, "auxv", O_RDONLY},
    {"other-process", "other-pagemap", other_readable, "pagemap", O_RDONLY},
    {"other-process", "other-mountinfo", other_readable, "mountinfo", O_RDONLY},
    {"other-process", "other-oom-score", other_readable, "oom_score_adj", O_WRONLY},
    {"other-process", "other-fd", other_lists, "fd", 0},
    {"other-process", "other-fdinfo", other_lists, "fdinfo", 0},
    {"other-process", "other-map-files", other_lists, "map_files", 0},
    {"other-process", "other-root-listed", other_lists, "root/", 0},
    {"other-process", "other-cwd-listed", other_lists, "cwd/", 0},
    {"other-process", "other-root", other_link, "root", 0},
    {"other-process", "other-cwd", other_link, "cwd", 0},
    {"other-process", "other-exe", other_link, "exe", 0},
    {"other-process", "other-exe-opened", other_readable, "exe", O_RDONLY},
    {"other-process", "other-ns-mnt", other_link, "ns/mnt", 0},
    {"other-process", "other-ns-user", other_link, "ns/user", 0},
    {"other-process", "other-ns-net", other_link, "ns/net", 0},

    {"host-seen", "host-pid-in-proc", host_pid, 0, 0},
    {"host-seen", "more-than-ten-processes", many_pids, 0, 0},
    {"host-seen", "host-cgroup-path", cgroup_path, 0, 0},

    {"sys", "sys-kernel", lists, "/sys/kernel", 0},
    {"sys", "sys-module", lists, "/sys/module", 0},
    {"sys", "sys-firmware", lists, "/sys/firmware", 0},
    {"sys", "sys-block", lists, "/sys/block", 0},
    {"sys", "sys-class-net", lists, "/sys/class/net", 0},
    {"sys", "sys-devices", lists, "/sys/devices", 0},
    {"sys", "sys-debug", lists, "/sys/kernel/debug", 0},
    {"sys", "sys-tracing", lists, "/sys/kernel/tracing", 0},
    {"sys", "sys-security", lists, "/sys/kernel/security", 0},
    {"sys", "sys-vmcoreinfo", readable, "/sys/kernel/vmcoreinfo", 0},
    {"sys", "sys-uevent-helper", writable, "/sys/kernel/uevent_helper", 0},
    {"sys", "sys-power-state", writable, "/sys/power/state", 0},
    {"sys", "cgroupfs", lists, "/sys/fs/cgroup", 0},
    {"sys", "cgroup-procs", writable, "/sys/fs/cgroup/cgroup.procs", 0},
    {"sys", "cgroup-memory-procs", writable, "/sys/fs/cgroup/memory/cgroup.procs", 0},
    {"sys", "cgroup-release-agent", writable, "/sys/fs/cgroup/memory/release_agent", 0},
    {"sys", "cgroup-unified-procs", writable, "/sys/fs/cgroup/unified/cgroup.procs", 0},
};

const struct wall wall_proc = {"proc", attempts, COUNT(attempts), 15};
