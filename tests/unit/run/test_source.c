#include <errno.h>
#include <math.h>

#include "files/safetensors.h"
#include "number/fp16.h"
#include "unit/run/support.h"

/* The model's initial values as a Hugging Face directory, by way of a fleet. */
static void exported(const char *directory, const struct shore__model *m, uint64_t seed, enum shore__st_type type,
                     uint64_t memory) {
    struct shore_diag diag = {0};
    struct shore__settings s;
    struct shore__source *source = NULL;
    ram_settings(&s);
    assert_int_equal(shore__source_init(m, seed, &source), 0);
    struct shore_fleet *fleet = fleet_of(&s, m, source, NULL, false);
    const struct shore__exporting e = {.fleet = fleet, .type = &type, .memory_bytes = memory};
    assert_ok(shore__export(&e, m, NULL, directory, &diag));
    shore_fleet_close(fleet);
    shore__source_close(source);
    shore__settings_free(&s);
}

/* Of all tensors in it. */
static enum shore__st_type source_type(const char *directory) {
    struct shore_diag diag = {0};
    struct shore__safetensors *files = NULL;
    assert_ok(shore__safetensors_open(directory, &files, &diag));
    enum shore__st_type type = files->tensors[0].type;
    for (uint32_t i = 0; i < files->ntensors; i++)
        assert_int_equal(files->tensors[i].type, type);
    shore__safetensors_close(files);
    return type;
}

/* Every segment from the directory, a few at a time, against the initial values. */
static void same_values(const char *directory, const struct shore__model *m, uint64_t seed, uint32_t at_once) {
    struct shore_diag diag = {0};
    struct shore__source *source = NULL;
    size_t elems = (size_t)at_once * SHORE_SEGMENT_ELEMS;
    float *wanted = malloc(elems * sizeof *wanted), *got = malloc(elems * sizeof *got);
    assert_ok(shore__source_directory(m, directory, &source, &diag));
    for (uint32_t b = 0; b < m->nblocks; b++)
        for (uint32_t first = 0; first < m->layout->blocks[b].segments; first += at_once) {
            uint32_t left = m->layout->blocks[b].segments - first, n = left < at_once ? left : at_once;
            shore__model_init(m, seed, b, first, n, wanted);
            assert_ok(shore__source_read(source, b, first, n, got, &diag));
            assert_memory_equal(wanted, got, (size_t)n * SHORE_SEGMENT_ELEMS * sizeof *got);
        }
    shore__source_close(source);
    free(wanted);
    free(got);
}

static void export_and_import_are_inverse(void **state) {
    for (int i = 0; i < SMALL_MODELS; i++) {
        char directory[24];
        snprintf(directory, sizeof directory, "model%d", i);
        struct shore__model *m = model_of(small_models[i]), *again = NULL;
        struct shore_diag diag = {0};
        exported(directory, m, 7, SHORE__ST_F32, i == 0 ? 1 : 0); /* the least memory, and the usual */
        same_values(directory, m, 7, 1);
        same_values(directory, m, 7, 3);
        assert_ok(shore__model_from_directory(directory, &again, &diag));
        assert_int_equal(again->parameters, m->parameters);
        same_values(directory, again, 7, 2);
        shore__model_free(again);
        shore__model_free(m);
        assert_false(exists("model0.partial"));
    }
}

static void exports_bf16_as_it_is_computed_with(void **state) {
    struct shore__model *m = model_of(small_models[1]);
    struct shore_diag diag = {0};
    struct shore__source *source = NULL;
    float *wanted = malloc(SHORE_SEGMENT_ELEMS * sizeof *wanted), *got = malloc(SHORE_SEGMENT_ELEMS * sizeof *got);
    exported("narrow", m, 3, SHORE__ST_BF16, 0);
    assert_ok(shore__source_directory(m, "narrow", &source, &diag));
    shore__model_init(m, 3, 1, 1, 1, wanted);
    assert_ok(shore__source_read(source, 1, 1, 1, got, &diag));
    for (size_t i = 0; i < SHORE_SEGMENT_ELEMS; i++)
        assert_true(fabsf(wanted[i] - got[i]) <= fabsf(wanted[i]) / 256);
    shore__source_close(source);
    shore__model_free(m);
    free(wanted);
    free(got);
}

static void exports_fp16_rounded(void **state) {
    struct shore__model *m = model_of(small_models[0]);
    struct shore_diag diag = {0};
    struct shore__source *source = NULL;
    float *wanted = malloc(SHORE_SEGMENT_ELEMS * sizeof *wanted), *got = malloc(SHORE_SEGMENT_ELEMS * sizeof *got);
    exported("half", m, 3, SHORE__ST_F16, 0);
    char *config = read_text("half/config.json");
    assert_non_null(strstr(config, "\"torch_dtype\": \"float16\""));
    free(config);
    assert_ok(shore__source_directory(m, "half", &source, &diag));
    for (uint32_t b = 0; b < 2; b++) {
        shore__model_init(m, 3, b, 0, 1, wanted);
        assert_ok(shore__source_read(source, b, 0, 1, got, &diag));
        for (size_t i = 0; i < SHORE_SEGMENT_ELEMS; i++)
            assert_true(got[i] == shore__f16_to_f32(shore__f32_to_f16(wanted[i])));
    }
    assert_int_equal(source_type("half"), SHORE__ST_F16);
    shore__source_close(source);
    shore__model_free(m);
    free(wanted);
    free(got);
}

static void padding_is_zero_however_much_is_made_at_once(void **state) {
    static float values[2 * SHORE_SEGMENT_ELEMS];
    struct shore__model *m =
        model_of("{\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"hidden_size\": 48, \"intermediate_size\": 8, "
                 "\"num_attention_heads\": 1, \"vocab_size\": 2000, \"pad_token_id\": 1365}");
    const size_t row = (size_t)1365 * 48, end = row + 48;
    (void)state;
    assert_true(row < SHORE_SEGMENT_ELEMS && end > SHORE_SEGMENT_ELEMS);
    for (uint32_t at_once = 1; at_once <= 2; at_once++) {
        for (uint32_t first = 0; first < 2; first += at_once)
            shore__model_init(m, 1, 0, first, at_once, values + (size_t)first * SHORE_SEGMENT_ELEMS);
        for (size_t i = 0; i < (size_t)2000 * 48; i++)
            assert_true((values[i] == 0) == (i >= row && i < end));
    }
    shore__model_free(m);
}

static void never_replaces_a_directory(void **state) {
    struct shore__model *m = model_of(small_models[0]);
    struct shore_diag diag = {0};
    assert_int_equal(mkdir("full", 0755), 0);
    write_text("full/letter.txt", "dear");
    const enum shore__st_type type = SHORE__ST_F32;
    const struct shore__exporting e = {.type = &type};
    assert_int_equal(shore__export(&e, m, NULL, "full/", &diag), SHORE_EEXISTS);
    assert_says(diag, "full: exists already");
    assert_true(exists("full/letter.txt") && !exists("full.partial"));
    shore__model_free(m);
}

/* ---- directories that do not fit --------------------------------------------------------------------------------- */

struct declared {
    struct shore__st_decl decls[96];
    uint32_t count;
};

/* The declarations of small_models[0], to be spoilt by the caller. */
static struct declared declare(const struct shore__model *m) {
    struct declared d = {.count = 0};
    for (uint32_t b = 0; b < m->nblocks; b++)
        for (uint32_t t = 0; t < m->blocks[b].ntensors; t++) {
            const struct shore__model_tensor *tensor = &m->blocks[b].tensors[t];
            const struct shore__part *p = &tensor->parts[0];
            d.decls[d.count++] = (struct shore__st_decl){
                .name = p->name,
                .rank = tensor->matrix ? 2 : 1,
                .shape = {p->transposed ? tensor->cols : p->rows, p->transposed ? p->rows : tensor->cols}};
        }
    return d;
}

static uint32_t index_of(const struct declared *d, const char *name) {
    for (uint32_t i = 0; i < d->count; i++)
        if (strcmp(d->decls[i].name, name) == 0) return i;
    fail_msg("no tensor %s", name);
    return 0;
}

static void write_declared(const char *directory, const struct declared *d, uint32_t spoilt, uint64_t at, float value) {
    struct shore_diag diag = {0};
    struct shore__st_writer *w = NULL;
    assert_int_equal(mkdir(directory, 0755), 0);
    assert_ok(shore__st_writer_open(directory, d->decls, d->count, 0, &w, &diag));
    for (uint32_t i = 0; i < d->count; i++) {
        uint64_t n = 1;
        for (uint32_t k = 0; k < d->decls[i].rank; k++)
            n *= d->decls[i].shape[k];
        float *values = calloc(n, sizeof *values);
        if (i == spoilt) values[at] = value;
        assert_ok(shore__st_writer_put(w, i, 0, n, values, &diag));
        free(values);
    }
    assert_ok(shore__st_writer_finish(w, &diag));
}

static void refused(const struct shore__model *m, const struct declared *d, const char *says) {
    struct shore_diag diag = {0};
    struct shore__source *source = NULL;
    remove_tree("bad");
    write_declared("bad", d, UINT32_MAX, 0, 0);
    assert_int_equal(shore__source_directory(m, "bad", &source, &diag), SHORE_EINPUT);
    assert_says(diag, says);
    bool of_a_file = strncmp(diag.text, "bad/model.safetensors: ", 23) == 0;
    assert_true(of_a_file || strncmp(diag.text, "bad: ", 5) == 0);
}

static void says_which_tensor_does_not_fit(void **state) {
    struct shore__model *m = model_of(small_models[0]);
    struct declared d = declare(m);
    uint32_t qkv = index_of(&d, "transformer.h.1.attn.c_attn.weight");

    d.decls[qkv].shape[1]--;
    refused(m, &d,
            "the tensor transformer.h.1.attn.c_attn.weight has the shape [96, 287], but config.json asks for "
            "[96, 288]");
    d = declare(m);
    d.decls[qkv] = d.decls[--d.count];
    refused(m, &d, "the tensor transformer.h.1.attn.c_attn.weight is missing");
    d = declare(m);
    d.decls[d.count++] = (struct shore__st_decl){.name = "transformer.h.2.\x1b[31mln", .rank = 1, .shape = {3}};
    refused(m, &d, "the tensor transformer.h.2.\\x1b[31mln is not part of a gpt2 model");
    d = declare(m);
    d.decls[index_of(&d, "transformer.ln_f.bias")].rank = 2;
    d.decls[index_of(&d, "transformer.ln_f.bias")].shape[1] = 1;
    refused(m, &d, "[96, 1], but config.json asks for [96]");
    shore__model_free(m);
}

static void takes_names_as_files_have_them(void **state) {
    struct shore__model *m = model_of(small_models[0]);
    struct shore_diag diag = {0};
    struct shore__source *source = NULL;
    struct declared d = declare(m);
    for (uint32_t i = 0; i < d.count; i++)
        d.decls[i].name += strlen("transformer.");
    d.decls[d.count++] = (struct shore__st_decl){.name = "h.0.attn.masked_bias", .rank = 1, .shape = {1}};
    d.decls[d.count++] = (struct shore__st_decl){.name = "lm_head.weight", .rank = 2, .shape = {1031, 96}};
    write_declared("bare", &d, index_of(&d, "h.0.attn.masked_bias"), 0, -1e4f);
    assert_ok(shore__source_directory(m, "bare", &source, &diag));
    shore__source_close(source);
    shore__model_free(m);
}

static void names_values_that_are_not_finite(void **state) {
    static const struct {
        const char *tensor;
        uint64_t at;
        float value;
        const char *says;
    } cases[] = {
        {"transformer.wte.weight", 96 * 1000 + 5, NAN, "transformer.wte.weight holds NaN at [1000, 5]"},
        {"transformer.h.0.mlp.c_fc.weight", 384 * 7 + 300, -INFINITY,
         "transformer.h.0.mlp.c_fc.weight holds infinity (or a number too large for bf16) at [7, 300]"},
        {"transformer.h.1.ln_2.bias", 95, 3.4e38f, "transformer.h.1.ln_2.bias holds infinity"},
    };
    struct shore__model *m = model_of(small_models[0]);
    struct declared d = declare(m);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct shore_diag diag = {0};
        struct shore__settings s;
        struct shore__source *source = NULL;
        struct shore_fleet_options options;
        struct shore_fleet *fleet = NULL;
        remove_tree("bad");
        write_declared("bad", &d, index_of(&d, cases[i].tensor), cases[i].at, cases[i].value);
        assert_ok(shore__source_directory(m, "bad", &source, &diag));
        ram_settings(&s);
        shore__run_fleet_options(&s, 0, false, &options);
        assert_ok(shore_fleet_create(m->layout, &options, &fleet, &diag));
        assert_int_equal(shore__import(fleet, m, source, NULL, NULL, NULL, &diag), SHORE_EINPUT);
        assert_says(diag, cases[i].says);
        shore_fleet_close(fleet);
        shore__source_close(source);
        shore__settings_free(&s);
    }
    shore__model_free(m);
}

static void what_fp16_cannot_hold_is_named(void **state) {
    static const struct {
        const char *tensor;
        uint64_t at;
        const char *says;
    } cases[] = {
        {"transformer.wte.weight", 96 * 1000 + 5,
         "transformer.wte.weight holds -65520 at [1000, 5], and the largest number of fp16"},
        {"transformer.h.0.mlp.c_fc.weight", 384 * 7 + 300, "c_fc.weight holds -65520 at [7, 300]"}, /* transposed */
    };
    struct shore__model *m = model_of(small_models[0]);
    struct declared d = declare(m);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct shore_diag diag = {0};
        struct shore__settings s;
        struct shore__source *source = NULL;
        remove_tree("bad");
        write_declared("bad", &d, index_of(&d, cases[i].tensor), cases[i].at, -65520);
        assert_ok(shore__source_directory(m, "bad", &source, &diag));
        ram_settings(&s);
        struct shore_fleet *fleet = fleet_of(&s, m, source, NULL, false);
        const enum shore__st_type type = SHORE__ST_F16;
        const struct shore__exporting e = {.fleet = fleet, .type = &type};
        assert_int_equal(shore__export(&e, m, NULL, "much", &diag), SHORE_EINPUT);
        assert_says(diag, cases[i].says);
        assert_false(exists("much") || exists("much.partial"));
        shore_fleet_close(fleet);
        shore__source_close(source);
        shore__settings_free(&s);
    }
    shore__model_free(m);
}

struct stop {
    int at, calls;
};

static int cancel(void *ctx, uint64_t done, uint64_t total) {
    struct stop *stop = ctx;
    assert_true(done <= total);
    return ++stop->calls == stop->at;
}

static void stops_when_asked(void **state) {
    struct shore__model *m = model_of(small_models[2]);
    struct shore_diag diag = {0};
    struct shore__settings s;
    struct shore__source *source = NULL;
    struct stop stop = {0};
    const enum shore__st_type type = SHORE__ST_F32;
    ram_settings(&s);
    assert_int_equal(shore__source_init(m, 0, &source), 0);
    struct shore_fleet *fleet = fleet_of(&s, m, source, NULL, false);
    const struct shore__exporting e = {
        .fleet = fleet, .type = &type, .moments = true, .progress = cancel, .progress_ctx = &stop};
    /* at each call in turn: among weights, and among moments */
    for (int at = 1, rc = -ECANCELED; rc == -ECANCELED; at++) {
        stop = (struct stop){.at = at};
        rc = shore__export(&e, m, NULL, "stopped", &diag);
        assert_true(stop.calls <= at && !exists("stopped.partial") && exists("stopped") == (rc == 0));
        if (rc == 0) assert_true(at > 3 && exists("stopped/optimizer/exp_avg_sq/model.safetensors"));
    }
    shore_fleet_close(fleet);
    shore__source_close(source);
    shore__settings_free(&s);
    shore__model_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(export_and_import_are_inverse),
        cmocka_unit_test(exports_bf16_as_it_is_computed_with),
        cmocka_unit_test(exports_fp16_rounded),
        cmocka_unit_test(what_fp16_cannot_hold_is_named),
        cmocka_unit_test(padding_is_zero_however_much_is_made_at_once),
        cmocka_unit_test(never_replaces_a_directory),
        cmocka_unit_test(says_which_tensor_does_not_fit),
        cmocka_unit_test(takes_names_as_files_have_them),
        cmocka_unit_test(names_values_that_are_not_finite),
        cmocka_unit_test(stops_when_asked),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
