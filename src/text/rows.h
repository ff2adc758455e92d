/* Records of JSON, one behind the other or in one list, in memory that does not grow with them: the text of each comes
 * in parts. NaN, Infinity and -Infinity, as Python's json.dumps writes them, are values like any other. Inside of
 * text/.
 */
#ifndef SHORE_TEXT_ROWS_H
#define SHORE_TEXT_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"
#include "text/json_number.h"
#include "text/utf8.h"

/* What is wrong with a row, and where. */
struct shore__bad_row {
    uint64_t line, row; /* that it begins on; its number, both from 1 */
    uint64_t byte;      /* of the file, from 0: where the JSON breaks off, or where the row begins */
    bool in_list;
    bool last; /* what follows cannot be told from it, so the sink has to end the reading */
    const char *why;
};

/* Nonzero from any of these ends the reading with that code, diag filled. */
struct shore__rows_sink {
    void *ctx;
    /* Of the row's text, which may be empty: at least one part. The row may still turn out to be bad. */
    int (*text)(void *ctx, uint64_t line, const char *part, size_t bytes, struct shore_diag *diag);
    int (*end)(void *ctx, struct shore_diag *diag);                                   /* of a good row */
    int (*bad)(void *ctx, const struct shore__bad_row *bad, struct shore_diag *diag); /* once a row; 0: go on */
};

/* The rows of a file; fields but these are for shore__rows_*. */
#define SHORE__ROW_LEVELS 1024 /* deepest nesting */
#define SHORE__ROW_KEY_BYTES 256
struct shore__rows {
    const struct shore__rows_sink *sink;
    const char *field; /* whose string is a row's text */
    bool by_line;      /* each line is a row; otherwise that is so if the first row is a line, and rows may be many */

    int state;
    bool in_list, rejected, had_field;
    uint64_t offset, line, row; /* of the byte that is looked at; of the row at hand */
    uint64_t row_offset, row_line;
    unsigned depth;
    uint64_t is_object[SHORE__ROW_LEVELS / 64]; /* a bit for each level */
    /* strings */
    bool is_key, is_field; /* a key; the value of the field, or a key that is the field's */
    struct shore__utf8_state character;
    unsigned unit, digits, high; /* of \uXXXX; the first half of a pair */
    char key[SHORE__ROW_KEY_BYTES];
    size_t key_bytes;
    /* numbers and words */
    enum shore__json_number number;
    const char *word;
    /* for messages */
    char keys[160];
    const char *trouble;
    char why[512];
};

/* Zero-initialised but for sink, field and by_line. Parts may be of any size. */
int shore__rows_feed(struct shore__rows *r, const char *part, size_t bytes, struct shore_diag *diag);
int shore__rows_end(struct shore__rows *r, struct shore_diag *diag);
/* Whether the beginning of a text looks like records, though it is not said to hold any. */
bool shore__rows_are_in(const char *text, size_t bytes);

#endif
