/* Errors of the public API.
 *
 * Functions that can fail return int: 0, or a negative code. A code is either a negated errno value (-EIO, -ENOSPC) or
 * one of the codes below. Open-like calls also fill a caller-owned diagnostic. It has one sentence that names the
 * fault, and advice as a key that each program puts into words of its own. The library never exits, aborts or prints.
 */
#ifndef LONGSHORE_ERROR_H
#define LONGSHORE_ERROR_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHORE_ERROR_LIST(X)                                                     \
    X(SHORE_EUSAGE, 4001, "wrong usage")                                        \
    X(SHORE_EINPUT, 4002, "bad input")                                          \
    X(SHORE_EFORMAT, 4003, "not a longshore volume, or one of another version") \
    X(SHORE_ECORRUPT, 4004, "stored bytes do not match their checksum")         \
    X(SHORE_ESTALE, 4005, "the drive holds an older state than its fleet")      \
    X(SHORE_EMISMATCH, 4006, "does not belong to this run")                     \
    X(SHORE_EBUSY, 4007, "in use by another process")                           \
    X(SHORE_EBUDGET, 4008, "the memory budget is below the minimum")            \
    X(SHORE_ENONFINITE, 4009, "a value is not finite")                          \
    X(SHORE_EDISCARDED, 4010, "belongs to a discarded attempt")                 \
    X(SHORE_EEXISTS, 4011, "exists already")                                    \
    X(SHORE_EMISSING, 4012, "is missing")                                       \
    X(SHORE_ELINK, 4013, "the connection to a drive broke")

enum shore_error {
#define SHORE_ERROR_ENUM(name, number, text) name = -(number),
    SHORE_ERROR_LIST(SHORE_ERROR_ENUM)
#undef SHORE_ERROR_ENUM
};

/* Advice about an error: its number, and this library's words, which name functions and members. {} stands for the
 * object of the advice. */
#define SHORE_ADVICE_LIST(X)                                                                           \
    X(SHORE_ADVICE_OVERWRITE, 1, "overwrite replaces what is there")                                   \
    X(SHORE_ADVICE_GO_ON, 2, "open {} to go on with it, or make another one with overwrite")           \
    X(SHORE_ADVICE_MOVED, 3, "if it is elsewhere now, moved says so: {}=NEW")                          \
    X(SHORE_ADVICE_ACCEPT_STEP, 4, "accept_step {} goes on from there, if that step is whole")         \
    X(SHORE_ADVICE_NOT_A_COPY, 5, "if it is the run itself, not_a_copy says so")                       \
    X(SHORE_ADVICE_MAKE_RUN, 6, "shore_run_create() makes one")                                        \
    X(SHORE_ADVICE_THREADS, 7, "SHORE_IO_THREADS does without")                                        \
    X(SHORE_ADVICE_SNAPSHOTS, 8, "shore_run_snapshots() of {} names those there are")                  \
    X(SHORE_ADVICE_REMOVE_SNAPSHOT, 9, "shore_run_snapshot_remove() removes the one that is there")    \
    X(SHORE_ADVICE_ROLL_BACK, 10, "shore_run_rollback() of {} takes another snapshot")                 \
    X(SHORE_ADVICE_REMOVE_RUN, 11, "shore_run_remove() of {} removes what is there")                   \
    X(SHORE_ADVICE_TOKENIZER, 12, "name a tokenizer: a directory, or bytes if it is a model of bytes") \
    X(SHORE_ADVICE_DEVICE_TIMEOUT, 13, "timeout_ns of struct shore_device gives it longer")

enum shore_advice {
    SHORE_ADVICE_NONE,
#define SHORE_ADVICE_ENUM(name, number, words) name = (number),
    SHORE_ADVICE_LIST(SHORE_ADVICE_ENUM)
#undef SHORE_ADVICE_ENUM
        SHORE_ADVICE_COUNT
};

/* For the user: one sentence and advice. Texts are always terminated. Ownership: the caller's; the callee writes it on
 * failure only. */
struct shore_diag {
    char text[1024];
    int advice;   /* of enum shore_advice; 0: none, or the sentence says it */
    char of[508]; /* the object of the advice: a run, drive or step; "": none */
};

/* Writes "SENTENCE; ADVICE" with a program's words: words[advice], SHORE_ADVICE_COUNT of them. If one is NULL, or words
 * is, the library's are used. Returns out, always terminated; a text that is too long loses its middle. Threading:
 * any. */
const char *shore_diag_say(const struct shore_diag *diag, const char *const *words, char *out, size_t out_bytes);

/* The text of a code: the library's, or strerror's. Never NULL. Threading: any. */
const char *shore_error_text(int code);

#ifdef __cplusplus
}
#endif

#endif
