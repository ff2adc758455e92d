/* The blob of a step: opaque bytes that commit with it. Two places, of two halves each, between headers and records. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/diag.h"
#include "storage/hash.h"
#include "storage/volume_internal.h"

static uint64_t half_offset(unsigned place, unsigned half) {
    return SHORE__BLOB_HALF_OFFSET + (uint64_t)(2 * place + half) * SHORE__BLOB_HALF_STRIDE;
}

/* Transfers the blob in whole pages. */
static int transfer(const struct shore__volume *v, struct shore__io *io, enum shore__io_kind kind, unsigned place,
                    unsigned char *blob, uint32_t bytes, struct shore_diag *diag) {
    uint64_t left = shore__round_up(bytes, SHORE__PAGE_BYTES);
    int rc = 0;
    for (unsigned half = 0; !rc && left; half++) {
        assert(half < 2);
        uint64_t n = left < SHORE__BLOB_HALF_BYTES ? left : SHORE__BLOB_HALF_BYTES;
        rc = shore__transfer(io, v->file.path, kind, blob, half_offset(place, half), n, diag);
        blob += n;
        left -= n;
    }
    return rc;
}

int shore__volume_put_blob(struct shore__volume *v, struct shore__io *io, struct shore__record *next, void *blob,
                           uint32_t bytes, uint64_t *written_bytes, struct shore_diag *diag) {
    struct shore__slot_state *slot = &next->slot[next->active];
    const struct shore__slot_state *committed = &v->record.slot[v->record.active];
    int rc = bytes <= SHORE_BLOB_BYTES ? shore__volume_can_carry(v, diag) : -EINVAL;
    slot->blob_bytes = 0;
    if (rc || bytes == 0) return rc;
    uint64_t room = shore__round_up(bytes, SHORE__PAGE_BYTES);
    memset((unsigned char *)blob + bytes, 0, room - bytes);
    slot->blob_bytes = bytes;
    slot->blob_place = v->record_valid && committed->blob_bytes && committed->blob_place == 0;
    assert(!v->record_valid || !committed->blob_bytes || slot->blob_place != committed->blob_place);
    shore__hash128(blob, bytes, 0, slot->blob_hash);
    rc = transfer(v, io, SHORE__IO_WRITE, slot->blob_place, blob, bytes, diag);
    v->unflushed = true;
    if (rc) v->commit_failed = true;
    if (rc == 0 && written_bytes) *written_bytes += room;
    return rc;
}

int shore__volume_read_blob(const struct shore__volume *v, struct shore__io *io, const struct shore__slot_state *slot,
                            void *blob, struct shore_diag *diag) {
    unsigned char sum[16];
    if (slot->blob_bytes == 0) return 0;
    int rc = transfer(v, io, SHORE__IO_READ, slot->blob_place, blob, slot->blob_bytes, diag);
    if (rc) return rc;
    shore__hash128(blob, slot->blob_bytes, 0, sum);
    if (memcmp(sum, slot->blob_hash, 16) == 0) return 0;
    return shore__fail(diag, SHORE_ECORRUPT,
                       "%s: the blob of step %" PRIu64 " at offset %" PRIu64 " does not match its checksum; put the "
                       "volumes back from a copy, and check the drive",
                       v->file.path, slot->step, half_offset(slot->blob_place, 0));
}
