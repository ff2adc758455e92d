/* Runs as other programs make them: longshore/run.h. */
#include <errno.h>

#include "fault/forked.h"
#include "files/safetensors.h"
#include "number/bf16.h"
#include "number/fp16.h"
#include "unit/run/of_program.h"

static struct shore_run *made(const char *path, const char *const *drives, uint32_t ndrives) {
    struct shore_diag diag = {0};
    struct shore_run *run = NULL;
    const struct shore_fleet_options options = fleet_of_program(drives, ndrives);
    assert_ok(begin_run(path, &options, &run, &diag));
    assert_ok(shore_run_seal(run, 0, &diag));
    return run;
}

static struct shore_run *opened(const char *path) {
    struct shore_diag diag = {0};
    struct shore_run *run = NULL;
    assert_ok(shore_run_open(path, NULL, &run, &diag));
    return run;
}

static void removed(const char *path) {
    struct shore_diag diag = {0};
    assert_ok(shore_run_remove(path, NULL, &diag));
    assert_false(exists(path));
    assert_false(has_volume("drive0"));
    assert_false(has_volume("drive1"));
}

/* All gradients are 1. */
static void make_step(struct shore_run *run, const char *metrics, const char *blob) {
    struct shore_diag diag = {0};
    const struct shore_commit commit = {
        .size = sizeof commit, .step = step_of(run) + 1, .blob = blob, .blob_bytes = blob ? strlen(blob) : 0};
    assert_ok(update_run(run, &diag));
    assert_ok(shore_run_commit(run, &commit, metrics, &diag));
    assert_ok(shore_run_commit_wait(run, &diag));
}

static char *digest_of(const struct shore_run *run) {
    static char text[33];
    unsigned char digest[16];
    struct shore_diag diag = {0};
    assert_ok(shore_fleet_digest(shore_run_fleet(run), true, digest, &diag));
    for (int i = 0; i < 16; i++)
        sprintf(text + 2 * i, "%02x", digest[i]);
    return text;
}

static void check_shapes(const struct shore_run *run) {
    uint32_t count = 0;
    const struct shore_shape *s = shore_run_shapes(run, &count);
    const struct shore_layout *layout = shore_run_layout(run);
    assert_int_equal(count, TENSORS);
    for (uint32_t i = 0; i < count; i++) {
        const struct shore_shape *want = &shapes_of_program[i];
        const struct shore_layout_tensor *lies = &layout->blocks[s[i].block].tensors[s[i].tensor];
        assert_string_equal(s[i].name, want->name);
        assert_string_equal(lies->name, want->name);
        assert_int_equal(s[i].offset_elems, lies->offset_elems);
        assert_int_equal(lies->group, strcmp(want->name, "embed.frozen") ? GROUP_TRAINED : GROUP_FROZEN);
        assert_int_equal(s[i].rank, want->rank);
        assert_memory_equal(s[i].dims, want->dims, sizeof want->dims);
        assert_int_equal(s[i].dtype, want->dtype);
        assert_int_equal(s[i].ntied, want->ntied);
        for (uint32_t k = 0; k < want->ntied; k++)
            assert_string_equal(s[i].tied[k], want->tied[k]);
    }
    assert_string_equal(layout->blocks[1].name, "body.0");
}

/* ---- */

static void leave_run(void *run) {
    shore_run_forked(run);
}

static void a_forked_child_leaves_the_run(void **state) {
    struct shore_diag diag = {0};
    struct shore_run *run = NULL, *second = NULL;
    bool kept[DESCRIPTORS];
    make_step(run = made("f", two_drives, 2), "{\"loss\": 1}", NULL);
    shore_run_close(run);
    descriptors(kept);
    run = opened("f");
    make_step(run, "{\"loss\": 2}", NULL); /* metrics are open */
    struct child child = child_that_leaves(leave_run, run, kept);
    assert_int_equal(shore_run_open("f", NULL, &second, &diag), SHORE_EBUSY);
    make_step(run, "{\"loss\": 3}", NULL);
    shore_run_close(run);
    run = opened("f"); /* the child is there, and holds no lock */
    assert_int_equal(step_of(run), 3);
    shore_run_close(run);
    child_ends(child);
    shore_run_forked(NULL);
    char *lines = read_text("f/metrics.jsonl");
    assert_string_equal(lines, "{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":2}\n{\"step\":3,\"loss\":3}\n");
    free(lines);
    assert_ok(shore_run_remove("f", NULL, &diag));
}

static void what_is_committed_is_there_again(void **state) {
    struct shore_diag diag = {0};
    struct shore_run *run = made("a", two_drives, 2);
    struct shore_run_info info = {.size = sizeof info};
    char blob[64], digest[33];
    uint32_t bytes = sizeof blob;
    check_shapes(run);
    make_step(run, "{\"loss\": 0.1, \"step\": 7, \"list\": [1,\n 2]}", "first");
    make_step(run, NULL, "second");
    strcpy(digest, digest_of(run));
    shore_run_close(run);
    char *lines = read_text("a/metrics.jsonl");
    assert_string_equal(lines, "{\"step\":1,\"loss\":0.1,\"list\":[1,2]}\n{\"step\":2}\n");
    free(lines);

    run = opened("a");
    check_shapes(run);
    assert_int_equal(step_of(run), 2);
    assert_string_equal(digest_of(run), digest);
    assert_ok(shore_fleet_blob(shore_run_fleet(run), blob, &bytes, &diag));
    assert_int_equal(bytes, 6);
    assert_memory_equal(blob, "second", 6);
    assert_string_equal(shore_run_program(run),
                        "{\"name\":\"a program\",\"lr\":0.10000000000000001,\"versions\":{\"torch\":\"2.15\"}}");
    assert_int_equal(shore_run_info(run, &info), 0);
    assert_int_equal(info.optimizer, SHORE_ADAMW);
    assert_false(info.fp32_params || info.with_momentum || info.residual);
    assert_ok(shore_run_record(run, 2, "torch 2.16 instead of 2.15", "{\"name\": \"a program\", \"n\": 2}", &diag));
    shore_run_close(run);

    const struct shore_run_opening reading = {.size = sizeof reading, .read_only = true};
    assert_ok(shore_run_open("a", &reading, &run, &diag));
    assert_string_equal(shore_run_program(run), "{\"name\":\"a program\",\"n\":2}");
    const struct shore_commit commit = {.size = sizeof commit, .step = 3, .how = SHORE_COMMIT_SKIPPED};
    assert_int_equal(shore_run_commit(run, &commit, NULL, &diag), -EROFS);
    assert_int_equal(shore_run_record(run, 2, "nothing", NULL, &diag), -EROFS);
    assert_int_equal(shore_run_snapshot(run, "s", 0, &diag), -EROFS);
    shore_run_close(run);
    removed("a");
}

/* Also while another process works on it. */
static void what_it_records_is_read_without_drives(void **state) {
    struct shore_diag diag;
    struct shore_run *run = made("a", two_drives, 2), *read;
    struct shore_run_opening how = {.size = sizeof how, .without_drives = true};
    assert_int_equal(shore_run_open("a", &how, &read, &diag), SHORE_EUSAGE);
    how.read_only = true;
    assert_ok(shore_run_open("a", &how, &read, &diag));
    assert_null(shore_run_fleet(read));
    for (uint32_t d = 0; d < 2; d++) { /* the directory of a volume */
        const char *drive = shore_run_drive(read, d);
        assert_memory_equal(shore_fleet_drive_path(shore_run_fleet(run), d), drive, strlen(drive));
    }
    assert_null(shore_run_drive(read, 2));
    assert_string_equal(shore_run_program(read), shore_run_program(run));
    uint32_t count = 0, all = 0;
    assert_string_equal(shore_run_shapes(read, &count)[0].name, shore_run_shapes(run, &all)[0].name);
    assert_int_equal(count, all);
    assert_int_equal(shore_run_layout(read)->segments, shore_run_layout(run)->segments);
    assert_int_equal(shore_run_export(read, "out", NULL, NULL, &diag), -EINVAL);
    assert_int_equal(shore_run_reconnect(read, &diag), -EINVAL);
    assert_int_equal(shore_run_snapshot(read, "s", 0, &diag), -EROFS);
    shore_run_close(read);
    make_step(run, NULL, NULL);
    shore_run_close(run);
    removed("a");
}

/* The line is in the record before it is in the file. */
static void a_line_that_a_kill_has_cost_comes_back(void **state) {
    struct shore_run *run = made("a", two_drives, 2);
    make_step(run, "{\"loss\": 1}", NULL);
    make_step(run, "{\"loss\": 2}", NULL);
    shore_run_close(run);
    write_text("a/metrics.jsonl", "{\"step\":1,\"loss\":1}\n{\"step\":2,\"lo");
    shore_run_close(opened("a"));
    char *lines = read_text("a/metrics.jsonl");
    assert_string_equal(lines, "{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":2}\n");
    free(lines);
    removed("a");
}

/* Of a line that a record has no room for, the record has the first members. */
static void a_line_is_as_long_as_it_needs_to_be(void **state) {
    struct shore_run *run = made("a", two_drives, 2);
    char *metrics = malloc(200000), *line = malloc(200000);
    int n = sprintf(metrics, "{\"loss\":1,\"by_drive\":{\"\\\",{\":[1,2]},\"charges\":[");
    for (int d = 0; d < 5000; d++)
        n += sprintf(metrics + n, "%s{\"drive_read\":%d}", d ? "," : "", d);
    sprintf(metrics + n, "],\"last\":2}");
    sprintf(line, "{\"step\":1,%s\n", metrics + 1);
    make_step(run, metrics, NULL);
    shore_run_close(run);
    for (int i = 0; i < 2; i++) {
        char *lines = read_text("a/metrics.jsonl");
        assert_string_equal(lines, i ? "{\"step\":1,\"loss\":1,\"by_drive\":{\"\\\",{\":[1,2]}}\n" : line);
        free(lines);
        if (!i) write_text("a/metrics.jsonl", "");
        shore_run_close(opened("a"));
    }
    free(metrics);
    free(line);
    removed("a");
}

static void other_options_are_kept(void **state) {
    struct shore_diag diag = {0};
    struct shore_run *run = NULL;
    struct shore_run_info info = {.size = sizeof info};
    struct shore_fleet_options options = fleet_of_program(two_drives, 1);
    options.optimizer = SHORE_SGD;
    options.with_momentum = true;
    options.moments = SHORE_MOMENTS_8BIT;
    options.fp32_params = true;
    options.residual = true;
    assert_ok(begin_run("a", &options, &run, &diag));
    assert_ok(shore_run_seal(run, 0, &diag));
    shore_run_close(run);
    run = opened("a");
    assert_int_equal(shore_run_info(run, &info), 0);
    assert_int_equal(info.optimizer, SHORE_SGD);
    assert_int_equal(info.moments, SHORE_MOMENTS_8BIT);
    assert_true(info.fp32_params && info.with_momentum && info.residual);
    shore_run_close(run);
    removed("a");
}

static void drives_that_were_moved_by_hand_are_named(void **state) {
    static const char *const moved[] = {"drive1=drive2"}, *const wrong[] = {"drive7=drive2"};
    struct shore_diag diag = {0};
    struct shore_run *run = made("a", two_drives, 2);
    struct shore_run_opening how = {.size = sizeof how, .moved = moved, .nmoved = 1};
    make_step(run, NULL, NULL);
    shore_run_close(run);
    assert_int_equal(rename("drive1", "drive2"), 0);
    assert_int_equal(shore_run_open("a", NULL, &run, &diag), SHORE_EMISSING);
    how.moved = wrong;
    assert_int_equal(shore_run_open("a", &how, &run, &diag), SHORE_EUSAGE);
    how.moved = moved;
    assert_ok(shore_run_open("a", &how, &run, &diag));
    shore_run_close(run);
    run = opened("a");
    assert_int_equal(step_of(run), 1);
    shore_run_close(run);
    char *text = read_text("a/run.json");
    assert_non_null(strstr(text, "drive drive1=drive2"));
    free(text);
    removed("a");
    assert_int_equal(rename("drive2", "drive1"), 0);
}

static void remember(void *ctx, const char *text) {
    snprintf(ctx, 1024, "%s", text);
}

/* Nothing tells whether a directory that was copied while the first one is gone is the run. */
static void a_copy_is_no_run_until_that_is_said(void **state) {
    struct shore_diag diag = {0};
    struct shore_run *run = NULL;
    char said[1024] = "";
    const struct shore_run_opening how = {.size = sizeof how, .note = remember, .note_ctx = said};
    struct shore_work work = {.size = sizeof work};
    shore_run_close(made("a", two_drives, 2));
    assert_int_equal(mkdir("b", 0755), 0);
    char *text = read_text("a/run.json");
    write_text("b/run.json", text);
    free(text);
    assert_ok(shore_run_open("b", &how, &run, &diag));
    shore_run_close(run);
    assert_non_null(strstr(said, "is a copy of the run"));
    assert_int_equal(shore_run_remove("b", &work, &diag), SHORE_EUSAGE);
    remove_tree("a");
    assert_int_equal(shore_run_remove("b", &work, &diag), SHORE_EUSAGE);
    work.not_a_copy = true;
    assert_ok(shore_run_remove("b", &work, &diag));
    assert_false(exists("b") || has_volume("drive0"));
}

/* ---- snapshots --------------------------------------------------------------------------------------------------- */

static void count_snapshot(void *ctx, const struct shore_snapshot *s) {
    char *names = ctx;
    sprintf(names + strlen(names), "%s@%d%s ", s->name, (int)s->step, s->automatic ? "!" : "");
}

static void snapshots_are_kept_and_gone_back_to(void **state) {
    struct shore_diag diag = {0};
    struct shore_run *run = made("a", two_drives, 2);
    char digest[33], names[200] = "";
    uint64_t step = 0;
    make_step(run, "{\"loss\": 1}", "one");
    strcpy(digest, digest_of(run));
    assert_ok(shore_run_snapshot(run, "good", 0, &diag));
    assert_int_equal(shore_run_snapshot(run, "good", 0, &diag), SHORE_EEXISTS);
    assert_ok(shore_run_record(run, 1, "something", "{\"name\": \"another\"}", &diag));
    for (int i = 0; i < 3; i++) {
        make_step(run, NULL, NULL);
        assert_ok(shore_run_snapshot(run, NULL, 2, &diag));
    }
    assert_ok(shore_run_snapshots("a", count_snapshot, names, &diag));
    assert_string_equal(names, "good@1 step-000003@3! step-000004@4! ");
    assert_ok(shore_run_snapshot_remove(run, "step-000003", &diag));
    assert_int_equal(shore_run_snapshot_remove(run, "step-000003", &diag), SHORE_EUSAGE);
    shore_run_close(run);

    assert_int_equal(shore_run_rollback("a", "none", NULL, &step, &diag), SHORE_EUSAGE);
    assert_ok(shore_run_rollback("a", "good", NULL, &step, &diag));
    assert_int_equal(step, 1);
    run = opened("a");
    assert_int_equal(step_of(run), 1);
    assert_string_equal(digest_of(run), digest);
    assert_non_null(strstr(shore_run_program(run), "\"a program\""));
    shore_run_close(run);
    char *lines = read_text("a/metrics.jsonl");
    assert_string_equal(lines, "{\"step\":1,\"loss\":1}\n");
    free(lines);
    removed("a");
    assert_false(exists(volume_in("drive0", ".snapshot-good")));
}

static void a_snapshot_is_read_while_the_run_goes_on(void **state) {
    struct shore_diag diag = {0};
    struct shore_run *run = made("a", two_drives, 2), *kept = NULL;
    struct shore_run_opening opening = {.size = sizeof opening, .read_only = true, .snapshot = "good"};
    char digest[33];
    make_step(run, NULL, NULL);
    strcpy(digest, digest_of(run));
    assert_ok(shore_run_snapshot(run, "good", 0, &diag));
    make_step(run, NULL, NULL);
    assert_ok(shore_run_record(run, 2, "something", "{\"name\": \"another\"}", &diag));
    assert_ok(shore_run_open("a", &opening, &kept, &diag));
    assert_int_equal(step_of(kept), 1);
    assert_string_equal(digest_of(kept), digest);
    assert_non_null(strstr(shore_run_program(kept), "\"a program\""));
    make_step(run, NULL, NULL);
    assert_ok(shore_run_export(kept, "out", NULL, NULL, &diag));
    shore_run_close(kept);
    opening.read_only = false;
    assert_int_equal(shore_run_open("a", &opening, &kept, &diag), SHORE_EUSAGE);
    opening.read_only = true;
    opening.snapshot = "none";
    assert_int_equal(shore_run_open("a", &opening, &kept, &diag), SHORE_EUSAGE);
    shore_run_close(run);
    removed("a");
}

/* ---- export ------------------------------------------------------------------------------------------------------ */

static float *fetched(const struct shore_run *run, const struct shore_shape *s, enum shore_fetch_kind kind) {
    struct shore_diag diag = {0};
    const struct shore_layout_block *block = &shore_run_layout(run)->blocks[s->block];
    const uint64_t elems = block->tensors[s->tensor].elems;
    float *all = aligned_alloc(SHORE_BUFFER_ALIGN_BYTES, block->padded_elems * sizeof *all);
    float *out = calloc(elems, sizeof *out);
    struct shore_wait wait;
    assert_true(all && out);
    shore_wait_init(&wait);
    assert_int_equal(shore_fleet_fetch(shore_run_fleet(run), step_of(run), s->block, 0, block->segments, kind, all,
                                       shore_wait_completion(&wait)),
                     0);
    assert_ok(shore_wait(&wait, &diag));
    for (uint64_t i = 0; i < elems; i++)
        out[i] = kind == SHORE_FETCH_BF16 ? shore__bf16_to_f32(((const uint16_t *)(void *)all)[s->offset_elems + i])
                                          : all[s->offset_elems + i];
    free(all);
    return out;
}

static void check_exported(const struct shore_run *run, const char *directory, const enum shore_dtype *converted) {
    struct shore_diag diag = {0};
    struct shore__safetensors *st = NULL;
    uint32_t count = 0;
    const struct shore_shape *shapes = shore_run_shapes(run, &count);
    assert_ok(shore__safetensors_open(directory, &st, &diag));
    assert_int_equal(st->ntensors, TENSORS);
    for (uint32_t i = 0; i < count; i++) {
        const struct shore_shape *s = &shapes[i];
        const enum shore_dtype dtype = converted ? *converted : s->dtype;
        const struct shore__st_tensor *t = shore__safetensors_find(st, s->name);
        assert_non_null(t);
        assert_int_equal(t->type, dtype == SHORE_DTYPE_FP32   ? SHORE__ST_F32
                                  : dtype == SHORE_DTYPE_BF16 ? SHORE__ST_BF16
                                                              : SHORE__ST_F16);
        assert_int_equal(t->rank, s->rank);
        assert_memory_equal(t->shape, s->dims, s->rank * sizeof *s->dims);
        float *want = fetched(run, s, dtype == SHORE_DTYPE_BF16 ? SHORE_FETCH_BF16 : SHORE_FETCH_MASTER);
        float *have = calloc(t->elems, sizeof *have);
        assert_non_null(have);
        assert_ok(shore__safetensors_read(st, t, 0, t->elems, have, &diag));
        for (uint64_t k = 0; dtype == SHORE_DTYPE_FP16 && k < t->elems; k++)
            want[k] = shore__f16_to_f32(shore__f32_to_f16(want[k]));
        assert_memory_equal(have, want, t->elems * sizeof *have);
        free(want);
        free(have);
    }
    shore__safetensors_close(st);
}

/* In one file with the rest, whatever their types. */
static void check_extras(struct shore_run *run) {
    static const int64_t seen = 7;
    static const float mean[2] = {1.5f, -2};
    static const char flags[3] = {1, 0, 1};
    const struct shore_extra extras[] = {{.name = "flags", .type = "BOOL", .rank = 1, .dims = {3}, .data = flags},
                                         {.name = "seen", .type = "I64", .data = &seen},
                                         {.name = "mean", .type = "F32", .rank = 1, .dims = {2}, .data = mean}};
    struct shore_run_exporting how = {.size = sizeof how, .nextras = 3, .extras = extras};
    struct shore_diag diag = {0};
    struct shore__safetensors *st = NULL;
    float values[3];
    assert_ok(shore_run_export(run, "extras", &how, NULL, &diag));
    assert_ok(shore__safetensors_open("extras", &st, &diag));
    assert_int_equal(st->ntensors, TENSORS + 3);
    assert_int_equal(st->nfiles, 1);
    assert_ok(shore__safetensors_read(st, shore__safetensors_find(st, "mean"), 0, 2, values, &diag));
    assert_memory_equal(values, mean, sizeof mean);
    assert_ok(shore__safetensors_read(st, shore__safetensors_find(st, "flags"), 0, 3, values, &diag));
    assert_true(values[0] == 1 && values[1] == 0 && values[2] == 1);
    const struct shore__st_tensor *counted = shore__safetensors_find(st, "seen");
    int64_t read = 0;
    assert_int_equal(counted->offset % 8, 0);
    assert_int_equal(pread(st->fds[0], &read, sizeof read, (off_t)counted->offset), sizeof read);
    assert_int_equal(read, seen);
    shore__safetensors_close(st);
    const struct shore_extra odd = {.name = "odd", .type = "I4", .data = flags};
    how.nextras = 1;
    how.extras = &odd;
    assert_int_equal(shore_run_export(run, "odd", &how, NULL, &diag), SHORE_EUSAGE);
    assert_non_null(strstr(diag.text, "the tensor odd is of a type that is not written"));
}

static int stop(void *ctx, uint64_t done, uint64_t total) {
    assert_true(done <= total);
    return ++*(int *)ctx == 2;
}

static void an_export_has_every_tensor_once(void **state) {
    struct shore_diag diag = {0};
    struct shore_run *run = made("a", two_drives, 2);
    const enum shore_dtype half = SHORE_DTYPE_FP16;
    assert_ok(shore_run_export(run, "first", NULL, NULL, &diag));
    check_exported(run, "first", NULL);
    for (int i = 0; i < 3; i++)
        make_step(run, NULL, NULL);
    const struct shore_run_exporting sharded = {.size = sizeof sharded, .shard_bytes = 100000};
    assert_ok(shore_run_export(run, "third", &sharded, NULL, &diag));
    assert_true(exists("third/model.safetensors.index.json"));
    check_exported(run, "third", NULL);
    const struct shore_run_exporting converted = {.size = sizeof converted, .converted = true, .dtype = half};
    assert_ok(shore_run_export(run, "half", &converted, NULL, &diag));
    check_exported(run, "half", &half);

    check_extras(run);
    float *frozen = fetched(run, &shore_run_shapes(run, &(uint32_t){0})[4], SHORE_FETCH_MASTER);
    const uint64_t offset = shore_run_shapes(run, &(uint32_t){0})[4].offset_elems;
    for (uint64_t i = 0; i < 33 * 3; i++)
        assert_true(frozen[i] == first_value(1, offset + i));
    free(frozen);

    assert_int_equal(shore_run_export(run, "half", NULL, NULL, &diag), SHORE_EEXISTS);
    int calls = 0;
    const struct shore_work work = {
        .size = sizeof work, .memory_bytes = 1 << 20, .progress = stop, .progress_ctx = &calls};
    assert_int_equal(shore_run_export(run, "stopped", NULL, &work, &diag), -ECANCELED);
    assert_false(exists("stopped") || exists("stopped.partial"));
    shore_run_close(run);
    removed("a");
}

/* ---- bad input --------------------------------------------------------------------------------------------------- */

static void is_refused(const struct shore_shape *shapes, uint32_t count, const char *program, int code,
                       const char *says) {
    struct shore_diag diag = {0};
    struct shore_run *run = NULL;
    struct shore_layout *layout = layout_of_program();
    const struct shore_fleet_options options = fleet_of_program(two_drives, 2);
    const struct shore_run_making how = {.size = sizeof how, .fleet = &options, .program = program};
    assert_int_equal(shore_run_create("bad", layout, shapes, count, &how, &run, &diag), code);
    assert_says(diag, says);
    assert_false(exists("bad") || has_volume("drive0"));
    shore_layout_free(layout);
}

static void what_does_not_fit_is_named(void **state) {
    struct shore_shape s[TENSORS];
    static const char *const twice[] = {"temperature"}, *const empty[] = {""};
    is_refused(shapes_of_program, TENSORS - 1, program_text, SHORE_EINPUT,
               "has 7 tensors, but the number of shapes is 6");
#define SPOILT(member, value, says)         \
    memcpy(s, shapes_of_program, sizeof s); \
    s[3].member = value;                    \
    is_refused(s, TENSORS, program_text, SHORE_EINPUT, says)
    SPOILT(name, "other.weight", "the tensor other.weight is called embed.weight in the layout");
    SPOILT(name, "\xFF", "tensor number 3: one of its names is empty, or is not UTF-8");
    SPOILT(name, NULL, "tensor number 3");
    SPOILT(rank, 9, "embed.weight has rank 9, and the largest rank is 8");
    SPOILT(dims[1], 256, "embed.weight has the shape [300, 256], but 77100 elements in the layout");
    SPOILT(dims[0], UINT64_MAX, "but 77100 elements");
    SPOILT(dtype, (enum shore_dtype)3, "embed.weight has another dtype than");
    SPOILT(ntied, 1; s[3].tied = twice, "two tensors are called temperature");
    SPOILT(ntied, 1; s[3].tied = empty, "tensor number 3: one of its names is empty");
    SPOILT(tied, NULL, "tensor number 3");
    is_refused(shapes_of_program, TENSORS, NULL, SHORE_EINPUT, "no \"name\"");
    is_refused(shapes_of_program, TENSORS, "{\"name\": \"\"}", SHORE_EINPUT, "no \"name\"");
    is_refused(shapes_of_program, TENSORS, "{\"name\": ", SHORE_EINPUT, "the program's JSON");
    is_refused(shapes_of_program, TENSORS, "[1]", SHORE_EINPUT, "not an object");
    is_refused(shapes_of_program, TENSORS, "{\"name\": \"a\", \"seeds\": [9223372036854775807, 9223372036854775808]}",
               SHORE_EINPUT, "the number 9223372036854775808 does not fit into 64 bits; write it as text");
    char *long_text = malloc(SHORE_PROGRAM_BYTES + 64);
    assert_non_null(long_text);
    sprintf(long_text, "{\"name\": \"%0*d\"}", (int)SHORE_PROGRAM_BYTES, 0);
    is_refused(shapes_of_program, TENSORS, long_text, SHORE_EINPUT, "at most 1048576 are allowed");
    free(long_text);
}

static void a_making_says_whose_it_is(void **state) {
    struct shore_diag diag = {0};
    struct shore_run *run = NULL;
    const struct shore_fleet_options options = fleet_of_program(two_drives, 2);
    assert_ok(begin_run("a", &options, &run, &diag));
    assert_int_equal(shore__not_a_run("a", &diag), SHORE_EMISSING);
    assert_says(diag, "a: was stopped while a program made it: make it again there");
    shore_run_close(run);
    assert_false(exists("a") || has_volume("drive0"));
}

static void calls_that_make_no_sense_are_refused(void **state) {
    struct shore_diag diag = {0};
    struct shore_run *run = NULL, *second = NULL;
    struct shore_layout *layout = layout_of_program();
    struct shore_fleet_options options = fleet_of_program(two_drives, 2);
    struct shore_run_making how = {.fleet = &options, .program = program_text};
    assert_int_equal(shore_run_create("bad", layout, shapes_of_program, TENSORS, &how, &run, &diag), -EINVAL);
    assert_says(diag, "size of a struct shore_run_making");
    how.size = sizeof how;
    options.epoch = 3;
    assert_int_equal(shore_run_create("bad", layout, shapes_of_program, TENSORS, &how, &run, &diag), -EINVAL);
    options.epoch = 0;
    options.ndrives = 0;
    assert_int_equal(shore_run_create("bad", layout, shapes_of_program, TENSORS, &how, &run, &diag), SHORE_EUSAGE);
    options.ndrives = 2;
    assert_false(exists("bad"));
    assert_int_equal(shore_run_open("bad", NULL, &run, &diag), SHORE_EMISSING);

    run = made("a", two_drives, 2);
    assert_int_equal(shore_run_seal(run, 0, &diag), -EINVAL);
    assert_int_equal(shore_run_open("a", NULL, &second, &diag), SHORE_EBUSY);
    const struct shore_commit wrong = {.size = sizeof wrong, .step = 1, .metrics = "x", .metrics_bytes = 1};
    assert_int_equal(shore_run_commit(run, &wrong, NULL, &diag), -EINVAL);
    const struct shore_commit skip = {.size = sizeof skip, .step = 1, .how = SHORE_COMMIT_SKIPPED};
    assert_int_equal(shore_run_commit(run, &skip, "{\"loss\": NaN}", &diag), SHORE_EINPUT);
    assert_says(diag, "the metrics of step 1");
    char *metrics = malloc((1 << 20) + 100);
    sprintf(metrics, "{\"a\": \"%0*d\"}", 1 << 20, 0);
    assert_int_equal(shore_run_commit(run, &skip, metrics, &diag), SHORE_EINPUT);
    assert_says(diag, "the metrics of step 1 have 1048");
    free(metrics);
    assert_ok(shore_run_commit(run, &skip, NULL, &diag));
    assert_int_equal(shore_run_commit(run, &skip, NULL, &diag), -EBUSY);
    assert_int_equal(shore_run_snapshot(run, "s", 0, &diag), -EBUSY);
    shore_run_close(run); /* waits for it */
    run = opened("a");
    assert_int_equal(step_of(run), 1);
    assert_int_equal(shore_run_record(run, 1, "x", "{}", &diag), SHORE_EINPUT);
    shore_run_close(run);

    assert_int_equal(shore_run_create("a", layout, shapes_of_program, TENSORS, &how, &run, &diag), SHORE_EEXISTS);
    assert_says(diag, "a: holds a run");
    options.overwrite = true;
    assert_ok(shore_run_create("a", layout, shapes_of_program, TENSORS, &how, &run, &diag));
    shore_run_close(run); /* not sealed: what was there is, but for what was replaced */
    assert_ok(begin_run("a", &options, &run, &diag));
    assert_ok(shore_run_seal(run, 0, &diag));
    shore_run_close(run);
    removed("a");
    shore_layout_free(layout);
}

static void a_changed_description_is_refused(void **state) {
    static const char *const spoilt[][2] = {{"\"dtype\": \"bf16\"", "\"dtype\": \"int8\""},
                                            {"\"name\": \"a program\"", "\"n\": 1"},
                                            {"\"group\": 0", "\"group\": -1"},
                                            {"temperature", "conv1.bias"}};
    struct shore_diag diag = {0};
    struct shore_run *run = NULL;
    shore_run_close(made("a", two_drives, 2));
    char *good = read_text("a/run.json");
    for (size_t i = 0; i < sizeof spoilt / sizeof spoilt[0]; i++) {
        char *at = strstr(good, spoilt[i][0]), *end = at + strlen(spoilt[i][0]), *text = NULL;
        assert_true(asprintf(&text, "%.*s%s%s", (int)(at - good), good, spoilt[i][1], end) > 0);
        write_text("a/run.json", text);
        assert_int_equal(shore_run_open("a", NULL, &run, &diag), SHORE_ECORRUPT);
        char *sum = strstr(text, "\"checksum\"");
        assert_non_null(sum);
        memcpy(sum, "\"nobodys!\"", 10); /* without one, nothing is compared */
        write_text("a/run.json", text);
        assert_int_equal(shore_run_open("a", NULL, &run, &diag), SHORE_EINPUT);
        assert_says(diag, "changed by hand");
        free(text);
    }
    char *version = strstr(good, "\"longshore\": 2");
    assert_non_null(version);
    version[13] = '3';
    write_text("a/run.json", good);
    assert_int_equal(shore_run_open("a", NULL, &run, &diag), SHORE_EFORMAT);
    version[13] = '2';
    write_text("a/run.json", good);
    free(good);
    removed("a");
}

static int group_open(void **state) {
    if (scratch_open(state) < 0) return -1;
    return mkdir("drive0", 0755) || mkdir("drive1", 0755) ? -1 : 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_forked_child_leaves_the_run),
        cmocka_unit_test(what_is_committed_is_there_again),
        cmocka_unit_test(what_it_records_is_read_without_drives),
        cmocka_unit_test(a_line_that_a_kill_has_cost_comes_back),
        cmocka_unit_test(a_line_is_as_long_as_it_needs_to_be),
        cmocka_unit_test(other_options_are_kept),
        cmocka_unit_test(drives_that_were_moved_by_hand_are_named),
        cmocka_unit_test(a_copy_is_no_run_until_that_is_said),
        cmocka_unit_test(snapshots_are_kept_and_gone_back_to),
        cmocka_unit_test(a_snapshot_is_read_while_the_run_goes_on),
        cmocka_unit_test(an_export_has_every_tensor_once),
        cmocka_unit_test(what_does_not_fit_is_named),
        cmocka_unit_test(a_making_says_whose_it_is),
        cmocka_unit_test(calls_that_make_no_sense_are_refused),
        cmocka_unit_test(a_changed_description_is_refused),
    };
    return cmocka_run_group_tests(tests, group_open, scratch_close);
}
