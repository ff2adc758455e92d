/* Whether a run can be made, asked before it is: the same refusals, and nothing changes. */
#include <errno.h>

#include "run/run.h"
#include "unit/run/of_program.h"

static char found[4096];

/* Of the scratch directory: every name, with its size and times. */
static const char *what_is_there(void) {
    FILE *f = popen("find . -printf '%p %s %i %T@ %C@\\n' | sort | cksum", "r");
    assert_non_null(f);
    size_t n = fread(found, 1, sizeof found - 1, f);
    found[n] = 0;
    pclose(f);
    return found;
}

static void asked(const char *path, const struct shore_fleet_options *options, int code, const char *says) {
    struct shore_diag diag = {0};
    const struct shore_run_making how = {.size = sizeof how, .fleet = options};
    char *before = strdup(what_is_there());
    assert_int_equal(shore_run_check(path, &how, &diag), code);
    if (code) assert_says(diag, says);
    assert_string_equal(what_is_there(), before);
    free(before);
}

static void refuses_what_create_refuses(void **state) {
    struct shore_diag diag = {0};
    struct shore_run *run = NULL;
    struct shore_fleet_options options = fleet_of_program(two_drives, 2);
    asked("a", &options, 0, "");
    asked("new/deep/a", &options, 0, "");
    assert_ok(begin_run("b", &options, &run, &diag));
    asked("b", &options, SHORE_EBUSY, "another process works on this run");
    assert_ok(shore_run_seal(run, 0, &diag));
    shore_run_close(run);
    asked("b", &options, SHORE_EEXISTS, "b: holds a run; open b to go on with it");
    asked("a", &options, 0, ""); /* beside it */
    options.overwrite = true;
    asked("b", &options, 0, "");

    char volume[512];
    snprintf(volume, sizeof volume, "%s", volume_in("drive1", ""));
    const char *const taken[] = {"drive0", volume}, *const missing[] = {"drive0", "typo"};
    const char *const twice[] = {"drive0", "drive1/../drive0/"}, *const file[] = {"file"};
    options.drives = taken;
    asked("a", &options, SHORE_EEXISTS, "/b, at step 0; name another path");
    asked("b", &options, 0, "");
    options.drives = missing;
    asked("a", &options, SHORE_EUSAGE, "typo");
    options.drives = twice;
    asked("a", &options, SHORE_EUSAGE, "given twice");
    options.ndrives = 0;
    asked("a", &options, SHORE_EUSAGE, "needs a drive");
    options = fleet_of_program(two_drives, 2);
    write_text("file", "");
    asked("file/a", &options, -ENOTDIR, "file");
    asked("file", &options, -ENOTDIR, "file");
    options.drives = file;
    options.ndrives = 1;
    asked("a", &options, 0, ""); /* an empty file may become a volume */
    assert_int_equal(mkdir("c", 0755), 0);
    write_text("c/config.json", "{}");
    options = fleet_of_program(two_drives, 2);
    asked("c", &options, SHORE_EEXISTS, "c: holds config.json");
    assert_ok(shore_run_remove("b", NULL, &diag));
}

static int group_open(void **state) {
    if (scratch_open(state) < 0) return -1;
    return mkdir("drive0", 0755) || mkdir("drive1", 0755) ? -1 : 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_what_create_refuses),
    };
    return cmocka_run_group_tests(tests, group_open, scratch_close);
}
