/* A chat template, as its files share it. */
#ifndef SHORE_TEXT_CHAT_IMPL_H
#define SHORE_TEXT_CHAT_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "text/chat.h"

struct shore__chat {
    const struct shore__tokenizer *tokenizer;
    const char *file;                      /* that has the template, in the tokenizer's directory */
    json_t *templates;                     /* by name; "default" is there */
    json_t *variables;                     /* bos_token and the like, as the template names them */
    const struct shore__chat_known *known; /* how to render the default one here; NULL: unknown */
    struct shore__chat_helper *helper;     /* that renders all else; NULL: not started yet */
    unsigned seconds;                      /* that it may take for a row */
    shore__wait_fn wait;                   /* NULL: nobody is asked meanwhile */
    void *wait_ctx;
};

/* Finds the template of a directory. */
int shore__chat_find(struct shore__chat *chat, struct shore_diag *diag);

/* The template with this text, or hash of it, if it is one of those that are rendered here; or NULL. */
const struct shore__chat_known *shore__chat_recognise(const char *text, size_t bytes);
const struct shore__chat_known *shore__chat_known_by(uint64_t hash);
/* Renders a row, if it is plain: system, user and assistant say texts, in an order that the template takes. Returns 1,
 * 0 if the row is not plain, or -ENOMEM. The caller frees *out, which may be there after an error, too. */
int shore__chat_render_known(const struct shore__chat *chat, const json_t *row, bool whole,
                             struct shore__chat_text **out, size_t *count);

/* A process of python3 that renders templates by jinja2. It ends itself when a row takes too long. */
int shore__chat_helper_open(const struct shore__chat *chat, struct shore__chat_helper **out, struct shore_diag *diag);
int shore__chat_helper_render(struct shore__chat_helper *helper, const json_t *row, bool whole,
                              struct shore__chat_text **out, size_t *count, struct shore_diag *diag);
void shore__chat_helper_close(struct shore__chat_helper *helper); /* NULL is allowed */
/* What it answered, a line of JSON. -EIO: it is none. */
int shore__chat_answer(const char *line, size_t bytes, struct shore__chat_text **out, size_t *count,
                       struct shore_diag *diag);

#endif
