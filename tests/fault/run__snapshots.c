/* Snapshots that share what is frozen are made and removed by a process that is killed at random instants. Those that
 * are listed afterwards are whole, and of the others nothing is left. */
#include <glob.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/prng.h"
#include "fault/processes.h"
#include "longshore/run.h"
#include "unit/run/support.h"

#if defined(__SANITIZE_THREAD__)
enum { KILLS = 5 };
#else
enum { KILLS = 15 };
#endif
enum { SEGMENTS = 12, MOST_KILLS = 60 };

static const struct shore_tensor_spec trained[] = {{"t", 1000, 0}};
static const struct shore_tensor_spec frozen[] = {{"f", SEGMENTS *SHORE_SEGMENT_ELEMS, SHORE_GROUP_RESTS}};
static const struct shore_block_spec blocks[] = {{"trained", trained, 1}, {"frozen", frozen, 1}};
static const struct shore_shape shapes[] = {
    {.name = "t", .rank = 1, .dims = {1000}, .dtype = SHORE_DTYPE_FP32},
    {.name = "f", .rank = 1, .dims = {SEGMENTS * SHORE_SEGMENT_ELEMS}, .dtype = SHORE_DTYPE_FP32}};

static void make_run(void) {
    static const char *const drives[] = {"drive"};
    struct shore_diag diag = {0};
    struct shore_layout *layout = NULL;
    struct shore_run *run = NULL;
    const struct shore_fleet_options options = {
        .size = sizeof options, .drives = drives, .ndrives = 1, .io = SHORE_IO_THREADS};
    const struct shore_run_making how = {.size = sizeof how, .fleet = &options, .program = "{\"name\": \"a test\"}"};
    assert_int_equal(shore_layout_make(blocks, 2, &layout), 0);
    assert_ok(shore_run_create("run", layout, shapes, 2, &how, &run, &diag));
    for (uint32_t b = 0; b < 2; b++) {
        const uint64_t elems = layout->blocks[b].padded_elems;
        float *values = aligned_alloc(SHORE_BUFFER_ALIGN_BYTES, elems * sizeof *values);
        assert_non_null(values);
        for (uint64_t i = 0; i < elems; i++)
            values[i] = i < layout->blocks[b].tensors[0].elems ? (float)(i % 1021) : 0;
        assert_ok(
            shore_fleet_init_block(shore_run_fleet(run), b, 0, layout->blocks[b].segments, values, NULL, NULL, &diag));
        free(values);
    }
    assert_ok(shore_run_seal(run, 0, &diag));
    shore_run_close(run);
    shore_layout_free(layout);
}

/* Makes one after the other, of which two stay at most, until it is killed. */
static void work(void) {
    struct shore_run *run = NULL;
    if (shore_run_open("run", NULL, &run, NULL)) _exit(1);
    for (unsigned i = 0;; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%u", i % 3);
        shore_run_snapshot_remove(run, name, NULL);
        if (shore_run_snapshot(run, name, 0, NULL)) _exit(2);
        snprintf(name, sizeof name, "s%u", (i + 1) % 3);
        shore_run_snapshot_remove(run, name, NULL);
    }
}

static void remember(void *ctx, const struct shore_snapshot *snapshot) {
    assert_int_equal(shore__strings_add(ctx, snapshot->name), 0);
}

static size_t files(const char *pattern) {
    glob_t found;
    size_t n = glob(pattern, 0, NULL, &found) ? 0 : found.gl_pathc;
    if (n) globfree(&found);
    return n;
}

/* Whoever comes next. Returns how many there are. */
static size_t look(bool remove) {
    struct shore_diag diag = {0};
    struct shore_run *run = NULL;
    struct shore__strings names = {0};
    assert_ok(shore_run_open("run", NULL, &run, &diag));
    assert_ok(shore_run_snapshots("run", remember, &names, &diag));
    assert_int_equal(files("drive/*.snapshot-*"), names.count);
    assert_true(files("drive/*.rest*") <= (names.count > 0));
    for (size_t i = 0; i < names.count; i++) {
        const struct shore_run_opening how = {.size = sizeof how, .read_only = true, .snapshot = names.item[i]};
        struct shore_run *kept = NULL;
        unsigned char digest[16];
        assert_ok(shore_run_open("run", &how, &kept, &diag));
        assert_ok(shore_fleet_digest(shore_run_fleet(kept), true, digest, &diag));
        shore_run_close(kept);
        if (remove) assert_ok(shore_run_snapshot_remove(run, names.item[i], &diag));
    }
    const size_t count = names.count;
    shore__strings_free(&names);
    shore_run_close(run);
    return count;
}

/* Of opening the run and the first snapshot. */
static uint64_t time_of_one(void) {
    struct shore_diag diag = {0};
    struct shore_run *run = NULL;
    const uint64_t begun = microseconds();
    assert_ok(shore_run_open("run", NULL, &run, &diag));
    assert_ok(shore_run_snapshot(run, "first", 0, &diag));
    shore_run_close(run);
    return microseconds() - begun;
}

static void are_whole_or_not_there(void **state) {
    const uint64_t seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : microseconds();
    size_t seen = 0;
    printf("SEED=%llu\n", (unsigned long long)seed);
    make_run();
    const uint64_t taken = time_of_one();
    look(true);
    for (uint64_t i = 0; i < KILLS || (!seen && i < MOST_KILLS); i++) { /* later ones, where the machine has slowed */
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) work();
        usleep((useconds_t)(shore__random_unit(seed, i, 0) * (double)(3 + i / 5) * (double)taken));
        int status;
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        seen += look(i % 5 == 4);
        if (i % 5 == 4) assert_int_equal(files("drive/*"), 1);
    }
    assert_true(seen > 0);
}

static int group_open(void **state) {
    return scratch_open(state) < 0 ? -1 : mkdir("drive", 0755);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(are_whole_or_not_there),
    };
    return cmocka_run_group_tests(tests, group_open, scratch_close);
}
