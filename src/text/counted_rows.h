/* Rows that say what counts in the loss: a prompt and its completion. Inside of text/. */
#ifndef SHORE_TEXT_COUNTED_ROWS_H
#define SHORE_TEXT_COUNTED_ROWS_H

#include "files/unpack.h"
#include "text/token_writer.h"

struct shore__counted;
/* Opens what encodes such rows, and writes them to the writer, as `how` says. It borrows all three. wait: as that of
 * chats. */
int shore__counted_open(const struct shore__tokenizer *tokenizer, const struct shore__reading *how,
                        struct shore__token_writer *writer, shore__wait_fn wait, void *wait_ctx,
                        struct shore__counted **out, struct shore_diag *diag);
/* Writes a row. where: "FILE:LINE", for shore__counted_say(). SHORE_EINPUT: the row is bad, and diag says why, without
 * where it is. */
int shore__counted_json(struct shore__counted *c, const char *where, const char *json, size_t bytes,
                        struct shore_diag *diag);
/* The same of a row's text, all of which counts. */
int shore__counted_text(struct shore__counted *c, const char *where, const char *text, size_t bytes,
                        struct shore_diag *diag);
/* Says the rows that were left out, having nothing that counts: "; N rows ..."; or nothing. */
void shore__counted_left_out(const struct shore__counted *c, char *text, size_t bytes);
/* Notes how many rows were left out, having nothing that counts, or cut, and the first of each. */
void shore__counted_say(const struct shore__counted *c);
void shore__counted_close(struct shore__counted *c); /* NULL is allowed */

#endif
