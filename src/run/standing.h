/* Whether a directory is the run itself or a copy of it: who owns the volumes. */
#ifndef SHORE_RUN_STANDING_H
#define SHORE_RUN_STANDING_H

#include "run/run.h"

/* The directory that owns the volumes, according to run.json; NULL: run.json is older. */
struct shore__origin {
    char *home; /* its path */
    char *mark; /* tells it from a copy, wherever it is now */
};

enum shore__standing {
    SHORE__RUN_ITSELF,    /* also a copy with drives of its own */
    SHORE__RUN_PUT_BACK,  /* at the run's path, but another directory */
    SHORE__RUN_ELSEWHERE, /* moved from another file system, or a copy whose original is missing */
    SHORE__RUN_COPY,      /* shares drives with an existing run */
};
/* drives: those to compare; NULL: all. *original: the original of a copy, malloc'ed; otherwise NULL. */
enum shore__standing shore__standing_of(const char *path, const struct shore__origin *origin,
                                        const uint64_t fleet_id[2], const struct shore__addresses *drives,
                                        char **original);
enum shore__standing shore__run_standing(const struct shore__run *run);
/* SHORE_EUSAGE for standing `from` or worse: the volumes are not this directory's to remove or move. */
int shore__run_refuse_copy(const struct shore__run *run, enum shore__standing from, struct shore_diag *diag);
/* Adds it to run->note, unless it is the run itself. */
void shore__run_say_standing(struct shore__run *run);
/* origin.c */
/* The inode, and its birth time if the file system knows it, because inodes are reused. NULL: unknown. */
char *shore__directory_mark(const char *directory);
/* Whether two marks may be one directory's: a birth time that one of them lacks decides nothing. NULL: none agrees. */
bool shore__marks_agree(const char *a, const char *b);
int shore__origin_take(const char *path, struct shore__origin *origin, struct shore_diag *diag);
bool shore__origin_is_current(const char *path, const struct shore__origin *origin);
void shore__origin_free(struct shore__origin *origin);

#endif
