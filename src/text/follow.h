/* A match whose end is far away, followed character by character: the ends it may have, while the text still comes.
 *
 * A pattern becomes a machine that is in several places at once, the ones it prefers first; a match by a place ends
 * all behind it (Pike's way to the meaning of Perl). So a match that has been seen stays the least that there will be:
 * what follows can only make it longer. Inside of text/.
 */
#ifndef SHORE_TEXT_FOLLOW_H
#define SHORE_TEXT_FOLLOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shore__machine;
struct pcre2_real_match_data_8; /* pcre2_match_data */
/* pattern: as PCRE2 has it. NULL: out of memory, or it has what cannot be followed (anchors, atomic groups, a look at
 * more than the next character). */
struct shore__machine *shore__machine_open(const char *pattern, size_t bytes);
void shore__machine_close(struct shore__machine *m);

/* Zeroed before its first beginning. */
struct shore__follow {
    const struct shore__machine *machine;
    uint16_t *places; /* and room to work */
    size_t nplaces;
    size_t at;  /* bytes that have been looked at; the caller may move the beginning of what it counts */
    size_t end; /* of the match that has been seen; 0: none since that was set to 0 */
    bool over;  /* nothing to come changes the end */
};
int shore__follow_begin(struct shore__follow *f, const struct shore__machine *m); /* 0 or -ENOMEM */
/* Goes on with the text behind `at`, which is whole characters; final: it ends there. match: see
 * shore__matcher_data(). */
void shore__follow_feed(struct shore__follow *f, struct pcre2_real_match_data_8 *match, const char *text, size_t bytes,
                        bool final);
void shore__follow_fini(struct shore__follow *f);

#endif
