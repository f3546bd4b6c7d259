// Wall: socket families and protocols beyond what a program needs to talk to itself. Creating one is enough: each is a
// large piece of kernel that the payload could then drive.
#include "probe.h"
#include <linux/netlink.h>
#include <sys/socket.h>

// No such family, type or protocol in this kernel; a filter may say so as well.
static int missing(int error) {
    return error == EAFNOSUPPORT || error == ESOCKTNOSUPPORT || error == EPROTONOSUPPORT || error == ENOSYS || error == ENODEV;
}

// All types of a family, because a filter may look at one and forget the next.
static void any_type(const struct attempt *self) {
    static const int types[] = {SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET, SOCK_RAW, SOCK_RDM};
    int refusal = 0, gone = 0;
    for (size_t i = 0; i < COUNT(types); i++) {
        long result = syscall(SYS_socket, self->number, (long)types[i], 0L);
        int error = errno;
        if (result >= 0 || (error != EPERM && error != EACCES && !missing(error))) {
            say_worked("type %d: %s", types[i], result >= 0 ? "a socket" : strerrorname_np(error));
            return;
        }
        if (missing(error))
            gone = error;
        else
            refusal = error;
    }
    if (refusal)
        say_refused(refusal, "every type");
    else
        say_absent(gone, "no such family");
}

static void one(long family, long type, long protocol) {
    long result = syscall(SYS_socket, family, type, protocol);
    if (result < 0 && missing(errno))
        say_absent(errno, "not in this kernel");
    else
        judge_call(result);
}

static void netlink(const struct attempt *self) { one(AF_NETLINK, SOCK_RAW, self->number); }
static void raw(const struct attempt *self) { one(self->number, SOCK_RAW, 255); }
static void raw_icmp(const struct attempt *self) { one(self->number, SOCK_RAW, self->number == AF_INET ? 1 : 58); }
static void old_packet(const struct attempt *self) { (void)self; one(AF_INET, 10 /* SOCK_PACKET */, 3 << 8); }
static void stream_protocol(const struct attempt *self) { one(AF_INET, SOCK_STREAM, self->number); }
static void pair(const struct attempt *self) {
    int ends[2];
    long result = syscall(SYS_socketpair, self->number, (long)SOCK_STREAM, 0L, ends);
    // A family without pairs says EOPNOTSUPP, which is past a filter.
    if (result < 0 && missing(errno))
        say_absent(errno, "not in this kernel");
    else
        judge_call(result);
}

#define HIGH(family) ((long)(family) | (1L << 32)) // the kernel sees the low half only

static const struct attempt attempts[] = {
    {"families", "af-ax25", any_type, 0, 3},
    {"families", "af-ipx", any_type, 0, 4},
    {"families", "af-appletalk", any_type, 0, 5},
    {"families", "af-x25", any_type, 0, 9},
    {"families", "af-key", any_type, 0, 15},
    {"families", "af-packet", any_type, 0, 17},
    {"families", "af-rds", any_type, 0, 21},
    {"families", "af-pppox", any_type, 0, 24},
    {"families", "af-llc", any_type, 0, 26},
    {"families", "af-ib", any_type, 0, 27},
    {"families", "af-mpls", any_type, 0, 28},
    {"families", "af-can", any_type, 0, 29},
    {"families", "af-tipc", any_type, 0, 30},
    {"families", "af-bluetooth", any_type, 0, 31},
    {"families", "af-rxrpc", any_type, 0, 33},
    {"families", "af-phonet", any_type, 0, 35},
    {"families", "af-ieee802154", any_type, 0, 36},
    {"families", "af-caif", any_type, 0, 37},
    {"families", "af-alg", any_type, 0, 38},
    {"families", "af-nfc", any_type, 0, 39},
    {"families", "af-vsock", any_type, 0, 40},
    {"families", "af-kcm", any_type, 0, 41},
    {"families", "af-qipcrtr", any_type, 0, 42},
    {"families", "af-smc", any_type, 0, 43},
    {"families", "af-xdp", any_type, 0, 44},
    {"families", "af-mctp", any_type, 0, 45},
    {"families", "af-packet-high-bits", any_type, 0, HIGH(17)},
    {"families", "af-vsock-high-bits", any_type, 0, HIGH(40)},
    {"families", "af-alg-high-bits", any_type, 0, HIGH(38)},
    {"families", "socketpair-vsock", pair, 0, 40},
    {"families", "socketpair-packet", pair, 0, 17},

    {"netlink", "netlink-sock-diag", netlink, 0, NETLINK_SOCK_DIAG},
    {"netlink", "netlink-xfrm", netlink, 0, NETLINK_XFRM},
    {"netlink", "netlink-selinux", netlink, 0, NETLINK_SELINUX},
    {"netlink", "netlink-iscsi", netlink, 0, NETLINK_ISCSI},
    {"netlink", "netlink-audit", netlink, 0, NETLINK_AUDIT},
    {"netlink", "netlink-connector", netlink, 0, NETLINK_CONNECTOR},
    {"netlink", "netlink-netfilter", netlink, 0, NETLINK_NETFILTER},
    {"netlink", "netlink-uevent", netlink, 0, NETLINK_KOBJECT_UEVENT},
    {"netlink", "netlink-generic", netlink, 0, NETLINK_GENERIC},
    {"netlink", "netlink-rdma", netlink, 0, NETLINK_RDMA},
    {"netlink", "netlink-crypto", netlink, 0, NETLINK_CRYPTO},

    {"raw", "raw-inet", raw, 0, AF_INET},
    {"raw", "raw-inet6", raw, 0, AF_INET6},
    {"raw", "raw-icmp", raw_icmp, 0, AF_INET},
    {"raw", "raw-icmp6", raw_icmp, 0, AF_INET6},
    {"raw", "sock-packet", old_packet, 0, 0},
    {"raw", "raw-inet-high-bits", raw, 0, HIGH(AF_INET)},

    {"protocols", "sctp", stream_protocol, 0, 132},
    {"protocols", "dccp", stream_protocol, 0, 33},
    {"protocols", "mptcp", stream_protocol, 0, 262},
    {"protocols", "smc-over-inet", stream_protocol, 0, 256},
};

const struct wall wall_sockets = {"sockets", attempts, COUNT(attempts), 15};
