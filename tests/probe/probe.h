// What every wall's file shares: the row an attempt fills, and the judgements that fill it.
#ifndef PROBE_H
#define PROBE_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

// One thing to try. `text` and `number` are the parameters of a `run` that serves many attempts.
struct attempt {
    const char *group;
    const char *name;
    void (*run)(const struct attempt *self);
    const char *text;
    long number;
};

struct wall {
    const char *name;
    const struct attempt *attempts;
    size_t count;
    unsigned alarm_seconds; // a child that takes longer is ended and reported
};

extern const struct wall wall_syscalls, wall_sockets, wall_filesystem, wall_proc, wall_processes, wall_network,
    wall_descriptors, wall_privileges, wall_resources, wall_allowed;

// The pid of the program itself; attempts run in forked children of it.
extern pid_t probe_pid;

// KEY=VALUE from the command line, or `fallback`.
const char *arg(const char *key, const char *fallback);
long long arg_number(const char *key, long long fallback);

// How an attempt ends: the first of these fills the row, later ones are ignored.
void say_refused(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
void say_worked(const char *format, ...) __attribute__((format(printf, 1, 2)));
void say_absent(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
// For resources: `error` 0 with reached >= ceiling is unbounded, anything else bounded.
void say_reached(int error, long long reached, long long ceiling, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

// Kept in the row while it runs, so that a killed attempt still says how far it got; now and then also on stderr, for
// when the whole sandbox is killed with it.
void progress(long long reached, long long ceiling);

// For system calls: EPERM and EACCES are refused, ENOSYS is absent, every other errno got past the filter.
void judge_call(long result);
// For names in the file system: also EROFS, EXDEV, ELOOP, ENOTDIR are refused; ENOENT, ENXIO, ENODEV are absent.
void judge_path(long result);

// A fresh directory in /tmp, removed by the parent after the attempt (so it must be left empty of directories).
const char *scratch_dir(void);
// Is this group of /proc/self/status there, and what does it say? Empty string if not.
const char *status_field(const char *key, char *buffer, size_t size);

#endif
