/* Chat templates: rows of messages as the text that a model was taught, and what of it counts in the loss. */
#ifndef SHORE_TEXT_CHAT_H
#define SHORE_TEXT_CHAT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "files/unpack.h"
#include "text/tokenizer.h"

struct shore__chat;

/* Takes the template from the directory of a tokenizer's files, as transformers does: chat_template.jinja, else
 * "chat_template" of tokenizer_config.json (a text, or a list of named ones), else chat_template.json. The tokenizer is
 * borrowed until close. wait: NULL, or asked while a template takes its time. SHORE_EMISSING: there is no template;
 * diag says so. Threading: a chat belongs to one thread. */
int shore__chat_open(const struct shore__tokenizer *tokenizer, shore__wait_fn wait, void *wait_ctx,
                     struct shore__chat **out, struct shore_diag *diag);
void shore__chat_close(struct shore__chat *chat); /* NULL is allowed */

/* Bytes [begin, end) of a text. A token counts if it shares a byte with a span, as in transformers' mask. */
struct shore__chat_span {
    size_t begin, end;
};
/* One sequence: the text as rendered, and the spans that count, in order and apart. */
struct shore__chat_text {
    char *text;
    size_t bytes;
    struct shore__chat_span *counts;
    size_t ncounts; /* 0: nothing counts */
};
/* Renders a row {"messages": [...], "tools": [...]?, "documents": [...]?, "chat_template_kwargs": {...}?}; its other
 * fields mean nothing here. Usually one sequence; one per answer if the template writes earlier turns anew. whole: one,
 * and what counts is not asked. *out: malloc'ed, *count of them, for shore__chat_texts_free(). SHORE_EINPUT: the row or
 * the template is at fault; diag says how, without the name of the file. Other errors say why the template cannot be
 * used at all. */
int shore__chat_render(struct shore__chat *chat, const json_t *row, bool whole, struct shore__chat_text **out,
                       size_t *count, struct shore_diag *diag);
void shore__chat_texts_free(struct shore__chat_text *texts, size_t count);
/* How many sequences of the row can be rendered one by one, each answer with all before it: together they may take far
 * more memory than the row. 0: all come at once. */
size_t shore__chat_answers(const struct shore__chat *chat, const json_t *row);
/* Renders one of them, for shore__chat_texts_free(). -ENOMEM. */
int shore__chat_render_answer(const struct shore__chat *chat, const json_t *row, size_t number,
                              struct shore__chat_text **out, struct shore_diag *diag);

#endif
