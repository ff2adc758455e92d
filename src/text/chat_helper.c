/* The process that renders the templates that are not known here: chat_helper.py. A row is a line, and so is its
 * answer. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/spawn.h"
#include "files/atomic.h"
#include "text/chat_impl.h"
#include "text/tokenizer_impl.h"
#include "text/vector.h"

#define ANSWER_LIMIT_BYTES (1u << 30)
#define BLOCK_BYTES (64u << 10)
#define NO_JINJA 3 /* what the helper exits with */
#define WAITS_A_SECOND 10
/* Times what a row may take, after which it ends itself. It may be busy with its start for longer, not for ever. */
#define PATIENCE 10

static const char script[] =
#include "text/chat_helper.inc"
    ;

struct shore__chat_helper {
    const struct shore__chat *chat;
    int fd;
    pid_t child;
    struct shore__text answer; /* with what came behind the last line feed */
};

static int send_all(int fd, const char *data, size_t bytes) {
    while (bytes) {
        ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -errno;
        data += n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* Says why it ended, and reaps it; ends it first if it is late. */
static int ended(struct shore__chat_helper *h, struct shore_diag *diag) {
    bool late = errno == EAGAIN;
    int status = 0;
    close(h->fd);
    h->fd = -1;
    if (late) kill(h->child, SIGKILL);
    while (waitpid(h->child, &status, 0) < 0 && errno == EINTR) {
    }
    h->child = 0;
    if (late) return shore__fail(diag, -ETIMEDOUT, "the helper that renders chat templates does not answer");
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_JINJA)
        return shore__fail(diag, SHORE_EMISSING, "python3 has no jinja2");
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        return shore__fail(diag, -ETIMEDOUT, "the chat template does not come to an end: a row took too long");
    return shore__fail(diag, -EIO, "the helper that renders chat templates ended by itself, with %s %d",
                       WIFSIGNALED(status) ? "signal" : "status",
                       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

/* Sends a line and takes the answer's. */
static int ask(struct shore__chat_helper *h, const json_t *question, struct shore__chat_text **out, size_t *count,
               struct shore_diag *diag) {
    char *line = json_dumps(question, JSON_COMPACT | JSON_ENSURE_ASCII), block[BLOCK_BYTES], *end = NULL;
    if (!line) return shore__out_of_memory(diag);
    size_t bytes = strlen(line);
    line[bytes] = '\n'; /* in place of its end */
    int rc = send_all(h->fd, line, bytes + 1) ? ended(h, diag) : 0;
    unsigned waits = PATIENCE * WAITS_A_SECOND * h->chat->seconds;
    free(line);
    h->answer.count = 0;
    while (rc == 0 && !end) {
        errno = 0;
        ssize_t n = recv(h->fd, block, sizeof block, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN && --waits)
            rc = h->chat->wait ? h->chat->wait(h->chat->wait_ctx, diag) : 0;
        else if (n <= 0)
            rc = ended(h, diag);
        else if (shore__text_append(&h->answer, block, (size_t)n))
            rc = shore__out_of_memory(diag);
        else if (h->answer.count > ANSWER_LIMIT_BYTES)
            rc = shore__fail(diag, SHORE_EINPUT, "the chat template makes more than 1 GiB of it");
        else
            end = memchr(h->answer.bytes + h->answer.count - n, '\n', (size_t)n);
    }
    return rc ? rc : shore__chat_answer(h->answer.bytes, (size_t)(end - h->answer.bytes), out, count, diag);
}

static int start(struct shore__chat_helper *h, const char *python, struct shore_diag *diag) {
    const char *const words[] = {python, "-I", "-c", script, NULL};
    const struct timeval limit = {.tv_sec = PATIENCE * (time_t)h->chat->seconds};
    const struct timeval wait = {.tv_usec = 1000000 / WAITS_A_SECOND};
    int pair[2], null = open("/dev/null", O_WRONLY | O_CLOEXEC), rc = null < 0 ? -errno : 0;
    if (!rc && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) rc = -errno;
    if (!rc) {
        setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
        setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        rc = shore__spawn((char *const *)(uintptr_t)words, pair[1], pair[1], null, &h->child);
        close(pair[1]);
        if (rc)
            close(pair[0]);
        else
            h->fd = pair[0];
    }
    if (null >= 0) close(null);
    return rc ? shore__fail(diag, rc == -ENOENT ? SHORE_EMISSING : rc, "cannot start %s: %s", python, strerror(-rc))
              : 0;
}

void shore__chat_helper_close(struct shore__chat_helper *h) {
    if (!h) return;
    if (h->fd >= 0) close(h->fd); /* its input ends, and so does it */
    if (h->child) {
        kill(h->child, SIGKILL); /* it holds nothing */
        while (waitpid(h->child, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    free(h->answer.bytes);
    free(h);
}

/* ---- questions --------------------------------------------------------------------------------------------------- */

/* The tokens that may end a turn. */
static json_t *special_tokens(const struct shore__tokenizer *t) {
    json_t *out = json_array();
    size_t bytes;
    for (uint32_t id = 0; id < t->nrules; id++) {
        const char *text = t->added_rules[id].special ? shore__vocab_text(&t->added, id, &bytes) : NULL;
        json_t *one = text ? json_stringn(text, bytes) : NULL; /* NULL: no UTF-8, which no template writes */
        if (one) json_array_append_new(out, one);
    }
    return out;
}

static int open_with(const char *python, const struct shore__chat *c, const json_t *question,
                     struct shore__chat_helper **out, struct shore_diag *diag) {
    struct shore__chat_text *texts = NULL;
    size_t count = 0;
    struct shore__chat_helper *h = calloc(1, sizeof *h);
    if (!h) return shore__out_of_memory(diag);
    h->chat = c;
    h->fd = -1;
    int rc = start(h, python, diag);
    if (rc == 0) rc = ask(h, question, &texts, &count, diag);
    shore__chat_texts_free(texts, count);
    if (rc)
        shore__chat_helper_close(h);
    else
        *out = h;
    return rc;
}

/* Whether that python3 is none that renders: it has no jinja2, or does not run. */
static bool is_no_help(int rc) {
    return rc == SHORE_EMISSING || rc == -EACCES || rc == -EIO;
}

/* Takes the first python3 of PATH that has jinja2: the first one may be of an environment for something else. */
int shore__chat_helper_open(const struct shore__chat *c, struct shore__chat_helper **out, struct shore_diag *diag) {
    json_t *question = json_pack("{s:O, s:O, s:o, s:i}", "templates", c->templates, "variables", c->variables,
                                 "special", special_tokens(c->tokenizer), "seconds", (int)c->seconds);
    const char *path = getenv("PATH");
    char *places = strdup(path ? path : "/usr/bin:/bin"), *save = NULL;
    struct shore_diag why = {0};
    int rc = question && places ? SHORE_EMISSING : shore__out_of_memory(&why);
    for (char *place = rc == SHORE_EMISSING ? strtok_r(places, ":", &save) : NULL; place && is_no_help(rc);
         place = strtok_r(NULL, ":", &save))
        if (shore__path_exists(place, "python3"))
            rc = open_with(shore__path_in(place, "python3").text, c, question, out, &why);
    free(places);
    json_decref(question);
    if (rc == SHORE_EMISSING)
        return shore__fail(diag, rc,
                           "%s/%s: longshore renders this chat template, or this row of it, with python3 and jinja2, "
                           "which are missing: apt-get install python3-jinja2",
                           c->tokenizer->directory, c->file);
    return rc ? shore__fail(diag, rc == SHORE_EINPUT ? SHORE_EFORMAT : rc, "%s/%s: %s", c->tokenizer->directory,
                            c->file, why.text)
              : 0;
}

int shore__chat_helper_render(struct shore__chat_helper *h, const json_t *row, bool whole,
                              struct shore__chat_text **out, size_t *count, struct shore_diag *diag) {
    static const char *const fields[] = {"messages", "tools", "documents", "chat_template_kwargs"};
    json_t *question = json_pack("{s:b}", "whole", whole);
    int rc = question ? 0 : shore__out_of_memory(diag);
    for (size_t i = 0; rc == 0 && i < sizeof fields / sizeof *fields; i++) {
        json_t *field = json_object_get(row, fields[i]);
        if (field && json_object_set(question, fields[i], field)) rc = shore__out_of_memory(diag);
    }
    if (rc == 0 && h->fd < 0) rc = shore__fail(diag, -EIO, "the helper that renders chat templates has ended");
    if (rc == 0) rc = ask(h, question, out, count, diag);
    json_decref(question);
    return rc;
}
