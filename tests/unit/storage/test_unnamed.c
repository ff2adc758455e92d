/* Files that measuring uses: nobody sees them, and nothing of them is left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "longshore/state.h"
#include "storage/rate.h"

static char place[] = "/var/tmp/shore-unnamed-XXXXXX";

static unsigned entries(void) {
    DIR *d = opendir(place);
    unsigned n = 0;
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void a_file_without_a_name_is_in_no_directory(void **state) {
    struct shore__file file;
    struct shore_diag diag = {0};
    struct stat st;
    char path[128];
    snprintf(path, sizeof path, "%s/x", place);
    if (shore__file_create_unnamed(path, 1 << 20, SHORE_IO_AUTO, &file, &diag)) fail_msg("%s", diag.text);
    assert_int_equal(entries(), 0);
    assert_int_equal(file.size_bytes, 1 << 20);
    assert_int_equal(fstat(file.fd, &st), 0);
    assert_int_equal(st.st_nlink, 0);
    shore__file_close(&file);
    assert_true(shore__file_create_unnamed("/none/x/y", 1 << 20, SHORE_IO_AUTO, &file, &diag) < 0);
    (void)shore__files_share_blocks(path);
    assert_false(shore__files_share_blocks("/none/x/y"));
    assert_int_equal(entries(), 0);
}

static void every_pass_moves_what_it_says(void **state) {
    struct shore__rate r;
    struct shore_diag diag = {0};
    char path[128];
    snprintf(path, sizeof path, "%s/x", place);
    if (shore__rate_open_unnamed(&r, path, UINT64_C(3) << 20, 1, 3, SHORE_IO_AUTO, &diag)) fail_msg("%s", diag.text);
    const uint64_t half = r.nchunks * r.chunk_bytes;
    assert_true(half > 0 && r.file.size_bytes == 2 * half);
    assert_int_equal(shore__rate_fill(&r, &diag), 0);
    assert_int_equal(r.moved_bytes, 2 * half);
    assert_int_equal(shore__rate_read(&r, &diag), 0);
    assert_int_equal(r.moved_bytes, 4 * half);
    assert_int_equal(shore__rate_pass(&r, true, &diag), 0);
    assert_int_equal(r.moved_bytes, 6 * half);
    assert_int_equal(shore__rate_pass(&r, false, &diag), 0);
    assert_int_equal(r.moved_bytes, 8 * half);
    assert_int_equal(entries(), 0);
    shore__rate_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_without_a_name_is_in_no_directory),
        cmocka_unit_test(every_pass_moves_what_it_says),
    };
    if (!mkdtemp(place)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(place);
    return failed;
}
