/* The reference is the specification, so its backward operations are checked against differences of its forward ones,
 * and its attention and head against what they must do by definition. */
#include "conformance/compute_cases.h"

#define ON(op, ...) assert_int_equal(c->ops->op(c, NULL, __VA_ARGS__), 0)

/* The derivative of sum(weight * f(x)) by x[i], f given as a function from x (n_in floats) to n_out floats. */
typedef void (*function)(struct shore__compute *c, const void *ctx, shore__buf x, shore__buf y);

static double weighted(struct shore__compute *c, function f, const void *ctx, shore__buf x, shore__buf y,
                       shore__buf weight, size_t n_out) {
    double sum = 0;
    f(c, ctx, x, y);
    for (size_t i = 0; i < n_out; i++)
        sum += (double)f32(y)[i] * f32(weight)[i];
    return sum;
}

static void check(const char *what, struct shore__compute *c, function f, const void *ctx, shore__buf x,
                  shore__buf gradient, size_t n_in, shore__buf weight, size_t n_out) {
    shore__buf y = room(n_out * 4, 0);
    for (size_t i = 0; i < n_in; i++) {
        float kept = f32(x)[i], step = 4e-3f;
        f32(x)[i] = kept + step;
        double up = weighted(c, f, ctx, x, y, weight, n_out);
        f32(x)[i] = kept - step;
        double down = weighted(c, f, ctx, x, y, weight, n_out);
        f32(x)[i] = kept;
        double want = (up - down) / (2 * (double)step);
        if (!(fabs(f32(gradient)[i] - want) <= 1e-3 * (1 + fabs(want))))
            fail_msg("%s: derivative %zu is %g instead of %g", what, i, f32(gradient)[i], want);
    }
    drop(y);
}

static shore__buf zeros(size_t n) {
    shore__buf b = room(n * 4, 0);
    memset(f32(b), 0, n * 4);
    return b;
}

/* ---- linear ---- */

struct linear_ctx {
    shore__buf x, w, bias;
    size_t rows, n, k;
    bool nk;
};
static void linear_of_x(struct shore__compute *c, const void *ctx, shore__buf x, shore__buf y) {
    const struct linear_ctx *l = ctx;
    ON(linear, y, x, l->w, l->bias, l->rows, l->n, l->k, l->nk);
}
static void linear_of_w(struct shore__compute *c, const void *ctx, shore__buf w, shore__buf y) {
    const struct linear_ctx *l = ctx;
    ON(linear, y, l->x, w, l->bias, l->rows, l->n, l->k, l->nk);
}
static void linear_of_bias(struct shore__compute *c, const void *ctx, shore__buf bias, shore__buf y) {
    const struct linear_ctx *l = ctx;
    ON(linear, y, l->x, l->w, bias, l->rows, l->n, l->k, l->nk);
}

static void linear(void **state) {
    struct backend b = open_reference(SHORE__F32);
    struct shore__compute *c = b.c;
    for (int nk = 0; nk < 2; nk++) {
        struct linear_ctx l = {.rows = 3, .n = 4, .k = 5, .nk = nk};
        l.x = random_f32(1, 15, 1, 0), l.w = random_f32(2, 20, 1, 0), l.bias = random_f32(3, 4, 1, 0);
        shore__buf dy = random_f32(4, 12, 1, 0), dx = zeros(15), dw = zeros(20), db = zeros(4);
        ON(linear_backward_x, dx, dy, l.w, 3, 4, 5, nk);
        ON(linear_backward_w, dw, dy, l.x, 3, 4, 5, nk, true);
        ON(bias_backward, db, dy, 3, 4);
        check("linear dx", c, linear_of_x, &l, l.x, dx, 15, dy, 12);
        check("linear dw", c, linear_of_w, &l, l.w, dw, 20, dy, 12);
        check("linear db", c, linear_of_bias, &l, l.bias, db, 4, dy, 12);
        shore__buf all[] = {l.x, l.w, l.bias, dy, dx, dw, db};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            drop(all[i]);
    }
    close_backend(&b);
}

/* ---- norms ---- */

struct norm_ctx {
    shore__buf x, gain, bias, stats;
    enum shore__norm_kind kind;
};
enum { NORM_ROWS = 3, NORM_D = 6 };
static void norm_of(struct shore__compute *c, const struct norm_ctx *n, shore__buf x, shore__buf gain, shore__buf bias,
                    shore__buf y) {
    ON(norm, y, n->stats, x, gain, bias, 1e-3f, n->kind, NORM_ROWS, NORM_D);
}
static void norm_of_x(struct shore__compute *c, const void *ctx, shore__buf x, shore__buf y) {
    const struct norm_ctx *n = ctx;
    norm_of(c, n, x, n->gain, n->bias, y);
}
static void norm_of_gain(struct shore__compute *c, const void *ctx, shore__buf gain, shore__buf y) {
    const struct norm_ctx *n = ctx;
    norm_of(c, n, n->x, gain, n->bias, y);
}
static void norm_of_bias(struct shore__compute *c, const void *ctx, shore__buf bias, shore__buf y) {
    const struct norm_ctx *n = ctx;
    norm_of(c, n, n->x, n->gain, bias, y);
}

static void norms(void **state) {
    struct backend b = open_reference(SHORE__F32);
    struct shore__compute *c = b.c;
    size_t n = NORM_ROWS * NORM_D;
    for (int kind = SHORE__LAYER_NORM; kind <= SHORE__RMS_NORM_FROM_1; kind++) {
        bool rms = kind != SHORE__LAYER_NORM;
        struct norm_ctx ctx = {random_f32(1, n, 1, 0), random_f32(2, NORM_D, 1, 1),
                               rms ? SHORE__NO_BUF : random_f32(3, NORM_D, 1, 0), zeros(2 * NORM_ROWS), kind};
        shore__buf dy = random_f32(4, n, 1, 0), y = zeros(n), dx = zeros(n), dgain = zeros(NORM_D);
        shore__buf dbias = rms ? SHORE__NO_BUF : zeros(NORM_D);
        norm_of_x(c, &ctx, ctx.x, y);
        ON(norm_backward, dx, dgain, dbias, dy, SHORE__NO_BUF, ctx.x, ctx.gain, ctx.stats, kind, NORM_ROWS, NORM_D);
        check("norm dx", c, norm_of_x, &ctx, ctx.x, dx, n, dy, n);
        check("norm dgain", c, norm_of_gain, &ctx, ctx.gain, dgain, NORM_D, dy, n);
        if (!rms) check("norm dbias", c, norm_of_bias, &ctx, ctx.bias, dbias, NORM_D, dy, n);
        shore__buf all[] = {ctx.x, ctx.gain, ctx.bias, ctx.stats, dy, y, dx, dgain, dbias};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            drop(all[i]);
    }
    close_backend(&b);
}

/* ---- activation functions ---- */

struct act_ctx {
    enum shore__act_fn f;
    bool gated;
};
static void act_of(struct shore__compute *c, const void *ctx, shore__buf x, shore__buf y) {
    const struct act_ctx *a = ctx;
    ON(act, y, x, a->f, a->gated, 4, 8);
}
static void acts(void **state) {
    struct backend b = open_reference(SHORE__F32);
    struct shore__compute *c = b.c;
    for (int f = SHORE__GELU_TANH; f <= SHORE__SWIGLU_CLAMPED; f++)
        for (int gated = f == SHORE__SWIGLU_CLAMPED; gated < 2; gated++) {
            struct act_ctx ctx = {f, gated};
            size_t out = gated ? 16 : 32;
            shore__buf x = random_f32(1, 32, f == SHORE__SWIGLU_CLAMPED ? 9 : 3, 0), dy = random_f32(2, out, 1, 0),
                       dx = zeros(32);
            for (int i = 0; i < 32; i++) /* a difference across the kink of relu says nothing */
                if (fabsf(f32(x)[i]) < 0.01f) f32(x)[i] = 0.02f;
            ON(act_backward, dx, dy, x, f, gated, 4, 8);
            check("act dx", c, act_of, &ctx, x, dx, 32, dy, out);
            drop(x), drop(dy), drop(dx);
        }
    close_backend(&b);
}

/* ---- attention ---- */

struct attention_ctx {
    struct shore__attention a;
    shore__buf lse, cos_sin, qkv, gain, stats;
    enum shore__norm_kind kind;
    bool whole;
};
static void attention_of(struct shore__compute *c, const void *ctx, shore__buf qkv, shore__buf out) {
    const struct attention_ctx *t = ctx;
    ON(attention, out, t->lse, qkv, &t->a);
}
static void attention_of_sinks(struct shore__compute *c, const void *ctx, shore__buf sinks, shore__buf out) {
    struct attention_ctx t = *(const struct attention_ctx *)ctx;
    t.a.sinks = sinks;
    attention_of(c, &t, t.qkv, out);
}
static void head_norm_of(struct shore__compute *c, const void *ctx, shore__buf qkv, shore__buf out) {
    const struct attention_ctx *t = ctx;
    ON(head_norm, out, t->stats, qkv, t->gain, 1e-3f, t->kind, t->whole, &t->a);
}
static void head_norm_of_gain(struct shore__compute *c, const void *ctx, shore__buf gain, shore__buf out) {
    struct attention_ctx t = *(const struct attention_ctx *)ctx;
    t.gain = gain;
    head_norm_of(c, &t, t.qkv, out);
}
static void rope_of(struct shore__compute *c, const void *ctx, shore__buf qkv, shore__buf out) {
    const struct attention_ctx *t = ctx;
    memcpy(f32(out), f32(qkv), t->a.sequences * t->a.seq_len * (t->a.n_head + 2 * t->a.n_kv_head) * t->a.head_dim * 4);
    ON(rope, out, t->cos_sin, &t->a, 2, false);
}

static void attention(void **state) {
    static const struct shore__attention cases[] = {
        {.sequences = 2, .seq_len = 5, .n_head = 2, .n_kv_head = 2, .head_dim = 4, .scale = 0.5f},
        {.sequences = 1, .seq_len = 6, .n_head = 4, .n_kv_head = 2, .head_dim = 2, .scale = 0.7f, .softcap = 1.5f},
        {.sequences = 1, .seq_len = 7, .n_head = 2, .n_kv_head = 1, .head_dim = 4, .window = 3, .scale = 0.5f},
        {.sequences = 2, .seq_len = 5, .n_head = 2, .n_kv_head = 1, .head_dim = 6, .scale = 0.5f, .rotary_dim = 4},
    };
    struct backend b = open_reference(SHORE__F32);
    struct shore__compute *c = b.c;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct attention_ctx ctx = {.a = cases[i]};
        struct shore__attention *a = &ctx.a;
        size_t turned = shore__rotary_dim(a);
        if (i % 2) a->sinks = random_f32(5, a->n_head, 1, 0.5);
        size_t rows = a->sequences * a->seq_len, wide = (a->n_head + 2 * a->n_kv_head) * a->head_dim;
        size_t n = rows * wide, m = rows * a->n_head * a->head_dim, table = (a->seq_len + 2) * turned;
        shore__buf qkv = random_f32(1, n, 1.5, 0), dout = random_f32(2, m, 1, 0), out = zeros(m), dqkv = zeros(n);
        shore__buf dturned = random_f32(3, n, 1, 0), back = copy_of(dturned, n * 4);
        ctx.lse = zeros(rows * a->n_head);
        ctx.cos_sin = zeros(table);
        for (size_t p = 0; p < a->seq_len + 2; p++)
            for (size_t j = 0; j < turned / 2; j++) {
                f32(ctx.cos_sin)[p * turned + j] = cosf((float)(p * (j + 1)));
                f32(ctx.cos_sin)[p * turned + turned / 2 + j] = sinf((float)(p * (j + 1)));
            }
        attention_of(c, &ctx, qkv, out);
        ON(attention_backward, dqkv, dout, qkv, out, ctx.lse, a);
        check("attention", c, attention_of, &ctx, qkv, dqkv, n, dout, m);
        if (i % 2) {
            shore__buf dsinks = zeros(a->n_head);
            attention_of(c, &ctx, qkv, out);
            ON(sink_backward, dsinks, dout, out, ctx.lse, a);
            ctx.qkv = qkv;
            check("sinks", c, attention_of_sinks, &ctx, a->sinks, dsinks, a->n_head, dout, m);
            drop(dsinks), drop(a->sinks);
        }
        ON(rope, back, ctx.cos_sin, a, 2, true); /* a rotation: its transpose is its inverse */
        check("rope", c, rope_of, &ctx, qkv, back, n, dturned, n);
        shore__buf all[] = {qkv, dout, out, dqkv, dturned, back, ctx.lse, ctx.cos_sin};
        for (size_t j = 0; j < sizeof all / sizeof *all; j++)
            drop(all[j]);
    }
    close_backend(&b);
}

static void head_norms(void **state) {
    struct backend b = open_reference(SHORE__F32);
    struct shore__compute *c = b.c;
    for (int i = 0; i < 4; i++) {
        struct attention_ctx ctx = {
            .a = {.sequences = 1, .seq_len = 3, .n_head = 2, .n_kv_head = 1, .head_dim = 4},
            .kind = i < 2 ? SHORE__RMS_NORM : SHORE__RMS_NORM_FROM_1,
            .whole = i % 2,
        };
        size_t n = 3 * 4 * 4, ngain = ctx.whole ? 12 : 8;
        shore__buf dy = random_f32(4, n, 1, 0), y = zeros(n), dx = zeros(n), dgain = zeros(ngain);
        ctx.qkv = random_f32(1, n, 1, 0), ctx.gain = random_f32(2, ngain, 1, 1), ctx.stats = zeros(3 * 6);
        head_norm_of(c, &ctx, ctx.qkv, y);
        ON(head_norm_backward, dx, dgain, dy, ctx.qkv, ctx.gain, ctx.stats, ctx.kind, ctx.whole, &ctx.a);
        check("head_norm dx", c, head_norm_of, &ctx, ctx.qkv, dx, n, dy, n);
        check("head_norm dgain", c, head_norm_of_gain, &ctx, ctx.gain, dgain, ngain, dy, n);
        drop(dy), drop(y), drop(dx), drop(dgain), drop(ctx.qkv), drop(ctx.gain), drop(ctx.stats);
    }
    close_backend(&b);
}

/* ---- head ---- */

enum { HEAD_ROWS = 4, HEAD_D = 5, HEAD_VOCAB = 7, HEAD_SLICE = 3 };
struct head_ctx {
    shore__buf x, w, targets, max, sum;
    float cap;
};
static void head_of(struct shore__compute *c, const struct head_ctx *h, shore__buf x, shore__buf w, shore__buf loss) {
    float target[HEAD_ROWS], logits[HEAD_ROWS * HEAD_SLICE];
    for (int r = 0; r < HEAD_ROWS; r++)
        f32(h->max)[r] = -INFINITY, f32(h->sum)[r] = 0;
    for (size_t first = 0; first < HEAD_VOCAB; first += HEAD_SLICE) {
        size_t n = HEAD_VOCAB - first < HEAD_SLICE ? HEAD_VOCAB - first : HEAD_SLICE;
        ON(head_logits, host_buf(logits), x, shore__at(w, first * HEAD_D * 4), h->cap, HEAD_ROWS, n, HEAD_D);
        ON(head_merge, h->max, h->sum, host_buf(target), host_buf(logits), h->targets, HEAD_ROWS, n, first);
    }
    ON(head_loss, loss, h->max, h->sum, host_buf(target), h->targets, HEAD_ROWS);
}
static void head_of_x(struct shore__compute *c, const void *ctx, shore__buf x, shore__buf loss) {
    head_of(c, ctx, x, ((const struct head_ctx *)ctx)->w, loss);
}
static void head_of_w(struct shore__compute *c, const void *ctx, shore__buf w, shore__buf loss) {
    head_of(c, ctx, ((const struct head_ctx *)ctx)->x, w, loss);
}

static void head_capped_at(float cap) {
    struct backend b = open_reference(SHORE__F32);
    struct shore__compute *c = b.c;
    struct head_ctx h = {random_f32(1, HEAD_ROWS * HEAD_D, 1, 0),
                         random_f32(2, HEAD_VOCAB * HEAD_D, 1, 0),
                         random_ints(3, HEAD_ROWS, HEAD_VOCAB),
                         zeros(HEAD_ROWS),
                         zeros(HEAD_ROWS),
                         cap};
    shore__buf loss = zeros(HEAD_ROWS), dx = zeros(HEAD_ROWS * HEAD_D), dw = zeros(HEAD_VOCAB * HEAD_D);
    shore__buf scale = zeros(HEAD_ROWS), logits = zeros(HEAD_ROWS * HEAD_SLICE), dl = zeros(HEAD_ROWS * HEAD_SLICE);
    for (int r = 0; r < HEAD_ROWS; r++)
        f32(scale)[r] = 0.25f;
    head_of_x(c, &h, h.x, loss);
    for (int r = 0; r < HEAD_ROWS; r++) { /* the loss by its definition */
        double sum = 0, target = 0;
        for (int v = 0; v < HEAD_VOCAB; v++) {
            double logit = 0;
            for (int i = 0; i < HEAD_D; i++)
                logit += (double)f32(h.x)[r * HEAD_D + i] * f32(h.w)[v * HEAD_D + i];
            if (cap > 0) logit = (double)cap * tanh(logit / (double)cap);
            sum += exp(logit);
            if (v == ((int32_t *)h.targets.handle)[r]) target = logit;
        }
        assert_true(fabs(f32(loss)[r] - (log(sum) - target)) < 1e-5);
    }
    for (size_t first = 0; first < HEAD_VOCAB; first += HEAD_SLICE) {
        size_t n = HEAD_VOCAB - first < HEAD_SLICE ? HEAD_VOCAB - first : HEAD_SLICE;
        shore__buf w = shore__at(h.w, first * HEAD_D * 4);
        ON(head_logits, logits, h.x, w, cap, HEAD_ROWS, n, HEAD_D);
        ON(head_dlogits, dl, logits, h.max, h.sum, h.targets, 0.25f, cap, HEAD_ROWS, n, first);
        ON(head_backward_x, dx, dl, w, HEAD_ROWS, n, HEAD_D);
        ON(head_backward_w, shore__at(dw, first * HEAD_D * 4), dl, h.x, HEAD_ROWS, n, HEAD_D, true);
    }
    check("head dx", c, head_of_x, &h, h.x, dx, HEAD_ROWS * HEAD_D, scale, HEAD_ROWS);
    check("head dw", c, head_of_w, &h, h.w, dw, HEAD_VOCAB * HEAD_D, scale, HEAD_ROWS);
    shore__buf all[] = {h.x, h.w, h.targets, h.max, h.sum, loss, dx, dw, scale, logits, dl};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        drop(all[i]);
    close_backend(&b);
}

static void head(void **state) {
    head_capped_at(0);
    head_capped_at(1.2f);
}

/* ---- the processor ---- */

static void processor(void **state) {
    const char *kind = shore__processor_kind();
    assert_true(strlen(kind) > 4);
    assert_int_not_equal(shore__products_for_this_processor(), SHORE__PRODUCTS_AUTO);
    struct shore__compute_options options = {.threads = 1};
    struct shore__compute_description d;
    assert_int_equal(shore__compute_describe(&options, NULL, &d, NULL), 0);
    assert_string_equal(d.kind, kind);
    bool widens = strstr(kind, "avx512"); /* what is ours there multiplies bf16 in fp32 */
    bool bf16 = widens || shore__products_for_this_processor() == SHORE__PRODUCTS_BF16;
    assert_int_equal(d.mode, bf16 ? SHORE__BF16 : SHORE__BF16_IN_F32);
    struct shore__compute *c;
    assert_int_equal(shore__compute_open(&options, &c, NULL), 0);
    assert_int_equal(c->mode, d.mode);
    assert_int_equal(c->threads, 1);
    c->ops->close(c);
    struct shore_diag diag = {0};
    options.threads = -1;
    assert_true(shore__compute_open(&options, &c, &diag) < 0);
    assert_non_null(strstr(diag.text, "threads"));
    options.device = "abacus";
    assert_true(shore__compute_open(&options, &c, &diag) < 0);
    assert_non_null(strstr(diag.text, "abacus"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear),     cmocka_unit_test(norms), cmocka_unit_test(acts),      cmocka_unit_test(attention),
        cmocka_unit_test(head_norms), cmocka_unit_test(head),  cmocka_unit_test(processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
