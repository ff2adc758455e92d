#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/units.h"
#include "files/json.h"
#include "files/safetensors.h"

static char directory[64], model[80];

static int setup(void **state) {
    strcpy(directory, "/tmp/shore-safetensors-XXXXXX");
    if (!mkdtemp(directory)) return -1;
    snprintf(model, sizeof model, "%s/m", directory);
    return mkdir(model, 0700);
}

static int teardown(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", directory);
    return system(command);
}

static void empty_model(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'/*", model);
    assert_int_equal(system(command), 0);
}

static void put_raw(const char *name, const void *data, size_t bytes) {
    char path[160];
    snprintf(path, sizeof path, "%s/%s", model, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    fclose(f);
}

/* A file of this header and so many zero bytes of data. */
static void put_model(const char *name, const char *header, size_t data_bytes) {
    unsigned char raw[4096] = {0};
    size_t n = strlen(header);
    shore__put_u64(raw, n);
    memcpy(raw + 8, header, n);
    put_raw(name, raw, 8 + n + data_bytes);
}

static void expect_refusal(const char *part) {
    struct shore__safetensors *st;
    struct shore_diag diag = {0};
    assert_true(shore__safetensors_open(model, &st, &diag) < 0);
    if (!strstr(diag.text, part)) fail_msg("\"%s\" does not say \"%s\"", diag.text, part);
}

static void faults_of_a_header_are_named(void **state) {
#define T(shape, begin, end) "{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *says;
    } faults[] = {
        {"{\"a\":" T("[2]", 0, 8) "}", 4, "past the end"},
        {"{\"a\":" T("[2]", 0, 8) "}", 12, "4 bytes before the file does"},
        {"{\"a\":" T("[2]", 0, 4) "}", 4, "do not fit its shape"},
        {"{\"a\":" T("[2]", 8, 0) "}", 8, "ends before it begins"},
        {"{\"a\":" T("[4294967296,4294967296]", 0, 8) "}", 8, "overflows"},
        {"{\"a\":" T("[4611686018427387904]", 0, 0) "}", 8, "overflows"},
        {"{\"a\":" T("[18446744073709551616]", 0, 8) "}", 8, "no whole number"},
        {"{\"a\":" T("[-2]", 0, 8) "}", 8, "no whole number"},
        {"{\"a\":" T("[2.0]", 0, 8) "}", 8, "no whole number"},
        {"{\"a\":" T("[1,1,1,1,1,1,1,1,2]", 0, 8) "}", 8, "8 dimensions"},
        {"{\"a\":" T("[2]", 0, 8) ",\"b\":" T("[2]", 4, 12) "}", 12, "\"a\" and \"b\" overlap"},
        {"{\"a\":" T("[2]", 0, 8) ",\"b\":" T("[1]", 12, 16) "}", 16, "4 bytes before tensor \"b\""},
        {"{\"a\":" T("[1]", 0, 4) ",\"a\":" T("[1]", 4, 8) "}", 8, "\"a\" stands twice"},
        {"{\"a\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "unknown dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "a field twice"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "lacks one of"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, "two data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}", 8, "two data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8, "wrong kind"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[[2]],\"data_offsets\":[0,8]}}", 8, "wrong kind"},
        {"{\"a\":{\"kind\":1}}", 8, "a field other than dtype"},
        {"{\"a\":1}", 8, "not described by an object"},
        {"{\"\":" T("[2]", 0, 8) "}", 8, "empty"},
        {"{\"\\u0000\":" T("[2]", 0, 8) "}", 8, "U+0000"},
        {"{\"\\u001b[31m\":1}", 0, "\\x1b"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "twice"},
        {"[]", 0, "not a JSON object"},
        {"{", 0, "not valid JSON"},
        {"{}{", 0, "follows"},
    };
#undef T
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        empty_model();
        put_model("model.safetensors", faults[i].header, faults[i].data_bytes);
        expect_refusal(faults[i].says);
        expect_refusal("model.safetensors");
    }
}

static void faults_of_a_file_are_named(void **state) {
    unsigned char raw[16] = {0};
    empty_model();
    expect_refusal("no model.safetensors");
    put_raw("model.safetensors", raw, 7);
    expect_refusal("too few");
    shore__put_u64(raw, UINT64_MAX);
    put_raw("model.safetensors", raw, 16);
    expect_refusal("claims a header");
    shore__put_u64(raw, 9);
    put_raw("model.safetensors", raw, 16);
    expect_refusal("the file has 16");
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n";
    put_raw("model.safetensors", pointer, strlen(pointer));
    expect_refusal("git lfs pull");
    empty_model();
    char path[160];
    snprintf(path, sizeof path, "%s/model.safetensors", model);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_refusal("not a regular file");
}

#define ONE(name) "{\"" name "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"

static void put_index(const char *text) {
    put_raw("model.safetensors.index.json", text, strlen(text));
}

static void shards_are_held_to_their_index(void **state) {
    struct shore__safetensors *st;
    struct shore_diag diag = {0};
    empty_model();
    put_model("one.safetensors", ONE("a"), 4);
    put_model("two.safetensors", ONE("b"), 4);
    put_index("{\"metadata\":{\"x\":[1]},\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}}");
    assert_int_equal(shore__safetensors_open(model, &st, &diag), 0);
    assert_int_equal(st->ntensors, 2);
    assert_int_equal(st->nfiles, 2);
    shore__safetensors_close(st);
    put_index("{\"weight_map\":{\"a\":\"two.safetensors\",\"b\":\"one.safetensors\"}}");
    expect_refusal("which does not hold it");
    put_index("{\"weight_map\":{\"a\":\"../m/one.safetensors\"}}");
    expect_refusal("leaves the directory");
    put_index("{\"weight_map\":{\"a\":\"/etc/passwd\"}}");
    expect_refusal("leaves the directory");
    put_index("{\"weight_map\":{\"a\":\"..\"}}");
    expect_refusal("leaves the directory");
    put_index("{\"weight_map\":{\"a\":\"three.safetensors\"}}");
    expect_refusal("three.safetensors");
    put_index("{\"weight_map\":{\"a\":1}}");
    expect_refusal("must map");
    put_index("{\"weight_map\":[\"a\"]}");
    expect_refusal("must map");
    put_index("{}");
    expect_refusal("no \"weight_map\"");
    put_model("two.safetensors", ONE("a"), 4);
    put_index("{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}}");
    expect_refusal("two.safetensors\", which does not hold it");
    put_index("{\"weight_map\":{\"a\":\"one.safetensors\",\"c\":\"two.safetensors\"}}");
    expect_refusal("two.safetensors\", which does not hold it");
    unlink(strcat(strcpy(diag.text, model), "/model.safetensors.index.json"));
    expect_refusal("\"a\" stands twice");
}

static void put_floats(const char *name, const char *header, const float *data, size_t count) {
    unsigned char raw[4096] = {0};
    size_t n = strlen(header);
    shore__put_u64(raw, n);
    memcpy(raw + 8, header, n);
    memcpy(raw + 8 + n, data, 4 * count);
    put_raw(name, raw, 8 + n + 4 * count);
}

static float first_of(const struct shore__safetensors *st, const char *name) {
    float value = -1;
    const struct shore__st_tensor *t = shore__safetensors_find(st, name);
    assert_non_null(t);
    assert_int_equal(shore__safetensors_read(st, t, 0, 1, &value, NULL), 0);
    return value;
}

/* The index names files below the directory, and says which of two copies counts. */
static void the_index_decides(void **state) {
    static const char *const indices[] = {
        "{\"weight_map\":{\"a\":\"old.safetensors\",\"b\":\"layers.0/new.safetensors\"}}",
        "{\"weight_map\":{\"b\":\"old.safetensors\",\"a\":\"layers.0/new.safetensors\"}}",
        "{\"weight_map\":{\"a\":\"./layers.0//new.safetensors\",\"b\":\"old.safetensors\"}}"};
    static const float wanted[][2] = {{1, 4}, {3, 2}, {3, 2}};
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                                 "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";
    struct shore__safetensors *st;
    struct shore_diag diag = {0};
    char path[160];
    (void)state;
    empty_model();
    snprintf(path, sizeof path, "%s/layers.0", model);
    assert_int_equal(mkdir(path, 0700), 0);
    put_floats("old.safetensors", header, (const float[]){1, 2}, 2);
    put_floats("layers.0/new.safetensors", header, (const float[]){3, 4}, 2);
    for (size_t i = 0; i < sizeof indices / sizeof *indices; i++) {
        put_index(indices[i]);
        assert_int_equal(shore__safetensors_open(model, &st, &diag), 0);
        assert_int_equal(st->ntensors, 2);
        assert_true(first_of(st, "a") == wanted[i][0] && first_of(st, "b") == wanted[i][1]);
        shore__safetensors_close(st);
    }
    put_index("{\"weight_map\":{\"a\":\"old.safetensors\",\"c\":\"layers.0/new.safetensors\"}}");
    expect_refusal("which does not hold it");
    put_model("twice.safetensors",
              "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
              "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
              8);
    put_index("{\"weight_map\":{\"a\":\"twice.safetensors\"}}");
    expect_refusal("\"a\" stands twice");
    put_index("{\"weight_map\":{\"a\":\"layers.0/../../x\"}}");
    expect_refusal("leaves the directory");
    put_index("{\"weight_map\":{\"a\":\"layers.0/..\"}}");
    expect_refusal("leaves the directory");
    put_index("{\"weight_map\":{\"a\":\"\"}}");
    expect_refusal("leaves the directory");
    put_index("{\"weight_map\":{\"a\":\"layers.0/new.safetensors\",\"b\":\"layers.0/new.safetensors\"}}");
    assert_int_equal(shore__safetensors_open(model, &st, &diag), 0);
    shore__safetensors_close(st);
}

static void links_as_in_a_cache_are_followed(void **state) {
    struct shore__safetensors *st;
    struct shore_diag diag = {0};
    char from[160];
    float value = 1;
    empty_model();
    put_model("blob", ONE("a"), 4);
    snprintf(from, sizeof from, "%s/blob", model);
    snprintf(diag.text, sizeof diag.text, "%s/blob", directory);
    assert_int_equal(rename(from, diag.text), 0);
    snprintf(from, sizeof from, "%s/model.safetensors", model);
    assert_int_equal(symlink("../blob", from), 0);
    assert_int_equal(shore__safetensors_open(model, &st, &diag), 0);
    assert_int_equal(shore__safetensors_read(st, &st->tensors[0], 0, 1, &value, &diag), 0);
    assert_true(value == 0);
    shore__safetensors_close(st);
}

static void halves_are_widened(void **state) {
    static const uint16_t raw[] = {0x3C00, 0xC000, 0x7BFF, 0x0001, 0x83FF, 0x0400, 0x7C00, 0xFC00, 0x8000, 0x7E00};
    static const float expected[] = {1,        -2,       65504,     0x1p-24f, -1023 * 0x1p-24f,
                                     0x1p-14f, INFINITY, -INFINITY, -0.0f,    NAN};
    struct shore__safetensors *st;
    struct shore_diag diag = {0};
    unsigned char file[256];
    const char *header = "{\"h\":{\"dtype\":\"F16\",\"shape\":[2,5],\"data_offsets\":[0,20]}}";
    size_t n = strlen(header);
    float out[10];
    empty_model();
    shore__put_u64(file, n);
    memcpy(file + 8, header, n);
    memcpy(file + 8 + n, raw, sizeof raw);
    put_raw("model.safetensors", file, 8 + n + sizeof raw);
    assert_int_equal(shore__safetensors_open(model, &st, &diag), 0);
    const struct shore__st_tensor *t = shore__safetensors_find(st, "h");
    assert_non_null(t);
    assert_null(shore__safetensors_find(st, "H"));
    assert_int_equal(shore__safetensors_read(st, t, 0, 10, out, &diag), 0);
    assert_memory_equal(out, expected, 9 * sizeof *out);
    assert_true(isnan(out[9]));
    assert_int_equal(shore__safetensors_read_transposed(st, t, 1, 3, out, &diag), 0);
    for (int c = 0; c < 3; c++)
        for (int r = 0; r < 2; r++)
            assert_memory_equal(&out[c * 2 + r], &expected[r * 5 + c + 1], sizeof *out);
    assert_int_equal(shore__safetensors_read(st, t, 9, 2, out, &diag), SHORE_EINPUT);
    assert_int_equal(shore__safetensors_read(st, t, UINT64_MAX, 2, out, &diag), SHORE_EINPUT);
    assert_int_equal(shore__safetensors_read_transposed(st, t, 3, 3, out, &diag), SHORE_EINPUT);
    shore__safetensors_close(st);
}

static struct shore__st_decl decls[] = {
    {.name = "b", .rank = 2, .shape = {100, 700}}, {.name = "a.\"\xC3\xA9", .rank = 1, .shape = {33}}, {.name = "c"}};

static void declare(enum shore__st_type first, enum shore__st_type others) {
    for (int i = 0; i < 3; i++)
        decls[i].type = i ? others : first;
}

static void write_model(uint64_t shard_bytes) {
    struct shore__st_writer *w;
    struct shore_diag diag = {0};
    float *data = malloc(70000 * sizeof *data);
    assert_non_null(data);
    for (int i = 0; i < 70000; i++)
        data[i] = (float)(i % 251) - 100;
    empty_model();
    assert_int_equal(shore__st_writer_open(model, decls, 3, shard_bytes, &w, &diag), 0);
    assert_int_equal(shore__st_writer_put(w, 2, 0, 1, data, &diag), 0);
    assert_int_equal(shore__st_writer_put(w, 0, 30000, 40000, data + 30000, &diag), 0);
    assert_int_equal(shore__st_writer_put(w, 1, 0, 33, data, &diag), 0);
    assert_int_equal(shore__st_writer_put(w, 0, 0, 30000, data, &diag), 0);
    assert_int_equal(shore__st_writer_put(w, 1, 30, 4, data, &diag), SHORE_EUSAGE);
    assert_int_equal(shore__st_writer_finish(w, &diag), 0);
    free(data);
}

static void what_is_written_is_read(void **state) {
    static const uint64_t shards[] = {0, 1, 140100};
    float *out = malloc(70000 * sizeof *out);
    assert_non_null(out);
    for (int type = SHORE__ST_F32; type <= SHORE__ST_BF16; type++)
        for (size_t s = 0; s < 3; s++) {
            struct shore__safetensors *st;
            struct shore_diag diag = {0};
            declare((enum shore__st_type)type, (enum shore__st_type)type);
            write_model(shards[s]);
            assert_int_equal(shore__safetensors_open(model, &st, &diag), 0);
            assert_int_equal(st->nfiles, s == 0 ? 1 : s == 1 ? 3 : type == SHORE__ST_F32 ? 2 : 1);
            assert_int_equal(st->ntensors, 3);
            const struct shore__st_tensor *t = shore__safetensors_find(st, "b");
            assert_int_equal(t->type, type);
            assert_int_equal(t->offset % 8, 0);
            assert_int_equal(shore__safetensors_read(st, t, 0, 70000, out, &diag), 0);
            for (int i = 0; i < 70000; i++)
                assert_true(out[i] == (float)(i % 251) - 100);
            assert_int_equal(shore__safetensors_read_transposed(st, t, 0, 700, out, &diag), 0);
            for (int i = 0; i < 70000; i++)
                assert_true(out[i % 700 * 100 + i / 700] == (float)(i % 251) - 100);
            shore__safetensors_close(st);
        }
    free(out);
}

/* The narrow ones are declared first. */
static void types_may_be_mixed(void **state) {
    struct shore__safetensors *st;
    struct shore_diag diag = {0};
    float out[33];
    declare(SHORE__ST_BF16, SHORE__ST_F32);
    write_model(0);
    assert_int_equal(shore__safetensors_open(model, &st, &diag), 0);
    const struct shore__st_tensor *wide = shore__safetensors_find(st, decls[1].name),
                                  *narrow = shore__safetensors_find(st, "b");
    assert_int_equal(wide->type, SHORE__ST_F32);
    assert_int_equal(narrow->type, SHORE__ST_BF16);
    assert_int_equal(wide->offset % 4, 0);
    assert_true(wide->offset < narrow->offset);
    assert_int_equal(shore__safetensors_read(st, wide, 0, 33, out, &diag), 0);
    for (int i = 0; i < 33; i++)
        assert_true(out[i] == (float)i - 100);
    assert_int_equal(shore__safetensors_read(st, narrow, 69999, 1, out, &diag), 0);
    assert_true(out[0] == (float)(69999 % 251) - 100);
    shore__safetensors_close(st);
}

static void an_unfinished_model_leaves_nothing(void **state) {
    struct shore__st_writer *w;
    struct shore_diag diag = {0};
    declare(SHORE__ST_F32, SHORE__ST_F32);
    static const struct shore__st_decl twice[] = {{.name = "a", .rank = 1, .shape = {1}},
                                                  {.name = "a", .rank = 1, .shape = {1}}},
                                       vast = {.name = "a", .rank = 2, .shape = {1u << 31, UINT64_MAX}};
    empty_model();
    assert_int_equal(shore__st_writer_open(model, decls, 3, 0, &w, &diag), 0);
    assert_int_equal(shore__st_writer_finish(w, &diag), SHORE_EUSAGE);
    assert_non_null(strstr(diag.text, "0 of its 70000"));
    assert_int_equal(shore__st_writer_open(model, decls, 3, 1, &w, &diag), 0);
    shore__st_writer_abort(w);
    assert_int_equal(shore__st_writer_open(model, twice, 2, 0, &w, &diag), SHORE_EINPUT);
    assert_int_equal(shore__st_writer_open(model, twice, 2, 1, &w, &diag), SHORE_EINPUT);
    assert_int_equal(shore__st_writer_open(model, &vast, 1, 0, &w, &diag), SHORE_EINPUT);
    declare(SHORE__ST_F32, SHORE__ST_BYTE);
    assert_int_equal(shore__st_writer_open(model, decls, 3, 0, &w, &diag), SHORE_EUSAGE);
    declare(SHORE__ST_F32, SHORE__ST_F32);
    assert_true(shore__st_writer_open("/nonexistent", decls, 3, 0, &w, &diag) < 0);
    assert_int_equal(rmdir(model), 0);
    assert_int_equal(mkdir(model, 0700), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_of_a_header_are_named),
        cmocka_unit_test(faults_of_a_file_are_named),
        cmocka_unit_test(shards_are_held_to_their_index),
        cmocka_unit_test(the_index_decides),
        cmocka_unit_test(links_as_in_a_cache_are_followed),
        cmocka_unit_test(halves_are_widened),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(types_may_be_mixed),
        cmocka_unit_test(an_unfinished_model_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
