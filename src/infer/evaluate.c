#include <errno.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "infer/generate.h"
#include "infer/pass.h"

#define BATCH_ROWS 4096u /* evaluated together: parameters are fetched once for them */

/* Everything opened for inference with a budget. */
struct session {
    struct shore__compute *c;
    struct shore_arena *arena;
    struct shore__carve memory;
    struct shore__pager *pager;
    struct shore__pass pass;
};

static void close_session(struct session *s) {
    shore__pager_close(s->pager);
    if (s->c) s->c->ops->close(s->c);
    shore__arena_close(s->arena);
}

/* The pages grow with what the budget leaves beyond `others`. */
struct pages {
    const struct shore__model *m;
    enum shore__mode mode;
    struct shore__residency residency;
};
static uint64_t pages_bytes(void *ctx) {
    const struct pages *p = ctx;
    return shore__pager_bytes(p->m, p->mode, &p->residency);
}
static uint64_t choose_pages(const struct shore__model *m, enum shore__mode mode, uint64_t room,
                             struct shore__residency *r) {
    struct pages p = {m, mode, *r};
    shore__carve_raise(&p.residency.buffers, 2, room, pages_bytes, &p);
    shore__carve_raise(&p.residency.table_slices, m->nslices, room, pages_bytes, &p);
    shore__carve_raise(&p.residency.layers, m->arch.n_layer, room, pages_bytes, &p);
    shore__carve_raise(&p.residency.input_slices, m->arch.tied ? 0 : m->nslices, room, pages_bytes, &p);
    *r = p.residency;
    return pages_bytes(&p);
}

/* What primitives and libraries take beyond what is resident before they are used. */
#define LIBRARY_BYTES (40u << 20)

static uint64_t base_bytes(uint64_t resident) {
    return (resident + LIBRARY_BYTES + (8u << 20) - 1) >> 23 << 23;
}

static int open_session(const struct shore__weights_of *of, const struct shore__infer_options *o, size_t sequences,
                        uint64_t work_bytes, struct session *s, struct shore_diag *diag) {
    const struct shore__model *m = of->model;
    uint64_t resident, peak;
    shore__resident_bytes(&resident, &peak);
    int rc = shore__compute_open(&o->compute, &s->c, diag);
    if (rc) return rc;
    s->pass = (struct shore__pass){.m = m, .c = s->c};
    /* a generated text takes its tokens one by one, but attends to all of them */
    size_t rows = 1, unit = 1;
    if (!work_bytes) {
        rows = sequences * o->seq_len;
        unit = shore__unit_sequences(o->seq_len) * o->seq_len;
    }
    struct shore__shapes shapes =
        shore__model_shapes(m, unit < rows ? unit : rows, rows > unit ? rows % unit : 0, o->seq_len, false);
    struct shore__compute_description description;
    rc = shore__compute_describe(&o->compute, &shapes, &description, diag);
    if (rc) return rc;
    size_t workspace = description.workspace_bytes;
    struct shore__carve measure = {0};
    if (!work_bytes) shore__pass_place(&s->pass, sequences, o->seq_len, &measure);
    uint64_t x_bytes = shore__arena_round(rows * m->arch.d_model * 4);
    uint64_t others = measure.used + work_bytes + x_bytes + shore__arena_round(workspace);
    uint64_t base = base_bytes(resident);
    struct shore__residency residency = {.buffers = 1};
    uint64_t least = base + others + shore__pager_bytes(m, s->c->mode, &residency);
    if (o->memory_bytes < least) {
        char size[32];
        least += base_bytes(resident + SHORE__RESIDENT_VARIES_BYTES) - base;
        return shore__fail(diag, SHORE_EBUDGET, "--memory is too little for this model and %zu tokens: minimum %s",
                           sequences * o->seq_len, shore__format_size_up(least, size, sizeof size));
    }
    uint64_t pages = choose_pages(m, s->c->mode, o->memory_bytes - base - others, &residency);
    rc = shore__arena_open(others + pages, &s->arena, diag);
    if (rc) return rc;
    s->memory.base = (uintptr_t)shore__arena_alloc(s->arena, others + pages);
    rc = s->c->ops->make(s->c, &shapes, shore__carve_take(&s->memory, workspace), workspace, diag);
    if (!rc) rc = shore__pager_open(of, s->c, &residency, &s->memory, &s->pager, diag);
    if (rc) return rc;
    struct shore_fleet_info info = {.size = sizeof info};
    if (of->fleet) shore_fleet_info(of->fleet, &info);
    shore__pager_set_step(s->pager, info.step);
    if (!work_bytes) shore__pass_place(&s->pass, sequences, o->seq_len, &s->memory);
    s->pass.pager = s->pager;
    return 0;
}

static int window(struct session *s, struct shore__dataset *data, uint64_t first, size_t n, shore__buf x, double *sum,
                  struct shore_diag *diag) {
    int rc = shore__dataset_read(data, first, n, (int32_t *)s->pass.tokens.handle, diag);
    if (!rc) rc = shore__dataset_read(data, first + 1, n, (int32_t *)s->pass.targets.handle, diag);
    if (!rc) rc = shore__pass_embed(&s->pass, x, diag);
    for (uint32_t l = 1; !rc && l <= s->pass.m->arch.n_layer; l++)
        rc = shore__pass_layer(&s->pass, l, x, x, diag);
    if (!rc) rc = shore__pass_loss(&s->pass, x, diag);
    if (!rc) *sum += shore__pass_loss_sum(&s->pass);
    return rc;
}

int shore__evaluate(const struct shore__weights_of *weights, const struct shore__infer_options *options,
                    struct shore__dataset *data, uint64_t max_tokens, shore__progress_fn progress, void *ctx,
                    struct shore__eval_result *out, struct shore_diag *diag) {
    struct session s = {0};
    struct shore__infer_options o = *options;
    uint64_t count = shore__dataset_tokens(data);
    if (count < 2)
        return shore__fail(diag, SHORE_EINPUT, "the data have %llu tokens: two are needed at least",
                           (unsigned long long)count);
    count -= 1;
    if (max_tokens && max_tokens < count) count = max_tokens;
    if (o.seq_len > count) o.seq_len = (size_t)count;
    size_t sequences = BATCH_ROWS / o.seq_len ? BATCH_ROWS / o.seq_len : 1;
    if (sequences > count / o.seq_len) sequences = (size_t)(count / o.seq_len);
    int rc = open_session(weights, &o, sequences, 0, &s, diag);
    while (rc == SHORE_EBUDGET && sequences > 1) {
        close_session(&s);
        s = (struct session){0};
        sequences /= 2;
        rc = open_session(weights, &o, sequences, 0, &s, diag);
    }
    shore__buf x = SHORE__NO_BUF;
    if (!rc) x = shore__carve_take(&s.memory, sequences * o.seq_len * weights->model->arch.d_model * 4);
    double sum = 0;
    for (uint64_t done = 0; !rc && done < count;) {
        uint64_t left = count - done;
        s.pass.seq_len = left < o.seq_len ? (size_t)left : o.seq_len;
        s.pass.sequences = left / s.pass.seq_len < sequences ? (size_t)(left / s.pass.seq_len) : sequences;
        rc = window(&s, data, done, shore__pass_rows(&s.pass), x, &sum, diag);
        done += shore__pass_rows(&s.pass);
        if (!rc && progress && progress(ctx, done, count))
            rc = shore__fail(diag, -ECANCELED, "interrupted after %llu tokens", (unsigned long long)done);
    }
    close_session(&s);
    *out = (struct shore__eval_result){sum / (double)count, count};
    return rc;
}

int shore__generate(const struct shore__weights_of *weights, const struct shore__infer_options *options,
                    const uint32_t *prompt, size_t nprompt, const struct shore__sampling *sampling,
                    int (*emit)(void *ctx, uint32_t token), void *ctx, struct shore_diag *diag) {
    struct session s = {0};
    struct shore__infer_options o = *options;
    const struct shore__model *m = weights->model;
    size_t want = shore__generate_positions(m, nprompt + sampling->max_tokens);
    /* so many that the sums below could overflow */
    if (want > (UINT64_C(1) << 56) / (2 * (uint64_t)m->kv_width * m->arch.n_layer))
        return shore__fail(diag, SHORE_EBUDGET, "--memory is too little for the keys and values of %zu tokens", want);
    uint64_t work = shore__generate_bytes(m, o.compute.fp32 ? SHORE__F32 : SHORE__BF16_IN_F32, want);
    o.seq_len = want;
    int rc = open_session(weights, &o, 1, work, &s, diag);
    if (!rc) rc = shore__generate_in(s.pager, m, s.c, &s.memory, work, prompt, nprompt, sampling, emit, ctx, diag);
    close_session(&s);
    return rc;
}
