/* A machine: what memory it has, and how fast its parts work. A plan knows time from it.
 *
 *     shore_machine_read("gpu-24gb", &machine, &diag)     a file, or a description that comes with the library
 *     shore_machine_kept(&machine, &diag)                 this machine, as `longshore machine` measured and kept it
 *     shore_machine_free(machine)
 *
 * docs/outputs.md ("machine") has the format. What a description does not give has no limit, or a plan assumes it and
 * says so.
 *
 * Threading: one thread at a time uses an object; any number may read it.
 */
#ifndef LONGSHORE_MACHINE_H
#define LONGSHORE_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct shore_machine;

/* The name of a description that comes with the library, from 0 on; NULL: there are no more. Threading: any. */
const char *shore_machine_shipped(uint32_t number);
/* Reads a description that comes with the library, or a file. Ownership: *out is the caller's, for
 * shore_machine_free(). Errors: SHORE_EUSAGE (nothing has this name), SHORE_EINPUT (it is no JSON, has an unknown key
 * or a value that cannot be), -ENOMEM. */
int shore_machine_read(const char *name, struct shore_machine **out, struct shore_diag *diag);
/* The same from a text of so many bytes. name: for messages, and the machine's where it gives none. Errors:
 * SHORE_EINPUT, -ENOMEM. */
int shore_machine_parse(const char *json, size_t bytes, const char *name, struct shore_machine **out,
                        struct shore_diag *diag);

/* Reads the description of this machine that shore_machine_keep() kept. The environment's LONGSHORE_MACHINE=FILE takes
 * another one, =none none. Ownership: as shore_machine_read(). Errors: SHORE_EMISSING (there is none, or it is stale:
 * of another processor, number of cores, memory or version, or 90 days old; the sentence says which), and those of
 * shore_machine_read() for a FILE. */
int shore_machine_kept(struct shore_machine **out, struct shore_diag *diag);

struct shore_machine_options {
    size_t size;               /* sizeof(struct shore_machine_options) */
    const char *const *drives; /* as a fleet's options have them */
    uint32_t ndrives;
    uint32_t reserved;                             /* 0 */
    bool (*stop)(void);                            /* called now and then; true gives up. May be NULL */
    void (*progress)(void *ctx, const char *what); /* called before each part. May be NULL */
    void *ctx;
};
/* Measures this machine in some ten seconds, and up to thirty more for its drives: memory, UPDATE, drives. Uses
 * nameless files on them, of which nothing remains. It does not measure what computes. Ownership: *out is the caller's.
 * Errors: -ECANCELED, SHORE_EUSAGE (a block device, or no drive at all), -ENOSPC and others of I/O, -ENOMEM. */
int shore_machine_measure(const struct shore_machine_options *options, struct shore_machine **out,
                          struct shore_diag *diag);
/* Keeps the description for shore_machine_kept(), in place of the one before, of which what the package alone measures
 * stays ("gpu", "bus", "torch" of "compute") if it is this machine's and the description has none. It is in
 * $XDG_CACHE_HOME/longshore/machine.json or ~/.cache/longshore/machine.json. Durable: on return. Errors: SHORE_EMISSING
 * (no home directory), those of I/O, -ENOMEM. */
int shore_machine_keep(const struct shore_machine *machine, struct shore_diag *diag);

/* The description as a text that shore_machine_parse() reads. Ownership: free() it. NULL: out of memory. */
char *shore_machine_json(const struct shore_machine *machine);
/* NULL is allowed. */
void shore_machine_free(struct shore_machine *machine);

/* A machine that gets slower or faster in mid-run: a drive got slow, a host got busy, or either is over.
 *
 *     shore_drift_open(fleet, &drift, &diag)                 steps begin, as a plan divides memory
 *     each step: shore_drift_begin(drift)
 *                shore_drift_end(drift, ...)                 true: plan again, with the rates of the last steps:
 *                    shore_drift_take(drift, machine, &change, &now, &diag)
 *
 * What each drive and the processor took of the first steps is what a plan's rates stand for. They have changed if that
 * differs by more than a fifth for several steps, and is a part of a step that matters. */
struct shore_fleet;
struct shore_drift;

/* Ownership: borrows the fleet; *out is the caller's, for shore_drift_close(). Errors: -ENOMEM. */
int shore_drift_open(const struct shore_fleet *fleet, struct shore_drift **out, struct shore_diag *diag);
/* NULL is allowed. */
void shore_drift_close(struct shore_drift *drift);
/* A step begins: what drives did so far belongs to none. A step that computes otherwise than the others (a smaller
 * batch) is begun, and not ended. */
void shore_drift_begin(struct shore_drift *drift);
/* A step has ended, which computed for so many seconds. Returns whether rates have changed, for several steps. */
bool shore_drift_end(struct shore_drift *drift, double compute_seconds, double step_seconds);

struct shore_drift_change {
    size_t size;                        /* sizeof(struct shore_drift_change) */
    double before_seconds, now_seconds; /* of the quickest of the first steps, and of the last ones */
    char what[400]; /* what takes longer, or less long, for people; "": nothing that was described */
};
/* Makes the machine with the rates of the last steps. was: the one before; NULL: the assumed one. It is looked at again
 * some steps later. Ownership: *out is the caller's, for shore_machine_free(). Errors: -ENOMEM, -EINVAL
 * (change->size). */
int shore_drift_take(struct shore_drift *drift, const struct shore_machine *was, struct shore_drift_change *change,
                     struct shore_machine **out, struct shore_diag *diag);

#ifdef __cplusplus
}
#endif

#endif
