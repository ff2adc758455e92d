/* Reads large JSON as a stream of events (yajl), in bounded memory. */
#ifndef SHORE_FILES_JSON_STREAM_H
#define SHORE_FILES_JSON_STREAM_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

enum shore__json_kind {
    SHORE__JSON_NULL,
    SHORE__JSON_BOOL,
    SHORE__JSON_NUMBER, /* text is the number as written */
    SHORE__JSON_STRING,
    SHORE__JSON_KEY,
    SHORE__JSON_OBJECT_OPEN,
    SHORE__JSON_OBJECT_CLOSE,
    SHORE__JSON_ARRAY_OPEN,
    SHORE__JSON_ARRAY_CLOSE,
};

struct shore__json_event {
    enum shore__json_kind kind;
    unsigned depth;   /* containers around the event; an open or close event counts its own container */
    const char *text; /* of strings, keys, numbers; not terminated, valid during the call */
    size_t bytes;     /* of text; for SHORE__JSON_BOOL, 0 or 1 */
};

/* Returns 0 to continue. Any other code ends the reading; the callee fills diag. */
typedef int (*shore__json_sink_fn)(void *ctx, const struct shore__json_event *event, struct shore_diag *diag);

/* Reads one JSON value from a file descriptor, at [offset, offset + bytes). name: for messages. Errors: SHORE_EINPUT if
 * it is not JSON, nests more than 64 levels, or something follows; otherwise the sink's code. */
int shore__json_stream_fd(int fd, uint64_t offset, uint64_t bytes, const char *name, shore__json_sink_fn sink,
                          void *ctx, struct shore_diag *diag);
/* Reads a whole file of at most limit_bytes. Like the reader of a text, skips a byte order mark. SHORE_EMISSING: there
 * is no such file. */
int shore__json_stream_file(const char *path, uint64_t limit_bytes, shore__json_sink_fn sink, void *ctx,
                            struct shore_diag *diag);
/* line: the one of name on which the text starts. */
int shore__json_stream_text(const char *text, size_t bytes, const char *name, uint64_t line, shore__json_sink_fn sink,
                            void *ctx, struct shore_diag *diag);

/* Whether the event's text, for example a key, equals this. */
bool shore__json_event_is(const struct shore__json_event *event, const char *text);

/* Reads an event of kind NUMBER as a count: SHORE_EINPUT unless it is a whole number in [0, 2^64). */
int shore__json_event_u64(const struct shore__json_event *event, uint64_t *out);

/* Builds a tree from part of a stream: feed it events, starting with the one that opens the value; `done` is set at its
 * end. Refuses duplicate keys. Zero-initialize it; the caller owns root, also after an error. */
struct shore__json_builder {
    json_t *root;
    json_t *stack[64];
    unsigned depth;
    char *key;
    size_t total_bytes;
    int done;
};
int shore__json_builder_feed(struct shore__json_builder *b, const struct shore__json_event *event,
                             struct shore_diag *diag);
void shore__json_builder_fini(struct shore__json_builder *b);

#endif
