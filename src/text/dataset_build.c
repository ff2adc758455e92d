#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/units.h"
#include "text/dataset.h"
#include "text/reader.h"
#include "text/rows.h"
#include "text/utf8.h"

#define LLMC_HEADER_BYTES 1024u

static void say_alike(const struct shore__reader *r, const struct shore__alike *alike) {
    char text[1024], others[48] = "";
    if (!alike->count) return;
    if (alike->count > 1) snprintf(others, sizeof others, " (and %zu like it)", alike->count - 1);
    snprintf(text, sizeof text, "%.300s%s: %s", alike->first, others, alike->what);
    r->how->note(r->how->note_ctx, text);
}

static void say_of_files(const struct shore__reader *r) {
    char text[sizeof r->first_bad.text + 128];
    if (!r->how->note) return;
    say_alike(r, &r->records);
    say_alike(r, &r->tables);
    say_alike(r, &r->both);
    shore__counted_say(r->counted);
    if (!r->bad_rows) return;
    snprintf(text, sizeof text, "%llu of %llu rows bad and skipped, the first: %s", (unsigned long long)r->bad_rows,
             (unsigned long long)r->rows, r->first_bad.text);
    r->how->note(r->how->note_ctx, text);
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

struct text_check {
    struct shore__utf8_state state;
    unsigned char first; /* first byte of the current character */
    uint64_t offset;     /* offset of the current character */
    uint64_t seen;       /* bytes read */
};

/* Refuses text that is not UTF-8. Any bytes could be encoded, and later nothing would tell a photograph from a book. A
 * last character that is cut off passes, as `head -c` leaves it. */
static int check_text(const struct shore__reader *r, struct text_check *c, const char *text, size_t bytes,
                      struct shore_diag *diag) {
    for (size_t at = 0; at < bytes; at++) {
        if (!c->state.more) at += shore__ascii_bytes(text + at, bytes - at);
        if (at == bytes) break;
        unsigned char byte = (unsigned char)text[at];
        if (!c->state.more) {
            c->first = byte;
            c->offset = c->seen + at;
        }
        if (!byte || !shore__utf8_next(&c->state, byte))
            return shore__fail(diag, SHORE_EINPUT,
                               "%s: is not UTF-8 text: byte %llu%s is 0x%02x; convert it (iconv -t UTF-8), or give "
                               "tokens of llm.c a name in .bin",
                               r->file->path, (unsigned long long)c->offset,
                               shore__unpack_packed(r->input) ? " of what is unpacked" : "", c->first);
    }
    c->seen += bytes;
    return 0;
}

/* Length of the byte order mark, which editors on Windows put before a text. */
static size_t byte_order_mark(const char *text, size_t bytes) {
    return bytes >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3) ? 3 : 0;
}

/* Refuses what has no rows where each is a sequence. */
static int refuse_joined(const struct shore__reader *r, struct shore_diag *diag) {
    if (!r->how->row_tokens) return 0;
    return shore__fail(diag, SHORE_EUSAGE,
                       "%s: has no rows of which each could be a sequence; rows are in .jsonl, .ndjson and .json",
                       r->file->path);
}

static int read_text(struct shore__reader *r, const char *advice, struct shore_diag *diag) {
    struct text_check check = {.seen = 0};
    size_t n;
    if (advice) shore__count_alike(r, &r->tables, advice);
    if (r->held && shore__rows_are_in(r->block, r->held))
        shore__count_alike(
            r, &r->records,
            "looks like records of JSON, and is read as text, with all its braces and keys; if its name ended in "
            ".jsonl or .json, it would be read record by record");
    int rc = refuse_joined(r, diag);
    if (rc == 0) rc = shore__token_writer_begin_document(r->writer, diag);
    while (rc == 0 && (rc = shore__reader_block(r, &n, diag)) == 0 && n > 0) {
        size_t mark = check.seen ? 0 : byte_order_mark(r->block, n);
        rc = check_text(r, &check, r->block, n, diag);
        if (rc == 0) rc = shore__token_writer_feed(r->writer, r->block + mark, n - mark, diag);
    }
    if (rc == 0) shore__token_writer_end_document(r->writer);
    return rc;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static int put_tokens(struct shore__reader *r, const char *block, size_t bytes, size_t width, bool first,
                      struct shore_diag *diag) {
    uint32_t ids[1024];
    int rc = 0;
    for (size_t at = 0; rc == 0 && at + width <= bytes; first = false) {
        size_t n = 0;
        for (; n < sizeof ids / sizeof *ids && at + width <= bytes; at += width) {
            const unsigned char *p = (const unsigned char *)block + at;
            ids[n++] = width == 2 ? shore__get_u16(p) : shore__get_u32(p);
        }
        rc = shore__token_writer_tokens(r->writer, ids, n, first, diag);
    }
    return rc;
}

static int check_length(const struct shore__reader *r, uint64_t bytes, uint64_t count, uint64_t width,
                        struct shore_diag *diag) {
    if (bytes == LLMC_HEADER_BYTES + count * width) return 0;
    return shore__fail(diag, SHORE_EINPUT, "%s: has %llu bytes, but its header says %llu tokens of %u bytes",
                       r->file->path, (unsigned long long)bytes, (unsigned long long)count, (unsigned)width);
}

/* Reads llm.c's token files (github.com/karpathy/llm.c, dev/data/data_common.py). */
static int read_tokens(struct shore__reader *r, struct shore_diag *diag) {
    const unsigned char *header = (const unsigned char *)r->block;
    if (r->held < LLMC_HEADER_BYTES)
        return shore__fail(
            diag, SHORE_EINPUT,
            "%s: has %zu bytes, less than the header of llm.c's token files; give text another name than "
            ".bin",
            r->file->path, r->held);
    uint32_t magic = shore__get_u32(header), version = shore__get_u32(header + 4);
    uint64_t count = shore__get_u32(header + 8), width = magic == 20240520 ? 2 : 4, bytes = 0;
    if (magic != 20240520 && magic != 20240801)
        return shore__fail(diag, SHORE_EINPUT,
                           "%s: is not a token file of llm.c (magic number %u); give text another name than .bin",
                           r->file->path, magic);
    if (version != 1 && version != 7)
        return shore__fail(diag, SHORE_EINPUT, "%s: has version %u of llm.c's format; 1 and 7 are known", r->file->path,
                           version);
    int rc = refuse_joined(r, diag);
    if (rc == 0 && r->file->bytes && !shore__unpack_packed(r->input)) /* refuse it early, where its size is known */
        rc = check_length(r, r->file->bytes, count, width, diag);
    size_t n;
    while (rc == 0 && (rc = shore__reader_block(r, &n, diag)) == 0 && n > 0) {
        size_t skip = bytes ? 0 : LLMC_HEADER_BYTES;
        rc = put_tokens(r, r->block + skip, n - skip, width, bytes == 0, diag);
        bytes += n;
    }
    return rc ? rc : check_length(r, bytes, count, width, diag);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static int refuse_foreign(const struct shore__reader *r, const char *advice, struct shore_diag *diag) {
    return shore__fail(diag, SHORE_EINPUT, "%s: %s", r->file->path, advice);
}

/* Limit of Zstandard's window, which is taken in addition to other memory: a quarter of the budget, and never less than
 * `zstd -19` needs. */
static uint64_t window_bytes(const struct shore__reading *how) {
    const uint64_t least = 8u << 20;
    if (!how->memory_bytes) return 0;
    return how->memory_bytes / 4 > least ? how->memory_bytes / 4 : least;
}

static int read_file(struct shore__reader *r, const struct shore__data_file *file, struct shore_diag *diag) {
    const char *advice;
    enum shore__data_kind kind = shore__data_kind_of(file->path, &advice, NULL);
    r->file = file;
    shore__token_writer_source(r->writer, file->path, 0);
    if (kind == SHORE__DATA_FOREIGN) return refuse_foreign(r, advice, diag);
    int rc = shore__unpack_open(file->path, window_bytes(r->how), shore__reader_report, r, &r->input, diag);
    size_t n = 0;
    if (rc == 0) rc = shore__reader_block(r, &n, diag);
    r->held = n;
    const char *foreign = rc == 0 && kind != SHORE__DATA_TOKENS ? shore__data_foreign(r->block, n) : NULL;
    if (foreign) rc = refuse_foreign(r, foreign, diag);
    if (rc == 0)
        rc = kind == SHORE__DATA_TOKENS  ? read_tokens(r, diag)
             : kind == SHORE__DATA_LINES ? shore__read_rows(r, true, diag)
             : kind == SHORE__DATA_JSON  ? shore__read_rows(r, false, diag)
                                         : read_text(r, advice, diag);
    shore__unpack_close(r->input);
    r->input = NULL;
    r->held = 0;
    r->done_bytes += file->bytes;
    return rc;
}

/* Ends the part of a mixture behind its last file. */
static int end_part(struct shore__reader *r, const struct shore__data_files *files, size_t i, struct shore_diag *diag) {
    uint64_t *ends = r->how->ends;
    size_t name = files->file[i].name;
    if (!ends || (i + 1 < files->count && files->file[i + 1].name == name)) return 0;
    int rc = shore__token_writer_part(r->writer, &ends[name], diag);
    if (rc || ends[name] > (name ? ends[name - 1] : 0)) return rc;
    return shore__fail(diag, SHORE_EINPUT, "%s: the data is empty: not one token is in it", files->file[i].path);
}

/* Adds to an error which rows are not in what was read. */
static void say_what_went(const struct shore__reader *r, struct shore_diag *diag) {
    char skipped[64] = "", left_out[800];
    shore__counted_left_out(r->counted, left_out, sizeof left_out);
    if (r->bad_rows)
        snprintf(skipped, sizeof skipped, "; %llu bad row%s been skipped", (unsigned long long)r->bad_rows,
                 r->bad_rows == 1 ? " has" : "s have");
    shore__fail_of(diag, SHORE_EINPUT, diag, "%s%s%s", diag->text, left_out, skipped);
}

static int read_all(struct shore__reader *r, const struct shore__data_files *files, const char *first,
                    struct shore__dataset_stats *stats, struct shore_diag *diag) {
    int rc = 0;
    r->total_bytes = files->total_bytes;
    for (size_t i = 0; rc == 0 && i < files->count; i++) {
        rc = read_file(r, &files->file[i], diag);
        if (rc == 0) rc = end_part(r, files, i, diag);
    }
    r->file = NULL;
    if (rc == 0) say_of_files(r);
    if (rc == 0) rc = shore__reader_report(r, diag);
    if (rc == 0) rc = shore__token_writer_finish(r->writer, first, stats, diag);
    if (rc == SHORE_EINPUT && diag) say_what_went(r, diag);
    if (rc == 0 && stats) stats->bad_rows = r->bad_rows;
    return rc;
}

/* Builds into file, and takes it over. */
static int build(const char *const *names, size_t nnames, const struct shore__reading *how,
                 struct shore__tokenizer *tokenizer, uint32_t vocab, struct shore__atomic *file,
                 struct shore__dataset_stats *stats, struct shore_diag *diag) {
    struct shore__data_files files;
    struct shore__reader r = {.how = how, .tokenizer = tokenizer};
    int rc = shore__data_files_find(names, nnames, how->note, how->note_ctx, &files, diag);
    if (rc) {
        shore__atomic_abort(file);
        return rc;
    }
    rc = shore__token_writer_open(tokenizer, how, vocab, file, &r.writer, diag);
    r.block = malloc(SHORE__READER_BLOCK_BYTES);
    if (rc == 0 && !r.block) rc = shore__out_of_memory(diag);
    if (rc == 0) rc = read_all(&r, &files, nnames ? names[0] : "no file", stats, diag);
    shore__counted_close(r.counted);
    shore__token_writer_close(r.writer);
    shore__data_files_free(&files);
    free(r.block);
    return rc;
}

int shore__dataset_build(const char *const *names, size_t nnames, const struct shore__reading *how,
                         struct shore__tokenizer *tokenizer, uint32_t vocab, const char *path,
                         struct shore__dataset_stats *stats, struct shore_diag *diag) {
    struct shore__atomic file;
    int rc = shore__atomic_open(path, &file, diag);
    return rc ? rc : build(names, nnames, how, tokenizer, vocab, &file, stats, diag);
}

int shore__dataset_build_unnamed(const char *const *names, size_t nnames, const struct shore__reading *how,
                                 struct shore__tokenizer *tokenizer, uint32_t vocab, const char *directory,
                                 struct shore__dataset **out, struct shore_diag *diag) {
    struct shore__atomic file;
    int rc = shore__atomic_unnamed(directory, &file, diag);
    if (rc) return rc;
    int fd = fcntl(file.fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        rc = shore__fail_errno(diag, directory, "cannot open it again");
        shore__atomic_abort(&file);
        return rc;
    }
    rc = build(names, nnames, how, tokenizer, vocab, &file, NULL, diag);
    if (rc == 0) return shore__dataset_take(fd, directory, 0, 0, out, diag);
    close(fd);
    return rc;
}
