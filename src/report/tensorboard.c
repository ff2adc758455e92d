/* An event file is a list of records (tensorflow/core/lib/io/record_writer.h), each with an Event
 * (tensorflow/core/util/event.proto) in the encoding of protocol buffers. */
#include "report/tensorboard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/units.h"
#include "files/atomic.h"
#include "files/json.h"

/* ---- protocol buffers -------------------------------------------------------------------------------------------- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* how a field is stored */
enum { MESSAGE_MOST = 512 };

struct message {
    unsigned char data[MESSAGE_MOST];
    size_t bytes;
};

static void put_varint(struct message *m, uint64_t value) {
    for (; value >= 0x80; value >>= 7)
        m->data[m->bytes++] = (unsigned char)(value | 0x80);
    m->data[m->bytes++] = (unsigned char)value;
}

static void put_number(struct message *m, unsigned field, uint64_t value) {
    put_varint(m, field << 3 | VARINT);
    put_varint(m, value);
}

static void put_double(struct message *m, unsigned field, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_varint(m, field << 3 | FIXED64);
    shore__put_u64(m->data + m->bytes, bits);
    m->bytes += 8;
}

static void put_float(struct message *m, unsigned field, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_varint(m, field << 3 | FIXED32);
    shore__put_u32(m->data + m->bytes, bits);
    m->bytes += 4;
}

static void put_bytes(struct message *m, unsigned field, const void *data, size_t bytes) {
    put_varint(m, field << 3 | BYTES);
    put_varint(m, bytes);
    memcpy(m->data + m->bytes, data, bytes);
    m->bytes += bytes;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION_LOG = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2 };
enum { LOG_STATUS = 1, STATUS_START = 1 };

static struct message event_of(uint64_t step) {
    struct message e = {.bytes = 0};
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    put_double(&e, EVENT_WALL_TIME, (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
    put_number(&e, EVENT_STEP, step);
    return e;
}

static void put_value(struct message *summary, const char *tag, double value) {
    struct message v = {.bytes = 0};
    put_bytes(&v, VALUE_TAG, tag, strlen(tag));
    put_float(&v, VALUE_SIMPLE, (float)value);
    put_bytes(summary, SUMMARY_VALUE, v.data, v.bytes);
}

/* By the names that metrics.jsonl has. */
static struct message event_of_step(const struct shore_step_report *r) {
    struct message e = event_of(r->step), summary = {.bytes = 0};
    put_value(&summary, "loss", r->loss);
    if (!isnan(r->val_loss)) put_value(&summary, "val_loss", isfinite(r->val_loss) ? r->val_loss : NAN);
    put_value(&summary, "grad_norm", r->grad_norm);
    put_value(&summary, "lr", r->lr);
    if (r->tokens && r->step_seconds > 0) put_value(&summary, "tokens_per_second", (double)r->tokens / r->step_seconds);
    put_bytes(&e, EVENT_SUMMARY, summary.data, summary.bytes);
    return e;
}

/* ---- records ----------------------------------------------------------------------------------------------------- */

/* CRC-32C, rotated and moved, as records have it. */
static uint32_t masked_crc(const unsigned char *data, size_t bytes) {
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

static int put_record(struct shore__tensorboard *b, const struct message *m, struct shore_diag *diag) {
    unsigned char record[MESSAGE_MOST + 16];
    shore__put_u64(record, m->bytes);
    shore__put_u32(record + 8, masked_crc(record, 8));
    memcpy(record + 12, m->data, m->bytes);
    shore__put_u32(record + 12 + m->bytes, masked_crc(m->data, m->bytes));
    int rc = shore__write_at(b->fd, record, m->bytes + 16, b->bytes, b->path.text, diag);
    if (!rc) b->bytes += m->bytes + 16;
    return rc;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

int shore__tensorboard_settle(char **directory, struct shore_diag *diag) {
    struct shore__atomic file;
    struct shore_diag why;
    if (!*directory) return 0;
    const struct shore__shown shown = shore__shown(*directory);
    if (strcmp(*directory, "none") == 0) {
        free(*directory);
        *directory = NULL;
        return 0;
    }
    char *whole = realpath(*directory, NULL), *above = whole ? NULL : strdup(*directory), *name = strdup(*directory);
    char *parent = above ? realpath(dirname(above), NULL) : NULL;
    if (parent && name) whole = shore__path_join(parent, basename(name));
    int rc = whole ? 0
             : errno == ENOENT
                 ? shore__fail(diag, SHORE_EUSAGE,
                               "%s: the directory for TensorBoard cannot be made: the one that is to hold "
                               "it does not exist",
                               shown.text)
                 : shore__fail_errno(diag, shown.text, "cannot be resolved");
    if (!rc && !shore__json_holds(whole))
        rc = shore__fail(diag, SHORE_EUSAGE, "%s: is not UTF-8, so that run.json cannot record it", shown.text);
    int made = rc ? rc : shore__atomic_unnamed(parent ? parent : whole, &file, &why);
    if (!rc && made)
        rc = shore__fail(diag, SHORE_EUSAGE, "%s: no event file of TensorBoard can be made there: %s", shown.text,
                         strerror(-made));
    if (!made) shore__atomic_abort(&file);
    free(name);
    free(above);
    free(parent);
    free(rc ? whole : *directory);
    if (!rc) *directory = whole;
    return rc;
}

#define EVENT_FILES "events.out.tfevents."

static int is_event_file(const struct dirent *entry) {
    return strncmp(entry->d_name, EVENT_FILES, sizeof EVENT_FILES - 1) == 0;
}

bool shore__tensorboard_is_used(const char *directory) {
    struct dirent **entries = NULL;
    int n = scandir(directory, &entries, is_event_file, NULL);
    for (int i = 0; i < n; i++)
        free(entries[i]);
    free(entries);
    return n > 0;
}

/* TensorBoard reads files in the order of their names, and drops what earlier ones have from a start's step on. */
static int make_file(struct shore__tensorboard *b, uint64_t step, struct shore_diag *diag) {
    char host[65] = "localhost", name[160];
    int n = 0, fd = -1;
    gethostname(host, sizeof host - 1);
    if (mkdir(b->directory, 0777) < 0 && errno != EEXIST)
        return shore__fail_errno(diag, b->directory, "the directory cannot be made");
    do {
        snprintf(name, sizeof name, EVENT_FILES "%010lld.%s.%d.%d", (long long)time(NULL), host, (int)getpid(), n++);
        b->path = shore__path_in(b->directory, name);
        fd = open(b->path.text, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EEXIST && n < 1000);
    if (fd < 0) return shore__fail_errno(diag, b->path.text, "cannot be made");
    struct message version = event_of(0), start = event_of(step), log = {.bytes = 0};
    put_bytes(&version, EVENT_FILE_VERSION, "brain.Event:2", 13);
    put_number(&log, LOG_STATUS, STATUS_START);
    put_bytes(&start, EVENT_SESSION_LOG, log.data, log.bytes);
    b->fd = fd;
    int rc = put_record(b, &version, diag);
    if (!rc) rc = put_record(b, &start, diag);
    if (!rc) return 0;
    unlink(b->path.text);
    close(fd);
    b->bytes = 0;
    return rc;
}

int shore__tensorboard_add(struct shore__tensorboard *b, const struct shore_step_report *report,
                           struct shore_diag *diag) {
    int rc = b->bytes ? 0 : make_file(b, report->step, diag);
    if (rc) return rc;
    struct message event = event_of_step(report);
    rc = put_record(b, &event, diag);
    if (rc && ftruncate(b->fd, (off_t)b->bytes)) /* a torn record would hide those after it */
        shore__tensorboard_close(b);
    return rc;
}

void shore__tensorboard_close(struct shore__tensorboard *b) {
    if (b->bytes) close(b->fd);
    b->bytes = 0;
}
