/* longshore drive serve: serves drives to other hosts. */
#include "drive/serve/serve.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/diag.h"
#include "cli/cli.h"
#include "drive/serve/serve_listen.h"
#include "longshore/version.h"

struct args {
    bool stdio;
    char *listen, *root;
    uint64_t memory_bytes;
};

static const struct shore__option options[] = {
    SHORE__OPTION(struct args, FLAG, "stdio", stdio, NULL,
                  "serve one client on standard input and output: what --drive ssh://HOST/PATH runs on HOST"),
    SHORE__OPTION(struct args, TEXT, "listen", listen, "SOCKET",
                  "serve clients of this user on a socket, for --drive unix:SOCKET[:PATH]; its directory must be "
                  "yours alone"),
    SHORE__OPTION(struct args, TEXT, "root", root, "DIR",
                  "serve nothing outside of this directory; relative paths begin here"),
    SHORE__OPTION(struct args, SIZE, "memory", memory_bytes, "SIZE",
                  "memory for one drive's buffers and tables; otherwise 256MiB"),
};

static void said(const char *text) {
    shore__cli_say("%s", text);
}

/* A device may be served alone. A file needs a directory with room for others. */
static int check_root(const char *root, struct shore_diag *diag) {
    struct stat st;
    if (stat(root, &st)) return shore__fail(diag, -errno, "--root %s: cannot be used: %s", root, strerror(errno));
    if (S_ISDIR(st.st_mode) || S_ISBLK(st.st_mode)) return 0;
    return shore__fail(
        diag, SHORE_EUSAGE,
        "--root %s: is not a directory; give the directory above it, and name the file in the drive's path", root);
}

static int serve(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    struct shore_diag diag = {0};
    struct shore__serve_options o = {.root = a->root, .memory_bytes = a->memory_bytes, .build = shore_version()};
    int rc = a->root ? check_root(a->root, &diag) : 0;
    if (a->stdio == (a->listen != NULL))
        rc = shore__fail(&diag, SHORE_EUSAGE, "serve where? Give --stdio, or --listen SOCKET");
    signal(SIGPIPE, SIG_IGN);
    if (rc) {
        /* it says so below */
    } else if (a->listen) {
        shore__cli_catch_signals("longshore: no more clients\n");
        rc = shore__serve_listen(a->listen, &o, shore__cli_stop_wanted, said, &diag);
    } else {
        int in = dup(STDIN_FILENO), out = dup(STDOUT_FILENO);
        rc = shore__serve(in, out, &o, &diag);
        if (rc == SHORE_ELINK) { /* the other side ended: not a failure here */
            said(diag.text);
            rc = 0;
        }
    }
    return rc ? shore__cli_fail(rc, &diag) : SHORE__EXIT_DONE;
}

const struct shore__command_line shore__cli_drive_serve = {
    .command = "drive serve",
    .synopsis = "drive serve --stdio [--root DIR] [--memory SIZE]\n"
                "drive serve --listen SOCKET [--root DIR] [--memory SIZE]",
    .about = "Serves drives of this host to training on another one, or behind a socket: UPDATE runs here, so the\n"
             "optimizer's state never crosses. Ends when its client is gone.",
    .notes = "To let a key do nothing else, put this in front of it in ~/.ssh/authorized_keys:\n"
             "  restrict,command=\"longshore drive serve --stdio --root /mnt/nvme0 --memory 1GiB\" ssh-ed25519 ...\n"
             "docs/wire-protocol.md describes what goes over the connection.",
    SHORE__OPTIONS(options),
    SHORE__RUNS(serve, struct args, 0),
};
