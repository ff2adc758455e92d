#include "cli/other_names.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

const char shore__other_names[] =
#include "cli/other_names.inc" /* the lines of other_names.txt, which CMake makes a text of C */
    ;

static char plain(char c) {
    return c == '_' ? '-' : (char)tolower((unsigned char)c);
}

/* One of the words of a line is this name, '_' as '-', in any case. */
static bool is_one_of(const char *words, size_t bytes, const char *name) {
    size_t length = strlen(name);
    for (size_t at = 0, n; at < bytes; at += n + 1) {
        size_t same = 0;
        n = strcspn(words + at, " \n");
        while (n == length && same < n && plain(name[same]) == words[at + same])
            same++;
        if (n == length && same == n) return true;
    }
    return false;
}

/* The answer of a line, if the command takes its flag. */
static bool answer(const struct shore__command_line *line, const char *text, int bytes, const char *dashes, char *out,
                   size_t room) {
    char flag[64];
    if (*text == '=') return snprintf(out, room, "%.*s", bytes - 2, text + 2) > 0;
    snprintf(flag, sizeof flag, "%.*s", (int)strspn(text + 2, "abcdefghijklmnopqrstuvwxyz0123456789-"), text + 2);
    int i = shore__option_find(line, flag);
    if (i < 0 || !shore__option_taken(line, &line->options[i])) return false;
    return snprintf(out, room, "here it is %s%.*s", dashes, bytes - 2, text + 2) > 0;
}

const char *shore__other_name_hint(const struct shore__command_line *line, const char *name, const char *dashes,
                                   char *out, size_t room) {
    bool named = false; /* since the last answer */
    size_t bytes;
    for (const char *at = shore__other_names; *at; at += bytes + 1) {
        bytes = strcspn(at, "\n");
        if (*at == '>' || *at == '=') {
            if (named && answer(line, at, (int)bytes, dashes, out, room)) return out;
            named = false;
        } else if (*at != '#') {
            named = named || is_one_of(at, bytes, name);
        }
    }
    return NULL;
}
