// Wall: the host's files and devices, and writing anywhere but in the places that are ours. Files of the host are opened
// and closed, never read; what is created is removed at once.
#include "probe.h"
#include <dirent.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

static void open_read(const struct attempt *self) { judge_path(open(self->text, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)); }
static void open_write(const struct attempt *self) { judge_path(open(self->text, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)); }

// A directory counts as reached when it lists anything: an empty stand-in is as good as none.
static void list(const struct attempt *self) {
    DIR *dir = opendir(self->text);
    if (!dir) {
        judge_path(-1);
        return;
    }
    int entries = 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        entries += strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..");
    if (entries)
        say_worked("%d entries", entries);
    else
        say_absent(0, "empty");
}

// Home directories: the sandbox has one of its own, which is not the host's.
static void list_home(const struct attempt *self) {
    DIR *dir = opendir(self->text);
    if (!dir) {
        judge_path(-1);
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir));)
        if (entry->d_name[0] != '.' && strcmp(entry->d_name, "sandbox") != 0) {
            say_worked("somebody else lives there");
            return;
        }
    say_absent(0, "nobody else lives there");
}

// /etc/passwd must be the generated one: a handful of users, none of them the host's.
static void many_users(const struct attempt *self) {
    (void)self;
    FILE *file = fopen("/etc/passwd", "re");
    if (!file) {
        judge_path(-1);
        return;
    }
    int users = 0;
    for (int c; (c = fgetc(file)) != EOF;)
        users += c == '\n';
    if (users > 10)
        say_worked("%d users", users);
    else
        say_refused(0, "a generated one with %d users", users);
}

static void host_file(const struct attempt *self) {
    const char *path = arg("host-file", NULL);
    if (!path) {
        say_absent(0, "no host-file given");
        return;
    }
    char way[4096];
    snprintf(way, sizeof way, self->text, path); // the format is one of ours, below
    judge_path(open(way, O_RDONLY | O_CLOEXEC));
}

static void host_file_by_link(const struct attempt *self) {
    (void)self;
    const char *path = arg("host-file", NULL);
    char link[128];
    snprintf(link, sizeof link, "%s/link", scratch_dir());
    if (!path || symlink(path, link) < 0)
        say_absent(errno, "no host-file given, or no link could be made");
    else
        judge_path(open(link, O_RDONLY | O_CLOEXEC));
}

static void create_in(const struct attempt *self) {
    char path[256];
    snprintf(path, sizeof path, "%s/.probe-%d", self->text, getpid());
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int error = errno;
    if (fd >= 0)
        unlink(path);
    errno = error;
    judge_path(fd);
}

static void make_directory_in(const struct attempt *self) {
    char path[256];
    snprintf(path, sizeof path, "%s/.probe-%d", self->text, getpid());
    int result = mkdir(path, 0700), error = errno;
    if (result == 0)
        rmdir(path);
    errno = error;
    judge_path(result);
}

static void hard_link(const struct attempt *self) {
    char path[128];
    snprintf(path, sizeof path, "%s/hard", scratch_dir());
    judge_path(link(self->text, path));
}

static void link_in(const struct attempt *self) {
    char path[256];
    snprintf(path, sizeof path, "%s/.probe-%d", self->text, getpid());
    int result = symlink("/proc/self/exe", path), error = errno;
    if (result == 0)
        unlink(path);
    errno = error;
    judge_path(result);
}

// A running program answers ETXTBSY to open before anyone looks at the mount; truncate looks at the mount first.
static void truncate_it(const struct attempt *self) {
    struct stat now;
    judge_path(stat(self->text, &now) < 0 ? -1 : truncate(self->text, now.st_size)); // to the size it has
}

// Removing or renaming things that are not ours: a marker name that exists nowhere answers ENOENT before any check, so
// the attempt is on the directory itself, which is never empty.
static void remove_directory(const struct attempt *self) { judge_path(rmdir(self->text)); }

static void change_mode(const struct attempt *self) {
    struct stat now;
    if (stat(self->text, &now) < 0)
        judge_path(-1);
    else
        judge_path(chmod(self->text, now.st_mode & 07777)); // to what it is already
}

static void node_in(const struct attempt *self) {
    char path[256];
    snprintf(path, sizeof path, "%s/.probe-node-%d", self->text, getpid());
    int result = mknod(path, S_IFCHR | 0600, makedev(1, 3)), error = errno;
    int fd = result == 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (result == 0) {
        error = errno;
        unlink(path);
    }
    errno = error;
    judge_path(result == 0 ? fd : -1);
}

static const char *own_file(void) {
    static char path[128];
    snprintf(path, sizeof path, "%s/file", scratch_dir());
    close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    return path;
}
// Refused also by EINVAL: an id that the user namespace does not map.
static void give_to_root(const struct attempt *self) {
    (void)self;
    if (chown(own_file(), 0, 0) == 0)
        say_worked("the file is root's");
    else
        say_refused(errno, "refused");
}
static void set_attribute(const struct attempt *self) {
    // Version 2, one capability, no flags: valid, on an empty file that cannot be executed.
    static const unsigned char capability[20] = {0, 0, 0, 2, 1};
    int result = setxattr(own_file(), self->text, capability, sizeof capability, 0);
    if (result < 0 && errno == EOPNOTSUPP)
        say_absent(errno, "not on this file system");
    else
        judge_path(result);
}

// Mounting, in a mount namespace of our own where we get one, so that the host never sees it.
static int own_mounts(void) {
    if (unshare(CLONE_NEWNS) == 0)
        return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 || geteuid() != 0;
    return geteuid() != 0; // no namespace: go on only where we could not hurt
}
static void remount(const struct attempt *self) {
    if (!own_mounts())
        say_refused(errno, "no mount namespace to try it in");
    else
        judge_path(mount(NULL, self->text, NULL, MS_REMOUNT | MS_BIND, NULL));
}
static void bind_over(const struct attempt *self) {
    if (!own_mounts())
        say_refused(errno, "no mount namespace to try it in");
    else
        judge_path(mount("/tmp", self->text, NULL, MS_BIND, NULL));
}
static void mount_type(const struct attempt *self) {
    const char *dir = scratch_dir();
    if (!own_mounts())
        say_refused(errno, "no mount namespace to try it in");
    else
        judge_path(mount(self->text, dir, self->text, 0, NULL));
}

// The mount table itself: fields 5 and 6 are the place and the options.
static int one_of(const char *path, const char *const *list) {
    for (; *list; list++)
        if (strcmp(path, *list) == 0)
            return 1;
    return 0;
}
static void mounts_without(const struct attempt *self) {
    static const char *const ours[] = {"/workspace/work", "/workspace/artifacts", "/tmp", "/home/sandbox", "/home", "/dev/shm",
                                       "/run", "/dev/pts", "/dev/mqueue", "/proc", "/dev/null", "/dev/zero", "/dev/full",
                                       "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", NULL};
    FILE *file = fopen("/proc/self/mountinfo", "re");
    char line[4096], place[1024], options[1024];
    int seen = 0;
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%*s %*s %*s %*s %1023s %1023s", place, options) != 2)
            continue;
        seen++;
        struct stat what;
        int device = stat(place, &what) == 0 && S_ISCHR(what.st_mode);
        int has = strstr(options, self->text) != NULL;
        int read_only = strncmp(options, "ro", 2) == 0;
        if (strcmp(self->text, "nodev") == 0 && (device || strncmp(place, "/dev/", 5) == 0 || (strcmp(place, "/dev") == 0 && read_only)))
            continue; // a device that must work, or the read-only directory that holds the five of them
        if (strncmp(self->text, "ro", 2) == 0) {
            has = strncmp(options, "ro", 2) == 0 || one_of(place, ours) || device || strncmp(place, "/proc/", 6) == 0;
        }
        if (!has) {
            say_worked("%s is %s", place, options);
            return;
        }
    }
    if (seen)
        say_refused(0, "all %d mounts are", seen);
    else
        say_absent(0, "no mount table");
}

// The working directory must lie below the root (a leaked descriptor of the host would show as unreachable).
static void working_directory(const struct attempt *self) {
    (void)self;
    char path[4096];
    long result = syscall(SYS_getcwd, path, sizeof path);
    if (result > 0 && strncmp(path, "/workspace/work", 15) == 0)
        say_refused(0, "%s", path);
    else
        say_worked("%s", result > 0 ? path : strerrorname_np(errno));
}
static void up_from_cwd(const struct attempt *self) {
    const char *path = arg("host-file", NULL);
    char way[4096];
    int length = 0;
    for (int i = 0; i < 40; i++)
        length += snprintf(way + length, sizeof way - (size_t)length, "../");
    snprintf(way + length, sizeof way - (size_t)length, "%s%s", self->text, path ? path : "/nothing-given");
    judge_path(open(way, O_RDONLY | O_CLOEXEC));
}

static const struct attempt attempts[] = {
    {"host-files", "read-etc-shadow", open_read, "/etc/shadow", 0},
    {"host-files", "read-etc-shadow-backup", open_read, "/etc/shadow-", 0},
    {"host-files", "read-etc-gshadow", open_read, "/etc/gshadow", 0},
    {"host-files", "read-etc-sudoers", open_read, "/etc/sudoers", 0},
    {"host-files", "read-etc-machine-id", open_read, "/etc/machine-id", 0},
    {"host-files", "read-etc-fstab", open_read, "/etc/fstab", 0},
    {"host-files", "list-etc-ssh", list, "/etc/ssh", 0},
    {"host-files", "list-etc-pam", list, "/etc/pam.d", 0},
    {"host-files", "list-etc-cron", list, "/etc/cron.d", 0},
    {"host-files", "host-users", many_users, 0, 0},
    {"host-files", "list-root-home", list, "/root", 0},
    {"host-files", "list-homes", list_home, "/home", 0},
    {"host-files", "list-var-log", list, "/var/log", 0},
    {"host-files", "list-var-spool", list, "/var/spool", 0},
    {"host-files", "list-var-backups", list, "/var/backups", 0},
    {"host-files", "list-host-packages", list, "/var/lib/dpkg/info", 0},
    {"host-files", "list-boot", list, "/boot", 0},
    {"host-files", "list-opt", list, "/opt", 0},
    {"host-files", "list-srv", list, "/srv", 0},
    {"host-files", "list-mnt", list, "/mnt", 0},
    {"host-files", "list-media", list, "/media", 0},
    {"host-files", "list-sys", list, "/sys", 0},
    {"host-files", "list-host-run", list, "/run/systemd", 0},
    {"host-files", "list-run-sandboxd", list, "/run/sandboxd", 0},
    {"host-files", "read-run-utmp", open_read, "/run/utmp", 0},
    {"host-files", "read-host-marker", host_file, "%s", 0},
    {"host-files", "read-host-marker-dotdot", host_file, "/../../../..%s", 0},
    {"host-files", "read-host-marker-self-root", host_file, "/proc/self/root%s", 0},
    {"host-files", "read-host-marker-self-root-dotdot", host_file, "/proc/self/root/../..%s", 0},
    {"host-files", "read-host-marker-up-from-cwd", up_from_cwd, "", 0},
    {"host-files", "read-host-marker-symlink", host_file_by_link, 0, 0},
    {"host-files", "working-directory-is-the-hosts", working_directory, 0, 0},

    {"writes", "create-in-root", create_in, "/", 0},
    {"writes", "create-in-usr", create_in, "/usr", 0},
    {"writes", "create-in-usr-bin", create_in, "/usr/bin", 0},
    {"writes", "create-in-usr-local-bin", create_in, "/usr/local/bin", 0},
    {"writes", "create-in-bin", create_in, "/bin", 0},
    {"writes", "create-in-sbin", create_in, "/sbin", 0},
    {"writes", "create-in-lib", create_in, "/lib", 0},
    {"writes", "create-in-etc", create_in, "/etc", 0},
    {"writes", "create-in-var-tmp", create_in, "/var/tmp", 0},
    {"writes", "create-in-dev", create_in, "/dev", 0},
    {"writes", "create-in-proc", create_in, "/proc", 0},
    {"writes", "create-in-home", create_in, "/home", 0},
    {"writes", "create-in-workspace", create_in, "/workspace", 0},
    {"writes", "create-in-inputs", create_in, "/workspace/inputs", 0},
    {"writes", "mkdir-in-root", make_directory_in, "/", 0},
    {"writes", "mkdir-in-workspace", make_directory_in, "/workspace", 0},
    {"writes", "mkdir-in-etc", make_directory_in, "/etc", 0},
    {"writes", "mkdir-in-dev", make_directory_in, "/dev", 0},
    {"writes", "symlink-in-root", link_in, "/", 0},
    {"writes", "symlink-in-etc", link_in, "/etc", 0},
    {"writes", "symlink-in-inputs", link_in, "/workspace/inputs", 0},
    {"writes", "open-passwd-for-writing", open_write, "/etc/passwd", 0},
    {"writes", "open-hosts-for-writing", open_write, "/etc/hosts", 0},
    {"writes", "open-ld-cache-for-writing", open_write, "/etc/ld.so.cache", 0},
    {"writes", "open-program-for-writing", open_write, "/usr/bin/env", 0},
    {"writes", "truncate-input", truncate_it, "/workspace/inputs/probe", 0},
    {"writes", "remove-usr", remove_directory, "/usr", 0},
    {"writes", "remove-etc", remove_directory, "/etc", 0},
    {"writes", "chmod-root", change_mode, "/", 0},
    {"writes", "chmod-usr-bin-env", change_mode, "/usr/bin/env", 0},
    {"writes", "chmod-etc-passwd", change_mode, "/etc/passwd", 0},
    {"writes", "chmod-input", change_mode, "/workspace/inputs/probe", 0},
    {"writes", "hard-link-to-passwd", hard_link, "/etc/passwd", 0},
    {"writes", "hard-link-to-program", hard_link, "/usr/bin/env", 0},
    {"writes", "hard-link-to-own-program", hard_link, "/proc/self/exe", 0},
    {"writes", "chown-to-root", give_to_root, 0, 0},
    {"writes", "file-capability", set_attribute, "security.capability", 0},
    {"writes", "trusted-attribute", set_attribute, "trusted.probe", 0},

    {"mounts-made", "remount-root-writable", remount, "/", 0},
    {"mounts-made", "remount-usr-writable", remount, "/usr", 0},
    {"mounts-made", "remount-inputs-writable", remount, "/workspace/inputs", 0},
    {"mounts-made", "remount-proc-writable", remount, "/proc", 0},
    {"mounts-made", "bind-over-etc", bind_over, "/etc", 0},
    {"mounts-made", "mount-proc", mount_type, "proc", 0},
    {"mounts-made", "mount-sysfs", mount_type, "sysfs", 0},
    {"mounts-made", "mount-tmpfs", mount_type, "tmpfs", 0},
    {"mounts-made", "mount-devpts", mount_type, "devpts", 0},
    {"mounts-made", "mount-cgroup2", mount_type, "cgroup2", 0},
    {"mounts-made", "mount-overlay", mount_type, "overlay", 0},
    {"mounts-made", "writable-mounts", mounts_without, "ro", 0},
    {"mounts-made", "mounts-that-honour-setuid", mounts_without, "nosuid", 0},
    {"mounts-made", "mounts-that-honour-devices", mounts_without, "nodev", 0},

    {"devices", "device-mem", open_read, "/dev/mem", 0},
    {"devices", "device-kmem", open_read, "/dev/kmem", 0},
    {"devices", "device-port", open_read, "/dev/port", 0},
    {"devices", "device-kmsg", open_read, "/dev/kmsg", 0},
    {"devices", "device-kmsg-write", open_write, "/dev/kmsg", 0},
    {"devices", "device-sda", open_read, "/dev/sda", 0},
    {"devices", "device-sda1", open_read, "/dev/sda1", 0},
    {"devices", "device-vda", open_read, "/dev/vda", 0},
    {"devices", "device-vda1", open_read, "/dev/vda1", 0},
    {"devices", "device-nvme", open_read, "/dev/nvme0n1", 0},
    {"devices", "device-dm", open_read, "/dev/dm-0", 0},
    {"devices", "device-zram", open_read, "/dev/zram0", 0},
    {"devices", "device-loop0", open_read, "/dev/loop0", 0},
    {"devices", "device-loop-control", open_read, "/dev/loop-control", 0},
    {"devices", "device-mapper", open_read, "/dev/mapper/control", 0},
    {"devices", "device-fuse", open_read, "/dev/fuse", 0},
    {"devices", "device-cuse", open_read, "/dev/cuse", 0},
    {"devices", "device-autofs", open_read, "/dev/autofs", 0},
    {"devices", "device-btrfs", open_read, "/dev/btrfs-control", 0},
    {"devices", "device-kvm", open_read, "/dev/kvm", 0},
    {"devices", "device-tun", open_read, "/dev/net/tun", 0},
    {"devices", "device-vhost-net", open_read, "/dev/vhost-net", 0},
    {"devices", "device-vhost-vsock", open_read, "/dev/vhost-vsock", 0},
    {"devices", "device-vsock", open_read, "/dev/vsock", 0},
    {"devices", "device-ppp", open_read, "/dev/ppp", 0},
    {"devices", "device-userfaultfd", open_read, "/dev/userfaultfd", 0},
    {"devices", "device-msr", open_read, "/dev/cpu/0/msr", 0},
    {"devices", "device-cpu-latency", open_read, "/dev/cpu_dma_latency", 0},
    {"devices", "device-hwrng", open_read, "/dev/hwrng", 0},
    {"devices", "device-rtc", open_read, "/dev/rtc0", 0},
    {"devices", "device-hpet", open_read, "/dev/hpet", 0},
    {"devices", "device-nvram", open_read, "/dev/nvram", 0},
    {"devices", "device-vga", open_read, "/dev/vga_arbiter", 0},
    {"devices", "device-gpu", open_read, "/dev/dri/card0", 0},
    {"devices", "device-input", open_read, "/dev/input/event0", 0},
    {"devices", "device-uinput", open_read, "/dev/uinput", 0},
    {"devices", "device-sound", open_read, "/dev/snd/control", 0},
    {"devices", "device-console", open_read, "/dev/console", 0},
    {"devices", "device-tty0", open_read, "/dev/tty0", 0},
    {"devices", "device-tty1", open_read, "/dev/tty1", 0},
    {"devices", "device-ttyS0", open_read, "/dev/ttyS0", 0},
    {"devices", "device-screen", open_read, "/dev/vcs", 0},
    {"devices", "device-screen-attributes", open_read, "/dev/vcsa1", 0},
    {"devices", "node-in-tmp", node_in, "/tmp", 0},
    {"devices", "node-in-dev", node_in, "/dev", 0},
    {"devices", "node-in-dev-shm", node_in, "/dev/shm", 0},
    {"devices", "node-in-work", node_in, "/workspace/work", 0},
    {"devices", "node-in-run", node_in, "/run", 0},
};

const struct wall wall_filesystem = {"filesystem", attempts, COUNT(attempts), 15};
