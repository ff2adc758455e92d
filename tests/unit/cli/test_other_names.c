/* Every name in the text of other trainers' gets its answer from a command, with a flag that the command has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/cli.h"
#include "cli/other_names.h"
#include "cli/train_options.h"

static const struct shore__subcommand commands[] = {
    {.run = shore__cli_train},
    {.line = &shore__cli_eval},
    {.line = &shore__cli_generate},
    {.line = &shore__cli_export},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

/* What a command says on stderr to this word alone. */
static void say(const struct shore__subcommand *command, char *word, char *out, size_t bytes) {
    char *argv[] = {word, NULL};
    FILE *said = tmpfile();
    int before = dup(STDERR_FILENO);
    assert_true(said && before >= 0);
    fflush(stderr);
    dup2(fileno(said), STDERR_FILENO);
    int code = command->line ? shore__cli_run(command->line, 1, argv) : command->run(1, argv);
    fflush(stderr);
    dup2(before, STDERR_FILENO);
    close(before);
    rewind(said);
    out[fread(out, 1, bytes - 1, said)] = '\0';
    fclose(said);
    assert_int_equal(code, SHORE__EXIT_USAGE);
}

static void is_answered(const char *name, const char *wanted) {
    char word[80], spelled[90], said[1200];
    bool found = false;
    snprintf(word, sizeof word, "%s%s", name[0] == '-' ? "" : "--", name);
    snprintf(spelled, sizeof spelled, "%s=1", word);
    for (char *c = spelled + 2; *c; c++)
        if (*c == '-') *c = '_';
    for (int i = 0; i < COMMANDS && !found; i++) {
        say(&commands[i], word, said, sizeof said);
        found = strstr(said, wanted) != NULL;
        if (!found || name[0] == '-') continue;
        say(&commands[i], spelled, said, sizeof said);
        found = strstr(said, wanted) != NULL;
    }
    if (!found) fail_msg("no command answers %s with: %s", word, wanted);
}

static void every_name_is_answered_with_a_flag_that_is_there(void **state) {
    char *text = strdup(shore__other_names), *lines = NULL, *names[16], wanted[300];
    int nnames = 0, answers = 0;
    assert_non_null(text);
    for (char *line = strtok_r(text, "\n", &lines); line; line = strtok_r(NULL, "\n", &lines)) {
        if (*line == '#') continue;
        if (*line != '>' && *line != '=') {
            assert_int_not_equal(nnames, sizeof names / sizeof *names);
            names[nnames++] = line;
            continue;
        }
        assert_int_not_equal(nnames, 0);
        snprintf(wanted, sizeof wanted, "%s%s\n", *line == '>' ? "here it is --" : "", line + 2);
        for (int i = 0; i < nnames; i++) {
            char *rest = NULL;
            for (char *name = strtok_r(names[i], " ", &rest); name; name = strtok_r(NULL, " ", &rest))
                is_answered(name, wanted);
        }
        nnames = 0;
        answers++;
    }
    free(text);
    assert_int_equal(nnames, 0);
    assert_true(answers > 50);
}

static void hint_is(const char *name, const char *dashes, const char *wanted) {
    char out[256];
    const char *hint = shore__other_name_hint(&shore__train_line, name, dashes, out, sizeof out);
    if (wanted)
        assert_string_equal(hint, wanted);
    else
        assert_null(hint);
}

static void names_are_whole_and_of_any_spelling(void **state) {
    hint_is("learning-rate", "--", "here it is --lr");
    hint_is("learning_rate", "", "here it is lr");
    hint_is("Learning_Rate", "--", "here it is --lr");
    hint_is("warmup_ratio", "--", "here it is --warmup, in steps and not as a share of them");
    hint_is("learning-rat", "--", NULL);
    hint_is("learning-rates", "--", NULL);
    hint_is("", "--", NULL);
    hint_is("#", "--", NULL);
    hint_is("max-lr peak-lr", "--", NULL);
    hint_is("temp", "--", NULL); /* generate's */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_is_answered_with_a_flag_that_is_there),
        cmocka_unit_test(names_are_whole_and_of_any_spelling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
