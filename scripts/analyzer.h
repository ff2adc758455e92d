/* Read before every file that clang-tidy looks at: these return the code that they were given, a negative one, which
 * the analyzer cannot see from their declarations. */
// clang-format off
#include "base/diag.h"
#define SHORE__CODE(function, diag, code, ...)                                                                         \
    ({                                                                                                                 \
        int shore__code = (code);                                                                                      \
        (void)(function)(diag, shore__code, __VA_ARGS__);                                                              \
        if (shore__code >= 0) __builtin_unreachable();                                                                 \
        shore__code;                                                                                                   \
    })
#define shore__fail(diag, code, ...) SHORE__CODE(shore__fail, diag, code, __VA_ARGS__)
#define shore__fail_of(diag, code, ...) SHORE__CODE(shore__fail_of, diag, code, __VA_ARGS__)
#define shore__advise(diag, code, ...) SHORE__CODE(shore__advise, diag, code, __VA_ARGS__)
#define shore__fail_errno(diag, path, what)                                                                            \
    ({                                                                                                                 \
        int shore__code = (shore__fail_errno)(diag, path, what);                                                       \
        if (shore__code >= 0) __builtin_unreachable();                                                                 \
        shore__code;                                                                                                   \
    })
