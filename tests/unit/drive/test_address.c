#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "drive/address.h"

static const struct {
    const char *text;
    const char *server, *port, *path; /* ssh: the host; unix: the socket */
    const char *error;                /* a part of the sentence */
} cases[] = {
    {"ssh://far/x", "far", NULL, "/x", NULL},
    {"ssh://me@far.example:2222/mnt/a b", "me@far.example", "2222", "/mnt/a b", NULL},
    {"ssh://[fe80::1%eth0]:22/x", "fe80::1%eth0", "22", "/x", NULL},
    {"ssh://far/../x", "far", NULL, "/../x", NULL}, /* the server says what it means */
    {"unix:/run/s", "/run/s", NULL, "", NULL},
    {"unix:s:a/b", "s", NULL, "a/b", NULL},
    {"ram:", NULL, NULL, "", NULL},
    {"/mnt/a\n", NULL, NULL, "/mnt/a\n", NULL}, /* files may be called so */
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
        struct shore__address at;
        struct shore_diag diag = {""};
        int rc = shore__address_parse(cases[c].text, &at, &diag);
        if (cases[c].error) {
            if (rc != SHORE_EUSAGE || !strstr(diag.text, cases[c].error))
                fail_msg("%s: %d, %s", cases[c].text, rc, diag.text);
            assert_null(at.text);
            continue;
        }
        if (rc) fail_msg("%s: %s", cases[c].text, diag.text);
        const char *server = at.host ? at.host : at.socket;
        assert_string_equal(at.text, cases[c].text);
        assert_string_equal(server ? server : "", cases[c].server ? cases[c].server : "");
        assert_string_equal(at.path, cases[c].path);
        assert_string_equal(at.port ? at.port : "", cases[c].port ? cases[c].port : "");
        assert_int_equal(at.kind->remote, server != NULL);
        shore__address_free(&at);
    }
}

static void kinds(void **state) {
    static const struct {
        const char *text;
        enum shore__kind_id id;
        bool keeps, has_file, remote, here;
    } rows[] = {
        {"ram:", SHORE__KIND_RAM, false, false, false, true},
        {"null:", SHORE__KIND_NULL, false, false, false, true},
        {"ram", SHORE__KIND_FILE, true, true, false, true},
        {"ram:x", SHORE__KIND_FILE, true, true, false, true},
        {"", SHORE__KIND_FILE, true, true, false, true},
        {"/dev/sda", SHORE__KIND_FILE, true, true, false, true},
        {"unix", SHORE__KIND_FILE, true, true, false, true},
        {"unix:s:p", SHORE__KIND_UNIX, true, false, true, true},
        {"./ssh://h/x", SHORE__KIND_FILE, true, true, false, true},
        {"ssh://h/x", SHORE__KIND_SSH, true, false, true, false},
        {"ssh:", SHORE__KIND_SSH, true, false, true, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct shore__kind *k = shore__kind_of(rows[i].text);
        if (k->id != rows[i].id || k->keeps != rows[i].keeps || k->has_file != rows[i].has_file ||
            k->remote != rows[i].remote || k->here != rows[i].here)
            fail_msg("'%s' is of kind %d", rows[i].text, (int)k->id);
    }
}

static void servers_that_are_shared(void **state) {
    assert_true(shore__address_shares_server("ssh://h/a", "ssh://h/b"));
    assert_true(shore__address_shares_server("unix:s", "unix:s:b"));
    assert_false(shore__address_shares_server("ssh://h/a", "ssh://u@h/a"));
    assert_false(shore__address_shares_server("ssh://h/a", "ssh://h:22/a"));
    assert_false(shore__address_shares_server("unix:s:a", "unix:t:a"));
    assert_false(shore__address_shares_server("ssh://h/a", "ssh:h"));
    assert_false(shore__address_shares_server("/a", "/a"));
    assert_false(shore__address_shares_server("ram:", "ram:"));
}

static void is(char *made, const char *expected) {
    if (!made) fail_msg("nothing was made, not %s", expected);
    assert_string_equal(made, expected);
    free(made);
}

static void made_of_others(void **state) {
    char here[4096], expected[4200];
    is(shore__address_in("/d", "f"), "/d/f");
    is(shore__address_in("ssh://h/d", "f"), "ssh://h/d/f");
    is(shore__address_in("unix:s", "f"), "unix:s:f");
    is(shore__address_in("unix:s:d", "f"), "unix:s:d/f");
    is(shore__address_beside("/d", "/e/f"), "/e/f");
    is(shore__address_beside("ssh://u@h:2/d", "/e/f"), "ssh://u@h:2/e/f");
    is(shore__address_beside("unix:s", "/e/f"), "unix:s:/e/f");
    is(shore__address_beside("unix:s:d", "/e/f"), "unix:s:/e/f");
    assert_null(shore__address_beside("ssh:h", "/e/f"));
    assert_non_null(getcwd(here, sizeof here));
    is(shore__address_absolute("ram:"), "ram:");
    is(shore__address_absolute("ssh://h/../d"), "ssh://h/../d");
    is(shore__address_absolute("unix:/s:d"), "unix:/s:d");
    snprintf(expected, sizeof expected, "unix:%s/not-there:d", here);
    is(shore__address_absolute("unix:not-there:d"), expected);
    snprintf(expected, sizeof expected, "%s/not-there", here);
    is(shore__address_absolute("./not-there"), expected);
    is(shore__address_absolute("."), here);
    assert_null(shore__address_absolute("not-there/either"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(where_drives_are), cmocka_unit_test(kinds),
                                       cmocka_unit_test(servers_that_are_shared), cmocka_unit_test(made_of_others)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
