/* What families with experts share. */
#include "model/families/with_experts.h"

#include "longshore/state.h"

void shore__experts_read(struct shore__keys *r, const char *count, uint32_t experts, uint32_t chosen,
                         double coefficient, struct shore__arch *a) {
    a->experts = shore__keys_count(r, count, experts, SHORE__MODEL_EXPERTS);
    a->experts_chosen = shore__keys_count(r, "num_experts_per_tok", chosen, SHORE__MODEL_EXPERTS);
    coefficient = shore__keys_number(r, "router_aux_loss_coef", coefficient, 0, 1e6);
    a->balance = shore__keys_flag(r, "output_router_logits", false) ? coefficient : 0;
    if (!r->rc && a->experts_chosen > a->experts)
        shore__keys_refuse(r, "num_experts_per_tok", "a layer does not have so many experts");
    if (!r->rc && (uint64_t)a->experts * a->n_layer * 4 > SHORE_BLOB_BYTES)
        shore__keys_refuse(r, count, "at most 16,384 experts in all layers together are supported");
}

const struct shore__layer_row shore__experts_layer[SHORE__EXPERTS_LAYER_ROWS] = {
    SHORE__OP_ROW(NORM, IN, NORM1, .aux = SHORE__STATS1, .weight = SHORE__NORM1_GAIN, .cheap = true),
    SHORE__OP_ROW(LINEAR, NORM1, QKV, .weight = SHORE__QKV_W, .bias = SHORE__QKV_B),
    SHORE__OP_ROW(HEAD_NORM, QKV, HEADS, .aux = SHORE__HEAD_STATS, .weight = SHORE__HEAD_GAIN, .cheap = true),
    SHORE__OP_ROW(ROPE, HEADS, HEADS, .cheap = true),
    SHORE__OP_ROW(ATTENTION, HEADS, ATTN, .aux = SHORE__LSE),
    SHORE__OP_ROW(LINEAR, ATTN, MID, .weight = SHORE__OUT_W, .bias = SHORE__OUT_B),
    SHORE__ADD_ROW(IN, MID),
    SHORE__OP_ROW(NORM, MID, NORM2, .aux = SHORE__STATS2, .weight = SHORE__NORM2_GAIN, .cheap = true),
    SHORE__EXPERTS_ROWS,
    SHORE__ADD_ROW(MID, OUT),
};
