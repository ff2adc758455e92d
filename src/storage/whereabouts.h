/* Where a path of this host lies: its device, file system and room. */
#ifndef SHORE_STORAGE_WHEREABOUTS_H
#define SHORE_STORAGE_WHEREABOUTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

enum shore__ground {
    SHORE__GROUND_DISK,    /* a file system on a device of this host, or of unknown kind */
    SHORE__GROUND_MEMORY,  /* tmpfs and the like: memory, gone after the next start */
    SHORE__GROUND_NETWORK, /* a file system of another host */
    SHORE__GROUND_DEVICE   /* the path is a block device itself */
};

struct shore__whereabouts {
    enum shore__ground ground;
    char device[128];      /* the mount's name ("/dev/nvme0n1p1", "host:/export"), or the path; "": unknown */
    char disk[64];         /* the whole disk that it is a part of, by the kernel's name ("nvme0n1"); "": unknown */
    char file_system[32];  /* "ext4"; "": a block device, or unknown */
    char mount_point[256]; /* "": a block device, or unknown */
    uint64_t total_bytes, free_bytes; /* free: for this user. A block device's size in both; 0: unknown */
    uint64_t device_id;               /* the kernel's number of the device under a file there */
    bool is_root;                     /* on the file system of / */
};

/* path: exists, or can be made in an existing directory. Errors: those of stat(), -ENOMEM. */
int shore__whereabouts(const char *path, struct shore__whereabouts *out, struct shore_diag *diag);

/* Whether both are known to lie on one device, and so share its speed. */
bool shore__whereabouts_share(const struct shore__whereabouts *a, const struct shore__whereabouts *b);

/* One line for people, without the path: "/dev/nvme0n1p1 (ext4 on /mnt/nvme0), 931.32 GiB free". Returns out. */
const char *shore__whereabouts_text(const struct shore__whereabouts *w, char *out, size_t bytes);

#endif
