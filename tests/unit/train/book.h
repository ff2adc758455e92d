/* What the tests of training have in their scratch directory: a text to train on, and a place for a drive. */
#ifndef SHORE_TESTS_TRAIN_BOOK_H
#define SHORE_TESTS_TRAIN_BOOK_H

#include "unit/run/support.h"

static inline int book_open(void **state) {
    if (scratch_open(state) < 0) return -1;
    FILE *f = fopen("book.txt", "w");
    for (uint32_t i = 0; i < 4000; i++)
        fprintf(f, "%s%c", i % 9 ? "the" : " whale", 'a' + (int)(i * i % 26));
    return fclose(f) || mkdir("drive", 0755);
}

#endif
