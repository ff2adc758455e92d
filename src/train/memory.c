#include "train/trainer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/planes.h"
#include "drive/remote/transport.h"
#include "infer/generate.h"
#include "train/host_update.h"

#define SEGMENT_BYTES ((uint64_t)SHORE_SEGMENT_ELEMS * 4)
#define RING_BYTES_EACH (16u << 20)

/* Of --update host: one chunk is computed, one read, one written; large enough that requests are. */
#define HOST_BUFFERS 3u
#define HOST_SEGMENTS 32u

/* Above this many tokens a step, computing costs more time than the drives: memory then goes first to activations that
 * need not be computed again, below it to parameters that need not be fetched again. About 8 operations a parameter and
 * token at 400 GFLOP/s against 28 bytes a parameter at 2 GB/s. */
#define TOKENS_OF_BALANCE 700u

/* So many keep drives busy while an update that speculates goes on beside backward. More only save spilling where it
 * waits (8 bytes moved for 4 held, no more than parameters that stay save in every step), and replays. */
#define GRADIENT_BUFFERS 6u

/* More than holes in the heap were seen to take; worth 5 % of a step of 256 tokens with AVX2, less of longer ones, so
 * that memory which activations need more comes first. */
#define HOLE_BYTES (UINT64_C(32) << 20)
#define HOLES_FROM_BYTES (UINT64_C(256) << 20)

/* ---- scratch -------------------------------------------------------------------------------------------------------
 */

/* 4 bytes an element are the most, whatever the precision. */
static uint64_t boundary_room(const struct shore__settings *s, const struct shore__model *m) {
    return shore__arena_round((uint64_t)s->batch * s->seq_len * m->arch.d_model * 4);
}

static size_t rows_of(const struct shore__settings *s) {
    return (size_t)s->batch * s->seq_len;
}

/* Of a full unit, if the batch has one. */
static size_t unit_rows_of(const struct shore__settings *s) {
    size_t unit = shore__unit_sequences(s->seq_len) * s->seq_len;
    return unit < rows_of(s) ? unit : rows_of(s);
}

static size_t units_of(const struct shore__settings *s) {
    return (rows_of(s) + unit_rows_of(s) - 1) / unit_rows_of(s);
}

static size_t kept_inner_bytes(const struct shore__model *m, enum shore__mode mode, size_t rows, bool cheap_too) {
    return shore__arena_round(shore__inner_bytes(m, shore__stored_mode(mode), rows, cheap_too));
}

static uint64_t inner_room(const struct shore__settings *s, const struct shore__model *m) {
    return kept_inner_bytes(m, s->fp32 ? SHORE__F32 : SHORE__BF16, unit_rows_of(s), false);
}

static bool any_remote(const struct shore__settings *s) {
    for (size_t i = 0; i < s->drives.count; i++)
        if (shore__path_is_remote(s->drives.item[i])) return true;
    return false;
}

/* (Layer, unit) pairs whose inner activations scratch has room for: all, but in no more than 12 bytes a parameter, as
 * fp32 parameters and moments take; by default none where they cost more time than computing them again may. */
static size_t offloaded_most(const struct shore__settings *s, const struct shore__model *m) {
    size_t pairs = m->arch.n_layer * units_of(s);
    uint64_t most = m->layout->segments * SEGMENT_BYTES * 3 / inner_room(s, m);
    bool costly =
        rows_of(s) <= TOKENS_OF_BALANCE || any_remote(s) || s->emulate; /* whose waits are another machine's */
    if (shore__settings_in_ram(s) || s->offload == SHORE__OFF || (s->offload == SHORE__AUTO && costly)) return 0;
    if (pairs < most) most = pairs;
    return most > OFFLOAD_SLOTS ? most : 0;
}

static uint64_t boundaries_and_slices(const struct shore__settings *s, const struct shore__model *m) {
    return boundary_room(s, m) * m->arch.n_layer + (m->arch.tied ? m->layout->blocks[0].padded_elems * 4 : 0);
}

void shore__train_fleet_options(const struct shore__settings *s, const struct shore__model *m,
                                struct shore_fleet_options *out) {
    uint64_t scratch = boundaries_and_slices(s, m) + offloaded_most(s, m) * inner_room(s, m);
    /* Memory that stands in for a drive is no place to save memory. */
    shore__run_fleet_options(s, shore__settings_in_ram(s) ? 0 : scratch, !shore__settings_in_ram(s) || s->host_update,
                             out);
}

uint64_t shore__train_scratch_boundary(const struct trainer *t, uint32_t layer) {
    return boundary_room(t->s, t->m) * (layer - 1);
}

uint64_t shore__train_scratch_slice(const struct trainer *t, uint32_t slice) {
    return boundary_room(t->s, t->m) * t->m->arch.n_layer + shore__model_slice(t->m, slice).segment * SEGMENT_BYTES;
}

uint64_t shore__train_scratch_inner(const struct trainer *t, size_t nth) {
    return boundaries_and_slices(t->s, t->m) + nth * inner_room(t->s, t->m);
}

/* ---- places --------------------------------------------------------------------------------------------------------
 */

static uint64_t largest_piece_bytes(const struct shore__model *m, bool table_slices) {
    uint32_t segments = 0;
    for (uint32_t l = 1; l <= m->arch.n_layer; l++)
        if (m->layout->blocks[l].segments > segments) segments = m->layout->blocks[l].segments;
    for (uint32_t i = 0; table_slices && i < m->nslices; i++) {
        struct shore__slice s = shore__model_slice(m, i);
        if (s.segments > segments) segments = s.segments;
        for (uint32_t block = 0; i + 1 == m->nslices && block < m->nblocks; block += m->nblocks - 1) {
            uint32_t to_end = m->layout->blocks[block].segments - s.segment;
            if ((block == 0 || !m->arch.tied) && to_end > segments) segments = to_end;
        }
    }
    return segments * SEGMENT_BYTES;
}

static uint32_t count_pieces(const struct shore__model *m, bool hold_table_gradient) {
    uint32_t pooled = m->arch.tied ? hold_table_gradient ? 0 : m->nslices : 2 * m->nslices;
    return m->arch.n_layer + pooled + 1;
}

uint64_t shore__train_kept_bytes(const struct trainer *t, size_t pairs) {
    size_t full = pairs < t->plan.full_inner ? pairs : t->plan.full_inner;
    return full * kept_inner_bytes(t->m, t->c->mode, t->plan.unit_rows, true) +
           (pairs - full) * kept_inner_bytes(t->m, t->c->mode, t->plan.unit_rows, false);
}

/* A compressed block is selected from as a whole: that needs room for the larger one of untied tables. */
static uint64_t larger_table_bytes(const struct shore__model *m) {
    uint64_t elems = m->layout->blocks[0].padded_elems, head = m->layout->blocks[m->nblocks - 1].padded_elems;
    return (head > elems ? head : elems) * 4;
}

static size_t state_segment_bytes(const struct shore__settings *s, const struct shore__model *m) {
    struct shore_fleet_options options;
    uint32_t plane_bytes[SHORE_PLANE_COUNT];
    shore__train_fleet_options(s, m, &options);
    shore__planes_make(m->layout, &options, plane_bytes);
    return shore__state_segment_bytes(plane_bytes);
}

int shore__train_place(struct trainer *t, struct shore__carve *memory, struct shore__pager **pager,
                       struct shore_diag *diag) {
    const struct shore__model *m = t->m;
    const struct train_plan *plan = &t->plan;
    enum shore__mode mode = t->c->mode;
    uint32_t layers = m->arch.n_layer;
    size_t e = shore__mode_bytes(mode), d = m->arch.d_model;
    bool place = memory->base != 0;

    shore__pass_place(&t->pass, t->s->batch, t->s->seq_len, memory);
    t->pass.nkept = plan->kept_logits;
    t->pass.kept_units = plan->head_units;
    t->pass.kept_logits = shore__carve_take(memory, plan->kept_logits * plan->unit_rows * m->slice_rows * 4);
    if (place) {
        struct shore__weights_of of = {m, t->fleet, NULL};
        int rc = shore__pager_open(&of, t->c, &plan->residency, memory, pager, diag);
        if (rc) return rc;
    } else {
        memory->used += shore__pager_bytes(m, mode, &plan->residency);
    }

    t->boundary_bytes = shore__arena_round(plan->rows * d * shore__mode_bytes(shore__stored_mode(mode)));
    uint32_t ring = plan->kept_boundaries == layers + 1 ? 0 : 2;
    shore__buf shared[2] = {SHORE__NO_BUF, SHORE__NO_BUF};
    for (uint32_t i = 0; i < ring; i++)
        shared[i] = shore__carve_take(memory, t->boundary_bytes);
    for (uint32_t l = 1; l <= layers + 1; l++) {
        bool kept = l > layers + 1 - plan->kept_boundaries;
        size_t bytes = l == layers + 1 ? plan->rows * d * e : t->boundary_bytes;
        shore__buf b = kept ? shore__carve_take(memory, bytes) : shared[l % 2];
        if (place) t->boundary[l] = b;
    }
    shore__buf kept = shore__carve_take(memory, shore__train_kept_bytes(t, plan->kept_inner));
    for (size_t i = 0; place && i < plan->kept_inner; i++) {
        /* the last layers first: they are needed first */
        size_t at = ((size_t)layers - 1 - i / plan->units) * plan->units + i % plan->units;
        t->kept[at] = shore__at(kept, shore__train_kept_bytes(t, i));
    }
    t->offload_bytes = inner_room(t->s, m);
    for (uint32_t i = 0; plan->offloaded_inner && i < OFFLOAD_SLOTS; i++)
        t->offload_slot[i] = shore__carve_take(memory, t->offload_bytes);
    uint64_t between = memory->used; /* from here on, memory is free between two steps: samples take it (commit.c) */
    t->dx = shore__carve_take(memory, plan->rows * d * e);
    t->dx_f32 = shore__carve_take(memory, plan->rows * d * 4);
    t->dlogits = shore__carve_take(memory, plan->unit_rows * m->slice_rows * e);
    t->scratch = shore__carve_take(memory, shore__backward_scratch_bytes(m, mode, plan->unit_rows));
    t->table_gradient = t->whole_gradient = NULL;
    t->table_narrow = NULL;
    if (m->arch.tied && plan->hold_table_gradient) {
        uint64_t elems = m->layout->blocks[0].padded_elems;
        t->table_gradient = shore__carve_host(memory, elems * 4);
        if (t->s->gradient_bf16) t->table_narrow = shore__carve_host(memory, elems * 2);
    }
    if (!m->arch.tied && t->s->compress > 0) t->whole_gradient = shore__carve_host(memory, larger_table_bytes(m));
    uint64_t piece = largest_piece_bytes(m, !(m->arch.tied && plan->hold_table_gradient));
    for (uint32_t i = 0; i < plan->gradient_buffers; i++) {
        float *buffer = shore__carve_host(memory, piece);
        if (place) t->pool[i].memory = buffer;
    }
    t->host_memory = NULL;
    if (plan->host_buffers)
        t->host_memory = shore__carve_host(memory, shore__host_update_bytes(state_segment_bytes(t->s, m),
                                                                            (uint32_t)plan->host_buffers,
                                                                            (uint32_t)plan->host_segments));
    between = memory->used - between;
    uint64_t sample = t->s->sample_every ? shore__generate_bytes(m, mode, 1) : 0;
    if (sample > between) shore__carve_take(memory, sample - between);
    t->partial = shore__carve_host(memory, m->layout->segments * sizeof *t->partial);
    /* the residual is not free then */
    shore__compress_place(&t->compression, t->s, m, t->c->threads, memory);
    return 0;
}

/* ---- the plan ------------------------------------------------------------------------------------------------------
 */

struct sizing {
    const struct shore__settings *s;
    const struct shore__model *m;
    struct shore__compute *c;
    struct train_plan *plan;
    uint64_t packed_bytes; /* of compute: weights packed once for all units */
};

static uint64_t measure(void *ctx) {
    struct sizing *z = ctx;
    struct train_plan *plan = z->plan;
    struct shore_fleet_options options;
    shore__train_fleet_options(z->s, z->m, &options);
    options.ring_bytes = plan->ring_bytes;
    struct trainer t = {.s = z->s, .m = z->m, .c = z->c, .plan = *plan, .pass = {.m = z->m, .c = z->c}};
    struct shore__carve measure = {0};
    shore__train_place(&t, &measure, NULL, NULL);
    plan->buffers_bytes = measure.used + shore__arena_round(plan->workspace_bytes);
    plan->fleet_bytes = plan->ring_bytes ? shore_fleet_memory_bytes(z->m->layout, &options)
                                         : shore_fleet_memory_least_bytes(z->m->layout, &options);
    plan->reserve_bytes = shore__process_reserve_bytes(z->m, (uint32_t)z->c->threads, options.ndrives);
    plan->total_bytes = plan->buffers_bytes + plan->fleet_bytes + plan->reserve_bytes + plan->hole_bytes;
    return plan->total_bytes;
}

static void raise_parameters(struct sizing *z, uint64_t budget) {
    struct shore__residency *r = &z->plan->residency;
    shore__carve_raise(&r->table_slices, z->m->nslices, budget, measure, z);
    shore__carve_raise(&r->layers, z->m->arch.n_layer, budget, measure, z);
    if (!z->m->arch.tied) shore__carve_raise(&r->input_slices, z->m->nslices, budget, measure, z);
}

/* A table's gradient in memory can be added to unit by unit. Each unit then has its own turn over the table, which a
 * network may be too slow for; and with compression a loss that is not finite must be seen before the residual is asked
 * for. */
static bool head_goes_by_units(const struct sizing *z) {
    return !any_remote(z->s) && z->m->arch.tied && z->plan->hold_table_gradient && !(z->s->compress > 0);
}

/* Logits, of one unit if that is all that is kept at a time. */
static void raise_logits(struct sizing *z, uint64_t budget) {
    struct train_plan *plan = z->plan, before = *plan;
    if (head_goes_by_units(z)) {
        plan->head_units = 1;
        plan->kept_logits = z->m->nslices;
        if (measure(z) <= budget) return;
        *plan = before;
    }
    shore__carve_raise(&plan->kept_logits, z->m->nslices * plan->head_units, budget, measure, z);
}

/* Multiplications that a byte of the logits of one unit saves in all units' turns, against those that a byte of a
 * layer's inner activations saves in its own. */
static bool logits_save_more(const struct sizing *z) {
    const struct train_plan *plan = z->plan;
    double layer = (double)z->m->layout->blocks[1].elems * (double)plan->unit_rows;
    return (double)plan->units * (double)z->m->arch.d_model / 4 >
           layer / (double)kept_inner_bytes(z->m, z->c->mode, plan->unit_rows, false);
}

/* Inner activations: what is dear to compute first, for all pairs, then the cheap ones too. */
static void raise_activations(struct sizing *z, uint64_t budget) {
    struct train_plan *plan = z->plan;
    size_t pairs = z->m->arch.n_layer * plan->units;
    bool by_units = head_goes_by_units(z), stored = plan->offloaded_inner == pairs;
    if (stored) { /* unless memory has room for all of it */
        struct train_plan before = *plan;
        plan->offloaded_inner = 0;
        plan->kept_inner = pairs;
        if (by_units) plan->head_units = 1;
        plan->kept_logits = z->m->nslices * plan->head_units;
        if (measure(z) > budget) *plan = before;
    }
    bool logits_first = stored || (by_units && logits_save_more(z));
    if (logits_first) raise_logits(z, budget);
    if (stored) {
        /* A byte of memory for parameters then saves as many that drives move as one for inner activations: two in a
         * step. Where drives are so slow that none are stored, parameters go on doing so, and kept activations only
         * save computing, which is worth more with drives in between. So each gets half of what is left. */
        uint64_t used = measure(z);
        shore__carve_raise(&plan->residency.layers, z->m->arch.n_layer, used + (budget - used) / 2, measure, z);
    }
    shore__carve_raise(&plan->kept_inner, pairs, budget, measure, z);
    if (plan->offloaded_inner > pairs - plan->kept_inner) plan->offloaded_inner = pairs - plan->kept_inner;
    if (!logits_first) raise_logits(z, budget);
    shore__carve_raise(&plan->full_inner, plan->kept_inner, budget, measure, z);
}

/* With all units together the table is read, and packed for products, once for all of them, and a slice of its gradient
 * is added to while it is in the cache. */
static void raise_head_units(struct sizing *z, uint64_t budget) {
    struct train_plan *plan = z->plan, before = *plan;
    if (plan->head_units == plan->units) return;
    plan->head_units = plan->units;
    plan->kept_logits = z->m->nslices * plan->units;
    if (measure(z) > budget) *plan = before;
}

/* State of the table is read ahead where computing takes longer than the drives, and nothing but memory lies between.
 */
static bool reads_ahead(const struct sizing *z) {
    const struct shore__settings *s = z->s;
    return z->plan->rows > TOKENS_OF_BALANCE && z->m->arch.tied && z->plan->hold_table_gradient &&
           !shore__settings_in_ram(s) && !any_remote(s) && !s->emulate && !s->host_update && !(s->compress > 0);
}

static bool has_room_for_holes(uint64_t minimum, uint64_t budget) {
    return minimum + HOLES_FROM_BYTES <= budget;
}

/* Memory beyond the least goes where it saves most. */
static void raise_all(struct sizing *z, struct train_plan *plan, uint64_t budget) {
    uint32_t layers = z->m->arch.n_layer, ndrives = (uint32_t)z->s->drives.count;
    z->plan = plan;
    if (has_room_for_holes(measure(z), budget)) plan->hole_bytes = HOLE_BYTES;
    struct train_plan before = *plan;
    plan->residency.buffers = 2;
    if (measure(z) > budget) *plan = before;
    shore__carve_raise(&plan->gradient_buffers, 3, budget, measure, z);
    if (plan->host_buffers) {
        shore__carve_raise(&plan->host_segments, HOST_SEGMENTS, budget, measure, z);
        shore__carve_raise(&plan->host_buffers, HOST_BUFFERS, budget, measure, z);
    }
    before = *plan;
    plan->ring_bytes = (uint64_t)RING_BYTES_EACH * ndrives;
    if (measure(z) > budget) *plan = before;
    if (z->m->arch.tied) {
        before = *plan;
        plan->hold_table_gradient = true;
        if (measure(z) > budget) *plan = before;
    }
    before = *plan;
    plan->offloaded_inner = offloaded_most(z->s, z->m);
    if (measure(z) > budget) *plan = before;
    shore__carve_raise(&plan->kept_boundaries, layers + 1, budget, measure, z);
    before = *plan;
    if (plan->units > 1) plan->workspace_bytes += z->packed_bytes;
    if (measure(z) > budget) *plan = before;
    uint32_t pieces = count_pieces(z->m, plan->hold_table_gradient);
    /* each unit takes the table twice; what drives hold of inner activations moves twice for all units */
    if (head_goes_by_units(z) && plan->units > 1 && plan->offloaded_inner)
        shore__carve_raise(&plan->residency.table_slices, z->m->nslices, budget, measure, z);
    if (plan->rows > TOKENS_OF_BALANCE) raise_activations(z, budget);
    shore__carve_raise(&plan->gradient_buffers, pieces < GRADIENT_BUFFERS ? pieces : GRADIENT_BUFFERS, budget, measure,
                       z);
    raise_parameters(z, budget);
    if (plan->rows <= TOKENS_OF_BALANCE) raise_activations(z, budget);
    shore__carve_raise(&plan->gradient_buffers, pieces, budget, measure, z);
    raise_head_units(z, budget);
    plan->read_ahead = reads_ahead(z);
    measure(z);
}

/* Everything at once is tried first: raised one after the other, the first to be raised still share the room with
 * buffers that are not needed once the last ones are. */
static void spend(struct sizing *z, struct train_plan *plan, uint64_t minimum, uint64_t budget) {
    struct train_plan everything = *plan;
    raise_all(z, &everything, UINT64_MAX);
    if (!has_room_for_holes(minimum, budget)) everything.hole_bytes = 0;
    if (measure(z) <= budget)
        *plan = everything;
    else
        raise_all(z, plan, budget);
}

struct shore__shapes shore__train_shapes(const struct train_plan *plan, const struct shore__settings *s,
                                         const struct shore__model *m) {
    return shore__model_shapes(m, plan->unit_rows, plan->rows % plan->unit_rows, s->seq_len, true);
}

int shore__train_plan_make(const struct shore__settings *s, const struct shore__model *m, struct train_plan *out,
                           struct shore__needs *needs, struct shore_diag *diag) {
    struct train_plan *plan = out;
    *plan = (struct train_plan){.rows = rows_of(s), .unit_rows = unit_rows_of(s)};
    plan->head_units = plan->units = units_of(s);
    struct shore__shapes shapes = shore__train_shapes(plan, s, m);
    struct shore__compute_options compute = shore__settings_compute(s);
    struct shore__compute_description description;
    int rc = s->compress > 0 ? shore__compress_check(s, m, diag) : 0;
    if (!rc) rc = shore__compute_describe(&compute, &shapes, &description, diag);
    if (rc) return rc;
    plan->workspace_bytes = description.workspace_bytes;
    /* not opened: placing asks for these two */
    struct shore__compute c = {.mode = description.mode, .threads = description.threads};
    struct sizing z = {s, m, &c, NULL, description.packed_bytes};
    plan->residency.buffers = 1;
    plan->gradient_buffers = 1;
    plan->kept_boundaries = 1;
    plan->hold_table_gradient = m->arch.tied && s->compress > 0;
    if (s->host_update) {
        plan->host_buffers = 2;
        plan->host_segments = 1;
    }
    if (shore__settings_in_ram(s)) {
        /* No scratch and no spilling in memory: what would go there stays. */
        plan->kept_boundaries = m->arch.n_layer + 1;
        plan->hold_table_gradient = true;
        plan->gradient_buffers = count_pieces(m, true);
    }
    struct train_plan least = *plan, most = *plan;
    z.plan = &least;
    uint64_t minimum = measure(&z);
    if (m->arch.tied && !least.hold_table_gradient) {
        struct train_plan held = least;
        held.hold_table_gradient = true;
        z.plan = &held;
        if (measure(&z) <= minimum) {
            least = held;
            minimum = held.total_bytes;
        }
    }
    if (needs) {
        struct shore_fleet_options options;
        shore__train_fleet_options(s, m, &options);
        spend(&z, &most, minimum, UINT64_MAX);
        needs->minimum_bytes = minimum;
        needs->comfortable_bytes = most.total_bytes;
        if (!has_room_for_holes(minimum, most.total_bytes)) needs->comfortable_bytes -= most.hole_bytes;
        needs->disk_bytes = shore_fleet_disk_bytes(m->layout, &options);
        needs->pairs = m->arch.n_layer * plan->units;
        needs->kept_pairs = needs->offloaded_pairs = 0;
    }
    if (s->memory_bytes < minimum) {
        if (needs) return 0;
        char size[32], have[32];
        return shore__fail(
            diag, SHORE_EBUDGET, "--memory %s is too little for this model, batch and sequence length: minimum %s",
            shore__format_size(s->memory_bytes, have, sizeof have), shore__format_size_up(minimum, size, sizeof size));
    }
    *plan = least;
    spend(&z, plan, minimum, s->memory_bytes);
    if (needs) {
        needs->kept_pairs = plan->kept_inner;
        needs->offloaded_pairs = plan->offloaded_inner;
    }
    return 0;
}
