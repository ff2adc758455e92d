/* Reads JSON records, one after the other or in one list, in bounded memory: the text of each comes in parts. NaN,
 * Infinity and -Infinity, as Python's json.dumps writes them, are ordinary values. Inside of text/. */
#ifndef SHORE_TEXT_ROWS_H
#define SHORE_TEXT_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"
#include "text/json_number.h"
#include "text/utf8.h"

/* A bad row: what is wrong, and where. */
struct shore__bad_row {
    uint64_t line, row; /* the line it starts on, and its number, both from 1 */
    uint64_t byte;      /* in the file, from 0: where the JSON breaks off, or where the row begins */
    bool in_list;
    bool last; /* the next row cannot be found, so the sink must end the reading */
    const char *why;
};

/* Nonzero from any of these ends the reading with that code; diag is filled. */
struct shore__rows_sink {
    void *ctx;
    /* A part of the row's text; at least one per row, perhaps empty. The row may still turn out to be bad. */
    int (*text)(void *ctx, uint64_t line, const char *part, size_t bytes, struct shore_diag *diag);
    int (*end)(void *ctx, struct shore_diag *diag);                                   /* end of a good row */
    int (*bad)(void *ctx, const struct shore__bad_row *bad, struct shore_diag *diag); /* once per bad row; 0: go on */
    /* NULL: a row without the field is bad. Otherwise one with a key of SHORE__ROW_COUNTED is good, too: a part of its
     * JSON, until its field is found. Values of keys that are not used are null in it. */
    int (*json)(void *ctx, uint64_t line, const char *part, size_t bytes, struct shore_diag *diag);
};

/* Keys of rows that say what counts in the loss, or that are refused by name; and what is read beside messages. */
#define SHORE__ROW_KEYS                                                                              \
    "prompt", "completion", "messages", "chosen", "rejected", "conversations", "tools", "documents", \
        "chat_template_kwargs"
/* Bits of these. */
enum {
    SHORE__ROW_PROMPT = 1,
    SHORE__ROW_COMPLETION = 2,
    SHORE__ROW_ALONE = 4 + 8 + 16 + 32, /* messages to conversations */
    SHORE__ROW_COUNTED = SHORE__ROW_PROMPT + SHORE__ROW_COMPLETION + SHORE__ROW_ALONE,
};

/* Reader of a file's rows. The caller sets sink, field and by_line; the other fields belong to shore__rows_*. */
#define SHORE__ROW_LEVELS 1024 /* deepest nesting */
#define SHORE__ROW_KEY_BYTES 256
struct shore__rows {
    const struct shore__rows_sink *sink;
    const char *field; /* the field whose string is a row's text */
    bool by_line; /* each line is a row. Otherwise only if the first row is one line; then rows may also span many */

    int state;
    bool in_list, rejected, had_field;
    unsigned seen, last; /* keys of the row, and its last one: SHORE__ROW_PROMPT and so on */
    const char *json;    /* in the current part: what the sink does not have yet of the row; NULL: the row is over */
    const char *at;      /* in the current part */
    uint64_t offset, line, row; /* of the current byte; of the current row */
    uint64_t row_offset, row_line;
    unsigned depth;
    uint64_t is_object[SHORE__ROW_LEVELS / 64]; /* one bit per level */
    /* strings */
    bool is_key, is_field; /* the string is a key; it is the field's value, or the field's key */
    struct shore__utf8_state character;
    unsigned unit, digits, high; /* of \uXXXX; high: first half of a pair */
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

/* Zero-initialize all but sink, field and by_line. Parts may have any size. */
int shore__rows_feed(struct shore__rows *r, const char *part, size_t bytes, struct shore_diag *diag);
int shore__rows_end(struct shore__rows *r, struct shore_diag *diag);
/* Whether the start of a text file looks like records, though its name does not say so. */
bool shore__rows_are_in(const char *text, size_t bytes);

#endif
