/* Runs this program again, as a child. */
#ifndef SHORE_TOOLS_CHILD_H
#define SHORE_TOOLS_CHILD_H

#include <stdbool.h>
#include <stddef.h>

#define SHORE__CHILD_SIGNAL 128 /* as shells have it */

struct shore__words {
    char *item[160];
    size_t count;
    bool full;
};

__attribute__((format(printf, 2, 3))) void shore__words_add(struct shore__words *w, const char *format, ...);
void shore__words_free(struct shore__words *w);
/* Runs words, whose first is the program's name, and returns the last line of its output. Returns its exit code,
 * SHORE__CHILD_SIGNAL plus the number of the signal that ended it, or a negative code (-E2BIG: too many words). */
int shore__child_run(struct shore__words *w, char *last, size_t bytes);

#endif
