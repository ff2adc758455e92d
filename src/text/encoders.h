/* Documents encoded by many threads, with the ids of one, handed out in their order.
 *
 * A long document is cut anywhere. Each part is encoded at once, by an encoder that begins a little before it. When the
 * part before is done, the two encoders stand at the same byte of the text; if they are in the same state, what the
 * second one has made since is what the first would have made. If not (a run without a place to cut), the first one
 * goes on with the part. So nothing has to be known of the tokenizer's rules. Inside of text/.
 */
#ifndef SHORE_TEXT_ENCODERS_H
#define SHORE_TEXT_ENCODERS_H

#include "text/tokenizer.h"

/* Called by the thread that calls the functions below, in the order of the documents. source, line: as they were told.
 */
struct shore__encoders_sink {
    int (*on_document)(void *ctx, const char *source, uint64_t line, struct shore_diag *diag);
    int (*on_ids)(void *ctx, const char *source, uint64_t line, const uint32_t *ids, size_t count,
                  struct shore_diag *diag);
    int (*on_failure)(void *ctx, const char *source, uint64_t line, int rc, const char *why, struct shore_diag *diag);
    void *ctx;
};

#define SHORE__ENCODERS_BYTES_PER_THREAD (8u << 20)

struct shore__encoders;
/* 0 or -ENOMEM. threads: at least 1; they start when there is work for more than one. */
int shore__encoders_open(const struct shore__tokenizer *t, bool special, unsigned threads,
                         const struct shore__encoders_sink *sink, struct shore__encoders **out);
/* A document begins, comes in parts of any size, and ends. source must live until drain. */
int shore__encoders_begin(struct shore__encoders *x, const char *source, uint64_t line, struct shore_diag *diag);
int shore__encoders_feed(struct shore__encoders *x, const char *text, size_t bytes, struct shore_diag *diag);
void shore__encoders_end(struct shore__encoders *x);
/* Between documents: until the sink has all. */
int shore__encoders_drain(struct shore__encoders *x, struct shore_diag *diag);
void shore__encoders_close(struct shore__encoders *x); /* NULL is fine */

#endif
