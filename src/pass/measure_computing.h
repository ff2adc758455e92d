/* Measures what computes on this machine, as training computes: kinds of work, by the rows of a product. */
#ifndef SHORE_PASS_MEASURE_H
#define SHORE_PASS_MEASURE_H

#include "compute/compute.h"
#include "machine/machine.h"

/* Adds the rates of this processor, with products in each precision that it multiplies in. Takes ten seconds, and
 * longer on a slow processor. A narrower layer's operations are as slow as those of fewer rows that do as much: by
 * that, costs.c takes their rates. stop: may be NULL. Errors: -ECANCELED, those of the backend. */
int shore__measure_computing(struct shore_machine *machine, bool (*stop)(void), struct shore_diag *diag);

#endif
