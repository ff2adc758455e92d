/* A plan of a made-up network, on the public headers alone: what a budget of memory keeps, what is computed again, what
 * moves to a drive, and how long a step takes. Nothing is trained, and no drive is opened.
 *
 *     plan_network MEMORY_MIB [MACHINE]     MACHINE: a description that comes with the library, or a file
 *
 * Forward of eight blocks, backward in reverse. A block has parameters, which come through buffers or stay, and leaves
 * activations for its backward. Its gradient is made in a buffer, which is free once the drive took it. */
#include <stdio.h>
#include <stdlib.h>

#include "longshore/machine.h"
#include "longshore/plan.h"

enum { BLOCKS = 8, TOKENS = 4096, WIDTH = 2048, MIB = 1 << 20 };
enum { PARAMETERS = 1, GRADIENTS, ACTIVATIONS }; /* groups, and keys; of their buffers: 10 more */

static const uint64_t elems = 12ull * WIDTH * WIDTH; /* of a block */

struct network {
    struct shore_program *program;
    uint32_t forward[BLOCKS], backward[BLOCKS];
    uint32_t parameters[BLOCKS], activations[BLOCKS], buffers;
};

static uint32_t operation(struct network *n, const char *name, enum shore_work_kind kind, uint64_t work) {
    struct shore_computing computing = {.size = sizeof computing, .kind = kind, .rows = TOKENS, .work = work};
    uint32_t op = shore_program_operation(n->program, name);
    computing.precision = SHORE_PRECISION_BF16;
    shore_program_computes(n->program, op, &computing);
    return op;
}

static struct shore_tensor tensor(const char *name, uint32_t key, uint32_t index, uint64_t bytes) {
    struct shore_tensor t = {.size = sizeof t, .name = name, .key = key, .index = index, .bytes = bytes};
    t.group = key;
    return t;
}

static uint32_t add_buffers(struct network *n, const char *name, uint32_t group, uint32_t least, uint32_t most) {
    struct shore_tensor t = tensor(name, group + 10, 0, 0);
    t.buffers = true;
    t.group = group;
    t.least = least;
    t.most = most;
    return shore_program_tensor(n->program, &t);
}

static void add_block(struct network *n, uint32_t b) {
    struct shore_tensor t = tensor("parameters", PARAMETERS, b, 2 * elems);
    t.ways = SHORE_WAY_KEEP | SHORE_WAY_MOVE;
    uint32_t id = n->parameters[b] = shore_program_tensor(n->program, &t);
    shore_program_reads(n->program, n->forward[b], id);
    shore_program_reads(n->program, n->backward[b], id);
    shore_program_changes(n->program, n->backward[b], id); /* the next step's forward waits for its update */
    t = tensor("activations", ACTIVATIONS, b, 2ull * TOKENS * WIDTH * 8);
    t.ways = SHORE_WAY_KEEP | SHORE_WAY_AGAIN | SHORE_WAY_MOVE;
    t.again = 1 + n->forward[b];
    id = n->activations[b] = shore_program_tensor(n->program, &t);
    shore_program_makes(n->program, n->forward[b], id);
    shore_program_reads(n->program, n->backward[b], id);
    shore_program_frees(n->program, n->backward[b], id);
    t = tensor("gradient", GRADIENTS, b, 4 * elems);
    t.ways = SHORE_WAY_MOVE;
    shore_program_makes(n->program, n->backward[b], shore_program_tensor(n->program, &t));
    /* behind backward: the drive reads masters and moments, updates them, and writes them */
    shore_program_costs(n->program, n->backward[b], SHORE_LANE_LINK_IN, 0, 4 * elems);
    shore_program_costs(n->program, n->backward[b], SHORE_LANE_DRIVE_READ, 0, 12 * elems);
    shore_program_costs(n->program, n->backward[b], SHORE_LANE_DRIVE_UPDATE, 0, elems);
    shore_program_costs(n->program, n->backward[b], SHORE_LANE_DRIVE_WRITE, 0, 12 * elems);
}

static struct network describe(void) {
    struct network n = {.program = shore_program_new()};
    if (!n.program) abort();
    for (uint32_t b = 0; b < BLOCKS; b++)
        n.forward[b] = operation(&n, "forward", SHORE_WORK_PRODUCT, 2 * TOKENS * elems);
    for (uint32_t b = BLOCKS; b--;)
        n.backward[b] = operation(&n, "backward", SHORE_WORK_PRODUCT_INPUT, 4 * TOKENS * elems);
    for (uint32_t b = 0; b < BLOCKS; b++)
        add_block(&n, b);
    n.buffers = add_buffers(&n, "buffers of parameters", PARAMETERS, 1, 2);
    add_buffers(&n, "buffers of gradients", GRADIENTS, 1, BLOCKS);
    add_buffers(&n, "buffers of activations", ACTIVATIONS, 2, 2);
    return n;
}

static const char *way_of(const struct shore_plan *plan, uint32_t id) {
    struct shore_fate fate = {.size = sizeof fate};
    if (shore_plan_tensor(plan, id, &fate)) return "?";
    return fate.way == SHORE_WAY_KEEP ? "kept" : fate.way == SHORE_WAY_AGAIN ? "computed again" : "moved";
}

static void print_plan(const struct network *n, const struct shore_plan *plan) {
    struct shore_plan_sums sums = {.size = sizeof sums};
    struct shore_plan_times times = {.size = sizeof times};
    shore_plan_sums(plan, &sums);
    shore_plan_times(plan, &times);
    for (int b = 0; b < BLOCKS; b++)
        printf("block %d: parameters %s, activations %s\n", b, way_of(plan, n->parameters[b]),
               way_of(plan, n->activations[b]));
    printf("memory: %.0f MiB, at least %.0f, everything kept from %.0f on\n", (double)sums.total_bytes / MIB,
           (double)sums.minimum_bytes / MIB, (double)sums.comfortable_bytes / MIB);
    printf("a step: %.3f s, bound by %s; the drive reads %.0f MiB and writes %.0f\n", times.step_seconds,
           shore_lane_name(times.bound), (double)times.drive_read_bytes / MIB, (double)times.drive_write_bytes / MIB);
}

int main(int argc, char **argv) {
    struct shore_diag diag = {0};
    struct shore_machine *machine = NULL;
    struct shore_plan *plan = NULL;
    if (argc < 2) {
        fprintf(stderr, "usage: plan_network MEMORY_MIB [MACHINE]\n");
        return 2;
    }
    int rc = argc > 2 ? shore_machine_read(argv[2], &machine, &diag) : 0;
    struct network n = describe();
    struct shore_plan_options options = {.size = sizeof options, .machine = machine, .what = "this network"};
    options.memory_bytes = strtoull(argv[1], NULL, 10) * MIB;
    options.one_memory = true;
    if (!rc) rc = shore_plan_open(n.program, &options, &plan, &diag);
    if (rc)
        fprintf(stderr, "plan_network: %s\n", diag.text);
    else
        print_plan(&n, plan);
    shore_plan_close(plan);
    shore_program_free(n.program);
    shore_machine_free(machine);
    return rc ? 2 : 0;
}
