#include "drive/remote/conn.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/units.h"

static int no_waiting(int fd) {
    int flags = fcntl(fd, F_GETFL);
    return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? -errno : 0;
}

uint32_t shore__conn_silence_ms(void) {
    const char *text = getenv(SHORE__SILENCE_VARIABLE);
    double seconds = text ? strtod(text, NULL) : 0;
    return seconds >= 0.2 && seconds <= 600 ? (uint32_t)(seconds * 1000) : SHORE__SILENCE_MS;
}

int shore__conn_init(struct shore__conn *c, int in, int out, int err) {
    assert(in >= 0 && out >= 0);
    memset(c, 0, sizeof *c);
    c->in = in;
    c->out = out;
    c->err = err;
    c->silence_ms = shore__conn_silence_ms();
    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = c->wake < 0 ? -errno : no_waiting(in);
    if (!rc && out != in) rc = no_waiting(out);
    if (!rc && err >= 0) rc = no_waiting(err);
    if (rc) shore__conn_fini(c);
    return rc;
}

void shore__conn_fini(struct shore__conn *c) {
    if (c->in >= 0) close(c->in);
    if (c->out >= 0 && c->out != c->in) close(c->out);
    if (c->err >= 0) close(c->err);
    if (c->wake >= 0) close(c->wake);
    c->in = c->out = c->err = c->wake = -1;
}

void shore__conn_end(struct shore__conn *c) {
    const uint64_t one = 1;
    atomic_store(&c->ended, true);
    ssize_t n = write(c->wake, &one, sizeof one);
    (void)n; /* it fails only if it is full, and then it wakes already */
}

void shore__conn_drain_errors(struct shore__conn *c) {
    char text[512];
    ssize_t n;
    while (c->err >= 0 && (n = read(c->err, text, sizeof text)) != 0) {
        if (n < 0) {
            if (errno == EINTR) continue;
            return;
        }
        size_t keep = sizeof c->errors - 1, bytes = (size_t)n;
        if (c->nerrors + bytes > keep) {
            size_t drop = c->nerrors + bytes - keep;
            memmove(c->errors, c->errors + drop, c->nerrors - drop);
            c->nerrors -= drop;
        }
        memcpy(c->errors + c->nerrors, text, bytes);
        c->nerrors += bytes;
        assert(c->nerrors < sizeof c->errors);
        c->errors[c->nerrors] = 0;
    }
    if (c->err >= 0) {
        close(c->err);
        c->err = -1;
    }
}

/* Explains a broken connection. A peer that was killed with unread bytes leaves a reset. */
static int broke(struct shore__conn *c, int code, struct shore_diag *diag) {
    bool closed = code == 0 || code == EPIPE || code == ECONNRESET;
    atomic_store(&c->gone, true);
    return closed ? shore__fail(diag, SHORE_ELINK, "the other side has closed the connection")
                  : shore__fail(diag, SHORE_ELINK, "the connection broke: %s", strerror(code));
}

static uint64_t silence_ns(const struct shore__conn *c) {
    return (uint64_t)c->silence_ms * 1000000;
}

/* Waits until fd is ready: returns 0, or a code. Meanwhile takes bytes from the far side's shell, which must not wait
 * for us. Counts silence in slices, none for more than its length: if this process stood still (it or its machine was
 * stopped), the other side may have spoken meanwhile, or stood still too. silent_ns: the time is added to it. */
static int wait_for(struct shore__conn *c, int fd, short event, uint64_t *silent_ns, struct shore_diag *diag) {
    const uint64_t slice_ms = c->silence_ms / 8 + 1;
    for (uint64_t until = *silent_ns + silence_ns(c); *silent_ns < until;) {
        struct pollfd fds[3] = {{fd, event, 0}, {c->wake, POLLIN, 0}, {event == POLLIN ? c->err : -1, POLLIN, 0}};
        uint64_t began = shore__now_ns();
        if (atomic_load(&c->ended)) return shore__fail(diag, SHORE_ELINK, "the connection has ended");
        int n = poll(fds, 3, (int)slice_ms), code = errno;
        uint64_t took = shore__now_ns() - began;
        *silent_ns += took < slice_ms * 1000000 ? took : slice_ms * 1000000;
        if (n < 0 && code != EINTR) return broke(c, code, diag);
        if (n > 0 && fds[2].revents) shore__conn_drain_errors(c);
        if (n > 0 && fds[1].revents) return shore__fail(diag, SHORE_ELINK, "the connection has ended");
        if (n > 0 && fds[0].revents) return 0;
    }
    atomic_store(&c->gone, true);
    return shore__fail(diag, SHORE_ELINK, "the other side has been silent for %u s", c->silence_ms / 1000);
}

void shore__conn_next_beat(const struct shore__conn *c, struct timespec *at) {
    clock_gettime(CLOCK_MONOTONIC, at);
    uint64_t ns = (uint64_t)at->tv_nsec + c->silence_ms / 4 * UINT64_C(1000000);
    at->tv_sec += (time_t)(ns / 1000000000);
    at->tv_nsec = (long)(ns % 1000000000);
}

static void advance(struct iovec **parts, unsigned *nparts, size_t bytes) {
    while (*nparts && bytes >= (*parts)->iov_len) {
        bytes -= (*parts)->iov_len;
        ++*parts;
        --*nparts;
    }
    assert(*nparts || !bytes);
    if (bytes) {
        (*parts)->iov_base = (char *)(*parts)->iov_base + bytes;
        (*parts)->iov_len -= bytes;
    }
}

static int take(struct shore__conn *c, struct iovec *parts, unsigned nparts, uint64_t *silent,
                struct shore_diag *diag) {
    advance(&parts, &nparts, 0);
    while (nparts) {
        ssize_t n = readv(c->in, parts, (int)nparts);
        if (n > 0) {
            c->in_bytes += (uint64_t)n;
            advance(&parts, &nparts, (size_t)n);
        } else if (n == 0) {
            return broke(c, 0, diag);
        } else if (errno == EAGAIN) {
            int rc = wait_for(c, c->in, POLLIN, silent, diag);
            if (rc) return rc;
        } else if (errno != EINTR) {
            return broke(c, errno, diag);
        }
    }
    return 0;
}

int shore__conn_readv(struct shore__conn *c, struct iovec *parts, unsigned nparts, struct shore_diag *diag) {
    uint64_t silent = 0;
    return take(c, parts, nparts, &silent, diag);
}

int shore__conn_read(struct shore__conn *c, void *buffer, size_t bytes, struct shore_diag *diag) {
    struct iovec part = {buffer, bytes};
    return shore__conn_readv(c, &part, 1, diag);
}

/* Ignores SIGPIPE for pipes, which have no MSG_NOSIGNAL. */
static ssize_t write_quietly(int fd, const struct iovec *parts, unsigned nparts) {
    sigset_t pipe_only, before;
    const struct timespec none = {0};
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_only, &before);
    ssize_t n = writev(fd, parts, (int)nparts);
    int code = errno;
    if (n < 0 && code == EPIPE && !sigismember(&before, SIGPIPE)) sigtimedwait(&pipe_only, NULL, &none);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = code;
    return n;
}

static int write_parts(struct shore__conn *c, struct iovec *parts, unsigned nparts, struct shore_diag *diag) {
    uint64_t silent = 0;
    advance(&parts, &nparts, 0);
    /* the rest of a session that was broken off must not look like an answer */
    if (atomic_load(&c->ended)) return shore__fail(diag, SHORE_ELINK, "the connection has ended");
    while (nparts) {
        ssize_t n = write_quietly(c->out, parts, nparts);
        if (n > 0) {
            c->out_bytes += (uint64_t)n;
            advance(&parts, &nparts, (size_t)n);
        } else if (n == 0) {
            return broke(c, EIO, diag); /* it takes nothing and does not block: asking again could go on for ever */
        } else if (errno == EAGAIN) {
            int rc = wait_for(c, c->out, POLLOUT, &silent, diag);
            if (rc) return rc;
        } else if (errno != EINTR) {
            return broke(c, errno, diag);
        }
    }
    return 0;
}

/* Whether either side would accept the header. */
static bool is_sound(const unsigned char header[SHORE__WIRE_HEADER_BYTES], uint32_t sequence) {
    struct shore__wire_header h;
    return !shore__wire_header_get(header, true, sequence, &h, NULL) ||
           !shore__wire_header_get(header, false, sequence, &h, NULL);
}

int shore__conn_send(struct shore__conn *c, const struct shore__frame *f, struct shore_diag *diag) {
    unsigned char header[SHORE__WIRE_HEADER_BYTES];
    struct shore__wire_header h = {.type = f->type, .sequence = c->sent++, .body_bytes = f->body_bytes, .id = f->id};
    struct iovec parts[2 + SHORE__CONN_PARTS] = {{header, sizeof header}, {(void *)(uintptr_t)f->body, f->body_bytes}};
    assert(f->nbulk <= SHORE__CONN_PARTS);
    for (unsigned i = 0; i < f->nbulk; i++) {
        parts[2 + i] = f->bulk[i];
        h.bulk_bytes += f->bulk[i].iov_len;
    }
    shore__wire_header_put(header, &h, f->body);
    assert(is_sound(header, h.sequence));
    return write_parts(c, parts, 2 + f->nbulk, diag);
}

int shore__conn_answer(struct shore__conn *c, uint64_t id, int rc, const struct shore_diag *why, const void *result,
                       uint32_t result_bytes, struct shore_diag *diag) {
    unsigned char *body = malloc(SHORE__WIRE_ANSWER_MOST + result_bytes);
    if (!body) return shore__fail(diag, -ENOMEM, "out of memory");
    uint32_t head = shore__wire_answer_put(body, rc, why);
    if (result_bytes) memcpy(body + head, result, result_bytes);
    struct shore__frame frame = {.type = SHORE__WIRE_DONE, .id = id, .body = body, .body_bytes = head + result_bytes};
    rc = shore__conn_send(c, &frame, diag);
    free(body);
    return rc;
}

int shore__conn_receive(struct shore__conn *c, bool to_server, struct shore__wire_header *h, unsigned char **body,
                        size_t *room, struct shore_diag *diag) {
    unsigned char header[SHORE__WIRE_HEADER_BYTES];
    int rc = shore__conn_read(c, header, sizeof header, diag);
    if (!rc) rc = shore__wire_header_get(header, to_server, c->received, h, diag);
    if (rc) return rc;
    c->received++;
    if (h->body_bytes > *room) {
        /* grows only as bytes arrive, and not on the word of a header alone */
        free(*body);
        *room = h->body_bytes;
        *body = malloc(*room);
        if (!*body) {
            *room = 0;
            return shore__fail(diag, -ENOMEM, "out of memory for a frame");
        }
    }
    rc = shore__conn_read(c, *body, h->body_bytes, diag);
    return rc ? rc : shore__wire_check(header, h, *body, diag);
}

void shore__conn_expect(struct shore__conn *c) {
    c->moved_ns = shore__now_ns();
}

int shore__conn_gets_on(struct shore__conn *c, const struct shore__wire_header *h, struct shore_diag *diag) {
    uint64_t now = shore__now_ns(), patience_ms = (uint64_t)SHORE__STANDSTILL * c->silence_ms;
    if (h->type != SHORE__WIRE_ALIVE || h->id != c->work) c->moved_ns = now;
    if (h->type == SHORE__WIRE_ALIVE) c->work = h->id;
    if (now - c->moved_ns < patience_ms * 1000000) return 0;
    return shore__fail(diag, SHORE_ELINK,
                       "its server answers, but has made no progress for %llu s: check the drive there",
                       (unsigned long long)patience_ms / 1000);
}

int shore__conn_greet(struct shore__conn *c, struct shore_diag *diag) {
    unsigned char greeting[SHORE__WIRE_GREETING_BYTES];
    struct iovec part = {greeting, sizeof greeting};
    shore__wire_greeting_put(greeting);
    return write_parts(c, &part, 1, diag);
}

/* The last line of untrusted output, for a message. */
static void last_line(const char *text, size_t bytes, char *out, size_t out_bytes) {
    while (bytes && (text[bytes - 1] == '\n' || text[bytes - 1] == '\r'))
        bytes--;
    size_t first = bytes;
    while (first && text[first - 1] != '\n')
        first--;
    shore__escape(text + first, bytes - first, out, out_bytes);
}

int shore__conn_greeting(struct shore__conn *c, uint32_t *version, struct shore_diag *diag) {
    unsigned char said[300], greeting[SHORE__WIRE_GREETING_BYTES]; /* said: the end of the bytes received */
    unsigned char *magic = said + sizeof said - SHORE__WIRE_MAGIC_BYTES;
    char shown[160];
    size_t seen = 0;
    uint64_t silent = 0; /* in total: bytes that trickle in do not extend the time */
    struct shore_diag why = {0};
    int rc = 0;
    while (!rc && seen < SHORE__WIRE_SCAN_BYTES && silent < silence_ns(c)) {
        unsigned char byte;
        struct iovec part = {&byte, 1};
        rc = take(c, &part, 1, &silent, &why);
        if (rc) break;
        memmove(said, said + 1, sizeof said - 1);
        said[sizeof said - 1] = byte;
        seen++;
        if (seen < SHORE__WIRE_MAGIC_BYTES || memcmp(magic, SHORE__WIRE_MAGIC, SHORE__WIRE_MAGIC_BYTES) != 0) continue;
        memcpy(greeting, magic, SHORE__WIRE_MAGIC_BYTES);
        rc = shore__conn_read(c, greeting + SHORE__WIRE_MAGIC_BYTES, sizeof greeting - SHORE__WIRE_MAGIC_BYTES, &why);
        if (rc) break;
        return shore__wire_greeting_get(greeting, version, diag);
    }
    size_t kept = seen < sizeof said ? seen : sizeof said;
    last_line((const char *)said + sizeof said - kept, kept, shown, sizeof shown);
    if (!rc)
        return shore__fail(
            diag, SHORE_EFORMAT,
            "what answers there is not a longshore drive server: %zu bytes of other text came (%s); login "
            "scripts must be quiet where there is no terminal",
            seen, shown);
    return seen ? shore__fail(diag, rc, "%s (it said: %s)", why.text, shown) : shore__fail(diag, rc, "%s", why.text);
}
