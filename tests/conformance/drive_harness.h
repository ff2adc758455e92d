/* A small layout, its state in plain arrays, and the steps that tests of fleets take. The plain arrays are updated by
 * the scalar UPDATE, tensor by tensor, and hashed as docs/volume-format.md defines the digest: what every fleet must
 * agree with. */
#ifndef TESTS_DRIVE_HARNESS_H
#define TESTS_DRIVE_HARNESS_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/prng.h"
#include "base/units.h"
#include "drive/serve/serve_listen.h"
#include "longshore/state.h"
#include "near/moments.h"
#include "number/bf16.h"
#include "number/sparse.h"
#include "storage/volume.h"

#define BLOCKS 3u
#define GROUPS 3u
#define DRIVES_MOST 8u

/* Groups: 0 decays, 1 does not, 2 is frozen. */
static const struct shore_tensor_spec harness_tensors0[] = {{"a", 100, 0}, {"b", 70000, 1}, {"frozen", 300, 2}};
static const struct shore_tensor_spec harness_tensors1[] = {{"c", 200000, 0}, {"d", 3005, 1}};
static const struct shore_tensor_spec harness_tensors2[] = {{"e", 40, 1}};
static const struct shore_block_spec harness_blocks[BLOCKS] = {
    {"first", harness_tensors0, 3}, {"second", harness_tensors1, 2}, {"third", harness_tensors2, 1}};

struct plain {
    struct shore_layout *layout;
    enum shore_optimizer optimizer;
    bool momentum;
    unsigned planes;
    enum shore_gradient_form form; /* of the gradients that the fleet is given */
    bool carried[BLOCKS];          /* in the next step */
    uint64_t step;
    float *master[BLOCKS], *m[BLOCKS], *v[BLOCKS]; /* 8-bit moments as they are read */
    enum shore_moments moments;
    unsigned char *code[2][BLOCKS]; /* of m, of v */
    float *absmax[2][BLOCKS];
};

static inline void *pages(size_t bytes) {
    void *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    assert_non_null(p);
    memset(p, 0, (bytes + 4095) / 4096 * 4096);
    return p;
}

static inline void fill(const struct shore_layout_block *block, float *out, uint64_t seed, uint64_t stream) {
    memset(out, 0, block->padded_elems * sizeof *out);
    for (uint32_t t = 0; t < block->ntensors; t++) {
        for (uint64_t i = 0; i < block->tensors[t].elems; i++) {
            uint64_t at = block->tensors[t].offset_elems + i;
            out[at] = (float)(shore__random_unit(seed, stream, at) - 0.5);
        }
    }
}

static inline void plain_open(struct plain *p, enum shore_optimizer optimizer, bool momentum) {
    memset(p, 0, sizeof *p);
    p->optimizer = optimizer;
    p->momentum = momentum;
    p->planes = shore_optimizer_planes(optimizer, momentum);
    assert_int_equal(shore_layout_make(harness_blocks, BLOCKS, &p->layout), 0);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        size_t bytes = p->layout->blocks[b].padded_elems * 4;
        p->master[b] = pages(bytes);
        p->m[b] = pages(bytes);
        p->v[b] = pages(bytes);
        fill(&p->layout->blocks[b], p->master[b], 1, b);
    }
}

/* Before the first step. */
static inline void plain_use_8bit(struct plain *p) {
    p->moments = SHORE_MOMENTS_8BIT;
    for (uint32_t b = 0; b < BLOCKS; b++) {
        size_t elems = p->layout->blocks[b].padded_elems;
        for (int k = 0; k < 2; k++) {
            p->code[k][b] = pages(elems);
            memset(p->code[k][b], k ? 0 : 127, elems);
            p->absmax[k][b] = pages(elems / 256 * 4);
        }
    }
}

static inline bool plain_is_coded(const struct plain *p, const struct shore_layout_tensor *tensor) {
    return p->moments == SHORE_MOMENTS_8BIT && tensor->elems >= 4096;
}

/* A tensor's moments, from codes to floats or back. */
static inline void plain_convert(struct plain *p, uint32_t b, const struct shore_layout_tensor *tensor, bool back) {
    const struct shore__moments_version *scalar = shore__moments_versions();
    uint64_t at = tensor->offset_elems, elems = (tensor->elems + 255) / 256 * 256;
    for (int k = 0; k < 2; k++) {
        const struct shore__dynamic_code *code = shore__dynamic_code(!k);
        struct shore__moment8 coded = {p->code[k][b] + at, p->absmax[k][b] + at / 256};
        float *floats = (k ? p->v[b] : p->m[b]) + at;
        if (!(p->planes & 1u << (SHORE_PLANE_M + k))) continue;
        if (back) assert_int_equal(scalar->quantise(code, &coded, floats, elems), 0);
        scalar->dequantise(code, floats, &coded, elems);
    }
}

static inline void plain_close(struct plain *p) {
    for (uint32_t b = 0; b < BLOCKS; b++) {
        for (int k = 0; k < 2; k++) {
            free(p->code[k][b]);
            free(p->absmax[k][b]);
        }
        free(p->master[b]);
        free(p->m[b]);
        free(p->v[b]);
    }
    shore_layout_free(p->layout);
}

static inline void hypers(const struct plain *p, uint64_t step, struct shore_hyper groups[GROUPS]) {
    for (uint32_t g = 0; g < GROUPS; g++) {
        groups[g] = (struct shore_hyper){.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};
        groups[g].weight_decay = g == 0 ? 0.1f : 0;
        groups[g].momentum = p->momentum ? 0.9f : 0;
        groups[g].frozen = g == 2;
        shore_hyper_at_step(&groups[g], p->optimizer, step);
    }
}

/* What the form can say: rounded to bf16; sparse in places, with segments that have nothing and one that has all. */
static inline void gradient_of_step(const struct plain *p, uint32_t b, uint64_t step, float *out) {
    const struct shore_layout_block *block = &p->layout->blocks[b];
    fill(block, out, 100 + step, b);
    for (uint64_t i = 0; i < block->padded_elems && p->form != SHORE_GRADIENT_FP32; i++) {
        uint64_t segment = i / SHORE_SEGMENT_ELEMS;
        double share = segment == 2 ? 1 : segment == 3 ? 0 : segment == 1 ? 0.0004 : 0.01;
        out[i] = shore__bf16_to_f32(shore__f32_to_bf16(out[i]));
        if (p->form == SHORE_GRADIENT_SPARSE && shore__random_unit(200 + step, b, i) >= share) out[i] = 0;
    }
}

/* The dense gradient of `segments` segments in the plain's form; *offsets for SPARSE. Free both. */
static inline void *gradient_in_form(const struct plain *p, const float *dense, uint32_t segments, uint32_t **offsets) {
    unsigned char *out = pages((size_t)segments * SHORE_SEGMENT_ELEMS * 6 + 4096);
    *offsets = pages((segments + 1) * sizeof **offsets);
    if (p->form == SHORE_GRADIENT_FP32) memcpy(out, dense, (size_t)segments * SHORE_SEGMENT_ELEMS * 4);
    if (p->form == SHORE_GRADIENT_BF16)
        shore__bf16_from_f32((uint16_t *)(void *)out, dense, (size_t)segments * SHORE_SEGMENT_ELEMS);
    uint32_t used = 3; /* codes need no alignment, and need not begin at the start */
    uint16_t *index = pages(SHORE_SEGMENT_ELEMS * 2);
    uint32_t *bits = pages(SHORE_SEGMENT_ELEMS * 4);
    (*offsets)[0] = used;
    for (uint32_t s = 0; s < segments && p->form == SHORE_GRADIENT_SPARSE; s++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < SHORE_SEGMENT_ELEMS; i++) {
            float x = dense[(size_t)s * SHORE_SEGMENT_ELEMS + i];
            if (x == 0) continue;
            index[n] = (uint16_t)i;
            bits[n++] = shore__f32_bits(x);
        }
        enum shore_sparse_values values = s % 2 ? SHORE_SPARSE_FP32 : SHORE_SPARSE_BF16;
        used += (uint32_t)shore__sparse_encode(values, index, bits, n, out + used);
        (*offsets)[s + 1] = used;
    }
    free(index);
    free(bits);
    return out;
}

static inline int scalar_update(const struct plain *p, const struct shore_hyper *h, float coefficient,
                                struct shore__planes planes, const float *gradient, size_t elems) {
    for (const struct shore__near_version *v = shore__near_versions(); v->name; v++) {
        if (strcmp(v->name, "scalar") == 0) {
            return shore__near_update_with(v, p->optimizer, h, coefficient, &planes, &planes, gradient, NULL, false,
                                           elems);
        }
    }
    return -1;
}

static inline void plain_step(struct plain *p, float coefficient) {
    struct shore_hyper groups[GROUPS];
    hypers(p, p->step + 1, groups);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        if (p->carried[b]) continue;
        const struct shore_layout_block *block = &p->layout->blocks[b];
        float *gradient = pages(block->padded_elems * 4);
        uint16_t *hi = pages(block->padded_elems * 2), *lo = pages(block->padded_elems * 2);
        gradient_of_step(p, b, p->step + 1, gradient);
        for (uint64_t i = 0; i < block->padded_elems; i++) {
            shore__split_f32(p->master[b][i], &hi[i], &lo[i]);
        }
        for (uint32_t t = 0; t < block->ntensors; t++) {
            uint64_t at = block->tensors[t].offset_elems;
            struct shore__planes planes = {hi + at, lo + at, p->planes & 4 ? p->m[b] + at : NULL,
                                           p->planes & 8 ? p->v[b] + at : NULL};
            assert_int_equal(scalar_update(p, &groups[block->tensors[t].group], coefficient, planes, gradient + at,
                                           block->tensors[t].elems),
                             0);
            bool frozen = groups[block->tensors[t].group].frozen;
            if (plain_is_coded(p, &block->tensors[t]) && !frozen) plain_convert(p, b, &block->tensors[t], true);
        }
        for (uint64_t i = 0; i < block->padded_elems; i++) {
            p->master[b][i] = shore__join_f32(hi[i], lo[i]);
        }
        free(gradient);
        free(hi);
        free(lo);
    }
    p->step++;
}

/* The stored plane of a moment in 8 bits (docs/volume-format.md); returns its bytes, all of which are written. */
static inline size_t plain_coded_plane(const struct plain *p, int k, uint32_t b, uint32_t segment,
                                       unsigned char plane[SHORE_SEGMENT_ELEMS * 4]) {
    const struct shore_layout_block *block = &p->layout->blocks[b];
    const float *floats = k ? p->v[b] : p->m[b];
    bool stays[256] = {false};
    size_t coded = 0, at = 0;
    for (uint64_t i = 0; i < 256; i++) {
        uint64_t elem = (uint64_t)segment * SHORE_SEGMENT_ELEMS + i * 256;
        for (uint32_t t = 0; t < block->ntensors; t++) {
            const struct shore_layout_tensor *tensor = &block->tensors[t];
            if (elem >= tensor->offset_elems && elem < tensor->offset_elems + tensor->elems && tensor->elems < 4096)
                stays[i] = true;
        }
        coded += !stays[i];
    }
    memset(plane, 0, SHORE_SEGMENT_ELEMS * 4);
    for (size_t i = 0; i < 256; i++) {
        size_t elem = (size_t)segment * SHORE_SEGMENT_ELEMS + i * 256;
        if (stays[i]) continue;
        memcpy(plane + at * 256, p->code[k][b] + elem, 256);
        memcpy(plane + coded * 256 + at * 4, p->absmax[k][b] + elem / 256, 4);
        at++;
    }
    unsigned char *end = plane + coded * 260;
    for (size_t i = 0; i < 256; i++) {
        size_t elem = (size_t)segment * SHORE_SEGMENT_ELEMS + i * 256;
        if (!stays[i]) continue;
        memcpy(end, floats + elem, 1024);
        end += 1024;
    }
    return (size_t)(end - plane);
}

/* Bytes of a segment in a plane of moments. */
static inline size_t plain_moment_bytes(const struct plain *p) {
    unsigned char *plane = pages(SHORE_SEGMENT_ELEMS * 4);
    size_t most = 0;
    if (p->moments == SHORE_MOMENTS_FP32) most = SHORE_SEGMENT_ELEMS * 4;
    for (uint32_t b = 0; b < BLOCKS && p->moments == SHORE_MOMENTS_8BIT; b++) {
        for (uint32_t s = 0; s < p->layout->blocks[b].segments; s++) {
            size_t bytes = plain_coded_plane(p, 0, b, s, plane);
            if (bytes > most) most = bytes;
        }
    }
    free(plane);
    return (most + 4095) / 4096 * 4096;
}

static inline void plain_digest(const struct plain *p, unsigned char digest[16]) {
    unsigned __int128 sum = 0;
    uint16_t *hi = pages(SHORE_SEGMENT_ELEMS * 2), *lo = pages(SHORE_SEGMENT_ELEMS * 2);
    unsigned char *coded[2] = {pages(SHORE_SEGMENT_ELEMS * 4), pages(SHORE_SEGMENT_ELEMS * 4)};
    size_t moment_bytes = plain_moment_bytes(p);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        for (uint32_t s = 0; s < p->layout->blocks[b].segments; s++) {
            size_t first = (size_t)s * SHORE_SEGMENT_ELEMS;
            for (size_t i = 0; i < SHORE_SEGMENT_ELEMS; i++) {
                shore__split_f32(p->master[b][first + i], &hi[i], &lo[i]);
            }
            const void *data[4] = {hi, lo, p->m[b] + first, p->v[b] + first};
            for (int k = 0; k < 2 && p->moments == SHORE_MOMENTS_8BIT; k++) {
                plain_coded_plane(p, k, b, s, coded[k]);
                data[SHORE_PLANE_M + k] = coded[k];
            }
            for (int plane = 0; plane < 4; plane++) {
                struct shore__leaf leaf;
                unsigned __int128 number = 0;
                if (!(p->planes & 1u << plane)) continue;
                shore__leaf_make(data[plane], plane < SHORE_PLANE_M ? SHORE_SEGMENT_ELEMS * 2 : moment_bytes,
                                 shore__leaf_seed(b, s, plane), &leaf);
                for (int i = 0; i < 16; i++) {
                    number = number << 8 | leaf.hash[i];
                }
                sum += number;
            }
        }
    }
    unsigned char message[24];
    struct shore__leaf leaf;
    shore__put_u64(message, p->step);
    for (int i = 0; i < 16; i++) {
        message[8 + i] = (unsigned char)(sum >> (8 * i));
    }
    shore__leaf_make(message, 24, 0, &leaf);
    memcpy(digest, leaf.hash, 16);
    free(hi);
    free(lo);
    free(coded[0]);
    free(coded[1]);
}

/* ---- a fleet beside it ---- */

static inline int fleet_init(struct shore_fleet *f, const struct plain *p, struct shore_diag *diag) {
    for (uint32_t b = 0; b < BLOCKS; b++) {
        int rc = shore_fleet_init_block(f, b, 0, p->layout->blocks[b].segments, p->master[b], NULL, NULL, diag);
        if (rc) return rc;
    }
    return shore_fleet_seal(f, 0, diag);
}

struct step_how {
    float coefficient;
    bool spill, twice, params;
    bool images; /* it is computed on images, which are stored */
    void *params_out[BLOCKS];
    const uint16_t *residual[BLOCKS];
};

static inline int store_updated(struct shore_fleet *f, const struct shore_update *u, void *image,
                                struct shore_completion done, struct shore_diag *diag) {
    struct shore_wait wait;
    shore_wait_init(&wait);
    int rc = shore_fleet_fetch(f, u->base_step, u->block, 0, u->count, SHORE_FETCH_STATE, image,
                               shore_wait_completion(&wait));
    if (!rc) rc = shore_wait(&wait, diag);
    if (!rc) rc = shore_fleet_update_images(f, u, image, diag);
    struct shore_store store = {.size = sizeof store,
                                .base_step = u->base_step,
                                .attempt = u->attempt,
                                .state = image,
                                .block = u->block,
                                .count = u->count,
                                .order = u->order};
    return rc ? rc : shore_fleet_store(f, &store, done);
}

/* Submits all updates of the step after `base` and waits for them. */
static inline int fleet_updates(struct shore_fleet *f, const struct plain *p, uint64_t base, const struct step_how *how,
                                struct shore_diag *diag) {
    struct shore_hyper groups[GROUPS];
    struct shore_wait wait[BLOCKS][2];
    void *gradient[BLOCKS], *image[BLOCKS] = {NULL};
    uint32_t *offsets[BLOCKS];
    int rc = 0;
    hypers(p, base + 1, groups);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        uint32_t segments = p->layout->blocks[b].segments;
        float *dense = pages(p->layout->blocks[b].padded_elems * 4);
        gradient_of_step(p, b, base + 1, dense);
        gradient[b] = gradient_in_form(p, dense, segments, &offsets[b]);
        free(dense);
        if (how->spill) {
            shore_wait_init(&wait[b][0]);
            int spilled =
                shore_fleet_spill(f, b, 0, segments, p->form, gradient[b], shore_wait_completion(&wait[b][0]));
            if (!spilled) spilled = shore_wait(&wait[b][0], diag);
            if (spilled) rc = spilled;
        }
        struct shore_update update = {
            .size = sizeof update,
            .base_step = base,
            .attempt = shore_fleet_attempt(f),
            .block = b,
            .count = segments,
            .gradient = how->spill ? NULL : gradient[b],
            .form = p->form,
            .offsets = p->form == SHORE_GRADIENT_SPARSE ? offsets[b] : NULL,
            .coefficient = how->coefficient,
            .groups = groups,
            .ngroups = GROUPS,
            .params_out = how->params ? how->params_out[b] : NULL,
            .residual = how->residual[b],
            .order = BLOCKS - b,
        };
        for (int i = 0; i < 2; i++) {
            shore_wait_init(&wait[b][i]);
            if (i == 1 && !how->twice) continue;
            struct shore_completion done = shore_wait_completion(&wait[b][i]);
            if (how->images) image[b] = pages(segments * shore_fleet_state_bytes(f));
            int sent = rc              ? rc
                       : p->carried[b] ? shore_fleet_carry(f, base, update.attempt, b, 0, segments, done)
                       : how->images   ? store_updated(f, &update, image[b], done, diag)
                                       : shore_fleet_update(f, &update, done);
            if (sent) {
                wait[b][i].expected = 0;
                wait[b][i].rc = sent;
            }
        }
    }
    for (uint32_t b = 0; b < BLOCKS; b++) {
        for (int i = 0; i < 1 + how->twice; i++) {
            int one = shore_wait(&wait[b][i], rc ? NULL : diag);
            if (one && !rc) rc = one;
        }
    }
    for (uint32_t b = 0; b < BLOCKS; b++) {
        free(gradient[b]);
        free(offsets[b]);
        free(image[b]);
    }
    return rc;
}

static inline int fleet_commit(struct shore_fleet *f, uint64_t base, bool skip, struct shore_diag *diag) {
    struct shore_wait wait;
    char metrics[32];
    shore_wait_init(&wait);
    int bytes = snprintf(metrics, sizeof metrics, "step %llu", (unsigned long long)base + 1);
    int rc = shore_fleet_commit(f, base, skip, metrics, (uint32_t)bytes, shore_wait_completion(&wait));
    return rc ? rc : shore_wait(&wait, diag);
}

static inline int fleet_step(struct shore_fleet *f, const struct plain *p, uint64_t base, struct shore_diag *diag) {
    struct step_how how = {.coefficient = 1};
    int rc = fleet_updates(f, p, base, &how, diag);
    return rc ? rc : fleet_commit(f, base, false, diag);
}

static inline void assert_digest(struct shore_fleet *f, const struct plain *p, bool deep) {
    unsigned char want[16], got[16];
    struct shore_diag diag = {0};
    plain_digest(p, want);
    if (shore_fleet_digest(f, deep, got, &diag)) fail_msg("%s", diag.text);
    assert_memory_equal(got, want, 16);
}

/* ---- where it lives ---- */

struct place {
    char directory[64];
    char path[DRIVES_MOST][128];
    char uri[DRIVES_MOST][1200];
    const char *paths[DRIVES_MOST];
    uint32_t ndrives;
};

/* One server for all tests of a program, which starts it before it has threads: then drives can be remote. */
static char server_socket[600], server_directory[512];
static pid_t server_process;

static inline bool server_runs_on(void) {
    return false;
}

static inline void server_said(const char *text) {
    fprintf(stderr, "server: %s\n", text);
}

static inline void server_start(void) {
    char cwd[400];
    assert_non_null(getcwd(cwd, sizeof cwd));
    snprintf(server_directory, sizeof server_directory, "%s/server-XXXXXX", cwd);
    assert_non_null(mkdtemp(server_directory));
    /* the names of sockets are short */
    snprintf(server_socket, sizeof server_socket, "%s/s", server_directory);
    server_process = fork();
    assert_true(server_process >= 0);
    if (server_process == 0) {
        struct shore__serve_options options = {.build = "test", .memory_bytes = 44 << 20};
        struct shore_diag diag = {0};
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        int rc = shore__serve_listen(server_socket, &options, server_runs_on, server_said, &diag);
        if (rc) fprintf(stderr, "server: %s\n", diag.text);
        _exit(rc != 0);
    }
    for (int i = 0; i < 30000 && access(server_socket, F_OK) != 0; i++)
        usleep(10000);
}

static inline void server_stop(void) {
    kill(server_process, SIGTERM);
    waitpid(server_process, NULL, 0);
    unlink(server_socket);
    rmdir(server_directory);
}

/* kinds: a letter for each drive: f a file, u a file behind the server's socket, s behind ssh (LONGSHORE_RSH),
 * r ram:, n null:, o a file beside an OpenCL device. */
static inline void place_open(struct place *place, const char *kinds) {
    memset(place, 0, sizeof *place);
    snprintf(place->directory, sizeof place->directory, "drive-test-XXXXXX");
    assert_non_null(mkdtemp(place->directory));
    for (; kinds[place->ndrives]; place->ndrives++) {
        uint32_t d = place->ndrives;
        char name[sizeof place->path[d]];
        snprintf(name, sizeof name, "%s/%u.volume", place->directory, d);
        memcpy(place->path[d], name, sizeof name);
        place->paths[d] = kinds[d] == 'r' ? "ram:" : kinds[d] == 'n' ? "null:" : place->path[d];
        if (kinds[d] == 'o') {
            snprintf(place->uri[d], sizeof place->uri[d], "opencl:%s", name);
            place->paths[d] = place->uri[d];
        }
        if (kinds[d] == 'u' || kinds[d] == 's') {
            char cwd[400], way[sizeof server_socket + 8] = "ssh://host";
            assert_non_null(getcwd(cwd, sizeof cwd));
            if (kinds[d] == 'u') snprintf(way, sizeof way, "unix:%s:", server_socket);
            snprintf(place->uri[d], sizeof place->uri[d], "%s%s/%s", way, cwd, name);
            place->paths[d] = place->uri[d];
        }
    }
}

static inline void place_unlink(struct place *place) {
    for (uint32_t d = 0; d < place->ndrives; d++)
        unlink(place->path[d]);
}

/* What the files of two fleets say of themselves, apart from their own numbers. */
static inline void assert_same_records(const struct place *a, const struct place *b) {
    assert_int_equal(a->ndrives, b->ndrives);
    for (uint32_t d = 0; d < a->ndrives; d++) {
        struct shore__volume v[2];
        struct shore_diag diag = {0};
        if (shore__volume_peek(a->paths[d], &v[0], &diag)) fail_msg("%s", diag.text);
        if (shore__volume_peek(b->paths[d], &v[1], &diag)) fail_msg("%s", diag.text);
        assert_true(v[0].record_valid && v[1].record_valid);
        assert_memory_equal(&v[0].record, &v[1].record, sizeof v[0].record);
        assert_int_equal(v[0].desc.nextents, v[1].desc.nextents);
        assert_memory_equal(v[0].desc.extents, v[1].desc.extents, v[0].desc.nextents * sizeof *v[0].desc.extents);
        assert_int_equal(v[0].size_bytes, v[1].size_bytes);
        shore__volume_close(&v[0]);
        shore__volume_close(&v[1]);
    }
}

static inline void place_close(struct place *place) {
    place_unlink(place);
    rmdir(place->directory);
}

#endif
