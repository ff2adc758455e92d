#include "base/sized.h"

#include <errno.h>
#include <string.h>

#include "base/diag.h"
#include "longshore/version.h"

/* Far above any struct: rejects a size that was never set. */
#define SIZE_MOST 4096u

static size_t size_of(const void *given) {
    size_t size;
    memcpy(&size, given, sizeof size);
    return size >= sizeof size && size <= SIZE_MOST ? size : 0;
}

int shore__sized_in(void *ours, size_t ours_bytes, const void *given, const char *name, struct shore_diag *diag) {
    size_t size = size_of(given);
    if (!size)
        return shore__fail(diag, -EINVAL, "the size of a struct %s was not set: it is sizeof(struct %s)", name, name);
    const unsigned char *from = given;
    for (size_t i = ours_bytes; i < size; i++)
        if (from[i])
            return shore__fail(diag, -EINVAL, "a struct %s has members that this library, %s, does not know", name,
                               shore_version());
    memset(ours, 0, ours_bytes);
    memcpy(ours, from, size < ours_bytes ? size : ours_bytes);
    memcpy(ours, &ours_bytes, sizeof ours_bytes);
    return 0;
}

int shore__sized_out(void *given, const void *ours, size_t ours_bytes) {
    const size_t size = size_of(given), head = sizeof size;
    if (!size) return -EINVAL;
    const size_t known = size < ours_bytes ? size : ours_bytes;
    unsigned char *to = given;
    memcpy(to + head, (const unsigned char *)ours + head, known - head);
    memset(to + known, 0, size - known);
    return 0;
}
