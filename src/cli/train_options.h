/* The flags of `train`, and their conversion to settings. */
#ifndef SHORE_CLI_TRAIN_OPTIONS_H
#define SHORE_CLI_TRAIN_OPTIONS_H

#include "cli/options.h"
#include "run/run.h"

struct shore__train_args {
    struct shore__settings settings;
    struct shore__strings drives; /* words of --drive: addresses, or OLD=NEW with --resume */
    char *out, *resume;
    uint64_t accept_step;
    bool itself;            /* RUN is not a copy, whatever its origin */
    const uint64_t *accept; /* NULL: not given */
    bool overwrite, dry_run, json, stop_on_usr1;
    bool new_data, new_val_data; /* with --resume: the run takes data that it does not have */
    uint32_t stopped_exit;
    char *machine;
    uint64_t tbw_bytes; /* of plan */
};

extern const struct shore__command_line shore__train_line;

/* Runs a command whose arguments begin with these; they are zero before. */
int shore__train_command(const struct shore__command_line *line, int argc, char **argv, struct shore__train_args *args,
                         int (*run)(const struct shore__parsed *parsed, void *args));
/* Converts --drive to a setting, and --mix to the names of the data, for a new run. */
int shore__train_take_names(struct shore__train_args *args, struct shore_diag *diag);

/* Refuses a given flag that means nothing with the other settings, or notes that it has no effect. validates: there are
 * data for validation. */
int shore__train_check_given(const struct shore__parsed *parsed, const struct shore__settings *settings, bool validates,
                             struct shore_diag *diag);
/* A run that is being made. It owns its tokenizer and model, which are then NULL here. */
struct shore__new_run {
    struct shore__tokenizer *tokenizer;
    struct shore__model *model;
    struct shore__run *run;
};
/* Opens the tokenizer and the model of a new run, after the settings were checked. Fills in settings that follow from
 * the model and were not given. */
int shore__train_model(struct shore__train_args *args, const struct shore__parsed *parsed, bool validates,
                       struct shore__new_run *new, struct shore_diag *diag);
/* Fills in settings that follow from the model and were not given; shore__train_model() does so, too. */
int shore__train_resolve(struct shore__train_args *args, const struct shore__model *model, struct shore_diag *diag);
/* Makes what a new run holds beside its state, and says what it will be. promise: what the first signal says. */
int shore__train_prepare(const struct shore__train_args *args, const char *promise, struct shore__new_run *new,
                         struct shore_diag *diag);
/* Says how making a run ended, and closes it; an unfinished one is undone. Returns the exit code. */
int shore__train_made(const struct shore__train_args *args, struct shore__new_run *new, int rc,
                      const struct shore_diag *diag);
/* Whether two settings have one value; paths of the same file are one. */
bool shore__train_same(const char *name, const struct shore__settings *a, const struct shore__settings *b);
/* new_data.c. Finds out whether the arguments of a resumed run name new data, in args. A run imported without data has
 * them in its settings afterwards. */
int shore__train_new_data(struct shore__train_args *args, struct shore__run *run, struct shore_diag *diag);
/* Then, after shore__train_change(): makes them the settings of a run that had others, and adds that to the changes. */
int shore__train_take_new_data(const struct shore__train_args *args, struct shore__run *run, char *changes,
                               size_t bytes, struct shore_diag *diag);
/* Copies what a resumed run may change from args to settings. Refuses changes of the run's identity. changes: the
 * changes to record, as part of a sentence ("lr 0.001 -> 0.0005, steps 10 -> 20"), or "". */
int shore__train_change(const struct shore__train_args *args, const struct shore__parsed *parsed,
                        struct shore__settings *settings, char *changes, size_t bytes, struct shore_diag *diag);

#endif
