#include "tools/child.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

void shore__words_add(struct shore__words *w, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (w->count + 1 >= sizeof w->item / sizeof w->item[0] || vasprintf(&w->item[w->count], format, args) < 0)
        w->full = true;
    else
        w->count++;
    va_end(args);
}

void shore__words_free(struct shore__words *w) {
    for (size_t i = 0; i < w->count; i++)
        free(w->item[i]);
}

int shore__child_run(struct shore__words *w, char *last, size_t bytes) {
    int out[2];
    pid_t pid;
    posix_spawn_file_actions_t actions;
    last[0] = 0;
    if (w->full) return -E2BIG;
    w->item[w->count] = NULL;
    if (pipe2(out, O_CLOEXEC)) return -errno;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    int rc = posix_spawn(&pid, "/proc/self/exe", &actions, NULL, w->item, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    if (rc) {
        close(out[0]);
        return -rc;
    }
    FILE *stream = fdopen(out[0], "r");
    char line[1024];
    while (stream && fgets(line, sizeof line, stream)) {
        line[strcspn(line, "\n")] = 0;
        snprintf(last, bytes, "%.*s", (int)bytes - 1, line);
    }
    if (stream)
        fclose(stream);
    else
        close(out[0]);
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return -errno;
    return WIFEXITED(status) ? WEXITSTATUS(status) : SHORE__CHILD_SIGNAL + WTERMSIG(status);
}
