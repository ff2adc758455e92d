#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"

static volatile sig_atomic_t signals_seen, warned, line_passes;
static bool usr1_stops;
static const char *first_answer;

static void answer(const char *text) {
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
}

static void on_signal(int number) {
    bool again = signals_seen || warned;
    if (number == SIGHUP && again) return; /* a closed terminal sends one, and so does its shell */
    if (number == SIGUSR1 && again) return;
    if (number == SIGUSR1)
        warned = 1; /* the SIGTERM that a scheduler sends at the end is the first */
    else if (++signals_seen > 1)
        _exit(SHORE__EXIT_FAILED);
    answer(line_passes ? "\r\033[K" : "\n");
    answer(first_answer);
}

/* Signals have their own stack, because oneDNN's kernels keep values below the stack pointer, which a signal's frame
 * would overwrite. With the processor's whole state (AMX), a frame takes 12 KiB. */
static char stack[64 << 10];

void shore__cli_catch_signals(const char *promise) {
    first_answer = promise;
    stack_t own = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&own, NULL);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK}, before;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (usr1_stops) sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGHUP, NULL, &before);
    if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, NULL); /* nohup ignores it */
    /* a reader of our output that ends must not end the training */
    signal(SIGPIPE, SIG_IGN);
}

void shore__cli_stop_on_usr1(void) {
    usr1_stops = true;
}

void shore__cli_passes(bool passes) {
    line_passes = passes;
}

bool shore__cli_stop_wanted(void) {
    return signals_seen || warned;
}
