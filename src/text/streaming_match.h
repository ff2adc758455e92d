/* Follows a match whose end is far away, character by character, and tells its possible ends while the text still
 * arrives.
 *
 * A pattern becomes a machine that is in several places at once, preferred places first. A match at one place ends all
 * places behind it (Pike's method for Perl semantics). A match that has been seen can therefore only become longer.
 * Inside of text/. */
#ifndef SHORE_TEXT_STREAMING_MATCH_H
#define SHORE_TEXT_STREAMING_MATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shore__machine;
struct pcre2_real_match_data_8; /* pcre2_match_data */
/* pattern: in PCRE2's syntax. NULL: out of memory, or the pattern cannot be followed (anchors, atomic groups, lookahead
 * beyond the next character). */
struct shore__machine *shore__machine_open(const char *pattern, size_t bytes);
void shore__machine_close(struct shore__machine *m);

/* Zeroed before its first begin. */
struct shore__follow {
    const struct shore__machine *machine;
    uint16_t *places; /* places, and room for work */
    size_t nplaces;
    size_t at;  /* bytes read; the caller may move the start that it counts from */
    size_t end; /* of the match seen; 0: none since it was set to 0 */
    bool over;  /* later text cannot change the end */
};
int shore__follow_begin(struct shore__follow *f, const struct shore__machine *m); /* 0 or -ENOMEM */
/* Continues with the text behind `at`, in whole characters. final: the text ends there. */
void shore__follow_feed(struct shore__follow *f, struct pcre2_real_match_data_8 *match, const char *text, size_t bytes,
                        bool final);
void shore__follow_fini(struct shore__follow *f);

#endif
