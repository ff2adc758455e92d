/* State of a tied table that is read ahead. The table's gradient is complete when backward ends, and the next forward
 * pass begins with the table: in between, the drives would read, update and write all of it that was looked up, while
 * the processors wait. So backward fetches as much of that state as idle memory has room for; when the gradient is
 * there, all threads update it where it lies and hand the parameters to their pages; and it goes to the drives beside
 * the next forward pass. The bits are those of UPDATE on the drives. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/chunk.h"
#include "drive/fleet/fleet.h"
#include "train/trainer.h"

/* Images [first, end), which lie one behind the other, in a row of the plan. */
struct group {
    unsigned char *memory;
    uint32_t first, end;
    struct shore__lifetime live;
};

struct ahead {
    uint32_t room; /* state images that there is memory for; 0: none is read ahead */
    uint32_t ngroups;
    struct group *groups;
    uint32_t count, asked; /* of this step's: chosen, and fetched or on their way */
    uint32_t *segments;    /* [room] of block 0, ascending: the image of each is at its index */
    unsigned char *chosen; /* the same by segment, until it is updated */
    bool under_way;        /* images are fetched, or stored */
    struct shore_wait wait;
};

static uint64_t image_bytes(const struct trainer *t) {
    return shore_fleet_state_bytes(t->fleet);
}

/* Those that hold nothing but rows of the table. */
static uint32_t table_segments(const struct trainer *t) {
    return (uint32_t)((uint64_t)t->m->arch.vocab * t->m->arch.d_model / SHORE_SEGMENT_ELEMS);
}

static void place_groups(const struct trainer *t, struct ahead *ahead) {
    uint32_t first = 0;
    for (uint32_t g = 0; g < ahead->ngroups; g++) {
        const struct shore__region *row = shore__regions_find(&t->plan.plan->rows, SHORE__ROW_TABLE_STATE, g);
        uint32_t end = first + (uint32_t)(row->bytes / image_bytes(t));
        ahead->groups[g] =
            (struct group){shore__memory_host(&t->memory, SHORE__ROW_TABLE_STATE, g), first, end, row->live};
        first = end;
    }
}

int shore__ahead_open(struct trainer *t, struct shore_diag *diag) {
    struct ahead *ahead = t->ahead = calloc(1, sizeof *ahead);
    if (!ahead) return shore__fail(diag, -ENOMEM, "out of memory for the trainer");
    ahead->room = t->plan.lending.states;
    if (!ahead->room) return 0;
    while (shore__regions_find(&t->plan.plan->rows, SHORE__ROW_TABLE_STATE, ahead->ngroups))
        ahead->ngroups++;
    ahead->groups = calloc(ahead->ngroups, sizeof *ahead->groups);
    ahead->segments = calloc(ahead->room, sizeof *ahead->segments);
    ahead->chosen = calloc(t->m->layout->blocks[0].segments, 1);
    if (!ahead->groups || !ahead->segments || !ahead->chosen)
        return shore__fail(diag, -ENOMEM, "out of memory for the trainer");
    place_groups(t, ahead);
    return 0;
}

void shore__ahead_close(struct ahead *ahead) {
    if (!ahead) return;
    free(ahead->groups);
    free(ahead->segments);
    free(ahead->chosen);
    free(ahead);
}

static const struct group *group_of(const struct trainer *t, uint32_t nth) {
    const struct group *group = t->ahead->groups;
    while (nth >= group->end)
        group++;
    return group;
}

static unsigned char *image(const struct trainer *t, uint32_t nth) {
    const struct group *group = group_of(t, nth);
    return group->memory + (nth - group->first) * image_bytes(t);
}

/* ---- what is chosen ------------------------------------------------------------------------------------------------
 */

/* Its page is in memory when its gradient is complete. */
static bool has_page(const struct trainer *t, uint32_t slice) {
    uint32_t page = shore__page_number(t->m, (struct shore__page_id){SHORE__PAGE_SLICE, 0, slice});
    return shore__plan_page(&t->plan, page)->way == SHORE_WAY_KEEP || shore__idle_lends_slice(t, slice);
}

/* Of a slice, what is complete after so many units' lookups, but no more than `most`. Returns how many. */
static uint32_t choose(struct trainer *t, struct shore__slice slice, uint32_t due, uint32_t most) {
    uint32_t n = 0, end = slice.segment + slice.segments;
    for (uint32_t s = slice.segment; s < end && s < table_segments(t) && n < most; s++) {
        if (shore__gradients_due(t, s) != due) continue;
        t->ahead->chosen[s] = 1;
        n++;
    }
    return n;
}

static void begin_requests(struct ahead *ahead) {
    shore_wait_init(&ahead->wait);
    ahead->under_way = true;
}

void shore__ahead_begin(struct trainer *t) {
    struct ahead *ahead = t->ahead;
    uint32_t left = ahead->room;
    ahead->count = ahead->asked = 0;
    if (!left || !shore_step_speculates(t->step)) return;
    for (uint32_t due = (uint32_t)t->plan.units; due >= 1; due--) /* what is complete last, first */
        for (uint32_t i = 0; i < t->m->nslices; i++)
            if (has_page(t, i)) left -= choose(t, shore__model_slice(t->m, i), due, left);
    for (uint32_t s = 0; s < table_segments(t); s++)
        if (ahead->chosen[s]) ahead->segments[ahead->count++] = s;
    if (ahead->count) begin_requests(ahead);
}

bool shore__ahead_has(const struct trainer *t, struct shore__slice slice) {
    return t->ahead->count && memchr(t->ahead->chosen + slice.segment, 1, slice.segments);
}

bool shore__ahead_takes(struct trainer *t, uint32_t segment) {
    struct ahead *ahead = t->ahead;
    if (!ahead->count || !ahead->chosen[segment]) return false;
    /* a page that could not be lent is not handed back */
    if (!shore__pages_place(t->pass.pages, 0, segment)) ahead->chosen[segment] = 0;
    return ahead->chosen[segment];
}

/* ---- requests ------------------------------------------------------------------------------------------------------
 */

/* Images that follow each other, of segments that do so, and all of them chosen still or none. */
static uint32_t run_from(const struct trainer *t, uint32_t nth, uint32_t end) {
    const struct ahead *ahead = t->ahead;
    const uint32_t *segments = ahead->segments;
    uint32_t n = 1;
    if (end > group_of(t, nth)->end) end = group_of(t, nth)->end;
    while (nth + n < end && segments[nth + n] == segments[nth] + n &&
           ahead->chosen[segments[nth + n]] == ahead->chosen[segments[nth]])
        n++;
    return n;
}

void shore__ahead_fetch(struct trainer *t, uint32_t layer, size_t u) {
    struct ahead *ahead = t->ahead;
    if (ahead->asked == ahead->count || !shore_step_speculates(t->step)) return;
    /* evenly over what is left of backward, but for the first layer */
    size_t units = t->plan.units, left = layer > 1 ? (layer - 1) * units - u : 1;
    uint32_t end = ahead->asked + (uint32_t)((ahead->count - ahead->asked + left - 1) / left);
    while (ahead->asked < end) {
        uint32_t n = run_from(t, ahead->asked, end);
        if (shore__phase_backward(t->m->arch.n_layer, layer) < group_of(t, ahead->asked)->live.from) return;
        shore_wait_add(&ahead->wait);
        int rc = shore_fleet_fetch(t->fleet, t->base_step, 0, ahead->segments[ahead->asked], n, SHORE_FETCH_STATE,
                                   image(t, ahead->asked), shore_wait_completion(&ahead->wait));
        if (rc) shore_wait_end(&ahead->wait, rc);
        ahead->asked += n;
    }
}

/* Waits for what was asked for, or for what is stored. */
int shore__ahead_settle(struct trainer *t, struct shore_diag *diag) {
    struct ahead *ahead = t->ahead;
    if (!ahead->under_way) return 0;
    uint64_t start = shore__now_ns();
    shore_wait_end(&ahead->wait, 0);
    int rc = shore_wait(&ahead->wait, diag);
    t->waits.drives_ns += shore__now_ns() - start;
    ahead->under_way = false;
    if (rc && diag && !diag->text[0])
        shore__fail(diag, rc, "state of the table cannot be read or stored: %s", shore_error_text(rc));
    return rc;
}

void shore__ahead_drop(struct trainer *t) {
    shore__ahead_settle(t, NULL);
    t->ahead->count = 0;
    if (t->ahead->room) memset(t->ahead->chosen, 0, table_segments(t));
}

bool shore__ahead_is_in_the_way(const struct trainer *t, uint32_t layer) {
    const struct ahead *ahead = t->ahead;
    return ahead->under_way &&
           (shore__idle_takes_back(t, layer) || shore__phase_forward(layer) > group_of(t, ahead->count - 1)->live.to);
}

/* ---- the update ----------------------------------------------------------------------------------------------------
 */

static int update_image(struct trainer *t, uint32_t nth, void *params, struct shore_diag *diag) {
    uint32_t segment = t->ahead->segments[nth];
    size_t at = (size_t)segment * SHORE_SEGMENT_ELEMS;
    const struct shore_update update = {
        .base_step = t->base_step,
        .attempt = shore_fleet_attempt(t->fleet),
        .segment = segment,
        .count = 1,
        .gradient = t->table_narrow ? (const void *)(t->table_narrow + at) : t->table_gradient + at,
        .form = t->table_narrow ? SHORE_GRADIENT_BF16 : SHORE_GRADIENT_FP32,
        .coefficient = 1,
        .groups = shore__gradients_hypers(t),
        .ngroups = SHORE__MODEL_GROUPS,
        .params_out = params,
    };
    return shore__image_update(&t->fleet->config, &update, image(t, nth), diag);
}

static int update_images(struct trainer *t, struct shore_diag *diag) {
    const struct ahead *ahead = t->ahead;
    int worst = 0;
#pragma omp parallel for num_threads(t->c->threads) schedule(dynamic)
    for (uint32_t i = 0; i < ahead->count; i++) {
        struct shore_diag why = {0};
        void *params = shore__pages_place(t->pass.pages, 0, ahead->segments[i]);
        int rc = ahead->chosen[ahead->segments[i]] ? update_image(t, i, params, &why) : 0;
        if (!rc) continue;
#pragma omp critical
        {
            if (!worst) *diag = why;
            worst = rc;
        }
    }
    return worst;
}

/* Behind what the next forward pass waits for. */
static int store(struct trainer *t, uint32_t nth, uint32_t count) {
    const struct shore_store store = {
        .size = sizeof store,
        .base_step = t->base_step,
        .attempt = shore_fleet_attempt(t->fleet),
        .segment = t->ahead->segments[nth],
        .count = count,
        .state = image(t, nth),
        .order = shore__model_head(t->m),
    };
    return shore_fleet_store(t->fleet, &store, shore_wait_completion(&t->ahead->wait));
}

static uint32_t slice_page(const struct trainer *t, uint32_t slice) {
    return shore__page_number(t->m, (struct shore__page_id){SHORE__PAGE_SLICE, 0, slice});
}

int shore__ahead_update(struct trainer *t, struct shore_diag *diag) {
    struct ahead *ahead = t->ahead;
    if (!ahead->count || !shore_step_speculates(t->step)) return 0;
    int rc = shore__ahead_settle(t, diag);
    shore__parameters_release(t->pass.parameters);
    for (uint32_t i = 0; i < t->m->nslices; i++)
        if (shore__ahead_has(t, shore__model_slice(t->m, i))) shore_pages_settle(t->pass.pages, slice_page(t, i));
    if (!rc) rc = update_images(t, diag);
    if (rc) return rc;
    for (uint32_t i = 0; i < t->m->nslices; i++)
        if (shore__ahead_has(t, shore__model_slice(t->m, i)))
            shore_pages_updated(t->pass.pages, slice_page(t, i), t->base_step + 1);
    begin_requests(ahead);
    for (uint32_t i = 0, n; i < ahead->count; i += n) {
        n = run_from(t, i, ahead->count);
        if (!ahead->chosen[ahead->segments[i]]) continue;
        shore_wait_add(&ahead->wait);
        rc = store(t, i, n);
        if (rc) shore_wait_end(&ahead->wait, rc);
    }
    memset(ahead->chosen, 0, table_segments(t));
    return 0;
}
