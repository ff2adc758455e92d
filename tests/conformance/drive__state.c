/* State that travels: images between fleets, snapshots, placements; residuals and gradients of every form. */
#include "conformance/drive_bench.h"

#include "drive/fleet/fleet.h"
#include "drive/fleet/fleet_snapshot.h"

static void copy_state(struct bench *b, struct shore_fleet *from, struct shore_fleet *to, struct shore_store store,
                       uint64_t step) {
    size_t each = shore_fleet_state_bytes(from);
    for (store.block = 0; store.block < BLOCKS; store.block++) {
        store.segment = 0;
        store.count = b->plain.layout->blocks[store.block].segments;
        unsigned char *image = pages(store.count * each);
        struct shore_wait wait;
        store.state = image;
        shore_wait_init(&wait);
        must(b, shore_fleet_fetch(from, step, store.block, 0, store.count, SHORE_FETCH_STATE, image,
                                  shore_wait_completion(&wait)));
        must(b, shore_wait(&wait, &b->diag));
        shore_wait_init(&wait);
        must(b, shore_fleet_store(to, &store, shore_wait_completion(&wait)));
        must(b, shore_wait(&wait, &b->diag));
        free(image);
    }
}

/* The state goes from any placement to any other, as the first state of a fleet and as a step of one. */
static void test_state_images(void **state) {
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        if (!bench_open(&b, &configs[c], SHORE_ADAMW, false)) continue;
        step(&b);
        struct place other;
        struct shore_fleet *copy;
        place_open(&other, c % 2 ? "f" : "rfr");
        struct shore_fleet_options options = options_of(&configs[c], &other, &b.plain);
        must(&b, shore_fleet_create(b.plain.layout, &options, &copy, &b.diag));
        copy_state(&b, b.fleet, copy, (struct shore_store){.size = sizeof(struct shore_store)}, 1);
        must(&b, shore_fleet_seal(copy, 1, &b.diag));
        assert_digest(copy, &b.plain, true);
        must(&b, fleet_step(copy, &b.plain, 1, &b.diag));
        plain_step(&b.plain, 1);
        assert_digest(copy, &b.plain, true);

        struct shore_store store = {.size = sizeof store, .base_step = 1, .attempt = shore_fleet_attempt(b.fleet)};
        copy_state(&b, copy, b.fleet, store, 2);
        must(&b, fleet_commit(b.fleet, 1, false, &b.diag));
        assert_digest(b.fleet, &b.plain, true);
        store.base_step = 2;
        shore_fleet_discard(b.fleet);
        store.segment = 0;
        store.count = 1;
        unsigned char *image = pages(shore_fleet_state_bytes(b.fleet));
        store.state = image;
        assert_int_equal(shore_fleet_store(b.fleet, &store, (struct shore_completion){0}), SHORE_EDISCARDED);
        store.segment = 1000;
        assert_int_equal(shore_fleet_store(b.fleet, &store, (struct shore_completion){0}), -EINVAL);
        free(image);
        shore_fleet_close(copy);
        place_close(&other);
        bench_close(&b);
    }
}

/* Parameters and moments that a program has changed. */
static void test_other_values(void **state) {
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        if (!bench_open(&b, &configs[c], SHORE_ADAMW, false)) continue;
        step(&b);
        uint64_t attempt = shore_fleet_attempt(b.fleet);
        for (uint32_t i = 0; i < BLOCKS; i++) {
            const struct shore_layout_block *block = &b.plain.layout->blocks[i];
            for (uint32_t t = 0; t < block->ntensors; t++)
                for (uint64_t e = 0; e < block->tensors[t].elems; e++) {
                    const uint64_t at = block->tensors[t].offset_elems + e;
                    b.plain.master[i][at] *= -1.00390625f;
                    if (i == 1 && t == 0) b.plain.m[i][at] = b.plain.v[i][at] = (float)(e % 7);
                }
            char *image = pages(block->segments * shore_fleet_state_bytes(b.fleet));
            struct shore_wait wait;
            shore_wait_init(&wait);
            must(&b, shore_fleet_fetch(b.fleet, 1, i, 0, block->segments, SHORE_FETCH_STATE, image,
                                       shore_wait_completion(&wait)));
            must(&b, shore_wait(&wait, &b.diag));
            shore_fleet_put_masters(b.fleet, image, block->segments, b.plain.master[i]);
            if (i == 1) { /* of one tensor, the one after another */
                shore_fleet_put_moments(b.fleet, image, i, 0, 0, 1, b.plain.m[i], b.plain.v[i]);
                shore_fleet_put_moments(b.fleet, image + shore_fleet_state_bytes(b.fleet), i, 0, 1, block->segments - 1,
                                        b.plain.m[i] + SHORE_SEGMENT_ELEMS, NULL);
                shore_fleet_put_moments(b.fleet, image + shore_fleet_state_bytes(b.fleet), i, 0, 1, block->segments - 1,
                                        NULL, b.plain.v[i] + SHORE_SEGMENT_ELEMS);
                if (plain_is_coded(&b.plain, &block->tensors[0])) plain_convert(&b.plain, i, &block->tensors[0], true);
            }
            struct shore_store store = {.size = sizeof store,
                                        .base_step = 1,
                                        .attempt = attempt,
                                        .state = image,
                                        .block = i,
                                        .count = block->segments};
            shore_wait_init(&wait);
            must(&b, shore_fleet_store(b.fleet, &store, shore_wait_completion(&wait)));
            must(&b, shore_wait(&wait, &b.diag));
            free(image);
        }
        must(&b, fleet_commit(b.fleet, 1, false, &b.diag));
        b.plain.step = 2;
        assert_digest(b.fleet, &b.plain, true);
        step(&b);
        assert_digest(b.fleet, &b.plain, true);
        bench_close(&b);
    }
}

/* An older state is put back under its own step, the fleet goes on from there, and opens there again. */
static void test_restored(void **state) {
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        if (!bench_open(&b, &configs[c], SHORE_ADAMW, false)) continue;
        step(&b);
        struct place other;
        struct shore_fleet *kept;
        place_open(&other, "r");
        struct shore_fleet_options options = options_of(&configs[c], &other, &b.plain);
        options.generation = 7;
        options.epoch = 9;
        must(&b, shore_fleet_create(b.plain.layout, &options, &kept, &b.diag));
        copy_state(&b, b.fleet, kept, (struct shore_store){.size = sizeof(struct shore_store)}, 1);
        must(&b, shore_fleet_seal(kept, 1, &b.diag));
        struct shore_fleet_info info = {.size = sizeof info};
        shore_fleet_info(kept, &info);
        assert_int_equal(info.generation, 7);
        assert_int_equal(info.epoch, 9);
        must(&b, fleet_step(b.fleet, &b.plain, 1, &b.diag));
        must(&b, fleet_step(b.fleet, &b.plain, 2, &b.diag));

        struct shore_wait wait;
        shore_wait_init(&wait);
        struct shore_store store = {.size = sizeof store, .base_step = 3, .attempt = shore_fleet_attempt(b.fleet)};
        copy_state(&b, kept, b.fleet, store, 1);
        const struct shore_commit back = {
            .size = sizeof back, .step = 1, .how = SHORE_COMMIT_RESTORED, .metrics = "back", .metrics_bytes = 4};
        must(&b, shore_fleet_commit_with(b.fleet, &back, shore_wait_completion(&wait)));
        must(&b, shore_wait(&wait, &b.diag));
        assert_digest(b.fleet, &b.plain, true);
        if (is_durable(&configs[c])) {
            reopen(&b);
            char metrics[8];
            uint32_t bytes = sizeof metrics;
            assert_int_equal(shore_fleet_metrics(b.fleet, metrics, &bytes), 0);
            assert_int_equal(bytes, 4);
            assert_memory_equal(metrics, "back", 4);
        }
        step(&b);
        assert_digest(b.fleet, &b.plain, true);
        shore_fleet_close(kept);
        place_close(&other);
        bench_close(&b);
    }
}

/* A copy of the committed state opens as a fleet of its own, and what happens to either does not show in the other. */
static void test_snapshots(void **state) {
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        if (!bench_open(&b, &configs[c], SHORE_ADAMW, false)) continue;
        step(&b);
        b.plain.carried[1] = true; /* so that the state lies in both slots */
        step(&b);
        b.plain.carried[1] = false;
        struct shore_diag diag = {0};
        if (!is_durable(&configs[c])) {
            assert_int_equal(shore__fleet_snapshot(b.fleet, "one", &diag), -ENOTSUP);
            bench_close(&b);
            continue;
        }
        assert_int_equal(shore__fleet_snapshot(b.fleet, "../one", &diag), SHORE_EUSAGE);
        /* what is being written does not belong to it */
        struct step_how how = {.coefficient = 1};
        must(&b, fleet_updates(b.fleet, &b.plain, 2, &how, &b.diag));
        must(&b, shore__fleet_snapshot(b.fleet, "one", &b.diag));
        assert_int_equal(shore__fleet_snapshot(b.fleet, "one", &diag), SHORE_EEXISTS);
        char paths[DRIVES_MOST][256];
        const char *list[DRIVES_MOST];
        struct shore_fleet_options options = b.options;
        for (uint32_t d = 0; d < b.place.ndrives; d++) {
            snprintf(paths[d], sizeof paths[d], "%s.snapshot-one", b.place.paths[d]);
            list[d] = paths[d];
        }
        options.drives = list;
        options.hint_step = 0;
        struct shore_fleet *copy;
        must(&b, shore_fleet_open(b.plain.layout, &options, &copy, &b.diag));
        assert_digest(copy, &b.plain, true);
        must(&b, fleet_step(copy, &b.plain, 2, &b.diag));
        assert_digest(b.fleet, &b.plain, true);
        must(&b, fleet_commit(b.fleet, 2, false, &b.diag));
        plain_step(&b.plain, 1);
        assert_digest(b.fleet, &b.plain, true);
        assert_digest(copy, &b.plain, true);
        shore_fleet_close(copy);
        reopen(&b);
        assert_digest(b.fleet, &b.plain, true);
        for (uint32_t d = 0; d < b.fleet->ndrives; d++)
            must(&b, b.fleet->drives[d]->ops->snapshot(b.fleet->drives[d], SHORE__SNAPSHOT_REMOVE, "one", &b.diag));
        assert_int_not_equal(shore_fleet_open(b.plain.layout, &options, &copy, &diag), 0);
        bench_close(&b);
    }
}

/* 0xA5 into the pages of m and v that hold nothing of their segment, in both slots of a drive's file. */
static void fill_unused_pages(const struct bench *b, const char *path) {
    unsigned char *plane = pages(SHORE_SEGMENT_ELEMS * 4);
    struct shore__volume v;
    struct shore_diag diag = {0};
    size_t filled = 0;
    if (shore__volume_peek(path, &v, &diag)) fail_msg("%s", diag.text);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    for (uint32_t e = 0; e < v.desc.nextents; e++) {
        const struct shore__extent *extent = &v.desc.extents[e];
        for (uint32_t i = 0; i < 4 * extent->count; i++) {
            const enum shore_plane which = i % 2 ? SHORE_PLANE_V : SHORE_PLANE_M;
            size_t used = plain_coded_plane(&b->plain, 0, extent->block, extent->first + i / 4, plane);
            used = (used + 4095) / 4096 * 4096;
            const size_t unused = v.desc.plane_bytes[which] - used;
            const uint64_t at = shore__volume_plane_offset(&v, i / 2 % 2, which, extent->local + i / 4) + used;
            memset(plane, 0xA5, unused);
            assert_int_equal(fseek(file, (long)at, SEEK_SET), 0);
            assert_int_equal(fwrite(plane, 1, unused, file), unused);
            filled += unused;
        }
    }
    assert_true(filled > 0);
    assert_int_equal(fclose(file), 0);
    shore__volume_close(&v);
    free(plane);
}

/* They are neither written nor read, whatever is done with the state. */
static void test_unused_pages(void **state) {
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        if (configs[c].moments != SHORE_MOMENTS_8BIT || !is_durable(&configs[c])) continue;
        if (!bench_open(&b, &configs[c], SHORE_ADAMW, false)) continue;
        step(&b);
        shore_fleet_close(b.fleet);
        b.fleet = NULL;
        for (uint32_t d = 0; d < b.place.ndrives; d++)
            fill_unused_pages(&b, b.place.path[d]);
        reopen(&b);
        assert_digest(b.fleet, &b.plain, true);
        must(&b, shore__fleet_snapshot(b.fleet, "one", &b.diag));
        for (uint32_t d = 0; d < b.fleet->ndrives; d++)
            must(&b, b.fleet->drives[d]->ops->snapshot(b.fleet->drives[d], SHORE__SNAPSHOT_REMOVE, "one", &b.diag));
        step(&b);
        assert_digest(b.fleet, &b.plain, true);
        struct place other;
        struct shore_fleet *copy;
        place_open(&other, "rf");
        struct shore_fleet_options options = options_of(&configs[c], &other, &b.plain);
        must(&b, shore_fleet_create(b.plain.layout, &options, &copy, &b.diag));
        copy_state(&b, b.fleet, copy, (struct shore_store){.size = sizeof(struct shore_store)}, 2);
        must(&b, shore_fleet_seal(copy, 2, &b.diag));
        assert_digest(copy, &b.plain, true);
        shore_fleet_close(copy);
        place_close(&other);
        bench_close(&b);
    }
}

/* A volume of another placement of the same fleet is not taken. */
static void test_generations(void **state) {
    static const struct config files = {"files", "ff", SHORE_IO_THREADS, 0, 0, SHORE_MOMENTS_FP32};
    struct bench b;
    struct place other;
    struct shore_fleet *second;
    assert_true(bench_open(&b, &files, SHORE_ADAMW, false));
    place_open(&other, "ff");
    struct shore_fleet_options options = options_of(&files, &other, &b.plain);
    struct shore_fleet_info info = {.size = sizeof info};
    shore_fleet_info(b.fleet, &info);
    memcpy(options.fleet_id, info.fleet_id, sizeof options.fleet_id);
    options.generation = info.generation + 1;
    must(&b, shore_fleet_create(b.plain.layout, &options, &second, &b.diag));
    copy_state(&b, b.fleet, second, (struct shore_store){.size = sizeof(struct shore_store)}, 0);
    must(&b, shore_fleet_seal(second, 0, &b.diag));
    shore_fleet_close(second);
    shore_fleet_close(b.fleet);
    b.fleet = NULL;
    const char *mixed[] = {other.paths[0], b.place.paths[1]};
    options.drives = mixed;
    options.generation = 0;
    assert_int_equal(shore_fleet_open(b.plain.layout, &options, &b.fleet, &b.diag), SHORE_EMISMATCH);
    assert_non_null(strstr(b.diag.text, "placement"));
    options.drives = other.paths;
    options.generation = info.generation;
    assert_int_equal(shore_fleet_open(b.plain.layout, &options, &b.fleet, &b.diag), SHORE_EMISMATCH);
    options.generation = info.generation + 1;
    must(&b, shore_fleet_open(b.plain.layout, &options, &b.fleet, &b.diag));
    assert_digest(b.fleet, &b.plain, true);
    place_close(&other);
    bench_close(&b);
}

/* Plane R holds what the last update said, zeros at first, and is part of the digest. */
static void test_residuals(void **state) {
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b = {.config = &configs[c]};
        place_open(&b.place, configs[c].kinds);
        plain_open(&b.plain, SHORE_SGD, false);
        b.options = options_of(&configs[c], &b.place, &b.plain);
        b.options.residual = true;
        int rc = shore_fleet_create(b.plain.layout, &b.options, &b.fleet, &b.diag);
        if (!rc) must(&b, fleet_init(b.fleet, &b.plain, &b.diag));
        for (uint64_t base = 0; !rc && base < 2; base++) {
            struct step_how how = {.coefficient = 1, .images = base == 1};
            uint16_t *residual[BLOCKS];
            for (uint32_t i = 0; i < BLOCKS; i++) {
                how.residual[i] = residual[i] = pages(b.plain.layout->blocks[i].padded_elems * 2);
                for (uint64_t e = 0; e < b.plain.layout->blocks[i].elems; e++)
                    residual[i][e] = (uint16_t)shore__random_u64(9 + base, i, e);
            }
            must(&b, fleet_updates(b.fleet, &b.plain, base, &how, &b.diag));
            must(&b, fleet_commit(b.fleet, base, false, &b.diag));
            for (uint32_t i = 0; i < BLOCKS; i++) {
                size_t bytes = b.plain.layout->blocks[i].padded_elems * 2;
                uint16_t *got = pages(bytes);
                struct shore_wait wait;
                shore_wait_init(&wait);
                must(&b, shore_fleet_fetch(b.fleet, base + 1, i, 0, b.plain.layout->blocks[i].segments, SHORE_FETCH_R,
                                           got, shore_wait_completion(&wait)));
                must(&b, shore_wait(&wait, &b.diag));
                assert_memory_equal(got, residual[i], bytes);
                free(got);
                free(residual[i]);
            }
        }
        if (rc) assert_true(refused_here(&configs[c], rc));
        bench_close(&b);
    }
}

/* A gradient of any form changes the state as the dense one that it stands for does, spilled or not, all at once or in
 * parts, on the drives or on images of it; one that came damaged changes nothing. */
static void test_forms(void **state) {
    static const enum shore_optimizer optimizers[] = {SHORE_ADAMW, SHORE_SGD, SHORE_ADAGRAD};
    for (size_t c = 0; c < NCONFIGS; c++)
        for (int form = SHORE_GRADIENT_BF16; form <= SHORE_GRADIENT_SPARSE; form++) {
            struct bench b;
            if (!bench_open(&b, &configs[c], optimizers[c % 3], true)) continue;
            struct step_how how = {.coefficient = 0.25f, .twice = true, .spill = form == SHORE_GRADIENT_BF16};
            b.plain.form = (enum shore_gradient_form)form;
            step(&b);
            must(&b, fleet_updates(b.fleet, &b.plain, b.plain.step, &how, &b.diag));
            must(&b, fleet_commit(b.fleet, b.plain.step, false, &b.diag));
            plain_step(&b.plain, how.coefficient);
            how = (struct step_how){.coefficient = 0.5f, .images = true};
            must(&b, fleet_updates(b.fleet, &b.plain, b.plain.step, &how, &b.diag));
            must(&b, fleet_commit(b.fleet, b.plain.step, false, &b.diag));
            plain_step(&b.plain, how.coefficient);
            step(&b);
            assert_digest(b.fleet, &b.plain, true);
            how.spill = true; /* the gradient is not here */
            assert_int_equal(fleet_updates(b.fleet, &b.plain, b.plain.step, &how, &b.diag), -EINVAL);
            bench_close(&b);
        }
}

static void test_damaged_codes(void **state) {
    for (size_t c = 0; c < NCONFIGS; c++) {
        struct bench b;
        if (!bench_open(&b, &configs[c], SHORE_ADAMW, false)) continue;
        b.plain.form = SHORE_GRADIENT_SPARSE;
        step(&b);
        uint32_t segments = b.plain.layout->blocks[1].segments, *offsets;
        float *dense = pages(b.plain.layout->blocks[1].padded_elems * 4);
        struct shore_hyper groups[GROUPS];
        struct shore_wait wait;
        hypers(&b.plain, b.plain.step + 1, groups);
        gradient_of_step(&b.plain, 1, b.plain.step + 1, dense);
        unsigned char *code = gradient_in_form(&b.plain, dense, segments, &offsets);
        struct shore_update update = {.size = sizeof update,
                                      .base_step = b.plain.step,
                                      .attempt = shore_fleet_attempt(b.fleet),
                                      .block = 1,
                                      .count = segments,
                                      .gradient = code,
                                      .form = SHORE_GRADIENT_SPARSE,
                                      .coefficient = 1,
                                      .groups = groups,
                                      .ngroups = GROUPS};
        shore_wait_init(&wait);
        assert_int_equal(shore_fleet_update(b.fleet, &update, shore_wait_completion(&wait)), -EINVAL);
        update.offsets = offsets;
        code[offsets[2] + 4]++; /* one entry more than there is */
        must(&b, shore_fleet_update(b.fleet, &update, shore_wait_completion(&wait)));
        assert_int_equal(shore_wait(&wait, &b.diag), SHORE_ECORRUPT);
        assert_non_null(strstr(b.diag.text, "block 1, segment 2"));
        assert_true(fleet_commit(b.fleet, b.plain.step, false, &b.diag) != 0);
        shore_fleet_discard(b.fleet);
        step(&b);
        assert_digest(b.fleet, &b.plain, true);
        free(code);
        free(offsets);
        free(dense);
        bench_close(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_state_images), cmocka_unit_test(test_other_values),  cmocka_unit_test(test_restored),
        cmocka_unit_test(test_snapshots),    cmocka_unit_test(test_generations),   cmocka_unit_test(test_residuals),
        cmocka_unit_test(test_forms),        cmocka_unit_test(test_damaged_codes), cmocka_unit_test(test_unused_pages),
    };
    server_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    server_stop();
    return failed;
}
