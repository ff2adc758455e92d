/* The planner of TERAIO (arXiv 2506.06472, algorithm 1) beside ours, in one simulation, on its machine and workloads.
 *
 * One of two GPUs: it holds half of the layers. Assumed, where the paper's facts do not say: a kernel for attention and
 * one for the rest of a layer; what PyTorch saves of them in fp32; 45e12 operations a second of fp32 products; state
 * that a step does not change need not be written again; batches with which its planner comes about as far from ideal
 * as the paper says (80.7 % on average, 59.7 % for 70B), and 16 x 2,048. 16 GB/s are those of the link in each
 * direction; drives give 26 GB/s without a RAID between ("drives at 16": ours / it if they do not). Embedding and head
 * are left out. Its updates run on the GPU, so optimizer state crosses the link; ours run beside the drives. */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "plan/simulate.h"

#define GPU_BYTES 94e9
#define SPARE_BYTES 6e9 /* of the GPU, for workspaces and what PyTorch's allocator loses */
#define LINK_BYTES_PER_SECOND 16e9
#define DRIVES_BYTES_PER_SECOND 26e9 /* a GPU's half of eight drives, without a RAID between */
#define HOST_BYTES 128e9
#define PRODUCTS_PER_SECOND 45e12
#define GPU_MEMORY_PER_SECOND 3.9e12
#define UPDATES_PER_SECOND 5e9 /* on the host's processors, beside the drives: memory of 150 GB/s */

struct workload {
    const char *name;
    uint32_t layers, width, inner, kv, sequences, tokens;
};

/* A block of a layer, on one GPU. */
struct block {
    double parameters, products, pairs, saved; /* products: multiplications with additions of a forward pass */
};

static uint32_t blocks_of(const struct workload *w) {
    return w->layers; /* half of the layers, with two blocks each */
}

static struct block block_of(const struct workload *w, uint32_t b) {
    double rows = (double)w->sequences * w->tokens, d = w->width, ff = w->inner, kv = w->kv;
    struct block of = {.parameters = 2 * d * d + 2 * d * kv, .saved = rows * 4 * (5 * d + 3 * kv)};
    if (b % 2) of = (struct block){.parameters = 3 * d * ff, .saved = rows * 4 * (2 * d + 4 * ff)};
    of.products = rows * of.parameters;
    of.pairs = b % 2 ? 0 : rows * w->tokens * d; /* two products of half of the pairs */
    return of;
}

static void compute(struct shore_program *p, uint32_t op, enum shore_work_kind kind, double work) {
    struct shore_computing c = {.size = sizeof c, .kind = kind, .work = (uint64_t)work};
    shore_program_computes(p, op, &c);
}

/* Forward of all blocks, and backward in reverse. */
static struct shore_program *passes(const struct workload *w) {
    struct shore_program *p = shore_program_new();
    uint32_t n = blocks_of(w);
    assert_non_null(p);
    for (uint32_t o = 0; o < 2 * n; o++) {
        struct block b = block_of(w, o < n ? o : 2 * n - 1 - o);
        shore_program_operation(p, o < n ? "forward" : "backward");
        compute(p, o, SHORE_WORK_PRODUCT, (o < n ? 2 : 4) * (b.products + b.pairs));
    }
    return p;
}

/* drives: bytes a second that they read, and write. */
static struct shore_machine machine(double drives) {
    struct shore_machine m = {.ndrives = 1,
                              .gpu_memory = (uint64_t)GPU_BYTES,
                              .bus_in = LINK_BYTES_PER_SECOND,
                              .bus_out = LINK_BYTES_PER_SECOND,
                              .drive[0] = {.read = drives, .write = drives, .update = UPDATES_PER_SECOND}};
    m.rate[SHORE_WORK_PRODUCT][SHORE_PRECISION_FP32] = (struct shore__rates){{{0, PRODUCTS_PER_SECOND}}, 1};
    m.rate[SHORE_WORK_ROWS][SHORE_PRECISION_FP32] = (struct shore__rates){{{0, GPU_MEMORY_PER_SECOND}}, 1};
    return m;
}

/* ---- TERAIO's ---------------------------------------------------------------------------------------------------- */

enum { KERNELS_MOST = 512, PERIODS_MOST = 1024 };

/* A period in which a tensor is inactive: after one kernel and before another, over the end of the step if that is
 * smaller. */
struct period {
    uint32_t after, before;
    double bytes;
    bool clean; /* the drives have it already */
    bool chosen;
    uint32_t gone, back; /* kernels: absent from gone on, comes back while back and later ones run */
};

struct teraio {
    uint32_t kernels, periods;
    double seconds[KERNELS_MOST], used[KERNELS_MOST]; /* of each kernel: its time, and memory in use */
    double in[KERNELS_MOST], out[KERNELS_MOST];       /* bytes that can still cross while it runs */
    struct period period[PERIODS_MOST];
};

static void add_period(struct teraio *t, uint32_t after, uint32_t before, double bytes, bool clean) {
    assert_true(t->periods < PERIODS_MOST);
    t->period[t->periods++] = (struct period){.after = after, .before = before, .bytes = bytes, .clean = clean};
}

/* A tensor is in memory from one kernel to another, both included. */
static void uses(struct teraio *t, uint32_t first, uint32_t last, double bytes) {
    for (uint32_t k = first; k <= last; k++)
        t->used[k] += bytes;
}

/* Lifetimes of a training step in PyTorch: forward, backward, and then the optimizer, block by block. */
static void profile(const struct workload *w, struct teraio *t) {
    uint32_t n = blocks_of(w), last = 3 * n - 1;
    *t = (struct teraio){.kernels = 3 * n};
    assert_true(t->kernels <= KERNELS_MOST);
    for (uint32_t b = 0; b < n; b++) {
        struct block of = block_of(w, b);
        uint32_t forward = b, backward = 2 * n - 1 - b, update = 2 * n + b;
        double weights = 4 * of.parameters, moments = 8 * of.parameters;
        t->seconds[forward] = 2 * (of.products + of.pairs) / PRODUCTS_PER_SECOND;
        t->seconds[backward] = 2 * t->seconds[forward];
        t->seconds[update] = 28 * of.parameters / GPU_MEMORY_PER_SECOND;
        uses(t, 0, last, weights + moments);
        uses(t, forward, backward, of.saved);
        uses(t, backward, update, weights); /* the gradient */
        add_period(t, forward, backward, weights, true);
        add_period(t, backward, update, weights, true);
        add_period(t, update, forward, weights, false);
        add_period(t, update, update, moments, false);
        add_period(t, forward, backward, of.saved, false);
        add_period(t, backward, update, weights, false);
    }
    for (uint32_t k = 0; k < t->kernels; k++)
        t->in[k] = t->out[k] = t->seconds[k] * LINK_BYTES_PER_SECOND;
}

static uint32_t next(const struct teraio *t, uint32_t k) {
    return k + 1 < t->kernels ? k + 1 : 0;
}
static uint32_t previous(const struct teraio *t, uint32_t k) {
    return k ? k - 1 : t->kernels - 1;
}

/* The earliest end of its offload and the latest begin of its prefetch, under the bandwidth that is left. False: the
 * first does not come before the second. */
static bool fits(const struct teraio *t, struct period *p) {
    double left = p->clean ? 0 : p->bytes;
    uint32_t k = next(t, p->after);
    for (; k != p->before && left > 0; k = next(t, k))
        left -= t->out[k];
    if (left > 0) return false;
    p->gone = k;
    left = p->bytes;
    for (k = p->before; k != p->gone && left > 0;)
        left -= t->in[k = previous(t, k)];
    p->back = k;
    return left <= 0 && p->gone != p->back;
}

/* Bytes x seconds that memory is above its capacity while the tensor is away. */
static double benefit(const struct teraio *t, const struct period *p, double capacity) {
    double above = 0;
    for (uint32_t k = p->gone; k != p->back; k = next(t, k))
        if (t->used[k] > capacity) above += t->seconds[k];
    return above * p->bytes;
}

static void take_bandwidth(const struct teraio *t, double *of, uint32_t k, uint32_t end, double bytes, bool up) {
    for (; k != end && bytes > 0; k = up ? next(t, k) : previous(t, k)) {
        double took = fmin(bytes, of[k]);
        of[k] -= took;
        bytes -= took;
    }
}

static void migrate(struct teraio *t, struct period *p) {
    p->chosen = true;
    if (!p->clean) take_bandwidth(t, t->out, next(t, p->after), p->before, p->bytes, true);
    take_bandwidth(t, t->in, previous(t, p->before), p->after, p->bytes, false);
    for (uint32_t k = p->gone; k != p->back; k = next(t, k))
        t->used[k] -= p->bytes;
}

/* What does not fit into the bandwidth: away just while memory is short. Kernels then wait for it. */
static bool fits_late(const struct teraio *t, struct period *p, double capacity) {
    uint32_t k = next(t, p->after), last = p->after;
    while (k != p->before && t->used[k] <= capacity)
        k = next(t, k);
    p->gone = k;
    for (; k != p->before; k = next(t, k))
        if (t->used[k] > capacity) last = k;
    p->back = next(t, last);
    return p->gone != p->before;
}

static bool is_over(const struct teraio *t, double capacity) {
    for (uint32_t k = 0; k < t->kernels; k++)
        if (t->used[k] > capacity) return true;
    return false;
}

/* The period with the best ratio of benefit to cost, which is the time of both moves: with one rate, bytes cancel. */
static struct period *best_of(struct teraio *t, double capacity, bool late) {
    struct period *best = NULL;
    double ratio = 0;
    for (uint32_t i = 0; i < t->periods; i++) {
        struct period *p = &t->period[i];
        if (p->chosen || !(late ? fits_late(t, p, capacity) : fits(t, p))) continue;
        double r = benefit(t, p, capacity) / (p->bytes * (p->clean ? 1 : 2));
        if (r <= ratio) continue;
        ratio = r;
        best = p;
    }
    return best;
}

/* Algorithm 1: the best period again and again, while memory is short; then what does not fit into the bandwidth. */
static void teraio_plan(struct teraio *t, double capacity) {
    for (int late = 0; late < 2; late++)
        for (struct period *best; is_over(t, capacity) && (best = best_of(t, capacity, late));)
            migrate(t, best);
}

/* A second pass lets prefetches begin earlier, where there is memory. */
static void teraio_prefetch_earlier(struct teraio *t, double capacity) {
    for (uint32_t i = 0; i < t->periods; i++) {
        struct period *p = &t->period[i];
        while (p->chosen && p->back != p->gone && p->back != next(t, p->gone) &&
               t->used[previous(t, p->back)] + p->bytes <= capacity)
            t->used[p->back = previous(t, p->back)] += p->bytes;
    }
}

static uint32_t add(struct shore_program *p, struct shore__fate *fate, struct shore_tensor t, enum shore_way way) {
    t.size = sizeof t;
    if (!t.name) t.name = "period";
    t.place = SHORE_PLACE_DEVICE;
    uint32_t id = shore_program_tensor(p, &t);
    fate[id] = (struct shore__fate){.way = way, .count = 1, .bytes = t.bytes};
    return id;
}

/* Says to the simulation when a tensor leaves, and when it comes back: it passes a buffer of its own. Nothing else may
 * begin in its memory before it has left, and what takes its buffer then lets it go when its prefetch begins. */
static void add_moves(struct shore_program *p, struct shore__fate *fate, const struct teraio *t,
                      const struct period *of, uint32_t group) {
    add(p, fate, (struct shore_tensor){.buffers = true, .group = group, .bytes = (uint64_t)of->bytes}, SHORE_WAY_KEEP);
    struct shore_tensor moves = {.ways = SHORE_WAY_MOVE, .group = group};
    if (!of->clean) shore_program_makes(p, of->gone, add(p, fate, moves, SHORE_WAY_MOVE));
    shore_program_reads(p, previous(t, of->back), add(p, fate, moves, SHORE_WAY_MOVE));
    moves.bytes = (uint64_t)of->bytes;
    uint32_t tensor = add(p, fate, moves, SHORE_WAY_MOVE);
    if (!of->clean) shore_program_makes(p, of->after == of->before ? next(t, of->after) : of->after, tensor);
    shore_program_reads(p, of->before, tensor);
}

static double simulated(const struct shore_program *p, const struct shore__fate *fate, struct shore_plan_times *times) {
    struct shore_machine m = machine(DRIVES_BYTES_PER_SECOND);
    struct shore__simulation *s;
    assert_int_equal(shore__simulation_open(p, &m, false, &s, NULL), 0);
    shore__simulate(s, fate, times);
    shore__simulation_close(s);
    return times->step_seconds;
}

static void add_updates(const struct workload *w, struct shore_program *p) {
    for (uint32_t n = blocks_of(w), b = 0; b < n; b++)
        compute(p, shore_program_operation(p, "update"), SHORE_WORK_ROWS, 28 * block_of(w, b).parameters);
}

/* planned: of the GPU's memory, so much; the rest is left to prefetches that begin earlier. */
static double of_teraio_within(const struct workload *w, double planned, struct shore_plan_times *times) {
    static struct teraio t;
    static struct shore__fate fate[4 * PERIODS_MOST];
    struct shore_program *p = passes(w);
    add_updates(w, p);
    profile(w, &t);
    teraio_plan(&t, planned * (GPU_BYTES - SPARE_BYTES));
    teraio_prefetch_earlier(&t, GPU_BYTES - SPARE_BYTES);
    for (uint32_t i = 0; i < t.periods; i++)
        if (t.period[i].chosen) add_moves(p, fate, &t, &t.period[i], 1 + i);
    double seconds = simulated(p, fate, times);
    shore_program_free(p);
    return seconds;
}

/* The best of several; its algorithm alone would leave no memory. */
static double of_teraio(const struct workload *w, struct shore_plan_times *times) {
    double best = INFINITY;
    for (double planned = 1; planned > 0.35; planned -= 0.1) {
        struct shore_plan_times at;
        double seconds = of_teraio_within(w, planned, &at);
        if (seconds >= best) continue;
        best = seconds;
        *times = at;
    }
    return best;
}

static double ideal(const struct workload *w) {
    struct shore_program *p = passes(w);
    struct shore_plan_times times;
    add_updates(w, p);
    double seconds = simulated(p, NULL, &times);
    shore_program_free(p);
    return seconds;
}

/* ---- ours -------------------------------------------------------------------------------------------------------- */

enum { WEIGHTS = 1, SAVED, GRADIENTS, INPUTS };

static uint32_t describe(struct shore_program *p, struct shore_tensor t) {
    t.size = sizeof t;
    return shore_program_tensor(p, &t);
}

static void add_buffers(struct shore_program *p, const char *name, uint32_t group, enum shore_place place,
                        uint32_t least, uint32_t most) {
    describe(p, (struct shore_tensor){.name = name,
                                      .key = 20 + group,
                                      .buffers = true,
                                      .group = group,
                                      .place = place,
                                      .least = least,
                                      .most = most});
}

static void between(struct shore_program *p, uint32_t tensor, uint32_t from, uint32_t to) {
    shore_program_makes(p, from, tensor);
    shore_program_reads(p, to, tensor);
    shore_program_frees(p, to, tensor);
}

static void describe_block(const struct workload *w, struct shore_program *p, uint32_t b) {
    struct block of = block_of(w, b);
    uint32_t backward = 2 * blocks_of(w) - 1 - b;
    double input = 4.0 * w->sequences * w->tokens * w->width;
    const unsigned moves = SHORE_WAY_MOVE, keeps = SHORE_WAY_KEEP | SHORE_WAY_MOVE;
    uint64_t weights = 4 * (uint64_t)of.parameters;
    uint32_t id = describe(
        p, (struct shore_tensor){
               .name = "weights", .key = WEIGHTS, .index = b, .ways = keeps, .group = WEIGHTS, .bytes = weights});
    shore_program_reads(p, b, id);
    shore_program_reads(p, backward, id);
    shore_program_changes(p, backward, id);
    for (uint32_t u = 0; u < w->sequences; u++) {
        struct shore_tensor saved = {.name = "saved", .key = SAVED + 8 * (b % 2), .index = b, .group = SAVED};
        saved.ways = keeps | SHORE_WAY_AGAIN;
        saved.bytes = (uint64_t)(of.saved - input) / w->sequences;
        saved.again = 1 + b;
        saved.again_parts = w->sequences;
        between(p, describe(p, saved), b, backward);
    }
    id = describe(
        p, (struct shore_tensor){
               .name = "input", .key = INPUTS, .index = b, .ways = keeps, .group = INPUTS, .bytes = (uint64_t)input});
    if (b) {
        shore_program_makes(p, b - 1, id);
        shore_program_reads(p, b, id);
        shore_program_reads(p, backward, id);
        shore_program_frees(p, backward, id);
    }
    id = describe(p, (struct shore_tensor){.name = "gradient",
                                           .key = GRADIENTS,
                                           .index = b,
                                           .ways = moves,
                                           .place = SHORE_PLACE_BOTH,
                                           .group = GRADIENTS,
                                           .bytes = weights});
    shore_program_makes(p, backward, id);
    shore_program_costs(p, backward, SHORE_LANE_BUS_OUT, 0, weights);
    shore_program_costs(p, backward, SHORE_LANE_DRIVE_READ, 0, 3 * weights);
    shore_program_costs(p, backward, SHORE_LANE_DRIVE_UPDATE, 0, weights / 4);
    shore_program_costs(p, backward, SHORE_LANE_DRIVE_WRITE, 0, 3 * weights);
}

static double of_ours(const struct workload *w, double drives, struct shore_plan_times *times, double *plan_seconds) {
    struct shore_program *p = passes(w);
    struct shore_machine m = machine(drives);
    struct shore_plan *plan;
    struct shore_diag diag = {0};
    struct shore_plan_options options = {.size = sizeof options, .memory_bytes = (uint64_t)HOST_BYTES, .machine = &m};
    options.place_bytes[SHORE_PLACE_DEVICE] = (uint64_t)(GPU_BYTES - SPARE_BYTES);
    add_buffers(p, "weights' buffers", WEIGHTS, SHORE_PLACE_DEVICE, 1, 8);
    add_buffers(p, "saved's buffers", SAVED, SHORE_PLACE_BOTH, 0, 8);
    add_buffers(p, "inputs' buffers", INPUTS, SHORE_PLACE_BOTH, 0, 4);
    add_buffers(p, "gradients' buffers", GRADIENTS, SHORE_PLACE_BOTH, 1, 8);
    for (uint32_t b = 0; b < blocks_of(w); b++)
        describe_block(w, p, b);
    clock_t start = clock();
    if (shore_plan_open(p, &options, &plan, &diag)) fail_msg("%s: %s", w->name, diag.text);
    *plan_seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    times->size = sizeof *times;
    assert_int_equal(shore_plan_times(plan, times), 0);
    shore_plan_close(plan);
    shore_program_free(p);
    return times->step_seconds;
}

static void ours_beside_teraio(void **state) {
    static const struct workload workloads[] = {
        {"Llama-3-8B", 32, 4096, 14336, 1024, 8, 2048},      {"Granite-8B", 36, 4096, 14336, 1024, 8, 2048},
        {"Llama-3-70B", 80, 8192, 28672, 1024, 12, 2048},    {"Llama-3-8B", 32, 4096, 14336, 1024, 16, 2048},
        {"Granite-8B", 36, 4096, 14336, 1024, 16, 2048},     {"Llama-3-70B", 80, 8192, 28672, 1024, 16, 2048},
        {"Llama-3-405B", 126, 16384, 53248, 1024, 16, 2048},
    };
    print_message("%-12s %9s %8s %9s %7s %8s %9s %10s %11s %10s  %s\n", "", "batch", "ideal s", "TERAIO s", "ours s",
                  "ours/it", "it/ideal", "ours/ideal", "drives at 16", "planning s",
                  "activations kept, again, moved GB");
    for (size_t i = 0; i < sizeof workloads / sizeof *workloads; i++) {
        const struct workload *w = &workloads[i];
        struct shore_plan_times its, ours, slow;
        double planning, again, best = ideal(w), theirs = of_teraio(w, &its);
        double mine = of_ours(w, DRIVES_BYTES_PER_SECOND, &ours, &planning);
        double slower = of_ours(w, LINK_BYTES_PER_SECOND, &slow, &again);
        print_message("%-12s %2u x %4u %8.2f %9.2f %7.2f %8.2f %9.2f %10.2f %12.2f %10.3f  %.0f, %.0f, %.0f\n", w->name,
                      w->sequences, w->tokens, best, theirs, mine, theirs / mine, best / theirs, best / mine,
                      theirs / slower, planning, (double)ours.kept_bytes / 1e9, (double)ours.again_bytes / 1e9,
                      (double)ours.moved_bytes / 1e9);
        assert_true(theirs >= best * 0.999 && mine <= slower * 1.02);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ours_beside_teraio)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
