/* Filling a caller's diagnostic. */
#ifndef SHORE_BASE_DIAG_H
#define SHORE_BASE_DIAG_H

#include <stddef.h>

#include "longshore/error.h"

/* Writes one sentence into diag (which may be NULL) and returns code, so that `return shore__fail(diag, -EIO, ...)`
 * reads as one step. Where the diagnostic is too small, the middle is left out: the reason is behind the path. Never
 * touches errno. The arguments may be of diag itself. */
__attribute__((format(printf, 3, 4))) int shore__fail(struct shore_diag *diag, int code, const char *format, ...);

/* The same for what another one says, whose advice is kept. why: NULL: none; may be diag itself. */
__attribute__((format(printf, 4, 5))) int shore__fail_of(struct shore_diag *diag, int code,
                                                         const struct shore_diag *why, const char *format, ...);
/* What may be done about what diag (may be NULL) says. of: a copy is kept; NULL: nothing. Returns code. */
int shore__advise(struct shore_diag *diag, int code, enum shore_advice advice, const char *of);

/* What it says behind "NAME: ", for who has said the name already; all of it where it does not begin so. */
const char *shore__said_of(const struct shore_diag *diag, const char *name);

/* Escapes a name that a stranger chose (control characters, quotes, invalid UTF-8, escapes of terminals) for a
 * message: into out, always terminated, at most out_bytes; long names are cut with "...". Returns out. */
const char *shore__escape(const char *name, size_t name_bytes, char *out, size_t out_bytes);
/* The same as a value, which lives as long as the statement: shore__fail(diag, code, "%s: ...",
 * shore__shown(name).text). */
struct shore__shown {
    char text[512];
};
struct shore__shown shore__shown(const char *name);
/* The same of a whole message, in which names may be whose own quotes and backslashes stay. */
const char *shore__printable(const char *text, size_t text_bytes, char *out, size_t out_bytes);

/* A word of a command that a message recommends: as it is, or quoted where a shell would take it apart. malloc'ed;
 * NULL: out of memory. */
char *shore__shell_word(const char *text);

#endif
