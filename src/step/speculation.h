/* Speculation: handing over updates while gradients still arrive, as if nothing will be clipped. It pays if the norms
 * of all recent steps were well below the limit. */
#ifndef SHORE_STEP_SPECULATION_H
#define SHORE_STEP_SPECULATION_H

#include <stdbool.h>
#include <stdint.h>

#define SHORE__RECENT_NORMS 4u

struct shore__recent_norms {
    double norm[SHORE__RECENT_NORMS];
    uint32_t count;
};

/* The norm of a finished step; not finite: the step was skipped. */
void shore__norms_remember(struct shore__recent_norms *recent, double norm);
bool shore__speculation_pays(const struct shore__recent_norms *recent, double limit);

/* The facts that decide where a unit's complete gradient waits. */
struct shore__unit_facts {
    bool host_update;    /* updates are computed elsewhere, from gradients on the drives */
    bool speculated;     /* the step speculates, or did until the norm passed the limit */
    bool goes_on;        /* it does, and the norm has not passed the limit */
    bool computes_again; /* the caller can recompute the step */
    bool more;           /* another backward pass follows */
    bool state_is_here;  /* its update is computed here, after the decision */
    bool may_be_gone;    /* something that was sent is no longer in memory */
    bool stays;          /* this gradient stays in memory, whatever is decided */
    bool fits;           /* there is memory for it and for those still to come */
};
enum shore__unit_way { UNIT_IS_SENT, UNIT_IS_HELD, UNIT_GOES_ASIDE, UNIT_IS_SENT_AND_GOES_ASIDE, UNIT_IS_GIVEN_UP };
/* A gradient fits while so many buffers are left: with fewer, backward would wait for a buffer, and so for the norm,
 * which is known only at its end. */
#define SHORE__BUFFERS_TO_GO_ON 2u

enum shore__unit_way shore__unit_way(const struct shore__unit_facts *facts);

#endif
