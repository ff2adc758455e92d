/* A run as the files of this room share it: its private fields, and how it is read from and written to disk. */
#ifndef SHORE_RUN_INTERNAL_H
#define SHORE_RUN_INTERNAL_H

#include "run/standing.h"

/* Versions of run.json: a run of a model and texts, and one of another program. */
#define SHORE__RUN_VERSION 1
#define SHORE__RUN_VERSION_OF_CONTENTS 2
/* Momentum of a run of another program: that program decides its size; the run only records that there is one. */
#define SHORE__MOMENTUM_OF_PROGRAM 0.5

/* A token file, as run.json records it. */
struct shore__token_record {
    uint64_t tokens, documents, text_bytes;
    uint64_t hash;                  /* of all tokens */
    uint64_t bad_rows;              /* rows of the data that were skipped */
    uint64_t ends[SHORE__MIX_MOST]; /* of a mixture: where the parts end */
    bool second;                    /* it lies in the second file: data take turns when others replace them */
};

struct shore__run_private {
    char *tokenizer_name;
    int64_t end_of_text; /* the tokenizer's, or SHORE__END_OF_TEXT_UNRECORDED: the run is from an older version */
    struct shore__origin origin;
    char *home;                                /* the run's path once it gets new volumes, which keep it */
    struct shore__addresses moved;             /* drives that lie elsewhere now, not yet recorded: where */
    struct shore__token_record data, val_data; /* val_data.tokens 0: validation uses the end of data, or nothing */
    uint64_t train_tokens, val_tokens;
    /* while the run is made */
    struct shore__strings created; /* directories, outermost first */
    struct shore__addresses fresh; /* volumes that are new or replaced */
    bool replaces;                 /* some of them are devices with volumes of the overwritten run */
    /* Closes data and tokenizer; NULL: neither is open. It is a pointer, so that programs without texts do not link
     * them. */
    void (*close_texts)(struct shore__run *run);
    int64_t signed_by; /* the process noted as working on the run; 0: none */
    /* metrics */
    int metrics_fd, hint_fd; /* -1: not open */
    uint64_t metrics_step;   /* of the last line */
    uint64_t metrics_bytes;
    uint64_t synced_ns;
    bool drives_named; /* this start has said the paths of drives in drives.jsonl */
};

/* Allocates a run with nothing open. */
int shore__run_alloc(const char *path, struct shore__run **out, struct shore_diag *diag);
/* Closes what is open; an unfinished run stays. */
void shore__run_free(struct shore__run *run);
/* Closes descriptors in a forked child, and unlocks nothing. */
void shore__run_forked(struct shore__run *run);
/* SHORE_EMISSING for a run whose drives keep nothing. */
int shore__run_refuse_memory(const struct shore__run *run, struct shore_diag *diag);
/* A shore__note_fn: adds the sentence to run->note; ctx is the run. */
void shore__run_remember(void *run, const char *text);
/* Reads run.json. */
int shore__run_read(struct shore__run *run, struct shore_diag *diag);
/* Locks the run. Waits briefly, because a killed process keeps its lock until its last I/O. SHORE_EBUSY. */
int shore__run_lock(struct shore__run *run, struct shore_diag *diag);
/* Notes this process as the one that works on a locked run. Without write access, nobody is noted. */
void shore__worker_sign(struct shore__run *run);
void shore__worker_leave(const struct shore__run *run);
/* shore__run_open() without the data. */
int shore__run_open_state(const char *path, bool for_writing, const struct shore__strings *moved,
                          struct shore__run **out, struct shore_diag *diag);
/* Locks the run and reads only run.json, for removal: everything else may be damaged. */
int shore__run_open_alone(const char *path, struct shore__run **out, struct shore_diag *diag);
/* Reads only run.json, without a lock; NULL: there is no readable one. */
struct shore__run *shore__run_peek(const char *path);
/* SHORE_EINPUT for what is no model's directory, but for example an adapter or a GGUF file: says what to do. */
int shore__refuse_no_model(const char *path, struct shore_diag *diag);
/* The same for a GGUF file alone, and for a directory of the hub's cache that holds snapshots. */
int shore__refuse_gguf_file(const char *path, struct shore_diag *diag);
int shore__refuse_cache(const char *directory, struct shore_diag *diag);
/* Writes the hint and the metrics of a restored step, durably. metrics: a file to take, or NULL for none. */
int shore__metrics_put_back(struct shore__run *run, uint64_t step, const char *metrics, struct shore_diag *diag);
/* Opens a file of the run that is written in place, and makes it if it is missing. One that a backup shares by a hard
 * link is parted first. */
int shore__run_file(struct shore__run *run, const char *name, int flags, int *fd, struct shore_diag *diag);
/* The step of a whole line of metrics.jsonl or drives.jsonl; 0: it is none. */
uint64_t shore__line_step(const char *line, size_t bytes);
/* Cuts lines of drives.jsonl beyond this step off, and one that is torn. */
void shore__drives_cut(struct shore__run *run, uint64_t step);
/* The step of the last complete line, or 0. */
uint64_t shore__metrics_last(const struct shore__run *run);
/* Writes the run in memory as run.json, durably. name: of the file. */
int shore__run_put(const struct shore__run *run, const char *name, struct shore_diag *diag);
/* The same, and records the current path as home, unless the run may be a copy. */
int shore__run_write(struct shore__run *run, struct shore_diag *diag);
/* Makes the token files of the run's data in a directory, and counts the tokens to train on. */
int shore__run_tokenize(struct shore__run *run, const char *directory, shore__progress_fn progress, void *ctx,
                        struct shore_diag *diag);
/* Opens train and val in a directory, and compares their sizes with the record. */
int shore__run_open_data(struct shore__run *run, const char *directory, struct shore_diag *diag);
/* Closes the data and the tokenizer. */
void shore__run_close_texts(struct shore__run *run);
/* Refuses drives, and a directory for the run (which need not exist), that the settings also name as input: --overwrite
 * would replace them. */
int shore__settings_spare_inputs(const struct shore__settings *s, const char *out, struct shore_diag *diag);

#define SHORE__BYTES "bytes" /* --tokenizer bytes, and the name of that tokenizer; ./bytes is a directory */
/* Whether all data are token files, which neither say nor need their tokenizer. */
bool shore__settings_tokens_alone(const struct shore__settings *s);
/* Records bytes as a run's tokenizer if none was named. */
int shore__run_settle_tokenizer(struct shore__settings *s, const char *name);

#endif
