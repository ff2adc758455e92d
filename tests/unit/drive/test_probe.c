#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "drive/probe/probe.h"

#define PROBES 5000
#define THREADS 2

static char path[] = "/var/tmp/shore-probe-XXXXXX";
static struct shore__address *at;

static bool is_busy(void) {
    struct shore__probe probe;
    struct shore_diag diag;
    if (shore__drive_probe(at, &probe, &diag)) fail_msg("%s", diag.text);
    bool busy = probe.busy;
    shore__probe_free(&probe);
    return busy;
}

static void *look_on_and_on(void *busy) {
    for (int i = 0; i < PROBES; i++)
        if (is_busy()) atomic_fetch_add((atomic_uint *)busy, 1);
    return NULL;
}

static void who_looks_is_not_in_the_way(void **state) {
    (void)state;
    pthread_t threads[THREADS];
    atomic_uint busy;
    atomic_init(&busy, 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, look_on_and_on, &busy), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&busy), 0);
}

static void who_works_on_it_is(void **state) {
    (void)state;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (int how = 0; how < 2; how++) {
        assert_int_equal(flock(fd, how ? LOCK_EX : LOCK_SH), 0);
        assert_true(is_busy());
    }
    close(fd);
    assert_false(is_busy());
}

static void a_name_too_long_has_never_been_a_file(void **state) {
    (void)state;
    const uint64_t fleet_id[2] = {1, 2};
    char name[300] = "/var/tmp/";
    memset(name + strlen(name), 'n', 256);
    struct shore__address *long_name;
    assert_int_equal(shore__address_parse(name, &long_name, NULL), 0);
    assert_int_equal(shore__drive_remove(long_name, fleet_id, SHORE__ANY_GENERATION, true, NULL), SHORE_EMISSING);
    free(long_name);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_looks_is_not_in_the_way),
        cmocka_unit_test(who_works_on_it_is),
        cmocka_unit_test(a_name_too_long_has_never_been_a_file),
    };
    int fd = mkstemp(path);
    if (fd < 0 || shore__address_parse(path, &at, NULL)) return 1;
    close(fd);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    free(at);
    return failed;
}
