/* What files given as data are: by their names, and by their first bytes.
 */
#ifndef SHORE_TEXT_DATA_FILES_H
#define SHORE_TEXT_DATA_FILES_H

#include "text/dataset.h"

enum shore__data_kind {
    SHORE__DATA_TEXT,
    SHORE__DATA_LINES,  /* of records */
    SHORE__DATA_JSON,   /* a list of records, or lines of them */
    SHORE__DATA_TOKENS, /* of llm.c */
    SHORE__DATA_FOREIGN,
};

struct shore__data_file {
    char *path;
    uint64_t bytes;
};
struct shore__data_files {
    struct shore__data_file *file;
    size_t count;
    uint64_t total_bytes;
};

/* By name, .gz and the like left aside. *advice: what to do with a foreign file, or (NULL: nothing) to say of a text.
 * *known: the name says what it is. Both may be NULL. */
enum shore__data_kind shore__data_kind_of(const char *path, const char **advice, bool *known);
/* What the first bytes of a file say that is none of ours: what to do with it. NULL: nothing. */
const char *shore__data_foreign(const char *head, size_t bytes);

/* The files that names mean, in order: files as they are; a pattern's, sorted; a directory's whose names say that they
 * are data, with those of directories in it, sorted, none hidden and none of a run. What is left out there is noted. */
int shore__data_files_find(const char *const *names, size_t count, shore__note_fn note, void *note_ctx,
                           struct shore__data_files *out, struct shore_diag *diag);
void shore__data_files_free(struct shore__data_files *files);

#endif
