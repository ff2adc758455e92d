#include "cli/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/suggest.h"
#include "base/units.h"
#include "cli/other_names.h"
#include "drive/remote/remote.h"
#include "drive/remote/transport.h"
#include "files/json.h"
#include "near/opencl/opencl_device.h"
#include "run/settings.h"

const struct shore__option shore__remote_options[SHORE__REMOTE_OPTIONS] = {
    {.name = "rsh",
     .value = "CMD",
     .help = "reach drives at ssh://HOST/PATH with this instead of ssh (split at blanks; also LONGSHORE_RSH); never "
             "kept in a run",
     .is.kind = SHORE__VALUE_TEXT},
    {.name = "connections",
     .value = "N",
     .help = "connections to each drive on another host, up to 8 (also LONGSHORE_CONNECTIONS); otherwise 1",
     .is = {.kind = SHORE__VALUE_WHOLE, .bytes = sizeof(uint32_t), .least = 1, .most = 8}},
    {.name = "opencl",
     .value = "device=NAME|INDEX,memory=SIZE,binary=FILE",
     .help = "the device of drives at opencl:PATH, the memory that each takes there (at most 4GiB) and a program for "
             "it (also LONGSHORE_OPENCL); never kept in a run",
     .is.kind = SHORE__VALUE_TEXT},
};
static const char *const remote_variables[SHORE__REMOTE_OPTIONS] = {SHORE__RSH_VARIABLE, SHORE__CONNECTIONS_VARIABLE,
                                                                    SHORE__OPENCL_VARIABLE};

static int find_remote(const struct shore__command_line *line, const char *name) {
    for (int i = 0; line->remote && i < SHORE__REMOTE_OPTIONS; i++)
        if (strcmp(name, shore__remote_options[i].name) == 0) return i;
    return -1;
}

/* Refuses an unknown flag or key. A --config file has no keys for flags about the command line itself. */
static int unknown(const struct shore__command_line *line, const char *name, bool key, struct shore_diag *diag) {
    const char *names[SHORE__OPTIONS_MAX + 2 + SHORE__REMOTE_OPTIONS];
    size_t n = 0;
    for (size_t i = 0; i < line->noptions; i++)
        if (line->options[i].is.kind != SHORE__VALUE_NONE && shore__option_taken(line, &line->options[i]))
            names[n++] = line->options[i].name;
    if (!key) names[n++] = "help";
    if (!key && line->config) names[n++] = "config";
    for (size_t i = 0; !key && line->remote && i < SHORE__REMOTE_OPTIONS; i++)
        names[n++] = shore__remote_options[i].name;
    char hint[256];
    const char *what = key ? "key " : "flag --", *dashes = key ? "" : "--";
    const struct shore__shown escaped = shore__shown(name);
    if (shore__other_name_hint(line, name, dashes, hint, sizeof hint))
        return shore__fail(diag, SHORE_EUSAGE, "unknown %s%s: %s", what, escaped.text, hint);
    const char *near = shore__suggest(name, names, n);
    if (near)
        return shore__fail(diag, SHORE_EUSAGE, "unknown %s%s: did you mean %s%s?", what, escaped.text, dashes, near);
    return shore__fail(diag, SHORE_EUSAGE, "unknown %s%s: 'longshore %s --help' lists what there is", what,
                       escaped.text, line->command);
}

static int one_dash(const struct shore__command_line *line, const char *word, struct shore_diag *diag) {
    char hint[256];
    const struct shore__shown escaped = shore__shown(word);
    if (shore__other_name_hint(line, word, "--", hint, sizeof hint))
        return shore__fail(diag, SHORE_EUSAGE, "unknown flag %s: flags begin with two dashes; if it is llm.c's, %s",
                           escaped.text, hint);
    return shore__fail(diag, SHORE_EUSAGE, "unknown flag %s: flags begin with two dashes", escaped.text);
}

static int not_taken(const struct shore__command_line *line, const struct shore__option *o, struct shore_diag *diag) {
    return shore__fail(diag, SHORE_EUSAGE, "--%s does not go with %s", o->name, line->command);
}

/* Sets the option from a text, or from JSON if there is some. target: NULL: only checks the value. */
static int set_option(const struct shore__option *o, const char *text, const json_t *json, void *target,
                      struct shore_diag *diag) {
    void *unused[3] = {NULL}, *at = target ? (char *)target + o->offset : (void *)unused;
    char name[64];
    snprintf(name, sizeof name, "--%s", o->name);
    int rc =
        json ? shore__value_read_json(&o->is, name, json, at, diag) : shore__value_read(&o->is, name, text, at, diag);
    if (!target) shore__value_clear(&o->is, at);
    return rc;
}

static bool is_flag(const char *word) {
    return word[0] == '-' && word[1] == '-' && word[2];
}

/* The flag that a letter stands for, or the flag itself, without its dashes; NULL: the word is none. */
static const char *flag_of(const struct shore__command_line *line, const char *word) {
    if (is_flag(word)) return word + 2;
    for (size_t i = 0; word[0] == '-' && word[1] && !word[2] && i < line->noptions; i++)
        if (line->options[i].letter == word[1]) return line->options[i].name;
    return NULL;
}

static int check_remote(int i, const char *text, struct shore_diag *diag) {
    struct shore__opencl_options options;
    if (strcmp(remote_variables[i], SHORE__OPENCL_VARIABLE) == 0) return shore__opencl_parse(text, &options, diag);
    return set_option(&shore__remote_options[i], text, NULL, NULL, diag);
}

/* An empty variable counts as none. */
static int check_variables(const struct shore__command_line *line, struct shore_diag *diag) {
    struct shore_diag why;
    for (int i = 0; line->remote && i < SHORE__REMOTE_OPTIONS; i++) {
        const char *text = getenv(remote_variables[i]);
        int rc = text && *text ? check_remote(i, text, &why) : 0;
        if (rc) return shore__fail_of(diag, rc, &why, "%s: %s", remote_variables[i], why.text);
    }
    return 0;
}

/* Takes "--memory 29.80 GiB", the printed form of sizes, as one value of two words. */
static const char *with_unit(const char *number, const char *unit, char *out, size_t bytes) {
    uint64_t size;
    int n = snprintf(out, bytes, "%s %s", number, unit);
    return n > 0 && (size_t)n < bytes && shore__parse_size(out, &size) == 0 ? out : NULL;
}

/* Parses one --flag with its values from argv[*i] on; leaves *i at the last word used. */
static int parse_flag(const struct shore__command_line *line, int argc, char **argv, int *i, void *target,
                      struct shore__parsed *parsed, const char **config, struct shore_diag *diag) {
    static const struct shore__option config_option = {.name = "config", .is.kind = SHORE__VALUE_TEXT};
    const char *word = flag_of(line, argv[*i]);
    char name[64];
    size_t length = strcspn(word, "=");
    if (length >= sizeof name) return unknown(line, word, false, diag);
    memcpy(name, word, length);
    name[length] = 0;
    const char *value = word[length] ? word + length + 1 : NULL;

    const struct shore__option *o = &config_option;
    int index = -1, remote = find_remote(line, name);
    if (remote >= 0) {
        o = &shore__remote_options[remote];
        if (parsed->remote_given[remote]) return shore__fail(diag, SHORE_EUSAGE, "--%s is given twice", o->name);
        parsed->remote_given[remote] = true;
    } else if (!line->config || strcmp(name, "config") != 0) {
        index = shore__option_find(line, name);
        if (index < 0) return unknown(line, name, false, diag);
        o = &line->options[index];
        if (!shore__option_taken(line, o)) return not_taken(line, o, diag);
        if (parsed->given[index] == SHORE__GIVEN && o->is.kind != SHORE__VALUE_LIST)
            return shore__fail(diag, SHORE_EUSAGE, "--%s is given twice", o->name);
        parsed->given[index] = SHORE__GIVEN;
    }
    if (o->is.kind == SHORE__VALUE_FLAG) {
        if (value) return shore__fail(diag, SHORE_EUSAGE, "--%s takes no value", o->name);
        *(bool *)((char *)target + o->offset) = true;
        return 0;
    }
    if (!value) {
        if (*i + 1 >= argc || is_flag(argv[*i + 1])) {
            return shore__fail(diag, SHORE_EUSAGE, "--%s needs a value (%s)", o->name,
                               o->is.choices ? o->is.choices
                               : o->value    ? o->value
                                             : "FILE");
        }
        value = argv[++*i];
    }
    if (remote >= 0) {
        int rc = check_remote(remote, value, diag);
        if (rc) return rc;
        return setenv(remote_variables[remote], value, 1) ? shore__out_of_memory(diag) : 0;
    }
    if (index < 0) {
        if (*config) return shore__fail(diag, SHORE_EUSAGE, "--config is given twice");
        *config = value;
        return 0;
    }
    char size[48];
    if (o->is.kind == SHORE__VALUE_SIZE && *i + 1 < argc && with_unit(value, argv[*i + 1], size, sizeof size))
        value = size, ++*i;
    int rc = set_option(o, value, NULL, target, diag);
    if (o->is.kind == SHORE__VALUE_LIST && !word[length])
        while (!rc && *i + 1 < argc && !is_flag(argv[*i + 1]))
            rc = set_option(o, argv[++*i], NULL, target, diag);
    return rc;
}

/* Reads --config FILE, a JSON object with the same keys. Values from the command line stay, and those of the file are
 * checked even so: a mistake would appear once the flag is left out. */
static int apply_config(const struct shore__command_line *line, const char *path, void *target,
                        struct shore__parsed *parsed, struct shore_diag *diag) {
    json_t *json;
    int rc = shore__json_read(path, 1u << 20, &json, diag);
    if (rc) return rc;
    const char *key, *found[SHORE__OPTIONS_MAX] = {NULL};
    json_t *value;
    json_object_foreach(json, key, value) {
        struct shore_diag inner;
        int index = shore__option_find(line, key);
        bool overridden = index >= 0 && parsed->given[index] == SHORE__GIVEN;
        const struct shore__option *o = index < 0 ? NULL : &line->options[index];
        rc = !o             ? unknown(line, key, true, &inner)
             : found[index] ? shore__fail(&inner, SHORE_EUSAGE, "\"%s\" and \"%s\" are the same key", found[index], key)
             : !shore__option_taken(line, o) ? not_taken(line, o, &inner)
                                             : set_option(o, NULL, value, overridden ? NULL : target, &inner);
        if (rc) {
            rc = shore__fail_of(diag, SHORE_EINPUT, &inner, "%s: %s", shore__shown(path).text, inner.text);
            break;
        }
        found[index] = key;
        if (!overridden) parsed->given[index] = SHORE__GIVEN_CONFIG;
    }
    json_decref(json);
    return rc;
}

int shore__options_parse(const struct shore__command_line *line, int argc, char **argv, void *target,
                         struct shore__parsed *parsed, struct shore_diag *diag) {
    *parsed = (struct shore__parsed){0};
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) parsed->help = true;
    if (parsed->help) return 0;

    const char *config = NULL;
    for (int i = 0; i < argc; i++) {
        if (flag_of(line, argv[i])) {
            int rc = parse_flag(line, argc, argv, &i, target, parsed, &config, diag);
            if (rc) return rc;
            continue;
        }
        if (argv[i][0] == '-' && argv[i][1]) return one_dash(line, argv[i], diag);
        if (parsed->words == line->positional)
            return shore__fail(diag, SHORE_EUSAGE, "unexpected word '%s'", shore__shown(argv[i]).text);
        parsed->positional[parsed->words++] = argv[i];
    }
    int rc = check_variables(line, diag);
    return !rc && config ? apply_config(line, config, target, parsed, diag) : rc;
}

void shore__options_free(const struct shore__command_line *line, void *target) {
    for (size_t i = 0; i < line->noptions; i++)
        shore__value_clear(&line->options[i].is, (char *)target + line->options[i].offset);
}
