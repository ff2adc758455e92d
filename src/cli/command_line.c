/* Options on a command line: which ones a command takes, and which were given. */

#include "base/suggest.h"
#include "cli/options.h"

int shore__option_find(const struct shore__command_line *line, const char *name) {
    for (size_t i = 0; i < line->noptions; i++) {
        const struct shore__option *o = &line->options[i];
        if (o->is.kind == SHORE__VALUE_NONE) continue;
        size_t c = 0;
        while (name[c] && (name[c] == '_' ? '-' : name[c]) == o->name[c])
            c++;
        if (!name[c] && !o->name[c]) return (int)i;
    }
    return -1;
}

bool shore__option_taken(const struct shore__command_line *line, const struct shore__option *option) {
    return !line->without || !shore__has_word(line->without, option->name);
}

bool shore__option_given(const struct shore__command_line *line, const struct shore__parsed *parsed, const char *name) {
    int i = shore__option_find(line, name);
    return i >= 0 && parsed->given[i] != SHORE__GIVEN_NOT;
}
