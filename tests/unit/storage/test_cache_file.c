/* Cache files: made beside a volume, one process's at a time, replaced when stale, gone when done. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "storage/cache_file.h"

static char directory[] = "/tmp/shore-cache-XXXXXX", volume[64], path[80];
static const uint64_t fleet[2] = {7, 8};

static int setup(void **state) {
    if (!mkdtemp(directory)) return -1;
    snprintf(volume, sizeof volume, "%s/longshore.volume", directory);
    snprintf(path, sizeof path, "%s.cache", volume);
    return 0;
}

static int teardown(void **state) {
    unlink(path);
    return rmdir(directory);
}

static void make(struct shore__file *file) {
    struct shore_diag diag = {0};
    if (shore__cache_file_make(volume, fleet, 65536, SHORE_IO_THREADS, file, &diag)) fail_msg("%s", diag.text);
}

static void made_and_gone(void **state) {
    struct shore__file file, other = {.fd = -1};
    struct stat st;
    struct shore_diag diag;
    char magic[16];
    make(&file);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 4096 + 65536);
    int fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, magic, sizeof magic), sizeof magic);
    assert_memory_equal(magic, "\x89LongshoreCache\n", sizeof magic);
    close(fd);
    assert_int_equal(shore__cache_file_make(volume, fleet, 4096, SHORE_IO_THREADS, &other, &diag), SHORE_EBUSY);
    shore__cache_file_sweep(volume); /* somebody has it */
    assert_int_equal(access(path, F_OK), 0);
    shore__cache_file_remove(&file);
    assert_int_equal(access(path, F_OK), -1);
    shore__cache_file_remove(&file);
    shore__cache_file_remove(&other);
}

/* Its maker ends without a word. */
static void leave_one(void) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct shore__file file;
        _exit(shore__cache_file_make(volume, fleet, 65536, SHORE_IO_THREADS, &file, NULL) ? 1 : 0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(access(path, F_OK), 0);
}

static void stale_ones(void **state) {
    struct shore__file file;
    struct stat st;
    leave_one();
    assert_int_equal(shore__cache_file_make(volume, fleet, 8192, SHORE_IO_THREADS, &file, NULL), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 4096 + 8192);
    shore__cache_file_remove(&file);
    leave_one();
    shore__cache_file_sweep(volume);
    assert_int_equal(access(path, F_OK), -1);
    shore__cache_file_sweep(volume);
}

static void strangers_stay(void **state) {
    struct shore__file file;
    struct shore_diag diag = {0};
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(write(fd, "a letter to a friend", 20), 20);
    close(fd);
    assert_int_equal(shore__cache_file_make(volume, fleet, 4096, SHORE_IO_THREADS, &file, &diag), SHORE_EEXISTS);
    assert_non_null(strstr(diag.text, "move it away"));
    shore__cache_file_sweep(volume);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 20);
    unlink(path);
}

static void too_large_is_refused(void **state) {
    struct shore__file file;
    struct shore_diag diag = {0};
    assert_int_equal(shore__cache_file_make(volume, fleet, UINT64_C(1) << 60, SHORE_IO_THREADS, &file, &diag), -ENOSPC);
    assert_int_equal(access(path, F_OK), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(made_and_gone), cmocka_unit_test(stale_ones),
                                       cmocka_unit_test(strangers_stay), cmocka_unit_test(too_large_is_refused)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
