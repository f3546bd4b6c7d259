// Wall: how much a payload can take. Every attempt stops at a ceiling (`ceiling=`, or its own) and says how far it got.
// Outside they are run with a small ceiling only, to show that they do take what they count.
#include "probe.h"
#include <dirent.h>
#include <limits.h>
#include <mqueue.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <time.h>

#define KIB (1LL << 10)
#define MIB (1LL << 20)
#define GIB (1LL << 30)

static long long ceiling_of(const struct attempt *self) { return arg_number("ceiling", self->number); }

// --- memory -----------------------------------------------------------------------------------------------------------

// Touch every page of `bytes` at `memory`, counting.
static void touch(volatile char *memory, long long bytes, long long before, long long ceiling) {
    for (long long at = 0; at < bytes; at += 4096) {
        memory[at] = 1;
        if (at % MIB == 0)
            progress(before + at, ceiling);
    }
    progress(before + bytes, ceiling);
}

static void take_mapped(const struct attempt *self, int flags, int fd) {
    long long ceiling = ceiling_of(self), chunk = ceiling < 16 * MIB ? ceiling : 16 * MIB, taken = 0;
    for (; taken < ceiling; taken += chunk) {
        if (fd >= 0 && ftruncate(fd, taken + chunk) < 0)
            break;
        char *memory = mmap(NULL, (size_t)chunk, PROT_READ | PROT_WRITE, flags, fd, fd >= 0 ? taken : 0);
        if (memory == MAP_FAILED)
            break;
        touch(memory, chunk, taken, ceiling);
    }
    say_reached(taken < ceiling ? errno : 0, taken, ceiling, "bytes of memory");
}
static void memory_private(const struct attempt *self) { take_mapped(self, MAP_PRIVATE | MAP_ANONYMOUS, -1); }
static void memory_shared(const struct attempt *self) { take_mapped(self, MAP_SHARED | MAP_ANONYMOUS, -1); }
static void memory_memfd(const struct attempt *self) {
    int fd = (int)syscall(SYS_memfd_create, "probe", 0U);
    if (fd < 0)
        say_reached(errno, 0, ceiling_of(self), "no memfd");
    else
        take_mapped(self, MAP_SHARED, fd);
}

static void memory_sysv(const struct attempt *self) {
    long long ceiling = ceiling_of(self);
    int id = shmget(IPC_PRIVATE, (size_t)ceiling, IPC_CREAT | 0600);
    char *memory = id < 0 ? (char *)-1 : shmat(id, NULL, 0);
    int error = errno;
    if (id >= 0)
        shmctl(id, IPC_RMID, NULL); // goes with the last user: us
    if (memory == (char *)-1) {
        say_reached(error, 0, ceiling, "no segment");
        return;
    }
    touch(memory, ceiling, 0, ceiling);
    say_reached(0, ceiling, ceiling, "bytes of System V memory");
}

// Four children with a quarter each: the limit must be of the group, not of the process.
static void memory_children(const struct attempt *self) {
    long long ceiling = ceiling_of(self), each = ceiling / 4, reached = 0;
    pid_t child[4];
    int ends[2];
    if (pipe(ends) < 0)
        return;
    for (int i = 0; i < 4; i++) {
        child[i] = fork();
        if (child[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            char *memory = mmap(NULL, (size_t)each, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            for (long long at = 0; memory != MAP_FAILED && at < each; at += 4096)
                memory[at] = 1;
            if (memory != MAP_FAILED && write(ends[1], "x", 1) == 1)
                pause(); // hold it
            _exit(0);
        }
    }
    close(ends[1]);
    char full;
    while (reached < ceiling && read(ends[0], &full, 1) == 1)
        progress(reached += each, ceiling);
    for (int i = 0; i < 4; i++)
        if (child[i] > 0) {
            kill(child[i], SIGKILL);
            waitpid(child[i], NULL, 0);
        }
    say_reached(0, reached, ceiling, "bytes of memory in four processes");
}

static void memory_locked(const struct attempt *self) {
    long long ceiling = ceiling_of(self), locked = 0;
    char *memory = mmap(NULL, (size_t)ceiling, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        say_reached(errno, 0, ceiling, "no address space");
        return;
    }
    for (; locked < ceiling && mlock(memory + locked, (size_t)(256 * KIB)) == 0; locked += 256 * KIB)
        progress(locked, ceiling);
    say_reached(locked < ceiling ? errno : 0, locked, ceiling, "bytes locked");
}

static long long stack_ceiling;
static __attribute__((noinline)) long long deeper(long long used) {
    volatile char frame[64 * 1024];
    frame[0] = frame[sizeof frame - 1] = 1;
    progress(used, stack_ceiling);
    if (used >= stack_ceiling)
        return used;
    return deeper(used + (long long)sizeof frame) + frame[0] - 1;
}
static void stack(const struct attempt *self) {
    struct rlimit limit;
    getrlimit(RLIMIT_STACK, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_STACK, &limit);
    stack_ceiling = ceiling_of(self);
    long long used = deeper(0);
    say_reached(0, used, stack_ceiling, "bytes of stack");
}

// --- processes --------------------------------------------------------------------------------------------------------

static void forks(const struct attempt *self) {
    long long ceiling = ceiling_of(self), count = 0;
    pid_t *child = calloc((size_t)ceiling, sizeof *child);
    int error = 0;
    for (; child && count < ceiling; count++) {
        pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            alarm(60);
            pause();
            _exit(0);
        }
        if (pid < 0) {
            error = errno;
            break;
        }
        child[count] = pid;
        progress(count, ceiling);
    }
    for (long long i = 0; i < count; i++)
        kill(child[i], SIGKILL);
    for (long long i = 0; i < count; i++)
        waitpid(child[i], NULL, 0);
    say_reached(error, count, ceiling, "processes at once");
}

static void *sleeper(void *unused) {
    (void)unused;
    for (;;)
        pause();
    return NULL;
}
static void threads(const struct attempt *self) {
    long long ceiling = ceiling_of(self), count = 0;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, PTHREAD_STACK_MIN);
    int error = 0;
    for (pthread_t thread; count < ceiling && (error = pthread_create(&thread, &small, sleeper, NULL)) == 0; count++)
        progress(count, ceiling);
    say_reached(error, count, ceiling, "threads at once");
}

static void *spin(void *unused) {
    (void)unused;
    for (volatile unsigned long i = 0;; i++)
        ;
    return NULL;
}
// Ceiling: one and a half processors for as long as it runs.
static void cpu(const struct attempt *self) {
    long long seconds = arg_number("seconds", self->number);
    struct timespec start, now, used;
    pthread_t thread;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < 4; i++)
        pthread_create(&thread, NULL, spin, NULL);
    struct timespec wait = {.tv_sec = seconds < 10 ? seconds : 10};
    while (nanosleep(&wait, &wait) < 0 && errno == EINTR)
        ;
    clock_gettime(CLOCK_MONOTONIC, &now);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    long long wall_ms = (now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000;
    say_reached(0, used.tv_sec * 1000 + used.tv_nsec / 1000000, wall_ms * 3 / 2, "ms of processor in %lld ms", wall_ms);
}

static void nice_value(const struct attempt *self) {
    int result = setpriority(PRIO_PROCESS, 0, (int)self->number);
    say_reached(result < 0 ? errno : 0, result == 0, 1, "priority %ld", self->number);
}
static void real_time(const struct attempt *self) {
    struct sched_param first = {.sched_priority = 1};
    int result = sched_setscheduler(0, (int)self->number, &first);
    say_reached(result < 0 ? errno : 0, result == 0, 1, "real-time scheduling");
}
static void rlimit_raise(const struct attempt *self) {
    struct rlimit limit;
    getrlimit((int)self->number, &limit);
    limit.rlim_cur = limit.rlim_max = limit.rlim_max == RLIM_INFINITY ? RLIM_INFINITY : limit.rlim_max + 1;
    int result = setrlimit((int)self->number, &limit);
    say_reached(result < 0 ? errno : 0, result == 0, 1, "the hard limit was %lld", (long long)limit.rlim_max - 1);
}

// --- descriptors and kernel objects -----------------------------------------------------------------------------------

static int new_null(void) { return open("/dev/null", O_RDONLY); }
static int new_epoll(void) { return epoll_create1(0); }
static int new_eventfd(void) { return eventfd(0, 0); }
static int new_inotify(void) { return inotify_init1(0); }
static int new_pipe(void) { int ends[2]; return pipe(ends); }
static int new_socket(void) { return socket(AF_UNIX, SOCK_STREAM, 0); }
static int new_timer(void) {
    struct sigevent none = {.sigev_notify = SIGEV_NONE};
    timer_t timer;
    return timer_create(CLOCK_MONOTONIC, &none, &timer);
}
static int new_queue(void) {
    static int number;
    char name[64];
    snprintf(name, sizeof name, "/probe-%d-%d", getpid(), number++);
    struct mq_attr small = {.mq_maxmsg = 1, .mq_msgsize = 8};
    mqd_t queue = mq_open(name, O_CREAT | O_EXCL | O_RDWR, 0600, &small);
    if (queue >= 0 && arg("ceiling", NULL))
        mq_unlink(name); // outside: leave none behind
    return queue;
}
static int new_mapping(void) {
    static int odd; // neighbours with different rights do not merge
    return mmap(NULL, 4096, odd++ % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0;
}
static int new_message_queue(void) {
    int id = msgget(IPC_PRIVATE, IPC_CREAT | 0600);
    if (id >= 0 && arg("ceiling", NULL))
        msgctl(id, IPC_RMID, NULL);
    return id;
}

static void many(const struct attempt *self) {
    static const struct { const char *what; int (*make)(void); } kinds[] = {
        {"descriptors", new_null}, {"epolls", new_epoll}, {"eventfds", new_eventfd}, {"inotifies", new_inotify}, {"pipes", new_pipe},
        {"sockets", new_socket}, {"timers", new_timer}, {"queues", new_queue}, {"mappings", new_mapping}, {"message-queues", new_message_queue},
    };
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max; // as far as we are let
    setrlimit(RLIMIT_NOFILE, &limit);
    long long ceiling = ceiling_of(self), count = 0;
    for (size_t kind = 0; kind < COUNT(kinds); kind++)
        if (strcmp(kinds[kind].what, self->text) == 0) {
            errno = 0;
            for (; count < ceiling && kinds[kind].make() >= 0; count++)
                progress(count, ceiling);
            say_reached(count < ceiling ? errno : 0, count, ceiling, "%s", self->text);
        }
}

// Watches on everything below /usr: one per file, which is as many as a payload can find.
static long long watch_below(int inotify, const char *path, long long count, long long ceiling) {
    DIR *dir = count < ceiling ? opendir(path) : NULL;
    for (struct dirent *entry; dir && count < ceiling && (entry = readdir(dir));) {
        char next[PATH_MAX];
        if (entry->d_name[0] == '.' || snprintf(next, sizeof next, "%s/%s", path, entry->d_name) >= (int)sizeof next)
            continue;
        if (entry->d_type != DT_LNK && inotify_add_watch(inotify, next, IN_DELETE_SELF) < 0)
            break;
        count++;
        if (entry->d_type == DT_DIR)
            count = watch_below(inotify, next, count, ceiling);
    }
    if (dir)
        closedir(dir);
    progress(count, ceiling);
    return count;
}
static void watches(const struct attempt *self) {
    long long ceiling = ceiling_of(self);
    long long count = watch_below(inotify_init1(0), "/usr", 0, ceiling);
    say_reached(0, count, ceiling, "inotify watches");
}

// Bytes that the kernel holds for us in sockets and pipes.
static void buffers(const struct attempt *self) {
    static char block[64 * 1024];
    long long ceiling = ceiling_of(self), held = 0;
    int ends[2], most = 8 << 20, sockets = strcmp(self->text, "sockets") == 0;
    while (held < ceiling) {
        if ((sockets ? socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) : pipe2(ends, O_NONBLOCK)) < 0)
            break;
        if (sockets)
            setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &most, sizeof most);
        else
            fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
        for (ssize_t wrote; held < ceiling && (wrote = write(ends[1], block, sizeof block)) > 0;)
            progress(held += wrote, ceiling);
    }
    say_reached(held < ceiling ? errno : 0, held, ceiling, "bytes in %s", self->text);
}

// --- disk -------------------------------------------------------------------------------------------------------------

static const char *directory(const struct attempt *self) {
    const char *dir = arg("dir", self->text);
    return strcmp(dir, "~") == 0 ? getenv("HOME") : dir;
}

// Many files of 64 MiB, so that no limit on a single file hides a missing one on the whole.
static void bytes_in(const struct attempt *self) {
    static char block[1 << 20];
    memset(block, 'x', sizeof block);
    signal(SIGXFSZ, SIG_IGN);
    long long ceiling = ceiling_of(self), held = 0;
    char path[PATH_MAX];
    int files = 0, error = 0, fd = -1;
    for (long long in_file = 64 * MIB; held < ceiling && !error;) {
        if (in_file >= 64 * MIB) {
            close(fd);
            snprintf(path, sizeof path, "%s/.probe-bytes-%d", directory(self), files++);
            fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
            in_file = 0;
        }
        size_t wish = ceiling - held < (long long)sizeof block ? (size_t)(ceiling - held) : sizeof block;
        ssize_t wrote = fd < 0 ? -1 : write(fd, block, wish);
        if (wrote <= 0)
            error = errno;
        else
            progress(held += wrote, ceiling), in_file += wrote;
    }
    while (files-- > 0) {
        snprintf(path, sizeof path, "%s/.probe-bytes-%d", directory(self), files);
        unlink(path);
    }
    say_reached(error, held, ceiling, "bytes in %s", directory(self));
}

static void files_in(const struct attempt *self) {
    long long ceiling = ceiling_of(self), count = 0;
    char path[PATH_MAX];
    int error = 0;
    for (; count < ceiling; count++) {
        snprintf(path, sizeof path, "%s/.probe-file-%lld", directory(self), count);
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0) {
            error = errno;
            break;
        }
        close(fd);
        progress(count, ceiling);
    }
    for (long long i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/.probe-file-%lld", directory(self), i);
        unlink(path);
    }
    say_reached(error, count, ceiling, "files in %s", directory(self));
}

// Longest file there may be, halving until it is let.
static void sparse_in(const struct attempt *self) {
    signal(SIGXFSZ, SIG_IGN);
    long long ceiling = ceiling_of(self), size = ceiling;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/.probe-sparse", directory(self));
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600), error = errno;
    if (fd >= 0) {
        error = 0;
        while (size > 0 && ftruncate(fd, size) < 0) {
            error = errno;
            size /= 2;
        }
        unlink(path);
    }
    say_reached(error, fd < 0 ? 0 : size, ceiling, "bytes long in %s", directory(self));
}

static void preallocate_in(const struct attempt *self) {
    signal(SIGXFSZ, SIG_IGN);
    long long ceiling = ceiling_of(self);
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/.probe-preallocated", directory(self));
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    int result = fd < 0 ? -1 : fallocate(fd, 0, 0, ceiling), error = errno;
    if (fd >= 0)
        unlink(path);
    say_reached(result < 0 ? error : 0, result < 0 ? 0 : ceiling, ceiling, "bytes set aside in %s", directory(self));
}

static const struct attempt attempts[] = {
    {"memory", "memory-private", memory_private, 0, 3 * GIB},
    {"memory", "memory-shared", memory_shared, 0, 3 * GIB},
    {"memory", "memory-memfd", memory_memfd, 0, 2 * GIB},
    {"memory", "memory-sysv", memory_sysv, 0, 3 * GIB},
    {"memory", "memory-in-children", memory_children, 0, 3 * GIB},
    {"memory", "memory-locked", memory_locked, 0, 1 * GIB},
    {"memory", "stack", stack, 0, 1 * GIB},
    {"memory", "socket-buffers", buffers, "sockets", 2 * GIB},
    {"memory", "pipe-buffers", buffers, "pipes", 2 * GIB},

    {"processes", "forks", forks, 0, 2500},
    {"processes", "threads", threads, 0, 3000},
    {"processes", "cpu", cpu, 0, 2},
    {"processes", "nice-minus-20", nice_value, 0, -20},
    {"processes", "real-time-fifo", real_time, 0, SCHED_FIFO},
    {"processes", "real-time-rr", real_time, 0, SCHED_RR},
    {"processes", "rlimit-nofile", rlimit_raise, 0, RLIMIT_NOFILE},
    {"processes", "rlimit-core", rlimit_raise, 0, RLIMIT_CORE},

    {"objects", "descriptors", many, "descriptors", 200000},
    {"objects", "pipes", many, "pipes", 100000},
    {"objects", "epolls", many, "epolls", 100000},
    {"objects", "eventfds", many, "eventfds", 100000},
    {"objects", "inotifies", many, "inotifies", 100000},
    {"objects", "unix-sockets", many, "sockets", 100000},
    {"objects", "timers", many, "timers", 200000},
    {"objects", "posix-queues", many, "queues", 10000},
    {"objects", "sysv-queues", many, "message-queues", 100000},
    {"objects", "mappings", many, "mappings", 200000},
    {"objects", "inotify-watches", watches, 0, 1000000},

    {"disk", "bytes-in-tmp", bytes_in, "/tmp", 2 * GIB},
    {"disk", "bytes-in-shm", bytes_in, "/dev/shm", 2 * GIB},
    {"disk", "bytes-in-work", bytes_in, "/workspace/work", 2 * GIB},
    {"disk", "bytes-in-artifacts", bytes_in, "/workspace/artifacts", 2 * GIB},
    {"disk", "bytes-in-home", bytes_in, "~", 2 * GIB},
    {"disk", "bytes-in-run", bytes_in, "/run", 2 * GIB},
    {"disk", "files-in-tmp", files_in, "/tmp", 300000},
    {"disk", "files-in-shm", files_in, "/dev/shm", 300000},
    {"disk", "files-in-work", files_in, "/workspace/work", 300000},
    {"disk", "files-in-artifacts", files_in, "/workspace/artifacts", 300000},
    {"disk", "files-in-home", files_in, "~", 300000},
    {"disk", "files-in-run", files_in, "/run", 300000},
    {"disk", "sparse-in-tmp", sparse_in, "/tmp", 4096 * GIB},
    {"disk", "sparse-in-shm", sparse_in, "/dev/shm", 4096 * GIB},
    {"disk", "sparse-in-work", sparse_in, "/workspace/work", 4096 * GIB},
    {"disk", "preallocated-in-tmp", preallocate_in, "/tmp", 2 * GIB},
    {"disk", "preallocated-in-work", preallocate_in, "/workspace/work", 2 * GIB},
};

const struct wall wall_resources = {"resources", attempts, COUNT(attempts), 120};
