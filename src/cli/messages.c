#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"

static struct {
    pthread_mutex_t lock;
    bool open, passing; /* open: an unfinished progress line is on the terminal; passing: the line is temporary */
    uint64_t drawn_ns, worked_ns;
} screen = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void end_line(void) {
    if (screen.open) fputs(screen.passing ? "\r\033[K" : "\n", stderr);
    screen.open = false;
    shore__cli_passes(screen.passing = false);
}

void shore__cli_say(const char *format, ...) {
    char text[2 * PATH_MAX], printable[4 * PATH_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&screen.lock);
    end_line();
    /* an untrusted path may contain bytes that move the cursor or end the line */
    fprintf(stderr, "longshore: %s\n", shore__printable(text, strlen(text), printable, sizeof printable));
    pthread_mutex_unlock(&screen.lock);
}

void shore__cli_note(void *ctx, const char *text) {
    shore__cli_say("%s", text);
}

const char *const shore__cli_advice[SHORE_ADVICE_COUNT] = {
    [SHORE_ADVICE_OVERWRITE] = "when making a run or measuring a device, --overwrite replaces what is there",
    [SHORE_ADVICE_GO_ON] = "go on with it by --resume {}, or replace it with --overwrite",
    [SHORE_ADVICE_MOVED] = "if it is elsewhere now, train --resume with --drive {}=NEW says so",
    [SHORE_ADVICE_ACCEPT_STEP] = "train --resume with --accept-step {} goes on from there, if that step is whole",
    [SHORE_ADVICE_NOT_A_COPY] = "if this is the run itself and not a copy, say so with --not-a-copy",
    [SHORE_ADVICE_MAKE_RUN] = "train --out makes one",
    [SHORE_ADVICE_THREADS] = "--io threads does without",
    [SHORE_ADVICE_SNAPSHOTS] = "'longshore snapshots {}' lists those there are",
    [SHORE_ADVICE_REMOVE_SNAPSHOT] = "'longshore snapshot {} --remove' removes it",
    [SHORE_ADVICE_ROLL_BACK] = "or 'longshore rollback {} NAME' goes back to another snapshot",
    [SHORE_ADVICE_REMOVE_RUN] = "'longshore remove {}' removes it",
    [SHORE_ADVICE_DEVICE_TIMEOUT] = "train --resume goes on from there",
    [SHORE_ADVICE_TOKENIZER] = "give --tokenizer DIR, or --tokenizer bytes if it is a model of bytes",
};

static int report(int rc, const struct shore_diag *diag) {
    char line[sizeof *diag + 256];
    if (diag && diag->text[0])
        shore__cli_say("%s", shore_diag_say(diag, shore__cli_advice, line, sizeof line));
    else
        shore__cli_say("%s", shore_error_text(rc));
    return rc;
}

int shore__cli_fail_running(int rc, const struct shore_diag *diag) {
    report(rc, diag);
    return SHORE__EXIT_FAILED;
}

int shore__cli_fail(int rc, const struct shore_diag *diag) {
    static const int refused[] = {
        SHORE_EUSAGE,  SHORE_EINPUT,   SHORE_EFORMAT, SHORE_EMISMATCH, SHORE_ESTALE, SHORE_EBUSY, SHORE_EBUDGET,
        SHORE_EEXISTS, SHORE_EMISSING, SHORE_ELINK,   -ENOSPC,         -EDQUOT,      -EFBIG,      -EMFILE,
        -ENOENT,       -ENOTDIR,       -EISDIR,       -EACCES,         -EPERM,       -EROFS,      -EINVAL,
        -ENAMETOOLONG, -ELOOP,         -ENXIO,        -ENOTSUP,
    };
    report(rc, diag);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (rc == refused[i]) return SHORE__EXIT_USAGE;
    return SHORE__EXIT_FAILED;
}

int shore__cli_fail_opened(int rc, const struct shore_diag *diag) {
    if (rc != SHORE_ELINK) return shore__cli_fail(rc, diag);
    report(rc, diag);
    shore__cli_say("when the drive is back, the same command can be given again");
    return SHORE__EXIT_FAILED;
}

int shore__cli_print_json(json_t *object) {
    char *text = object ? json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    if (!text) return shore__cli_fail_running(-ENOMEM, NULL);
    puts(text);
    free(text);
    return shore__cli_finish(SHORE__EXIT_DONE);
}

int shore__cli_finish(int code) {
    static bool said; /* what prints rows checks it after each row */
    if (fflush(stdout) || ferror(stdout)) {
        if (!said) shore__cli_say("cannot write to standard output: %s", strerror(errno));
        said = true;
        return SHORE__EXIT_FAILED;
    }
    return code;
}

bool shore__cli_redraws(void) {
    const char *kind = getenv("TERM");
    return isatty(STDERR_FILENO) && !(kind && strcmp(kind, "dumb") == 0);
}

/* Bytes of the whole fields, separated by two blanks, that fit a line of so many columns. */
static int fitting(const char *text, int columns) {
    int bytes = (int)strlen(text), end = columns;
    if (bytes <= columns) return bytes;
    while (end > 0 && !(text[end] == ' ' && text[end + 1] == ' '))
        end--;
    return end > 0 ? end : columns;
}

static void draw(const char *text, bool keep, bool passing) {
    const uint64_t redraw_ns = 100000000;
    pthread_mutex_lock(&screen.lock);
    if (shore__cli_redraws()) {
        uint64_t now = shore__now_ns();
        if (keep || now - screen.drawn_ns >= redraw_ns) {
            struct winsize size = {0};
            int width = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1 : 79;
            fprintf(stderr, "\r%.*s\033[K", fitting(text, width), text); /* a wrapped line cannot be redrawn */
            screen.open = true;
            shore__cli_passes(screen.passing = passing);
            screen.drawn_ns = now;
            if (keep) end_line();
        }
    } else if (keep) {
        fprintf(stderr, "%s %s\n", shore__format_time_of_day(time(NULL)).text, text);
    }
    pthread_mutex_unlock(&screen.lock);
}

void shore__cli_progress(const char *text, bool keep) {
    draw(text, keep, false);
}

void shore__cli_progress_end(void) {
    pthread_mutex_lock(&screen.lock);
    end_line();
    pthread_mutex_unlock(&screen.lock);
}

void shore__cli_put_text(FILE *out, const char *text, size_t bytes) {
    if (!isatty(fileno(out))) {
        fwrite(text, 1, bytes, out);
        return;
    }
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        unsigned char next = i + 1 < bytes ? (unsigned char)text[i + 1] : 0;
        if ((c < 32 && c != '\n' && c != '\t') || c == 127)
            fprintf(out, "\\x%02x", c);
        else if (c == 0xC2 && next >= 0x80 && next < 0xA0) /* controls beyond ASCII */
            i += fprintf(out, "\\u{%x}", next) > 0;
        else
            fputc(c, out);
    }
}

int shore__cli_work(void *name, uint64_t done_bytes, uint64_t total_bytes) {
    const uint64_t plain_ns = 5000000000; /* between lines that scroll */
    if (name) {
        uint64_t now = shore__now_ns();
        bool keep = !shore__cli_redraws() && now - screen.worked_ns >= plain_ns;
        if (screen.worked_ns == 0) {
            keep = false;
            screen.worked_ns = now;
        }
        if (keep) screen.worked_ns = now;
        char text[160];
        snprintf(text, sizeof text, "%s: %.0f %%", (const char *)name,
                 total_bytes ? 100.0 * (double)done_bytes / (double)total_bytes : 0.0);
        draw(text, keep, true);
    }
    return shore__cli_stop_wanted();
}
