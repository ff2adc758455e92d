/* Patterns of tokenizer.json, translated from Oniguruma to PCRE2 with the same meaning; and regular expressions of
 * Python's, which PCRE2 reads as they are. */
#ifndef SHORE_TEXT_PATTERN_H
#define SHORE_TEXT_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include "longshore/error.h"

struct shore__pattern;

/* Translates a pattern. Refuses what the engines understand differently, what looks back further than an anchor does,
 * and what matches the empty text. A text can therefore be searched in parts. literal: text stands for itself. */
int shore__pattern_open(const char *text, size_t bytes, bool literal, struct shore__pattern **out,
                        struct shore_diag *diag);
void shore__pattern_close(struct shore__pattern *p);

/* Working memory for finding, one per thread, for any number of patterns. NULL: no memory. */
struct shore__matcher *shore__matcher_open(void);
void shore__matcher_close(struct shore__matcher *m);
struct pcre2_real_match_data_8 *shore__matcher_data(struct shore__matcher *m); /* PCRE2's */
/* The machine that follows a long match; NULL: the pattern cannot be followed. */
const struct shore__machine *shore__pattern_machine(const struct shore__pattern *p);

#define SHORE__PATTERN_BEGINS (-1)
/* Finds the next match at or after `from` in valid UTF-8. before: the byte before text, for anchors, or
 * SHORE__PATTERN_BEGINS. Returns 1: [*start, *end) matches. 0: no match. 2 (only if !final): later text could change
 * the answer; *start is where a match may begin. SHORE_EINPUT: the pattern needs more work than allowed. */
int shore__pattern_find(const struct shore__pattern *p, struct shore__matcher *m, const char *text, size_t bytes,
                        size_t from, int before, bool final, size_t *start, size_t *end);

/* Python's re.match, or with `whole` its re.fullmatch. Returns 1: the beginning of a text matches up to *end, or all of
 * it. 0: it does not. Refuses the little that PCRE2 understands differently, and what needs more work than allowed. */
int shore__pattern_of_python(const char *expression, bool whole, const char *text, size_t *end,
                             struct shore_diag *diag);

#endif
