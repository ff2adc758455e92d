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

#ifdef __cplusplus
}
#endif

#endif
