/* The run inside: what only this room sees of it, and what takes it from disk and puts it there. */
#ifndef SHORE_RUN_INTERNAL_H
#define SHORE_RUN_INTERNAL_H

#include "run/standing.h"

/* Of run.json: of a run of a model and texts, and of one that another program made. */
#define SHORE__RUN_VERSION 1
#define SHORE__RUN_VERSION_OF_CONTENTS 2
/* Of a run that another program made: how large it is, is that one's to say; that one is stored, ours. */
#define SHORE__MOMENTUM_OF_PROGRAM 0.5

/* A token file as run.json records it. */
struct shore__token_record {
    uint64_t tokens, documents, text_bytes;
    uint64_t hash;     /* of all tokens */
    uint64_t bad_rows; /* of the data, that were skipped */
};

struct shore__run_private {
    char *tokenizer_name;
    int64_t end_of_text; /* of the tokenizer, or SHORE__END_OF_TEXT_UNRECORDED: the run is older than that */
    struct shore__origin origin;
    char *home;                                /* where it is, once it is to have new volumes: they keep that */
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
    int64_t signed_by; /* process that has noted itself as the one that works on the run; 0: none */
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
/* Closes its descriptors in a child that was forked off, and unlocks nothing. */
void shore__run_forked(struct shore__run *run);
/* SHORE_EMISSING for one whose drives keep nothing. */
int shore__run_refuse_memory(const struct shore__run *run, struct shore_diag *diag);
/* A shore__note_fn: adds the sentence to the note of the run that is its context. */
void shore__run_remember(void *run, const char *text);
/* Reads run.json. */
int shore__run_read(struct shore__run *run, struct shore_diag *diag);
/* Waits a little: the lock of a killed process goes with its last I/O. SHORE_EBUSY. */
int shore__run_lock(struct shore__run *run, struct shore_diag *diag);
/* Notes this process as the one that works on a run, which is locked; nobody, where that cannot be written. */
void shore__worker_sign(struct shore__run *run);
void shore__worker_leave(const struct shore__run *run);
/* shore__run_open() without its data. */
int shore__run_open_state(const char *path, bool for_writing, const struct shore__strings *moved,
                          struct shore__run **out, struct shore_diag *diag);
/* The same to look at it alone, also where somebody brings what was interrupted to an end. */
int shore__run_look_at_state(const char *path, const struct shore__strings *moved, struct shore__run **out,
                             struct shore_diag *diag);
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
/* Writes run.json durably, as the run is in memory. */
int shore__run_put(struct shore__run *run, struct shore_diag *diag);
/* The same, at home where it is now, unless it may be a copy. */
int shore__run_write(struct shore__run *run, struct shore_diag *diag);
/* Makes the token files of its data in a directory, and counts which tokens are trained on. */
int shore__run_tokenize(struct shore__run *run, const char *directory, shore__progress_fn progress, void *ctx,
                        struct shore_diag *diag);
/* Opens train and val in a directory and compares their sizes with the record. */
int shore__run_open_data(struct shore__run *run, const char *directory, struct shore_diag *diag);
/* Closes its data and tokenizer. */
void shore__run_close_texts(struct shore__run *run);
/* Refuses drives and a directory for the run (it need not be there) that are what the settings say is read: --overwrite
 * would replace it. */
int shore__settings_spare_inputs(const struct shore__settings *s, const char *out, struct shore_diag *diag);

#define SHORE__BYTES "bytes" /* --tokenizer bytes, and the name of that tokenizer; ./bytes is a directory */
/* Nothing is given but token files, whose ids say nothing about their tokenizer, and need none. */
bool shore__settings_tokens_alone(const struct shore__settings *s);
/* Records that bytes are a run's tokenizer where none was named. */
int shore__run_settle_tokenizer(struct shore__settings *s, const char *name);

#endif
