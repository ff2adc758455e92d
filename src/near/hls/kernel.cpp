#include "near/hls/kernel.h"

#include "near/hls/fp32_bits.h"
#include "near/hls/gradient_rows.h"
#include "near/moments_impl.h"

/* A port of its own each, so that all move a word at a clock. */
#define PORT(name) HLS(interface m_axi port = name bundle = name offset = slave)

namespace {

/* ---- read -------------------------------------------------------------------------------------------------------- */

/* A block of 256 elements: its group's constants, and where its moments lie in their planes. */
struct place {
    shore__kernel_rule rule;
    bool coded; /* in 8 bits */
    uint32_t byte, absmax;
};

/* used: bytes of a segment's moment. */
void read_places(const shore__kernel_block *blocks, const shore__kernel_rule *rules, uint32_t segment,
                 uint32_t moment_words, hls::stream<place, 256> &places, hls::stream<uint32_t, 2> &m_used,
                 hls::stream<uint32_t, 2> &v_used) {
    uint32_t used = 0, begin = segment * moment_words * 64;
    for (uint32_t b = 0; b < BLOCKS; b++) {
        HLS(pipeline II = 1);
        shore__kernel_block from = blocks[segment * BLOCKS + b];
        bool coded = from.group & SHORE__KERNEL_CODED;
        uint32_t byte = coded ? from.at - begin : from.at * 4 - begin, absmax = coded ? from.absmax * 4 - begin : 0;
        uint32_t end = coded ? absmax + 4 : byte + SHORE__MOMENT_BLOCK_ELEMS * 4;
        used = end > used ? end : used;
        places.write({rules[from.group & ~SHORE__KERNEL_CODED], coded, byte, absmax});
    }
    m_used.write(used);
    v_used.write(used);
}

/* `words` of each segment, from a byte of the port on. */
void read_words(const word *port, uint64_t byte, uint32_t words, uint32_t segment, hls::stream<word, 32> &to) {
    for (uint32_t i = 0; i < words; i++) {
        HLS(pipeline II = 1);
        to.write(port[byte / 64 + (uint64_t)segment * words + i]);
    }
}

/* ---- compute ----------------------------------------------------------------------------------------------------- */

struct row {
    word p, m, v; /* moments as bits of fp32; as codes where the block is frozen and coded */
};
/* What is known of a block when its last row is computed. */
struct block {
    place at;
    bool frozen, failed;
    uint32_t m_most, v_most; /* magnitudes; as absmax of the frozen */
};

/* One rule for all optimizers: what one leaves out is a product with 1, or an operand that is not chosen. So there is
 * one divider and one root a lane. */
struct element {
    uint32_t p, m, v;
};
element step(uint32_t optimizer, const shore__kernel_rule &c, bool with_m, element e, uint32_t g) {
    HLS(inline);
    bool adam = optimizer <= SHORE_ADAM, sgd = optimizer == SHORE_SGD, decays = c.decays_gradient;
    g = fp32::multiply(g, c.coefficient);
    uint32_t factor = optimizer == SHORE_ADAMW ? c.decay : fp32::ONE;
    uint32_t decayed = fp32::multiply(decays ? c.weight_decay : factor, e.p);
    g = decays ? fp32::add(g, decayed) : g;
    e.p = decays ? e.p : decayed;

    uint32_t base = sgd || c.from_gradient ? g : e.m;
    uint32_t moved = fp32::multiply((sgd ? c.momentum : c.m_weight), sgd ? e.m : fp32::subtract(g, e.m));
    uint32_t m = sgd && c.first_step ? g : fp32::add(base, moved);
    if (with_m) e.m = fp32::is_nan(m) ? fp32::NOT_A_NUMBER : m;

    uint32_t square = fp32::multiply(fp32::multiply(adam ? c.one_minus_beta2 : fp32::ONE, g), g);
    uint32_t v = fp32::add(fp32::multiply(e.v, adam ? c.beta2 : fp32::ONE), square);
    e.v = fp32::is_nan(v) ? fp32::NOT_A_NUMBER : v;
    uint32_t root = fp32::multiply(fp32::square_root(v), adam ? c.inv_sqrt_bias2 : fp32::ONE);
    uint32_t divisor = sgd ? fp32::ONE : fp32::add(root, c.eps);

    uint32_t rate = adam ? c.step_size : c.lr;
    e.p = fp32::subtract(e.p, fp32::divide(fp32::multiply(rate, with_m ? m : g), divisor));
    if (fp32::is_nan(e.p)) e.p = fp32::NOT_A_NUMBER;
    return e;
}

/* The values of both codes, for each lane. */
struct values {
    uint32_t m[LANES][256], v[LANES][256];
    values() {
        HLS(array_partition variable = m complete dim = 1);
        HLS(array_partition variable = v complete dim = 1);
    }
};

void update_rows(uint32_t optimizer, bool has_m, bool has_v, const values &value, const image<ROWS + 2> &m,
                 const image<ROWS + 2> &v, hls::stream<place, 256> &places, hls::stream<word, 32> &his,
                 hls::stream<word, 32> &los, hls::stream<word, 32> &gradients, hls::stream<row, 64> &rows,
                 hls::stream<block, 4> &done) {
    block now = {};
    word hi = {}, lo = {};
    uint32_t absmax_m = 0, absmax_v = 0;
    for (uint32_t r = 0; r < ROWS; r++) {
        HLS(pipeline II = 1);
        uint32_t within = r % BLOCK_ROWS;
        if (within == 0) {
            place at = places.read();
            now = {at, at.rule.frozen != 0, false, 0, 0};
            absmax_m = get(m, at.absmax).lane[0];
            absmax_v = get(v, at.absmax).lane[0];
        }
        if (r % 2 == 0) {
            hi = his.read();
            lo = los.read();
        }
        bool coded = now.at.coded;
        uint32_t byte = now.at.byte + within * (coded ? LANES : 4 * LANES);
        word g = gradients.read(), old_m = get(m, byte), old_v = get(v, byte);
        bool with_m = has_m && now.at.rule.with_momentum; /* torch.optim leaves a momentum of 0 alone */
        row out;
        for (uint32_t i = 0; i < LANES; i++) {
            HLS(unroll);
            uint32_t pair = r % 2 * (LANES / 2) + i / 2, shift = i % 2 * 16;
            uint32_t low = lo.lane[pair] >> shift & 0xFFFF, high = (hi.lane[pair] >> shift) - (low >> 15);
            uint32_t m_code = old_m.lane[i / 4] >> (i % 4 * 8) & 0xFF, v_code = old_v.lane[i / 4] >> (i % 4 * 8) & 0xFF;
            element e = {high << 16 | low, coded ? fp32::multiply(value.m[i][m_code], absmax_m) : old_m.lane[i],
                         coded ? fp32::multiply(value.v[i][v_code], absmax_v) : old_v.lane[i]};
            element next = step(optimizer, now.at.rule, with_m, {e.p, has_m ? e.m : 0, has_v ? e.v : 0}, g.lane[i]);
            if (now.frozen) next = {e.p, coded ? m_code : e.m, coded ? v_code : e.v};
            uint32_t m_magnitude = next.m & fp32::MAGNITUDE, v_magnitude = next.v & fp32::MAGNITUDE;
            now.failed |= !now.frozen && (next.p & fp32::MAGNITUDE) >= SHORE__NONFINITE_MASTER;
            now.m_most = m_magnitude > now.m_most ? m_magnitude : now.m_most;
            now.v_most = v_magnitude > now.v_most ? v_magnitude : now.v_most;
            out.p.lane[i] = next.p;
            out.m.lane[i] = next.m;
            out.v.lane[i] = next.v;
        }
        rows.write(out);
        if (within != BLOCK_ROWS - 1) continue;
        if (now.frozen) {
            now.m_most = absmax_m;
            now.v_most = absmax_v;
        }
        done.write(now);
    }
}

/* ---- quantise ---------------------------------------------------------------------------------------------------- */

/* A code's numbers but its values, as bits. */
struct decades {
    uint32_t bound[8], scale[8], shift[8], cap[8], zero;
};

uint32_t nearest(const decades &c, uint32_t x, uint32_t most) {
    HLS(inline);
    uint32_t share = fp32::divide(x, most), a = share & fp32::MAGNITUDE, d = 0;
    for (uint32_t i = 0; i < 7; i++)
        d += a > c.bound[i];
    uint32_t n = fp32::truncate(fp32::add(fp32::multiply(a, c.scale[d]), c.shift[d]));
    n = n > c.cap[d] ? c.cap[d] : n;
    n = n < (d > 0) ? 1 : n;
    if (share & fp32::SIGN) return c.zero ? c.zero - n : 0;
    return c.zero + n + (a > c.bound[7]);
}

void put_moment(const decades &code, const block &now, uint32_t within, const word &values, uint32_t most,
                image<ROWS + 2> &out) {
    HLS(inline);
    word codes = {};
    for (uint32_t i = 0; i < LANES; i++) {
        HLS(unroll);
        uint32_t n = most == 0 ? code.zero : most >= fp32::INF ? SHORE__LOST_CODE : nearest(code, values.lane[i], most);
        codes.lane[i / 4] |= (now.frozen ? values.lane[i] : n) << (i % 4 * 8);
    }
    uint32_t lane = (now.at.byte + within * (now.at.coded ? LANES : 4 * LANES)) / 4;
    put(out, lane, now.at.coded ? codes : values, now.at.coded ? LANES / 4 : LANES);
    word absmax = {{now.frozen || most < fp32::INF ? most : fp32::NOT_A_NUMBER}};
    put(out, now.at.absmax / 4, absmax, now.at.coded && within == 0);
}

void quantise_rows(bool has_m, bool has_v, const decades &m_code, const decades &v_code, hls::stream<row, 64> &rows,
                   hls::stream<block, 4> &done, uint32_t params_form, hls::stream<word, 32> &his,
                   hls::stream<word, 32> &los, hls::stream<word, 32> &params, image<ROWS + 2> &m, image<ROWS + 2> &v,
                   hls::stream<bool, 256> &nonfinite) {
    block now = {};
    word hi = {}, lo = {};
    for (uint32_t r = 0; r < ROWS; r++) {
        HLS(pipeline II = 1);
        uint32_t within = r % BLOCK_ROWS;
        if (within == 0) now = done.read();
        bool lost = (has_m && now.m_most >= fp32::INF) || (has_v && now.v_most >= fp32::INF);
        if (within == 0) nonfinite.write(now.failed || (now.at.coded && !now.frozen && lost));
        row in = rows.read();
        for (uint32_t i = 0; i < LANES; i++) {
            HLS(unroll);
            uint32_t pair = r % 2 * (LANES / 2) + i / 2, shift = i % 2 * 16, keep = 0xFFFF0000u >> shift;
            hi.lane[pair] = (hi.lane[pair] & keep) | (in.p.lane[i] + 0x8000u) >> 16 << shift;
            lo.lane[pair] = (lo.lane[pair] & keep) | (in.p.lane[i] & 0xFFFF) << shift;
        }
        if (r % 2) {
            his.write(hi);
            los.write(lo);
        }
        if (params_form == 2 || (params_form == 1 && r % 2)) params.write(params_form == 2 ? in.p : hi);
        if (has_m) put_moment(m_code, now, within, in.m, now.m_most, m);
        if (has_v) put_moment(v_code, now, within, in.v, now.v_most, v);
    }
}

/* ---- write ------------------------------------------------------------------------------------------------------- */

void write_words(hls::stream<word, 32> &from, uint64_t byte, uint32_t words, uint32_t segment, word *port) {
    for (uint32_t i = 0; i < words; i++) {
        HLS(pipeline II = 1);
        port[byte / 64 + (uint64_t)segment * words + i] = from.read();
    }
}

/* A moment's plane, zero beyond what is used. */
void write_moment(const image<ROWS + 2> &from, hls::stream<uint32_t, 2> &used, uint64_t byte, uint32_t words,
                  uint32_t segment, word *port) {
    uint32_t lanes = used.read() / 4;
    for (uint32_t i = 0; i < words; i++) {
        HLS(pipeline II = 1);
        word w;
        for (uint32_t b = 0; b < LANES; b++)
            w.lane[b] = i * LANES + b < lanes ? from.bank[b][i] : 0;
        port[byte / 64 + (uint64_t)segment * words + i] = w;
    }
}

void write_nonfinite(hls::stream<bool, 256> &nonfinite, uint32_t segment, shore__kernel_block *blocks) {
    for (uint32_t b = 0; b < BLOCKS; b++) {
        HLS(pipeline II = 1);
        if (nonfinite.read()) blocks[segment * BLOCKS + b].nonfinite = 1;
    }
}

void load_code(const uint32_t *code, uint32_t value[LANES][256], decades &out) {
    for (uint32_t i = 0; i < 256; i++) {
        HLS(pipeline II = 1);
        uint32_t x = code[i];
        for (uint32_t lane = 0; lane < LANES; lane++)
            value[lane][i] = x;
    }
    for (uint32_t i = 0; i < 8; i++) {
        out.bound[i] = code[256 + i];
        out.scale[i] = code[264 + i];
        out.shift[i] = code[272 + i];
        out.cap[i] = code[280 + i];
    }
    out.zero = code[sizeof(struct shore__dynamic_code) / 4 - 1];
}

} // namespace

extern "C" void update(const word *gradient, const uint32_t *starts, word *state, uint32_t lo_at, uint32_t m_at,
                       uint32_t v_at, word *params, uint32_t params_form, shore__kernel_block *blocks,
                       const shore__kernel_rule *rules, const uint32_t *codes, const word *hi, const word *lo,
                       const word *m, const word *v, word *lo_out, word *m_out, word *v_out,
                       const shore__kernel_block *blocks_in, uint32_t form, uint32_t optimizer, uint32_t planes,
                       uint32_t moment_words, uint32_t segments) {
    PORT(gradient);
    PORT(starts);
    PORT(state);
    PORT(params);
    PORT(blocks);
    PORT(rules);
    PORT(codes);
    PORT(hi);
    PORT(lo);
    PORT(m);
    PORT(v);
    PORT(lo_out);
    PORT(m_out);
    PORT(v_out);
    PORT(blocks_in);
    values value;
    decades m_code, v_code;
    load_code(codes, value.v, v_code);
    load_code(codes + sizeof(struct shore__dynamic_code) / 4, value.m, m_code);
    uint32_t m_words = planes >> SHORE_PLANE_M & 1 ? moment_words : 0;
    uint32_t v_words = planes >> SHORE_PLANE_V & 1 ? moment_words : 0;
    uint32_t params_words = params_form == 2 ? ROWS : params_form ? HALF_WORDS : 0;
    for (uint32_t s = 0; s < segments; s++) {
        HLS(dataflow);
        image<ROWS + 2> m_in, v_in, m_made, v_made;
        image<MOST_WORDS> gradient_in;
        image<INDEX_WORDS> index;
        hls::stream<place, 256> places;
        hls::stream<uint32_t, 2> m_used, v_used;
        hls::stream<bool, 256> nonfinite;
        hls::stream<word, 32> his, los, his_made, los_made, params_made, gradients;
        hls::stream<entries_at, 2> to_find, to_spread;
        hls::stream<entry, 32> entries;
        hls::stream<row, 64> rows;
        hls::stream<block, 4> done;
        read_places(blocks_in, rules, s, moment_words, places, m_used, v_used);
        read_words(hi, 0, HALF_WORDS, s, his);
        read_words(lo, lo_at, HALF_WORDS, s, los);
        load(m, m_at, m_words, s, m_in);
        load(v, v_at, v_words, s, v_in);
        read_gradient(gradient, starts, form, s, segments, gradient_in, index, to_find, to_spread);
        find_entries(index, to_find, entries);
        spread(gradient_in, to_spread, entries, gradients);
        update_rows(optimizer, m_words, v_words, value, m_in, v_in, places, his, los, gradients, rows, done);
        quantise_rows(m_words, v_words, m_code, v_code, rows, done, params_form, his_made, los_made, params_made,
                      m_made, v_made, nonfinite);
        write_words(his_made, 0, HALF_WORDS, s, state);
        write_words(params_made, 0, params_words, s, params);
        write_words(los_made, lo_at, HALF_WORDS, s, lo_out);
        write_moment(m_made, m_used, m_at, m_words, s, m_out);
        write_moment(v_made, v_used, v_at, v_words, s, v_out);
        write_nonfinite(nonfinite, s, blocks);
    }
}
