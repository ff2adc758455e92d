/* Child processes. */
#ifndef SHORE_BASE_SPAWN_H
#define SHORE_BASE_SPAWN_H

#include <sys/types.h>

/* Starts a program, found as a shell finds it, with these descriptors as its standard ones. It has a session of its
 * own: no terminal to ask for a password, and no Ctrl-C. words: NULL ends them. Returns 0 or -errno. */
int shore__spawn(char *const *words, int in, int out, int err, pid_t *child);

#endif
