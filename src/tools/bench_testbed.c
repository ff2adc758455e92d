/* `bench testbed`: trains the same model on an emulated machine, with the update on the host and on the drives, by
 * number of drives. Every row is a training of its own, by this program, in a temporary directory. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "files/json.h"
#include "files/read_file.h"
#include "run/emulation/emulate.h"
#include "tools/bench.h"
#include "tools/child.h"
#include "tools/testbed.h"

#define WARM_UP 1u
#define SEQ_LEN 32u
#define TEXT_BYTES 65536u
#define DIR_BYTES_LEAST (UINT64_C(3) << 30)

struct args {
    char *drives, *modes, *dir, *out;
    uint32_t steps;
    double link_share;
    bool json, quiet;
};

#define OPTION(...) SHORE__OPTION(struct args, __VA_ARGS__)
static const struct shore__option options[] = {
    OPTION(TEXT, "drives", drives, "N,N...", "numbers of drives; otherwise 1,2,4,6,8,10"),
    OPTION(TEXT, "modes", modes, "MODE,...", "of base, lossless, state8, top1; otherwise all"),
    OPTION(U32, "steps", steps, "N", "steps that are measured", .least = 1, .most = 1000),
    OPTION(REAL, "link-share", link_share, "X",
           "further rows with this share of the link and the most drives, for lossless and top1; 0: none"),
    OPTION(TEXT, "dir", dir, "DIR", "where temporary volumes go; otherwise /dev/shm if it has room, or TMPDIR"),
    OPTION(TEXT, "out", out, "DIR",
           "where the picture goes, and the rows as JSON lines; otherwise nowhere with --json"),
    OPTION(FLAG, "json", json, NULL, "a JSON object for each row, on a line"),
    OPTION(FLAG, "quiet", quiet, NULL, "no progress"),
};

static const struct shore__command_line line = {
    .command = "bench testbed",
    .synopsis = "bench testbed smart-infinity|FILE [--drives N,N...] [--modes MODE,...] [--json] [--out DIR]",
    .about =
        "Trains on an emulated machine (see train --emulate): with the update on the host as ZeRO-Infinity does it\n"
        "(base), and beside the drives with fp32 state and gradients (lossless), with 8-bit moments (state8) and\n"
        "with 1 % of the gradients (top1). Times are the emulated machine's; everything else is really done.",
    .notes =
        "smart-infinity is the machine of that paper (HPCA 2024): ten SmartSSDs behind one link, GPT-2 4.0B on an\n"
        "A5000, divided by 101. All of it takes about half an hour.",
    SHORE__OPTIONS(options),
    .positional = 1,
    .missing = "which testbed? longshore bench testbed smart-infinity, or a file",
};

struct bench {
    const struct args *args;
    const char *name;
    json_t *machine;
    struct shore__emulation emulation;
    struct shore__emulated_model model;
    char *work; /* temporary directory */
    struct shore__testbed_row rows[SHORE__TESTBED_ROWS_MOST];
    size_t nrows;
    FILE *lines; /* rows as JSON, in --out */
};

static int plan_rows(struct bench *b, struct shore_diag *diag) {
    const struct args *a = b->args;
    bool divides = b->emulation.link[0] || b->emulation.link[1];
    return shore__testbed_rows(a->modes, a->drives, a->link_share, divides, b->rows, &b->nrows, diag);
}

/* ---- a place to work --------------------------------------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    return remove(path);
}

static void remove_tree(const char *path) {
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static bool has_room(const char *dir) {
    struct statvfs fs;
    return access(dir, W_OK) == 0 && statvfs(dir, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize >= DIR_BYTES_LEAST;
}

static char *path_in(const struct bench *b, const char *name) {
    char *path = NULL;
    return asprintf(&path, "%s/%s", b->work, name) < 0 ? NULL : path;
}

static int write_file(const struct bench *b, const char *name, json_t *json, const char *text, size_t bytes,
                      struct shore_diag *diag) {
    char *path = path_in(b, name);
    int rc = path ? 0 : -ENOMEM;
    if (!rc && json) rc = shore__json_write(path, json, 0, diag);
    if (!rc && text) {
        FILE *f = fopen(path, "w");
        if (!f || fwrite(text, 1, bytes, f) != bytes) rc = -EIO;
        if (f && fclose(f)) rc = -EIO;
    }
    free(path);
    return rc ? shore__fail(diag, rc, "%s cannot be written: %s", b->work, shore_error_text(rc)) : 0;
}

static json_t *model_json(const struct bench *b) {
    return json_pack("{s:s,s:i,s:i,s:i,s:i,s:i,s:i}", "model_type", "gpt2", "vocab_size", 257, "n_positions",
                     (int)SEQ_LEN, "n_embd", (int)b->model.width, "n_layer", (int)b->model.layers, "n_head",
                     (int)b->model.heads, "n_inner", (int)b->model.inner);
}

static int check_model(const struct bench *b, struct shore_diag *diag) {
    struct shore__arch arch;
    char name[PATH_MAX + 16];
    json_t *model = model_json(b);
    snprintf(name, sizeof name, "%s: \"model\"", b->name);
    int rc = model ? shore__arch_from_json(model, name, &arch, diag) : shore__fail(diag, -ENOMEM, "out of memory");
    json_decref(model);
    return rc;
}

/* Random letters: the text does not affect the times. */
static int make_inputs(struct bench *b, struct shore_diag *diag) {
    const char *dir = b->args->dir ? b->args->dir : has_room("/dev/shm") ? "/dev/shm" : getenv("TMPDIR");
    if (asprintf(&b->work, "%s/longshore-testbed.XXXXXX", dir ? dir : "/tmp") < 0 || !mkdtemp(b->work))
        return shore__fail(diag, -errno, "no temporary directory can be made in %s: %s", dir ? dir : "/tmp",
                           strerror(errno));
    char *text = malloc(TEXT_BYTES);
    json_t *model = model_json(b);
    int rc = text && model ? 0 : shore__fail(diag, -ENOMEM, "out of memory");
    uint32_t number = 1;
    for (size_t i = 0; text && i < TEXT_BYTES; i++) {
        number = number * 1664525u + 1013904223u;
        text[i] = (char)(i % 64 == 63 ? '\n' : 'a' + (number >> 24) % 26);
    }
    if (!rc) rc = write_file(b, "model.json", model, NULL, 0, diag);
    if (!rc) rc = write_file(b, "text", NULL, text, TEXT_BYTES, diag);
    json_decref(model);
    free(text);
    return rc;
}

/* Writes the machine's file, with a share of its link. */
static int write_machine(struct bench *b, double link_share, struct shore_diag *diag) {
    json_t *machine = json_deep_copy(b->machine), *link = json_object();
    const struct shore__emulation *e = &b->emulation;
    const char *const keys[] = {e->link_shared ? "shared" : "in", "out"};
    for (int i = 0; i < 2; i++) /* without a limit, there is no share of it */
        if (e->link[i]) json_object_set_new(link, keys[i], json_real((double)e->link[i] * e->scale * link_share));
    if (machine && link_share < 1) json_object_set(machine, "link", link);
    json_decref(link);
    int rc = machine ? write_file(b, "machine.json", machine, NULL, 0, diag) : -ENOMEM;
    json_decref(machine);
    return rc;
}

/* ---- one row ----------------------------------------------------------------------------------------------------- */

static void add_words(const struct bench *b, const struct shore__testbed_row *r, struct shore__words *w) {
    static const char *const how[SHORE__TESTBED_MODES][4] = {
        [SHORE__TESTBED_BASE] = {"--update", "host"},
        [SHORE__TESTBED_LOSSLESS] = {NULL},
        [SHORE__TESTBED_STATE8] = {"--moments", "8bit"},
        [SHORE__TESTBED_TOP1] = {"--compress", "top1%"},
    };
    const char *const usual[] = {"longshore", "train", "--batch", "1", "--speculate", "on", "--clip", "1e6", "--quiet"};
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++)
        shore__words_add(w, "%s", usual[i]);
    for (int i = 0; i < 4 && how[r->mode][i]; i++)
        shore__words_add(w, "%s", how[r->mode][i]);
    shore__words_add(w, "--seq-len=%u", SEQ_LEN);
    shore__words_add(w, "--init=%s/model.json", b->work);
    shore__words_add(w, "--data=%s/text", b->work);
    shore__words_add(w, "--emulate=%s/machine.json", b->work);
    shore__words_add(w, "--out=%s/row/run", b->work);
    /* leaves out the last step, whose time includes no forward pass of a next one */
    shore__words_add(w, "--steps=%u", WARM_UP + b->args->steps + 1);
    shore__words_add(w, "--drive");
    for (uint32_t d = 0; d < r->drives; d++)
        shore__words_add(w, "%s/row/drive%u", b->work, d);
}

static double number_of(const json_t *o, const char *key) {
    return json_number_value(json_object_get(o, key));
}

/* Adds a step's times to the row. */
static int read_step(struct shore__testbed_row *r, const char *text, size_t bytes, double *seconds,
                     struct shore_diag *diag) {
    json_t *o;
    int rc = shore__json_parse(text, bytes, "metrics.jsonl", &o, diag);
    if (rc) return rc;
    const json_t *busy = json_object_get(o, "busy");
    *seconds = number_of(o, "step_seconds");
    if (!json_is_true(json_object_get(o, "emulated")) || !busy || !(*seconds > 0))
        rc = shore__fail(diag, SHORE_EINPUT, "the training did not say what was emulated");
    for (int i = 0; i < SHORE__BUSY_LANES; i++)
        r->busy.seconds[shore__busy_lanes[i]] += number_of(busy, shore_lane_name(shore__busy_lanes[i]));
    json_decref(o);
    return rc;
}

static int read_metrics(struct bench *b, struct shore__testbed_row *r, struct shore_diag *diag) {
    char *path = path_in(b, "row/run/metrics.jsonl"), *text = NULL;
    double *seconds = calloc(b->args->steps, sizeof *seconds);
    size_t bytes;
    int rc = path && seconds ? shore__file_read(path, 1 << 22, &text, &bytes, diag) : -ENOMEM;
    const char *at = text;
    for (uint32_t step = 0; !rc && step < WARM_UP + b->args->steps; step++) {
        const char *end = strchr(at, '\n');
        if (!end) rc = shore__fail(diag, SHORE_EINPUT, "%s: has too few steps", path);
        if (!rc && step >= WARM_UP) rc = read_step(r, at, (size_t)(end - at), &seconds[step - WARM_UP], diag);
        if (!rc) at = end + 1;
    }
    if (!rc) r->step_seconds = shore__bench_median(seconds, b->args->steps);
    free(seconds);
    free(text);
    free(path);
    return rc;
}

/* Finds the part that was busy longest. */
static void find_bound(struct shore__testbed_row *r) {
    static const char *const names[SHORE_LANES] = {
        [SHORE_LANE_COMPUTE] = "gpu",
        [SHORE_LANE_LINK_IN] = "link",
        [SHORE_LANE_DRIVE_READ] = "drive read",
        [SHORE_LANE_DRIVE_WRITE] = "drive write",
        [SHORE_LANE_DRIVE_MIXED] = "drive read and write",
        [SHORE_LANE_DRIVE_UPDATE] = "drive compute",
        [SHORE_LANE_HOST_UPDATE] = "host update",
    };
    struct shore__busy busy = r->busy;
    int most = 0;
    busy.seconds[SHORE_LANE_DRIVE_MIXED] *= 0.999; /* not if one of them alone takes as long */
    for (int i = 1; i < SHORE_LANES; i++)
        if (busy.seconds[i] > busy.seconds[most]) most = i;
    r->bound = names[most];
}

static double seconds_of(const struct bench *b, enum shore__testbed_mode mode, uint32_t drives, double share) {
    for (size_t i = 0; i < b->nrows; i++)
        if (b->rows[i].mode == mode && b->rows[i].drives == drives && b->rows[i].link_share == share)
            return b->rows[i].step_seconds;
    return 0;
}

static int train(struct bench *b, struct shore__testbed_row *r, struct shore_diag *diag) {
    char *place = path_in(b, "row"), *log = path_in(b, "log"), last[256] = "";
    struct shore__words words = {0};
    int rc = place && log ? 0 : -ENOMEM, fd = -1;
    if (!rc && mkdir(place, 0700)) rc = -errno;
    for (uint32_t d = 0; !rc && d < r->drives; d++) {
        char *drive = NULL;
        if (asprintf(&drive, "%s/drive%u", place, d) < 0 || mkdir(drive, 0700)) rc = -EIO;
        free(drive);
    }
    if (!rc && (fd = open(log, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600)) < 0) rc = -errno;
    if (rc) shore__fail(diag, rc, "%s: no room to work: %s", b->work, shore_error_text(rc));
    if (!rc) rc = write_machine(b, r->link_share, diag);
    if (!rc) {
        add_words(b, r, &words);
        int code = shore__child_run(&words, fd, last, sizeof last);
        if (shore__cli_stop_wanted()) {
            rc = -ECANCELED;
        } else if (code > SHORE__CHILD_SIGNAL) {
            int number = code - SHORE__CHILD_SIGNAL;
            rc = shore__fail(diag, -EIO, "the training was ended by signal %d (%s)", number, strsignal(number));
        } else if (code) {
            char *text = NULL;
            size_t bytes = 0;
            if (shore__file_read(log, 1 << 20, &text, &bytes, NULL)) bytes = 0;
            while (bytes && text[bytes - 1] == '\n')
                text[--bytes] = 0;
            const char *end = bytes ? strrchr(text, '\n') : NULL;
            rc = shore__fail(diag, code < 0 ? code : SHORE_EINPUT, "the training failed: %s",
                             end     ? end + 1
                             : bytes ? text
                                     : "no message");
            free(text);
        }
    }
    if (!rc) rc = read_metrics(b, r, diag);
    if (fd >= 0) close(fd);
    if (place) remove_tree(place);
    shore__words_free(&words);
    free(place);
    free(log);
    return rc;
}

/* ---- the report -------------------------------------------------------------------------------------------------- */

static json_t *number_or_null(double value) {
    return value > 0 ? json_real(value) : json_null();
}

static json_t *row_json(const struct bench *b, const struct shore__testbed_row *r) {
    json_t *o =
        json_pack("{s:s,s:s,s:i,s:f,s:f,s:s,s:b,s:f}", "testbed", b->emulation.name, "mode",
                  shore__testbed_modes[r->mode], "drives", (int)r->drives, "link_share", r->link_share, "step_seconds",
                  r->step_seconds, "bound", r->bound, "emulated", 1, "scale", b->emulation.scale);
    json_t *busy = json_object();
    for (int i = 0; i < SHORE__BUSY_LANES; i++)
        json_object_set_new(busy, shore_lane_name(shore__busy_lanes[i]),
                            json_real(r->busy.seconds[shore__busy_lanes[i]] / b->args->steps));
    json_object_set_new(o, "speed_over_base1", number_or_null(r->over_base1));
    json_object_set_new(o, "speed_over_base", number_or_null(r->over_base));
    json_object_set_new(o, "busy_seconds", busy);
    return o;
}

static int report_row(struct bench *b, struct shore__testbed_row *r) {
    r->over_base1 = seconds_of(b, SHORE__TESTBED_BASE, 1, 1) / r->step_seconds;
    r->over_base = seconds_of(b, SHORE__TESTBED_BASE, r->drives, r->link_share) / r->step_seconds;
    find_bound(r);
    json_t *o = row_json(b, r);
    if (b->lines) {
        json_dumpf(o, b->lines, JSON_COMPACT | JSON_REAL_PRECISION(9));
        fputc('\n', b->lines);
        fflush(b->lines);
    }
    if (b->args->json) {
        int code = shore__cli_print_json(o);
        fflush(stdout);
        return code;
    }
    json_decref(o);
    char times[48] = "";
    if (r->over_base1 > 0) snprintf(times, sizeof times, "%8.2f", r->over_base1);
    printf("%-9s %6u %5g %10.2f %8s  %s\n", shore__testbed_modes[r->mode], r->drives, r->link_share, r->step_seconds,
           times, r->bound);
    fflush(stdout);
    return 0;
}

/* The output path. A machine without a name is called after its file, which may have a path. */
static char *path_out(const struct bench *b, const char *dir, const char *ending) {
    char name[sizeof b->emulation.name], *path = NULL;
    snprintf(name, sizeof name, "%s", b->emulation.name);
    for (char *at = name; (at = strchr(at, '/'));)
        *at = '-';
    return asprintf(&path, "%s/testbed-%s.%s", dir, name, ending) < 0 ? NULL : path;
}

static int draw(struct bench *b, struct shore_diag *diag) {
    const char *dir = b->args->out ? b->args->out : b->args->json ? NULL : ".";
    double base1 = seconds_of(b, SHORE__TESTBED_BASE, 1, 1);
    double gpu = b->emulation.forward_seconds + b->emulation.backward_seconds;
    if (!dir) return 0;
    if (base1 <= 0) {
        shore__cli_say("no picture: it shows speeds over base with one drive, which was not measured");
        return 0;
    }
    char *path = path_out(b, dir, "svg");
    if (!path) return -ENOMEM;
    int rc = shore__testbed_draw(path, b->emulation.name, b->emulation.scale, gpu > 0 ? base1 / gpu : 0, b->rows,
                                 b->nrows, diag);
    if (!rc && !b->args->quiet) shore__cli_say("drawn: %s", path);
    free(path);
    return rc;
}

static int open_lines(struct bench *b, struct shore_diag *diag) {
    if (!b->args->out) return 0;
    if (mkdir(b->args->out, 0777) && errno != EEXIST)
        return shore__fail(diag, -errno, "%s: cannot be made: %s", b->args->out, strerror(errno));
    char *path = path_out(b, b->args->out, "jsonl");
    if (!path) return -ENOMEM;
    b->lines = fopen(path, "w");
    int rc = b->lines ? 0 : shore__fail(diag, -errno, "%s: cannot be written: %s", path, strerror(errno));
    free(path);
    return rc;
}

static int measure(struct bench *b, struct shore_diag *diag) {
    if (!b->args->json) {
        printf("emulated: %s, rates and model divided by %g\n", b->emulation.name, b->emulation.scale);
        printf("mode      drives  link   s a step over base1  bound by\n");
    }
    for (size_t i = 0; i < b->nrows; i++) {
        struct shore__testbed_row *r = &b->rows[i];
        char text[96];
        snprintf(text, sizeof text, "emulating %s, %u %s (row %zu of %zu)", shore__testbed_modes[r->mode], r->drives,
                 r->drives == 1 ? "drive" : "drives", i + 1, b->nrows);
        if (!b->args->quiet) shore__cli_progress(text, false);
        int rc = train(b, r, diag);
        shore__cli_progress_end();
        if (rc) return rc;
        rc = report_row(b, r);
        if (rc) return shore__fail(diag, -EIO, "the rows cannot be printed");
    }
    return draw(b, diag);
}

static int run(const struct shore__parsed *parsed, void *args) {
    const char *name = parsed->positional[0];
    struct bench *b = calloc(1, sizeof *b);
    struct shore_diag diag = {0};
    int rc = b ? 0 : shore__fail(&diag, -ENOMEM, "out of memory"), code = SHORE__EXIT_DONE;
    bool begun = false;
    if (!rc) {
        b->args = args;
        b->name = name;
        rc = shore__emulation_json(name, &b->machine, &diag);
    }
    if (!rc) rc = shore__emulation_from_json(b->machine, name, &b->emulation, &diag);
    if (!rc) rc = shore__emulated_model(b->machine, name, &b->model, &diag);
    if (!rc) rc = check_model(b, &diag);
    if (!rc) rc = plan_rows(b, &diag);
    if (!rc) rc = open_lines(b, &diag);
    if (!rc) {
        shore__cli_catch_signals("longshore: stopping and removing what is temporary\n");
        rc = make_inputs(b, &diag);
    }
    if (!rc) {
        begun = true;
        rc = measure(b, &diag);
    }
    if (rc == -ECANCELED)
        code = SHORE__EXIT_FAILED;
    else if (rc)
        code = begun ? shore__cli_fail_running(rc, &diag) : shore__cli_fail(rc, &diag);
    if (b) {
        if (b->lines && fclose(b->lines) && !rc) code = SHORE__EXIT_FAILED;
        if (b->work) remove_tree(b->work);
        free(b->work);
        json_decref(b->machine);
    }
    free(b);
    return code;
}

int shore__bench_testbed(int argc, char **argv) {
    struct args a = {.steps = 2, .link_share = 0.25};
    return shore__cli_command(&line, argc, argv, &a, run);
}
