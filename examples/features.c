/* Features of nodes of a graph, larger than memory, in a table on drives: sampled nodes are gathered, and what was
 * learnt about them is added where it lies.
 *
 *     features NODES ROUNDS DRIVE...
 *
 * What it shows of the library: table.h. Each round takes random nodes, some of them more than once, and moves their
 * features a little. A commit ends it. Kill it at any instant and start it again: it goes on with the table as it is.
 * The sum at the end is that of whole numbers, so it shows each addition that a crash has lost or made twice.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "longshore/table.h"

enum { WIDTH = 64, BATCH = 1024 }; /* features of a node: 256 bytes; nodes of a round */

static int fail(int rc, const struct shore_diag *diag) {
    fprintf(stderr, "features: %s\n", diag->text[0] ? diag->text : shore_error_text(rc));
    return 1;
}

/* Waits for a request, which may have been refused. */
static int ended(int rc, struct shore_wait *wait, struct shore_diag *diag) {
    if (rc) shore_wait_end(wait, rc);
    return shore_wait(wait, diag);
}

/* Of a random graph: some nodes are much more often neighbours than others. */
static void sample(uint32_t nodes, uint64_t round, uint32_t node[BATCH]) {
    uint64_t x = round * 2654435761u + 1;
    for (int i = 0; i < BATCH; i++) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        node[i] = (uint32_t)((x >> 33) % (i % 4 ? nodes : nodes / 16 + 1));
    }
}

/* One round: what lies there is read, and a gradient of it is added. Returns the sum of what was read. */
static int learn(struct shore_table *table, uint32_t nodes, uint64_t round, double *sum, struct shore_diag *diag) {
    static uint32_t node[BATCH];
    static float features[BATCH][WIDTH], gradient[BATCH][WIDTH];
    struct shore_wait wait;
    sample(nodes, round, node);
    shore_wait_init(&wait);
    int rc = ended(shore_table_gather(table, node, BATCH, features, shore_wait_completion(&wait)), &wait, diag);
    if (rc) return rc;
    *sum = 0;
    for (int i = 0; i < BATCH; i++)
        for (int k = 0; k < WIDTH; k++) {
            *sum += features[i][k];
            gradient[i][k] = 1;
        }
    shore_wait_init(&wait);
    rc = ended(shore_table_scatter_add(table, node, BATCH, &gradient[0][0], shore_wait_completion(&wait)), &wait, diag);
    return rc ? rc : shore_table_commit(table, diag);
}

/* The sum of all features. */
static int total(struct shore_table *table, uint32_t nodes, double *sum, struct shore_diag *diag) {
    static uint32_t node[BATCH];
    static float features[BATCH][WIDTH];
    *sum = 0;
    for (uint32_t at = 0, n; at < nodes; at += n) {
        struct shore_wait wait;
        n = nodes - at < BATCH ? nodes - at : BATCH;
        for (uint32_t i = 0; i < n; i++)
            node[i] = at + i;
        shore_wait_init(&wait);
        int rc = ended(shore_table_gather(table, node, n, features, shore_wait_completion(&wait)), &wait, diag);
        if (rc) return rc;
        for (uint32_t i = 0; i < n; i++)
            for (int k = 0; k < WIDTH; k++)
                *sum += features[i][k];
    }
    return 0;
}

int main(int argc, char **argv) {
    struct shore_diag diag = {0};
    struct shore_table *table = NULL;
    struct shore_table_info info = {.size = sizeof info};
    double sum = 0;
    if (argc < 4) {
        fprintf(stderr, "usage: features NODES ROUNDS DRIVE...\n");
        return 2;
    }
    uint32_t nodes = (uint32_t)strtoul(argv[1], NULL, 10), rounds = (uint32_t)strtoul(argv[2], NULL, 10);
    struct shore_table_options options = {.size = sizeof options,
                                          .drives = (const char *const *)(argv + 3),
                                          .ndrives = (uint32_t)(argc - 3),
                                          .rows = nodes,
                                          .columns = WIDTH,
                                          .element = SHORE_TABLE_FP32};
    int rc = shore_table_open(&options, &table, &diag);
    if (rc == SHORE_EMISSING) rc = shore_table_create(&options, &table, &diag);
    if (rc) return fail(rc, &diag);
    shore_table_info(table, &info);
    for (uint64_t round = info.commits; !rc && round < rounds; round++) {
        rc = learn(table, nodes, round, &sum, &diag);
        if (!rc) printf("round %llu: sum of what was read %.0f\n", (unsigned long long)round + 1, sum);
        fflush(stdout);
    }
    if (!rc) rc = total(table, nodes, &sum, &diag);
    if (!rc) printf("%u nodes, %.0f added in all\n", nodes, sum);
    shore_table_close(table);
    return rc ? fail(rc, &diag) : 0;
}
