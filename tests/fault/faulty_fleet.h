/* A fleet that something goes wrong with: made, stepped, closed and opened again beside the plain arithmetic. */
#ifndef SHORE_TESTS_FAULTY_FLEET_H
#define SHORE_TESTS_FAULTY_FLEET_H

#include "conformance/drive_harness.h"

struct fault {
    struct place place;
    struct plain plain;
    struct shore_fleet_options options;
    struct shore_fleet *fleet;
    struct shore_diag diag;
    char note[1024];
};

static inline void keep_note(void *ctx, const char *text) {
    struct fault *t = ctx;
    snprintf(t->note, sizeof t->note, "%s", text);
}

static inline void must(struct fault *t, int rc) {
    if (rc) fail_msg("%d: %s", rc, t->diag.text);
}

static inline void says(struct fault *t, const char *text) {
    char line[2048];
    shore_diag_say(&t->diag, NULL, line, sizeof line);
    if (!strstr(line, text)) fail_msg("\"%s\" does not contain \"%s\"", line, text);
}

static inline void start(struct fault *t, const char *kinds) {
    memset(t, 0, sizeof *t);
    place_open(&t->place, kinds);
    plain_open(&t->plain, SHORE_ADAMW, false);
    t->options = (struct shore_fleet_options){.size = sizeof(struct shore_fleet_options),
                                              .drives = t->place.paths,
                                              .ndrives = t->place.ndrives,
                                              .spill = true,
                                              .io = SHORE_IO_THREADS,
                                              .note = keep_note,
                                              .note_ctx = t};
    must(t, shore_fleet_create(t->plain.layout, &t->options, &t->fleet, &t->diag));
    must(t, fleet_init(t->fleet, &t->plain, &t->diag));
}

static inline void step(struct fault *t) {
    must(t, fleet_step(t->fleet, &t->plain, t->plain.step, &t->diag));
    plain_step(&t->plain, 1);
}

static inline void stop(struct fault *t) {
    shore_fleet_close(t->fleet);
    t->fleet = NULL;
}

static inline int open_again(struct fault *t) {
    stop(t);
    return shore_fleet_open(t->plain.layout, &t->options, &t->fleet, &t->diag);
}

static inline void finish(struct fault *t) {
    shore__io_set_shim(NULL, NULL);
    stop(t);
    plain_close(&t->plain);
    place_close(&t->place);
}

#endif
