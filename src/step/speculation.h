/* Whether updates are handed over while gradients still come, as if nothing will be clipped. It pays where the norms of
 * the last steps were below the limit, all of them, with room to spare. */
#ifndef SHORE_STEP_SPECULATION_H
#define SHORE_STEP_SPECULATION_H

#include <stdbool.h>
#include <stdint.h>

#define SHORE__RECENT_NORMS 4u

struct shore__recent_norms {
    double norm[SHORE__RECENT_NORMS];
    uint32_t count;
};

/* The norm of a step that is over; not finite: it was skipped. */
void shore__norms_remember(struct shore__recent_norms *recent, double norm);
bool shore__speculation_pays(const struct shore__recent_norms *recent, double limit);

/* What decides where the gradient of a unit waits that is complete. */
struct shore__unit_facts {
    bool host_update;    /* updates are computed elsewhere, from gradients on the drives */
    bool speculated;     /* the step speculates, or did until the norm passed the limit */
    bool goes_on;        /* and the norm has not */
    bool computes_again; /* the caller can compute the step once more */
    bool more;           /* another backward pass comes */
    bool state_is_here;  /* its update is computed here, when all is decided */
    bool may_be_gone;    /* something that was sent is not kept in memory */
    bool stays;          /* this one is, whatever is decided */
    bool fits;           /* there is memory for it and for those that come */
};
enum shore__unit_way { UNIT_IS_SENT, UNIT_IS_HELD, UNIT_GOES_ASIDE, UNIT_IS_SENT_AND_GOES_ASIDE, UNIT_IS_GIVEN_UP };
enum shore__unit_way shore__unit_way(const struct shore__unit_facts *facts);

#endif
