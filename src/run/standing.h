/* The run, or a copy of it: whose the volumes are. */
#ifndef SHORE_RUN_STANDING_H
#define SHORE_RUN_STANDING_H

#include "run/run.h"

/* The directory that the volumes belong to, as run.json has it; NULL: older than that. */
struct shore__origin {
    char *home; /* its path */
    char *mark; /* what tells it from a copy, wherever it is now */
};

enum shore__standing {
    SHORE__RUN_ITSELF,    /* also a copy that has drives of its own */
    SHORE__RUN_PUT_BACK,  /* where the run was, but another directory */
    SHORE__RUN_ELSEWHERE, /* moved from another file system, or a copy of what is not found any more */
    SHORE__RUN_COPY,      /* with drives of a run that is found */
};
/* drives: what both would have in common; NULL: all. *original: of a copy, malloc'ed; otherwise NULL. */
enum shore__standing shore__standing_of(const char *path, const struct shore__origin *origin,
                                        const uint64_t fleet_id[2], const struct shore__addresses *drives,
                                        char **original);
enum shore__standing shore__run_standing(const struct shore__run *run);
/* SHORE_EUSAGE for what stands like `from` or worse: the volumes are not its own to remove or move. */
int shore__run_refuse_copy(const struct shore__run *run, enum shore__standing from, struct shore_diag *diag);
/* Into run->note, unless it is the run itself. */
void shore__run_say_standing(struct shore__run *run);
/* origin.c */
/* The inode, and where the file system knows it, when it was made: inodes are used again. NULL: cannot be told. */
char *shore__directory_mark(const char *directory);
int shore__origin_take(const char *path, struct shore__origin *origin, struct shore_diag *diag);
bool shore__origin_is_current(const char *path, const struct shore__origin *origin);
void shore__origin_free(struct shore__origin *origin);

#endif
