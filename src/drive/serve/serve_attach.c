#include "drive/serve/serve_attach.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/thread.h"
#include "drive/serve/serve_links.h"

/* A name in no file system, so that nothing is left behind. A peer must be this user, and know 128 random bits. */
static struct sockaddr_un address_of(const unsigned char token[16], socklen_t *bytes) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int n = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "longshore-");
    for (int i = 0; i < 16; i++)
        n += snprintf(address.sun_path + 1 + n, sizeof address.sun_path - 1 - (size_t)n, "%02x", token[i]);
    *bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    return address;
}

static bool is_this_user(int fd) {
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

struct handing {
    struct msghdr message;
    struct iovec part;
    uint64_t id;
    char control[CMSG_SPACE(2 * sizeof(int))];
};

static void prepare(struct handing *h) {
    memset(h, 0, sizeof *h);
    h->part = (struct iovec){&h->id, sizeof h->id};
    h->message = (struct msghdr){
        .msg_iov = &h->part, .msg_iovlen = 1, .msg_control = h->control, .msg_controllen = sizeof h->control};
}

/* ---- the process that has the drive ------------------------------------------------------------------------------ */

/* Waits until the peer says something, the client is gone, or the client has had time to notice that nobody answers. */
static bool has_spoken(struct session *s, int held) {
    const struct shore__conn *first = &s->links[0].conn;
    struct pollfd fds[2] = {{held, POLLIN, 0}, {first->wake, POLLIN, 0}};
    return poll(fds, 2, (int)first->silence_ms) > 0 && fds[0].revents;
}

/* Takes one connection. Closing `held` tells the other process that its descriptors are no longer used; the end of this
 * process closes it too. */
static void take_one(struct session *s) {
    struct handing h;
    struct shore_diag diag;
    int fds[2], held = accept4(s->attach, NULL, NULL, SOCK_CLOEXEC);
    if (held < 0) return;
    prepare(&h);
    ssize_t n = is_this_user(held) && has_spoken(s, held) ? recvmsg(held, &h.message, MSG_CMSG_CLOEXEC) : -1;
    struct cmsghdr *c = n == (ssize_t)sizeof h.id ? CMSG_FIRSTHDR(&h.message) : NULL;
    if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof fds)) {
        close(held);
        return;
    }
    memcpy(fds, CMSG_DATA(c), sizeof fds);
    if (shore__serve_add_link(s, fds[0], fds[1], h.id, &diag)) close(held);
}

static void *attacher(void *ctx) {
    struct session *s = ctx;
    for (;;) {
        struct pollfd fds[2] = {{s->attach, POLLIN, 0}, {s->links[0].conn.wake, POLLIN, 0}};
        if (poll(fds, 2, 500) < 0 && errno != EINTR) return NULL;
        pthread_mutex_lock(&s->lock);
        bool ended = s->ended;
        pthread_mutex_unlock(&s->lock);
        if (ended) return NULL;
        if (fds[0].revents) take_one(s);
    }
}

int shore__serve_attach_open(struct session *s, unsigned char token[16], struct shore_diag *diag) {
    socklen_t bytes;
    if (getrandom(token, 16, 0) != 16) return shore__fail(diag, -EIO, "the system gives no random numbers for a token");
    struct sockaddr_un address = address_of(token, &bytes);
    s->attach = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->attach < 0 || bind(s->attach, (struct sockaddr *)&address, bytes) || listen(s->attach, SHORE__LINKS_MOST))
        return shore__fail(diag, -errno, "cannot make a socket for further connections: %s", strerror(errno));
    return 0;
}

int shore__serve_attach_start(struct session *s) {
    if (s->attach < 0) return 0;
    int rc = shore__thread_start(&s->attacher, "shore-attach", attacher, s);
    s->attaches = !rc;
    return rc;
}

void shore__serve_attach_close(struct session *s) {
    if (s->attaches) pthread_join(s->attacher, NULL);
    if (s->attach >= 0) close(s->attach);
    s->attaches = false;
    s->attach = -1;
}

/* ---- the process that the connection came to --------------------------------------------------------------------- */

int shore__serve_attach_to(struct shore__conn *c, const struct shore__wire_header *header,
                           const struct shore__wire_request *r, struct shore_diag *diag) {
    struct handing h;
    socklen_t bytes;
    if (r->tail_bytes != 16) return shore__fail(diag, SHORE_ELINK, "a token of the wrong length came");
    struct sockaddr_un address = address_of(r->tail, &bytes);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), fds[2] = {c->in, c->out};
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, bytes) || !is_this_user(fd)) {
        int code = errno;
        if (fd >= 0) close(fd);
        return shore__fail(diag, SHORE_EMISSING, "the drive of this connection is no longer served (%s)",
                           strerror(code));
    }
    prepare(&h);
    h.id = header->id;
    struct cmsghdr *m = CMSG_FIRSTHDR(&h.message);
    m->cmsg_level = SOL_SOCKET;
    m->cmsg_type = SCM_RIGHTS;
    m->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(m), fds, sizeof fds);
    char byte;
    bool handed = sendmsg(fd, &h.message, MSG_NOSIGNAL) == (ssize_t)sizeof h.id;
    int code = errno;
    /* ends when the other process does: until then, this one keeps the connection's carrier alive */
    while (handed && (recv(fd, &byte, 1, 0) > 0 || errno == EINTR)) {
    }
    close(fd);
    return handed ? 1 : shore__fail(diag, SHORE_EMISSING, "the connection cannot be handed over: %s", strerror(code));
}
