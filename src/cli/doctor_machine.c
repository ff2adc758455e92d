/* The checks of `doctor` for the machine: what the kernel says, and what a test shows. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/limits.h"
#include "cli/cli.h"
#include "cli/doctor.h"
#include "compute/compute.h"
#include "near/update.h"
#include "storage/blockio.h"

enum { FILES_ENOUGH = 256 };
#define LOCKED_ENOUGH (UINT64_C(64) << 20)

static json_t *count(uint64_t n) {
    return json_integer(n > INT64_MAX ? INT64_MAX : (json_int_t)n);
}

static void processor(struct shore__report *r) {
    char model[128], updates[64] = "";
    struct shore__limits limits;
    shore__limits_read("", &limits);
    unsigned usable = shore__machine_processors(), threads = shore__machine_threads();
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    const char *kind = shore__processor_kind();
    bool bf16 = shore__products_for_this_processor() == SHORE__PRODUCTS_BF16;
    bool plain = !strstr(kind, "avx2") && !strstr(kind, "avx512") && !strstr(kind, "amx");
    for (const struct shore__near_version *v = shore__near_versions(); v->name; v++)
        if (v->usable()) snprintf(updates, sizeof updates, "%s", v->name);
    if (!*shore__kernel_value("/proc/cpuinfo", "model name", model, sizeof model))
        snprintf(model, sizeof model, "unknown model");
    json_t *facts = json_pack("{s:s,s:s,s:s,s:s}", "model", model, "kind", kind, "products", bf16 ? "bf16" : "fp32",
                              "update", updates);
    shore__report_add(r, "processor", plain ? SHORE__WEAK : SHORE__FINE,
                      plain ? "kernels for this one are plain C: with AVX2, AVX-512 or AMX it is many times as fast"
                            : NULL,
                      facts, "%s, %s; products as %s, UPDATE as %s", model, kind, bf16 ? "bf16" : "fp32", updates);

    char quota[80] = "";
    facts = json_pack("{s:I,s:I,s:I}", "processors", (json_int_t)(online > 0 ? online : usable), "usable",
                      (json_int_t)usable, "threads", (json_int_t)threads);
    if (isfinite(limits.quota)) {
        snprintf(quota, sizeof quota, ", the control group gives the time of %g", limits.quota);
        json_object_set_new(facts, "quota", json_real(limits.quota));
    }
    shore__report_add(r, "threads", SHORE__FINE, NULL, facts, "%u (%ld processors, %u of them usable here%s)", threads,
                      online > 0 ? online : (long)usable, usable, quota);
}

static void memory(struct shore__report *r) {
    char value[64], group[64] = "";
    struct shore__limits limits;
    uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t may = shore__machine_memory_bytes();
    uint64_t available =
        strtoull(shore__kernel_value("/proc/meminfo", "MemAvailable", value, sizeof value), NULL, 10) * 1024;
    shore__limits_read("", &limits);
    json_t *facts = json_pack("{s:o,s:o,s:o}", "memory_bytes", count(all), "available_bytes", count(available),
                              "default_budget_bytes", count(may / 2));
    if (limits.memory_bytes < all) {
        snprintf(group, sizeof group, ", the control group allows %s", shore__format_size(limits.memory_bytes).text);
        json_object_set_new(facts, "limit_bytes", count(limits.memory_bytes));
    }
    bool tight = available && available < may / 2;
    shore__report_add(r, "memory", tight ? SHORE__WEAK : SHORE__FINE,
                      tight ? "give --memory less than what is available, or end what holds it" : NULL, facts,
                      "%s, %s available%s; without --memory a run takes at most %s", shore__format_size(all).text,
                      available ? shore__format_size(available).text : "unknown", group,
                      shore__format_size(may / 2).text);
}

static void limits_of_process(struct shore__report *r) {
    struct rlimit locked = {0}, files = {0};
    getrlimit(RLIMIT_MEMLOCK, &locked);
    getrlimit(RLIMIT_NOFILE, &files);
    bool free_to_lock = locked.rlim_cur == RLIM_INFINITY || geteuid() == 0, enough = locked.rlim_cur >= LOCKED_ENOUGH;
    json_t *facts = locked.rlim_cur == RLIM_INFINITY ? NULL : json_pack("{s:o}", "limit_bytes", count(locked.rlim_cur));
    shore__report_add(r, "locked memory", free_to_lock || enough ? SHORE__FINE : SHORE__WEAK,
                      free_to_lock || enough ? NULL
                                             : "buffers above that are not registered with io_uring, which takes a "
                                               "little more of the processor: raise it (ulimit -l unlimited)",
                      facts, "%s", free_to_lock ? "not limited" : shore__format_size(locked.rlim_cur).text);
    bool few = files.rlim_cur < FILES_ENOUGH;
    shore__report_add(r, "open files", few ? SHORE__WEAK : SHORE__FINE,
                      few ? "many drives, or a model in many files, may not fit: raise it (ulimit -n 1024)" : NULL,
                      files.rlim_cur == RLIM_INFINITY ? NULL : json_pack("{s:o}", "limit", count(files.rlim_cur)),
                      files.rlim_cur == RLIM_INFINITY ? "not limited" : "up to %llu",
                      (unsigned long long)files.rlim_cur);
}

static void huge_pages(struct shore__report *r) {
    char text[128];
    if (!shore__read_text("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof text)) {
        shore__report_add(r, "huge pages", SHORE__FINE, NULL, NULL, "unknown to this kernel or not shown here");
        return;
    }
    bool off = strstr(text, "[never]") != NULL;
    shore__report_add(
        r, "huge pages", off ? SHORE__WEAK : SHORE__FINE,
        off ? "computing is somewhat slower: echo madvise >/sys/kernel/mm/transparent_hugepage/enabled" : NULL,
        json_pack("{s:b}", "used", !off), off ? "transparent ones are switched off" : "used where memory has them");
}

/* Why io_uring is refused, as far as the kernel tells. */
static const char *why_refused(int rc, char *advice, size_t bytes) {
    char disabled[16] = "", value[32];
    shore__read_text("/proc/sys/kernel/io_uring_disabled", disabled, sizeof disabled);
    bool filtered = strcmp(shore__kernel_value("/proc/self/status", "\nSeccomp", value, sizeof value), "2") == 0;
    if (rc == -ENOSYS)
        snprintf(advice, bytes,
                 filtered ? "a seccomp filter keeps it away: let the container's profile allow io_uring_setup, "
                            "io_uring_enter and io_uring_register"
                          : "it needs a kernel of 5.6 or later with io_uring, and a build with liburing");
    else if (disabled[0] == '1' || disabled[0] == '2')
        snprintf(advice, bytes, "sysctl -w kernel.io_uring_disabled=0 allows it (it is %c)", disabled[0]);
    else if (rc == -ENOMEM)
        snprintf(advice, bytes, "raise the limit of locked memory (ulimit -l unlimited)");
    else if (filtered)
        snprintf(advice, bytes,
                 "a seccomp filter refuses it: let the container's profile allow io_uring_setup, io_uring_enter and "
                 "io_uring_register");
    else
        snprintf(advice, bytes, "a security policy of this machine may refuse it");
    return advice;
}

static void uring(struct shore__report *r) {
    char advice[256];
    struct utsname system = {.release = "unknown"};
    uname(&system);
    int rc = shore__io_uring_try();
    json_t *facts = json_pack("{s:b,s:s}", "works", rc == 0, "kernel", system.release);
    if (rc == 0)
        shore__report_add(r, "io_uring", SHORE__FINE, NULL, facts, "usable (kernel %s)", system.release);
    else
        shore__report_add(r, "io_uring", SHORE__WEAK, why_refused(rc, advice, sizeof advice), facts,
                          "refused (%s), threads read and write instead (kernel %s)", strerror(-rc), system.release);
}

void shore__doctor_machine(struct shore__report *r) {
    processor(r);
    memory(r);
    limits_of_process(r);
    huge_pages(r);
    uring(r);
}

/* ---- graphics ---------------------------------------------------------------------------------------------------- */

#define NOT_USED "the program does not use it; `python -m longshore doctor` says what the package has of it"

/* said: "NAME, MEMORY, DRIVER", one line each. */
static void report_nvidia(struct shore__report *r, char *said) {
    unsigned count = 0;
    char others[32] = "";
    for (const char *at = said; *at; at += strcspn(at, "\n"), at += *at == '\n')
        count++;
    said[strcspn(said, "\n")] = '\0';
    char *memory = strstr(said, ", "), *driver = memory ? strstr(memory + 2, ", ") : NULL;
    if (driver) *memory = *driver = '\0';
    if (count > 1) snprintf(others, sizeof others, ", and %u more", count - 1);
    json_t *facts = json_pack("{s:s,s:s*,s:s*,s:I}", "model", said, "memory", driver ? memory + 2 : NULL, "driver",
                              driver ? driver + 2 : NULL, "gpus", (json_int_t)count);
    shore__report_add(r, "GPU", SHORE__FINE, NULL, facts, "%s%s%s%s%s%s; " NOT_USED, said, driver ? ", " : "",
                      driver ? memory + 2 : "", driver ? ", driver " : "", driver ? driver + 2 : "", others);
}

void shore__doctor_graphics(struct shore__report *r) {
    char said[2048], version[256] = "";
    char *const ask[] = {(char *)"nvidia-smi", (char *)"--query-gpu=name,memory.total,driver_version",
                         (char *)"--format=csv,noheader", NULL};
    if (shore__doctor_ask(ask, said, sizeof said)) {
        report_nvidia(r, said);
    } else if (shore__read_text("/proc/driver/nvidia/version", version, sizeof version)) {
        version[strcspn(version, "\n")] = '\0';
        shore__report_add(r, "GPU", SHORE__FINE, NULL, json_pack("{s:s}", "driver", version), "%s; " NOT_USED, version);
    } else if (access("/dev/nvidia0", F_OK) == 0 || access("/dev/nvidiactl", F_OK) == 0) {
        shore__report_add(r, "GPU", SHORE__FINE, NULL, NULL,
                          "NVIDIA's device files are there, but no driver answers; " NOT_USED);
    } else if (access("/dev/kfd", F_OK) == 0) {
        shore__report_add(r, "GPU", SHORE__FINE, NULL, NULL, "AMD's driver is there; " NOT_USED);
    } else {
        shore__report_add(r, "GPU", SHORE__FINE, NULL, NULL, "none found, and none is needed");
    }
}
