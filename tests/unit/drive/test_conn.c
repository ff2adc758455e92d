/* A connection whose descriptor takes nothing, and does not say that it would block, is broken: it is not asked again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "drive/remote/conn.h"

static bool takes_nothing;
static uint64_t asked;

/* in the place of libc's */
ssize_t writev(int fd, const struct iovec *parts, int nparts) {
    asked++;
    return takes_nothing ? 0 : write(fd, parts[0].iov_base, parts[0].iov_len);
}

static void what_takes_nothing_is_broken(void **state) {
    struct shore__conn conn;
    struct shore_diag diag = {0};
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    assert_int_equal(shore__conn_init(&conn, ends[0], ends[0], -1), 0);
    assert_int_equal(shore__conn_greet(&conn, &diag), 0);
    assert_int_equal(conn.out_bytes, SHORE__WIRE_GREETING_BYTES);
    takes_nothing = true;
    asked = 0;
    assert_int_equal(shore__conn_greet(&conn, &diag), SHORE_ELINK);
    assert_non_null(strstr(diag.text, "the connection broke"));
    assert_true(asked == 1 && conn.gone && conn.out_bytes == SHORE__WIRE_GREETING_BYTES);
    shore__conn_fini(&conn);
    close(ends[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_takes_nothing_is_broken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
