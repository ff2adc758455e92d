/* longshore top: how a run goes, redrawn each second from the ends of its files. Takes no lock. */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/top_view.h"

struct args {
    bool once;
};

static const struct shore__option options[] = {
    SHORE__OPTION(struct args, FLAG, "once", once, NULL, "print it once; so it is where stdout is no terminal"),
};

/* The terminal's size; elsewhere that of the variables, and no limit of rows. */
static void take_size(unsigned *columns, unsigned *rows) {
    struct winsize size = {0};
    const char *given = getenv("COLUMNS");
    *columns = given && atoi(given) > 0 ? (unsigned)atoi(given) : 80;
    *rows = 0;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) || !size.ws_col) return;
    *columns = size.ws_col;
    *rows = size.ws_row;
}

static int show(const char *path, const char *line_end, struct shore_diag *diag) {
    struct shore__top top;
    unsigned columns, rows;
    take_size(&columns, &rows);
    int rc = shore__top_look(path, &top, diag);
    if (!rc) shore__top_print(stdout, &top, columns, *line_end == '\n' ? 0 : rows, line_end);
    if (!rc) shore__top_free(&top);
    fflush(stdout);
    return rc;
}

/* Whether the next second shows more: no key q, and no signal. */
static bool goes_on(void) {
    struct pollfd keys = {.fd = STDIN_FILENO, .events = POLLIN};
    char key = 0;
    int ready = poll(&keys, isatty(STDIN_FILENO), 1000);
    if (shore__cli_stop_wanted()) return false;
    return ready <= 0 || (read(STDIN_FILENO, &key, 1) == 1 && key != 'q' && key != 'Q' && key != 3);
}

static int watch(const char *path, struct shore_diag *diag) {
    struct termios before, raw;
    bool keys = tcgetattr(STDIN_FILENO, &before) == 0;
    int rc;
    raw = before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    shore__cli_catch_signals("");
    if (keys) tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    fputs("\033[?1049h\033[?25l\033[2J", stdout); /* another screen, without a cursor */
    do {
        fputs("\033[H", stdout);
        rc = show(path, "\033[K\r\n", diag);
        fputs("\033[J", stdout);
        fflush(stdout);
    } while (!rc && goes_on());
    fputs("\033[?25h\033[?1049l", stdout);
    if (keys) tcsetattr(STDIN_FILENO, TCSADRAIN, &before);
    return rc ? rc : show(path, "\n", diag); /* stays on the screen */
}

static int top(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    const char *path = parsed->positional[0], *kind = getenv("TERM");
    struct shore_diag diag = {0};
    bool redraws = isatty(STDOUT_FILENO) && kind && strcmp(kind, "dumb") != 0;
    int rc = a->once || !redraws ? show(path, "\n", &diag) : watch(path, &diag);
    return rc ? shore__cli_fail(rc, &diag) : SHORE__EXIT_DONE;
}

const struct shore__command_line shore__cli_top = {
    .command = "top",
    .synopsis = "top RUN [--once]",
    .about =
        "Shows how a run goes, each second anew: step, loss, throughput, what its time goes to, memory against the\n"
        "budget, and each drive. Of runs of train and of the Python package, also while they are trained. q ends it.",
    .notes = "Figures are of the last steps: those of the mean are named.",
    SHORE__OPTIONS(options),
    .positional = 1,
    .missing = "which run? longshore top RUN",
    SHORE__RUNS(top, struct args, .once = false),
};
