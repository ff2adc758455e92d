/* Files of a run directory, and the paths that run.json records. */
#ifndef SHORE_RUN_PATHS_H
#define SHORE_RUN_PATHS_H

#include <stdbool.h>
#include <stdint.h>

#include "drive/address.h"
#include "files/atomic.h"
#include "text/tokenizer.h"

bool shore__directory_is_empty(const char *path);
int shore__file_sync(const char *path, struct shore_diag *diag);
/* Patterns for fnmatch(); NULL ends them. */
bool shore__name_matches(const char *name, const char *const *patterns);
/* Path of an entry that no pattern matches, malloc'ed; NULL: there is none. */
char *shore__directory_stranger(const char *path, const char *const *patterns);
/* Removes a file, and what a killed replacement of it has left. */
void shore__remove_in(const char *directory, const char *name);
/* Removes the files of a directory that a pattern matches, then the directory if it is empty. */
void shore__directory_remove(const char *path, const char *const *patterns);
/* The path that run.json records: absolute, with links resolved. Devices keep the given name, because the kernel's own
 * may change at the next start. Refused if neither the file nor its directory exists, or run.json cannot hold it. *out
 * is malloc'ed; NULL on failure. */
int shore__drive_absolute(const struct shore__address *drive, struct shore__address **out, struct shore_diag *diag);
/* Whether two paths are one file. A missing file is compared by its directory. */
bool shore__same_path(const char *a, const char *b);
/* Files of a run directory that belong to a step's state: the metrics, and residuals of compression. */
int shore__files_copy(const char *from, const char *to, struct shore_diag *diag);
/* Names of the files in a run directory, without run.json. */
#define SHORE__RUN_FILES                                                                                       \
    "config.json", "tokens.bin", "tokens.2.bin", "val.bin", "val.2.bin", "metrics.jsonl", "metrics.jsonl.old", \
        "drives.jsonl", "committed", "residual-host", "worker.json", "trace.spans", SHORE__TOKENIZER_FILES
/* NULL ends it */
extern const char *const shore__run_files[];
/* Beside them: what the last start planned. No making has one: in RUN/making, this is the journal's name. */
#define SHORE__RUN_PLAN "plan.json"
#define SHORE__RUN_PLAN_BYTES_MOST (1u << 20)
/* Limits of run.json and of everything else that lists a run's drives: each accepts what another can hold. */
enum { SHORE__RUN_JSON_BYTES_MOST = 64 << 20 };

void shore__fleet_id_text(const uint64_t id[2], char out[33]);
bool shore__fleet_id_parse(const char *text, uint64_t id[2]);

#endif
