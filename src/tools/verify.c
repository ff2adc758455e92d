#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/limits.h"
#include "cli/cli.h"
#include "cli/train_options.h"
#include "drive/address.h"
#include "train/train.h"

/* A training of the same model that holds its state in another way. */
struct trial {
    const char *name;
    uint64_t memory_bytes, chunk_bytes;
    unsigned volumes; /* on each drive; 0: ram: */
    const char *io, *speculate, *offload, *gather;
    uint64_t stop_at; /* nonzero: stop cleanly there, then --resume */
    char line[128];   /* its digest line */
};

struct verify {
    struct shore__train_args args; /* first: the flags of train count from here */
    const struct shore__parsed *parsed;
    uint64_t steps;
    char *work; /* directory of the runs */
    unsigned runs;
};

#define SEGMENT_BYTES (UINT64_C(12) * SHORE_SEGMENT_ELEMS)
#define USUAL_STEPS 3u

/* The flags of train, in train's order, because the check of given flags relies on it. */
static struct shore__command_line verify_line(void) {
    static struct shore__option options[SHORE__OPTIONS_MAX];
    struct shore__command_line line = shore__train_line;
    memcpy(options, line.options, line.noptions * sizeof *options);
    options[shore__option_find(&line, "json")].help = "one JSON object on one line";
    line.options = options;
    line.without =
        "out resume overwrite accept-step dry-run stop-at not-a-copy stopped-exit stop-on-usr1 lora tbw machine "
        "max-writes-per-day trace tensorboard stop-after-no-gain";
    line.command = "verify";
    line.synopsis =
        "verify --init NAME|--model DIR --data FILE... --drive DIR... [--steps N] [--json] [flags of train]";
    line.about =
        "Trains a model a few steps, again and again: under two budgets (the minimum, and everything kept), with\n"
        "several chunk sizes and placements (one volume, several, memory where it fits), interrupted and resumed, and\n"
        "compares every bit of the results. Flags are those of train; --steps is 3 unless given. Runs and volumes\n"
        "are temporary.";
    line.notes =
        "Exit code 0: all the same; 1: not. Killed outright (SIGKILL), it leaves what is called longshore-verify-*\n"
        "in TMPDIR and on the drives.";
    return line;
}

/* ---- a training, by this program as a child ---------------------------------------------------------------------- */

#define CHILD_SIGNAL 128 /* as shells have it */

extern char **environ;

struct words {
    char *item[160];
    size_t count;
    bool full;
};

__attribute__((format(printf, 2, 3))) static void add(struct words *w, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (w->count + 1 >= sizeof w->item / sizeof w->item[0] || vasprintf(&w->item[w->count], format, args) < 0)
        w->full = true;
    else
        w->count++;
    va_end(args);
}

/* Runs words, whose first is the program's name, and returns the last line of its output. Returns its exit code,
 * CHILD_SIGNAL plus the number of the signal that ended it, or a negative code (-E2BIG: too many words). */
static int run(struct words *w, char *last, size_t bytes) {
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
    return WIFEXITED(status) ? WEXITSTATUS(status) : CHILD_SIGNAL + WTERMSIG(status);
}

/* ---- trials ------------------------------------------------------------------------------------------------------ */

static int drives_of(const struct verify *v, const struct trial *t, struct shore__addresses *out) {
    const struct shore__addresses *drives = &v->args.settings.drives;
    int rc = t->volumes ? 0 : shore__addresses_parse(out, "ram:", NULL);
    for (size_t d = 0; t->volumes && d < drives->count; d++)
        for (unsigned i = 0; !rc && i < t->volumes; i++) {
            char name[64];
            snprintf(name, sizeof name, "longshore-verify-%ld-%u-%u.volume", (long)getpid(), v->runs, i);
            rc = shore__addresses_add(out, shore__address_in(drives->item[d], name));
        }
    return rc;
}

/* Adds the given flags that decide the bits. Each training gets its own steps, and none validates. */
static void add_given(struct words *w, const struct verify *v) {
    json_t *all = shore__settings_to_json(&v->args.settings), *value, *item;
    const char *key;
    size_t i;
    json_object_foreach(all, key, value) {
        enum shore__setting_role role = shore__role_of_setting(key);
        bool decides = role == SHORE__IDENTITY || role == SHORE__SCHEDULE || strcmp(key, "update") == 0;
        if (!decides || strcmp(key, "steps") == 0 || strncmp(key, "val-", 4) == 0) continue;
        if (!shore__option_given(&shore__train_line, v->parsed, key)) continue;
        if (json_is_string(value)) add(w, "--%s=%s", key, json_string_value(value));
        if (json_is_boolean(value)) add(w, "--%s=%s", key, json_is_true(value) ? "on" : "off");
        if (json_is_integer(value)) add(w, "--%s=%lld", key, (long long)json_integer_value(value));
        if (json_is_real(value)) add(w, "--%s=%.17g", key, json_real_value(value));
        json_array_foreach(value, i, item) add(w, "--%s=%s", key, json_string_value(item));
    }
    json_decref(all);
}

static void add_drives(struct words *w, const struct verify *v, const struct trial *t) {
    struct shore__addresses drives = {0};
    w->full |= drives_of(v, t, &drives) != 0;
    for (size_t i = 0; i < drives.count; i++)
        add(w, "--drive=%s", drives.text[i]);
    shore__addresses_free(&drives);
}

/* Trains with the words and the trial's flags, and takes over the words. */
static int train(struct words *w, struct trial *t) {
    add(w, "--memory=%llu", (unsigned long long)t->memory_bytes);
    if (t->chunk_bytes) add(w, "--chunk-size=%llu", (unsigned long long)t->chunk_bytes);
    if (t->io) add(w, "--io=%s", t->io);
    if (t->speculate) add(w, "--speculate=%s", t->speculate);
    if (t->offload) add(w, "--offload=%s", t->offload);
    if (t->gather) add(w, "--gather=%s", t->gather);
    add(w, "--quiet");
    int rc = run(w, t->line, sizeof t->line);
    for (size_t i = 0; i < w->count; i++)
        free(w->item[i]);
    return rc;
}

static int train_fresh(const struct verify *v, struct trial *t, const char *run) {
    struct words w = {0};
    add(&w, "longshore");
    add(&w, "train");
    add_given(&w, v);
    add(&w, "--steps=%llu", (unsigned long long)v->steps);
    if (t->stop_at) add(&w, "--stop-at=%llu", (unsigned long long)t->stop_at);
    add_drives(&w, v, t);
    add(&w, "--out=%s", run);
    return train(&w, t);
}

static int train_resume(struct trial *t, const char *run) {
    struct words w = {0};
    add(&w, "longshore");
    add(&w, "train");
    add(&w, "--resume=%s", run);
    return train(&w, t);
}

/* Removes the volumes that a failed training left. */
static void remove_volumes(const struct verify *v, const struct trial *t) {
    struct shore__addresses drives = {0};
    drives_of(v, t, &drives);
    for (size_t i = 0; t->volumes && i < drives.count; i++)
        unlink(drives.text[i]);
    shore__addresses_free(&drives);
}

static int try(struct verify *v, struct trial *t) {
    char *run = NULL;
    struct shore_diag diag;
    bool begun;
    if (asprintf(&run, "%s/%u", v->work, v->runs) < 0) return -ENOMEM;
    if (!v->args.settings.quiet) shore__cli_say("training: %s", t->name);
    int rc = train_fresh(v, t, run);
    if (!rc && t->stop_at && !shore__cli_stop_wanted()) rc = train_resume(t, run);
    if (shore__is_run(run)) shore__run_remove(run, &begun, NULL, NULL, &diag);
    remove_volumes(v, t);
    v->runs++;
    free(run);
    return rc;
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

/* The needs of the same settings on so many volumes. */
static int needs_of(struct verify *v, const struct shore__model *m, unsigned volumes, uint64_t chunk_bytes,
                    enum shore__when offload, struct shore__needs *out, struct shore_diag *diag) {
    struct shore__settings s = v->args.settings;
    struct trial t = {.volumes = volumes};
    s.drives = (struct shore__addresses){0};
    s.chunk_bytes = chunk_bytes;
    s.offload = offload;
    int rc = drives_of(v, &t, &s.drives) ? shore__out_of_memory(diag) : shore__train_needs(&s, m, out, diag);
    shore__addresses_free(&s.drives);
    return rc;
}

enum { TRIALS = 12 };

static int plan(struct verify *v, const struct shore__model *m, struct trial *trials, size_t *count,
                struct shore_diag *diag) {
    uint64_t machine = shore__machine_memory_bytes(), most = v->args.settings.memory_bytes;
    if (!most) most = machine / 2;
    struct shore__needs one = {0}, large = {0}, five = {0}, stored = {0}, ram = {0};
    int rc = needs_of(v, m, 1, 0, SHORE__AUTO, &one, diag);
    if (!rc) rc = needs_of(v, m, 1, 8 * SEGMENT_BYTES, SHORE__AUTO, &large, diag);
    if (!rc) rc = needs_of(v, m, 5, 0, SHORE__AUTO, &five, diag);
    if (!rc) rc = needs_of(v, m, 1, 0, SHORE__ON, &stored, diag);
    if (!rc) rc = needs_of(v, m, 0, 0, SHORE__AUTO, &ram, diag);
    if (!rc) rc = shore_budget(most, one.minimum_bytes, 0, &most, diag);
    if (!rc) rc = shore__cli_disk_space(&v->args.settings.drives, one.disk_bytes, diag);
    if (rc) return rc;
    uint64_t comfortable = one.comfortable_bytes < most ? one.comfortable_bytes : most;
    uint64_t roomy = large.comfortable_bytes < most ? large.comfortable_bytes : most;
    size_t n = 0;
    trials[n++] = (struct trial){
        .name = "one volume a drive, everything that fits kept", .memory_bytes = comfortable, .volumes = 1};
    trials[n++] = (struct trial){.name = "the minimum budget", .memory_bytes = one.minimum_bytes, .volumes = 1};
    trials[n++] = (struct trial){
        .name = "smallest chunks", .memory_bytes = comfortable, .chunk_bytes = SEGMENT_BYTES, .volumes = 1};
    if (large.minimum_bytes <= most)
        trials[n++] = (struct trial){
            .name = "large chunks", .memory_bytes = roomy, .chunk_bytes = 8 * SEGMENT_BYTES, .volumes = 1};
    struct shore_diag no_room;
    uint64_t middle = (one.minimum_bytes + comfortable) / 2;
    if (!shore__cli_disk_space(&v->args.settings.drives, stored.disk_bytes, &no_room))
        trials[n++] = (struct trial){
            .name = "inner activations on the drives", .memory_bytes = middle, .volumes = 1, .offload = "on"};
    if (five.minimum_bytes <= most)
        trials[n++] = (struct trial){
            .name = "five volumes a drive, their minimum budget", .memory_bytes = five.minimum_bytes, .volumes = 5};
    trials[n++] = (struct trial){
        .name = "thread pool instead of io_uring", .memory_bytes = comfortable, .volumes = 1, .io = "threads"};
    trials[n++] =
        (struct trial){.name = "never speculating", .memory_bytes = comfortable, .volumes = 1, .speculate = "off"};
    trials[n++] =
        (struct trial){.name = "always speculating", .memory_bytes = comfortable, .volumes = 1, .speculate = "on"};
    if (!m->arch.tied)
        trials[n++] = (struct trial){
            .name = "rows of the embedding gathered", .memory_bytes = comfortable, .volumes = 1, .gather = "on"};
    if (v->steps > 1)
        trials[n++] = (struct trial){.name = "interrupted and resumed",
                                     .memory_bytes = one.minimum_bytes,
                                     .volumes = 1,
                                     .stop_at = (v->steps + 1) / 2};
    if (ram.minimum_bytes <= most)
        trials[n++] = (struct trial){.name = "in memory (ram:)",
                                     .memory_bytes = ram.comfortable_bytes < most ? ram.comfortable_bytes : most,
                                     .volumes = 0};
    *count = n;
    return 0;
}

/* ---- the result -------------------------------------------------------------------------------------------------- */

static int print(const struct verify *v, const struct trial *trials, size_t count, bool same) {
    if (v->args.json) {
        json_t *list = json_array();
        for (size_t i = 0; i < count; i++)
            json_array_append_new(list, json_pack("{s:s,s:I,s:s,s:b}", "name", trials[i].name, "memory_bytes",
                                                  (json_int_t)trials[i].memory_bytes, "digest", trials[i].line, "same",
                                                  strcmp(trials[i].line, trials[0].line) == 0));
        shore__cli_print_json(json_pack("{s:b,s:o}", "same", same, "trials", list));
    } else {
        printf("%-48s %12s  %s\n", "training", "budget", "result");
        for (size_t i = 0; i < count; i++)
            printf("%-48s %12s  %s%s\n", trials[i].name, shore__format_size(trials[i].memory_bytes).text,
                   trials[i].line, strcmp(trials[i].line, trials[0].line) == 0 ? "" : "  DIFFERS");
        puts(same ? "the same bits everywhere" : "the bits DIFFER: please report this, with the table above");
    }
    return same ? SHORE__EXIT_DONE : SHORE__EXIT_FAILED;
}

static int run_trials(struct verify *v, struct trial *trials, size_t count) {
    bool same = true;
    for (size_t i = 0; i < count; i++) {
        int rc = try(v, &trials[i]);
        if (shore__cli_stop_wanted()) {
            shore__cli_say("stopped before all was compared; nothing is left behind");
            return SHORE__EXIT_FAILED;
        }
        if (rc > CHILD_SIGNAL) {
            shore__cli_say("the training '%s' was ended by signal %d (%s)", trials[i].name, rc - CHILD_SIGNAL,
                           strsignal(rc - CHILD_SIGNAL));
            return SHORE__EXIT_FAILED;
        }
        if (rc) {
            shore__cli_say("the training '%s' failed%s%s; its message is above", trials[i].name, rc < 0 ? ": " : "",
                           rc < 0 ? shore_error_text(rc) : "");
            return i == 0 && rc == SHORE__EXIT_USAGE ? SHORE__EXIT_USAGE : SHORE__EXIT_FAILED;
        }
        same = same && trials[i].line[0] && strcmp(trials[i].line, trials[0].line) == 0;
    }
    return print(v, trials, count, same);
}

static int check(struct verify *v, struct shore_diag *diag) {
    struct shore__settings *s = &v->args.settings;
    int rc = shore__train_take_names(&v->args, diag);
    if (rc) return rc;
    if (!s->data.count) return shore__fail(diag, SHORE_EUSAGE, "which text? Give --data FILE...");
    if (!s->drives.count) return shore__fail(diag, SHORE_EUSAGE, "which drives? Give --drive DIR, a directory on each");
    if (shore__settings_emulated(s))
        return shore__fail(diag, SHORE_EUSAGE,
                           "--emulate takes another machine's time, and verify compares bits alone: leave it out");
    for (size_t i = 0; i < s->drives.count; i++) {
        struct stat st;
        if (s->drives.item[i]->kind->served) continue;
        if (stat(s->drives.item[i]->path, &st) || !S_ISDIR(st.st_mode))
            return shore__fail(diag, SHORE_EUSAGE,
                               "%s: is not a directory; verify makes temporary volumes in directories",
                               s->drives.text[i]);
    }
    s->epochs = 0;
    v->steps = s->steps ? s->steps : USUAL_STEPS;
    s->steps = v->steps;
    return 0;
}

static int verify(const struct shore__parsed *parsed, void *args) {
    struct verify *v = args;
    struct shore_diag diag = {0};
    struct shore__new_run new = {0};
    struct trial trials[TRIALS];
    size_t count = 0;
    const char *temporary = getenv("TMPDIR");
    int code = SHORE__EXIT_DONE;
    v->parsed = parsed;
    int rc = check(v, &diag);
    if (!rc) rc = shore__train_model(&v->args, parsed, true, &new, &diag);
    if (!rc) rc = plan(v, new.model, trials, &count, &diag);
    if (!rc) shore__cli_say_model(new.model, true);
    shore__model_free(new.model);
    shore__tokenizer_close(new.tokenizer);
    if (!rc && asprintf(&v->work, "%s/longshore-verify-XXXXXX", temporary && *temporary ? temporary : "/tmp") < 0) {
        v->work = NULL;
        rc = shore__out_of_memory(&diag);
    }
    if (!rc && !mkdtemp(v->work))
        rc = shore__fail(&diag, -errno, "%s: cannot be made: %s (TMPDIR says where)", v->work, strerror(errno));
    if (rc) {
        code = shore__cli_fail(rc, &diag);
    } else {
        shore__cli_catch_signals("longshore: stopping and removing what was made\n");
        code = run_trials(v, trials, count);
        rmdir(v->work);
    }
    free(v->work);
    return code;
}

int shore__cli_verify(int argc, char **argv) {
    const struct shore__command_line line = verify_line();
    struct verify v = {0};
    return shore__train_command(&line, argc, argv, &v.args, verify);
}
