const struct shore__kernels KERNELS = {
    .round = k_round,
    .add = k_add,
    .add_to = k_add_to,
    .act = k_act,
    .act_backward = k_act_backward,
    .scale = k_scale,
    .exp = k_exp,
    .softcap = k_softcap,
    .rope = k_rope,
    .norm = k_norm,
    .norm_backward = k_norm_backward,
    .norm_columns = k_norm_columns,
    .column_sums = k_column_sums,
    .head_merge = k_head_merge,
    .head_dlogits = k_head_dlogits,
    .attention_scratch = k_attention_scratch,
    .attention = k_attention,
    .attention_backward = k_attention_backward,
    .sink_backward = k_sink_backward,
#ifdef PRODUCT
    .product = &PRODUCT,
#endif
};
