/* A run that several processes share: longshore/run.h. */
#include <errno.h>

#include "run/lifecycle/snapshots.h"
#include "unit/run/parts.h"

enum { RANKS = 3, VOLUMES = 4 };

struct group {
    struct shore_run *run[VOLUMES_MOST];
    uint32_t ranks;
};

static void unite(struct group *g) {
    static char bytes[VOLUMES_MOST][PART_BYTES];
    const void *parts[VOLUMES_MOST];
    size_t size[VOLUMES_MOST];
    struct shore_diag diag = {0};
    for (uint32_t r = 0; r < g->ranks; r++) {
        size[r] = PART_BYTES;
        parts[r] = bytes[r];
        assert_ok(shore_fleet_part(shore_run_fleet(g->run[r]), bytes[r], &size[r], &diag));
    }
    for (uint32_t r = 0; r < g->ranks; r++)
        assert_ok(shore_run_unite(g->run[r], parts, size, g->ranks, &diag));
}

static struct group opened(const char *path, uint32_t ranks, const char *moved) {
    struct group g = {.ranks = ranks};
    struct shore_diag diag = {0};
    for (uint32_t r = 0; r < ranks; r++)
        assert_ok(open_part(path, VOLUMES, r, ranks, moved, &g.run[r], &diag));
    unite(&g);
    return g;
}

static struct group begun(const char *path, const char *const *volumes, bool overwrite) {
    struct group g = {.ranks = RANKS};
    struct shore_diag diag = {0};
    for (uint32_t r = 0; r < RANKS; r++)
        assert_ok(create_part(path, volumes, VOLUMES, r, RANKS, overwrite, &g.run[r], &diag));
    unite(&g);
    for (uint32_t r = 0; r < RANKS; r++)
        assert_ok(fill_run(g.run[r], &diag));
    return g;
}

static struct group made(const char *path, const char *const *volumes) {
    struct group g = begun(path, volumes, false);
    struct shore_diag diag = {0};
    for (uint32_t r = RANKS; r > 0; r--)
        assert_ok(shore_run_seal(g.run[r - 1], 0, &diag));
    return g;
}

static void closed(struct group *g) {
    for (uint32_t r = g->ranks; r > 0; r--)
        shore_run_close(g->run[r - 1]);
}

static void commit(struct group *g) {
    struct shore_diag diag = {0};
    for (uint32_t r = 0; r < g->ranks; r++)
        assert_ok(begin_step(g->run[r], r, &diag));
    for (uint32_t r = 0; r < g->ranks; r++)
        assert_ok(shore_run_commit_wait(g->run[r], &diag));
}

static void confirm(struct group *g) {
    struct shore_diag diag = {0};
    for (uint32_t r = 0; r < g->ranks; r++)
        assert_ok(shore_run_confirm(g->run[r], step_of(g->run[r]), &diag));
}

static void steps(struct group *g, uint32_t n) {
    for (; n; n--) {
        commit(g);
        confirm(g);
    }
}

struct digest {
    unsigned char bytes[16];
};

static struct digest digest_of_parts(const struct group *g) {
    unsigned char sums[VOLUMES_MOST][16];
    struct digest digest;
    struct shore_diag diag = {0};
    for (uint32_t r = 0; r < g->ranks; r++)
        assert_ok(shore_fleet_leaf_sum(shore_run_fleet(g->run[r]), true, sums[r], &diag));
    shore_fleet_digest_of(step_of(g->run[0]), sums, g->ranks, digest.bytes);
    return digest;
}

/* Of a run that one process has, at this step. */
static struct digest digest_of_whole(const char *path, uint64_t step) {
    struct shore_run *run = NULL;
    struct digest digest;
    struct shore_diag diag = {0};
    assert_ok(shore_run_open(path, NULL, &run, &diag));
    assert_int_equal(step_of(run), step);
    assert_ok(shore_fleet_digest(shore_run_fleet(run), true, digest.bytes, &diag));
    shore_run_close(run);
    return digest;
}

/* What a run without parts has. */
static struct digest expected(uint64_t step) {
    struct shore_run *run = NULL;
    struct digest digest;
    struct shore_diag diag = {0};
    const struct shore_fleet_options options = fleet_of_program(two_drives, 2);
    assert_ok(begin_run("plain", &options, &run, &diag));
    assert_ok(shore_run_seal(run, 0, &diag));
    while (step_of(run) < step) {
        assert_ok(begin_step(run, 0, &diag));
        assert_ok(shore_run_commit_wait(run, &diag));
    }
    assert_ok(shore_fleet_digest(shore_run_fleet(run), true, digest.bytes, &diag));
    shore_run_close(run);
    assert_ok(shore_run_remove("plain", NULL, &diag));
    return digest;
}

static void has_lines(const char *run, uint32_t n) {
    char want[512] = "", path[64];
    for (uint32_t i = 1; i <= n; i++)
        sprintf(want + strlen(want), "{\"step\":%u,\"loss\":%u}\n", i, i);
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    char *lines = read_text(path);
    assert_string_equal(lines, want);
    free(lines);
}

static void removed(const char *path) {
    struct shore_diag diag = {0};
    assert_ok(shore_run_remove(path, NULL, &diag));
    assert_false(exists(path) || has_volume("drive0") || has_volume("drive1"));
}

/* ---- */

static void any_number_of_processes_has_the_run(void **state) {
    const struct digest three = expected(3), five = expected(5);
    struct group g = made("run", volumes_in("drive0", VOLUMES));
    steps(&g, 1);
    closed(&g);
    g = opened("run", 2, NULL);
    steps(&g, 2);
    assert_memory_equal(digest_of_parts(&g).bytes, three.bytes, 16);
    closed(&g);
    assert_memory_equal(digest_of_whole("run", 3).bytes, three.bytes, 16);
    g = opened("run", VOLUMES, NULL);
    steps(&g, 1);
    closed(&g);
    g = opened("run", VOLUMES + 2, NULL); /* some have none */
    steps(&g, 1);
    closed(&g);
    assert_memory_equal(digest_of_whole("run", 5).bytes, five.bytes, 16);
    has_lines("run", 5);
    removed("run");
}

static void the_runs_own_directory_holds_volumes(void **state) {
    struct group g = made("run", volumes_in("run", VOLUMES));
    steps(&g, 1);
    closed(&g);
    digest_of_whole("run", 1);
    removed("run");
}

static void a_line_waits_for_all_processes(void **state) {
    struct shore_diag diag = {0};
    struct group g = made("run", volumes_in("drive0", VOLUMES));
    steps(&g, 1);
    assert_int_equal(shore_run_confirm(g.run[0], 1, &diag), SHORE_ESTALE);
    commit(&g);
    has_lines("run", 1);
    char *hint = read_text("run/committed");
    assert_string_equal(hint, "1\n");
    free(hint);
    const struct shore_commit next = {.size = sizeof next, .step = 3, .how = SHORE_COMMIT_SKIPPED};
    assert_int_equal(shore_run_commit(g.run[1], &next, NULL, &diag), -EBUSY);
    assert_int_equal(shore_run_snapshot_begin(g.run[0], "a", &diag), -EBUSY);
    assert_int_equal(shore_run_confirm(g.run[1], 3, &diag), SHORE_ESTALE);
    confirm(&g);
    has_lines("run", 2);
    commit(&g);
    closed(&g); /* as a kill does it: nobody confirms */
    g = opened("run", RANKS, NULL);
    has_lines("run", 3);
    steps(&g, 1);
    closed(&g);
    has_lines("run", 4);
    removed("run");
}

static void one_behind_takes_all_back(void **state) {
    struct shore_diag diag = {0};
    struct group g = made("run", volumes_in("drive0", VOLUMES));
    steps(&g, 1);
    for (uint32_t r = 0; r + 1 < RANKS; r++) {
        assert_ok(begin_step(g.run[r], r, &diag));
        assert_ok(shore_run_commit_wait(g.run[r], &diag));
    }
    closed(&g);
    g = opened("run", RANKS, NULL);
    assert_int_equal(step_of(g.run[0]), 1);
    steps(&g, 1);
    closed(&g);
    assert_memory_equal(digest_of_whole("run", 2).bytes, expected(2).bytes, 16);
    has_lines("run", 2);
    removed("run");
}

static void nobody_joins_what_nobody_keeps(void **state) {
    struct shore_diag diag = {0};
    struct shore_run *run = NULL, *second = NULL;
    const char *const *volumes = volumes_in("drive0", VOLUMES);
    assert_int_equal(create_part("run", volumes, VOLUMES, 1, RANKS, false, &run, &diag), SHORE_EUSAGE);
    assert_says(diag, "no process keeps this run");
    assert_false(exists("run") || has_volume("drive0"));
    struct group g = made("run", volumes);
    closed(&g);
    assert_int_equal(open_part("run", VOLUMES, 1, RANKS, NULL, &run, &diag), SHORE_EUSAGE);
    assert_says(diag, "no process keeps this run");
    /* a process that has it all has every volume */
    assert_ok(shore_run_open("run", NULL, &run, &diag));
    assert_int_equal(open_part("run", VOLUMES, 1, RANKS, NULL, &second, &diag), SHORE_EBUSY);
    assert_int_equal(open_part("run", VOLUMES, 0, RANKS, NULL, &second, &diag), SHORE_EBUSY);
    const void *none = NULL;
    const size_t zero = 0;
    assert_int_equal(shore_run_unite(run, &none, &zero, 0, &diag), -EINVAL);
    assert_ok(shore_run_confirm(run, 0, &diag));
    shore_run_close(run);
    assert_ok(open_part("run", VOLUMES, 0, RANKS, NULL, &run, &diag));
    assert_int_equal(open_part("run", VOLUMES, 0, RANKS, NULL, &second, &diag), SHORE_EBUSY); /* two keepers */
    assert_ok(open_part("run", VOLUMES, 1, RANKS, NULL, &second, &diag));
    shore_run_close(second);
    shore_run_close(run);
    removed("run");
}

static void others_change_nothing_in_the_directory(void **state) {
    struct shore_diag diag = {0};
    struct group g = made("run", volumes_in("drive0", VOLUMES));
    steps(&g, 1);
    char *before = read_text("run/run.json");
    assert_ok(shore_run_record(g.run[1], 1, "nothing", "{\"name\": \"another\"}", &diag));
    assert_string_equal(shore_run_program(g.run[1]), "{\"name\":\"another\"}");
    assert_int_equal(shore_run_snapshot_remove(g.run[1], "a", &diag), -EROFS);
    assert_int_equal(shore_run_snapshot(g.run[0], "a", 0, &diag), -EINVAL);
    char *after = read_text("run/run.json");
    assert_string_equal(before, after);
    free(before);
    free(after);
    assert_ok(shore_run_record(g.run[0], 1, "something", NULL, &diag));
    after = read_text("run/run.json");
    assert_non_null(strstr(after, "something"));
    free(after);
    closed(&g);
    removed("run");
}

static void others_take_the_keepers_drives(void **state) {
    struct shore_diag diag = {0};
    struct shore_run *keeper = NULL, *other = NULL;
    assert_ok(create_part("run", volumes_in("drive0", VOLUMES), VOLUMES, 0, RANKS, false, &keeper, &diag));
    assert_int_equal(create_part("run", volumes_in("drive1", VOLUMES), VOLUMES, 1, RANKS, false, &other, &diag),
                     SHORE_EMISMATCH);
    assert_says(diag, "in the run that is being made");
    assert_int_equal(create_part("run", volumes_in("drive0", VOLUMES - 1), VOLUMES - 1, 1, RANKS, false, &other, &diag),
                     SHORE_EMISMATCH);
    assert_says(diag, "is being made on 4 drives, and 3 are given here");
    assert_ok(create_part("run", volumes_in("drive0", VOLUMES), VOLUMES, 1, RANKS, false, &other, &diag));
    shore_run_close(other);
    assert_true(exists("run/making"));
    shore_run_close(keeper);
    assert_false(exists("run") || has_volume("drive0"));
}

static void a_users_file_stays(void **state) {
    struct shore_diag diag = {0};
    struct shore_run *keeper = NULL, *other = NULL;
    const char *const *volumes = volumes_in("drive0", VOLUMES);
    write_text(volumes[2], "something of the user's");
    assert_ok(create_part("run", volumes, VOLUMES, 0, RANKS, false, &keeper, &diag));
    assert_int_equal(create_part("run", volumes, VOLUMES, 2, RANKS, false, &other, &diag), SHORE_EEXISTS);
    shore_run_close(keeper);
    assert_false(exists("run"));
    char *text = read_text(volumes[2]);
    assert_string_equal(text, "something of the user's");
    free(text);
    unlink(volumes[2]);
}

/* A process that is gone leaves what it had, as a kill does; here its memory stays. */
static void cut_off(const struct group *g) {
    static struct group gone[16];
    static size_t n;
    assert_true(n < 16);
    gone[n] = *g;
    for (uint32_t r = g->ranks; r > 0; r--)
        shore_run_forked(gone[n].run[r - 1]);
    n++;
}

/* As after a power cut: other writes were durable first. */
static void without_headers(const char *volume) {
    static const char zeros[0x31000];
    FILE *f = fopen(volume, "r+");
    assert_non_null(f);
    assert_int_equal(fwrite(zeros, sizeof zeros, 1, f), 1);
    assert_int_equal(fclose(f), 0);
}

static void what_was_cut_off_is_made_again(void **state) {
    struct shore_diag diag = {0};
    const char *const *volumes = volumes_in("drive0", VOLUMES);
    struct group g = begun("run", volumes, false);
    for (uint32_t r = RANKS; r > 1; r--)
        assert_ok(shore_run_seal(g.run[r - 1], 0, &diag));
    cut_off(&g);
    assert_int_equal(shore_run_open("run", NULL, &g.run[0], &diag), SHORE_EMISSING);
    g = begun("run", volumes, false);
    cut_off(&g);
    without_headers(volumes[3]);
    g = begun("run", volumes, false);
    cut_off(&g);
    g = made("run", volumes_in("drive1", VOLUMES)); /* elsewhere: what was left goes */
    assert_false(has_volume("drive0") || exists("run/making"));
    closed(&g);
    assert_memory_equal(digest_of_whole("run", 0).bytes, expected(0).bytes, 16);
    removed("run");
    g = begun("run", volumes, false);
    cut_off(&g);
    removed("run");
}

static void an_overwritten_run_stays_until_the_end(void **state) {
    struct shore_diag diag = {0};
    struct group g = made("run", volumes_in("drive0", VOLUMES));
    steps(&g, 2);
    closed(&g);
    assert_int_equal(create_part("run", volumes_in("drive0", VOLUMES), VOLUMES, 0, RANKS, false, &g.run[0], &diag),
                     SHORE_EEXISTS);
    g = begun("run", volumes_in("drive0", VOLUMES), true); /* the same files */
    closed(&g);
    digest_of_whole("run", 2);
    g = begun("run", volumes_in("drive1", VOLUMES), true);
    cut_off(&g);
    digest_of_whole("run", 2);
    assert_false(has_volume("drive1"));
    g = begun("run", volumes_in("drive0", VOLUMES), true);
    for (uint32_t r = RANKS; r > 0; r--)
        assert_ok(shore_run_seal(g.run[r - 1], 0, &diag));
    closed(&g);
    digest_of_whole("run", 0);
    removed("run");
}

static void snapshot(struct group *g, const char *name, uint64_t keep) {
    struct shore_diag diag = {0};
    const struct digest digest = digest_of_parts(g);
    assert_ok(shore_run_snapshot_begin(g->run[0], name, &diag));
    for (uint32_t r = 0; r < g->ranks; r++)
        assert_ok(shore_run_snapshot_copy(g->run[r], name, &diag));
    for (uint32_t r = g->ranks; r > 0; r--)
        assert_ok(shore_run_snapshot_end(g->run[r - 1], name, keep, digest.bytes, &diag));
}

static void count_it(void *count, const struct shore_snapshot *s) {
    ++*(uint32_t *)count;
}

static uint32_t snapshots_of(const char *run) {
    uint32_t count = 0;
    struct shore_diag diag = {0};
    assert_ok(shore_run_snapshots(run, count_it, &count, &diag));
    return count;
}

static void a_snapshot_is_of_all_parts(void **state) {
    struct shore_diag diag = {0};
    uint64_t step = 0;
    struct group g = made("run", volumes_in("drive0", VOLUMES));
    steps(&g, 1);
    snapshot(&g, "one", 0);
    assert_int_equal(shore_run_snapshot_begin(g.run[0], "one", &diag), SHORE_EEXISTS);
    for (uint32_t r = RANKS; r > 0; r--)
        assert_ok(shore_run_snapshot_end(g.run[r - 1], "one", 0, NULL, &diag)); /* it has begun nothing */
    steps(&g, 1);
    /* one of them fails */
    assert_ok(shore_run_snapshot_begin(g.run[0], "two", &diag));
    assert_ok(shore_run_snapshot_copy(g.run[0], "two", &diag));
    for (uint32_t r = RANKS; r > 0; r--)
        assert_ok(shore_run_snapshot_end(g.run[r - 1], "two", 0, NULL, &diag));
    assert_false(exists("run/snapshots/two.partial") || exists("run/snapshots/two.json"));
    assert_false(exists("drive0/longshore-a-0c0ffee1.rank0.volume.snapshot-two"));
    for (uint32_t i = 0; i < 3; i++) {
        snapshot(&g, NULL, 2);
        snapshot(&g, NULL, 2); /* instead of the one before */
        steps(&g, 1);
    }
    assert_int_equal(snapshots_of("run"), 3);
    /* all are cut off */
    assert_ok(shore_run_snapshot_begin(g.run[0], "three", &diag));
    assert_ok(shore_run_snapshot_copy(g.run[1], "three", &diag));
    cut_off(&g);
    g = opened("run", 2, NULL);
    assert_int_equal(snapshots_of("run"), 3);
    assert_false(exists("drive0/longshore-a-0c0ffee1.rank1.volume.snapshot-three"));
    closed(&g);
    assert_ok(shore_run_rollback("run", "one", NULL, &step, &diag));
    assert_int_equal(step, 1);
    assert_memory_equal(digest_of_whole("run", 1).bytes, expected(1).bytes, 16);
    has_lines("run", 1);
    g = opened("run", RANKS, NULL);
    steps(&g, 1);
    closed(&g);
    digest_of_whole("run", 2);
    removed("run");
    assert_int_equal(rmdir("drive0"), 0); /* nothing is left */
    assert_int_equal(mkdir("drive0", 0755), 0);
}

/* Each process finds what it has committed. */
static void has_blobs(const struct group *g, uint64_t step) {
    struct shore_diag diag = {0};
    for (uint32_t r = 0; r < g->ranks; r++) {
        uint64_t blob[2] = {0};
        uint32_t bytes = sizeof blob;
        assert_ok(shore_fleet_blob(shore_run_fleet(g->run[r]), blob, &bytes, &diag));
        assert_int_equal(bytes, sizeof blob);
        assert_int_equal(blob[0] + 1, step);
        assert_int_equal(blob[1], r);
    }
}

static void move_to(const char *const *volumes, uint32_t n) {
    struct shore_diag diag = {0};
    struct shore__run *run = NULL;
    struct shore__addresses drives = {0};
    for (uint32_t v = 0; v < n; v++)
        assert_ok(shore__addresses_parse(&drives, volumes[v], &diag));
    assert_ok(shore__run_open("run", true, NULL, &run, &diag));
    assert_ok(shore__run_place(run, &(struct shore__placing){.drives = &drives}, &diag));
    shore__run_close(run);
    shore__addresses_free(&drives);
}

static void each_has_its_blob_where_the_state_goes(void **state) {
    static const char *const eight[] = {"drive1", "drive1", "drive1", "drive1", "drive1", "drive1", "drive1", "drive1"};
    struct shore_diag diag = {0};
    struct group g = made("run", volumes_in("drive0", VOLUMES));
    steps(&g, 2);
    snapshot(&g, "two", 0);
    steps(&g, 1);
    has_blobs(&g, 3);
    closed(&g);
    assert_ok(shore_run_rollback("run", "two", NULL, NULL, &diag));
    g = opened("run", RANKS, NULL);
    has_blobs(&g, 2);
    steps(&g, 1);
    closed(&g);
    move_to(eight, VOLUMES);
    g = opened("run", RANKS, NULL);
    has_blobs(&g, 3);
    closed(&g);
    move_to(volumes_in("drive0", 3), 3);
    g = (struct group){.ranks = RANKS};
    for (uint32_t r = 0; r < RANKS; r++)
        assert_ok(open_part("run", 3, r, RANKS, NULL, &g.run[r], &diag));
    unite(&g);
    has_blobs(&g, 3);
    closed(&g);
    assert_memory_equal(digest_of_whole("run", 3).bytes, expected(3).bytes, 16);
    removed("run");
}

static void volumes_move_together_by_hand(void **state) {
    struct group g = made("run", volumes_in("drive0", VOLUMES));
    steps(&g, 1);
    snapshot(&g, "one", 0);
    closed(&g);
    assert_int_equal(rename("drive0", "elsewhere"), 0);
    g = opened("run", 2, "drive0=elsewhere");
    steps(&g, 1);
    closed(&g);
    digest_of_whole("run", 2);
    struct shore_diag diag = {0};
    assert_ok(shore_run_rollback("run", "one", NULL, NULL, &diag));
    assert_ok(shore_run_remove("run", NULL, &diag));
    assert_int_equal(rmdir("elsewhere"), 0); /* nothing is left */
    assert_int_equal(mkdir("drive0", 0755), 0);
}

/* A directory is seen only while it has its name. Volumes 2 and 3 are in it, and rank 1 has them. */
static void on_another_host(bool seen) {
    assert_int_equal(seen ? rename("unseen", "drive1") : rename("drive1", "unseen"), 0);
}

static void drives_on_another_host_are_taken_by_their_names(void **state) {
    struct shore_diag diag = {0};
    struct group g = {.ranks = 2};
    char path[2][256];
    const char *volumes[VOLUMES] = {volumes_in("drive0", 2)[0], volumes_in("drive0", 2)[1], "drive1/c.volume", path[1]};
    for (int i = 0; i < 2; i++)
        snprintf(path[i], sizeof path[i], "%s/drive1/%d.volume", scratch, i);
    on_another_host(false);
    assert_int_equal(create_part("run", volumes, VOLUMES, 0, 2, false, &g.run[0], &diag), SHORE_EUSAGE);
    assert_says(diag, "drive1/c.volume: a drive on another host is named by its whole path");
    volumes[2] = path[0];
    assert_ok(create_part("run", volumes, VOLUMES, 0, 2, false, &g.run[0], &diag));
    on_another_host(true);
    assert_ok(create_part("run", volumes, VOLUMES, 1, 2, false, &g.run[1], &diag));
    unite(&g);
    assert_ok(fill_run(g.run[0], &diag));
    assert_ok(fill_run(g.run[1], &diag));
    assert_ok(shore_run_seal(g.run[1], 0, &diag));
    on_another_host(false);
    assert_ok(shore_run_seal(g.run[0], 0, &diag));
    steps(&g, 1);
    closed(&g);
    assert_int_equal(shore_run_open("run", NULL, &g.run[0], &diag), SHORE_EMISSING);
    assert_says(diag, "drive1/0.volume is missing");
    assert_ok(open_part("run", VOLUMES, 0, 2, NULL, &g.run[0], &diag));
    on_another_host(true);
    assert_ok(open_part("run", VOLUMES, 1, 2, NULL, &g.run[1], &diag));
    unite(&g);
    steps(&g, 1);
    on_another_host(false);
    const struct digest digest = digest_of_parts(&g);
    assert_ok(shore_run_snapshot_begin(g.run[0], "one", &diag));
    assert_ok(shore_run_snapshot_copy(g.run[0], "one", &diag));
    on_another_host(true);
    assert_ok(shore_run_snapshot_copy(g.run[1], "one", &diag));
    on_another_host(false);
    assert_ok(shore_run_snapshot_end(g.run[0], "one", 0, digest.bytes, &diag));
    closed(&g);
    assert_int_equal(create_part("run", volumes, VOLUMES, 0, 2, true, &g.run[0], &diag), SHORE_EUSAGE);
    assert_says(diag, "has a volume of the run that is there, and lies on another host");
    on_another_host(true);
    assert_memory_equal(digest_of_whole("run", 2).bytes, expected(2).bytes, 16);
    assert_ok(shore_run_rollback("run", "one", NULL, NULL, &diag));
    removed("run");
    assert_int_equal(rmdir("drive1"), 0); /* nothing is left */
    assert_int_equal(mkdir("drive1", 0755), 0);
}

static int group_open(void **state) {
    if (scratch_open(state) < 0) return -1;
    return mkdir("drive0", 0755) || mkdir("drive1", 0755) ? -1 : 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_processes_has_the_run),
        cmocka_unit_test(the_runs_own_directory_holds_volumes),
        cmocka_unit_test(a_line_waits_for_all_processes),
        cmocka_unit_test(one_behind_takes_all_back),
        cmocka_unit_test(nobody_joins_what_nobody_keeps),
        cmocka_unit_test(others_change_nothing_in_the_directory),
        cmocka_unit_test(others_take_the_keepers_drives),
        cmocka_unit_test(a_users_file_stays),
        cmocka_unit_test(what_was_cut_off_is_made_again),
        cmocka_unit_test(an_overwritten_run_stays_until_the_end),
        cmocka_unit_test(a_snapshot_is_of_all_parts),
        cmocka_unit_test(each_has_its_blob_where_the_state_goes),
        cmocka_unit_test(volumes_move_together_by_hand),
        cmocka_unit_test(drives_on_another_host_are_taken_by_their_names),
    };
    return cmocka_run_group_tests(tests, group_open, scratch_close);
}
