/* Records of JSON from strangers: whole and in parts they give the same, and what other readers of JSON make of them.
 *
 * Input: a byte, whose lowest bit says that lines are rows and whose others how long the parts are; then the text. */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "files/json_stream.h"
#include "text/rows.h"
#include "text/vector.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct got {
    struct shore__text text; /* of all good rows, or their JSON, each with a line feed behind it */
    struct shore__text row, json;
    bool has_text;
    size_t good, bad;
};

static void append(struct shore__text *text, const char *part, size_t bytes) {
    if (shore__text_append(text, part, bytes) != 0) abort();
}

static int on_text(void *ctx, uint64_t line, const char *part, size_t bytes, struct shore_diag *diag) {
    (void)diag;
    if (line == 0) abort();
    append(&((struct got *)ctx)->row, part, bytes);
    ((struct got *)ctx)->has_text = true;
    return 0;
}

static int on_json(void *ctx, uint64_t line, const char *part, size_t bytes, struct shore_diag *diag) {
    (void)diag;
    if (line == 0) abort();
    append(&((struct got *)ctx)->json, part, bytes);
    return 0;
}

static void forget(struct got *got) {
    got->row.count = got->json.count = 0;
    got->has_text = false;
}

static int on_end(void *ctx, struct shore_diag *diag) {
    struct got *got = ctx;
    (void)diag;
    const struct shore__text *row = got->has_text ? &got->row : &got->json;
    if (!got->has_text && (!row->count || row->bytes[0] != '{' || row->bytes[row->count - 1] != '}')) abort();
    append(&got->text, row->bytes, row->count);
    append(&got->text, "\n", 1);
    forget(got);
    got->good++;
    return 0;
}

static int on_bad(void *ctx, const struct shore__bad_row *bad, struct shore_diag *diag) {
    struct got *got = ctx;
    (void)diag;
    if (!bad->why || !bad->why[0] || bad->line == 0 || bad->row == 0) abort();
    forget(got);
    got->bad++;
    return bad->last ? -1 : 0;
}

static void read_rows(const char *text, size_t bytes, size_t part, bool by_line, struct got *got) {
    const struct shore__rows_sink sink = {got, on_text, on_end, on_bad, on_json};
    struct shore__rows rows = {.sink = &sink, .field = "text", .by_line = by_line};
    struct shore_diag diag = {0};
    int rc = 0;
    for (size_t at = 0; rc == 0 && at < bytes; at += part)
        rc = shore__rows_feed(&rows, text + at, bytes - at < part ? bytes - at : part, &diag);
    if (rc == 0) shore__rows_end(&rows, &diag);
}

static void free_got(struct got *got) {
    free(got->text.bytes);
    free(got->row.bytes);
    free(got->json.bytes);
}

static int ignore(void *ctx, const struct shore__json_event *event, struct shore_diag *diag) {
    (void)ctx;
    (void)event;
    (void)diag;
    return 0;
}

static size_t count(const char *text, size_t bytes, const char *which) {
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += text[i] && strchr(which, text[i]);
    return n;
}

/* One line that begins with an object. */
static void compare(const char *text, size_t bytes, const struct got *got) {
    struct shore_diag diag = {0};
    json_t *tree = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
    const json_t *value = json_object_get(tree, "text");
    if (json_is_string(value) && count(text, bytes, "{[") < SHORE__ROW_LEVELS) {
        size_t n = json_string_length(value);
        if (got->good != 1 || got->bad || got->text.count != n + 1) abort();
        if (memcmp(got->text.bytes, json_string_value(value), n) != 0) abort();
    }
    json_decref(tree);
    /* what is good here is JSON there, but for words of Python's */
    if (got->good && !got->bad && !count(text, bytes, "NI") && count(text, bytes, "{[") < 64 &&
        shore__json_stream_text(text, bytes, "x", 1, ignore, NULL, &diag) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct got whole = {0}, parts = {0};
    if (bytes < 2) return 0;
    const char *text = (const char *)data + 1;
    bool by_line = data[0] & 1;
    bytes--;
    read_rows(text, bytes, bytes, by_line, &whole);
    read_rows(text, bytes, 1 + (data[0] >> 1), by_line, &parts);
    if (whole.good != parts.good || whole.bad != parts.bad || whole.text.count != parts.text.count) abort();
    if (whole.text.count && memcmp(whole.text.bytes, parts.text.bytes, whole.text.count) != 0) abort();
    size_t blanks = 0;
    while (blanks < bytes && (text[blanks] == ' ' || text[blanks] == '\t'))
        blanks++;
    if (by_line && blanks < bytes && text[blanks] == '{' && !memchr(text, '\n', bytes)) compare(text, bytes, &whole);
    shore__rows_are_in(text, bytes);
    free_got(&whole);
    free_got(&parts);
    return 0;
}
