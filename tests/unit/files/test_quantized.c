/* Codes and scales: any range of a tensor is that of the whole, and faults are named. Numbers are compared with
 * transformers and bitsandbytes in python/tests/test_quantized.py. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "files/quant_state.h"
#include "files/quantized.h"
#include "number/fp16.h"
#include "number/fp8.h"
#include "seed.h"

static char directory[64];
static uint64_t seed;

static uint64_t below(uint64_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % n;
}

static int setup(void **state) {
    seed = test_seed();
    strcpy(directory, "/tmp/shore-quantized-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static int teardown(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", directory);
    return system(command);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

struct stored {
    const char *name, *type;
    uint32_t rank;
    uint64_t shape[8];
    const void *data;
};

static void put(const struct stored *tensors, uint32_t n) {
    struct shore__st_decl decls[16] = {0};
    struct shore__st_writer *w;
    struct shore_diag diag = {0};
    for (uint32_t i = 0; i < n; i++) {
        decls[i] = (struct shore__st_decl){
            .name = tensors[i].name, .rank = tensors[i].rank, .type = SHORE__ST_OTHER, .named = tensors[i].type};
        memcpy(decls[i].shape, tensors[i].shape, sizeof decls[i].shape);
    }
    assert_int_equal(shore__st_writer_open(directory, decls, n, 0, &w, &diag), 0);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(shore__st_writer_put_bytes(w, i, tensors[i].data, &diag), 0);
    assert_int_equal(shore__st_writer_finish(w, &diag), 0);
}

static struct shore__safetensors *opened(enum shore__quant_method method, enum shore__st_type dtype) {
    const struct shore__quantization q = {.method = method, .dtype = dtype};
    struct shore__safetensors *st = NULL;
    struct shore_diag diag = {0};
    assert_int_equal(shore__safetensors_open(directory, &st, &diag), 0);
    if (shore__quantized_resolve(st, &q, &diag) != 0) fail_msg("%s", diag.text);
    return st;
}

static unsigned char *some_bytes(size_t n, unsigned least, unsigned most) {
    unsigned char *bytes = malloc(n);
    assert_non_null(bytes);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)(least + below(most - least + 1));
    return bytes;
}

static float *some_scales(size_t n) {
    unsigned char *bytes = some_bytes(n, 1, 255);
    float *scales = malloc(n * sizeof *scales);
    assert_non_null(scales);
    for (size_t i = 0; i < n; i++)
        scales[i] = (float)bytes[i] / 77;
    free(bytes);
    return scales;
}

/* Each range of a tensor, read in any order, is that of the whole. */
static void expect(const struct shore__safetensors *st, const struct shore__st_tensor *t, const float *wanted) {
    float *out = malloc((t->elems + 1) * sizeof *out);
    struct shore_diag diag = {0};
    assert_non_null(out);
    for (int round = 0; round < 200; round++) {
        uint64_t first = round ? below(t->elems) : 0, most = t->elems - first;
        uint64_t count = round ? below(round % 2 ? most : most < 9 ? most : 9) + 1 : most;
        out[count] = 1234;
        if (shore__safetensors_read(st, t, first, count, out, &diag) != 0) fail_msg("%s", diag.text);
        if (memcmp(out, wanted + first, count * sizeof *out) != 0)
            fail_msg("%s: elements %zu to %zu differ", t->name, (size_t)first, (size_t)(first + count));
        assert_true(out[count] == 1234);
    }
    if (t->rank == 2) {
        uint64_t rows = t->shape[0], cols = t->shape[1], from = below(cols);
        assert_int_equal(shore__safetensors_read_transposed(st, t, from, cols - from, out, &diag), 0);
        for (uint64_t r = 0; r < rows; r++)
            for (uint64_t c = from; c < cols; c++)
                assert_true(out[(c - from) * rows + r] == wanted[r * cols + c]);
    }
    free(out);
}

static float in_bf16(float x) {
    return shore__bf16_to_f32(shore__f32_to_bf16(x));
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

static void experts_of_4_bits_are_read_whole_and_one_by_one(void **state) {
    enum { EXPERTS = 3, OUT = 5, GROUPS = 66, IN = GROUPS * 32, CODES = EXPERTS * OUT * GROUPS * 16 };
    static const float numbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    unsigned char *codes = some_bytes(CODES, 0, 255), *scales = some_bytes(CODES / 16, 100, 140), bias[4] = {0};
    float *wanted = malloc(2 * CODES * sizeof *wanted);
    const struct stored tensors[] = {{"w_blocks", "U8", 4, {EXPERTS, OUT, GROUPS, 16}, codes},
                                     {"w_scales", "U8", 3, {EXPERTS, OUT, GROUPS}, scales},
                                     {"w_bias", "F32", 1, {1}, bias}};
    assert_non_null(wanted);
    for (size_t e = 0; e < EXPERTS; e++)
        for (size_t o = 0; o < OUT; o++)
            for (size_t i = 0; i < IN; i++) {
                size_t group = (e * OUT + o) * GROUPS + i / 32;
                unsigned code = codes[group * 16 + i % 32 / 2] >> (i % 2 ? 4 : 0) & 15;
                float number = code < 8 ? numbers[code] : -numbers[code - 8];
                wanted[(e * IN + i) * OUT + o] = in_bf16(ldexpf(number, scales[group] - 127));
            }
    put(tensors, 3);
    struct shore__safetensors *st = opened(SHORE__QUANT_MXFP4, SHORE__ST_BF16);
    const struct shore__st_tensor *t = shore__safetensors_find(st, "w");
    assert_non_null(t);
    assert_non_null(shore__safetensors_find(st, "w_bias"));
    assert_null(shore__safetensors_find(st, "w_blocks"));
    assert_int_equal(st->ntensors, 2);
    assert_true(t->rank == 3 && t->shape[0] == EXPERTS && t->shape[1] == IN && t->shape[2] == OUT);
    assert_true(t->type == SHORE__ST_BF16);
    expect(st, t, wanted);
    for (size_t e = 0; e < EXPERTS; e++) {
        struct shore__st_tensor expert = shore__safetensors_slice(t, e);
        assert_true(expert.rank == 2 && expert.shape[0] == IN && expert.shape[1] == OUT && expert.elems == IN * OUT);
        expect(st, &expert, wanted + e * IN * OUT);
    }
    shore__safetensors_close(st);
    free(codes);
    free(scales);
    free(wanted);
}

/* Rows of so many blocks that their scales are read in turns. */
static void blocks_of_bytes_are_read_in_any_range(void **state) {
    enum { MATRICES = 2, ROWS = 6, COLS = 1200, DOWN = 2, ACROSS = 600, ELEMS = MATRICES * ROWS * COLS };
    unsigned char *codes = some_bytes(ELEMS, 0, 126);
    float *scales = some_scales(MATRICES * DOWN * ACROSS), *wanted = malloc(ELEMS * sizeof *wanted);
    const struct stored tensors[] = {{"w", "F8_E4M3", 3, {MATRICES, ROWS, COLS}, codes},
                                     {"w_scale_inv", "F32", 3, {MATRICES, DOWN, ACROSS}, scales}};
    assert_non_null(wanted);
    for (size_t i = 0; i < ELEMS; i++) {
        size_t row = i / COLS, scale = (row / ROWS * DOWN + row % ROWS / 3) * ACROSS + i % COLS / 2;
        wanted[i] = in_bf16(shore__e4m3_to_f32(codes[i]) * scales[scale]);
    }
    put(tensors, 2);
    struct shore__safetensors *st = opened(SHORE__QUANT_FP8, SHORE__ST_BF16);
    assert_int_equal(st->ntensors, 1);
    expect(st, st->tensors, wanted);
    struct shore__st_tensor second = shore__safetensors_slice(st->tensors, 1);
    expect(st, &second, wanted + ELEMS / 2);
    shore__safetensors_close(st);
    free(codes);
    free(scales);
    free(wanted);
}

/* So many elements that the scales of scales are several, and an odd number of them. */
static void nested_scales_are_read_in_any_range(void **state) {
    enum { ROWS = 211, COLS = 333, ELEMS = ROWS * COLS, BLOCKS = (ELEMS + 63) / 64, NESTED = (BLOCKS + 255) / 256 };
    static const char text[] =
        "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"float16\", \"shape\": [211, 333], "
        "\"nested_blocksize\": 256, \"nested_dtype\": \"float32\", \"nested_offset\": 2.1}";
    unsigned char *codes = some_bytes(ELEMS / 2 + 1, 0, 255), *absmax = some_bytes(BLOCKS, 0, 255);
    float *map = some_scales(16), *nested = some_scales(NESTED), *ladder = some_scales(256);
    float *wanted = malloc(ELEMS * sizeof *wanted);
    const struct stored tensors[] = {{"a.weight", "U8", 2, {ELEMS / 2 + 1, 1}, codes},
                                     {"a.weight.absmax", "U8", 1, {BLOCKS}, absmax},
                                     {"a.weight.quant_map", "F32", 1, {16}, map},
                                     {"a.weight.nested_absmax", "F32", 1, {NESTED}, nested},
                                     {"a.weight.nested_quant_map", "F32", 1, {256}, ladder},
                                     {"a.weight.quant_state.bitsandbytes__nf4", "U8", 1, {sizeof text - 1}, text}};
    assert_non_null(wanted);
    for (size_t i = 0; i < ELEMS; i++) {
        float scale = ladder[absmax[i / 64]] * nested[i / 64 / 256] + 2.1f;
        float number = map[codes[i / 2] >> (i % 2 ? 0 : 4) & 15] * scale;
        wanted[i] = in_bf16(shore__f16_to_f32(shore__f32_to_f16(number)));
    }
    put(tensors, 6);
    struct shore__safetensors *st = opened(SHORE__QUANT_BITSANDBYTES, SHORE__ST_BF16);
    assert_int_equal(st->ntensors, 1);
    assert_true(st->tensors->rank == 2 && st->tensors->shape[0] == ROWS && st->tensors->shape[1] == COLS);
    expect(st, st->tensors, wanted);
    shore__safetensors_close(st);
    free(codes);
    free(absmax);
    free(map);
    free(nested);
    free(ladder);
    free(wanted);
}

static void plain_tensors_have_slices(void **state) {
    float *numbers = some_scales(2 * 3 * 4 * 5);
    const struct stored tensors[] = {{"w", "F32", 4, {2, 3, 4, 5}, numbers},
                                     {"f", "F8_E4M3", 1, {4}, "\x38\x80\x01\xfe"}};
    const float plain[] = {1, -0.0f, 0x1p-9f, -448};
    put(tensors, 2);
    struct shore__safetensors *st = opened(SHORE__QUANT_NONE, SHORE__ST_BF16);
    struct shore__st_tensor inner = shore__safetensors_slice(shore__safetensors_find(st, "w"), 1);
    inner = shore__safetensors_slice(&inner, 2);
    expect(st, &inner, numbers + (1 * 3 + 2) * 20);
    expect(st, shore__safetensors_find(st, "f"), plain);
    shore__safetensors_close(st);
    free(numbers);
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

static void faults_are_named(void **state) {
    static const unsigned char zeros[1024] = {0};
#define T(name, type, ...) \
    { name, type, sizeof((int[]){__VA_ARGS__}) / sizeof(int), {__VA_ARGS__}, zeros }
    static const struct {
        enum shore__quant_method method;
        struct stored tensors[3];
        const char *says;
    } faults[] = {
        {SHORE__QUANT_MXFP4, {T("w_blocks", "U8", 1, 2, 1, 16)}, "w_blocks holds codes, but"},
        {SHORE__QUANT_MXFP4, {T("w_blocks", "U8", 1, 2, 16), T("w_scales", "U8", 1, 2)}, "[experts, out, groups, 16]"},
        {SHORE__QUANT_MXFP4, {T("w_blocks", "U8", 1, 2, 1, 8), T("w_scales", "U8", 1, 2, 1)}, "groups, 16]"},
        {SHORE__QUANT_MXFP4,
         {T("w_blocks", "U8", 1, 2, 1, 16), T("w_scales", "U8", 1, 1, 2)},
         "w_scales has the shape [1, 1, 2]"},
        {SHORE__QUANT_MXFP4,
         {T("w_blocks", "U8", 1, 2, 1, 16), T("w_scales", "F32", 1, 2, 1)},
         "or a type that does not fit"},
        {SHORE__QUANT_MXFP4,
         {T("w", "F32", 1), T("w_blocks", "U8", 1, 2, 1, 16), T("w_scales", "U8", 1, 2, 1)},
         "w stands twice"},
        {SHORE__QUANT_FP8, {T("w", "F8_E4M3", 4), T("w_scale_inv", "F32", 1)}, "does not fit w of shape [4]"},
        {SHORE__QUANT_FP8, {T("w", "F8_E4M3", 0, 4), T("w_scale_inv", "F32", 1)}, "does not fit"},
        {SHORE__QUANT_FP8, {T("w", "F8_E4M3", 4, 4), T("w_scale_inv", "F32", 0, 0)}, "does not fit"},
        {SHORE__QUANT_FP8,
         {T("w", "F8_E4M3", 4, 4), T("w_scale_inv", "F32", 3, 1)},
         "does not divide w of shape [4, 4]"},
        {SHORE__QUANT_FP8, {T("w", "F8_E4M3", 2, 4, 4), T("w_scale_inv", "F32", 1)}, "does not fit"},
        {SHORE__QUANT_FP8, {T("w", "I8", 4, 4), T("w_scale_inv", "F32", 1, 1)}, "other codes are not read"},
        {SHORE__QUANT_FP8, {T("w", "F8_E4M3", 4, 4)}, "w holds codes, but"},
        {SHORE__QUANT_BITSANDBYTES, {T("a.weight", "U8", 4)}, "a.weight holds codes, but"},
        {SHORE__QUANT_BITSANDBYTES, {T("a.weight", "I8", 4, 4)}, "...quant_state.bitsandbytes__nf4"},
        {SHORE__QUANT_BITSANDBYTES,
         {T("a.weight", "I8", 4, 4), T("a.SCB", "F32", 3)},
         "does not fit a.weight of shape [4, 4]"},
        {SHORE__QUANT_BITSANDBYTES, {T("a", "U8", 4), T("a.quant_state.bitsandbytes__nf4", "F32", 4)}, "is not a text"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        const struct shore__quantization q = {.method = faults[i].method, .dtype = SHORE__ST_BF16};
        struct shore__safetensors *st = NULL;
        struct shore_diag diag = {0};
        uint32_t n = 0;
        while (n < 3 && faults[i].tensors[n].name)
            n++;
        put(faults[i].tensors, n);
        assert_int_equal(shore__safetensors_open(directory, &st, &diag), 0);
        assert_int_equal(shore__quantized_resolve(st, &q, &diag), SHORE_EINPUT);
        if (!strstr(diag.text, faults[i].says) || !strstr(diag.text, "/model.safetensors: the tensor "))
            fail_msg("\"%s\" does not say \"%s\"", diag.text, faults[i].says);
        shore__safetensors_close(st);
    }
}

static void states_are_held_to_what_bitsandbytes_reads(void **state) {
#define S(more) "{\"quant_type\": \"nf4\", \"dtype\": \"bfloat16\", " more "}"
    static const struct {
        const char *text, *says;
    } faults[] = {
        {S("\"blocksize\": 64, \"shape\": [2, 0]"), "shape"},
        {S("\"blocksize\": 64, \"shape\": []"), "shape"},
        {S("\"blocksize\": 64, \"shape\": null"), "shape"},
        {S("\"blocksize\": 64, \"shape\": [4294967296, 4294967296]"), "shape"},
        {S("\"blocksize\": 16, \"shape\": [2]"), "blocksize"},
        {S("\"blocksize\": 8192, \"shape\": [2]"), "blocksize"},
        {S("\"blocksize\": 64, \"shape\": [2], \"nested_blocksize\": 0"), "nested_blocksize"},
        {S("\"blocksize\": 64, \"shape\": [2], \"nested_blocksize\": 256"), "nested_dtype"},
        {S("\"blocksize\": 64, \"shape\": [2], \"nested_blocksize\": 256, \"nested_dtype\": \"float32\""),
         "nested_offset"},
        {S("\"blocksize\": 64, \"shape\": [2], \"nested_blocksize\": 256, \"nested_dtype\": \"float32\", "
           "\"nested_offset\": 1e300"),
         "nested_offset"},
        {"{\"quant_type\": \"nf4\", \"dtype\": \"int8\", \"blocksize\": 64, \"shape\": [2]}", "dtype"},
        {"{\"quant_type\": \"int4\"}", "quant_type"},
        {"[1]", "not an object"},
        {"{", "not valid JSON"},
    };
    struct shore__quant_state out;
    struct shore_diag diag = {0};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        assert_true(shore__quant_state_parse(faults[i].text, strlen(faults[i].text), "nf4", "t", &out, &diag) < 0);
        if (!strstr(diag.text, faults[i].says)) fail_msg("\"%s\" does not say \"%s\"", diag.text, faults[i].says);
    }
    const char *right = S("\"blocksize\": 4096, \"shape\": [3, 5]");
    assert_int_equal(shore__quant_state_parse(right, strlen(right), "nf4", "t", &out, &diag), 0);
    assert_true(out.elems == 15 && out.blocksize == 4096 && !out.nested_blocksize && out.dtype == SHORE__ST_BF16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_of_4_bits_are_read_whole_and_one_by_one),
        cmocka_unit_test(blocks_of_bytes_are_read_in_any_range),
        cmocka_unit_test(nested_scales_are_read_in_any_range),
        cmocka_unit_test(plain_tensors_have_slices),
        cmocka_unit_test(faults_are_named),
        cmocka_unit_test(states_are_held_to_what_bitsandbytes_reads),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
