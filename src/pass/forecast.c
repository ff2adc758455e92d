#include "pass/forecast.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "pass/describe.h"
#include "pass/operations.h"

const char *shore__memory_class_name(enum shore__memory_class of) {
    static const char *const name[] = {
#define NAME_OF(KEY, NAME) NAME,
        SHORE__MEMORY_LIST(NAME_OF)
#undef NAME_OF
    };
    return name[of];
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static enum shore__memory_class class_of(uint32_t key) {
    static const enum shore__memory_class classes[] = {
#define CLASS_OF(KEY, NAME, READ_BY, CLASS) SHORE__MEMORY_##CLASS,
        SHORE__ROWS(CLASS_OF)
#undef CLASS_OF
    };
    return classes[key];
}

/* Adds what lies in memory in a phase, by class. Returns the sum. A sample grows into what a step leaves idle, so it
 * counts between two steps only, which need less than the step does. */
static uint64_t add_phase(const struct shore__region_list *rows, uint32_t phase, uint64_t *bytes) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < rows->count; i++) {
        const struct shore__region *row = &rows->item[i];
        if (!shore__lifetime_has(row->live, phase) || row->key == SHORE__ROW_SAMPLE) continue;
        if (bytes) bytes[class_of(row->key)] += row->bytes;
        sum += row->bytes;
    }
    return sum;
}

/* Memory by class when a step needs most. What is mapped and idle then makes up the rest of the peak. */
static void fill_memory(const struct shore__train_plan *p, struct shore__forecast *out) {
    const struct shore__region_list *rows = &p->plan->rows;
    uint64_t most = 0, sum = 0;
    uint32_t at = 0;
    for (uint32_t phase = 0; phase < rows->phases; phase++) {
        uint64_t bytes = add_phase(rows, phase, NULL);
        if (bytes <= most) continue;
        most = bytes;
        at = phase;
    }
    add_phase(rows, at, out->memory_bytes);
    for (uint32_t i = 0; i < p->program->ntensors; i++) {
        const struct shore_tensor *t = &p->program->tensor[i];
        const struct shore__fate *fate = &p->plan->fate[i];
        if (t->own) out->memory_bytes[class_of(t->key)] += fate->bytes * fate->count;
    }
    for (int k = 0; k < SHORE_PLACES; k++)
        out->peak_bytes += p->plan->place_total[k];
    for (int c = 0; c < SHORE__MEMORY_CLASSES; c++)
        sum += out->memory_bytes[c];
    out->memory_bytes[SHORE__MEMORY_IDLE] = out->peak_bytes - sum;
}

/* Activations that backward needs, by what becomes of them. */
static void fill_activations(const struct shore__train_plan *p, struct shore__forecast *out) {
    for (uint32_t i = 0; i < p->program->ntensors; i++) {
        const struct shore_tensor *t = &p->program->tensor[i];
        if (t->key != SHORE__ROW_BOUNDARY && t->key != SHORE__ROW_INNER_KEPT) continue;
        const struct shore__fate *fate = &p->plan->fate[i];
        if (fate->way == SHORE_WAY_KEEP) out->kept_bytes += fate->bytes * fate->count;
        if (fate->way == SHORE_WAY_AGAIN) out->recomputed_bytes += t->bytes;
        if (fate->way == SHORE_WAY_MOVE) out->offloaded_bytes += t->bytes;
    }
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

/* Until a step is simulated: each lane works at an assumed rate, and the busiest one is the step. */
static void fill_times(const struct shore__facts *f, const struct shore__train_plan *p, struct shore__forecast *out) {
    static const double rate[SHORE_LANES] = {
        [SHORE_LANE_COMPUTE] = 400e9,   [SHORE_LANE_BUS_IN] = 10e9,     [SHORE_LANE_BUS_OUT] = 10e9,
        [SHORE_LANE_LINK_IN] = 10e9,    [SHORE_LANE_LINK_OUT] = 10e9,   [SHORE_LANE_DRIVE_READ] = 2e9,
        [SHORE_LANE_DRIVE_WRITE] = 2e9, [SHORE_LANE_DRIVE_MIXED] = 2e9, [SHORE_LANE_DRIVE_UPDATE] = 1e9,
        [SHORE_LANE_HOST_UPDATE] = 1e9, [SHORE_LANE_COMMIT] = 2e9};
    uint64_t work[SHORE_LANES] = {0};
    for (uint32_t i = 0; i < p->program->ncosts; i++) {
        const struct shore__cost *c = &p->program->cost[i];
        if (c->drive == 0) work[c->lane] += c->work;
        if (c->lane == SHORE_LANE_DRIVE_READ) out->drive_read_bytes += c->work;
        if (c->lane == SHORE_LANE_DRIVE_WRITE) out->drive_write_bytes += c->work;
        if (c->lane == SHORE_LANE_LINK_IN || c->lane == SHORE_LANE_LINK_OUT) out->link_bytes += c->work;
    }
    for (int lane = 0; lane < SHORE_LANES; lane++) {
        out->lane_seconds[lane] = (double)work[lane] / rate[lane];
        if (out->lane_seconds[lane] <= out->step_seconds) continue;
        out->step_seconds = out->lane_seconds[lane];
        out->bound = (enum shore_lane)lane;
    }
    out->drive_write_most_bytes = work[SHORE_LANE_DRIVE_WRITE];
    out->tokens_per_second = out->step_seconds > 0 ? (double)f->batch.rows / out->step_seconds : 0;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

int shore__forecast(const struct shore__facts *f, const struct shore_machine *machine, uint64_t budget,
                    struct shore__forecast *out, struct shore_diag *diag) {
    struct shore__train_plan plan;
    struct shore__needs needs;
    uint64_t start = shore__now_ns();
    *out = (struct shore__forecast){.disk_bytes = 0};
    (void)machine;
    int rc = shore__plan_training(f, budget, &plan, &needs, diag);
    if (!rc && !budget) {
        rc = shore_budget(0, needs.minimum_bytes, needs.comfortable_bytes, &budget, diag);
        shore__train_plan_close(&plan);
        if (!rc) rc = shore__plan_training(f, budget, &plan, &needs, diag);
    }
    if (!rc) {
        out->minimum_bytes = needs.minimum_bytes;
        out->comfortable_bytes = needs.comfortable_bytes;
        out->disk_bytes = needs.disk_bytes;
    }
    if (!rc && budget >= needs.minimum_bytes) {
        out->budget_bytes = budget;
        fill_memory(&plan, out);
        fill_activations(&plan, out);
        fill_times(f, &plan, out);
    }
    shore__train_plan_close(&plan);
    out->plan_seconds = (double)(shore__now_ns() - start) * 1e-9;
    return rc;
}

/* ---- the budget above which nothing gets faster ------------------------------------------------------------------ */

#define USEFUL_PLANS 10
#define NO_FASTER 1.01

int shore__forecast_useful(const struct shore__facts *f, const struct shore_machine *machine, uint64_t *bytes,
                           struct shore_diag *diag) {
    struct shore__forecast at;
    int rc = shore__forecast(f, machine, 1, &at, diag);
    uint64_t least = at.minimum_bytes, enough = at.comfortable_bytes;
    if (!rc) rc = shore__forecast(f, machine, enough, &at, diag);
    double limit = at.step_seconds * NO_FASTER;
    for (int i = 0; !rc && i < USEFUL_PLANS && least < enough; i++) {
        uint64_t middle = i ? least + (enough - least) / 2 : least;
        rc = shore__forecast(f, machine, middle, &at, diag);
        if (rc) break;
        if (at.step_seconds <= limit)
            enough = middle;
        else
            least = middle + 1;
    }
    *bytes = enough;
    return rc;
}
