/* OPEN and its answer: the drive that the client wants, and the drive that the server has. Both are lists of keyed
 * settings, so that later versions can add to them. */
#ifndef SHORE_DRIVE_REMOTE_WIRE_OPEN_H
#define SHORE_DRIVE_REMOTE_WIRE_OPEN_H

#include "drive/remote/wire.h"

enum shore__wire_mode {
    SHORE__WIRE_MODE_OPEN,
    SHORE__WIRE_MODE_CREATE,
    SHORE__WIRE_MODE_REPLACE,
    SHORE__WIRE_MODE_READ
};

struct shore__wire_open {
    /* both ways */
    char *path;  /* the wanted one; the actual one */
    char *build; /* the sender's build */
    bool has_desc;
    struct shore__volume_desc desc; /* to create; in the answer: the existing one. Extents and identity are owned */
    /* requests */
    uint32_t mode;
    struct shore_layout *layout; /* owned when decoded */
    uint32_t optimizer, moments, io;
    uint32_t plane_bytes[SHORE_PLANE_COUNT];
    bool fp32_params;
    uint32_t silence_ms;  /* a peer that is silent for longer is gone */
    uint32_t connections; /* number to be used; above 1, the answer has a token for the others */
    /* answers */
    uint32_t caps;
    char *describe;
    uint64_t disk_bytes;
    uint32_t slots, span_segments;
    uint64_t slot_bytes;
    unsigned char token[16];
    bool has_recovery;
    struct shore__drive_recovery recovery;
};

/* A malloc'ed body. Errors: -ENOMEM, -E2BIG. */
int shore__wire_open_put(const struct shore__wire_open *o, bool answer, unsigned char **body, uint32_t *bytes);
/* SHORE_ELINK: malformed. SHORE_EFORMAT: it needs something that this build does not know. On failure, nothing is left
 * to free. */
int shore__wire_open_get(const unsigned char *body, uint32_t bytes, bool answer, struct shore__wire_open *out,
                         struct shore_diag *diag);
/* A volume's numbers, without extents and identity. get: false if they are impossible. */
#define SHORE__WIRE_VOLUME_BYTES (8u * 6u + 4u * 5u + 4u * SHORE_PLANE_COUNT)
void shore__wire_volume_put(unsigned char *at, const struct shore__volume_desc *d);
bool shore__wire_volume_get(const unsigned char *at, struct shore__volume_desc *d);

/* Frees what decoding allocated. */
void shore__wire_open_free(struct shore__wire_open *o);

#endif
