#include <stdlib.h>
#include <string.h>

#include "cli/clean_text.h"
#include "cli/cli.h"
#include "text/utf8_parts.h"
#include "text/vector.h"

struct args {
    struct shore__model_args model;
    char *prompt;
    struct shore__sampling sampling;
    bool bos, json;
};
#define OPTION(...) SHORE__OPTION(struct args, __VA_ARGS__)
static const struct shore__option options[] = {
    OPTION(TEXT, "prompt", prompt, "TEXT", "what to continue; otherwise a new text is begun"),
    OPTION(WHOLE, "max-tokens", sampling.max_tokens, "N", "tokens to add at most", .is.least = 1),
    OPTION(REAL, "temperature", sampling.temperature, "X", "0: always the most likely token", .is.high = 100),
    OPTION(WHOLE, "top-k", sampling.top_k, "N", "choose among the N most likely tokens; otherwise all"),
    OPTION(REAL, "top-p", sampling.top_p, "X", "choose among the likeliest that hold this share", .is.high = 1),
    OPTION(WHOLE, "seed", sampling.seed, "N", "the same seed draws the same text"),
    OPTION(FLAG, "bos", bos, NULL, "put the model's begin-of-text token first, as Llama models expect"),
    SHORE__MODEL_OPTIONS(struct args, model),
    OPTION(FLAG, "json", json, NULL, "one JSON object on one line: prompt, text, tokens, ended"),
};

/* A stream of generated text. It shows only whole characters; tokens may end inside of one. */
struct stream {
    struct shore__tokenizer *tokenizer;
    struct shore__text text; /* the prompt and its continuation */
    struct shore__utf8_parts characters;
    size_t passed, tokens; /* passed: bytes of text handed to characters */
    bool shown;            /* some were shown */
    const struct shore__arch *arch;
    bool silent, ended;
    int rc;
};

static int put_characters(void *ctx, const char *text, size_t bytes) {
    struct stream *s = ctx;
    s->shown |= bytes > 0;
    shore__cli_put_text(stdout, text, bytes);
    return 0;
}

static void show(struct stream *s, bool last) {
    if (s->silent || !s->text.bytes) return;
    shore__utf8_parts_feed(&s->characters, s->text.bytes + s->passed, s->text.count - s->passed);
    s->passed = s->text.count;
    if (last) shore__utf8_parts_end(&s->characters);
    fflush(stdout);
}

static bool ends_text(const struct stream *s, uint32_t token) {
    bool ends = token == shore__tokenizer_end_of_text(s->tokenizer);
    for (uint32_t i = 0; i < s->arch->neos; i++)
        ends |= token == s->arch->eos[i];
    return ends;
}

static int on_token(void *ctx, uint32_t token) {
    struct stream *s = ctx;
    if (ends_text(s, token)) {
        s->ended = true;
        return 1;
    }
    s->tokens++;
    s->rc = shore__tokenizer_decode(s->tokenizer, &token, 1, &s->text);
    if (s->rc) return 1;
    show(s, false);
    return 0;
}

static int print_json(const struct args *a, const struct stream *s, size_t prompt_bytes) {
    const char *prompt = a->prompt ? a->prompt : "";
    const char *text = prompt_bytes < s->text.count ? s->text.bytes + prompt_bytes : "";
    return shore__cli_print_json(json_pack("{s:o,s:o,s:I,s:b}", "prompt", shore__clean_json(prompt, strlen(prompt)),
                                           "text", shore__clean_json(text, s->text.count - prompt_bytes), "tokens",
                                           (json_int_t)s->tokens, "ended", s->ended));
}

/* Encodes the prompt. It has at least one token, because a model continues something. */
static int encode(const struct args *a, const struct shore__opened *o, struct shore__ids *ids,
                  struct shore_diag *diag) {
    int64_t first = a->bos ? o->model->arch.bos : -1;
    if (a->bos && first < 0)
        return shore__fail(diag, SHORE_EUSAGE, "--bos: the model's configuration names no begin-of-text token");
    if (!a->prompt && first < 0) first = shore__tokenizer_end_of_text(o->tokenizer);
    if (!a->prompt && first < 0) first = o->model->arch.bos;
    if (first >= 0 && shore__ids_push(ids, (uint32_t)first)) return shore__out_of_memory(diag);
    int rc = a->prompt ? shore__tokenizer_encode(o->tokenizer, a->prompt, strlen(a->prompt), true, ids, diag) : 0;
    if (!rc && !ids->count) rc = shore__fail(diag, SHORE_EUSAGE, "--prompt gives no tokens: what is to be continued?");
    for (size_t i = 0; !rc && i < ids->count; i++)
        if (ids->ids[i] >= o->model->arch.vocab)
            rc = shore__fail(diag, SHORE_EINPUT, "token %u of the prompt is beyond the model's vocabulary of %u",
                             ids->ids[i], o->model->arch.vocab);
    return rc;
}

static int generate(const struct shore__parsed *parsed, void *args) {
    struct args *a = args;
    struct shore__opened o;
    struct shore__ids ids = {0};
    struct stream stream = {.silent = a->json, .characters = {.sink = put_characters, .ctx = &stream}};
    struct shore_diag diag = {0};
    int code = SHORE__EXIT_DONE;
    int rc = shore__cli_open(parsed->positional[0], &a->model, NULL, &o, &diag);
    if (rc) return shore__cli_fail(rc, &diag);
    if (o.run && shore__run_without_tokenizer(o.run))
        shore__cli_say("the run was made from token files without a tokenizer: text is taken and shown as bytes");
    rc = encode(a, &o, &ids, &diag);
    uint32_t positions = shore__arch_most_positions(&o.model->arch, ids.count);
    bool limited = positions != 0;
    if (!rc && limited && ids.count >= positions)
        rc = shore__fail(&diag, SHORE_EUSAGE, "the prompt has %zu tokens, but the model only %u positions", ids.count,
                         positions);
    if (!rc && limited && a->sampling.max_tokens > positions - ids.count) {
        a->sampling.max_tokens = positions - (uint32_t)ids.count;
        shore__cli_say("the model has %u positions: at most %u tokens follow", positions, a->sampling.max_tokens);
    }
    struct shore__infer_options infer = {
        .compute = shore__cli_compute(&o, &a->model),
        .seq_len = ids.count + a->sampling.max_tokens,
    };
    if (!rc) rc = shore_budget(a->model.memory, 0, 0, &infer.memory_bytes, &diag);
    size_t prompt_bytes = 0;
    if (!rc) {
        stream.tokenizer = o.tokenizer;
        stream.arch = &o.model->arch;
        rc = shore__tokenizer_decode(o.tokenizer, ids.ids, ids.count, &stream.text);
        prompt_bytes = stream.text.count;
    }
    if (!rc) {
        struct shore__weights_of weights = {.model = o.model, .fleet = o.fleet, .source = o.source};
        rc = shore__generate(&weights, &infer, ids.ids, ids.count, &a->sampling, on_token, &stream, &diag);
        if (!rc) rc = stream.rc;
    }
    if (rc) {
        if (stream.shown) putchar('\n');
        code =
            stream.tokens && rc != SHORE_ELINK ? shore__cli_fail_running(rc, &diag) : shore__cli_fail_opened(rc, &diag);
    } else if (a->json) {
        code = print_json(a, &stream, prompt_bytes);
    } else {
        show(&stream, true);
        putchar('\n');
    }
    free(stream.text.bytes);
    free(ids.ids);
    shore__cli_close(&o);
    return code;
}

const struct shore__command_line shore__cli_generate = {
    .command = "generate",
    .remote = true,
    .synopsis = "generate RUN|DIR --prompt TEXT [--max-tokens N] [--temperature X] [--top-k N] [--top-p X] [--seed N]",
    .about = "Continues a text with a run or a Hugging Face directory, and prints it as it comes, the prompt first.",
    SHORE__OPTIONS(options),
    .positional = 1,
    .missing = "which model? Give a run or a Hugging Face directory: longshore generate RUN --prompt TEXT",
    SHORE__RUNS(generate, struct args, .sampling = {.temperature = 0.8, .top_k = 40, .top_p = 1, .max_tokens = 200}),
};
