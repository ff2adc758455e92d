#include "text/chat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "text/chat_impl.h"

int shore__chat_open(const struct shore__tokenizer *tokenizer, shore__wait_fn wait, void *wait_ctx,
                     struct shore__chat **out, struct shore_diag *diag) {
    struct shore__chat *c = calloc(1, sizeof *c);
    if (!c) return shore__out_of_memory(diag);
    c->tokenizer = tokenizer;
    c->wait = wait;
    c->wait_ctx = wait_ctx;
    c->seconds = 60;
    int rc = shore__chat_find(c, diag);
    if (rc) {
        shore__chat_close(c);
        return rc;
    }
    const json_t *text = json_object_get(c->templates, "default");
    c->known = shore__chat_recognise(json_string_value(text), json_string_length(text));
    *out = c;
    return 0;
}

void shore__chat_close(struct shore__chat *c) {
    if (!c) return;
    shore__chat_helper_close(c->helper);
    json_decref(c->templates);
    json_decref(c->variables);
    free(c);
}

/* Refuses what others leave answers out of the loss by, and transformers does not look at. */
static int refuse_marks(const json_t *messages, struct shore_diag *diag) {
    static const char *const marks[] = {"weight", "train", "loss"};
    enum { MARKS = sizeof marks / sizeof *marks };
    for (size_t i = 0; i < MARKS * json_array_size(messages); i++) {
        const json_t *mark = json_object_get(json_array_get(messages, i / MARKS), marks[i % MARKS]);
        if (!json_is_false(mark) && (!json_is_number(mark) || json_number_value(mark) == 1)) continue;
        return shore__fail(diag, SHORE_EINPUT,
                           "message %zu has a \"%s\" by which it would not count, and which is not read: give the "
                           "messages before the answers that count as \"prompt\", and the others as \"completion\"",
                           i / MARKS + 1, marks[i % MARKS]);
    }
    return 0;
}

int shore__chat_render(struct shore__chat *c, const json_t *row, bool whole, struct shore__chat_text **out,
                       size_t *count, struct shore_diag *diag) {
    *count = 0;
    *out = NULL;
    const json_t *messages = json_object_get(row, "messages");
    if (!messages) return shore__fail(diag, SHORE_EINPUT, "the row has no \"messages\"");
    if (!json_array_size(messages)) return shore__fail(diag, SHORE_EINPUT, "\"messages\" is no list of messages");
    int rc = whole ? 0 : refuse_marks(messages, diag);
    if (rc) return rc;
    rc = shore__chat_render_known(c, row, whole, out, count);
    if (rc > 0) return 0;
    if (rc < 0) shore__out_of_memory(diag);
    if (rc == 0 && !c->helper) rc = shore__chat_helper_open(c, &c->helper, diag);
    if (rc == 0) rc = shore__chat_helper_render(c->helper, row, whole, out, count, diag);
    if (rc == 0) return 0;
    shore__chat_texts_free(*out, *count);
    *out = NULL;
    *count = 0;
    return rc;
}
