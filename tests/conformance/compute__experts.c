/* Routing and the products of experts, in every mode, against the scalar reference; and the same bits for any number of
 * threads, and for rows that come apart. */
#include "conformance/compute_away.h"
#include "conformance/compute_lend.h"
#include "seed.h"

/* Widths of the model and of an expert. */
struct sizes {
    size_t rows, experts, chosen, d, ff;
    bool renormalised;
};

struct results {
    shore__buf b[16];
    size_t bytes[16];
    bool is_f32[16];
    int n;
};

static shore__buf keep(struct results *r, shore__buf b, size_t bytes, bool is_f32) {
    r->b[r->n] = b;
    r->bytes[r->n] = bytes;
    r->is_f32[r->n++] = is_f32;
    return b;
}
static void free_results(struct results *r) {
    for (int i = 0; i < r->n; i++)
        drop(r->b[i]);
}

#define TRY(call) assert_int_equal((call), 0)

/* Forward and backward of a layer's experts. given: another backend's route, activations and gradients of activations,
 * so that roundings do not add up; or NULL. */
static struct results layer(struct backend *b, const struct sizes *z, const struct results *given) {
    enum shore__mode mode = b->c->mode;
    size_t e = shore__mode_bytes(mode), places = z->rows * z->chosen, up = 2 * z->ff;
    size_t elems = (up * z->d + 255) / 256 * 256 + (z->ff * z->d + 255) / 256 * 256;
    struct shore__routing routing = {z->experts, z->chosen, z->renormalised, elems, up}, *r = &routing;
    struct results out = {.n = 0};
    shore__buf x = random_act(mode, 1, z->rows * z->d, 1), w = random_act(mode, 2, z->experts * elems, 0.3);
    shore__buf logits = random_act(mode, 3, z->rows * z->experts, 2), bias = random_f32(4, z->experts * up, 1, 0);
    shore__buf dout = random_act(mode, 5, z->rows * z->d, 1), balance = random_f32(6, z->experts, 1, 0);
    /* ties, and an expert that no row goes to */
    for (size_t t = 0; t < z->rows; t++)
        for (size_t i = 0; i < z->experts; i++) {
            float to = i == 1 ? -60 : t % 5 == 0 ? 1 : value(mode, logits, t * z->experts + i);
            if (mode == SHORE__BF16)
                ((uint16_t *)logits.handle)[t * z->experts + i] = shore__f32_to_bf16(to);
            else
                f32(logits)[t * z->experts + i] = to;
        }
#define ACT(n) keep(&out, empty_act(mode, n), (n)*e, false)
#define NEXT(bytes) (given ? copy_of(given->b[out.n - 1], bytes) : copy_of(out.b[out.n - 1], bytes))
    size_t route_bytes = shore__route_elems(z->rows, r) * 4;
    shore__buf route = keep(&out, room(route_bytes, 0), route_bytes, true);
    TRY(ON(*b, route, route, logits, z->rows, r));
    shore__buf load = keep(&out, room(2 * z->experts * 8, 0), 2 * z->experts * 8, true);
    memset((void *)load.handle, 0, 2 * z->experts * 8);
    TRY(ON(*b, route_count, load, logits, route, z->rows, r));
    shore__buf xs = ACT(places * z->d);
    TRY(ON(*b, experts_gather, xs, x, route, z->rows, z->d, r));
    shore__buf ups = ACT(places * up);
    TRY(ON(*b, experts_linear, ups, xs, w, bias, route, z->rows, up, z->d, true, r));
    shore__buf own_ups = NEXT(places * up * e), acts = ACT(places * z->ff);
    TRY(ON(*b, act, acts, own_ups, SHORE__SILU, true, places, up));
    shore__buf own_acts = NEXT(places * z->ff * e), downs = ACT(places * z->d);
    shore__buf down = shore__at(w, (up * z->d + 255) / 256 * 256 * e);
    TRY(ON(*b, experts_linear, downs, own_acts, down, SHORE__NO_BUF, route, z->rows, z->d, z->ff, false, r));
    shore__buf own_downs = NEXT(places * z->d * e), y = ACT(z->rows * z->d);
    TRY(ON(*b, experts_scatter, y, own_downs, route, z->rows, z->d, true, false, r));

    shore__buf dys = empty_act(mode, places * z->d);
    TRY(ON(*b, experts_gather, dys, dout, route, z->rows, z->d, r));
    shore__buf dacts = ACT(places * z->ff);
    TRY(ON(*b, experts_linear_backward_x, dacts, dys, down, route, z->rows, z->d, z->ff, false, r));
    shore__buf own_dacts = NEXT(places * z->ff * e);
    shore__buf dweights = keep(&out, room(places * 4, 0), places * 4, true);
    TRY(ON(*b, experts_weigh, dweights, own_dacts, own_acts, route, z->rows, z->ff, r));
    shore__buf biased = keep(&out, copy_of(out.b[out.n - 1], places * 4), places * 4, true);
    shore__buf weighed = keep(&out, copy_of(own_ups, places * up * e), places * up * e, false);
    TRY(ON(*b, experts_weigh_bias, biased, weighed, bias, route, z->rows, up, r));
    shore__buf own_dweights = given ? copy_of(given->b[8], places * 4) : copy_of(dweights, places * 4);
    shore__buf dw = keep(&out, random_f32(7, z->experts * elems, 1, 0), z->experts * elems * 4, true);
    shore__buf ddown = shore__at(dw, (up * z->d + 255) / 256 * 256 * 4);
    TRY(ON(*b, experts_linear_backward_w, ddown, dys, own_acts, route, z->rows, z->d, z->ff, false, false, r));
    TRY(ON(*b, experts_linear_backward_w, ddown, dys, own_acts, route, z->rows, z->d, z->ff, false, true, r));
    TRY(ON(*b, experts_linear_backward_w, dw, own_ups, xs, route, z->rows, up, z->d, true, true, r));
    shore__buf db = keep(&out, random_f32(8, z->experts * elems, 1, 0), z->experts * elems * 4, true);
    TRY(ON(*b, experts_bias_backward, db, own_ups, route, z->rows, up, r));
    shore__buf dx = keep(&out, copy_of(dout, z->rows * z->d * e), z->rows * z->d * e, false);
    TRY(ON(*b, experts_scatter, dx, dys, route, z->rows, z->d, false, true, r));
    for (int balanced = 0; balanced < 2; balanced++) {
        shore__buf dlogits = ACT(z->rows * z->experts), with = balanced ? balance : SHORE__NO_BUF;
        TRY(ON(*b, route_backward, dlogits, own_dweights, logits, route, with, z->rows, r));
    }
    shore__buf rest[] = {x, w, logits, bias, dout, balance, own_ups, own_acts, own_downs, dys, own_dacts, own_dweights};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        drop(rest[i]);
    return out;
}

static const struct sizes sizes[] = {
    {40, 8, 2, 32, 24, true},
    {33, 5, 5, 17, 9, false},
    {1, 8, 3, 64, 40, false},
    {300, 3, 2, 70, 131, true},
};

static struct shore__shapes shapes_of(const struct sizes *z) {
    return (struct shore__shapes){.unit_rows = z->rows,
                                  .seq_len = z->rows,
                                  .d_model = z->d,
                                  .experts = z->experts,
                                  .expert_up = 2 * z->ff,
                                  .expert_ff = z->ff,
                                  .backward = true};
}

static void as_the_reference(void **state) {
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        FOR_EACH_MODE(mode) {
            const struct sizes *z = &sizes[i];
            struct shore__shapes shapes = shapes_of(z);
            struct backend both[2] = {open_reference(mode), open_tested(mode, 2, &shapes)};
            if (!both[1].c) {
                close_backend(&both[0]);
                continue;
            }
            struct results want = layer(&both[0], z, NULL), got = layer(&both[1], z, &want);
            assert_int_equal(want.n, got.n);
            for (int n = 0; n < want.n; n++) {
                char what[64];
                snprintf(what, sizeof what, "result %d of size %zu", n, i);
                size_t width = want.is_f32[n] ? 4 : shore__mode_bytes(mode), weights = z->rows * z->chosen;
                if (n == 0) { /* the weights; all else of a route are numbers */
                    close_to(what, mode, got.b[0], want.b[0], weights, 2e-6, 0);
                    same_bytes(what, mode, shore__at(got.b[0], weights * 4), shore__at(want.b[0], weights * 4),
                               want.bytes[0] - weights * 4);
                } else if (n == 1) {
                    const double *g = (const double *)got.b[1].handle, *w = (const double *)want.b[1].handle;
                    for (size_t e = 0; e < 2 * z->experts; e++)
                        assert_true(fabs(g[e] - w[e]) <= 1e-6 * (1 + w[e]));
                } else {
                    double room = mode == SHORE__F32 || want.is_f32[n] ? 4e-6 : 2e-5;
                    close_to(what, want.is_f32[n] ? SHORE__F32 : mode, got.b[n], want.b[n], want.bytes[n] / width, room,
                             sqrt((double)(z->d + z->ff + z->rows)));
                }
            }
            free_results(&want), free_results(&got);
            close_backend(&both[0]), close_backend(&both[1]);
        }
}

/* Of equal logits the first; an expert that no row goes to has no rows, and its gradient is what it was, or nothing.
 * Without logits, rows are counted alone. */
static void ties_and_experts_without_rows(void **state) {
    FOR_EACH_MODE(mode) {
        const struct sizes *z = &sizes[0];
        struct shore__shapes shapes = shapes_of(z);
        struct backend b = open_tested(mode, 2, &shapes);
        if (!b.c) continue;
        struct results got = layer(&b, z, NULL);
        struct shore__routing r = {z->experts, z->chosen, z->renormalised, 0, 0};
        const int32_t *route = (const int32_t *)got.b[0].handle;
        const int32_t *expert = route + shore__route_at(SHORE__ROUTE_EXPERT, z->rows, &r);
        const int32_t *first = route + shore__route_at(SHORE__ROUTE_FIRST, z->rows, &r);
        for (size_t t = 0; t < z->rows; t += 5)
            assert_true(expert[t * 2] == 0 && expert[t * 2 + 1] == 2 && f32(got.b[0])[t * 2] == 0.5f);
        assert_int_equal(first[1], first[2]);
        assert_int_equal(first[z->experts], z->rows * z->chosen);
        size_t up = 2 * z->ff * z->d, elems = up + z->ff * z->d; /* multiples of 256 */
        shore__buf before = random_f32(7, z->experts * elems, 1, 0);
        for (size_t i = 0; i < elems; i++) /* result 11: gradients of weights; those of `down` were written over */
            assert_true(f32(got.b[11])[elems + i] == (i < up ? f32(before)[elems + i] : 0));
        drop(before);
        shore__buf load = room(2 * z->experts * 8, 0);
        double *counted = (double *)load.handle, *with_sums = (double *)got.b[1].handle;
        memset(counted, 0, 2 * z->experts * 8);
        TRY(ON(b, route_count, load, SHORE__NO_BUF, got.b[0], z->rows, &r));
        for (size_t e = 0; e < z->experts; e++)
            assert_true(counted[e] == with_sums[e] && counted[z->experts + e] == 0);
        drop(load);
        free_results(&got);
        close_backend(&b);
    }
}

static void same_bits_over_threads(void **state) {
    static const struct sizes many = {301, 9, 3, 200, 97, true};
    bool wide_vectors = strstr(shore__processor_kind(), "avx512") || strstr(shore__processor_kind(), "amx");
    if (!on_the_processor()) return;
    FOR_EACH_MODE(mode) {
        struct results want = {.n = 0};
        for (int threads = 1; threads <= (wide_vectors ? 5 : 1); threads++) {
            struct shore__shapes shapes = shapes_of(&many);
            struct backend b = open_tested(mode, threads, &shapes);
            if (!b.c) break;
            struct results got = layer(&b, &many, NULL);
            for (int n = 0; n < want.n; n++)
                same_bytes("result over threads", mode, got.b[n], want.b[n], want.bytes[n]);
            close_backend(&b);
            if (threads > 1) free_results(&want);
            want = got;
        }
        free_results(&want);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_the_reference),
        cmocka_unit_test(ties_and_experts_without_rows),
        cmocka_unit_test(same_bits_over_threads),
    };
    if (argc > 1) tested_device = argv[1];
    away_seed = test_seed();
    shore__compute_register(&away_backend);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
