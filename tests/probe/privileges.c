// Wall: what the payload is. Facts from the kernel about ourselves; "worked" is a privilege that should not be there.
#include "probe.h"
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <time.h>

static void capabilities(const struct attempt *self) {
    char text[64];
    status_field(self->text, text, sizeof text);
    if (!text[0])
        say_absent(0, "no %s in status", self->text);
    else if (strtoull(text, NULL, 16))
        say_worked("%s", text);
    else
        say_refused(0, "%s", text);
}

// Fields that must hold one number.
static void must_be(const struct attempt *self) {
    char text[64];
    if (!status_field(self->text, text, sizeof text)[0])
        say_absent(0, "no %s in status", self->text);
    else if (strtol(text, NULL, 10) == self->number)
        say_refused(0, "%s", text);
    else
        say_worked("%s", text);
}

static void ids(const struct attempt *self) {
    char text[64];
    long id[4] = {-1, -1, -1, -1};
    sscanf(status_field(self->text, text, sizeof text), "%ld %ld %ld %ld", &id[0], &id[1], &id[2], &id[3]);
    for (int i = 0; i < 4; i++)
        if (id[i] != 1000)
            say_worked("%s", text);
    say_refused(0, "%s", text);
}

static void groups(const struct attempt *self) {
    (void)self;
    gid_t list[64];
    int count = getgroups(64, list);
    if (count > 0)
        say_worked("%d groups, the first is %d", count, list[0]);
    else
        say_refused(0, "none");
}

static void id_map(const struct attempt *self) {
    FILE *file = fopen(self->text, "re");
    unsigned long inside, outside, length;
    int lines = 0;
    while (file && fscanf(file, "%lu %lu %lu", &inside, &outside, &length) == 3) {
        lines++;
        if (outside == 0)
            say_worked("%lu is the host's %lu, and %lu more", inside, outside, length - 1);
    }
    if (lines)
        say_refused(0, "%d ranges, none from the host's 0", lines);
    else
        say_absent(0, "no map");
}

static void securebits(const struct attempt *self) {
    int bits = prctl(PR_GET_SECUREBITS, 0, 0, 0, 0);
    if (bits >= 0 && (bits & self->number) == self->number)
        say_refused(0, "0x%x", bits);
    else
        say_worked("0x%x", bits);
}

static void setuid_mount(const struct attempt *self) {
    struct statvfs what;
    if (statvfs(self->text, &what) < 0)
        judge_path(-1);
    else if (what.f_flag & ST_NOSUID)
        say_refused(0, "nosuid");
    else
        say_worked("set-user-id is honoured there");
}

// Start a real set-user-id program as nobody in particular and look at what it becomes while it waits for a password.
static void setuid_program(const struct attempt *self) {
    static const char *const programs[] = {"/usr/bin/su", "/bin/su", "/usr/bin/passwd", "/usr/bin/newgrp", NULL};
    (void)self;
    struct stat what;
    const char *program = NULL;
    for (int i = 0; programs[i] && !program; i++)
        if (stat(programs[i], &what) == 0 && what.st_mode & S_ISUID)
            program = programs[i];
    if (!program) {
        say_absent(ENOENT, "no set-user-id program here");
        return;
    }
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return;
    uid_t plain = geteuid() == 0 ? 65534 : geteuid();
    pid_t child = fork();
    if (child == 0) {
        int nothing = open("/dev/null", O_RDWR);
        setsid();
        dup2(ends[0], 0);
        dup2(nothing, 1);
        dup2(nothing, 2);
        if (geteuid() == 0 && (setresgid(65534, 65534, 65534) < 0 || setresuid(65534, 65534, 65534) < 0))
            _exit(3);
        alarm(10);
        execl(program, program, (char *)NULL);
        _exit(4);
    }
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", child);
    int status, raised = 0, ended = 0;
    for (time_t end = time(NULL) + 3; time(NULL) < end && !raised && !ended;) {
        FILE *file = fopen(path, "re");
        unsigned real, effective;
        int started = 0;
        if (!file && errno == EACCES)
            raised = 1; // hidden from us: it is somebody else now
        while (file && fgets(line, sizeof line, file)) {
            if (strncmp(line, "Name:", 5) == 0)
                started = strstr(line, "probe") == NULL;
            if (started && sscanf(line, "Uid: %u %u", &real, &effective) == 2 && effective != plain && effective == 0)
                raised = 1;
        }
        if (file)
            fclose(file);
        ended = waitpid(child, &status, WNOHANG) == child;
    }
    if (!ended) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    if (raised)
        say_worked("%s ran as root", program);
    else
        say_refused(0, "%s stayed uid %u", program, plain);
}

static void nested_user_namespace(const struct attempt *self) {
    (void)self;
    judge_call(unshare(CLONE_NEWUSER));
}

static void hard_limit(const struct attempt *self) {
    struct rlimit now;
    getrlimit((int)self->number, &now);
    if (now.rlim_max == 0)
        say_refused(0, "0");
    else
        say_worked("%lld", (long long)now.rlim_max);
}
static void raise_limit(const struct attempt *self) {
    struct rlimit now;
    getrlimit((int)self->number, &now);
    if (now.rlim_max == RLIM_INFINITY) {
        say_worked("it is unlimited");
        return;
    }
    now.rlim_max++;
    judge_call(setrlimit((int)self->number, &now));
}

static void mask(const struct attempt *self) {
    (void)self;
    mode_t now = umask(0);
    if ((now & 022) == 022)
        say_refused(0, "%03o", now);
    else
        say_worked("%03o lets others write", now);
}

static void hostname(const struct attempt *self) {
    (void)self;
    struct utsname names;
    uname(&names);
    if (strcmp(names.nodename, "sandbox") == 0)
        say_refused(0, "%s", names.nodename);
    else
        say_worked("%s", names.nodename);
}

static void init_is_ours(const struct attempt *self) {
    (void)self;
    struct stat what;
    if (getpid() == 1 || probe_pid == 1)
        say_worked("we are pid 1");
    else if (stat("/proc/1", &what) < 0)
        judge_path(-1);
    else if (what.st_uid == geteuid())
        say_worked("pid 1 runs as us");
    else
        say_refused(0, "pid 1 belongs to %u", what.st_uid);
}

static void namespace_shared(const struct attempt *self) {
    char path[64], target[128] = "";
    snprintf(path, sizeof path, "/proc/self/ns/%s", self->text);
    const char *host = arg(self->name, NULL); // ns-mnt=mnt:[…] as the host has it
    if (!host || readlink(path, target, sizeof target - 1) < 0)
        say_absent(errno, "no %s given", self->name);
    else if (strcmp(host, target) == 0)
        say_worked("%s, the host's", target);
    else
        say_refused(0, "%s", target);
}

// SECBIT_NOROOT 1, NO_SETUID_FIXUP 4, KEEP_CAPS 16, NO_CAP_AMBIENT_RAISE 64; the lock of each is the bit above.
static const struct attempt attempts[] = {
    {"capabilities", "inheritable-capabilities", capabilities, "CapInh", 0},
    {"capabilities", "permitted-capabilities", capabilities, "CapPrm", 0},
    {"capabilities", "effective-capabilities", capabilities, "CapEff", 0},
    {"capabilities", "bounding-capabilities", capabilities, "CapBnd", 0},
    {"capabilities", "ambient-capabilities", capabilities, "CapAmb", 0},
    {"capabilities", "securebits-noroot-unlocked", securebits, 0, 0x3},
    {"capabilities", "securebits-setuid-fixup-unlocked", securebits, 0, 0xc},
    {"capabilities", "securebits-keep-caps-unlocked", securebits, 0, 0x20},
    {"capabilities", "securebits-ambient-unlocked", securebits, 0, 0xc0},

    {"process", "new-privileges", must_be, "NoNewPrivs", 1},
    {"process", "no-filter", must_be, "Seccomp", 2},
    {"process", "core-dumps", hard_limit, 0, RLIMIT_CORE},
    {"process", "raise-nofile", raise_limit, 0, RLIMIT_NOFILE},
    {"process", "raise-core", raise_limit, 0, RLIMIT_CORE},
    {"process", "raise-stack", raise_limit, 0, RLIMIT_STACK},
    {"process", "raise-fsize", raise_limit, 0, RLIMIT_FSIZE},
    {"process", "open-umask", mask, 0, 0},
    {"process", "pid-1-is-ours", init_is_ours, 0, 0},

    {"identity", "uid-is-not-1000", ids, "Uid", 0},
    {"identity", "gid-is-not-1000", ids, "Gid", 0},
    {"identity", "supplementary-groups", groups, 0, 0},
    {"identity", "host-root-in-uid-map", id_map, "/proc/self/uid_map", 0},
    {"identity", "host-root-in-gid-map", id_map, "/proc/self/gid_map", 0},
    {"identity", "hostname-is-the-hosts", hostname, 0, 0},

    {"setuid", "setuid-mount-usr", setuid_mount, "/usr/bin", 0},
    {"setuid", "setuid-mount-bin", setuid_mount, "/bin", 0},
    {"setuid", "setuid-mount-root", setuid_mount, "/", 0},
    {"setuid", "setuid-mount-etc", setuid_mount, "/etc", 0},
    {"setuid", "setuid-program", setuid_program, 0, 0},
    {"setuid", "nested-user-namespace", nested_user_namespace, 0, 0},

    {"namespaces", "ns-user", namespace_shared, "user", 0},
    {"namespaces", "ns-mnt", namespace_shared, "mnt", 0},
    {"namespaces", "ns-pid", namespace_shared, "pid", 0},
    {"namespaces", "ns-net", namespace_shared, "net", 0},
    {"namespaces", "ns-ipc", namespace_shared, "ipc", 0},
    {"namespaces", "ns-uts", namespace_shared, "uts", 0},
    {"namespaces", "ns-cgroup", namespace_shared, "cgroup", 0},
};

const struct wall wall_privileges = {"privileges", attempts, COUNT(attempts), 15};
