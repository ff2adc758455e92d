/* A backend "away": the reference's kernels over memory that is not the host's. Its device memory can be touched while
 * an operation or a transfer runs and at no other time; transfers take pinned memory alone; and what is called on a
 * stream runs late, on the stream's thread: when it is waited for, or at random moments before. So whoever reads
 * through a handle, or forgets to wait, crashes or gets other bits. It can be lost: then nothing runs any more.
 */
#ifndef TESTS_COMPUTE_AWAY_H
#define TESTS_COMPUTE_AWAY_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/arena.h"
#include "base/diag.h"
#include "base/prng.h"
#include "base/thread.h"
#include "compute/compute.h"
#include "reference/reference.h"

enum { AWAY_SPANS = 64 };

struct away {
    struct shore__compute base, *reference;
    pthread_mutex_t touching; /* guards the spans, and the memory: one call runs at a time */
    struct shore__span *spans[AWAY_SPANS];
    uint64_t seed, drawn; /* when streams run by themselves */
    uint64_t ncalls, stood_at;
    atomic_bool lost;
    struct shore__stream *closed;
};

struct away_call {
    struct away_call *next;
    int (*run)(struct away *a, void *args);
    bool touches;
    _Alignas(16) char args[];
};

struct shore__stream {
    struct away *owner;
    struct shore__stream *next; /* of those that are closed */
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct away_call *first, **end;
    uint64_t called, wanted, done; /* positions */
    bool closing;
    int failed;
};

static uint64_t away_seed = 1;
static uint64_t away_lost_after; /* calls; 0: never, as usual */
static uint64_t away_calls;      /* of the backend that was closed last */
static bool away_lazy;           /* streams never run by themselves */
static uint64_t away_moments;    /* at which the host stood: waits between the same two calls are one */

/* ---- memory ---- */

static void away_protect(struct away *a, int protection) {
    for (int i = 0; i < AWAY_SPANS; i++) {
        struct shore__span *s = a->spans[i];
        if (s && s->place == SHORE_PLACE_DEVICE && mprotect((void *)s->device.handle, s->bytes, protection)) abort();
    }
}
/* Whether address lies in a span of that place, or at its end, where nothing is left of it. */
static bool away_holds(const struct away *a, enum shore_place place, const void *address) {
    for (int i = 0; i < AWAY_SPANS; i++) {
        const struct shore__span *s = a->spans[i];
        if (!s || s->place != place) continue;
        const char *base = place == SHORE_PLACE_DEVICE ? (const char *)s->device.handle : s->host;
        if ((const char *)address >= base && (const char *)address <= base + s->bytes) return true;
    }
    return false;
}

static int away_alloc(struct shore__compute *c, enum shore_place place, uint64_t bytes, struct shore__span *out,
                      struct shore_diag *diag) {
    struct away *a = (struct away *)c;
    struct shore__span *s = calloc(1, sizeof *s);
    bytes = bytes ? shore__arena_round(bytes) : SHORE__ARENA_ALIGN;
    /* with a page behind it that is nobody's */
    void *p = mmap(NULL, bytes + SHORE__ARENA_ALIGN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!s || p == MAP_FAILED) abort();
    if (place != SHORE_PLACE_DEVICE && mprotect(p, bytes, PROT_READ | PROT_WRITE)) abort();
    *s = (struct shore__span){.place = place, .bytes = bytes, .owner = s};
    if (place == SHORE_PLACE_DEVICE)
        s->device.handle = (uintptr_t)p;
    else
        s->host = p;
    *out = *s;
    pthread_mutex_lock(&a->touching);
    int i = 0;
    while (i < AWAY_SPANS && a->spans[i])
        i++;
    if (i == AWAY_SPANS) abort();
    a->spans[i] = s;
    pthread_mutex_unlock(&a->touching);
    return 0;
}

static void away_free(struct shore__compute *c, struct shore__span *span) {
    struct away *a = (struct away *)c;
    pthread_mutex_lock(&a->touching);
    for (int i = 0; i < AWAY_SPANS; i++) {
        if (!span->owner || a->spans[i] != span->owner) continue;
        munmap(span->host ? span->host : (void *)span->device.handle, span->bytes + SHORE__ARENA_ALIGN);
        free(a->spans[i]);
        a->spans[i] = NULL;
    }
    pthread_mutex_unlock(&a->touching);
    *span = (struct shore__span){0};
}

/* ---- streams ---- */

static void *away_stream_main(void *arg) {
    struct shore__stream *s = arg;
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        while ((s->done >= s->wanted || s->owner->lost) && !s->closing)
            pthread_cond_wait(&s->changed, &s->mutex);
        struct away_call *call = s->first;
        if (!call) break;
        if (!(s->first = call->next)) s->end = &s->first;
        pthread_mutex_unlock(&s->mutex);
        int rc = 0;
        if (s->owner->lost) {
        } else if (call->touches) {
            pthread_mutex_lock(&s->owner->touching);
            away_protect(s->owner, PROT_READ | PROT_WRITE);
            rc = call->run(s->owner, call->args);
            away_protect(s->owner, PROT_NONE);
            pthread_mutex_unlock(&s->owner->touching);
        } else {
            rc = call->run(s->owner, call->args);
        }
        free(call);
        pthread_mutex_lock(&s->mutex);
        if (rc && !s->failed) s->failed = rc;
        s->done++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

static int away_stream_open(struct shore__compute *c, struct shore__stream **out, struct shore_diag *diag) {
    struct shore__stream *s = calloc(1, sizeof *s);
    if (!s) abort();
    s->owner = (struct away *)c;
    s->end = &s->first;
    pthread_mutex_init(&s->mutex, NULL);
    shore__cond_init(&s->changed);
    if (pthread_create(&s->thread, NULL, away_stream_main, s)) abort();
    *out = s;
    return 0;
}

static void away_stream_close(struct shore__compute *c, struct shore__stream *s) {
    if (!s) return;
    pthread_mutex_lock(&s->mutex);
    s->closing = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    pthread_join(s->thread, NULL);
    s->next = s->owner->closed; /* another stream may follow it still */
    s->owner->closed = s;
}

static int away_call(struct shore__stream *s, int (*run)(struct away *, void *), bool touches, const void *args,
                     size_t bytes) {
    struct away_call *call = malloc(sizeof *call + bytes);
    if (!call || !s) abort(); /* every call has a stream */
    *call = (struct away_call){NULL, run, touches};
    memcpy(call->args, args, bytes);
    pthread_mutex_lock(&s->mutex);
    *s->end = call;
    s->end = &call->next;
    s->called++;
    if (++s->owner->ncalls == away_lost_after) s->owner->lost = true;
    bool by_itself = shore__random_u64(s->owner->seed, 0, s->owner->drawn++) % 8 == 0 || s->called - s->wanted > 256;
    if (by_itself && !away_lazy) s->wanted = s->called;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    return 0;
}

static struct shore_event away_record(void *ctx, void *stream) {
    struct shore__stream *s = stream;
    pthread_mutex_lock(&s->mutex);
    struct shore_event event = {s, s->called};
    pthread_mutex_unlock(&s->mutex);
    return event;
}

/* Who only looks (timeout 0) makes nothing run; of a lost device every timeout is over at once. */
static int away_reach(struct shore_event event, uint64_t timeout_ns) {
    struct shore__stream *s = event.stream;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)((timeout_ns + (uint64_t)until.tv_nsec) / 1000000000);
    until.tv_nsec = (long)((timeout_ns + (uint64_t)until.tv_nsec) % 1000000000);
    pthread_mutex_lock(&s->mutex);
    if (timeout_ns && s->wanted < event.position) s->wanted = event.position;
    pthread_cond_broadcast(&s->changed);
    int late = timeout_ns && !s->owner->lost ? 0 : ETIMEDOUT;
    while (s->done < event.position && !late)
        late = pthread_cond_timedwait(&s->changed, &s->mutex, &until);
    int rc = s->done < event.position ? -ETIMEDOUT : s->failed;
    pthread_mutex_unlock(&s->mutex);
    return rc;
}

static int away_wait(void *ctx, struct shore_event event, uint64_t timeout_ns, struct shore_diag *diag) {
    struct away *a = ctx;
    int rc = away_reach(event, 0);
    if (rc == -ETIMEDOUT && timeout_ns) {
        away_moments += a->stood_at != a->ncalls;
        a->stood_at = a->ncalls;
        rc = away_reach(event, timeout_ns);
    }
    return rc ? shore__fail(diag, rc, "a call on a stream failed: %s", shore_error_text(rc)) : 0;
}

static int away_run_follow(struct away *a, void *args) {
    struct shore_event event;
    memcpy(&event, args, sizeof event);
    int rc = -ETIMEDOUT;
    while (rc == -ETIMEDOUT && !a->lost)
        rc = away_reach(event, 100000000);
    return rc;
}
static int away_follow(void *ctx, void *stream, struct shore_event event) {
    return away_call(stream, away_run_follow, false, &event, sizeof event);
}

/* ---- transfers ---- */

struct away_transfer {
    void *dst;
    const void *src;
    size_t bytes;
    float value;
};
static int away_run_put(struct away *a, void *args) {
    const struct away_transfer *t = args;
    if (!away_holds(a, SHORE_PLACE_DEVICE, t->dst) || !away_holds(a, SHORE_PLACE_PINNED, t->src)) return -EFAULT;
    memcpy(t->dst, t->src, t->bytes);
    return 0;
}
static int away_put(void *ctx, void *stream, uint64_t to, const void *from, size_t bytes) {
    const struct away_transfer t = {(void *)(uintptr_t)to, from, bytes, 0};
    return away_call(stream, away_run_put, true, &t, sizeof t);
}
static int away_run_get(struct away *a, void *args) {
    const struct away_transfer *t = args;
    if (!away_holds(a, SHORE_PLACE_PINNED, t->dst) || !away_holds(a, SHORE_PLACE_DEVICE, t->src)) return -EFAULT;
    memcpy(t->dst, t->src, t->bytes);
    return 0;
}
static int away_get(void *ctx, void *stream, void *to, uint64_t from, size_t bytes) {
    const struct away_transfer t = {to, (const void *)(uintptr_t)from, bytes, 0};
    return away_call(stream, away_run_get, true, &t, sizeof t);
}

static int away_run_widen_put(struct away *a, void *args) {
    const struct away_transfer *t = args;
    if (!away_holds(a, SHORE_PLACE_DEVICE, t->dst) || !away_holds(a, SHORE_PLACE_DEVICE, t->src)) return -EFAULT;
    return a->reference->device.widen(a->reference->device.ctx, NULL, (uintptr_t)t->dst, (uintptr_t)t->src,
                                      t->bytes / 2);
}
static int away_widen_put(void *ctx, void *stream, uint64_t to, uint64_t from, size_t elems) {
    const struct away_transfer t = {(void *)(uintptr_t)to, (const void *)(uintptr_t)from, elems * 2, 0};
    return away_call(stream, away_run_widen_put, true, &t, sizeof t);
}

/* ---- operations: the reference's, called later ---- */

/* Tensors must lie in the device's memory. */
static bool away_check_buf(const struct away *a, shore__buf b) {
    return shore__buf_is_none(b) || away_holds(a, SHORE_PLACE_DEVICE, (const void *)b.handle);
}
static bool away_check_attention(const struct away *a, const struct shore__attention *described) {
    return away_check_buf(a, described->sinks);
}
static bool away_check_routing(const struct away *a, const struct shore__routing *described) {
    return true;
}
#define AWAY_FIELD(type, name) type name;
#define AWAY_PARAM(type, name) , type name
#define AWAY_PACK(type, name) name,
#define AWAY_PASS(type, name) , x->name
#define AWAY_IS_HERE(type, name) \
    if (!away_check_buf(a, _Generic(x->name, shore__buf : x->name, default : SHORE__NO_BUF))) return -EFAULT;

#define AWAY_1(m, a) m a
#define AWAY_2(m, a, ...) m a AWAY_1(m, __VA_ARGS__)
#define AWAY_3(m, a, ...) m a AWAY_2(m, __VA_ARGS__)
#define AWAY_4(m, a, ...) m a AWAY_3(m, __VA_ARGS__)
#define AWAY_5(m, a, ...) m a AWAY_4(m, __VA_ARGS__)
#define AWAY_6(m, a, ...) m a AWAY_5(m, __VA_ARGS__)
#define AWAY_7(m, a, ...) m a AWAY_6(m, __VA_ARGS__)
#define AWAY_8(m, a, ...) m a AWAY_7(m, __VA_ARGS__)
#define AWAY_9(m, a, ...) m a AWAY_8(m, __VA_ARGS__)
#define AWAY_10(m, a, ...) m a AWAY_9(m, __VA_ARGS__)
#define AWAY_11(m, a, ...) m a AWAY_10(m, __VA_ARGS__)
#define AWAY_PICK(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, each, ...) each
#define AWAY_EACH(m, ...)                                                                                            \
    AWAY_PICK(__VA_ARGS__, AWAY_11, AWAY_10, AWAY_9, AWAY_8, AWAY_7, AWAY_6, AWAY_5, AWAY_4, AWAY_3, AWAY_2, AWAY_1) \
    (m, __VA_ARGS__)

/* Op(name, (type, argument)...) */
#define AWAY_OP(name, ...)                                                                                         \
    struct away_##name##_args {                                                                                    \
        AWAY_EACH(AWAY_FIELD, __VA_ARGS__)                                                                         \
    };                                                                                                             \
    static int away_run_##name(struct away *a, void *args) {                                                       \
        const struct away_##name##_args *x = args;                                                                 \
        AWAY_EACH(AWAY_IS_HERE, __VA_ARGS__)                                                                       \
        return a->reference->ops->name(a->reference, NULL AWAY_EACH(AWAY_PASS, __VA_ARGS__));                      \
    }                                                                                                              \
    static int away_##name(struct shore__compute *c, struct shore__stream *s AWAY_EACH(AWAY_PARAM, __VA_ARGS__)) { \
        const struct away_##name##_args x = {AWAY_EACH(AWAY_PACK, __VA_ARGS__)};                                   \
        return away_call(s, away_run_##name, true, &x, sizeof x);                                                  \
    }
/* The same with a description behind them, which does not outlive the call. */
#define AWAY_DESCRIBED(described, name, ...)                                                                     \
    struct away_##name##_args {                                                                                  \
        AWAY_EACH(AWAY_FIELD, __VA_ARGS__)                                                                       \
        struct shore__##described described;                                                                     \
    };                                                                                                           \
    static int away_run_##name(struct away *a, void *args) {                                                     \
        const struct away_##name##_args *x = args;                                                               \
        AWAY_EACH(AWAY_IS_HERE, __VA_ARGS__)                                                                     \
        if (!away_check_##described(a, &x->described)) return -EFAULT;                                           \
        return a->reference->ops->name(a->reference, NULL AWAY_EACH(AWAY_PASS, __VA_ARGS__), &x->described);     \
    }                                                                                                            \
    static int away_##name(struct shore__compute *c, struct shore__stream *s AWAY_EACH(AWAY_PARAM, __VA_ARGS__), \
                           const struct shore__##described *described) {                                         \
        const struct away_##name##_args x = {AWAY_EACH(AWAY_PACK, __VA_ARGS__) * described};                     \
        return away_call(s, away_run_##name, true, &x, sizeof x);                                                \
    }
#define AWAY_ATTENTION(...) AWAY_DESCRIBED(attention, __VA_ARGS__)
#define AWAY_ROUTING(...) AWAY_DESCRIBED(routing, __VA_ARGS__)
#define B(name) (shore__buf, name)
#define N(name) (size_t, name)
#define Y(name) (bool, name)
#define K(name) (enum shore__norm_kind, name)

AWAY_OP(fill, B(dst), (float, value), N(n))
AWAY_OP(zero, B(dst), N(bytes))
AWAY_OP(copy, B(dst), B(src), N(bytes))
AWAY_OP(widen, B(dst), B(src), N(n))
AWAY_OP(store, B(dst), B(src), N(n))
AWAY_OP(load, B(dst), B(src), N(n))
AWAY_OP(linear, B(y), B(x_), B(w), B(bias), N(rows), N(n), N(k), Y(w_is_nk))
AWAY_OP(linear_backward_x, B(dx), B(dy), B(w), N(rows), N(n), N(k), Y(w_is_nk))
AWAY_OP(linear_backward_w, B(dw), B(dy), B(x_), N(rows), N(n), N(k), Y(w_is_nk), Y(add))
AWAY_OP(bias_backward, B(db), B(dy), N(rows), N(n))
AWAY_OP(head_logits, B(logits), B(x_), B(w), (float, cap), N(rows), N(n), N(d))
AWAY_OP(head_merge, B(max), B(sum), B(target_logit), B(logits), B(targets), N(rows), N(n), N(first))
AWAY_OP(head_loss, B(loss), B(max), B(sum), B(target_logit), B(targets), N(rows))
AWAY_OP(head_dlogits, B(dlogits), B(logits), B(max), B(sum), B(targets), (float, scale), (float, cap), N(rows), N(n),
        N(first))
AWAY_OP(head_backward_x, B(dx), B(dlogits), B(w), N(rows), N(n), N(d))
AWAY_OP(head_backward_w, B(dw), B(dlogits), B(x_), N(rows), N(n), N(d), Y(add))
AWAY_OP(round, B(act), B(src), N(n))
AWAY_OP(embed, B(x_), B(table), B(tokens), N(rows), N(d), N(first), N(n))
AWAY_OP(embed_backward, B(dtable), B(dx), B(tokens), N(rows), N(d), N(first), N(n))
AWAY_OP(position, B(x_), B(table), N(rows), N(d), N(seq_len), N(first_position))
AWAY_OP(position_backward, B(dtable), B(dx), N(rows), N(d), N(seq_len))
AWAY_OP(norm, B(y), B(stats), B(x_), B(gain), B(bias), (float, eps), K(kind), N(rows), N(d))
AWAY_OP(norm_backward, B(dx), B(dgain), B(dbias), B(dy), B(dx_add), B(x_), B(gain), B(stats), K(kind), N(rows), N(d))
AWAY_ATTENTION(head_norm, B(y), B(stats), B(x_), B(gain), (float, eps), K(kind), Y(whole))
AWAY_ATTENTION(head_norm_backward, B(dx), B(dgain), B(dy), B(x_), B(gain), B(stats), K(kind), Y(whole))
AWAY_OP(scale, B(x_), (float, factor), N(n))
AWAY_OP(columns_take, B(y), B(x_), N(rows), N(width), N(first), N(n))
AWAY_OP(columns_add, B(x_), B(y), N(rows), N(width), N(first), N(n))
AWAY_OP(add, B(y), B(x1), B(x2), N(n))
AWAY_OP(act, B(y), B(x_), (enum shore__act_fn, f), Y(gated), N(rows), N(width))
AWAY_OP(act_backward, B(dx), B(dy), B(x_), (enum shore__act_fn, f), Y(gated), N(rows), N(width))
AWAY_ATTENTION(attention, B(out), B(lse), B(qkv))
AWAY_ATTENTION(attention_backward, B(dqkv), B(dout), B(qkv), B(out), B(lse))
AWAY_ATTENTION(sink_backward, B(dsinks), B(dout), B(out), B(lse))
AWAY_ATTENTION(attention_cached, B(out), B(lse), B(qkv), B(keys), B(values), N(rows), N(first), N(capacity))
AWAY_ROUTING(route, B(route), B(logits), N(rows))
AWAY_ROUTING(route_backward, B(dlogits), B(dweights), B(logits), B(route), B(balance), N(rows))
AWAY_ROUTING(route_count, B(load), B(logits), B(route), N(rows))
AWAY_ROUTING(experts_gather, B(y), B(x_), B(route), N(rows), N(d))
AWAY_ROUTING(experts_scatter, B(y), B(x_), B(route), N(rows), N(d), Y(weighted), Y(add))
AWAY_ROUTING(experts_weigh_bias, B(dweights), B(dy), B(bias), B(route), N(rows), N(n))
AWAY_ROUTING(experts_weigh, B(dweights), B(dact), B(act), B(route), N(rows), N(width))
AWAY_ROUTING(experts_linear, B(y), B(x_), B(w), B(bias), B(route), N(rows), N(n), N(k), Y(w_is_nk))
AWAY_ROUTING(experts_linear_backward_x, B(dx), B(dy), B(w), B(route), N(rows), N(n), N(k), Y(w_is_nk))
AWAY_ROUTING(experts_linear_backward_w, B(dw), B(dy), B(x_), B(route), N(rows), N(n), N(k), Y(w_is_nk), Y(add))
AWAY_ROUTING(experts_bias_backward, B(db), B(dy), B(route), N(rows), N(n))

struct away_rope_args {
    shore__buf qkv, cos_sin;
    struct shore__attention attention;
    size_t first_position;
    bool inverse;
};
static int away_run_rope(struct away *a, void *args) {
    const struct away_rope_args *x = args;
    if (!away_check_buf(a, x->qkv) || !away_check_buf(a, x->cos_sin)) return -EFAULT;
    return a->reference->ops->rope(a->reference, NULL, x->qkv, x->cos_sin, &x->attention, x->first_position,
                                   x->inverse);
}
static int away_rope(struct shore__compute *c, struct shore__stream *s, shore__buf qkv, shore__buf cos_sin,
                     const struct shore__attention *attention, size_t first_position, bool inverse) {
    const struct away_rope_args x = {qkv, cos_sin, *attention, first_position, inverse};
    return away_call(s, away_run_rope, true, &x, sizeof x);
}
#undef B
#undef N
#undef Y
#undef K

/* ---- the backend ---- */

static int away_make(struct shore__compute *c, const struct shore__shapes *shapes, shore__buf workspace, size_t bytes,
                     struct shore_diag *diag) {
    return 0;
}
static void away_weights_changed(struct shore__compute *c) {}

static void away_close(struct shore__compute *c) {
    struct away *a = (struct away *)c;
    for (int i = 0; i < AWAY_SPANS; i++)
        if (a->spans[i]) abort(); /* memory that was not given back */
    a->reference->ops->close(a->reference);
    for (struct shore__stream *s = a->closed, *next; s; s = next) {
        next = s->next;
        pthread_mutex_destroy(&s->mutex);
        pthread_cond_destroy(&s->changed);
        free(s);
    }
    pthread_mutex_destroy(&a->touching);
    away_calls = a->ncalls;
    free(a);
}

#define AWAY_AT(name) .name = away_##name
static const struct shore_device away_device = {.size = sizeof away_device,
                                                AWAY_AT(record),
                                                AWAY_AT(wait),
                                                AWAY_AT(follow),
                                                AWAY_AT(put),
                                                AWAY_AT(get),
                                                .widen = away_widen_put};
static const struct shore__compute_ops away_ops = {
    AWAY_AT(make),
    AWAY_AT(weights_changed),
    AWAY_AT(alloc),
    AWAY_AT(free),
    AWAY_AT(stream_open),
    AWAY_AT(stream_close),
    AWAY_AT(fill),
    AWAY_AT(zero),
    AWAY_AT(copy),
    AWAY_AT(widen),
    AWAY_AT(store),
    AWAY_AT(load),
    AWAY_AT(linear),
    AWAY_AT(linear_backward_x),
    AWAY_AT(linear_backward_w),
    AWAY_AT(bias_backward),
    AWAY_AT(head_logits),
    AWAY_AT(head_merge),
    AWAY_AT(head_loss),
    AWAY_AT(head_dlogits),
    AWAY_AT(head_backward_x),
    AWAY_AT(head_backward_w),
    AWAY_AT(round),
    AWAY_AT(embed),
    AWAY_AT(embed_backward),
    AWAY_AT(position),
    AWAY_AT(position_backward),
    AWAY_AT(norm),
    AWAY_AT(norm_backward),
    AWAY_AT(head_norm),
    AWAY_AT(head_norm_backward),
    AWAY_AT(scale),
    AWAY_AT(columns_take),
    AWAY_AT(columns_add),
    AWAY_AT(add),
    AWAY_AT(act),
    AWAY_AT(act_backward),
    AWAY_AT(rope),
    AWAY_AT(route),
    AWAY_AT(route_backward),
    AWAY_AT(route_count),
    AWAY_AT(experts_gather),
    AWAY_AT(experts_scatter),
    AWAY_AT(experts_weigh_bias),
    AWAY_AT(experts_weigh),
    AWAY_AT(experts_linear),
    AWAY_AT(experts_linear_backward_x),
    AWAY_AT(experts_linear_backward_w),
    AWAY_AT(experts_bias_backward),
    AWAY_AT(attention),
    AWAY_AT(attention_backward),
    AWAY_AT(sink_backward),
    AWAY_AT(attention_cached),
    AWAY_AT(close),
};

static int away_describe(const struct shore__compute_options *o, const struct shore__shapes *shapes,
                         struct shore__compute_description *out, struct shore_diag *diag) {
    int rc = shore__compute_reference.describe(o, shapes, out, diag);
    out->one_memory = false;
    return rc;
}

static int away_open(const struct shore__compute_options *o, struct shore__compute **out, struct shore_diag *diag) {
    struct away *a = calloc(1, sizeof *a);
    if (!a) abort();
    int rc = shore__compute_reference.open(o, &a->reference, diag);
    if (rc) {
        free(a);
        return rc;
    }
    a->base = (struct shore__compute){&away_ops, a->reference->mode, a->reference->threads, false, away_device};
    a->base.device.ctx = a;
    a->seed = away_seed;
    pthread_mutex_init(&a->touching, NULL);
    *out = &a->base;
    return 0;
}

static const struct shore__compute_backend away_backend = {"away", away_describe, away_open};

#endif
