/* A training step of one's own that is larger than its memory: three blocks whose parameters, activations and gradients
 * stay in memory or go to the drives as a plan says, and updates that do not wait for the norm of the gradients. The
 * result is the same to the last bit, whatever the budget.
 *
 *     own_step [--wait] [--memory BYTES] STEPS LIMIT DRIVE...
 *
 * What it shows of the library: plan.h (what a budget keeps), pages.h (parameters on demand), store.h (activations),
 * step.h (what becomes of gradients). Kill it at any instant and start it again: it goes on from the committed step.
 * --wait: updates wait for the norm. LIMIT is of the global norm. Blocks y + tanh(W y + b) learn to turn random vectors
 * into others.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "longshore/pages.h"
#include "longshore/plan.h"
#include "longshore/step.h"
#include "longshore/store.h"

enum { BLOCKS = 3, WIDTH = 256, BATCH = 64 };
#define ACTIVATION_BYTES ((uint64_t)BATCH * WIDTH * sizeof(float)) /* a multiple of 4096 */
#define SCRATCH_BYTES (BLOCKS * ACTIVATION_BYTES)

/* Numbers of tensors in the program. */
struct tensors {
    uint32_t drives, work, parameters[BLOCKS], buffers, input[BLOCKS], pool, gradients;
};

struct trainer {
    struct shore_layout *layout;
    struct shore_program *program;
    struct shore_plan *plan;
    struct tensors tensor;
    char *memory; /* where the tensors of the plan lie */
    uint64_t memory_bytes, limit_bytes;
    double limit;
    bool wait;

    struct shore_fleet *fleet;
    struct shore_pages *pages;
    struct shore_activation_store *store;
    struct shore_step *step;
    float *y, *dy, *input[BLOCKS]; /* [BATCH, WIDTH]; input NULL: it goes to the store */
    float *dw[BLOCKS], *db[BLOCKS];
    struct shore_wait commit;
    bool committing;
    uint64_t early; /* steps that were sent while their gradients came, and rightly */
};

/* ---- the plan: what a step does, and with what ---- */

static struct shore_fate fate_of(const struct trainer *t, uint32_t tensor) {
    struct shore_fate fate = {.size = sizeof fate};
    shore_plan_tensor(t->plan, tensor, &fate);
    return fate;
}

static uint64_t parameter_bytes(const struct trainer *t, int block) {
    return t->layout->blocks[block].padded_elems * sizeof(float);
}

static uint64_t gradient_bytes(void) {
    return (WIDTH * WIDTH + WIDTH) * sizeof(float);
}

/* Drives are not told apart. */
static uint32_t add_operation(const struct trainer *t, const char *name, int block, uint64_t flops) {
    uint32_t operation = shore_program_operation(t->program, name);
    struct shore_computing computing = {.size = sizeof computing, .work = flops, .rows = BATCH};
    shore_program_computes(t->program, operation, &computing);
    shore_program_costs(t->program, operation, SHORE_LANE_DRIVE_MIXED, 0, parameter_bytes(t, block));
    return operation;
}

static void describe(struct trainer *t, const struct shore_fleet_options *options) {
    struct shore_program *p = t->program = shore_program_new();
    uint64_t flops = 2 * BATCH * WIDTH * WIDTH;
    uint32_t forward[BLOCKS], backward[BLOCKS];
    for (int b = 0; b < BLOCKS; b++)
        forward[b] = add_operation(t, "forward", b, flops);
    for (int b = BLOCKS - 1; b >= 0; b--)
        backward[b] = add_operation(t, "backward", b, 2 * flops);
    struct shore_tensor fixed = {.size = sizeof fixed, .name = "what a batch passes through", .key = 1};
    fixed.place = SHORE_PLACE_PLAIN;
    fixed.bytes = 2 * ACTIVATION_BYTES;
    t->tensor.work = shore_program_tensor(p, &fixed);
    struct shore_tensor drives = {.size = sizeof drives, .name = "rings of the drives", .key = 2};
    drives.whole = true;
    drives.place = SHORE_PLACE_PLAIN;
    drives.own = true;
    drives.bytes = shore_fleet_memory_least_bytes(t->layout, options);
    drives.full_bytes = shore_fleet_memory_bytes(t->layout, options);
    t->tensor.drives = shore_program_tensor(p, &drives);
    struct shore_tensor gradients = {.size = sizeof gradients, .name = "gradients", .key = 3};
    gradients.saves_lane = SHORE_LANE_DRIVE_MIXED;
    gradients.saves = 2; /* a gradient that waits on a drive is written there, and read */
    gradients.place = SHORE_PLACE_PLAIN;
    gradients.own = true;
    gradients.bytes = gradient_bytes();
    gradients.full_bytes = BLOCKS * gradient_bytes();
    t->tensor.gradients = shore_program_tensor(p, &gradients);
    struct shore_tensor pool = {.size = sizeof pool, .name = "activations on their way", .key = 4};
    pool.place = SHORE_PLACE_PLAIN;
    pool.bytes = 2 * ACTIVATION_BYTES;
    t->tensor.pool = shore_program_tensor(p, &pool);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        struct shore_tensor layer = {.size = sizeof layer, .name = "parameters", .key = 5, .index = b, .group = 1};
        layer.place = SHORE_PLACE_PLAIN;
        layer.ways = SHORE_WAY_KEEP | SHORE_WAY_MOVE;
        layer.bytes = parameter_bytes(t, (int)b);
        t->tensor.parameters[b] = shore_program_tensor(p, &layer);
        shore_program_reads(p, forward[b], t->tensor.parameters[b]);
        shore_program_reads(p, backward[b], t->tensor.parameters[b]);
        struct shore_tensor input = {.size = sizeof input, .name = "input of a block", .key = 6, .index = b};
        input.place = SHORE_PLACE_PLAIN;
        input.ways = SHORE_WAY_KEEP | SHORE_WAY_MOVE;
        input.bytes = ACTIVATION_BYTES;
        t->tensor.input[b] = shore_program_tensor(p, &input);
        shore_program_makes(p, forward[b], t->tensor.input[b]);
        shore_program_reads(p, backward[b], t->tensor.input[b]);
        shore_program_frees(p, backward[b], t->tensor.input[b]);
    }
    struct shore_tensor buffers = {.size = sizeof buffers, .name = "buffers of parameters", .key = 7, .group = 1};
    buffers.buffers = true;
    buffers.place = SHORE_PLACE_PLAIN;
    buffers.bytes = parameter_bytes(t, 0);
    buffers.least = 1;
    buffers.most = 2;
    t->tensor.buffers = shore_program_tensor(p, &buffers);
}

/* The plan for the budget, and memory for what it places. options: the drives get the rings that it says. */
static int make_plan(struct trainer *t, struct shore_fleet_options *options, struct shore_diag *diag) {
    struct shore_plan_options budget = {.size = sizeof budget, .memory_bytes = t->limit_bytes, .what = "these blocks"};
    struct shore_plan_sums sums = {.size = sizeof sums};
    budget.one_memory = true;
    describe(t, options);
    int rc = shore_plan_open(t->program, &budget, &t->plan, diag);
    if (rc) return rc;
    shore_plan_sums(t->plan, &sums);
    options->ring_bytes = fate_of(t, t->tensor.drives).bytes;
    t->memory_bytes = sums.placed_bytes;
    rc = shore_buffer_alloc(t->memory_bytes, 0, (void **)&t->memory, diag);
    if (rc) return rc;
    t->y = (float *)(void *)(t->memory + fate_of(t, t->tensor.work).offset);
    t->dy = t->y + BATCH * WIDTH;
    int stay = 0, inputs = 0;
    for (int b = 0; b < BLOCKS; b++) {
        struct shore_fate input = fate_of(t, t->tensor.input[b]);
        if (input.way == SHORE_WAY_KEEP) t->input[b] = (float *)(void *)(t->memory + input.offset);
        stay += fate_of(t, t->tensor.parameters[b]).way == SHORE_WAY_KEEP;
        inputs += input.way == SHORE_WAY_KEEP;
    }
    printf("in memory: parameters of %d of %d blocks, inputs of %d, gradients of %.1f\n", stay, BLOCKS, inputs,
           (double)fate_of(t, t->tensor.gradients).bytes / gradient_bytes());
    return 0;
}

static uint64_t buffer_at(const struct trainer *t, uint64_t nth) {
    uint64_t offset = 0;
    shore_plan_buffer(t->plan, t->tensor.buffers, nth, &offset);
    return offset;
}

/* ---- what the plan says is opened ---- */

static int open_pages(struct trainer *t, struct shore_diag *diag) {
    struct shore_fate buffers = fate_of(t, t->tensor.buffers);
    struct shore_pages_range range[BLOCKS];
    void *buffer[2];
    for (uint32_t b = 0; b < BLOCKS; b++) {
        struct shore_fate fate = fate_of(t, t->tensor.parameters[b]);
        bool stays = fate.way == SHORE_WAY_KEEP;
        range[b] = (struct shore_pages_range){.block = b, .count = t->layout->blocks[b].segments};
        range[b].pool = stays ? SHORE_PAGES_STAYS : 0;
        range[b].kind = SHORE_FETCH_MASTER;
        range[b].memory = stays ? t->memory + fate.offset : NULL;
    }
    for (uint64_t i = 0; i < buffers.count; i++)
        buffer[i] = t->memory + buffer_at(t, i);
    const struct shore_pages_pool pool = {.nbuffers = (uint32_t)buffers.count, .buffers = buffer};
    const struct shore_pages_options options = {
        .size = sizeof options, .ranges = range, .nranges = BLOCKS, .pools = &pool, .npools = 1};
    return shore_pages_open(t->fleet, &options, &t->pages, diag);
}

static int open_step(struct trainer *t, struct shore_diag *diag) {
    struct shore_step_unit units[BLOCKS];
    for (uint32_t b = 0; b < BLOCKS; b++) {
        uint32_t segments = t->layout->blocks[b].segments;
        units[b] = (struct shore_step_unit){.block = b, .count = segments, .nparts = 1, .part = {{b, 0, segments}}};
    }
    const struct shore_step_options options = {
        .size = sizeof options,
        .units = units,
        .nunits = BLOCKS,
        .clip = t->limit,
        .speculate = t->wait ? SHORE_SPECULATE_OFF : SHORE_SPECULATE_ON,
        .room_bytes = fate_of(t, t->tensor.gradients).bytes,
    };
    return shore_step_open(t->fleet, t->pages, &options, &t->step, diag);
}

static int open_all(struct trainer *t, struct shore_diag *diag) {
    const struct shore_store_memory pool = {t->memory + fate_of(t, t->tensor.pool).offset, 2 * ACTIVATION_BYTES};
    const struct shore_store_options options = {
        .size = sizeof options, .pool = &pool, .npool = 1, .scratch_bytes = SCRATCH_BYTES};
    int rc = shore_store_open(t->fleet, &options, &t->store, diag);
    if (!rc) rc = open_pages(t, diag);
    return rc ? rc : open_step(t, diag);
}

/* ---- the network ---- */

static float uniform(uint64_t stream, uint64_t index) {
    uint64_t x = (stream << 32) + index + 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (float)((x ^ x >> 31) >> 40) / 16777216.0f;
}

/* out [WIDTH] = tanh(W x + b) */
static void inner(const float *w, const float *bias, const float *x, float *out) {
    for (int i = 0; i < WIDTH; i++) {
        float sum = bias[i];
        for (int j = 0; j < WIDTH; j++)
            sum += w[i * WIDTH + j] * x[j];
        out[i] = tanhf(sum);
    }
}

static int parameters(struct trainer *t, int block, const float **w, const float **bias, struct shore_diag *diag) {
    const void *at;
    int rc = shore_pages_get(t->pages, (uint32_t)block, &at, diag);
    if (rc) return rc;
    *w = at;
    *bias = *w + t->layout->blocks[block].tensors[1].offset_elems;
    return 0;
}

/* What is needed sooner has a greater key: backward begins with the last block. */
static uint64_t key_of(int block) {
    return (uint64_t)block + 1;
}

/* Where the input of a block stays until backward. */
static int keep_input(struct trainer *t, int block, struct shore_diag *diag) {
    void *to = t->input[block];
    int rc = to ? 0 : shore_store_take(t->store, key_of(block), ACTIVATION_BYTES, true, &to, diag);
    if (rc) return rc;
    memcpy(to, t->y, ACTIVATION_BYTES);
    if (t->input[block]) return 0;
    rc = shore_store_put(t->store, key_of(block), diag);
    return rc ? rc : shore_store_release(t->store, key_of(block), diag);
}

static int forward(struct trainer *t, int block, struct shore_diag *diag) {
    const float *w, *bias;
    float h[WIDTH];
    int rc = keep_input(t, block, diag);
    if (!rc) rc = parameters(t, block, &w, &bias, diag);
    if (rc) return rc;
    if (block + 1 < BLOCKS) shore_pages_want(t->pages, (uint32_t)block + 1);
    for (int s = 0; s < BATCH; s++) {
        float *y = t->y + s * WIDTH;
        inner(w, bias, y, h);
        for (int i = 0; i < WIDTH; i++)
            y[i] += h[i];
    }
    shore_pages_release(t->pages, (uint32_t)block);
    return 0;
}

/* Fills the block's gradient, and turns dy into that of its input. */
static void differentiate(struct trainer *t, int block, const float *w, const float *bias, const float *x) {
    float *dw = t->dw[block], *db = t->db[block], h[WIDTH], dx[WIDTH];
    for (int s = 0; s < BATCH; s++, x += WIDTH) {
        float *dy = t->dy + s * WIDTH;
        inner(w, bias, x, h);
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
}

static void forget_gradient(struct trainer *t, int block) {
    free(t->dw[block]);
    free(t->db[block]);
    t->dw[block] = t->db[block] = NULL;
}

/* The gradient is complete: the step sends it, holds it, or puts it aside on the drives. */
static int hand_over(struct trainer *t, int block, uint64_t base, struct shore_diag *diag) {
    const struct shore_layout_tensor *tensor = t->layout->blocks[block].tensors;
    const struct shore_gather list[2] = {{t->dw[block], tensor[0].offset_elems, tensor[0].elems, SHORE_DTYPE_FP32},
                                         {t->db[block], tensor[1].offset_elems, tensor[1].elems, SHORE_DTYPE_FP32}};
    const struct shore_step_gradient gradient = {.size = sizeof gradient, .gather = list, .ngather = 2};
    struct shore_hyper group = {.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.01f};
    enum shore_step_way way;
    shore_hyper_at_step(&group, SHORE_ADAMW, base + 1);
    int rc = shore_step_groups(t->step, (uint32_t)block, &group, 1);
    if (!rc) rc = shore_step_add(t->step, (uint32_t)block, &gradient, diag);
    if (!rc) rc = shore_step_complete(t->step, (uint32_t)block, 0, &way, diag);
    for (int b = 0; b < BLOCKS && !rc; b++)
        if (t->dw[b] && !shore_step_needs(t->step, (uint32_t)b)) forget_gradient(t, b);
    return rc;
}

static int backward(struct trainer *t, int block, uint64_t base, struct shore_diag *diag) {
    const float *w, *bias;
    void *x = t->input[block];
    int rc = parameters(t, block, &w, &bias, diag);
    if (!rc && !x) rc = shore_store_get(t->store, key_of(block), &x, diag);
    if (rc) return rc;
    if (block > 0) shore_pages_want(t->pages, (uint32_t)block - 1);
    if (block > 0 && !t->input[block - 1]) shore_store_want(t->store, key_of(block - 1), NULL);
    t->dw[block] = calloc(WIDTH * WIDTH, sizeof(float));
    t->db[block] = calloc(WIDTH, sizeof(float));
    if (!t->dw[block] || !t->db[block]) return -ENOMEM;
    differentiate(t, block, w, bias, x);
    shore_pages_release(t->pages, (uint32_t)block); /* an update may change it from here on */
    if (!t->input[block]) rc = shore_store_release(t->store, key_of(block), diag);
    return rc ? rc : hand_over(t, block, base, diag);
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

/* ---- a step ---- */

static int finish_commit(struct trainer *t, struct shore_diag *diag) {
    if (!t->committing) return 0;
    t->committing = false;
    int rc = shore_wait(&t->commit, diag);
    shore_step_durable(t->step);
    for (int b = 0; b < BLOCKS; b++)
        forget_gradient(t, b); /* no update reads them any more */
    return rc;
}

static int train_step(struct trainer *t, uint64_t base, struct shore_diag *diag) {
    int rc = 0;
    shore_pages_set_step(t->pages, base);
    shore_store_begin(t->store, base + 1);
    batch(t, base);
    for (int b = 0; b < BLOCKS && !rc; b++)
        rc = forward(t, b, diag);
    double loss = loss_of(t, base);
    if (!rc) rc = finish_commit(t, diag); /* of the step before, which went on beside the forward pass */
    if (rc) return rc;
    shore_step_begin(t->step, base, false);
    for (int b = BLOCKS - 1; b >= 0 && !rc; b--)
        rc = backward(t, b, base, diag);
    if (!rc) rc = shore_store_drop_all(t->store, diag);
    if (rc) return rc;
    struct shore_clipping clipping = shore_step_decide(t->step);
    rc = shore_step_make(t->step, diag);
    if (rc) return rc;
    t->early += shore_step_speculated(t->step);
    shore_wait_init(&t->commit);
    rc = shore_fleet_commit(t->fleet, base, false, &loss, sizeof loss, shore_wait_completion(&t->commit));
    if (rc) return rc;
    t->committing = true;
    shore_step_made(t->step);
    if ((base + 1) % 10 == 0)
        printf("step %llu loss %.6f norm %.4f\n", (unsigned long long)base + 1, loss, clipping.norm);
    return 0;
}

static int create(struct trainer *t, const struct shore_fleet_options *options, struct shore_diag *diag) {
    int rc = shore_fleet_create(t->layout, options, &t->fleet, diag);
    for (uint32_t b = 0; b < BLOCKS && !rc; b++) {
        float *master = calloc(t->layout->blocks[b].padded_elems, sizeof *master);
        if (!master) return -ENOMEM;
        for (uint64_t i = 0; i < WIDTH * WIDTH; i++)
            master[i] = 0.06f * (uniform(b, i) - 0.5f);
        rc = shore_fleet_init_block(t->fleet, b, 0, t->layout->blocks[b].segments, master, NULL, NULL, diag);
        free(master);
    }
    return rc ? rc : shore_fleet_seal(t->fleet, 0, diag);
}

static int train(struct trainer *t, uint64_t steps, struct shore_fleet_options *options, struct shore_diag *diag) {
    struct shore_fleet_info info = {.size = sizeof info};
    unsigned char digest[16];
    int rc = make_plan(t, options, diag);
    if (rc) return rc;
    rc = shore_fleet_open(t->layout, options, &t->fleet, diag);
    if (rc == SHORE_EMISSING) rc = create(t, options, diag);
    if (!rc) rc = open_all(t, diag);
    if (rc) return rc;
    shore_fleet_info(t->fleet, &info);
    for (uint64_t step = info.step; step < steps && !rc; step++)
        rc = train_step(t, step, diag);
    int committed = finish_commit(t, rc ? NULL : diag);
    if (!rc) rc = committed;
    if (!rc) rc = shore_fleet_digest(t->fleet, false, digest, diag);
    if (rc) return rc;
    shore_fleet_info(t->fleet, &info);
    printf("sent %llu steps while their gradients came\nstep %llu digest ", (unsigned long long)t->early,
           (unsigned long long)info.step);
    for (int i = 0; i < 16; i++)
        printf("%02x", digest[i]);
    printf("\n");
    return 0;
}

/* ---- the command line ---- */

static int make_layout(struct trainer *t) {
    static const struct shore_tensor_spec tensors[] = {{"weight", WIDTH * WIDTH, 0}, {"bias", WIDTH, 0}};
    static const struct shore_block_spec blocks[BLOCKS] = {
        {"first", tensors, 2}, {"second", tensors, 2}, {"third", tensors, 2}};
    return shore_layout_make(blocks, BLOCKS, &t->layout);
}

static void release(struct trainer *t) {
    if (t->committing) shore_wait(&t->commit, NULL);
    shore_step_close(t->step);
    shore_store_close(t->store);
    shore_pages_close(t->pages);
    shore_fleet_close(t->fleet); /* waits for all that is under way */
    for (int b = 0; b < BLOCKS; b++)
        forget_gradient(t, b);
    shore_buffer_free(t->memory, t->memory_bytes);
    shore_plan_close(t->plan);
    shore_program_free(t->program);
    shore_layout_free(t->layout);
}

int main(int argc, char **argv) {
    struct trainer t = {.limit_bytes = 64 << 20};
    struct shore_diag diag = {.text = ""};
    char said[2048], **word = argv + 1;
    if (*word && strcmp(*word, "--wait") == 0) t.wait = true, word++;
    if (*word && strcmp(*word, "--memory") == 0 && word[1]) t.limit_bytes = strtoull(word[1], NULL, 10), word += 2;
    int words = argc - (int)(word - argv);
    uint64_t steps = words > 2 ? strtoull(word[0], NULL, 10) : 0;
    t.limit = words > 2 ? strtod(word[1], NULL) : 0;
    if (!steps) {
        fprintf(stderr, "usage: own_step [--wait] [--memory BYTES] STEPS LIMIT DRIVE...\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    struct shore_fleet_options options = {
        .size = sizeof options,
        .drives = (const char *const *)word + 2,
        .ndrives = (uint32_t)words - 2,
        .optimizer = SHORE_ADAMW,
        .fp32_params = true,
        .spill = true,
        .scratch_bytes = SCRATCH_BYTES,
    };
    int rc = make_layout(&t);
    if (!rc) rc = train(&t, steps, &options, &diag);
    if (rc && !diag.text[0]) snprintf(diag.text, sizeof diag.text, "%s", shore_error_text(rc));
    if (rc) fprintf(stderr, "own_step: %s\n", shore_diag_say(&diag, NULL, said, sizeof said));
    release(&t);
    return rc ? 1 : 0;
}
