/* Limits of this process on the machine: affinity, and the limits of control groups (containers). */
#ifndef SHORE_BASE_LIMITS_H
#define SHORE_BASE_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shore__limits {
    double quota;          /* processors' worth of time, of this control group and its parents; INFINITY: no limit */
    uint64_t memory_bytes; /* of this control group and its parents; UINT64_MAX: no limit */
};

/* root: "", or a directory with other proc/self/cgroup and sys/fs/cgroup. Unreadable files mean no limit. */
void shore__limits_read(const char *root, struct shore__limits *out);

/* Bytes of memory of the machine, or the control group's limit if that is less. */
uint64_t shore__machine_memory_bytes(void);

/* Processors that this process may run on, after affinity. */
unsigned shore__machine_processors(void);
/* Number of threads worth starting on them: as many, or the quota rounded up if that is less; at least 1. */
unsigned shore__threads_within(unsigned processors, double quota);
/* The same for this machine: the default number of threads. */
unsigned shore__machine_threads(void);

/* Reads a short kernel file without heap memory; cuts it at bytes - 1. */
bool shore__read_text(const char *path, char *text, size_t bytes);
/* The value of "KEY : VALUE" in such a file; "" if there is none. Returns out. */
const char *shore__kernel_value(const char *path, const char *key, char *out, size_t bytes);

#endif
