// Runs attempts, each in a child of its own, and prints one line of JSON per attempt.
#include "probe.h"
#include <dirent.h>
#include <sys/mman.h>

static const struct wall *const walls[] = {
    &wall_syscalls, &wall_sockets,     &wall_filesystem, &wall_proc,      &wall_processes,
    &wall_network,  &wall_descriptors, &wall_privileges, &wall_resources, &wall_allowed,
};

// Lives in memory shared with the child, so that a killed child needs no pipe to be reported.
struct row {
    int filled, counted, error;
    char result[16];
    char detail[400];
    long long reached, ceiling;
    char scratch[64];
};

static struct row *row;
static int arguments;
static char **argument;
pid_t probe_pid;

const char *arg(const char *key, const char *fallback) {
    size_t length = strlen(key);
    for (int i = 0; i < arguments; i++)
        if (strncmp(argument[i], key, length) == 0 && argument[i][length] == '=')
            return argument[i] + length + 1;
    return fallback;
}

long long arg_number(const char *key, long long fallback) {
    const char *text = arg(key, NULL);
    return text ? atoll(text) : fallback;
}

static void fill(const char *result, int error, const char *format, va_list list) {
    if (row->filled)
        return;
    snprintf(row->result, sizeof row->result, "%s", result);
    row->error = error;
    vsnprintf(row->detail, sizeof row->detail, format, list);
    row->filled = 1;
}

#define FILL(result, error)                                                                                            \
    do {                                                                                                               \
        va_list list;                                                                                                  \
        va_start(list, format);                                                                                        \
        fill(result, error, format, list);                                                                             \
        va_end(list);                                                                                                  \
    } while (0)

void say_refused(int error, const char *format, ...) { FILL("refused", error); }
void say_worked(const char *format, ...) { FILL("worked", 0); }
void say_absent(int error, const char *format, ...) { FILL("absent", error); }

void say_reached(int error, long long reached, long long ceiling, const char *format, ...) {
    row->counted = 1;
    row->reached = reached;
    row->ceiling = ceiling;
    FILL(reached >= ceiling ? "unbounded" : "bounded", error);
}

void progress(long long reached, long long ceiling) {
    if (reached / (256 << 20) != row->reached / (256 << 20))
        dprintf(2, "reached %lld of %lld\n", reached, ceiling);
    row->counted = 1;
    row->reached = reached;
    row->ceiling = ceiling;
}

void judge_call(long result) {
    int error = errno;
    if (result >= 0)
        say_worked("returned %ld", result);
    else if (error == EPERM || error == EACCES)
        say_refused(error, "refused");
    else if (error == ENOSYS)
        say_absent(error, "no such call");
    else
        say_worked("past the permission check: %s", strerrorname_np(error));
}

void judge_path(long result) {
    int error = errno;
    if (result >= 0) {
        say_worked("returned %ld", result);
        return;
    }
    switch (error) {
    case EPERM: case EACCES: case EROFS: case EXDEV: case ELOOP: case ENOTDIR:
        say_refused(error, "refused");
        break;
    case ENOENT: case ENXIO: case ENODEV: case ENOSYS:
        say_absent(error, "not there");
        break;
    default:
        say_worked("past the permission check: %s", strerrorname_np(error));
    }
}

const char *scratch_dir(void) {
    snprintf(row->scratch, sizeof row->scratch, "/tmp/.probe-XXXXXX");
    if (!mkdtemp(row->scratch)) {
        say_absent(errno, "no directory could be made in /tmp");
        row->scratch[0] = 0;
        _exit(0);
    }
    return row->scratch;
}

static void remove_scratch(void) {
    if (!row->scratch[0])
        return;
    DIR *dir = opendir(row->scratch);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        closedir(dir);
    rmdir(row->scratch);
}

const char *status_field(const char *key, char *buffer, size_t size) {
    buffer[0] = 0;
    FILE *file = fopen("/proc/self/status", "re");
    char line[512];
    size_t length = strlen(key);
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, length) == 0 && line[length] == ':') {
            char *value = line + length + 1;
            value += strspn(value, " \t");
            value[strcspn(value, "\n")] = 0;
            snprintf(buffer, size, "%s", value);
        }
    if (file)
        fclose(file);
    return buffer;
}

static void print_text(const char *key, const char *text) {
    printf("\"%s\":\"", key);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            printf("\\%c", *c);
        else if (*c < 0x20 || *c > 0x7e)
            printf("\\u%04x", *c);
        else
            putchar(*c);
    }
    printf("\"");
}

static void print_row(const struct wall *wall, const struct attempt *attempt) {
    printf("{");
    print_text("wall", wall->name);
    printf(",");
    print_text("group", attempt->group);
    printf(",");
    print_text("name", attempt->name);
    printf(",");
    print_text("result", row->result);
    printf(",");
    print_text("errno", row->error ? strerrorname_np(row->error) : "");
    printf(",");
    print_text("detail", row->detail);
    if (row->counted)
        printf(",\"reached\":%lld,\"ceiling\":%lld", row->reached, row->ceiling);
    printf("}\n");
    fflush(stdout);
}

static void child_ended(int status, int counts, const char *format, ...) {
    va_list list;
    va_start(list, format);
    const char *result = "absent";
    if (WIFSIGNALED(status))
        // A filter kills with SIGSYS. A resource bomb is stopped by whatever ends it. A fault is an ABI the CPU or the
        // kernel does not offer. Anything else, the alarm too, is nothing we can call a wall.
        result = counts ? "bounded" : WTERMSIG(status) == SIGSYS ? "refused" : WTERMSIG(status) == SIGSEGV ? "absent" : "worked";
    fill(result, 0, format, list);
    va_end(list);
}

static void try_one(const struct wall *wall, const struct attempt *attempt) {
    memset(row, 0, sizeof *row);
    int counts = wall == &wall_resources;
    pid_t child = fork();
    if (child == 0) {
        alarm(wall->alarm_seconds);
        attempt->run(attempt);
        _exit(0);
    }
    int status = 0;
    if (child < 0)
        say_absent(errno, "the probe could not fork");
    else
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
    if (WIFSIGNALED(status))
        child_ended(status, counts, "killed by SIG%s", sigabbrev_np(WTERMSIG(status)));
    else
        child_ended(status, counts, "the attempt said nothing");
    remove_scratch();
    print_row(wall, attempt);
}

static int usage(void) {
    fprintf(stderr, "usage: probe --list | --wall WALL [KEY=VALUE...] | NAME [KEY=VALUE...]\n");
    return 2;
}

int main(int argc, char **argv) {
    if (argc < 2)
        return usage();
    probe_pid = getpid();
    row = mmap(NULL, sizeof *row, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (row == MAP_FAILED) {
        perror("probe: mmap");
        return 1;
    }
    int whole_wall = strcmp(argv[1], "--wall") == 0, list = strcmp(argv[1], "--list") == 0, found = 0;
    if (whole_wall && argc < 3)
        return usage();
    const char *wanted = argv[whole_wall ? 2 : 1];
    arguments = argc - (whole_wall ? 3 : 2);
    argument = argv + (whole_wall ? 3 : 2);
    for (size_t w = 0; w < COUNT(walls); w++)
        for (size_t a = 0; a < walls[w]->count; a++) {
            const struct attempt *attempt = &walls[w]->attempts[a];
            if (list)
                printf("{\"wall\":\"%s\",\"group\":\"%s\",\"name\":\"%s\"}\n", walls[w]->name, attempt->group, attempt->name);
            else if (strcmp(wanted, whole_wall ? walls[w]->name : attempt->name) == 0)
                try_one(walls[w], attempt);
            else
                continue;
            found = 1;
        }
    if (!found) {
        fprintf(stderr, "probe: nothing is called '%s'\n", wanted);
        return 2;
    }
    return 0;
}
