#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "storage/whereabouts.h"

static char place[] = "/var/tmp/shore-where-XXXXXX";

static struct shore__whereabouts of(const char *path) {
    struct shore__whereabouts w;
    struct shore_diag diag;
    if (shore__whereabouts(path, &w, &diag)) fail_msg("%s", diag.text);
    return w;
}

static void root_is_known_as_such(void **state) {
    (void)state;
    struct shore__whereabouts w = of("/");
    struct stat st;
    struct statfs fs;
    assert_int_equal(stat("/", &st), 0);
    assert_int_equal(statfs("/", &fs), 0);
    assert_true(w.is_root);
    assert_string_equal(w.mount_point, "/");
    assert_true(w.device[0] && w.file_system[0]);
    assert_int_equal(w.device_id, st.st_dev);
    assert_int_equal(w.total_bytes, (uint64_t)fs.f_blocks * (uint64_t)fs.f_frsize);
    assert_true(w.free_bytes <= w.total_bytes);
    if (major(st.st_dev)) { /* else not a device of its own: a container's */
        char node[128];
        snprintf(node, sizeof node, "/sys/block/%s", w.disk);
        assert_true(w.disk[0] && access(node, F_OK) == 0);
    }
}

static void what_is_not_there_lies_where_its_directory_does(void **state) {
    (void)state;
    char file[128], below[160];
    snprintf(file, sizeof file, "%s/new.volume", place);
    snprintf(below, sizeof below, "%s/there/is/none", place);
    struct shore__whereabouts directory = of(place), w = of(file), other;
    struct shore_diag diag;
    assert_int_equal(w.device_id, directory.device_id);
    assert_string_equal(w.mount_point, directory.mount_point);
    assert_string_equal(w.device, directory.device);
    assert_true(shore__whereabouts_share(&w, &directory));
    assert_int_equal(shore__whereabouts(below, &other, &diag), -ENOENT);
    assert_non_null(strstr(diag.text, below));
}

static void memory_is_told_from_disks(void **state) {
    (void)state;
    struct statfs fs;
    if (statfs("/dev/shm", &fs) || fs.f_type != TMPFS_MAGIC) skip();
    struct shore__whereabouts w = of("/dev/shm"), root = of("/");
    char text[512];
    assert_int_equal(w.ground, SHORE__GROUND_MEMORY);
    assert_string_equal(w.file_system, "tmpfs");
    assert_string_equal(w.mount_point, "/dev/shm");
    assert_string_equal(w.disk, "");
    assert_false(w.is_root);
    assert_false(shore__whereabouts_share(&w, &root));
    shore__whereabouts_text(&w, text, sizeof text);
    assert_non_null(strstr(text, " (tmpfs on /dev/shm), "));
    assert_non_null(strstr(text, " free"));
}

static void a_block_device_is_one_itself(void **state) {
    (void)state;
    struct stat st;
    if (stat("/dev/loop0", &st) || !S_ISBLK(st.st_mode)) skip();
    struct shore__whereabouts w = of("/dev/loop0");
    assert_int_equal(w.ground, SHORE__GROUND_DEVICE);
    assert_string_equal(w.device, "/dev/loop0");
    assert_int_equal(w.device_id, st.st_rdev);
    assert_string_equal(w.file_system, "");
    assert_false(w.is_root);
}

static void parts_of_a_disk_share_it(void **state) {
    (void)state;
    struct shore__whereabouts a = {.device_id = 1, .disk = "sda"}, b = {.device_id = 2, .disk = "sda"};
    assert_true(shore__whereabouts_share(&a, &b));
    strcpy(b.disk, "sdb");
    assert_false(shore__whereabouts_share(&a, &b));
    a.disk[0] = b.disk[0] = '\0'; /* not known: no sign of anything */
    assert_false(shore__whereabouts_share(&a, &b));
    b.device_id = 1;
    assert_true(shore__whereabouts_share(&a, &b));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(root_is_known_as_such),     cmocka_unit_test(what_is_not_there_lies_where_its_directory_does),
        cmocka_unit_test(memory_is_told_from_disks), cmocka_unit_test(a_block_device_is_one_itself),
        cmocka_unit_test(parts_of_a_disk_share_it),
    };
    if (!mkdtemp(place)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(place);
    return failed;
}
