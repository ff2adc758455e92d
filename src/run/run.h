/* The run directory: what was asked (run.json), tokens, tokenizer and model description, metrics, and where the state
 * lies. Used by train, infer and the command line.
 *
 *   RUN/run.json        settings, model config, fleet id, drives, token counts, processor kind, where RUN is; changes
 *                       by step; its presence makes the directory a run. Of a run that another program made
 *                       (longshore/run.h): its tensors and what the program has left, without what is of texts
 *   RUN/config.json     the model, as Hugging Face writes it
 *   RUN/tokenizer...    copies, so that the run stands alone
 *   RUN/tokens.bin, RUN/val.bin
 *   RUN/metrics.jsonl   one object per committed step
 *   RUN/committed       the hint: last committed step
 *   RUN/residual-host   what compression has left out of the gradients, as of the last stop in good order or snapshot
 */
#ifndef SHORE_RUN_RUN_H
#define SHORE_RUN_RUN_H

#include "files/safetensors.h"
#include "model/model.h"
#include "run/contents.h"
#include "run/settings.h"
#include "text/dataset.h"

#define SHORE__PROCESSOR_BYTES 96

struct shore__run {
    char *path, *word; /* word: the path as a shell takes it */
    int lock_fd;       /* flock on the directory: two processes do not train one run; -1 when opened for reading */
    struct shore__settings settings;
    struct shore__model *model;         /* NULL: of a run that another program made */
    struct shore__contents *contents;   /* of that; NULL: of a run of a model */
    const struct shore_layout *layout;  /* of either */
    struct shore__tokenizer *tokenizer; /* NULL until shore__run_tokenizer() */
    struct shore__dataset *train, *val; /* NULL: none (train: an import without data) */
    uint64_t fleet_id[2];
    uint64_t generation; /* of the placement: drives that were added, removed or replaced */
    uint64_t hint_step;
    char processor[SHORE__PROCESSOR_BYTES]; /* that the run was last trained on, with products, threads and kernels */
    json_t *changes;                        /* recorded changes: [{"step": n, "what": "..."}] */
    char *change;   /* asked for on resume: recorded once the drives have been opened; NULL: nothing */
    char *note;     /* what opening or recovering found and mended: one sentence; NULL: nothing */
    char *no_data;  /* why its tokens cannot be opened: nothing to train on, all else is there; NULL: they are open */
    int no_data_rc; /* with which code */
    bool making;    /* prepared, not finished */
    uint64_t copy_memory_bytes; /* a move or rollback keeps within it; 0: within the run's own budget */
    bool begun; /* a move or rollback: its drives were open, or what it made stays; it failed while running */
    /* The drives hold what a killed making of this very run left: the fleet may be created over it. */
    bool replace_drives;
    struct shore__run_private *private;
};

/* Says a sentence to note, unless that is NULL. */
__attribute__((format(printf, 3, 4))) void shore__note(shore__note_fn note, void *ctx, const char *format, ...);

/* Where initial or imported weights come from. */
struct shore__source;
/* From random numbers; or from a Hugging Face directory (checks that all tensors are there with the right shapes,
 * that none is unknown, beforehand). */
int shore__source_init(const struct shore__model *m, uint64_t seed, struct shore__source **out);
int shore__source_directory(const struct shore__model *m, const char *directory, struct shore__source **out,
                            struct shore_diag *diag);
/* fp32 values of segments [segment, segment + count) of a block, canonical. NaN and infinity are refused. */
int shore__source_read(struct shore__source *source, uint32_t block, uint32_t segment, uint32_t count, float *out,
                       struct shore_diag *diag);
void shore__source_close(struct shore__source *source);

/* Moments in a Hugging Face directory, beside the weights: run/exchange/moment_files.h says where. */
struct shore__moment_sources {
    struct shore__source *m, *v; /* NULL: zeros */
};
/* 0 and *updates as it was: the directory holds none. Errors name the file: moments of another optimizer, or such as
 * have not seen equally many updates. */
int shore__moments_updates(const char *directory, enum shore_optimizer optimizer, uint64_t *updates,
                           struct shore_diag *diag);
/* Those of the directory that is settings' model. SHORE_EINPUT: momentum where there is to be none, or none. */
int shore__moments_open(const struct shore__model *m, const struct shore__settings *s,
                        struct shore__moment_sources *out, struct shore_diag *diag);
void shore__moments_close(struct shore__moment_sources *moments);

/* The model that settings name: --model DIR or --init; presets grow to the tokenizer's size. Reads config.json. */
int shore__run_model(const struct shore__settings *s, struct shore__tokenizer *tokenizer, struct shore__model **out,
                     struct shore_diag *diag);
/* The tokenizer that settings name ("bytes": that one), or the directory's of --model or --init. Without one, --init
 * goes with bytes, and so does a directory with token files alone, which need none; SHORE_EINPUT for other data. */
int shore__run_tokenizer_of(const struct shore__settings *s, struct shore__tokenizer **out, struct shore_diag *diag);
/* The model of a Hugging Face directory with its weights: not tied if they are not, whatever its configuration says. */
int shore__model_from_directory(const char *directory, struct shore__model **out, struct shore_diag *diag);

/* Fleet options that belong to a run's settings (drives, optimizer, chunk, io ...). Fields point into settings. */
void shore__run_fleet_options(const struct shore__settings *s, uint64_t scratch_bytes, bool spill,
                              struct shore_fleet_options *out);

/* Fills in what was not given and depends on the model, the data or other settings: seq_len, lr, min_lr, beta2, steps,
 * warmup. tokens of the training data, for epochs; 0: not known yet (then epochs stay). */
void shore__settings_fit(struct shore__settings *s, const struct shore__model *m, uint64_t tokens);

/* Making a run, in this order, so that a run killed while it is made can be made again by the same command:
 *   shore__run_prepare  checks the directory (SHORE_EEXISTS if a made run is there and not overwrite), makes RUN with
 *                       a folder "making" in it that is marker and workplace, tokenizes, chooses fleet_id
 *   shore__run_replace  ends a run that is overwritten, if volumes of it are about to be
 *   the caller          creates the fleet (shore__run_new_fleet()), fills it, seals it
 *   shore__run_finish   moves everything into place, writes run.json durably, removes "making"
 * A run that is being overwritten stays whole until finish, or until one of its volumes is replaced. Closing a run that
 * was prepared and not finished undoes the preparation, new volumes included (close the fleet first); only where a
 * volume of an overwritten run was replaced, "making" stays. On success the run owns model and tokenizer. */
int shore__run_prepare(const char *path, const struct shore__settings *s, struct shore__model *model,
                       struct shore__tokenizer *tokenizer, bool overwrite, shore__progress_fn progress,
                       void *progress_ctx, struct shore__run **out, struct shore_diag *diag);
int shore__run_replace(struct shore__run *run, struct shore_diag *diag);
/* What a run that is being made gives the fleet that is created for it. */
void shore__run_new_fleet(const struct shore__run *run, struct shore_fleet_options *options);
int shore__run_finish(struct shore__run *run, const uint64_t fleet_id[2], const char *processor, shore__note_fn note,
                      void *ctx, struct shore_diag *diag);
/* Bytes in files of this host that a run which is made there takes over or gives free: of one that is overwritten, or
 * of a making that was killed. Files that the drives name themselves are not counted. */
uint64_t shore__making_holds(const char *run_path, const struct shore__addresses *drives);
/* Whether a run was to be overwritten there and can neither be put back nor is replaced yet. */
bool shore__run_is_half_replaced(const char *path);

/* What the user says: this directory, wherever it was made, is the run itself (or the making of one) and no copy, so
 * that its volumes are its own. Durable. Refused for what is known to be a copy. */
int shore__run_claim(const char *path, struct shore_diag *diag);
/* Opens a made run. for_writing: locks it (SHORE_EBUSY). moved: "OLD=NEW" drive replacements, may be NULL. */
int shore__run_open(const char *path, bool for_writing, const struct shore__strings *moved, struct shore__run **out,
                    struct shore_diag *diag);
/* Opens it for what need not be true in a moment: no lock is waited for, also while somebody works on it. */
int shore__run_look(const char *path, const struct shore__strings *moved, struct shore__run **out,
                    struct shore_diag *diag);
/* Who works on a run: it is locked. What is 0 or empty is not known. False: nobody does. */
struct shore__worker {
    int64_t pid, since; /* since: seconds since 1970 */
    char host[256], process[64];
};
bool shore__run_worker(const char *path, struct shore__worker *out);
/* How its last steps went, as metrics.jsonl says, in whatever state it is. */
struct shore__pulse {
    double loss;          /* the newest; NaN: not known */
    double step_seconds;  /* median of the newest; 0: not known */
    uint32_t steps_timed; /* of how many */
};
void shore__run_pulse(const struct shore__run *run, struct shore__pulse *out);
void shore__run_close(struct shore__run *run); /* frees model, tokenizer, datasets, settings */
int shore__run_tokenizer(struct shore__run *run, struct shore_diag *diag); /* opens it once */
/* Made from token files alone, and no tokenizer was named: bytes stand in for it. */
bool shore__run_without_tokenizer(const struct shore__run *run);
/* "bytes (257 of 50,257 ids used)", for people. How many are used is known of bytes, and once the tokenizer is open. */
const char *shore__tokenizer_text(const struct shore__settings *s, const struct shore__tokenizer *tokenizer,
                                  const struct shore__model *m, char *out, size_t bytes);
const char *shore__run_tokenizer_text(const struct shore__run *run, char *out, size_t bytes);
/* Reads all tokens (val_alone: those of the file that validation data lie in) and compares them with what run.json
 * recorded; opening compares only headers and counts. progress (NULL: none): in bytes, nonzero stops with -ECANCELED.
 */
int shore__run_check_data(struct shore__run *run, bool val_alone, shore__progress_fn progress, void *ctx,
                          struct shore_diag *diag);
/* Rows of its data that were bad and skipped. */
uint64_t shore__run_bad_rows(const struct shore__run *run);
/* Gives a run that was imported without data the data that its settings name by now (data, val_data, val_share,
 * epochs), and records it. If it fails, the run is as it was. */
int shore__run_take_data(struct shore__run *run, shore__progress_fn progress, void *ctx, struct shore_diag *diag);
/* SHORE_EUSAGE for a run that another program made: it goes on with it there. */
int shore__run_refuse_contents(const struct shore__run *run, struct shore_diag *diag);
/* Settings as run.json has them: of a run that another program made, those that say something of it. */
json_t *shore__run_settings_json(const struct shore__run *run);
/* Records settings that changed on resume (rewrites run.json atomically). */
int shore__run_record_change(struct shore__run *run, uint64_t step, const char *what, struct shore_diag *diag);
/* Is this path a run directory? */
bool shore__is_run(const char *path);
/* A directory that a making or removal which was stopped has left. */
bool shore__run_is_unmade(const char *path);
/* Says what it is instead: never made, half made, half replaced. Returns a negative code. */
int shore__not_a_run(const char *path, struct shore_diag *diag);
/* Of a run that another process has: SHORE_EBUSY. */
int shore__run_in_use(const char *path, struct shore_diag *diag);

/* Metrics: lines are appended after the commit; on resume what is beyond `step` is cut off, and a missing last line is
 * taken from the record (line: what the fleet's record holds; may be empty). */
int shore__metrics_recover(struct shore__run *run, uint64_t step, const char *line, struct shore_diag *diag);
int shore__metrics_append(struct shore__run *run, uint64_t step, const char *line, struct shore_diag *diag);

/* What compression has left out of the gradients (bf16, all segments of all blocks), kept with the step and the digest
 * of the state that it belongs to. Durable: on return. load: *found is false, and residual as it was, if there is none
 * of just that state; a damaged one is SHORE_ECORRUPT. */
int shore__residual_save(struct shore__run *run, uint64_t step, const unsigned char digest[16],
                         const uint16_t *residual, struct shore_diag *diag);
int shore__residual_load(struct shore__run *run, uint64_t step, const unsigned char digest[16], uint16_t *residual,
                         bool *found, struct shore_diag *diag);

/* Fills a created, unsealed fleet from sources: the parameters, and the moments, where there are some. Progress in
 * bytes. */
int shore__import(struct shore_fleet *fleet, const struct shore__model *m, struct shore__source *source,
                  const struct shore__moment_sources *moments, shore__progress_fn progress, void *ctx,
                  struct shore_diag *diag);

/* A directory of safetensors, streamed in constant memory; it appears whole or not at all, an existing directory must
 * be empty. */
struct shore__exporting {
    struct shore_fleet *fleet;
    const struct shore__contents *contents;
    uint64_t step;
    const enum shore__st_type *type; /* of all, F16 among them, for which a value may be too large (SHORE_EINPUT); NULL:
                                        each as its shape says */
    bool moments;                    /* too */
    uint64_t updates;                /* that all moments have seen; 0: that is said by who asks for them */
    uint64_t memory_bytes;           /* of buffers; 0: 32 MiB */
    uint64_t shard_bytes;            /* of a file; 0: 5 GiB */
    uint32_t nextras;                /* tensors beside those of contents */
    const struct shore_extra *extras;
    int (*describe)(void *ctx, const char *directory, struct shore_diag *diag); /* what else goes there; may be NULL */
    void *describe_ctx;
    shore__progress_fn progress; /* in bytes */
    void *progress_ctx;
};
enum shore__st_type shore__st_type_of(enum shore_dtype dtype);
int shore__export_contents(const struct shore__exporting *e, const char *directory, struct shore_diag *diag);
/* Of a model of ours, as transformers loads it; how: contents and what else goes there follow from the model.
 * tokenizer: copied too, may be NULL. */
int shore__export(const struct shore__exporting *how, const struct shore__model *m,
                  const struct shore__tokenizer *tokenizer, const char *directory, struct shore_diag *diag);

/* Another placement: the state moves to these drives. */
struct shore__placing {
    const struct shore__addresses
        *drives;         /* in their new order; one of the run keeps its place under its present name */
    const char *speeds;  /* as --drive-speeds takes them; NULL: measured */
    shore__note_fn note; /* may be NULL */
    void *note_ctx;
    shore__progress_fn progress; /* in bytes; nonzero stops with -ECANCELED, and nothing has changed */
    void *progress_ctx;
};
/* The run must have been opened for writing. Interrupted before its one durable step, which is run.json, it is undone
 * when the run is opened again; after it, it is brought to its end. */
int shore__run_place(struct shore__run *run, const struct shore__placing *how, struct shore_diag *diag);

/* A snapshot named after the step (step-000100), and the oldest such ones beyond `keep` removed (0: all are kept). */
int shore__snapshot_automatic(struct shore__run *run, struct shore_fleet *fleet, uint64_t keep, shore__note_fn note,
                              void *ctx, struct shore_diag *diag);
/* Whether there is one of that name. */
bool shore__snapshot_of_step(const struct shore__run *run, uint64_t step);

/* Opens a run for shore__run_rollback(), whatever an interrupted one has left. */
int shore__run_open_to_roll_back(const char *path, struct shore__run **out, struct shore_diag *diag);
/* Puts back the state of a snapshot, under a new epoch, with metrics, schedule and changes as they were then. Needs no
 * room on the drives. Interrupted, it goes on when the run is opened again; another rollback may take its place.
 * *from_step: where the run was. progress: nonzero stops with -ECANCELED, and nothing has changed. */
int shore__run_rollback(struct shore__run *run, const char *name, shore__note_fn note, void *note_ctx,
                        shore__progress_fn progress, void *progress_ctx, uint64_t *from_step, struct shore_diag *diag);

/* Deletes a run and its volumes (only those of its fleet). *begun: becomes true with the first volume that goes. */
int shore__run_remove(const char *path, bool *begun, shore__note_fn note, void *ctx, struct shore_diag *diag);

#endif
