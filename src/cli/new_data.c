/* Data that are named with --resume: the first ones of a run that was imported without, or others to go on with. */
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/train_options.h"

static int replace(struct shore__strings *list, const struct shore__strings *by) {
    int rc = 0;
    shore__strings_free(list);
    for (size_t i = 0; !rc && i < by->count; i++)
        rc = shore__strings_add(list, by->item[i]);
    return rc;
}

static int take_names(const struct shore__settings *given, struct shore__settings *s, struct shore_diag *diag) {
    return replace(&s->data, &given->data) || replace(&s->mix, &given->mix) ? shore__out_of_memory(diag) : 0;
}

/* A run imported without data takes the first data that a resume names. How they are read is a change of settings. */
static int name_data(const struct shore__train_args *args, struct shore__run *run, struct shore_diag *diag) {
    const struct shore__settings *given = &args->settings;
    struct shore__settings *s = &run->settings;
    if (!given->data.count)
        return shore__fail(diag, SHORE_EUSAGE,
                           "%s was imported without --data, so there is nothing to train on: give it now, with --data "
                           "FILE...",
                           run->path);
    if (given->epochs > 0 && !given->steps) s->epochs = given->epochs, s->steps = 0;
    return take_names(given, s, diag);
}

int shore__train_new_data(struct shore__train_args *args, struct shore__run *run, struct shore_diag *diag) {
    struct shore__settings *given = &args->settings;
    int rc = given->data.count ? shore__settings_mix(given, NULL, diag) : shore__settings_take_mix(given, diag);
    if (rc) return rc;
    if (!run->train) {
        args->new_data = true;
        return name_data(args, run, diag);
    }
    args->new_data = given->data.count && !(shore__train_same("data", given, &run->settings) &&
                                            shore__train_same("mix", given, &run->settings));
    args->new_val_data = given->val_data.count && !shore__train_same("val-data", given, &run->settings);
    if (args->new_val_data && !args->new_data)
        return shore__fail(diag, SHORE_EUSAGE,
                           "--val-data changes only with --data or --mix of other data than the run has");
    return 0;
}

static void append_names(const struct shore__settings *s, char *text, size_t bytes) {
    const struct shore__strings *names = s->mix.count ? &s->mix : &s->data;
    for (size_t i = 0; i < names->count; i++)
        shore__append(text, bytes, " %s", shore__shown(names->item[i]).text);
}

/* What validates is one of two, and the one that is given replaces the other one. */
static void replace_validation(const struct shore__settings *given, struct shore__settings *s, char *changes,
                               size_t bytes) {
    if (given->val_data.count && s->val_share > 0 && !(given->val_share > 0)) {
        shore__append(changes, bytes, ", val-share %g -> 0", s->val_share);
        s->val_share = 0;
    } else if (given->val_share > 0 && s->val_data.count && !given->val_data.count) {
        shore__append(changes, bytes, ", val-data %s -> none", shore__shown(s->val_data.item[0]).text);
        shore__strings_free(&s->val_data);
    }
}

int shore__train_take_new_data(const struct shore__train_args *args, struct shore__run *run, char *changes,
                               size_t bytes, struct shore_diag *diag) {
    struct shore__settings *s = &run->settings;
    if (!args->new_data || !run->train) return 0;
    shore__append(changes, bytes, "%sdata", *changes ? ", " : "");
    append_names(s, changes, bytes);
    shore__append(changes, bytes, " ->");
    append_names(&args->settings, changes, bytes);
    replace_validation(&args->settings, s, changes, bytes);
    return take_names(&args->settings, s, diag);
}
