/* Rows of messages from strangers, rendered by the templates that are known in C; and answers of the process that
 * renders all others. Whatever comes, the spans that count are in order, apart, and within their text.
 *
 * Input: a byte, 0 for an answer, otherwise the number of a template; then the JSON. */
#include <stdlib.h>
#include <string.h>

#include "text/chat_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const uint64_t hashes[] = {0xa04f41d813a07b13, 0xd5d943bd0bd9082f, 0xc9e0155c80737cf2, 0x9799ad6e2dea0594,
                                  0x2c2e86beabccd2a4, 0xa5d004210ebce758, 0xcd8aff863abd4554, 0xbc5711ad3f99d670,
                                  0x6ca7779b7730196a, 0xd9c620dcaf86f38d};

static void check(const struct shore__chat_text *t) {
    size_t before = 0;
    for (size_t i = 0; i < t->ncounts; i++) {
        if (t->counts[i].begin < before || t->counts[i].end <= t->counts[i].begin || t->counts[i].end > t->bytes)
            abort();
        before = t->counts[i].end;
    }
    for (size_t i = 0, sum = 0; i < t->bytes; i++)
        if ((sum += (unsigned char)t->text[i]) == SIZE_MAX) abort(); /* every byte is there to be read */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < 1) return 0;
    const char *json = (const char *)data + 1;
    struct shore__chat_text *texts = NULL;
    size_t count = 0;
    struct shore_diag diag = {0};
    json_t *row = data[0] ? json_loadb(json, bytes - 1, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL) : NULL;
    struct shore__chat chat = {.known = shore__chat_known_by(hashes[data[0] % (sizeof hashes / sizeof *hashes)]),
                               .variables = json_pack("{s:s, s:s}", "bos_token", "<s>", "eos_token", "</s>")};
    if (!chat.known || !chat.variables) abort();
    int rc = data[0] ? shore__chat_render_known(&chat, row, bytes & 1, &texts, &count)
                     : shore__chat_answer(json, bytes - 1, &texts, &count, &diag);
    if (rc < 0 && !data[0] && !diag.text[0]) abort(); /* it says why */
    for (size_t i = 0; rc >= 0 && i < count; i++)
        check(&texts[i]);
    shore__chat_texts_free(texts, count);
    json_decref(chat.variables);
    json_decref(row);
    return 0;
}
