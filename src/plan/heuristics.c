/* What a step keeps with a budget, by rules of thumb: what is raised first, and how far. A planner with a model of time
 * takes this file's place.
 */
#include "plan/training_sum.h"

#define RING_BYTES_EACH (16u << 20)

/* Of --update host: one chunk is computed, one read, one written; large enough that requests are. */
#define HOST_BUFFERS 3u
#define HOST_SEGMENTS 32u

/* So many keep drives busy while an update that speculates goes on beside backward. More only save spilling where it
 * waits (8 bytes moved for 4 held, no more than parameters that stay save in every step), and replays. */
#define GRADIENT_BUFFERS 6u

/* More than holes in the heap were seen to take; worth 5 % of a step of 256 tokens with AVX2, less of longer ones, so
 * that memory which activations need more comes first. */
#define HOLE_BYTES (UINT64_C(32) << 20)
#define HOLES_FROM_BYTES (UINT64_C(256) << 20)

/* Above a number of tokens a step, computing costs more time than the drives: memory then goes first to activations
 * that need not be computed again, below it to parameters that need not be fetched again. A parameter takes 8
 * operations a token, and moves 28 bytes. */
static bool computing_outlasts_drives(const struct shore__facts *f) {
    const double bytes = 28, operations = 8;
    return (double)f->batch.rows * operations * f->drive_bytes_per_second > bytes * f->operations_per_second;
}

/* All that there are, but in no more than 12 bytes a parameter, as fp32 parameters and moments take; by default none
 * where they cost more time than computing them again may. */
size_t shore__plan_offloaded_most(const struct shore__facts *f) {
    size_t pairs = f->model->arch.n_layer * f->batch.units;
    uint64_t most = f->model->layout->segments * SHORE_SEGMENT_ELEMS * 12 / shore__plan_offload_bytes(f);
    bool costly = !computing_outlasts_drives(f) || f->remote || f->emulated;
    if (!f->scratch || f->offload == SHORE__OFF || (f->offload == SHORE__AUTO && costly)) return 0;
    if (pairs < most) most = pairs;
    return most > SHORE__OFFLOAD_SLOTS ? most : 0;
}

enum shore__when shore__plan_offload_within(const struct shore__facts *f, uint64_t room_bytes) {
    return f->offload == SHORE__AUTO && shore__plan_disk_bytes(f) > room_bytes ? SHORE__OFF : f->offload;
}

/* A table's gradient in memory can be added to unit by unit. Each unit then has its own turn over the table, which a
 * network may be too slow for; and with compression a loss that is not finite must be seen before the residual is asked
 * for. */
static bool head_goes_by_units(const struct shore__sizing *z) {
    return !z->f->remote && z->f->model->arch.tied && z->plan->hold_table_gradient && !z->f->compressed;
}

/* State of the table is read ahead where computing takes longer than the drives, and nothing but memory lies between.
 */
static bool reads_ahead(const struct shore__sizing *z) {
    const struct shore__facts *f = z->f;
    return computing_outlasts_drives(f) && f->one_memory && f->model->arch.tied && z->plan->hold_table_gradient &&
           f->scratch && !f->remote && !f->emulated && !f->host_update && !f->compressed;
}

static void raise_to(struct shore__sizing *z, size_t *field, size_t most, uint64_t budget) {
    shore__raise(field, most, budget, shore__plan_sum, z);
}

static bool fits(struct shore__sizing *z, uint64_t budget) {
    return shore__plan_sum(z) <= budget;
}

static void raise_parameters(struct shore__sizing *z, uint64_t budget) {
    const struct shore__model *m = z->f->model;
    struct shore__residency *r = &z->plan->residency;
    raise_to(z, &r->table_slices, m->nslices, budget);
    raise_to(z, &r->layers, m->arch.n_layer, budget);
    if (!m->arch.tied) raise_to(z, &r->input_slices, m->nslices, budget);
}

/* Logits, of one unit if that is all that is kept at a time. */
static void raise_logits(struct shore__sizing *z, uint64_t budget) {
    struct shore__train_plan *plan = z->plan, before = *plan;
    uint32_t slices = z->f->model->nslices;
    if (head_goes_by_units(z)) {
        plan->head_units = 1;
        plan->kept_logits = slices;
        if (fits(z, budget)) return;
        *plan = before;
    }
    raise_to(z, &plan->kept_logits, slices * plan->head_units, budget);
}

/* Multiplications that a byte of the logits of one unit saves in all units' turns, against those that a byte of a
 * layer's inner activations saves in its own. */
static bool logits_save_more(const struct shore__sizing *z) {
    const struct shore__model *m = z->f->model;
    const struct shore__train_plan *plan = z->plan;
    double layer = (double)m->layout->blocks[1].elems * (double)z->f->batch.unit_rows;
    return (double)plan->units * (double)m->arch.d_model / 4 > layer / (double)shore__plan_offload_bytes(z->f);
}

/* Inner activations: what is dear to compute first, for all pairs, then the cheap ones too. */
static void raise_activations(struct shore__sizing *z, uint64_t budget) {
    const struct shore__model *m = z->f->model;
    struct shore__train_plan *plan = z->plan;
    size_t pairs = m->arch.n_layer * plan->units;
    bool by_units = head_goes_by_units(z), stored = plan->offloaded_inner == pairs;
    if (stored) { /* unless memory has room for all of it */
        struct shore__train_plan before = *plan;
        plan->offloaded_inner = 0;
        plan->kept_inner = pairs;
        if (by_units) plan->head_units = 1;
        plan->kept_logits = m->nslices * plan->head_units;
        if (!fits(z, budget)) *plan = before;
    }
    bool logits_first = stored || (by_units && logits_save_more(z));
    if (logits_first) raise_logits(z, budget);
    if (stored) {
        /* A byte of memory for parameters then saves as many that drives move as one for inner activations: two in a
         * step. Where drives are so slow that none are stored, parameters go on doing so, and kept activations only
         * save computing, which is worth more with drives in between. So each gets half of what is left. */
        uint64_t used = shore__plan_sum(z);
        raise_to(z, &plan->residency.layers, m->arch.n_layer, used + (budget - used) / 2);
    }
    raise_to(z, &plan->kept_inner, pairs, budget);
    if (plan->offloaded_inner > pairs - plan->kept_inner) plan->offloaded_inner = pairs - plan->kept_inner;
    if (!logits_first) raise_logits(z, budget);
    raise_to(z, &plan->full_inner, plan->kept_inner, budget);
}

/* With all units together the table is read, and packed for products, once for all of them, and a slice of its gradient
 * is added to while it is in the cache. */
static void raise_head_units(struct shore__sizing *z, uint64_t budget) {
    struct shore__train_plan *plan = z->plan, before = *plan;
    if (plan->head_units == plan->units) return;
    plan->head_units = plan->units;
    plan->kept_logits = z->f->model->nslices * plan->units;
    if (!fits(z, budget)) *plan = before;
}

static bool has_room_for_holes(uint64_t minimum, uint64_t budget) {
    return minimum + HOLES_FROM_BYTES <= budget;
}

static size_t host_buffers_within(const struct shore__facts *f, size_t wanted) {
    return f->host_buffers_most && wanted > f->host_buffers_most ? f->host_buffers_most : wanted;
}

static void raise_drives(struct shore__sizing *z, uint64_t budget) {
    const struct shore__facts *f = z->f;
    struct shore__train_plan *plan = z->plan, before;
    if (plan->host_buffers) {
        raise_to(z, &plan->host_segments, HOST_SEGMENTS, budget);
        raise_to(z, &plan->host_buffers, host_buffers_within(f, HOST_BUFFERS), budget);
    }
    before = *plan;
    plan->ring_bytes = (uint64_t)RING_BYTES_EACH * f->drives.ndrives;
    if (f->ring_bytes_most && plan->ring_bytes > f->ring_bytes_most) plan->ring_bytes = f->ring_bytes_most;
    if (!fits(z, budget)) *plan = before;
}

/* What a step cannot do without at the speed of drives, before anything that is kept. */
static void raise_buffers(struct shore__sizing *z, uint64_t budget) {
    const struct shore__facts *f = z->f;
    struct shore__train_plan *plan = z->plan, before = *plan;
    plan->residency.buffers = 2;
    if (!fits(z, budget)) *plan = before;
    raise_to(z, &plan->gradient_buffers, 3, budget);
    raise_drives(z, budget);
    if (f->model->arch.tied) {
        before = *plan;
        plan->hold_table_gradient = true;
        if (!fits(z, budget)) *plan = before;
    }
    before = *plan;
    plan->offloaded_inner = shore__plan_offloaded_most(f);
    if (!fits(z, budget)) *plan = before;
    raise_to(z, &plan->kept_boundaries, f->model->arch.n_layer + 1, budget);
    before = *plan;
    if (plan->units > 1) plan->workspace_bytes += f->packed_bytes;
    if (!fits(z, budget)) *plan = before;
}

static void raise_all(struct shore__sizing *z, struct shore__train_plan *plan, uint64_t budget) {
    const struct shore__facts *f = z->f;
    z->plan = plan;
    if (has_room_for_holes(shore__plan_sum(z), budget)) plan->hole_bytes = HOLE_BYTES;
    raise_buffers(z, budget);
    uint32_t pieces = shore__plan_pieces(f, plan->hold_table_gradient);
    /* each unit takes the table twice; what drives hold of inner activations moves twice for all units */
    if (head_goes_by_units(z) && plan->units > 1 && plan->offloaded_inner)
        raise_to(z, &plan->residency.table_slices, f->model->nslices, budget);
    if (computing_outlasts_drives(f)) raise_activations(z, budget);
    raise_to(z, &plan->gradient_buffers, pieces < GRADIENT_BUFFERS ? pieces : GRADIENT_BUFFERS, budget);
    raise_parameters(z, budget);
    if (!computing_outlasts_drives(f)) raise_activations(z, budget);
    raise_to(z, &plan->gradient_buffers, pieces, budget);
    raise_head_units(z, budget);
    plan->read_ahead = reads_ahead(z);
    shore__plan_sum(z);
}

/* Everything at once is tried first: raised one after the other, the first to be raised still share the room with
 * buffers that are not needed once the last ones are. */
void shore__plan_spend(struct shore__sizing *z, struct shore__train_plan *plan, uint64_t budget) {
    struct shore__train_plan everything = *plan;
    uint64_t minimum = plan->total_bytes;
    raise_all(z, &everything, UINT64_MAX);
    if (!has_room_for_holes(minimum, budget)) everything.hole_bytes = 0;
    if (fits(z, budget))
        *plan = everything;
    else
        raise_all(z, plan, budget);
}

uint64_t shore__plan_comfortable(struct shore__sizing *z, const struct shore__train_plan *least) {
    struct shore__train_plan most = *least;
    shore__plan_spend(z, &most, UINT64_MAX);
    bool holes = has_room_for_holes(least->total_bytes, most.total_bytes);
    return most.total_bytes - (holes ? 0 : most.hole_bytes);
}

void shore__plan_least(struct shore__sizing *z, struct shore__train_plan *plan) {
    const struct shore__facts *f = z->f;
    const struct shore__model *m = f->model;
    *plan = (struct shore__train_plan){
        .units = f->batch.units,
        .head_units = f->batch.units,
        .workspace_bytes = f->workspace_bytes,
        .residency.buffers = 1,
        .gradient_buffers = 1,
        .kept_boundaries = 1,
        .hold_table_gradient = m->arch.tied && f->compressed,
        .host_buffers = f->host_update ? host_buffers_within(f, 2) : 0,
        .host_segments = f->host_update ? 1 : 0,
    };
    if (!f->scratch) { /* no scratch and no spilling in memory: what would go there stays */
        plan->kept_boundaries = m->arch.n_layer + 1;
        plan->hold_table_gradient = true;
        plan->gradient_buffers = shore__plan_pieces(f, true);
    }
    z->plan = plan;
    shore__plan_sum(z);
    if (!m->arch.tied || plan->hold_table_gradient) return;
    struct shore__train_plan held = *plan;
    held.hold_table_gradient = true;
    z->plan = &held;
    if (shore__plan_sum(z) <= plan->total_bytes) *plan = held;
}
