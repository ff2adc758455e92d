#include "files/json_stream.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yajl/yajl_parse.h>

#include "base/diag.h"
#include "files/atomic.h"
#include "files/read_file.h"

#define DEPTH_LIMIT 64
#define BLOCK_BYTES (64u << 10)
#define TREE_LIMIT_BYTES (8u << 20)

struct stream {
    shore__json_sink_fn sink;
    void *ctx;
    struct shore_diag *diag;
    const char *name;
    unsigned depth;
    bool done; /* the value is complete */
    int rc;
};

static int emit(struct stream *s, enum shore__json_kind kind, const char *text, size_t bytes) {
    struct shore__json_event event = {kind, s->depth, text, bytes};
    s->done = s->depth == 0;
    s->rc = s->sink(s->ctx, &event, s->diag);
    return s->rc == 0;
}
static int on_null(void *ctx) {
    return emit(ctx, SHORE__JSON_NULL, NULL, 0);
}
static int on_bool(void *ctx, int value) {
    return emit(ctx, SHORE__JSON_BOOL, NULL, value != 0);
}
static int on_number(void *ctx, const char *text, size_t bytes) {
    return emit(ctx, SHORE__JSON_NUMBER, text, bytes);
}
static int on_string(void *ctx, const unsigned char *text, size_t bytes) {
    return emit(ctx, SHORE__JSON_STRING, (const char *)text, bytes);
}
static int on_key(void *ctx, const unsigned char *text, size_t bytes) {
    return emit(ctx, SHORE__JSON_KEY, (const char *)text, bytes);
}
static int open_container(struct stream *s, enum shore__json_kind kind) {
    return ++s->depth <= DEPTH_LIMIT && emit(s, kind, NULL, 0);
}
static int close_container(struct stream *s, enum shore__json_kind kind) {
    int go_on = emit(s, kind, NULL, 0);
    s->done = --s->depth == 0;
    return go_on;
}
static int on_object_open(void *ctx) {
    return open_container(ctx, SHORE__JSON_OBJECT_OPEN);
}
static int on_object_close(void *ctx) {
    return close_container(ctx, SHORE__JSON_OBJECT_CLOSE);
}
static int on_array_open(void *ctx) {
    return open_container(ctx, SHORE__JSON_ARRAY_OPEN);
}
static int on_array_close(void *ctx) {
    return close_container(ctx, SHORE__JSON_ARRAY_CLOSE);
}

static const yajl_callbacks callbacks = {
    .yajl_null = on_null,
    .yajl_boolean = on_bool,
    .yajl_number = on_number,
    .yajl_string = on_string,
    .yajl_start_map = on_object_open,
    .yajl_map_key = on_key,
    .yajl_end_map = on_object_close,
    .yajl_start_array = on_array_open,
    .yajl_end_array = on_array_close,
};

/* Length of a byte order mark before the value, which editors on Windows write. */
static size_t mark_of(const char *text, uint64_t bytes) {
    return bytes >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3) ? 3 : 0;
}

static uint64_t lines_in(const char *text, size_t bytes) {
    uint64_t lines = 0;
    for (size_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    return lines;
}

/* Explains where the parser stopped inside the last block. line: lines before the block. */
static int explain(struct stream *s, yajl_handle parser, uint64_t line, const char *block, size_t bytes,
                   uint64_t offset) {
    char shown[160];
    if (s->rc) return s->rc;
    size_t at = bytes ? yajl_get_bytes_consumed(parser) : 0;
    if (at > bytes) at = bytes;
    line += lines_in(block, at);
    if (s->depth > DEPTH_LIMIT)
        return shore__fail(s->diag, SHORE_EINPUT, "%s:%llu: is nested more than %d levels deep", s->name,
                           (unsigned long long)line, DEPTH_LIMIT);
    unsigned char *text = yajl_get_error(parser, 0, (const unsigned char *)block, bytes);
    size_t text_bytes = text ? strcspn((char *)text, "\n") : 0;
    shore__fail(s->diag, SHORE_EINPUT, "%s:%llu: not valid JSON near byte %llu: %s", s->name, (unsigned long long)line,
                (unsigned long long)(offset + at),
                text ? shore__printable((char *)text, text_bytes, shown, sizeof shown) : "unknown error");
    if (text) yajl_free_error(parser, text);
    return SHORE_EINPUT;
}

static yajl_handle open_parser(struct stream *s) {
    yajl_handle parser = yajl_alloc(&callbacks, NULL, s);
    /* yajl overlooks an unfinished token behind the value, so the text behind it is checked here */
    if (parser) yajl_config(parser, yajl_allow_trailing_garbage, 1);
    return parser;
}

static int feed(struct stream *s, yajl_handle parser, const char *block, size_t bytes, uint64_t line, uint64_t offset) {
    size_t used = 0;
    if (!s->done) {
        yajl_status status = yajl_parse(parser, (const unsigned char *)block, bytes);
        if (status != yajl_status_ok) return explain(s, parser, line, block, bytes, offset);
        used = s->done ? yajl_get_bytes_consumed(parser) : bytes;
    }
    line += lines_in(block, used);
    for (; used < bytes; used++) {
        line += block[used] == '\n';
        if (block[used] != ' ' && block[used] != '\t' && block[used] != '\r' && block[used] != '\n')
            return shore__fail(s->diag, SHORE_EINPUT, "%s:%llu: something follows the JSON value", s->name,
                               (unsigned long long)line);
    }
    return 0;
}

/* Reads a text, or from offset on a file. line: the number of its first line. */
static int parse(struct stream *s, int fd, const char *text, uint64_t offset, uint64_t bytes, uint64_t line) {
    yajl_handle parser = open_parser(s);
    char *block = text ? NULL : malloc(BLOCK_BYTES);
    uint64_t done = 0;
    int rc = parser && (text || block) ? 0 : shore__fail(s->diag, -ENOMEM, "%s: out of memory", s->name);
    while (rc == 0 && done < bytes) {
        size_t want = text || bytes - done < BLOCK_BYTES ? (size_t)(bytes - done) : BLOCK_BYTES;
        const char *at = text ? text : block;
        if (!text) rc = shore__read_at(fd, block, want, offset + done, s->name, s->diag);
        if (rc) break;
        rc = feed(s, parser, at, want, line, done);
        line += lines_in(at, want);
        done += want;
    }
    if (rc == 0 && yajl_complete_parse(parser) != yajl_status_ok) rc = explain(s, parser, line, "", 0, done);
    free(block);
    if (parser) yajl_free(parser);
    return rc;
}

int shore__json_stream_fd(int fd, uint64_t offset, uint64_t bytes, const char *name, shore__json_sink_fn sink,
                          void *ctx, struct shore_diag *diag) {
    struct stream s = {.sink = sink, .ctx = ctx, .diag = diag, .name = name};
    return parse(&s, fd, NULL, offset, bytes, 1);
}

int shore__json_stream_file(const char *path, uint64_t limit_bytes, shore__json_sink_fn sink, void *ctx,
                            struct shore_diag *diag) {
    int fd;
    uint64_t bytes;
    int rc = shore__regular_open(path, limit_bytes, &fd, &bytes, diag);
    if (rc) return rc;
    char start[3];
    if (bytes >= sizeof start) rc = shore__read_at(fd, start, sizeof start, 0, path, diag);
    size_t mark = rc ? 0 : mark_of(start, bytes);
    if (rc == 0) rc = shore__json_stream_fd(fd, mark, bytes - mark, path, sink, ctx, diag);
    close(fd);
    return rc;
}

int shore__json_stream_text(const char *text, size_t bytes, const char *name, uint64_t line, shore__json_sink_fn sink,
                            void *ctx, struct shore_diag *diag) {
    struct stream s = {.sink = sink, .ctx = ctx, .diag = diag, .name = name};
    size_t mark = mark_of(text, bytes);
    return parse(&s, -1, text + mark, 0, bytes - mark, line);
}

bool shore__json_event_is(const struct shore__json_event *event, const char *text) {
    return event->bytes == strlen(text) && !memcmp(event->text, text, event->bytes);
}

int shore__json_event_u64(const struct shore__json_event *event, uint64_t *out) {
    uint64_t value = 0;
    if (event->kind != SHORE__JSON_NUMBER || event->bytes == 0) return SHORE_EINPUT;
    for (size_t i = 0; i < event->bytes; i++) {
        unsigned digit = (unsigned)(event->text[i] - '0');
        if (digit > 9 || __builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, digit, &value))
            return SHORE_EINPUT;
    }
    *out = value;
    return 0;
}

/* A whole number beyond 64 bits becomes a real one: tokenizer_config.json says 10^30 for "without a limit". */
static json_t *number_of(const struct shore__json_event *event) {
    json_t *number = json_loadb(event->text, event->bytes, JSON_DECODE_ANY, NULL);
    return number ? number : json_loadb(event->text, event->bytes, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, NULL);
}

static json_t *scalar_of(const struct shore__json_event *event) {
    switch (event->kind) {
    case SHORE__JSON_NULL:
        return json_null();
    case SHORE__JSON_BOOL:
        return json_boolean(event->bytes);
    case SHORE__JSON_STRING:
        return json_stringn(event->text, event->bytes);
    case SHORE__JSON_OBJECT_OPEN:
        return json_object();
    case SHORE__JSON_ARRAY_OPEN:
        return json_array();
    default:
        return number_of(event);
    }
}

static int put(struct shore__json_builder *b, json_t *value, struct shore_diag *diag) {
    json_t *parent = b->depth ? b->stack[b->depth - 1] : NULL;
    if (!parent) {
        b->root = value;
        return 0;
    }
    if (json_is_array(parent)) return json_array_append_new(parent, value) ? shore__out_of_memory(diag) : 0;
    if (json_object_get(parent, b->key)) {
        json_decref(value);
        return shore__fail(diag, SHORE_EINPUT, "the key \"%s\" stands twice in one object", shore__shown(b->key).text);
    }
    return json_object_set_new(parent, b->key, value) ? shore__out_of_memory(diag) : 0;
}

int shore__json_builder_feed(struct shore__json_builder *b, const struct shore__json_event *event,
                             struct shore_diag *diag) {
    b->total_bytes += event->bytes + 32;
    if (b->total_bytes > TREE_LIMIT_BYTES)
        return shore__fail(diag, SHORE_EINPUT, "a part that should be small has more than %u bytes", TREE_LIMIT_BYTES);
    if (event->kind == SHORE__JSON_KEY) {
        free(b->key);
        b->key = strndup(event->text, event->bytes);
        if (!b->key) return shore__out_of_memory(diag);
        if (strlen(b->key) != event->bytes) return shore__fail(diag, SHORE_EINPUT, "a key holds the character U+0000");
        return 0;
    }
    if (event->kind == SHORE__JSON_OBJECT_CLOSE || event->kind == SHORE__JSON_ARRAY_CLOSE) {
        b->depth--;
        b->done = b->depth == 0;
        return 0;
    }
    json_t *value = scalar_of(event);
    if (!value) {
        const char *key = b->key ? b->key : "";
        return shore__fail(diag, SHORE_EINPUT, "the value of \"%s\" has a number out of range, or is not UTF-8",
                           shore__shown(key).text);
    }
    int rc = put(b, value, diag);
    if (rc) return rc;
    if (event->kind == SHORE__JSON_OBJECT_OPEN || event->kind == SHORE__JSON_ARRAY_OPEN)
        b->stack[b->depth++] = value;
    else
        b->done = b->depth == 0;
    return 0;
}

void shore__json_builder_fini(struct shore__json_builder *b) {
    json_decref(b->root);
    free(b->key);
    *b = (struct shore__json_builder){0};
}
