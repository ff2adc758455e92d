#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "text/reader.h"
#include "text/rows.h"
#include "text/vector.h"

#define TEXT_BYTES (256u << 10)

/* A row being read. Its text goes to the writer as it arrives. If bad rows are skipped, the text waits for the row's
 * end; long text waits in a nameless file. */
struct reading {
    struct shore__reader *reader;
    struct shore__rows rows;
    char *text;
    size_t bytes;
    bool open, begun;         /* open: the row has a text; begun: the writer has its start */
    bool too_long;            /* to be held */
    bool both;                /* some row has a text and more that could be read */
    struct shore__text whole; /* a row that is held: its JSON, or its text where each row is a sequence */
    FILE *waiting;
    uint64_t waiting_bytes;
};

static int no_waiting_room(const struct reading *x, struct shore_diag *diag) {
    return shore__fail(diag, -EIO, "%s: a long row cannot wait in a temporary file: %s", x->reader->file->path,
                       strerror(errno));
}

static int begin(struct reading *x, struct shore_diag *diag) {
    if (x->begun) return 0;
    x->begun = true;
    return shore__token_writer_begin_document(x->reader->writer, diag);
}

static int hand_on(struct reading *x, struct shore_diag *diag) {
    int rc = begin(x, diag);
    if (rc == 0) rc = shore__token_writer_feed(x->reader->writer, x->text, x->bytes, diag);
    x->bytes = 0;
    return rc;
}

static int let_wait(struct reading *x, struct shore_diag *diag) {
    if (!x->waiting) x->waiting = tmpfile();
    if (!x->waiting || fwrite(x->text, 1, x->bytes, x->waiting) != x->bytes) return no_waiting_room(x, diag);
    x->waiting_bytes += x->bytes;
    x->bytes = 0;
    return 0;
}

static int hand_on_waiting(struct reading *x, struct shore_diag *diag) {
    int rc = let_wait(x, diag);
    if (rc == 0 && fflush(x->waiting) != 0) return no_waiting_room(x, diag);
    rewind(x->waiting);
    while (rc == 0 && x->waiting_bytes > 0) {
        size_t want = x->waiting_bytes < TEXT_BYTES ? (size_t)x->waiting_bytes : TEXT_BYTES;
        if (fread(x->text, 1, want, x->waiting) != want) return no_waiting_room(x, diag);
        x->bytes = want;
        x->waiting_bytes -= want;
        rc = hand_on(x, diag);
    }
    rewind(x->waiting);
    return rc;
}

static void forget_row(struct reading *x) {
    if (x->waiting_bytes) rewind(x->waiting);
    x->waiting_bytes = 0;
    x->bytes = x->whole.count = 0;
    x->open = x->begun = x->too_long = false;
}

/* Bytes of the longest row that is held. They leave room in the budget for what is made of the row. */
static uint64_t longest_row(const struct shore__reading *how) {
    const uint64_t least = 1u << 20, most = 64u << 20, share = how->memory_bytes / 64;
    return !how->memory_bytes || share > most ? most : share < least ? least : share;
}

static int hold(struct reading *x, const char *part, size_t bytes, struct shore_diag *diag) {
    x->too_long |= x->whole.count + bytes > longest_row(x->reader->how);
    if (x->too_long) return 0;
    return shore__text_append(&x->whole, part, bytes) ? shore__out_of_memory(diag) : 0;
}

static int on_json(void *ctx, uint64_t line, const char *part, size_t bytes, struct shore_diag *diag) {
    return hold(ctx, part, bytes, diag);
}

static int on_text(void *ctx, uint64_t line, const char *part, size_t bytes, struct shore_diag *diag) {
    struct reading *x = ctx;
    if (!x->open) {
        shore__token_writer_source(x->reader->writer, x->reader->file->path, line);
        x->whole.count = 0;
        x->too_long = false;
    }
    x->open = true;
    if (x->reader->how->row_tokens) return hold(x, part, bytes, diag);
    while (bytes > 0) {
        size_t room = TEXT_BYTES - x->bytes, n = bytes < room ? bytes : room;
        memcpy(x->text + x->bytes, part, n);
        x->bytes += n;
        part += n;
        bytes -= n;
        if (x->bytes < TEXT_BYTES) break;
        int rc = x->reader->how->skip_bad_rows ? let_wait(x, diag) : hand_on(x, diag);
        if (rc) return rc;
    }
    return 0;
}

static int on_bad(void *ctx, const struct shore__bad_row *bad, struct shore_diag *diag) {
    struct reading *x = ctx;
    struct shore_diag why;
    char row[32] = "";
    bool skip = x->reader->how->skip_bad_rows;
    if (bad->in_list) snprintf(row, sizeof row, "row %llu: ", (unsigned long long)bad->row);
    shore__fail(&why, SHORE_EINPUT, "%s:%llu: %s%s (byte %llu%s)%s", x->reader->file->path,
                (unsigned long long)bad->line, row, bad->why, (unsigned long long)bad->byte,
                shore__unpack_packed(x->reader->input) ? " of what is unpacked" : "",
                bad->last && skip ? "; in a list, the next row cannot be found behind it: fix it" : "");
    if (bad->last || !skip) return shore__fail(diag, SHORE_EINPUT, "%s", why.text);
    if (x->reader->bad_rows++ == 0) x->reader->first_bad = why;
    forget_row(x);
    return 0;
}

/* Encodes a row that is held. SHORE_EINPUT: it is bad. */
static int write_held(struct reading *x, struct shore_diag *diag) {
    struct shore__reader *r = x->reader;
    char where[600];
    if (x->too_long)
        return shore__fail(diag, SHORE_EINPUT,
                           "the row is longer than %s, which is what --memory leaves for one (64 MiB at most)",
                           shore__format_size(longest_row(r->how)).text);
    snprintf(where, sizeof where, "%.500s:%llu", r->file->path, (unsigned long long)x->rows.row_line);
    shore__token_writer_source(r->writer, r->file->path, x->rows.row_line);
    return x->open ? shore__counted_text(r->counted, where, x->whole.bytes, x->whole.count, diag)
                   : shore__counted_json(r->counted, where, x->whole.bytes, x->whole.count, diag);
}

static int end_held(struct reading *x, struct shore_diag *diag) {
    struct shore__reader *r = x->reader;
    struct shore_diag why = {0};
    int rc = r->counted
                 ? 0
                 : shore__counted_open(r->tokenizer, r->how, r->writer, shore__reader_report, r, &r->counted, diag);
    if (rc) return rc;
    rc = write_held(x, &why);
    if (rc == SHORE_EINPUT) {
        const struct shore__bad_row bad = {x->rows.row_line, x->rows.row, x->rows.row_offset,
                                           x->rows.in_list,  false,       why.text};
        return on_bad(x, &bad, diag);
    }
    if (rc && diag) *diag = why;
    return rc;
}

static int on_end(void *ctx, struct shore_diag *diag) {
    struct reading *x = ctx;
    int rc;
    const unsigned pair = SHORE__ROW_PROMPT | SHORE__ROW_COMPLETION, seen = x->rows.seen;
    x->both |= x->open && ((seen & SHORE__ROW_ALONE) || (seen & pair) == pair);
    if (!x->open || x->reader->how->row_tokens) {
        rc = end_held(x, diag);
    } else {
        rc = x->waiting_bytes ? hand_on_waiting(x, diag) : hand_on(x, diag);
        if (rc == 0) shore__token_writer_end_document(x->reader->writer);
    }
    forget_row(x);
    return rc;
}

int shore__read_rows(struct shore__reader *r, bool by_line, struct shore_diag *diag) {
    struct reading x = {.reader = r, .text = malloc(TEXT_BYTES)};
    const struct shore__rows_sink sink = {&x, on_text, on_end, on_bad, on_json};
    size_t n = 1;
    x.rows.sink = &sink;
    x.rows.field = r->how->text_field ? r->how->text_field : "text";
    x.rows.by_line = by_line;
    int rc = x.text ? 0 : shore__fail(diag, -ENOMEM, "%s: out of memory", r->file->path);
    while (rc == 0 && (rc = shore__reader_block(r, &n, diag)) == 0 && n > 0)
        rc = shore__rows_feed(&x.rows, r->block, n, diag);
    if (rc == 0) rc = shore__rows_end(&x.rows, diag);
    r->rows += x.rows.row;
    if (x.both)
        shore__count_alike(
            r, &r->both,
            "has rows with a text, and with messages, a prompt and its completion or other answers beside it; the "
            "text is read");
    if (x.waiting) fclose(x.waiting);
    free(x.text);
    free(x.whole.bytes);
    return rc;
}
