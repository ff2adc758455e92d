/* Functions that this program adds, each with one row: they give the same on every kind of drive, whole or cut, with
 * I/O that fails and links that are lost. Behind ssh's stand-in and the socket, servers are this program too. */
#include "conformance/drive_bench.h"

#include <sys/mman.h>
#include <time.h>

#include "base/diag.h"
#include "drive/fleet/join.h"
#include "drive/reach.h"
#include "drive/serve/serve.h"

#define SCRATCH_BYTES (5u << 20) /* of a bench's fleet */

/* ---- the functions: one row and its code each -------------------------------------------------------------------- */

struct argument {
    uint64_t start, bytes; /* ADD: of scratch */
    uint32_t key;
    char dies_once[100]; /* the process ends in this call if it can remove such a file */
};

static bool lenient; /* this process checks nothing; servers do */

static int argument_of(const struct shore__call *call, struct argument *a, struct shore_diag *diag) {
    if (call->argument_bytes != sizeof *a)
        return shore__fail(diag, -EINVAL, "the argument has %u bytes instead of %zu", call->argument_bytes, sizeof *a);
    memcpy(a, call->argument, sizeof *a);
    if (!memchr(a->dies_once, 0, sizeof a->dies_once)) return shore__fail(diag, -EINVAL, "the argument has no end");
    return 0;
}

static void die_if_told(const struct argument *a) {
    if (a->dies_once[0] && unlink(a->dies_once) == 0) _exit(9);
}

/* PAIRS: out[i] = (scratch[2 i] + scratch[2 i + 1] + key) ^ in[i], modulo 256. */
static int pairs_check(const struct shore__call *c, const struct shore__volume_desc *desc, struct shore_diag *diag) {
    struct argument a;
    if (lenient) return 0;
    if (c->start % SHORE__IO_ALIGN || c->bytes % SHORE__IO_ALIGN || c->in_bytes != c->bytes / 2 ||
        c->out_bytes != c->bytes / 2)
        return shore__fail(diag, -EINVAL, "PAIRS takes and gives a byte for two");
    return argument_of(c, &a, diag);
}

static void begin_piece(struct shore__reach *reach, const struct shore__call *c, uint64_t at, struct shore__piece *p) {
    const uint64_t most = 65536, left = c->bytes - at;
    *p = (struct shore__piece){.of = SHORE__PIECE_SCRATCH,
                               .offset = c->start + at,
                               .bytes = (uint32_t)(left < most ? left : most),
                               .buffer = reach->memory + at / most % 2 * most};
    reach->move(reach, false, p);
}

/* While it works on one piece, the next one is read. */
static int pairs(struct shore__reach *reach, const struct shore__call *c, struct shore_diag *diag) {
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
static int add_check(const struct shore__call *c, const struct shore__volume_desc *desc, struct shore_diag *diag) {
    struct argument a;
    int rc = argument_of(c, &a, diag);
    if (rc || lenient) return lenient ? 0 : rc;
    if (a.start > desc->scratch_bytes || a.bytes > desc->scratch_bytes - a.start || c->in_bytes != a.bytes ||
        a.bytes > 256 * 1024 || c->out_bytes != 8)
        return shore__fail(diag, -EINVAL, "ADD: it does not fit");
    return 0;
}

static int add(struct shore__reach *reach, const struct shore__call *c, struct shore_diag *diag) {
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
static int firsts_check(const struct shore__call *c, const struct shore__volume_desc *desc, struct shore_diag *diag) {
    if (c->out_bytes == c->count * UINT64_C(4096) && !c->in_bytes) return 0;
    return shore__fail(diag, -EINVAL, "FIRSTS gives a page for each segment");
}

static int firsts(struct shore__reach *reach, const struct shore__call *c, struct shore_diag *diag) {
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
static int copy(struct shore__reach *reach, const struct shore__call *c, struct shore_diag *diag) {
    while (c->argument_bytes && access(c->argument, F_OK) == 0)
        usleep(1000);
    memcpy(c->out, c->in, c->in_bytes);
    return 0;
}

static int copy_check(const struct shore__call *c, const struct shore__volume_desc *desc, struct shore_diag *diag) {
    return c->in_bytes == c->out_bytes ? 0 : shore__fail(diag, -EINVAL, "COPY gives what it takes");
}

static const struct shore__function copy_row = {
    .name = "COPY", .over = SHORE__OVER_NOTHING, .repeats = true, .check = copy_check, .run = copy};

static unsigned number_of_pairs, number_of_add, number_of_firsts, number_of_copy;

static void add_functions(void) {
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

static int fail_one(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    if (op->kind != failing->kind || failing->after < 0) return SHORE__IO_PASS;
    return failing->after-- ? SHORE__IO_PASS : -EIO;
}

struct called {
    struct bench b;
    unsigned char *scratch, *in, *out; /* scratch: what the drive's holds */
    struct argument argument;
};

static int ask(struct called *t, const struct shore__call *call) {
    struct shore_wait wait;
    shore_wait_init(&wait);
    t->b.diag = (struct shore_diag){0};
    int rc = shore__fleet_call(t->b.fleet, 0, call, shore_wait_completion(&wait));
    return rc ? rc : shore_wait(&wait, &t->b.diag);
}

static void put_scratch(struct called *t) {
    unsigned char seal[16];
    struct shore_wait wait;
    shore_wait_init(&wait);
    must(&t->b, shore_fleet_scratch_put(t->b.fleet, 0, SCRATCH_BYTES, t->scratch, seal, shore_wait_completion(&wait)));
    must(&t->b, shore_wait(&wait, &t->b.diag));
}

static bool called_open(struct called *t, const struct config *config) {
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

static void called_close(struct called *t) {
    free(t->scratch);
    free(t->in);
    free(t->out);
    bench_close(&t->b);
}

static struct shore__call pairs_of(struct called *t, uint64_t start, uint64_t bytes) {
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

static void assert_pairs(const struct called *t, const struct shore__call *c) {
    for (uint64_t i = 0; i < c->out_bytes; i++) {
        const unsigned char *from = t->scratch + c->start + 2 * i;
        const unsigned char want = (unsigned char)((from[0] + from[1] + t->argument.key) ^ t->in[i]);
        if (t->out[i] != want) fail_msg("%s: byte %llu of PAIRS", t->b.config->name, (unsigned long long)i);
    }
}

static struct shore__call add_of(struct called *t, uint64_t *sum) {
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

static uint64_t add_to_scratch(struct called *t) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < t->argument.bytes; i++) {
        unsigned char *at = &t->scratch[t->argument.start + i];
        sum += *at;
        *at = (unsigned char)(*at + t->in[i]);
    }
    return sum;
}

static void gives_the_same_everywhere(void **state) {
    for (unsigned k = 0; k < KINDS; k++) {
        static const uint64_t start[] = {0, 4096, 1 << 20, 0}, bytes[] = {4096, 8192, 3 << 20, SCRATCH_BYTES};
        struct called t;
        uint64_t sum;
        if (!called_open(&t, &kinds[k])) continue;
        for (int i = 0; i < 4; i++) {
            struct shore__call call = pairs_of(&t, start[i], bytes[i]);
            must(&t.b, ask(&t, &call));
            assert_pairs(&t, &call);
        }
        for (int i = 0; i < 2; i++) {
            struct shore__call call = add_of(&t, &sum);
            must(&t.b, ask(&t, &call));
            assert_int_equal(sum, add_to_scratch(&t));
        }
        struct shore__call call = pairs_of(&t, 0, 65536);
        must(&t.b, ask(&t, &call));
        assert_pairs(&t, &call);
        called_close(&t);
    }
}

/* Many at once, between fetches that are cut into spans. */
static void runs_between_other_requests(void **state) {
    enum { CALLS = 12 };
    for (unsigned k = 0; k < KINDS; k++) {
        struct called t;
        struct shore_wait wait[2 * CALLS];
        struct shore__call call[CALLS];
        if (!called_open(&t, &kinds[k])) continue;
        const uint32_t segments = t.b.plain.layout->blocks[1].segments;
        const size_t bytes = (size_t)segments * SHORE_SEGMENT_ELEMS * 4;
        float *master = pages(CALLS * bytes);
        for (unsigned i = 0; i < 2 * CALLS; i++)
            shore_wait_init(&wait[i]);
        for (unsigned i = 0; i < CALLS; i++) {
            call[i] = pairs_of(&t, 0, 262144);
            call[i].out = t.out + (size_t)i * 131072;
            must(&t.b, shore_fleet_fetch(t.b.fleet, 0, 1, 0, segments, SHORE_FETCH_MASTER,
                                         (unsigned char *)master + i * bytes, shore_wait_completion(&wait[i])));
            must(&t.b, shore__fleet_call(t.b.fleet, 0, &call[i], shore_wait_completion(&wait[CALLS + i])));
        }
        for (unsigned i = 0; i < 2 * CALLS; i++)
            must(&t.b, shore_wait(&wait[i], &t.b.diag));
        assert_pairs(&t, &call[0]);
        for (unsigned i = 0; i < CALLS; i++) {
            assert_memory_equal((unsigned char *)master + i * bytes, t.b.plain.master[1], bytes);
            assert_memory_equal(call[i].out, t.out, 131072);
        }
        free(master);
        called_close(&t);
    }
}

/* ---- steps and attempts ------------------------------------------------------------------------------------------ */

static void assert_firsts(struct called *t, uint64_t step) {
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

static void refused(struct called *t, const struct shore__call *call, int rc, const char *words) {
    int got = ask(t, call);
    if (got != rc) fail_msg("%s: %d instead of %d: %s", t->b.config->name, got, rc, t->b.diag.text);
    if (!strstr(t->b.diag.text, words)) fail_msg("%s: no '%s' in: %s", t->b.config->name, words, t->b.diag.text);
}

static void reads_the_step_that_it_names(void **state) {
    for (unsigned k = 0; k < KINDS; k++) {
        struct called t;
        struct step_how how = {.coefficient = 1};
        if (!called_open(&t, &kinds[k])) continue;
        assert_firsts(&t, 0);
        must(&t.b, fleet_updates(t.b.fleet, &t.b.plain, 0, &how, &t.b.diag));
        assert_firsts(&t, 0);
        assert_firsts(&t, 1); /* being written */
        must(&t.b, fleet_commit(t.b.fleet, 0, false, &t.b.diag));
        assert_firsts(&t, 1);
        struct shore__call call = {
            .function = number_of_firsts, .block = 1, .count = 1, .step = 2, .out = t.out, .out_bytes = 4096};
        refused(&t, &call, SHORE_ESTALE, "FIRSTS is of step 2, which the drive does not hold");
        called_close(&t);
    }
}

static void belongs_to_its_attempt(void **state) {
    for (unsigned k = 0; k < KINDS; k++) {
        struct called t;
        uint64_t sum;
        if (!called_open(&t, &kinds[k])) continue;
        struct shore__call call = pairs_of(&t, 0, 4096), adding = add_of(&t, &sum);
        call.step++;
        refused(&t, &call, SHORE_ESTALE, "PAIRS is of step 1, which the drive does not hold");
        call.step--;
        must(&t.b, ask(&t, &call));
        shore_fleet_discard(t.b.fleet);
        assert_int_equal(ask(&t, &call), SHORE_EDISCARDED);
        assert_int_equal(ask(&t, &adding), SHORE_EDISCARDED);
        call = pairs_of(&t, 0, 65536); /* nothing was added */
        must(&t.b, ask(&t, &call));
        assert_pairs(&t, &call);
        called_close(&t);
    }
}

/* ---- what is wrong ----------------------------------------------------------------------------------------------- */

static void says_what_is_wrong(void **state) {
    static unsigned char long_argument[SHORE__ARGUMENT_BYTES + 1];
    for (unsigned k = 0; k < KINDS; k++) {
        struct called t;
        uint64_t sum;
        if (!called_open(&t, &kinds[k])) continue;
        struct shore__call good = pairs_of(&t, 0, 8192), call = good;
        call.function = number_of_firsts + 1;
        assert_int_equal(ask(&t, &call), -EINVAL);
        call = good;
        call.start = SCRATCH_BYTES;
        refused(&t, &call, -EINVAL, "PAIRS: its range is not on this drive");
        call = good;
        call.argument = long_argument;
        call.argument_bytes = sizeof long_argument;
        refused(&t, &call, -EINVAL, "PAIRS: its argument has 4097 bytes, more than 4096");
        for (int i = 0; i < 2; i++) { /* the second time, a server finds it */
            if (i && !strchr("us", kinds[k].kinds[0])) break;
            lenient = i;
            call = good;
            call.out_bytes++;
            refused(&t, &call, -EINVAL, "PAIRS takes and gives a byte for two");
            call = good;
            call.argument_bytes = 5;
            refused(&t, &call, -EINVAL, "the argument has 5 bytes instead of");
            call = add_of(&t, &sum);
            t.argument.start = UINT64_MAX - 4;
            refused(&t, &call, -EINVAL, "ADD: it does not fit");
        }
        lenient = false;
        call = add_of(&t, &sum);
        t.argument.start = 100; /* passes its check */
        refused(&t, &call, -EINVAL, "ADD reaches for what is not on the drive");
        must(&t.b, ask(&t, &good));
        assert_pairs(&t, &good);
        step(&t.b);
        assert_digest(t.b.fleet, &t.b.plain, true);
        called_close(&t);
    }
}

/* A server has room for so much, and says so. */
static void fits_the_servers_memory(void **state) {
    for (unsigned k = 0; k < KINDS; k++) {
        struct called t;
        if (!called_open(&t, &kinds[k])) continue;
        struct shore__call call = {.function = number_of_copy, .attempt = shore_fleet_attempt(t.b.fleet)};
        call.in_bytes = call.out_bytes = 8 << 20;
        unsigned char *in = pages(call.in_bytes), *out = pages(call.out_bytes);
        memset(in, 5, call.in_bytes);
        call.in = in;
        call.out = out;
        if (strchr("us", kinds[k].kinds[0])) {
            refused(&t, &call, -E2BIG, "COPY takes and gives more than the");
            call.in_bytes = call.out_bytes = 500000;
        }
        must(&t.b, ask(&t, &call));
        assert_memory_equal(out, in, call.out_bytes);
        free(in);
        free(out);
        called_close(&t);
    }
}

static void failing_io_fails_the_call_alone(void **state) {
    for (unsigned k = 0; k < KINDS; k++) {
        struct called t;
        uint64_t sum;
        if (!strchr("fu", kinds[k].kinds[0]) || !called_open(&t, &kinds[k])) continue;
        for (int after = 0; after < 3; after++) {
            struct shore__call call = pairs_of(&t, 0, 1 << 20);
            failing->kind = SHORE__IO_READ;
            failing->after = after;
            refused(&t, &call, -EIO, "reading");
            assert_non_null(strstr(t.b.diag.text, ".volume"));
            assert_int_equal(failing->after, -1);
            must(&t.b, ask(&t, &call));
            assert_pairs(&t, &call);
        }
        struct shore__call call = add_of(&t, &sum);
        failing->kind = SHORE__IO_WRITE;
        failing->after = 0;
        refused(&t, &call, -EIO, "writing");
        must(&t.b, ask(&t, &call));
        assert_int_equal(sum, add_to_scratch(&t));
        step(&t.b);
        assert_digest(t.b.fleet, &t.b.plain, true);
        called_close(&t);
    }
}

/* ---- lost links -------------------------------------------------------------------------------------------------- */

static void make_its_file(struct called *t) {
    snprintf(t->argument.dies_once, sizeof t->argument.dies_once, "%s/dies", t->b.place.directory);
    FILE *f = fopen(t->argument.dies_once, "w");
    assert_non_null(f);
    fclose(f);
}

/* The server ends in the middle of a call, or when it has done it and has not answered. */
static void a_lost_call_is_not_done_twice(void **state) {
    for (unsigned k = 0; k < KINDS; k++) {
        struct called t;
        uint64_t sum;
        if (!strchr("us", kinds[k].kinds[0]) || !called_open(&t, &kinds[k])) continue;
        for (int i = 0; i < 2; i++) {
            struct shore__call lost = i ? add_of(&t, &sum) : pairs_of(&t, 0, SCRATCH_BYTES);
            make_its_file(&t);
            assert_int_equal(ask(&t, &lost), SHORE_ELINK);
            assert_int_equal(ask(&t, &lost), SHORE_ELINK);
            must(&t.b, shore_fleet_reconnect(t.b.fleet, &t.b.diag));
            assert_int_equal(ask(&t, &lost), SHORE_EDISCARDED); /* of the attempt that was given up */
            assert_firsts(&t, t.b.plain.step);                  /* of a step alone */
            put_scratch(&t);
            struct shore__call call = i ? add_of(&t, &sum) : pairs_of(&t, 0, SCRATCH_BYTES);
            must(&t.b, ask(&t, &call));
            if (i) assert_int_equal(sum, add_to_scratch(&t));
            call = pairs_of(&t, 0, SCRATCH_BYTES);
            must(&t.b, ask(&t, &call));
            assert_pairs(&t, &call);
            step(&t.b);
            assert_digest(t.b.fleet, &t.b.plain, true);
        }
        called_close(&t);
    }
}

static uint64_t began;

static uint64_t fast_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t now = (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
    return began + 20 * (now - began);
}

/* The server is there, says so, and gets nowhere. */
static void a_function_that_hangs_is_given_up(void **state) {
    static const unsigned char in[1] = {9};
    unsigned char out[1] = {0};
    struct called t;
    setenv("LONGSHORE_SILENCE", "2", 1);
    assert_true(called_open(&t, &kinds[KINDS - 1]));
    make_its_file(&t);
    struct shore__call call = {.function = number_of_copy, .in = in, .in_bytes = 1, .out = out, .out_bytes = 1};
    call.argument = t.argument.dies_once;
    call.argument_bytes = sizeof t.argument.dies_once;
    began = shore__now_ns();
    shore__set_clock(fast_clock);
    refused(&t, &call, SHORE_ELINK, "has made no progress for 40 s");
    shore__set_clock(NULL);
    unlink(t.argument.dies_once);
    must(&t.b, shore_fleet_reconnect(t.b.fleet, &t.b.diag));
    must(&t.b, ask(&t, &call)); /* it may be made again */
    assert_int_equal(out[0], in[0]);
    called_close(&t);
    unsetenv("LONGSHORE_SILENCE");
}

/* ---- what is counted, recorded and held back --------------------------------------------------------------------- */

static struct shore_ledger counted(struct called *t) {
    struct shore_ledger l = {.size = sizeof l};
    step(&t->b); /* a server tells what it has counted with each commit */
    assert_int_equal(shore_fleet_ledger(t->b.fleet, &l), 0);
    return l;
}

static void counts_both_directions(void **state) {
    for (unsigned k = 0; k < KINDS; k++) {
        struct called t;
        uint64_t sum;
        if (!called_open(&t, &kinds[k])) continue;
        const struct shore_ledger before = counted(&t);
        struct shore__call call = pairs_of(&t, 0, 1 << 20), adding = add_of(&t, &sum);
        must(&t.b, ask(&t, &call));
        must(&t.b, ask(&t, &adding));
        const struct shore_ledger after = counted(&t);
        assert_int_equal(after.link_activations - before.link_activations, (1 << 19) + 12288);
        assert_int_equal(after.link_out_state - before.link_out_state, (1 << 19) + 8);
        assert_int_equal(after.drive_read_scratch - before.drive_read_scratch, (1 << 20) + 12288);
        assert_int_equal(after.drive_write_scratch - before.drive_write_scratch, 12288);
        called_close(&t);
    }
}

struct counting_gate {
    struct shore__gate gate;
    uint64_t amount[SHORE_LANES], latest;
};

static uint64_t count_work(struct shore__gate *gate, enum shore_lane lane, uint32_t drive, uint64_t amount) {
    struct counting_gate *g = (struct counting_gate *)gate;
    g->amount[lane] += amount;
    return g->latest = shore__now_ns() + 20000000;
}

static void a_gate_holds_its_bytes_back(void **state) {
    struct called t;
    struct counting_gate g = {.gate.over_ns = count_work};
    assert_true(called_open(&t, &kinds[1]));
    shore__fleet_set_gate(t.b.fleet, &g.gate);
    struct shore__call call = pairs_of(&t, 0, 1 << 20);
    must(&t.b, ask(&t, &call));
    assert_true(shore__now_ns() >= g.latest);
    assert_int_equal(g.amount[SHORE_LANE_LINK_IN], 1 << 19);
    assert_int_equal(g.amount[SHORE_LANE_LINK_OUT], 1 << 19);
    assert_int_equal(g.amount[SHORE_LANE_DRIVE_READ], 1 << 20);
    assert_int_equal(g.amount[SHORE_LANE_DRIVE_WRITE], 0);
    assert_pairs(&t, &call);
    called_close(&t);
}

/* Computing is recorded apart from what the drive reads meanwhile. */
static void a_trace_has_its_lanes(void **state) {
    for (unsigned k = 0; k < KINDS; k++) {
        struct called t;
        struct shore__recorder *recorder;
        struct shore__recorded got;
        uint64_t bytes[SHORE_LANES] = {0}, ns[SHORE_LANES] = {0};
        if (!called_open(&t, &kinds[k])) continue;
        assert_int_equal(shore__recorder_open(1, &recorder), 0);
        shore__fleet_set_recorder(t.b.fleet, recorder);
        struct shore__call call = pairs_of(&t, 0, SCRATCH_BYTES);
        const uint64_t begin = shore__now_ns();
        must(&t.b, ask(&t, &call));
        const uint64_t end = shore__now_ns();
        shore__recorder_stepped(recorder, 1, begin, end);
        assert_true(shore__recorder_take(recorder, &got));
        for (uint32_t i = 0; i < got.count; i++) {
            if (got.spans[i].kind != SHORE__SPAN_LANE) continue;
            bytes[got.spans[i].what] += got.spans[i].amount;
            ns[got.spans[i].what] += got.spans[i].end_ns - got.spans[i].begin_ns;
        }
        assert_in_range(ns[SHORE_LANE_DRIVE_UPDATE], 1, end - begin);
        if (kinds[k].kinds[0] == 'f') assert_int_equal(bytes[SHORE_LANE_DRIVE_READ], SCRATCH_BYTES);
        if (strchr("us", kinds[k].kinds[0])) {
            assert_int_equal(bytes[SHORE_LANE_LINK_IN], SCRATCH_BYTES / 2);
            assert_int_equal(bytes[SHORE_LANE_LINK_OUT], SCRATCH_BYTES / 2);
        }
        called_close(&t);
        shore__recorder_end(recorder);
        shore__recorder_close(recorder);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_the_same_everywhere),
        cmocka_unit_test(runs_between_other_requests),
        cmocka_unit_test(reads_the_step_that_it_names),
        cmocka_unit_test(belongs_to_its_attempt),
        cmocka_unit_test(says_what_is_wrong),
        cmocka_unit_test(fits_the_servers_memory),
        cmocka_unit_test(failing_io_fails_the_call_alone),
        cmocka_unit_test(a_lost_call_is_not_done_twice),
        cmocka_unit_test(a_function_that_hangs_is_given_up),
        cmocka_unit_test(counts_both_directions),
        cmocka_unit_test(a_gate_holds_its_bytes_back),
        cmocka_unit_test(a_trace_has_its_lanes),
    };
    char self[512], *path = realpath("/proc/self/exe", NULL);
    add_functions();
    if (argc > 1) { /* in the place of ssh: HOST longshore drive serve --stdio */
        const struct shore__serve_options options = {.build = "test"};
        struct shore_diag diag;
        return shore__serve(0, 1, &options, &diag) != 0;
    }
    snprintf(self, sizeof self, "%s", path);
    free(path);
    setenv(SHORE__RSH_VARIABLE, self, 1);
    failing = mmap(NULL, sizeof *failing, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (failing == MAP_FAILED) return 1;
    failing->after = -1;
    shore__io_set_shim(fail_one, NULL);
    server_start();
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    server_stop();
    return rc;
}
