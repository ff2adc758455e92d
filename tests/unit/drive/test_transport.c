#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "drive/remote/transport.h"

static const struct {
    const char *uri;
    const char *host, *port, *path; /* unix: the socket instead of host */
    const char *error;              /* a part of the sentence */
} cases[] = {
    {"ssh://far/x", "far", NULL, "/x", NULL},
    {"ssh://me@far.example:2222/mnt/a b", "me@far.example", "2222", "/mnt/a b", NULL},
    {"ssh://[fe80::1%eth0]:22/x", "fe80::1%eth0", "22", "/x", NULL},
    {"ssh://far/../x", "far", NULL, "/../x", NULL}, /* the server says what it means */
    {"unix:/run/s", "/run/s", NULL, "", NULL},
    {"unix:s:a/b", "s", NULL, "a/b", NULL},
    {"ssh:far/x", NULL, NULL, NULL, "is ssh://[user@]host[:port]/abs/path"},
    {"ssh://far", NULL, NULL, NULL, "is ssh://[user@]host[:port]/abs/path"},
    {"ssh:///x", NULL, NULL, NULL, "no user and host"},
    {"ssh://@far/x", NULL, NULL, NULL, "no user and host"},
    {"ssh://-oProxyCommand=x/y", NULL, NULL, NULL, "no user and host"},
    {"ssh://-far/y", NULL, NULL, NULL, "no user and host"},
    {"ssh://-lroot@far/y", NULL, NULL, NULL, "no user and host"},
    {"ssh://me@-far/y", NULL, NULL, NULL, "no user and host"},
    {"ssh://me@[-far]/y", NULL, NULL, NULL, "no user and host"},
    {"ssh://far$(reboot)/y", NULL, NULL, NULL, "no user and host"},
    {"ssh://far;reboot/y", NULL, NULL, NULL, "no user and host"},
    {"ssh://f\xc3\xa4r/y", NULL, NULL, NULL, "no user and host"},
    {"ssh://[::1]x/y", NULL, NULL, NULL, "no user and host"},
    {"ssh://[::1/y", NULL, NULL, NULL, "no user and host"},
    {"ssh://far:/y", NULL, NULL, NULL, "the port"},
    {"ssh://far:0/y", NULL, NULL, NULL, "the port"},
    {"ssh://far:65536/y", NULL, NULL, NULL, "the port"},
    {"ssh://far:-1/y", NULL, NULL, NULL, "the port"},
    {"ssh://far:22x/y", NULL, NULL, NULL, "the port"},
    {"ssh://far/x\n", NULL, NULL, NULL, "control characters"},
    {"ssh://far/\x1b[31m", NULL, NULL, NULL, "\\x1b[31m: a path with control characters"},
    {"unix:", NULL, NULL, NULL, "unix:SOCKET[:PATH]"},
    {"unix::a", NULL, NULL, NULL, "unix:SOCKET[:PATH]"},
    {"unix:/an/address/of/a/socket/has/a/hundred/and/seven/characters/at/most/and/this/one/is/longer/than/that/by/some/"
     "of/them",
     NULL, NULL, NULL, "at most 107"},
};

static void where_drives_are(void **state) {
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct shore__place place;
        struct shore_diag diag = {""};
        int rc = shore__place_parse(cases[c].uri, &place, &diag);
        if (cases[c].error) {
            if (rc != SHORE_EUSAGE || !strstr(diag.text, cases[c].error))
                fail_msg("%s: %d, %s", cases[c].uri, rc, diag.text);
            continue;
        }
        if (rc) fail_msg("%s: %s", cases[c].uri, diag.text);
        assert_string_equal(place.ssh ? place.host : place.socket, cases[c].host);
        assert_string_equal(place.path, cases[c].path);
        assert_string_equal(place.port ? place.port : "", cases[c].port ? cases[c].port : "");
        shore__place_free(&place);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(where_drives_are)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
