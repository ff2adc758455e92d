/* What the compute tests share: backends in every mode, random tensors, comparison. */
#ifndef TESTS_COMPUTE_CASES_H
#define TESTS_COMPUTE_CASES_H

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/prng.h"
#include "compute/compute.h"
#include "number/bf16.h"

#define UNUSED __attribute__((unused))
/* Of a backend that computes in the host's memory. */
UNUSED static shore__buf host_buf(void *p) {
    return (shore__buf){(uintptr_t)p};
}
/* What a run may be given as precision and products; the mode follows from that and from the processor. */
static const struct {
    bool bf16;
    enum shore__products products;
    const char *name;
} arithmetics[] = {{false, SHORE__PRODUCTS_F32, "fp32"},
                   {true, SHORE__PRODUCTS_BF16, "bf16, products in bf16"},
                   {true, SHORE__PRODUCTS_F32, "bf16, products in fp32"}};
enum { ARITHMETICS = sizeof arithmetics / sizeof *arithmetics };
static size_t tested; /* of these */
static const char *tested_device = "cpu";

UNUSED static bool on_the_processor(void) {
    return strcmp(tested_device, "cpu") == 0;
}

static struct shore__compute_options tested_options(int threads) {
    return (struct shore__compute_options){.device = tested_device,
                                           .fp32 = !arithmetics[tested].bf16,
                                           .products = arithmetics[tested].products,
                                           .threads = threads};
}
UNUSED static enum shore__mode mode_tested(void) {
    struct shore__compute_options options = tested_options(1);
    struct shore__compute_description d;
    /* or not on this processor, as open_tested() finds */
    return shore__compute_describe(&options, NULL, &d, NULL) ? SHORE__BF16 : d.mode;
}

/* All tensors that there are now. */
enum { TENSORS = 128, LENT_MOST = 32 << 20 };
static struct tensor {
    char *base;
    size_t bytes, offset; /* offset: of what is lent */
    bool lent;
} tensors[TENSORS];

/* The tensor that it lies in; of NULL: a place for another. */
UNUSED static struct tensor *tensor_of(shore__buf b) {
    for (size_t i = 0; i < TENSORS; i++) {
        uintptr_t base = (uintptr_t)tensors[i].base;
        if (b.handle ? b.handle >= base && b.handle - base < tensors[i].bytes : !base) return &tensors[i];
    }
    fail_msg("no such tensor, or more than %d", TENSORS);
    return NULL;
}

/* stream: of one whose memory is not the host's; then what tensors are lent to, and how much of it is lent. */
struct backend {
    struct shore__compute *c;
    void *workspace;
    struct shore__stream *stream;
    struct shore__span device, pinned;
    size_t lent_bytes;
};

UNUSED static struct backend open_tested(enum shore__mode mode, int threads, const struct shore__shapes *shapes) {
    struct backend b = {0};
    struct shore_diag diag = {0};
    if (mode == SHORE__F32) tested = 0;
    struct shore__compute_options options = tested_options(threads);
    struct shore__compute_description d;
    int err = shore__compute_open(&options, &b.c, &diag);
    if (on_the_processor() && arithmetics[tested].products == SHORE__PRODUCTS_BF16 && !shore__can_multiply_bf16()) {
        assert_int_equal(err, -ENOTSUP);
        return b;
    }
    assert_int_equal(err, 0);
    assert_int_equal(b.c->mode, mode);
    err = shore__compute_describe(&options, shapes, &d, &diag);
    if (err) fail_msg("describe: %s", diag.text);
    if (!b.c->one_memory) {
        assert_int_equal(b.c->ops->alloc(b.c, SHORE_PLACE_DEVICE, LENT_MOST + d.workspace_bytes, &b.device, NULL), 0);
        assert_int_equal(b.c->ops->alloc(b.c, SHORE_PLACE_PINNED, LENT_MOST, &b.pinned, NULL), 0);
        assert_int_equal(b.c->ops->stream_open(b.c, &b.stream, NULL), 0);
        err = b.c->ops->make(b.c, shapes, shore__at(b.device.device, LENT_MOST), d.workspace_bytes, &diag);
        if (err) fail_msg("make: %s", diag.text);
        return b;
    }
    b.workspace = aligned_alloc(4096, d.workspace_bytes ? d.workspace_bytes : 4096);
    err = b.c->ops->make(b.c, shapes, host_buf(b.workspace), d.workspace_bytes, &diag);
    if (err) fail_msg("make: %s", diag.text);
    return b;
}
UNUSED static struct backend open_reference(enum shore__mode mode) {
    struct backend b = {0};
    const struct shore__compute_options options = {
        .device = "reference",
        .fp32 = mode == SHORE__F32,
        .products = mode == SHORE__BF16 ? SHORE__PRODUCTS_BF16 : SHORE__PRODUCTS_F32,
    };
    assert_int_equal(shore__compute_open(&options, &b.c, NULL), 0);
    assert_int_equal(b.c->mode, mode);
    return b;
}
UNUSED static void close_backend(struct backend *b) {
    if (b->stream) {
        b->c->ops->stream_close(b->c, b->stream);
        b->c->ops->free(b->c, &b->device), b->c->ops->free(b->c, &b->pinned);
    }
    if (b->c) b->c->ops->close(b->c);
    free(b->workspace);
}

/* Aligned as an arena's pieces are, plus offset bytes. */
UNUSED static shore__buf room(size_t bytes, size_t offset) {
    struct tensor *t = tensor_of(host_buf(NULL));
    t->bytes = (bytes + offset + 8191) / 4096 * 4096;
    t->base = aligned_alloc(4096, t->bytes);
    memset(t->base, 0xAA, t->bytes);
    return host_buf(t->base + offset);
}
UNUSED static void drop(shore__buf b) {
    struct tensor *t = tensor_of(b);
    free(t->base);
    *t = (struct tensor){0};
}
UNUSED static float *f32(shore__buf b) {
    return (float *)b.handle;
}

UNUSED static shore__buf random_f32(uint64_t seed, size_t n, double scale, double shift) {
    shore__buf b = room(n * 4, 0);
    for (size_t i = 0; i < n; i++)
        f32(b)[i] = (float)(shift + scale * (2 * shore__random_unit(99, seed, i) - 1));
    return b;
}
UNUSED static shore__buf random_act(enum shore__mode mode, uint64_t seed, size_t n, double scale) {
    shore__buf b = random_f32(seed, n, scale, 0);
    if (mode == SHORE__F32) return b;
    for (size_t i = 0; i < n; i++) {
        uint16_t h = shore__f32_to_bf16(f32(b)[i]);
        if (mode == SHORE__BF16)
            ((uint16_t *)b.handle)[i] = h;
        else
            f32(b)[i] = shore__bf16_to_f32(h);
    }
    return b;
}
UNUSED static shore__buf empty_act(enum shore__mode mode, size_t n) {
    return room(n * shore__mode_bytes(mode), 0);
}
UNUSED static shore__buf copy_of(shore__buf b, size_t bytes) {
    shore__buf r = room(bytes, 0);
    memcpy((void *)r.handle, (const void *)b.handle, bytes);
    return r;
}
UNUSED static shore__buf random_ints(uint64_t seed, size_t n, size_t below) {
    shore__buf b = room(n * 4, 0);
    for (size_t i = 0; i < n; i++)
        ((int32_t *)b.handle)[i] = (int32_t)(shore__random_u64(7, seed, i) % below);
    return b;
}
UNUSED static float value(enum shore__mode mode, shore__buf b, size_t i) {
    return mode == SHORE__BF16 ? shore__bf16_to_f32(((uint16_t *)b.handle)[i]) : f32(b)[i];
}

/* |got - want| <= bound * (|want| + size), one rounding to bf16 allowed on top where the mode has one; size is the
 * typical magnitude of what was summed. */
UNUSED static void close_to(const char *what, enum shore__mode mode, shore__buf got, shore__buf want, size_t n,
                            double bound, double size) {
    double ulp = mode == SHORE__F32 ? 0 : 1.0 / 128;
    for (size_t i = 0; i < n; i++) {
        double g = value(mode, got, i), w = value(mode, want, i);
        if (!(fabs(g - w) <= bound * (fabs(w) + size) + ulp * fabs(w)))
            fail_msg("%s (%s): element %zu of %zu is %.9g instead of %.9g", what, arithmetics[tested].name, i, n, g, w);
    }
}
UNUSED static void same_bytes(const char *what, enum shore__mode mode, shore__buf a, shore__buf b, size_t bytes) {
    if (memcmp((void *)a.handle, (void *)b.handle, bytes) == 0) return;
    for (size_t i = 0; i < bytes; i++)
        if (((char *)a.handle)[i] != ((char *)b.handle)[i])
            fail_msg("%s (%s): byte %zu of %zu differs", what, arithmetics[tested].name, i, bytes);
}

#define FOR_EACH_MODE(mode)                          \
    for (tested = 0; tested < ARITHMETICS; tested++) \
        for (enum shore__mode mode = mode_tested(), mode_once = 0; !mode_once; mode_once = 1)

#endif
