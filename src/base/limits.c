/* Reads with plain descriptors, because the budget is asked often and stdio would allocate. */
#include "base/limits.h"

#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "longshore/plan.h"

bool shore__read_text(const char *path, char *text, size_t bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, bytes - 1);
    close(fd);
    if (n < 0) return false;
    text[n] = '\0';
    return true;
}

const char *shore__kernel_value(const char *path, const char *key, char *out, size_t bytes) {
    char text[8192];
    out[0] = '\0';
    if (!shore__read_text(path, text, sizeof text)) return out;
    const char *at = strstr(text, key), *colon = at ? strchr(at, ':') : NULL;
    if (!colon) return out;
    colon += 1 + strspn(colon + 1, " \t");
    snprintf(out, bytes, "%.*s", (int)strcspn(colon, "\n"), colon);
    return out;
}

/* ---- control groups ---------------------------------------------------------------------------------------------- */

/* Takes the limits of one group whose files are in folder. */
typedef void (*limit_fn)(const char *folder, struct shore__limits *out);

static bool read_in(const char *folder, const char *file, char *text, size_t bytes) {
    char path[2 * PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    return shore__read_text(path, text, bytes);
}

/* "max" and a missing file mean no limit. */
static void take_memory(const char *folder, const char *file, struct shore__limits *out) {
    char text[64];
    if (!read_in(folder, file, text, sizeof text) || text[0] < '0' || text[0] > '9') return;
    uint64_t limit = strtoull(text, NULL, 10);
    if (limit < out->memory_bytes) out->memory_bytes = limit;
}

static void take_quota(double quota, double period, struct shore__limits *out) {
    if (quota > 0 && period > 0 && quota / period < out->quota) out->quota = quota / period;
}

static void limits_of_v2(const char *folder, struct shore__limits *out) {
    char text[64], *end;
    take_memory(folder, "memory.max", out);
    if (!read_in(folder, "cpu.max", text, sizeof text)) return;
    double quota = strtod(text, &end); /* "max 100000" means no limit */
    if (end != text) take_quota(quota, strtod(end, NULL), out);
}

static void memory_of_v1(const char *folder, struct shore__limits *out) {
    take_memory(folder, "memory.limit_in_bytes", out);
}

static void quota_of_v1(const char *folder, struct shore__limits *out) {
    char quota[64], period[64];
    if (read_in(folder, "cpu.cfs_quota_us", quota, sizeof quota) &&
        read_in(folder, "cpu.cfs_period_us", period, sizeof period))
        take_quota(strtod(quota, NULL), strtod(period, NULL), out);
}

/* Takes the limits of a control group and its parents. In a container, the group that /proc names may be outside the
 * mount; the mounted root then has its limits. */
static void walk_up(const char *mount, const char *group, limit_fn take, struct shore__limits *out) {
    char folder[PATH_MAX];
    size_t mounted = strlen(mount);
    snprintf(folder, sizeof folder, "%s%s", mount, group);
    for (;;) {
        take(folder, out);
        char *slash = strrchr(folder, '/');
        if (!slash || slash < folder + mounted) return;
        *slash = '\0';
    }
}

/* Whether a list such as "cpu,cpuacct" contains the word. */
static bool lists(const char *controllers, const char *word) {
    size_t length = strlen(word);
    for (const char *at = controllers; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, length) == 0 && (at[length] == '\0' || at[length] == ',')) return true;
    }
    return false;
}

static void limits_of_group(const char *root, const char *controllers, const char *group, struct shore__limits *out) {
    char mount[PATH_MAX];
    snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root);
    if (*controllers == '\0') {
        walk_up(mount, group, limits_of_v2, out);
        return;
    }
    if (lists(controllers, "memory")) {
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/memory", root);
        walk_up(mount, group, memory_of_v1, out);
    }
    if (lists(controllers, "cpu")) { /* if it is mounted with others, /sys has links to it */
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/cpu", root);
        walk_up(mount, group, quota_of_v1, out);
    }
}

void shore__limits_read(const char *root, struct shore__limits *out) {
    char path[PATH_MAX], groups[8192];
    *out = (struct shore__limits){.quota = (double)INFINITY, .memory_bytes = UINT64_MAX};
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (!shore__read_text(path, groups, sizeof groups)) return;
    char *rest = NULL;
    for (char *line = strtok_r(groups, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = '\0';
        limits_of_group(root, controllers + 1, group, out);
    }
}

/* ---- the machine ------------------------------------------------------------------------------------------------- */

uint64_t shore__machine_memory_bytes(void) {
    struct shore__limits limits;
    uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    shore__limits_read("", &limits);
    return limits.memory_bytes < all ? limits.memory_bytes : all;
}

/* Not sched_getaffinity(): with OMP_PROC_BIND, this thread may already be bound to one processor. */
unsigned shore__machine_processors(void) {
    int n = omp_get_num_procs();
    return n > 0 ? (unsigned)n : 1;
}

unsigned shore__threads_within(unsigned processors, double quota) {
    if (!(quota < processors)) return processors > 0 ? processors : 1;
    return quota > 1 ? (unsigned)ceil(quota) : 1;
}

unsigned shore__machine_threads(void) {
    struct shore__limits limits;
    shore__limits_read("", &limits);
    return shore__threads_within(shore__machine_processors(), limits.quota);
}

/* ---- the processor ----------------------------------------------------------------------------------------------- */

bool shore_multiplies_bf16(void) {
#if defined(__x86_64__)
    unsigned a = 0, b, c, d = 0, more = 0;
    if (__get_cpuid_count(7, 0, &more, &b, &c, &d) && d >> 22 & 1) return true; /* AMX_BF16 */
    return more >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a >> 5 & 1;  /* AVX512_BF16 */
#elif defined(__aarch64__)
    return getauxval(AT_HWCAP2) & HWCAP2_BF16;
#else
    return false;
#endif
}
