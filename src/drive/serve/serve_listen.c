#include "drive/serve/serve_listen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/diag.h"

/* Serves a client in a process of its own. If it dies, other clients keep their drives; its memory is freed at its
 * end. */
static void serve_one(int listener, int fd, const struct shore__serve_options *options,
                      void (*said)(const char *text)) {
    struct shore_diag diag = {0};
    close(listener);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_IGN); /* Ctrl-C is for the listening process, which ends this one */
    signal(SIGHUP, SIG_IGN); /* and so is the end of its terminal */
    signal(SIGPIPE, SIG_IGN);
    int rc = shore__serve(fd, fd, options, &diag);
    if (rc && said) said(diag.text);
    _exit(rc ? 1 : 0);
}

/* Removes the socket, unless it is another server's by now, because somebody has removed this one's. */
static void remove_socket(const char *path, const struct stat *own) {
    struct stat st;
    if (lstat(path, &st) == 0 && st.st_dev == own->st_dev && st.st_ino == own->st_ino) unlink(path);
}

int shore__serve_listen(const char *path, const struct shore__serve_options *options, bool (*should_stop)(void),
                        void (*said)(const char *text), struct shore_diag *diag) {
    int listener;
    struct stat own = {0};
    int rc = shore__listen(path, &listener, diag);
    if (rc) return rc;
    lstat(path, &own);
    while (!rc && !should_stop()) {
        struct pollfd ready = {listener, POLLIN, 0};
        int fd, n = poll(&ready, 1, 200), code = errno;
        while (waitpid(-1, NULL, WNOHANG) > 0) {
        }
        if (n < 0 && code != EINTR) rc = shore__fail(diag, -code, "%s: cannot be listened on", path);
        if (n <= 0) continue;
        struct shore_diag why;
        if (shore__accept(listener, &fd, &why)) {
            if (said) said(why.text);
            continue;
        }
        pid_t child = fork();
        if (child == 0) serve_one(listener, fd, options, said);
        if (child < 0 && said) said("no process for a client: out of memory, or too many of them");
        close(fd);
    }
    remove_socket(path, &own); /* while it is listened on, nobody else takes its place */
    close(listener);
    return rc;
}
