#include "cli/train_options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "cli/cli.h"
#include "run/emulation/emulate.h"

#define AT(field) offsetof(struct shore__train_args, field)
#define OPTION(...) SHORE__OPTION(struct shore__train_args, __VA_ARGS__)
#define CHOICE(...) SHORE__CHOICE(struct shore__train_args, __VA_ARGS__)

static const struct shore__option options[] = {
    SHORE__HEADING("The model"),
    OPTION(TEXT, "model", settings.model, "DIR",
           "a Hugging Face directory to start from: config.json, safetensors, tokenizer"),
    OPTION(TEXT, "init", settings.init, "NAME|FILE",
           "random weights: gpt2-124m, gpt2-350m, gpt2-774m, gpt2-1.5b, gpt2-tiny, gpt2-small, llama-tiny, or a "
           "config.json"),
    OPTION(TEXT, "tokenizer", settings.tokenizer, "DIR|bytes",
           "directory of a tokenizer, or bytes (ids 0-255, 256 ends a text); otherwise the model's; with --init, which "
           "may have none, bytes"),
    OPTION(U64, "seed", settings.seed, "N", "of random weights and of the shuffled order"),
    CHOICE("precision", settings.fp32, "bf16|fp32", "what is stored and fetched of parameters and activations"),
    CHOICE("products", settings.products, "auto|bf16|fp32",
           "what matrix products run as with --precision bf16; auto: a fixed table by kind of processor"),
    SHORE__HEADING("The data"),
    OPTION(LIST, "data", settings.data, "FILE...",
           "UTF-8 text; records in .jsonl, .ndjson or .json; llm.c's token .bin files (16 and 32 bit); each also with "
           ".gz or .zst; or a directory, or a quoted pattern such as 'data/*.jsonl'"),
    OPTION(LIST, "val-data", settings.val_data, "FILE...", "text to validate on"),
    OPTION(TEXT, "text-field", settings.text_field, "NAME", "key of the text in a record"),
    CHOICE("bad-rows", settings.skip_bad_rows, "stop|skip",
           "at a record that is not valid JSON or has no such text: stop and name it, or leave it out and count"),
    OPTION(REAL, "val-share", settings.val_share, "X", "share of the data, from its end, to validate on instead"),
    CHOICE(
        "special-tokens", settings.parse_special, "text|parse",
        "in the data; parse: those of the tokenizer get their ids, as in chats that a template has rendered; never do "
        "so with text that strangers wrote"),
    OPTION(U32, "seq-len", settings.seq_len, "N", "tokens of a sequence; otherwise the model's, at most 1024",
           .least = 1, .most = SHORE__TOKENS_MOST),
    OPTION(U32, "batch", settings.batch, "N", "sequences per step", .least = 1, .most = SHORE__TOKENS_MOST),
    CHOICE("shuffle", settings.shuffle, "off|on", "sequences in an order that follows from the seed alone"),
    SHORE__HEADING("Where the state lives, and what it may take"),
    OPTION(LIST, "drive", settings.drives, "PATH...",
           "for each drive a directory or block device that is there, or a file (new ones have a suffix: "
           "state.volume); or "
           "ram:; with --resume OLD=NEW: where a drive is now"),
    OPTION(TEXT, "drive-speeds", settings.drive_speeds, "A,B,...",
           "speeds of the drives (2,1 or 2.8GB,1.4GB), which decide their shares; otherwise measured"),
    OPTION(SIZE, "memory", settings.memory_bytes, "SIZE",
           "the budget, a promise about resident memory; otherwise half of the machine's, at most what is useful"),
    OPTION(TEXT, "out", out, "RUN", "the run directory to make"),
    OPTION(TEXT, "resume", resume, "RUN",
           "go on with a run; --steps extends it, resources and the schedule may change, the identity may not"),
    OPTION(FLAG, "overwrite", overwrite, NULL,
           "replace an existing run with its volumes, a volume or device content (never what another run has locked)"),
    SHORE__NOT_A_COPY(struct shore__train_args, itself),
    OPTION(U64, "accept-step", accept_step, "N",
           "with --resume: go on from whole step N, the one before, although the newest is damaged; every byte is read "
           "first"),
    OPTION(FLAG, "dry-run", dry_run, NULL,
           "print the minimum memory, what --memory keeps and the disk space needed, and make nothing"),
    OPTION(FLAG, "json", json, NULL, "with --dry-run: one JSON object on one line"),
    SHORE__HEADING("How long"),
    OPTION(U64, "steps", settings.steps, "N", "optimizer steps; the schedule ends there; otherwise 1000", .least = 1,
           .most = SHORE__STEPS_MOST),
    OPTION(REAL, "epochs", settings.epochs, "X", "passes over the data, instead of --steps"),
    OPTION(U64, "snapshot-every", settings.snapshot_every, "N",
           "keep a snapshot every N steps, named step-000100 and so on: see longshore rollback"),
    OPTION(U64, "keep", settings.keep, "K", "of those, the newest K; otherwise all"),
    OPTION(U64, "stop-at", settings.stop_at, "STEP", "a clean stop after this step, the schedule unchanged"),
    SHORE__HEADING("Optimizer and schedule (PyTorch's definitions)"),
    CHOICE("optimizer", settings.optimizer, "adamw|adam|sgd|adagrad", "weight decay applies to matrices only"),
    CHOICE("moments", settings.moments, "fp32|8bit",
           "8bit: 12 bytes moved a parameter instead of 24; bitsandbytes' block-wise codes, small tensors in fp32"),
    OPTION(REAL, "lr", settings.lr, "X",
           "learning rate; otherwise chosen for optimizer and model (AdamW: 0.0003, 0.00005 with --model)"),
    OPTION(REAL, "min-lr", settings.min_lr, "X", "where cosine and linear end; otherwise a tenth of --lr"),
    OPTION(
        U64, "warmup", settings.warmup, "N",
        "steps of linear warm-up; otherwise 2 % of the steps; with --init 100 at least, or a third of fewer than 300",
        .most = SHORE__STEPS_MOST),
    CHOICE("schedule", settings.schedule, "constant|linear|cosine", "after the warm-up"),
    OPTION(REAL, "beta1", settings.beta1, "X", "Adam, AdamW"),
    OPTION(REAL, "beta2", settings.beta2, "X", "Adam, AdamW (default 0.95, with --compress 0.999)"),
    OPTION(REAL, "eps", settings.eps, "X", "Adam, AdamW, AdaGrad"),
    OPTION(REAL, "momentum", settings.momentum, "X", "SGD"),
    OPTION(REAL, "weight-decay", settings.weight_decay, "X", "of tensors of two or more dimensions"),
    OPTION(REAL, "clip", settings.clip, "X", "largest norm of all gradients together; 0: no clipping"),
    CHOICE("on-nonfinite", settings.skip_nonfinite, "stop|skip", "when a loss or gradient is not finite"),
    SHORE__HEADING("Gradients on their way to the drives"),
    CHOICE("grad-precision", settings.gradient_bf16, "fp32|bf16", "of gradients that are sent whole"),
    OPTION(SHARE, "compress", settings.compress, "SHARE",
           "send only the largest elements of each block's gradient: top1% (or 0.01)"),
    CHOICE("compress-values", settings.compress_fp32, "bf16|fp32", "of the elements that are sent"),
    OPTION(U64, "compress-after", settings.compress_after, "N", "send whole gradients in the first N steps"),
    CHOICE("compress-variance", settings.frozen_variance, "live|frozen",
           "Adam, AdamW: frozen leaves v as the last step with whole gradients made it (1-bit Adam's way)"),
    CHOICE("error-feedback", settings.error_feedback, "off|on", "add what was not sent to the next gradient"),
    CHOICE("residual", settings.residual_saved, "host|saved",
           "where that is kept: in memory, lost at a crash; or on the drives, as safe as the weights"),
    SHORE__HEADING("The machine"),
    OPTION(U32, "threads", settings.threads, "N",
           "compute threads; otherwise one for each processor that a container's limits leave",
           .most = SHORE__THREADS_MOST),
    OPTION(SIZE, "chunk-size", settings.chunk_bytes, "SIZE",
           "bytes that UPDATE reads at once; otherwise chosen; never changes a bit", .most = SHORE__CHUNK_BYTES_MOST),
    CHOICE("io", settings.io, "auto|uring|threads|buffered", "how drives are read and written"),
    OPTION(REAL, "reconnect-timeout", settings.reconnect_seconds, "SECONDS",
           "how long to wait for a drive on another host that is gone; the step is then computed again"),
    CHOICE("speculate", settings.speculate, "auto|on|off", "update before the gradient norm is known"),
    CHOICE(
        "offload", settings.offload, "auto|on|off",
        "inner activations that memory has no room for go to the drives and come back, instead of being computed "
        "again; auto: where that takes less time; the volumes are made with room for them, up to 12 bytes a parameter"),
    CHOICE("update", settings.host_update, "drive|host",
           "where UPDATE runs; host: state and gradients cross the link, as in ZeRO-Infinity, for comparison"),
    OPTION(TEXT, "emulate", settings.emulate, "FILE",
           "take as long as the machine would that FILE describes, or smart-infinity; with --resume, none ends it"),
    SHORE__HEADING("What is shown"),
    OPTION(U64, "eval-every", settings.eval_every, "N", "measure the validation loss every N steps, and at the end"),
    OPTION(U64, "sample-every", settings.sample_every, "N", "show generated text every N steps"),
    OPTION(
        PACE, "log-every", settings.log_every, "N|TIME",
        "steps (10) or time (30s, 5m) between progress lines where there is no terminal; the first and the last step "
        "always have one",
        .most = SHORE__STEPS_MOST),
    OPTION(FLAG, "quiet", settings.quiet, NULL, "no progress and no summary"),
};

const struct shore__command_line shore__train_line = {
    .command = "train",
    .remote = true,
    .synopsis = "train --init NAME|--model DIR --data FILE... --drive PATH... --memory SIZE --steps N --out RUN\n"
                "train --resume RUN [--steps N] [--memory SIZE] [--threads N] [--drive OLD=NEW]",
    .about = "Trains a language model whose weights, gradients and optimizer state live on drives, inside a memory\n"
             "budget. Every step is a checkpoint: after a crash, --resume goes on from the last committed step.",
    .notes =
        "The last line on standard output is 'step N digest HEX', a hash of all parameters and optimizer state.\n"
        "SIGINT, SIGTERM and SIGHUP (unless ignored, as under nohup) finish and commit the step, say how to go on,\n"
        "and exit 0; a second SIGINT or SIGTERM stops at once.\n"
        "RUN/metrics.jsonl gets one JSON object for each step.\n"
        "Documents (files, records) are joined with the tokenizer's end of text. What looks like a special\n"
        "token inside of them is text like any other, unless --special-tokens parse says otherwise.",
    .options = options,
    .noptions = sizeof options / sizeof options[0],
    .config = true,
};

/* verify adds one */
_Static_assert(sizeof options / sizeof options[0] < SHORE__OPTIONS_MAX, "grow SHORE__OPTIONS_MAX");

void shore__train_args_init(struct shore__train_args *args) {
    *args = (struct shore__train_args){0};
    shore__settings_defaults(&args->settings);
}

void shore__train_args_free(struct shore__train_args *args) {
    shore__settings_free(&args->settings);
    free(args->out);
    free(args->resume);
    *args = (struct shore__train_args){0};
}

static bool given(const struct shore__parsed *parsed, const char *name) {
    return shore__option_given(&shore__train_line, parsed, name);
}

static bool same_value(const struct shore__option *o, const void *a, const void *b);

/* What a file gives as it would be without says nothing: `inspect --json` has all settings, and --config takes them. */
static bool said(const struct shore__parsed *parsed, const struct shore__settings *s, const char *name) {
    struct shore__settings defaults;
    int i = shore__option_find(&shore__train_line, name);
    if (i < 0 || parsed->given[i] != SHORE__GIVEN_CONFIG) return i >= 0 && parsed->given[i] != SHORE__GIVEN_NOT;
    size_t at = options[i].offset - AT(settings);
    shore__settings_defaults(&defaults);
    return !same_value(&options[i], (const char *)&defaults + at, (const char *)s + at);
}

/* A script that tries one optimizer after the other may give all of them the same flags. */
static void say_what_has_no_effect(const struct shore__parsed *parsed, const struct shore__settings *s) {
    bool sgd = s->optimizer == SHORE_SGD, adam = !sgd && s->optimizer != SHORE_ADAGRAD;
    const char *optimizer = sgd ? "--optimizer sgd" : adam ? "--optimizer adam or adamw" : "--optimizer adagrad";
    const struct {
        const char *flag;
        bool used;
        const char *with;
    } rules[] = {
        {"beta1", adam, optimizer},
        {"beta2", adam, optimizer},
        {"eps", !sgd, optimizer},
        {"min-lr", s->schedule != SHORE__CONSTANT, "--schedule constant"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (!rules[i].used && said(parsed, s, rules[i].flag))
            shore__cli_say("--%s has no effect with %s", rules[i].flag, rules[i].with);
}

int shore__train_check_given(const struct shore__parsed *parsed, const struct shore__settings *s, bool validates,
                             struct shore_diag *diag) {
    const char *uncompressed = "without --compress: give that too";
    bool compresses = s->compress > 0 || said(parsed, s, "compress");
    const struct {
        const char *flag;
        bool means_nothing;
        const char *why;
    } rules[] = {
        {"compress-values", !compresses, uncompressed},
        {"compress-variance", !compresses, uncompressed},
        {"error-feedback", !compresses, uncompressed},
        {"residual", !compresses, uncompressed},
        {"keep", s->keep && !s->snapshot_every, "without --snapshot-every: give that too"},
        {"eval-every", s->eval_every && !validates, "without validation data: give --val-data or --val-share"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].means_nothing && said(parsed, s, rules[i].flag))
            return shore__fail(diag, SHORE_EUSAGE, "--%s means nothing %s, or leave it out", rules[i].flag,
                               rules[i].why);
    say_what_has_no_effect(parsed, s);
    return 0;
}

#define STEP_TOKENS_MOST (1u << 28)

int shore__train_resolve(struct shore__train_args *args, const struct shore__model *model, struct shore_diag *diag) {
    shore__settings_fit(&args->settings, model, 0);
    int rc = shore__cli_check_length(&model->arch, args->settings.seq_len, diag);
    if (rc) return rc;
    if ((uint64_t)args->settings.batch * args->settings.seq_len > STEP_TOKENS_MOST)
        return shore__fail(diag, SHORE_EUSAGE, "--batch %u times --seq-len %u: a step takes %u tokens at most",
                           args->settings.batch, args->settings.seq_len, STEP_TOKENS_MOST);
    return 0;
}

/* What --resume may change: of the schedule, and whose times are reported (recorded at that step), and of resources and
 * reporting (not worth a record). Everything else is the run's identity. */
static const char *const schedule_flags[] = {"steps", "lr",           "min-lr",  "warmup",   "schedule",
                                             "beta1", "beta2",        "eps",     "momentum", "weight-decay",
                                             "clip",  "on-nonfinite", "threads", "emulate",  NULL};
static const char *const resource_flags[] = {
    "reconnect-timeout", "snapshot-every", "keep",   "memory",  "chunk-size", "io",
    "speculate",         "offload",        "update", "stop-at", "eval-every", "sample-every",
    "log-every",         "quiet",          NULL};
static const char *const other_flags[] = {"resume",  "drive", "accept-step", "not-a-copy",
                                          "dry-run", "json",  "out",         NULL};

static bool among(const char *const *names, const char *name) {
    for (; *names; names++)
        if (strcmp(*names, name) == 0) return true;
    return false;
}

bool shore__train_is_identity(const char *key) {
    return !among(schedule_flags, key) && !among(resource_flags, key) && !among(other_flags, key) &&
           strcmp(key, "drive-speeds") != 0 && strcmp(key, "epochs") != 0;
}

static size_t size_of(const struct shore__option *o) {
    switch (o->kind) {
    case SHORE__OPTION_FLAG:
        return sizeof(bool);
    case SHORE__OPTION_U32:
        return sizeof(uint32_t);
    case SHORE__OPTION_SIZE:
    case SHORE__OPTION_U64:
        return sizeof(uint64_t);
    case SHORE__OPTION_REAL:
    case SHORE__OPTION_SHARE:
        return sizeof(double);
    case SHORE__OPTION_PACE:
        return sizeof(struct shore__pace);
    case SHORE__OPTION_CHOICE:
        return o->bytes;
    default:
        return 0;
    }
}

static bool same_text(const char *a, const char *b) {
    if (!a && b && strcmp(b, "none") == 0) return true; /* --emulate none: nothing is emulated */
    if (!a || !b) return a == b;
    if (strcmp(a, b) == 0) return true;
    char *ra = realpath(a, NULL), *rb = realpath(b, NULL);
    bool same = ra && rb && strcmp(ra, rb) == 0;
    free(ra);
    free(rb);
    return same;
}

static bool same_value(const struct shore__option *o, const void *a, const void *b) {
    if (o->kind == SHORE__OPTION_TEXT) return same_text(*(char *const *)a, *(char *const *)b);
    if (o->kind == SHORE__OPTION_LIST) {
        const struct shore__strings *x = a, *y = b;
        if (x->count != y->count) return false;
        for (size_t i = 0; i < x->count; i++)
            if (!same_text(x->item[i], y->item[i])) return false;
        return true;
    }
    return memcmp(a, b, size_of(o)) == 0;
}

/* "lr 0.001 -> 0.0005" */
static void describe(const struct shore__option *o, const void *old, const void *new, char *out, size_t bytes) {
    char before[64], after[64];
    const void *value[2] = {old, new};
    char *text[2] = {before, after};
    for (int i = 0; i < 2; i++) {
        if (o->kind == SHORE__OPTION_TEXT) {
            const char *v = *(char *const *)value[i];
            snprintf(text[i], sizeof before, "%s", v ? v : "none");
        } else if (o->kind == SHORE__OPTION_REAL) {
            double v = *(const double *)value[i];
            snprintf(text[i], sizeof before, isnan(v) ? "chosen" : "%g", v);
        } else if (o->kind == SHORE__OPTION_CHOICE) {
            unsigned index = 0;
            memcpy(&index, value[i], o->bytes);
            const char *c = o->choices;
            for (; index && strchr(c, '|'); index--)
                c = strchr(c, '|') + 1;
            snprintf(text[i], sizeof before, "%.*s", (int)strcspn(c, "|"), c);
        } else {
            uint64_t v = 0;
            memcpy(&v, value[i], size_of(o));
            snprintf(text[i], sizeof before, v == UINT64_MAX ? "chosen" : "%llu", (unsigned long long)v);
        }
    }
    size_t used = strlen(out);
    snprintf(out + used, bytes - used, "%s%s %s -> %s", used ? ", " : "", o->name, before, after);
}

static int replace_text(char **old, const char *new, struct shore_diag *diag) {
    char *copy = new ? strdup(new) : NULL;
    if (new && !copy) return shore__fail(diag, -ENOMEM, "out of memory");
    free(*old);
    *old = copy;
    return 0;
}

int shore__train_change(const struct shore__train_args *args, const struct shore__parsed *parsed,
                        struct shore__settings *settings, char *changes, size_t bytes, struct shore_diag *diag) {
    const size_t first = AT(settings);
    double lr = settings->lr;
    changes[0] = 0;
    for (size_t i = 0; i < shore__train_line.noptions; i++) {
        const struct shore__option *o = &options[i];
        if (o->kind == SHORE__OPTION_HEADING || !parsed->given[i] || among(other_flags, o->name)) continue;
        if (o->offset < first || o->offset >= first + sizeof *settings)
            return shore__fail(diag, SHORE_EUSAGE, "--%s does not go with --resume", o->name);
        const void *new = (const char *)args + o->offset;
        void *old = (char *)settings + (o->offset - first);
        bool scheduled = among(schedule_flags, o->name);
        if (same_value(o, old, new)) continue;
        if (strcmp(o->name, "drive-speeds") == 0)
            return shore__fail(diag, SHORE_EUSAGE,
                               "--drive-speeds decides shares when volumes are made; 'longshore drive move RUN "
                               "--drive-speeds %s' places the state anew",
                               settings->drive_speeds ? settings->drive_speeds : "A,B,...");
        if (!scheduled && !among(resource_flags, o->name))
            return shore__fail(diag, SHORE_EUSAGE,
                               "--%s belongs to the identity of the run and cannot change: leave it out, or make a new "
                               "run",
                               o->name);
        if (scheduled) describe(o, old, new, changes, bytes);
        if (o->kind == SHORE__OPTION_TEXT) {
            int rc = replace_text(old, *(char *const *)new, diag);
            if (!rc && old == &settings->emulate) rc = shore__emulation_absolute(&settings->emulate, diag);
            if (rc) return rc;
        }
        memcpy(old, new, size_of(o));
    }
    if (settings->lr != lr && settings->min_lr == lr / 10 && !given(parsed, "min-lr")) {
        double follows = settings->lr / 10; /* as it was chosen */
        describe(&options[shore__option_find(&shore__train_line, "min-lr")], &settings->min_lr, &follows, changes,
                 bytes);
        settings->min_lr = follows;
    }
    if (!given(parsed, "stop-at")) settings->stop_at = 0; /* an earlier stop must not hold the run for ever */
    return 0;
}
