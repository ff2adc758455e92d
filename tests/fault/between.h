/* Somebody between a client and a server of a drive, who counts what crosses, and spoils a frame of it. */
#ifndef SHORE_TESTS_BETWEEN_H
#define SHORE_TESTS_BETWEEN_H

#include "conformance/drive_harness.h"

#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>

#include "drive/remote/conn.h"
#include "drive/remote/remote.h"

enum fault {
    NONE,
    GARBAGE_FIRST, /* before the greeting: harmless */
    CUT_HEADER,
    CUT_BODY,
    FLIP_HEADER,
    FLIP_BODY,
    REPLAY,
    OUT_OF_ORDER,
    TOO_LONG,
    MUCH_BULK,
    OTHER_VERSION,
    UNKNOWN_TYPE,
    FOREIGN_ID,
    ERROR_WITH_DATA,
    POSITIVE_ERROR,
    LESS_DATA,
    SILENCE,
    FAULTS, /* that are noticed at once */
    STANDSTILL
};
/* What is said by the client if the server does it, and by the server if the client does; NULL: it is none there. */
static const struct {
    const char *name, *client, *server;
} faults[FAULTS] = {
    [NONE] = {"none", NULL, NULL},
    [GARBAGE_FIRST] = {"garbage first", NULL, NULL},
    [CUT_HEADER] = {"cut header", "has closed", "has closed"},
    [CUT_BODY] = {"cut body", "has closed", "has closed"},
    [FLIP_HEADER] = {"flip header", "a frame came damaged", "a frame came damaged"},
    [FLIP_BODY] = {"flip body", "a frame came damaged", "a frame came damaged"},
    [REPLAY] = {"replay", "replayed or out of order", "replayed or out of order"},
    [OUT_OF_ORDER] = {"out of order", "replayed or out of order", "replayed or out of order"},
    [TOO_LONG] = {"too long", "is too long", "is too long"},
    [MUCH_BULK] = {"much bulk", "is too long", "is too long"},
    [OTHER_VERSION] = {"another version", "not the beginning of a frame", "not the beginning of a frame"},
    [UNKNOWN_TYPE] = {"unknown type", "unknown type 999", "unknown type 999"},
    [FOREIGN_ID] = {"foreign id", "an answer", NULL},
    [ERROR_WITH_DATA] = {"error with data", "both an error and data", NULL},
    [POSITIVE_ERROR] = {"positive error", "invalid fields", NULL},
    [LESS_DATA] = {"less data", "an answer", "of type"},
    [SILENCE] = {"silence", "silent", "silent"},
};

#define FRAME_BYTES (4u << 20) /* more than any here has */

/* One direction: frames are read whole, one of them is spoiled, and passed on. */
struct pipe_end {
    int from, to;
    bool to_server;
    enum fault fault;
    unsigned at; /* which frame, from 0, signs of life aside */
    uint64_t bytes;
    pthread_t thread;
    atomic_uint alive; /* signs of life that went by */
};

static inline bool read_all(struct pipe_end *p, void *data, size_t bytes) {
    unsigned char *at = data;
    while (bytes) {
        ssize_t n = read(p->from, at, bytes);
        if (n <= 0) return false;
        p->bytes += (uint64_t)n;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

static inline bool write_all(struct pipe_end *p, const void *data, size_t bytes) {
    const unsigned char *at = data;
    while (bytes) {
        ssize_t n = send(p->to, at, bytes, MSG_NOSIGNAL);
        if (n <= 0) return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

/* The header is made anew, with a check that is right. */
static inline void header_again(unsigned char *frame, const struct shore__wire_header *h) {
    shore__wire_header_put(frame, h, frame + SHORE__WIRE_HEADER_BYTES);
}

/* false: the direction ends here. */
static inline bool spoil(struct pipe_end *p, unsigned char *frame, size_t bytes) {
    const size_t header = SHORE__WIRE_HEADER_BYTES;
    struct shore__wire_header h = {.type = shore__get_u16(frame + 4),
                                   .sequence = shore__get_u32(frame + 8),
                                   .body_bytes = shore__get_u32(frame + 12),
                                   .id = shore__get_u64(frame + 16),
                                   .bulk_bytes = shore__get_u64(frame + 24)};
    switch (p->fault) {
    case CUT_HEADER:
        write_all(p, frame, header / 2);
        return false;
    case CUT_BODY:
        write_all(p, frame, bytes - 1);
        return false;
    case FLIP_HEADER:
        frame[17] ^= 4;
        break;
    case FLIP_BODY:
        frame[header + h.body_bytes - 1] ^= 1;
        break;
    case REPLAY:
        if (!write_all(p, frame, bytes)) return false;
        break;
    case OUT_OF_ORDER:
        h.sequence += 2;
        header_again(frame, &h);
        break;
    case TOO_LONG:
        shore__put_u32(frame + 12, UINT32_C(0x7fffffff));
        break;
    case MUCH_BULK:
        h.bulk_bytes = UINT64_C(1) << 60;
        header_again(frame, &h);
        break;
    case OTHER_VERSION:
        frame[3] = '2';
        break;
    case UNKNOWN_TYPE:
        h.type = 999;
        header_again(frame, &h);
        break;
    case FOREIGN_ID:
        h.id += 1 << 16;
        header_again(frame, &h);
        break;
    case ERROR_WITH_DATA:
        shore__put_u32(frame + header, EIO);
        h.bulk_bytes = 4096;
        header_again(frame, &h);
        break;
    case POSITIVE_ERROR:
        shore__put_u32(frame + header, UINT32_C(0xFFFFFFF0));
        header_again(frame, &h);
        break;
    case LESS_DATA:
        h.bulk_bytes = h.bulk_bytes ? h.bulk_bytes - 4096 : 4096;
        header_again(frame, &h);
        break;
    case SILENCE:
        while (read(p->from, frame, FRAME_BYTES) > 0)
            ;
        return false;
    case STANDSTILL:
        h = (struct shore__wire_header){.type = SHORE__WIRE_ALIVE, .sequence = h.sequence};
        do {
            header_again(frame, &h);
            h.sequence++;
            usleep(50000);
        } while (write_all(p, frame, header));
        return false;
    default:
        break;
    }
    return write_all(p, frame, bytes);
}

static inline void *pass_on(void *ctx) {
    struct pipe_end *p = ctx;
    unsigned char *frame = malloc(FRAME_BYTES), greeting[SHORE__WIRE_GREETING_BYTES];
    bool go_on = true;
    if (!p->to_server) {
        go_on = read_all(p, greeting, sizeof greeting);
        if (p->fault == GARBAGE_FIRST) go_on = go_on && write_all(p, "Welcome!\n\x89Longshore", 19);
        go_on = go_on && write_all(p, greeting, sizeof greeting);
    }
    for (unsigned n = 0; go_on;) {
        go_on = read_all(p, frame, SHORE__WIRE_HEADER_BYTES);
        if (!go_on) break;
        size_t rest = shore__get_u32(frame + 12) + shore__get_u64(frame + 24);
        go_on = read_all(p, frame + SHORE__WIRE_HEADER_BYTES, rest);
        if (!go_on) break;
        /* signs of life come when they come */
        bool counts = shore__get_u16(frame + 4) != SHORE__WIRE_ALIVE;
        if (counts && n == p->at && p->fault != NONE && p->fault != GARBAGE_FIRST)
            go_on = spoil(p, frame, SHORE__WIRE_HEADER_BYTES + rest);
        else
            go_on = write_all(p, frame, SHORE__WIRE_HEADER_BYTES + rest);
        n += counts;
        atomic_fetch_add(&p->alive, !counts);
    }
    free(frame);
    shutdown(p->to, SHUT_WR);
    shutdown(p->from, SHUT_RD);
    return NULL;
}

struct between {
    struct plain plain;
    struct shore__drive_config config;
    struct shore__volume_desc desc;
    struct shore__extent extents[BLOCKS];
    int client[2], server[2]; /* pairs: [1] is ours */
    struct pipe_end up, down;
    pthread_t serving;
    int served;
    struct shore__drive *drive;
    struct shore_diag diag, server_diag;
    struct shore_hyper groups[GROUPS];
    float *gradient;
    uint16_t *params;
};

static inline void *serve(void *ctx) {
    static const struct shore__serve_options options = {.build = "test"};
    struct between *b = ctx;
    b->served = shore__serve(b->server[0], b->server[0], &options, &b->server_diag);
    return NULL;
}

static inline void between_describe(struct between *b) {
    memset(b, 0, sizeof *b);
    plain_open(&b->plain, SHORE_ADAMW, false);
    struct shore_fleet_options options = {.size = sizeof options, .optimizer = SHORE_ADAMW};
    b->config = (struct shore__drive_config){.layout = b->plain.layout, .optimizer = SHORE_ADAMW};
    shore__planes_make(b->plain.layout, &options, b->config.plane_bytes);
    b->desc = (struct shore__volume_desc){
        .ndrives = 1, .generation = 1, .nextents = BLOCKS, .extents = b->extents, .scratch_bytes = 4 << 20};
    memcpy(b->desc.plane_bytes, b->config.plane_bytes, sizeof b->desc.plane_bytes);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t segments = b->plain.layout->blocks[i].segments;
        b->extents[i] = (struct shore__extent){i, 0, segments, b->desc.segments};
        b->desc.segments += segments;
    }
}

/* at: which frame of that direction is spoiled. */
static inline int between_open(struct between *b, enum fault fault, bool to_server, unsigned at) {
    between_describe(b);
    b->gradient = pages(b->plain.layout->blocks[1].padded_elems * 4);
    b->params = pages(b->plain.layout->blocks[1].padded_elems * 2);
    hypers(&b->plain, 1, b->groups);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, b->client), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, b->server), 0);
    b->up = (struct pipe_end){b->client[1], b->server[1], true, to_server ? fault : NONE, at, 0, 0, 0};
    b->down = (struct pipe_end){b->server[1], b->client[1], false, to_server ? NONE : fault, at, 0, 0, 0};
    pthread_create(&b->serving, NULL, serve, b);
    pthread_create(&b->up.thread, NULL, pass_on, &b->up);
    pthread_create(&b->down.thread, NULL, pass_on, &b->down);
    return shore__remote_create_over(&b->config, b->client[0], b->client[0], &b->desc, &b->drive, &b->diag);
}

static inline void between_close(struct between *b) {
    if (b->drive) b->drive->ops->close(b->drive);
    pthread_join(b->up.thread, NULL);
    pthread_join(b->down.thread, NULL);
    pthread_join(b->serving, NULL);
    close(b->client[1]);
    close(b->server[1]);
    plain_close(&b->plain);
    free(b->gradient);
    free(b->params);
}

/* Everything that one step asks of a drive. The first thing that fails ends it. */
static inline int whole_step(struct between *b) {
    const struct shore__drive_ops *ops = b->drive->ops;
    struct shore_commit commit = {.size = sizeof commit, .step = 1, .metrics = "{}", .metrics_bytes = 2};
    struct shore_wait wait;
    int rc = 0;
    for (uint32_t i = 0; !rc && i < BLOCKS; i++)
        rc = ops->init(b->drive, i, 0, b->plain.layout->blocks[i].segments, b->plain.master[i], NULL, NULL, &b->diag);
    if (!rc) rc = ops->begin(b->drive, 1, 0, &b->diag);
    if (rc) return rc;
    ops->discard(b->drive, 1);
    for (uint32_t i = 0; !rc && i < BLOCKS; i++) {
        struct shore_update update = {.size = sizeof update,
                                      .attempt = 1,
                                      .block = i,
                                      .count = b->plain.layout->blocks[i].segments,
                                      .gradient = b->gradient,
                                      .coefficient = 1,
                                      .groups = b->groups,
                                      .ngroups = GROUPS,
                                      .params_out = i == 1 ? b->params : NULL};
        shore_wait_init(&wait);
        gradient_of_step(&b->plain, i, 1, b->gradient);
        rc = ops->update(b->drive, &update, shore_wait_completion(&wait));
        if (!rc) rc = shore_wait(&wait, &b->diag);
    }
    struct shore__drive_fetch fetch = {1, 1, 0, b->plain.layout->blocks[1].segments, SHORE_FETCH_BF16, b->gradient};
    shore_wait_init(&wait);
    if (!rc) rc = ops->fetch(b->drive, &fetch, shore_wait_completion(&wait));
    if (!rc) rc = shore_wait(&wait, &b->diag);
    if (!rc && memcmp(b->gradient, b->params, b->plain.layout->blocks[1].padded_elems * 2) != 0) rc = -EILSEQ;
    unsigned char put[16], got[16];
    struct shore__call there = {.function = SHORE__SCRATCH_PUT, .bytes = 4096, .in = b->gradient, .seal = put};
    struct shore__call back = {.function = SHORE__SCRATCH_GET, .bytes = 4096, .out = b->gradient, .seal = got};
    shore_wait_init(&wait);
    if (!rc) rc = ops->call(b->drive, &there, shore_wait_completion(&wait));
    if (!rc) rc = shore_wait(&wait, &b->diag);
    shore_wait_init(&wait);
    if (!rc) rc = ops->call(b->drive, &back, shore_wait_completion(&wait));
    if (!rc) rc = shore_wait(&wait, &b->diag);
    if (!rc && memcmp(put, got, 16) != 0) rc = -EILSEQ;
    shore_wait_init(&wait);
    if (!rc) rc = ops->commit(b->drive, &commit, shore_wait_completion(&wait));
    if (!rc) rc = shore_wait(&wait, &b->diag);
    return rc;
}

static inline void said(const char *who, const char *name, unsigned at, int rc, const char *wanted, const char *text) {
    if (!strstr(text, wanted)) fail_msg("%s, frame %u, %s, %d: no '%s' in: %s", name, at, who, rc, wanted, text);
}

#endif
