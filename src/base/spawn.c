#include "base/spawn.h"

#include <signal.h>
#include <spawn.h>

extern char **environ;

int shore__spawn(char *const *words, int in, int out, int err, pid_t *child) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none, defaults;
    sigemptyset(&none);
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    sigaddset(&defaults, SIGINT);
    sigaddset(&defaults, SIGTERM);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attr);
    int rc = posix_spawn_file_actions_adddup2(&actions, in, 0);
    if (!rc) rc = posix_spawn_file_actions_adddup2(&actions, out, 1);
    if (!rc) rc = posix_spawn_file_actions_adddup2(&actions, err, 2);
    if (!rc) rc = posix_spawnattr_setsigmask(&attr, &none);
    if (!rc) rc = posix_spawnattr_setsigdefault(&attr, &defaults);
    if (!rc) rc = posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
    if (!rc) rc = posix_spawnp(child, words[0], &actions, &attr, words, environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attr);
    return -rc;
}
