#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>

#include "base/units.h"
#include "drive/probe/probe.h"
#include "run/lifecycle/copy.h"
#include "run/lifecycle/making.h"
#include "run/lifecycle/snapshots.h"
#include "run/paths.h"
#include "unit/run/made_runs.h"

/* What a volume is before its header is written. */
static void write_zeros(const char *path) {
    write_text(path, "");
    assert_int_equal(truncate(path, 1 << 20), 0);
}

/* By hand, with this ending. Returns where it is then, until the next call. */
static const char *carry_volume(const char *from, const char *to, const char *ending) {
    static char path[512];
    const char *volume = volume_in(from, ending);
    snprintf(path, sizeof path, "%s%s", to, strrchr(volume, '/'));
    assert_int_equal(rename(volume, path), 0);
    return path;
}

/* The same in its last moves. */
static void abandon_moving(struct shore__run *run) {
    struct shore_diag diag = {0};
    char path[512];
    snprintf(path, sizeof path, "%s/tokens.bin", run->path);
    /* what cannot be replaced stops it */
    unlink(path);
    assert_int_equal(mkdir(path, 0755), 0);
    assert_true(shore__run_finish(run, run->fleet_id, "a processor, 2 threads", NULL, NULL, &diag) < 0);
    assert_int_equal(rmdir(path), 0);
    abandon(run);
}

static void killed_makings_are_made_again(void **state) {
    struct shore_diag diag = {0};
    struct shore__settings s;
    struct shore__run *run = NULL;
    settings_of(&s, "drive");
    assert_ok(prepare("a", &s, false, &run, &diag));
    abandon(run);
    assert_int_equal(shore__run_open("a", true, NULL, &run, &diag), SHORE_EMISSING);
    assert_says(diag, "give the same train command again");

    assert_ok(prepare("a", &s, false, &run, &diag));
    assert_false(run->replace_drives);
    fill(run, false);
    abandon(run); /* sealed, but no run.json */

    assert_ok(prepare("a", &s, false, &run, &diag));
    assert_true(run->replace_drives);
    abandon(run);
    assert_true(has_volume("drive"));

    shore__run_close(make("a", &s, false));
    assert_ok(shore__run_open("a", true, NULL, &run, &diag));
    assert_ok(opens_fleet(run, &diag));
    shore__run_close(run);
    removed("a");

    /* a killed making can be removed too, and one that is given up takes its volumes with it */
    assert_ok(prepare("a", &s, false, &run, &diag));
    fill(run, false);
    abandon(run);
    removed("a");
    assert_ok(prepare("a", &s, false, &run, &diag));
    fill(run, false);
    shore__run_close(run);
    assert_false(exists("a") || has_volume("drive"));

    /* also where it was stopped before a volume had its header */
    assert_ok(prepare("a", &s, false, &run, &diag));
    write_zeros(run->settings.drives.text[0]);
    abandon(run);
    removed("a");
    assert_ok(prepare("a", &s, false, &run, &diag));
    write_zeros(run->settings.drives.text[0]);
    shore__run_close(run);
    assert_false(exists("a") || has_volume("drive"));
    /* or before its draft was written; a folder of that name alone is nobody's leave to remove what is in it */
    assert_true(mkdir("a", 0755) == 0 && mkdir("a/making", 0755) == 0);
    write_text("a/making/tokens.bin", "mine");
    assert_true(shore__run_remove("a", &begun, NULL, NULL, &diag) < 0);
    assert_int_equal(rename("a/making/tokens.bin", "a/making/.plan.json.partial"), 0);
    removed("a");
    /* what somebody else has put there stays */
    assert_ok(prepare("a", &s, false, &run, &diag));
    write_text(run->settings.drives.text[0], "a letter");
    abandon(run);
    assert_ok(shore__run_remove("a", &begun, NULL, NULL, &diag));
    assert_true(has_volume("drive"));
    assert_ok(prepare("a", &s, false, &run, &diag));
    shore__run_close(run);
    assert_int_equal(remove(volume_in("drive", "")), 0);
    shore__settings_free(&s);
}

/* As where the drives have no room for two runs. */
static void begin_in_its_place(const struct shore__settings *s, bool volumes_go, struct shore__run **out) {
    struct shore_diag diag = {0};
    assert_ok(prepare("a", s, true, out, &diag));
    assert_ok(shore__making_retire(*out, &diag));
    struct shore__run *old = shore__run_overwritten("a");
    assert_non_null(old);
    if (volumes_go) shore__run_drop(old, NULL, NULL);
    shore__run_free(old);
    assert_true(!exists("a/run.json") && shore__run_is_half_replaced("a"));
}

static void runs_that_go_first_are_not_forgotten(void **state) {
    struct shore_diag diag = {0};
    struct shore__settings s;
    struct shore__run *run = NULL, *other = NULL;
    settings_of(&s, "drive");

    /* put back where they were not touched yet */
    shore__run_close(make("a", &s, false));
    begin_in_its_place(&s, false, &run);
    shore__run_close(run);
    assert_true(exists("a/run.json") && !exists("a/making"));
    begin_in_its_place(&s, false, &run);
    assert_int_equal(shore__run_open("a", false, NULL, &other, &diag), SHORE_EBUSY);
    abandon(run);
    assert_ok(shore__run_open("a", true, NULL, &run, &diag));
    assert_ok(opens_fleet(run, &diag));
    shore__run_close(run);

    /* given up, then killed */
    for (int killed = 0; killed < 2; killed++) {
        begin_in_its_place(&s, true, &run);
        fill(run, true);
        if (killed)
            abandon(run);
        else
            shore__run_close(run);
        assert_true(shore__run_is_half_replaced("a"));
        assert_int_equal(shore__run_open("a", true, NULL, &run, &diag), SHORE_EMISSING);
        assert_says(diag, "overwriting it was stopped: make the new one again; shore_run_remove() of a removes");
        run = make("a", &s, true);
        assert_ok(opens_fleet(run, &diag));
        shore__run_close(run);
        assert_false(exists("a/making"));
    }
    begin_in_its_place(&s, true, &run);
    fill(run, true);
    abandon(run);
    removed("a");
    shore__settings_free(&s);
}

/* Whoever opens the run next, or overwrites it, finishes what a kill in the last moves left. */
static void runs_that_are_made_take_their_place(void **state) {
    struct shore_diag diag = {0};
    struct shore__settings s, elsewhere;
    struct shore__run *run = NULL;
    uint64_t made[2];
    settings_of(&s, "drive");
    settings_of(&elsewhere, "drive4");
    assert_int_equal(mkdir("drive4", 0755), 0);
    for (int overwritten = 0; overwritten < 2; overwritten++) {
        if (overwritten) shore__run_close(make("a", &elsewhere, false));
        assert_ok(prepare("a", &s, overwritten, &run, &diag));
        fill(run, false);
        memcpy(made, run->fleet_id, sizeof made);
        abandon_moving(run);
        assert_true(shore__run_is_half_replaced("a") && has_volume("drive4") == overwritten);
        assert_ok(shore__run_open("a", true, NULL, &run, &diag));
        assert_memory_equal(run->fleet_id, made, sizeof made);
        assert_ok(opens_fleet(run, &diag));
        shore__run_close(run);
        assert_false(exists("a/making") || has_volume("drive4"));

        assert_ok(prepare("a", &elsewhere, true, &run, &diag));
        fill(run, true);
        abandon_moving(run);
        if (overwritten) {
            assert_int_equal(prepare("a", &s, false, &run, &diag), SHORE_EEXISTS);
            assert_ok(prepare("a", &s, true, &run, &diag));
            shore__run_close(run); /* given up: the run that took its place stays */
            assert_ok(shore__run_open("a", true, NULL, &run, &diag));
            assert_ok(opens_fleet(run, &diag));
            shore__run_close(run);
            assert_true(has_volume("drive4") && !has_volume("drive"));
        }
        removed("a");
        assert_false(has_volume("drive4"));
    }
    shore__settings_free(&s);
    shore__settings_free(&elsewhere);
}

static void makings_with_other_drives_forget_none(void **state) {
    struct shore_diag diag = {0};
    struct shore__settings s, elsewhere, nowhere;
    struct shore__run *run = NULL;
    settings_of(&s, "drive");
    settings_of(&elsewhere, "drive5");
    settings_of(&nowhere, "nowhere/volume");
    assert_int_equal(mkdir("drive5", 0755), 0);

    assert_ok(prepare("a", &s, false, &run, &diag));
    fill(run, false);
    abandon(run);
    run = make("a", &elsewhere, false);
    assert_ok(opens_fleet(run, &diag));
    shore__run_close(run);
    assert_true(!has_volume("drive") && has_volume("drive5"));
    assert_ok(shore__run_remove("a", &begun, NULL, NULL, &diag));

    /* a command that is refused undoes what was begun, too */
    assert_ok(prepare("a", &s, false, &run, &diag));
    fill(run, false);
    abandon(run);
    assert_int_equal(prepare("a", &nowhere, false, &run, &diag), SHORE_EUSAGE);
    assert_false(exists("a/making") || has_volume("drive"));
    remove_tree("a");

    /* one that is in use is not forgotten */
    assert_ok(prepare("a", &s, false, &run, &diag));
    fill(run, false);
    abandon(run);
    int fd = open(volume_in("drive", ""), O_RDONLY);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(prepare("a", &elsewhere, false, &run, &diag), SHORE_EBUSY);
    assert_says(diag, volume_in("drive", ""));
    close(fd);
    removed("a");
    shore__settings_free(&s);
    shore__settings_free(&elsewhere);
    shore__settings_free(&nowhere);
}

static int die(void *ctx, uint64_t done_bytes, uint64_t total_bytes) {
    _exit(7);
}

/* Ends of two pipes: who has opened the run says so, and goes on once he is told to. */
struct meeting {
    int said, opened, told, go;
};

static struct meeting meet(void) {
    int up[2], down[2];
    assert_true(pipe(up) == 0 && pipe(down) == 0);
    return (struct meeting){up[0], up[1], down[0], down[1]};
}

/* Between the making of the new volumes and the one durable step. m: where the run, once open, waits; or NULL. */
static pid_t begin_a_move(const char *path, const char *drive, const struct meeting *m) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct shore__run *run = NULL;
        struct shore__addresses drives = {0};
        struct shore__placing how = {.drives = &drives, .progress = die};
        bool good =
            shore__run_open(path, true, NULL, &run, NULL) == 0 && shore__addresses_parse(&drives, drive, NULL) == 0;
        char byte = 'o';
        if (good && m) good = write(m->opened, &byte, 1) == 1 && read(m->told, &byte, 1) == 1;
        if (good) shore__run_place(run, &how, NULL);
        _exit(0);
    }
    return pid;
}

static void dies(pid_t pid) {
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 7);
}

static void kill_a_move(const char *path, const char *drive) {
    dies(begin_a_move(path, drive, NULL));
}

static struct meeting meeting;
static int asked;

/* The moment at which somebody waits for the lock; no time passes for him. */
static uint64_t clock_of_who_waits(void) {
    if (++asked == 2) assert_int_equal(write(meeting.go, "g", 1), 1);
    return 1;
}

/* Who waits for a run's lock mends what its holder leaves. */
static void mends_what_was_begun_meanwhile(void **state) {
    struct shore_diag diag = {0};
    struct shore__settings s;
    struct shore__run *run = NULL;
    char byte;
    settings_of(&s, "drive");
    assert_int_equal(mkdir("drive8", 0755), 0);
    meeting = meet();
    shore__run_close(make("a", &s, false));
    pid_t pid = begin_a_move("a", "drive8", &meeting);
    assert_int_equal(read(meeting.said, &byte, 1), 1);
    shore__set_clock(clock_of_who_waits);
    assert_ok(shore__run_open("a", true, NULL, &run, &diag));
    shore__set_clock(NULL);
    dies(pid);
    assert_false(exists("a/moving.json") || has_volume("drive8"));
    assert_ok(opens_fleet(run, &diag));
    shore__run_close(run);
    removed("a");
    shore__settings_free(&s);
    close(meeting.said), close(meeting.opened), close(meeting.told), close(meeting.go);
}

/* Wherever they lie, and whatever was interrupted. */
static void overwriting_takes_all_volumes(void **state) {
    struct shore_diag diag = {0};
    struct shore__settings s, elsewhere;
    struct shore__run *run = NULL;
    settings_of(&s, "drive");
    settings_of(&elsewhere, "drive7");
    assert_true(mkdir("drive6", 0755) == 0 && mkdir("drive7", 0755) == 0);
    shore__run_close(make("a", &s, false));
    shore__run_close(make("a", &elsewhere, true));
    assert_false(has_volume("drive"));
    shore__run_close(make("a", &s, true));
    assert_false(has_volume("drive7"));

    /* killed: who goes on with the run that stands is rid of what was begun */
    assert_ok(prepare("a", &elsewhere, true, &run, &diag));
    fill(run, true);
    abandon(run);
    assert_true(exists("a/run.json") && has_volume("drive7"));
    assert_ok(shore__run_open("a", true, NULL, &run, &diag));
    assert_ok(opens_fleet(run, &diag));
    shore__run_close(run);
    assert_false(exists("a/making") || has_volume("drive7"));

    kill_a_move("a", "drive6");
    assert_true(exists("a/moving.json") && has_volume("drive6"));
    run = make("a", &s, true);
    assert_ok(opens_fleet(run, &diag));
    shore__run_close(run);
    assert_false(exists("a/moving.json") || has_volume("drive6"));
    removed("a");

    /* snapshots lie where their drive has gone */
    shore__run_close(make("a", &s, false));
    assert_ok(shore__run_open("a", true, NULL, &run, &diag));
    struct shore_fleet_options options;
    struct shore_fleet *fleet = NULL;
    shore__run_fleet(run, &run->settings.drives, 1, &options);
    assert_ok(shore_fleet_open(run->model->layout, &options, &fleet, &diag));
    assert_ok(shore__snapshot_make(run, fleet, "one", false, &diag));
    shore_fleet_close(fleet);
    carry_volume("drive", "drive6", ".snapshot-one");
    struct shore__address *absolute;
    drive_becomes(&run->settings, carry_volume("drive", "drive6", ""));
    assert_ok(shore__drive_absolute(run->settings.drives.item[0], &absolute, &diag));
    shore__addresses_put(&run->settings.drives, 0, absolute);
    assert_ok(shore__run_record_change(run, 0, "a drive moved", &diag));
    shore__run_close(run);
    shore__run_close(make("a", &s, true));
    assert_false(has_volume("drive6") || exists(volume_in("drive6", ".snapshot-one")));
    removed("a");
    shore__settings_free(&s);
    shore__settings_free(&elsewhere);
}

static void other_volumes_are_left_alone(void **state) {
    struct shore_diag diag = {0};
    struct shore__settings s, t;
    struct shore__run *run = NULL;
    settings_of(&s, "drive");
    settings_of(&t, "drive2");
    assert_int_equal(mkdir("drive2", 0755), 0);
    shore__run_close(make("a", &s, false));
    shore__run_close(make("b", &t, false));
    /* b's volume stands where a killed making of c wanted to be */
    drive_becomes(&t, "drive2/../drive3.volume");
    assert_ok(prepare("c", &t, false, &run, &diag));
    abandon(run);
    char of_b[512], of_a[512];
    snprintf(of_b, sizeof of_b, "%s", volume_in("drive2", ""));
    assert_int_equal(rename(of_b, "drive3.volume"), 0);
    assert_int_equal(prepare("c", &t, false, &run, &diag), SHORE_EEXISTS);
    assert_false(exists("c/making"));
    assert_true(exists("drive3.volume"));
    assert_int_equal(rename("drive3.volume", of_b), 0);

    /* nor is it overwritten where it is named: that is for the run in whose place the new one is made */
    drive_becomes(&t, of_b);
    assert_int_equal(prepare("c", &t, true, &run, &diag), SHORE_EEXISTS);
    assert_says(diag, "holds the state of the run ");
    assert_says(diag, "/b, at step 0; name another path, or remove that run; shore_run_remove() of /");
    assert_int_equal(rename("b", "b2"), 0);
    assert_int_equal(prepare("c", &t, true, &run, &diag), SHORE_EEXISTS);
    assert_says(diag, "holds the state of a run that was made as ");
    assert_says(diag, "/b, at step 0; name another path, or, if nobody needs that run any more, delete the file");
    assert_int_equal(rename("b2", "b"), 0);
    assert_false(exists("c/making"));
    assert_ok(shore__run_open("b", true, NULL, &run, &diag));
    assert_ok(opens_fleet(run, &diag));
    shore__run_close(run);

    /* volumes that changed places are not removed with the wrong run */
    snprintf(of_a, sizeof of_a, "%s", volume_in("drive", ""));
    assert_int_equal(rename(of_a, "kept"), 0);
    assert_int_equal(rename(of_b, of_a), 0);
    assert_ok(shore__run_remove("a", &begun, NULL, NULL, &diag));
    assert_true(exists(of_a) && !exists("a"));
    assert_int_equal(rename(of_a, of_b), 0);
    int fd = open(of_b, O_RDONLY);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(shore__run_remove("b", &begun, NULL, NULL, &diag), SHORE_EBUSY);
    assert_true(exists(of_b) && exists("b/run.json"));
    close(fd);
    assert_ok(shore__run_remove("b", &begun, NULL, NULL, &diag));
    assert_true(!exists(of_b) && exists("kept"));
    unlink("kept");
    assert_int_equal(shore__run_remove("drive2", &begun, NULL, NULL, &diag), SHORE_EMISSING);
    shore__settings_free(&s);
    shore__settings_free(&t);
}

static void hear(void *ctx, const char *text) {
    struct shore_diag *last = ctx;
    if (!strstr(last->text, "left alone")) snprintf(last->text, sizeof last->text, "%s", text);
}

/* What cannot be looked at is not said to be gone. */
static void volumes_out_of_sight_are_named(void **state) {
    struct shore_diag diag = {0}, said = {0};
    struct shore__settings s;
    const uint64_t any[2] = {0};
    settings_of(&s, "drive");
    shore__run_close(make("a", &s, false));
    assert_true(rename("drive", "away") == 0 && symlink("drive", "drive") == 0);
    assert_int_equal(shore__drive_remove(s.drives.item[0], any, SHORE__ANY_GENERATION, false, &diag), -ELOOP);
    assert_ok(shore__run_remove("a", &begun, hear, &said, &diag));
    assert_says(said, "left alone: ");
    assert_says(said, "symbolic links");
    assert_true(unlink("drive") == 0 && rename("away", "drive") == 0 && unlink(volume_in("drive", "")) == 0);
    shore__settings_free(&s);
}

/* As long as run.json may be, which lists the same drives. */
static void long_drafts_are_read(void **state) {
    enum { VOLUMES = 600 };
    struct shore_diag diag = {0};
    struct shore__journal draft;
    char name[4001];
    memset(name, 'd', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_int_equal(mkdir("long", 0755) | mkdir("long/making", 0755), 0);
    FILE *f = fopen("long/making/plan.json", "w");
    assert_non_null(f);
    fprintf(f, "{\"fleet\": \"00112233445566778899aabbccddeeff\", \"volumes\": [");
    for (int i = 0; i < VOLUMES; i++)
        fprintf(f, "%s\"/%s%d\"", i ? ", " : "", name, i);
    fprintf(f, "]}");
    assert_int_equal(fclose(f), 0);
    assert_ok(shore__journal_read("long", SHORE__MAKING, NULL, &draft, &diag));
    assert_int_equal(draft.new.count, VOLUMES);
    shore__journal_free(&draft);
    remove_tree("long");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_makings_are_made_again),         cmocka_unit_test(runs_that_go_first_are_not_forgotten),
        cmocka_unit_test(runs_that_are_made_take_their_place),   cmocka_unit_test(long_drafts_are_read),
        cmocka_unit_test(makings_with_other_drives_forget_none), cmocka_unit_test(overwriting_takes_all_volumes),
        cmocka_unit_test(mends_what_was_begun_meanwhile),        cmocka_unit_test(other_volumes_are_left_alone),
        cmocka_unit_test(volumes_out_of_sight_are_named),
    };
    return cmocka_run_group_tests(tests, group_open, scratch_close);
}
