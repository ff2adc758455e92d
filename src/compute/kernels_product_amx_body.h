/* Products in bf16 on AMX tiles: c [m, n] = a [m, k] b [k, n] (+ bias) or c += a b.
 *
 * A tile is 16 rows of 32 elements of k (a), or 16 pairs of rows of k by 16 columns (b, kernels_pairs_body.h): 1 KiB,
 * laid out so that it is loaded from lines that follow each other. b is packed before, a panel of two tiles' columns
 * after the other; a job lays its rows of a out, strips of two tiles' rows, which stay in the second-level cache over
 * all panels. A strip by a panel is four tiles of sums, over a piece of k at a time: so much of a panel stays in the
 * first-level cache over all strips. Every element is a sum over k in order, 32 at a time, that begins with what was
 * there or to which bias is added: its bits depend on nothing beside it.
 *
 * Tiles multiply ten times as fast as vectors, so what is left to be gained is in moving operands: see the figures in
 * docs/measurements.md before changing an order or a size.
 */
#define TILE ((size_t)16)
#define STEP ((size_t)32) /* of k */
#define STRIP_ROWS (2 * TILE)
#define PANEL (2 * TILE)
#define PAIR_OF_TILES (2 * TILE * STEP) /* elements of a step of a strip or of a panel */
#define PIECE ((size_t)256)
#define MOST_STRIPS ((size_t)16)

INLINE size_t whole_k(size_t k) {
    return up_to(k, STEP);
}
/* Strips take half of the second-level cache at most. */
static size_t job_rows(size_t k) {
    size_t strips = ((size_t)1 << 20) / (STRIP_ROWS * whole_k(k) * sizeof(uint16_t));
    return STRIP_ROWS * (strips == 0 ? 1 : least(strips, MOST_STRIPS));
}
static struct shore__job_size job_size(size_t k, bool a_transposed) {
    return (struct shore__job_size){.rows = job_rows(k), .jobs = 2};
}
static size_t product_scratch(size_t k) {
    return job_rows(k) * (whole_k(k) * sizeof(uint16_t) + PANEL * sizeof(float));
}
static size_t product_packed(size_t k, size_t n) {
    return up_to(n, PANEL) * whole_k(k) * sizeof(uint16_t);
}

/* ---- operands, read in the order in which they lie ---- */

INLINE void put_tile(uint16_t *tile, const __m512i line[TILE]) {
#pragma GCC unroll 16
    for (size_t i = 0; i < TILE; i++)
        _mm512_store_si512(tile + i * STEP, line[i]);
}

/* Rows r .. r + STEP - 1 of b, columns j .. j + PANEL - 1. */
INLINE void pack_step(uint16_t *to, const uint16_t *b, bool transposed, size_t k, size_t n, size_t r, size_t j) {
    for (size_t t = 0; t < PANEL; t += TILE) {
        size_t columns = j + t < n ? n - j - t : 0;
        __m512i pairs[TILE];
        if (transposed)
            pairs_of_transposed(pairs, b + (j + t) * k, k, r, k, columns);
        else
#pragma GCC unroll 16
            for (size_t i = 0; i < TILE; i++)
                pairs[i] = pairs_of(b + j + t, n, r + 2 * i, k, columns);
        put_tile(to + t * STEP, pairs);
    }
}
static void product_pack(void *packed, const void *b, bool transposed, size_t k, size_t n, size_t begin, size_t end) {
    uint16_t *to = packed;
    if (transposed)
        for (size_t j = begin; j < end; j += PANEL)
            for (size_t r = 0; r < k; r += STEP)
                pack_step(to + j * whole_k(k) + r * PANEL, b, true, k, n, r, j);
    else
        for (size_t r = 0; r < k; r += STEP)
            for (size_t j = begin; j < end; j += PANEL)
                pack_step(to + j * whole_k(k) + r * PANEL, b, false, k, n, r, j);
}

/* A strip of rows of a from `first`, columns r .. r + STEP - 1. */
INLINE void lay_step(uint16_t *to, const struct shore__product_job *job, bool transposed, size_t first, size_t r) {
    const uint16_t *a = job->a;
    for (size_t t = 0; t < STRIP_ROWS; t += TILE) {
        size_t row = first + t, rows = row < job->row_end ? job->row_end - row : 0;
        __m512i line[TILE];
        if (transposed) {
#pragma GCC unroll 16
            for (size_t i = 0; i < TILE; i++)
                line[i] = pairs_of(a + row, job->m, r + 2 * i, job->k, rows);
            transpose(line);
        } else {
            __mmask32 some = (__mmask32)((1ull << least(STEP, job->k - r)) - 1);
#pragma GCC unroll 16
            for (size_t i = 0; i < TILE; i++)
                line[i] = _mm512_maskz_loadu_epi16(i < rows ? some : 0, a + (row + i) * job->k + r);
        }
        put_tile(to + t * STEP, line);
    }
}
static void lay_strips(uint16_t *strips, const struct shore__product_job *job) {
    size_t rows = job->row_end - job->row_begin;
    if (job->a_transposed)
        for (size_t r = 0; r < job->k; r += STEP)
            for (size_t i = 0; i < rows; i += STRIP_ROWS)
                lay_step(strips + i * whole_k(job->k) + r * STRIP_ROWS, job, true, job->row_begin + i, r);
    else
        for (size_t i = 0; i < rows; i += STRIP_ROWS)
            for (size_t r = 0; r < job->k; r += STEP)
                lay_step(strips + i * whole_k(job->k) + r * STRIP_ROWS, job, false, job->row_begin + i, r);
}

/* ---- blocks of sums, STRIP_ROWS by PANEL: `rows` rows of c from `first`, columns from j ---- */

/* Zero where there is no row or column. */
static void get_sums(float *sums, const struct shore__product_job *job, size_t first, size_t rows, size_t j) {
    for (size_t i = 0; i < STRIP_ROWS; i++)
        for (size_t v = 0; v < PANEL; v += VL) {
            size_t columns = i < rows && j + v < job->n ? left(j + v, job->n) : 0;
            const float *c = (const float *)job->c + (first + i) * job->n + j + v;
            _mm512_store_ps(sums + i * PANEL + v, _mm512_maskz_loadu_ps((__mmask16)((1u << columns) - 1), c));
        }
}
/* Whole lines go past the caches: their places need not be read before, and nobody reads them soon. */
INLINE void put_lines(const float *sums, const struct shore__product_job *job, size_t first, size_t rows, size_t j) {
    __m512 low_bias = _mm512_setzero_ps(), high_bias = _mm512_setzero_ps();
    if (job->bias) {
        low_bias = _mm512_loadu_ps(job->bias + j);
        high_bias = _mm512_loadu_ps(job->bias + j + VL);
    }
    for (size_t i = 0; i < rows; i++) {
        __m512 low = _mm512_add_ps(_mm512_load_ps(sums + i * PANEL), low_bias);
        __m512 high = _mm512_add_ps(_mm512_load_ps(sums + i * PANEL + VL), high_bias);
        size_t at = (first + i) * job->n + j;
        if (job->c_mode == SHORE__F32) {
            _mm512_stream_ps((float *)job->c + at, low);
            _mm512_stream_ps((float *)job->c + at + VL, high);
        } else
            _mm512_stream_si512((void *)((uint16_t *)job->c + at), (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}
static void put_sums(const float *sums, const struct shore__product_job *job, size_t first, size_t rows, size_t j) {
    if (job->n - j >= PANEL && job->n % PANEL == 0 && (uintptr_t)job->c % 64 == 0 && !job->accumulate) {
        put_lines(sums, job, first, rows, j);
        return;
    }
    for (size_t i = 0; i < rows; i++)
        for (size_t v = 0; v < PANEL && j + v < job->n; v += VL)
            put_sum(job, first + i, j + v, _mm512_load_ps(sums + i * PANEL + v), false);
}

struct sums {
    float *at; /* NULL: zeros */
    size_t ld;
};

/* What is fetched into the second-level cache meanwhile, so much in each step. It may be beyond what there is: a
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
/* While `strip` of so many is multiplied by the piece of the panel from row p: its part of the piece that follows; and
 * of its block in the next panel, if that is to be added to, as many rows as there are pieces of k for. */
INLINE struct ahead ahead_of(const struct shore__product_job *job, size_t p, size_t j, size_t strip, size_t strips,
                             size_t steps) {
    size_t part = PIECE * PANEL * sizeof(uint16_t) / strips / 64 * 64;
    const uint16_t *next = (const uint16_t *)job->b + j * whole_k(job->k) + (p + PIECE) * PANEL;
    struct ahead ahead = {.b = (const char *)next + strip * part, .b_bytes = part / steps / 64 * 64};
    if (job->accumulate && j + PANEL < job->column_end) {
        size_t rows = STRIP_ROWS / ((job->k + PIECE - 1) / PIECE);
        size_t row = job->row_begin + strip * STRIP_ROWS + p / PIECE * rows;
        ahead.c = (const char *)((const float *)job->c + row * job->n + j + PANEL);
        ahead.c_rows = (rows + steps - 1) / steps;
        ahead.c_stride = job->n * sizeof(float);
    }
    return ahead;
}

/* to = from + so many steps of a strip by those of a panel. */
INLINE void strip_by_panel(struct sums to, struct sums from, const uint16_t *a, const uint16_t *b, size_t steps,
                           struct ahead ahead) {
    if (from.at) {
        _tile_loadd(0, from.at, from.ld * sizeof(float));
        _tile_loadd(1, from.at + TILE, from.ld * sizeof(float));
        _tile_loadd(2, from.at + TILE * from.ld, from.ld * sizeof(float));
        _tile_loadd(3, from.at + TILE * from.ld + TILE, from.ld * sizeof(float));
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (size_t s = 0; s < steps; s++, a += PAIR_OF_TILES, b += PAIR_OF_TILES) {
        fetch(&ahead);
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_loadd(7, b + TILE * STEP, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, a + TILE * STEP, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, to.at, to.ld * sizeof(float));
    _tile_stored(1, to.at + TILE, to.ld * sizeof(float));
    _tile_stored(2, to.at + TILE * to.ld, to.ld * sizeof(float));
    _tile_stored(3, to.at + TILE * to.ld + TILE, to.ld * sizeof(float));
}

/* What is added to c begins and ends there, where a block is whole. */
static void piece_of_panel(const struct shore__product_job *job, const uint16_t *strips, float *room, size_t p,
                           size_t j) {
    const uint16_t *panel = (const uint16_t *)job->b + j * whole_k(job->k) + p * PANEL;
    size_t count = (job->row_end - job->row_begin + STRIP_ROWS - 1) / STRIP_ROWS;
    size_t steps = whole_k(least(PIECE, job->k - p)) / STEP;
    bool first = p == 0, last = p + PIECE >= job->k;
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
    uint16_t *strips = scratch;
    float *room = (float *)(strips + job_rows(job->k) * whole_k(job->k));
    lay_strips(strips, job);
    products_begin();
    for (size_t j = job->column_begin; j < job->column_end; j += PANEL)
        for (size_t p = 0; p < job->k; p += PIECE)
            piece_of_panel(job, strips, room, p, j);
    products_end();
    _mm_sfence();
}

static const struct shore__product_kernel k_product_bf16 = {
    .strip = STRIP_ROWS,
    .panel = PANEL,
    .job_size = job_size,
    .scratch = product_scratch,
    .packed = product_packed,
    .pack = product_pack,
    .run = product_run,
};
#define PRODUCT_BF16 (&k_product_bf16)
