/* Text and tokens in, a token file out: what readers of data write to. Inside of text/.
 */
#ifndef SHORE_TEXT_TOKEN_WRITER_H
#define SHORE_TEXT_TOKEN_WRITER_H

#include "files/atomic.h"
#include "text/dataset.h"

struct shore__token_writer;
/* vocab: tokens from this on are refused. file is committed when it is finished; it is the writer's from here on, also
 * after an error. */
int shore__token_writer_open(const struct shore__tokenizer *tokenizer, const struct shore__reading *how, uint32_t vocab,
                             struct shore__atomic *file, struct shore__token_writer **out, struct shore_diag *diag);
/* Where what is written next comes from, for messages; line 0: not in a line. The name stays the caller's and must live
 * until close. */
void shore__token_writer_source(struct shore__token_writer *w, const char *source, uint64_t line);
/* A document of text: it begins (joined by end-of-text to what is before), comes in parts of any size, and ends. What
 * is wrong with a document may be said by a later call. */
int shore__token_writer_begin_document(struct shore__token_writer *w, struct shore_diag *diag);
int shore__token_writer_feed(struct shore__token_writer *w, const char *text, size_t bytes, struct shore_diag *diag);
void shore__token_writer_end_document(struct shore__token_writer *w);
/* Tokens of a file that holds tokens, outside of documents; first: they are the first of their file. Such files mark
 * their documents themselves: no end-of-text is added where one stands. */
int shore__token_writer_tokens(struct shore__token_writer *w, const uint32_t *ids, size_t count, bool first,
                               struct shore_diag *diag);
/* what: the data, for the message that they are empty. */
int shore__token_writer_finish(struct shore__token_writer *w, const char *what, struct shore__dataset_stats *stats,
                               struct shore_diag *diag);
/* Without finish, nothing of the file stays. NULL is fine. */
void shore__token_writer_close(struct shore__token_writer *w);

#endif
