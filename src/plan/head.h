/* What the rules know of our models' head, a vocabulary table that is read in slices: roles beside those of plan.h, and
 * facts beside shore_plan_options. A program of the public interface has neither. */
#ifndef SHORE_PLAN_HEAD_H
#define SHORE_PLAN_HEAD_H

#include "longshore/plan.h"

/* A role that goes on behind the public ones. */
#define SHORE__ROLE(n) ((enum shore_role)(SHORE_ROLES + (n)))
#define SHORE__ROLE_TABLE SHORE__ROLE(0)  /* as SHORE_ROLE_LAYER, read in each unit's turn */
#define SHORE__ROLE_LOOKUP SHORE__ROLE(1) /* the same, but a step reads only a few rows */
#define SHORE__ROLE_LOGITS SHORE__ROLE(2) /* up to `most` stay until their operation ends; others are made again */
#define SHORE__ROLE_HELD SHORE__ROLE(3)   /* a gradient that grows over the whole step: stays, or moves in parts */
#define SHORE__ROLES (SHORE_ROLES + 4)

struct shore__head {
    uint32_t units;    /* of the step */
    bool apart;        /* each unit may go over the table alone, if the table's gradient is held */
    size_t moved_most; /* how many inner tensors the drives have room for */
};

/* As shore_plan_open(), for a program with such a head. */
int shore__plan_open(const struct shore_program *program, const struct shore_plan_options *options,
                     const struct shore__head *head, struct shore_plan **out, struct shore_diag *diag);

#endif
