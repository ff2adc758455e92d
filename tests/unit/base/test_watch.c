/* A watch of a device: what it notes, whom it keeps waiting, and that nobody waits for ever. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/events.h"
#include "moments.h"

/* A watch that is left behind may use its device for a while. */
static struct moments devices[9], *m = devices; /* [0] is none */
static struct shore_diag diag;

static void open_watched(void) {
    moments_open(++m);
    assert_int_equal(shore_device_watch(&m->device, &diag), 0);
}
static void close_watched(void) {
    shore_device_unwatch(&m->device);
    assert_null(m->device.watch);
    moments_close(m);
}

static struct shore_event called(void) {
    return moments_copy(m, NULL, NULL, 0);
}

/* Until somebody waits for the device. */
static void until_waited_for(uint64_t waits) {
    pthread_mutex_lock(&m->mutex);
    while (m->waits < waits)
        pthread_cond_wait(&m->changed, &m->mutex);
    pthread_mutex_unlock(&m->mutex);
}

static void what_is_expected_is_waited_for_in_order(void **state) {
    open_watched();
    struct shore_event first = called(), second = called(), third = called();
    shore__device_expect(&m->device, first);
    shore__device_expect(&m->device, second);
    until_waited_for(1);
    assert_false(shore_device_passed(&m->device, first));
    moments_pass(m, 1);
    until_waited_for(2);
    assert_true(shore_device_passed(&m->device, first));
    assert_false(shore_device_passed(&m->device, second));
    moments_pass(m, 3);
    assert_int_equal(shore_device_wait(&m->device, third, &diag), 0); /* which nobody expected */
    assert_true(shore_device_passed(&m->device, second));
    uint64_t waits = m->waits;
    assert_int_equal(shore_device_wait(&m->device, first, &diag), 0);
    assert_int_equal(m->waits, waits);
    close_watched();
}

static void what_passes_by_itself_is_noted_while_nobody_asks(void **state) {
    open_watched();
    m->by_itself = true;
    struct shore_event event = called();
    shore__device_expect(&m->device, event);
    until_waited_for(1);
    assert_int_equal(shore_device_wait(&m->device, event, &diag), 0);
    assert_int_equal(m->waits, 1);
    close_watched();
}

static void a_failure_is_told_to_all(void **state) {
    open_watched();
    m->by_itself = true;
    m->failed = -EIO;
    struct shore_event first = called(), second = called();
    assert_int_equal(shore_device_wait(&m->device, first, &diag), -EIO);
    assert_string_equal(diag.text, "a copy has failed");
    diag.text[0] = 0;
    assert_int_equal(shore_device_wait(&m->device, second, &diag), -EIO);
    assert_string_equal(diag.text, "a copy has failed");
    close_watched();
}

/* Also if the device's own wait does not come back in time. */
static void a_device_that_does_not_go_on_is_lost(void **state) {
    for (int stuck = 0; stuck < 2; stuck++) {
        open_watched();
        m->stuck = stuck;
        m->device.timeout_ns = 20000000;
        struct shore_event event = called();
        assert_int_equal(shore_device_wait(&m->device, event, &diag), -ETIMEDOUT);
        assert_non_null(strstr(diag.text, "0.02 seconds"));
        assert_true(m->device.lost);
        assert_false(shore_device_passed(&m->device, event));
        assert_int_equal(shore_device_wait(&m->device, event, &diag), -ETIMEDOUT);
        shore_device_unwatch(&m->device); /* does not wait for what waits */
        shore_device_unwatch(&m->device);
        moments_pass(m, 1);
    }
}

static void a_watch_that_nobody_asked_ends(void **state) {
    open_watched();
    close_watched();
    open_watched();
    m->device.timeout_ns = 20000000;
    shore__device_expect(&m->device, called());
    until_waited_for(1);
    shore_device_unwatch(&m->device);
}

static int wait_and_unwatch(void *ctx, struct shore_event event, uint64_t timeout_ns, struct shore_diag *why) {
    struct moments *of = ctx;
    if (timeout_ns) shore_device_unwatch(&of->device);
    return moments_wait(ctx, event, timeout_ns, why);
}

/* As a garbage collector may do that runs within the device's wait. */
static void a_watch_may_end_itself(void **state) {
    open_watched();
    m->by_itself = true;
    m->device.wait = wait_and_unwatch;
    shore__device_expect(&m->device, called());
    until_waited_for(1);
    assert_null(m->device.watch);
    shore_device_unwatch(&m->device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_expected_is_waited_for_in_order),
        cmocka_unit_test(what_passes_by_itself_is_noted_while_nobody_asks),
        cmocka_unit_test(a_failure_is_told_to_all),
        cmocka_unit_test(a_device_that_does_not_go_on_is_lost),
        cmocka_unit_test(a_watch_that_nobody_asked_ends),
        cmocka_unit_test(a_watch_may_end_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
