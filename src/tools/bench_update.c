#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "cli/clean_text.h"
#include "drive/counters.h"
#include "near/update.h"
#include "number/bf16.h"
#include "run/emulation/tempo.h"
#include "tools/bench.h"
#include "train/host_update.h"

/* Blocks about the size of a layer of GPT-2 124M, so that the pipeline sees the sizes of training. */
#define BLOCK_ELEMS (108u * SHORE_SEGMENT_ELEMS)
#define INIT_SEGMENTS 16u
#define HOST_BUFFERS 3u
#define HOST_SEGMENTS 32u

struct args {
    struct shore__strings drives;
    char *params;
    uint32_t steps, warmup;
    enum shore_optimizer optimizer;
    enum shore_moments moments;
    enum shore_io io;
    uint64_t chunk_bytes, ring_bytes;
    char *emulate;
    bool bf16_gradients, host_update, deliver, overwrite, json, quiet;
};

#define OPTION(...) SHORE__OPTION(struct args, __VA_ARGS__)
#define CHOICE(...) SHORE__CHOICE(struct args, __VA_ARGS__)
static const struct shore__option options[] = {
    OPTION(LIST, "drive", drives, "PATH...", "directories, devices or ram:; a temporary volume on each"),
    OPTION(TEXT, "params", params, "N", "parameters, such as 124M; otherwise 124M"),
    OPTION(WHOLE, "steps", steps, "N", "steps that are measured", .is.least = 1, .is.most = 100000),
    OPTION(WHOLE, "warmup", warmup, "N", "steps before them"),
    CHOICE("optimizer", optimizer, SHORE__OPTIMIZERS, "what UPDATE computes"),
    CHOICE("moments", moments, "fp32|8bit", "how the optimizer's moments are stored"),
    CHOICE("grad-precision", bf16_gradients, "fp32|bf16", "how gradients are handed over"),
    CHOICE("update", host_update, "drive|host",
           "where it runs; host: gradients are spilled first, then all crosses the link"),
    OPTION(TEXT, "emulate", emulate, "FILE", "take as long as the machine would that FILE describes"),
    OPTION(FLAG, "deliver", deliver, NULL, "hand the new bf16 parameters over as well, as training does"),
    OPTION(SIZE, "chunk-size", chunk_bytes, "SIZE", "bytes that UPDATE reads at once; otherwise chosen"),
    OPTION(SIZE, "ring-size", ring_bytes, "SIZE", "memory of the buffers of all drives; otherwise 8 MiB each"),
    CHOICE("io", io, "auto|uring|threads|buffered", "how drives are read and written"),
    OPTION(FLAG, "overwrite", overwrite, NULL, "use a device although something is on it (it is lost)"),
    OPTION(FLAG, "json", json, NULL, "one JSON object on one line"),
    OPTION(FLAG, "quiet", quiet, NULL, "no progress"),
};

struct bench {
    const struct args *args;
    uint64_t params;
    struct shore__addresses places;
    struct shore_layout *layout;
    struct shore_fleet *fleet;
    float *gradient; /* of the largest block */
    uint16_t *delivered;
    void *host_memory; /* of --update host */
    struct shore__tempo *tempo;
    struct shore_wait *waits;
    double *seconds;
    struct shore_ledger before, after;
};

static int make_layout(struct bench *b, struct shore_diag *diag) {
    uint32_t nblocks = (uint32_t)((b->params + BLOCK_ELEMS - 1) / BLOCK_ELEMS);
    struct shore_block_spec *blocks = calloc(nblocks, sizeof *blocks);
    struct shore_tensor_spec *tensors = calloc(nblocks, sizeof *tensors);
    int rc = blocks && tensors ? 0 : -ENOMEM;
    uint64_t left = b->params;
    for (uint32_t i = 0; !rc && i < nblocks; i++) {
        tensors[i] = (struct shore_tensor_spec){.name = "w", .elems = left < BLOCK_ELEMS ? left : BLOCK_ELEMS};
        blocks[i] = (struct shore_block_spec){.name = "block", .tensors = &tensors[i], .ntensors = 1};
        left -= tensors[i].elems;
    }
    if (!rc) rc = shore_layout_make(blocks, nblocks, &b->layout);
    free(tensors);
    free(blocks);
    return rc ? shore__fail(diag, rc, "the layout of %llu parameters cannot be made: %s", (unsigned long long)b->params,
                            shore_error_text(rc))
              : 0;
}

static int make_buffers(struct bench *b, struct shore_diag *diag) {
    uint64_t largest = b->layout->blocks[0].padded_elems;
    b->gradient = shore__arena_alloc(NULL, largest * sizeof *b->gradient);
    if (b->args->deliver) b->delivered = shore__arena_alloc(NULL, largest * sizeof *b->delivered);
    b->waits = calloc(b->layout->nblocks + 1, sizeof *b->waits);
    b->seconds = calloc(b->args->steps, sizeof *b->seconds);
    if (!b->gradient || (b->args->deliver && !b->delivered) || !b->waits || !b->seconds)
        return shore__out_of_memory(diag);
    for (uint64_t i = 0; i < largest; i++) {
        float x = ((float)(uint32_t)(i * 2654435761u) / 4294967296.0f - 0.5f) * 1e-2f;
        uint16_t half = shore__f32_to_bf16(x);
        if (b->args->bf16_gradients)
            memcpy((unsigned char *)b->gradient + 2 * i, &half, 2);
        else
            b->gradient[i] = x;
    }
    return 0;
}

static int fill(struct bench *b, struct shore_diag *diag) {
    float *span = shore__arena_alloc(NULL, (uint64_t)INIT_SEGMENTS * SHORE_SEGMENT_ELEMS * sizeof *span);
    int rc = span ? 0 : shore__out_of_memory(diag);
    uint64_t done = 0;
    for (uint32_t block = 0; !rc && block < b->layout->nblocks; block++) {
        const struct shore_layout_block *l = &b->layout->blocks[block];
        for (uint32_t s = 0; !rc && s < l->segments; s += INIT_SEGMENTS) {
            uint32_t count = l->segments - s < INIT_SEGMENTS ? l->segments - s : INIT_SEGMENTS;
            uint64_t first = (uint64_t)s * SHORE_SEGMENT_ELEMS, n = (uint64_t)count * SHORE_SEGMENT_ELEMS;
            for (uint64_t i = 0; i < n; i++)
                span[i] = first + i < l->elems
                              ? ((float)(uint32_t)((first + i) * 2246822519u) / 4294967296.0f - 0.5f) * 0.04f
                              : 0;
            rc = shore_fleet_init_block(b->fleet, block, s, count, span, NULL, NULL, diag);
            done += n;
            if (!rc && shore__cli_work(b->args->quiet ? NULL : (void *)"filling the volume", done * 12,
                                       b->layout->segments * SHORE_SEGMENT_ELEMS * 12))
                rc = shore__fail(diag, -ECANCELED, "stopped");
        }
    }
    shore__arena_free(NULL, span);
    return rc ? rc : shore_fleet_seal(b->fleet, 0, diag);
}

static enum shore_gradient_form form_of(const struct bench *b) {
    return b->args->bf16_gradients ? SHORE_GRADIENT_BF16 : SHORE_GRADIENT_FP32;
}

static void *delivered_at(void *ctx, uint32_t block, uint32_t segment) {
    struct bench *b = ctx;
    return b->delivered ? b->delivered + (size_t)segment * SHORE_SEGMENT_ELEMS : NULL;
}

/* Updates as ZeRO-Infinity does: gradients go to the drives block by block, then the host updates. */
static int update_on_host(struct bench *b, uint64_t step, const struct shore_hyper *hyper, struct shore_diag *diag) {
    struct shore_wait *wait = &b->waits[0];
    int rc = 0;
    shore_wait_init(wait);
    for (uint32_t block = 0; !rc && block < b->layout->nblocks; block++) {
        shore_wait_add(wait);
        rc = shore_fleet_spill(b->fleet, block, 0, b->layout->blocks[block].segments, form_of(b), b->gradient,
                               shore_wait_completion(wait));
        if (rc) shore_wait_end(wait, rc);
    }
    shore_wait_end(wait, 0);
    rc = shore_wait(wait, diag);
    if (rc) return rc;
    const struct shore_machine *e = shore__tempo_machine(b->tempo);
    const struct shore__host_update how = {
        .base_step = step,
        .attempt = shore_fleet_attempt(b->fleet),
        .form = form_of(b),
        .coefficient = 1,
        .groups = hyper,
        .ngroups = 1,
        .params_at = delivered_at,
        .ctx = b,
        .buffers = e && e->host_buffers && e->host_buffers < HOST_BUFFERS ? e->host_buffers : HOST_BUFFERS,
        .chunk_segments = HOST_SEGMENTS,
        .memory = b->host_memory,
    };
    return shore__host_update_run(b->fleet, &how, diag);
}

static int update_beside(struct bench *b, uint64_t step, const struct shore_hyper *hyper, struct shore_diag *diag) {
    uint32_t submitted = 0;
    int rc = 0;
    for (uint32_t block = 0; !rc && block < b->layout->nblocks; block++) {
        struct shore_update update = {
            .size = sizeof update,
            .base_step = step,
            .attempt = shore_fleet_attempt(b->fleet),
            .block = block,
            .count = b->layout->blocks[block].segments,
            .gradient = b->gradient,
            .form = form_of(b),
            .coefficient = 1,
            .groups = hyper,
            .ngroups = 1,
            .params_out = b->delivered,
            .order = block,
        };
        shore_wait_init(&b->waits[block]);
        rc = shore_fleet_update(b->fleet, &update, shore_wait_completion(&b->waits[block]));
        if (rc)
            shore__fail(diag, rc, "UPDATE was refused: %s", shore_error_text(rc));
        else
            submitted++;
    }
    for (uint32_t block = 0; block < submitted; block++) {
        struct shore_diag own = {0};
        int result = shore_wait(&b->waits[block], &own);
        if (result && !rc) {
            rc = result;
            *diag = own;
        }
    }
    return rc;
}

static int one_step(struct bench *b, uint64_t step, struct shore_diag *diag) {
    struct shore_hyper hyper = {.lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
    shore_hyper_at_step(&hyper, b->args->optimizer, step + 1);
    int rc = b->args->host_update ? update_on_host(b, step, &hyper, diag) : update_beside(b, step, &hyper, diag);
    if (rc) return rc;
    struct shore_wait *commit = &b->waits[b->layout->nblocks];
    shore_wait_init(commit);
    rc = shore_fleet_commit(b->fleet, step, false, "{}", 2, shore_wait_completion(commit));
    return rc ? shore__fail(diag, rc, "the commit was refused: %s", shore_error_text(rc)) : shore_wait(commit, diag);
}

static int measure(struct bench *b, struct shore_diag *diag) {
    b->before.size = b->after.size = sizeof b->before;
    for (uint64_t step = 0; step < (uint64_t)b->args->warmup + b->args->steps; step++) {
        if (step == b->args->warmup) shore_fleet_ledger(b->fleet, &b->before);
        uint64_t start = shore__now_ns();
        int rc = one_step(b, step, diag);
        if (rc) return rc;
        if (step >= b->args->warmup) b->seconds[step - b->args->warmup] = (double)(shore__now_ns() - start) * 1e-9;
        if (shore__cli_stop_wanted()) return shore__fail(diag, -ECANCELED, "stopped");
    }
    shore_fleet_ledger(b->fleet, &b->after);
    return 0;
}

/* Means per step: bytes and seconds, summed over drives. */
struct figures {
    double seconds_mean, median, read, written, link_in, link_out, commit_bytes, io_wait, compute, commit;
};

static struct figures figures_of(const struct bench *b) {
    double n = b->args->steps, total = 0;
    for (uint32_t i = 0; i < b->args->steps; i++)
        total += b->seconds[i];
#define SINCE(field) ((double)(b->after.field - b->before.field) / n)
    return (struct figures){
        .seconds_mean = total / n,
        .median = shore__median(b->seconds, b->args->steps),
        .read = SINCE(drive_read_state) + SINCE(drive_read_fetch) + SINCE(drive_read_spill),
        .written = SINCE(drive_write_state) + SINCE(drive_write_spill),
        .link_in = SINCE(link_in_gradients) + SINCE(link_in_state),
        .link_out = SINCE(link_out_params) + SINCE(link_out_gradients) + SINCE(link_out_state),
        .commit_bytes = SINCE(drive_write_commit),
        .io_wait = SINCE(update_io_wait_ns) * 1e-9,
        .compute = SINCE(update_compute_ns) * 1e-9,
        .commit = SINCE(commit_ns) * 1e-9,
    };
#undef SINCE
}

static int print_json(struct bench *b, const struct figures *f) {
    const struct args *a = b->args;
    const struct shore_fleet_info info = shore__fleet_info(b->fleet);
    char describe[512] = "";
    shore_fleet_drive_describe(b->fleet, 0, describe, sizeof describe);
    json_t *o = json_object();
    json_object_set_new(o, "params", json_integer((json_int_t)b->params));
    json_object_set_new(o, "params_per_second", json_real((double)b->params / f->median));
    json_object_set_new(o, "bytes_per_second", json_real((f->read + f->written + f->commit_bytes) / f->median));
    json_object_set_new(o, "bytes_per_param", json_real((f->read + f->written) / (double)b->params));
    json_object_set_new(o, "seconds", json_real(f->median));
    json_object_set_new(o, "seconds_mean", json_real(f->seconds_mean));
    json_object_set_new(o, "steps", json_integer(a->steps));
    json_object_set_new(o, "read_bytes", json_real(f->read));
    json_object_set_new(o, "write_bytes", json_real(f->written));
    json_object_set_new(o, "link_in_bytes", json_real(f->link_in));
    json_object_set_new(o, "link_out_bytes", json_real(f->link_out));
    json_object_set_new(o, "commit_bytes", json_real(f->commit_bytes));
    json_object_set_new(o, "io_wait_seconds", json_real(f->io_wait));
    json_object_set_new(o, "compute_seconds", json_real(f->compute));
    json_object_set_new(o, "commit_seconds", json_real(f->commit));
    json_object_set_new(o, "drives", json_integer(info.ndrives));
    json_object_set_new(o, "disk_bytes", json_integer((json_int_t)info.disk_bytes));
    json_object_set_new(o, "optimizer", json_string(shore__optimizer(a->optimizer)->name));
    json_object_set_new(o, "moments", json_string(a->moments == SHORE_MOMENTS_8BIT ? "8bit" : "fp32"));
    json_object_set_new(o, "update", json_string(a->host_update ? "host" : "drive"));
    json_object_set_new(o, "emulated", json_boolean(b->tempo));
    json_object_set_new(o, "drive", shore__clean_json(describe, strlen(describe)));
    return shore__cli_print_json(o);
}

static int print(struct bench *b) {
    const struct args *a = b->args;
    const struct figures f = figures_of(b);
    double params = (double)b->params;
    char describe[512];
    if (a->json) return print_json(b, &f);
    if (b->tempo) {
        const struct shore_machine *e = shore__tempo_machine(b->tempo);
        printf("emulated: times are those of %s, rates divided by %g\n", e->name, e->scale);
    }
    printf("UPDATE of %llu parameters: %.3f s a step (median of %u), %.1f million parameters/s, %s/s\n",
           (unsigned long long)b->params, f.median, a->steps, params / f.median / 1e6,
           shore__format_size((uint64_t)((f.read + f.written + f.commit_bytes) / f.median)).text);
    printf("bytes a parameter and step inside the drive: %.3f (read %.3f, written %.3f)\n",
           (f.read + f.written) / params, f.read / params, f.written / params);
    printf("bytes a parameter and step on the host link: %.3f in, %.3f out\n", f.link_in / params, f.link_out / params);
    printf("of %.3f s: waiting for I/O %.3f, computing %.3f, commit %.4f (summed over drives)\n", f.seconds_mean,
           f.io_wait, f.compute, f.commit);
    const struct shore_fleet_info info = shore__fleet_info(b->fleet);
    for (uint32_t i = 0; i < info.ndrives; i++)
        if (shore_fleet_drive_describe(b->fleet, i, describe, sizeof describe) == 0)
            printf("drive %u: %s\n", i, describe);
    return SHORE__EXIT_DONE;
}

static int run(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    struct bench b = {.args = a};
    struct shore_diag diag = {0};
    int code = SHORE__EXIT_DONE;
    shore__cli_catch_signals("longshore: stopping and removing the volume\n");
    int rc = shore__bench_places(&a->drives, "bench", &b.places, &diag);
    bool counted = !shore__bench_parse_count(a->params ? a->params : "124M", &b.params);
    if (!rc && (!counted || b.params > UINT64_C(1) << 40))
        rc = shore__fail(&diag, SHORE_EUSAGE, "--params takes a number such as 124M or 1.5B, not '%s'", a->params);
    if (!rc) rc = make_layout(&b, &diag);
    if (!rc) rc = shore__tempo_open(a->emulate, &b.places, &b.tempo, &diag);
    struct shore_fleet_options fleet = {
        .size = sizeof fleet,
        .drives = b.places.text,
        .ndrives = (uint32_t)b.places.count,
        .optimizer = a->optimizer,
        .moments = a->moments,
        .ring_bytes = a->ring_bytes,
        .io = a->io,
        .overwrite = a->overwrite,
        .spill = a->host_update,
        .drive_speeds = shore__tempo_speeds(b.tempo),
        .note = shore__cli_note,
    };
    uint64_t moment = a->moments == SHORE_MOMENTS_8BIT ? 1 : 4;
    unsigned planes = shore_optimizer_planes(a->optimizer, false) & (1u << SHORE_PLANE_M | 1u << SHORE_PLANE_V);
    uint64_t moments = (uint64_t)__builtin_popcount(planes);
    uint64_t chunk = SHORE_SEGMENT_ELEMS * (4 + moments * moment);
    if (a->chunk_bytes) fleet.chunk_segments = a->chunk_bytes < chunk ? 1 : (uint32_t)(a->chunk_bytes / chunk);
    if (!rc) rc = make_buffers(&b, &diag);
    bool created = false;
    if (!rc) {
        rc = shore_fleet_create(b.layout, &fleet, &b.fleet, &diag);
        created = !rc;
    }
    if (created && a->host_update) {
        b.host_memory = shore__arena_alloc(
            NULL, shore__host_update_bytes(shore_fleet_state_bytes(b.fleet), HOST_BUFFERS, HOST_SEGMENTS));
        if (!b.host_memory) rc = shore__out_of_memory(&diag);
    }
    if (!rc) rc = fill(&b, &diag);
    if (!rc) shore__fleet_set_gate(b.fleet, shore__tempo_gate(b.tempo));
    shore__cli_progress_end();
    if (!rc) rc = measure(&b, &diag);
    if (rc == -ECANCELED)
        code = SHORE__EXIT_FAILED;
    else
        code = rc == 0 ? print(&b) : created ? shore__cli_fail_running(rc, &diag) : shore__cli_fail(rc, &diag);
    shore_fleet_close(b.fleet);
    if (created) shore__bench_remove(&b.places);
    shore__addresses_free(&b.places);
    shore_layout_free(b.layout);
    shore__tempo_close(b.tempo);
    shore__arena_free(NULL, b.host_memory);
    shore__arena_free(NULL, b.gradient);
    shore__arena_free(NULL, b.delivered);
    free(b.waits);
    free(b.seconds);
    return code;
}

const struct shore__command_line shore__bench_update = {
    .command = "bench update",
    .remote = true,
    .synopsis = "bench update --drive PATH... [--params N] [--json]",
    .about = "Makes a temporary fleet, and measures steps of UPDATE over all its parameters, each with its commit:\n"
             "reading, computing and writing the optimizer's state. The volumes are removed afterwards.",
    SHORE__OPTIONS(options),
    SHORE__RUNS(run, struct args, .steps = 5, .warmup = 1),
};
