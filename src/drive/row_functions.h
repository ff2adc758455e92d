/* Functions over rows of a table: GATHER gives those of a plane of the state, GATHER_SCRATCH those of a table in
 * scratch, SCATTER puts rows there, SCATTER_ADD adds to them. near/row_pages.h says which pages they read.
 *
 * In: GATHER, GATHER_SCRATCH: the rows' numbers, 4 bytes each. The others: how many (8 bytes), their numbers, and their
 * values behind each other: as they are stored, or, to be added, fp32. Numbers are ascending, each once. */
#ifndef SHORE_DRIVE_ROW_FUNCTIONS_H
#define SHORE_DRIVE_ROW_FUNCTIONS_H

#include "drive/function.h"
#include "longshore/table.h"

extern const struct shore__function shore__gather, shore__gather_scratch, shore__scatter, shore__scatter_add;

/* The argument. */
struct shore__rows_argument {
    uint64_t first;      /* byte where row 0 begins: of the plane of a block, of the drive's scratch */
    uint32_t bytes;      /* of a row there: SHORE_TABLE_ROW_BYTES_MOST at most, which fits a server's least slot */
    uint32_t per_stripe; /* rows that follow each other in each stripe of scratch; 0: all do */
    uint32_t kind;   /* GATHER: enum shore_fetch_kind, BF16 or MASTER; SCATTER_ADD: enum shore_dtype, FP32 or BF16 */
    uint32_t stripe; /* bytes */
};
#define SHORE__ROWS_ARGUMENT_BYTES 24u
void shore__rows_argument_put(unsigned char out[SHORE__ROWS_ARGUMENT_BYTES], const struct shore__rows_argument *a);

/* Whether rows go to the drives, which change theirs. */
static inline bool shore__rows_are_given(unsigned function) {
    return function == SHORE__SCATTER || function == SHORE__SCATTER_ADD;
}
/* Bytes that travel for a row of so many: to GATHER's host, or to the others' drives. */
uint64_t shore__rows_value_bytes(unsigned function, uint32_t kind, uint64_t bytes);

#endif
