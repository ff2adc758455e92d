/* Answers of a server: the sentence of an error and what may be done about it, also of a server without advice. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/remote/wire.h"

static int get(const unsigned char *body, uint32_t bytes, struct shore__wire_answer *a) {
    struct shore_diag diag;
    const struct shore__wire_header h = {.type = SHORE__WIRE_DONE, .body_bytes = bytes};
    return shore__wire_answer_get(&h, body, a, &diag);
}

static void advice_arrives(void **state) {
    unsigned char body[SHORE__WIRE_ANSWER_MOST];
    struct shore__wire_answer a;
    struct shore_diag sent, diag;
    char run[sizeof sent.of + 100];
    memset(run, 'r', sizeof run - 1);
    run[sizeof run - 1] = '\0';
    shore__advise(&sent, shore__fail(&sent, SHORE_EEXISTS, "/a: exists already"), SHORE_ADVICE_GO_ON, run);
    assert_int_equal(strlen(sent.of), sizeof sent.of - 1);
    uint32_t bytes = shore__wire_answer_put(body, SHORE_EEXISTS, &sent);
    assert_true(bytes <= sizeof body);
    assert_int_equal(get(body, bytes, &a), 0);
    assert_int_equal(shore__wire_answer_fail(&a, "ssh://far/a", &diag), SHORE_EEXISTS);
    assert_string_equal(diag.text, "ssh://far/a: /a: exists already");
    assert_int_equal(diag.advice, SHORE_ADVICE_GO_ON);
    assert_string_equal(diag.of, sent.of);
    /* cut anywhere within the advice it is no answer */
    for (uint32_t cut = bytes - (uint32_t)strlen(sent.of) - 7; cut < bytes; cut++)
        assert_int_equal(get(body, cut, &a), SHORE_ELINK);
}

static void who_gives_none_is_understood(void **state) {
    unsigned char body[SHORE__WIRE_ANSWER_MOST];
    struct shore__wire_answer a;
    struct shore_diag diag, sent;
    shore__fail(&sent, SHORE_EMISSING, "is missing");
    uint32_t bytes = shore__wire_answer_put(body, SHORE_EMISSING, &sent);
    assert_int_equal(bytes, SHORE__WIRE_ANSWER_BYTES + strlen("is missing"));
    assert_int_equal(get(body, bytes, &a), 0);
    assert_int_equal(shore__wire_answer_fail(&a, NULL, &diag), SHORE_EMISSING);
    assert_string_equal(diag.text, "is missing");
    assert_int_equal(diag.advice, SHORE_ADVICE_NONE);
    /* a newer server's */
    shore__advise(&sent, 0, SHORE_ADVICE_COUNT, "x");
    bytes = shore__wire_answer_put(body, SHORE_EMISSING, &sent);
    assert_int_equal(get(body, bytes, &a), 0);
    shore__wire_answer_fail(&a, NULL, &diag);
    assert_int_equal(diag.advice, SHORE_ADVICE_NONE);
    /* what is no error brings results, whatever they look like */
    bytes = shore__wire_answer_put(body, 0, NULL);
    memset(body + bytes, 0xFF, 3);
    assert_int_equal(get(body, bytes + 3, &a), 0);
    assert_int_equal(a.result_bytes, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(advice_arrives),
                                       cmocka_unit_test(who_gives_none_is_understood)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
