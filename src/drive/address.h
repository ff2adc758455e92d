/* Where a drive is: what --drive and the drives of a fleet's options take, and run.json records.
 *
 *     DIR, FILE, BLOCKDEV                   of this host
 *     ram:, null:                           of this process
 *     ssh://[user@]host[:port]/abs/path     runs "longshore drive serve --stdio" on the host
 *     unix:SOCKET[:PATH]                    a "longshore drive serve --listen SOCKET" of this host; PATH on it, or its
 *                                           root
 *
 * Nothing else compares such texts: what differs by kind is a fact of the kind here, or a function of the kind in
 * drive/probe/kinds.c.
 */
#ifndef SHORE_DRIVE_ADDRESS_H
#define SHORE_DRIVE_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

#include "longshore/error.h"

enum shore__kind_id { SHORE__KIND_FILE, SHORE__KIND_RAM, SHORE__KIND_NULL, SHORE__KIND_SSH, SHORE__KIND_UNIX };

struct shore__kind {
    enum shore__kind_id id;
    bool keeps;    /* its state outlives the process */
    bool has_file; /* the volume has a path of this host */
    bool served;   /* our server has it, and is asked over our wire */
    bool away;     /* it is reached over a link: that has its pace, and may be lost and come back */
    bool here;     /* it is of this host */
};

/* Every text is of some kind, also one that cannot be parsed. For sums over the options of a fleet, which has texts:
 * whoever has an address asks that. */
const struct shore__kind *shore__kind_of(const char *text);

/* One block of memory: free() ends it. */
struct shore__address {
    const struct shore__kind *kind;
    char *text; /* as it was given */
    /* ssh: */
    char *host; /* with user@ */
    char *port; /* NULL: not given */
    /* unix: */
    char *socket;
    char *path; /* on the host that has it; "": the server's root, or nothing */
};

/* *out is malloc'ed; NULL where it fails. SHORE_EUSAGE names what is wrong. */
int shore__address_parse(const char *text, struct shore__address **out, struct shore_diag *diag);

/* Whether two are drives of one server, as far as names tell; false unless both are served. */
bool shore__address_shares_server(const struct shore__address *a, const struct shore__address *b);
/* The same drive by a name that does not begin where we are; links are resolved, but devices keep the name they were
 * given, since the kernel's own may change with the next start. malloc'ed; NULL: neither it nor its directory exists.
 */
char *shore__address_absolute(const char *text);

/* Made of others: malloc'ed, NULL: no memory. The same; a file of this name in a directory; another path on the host
 * that has the drive; another end of its text, after so many characters. */
struct shore__address *shore__address_copy(const struct shore__address *a);
struct shore__address *shore__address_in(const struct shore__address *directory, const char *name);
struct shore__address *shore__address_beside(const struct shore__address *a, const char *path);
struct shore__address *shore__address_named(const struct shore__address *a, size_t kept, const char *ending);

struct shore__addresses {
    struct shore__address **item;
    const char **text; /* of each, as the options of a fleet take them */
    size_t count;
};

/* at: taken, also where it fails; NULL: there was no memory for it. -ENOMEM. */
int shore__addresses_add(struct shore__addresses *list, struct shore__address *at);
int shore__addresses_parse(struct shore__addresses *list, const char *text, struct shore_diag *diag);
int shore__addresses_copy(const struct shore__addresses *from, struct shore__addresses *out);  /* adds */
void shore__addresses_put(struct shore__addresses *list, size_t i, struct shore__address *at); /* instead; taken */
bool shore__addresses_away(const struct shore__addresses *list);                               /* any of them */
bool shore__addresses_have(const struct shore__addresses *list, const char *text);
void shore__addresses_free(struct shore__addresses *list);

#endif
