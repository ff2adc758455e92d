#include "files/coded.h"

#include "files/atomic.h"
#include "number/fp16.h"
#include "number/fp8.h"

struct shore__stored shore__stored_of(const struct shore__st_tensor *t) {
    return (struct shore__stored){t->type, t->bytes, t->file, t->offset, t->elems};
}

static int read_numbers(const struct shore__safetensors *st, const struct shore__stored *s, uint64_t first,
                        uint64_t count, float *out, struct shore_diag *diag) {
    const struct shore__st_tensor t = {
        .name = "", .type = s->type, .bytes = s->bytes, .file = s->file, .offset = s->offset, .elems = s->elems};
    return shore__safetensors_read(st, &t, first, count, out, diag);
}

static int read_codes(const struct shore__safetensors *st, const struct shore__stored *s, uint64_t first,
                      uint64_t bytes, unsigned char *out, struct shore_diag *diag) {
    return shore__read_at(st->fds[s->file], out, bytes, s->offset + first,
                          shore__path_in(st->directory, st->files[s->file]).text, diag);
}

static void round_to(enum shore__st_type type, float *values, uint64_t count) {
    for (uint64_t i = 0; type == SHORE__ST_BF16 && i < count; i++)
        values[i] = shore__bf16_to_f32(shore__f32_to_bf16(values[i]));
    for (uint64_t i = 0; type == SHORE__ST_F16 && i < count; i++)
        values[i] = shore__f16_to_f32(shore__f32_to_f16(values[i]));
}

static void round_numbers(const struct shore__coding *c, float *values, uint64_t count) {
    round_to(c->quantized, values, count);
    round_to(c->dtype, values, count);
}

/* ---- bytes with a grid of scales --------------------------------------------------------------------------------- */

/* out may begin before codes, and reach over them: they are set aside in turns. */
static void scale_bytes(const struct shore__coding *c, const unsigned char *codes, uint64_t count, float scale,
                        float *out) {
    enum { AT_ONCE = 128 };
    unsigned char aside[AT_ONCE];
    for (uint64_t done = 0, n; done < count; done += n, codes += n, out += n) {
        n = count - done < AT_ONCE ? count - done : AT_ONCE;
        memcpy(aside, codes, n);
        for (uint64_t i = 0; c->codes.type == SHORE__ST_E4M3 && i < n; i++)
            out[i] = shore__e4m3_to_f32(aside[i]) * scale;
        for (uint64_t i = 0; c->codes.type == SHORE__ST_I8 && i < n; i++)
            out[i] = (float)(int8_t)aside[i] * scale * c->factor;
    }
}

int shore__coded_bytes(const struct shore__safetensors *st, const struct shore__st_coding *coding, uint64_t first,
                       uint64_t count, float *out, struct shore_diag *diag) {
    enum { SCALES = 256 };
    float scales[SCALES] = {0};
    const struct shore__coding *c = (const struct shore__coding *)coding;
    const uint64_t down = (c->rows - 1) / c->block_rows + 1, across = (c->cols - 1) / c->block_cols + 1;
    /* codes are read into the far end of out and widened forward, as shore__safetensors_read() does */
    const unsigned char *codes = (unsigned char *)(out + count) - count;
    int rc = read_codes(st, &c->codes, first, count, (unsigned char *)codes, diag);
    for (uint64_t done = 0, n, last = UINT64_MAX, nlast = 0; rc == 0 && done < count; done += n) {
        const uint64_t row = (first + done) / c->cols, col = (first + done) % c->cols, from = col / c->block_cols;
        const uint64_t at = (row / c->rows * down + row % c->rows / c->block_rows) * across + from;
        n = c->cols - col < count - done ? c->cols - col : count - done;
        if (n > (from + SCALES) * c->block_cols - col) n = (from + SCALES) * c->block_cols - col;
        const uint64_t nscales = (col + n - 1) / c->block_cols - from + 1;
        if (at != last || nscales > nlast) rc = read_numbers(st, &c->scales, at, nscales, scales, diag);
        last = at;
        nlast = nscales;
        for (uint64_t i = 0, k = 0, end; rc == 0 && i < n; i = end, k++) {
            end = (from + k + 1) * c->block_cols - col < n ? (from + k + 1) * c->block_cols - col : n;
            scale_bytes(c, codes + done + i, end - i, scales[k], out + done + i);
        }
        if (rc == 0) round_numbers(c, out + done, n);
    }
    return rc;
}

/* ---- 4 bits ------------------------------------------------------------------------------------------------------ */

static int read_scales(const struct shore__safetensors *st, const struct shore__coding *c, uint64_t first,
                       uint64_t count, float *out, struct shore_diag *diag) {
    int rc = read_numbers(st, &c->scales, first, count, out, diag);
    float scale = 0;
    for (uint64_t i = 0; rc == 0 && c->nested_block && i < count; i++) {
        if (i == 0 || (first + i) % c->nested_block == 0)
            rc = read_numbers(st, &c->nested, (first + i) / c->nested_block, 1, &scale, diag);
        out[i] = c->maps->nested[(uint8_t)out[i]] * scale + c->nested_offset;
    }
    return rc;
}

int shore__coded_4bit(const struct shore__safetensors *st, const struct shore__st_coding *coding, uint64_t first,
                      uint64_t count, float *out, struct shore_diag *diag) {
    enum { SCALES = 512 };
    float scales[SCALES];
    const struct shore__coding *c = (const struct shore__coding *)coding;
    const uint64_t from = first / 2, bytes = (first + count + 1) / 2 - from;
    const unsigned char *codes = (unsigned char *)(out + count) - bytes;
    int rc = read_codes(st, &c->codes, from, bytes, (unsigned char *)codes, diag);
    for (uint64_t at = first, n; rc == 0 && at < first + count; at += n) {
        const uint64_t block = at / c->block, most = (block + SCALES) * c->block - at;
        n = first + count - at < most ? first + count - at : most;
        rc = read_scales(st, c, block, (at + n - 1) / c->block - block + 1, scales, diag);
        for (uint64_t i = at, k = 0; rc == 0 && i < at + n; k++) {
            const uint64_t stop = (block + k + 1) * c->block, end = stop < at + n ? stop : at + n;
            for (; i < end; i++) {
                const unsigned shift = (i % 2 == 0) == c->high_first ? 4 : 0;
                out[i - first] = c->maps->numbers[codes[i / 2 - from] >> shift & 15] * scales[k];
            }
        }
        if (rc == 0) round_numbers(c, out + (at - first), n);
    }
    return rc;
}
