/* The power of all drives of a fleet is cut at every write and flush of a run: recovery gives the last acknowledged
 * step or the one that was being committed, whole on all drives, and what follows ends where a run that was never cut
 * ends. */
#include "conformance/drive_harness.h"

#include <errno.h>
#include <pthread.h>

#include "fault/crash_disk.h"

#define STEPS 4u

/* Without a sanitizer, every cut; a few show it as many races, and as many bad accesses, as all do. */
#if defined(__SANITIZE_THREAD__)
#define CUT_STRIDE 17u
#elif defined(__SANITIZE_ADDRESS__)
#define CUT_STRIDE 5u
#else
#define CUT_STRIDE 1u
#endif

static char folder[] = "/dev/shm/shore-fleet-XXXXXX";
static struct plain plain; /* the state before the first step */
static unsigned char digests[STEPS + 1][16];
static struct plain at_start(void);

/* Three segments, two planes: small enough for thousands of recoveries. */
static const struct shore_tensor_spec small0[] = {{"a", 300, 0}};
static const struct shore_tensor_spec small1[] = {{"b", 66000, 1}, {"c", 90, 2}};
static const struct shore_tensor_spec small2[] = {{"d", 10, 0}};
static const struct shore_block_spec small_blocks[BLOCKS] = {
    {"first", small0, 1}, {"second", small1, 2}, {"third", small2, 1}};

/* Step 2 is tried in vain first, step 3 is refused and skipped. Steps 2 and 4 carry a block each: what one updates, the
 * other carries. */
static bool is_skipped(uint64_t step) {
    return step == 3;
}

static void carry_in_step(struct plain *p, uint64_t step) {
    memset(p->carried, 0, sizeof p->carried);
    p->carried[0] = step == 2;
    p->carried[1] = step == 4;
}

static struct plain at_start(void) {
    struct plain p = {.optimizer = SHORE_SGD, .planes = shore_optimizer_planes(SHORE_SGD, false)};
    assert_int_equal(shore_layout_make(small_blocks, BLOCKS, &p.layout), 0);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        size_t bytes = p.layout->blocks[b].padded_elems * 4;
        p.master[b] = pages(bytes);
        p.m[b] = pages(bytes);
        p.v[b] = pages(bytes);
        fill(&p.layout->blocks[b], p.master[b], 1, b);
    }
    return p;
}

static int setup(void **state) {
    assert_non_null(mkdtemp(folder));
    plain = at_start();
    struct plain walker = at_start();
    plain_digest(&walker, digests[0]);
    for (uint64_t step = 1; step <= STEPS; step++) {
        if (is_skipped(step)) {
            walker.step++;
        } else {
            carry_in_step(&walker, step);
            plain_step(&walker, 1);
        }
        plain_digest(&walker, digests[step]);
    }
    plain_close(&walker);
    return 0;
}

static int teardown(void **state) {
    plain_close(&plain);
    rmdir(folder);
    return 0;
}

static char paths[DRIVES_MOST][64];
static const char *path_list[DRIVES_MOST];

static struct shore_fleet_options options_for(uint32_t ndrives) {
    for (uint32_t d = 0; d < ndrives; d++) {
        snprintf(paths[d], sizeof paths[d], "%s/%u.volume", folder, d);
        path_list[d] = paths[d];
    }
    return (struct shore_fleet_options){.size = sizeof(struct shore_fleet_options),
                                        .drives = path_list,
                                        .ndrives = ndrives,
                                        .optimizer = SHORE_SGD,
                                        .io = SHORE_IO_THREADS,
                                        .chunk_segments = 1,
                                        .ring_bytes = 1};
}

static bool commit(struct shore_fleet *f, uint64_t step) {
    struct shore_wait wait;
    struct shore_commit commit = {.size = sizeof commit,
                                  .step = step,
                                  .how = is_skipped(step) ? SHORE_COMMIT_SKIPPED : SHORE_COMMIT_UPDATED,
                                  .blob = &step,
                                  .blob_bytes = sizeof step};
    shore_wait_init(&wait);
    int rc = shore_fleet_commit_with(f, &commit, shore_wait_completion(&wait));
    return !rc && !shore_wait(&wait, NULL);
}

/* One step, as a trainer would. Returns whether it was acknowledged. */
static bool take_step(struct shore_fleet *f, uint64_t step) {
    struct step_how wrong = {.coefficient = 3}, right = {.coefficient = 1};
    if (is_skipped(step)) return commit(f, step);
    carry_in_step(&plain, 0);
    if (step == 2) {
        fleet_updates(f, &plain, step - 1, &wrong, NULL);
        shore_fleet_discard(f);
    }
    carry_in_step(&plain, step);
    return fleet_updates(f, &plain, step - 1, &right, NULL) == 0 && commit(f, step);
}

/* Runs until the power goes. Returns the last acknowledged step, or -1. */
static int live(uint32_t ndrives) {
    struct shore_fleet_options options = options_for(ndrives);
    struct shore_fleet *f;
    int acknowledged = -1;
    if (shore_fleet_create(plain.layout, &options, &f, NULL)) return -1;
    if (fleet_init(f, &plain, NULL) == 0) {
        acknowledged = 0;
        for (uint64_t step = 1; step <= STEPS && take_step(f, step); step++) {
            acknowledged = (int)step;
        }
    }
    shore_fleet_close(f);
    return acknowledged;
}

static void expect_digest(struct shore_fleet *f, uint64_t step, bool deep) {
    unsigned char got[16];
    struct shore_diag diag = {0};
    if (shore_fleet_digest(f, deep, got, &diag)) fail_msg("%s", diag.text);
    assert_memory_equal(got, digests[step], 16);
    uint64_t blob = 0;
    uint32_t bytes = sizeof blob;
    if (shore_fleet_blob(f, &blob, &bytes, &diag)) fail_msg("%s", diag.text);
    assert_true(blob == step && bytes == (step ? sizeof blob : 0));
}

static void make_again(struct shore_fleet_options *options, int why) {
    struct shore_fleet *f;
    struct shore_diag diag = {0};
    /* a torn first record may have been a whole one once: only the user may replace it */
    options->overwrite = why == SHORE_ECORRUPT;
    if (shore_fleet_create(plain.layout, options, &f, &diag)) fail_msg("make again: %s", diag.text);
    if (fleet_init(f, &plain, &diag)) fail_msg("make again: %s", diag.text);
    expect_digest(f, 0, true);
    shore_fleet_close(f);
}

static void recover(uint32_t ndrives, int acknowledged, bool go_on) {
    struct shore_fleet_options options = options_for(ndrives);
    struct shore_fleet_info info = {.size = sizeof info};
    struct shore_fleet *f;
    struct shore_diag diag = {0};
    options.hint_step = acknowledged < 0 ? 0 : (uint64_t)acknowledged;
    int rc = shore_fleet_open(plain.layout, &options, &f, &diag);
    if (rc && acknowledged < 0) {
        assert_true(rc == SHORE_EMISSING || rc == SHORE_ECORRUPT);
        make_again(&options, rc);
        return;
    }
    if (rc) fail_msg("after step %d: %s", acknowledged, diag.text);
    shore_fleet_info(f, &info);
    uint64_t least = acknowledged < 0 ? 0 : (uint64_t)acknowledged;
    assert_in_range(info.step, least, acknowledged < 0 ? 0 : least + 1);
    expect_digest(f, info.step, true);
    for (uint64_t step = info.step + 1; go_on && step <= STEPS; step++) {
        assert_true(take_step(f, step));
        if (step == STEPS) expect_digest(f, step, true);
    }
    shore_fleet_close(f);
}

static void cut_everywhere(uint32_t ndrives, unsigned variants_most) {
    for (uint64_t cut = 0;; cut += CUT_STRIDE) {
        struct crash_disks disks = {.cut_at = cut};
        crash_disks_install(&disks);
        int acknowledged = live(ndrives);
        bool reached = disks.off;
        unsigned variants = crash_disks_variants(&disks, variants_most);
        for (unsigned i = 0; i < variants; i++) {
            crash_disks_power_on(&disks, i);
            recover(ndrives, acknowledged, i % 4 == 0);
        }
        crash_disks_remove(&disks);
        if (reached) continue;
        assert_int_equal(acknowledged, (int)STEPS);
        break;
    }
}

static void one_drive(void **state) {
    cut_everywhere(1, 40);
}

static void two_drives(void **state) {
    cut_everywhere(2, 24);
}

static void three_drives(void **state) {
    cut_everywhere(3, 12);
}

/* The power goes again while the new epoch is being written, more than once. */
static void cuts_during_recovery(void **state) {
    for (uint64_t first = 40; first < 90; first += 7) {
        for (uint64_t second = 0; second < 6; second += CUT_STRIDE) {
            struct crash_disks disks = {.cut_at = first};
            crash_disks_install(&disks);
            int acknowledged = live(2);
            for (unsigned again = 0; again < 2; again++) {
                unsigned variants = crash_disks_variants(&disks, 24);
                crash_disks_power_on(&disks, variants - 1);
                crash_disks_settle(&disks);
                disks.cut_at = second;
                struct shore_fleet_options options = options_for(2);
                struct shore_fleet *f = NULL;
                if (shore_fleet_open(plain.layout, &options, &f, NULL) == 0) take_step(f, (uint64_t)acknowledged + 1);
                shore_fleet_close(f);
            }
            unsigned variants = crash_disks_variants(&disks, 16);
            for (unsigned i = 0; i < variants; i++) {
                crash_disks_power_on(&disks, i);
                recover(2, acknowledged, i == 0);
            }
            crash_disks_remove(&disks);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_drive),
        cmocka_unit_test(two_drives),
        cmocka_unit_test(three_drives),
        cmocka_unit_test(cuts_during_recovery),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
