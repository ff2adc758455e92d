/* The power of all drives of a run is cut at every write and flush of a move to other drives, and of a rollback. What
 * the run directory held at that instant is kept with it. Whoever opens the run then finds the state it had, or the one
 * it was to have, whole; and the old placement or the new one. */
#include "fault/crash_disk.h"
#include "run/lifecycle/copy.h"
#include "run/lifecycle/snapshots.h"
#include "unit/run/support.h"

#define VARIANTS 3u
#ifdef __SANITIZE_THREAD__
#define STRIDE 17u
#else
#define STRIDE 3u /* cuts that are tried; set to 1 for all of them */
#endif

static struct crash_disks disks = {.cut_at = UINT64_MAX};
static bool kept_cut; /* the run directory of the instant when the power went is in run.cut */

static void shell(const char *command) {
    if (system(command)) fail_msg("%s", command);
}

/* The copies of a snapshot lie on real files: they are only read. */
static bool is_plain(const struct shore__file *file) {
    return strstr(file->path, ".snapshot-") != NULL;
}

static int shim(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    if (is_plain(file)) return disks.off ? -EIO : SHORE__IO_PASS;
    bool was_off = disks.off;
    int verdict = crash_shim(&disks, file, op);
    if (disks.off && !was_off) {
        shell("rm -rf run.cut && cp -r run run.cut");
        kept_cut = true;
    }
    return verdict;
}

static void done(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    if (!is_plain(file)) crash_done(&disks, file, op);
}

/* ---- the state before -------------------------------------------------------------------------------------------- */

static struct {
    char *path;
    uint64_t bytes;
    unsigned char *data;
} base[CRASH_DISKS_MOST];
static unsigned nbase;

static void keep_base(void) {
    crash_disks_settle(&disks);
    for (nbase = 0; nbase < disks.ndisks; nbase++) {
        const struct crash_disk *disk = &disks.disk[nbase];
        base[nbase].path = crash_must(strdup(disk->path));
        base[nbase].bytes = disk->bytes;
        base[nbase].data = crash_must(malloc(disk->bytes));
        memcpy(base[nbase].data, disk->durable, disk->bytes);
    }
    shell("rm -rf run.base && cp -r run run.base");
}

static void back_to_base(uint64_t cut_at) {
    crash_disks_remove(&disks);
    shore__io_set_shim(shim, NULL);
    shore__io_set_done_hook(done, NULL);
    disks.cut_at = cut_at;
    kept_cut = false;
    for (unsigned i = 0; i < nbase; i++) {
        struct crash_disk *disk = crash_disk_find(&disks, base[i].path, base[i].bytes);
        memcpy(disk->durable, base[i].data, base[i].bytes);
        memcpy(disk->seen, base[i].data, base[i].bytes);
        FILE *f = fopen(base[i].path, "w");
        assert_non_null(f);
        fclose(f);
        assert_int_equal(truncate(base[i].path, (off_t)base[i].bytes), 0);
    }
    shell("rm -rf run && cp -r run.base run");
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

static struct shore_fleet *open_fleet(struct shore__run *run) {
    struct shore_diag diag = {0};
    struct shore_fleet_options options;
    struct shore_fleet *fleet = NULL;
    shore__run_fleet(run, &run->settings.drives, run->generation, &options);
    options.hint_step = run->hint_step;
    options.io = SHORE_IO_THREADS;
    assert_ok(shore_fleet_open(run->model->layout, &options, &fleet, &diag));
    return fleet;
}

static struct shore__run *open_run(void) {
    struct shore_diag diag = {0};
    struct shore__run *run = NULL;
    assert_ok(shore__run_open("run", true, NULL, &run, &diag));
    return run;
}

/* What the program needs to go on from a step. */
static uint32_t blob_of(uint64_t step, unsigned char *blob) {
    memset(blob, (int)step, SHORE_BLOB_BYTES);
    return SHORE_BLOB_BYTES - (uint32_t)step;
}

/* A step that changes every element; from the second one on, of all blocks but one, which is carried. */
static void take_step(struct shore__run *run, struct shore_fleet *fleet, uint64_t base_step) {
    struct shore_diag diag = {0};
    struct shore_hyper groups[4] = {{0}};
    struct shore_wait wait;
    char line[64];
    for (int g = 0; g < 4; g++) {
        groups[g] = (struct shore_hyper){.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};
        shore_hyper_at_step(&groups[g], SHORE_ADAMW, base_step + 1);
    }
    for (uint32_t b = 0; b < run->model->layout->nblocks; b++) {
        size_t elems = run->model->layout->blocks[b].padded_elems;
        float *gradient = aligned_alloc(4096, elems * 4);
        assert_non_null(gradient);
        for (size_t i = 0; i < elems; i++)
            gradient[i] = (float)(i % 13) * 0.01f;
        struct shore_update update = {.size = sizeof update,
                                      .base_step = base_step,
                                      .attempt = shore_fleet_attempt(fleet),
                                      .block = b,
                                      .count = run->model->layout->blocks[b].segments,
                                      .gradient = gradient,
                                      .coefficient = 1,
                                      .groups = groups,
                                      .ngroups = 4};
        shore_wait_init(&wait);
        int rc = base_step && b == 1 ? shore_fleet_carry(fleet, base_step, update.attempt, b, 0, update.count,
                                                         shore_wait_completion(&wait))
                                     : shore_fleet_update(fleet, &update, shore_wait_completion(&wait));
        assert_int_equal(rc, 0);
        assert_ok(shore_wait(&wait, &diag));
        free(gradient);
    }
    int n = snprintf(line, sizeof line, "{\"step\":%u}", (unsigned)base_step + 1);
    static unsigned char blob[SHORE_BLOB_BYTES];
    struct shore_commit commit = {.size = sizeof commit,
                                  .step = base_step + 1,
                                  .metrics = line,
                                  .metrics_bytes = (uint32_t)n,
                                  .blob = blob,
                                  .blob_bytes = blob_of(base_step + 1, blob)};
    shore_wait_init(&wait);
    assert_int_equal(shore_fleet_commit_with(fleet, &commit, shore_wait_completion(&wait)), 0);
    assert_ok(shore_wait(&wait, &diag));
    assert_ok(shore__metrics_append(run, base_step + 1, line, &diag));
}

static unsigned char digest_early[16], digest_late[16];

static void digest_of(struct shore_fleet *fleet, unsigned char digest[16]) {
    struct shore_diag diag = {0};
    assert_ok(shore_fleet_digest(fleet, true, digest, &diag));
}

static void make_run(void) {
    struct shore_diag diag = {0};
    struct shore__settings s;
    struct shore__tokenizer *tokenizer = NULL;
    struct shore__model *model = NULL;
    struct shore__source *source = NULL;
    struct shore__run *run = NULL;
    shore__settings_defaults(&s);
    s.init = strdup("model.json");
    s.steps = 10;
    s.batch = 2;
    s.seq_len = 16;
    s.io = SHORE_IO_THREADS;
    assert_int_equal(shore__strings_add(&s.data, "book.txt"), 0);
    assert_int_equal(shore__addresses_parse(&s.drives, "d0", NULL), 0);
    assert_int_equal(shore__addresses_parse(&s.drives, "d1", NULL), 0);
    assert_ok(shore__run_tokenizer_of(&s, &tokenizer, &diag));
    assert_ok(shore__run_model(&s, tokenizer, &model, &diag));
    assert_ok(shore__run_prepare("run", &s, model, tokenizer, false, NULL, NULL, &run, &diag));
    assert_int_equal(shore__source_init(run->model, 1, &source), 0);
    struct shore_fleet *fleet = fleet_of(&run->settings, run->model, source, run->fleet_id, false);
    shore__source_close(source);
    assert_ok(shore__run_finish(run, run->fleet_id, "a processor, 2 threads", NULL, NULL, &diag));
    take_step(run, fleet, 0);
    digest_of(fleet, digest_early);
    assert_ok(shore__snapshot_make(run, fleet, "early", false, &diag));
    take_step(run, fleet, 1);
    digest_of(fleet, digest_late);
    shore_fleet_close(fleet);
    shore__run_close(run);
    shore__settings_free(&s);
}

static int group_open(void **state) {
    if (scratch_open(state) < 0) return -1;
    write_text("model.json", small_models[0]);
    write_text("book.txt", "It was the best of times, it was the worst of times, it was the age of wisdom");
    for (int i = 0; i < 4; i++) {
        char name[3] = {'d', (char)('0' + i), 0};
        if (mkdir(name, 0755)) return -1;
    }
    shore__io_set_shim(shim, NULL);
    shore__io_set_done_hook(done, NULL);
    make_run();
    keep_base();
    return 0;
}

static int group_close(void **state) {
    crash_disks_remove(&disks);
    for (unsigned i = 0; i < nbase; i++) {
        free(base[i].path);
        free(base[i].data);
    }
    return scratch_close(state);
}

/* ---- cuts -------------------------------------------------------------------------------------------------------- */

/* Whoever comes next. Returns whether the state is the late one. */
static bool look(uint64_t generation_most) {
    unsigned char digest[16];
    struct shore_diag diag = {0};
    struct shore__run *run = open_run();
    assert_in_range(run->generation, 1, generation_most);
    assert_false(exists("run/moving.json") || exists("run/rollback.json"));
    struct shore_fleet *fleet = open_fleet(run);
    digest_of(fleet, digest);
    bool late = memcmp(digest, digest_late, sizeof digest) == 0;
    if (!late) assert_memory_equal(digest, digest_early, sizeof digest);
    struct shore_fleet_info info = {.size = sizeof info};
    shore_fleet_info(fleet, &info);
    assert_int_equal(info.step, late ? 2 : 1);
    char metrics[64];
    uint32_t bytes = sizeof metrics;
    assert_int_equal(shore_fleet_metrics(fleet, metrics, &bytes), 0);
    assert_int_equal(bytes, 10);
    assert_memory_equal(metrics, late ? "{\"step\":2}" : "{\"step\":1}", 10);
    static unsigned char blob[SHORE_BLOB_BYTES], want[SHORE_BLOB_BYTES];
    bytes = sizeof blob;
    assert_ok(shore_fleet_blob(fleet, blob, &bytes, &diag));
    assert_int_equal(bytes, blob_of(info.step, want));
    assert_memory_equal(blob, want, bytes);
    shore_fleet_close(fleet);
    if (generation_most > 1) { /* of the other placement nothing is left */
        assert_true(has_volume("d2") == (run->generation == 2));
        assert_true(exists(volume_in("d1", ".g2")) == (run->generation == 2));
        assert_true(has_volume("d0") == (run->generation == 1));
    }
    shore__run_close(run);
    char *text = read_text("run/metrics.jsonl");
    assert_string_equal(text, late ? "{\"step\":1}\n{\"step\":2}\n" : "{\"step\":1}\n");
    free(text);
    return late;
}

typedef int (*work_fn)(struct shore__run *run, struct shore_diag *diag);

/* Cuts at operation n of the work, for all n. check: of the run as it was found. */
static void cut_everywhere(work_fn work, uint64_t generation_most, bool (*expect_late)(void)) {
    unsigned cuts = 0;
    for (uint64_t n = 0;; n += STRIDE) {
        struct shore_diag diag = {0};
        back_to_base(n);
        struct shore__run *run = open_run();
        int rc = work(run, &diag);
        shore__run_close(run);
        if (!disks.off) { /* it came to its end before */
            assert_ok_(rc, &diag, "uncut");
            disks.cut_at = UINT64_MAX;
            assert_true(look(generation_most) == expect_late());
            break;
        }
        assert_true(rc < 0);
        assert_true(kept_cut);
        cuts++;
        for (unsigned v = 0; v < crash_disks_variants(&disks, VARIANTS); v++) {
            crash_disks_power_on(&disks, v);
            shell("rm -rf run && cp -r run.cut run");
            bool late = look(generation_most);
            if (late != expect_late()) fail_msg("cut at %u, variant %u: the wrong state", (unsigned)n, v);
        }
    }
    assert_true(cuts > 20 / STRIDE);
}

static int move(struct shore__run *run, struct shore_diag *diag) {
    struct shore__addresses list = {0};
    struct shore__placing how = {.drives = &list, .speeds = "2,1,1"};
    int rc = shore__addresses_parse(&list, "d1", diag);
    if (!rc) rc = shore__addresses_parse(&list, "d2", diag);
    if (!rc) rc = shore__addresses_parse(&list, "d3", diag);
    if (!rc) rc = shore__run_place(run, &how, diag);
    shore__addresses_free(&list);
    return rc;
}

static bool always_late(void) {
    return true;
}

static void a_move_that_is_cut(void **state) {
    cut_everywhere(move, 2, always_late);
}

static int roll_back(struct shore__run *run, struct shore_diag *diag) {
    uint64_t from;
    return shore__run_rollback(run, "early", NULL, NULL, NULL, NULL, &from, diag);
}

/* The intent is what decides: without it, nothing has changed. */
static bool late_unless_intended(void) {
    return kept_cut && !exists("run.cut/rollback.json");
}

static void a_rollback_that_is_cut(void **state) {
    cut_everywhere(roll_back, 1, late_unless_intended);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_move_that_is_cut),
        cmocka_unit_test(a_rollback_that_is_cut),
    };
    return cmocka_run_group_tests(tests, group_open, group_close);
}
