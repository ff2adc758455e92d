/* A chat template, as its files share it. */
#ifndef SHORE_TEXT_CHAT_IMPL_H
#define SHORE_TEXT_CHAT_IMPL_H

#include <stdbool.h>

#include "text/chat.h"

struct shore__chat {
    const struct shore__tokenizer *tokenizer;
    const char *file;  /* that has the template, in the tokenizer's directory */
    json_t *templates; /* by name; "default" is there */
    json_t *variables; /* bos_token and the like, as the template names them */
    uint64_t identity;
    const struct shore__chat_known *known; /* how to render the default one here; NULL: unknown */
};

/* Finds the template of a directory. */
int shore__chat_find(struct shore__chat *chat, struct shore_diag *diag);

/* The template with this text, if it is one of those that are rendered here; or NULL. */
const struct shore__chat_known *shore__chat_recognise(const char *text, size_t bytes);
/* Renders a row, if it is plain: system, user and assistant say texts, in an order that the template takes. Returns 1,
 * 0 if the row is not plain, or -ENOMEM. */
int shore__chat_render_known(const struct shore__chat *chat, const json_t *row, struct shore__chat_text *out);

#endif
