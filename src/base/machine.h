/* What this process may use of the machine: all of it, or what affinity and the limits of control groups (containers)
 * leave of it. */
#ifndef SHORE_BASE_MACHINE_H
#define SHORE_BASE_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shore__limits {
    double quota;          /* processors' worth of time, of this control group and those above it; INFINITY: no limit */
    uint64_t memory_bytes; /* likewise; UINT64_MAX: no limit */
};

/* root: "", or a directory that holds proc/self/cgroup and sys/fs/cgroup instead. What cannot be read is no limit. */
void shore__limits_read(const char *root, struct shore__limits *out);

/* Bytes of memory of the machine, or of the control group if that is less. */
uint64_t shore__machine_memory_bytes(void);

/* Processors that this process may run on: the machine's, less what its affinity leaves out. */
unsigned shore__machine_processors(void);
/* How many threads are worth having on them: as many, or the quota rounded up if that is less; at least 1. */
unsigned shore__threads_within(unsigned processors, double quota);
/* The same of this machine: what everything takes that is not told a number. */
unsigned shore__machine_threads(void);

/* A short file of the kernel's, read without memory of the heap; it is cut at bytes - 1. */
bool shore__read_text(const char *path, char *text, size_t bytes);

#endif
