#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/summary.h"

struct args {
    struct shore__model_args model;
    struct shore__strings data;
    char *text_field;
    uint64_t max_tokens;
    uint32_t seq_len;
    unsigned special_tokens, loss_on, pack; /* 0: the run's */
    bool skip_bad_rows;
    bool json, quiet;
};

#define OPTION(...) SHORE__OPTION(struct args, __VA_ARGS__)
#define CHOICE(...) SHORE__CHOICE(struct args, __VA_ARGS__)
static const struct shore__option options[] = {
    OPTION(LIST, "data", data, "FILE...", "text to measure; otherwise the run's own validation data"),
    OPTION(TEXT, "text-field", text_field, "NAME", "key of the text in a record; otherwise the run's, or \"text\""),
    CHOICE("bad-rows", skip_bad_rows, "stop|skip",
           "at a record that is not valid JSON or has no such text: stop and name it, or leave it out and count"),
    CHOICE("loss-on", loss_on, "auto|completion|all",
           "of its records with prompts or messages; auto: as in the run's data, or completion"),
    CHOICE("pack", pack, "auto|off|on", "whether its records are joined; auto: as in the run's data, or on"),
    CHOICE("special-tokens", special_tokens, "auto|text|parse",
           "in that text; parse: those of the tokenizer get their ids; auto: as in the run's data, or text"),
    OPTION(WHOLE, "max-tokens", max_tokens, "N", "measure the first N tokens only; 0: all"),
    OPTION(WHOLE, "seq-len", seq_len, "N", "tokens of a window; otherwise the run's, or the model's up to 1024"),
    SHORE__MODEL_OPTIONS(struct args, model),
    OPTION(FLAG, "json", json, NULL, "one JSON object on one line"),
    OPTION(FLAG, "quiet", quiet, NULL, "no progress"),
};

/* Tokenizes into a nameless file. */
static int build_data(const struct args *a, const struct shore__opened *o, size_t seq_len, struct shore__dataset **out,
                      struct shore_diag *diag) {
    enum { AUTO, OFF, ON }; /* as the rows of options have them */
    const struct shore__settings *s = o->run ? &o->run->settings : NULL;
    bool parse = a->special_tokens == AUTO ? s && s->parse_special : a->special_tokens == ON;
    if (parse && strcmp(shore__tokenizer_name(o->tokenizer), "bytes") == 0)
        return shore__fail(diag, SHORE_EUSAGE, "--special-tokens parse: bytes have no special tokens in a text");
    bool all = a->loss_on == AUTO ? s && s->all_count : a->loss_on == ON;
    bool off = a->pack == AUTO ? s && !s->packs : a->pack == OFF;
    const char *temporary = getenv("TMPDIR");
    const struct shore__reading how = {.parse_special = parse,
                                       .threads = a->model.threads,
                                       .progress = shore__cli_work,
                                       .progress_ctx = a->quiet ? NULL : (void *)"reading the text",
                                       .note = shore__cli_note,
                                       .text_field = a->text_field ? a->text_field
                                                     : s           ? s->text_field
                                                                   : NULL,
                                       .skip_bad_rows = a->skip_bad_rows,
                                       .all_count = all,
                                       .row_tokens = off ? (uint32_t)seq_len : 0,
                                       .memory_bytes = a->model.memory};
    return shore__dataset_build_unnamed((const char *const *)a->data.item, a->data.count, &how, o->tokenizer,
                                        o->model->arch.vocab, temporary && *temporary ? temporary : "/tmp", out, diag);
}

static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static int print(const struct args *a, const struct shore__opened *o, struct shore__dataset *data,
                 const struct shore__eval_result *result) {
    double perplexity = exp(result->loss);
    uint64_t bytes = a->max_tokens ? 0 : shore__summary_text_bytes(data, o->tokenizer);
    double bits = bytes ? result->loss / log(2) * (double)shore__dataset_tokens(data) / (double)bytes : NAN;
    if (!a->json) {
        printf("loss %.6f  perplexity %.4f  tokens %llu", result->loss, perplexity, (unsigned long long)result->tokens);
        if (bytes) printf("  bits per byte %.4f", bits);
        putchar('\n');
        return shore__cli_finish(SHORE__EXIT_DONE);
    }
    json_t *object = json_pack("{s:o,s:o,s:I}", "loss", number(result->loss), "perplexity", number(perplexity),
                               "tokens", (json_int_t)result->tokens);
    if (object && bytes) json_object_set_new(object, "bits_per_byte", number(bits));
    if (object && o->run) json_object_set_new(object, "step", json_integer((json_int_t)o->step));
    return shore__cli_print_json(object);
}

static int evaluate(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    const char *path = parsed->positional[0];
    struct shore__opened o;
    struct shore__dataset *built = NULL, *data = NULL;
    struct shore__eval_result result;
    struct shore_diag diag = {0};
    int code = SHORE__EXIT_DONE;
    int rc = shore__cli_open(path, &a->model, &a->data, &o, &diag);
    if (rc) return shore__cli_fail(rc, &diag);
    shore__cli_catch_signals("longshore: stopping; nothing is left behind\n");
    struct shore__infer_options infer = {
        .memory_bytes = a->model.memory,
        .compute = shore__cli_compute(&o, &a->model),
        .seq_len = a->seq_len,
    };
    if (!infer.seq_len)
        infer.seq_len = o.run                                ? o.run->settings.seq_len
                        : o.model->arch.max_positions < 1024 ? o.model->arch.max_positions
                                                             : 1024;
    if (a->data.count) {
        rc = build_data(a, &o, infer.seq_len, &built, &diag);
        data = built;
    } else {
        data = o.run ? o.run->val : NULL;
        if (!data && o.run && o.run->no_data)
            rc = shore__fail(&diag, o.run->no_data_rc, "%s; or give --data FILE...", o.run->no_data);
        else if (!data)
            rc = shore__fail(&diag, SHORE_EUSAGE, "which text? Give --data FILE... (%s has no validation data)", path);
    }
    if (!rc) rc = shore__cli_check_length(&o.model->arch, infer.seq_len, &diag);
    if (!rc) rc = shore_budget(a->model.memory, 0, 0, &infer.memory_bytes, &diag);
    if (!rc && !built)
        rc = shore__run_check_data(o.run, true, shore__cli_work, a->quiet ? NULL : (void *)"checking the text", &diag);
    struct shore__weights_of weights = {.model = o.model, .fleet = o.fleet, .source = o.source};
    if (!rc)
        rc = shore__evaluate(&weights, &infer, data, a->max_tokens, shore__cli_work,
                             a->quiet ? NULL : (void *)"evaluating", &result, &diag);
    shore__cli_progress_end();
    code = rc ? shore__cli_fail_opened(rc, &diag) : print(a, &o, data, &result);
    shore__dataset_close(built);
    shore__cli_close(&o);
    return code;
}

const struct shore__command_line shore__cli_eval = {
    .command = "eval",
    .remote = true,
    .synopsis = "eval RUN|DIR --data FILE... [--json]",
    .about =
        "Measures the mean loss (nats a token) and the perplexity of a run, or of a Hugging Face directory, on a text.",
    .notes =
        "Text is cut into windows of --seq-len tokens that do not overlap; every token but the first is predicted.",
    SHORE__OPTIONS(options),
    .positional = 1,
    .missing = "which model? Give a run or a Hugging Face directory: longshore eval RUN",
    SHORE__RUNS(evaluate, struct args, .json = false),
};
