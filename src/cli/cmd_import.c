#include <errno.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/train_options.h"
#include "plan/transfers.h"
#include "train/train.h"

/* Takes the flags of train, because an imported model is a run at step 0 that train --resume continues. */
static struct shore__command_line import_line(void) {
    struct shore__command_line line = shore__train_line;
    line.without = "init resume accept-step dry-run json stop-at lora tbw machine";
    line.command = "import";
    line.synopsis = "import DIR --drive PATH... --out RUN [--data FILE...] [flags of train]";
    line.about = "Puts a Hugging Face model on drives, as a run at step 0: the inverse of export. It takes the flags "
                 "of train,\nand fixes the identity of the run. train --resume RUN continues it. Without --data, the "
                 "run can be evaluated,\nexported and used to generate; the first resume then takes --data.";
    line.notes = NULL;
    line.positional = 1;
    return line;
}

static void fleet_options(const struct shore__settings *s, const struct shore__model *model,
                          struct shore_fleet_options *out) {
    struct shore__facts facts = shore__train_facts_of(s, model);
    shore__plan_fleet_options(&facts, NULL, out);
    shore__transfer_rings(out);
}

static int examine(const struct shore__settings *s, const struct shore__model *model,
                   const struct shore_fleet_options *options, char processor[SHORE__PROCESSOR_BYTES],
                   uint64_t *minimum_bytes, struct shore_diag *diag) {
    struct shore__compute_options compute = shore__settings_compute(s);
    struct shore__compute_description description;
    int rc = shore__compute_describe(&compute, NULL, &description, diag);
    if (rc) return rc;
    shore__compute_identity(&description, processor, SHORE__PROCESSOR_BYTES);
    *minimum_bytes = shore__import_bytes(model->layout, model->arch.vocab, (uint32_t)description.threads, options);
    return 0;
}

static int fill(struct shore__run *run, const struct shore__train_args *args, const char *processor,
                struct shore_fleet **fleet, unsigned char digest[16], struct shore_diag *diag) {
    struct shore_fleet_options options;
    fleet_options(&run->settings, run->model, &options);
    options.overwrite = args->overwrite;
    options.note = shore__cli_note;
    void *what = run->settings.quiet ? NULL : (void *)"importing";
    int rc = shore__train_initial_state(run, &options, processor, shore__cli_work, what, fleet, diag);
    return rc ? rc : shore_fleet_digest(*fleet, false, digest, diag);
}

static int name_model(struct shore__settings *s, const char *directory, struct shore_diag *diag) {
    if (directory && s->model)
        return shore__fail(diag, SHORE_EUSAGE, "the model is named twice: by --model and by itself");
    if (directory && !(s->model = strdup(directory))) return shore__out_of_memory(diag);
    return s->model ? 0 : shore__fail(diag, SHORE_EUSAGE, "which model? longshore import DIR --drive PATH --out RUN");
}

static int import(const struct shore__parsed *parsed, void *ctx) {
    struct shore__train_args *args = ctx;
    struct shore__settings *s = &args->settings;
    struct shore__new_run new = {0};
    struct shore_fleet *fleet = NULL;
    struct shore_fleet_options options;
    struct shore_diag diag = {0};
    unsigned char digest[16];
    char processor[SHORE__PROCESSOR_BYTES];
    uint64_t minimum_bytes = 0;
    int rc = name_model(s, parsed->positional[0], &diag);
    if (!rc) rc = shore__train_take_names(args, &diag);
    if (!rc && !s->data.count && (s->val_data.count || s->val_share > 0 || s->epochs > 0))
        rc = shore__fail(&diag, SHORE_EUSAGE, "--val-data, --val-share and --epochs need --data FILE...");
    if (!rc && !s->drives.count) rc = shore__fail(&diag, SHORE_EUSAGE, "where is the state to live? Give --drive DIR");
    if (!rc && shore__settings_in_ram(s))
        rc = shore__fail(&diag, SHORE_EUSAGE, "an import into ram: would be gone at once: name a drive");
    if (!rc && !args->out) rc = shore__fail(&diag, SHORE_EUSAGE, "where does the run go? Give --out RUN");
    bool validates = !s->data.count || s->val_data.count || s->val_share > 0; /* data may come later */
    if (!rc) rc = shore__train_model(args, parsed, validates, &new, &diag);
    if (!rc) rc = shore__cli_room_for_run(s, new.model, args->out, args->overwrite, &diag);
    if (!rc) fleet_options(s, new.model, &options);
    if (!rc) rc = examine(s, new.model, &options, processor, &minimum_bytes, &diag);
    if (!rc) rc = shore_budget(s->memory_bytes, minimum_bytes, 0, &s->memory_bytes, &diag);
    if (!rc) shore__cli_say_model(new.model, true);
    if (args->stop_on_usr1) shore__cli_stop_on_usr1();
    if (!rc) rc = shore__train_prepare(args, "longshore: stopping; once more stops at once\n", &new, &diag);
    if (!rc) rc = fill(new.run, args, processor, &fleet, digest, &diag);
    shore__cli_progress_end();
    if (!rc) printf("step 0 digest %s\n", shore__format_digest(digest).text);
    shore_fleet_close(fleet);
    return shore__train_made(args, &new, rc, &diag);
}

int shore__cli_import(int argc, char **argv) {
    const struct shore__command_line line = import_line();
    struct shore__train_args args = {0};
    return shore__train_command(&line, argc, argv, &args, import);
}
