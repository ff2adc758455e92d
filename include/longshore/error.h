/* Errors of the public API.
 *
 * Functions that can fail return int: 0, or a negative code. A code is either a negated errno value (-EIO, -ENOSPC)
 * or one of the codes below. Open-like calls also fill a caller-owned diagnostic with one sentence that names what is
 * wrong and what to do. The library never exits, aborts or prints.
 */
#ifndef LONGSHORE_ERROR_H
#define LONGSHORE_ERROR_H

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

/* One sentence for the user; always terminated. Owned by the caller, written by the callee on failure only. */
struct shore_diag {
    char text[1024];
};

/* The text of a code: of ours, or strerror's. Never NULL. Threading: any. */
const char *shore_error_text(int code);

#ifdef __cplusplus
}
#endif

#endif
