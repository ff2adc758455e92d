/* Chat templates that are rendered here: each is a table of texts around contents. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/diag.h"
#include "text/chat_impl.h"
#include "text/utf8.h"
#include "text/vector.h"

/* In the texts below: the tokens that the tokenizer names. */
#define BOS "\1"
#define EOS "\2"

enum role { SYSTEM, USER, ASSISTANT, ROLES, NO_ROLE = ROLES };

struct form {
    const char *begin, *end;                   /* before the first turn, behind the last one */
    const char *before[ROLES], *after[ROLES];  /* a content; NULL: the template takes no such turn */
    const char *opening;                       /* before the first system's content instead; NULL: as the others */
    const char *thought;                       /* before the content of the last answer alone; NULL: nothing */
    bool system_in_user;                       /* the first user's turn goes on behind the system's */
    bool trims, alternates, skips_mute_system; /* contents; users and assistants take turns; a system without words */
};

#define CHATML                                                                           \
    .before = {"<|im_start|>system\n", "<|im_start|>user\n", "<|im_start|>assistant\n"}, \
    .after = {"<|im_end|>\n", "<|im_end|>\n", "<|im_end|>\n"}
static const struct form chatml = {CHATML};
static const struct form qwen3 = {CHATML, .thought = "<think>\n\n</think>\n\n"};

#define LLAMA3_ROLE(name) "<|start_header_id|>" name "<|end_header_id|>\n\n"
#define LLAMA3                                                                                      \
    .begin = BOS, .before = {LLAMA3_ROLE("system"), LLAMA3_ROLE("user"), LLAMA3_ROLE("assistant")}, \
    .after = {"<|eot_id|>", "<|eot_id|>", "<|eot_id|>"}, .trims = true
static const struct form llama3 = {LLAMA3};
static const struct form llama31 = {
    LLAMA3,
    .opening = LLAMA3_ROLE("system") "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
};

static const struct form gemma = {
    .begin = BOS,
    .before = {NULL, "<start_of_turn>user\n", "<start_of_turn>model\n"},
    .after = {NULL, "<end_of_turn>\n", "<end_of_turn>\n"},
    .trims = true,
    .alternates = true,
};
static const struct form gemma3 = {
    .begin = BOS,
    .before = {"<start_of_turn>user\n", "<start_of_turn>user\n", "<start_of_turn>model\n"},
    .after = {"\n\n", "<end_of_turn>\n", "<end_of_turn>\n"},
    .system_in_user = true,
    .trims = true,
    .alternates = true,
};

#define MISTRAL(end) .begin = BOS, .before = {NULL, "[INST] ", ""}, .after = {NULL, " [/INST]", end}, .alternates = true
static const struct form mistral = {MISTRAL(EOS)};
static const struct form mistral_apart = {MISTRAL(EOS " ")};

static const struct form zephyr = {
    .before = {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"},
    .after = {EOS "\n", EOS "\n", EOS "\n"},
};

#define PHI3                                                                                                       \
    .before = {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"}, .after = {"<|end|>\n", "<|end|>\n", "<|end|>\n"}, \
    .end = EOS
static const struct form phi3 = {PHI3};
static const struct form phi35 = {PHI3, .skips_mute_system = true};

static const struct form phi4 = {
    .before = {"<|im_start|>system<|im_sep|>", "<|im_start|>user<|im_sep|>", ""},
    .after = {"<|im_end|>", "<|im_end|><|im_start|>assistant<|im_sep|>", "<|im_end|>"},
};

struct shore__chat_known {
    uint64_t hash; /* XXH3 of the text without a line feed at its end, which jinja drops */
    const struct form *form;
    const char *system; /* what the system says if no turn of it comes first; NULL: nothing */
};
static const struct shore__chat_known known[] = {
    {0xa04f41d813a07b13, &chatml, NULL}, /* ChatML, as many models have it */
    {0x4c6e807ee5fe9f4a, &chatml, NULL},
    {0xda206a9e46a4ac01, &chatml, NULL},
    {0xd5d943bd0bd9082f, &chatml, "You are a helpful assistant."}, /* Qwen1.5, 2 */
    {0x2469c9508f79506e, &chatml, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."}, /* Qwen2.5 */
    {0xc31e98db8c19d1d3, &chatml, "You are a helpful assistant."}, /* its base models */
    {0x99ab995e9629dacd, &chatml, "You are a helpful AI assistant named SmolLM, trained by Hugging Face"}, /* SmolLM2 */
    {0x8fb5d937b1e8f5d0, &chatml, NULL},        /* Qwen3 Instruct 2507 */
    {0xc9e0155c80737cf2, &qwen3, NULL},         /* Qwen3 */
    {0x9799ad6e2dea0594, &llama3, NULL},        /* Llama 3 */
    {0x6ca7779b7730196a, &llama31, ""},         /* Llama 3.1 */
    {0x2c2e86beabccd2a4, &gemma, NULL},         /* Gemma and Gemma 2 */
    {0xd9c620dcaf86f38d, &gemma3, NULL},        /* Gemma 3 */
    {0xa5d004210ebce758, &mistral, NULL},       /* Mistral 0.2 and Mixtral */
    {0xb7f52373b11c60d7, &mistral_apart, NULL}, /* Mistral 0.1 */
    {0x1db34e9fc60441d8, &zephyr, NULL},        /* Zephyr and TinyLlama */
    {0x82fc89c04c54ba66, &phi3, NULL},          /* Phi-3 */
    {0xcd8aff863abd4554, &phi35, NULL},         /* Phi-3.5 */
    {0xbc5711ad3f99d670, &phi4, NULL},          /* Phi-4 */
};

const struct shore__chat_known *shore__chat_known_by(uint64_t hash) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].hash == hash) return &known[i];
    return NULL;
}

const struct shore__chat_known *shore__chat_recognise(const char *text, size_t bytes) {
    return shore__chat_known_by(XXH3_64bits(text, bytes && text[bytes - 1] == '\n' ? bytes - 1 : bytes));
}

/* ---- plain rows -------------------------------------------------------------------------------------------------- */

static enum role role_of(const json_t *message) {
    static const char *const names[] = {"system", "user", "assistant"};
    const char *name = json_string_value(json_object_get(message, "role"));
    size_t i = 0;
    while (i < ROLES && (!name || strcmp(name, names[i]) != 0))
        i++;
    return (enum role)i;
}

/* A role of the three and a text without zero bytes, and nothing else; a field that is null counts as left out. */
static bool is_plain(const json_t *message) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)message, key, value) {
        if (strcmp(key, "role") != 0 && strcmp(key, "content") != 0 && !json_is_null(value)) return false;
    }
    const json_t *content = json_object_get(message, "content");
    return role_of(message) != NO_ROLE && json_is_string(content) &&
           strlen(json_string_value(content)) == json_string_length(content);
}

/* Whether a form takes a turn behind that of another role; NO_ROLE: it is the first one. */
static bool takes(const struct form *f, enum role before, const json_t *message) {
    enum role role = is_plain(message) ? role_of(message) : NO_ROLE;
    const char *content = json_string_value(json_object_get(message, "content"));
    if (role == NO_ROLE || !f->before[role] || (before == NO_ROLE && role == ASSISTANT)) return false;
    if (f->alternates && role != (before == USER ? ASSISTANT : USER) && !(before == NO_ROLE && role == SYSTEM))
        return false;
    if (f->skips_mute_system && role == SYSTEM && !*content) return false;
    if (f->thought && role == USER && !strncmp(content, "<tool_response>", 15)) return false;
    return !f->thought || role != ASSISTANT || (before == USER && !strstr(content, "</think>"));
}

static bool takes_row(const struct form *f, const json_t *row) {
    static const char *const other[] = {"tools", "documents", "chat_template_kwargs"};
    const json_t *messages = json_object_get(row, "messages");
    enum role before = NO_ROLE;
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (json_object_get(row, other[i]) && !json_is_null(json_object_get(row, other[i]))) return false;
    for (size_t i = 0; i < json_array_size(messages); i++) {
        if (!takes(f, before, json_array_get(messages, i))) return false;
        before = role_of(json_array_get(messages, i));
    }
    return !f->system_in_user || before != SYSTEM;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

/* Whether Python's str.strip() takes the character away. */
static bool is_stripped(const char *at) {
    uint32_t c = shore__utf8_char(at);
    return shore__utf8_is_space(c) || (c >= 0x1C && c <= 0x1F);
}

static int put_content(struct shore__text *out, const json_t *content, bool trims, bool no_line_feeds) {
    const char *text = json_string_value(content);
    size_t from = 0, to = json_string_length(content);
    while (trims && from < to && is_stripped(text + from))
        from += shore__utf8_bytes((unsigned char)text[from]);
    while (trims && from < to && is_stripped(text + shore__utf8_before(text, to)))
        to = shore__utf8_before(text, to);
    while (no_line_feeds && from < to && text[from] == '\n')
        from++;
    return shore__text_append(out, text + from, to - from);
}

/* 1: a token has no name, by which the template may fail. */
static int put(struct shore__text *out, const struct shore__chat *c, const char *form) {
    int rc = 0;
    for (; rc == 0 && form && *form; form++) {
        const char *token = *form == *BOS ? "bos_token" : *form == *EOS ? "eos_token" : NULL;
        const json_t *text = token ? json_object_get(c->variables, token) : NULL;
        if (token)
            rc = text ? shore__text_append(out, json_string_value(text), json_string_length(text)) : 1;
        else
            rc = shore__text_append(out, form, 1);
    }
    return rc;
}

static const char *before(const struct form *f, const json_t *messages, size_t i) {
    enum role role = role_of(json_array_get(messages, i));
    if (i == 0 && role == SYSTEM && f->opening) return f->opening;
    return f->system_in_user && i == 1 && role_of(json_array_get(messages, 0)) == SYSTEM ? "" : f->before[role];
}

static int put_system(struct shore__text *out, const struct shore__chat *c) {
    const struct form *f = c->known->form;
    int rc = put(out, c, f->opening ? f->opening : f->before[SYSTEM]);
    if (rc == 0) rc = put(out, c, c->known->system);
    return rc ? rc : put(out, c, f->after[SYSTEM]);
}

/* Spans that touch are one. */
static void count_span(struct shore__chat_text *out, size_t begin, size_t end) {
    if (out->ncounts && out->counts[out->ncounts - 1].end == begin)
        out->counts[out->ncounts - 1].end = end;
    else
        out->counts[out->ncounts++] = (struct shore__chat_span){begin, end};
}

/* Renders the first n messages. counted: the first answer that counts. */
static int render(const struct shore__chat *c, const json_t *messages, size_t n, size_t counted,
                  struct shore__chat_text *out) {
    const struct form *f = c->known->form;
    struct shore__text text = {0};
    out->counts = malloc(n * sizeof *out->counts);
    int rc = out->counts ? put(&text, c, f->begin) : -ENOMEM;
    if (rc == 0 && c->known->system && role_of(json_array_get(messages, 0)) != SYSTEM) rc = put_system(&text, c);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        const json_t *message = json_array_get(messages, i);
        enum role role = role_of(message);
        bool thinks = f->thought && role == ASSISTANT && i == n - 1;
        bool trims = f->trims && !(f->system_in_user && role == SYSTEM);
        rc = put(&text, c, before(f, messages, i));
        size_t begin = text.count;
        if (rc == 0 && thinks) rc = put(&text, c, f->thought);
        if (rc == 0) rc = put_content(&text, json_object_get(message, "content"), trims, thinks);
        if (rc == 0) rc = put(&text, c, f->after[role]);
        if (rc == 0 && i == n - 1) rc = put(&text, c, f->end);
        if (role == ASSISTANT && i >= counted && text.count > begin) count_span(out, begin, text.count);
    }
    out->text = text.bytes;
    out->bytes = text.count;
    return rc;
}

size_t shore__chat_answers(const struct shore__chat *c, const json_t *row) {
    const json_t *messages = json_object_get(row, "messages");
    size_t n = 0;
    if (!c->known || !c->known->form->thought || !takes_row(c->known->form, row)) return 0;
    for (size_t i = 0; i < json_array_size(messages); i++)
        n += role_of(json_array_get(messages, i)) == ASSISTANT;
    return n;
}

static int render_answer(const struct shore__chat *c, const json_t *row, size_t number, struct shore__chat_text *out) {
    const json_t *messages = json_object_get(row, "messages");
    size_t i = 0;
    while (role_of(json_array_get(messages, i)) != ASSISTANT || number--)
        i++;
    return render(c, messages, i + 1, i, out);
}

int shore__chat_render_answer(const struct shore__chat *c, const json_t *row, size_t number,
                              struct shore__chat_text **out, struct shore_diag *diag) {
    *out = calloc(1, sizeof **out);
    return !*out || render_answer(c, row, number, *out) ? shore__out_of_memory(diag) : 0;
}

int shore__chat_render_known(const struct shore__chat *c, const json_t *row, bool whole, struct shore__chat_text **out,
                             size_t *count) {
    const json_t *messages = json_object_get(row, "messages");
    size_t n = json_array_size(messages), answers = whole ? 0 : shore__chat_answers(c, row);
    int rc = 0;
    if (!c->known || n == 0 || !takes_row(c->known->form, row)) return 0;
    *out = calloc(n, sizeof **out);
    if (!*out) return -ENOMEM;
    for (; rc == 0 && *count < answers; ++*count)
        rc = render_answer(c, row, *count, &(*out)[*count]);
    if (rc == 0 && *count == 0) rc = render(c, messages, n, 0, &(*out)[(*count)++]);
    if (rc != 1) return rc ? rc : 1;
    shore__chat_texts_free(*out, *count);
    *out = NULL;
    *count = 0;
    return 0;
}
