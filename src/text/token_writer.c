#include "text/token_writer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/limits.h"
#include "files/atomic.h"
#include "text/encoders.h"
#include "text/token_file.h"
#include "text/tokenizer_impl.h"

#define BLOCK_BYTES (256u << 10)

struct shore__token_writer {
    struct shore__encoders *encoders;
    int64_t end_of_text, last; /* last: the last token written, or -1 */
    uint32_t vocab, width;
    struct shore__atomic file;
    XXH3_state_t *hash;
    unsigned char *pending;
    size_t pending_bytes;
    struct shore__dataset_stats stats;
    bool any_tokens, after_tokens; /* of a file of tokens, or of rows */
    bool after_row;                /* which ends by itself */
    uint64_t real_tokens;
    /* marks, from the first token on that does not count; they wait in a nameless file */
    FILE *marks;
    unsigned char mark; /* of the tokens behind the last eight */
    uint32_t row_tokens;
    /* for messages: the source of what is written, and of what is read */
    const char *source, *read_source;
    uint64_t line, read_line; /* in JSONL; 0: not in a line */
};

void shore__token_writer_source(struct shore__token_writer *w, const char *source, uint64_t line) {
    w->read_source = source;
    w->read_line = line;
}

static int refuse(const struct shore__token_writer *w, int rc, const char *why, struct shore_diag *diag) {
    if (!w->line) return shore__fail(diag, rc, "%s: %s", w->source, why);
    return shore__fail(diag, rc, "%s:%llu: %s", w->source, (unsigned long long)w->line, why);
}

static int flush(struct shore__token_writer *w, struct shore_diag *diag) {
    uint64_t offset = SHORE__TOKEN_HEADER_BYTES + w->stats.tokens * w->width - w->pending_bytes;
    int rc = shore__write_at(w->file.fd, w->pending, w->pending_bytes, offset, w->file.path, diag);
    XXH3_64bits_update(w->hash, w->pending, w->pending_bytes);
    w->pending_bytes = 0;
    return rc;
}

static int no_room_for_marks(const struct shore__token_writer *w, struct shore_diag *diag) {
    return shore__fail(diag, -EIO, "%s: which tokens count cannot wait in a temporary file: %s", w->file.path,
                       strerror(errno));
}

/* Marks the next token. */
static int put_mark(struct shore__token_writer *w, bool counts, struct shore_diag *diag) {
    uint64_t at = w->stats.tokens;
    w->stats.uncounted += !counts;
    if (!w->marks && counts) return 0;
    if (!w->marks) {
        if (!(w->marks = tmpfile())) return no_room_for_marks(w, diag);
        for (uint64_t i = 0; i < at / 8; i++)
            if (putc_unlocked(255, w->marks) == EOF) return no_room_for_marks(w, diag);
        w->mark = (unsigned char)((1u << at % 8) - 1);
    }
    w->mark |= (unsigned char)(counts << at % 8);
    if (at % 8 != 7) return 0;
    if (putc_unlocked(w->mark, w->marks) == EOF) return no_room_for_marks(w, diag);
    w->mark = 0;
    return 0;
}

/* Puts the marks behind the tokens. */
static int add_marks(struct shore__token_writer *w, struct shore_diag *diag) {
    const uint64_t bytes = (w->stats.tokens + 7) / 8, start = SHORE__TOKEN_HEADER_BYTES + w->stats.tokens * w->width;
    int rc = 0;
    if (!w->marks) return 0;
    if (putc_unlocked(w->mark, w->marks) == EOF || fflush(w->marks)) return no_room_for_marks(w, diag);
    rewind(w->marks);
    for (uint64_t at = 0; rc == 0 && at < bytes; at += BLOCK_BYTES) {
        size_t n = bytes - at < BLOCK_BYTES ? (size_t)(bytes - at) : BLOCK_BYTES;
        if (fread(w->pending, 1, n, w->marks) != n) return no_room_for_marks(w, diag);
        XXH3_64bits_update(w->hash, w->pending, n);
        rc = shore__write_at(w->file.fd, w->pending, n, start + at, w->file.path, diag);
    }
    return rc;
}

static int put(struct shore__token_writer *w, uint32_t id, bool counts, struct shore_diag *diag) {
    int rc = put_mark(w, counts, diag);
    if (rc) return rc;
    if (id >= w->vocab)
        return shore__fail(diag, SHORE_EINPUT,
                           "%s: token %u (number %llu of the data) is out of range: the model's vocabulary has %u; the "
                           "tokenizer or the data belongs to another model",
                           w->source, id, (unsigned long long)w->stats.tokens, w->vocab);
    if (w->width == 2)
        shore__put_u16(w->pending + w->pending_bytes, (uint16_t)id);
    else
        shore__put_u32(w->pending + w->pending_bytes, id);
    w->pending_bytes += w->width;
    w->stats.tokens++;
    w->last = id;
    return w->pending_bytes < BLOCK_BYTES ? 0 : flush(w, diag);
}

static int join(struct shore__token_writer *w, struct shore_diag *diag) {
    bool joined = w->stats.documents++ == 0 || w->after_row || (w->after_tokens && w->last == w->end_of_text);
    w->after_tokens = w->after_row = false;
    if (!joined && w->end_of_text < 0)
        return refuse(w, SHORE_EINPUT,
                      "another document begins, but the tokenizer has no end of text to put before it: name one as "
                      "\"eos_token\" in its tokenizer_config.json",
                      diag);
    return joined ? 0 : put(w, (uint32_t)w->end_of_text, true, diag);
}

static void come_from(struct shore__token_writer *w, const char *source, uint64_t line) {
    w->source = source;
    w->line = line;
}

static int on_document(void *ctx, const char *source, uint64_t line, struct shore_diag *diag) {
    come_from(ctx, source, line);
    return join(ctx, diag);
}

static int on_ids(void *ctx, const char *source, uint64_t line, const uint32_t *ids, size_t count,
                  struct shore_diag *diag) {
    struct shore__token_writer *w = ctx;
    int rc = 0;
    come_from(w, source, line);
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = put(w, ids[i], true, diag);
    w->real_tokens += count;
    return rc;
}

static int on_failure(void *ctx, const char *source, uint64_t line, int rc, const char *why, struct shore_diag *diag) {
    come_from(ctx, source, line);
    return refuse(ctx, rc, *why ? why : "no memory to tokenize it", diag);
}

int shore__token_writer_begin_document(struct shore__token_writer *w, struct shore_diag *diag) {
    return shore__encoders_begin(w->encoders, w->read_source, w->read_line, diag);
}

int shore__token_writer_feed(struct shore__token_writer *w, const char *text, size_t bytes, struct shore_diag *diag) {
    w->stats.text_bytes += bytes;
    return shore__encoders_feed(w->encoders, text, bytes, diag);
}

void shore__token_writer_end_document(struct shore__token_writer *w) {
    shore__encoders_end(w->encoders);
}

int shore__token_writer_tokens(struct shore__token_writer *w, const uint32_t *ids, size_t count, bool first,
                               struct shore_diag *diag) {
    int rc = shore__encoders_drain(w->encoders, diag);
    w->any_tokens = true;
    if (rc || count == 0) return rc;
    come_from(w, w->read_source, w->read_line);
    if (first && ids[0] != w->end_of_text && w->last != w->end_of_text && !w->after_row)
        rc = join(w, diag);
    else if (first)
        w->stats.documents++;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = put(w, ids[i], true, diag);
    w->real_tokens += count;
    w->after_tokens = true;
    w->after_row = false;
    return rc;
}

int shore__token_writer_row(struct shore__token_writer *w, const uint32_t *ids, const bool *counts, size_t count,
                            struct shore_diag *diag) {
    int rc = shore__encoders_drain(w->encoders, diag);
    uint32_t whole = w->row_tokens, padding = w->end_of_text < 0 ? 0 : (uint32_t)w->end_of_text;
    come_from(w, w->read_source, w->read_line);
    if (rc == 0) rc = join(w, diag);
    if (whole && count > whole) count = whole;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = put(w, ids[i], counts[i] && !(whole && i == 0), diag);
    for (size_t i = count; rc == 0 && i < whole; i++)
        rc = put(w, padding, false, diag);
    w->real_tokens += count;
    w->any_tokens = w->after_row = true;
    return rc;
}

/* The byte-level tokenizer is too fast for threads to pay off. */
static unsigned thread_count(const struct shore__tokenizer *t, const struct shore__reading *how) {
    unsigned threads = how->threads ? how->threads : shore__machine_threads();
    uint64_t most = how->memory_bytes ? how->memory_bytes / 2 / SHORE__ENCODERS_BYTES_PER_THREAD : threads;
    if (threads > most) threads = (unsigned)most;
    return t->is_bytes || threads == 0 ? 1 : threads;
}

int shore__token_writer_open(const struct shore__tokenizer *tokenizer, const struct shore__reading *how, uint32_t vocab,
                             struct shore__atomic *file, struct shore__token_writer **out, struct shore_diag *diag) {
    struct shore__token_writer *w = calloc(1, sizeof *w);
    if (!w) {
        shore__atomic_abort(file);
        return shore__out_of_memory(diag);
    }
    w->file = *file;
    *file = (struct shore__atomic){.fd = -1};
    w->vocab = vocab;
    w->row_tokens = how->row_tokens;
    w->width = vocab <= 65536 ? 2 : 4;
    w->end_of_text = shore__tokenizer_end_of_text(tokenizer);
    w->last = -1;
    w->hash = XXH3_createState();
    w->pending = malloc(BLOCK_BYTES);
    const struct shore__encoders_sink sink = {on_document, on_ids, on_failure, w};
    if (!w->hash || !w->pending ||
        shore__encoders_open(tokenizer, how->parse_special, thread_count(tokenizer, how), &sink, &w->encoders) != 0) {
        shore__token_writer_close(w);
        return shore__out_of_memory(diag);
    }
    XXH3_64bits_reset(w->hash);
    *out = w;
    return 0;
}

int shore__token_writer_part(struct shore__token_writer *w, uint64_t *end, struct shore_diag *diag) {
    int rc = shore__encoders_drain(w->encoders, diag);
    *end = w->stats.tokens;
    w->after_row = true;
    return rc;
}

int shore__token_writer_finish(struct shore__token_writer *w, const char *what, struct shore__dataset_stats *stats,
                               struct shore_diag *diag) {
    unsigned char raw[SHORE__TOKEN_HEADER_BYTES];
    int rc = shore__encoders_drain(w->encoders, diag);
    if (rc) return rc;
    if (w->real_tokens == 0)
        return shore__fail(diag, SHORE_EINPUT, "%s: the data is empty: not one token is in it", what);
    rc = flush(w, diag);
    if (rc == 0) rc = add_marks(w, diag);
    if (rc) return rc;
    if (w->any_tokens) w->stats.text_bytes = 0;
    struct shore__token_header header = {.marked = w->marks,
                                         .width = w->width,
                                         .row_tokens = w->row_tokens,
                                         .tokens = w->stats.tokens,
                                         .documents = w->stats.documents,
                                         .text_bytes = w->stats.text_bytes,
                                         .data_hash = XXH3_64bits_digest(w->hash)};
    shore__token_header_put(raw, &header);
    rc = shore__write_at(w->file.fd, raw, sizeof raw, 0, w->file.path, diag);
    if (rc == 0) rc = shore__atomic_commit(&w->file, diag);
    if (rc == 0 && stats) *stats = w->stats;
    return rc;
}

void shore__token_writer_close(struct shore__token_writer *w) {
    if (!w) return;
    shore__atomic_abort(&w->file);
    shore__encoders_close(w->encoders);
    XXH3_freeState(w->hash);
    if (w->marks) fclose(w->marks);
    free(w->pending);
    free(w);
}
