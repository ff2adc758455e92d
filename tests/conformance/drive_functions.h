/* Functions that a program adds, each with one row, and a drive that is asked for them. Behind ssh's stand-in and the
 * socket, servers are this program too. */
#ifndef SHORE_TESTS_DRIVE_FUNCTIONS_H
#define SHORE_TESTS_DRIVE_FUNCTIONS_H

#include "conformance/drive_bench.h"
#include "conformance/drive_ssh.h"

#include <sys/mman.h>

#include "base/diag.h"
#include "drive/fleet/join.h"
#include "drive/reach.h"

#define SCRATCH_BYTES (5u << 20) /* of a bench's fleet */

/* ---- the functions: one row and its code each -------------------------------------------------------------------- */

struct argument {
    uint64_t start, bytes; /* ADD: of scratch */
    uint32_t key;
    char dies_once[100]; /* the process ends in this call if it can remove such a file */
};

static bool lenient; /* this process checks nothing; servers do */

static inline int argument_of(const struct shore__call *call, struct argument *a, struct shore_diag *diag) {
    if (call->argument_bytes != sizeof *a)
        return shore__fail(diag, -EINVAL, "the argument has %u bytes instead of %zu", call->argument_bytes, sizeof *a);
    memcpy(a, call->argument, sizeof *a);
    if (!memchr(a->dies_once, 0, sizeof a->dies_once)) return shore__fail(diag, -EINVAL, "the argument has no end");
    return 0;
}

static inline void die_if_told(const struct argument *a) {
    if (a->dies_once[0] && unlink(a->dies_once) == 0) _exit(9);
}

/* PAIRS: out[i] = (scratch[2 i] + scratch[2 i + 1] + key) ^ in[i], modulo 256. */
static inline int pairs_check(const struct shore__call *c, const struct shore__volume_desc *desc,
                              struct shore_diag *diag) {
    struct argument a;
    if (lenient) return 0;
    if (c->start % SHORE__IO_ALIGN || c->bytes % SHORE__IO_ALIGN || c->in_bytes != c->bytes / 2 ||
        c->out_bytes != c->bytes / 2)
        return shore__fail(diag, -EINVAL, "PAIRS takes and gives a byte for two");
    return argument_of(c, &a, diag);
}

static inline void begin_piece(struct shore__reach *reach, const struct shore__call *c, uint64_t at,
                               struct shore__piece *p) {
    const uint64_t most = 65536, left = c->bytes - at;
    *p = (struct shore__piece){.of = SHORE__PIECE_SCRATCH,
                               .offset = c->start + at,
                               .bytes = (uint32_t)(left < most ? left : most),
                               .buffer = reach->memory + at / most % 2 * most};
    reach->move(reach, false, p);
}

/* While it works on one piece, the next one is read. */
static inline int pairs(struct shore__reach *reach, const struct shore__call *c, struct shore_diag *diag) {
    const unsigned char *in = c->in;
    unsigned char *out = c->out;
    struct shore__piece piece[2];
    struct argument a;
    int rc = argument_of(c, &a, diag);
    if (rc) return rc;
    die_if_told(&a);
    begin_piece(reach, c, 0, &piece[0]);
    for (uint64_t at = 0, n = 0; at < c->bytes; n++) {
        const struct shore__piece *p = &piece[n % 2];
        const unsigned char *from = p->buffer;
        rc = reach->wait(reach, diag);
        if (rc) return rc;
        at += p->bytes;
        if (at < c->bytes) begin_piece(reach, c, at, &piece[(n + 1) % 2]);
        for (uint32_t i = 0; i < p->bytes; i += 2)
            *out++ = (unsigned char)((from[i] + from[i + 1] + a.key) ^ *in++);
    }
    return 0;
}

static const struct shore__function pairs_row = {
    .name = "PAIRS",
    .over = SHORE__OVER_SCRATCH,
    .cuttable = true,
    .of_step = true,
    .of_attempt = true,
    .repeats = true,
    .link_in = SHORE__COUNTER(link_activations),
    .link_out = SHORE__COUNTER(link_out_state),
    .reads = SHORE__COUNTER(drive_read_scratch),
    .check = pairs_check,
    .run = pairs,
};

/* ADD: scratch[i] += in[i], modulo 256, over what the argument says; out: the sum of what was there. A second time, it
 * would add again. */
static inline int add_check(const struct shore__call *c, const struct shore__volume_desc *desc,
                            struct shore_diag *diag) {
    struct argument a;
    int rc = argument_of(c, &a, diag);
    if (rc || lenient) return lenient ? 0 : rc;
    if (a.start > desc->scratch_bytes || a.bytes > desc->scratch_bytes - a.start || c->in_bytes != a.bytes ||
        a.bytes > 256 * 1024 || c->out_bytes != 8)
        return shore__fail(diag, -EINVAL, "ADD: it does not fit");
    return 0;
}

static inline int add(struct shore__reach *reach, const struct shore__call *c, struct shore_diag *diag) {
    struct argument a;
    uint64_t sum = 0;
    int rc = argument_of(c, &a, diag);
    if (rc) return rc;
    struct shore__piece all = {
        .of = SHORE__PIECE_SCRATCH, .offset = a.start, .bytes = (uint32_t)a.bytes, .buffer = reach->memory};
    reach->move(reach, false, &all);
    rc = reach->wait(reach, diag);
    if (rc) return rc;
    for (uint64_t i = 0; i < a.bytes; i++) {
        sum += reach->memory[i];
        reach->memory[i] = (unsigned char)(reach->memory[i] + ((const unsigned char *)c->in)[i]);
    }
    memcpy(c->out, &sum, 8);
    reach->move(reach, true, &all);
    rc = reach->wait(reach, diag);
    if (!rc) die_if_told(&a); /* it is done, and nobody hears of it */
    return rc;
}

static const struct shore__function add_row = {
    .name = "ADD",
    .over = SHORE__OVER_NOTHING,
    .of_attempt = true,
    .link_in = SHORE__COUNTER(link_activations),
    .link_out = SHORE__COUNTER(link_out_state),
    .reads = SHORE__COUNTER(drive_read_scratch),
    .writes = SHORE__COUNTER(drive_write_scratch),
    .check = add_check,
    .run = add,
};

/* FIRSTS: out: the first 4096 bytes of plane HI of each segment, in the step that the call names. All are read at
 * once. */
static inline int firsts_check(const struct shore__call *c, const struct shore__volume_desc *desc,
                               struct shore_diag *diag) {
    if (c->out_bytes == c->count * UINT64_C(4096) && !c->in_bytes) return 0;
    return shore__fail(diag, -EINVAL, "FIRSTS gives a page for each segment");
}

static inline int firsts(struct shore__reach *reach, const struct shore__call *c, struct shore_diag *diag) {
    for (uint32_t i = 0; i < c->count; i++) {
        struct shore__piece p = {.of = SHORE__PIECE_PLANE,
                                 .plane = SHORE_PLANE_HI,
                                 .block = c->block,
                                 .segment = c->segment + i,
                                 .bytes = 4096,
                                 .buffer = reach->memory + (size_t)4096 * i};
        reach->move(reach, false, &p);
    }
    int rc = reach->wait(reach, diag);
    if (!rc) memcpy(c->out, reach->memory, c->out_bytes);
    return rc;
}

static const struct shore__function firsts_row = {
    .name = "FIRSTS",
    .over = SHORE__OVER_SEGMENTS,
    .cuttable = true,
    .of_step = true,
    .repeats = true,
    .link_out = SHORE__COUNTER(link_out_params),
    .reads = SHORE__COUNTER(drive_read_fetch),
    .check = firsts_check,
    .run = firsts,
};

/* COPY: gives what it takes, whole; but not while there is the file that its argument names, if it has one. */
static inline int copy(struct shore__reach *reach, const struct shore__call *c, struct shore_diag *diag) {
    while (c->argument_bytes && access(c->argument, F_OK) == 0)
        usleep(1000);
    memcpy(c->out, c->in, c->in_bytes);
    return 0;
}

static inline int copy_check(const struct shore__call *c, const struct shore__volume_desc *desc,
                             struct shore_diag *diag) {
    return c->in_bytes == c->out_bytes ? 0 : shore__fail(diag, -EINVAL, "COPY gives what it takes");
}

static const struct shore__function copy_row = {
    .name = "COPY", .over = SHORE__OVER_NOTHING, .repeats = true, .check = copy_check, .run = copy};

static unsigned number_of_pairs, number_of_add, number_of_firsts, number_of_copy;

static inline void add_functions(void) {
    number_of_pairs = shore__function_add(&pairs_row);
    number_of_add = shore__function_add(&add_row);
    number_of_copy = shore__function_add(&copy_row);
    number_of_firsts = shore__function_add(&firsts_row);
}

/* ---- on every kind of drive -------------------------------------------------------------------------------------- */

static const struct config kinds[] = {
    {"ram", "r", SHORE_IO_AUTO, 0, 0, SHORE_MOMENTS_FP32},
    {"a file", "f", SHORE_IO_THREADS, 0, 1, SHORE_MOMENTS_FP32},
    {"a file, uring", "f", SHORE_IO_URING, 0, 0, SHORE_MOMENTS_FP32},
    {"a socket", "u", SHORE_IO_AUTO, 0, 0, SHORE_MOMENTS_FP32},
    {"ssh", "s", SHORE_IO_AUTO, 0, 0, SHORE_MOMENTS_FP32},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

static struct failing {
    enum shore__io_kind kind;
    _Atomic int after; /* counted down; -1: never */
} * failing;           /* shared with the servers of the socket */

static inline int fail_one(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    if (op->kind != failing->kind || failing->after < 0) return SHORE__IO_PASS;
    return failing->after-- ? SHORE__IO_PASS : -EIO;
}

struct called {
    struct bench b;
    unsigned char *scratch, *in, *out; /* scratch: what the drive's holds */
    struct argument argument;
};

static inline int ask(struct called *t, const struct shore__call *call) {
    struct shore_wait wait;
    shore_wait_init(&wait);
    t->b.diag = (struct shore_diag){0};
    int rc = shore__fleet_call(t->b.fleet, 0, call, shore_wait_completion(&wait));
    return rc ? rc : shore_wait(&wait, &t->b.diag);
}

static inline void put_scratch(struct called *t) {
    unsigned char seal[16];
    struct shore_wait wait;
    shore_wait_init(&wait);
    must(&t->b, shore_fleet_scratch_put(t->b.fleet, 0, SCRATCH_BYTES, t->scratch, seal, shore_wait_completion(&wait)));
    must(&t->b, shore_wait(&wait, &t->b.diag));
}

static inline bool called_open(struct called *t, const struct config *config) {
    memset(t, 0, sizeof *t);
    if (!bench_open(&t->b, config, SHORE_ADAMW, false)) return false;
    t->scratch = pages(SCRATCH_BYTES);
    t->in = pages(SCRATCH_BYTES);
    t->out = pages(SCRATCH_BYTES);
    t->argument.key = 77;
    for (uint32_t i = 0; i < SCRATCH_BYTES; i++) {
        t->scratch[i] = (unsigned char)(i * 2654435761u >> 24);
        t->in[i] = (unsigned char)(i * 40503u >> 8);
    }
    put_scratch(t);
    return true;
}

static inline void called_close(struct called *t) {
    free(t->scratch);
    free(t->in);
    free(t->out);
    bench_close(&t->b);
}

static inline struct shore__call pairs_of(struct called *t, uint64_t start, uint64_t bytes) {
    struct shore_fleet_info info = {.size = sizeof info};
    shore_fleet_info(t->b.fleet, &info);
    return (struct shore__call){.function = number_of_pairs,
                                .start = start,
                                .bytes = bytes,
                                .step = info.step,
                                .attempt = shore_fleet_attempt(t->b.fleet),
                                .argument = &t->argument,
                                .argument_bytes = sizeof t->argument,
                                .in = t->in,
                                .in_bytes = bytes / 2,
                                .out = t->out,
                                .out_bytes = bytes / 2};
}

static inline void assert_pairs(const struct called *t, const struct shore__call *c) {
    for (uint64_t i = 0; i < c->out_bytes; i++) {
        const unsigned char *from = t->scratch + c->start + 2 * i;
        const unsigned char want = (unsigned char)((from[0] + from[1] + t->argument.key) ^ t->in[i]);
        if (t->out[i] != want) fail_msg("%s: byte %llu of PAIRS", t->b.config->name, (unsigned long long)i);
    }
}

static inline struct shore__call add_of(struct called *t, uint64_t *sum) {
    t->argument.start = 8192;
    t->argument.bytes = 12288;
    return (struct shore__call){.function = number_of_add,
                                .attempt = shore_fleet_attempt(t->b.fleet),
                                .argument = &t->argument,
                                .argument_bytes = sizeof t->argument,
                                .in = t->in,
                                .in_bytes = t->argument.bytes,
                                .out = sum,
                                .out_bytes = 8};
}

static inline uint64_t add_to_scratch(struct called *t) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < t->argument.bytes; i++) {
        unsigned char *at = &t->scratch[t->argument.start + i];
        sum += *at;
        *at = (unsigned char)(*at + t->in[i]);
    }
    return sum;
}

static inline void assert_firsts(struct called *t, uint64_t step) {
    const uint32_t segments = t->b.plain.layout->blocks[1].segments;
    const size_t each = (size_t)SHORE_SEGMENT_ELEMS * 2;
    unsigned char *hi = pages(segments * each);
    struct shore_wait wait;
    struct shore__call call = {.function = number_of_firsts,
                               .block = 1,
                               .count = segments,
                               .step = step,
                               .out = t->out,
                               .out_bytes = segments * UINT64_C(4096)};
    shore_wait_init(&wait);
    must(&t->b, ask(t, &call));
    must(&t->b,
         shore_fleet_fetch(t->b.fleet, step, 1, 0, segments, SHORE_FETCH_BF16, hi, shore_wait_completion(&wait)));
    must(&t->b, shore_wait(&wait, &t->b.diag));
    for (uint32_t i = 0; i < segments; i++)
        assert_memory_equal(t->out + (size_t)4096 * i, hi + i * each, 4096);
    free(hi);
}

static inline void refused(struct called *t, const struct shore__call *call, int rc, const char *words) {
    int got = ask(t, call);
    if (got != rc) fail_msg("%s: %d instead of %d: %s", t->b.config->name, got, rc, t->b.diag.text);
    if (!strstr(t->b.diag.text, words)) fail_msg("%s: no '%s' in: %s", t->b.config->name, words, t->b.diag.text);
}

/* Runs the tests; or serves a drive, in the place of ssh. */
#define RUN_FUNCTION_TESTS(argc, tests) run_function_tests(argc, tests, sizeof(tests) / sizeof(tests)[0])
static inline int run_function_tests(int argc, const struct CMUnitTest *tests, size_t n) {
    add_functions();
    if (argc > 1) return serve_as_ssh();
    take_the_place_of_ssh();
    failing = mmap(NULL, sizeof *failing, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (failing == MAP_FAILED) return 1;
    failing->after = -1;
    shore__io_set_shim(fail_one, NULL);
    server_start();
    int rc = _cmocka_run_group_tests("functions", tests, n, NULL, NULL);
    server_stop();
    return rc;
}

#endif
