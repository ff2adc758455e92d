/* The run directory: settings (run.json), tokens, tokenizer and model description, metrics, and the places of the
 * state. train, infer and the command line use it.
 *
 *   RUN/run.json        settings, model config, fleet id, drives, token counts, processor kind, where RUN is; changes
 *                       by step; its presence makes the directory a run. For a run of another program
 *                       (longshore/run.h): its tensors and what the program has stored, without texts
 *   RUN/config.json     the model, as Hugging Face writes it
 *   RUN/tokenizer...    copies, so that the run stands alone
 *   RUN/tokens.bin, RUN/val.bin; or RUN/tokens.2.bin, RUN/val.2.bin, if other data took the place of the first
 *   RUN/metrics.jsonl   one object per committed step
 *   RUN/drives.jsonl    the same of each drive
 *   RUN/committed       the hint: last committed step
 *   RUN/residual-host   residual of compression at the last clean stop or snapshot
 */
#ifndef SHORE_RUN_RUN_H
#define SHORE_RUN_RUN_H

#include "files/safetensors.h"
#include "longshore/metrics.h"
#include "model/model.h"
#include "run/contents.h"
#include "run/settings.h"
#include "storage/volume.h"
#include "text/dataset.h"

#define SHORE__PROCESSOR_BYTES 96

/* Validation losses of metrics.jsonl on today's validation data, from the first step to the newest line. */
struct shore__measured {
    double least;        /* INFINITY: none is finite */
    uint64_t least_step; /* that measured it */
    uint64_t since;      /* how many came after it, none below it */
    uint64_t step;       /* of the newest; 0: there is none */
    double loss;         /* the newest; NaN: not finite */
};

struct shore__run {
    char *path, *word; /* word: the path as a shell takes it */
    int lock_fd; /* flock on the directory, so that two processes do not train one run; -1 when opened for reading */
    struct shore__settings settings;
    struct shore__model *model;         /* NULL: another program's run */
    struct shore__contents *contents;   /* another program's; NULL: the run has a model */
    const struct shore_layout *layout;  /* of either */
    struct shore__tokenizer *tokenizer; /* NULL until shore__run_tokenizer() */
    struct shore__dataset *train, *val; /* NULL: none (train: imported without data) */
    uint64_t fleet_id[2];
    uint64_t generation; /* of the placement: counts added, removed and replaced drives */
    uint64_t hint_step;
    uint64_t data_from;                     /* the step behind which the data are read from their beginning */
    uint64_t val_from;                      /* losses of steps up to this one are of other validation data */
    struct shore__measured measured;        /* once metrics are recovered, or appended to */
    char processor[SHORE__PROCESSOR_BYTES]; /* the last one that trained the run, with products, threads and kernels */
    json_t *changes;                        /* recorded changes: [{"step": n, "what": "..."}] */
    char *change;   /* requested on resume; recorded once the drives have been opened; NULL: none */
    char *note;     /* what opening or recovering found and mended, in one sentence; NULL: nothing */
    char *no_data;  /* why its tokens cannot be opened; everything else works; NULL: they are open */
    int no_data_rc; /* the code of no_data */
    bool making;    /* prepared, not finished */
    /* Several processes have a part of the run each. mine: while it is made or opened, which drives are this one's;
     * NULL: all. joins: another one keeps the run: that one has the lock, and writes to the directory. */
    const bool *mine;
    bool joins;
    uint64_t copy_memory_bytes; /* budget of a move or rollback; 0: the run's own */
    bool begun; /* a move or rollback failed while running: its drives were open, or what it made stays */
    /* The drives hold what a killed making of this run left: the fleet may be created over it. */
    bool replace_drives;
    struct shore__run_private *private;
};

/* Says a sentence to note, unless note is NULL. */
__attribute__((format(printf, 3, 4))) void shore__note(shore__note_fn note, void *ctx, const char *format, ...);

/* The source of initial or imported weights. */
struct shore__source;
/* Opens a source: random numbers; or a Hugging Face directory, after checking that all tensors are there with the right
 * shapes, and none is unknown. */
int shore__source_init(const struct shore__model *m, uint64_t seed, struct shore__source **out);
/* Of adapters, which a directory does not hold. */
void shore__source_set_seed(struct shore__source *s, uint64_t seed);
int shore__source_directory(const struct shore__model *m, const char *directory, struct shore__source **out,
                            struct shore_diag *diag);
/* Merges a PEFT adapter's directory into a directory's tensors as they are read: see run/exchange/adapter.h. */
int shore__source_merge(struct shore__source *source, const char *adapter, struct shore_diag *diag);
/* The source is of second moments: negative numbers are refused, too. */
void shore__source_holds_squares(struct shore__source *source);
/* Reads segments [segment, segment + count) of a block as fp32, canonical. Refuses NaN and infinity. */
int shore__source_read(struct shore__source *source, uint32_t block, uint32_t segment, uint32_t count, float *out,
                       struct shore_diag *diag);
void shore__source_close(struct shore__source *source);

/* Moments in a Hugging Face directory, beside the weights: see run/exchange/moment_files.h. */
struct shore__moment_sources {
    struct shore__source *m, *v; /* NULL: zeros */
};
/* Opens a directory's moments. Returns 0 and leaves *updates if it has none. Errors name the file: moments of another
 * optimizer, or with different numbers of updates. */
int shore__moments_updates(const char *directory, enum shore_optimizer optimizer, uint64_t *updates,
                           struct shore_diag *diag);
/* Opens the moments of the directory that is settings' model. SHORE_EINPUT: momentum where none is expected, or none
 * where it is. */
int shore__moments_open(const struct shore__model *m, const struct shore__settings *s,
                        struct shore__moment_sources *out, struct shore_diag *diag);

/* The model that settings name: --model DIR or --init. Presets grow to the tokenizer's size. Reads config.json. */
int shore__run_model(const struct shore__settings *s, struct shore__tokenizer *tokenizer, struct shore__model **out,
                     struct shore_diag *diag);
/* The tokenizer that settings name ("bytes": the built-in one), or the one in the directory of --model or --init. If
 * there is none, --init uses bytes, and so does a directory if all data are token files, which need none. SHORE_EINPUT
 * for other data. */
int shore__run_tokenizer_of(const struct shore__settings *s, struct shore__tokenizer **out, struct shore_diag *diag);
/* The model of a Hugging Face directory with its weights. It is not tied if the weights are not, whatever the
 * configuration says. */
int shore__model_from_directory(const char *directory, struct shore__model **out, struct shore_diag *diag);

/* Options of a fleet that follow from a run's settings (drives, optimizer, chunk, io ...). Fields point into
 * settings. */
void shore__run_fleet_options(const struct shore__settings *s, uint64_t scratch_bytes, bool spill,
                              struct shore_fleet_options *out);

/* Fills in missing settings that depend on the model, the data or other settings: seq_len, lr, min_lr, beta2, steps,
 * warmup. tokens: of the training data, for epochs; 0: not known yet (epochs then stay). */
void shore__settings_fit(struct shore__settings *s, const struct shore__model *m, uint64_t tokens);

/* Steps of making a run, in this order, so that after a kill the same command makes it again:
 *   shore__run_prepare  checks the directory (SHORE_EEXISTS if a complete run is there and not overwrite), makes RUN
 *                       with a folder "making" as marker and workplace, tokenizes, chooses fleet_id
 *   shore__making_create creates the fleet; the caller fills and seals it
 *   shore__run_finish   moves everything into place, writes run.json durably, removes "making"
 * An overwritten run stays whole until finish; where there is no room for both, until the fleet is created. Closing a
 * run that was prepared and not finished undoes the preparation, including new volumes (close the fleet first). Only if
 * a volume of the overwritten run went, "making" stays. On success the run owns model and tokenizer. */
int shore__run_prepare(const char *path, const struct shore__settings *s, struct shore__model *model,
                       struct shore__tokenizer *tokenizer, bool overwrite, shore__progress_fn progress,
                       void *progress_ctx, struct shore__run **out, struct shore_diag *diag);
typedef int (*shore__making_check_fn)(void *ctx, struct shore_diag *diag);
/* Creates the fleet of a run that is made, unsealed. An overwritten run stays beside it. Where there is no room for
 * both, the old run goes first: after everything that can fail was asked, and a note has said its name and step. check:
 * reads the values that the fleet will be filled with, and refuses those that cannot be stored; may be NULL. */
int shore__making_create(struct shore__run *run, struct shore_fleet_options *options, shore__making_check_fn check,
                         void *ctx, struct shore_fleet **out, struct shore_diag *diag);
/* Sets a new run's options for the fleet that is created for it. */
void shore__run_new_fleet(const struct shore__run *run, struct shore_fleet_options *options);
int shore__run_finish(struct shore__run *run, const uint64_t fleet_id[2], const char *processor, shore__note_fn note,
                      void *ctx, struct shore_diag *diag);
/* Bytes that a run made there finds on its drives: free ones, and those of volumes that go, of an overwritten run or a
 * killed making. run_path: NULL: none. UINT64_MAX: unknown from here; making the volumes will tell. */
uint64_t shore__making_room(const char *run_path, const struct shore__addresses *drives);
int shore__making_refuse_room(uint64_t room, uint64_t disk_bytes, struct shore_diag *diag);
/* Whether a making there was stopped between two runs: no run.json stands, but one waits in RUN/making. */
bool shore__run_is_half_replaced(const char *path);

/* Records the user's word that this directory, wherever it was made, is the run itself (or an unfinished one) and not a
 * copy, so that it owns the volumes. Durable. Refused for a known copy. */
int shore__run_claim(const char *path, struct shore_diag *diag);
/* The step in RUN/committed, or else in its metrics. */
uint64_t shore__run_hint(const struct shore__run *run);
/* Opens a complete run. for_writing: locks it (SHORE_EBUSY). moved: "OLD=NEW" replacements of drives; may be NULL. */
int shore__run_open(const char *path, bool for_writing, const struct shore__strings *moved, struct shore__run **out,
                    struct shore_diag *diag);
/* Opens a run for a momentary view: waits for no lock, even while somebody works on it. */
int shore__run_look(const char *path, const struct shore__strings *moved, struct shore__run **out,
                    struct shore_diag *diag);
/* The same without its data: for what does not link texts. */
int shore__run_look_at_state(const char *path, const struct shore__strings *moved, struct shore__run **out,
                             struct shore_diag *diag);
/* The process that works on a run, which has locked it. 0 or empty: unknown. False: there is none, and *out is who was
 * killed there, if anybody. */
struct shore__worker {
    int64_t pid, since; /* since: seconds since 1970 */
    char host[256], process[64];
};
bool shore__run_worker(const char *path, struct shore__worker *out);
/* Hands over the last complete lines of a file of the run (metrics.jsonl, drives.jsonl), the newest first, until take
 * returns false. */
void shore__run_last_lines(const struct shore__run *run, const char *name,
                           bool (*take)(void *ctx, const char *line, size_t bytes), void *ctx);
/* The run's last steps, from metrics.jsonl in whatever state it is. */
struct shore__pulse {
    double loss;                   /* the newest; NaN: unknown */
    double step_seconds;           /* median of the newest; 0: unknown */
    uint32_t steps_timed;          /* number of steps in the median */
    double charges[SHORE_CHARGES]; /* of these, added up; 0 where none are known */
    uint32_t steps_charged;
    uint64_t written_bytes;   /* to the drives, by the newest; 0: unknown */
    double seconds_ago;       /* since the newest */
    double remaining_seconds; /* until the last step; 0: unknown */
};
void shore__run_pulse(const struct shore__run *run, struct shore__pulse *out);
/* lifecycle/endurance.c: shore_endurance_open() for a run and its fleet. */
struct shore_endurance;
int shore__endurance_open(const struct shore__run *run, struct shore_fleet *fleet, const uint64_t *most,
                          uint64_t step_bytes, struct shore_endurance **out, struct shore_diag *diag);
void shore__run_close(struct shore__run *run); /* frees model, tokenizer, datasets, settings */
int shore__run_tokenizer(struct shore__run *run, struct shore_diag *diag); /* opens it, once */
/* Whether the run was made from token files alone without a named tokenizer, so that bytes stand in for it. */
bool shore__run_without_tokenizer(const struct shore__run *run);
/* "bytes (257 of 50,257 ids used)", for people. The number used is known for bytes, and once the tokenizer is open. */
const char *shore__tokenizer_text(const struct shore__settings *s, const struct shore__tokenizer *tokenizer,
                                  const struct shore__model *m, char *out, size_t bytes);
const char *shore__run_tokenizer_text(const struct shore__run *run, char *out, size_t bytes);
/* Reads all tokens (val_alone: those of the file with validation data), and compares them with run.json; opening
 * compares only headers and counts. progress (NULL: none): in bytes; nonzero stops with -ECANCELED. */
int shore__run_check_data(struct shore__run *run, bool val_alone, shore__progress_fn progress, void *ctx,
                          struct shore_diag *diag);
/* Bad rows of its data, which were skipped. */
uint64_t shore__run_bad_rows(const struct shore__run *run);
/* Gives a run imported without data the data that its settings now name (data, val_data, val_share, epochs), and
 * records it. On failure the run is unchanged. */
int shore__run_take_data(struct shore__run *run, shore__progress_fn progress, void *ctx, struct shore_diag *diag);
/* Makes what its settings now name the run's data (validation: those to validate on, too), read from their beginning.
 * They are recorded with run->change, once the step is known at which the run goes on; until then, the run on disk is
 * unchanged. */
#define SHORE__FROM_NEXT INT64_MAX /* data_from and val_from until then */
int shore__run_replace_data(struct shore__run *run, bool validation, shore__progress_fn progress, void *ctx,
                            struct shore_diag *diag);
/* Removes data that the run has replaced, or was to take. */
void shore__run_remove_old_data(const struct shore__run *run);
/* SHORE_EUSAGE for a run of another program, which must continue it. */
int shore__run_refuse_contents(const struct shore__run *run, struct shore_diag *diag);
/* Settings as in run.json; for a run of another program, only those that apply to it. */
json_t *shore__run_settings_json(const struct shore__run *run);
/* Records settings that changed on resume; rewrites run.json atomically. */
int shore__run_record_change(struct shore__run *run, uint64_t step, const char *what, struct shore_diag *diag);
/* Whether this path is a run directory. */
bool shore__is_run(const char *path);
/* Whether a stopped making or removal has left this directory. */
bool shore__run_is_unmade(const char *path);
/* Says what the path is instead: never made, half made, half replaced. Returns a negative code. */
int shore__not_a_run(const char *path, struct shore_diag *diag);
/* SHORE_EBUSY for a run that another process uses. */
int shore__run_in_use(const char *path, struct shore_diag *diag);

/* Metrics. Lines are appended after each commit. On resume, lines beyond `step` are cut off, and a missing last line is
 * restored from the record (line: the fleet's record of it; may be empty). */
#define SHORE__METRICS_LINE_MOST (1u << 20) /* bytes of a line, with its end */
int shore__metrics_recover(struct shore__run *run, uint64_t step, const char *line, struct shore_diag *diag);
int shore__metrics_append(struct shore__run *run, uint64_t step, const char *line, struct shore_diag *diag);
/* The line of drives.jsonl of the step that the meter ended last, malloc'ed; NULL: out of memory. The first one of a
 * start has the drives' paths. */
char *shore__drives_line(struct shore__run *run, const struct shore_meter *meter);
int shore__drives_append(struct shore__run *run, const char *line, struct shore_diag *diag);
/* What a record holds of a line: it, or as many of its first members as there is room for. Returns the bytes. */
uint32_t shore__metrics_fit(const char *line, char out[SHORE__METRICS_BYTES]);

/* The residual of compression (bf16, all segments of all blocks), saved with the step and the digest of its state.
 * Durable: on return. load: *found is false and residual unchanged if there is none of exactly that state; a damaged
 * one is SHORE_ECORRUPT. */
int shore__residual_save(struct shore__run *run, uint64_t step, const unsigned char digest[16],
                         const uint16_t *residual, struct shore_diag *diag);
int shore__residual_load(struct shore__run *run, uint64_t step, const unsigned char digest[16], uint16_t *residual,
                         bool *found, struct shore_diag *diag);

/* Fills a created, unsealed fleet from sources: the parameters, and the moments if there are any. Progress in bytes.
 * fleet: NULL: only reads and checks the values. */
int shore__import(struct shore_fleet *fleet, const struct shore__model *m, struct shore__source *source,
                  const struct shore__moment_sources *moments, shore__progress_fn progress, void *ctx,
                  struct shore_diag *diag);

/* Exports to a directory of safetensors, streamed in constant memory. The directory appears complete or not at all; an
 * existing one must be empty. */
struct shore__exporting {
    struct shore_fleet *fleet;
    const struct shore__contents *contents;
    uint64_t step;
    const enum shore__st_type *type; /* of all, F16 among them, for which a value may be too large (SHORE_EINPUT); NULL:
                                        each as its shape says */
    bool moments;                    /* exports the moments too */
    uint64_t updates;                /* that all moments have seen; 0: left out of the JSON */
    uint64_t memory_bytes;           /* of buffers; 0: 32 MiB */
    uint64_t shard_bytes;            /* of a file; 0: 5 GiB */
    const char *file;                /* name of the only file; NULL: model.safetensors, or shards */
    const struct shore__settings *settings; /* of a run of adapters */
    uint32_t nextras;                       /* tensors in addition to contents */
    const struct shore_extra *extras;
    /* writes the directory's other files; may be NULL */
    int (*describe)(void *ctx, const char *directory, struct shore_diag *diag);
    void *describe_ctx;
    shore__progress_fn progress; /* in bytes */
    void *progress_ctx;
};
enum shore__st_type shore__st_type_of(enum shore_dtype dtype);
/* Where elements [first, first + count) of a tensor go, by its number in contents, in the order of its file. */
typedef int (*shore__put_fn)(void *ctx, uint32_t number, uint64_t first, uint64_t count, const float *values,
                             struct shore_diag *diag);
/* Reads the weights as an export of e->type has them, each tensor in its order. */
int shore__export_masters(const struct shore__exporting *e, shore__put_fn put, void *ctx, struct shore_diag *diag);
int shore__export_contents(const struct shore__exporting *e, const char *directory, struct shore_diag *diag);
/* Exports another program's run, with the configuration of the model that the program has recorded. */
int shore__export_recorded(const struct shore__exporting *e, const char *directory, struct shore_diag *diag);
/* A sentence for people: what such an export lacks, and what to do. The caller frees it; NULL: out of memory. */
char *shore__export_lacks(const struct shore__contents *c, const char *run, const char *directory);
/* Files of PEFT's directory. */
#define SHORE__ADAPTER_CONFIG "adapter_config.json"
#define SHORE__ADAPTER_WEIGHTS "adapter_model.safetensors"
/* Exports one of our models in the form that transformers loads, or its adapters in the form that PEFT loads; contents
 * and other files of `how` follow from the model. tokenizer: copied too; may be NULL. */
int shore__export(const struct shore__exporting *how, const struct shore__model *m,
                  const struct shore__tokenizer *tokenizer, const char *directory, struct shore_diag *diag);

/* Exports one of our models as a GGUF file for llama.cpp, with its tokenizer. name: the model's, in the file. Values
 * are those of shore__export() with the same type. SHORE_EINPUT: the model or its tokenizer has no form there that is
 * known here. */
int shore__export_gguf(const struct shore__exporting *how, const struct shore__model *m,
                       const struct shore__tokenizer *tokenizer, const char *name, const char *path,
                       struct shore_diag *diag);

/* A new placement: the drives that the state moves to. */
struct shore__placing {
    const struct shore__addresses
        *drives;         /* in their new order; a drive of the run keeps its place under its current name */
    const char *speeds;  /* in the form of --drive-speeds; NULL: measured */
    shore__note_fn note; /* may be NULL */
    void *note_ctx;
    shore__progress_fn progress; /* in bytes; nonzero stops with -ECANCELED, and nothing has changed */
    void *progress_ctx;
};
/* Moves a run that was opened for writing. If it is interrupted before its one durable step, run.json, the next opening
 * of the run undoes it; after that step, the next opening finishes it. */
int shore__run_place(struct shore__run *run, const struct shore__placing *how, struct shore_diag *diag);

/* Makes a snapshot named after the step (step-000100), and removes the oldest such snapshots beyond `keep` (0: keeps
 * all). */
int shore__snapshot_automatic(struct shore__run *run, struct shore_fleet *fleet, uint64_t keep, shore__note_fn note,
                              void *ctx, struct shore_diag *diag);
/* Whether there is a snapshot of that name. */
bool shore__snapshot_of_step(const struct shore__run *run, uint64_t step);
/* Makes the snapshot `best` of the committed step, whose validation loss this is. It replaces the one that is there: a
 * kill at any instant leaves one of both. */
int shore__snapshot_best(struct shore__run *run, struct shore_fleet *fleet, double val_loss, shore__note_fn note,
                         void *ctx, struct shore_diag *diag);
/* The validation loss of the `best` that is there; INFINITY: there is none. SHORE_EEXISTS: the user has made a snapshot
 * of that name, which is not replaced. */
int shore__snapshot_best_loss(const struct shore__run *run, double *loss, struct shore_diag *diag);

/* Opens a run for shore__run_rollback(), whatever an interrupted rollback has left. */
int shore__run_open_to_roll_back(const char *path, struct shore__run **out, struct shore_diag *diag);
/* Restores the state of a snapshot under a new epoch, with the metrics, schedule and changes of that time. Needs no
 * room on the drives. If it is interrupted, the next opening of the run continues it, or another rollback replaces it.
 * *from_step: the run's step before. progress: nonzero stops with -ECANCELED, and nothing has changed. */
int shore__run_rollback(struct shore__run *run, const char *name, shore__note_fn note, void *note_ctx,
                        shore__progress_fn progress, void *progress_ctx, uint64_t *from_step, struct shore_diag *diag);

/* Deletes a run and the volumes of its fleet. *begun: true once the first volume is gone. */
int shore__run_remove(const char *path, bool *begun, shore__note_fn note, void *ctx, struct shore_diag *diag);

#endif
