/* A table of rows on drives: features of nodes, embeddings, or any other records of one size. A program puts rows,
 * gathers rows by their numbers, and adds to rows. The drives read the pages of 4 KiB that the rows lie in, each once a
 * request, and send the rows alone: of rows that are much smaller than a page, a small part of the bytes crosses the
 * link to a drive that is far, or slow to reach. Rows of 4 KiB or more gain nothing.
 *
 *     shore_table_create(&options, &table, &diag)      once; later shore_table_open()
 *     shore_table_put(table, row, count, values, shore_wait_completion(&wait)) ...
 *     shore_table_gather(table, row, count, values, shore_wait_completion(&wait)) ...
 *     shore_table_scatter_add(table, row, count, gradients, shore_wait_completion(&wait)) ...
 *     shore_table_commit(table, &diag)                 all that has completed is durable
 *     shore_table_close(table)
 *
 * Rows are changed where they lie. What a commit made durable stays, except for rows that were put or added to
 * later: if the machine then crashes, each page of such a row has what it had before or what it was given, one by one,
 * so a row that lies in two pages can be half of each. Put those rows again. A process that is killed while the machine
 * goes on loses only what had not completed. Rows have no checksums. `longshore` runs are another kind of state: every
 * step of theirs survives whole.
 *
 * Rows of a new table are zeros in files and in memory. On a block device, they are what lay there.
 *
 * Submit and completion, and Errors: as in state.h. Threading: gather, put and scatter_add may be called from any
 * thread. A drive works on one request at a time. Of those that are under way together, it does some first, whole
 * or in parts; each adds all that it adds. A request that begins after another has completed sees what that one did.
 */
#ifndef LONGSHORE_TABLE_H
#define LONGSHORE_TABLE_H

#include "longshore/state.h"

#ifdef __cplusplus
extern "C" {
#endif

struct shore_table;

/* What a row is made of. BYTES: any records; they are put and gathered, never added to. */
enum shore_table_element { SHORE_TABLE_BYTES, SHORE_TABLE_FP32, SHORE_TABLE_BF16 };

#define SHORE_TABLE_ROW_BYTES_MOST (256u * 1024u)

/* Zero-initialise; every zero but that of size is the default. */
struct shore_table_options {
    size_t size;               /* sizeof(struct shore_table_options) */
    const char *const *drives; /* as of struct shore_fleet_options, of which a table is one */
    uint32_t ndrives;
    uint64_t rows;    /* 2^32 - 1 at most. open: 0, or refuse another number; likewise the next three */
    uint32_t columns; /* elements of a row */
    enum shore_table_element element;
    uint32_t element_bytes; /* BYTES: of an element, 0 is 1 */
    const char *drive_speeds;
    enum shore_io io;
    bool overwrite; /* create: replace volumes (never one that another process has locked) */
    bool read_only; /* open: others may read at the same time; put, scatter_add and commit: -EROFS */
    void (*note)(void *ctx, const char *text);
    void *note_ctx;
};

/* Makes a table. Ownership: it is the caller's, for shore_table_close(); options are borrowed during the call. Durable:
 * on return. A creation that was killed is made again by the same call. Errors: as of shore_fleet_create(), among them
 * -ENOSPC (the table does not fit its drives: "needs X, has Y"); -EINVAL (no rows or columns, or a row of more than
 * SHORE_TABLE_ROW_BYTES_MOST). */
int shore_table_create(const struct shore_table_options *options, struct shore_table **out, struct shore_diag *diag);

/* Opens a table at its last commit, with all that has completed since. Drives may come in any order. Errors: as of
 * shore_fleet_open(); SHORE_EMISMATCH (another shape than the options say), SHORE_EFORMAT (this is no table, or its
 * volumes are smaller than it), SHORE_EMISSING (its making was killed: create it). */
int shore_table_open(const struct shore_table_options *options, struct shore_table **out, struct shore_diag *diag);

/* Waits for all requests, and releases everything. Does not commit. NULL is allowed. */
void shore_table_close(struct shore_table *table);

struct shore_table_info {
    size_t size; /* set by the caller: sizeof(struct shore_table_info) */
    uint64_t rows, row_bytes;
    uint32_t columns, element_bytes;
    enum shore_table_element element;
    uint64_t disk_bytes; /* of all volumes */
    uint64_t commits;
};
/* Threading: any. Errors: -EINVAL (out->size). */
int shore_table_info(const struct shore_table *table, struct shore_table_info *out);

/* Rows, in the order of row[], which may be any, also repeated. Rows that are ascending cost the least memory: else the
 * call takes as much again for the time of the request, as put and scatter_add always do. Units: values: count rows of
 * row_bytes, aligned to an element. Ownership: row and values are borrowed until the completion. Errors: -ENOMEM; to
 * the completion, with a sentence: -EINVAL (a row that the table does not have: nothing was moved), -EIO, SHORE_ELINK.
 * count 0 completes at once. */
int shore_table_gather(struct shore_table *table, const uint32_t *row, uint32_t count, void *values,
                       struct shore_completion done);

/* Puts rows; of a row that is named more than once, the last. Errors: as of gather, and -EROFS. After -EIO or
 * SHORE_ELINK, each of the rows is as before, or as given; put them again. */
int shore_table_put(struct shore_table *table, const uint32_t *row, uint32_t count, const void *values,
                    struct shore_completion done);

/* Adds to rows of FP32 or BF16: values are fp32, count * columns. Rows that are named more than once are added up
 * first, in fp32 in the order of row[]; then row + sum is rounded once to the table's element. So the bits follow from
 * the request and the table alone, not from the drives. Errors: as of put; -EINVAL (a table of BYTES). After -EIO or
 * SHORE_ELINK, each of the rows was added to or was not, and must be put: adding again could add twice. */
int shore_table_scatter_add(struct shore_table *table, const uint32_t *row, uint32_t count, const float *values,
                            struct shore_completion done);

/* Makes durable what has completed. Waits. Threading: any, one at a time. Errors: -EROFS, -EIO, SHORE_ELINK: then the
 * table can only be closed. */
int shore_table_commit(struct shore_table *table, struct shore_diag *diag);

/* The fleet that it lies on: for shore_fleet_ledger(), shore_fleet_drive_describe() and, after SHORE_ELINK,
 * shore_fleet_reconnect(). Ownership: the table's. */
struct shore_fleet *shore_table_fleet(struct shore_table *table);

#ifdef __cplusplus
}
#endif

#endif
