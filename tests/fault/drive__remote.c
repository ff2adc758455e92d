/* A remote drive whose other side lies or is cut off; and the bytes that crossed, counted by somebody between the two.
 */
#include "fault/between.h"

#if defined(__SANITIZE_THREAD__)
#define STRIDE 4u
#else
#define STRIDE 1u
#endif

/* false: the other side gave up first, out of a patience as long. */
static bool lie_is_noticed(enum fault fault, bool to_server, unsigned at, double patience) {
    const char *name = faults[fault].name, *who = to_server ? "server" : "client";
    const bool harmless = to_server && !faults[fault].server;
    const char *wanted = to_server ? faults[fault].server : faults[fault].client;
    struct between b;
    struct shore_diag why = {0};
    char seconds[24];
    snprintf(seconds, sizeof seconds, "%g", patience);
    setenv("LONGSHORE_SILENCE", seconds, 1);
    alarm(300);
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
        cmocka_unit_test(test_garbage_before_the_greeting),
        cmocka_unit_test(test_ledger_counts_every_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
