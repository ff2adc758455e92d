#include "text/reader.h"

#include <errno.h>

#include "base/diag.h"

int shore__reader_report(void *reader, struct shore_diag *diag) {
    struct shore__reader *r = reader;
    uint64_t here = r->input ? shore__unpack_done(r->input) : 0;
    if (r->file && r->file->bytes && here > r->file->bytes) here = r->file->bytes; /* it has grown since */
    if (r->how->progress && r->how->progress(r->how->progress_ctx, r->done_bytes + here, r->total_bytes))
        return shore__fail(diag, -ECANCELED, "%s: reading it was cancelled", r->file ? r->file->path : "the data");
    return 0;
}

int shore__reader_block(struct shore__reader *r, size_t *bytes, struct shore_diag *diag) {
    int rc = 0;
    *bytes = r->held;
    if (!r->held) rc = shore__unpack_read(r->input, r->block, SHORE__READER_BLOCK_BYTES, bytes, diag);
    r->held = 0;
    return rc ? rc : shore__reader_report(r, diag);
}

void shore__count_alike(const struct shore__reader *r, struct shore__alike *alike, const char *what) {
    if (alike->count++) return;
    alike->first = r->file->path;
    alike->what = what;
}
