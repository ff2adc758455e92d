/* The program has words for every advice of the library's. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cli/cli.h"

static void every_advice_has_words_of_the_program(void **state) {
    for (int advice = 1; advice < SHORE_ADVICE_COUNT; advice++) {
        char line[2048];
        struct shore_diag diag = {0};
        shore__advise(&diag, shore__fail(&diag, -EIO, "it is wrong"), (enum shore_advice)advice, "runs/a");
        if (!shore__cli_advice[advice])
            fail_msg("none for %d, in the library: %s", advice, shore_diag_say(&diag, NULL, line, sizeof line));
        shore_diag_say(&diag, shore__cli_advice, line, sizeof line);
        assert_true(strncmp(line, "it is wrong; ", 13) == 0 && !strstr(line, "{}"));
    }
    assert_null(shore__cli_advice[SHORE_ADVICE_NONE]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_advice_has_words_of_the_program)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
