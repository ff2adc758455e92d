#include "drive/probe/speed.h"
#include "run/lifecycle/volumes.h"
#include "unit/run/support.h"

static void named(const char *recorded, uint64_t generation, const char *drive) {
    char *name = shore__drive_name(recorded, generation);
    assert_string_equal(name, drive);
    free(name);
}

static void drives_are_known_by_the_name_they_were_given(void **state) {
    named("/mnt/a", 1, "/mnt/a");
    named("/mnt/a/longshore.volume", 1, "/mnt/a");
    named("/mnt/a/longshore.volume.g2", 2, "/mnt/a");
    named("/mnt/a/longshore.volume.g17", 16, "/mnt/a");
    named("/mnt/a/own.g3", 3, "/mnt/a/own");
    named("/mnt/a/own.g", 3, "/mnt/a/own.g");
    named("/mnt/a/own.x2", 2, "/mnt/a/own.x2");
    named("/mnt/a/2", 2, "/mnt/a/2");
    named("ssh://host/mnt/a/longshore.volume.g2", 2, "ssh://host/mnt/a");
    named("/dev/nvme0n1", 2, "/dev/nvme0n1");
    named("/mnt/a/longshore-b-00c0ffee.volume", 1, "/mnt/a");
    named("/mnt/a/longshore-b-00c0ffee.volume.g3", 3, "/mnt/a");
    named("/mnt/a/longshore--00c0ffee.volume", 1, "/mnt/a/longshore--00c0ffee.volume");
    named("/mnt/a/longshore-b-00c0ffe.volume", 1, "/mnt/a/longshore-b-00c0ffe.volume");
    named("/mnt/a/longshore-b-00c0ffee.volumes", 1, "/mnt/a/longshore-b-00c0ffee.volumes");
    named("unix:/run/s:longshore-b-00c0ffee.volume", 1, "unix:/run/s");
    named("unix:/run/s:d/longshore-b-00c0ffee.volume", 1, "unix:/run/s:d");
    named("ssh://host/mnt/a/longshore-b-00c0ffee.volume", 1, "ssh://host/mnt/a");
    assert_true(shore__drive_is_named("/mnt/a/longshore.volume.g2", 2, "/mnt/a"));
    assert_true(shore__drive_is_named("/mnt/a", 2, "/mnt/a/longshore.volume"));
    assert_false(shore__drive_is_named("/mnt/a", 2, "/mnt/b"));
    struct shore__addresses list = {0};
    assert_int_equal(shore__addresses_parse(&list, "/mnt/a/longshore.volume.g2", NULL), 0);
    assert_int_equal(shore__addresses_parse(&list, "/mnt/b", NULL), 0);
    assert_int_equal(shore__drive_find(&list, 2, "/mnt/a", 0), 0);
    assert_int_equal(shore__drive_find(&list, 2, "/mnt/b", 0), 1);
    assert_int_equal(shore__drive_find(&list, 2, "/mnt/c", 0), 2);
    shore__addresses_free(&list);
}

static void a_directory_may_hold_several(void **state) {
    static const char first[] = "/mnt/a/longshore-b-00c0ffee.rank0.volume";
    static const char third[] = "/mnt/a/longshore-b-00c0ffee.rank12.volume.g2";
    struct shore__addresses list = {0};
    char *name = shore__volume_own_name("/runs/b", (const uint64_t[2]){UINT64_C(0x00c0ffee00000000), 1}, 12);
    assert_string_equal(name, "longshore-b-00c0ffee.rank12.volume");
    free(name);
    named(first, 1, "/mnt/a");
    named(third, 2, "/mnt/a");
    named("/mnt/a/longshore-b-00c0ffee.rank.volume", 1, "/mnt/a/longshore-b-00c0ffee.rank.volume");
    named("/mnt/a/longshore-b-0c0ffee.rank12.volume", 1, "/mnt/a/longshore-b-0c0ffee.rank12.volume");
    named("/mnt/a/longshore--00c0ffee.rank1.volume", 1, "/mnt/a/longshore--00c0ffee.rank1.volume");
    assert_int_equal(shore__addresses_parse(&list, first, NULL), 0);
    assert_int_equal(shore__addresses_parse(&list, "/mnt/b", NULL), 0);
    assert_int_equal(shore__addresses_parse(&list, third, NULL), 0);
    /* the directory means both, a volume only itself */
    assert_int_equal(shore__drive_find(&list, 2, "/mnt/a", 0), 0);
    assert_int_equal(shore__drive_find(&list, 2, "/mnt/a", 1), 2);
    assert_int_equal(shore__drive_find(&list, 2, "/mnt/a", 3), 3);
    assert_int_equal(shore__drive_find(&list, 2, first, 0), 0);
    assert_int_equal(shore__drive_find(&list, 2, first, 1), 3);
    assert_int_equal(shore__drive_find(&list, 2, "/mnt/a/longshore-b-00c0ffee.rank12.volume", 0), 2);
    assert_int_equal(shore__drive_find(&list, 2, "/mnt/a/longshore-b-00c0ffee.rank7.volume", 0), 3);
    struct shore__run run = {.generation = 2, .settings.drives = list};
    assert_int_equal(shore__move_split(&run, "/mnt/a=/mnt/c=d", 1).drive, 2);
    assert_string_equal(shore__move_split(&run, "/mnt/a=/mnt/c=d", 1).to, "/mnt/c=d");
    assert_int_equal(shore__move_split(&run, "/mnt/a=/mnt/c=d", 3).drive, 3);
    shore__addresses_free(&list);
}

static void is_called(const char *home, uint64_t id, const char *wanted) {
    char *name = shore__volume_own_name(home, (const uint64_t[2]){id, 1}, 0), path[200];
    assert_string_equal(name, wanted);
    snprintf(path, sizeof path, "/mnt/a/%s", name);
    named(path, 1, "/mnt/a");
    free(name);
}

static void names_follow_from_run_and_fleet(void **state) {
    is_called("/home/me/runs/a", 0x0123456789abcdefu, "longshore-a-01234567.volume");
    is_called("/runs/b c\xc3\xbc/", 0, "longshore-run-00000000.volume");
    is_called("/b c\xc3\xbc-1.x", 0xf0000000u, "longshore-b_c__-1.x-00000000.volume");
    is_called("/12345678901234567890123456789012345678901234567890", 0xffffffffffffffffu,
              "longshore-1234567890123456789012345678901234567890-ffffffff.volume");
}

static void endings_that_users_chose_stay(void **state) {
    named("/mnt/own.g1", 1, "/mnt/own.g1");
    named("/mnt/own.g3", 2, "/mnt/own.g3");
    assert_int_equal(mkdir("disk.g2", 0755), 0);
    named("disk.g2", 2, "disk.g2");
    named("disk.g2/longshore.volume.g2", 2, "disk.g2");
    static const char *const directories[] = {"disk.g2/longshore.volume", "disk.g2/longshore.volume.g3"};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(mkdir(directories[i], 0755), 0);
        named(directories[i], 2, directories[i]);
        assert_int_equal(rmdir(directories[i]), 0);
    }
    assert_false(shore__drive_is_named("/mnt/disk.g1", 1, "/mnt/disk.g2"));
    assert_false(shore__drive_is_named("/mnt/own", 2, "/mnt/own.g2"));
    struct shore__addresses list = {0};
    assert_int_equal(shore__addresses_parse(&list, "/mnt/own.g2", NULL), 0);
    assert_int_equal(shore__addresses_parse(&list, "/mnt/own", NULL), 0);
    assert_int_equal(shore__drive_find(&list, 2, "/mnt/own", 0), 1);
    shore__addresses_free(&list);
}

static void follows(const char *volume, uint64_t generation, const char *wanted) {
    struct shore__address *at, *next;
    assert_int_equal(shore__address_parse(volume, &at, NULL), 0);
    next = shore__volume_next(at, generation);
    assert_string_equal(next->text, wanted);
    free(at);
    free(next);
}

static void new_volumes_do_not_collide(void **state) {
    follows("longshore.volume", 2, "longshore.volume.g2");
    follows("longshore.volume.g2", 3, "longshore.volume.g3");
    follows("a.g2.g4", 5, "a.g2.g5");
    follows("a.g1", 2, "a.g1.g2");
    write_text("longshore.volume.g2", "of another run");
    follows("longshore.volume", 2, "longshore.volume.g3");
    unlink("longshore.volume.g2");
}

static void moved_to_here(const struct shore__run *run, const char *recorded, const char *wanted) {
    struct shore__address *here, *now;
    assert_int_equal(shore__address_parse("here", &here, NULL), 0);
    now = shore__drive_moved(run, recorded, here);
    assert_string_equal(now->text, wanted);
    free(now);
    free(here);
}

static void splits(const struct shore__run *run, const char *word, size_t drive, const char *to) {
    struct shore__move move = shore__move_split(run, word, 0);
    assert_int_equal(move.drive, drive);
    assert_string_equal(move.to ? move.to : "none", to);
}

static void old_is_a_drive_and_new_the_rest(void **state) {
    struct shore__run run = {.generation = 2};
    splits(&run, "a=b", 0, "b");
    assert_int_equal(shore__addresses_parse(&run.settings.drives, "/mnt/a=b", NULL), 0);
    assert_int_equal(shore__addresses_parse(&run.settings.drives, "/mnt/c/longshore.volume.g2", NULL), 0);
    splits(&run, "/mnt/a=b=c=d", 0, "c=d");
    splits(&run, "/mnt/c=ssh://far/c", 1, "ssh://far/c");
    splits(&run, "/mnt/c=", 1, "");
    splits(&run, "/mnt/a=c=d", 2, "d");
    splits(&run, "/mnt/c", 2, "none");
    shore__addresses_free(&run.settings.drives);
}

static void files_that_were_moved_are_found(void **state) {
    assert_int_equal(mkdir("here", 0755), 0);
    write_text("here/longshore.volume.g2", "x");
    const struct shore__run run = {.fleet_id = {1, 2}, .generation = 2};
    moved_to_here(&run, "/mnt/a/longshore.volume.g2", "here/longshore.volume.g2");
    moved_to_here(&run, "/mnt/a", "here");
    moved_to_here(&run, "/mnt/a/longshore.volume.g3", "here/longshore.volume.g3");
    moved_to_here(&run, "/mnt/a/longshore-b-00c0ffee.volume", "here/longshore-b-00c0ffee.volume");
    moved_to_here(&run, "unix:/s:longshore-b-00c0ffee.volume", "here/longshore-b-00c0ffee.volume");
    write_text("here/longshore.volume", "x"); /* renamed by hand */
    moved_to_here(&run, "/mnt/a/longshore-b-00c0ffee.volume", "here");
}

static void speeds_are_read(void **state) {
    struct shore_diag diag = {0};
    uint64_t speed[3];
    assert_ok(shore__speeds_parse("2,1,0.5", 3, speed, &diag));
    assert_int_equal(speed[0], 2 * speed[1]);
    assert_int_equal(speed[1], 2 * speed[2]);
    assert_ok(shore__speeds_parse("2.8GB,1.4GB", 2, speed, &diag));
    assert_int_equal(speed[0], 2 * speed[1]);
    static const char *const bad[] = {"",    "1",   "1,2,3", "1,,2",  "1,2,", "-1,2",
                                      "0,1", "x,1", "1,2GB", "1e3,1", "1 ,2", "999999999999999999999,1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (shore__speeds_parse(bad[i], 2, speed, &diag) != SHORE_EUSAGE) fail_msg("'%s' is taken", bad[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drives_are_known_by_the_name_they_were_given),
        cmocka_unit_test(a_directory_may_hold_several),
        cmocka_unit_test(names_follow_from_run_and_fleet),
        cmocka_unit_test(endings_that_users_chose_stay),
        cmocka_unit_test(new_volumes_do_not_collide),
        cmocka_unit_test(old_is_a_drive_and_new_the_rest),
        cmocka_unit_test(files_that_were_moved_are_found),
        cmocka_unit_test(speeds_are_read),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
