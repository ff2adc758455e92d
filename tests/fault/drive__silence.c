/* A remote drive whose other side falls silent, or stands still; and who is only slow. */
#include "fault/between.h"

#include <signal.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "drive/function.h"
#include "drive/placement.h"
#include "drive/remote/wire_open.h"
#include "fast_clock.h"

static void *stand_still(void *ctx) {
    struct between *b = ctx;
    struct shore_diag why = {0};
    int rc = between_open(b, STANDSTILL, false, b->down.at);
    if (!rc) whole_step(b);
    if (b->drive && !b->diag.text[0]) shore__remote_is_broken(b->drive, &why);
    if (!b->diag.text[0]) b->diag = why;
    between_close(b);
    return NULL;
}

/* What a server says that is there and nothing else, by a clock that is fast: silence is waited for by the system's. */
static void test_standstill(void **state) {
    struct between b[2] = {{.down.at = 0}, {.down.at = 3}};
    pthread_t clients[2];
    setenv("LONGSHORE_SILENCE", "1", 1);
    alarm(300);
    fast_clock_set();
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&clients[i], NULL, stand_still, &b[i]), 0);
    for (int i = 0; i < 2; i++) {
        pthread_join(clients[i], NULL);
        said("client", "signs of life and no answer", b[i].down.at, 0, "has made no progress for 20 s", b[i].diag.text);
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
    setenv("LONGSHORE_SILENCE", "3", 1);
    alarm(300);
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
        struct shore_diag diag = {0};
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
    alarm(300);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_standstill),
        cmocka_unit_test(test_slow_work),
        cmocka_unit_test(test_heartbeat),
        cmocka_unit_test(test_stopped_while_waiting),
        cmocka_unit_test(test_a_connection_that_is_never_handed_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
