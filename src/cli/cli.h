/* What the subcommands share: exit codes, messages, signals, and opening what a user names.
 *
 * Results go to stdout, everything else to stderr. Errors are one line: "longshore: sentence".
 */
#ifndef SHORE_CLI_CLI_H
#define SHORE_CLI_CLI_H

#include <stdio.h>

#include "base/diag.h"
#include "base/units.h"
#include "cli/options.h"
#include "infer/infer.h"
#include "plan/budget.h"
#include "report/report.h"
#include "run/run.h"

enum shore__exit {
    SHORE__EXIT_DONE = 0,
    SHORE__EXIT_FAILED = 1, /* while running; the committed state is good */
    SHORE__EXIT_USAGE = 2,  /* wrong usage or input, budget or disk short: nothing was touched, nothing new made */
};

/* Subcommands: argv begins after their name. They return the exit code. */
struct shore__subcommand {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary, *synopsis; /* synopsis: of one in a group */
};
/* Runs the one that argv[0] names. what: they are, for the message that there is no such one; otherwise: what that says
 * where no name is near. */
int shore__cli_dispatch(const struct shore__subcommand *all, size_t count, const char *what, const char *otherwise,
                        int argc, char **argv);
/* Those whose names have a word before them, which has a help of its own. */
struct shore__group {
    const struct shore__subcommand *all;
    size_t count;
    const char *word, *what, *otherwise; /* as above */
    const char *ask, *last;              /* what is said where none is named; the last line of the help */
};
int shore__cli_group(const struct shore__group *g, int argc, char **argv);
int shore__cli_train(int argc, char **argv);
int shore__cli_eval(int argc, char **argv);
int shore__cli_generate(int argc, char **argv);
int shore__cli_verify(int argc, char **argv);
int shore__cli_import(int argc, char **argv);
int shore__cli_export(int argc, char **argv);
int shore__cli_inspect(int argc, char **argv);
int shore__cli_remove(int argc, char **argv);
int shore__cli_snapshot(int argc, char **argv);
int shore__cli_rollback(int argc, char **argv);
int shore__cli_snapshots(int argc, char **argv);
int shore__cli_drive(int argc, char **argv);
int shore__cli_drive_list(int argc, char **argv);
int shore__cli_drive_add(int argc, char **argv);
int shore__cli_drive_remove(int argc, char **argv);
int shore__cli_drive_move(int argc, char **argv);
int shore__cli_drive_bench(int argc, char **argv);
int shore__cli_drive_serve(int argc, char **argv);
int shore__cli_bench(int argc, char **argv);
int shore__cli_doctor(int argc, char **argv);
int shore__bench_update(int argc, char **argv);
int shore__bench_disk(int argc, char **argv);
int shore__bench_compute(int argc, char **argv);
int shore__bench_testbed(int argc, char **argv);
void shore__cli_version(void);
/* A drive of a run by its number: what its volume says, and what is wrong; the far side is asked. Never fails. */
json_t *shore__cli_drive_json(const struct shore__run *run, size_t drive);
void shore__cli_drive_print(const json_t *o); /* one line */
/* An array of them; NULL: diag says why. */
json_t *shore__cli_snapshots_json(const char *run_path, struct shore_diag *diag);

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* The program's words for every advice. */
extern const char *const shore__cli_advice[SHORE_ADVICE_COUNT];

/* Prints the diagnostic (or the code's text) and returns the exit code for rc: usage, input, budget and space are 2 as
 * long as nothing has been done, everything else is 1. */
int shore__cli_fail(int rc, const struct shore_diag *diag);
/* The same once something was done: always 1. */
int shore__cli_fail_running(int rc, const struct shore_diag *diag);
/* The same once the drives were open: 1 if a connection to one of them broke, which could be reached. */
int shore__cli_fail_opened(int rc, const struct shore_diag *diag);
__attribute__((format(printf, 1, 2))) void shore__cli_say(const char *format, ...); /* a line on stderr */
void shore__cli_note(void *ctx, const char *text);                                  /* shore__note_fn */
/* Of a move or rollback that was given one; more: drives that the run does not have yet. */
int shore__cli_copy_budget(struct shore__run *run, uint64_t asked, uint32_t more, struct shore_diag *diag);
/* A JSON object on one line of stdout; takes the reference. Returns the exit code. */
int shore__cli_print_json(json_t *object);
/* Reads a command's flags and words into args, and runs it, unless the help is asked for or something is wrong with
 * them. Frees what args owns by its options. Returns the exit code, which run gives. */
int shore__cli_command(const struct shore__command_line *line, int argc, char **argv, void *args,
                       int (*run)(const struct shore__parsed *parsed, void *args));
/* Flushes stdout; an error there (a full disk) is exit code 1. */
int shore__cli_finish(int code);

/* Messages go to a terminal that can redraw a line. */
bool shore__cli_redraws(void);
/* Progress: one line that is redrawn there; elsewhere a plain line, with the time of day, each time `keep` is set.
 * Threading: any. */
void shore__cli_progress(const char *text, bool keep);
void shore__cli_progress_end(void); /* leaves the line that is there, but for one of shore__cli_work() */
/* shore__progress_fn of longer work. ctx: its name, or NULL for silence. Nonzero once a signal came. */
int shore__cli_work(void *name, uint64_t done_bytes, uint64_t total_bytes);

/* Text of a model for people: as it is, but control characters other than line breaks and tabs are shown escaped when
 * it goes to a terminal. */
void shore__cli_put_text(FILE *out, const char *text, size_t bytes);

/* ---- signals ----------------------------------------------------------------------------------------------------- */

/* From now on the first SIGINT, SIGTERM or SIGHUP (unless that is ignored) sets a flag and says `promise`; a second
 * one, unless it is SIGHUP, ends the process at once. */
void shore__cli_catch_signals(const char *promise);
bool shore__cli_stop_wanted(void);
/* A line that is of no use once its work is done stands on the terminal: what a signal says takes its place. */
void shore__cli_passes(bool passes);

/* ---- resources --------------------------------------------------------------------------------------------------- */

/* Refuses drives that cannot hold disk_bytes together ("needs X, has Y") before anything is written. What a file there
 * takes already counts as free. */
int shore__cli_disk_space(const struct shore__addresses *drives, uint64_t disk_bytes, struct shore_diag *diag);
/* The same for a run that is to be made at path; what it takes over counts as free, too. One that only lacks the room
 * for inner activations, and need not have it, goes without: s->offload is off then. */
int shore__cli_room_for_run(struct shore__settings *s, const struct shore__model *model, const char *path,
                            struct shore_diag *diag);

/* On what each drive lies and how much room there is. is_new: the drives are those of a run that is made now: servers
 * are asked, too, and a warning says where two share a device or one is no drive of its own. */
void shore__cli_say_drives(const struct shore__addresses *drives, bool is_new);

/* ---- what holds a model ------------------------------------------------------------------------------------------ */

struct shore__opened {
    struct shore__run *run;       /* of a run */
    struct shore_fleet *fleet;    /* of a run */
    struct shore__source *source; /* of a Hugging Face directory */
    struct shore__model *model;
    struct shore__tokenizer *tokenizer;
    uint64_t step;
    bool fp32;
    enum shore__products products;
    uint32_t threads;
};
/* What `eval` and `generate` take of it, as rows of their tables. */
struct shore__model_args {
    char *tokenizer;
    struct shore__strings moved; /* OLD=NEW */
    uint64_t memory;
    uint32_t threads;
    enum shore__products products; /* 0: auto, as the run or the processor has it */
    unsigned precision;            /* 0: auto, 1: bf16, 2: fp32 */
};
#define SHORE__MOVED_OPTION(target, field) \
    SHORE__OPTION(target, LIST, "drive", field, "OLD=NEW...", "where a drive of the run is now")
#define SHORE__MODEL_OPTIONS(target, field)                                                                       \
    SHORE__OPTION(target, TEXT, "tokenizer", field.tokenizer, "DIR|bytes",                                        \
                  "of a model directory that has none; otherwise its own"),                                       \
        SHORE__OPTION(target, SIZE, "memory", field.memory, "SIZE",                                               \
                      "the budget; otherwise half of the machine's memory"),                                      \
        SHORE__CHOICE(target, "precision", field.precision, "auto|bf16|fp32",                                     \
                      "of parameters and activations; auto: the run's, or bf16"),                                 \
        SHORE__CHOICE(target, "products", field.products, "auto|bf16|fp32",                                       \
                      "what matrix products run as; auto: the run's, or by processor"),                           \
        SHORE__OPTION(target, U32, "threads", field.threads, "N", "compute threads; otherwise the run's, or all", \
                      .most = SHORE__THREADS_MOST),                                                               \
        SHORE__MOVED_OPTION(target, field.moved)

/* Opens a run (at its committed step) or a Hugging Face directory, with the tokenizer. moved: drives that lie
 * elsewhere; tokenizer, data: what was given for a directory. Each may be NULL. */
int shore__cli_open(const char *path, const struct shore__strings *moved, const char *tokenizer,
                    const struct shore__strings *data, struct shore__opened *out, struct shore_diag *diag);
/* A run alone; snapshot: NULL, or whose state it is. of_any_program: also one that another program made; then it has
 * neither model nor tokenizer. */
int shore__cli_open_run(const char *path, const struct shore__strings *moved, const char *snapshot, bool of_any_program,
                        struct shore__opened *out, struct shore_diag *diag);
void shore__cli_close(struct shore__opened *opened);
/* What to compute with: as the flags say, or as the run does. */
struct shore__compute_options shore__cli_compute(const struct shore__opened *o, const struct shore__model_args *a);
/* Says what of a model's description is not taken as it stands. */
void shore__cli_say_model(const struct shore__arch *arch, bool trains);
/* Refuses a --seq-len beyond the positions that a model has. */
int shore__cli_check_length(const struct shore__arch *arch, size_t seq_len, struct shore_diag *diag);
/* Says which tokenizer a new run gets, unless it is to be quiet. */
void shore__cli_say_tokenizer(const struct shore__settings *s, const struct shore__tokenizer *tokenizer,
                              const struct shore__model *model);
/* Says if a run was to be overwritten there and is no more, but not replaced either. path: may be NULL. */
void shore__cli_say_half_replaced(const char *path);
/* The exit code after a run was prepared and not opened: once its state stands, the making is ended, never undone. */
int shore__cli_fail_making(const struct shore__run *run, int rc, const struct shore_diag *diag);
/* A run's fleet alone. */
int shore__cli_open_fleet(struct shore__run *run, const uint64_t *accept_step, struct shore_fleet **out,
                          struct shore_diag *diag);

#endif
