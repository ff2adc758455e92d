/* Blocks that no update touches take no room for what only updates need of them, and are what they were all the same.
 */
#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conformance/drive_bench.h"
#include "drive/fleet/fleet.h"
#include "drive/fleet/fleet_snapshot.h"

enum { TRAINED = 2, RESTING = 20, ALL = TRAINED + RESTING }; /* segments */
#define RESTING_ELEMS ((uint64_t)RESTING * SHORE_SEGMENT_ELEMS)
#define SLACK (UINT64_C(1) << 20) /* what the file system needs for itself, and rounds up */

struct resting {
    struct place place;
    struct shore_layout *layout;
    struct shore_fleet_options options;
    struct shore_fleet *fleet;
    struct shore_diag diag;
    float *master;
};

static void must_be_done(const struct resting *r, int rc) {
    if (rc) fail_msg("%d: %s", rc, r->diag.text);
}

static struct shore_layout *layout_of(uint32_t group) {
    const struct shore_tensor_spec frozen[] = {{"f", 3 * SHORE_SEGMENT_ELEMS + 5, group},
                                               {"g", RESTING_ELEMS - 4 * SHORE_SEGMENT_ELEMS, group}};
    const struct shore_tensor_spec trained[] = {{"t", TRAINED * SHORE_SEGMENT_ELEMS / 2 - 3, 0}};
    const struct shore_block_spec blocks[] = {{"first", trained, 1}, {"rests", frozen, 2}, {"last", trained, 1}};
    struct shore_layout *layout;
    assert_int_equal(shore_layout_make(blocks, 3, &layout), 0);
    assert_int_equal(layout->segments, ALL);
    return layout;
}

static void open_resting(struct resting *r, const char *kinds, enum shore_moments moments) {
    memset(r, 0, sizeof *r);
    place_open(&r->place, kinds);
    r->layout = layout_of(SHORE_GROUP_RESTS);
    r->options = (struct shore_fleet_options){.size = sizeof r->options,
                                              .drives = r->place.paths,
                                              .ndrives = r->place.ndrives,
                                              .optimizer = SHORE_ADAMW,
                                              .moments = moments,
                                              .drive_speeds = r->place.ndrives == 2 ? "1,1" : NULL,
                                              .residual = true,
                                              .spill = true};
    must_be_done(r, shore_fleet_create(r->layout, &r->options, &r->fleet, &r->diag));
    r->master = pages(RESTING_ELEMS * 4);
    for (uint32_t b = 0; b < 3; b++) {
        fill(&r->layout->blocks[b], r->master, 7, b == 1);
        must_be_done(
            r, shore_fleet_init_block(r->fleet, b, 0, r->layout->blocks[b].segments, r->master, NULL, NULL, &r->diag));
    }
    fill(&r->layout->blocks[1], r->master, 7, 1);
    must_be_done(r, shore_fleet_seal(r->fleet, 0, &r->diag));
}

static void close_resting(struct resting *r) {
    shore_fleet_close(r->fleet);
    shore_layout_free(r->layout);
    place_close(&r->place);
    free(r->master);
}

static uint64_t taken(const char *path) {
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

static void wait_for(struct resting *r, int rc, struct shore_wait *wait) {
    must_be_done(r, rc);
    must_be_done(r, shore_wait(wait, &r->diag));
}

static int update(struct resting *r, uint64_t base, uint32_t block, struct shore_wait *wait) {
    const struct shore_hyper group = {.lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.9f, .eps = 1e-8f, .inv_sqrt_bias2 = 1};
    const struct shore_update update = {.size = sizeof update,
                                        .base_step = base,
                                        .attempt = shore_fleet_attempt(r->fleet),
                                        .block = block,
                                        .count = r->layout->blocks[block].segments,
                                        .gradient = r->master,
                                        .coefficient = 1,
                                        .groups = &group,
                                        .ngroups = 1};
    shore_wait_init(wait);
    return shore_fleet_update(r->fleet, &update, shore_wait_completion(wait));
}

static void train(struct resting *r, uint64_t base) {
    struct shore_wait wait;
    for (uint32_t b = 0; b < 3; b += 2)
        wait_for(r, update(r, base, b, &wait), &wait);
    assert_int_equal(update(r, base, 1, &wait), -EINVAL);
    shore_wait_init(&wait);
    wait_for(
        r,
        shore_fleet_carry(r->fleet, base, shore_fleet_attempt(r->fleet), 1, 0, RESTING, shore_wait_completion(&wait)),
        &wait);
    must_be_done(r, fleet_commit(r->fleet, base, false, &r->diag));
}

/* Masters are what they were, moments zero, and every byte is as its checksum says. */
static void assert_rests(struct resting *r, uint64_t step) {
    float *got = pages(RESTING_ELEMS * 4);
    unsigned char digest[16];
    static const enum shore_fetch_kind kinds[] = {SHORE_FETCH_MASTER, SHORE_FETCH_M, SHORE_FETCH_V};
    for (int k = 0; k < 3; k++) {
        struct shore_wait wait;
        shore_wait_init(&wait);
        wait_for(r, shore_fleet_fetch(r->fleet, step, 1, 0, RESTING, kinds[k], got, shore_wait_completion(&wait)),
                 &wait);
        for (uint64_t i = 0; i < RESTING_ELEMS; i++)
            if (got[i] != (k ? 0 : r->master[i])) fail_msg("kind %d, element %llu", k, (unsigned long long)i);
    }
    must_be_done(r, shore_fleet_digest(r->fleet, true, digest, &r->diag));
    free(got);
}

/* The whole state of what rests, stored again, as where a state is put back. */
static void store_again(struct resting *r, uint64_t base) {
    struct shore_wait wait;
    void *state = pages(RESTING * shore_fleet_state_bytes(r->fleet));
    shore_wait_init(&wait);
    wait_for(r,
             shore_fleet_fetch(r->fleet, base, 1, 0, RESTING, SHORE_FETCH_STATE, state, shore_wait_completion(&wait)),
             &wait);
    const struct shore_store store = {.size = sizeof store,
                                      .base_step = base,
                                      .attempt = shore_fleet_attempt(r->fleet),
                                      .state = state,
                                      .block = 1,
                                      .count = RESTING};
    shore_wait_init(&wait);
    wait_for(r, shore_fleet_store(r->fleet, &store, shore_wait_completion(&wait)), &wait);
    for (uint32_t b = 0; b < 3; b += 2)
        wait_for(r, update(r, base, b, &wait), &wait);
    must_be_done(r, fleet_commit(r->fleet, base, false, &r->diag));
    free(state);
}

static void holes_for(const char *kinds, enum shore_moments moments) {
    struct resting r;
    open_resting(&r, kinds, moments);
    struct shore_layout *plain = layout_of(0);
    uint64_t files = r.place.ndrives, needs = shore_fleet_disk_bytes(r.layout, &r.options), took = 0, then = 0;
    /* two slots of 14 bytes (8-bit moments: of 8), and 4 for spilled gradients, of which masters and the codes of zeros
     * stay */
    uint64_t all = moments == SHORE_MOMENTS_FP32 ? 32 : 20, stays = moments == SHORE_MOMENTS_FP32 ? 4 : 5;
    uint64_t saved = (all - stays) * RESTING_ELEMS, whole = shore_fleet_disk_bytes(plain, &r.options);
    assert_in_range(whole - needs, saved - RESTING_ELEMS / 4, saved + RESTING_ELEMS / 4);
    for (uint32_t d = 0; d < files; d++)
        took += taken(r.place.path[d]);
    assert_in_range(took, needs - SLACK, needs + SLACK * files);
    train(&r, 0);
    train(&r, 1);
    assert_rests(&r, 2);
    for (uint32_t d = 0; d < files; d++)
        then += taken(r.place.path[d]);
    assert_in_range(then, took, took + SLACK);
    store_again(&r, 2);
    assert_rests(&r, 3);
    then = 0;
    for (uint32_t d = 0; d < files; d++)
        then += taken(r.place.path[d]);
    assert_in_range(then, took, took + stays * RESTING_ELEMS + SLACK * files + RESTING_ELEMS / 8);
    must_be_done(&r, shore__fleet_snapshot(r.fleet, "kept", &r.diag));
    for (uint32_t d = 0; d < files; d++) {
        char path[256];
        snprintf(path, sizeof path, "%s.snapshot-kept", r.place.path[d]);
        assert_true(taken(path) < took / files);
        unlink(path);
    }
    shore_fleet_close(r.fleet);
    must_be_done(&r, shore_fleet_open(r.layout, &r.options, &r.fleet, &r.diag));
    assert_rests(&r, 3);
    shore_layout_free(plain);
    close_resting(&r);
}

static void what_rests_takes_no_room(void **state) {
    holes_for("f", SHORE_MOMENTS_FP32);
    holes_for("ff", SHORE_MOMENTS_FP32);
    holes_for("f", SHORE_MOMENTS_8BIT);
}

/* ---- snapshots ---- */

static const char *part(const struct resting *r, uint32_t drive, const char *name, const char *ending) {
    static char path[8][300];
    static unsigned calls;
    char *out = path[calls++ % 8];
    snprintf(out, sizeof path[0], "%s.snapshot-%s%s", r->place.path[drive], name, ending);
    return out;
}

/* As rollback and export read it. Returns what opening says. */
static int open_snapshot(struct resting *r, const char *name, struct shore_fleet **out) {
    const char *drives[2] = {part(r, 0, name, ""), part(r, r->place.ndrives - 1, name, "")};
    struct shore_fleet_options options = r->options;
    options.drives = drives;
    options.drive_speeds = NULL;
    options.read_only = true;
    return shore_fleet_open(r->layout, &options, out, &r->diag);
}

static void snapshot_holds(struct resting *r, const char *name, uint64_t step) {
    struct shore_fleet *run = r->fleet;
    must_be_done(r, open_snapshot(r, name, &r->fleet));
    assert_rests(r, step);
    shore_fleet_close(r->fleet);
    r->fleet = run;
}

/* Files with what rests, all drives. *last: one of them, finished. */
static size_t rests(const struct resting *r, char *last) {
    glob_t found;
    char pattern[300];
    snprintf(pattern, sizeof pattern, "%s/longshore-*.rest*", r->place.directory);
    size_t n = glob(pattern, 0, NULL, &found) ? 0 : found.gl_pathc;
    if (n && last) strcpy(last, found.gl_pathv[0]);
    if (n) globfree(&found);
    return n;
}

static void remove_snapshot(struct resting *r, const char *name) {
    for (uint32_t d = 0; d < r->place.ndrives; d++) {
        must_be_done(r,
                     r->fleet->drives[d]->ops->snapshot(r->fleet->drives[d], SHORE__SNAPSHOT_REMOVE, name, &r->diag));
        assert_true(access(part(r, d, name, ""), F_OK));
    }
}

static void write_at(const char *path, uint64_t offset, const char *text) {
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0 && pwrite(fd, text, strlen(text), (off_t)offset) == (ssize_t)strlen(text));
    close(fd);
}

/* Where a file's data begin behind its header and placement. */
static uint64_t data_of(const char *path) {
    int fd = open(path, O_RDONLY);
    off_t at = lseek(fd, 1 << 20, SEEK_DATA);
    assert_true(fd >= 0 && at > 0);
    close(fd);
    return (uint64_t)at;
}

/* What rests is stored in another way: now the drives have another one. */
static void change_what_rests(struct resting *r, uint64_t base) {
    r->master[3] += 1;
    struct shore_wait wait;
    uint16_t *state = pages(RESTING * shore_fleet_state_bytes(r->fleet));
    shore_wait_init(&wait);
    wait_for(r,
             shore_fleet_fetch(r->fleet, base, 1, 0, RESTING, SHORE_FETCH_STATE, state, shore_wait_completion(&wait)),
             &wait);
    uint32_t bits;
    memcpy(&bits, &r->master[3], sizeof bits);
    state[3] = (uint16_t)((bits + 0x8000) >> 16);
    state[SHORE_SEGMENT_ELEMS + 3] = (uint16_t)bits;
    const struct shore_store store = {.size = sizeof store,
                                      .base_step = base,
                                      .attempt = shore_fleet_attempt(r->fleet),
                                      .state = state,
                                      .block = 1,
                                      .count = RESTING};
    shore_wait_init(&wait);
    wait_for(r, shore_fleet_store(r->fleet, &store, shore_wait_completion(&wait)), &wait);
    for (uint32_t b = 0; b < 3; b += 2)
        wait_for(r, update(r, base, b, &wait), &wait);
    must_be_done(r, fleet_commit(r->fleet, base, false, &r->diag));
    free(state);
}

static void snapshots_share_what_rests(void **state) {
    static const char *const kinds[] = {"f", "ff", "u"};
    for (int k = 0; k < 3; k++) {
        struct resting r;
        struct shore_fleet *snapshot = NULL;
        open_resting(&r, kinds[k], SHORE_MOMENTS_FP32);
        if (shore__files_share_blocks(r.place.path[0])) { /* then the file system does it */
            close_resting(&r);
            skip();
        }
        const size_t n = r.place.ndrives;
        char rest[300];
        train(&r, 0);
        must_be_done(&r, shore__fleet_snapshot(r.fleet, "one", &r.diag));
        assert_int_equal(rests(&r, NULL), n);
        train(&r, 1);
        must_be_done(&r, shore__fleet_snapshot(r.fleet, "two", &r.diag));
        assert_int_equal(rests(&r, NULL), n);
        /* a slot of what is trained, tables */
        assert_true(taken(part(&r, 0, "two", "")) < RESTING_ELEMS * 4 / n / 5 + TRAINED * 18 * 65536 + SLACK);
        snapshot_holds(&r, "one", 1);
        snapshot_holds(&r, "two", 2);
        /* stored again as it is, and otherwise */
        store_again(&r, 2);
        must_be_done(&r, shore__fleet_snapshot(r.fleet, "three", &r.diag));
        assert_int_equal(rests(&r, NULL), n);
        const float before = r.master[3];
        change_what_rests(&r, 3);
        must_be_done(&r, shore__fleet_snapshot(r.fleet, "four", &r.diag));
        assert_int_equal(rests(&r, NULL), n + 1); /* of the drive that has it */
        snapshot_holds(&r, "four", 4);
        r.master[3] = before;
        snapshot_holds(&r, "two", 2);
        /* one goes, and the others stay; with it what a kill has left, which none names */
        rests(&r, rest);
        strcpy(strrchr(rest, '-'), "-0123456789abcdef.rest.partial");
        write_at(rest, 5000, "x");
        strcpy(strrchr(rest, '-'), "-0123456789abcdef.rest.mine");
        write_at(rest, 5000, "x");
        assert_int_equal(rests(&r, NULL), n + 3);
        remove_snapshot(&r, "one");
        assert_int_equal(rests(&r, NULL), n + 2);
        remove_snapshot(&r, "four");
        assert_int_equal(rests(&r, NULL), n + 1);
        assert_int_equal(unlink(rest), 0);
        snapshot_holds(&r, "two", 2);
        snapshot_holds(&r, "three", 3);
        write_at(part(&r, 0, "three", ""), 0, "damaged!"); /* the other copy of its header is whole */
        snapshot_holds(&r, "three", 3);
        /* nobody writes to what others share */
        const char *drives[2] = {part(&r, 0, "two", ""), part(&r, r.place.ndrives - 1, "two", "")};
        struct shore_fleet_options writing = r.options;
        writing.drives = drives;
        writing.drive_speeds = NULL;
        assert_int_equal(shore_fleet_open(r.layout, &writing, &snapshot, &r.diag), SHORE_EUSAGE);
        assert_non_null(strstr(r.diag.text, "it can only be read; rollback goes back to it"));
        /* what is damaged or gone is named */
        rests(&r, rest);
        write_at(rest, data_of(rest), "damage");
        must_be_done(&r, open_snapshot(&r, "two", &snapshot));
        unsigned char digest[16];
        assert_int_equal(shore_fleet_digest(snapshot, true, digest, &r.diag), SHORE_ECORRUPT);
        assert_non_null(strstr(r.diag.text, ".rest: block 1"));
        shore_fleet_close(snapshot);
        snapshot = NULL;
        remove_snapshot(&r, "two");
        assert_int_equal(rests(&r, NULL), n);
        write_at(part(&r, 0, "three", ""), 0, "LONGSHOR");
        unlink(rest);
        assert_int_equal(open_snapshot(&r, "three", &snapshot), SHORE_EMISSING);
        assert_non_null(strstr(r.diag.text, ".rest is missing, which holds the frozen blocks of the snapshot"));
        remove_snapshot(&r, "three");
        assert_int_equal(rests(&r, NULL), 0);
        close_resting(&r);
    }
}

/* There, it takes its whole room. */
static void other_kinds_of_drives_take_it(void **state) {
    static const char *const kinds[] = {"r", "u", "fu"};
    for (int k = 0; k < 3; k++) {
        struct resting r;
        open_resting(&r, kinds[k], SHORE_MOMENTS_FP32);
        train(&r, 0);
        assert_rests(&r, 1);
        store_again(&r, 1);
        assert_rests(&r, 2);
        close_resting(&r);
    }
}

static void a_block_rests_or_it_does_not(void **state) {
    const struct shore_tensor_spec mixed[] = {{"a", 10, 0}, {"b", 10, SHORE_GROUP_RESTS}};
    const struct shore_tensor_spec back[] = {{"a", 10, SHORE_GROUP_RESTS}, {"b", 10, 0}};
    const struct shore_block_spec blocks[] = {{"one", mixed, 2}, {"other", back, 2}};
    struct shore_layout *layout;
    for (int i = 0; i < 2; i++)
        assert_int_equal(shore_layout_make(&blocks[i], 1, &layout), SHORE_EINPUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_rests_takes_no_room),
        cmocka_unit_test(snapshots_share_what_rests),
        cmocka_unit_test(other_kinds_of_drives_take_it),
        cmocka_unit_test(a_block_rests_or_it_does_not),
    };
    server_start();
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    server_stop();
    return rc;
}
