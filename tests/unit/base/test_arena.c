#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/thread.h"
#include "base/units.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WITHOUT_SANITIZER 0
#else
#define WITHOUT_SANITIZER 1
#endif

static void pieces_are_aligned_zeroed_and_accounted(void **state) {
    struct shore_arena *arena;
    assert_int_equal(shore_arena_open(10 * 4096 - 5, 0, &arena, NULL), 0);
    assert_true(shore__arena_left(arena) == 10 * 4096);
    unsigned char *a = shore__arena_alloc(arena, 1), *b = shore__arena_alloc(arena, 2 * 4096);
    assert_true((uintptr_t)a % 4096 == 0 && b == a + 4096);
    for (size_t i = 0; i < 3 * 4096; i++)
        assert_int_equal(a[i], 0);
    assert_true(shore__arena_left(arena) == 7 * 4096);
    assert_null(shore__arena_alloc(arena, 7 * 4096 + 1));
    assert_null(shore__arena_alloc(arena, UINT64_MAX));
    assert_null(shore__arena_alloc(arena, UINT64_MAX - 4095));
    shore__arena_free(arena, b);
    assert_true(shore__arena_left(arena) == 7 * 4096);
    assert_non_null(shore__arena_alloc(arena, 7 * 4096));
    assert_true(shore__arena_left(arena) == 0);
    assert_null(shore__arena_alloc(arena, 0));
    shore_arena_close(arena);
    shore_arena_close(NULL);
}

static void without_an_arena_the_system_gives(void **state) {
    unsigned char *p = shore__arena_alloc(NULL, 5000);
    assert_true(p && (uintptr_t)p % 4096 == 0);
    for (size_t i = 0; i < 8192; i++)
        assert_int_equal(p[i], 0);
    shore__arena_free(NULL, p);
    assert_null(shore__arena_alloc(NULL, UINT64_MAX));
    shore__arena_free(NULL, NULL);
}

static void impossible_sizes_are_errors(void **state) {
    struct shore_arena *arena;
    struct shore_diag diag;
    static const uint64_t sizes[] = {UINT64_MAX, UINT64_MAX / 2, UINT64_C(1) << 60};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        diag.text[0] = '\0';
        assert_int_equal(shore_arena_open(sizes[i], 0, &arena, &diag), SHORE_EBUDGET);
        assert_non_null(strstr(diag.text, "cannot give"));
    }
}

/* All of it is resident from the start, and not more, whatever the size of a huge page. */
static void resident_memory_is_what_was_asked_for(void **state) {
    static const uint64_t sizes[] = {3 << 20, (5 << 20) + 4096, (9 << 20) - 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t before, after, slack = 512 << 10; /* the kernel counts by batches */
        struct shore_arena *arena;
        shore__resident_bytes(&before, NULL);
        assert_int_equal(shore_arena_open(sizes[i], 0, &arena, NULL), 0);
        shore__resident_bytes(&after, NULL);
        if (WITHOUT_SANITIZER) {
            assert_true(after + slack >= before + sizes[i]);
            assert_true(after <= before + sizes[i] + slack);
        }
        void *all = shore__arena_alloc(arena, sizes[i]);
        assert_non_null(all);
        memset(all, 1, sizes[i]);
        shore__resident_bytes(&after, NULL);
        if (WITHOUT_SANITIZER) assert_true(after <= before + sizes[i] + slack);
        shore_arena_close(arena);
    }
}

enum { THREADS = 4, PIECES = 64 };

static void *take_pieces(void *ctx) {
    for (int i = 0; i < PIECES; i++) {
        unsigned char *p = shore__arena_alloc(ctx, 4096);
        if (!p || p[0] != 0) return NULL;
        p[0] = 1;
    }
    return ctx;
}

static void threads_take_different_pieces(void **state) {
    struct shore_arena *arena;
    pthread_t threads[THREADS];
    assert_int_equal(shore_arena_open(THREADS * PIECES * 4096, 0, &arena, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(shore__thread_start(&threads[i], "taker", take_pieces, arena), 0);
    for (int i = 0; i < THREADS; i++) {
        void *result;
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_ptr_equal(result, arena);
    }
    assert_true(shore__arena_left(arena) == 0);
    shore_arena_close(arena);
}

struct seen {
    char name[16];
    size_t stack_bytes;
    int term_blocked;
};

static void *look(void *ctx) {
    struct seen *seen = ctx;
    pthread_attr_t attr;
    sigset_t mask;
    pthread_getname_np(pthread_self(), seen->name, sizeof seen->name);
    pthread_getattr_np(pthread_self(), &attr);
    pthread_attr_getstacksize(&attr, &seen->stack_bytes);
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    seen->term_blocked = sigismember(&mask, SIGTERM);
    return ctx;
}

static void threads_are_small_named_and_without_signals(void **state) {
    struct seen seen;
    pthread_t thread;
    sigset_t before, after;
    pthread_sigmask(SIG_BLOCK, NULL, &before);
    assert_int_equal(shore__thread_start(&thread, "a name that is too long", look, &seen), 0);
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(seen.name, "a name that is ");
    if (WITHOUT_SANITIZER) assert_int_equal(seen.stack_bytes, SHORE__THREAD_STACK_BYTES);
    assert_int_equal(seen.term_blocked, 1);
    assert_int_equal(sigismember(&after, SIGTERM), sigismember(&before, SIGTERM));
}

/* KiB that the process may lock no more of. */
static size_t locked_kib(void) {
    char line[256];
    size_t kib = SIZE_MAX;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmLck: %zu kB", &kib) == 1) break;
    if (status) fclose(status);
    return kib;
}

static void other_programs_get_the_same(void **state) {
    struct shore_arena *arena;
    struct shore_diag diag = {0};
    uint64_t bytes;
    assert_int_equal(shore_arena_open(3 * 4096 - 1, 0, &arena, &diag), 0);
    unsigned char *base = shore_arena_memory(arena, &bytes);
    assert_int_equal(bytes, 3 * 4096);
    assert_ptr_equal(shore_arena_alloc(arena, 1), base);
    assert_ptr_equal(shore_arena_alloc(arena, 4097), base + 4096);
    assert_int_equal(shore_arena_left(arena), 0);
    assert_null(shore_arena_alloc(arena, 1));
    assert_null(shore_arena_alloc(NULL, 1)); /* not from the system, unlike inside */
    assert_int_equal(shore_arena_left(NULL), 0);
    shore_arena_close(arena);
    assert_int_equal(shore_arena_open(UINT64_C(1) << 60, 0, &arena, &diag), SHORE_EBUDGET);
    assert_null(arena);
    assert_int_equal(shore_arena_open(4096, 2, &arena, &diag), -EINVAL);
    assert_string_equal(diag.text, "memory cannot be asked for with flags 0x2");
}

static void buffers_are_locked_where_that_is_asked_for(void **state) {
    struct shore_diag diag = {0};
    unsigned char *buffer;
    void *made;
    size_t before = locked_kib();
    assert_int_equal(shore_buffer_alloc(5000, 0, &made, &diag), 0);
    buffer = made;
    assert_true((uintptr_t)buffer % 4096 == 0 && buffer[0] == 0 && buffer[8191] == 0);
    assert_int_equal(locked_kib(), before);
    shore_buffer_free(buffer, 5000);
    int rc = shore_buffer_alloc(5000, SHORE_MEMORY_LOCKED, &made, &diag);
    if (rc) { /* where nothing may be locked */
        assert_int_equal(rc, SHORE_EBUDGET);
    } else if (before != SIZE_MAX && WITHOUT_SANITIZER) {
        assert_int_equal(locked_kib(), before + 8);
        shore_buffer_free(made, 5000);
        assert_int_equal(locked_kib(), before);
    }
    shore_buffer_free(NULL, 1);
}

/* Root may lock what it likes; a sanitizer says that all is locked. */
static void what_may_not_be_locked_is_refused(void **state) {
    if (!WITHOUT_SANITIZER) skip();
    const struct rlimit none = {0, 0};
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct shore_diag diag = {0};
        void *made;
        if (setrlimit(RLIMIT_MEMLOCK, &none) || (geteuid() == 0 && setuid(65534))) _exit(2);
        int rc = shore_buffer_alloc(4096, SHORE_MEMORY_LOCKED, &made, &diag);
        _exit(rc != SHORE_EBUDGET || made || !strstr(diag.text, " of memory cannot be locked"));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_programs_get_the_same),
        cmocka_unit_test(buffers_are_locked_where_that_is_asked_for),
        cmocka_unit_test(what_may_not_be_locked_is_refused),
        cmocka_unit_test(pieces_are_aligned_zeroed_and_accounted),
        cmocka_unit_test(without_an_arena_the_system_gives),
        cmocka_unit_test(impossible_sizes_are_errors),
        cmocka_unit_test(resident_memory_is_what_was_asked_for),
        cmocka_unit_test(threads_take_different_pieces),
        cmocka_unit_test(threads_are_small_named_and_without_signals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
