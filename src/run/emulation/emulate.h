/* The machine that `--emulate` names. */
#ifndef SHORE_RUN_EMULATION_EMULATE_H
#define SHORE_RUN_EMULATION_EMULATE_H

#include "longshore/machine.h"

/* shore_machine_read(), which refuses one that would slow down nothing. */
int shore__emulation_open(const char *name, struct shore_machine **out, struct shore_diag *diag);

/* Makes a file's name absolute, so that a run finds it from other directories. *name is malloc'ed; NULL stays. */
int shore__emulation_absolute(char **name, struct shore_diag *diag);

#endif
