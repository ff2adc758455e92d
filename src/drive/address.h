/* Addresses of drives, as --drive and a fleet's options take them, and run.json records them.
 *
 *     DIR, FILE, BLOCKDEV                   on this host
 *     opencl:PATH                           the same, with UPDATE on an OpenCL device
 *     ram:, null:                           in this process
 *     ssh://[user@]host[:port]/abs/path     runs "longshore drive serve --stdio" on the host
 *     unix:SOCKET[:PATH]                    a "longshore drive serve --listen SOCKET" on this host, and PATH there
 *                                           (otherwise its root)
 *
 * No other code compares such texts. Whatever differs by kind is a fact of the kind here, or a function of the kind in
 * drive/probe/kinds.c.
 */
#ifndef SHORE_DRIVE_ADDRESS_H
#define SHORE_DRIVE_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

enum shore__kind_id {
    SHORE__KIND_FILE,
    SHORE__KIND_OPENCL,
    SHORE__KIND_RAM,
    SHORE__KIND_NULL,
    SHORE__KIND_SSH,
    SHORE__KIND_UNIX
};

struct shore__kind {
    enum shore__kind_id id;
    bool keeps;    /* its state outlives the process */
    bool has_file; /* the volume has a path on this host: see shore__address_file() */
    bool served;   /* our server has it, reached over our wire protocol */
    bool away;     /* reached over a link, which has its own speed, and may break and return */
    bool here;     /* it is on this host */
};

/* Kind of a text; every text has one, even if it cannot be parsed. Only for sums over a fleet's options, which hold
 * texts; code with an address uses that. */
const struct shore__kind *shore__kind_of(const char *text);

/* Whether any of the texts is of that kind. */
bool shore__kinds_have(const char *const *texts, uint32_t count, enum shore__kind_id id);

/* The path in a text whose kind has a file: behind opencl:. */
const char *shore__address_file(const char *text);

/* One block of memory; free() it. */
struct shore__address {
    const struct shore__kind *kind;
    char *text; /* as given */
    /* ssh: */
    char *host; /* with user@ */
    char *port; /* NULL: not given */
    /* unix: */
    char *socket;
    char *path; /* on the host that has it, without opencl: before it; "": the server's root, or nothing */
};

/* *out is malloc'ed; NULL on failure. SHORE_EUSAGE names what is wrong. */
int shore__address_parse(const char *text, struct shore__address **out, struct shore_diag *diag);

/* Whether both are drives of one server, as far as names tell; false unless both are served. */
bool shore__address_shares_server(const struct shore__address *a, const struct shore__address *b);
/* An absolute name of the same drive. Links are resolved, but devices keep the given name, because the kernel's own
 * name may change at the next start. malloc'ed; NULL: neither the drive nor its directory exists. */
char *shore__address_absolute(const char *text);

/* Addresses made from others; malloc'ed, NULL: out of memory. copy: the same; in: a file of this name in a directory;
 * beside: another path on the same host; named: its text up to `kept` characters, with another ending. */
struct shore__address *shore__address_copy(const struct shore__address *a);
struct shore__address *shore__address_in(const struct shore__address *directory, const char *name);
struct shore__address *shore__address_beside(const struct shore__address *a, const char *path);
struct shore__address *shore__address_named(const struct shore__address *a, size_t kept, const char *ending);

struct shore__addresses {
    struct shore__address **item;
    const char **text; /* of each, as in a fleet's options */
    size_t count;
};

/* at: taken over, also on failure; NULL: it could not be allocated. -ENOMEM. */
int shore__addresses_add(struct shore__addresses *list, struct shore__address *at);
int shore__addresses_parse(struct shore__addresses *list, const char *text, struct shore_diag *diag);
int shore__addresses_copy(const struct shore__addresses *from, struct shore__addresses *out); /* adds */
/* replaces one; takes at over */
void shore__addresses_put(struct shore__addresses *list, size_t i, struct shore__address *at);
bool shore__addresses_away(const struct shore__addresses *list); /* whether any is */
bool shore__addresses_have(const struct shore__addresses *list, const char *text);
void shore__addresses_free(struct shore__addresses *list);

#endif
