#include "cli/outlook.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "model/adapters.h"
#include "plan/budget.h"
#include "train/train.h"

/* ---- rates ------------------------------------------------------------------------------------------------------- */

/* Drives that the machine does not describe. */
static void say_unknown(struct shore__plan_rates *out, uint32_t unknown) {
    if (unknown)
        shore__append(out->from, sizeof out->from, ", but of %u drive%s, whose rates are assumed", unknown,
                      unknown == 1 ? "" : "s");
}

/* Chooses what computes. Of a machine that was measured, the GPU's rates are PyTorch's, and the others this program's.
 */
static void choose_device(struct shore_machine *m, bool gpu, struct shore__plan_rates *out) {
    const struct shore__rates *torch = &m->torch_rate[0][0];
    struct shore__rates *rate = &m->rate[0][0];
    if (!m->gpu_memory) return;
    if (!gpu)
        shore__append(out->from, sizeof out->from,
                      m->measured ? "; train computes on its processor"
                                  : "'s GPU, though train computes on the processor");
    if (!gpu) m->gpu_memory = 0;
    for (int i = 0; gpu && m->measured && i < SHORE_WORKS * SHORE_PRECISIONS; i++)
        if (torch[i].n) rate[i] = torch[i];
}

int shore__plan_rates_open(const char *named, const struct shore__settings *s, bool gpu, struct shore__plan_rates *out,
                           struct shore_diag *diag) {
    const char *file = named ? named : shore__settings_emulated(s) ? s->emulate : NULL;
    uint32_t n = (uint32_t)s->drives.count, unknown = 0;
    struct shore_diag why;
    *out = (struct shore__plan_rates){.named = named != NULL};
    if (named && shore__settings_emulated(s))
        return shore__fail(diag, SHORE_EUSAGE,
                           "--machine and --emulate each name the machine whose rates count: give one of them "
                           "(--emulate none ends that of a run)");
    int rc = file ? shore_machine_read(file, &out->machine, diag) : shore_machine_kept(&out->machine, &why);
    if (!file && rc == SHORE_EMISSING) {
        snprintf(out->from, sizeof out->from, "assumed rates: %.400s; 'longshore machine --drive PATH' measures them",
                 why.text);
        return 0;
    }
    if (rc && !file) *diag = why;
    if (rc) return rc;
    if (file || !out->machine->measured)
        snprintf(out->from, sizeof out->from, "rates of %s", out->machine->name);
    else
        snprintf(out->from, sizeof out->from, "rates as measured on this machine");
    choose_device(out->machine, gpu, out);
    if (n) unknown = shore__machine_take_drives(out->machine, s->drives.text, n, file != NULL);
    say_unknown(out, unknown);
    return 0;
}

void shore__plan_rates_close(struct shore__plan_rates *rates) {
    shore_machine_free(rates->machine);
    rates->machine = NULL;
}

#define NO_DRIVE "longshore-drive.volume"

int shore__outlook_assume_drives(struct shore__settings *s, const struct shore__plan_rates *rates,
                                 struct shore_diag *diag) {
    uint32_t n = rates && rates->named && rates->machine->ndrives ? rates->machine->ndrives : 1;
    int rc = 0;
    for (uint32_t d = 0; !rc && d < n; d++)
        rc = shore__addresses_parse(&s->drives, NO_DRIVE, diag);
    return rc;
}

/* ---- a forecast -------------------------------------------------------------------------------------------------- */

static int find_budget(const struct shore__outlook *o, bool at_least, uint64_t *budget, struct shore_diag *diag) {
    const struct shore__forecast *least = &o->forecast;
    uint64_t asked = o->settings->memory_bytes, has = o->named ? o->machine->host_memory : 0;
    if (at_least && asked && asked < least->minimum_bytes) asked = least->minimum_bytes;
    int rc = !o->named || (!has && !asked)
                 ? shore_budget(asked, least->minimum_bytes, least->comfortable_bytes, budget, diag)
                 : shore__budget_of(o->machine->name, has, asked, least->minimum_bytes, least->comfortable_bytes,
                                    budget, diag);
    uint64_t pinned = o->facts.one_memory ? 0 : o->machine->pinned_memory;
    /* beside a device, nearly all of the host's memory is pinned */
    if (!rc && pinned && *budget > pinned && pinned >= least->minimum_bytes) *budget = pinned;
    return rc;
}

int shore__outlook_make(struct shore__outlook *o, bool at_least, struct shore_diag *diag) {
    uint64_t budget;
    int rc = shore__train_facts(o->settings, o->model, NULL, &o->facts, diag);
    if (o->machine && o->machine->gpu_memory) { /* it computes there */
        o->facts.one_memory = false;
        o->facts.place_bytes[SHORE_PLACE_DEVICE] = o->machine->gpu_memory;
    }
    if (!rc) rc = shore__forecast(&o->facts, 1, &o->forecast, diag);
    if (!rc) rc = find_budget(o, at_least, &budget, diag);
    if (!rc) rc = shore__forecast(&o->facts, budget, &o->forecast, diag);
    return rc;
}

static void share(char *out, size_t bytes, uint64_t part, uint64_t whole, const char *what) {
    if (part) shore__append(out, bytes, "%s%.0f %% %s", *out ? ", " : "", 100 * (double)part / (double)whole, what);
}

const char *shore__outlook_text(const struct shore__outlook *o, char *out, size_t bytes) {
    const struct shore__forecast *w = &o->forecast;
    char activations[96] = "";
    uint64_t all = w->kept_bytes + w->recomputed_bytes + w->offloaded_bytes;
    share(activations, sizeof activations, w->kept_bytes, all, "kept");
    share(activations, sizeof activations, w->recomputed_bytes, all, "computed again");
    share(activations, sizeof activations, w->offloaded_bytes, all, "on the drives");
    snprintf(out, bytes, "%s of %s of memory; activations %s; a step takes about %s, bound by %s",
             shore__format_size(w->peak_bytes).text, shore__format_size(w->budget_bytes).text, activations,
             shore__format_seconds(w->step_seconds).text, shore_lane_bound(w->bound));
    return out;
}

/* ---- what a change would buy ------------------------------------------------------------------------------------- */

/* A training that differs in one thing. It owns settings, machine and model. */
struct changed {
    struct shore__settings settings;
    struct shore_machine machine;
    struct shore__model *model; /* NULL: the same */
    char *change;               /* what differs, of sizeof ((struct shore__what_if *)0)->change bytes */
};
#define SAY(c, ...) snprintf((c)->change, sizeof((struct shore__what_if *)0)->change, __VA_ARGS__)

/* Each changes one thing, and says it. False: it cannot, or it is so already. */
static bool more_memory(const struct shore__outlook *o, struct changed *c) {
    c->settings.memory_bytes = o->forecast.budget_bytes * 2;
    c->machine.host_memory = 0;
    c->machine.pinned_memory *= 2;
    SAY(c, "twice the memory, %s", shore__format_size(c->settings.memory_bytes).text);
    return true;
}

static bool larger_gpu(const struct shore__outlook *o, struct changed *c) {
    c->machine.gpu_memory *= 2;
    SAY(c, "a GPU with twice the memory, %s", shore__format_size(c->machine.gpu_memory).text);
    return !o->facts.one_memory;
}

static bool more_drives(const struct shore__outlook *o, struct changed *c) {
    uint32_t n = (uint32_t)c->settings.drives.count;
    struct shore_machine *m = &c->machine;
    if (n >= SHORE__MACHINE_DRIVES_MAX || shore__addresses_parse(&c->settings.drives, NO_DRIVE, NULL)) return false;
    for (uint32_t d = m->ndrives; m->ndrives && d <= n; d++)
        m->drive[d] = m->drive[m->ndrives - 1];
    m->drive[n].shares = 0;
    if (m->ndrives) m->ndrives = n + 1;
    free(c->settings.drive_speeds);
    c->settings.drive_speeds = NULL;
    char *most = c->settings.max_writes, *last = most ? strrchr(most, ',') : NULL;
    if (last && asprintf(&c->settings.max_writes, "%s%s", most, last) < 0) c->settings.max_writes = NULL;
    if (last) free(most); /* it may write as much as the last one */
    SAY(c, "one more drive, %u", n + 1);
    return true;
}

static bool faster_link(const struct shore__outlook *o, struct changed *c) {
    double *const rates[] = {&c->machine.link[0], &c->machine.link[1], &c->machine.bus_in, &c->machine.bus_out,
                             &c->machine.bus_both};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        *rates[i] *= 2;
    SAY(c, "a link twice as fast");
    return true;
}

static bool smaller_moments(const struct shore__outlook *o, struct changed *c) {
    SAY(c, "8-bit moments");
    if (c->settings.moments == SHORE_MOMENTS_8BIT || c->settings.optimizer == SHORE_SGD) return false;
    c->settings.moments = SHORE_MOMENTS_8BIT;
    return true;
}

static bool compressed(const struct shore__outlook *o, struct changed *c) {
    SAY(c, "compressed gradients, 1 %%");
    if (o->model->adapters.count || c->settings.compress > 0 || c->settings.host_update) return false;
    c->settings.compress = 0.01;
    return true;
}

static bool larger_batch(const struct shore__outlook *o, struct changed *c) {
    c->settings.batch *= 2;
    SAY(c, "a batch of %u", c->settings.batch);
    /* seconds of a step are those of its batch alone */
    return !(c->machine.forward_seconds > 0 || c->machine.backward_seconds > 0);
}

/* Adapters alone, or all parameters. */
static bool adapters(const struct shore__outlook *o, struct changed *c) {
    static const char *const attention[] = {"q_proj", "k_proj", "v_proj", "o_proj"};
    bool has = o->model->adapters.count, experts = o->model->arch.experts; /* beside which no adapters go */
    const struct shore__lora lora = {
        .rank = 16, .alpha = 16, .targets = attention, .ntargets = experts ? sizeof attention / sizeof *attention : 0};
    if (has)
        SAY(c, "all parameters trained");
    else
        SAY(c, "LoRA of rank %u%s", lora.rank, experts ? " of attention" : "");
    int rc = shore__model_make(&o->model->arch, &c->model, NULL);
    return !rc && (has || !shore__model_adapt(c->model, &lora, NULL));
}

static int plan_change(const struct shore__outlook *o, bool (*change)(const struct shore__outlook *, struct changed *),
                       struct shore__what_if *out, bool *applies, struct shore_diag *diag) {
    struct changed c = {.machine = o->machine ? *o->machine : *shore__machine_assumed()};
    int rc = shore__settings_copy(o->settings, &c.settings);
    c.settings.machine = &c.machine;
    c.change = out->change;
    *applies = !rc && change(o, &c);
    struct shore__outlook other = {
        .settings = &c.settings, .model = c.model ? c.model : o->model, .machine = &c.machine, .named = true};
    if (!c.settings.memory_bytes) c.settings.memory_bytes = o->forecast.budget_bytes;
    if (*applies) rc = shore__outlook_make(&other, true, diag);
    if (rc == SHORE_EBUDGET)
        *applies = false, rc = 0; /* the drives may not write so much, or the machine has no such memory */
    if (*applies && other.forecast.budget_bytes > c.settings.memory_bytes)
        shore__append(out->change, sizeof out->change, " in %s",
                      shore__format_size_up(other.forecast.budget_bytes).text);
    out->forecast = other.forecast;
    shore__settings_free(&c.settings);
    shore__model_free(c.model);
    return rc;
}

int shore__outlook_report(const struct shore__outlook *o, struct shore__plan_report *r, struct shore_diag *diag) {
    bool (*const changes[])(const struct shore__outlook *, struct changed *) = {
        more_memory, larger_gpu, more_drives, faster_link, smaller_moments, compressed, larger_batch, adapters};
    int rc = shore__forecast_useful(&o->facts, &r->useful_bytes, diag);
    r->outlook = o;
    r->what_ifs = 0;
    for (size_t i = 0; !rc && i < sizeof changes / sizeof *changes; i++) {
        bool applies;
        rc = plan_change(o, changes[i], &r->what_if[r->what_ifs], &applies, diag);
        r->what_ifs += !rc && applies;
    }
    return rc;
}
