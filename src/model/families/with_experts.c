/* What families with experts share. */
#include "model/families/with_experts.h"

#include "longshore/state.h"

void shore__experts_read(struct shore__keys *r, uint32_t experts, uint32_t chosen, double coefficient,
                         struct shore__arch *a) {
    /* transformers 5 takes both names */
    const char *count = shore__keys_given(r, "num_experts") ? "num_experts" : "num_local_experts";
    a->experts = shore__keys_count(r, count, experts, SHORE__MODEL_EXPERTS);
    if (!r->rc && shore__keys_count(r, "num_local_experts", a->experts, SHORE__MODEL_EXPERTS) != a->experts)
        shore__keys_refuse(r, "num_local_experts", "num_experts says another number");
    a->experts_chosen = shore__keys_count(r, "num_experts_per_tok", chosen, SHORE__MODEL_EXPERTS);
    coefficient = shore__keys_number(r, "router_aux_loss_coef", coefficient, 0, 1e6);
    a->balance = shore__keys_flag(r, "output_router_logits", false) ? coefficient : 0;
    if (!r->rc && a->experts_chosen > a->experts)
        shore__keys_refuse(r, "num_experts_per_tok", "a layer does not have so many experts");
    if (!r->rc && (uint64_t)a->experts * a->n_layer * 4 > SHORE_BLOB_BYTES)
        shore__keys_refuse(r, count, "at most 16,384 experts in all layers together are supported");
}

const struct shore__layer_row shore__experts_layer[SHORE__EXPERTS_LAYER_ROWS] = {
    SHORE__LLAMA_QKV_ROWS, SHORE__NORMED_ATTENTION_ROWS, SHORE__LLAMA_MID_ROWS,
    SHORE__EXPERTS_ROWS,   SHORE__ADD_ROW(MID, OUT),
};
