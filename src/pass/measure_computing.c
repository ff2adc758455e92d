/* A layer of GPT-2 124M, forward and backward, operation by operation as model/layer.c runs it, with weights of several
 * layers in turn, as they come in a step: no cache holds them all. */
#include "pass/measure_computing.h"

#include <errno.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "pass/costs.h"

enum {
    D = SHORE__MEASURED_WIDTH,
    QKV = 3 * D,
    FF = 4 * D,
    HEADS = 12,
    HEAD_DIM = D / HEADS,
    UNIT = 1024,
    LAYERS = 3,
    SAMPLES = 64
};
#define ENOUGH_SECONDS 0.7 /* with three samples at least */
#define MOST_SECONDS 4.0   /* with one at least */

struct bench {
    struct shore__compute *c;
    struct shore__stream *s;
    struct shore__span memory, workspace;
    shore__buf weight[LAYERS], dw, x, h, qkv, att, mid, up, act, dx, dup, dact, stats, lse, vector;
    size_t rows;
    struct shore__attention attention;
    double work[SHORE_WORKS], seconds[SHORE_WORKS]; /* of one layer */
};

static const size_t weight_elems = (size_t)D * (QKV + D + 2 * FF);

static shore__buf take(struct bench *b, size_t *at, size_t elems, size_t width) {
    shore__buf taken = shore__at(b->memory.device, *at);
    *at += (elems * width + 4095) / 4096 * 4096;
    return taken;
}

/* Lays out all operands; the memory may not be there yet. Returns the bytes. */
static size_t lay_out(struct bench *b, size_t e) {
    size_t at = 0, n = UNIT;
    for (int i = 0; i < LAYERS; i++)
        b->weight[i] = take(b, &at, weight_elems, e);
    b->dw = take(b, &at, weight_elems, 4);
    b->x = take(b, &at, n * D, e);
    b->h = take(b, &at, n * D, e);
    b->mid = take(b, &at, n * D, e);
    b->att = take(b, &at, n * D, e);
    b->dx = take(b, &at, n * D, e);
    b->qkv = take(b, &at, n * QKV, e);
    b->up = take(b, &at, n * FF, e);
    b->act = take(b, &at, n * FF, e);
    b->dup = take(b, &at, n * FF, e);
    b->dact = take(b, &at, n * FF, e);
    b->stats = take(b, &at, n * 2, 4);
    b->lse = take(b, &at, n * HEADS, 4);
    b->vector = take(b, &at, 2 * (size_t)FF, 4);
    return at;
}

/* Small numbers that are neither zero nor denormal: both halves of a float are the same bf16, near 1 / 64. */
static int fill(struct bench *b, size_t bytes) {
    static uint16_t pattern[1 << 16];
    for (size_t i = 0; i < sizeof pattern / 4; i++)
        pattern[2 * i] = pattern[2 * i + 1] = (uint16_t)(0x3C80u + i % 61 + (i % 7 < 3 ? 0x8000u : 0u));
    int rc = 0;
    for (size_t at = 0; !rc && at < bytes; at += sizeof pattern)
        rc = shore__put(b->c, b->s, shore__at(b->memory.device, at), pattern,
                        bytes - at < sizeof pattern ? bytes - at : sizeof pattern);
    return rc ? rc : shore__sync(b->c, b->s, NULL);
}

#define TIMED(kind, amount, call)                                                  \
    do {                                                                           \
        uint64_t start = shore__now_ns();                                          \
        int rc = (call);                                                           \
        if (!rc) rc = shore__sync(c, s, NULL);                                     \
        if (rc) return rc;                                                         \
        b->seconds[SHORE_WORK_##kind] += (double)(shore__now_ns() - start) * 1e-9; \
        b->work[SHORE_WORK_##kind] += (double)(amount);                            \
    } while (0)
#define FORWARD(y, x, w, n, k, nk) \
    TIMED(PRODUCT, 2.0 * rows * (n) * (k), op->linear(c, s, y, x, w, SHORE__NO_BUF, r, n, k, nk))
#define BACKWARD(dx, dy, x, w, n, k, nk)                                                                          \
    TIMED(PRODUCT_WEIGHT, 2.0 * rows * (n) * (k), op->linear_backward_w(c, s, b->dw, dy, x, r, n, k, nk, false)); \
    TIMED(PRODUCT_INPUT, 2.0 * rows * (n) * (k), op->linear_backward_x(c, s, dx, dy, w, r, n, k, nk))
#define ROWS(elems, call) TIMED(ROWS, rows *(double)(elems)*e, call)
#define ACT(elems, call) TIMED(ROWS, rows *((double)(elems)*e + (double)FF * SHORE__EXPONENTIAL_BYTES), call)

static int layer(struct bench *b, shore__buf weight) {
    struct shore__compute *c = b->c;
    struct shore__stream *s = b->s;
    const struct shore__compute_ops *op = c->ops;
    const size_t r = b->rows;
    const double rows = (double)r, e = (double)shore__mode_bytes(c->mode);
    const size_t width = shore__mode_bytes(c->mode);
    shore__buf qkv_w = weight, out_w = shore__at(qkv_w, (size_t)D * QKV * width),
               up_w = shore__at(out_w, (size_t)D * D * width), down_w = shore__at(up_w, (size_t)D * FF * width);
    shore__buf v = b->vector, g = shore__at(v, (size_t)FF * 4);
    double pairs = UNIT * ((double)b->attention.seq_len + 1) / 2 * HEADS;
    memset(b->seconds, 0, sizeof b->seconds);
    memset(b->work, 0, sizeof b->work);
    op->weights_changed(c);
    ROWS(2 * D, op->norm(c, s, b->h, b->stats, b->x, v, v, 1e-5f, false, r, D));
    FORWARD(b->qkv, b->h, qkv_w, QKV, D, true);
    TIMED(ATTENTION, pairs * HEAD_DIM * 4, op->attention(c, s, b->att, b->lse, b->qkv, &b->attention));
    FORWARD(b->mid, b->att, out_w, D, D, true);
    ROWS(3 * D, op->add(c, s, b->mid, b->x, b->mid, r * D));
    ROWS(2 * D, op->norm(c, s, b->h, b->stats, b->mid, v, v, 1e-5f, false, r, D));
    FORWARD(b->up, b->h, up_w, FF, D, true);
    ACT(2 * FF, op->act(c, s, b->act, b->up, SHORE__GELU_TANH, false, r, FF));
    FORWARD(b->dx, b->act, down_w, D, FF, false);
    ROWS(3 * D, op->add(c, s, b->dx, b->mid, b->dx, r * D));

    BACKWARD(b->dact, b->dx, b->act, down_w, D, FF, false);
    ACT(3 * FF, op->act_backward(c, s, b->dup, b->dact, b->up, SHORE__GELU_TANH, false, r, FF));
    BACKWARD(b->h, b->dup, b->h, up_w, FF, D, true);
    ROWS(4 * D, op->norm_backward(c, s, b->dx, g, g, b->h, b->dx, b->mid, v, b->stats, false, r, D));
    BACKWARD(b->h, b->dx, b->att, out_w, D, D, true);
    TIMED(ATTENTION_BACKWARD, pairs * HEAD_DIM * 10,
          op->attention_backward(c, s, b->dup, b->h, b->qkv, b->att, b->lse, &b->attention));
    BACKWARD(b->h, b->dup, b->x, qkv_w, QKV, D, true);
    ROWS(4 * D, op->norm_backward(c, s, b->dx, g, g, b->h, b->dx, b->x, v, b->stats, false, r, D));
    return 0;
}

/* Adds a rate of each kind with so many rows; *slowest: seconds of a layer. */
static int measure_rows(struct bench *b, enum shore_precision precision, struct shore_machine *m, bool (*stop)(void),
                        double *slowest) {
    static double sample[SHORE_WORKS][SAMPLES];
    uint64_t begin = shore__now_ns();
    double since = 0;
    size_t n = 0;
    int rc = layer(b, b->weight[0]); /* the first brings pages and code into caches */
    while (!rc && n < SAMPLES && since < MOST_SECONDS && (n < 3 || since < ENOUGH_SECONDS)) {
        rc = stop && stop() ? -ECANCELED : layer(b, b->weight[n % LAYERS]);
        for (int kind = 0; kind <= SHORE_WORK_ROWS; kind++)
            sample[kind][n] = b->seconds[kind];
        n++;
        since = (double)(shore__now_ns() - begin) * 1e-9;
    }
    *slowest = since / (double)(n + 1);
    for (int kind = 0; !rc && kind <= SHORE_WORK_ROWS; kind++) {
        struct shore__rates *r = &m->rate[kind][precision];
        r->at[r->n++] = (struct shore__rate_at){
            (uint32_t)b->rows, shore__four_digits(b->work[kind] / shore__lower_quartile(sample[kind], n))};
    }
    return rc;
}

static int measure_with(struct bench *b, const struct shore__compute_options *how, struct shore_machine *m,
                        bool (*stop)(void), struct shore_diag *diag) {
    static const size_t rows[] = {64, 256, UNIT};
    double layer_seconds = 0;
    int rc = 0;
    for (size_t i = 0; !rc && i < sizeof rows / sizeof *rows && layer_seconds * 4 < MOST_SECONDS; i++) {
        struct shore__compute_description is;
        struct shore__shapes shapes = {.unit_rows = rows[i],
                                       .seq_len = rows[i],
                                       .d_model = D,
                                       .linear = {{QKV, D, true}, {D, D, true}, {FF, D, true}, {D, FF, false}},
                                       .nlinear = 4,
                                       .n_head = HEADS,
                                       .n_kv_head = HEADS,
                                       .head_dim = HEAD_DIM,
                                       .backward = true};
        b->rows = rows[i];
        /* as many sequences as a unit has */
        b->attention = (struct shore__attention){.sequences = UNIT / rows[i],
                                                 .seq_len = rows[i],
                                                 .n_head = HEADS,
                                                 .n_kv_head = HEADS,
                                                 .head_dim = HEAD_DIM,
                                                 .scale = 0.125f};
        rc = shore__compute_describe(how, &shapes, &is, diag);
        if (rc) break;
        size_t bytes = lay_out(b, shore__mode_bytes(is.mode)), room = is.workspace_bytes + is.packed_bytes;
        rc = b->c->ops->alloc(b->c, SHORE_PLACE_DEVICE, bytes, &b->memory, diag);
        if (rc) break;
        rc = b->c->ops->alloc(b->c, SHORE_PLACE_DEVICE, room, &b->workspace, diag);
        lay_out(b, shore__mode_bytes(is.mode));
        if (!rc) rc = b->c->ops->make(b->c, &shapes, b->workspace.device, room, diag);
        if (!rc) rc = fill(b, bytes);
        if (!rc) rc = measure_rows(b, is.products, m, stop, &layer_seconds);
        if (rc == -ECANCELED) shore__fail(diag, rc, "stopped");
        if (b->workspace.bytes) b->c->ops->free(b->c, &b->workspace);
        b->c->ops->free(b->c, &b->memory);
        b->workspace = (struct shore__span){.bytes = 0};
    }
    return rc;
}

int shore__measure_computing(struct shore_machine *m, bool (*stop)(void), struct shore_diag *diag) {
    const enum shore__products all[] = {SHORE__PRODUCTS_F32, SHORE__PRODUCTS_BF16};
    int rc = 0;
    memset(m->rate, 0, sizeof m->rate);
    for (int i = 0; !rc && i < (shore__can_multiply_bf16() ? 2 : 1); i++) {
        const struct shore__compute_options how = {.products = all[i]};
        struct bench b = {.rows = 0};
        rc = shore__compute_open(&how, &b.c, diag);
        if (rc) return rc;
        rc = b.c->ops->stream_open(b.c, &b.s, diag);
        if (!rc) {
            rc = measure_with(&b, &how, m, stop, diag);
            b.c->ops->stream_close(b.c, b.s);
        }
        b.c->ops->close(b.c);
    }
    if (rc && diag && !*diag->text) shore__fail(diag, rc, "computing cannot be measured: %s", shore_error_text(rc));
    return rc;
}
