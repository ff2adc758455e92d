/* Which settings go together. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/diag.h"
#include "drive/probe/speed.h"
#include "run/internal.h"
#include "run/lora.h"

bool shore__settings_emulated(const struct shore__settings *s) {
    return s->emulate && strcmp(s->emulate, "none") != 0;
}

bool shore__settings_in_ram(const struct shore__settings *s) {
    for (size_t i = 0; i < s->drives.count; i++)
        if (s->drives.item[i]->kind->id == SHORE__KIND_RAM) return true;
    return false;
}

int shore__settings_max_writes(const struct shore__settings *s, uint64_t *all, uint64_t *each,
                               struct shore_diag *diag) {
    size_t n = 0, drives = s->drives.count;
    bool none = !s->max_writes || strcmp(s->max_writes, "none") == 0, parted = !none && strchr(s->max_writes, ',');
    if (all) *all = 0;
    for (const char *at = none ? NULL : s->max_writes; at; n++) {
        char item[48];
        uint64_t most = 0;
        size_t bytes = strcspn(at, ",");
        snprintf(item, sizeof item, "%.*s", (int)(bytes < sizeof item ? bytes : sizeof item - 1), at);
        if (bytes >= sizeof item || shore__parse_size(item, &most) || most == 0)
            return shore__fail(diag, SHORE_EUSAGE, "--max-writes-per-day takes a size such as 2TB, not '%s'",
                               shore__shown(item).text);
        if (!parted && all) *all = most;
        if (parted && each && n < drives) each[n] = most;
        at = at[bytes] ? at + bytes + 1 : NULL;
    }
    if (!parted || n == drives || !drives) return 0; /* a plan may yet assume some */
    return shore__fail(diag, SHORE_EUSAGE,
                       "--max-writes-per-day %.60s: %zu sizes for %zu drive%s: give one for each, or one for all "
                       "together",
                       s->max_writes, n, drives, drives == 1 ? "" : "s");
}

int shore__settings_check(const struct shore__settings *s, struct shore_diag *diag) {
    int rc = shore__settings_in_range(s, diag);
    if (rc) return rc;
    if (!s->model && !s->init)
        return shore__fail(diag, SHORE_EUSAGE,
                           "which model? Give --model (a directory) or --init (a preset or a config.json)");
    if (s->model && s->init) return shore__fail(diag, SHORE_EUSAGE, "give --model or --init, not both");
    if (s->lora && s->freeze.count)
        return shore__fail(diag, SHORE_EUSAGE, "give --lora or --freeze: with adapters, all of the model rests");
    if (s->lora && s->updates_before)
        return shore__fail(diag, SHORE_EUSAGE,
                           "--updates-before is of moments of the model, and --lora trains adapters");
    if (s->lora && s->adapter)
        return shore__fail(diag, SHORE_EUSAGE,
                           "--lora trains adapters for --model as it is, which --adapter changes: export the merged "
                           "model, and train with --lora from that");
    if (s->adapter && !s->model)
        return shore__fail(diag, SHORE_EUSAGE, "--adapter needs --model, whose weights it changes");
    if (s->val_data.count > 0 && s->val_share > 0)
        return shore__fail(diag, SHORE_EUSAGE, "give --val-data or --val-share, not both");
    rc = shore__settings_mix(s, NULL, diag);
    if (rc) return rc;
    for (size_t i = 0; i < s->drives.count && (s->snapshot_every || s->keep_best); i++)
        if (!s->drives.item[i]->kind->keeps)
            return shore__fail(diag, SHORE_EUSAGE, "--%s needs drives that keep their data, and drive %s does not",
                               s->snapshot_every ? "snapshot-every" : "keep-best", s->drives.text[i]);
    if (s->drive_speeds) {
        rc = shore__speeds_parse(s->drive_speeds, (uint32_t)s->drives.count, NULL, diag);
        if (rc) return rc;
    }
    rc = shore__settings_max_writes(s, NULL, NULL, diag);
    if (rc) return rc;
    if (s->steps > 0 && s->epochs > 0) return shore__fail(diag, SHORE_EUSAGE, "give --steps or --epochs, not both");
    if (s->fp32 && s->products == SHORE__PRODUCTS_BF16)
        return shore__fail(diag, SHORE_EUSAGE, "--products bf16 needs --precision bf16, and it is fp32");
    if (!isnan(s->lr) && !isnan(s->min_lr) && s->min_lr > s->lr)
        return shore__fail(diag, SHORE_EUSAGE, "--min-lr %g is above --lr %g", s->min_lr, s->lr);
    const struct shore__optimizer *o = shore__optimizer(s->optimizer);
    if (s->residual_saved && !(s->compress > 0 && s->error_feedback))
        return shore__fail(diag, SHORE_EUSAGE, "--residual saved needs --compress, with --error-feedback on");
    if (s->compress_fp32 || s->frozen_variance)
        return shore__fail(diag, SHORE_EUSAGE,
                           "the run uses compress-%s, which this version no longer has: continue with the version that "
                           "made the run, or export its weights and make a new run of them",
                           s->compress_fp32 ? "values fp32" : "variance frozen");
    if (s->updates_before > 0 && !s->model)
        return shore__fail(diag, SHORE_EUSAGE, "--updates-before needs a model directory that holds moments");
    if (s->host_update && s->compress > 0)
        return shore__fail(diag, SHORE_EUSAGE,
                           "--update host needs whole gradients: leave --compress out, or update on the drives");
    if (s->compress_after > 0 && !(s->compress > 0))
        return shore__fail(diag, SHORE_EUSAGE, "--compress-after needs --compress");
    if (s->momentum > 0 && !o->takes_momentum)
        return shore__fail(diag, SHORE_EUSAGE, "--momentum needs --optimizer sgd (adam and adamw have beta1)");
    return 0;
}

int shore__settings_shape_model(const struct shore__settings *s, struct shore__model *m, struct shore_diag *diag) {
    struct shore__lora_text lora;
    if (!s->lora) return shore__model_freeze(m, (const char *const *)s->freeze.item, s->freeze.count, diag);
    int rc = shore__lora_read(s->lora, &lora, diag);
    if (!rc) rc = shore__model_adapt(m, &lora.lora, diag);
    shore__lora_free(&lora);
    return rc;
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
