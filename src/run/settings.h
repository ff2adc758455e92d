/* What a run was told: everything `train` takes, recorded in RUN/run.json. Strings are owned (malloc).
 */
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

/* "Not given" where a default depends on the model or on other settings: NaN for numbers, 0 for steps and seq_len,
 * SHORE__WARMUP_CHOSEN. shore__settings_fit() (run.h) replaces them. */
#define SHORE__WARMUP_CHOSEN UINT64_MAX

/* What a setting takes at most, on the command line and in a file. */
#define SHORE__STEPS_MOST (UINT64_C(1) << 40)
#define SHORE__TOKENS_MOST (1u << 24) /* of a sequence; and sequences of a step */
#define SHORE__THREADS_MOST 1024u
#define SHORE__CHUNK_BYTES_MOST (UINT64_C(1) << 40)

/* What a setting is to a run that is resumed. */
enum shore__setting_role {
    SHORE__NO_SETTING,
    SHORE__IDENTITY, /* what may change bits: stays */
    SHORE__SCHEDULE, /* may change, recorded at that step; goes back with a snapshot */
    SHORE__RECORDED, /* a resource whose change is recorded */
    SHORE__RESOURCE, /* may change, and is not worth a record */
    SHORE__MADE,     /* decides how a run is made; says nothing afterwards */
    SHORE__GONE      /* no flag any more; recorded still where it is not the default */
};
enum shore__setting_role shore__role_of_setting(const char *key);

/* In the order of run.json; settings_rows.h says the rest of each. */
struct shore__settings {
    /* identity: what may change bits */
    char *model;     /* directory, or NULL */
    char *init;      /* preset or config.json, or NULL */
    char *tokenizer; /* directory, or NULL: the model's, or bytes */
    uint64_t seed;
    struct shore__strings data, val_data;
    char *text_field;   /* of records: the key of their text */
    bool skip_bad_rows; /* and count them; otherwise the first is an error */
    bool parse_special; /* special tokens in the data's text get their ids; else they are text */
    double val_share;
    uint32_t batch, seq_len; /* seq_len 0: the model's, 1,024 at most */
    bool fp32;
    enum shore_optimizer optimizer;
    enum shore_moments moments;
    uint64_t updates_before; /* that moments have seen before the first step */
    bool shuffle;
    enum shore__products products;
    uint32_t threads;   /* 0: all */
    const char *device; /* of compute; not recorded. NULL: the processor */
    /* schedule and hyper-parameters: may change on resume, recorded at that step */
    uint64_t steps; /* 0: not given */
    double epochs;  /* 0: steps count */
    double lr, min_lr;
    uint64_t warmup;
    enum shore__schedule schedule;
    double beta1, beta2, eps, momentum, weight_decay, clip; /* clip 0: none */
    bool skip_nonfinite;
    /* gradients on their way to the drives: identity */
    bool gradient_bf16;      /* of whole gradients */
    double compress;         /* share of each block's elements that is sent; 0: all */
    uint64_t compress_after; /* steps with whole gradients first */
    bool error_feedback;
    bool residual_saved;                 /* on the drives; else on the host */
    bool compress_fp32, frozen_variance; /* gone: runs that have them are read, and not trained */
    /* resources: never change bits */
    uint64_t memory_bytes; /* 0: a default from the machine */
    struct shore__addresses drives;
    char *drive_speeds;   /* given, instead of measured when volumes are made; or NULL */
    uint64_t chunk_bytes; /* of state; 0: chosen */
    enum shore_io io;
    enum shore__when speculate;
    enum shore__when offload;      /* inner activations to the drives, instead of computing them again */
    double reconnect_seconds;      /* how long a drive on another host may be away */
    uint64_t snapshot_every, keep; /* steps between automatic snapshots, 0: none; how many of them, 0: all */
    bool host_update;              /* UPDATE on the host instead of beside the drives */
    char *emulate;                 /* a file or a testbed, or NULL: see run/emulation/emulate.h */
    /* reporting */
    uint64_t stop_at, eval_every, sample_every; /* 0: never (eval_every: only at the end) */
    struct shore__pace log_every;               /* between progress lines where there is no terminal */
    bool quiet;
};

void shore__settings_defaults(struct shore__settings *s);
void shore__settings_free(struct shore__settings *s);
int shore__settings_copy(const struct shore__settings *s, struct shore__settings *out);
/* All that is known, as recorded; keys are the flags without "--". from_json accepts exactly these keys ("did you mean"
 * for others) and changes only what is given, so `out` starts from defaults or from a copy; sizes are text or numbers.
 * name: the file. */
json_t *shore__settings_to_json(const struct shore__settings *s);
int shore__settings_from_json(const json_t *json, const char *name, struct shore__settings *out,
                              struct shore_diag *diag);
/* Each for itself; and all of them together, too. Errors name the flag (--batch). */
int shore__settings_in_range(const struct shore__settings *s, struct shore_diag *diag);
int shore__settings_check(const struct shore__settings *s, struct shore_diag *diag);
static inline struct shore__compute_options shore__settings_compute(const struct shore__settings *s) {
    return (struct shore__compute_options){s->device, s->fp32, s->products, (int)s->threads};
}
/* A drive is "ram:": nothing of the state outlives the process. */
bool shore__settings_in_ram(const struct shore__settings *s);
/* The time of its steps is another machine's. */
bool shore__settings_emulated(const struct shore__settings *s);

/* Steps of warm-up where none are given. */
uint64_t shore__warmup_for(const struct shore__settings *s, uint64_t steps);
/* Learning rate of step t (from 1): linear warm-up from lr / warmup at the first step; then constant, or linear or
 * cosine down to min_lr at the last. What is not given counts as shore__settings_fit() would fill it in. */
double shore__learning_rate(const struct shore__settings *s, uint64_t step);

#endif
