/* Data that are built from one file, in bytes as tokens, and what is noted of it. */
#ifndef SHORE_TESTS_TEXT_BUILT_DATA_H
#define SHORE_TESTS_TEXT_BUILT_DATA_H

#include "text/dataset.h"
#include "unit/text/scratch.h"

static char notes[4096];

static inline void on_note(void *ctx, const char *text) {
    size_t used = strlen(notes);
    snprintf(notes + used, sizeof notes - used, "%s\n", text);
}

/* Builds "tokens" in the directory. */
static inline int build(const char *name, const struct shore__reading *given, struct shore__dataset_stats *stats,
                        struct shore_diag *diag) {
    struct shore__tokenizer *t;
    struct shore__reading how = *given;
    how.note = on_note;
    notes[0] = diag->text[0] = '\0';
    assert_int_equal(shore__tokenizer_bytes(&t), 0);
    int rc = shore__dataset_build(&name, 1, &how, t, 257, in_directory("tokens"), stats, diag);
    shore__tokenizer_close(t);
    return rc;
}

#endif
