#include "text/counted_rows.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "text/chat.h"
#include "text/token_spans.h"
#include "text/tokenizer_impl.h"
#include "text/vector.h"

#define LEFT_OUT "left out, having nothing that counts in the loss"

/* Rows with the same oddity, and where the first one is. */
struct alike {
    uint64_t count;
    char *first;
};

struct shore__counted {
    const struct shore__tokenizer *t;
    const struct shore__reading *how;
    struct shore__token_writer *writer;
    shore__wait_fn wait;
    void *wait_ctx;
    struct shore__encoder *encoder[2]; /* the second one finds special tokens; NULL: not open */
    struct shore__chat *chat;          /* NULL: not open */
    /* of the current row */
    const char *where;
    struct shore__ids ids, whole;
    struct shore__text text;
    bool *counts;
    size_t capacity; /* of counts */
    struct alike empty, cut;
    size_t longest; /* tokens of a row, as it is written */
};

int shore__counted_open(const struct shore__tokenizer *tokenizer, const struct shore__reading *how,
                        struct shore__token_writer *writer, shore__wait_fn wait, void *wait_ctx,
                        struct shore__counted **out, struct shore_diag *diag) {
    struct shore__counted *c = *out = calloc(1, sizeof *c);
    if (!c) return shore__out_of_memory(diag);
    *c = (struct shore__counted){.t = tokenizer, .how = how, .writer = writer, .wait = wait, .wait_ctx = wait_ctx};
    return 0;
}

void shore__counted_close(struct shore__counted *c) {
    if (!c) return;
    shore__encoder_close(c->encoder[0]);
    shore__encoder_close(c->encoder[1]);
    shore__chat_close(c->chat);
    free(c->ids.ids);
    free(c->whole.ids);
    free(c->text.bytes);
    free(c->counts);
    free(c->empty.first);
    free(c->cut.first);
    free(c);
}

static void count_alike(const struct shore__counted *c, struct alike *alike) {
    if (alike->count++ == 0) alike->first = strdup(c->where);
}

static void describe(const struct alike *alike, const char *what, char *text, size_t bytes) {
    snprintf(text, bytes, "%llu row%s %s, the first: %.600s", (unsigned long long)alike->count,
             alike->count == 1 ? " is" : "s are", what, alike->first ? alike->first : "");
}

static void say(const struct shore__counted *c, const struct alike *alike, const char *what) {
    char text[1024];
    if (!alike->count || !c->how->note) return;
    describe(alike, what, text, sizeof text);
    c->how->note(c->how->note_ctx, text);
}

/* Padding is computed like any token, so that a length far above the rows' costs time for nothing. */
static void say_padding(const struct shore__counted *c) {
    char text[160];
    if (!c->how->note || !c->longest || c->longest > c->how->row_tokens / 4) return;
    snprintf(text, sizeof text,
             "the longest row has %zu tokens, and each is padded to %u: a smaller --seq-len takes less time",
             c->longest, c->how->row_tokens);
    c->how->note(c->how->note_ctx, text);
}

void shore__counted_say(const struct shore__counted *c) {
    char what[64];
    if (!c) return;
    snprintf(what, sizeof what, "longer than %u tokens and cut there", c->how->row_tokens);
    say(c, &c->cut, what);
    say(c, &c->empty, LEFT_OUT);
    say_padding(c);
}

void shore__counted_left_out(const struct shore__counted *c, char *text, size_t bytes) {
    *text = '\0';
    if (!c || !c->empty.count || bytes < 2) return;
    memcpy(text, "; ", 2);
    describe(&c->empty, LEFT_OUT, text + 2, bytes - 2);
}

static int encode(struct shore__counted *c, bool special, const char *text, size_t bytes, struct shore__ids *out,
                  struct shore_diag *diag) {
    struct shore__encoder **e = &c->encoder[special];
    if (!*e && shore__encoder_open(c->t, special, e)) return shore__out_of_memory(diag);
    int rc = shore__encoder_feed(*e, text, bytes, out, diag);
    if (rc == 0) rc = shore__encoder_end(*e, out, diag);
    if (rc) shore__encoder_reset(*e);
    return rc;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* Makes room for the marks of the row's ids, and marks those from `first` on. */
static int mark_from(struct shore__counted *c, size_t first, struct shore_diag *diag) {
    size_t n = c->ids.count;
    if (n > c->capacity) {
        bool *grown = realloc(c->counts, 2 * n);
        if (!grown) return shore__out_of_memory(diag);
        c->counts = grown;
        c->capacity = 2 * n;
    }
    for (size_t i = 0; i < n; i++)
        c->counts[i] = c->how->all_count || i >= first;
    return 0;
}

static int write_row(struct shore__counted *c, struct shore_diag *diag) {
    size_t n = c->ids.count, length = c->how->row_tokens, first = length ? 1 : 0;
    bool any = false;
    if (length && n > length) {
        count_alike(c, &c->cut);
        n = length;
    }
    while (!any && first < n) /* nothing predicts the first token of a sequence */
        any = c->counts[first++];
    if (any && n > c->longest) c->longest = n;
    if (any) return shore__token_writer_row(c->writer, c->ids.ids, c->counts, n, diag);
    count_alike(c, &c->empty);
    return 0;
}

/* Begins the row's ids as transformers begins a text. */
static int begin(struct shore__counted *c, struct shore_diag *diag) {
    c->ids.count = 0;
    return shore__ids_append(&c->ids, c->t->beginning, c->t->nbeginning) ? shore__out_of_memory(diag) : 0;
}

/* Adds it, and what the tokenizer puts behind a text: TRL writes both, too. */
static int add_end_of_text(struct shore__counted *c, struct shore_diag *diag) {
    int64_t end = shore__tokenizer_end_of_text(c->t);
    if (end < 0)
        return shore__fail(diag, SHORE_EUSAGE,
                           "%s: a row ends with the end of text, but the tokenizer has none: name one as \"eos_token\" "
                           "in its tokenizer_config.json",
                           c->where);
    bool there = c->ids.count && c->ids.ids[c->ids.count - 1] == end;
    if (!there && shore__ids_push(&c->ids, (uint32_t)end)) return shore__out_of_memory(diag);
    return c->t->behind >= 0 && shore__ids_push(&c->ids, (uint32_t)c->t->behind) ? shore__out_of_memory(diag) : 0;
}

int shore__counted_text(struct shore__counted *c, const char *where, const char *text, size_t bytes,
                        struct shore_diag *diag) {
    c->where = where;
    int rc = begin(c, diag);
    if (rc == 0) rc = encode(c, c->how->parse_special, text, bytes, &c->ids, diag);
    if (rc == 0) rc = add_end_of_text(c, diag);
    if (rc == 0) rc = mark_from(c, 0, diag);
    return rc ? rc : write_row(c, diag);
}

/* ---- prompts with completions ------------------------------------------------------------------------------------ */

/* Whether the tokenizer may put a space before a text. */
static bool puts_space(const struct shore__tokenizer *t) {
    bool puts = t->prepend != SHORE__PREPEND_NEVER;
    for (unsigned i = 0; i < t->nsteps; i++)
        puts |= t->steps[i].kind == SHORE__STEP_PREPEND;
    for (unsigned i = 0; i < t->nstages; i++)
        puts |= t->stages[i].prefix_space;
    return puts;
}

/* Appends the ids of a text that goes on behind another one. A space that is put before a text is put before a line
 * feed here, and goes with it. */
static int encode_behind(struct shore__counted *c, const char *text, size_t bytes, struct shore_diag *diag) {
    const bool special = c->how->parse_special;
    const size_t before = c->ids.count;
    if (!puts_space(c->t)) return encode(c, special, text, bytes, &c->ids, diag);
    c->text.count = c->whole.count = 0;
    if (shore__text_append(&c->text, "\n", 1) || shore__text_append(&c->text, text, bytes))
        return shore__out_of_memory(diag);
    int rc = encode(c, special, c->text.bytes, 1, &c->ids, diag);
    if (rc == 0) rc = encode(c, special, c->text.bytes, c->text.count, &c->whole, diag);
    if (rc) return rc;
    const size_t line = c->ids.count - before;
    bool begins = c->whole.count >= line && !memcmp(c->whole.ids, c->ids.ids + before, line * sizeof *c->ids.ids);
    c->ids.count = before;
    if (!begins) return encode(c, special, text, bytes, &c->ids, diag); /* a token has the line feed and more */
    return shore__ids_append(&c->ids, c->whole.ids + line, c->whole.count - line) ? shore__out_of_memory(diag) : 0;
}

/* Encodes the prompt as where a completion is asked for, and behind it the completion: as it is encoded there, unless a
 * token would reach from one into the other. */
static int encode_completion(struct shore__counted *c, const json_t *prompt, const json_t *completion, size_t *prompts,
                             struct shore_diag *diag) {
    const char *first = json_string_value(prompt), *second = json_string_value(completion);
    const size_t n = json_string_length(prompt), m = json_string_length(completion);
    const bool special = c->how->parse_special;
    const size_t start = c->t->nbeginning;
    c->text.count = c->whole.count = 0;
    if (shore__text_append(&c->text, first, n) || shore__text_append(&c->text, second, m))
        return shore__out_of_memory(diag);
    int rc = begin(c, diag);
    if (rc == 0) rc = encode(c, special, first, n, &c->ids, diag);
    if (rc == 0) rc = encode(c, special, c->text.bytes, c->text.count, &c->whole, diag);
    if (rc) return rc;
    *prompts = c->ids.count;
    size_t k = c->ids.count - start;
    bool begins = c->whole.count >= k && (!k || !memcmp(c->whole.ids, c->ids.ids + start, k * sizeof *c->ids.ids));
    if (!begins) return encode_behind(c, second, m, diag);
    return shore__ids_append(&c->ids, c->whole.ids + k, c->whole.count - k) ? shore__out_of_memory(diag) : 0;
}

static int completion_row(struct shore__counted *c, const json_t *prompt, const json_t *completion,
                          struct shore_diag *diag) {
    size_t prompts = 0;
    if (!json_is_string(prompt) || !json_is_string(completion))
        return shore__fail(diag, SHORE_EINPUT,
                           "\"prompt\" and \"completion\" are neither both strings nor both lists of messages");
    if (!json_string_length(completion)) return shore__fail(diag, SHORE_EINPUT, "\"completion\" is empty");
    int rc = encode_completion(c, prompt, completion, &prompts, diag);
    if (rc == 0) rc = add_end_of_text(c, diag);
    if (rc == 0) rc = mark_from(c, prompts, diag);
    return rc ? rc : write_row(c, diag);
}

/* ---- conversations ----------------------------------------------------------------------------------------------- */

static size_t answers_in(const json_t *messages) {
    size_t i, n = 0;
    const json_t *message;
    json_array_foreach((json_t *)(uintptr_t)messages, i, message) {
        const char *role = json_string_value(json_object_get(message, "role"));
        n += role && strcmp(role, "assistant") == 0;
    }
    return n;
}

/* Takes the answers of a prompt from what counts: they come first. */
static int forget_prompt(struct shore__chat_text *texts, size_t n, const json_t *prompt, const json_t *messages,
                         struct shore_diag *diag) {
    size_t spans = 0, drop = answers_in(prompt);
    for (size_t i = 0; i < n; i++)
        spans += texts[i].ncounts;
    if (drop && spans != answers_in(messages))
        return shore__fail(diag, SHORE_EINPUT,
                           "the chat template does not tell which answers are of the \"prompt\" and which of the "
                           "\"completion\"");
    for (size_t i = 0; i < n && drop; i++) {
        size_t here = texts[i].ncounts < drop ? texts[i].ncounts : drop;
        texts[i].ncounts -= here;
        memmove(texts[i].counts, texts[i].counts + here, texts[i].ncounts * sizeof *texts[i].counts);
        drop -= here;
    }
    return 0;
}

static int write_text(struct shore__counted *c, const struct shore__chat_text *text, struct shore_diag *diag) {
    c->ids.count = 0;
    int rc = encode(c, true, text->text, text->bytes, &c->ids, diag);
    if (rc == 0) rc = mark_from(c, c->ids.count, diag);
    if (rc == 0 && !c->how->all_count) rc = shore__token_spans(c->t, text, &c->ids, c->counts, diag);
    return rc ? rc : write_row(c, diag);
}

/* Writes each answer from `first` on, with all before it. */
static int each_answer(struct shore__counted *c, const json_t *row, size_t first, size_t count,
                       struct shore_diag *diag) {
    int rc = 0;
    for (size_t i = first; rc == 0 && i < count; i++) {
        struct shore__chat_text *text = NULL;
        rc = shore__chat_render_answer(c->chat, row, i, &text, diag);
        if (rc == 0) rc = write_text(c, text, diag);
        shore__chat_texts_free(text, text != NULL);
    }
    return rc;
}

/* prompt: NULL: all answers count. */
static int conversation(struct shore__counted *c, const json_t *row, const json_t *prompt, struct shore_diag *diag) {
    struct shore__chat_text *texts = NULL;
    size_t n = 0;
    int rc = c->chat ? 0 : shore__chat_open(c->t, c->wait, c->wait_ctx, &c->chat, diag);
    if (rc) return rc == SHORE_EINPUT ? SHORE_EUSAGE : rc; /* not the row's fault */
    size_t answers = c->how->all_count ? 0 : shore__chat_answers(c->chat, row);
    if (answers > 1) return each_answer(c, row, prompt ? answers_in(prompt) : 0, answers, diag);
    rc = shore__chat_render(c->chat, row, c->how->all_count, &texts, &n, diag);
    if (rc == 0 && prompt && !c->how->all_count)
        rc = forget_prompt(texts, n, prompt, json_object_get(row, "messages"), diag);
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (!prompt || texts[i].ncounts || n == 1) rc = write_text(c, &texts[i], diag);
    shore__chat_texts_free(texts, n);
    return rc;
}

/* A prompt and a completion that are lists of messages, as one conversation. */
static int joined_conversation(struct shore__counted *c, json_t *row, const json_t *prompt, const json_t *completion,
                               struct shore_diag *diag) {
    json_t *messages = json_array();
    int rc = 0;
    if (!messages || json_array_extend(messages, (json_t *)(uintptr_t)prompt) ||
        json_array_extend(messages, (json_t *)(uintptr_t)completion) || json_object_set(row, "messages", messages))
        rc = shore__out_of_memory(diag);
    if (rc == 0) rc = conversation(c, row, prompt, diag);
    json_decref(messages);
    return rc;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static int write_json(struct shore__counted *c, json_t *row, struct shore_diag *diag) {
    const json_t *prompt = json_object_get(row, "prompt"), *completion = json_object_get(row, "completion");
    if (json_object_get(row, "chosen") || json_object_get(row, "rejected"))
        return shore__fail(diag, SHORE_EINPUT,
                           "the row has an answer that was \"chosen\" and one that was \"rejected\"; train on "
                           "preferences from Python (examples/python/dpo.py), or give rows with \"prompt\" and "
                           "\"completion\"");
    if (json_is_array(prompt) && json_is_array(completion))
        return joined_conversation(c, row, prompt, completion, diag);
    if (prompt && completion) return completion_row(c, prompt, completion, diag);
    if (json_object_get(row, "messages")) return conversation(c, row, NULL, diag);
    if (json_object_get(row, "conversations"))
        return shore__fail(
            diag, SHORE_EINPUT,
            "\"conversations\" in the form of ShareGPT are not read: write them as \"messages\" with "
            "\"role\" (system, user, assistant) and \"content\" in place of \"from\" (system, human, gpt) "
            "and \"value\"");
    if (!prompt && !completion) return shore__fail(diag, SHORE_EINPUT, "all of the row that could be read is null");
    return shore__fail(diag, SHORE_EINPUT, "the row has a \"%s\" but no \"%s\"", prompt ? "prompt" : "completion",
                       prompt ? "completion" : "prompt");
}

int shore__counted_json(struct shore__counted *c, const char *where, const char *json, size_t bytes,
                        struct shore_diag *diag) {
    json_error_t why;
    json_t *row = json_loadb(json, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why), *value;
    const char *key;
    void *next;
    c->where = where;
    if (!row) return shore__fail(diag, SHORE_EINPUT, "not valid JSON: %s", why.text);
    json_object_foreach_safe(row, next, key, value) { /* what is null counts as left out */
        if (json_is_null(value)) json_object_del(row, key);
    }
    int rc = write_json(c, row, diag);
    json_decref(row);
    return rc;
}
