/* Attention: one job per sequence and key/value head. Free threads take the next job; each job's bits are its own. */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "compute/cpu.h"

/* Scratch of one thread, rounded so that threads share no page. */
static size_t scratch_bytes(const struct shore__cpu *c, size_t keys, size_t head_dim, bool backward) {
    return shore__cpu_whole_pages(c->kernels->attention_scratch(keys, head_dim, backward));
}

size_t shore__cpu_attention_workspace(struct shore__cpu *c, const struct shore__shapes *s) {
    if (s->n_head == 0) return 0;
    size_t forward = scratch_bytes(c, s->seq_len, s->head_dim, false);
    size_t backward = s->backward ? scratch_bytes(c, s->seq_len, s->head_dim, true) : 0;
    return (forward > backward ? forward : backward) * (size_t)c->base.threads;
}

struct jobs {
    const struct shore__attention *a;
    struct shore__attention_job first; /* of sequence 0 and head 0 */
    size_t sequences, sequence_rows, kv_head_stride;
    void (*run)(const struct shore__attention_job *job, void *scratch);
    size_t scratch;
};

static const void *step(const void *p, size_t elems, size_t width) {
    return p ? (const char *)p + elems * width : NULL;
}

static int run_jobs(struct shore__cpu *c, const struct jobs *jobs) {
    if (c->workspace_bytes < jobs->scratch) return -ENOMEM;
    size_t count = jobs->sequences * jobs->a->n_kv_head, width = shore__mode_bytes(c->base.mode);
    size_t room = c->workspace_bytes / jobs->scratch; /* threads that have room for scratch */
    atomic_size_t next = 0;
    /* All threads, even for fewer jobs. A smaller team would end some of them, and the threads that replace them in the
     * next team would let signals in (see shore__cpu_enter). */
#pragma omp parallel num_threads(c->base.threads)
    {
        shore__cpu_flush_to_zero();
        size_t self = (size_t)omp_get_thread_num(), i;
        char *scratch = c->workspace + self * jobs->scratch;
        while (self < room && (i = atomic_fetch_add(&next, 1)) < count) {
            size_t sequence = i / jobs->a->n_kv_head, kv = i % jobs->a->n_kv_head;
            size_t row = sequence * jobs->sequence_rows, head = kv * jobs->first.heads, hd = jobs->first.head_dim;
            struct shore__attention_job job = jobs->first;
            size_t q = row * job.q_ld + head * hd, out = row * job.out_ld + head * hd;
            size_t k = row * job.kv_ld + kv * jobs->kv_head_stride;
            job.q = step(job.q, q, width);
            job.k = step(job.k, k, width);
            job.v = step(job.v, k, width);
            job.out_in = step(job.out_in, out, width);
            job.dout = step(job.dout, out, width);
            job.out = (void *)step(job.out, out, width);
            job.dq = (void *)step(job.dq, q, width);
            job.dk = (void *)step(job.dk, k, width);
            job.dv = (void *)step(job.dv, k, width);
            if (job.lse) job.lse += head * job.lse_stride + row;
            if (job.sinks) job.sinks += head;
            jobs->run(&job, scratch);
        }
    }
    return 0;
}

static struct shore__attention_job job_of(const struct shore__cpu *c, const struct shore__attention *a) {
    size_t hd = a->head_dim, qkv = (a->n_head + 2 * a->n_kv_head) * hd;
    return (struct shore__attention_job){
        .q_ld = qkv,
        .kv_ld = qkv,
        .out_ld = a->n_head * hd,
        .lse_stride = a->sequences * a->seq_len,
        .heads = a->n_head / a->n_kv_head,
        .queries = a->seq_len,
        .keys = a->seq_len,
        .head_dim = hd,
        .window = a->window,
        .scale = a->scale,
        .softcap = a->softcap,
        .sinks = shore__cpu_ptr(a->sinks),
        .mode = c->base.mode,
    };
}

static void point_at(const struct shore__cpu *c, const struct shore__attention *a, const char *qkv, const void **q,
                     const void **k, const void **v) {
    size_t width = shore__mode_bytes(c->base.mode);
    *q = qkv;
    *k = qkv + a->n_head * a->head_dim * width;
    *v = qkv + (a->n_head + a->n_kv_head) * a->head_dim * width;
}

int shore__cpu_attention(struct shore__compute *base, struct shore__stream *s, shore__buf out, shore__buf lse,
                         shore__buf qkv, const struct shore__attention *a) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    struct jobs jobs = {.a = a,
                        .first = job_of(c, a),
                        .sequences = a->sequences,
                        .sequence_rows = a->seq_len,
                        .kv_head_stride = a->head_dim,
                        .run = c->kernels->attention,
                        .scratch = scratch_bytes(c, a->seq_len, a->head_dim, false)};
    point_at(c, a, shore__cpu_ptr(qkv), &jobs.first.q, &jobs.first.k, &jobs.first.v);
    jobs.first.out = shore__cpu_ptr(out);
    jobs.first.lse = shore__cpu_ptr(lse);
    return run_jobs(c, &jobs);
}

int shore__cpu_attention_backward(struct shore__compute *base, struct shore__stream *s, shore__buf dqkv,
                                  shore__buf dout, shore__buf qkv, shore__buf out, shore__buf lse,
                                  const struct shore__attention *a) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    struct jobs jobs = {.a = a,
                        .first = job_of(c, a),
                        .sequences = a->sequences,
                        .sequence_rows = a->seq_len,
                        .kv_head_stride = a->head_dim,
                        .run = c->kernels->attention_backward,
                        .scratch = scratch_bytes(c, a->seq_len, a->head_dim, true)};
    const void *dq, *dk, *dv;
    point_at(c, a, shore__cpu_ptr(qkv), &jobs.first.q, &jobs.first.k, &jobs.first.v);
    point_at(c, a, shore__cpu_ptr(dqkv), &dq, &dk, &dv);
    jobs.first.dq = (void *)dq;
    jobs.first.dk = (void *)dk;
    jobs.first.dv = (void *)dv;
    jobs.first.out_in = shore__cpu_ptr(out);
    jobs.first.dout = shore__cpu_ptr(dout);
    jobs.first.lse = shore__cpu_ptr(lse);
    return run_jobs(c, &jobs);
}

int shore__cpu_attention_cached(struct shore__compute *base, struct shore__stream *s, shore__buf out, shore__buf lse,
                                shore__buf qkv, shore__buf keys, shore__buf values, size_t rows, size_t first,
                                size_t capacity, const struct shore__attention *a) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    struct jobs jobs = {.a = a,
                        .first = job_of(c, a),
                        .sequences = 1,
                        .kv_head_stride = capacity * a->head_dim,
                        .run = c->kernels->attention,
                        .scratch = scratch_bytes(c, first + rows, a->head_dim, false)};
    jobs.first.q = shore__cpu_ptr(qkv);
    jobs.first.k = shore__cpu_ptr(keys);
    jobs.first.v = shore__cpu_ptr(values);
    jobs.first.kv_ld = a->head_dim;
    jobs.first.out = shore__cpu_ptr(out);
    jobs.first.lse = shore__cpu_ptr(lse);
    jobs.first.lse_stride = rows;
    jobs.first.queries = rows;
    jobs.first.first = first;
    jobs.first.keys = first + rows;
    return run_jobs(c, &jobs);
}

int shore__cpu_rope(struct shore__compute *base, struct shore__stream *s, shore__buf qkv, shore__buf cos_sin,
                    const struct shore__attention *a, size_t first_position, bool inverse) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    size_t row_bytes = (a->n_head + 2 * a->n_kv_head) * a->head_dim * shore__mode_bytes(base->mode);
    size_t rotary = shore__rotary_dim(a);
    const float *table = shore__cpu_ptr(cos_sin);
    SHORE__FOR_PART(c, a->sequences * a->seq_len, 1, p) {
        for (size_t r = p.begin; r < p.end; r++)
            c->kernels->rope((char *)shore__cpu_ptr(qkv) + r * row_bytes,
                             table + (first_position + r % a->seq_len) * rotary, a->n_head + a->n_kv_head, a->head_dim,
                             rotary, inverse, base->mode);
    }
    return 0;
}

int shore__cpu_sink_backward(struct shore__compute *base, struct shore__stream *s, shore__buf dsinks, shore__buf dout,
                             shore__buf out, shore__buf lse, const struct shore__attention *a) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    size_t rows = a->sequences * a->seq_len, hd = a->head_dim, width = shore__mode_bytes(base->mode);
    float *d = shore__cpu_ptr(dsinks);
    const float *sinks = shore__cpu_ptr(a->sinks), *sums = shore__cpu_ptr(lse);
    SHORE__FOR_PART(c, a->n_head, 1, p) {
        for (size_t h = p.begin; h < p.end; h++)
            c->kernels->sink_backward(d + h, sinks[h], step(shore__cpu_ptr(dout), h * hd, width),
                                      step(shore__cpu_ptr(out), h * hd, width), sums + h * rows, rows, a->n_head * hd,
                                      hd, base->mode);
    }
    return 0;
}

/* Queries, or keys, of a qkv row, as rows of a norm: each head, or all heads together. Where they begin. */
struct normed {
    size_t rows, d, at, gain, stats;
};
static void normed_parts(const struct shore__attention *a, bool whole, struct normed out[2]) {
    size_t hd = a->head_dim, q = a->n_head, k = a->n_kv_head;
    out[0] = whole ? (struct normed){1, q * hd, 0, 0, 0} : (struct normed){q, hd, 0, 0, 0};
    out[1] = whole ? (struct normed){1, k * hd, q * hd, q * hd, 2} : (struct normed){k, hd, q * hd, hd, 2 * q};
}
/* The values of a row behind them. */
static void copy_values(const struct shore__attention *a, size_t width, char *to, const char *from) {
    size_t at = (a->n_head + a->n_kv_head) * a->head_dim * width;
    if (to != from) memcpy(to + at, from + at, a->n_kv_head * a->head_dim * width);
}

int shore__cpu_head_norm(struct shore__compute *base, struct shore__stream *s, shore__buf y, shore__buf stats,
                         shore__buf x, shore__buf gain, float eps, enum shore__norm_kind kind, bool whole,
                         const struct shore__attention *a) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    size_t width = shore__mode_bytes(base->mode), row = (a->n_head + 2 * a->n_kv_head) * a->head_dim * width;
    struct normed n[2];
    normed_parts(a, whole, n);
    SHORE__FOR_PART(c, a->sequences * a->seq_len, 1, p) {
        for (size_t r = p.begin; r < p.end; r++) {
            const char *from = (const char *)shore__cpu_ptr(x) + r * row;
            char *to = (char *)shore__cpu_ptr(y) + r * row;
            float *row_stats = (float *)shore__cpu_ptr(stats) + r * 2 * (n[0].rows + n[1].rows);
            for (const struct normed *i = n; i < n + 2; i++)
                c->kernels->norm(to + i->at * width, row_stats + i->stats, from + i->at * width,
                                 (const float *)shore__cpu_ptr(gain) + i->gain, NULL, eps, kind, i->rows, i->d,
                                 base->mode);
            copy_values(a, width, to, from);
        }
    }
    return 0;
}

int shore__cpu_head_norm_backward(struct shore__compute *base, struct shore__stream *s, shore__buf dx, shore__buf dgain,
                                  shore__buf dy, shore__buf x, shore__buf gain, shore__buf stats,
                                  enum shore__norm_kind kind, bool whole, const struct shore__attention *a) {
    struct shore__cpu *c = shore__cpu_of(base);
    SHORE__CPU_SCOPE(c);
    size_t width = shore__mode_bytes(base->mode), row = (a->n_head + 2 * a->n_kv_head) * a->head_dim * width;
    size_t all = a->sequences * a->seq_len;
    const char *dys = shore__cpu_ptr(dy), *xs = shore__cpu_ptr(x);
    float *g = shore__cpu_ptr(dgain);
    const float *st = shore__cpu_ptr(stats);
    struct normed n[2];
    normed_parts(a, whole, n);
    const size_t stats_ld = 2 * (n[0].rows + n[1].rows);
    for (const struct normed *i = n; g && i < n + 2; i++) { /* columns first: dx may be dy */
        SHORE__FOR_PART(c, i->d, 16, p) {
            for (size_t r = 0; r < all; r++)
                c->kernels->norm_columns(g + i->gain, NULL, dys + r * row + i->at * width, xs + r * row + i->at * width,
                                         st + r * stats_ld + i->stats, kind, i->rows, i->d, p.begin, p.end, base->mode);
        }
    }
    SHORE__FOR_PART(c, all, 1, p) {
        for (size_t r = p.begin; r < p.end; r++) {
            char *to = (char *)shore__cpu_ptr(dx) + r * row;
            for (const struct normed *i = n; i < n + 2; i++)
                c->kernels->norm_backward(to + i->at * width, dys + r * row + i->at * width, NULL,
                                          xs + r * row + i->at * width, (const float *)shore__cpu_ptr(gain) + i->gain,
                                          st + r * stats_ld + i->stats, kind, i->rows, i->d, base->mode);
            copy_values(a, width, to, dys + r * row);
        }
    }
    return 0;
}
