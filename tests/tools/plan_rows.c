/* Hashes of the rows of random plans, so that two commits can be compared: a line for each case, and one of all.
 *
 *     plan_rows [--seed N] [--cases N]     hashes of the cases of a seed (1), of which there are 2,000
 *     plan_rows [--seed N] --case I        the case, its sums and its rows, as they are hashed
 *
 * A case is a model, facts and a budget: training, evaluation or generation. Rows are hashed in the order of their
 * names, so that the order in which a plan adds them shows in nothing but where they lie.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "longshore/error.h"
#include "tools/plan_case.h"
#include "unit/plan/random_arch.h"

struct text {
    char **line;
    size_t count, room;
};

static void add(struct text *t, const char *line) {
    if (t->count == t->room) t->line = realloc(t->line, (t->room = 2 * t->room + 64) * sizeof *t->line);
    if (!t->line || !(t->line[t->count++] = strdup(line))) abort();
}

static void add_row(void *ctx, const struct plan_row *r) {
    static const char *const kinds[] = {"device", "pinned", "plain"};
    char line[256];
    if (!r->bytes) return; /* it lies nowhere */
    snprintf(line, sizeof line, "%s %u %s: %" PRIu64 " bytes, phases %u to %u, at %" PRIu64, r->name, r->index,
             kinds[r->kind], r->bytes, r->from, r->to, r->offset);
    add(ctx, line);
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static struct plan_case random_case(uint64_t *draw) {
    static const char *const ram[] = {"ram:", "ram:", "ram:"}, *const local[] = {"/tmp/a", "/tmp/b", "/tmp/c"},
                             *const remote[] = {"ssh://host/a", "ssh://host/b", "ssh://host/c"};
    static const double speeds[] = {0.05, 1, 20};
    struct plan_case x = {.arch = random_arch(draw), .reading = !pick(draw, 0, 4)};
    uint32_t where = pick(draw, 0, 2);
    bool drives = where != 0;
    x.sequences = pick(draw, 1, 12);
    x.seq_len = (size_t)32 << pick(draw, 0, 4);
    x.positions = pick(draw, 0, 1) * pick(draw, 1, 500);
    x.mode = (enum shore__mode)pick(draw, 0, 2);
    x.threads = (int)pick(draw, 1, 8);
    x.workspace_bytes = pick(draw, 0, 64 << 20);
    x.packed_bytes = pick(draw, 0, 1) * pick(draw, 1, 64 << 20);
    x.one_memory = pick(draw, 0, 3);
    x.drives = where == 0 ? ram : where == 1 ? local : remote;
    x.ndrives = pick(draw, 1, 3);
    x.optimizer = pick(draw, 0, 3) ? SHORE_ADAMW : SHORE_SGD;
    x.moments = x.optimizer == SHORE_ADAMW && !pick(draw, 0, 3) ? SHORE_MOMENTS_8BIT : SHORE_MOMENTS_FP32;
    x.in_ram = !drives;
    x.remote = where == 2;
    x.emulated = drives && !pick(draw, 0, 3);
    x.ring_bytes_most = x.emulated * pick(draw, 0, 1) * UINT64_C(3) << 20;
    x.host_buffers_most = x.emulated * pick(draw, 0, 2);
    x.operations_per_second = 400e9 * speeds[pick(draw, 0, 2)];
    x.drive_bytes_per_second = 2e9 * speeds[pick(draw, 0, 2)];
    x.compressed = !pick(draw, 0, 3);
    x.gradient_bf16 = !x.compressed && pick(draw, 0, 1);
    x.host_update = drives && !x.compressed && !pick(draw, 0, 3);
    x.samples = pick(draw, 0, 1);
    x.offload = (int)pick(draw, 0, 2);
    x.compression_bytes = x.compressed * pick(draw, 1, 1 << 24);
    x.resident_bytes = pick(draw, 0, 100 << 20);
    return x;
}

/* The least, all, or between them, or a little less than the least: of a reading, whose least nobody says, anything. */
static uint64_t random_budget(const struct plan_case *x, uint64_t *draw) {
    uint32_t part = pick(draw, 0, 15), thousandths = pick(draw, 0, 1000);
    struct plan_sums sums;
    struct text none = {0};
    if (x->reading) return (UINT64_C(1) << 20) * (1 + pick(draw, 0, 9) * (uint64_t)thousandths);
    plan_of(x, 0, &sums, add_row, &none);
    if (part == 0) return sums.minimum - 1;
    if (part == 1) return sums.minimum;
    if (part == 2) return sums.comfortable;
    return sums.minimum + (sums.comfortable - sums.minimum) / 1000 * thousandths;
}

static struct text text_of(uint64_t index) {
    uint64_t draw = 0;
    char line[512];
    struct text t = {0};
    struct plan_sums s;
    stream = index;
    struct plan_case x = random_case(&draw);
    uint64_t budget = random_budget(&x, &draw);
    int rc = plan_of(&x, budget, &s, add_row, &t);
    if (t.count) qsort(t.line, t.count, sizeof *t.line, by_text);
    snprintf(line, sizeof line,
             "%s, %u layers of %u, %u tokens, %s; %zu x %zu, mode %d, %s, %u of %s; budget %" PRIu64 ": %d",
             x.arch.model_type, x.arch.n_layer, x.arch.d_model, x.arch.vocab, x.arch.tied ? "tied" : "untied",
             x.sequences, x.seq_len, (int)x.mode, x.reading ? x.positions ? "generation" : "evaluation" : "training",
             x.ndrives, x.drives[0], budget, rc);
    add(&t, line);
    snprintf(line, sizeof line,
             "minimum %" PRIu64 ", comfortable %" PRIu64 ", disk %" PRIu64 ", pairs %" PRIu64 ": %" PRIu64
             " kept, %" PRIu64 " on drives; rings %" PRIu64 ", fleet %" PRIu64 ", buffers %" PRIu64 ", reserve %" PRIu64
             ", holes %" PRIu64 ", workspace %" PRIu64,
             s.minimum, s.comfortable, s.disk, s.pairs, s.kept_pairs, s.offloaded_pairs, s.rings, s.fleet, s.buffers,
             s.reserve, s.holes, s.workspace);
    add(&t, line);
    return t;
}

static uint64_t hash_of(const struct text *t) {
    uint64_t h = 0;
    for (size_t i = 0; i < t->count; i++)
        h = XXH3_64bits_withSeed(t->line[i], strlen(t->line[i]) + 1, h);
    return h;
}

int main(int argc, char **argv) {
    uint64_t cases = 2000, one = UINT64_MAX, all = 0;
    seed = 1;
    for (int i = 1; i < argc; i += 2) {
        uint64_t *to = !strcmp(argv[i], "--seed")    ? &seed
                       : !strcmp(argv[i], "--cases") ? &cases
                       : !strcmp(argv[i], "--case")  ? &one
                                                     : NULL;
        char *end = "x";
        if (to && argv[i + 1]) *to = strtoull(argv[i + 1], &end, 10);
        if (*end) {
            fprintf(stderr, "usage: plan_rows [--seed N] [--cases N | --case I]\n");
            return 2;
        }
    }
    printf("seed %" PRIu64 "\n", seed);
    for (uint64_t i = one == UINT64_MAX ? 0 : one; one == UINT64_MAX ? i < cases : i == one; i++) {
        struct text t = text_of(i);
        uint64_t h = hash_of(&t);
        for (size_t k = 0; k < t.count; k++) {
            if (one == i) puts(t.line[k]);
            free(t.line[k]);
        }
        free(t.line);
        all = XXH3_64bits_withSeed(&h, sizeof h, all);
        printf("%" PRIu64 " %016" PRIx64 "\n", i, h);
    }
    printf("all %016" PRIx64 "\n", all);
    return 0;
}
