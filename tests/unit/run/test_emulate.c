/* The machine that --emulate names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run/emulation/emulate.h"

static int opened(const char *text, struct shore_diag *diag) {
    char path[] = "/tmp/shore-emulate-XXXXXX";
    struct shore_machine *m = NULL;
    int fd = mkstemp(path);
    assert_int_equal(write(fd, text, strlen(text)), (int)strlen(text));
    close(fd);
    int rc = shore__emulation_open(path, &m, diag);
    unlink(path);
    assert_true((m != NULL) == !rc);
    shore_machine_free(m);
    return rc;
}

static void what_slows_down_nothing_is_refused(void **state) {
    struct shore_diag diag = {0};
    assert_int_equal(opened("{\"link\": {\"in\": 5}}", &diag), 0);
    assert_int_equal(opened("{\"compute\": {\"backward\": 5}}", &diag), 0);
    assert_int_equal(opened("{\"host-update\": {\"buffers\": 5}}", &diag), 0);
    assert_int_equal(opened("{\"host\": {\"cores\": 5}}", &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "sets no limit"));
}

static void what_is_no_file_is_named(void **state) {
    struct shore_machine *m;
    struct shore_diag diag = {0};
    assert_int_equal(shore__emulation_open("no-machine", &m, &diag), SHORE_EUSAGE);
    assert_non_null(strstr(diag.text, "no-machine is not a file"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_slows_down_nothing_is_refused),
        cmocka_unit_test(what_is_no_file_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
