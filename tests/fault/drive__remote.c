/* A remote drive whose other side lies, is cut off or falls silent; and the bytes that crossed, counted by somebody
 * between the two. */
#include "conformance/drive_harness.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "drive/function.h"
#include "drive/placement.h"
#include "drive/remote/conn.h"
#include "drive/remote/remote.h"
#include "drive/remote/wire_open.h"

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
    [FLIP_HEADER] = {"flip header", "other bytes than were sent", "other bytes than were sent"},
    [FLIP_BODY] = {"flip body", "other bytes than were sent", "other bytes than were sent"},
    [REPLAY] = {"replay", "replayed or out of order", "replayed or out of order"},
    [OUT_OF_ORDER] = {"out of order", "replayed or out of order", "replayed or out of order"},
    [TOO_LONG] = {"too long", "is too long", "is too long"},
    [MUCH_BULK] = {"much bulk", "is too long", "is too long"},
    [OTHER_VERSION] = {"another version", "not the beginning of a frame", "not the beginning of a frame"},
    [UNKNOWN_TYPE] = {"unknown type", "unknown type 999", "unknown type 999"},
    [FOREIGN_ID] = {"foreign id", "an answer", NULL},
    [ERROR_WITH_DATA] = {"error with data", "brings data all the same", NULL},
    [POSITIVE_ERROR] = {"positive error", "cannot be", NULL},
    [LESS_DATA] = {"less data", "an answer", "of type"},
    [SILENCE] = {"silence", "silent", "silent"},
};

#define FRAME_BYTES (4u << 20) /* more than any here has */

#if defined(__SANITIZE_THREAD__)
#define STRIDE 4u
#else
#define STRIDE 1u
#endif

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

static bool read_all(struct pipe_end *p, void *data, size_t bytes) {
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

static bool write_all(struct pipe_end *p, const void *data, size_t bytes) {
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
static void header_again(unsigned char *frame, const struct shore__wire_header *h) {
    shore__wire_header_put(frame, h, frame + SHORE__WIRE_HEADER_BYTES);
}

/* false: the direction ends here. */
static bool spoil(struct pipe_end *p, unsigned char *frame, size_t bytes) {
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

static void *pass_on(void *ctx) {
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

static void *serve(void *ctx) {
    static const struct shore__serve_options options = {.build = "test"};
    struct between *b = ctx;
    b->served = shore__serve(b->server[0], b->server[0], &options, &b->server_diag);
    return NULL;
}

static void between_describe(struct between *b) {
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
static int between_open(struct between *b, enum fault fault, bool to_server, unsigned at) {
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

static void between_close(struct between *b) {
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
static int whole_step(struct between *b) {
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

static void said(const char *who, const char *name, unsigned at, int rc, const char *wanted, const char *text) {
    if (!strstr(text, wanted)) fail_msg("%s, frame %u, %s, %d: no '%s' in: %s", name, at, who, rc, wanted, text);
}

/* false: the other side gave up first, out of a patience as long. */
static bool lie_is_noticed(enum fault fault, bool to_server, unsigned at, double patience) {
    const char *name = faults[fault].name, *who = to_server ? "server" : "client";
    const bool harmless = to_server && !faults[fault].server;
    const char *wanted = to_server ? faults[fault].server : faults[fault].client;
    struct between b;
    struct shore_diag why = {""};
    char seconds[24];
    snprintf(seconds, sizeof seconds, "%g", patience);
    setenv("LONGSHORE_SILENCE", seconds, 1);
    alarm(30 + 4 * (unsigned)patience);
    int rc = between_open(&b, fault, to_server, at);
    if (!rc) rc = whole_step(&b);
    if (!harmless && rc == 0) fail_msg("%s, frame %u: nothing was noticed", name, at);
    if (rc == -EILSEQ) fail_msg("%s, frame %u: wrong data was used", name, at);
    if (b.drive && !shore__remote_is_broken(b.drive, &why) && !harmless)
        fail_msg("%s, frame %u, %s: still thought to be whole: %d %s", name, at, who, rc, b.diag.text);
    /* a submit has no room for words */
    if (!b.diag.text[0]) b.diag = why;
    between_close(&b);
    alarm(0);
    if (harmless) return true;
    bool gone = fault == CUT_HEADER || fault == CUT_BODY || fault == SILENCE;
    /* who has opened nothing may go without a word */
    if (to_server && b.served != (!gone ? -EPROTO : at ? SHORE_ELINK : 0))
        fail_msg("%s, frame %u: the server ends with %d", name, at, b.served);
    const char *text = to_server ? b.server_diag.text : b.diag.text;
    if (fault == SILENCE && strstr(text, "the other side has closed the connection")) return false;
    said(who, name, at, to_server ? b.served : rc, wanted, text);
    return true;
}

/* Whatever comes, and whenever: an error that says what it was, on the side that it came to; no hang, nothing that the
 * sanitizers see. */
static void test_lies(void **state) {
    for (int to_server = 0; to_server < 2; to_server++) {
        for (int fault = CUT_HEADER; fault < FAULTS; fault++) {
            for (unsigned at = 0; at < 11; at += fault == SILENCE ? 6 : STRIDE + (unsigned)fault % 3) {
                /* a busy machine is silent too, now and then */
                double patience = fault == SILENCE ? 1.5 : 15;
                while (!lie_is_noticed((enum fault)fault, to_server, at, patience)) {
                    /* a first frame that is lost leaves both sides without a word: either may be first */
                    if (at == 0) break;
                    if ((patience *= 3) > 15) fail_msg("silence, frame %u: noticed on the wrong side", at);
                }
            }
        }
    }
    unsetenv("LONGSHORE_SILENCE");
}

static void *stand_still(void *ctx) {
    struct between *b = ctx;
    struct shore_diag why = {""};
    int rc = between_open(b, STANDSTILL, false, b->down.at);
    if (!rc) whole_step(b);
    if (b->drive && !b->diag.text[0]) shore__remote_is_broken(b->drive, &why);
    if (!b->diag.text[0]) b->diag = why;
    between_close(b);
    return NULL;
}

static uint64_t began;

static uint64_t fast_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t now = (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
    return began + 20 * (now - began);
}

/* What a server says that is there and nothing else, by a clock that is fast: silence is waited for by the system's. */
static void test_standstill(void **state) {
    struct between b[2] = {{.down.at = 0}, {.down.at = 3}};
    pthread_t clients[2];
    setenv("LONGSHORE_SILENCE", "1", 1);
    alarm(90);
    began = shore__now_ns();
    shore__set_clock(fast_clock);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&clients[i], NULL, stand_still, &b[i]), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(clients[i], NULL);
        said("client", "signs of life and no answer", b[i].down.at, 0, "has not got on with its work for 20 s",
             b[i].diag.text);
    }
    shore__set_clock(NULL);
    alarm(0);
    unsetenv("LONGSHORE_SILENCE");
}

static uint64_t now_of_test;

static uint64_t clock_of_test(void) {
    return now_of_test;
}

/* How long it takes does not count as long as it gets on. */
static void test_slow_work(void **state) {
    const uint64_t patience = UINT64_C(1000000) * 20 * SHORE__STANDSTILL;
    struct shore__conn c = {.silence_ms = 20};
    struct shore__wire_header alive = {.type = SHORE__WIRE_ALIVE};
    struct shore_diag diag;
    shore__set_clock(clock_of_test);
    shore__conn_expect(&c);
    for (; alive.id < 20; alive.id++, now_of_test += patience - 1)
        assert_int_equal(shore__conn_gets_on(&c, &alive, &diag), 0);
    alive.id--;
    assert_int_equal(shore__conn_gets_on(&c, &alive, &diag), 0);
    now_of_test++;
    assert_int_equal(shore__conn_gets_on(&c, &alive, &diag), SHORE_ELINK);
    shore__set_clock(NULL);
}

/* Who has nothing to say shows that he is there: signs of life, one in each quarter of a silence, keep both sides. */
static void test_heartbeat(void **state) {
    struct between b;
    setenv("LONGSHORE_SILENCE", "1.5", 1);
    alarm(60);
    if (between_open(&b, NONE, false, 0)) fail_msg("%s", b.diag.text);
    while (atomic_load(&b.up.alive) < 8 || atomic_load(&b.down.alive) < 8)
        usleep(1000);
    if (whole_step(&b)) fail_msg("%s", b.diag.text);
    between_close(&b);
    alarm(0);
    assert_int_equal(b.served, 0);
    unsetenv("LONGSHORE_SILENCE");
}

static struct {
    int to, calls;
    unsigned char greeting[SHORE__WIRE_GREETING_BYTES];
    size_t first;
} other;

/* An hour passes in the first wait, and the other side speaks while it does. */
static uint64_t clock_that_jumps(void) {
    if (++other.calls == 2) {
        size_t rest = sizeof other.greeting - other.first;
        assert_int_equal(send(other.to, other.greeting + other.first, rest, MSG_NOSIGNAL), rest);
    }
    return other.calls < 2 ? 1 : UINT64_C(3600000000000);
}

/* Who stood still himself does not take the time for the other side's silence: with nothing of the greeting there, or
 * its first byte. */
static void test_stopped_while_waiting(void **state) {
    shore__wire_greeting_put(other.greeting);
    setenv("LONGSHORE_SILENCE", "0.4", 1);
    for (other.first = 0; other.first < 2; other.first++) {
        struct shore__conn c;
        struct shore_diag diag = {""};
        uint32_t version;
        int ends[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        assert_int_equal(shore__conn_init(&c, ends[0], ends[0], -1), 0);
        assert_int_equal(send(ends[1], other.greeting, other.first, MSG_NOSIGNAL), other.first);
        other.to = ends[1];
        other.calls = 0;
        shore__set_clock(clock_that_jumps);
        if (shore__conn_greeting(&c, &version, &diag)) fail_msg("%s", diag.text);
        shore__set_clock(NULL);
        shore__conn_fini(&c);
        close(ends[1]);
    }
    unsetenv("LONGSHORE_SILENCE");
}

/* Whether every connection to this name was accepted: the kernel gives a socket its number when that happens. */
static bool is_accepted(const char *name) {
    char line[512];
    bool waits = false;
    FILE *f = fopen("/proc/net/unix", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        char *at = strchr(line, '@');
        unsigned long number;
        if (!at || strncmp(at + 1, name, strlen(name)) != 0) continue;
        if (sscanf(line, "%*s %*s %*s %*s %*s %*s %lu", &number) == 1 && number == 0) waits = true;
    }
    fclose(f);
    return !waits;
}

/* Somebody who knows the token connects, and says nothing: the server still ends when its client is gone. */
static void test_a_connection_that_is_never_handed_over(void **state) {
    struct between b;
    struct shore__conn conn;
    struct shore__wire_header h = {0};
    struct shore__wire_answer a;
    unsigned char *request, *body = NULL;
    size_t room = 0;
    uint32_t version;
    struct shore__frame frame = {.type = SHORE__WIRE_OPEN, .id = 1};
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    alarm(30);
    between_describe(&b);
    struct shore__wire_open answer, open = {.path = (char *)(uintptr_t) "ram:",
                                            .mode = SHORE__WIRE_MODE_CREATE,
                                            .layout = b.plain.layout,
                                            .silence_ms = 30000,
                                            .connections = 2,
                                            .has_desc = true,
                                            .desc = b.desc};
    memcpy(open.plane_bytes, b.config.plane_bytes, sizeof open.plane_bytes);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, b.client), 0);
    b.server[0] = b.client[1];
    pthread_create(&b.serving, NULL, serve, &b);
    assert_int_equal(shore__conn_init(&conn, b.client[0], b.client[0], -1), 0);
    assert_int_equal(shore__conn_greeting(&conn, &version, &b.diag), 0);
    assert_int_equal(shore__wire_open_put(&open, false, &request, &frame.body_bytes), 0);
    frame.body = request;
    assert_int_equal(shore__conn_send(&conn, &frame, &b.diag), 0);
    while (h.type != SHORE__WIRE_DONE)
        assert_int_equal(shore__conn_receive(&conn, false, &h, &body, &room, &b.diag), 0);
    assert_int_equal(shore__wire_answer_get(&h, body, &a, &b.diag), 0);
    assert_int_equal(shore__wire_open_get(a.result, a.result_bytes, true, &answer, &b.diag), 0);
    int n = 1 + snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "longshore-");
    for (int i = 0; i < 16; i++)
        n += snprintf(address.sun_path + n, sizeof address.sun_path - (size_t)n, "%02x", answer.token[i]);
    int silent = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)n);
    assert_int_equal(connect(silent, (struct sockaddr *)&address, bytes), 0);
    while (!is_accepted(address.sun_path + 1))
        usleep(1000);
    shore__conn_fini(&conn);
    pthread_join(b.serving, NULL);
    alarm(0);
    assert_int_equal(b.served, SHORE_ELINK);
    close(silent);
    free(request);
    free(body);
    shore__wire_open_free(&answer);
    plain_close(&b.plain);
}

static void test_garbage_before_the_greeting(void **state) {
    struct between b;
    if (between_open(&b, GARBAGE_FIRST, false, 0)) fail_msg("%s", b.diag.text);
    if (whole_step(&b)) fail_msg("%s", b.diag.text);
    between_close(&b);
}

/* The sum over all classes is what somebody who sits between the two has read from the one and the other. */
static void test_ledger_counts_every_byte(void **state) {
    struct between b;
    struct shore_ledger l = {0};
    uint64_t in, out;
    if (between_open(&b, NONE, false, 0)) fail_msg("%s", b.diag.text);
    if (whole_step(&b)) fail_msg("%s", b.diag.text);
    b.drive->ops->ledger(b.drive, &l);
    shore__remote_link_bytes(b.drive, &in, &out);
    uint64_t sum = l.link_in_gradients + l.link_in_compressed + l.link_out_params + l.link_activations +
                   l.link_in_state + l.link_out_state + l.link_out_gradients + l.link_control;
    const struct shore_layout *layout = b.plain.layout;
    uint64_t elems = 0, block1 = layout->blocks[1].elems;
    for (uint32_t i = 0; i < layout->nblocks; i++)
        elems += layout->blocks[i].elems;
    assert_int_equal(l.link_in_gradients, 4 * elems);
    assert_int_equal(l.link_in_state, 4 * layout->segments * SHORE_SEGMENT_ELEMS); /* the initial state, whole */
    assert_int_equal(l.link_out_params, 2 * block1 + 2 * block1);
    assert_int_equal(l.link_activations, 2 * 4096);
    assert_int_equal(sum, in + out);
    assert_int_equal(out, b.up.bytes);
    assert_int_equal(in, b.down.bytes);
    assert_true(l.link_control < 64 * 1024);
    between_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_standstill),
        cmocka_unit_test(test_slow_work),
        cmocka_unit_test(test_heartbeat),
        cmocka_unit_test(test_stopped_while_waiting),
        cmocka_unit_test(test_a_connection_that_is_never_handed_over),
        cmocka_unit_test(test_garbage_before_the_greeting),
        cmocka_unit_test(test_ledger_counts_every_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
