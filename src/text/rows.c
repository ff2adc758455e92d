/* Reads rows byte by byte with a small state machine, because other JSON parsers hold a whole string in memory. */
#include "text/rows.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "base/diag.h"
#include "text/utf8.h"

#define INVALID "not valid JSON: "

enum state {
    BEGIN,    /* only blanks so far */
    BETWEEN,  /* a row may start, or a list end */
    ROW,      /* in a list, behind a comma */
    ROW_OVER, /* in a list: a comma or the list's end follows; in a line: the line's end */
    LIST_OVER,
    SKIP,        /* to the end of the line */
    LINE_BEGINS, /* after skipping, where a row may span lines */
    VALUE,
    VALUE_OR_END,
    KEY,
    KEY_OR_END,
    COLON,
    NEXT, /* a comma, or the end of the open container */
    STRING,
    ESCAPE,
    UNIT,
    WORD,
    NUMBER,
};

/* Results besides codes. BROKEN: the JSON breaks off here, and r->trouble says why. AGAIN: the byte belongs to the next
 * state. */
enum { BROKEN = 1, AGAIN = 2 };

static int broken(struct shore__rows *r, const char *why) {
    r->trouble = why;
    return BROKEN;
}

static bool is_blank(unsigned char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static int report(struct shore__rows *r, const char *why, uint64_t byte, bool last, struct shore_diag *diag) {
    const struct shore__bad_row bad = {r->row_line, r->row, byte, r->in_list, last, why};
    r->rejected = true;
    return r->sink->bad(r->sink->ctx, &bad, diag);
}

/* Rejects valid JSON that is no row, and skips the rest of it. */
static int reject(struct shore__rows *r, struct shore_diag *diag) {
    return r->rejected ? 0 : report(r, r->why, r->row_offset, false, diag);
}

static const char *field_shown(const struct shore__rows *r, char shown[SHORE__ROW_KEY_BYTES]) {
    return shore__escape(r->field, strlen(r->field), shown, SHORE__ROW_KEY_BYTES);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void begin_row(struct shore__rows *r) {
    r->row++;
    r->row_offset = r->offset;
    r->row_line = r->line;
    r->depth = 0;
    r->rejected = r->had_field = r->is_field = false;
    r->seen = 0;
    r->json = r->at;
    r->keys[0] = r->why[0] = '\0';
}

/* Hands on the row's JSON, up to there. */
static int hand_json(struct shore__rows *r, const char *end, struct shore_diag *diag) {
    const char *from = r->json;
    if (!from || !r->sink->json || r->had_field || r->rejected) return 0;
    return r->sink->json(r->sink->ctx, r->row_line, from, (size_t)(end - from), diag);
}

/* Hands on a null in place of the value that begins: nothing of it is used, and it may be long, or a number that other
 * parsers do not take. */
static int pass_value_over(struct shore__rows *r, struct shore_diag *diag) {
    static const char null[] = "null";
    int rc = hand_json(r, r->at, diag);
    if (rc) return rc;
    r->json = null;
    rc = hand_json(r, null + 4, diag);
    r->json = NULL;
    return rc;
}

static int end_row(struct shore__rows *r, struct shore_diag *diag) {
    r->state = BETWEEN;
    return r->rejected ? 0 : r->sink->end(r->sink->ctx, diag);
}

/* Ends a row whose value is complete. In a line, the line's end must come first. */
static int close_row(struct shore__rows *r, struct shore_diag *diag) {
    int rc = hand_json(r, r->at + 1, diag);
    r->json = NULL;
    if (rc == 0 && !r->had_field && !r->rejected && !(r->sink->json && r->seen & SHORE__ROW_COUNTED)) {
        char shown[SHORE__ROW_KEY_BYTES];
        if (!r->why[0])
            snprintf(r->why, sizeof r->why, "the row has no key \"%.100s\"; %s%s%s", field_shown(r, shown),
                     r->keys[0] ? "its keys are " : "it has none", r->keys,
                     r->keys[0] ? ": --text-field NAME says which of them holds the text; a prompt and its answer are "
                                  "\"prompt\" and "
                                  "\"completion\""
                                : "");
        rc = reject(r, diag);
    }
    if (rc) return rc;
    if (r->row == 1 && r->line == r->row_line) r->by_line = true;
    if (r->by_line && !r->in_list) {
        r->state = ROW_OVER;
        return 0;
    }
    rc = end_row(r, diag);
    if (r->in_list) r->state = ROW_OVER;
    return rc;
}

static int close_value(struct shore__rows *r, struct shore_diag *diag) {
    if (r->depth == 0) return close_row(r, diag);
    r->state = NEXT;
    return 0;
}

/* Recovers from broken JSON at the next line. In a list, nothing tells where the next row starts. */
static int recover(struct shore__rows *r, struct shore_diag *diag) {
    r->state = SKIP;
    r->json = NULL;
    return r->rejected && !r->in_list ? 0 : report(r, r->trouble, r->offset, r->in_list, diag);
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */

static int put(struct shore__rows *r, const char *part, size_t bytes, struct shore_diag *diag) {
    if (r->is_key) {
        size_t room = r->key_bytes < sizeof r->key ? sizeof r->key - r->key_bytes : 0;
        if (room) memcpy(r->key + r->key_bytes, part, bytes < room ? bytes : room);
        r->key_bytes += bytes;
        return 0;
    }
    return r->is_field && !r->rejected ? r->sink->text(r->sink->ctx, r->row_line, part, bytes, diag) : 0;
}

static int put_char(struct shore__rows *r, unsigned code, struct shore_diag *diag) {
    unsigned char text[4];
    return put(r, (const char *)text, (size_t)utf8proc_encode_char((utf8proc_int32_t)code, text), diag);
}

/* Puts half a surrogate pair that stands alone, as U+FFFD. */
static int put_half(struct shore__rows *r, struct shore_diag *diag) {
    bool alone = r->high != 0;
    r->high = 0;
    return alone ? put_char(r, 0xFFFD, diag) : 0;
}

static int begin_string(struct shore__rows *r, bool is_key, struct shore_diag *diag) {
    r->state = STRING;
    r->is_key = is_key;
    r->key_bytes = 0;
    r->character.more = 0;
    r->high = 0;
    return is_key ? 0 : put(r, "", 0, diag);
}

/* The bit of a key; 0: another one. */
static unsigned key_bit(const char *key, size_t bytes) {
    static const char *const keys[] = {SHORE__ROW_KEYS};
    for (unsigned i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strlen(keys[i]) == bytes && !memcmp(key, keys[i], bytes)) return 1u << i;
    return 0;
}

static int end_key(struct shore__rows *r, struct shore_diag *diag) {
    char shown[48];
    size_t kept = r->key_bytes < sizeof r->key ? r->key_bytes : sizeof r->key, used = strlen(r->keys);
    r->state = COLON;
    r->is_key = false;
    r->is_field = r->depth == 1 && r->key_bytes == strlen(r->field) && kept == r->key_bytes &&
                  memcmp(r->key, r->field, kept) == 0;
    if (r->depth > 1) return 0;
    r->last = key_bit(r->key, kept);
    r->seen |= r->last;
    if (used + sizeof shown + 8 < sizeof r->keys)
        snprintf(r->keys + used, sizeof r->keys - used, "%s\"%s\"", used ? ", " : "",
                 shore__escape(r->key, kept, shown, sizeof shown));
    else if (used && r->keys[used - 1] != '.')
        snprintf(r->keys + used, sizeof r->keys - used, " ...");
    if (!r->is_field || !r->had_field) return 0;
    snprintf(r->why, sizeof r->why, "\"%.100s\" stands twice", field_shown(r, (char[SHORE__ROW_KEY_BYTES]){0}));
    return reject(r, diag);
}

static int end_string(struct shore__rows *r, struct shore_diag *diag) {
    if (r->is_key) return end_key(r, diag);
    r->is_field = false;
    return close_value(r, diag);
}

/* Number of bytes of s that stand for themselves. *rc: BROKEN if the next byte is invalid in a text. */
static size_t plain(struct shore__rows *r, const unsigned char *s, size_t bytes, int *rc) {
    size_t at = 0;
    for (; at < bytes; at++) {
        unsigned char c = s[at];
        if (!r->character.more && (c < 0x20 || c == '"' || c == '\\')) break;
        if (!shore__utf8_next(&r->character, c)) {
            *rc = broken(r, INVALID "a string with a byte that is not UTF-8");
            break;
        }
    }
    return at;
}

static int in_string(struct shore__rows *r, const unsigned char *s, size_t bytes, size_t *used,
                     struct shore_diag *diag) {
    int rc = r->high && *s != '\\' ? put_half(r, diag) : 0, here = 0;
    if (rc) return rc;
    *used = plain(r, s, bytes, &here);
    if (*used) rc = put(r, (const char *)s, *used, diag);
    if (rc || here || *used == bytes) return rc ? rc : here;
    unsigned char c = s[*used];
    if (c == '\n') return broken(r, INVALID "the line ends within a string");
    if (c < 0x20) return broken(r, INVALID "a string with a control character that is not escaped");
    ++*used;
    if (c == '\\') {
        r->state = ESCAPE;
        return 0;
    }
    return end_string(r, diag);
}

static int escape(struct shore__rows *r, unsigned char c, struct shore_diag *diag) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (c == 'u') {
        r->state = UNIT;
        r->unit = r->digits = 0;
        return 0;
    }
    const char *name = c ? strchr(names, c) : NULL;
    if (!name) return broken(r, INVALID "a wrong escape in a string");
    int rc = put_half(r, diag);
    r->state = STRING;
    return rc ? rc : put(r, &values[name - names], 1, diag);
}

static int unit(struct shore__rows *r, unsigned char c, struct shore_diag *diag) {
    unsigned lower = c | 32u, digit = c >= '0' && c <= '9'           ? c - 48u
                                      : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10
                                                                     : 16;
    if (digit == 16) return broken(r, INVALID "a wrong escape in a string");
    r->unit = r->unit << 4 | digit;
    if (++r->digits < 4) return 0;
    r->state = STRING;
    bool second = r->unit >> 10 == 0xDC00 >> 10;
    if (r->high && second) {
        unsigned code = 0x10000 + ((r->high & 0x3FFu) << 10) + (r->unit & 0x3FFu);
        r->high = 0;
        return put_char(r, code, diag);
    }
    int rc = put_half(r, diag);
    if (rc) return rc;
    if (r->unit >> 10 == 0xD800 >> 10) {
        r->high = r->unit;
        return 0;
    }
    return put_char(r, second ? 0xFFFD : r->unit, diag);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static int number(struct shore__rows *r, unsigned char c, struct shore_diag *diag) {
    if (r->number == SHORE__JSON_MINUS && c == 'I') { /* as Python writes it */
        r->state = WORD;
        r->word = "nfinity";
        return 0;
    }
    switch (shore__json_number_step(&r->number, c)) {
    case SHORE__JSON_GOES_ON:
        return 0;
    case SHORE__JSON_NO_NUMBER:
        return broken(r, INVALID "a number that is none");
    default:
        break;
    }
    int rc = close_value(r, diag);
    return rc ? rc : AGAIN;
}

static int word(struct shore__rows *r, unsigned char c, struct shore_diag *diag) {
    if (c != (unsigned char)*r->word) return broken(r, INVALID "a word that is no value");
    return *++r->word ? 0 : close_value(r, diag);
}

static const char *word_of(unsigned char c) {
    static const char *const words[] = {"true", "false", "null", "NaN", "Infinity"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (c == (unsigned char)*words[i]) return words[i];
    return NULL;
}

static int open_container(struct shore__rows *r, bool object) {
    if (r->depth == SHORE__ROW_LEVELS) return broken(r, INVALID "it is nested more than 1024 levels deep");
    uint64_t bit = UINT64_C(1) << r->depth % 64, *bits = &r->is_object[r->depth / 64];
    *bits = object ? *bits | bit : *bits & ~bit;
    r->depth++;
    r->state = object ? KEY_OR_END : VALUE_OR_END;
    return 0;
}

static bool in_object(const struct shore__rows *r) {
    return r->is_object[(r->depth - 1) / 64] >> (r->depth - 1) % 64 & 1;
}

static int close_container(struct shore__rows *r, struct shore_diag *diag) {
    r->depth--;
    return close_value(r, diag);
}

static int value(struct shore__rows *r, unsigned char c, struct shore_diag *diag) {
    const char *letters = word_of(c);
    bool starts = letters || c == '-' || (c >= '0' && c <= '9') || c == '"' || c == '{' || c == '[';
    int rc = 0;
    if (!starts) return broken(r, r->depth ? INVALID "a value is missing" : "the row is not a JSON object");
    if (r->depth == 0 && c != '{') {
        snprintf(r->why, sizeof r->why, "the row is not a JSON object");
        rc = reject(r, diag);
    } else if (r->is_field && c == 'n') { /* null counts as left out */
        snprintf(r->why, sizeof r->why, "\"%.100s\" is null", field_shown(r, (char[SHORE__ROW_KEY_BYTES]){0}));
        r->is_field = false;
    } else if (r->is_field && c != '"') {
        snprintf(r->why, sizeof r->why, "\"%.100s\" is not a string", field_shown(r, (char[SHORE__ROW_KEY_BYTES]){0}));
        r->is_field = false;
        rc = reject(r, diag);
    } else if (r->depth == 1 && !r->last && !r->is_field) {
        rc = pass_value_over(r, diag);
    }
    if (rc) return rc;
    r->had_field |= r->is_field;
    if (c == '"') return begin_string(r, false, diag);
    if (c == '{' || c == '[') return open_container(r, c == '{');
    if (letters) {
        r->state = WORD;
        r->word = letters + 1;
        return 0;
    }
    r->state = NUMBER;
    r->number = shore__json_number_begin(c);
    return 0;
}

static int next(struct shore__rows *r, unsigned char c, struct shore_diag *diag) {
    bool object = in_object(r);
    r->is_field = false;
    if (r->depth == 1 && !r->json) r->json = r->at; /* behind a value that was passed over */
    if (c == ',') {
        r->state = object ? KEY : VALUE;
        return 0;
    }
    if (c == (object ? '}' : ']')) return close_container(r, diag);
    return broken(r, object ? INVALID "a comma or '}' is missing" : INVALID "a comma or ']' is missing");
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* Handles a byte outside of rows. */
static int between(struct shore__rows *r, unsigned char c, struct shore_diag *diag) {
    if (r->state == BEGIN && c == '[') {
        r->in_list = true;
        r->state = BETWEEN;
        return 0;
    }
    if (r->state == ROW_OVER && r->in_list && c == ',') {
        r->state = ROW;
        return 0;
    }
    if (r->in_list && c == ']' && (r->state == BETWEEN || r->state == ROW_OVER)) {
        r->state = LIST_OVER;
        return 0;
    }
    if (r->state == LIST_OVER) {
        begin_row(r); /* treat it as a row, for the message */
        return broken(r, "something follows the list");
    }
    if (r->state == ROW_OVER)
        return broken(r, r->in_list ? INVALID "a comma or ']' is missing behind the row" : "something follows the row");
    begin_row(r);
    return value(r, c, diag);
}

static int blank(struct shore__rows *r, unsigned char c, struct shore_diag *diag) {
    if (c != '\n' || !r->by_line || r->in_list) return 0;
    if (r->state == ROW_OVER) return end_row(r, diag);
    return r->state >= VALUE ? broken(r, INVALID "the line ends within the row") : 0;
}

static int step(struct shore__rows *r, unsigned char c, struct shore_diag *diag) {
    switch (r->state) {
    case ESCAPE:
        return escape(r, c, diag);
    case UNIT:
        return unit(r, c, diag);
    case NUMBER:
        return number(r, c, diag);
    case WORD:
        return word(r, c, diag);
    case SKIP:
        if (c == '\n') r->state = r->by_line ? BETWEEN : LINE_BEGINS;
        return 0;
    case LINE_BEGINS:
        r->state = c == '{' ? BETWEEN : SKIP;
        return AGAIN;
    default:
        break;
    }
    if (is_blank(c)) return blank(r, c, diag);
    switch (r->state) {
    case VALUE_OR_END:
        if (c == ']') return close_container(r, diag);
        /* fallthrough */
    case VALUE:
        return value(r, c, diag);
    case KEY_OR_END:
        if (c == '}') return close_container(r, diag);
        /* fallthrough */
    case KEY:
        return c == '"' ? begin_string(r, true, diag) : broken(r, INVALID "a key is missing");
    case COLON:
        r->state = VALUE;
        return c == ':' ? 0 : broken(r, INVALID "a colon is missing");
    case NEXT:
        return next(r, c, diag);
    default:
        return between(r, c, diag);
    }
}

int shore__rows_feed(struct shore__rows *r, const char *part, size_t bytes, struct shore_diag *diag) {
    static const char mark[] = "\xEF\xBB\xBF"; /* byte order mark, which editors on Windows put before a text */
    const unsigned char *s = (const unsigned char *)part;
    if (r->offset == 0) r->line = 1;
    if (r->json) r->json = part;
    for (size_t at = 0; at < bytes;) {
        size_t used = 1;
        int rc = 0;
        r->at = part + at;
        if (r->state == STRING) {
            rc = in_string(r, s + at, bytes - at, &used, diag);
        } else if (r->state != BEGIN || r->offset >= 3 || part[at] != mark[r->offset]) {
            rc = step(r, s[at], diag);
            used = rc == 0;
            r->line += used && part[at] == '\n';
        }
        at += used;
        r->offset += used;
        if (rc == BROKEN) rc = recover(r, diag);
        if (rc < 0) return rc;
    }
    return hand_json(r, part + bytes, diag);
}

int shore__rows_end(struct shore__rows *r, struct shore_diag *diag) {
    if (r->in_list && r->state == LIST_OVER) return 0;
    int rc = r->in_list ? 0 : shore__rows_feed(r, "\n", 1, diag); /* the last line may lack its end */
    if (rc || (!r->in_list && r->state < VALUE)) return rc;
    if (r->in_list && r->state < VALUE) begin_row(r);
    r->trouble = r->in_list ? INVALID "the file ends within the list" : INVALID "the file ends within the row";
    return recover(r, diag);
}

/* ---- looking for them -------------------------------------------------------------------------------------------- */

struct look {
    const struct shore__rows *rows;
    bool found;
};

static int pass_over(void *ctx, uint64_t line, const char *part, size_t bytes, struct shore_diag *diag) {
    return 0;
}

static int found_one(void *ctx, struct shore_diag *diag) {
    ((struct look *)ctx)->found = true;
    return -ECANCELED;
}

static int found_other(void *ctx, const struct shore__bad_row *bad, struct shore_diag *diag) {
    struct look *look = ctx;
    look->found = !look->rows->trouble && look->rows->keys[0];
    return -ECANCELED;
}

bool shore__rows_are_in(const char *text, size_t bytes) {
    struct shore__rows rows = {.field = "text"};
    struct look look = {.rows = &rows};
    const struct shore__rows_sink sink = {&look, pass_over, found_one, found_other, NULL};
    rows.sink = &sink;
    int rc = shore__rows_feed(&rows, text, bytes, NULL);
    return look.found || (rc == 0 && rows.keys[0]);
}
