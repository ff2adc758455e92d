#include "cli/train_options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/suggest.h"
#include "base/units.h"
#include "cli/cli.h"
#include "report/tensorboard.h"
#include "run/emulation/emulate.h"
#include "run/settings_rows.h"

#define AT(field) offsetof(struct shore__train_args, field)
#define OPTION(...) SHORE__OPTION(struct shore__train_args, __VA_ARGS__)

/* Makes an option from a row of the settings table. Drives are words of the arguments: a resumed run takes OLD=NEW. */
#define IS_DRIVES(kind_) (SHORE__VALUE_##kind_ == SHORE__VALUE_PLACES)
#define SETTING(kind_, flag, field, role, initial, chosen, least_, most_, word, text)                                 \
    {.name = flag,                                                                                                    \
     .value = word,                                                                                                   \
     .help = text,                                                                                                    \
     .offset = IS_DRIVES(kind_) ? AT(drives) : AT(settings.field),                                                    \
     .is = {SHORE__VALUE_OF(IS_DRIVES(kind_) ? SHORE__VALUE_LIST : SHORE__VALUE_##kind_, kind_, field, least_, most_, \
                            word)}},

// clang-format off
static const struct shore__option options[] = {
    SHORE__HEADING("The model"),
    SHORE__SETTINGS_OF_MODEL(SETTING)
    SHORE__HEADING("The data"),
    SHORE__SETTINGS_OF_DATA(SETTING)
    SHORE__HEADING("Where the state lives, and what it may take"),
    SHORE__SETTINGS_OF_STATE(SETTING)
    OPTION(TEXT, "out", out, "RUN", "the run directory to make"),
    OPTION(TEXT, "resume", resume, "RUN",
           "go on with a run; --steps extends it, resources and the schedule may change, the identity may not"),
    OPTION(FLAG, "overwrite", overwrite, NULL,
           "replace an existing run with its volumes, and the contents of files and devices that --drive names; never the state of another run"),
    SHORE__NOT_A_COPY(struct shore__train_args, itself),
    OPTION(WHOLE, "accept-step", accept_step, "N",
           "with --resume: go on from whole step N, the one before, although the newest is damaged; every byte is read "
           "first"),
    OPTION(FLAG, "dry-run", dry_run, NULL,
           "print the minimum memory, what --memory keeps and the disk space needed, and make nothing; exit code 2 if "
           "memory, a drive or its room is missing"),
    OPTION(FLAG, "json", json, NULL, "one JSON object on one line; train takes it with --dry-run"),
    SHORE__TBW_OPTION(struct shore__train_args, tbw_bytes),
    SHORE__HEADING("How long"),
    SHORE__SETTINGS_OF_LENGTH(SETTING)
    OPTION(WHOLE, "stopped-exit", stopped_exit, "CODE",
           "exit code if a signal stopped it before its last step, for schedulers that start again what did not end with 0 (default 0)",
           .is.most = 255),
    OPTION(FLAG, "stop-on-usr1", stop_on_usr1, NULL,
           "SIGUSR1 stops it as SIGTERM does, for schedulers that warn with it (Slurm: --signal=B:USR1@300)"),
    SHORE__HEADING("Optimizer and schedule (PyTorch's definitions)"),
    SHORE__SETTINGS_OF_OPTIMIZER(SETTING)
    SHORE__HEADING("Gradients on their way to the drives"),
    SHORE__SETTINGS_OF_GRADIENTS(SETTING)
    SHORE__HEADING("The machine"),
    OPTION(TEXT, "machine", machine, "NAME|FILE",
           "plan with the rates of the machine that FILE describes (longshore machine --json makes one), or of one that "
           "is known by NAME; plan takes its memory and drives, too"),
    SHORE__SETTINGS_OF_MACHINE(SETTING)
    SHORE__HEADING("What is shown"),
    SHORE__SETTINGS_OF_REPORTS(SETTING)
};
// clang-format on

const struct shore__command_line shore__train_line = {
    .command = "train",
    .remote = true,
    .without = "tbw",
    .synopsis = "train --init NAME|--model DIR --data FILE... --drive PATH... --memory SIZE --steps N --out RUN\n"
                "train --resume RUN [--steps N] [--memory SIZE] [--threads N] [--drive OLD=NEW]",
    .about = "Trains a language model whose weights, gradients and optimizer state live on drives, inside a memory\n"
             "budget. Every step is a checkpoint: after a crash, --resume goes on from the last committed step.",
    .notes =
        "The last line on standard output is 'step N digest HEX', a hash of all parameters and optimizer state.\n"
        "SIGINT, SIGTERM and SIGHUP (unless ignored, as under nohup) finish and commit the step, say how to go on,\n"
        "and exit 0, or as --stopped-exit says; a second SIGINT or SIGTERM stops at once.\n"
        "RUN/metrics.jsonl gets one JSON object for each step.\n"
        "Documents (files, records) are joined with the tokenizer's end of text. What looks like a special\n"
        "token inside of them is text like any other, unless --special-tokens parse says otherwise.",
    SHORE__OPTIONS(options),
    .config = true,
};

/* verify adds one */
_Static_assert(sizeof options / sizeof options[0] < SHORE__OPTIONS_MAX, "grow SHORE__OPTIONS_MAX");

int shore__train_command(const struct shore__command_line *line, int argc, char **argv, struct shore__train_args *args,
                         int (*run)(const struct shore__parsed *parsed, void *args)) {
    shore__settings_defaults(&args->settings);
    int code = shore__cli_command(line, argc, argv, args, run);
    shore__settings_free(&args->settings);
    return code;
}

int shore__train_take_names(struct shore__train_args *args, struct shore_diag *diag) {
    int rc = 0;
    for (size_t i = 0; !rc && i < args->drives.count; i++)
        rc = shore__addresses_parse(&args->settings.drives, args->drives.item[i], diag);
    return rc || args->settings.data.count ? rc : shore__settings_take_mix(&args->settings, diag);
}

static bool given(const struct shore__parsed *parsed, const char *name) {
    return shore__option_given(&shore__train_line, parsed, name);
}

static bool same_value(const struct shore__option *o, const void *a, const void *b);

/* Whether a value in a file counts as given. One that equals the default does not: `inspect --json` has all settings,
 * and --config takes them. */
static bool said(const struct shore__parsed *parsed, const struct shore__settings *s, const char *name) {
    struct shore__settings defaults;
    int i = shore__option_find(&shore__train_line, name);
    if (i < 0 || parsed->given[i] != SHORE__GIVEN_CONFIG) return i >= 0 && parsed->given[i] != SHORE__GIVEN_NOT;
    size_t at = options[i].offset - AT(settings);
    shore__settings_defaults(&defaults);
    return !same_value(&options[i], (const char *)&defaults + at, (const char *)s + at);
}

/* A script that tries several optimizers may give all of them the same flags. */
static void say_what_has_no_effect(const struct shore__parsed *parsed, const struct shore__settings *s) {
    const struct shore__optimizer *o = shore__optimizer(s->optimizer);
    char optimizer[64];
    snprintf(optimizer, sizeof optimizer, "--optimizer %s", o->name);
    const struct {
        const char *flag;
        bool used;
        const char *with;
    } rules[] = {
        {"beta1", o->has_betas, optimizer},
        {"beta2", o->has_betas, optimizer},
        {"eps", o->divides, optimizer},
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
        {"error-feedback", !compresses, uncompressed},
        {"residual", !compresses, uncompressed},
        {"keep", s->keep && !s->snapshot_every, "without --snapshot-every: give that too"},
        {"eval-every", s->eval_every && !validates, "without validation data: give --val-data or --val-share"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].means_nothing && said(parsed, s, rules[i].flag))
            return shore__fail(diag, SHORE_EUSAGE, "--%s means nothing %s, or leave it out", rules[i].flag,
                               rules[i].why);
    if ((s->keep_best || s->stop_after_no_gain) && !(validates && s->eval_every))
        return shore__fail(diag, SHORE_EUSAGE,
                           "--%s goes by validation losses: give --val-data or --val-share, and --eval-every N",
                           s->keep_best ? "keep-best" : "stop-after-no-gain");
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
    struct shore__settings *s = &args->settings;
    if (s->model && !s->updates_before && !s->lora)
        rc = shore__moments_updates(s->model, s->optimizer, &s->updates_before, diag);
    if (rc || !s->adapter || !s->updates_before) return rc;
    return shore__fail(diag, SHORE_EUSAGE,
                       "--adapter: %s holds moments of its own weights, not of the merged ones: remove their directory",
                       shore__shown(s->model).text);
}

int shore__train_model(struct shore__train_args *args, const struct shore__parsed *parsed, bool validates,
                       struct shore__new_run *new, struct shore_diag *diag) {
    struct shore__settings *s = &args->settings;
    int rc = shore__train_check_given(parsed, s, validates, diag);
    if (!rc) rc = shore__settings_check(s, diag);
    if (!rc) rc = shore__tensorboard_settle(&s->tensorboard, diag);
    if (!rc && s->lora && !s->model)
        rc = shore__fail(diag, SHORE_EUSAGE,
                         "--lora needs --model: adapters of random weights are of no use without them");
    if (!rc) rc = shore__run_tokenizer_of(s, &new->tokenizer, diag);
    if (!rc) rc = shore__run_model(s, new->tokenizer, &new->model, diag);
    return rc ? rc : shore__train_resolve(args, new->model, diag);
}

int shore__train_prepare(const struct shore__train_args *args, const char *promise, struct shore__new_run *new,
                         struct shore_diag *diag) {
    const struct shore__settings *s = &args->settings;
    shore__cli_say_tokenizer(s, new->tokenizer, new->model);
    if (!s->quiet) shore__cli_say_drives(&s->drives, true);
    shore__cli_catch_signals(promise);
    int rc = args->itself ? shore__run_claim(args->out, diag) : 0;
    if (!rc)
        rc = shore__run_prepare(args->out, s, new->model, new->tokenizer, args->overwrite, shore__cli_work,
                                s->quiet ? NULL : (void *)"reading the text", &new->run, diag);
    shore__cli_progress_end();
    if (rc) return rc;
    new->model = NULL;
    new->tokenizer = NULL;
    if (new->run->note) shore__cli_say("%s", new->run->note);
    return 0;
}

int shore__train_made(const struct shore__train_args *args, struct shore__new_run *new, int rc,
                      const struct shore_diag *diag) {
    int code = SHORE__EXIT_DONE;
    shore__cli_progress_end();
    if (rc == -ECANCELED) {
        shore__cli_say("stopped before the run was made: the same command makes it again");
        code = (int)args->stopped_exit;
    } else if (rc) {
        code = new->run ? shore__cli_fail_making(new->run, rc, diag) : shore__cli_fail(rc, diag);
    }
    shore__run_close(new->run);
    shore__cli_say_half_replaced(args->out);
    shore__model_free(new->model);
    shore__tokenizer_close(new->tokenizer);
    return code;
}

/* Flags that are no settings, and drives, which are handled elsewhere. */
static const char other_flags[] =
    "resume drive accept-step not-a-copy dry-run json out stopped-exit stop-on-usr1 machine";

static bool same_text(const char *a, const char *b) {
    if (!a && b && strcmp(b, "none") == 0) return true; /* --emulate none: no emulation */
    if (!a || !b) return a == b;
    if (strcmp(a, b) == 0) return true;
    char *ra = realpath(a, NULL), *rb = realpath(b, NULL);
    bool same = ra && rb && strcmp(ra, rb) == 0;
    free(ra);
    free(rb);
    return same;
}

static bool same_value(const struct shore__option *o, const void *a, const void *b) {
    size_t n[2];
    const char *const *x = shore__value_texts(&o->is, a, &n[0]), *const *y = shore__value_texts(&o->is, b, &n[1]);
    if (o->is.kind == SHORE__VALUE_TEXT) return same_text(*x, *y);
    if (o->is.kind != SHORE__VALUE_LIST) return memcmp(a, b, o->is.bytes) == 0;
    bool same = n[0] == n[1];
    for (size_t i = 0; same && i < n[0]; i++)
        same = same_text(x[i], y[i]);
    return same;
}

bool shore__train_same(const char *name, const struct shore__settings *a, const struct shore__settings *b) {
    const struct shore__option *o = &options[shore__option_find(&shore__train_line, name)];
    size_t at = o->offset - AT(settings);
    return same_value(o, (const char *)a + at, (const char *)b + at);
}

/* What may change with the data. */
static const char data_flags[] = "val-data val-share text-field loss-on pack bad-rows special-tokens";

/* "lr 0.001 -> 0.0005" */
static void describe(const struct shore__option *o, const void *old, const void *new, char *out, size_t bytes) {
    char from[64], to[64];
    shore__value_text(&o->is, old, from, sizeof from);
    shore__value_text(&o->is, new, to, sizeof to);
    shore__append(out, bytes, "%s%s %s -> %s", *out ? ", " : "", o->name, *from ? from : "none", to);
}

int shore__train_change(const struct shore__train_args *args, const struct shore__parsed *parsed,
                        struct shore__settings *settings, char *changes, size_t bytes, struct shore_diag *diag) {
    const size_t first = AT(settings);
    double lr = settings->lr;
    changes[0] = 0;
    for (size_t i = 0; i < shore__train_line.noptions; i++) {
        const struct shore__option *o = &options[i];
        if (o->is.kind == SHORE__VALUE_NONE || !parsed->given[i] || shore__has_word(other_flags, o->name)) continue;
        if (o->offset < first || o->offset >= first + sizeof *settings)
            return shore__fail(diag, SHORE_EUSAGE, "--%s does not go with --resume", o->name);
        const void *new = (const char *)args + o->offset;
        void *old = (char *)settings + (o->offset - first);
        enum shore__setting_role role = shore__role_of_setting(o->name);
        bool recorded = role == SHORE__SCHEDULE || role == SHORE__RECORDED ||
                        (args->new_data && shore__has_word(data_flags, o->name));
        if (args->new_data && shore__has_word("data mix", o->name)) continue;
        if (same_value(o, old, new)) continue;
        if (strcmp(o->name, "drive-speeds") == 0)
            return shore__fail(diag, SHORE_EUSAGE,
                               "--drive-speeds decides shares when volumes are made; 'longshore drive move RUN "
                               "--drive-speeds %s' places the state anew",
                               settings->drive_speeds ? settings->drive_speeds : "A,B,...");
        if (!recorded && role != SHORE__RESOURCE)
            return shore__fail(diag, SHORE_EUSAGE,
                               "--%s belongs to the identity of the run and cannot change: leave it out, or make a new "
                               "run",
                               o->name);
        if (recorded) describe(o, old, new, changes, bytes);
        if (shore__value_copy(&o->is, new, old)) return shore__out_of_memory(diag);
        int rc = old == &settings->emulate ? shore__emulation_absolute(&settings->emulate, diag) : 0;
        if (rc) return rc;
    }
    if (settings->lr != lr && settings->min_lr == lr / 10 && !given(parsed, "min-lr")) {
        double follows = settings->lr / 10; /* when it was chosen */
        describe(&options[shore__option_find(&shore__train_line, "min-lr")], &settings->min_lr, &follows, changes,
                 bytes);
        settings->min_lr = follows;
    }
    if (!given(parsed, "stop-at")) settings->stop_at = 0; /* an earlier stop must not hold the run for ever */
    return 0;
}
