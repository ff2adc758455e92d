/* The figures of a plan as a table: what it says, how wide it is, and what is no figures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "longshore/plan.h"

static char *table(const char *figures) {
    char *text = shore_plan_table(figures);
    assert_non_null(text);
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
        if (strcspn(line, "\n") > 80) fail_msg("%.*s", (int)strcspn(line, "\n"), line);
    return text;
}

static void a_table_says_what_the_figures_do(void **state) {
    static const char *const says[] = {
        "model       tiny: 5,000 parameters\n",
        "batch       2 x 512 tokens\n",
        "a step      2.0 s, bound by writing the drives",
        "  layers            2.00 MiB\n",
        "note        a word of that many letters is written and does not make the line\n            longer\n",
        "  one more drive                                   1.0 s a step",
        "2.00x\n",
    };
    char *text = table("{\"model\":\"tiny\",\"parameters\":5000,\"batch\":2,\"tokens\":1024,\"bound\":\"drive_write\","
                       "\"step_seconds\":2,"
                       "\"tokens_per_second\":512,\"memory\":{\"layers\":2097152,\"nothing\":0},"
                       "\"notes\":[\"a word of that many letters is written and does not make the line longer\"],"
                       "\"what_if\":[{\"change\":\"one more drive\",\"step_seconds\":1,\"tokens_per_second\":1024}]}");
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        if (!strstr(text, says[i])) fail_msg("no '%s' in\n%s", says[i], text);
    assert_null(strstr(text, "nothing"));
    free(text);
}

static void what_is_absent_counts_as_0(void **state) {
    char *text = table("{}");
    assert_non_null(strstr(text, "a step      0"));
    free(text);
}

static void other_json_has_no_table(void **state) {
    assert_null(shore_plan_table(""));
    assert_null(shore_plan_table("[]"));
    assert_null(shore_plan_table("{\"model\":"));
    assert_null(shore_plan_table("{\"model\":\"a\",\"model\":\"b\"}"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_says_what_the_figures_do),
        cmocka_unit_test(what_is_absent_counts_as_0),
        cmocka_unit_test(other_json_has_no_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
