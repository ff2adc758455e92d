/* A machine: what memory it has, and how fast its parts work. A plan knows time from it.
 *
 *     shore_machine_read("gpu-24gb", &machine, &diag)     a file, or a description that comes with the library
 *     shore_machine_kept(&machine, &diag)                 this machine, as `longshore machine` measured and kept it
 *     shore_machine_free(machine)
 *
 * docs/machines.md has the format. What a description does not give has no limit, or a plan assumes it and says so.
 *
 * Threading: one thread at a time uses an object; any number may read it.
 */
#ifndef LONGSHORE_MACHINE_H
#define LONGSHORE_MACHINE_H

#include <stddef.h>

#include "longshore/error.h"

#ifdef __cplusplus
extern "C" {
#endif

struct shore_machine;

/* Reads a file that describes a machine. Ownership: *out is the caller's, for shore_machine_free(). Errors:
 * SHORE_EUSAGE (nothing has this name), SHORE_EINPUT (it is no JSON, has an unknown key or a value that cannot be),
 * -ENOMEM. */
int shore_machine_read(const char *name, struct shore_machine **out, struct shore_diag *diag);
/* The same from a text of so many bytes. name: for messages, and the machine's where it gives none. Errors:
 * SHORE_EINPUT, -ENOMEM. */
int shore_machine_parse(const char *json, size_t bytes, const char *name, struct shore_machine **out,
                        struct shore_diag *diag);

/* The description as a text that shore_machine_parse() reads. Ownership: free() it. NULL: out of memory. */
char *shore_machine_json(const struct shore_machine *machine);
/* NULL is allowed. */
void shore_machine_free(struct shore_machine *machine);

#ifdef __cplusplus
}
#endif

#endif
