/* "Did you mean": the known name nearest to a mistyped one. */
#ifndef SHORE_BASE_SUGGEST_H
#define SHORE_BASE_SUGGEST_H

#include <stddef.h>

/* The name with the smallest edit distance to word, if it is near enough (at most a third of the word's letters
 * changed, at least one allowed); otherwise NULL. */
const char *shore__suggest(const char *word, const char *const *names, size_t count);

#endif
