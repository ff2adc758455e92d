/* Body of the vector versions of UPDATE. Before including it, a version defines, for vectors of LANES floats:
 *
 *     LANES, LANES_TARGET and LANES_INLINE (function attributes), LANES_NAME (of the entry)
 *     vec; lanes_set, lanes_load, lanes_store, lanes_add, lanes_sub, lanes_mul, lanes_div, lanes_sqrt (exact ones)
 *     lanes_stored: NaN lanes become the canonical NaN
 *     lanes_join(hi, lo), lanes_split(p, hi, lo): the planes of the master weight
 *     lanes_nonfinite(p, flag): flag with a non-zero bit added if a lane has no finite bf16
 *
 * Operations and their order equal those of update_scalar.c, which takes the elements that do not fill a vector.
 */

struct lanes {
    vec p, m, v;
};

/* The rule is passed by value, so that the compiler knows that no store changes it, and keeps it in registers. */
LANES_INLINE void lanes_adam(const struct shore__rule r, struct lanes *e, vec g) {
    vec weighted = lanes_mul(lanes_set(r.m_weight), lanes_sub(g, e->m));
    e->m = lanes_add(r.m_from_gradient ? g : e->m, weighted);
    vec square = lanes_mul(lanes_mul(lanes_set(r.one_minus_beta2), g), g);
    e->v = lanes_add(lanes_mul(e->v, lanes_set(r.beta2)), square);
    vec root = lanes_mul(lanes_sqrt(e->v), lanes_set(r.inv_sqrt_bias2));
    vec denominator = lanes_add(root, lanes_set(r.eps));
    e->p = lanes_sub(e->p, lanes_div(lanes_mul(lanes_set(r.step_size), e->m), denominator));
}

LANES_INLINE void lanes_step(enum shore_optimizer optimizer, const struct shore__rule r, struct lanes *e, vec g,
                             bool with_m) {
    g = lanes_mul(g, lanes_set(r.coefficient));
    if (r.decays_gradient) g = lanes_add(g, lanes_mul(lanes_set(r.weight_decay), e->p));
    if (optimizer == SHORE_ADAMW || optimizer == SHORE_ADAM) {
        if (optimizer == SHORE_ADAMW) e->p = lanes_mul(e->p, lanes_set(r.decay));
        lanes_adam(r, e, g);
    } else if (optimizer == SHORE_SGD) {
        if (with_m) e->m = r.first_step ? g : lanes_add(lanes_mul(e->m, lanes_set(r.momentum)), g);
        e->p = lanes_sub(e->p, lanes_mul(lanes_set(r.lr), with_m ? e->m : g));
    } else {
        e->v = lanes_add(e->v, lanes_mul(g, g));
        vec denominator = lanes_add(lanes_sqrt(e->v), lanes_set(r.eps));
        e->p = lanes_sub(e->p, lanes_div(lanes_mul(lanes_set(r.lr), g), denominator));
    }
}

/* All whole vectors. Callers pass optimizer, with_m and with_v as constants. */
LANES_INLINE int lanes_run(enum shore_optimizer optimizer, bool with_m, bool with_v, const struct shore__rule r,
                           const struct shore__planes in, const struct shore__planes out, const float *gradient,
                           uint16_t *bf16_out, float *fp32_out, size_t elems) {
    int nonfinite = 0;
    for (size_t i = 0; i + LANES <= elems; i += LANES) {
        struct lanes e = {lanes_join(in.hi + i, in.lo + i), with_m ? lanes_load(in.m + i) : lanes_set(0.0f),
                          with_v ? lanes_load(in.v + i) : lanes_set(0.0f)};
        lanes_step(optimizer, r, &e, lanes_load(gradient + i), with_m);
        e.p = lanes_stored(e.p);
        nonfinite = lanes_nonfinite(e.p, nonfinite);
        lanes_split(e.p, out.hi + i, out.lo + i, bf16_out ? bf16_out + i : NULL);
        if (with_m) lanes_store(out.m + i, lanes_stored(e.m));
        if (with_v) lanes_store(out.v + i, lanes_stored(e.v));
        if (fp32_out) lanes_store(fp32_out + i, e.p);
    }
    return nonfinite ? SHORE_ENONFINITE : 0;
}

LANES_TARGET int LANES_NAME(enum shore_optimizer optimizer, const struct shore_hyper *hyper, float coefficient,
                            const struct shore__planes *in, const struct shore__planes *out, const float *gradient,
                            void *params_out, bool fp32_params, size_t elems) {
    const struct shore__rule r = shore__rule_make(optimizer, hyper, coefficient);
    uint16_t *bf16_out = fp32_params ? NULL : params_out;
    float *fp32_out = fp32_params ? params_out : NULL;
    bool with_m = in->m && out->m;
    int rc;
    if (optimizer == SHORE_ADAMW)
        rc = lanes_run(SHORE_ADAMW, true, true, r, *in, *out, gradient, bf16_out, fp32_out, elems);
    else if (optimizer == SHORE_ADAM)
        rc = lanes_run(SHORE_ADAM, true, true, r, *in, *out, gradient, bf16_out, fp32_out, elems);
    else if (optimizer == SHORE_SGD && with_m)
        rc = lanes_run(SHORE_SGD, true, false, r, *in, *out, gradient, bf16_out, fp32_out, elems);
    else if (optimizer == SHORE_SGD)
        rc = lanes_run(SHORE_SGD, false, false, r, *in, *out, gradient, bf16_out, fp32_out, elems);
    else
        rc = lanes_run(SHORE_ADAGRAD, false, true, r, *in, *out, gradient, bf16_out, fp32_out, elems);

    size_t done = elems - elems % LANES;
    if (done == elems) return rc;
    struct shore__planes in_tail = shore__planes_from(in, done), out_tail = shore__planes_from(out, done);
    unsigned char *params_tail = params_out;
    if (params_tail) params_tail += done * (fp32_params ? sizeof(float) : sizeof(uint16_t));
    int tail_rc = shore__update_scalar(optimizer, hyper, coefficient, &in_tail, &out_tail, gradient + done, params_tail,
                                       fp32_params, elems - done);
    return rc ? rc : tail_rc;
}
