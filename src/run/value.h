/* Values that people give as text or JSON: settings of a run, options of a command. How they are read into a variable,
 * which of them are taken, and how they are described and written. */
#ifndef SHORE_RUN_VALUE_H
#define SHORE_RUN_VALUE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum shore__value_kind {
    SHORE__VALUE_NONE,
    SHORE__VALUE_FLAG,   /* bool; a flag takes no value */
    SHORE__VALUE_TEXT,   /* char *, malloc'ed; like the next two, the functions below leave it to their callers */
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

/* Reads a text into the variable, if the value takes it. */
bool shore__value_read(const struct shore__value *v, const char *text, void *at);
/* The same of JSON: a number, or a text as above; true and false for on and off. */
bool shore__value_read_json(const struct shore__value *v, const json_t *json, void *at);
/* Whether the variable is in the range. */
bool shore__value_fits(const struct shore__value *v, const void *at);
/* "a whole number from 1 to 8" */
const char *shore__value_takes(const struct shore__value *v, char *out, size_t bytes);
/* The variable as text; "chosen": it stands for a value that is chosen later. */
const char *shore__value_text(const struct shore__value *v, const void *at, char *out, size_t bytes);
json_t *shore__value_json(const struct shore__value *v, const void *at);

#endif
