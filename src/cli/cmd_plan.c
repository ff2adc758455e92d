/* `longshore plan`: what a training would take, before anything is made. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/outlook.h"
#include "cli/train_options.h"

/* Takes the flags of train: what is planned is the same command. */
static struct shore__command_line plan_line(void) {
    struct shore__command_line line = shore__train_line;
    line.without = "resume accept-step dry-run not-a-copy stopped-exit stop-on-usr1";
    line.command = "plan";
    line.synopsis = "plan --init NAME|FILE [--drive PATH...] [--machine NAME|FILE] [--memory SIZE] [flags of train]\n"
                    "plan --model DIR ...";
    line.about = "Says what a training would take before anything is made: memory, disk, time, what the drives write,\n"
                 "and what a change would buy. It takes the flags of train. Of a model it needs config.json alone: no\n"
                 "weights, no tokenizer and no data.";
    line.notes = "Exit code 2: the budget is below the minimum, or the drives that --drive or --machine names have no\n"
                 "room. docs/outputs.md has the keys of --json.";
    return line;
}

/* The model alone: neither weights nor tokenizer. A directory stands for its config.json. */
static int find_model(struct shore__settings *s, struct shore__model **out, struct shore_diag *diag) {
    struct shore__tokenizer *tokenizer = NULL;
    int rc = s->tokenizer ? shore__run_tokenizer_of(s, &tokenizer, diag) : 0;
    struct stat st;
    char *model = s->model && stat(s->model, &st) == 0 && S_ISDIR(st.st_mode) ? s->model : NULL;
    if (model) s->init = model, s->model = NULL;
    if (!rc) rc = shore__run_model(s, tokenizer, out, diag);
    if (model) s->model = model, s->init = NULL;
    shore__tokenizer_close(tokenizer);
    return rc;
}

/* Room of the drives: of those that are named, or of the machine's. */
static int check_room(struct shore__train_args *a, bool named, const struct shore__outlook *o,
                      struct shore_diag *diag) {
    uint64_t room = 0;
    if (named) return shore__cli_room_for_run(&a->settings, o->model, a->out, a->overwrite, diag);
    for (uint32_t d = 0; o->named && d < o->machine->ndrives; d++) {
        if (!o->machine->drive[d].room) return 0;
        room += o->machine->drive[d].shares ? 0 : o->machine->drive[d].room;
    }
    return room ? shore__making_refuse_room(room, o->forecast.disk_bytes, diag) : 0;
}

static int check(struct shore__train_args *a, const struct shore__parsed *parsed, struct shore__model **model,
                 struct shore_diag *diag) {
    struct shore__settings *s = &a->settings;
    int rc = shore__train_take_names(a, diag);
    if (!rc) rc = shore__train_check_given(parsed, s, s->val_data.count || s->val_share > 0, diag);
    if (!rc) rc = shore__settings_check(s, diag);
    if (!rc) rc = find_model(s, model, diag);
    if (!rc) rc = shore__train_resolve(a, *model, diag);
    return rc ? rc : shore__cli_check_tbw(a->tbw_bytes, diag);
}

/* Of a machine that is named, a plan is the same wherever it is made. */
static void take_threads(struct shore__settings *s, struct shore__plan_rates *rates) {
    if (!rates->named || s->threads) return;
    s->threads = rates->machine->cores ? rates->machine->cores : SHORE__CORES_ASSUMED;
    if (!rates->machine->cores)
        shore__append(rates->from, sizeof rates->from, ", with %u threads, which are assumed", s->threads);
}

/* Prints the figures, for programs or for people. Takes them. Returns the exit code. */
static int print(json_t *figures, bool as_json) {
    if (as_json) return shore__cli_print_json(figures);
    char *json = json_dumps(figures, 0), *text = json ? shore_plan_table(json) : NULL;
    if (text) fputs(text, stdout);
    fflush(stdout); /* before what is said on standard error */
    free(json);
    free(text);
    json_decref(figures);
    return text ? SHORE__EXIT_DONE : shore__cli_fail(-ENOMEM, NULL);
}

static int plan(const struct shore__parsed *parsed, void *ctx) {
    struct shore__train_args *a = ctx;
    struct shore__settings *s = &a->settings;
    struct shore__model *model = NULL;
    struct shore__plan_rates rates = {NULL};
    struct shore_diag diag = {0}, no_room = {0};
    struct shore__plan_report report = {.tbw_bytes = a->tbw_bytes};
    bool named = a->drives.count > 0;
    int code = SHORE__EXIT_DONE, room = 0, rc = check(a, parsed, &model, &diag);
    if (!rc) rc = shore__plan_rates_open(a->machine, s, a->machine != NULL, &rates, &diag);
    if (!rc) take_threads(s, &rates);
    if (!rc && !named) rc = shore__outlook_assume_drives(s, &rates, &diag);
    s->machine = rates.machine;
    struct shore__outlook o = {.settings = s, .model = model, .machine = rates.machine, .named = rates.named};
    if (!rc && named) room = check_room(a, named, &o, &no_room);
    if (!rc) rc = shore__outlook_make(&o, false, &diag);
    if (!rc && !named) room = check_room(a, named, &o, &no_room);
    if (!rc) rc = shore__outlook_report(&o, &report, &diag);
    report.rates = rates.from;
    if (!rc) code = print(shore__plan_json(&report), a->json);
    shore__plan_rates_close(&rates);
    shore__model_free(model);
    if (rc) return shore__cli_fail(rc, &diag);
    return room ? shore__cli_fail(room, &no_room) : code;
}

int shore__cli_plan(int argc, char **argv) {
    struct shore__command_line line = plan_line();
    struct shore__train_args args = {0};
    return shore__train_command(&line, argc, argv, &args, plan);
}
