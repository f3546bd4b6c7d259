// Not a wall but the door: what ordinary programs need. Everything here must work inside.
#include "probe.h"
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>

static void judge(int well) {
    if (well)
        say_worked("it does");
    else
        say_refused(errno, "it does not");
}

static void write_in(const struct attempt *self) {
    char path[512];
    const char *dir = strcmp(self->text, "~") == 0 ? getenv("HOME") : self->text;
    snprintf(path, sizeof path, "%s/.probe-%d", dir ? dir : "/no-home", getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    char back[4];
    int well = fd >= 0 && write(fd, "word", 4) == 4 && pread(fd, back, 4, 0) == 4 && memcmp(back, "word", 4) == 0;
    int error = errno;
    if (fd >= 0 && unlink(path) < 0)
        well = 0;
    else
        errno = error;
    judge(well);
}

static void tree_in(const struct attempt *self) {
    char a[256], b[256], c[300], d[300];
    snprintf(a, sizeof a, "%s/.probe-a-%d", self->text, getpid());
    snprintf(b, sizeof b, "%s/.probe-b-%d", self->text, getpid());
    int well = mkdir(a, 0755) == 0 && rename(a, b) == 0;
    snprintf(c, sizeof c, "%s/file", b);
    snprintf(d, sizeof d, "%s/link", b);
    int fd = open(c, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    well = well && fd >= 0 && fchmod(fd, 0755) == 0 && flock(fd, LOCK_EX) == 0 && ftruncate(fd, 100) == 0 && fsync(fd) == 0;
    well = well && link(c, d) == 0 && unlink(d) == 0 && symlink("file", d) == 0 && utimensat(AT_FDCWD, c, NULL, 0) == 0;
    int error = errno;
    unlink(d);
    unlink(c);
    rmdir(b);
    errno = error;
    judge(well);
}

static void device(const struct attempt *self) {
    char byte = 1;
    int fd = open(self->text, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        fd = open(self->text, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, &byte, 1);
    if (strcmp(self->text, "/dev/null") == 0)
        judge(got == 0 && write(fd, "x", 1) == 1);
    else if (strcmp(self->text, "/dev/full") == 0)
        judge(got == 1 && write(fd, "x", 1) < 0 && errno == ENOSPC);
    else
        judge(got == 1);
}

static void read_file(const struct attempt *self) {
    char bytes[16];
    int fd = open(self->text, O_RDONLY | O_CLOEXEC);
    judge(fd >= 0 && read(fd, bytes, sizeof bytes) > 0);
}

static void exec_in(const struct attempt *self) {
    char path[256], block[65536];
    snprintf(path, sizeof path, "%s/.probe-copy-%d", self->text, getpid());
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), to = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
    for (ssize_t got; from >= 0 && to >= 0 && (got = read(from, block, sizeof block)) > 0;)
        if (write(to, block, (size_t)got) != got)
            break;
    close(to);
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        dup2(open("/dev/null", O_WRONLY), 1);
        execl(path, path, "--list", (char *)NULL);
        _exit(errno);
    }
    waitpid(child, &status, 0);
    unlink(path);
    errno = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    judge(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void child_process(const struct attempt *self) {
    (void)self;
    int ends[2], status = 0;
    char byte = 0;
    int well = pipe(ends) == 0;
    pid_t child = fork();
    if (child == 0) {
        if (write(ends[1], "x", 1) == 1)
            pause();
        _exit(0);
    }
    well = well && child > 0 && read(ends[0], &byte, 1) == 1 && kill(child, SIGTERM) == 0 && waitpid(child, &status, 0) == child;
    judge(well && WIFSIGNALED(status));
}
static void *add_one(void *number) { return (char *)number + 1; }
static void thread(const struct attempt *self) {
    (void)self;
    pthread_t it;
    void *back = NULL;
    judge(pthread_create(&it, NULL, add_one, NULL) == 0 && pthread_join(it, &back) == 0 && back == (void *)1);
}
static void own_group(const struct attempt *self) { (void)self; judge(setpgid(0, 0) == 0 && setsid() < 0); }
static void descriptors(const struct attempt *self) {
    (void)self;
    sigset_t set;
    sigemptyset(&set);
    int poller = epoll_create1(0), bell = eventfd(1, 0);
    struct epoll_event event = {.events = EPOLLIN};
    judge(poller >= 0 && bell >= 0 && epoll_ctl(poller, EPOLL_CTL_ADD, bell, &event) == 0 && epoll_wait(poller, &event, 1, 1000) == 1 &&
          timerfd_create(CLOCK_MONOTONIC, 0) >= 0 && signalfd(-1, &set, 0) >= 0 && inotify_init1(0) >= 0);
}
static void memory(const struct attempt *self) {
    (void)self;
    char *page = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    judge(page != MAP_FAILED && (page[0] = 1) && mprotect(page, 4096, PROT_READ | PROT_EXEC) == 0 && madvise(page + 4096, 4096, MADV_DONTNEED) == 0);
}
static void memory_file(const struct attempt *self) {
    (void)self;
    int fd = (int)syscall(SYS_memfd_create, "probe", 0U);
    judge(fd >= 0 && ftruncate(fd, 4096) == 0);
}
static void shared_memory(const struct attempt *self) {
    (void)self;
    int fd = shm_open("/probe", O_RDWR | O_CREAT, 0600), id = shmget(IPC_PRIVATE, 4096, 0600);
    int well = fd >= 0 && id >= 0;
    shm_unlink("/probe");
    shmctl(id, IPC_RMID, NULL);
    judge(well);
}
static void clocks(const struct attempt *self) {
    (void)self;
    struct timespec now, little = {.tv_nsec = 1000};
    timer_t timer;
    judge(clock_gettime(CLOCK_REALTIME, &now) == 0 && clock_getres(CLOCK_MONOTONIC, &now) == 0 && nanosleep(&little, NULL) == 0 &&
          timer_create(CLOCK_MONOTONIC, NULL, &timer) == 0);
}
static void questions(const struct attempt *self) {
    (void)self;
    cpu_set_t cpus;
    char bytes[8];
    judge(sched_getaffinity(0, sizeof cpus, &cpus) == 0 && getrandom(bytes, 8, 0) == 8 && getpid() > 1 && sysconf(_SC_NPROCESSORS_ONLN) > 0);
}

static void unix_pair(const struct attempt *self) {
    (void)self;
    int ends[2];
    char byte;
    judge(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && write(ends[0], "x", 1) == 1 && read(ends[1], &byte, 1) == 1);
}
static void unix_socket(const struct attempt *self) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path + self->number, sizeof at.sun_path - 1, "/tmp/.probe-socket-%d", getpid());
    int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
    int well = bind(server, (struct sockaddr *)&at, sizeof at) == 0 && listen(server, 1) == 0 && connect(client, (struct sockaddr *)&at, sizeof at) == 0;
    int error = errno;
    if (!self->number)
        unlink(at.sun_path);
    errno = error;
    judge(well);
}
static void loopback(const struct attempt *self) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof at;
    int type = (int)self->number, server = socket(AF_INET, type, 0), client = socket(AF_INET, type, 0);
    char byte;
    int well = server >= 0 && client >= 0 && bind(server, (struct sockaddr *)&at, sizeof at) == 0 && getsockname(server, (struct sockaddr *)&at, &length) == 0 &&
               (type == SOCK_DGRAM || listen(server, 1) == 0) && connect(client, (struct sockaddr *)&at, length) == 0;
    if (well && type == SOCK_STREAM)
        well = (server = accept(server, NULL, NULL)) >= 0;
    struct pollfd there = {.fd = server, .events = POLLIN};
    judge(well && send(client, "x", 1, MSG_NOSIGNAL) == 1 && poll(&there, 1, 2000) == 1 && read(server, &byte, 1) == 1);
}
static void loopback_up(const struct attempt *self) {
    (void)self;
    struct ifreq what = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    judge(ioctl(fd, SIOCGIFFLAGS, &what) == 0 && what.ifr_flags & IFF_UP);
}

static const struct attempt attempts[] = {
    {"writes", "may-write-work", write_in, "/workspace/work", 0},
    {"writes", "may-write-artifacts", write_in, "/workspace/artifacts", 0},
    {"writes", "may-write-tmp", write_in, "/tmp", 0},
    {"writes", "may-write-home", write_in, "~", 0},
    {"writes", "may-write-shm", write_in, "/dev/shm", 0},
    {"writes", "may-write-run", write_in, "/run", 0},
    {"writes", "may-build-a-tree-in-work", tree_in, "/workspace/work", 0},
    {"writes", "may-build-a-tree-in-tmp", tree_in, "/tmp", 0},
    {"reads", "may-read-input", read_file, "/workspace/inputs/probe", 0},
    {"reads", "may-read-programs", read_file, "/usr/bin/env", 0},
    {"reads", "may-read-passwd", read_file, "/etc/passwd", 0},
    {"reads", "may-read-hosts", read_file, "/etc/hosts", 0},
    {"reads", "may-read-own-status", read_file, "/proc/self/status", 0},
    {"reads", "may-read-own-maps", read_file, "/proc/self/maps", 0},
    {"reads", "may-read-meminfo", read_file, "/proc/meminfo", 0},
    {"reads", "may-read-cpuinfo", read_file, "/proc/cpuinfo", 0},
    {"devices", "may-use-null", device, "/dev/null", 0},
    {"devices", "may-use-zero", device, "/dev/zero", 0},
    {"devices", "may-use-full", device, "/dev/full", 0},
    {"devices", "may-use-random", device, "/dev/random", 0},
    {"devices", "may-use-urandom", device, "/dev/urandom", 0},
    {"programs", "may-execute-in-tmp", exec_in, "/tmp", 0},
    {"programs", "may-execute-in-work", exec_in, "/workspace/work", 0},
    {"programs", "may-start-a-child", child_process, 0, 0},
    {"programs", "may-start-a-thread", thread, 0, 0},
    {"programs", "may-lead-a-group", own_group, 0, 0},
    {"programs", "may-use-event-descriptors", descriptors, 0, 0},
    {"programs", "may-map-memory", memory, 0, 0},
    {"programs", "may-make-a-memory-file", memory_file, 0, 0},
    {"programs", "may-share-memory", shared_memory, 0, 0},
    {"programs", "may-read-clocks", clocks, 0, 0},
    {"programs", "may-ask-the-kernel", questions, 0, 0},
    {"sockets", "may-pair-unix-sockets", unix_pair, 0, 0},
    {"sockets", "may-use-a-unix-socket", unix_socket, 0, 0},
    {"sockets", "may-use-an-abstract-socket", unix_socket, 0, 1},
    {"sockets", "may-use-loopback-tcp", loopback, 0, SOCK_STREAM},
    {"sockets", "may-use-loopback-udp", loopback, 0, SOCK_DGRAM},
    {"sockets", "may-see-loopback-up", loopback_up, 0, 0},
};

const struct wall wall_allowed = {"allowed", attempts, COUNT(attempts), 15};
