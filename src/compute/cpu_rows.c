/* Memory, embedding, norms and elementwise operations of the CPU backend: kernels split over threads. */
#include <string.h>

#include "compute/cpu.h"
#include "number/bf16.h"

#define UNIT ((size_t)64) /* elements or columns: whole cache lines in every type */

#define OPEN                                            \
    struct shore__cpu *c = shore__cpu_of(base);         \
    SHORE__CPU_SCOPE(c);                                \
    const enum shore__mode mode = base->mode;           \
    const size_t width_bytes = shore__mode_bytes(mode); \
    (void)mode, (void)width_bytes

static inline char *at(shore__buf b, size_t bytes) {
    return b.handle ? (char *)shore__cpu_ptr(b) + bytes : NULL;
}

int shore__cpu_zero(struct shore__compute *base, struct shore__stream *s, shore__buf dst, size_t bytes) {
    OPEN;
    SHORE__FOR_PART(c, bytes, 4096, p) {
        memset(at(dst, p.begin), 0, p.end - p.begin);
    }
    return 0;
}

int shore__cpu_copy(struct shore__compute *base, struct shore__stream *s, shore__buf dst, shore__buf src,
                    size_t bytes) {
    OPEN;
    SHORE__FOR_PART(c, bytes, 4096, p) {
        memcpy(at(dst, p.begin), at(src, p.begin), p.end - p.begin);
    }
    return 0;
}

int shore__cpu_widen(struct shore__compute *base, struct shore__stream *s, shore__buf dst, shore__buf src, size_t n) {
    OPEN;
    SHORE__FOR_PART(c, n, UNIT, p) {
        shore__f32_from_bf16((float *)at(dst, p.begin * 4), (const uint16_t *)at(src, p.begin * 2), p.end - p.begin);
    }
    return 0;
}

int shore__cpu_store(struct shore__compute *base, struct shore__stream *s, shore__buf dst, shore__buf act, size_t n) {
    if (base->mode != SHORE__BF16_IN_F32) return shore__cpu_copy(base, s, dst, act, n * shore__mode_bytes(base->mode));
    OPEN;
    SHORE__FOR_PART(c, n, UNIT, p) {
        shore__bf16_from_f32((uint16_t *)at(dst, p.begin * 2), (const float *)at(act, p.begin * 4), p.end - p.begin);
    }
    return 0;
}

int shore__cpu_load(struct shore__compute *base, struct shore__stream *s, shore__buf act, shore__buf src, size_t n) {
    if (base->mode != SHORE__BF16_IN_F32) return shore__cpu_copy(base, s, act, src, n * shore__mode_bytes(base->mode));
    return shore__cpu_widen(base, s, act, src, n);
}

int shore__cpu_round(struct shore__compute *base, struct shore__stream *s, shore__buf act, shore__buf src, size_t n) {
    OPEN;
    SHORE__FOR_PART(c, n, UNIT, p) {
        c->kernels->round(at(act, p.begin * width_bytes), (const float *)at(src, p.begin * 4), p.end - p.begin, mode);
    }
    return 0;
}

int shore__cpu_add(struct shore__compute *base, struct shore__stream *s, shore__buf y, shore__buf a, shore__buf b,
                   size_t n) {
    OPEN;
    SHORE__FOR_PART(c, n, UNIT, p) {
        size_t o = p.begin * width_bytes;
        c->kernels->add(at(y, o), at(a, o), at(b, o), p.end - p.begin, mode);
    }
    return 0;
}

int shore__cpu_scale(struct shore__compute *base, struct shore__stream *s, shore__buf x, float factor, size_t n) {
    OPEN;
    SHORE__FOR_PART(c, n, UNIT, p) {
        c->kernels->scale(at(x, p.begin * width_bytes), factor, p.end - p.begin, mode);
    }
    return 0;
}

int shore__cpu_columns_take(struct shore__compute *base, struct shore__stream *s, shore__buf y, shore__buf x,
                            size_t rows, size_t width, size_t first, size_t n) {
    OPEN;
    SHORE__FOR_PART(c, rows, 1, p) {
        for (size_t r = p.begin; r < p.end; r++)
            memcpy(at(y, r * n * width_bytes), at(x, (r * width + first) * width_bytes), n * width_bytes);
    }
    return 0;
}

int shore__cpu_columns_add(struct shore__compute *base, struct shore__stream *s, shore__buf x, shore__buf y,
                           size_t rows, size_t width, size_t first, size_t n) {
    OPEN;
    SHORE__FOR_PART(c, rows, 1, p) {
        for (size_t r = p.begin; r < p.end; r++) {
            void *to = at(x, (r * width + first) * width_bytes);
            c->kernels->add(to, to, at(y, r * n * width_bytes), n, mode);
        }
    }
    return 0;
}

int shore__cpu_act(struct shore__compute *base, struct shore__stream *s, shore__buf y, shore__buf x,
                   enum shore__act_fn f, bool gated, size_t rows, size_t width) {
    OPEN;
    size_t in_bytes = width * width_bytes;
    if (gated) width /= 2;
    SHORE__FOR_PART(c, rows, 1, p) {
        c->kernels->act(at(y, p.begin * width * width_bytes), at(x, p.begin * in_bytes), f, gated, p.end - p.begin,
                        width, mode);
    }
    return 0;
}

int shore__cpu_act_backward(struct shore__compute *base, struct shore__stream *s, shore__buf dx, shore__buf dy,
                            shore__buf x, enum shore__act_fn f, bool gated, size_t rows, size_t width) {
    OPEN;
    size_t in_bytes = width * width_bytes;
    if (gated) width /= 2;
    SHORE__FOR_PART(c, rows, 1, p) {
        c->kernels->act_backward(at(dx, p.begin * in_bytes), at(dy, p.begin * width * width_bytes),
                                 at(x, p.begin * in_bytes), f, gated, p.end - p.begin, width, mode);
    }
    return 0;
}

int shore__cpu_embed(struct shore__compute *base, struct shore__stream *s, shore__buf x, shore__buf table,
                     shore__buf tokens, size_t rows, size_t d, size_t first, size_t n) {
    OPEN;
    const int32_t *token = shore__cpu_ptr(tokens);
    size_t row_bytes = d * width_bytes;
    SHORE__FOR_PART(c, rows, 1, p) {
        for (size_t r = p.begin; r < p.end; r++) {
            if (token[r] < 0 || (size_t)token[r] < first || (size_t)token[r] - first >= n) continue;
            const void *entry = at(table, ((size_t)token[r] - first) * row_bytes);
            if (mode == SHORE__BF16_IN_F32)
                c->kernels->round(at(x, r * row_bytes), entry, d, mode);
            else
                memcpy(at(x, r * row_bytes), entry, row_bytes);
        }
    }
    return 0;
}

int shore__cpu_embed_backward(struct shore__compute *base, struct shore__stream *s, shore__buf dtable, shore__buf dx,
                              shore__buf tokens, size_t rows, size_t d, size_t first, size_t n) {
    OPEN;
    const int32_t *token = shore__cpu_ptr(tokens);
    SHORE__FOR_PART(c, d, UNIT, p) {
        for (size_t r = 0; r < rows; r++) {
            if (token[r] < 0 || (size_t)token[r] < first || (size_t)token[r] - first >= n) continue;
            float *entry = (float *)at(dtable, (((size_t)token[r] - first) * d + p.begin) * 4);
            c->kernels->add_to(entry, at(dx, (r * d + p.begin) * width_bytes), p.end - p.begin, mode);
        }
    }
    return 0;
}

int shore__cpu_position(struct shore__compute *base, struct shore__stream *s, shore__buf x, shore__buf table,
                        size_t rows, size_t d, size_t seq_len, size_t first_position) {
    OPEN;
    size_t row_bytes = d * width_bytes;
    SHORE__FOR_PART(c, rows, 1, p) {
        for (size_t r = p.begin; r < p.end; r++)
            c->kernels->add(at(x, r * row_bytes), at(x, r * row_bytes),
                            at(table, (first_position + r % seq_len) * row_bytes), d, mode);
    }
    return 0;
}

int shore__cpu_position_backward(struct shore__compute *base, struct shore__stream *s, shore__buf dtable, shore__buf dx,
                                 size_t rows, size_t d, size_t seq_len) {
    OPEN;
    SHORE__FOR_PART(c, seq_len < rows ? seq_len : rows, 1, p) {
        for (size_t position = p.begin; position < p.end; position++)
            for (size_t r = position; r < rows; r += seq_len)
                c->kernels->add_to((float *)at(dtable, position * d * 4), at(dx, r * d * width_bytes), d, mode);
    }
    return 0;
}

int shore__cpu_norm(struct shore__compute *base, struct shore__stream *s, shore__buf y, shore__buf stats, shore__buf x,
                    shore__buf gain, shore__buf bias, float eps, enum shore__norm_kind kind, size_t rows, size_t d) {
    OPEN;
    SHORE__FOR_PART(c, rows, 1, p) {
        size_t o = p.begin * d * width_bytes;
        c->kernels->norm(at(y, o), (float *)at(stats, p.begin * 8), at(x, o), shore__cpu_ptr(gain),
                         shore__cpu_ptr(bias), eps, kind, p.end - p.begin, d, mode);
    }
    return 0;
}

int shore__cpu_norm_backward(struct shore__compute *base, struct shore__stream *s, shore__buf dx, shore__buf dgain,
                             shore__buf dbias, shore__buf dy, shore__buf dx_add, shore__buf x, shore__buf gain,
                             shore__buf stats, enum shore__norm_kind kind, size_t rows, size_t d) {
    OPEN;
    /* Columns first: dx may be dy. */
    const size_t columns = shore__buf_is_none(dgain) && shore__buf_is_none(dbias) ? 0 : d;
    SHORE__FOR_PART(c, columns, UNIT, p) {
        c->kernels->norm_columns(shore__cpu_ptr(dgain), shore__cpu_ptr(dbias), shore__cpu_ptr(dy), shore__cpu_ptr(x),
                                 shore__cpu_ptr(stats), kind, rows, d, p.begin, p.end, mode);
    }
    SHORE__FOR_PART(c, rows, 1, p) {
        size_t o = p.begin * d * width_bytes;
        c->kernels->norm_backward(at(dx, o), at(dy, o), at(dx_add, o), at(x, o), shore__cpu_ptr(gain),
                                  (const float *)at(stats, p.begin * 8), kind, p.end - p.begin, d, mode);
    }
    return 0;
}

int shore__cpu_bias_backward(struct shore__compute *base, struct shore__stream *s, shore__buf db, shore__buf dy,
                             size_t rows, size_t n) {
    OPEN;
    SHORE__FOR_PART(c, n, UNIT, p) {
        c->kernels->column_sums(shore__cpu_ptr(db), shore__cpu_ptr(dy), rows, n, p.begin, p.end, mode);
    }
    return 0;
}
