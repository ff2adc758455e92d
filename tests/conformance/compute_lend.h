/* Operations over tensors of the host, on a backend whose memory is not the host's: what a call is given is lent to the
 * device, and fetched back behind it. So one suite is for all of them. */
#ifndef TESTS_COMPUTE_LEND_H
#define TESTS_COMPUTE_LEND_H

#include "conformance/compute_cases.h"

static shore__buf lend_buf(struct backend *b, shore__buf buf) {
    if (!b->stream || shore__buf_is_none(buf)) return buf;
    struct tensor *t = tensor_of(buf);
    if (!t->lent) {
        t->lent = true;
        t->offset = b->lent_bytes;
        b->lent_bytes += t->bytes;
        assert_true(b->lent_bytes <= b->pinned.bytes);
        memcpy((char *)b->pinned.host + t->offset, t->base, t->bytes);
        assert_int_equal(shore__put(b->c, b->stream, shore__at(b->device.device, t->offset),
                                    (char *)b->pinned.host + t->offset, t->bytes),
                         0);
    }
    return shore__at(b->device.device, t->offset + (buf.handle - (uintptr_t)t->base));
}
/* rc: of the call. What it returned, or what its stream says when it has run. */
static int give_back(struct backend *b, int rc) {
    if (!b->stream) return rc;
    for (size_t i = 0; i < TENSORS; i++)
        if (tensors[i].lent)
            assert_int_equal(shore__get(b->c, b->stream, (char *)b->pinned.host + tensors[i].offset,
                                        shore__at(b->device.device, tensors[i].offset), tensors[i].bytes),
                             0);
    int late = shore__sync(b->c, b->stream, NULL);
    for (size_t i = 0; i < TENSORS; i++) {
        struct tensor *t = &tensors[i];
        if (t->lent && !late) memcpy(t->base, (char *)b->pinned.host + t->offset, t->bytes);
        t->lent = false;
    }
    b->lent_bytes = 0;
    return rc ? rc : late;
}

static int lend_int(struct backend *b, int x) {
    return x;
}
static size_t lend_size(struct backend *b, size_t x) {
    return x;
}
static bool lend_bool(struct backend *b, bool x) {
    return x;
}
static float lend_float(struct backend *b, float x) {
    return x;
}
static const struct shore__attention *lend_attention(struct backend *b, const struct shore__attention *x) {
    static struct shore__attention lent;
    lent = *x;
    lent.sinks = lend_buf(b, x->sinks);
    return &lent;
}
static const struct shore__routing *lend_routing(struct backend *b, const struct shore__routing *x) {
    return x;
}
#define LEND(b, x) \
    , _Generic((x), shore__buf : lend_buf, int : lend_int, size_t : lend_size, bool : lend_bool, \
               float : lend_float, struct shore__attention * : lend_attention, struct shore__routing * : lend_routing)(b, x)
#define LEND_1(b, x) LEND(b, x)
#define LEND_2(b, x, ...) LEND(b, x) LEND_1(b, __VA_ARGS__)
#define LEND_3(b, x, ...) LEND(b, x) LEND_2(b, __VA_ARGS__)
#define LEND_4(b, x, ...) LEND(b, x) LEND_3(b, __VA_ARGS__)
#define LEND_5(b, x, ...) LEND(b, x) LEND_4(b, __VA_ARGS__)
#define LEND_6(b, x, ...) LEND(b, x) LEND_5(b, __VA_ARGS__)
#define LEND_7(b, x, ...) LEND(b, x) LEND_6(b, __VA_ARGS__)
#define LEND_8(b, x, ...) LEND(b, x) LEND_7(b, __VA_ARGS__)
#define LEND_9(b, x, ...) LEND(b, x) LEND_8(b, __VA_ARGS__)
#define LEND_10(b, x, ...) LEND(b, x) LEND_9(b, __VA_ARGS__)
#define LEND_11(b, x, ...) LEND(b, x) LEND_10(b, __VA_ARGS__)
#define LEND_PICK(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, each, ...) each
#define LEND_EACH(b, ...)                                                                                            \
    LEND_PICK(__VA_ARGS__, LEND_11, LEND_10, LEND_9, LEND_8, LEND_7, LEND_6, LEND_5, LEND_4, LEND_3, LEND_2, LEND_1) \
    (b, __VA_ARGS__)

#define ON(b, op, ...) give_back(&(b), (b).c->ops->op((b).c, (b).stream LEND_EACH(&(b), __VA_ARGS__)))

#endif
