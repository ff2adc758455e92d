/* Data that are named with --resume: the first ones of a run that was imported without, or others to go on with. */
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/train_options.h"

static int copy_names(const struct shore__strings *from, struct shore__strings *to) {
    int rc = 0;
    for (size_t i = 0; !rc && i < from->count; i++)
        rc = shore__strings_add(to, from->item[i]);
    return rc;
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
    if (copy_names(&given->data, &s->data) || copy_names(&given->mix, &s->mix)) return shore__out_of_memory(diag);
    return 0;
}

int shore__train_new_data(struct shore__train_args *args, const struct shore__parsed *parsed, struct shore__run *run,
                          struct shore_diag *diag) {
    const struct shore__command_line *line = &shore__train_line;
    struct shore__settings *given = &args->settings;
    bool named = shore__option_given(line, parsed, "data") || shore__option_given(line, parsed, "mix");
    int rc = given->data.count ? shore__settings_mix(given, NULL, diag) : shore__settings_take_mix(given, diag);
    if (rc) return rc;
    if (!run->train) {
        args->new_data = true;
        return name_data(args, run, diag);
    }
    args->new_data =
        named && !(shore__train_same("data", given, &run->settings) && shore__train_same("mix", given, &run->settings));
    args->new_val_data = given->val_data.count && !shore__train_same("val-data", given, &run->settings);
    if (args->new_val_data && !args->new_data)
        return shore__fail(diag, SHORE_EUSAGE,
                           "--val-data changes only with --data or --mix of other data than the run has");
    return 0;
}

static int replace(struct shore__strings *list, const struct shore__strings *by) {
    shore__strings_free(list);
    return copy_names(by, list);
}

static void append_names(const struct shore__settings *s, char *text, size_t bytes) {
    const struct shore__strings *names = s->mix.count ? &s->mix : &s->data;
    for (size_t i = 0; i < names->count; i++)
        shore__append(text, bytes, " %s", shore__shown(names->item[i]).text);
}

int shore__train_take_new_data(const struct shore__train_args *args, struct shore__run *run, char *changes,
                               size_t bytes, struct shore_diag *diag) {
    struct shore__settings *s = &run->settings;
    if (!args->new_data || !run->train) return 0;
    shore__append(changes, bytes, "%sdata", *changes ? ", " : "");
    append_names(s, changes, bytes);
    if (replace(&s->data, &args->settings.data) || replace(&s->mix, &args->settings.mix))
        return shore__out_of_memory(diag);
    shore__append(changes, bytes, " ->");
    append_names(s, changes, bytes);
    return 0;
}
