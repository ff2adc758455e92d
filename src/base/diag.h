/* Fills a caller's diagnostic. */
#ifndef SHORE_BASE_DIAG_H
#define SHORE_BASE_DIAG_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

/* Writes one sentence into diag (which may be NULL) and returns code, so that `return shore__fail(diag, -EIO, ...)`
 * reads as one step. If the sentence is too long, its middle is left out, because the reason stands behind the path.
 * Never touches errno. The arguments may belong to diag itself. */
__attribute__((format(printf, 3, 4))) int shore__fail(struct shore_diag *diag, int code, const char *format, ...);
/* Adds to a text of at most `bytes` bytes, its end included; what has no room is cut. */
__attribute__((format(printf, 3, 4))) void shore__append(char *text, size_t bytes, const char *format, ...);
static inline int shore__out_of_memory(struct shore_diag *diag) {
    return shore__fail(diag, -ENOMEM, "out of memory");
}

/* "PATH: cannot be opened: reason", with the reason that errno has. what: "cannot be opened". Returns -errno. */
int shore__fail_errno(struct shore_diag *diag, const char *path, const char *what);

/* Does the same for another diagnostic's sentence, and keeps its advice. why: NULL: none; may be diag itself. */
__attribute__((format(printf, 4, 5))) int shore__fail_of(struct shore_diag *diag, int code,
                                                         const struct shore_diag *why, const char *format, ...);
/* Adds advice to the sentence of diag, which may be NULL. of: copied; NULL: nothing. Returns code. */
int shore__advise(struct shore_diag *diag, int code, enum shore_advice advice, const char *of);

/* The sentence behind "NAME: ", for callers that have said the name already. All of it if it does not start so. */
const char *shore__said_of(const struct shore_diag *diag, const char *name);

/* Escapes an untrusted name for a message: control characters, quotes, invalid UTF-8, terminal escapes. Writes to out,
 * always terminated, at most out_bytes; cuts long names with "...". Returns out. */
const char *shore__escape(const char *name, size_t name_bytes, char *out, size_t out_bytes);
/* The same as a value that lives as long as the statement: shore__fail(diag, code, "%s: ...",
 * shore__shown(name).text). */
struct shore__shown {
    char text[512];
};
struct shore__shown shore__shown(const char *name);
/* The same for a whole message; quotes and backslashes in it stay. */
const char *shore__printable(const char *text, size_t text_bytes, char *out, size_t out_bytes);

/* A tensor's shape, as a value: "[768, 50257]". */
struct shore__shape_text {
    char text[200];
};
struct shore__shape_text shore__shape_text(uint32_t rank, const uint64_t *dims);

/* A word of a recommended command, quoted if a shell would split it. malloc'ed; NULL: out of memory. */
char *shore__shell_word(const char *text);

#endif
