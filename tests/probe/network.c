// Wall: the host's network. The test listens on the host's loopback and Unix sockets and gives the addresses; datagram
// sockets are connected, which picks a route and sends nothing.
#include "probe.h"
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

// Nobody there, or no way there: not a refusal by name, but nothing was reached.
static void judge(long result) {
    int error = errno;
    if (result < 0 && (error == ECONNREFUSED || error == ENETUNREACH || error == EHOSTUNREACH || error == EADDRNOTAVAIL ||
                       error == ENOENT || error == EAFNOSUPPORT || error == ENODEV || error == ENETDOWN))
        say_absent(error, "nothing there");
    else
        judge_call(result);
}

static const char *needed(const char *key) {
    const char *value = arg(key, NULL);
    if (!value) {
        say_absent(0, "no %s given", key);
        _exit(0);
    }
    return value;
}

static long connect_inet(int type, const char *address, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, address, &to.sin_addr);
    int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
    return fd < 0 ? fd : connect(fd, (struct sockaddr *)&to, sizeof to);
}
static long connect_inet6(int type, const char *address, int port) {
    struct sockaddr_in6 to = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    inet_pton(AF_INET6, address, &to.sin6_addr);
    int fd = socket(AF_INET6, type | SOCK_CLOEXEC, 0);
    return fd < 0 ? fd : connect(fd, (struct sockaddr *)&to, sizeof to);
}

static void host_tcp(const struct attempt *self) { judge(connect_inet(SOCK_STREAM, self->text, atoi(needed("host-tcp")))); }
static void host_tcp_mapped(const struct attempt *self) { judge(connect_inet6(SOCK_STREAM, self->text, atoi(needed("host-tcp")))); }
static void route(const struct attempt *self) { judge(connect_inet(SOCK_DGRAM, self->text, (int)self->number)); }
static void route6(const struct attempt *self) { judge(connect_inet6(SOCK_DGRAM, self->text, (int)self->number)); }

static long connect_unix(int type, const char *name, int abstract) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    if (length > sizeof to.sun_path - 2)
        length = sizeof to.sun_path - 2;
    memcpy(to.sun_path + abstract, name, length);
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    return fd < 0 ? fd : connect(fd, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length + 1));
}
static void unix_path(const struct attempt *self) { judge(connect_unix((int)self->number, needed(self->text), 0)); }
static void unix_abstract(const struct attempt *self) {
    const char *name = needed(self->text);
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    memcpy(to.sun_path + 1, name, length < 100 ? length : 100);
    int fd = socket(AF_UNIX, (int)self->number | SOCK_CLOEXEC, 0);
    judge(fd < 0 ? fd : connect(fd, (struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)));
}
static void well_known(const struct attempt *self) { judge(connect_unix(SOCK_STREAM, self->text, 0)); }
static void listed_abstract(const struct attempt *self) {
    (void)self;
    const char *name = needed("host-abstract");
    FILE *file = fopen("/proc/net/unix", "re");
    char line[512];
    if (!file) {
        judge_path(-1);
        return;
    }
    while (fgets(line, sizeof line, file))
        if (strstr(line, name)) {
            say_worked("it is listed");
            return;
        }
    say_refused(0, "it is not listed");
}

static void interfaces(const struct attempt *self) {
    (void)self;
    FILE *file = fopen("/proc/net/dev", "re");
    char line[512], name[64];
    while (file && fgets(line, sizeof line, file))
        if (strchr(line, ':') && sscanf(line, " %63[^:]", name) == 1 && strcmp(name, "lo") != 0) {
            say_worked("%s", name);
            return;
        }
    if (file)
        say_refused(0, "only lo");
    else
        say_absent(errno, "no list");
}

static void configure(const struct attempt *self) {
    struct ifreq wish = {0};
    snprintf(wish.ifr_name, sizeof wish.ifr_name, "probe-none");
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    judge_call(fd < 0 ? fd : ioctl(fd, (unsigned long)self->number, &wish)); // ENODEV is past the check
}
static void low_port(const struct attempt *self) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)self->number), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    judge_call(fd < 0 ? fd : bind(fd, (struct sockaddr *)&at, sizeof at));
}
static void option(const struct attempt *self) {
    int on = 1, fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    judge_call(fd < 0 ? fd : setsockopt(fd, atoi(self->text), (int)self->number, &on, sizeof on));
}

static const struct attempt attempts[] = {
    {"host", "host-tcp", host_tcp, "127.0.0.1", 0},
    {"host", "host-tcp-any", host_tcp, "0.0.0.0", 0},
    {"host", "host-tcp-mapped", host_tcp_mapped, "::ffff:127.0.0.1", 0},
    {"host", "host-abstract-stream", unix_abstract, "host-abstract", SOCK_STREAM},
    {"host", "host-abstract-dgram", unix_abstract, "host-abstract-dgram", SOCK_DGRAM},
    {"host", "host-abstract-listed", listed_abstract, 0, 0},
    {"host", "host-unix-path", unix_path, "host-socket", SOCK_STREAM},
    {"host", "daemon-socket", unix_path, "daemon-socket", SOCK_STREAM},
    {"host", "default-daemon-socket", well_known, "/run/sandboxd/sandboxd.sock", 0},
    {"host", "docker-socket", well_known, "/var/run/docker.sock", 0},
    {"host", "dbus-socket", well_known, "/run/dbus/system_bus_socket", 0},
    {"host", "systemd-socket", well_known, "/run/systemd/private", 0},
    {"host", "journal-socket", well_known, "/run/systemd/journal/stdout", 0},

    {"outside", "other-interfaces", interfaces, 0, 0},
    {"outside", "route-to-outside", route, "192.0.2.1", 9},
    {"outside", "route-to-dns", route, "198.51.100.1", 53},
    {"outside", "route-to-metadata", route, "169.254.169.254", 80},
    {"outside", "route-to-private", route, "10.255.255.254", 9},
    {"outside", "route-to-multicast", route, "224.0.0.1", 9},
    {"outside", "route6-to-outside", route6, "2001:db8::1", 9},

    {"administration", "interface-flags", configure, 0, SIOCSIFFLAGS},
    {"administration", "interface-address", configure, 0, SIOCSIFADDR},
    {"administration", "interface-mtu", configure, 0, SIOCSIFMTU},
    {"administration", "bind-port-1", low_port, 0, 1},
    {"administration", "bind-port-80", low_port, 0, 80},
    {"administration", "socket-debug", option, "1" /* SOL_SOCKET */, SO_DEBUG},
    {"administration", "socket-mark", option, "1", SO_MARK},
    {"administration", "receive-buffer-force", option, "1", SO_RCVBUFFORCE},
    {"administration", "ip-transparent", option, "0" /* SOL_IP */, 19},
};

const struct wall wall_network = {"network", attempts, COUNT(attempts), 15};
