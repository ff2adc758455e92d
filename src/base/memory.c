/* What the kernel says about memory: read with plain descriptors, because the budget is asked often and stdio would
 * allocate. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/units.h"

static bool read_text(const char *path, char *text, size_t bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, bytes - 1);
    close(fd);
    if (n < 0) return false;
    text[n] = '\0';
    return true;
}

static uint64_t status_kib(const char *status, const char *key) {
    const char *line = strstr(status, key);
    return line ? strtoull(line + strlen(key), NULL, 10) * 1024 : 0;
}

void shore__resident_bytes(uint64_t *now, uint64_t *peak) {
    char status[4096];
    bool known = read_text("/proc/self/status", status, sizeof status);
    if (now) *now = known ? status_kib(status, "\nVmRSS:") : 0;
    if (peak) *peak = known ? status_kib(status, "\nVmHWM:") : 0;
}

/* The least limit of a control group and those above it. "max" and a missing file are no limit. */
static uint64_t group_limit(const char *root, const char *group, const char *file) {
    char folder[PATH_MAX], path[2 * PATH_MAX], text[64];
    uint64_t least = UINT64_MAX;
    snprintf(folder, sizeof folder, "%s", group);
    for (;;) {
        snprintf(path, sizeof path, "%s%s/%s", root, folder, file);
        if (read_text(path, text, sizeof text) && text[0] >= '0' && text[0] <= '9') {
            uint64_t limit = strtoull(text, NULL, 10);
            if (limit < least) least = limit;
        }
        char *slash = strrchr(folder, '/');
        if (!slash) return least;
        *slash = '\0';
    }
}

uint64_t shore__machine_memory_bytes(void) {
    uint64_t least = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    char groups[8192];
    if (!read_text("/proc/self/cgroup", groups, sizeof groups)) return least;
    char *rest = NULL;
    for (char *line = strtok_r(groups, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = '\0';
        uint64_t limit = UINT64_MAX;
        if (controllers[1] == '\0')
            limit = group_limit("/sys/fs/cgroup", group, "memory.max");
        else if (strcmp(controllers + 1, "memory") == 0)
            limit = group_limit("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes");
        if (limit < least) least = limit;
    }
    return least;
}
