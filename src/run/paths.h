/* Files of a run directory, and the paths that run.json records. */
#ifndef SHORE_RUN_PATHS_H
#define SHORE_RUN_PATHS_H

#include <stdbool.h>
#include <stdint.h>

#include "drive/address.h"
#include "text/tokenizer.h"

bool shore__path_exists(const char *directory, const char *name);
bool shore__directory_is_empty(const char *path);
int shore__file_sync(const char *path, struct shore_diag *diag);
/* Patterns as fnmatch() takes them, NULL last. */
bool shore__name_matches(const char *name, const char *const *patterns);
/* Of something in it whose name none of the patterns matches: its path, malloc'ed; NULL: there is nothing such. */
char *shore__directory_stranger(const char *path, const char *const *patterns);
/* A file, and what a kill has left of its being replaced. */
void shore__remove_in(const char *directory, const char *name);
/* Removes those files of a directory whose names a pattern matches, and the directory if it is empty then. */
void shore__directory_remove(const char *path, const char *const *patterns);
/* The path that run.json records: absolute, links in it resolved; devices keep the name they were given, since the
 * kernel's own may change with the next start. Refused if neither it nor its directory exists, or if run.json cannot
 * hold it. *out is malloc'ed; NULL where it fails. */
int shore__drive_absolute(const struct shore__address *drive, struct shore__address **out, struct shore_diag *diag);
/* Two paths of one file; what does not exist is told by the directory it was in. */
bool shore__same_path(const char *a, const char *b);
/* Whole or not there, durable. */
int shore__file_copy(const char *from, const char *to, struct shore_diag *diag);
/* What of a run directory goes with the state of a step: the metrics, residuals of compression. */
int shore__files_copy(const char *from, const char *to, struct shore_diag *diag);
/* Names of the files that a run directory holds; run.json is not among them. */
#define SHORE__RUN_FILES                                                                                        \
    "config.json", "tokens.bin", "val.bin", "metrics.jsonl", "metrics.jsonl.old", "committed", "residual-host", \
        "worker.json", SHORE__TOKENIZER_FILES
/* NULL last */
extern const char *const shore__run_files[];
/* Of run.json, and of all else that lists a run's drives: what one can hold, the others take. */
enum { SHORE__RUN_JSON_BYTES_MOST = 64 << 20 };

void shore__fleet_id_text(const uint64_t id[2], char out[33]);
bool shore__fleet_id_parse(const char *text, uint64_t id[2]);

#endif
