#include "pass/forecast.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/layout.h"
#include "pass/describe.h"
#include "pass/operations.h"
#include "pass/pages.h"

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

static enum shore__step_part part_of(uint32_t n, uint32_t phase) {
    if (phase < shore__phase_loss(n)) return SHORE__IN_FORWARD;
    if (phase <= shore__phase_head(n)) return SHORE__IN_HEAD;
    return phase < shore__phase_backward(n, 0) ? SHORE__IN_BACKWARD : SHORE__IN_COMMIT;
}

/* Bytes of a tensor that its maker allocates. The budget reserves the most that the process may take, and room for
 * holes in its heap; what it will take is less. */
static uint64_t own_bytes(const struct shore__facts *f, const struct shore__train_plan *p, uint32_t tensor) {
    const struct shore_tensor *t = &p->program->tensor[tensor];
    struct shore__process process = shore__facts_process(f);
    process.tokens = f->tokens;
    if (!f->products_allocate) process.heap_bytes = 0;
    if (!t->own) return 0;
    if (t->key == SHORE__ROW_PROCESS) return shore__process_bytes(&process);
    return p->plan->fate[tensor].bytes * p->plan->fate[tensor].count;
}

/* Memory by class when each part of a step needs most. What is mapped and idle then makes up the rest of the peak. */
static void fill_memory(const struct shore__facts *f, const struct shore__train_plan *p, struct shore__forecast *out) {
    const struct shore__region_list *rows = &p->plan->rows;
    uint64_t most[SHORE__STEP_PARTS] = {0}, sum;
    uint32_t at[SHORE__STEP_PARTS] = {0};
    for (int k = 0; k < SHORE_PLACES; k++)
        out->place_bytes[k] = rows->bytes[k];
    for (uint32_t i = 0; i < p->program->ntensors; i++)
        out->place_bytes[f->one_memory ? SHORE_PLACE_DEVICE : SHORE_PLACE_PLAIN] += own_bytes(f, p, i);
    for (int k = 0; k < SHORE_PLACES; k++)
        out->peak_bytes += out->place_bytes[k];
    for (uint32_t phase = 0; phase < rows->phases; phase++) {
        enum shore__step_part part = part_of(f->model->arch.n_layer, phase);
        uint64_t bytes = add_phase(rows, phase, NULL);
        if (bytes <= most[part]) continue;
        most[part] = bytes;
        at[part] = phase;
    }
    for (int part = 0, peak = 0; part < SHORE__STEP_PARTS; part++) {
        uint64_t *bytes = out->part_bytes[part];
        sum = add_phase(rows, at[part], bytes);
        for (uint32_t i = 0; i < p->program->ntensors; i++) {
            const struct shore_tensor *t = &p->program->tensor[i];
            bytes[class_of(t->key)] += own_bytes(f, p, i);
            sum += own_bytes(f, p, i);
        }
        bytes[SHORE__MEMORY_IDLE] = out->peak_bytes - sum;
        if (most[part] >= most[peak]) memcpy(out->memory_bytes, bytes, sizeof out->memory_bytes), peak = part;
    }
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

/* Bytes of padding that a simulation counts on the link, in pages that move or stay, and that does not cross. fetched:
 * bytes of pages that moved. */
static uint64_t padding(const struct shore__facts *f, const struct shore__train_plan *p, uint64_t fetched) {
    const struct shore__model *m = f->model;
    uint64_t each = f->mode == SHORE__F32 ? 4 : 2, moves = 0, crosses = 0;
    uint64_t kept = 0;
    for (uint32_t i = 0; i < p->program->ntensors; i++) {
        const struct shore_tensor *t = &p->program->tensor[i];
        if (t->key == SHORE__ROW_GATHERED) moves += t->moved_bytes, crosses += t->moved_bytes;
        if (t->key != SHORE__ROW_PAGE) continue;
        struct shore__page_id id = shore__page_at(m, t->index);
        uint32_t segment, count;
        if (p->gathers && id.kind == SHORE__PAGE_SLICE && !id.block) continue; /* rows of it come */
        shore__page_segments(m, id, &segment, &count);
        /* a tail is fetched in every step, which is a cost of its own; and the host updates its pages itself */
        bool stays = p->plan->fate[i].way == SHORE_WAY_KEEP;
        bool apart = id.kind == SHORE__PAGE_TAIL || (stays && f->host_update);
        uint64_t bytes = apart ? 0 : shore__layout_elems(m->layout, id.block, segment, count) * each;
        if (stays) {
            kept += shore__model_rests(m, id.block)
                        ? 0
                        : t->bytes - bytes; /* what stays and is only read crosses no link */
        } else {
            moves += t->bytes;
            crosses += bytes;
        }
    }
    return kept + (moves ? (uint64_t)((double)fetched * (double)(moves - crosses) / (double)moves) : 0);
}

/* Bytes that a program moves in a lane, whatever the plan. */
static uint64_t behind(const struct shore__train_plan *p, enum shore_lane lane) {
    return shore__program_work(p->program, lane, SHORE__ALL_DRIVES);
}

/* What the drive that writes most writes: of updates its own share, of what moves as much of the rest. */
static uint64_t written_most(const struct shore__facts *f, const struct shore__train_plan *p, uint64_t all) {
    uint64_t updates = behind(p, SHORE_LANE_DRIVE_WRITE), most = 0;
    assert(f->drives.ndrives);
    for (uint32_t d = 0; d < f->drives.ndrives; d++) {
        uint64_t own = shore__program_work(p->program, SHORE_LANE_DRIVE_WRITE, d);
        if (own > most) most = own;
    }
    return updates ? (uint64_t)((double)all * (double)most / (double)updates) : all / f->drives.ndrives;
}

static void fill_times(const struct shore__facts *f, const struct shore__train_plan *p, struct shore__forecast *out) {
    const struct shore_plan_times times = p->plan->times;
    out->step_seconds = times.step_seconds;
    out->gathers = p->gathers;
    memcpy(out->lane_seconds, times.lane_seconds, sizeof out->lane_seconds);
    out->bound = times.bound;
    out->drive_read_bytes = times.drive_read_bytes;
    out->drive_write_bytes = times.drive_write_bytes;
    uint64_t moved = times.drive_write_bytes - behind(p, SHORE_LANE_DRIVE_WRITE) - behind(p, SHORE_LANE_COMMIT);
    uint64_t read = times.drive_read_bytes - behind(p, SHORE_LANE_DRIVE_READ);
    uint64_t back = read < moved ? read : moved; /* what left last may still be in its buffer */
    uint64_t fetched = read - back;
    out->link_bytes = times.link_bytes - padding(f, p, fetched);
    uint64_t updates = behind(p, SHORE_LANE_LINK_IN) + behind(p, SHORE_LANE_LINK_OUT), beside = updates + moved + back;
    out->moved[SHORE__MOVED_PARAMETERS].link = out->link_bytes > beside ? out->link_bytes - beside : 0;
    out->moved[SHORE__MOVED_PARAMETERS].read = fetched;
    out->moved[SHORE__MOVED_ACTIVATIONS] = (struct shore__moved_bytes){moved + back, back, moved};
    out->moved[SHORE__MOVED_UPDATES] =
        (struct shore__moved_bytes){updates, times.drive_read_bytes - read, times.drive_write_bytes - moved};
    out->drive_write_most_bytes = written_most(f, p, times.drive_write_bytes);
    out->tokens_per_second = out->step_seconds > 0 ? (double)f->batch.rows / out->step_seconds : 0;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

int shore__forecast(const struct shore__facts *f, uint64_t budget, struct shore__forecast *out,
                    struct shore_diag *diag) {
    struct shore__train_plan plan;
    struct shore__needs needs;
    uint64_t start = shore__now_ns();
    *out = (struct shore__forecast){.disk_bytes = 0};
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
        fill_memory(f, &plan, out);
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

/* Seconds of a step within a budget; where it would write too much in a day, for ever. */
static int step_within(const struct shore__facts *f, uint64_t budget, double *seconds, struct shore_diag *diag) {
    struct shore__forecast at;
    int rc = shore__forecast(f, budget, &at, diag);
    *seconds = rc ? INFINITY : at.step_seconds;
    return rc == SHORE_EBUDGET ? 0 : rc;
}

int shore__forecast_useful(const struct shore__facts *f, uint64_t *bytes, struct shore_diag *diag) {
    struct shore__forecast at;
    double limit = 0, seconds;
    int rc = shore__forecast(f, 1, &at, diag);
    uint64_t least = at.minimum_bytes, enough = at.comfortable_bytes;
    if (!rc) rc = step_within(f, enough, &limit, diag);
    limit *= NO_FASTER;
    for (int i = 0; !rc && i < USEFUL_PLANS && least < enough; i++) {
        uint64_t middle = i ? least + (enough - least) / 2 : least;
        rc = step_within(f, middle, &seconds, diag);
        if (seconds <= limit)
            enough = middle;
        else
            least = middle + 1;
    }
    *bytes = enough;
    return rc;
}
