/* The state engine: parameters and optimizer state of any list of tensors, on one or more drives.
 *
 * A program describes its tensors as blocks, which are fetched and updated together. It creates or opens a fleet of
 * drives that holds them. Then, step by step, it fetches parameters, submits gradients and commits. Every committed
 * step survives a crash at any instant.
 *
 *     shore_layout_make(blocks, n, &layout)
 *     shore_fleet_create(...)      once: then shore_fleet_init_block() for each block, shore_fleet_seal()
 *     shore_fleet_open(...)        later: recovers the last committed step
 *     each step:  shore_fleet_fetch() ... shore_fleet_update() ... shore_fleet_commit()
 *
 * Submit and completion: if a submit call returns 0, its completion runs exactly once, also when the operation fails.
 * It runs on a thread of a drive or, before the call returns, on the caller's thread, so a submitter must not hold a
 * lock that the completion takes. If the call returns a negative code, the completion does not run. Buffers that are
 * handed to a submit call are borrowed until its completion. A completion must not block and must not submit.
 *
 * Threading: submit calls (those that take a completion) and questions about a fleet may come from any thread. Creating
 * a fleet, its initial state, seal, digest, discard, reconnect and close: one thread, and no request under way unless a
 * comment below allows it.
 *
 * Errors of all submit calls: -EINVAL (outside the layout, not sealed, or not held by the fleet), -ENOMEM.
 *
 * Structs that begin with `size`: the caller sets it to the struct's sizeof, also if the library fills the struct. So a
 * program and a library of different versions understand each other: members beyond `size` count as zeros, and members
 * that the library does not know must be zeros. All other structs stay as they are.
 */
#ifndef LONGSHORE_STATE_H
#define LONGSHORE_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"
#include "longshore/lane.h"
#include "longshore/layout.h"
#include "longshore/memory.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the update -------------------------------------------------------------------------------------------------- */

enum shore_optimizer { SHORE_ADAMW, SHORE_ADAM, SHORE_SGD, SHORE_ADAGRAD, SHORE_OPTIMIZER_COUNT };

/* The planes of an element. M is Adam's first moment or SGD's momentum, V is Adam's second moment or AdaGrad's sum, R
 * is the residual that compression has left out of the gradients so far (bf16). */
enum shore_plane { SHORE_PLANE_HI, SHORE_PLANE_LO, SHORE_PLANE_M, SHORE_PLANE_V, SHORE_PLANE_R, SHORE_PLANE_COUNT };

/* How M and V are stored. 8 bits: bitsandbytes' block-wise dynamic code, blocks of 256 elements with an fp32 absmax
 * each, tensors of fewer than 4,096 elements in fp32; dequantised before the update and quantised after it. */
enum shore_moments { SHORE_MOMENTS_FP32, SHORE_MOMENTS_8BIT };
#define SHORE_MOMENTS_8BIT_LEAST 4096u /* elements of a tensor */

/* Hyper-parameters of one parameter group at one step, in fp32, as torch.optim.AdamW, Adam, SGD (nesterov and dampening
 * off) and Adagrad (lr_decay 0) define them. (AdamW: Loshchilov and Hutter 2019, decay first; Adam: Kingma and Ba
 * 2015.) shore_hyper_at_step() computes bias corrections in double on the host. They travel with the request, so a
 * drive needs no history. */
struct shore_hyper {
    float lr, beta1, beta2, eps, weight_decay, momentum;
    float step_size;      /* Adam, AdamW: lr / (1 - beta1^t) */
    float inv_sqrt_bias2; /* Adam, AdamW: 1 / sqrt(1 - beta2^t) */
    uint32_t first_step;  /* SGD: 1 at t = 1, where PyTorch sets the momentum buffer to the gradient */
    uint32_t frozen;      /* 1: the elements are carried over unchanged */
};

/* Fills step_size, inv_sqrt_bias2 and first_step of h from its other members, for optimizer step t (from 1). Threading:
 * any. */
void shore_hyper_at_step(struct shore_hyper *h, enum shore_optimizer optimizer, uint64_t t);

/* Bit mask (1 << plane) of the planes that the optimizer stores. SGD stores M only if its momentum is not 0. Threading:
 * any. */
unsigned shore_optimizer_planes(enum shore_optimizer optimizer, bool with_momentum);

/* ---- the fleet --------------------------------------------------------------------------------------------------- */

struct shore_fleet;

/* Result of an operation: rc is 0 or an error. Ownership: diag is NULL on success, and valid only during the call.
 * Threading: a thread of a drive, or the submitter's. It must neither block nor submit. */
typedef void (*shore_done_fn)(void *ctx, int rc, const struct shore_diag *diag);

struct shore_completion {
    shore_done_fn fn;
    void *ctx;
};

/* Completes a request that a program answers itself (see struct shore_elsewhere); sentence: of an error, copied; NULL:
 * that of its code. Threading: any. */
void shore_complete(struct shore_completion done, int rc, const char *sentence);

/* What a fetch delivers. */
enum shore_fetch_kind {
    SHORE_FETCH_BF16,    /* plane HI: 2 bytes an element */
    SHORE_FETCH_MASTER,  /* HI and LO joined: fp32 */
    SHORE_FETCH_M,       /* fp32 */
    SHORE_FETCH_V,       /* fp32 */
    SHORE_FETCH_R,       /* plane R: bf16 */
    SHORE_FETCH_STATE,   /* all planes as they are stored: shore_fleet_state_bytes() a segment, segment by segment */
    SHORE_FETCH_SPILLED, /* gradients that shore_fleet_spill() stored as FP32; they belong to no step */
    SHORE_FETCH_SPILLED_BF16 /* the same, stored as BF16 */
};

/* Segments [segment, segment + count) of a block that are on a drive of another process: what shore_fleet_fetch() asks
 * for there. */
struct shore_elsewhere {
    size_t size; /* sizeof(struct shore_elsewhere), of this library */
    uint64_t step;
    uint32_t drive; /* in the order of the fleet */
    uint32_t block, segment, count;
    enum shore_fetch_kind kind;
    void *dst;
    uint64_t bytes; /* to be written there */
};

enum shore_io { SHORE_IO_AUTO, SHORE_IO_URING, SHORE_IO_THREADS, SHORE_IO_BUFFERED };

/* Options of a fleet. Zero-initialise; every zero but that of size is the default. */
struct shore_fleet_options {
    size_t size; /* sizeof(struct shore_fleet_options) */
    /* DIR, FILE, BLOCKDEV, opencl:PATH, ssh://HOST/PATH, unix:SOCKET:PATH, "ram:" or "null:". A path that does not
     * exist is only made if it names a file with a suffix, in a directory that exists. */
    const char *const *drives;
    uint32_t ndrives;
    enum shore_optimizer optimizer;
    bool with_momentum; /* SGD */
    enum shore_moments moments;
    bool fp32_params;         /* updated parameters are handed back as fp32 instead of bf16 */
    uint32_t chunk_segments;  /* 0: chosen from ring_bytes */
    uint64_t ring_bytes;      /* memory for all rings of all drives; 0: a default; raised to the minimum */
    uint64_t scratch_bytes;   /* room for shore_fleet_scratch_*, over the whole fleet (create only) */
    bool spill;               /* room for spilled gradients (create only) */
    const char *drive_speeds; /* create: "2,1" or "2.8GB,1.4GB", one for each drive: shares of the state and of scratch
                                 follow them. NULL: measured if drives lie on different devices */
    bool residual;            /* plane R is stored: see shore_update */
    enum shore_io io;
    bool overwrite;              /* create: replace existing volumes (never one that another process has locked) */
    const uint64_t *accept_step; /* open: go on from this whole step although the newest one is damaged; NULL: no */
    uint64_t hint_step;          /* open: refuse a fleet whose committed step is older than this */
    bool read_only;              /* open: others may read at the same time; updates and commits: -EROFS */
    const void *identity;        /* create: opaque bytes kept in every volume: whose it is */
    uint32_t identity_bytes;     /* 64 KiB at most */
    /* open: refuse volumes of another fleet, unless zero. create: zero takes the id of a creation that was cut off
     * here, or makes a random one */
    uint64_t fleet_id[2];
    uint64_t generation; /* of the placement; create: 0 is 1. open: refuse volumes of another one, unless 0 */
    uint64_t epoch;      /* create: of the seal; 0 is 1 */
    bool restoring; /* open: putting back a state was interrupted: all drives go to restore_step, which they all hold,
                       whatever else their records say */
    uint64_t restore_step;
    /* If set, all memory that grows with the model comes from here (see memory.h), otherwise from the system. It
     * outlives the fleet. */
    struct shore_arena *arena;
    /* Notes that are not errors ("page cache used because O_DIRECT is refused"), one sentence each. May be NULL. */
    void (*note)(void *ctx, const char *text);
    void *note_ctx;
    /* A part of a fleet, see below. [ndrives], in the order of the fleet: the drives of this process, which follow each
     * other; there may be none. Other processes have the others. NULL: all drives are this process's, in any order. */
    const bool *mine;
    /* A part: reads segments of other parts. Called within shore_fleet_fetch(), on its thread. Fills request->dst and
     * completes `done` once, on any thread, then or later, or returns an error. Ownership: *request is borrowed during
     * the call, dst until the completion. `done` is a value: a binding whose callback only sees it (cffi) keeps a copy.
     * NULL: they cannot be read. */
    int (*fetch_elsewhere)(void *ctx, const struct shore_elsewhere *request, struct shore_completion done);
    void *elsewhere_ctx;
};

/* A completion that can be waited for. Usage: shore_wait_init(&w); submit(..., shore_wait_completion(&w));
 * rc = shore_wait(&w, &diag). Threading: one waiter. */
struct shore_wait {
    void *state[16]; /* private: a mutex and a condition, in place */
    int rc;          /* of the first completion that failed */
    uint32_t expected;
    struct shore_diag diag;
};
/* Expects one completion. Ownership: w stays where it is until shore_wait() has returned. */
void shore_wait_init(struct shore_wait *w);
/* Expects one more completion. Threading: before the last expected one has run. */
void shore_wait_add(struct shore_wait *w);
/* Pass it once for each expected completion. */
struct shore_completion shore_wait_completion(struct shore_wait *w);
/* Runs one expected completion: that of a request that was refused, or (with 0) the one of shore_wait_init(). */
void shore_wait_end(struct shore_wait *w, int rc);
/* Whether all expected completions have run: shore_wait() would not wait. Threading: any. */
bool shore_wait_is_done(struct shore_wait *w);
/* Waits for all expected completions. Errors: the first that one of them had, with its sentence in diag (may be
 * NULL). */
int shore_wait(struct shore_wait *w, struct shore_diag *diag);

/* Bytes of memory that a fleet with this layout and these options takes (rings, tables). 0: without options.size.
 * Threading: any. */
uint64_t shore_fleet_memory_bytes(const struct shore_layout *layout, const struct shore_fleet_options *options);
/* The least memory that works: less speed, the same bits. 0: without options.size. Threading: any. */
uint64_t shore_fleet_memory_least_bytes(const struct shore_layout *layout, const struct shore_fleet_options *options);

/* Bytes that new volumes with this layout and these options take on all drives together. 0: without options.size. */
uint64_t shore_fleet_disk_bytes(const struct shore_layout *layout, const struct shore_fleet_options *options);

/* Bytes that drives read and write, all together, when a whole block is updated. 0: without options.size. Threading:
 * any. */
void shore_fleet_update_bytes(const struct shore_layout *layout, const struct shore_fleet_options *options,
                              uint32_t block, uint64_t *read, uint64_t *written);

/* Makes new volumes. Until shore_fleet_seal() has committed step 0, shore_fleet_open() returns SHORE_EMISSING, at
 * whatever instant the creation was killed. The same call then makes the fleet again, without overwrite and with
 * nothing removed by hand. Other files at those paths stay unless overwrite is set. Ownership: the fleet is the
 * caller's, for shore_fleet_close(); options are borrowed during the call, except arena. Durable: nothing before seal.
 * Errors: SHORE_EEXISTS (a file, device or volume is there that no interrupted creation left), SHORE_EUSAGE (nothing is
 * at a path, and its name is not that of a new file), SHORE_EBUSY, SHORE_ELINK, SHORE_EBUDGET, -ENOSPC ("needs X, has
 * Y"), -EIO, -EINVAL (options.size, or impossible options). */
int shore_fleet_create(const struct shore_layout *layout, const struct shore_fleet_options *options,
                       struct shore_fleet **out, struct shore_diag *diag);

/* Writes the initial state of segments [segment, segment + count) of a block: fp32 master values in canonical order,
 * padding zero. m and v may be NULL: zeros; 8-bit moments are quantised here. Threading: one; the call waits. Durable:
 * with seal. Errors: -EINVAL (outside the layout, or sealed already), -EIO, -ENOSPC, SHORE_ELINK. */
int shore_fleet_init_block(struct shore_fleet *fleet, uint32_t block, uint32_t segment, uint32_t count,
                           const float *master, const float *m, const float *v, struct shore_diag *diag);

/* Commits `step` (0 for a new model) as the first whole state. Durable: on return. Errors: -EINVAL (sealed already, or
 * segments without initial state), -EIO, -ENOSPC, SHORE_ELINK. */
int shore_fleet_seal(struct shore_fleet *fleet, uint64_t step, struct shore_diag *diag);

/* Opens and locks all drives, recovers the committed step, and makes a new epoch durable. The drives may be given in
 * any order. Ownership: as of shore_fleet_create(). Durable: the epoch, on return; read_only: nothing is written.
 * Errors: SHORE_EMISSING (a drive is missing; or the fleet was never sealed and can be created), SHORE_EBUSY,
 * SHORE_EFORMAT, SHORE_ECORRUPT, SHORE_EMISMATCH, SHORE_ESTALE (older than hint_step, or than the other drives),
 * SHORE_ELINK, SHORE_EBUDGET, -EIO, -EINVAL (options.size, or impossible options). */
int shore_fleet_open(const struct shore_layout *layout, const struct shore_fleet_options *options,
                     struct shore_fleet **out, struct shore_diag *diag);

/* After SHORE_ELINK: reconnects the drives with broken connections, goes back to the committed step, and begins a new
 * epoch and a new attempt. The committed step may be one later than the caller knows: see shore_fleet_info(). Waits for
 * the requests that are under way; no other thread may submit meanwhile. Errors: SHORE_ELINK, SHORE_EBUSY,
 * SHORE_EMISSING: these may pass, call it again. -ENOTSUP: a part, whose processes all have to open again. Any other
 * error says that the state is not what it was. */
int shore_fleet_reconnect(struct shore_fleet *fleet, struct shore_diag *diag);

/* How a program waits for lost drives:
 *
 *     shore_patience_begin(&patience, lost, &said)      and `said` is told
 *     for (rc = SHORE_ELINK; (rc = shore_patience_try(&patience, rc, &diag)) > 0;)
 *         rc = shore_fleet_reconnect(fleet, &diag)      or shore_run_reconnect()
 *     if (!rc) rc = shore_patience_end(&patience, step, &diag, &said), and `said` is told
 *
 * Zero-initialise, and keep it from one loss to the next. */
struct shore_patience {
    size_t size;       /* sizeof(struct shore_patience) */
    double seconds;    /* for which drives may be away */
    const char *go_on; /* how to go on with the run later, in the program's words */
    /* private: of the functions below */
    struct shore_diag lost;
    uint64_t since_ns, at_step;
    uint32_t pause_ms, losses;
};
#define SHORE_PATIENCE_SECONDS 300 /* the default of Longshore's own programs */

/* After SHORE_ELINK; `lost` explains it. Ownership: everything is borrowed during the call, go_on until
 * shore_patience_end(). Threading: one thread for all three functions. */
void shore_patience_begin(struct shore_patience *patience, const struct shore_diag *lost, struct shore_diag *said);

/* Whether to try (again), after a pause that a signal ends. rc and diag are the result of the last try. Returns 1: try;
 * 0: the drives are back (rc was 0). Errors: SHORE_ELINK (they were away too long); rc, if it is an error that does not
 * pass. */
int shore_patience_try(struct shore_patience *patience, int rc, struct shore_diag *diag);

/* The drives are back, at this committed step. Errors: SHORE_ELINK (too many losses in one step: this very step breaks
 * a far side). */
int shore_patience_end(struct shore_patience *patience, uint64_t step, struct shore_diag *diag,
                       struct shore_diag *said);

/* Drains all I/O (completions run), and releases everything. A step that is not committed is lost, by design.
 * Threading: one; nobody else uses the fleet. NULL is allowed. */
void shore_fleet_close(struct shore_fleet *fleet);

struct shore_fleet_info {
    size_t size;   /* set by the caller: sizeof(struct shore_fleet_info) */
    uint64_t step; /* committed */
    uint64_t epoch;
    uint64_t fleet_id[2];
    uint32_t ndrives;
    unsigned planes;        /* bit mask */
    uint64_t disk_bytes;    /* of all volumes */
    uint64_t scratch_bytes; /* of all drives together, as they were made; a part: of its own */
    uint64_t generation;    /* of the placement */
    uint64_t away;          /* 1: a drive is reached over a link, which may be lost and come back; else, and for a part,
                               0 */
};
/* Threading: any. Errors: -EINVAL (out->size). */
int shore_fleet_info(const struct shore_fleet *fleet, struct shore_fleet_info *out);

/* Path (as opened, resolved) of a drive; drives are in the order of the fleet. NULL: no such drive. Ownership: valid as
 * long as the fleet. Threading: any. */
const char *shore_fleet_drive_path(const struct shore_fleet *fleet, uint32_t drive);
/* Nanoseconds since open in which the drive had requests to work on. Threading: any. */
uint64_t shore_fleet_drive_busy_ns(const struct shore_fleet *fleet, uint32_t drive);
/* Segments that the drive owns. Threading: any. */
uint64_t shore_fleet_drive_segments(const struct shore_fleet *fleet, uint32_t drive);
/* A line for people: size, I/O in use. Units: bytes: room in text, which is always terminated. Threading: any. Errors:
 * -EINVAL (no such drive). */
int shore_fleet_drive_describe(const struct shore_fleet *fleet, uint32_t drive, char *text, size_t bytes);

/* The metrics of the committed step, as they were given to commit. Units: *bytes: capacity in, size out. Threading:
 * any. Errors: -ENOSPC. */
int shore_fleet_metrics(const struct shore_fleet *fleet, void *metrics, uint32_t *bytes);

/* The blob of the committed step. *bytes: capacity in, size out (0: it has none). Reads it from the first drive; no
 * update or commit may be under way. Errors: -ENOSPC, SHORE_ECORRUPT, -EIO, SHORE_ELINK. */
int shore_fleet_blob(struct shore_fleet *fleet, void *blob, uint32_t *bytes, struct shore_diag *diag);

/* The form of a gradient. */
enum shore_gradient_form {
    SHORE_GRADIENT_FP32,
    SHORE_GRADIENT_BF16,   /* widened to fp32, exactly, before anything else */
    SHORE_GRADIENT_SPARSE, /* elements that are left out are zero: codes as in sparse.h, one for each segment */
    SHORE_GRADIENT_ROWS    /* a gather list of which only the items travel, each in its dtype: rows of a table that few
                              rows of a batch look up */
};

enum shore_dtype { SHORE_DTYPE_FP32, SHORE_DTYPE_BF16, SHORE_DTYPE_FP16 };

/* An item of a gather list: a gradient that lies where it was made, so that nobody copies a block together. A list is
 * in the order of its block, without overlaps; each item lies within one tensor. Elements that no item covers are 0.
 * Items may reach beyond the segments of the request. */
struct shore_gather {
    const void *from;      /* elems elements in a row, aligned to one; bf16 and fp16 are widened exactly */
    uint64_t offset_elems; /* of the first element, within the block: shore_layout_tensor.offset_elems plus the elements
                              of the tensor before it */
    uint64_t elems;
    enum shore_dtype dtype;
};

/* Reads segments [segment, segment + count) of a block into dst (canonical order, aligned to SHORE_BUFFER_ALIGN_BYTES;
 * count * SHORE_SEGMENT_ELEMS elements, or count state images). Checked against the leaves. step: the committed step;
 * or the step being written, if the caller has seen the completion of that range's update in the current attempt.
 * Ownership: dst is the engine's until the completion. Threading: any. Errors: SHORE_ECORRUPT, -EIO, SHORE_ELINK;
 * -EINVAL (another step). */
int shore_fleet_fetch(struct shore_fleet *fleet, uint64_t step, uint32_t block, uint32_t segment, uint32_t count,
                      enum shore_fetch_kind kind, void *dst, struct shore_completion done);

/* Rows of a table that lies in a block: row r is elements [offset_elems + r * columns, + columns) of it. */
struct shore_rows {
    size_t size;   /* sizeof(struct shore_rows) */
    uint64_t step; /* as of shore_fleet_fetch() */
    uint32_t block;
    enum shore_fetch_kind kind; /* BF16 or MASTER */
    uint64_t offset_elems;      /* of row 0 within the block */
    uint32_t columns, count;    /* elements of a row; rows that are asked for */
    const uint32_t *row;        /* their numbers, in any order, also repeated. Ascending ones cost the least */
    void *dst;                  /* count * columns elements, in the order of row[], aligned to one */
};
/* Reads rows. The drives read the pages of 4 KiB that the rows lie in, each once, and send the rows alone. Rows are not
 * checked against the leaves, which are of whole segments: the next update or fetch of those does that. Rows that are
 * not ascending, or repeated, take memory for as many until the completion, not from the fleet's arena. Units: a row
 * has 131,072 elements at most. Ownership: row and dst are borrowed until the completion. Threading: any. Errors: as of
 * shore_fleet_fetch(), -ENOMEM; to the completion, with a sentence: -EINVAL (size was left out; another kind; a row
 * outside of the block; a drive of another process). count 0 completes at once. */
int shore_fleet_gather(struct shore_fleet *fleet, const struct shore_rows *rows, struct shore_completion done);

struct shore_update {
    size_t size;        /* sizeof(struct shore_update) */
    uint64_t base_step; /* the committed step, which is read; the update writes base_step + 1 */
    uint64_t attempt;   /* of the fleet: see shore_fleet_discard() */
    uint32_t block, segment, count;
    enum shore_gradient_form form;
    /* Canonical order from `segment` on; gaps between tensors and behind the last one must be 0. NULL, without a gather
     * list: the gradient that shore_fleet_spill() stored. */
    const void *gradient;
    const uint32_t *offsets;  /* SPARSE: count + 1 byte offsets; the code of segment i is gradient[offsets[i]] up to
                               * gradient[offsets[i + 1]] */
    const uint16_t *residual; /* new content of plane R, bf16; NULL: zeros. Ignored if R is not stored */
    const struct shore_hyper *groups; /* by parameter group; copied at submit */
    uint32_t ngroups;
    float coefficient; /* multiplies the gradient first (clipping); 1: none. Never 0: give a gradient of zeros */
    void *params_out;  /* NULL, or where the new parameters go: bf16 (fp32 with the fleet's fp32_params) */
    uint32_t order;    /* queued updates and stores of lower order run first */
    uint32_t ngather;
    const struct shore_gather *gather; /* instead of gradient: a list of ngather items; copied at submit. The bits are
                                          those of the block copied together. ngather 0: a gradient of zeros. Form FP32:
                                          all elements travel; BF16: likewise, fp32 and fp16 items rounded to nearest
                                          even; ROWS: the items of these segments alone, 16 bytes more for each (or all
                                          elements as FP32, if those are fewer bytes) */
};

/* UPDATE: idempotent; the same request gives the same bytes. It completes when the state is written (not yet durable)
 * and params_out is filled. If the base step is still being committed, the update is held back until then. Ownership:
 * everything that the request points to is borrowed until the completion, except groups and gather, which are copied.
 * Threading: any. Durable: with the commit. Errors: SHORE_ESTALE (another base step), SHORE_EDISCARDED,
 * SHORE_ENONFINITE (a new master has no finite bf16, or an 8-bit moment is not finite), -EIO, SHORE_ECORRUPT. To the
 * completion, with a sentence: -EINVAL (size, coefficient or a group's inv_sqrt_bias2 (Adam, AdamW) was left out; an
 * invalid gather list). */
int shore_fleet_update(struct shore_fleet *fleet, const struct shore_update *update, struct shore_completion done);

/* Stores gradients of segments on their drives. An update with neither gradient nor gather list reads them later, in
 * the same form: FP32 or BF16, one form for all of a step. Units: count * SHORE_SEGMENT_ELEMS elements, aligned to
 * SHORE_BUFFER_ALIGN_BYTES, gaps zero. Ownership: borrowed until the completion. Threading: any. Durable: never.
 * Errors: -EINVAL (options.spill was not set), -EIO, SHORE_ELINK. */
int shore_fleet_spill(struct shore_fleet *fleet, uint32_t block, uint32_t segment, uint32_t count,
                      enum shore_gradient_form form, const void *gradient, struct shore_completion done);

/* The same for a gradient that lies where it was made (see struct shore_gather). In form BF16, items of fp32 and fp16
 * are rounded to nearest even. The gradient is put together before it leaves: that takes memory for count segments
 * until the completion, not from the fleet's arena. Ownership: the list and the memory of its items are the caller's
 * again on return. Threading: any. Errors: as of shore_fleet_spill(), -ENOMEM; to the completion, with a sentence:
 * -EINVAL (an invalid list). */
int shore_fleet_spill_gathered(struct shore_fleet *fleet, uint32_t block, uint32_t segment, uint32_t count,
                               enum shore_gradient_form form, const struct shore_gather *gather, uint32_t ngather,
                               struct shore_completion done);

/* Bytes of the state image of one segment: its planes as they are stored, in plane order (docs/volume-format.md).
 * Threading: any. */
size_t shore_fleet_state_bytes(const struct shore_fleet *fleet);

/* Puts other parameters into the state images of count segments, as fetched: planes HI and LO. The other planes stay as
 * they are. Units: master: count * SHORE_SEGMENT_ELEMS elements in canonical order, gaps zero. Threading: any. */
void shore_fleet_put_masters(const struct shore_fleet *fleet, void *state, uint32_t count, const float *master);

/* The same for the moments of one tensor (its index in the block), into images of segments from `segment` of the block
 * on: planes M and V, in the kind that the fleet keeps. Units: as of master; only the tensor's elements are read. NULL:
 * that moment stays as it is. A moment that the fleet does not store is ignored. Threading: any. */
void shore_fleet_put_moments(const struct shore_fleet *fleet, void *state, uint32_t block, uint32_t tensor,
                             uint32_t segment, uint32_t count, const float *m, const float *v);

/* UPDATE of state images in memory, in place, bit for bit as drives compute it. It is for a program that has fetched
 * them ahead because waiting for its drives would take longer; shore_fleet_store() writes them. Units: state:
 * update->count images of the step base_step. Ownership: everything is borrowed during the call. The new parameters are
 * in params_out on return. Threading: any; computes with OpenMP's threads. Durable: never. Errors: -EINVAL (a request
 * that shore_fleet_update() refuses, or a spilled gradient), SHORE_ENONFINITE, SHORE_ECORRUPT: the images then mean
 * nothing. */
int shore_fleet_update_images(struct shore_fleet *fleet, const struct shore_update *update, void *state,
                              struct shore_diag *diag);

struct shore_store {
    size_t size;                 /* sizeof(struct shore_store) */
    uint64_t base_step, attempt; /* as in shore_update; both are ignored before the fleet is sealed */
    const void *state;           /* images, segment by segment, aligned to SHORE_BUFFER_ALIGN_BYTES */
    uint32_t block, segment, count;
    uint32_t order; /* as in shore_update */
};
/* Writes state images into the slot of base_step + 1. This counts as the update of these segments. It is for updates
 * that are computed elsewhere, and for moving state between fleets. Before the fleet is sealed: the initial state.
 * Ownership: state is borrowed until the completion. Threading: any. Durable: with the commit. Errors: as of
 * shore_fleet_update(). */
int shore_fleet_store(struct shore_fleet *fleet, const struct shore_store *store, struct shore_completion done);

/* Carries segments that no update touches in this step: they stay where they are on their drives. This counts as their
 * update and costs neither bytes nor time. Once it has completed, a fetch of base_step + 1 gives what base_step has. A
 * segment is updated or carried in an attempt, not both. Threading: any. Durable: with the commit. Errors: as of
 * shore_fleet_update(); to the completion, with a sentence: -ENOTSUP (a volume or a server of an older version has no
 * room for that). */
int shore_fleet_carry(struct shore_fleet *fleet, uint64_t base_step, uint64_t attempt, uint32_t block, uint32_t segment,
                      uint32_t count, struct shore_completion done);

/* Ends the current attempt: waits for the I/O of its queued and running updates. Their completions run with
 * SHORE_EDISCARDED or their result. Returns the new attempt's number. Threading: one; no commit is pending. */
uint64_t shore_fleet_discard(struct shore_fleet *fleet);
/* The current attempt's number. Threading: any. */
uint64_t shore_fleet_attempt(const struct shore_fleet *fleet);

/* SKIPPED: the state stays as it is (a refused step); only the step number, the metrics and the blob advance. RESTORED:
 * puts a state back: the segments written or carried since the committed step are committed as `step`, whatever its
 * number. A crash in between leaves drives at both steps: see shore_fleet_options.restoring. */
enum shore_commit_how { SHORE_COMMIT_UPDATED, SHORE_COMMIT_SKIPPED, SHORE_COMMIT_RESTORED };

#define SHORE_BLOB_BYTES 65536u /* the most that commits with a step beside its metrics */

struct shore_commit {
    size_t size;   /* sizeof(struct shore_commit) */
    uint64_t step; /* the committed step + 1, unless RESTORED */
    enum shore_commit_how how;
    uint32_t metrics_bytes; /* 2,048 at most */
    const void *metrics;
    const void *blob;  /* data that the program needs to go on from this step: random state, position in its data */
    size_t blob_bytes; /* SHORE_BLOB_BYTES at most; 0: this step has none, which costs nothing */
};

/* Commits a step on every drive, after all its updates: table, flush, record, flush. Metrics and blob are copied.
 * Durable: at the completion, which runs when the last drive has acknowledged. Ownership: nothing is borrowed.
 * Threading: any. Errors: SHORE_ESTALE (another base step), -EBUSY (one is pending, or not confirmed), -EINVAL (sizes).
 * To the completion, with nothing touched: -EINVAL (size was left out), -ENOTSUP (a blob, and the first drive is of an
 * older version without room for it); the error of an update of the attempt: no drive was touched, and the attempt can
 * be discarded. Any other error, also -EINVAL for a segment that was neither updated nor carried: some drives may have
 * the step, and the fleet cannot be used until it is opened again (SHORE_ELINK: or reconnected). */
int shore_fleet_commit_with(struct shore_fleet *fleet, const struct shore_commit *commit, struct shore_completion done);

/* The same without a blob: commits base_step + 1, updated or skipped. Errors: as of shore_fleet_commit_with(). */
int shore_fleet_commit(struct shore_fleet *fleet, uint64_t base_step, bool skip, const void *metrics,
                       uint32_t metrics_bytes, struct shore_completion done);

/* Scratch: bytes that live until they are overwritten or the fleet is closed (offloaded activations). offset and bytes
 * are multiples of 4096. A stored extent is read back as it was stored (same offset and size). Put fills `seal`, 16
 * bytes, at completion; get compares them. Units: src and dst are aligned to SHORE_BUFFER_ALIGN_BYTES. Ownership: src
 * or dst, and seal, are borrowed until the completion. Threading: any. Durable: never. Errors: -EINVAL (beyond the
 * fleet's scratch, or not aligned), -EIO, SHORE_ELINK. */
int shore_fleet_scratch_put(struct shore_fleet *fleet, uint64_t offset, uint64_t bytes, const void *src,
                            unsigned char seal[16], struct shore_completion done);
/* Reads it back. Errors: as of shore_fleet_scratch_put(); SHORE_ECORRUPT (not what was stored). */
int shore_fleet_scratch_get(struct shore_fleet *fleet, uint64_t offset, uint64_t bytes, void *dst,
                            const unsigned char seal[16], struct shore_completion done);

/* Digest of the committed state: XXH3-128 (canonical form, high half first) over (step, sum of all leaves modulo
 * 2^128), little-endian. deep: every byte is read and compared with its leaf first. Threading: one; nothing is under
 * way. Errors: SHORE_ECORRUPT, -EIO, SHORE_ELINK. */
int shore_fleet_digest(struct shore_fleet *fleet, bool deep, unsigned char digest[16], struct shore_diag *diag);

/* Counters since open; bytes. */
struct shore_ledger {
    size_t size; /* set by the caller: sizeof(struct shore_ledger) */
    /* bytes that crossed the host link: "in" goes to the drives, "out" comes from them */
    uint64_t link_in_gradients, link_in_compressed, link_out_params, link_activations, link_in_state, link_out_state,
        link_out_gradients, link_control;
    uint64_t drive_read_state, drive_write_state; /* by updates */
    uint64_t drive_read_fetch;
    uint64_t drive_read_spill, drive_write_spill;
    uint64_t drive_read_scratch, drive_write_scratch;
    uint64_t drive_write_commit; /* tables and records */
    uint64_t update_io_wait_ns, update_compute_ns, commit_ns;
    uint64_t waited_ns[SHORE_LANES]; /* of callers, for each lane; for a commit: in shore_run_commit_wait() */
};
/* Threading: any. Errors: -EINVAL (out->size). */
int shore_fleet_ledger(const struct shore_fleet *fleet, struct shore_ledger *out);

/* ---- a part of a fleet --------------------------------------------------------------------------------------------
 *
 * Several processes may share a fleet: each opens and locks the drives that `mine` names, and stands beside the others
 * with the whole layout. The same process may later open the whole fleet, without `mine`, and back.
 *
 *     shore_fleet_create() or _open()     of the own drives, in each process; the fleet is not ready yet
 *     shore_fleet_part()                  what the others must know of them; the program sends it to all
 *     shore_fleet_unite()                 opened: at the committed step; made: initial state and seal follow
 *     each step:  updates of own segments ... shore_fleet_commit()
 *                 all processes tell each other that their commits are complete ... shore_fleet_confirm()
 *
 * Init, store, update, carry and spill take any segments and leave those of other parts alone. Their params_out stays
 * as it is. Scratch lies on the own drives: the share that these have of scratch_bytes. A blob lies on the first own
 * drive of each part: shore_fleet_blob() reads that one, and a fleet that is opened whole that of its first drive. A
 * part without drives keeps none.
 *
 * The program sees to it that all parts have united (or sealed) before one commits, and that no process goes on after
 * another one is lost: then all of them close and open again, at the newest step that every part has.
 *
 * To create, a part needs fleet_id, the same everywhere; drives get equal shares, or those of drive_speeds. Drives are
 * files, devices, or on other hosts: what dies with its process cannot be shared. accept_step is for a whole fleet. */

/* What the other parts must know of this one: its drives with what they hold and the steps that they have. *bytes:
 * capacity in, size out. Threading: one; before shore_fleet_unite(). Errors: -ENOSPC (*bytes says how much), -EINVAL (a
 * whole fleet), -ENOMEM, SHORE_ELINK. */
int shore_fleet_part(const struct shore_fleet *fleet, void *out, size_t *bytes, struct shore_diag *diag);

/* Makes a part ready with what shore_fleet_part() has given in all processes, this one included, in any order. Opened:
 * recovers the committed step from the records of all drives, and makes a new epoch durable on the own ones. After an
 * error the fleet can only be closed. Threading: one. Ownership: parts are borrowed during the call. Errors: -EINVAL
 * (united already, or malformed bytes), SHORE_EMISMATCH (a drive that two processes have, or that nobody has; one of
 * another fleet, placement or layout), and as of shore_fleet_open(). */
int shore_fleet_unite(struct shore_fleet *fleet, const void *const *parts, const size_t *bytes, uint32_t nparts,
                      struct shore_diag *diag);

/* Whether the volume of a fleet's drive of this number lies at an address here, in use or not. A server is not asked:
 * it is taken to have its own. Threading: any. */
bool shore_drive_holds(const char *drive, const uint64_t fleet_id[2], uint32_t number);

/* The segments of a block that are on own drives: [*segment, *segment + *count). Returns false if there are none. A
 * whole fleet owns all. Threading: any, once the fleet was created, or opened and united. */
bool shore_fleet_own(const struct shore_fleet *fleet, uint32_t block, uint32_t *segment, uint32_t *count);

/* Every part has committed `step`, so this one may write over the step before. Until then, updates of the next step are
 * held as while a commit is pending, and another commit is refused. A whole fleet needs none. Threading: any. Errors:
 * SHORE_ESTALE (not the committed step), -EBUSY (its commit is pending). */
int shore_fleet_confirm(struct shore_fleet *fleet, uint64_t step);

/* Waits until own segments of `step` can be fetched, to serve other parts: it is the committed step (or the one before,
 * until that is confirmed), or their update or carry in the current attempt has completed. A discard later takes that
 * back. Threading: any; not while the fleet is closed. Errors: -ETIMEDOUT, -EINVAL (segments of other parts),
 * SHORE_ESTALE (the step is over), the error of an update of the attempt, or of the commit. */
int shore_fleet_await(struct shore_fleet *fleet, uint64_t step, uint32_t block, uint32_t segment, uint32_t count,
                      uint32_t timeout_ms, struct shore_diag *diag);

/* Sum of the leaves of the committed state on own drives, modulo 2^128, little-endian. deep: as of
 * shore_fleet_digest(). Threading: one; nothing is under way. Errors: as of shore_fleet_digest(). */
int shore_fleet_leaf_sum(struct shore_fleet *fleet, bool deep, unsigned char sum[16], struct shore_diag *diag);

/* The digest of a fleet whose parts have these sums, in any order: shore_fleet_digest() of the whole fleet. Threading:
 * any. */
void shore_fleet_digest_of(uint64_t step, const unsigned char (*sums)[16], uint32_t nsums, unsigned char digest[16]);

#ifdef __cplusplus
}
#endif

#endif
