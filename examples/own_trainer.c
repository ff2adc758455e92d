/* A trainer of its own on the state engine: a small network whose parameters and optimizer state live on drives.
 *
 *     own_trainer STEPS DRIVE...
 *
 * It learns y = sin(3 a) b + c d from random points. Kill it at any instant and start it again with the same words: it
 * goes on from the last committed step, and ends with the same digest as if nothing had happened. DRIVE is a
 * directory, a file, a block device, or ram:.
 *
 * What a program does to use the engine is all here: describe tensors as blocks and parameter groups, create or open a
 * fleet, and for each step fetch, compute, update, commit. The network itself is plain C and only has to be the same
 * each time: inputs -> fixed cosine features (a frozen tensor) -> tanh layer -> one output.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "longshore/state.h"

enum { INPUTS = 4, FEATURES = 64, HIDDEN = 128, BATCH = 64 };
enum { GROUP_DECAY, GROUP_NO_DECAY, GROUP_FROZEN, GROUPS };
enum { FIRST, SECOND, BLOCKS };

static const struct shore_tensor_spec first_tensors[] = {
    {"projection", FEATURES *INPUTS, GROUP_FROZEN},
    {"phase", FEATURES, GROUP_FROZEN},
    {"weight", HIDDEN *FEATURES, GROUP_DECAY},
    {"bias", HIDDEN, GROUP_NO_DECAY},
};
static const struct shore_tensor_spec second_tensors[] = {
    {"weight", HIDDEN, GROUP_DECAY},
    {"bias", 1, GROUP_NO_DECAY},
};
static const struct shore_block_spec block_specs[BLOCKS] = {{"first", first_tensors, 4}, {"second", second_tensors, 2}};

struct trainer {
    struct shore_layout *layout;
    struct shore_fleet *fleet;
    float *params[BLOCKS], *gradient[BLOCKS]; /* in canonical order, as fetched and as submitted */
};

/* ---- the network ---- */

/* Uniform in [0, 1): a function of its arguments alone, so that a step that is repeated sees the same points. */
static float uniform(uint64_t stream, uint64_t index) {
    uint64_t x = (stream << 32) + index + 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (float)((x ^ x >> 31) >> 40) / 16777216.0f;
}

static float *tensor(const struct trainer *t, float *const *of, int block, int index) {
    return of[block] + t->layout->blocks[block].tensors[index].offset_elems;
}

/* Loss of the step's batch; adds its gradient. */
static double forward_backward(struct trainer *t, uint64_t step) {
    const float *projection = tensor(t, t->params, FIRST, 0), *phase = tensor(t, t->params, FIRST, 1);
    const float *weight1 = tensor(t, t->params, FIRST, 2), *bias1 = tensor(t, t->params, FIRST, 3);
    const float *weight2 = tensor(t, t->params, SECOND, 0), *bias2 = tensor(t, t->params, SECOND, 1);
    float *gradient_weight1 = tensor(t, t->gradient, FIRST, 2), *gradient_bias1 = tensor(t, t->gradient, FIRST, 3);
    float *gradient_weight2 = tensor(t, t->gradient, SECOND, 0), *gradient_bias2 = tensor(t, t->gradient, SECOND, 1);
    double loss = 0;
    for (int s = 0; s < BATCH; s++) {
        float x[INPUTS], feature[FEATURES], hidden[HIDDEN], y = *bias2;
        for (int i = 0; i < INPUTS; i++) {
            x[i] = 2 * uniform(1000 + step, (uint64_t)(s * INPUTS + i)) - 1;
        }
        for (int f = 0; f < FEATURES; f++) {
            float sum = phase[f];
            for (int i = 0; i < INPUTS; i++) {
                sum += projection[f * INPUTS + i] * x[i];
            }
            feature[f] = cosf(sum);
        }
        for (int h = 0; h < HIDDEN; h++) {
            float sum = bias1[h];
            for (int f = 0; f < FEATURES; f++) {
                sum += weight1[h * FEATURES + f] * feature[f];
            }
            hidden[h] = tanhf(sum);
            y += weight2[h] * hidden[h];
        }
        float error = y - (sinf(3 * x[0]) * x[1] + x[2] * x[3]);
        float slope = 2 * error / BATCH;
        loss += (double)error * error / BATCH;
        *gradient_bias2 += slope;
        for (int h = 0; h < HIDDEN; h++) {
            float back = slope * weight2[h] * (1 - hidden[h] * hidden[h]);
            gradient_weight2[h] += slope * hidden[h];
            gradient_bias1[h] += back;
            for (int f = 0; f < FEATURES; f++) {
                gradient_weight1[h * FEATURES + f] += back * feature[f];
            }
        }
    }
    return loss;
}

static void initial_values(struct trainer *t) {
    static const struct {
        int block, tensor, count;
        float scale;
    } random[] = {{FIRST, 0, FEATURES * INPUTS, 4},
                  {FIRST, 1, FEATURES, 6.2831853f},
                  {FIRST, 2, HIDDEN * FEATURES, 0.25f},
                  {SECOND, 0, HIDDEN, 0.2f}};
    for (size_t r = 0; r < sizeof random / sizeof random[0]; r++) {
        float *out = tensor(t, t->params, random[r].block, random[r].tensor);
        for (int i = 0; i < random[r].count; i++) {
            out[i] = random[r].scale * (uniform(r, (uint64_t)i) - 0.5f);
        }
    }
}

static void hyper_parameters(uint64_t step, struct shore_hyper groups[GROUPS]) {
    for (int g = 0; g < GROUPS; g++) {
        groups[g] = (struct shore_hyper){.lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};
        groups[g].weight_decay = g == GROUP_DECAY ? 0.01f : 0;
        groups[g].frozen = g == GROUP_FROZEN;
        shore_hyper_at_step(&groups[g], SHORE_ADAMW, step);
    }
}

/* ---- the state ---- */

/* Opens the fleet, or makes it where there is none yet, or none that was made to the end. If something is there (of two
 * drives, one is missing), why it did not open is what helps. */
static int open_or_create(struct trainer *t, const struct shore_fleet_options *options, struct shore_diag *diag) {
    int rc = shore_fleet_open(t->layout, options, &t->fleet, diag);
    if (rc != SHORE_EMISSING) return rc;
    const struct shore_diag why = *diag;
    rc = shore_fleet_create(t->layout, options, &t->fleet, diag);
    if (rc == SHORE_EEXISTS) *diag = why;
    if (rc) return rc;
    initial_values(t);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        rc = shore_fleet_init_block(t->fleet, b, 0, t->layout->blocks[b].segments, t->params[b], NULL, NULL, diag);
        if (rc) return rc;
    }
    return shore_fleet_seal(t->fleet, 0, diag);
}

static int fetch_all(struct trainer *t, uint64_t step, struct shore_diag *diag) {
    struct shore_wait wait[BLOCKS];
    uint32_t sent = 0;
    int rc = 0;
    for (; sent < BLOCKS && !rc; sent += !rc) {
        shore_wait_init(&wait[sent]);
        rc = shore_fleet_fetch(t->fleet, step, sent, 0, t->layout->blocks[sent].segments, SHORE_FETCH_MASTER,
                               t->params[sent], shore_wait_completion(&wait[sent]));
    }
    for (uint32_t b = 0; b < sent; b++) {
        int one = shore_wait(&wait[b], diag);
        if (!rc) rc = one;
    }
    return rc;
}

static int update_all(struct trainer *t, uint64_t base, struct shore_diag *diag) {
    struct shore_hyper groups[GROUPS];
    struct shore_wait wait[BLOCKS];
    uint32_t sent = 0;
    int rc = 0;
    hyper_parameters(base + 1, groups);
    for (; sent < BLOCKS && !rc; sent += !rc) {
        struct shore_update update = {
            .size = sizeof update,
            .base_step = base,
            .attempt = shore_fleet_attempt(t->fleet),
            .block = sent,
            .count = t->layout->blocks[sent].segments,
            .gradient = t->gradient[sent],
            .coefficient = 1,
            .groups = groups,
            .ngroups = GROUPS,
        };
        shore_wait_init(&wait[sent]);
        rc = shore_fleet_update(t->fleet, &update, shore_wait_completion(&wait[sent]));
    }
    for (uint32_t b = 0; b < sent; b++) {
        int one = shore_wait(&wait[b], diag);
        if (!rc) rc = one;
    }
    return rc;
}

static int train_step(struct trainer *t, uint64_t base, struct shore_diag *diag) {
    struct shore_wait committed;
    int rc = fetch_all(t, base, diag);
    if (rc) return rc;
    for (int b = 0; b < BLOCKS; b++) {
        memset(t->gradient[b], 0, t->layout->blocks[b].padded_elems * sizeof(float));
    }
    double loss = forward_backward(t, base);
    rc = update_all(t, base, diag);
    if (rc) return rc;
    shore_wait_init(&committed);
    rc = shore_fleet_commit(t->fleet, base, false, &loss, sizeof loss, shore_wait_completion(&committed));
    if (!rc) rc = shore_wait(&committed, diag);
    if (!rc && (base + 1) % 20 == 0) {
        printf("step %llu loss %.6f\n", (unsigned long long)base + 1, loss);
        fflush(stdout);
    }
    return rc;
}

static int train(struct trainer *t, uint64_t steps, const struct shore_fleet_options *options,
                 struct shore_diag *diag) {
    struct shore_fleet_info info = {.size = sizeof info};
    unsigned char digest[16];
    int rc = open_or_create(t, options, diag);
    if (rc) return rc;
    shore_fleet_info(t->fleet, &info);
    if (info.step) printf("going on from step %llu\n", (unsigned long long)info.step);
    for (; info.step < steps && !rc; shore_fleet_info(t->fleet, &info)) {
        rc = train_step(t, info.step, diag);
    }
    if (!rc) rc = shore_fleet_digest(t->fleet, false, digest, diag);
    if (rc) return rc;
    printf("step %llu digest ", (unsigned long long)info.step);
    for (int i = 0; i < 16; i++) {
        printf("%02x", digest[i]);
    }
    printf("\n");
    return 0;
}

int main(int argc, char **argv) {
    struct trainer t = {0};
    struct shore_diag diag = {0};
    char *end = NULL;
    uint64_t steps = argc > 1 ? strtoull(argv[1], &end, 10) : 0;
    if (argc < 3 || steps == 0 || *end) {
        fprintf(stderr, "usage: own_trainer STEPS DRIVE...\n");
        return 2;
    }
    struct shore_fleet_options options = {
        .size = sizeof options,
        .drives = (const char *const *)argv + 2,
        .ndrives = (uint32_t)argc - 2,
        .optimizer = SHORE_ADAMW,
    };
    int rc = shore_layout_make(block_specs, BLOCKS, &t.layout);
    for (int b = 0; b < BLOCKS && !rc; b++) {
        size_t bytes = t.layout->blocks[b].padded_elems * sizeof(float);
        t.params[b] = aligned_alloc(SHORE_BUFFER_ALIGN_BYTES, bytes);
        t.gradient[b] = aligned_alloc(SHORE_BUFFER_ALIGN_BYTES, bytes);
        if (!t.params[b] || !t.gradient[b]) {
            rc = SHORE_EBUDGET;
        } else {
            memset(t.params[b], 0, bytes);
        }
    }
    if (!rc) rc = train(&t, steps, &options, &diag);
    char line[2048]; /* what is wrong, and what may be done about it */
    if (rc)
        fprintf(stderr, "own_trainer: %s\n",
                diag.text[0] ? shore_diag_say(&diag, NULL, line, sizeof line) : shore_error_text(rc));
    shore_fleet_close(t.fleet);
    for (int b = 0; b < BLOCKS; b++) {
        free(t.params[b]);
        free(t.gradient[b]);
    }
    shore_layout_free(t.layout);
    return rc ? 1 : 0;
}
