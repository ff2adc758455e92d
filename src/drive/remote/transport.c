#include "drive/remote/transport.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/spawn.h"

#define PIPE_BYTES (1 << 20)
#define SOCKET_BYTES (4 << 20)
#define WORDS_MOST 60u
#define CONNECT_SECONDS "15"
#define COMMAND "longshore", "drive", "serve", "--stdio"

/* ---- the way there ----------------------------------------------------------------------------------------------- */

struct command {
    char *copy; /* of the user's words */
    char *words[WORDS_MOST + 16];
};

static const char *rsh_words(void) {
    const char *rsh = getenv(SHORE__RSH_VARIABLE);
    return rsh && *rsh ? rsh : "ssh";
}

static int make_command(const struct shore__address *at, struct command *c, struct shore_diag *diag) {
    static const char *const remote[] = {COMMAND};
    size_t n = 0;
    c->copy = strdup(rsh_words());
    if (!c->copy) return shore__fail(diag, -ENOMEM, "out of memory");
    for (char *save = NULL, *word = strtok_r(c->copy, " \t\n", &save); word; word = strtok_r(NULL, " \t\n", &save)) {
        if (n == WORDS_MOST)
            return shore__fail(diag, SHORE_EUSAGE, SHORE__RSH_VARIABLE " has more than %u words", WORDS_MOST);
        c->words[n++] = word;
    }
    if (n == 0)
        return shore__fail(diag, SHORE_EUSAGE,
                           SHORE__RSH_VARIABLE " is blank: name the command that takes ssh's place, or leave it out");
    const char *slash = strrchr(c->words[0], '/');
    bool is_ssh = strcmp(slash ? slash + 1 : c->words[0], "ssh") == 0;
    if (is_ssh) {
        c->words[n++] = (char *)"-oBatchMode=yes";
        c->words[n++] = (char *)"-oConnectTimeout=" CONNECT_SECONDS;
    }
    if (at->port) {
        c->words[n++] = (char *)"-p";
        c->words[n++] = at->port;
    }
    if (is_ssh) c->words[n++] = (char *)"--";
    c->words[n++] = at->host;
    for (size_t i = 0; i < sizeof remote / sizeof remote[0]; i++)
        c->words[n++] = (char *)(uintptr_t)remote[i];
    c->words[n] = NULL;
    return 0;
}

static void close_pair(int pair[2]) {
    if (pair[0] >= 0) close(pair[0]);
    if (pair[1] >= 0) close(pair[1]);
}

static int open_child(const struct shore__address *at, struct shore__way *w, struct shore_diag *diag) {
    struct command c = {0};
    int to[2] = {-1, -1}, from[2] = {-1, -1}, err[2] = {-1, -1};
    int rc = make_command(at, &c, diag);
    if (!rc && (pipe2(to, O_CLOEXEC) || pipe2(from, O_CLOEXEC) || pipe2(err, O_CLOEXEC)))
        rc = shore__fail(diag, -errno, "cannot make pipes for %s: %s", c.words[0], strerror(errno));
    if (!rc) {
        /* a hint: users may be allowed less */
        fcntl(to[1], F_SETPIPE_SZ, PIPE_BYTES);
        fcntl(from[0], F_SETPIPE_SZ, PIPE_BYTES);
        rc = shore__spawn(c.words, to[0], from[1], err[1], &w->child);
        if (rc)
            shore__fail(diag, rc,
                        "%s cannot be started: %s; install it, or name another command with " SHORE__RSH_VARIABLE,
                        c.words[0], strerror(-rc));
    }
    if (rc) {
        close_pair(to);
        close_pair(from);
        close_pair(err);
    } else {
        close(to[0]);
        close(from[1]);
        close(err[1]);
        rc = shore__conn_init(&w->conn, from[0], to[1], err[0]);
        if (rc) shore__fail(diag, rc, "cannot connect: %s", shore_error_text(rc));
    }
    free(c.copy);
    return rc;
}

static void large_buffers(int fd) {
    const int bytes = SOCKET_BYTES;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes))
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes))
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

/* Whether the other end runs as this user or root. */
static bool is_ours(int fd) {
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && (peer.uid == geteuid() || peer.uid == 0);
}

static struct sockaddr_un address_of(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    return address;
}

static int open_socket(const struct shore__address *at, struct shore__way *w, struct shore_diag *diag) {
    struct sockaddr_un address = address_of(at->socket);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return shore__fail(diag, -errno, "cannot make a socket: %s", strerror(errno));
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        int code = errno;
        close(fd);
        return shore__fail(diag, SHORE_ELINK,
                           "nobody serves drives there (%s); start 'longshore drive serve --listen %s --root DIR'",
                           strerror(code), at->socket);
    }
    if (!is_ours(fd)) {
        close(fd);
        return shore__fail(diag, SHORE_EMISMATCH, "its server runs as another user; start one as your user");
    }
    large_buffers(fd);
    int rc = shore__conn_init(&w->conn, fd, fd, -1);
    return rc ? shore__fail(diag, rc, "cannot connect: %s", shore_error_text(rc)) : 0;
}

/* Waits up to ms for the child; -1: it still runs. */
static int child_status(struct shore__way *w, unsigned ms) {
    int status;
    const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
    for (unsigned waited = 0;; waited += 10) {
        pid_t pid = waitpid(w->child, &status, WNOHANG);
        if (pid == w->child || (pid < 0 && errno != EINTR)) {
            w->child = 0;
            return pid < 0 ? 0 : status;
        }
        if (waited >= ms) return -1;
        nanosleep(&pause, NULL);
    }
}

void shore__way_close(struct shore__way *w) {
    shore__conn_fini(&w->conn); /* its input ends: a server exits, and so does ssh */
    if (w->child && child_status(w, 2000) < 0) {
        kill(w->child, SIGTERM);
        if (child_status(w, 2000) < 0) {
            kill(w->child, SIGKILL);
            waitpid(w->child, NULL, 0);
        }
    }
    w->child = 0;
}

/* The last line with text that a child wrote. */
static void last_words(const struct shore__conn *c, char *out, size_t bytes) {
    const char *end = c->errors + c->nerrors, *at;
    while (end > c->errors && (end[-1] == '\n' || end[-1] == '\r' || end[-1] == ' '))
        end--;
    for (at = end; at > c->errors && at[-1] != '\n' && at[-1] != '\r' && (size_t)(end - at) < bytes / 2; at--) {
    }
    shore__escape(at, (size_t)(end - at), out, bytes);
}

/* Writes the command that a user can try by hand. */
static void by_hand(const struct shore__address *p, char *out, size_t bytes) {
    char command[400];
    const char *port = p->port ? p->port : "";
    snprintf(command, sizeof command, "%.150s%s%s %.200s", rsh_words(), *port ? " -p " : "", port, p->host);
    shore__escape(command, strlen(command), out, bytes);
}

/* Explains a failed start. Before the greeting, the child's words can only come from ssh, or from a shell on the far
 * side. 0: the words are unknown. */
static int explain_start(const struct shore__address *at, const char *said, const char *words, int code,
                         struct shore_diag *why) {
    const char *host = at->host;
    char command[500];
    by_hand(at, command, sizeof command);
    if (code == 127 || strcasestr(said, "command not found") || strstr(said, "longshore: not found"))
        return shore__fail(why, SHORE_EMISSING,
                           "longshore is not installed on %s, or not in the PATH of ssh commands there (%s): install "
                           "it there, in PATH",
                           host, words[0] ? words : "exit code 127");
    if (code == 126)
        return shore__fail(why, -EACCES, "the longshore on %s cannot be run (%s): install one that can", host,
                           words[0] ? words : "exit code 126");
    if (strstr(said, "unknown command") || strstr(said, "unknown flag"))
        return shore__fail(why, SHORE_EFORMAT,
                           "the longshore on %s is too old to serve drives (%s): install the same version on both "
                           "hosts",
                           host, words);
    if (strstr(said, "Host key verification failed") || strstr(said, "IDENTIFICATION HAS CHANGED"))
        return shore__fail(why, -EACCES,
                           "the host key of %s is not known or has changed (%s): run '%s' by hand and look at it", host,
                           words, command);
    if (strstr(said, "Permission denied (") || strstr(said, "Too many authentication failures") ||
        strcasestr(words, "password:") || strcasestr(words, "passphrase for"))
        return shore__fail(why, -EACCES,
                           "%s refuses the login, or asks for a password, which cannot be given here (%s): set up a "
                           "key so that '%s true' works without questions",
                           host, words, command);
    if (code == 255)
        return shore__fail(why, SHORE_ELINK, "%s cannot be reached (%s): see that '%s true' works", host,
                           words[0] ? words : "exit code 255", command);
    return 0;
}

int shore__way_explain(const struct shore__address *at, struct shore__way *w, int rc, const struct shore_diag *why,
                       struct shore_diag *diag) {
    char shown[300], words[700], command[500];
    struct shore_diag start;
    shore__escape(at->text, strlen(at->text), shown, sizeof shown);
    if (!w->child) return shore__fail_of(diag, rc, why, "%s: %.600s", shown, why->text);
    /* the child says what is wrong, and exits: both may take a moment */
    int status = child_status(w, 1500);
    shore__conn_drain_errors(&w->conn);
    last_words(&w->conn, words, sizeof words);
    int code = status >= 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (!w->version) {
        int known = explain_start(at, w->conn.errors, words, code, &start);
        if (known) return shore__fail(diag, known, "%s: %.700s", shown, start.text);
    }
    if (!w->version && rc == SHORE_ELINK) {
        by_hand(at, command, sizeof command);
        return shore__fail(diag, rc,
                           "%s: no longshore answers there, %.300s%s%.200s%s: see what '%s longshore --version' says",
                           shown, why->text, words[0] ? " (" : "", words, words[0] ? ")" : "", command);
    }
    if (words[0]) return shore__fail_of(diag, rc, why, "%s: %.400s (%s)", shown, why->text, words);
    return shore__fail_of(diag, rc, why, "%s: %.600s", shown, why->text);
}

int shore__way_open(const struct shore__address *at, struct shore__way *out, struct shore_diag *diag) {
    struct shore_diag why = {0};
    memset(out, 0, sizeof *out);
    out->conn.in = out->conn.out = out->conn.err = out->conn.wake = -1;
    int rc = at->kind->id == SHORE__KIND_SSH ? open_child(at, out, &why) : open_socket(at, out, &why);
    if (!rc) rc = shore__conn_greeting(&out->conn, &out->version, &why);
    if (!rc) return 0;
    rc = shore__way_explain(at, out, rc, &why, diag);
    shore__way_close(out);
    return rc;
}

/* ---- the server's side ------------------------------------------------------------------------------------------- */

static int check_directory(const char *path, struct shore_diag *diag) {
    struct stat st;
    const char *slash = strrchr(path, '/');
    char *directory = !slash ? strdup(".") : slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
    int rc = 0;
    if (!directory) return shore__fail(diag, -ENOMEM, "out of memory");
    if (mkdir(directory, 0700) != 0 && errno != EEXIST)
        rc = shore__fail_errno(diag, directory, "cannot be made");
    else if (lstat(directory, &st) != 0 || !S_ISDIR(st.st_mode))
        rc = shore__fail(diag, SHORE_EUSAGE, "%s: is not a directory", directory);
    else if (st.st_uid != geteuid() || st.st_mode & 077)
        rc = shore__fail(diag, SHORE_EUSAGE,
                         "%s: a socket that serves drives needs a directory that is yours alone: give it the mode 700, "
                         "or name another",
                         directory);
    free(directory);
    return rc;
}

int shore__listen(const char *path, int *out, struct shore_diag *diag) {
    struct sockaddr_un address = address_of(path);
    if (strlen(path) >= sizeof address.sun_path)
        return shore__fail(diag, SHORE_EUSAGE, "%.200s: the path of a socket has at most %u characters", path,
                           (unsigned)sizeof address.sun_path - 1);
    if (strchr(path, ':'))
        return shore__fail(diag, SHORE_EUSAGE, "%s: the path of a socket must not contain ':'", path);
    int rc = check_directory(path, diag);
    if (rc) return rc;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return shore__fail(diag, -errno, "cannot make a socket: %s", strerror(errno));
    struct stat st;
    if (lstat(path, &st) == 0) {
        if (!S_ISSOCK(st.st_mode)) {
            close(fd);
            return shore__fail(diag, SHORE_EEXISTS, "%s: exists and is not a socket", path);
        }
        int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool alive = probe >= 0 && connect(probe, (struct sockaddr *)&address, sizeof address) == 0;
        if (probe >= 0) close(probe);
        if (alive) {
            close(fd);
            return shore__fail(diag, SHORE_EBUSY, "%s: another server listens there", path);
        }
        unlink(path);
    }
    mode_t before = umask(0177);
    bool bound = bind(fd, (struct sockaddr *)&address, sizeof address) == 0;
    umask(before);
    if (!bound || listen(fd, 64) != 0) {
        rc = shore__fail_errno(diag, path, "cannot be listened on");
        close(fd);
        return rc;
    }
    *out = fd;
    return 0;
}

int shore__accept(int listener, int *out, struct shore_diag *diag) {
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return shore__fail(diag, -errno, "cannot accept a client: %s", strerror(errno));
    if (!is_ours(fd)) {
        close(fd);
        return shore__fail(diag, SHORE_EMISMATCH, "another user's client was turned away");
    }
    large_buffers(fd);
    *out = fd;
    return 0;
}
