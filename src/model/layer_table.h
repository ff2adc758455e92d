/* A layer as a table: each row is an operation on named values. Forward runs the rows in order, and backward in
 * reverse. Sizes of activations, scratch of backward, shapes of products and costs of the plan are read off the same
 * table. A family of models (model/families/) has one table for all its layers. */
#ifndef SHORE_MODEL_LAYER_TABLE_H
#define SHORE_MODEL_LAYER_TABLE_H

#include <stdbool.h>
#include <stdint.h>

/* An activation of a layer. What a row makes is saved for backward, unless it is IN, OUT or cheap. */
enum shore__activation {
    SHORE__NO_VALUE,
    SHORE__IN,  /* the layer's input, which is the layer before's output */
    SHORE__OUT, /* may lie where IN does */
    SHORE__NORM1,
    SHORE__STATS1, /* of norms: fp32 */
    SHORE__QKV,    /* queries, keys, values */
    SHORE__HEADS,  /* the same with queries and keys normed */
    SHORE__HEAD_STATS,
    SHORE__ATTN,
    SHORE__LSE,      /* of attention: fp32 [n_head, rows] */
    SHORE__ATTN_OUT, /* before a norm that comes before the residual sum; so is FF_OUT */
    SHORE__ATTN_OUT_STATS,
    SHORE__MID,
    SHORE__NORM2,
    SHORE__STATS2,
    SHORE__UP, /* gated: gate, then up */
    SHORE__ACT,
    SHORE__FF_OUT,
    SHORE__FF_OUT_STATS,
    SHORE__ROUTER, /* logits of experts */
    SHORE__ROUTE,  /* which rows go to which experts */
    /* in experts' order, for each row as many as it has experts */
    SHORE__EXPERTS_IN,
    SHORE__EXPERTS_UP,
    SHORE__EXPERTS_ACT,
    SHORE__EXPERTS_OUT,
    SHORE__VALUES
};

enum shore__layer_op {
    SHORE__OP_NORM,      /* out = norm(in); aux: its statistics; weight: gain */
    SHORE__OP_LINEAR,    /* out = in weight (+ bias) */
    SHORE__OP_HEAD_NORM, /* out = in with queries and keys normed; aux: statistics; weight: gain */
    SHORE__OP_ROPE,      /* turns queries and keys of out, which is in, in place */
    SHORE__OP_ATTENTION, /* out = attention(in); aux: its lse; weight: sinks */
    SHORE__OP_ACT,       /* out = f(in) */
    SHORE__OP_ADD,       /* out = in + out: a residual sum */
    SHORE__OP_ROUTE,     /* out = ROUTE: the experts of each row, by its logits */
    SHORE__OP_GATHER,    /* out = rows of in, in experts' order */
    SHORE__OP_EXPERTS,   /* out = in weight (+ bias), of each expert its own */
    SHORE__OP_WEIGHTED,  /* the same, where SCATTER follows: backward has the gradient of ROUTE's weights */
    SHORE__OP_SCATTER,   /* out = sum of a row's experts, by ROUTE's weights; nobody else reads in */
};

#define SHORE__ADAPTERS_MOST 16u /* of a layer */

enum shore__role {
    SHORE__NO_ROLE,
    SHORE__TOKEN_TABLE,
    SHORE__POSITION_TABLE,
    SHORE__NORM1_GAIN,
    SHORE__NORM1_BIAS,
    SHORE__QKV_W, /* [qkv_width, d]: queries, keys, values */
    SHORE__QKV_B,
    SHORE__HEAD_GAIN, /* queries, keys */
    SHORE__SINKS,     /* [n_head] */
    SHORE__OUT_W,     /* [d, attn_width] */
    SHORE__OUT_B,
    SHORE__ATTN_OUT_GAIN,
    SHORE__NORM2_GAIN,
    SHORE__NORM2_BIAS,
    SHORE__UP_W, /* [up_width, d]; gated: gate rows, then up rows */
    SHORE__UP_B,
    SHORE__DOWN_W, /* [d_ff, d]: input-major */
    SHORE__DOWN_B,
    SHORE__FF_OUT_GAIN,
    SHORE__ROUTER_W, /* [experts, d] */
    SHORE__ROUTER_B,
    /* of the first expert; the others' lie behind it, at the same distance (shore__model_routing) */
    SHORE__EXPERT_UP_W, /* as UP_W and DOWN_W */
    SHORE__EXPERT_UP_B,
    SHORE__EXPERT_DOWN_W,
    SHORE__EXPERT_DOWN_B,
    SHORE__HEAD_TABLE, /* untied: [vocab, d] */
    SHORE__NORMF_GAIN,
    SHORE__NORMF_BIAS,
    SHORE__ADAPTERS, /* of each adapter of a layer: a, then b */
    SHORE__ROLE_COUNT = SHORE__ADAPTERS + 2 * SHORE__ADAPTERS_MOST
};

static inline bool shore__is_gain(enum shore__role role) {
    return role == SHORE__NORM1_GAIN || role == SHORE__NORM2_GAIN || role == SHORE__NORMF_GAIN ||
           role == SHORE__HEAD_GAIN || role == SHORE__ATTN_OUT_GAIN || role == SHORE__FF_OUT_GAIN;
}

struct shore__layer_row {
    enum shore__layer_op op;
    enum shore__activation in, out, aux;
    enum shore__role weight, bias; /* a bias that the model lacks is left out */
    bool cheap;                    /* out is computed again from saved values at little cost */
    bool input_major;              /* of LINEAR: weight is [width of in, width of out] */
};

/* A row, by names without their prefixes: SHORE__OP_ROW(LINEAR, NORM1, QKV, .weight = SHORE__QKV_W). */
#define SHORE__OP_ROW(op_, in_, out_, ...) \
    { .op = SHORE__OP_##op_, .in = SHORE__##in_, .out = SHORE__##out_, __VA_ARGS__ }
#define SHORE__ADD_ROW(in_, out_) \
    { .op = SHORE__OP_ADD, .in = SHORE__##in_, .out = SHORE__##out_ }

#define SHORE__LAYER_ROWS 24u  /* at most */
#define SHORE__LAYER_SLOTS 6u  /* of scratch for gradients of values, at most */
#define SHORE__IN_STREAM 0xFFu /* instead of a slot: with the residual stream's gradient */

/* What follows from a table and a model's widths. */
struct shore__layer_shape {
    const struct shore__layer_row *rows;
    uint32_t nrows;
    uint32_t width[SHORE__VALUES]; /* elements of a row, in the mode's type; 0: the value is fp32, or not there */
    uint32_t fp32[SHORE__VALUES];  /* fp32 elements of a row */
    /* What a unit's backward reads beside IN, those that are not cheap first. */
    uint32_t nsaved, ncostly;
    enum shore__activation saved[SHORE__VALUES];
    enum shore__activation passing; /* is in forward alone: what SCATTER reads; or NO_VALUE */
    uint32_t times[SHORE__VALUES];  /* rows of a value for each row of activations; width has all of them */
    /* Where backward has the gradients of a row's values: slots of scratch. adds: that of in is there already, so the
     * row adds to it, through `through` if its operation cannot. */
    struct {
        uint8_t out, in, through;
        bool adds;
    } gradient[SHORE__LAYER_ROWS];
    uint32_t nslots, slot_width[SHORE__LAYER_SLOTS];
};

struct shore__model;
/* Fills m->layer from the family's table and the model's widths. */
void shore__layer_shape(struct shore__model *m);

#endif
