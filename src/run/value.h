/* Values that people give as text or JSON: settings of a run, options of a command. How they are read into a variable,
 * which of them are taken, and how they are described and written. */
#ifndef SHORE_RUN_VALUE_H
#define SHORE_RUN_VALUE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

enum shore__value_kind {
    SHORE__VALUE_NONE,
    SHORE__VALUE_FLAG,   /* bool; a flag takes no value */
    SHORE__VALUE_TEXT,   /* char *, malloc'ed */
    SHORE__VALUE_LIST,   /* struct shore__strings */
    SHORE__VALUE_PLACES, /* struct shore__addresses */
    SHORE__VALUE_WHOLE,  /* uint32_t or uint64_t */
    SHORE__VALUE_SIZE,   /* uint64_t, "2GiB" */
    SHORE__VALUE_REAL,   /* double */
    SHORE__VALUE_SHARE,  /* double, "top1%" */
    SHORE__VALUE_PACE,   /* struct shore__pace, "10" or "30s" */
    SHORE__VALUE_CHOICE, /* an enum or a bool: which of the choices */
};

struct shore__value {
    enum shore__value_kind kind;
    size_t bytes;         /* of the variable */
    const char *choices;  /* "constant|linear|cosine" */
    uint64_t least, most; /* WHOLE, SIZE, steps of a PACE; most 0: the variable's */
    double low, high;     /* REAL, SHARE */
};

/* The largest fp32 below 1, where the update's arithmetic still tells the two apart. */
#define SHORE__BELOW_ONE 0x1.fffffep-1

/* Reads a text into the variable, if the value takes it; a list gains it. name: of the value, for the message.
 * SHORE_EUSAGE, -ENOMEM. */
int shore__value_read(const struct shore__value *v, const char *name, const char *text, void *at,
                      struct shore_diag *diag);
/* The same of JSON: a number, or a text as above; true and false for on and off. A text or an array of texts replaces
 * a list. */
int shore__value_read_json(const struct shore__value *v, const char *name, const json_t *json, void *at,
                           struct shore_diag *diag);
/* Says that the value does not take this text. SHORE_EUSAGE. */
int shore__value_refuse(const struct shore__value *v, const char *name, const char *text, struct shore_diag *diag);
/* Frees what a TEXT, LIST or PLACES holds, which then holds nothing. */
void shore__value_clear(const struct shore__value *v, void *at);
/* Replaces a variable by a copy. -ENOMEM. */
int shore__value_copy(const struct shore__value *v, const void *from, void *to);
/* The texts of a TEXT, LIST or PLACES, borrowed; *count: 0 for other kinds, and if there is none. */
const char *const *shore__value_texts(const struct shore__value *v, const void *at, size_t *count);
/* Whether the variable is in the range. */
bool shore__value_fits(const struct shore__value *v, const void *at);
/* "a whole number from 1 to 8" */
const char *shore__value_takes(const struct shore__value *v, char *out, size_t bytes);
/* The variable as text; "chosen": it stands for a value that is chosen later; "none": there is no text. A list
 * is its words, as far as there is room. */
const char *shore__value_text(const struct shore__value *v, const void *at, char *out, size_t bytes);
/* NULL: it holds no text, or there is no memory. */
json_t *shore__value_json(const struct shore__value *v, const void *at);

#endif
