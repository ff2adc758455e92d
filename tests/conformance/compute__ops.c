/* Every operation of a backend, in every mode, against the scalar reference: of the processor, and of a device whose
 * memory is not the host's. */
#include "conformance/compute_away.h"
#include "conformance/compute_lend.h"
#include "seed.h"

#define BOTH(call_ref, call_cpu)         \
    do {                                 \
        assert_int_equal((call_ref), 0); \
        assert_int_equal((call_cpu), 0); \
    } while (0)

static struct shore__shapes shapes_of(size_t rows, size_t d) {
    return (struct shore__shapes){.unit_rows = rows,
                                  .seq_len = rows,
                                  .d_model = d,
                                  .linear = {{3 * d, d, true}, {d, d, true}, {4 * d, d, true}, {d, 4 * d, false}},
                                  .nlinear = 4,
                                  .n_head = 1,
                                  .n_kv_head = 1,
                                  .head_dim = d,
                                  .vocab_slice = 64,
                                  .last_slice = 7,
                                  .backward = true};
}

static void linear_case(enum shore__mode mode, size_t rows, size_t n, size_t k, bool nk, bool with_bias) {
    struct shore__shapes shapes = shapes_of(rows, k);
    struct backend cpu = open_tested(mode, 2, &shapes), ref = open_reference(mode);
    if (!cpu.c) return close_backend(&ref);
    shore__buf x = random_act(mode, 1, rows * k, 1), w = random_act(mode, 2, n * k, 1),
               dy = random_act(mode, 3, rows * n, 1);
    shore__buf bias = with_bias ? random_f32(4, n, 1, 0) : SHORE__NO_BUF;
    shore__buf y[2] = {empty_act(mode, rows * n), empty_act(mode, rows * n)};
    shore__buf dx[2] = {empty_act(mode, rows * k), empty_act(mode, rows * k)};
    shore__buf dw[2] = {random_f32(5, n * k, 1, 0), random_f32(5, n * k, 1, 0)};
    shore__buf db[2] = {random_f32(6, n, 1, 0), random_f32(6, n, 1, 0)};
    BOTH(ON(ref, linear, y[0], x, w, bias, rows, n, k, nk), ON(cpu, linear, y[1], x, w, bias, rows, n, k, nk));
    close_to("linear", mode, y[1], y[0], rows * n, 1e-6, sqrt((double)k));
    BOTH(ON(ref, linear_backward_x, dx[0], dy, w, rows, n, k, nk),
         ON(cpu, linear_backward_x, dx[1], dy, w, rows, n, k, nk));
    close_to("linear_backward_x", mode, dx[1], dx[0], rows * k, 1e-6, sqrt((double)n));
    BOTH(ON(ref, linear_backward_w, dw[0], dy, x, rows, n, k, nk, true),
         ON(cpu, linear_backward_w, dw[1], dy, x, rows, n, k, nk, true));
    close_to("linear_backward_w", SHORE__F32, dw[1], dw[0], n * k, 1e-6, sqrt((double)rows) + 1);
    for (size_t i = 0; i < n * k; i++)
        f32(dw[0])[i] = f32(dw[1])[i] = NAN; /* what is written over does not matter */
    BOTH(ON(ref, linear_backward_w, dw[0], dy, x, rows, n, k, nk, false),
         ON(cpu, linear_backward_w, dw[1], dy, x, rows, n, k, nk, false));
    close_to("linear_backward_w, written over", SHORE__F32, dw[1], dw[0], n * k, 1e-6, sqrt((double)rows) + 1);
    BOTH(ON(ref, bias_backward, db[0], dy, rows, n), ON(cpu, bias_backward, db[1], dy, rows, n));
    close_to("bias_backward", SHORE__F32, db[1], db[0], n, 1e-6, sqrt((double)rows) + 1);
    for (int i = 0; i < 2; i++)
        drop(y[i]), drop(dx[i]), drop(dw[i]), drop(db[i]);
    drop(x), drop(w), drop(dy);
    if (with_bias) drop(bias);
    close_backend(&cpu), close_backend(&ref);
}
static void linear(void **state) {
    FOR_EACH_MODE(mode) {
        linear_case(mode, 64, 96, 32, true, true);
        linear_case(mode, 64, 96, 32, false, false);
        linear_case(mode, 37, 19, 53, true, false);
        linear_case(mode, 37, 19, 53, false, true);
        linear_case(mode, 1, 40, 24, true, true);
        linear_case(mode, 130, 257, 129, false, true);
        linear_case(mode, 5, 3, 1, true, true);
        if (!on_the_processor()) continue;
        linear_case(mode, 773, 70, 131, true, true); /* so many rows read weights packed */
        linear_case(mode, 800, 131, 70, false, false);
        linear_case(mode, 810, 320, 608, true, true); /* whole lines of output, sums in pieces */
        linear_case(mode, 301, 523, 600, true, true); /* sums in pieces, in several jobs */
        linear_case(mode, 767, 25, 9, false, true);
    }
}

static void head_case(enum shore__mode mode, size_t rows, size_t d, size_t vocab, size_t slice, float cap) {
    struct shore__shapes shapes = shapes_of(rows, d);
    struct backend cpu = open_tested(mode, 2, &shapes), ref = open_reference(mode);
    if (!cpu.c) return close_backend(&ref);
    struct backend *both[2] = {&ref, &cpu};
    shore__buf x = random_act(mode, 1, rows * d, 1), w = random_act(mode, 2, vocab * d, 1),
               targets = random_ints(3, rows, vocab);
    shore__buf loss[2], max[2], sum[2], target[2], dx[2], dw[2], dl[2];
    for (size_t r = 1; r < rows; r += 4)
        ((int32_t *)targets.handle)[r] = -1;
    for (int i = 0; i < 2; i++) {
        struct backend *b = both[i];
        shore__buf logits = room(rows * slice * 4, 0);
        loss[i] = room(rows * 4, 0), max[i] = room(rows * 4, 0), sum[i] = room(rows * 4, 0);
        target[i] = room(rows * 4, 0), dx[i] = random_f32(4, rows * d, 1, 0), dw[i] = random_f32(5, vocab * d, 1, 0);
        dl[i] = empty_act(mode, rows * slice);
        for (size_t r = 0; r < rows; r++)
            f32(max[i])[r] = -INFINITY, f32(sum[i])[r] = 0;
        for (int pass = 0; pass < 2; pass++) {
            for (size_t first = 0; first < vocab; first += slice) {
                size_t n = vocab - first < slice ? vocab - first : slice;
                shore__buf piece = shore__at(w, first * d * shore__mode_bytes(mode));
                assert_int_equal(ON(*b, head_logits, logits, x, piece, cap, rows, n, d), 0);
                if (pass == 0) {
                    assert_int_equal(ON(*b, head_merge, max[i], sum[i], target[i], logits, targets, rows, n, first), 0);
                    continue;
                }
                assert_int_equal(
                    ON(*b, head_dlogits, dl[i], logits, max[i], sum[i], targets, 0.5f, cap, rows, n, first), 0);
                assert_int_equal(ON(*b, head_backward_x, dx[i], dl[i], piece, rows, n, d), 0);
                shore__buf at = shore__at(dw[i], first * d * 4);
                assert_int_equal(ON(*b, head_backward_w, at, dl[i], x, rows, n, d, first > 0), 0);
            }
            if (pass == 0) assert_int_equal(ON(*b, head_loss, loss[i], max[i], sum[i], target[i], targets, rows), 0);
        }
        drop(logits);
    }
    close_to("head_loss", SHORE__F32, loss[1], loss[0], rows, 2e-6, sqrt((double)d));
    size_t last = vocab % slice ? vocab % slice : slice;
    close_to("head_dlogits", mode, dl[1], dl[0], rows * last, 2e-5, 0.01);
    for (size_t r = 1; r < rows; r += 4) { /* rows that count as nothing */
        assert_true(f32(loss[0])[r] == 0 && f32(loss[1])[r] == 0);
        for (size_t j = r * last; j < (r + 1) * last; j++)
            assert_true(value(mode, dl[0], j) == 0 && value(mode, dl[1], j) == 0);
    }
    double rounding = mode == SHORE__F32 ? 1e-5 : 4e-3; /* of dlogits, which are near in both but not the same */
    close_to("head_backward_x", SHORE__F32, dx[1], dx[0], rows * d, rounding, 1);
    close_to("head_backward_w", SHORE__F32, dw[1], dw[0], vocab * d, rounding, 1);
    for (int i = 0; i < 2; i++)
        drop(loss[i]), drop(max[i]), drop(sum[i]), drop(target[i]), drop(dx[i]), drop(dw[i]), drop(dl[i]);
    drop(x), drop(w), drop(targets);
    close_backend(&cpu), close_backend(&ref);
}
/* What is nearly sure has a loss far below its logits, and a gradient that is as small. */
static void head_of_the_sure(void **state) {
    (void)state;
    enum { VOCAB = 19, TARGET = 5 };
    struct shore__shapes shapes = shapes_of(1, 8);
    struct backend both[2] = {open_reference(SHORE__F32), open_tested(SHORE__F32, 1, &shapes)};
    shore__buf logits = random_f32(1, VOCAB, 1, 290), targets = random_ints(1, 1, 1), dl = room(VOCAB * 4, 0);
    shore__buf loss = room(4, 0), max = room(4, 0), sum = room(4, 0), target = room(4, 0);
    ((int32_t *)targets.handle)[0] = TARGET;
    f32(logits)[TARGET] = 300.1f;
    double rest = 0;
    for (int j = 0; j < VOCAB; j++)
        if (j != TARGET) rest += exp((double)f32(logits)[j] - f32(logits)[TARGET]);
    for (int i = 0; i < 2; i++) {
        f32(max)[0] = -INFINITY, f32(sum)[0] = 0;
        assert_int_equal(ON(both[i], head_merge, max, sum, target, logits, targets, 1, VOCAB, 0), 0);
        assert_int_equal(ON(both[i], head_loss, loss, max, sum, target, targets, 1), 0);
        assert_int_equal(ON(both[i], head_dlogits, dl, logits, max, sum, targets, 1.0f, 0.0f, 1, VOCAB, 0), 0);
        assert_true(fabs(f32(loss)[0] - log1p(rest)) < 3e-7);
        assert_true(fabs(f32(dl)[TARGET] + rest / (1 + rest)) < 3e-7);
        close_backend(&both[i]);
    }
    drop(logits), drop(targets), drop(dl), drop(loss), drop(max), drop(sum), drop(target);
}

static void head(void **state) {
    FOR_EACH_MODE(mode) {
        head_case(mode, 32, 16, 135, 64, 0);
        head_case(mode, 7, 40, 33, 64, 2.5f);
        head_case(mode, 65, 8, 64, 5, 30);
        if (on_the_processor()) head_case(mode, 769, 33, 135, 67, 0);
    }
}

static void norm_case(enum shore__mode mode, size_t rows, size_t d, int kind) {
    bool rms = kind != SHORE__LAYER_NORM;
    struct shore__shapes shapes = shapes_of(8, 8);
    struct backend cpu = open_tested(mode, 2, &shapes), ref = open_reference(mode);
    if (!cpu.c) return close_backend(&ref);
    struct backend *both[2] = {&ref, &cpu};
    shore__buf x = random_act(mode, 1, rows * d, 3), dy = random_act(mode, 2, rows * d, 1),
               more = random_act(mode, 3, rows * d, 1);
    shore__buf gain = random_f32(4, d, 0.5, 1), bias = rms ? SHORE__NO_BUF : random_f32(5, d, 1, 0);
    shore__buf stats0 = room(rows * 8, 0);
    shore__buf y[2], stats[2], dx[2], dx2[2], dgain[2], dbias[2];
    for (int i = 0; i < 2; i++) {
        struct backend *b = both[i];
        y[i] = empty_act(mode, rows * d), stats[i] = room(rows * 8, 0),
        dx[i] = copy_of(more, rows * d * shore__mode_bytes(mode));
        dx2[i] = copy_of(dy, rows * d * shore__mode_bytes(mode));
        dgain[i] = random_f32(6, d, 1, 0), dbias[i] = random_f32(7, d, 1, 0);
        assert_int_equal(ON(*b, norm, y[i], stats[i], x, gain, bias, 1e-5f, kind, rows, d), 0);
        if (i == 0) memcpy((void *)stats0.handle, (void *)stats[0].handle, rows * 8);
        /* dx is dx_add, then dx is dy; statistics of the reference in both */
        assert_int_equal(ON(*b, norm_backward, dx[i], dgain[i], rms ? SHORE__NO_BUF : dbias[i], dy, dx[i], x, gain,
                            stats0, kind, rows, d),
                         0);
        assert_int_equal(ON(*b, norm_backward, dx2[i], dgain[i], rms ? SHORE__NO_BUF : dbias[i], dx2[i], SHORE__NO_BUF,
                            x, gain, stats0, kind, rows, d),
                         0);
        shore__buf frozen = copy_of(dy, rows * d * shore__mode_bytes(mode)); /* nothing but dx is wanted */
        assert_int_equal(ON(*b, norm_backward, frozen, SHORE__NO_BUF, SHORE__NO_BUF, frozen, SHORE__NO_BUF, x, gain,
                            stats0, kind, rows, d),
                         0);
        same_bytes("norm dx without gradients", mode, frozen, dx2[i], rows * d * shore__mode_bytes(mode));
        if (!rms) { /* bias alone */
            shore__buf alone = random_f32(7, d, 1, 0);
            assert_int_equal(
                ON(*b, norm_backward, frozen, SHORE__NO_BUF, alone, dy, SHORE__NO_BUF, x, gain, stats0, kind, rows, d),
                0);
            assert_int_equal(
                ON(*b, norm_backward, frozen, SHORE__NO_BUF, alone, dy, SHORE__NO_BUF, x, gain, stats0, kind, rows, d),
                0);
            close_to("dbias alone", SHORE__F32, alone, dbias[i], d, 4e-6, sqrt((double)rows) + 1);
            drop(alone);
        }
        drop(frozen);
    }
    close_to("norm", mode, y[1], y[0], rows * d, 4e-6, 1);
    close_to("stats", SHORE__F32, stats[1], stats[0], rows * 2, 2e-6, 1);
    close_to("norm dx", mode, dx[1], dx[0], rows * d, 4e-6, 1);
    close_to("norm dx alone", mode, dx2[1], dx2[0], rows * d, 4e-6, 1);
    close_to("dgain", SHORE__F32, dgain[1], dgain[0], d, 4e-6, sqrt((double)rows) + 1);
    if (!rms) close_to("dbias", SHORE__F32, dbias[1], dbias[0], d, 4e-6, sqrt((double)rows) + 1);
    for (int i = 0; i < 2; i++)
        drop(y[i]), drop(stats[i]), drop(dx[i]), drop(dx2[i]), drop(dgain[i]), drop(dbias[i]);
    drop(x), drop(dy), drop(more), drop(gain), drop(stats0);
    if (!rms) drop(bias);
    close_backend(&cpu), close_backend(&ref);
}
static void norms(void **state) {
    static const size_t widths[] = {1, 4, 15, 16, 64, 65, 100, 130, 768};
    FOR_EACH_MODE(mode) {
        for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
            if (widths[i] > 1) norm_case(mode, 9, widths[i], SHORE__LAYER_NORM);
            norm_case(mode, 33, widths[i], SHORE__RMS_NORM);
            norm_case(mode, 9, widths[i], SHORE__RMS_NORM_FROM_1);
        }
    }
}

static void acts(void **state) {
    FOR_EACH_MODE(mode) {
        struct shore__shapes shapes = shapes_of(8, 8);
        struct backend cpu = open_tested(mode, 2, &shapes), ref = open_reference(mode);
        if (!cpu.c) {
            close_backend(&ref);
            continue;
        }
        static const size_t sizes[][2] = {{1, 2}, {3, 34}, {17, 96}, {5, 200}};
        for (size_t z = 0; z < 4; z++)
            for (int f = SHORE__GELU_TANH; f <= SHORE__SWIGLU_CLAMPED; f++)
                for (int gated = f == SHORE__SWIGLU_CLAMPED; gated < 2; gated++) {
                    size_t rows = sizes[z][0], width = sizes[z][1], out = gated ? width / 2 : width;
                    shore__buf x = random_act(mode, 1, rows * width, 12), dy = random_act(mode, 2, rows * out, 1);
                    shore__buf y[2] = {empty_act(mode, rows * out), empty_act(mode, rows * out)};
                    shore__buf dx[2] = {empty_act(mode, rows * width),
                                        copy_of(x, rows * width * shore__mode_bytes(mode))};
                    BOTH(ON(ref, act, y[0], x, f, gated, rows, width), ON(cpu, act, y[1], x, f, gated, rows, width));
                    close_to("act", mode, y[1], y[0], rows * out, 4e-6, 1);
                    BOTH(ON(ref, act_backward, dx[0], dy, x, f, gated, rows, width),
                         ON(cpu, act_backward, dx[1], dy, dx[1], f, gated, rows, width));
                    close_to("act_backward", mode, dx[1], dx[0], rows * width, 4e-6, 1);
                    for (int i = 0; i < 2; i++)
                        drop(y[i]), drop(dx[i]);
                    drop(x), drop(dy);
                }
        close_backend(&cpu), close_backend(&ref);
    }
}

/* The ends of the range: saturation, not NaN; NaN stays. */
static void act_extremes(void **state) {
    static const float in[] = {-INFINITY, -1e30f, -100, -88, -20, -0.0f, 0, 1e-30f, 20, 88, 100, 1e30f, NAN};
    struct shore__shapes shapes = shapes_of(8, 8);
    struct backend cpu = open_tested(SHORE__F32, 1, &shapes);
    size_t n = sizeof in / sizeof *in;
    shore__buf x = room(n * 4, 0), y = room(n * 4, 0);
    memcpy(f32(x), in, sizeof in);
    for (int f = SHORE__GELU_TANH; f <= SHORE__SILU; f++) {
        assert_int_equal(ON(cpu, act, y, x, f, false, 1, n), 0);
        for (size_t i = 1; i + 1 < n; i++) {
            float want = in[i] < -15 ? 0 : in[i];
            if (!(fabsf(f32(y)[i] - want) <= 1e-5f + 1e-6f * fabsf(want)))
                fail_msg("f %d of %g is %g", f, in[i], f32(y)[i]);
        }
        assert_true(isnan(f32(y)[n - 1]));
    }
    drop(x), drop(y);
    close_backend(&cpu);
}

static void elements(void **state) {
    FOR_EACH_MODE(mode) {
        struct shore__shapes shapes = shapes_of(8, 8);
        struct backend cpu = open_tested(mode, 2, &shapes), ref = open_reference(mode);
        if (!cpu.c) {
            close_backend(&ref);
            continue;
        }
        size_t rows = 23, d = 71, vocab = 40, first = 9, n = 20, T = 8, width = shore__mode_bytes(mode);
        shore__buf a = random_act(mode, 1, rows * d, 1), b = random_act(mode, 2, rows * d, 1),
                   table = random_act(mode, 3, vocab * d, 1);
        shore__buf tokens = random_ints(4, rows, vocab), wide = random_f32(5, rows * d, 1, 0);
        ((int32_t *)tokens.handle)[0] = -1;
        shore__buf y[2], grad[2], pos[2], stored[2];
        struct backend *both[2] = {&ref, &cpu};
        for (int i = 0; i < 2; i++) {
            struct backend *k = both[i];
            y[i] = empty_act(mode, rows * d), stored[i] = room(rows * d * 4, 0);
            grad[i] = random_f32(6, n * d, 1, 0), pos[i] = random_f32(7, T * d, 1, 0);
            assert_int_equal(ON(*k, round, y[i], wide, rows * d), 0);
            assert_int_equal(ON(*k, add, y[i], y[i], a, rows * d), 0);
            assert_int_equal(ON(*k, scale, y[i], 5.65625f, rows * d), 0);
            shore__buf columns = empty_act(mode, rows * 30);
            assert_int_equal(ON(*k, columns_take, columns, b, rows, d, 17, 30), 0);
            assert_int_equal(ON(*k, columns_add, y[i], columns, rows, d, 40, 30), 0);
            drop(columns);
            assert_int_equal(ON(*k, embed, y[i], table, tokens, rows, d, first, n), 0);
            assert_int_equal(ON(*k, position, y[i], table, rows, d, T, 3), 0);
            assert_int_equal(ON(*k, embed_backward, grad[i], b, tokens, rows, d, first, n), 0);
            assert_int_equal(ON(*k, position_backward, pos[i], b, rows, d, T), 0);
            assert_int_equal(ON(*k, store, stored[i], y[i], rows * d), 0);
            shore__buf back = empty_act(mode, rows * d);
            assert_int_equal(ON(*k, load, back, stored[i], rows * d), 0);
            same_bytes("store and load", mode, back, y[i], rows * d * width);
            assert_int_equal(ON(*k, copy, back, a, rows * d * width), 0);
            same_bytes("copy", mode, back, a, rows * d * width);
            assert_int_equal(ON(*k, zero, back, rows * d * width), 0);
            for (size_t e = 0; e < rows * d; e++)
                assert_true(value(mode, back, e) == 0);
            drop(back);
        }
        same_bytes("round, add, scale, columns, embed, position", mode, y[1], y[0], rows * d * width);
        same_bytes("stored", mode, stored[1], stored[0], rows * d * (mode == SHORE__F32 ? 4 : 2));
        same_bytes("embed_backward", mode, grad[1], grad[0], n * d * 4);
        same_bytes("position_backward", mode, pos[1], pos[0], T * d * 4);
        for (int i = 0; i < 2; i++)
            drop(y[i]), drop(grad[i]), drop(pos[i]), drop(stored[i]);
        drop(a), drop(b), drop(table), drop(tokens), drop(wide);
        close_backend(&cpu), close_backend(&ref);
    }
}

static void head_norm_case(enum shore__mode mode, size_t T, size_t heads, size_t kv, size_t hd, int kind, bool whole) {
    struct shore__shapes shapes = shapes_of(8, 8);
    struct backend cpu = open_tested(mode, 2, &shapes), ref = open_reference(mode);
    if (!cpu.c) return close_backend(&ref);
    struct shore__attention a = {.sequences = 1, .seq_len = T, .n_head = heads, .n_kv_head = kv, .head_dim = hd};
    size_t n = T * (heads + 2 * kv) * hd, ngain = whole ? (heads + kv) * hd : 2 * hd, width = shore__mode_bytes(mode);
    size_t nstats = T * (whole ? 4 : 2 * (heads + kv));
    shore__buf x = random_act(mode, 1, n, 3), dy = random_act(mode, 2, n, 1), gain = random_f32(4, ngain, 0.5, 1);
    shore__buf y[2], stats[2], dx[2], dgain[2], stats0 = room(nstats * 4, 0);
    struct backend *both[2] = {&ref, &cpu};
    for (int i = 0; i < 2; i++) {
        struct backend *b = both[i];
        y[i] = empty_act(mode, n), stats[i] = room(nstats * 4, 0), dgain[i] = random_f32(6, ngain, 1, 0);
        dx[i] = copy_of(dy, n * width);
        assert_int_equal(ON(*b, head_norm, y[i], stats[i], x, gain, 1e-5f, kind, whole, &a), 0);
        if (i == 0) memcpy((void *)stats0.handle, (void *)stats[0].handle, nstats * 4);
        /* statistics of the reference in both; dx is dy */
        assert_int_equal(ON(*b, head_norm_backward, dx[i], dgain[i], dx[i], x, gain, stats0, kind, whole, &a), 0);
    }
    close_to("head_norm", mode, y[1], y[0], n, 4e-6, 1);
    close_to("stats of heads", SHORE__F32, stats[1], stats[0], nstats, 2e-6, 1);
    close_to("head_norm dx", mode, dx[1], dx[0], n, 4e-6, 1);
    close_to("head_norm dgain", SHORE__F32, dgain[1], dgain[0], ngain, 4e-6, sqrt((double)(T * heads)) + 1);
    for (int i = 0; i < 2; i++)
        drop(y[i]), drop(stats[i]), drop(dx[i]), drop(dgain[i]);
    drop(x), drop(dy), drop(gain), drop(stats0);
    close_backend(&cpu), close_backend(&ref);
}
static void head_norms(void **state) {
    FOR_EACH_MODE(mode) {
        head_norm_case(mode, 19, 4, 2, 64, SHORE__RMS_NORM, false);
        head_norm_case(mode, 7, 3, 1, 18, SHORE__RMS_NORM_FROM_1, false);
        head_norm_case(mode, 11, 4, 2, 20, SHORE__RMS_NORM, true);
        head_norm_case(mode, 1, 1, 1, 80, SHORE__RMS_NORM_FROM_1, true);
    }
}

static void attention_case(enum shore__mode mode, size_t sequences, size_t T, size_t heads, size_t kv, size_t hd,
                           size_t window, float softcap, bool sinks) {
    struct shore__shapes shapes = shapes_of(8, 8);
    shapes.seq_len = T, shapes.n_head = heads, shapes.n_kv_head = kv, shapes.head_dim = hd;
    struct backend cpu = open_tested(mode, 2, &shapes), ref = open_reference(mode);
    if (!cpu.c) return close_backend(&ref);
    struct shore__attention a = {.sequences = sequences,
                                 .seq_len = T,
                                 .n_head = heads,
                                 .n_kv_head = kv,
                                 .head_dim = hd,
                                 .window = window,
                                 .scale = 1 / sqrtf((float)hd),
                                 .softcap = softcap,
                                 .rotary_dim = sinks ? hd / 4 * 2 : 0};
    shore__buf dsinks[2] = {random_f32(11, heads, 1, 0), random_f32(11, heads, 1, 0)};
    if (sinks) a.sinks = random_f32(10, heads, 2, 1);
    size_t rows = sequences * T, wide = (heads + 2 * kv) * hd, width = shore__mode_bytes(mode);
    shore__buf qkv = random_act(mode, 1, rows * wide, 2), dout = random_act(mode, 2, rows * heads * hd, 1),
               table = random_f32(3, (T + 5) * hd, 1, 0);
    shore__buf out[2], lse[2], d[2], turned[2];
    struct backend *both[2] = {&ref, &cpu};
    for (int i = 0; i < 2; i++) {
        struct backend *b = both[i];
        out[i] = empty_act(mode, rows * heads * hd), lse[i] = room(rows * heads * 4, 0),
        d[i] = empty_act(mode, rows * wide);
        turned[i] = copy_of(qkv, rows * wide * width);
        if (hd % 2 == 0) assert_int_equal(ON(*b, rope, turned[i], table, &a, 5, i), 0);
        if (hd % 2 == 0) assert_int_equal(ON(*both[!i], rope, turned[i], table, &a, 5, !i), 0);
        assert_int_equal(ON(*b, attention, out[i], lse[i], qkv, &a), 0);
        assert_int_equal(ON(*b, attention_backward, d[i], dout, qkv, out[0], lse[0], &a), 0);
        if (sinks) assert_int_equal(ON(*b, sink_backward, dsinks[i], dout, out[0], lse[0], &a), 0);
    }
    double bound = mode == SHORE__BF16 ? 8e-3 : 1e-5; /* bf16 products round the probabilities as well */
    close_to("attention", mode, out[1], out[0], rows * heads * hd, bound, 1);
    close_to("lse", SHORE__F32, lse[1], lse[0], rows * heads, 1e-5, 1);
    close_to("attention_backward", mode, d[1], d[0], rows * wide, bound, 1 + (double)(heads / kv));
    close_to("rope", mode, turned[1], turned[0], rows * wide, mode == SHORE__F32 ? 1e-6 : 1.0 / 64, 4);
    close_to("sink_backward", SHORE__F32, dsinks[1], dsinks[0], heads, 4e-6, 1 + sqrt((double)rows));
    /* a key alone has all the weight: exactly nothing for its queries, and for itself where no other query sees it */
    for (int i = 0; !sinks && i < 2; i++)
        for (size_t r = 0; r < rows; r++)
            for (size_t e = 0; e < (T == 1 || window == 1 ? heads + kv : r % T ? 0 : heads) * hd; e++)
                assert_true(value(mode, d[i], r * wide + e) == 0);
    for (int i = 0; i < 2; i++)
        drop(out[i]), drop(lse[i]), drop(d[i]), drop(turned[i]), drop(dsinks[i]);

    /* the last positions again, against a cache */
    size_t capacity = T + 3, first = T / 3;
    shore__buf keys = random_act(mode, 8, kv * capacity * hd, 1), values = random_act(mode, 9, kv * capacity * hd, 1);
    for (size_t p = 0; p < T; p++)
        for (size_t h = 0; h < kv; h++)
            for (int v = 0; v < 2; v++)
                memcpy((char *)(v ? values : keys).handle + (h * capacity + p) * hd * width,
                       (char *)qkv.handle + (p * wide + (heads + (size_t)v * kv + h) * hd) * width, hd * width);
    a.sequences = 1;
    for (int i = 0; i < 2; i++) {
        out[i] = empty_act(mode, (T - first) * heads * hd), lse[i] = room((T - first) * heads * 4, 0);
        assert_int_equal(ON(*both[i], attention_cached, out[i], lse[i], shore__at(qkv, first * wide * width), keys,
                            values, T - first, first, capacity, &a),
                         0);
    }
    close_to("attention_cached", mode, out[1], out[0], (T - first) * heads * hd, bound, 1);
    close_to("lse of attention_cached", SHORE__F32, lse[1], lse[0], (T - first) * heads, 1e-5, 1);
    drop(out[0]), drop(out[1]), drop(lse[0]), drop(lse[1]), drop(keys), drop(values), drop(qkv), drop(dout),
        drop(table);
    if (sinks) drop(a.sinks);
    close_backend(&cpu), close_backend(&ref);
}
static void attention(void **state) {
    FOR_EACH_MODE(mode) {
        attention_case(mode, 2, 64, 2, 2, 16, 0, 0, false);
        attention_case(mode, 1, 200, 2, 1, 64, 0, 0, false);
        attention_case(mode, 3, 7, 4, 2, 4, 0, 0, false);
        attention_case(mode, 1, 300, 1, 1, 32, 33, 0, false);
        attention_case(mode, 1, 290, 3, 1, 20, 140, 0, false);
        attention_case(mode, 2, 1, 2, 1, 8, 0, 0, false);
        attention_case(mode, 1, 129, 1, 1, 256, 0, 0, false);
        attention_case(mode, 1, 131, 2, 2, 80, 1, 0, false);
        attention_case(mode, 1, 40, 1, 1, 13, 0, 0, false);
        attention_case(mode, 2, 150, 4, 2, 32, 0, 0.7f, false);
        attention_case(mode, 1, 290, 4, 2, 16, 140, 0, true);
        attention_case(mode, 3, 5, 2, 1, 8, 0, 1.5f, true);
        attention_case(mode, 1, 131, 2, 2, 80, 1, 0, true);
    }
}

/* The device, if it is not the processor. */
int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear),   cmocka_unit_test(head),       cmocka_unit_test(head_of_the_sure),
        cmocka_unit_test(norms),    cmocka_unit_test(acts),       cmocka_unit_test(act_extremes),
        cmocka_unit_test(elements), cmocka_unit_test(head_norms), cmocka_unit_test(attention),
    };
    if (argc > 1) tested_device = argv[1];
    away_seed = test_seed();
    shore__compute_register(&away_backend);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
