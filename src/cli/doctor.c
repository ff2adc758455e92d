/* Shared by the checks of `doctor`: prints a line of the report, and runs commands. */
#include "cli/doctor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/units.h"
#include "cli/clean_text.h"

enum { ASK_SECONDS = 10 };

void shore__report_add(struct shore__report *r, const char *what, enum shore__verdict verdict, const char *advice,
                       json_t *facts, const char *format, ...) {
    static const char *const words[] = {"OK", "WARN", "FAIL"}, *const keys[] = {"ok", "warn", "fail"};
    char text[1500], plain[2000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->count[verdict]++;
    json_t *o = json_pack("{s:o,s:s,s:o}", "check", shore__clean_json(what, strlen(what)), "status", keys[verdict],
                          "text", shore__clean_json(text, strlen(text)));
    if (o && advice) json_object_set_new(o, "advice", shore__clean_json(advice, strlen(advice)));
    json_object_update_new(o, facts);
    json_array_append_new(r->checks, o);
    if (r->json) return;
    printf("%-5s %s: %s%s%s\n", words[verdict], shore__shown(what).text,
           shore__printable(text, strlen(text), plain, sizeof plain), advice ? "; " : "", advice ? advice : "");
    fflush(stdout);
}

/* Reads to the end of the output or the time limit. Returns whether the output ended. */
static bool listen_to(int fd, char *out, size_t bytes) {
    uint64_t deadline = shore__now_ns() + ASK_SECONDS * UINT64_C(1000000000);
    size_t used = 0;
    for (;;) {
        char rest[256];
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        uint64_t now = shore__now_ns();
        if (now >= deadline) break;
        if (poll(&ready, 1, (int)((deadline - now) / 1000000) + 1) <= 0) continue;
        bool full = used + 1 >= bytes;
        ssize_t n = full ? read(fd, rest, sizeof rest) : read(fd, out + used, bytes - 1 - used);
        if (n <= 0) return n == 0;
        if (!full) used += (size_t)n;
        out[used] = '\0';
    }
    return false;
}

bool shore__doctor_ask(char *const *words, char *out, size_t bytes) {
    int said[2], status = 0;
    pid_t child;
    posix_spawn_file_actions_t actions;
    out[0] = '\0';
    if (pipe2(said, O_CLOEXEC)) return false;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, said[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, said[1], STDERR_FILENO);
    bool started = posix_spawnp(&child, words[0], &actions, NULL, words, environ) == 0;
    posix_spawn_file_actions_destroy(&actions);
    close(said[1]);
    bool ended = started && listen_to(said[0], out, bytes);
    close(said[0]);
    if (started && !ended) kill(child, SIGKILL);
    /* a process that hangs in its driver cannot even be killed */
    bool gone = started && waitpid(child, &status, ended ? 0 : WNOHANG) == child;
    return gone && ended && WIFEXITED(status) && WEXITSTATUS(status) == 0 && out[0];
}
