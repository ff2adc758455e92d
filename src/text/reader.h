/* State that the readers of data share: the current file, and the writer they write to. Inside of text/. */
#ifndef SHORE_TEXT_READER_H
#define SHORE_TEXT_READER_H

#include "files/unpack.h"
#include "text/counted_rows.h"
#include "text/data_files.h"
#include "text/token_writer.h"

#define SHORE__READER_BLOCK_BYTES (256u << 10)

struct shore__reader {
    const struct shore__reading *how;
    const struct shore__tokenizer *tokenizer;
    struct shore__token_writer *writer;
    struct shore__counted *counted; /* NULL: no row needed it so far */
    const struct shore__data_file *file;
    struct shore__unpack *input;
    char *block;
    size_t held;                      /* bytes of the block that were inspected and are still to be read */
    uint64_t done_bytes, total_bytes; /* of the files before; of all files */
    uint64_t rows, bad_rows;
    struct shore_diag first_bad;
    struct shore__alike {
        const char *first, *what; /* the first such file; what the note says */
        size_t count;
    } records, tables, both; /* texts that look like records or tables; rows with a text and more */
};

/* Tells the progress. -ECANCELED: it said to stop. reader: a struct shore__reader, so that this is a shore__wait_fn. */
int shore__reader_report(void *reader, struct shore_diag *diag);
/* Reads the next block of the file, unpacked; 0 bytes: the end. */
int shore__reader_block(struct shore__reader *r, size_t *bytes, struct shore_diag *diag);
/* Counts a file with an oddity, so that one note covers thousands of them. */
void shore__count_alike(const struct shore__reader *r, struct shore__alike *alike, const char *what);
/* read_rows.c. The rest of the file as records. by_line: each line is one. */
int shore__read_rows(struct shore__reader *r, bool by_line, struct shore_diag *diag);

#endif
