/* Kinds of data files, told by their names and by their first bytes; and the search for them. */
#ifndef SHORE_TEXT_DATA_FILES_H
#define SHORE_TEXT_DATA_FILES_H

#include "text/dataset.h"

enum shore__data_kind {
    SHORE__DATA_TEXT,
    SHORE__DATA_LINES,  /* one record per line */
    SHORE__DATA_JSON,   /* a list of records, or one per line */
    SHORE__DATA_TOKENS, /* llm.c's token files */
    SHORE__DATA_FOREIGN,
};

struct shore__data_file {
    char *path;
    uint64_t bytes;
    size_t name; /* which name it was found by */
};
struct shore__data_files {
    struct shore__data_file *file;
    size_t count;
    uint64_t total_bytes;
};

/* Tells the kind by name, ignoring .gz and the like. *advice: what to do with a foreign file, or what to tell about a
 * text (NULL: nothing). *known: the name tells the kind. Both may be NULL. */
enum shore__data_kind shore__data_kind_of(const char *path, const char **advice, bool *known);
/* Tells by the first bytes that a file is foreign: returns what to do with it, or NULL. */
const char *shore__data_foreign(const char *head, size_t bytes);

/* Finds files by name, in order. A file stands for itself, a pattern for its matches, sorted. A directory stands for
 * the files below it whose names say that they are data, sorted, without hidden ones and those of runs. A note names
 * the files left out. */
int shore__data_files_find(const char *const *names, size_t count, shore__note_fn note, void *note_ctx,
                           struct shore__data_files *out, struct shore_diag *diag);
void shore__data_files_free(struct shore__data_files *files);

#endif
