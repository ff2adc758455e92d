#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "drive/serve/serve.h"

/* In a directory of its own: root/a/longshore.volume, root/b; beside it, rootless/ and outside/longshore.volume. */
static const struct {
    const char *path, *means; /* NULL: refused */
    const char *error;
    int rc;
} cases[] = {
    {"", "root", NULL, 0},
    {"a", "root/a", NULL, 0},
    {"a/longshore.volume", "root/a/longshore.volume", NULL, 0},
    {"a/../b", "root/b", NULL, 0},
    {"new", "root/new", NULL, 0},
    {"inner", "root/b", NULL, 0}, /* a link that stays inside */
    {"%s/root/a", "root/a", NULL, 0},
    {"..", NULL, "outside", SHORE_EUSAGE},
    {"../outside", NULL, "outside", SHORE_EUSAGE},
    {"a/../../outside/longshore.volume", NULL, "outside", SHORE_EUSAGE},
    {"../rootless", NULL, "outside", SHORE_EUSAGE}, /* only its name begins as the root's does */
    {"../new", NULL, "outside", SHORE_EUSAGE},
    {"%s/outside", NULL, "outside", SHORE_EUSAGE},
    {"/etc/passwd", NULL, "outside", SHORE_EUSAGE},
    {"link", NULL, "outside", SHORE_EUSAGE},
    {"link/longshore.volume", NULL, "outside", SHORE_EUSAGE},
    {"link/new", NULL, "outside", SHORE_EUSAGE},
    {"leads-out", NULL, "symbolic link", SHORE_EUSAGE}, /* what would be the volume */
    {"nothing/new", NULL, "no such directory", SHORE_EMISSING},
    {"a/longshore.volume/x", NULL, "no such directory", SHORE_EMISSING},
    {"ssh://far/x", NULL, "of its own host", SHORE_EUSAGE},
    {"unix:s", NULL, "of its own host", SHORE_EUSAGE},
    {"ssh:far", NULL, "of its own host", SHORE_EUSAGE},
    {"ram:", "ram:", NULL, 0},
};

static char *in(const char *base, const char *name) {
    char *path = NULL;
    assert_true(asprintf(&path, "%s%s%s", base, *name ? "/" : "", name) > 0);
    return path;
}

static void make_file(const char *base, const char *name) {
    char *path = in(base, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    free(path);
}

static void make_directory(const char *base, const char *name) {
    char *path = in(base, name);
    assert_int_equal(mkdir(path, 0700), 0);
    free(path);
}

static void make_link(const char *base, const char *to, const char *name) {
    char *path = in(base, name), *target = in(base, to);
    assert_int_equal(symlink(target, path), 0);
    free(target);
    free(path);
}

static void nothing_outside_the_root(void **state) {
    char made[] = "serve-plan.XXXXXX", command[64];
    char *base = realpath(mkdtemp(made), NULL), *root = in(base, "root");
    static const char *const directories[] = {"root", "root/a", "root/b", "root/leads-out", "rootless", "outside"};
    for (size_t i = 0; i < sizeof directories / sizeof directories[0]; i++)
        make_directory(base, directories[i]);
    make_file(base, "root/a/longshore.volume");
    make_file(base, "outside/longshore.volume");
    make_link(base, "outside", "root/link");
    make_link(base, "root/b", "root/inner");
    make_link(base, "outside/longshore.volume", "root/leads-out/longshore.volume");
    struct shore__serve_options options = {.root = root};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct shore_diag diag = {0};
        char asked[400];
        struct shore__address *means = NULL;
        bool absolute = strncmp(cases[c].path, "%s", 2) == 0;
        snprintf(asked, sizeof asked, "%s%s", absolute ? base : "", cases[c].path + (absolute ? 2 : 0));
        int rc = shore__serve_path(&options, asked, &means, &diag);
        if (rc != cases[c].rc || (rc && !strstr(diag.text, cases[c].error)))
            fail_msg("'%s': %d, %s, %s", asked, rc, means ? means->text : "", diag.text);
        if (!rc) {
            char *wanted = means->kind->keeps ? in(base, cases[c].means) : strdup(cases[c].means);
            assert_string_equal(means->text, wanted);
            free(wanted);
        }
        free(means);
    }
    free(root);
    free(base);
    snprintf(command, sizeof command, "rm -rf %s", made);
    assert_int_equal(system(command), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_outside_the_root)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
