/* Event files of TensorBoard, with the losses of a training's steps. */
#ifndef SHORE_REPORT_TENSORBOARD_H
#define SHORE_REPORT_TENSORBOARD_H

#include "files/atomic.h"
#include "longshore/metrics.h"

/* A file in a directory, from the first step of a start on. Zero but for the directory before that. */
struct shore__tensorboard {
    const char *directory; /* borrowed; NULL: none is written */
    int fd;
    uint64_t bytes;          /* of whole events; 0: the file is yet to be made */
    struct shore__path path; /* of the file */
};

/* Makes the path absolute, so that a resume finds it, and checks that a file can be made there, or the directory beside
 * others. "none" becomes NULL. Makes nothing. *directory: malloc'ed, or NULL. SHORE_EUSAGE. */
int shore__tensorboard_settle(char **directory, struct shore_diag *diag);

/* Whether event files lie there. */
bool shore__tensorboard_is_used(const char *directory);

/* Adds a step. The first one makes the directory and a file of its own, with which steps from there on that earlier
 * files have count no more. On failure the file ends with the step before, and the next step is tried anew. */
int shore__tensorboard_add(struct shore__tensorboard *board, const struct shore_step_report *report,
                           struct shore_diag *diag);
void shore__tensorboard_close(struct shore__tensorboard *board);

#endif
