/* UPDATE on a device, as near/update_scalar.c and near/moments_scalar.c specify it: the same bits. A work-group updates a
 * block of 256 elements, each item one of them. The host defines (opencl_program.c):
 *     OPTIMIZER   0 AdamW, 1 Adam, 2 SGD, 3 AdaGrad          WITH_M, WITH_V   which moments are stored
 *     CODED       moments may be 8-bit codes                 EXACT            divides and takes roots in whole numbers */
#pragma OPENCL FP_CONTRACT OFF

#define BLOCK 256
#define NAN_BITS 0x7FC00000u
#define INFINITE 0x7F800000u
#define MAGNITUDE 0x7FFFFFFFu
#define NONFINITE_MASTER 0x7F7F8000u
#define CODED_BIT 0x80000000u

struct rule { /* of a parameter group: opencl_rule in opencl.c */
    float coefficient, lr, eps, weight_decay, decay, momentum, m_weight, beta2, one_minus_beta2, step_size;
    float inv_sqrt_bias2;
    uint from_gradient, decays_gradient, first_step, frozen, with_momentum;
};

struct code { /* struct shore__dynamic_code */
    float value[256], bound[8], scale[8], shift[8];
    int cap[8], below[32];
    float inside[32];
    int zero;
};

/* ---- division and root ------------------------------------------------------------------------------------------- */

#if EXACT
/* The number q * 2^e, q above 2^25, rounded once. Bit 0 of q stands for all bits below it. */
static float rounded(uint sign, ulong q, int e) {
    int unit = 63 - (int)clz(q) + e - 23;
    if (unit < -149) unit = -149;
    int shift = min(unit - e, 40);
    ulong rest = q & (((ulong)1 << shift) - 1), half_way = (ulong)1 << (shift - 1);
    uint r = (uint)(q >> shift);
    r += rest > half_way || (rest == half_way && (r & 1));
    if (unit + 149 >= 254) return as_float(sign | INFINITE);
    uint bits = ((uint)(unit + 149) << 23) + r;
    return as_float(sign | min(bits, INFINITE));
}

/* A finite number that is not 0, as m * 2^e with m in [2^23, 2^24). */
static uint taken_apart(uint bits, int *e) {
    uint m = bits & 0x7FFFFFu, exponent = bits >> 23;
    *e = (int)(exponent ? exponent : 1) - 150;
    if (exponent) return m | 0x800000u;
    int shift = (int)clz(m) - 8;
    *e -= shift;
    return m << shift;
}

static float quotient(float a, float b) {
    uint x = as_uint(a) & MAGNITUDE, y = as_uint(b) & MAGNITUDE, sign = (as_uint(a) ^ as_uint(b)) & 0x80000000u;
    if (x > INFINITE || y > INFINITE || (x == y && (x == 0 || x == INFINITE))) return as_float(NAN_BITS);
    if (x == INFINITE || y == 0) return as_float(sign | INFINITE);
    if (y == INFINITE || x == 0) return as_float(sign);
    int e, f;
    ulong over = (ulong)taken_apart(x, &e) << 28, by = taken_apart(y, &f), q = over / by;
    return rounded(sign, q | (q * by != over), e - f - 28);
}

static float root(float a) {
    uint x = as_uint(a);
    if (x << 1 == 0 || x == INFINITE) return a;
    if (x > INFINITE) return as_float(NAN_BITS);
    int e;
    ulong square = taken_apart(x, &e), r = 0;
    square <<= e & 1 ? 29 : 28;
    e = (e - (e & 1) - 28) / 2;
    for (ulong bit = (ulong)1 << 26; bit; bit >>= 1)
        if ((r | bit) * (r | bit) <= square) r |= bit;
    return rounded(0, r << 1 | (r * r != square), e - 1);
}
#else
#define quotient(a, b) ((a) / (b))
#define root(a) sqrt(a)
#endif

/* ---- the optimizers ---------------------------------------------------------------------------------------------- */

static void adam(const struct rule r, float *p, float *m, float *v, float g) {
    float difference = g - *m, base = r.from_gradient ? g : *m;
    *m = base + r.m_weight * difference;
    *v = *v * r.beta2 + r.one_minus_beta2 * g * g;
    float denominator = root(*v) * r.inv_sqrt_bias2 + r.eps;
    *p = *p - quotient(r.step_size * *m, denominator);
}

static void stepped(const struct rule r, float *p, float *m, float *v, float gradient) {
    float g = gradient * r.coefficient;
    if (OPTIMIZER != 0) g = r.decays_gradient ? g + r.weight_decay * *p : g;
    if (OPTIMIZER == 0) *p = *p * r.decay;
    if (OPTIMIZER <= 1) adam(r, p, m, v, g);
    if (OPTIMIZER == 2) {
        float sum = *m * r.momentum + g;
        *m = r.first_step ? g : sum;
        *p = *p - r.lr * (r.with_momentum ? *m : g);
    }
    if (OPTIMIZER == 3) {
        *v = *v + g * g;
        *p = *p - quotient(r.lr * g, root(*v) + r.eps);
    }
}

static float stored(float x) {
    return (as_uint(x) & MAGNITUDE) > INFINITE ? as_float(NAN_BITS) : x;
}

/* ---- moments in 8 bits ------------------------------------------------------------------------------------------- */

#if CODED
static uchar nearest(__global const struct code *code, float x) {
    float a = as_float(as_uint(x) & MAGNITUDE);
    int d = 0;
    for (int i = 0; i < 7; i++)
        d += a > code->bound[i];
    int n = min((int)(a * code->scale[d] + code->shift[d]), code->cap[d]);
    n = max(n, (int)(d > 0));
    if (as_uint(x) >> 31) return (uchar)(code->zero ? code->zero - n : 0);
    return (uchar)(code->zero + n + (a > code->bound[7]));
}

/* Largest magnitude of the block; all items get it. */
static uint largest(__local uint *work, float x, uint lane) {
    work[lane] = as_uint(x) & MAGNITUDE;
    for (uint half_way = BLOCK / 2; half_way; half_way /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < half_way) work[lane] = max(work[lane], work[lane + half_way]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    uint most = work[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return most;
}

static float load_moment(__global const uchar *plane, const uint4 b, uint lane, __global const struct code *code) {
    __global const float *floats = (__global const float *)plane;
    return b.x & CODED_BIT ? code->value[plane[b.y + lane]] * floats[b.z] : floats[b.y + lane];
}

static void store_moment(__global uchar *plane, const uint4 b, uint lane, __global const struct code *code, float x,
                         uint most) {
    __global float *floats = (__global float *)plane;
    if (!(b.x & CODED_BIT)) {
        floats[b.y + lane] = x;
        return;
    }
    bool odd = most == 0 || most >= INFINITE;
    float absmax = most >= INFINITE ? as_float(NAN_BITS) : as_float(most);
    plane[b.y + lane] = odd ? (uchar)(most ? 0xFF : code->zero) : nearest(code, quotient(x, absmax));
    if (lane == 0) floats[b.z] = absmax;
}
#endif

/* ---- sparse codes: number/sparse.h ------------------------------------------------------------------------------- */

/* Writes the block's entries. start: of the block: bytes of its first index and value, elements passed, entries left. */
static void scatter(__global const uchar *codes, const uint4 start, uint form, uint first, __local float *tile) {
    __global const uchar *index = codes + start.x, *value = codes + start.y;
    uint position = start.z, left = start.w, end = first + BLOCK;
    for (uint i = first; left && i < end; i++) {
        if ((form & 15) == 0) { /* gaps */
            for (; *index == 255 && position < end; index++)
                position += 255;
            i = position + *index;
            if (*index++ == 255) break;
            position = i + 1;
        } else if ((form & 15) == 1) { /* words */
            i = index[0] | (uint)index[1] << 8;
            index += 2;
        } else if (!(index[i / 8] >> i % 8 & 1)) {
            continue;
        }
        if (i >= end) break;
        uint bits = value[0] | (uint)value[1] << 8;
        bits = form >> 4 ? bits | (uint)value[2] << 16 | (uint)value[3] << 24 : bits << 16;
        value += form >> 4 ? 4 : 2;
        tile[i - first] = as_float(bits);
        left--;
    }
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* hi, lo, m, v: bytes from the state on, where the planes of this chunk lie. blocks: struct shore__engine_block.
 * params_form: 0 none, 1 bf16, 2 fp32. */
#define REST                                                                                                     \
    __global uchar *state, uint lo_at, uint m_at, uint v_at, __global uchar *params, uint params_form,          \
        __global uint4 *blocks, __global const struct rule *rules, __global const struct code *codes
#define REST_GIVEN state, lo_at, m_at, v_at, params, params_form, blocks, rules, codes

static inline void update(float gradient, __local uint *work, REST) {
    const uint lane = get_local_id(0), block = get_group_id(0), i = block * BLOCK + lane;
    const uint4 b = blocks[block];
    const struct rule r = rules[b.x & ~CODED_BIT];
    __global ushort *hi = (__global ushort *)state, *lo = (__global ushort *)(state + lo_at);
    const uint low = lo[i], high = hi[i], before = (((high - (low >> 15)) & 0xFFFFu) << 16) | low;
    float p = as_float(before), m = 0, v = 0;
#if CODED
    if (WITH_M) m = load_moment(state + m_at, b, lane, &codes[1]);
    if (WITH_V) v = load_moment(state + v_at, b, lane, &codes[0]);
#else
    __global float *m_plane = (__global float *)(state + m_at), *v_plane = (__global float *)(state + v_at);
    if (WITH_M) m = m_plane[i];
    if (WITH_V) v = v_plane[i];
#endif
    const float m_before = m;
    stepped(r, &p, &m, &v, gradient);
    m = r.with_momentum ? stored(m) : m_before;
    v = stored(v);
    const uint master = r.frozen ? before : as_uint(stored(p));
    const ushort top = r.frozen ? high : (master + 0x8000u) >> 16;
    hi[i] = top;
    lo[i] = (ushort)master;
    if (params_form == 1) ((__global ushort *)params)[i] = top;
    if (params_form == 2) ((__global uint *)params)[i] = master;
    bool bad = (master & MAGNITUDE) >= NONFINITE_MASTER;
#if CODED
    if (WITH_M) {
        uint most = largest(work, m, lane);
        if (!r.frozen) store_moment(state + m_at, b, lane, &codes[1], m, most);
        bad |= b.x & CODED_BIT && most >= INFINITE;
    }
    if (WITH_V) {
        uint most = largest(work, v, lane);
        if (!r.frozen) store_moment(state + v_at, b, lane, &codes[0], v, most);
        bad |= b.x & CODED_BIT && most >= INFINITE;
    }
#else
    if (WITH_M && !r.frozen) m_plane[i] = m;
    if (WITH_V && !r.frozen) v_plane[i] = v;
#endif
    if (bad && !r.frozen) ((__global uint *)blocks)[block * 4 + 3] = 1;
}

__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1))) void update_fp32(__global const float *gradient, REST) {
    __local uint work[BLOCK];
    update(gradient[get_global_id(0)], work, REST_GIVEN);
}

__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1))) void update_bf16(__global const ushort *gradient, REST) {
    __local uint work[BLOCK];
    update(as_float((uint)gradient[get_global_id(0)] << 16), work, REST_GIVEN);
}

/* starts: of each block, its start as above, and behind these its form, one word each. */
__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1))) void update_sparse(__global const uchar *gradient,
                                                                               __global const uint *starts, REST) {
    __local float tile[BLOCK];
    __local uint work[BLOCK];
    const uint lane = get_local_id(0), block = get_group_id(0);
    tile[lane] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane == 0)
        scatter(gradient, ((__global const uint4 *)starts)[block], starts[get_num_groups(0) * 4 + block],
                block * BLOCK % 65536, tile);
    barrier(CLK_LOCAL_MEM_FENCE);
    update(tile[lane], work, REST_GIVEN);
}
