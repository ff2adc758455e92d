/* The flags of `train`, and how they become settings. */
#ifndef SHORE_CLI_TRAIN_OPTIONS_H
#define SHORE_CLI_TRAIN_OPTIONS_H

#include "cli/options.h"
#include "run/run.h"

struct shore__train_args {
    struct shore__settings settings;
    struct shore__strings drives; /* words of --drive: addresses, or with --resume OLD=NEW */
    char *out, *resume;
    uint64_t accept_step;
    bool itself;            /* whatever it was made as, RUN is no copy */
    const uint64_t *accept; /* NULL: not given */
    bool overwrite, dry_run, json;
};

extern const struct shore__command_line shore__train_line;

void shore__train_args_init(struct shore__train_args *args);
/* What --drive says becomes a setting: of a run that is to be made. */
int shore__train_take_drives(struct shore__train_args *args, struct shore_diag *diag);

/* Refuses a flag that is given and means nothing with the settings that hold, or says that it has no effect. validates:
 * there are data to do it on. */
int shore__train_check_given(const struct shore__parsed *parsed, const struct shore__settings *settings, bool validates,
                             struct shore_diag *diag);
/* The tokenizer and the model of a run that is to be made, once the settings are checked so; what is not given and
 * follows from the model is filled in. */
int shore__train_model(struct shore__train_args *args, const struct shore__parsed *parsed, bool validates,
                       struct shore__tokenizer **tokenizer, struct shore__model **model, struct shore_diag *diag);
/* Takes over what a resumed run may change from args into settings; what belongs to its identity is refused unless it
 * is the same. changes: what to record, a sentence part ("lr 0.001 -> 0.0005, steps 10 -> 20"), or "". */
int shore__train_change(const struct shore__train_args *args, const struct shore__parsed *parsed,
                        struct shore__settings *settings, char *changes, size_t bytes, struct shore_diag *diag);

#endif
