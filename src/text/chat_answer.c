/* What the helper that renders chat templates answers. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "text/chat_impl.h"

void shore__chat_texts_free(struct shore__chat_text *texts, size_t count) {
    for (size_t i = 0; i < count; i++) {
        free(texts[i].text);
        free(texts[i].counts);
    }
    free(texts);
}

static int bad_answer(struct shore_diag *diag) {
    return shore__fail(diag, -EIO, "the answer of the helper that renders chat templates is damaged");
}

/* Spans in order, apart, and within the text. */
static int read_spans(const json_t *spans, struct shore__chat_text *out, struct shore_diag *diag) {
    size_t n = json_array_size(spans), before = 0;
    out->counts = n ? malloc(n * sizeof *out->counts) : NULL;
    if (n && !out->counts) return shore__out_of_memory(diag);
    for (size_t i = 0; i < n; i++) {
        const json_t *span = json_array_get(spans, i);
        json_int_t begin = json_integer_value(json_array_get(span, 0)),
                   end = json_integer_value(json_array_get(span, 1));
        if (begin < 0 || (size_t)begin < before || end <= begin || (size_t)end > out->bytes) return bad_answer(diag);
        out->counts[out->ncounts++] = (struct shore__chat_span){(size_t)begin, (size_t)end};
        before = (size_t)end;
    }
    return 0;
}

static int read_text(const json_t *answer, struct shore__chat_text *out, struct shore_diag *diag) {
    const json_t *text = json_object_get(answer, "text"), *counts = json_object_get(answer, "counts");
    if (!json_is_string(text) || !json_is_array(counts)) return bad_answer(diag);
    out->bytes = json_string_length(text);
    out->text = malloc(out->bytes + 1);
    if (!out->text) return shore__out_of_memory(diag);
    memcpy(out->text, json_string_value(text), out->bytes);
    return read_spans(counts, out, diag);
}

int shore__chat_answer(const char *line, size_t bytes, struct shore__chat_text **out, size_t *count,
                       struct shore_diag *diag) {
    json_t *answer = json_loadb(line, bytes, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
    const json_t *texts = json_object_get(answer, "texts"), *error = json_object_get(answer, "error");
    char shown[400];
    int rc = json_is_array(texts) ? 0 : bad_answer(diag);
    if (json_string_length(error))
        rc = shore__fail(diag, SHORE_EINPUT, "%s",
                         shore__printable(json_string_value(error), json_string_length(error), shown, sizeof shown));
    if (rc == 0 && !(*out = calloc(json_array_size(texts) + 1, sizeof **out))) rc = shore__out_of_memory(diag);
    for (size_t i = 0; rc == 0 && i < json_array_size(texts); i++)
        rc = read_text(json_array_get(texts, i), &(*out)[(*count)++], diag);
    json_decref(answer);
    return rc;
}
