/* Settings of a run: everything that `train` takes, recorded in RUN/run.json. Strings are owned (malloc). */
#ifndef SHORE_RUN_SETTINGS_H
#define SHORE_RUN_SETTINGS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/units.h"
#include "compute/compute.h"
#include "drive/address.h"
#include "near/update.h"
#include "run/strings.h"

enum shore__schedule { SHORE__CONSTANT, SHORE__LINEAR, SHORE__COSINE };

/* "Not given", for defaults that depend on the model or other settings: NaN for numbers, 0 for steps and seq_len,
 * SHORE__WARMUP_CHOSEN. shore__settings_fit() (run.h) replaces them. */
#define SHORE__WARMUP_CHOSEN UINT64_MAX

/* Largest values of settings, on the command line and in a file. */
#define SHORE__STEPS_MOST (UINT64_C(1) << 40)
#define SHORE__TOKENS_MOST (1u << 24) /* of a sequence; and sequences of a step */
#define SHORE__THREADS_MOST 1024u
#define SHORE__CHUNK_BYTES_MOST (UINT64_C(1) << 40)

/* Role of a setting when a run is resumed. */
enum shore__setting_role {
    SHORE__NO_SETTING,
    SHORE__IDENTITY, /* may change bits: fixed */
    SHORE__SCHEDULE, /* may change, recorded at that step; a rollback restores it */
    SHORE__RECORDED, /* a resource; changes are recorded */
    SHORE__RESOURCE, /* a resource; changes are not recorded */
    SHORE__MADE,     /* only matters when a run is made */
    SHORE__GONE      /* no longer a flag; still recorded if it is not the default */
};
enum shore__setting_role shore__role_of_setting(const char *key);

/* In the order of run.json; settings_rows.h describes each. */
struct shore__settings {
    /* identity: may change bits */
    char *model;                  /* directory, or NULL */
    char *adapter;                /* directory, or NULL */
    char *init;                   /* preset or config.json, or NULL */
    char *tokenizer;              /* directory, or NULL: the model's, or bytes */
    char *lora;                   /* r=16,alpha=32,target=...: see run/lora.h; or NULL */
    struct shore__strings freeze; /* patterns of names of tensors that are not trained */
    uint64_t seed;
    struct shore__strings data, mix, val_data; /* mix: "NAME=WEIGHT" for each name of data, or none */
    char *text_field;                          /* of records: the key of their text */
    bool all_count;                            /* prompts count in the loss, too */
    bool packs;                                /* records are joined; otherwise each is a sequence */
    bool skip_bad_rows;                        /* skips and counts bad rows; otherwise the first is an error */
    bool parse_special; /* special tokens in the data's text get their ids; otherwise they are text */
    double val_share;
    uint32_t batch, seq_len; /* seq_len 0: the model's, at most 1,024 */
    bool fp32;
    enum shore_optimizer optimizer;
    enum shore_moments moments;
    uint64_t updates_before; /* updates that the moments have seen before the first step */
    bool shuffle;
    enum shore__products products;
    uint32_t threads;                    /* 0: all */
    const char *device;                  /* compute's; not recorded. NULL: the processor */
    const struct shore_machine *machine; /* whose rates a plan takes; not recorded. NULL: rates are assumed */
    /* schedule and hyper-parameters: may change on resume, recorded at that step */
    uint64_t steps; /* 0: not given */
    double epochs;  /* 0: steps count */
    double lr, min_lr;
    uint64_t warmup;
    enum shore__schedule schedule;
    double beta1, beta2, eps, momentum, weight_decay, clip; /* clip 0: none */
    bool skip_nonfinite;
    /* gradients on their way to the drives: identity */
    bool gradient_bf16;      /* for whole gradients */
    double compress;         /* share of each block's elements to send; 0: all */
    uint64_t compress_after; /* steps with whole gradients first */
    bool error_feedback;
    bool residual_saved;                 /* on the drives; otherwise on the host */
    bool compress_fp32, frozen_variance; /* no longer supported: runs with them can be read, but not trained */
    /* resources: never change bits */
    uint64_t memory_bytes; /* 0: a default for the machine */
    struct shore__addresses drives;
    char *drive_speeds;   /* given instead of measured when volumes are made; or NULL */
    char *max_writes;     /* bytes that the drives may write in a day, together or each; NULL: any */
    uint64_t chunk_bytes; /* of state; 0: chosen */
    enum shore_io io;
    enum shore__when speculate;
    enum shore__when offload;      /* move inner activations to the drives instead of recomputing them */
    enum shore__when gather;       /* rows of the embedding move instead of all of it */
    double reconnect_seconds;      /* how long a drive on another host may be away */
    uint64_t snapshot_every, keep; /* steps between automatic snapshots, 0: none; how many to keep, 0: all */
    bool keep_best;                /* a snapshot `best` of the least validation loss */
    uint64_t stop_after_no_gain;   /* validation losses in a row that are not below the least; 0: no such stop */
    bool host_update;              /* UPDATE on the host instead of beside the drives */
    char *emulate;                 /* a file, or NULL: see run/emulation/emulate.h */
    /* reporting */
    uint64_t stop_at, eval_every, sample_every; /* 0: never (eval_every: only at the end) */
    char *tensorboard;                          /* a directory, or NULL */
    uint64_t trace;                             /* steps that RUN/trace.spans keeps; 0: none */
    struct shore__pace log_every;               /* between progress lines without a terminal */
    bool quiet;
};

void shore__settings_defaults(struct shore__settings *s);
void shore__settings_free(struct shore__settings *s);
int shore__settings_copy(const struct shore__settings *s, struct shore__settings *out);
/* All settings as recorded; keys are the flags without "--". from_json accepts exactly these keys ("did you mean" for
 * others) and changes only those given, so `out` starts from defaults or a copy. Sizes are text or numbers. name: the
 * file. */
json_t *shore__settings_to_json(const struct shore__settings *s);
int shore__settings_from_json(const json_t *json, const char *name, struct shore__settings *out,
                              struct shore_diag *diag);
/* Checks each setting, and all of them together. Errors name the flag (--batch). */
int shore__settings_in_range(const struct shore__settings *s, struct shore_diag *diag);
int shore__settings_check(const struct shore__settings *s, struct shore_diag *diag);
static inline struct shore__compute_options shore__settings_compute(const struct shore__settings *s) {
    return (struct shore__compute_options){s->device, s->fp32, s->products, (int)s->threads};
}
/* Takes from a model what its settings say that is not trained. SHORE_EUSAGE, -ENOMEM. */
struct shore__model;
int shore__settings_shape_model(const struct shore__settings *s, struct shore__model *m, struct shore_diag *diag);
/* Whether a drive is "ram:", so that no state outlives the process. */
bool shore__settings_in_ram(const struct shore__settings *s);
/* Whether the times of its steps are another machine's. */
bool shore__settings_emulated(const struct shore__settings *s);

/* Reads --max-writes-per-day: bytes for all drives together, or for each drive; the other is left 0. each: one for each
 * drive; NULL: only checks. SHORE_EUSAGE. */
int shore__settings_max_writes(const struct shore__settings *s, uint64_t *all, uint64_t *each, struct shore_diag *diag);

/* Makes the names of a mixture the data. SHORE_EUSAGE. */
int shore__settings_take_mix(struct shore__settings *s, struct shore_diag *diag);
/* Checks the mixture, if there is one. shares: of each name of data, of SHORE__MIX_SHARES; NULL: not wanted.
 * SHORE_EUSAGE. */
#define SHORE__MIX_MOST 64u
int shore__settings_mix(const struct shore__settings *s, uint32_t *shares, struct shore_diag *diag);

/* Default number of warm-up steps. */
uint64_t shore__warmup_for(const struct shore__settings *s, uint64_t steps);
/* Learning rate of step t (from 1): linear warm-up from lr / warmup at the first step; then constant, or linear or
 * cosine down to min_lr at the last. Missing values count as shore__settings_fit() would set them. */
double shore__learning_rate(const struct shore__settings *s, uint64_t step);

#endif
