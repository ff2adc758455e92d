/* Training that does not wait for the gradient norm: updates run on the drives while backward goes on, as if nothing
 * will be clipped, and are discarded and done again where that was wrong. The result is the same to the last bit.
 *
 *     speculate STEPS LIMIT DRIVE...           as described
 *     speculate --wait STEPS LIMIT DRIVE...    updates wait for the norm
 *
 * What it shows of the engine: shore_clip, shore_fleet_discard(), new parameters handed back by params_out, gradients
 * taken from where they lie, activations in scratch, a commit that goes on beside the next forward pass. Kill it at any
 * instant and start it again: it goes on from the committed step. Layers y + tanh(W y + b) learn to turn random vectors
 * into others; LIMIT is of the global norm.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "longshore/clip.h"
#include "longshore/state.h"

enum { LAYERS = 4, WIDTH = 256, BATCH = 16 };
#define ACTIVATION_BYTES ((uint64_t)BATCH * WIDTH * sizeof(float)) /* a multiple of 4096 */

struct trainer {
    bool wait;
    double limit;
    struct shore_layout *layout;
    struct shore_fleet *fleet;
    struct shore_clip clip;
    double *sums;
    float *params[LAYERS];          /* whole blocks: W, then b */
    float *dw[LAYERS], *db[LAYERS]; /* their gradients, each in memory of its own */
    float *y, *dy, *input[2];       /* [BATCH, WIDTH]; input: of a layer, on its way to or from scratch */
    unsigned char seal[LAYERS][16];
    struct shore_wait update[LAYERS], transfer[2], commit;
    bool updating[LAYERS], transferring[2], committing;
    uint64_t discarded; /* attempts */
};

/* ---- waiting ---- */

static int finish(struct shore_wait *wait, bool *pending, struct shore_diag *diag) {
    if (!*pending) return 0;
    *pending = false;
    return shore_wait(wait, diag);
}

/* Every completion must have run before its wait is used again, whatever came of it. */
static int finish_updates(struct trainer *t, struct shore_diag *diag) {
    int rc = 0;
    for (int l = 0; l < LAYERS; l++) {
        int one = finish(&t->update[l], &t->updating[l], rc ? NULL : diag);
        if (!rc) rc = one;
    }
    return rc;
}

/* ---- the network ---- */

static float uniform(uint64_t stream, uint64_t index) {
    uint64_t x = (stream << 32) + index + 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (float)((x ^ x >> 31) >> 40) / 16777216.0f;
}

/* out [WIDTH] = tanh(W x + b) */
static void inner(const struct trainer *t, int layer, const float *x, float *out) {
    const float *w = t->params[layer], *b = w + t->layout->blocks[layer].tensors[1].offset_elems;
    for (int i = 0; i < WIDTH; i++) {
        float sum = b[i];
        for (int j = 0; j < WIDTH; j++)
            sum += w[i * WIDTH + j] * x[j];
        out[i] = tanhf(sum);
    }
}

/* The layer's input leaves for scratch while y becomes its output. */
static int forward(struct trainer *t, int layer, struct shore_diag *diag) {
    int at = layer % 2;
    float h[WIDTH];
    int rc = finish(&t->update[layer], &t->updating[layer], diag); /* its parameters are handed back */
    if (!rc) rc = finish(&t->transfer[at], &t->transferring[at], diag);
    if (rc) return rc;
    memcpy(t->input[at], t->y, ACTIVATION_BYTES);
    shore_wait_init(&t->transfer[at]);
    rc = shore_fleet_scratch_put(t->fleet, (uint64_t)layer * ACTIVATION_BYTES, ACTIVATION_BYTES, t->input[at],
                                 t->seal[layer], shore_wait_completion(&t->transfer[at]));
    if (rc) return rc;
    t->transferring[at] = true;
    for (int s = 0; s < BATCH; s++) {
        float *y = t->y + s * WIDTH;
        inner(t, layer, y, h);
        for (int i = 0; i < WIDTH; i++)
            y[i] += h[i];
    }
    return 0;
}

static int fetch_input(struct trainer *t, int layer, struct shore_diag *diag) {
    int at = layer % 2;
    int rc = finish(&t->transfer[at], &t->transferring[at], diag);
    if (rc) return rc;
    shore_wait_init(&t->transfer[at]);
    rc = shore_fleet_scratch_get(t->fleet, (uint64_t)layer * ACTIVATION_BYTES, ACTIVATION_BYTES, t->input[at],
                                 t->seal[layer], shore_wait_completion(&t->transfer[at]));
    t->transferring[at] = !rc;
    return rc;
}

/* Fills the layer's gradient, and turns dy into that of its input. The next layer's input comes meanwhile. */
static int backward(struct trainer *t, int layer, struct shore_diag *diag) {
    const float *x = t->input[layer % 2], *w = t->params[layer];
    float *dw = t->dw[layer], *db = t->db[layer], h[WIDTH], dx[WIDTH];
    int rc = finish(&t->transfer[layer % 2], &t->transferring[layer % 2], diag);
    if (!rc && layer > 0) rc = fetch_input(t, layer - 1, diag);
    if (rc) return rc;
    memset(dw, 0, WIDTH * WIDTH * sizeof *dw);
    memset(db, 0, WIDTH * sizeof *db);
    for (int s = 0; s < BATCH; s++, x += WIDTH) {
        float *dy = t->dy + s * WIDTH;
        inner(t, layer, x, h);
        memcpy(dx, dy, sizeof dx);
        for (int i = 0; i < WIDTH; i++) {
            float back = dy[i] * (1 - h[i] * h[i]);
            db[i] += back;
            for (int j = 0; j < WIDTH; j++) {
                dw[i * WIDTH + j] += back * x[j];
                dx[j] += back * w[i * WIDTH + j];
            }
        }
        memcpy(dy, dx, sizeof dx);
    }
    return 0;
}

static void batch(struct trainer *t, uint64_t step) {
    for (uint64_t i = 0; i < (uint64_t)BATCH * WIDTH; i++)
        t->y[i] = 2 * uniform(1000 + step, i) - 1;
}

/* Mean square of y less what it should be, and its gradient. A batch now and then counts more. */
static double loss_of(struct trainer *t, uint64_t step) {
    double loss = 0;
    float scale = step % 7 == 6 ? 1.3f : 1;
    for (uint64_t i = 0; i < (uint64_t)BATCH * WIDTH; i++) {
        float want = 2 * uniform(1000 + step, i / WIDTH * WIDTH + (i + 1) % WIDTH) - 1,
              error = scale * (t->y[i] - want);
        loss += (double)error * error / (BATCH * WIDTH);
        t->dy[i] = 2 * scale * error / (BATCH * WIDTH);
    }
    return loss;
}

/* ---- the state ---- */

/* A layer's gradient, tensor by tensor. */
static void gather(const struct trainer *t, int layer, struct shore_gather list[2]) {
    const struct shore_layout_tensor *tensor = t->layout->blocks[layer].tensors;
    list[0] = (struct shore_gather){t->dw[layer], tensor[0].offset_elems, tensor[0].elems, SHORE_DTYPE_FP32};
    list[1] = (struct shore_gather){t->db[layer], tensor[1].offset_elems, tensor[1].elems, SHORE_DTYPE_FP32};
}

static int update(struct trainer *t, uint64_t base, int layer, float coefficient) {
    struct shore_gather list[2];
    struct shore_hyper group = {.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.01f};
    shore_hyper_at_step(&group, SHORE_ADAMW, base + 1);
    gather(t, layer, list);
    struct shore_update request = {
        .size = sizeof request,
        .base_step = base,
        .attempt = shore_fleet_attempt(t->fleet),
        .block = (uint32_t)layer,
        .count = t->layout->blocks[layer].segments,
        .gather = list,
        .ngather = 2,
        .coefficient = coefficient,
        .groups = &group,
        .ngroups = 1,
        .params_out = t->params[layer], /* backward has done with them */
        .order = (uint32_t)layer,       /* the next forward pass needs the first ones first */
    };
    shore_wait_init(&t->update[layer]);
    int rc = shore_fleet_update(t->fleet, &request, shore_wait_completion(&t->update[layer]));
    t->updating[layer] = !rc;
    return rc;
}

/* What was updated as if nothing would be clipped is thrown away, and all of it updated with the coefficient. */
static int update_again(struct trainer *t, uint64_t base, bool any, float coefficient, struct shore_diag *diag) {
    int rc = 0;
    if (any) {
        shore_fleet_discard(t->fleet);
        finish_updates(t, NULL); /* with SHORE_EDISCARDED, or done for nothing */
        t->discarded++;
    }
    for (int l = 0; l < LAYERS && !rc; l++)
        rc = update(t, base, l, coefficient);
    return rc;
}

static int train_step(struct trainer *t, uint64_t base, struct shore_diag *diag) {
    struct shore_gather list[2];
    bool below = !t->wait, any = false;
    int rc = 0;
    batch(t, base);
    for (int l = 0; l < LAYERS && !rc; l++)
        rc = forward(t, l, diag);
    double loss = loss_of(t, base);
    if (!rc) rc = finish(&t->commit, &t->committing, diag); /* of the step before */
    if (!rc) rc = fetch_input(t, LAYERS - 1, diag);
    shore_clip_begin(&t->clip, t->layout, t->limit, t->sums);
    for (int l = LAYERS - 1; l >= 0 && !rc; l--) {
        rc = backward(t, l, diag);
        if (rc) break;
        gather(t, l, list);
        below &= shore_clip_add_gathered(&t->clip, (uint32_t)l, 0, t->layout->blocks[l].segments, list, 2);
        if (below) rc = update(t, base, l, 1);
        any |= below;
    }
    if (rc) return rc;
    struct shore_clipping clipping = shore_clip_decide(&t->clip);
    if (!clipping.finite) {
        snprintf(diag->text, sizeof diag->text, "the gradients of step %llu are not finite",
                 (unsigned long long)base + 1);
        return SHORE_ENONFINITE;
    }
    if (!below) rc = update_again(t, base, any, clipping.coefficient, diag);
    if (rc) return rc;
    shore_wait_init(&t->commit);
    rc = shore_fleet_commit(t->fleet, base, false, &loss, sizeof loss, shore_wait_completion(&t->commit));
    t->committing = !rc;
    if (!rc && (base + 1) % 10 == 0)
        printf("step %llu loss %.6f norm %.4f\n", (unsigned long long)base + 1, loss, clipping.norm);
    return rc;
}

static int create(struct trainer *t, const struct shore_fleet_options *options, struct shore_diag *diag) {
    int rc = shore_fleet_create(t->layout, options, &t->fleet, diag);
    for (uint32_t l = 0; l < LAYERS && !rc; l++) {
        for (uint64_t i = 0; i < WIDTH * WIDTH; i++)
            t->params[l][i] = 0.1f * (uniform(l, i) - 0.5f);
        rc = shore_fleet_init_block(t->fleet, l, 0, t->layout->blocks[l].segments, t->params[l], NULL, NULL, diag);
    }
    return rc ? rc : shore_fleet_seal(t->fleet, 0, diag);
}

static int fetch_all(struct trainer *t, uint64_t step, struct shore_diag *diag) {
    int rc = 0;
    for (uint32_t l = 0; l < LAYERS && !rc; l++) {
        struct shore_wait wait;
        shore_wait_init(&wait);
        rc = shore_fleet_fetch(t->fleet, step, l, 0, t->layout->blocks[l].segments, SHORE_FETCH_MASTER, t->params[l],
                               shore_wait_completion(&wait));
        if (!rc) rc = shore_wait(&wait, diag);
    }
    return rc;
}

static int train(struct trainer *t, uint64_t steps, const struct shore_fleet_options *options,
                 struct shore_diag *diag) {
    struct shore_fleet_info info = {.size = sizeof info};
    unsigned char digest[16];
    int rc = shore_fleet_open(t->layout, options, &t->fleet, diag);
    if (rc == SHORE_EMISSING) rc = create(t, options, diag);
    if (rc) return rc;
    shore_fleet_info(t->fleet, &info);
    rc = fetch_all(t, info.step, diag);
    for (uint64_t step = info.step; step < steps && !rc; step++)
        rc = train_step(t, step, diag);
    int committed = finish(&t->commit, &t->committing, rc ? NULL : diag);
    if (!rc) rc = committed;
    if (!rc) rc = shore_fleet_digest(t->fleet, false, digest, diag);
    if (rc) return rc;
    shore_fleet_info(t->fleet, &info);
    printf("discarded %llu attempts\nstep %llu digest ", (unsigned long long)t->discarded,
           (unsigned long long)info.step);
    for (int i = 0; i < 16; i++)
        printf("%02x", digest[i]);
    printf("\n");
    return 0;
}

/* ---- memory, and the command line ---- */

static float *buffer(uint64_t elems) {
    float *b = aligned_alloc(SHORE_BUFFER_ALIGN_BYTES, elems * sizeof *b);
    if (b) memset(b, 0, elems * sizeof *b);
    return b;
}

static int allocate(struct trainer *t) {
    static const struct shore_tensor_spec tensors[] = {{"weight", WIDTH * WIDTH, 0}, {"bias", WIDTH, 0}};
    struct shore_block_spec blocks[LAYERS];
    for (int l = 0; l < LAYERS; l++)
        blocks[l] = (struct shore_block_spec){"layer", tensors, 2};
    int rc = shore_layout_make(blocks, LAYERS, &t->layout);
    if (rc) return rc;
    t->sums = malloc(t->layout->segments * sizeof *t->sums);
    t->y = buffer(BATCH * WIDTH);
    t->dy = buffer(BATCH * WIDTH);
    bool ok = t->sums && t->y && t->dy;
    for (int i = 0; i < 2; i++)
        ok &= (t->input[i] = buffer(BATCH * WIDTH)) != NULL;
    for (int l = 0; l < LAYERS; l++) {
        ok &= (t->params[l] = buffer(t->layout->blocks[l].padded_elems)) != NULL;
        ok &= (t->dw[l] = malloc(WIDTH * WIDTH * sizeof(float))) != NULL;
        ok &= (t->db[l] = malloc(WIDTH * sizeof(float))) != NULL;
    }
    return ok ? 0 : SHORE_EBUDGET;
}

static void release(struct trainer *t) {
    shore_fleet_close(t->fleet); /* waits for all that is under way */
    for (int l = 0; l < LAYERS; l++)
        free(t->params[l]), free(t->dw[l]), free(t->db[l]);
    free(t->input[0]);
    free(t->input[1]);
    free(t->y);
    free(t->dy);
    free(t->sums);
    shore_layout_free(t->layout);
}

int main(int argc, char **argv) {
    struct trainer t = {.wait = argc > 1 && strcmp(argv[1], "--wait") == 0};
    struct shore_diag diag = {0};
    char **word = argv + 1 + t.wait;
    int words = argc - 1 - t.wait;
    uint64_t steps = words > 2 ? strtoull(word[0], NULL, 10) : 0;
    t.limit = words > 2 ? strtod(word[1], NULL) : 0;
    if (!steps) {
        fprintf(stderr, "usage: speculate [--wait] STEPS LIMIT DRIVE...\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    const struct shore_fleet_options options = {
        .size = sizeof options,
        .drives = (const char *const *)word + 2,
        .ndrives = (uint32_t)words - 2,
        .optimizer = SHORE_ADAMW,
        .fp32_params = true,
        .scratch_bytes = LAYERS * ACTIVATION_BYTES,
    };
    int rc = allocate(&t);
    if (!rc) rc = train(&t, steps, &options, &diag);
    char line[2048]; /* what is wrong, and what may be done about it */
    if (rc)
        fprintf(stderr, "speculate: %s\n",
                diag.text[0] ? shore_diag_say(&diag, NULL, line, sizeof line) : shore_error_text(rc));
    release(&t);
    return rc ? 1 : 0;
}
