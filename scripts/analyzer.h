/* Read before every file that clang-tidy looks at: shore__fail returns the code that it was given, a negative one,
 * which the analyzer cannot see from its declaration. */
// clang-format off
#include "base/diag.h"
#define shore__fail(diag, code, ...)                                                                                   \
    ({                                                                                                                 \
        int shore__code = (code);                                                                                      \
        (void)(shore__fail)(diag, shore__code, __VA_ARGS__);                                                           \
        if (shore__code >= 0) __builtin_unreachable();                                                                 \
        shore__code;                                                                                                   \
    })
