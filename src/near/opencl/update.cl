/* UPDATE on a device, as near/update_scalar.c and near/moments_scalar.c specify it: the same bits. Each of 256 items of a
 * work-group updates WIDTH elements in a row, so that the group updates WIDTH blocks of 256. The host defines:
 *     OPTIMIZER   0 AdamW, 1 Adam, 2 SGD, 3 AdaGrad          WITH_M, WITH_V   which moments are stored
 *     CODED       moments may be 8-bit codes                 WIDTH            1, or 16 for processors
 *     EXACT       divides and takes roots in whole numbers, with WIDTH 1 */
#pragma OPENCL FP_CONTRACT OFF

#define BLOCK 256
#define GROUP 256
#define ITEMS (BLOCK / WIDTH) /* of a block */
#define NAN_BITS 0x7FC00000u
#define INFINITE 0x7F800000u
#define MAGNITUDE 0x7FFFFFFFu
#define NONFINITE_MASTER 0x7F7F8000u
#define CODED_BIT 0x80000000u

#if WIDTH == 1
#define V(name) name
#define LOAD(at) (*(at))
#define STORE(x, at) (*(at) = (x))
#define ANY(condition) (condition)
#define WIDEST(x) (x)
#else
#define V(name) name##16
#define LOAD(at) vload16(0, at)
#define STORE(x, at) vstore16(x, 0, at)
#define ANY(condition) any(condition)
#define WIDEST(x) widest(x)
static uint widest(uint16 x) {
    const uint8 half_of = max(x.hi, x.lo);
    const uint4 quarter = max(half_of.hi, half_of.lo);
    return max(max(quarter.x, quarter.y), max(quarter.z, quarter.w));
}
#endif
typedef V(float) F;
typedef V(uint) U;
typedef V(int) I;
#define BITS(x) V(as_uint)(x)
#define FLOAT(x) V(as_float)(x)

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

static void adam(const struct rule *r, F *p, F *m, F *v, F g) {
    F difference = g - *m, base = r->from_gradient ? g : *m;
    *m = base + r->m_weight * difference;
    *v = *v * r->beta2 + r->one_minus_beta2 * g * g;
    F denominator = root(*v) * r->inv_sqrt_bias2 + r->eps;
    *p = *p - quotient(r->step_size * *m, denominator);
}

static void stepped(const struct rule *r, F *p, F *m, F *v, F gradient) {
    F g = gradient * r->coefficient;
    if (OPTIMIZER != 0 && r->decays_gradient) g = g + r->weight_decay * *p;
    if (OPTIMIZER == 0) *p = *p * r->decay;
    if (OPTIMIZER <= 1) adam(r, p, m, v, g);
    if (OPTIMIZER == 2) {
        if (r->with_momentum) *m = r->first_step ? g : *m * r->momentum + g;
        *p = *p - r->lr * (r->with_momentum ? *m : g);
    }
    if (OPTIMIZER == 3) {
        *v = *v + g * g;
        *p = *p - quotient(r->lr * g, root(*v) + r->eps);
    }
}

static F stored(F x) {
    return FLOAT((BITS(x) & MAGNITUDE) > INFINITE ? (U)(NAN_BITS) : BITS(x));
}

/* ---- moments in 8 bits ------------------------------------------------------------------------------------------- */

#if CODED
static V(uchar) nearest(__global const struct code *code, F x) {
    const F a = FLOAT(BITS(x) & MAGNITUDE);
    F scale = code->scale[0], shift = code->shift[0];
    I cap = code->cap[0];
    for (int i = 0; i < 7; i++) {
        const I above = a > code->bound[i];
        scale = above ? (F)(code->scale[i + 1]) : scale;
        shift = above ? (F)(code->shift[i + 1]) : shift;
        cap = above ? (I)(code->cap[i + 1]) : cap;
    }
    I n = min(V(convert_int)(a * scale + shift), cap);
    n = a > code->bound[0] ? max(n, (I)(1)) : n;
    const I above = a > code->bound[7] ? n + 1 : n;
    const I below = code->zero ? code->zero - n : (I)(0);
    return V(convert_uchar)(V(as_int)(x) < 0 ? below : code->zero + above);
}

/* Largest magnitude of the item's block. */
static uint largest(__local uint *work, F x) {
    const uint item = get_local_id(0), within = item % ITEMS;
    const U bits = BITS(x) & MAGNITUDE;
    work[item] = WIDEST(bits);
    for (uint half_way = ITEMS / 2; half_way; half_way /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (within < half_way) work[item] = max(work[item], work[item + half_way]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint most = work[item - within];
    barrier(CLK_LOCAL_MEM_FENCE);
    return most;
}

static F load_moment(__global const uchar *plane, const uint4 b, uint first, __global const struct code *code) {
    __global const float *floats = (__global const float *)plane;
    if (!(b.x & CODED_BIT)) return LOAD(floats + b.y + first);
    float value[WIDTH];
    for (uint i = 0; i < WIDTH; i++)
        value[i] = code->value[plane[b.y + first + i]];
    return LOAD(value) * floats[b.z];
}

static void store_moment(__global uchar *plane, const uint4 b, uint first, __global const struct code *code, F x,
                         uint most) {
    __global float *floats = (__global float *)plane;
    if (!(b.x & CODED_BIT)) {
        STORE(x, floats + b.y + first);
        return;
    }
    const float absmax = most >= INFINITE ? as_float(NAN_BITS) : as_float(most);
    if (most == 0 || most >= INFINITE)
        STORE((V(uchar))(most ? 0xFF : code->zero), plane + b.y + first);
    else
        STORE(nearest(code, quotient(x, absmax)), plane + b.y + first);
    if (first == 0) floats[b.z] = absmax;
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

/* lo, m, v: bytes from the state on, where these planes of the chunk lie; hi comes first. blocks: struct
 * shore__engine_block. params_form: 0 none, 1 bf16, 2 fp32. */
#define REST                                                                                            \
    __global uchar *state, uint lo_at, uint m_at, uint v_at, __global uchar *params, uint params_form, \
        __global uint4 *blocks, __global const struct rule *rules, __global const struct code *codes
#define REST_GIVEN state, lo_at, m_at, v_at, params, params_form, blocks, rules, codes
#define KERNEL __kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void

static inline void update(F gradient, __local uint *work, REST) {
    const uint i = get_global_id(0) * WIDTH, block = i / BLOCK, first = i % BLOCK;
    const uint4 b = blocks[block];
    const struct rule r = rules[b.x & ~CODED_BIT];
    __global ushort *hi = (__global ushort *)state + i, *lo = (__global ushort *)(state + lo_at) + i;
    const U low = V(convert_uint)(LOAD(lo)), high = V(convert_uint)(LOAD(hi));
    const U before = ((high - (low >> 15)) << 16) | low;
    F p = FLOAT(before), m = 0, v = 0;
    __global float *m_plane = (__global float *)(state + m_at) + i, *v_plane = (__global float *)(state + v_at) + i;
#if CODED
    if (WITH_M) m = load_moment(state + m_at, b, first, &codes[1]);
    if (WITH_V) v = load_moment(state + v_at, b, first, &codes[0]);
#else
    if (WITH_M) m = LOAD(m_plane);
    if (WITH_V) v = LOAD(v_plane);
#endif
    const F m_before = m;
    stepped(&r, &p, &m, &v, gradient);
    m = r.with_momentum ? stored(m) : m_before;
    v = stored(v);
    const U master = r.frozen ? before : BITS(stored(p)), top = (master + 0x8000u) >> 16;
    STORE(V(convert_ushort)(top), hi);
    STORE(V(convert_ushort)(master & 0xFFFFu), lo);
    if (params_form == 1) STORE(V(convert_ushort)(top), (__global ushort *)params + i);
    if (params_form == 2) STORE(master, (__global uint *)params + i);
    bool bad = ANY((master & MAGNITUDE) >= NONFINITE_MASTER);
#if CODED
    if (WITH_M) {
        const uint most = largest(work, m);
        if (!r.frozen) store_moment(state + m_at, b, first, &codes[1], m, most);
        bad = bad || (b.x & CODED_BIT && most >= INFINITE);
    }
    if (WITH_V) {
        const uint most = largest(work, v);
        if (!r.frozen) store_moment(state + v_at, b, first, &codes[0], v, most);
        bad = bad || (b.x & CODED_BIT && most >= INFINITE);
    }
#else
    if (WITH_M && !r.frozen) STORE(m, m_plane);
    if (WITH_V && !r.frozen) STORE(v, v_plane);
#endif
    if (bad && !r.frozen) ((__global uint *)blocks)[block * 4 + 3] = 1;
}

KERNEL update_fp32(__global const float *gradient, REST) {
    __local uint work[GROUP];
    update(LOAD(gradient + get_global_id(0) * WIDTH), work, REST_GIVEN);
}

KERNEL update_bf16(__global const ushort *gradient, REST) {
    __local uint work[GROUP];
    update(FLOAT(V(convert_uint)(LOAD(gradient + get_global_id(0) * WIDTH)) << 16), work, REST_GIVEN);
}

/* starts: of each block, its start as above, and behind these its form, one word each. */
KERNEL update_sparse(__global const uchar *gradient, __global const uint *starts, REST) {
    __local float tile[GROUP * WIDTH];
    __local uint work[GROUP];
    const uint item = get_local_id(0), i = get_global_id(0) * WIDTH, nblocks = get_global_size(0) / ITEMS;
    STORE((F)(0), tile + item * WIDTH);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (i % BLOCK == 0)
        scatter(gradient, ((__global const uint4 *)starts)[i / BLOCK], starts[nblocks * 4 + i / BLOCK], i % 65536,
                tile + item * WIDTH);
    barrier(CLK_LOCAL_MEM_FENCE);
    update(LOAD(tile + item * WIDTH), work, REST_GIVEN);
}
