/* A scratch directory of a test, and files in it. */
#ifndef SHORE_TESTS_TEXT_SCRATCH_H
#define SHORE_TESTS_TEXT_SCRATCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char directory[64];

static inline int setup(void **state) {
    strcpy(directory, "/tmp/shore-text-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

static inline int teardown(void **state) {
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", directory);
    return system(command);
}

/* Lasts until the eighth call from here. */
static inline char *in_directory(const char *name) {
    static char paths[8][160];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

static inline const char *put_file(const char *name, const void *data, size_t bytes) {
    const char *path = in_directory(name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    fclose(f);
    return path;
}

static inline const char *put_text(const char *name, const char *text) {
    return put_file(name, text, strlen(text));
}

static inline void drop(const char *name) {
    unlink(in_directory(name));
}

#endif
