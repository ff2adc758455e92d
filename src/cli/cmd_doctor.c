#include "cli/doctor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/clean_text.h"
#include "cli/cli.h"
#include "drive/address.h"

enum { ASK_SECONDS = 10 };

struct args {
    struct shore__strings drives;
    bool json;
};

static const struct shore__option options[] = {
    SHORE__OPTION(struct args, LIST, "drive", drives, "PATH...",
                  "drives to look at and to measure, as train takes them: directories, files, block devices, ssh://"),
    SHORE__OPTION(struct args, FLAG, "json", json, NULL, "one JSON object on one line"),
};

static const struct shore__command_line line = {
    .command = "doctor",
    .remote = true,
    .synopsis = "doctor [--drive PATH...] [--json]",
    .about = "Tells what this machine has for training: processor, I/O, memory and limits, and of each drive its file\n"
             "system, room and rates. Each line begins with OK, with WARN where it works but not as well as it might,\n"
             "or with FAIL where something that is needed does not work; the last two say what to do.",
    .notes =
        "A drive is measured with a temporary file of 96 MiB that has no name: nothing is left behind, however this\n"
        "ends. Block devices are not measured. Exit code 1: something that is needed does not work.",
    SHORE__OPTIONS(options),
};

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

/* Up to the end of what it says, or of its time; whether it ended. */
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
    /* one that hangs in its driver does not even die */
    bool gone = started && waitpid(child, &status, ended ? 0 : WNOHANG) == child;
    return gone && ended && WIFEXITED(status) && WEXITSTATUS(status) == 0 && out[0];
}

static void look_at_drives(struct shore__report *r, const struct shore__strings *drives) {
    struct shore__whereabouts *places = calloc(drives->count + 1, sizeof *places);
    struct shore__address **at = calloc(drives->count + 1, sizeof(struct shore__address *));
    struct shore_diag *why = calloc(drives->count + 1, sizeof *why);
    size_t n = 0;
    bool over_there = false;
    for (size_t i = 0; at && why && i < drives->count; i++)
        over_there |= shore__address_parse(drives->item[i], &at[i], &why[i]) || !at[i]->kind->here;
    shore__doctor_ssh(r, over_there);
    for (size_t i = 0; at && why && places && i < drives->count && !shore__cli_stop_wanted(); i++) {
        if (!at[i])
            shore__doctor_refuse(r, drives->item[i], &why[i]);
        else if (shore__doctor_drive(r, at[i], places, n, &places[n]))
            n++;
    }
    for (size_t i = 0; at && i < drives->count; i++)
        free(at[i]);
    free(at);
    free(why);
    free(places);
}

static int finish(struct shore__report *r) {
    bool good = r->count[SHORE__BROKEN] == 0;
    if (r->json) {
        json_t *o = json_pack("{s:b,s:O}", "ok", good, "checks", r->checks);
        return shore__cli_print_json(o) || !good ? SHORE__EXIT_FAILED : SHORE__EXIT_DONE;
    }
    size_t i;
    json_t *check;
    char names[600] = "";
    json_array_foreach(r->checks, i, check) {
        const char *name = json_string_value(json_object_get(check, "check"));
        if (!name || strcmp(json_string_value(json_object_get(check, "status")), "fail") != 0) continue;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", shore__shown(name).text);
    }
    if (good)
        printf("everything that is needed works%s\n", r->count[SHORE__WEAK] ? "; WARN says what could be better" : "");
    else
        printf("does not work, and is needed: %s\n", names);
    return good ? SHORE__EXIT_DONE : SHORE__EXIT_FAILED;
}

static int examine(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    struct shore__report r = {.checks = json_array(), .json = a->json};
    shore__cli_catch_signals("longshore: stopping after this drive\n");
    shore__doctor_machine(&r);
    shore__doctor_graphics(&r);
    look_at_drives(&r, &a->drives);
    int code = shore__cli_stop_wanted() ? SHORE__EXIT_FAILED : finish(&r);
    json_decref(r.checks);
    return code;
}

int shore__cli_doctor(int argc, char **argv) {
    struct args a = {.json = false};
    return shore__cli_command(&line, argc, argv, &a, examine);
}
