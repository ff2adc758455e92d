#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/units.h"
#include "files/atomic.h"
#include "files/json_stream.h"
#include "text/dataset.h"
#include "text/token_writer.h"
#include "text/utf8.h"
#include "text/vector.h"

#define BLOCK_BYTES (256u << 10)
#define LINE_LIMIT_BYTES (16u << 20)
#define LLMC_HEADER_BYTES 1024u
#define WAIT_MS 100 /* between two looks at whether to stop */

struct build {
    struct shore__token_writer *writer;
    char *block;
    const struct shore__reading *how;
    uint64_t done_bytes, total_bytes;
    /* for messages */
    const char *source;
    uint64_t line; /* of JSONL; 0: not in a line */
};

static int refuse(const struct build *b, int rc, const char *why, struct shore_diag *diag) {
    if (!b->line) return shore__fail(diag, rc, "%s: %s", b->source, why);
    return shore__fail(diag, rc, "%s:%llu: %s", b->source, (unsigned long long)b->line, why);
}

static int report(struct build *b, struct shore_diag *diag) {
    if (b->how->progress && b->how->progress(b->how->progress_ctx, b->done_bytes, b->total_bytes))
        return shore__fail(diag, -ECANCELED, "%s: reading it was cancelled", b->source);
    return 0;
}

/* What a pipe's writer is slow with; for a named one, that a writer comes at all. */
static int wait_for_data(struct build *b, int fd, struct shore_diag *diag) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    int rc = 0;
    while (rc == 0 && poll(&ready, 1, WAIT_MS) <= 0)
        rc = report(b, diag);
    return rc;
}

static int read_block(struct build *b, int fd, size_t *bytes, struct shore_diag *diag) {
    *bytes = 0;
    while (*bytes < BLOCK_BYTES) {
        int rc = wait_for_data(b, fd, diag);
        if (rc) return rc;
        ssize_t n = read(fd, b->block + *bytes, BLOCK_BYTES - *bytes);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n < 0) return shore__fail(diag, -errno, "%s: cannot read it: %s", b->source, strerror(errno));
        if (n == 0) break;
        *bytes += (size_t)n;
    }
    b->done_bytes += *bytes;
    return report(b, diag);
}

struct text_check {
    unsigned char begun[4]; /* of a character that the next block goes on with */
    size_t nbegun;
    uint64_t offset; /* of the character that is looked at */
};

/* Bytes that s gives the character it begins or goes on with; 0: it is none of a text. */
static size_t check_char(struct text_check *c, const unsigned char *s, size_t bytes) {
    if (!c->nbegun && *s && *s < 0x80) return c->offset++, 1;
    size_t had = c->nbegun, n = sizeof c->begun - had < bytes ? sizeof c->begun - had : bytes;
    memcpy(c->begun + had, s, n);
    int length = *c->begun ? shore__utf8_check(c->begun, had + n) : -1;
    if (length < 0) return 0;
    c->nbegun = length ? 0 : had + n;
    c->offset += (size_t)length;
    return length ? (size_t)length - had : n;
}

/* Bytes become tokens whatever they are: nothing later would tell a photograph from a book. A last character that is
 * cut off passes, as `head -c` leaves it. */
static int check_text(struct build *b, struct text_check *c, const char *text, size_t bytes, struct shore_diag *diag) {
    for (size_t at = 0, n; at < bytes; at += n) {
        n = check_char(c, (const unsigned char *)text + at, bytes - at);
        if (!n)
            return shore__fail(
                diag, SHORE_EINPUT,
                "%s: is not UTF-8 text: byte %llu is 0x%02x; unpack it (gunzip), convert it (iconv -t UTF-8), or give "
                "tokens of llm.c a name in .bin",
                b->source, (unsigned long long)c->offset, *c->begun);
    }
    return 0;
}

/* Bytes of the mark that editors on Windows put before a text. */
static size_t byte_order_mark(const char *text, size_t bytes) {
    return bytes >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3) ? 3 : 0;
}

static int build_text(struct build *b, int fd, struct shore_diag *diag) {
    struct text_check check = {{0}, 0, 0};
    size_t n;
    int rc = shore__token_writer_begin_document(b->writer, diag);
    while (rc == 0 && (rc = read_block(b, fd, &n, diag)) == 0 && n > 0) {
        size_t mark = check.offset ? 0 : byte_order_mark(b->block, n);
        rc = check_text(b, &check, b->block, n, diag);
        if (rc == 0) rc = shore__token_writer_feed(b->writer, b->block + mark, n - mark, diag);
    }
    return rc ? rc : shore__token_writer_end_document(b->writer, diag);
}

struct line {
    struct build *build;
    bool is_text, had_text;
};

static int on_line_event(void *ctx, const struct shore__json_event *e, struct shore_diag *diag) {
    struct line *x = ctx;
    bool opens = e->kind == SHORE__JSON_OBJECT_OPEN || e->kind == SHORE__JSON_ARRAY_OPEN;
    if (e->depth == 0 || (e->depth == 1 && e->kind == SHORE__JSON_ARRAY_OPEN))
        return refuse(x->build, SHORE_EINPUT, "the line is not a JSON object", diag);
    if (e->depth == 2 && opens && x->is_text) return refuse(x->build, SHORE_EINPUT, "\"text\" is not a string", diag);
    if (e->depth != 1) return 0;
    if (e->kind == SHORE__JSON_KEY) {
        x->is_text = shore__json_event_is(e, "text");
        if (x->is_text && x->had_text) return refuse(x->build, SHORE_EINPUT, "\"text\" stands twice", diag);
        x->had_text |= x->is_text;
        return 0;
    }
    if (!x->is_text || e->kind == SHORE__JSON_OBJECT_OPEN || e->kind == SHORE__JSON_OBJECT_CLOSE) return 0;
    x->is_text = false;
    if (e->kind != SHORE__JSON_STRING) return refuse(x->build, SHORE_EINPUT, "\"text\" is not a string", diag);
    int rc = shore__token_writer_begin_document(x->build->writer, diag);
    if (rc == 0) rc = shore__token_writer_feed(x->build->writer, e->text, e->bytes, diag);
    return rc ? rc : shore__token_writer_end_document(x->build->writer, diag);
}

/* The value of the \uXXXX that text, which ends in a 0, begins with; otherwise 0. */
static unsigned escaped_unit(const char *text) {
    char digits[5] = "";
    if (text[0] != '\\' || text[1] != 'u') return 0;
    strncpy(digits, text + 2, 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? (unsigned)strtoul(digits, NULL, 16) : 0;
}

/* Escaped halves of surrogate pairs that stand alone become U+FFFD: yajl takes a first half and whatever is escaped
 * behind it for a pair, and gives a second half out as if it were a character. */
static void replace_lone_halves(char *line, size_t bytes) {
    char *end = line + bytes;
    for (char *at = line; at < end && (at = memchr(at, '\\', (size_t)(end - at)));) {
        unsigned unit = escaped_unit(at);
        bool first = unit >> 10 == 0xD800 >> 10, second = unit >> 10 == 0xDC00 >> 10;
        bool pair = first && escaped_unit(at + 6) >> 10 == 0xDC00 >> 10;
        if (!pair && (first || second)) memcpy(at + 2, "fffd", 4);
        at += pair ? 12 : unit ? 6 : 2;
    }
}

static int build_line(struct build *b, char *line, size_t bytes, struct shore_diag *diag) {
    struct line x = {.build = b};
    shore__token_writer_source(b->writer, b->source, ++b->line);
    size_t mark = b->line == 1 ? byte_order_mark(line, bytes) : 0;
    line += mark;
    bytes -= mark;
    if (bytes > 0 && line[bytes - 1] == '\r') bytes--;
    if (strspn(line, " \t") >= bytes) return 0;
    replace_lone_halves(line, bytes);
    int rc = shore__json_stream_text(line, bytes, b->source, b->line, on_line_event, &x, diag);
    return rc || x.had_text ? rc : refuse(b, SHORE_EINPUT, "the line has no \"text\" field", diag);
}

static int build_jsonl(struct build *b, int fd, struct shore_diag *diag) {
    struct shore__text line = {0};
    size_t n;
    int rc = 0;
    while (rc == 0 && (rc = read_block(b, fd, &n, diag)) == 0 && n > 0) {
        for (size_t at = 0; rc == 0 && at < n;) {
            char *end = memchr(b->block + at, '\n', n - at);
            size_t part = end ? (size_t)(end - b->block) - at : n - at;
            if (shore__text_append(&line, b->block + at, part) != 0)
                rc = shore__fail(diag, -ENOMEM, "%s: out of memory", b->source);
            at += part + (end != NULL);
            if (rc == 0 && line.count > LINE_LIMIT_BYTES)
                rc = shore__fail(diag, SHORE_EINPUT, "%s:%llu: the line is longer than %u bytes", b->source,
                                 (unsigned long long)b->line + 1, LINE_LIMIT_BYTES);
            if (rc || !end) continue;
            rc = shore__text_append(&line, "", 1);
            if (rc == 0) rc = build_line(b, line.bytes, line.count - 1, diag);
            line.count = 0;
        }
    }
    if (rc == 0 && line.count) {
        rc = shore__text_append(&line, "", 1);
        if (rc == 0) rc = build_line(b, line.bytes, line.count - 1, diag);
    }
    free(line.bytes);
    b->line = 0;
    return rc;
}

/* Of the block. */
static int put_tokens(struct build *b, size_t bytes, size_t width, bool first, struct shore_diag *diag) {
    uint32_t ids[1024];
    int rc = 0;
    for (size_t at = 0; rc == 0 && at + width <= bytes; first = false) {
        size_t n = 0;
        for (; n < sizeof ids / sizeof *ids && at + width <= bytes; at += width) {
            unsigned char *p = (unsigned char *)b->block + at;
            ids[n++] = width == 2 ? shore__get_u16(p) : shore__get_u32(p);
        }
        rc = shore__token_writer_tokens(b->writer, ids, n, first, diag);
    }
    return rc;
}

/* llm.c's token files (github.com/karpathy/llm.c, dev/data/data_common.py) */
static int build_bin(struct build *b, int fd, struct shore_diag *diag) {
    unsigned char header[LLMC_HEADER_BYTES];
    struct stat info;
    int rc = shore__read_at(fd, header, sizeof header, 0, b->source, diag);
    if (rc) return rc;
    uint32_t magic = shore__get_u32(header), version = shore__get_u32(header + 4);
    uint64_t count = shore__get_u32(header + 8), width = magic == 20240520 ? 2 : 4;
    if (magic != 20240520 && magic != 20240801)
        return shore__fail(diag, SHORE_EINPUT,
                           "%s: is not a token file of llm.c (magic number %u); give text another name than .bin",
                           b->source, magic);
    if (version != 1 && version != 7)
        return shore__fail(diag, SHORE_EINPUT, "%s: has version %u of llm.c's format; 1 and 7 are known", b->source,
                           version);
    if (fstat(fd, &info) != 0) return shore__fail(diag, -errno, "%s: cannot stat it: %s", b->source, strerror(errno));
    if ((uint64_t)info.st_size != LLMC_HEADER_BYTES + count * width)
        return shore__fail(diag, SHORE_EINPUT, "%s: has %lld bytes, but its header says %llu tokens of %u bytes",
                           b->source, (long long)info.st_size, (unsigned long long)count, (unsigned)width);
    if (lseek(fd, LLMC_HEADER_BYTES, SEEK_SET) < 0)
        return shore__fail(diag, -errno, "%s: cannot seek: %s", b->source, strerror(errno));
    b->done_bytes += LLMC_HEADER_BYTES;
    size_t n;
    bool first = true;
    while (rc == 0 && (rc = read_block(b, fd, &n, diag)) == 0 && n > 0) {
        rc = put_tokens(b, n, width, first, diag);
        first = false;
    }
    return rc;
}

static bool ends_in(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n > m && !strcasecmp(text + n - m, end);
}

static int build_file(struct build *b, const char *path, struct shore_diag *diag) {
    struct stat info;
    /* non-blocking, so that a pipe without a writer cannot hold us */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    b->source = path;
    shore__token_writer_source(b->writer, path, 0);
    if (fd < 0) {
        int code = errno;
        return shore__fail(diag, code == ENOENT ? SHORE_EMISSING : -code, "%s: cannot open it: %s", path,
                           strerror(code));
    }
    int rc = fstat(fd, &info) != 0 ? shore__fail(diag, -errno, "%s: cannot stat it: %s", path, strerror(errno))
             : S_ISCHR(info.st_mode)
                 ? shore__fail(diag, SHORE_EINPUT, "%s: is a device; give a file with text, or a pipe", path)
             : ends_in(path, ".jsonl") ? build_jsonl(b, fd, diag)
             : ends_in(path, ".bin")   ? build_bin(b, fd, diag)
                                       : build_text(b, fd, diag);
    close(fd);
    return rc;
}

int shore__dataset_build(const char *const *files, size_t nfiles, const struct shore__reading *how,
                         struct shore__tokenizer *tokenizer, uint32_t vocab, const char *path,
                         struct shore__dataset_stats *stats, struct shore_diag *diag) {
    struct build b = {.how = how};
    for (size_t i = 0; i < nfiles; i++) {
        struct stat info;
        if (stat(files[i], &info) != 0) {
            int code = errno;
            return shore__fail(diag, code == ENOENT ? SHORE_EMISSING : -code, "%s: cannot read it: %s", files[i],
                               strerror(code));
        }
        b.total_bytes += (uint64_t)info.st_size;
    }
    int rc = shore__token_writer_open(tokenizer, how->parse_special, vocab, path, &b.writer, diag);
    if (rc) return rc;
    b.block = malloc(BLOCK_BYTES);
    if (!b.block) rc = shore__fail(diag, -ENOMEM, "%s: out of memory", path);
    for (size_t i = 0; rc == 0 && i < nfiles; i++)
        rc = build_file(&b, files[i], diag);
    if (rc == 0) rc = shore__token_writer_finish(b.writer, nfiles ? files[0] : "no file", stats, diag);
    shore__token_writer_close(b.writer);
    free(b.block);
    return rc;
}
