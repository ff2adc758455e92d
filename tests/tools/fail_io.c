/* Preloaded into longshore, it fails transfers of one file: FAIL_IO is "KIND COUNT CODE PATH": after COUNT operations
 * of a kind (read, write, flush, unlink, statx, or dirsync: the fsync of a directory) on files whose path contains
 * PATH, they fail with errno CODE, and so do all later ones. KIND "slow" is another thing: files cannot be
 * preallocated, and writing takes CODE ms longer; with KIND "die", the process ends as soon as a flush is done; with
 * KIND "stop", it stops itself once, before it makes a file whose path contains PATH; with KIND "rmdir", directories
 * cannot be removed, but only while this process still has a file open that was removed from there, as on network file
 * systems; with KIND "any", one call of any of these kinds fails, or one that opens, makes, sizes, names or syncs a
 * file, and only that one, which a line in the file FAIL_IO_LOG then names; with KIND "kill", that call kills the
 * process. Works with --io threads, which uses the calls below. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_long seen;

static void note(const char *kind, const char *name) {
    const char *log = getenv("FAIL_IO_LOG");
    FILE *f = log ? fopen(log, "a") : NULL;
    if (!f) return;
    fprintf(f, "%s %s\n", kind, name);
    fclose(f);
}

/* Whether this is the one call that fails. A process that gives another order begins to count anew. */
static bool is_the_one(const char *order, const char *kind, const char *name, long count) {
    static char last[1024];
    if (strcmp(kind, "slow") == 0 || strcmp(kind, "die") == 0 || strcmp(kind, "rmdir") == 0) return false;
    if (strcmp(last, order) != 0) {
        snprintf(last, sizeof last, "%s", order);
        atomic_store(&seen, 0);
    }
    if (atomic_fetch_add(&seen, 1) != count) return false;
    note(kind, name);
    return true;
}

/* name: NULL for that of fd. */
static bool fails_at(int fd, const char *name, const char *kind) {
    char opened[1024], link[64], wanted[16], path[512];
    long count;
    int code;
    const char *order = getenv("FAIL_IO");
    if (!order || sscanf(order, "%15s %ld %d %511s", wanted, &count, &code, path) != 4) return false;
    const bool kills = strcmp(wanted, "kill") == 0, any = kills || strcmp(wanted, "any") == 0;
    if (!any && strcmp(wanted, kind) != 0) return false;
    if (!name) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, opened, sizeof opened - 1);
        if (n <= 0) return false;
        opened[n] = 0;
        name = opened;
    }
    if (!strstr(name, path)) return false;
    if (any ? !is_the_one(order, kind, name, count) : atomic_fetch_add(&seen, 1) < count) return false;
    if (kills) raise(SIGKILL);
    errno = code;
    return true;
}

static bool fails(int fd, const char *kind) {
    return fails_at(fd, NULL, kind);
}

#define REAL(name)                 \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)(__UINTPTR_TYPE__)dlsym(RTLD_NEXT, #name)

ssize_t pread(int fd, void *buffer, size_t bytes, off_t offset) {
    REAL(pread);
    return fails(fd, "read") ? -1 : real(fd, buffer, bytes, offset);
}

ssize_t pread64(int fd, void *buffer, size_t bytes, off64_t offset) {
    REAL(pread64);
    return fails(fd, "read") ? -1 : real(fd, buffer, bytes, offset);
}

static void wait_if_slow(int fd) {
    if (fails(fd, "slow")) usleep((unsigned)errno * 1000);
}

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
    REAL(fallocate);
    if (fails(fd, "fallocate")) return -1;
    if (!fails(fd, "slow")) return real(fd, mode, offset, bytes);
    errno = EOPNOTSUPP;
    return -1;
}

int fallocate64(int fd, int mode, off64_t offset, off64_t bytes) {
    REAL(fallocate64);
    if (fails(fd, "fallocate")) return -1;
    if (!fails(fd, "slow")) return real(fd, mode, offset, bytes);
    errno = EOPNOTSUPP;
    return -1;
}

ssize_t pwrite(int fd, const void *buffer, size_t bytes, off_t offset) {
    REAL(pwrite);
    wait_if_slow(fd);
    return fails(fd, "write") ? -1 : real(fd, buffer, bytes, offset);
}

ssize_t pwrite64(int fd, const void *buffer, size_t bytes, off64_t offset) {
    REAL(pwrite64);
    wait_if_slow(fd);
    return fails(fd, "write") ? -1 : real(fd, buffer, bytes, offset);
}

int open(const char *path, int flags, ...) {
    REAL(open);
    static atomic_bool stopped;
    char wanted[512];
    const char *order = getenv("FAIL_IO");
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (order && flags & O_CREAT && sscanf(order, "stop %*d %*d %511s", wanted) == 1 && strstr(path, wanted) &&
        !atomic_exchange(&stopped, true))
        raise(SIGSTOP);
    return fails_at(-1, path, "open") ? -1 : real(path, flags, mode);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return fails_at(-1, path, "mkdir") ? -1 : real(path, mode);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    return fails_at(-1, from, "rename") ? -1 : real(from, to);
}

int ftruncate(int fd, off_t bytes) {
    REAL(ftruncate);
    return fails(fd, "ftruncate") ? -1 : real(fd, bytes);
}

int ftruncate64(int fd, off64_t bytes) {
    REAL(ftruncate64);
    return fails(fd, "ftruncate") ? -1 : real(fd, bytes);
}

int fdatasync(int fd) {
    REAL(fdatasync);
    if (fails(fd, "flush")) return -1;
    int rc = real(fd);
    if (fails(fd, "die")) _exit(9);
    return rc;
}

int fsync(int fd) {
    REAL(fsync);
    struct stat st;
    return fails(fd, fstat(fd, &st) == 0 && S_ISDIR(st.st_mode) ? "dirsync" : "fsync") ? -1 : real(fd);
}

int unlink(const char *path) {
    REAL(unlink);
    return fails_at(-1, path, "unlink") ? -1 : real(path);
}

int statx(int directory, const char *path, int flags, unsigned mask, struct statx *out) {
    REAL(statx);
    return fails_at(-1, path, "statx") ? -1 : real(directory, path, flags, mask, out);
}

static bool has_removed_file_open(const char *path) {
    DIR *descriptors = opendir("/proc/self/fd");
    const struct dirent *entry;
    bool found = false;
    while (descriptors && !found && (entry = readdir(descriptors))) {
        char opened[1024];
        ssize_t n = readlinkat(dirfd(descriptors), entry->d_name, opened, sizeof opened - 1);
        opened[n > 0 ? n : 0] = 0;
        found = strstr(opened, path) && strstr(opened, " (deleted)");
    }
    if (descriptors) closedir(descriptors);
    return found;
}

int rmdir(const char *path) {
    REAL(rmdir);
    return has_removed_file_open(path) && fails_at(-1, path, "rmdir") ? -1 : real(path);
}
