/* Writes a token file from text and tokens, for the readers of data. Inside of text/. */
#ifndef SHORE_TEXT_TOKEN_WRITER_H
#define SHORE_TEXT_TOKEN_WRITER_H

#include "files/atomic.h"
#include "text/dataset.h"

struct shore__token_writer;
/* vocab: tokens from this on are refused. file: committed by finish; the writer owns it from here on, even after an
 * error. */
int shore__token_writer_open(const struct shore__tokenizer *tokenizer, const struct shore__reading *how, uint32_t vocab,
                             struct shore__atomic *file, struct shore__token_writer **out, struct shore_diag *diag);
/* Sets the source of what follows, for messages; line 0: not in a line. The caller keeps source until close. */
void shore__token_writer_source(struct shore__token_writer *w, const char *source, uint64_t line);
/* Begins a document of text (joined to the previous one by end-of-text), feeds it in parts of any size, and ends it. A
 * later call may report an error in it. */
int shore__token_writer_begin_document(struct shore__token_writer *w, struct shore_diag *diag);
int shore__token_writer_feed(struct shore__token_writer *w, const char *text, size_t bytes, struct shore_diag *diag);
void shore__token_writer_end_document(struct shore__token_writer *w);
/* Adds tokens of a token file, outside of documents. first: they are the first of their file. Such files mark their
 * documents themselves: no end-of-text is added where one stands. */
int shore__token_writer_tokens(struct shore__token_writer *w, const uint32_t *ids, size_t count, bool first,
                               struct shore_diag *diag);
/* Adds a row that ends by itself, and which of its tokens count. If each row is a sequence, the row is cut or padded to
 * its length. */
int shore__token_writer_row(struct shore__token_writer *w, const uint32_t *ids, const bool *counts, size_t count,
                            struct shore_diag *diag);
/* Ends a part of the data: no end of text joins it to the next one. *end: number of tokens so far. */
int shore__token_writer_part(struct shore__token_writer *w, uint64_t *end, struct shore_diag *diag);
/* what: name of the data, for the message that it is empty. */
int shore__token_writer_finish(struct shore__token_writer *w, const char *what, struct shore__dataset_stats *stats,
                               struct shore_diag *diag);
/* Closes the writer; without finish, removes its file. NULL is allowed. */
void shore__token_writer_close(struct shore__token_writer *w);

#endif
