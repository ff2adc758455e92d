#include <errno.h>
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
    {"opencl:/mnt/a b", NULL, NULL, "/mnt/a b", NULL},
    {"opencl:", NULL, NULL, NULL, "where is its storage?"},
    {"/mnt/a\n", NULL, NULL, "/mnt/a\n", NULL}, /* files may be called so */
    {"ssh:far/x", NULL, NULL, NULL, "is ssh://[user@]host[:port]/abs/path"},
    {"ssh://far", NULL, NULL, NULL, "is ssh://[user@]host[:port]/abs/path"},
    {"ssh:///x", NULL, NULL, NULL, "a user and a host consist of"},
    {"ssh://@far/x", NULL, NULL, NULL, "a user and a host consist of"},
    {"ssh://-oProxyCommand=x/y", NULL, NULL, NULL, "a user and a host consist of"},
    {"ssh://-far/y", NULL, NULL, NULL, "a user and a host consist of"},
    {"ssh://-lroot@far/y", NULL, NULL, NULL, "a user and a host consist of"},
    {"ssh://me@-far/y", NULL, NULL, NULL, "a user and a host consist of"},
    {"ssh://me@[-far]/y", NULL, NULL, NULL, "a user and a host consist of"},
    {"ssh://far$(reboot)/y", NULL, NULL, NULL, "a user and a host consist of"},
    {"ssh://far;reboot/y", NULL, NULL, NULL, "a user and a host consist of"},
    {"ssh://f\xc3\xa4r/y", NULL, NULL, NULL, "a user and a host consist of"},
    {"ssh://[::1]x/y", NULL, NULL, NULL, "a user and a host consist of"},
    {"ssh://[::1/y", NULL, NULL, NULL, "a user and a host consist of"},
    {"ssh://far:/y", NULL, NULL, NULL, "the port"},
    {"ssh://far:0/y", NULL, NULL, NULL, "the port"},
    {"ssh://far:65536/y", NULL, NULL, NULL, "the port"},
    {"ssh://far:-1/y", NULL, NULL, NULL, "the port"},
    {"ssh://far:22x/y", NULL, NULL, NULL, "the port"},
    {"ssh://far/x\n", NULL, NULL, NULL, "control characters"},
    {"ssh://far/\x1b[31m", NULL, NULL, NULL, "\\x1b[31m: the path has control characters"},
    {"unix:", NULL, NULL, NULL, "unix:SOCKET[:PATH]"},
    {"unix::a", NULL, NULL, NULL, "unix:SOCKET[:PATH]"},
    {"unix:/an/address/of/a/socket/has/a/hundred/and/seven/characters/at/most/and/this/one/is/longer/than/that/by/some/"
     "of/them",
     NULL, NULL, NULL, "at most 107"},
};

static void where_drives_are(void **state) {
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct shore__address *at;
        struct shore_diag diag = {0};
        int rc = shore__address_parse(cases[c].text, &at, &diag);
        if (cases[c].error) {
            if (rc != SHORE_EUSAGE || !strstr(diag.text, cases[c].error))
                fail_msg("%s: %d, %s", cases[c].text, rc, diag.text);
            assert_null(at);
            continue;
        }
        if (rc) fail_msg("%s: %s", cases[c].text, diag.text);
        const char *server = at->host ? at->host : at->socket;
        assert_string_equal(at->text, cases[c].text);
        assert_string_equal(server ? server : "", cases[c].server ? cases[c].server : "");
        assert_string_equal(at->path, cases[c].path);
        assert_string_equal(at->port ? at->port : "", cases[c].port ? cases[c].port : "");
        assert_int_equal(at->kind->served, server != NULL);
        free(at);
    }
}

static void kinds(void **state) {
    static const struct {
        const char *text;
        enum shore__kind_id id;
        bool keeps, has_file, served, here;
    } rows[] = {
        {"opencl:/x", SHORE__KIND_OPENCL, true, true, false, true},
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
            k->served != rows[i].served || k->away != rows[i].served || k->here != rows[i].here)
            fail_msg("'%s' is of kind %d", rows[i].text, (int)k->id);
    }
}

static struct shore__address *at(const char *text) {
    struct shore__address *a;
    assert_int_equal(shore__address_parse(text, &a, NULL), 0);
    return a;
}

static void shares(const char *a, const char *b, bool server) {
    struct shore__address *one = at(a), *other = at(b);
    if (shore__address_shares_server(one, other) != server) fail_msg("%s and %s", a, b);
    free(one);
    free(other);
}

static void servers_that_are_shared(void **state) {
    shares("ssh://h/a", "ssh://h/b", true);
    shares("unix:s", "unix:s:b", true);
    shares("ssh://h/a", "ssh://u@h/a", false);
    shares("ssh://h/a", "ssh://h:22/a", false);
    shares("unix:s:a", "unix:t:a", false);
    shares("/a", "/a", false);
    shares("ram:", "ram:", false);
}

static void is(char *made, const char *expected) {
    if (!made) fail_msg("nothing was made, not %s", expected);
    assert_string_equal(made, expected);
    free(made);
}

enum how { IN, BESIDE, NAMED };

static void makes(enum how how, const char *text, const char *with, const char *expected) {
    struct shore__address *from = at(text);
    struct shore__address *made = how == IN       ? shore__address_in(from, with)
                                  : how == BESIDE ? shore__address_beside(from, with)
                                                  : shore__address_named(from, 2, with);
    is(made ? strdup(made->text) : NULL, expected);
    assert_ptr_equal(made->kind, how == NAMED ? made->kind : from->kind);
    free(made);
    free(from);
}

static void made_of_others(void **state) {
    char here[4096], expected[4200];
    makes(IN, "/d", "f", "/d/f");
    makes(IN, "ssh://h/d", "f", "ssh://h/d/f");
    makes(IN, "unix:s", "f", "unix:s:f");
    makes(IN, "unix:s:", "f", "unix:s:/f");
    makes(IN, "unix:s:d", "f", "unix:s:d/f");
    makes(BESIDE, "/d", "/e/f", "/e/f");
    makes(BESIDE, "ssh://u@h:2/d", "/e/f", "ssh://u@h:2/e/f");
    makes(BESIDE, "unix:s", "/e/f", "unix:s:/e/f");
    makes(BESIDE, "unix:s:d", "/e/f", "unix:s:/e/f");
    makes(NAMED, "/d.g2", ".g3", "/d.g3");
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

static void lists_of_them(void **state) {
    struct shore__addresses list = {0}, copy = {0};
    struct shore_diag diag = {0};
    assert_int_equal(shore__addresses_parse(&list, "/a", &diag), 0);
    assert_int_equal(shore__addresses_parse(&list, "ssh:b", &diag), SHORE_EUSAGE);
    assert_int_equal(shore__addresses_add(&list, NULL), -ENOMEM);
    assert_int_equal(shore__addresses_add(&list, at("ssh://b/c")), 0);
    assert_int_equal(list.count, 2);
    assert_int_equal(shore__addresses_copy(&list, &copy), 0);
    shore__addresses_put(&list, 0, at("ram:"));
    assert_true(shore__addresses_have(&list, "ram:") && !shore__addresses_have(&list, "/a"));
    assert_string_equal(list.text[0], "ram:");
    assert_string_equal(copy.text[0], "/a");
    assert_string_equal(copy.item[1]->host, "b");
    shore__addresses_free(&list);
    shore__addresses_free(&copy);
    assert_null(list.item);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(where_drives_are), cmocka_unit_test(kinds),
                                       cmocka_unit_test(servers_that_are_shared), cmocka_unit_test(made_of_others),
                                       cmocka_unit_test(lists_of_them)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
