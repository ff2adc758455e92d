#include "files/quantized.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/suggest.h"
#include "files/atomic.h"
#include "files/coded.h"
#include "files/quant_state.h"

struct resolving {
    struct shore__safetensors *st;
    const struct shore__quantization *q;
    bool *taken; /* by index: what a tensor that it belongs to has used up */
    struct shore__maps *maps;
    bool mapped, nested; /* which of them are there */
    struct shore_diag *diag;
};

static int misfit(const struct resolving *r, const struct shore__st_tensor *part, const struct shore__st_tensor *of) {
    return shore__st_refuse(r->st, part, r->diag, "has the shape %s or a type that does not fit %s of shape %s",
                            shore__shape_text(part->rank, part->shape).text, shore__shown(of->name).text,
                            shore__shape_text(of->rank, of->shape).text);
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* The tensor whose name is that of t without `less` at its end, and with `more` instead; NULL: there is none. */
static const struct shore__st_tensor *beside(const struct resolving *r, const struct shore__st_tensor *t,
                                             const char *less, const char *more) {
    char name[1200]; /* names in files have at most 1,024 bytes */
    if (!shore__ends_with(t->name, less)) return NULL;
    snprintf(name, sizeof name, "%.*s%s", (int)(strlen(t->name) - strlen(less)), t->name, more);
    return shore__safetensors_find(r->st, name);
}

static void take(const struct resolving *r, const struct shore__st_tensor *part) {
    if (part) r->taken[part - r->st->tensors] = true;
}

/* How one kind of codes is stored: the codes' name ends with `codes`, and that of what explains them with `scales`
 * instead. */
struct kind {
    enum shore__quant_method method;
    const char *codes, *scales;
    int (*describe)(struct resolving *r, struct shore__st_tensor *t, const struct shore__st_tensor *scales,
                    struct shore__coding *c);
};

/* ---- 8 bits ---------------------------------------------------------------------------------------------------------
 */

/* How many rows or columns a block has; 0: the scales do not fit. Of fp8, transformers divides a tensor by the scales'
 * shape: where the last block is a smaller one, that gives other numbers than the kernels that compute with the codes.
 */
static uint64_t block_of(uint64_t size, uint64_t scales, uint64_t block, bool even) {
    if (block == 0) return size % scales ? 0 : size / scales;
    if (scales != (size - 1) / block + 1 || (even && scales > 1 && size % block)) return 0;
    return block < size ? block : size;
}

static int describe_bytes(struct resolving *r, struct shore__st_tensor *t, const struct shore__st_tensor *scales,
                          struct shore__coding *c) {
    const bool grid = scales->rank >= 2;
    const uint64_t down = grid ? scales->shape[scales->rank - 2] : 1,
                   across = grid ? scales->shape[scales->rank - 1] : 1;
    const bool fp8 = r->q->method == SHORE__QUANT_FP8;
    if (t->type != SHORE__ST_E4M3 && (fp8 || t->type != SHORE__ST_I8))
        return shore__st_refuse(r->st, t, r->diag, "has a scale, but is not of F8_E4M3%s: other codes are not read",
                                fp8 ? "" : " or I8");
    if (t->rank < 2 || t->elems == 0 || down == 0 || across == 0) return misfit(r, scales, t);
    c->rows = t->shape[t->rank - 2];
    c->cols = t->shape[t->rank - 1];
    if (scales->elems % (down * across) || scales->elems / (down * across) != t->elems / (c->rows * c->cols) ||
        scales->type == SHORE__ST_E4M3 || scales->type == SHORE__ST_I8 || scales->type == SHORE__ST_OTHER)
        return misfit(r, scales, t);
    c->block_rows = block_of(c->rows, down, r->q->block[0], fp8);
    c->block_cols = block_of(c->cols, across, r->q->block[1], fp8);
    if (!c->block_rows || !c->block_cols)
        return shore__st_refuse(
            r->st, scales, r->diag,
            "has the shape %s, which does not divide %s of shape %s into whole blocks of config.json's size",
            shore__shape_text(scales->rank, scales->shape).text, shore__shown(t->name).text,
            shore__shape_text(t->rank, t->shape).text);
    c->base.read = shore__coded_bytes;
    if (scales->type == SHORE__ST_BYTE) c->scales.type = SHORE__ST_E8M0;
    if (!fp8) c->quantized = scales->type; /* compressed-tensors multiplies in it */
    return 0;
}

/* ---- MXFP4 ------------------------------------------------------------------------------------------------------- */

/* NAME_blocks [experts, out, groups, 16] are NAME [experts, in, out]: transformers exchanges the last two. */
static int describe_mxfp4(struct resolving *r, struct shore__st_tensor *t, const struct shore__st_tensor *scales,
                          struct shore__coding *c) {
    enum { BYTES = 16 };
    static const float e2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    if (t->type != SHORE__ST_BYTE || t->rank != 4 || t->shape[3] != BYTES || t->elems == 0)
        return shore__st_refuse(r->st, t, r->diag, "is not of bytes, of the shape [experts, out, groups, 16]");
    if ((scales->type != SHORE__ST_BYTE && scales->type != SHORE__ST_E8M0) || scales->rank != 3 ||
        memcmp(scales->shape, t->shape, 3 * sizeof *t->shape) != 0)
        return misfit(r, scales, t);
    const uint64_t out = t->shape[1], in = t->shape[2] * 2 * BYTES; /* elems < 2^60: checked with the file's size */
    c->base.read = shore__coded_4bit;
    c->block = 2 * BYTES;
    c->scales.type = SHORE__ST_E8M0;
    memcpy(r->maps->numbers, e2m1, sizeof e2m1);
    t->rank = 3;
    t->shape[1] = in;
    t->shape[2] = out;
    t->elems *= 2;
    t->flipped = true;
    return 0;
}

/* ---- bitsandbytes ------------------------------------------------------------------------------------------------ */

static int read_state(const struct resolving *r, const struct shore__st_tensor *t, const char *type,
                      struct shore__quant_state *out) {
    enum { LIMIT = 4096 };
    char text[LIMIT];
    const char *file = r->st->files[t->file];
    if (t->type != SHORE__ST_BYTE || t->elems > LIMIT)
        return shore__st_refuse(r->st, t, r->diag, "is not a text of at most %d bytes", LIMIT);
    int rc = shore__read_at(r->st->fds[t->file], text, t->elems, t->offset, file, r->diag);
    return rc ? rc : shore__quant_state_parse(text, t->elems, type, shore__shown(t->name).text, out, r->diag);
}

/* A tensor that a 4-bit tensor must have beside it. */
static int need(const struct resolving *r, struct shore__st_tensor *t, const char *more, enum shore__st_type type,
                uint64_t elems, struct shore__stored *out) {
    const struct shore__st_tensor *part = beside(r, t, "", more);
    if (!part) return shore__st_refuse(r->st, t, r->diag, "lacks %s%s", shore__shown(t->name).text, more);
    if (part->type != type || part->elems != elems) return misfit(r, part, t);
    take(r, part);
    *out = shore__stored_of(part);
    return 0;
}

/* Takes the numbers of the first tensor that has such a map, and holds the others to them. */
static int need_map(struct resolving *r, struct shore__st_tensor *t, const char *more, uint64_t elems, bool *there,
                    float *kept) {
    float map[256];
    const struct shore__st_tensor *part = beside(r, t, "", more);
    struct shore__stored stored;
    int rc = need(r, t, more, SHORE__ST_F32, elems, &stored);
    if (rc == 0) rc = shore__safetensors_read(r->st, part, 0, elems, map, r->diag);
    if (rc == 0 && *there && memcmp(map, kept, elems * sizeof *map) != 0)
        return shore__st_refuse(
            r->st, part, r->diag,
            "has other numbers than those of the tensors before it: bitsandbytes has one map for all");
    *there = true;
    if (rc == 0) memcpy(kept, map, elems * sizeof *map);
    return rc;
}

static int describe_4bit(struct resolving *r, struct shore__st_tensor *t, const struct shore__st_tensor *state,
                         struct shore__coding *c) {
    struct shore__quant_state s = {.blocksize = 1};
    int rc = read_state(r, state, shore__ends_with(state->name, "nf4") ? "nf4" : "fp4", &s);
    if (rc) return rc;
    if (t->type == SHORE__ST_OTHER || t->elems * t->bytes != s.elems / 2 + s.elems % 2)
        return shore__st_refuse(r->st, t, r->diag, "has another number of codes than the shape %s in %s needs",
                                shore__shape_text(s.rank, s.shape).text, shore__shown(state->name).text);
    const uint64_t blocks = (s.elems - 1) / s.blocksize + 1;
    const enum shore__st_type type = s.nested_blocksize ? SHORE__ST_BYTE : SHORE__ST_F32;
    rc = need(r, t, ".absmax", type, blocks, &c->scales);
    if (rc == 0) rc = need_map(r, t, ".quant_map", 16, &r->mapped, r->maps->numbers);
    if (rc == 0 && s.nested_blocksize) {
        rc = need(r, t, ".nested_absmax", SHORE__ST_F32, (blocks - 1) / s.nested_blocksize + 1, &c->nested);
        if (rc == 0) rc = need_map(r, t, ".nested_quant_map", 256, &r->nested, r->maps->nested);
    }
    c->base.read = shore__coded_4bit;
    c->block = s.blocksize;
    c->nested_block = s.nested_blocksize;
    c->nested_offset = s.nested_offset;
    c->quantized = s.dtype;
    c->high_first = true;
    t->rank = s.rank;
    t->elems = s.elems;
    memcpy(t->shape, s.shape, sizeof t->shape);
    return rc;
}

/* LLM.int8(): a scale for each row. bitsandbytes multiplies by this number, and does not divide by 127. */
static int describe_int8(struct resolving *r, struct shore__st_tensor *t, const struct shore__st_tensor *scales,
                         struct shore__coding *c) {
    const struct shore__st_tensor *format = beside(r, t, "weight", "weight_format");
    float value = 0;
    if (t->type != SHORE__ST_I8 || t->rank != 2 || t->elems == 0 || scales->elems != t->shape[0] ||
        scales->type != SHORE__ST_F32)
        return misfit(r, scales, t);
    int rc = format && format->elems == 1 ? shore__safetensors_read(r->st, format, 0, 1, &value, r->diag) : 0;
    if (rc == 0 && value != 0)
        rc = shore__st_refuse(r->st, format, r->diag, "says that rows are stored in another order than one by one");
    take(r, format);
    c->base.read = shore__coded_bytes;
    c->rows = t->shape[0];
    c->cols = c->block_cols = t->shape[1];
    c->block_rows = 1;
    c->factor = 7.874015718698502e-3f;
    return rc;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static const struct kind kinds[] = {
    {SHORE__QUANT_FP8, "", "_scale_inv", describe_bytes},
    {SHORE__QUANT_COMPRESSED, "", "_scale", describe_bytes},
    {SHORE__QUANT_MXFP4, "_blocks", "_scales", describe_mxfp4},
    {SHORE__QUANT_BITSANDBYTES, "", ".quant_state.bitsandbytes__nf4", describe_4bit},
    {SHORE__QUANT_BITSANDBYTES, "", ".quant_state.bitsandbytes__fp4", describe_4bit},
    {SHORE__QUANT_BITSANDBYTES, ".weight", ".SCB", describe_int8},
};

/* NULL: the tensor is stored as it is. */
static const struct kind *kind_of(const struct resolving *r, const struct shore__st_tensor *t,
                                  const struct shore__st_tensor **scales) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].method == r->q->method && (*scales = beside(r, t, kinds[i].codes, kinds[i].scales)))
            return &kinds[i];
    return NULL;
}

/* Whether a tensor scales what is computed, or a cache of keys and values: nothing is computed with codes here. */
static bool scales_activations(const char *name) {
    static const char *const ends[] = {"activation_scale", ".input_scale", ".output_scale", ".k_scale", ".v_scale"};
    bool found = false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        found |= shore__ends_with(name, ends[i]);
    return found;
}

/* Codes whose scales are missing must not pass for numbers. */
static int check_plain(const struct resolving *r, const struct shore__st_tensor *t) {
    const bool codes = t->type == SHORE__ST_E4M3 || shore__ends_with(t->name, "_blocks") ||
                       (shore__ends_with(t->name, ".weight") && (t->type == SHORE__ST_BYTE || t->type == SHORE__ST_I8));
    if (!codes) return 0;
    char lacks[160] = "";
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].method == r->q->method)
            shore__append(lacks, sizeof lacks, "%s...%s", *lacks ? ", " : "", kinds[i].scales);
    return shore__st_refuse(r->st, t, r->diag, "holds codes, but what scales them is missing (%s beside it)", lacks);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct shore__st_tensor *)a)->name, ((const struct shore__st_tensor *)b)->name);
}

static int drop_taken(const struct resolving *r) {
    struct shore__safetensors *st = r->st;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < st->ntensors; i++) {
        struct shore__st_tensor *t = &st->tensors[i];
        if (t->flipped) t->name[strlen(t->name) - strlen("_blocks")] = 0;
        if (r->taken[i])
            free(t->name);
        else
            st->tensors[kept++] = *t;
    }
    st->ntensors = kept;
    if (kept) qsort(st->tensors, kept, sizeof *st->tensors, by_name);
    for (uint32_t i = 1; i < kept; i++)
        if (strcmp(st->tensors[i - 1].name, st->tensors[i].name) == 0)
            return shore__st_refuse(r->st, &st->tensors[i], r->diag,
                                    "stands twice: as it is, and as codes with scales");
    return 0;
}

int shore__quantized_resolve(struct shore__safetensors *st, const struct shore__quantization *q,
                             struct shore_diag *diag) {
    struct resolving r = {.st = st, .q = q, .diag = diag};
    const struct shore__st_tensor *scales;
    int rc = 0;
    if (q->method == SHORE__QUANT_NONE) return 0;
    struct shore__coding *codings = calloc(1, st->ntensors * sizeof *codings + sizeof *r.maps), *c = codings;
    r.maps = (struct shore__maps *)(codings + st->ntensors);
    r.taken = calloc(st->ntensors + 1u, sizeof *r.taken);
    if (!codings || !r.taken) rc = shore__out_of_memory(diag);
    for (uint32_t i = 0; rc == 0 && i < st->ntensors; i++) {
        struct shore__st_tensor *t = &st->tensors[i];
        r.taken[i] |= scales_activations(t->name);
        const struct kind *kind = r.taken[i] ? NULL : kind_of(&r, t, &scales);
        if (!kind) {
            rc = r.taken[i] ? 0 : check_plain(&r, t);
            continue;
        }
        *c = (struct shore__coding){.dtype = q->dtype,
                                    .codes = shore__stored_of(t),
                                    .scales = shore__stored_of(scales),
                                    .factor = 1,
                                    .maps = r.maps};
        take(&r, scales);
        rc = kind->describe(&r, t, scales, c);
        t->type = q->dtype;
        t->coding = &c++->base;
    }
    if (rc == 0) rc = drop_taken(&r);
    st->codings = &codings->base;
    free(r.taken);
    return rc;
}
