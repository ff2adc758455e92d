/* On what a path lies: which device, which file system, how much room. For paths of this host. */
#ifndef SHORE_STORAGE_WHEREABOUTS_H
#define SHORE_STORAGE_WHEREABOUTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

enum shore__ground {
    SHORE__GROUND_DISK,    /* a file system on a device of this host, or of a kind that is not known */
    SHORE__GROUND_MEMORY,  /* tmpfs and its kin: memory, and gone with the next start */
    SHORE__GROUND_NETWORK, /* a file system of another host's */
    SHORE__GROUND_DEVICE   /* the path is a block device itself */
};

struct shore__whereabouts {
    enum shore__ground ground;
    char device[128];      /* as the mount names it ("/dev/nvme0n1p1", "host:/export"), or the path; "": unknown */
    char disk[64];         /* the whole disk that this is a part of, as the kernel names it ("nvme0n1"); "": unknown */
    char file_system[32];  /* "ext4"; "": of a block device, or unknown */
    char mount_point[256]; /* "": of a block device, or unknown */
    uint64_t total_bytes, free_bytes; /* free: for this user. Of a block device both are its size; 0: unknown */
    uint64_t device_id;               /* as the kernel numbers what a file there lies on */
    bool is_root;                     /* of the file system that / is */
};

/* path: of what is there, or is to be made in a directory that is. Errors: that of stat(), -ENOMEM. */
int shore__whereabouts(const char *path, struct shore__whereabouts *out, struct shore_diag *diag);

/* Whether both lie on one device, by what is known of them: what shares a device shares its speed. */
bool shore__whereabouts_share(const struct shore__whereabouts *a, const struct shore__whereabouts *b);

/* One line for people, without the path: "/dev/nvme0n1p1 (ext4 on /mnt/nvme0), 931.32 GiB free". Returns out. */
const char *shore__whereabouts_text(const struct shore__whereabouts *w, char *out, size_t bytes);

#endif
