/* Quantising with vectors, written once. The includer defines
 *
 *     LANES, LANES_TARGET and LANES_INLINE, LANES_QUANTISE and LANES_DEQUANTISE (of the entries)
 *     vec: lanes_set, lanes_load, lanes_store, lanes_add, lanes_mul, lanes_div
 *     ivec: lanes_seti, lanes_and, lanes_andnot (not a, and b), lanes_xor, lanes_addi, lanes_subi, lanes_maxi and
 *     lanes_mini (signed); lanes_bits (of a vec), lanes_float (the vec of bits), lanes_trunc (to integers)
 *     lanes_sign(bits): all ones where negative
 *     lanes_count(n, a, b): n, and 1 more where a > b
 *     lanes_table(eight floats), lanes_tablei(eight integers), lanes_pick(table, index), lanes_picki(table, index)
 *     struct lanes_decades, lanes_decades(code), lanes_decade(&decades, a): how many of bound[0..6] are below a
 *     lanes_highest(i): the largest lane
 *     lanes_values(value, code): value[] of LANES codes; lanes_put(code, n): stores LANES codes
 *
 * Operations and their order equal those of moments_scalar.c.
 */

/* The constants of a code, in registers. */
struct lanes_code {
    struct lanes_decades decades;
    vec scale, shift, above;
    ivec cap, zero;
};

LANES_INLINE ivec lanes_nearest(const struct lanes_code *c, vec x, bool with_sign) {
    ivec sign = lanes_sign(lanes_bits(x));
    vec a = lanes_float(lanes_and(lanes_bits(x), lanes_seti((int)SHORE__MAGNITUDE)));
    ivec d = lanes_decade(&c->decades, a);
    vec scaled = lanes_add(lanes_mul(a, lanes_pick(c->scale, d)), lanes_pick(c->shift, d));
    ivec n = lanes_mini(lanes_trunc(scaled), lanes_picki(c->cap, d));
    n = lanes_count(lanes_maxi(n, lanes_mini(d, lanes_seti(1))), x, c->above); /* of x: there is no -1 */
    if (!with_sign) return lanes_andnot(sign, n);
    return lanes_addi(c->zero, lanes_subi(lanes_xor(n, sign), sign));
}

LANES_INLINE uint32_t lanes_most(const float *in) {
    ivec most = lanes_seti(0);
    for (size_t i = 0; i < SHORE__MOMENT_BLOCK_ELEMS; i += LANES)
        most = lanes_maxi(most, lanes_and(lanes_bits(lanes_load(in + i)), lanes_seti((int)SHORE__MAGNITUDE)));
    return lanes_highest(most);
}

LANES_INLINE int lanes_quantise(const struct shore__dynamic_code *code, const struct shore__moment8 *out,
                                const float *in, size_t elems, bool with_sign) {
    struct lanes_code c = {.decades = lanes_decades(code),
                           .scale = lanes_table(code->scale),
                           .above = lanes_set(code->bound[7]),
                           .shift = lanes_table(code->shift),
                           .cap = lanes_tablei(code->cap),
                           .zero = lanes_seti(code->zero)};
    int worst = 0;
    for (size_t at = 0; at < elems; at += SHORE__MOMENT_BLOCK_ELEMS) {
        float *absmax = &out->absmax[at / SHORE__MOMENT_BLOCK_ELEMS];
        uint32_t most = lanes_most(in + at);
        if (most == 0 || most >= SHORE__INFINITY) {
            int rc = shore__quantise_odd(code, out->code + at, absmax, most);
            if (rc) worst = rc;
            continue;
        }
        *absmax = shore__bits_f32(most);
        vec divisor = lanes_set(*absmax);
        for (size_t i = at; i < at + SHORE__MOMENT_BLOCK_ELEMS; i += LANES)
            lanes_put(out->code + i, lanes_nearest(&c, lanes_div(lanes_load(in + i), divisor), with_sign));
    }
    return worst;
}

LANES_TARGET int LANES_QUANTISE(const struct shore__dynamic_code *code, const struct shore__moment8 *out,
                                const float *in, size_t elems) {
    return code->zero ? lanes_quantise(code, out, in, elems, true) : lanes_quantise(code, out, in, elems, false);
}

LANES_TARGET void LANES_DEQUANTISE(const struct shore__dynamic_code *code, float *out, const struct shore__moment8 *in,
                                   size_t elems) {
    for (size_t at = 0; at < elems; at += SHORE__MOMENT_BLOCK_ELEMS) {
        vec absmax = lanes_set(in->absmax[at / SHORE__MOMENT_BLOCK_ELEMS]);
        for (size_t i = at; i < at + SHORE__MOMENT_BLOCK_ELEMS; i += LANES)
            lanes_store(out + i, lanes_mul(lanes_values(code->value, in->code + i), absmax));
    }
}
