#include <limits.h>
#include <string.h>

#include "longshore/error.h"

const char *shore_error_text(int code) {
    switch (code) {
    case 0:
        return "no error";
#define SHORE_ERROR_CASE(name, number, text) \
    case name:                               \
        return text;
        SHORE_ERROR_LIST(SHORE_ERROR_CASE)
#undef SHORE_ERROR_CASE
    default:
        break;
    }
    /* strerror may use a buffer that threads share; this never does */
    const char *text = code < 0 && code > INT_MIN ? strerrordesc_np(-code) : NULL;
    return text ? text : "unknown error";
}
