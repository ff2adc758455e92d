/* What the files of this room share.
 */
#ifndef SHORE_RUN_INTERNAL_H
#define SHORE_RUN_INTERNAL_H

#include "run/run.h"

#define SHORE__RUN_VERSION 1

/* A token file as run.json records it. */
struct shore__token_record {
    uint64_t tokens, documents, text_bytes;
    uint64_t hash;     /* of all tokens */
    uint64_t bad_rows; /* of the data, that were skipped */
};

/* The directory that the volumes belong to, as run.json has it; NULL: older than that. */
struct shore__origin {
    char *home; /* its path */
    char *mark; /* what tells it from a copy, wherever it is now */
};

struct shore__run_private {
    char *tokenizer_name;
    int64_t end_of_text; /* of the tokenizer, or SHORE__END_OF_TEXT_UNRECORDED: the run is older than that */
    struct shore__origin origin;
    struct shore__addresses moved;             /* drives that are said to lie elsewhere now, not recorded yet: where */
    struct shore__token_record data, val_data; /* val_data.tokens 0: validation is the end of data, or none */
    uint64_t train_tokens, val_tokens;
    /* while it is made */
    struct shore__strings created; /* directories, outermost first */
    struct shore__addresses fresh; /* volume files that did not exist before, or are replaced */
    bool replaces;                 /* some are of the run that is overwritten */
    bool moving;                   /* the making has begun to move files into RUN: they are its own there */
    /* of what has opened its data or tokenizer; NULL: neither is open. So what needs no texts does not link them. */
    void (*close_texts)(struct shore__run *run);
    /* metrics */
    int metrics_fd, hint_fd; /* -1: not open */
    uint64_t metrics_step;   /* of the last line */
    uint64_t metrics_bytes;
    uint64_t synced_ns;
};

/* Allocated, nothing open. */
int shore__run_alloc(const char *path, struct shore__run **out, struct shore_diag *diag);
/* Closes what is open; what was being made stays. */
void shore__run_free(struct shore__run *run);
/* A shore__note_fn: adds the sentence to the note of the run that is its context. */
void shore__run_remember(void *run, const char *text);
/* Reads run.json. */
int shore__run_read(struct shore__run *run, struct shore_diag *diag);
/* Waits a little: the lock of a killed process goes with its last I/O. SHORE_EBUSY. */
int shore__run_lock(struct shore__run *run, struct shore_diag *diag);
/* shore__run_open() without its data. */
int shore__run_open_state(const char *path, bool for_writing, const struct shore__strings *moved,
                          struct shore__run **out, struct shore_diag *diag);
/* Locks the run and reads run.json alone, for removal: the rest may be damaged. */
int shore__run_open_alone(const char *path, struct shore__run **out, struct shore_diag *diag);
/* run.json alone, without a lock; NULL: there is none that can be read. */
struct shore__run *shore__run_peek(const char *path);
/* SHORE_EINPUT for a directory of PEFT's: what it is, and how it becomes a model. */
int shore__refuse_adapter(const char *directory, struct shore_diag *diag);
/* The hint, and the metrics, of a step that was put back: durable. metrics: a file to take, or NULL for none. */
int shore__metrics_put_back(struct shore__run *run, uint64_t step, const char *metrics, struct shore_diag *diag);
/* The step of the last whole line, or 0. */
uint64_t shore__metrics_last(const struct shore__run *run);
/* Writes run.json durably. */
int shore__run_write(struct shore__run *run, struct shore_diag *diag);
/* Makes the token files of its data in a directory, and counts which tokens are trained on. */
int shore__run_tokenize(struct shore__run *run, const char *directory, shore__progress_fn progress, void *ctx,
                        struct shore_diag *diag);
/* Opens train and val in a directory and compares their sizes with the record. */
int shore__run_open_data(struct shore__run *run, const char *directory, struct shore_diag *diag);
/* Closes its data and tokenizer. */
void shore__run_close_texts(struct shore__run *run);
/* What is common to the making of all runs. begin: the directory, the plan of its volumes, and the fleet's id; what it
 * is to hold goes into RUN/making. finish: moves that into place and makes it a run. */
int shore__making_begin(struct shore__run *run, bool overwrite, struct shore_diag *diag);
int shore__making_finish(struct shore__run *run, const uint64_t fleet_id[2], shore__note_fn note, void *ctx,
                         struct shore_diag *diag);
/* Undoes a preparation. */
void shore__run_undo(struct shore__run *run);

/* RUN/making/plan.json: which fleet, and which volume files, a making that was killed may have left. */
struct shore__plan {
    uint64_t fleet_id[2];
    struct shore__addresses fresh;
    struct shore__origin origin;
    bool moving;
};
void shore__plan_free(struct shore__plan *plan);
/* What is being made there is the directory's own from now on. */
int shore__plan_claim(const char *run_path, struct shore_diag *diag);
void shore__making_remove(const char *run_path);
/* Ends a making that was killed: after its last step but one, or while the run stands that it was to overwrite. */
void shore__making_settle(const struct shore__run *run, shore__note_fn note, void *ctx);
/* Opens the way back to a run that is half replaced: its volumes may still be whole. */
int shore__run_recall(const char *path, struct shore_diag *diag);
/* The run that is overwritten, once it is no run any more; NULL: none that can be read. Freed by shore__run_free(). */
struct shore__run *shore__run_overwritten(const char *run_path);
/* Removes its volumes, once the run that takes its place stands; what stays is said. overwritten: may be NULL. */
void shore__run_drop(const struct shore__run *overwritten, shore__note_fn note, void *ctx);
/* Reads only the header. begun: a file without one counts too. diag says why not. */
bool shore__volume_is_of(const char *volume, const uint64_t fleet_id[2], bool begun, struct shore_diag *diag);
int shore__plan_read(const char *run_path, struct shore__plan *out, struct shore_diag *diag); /* SHORE_EMISSING: none */

/* Refuses drives and a directory for the run (it need not be there) that are what the settings say is read: --overwrite
 * would replace it. */
int shore__settings_spare_inputs(const struct shore__settings *s, const char *out, struct shore_diag *diag);

#define SHORE__BYTES "bytes" /* --tokenizer bytes, and the name of that tokenizer; ./bytes is a directory */
/* Nothing is given but token files, whose ids say nothing about their tokenizer, and need none. */
bool shore__settings_tokens_alone(const struct shore__settings *s);
/* Records that bytes are a run's tokenizer where none was named. */
int shore__run_settle_tokenizer(struct shore__settings *s, const char *name);

/* ---- the run, or a copy of it ------------------------------------------------------------------------------------ */

enum shore__standing {
    SHORE__RUN_ITSELF,    /* also a copy that has drives of its own */
    SHORE__RUN_PUT_BACK,  /* where the run was, but another directory */
    SHORE__RUN_ELSEWHERE, /* moved from another file system, or a copy of what is not found any more */
    SHORE__RUN_COPY,      /* with drives of a run that is found */
};
/* drives: what both would have in common; NULL: all. *original: of a copy, malloc'ed; otherwise NULL. */
enum shore__standing shore__standing_of(const char *path, const struct shore__origin *origin,
                                        const uint64_t fleet_id[2], const struct shore__addresses *drives,
                                        char **original);
enum shore__standing shore__run_standing(const struct shore__run *run);
/* SHORE_EUSAGE for what stands like `from` or worse: the volumes are not its own to remove or move. */
int shore__run_refuse_copy(const struct shore__run *run, enum shore__standing from, struct shore_diag *diag);
int shore__plan_refuse_copy(const char *run_path, const struct shore__plan *plan, struct shore_diag *diag);
/* Into run->note, unless it is the run itself. */
void shore__run_say_standing(struct shore__run *run);
int shore__origin_take(const char *path, struct shore__origin *origin, struct shore_diag *diag);
bool shore__origin_is_current(const char *path, const struct shore__origin *origin);
void shore__origin_free(struct shore__origin *origin);

/* ---- paths ------------------------------------------------------------------------------------------------------- */

bool shore__path_exists(const char *directory, const char *name);
bool shore__directory_is_empty(const char *path);
int shore__file_sync(const char *path, struct shore_diag *diag);
/* Patterns as fnmatch() takes them, NULL last. */
bool shore__name_matches(const char *name, const char *const *patterns);
/* Of something in it whose name none of the patterns matches: its path, malloc'ed; NULL: there is nothing such. */
char *shore__directory_stranger(const char *path, const char *const *patterns);
/* A file, and what a kill has left of its being replaced. */
void shore__remove_in(const char *directory, const char *name);
/* Removes those files of a directory whose names a pattern matches, and the directory if it is empty then. */
void shore__directory_remove(const char *path, const char *const *patterns);
/* The path that run.json records: absolute, links in it resolved; devices keep the name they were given, since the
 * kernel's own may change with the next start. Refused if neither it nor its directory exists, or if run.json cannot
 * hold it. *out is malloc'ed; NULL where it fails. */
int shore__drive_absolute(const struct shore__address *drive, struct shore__address **out, struct shore_diag *diag);
/* Names of the files that a run directory holds; run.json is not among them. */
#define SHORE__RUN_FILES                                                                                        \
    "config.json", "tokens.bin", "val.bin", "metrics.jsonl", "metrics.jsonl.old", "committed", "residual-host", \
        SHORE__TOKENIZER_FILES
/* NULL last */
extern const char *const shore__run_files[];
/* Of run.json, and of all else that lists a run's drives: what one can hold, the others take. */
enum { SHORE__RUN_JSON_BYTES_MOST = 64 << 20 };

void shore__fleet_id_text(const uint64_t id[2], char out[33]);
bool shore__fleet_id_parse(const char *text, uint64_t id[2]);

#endif
