/* Read before every file that clang-tidy looks at: shore__fail returns the code that it was given, which the analyzer
 * cannot see from its declaration. */
#include "base/diag.h"
#define shore__fail(diag, code, ...) ((void)(shore__fail)(diag, code, __VA_ARGS__), (code))
