/* The patterns of tokenizer.json, written for Oniguruma, as PCRE2 patterns of the same meaning.
 */
#ifndef SHORE_TEXT_PATTERN_H
#define SHORE_TEXT_PATTERN_H

#include <stdbool.h>
#include <stddef.h>

#include "longshore/error.h"

struct shore__pattern;

/* Refuses what the two engines understand differently, what looks behind further than an anchor does, and what matches
 * the empty text: so that a text can be searched in parts. literal: text stands for itself. */
int shore__pattern_open(const char *text, size_t bytes, bool literal, struct shore__pattern **out,
                        struct shore_diag *diag);
void shore__pattern_close(struct shore__pattern *p);

/* What finding needs beside patterns, one for all that a thread looks for. NULL: no memory. */
struct shore__matcher *shore__matcher_open(void);
void shore__matcher_close(struct shore__matcher *m);
struct pcre2_real_match_data_8 *shore__matcher_data(struct shore__matcher *m); /* PCRE2's */
/* What follows a long match of it; NULL: it cannot be followed. */
const struct shore__machine *shore__pattern_machine(const struct shore__pattern *p);

#define SHORE__PATTERN_BEGINS (-1)
/* The next match at or after `from` in valid UTF-8. before: the byte that stood before text, for anchors, or
 * SHORE__PATTERN_BEGINS. 1: [*start, *end) is it. 0: there is none. 2: what follows text could change the answer (only
 * if !final); *start is where a match may begin. SHORE_EINPUT: the pattern needs more work than is allowed. */
int shore__pattern_find(const struct shore__pattern *p, struct shore__matcher *m, const char *text, size_t bytes,
                        size_t from, int before, bool final, size_t *start, size_t *end);

#endif
