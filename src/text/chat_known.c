/* Chat templates that are rendered here: each a table of texts, recognised by the hash of its template's text. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "text/chat_impl.h"
#include "text/vector.h"

/* In the texts below: the tokens that the tokenizer names. */
#define BOS "\1"
#define EOS "\2"

enum role { SYSTEM, USER, ASSISTANT, ROLES, NO_ROLE = ROLES };

struct form {
    const char *begin, *end;           /* before the first turn, behind the last one */
    const char *before[ROLES], *after; /* a turn's content; NULL: the template takes no such turn */
    bool trims;                        /* contents */
    bool alternates;                   /* users and assistants take turns, behind at most one system's */
    bool needs_system;                 /* it leaves out a system that says nothing */
};
static const struct form chatml = {
    .before = {"<|im_start|>system\n", "<|im_start|>user\n", "<|im_start|>assistant\n"},
    .after = "<|im_end|>\n",
};
static const struct form llama3 = {
    .begin = BOS,
    .before = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|start_header_id|>user<|end_header_id|>\n\n",
               "<|start_header_id|>assistant<|end_header_id|>\n\n"},
    .after = "<|eot_id|>",
    .trims = true,
};
static const struct form gemma = {
    .begin = BOS,
    .before = {NULL, "<start_of_turn>user\n", "<start_of_turn>model\n"},
    .after = "<end_of_turn>\n",
    .trims = true,
    .alternates = true,
};
static const struct form phi3 = {
    .before = {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"}, .after = "<|end|>\n", .end = EOS};
static const struct form phi35 = {.before = {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"},
                                  .after = "<|end|>\n",
                                  .end = EOS,
                                  .needs_system = true};

struct shore__chat_known {
    uint64_t hash; /* XXH3 of the text */
    const struct form *form;
    const char *system; /* what the system says if the row has none; NULL: nothing */
};
static const struct shore__chat_known known[] = {
    {0x639547fe4d33fa67, &chatml, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."}, /* Qwen2.5 */
    {0x8fb5d937b1e8f5d0, &chatml, NULL}, /* Qwen3 Instruct 2507 */
    {0x9799ad6e2dea0594, &llama3, NULL}, /* Llama 3 */
    {0x2c2e86beabccd2a4, &gemma, NULL},  /* Gemma and Gemma 2 */
    {0x82fc89c04c54ba66, &phi3, NULL},   /* Phi-3 */
    {0xcd8aff863abd4554, &phi35, NULL},  /* Phi-3.5 */
};

const struct shore__chat_known *shore__chat_recognise(const char *text, size_t bytes) {
    uint64_t hash = XXH3_64bits(text, bytes);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].hash == hash) return &known[i];
    return NULL;
}

static enum role role_of(const json_t *message) {
    static const char *const names[] = {"system", "user", "assistant"};
    const char *name = json_string_value(json_object_get(message, "role"));
    size_t i = 0;
    while (i < ROLES && (!name || strcmp(name, names[i]) != 0))
        i++;
    return (enum role)i;
}

/* Nothing but a role of the three and a text; fields that are null count as left out. */
static bool is_plain(const json_t *message) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)message, key, value) if (!json_is_null(value) &&
                                                                      strcmp(key, "role") != 0 &&
                                                                      strcmp(key, "content") != 0) return false;
    return role_of(message) != NO_ROLE && json_is_string(json_object_get(message, "content"));
}

static bool takes(const struct form *f, const json_t *row) {
    const json_t *messages = json_object_get(row, "messages"), *message;
    static const char *const other[] = {"tools", "documents", "chat_template_kwargs"};
    enum role before = SYSTEM;
    size_t i;
    for (i = 0; i < sizeof other / sizeof *other; i++)
        if (json_object_get(row, other[i]) && !json_is_null(json_object_get(row, other[i]))) return false;
    json_array_foreach((json_t *)(uintptr_t)messages, i, message) {
        enum role role = is_plain(message) ? role_of(message) : NO_ROLE;
        if (role == NO_ROLE || !f->before[role] || (i == 0 && role == ASSISTANT)) return false;
        if (f->alternates && (before == USER ? role != ASSISTANT : role != USER) && (i || role != SYSTEM)) return false;
        if (f->needs_system && role == SYSTEM && !json_string_length(json_object_get(message, "content"))) return false;
        before = role;
    }
    return i > 0;
}

/* Python's str.isspace(). Returns the bytes of the character, or 0: it is another one. */
static size_t space_at(const char *text, size_t bytes) {
    static const char *const wide[] = {"\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\xA8",
                                       "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};
    unsigned char c = bytes ? (unsigned char)text[0] : 'x';
    if (c == ' ' || (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x1F)) return 1;
    if (bytes >= 3 && !memcmp(text, "\xE2\x80", 2) && (unsigned char)text[2] >= 0x80 && (unsigned char)text[2] <= 0x8A)
        return 3;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (bytes >= strlen(wide[i]) && !memcmp(text, wide[i], strlen(wide[i]))) return strlen(wide[i]);
    return 0;
}

/* The same of the last character. */
static size_t space_before(const char *end, size_t bytes) {
    for (size_t n = 1; n <= 3 && n <= bytes; n++)
        if (space_at(end - n, n) == n) return n;
    return 0;
}

static int put_content(struct shore__text *out, const json_t *content, bool trims) {
    const char *text = json_string_value(content);
    size_t bytes = json_string_length(content), n;
    for (; trims && (n = space_at(text, bytes)); text += n)
        bytes -= n;
    while (trims && (n = space_before(text + bytes, bytes)))
        bytes -= n;
    return shore__text_append(out, text, bytes);
}

static int put(struct shore__text *out, const struct shore__chat *c, const char *form) {
    int rc = 0;
    for (; rc == 0 && form && *form; form++) {
        const char *token = *form == *BOS ? "bos_token" : *form == *EOS ? "eos_token" : NULL;
        const json_t *text = json_object_get(c->variables, token);
        if (token)
            rc = shore__text_append(out, json_string_value(text), json_string_length(text));
        else
            rc = shore__text_append(out, form, 1);
    }
    return rc;
}

int shore__chat_render_known(const struct shore__chat *c, const json_t *row, struct shore__chat_text *out) {
    const struct shore__chat_known *k = c->known;
    const json_t *messages = json_object_get(row, "messages"), *message;
    struct shore__text text = {0};
    size_t i, n = json_array_size(messages);
    if (!k || !takes(k->form, row)) return 0;
    out->counts = malloc(n * sizeof *out->counts);
    int rc = out->counts ? put(&text, c, k->form->begin) : -ENOMEM;
    if (rc == 0 && k->system && role_of(json_array_get(messages, 0)) != SYSTEM) {
        rc = put(&text, c, k->form->before[SYSTEM]);
        if (rc == 0) rc = put(&text, c, k->system);
        if (rc == 0) rc = put(&text, c, k->form->after);
    }
    json_array_foreach((json_t *)(uintptr_t)messages, i, message) {
        enum role role = role_of(message);
        if (rc == 0) rc = put(&text, c, k->form->before[role]);
        size_t begin = text.count;
        if (rc == 0) rc = put_content(&text, json_object_get(message, "content"), k->form->trims);
        if (rc == 0) rc = put(&text, c, k->form->after);
        if (rc == 0 && i == n - 1) rc = put(&text, c, k->form->end);
        if (rc == 0 && role == ASSISTANT) out->counts[out->ncounts++] = (struct shore__chat_span){begin, text.count};
    }
    out->text = text.bytes;
    out->bytes = text.count;
    return rc ? rc : 1;
}
