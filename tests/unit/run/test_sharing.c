/* Runs whose volumes lie in one directory. */
#include "run/paths.h"
#include "unit/run/made_runs.h"

/* Of what another run has in the same directory, nothing is ever touched. */
static void runs_share_a_directory(void **state) {
    struct shore_diag diag = {0};
    struct shore__settings s, old;
    struct shore__run *run = NULL;
    char of_b[512];
    settings_of(&s, "drive");
    shore__run_close(make("b", &s, false));
    snprintf(of_b, sizeof of_b, "%s", volume_in("drive", ""));
    assert_true(strncmp(of_b, "drive/longshore-b-", 18) == 0);
    assert_true(mkdir("other", 0755) == 0 && mkdir("drive9", 0755) == 0);
    static const char *const paths[] = {"a", "other/b", "a name\twith \xc3\xbc"};
    for (size_t i = 0; i < 3; i++) {
        assert_ok(prepare(paths[i], &s, false, &run, &diag));
        fill(run, false);
        abandon(run);
        shore__run_close(make(paths[i], &s, false));
        shore__run_close(make(paths[i], &s, true));
        assert_ok(prepare(paths[i], &s, true, &run, &diag));
        fill(run, true);
        abandon(run); /* half replaced */
        shore__run_close(make(paths[i], &s, true));
        assert_ok(shore__run_open(paths[i], true, NULL, &run, &diag));
        assert_ok(opens_fleet(run, &diag));
        shore__run_close(run);
        assert_ok(shore__run_remove(paths[i], &begun, NULL, NULL, &diag));
        assert_string_equal(volume_in("drive", ""), of_b); /* it is alone there */
    }
    assert_ok(shore__run_open("b", true, NULL, &run, &diag));
    assert_ok(opens_fleet(run, &diag));
    shore__run_close(run);

    /* a run that was made before volumes had names of their own opens, and has one once it is overwritten */
    settings_of(&old, "drive9");
    assert_ok(prepare("c", &old, false, &run, &diag));
    drive_becomes(&run->settings, "drive9");
    struct shore__address *absolute;
    assert_ok(shore__drive_absolute(run->settings.drives.item[0], &absolute, &diag));
    shore__addresses_put(&run->settings.drives, 0, absolute);
    fill(run, false);
    assert_ok(shore__run_finish(run, run->fleet_id, "a processor, 2 threads", NULL, NULL, &diag));
    shore__run_close(run);
    assert_string_equal(volume_in("drive9", ""), "drive9/longshore.volume");
    shore__run_close(make("a", &old, false));
    shore__run_close(make("c", &old, true));
    assert_false(exists("drive9/longshore.volume"));
    assert_ok(shore__run_open("c", true, NULL, &run, &diag));
    assert_ok(opens_fleet(run, &diag));
    shore__run_close(run);
    assert_ok(shore__run_remove("a", &begun, NULL, NULL, &diag));
    assert_non_null(strstr(volume_in("drive9", ""), "drive9/longshore-c-"));
    assert_ok(shore__run_remove("c", &begun, NULL, NULL, &diag));
    assert_false(has_volume("drive9"));
    removed("b");
    shore__settings_free(&s);
    shore__settings_free(&old);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_share_a_directory),
    };
    return cmocka_run_group_tests(tests, group_open, scratch_close);
}
