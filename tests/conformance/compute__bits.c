/* The same bits: from run to run, for any number of threads, wherever operands lie, whatever rows are beside a row. */
#include <dirent.h>
#include <unistd.h>

#include "conformance/compute_cases.h"

#define ON(b, op, ...) assert_int_equal((b).c->ops->op((b).c, NULL, __VA_ARGS__), 0)

enum { ROWS = 192, D = 128, HEADS = 4, KV = 2, HD = 32, QKV = (HEADS + 2 * KV) * HD, FF = 320, VOCAB = 520, T = 96 };

struct way {
    int threads;
    size_t offset; /* of every operand from a page */
    size_t pieces; /* calls that the rows are cut into, where the contract lets them be */
};

struct results {
    shore__buf b[24];
    size_t bytes[24];
    int n;
};

static shore__buf moved(shore__buf b, size_t bytes, size_t offset) {
    shore__buf r = room(bytes, offset);
    memcpy((void *)r.handle, (void *)b.handle, bytes);
    drop(b);
    return r;
}

static struct shore__attention attention_of(size_t sequences, size_t seq_len) {
    return (struct shore__attention){
        .sequences = sequences, .seq_len = seq_len, .n_head = HEADS, .n_kv_head = KV, .head_dim = HD, .scale = 0.17f};
}

/* A layer and a head, forward and backward: every operation that training uses. */
static struct results train(enum shore__mode mode, struct way way) {
    struct shore__shapes shapes = {.unit_rows = ROWS,
                                   .short_rows = ROWS / 2,
                                   .seq_len = T,
                                   .d_model = D,
                                   .linear = {{QKV, D, true}, {D, HEADS * HD, true}, {2 * FF, D, true}, {D, FF, false}},
                                   .nlinear = 4,
                                   .n_head = HEADS,
                                   .n_kv_head = KV,
                                   .head_dim = HD,
                                   .vocab_slice = VOCAB,
                                   .backward = true};
    struct backend k = open_tested(mode, way.threads, &shapes);
    struct results r = {.n = 0};
    if (!k.c) return r;
    size_t e = shore__mode_bytes(mode), off = way.offset, part = ROWS / way.pieces;
#define ACT(seed, n, scale) moved(random_act(mode, seed, n, scale), (n)*e, off)
#define F32(seed, n, scale, shift) moved(random_f32(seed, n, scale, shift), (n)*4, off)
#define OUT(n) room((n)*e, off)
    shore__buf x = ACT(1, ROWS * D, 1), gain = F32(2, D, 0.5, 1), bias = F32(3, QKV, 1, 0);
    shore__buf wqkv = ACT(4, QKV * D, 0.1), wo = ACT(5, D * HEADS * HD, 0.1), wu = ACT(6, 2 * FF * D, 0.1);
    shore__buf wd = ACT(7, FF * D, 0.1), wv = ACT(8, VOCAB * D, 0.1), table = F32(9, T * HD, 1, 0);
    shore__buf targets = moved(random_ints(10, ROWS, VOCAB), ROWS * 4, off);
    shore__buf norm = OUT(ROWS * D), stats = room(ROWS * 8, off), qkv = OUT(ROWS * QKV), attn = OUT(ROWS * HEADS * HD);
    shore__buf lse = room(ROWS * HEADS * 4, off), mid = OUT(ROWS * D), up = OUT(ROWS * 2 * FF), act = OUT(ROWS * FF);
    shore__buf out = OUT(ROWS * D), logits = room(ROWS * VOCAB * 4, off), dlogits = OUT(ROWS * VOCAB);
    shore__buf row[4];
    for (int i = 0; i < 4; i++) {
        row[i] = room(ROWS * 4, off);
        for (size_t j = 0; j < ROWS; j++)
            f32(row[i])[j] = i == 0 ? -INFINITY : 0;
    }
    shore__buf dx = F32(20, ROWS * D, 1e-3, 0), dout = OUT(ROWS * D), dact = OUT(ROWS * FF), dup = OUT(ROWS * 2 * FF);
    shore__buf dattn = OUT(ROWS * HEADS * HD), dqkv = OUT(ROWS * QKV), dnorm = OUT(ROWS * D);
    shore__buf dwv = F32(21, VOCAB * D, 1, 0), dwd = F32(22, FF * D, 1, 0), dwu = F32(23, 2 * FF * D, 1, 0);
    shore__buf dwo = F32(24, D * HEADS * HD, 1, 0), dwqkv = F32(25, QKV * D, 1, 0), db = F32(26, QKV, 1, 0);
    shore__buf dgain = F32(27, D, 1, 0), dbias = F32(28, D, 1, 0), head_gain = F32(29, 2 * HD, 0.5, 1);
    shore__buf dhead_gain = F32(30, 2 * HD, 1, 0), dsinks = F32(31, HEADS, 1, 0), raw = OUT(ROWS * QKV);
    shore__buf head_stats = room(ROWS * 8 * (HEADS + KV), off);
    struct shore__attention a = attention_of(ROWS / T, T);
    a.window = 50, a.softcap = 3, a.sinks = F32(11, HEADS, 1, 0), a.rotary_dim = HD - 8;

    for (size_t p = 0; p < way.pieces; p++) {
#define A(buf, width) shore__at(buf, p *part *(width)*e)
#define B(buf, width) shore__at(buf, p *part *(width)*4)
        ON(k, norm, A(norm, D), B(stats, 2), A(x, D), gain, gain, 1e-5f, false, part, D);
        ON(k, linear, A(raw, QKV), A(norm, D), wqkv, bias, part, QKV, D, true);
    }
    ON(k, head_norm, qkv, head_stats, raw, head_gain, 1e-5f, SHORE__RMS_NORM_FROM_1, false, &a);
    ON(k, rope, qkv, table, &a, 0, false);
    ON(k, attention, attn, lse, qkv, &a);
    for (size_t p = 0; p < way.pieces; p++) {
        ON(k, linear, A(mid, D), A(attn, HEADS * HD), wo, SHORE__NO_BUF, part, D, HEADS * HD, true);
        ON(k, linear, A(up, 2 * FF), A(mid, D), wu, SHORE__NO_BUF, part, 2 * FF, D, true);
        ON(k, act, A(act, FF), A(up, 2 * FF), SHORE__SILU, true, part, 2 * FF);
        ON(k, linear, A(out, D), A(act, FF), wd, SHORE__NO_BUF, part, D, FF, false);
        ON(k, add, A(out, D), A(out, D), A(mid, D), part * D);
        ON(k, head_logits, B(logits, VOCAB), A(out, D), wv, 9, part, VOCAB, D);
        ON(k, head_merge, B(row[0], 1), B(row[1], 1), B(row[2], 1), B(logits, VOCAB), B(targets, 1), part, VOCAB, 0);
        ON(k, head_loss, B(row[3], 1), B(row[0], 1), B(row[1], 1), B(row[2], 1), B(targets, 1), part);
        ON(k, head_dlogits, A(dlogits, VOCAB), B(logits, VOCAB), B(row[0], 1), B(row[1], 1), B(targets, 1), 0.1f, 9,
           part, VOCAB, 0);
        ON(k, head_backward_x, B(dx, D), A(dlogits, VOCAB), wv, part, VOCAB, D);
        ON(k, round, A(dout, D), B(dx, D), part * D);
        ON(k, linear_backward_x, A(dact, FF), A(dout, D), wd, part, D, FF, false);
        ON(k, act_backward, A(dup, 2 * FF), A(dact, FF), A(up, 2 * FF), SHORE__SILU, true, part, 2 * FF);
        ON(k, linear_backward_x, A(dattn, HEADS * HD), A(dout, D), wo, part, D, HEADS * HD, true);
    }
    ON(k, attention_backward, dqkv, dattn, qkv, attn, lse, &a);
    ON(k, sink_backward, dsinks, dattn, attn, lse, &a);
    ON(k, head_norm_backward, dqkv, dhead_gain, dqkv, raw, head_gain, head_stats, SHORE__RMS_NORM_FROM_1, false, &a);
    for (size_t p = 0; p < way.pieces; p++) {
        ON(k, linear_backward_x, A(dnorm, D), A(dqkv, QKV), wqkv, part, QKV, D, true);
        /* the gradients of vectors take rows in order, so they may be cut as well */
        ON(k, bias_backward, db, A(dqkv, QKV), part, QKV);
        ON(k, norm_backward, A(dnorm, D), dgain, dbias, A(dnorm, D), A(dout, D), A(x, D), gain, B(stats, 2), false,
           part, D);
    }
    ON(k, head_backward_w, dwv, dlogits, out, ROWS, VOCAB, D, true);
    ON(k, linear_backward_w, dwd, dout, act, ROWS, D, FF, false, true);
    ON(k, linear_backward_w, dwu, dup, mid, ROWS, 2 * FF, D, true, true);
    ON(k, linear_backward_w, dwo, dout, attn, ROWS, D, HEADS * HD, true, false);
    ON(k, linear_backward_w, dwqkv, dqkv, norm, ROWS, QKV, D, true, false);

    struct {
        shore__buf b;
        size_t bytes;
    } keep[] = {{norm, ROWS * D * e},    {qkv, ROWS * QKV * e}, {attn, ROWS * HEADS * HD * e},
                {lse, ROWS * HEADS * 4}, {out, ROWS * D * e},   {logits, ROWS * VOCAB * 4},
                {row[3], ROWS * 4},      {dx, ROWS * D * 4},    {dup, ROWS * 2 * FF * e},
                {dqkv, ROWS * QKV * e},  {dnorm, ROWS * D * e}, {dwv, VOCAB * D * 4},
                {dwd, FF * D * 4},       {dwu, 2 * FF * D * 4}, {dwo, D * HEADS * HD * 4},
                {dwqkv, QKV * D * 4},    {db, QKV * 4},         {dgain, D * 4},
                {dbias, D * 4},          {dsinks, HEADS * 4},   {dhead_gain, 2 * HD * 4}};
    for (; r.n < (int)(sizeof keep / sizeof *keep); r.n++)
        r.b[r.n] = keep[r.n].b, r.bytes[r.n] = keep[r.n].bytes;
    shore__buf rest[] = {x,       gain,  bias,  wqkv, wo,        wu,         wd,     wv,     table,
                         targets, stats, mid,   up,   act,       dlogits,    row[0], row[1], row[2],
                         dout,    dact,  dattn, raw,  head_gain, head_stats, a.sinks};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        drop(rest[i]);
    close_backend(&k);
    return r;
}

static void free_results(struct results *r) {
    for (int i = 0; i < r->n; i++)
        drop(r->b[i]);
}

static void training(void **state) {
    static const struct way ways[] = {{1, 0, 1}, {2, 0, 1},  {2, 64, 1}, {3, 1984, 1},
                                      {2, 0, 2}, {1, 64, 3}, {2, 64, 96}};
    bool wide_vectors = strstr(shore__processor_kind(), "avx512") || strstr(shore__processor_kind(), "amx");
    FOR_EACH_MODE(mode) {
        struct results want = train(mode, (struct way){2, 0, 1});
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            /* the exceptions that compute.h names */
            bool onednn_bf16 = arithmetics[tested].products == SHORE__PRODUCTS_BF16;
            if (onednn_bf16 && ways[w].pieces > 3) continue;
            if ((ways[w].threads != 2 || ways[w].pieces > 3) && !wide_vectors) continue;
            struct results got = train(mode, ways[w]);
            for (int i = 0; i < want.n; i++) {
                char what[64];
                snprintf(what, sizeof what, "result %d, way %zu", i, w);
                same_bytes(what, mode, got.b[i], want.b[i], want.bytes[i]);
            }
            free_results(&got);
        }
        free_results(&want);
    }
}

/* The three products of a layer, split over threads by rows and by columns, of sizes that no block divides; of 70 rows,
 * of which only gradients of weights take packed operands, and of so many that all do. */
static void products_over_threads(void **state) {
    enum { N = 402, K = 331, MOST_THREADS = 6, RESULTS = 3 };
    static const size_t rows_of[] = {70, 1069};
    bool wide_vectors = strstr(shore__processor_kind(), "avx512") || strstr(shore__processor_kind(), "amx");
    FOR_EACH_MODE(mode) for (size_t r = 0; r < sizeof rows_of / sizeof *rows_of; r++) {
        size_t rows = rows_of[r], e = shore__mode_bytes(mode);
        size_t bytes[RESULTS] = {rows * N * e, rows * K * e, N * K * sizeof(float)};
        shore__buf first[RESULTS] = {SHORE__NO_BUF};
        for (int threads = 1; threads <= (wide_vectors ? MOST_THREADS : 1); threads++) {
            struct shore__shapes shapes = {
                .unit_rows = rows, .d_model = K, .linear = {{N, K, true}}, .nlinear = 1, .backward = true};
            struct backend k = open_tested(mode, threads, &shapes);
            if (!k.c) break;
            shore__buf x = random_act(mode, 1, rows * K, 1), dy = random_act(mode, 2, rows * N, 1);
            shore__buf w = random_act(mode, 3, N * K, 1), bias = random_f32(4, N, 1, 0);
            shore__buf got[RESULTS] = {room(bytes[0], 0), room(bytes[1], 0), random_f32(5, N * K, 1, 0)};
            ON(k, linear, got[0], x, w, bias, rows, N, K, true);
            ON(k, linear_backward_x, got[1], dy, w, rows, N, K, true);
            ON(k, linear_backward_w, got[2], dy, x, rows, N, K, true, false);
            ON(k, linear_backward_w, got[2], dy, x, rows, N, K, true, true);
            drop(x), drop(dy), drop(w), drop(bias);
            close_backend(&k);
            for (int i = 0; i < RESULTS; i++) {
                char what[64];
                snprintf(what, sizeof what, "result %d of %zu rows, %d threads", i, rows, threads);
                if (threads > 1) same_bytes(what, mode, got[i], first[i], bytes[i]);
                if (threads > 1)
                    drop(got[i]);
                else
                    first[i] = got[i];
            }
        }
        for (int i = 0; i < RESULTS; i++)
            if (first[i].handle) drop(first[i]);
    }
}

/* Generation, row by row against the cache, gives what the whole sequence gives. */
static void cached(void **state) {
    FOR_EACH_MODE(mode) {
        enum { LEN = 150, CAPACITY = 160 };
        struct shore__shapes shapes = {
            .unit_rows = LEN, .seq_len = LEN, .d_model = D, .n_head = HEADS, .n_kv_head = KV, .head_dim = HD};
        struct backend k = open_tested(mode, 2, &shapes);
        if (!k.c) continue;
        size_t e = shore__mode_bytes(mode);
        struct shore__attention a = attention_of(1, LEN);
        a.softcap = 2, a.sinks = random_f32(4, HEADS, 1, 0);
        shore__buf qkv = random_act(mode, 1, LEN * QKV, 2), whole = empty_act(mode, LEN * HEADS * HD);
        shore__buf lse = room(LEN * HEADS * 4, 0), one = empty_act(mode, LEN * HEADS * HD);
        shore__buf keys = random_act(mode, 2, KV * CAPACITY * HD, 1),
                   values = random_act(mode, 3, KV * CAPACITY * HD, 1);
        for (size_t p = 0; p < LEN; p++)
            for (size_t h = 0; h < KV; h++)
                for (size_t v = 0; v < 2; v++)
                    memcpy((char *)(v ? values : keys).handle + (h * CAPACITY + p) * HD * e,
                           (char *)qkv.handle + (p * QKV + (HEADS + v * KV + h) * HD) * e, HD * e);
        ON(k, attention, whole, lse, qkv, &a);
        for (size_t p = 0; p < LEN; p += p < 140 ? 35 : 1) {
            size_t rows = p < 140 ? 35 : 1;
            shore__buf part = room(HEADS * rows * 4, 0);
            ON(k, attention_cached, shore__at(one, p * HEADS * HD * e), part, shore__at(qkv, p * QKV * e), keys, values,
               rows, p, CAPACITY, &a);
            for (size_t i = 0; i < HEADS * rows; i++)
                assert_true(f32(part)[i] == f32(lse)[i / rows * LEN + p + i % rows]);
            drop(part);
        }
        same_bytes("attention_cached", mode, one, whole, LEN * HEADS * HD * e);
        drop(qkv), drop(whole), drop(lse), drop(one), drop(keys), drop(values), drop(a.sinks);
        close_backend(&k);
    }
}

/* The caller's floating-point state and number of threads come back. */
static void state_comes_back(void **state) {
    struct shore__shapes shapes = {.unit_rows = 8, .seq_len = 8, .d_model = 8};
    struct backend k = open_tested(SHORE__F32, 2, &shapes);
    shore__buf a = random_f32(1, 64, 1, 0);
    f32(a)[0] = 1e-40f;
    ON(k, add, a, a, a, 64);
    assert_true(f32(a)[0] == 0); /* flushed inside */
    volatile float small = 1e-40f;
    assert_true(small * 0.5f != 0); /* and not outside */
    drop(a);
    close_backend(&k);
}

enum { THREADS_MOST = 256 };

/* Their numbers, which the kernel does not give twice in a row. */
static size_t threads_alive(long numbers[THREADS_MOST]) {
    DIR *tasks = opendir("/proc/self/task");
    size_t count = 0;
    assert_non_null(tasks);
    for (struct dirent *d; (d = readdir(tasks));)
        if (d->d_name[0] != '.' && count < THREADS_MOST) numbers[count++] = strtol(d->d_name, NULL, 10);
    closedir(tasks);
    return count;
}

/* Attention that has fewer jobs than there are threads ends none of them: new ones would let signals in. */
static void threads_stay(void **state) {
    enum { LEN = 8 };
    struct shore__shapes shapes = {
        .unit_rows = LEN, .seq_len = LEN, .d_model = D, .n_head = HEADS, .n_kv_head = KV, .head_dim = HD};
    struct backend k = open_tested(SHORE__F32, KV + 2, &shapes);
    struct shore__attention a = attention_of(1, LEN);
    shore__buf qkv = random_act(SHORE__F32, 1, LEN * QKV, 2), out = empty_act(SHORE__F32, LEN * HEADS * HD);
    shore__buf lse = room(LEN * HEADS * 4, 0);
    ON(k, add, qkv, qkv, qkv, LEN * QKV);           /* by all */
    long before[THREADS_MOST], after[THREADS_MOST]; /* in the first, threads of an earlier test may be ending still */
    size_t had = threads_alive(before);
    ON(k, attention, out, lse, qkv, &a);
    ON(k, add, qkv, qkv, qkv, LEN * QKV); /* by all: in place of those that ended, others would have begun */
    size_t has = threads_alive(after), known = 0;
    for (size_t i = 0; i < has; i++)
        for (size_t n = 0; n < had; n++)
            known += after[i] == before[n];
    assert_int_equal(known, has);
    assert_true(has >= KV + 2);
    drop(qkv), drop(out), drop(lse);
    close_backend(&k);
}

/* A number of rows that nobody announced, with a workspace too small for it, still works. */
static void unannounced_rows(void **state) {
    FOR_EACH_MODE(mode) {
        struct shore__shapes shapes = {
            .unit_rows = 4, .seq_len = 8, .d_model = 96, .linear = {{200, 96, true}}, .nlinear = 1, .vocab_slice = 40};
        struct backend small = open_tested(mode, 2, &shapes);
        shapes.unit_rows = 800;
        struct backend big = open_tested(mode, 2, &shapes);
        if (!small.c || !big.c) continue;
        for (size_t rows = 1; rows <= 800; rows += rows < 300 ? 23 : 163) {
            shore__buf x = random_act(mode, 1, rows * 96, 1), w = random_act(mode, 2, 200 * 96, 1);
            shore__buf y[2] = {empty_act(mode, rows * 200), empty_act(mode, rows * 200)};
            ON(small, linear, y[0], x, w, SHORE__NO_BUF, rows, 200, 96, true);
            ON(big, linear, y[1], x, w, SHORE__NO_BUF, rows, 200, 96, true);
            same_bytes("linear", mode, y[0], y[1], rows * 200 * shore__mode_bytes(mode));
            drop(x), drop(w), drop(y[0]), drop(y[1]);
        }
        close_backend(&small), close_backend(&big);
    }
}

/* Weights that are kept packed give what others give, until they change, and where only some find room. */
static void packed_weights(void **state) {
    enum { N = 200, K = 96 };
    FOR_EACH_MODE(mode) {
        struct shore__shapes shapes = {.unit_rows = 800,
                                       .seq_len = 8,
                                       .d_model = K,
                                       .linear = {{N, K, true}},
                                       .nlinear = 1,
                                       .vocab_slice = 40,
                                       .backward = true};
        struct backend one = open_tested(mode, 2, &shapes), kept = open_tested(mode, 2, &shapes);
        if (!one.c || !kept.c) continue;
        struct shore__compute_options options = tested_options(2);
        struct shore__compute_description d;
        assert_int_equal(shore__compute_describe(&options, &shapes, &d, NULL), 0);
        size_t least = d.workspace_bytes, packed = d.packed_bytes, width = shore__mode_bytes(mode);
        assert_true(mode != SHORE__BF16 || packed > 0);
        shore__buf workspace = room(least + packed + 4096, 0), x = random_act(mode, 1, 800 * K, 1),
                   dy = random_act(mode, 2, 800 * N, 1), w = random_act(mode, 3, N * K, 1);
        shore__buf y[2] = {empty_act(mode, 800 * N), empty_act(mode, 800 * N)};
        shore__buf dx[2] = {empty_act(mode, 800 * K), empty_act(mode, 800 * K)};
        for (int some = 0; some < 2; some++) {
            size_t bytes = least + packed / (some ? 2 : 1);
            assert_int_equal(kept.c->ops->make(kept.c, &shapes, workspace, bytes, NULL), 0);
            for (int i = 0; i < 6; i++) {
                if (i % 3 == 0) {
                    shore__buf other = random_act(mode, 4 + (uint64_t)i, N * K, 1);
                    memcpy((void *)w.handle, (void *)other.handle, N * K * width);
                    kept.c->ops->weights_changed(kept.c);
                    drop(other);
                }
                ON(one, linear, y[0], x, w, SHORE__NO_BUF, 800, N, K, true);
                ON(kept, linear, y[1], x, w, SHORE__NO_BUF, 800, N, K, true);
                same_bytes("linear", mode, y[0], y[1], 800 * N * width);
                ON(one, linear_backward_x, dx[0], dy, w, 800, N, K, true);
                ON(kept, linear_backward_x, dx[1], dy, w, 800, N, K, true);
                same_bytes("linear_backward_x", mode, dx[0], dx[1], 800 * K * width);
            }
        }
        for (int i = 0; i < 2; i++)
            drop(y[i]), drop(dx[i]);
        drop(x), drop(dy), drop(w);
        close_backend(&one), close_backend(&kept);
        drop(workspace);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training),         cmocka_unit_test(products_over_threads), cmocka_unit_test(cached),
        cmocka_unit_test(state_comes_back), cmocka_unit_test(threads_stay),          cmocka_unit_test(unannounced_rows),
        cmocka_unit_test(packed_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
