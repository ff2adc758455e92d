/* Names: looked for among others, as they stand or mistyped; what they end with. */
#ifndef SHORE_BASE_SUGGEST_H
#define SHORE_BASE_SUGGEST_H

#include <stdbool.h>
#include <stddef.h>

/* The name with the smallest edit distance to word, if it is near enough (at most a third of the word's letters
 * changed, at least one allowed); otherwise NULL. */
const char *shore__suggest(const char *word, const char *const *names, size_t count);

/* Whether a list of words, with a blank between two, has this one. */
bool shore__has_word(const char *words, const char *word);
bool shore__ends_with(const char *name, const char *end);

#endif
