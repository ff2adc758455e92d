#include "text/token_writer.h"

#include <errno.h>
#include <stdlib.h>

#include "base/diag.h"
#include "files/atomic.h"
#include "text/token_file.h"
#include "text/vector.h"

#define BLOCK_BYTES (256u << 10)

struct shore__token_writer {
    struct shore__encoder *encoder;
    struct shore__ids ids;
    int64_t end_of_text, last; /* last token written, or -1 */
    uint32_t vocab, width;
    struct shore__atomic file;
    XXH3_state_t *hash;
    unsigned char *pending;
    size_t pending_bytes;
    struct shore__dataset_stats stats;
    bool any_tokens, after_tokens; /* of a file that holds tokens */
    uint64_t real_tokens;
    /* for messages */
    const char *source;
    uint64_t line; /* of JSONL; 0: not in a line */
};

void shore__token_writer_source(struct shore__token_writer *w, const char *source, uint64_t line) {
    w->source = source;
    w->line = line;
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

static int put(struct shore__token_writer *w, uint32_t id, struct shore_diag *diag) {
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

int shore__token_writer_begin_document(struct shore__token_writer *w, struct shore_diag *diag) {
    bool joined = w->stats.documents++ == 0 || (w->after_tokens && w->last == w->end_of_text);
    w->after_tokens = false;
    if (!joined && w->end_of_text < 0)
        return refuse(w, SHORE_EINPUT,
                      "another document begins, but the tokenizer says no end of text to put before it: name one as "
                      "\"eos_token\" in its tokenizer_config.json",
                      diag);
    return joined ? 0 : put(w, (uint32_t)w->end_of_text, diag);
}

static int put_ids(struct shore__token_writer *w, struct shore_diag *diag) {
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < w->ids.count; i++)
        rc = put(w, w->ids.ids[i], diag);
    w->real_tokens += w->ids.count;
    w->ids.count = 0;
    return rc;
}

int shore__token_writer_feed(struct shore__token_writer *w, const char *text, size_t bytes, struct shore_diag *diag) {
    struct shore_diag why = {{0}};
    int rc = 0;
    w->stats.text_bytes += bytes;
    /* small parts, so that the vector of ids stays small */
    for (size_t at = 0; rc == 0 && at < bytes; at += BLOCK_BYTES) {
        size_t n = bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES;
        rc = shore__encoder_feed(w->encoder, text + at, n, &w->ids, &why);
        if (rc) return refuse(w, rc, why.text, diag);
        rc = put_ids(w, diag);
    }
    return rc;
}

int shore__token_writer_end_document(struct shore__token_writer *w, struct shore_diag *diag) {
    struct shore_diag why = {{0}};
    int rc = shore__encoder_end(w->encoder, &w->ids, &why);
    return rc ? refuse(w, rc, why.text, diag) : put_ids(w, diag);
}

int shore__token_writer_tokens(struct shore__token_writer *w, const uint32_t *ids, size_t count, bool first,
                               struct shore_diag *diag) {
    int rc = 0;
    w->any_tokens = true;
    if (count == 0) return 0;
    if (first && ids[0] != w->end_of_text && w->last != w->end_of_text)
        rc = shore__token_writer_begin_document(w, diag);
    else if (first)
        w->stats.documents++;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = put(w, ids[i], diag);
    w->real_tokens += count;
    w->after_tokens = true;
    return rc;
}

int shore__token_writer_open(struct shore__tokenizer *tokenizer, bool special, uint32_t vocab, const char *path,
                             struct shore__token_writer **out, struct shore_diag *diag) {
    struct shore__token_writer *w = calloc(1, sizeof *w);
    if (!w) return shore__fail(diag, -ENOMEM, "%s: out of memory", path);
    w->vocab = vocab;
    w->width = vocab <= 65536 ? 2 : 4;
    w->end_of_text = shore__tokenizer_end_of_text(tokenizer);
    w->last = -1;
    int rc = shore__atomic_open(path, &w->file, diag);
    if (rc) {
        free(w);
        return rc;
    }
    w->hash = XXH3_createState();
    w->pending = malloc(BLOCK_BYTES);
    if (!w->hash || !w->pending || shore__encoder_open(tokenizer, special, &w->encoder) != 0) {
        shore__token_writer_close(w);
        return shore__fail(diag, -ENOMEM, "%s: out of memory", path);
    }
    XXH3_64bits_reset(w->hash);
    *out = w;
    return 0;
}

int shore__token_writer_finish(struct shore__token_writer *w, const char *what, struct shore__dataset_stats *stats,
                               struct shore_diag *diag) {
    unsigned char raw[SHORE__TOKEN_HEADER_BYTES];
    if (w->real_tokens == 0)
        return shore__fail(diag, SHORE_EINPUT, "%s: the data is empty: not one token is in it", what);
    int rc = flush(w, diag);
    if (rc) return rc;
    if (w->any_tokens) w->stats.text_bytes = 0;
    struct shore__token_header header = {.width = w->width,
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
    shore__encoder_close(w->encoder);
    XXH3_freeState(w->hash);
    free(w->pending);
    free(w->ids.ids);
    free(w);
}
