/* What the conformance tests of drives share: the ways in which a fleet is tested, and one of them at work. */
#ifndef SHORE_TESTS_DRIVE_BENCH_H
#define SHORE_TESTS_DRIVE_BENCH_H

#include "conformance/drive_harness.h"

#include <errno.h>

#include "near/opencl/opencl_device.h"

struct config {
    const char *name, *kinds;
    enum shore_io io;
    uint32_t chunk;
    uint64_t ring_bytes;
    enum shore_moments moments;
};

static const struct config configs[] = {
    {"ram", "r", SHORE_IO_AUTO, 0, 0, SHORE_MOMENTS_FP32},
    {"uring, chunks of one segment, least ring", "f", SHORE_IO_URING, 1, 1, SHORE_MOMENTS_FP32},
    {"uring, large chunks, two drives", "ff", SHORE_IO_URING, 16, 0, SHORE_MOMENTS_FP32},
    {"threads", "f", SHORE_IO_THREADS, 2, 0, SHORE_MOMENTS_FP32},
    {"five drives", "fffff", SHORE_IO_AUTO, 1, 0, SHORE_MOMENTS_FP32},
    {"memory and drives", "frf", SHORE_IO_AUTO, 3, 0, SHORE_MOMENTS_FP32},
    {"8-bit moments, uring, two drives", "ff", SHORE_IO_URING, 3, 0, SHORE_MOMENTS_8BIT},
    {"remote", "u", SHORE_IO_AUTO, 0, 0, SHORE_MOMENTS_FP32},
#if !defined(__SANITIZE_THREAD__) /* the same threads as above, with other numbers */
    {"two in ram", "rr", SHORE_IO_AUTO, 0, 0, SHORE_MOMENTS_FP32},
    {"uring", "f", SHORE_IO_URING, 0, 0, SHORE_MOMENTS_FP32},
    {"page cache", "f", SHORE_IO_BUFFERED, 0, 0, SHORE_MOMENTS_FP32},
    {"8-bit moments, in memory", "r", SHORE_IO_AUTO, 1, 0, SHORE_MOMENTS_8BIT},
    {"8-bit moments, a drive and a remote one", "fu", SHORE_IO_THREADS, 2, 0, SHORE_MOMENTS_8BIT},
#endif
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) /* the device's compiler is not ours to check */
    {"opencl, least ring", "o", SHORE_IO_AUTO, 1, 1, SHORE_MOMENTS_FP32},
    {"8-bit moments, two opencl and a drive", "ofo", SHORE_IO_AUTO, 2, 0, SHORE_MOMENTS_8BIT},
#endif
};
#define NCONFIGS (sizeof configs / sizeof configs[0])

static inline struct shore_fleet_options options_of(const struct config *c, const struct place *place,
                                                    const struct plain *p) {
    return (struct shore_fleet_options){
        .size = sizeof(struct shore_fleet_options),
        .drives = place->paths,
        .ndrives = place->ndrives,
        .optimizer = p->optimizer,
        .with_momentum = p->momentum,
        .moments = c->moments,
        .chunk_segments = c->chunk,
        .ring_bytes = c->ring_bytes,
        .io = c->io,
        .spill = true,
        .scratch_bytes = 5 << 20,
    };
}

/* io_uring is refused in some containers, and an OpenCL platform need not be there: then that way cannot be tested, and
 * the others are. CI has one. */
static inline bool refused_here(const struct config *c, int rc) {
    const char *ci = getenv("CI");
    struct shore__opencl_options options;
    struct shore__cl_device device;
    if (rc && strchr(c->kinds, 'o') && !shore__opencl_parse(getenv(SHORE__OPENCL_VARIABLE), &options, NULL))
        return shore__opencl_device(&options, 0, &device, NULL) && (!ci || strcmp(ci, "true") != 0);
    return rc && c->io == SHORE_IO_URING && rc != SHORE_EEXISTS;
}

/* Elements that cross the host link: all but what is behind the last tensor of each block. */
static inline uint64_t crossing_elems(const struct shore_layout *layout) {
    uint64_t elems = 0;
    for (uint32_t i = 0; i < layout->nblocks; i++)
        elems += layout->blocks[i].elems;
    return elems;
}

struct bench {
    const struct config *config;
    struct place place;
    struct plain plain;
    struct shore_fleet_options options;
    struct shore_fleet *fleet;
    struct shore_diag diag;
};

static inline bool bench_open(struct bench *b, const struct config *config, enum shore_optimizer optimizer,
                              bool momentum) {
    memset(b, 0, sizeof *b);
    b->config = config;
    place_open(&b->place, config->kinds);
    plain_open(&b->plain, optimizer, momentum);
    if (config->moments == SHORE_MOMENTS_8BIT) plain_use_8bit(&b->plain);
    b->options = options_of(config, &b->place, &b->plain);
    int rc = shore_fleet_create(b->plain.layout, &b->options, &b->fleet, &b->diag);
    if (refused_here(config, rc)) {
        print_message("%s: not here: %s\n", config->name, b->diag.text);
        plain_close(&b->plain);
        place_close(&b->place);
        return false;
    }
    if (rc) fail_msg("%s: %s", config->name, b->diag.text);
    if (fleet_init(b->fleet, &b->plain, &b->diag)) fail_msg("%s: %s", config->name, b->diag.text);
    return true;
}

static inline void bench_close(struct bench *b) {
    shore_fleet_close(b->fleet);
    plain_close(&b->plain);
    place_close(&b->place);
}

static inline void must(struct bench *b, int rc) {
    if (rc) fail_msg("%s: %d: %s", b->config->name, rc, b->diag.text);
}

static inline void step(struct bench *b) {
    must(b, fleet_step(b->fleet, &b->plain, b->plain.step, &b->diag));
    plain_step(&b->plain, 1);
}

static inline bool is_durable(const struct config *c) {
    return !strchr(c->kinds, 'r') && !strchr(c->kinds, 'n');
}

static inline void reopen(struct bench *b) {
    shore_fleet_close(b->fleet);
    b->fleet = NULL;
    b->options.hint_step = b->plain.step;
    must(b, shore_fleet_open(b->plain.layout, &b->options, &b->fleet, &b->diag));
}

#endif
