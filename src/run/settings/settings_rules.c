/* Which settings go together. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/diag.h"
#include "drive/probe/speed.h"
#include "run/internal.h"

bool shore__settings_emulated(const struct shore__settings *s) {
    return s->emulate && strcmp(s->emulate, "none") != 0;
}

bool shore__settings_in_ram(const struct shore__settings *s) {
    for (size_t i = 0; i < s->drives.count; i++)
        if (s->drives.item[i]->kind->id == SHORE__KIND_RAM) return true;
    return false;
}

int shore__settings_check(const struct shore__settings *s, struct shore_diag *diag) {
    int rc = shore__settings_in_range(s, diag);
    if (rc) return rc;
    if (!s->model && !s->init)
        return shore__fail(diag, SHORE_EUSAGE,
                           "which model? Give model, a directory, or init, a preset or a config.json");
    if (s->model && s->init)
        return shore__fail(diag, SHORE_EUSAGE, "model and init exclude each other: give one of them");
    if (s->val_data.count > 0 && s->val_share > 0)
        return shore__fail(diag, SHORE_EUSAGE, "val-data and val-share exclude each other: give one of them");
    for (size_t i = 0; i < s->drives.count && s->snapshot_every; i++)
        if (!s->drives.item[i]->kind->keeps)
            return shore__fail(diag, SHORE_EUSAGE,
                               "snapshot-every needs drives that keep something: there is nothing beside drive %s",
                               s->drives.text[i]);
    if (s->drive_speeds) {
        rc = shore__speeds_parse(s->drive_speeds, (uint32_t)s->drives.count, NULL, diag);
        if (rc) return rc;
    }
    if (s->steps > 0 && s->epochs > 0)
        return shore__fail(diag, SHORE_EUSAGE, "steps and epochs exclude each other: give one of them");
    if (s->fp32 && s->products == SHORE__PRODUCTS_BF16)
        return shore__fail(diag, SHORE_EUSAGE, "products bf16 does not go with precision fp32");
    if (!isnan(s->lr) && !isnan(s->min_lr) && s->min_lr > s->lr)
        return shore__fail(diag, SHORE_EUSAGE, "min-lr %g is above lr %g", s->min_lr, s->lr);
    const struct shore__optimizer *o = shore__optimizer(s->optimizer);
    if (s->residual_saved && !(s->compress > 0 && s->error_feedback))
        return shore__fail(diag, SHORE_EUSAGE, "residual saved is for compress with error-feedback on");
    if (s->compress_fp32 || s->frozen_variance)
        return shore__fail(diag, SHORE_EUSAGE,
                           "the run was made with compress-%s, which was removed: go on with the version that made it, "
                           "or export its weights, which a new run takes as its model",
                           s->compress_fp32 ? "values fp32" : "variance frozen");
    if (s->updates_before > 0 && !s->model)
        return shore__fail(diag, SHORE_EUSAGE, "updates-before is for moments that model DIR holds");
    if (s->host_update && s->compress > 0)
        return shore__fail(diag, SHORE_EUSAGE,
                           "update host is what others do, with whole gradients: it does not go with compress");
    if (s->compress_after > 0 && !(s->compress > 0))
        return shore__fail(diag, SHORE_EUSAGE, "compress-after is for compress");
    if (s->momentum > 0 && !o->takes_momentum)
        return shore__fail(diag, SHORE_EUSAGE, "momentum is for optimizer sgd (adam and adamw have beta1)");
    return 0;
}

static bool token_files(const struct shore__strings *files) {
    for (size_t i = 0; i < files->count; i++) {
        size_t n = strlen(files->item[i]);
        if (n < 4 || strcmp(files->item[i] + n - 4, ".bin") != 0) return false;
    }
    return true;
}

bool shore__settings_tokens_alone(const struct shore__settings *s) {
    return s->data.count && token_files(&s->data) && token_files(&s->val_data);
}

int shore__run_settle_tokenizer(struct shore__settings *s, const char *name) {
    if (s->tokenizer || strcmp(name, SHORE__BYTES) != 0 || shore__settings_tokens_alone(s)) return 0;
    return (s->tokenizer = strdup(SHORE__BYTES)) ? 0 : -ENOMEM;
}
