// Wall: what is handed down by accident. Descriptors, environment, terminal, session.
#include "probe.h"
#include <sys/ioctl.h>

extern char **environ;

static void inherited(const struct attempt *self) {
    (void)self;
    for (int fd = 3; fd < 65536; fd++)
        if (fcntl(fd, F_GETFD) >= 0) {
            char path[64], target[200] = "";
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            ssize_t length = readlink(path, target, sizeof target - 1);
            say_worked("%d is %.*s", fd, (int)(length > 0 ? length : 0), target);
            return;
        }
    say_refused(EBADF, "0, 1 and 2 only");
}

// Standard streams must be pipes, sockets or /dev/null: nothing that leads to a file, directory or terminal of the host.
static void standard(const struct attempt *self) {
    struct stat what;
    if (fstat((int)self->number, &what) < 0) {
        say_refused(errno, "closed");
        return;
    }
    if (S_ISREG(what.st_mode) || S_ISDIR(what.st_mode) || S_ISBLK(what.st_mode) || isatty((int)self->number))
        say_worked("mode %o", what.st_mode);
    else
        say_refused(0, "mode %o", what.st_mode);
}

// A pipe that is also open the other way round would let the payload read what it wrote, or another's input.
static void both_ways(const struct attempt *self) {
    int flags = fcntl((int)self->number, F_GETFL);
    struct stat what;
    if (flags < 0 || fstat((int)self->number, &what) < 0)
        say_refused(errno, "closed");
    else if (S_ISFIFO(what.st_mode) && (flags & O_ACCMODE) == O_RDWR)
        say_worked("a pipe open for both");
    else
        say_refused(0, "flags %o", flags);
}

static void secret(const struct attempt *self) {
    (void)self;
    const char *name = arg("secret", "SANDBOXD_TEST_SECRET");
    if (getenv(name))
        say_worked("%s is set", name);
    else
        say_refused(0, "%s is not set", name);
}

static void unexpected(const struct attempt *self) {
    (void)self;
    static const char *const known[] = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "TMPDIR",
                                        "TZ", "PWD", "HOSTNAME", "XDG_RUNTIME_DIR", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE",
                                        "PYTHONNOUSERSITE", "PYTHONHASHSEED", NULL};
    for (char **variable = environ; *variable; variable++) {
        size_t length = strcspn(*variable, "=");
        int ours = strncmp(*variable, "SANDBOX_", 8) == 0;
        for (int i = 0; known[i]; i++)
            ours |= strlen(known[i]) == length && strncmp(*variable, known[i], length) == 0;
        if (!ours) {
            say_worked("%.*s", (int)length, *variable); // the name, never the value
            return;
        }
    }
    say_refused(0, "only the expected ones");
}

static void terminal(const struct attempt *self) {
    (void)self;
    if (arg("with-tty", NULL)) {
        // For the outside half: give ourselves one, then see whether we notice.
        setsid();
        int master = posix_openpt(O_RDWR | O_NOCTTY);
        if (master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0)
            ioctl(open(ptsname(master), O_RDWR), TIOCSCTTY, 0);
    }
    judge_path(open("/dev/tty", O_RDWR | O_CLOEXEC));
}

static void session(const struct attempt *self) {
    (void)self;
    pid_t leader = getsid(0);
    if (leader == probe_pid || leader == 1)
        say_refused(0, "session %d, ours", leader);
    else
        say_worked("session %d, and we are %d", leader, probe_pid);
}

static void blocked_signals(const struct attempt *self) {
    char text[64];
    unsigned long long mask = strtoull(status_field(self->text, text, sizeof text), NULL, 16);
    if (mask)
        say_worked("%s is %s", self->text, text);
    else
        say_refused(0, "none");
}

static const struct attempt attempts[] = {
    {"descriptors", "inherited-descriptor", inherited, 0, 0},
    {"descriptors", "stdin-is-a-host-file", standard, 0, 0},
    {"descriptors", "stdout-is-a-host-file", standard, 0, 1},
    {"descriptors", "stderr-is-a-host-file", standard, 0, 2},
    {"descriptors", "stdin-both-ways", both_ways, 0, 0},
    {"descriptors", "stdout-both-ways", both_ways, 0, 1},
    {"environment", "secret-in-environment", secret, 0, 0},
    {"environment", "unexpected-environment", unexpected, 0, 0},
    {"session", "controlling-terminal", terminal, 0, 0},
    {"session", "session-of-another", session, 0, 0},
    {"session", "blocked-signals", blocked_signals, "SigBlk", 0},
    {"session", "ignored-signals", blocked_signals, "SigIgn", 0},
};

const struct wall wall_descriptors = {"descriptors", attempts, COUNT(attempts), 15};
