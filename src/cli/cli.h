/* Functions that the subcommands share: exit codes, messages, signals, resources, and opening what a user names.
 *
 * Results go to stdout, everything else to stderr. Errors are one line: "longshore: sentence". */
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
    SHORE__EXIT_FAILED = 1, /* it failed while running; the committed state is good */
    SHORE__EXIT_USAGE = 2,  /* wrong usage or input, or too little budget or disk: nothing was changed */
};

/* A subcommand: its line, or a function that takes what follows its name and returns the exit code. */
struct shore__subcommand {
    const char *name;
    const struct shore__command_line *line;
    const char *summary, *synopsis; /* synopsis: of a command in a group */
    int (*run)(int argc, char **argv);
};
/* Runs the command that argv[0] names. For the message about an unknown name: what: the kind of command; otherwise:
 * advice if no known name is near. */
int shore__cli_dispatch(const struct shore__subcommand *all, size_t count, const char *what, const char *otherwise,
                        int argc, char **argv);
/* A group of commands, with a word before their names and a help of its own. */
struct shore__group {
    const struct shore__subcommand *all;
    size_t count;
    const char *word, *what, *otherwise; /* as above */
    const char *ask, *last;              /* ask: the message if no command is named; last: the last line of the help */
};
int shore__cli_group(const struct shore__group *g, int argc, char **argv);
int shore__cli_train(int argc, char **argv);
int shore__cli_plan(int argc, char **argv);
extern const struct shore__command_line shore__cli_eval;
extern const struct shore__command_line shore__cli_generate;
int shore__cli_verify(int argc, char **argv);
int shore__cli_import(int argc, char **argv);
extern const struct shore__command_line shore__cli_export;
extern const struct shore__command_line shore__cli_inspect;
extern const struct shore__command_line shore__cli_render;
extern const struct shore__command_line shore__cli_trace;
extern const struct shore__command_line shore__cli_report;
extern const struct shore__command_line shore__cli_curves;
extern const struct shore__command_line shore__cli_top;
extern const struct shore__command_line shore__cli_remove;
extern const struct shore__command_line shore__cli_snapshot;
extern const struct shore__command_line shore__cli_rollback;
extern const struct shore__command_line shore__cli_snapshots;
int shore__cli_drive(int argc, char **argv);
extern const struct shore__command_line shore__cli_drive_list;
int shore__cli_drive_add(int argc, char **argv);
int shore__cli_drive_remove(int argc, char **argv);
int shore__cli_drive_move(int argc, char **argv);
extern const struct shore__command_line shore__cli_drive_bench;
extern const struct shore__command_line shore__cli_drive_serve;
int shore__cli_bench(int argc, char **argv);
extern const struct shore__command_line shore__cli_doctor;
extern const struct shore__command_line shore__cli_machine;
extern const struct shore__command_line shore__bench_update;
extern const struct shore__command_line shore__bench_disk;
extern const struct shore__command_line shore__bench_gather;
extern const struct shore__command_line shore__bench_compute;
void shore__cli_version(void);
/* Describes a drive of a run by its number: what its volume says, and what is wrong. Asks the far side. Never fails. */
json_t *shore__cli_drive_json(const struct shore__run *run, size_t drive);
void shore__cli_drive_print(const json_t *o); /* one line */
/* An array of snapshots; NULL: diag says why. */
json_t *shore__cli_snapshots_json(const char *run_path, struct shore_diag *diag);

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* The command line's wording of each advice. */
extern const char *const shore__cli_advice[SHORE_ADVICE_COUNT];

/* Prints the diagnostic, or the code's text, and returns the exit code. Usage, input, budget and space errors give 2 if
 * nothing was done yet, everything else 1. */
int shore__cli_fail(int rc, const struct shore_diag *diag);
/* The same after something was done: always 1. */
int shore__cli_fail_running(int rc, const struct shore_diag *diag);
/* The same after the drives were opened: 1 if the connection to a reachable drive broke. */
int shore__cli_fail_opened(int rc, const struct shore_diag *diag);
__attribute__((format(printf, 1, 2))) void shore__cli_say(const char *format, ...); /* a line on stderr */
void shore__cli_note(void *ctx, const char *text);                                  /* shore__note_fn */
/* Sets the memory budget of a move or rollback, if one was asked for (asked), and refuses one that is too small. more:
 * drives that the run does not have yet. */
int shore__cli_copy_budget(struct shore__run *run, uint64_t asked, uint32_t more, struct shore_diag *diag);
/* Prints a JSON object on one line of stdout, and takes the reference. Returns the exit code. */
int shore__cli_print_json(json_t *object);
/* Parses a command's flags and words into args, and runs it, unless help is requested or the command line is wrong.
 * Frees what args owns through its options. Returns the exit code, which run supplies. */
int shore__cli_command(const struct shore__command_line *line, int argc, char **argv, void *args,
                       int (*run)(const struct shore__parsed *parsed, void *args));
/* The same with what the line says. */
int shore__cli_run(const struct shore__command_line *line, int argc, char **argv);
/* Flushes stdout. An error there (for example a full disk) gives exit code 1. */
int shore__cli_finish(int code);

/* Whether messages go to a terminal that can redraw a line. */
bool shore__cli_redraws(void);
/* Shows progress: redraws one line on such a terminal. Elsewhere it prints a plain line with the time of day whenever
 * `keep` is set. Threading: any. */
void shore__cli_progress(const char *text, bool keep);
void shore__cli_progress_end(void); /* keeps the current line, except one of shore__cli_work() */
/* shore__progress_fn of longer work. ctx: its name, or NULL for silence. Returns nonzero after a signal. */
int shore__cli_work(void *name, uint64_t done_bytes, uint64_t total_bytes);

/* Prints a model's text. On a terminal, control characters except line breaks and tabs are escaped. */
void shore__cli_put_text(FILE *out, const char *text, size_t bytes);

/* ---- signals ----------------------------------------------------------------------------------------------------- */

/* From now on, the first SIGINT, SIGTERM or SIGHUP (unless ignored) sets a flag and prints `promise`. A second one,
 * unless it is SIGHUP, ends the process at once. */
void shore__cli_catch_signals(const char *promise);
/* The above then also catches SIGUSR1, which sets the flag and never ends the process: a scheduler's SIGTERM may
 * follow. */
void shore__cli_stop_on_usr1(void);
bool shore__cli_stop_wanted(void);
/* Marks the line on the terminal as temporary: a signal's message replaces it. */
void shore__cli_passes(bool passes);

/* ---- resources --------------------------------------------------------------------------------------------------- */

/* Refuses drives that together cannot hold disk_bytes ("needs X, has Y") before anything is written. The bytes of a
 * file that is already there count as free. */
int shore__cli_disk_space(const struct shore__addresses *drives, uint64_t disk_bytes, struct shore_diag *diag);
/* The same for a new run at path, and refuses drives that are missing and, without overwrite, files of others. The
 * bytes of what it replaces also count as free. If only the room for inner activations is missing, and they are
 * optional, it sets s->offload to off. */
int shore__cli_room_for_run(struct shore__settings *s, const struct shore__model *model, const char *path,
                            bool overwrite, struct shore_diag *diag);

/* Prints where each drive lies and how much room it has. is_new: the run is being made. Then it asks servers too, and
 * warns if two drives share a device or a path is no drive of its own. */
void shore__cli_say_drives(const struct shore__addresses *drives, bool is_new);

/* What a drive is rated to write, of `plan` and `report`. */
#define SHORE__TBW_OPTION(target, field)              \
    SHORE__OPTION(target, SIZE, "tbw", field, "SIZE", \
                  "what a drive may write in its life (600TB): says how many days that is")
/* Refuses what is no drive's rating; 0: none was given. */
int shore__cli_check_tbw(uint64_t bytes, struct shore_diag *diag);

/* ---- what holds a model ------------------------------------------------------------------------------------------ */

struct shore__opened {
    struct shore__run *run;       /* a run's */
    struct shore_fleet *fleet;    /* a run's */
    struct shore__source *source; /* a Hugging Face directory's */
    struct shore__model *model;
    struct shore__tokenizer *tokenizer;
    uint64_t step;
    bool fp32;
    enum shore__products products;
    uint32_t threads;
};
/* The options that `eval` and `generate` share, as rows of their tables. */
struct shore__model_args {
    char *tokenizer, *adapter;
    char *snapshot;
    struct shore__strings moved; /* OLD=NEW */
    uint64_t memory;
    uint32_t threads;
    enum shore__products products; /* 0: auto: the run's or the processor's */
    unsigned precision;            /* 0: auto, 1: bf16, 2: fp32 */
};
#define SHORE__MOVED_OPTION(target, field) \
    SHORE__OPTION(target, LIST, "drive", field, "OLD=NEW...", "where a drive of the run is now")
#define SHORE__MODEL_OPTIONS(target, field)                                                                         \
    SHORE__OPTION(target, TEXT, "tokenizer", field.tokenizer, "DIR|bytes",                                          \
                  "of a model directory that has none; otherwise its own"),                                         \
        SHORE__OPTION(target, TEXT, "adapter", field.adapter, "DIR",                                                \
                      "a PEFT adapter (LoRA, DoRA) to merge into a model directory's weights as they are read"),    \
        SHORE__OPTION(target, SIZE, "memory", field.memory, "SIZE",                                                 \
                      "the budget; otherwise half of the machine's memory"),                                        \
        SHORE__CHOICE(target, "precision", field.precision, "auto|bf16|fp32",                                       \
                      "of parameters and activations; auto: the run's, or bf16"),                                   \
        SHORE__CHOICE(target, "products", field.products, "auto|bf16|fp32",                                         \
                      "what matrix products run as; auto: the run's, or by processor"),                             \
        SHORE__OPTION(target, WHOLE, "threads", field.threads, "N", "compute threads; otherwise the run's, or all", \
                      .is.most = SHORE__THREADS_MOST),                                                              \
        SHORE__OPTION(target, TEXT, "snapshot", field.snapshot, "NAME",                                             \
                      "the run's state in this snapshot, also while the run is trained"),                           \
        SHORE__MOVED_OPTION(target, field.moved)

/* Opens a run at its committed step or a snapshot, or a Hugging Face directory, with the tokenizer. data: those given,
 * for a directory; may be NULL. */
int shore__cli_open(const char *path, const struct shore__model_args *a, const struct shore__strings *data,
                    struct shore__opened *out, struct shore_diag *diag);
/* Opens a run alone. snapshot: NULL, or the one to open. of_any_program: accepts a run that another program made, which
 * has neither model nor tokenizer. */
int shore__cli_open_run(const char *path, const struct shore__strings *moved, const char *snapshot, bool of_any_program,
                        struct shore__opened *out, struct shore_diag *diag);
void shore__cli_close(struct shore__opened *opened);
/* How to compute: as the flags say, or as the run does. */
struct shore__compute_options shore__cli_compute(const struct shore__opened *o, const struct shore__model_args *a);
/* Notes which parts of a model's description are not applied. */
void shore__cli_say_model(const struct shore__model *model, bool trains);
/* Refuses a --seq-len beyond the model's positions. */
int shore__cli_check_length(const struct shore__arch *arch, size_t seq_len, struct shore_diag *diag);
/* Notes which tokenizer a new run gets, unless quiet. */
void shore__cli_say_tokenizer(const struct shore__settings *s, const struct shore__tokenizer *tokenizer,
                              const struct shore__model *model);
/* Notes that a run to be overwritten is gone, and not replaced. path: may be NULL. */
void shore__cli_say_half_replaced(const char *path);
/* The exit code after a run was prepared and not opened. Once its state is complete, the making is finished, never
 * undone. */
int shore__cli_fail_making(const struct shore__run *run, int rc, const struct shore_diag *diag);
/* Opens only a run's fleet. */
int shore__cli_open_fleet(struct shore__run *run, const uint64_t *accept_step, struct shore_fleet **out,
                          struct shore_diag *diag);

#endif
