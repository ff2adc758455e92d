/* Files that the program keeps for the user from one start to the next, and can do without. Threading: any. */
#ifndef SHORE_BASE_CACHE_FILE_H
#define SHORE_BASE_CACHE_FILE_H

#include "base/diag.h"

/* The path of one: in $XDG_CACHE_HOME/longshore or ~/.cache/longshore. malloc'ed; NULL: there is no home directory, or
 * no memory. */
char *shore__cache_file(const char *name);

/* Makes the directories on the way to it. Errors: diag (or NULL) names the directory. */
int shore__cache_directories(const char *path, struct shore_diag *diag);

#endif
