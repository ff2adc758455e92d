/* The scalar reference, as its files share it. It registers itself as the backend "reference". */
#ifndef SHORE_TESTS_REFERENCE_H
#define SHORE_TESTS_REFERENCE_H

#include "compute/compute.h"
#include "number/bf16.h"

/* Element i of an activation or of a weight, which have the same types. */
static inline double shore__reference_get(const struct shore__compute *c, shore__buf b, size_t i) {
    if (c->mode == SHORE__BF16) return shore__bf16_to_f32(((const uint16_t *)b.handle)[i]);
    return ((const float *)b.handle)[i];
}
static inline void shore__reference_put(const struct shore__compute *c, shore__buf b, size_t i, double value) {
    float x = (float)value;
    if (c->mode == SHORE__BF16)
        ((uint16_t *)b.handle)[i] = shore__f32_to_bf16(x);
    else if (c->mode == SHORE__BF16_IN_F32)
        ((float *)b.handle)[i] = shore__bf16_to_f32(shore__f32_to_bf16(x));
    else
        ((float *)b.handle)[i] = x;
}

extern const struct shore__compute_backend shore__compute_reference;

SHORE__OP_TYPE(rope) shore__reference_rope;
SHORE__OP_TYPE(attention) shore__reference_attention;
SHORE__OP_TYPE(attention_backward) shore__reference_attention_backward;
SHORE__OP_TYPE(attention_cached) shore__reference_attention_cached;
SHORE__OP_TYPE(sink_backward) shore__reference_sink_backward;
SHORE__OP_TYPE(norm) shore__reference_norm;
SHORE__OP_TYPE(norm_backward) shore__reference_norm_backward;
SHORE__OP_TYPE(head_norm) shore__reference_head_norm;
SHORE__OP_TYPE(head_norm_backward) shore__reference_head_norm_backward;
SHORE__OP_TYPE(act) shore__reference_act;
SHORE__OP_TYPE(act_backward) shore__reference_act_backward;
SHORE__OP_TYPE(route) shore__reference_route;
SHORE__OP_TYPE(route_backward) shore__reference_route_backward;
SHORE__OP_TYPE(route_count) shore__reference_route_count;
SHORE__OP_TYPE(experts_gather) shore__reference_experts_gather;
SHORE__OP_TYPE(experts_scatter) shore__reference_experts_scatter;
SHORE__OP_TYPE(experts_weigh_bias) shore__reference_experts_weigh_bias;
SHORE__OP_TYPE(experts_weigh) shore__reference_experts_weigh;
SHORE__OP_TYPE(experts_linear) shore__reference_experts_linear;
SHORE__OP_TYPE(experts_linear_backward_x) shore__reference_experts_linear_backward_x;
SHORE__OP_TYPE(experts_linear_backward_w) shore__reference_experts_linear_backward_w;
SHORE__OP_TYPE(experts_bias_backward) shore__reference_experts_bias_backward;

#endif
