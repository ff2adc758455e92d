/* Products of packed operands: c [m, n] = a [m, k] b [k, n] (+ bias) or c += a b.
 *
 * b is packed in advance, panel by panel of PANEL columns. A job lays out its rows of a in strips of STRIP_ROWS rows,
 * which stay in the second-level cache over all panels. Both consist of steps of STEP elements of k, zero beyond m, n
 * and k. A strip by a panel is a block of sums, over one span of k at a time; that span of the panel stays in the
 * first-level cache over all strips. Every element is a sum over k in order, which starts with the old value or has
 * bias added: its bits depend on nothing beside it.
 *
 * The including file defines `operand` (the type of an element of a and b as laid out), STRIP_ROWS, PANEL (two
 * vectors), STEP, SPAN (whole steps), STRIPS_BYTES and MOST_STRIPS (of a job), and:
 *
 * - WIDENS: whether operands given in bf16 may be laid out as fp32;
 * - pack_step(to, b, mode, transposed, k, n, r, j): lays out rows r .. r + STEP - 1, columns j .. j + PANEL - 1 of b;
 * - lay_step(to, job, mode, transposed, first, r): a strip of rows of a from `first`, columns r .. r + STEP - 1;
 * - strip_by_panel(), declared below: multiplies, between products_begin() and products_end().
 */
INLINE size_t whole_k(size_t k) {
    return up_to(k, STEP);
}
static size_t job_rows(size_t k) {
    size_t strips = STRIPS_BYTES / (STRIP_ROWS * whole_k(k) * sizeof(operand));
    return STRIP_ROWS * (strips == 0 ? 1 : least(strips, MOST_STRIPS));
}
static struct shore__job_size job_size(size_t k, bool a_transposed) {
    return (struct shore__job_size){.rows = job_rows(k), .jobs = 2};
}
static size_t product_scratch(size_t k) {
    return up_to(job_rows(k) * whole_k(k) * sizeof(operand), 64) + job_rows(k) * PANEL * sizeof(float) +
           SPAN * PANEL * sizeof(operand);
}
static size_t product_packed(size_t k, size_t n) {
    return up_to(n, PANEL) * whole_k(k) * sizeof(operand);
}

/* ---- operands, read in the order in which they lie ---- */

/* Calls with the mode M of the operands as a constant. */
#define FOR_OPERANDS(mode, call)                    \
    do {                                            \
        if (WIDENS && (mode) != SHORE__BF16) {      \
            const enum shore__mode M = SHORE__F32;  \
            call;                                   \
        } else {                                    \
            const enum shore__mode M = SHORE__BF16; \
            call;                                   \
        }                                           \
    } while (0)

INLINE void pack_of(operand *to, const void *b, enum shore__mode mode, bool transposed, size_t k, size_t n,
                    size_t begin, size_t end) {
    if (transposed)
        for (size_t j = begin; j < end; j += PANEL)
            for (size_t r = 0; r < k; r += STEP)
                pack_step(to + j * whole_k(k) + r * PANEL, b, mode, true, k, n, r, j);
    else
        for (size_t r = 0; r < k; r += STEP)
            for (size_t j = begin; j < end; j += PANEL)
                pack_step(to + j * whole_k(k) + r * PANEL, b, mode, false, k, n, r, j);
}
static void product_pack(void *packed, const void *b, enum shore__mode mode, bool transposed, size_t k, size_t n,
                         size_t begin, size_t end) {
    FOR_OPERANDS(mode, pack_of(packed, b, M, transposed, k, n, begin, end));
}

/* Packs a panel's span from row p, while the next panel's span is prefetched. */
INLINE void pack_span(operand *to, const struct shore__product_job *job, size_t p, size_t j, enum shore__mode mode) {
    size_t element = act_bytes(mode), ld = (job->b_transposed ? job->k : job->n) * element;
    for (size_t r = p; r < least(p + SPAN, job->k); r += STEP, to += STEP * PANEL) {
        size_t row = job->b_transposed ? j + PANEL : r, column = job->b_transposed ? r : j + PANEL;
        const char *next = (const char *)job->b + row * ld + column * element;
        for (size_t i = 0; i < (job->b_transposed ? PANEL : STEP); i++)
            _mm_prefetch(next + i * ld, _MM_HINT_T1);
        if (job->b_transposed)
            pack_step(to, job->b, mode, true, job->k, job->n, r, j);
        else
            pack_step(to, job->b, mode, false, job->k, job->n, r, j);
    }
}

INLINE void lay_of(operand *strips, const struct shore__product_job *job, enum shore__mode mode) {
    size_t rows = job->row_end - job->row_begin;
    if (job->a_transposed)
        for (size_t r = 0; r < job->k; r += STEP)
            for (size_t i = 0; i < rows; i += STRIP_ROWS)
                lay_step(strips + i * whole_k(job->k) + r * STRIP_ROWS, job, mode, true, job->row_begin + i, r);
    else
        for (size_t i = 0; i < rows; i += STRIP_ROWS)
            for (size_t r = 0; r < job->k; r += STEP)
                lay_step(strips + i * whole_k(job->k) + r * STRIP_ROWS, job, mode, false, job->row_begin + i, r);
}
static void lay_strips(operand *strips, const struct shore__product_job *job) {
    FOR_OPERANDS(job->mode, lay_of(strips, job, M));
}

/* ---- blocks of sums, STRIP_ROWS by PANEL: `rows` rows of c from `first`, columns from j ---- */

/* Loads sums; zeros where there is no row or column. */
static void get_sums(float *sums, const struct shore__product_job *job, size_t first, size_t rows, size_t j) {
    for (size_t i = 0; i < STRIP_ROWS; i++)
        for (size_t v = 0; v < PANEL; v += VL) {
            vf c = splat(0.0f);
            if (i < rows && j + v < job->n)
                c = get(job->c, (first + i) * job->n + j + v, left(j + v, job->n), SHORE__F32);
            put(sums, i * PANEL + v, VL, c, SHORE__F32);
        }
}
/* Stores two vectors past the caches: their lines need not be read first, and nobody reads them soon. */
INLINE void stream(void *c, size_t at, vf low, vf high, enum shore__mode mode) {
    if (mode == SHORE__BF16) {
        vh narrow[2] = {NARROW(low), NARROW(high)};
        __m512i line;
        memcpy(&line, narrow, sizeof line);
        _mm512_stream_si512((void *)((uint16_t *)c + at), line);
    } else {
        _mm512_stream_ps((float *)c + at, (__m512)low);
        _mm512_stream_ps((float *)c + at + VL, (__m512)high);
    }
}
static void put_sums(const float *sums, const struct shore__product_job *job, size_t first, size_t rows, size_t j) {
    bool lines = job->n % PANEL == 0 && (uintptr_t)job->c % 64 == 0 && !job->accumulate;
    for (size_t i = 0; i < rows; i++)
        for (size_t v = 0; v < PANEL && j + v < job->n; v += lines ? PANEL : VL) {
            size_t at = (first + i) * job->n + j + v, count = left(j + v, job->n);
            vf low = get(sums, i * PANEL + v, VL, SHORE__F32);
            if (job->bias) low = low + get(job->bias, j + v, count, SHORE__F32);
            if (!lines) {
                put(job->c, at, count, low, job->c_mode);
                continue;
            }
            vf high = get(sums, i * PANEL + VL, VL, SHORE__F32);
            if (job->bias) high = high + get(job->bias, j + VL, VL, SHORE__F32);
            stream(job->c, at, low, high, job->c_mode);
        }
}

struct sums {
    float *at; /* NULL: zeros */
    size_t ld;
};

/* Memory to prefetch into the second-level cache meanwhile, some in each step. It may be out of bounds, since a
 * prefetch does not fault. */
struct ahead {
    const char *b, *c;
    size_t b_bytes, c_rows, c_stride;
};
INLINE void fetch(struct ahead *ahead) {
    for (size_t j = 0; j < ahead->b_bytes; j += 64)
        _mm_prefetch(ahead->b + j, _MM_HINT_T1);
    ahead->b += ahead->b_bytes;
    for (size_t i = 0; i < ahead->c_rows; i++, ahead->c += ahead->c_stride)
        for (size_t j = 0; j < PANEL * sizeof(float); j += 64)
            _mm_prefetch(ahead->c + j, _MM_HINT_T1);
}
/* Prefetched while strip `strip` of `strips` is multiplied by the panel's span from row p: its part of the next span;
 * and, if the next panel's block will be added to, its rows of that block, spread over the spans of k. */
INLINE struct ahead ahead_of(const struct shore__product_job *job, size_t p, size_t j, size_t strip, size_t strips,
                             size_t steps) {
    size_t part = SPAN * PANEL * sizeof(operand) / strips / 64 * 64;
    const operand *next = (const operand *)job->b + j * whole_k(job->k) + least(p + SPAN, whole_k(job->k)) * PANEL;
    struct ahead ahead = {.b = (const char *)next + strip * part, .b_bytes = part / steps / 64 * 64};
    if (!job->packed) ahead.b_bytes = 0;
    if (job->accumulate && j + PANEL < job->column_end) {
        size_t rows = STRIP_ROWS / ((job->k + SPAN - 1) / SPAN);
        size_t row = job->row_begin + strip * STRIP_ROWS + p / SPAN * rows;
        ahead.c = (const char *)((const float *)job->c + row * job->n + j + PANEL);
        ahead.c_rows = (rows + steps - 1) / steps;
        ahead.c_stride = job->n * sizeof(float);
    }
    return ahead;
}

/* to = from + the product of so many steps of a strip and a panel. */
INLINE void strip_by_panel(struct sums to, struct sums from, const operand *a, const operand *b, size_t steps,
                           struct ahead ahead);

/* Sums that are added to c start and end there, if a block is whole. */
static void span_of_panel(const struct shore__product_job *job, const operand *strips, const operand *panel,
                          float *room, size_t p, size_t j) {
    size_t count = (job->row_end - job->row_begin + STRIP_ROWS - 1) / STRIP_ROWS;
    size_t steps = whole_k(least(SPAN, job->k - p)) / STEP;
    bool first = p == 0, last = p + SPAN >= job->k;
    for (size_t i = 0; i < count; i++) {
        size_t row = job->row_begin + i * STRIP_ROWS, rows = least(STRIP_ROWS, job->row_end - row);
        bool in_place = job->accumulate && rows == STRIP_ROWS && job->n - j >= PANEL;
        struct sums own = {room + i * STRIP_ROWS * PANEL, PANEL}, from = own, to = own;
        struct sums c = {(float *)job->c + row * job->n + j, job->n};
        if (first && !job->accumulate)
            from.at = NULL;
        else if (first && in_place)
            from = c;
        else if (first)
            get_sums(own.at, job, row, rows, j);
        if (last && in_place) to = c;
        strip_by_panel(to, from, strips + i * STRIP_ROWS * whole_k(job->k) + p * STRIP_ROWS, panel, steps,
                       ahead_of(job, p, j, i, count, steps));
        if (last && !in_place) put_sums(own.at, job, row, rows, j);
    }
}

static void product_run(const struct shore__product_job *job, void *scratch) {
    operand *strips = scratch;
    float *room = (float *)((char *)scratch + up_to(job_rows(job->k) * whole_k(job->k) * sizeof(operand), 64));
    lay_strips(strips, job);
    products_begin();
    operand *own = (operand *)(room + job_rows(job->k) * PANEL);
    for (size_t j = job->column_begin; j < job->column_end; j += PANEL)
        for (size_t p = 0; p < job->k; p += SPAN) {
            const operand *panel = (const operand *)job->b + j * whole_k(job->k) + p * PANEL;
            if (!job->packed) {
                FOR_OPERANDS(job->mode, pack_span(own, job, p, j, M));
                panel = own;
            }
            span_of_panel(job, strips, panel, room, p, j);
        }
    products_end();
    _mm_sfence();
}

static const struct shore__product_kernel k_product = {
    .widens = WIDENS,
    .packs_too = true,
    .strip = STRIP_ROWS,
    .panel = PANEL,
    .job_size = job_size,
    .scratch = product_scratch,
    .packed = product_packed,
    .pack = product_pack,
    .run = product_run,
};
#define PRODUCT k_product
