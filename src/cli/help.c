#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/suggest.h"
#include "cli/cli.h"

enum { LEFT = 30, WIDTH = 110, NAMES_MOST = 20 };

/* The default in the form that the flag takes, or "" if it tells nothing (the help text then does). */
static const char *default_of(const struct shore__option *o, const void *target, char *out, size_t bytes) {
    static const char nothing[sizeof(uint64_t)];
    const void *at = (const char *)target + o->offset;
    bool whole = o->is.kind == SHORE__VALUE_WHOLE || o->is.kind == SHORE__VALUE_SIZE;
    shore__value_text(&o->is, at, out, bytes);
    bool told = o->is.kind == SHORE__VALUE_FLAG || (strcmp(out, "none") == 0 && strstr(o->help, "otherwise"));
    if (told || strcmp(out, "chosen") == 0 || (whole && memcmp(at, nothing, o->is.bytes) == 0)) out[0] = 0;
    return out;
}

static void wrapped(const char *text, int column) {
    while (*text) {
        size_t n = strcspn(text, " ");
        if (column > LEFT && column + 1 + (int)n > WIDTH) {
            printf("\n%*s", LEFT, "");
            column = LEFT;
        } else if (column > LEFT) {
            putchar(' ');
            column++;
        }
        printf("%.*s", (int)n, text);
        column += (int)n;
        text += n;
        text += strspn(text, " ");
    }
    putchar('\n');
}

static void option_help(const struct shore__option *o, const void *target) {
    char left[96], letter[8] = "", value[64], text[512];
    const char *name = o->is.choices ? o->is.choices : o->value;
    if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
    int n = snprintf(left, sizeof left, "  %s--%s%s%s", letter, o->name, name ? " " : "", name ? name : "");
    printf("%s", left);
    if (n >= LEFT)
        printf("\n%*s", LEFT, "");
    else
        printf("%*s", LEFT - n, "");
    default_of(o, target, value, sizeof value);
    snprintf(text, sizeof text, value[0] ? "%s (default %s)" : "%s", o->help, value);
    wrapped(text, LEFT);
}

/* Prints the help on stdout, with defaults from target. */
static void help(const struct shore__command_line *line, const void *target) {
    const char *prefix = "usage: ";
    for (const char *p = line->synopsis; *p;) {
        size_t n = strcspn(p, "\n");
        printf("%slongshore %.*s\n", prefix, (int)n, p);
        prefix = "       ";
        p += n + (p[n] == '\n');
    }
    printf("\n%s\n", line->about);
    if (line->noptions && line->options[0].is.kind != SHORE__VALUE_NONE) putchar('\n');
    for (size_t i = 0; i < line->noptions; i++) {
        if (line->options[i].is.kind == SHORE__VALUE_NONE)
            printf("\n%s\n", line->options[i].name);
        else if (shore__option_taken(line, &line->options[i]))
            option_help(&line->options[i], target);
    }
    if (line->config) {
        printf("  --config FILE");
        printf("%*s", LEFT - 15, "");
        wrapped("a JSON object with the same keys as the flags above; flags win over it", LEFT);
    }
    if (line->remote) printf("\nDrives on other hosts, and on devices\n");
    for (size_t i = 0; line->remote && i < SHORE__REMOTE_OPTIONS; i++) {
        const uint64_t none = 0; /* a default that the help text tells */
        option_help(&shore__remote_options[i], &none);
    }
    if (line->notes) printf("\n%s\n", line->notes);
}

int shore__cli_command(const struct shore__command_line *line, int argc, char **argv, void *args,
                       int (*run)(const struct shore__parsed *parsed, void *args)) {
    struct shore__parsed parsed;
    struct shore_diag diag = {0};
    int code = SHORE__EXIT_DONE, rc = shore__options_parse(line, argc, argv, args, &parsed, &diag);
    if (!rc && !parsed.help && line->missing && !parsed.positional[0])
        rc = shore__fail(&diag, SHORE_EUSAGE, "%s", line->missing);
    if (rc)
        code = shore__cli_fail(rc, &diag);
    else if (parsed.help)
        help(line, args);
    else
        code = run(&parsed, args);
    shore__options_free(line, args);
    return code;
}

int shore__cli_run(const struct shore__command_line *line, int argc, char **argv) {
    void *args = malloc(line->args_bytes);
    if (!args) return shore__cli_fail_running(-ENOMEM, NULL);
    memcpy(args, line->defaults, line->args_bytes);
    int code = shore__cli_command(line, argc, argv, args, line->run);
    free(args);
    return code;
}

int shore__cli_dispatch(const struct shore__subcommand *all, size_t count, const char *what, const char *otherwise,
                        int argc, char **argv) {
    const char *names[NAMES_MOST];
    for (size_t i = 0; i < count; i++) {
        names[i] = all[i].name;
        if ((!all[i].line && !all[i].run) || strcmp(argv[0], names[i]) != 0) continue;
        return all[i].line ? shore__cli_run(all[i].line, argc - 1, argv + 1) : all[i].run(argc - 1, argv + 1);
    }
    const char *near = shore__suggest(argv[0], names, count);
    const struct shore__shown escaped = shore__shown(argv[0]);
    if (near)
        shore__cli_say("unknown %s '%s': did you mean %s?", what, escaped.text, near);
    else
        shore__cli_say("unknown %s '%s': %s", what, escaped.text, otherwise);
    return SHORE__EXIT_USAGE;
}

int shore__cli_group(const struct shore__group *g, int argc, char **argv) {
    if (argc < 1) {
        shore__cli_say("%s", g->ask);
        return SHORE__EXIT_USAGE;
    }
    if (strcmp(argv[0], "--help") != 0 && strcmp(argv[0], "-h") != 0)
        return shore__cli_dispatch(g->all, g->count, g->what, g->otherwise, argc, argv);
    for (size_t i = 0; i < g->count; i++)
        printf("%s longshore %s %s %s\n", i ? "      " : "usage:", g->word, g->all[i].name, g->all[i].synopsis);
    putchar('\n');
    for (size_t i = 0; i < g->count; i++)
        printf("  %-9s %s\n", g->all[i].name, g->all[i].summary);
    printf("\n%s\n", g->last);
    return SHORE__EXIT_DONE;
}
