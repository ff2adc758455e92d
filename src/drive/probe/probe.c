#include "drive/probe/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/fields.h"
#include "base/units.h"
#include "drive/placement.h"
#include "drive/remote/transport.h"
#include "drive/remote/wire_open.h"

/* ---- here -------------------------------------------------------------------------------------------------------- */

uint64_t shore__drive_device(const char *path) {
    struct stat st;
    if (stat(path, &st) == 0) return S_ISREG(st.st_mode) ? st.st_dev : 0;
    char *directory = strdup(path), *slash = directory ? strrchr(directory, '/') : NULL;
    if (slash) slash[slash == directory] = '\0';
    bool found = directory && stat(slash ? directory : ".", &st) == 0;
    free(directory);
    return found ? st.st_dev : 0;
}

int shore__drive_examine(const char *volume, struct stat *st, bool *exists, struct shore_diag *diag) {
    *exists = stat(volume, st) == 0;
    if (*exists || errno == ENOENT || errno == ENOTDIR) return 0;
    int code = -errno;
    return shore__fail(diag, code, "%s: cannot be examined: %s", volume, shore_error_text(code));
}

static int look_into(struct shore__probe *p, struct shore_diag *diag) {
    struct shore__volume v;
    if (shore__volume_peek(p->path, &v, &p->trouble)) return 0;
    p->is_volume = true;
    p->size_bytes = v.size_bytes;
    shore__volume_recovery(&v, &p->recovery);
    p->desc = v.desc;
    p->desc.extents = NULL;
    p->desc.identity = malloc((size_t)v.desc.identity_bytes + 1);
    if (p->desc.identity) memcpy((void *)p->desc.identity, v.desc.identity, v.desc.identity_bytes);
    shore__volume_close(&v);
    return p->desc.identity ? 0 : shore__fail(diag, -ENOMEM, "out of memory");
}

/* Whether somebody uses the file. Processes that only look hold the lock for a moment, as this does, and do not count.
 */
static bool is_locked(int fd) {
    const struct timespec moment = {.tv_nsec = 5 * 1000 * 1000};
    for (int tries = 40; flock(fd, LOCK_EX | LOCK_NB); tries--) {
        if (errno != EWOULDBLOCK || tries == 0) return errno == EWOULDBLOCK;
        nanosleep(&moment, NULL);
    }
    return false;
}

int shore__file_probe(const char *path, struct shore__probe *p, struct shore_diag *diag) {
    struct stat st;
    int rc = shore__volume_path(path, &p->path, diag);
    if (rc) return rc;
    p->in_directory = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    p->capacity_bytes = shore__drive_capacity_bytes(path);
    p->device = shore__drive_device(p->path);
    rc = shore__drive_examine(p->path, &st, &p->exists, diag);
    if (rc) shore__probe_free(p);
    if (!rc && !p->exists) shore__file_may_be_made(path, &p->trouble);
    if (rc || !p->exists) return rc;
    p->is_device = S_ISBLK(st.st_mode);
    int fd = open(p->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* does not wait for a pipe */
    if (fd >= 0) {
        p->busy = is_locked(fd);
        close(fd);
    }
    rc = look_into(p, diag);
    if (rc) shore__probe_free(p);
    return rc;
}

int shore__probe_may_be_made(const struct shore__address *at, const struct shore__probe *p, struct shore_diag *diag) {
    if (p->exists || !p->trouble.text[0]) return 0;
    bool remote = at->kind->served; /* the far side does not name it */
    return shore__fail(diag, SHORE_EUSAGE, "%s%s%s", remote ? at->text : "", remote ? ": " : "", p->trouble.text);
}

/* ---- on the wire ------------------------------------------------------------------------------------------------- */

enum { THERE = 1, VOLUME = 2, IN_USE = 8, DEVICE = 16, DIRECTORY = 32 };
enum { PATH, IDENTITY, RECOVERY, TROUBLE, PARTS };

/* The answer of PROBE: these fields, the volume's, then its parts. */
struct answer {
    uint32_t flags, nextents, bytes[PARTS];
    uint64_t capacity_bytes, device, size_bytes;
};
static const struct shore__field answer_fields[] = {
    SHORE__FIELD(struct answer, flags, 4),
    SHORE__FIELD(struct answer, capacity_bytes, 8),
    SHORE__FIELD(struct answer, device, 8),
    SHORE__FIELD(struct answer, size_bytes, 8),
    SHORE__FIELD(struct answer, nextents, 4),
    SHORE__FIELD_ARRAY(struct answer, bytes),
    SHORE__FIELDS_END,
};
#define FIXED_BYTES (48u + SHORE__WIRE_VOLUME_BYTES)

unsigned char *shore__probe_put(const struct shore__probe *p, uint32_t *bytes) {
    unsigned char recovery[SHORE__WIRE_RECOVERY_BYTES];
    const void *const part[PARTS] = {p->path, p->desc.identity, recovery, p->trouble.text};
    const struct answer a = {
        .flags = (p->exists ? THERE : 0u) | (p->is_volume ? VOLUME : 0u) | (p->busy ? IN_USE : 0u) |
                 (p->is_device ? DEVICE : 0u) | (p->in_directory ? DIRECTORY : 0u),
        .nextents = p->desc.nextents,
        .bytes = {p->path ? (uint32_t)strlen(p->path) : 0, p->desc.identity_bytes,
                  p->is_volume ? shore__wire_recovery_put(recovery, &p->recovery) : 0,
                  (uint32_t)strlen(p->trouble.text)},
        .capacity_bytes = p->capacity_bytes,
        .device = p->device,
        .size_bytes = p->size_bytes,
    };
    *bytes = FIXED_BYTES;
    for (int i = 0; i < PARTS; i++)
        *bytes += a.bytes[i];
    unsigned char *out = malloc(*bytes), *at = out ? shore__fields_put(out, answer_fields, &a) : NULL;
    if (!out) return NULL;
    shore__wire_volume_put(at, &p->desc);
    at += SHORE__WIRE_VOLUME_BYTES;
    for (int i = 0; i < PARTS; at += a.bytes[i++])
        if (a.bytes[i]) memcpy(at, part[i], a.bytes[i]);
    return out;
}

bool shore__probe_get(const unsigned char *in, uint32_t bytes, struct shore__probe *out) {
    const unsigned char *part[PARTS], *end = in + bytes;
    struct answer a;
    *out = (struct shore__probe){0};
    const unsigned char *volume = shore__fields_get(in, end, answer_fields, &a);
    if (bytes < FIXED_BYTES || !volume) return false;
    const unsigned char *at = volume + SHORE__WIRE_VOLUME_BYTES;
    for (int i = 0; i < PARTS; at += a.bytes[i++]) {
        part[i] = at;
        if (a.bytes[i] > (size_t)(end - at)) return false;
    }
    if (at != end || memchr(part[PATH], 0, a.bytes[PATH]) || a.bytes[IDENTITY] > SHORE__IDENTITY_BYTES ||
        a.bytes[TROUBLE] >= sizeof out->trouble.text || memchr(part[TROUBLE], 0, a.bytes[TROUBLE]))
        return false;
    out->exists = a.flags & THERE;
    out->is_volume = a.flags & VOLUME;
    out->busy = a.flags & IN_USE;
    out->is_device = a.flags & DEVICE;
    out->in_directory = a.flags & DIRECTORY;
    out->capacity_bytes = a.capacity_bytes;
    out->device = a.device;
    out->size_bytes = a.size_bytes;
    if (out->is_volume && (!shore__wire_volume_get(volume, &out->desc) ||
                           !shore__wire_recovery_get(part[RECOVERY], a.bytes[RECOVERY], &out->recovery)))
        return false;
    out->desc.nextents = a.nextents;
    memcpy(out->trouble.text, part[TROUBLE], a.bytes[TROUBLE]);
    out->path = strndup((const char *)part[PATH], a.bytes[PATH]);
    out->desc.identity_bytes = a.bytes[IDENTITY];
    out->desc.identity = malloc((size_t)a.bytes[IDENTITY] + 1);
    if (!out->path || !out->desc.identity) {
        shore__probe_free(out);
        return false;
    }
    memcpy((void *)out->desc.identity, part[IDENTITY], a.bytes[IDENTITY]);
    return true;
}

void shore__probe_free(struct shore__probe *p) {
    free(p->path);
    free((void *)p->desc.identity);
    *p = (struct shore__probe){0};
}

/* ---- there ------------------------------------------------------------------------------------------------------- */

/* A connection without an open drive. */
struct talk {
    const struct shore__address *at;
    struct shore__way way;
    unsigned char *body; /* of the answer */
    size_t room;
};

static int talk_open(const struct shore__address *at, struct talk *t, struct shore_diag *diag) {
    *t = (struct talk){.at = at};
    return shore__way_open(at, &t->way, diag);
}

static void talk_close(struct talk *t) {
    free(t->body);
    shore__way_close(&t->way);
}

static int talk_send(struct talk *t, struct shore__wire_request r, uint64_t id, struct shore_diag *why) {
    if (r.tail_bytes > SHORE__WIRE_BODY_BYTES - SHORE__WIRE_FIELDS_BYTES)
        return shore__fail(why, -E2BIG, "a request does not fit a frame");
    unsigned char *request = malloc(SHORE__WIRE_FIELDS_BYTES + r.tail_bytes);
    if (!request) return shore__fail(why, -ENOMEM, "out of memory");
    shore__wire_request_put(request, &r);
    memcpy(request + SHORE__WIRE_FIELDS_BYTES, r.tail, r.tail_bytes);
    struct shore__frame frame = {
        .type = r.type, .id = id, .body = request, .body_bytes = SHORE__WIRE_FIELDS_BYTES + r.tail_bytes};
    int rc = shore__conn_send(&t->way.conn, &frame, why);
    free(request);
    return rc;
}

/* rc: the result of sending. The answer points into t->body. */
static int talk_answer(struct talk *t, int rc, struct shore__wire_answer *a, struct shore_diag *why,
                       struct shore_diag *diag) {
    struct shore__wire_header h;
    shore__conn_expect(&t->way.conn);
    do {
        if (!rc) rc = shore__conn_receive(&t->way.conn, false, &h, &t->body, &t->room, why);
        if (!rc) rc = shore__conn_gets_on(&t->way.conn, &h, why);
    } while (!rc && h.type != SHORE__WIRE_DONE);
    if (!rc) rc = shore__wire_answer_get(&h, t->body, a, why);
    if (rc) return shore__way_explain(t->at, &t->way, rc, why, diag);
    if (a->rc) return shore__wire_answer_fail(a, t->at->text, diag);
    return 0;
}

/* Sends a request whose tail is r's, then the path. */
static int talk_ask(struct talk *t, struct shore__wire_request r, struct shore__wire_answer *a,
                    struct shore_diag *diag) {
    struct shore_diag why = {0};
    size_t path_bytes = strlen(t->at->path);
    unsigned char *tail = malloc(r.tail_bytes + path_bytes + 1);
    int rc = tail ? 0 : shore__fail(&why, -ENOMEM, "out of memory");
    if (tail && r.tail_bytes) memcpy(tail, r.tail, r.tail_bytes);
    if (tail) memcpy(tail + r.tail_bytes, t->at->path, path_bytes);
    r.tail = tail;
    r.tail_bytes += (uint32_t)path_bytes;
    if (!rc) rc = talk_send(t, r, 1, &why);
    free(tail);
    return talk_answer(t, rc, a, &why, diag);
}

static int not_understood(const struct talk *t, struct shore_diag *diag) {
    return shore__fail(diag, SHORE_ELINK, "%s: its answer cannot be understood", t->at->text);
}

int shore__remote_probe(const struct shore__address *at, struct shore__probe *out, struct shore_diag *diag) {
    struct talk t;
    struct shore__wire_answer a = {0};
    int rc = talk_open(at, &t, diag);
    if (rc) return rc;
    rc = talk_ask(&t, (struct shore__wire_request){.type = SHORE__WIRE_PROBE}, &a, diag);
    if (!rc && !shore__probe_get(a.result, a.result_bytes, out)) rc = not_understood(&t, diag);
    talk_close(&t);
    return rc;
}

int shore__remote_remove(const struct shore__address *at, const uint64_t fleet_id[2], uint64_t generation, bool begun,
                         struct shore_diag *diag) {
    struct talk t;
    struct shore__wire_answer a = {0};
    unsigned char id[16];
    struct shore__wire_request r = {.type = SHORE__WIRE_REMOVE,
                                    .era = generation,
                                    .flags = begun ? SHORE__WIRE_BEGUN : 0,
                                    .tail = id,
                                    .tail_bytes = sizeof id};
    shore__put_u64(id, fleet_id[0]);
    shore__put_u64(id + 8, fleet_id[1]);
    int rc = talk_open(at, &t, diag);
    if (rc) return rc;
    rc = talk_ask(&t, r, &a, diag);
    talk_close(&t);
    return rc;
}

/* ---- how fast it is ---------------------------------------------------------------------------------------------- */

#define LINK_FRAMES_LEAST 16u
#define LINK_FRAMES_MOST 4096u
#define LINK_NS_LEAST 200000000u

/* Enough bytes to take a while; the first ones include the connection's start. */
static int measure_link(struct talk *t, uint64_t *speed, struct shore_diag *diag) {
    enum { TAIL_BYTES = SHORE__WIRE_BODY_BYTES - SHORE__WIRE_FIELDS_BYTES };
    unsigned char *tail = calloc(TAIL_BYTES, 1);
    struct shore__wire_request r = {
        .type = SHORE__WIRE_MEASURE, .kind = SHORE__WIRE_MEASURE_LINK, .tail = tail, .tail_bytes = TAIL_BYTES};
    struct shore__wire_answer a = {0};
    struct shore_diag why = {0};
    uint64_t ns = 0;
    int rc = tail ? 0 : shore__fail(diag, -ENOMEM, "out of memory");
    for (uint32_t n = 1; !rc && n <= LINK_FRAMES_MOST && (n <= LINK_FRAMES_LEAST || ns < LINK_NS_LEAST);
         n *= n == 1 ? LINK_FRAMES_LEAST : 2) {
        uint64_t start = shore__now_ns();
        for (uint32_t i = 0; !rc && i < n; i++)
            rc = talk_send(t, r, i + 1 == n, &why);
        rc = talk_answer(t, rc, &a, &why, diag);
        ns = shore__now_ns() - start;
        *speed = (uint64_t)((double)n * TAIL_BYTES * 1e9 / (double)(ns ? ns : 1));
    }
    free(tail);
    return rc;
}

int shore__remote_measure(const struct shore__address *at, uint64_t *drive, uint64_t *link, struct shore_diag *diag) {
    struct talk t;
    struct shore__wire_answer a = {0};
    int rc = talk_open(at, &t, diag);
    if (rc) return rc;
    rc = measure_link(&t, link, diag);
    if (!rc) rc = talk_ask(&t, (struct shore__wire_request){.type = SHORE__WIRE_MEASURE}, &a, diag);
    if (!rc && a.result_bytes != 8) rc = not_understood(&t, diag);
    if (!rc) *drive = shore__get_u64(a.result);
    talk_close(&t);
    return rc;
}
