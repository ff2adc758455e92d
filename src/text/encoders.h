/* Encodes documents with many threads, and hands out the ids of a single encoder, in order.
 *
 * A long document is cut anywhere. An encoder for each part starts a little before it. When the previous part is done,
 * both encoders are at the same byte of the text. If their states are equal, the second one's output since then is what
 * the first would have produced. If not (in a run without a place to cut), the first encoder continues with the part.
 * This needs no knowledge of the tokenizer's rules. Inside of text/. */
#ifndef SHORE_TEXT_ENCODERS_H
#define SHORE_TEXT_ENCODERS_H

#include "text/tokenizer.h"

/* Called by the thread that calls the functions below, in document order, with the source and line given to them. */
struct shore__encoders_sink {
    int (*on_document)(void *ctx, const char *source, uint64_t line, struct shore_diag *diag);
    int (*on_ids)(void *ctx, const char *source, uint64_t line, const uint32_t *ids, size_t count,
                  struct shore_diag *diag);
    int (*on_failure)(void *ctx, const char *source, uint64_t line, int rc, const char *why, struct shore_diag *diag);
    void *ctx;
};

#define SHORE__ENCODERS_BYTES_PER_THREAD (8u << 20)

struct shore__encoders;
/* Returns 0 or -ENOMEM. threads: at least 1; they start when there is work for more than one. */
int shore__encoders_open(const struct shore__tokenizer *t, bool special, unsigned threads,
                         const struct shore__encoders_sink *sink, struct shore__encoders **out);
/* Begins a document, feeds it in parts of any size, and ends it. source must live until drain. */
int shore__encoders_begin(struct shore__encoders *x, const char *source, uint64_t line, struct shore_diag *diag);
int shore__encoders_feed(struct shore__encoders *x, const char *text, size_t bytes, struct shore_diag *diag);
void shore__encoders_end(struct shore__encoders *x);
/* Waits until the sink has everything. Called between documents. */
int shore__encoders_drain(struct shore__encoders *x, struct shore_diag *diag);
void shore__encoders_close(struct shore__encoders *x); /* NULL is allowed */

#endif
