/* Descriptions of machines: reading, refusing, writing; rates of work. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "machine/machine.h"

static struct shore_machine *taken(const char *text) {
    struct shore_machine *m = NULL;
    struct shore_diag diag = {0};
    if (shore_machine_parse(text, strlen(text), "test.json", &m, &diag)) fail_msg("%s", diag.text);
    return m;
}

static void refused(const char *text, const char *because) {
    struct shore_machine *m = NULL;
    struct shore_diag diag = {0};
    assert_int_equal(shore_machine_parse(text, strlen(text), "test.json", &m, &diag), SHORE_EINPUT);
    assert_null(m);
    assert_non_null(strstr(diag.text, "test.json"));
    if (!strstr(diag.text, because)) fail_msg("'%s' does not say '%s'", diag.text, because);
}

static const char everything[] =
    "{\"name\": \"rack\", \"about\": \"of 2030\", \"measured\": 1790000000, \"scale\": 10,"
    "\"host\": {\"processor\": \"abacus\", \"memory\": \"40KiB\", \"cores\": 12, \"bandwidth\": 5e9},"
    "\"gpu\": {\"memory\": 1000, \"pinned\": 500}, \"bus\": {\"in\": 10, \"out\": 20, \"both\": 25},"
    "\"link\": {\"shared\": \"8GB\"},"
    "\"drives\": [{\"read\": 2800, \"write\": \"1650\", \"mixed\": 3000, \"compute\": \"8KB\", \"memory\": \"4KiB\","
    "  \"room\": 100, \"flush\": 0.25, \"device\": \"a\", \"on-host\": true, \"path\": \"/a\","
    "  \"slower-after\": 7, \"slower-by\": 2},"
    "  {\"read\": 50, \"device\": \"b\"}, {\"device\": \"a\"}],"
    "\"compute\": {\"forward\": 0.5, \"backward\": 4, \"products\": {\"fp32\": 1000, \"bf16\": [[64, 100], [256, 300]],"
    "  \"attention\": {\"fp32\": [[1, 50]]}, \"rows\": {\"fp32\": \"1KB\"}},"
    "  \"torch\": {\"fp32\": 300, \"rows\": {\"fp32\": 90}}},"
    "\"host-update\": {\"rate\": \"3GB\", \"buffers\": 3}, \"model\": {\"layers\": 7}}";

static void everything_is_read_and_divided_by_the_scale(void **state) {
    struct shore_machine *m = taken(everything);
    assert_string_equal(m->name, "rack");
    assert_string_equal(m->processor, "abacus");
    assert_int_equal(m->measured, 1790000000);
    assert_int_equal(m->host_memory, 4096);
    assert_int_equal(m->cores, 12);
    assert_true(m->memory_bandwidth == 5e8);
    assert_int_equal(m->gpu_memory, 100);
    assert_int_equal(m->pinned_memory, 50);
    assert_true(m->bus_in == 1 && m->bus_out == 2 && m->bus_both == 2.5);
    assert_true(m->link_shared && m->link[0] == 8e8);
    assert_int_equal(m->ndrives, 3);
    assert_true(m->drive[0].read == 280 && m->drive[0].write == 165 && m->drive[0].mixed == 300);
    assert_true(m->drive[0].update == 50); /* 8,000 bytes, 16 of an element */
    assert_int_equal(m->drive[0].memory, 410);
    assert_int_equal(m->drive[0].room, 10);
    assert_true(m->drive[0].flush_seconds == 0.25 && m->drive[0].host_computes);
    assert_int_equal(m->drive[0].shares, 0);
    assert_int_equal(m->drive[1].shares, 0);
    assert_int_equal(m->drive[2].shares, 1);
    assert_true(m->drive[1].read == 5 && m->drive[1].write == 0);
    assert_true(m->forward_seconds == 0.5 && m->backward_seconds == 4);
    assert_true(m->torch_rate[SHORE_WORK_ATTENTION][SHORE_PRECISION_FP32].at[0].per_second == 30);
    assert_true(m->torch_rate[SHORE_WORK_ROWS][SHORE_PRECISION_FP32].at[0].per_second == 9);
    assert_true(m->host_update == 3e8 / 16);
    assert_int_equal(m->host_buffers, 3);
    assert_ptr_equal(shore__machine_drive(m, 9), &m->drive[2]);
    shore_machine_free(m);

    m = taken("{\"link\": {\"in\": 100, \"out\": 200}}");
    assert_true(!m->link_shared && m->link[0] == 100 && m->link[1] == 200);
    assert_null(shore__machine_drive(m, 0));
    assert_string_equal(m->name, "test.json");
    shore_machine_free(m);
}

static void what_is_written_is_read_as_the_same(void **state) {
    struct shore_machine *m = taken(everything);
    char *text = shore_machine_json(m);
    struct shore_machine *again = taken(text);
    assert_memory_equal(m, again, sizeof *m);
    free(text);
    shore_machine_free(m);
    shore_machine_free(again);
}

static bool near(double a, double b) {
    return fabs(a - b) < 1e-9 * b;
}

static void rates_are_of_the_kind_precision_and_rows_or_the_nearest(void **state) {
    struct shore_machine *m = taken(everything);
#define RATE(kind, precision, rows) shore__machine_rate(m, SHORE_WORK_##kind, SHORE_PRECISION_##precision, rows)
    assert_true(RATE(PRODUCT, FP32, 7) == 100);
    assert_true(near(RATE(PRODUCT, BF16, 1), 10));
    assert_true(near(RATE(PRODUCT, BF16, 128), 20)); /* in the middle, in logarithms */
    assert_true(near(RATE(PRODUCT_WEIGHT, BF16, 4096), 30));
    assert_true(RATE(ATTENTION, FP32, 7) == 5);
    assert_true(RATE(ROWS, BF16, 7) == 100);         /* of fp32 */
    assert_true(near(RATE(PRODUCT, FP16, 256), 30)); /* of bf16 */
    assert_true(near(shore__machine_seconds(m, SHORE_WORK_PRODUCT, SHORE_PRECISION_FP32, 1, 1000), 10));
    shore_machine_free(m);
    m = taken("{\"host\": {\"bandwidth\": 77}, \"compute\": {\"products\": {\"product_input\": {\"fp32\": 9}}}}");
    assert_true(RATE(PRODUCT, FP32, 7) == 9);
    assert_true(RATE(ATTENTION, FP32, 7) == 400e9); /* nothing is near: assumed */
    assert_true(RATE(ROWS, FP32, 7) == 77);
    shore_machine_free(m);
    m = NULL;
    assert_true(RATE(PRODUCT, BF16, 7) == 400e9);
}

static void the_peak_is_the_highest_rate_of_products(void **state) {
    struct shore_machine *m =
        taken("{\"compute\": {\"products\": {\"fp32\": 5, \"product\": {\"bf16\": [[8, 3], [64, 9]]}, "
              "\"product_weight\": {\"bf16\": 7}, \"attention\": {\"bf16\": 99}}}}");
    assert_true(shore__machine_peak(m, SHORE_PRECISION_BF16) == 9);
    assert_true(shore__machine_peak(m, SHORE_PRECISION_FP32) == 5);
    assert_true(!(shore__machine_peak(m, SHORE_PRECISION_FP16) > 0)); /* no other precision stands for it */
    assert_true(!(shore__machine_peak(NULL, SHORE_PRECISION_FP32) > 0));
    shore_machine_free(m);
}

static void what_is_wrong_is_named(void **state) {
    refused("{}", "describes nothing");
    refused("drives", "test.json");
    refused("{\"lnik\": {}}", "did you mean \"link\"");
    refused("{\"drive\": []}", "did you mean \"drives\"");
    refused("{\"engine\": {}}", "there are name");
    refused("{\"link\": {\"shard\": 5}}", "did you mean \"shared\"");
    refused("{\"link\": 5}", "\"link\" is not an object");
    refused("{\"link\": {\"shared\": 5, \"in\": 5}}", "does not go with");
    refused("{\"link\": {\"shared\": \"fast\"}}", "from 1 to 1e18");
    refused("{\"link\": {\"shared\": 0}}", "from 1 to 1e18");
    refused("{\"link\": {\"shared\": -1}}", "from 1 to 1e18");
    refused("{\"link\": {\"shared\": 1e300}}", "from 1 to 1e18");
    refused("{\"link\": {\"shared\": null}}", "from 1 to 1e18");
    refused("{\"drives\": []}", "list of 1 to 64");
    refused("{\"drives\": {}}", "list of 1 to 64");
    refused("{\"drives\": [5]}", "drive 1 is not an object");
    refused("{\"drives\": [{\"slower-after\": 5}]}", "\"slower-after\" of drive 1 goes with the other one");
    refused("{\"drives\": [{\"slower-by\": 5}]}", "\"slower-by\" of drive 1 goes with the other one");
    refused("{\"drives\": [{\"slower-after\": 1.5, \"slower-by\": 5}]}", "whole number");
    refused("{\"drives\": [{\"slower-after\": 1, \"slower-by\": 0.5}]}", "from 1 to 1e+06");
    refused("{\"drives\": [{}, {\"raed\": 5}]}", "drive 2: did you mean \"read\"");
    refused("{\"drives\": [{\"device\": 5}]}", "\"device\" of drive 1 takes a text");
    refused("{\"drives\": [{\"on-host\": 1}]}", "takes true or false");
    refused("{\"host\": {\"cores\": 2.5}}", "\"cores\" of \"host\" takes a whole number");
    refused("{\"host\": {\"memory\": -5}}", "from 1 to 1e18");
    refused("{\"host\": [[[[{}]]]]}", "not an object");
    refused("{\"compute\": {\"forward\": \"fast\"}}", "number from 0 to 86400");
    refused("{\"compute\": {\"forward\": -1}}", "number from 0 to 86400");
    refused("{\"compute\": {\"products\": 5}}", "\"products\" of \"compute\" is not an object");
    refused("{\"compute\": {\"products\": {\"bf61\": 5}}}", "did you mean \"bf16\"");
    refused("{\"compute\": {\"torch\": {\"bf61\": 5}}}", "unknown key \"bf61\" in \"torch\"");
    refused("{\"compute\": {\"products\": {\"fp32\": 0}}}", "takes a rate");
    refused("{\"compute\": {\"products\": {\"fp32\": []}}}", "takes a rate");
    refused("{\"compute\": {\"products\": {\"fp32\": [[2, 5], [2, 6]]}}}", "ascending rows");
    refused("{\"compute\": {\"products\": {\"fp32\": [[0, 5]]}}}", "takes a rate");
    refused("{\"compute\": {\"products\": {\"rows\": 5}}}", "\"rows\" of \"products\" is not an object");
    refused("{\"compute\": {\"products\": {\"rows\": {\"int3\": 5}}}}", "unknown key \"int3\" in \"rows\"");
    refused("{\"host-update\": {\"buffers\": 1}}", "from 2 to 16");
    refused("{\"host-update\": {\"buffers\": 2.5}}", "from 2 to 16");
    refused("{\"scale\": 0, \"link\": {}}", "scale");
    refused("{\"scale\": \"ten\", \"link\": {}}", "scale");
    refused("{\"name\": 5, \"link\": {}}", "takes a text");
    refused("{\"link\": {}, \"link\": {}}", "test.json");
}

static void a_drive_gets_slower_after_its_step(void **state) {
    struct shore_machine *m = taken(everything);
    shore__machine_take_step(m, 7);
    assert_true(m->drive[0].read == 280 && m->drive[0].slower_after == 7 && m->drive[0].slower_by == 2);
    for (int again = 0; again < 2; again++) {
        shore__machine_take_step(m, 8 + again);
        assert_true(m->drive[0].read == 140 && m->drive[0].write == 82.5 && m->drive[0].mixed == 150);
        assert_true(m->drive[0].update == 50 && m->drive[1].read == 5);
    }
    shore__machine_slow_computing(m, 4);
    assert_true(m->forward_seconds == 2 && m->backward_seconds == 16);
    assert_true(shore__machine_rate(m, SHORE_WORK_PRODUCT, SHORE_PRECISION_FP32, 0) == 25);
    shore_machine_free(m);
}

static void sixty_four_drives_and_no_more(void **state) {
    char text[1024] = "{\"drives\": [";
    for (unsigned i = 0; i < SHORE__MACHINE_DRIVES_MAX; i++)
        strcat(text, i ? ", {}" : "{}");
    size_t end = strlen(text);
    strcpy(text + end, "]}");
    struct shore_machine *m = taken(text);
    assert_int_equal(m->ndrives, SHORE__MACHINE_DRIVES_MAX);
    shore_machine_free(m);
    strcpy(text + end, ", {}]}");
    refused(text, "list of 1 to 64");
}

static void what_is_no_file_is_named(void **state) {
    struct shore_machine *m;
    struct shore_diag diag = {0};
    assert_int_equal(shore_machine_read("no-machine", &m, &diag), SHORE_EUSAGE);
    assert_non_null(strstr(diag.text, "no-machine is not a file"));
    assert_int_equal(shore_machine_read("/", &m, &diag), SHORE_EINPUT);
}

static char cache[] = "/tmp/shore-machine-XXXXXX";

static int make_cache(void **state) {
    unsetenv("LONGSHORE_MACHINE");
    return mkdtemp(cache) ? setenv("XDG_CACHE_HOME", cache, 1) : -1;
}
static int remove_cache(void **state) {
    char path[128];
    snprintf(path, sizeof path, "%s/longshore/machine.json", cache);
    unlink(path);
    snprintf(path, sizeof path, "%s/longshore", cache);
    rmdir(path);
    return rmdir(cache);
}

static void not_kept(const char *because) {
    struct shore_machine *m;
    struct shore_diag diag = {0};
    assert_int_equal(shore_machine_kept(&m, &diag), SHORE_EMISSING);
    assert_null(m);
    if (!strstr(diag.text, because)) fail_msg("'%s' does not say '%s'", diag.text, because);
}

static void what_is_kept_is_read_until_it_is_stale(void **state) {
    struct shore_machine here, *m;
    struct shore_diag diag = {0};
    not_kept("was not measured");
    shore__machine_here(&here);
    assert_int_equal(shore_machine_keep(&here, &diag), 0);
    assert_int_equal(shore_machine_kept(&m, &diag), 0);
    assert_string_equal(m->processor, here.processor);
    shore_machine_free(m);
    /* What the package adds stays when a measurement without it follows, but not that of another machine. */
    struct shore_machine added = here, other = here;
    added.gpu_memory = 24 << 20;
    added.bus_in = 7;
    added.torch_rate[SHORE_WORK_CALLS][SHORE_PRECISION_FP32] = (struct shore__rates){{{0, 8}}, 1};
    shore_machine_keep(&added, &diag);
    shore_machine_keep(&here, &diag);
    assert_int_equal(shore_machine_kept(&m, &diag), 0);
    assert_int_equal(m->gpu_memory, 24 << 20);
    assert_true(m->bus_in == 7 && m->torch_rate[SHORE_WORK_CALLS][SHORE_PRECISION_FP32].at[0].per_second == 8);
    shore_machine_free(m);
    added.cores++;
    shore_machine_keep(&added, &diag);
    shore_machine_keep(&here, &diag);
    assert_int_equal(shore_machine_kept(&m, &diag), 0);
    assert_true(!m->gpu_memory && !(m->bus_in > 0) && !m->torch_rate[SHORE_WORK_CALLS][SHORE_PRECISION_FP32].n);
    shore_machine_free(m);
    other.cores++;
    shore_machine_keep(&other, &diag);
    not_kept("cores");
    other = here;
    other.host_memory += other.host_memory / 10;
    shore_machine_keep(&other, &diag);
    not_kept("of memory");
    other = here;
    other.measured -= 91 * 24 * 3600;
    shore_machine_keep(&other, &diag);
    not_kept("91 days ago");
    other = here;
    other.format++;
    shore_machine_keep(&other, &diag);
    not_kept("another version");
    setenv("LONGSHORE_MACHINE", "none", 1);
    not_kept("LONGSHORE_MACHINE=none");
    setenv("LONGSHORE_MACHINE", "gpu-24gb", 1);
    assert_int_equal(shore_machine_kept(&m, &diag), 0);
    assert_string_equal(m->name, "gpu-24gb");
    shore_machine_free(m);
    unsetenv("LONGSHORE_MACHINE");
}

static void what_ships_is_read_by_its_name(void **state) {
    struct shore_machine *m;
    struct shore_diag diag = {0};
    uint32_t n = 0;
    for (const char *name; (name = shore_machine_shipped(n)); n++) {
        if (shore_machine_read(name, &m, &diag)) fail_msg("%s", diag.text);
        assert_string_equal(m->name, name);
        assert_true(*m->about && m->ndrives);
        assert_null(strstr(m->about, "...")); /* not cut */
        shore_machine_free(m);
    }
    assert_int_equal(n, 6);
}

static void drives_are_known_by_order_or_by_device(void **state) {
    const char *drives[] = {"/tmp/a", "/tmp/b", "ram:"};
    struct shore_machine *m = taken(everything);
    assert_int_equal(shore__machine_take_drives(m, drives, 2, true), 0);
    assert_true(m->drive[0].read == 280 && m->drive[1].read == 5);
    shore_machine_free(m);
    m = taken(everything);
    assert_int_equal(shore__machine_take_drives(m, drives, 2, false), 2); /* it was measured, elsewhere */
    assert_true(m->drive[0].mixed == shore__machine_assumed()->drive[0].mixed);
    assert_int_equal(m->drive[1].shares, 1); /* both lie in /tmp */
    strcpy(m->drive[0].device, m->drive[1].device);
    m->drive[0].read = 77;
    m->ndrives = 1;
    assert_int_equal(shore__machine_take_drives(m, drives, 3, false), 0);
    assert_true(m->drive[2].mixed == m->memory_bandwidth && m->drive[2].update == m->host_update); /* ram: */
    assert_true(m->drive[0].read == 77 && m->drive[1].read == 77);
    assert_true(m->drive[0].room > 0);
    assert_int_equal(m->drive[1].shares, 1);
    assert_int_equal(m->drive[2].shares, 0);
    shore_machine_free(m);
    const char *devices[] = {"opencl:/tmp/a", "/tmp/b"}; /* one place, measured as a file: what does the device do? */
    m = taken(everything);
    assert_int_equal(shore__machine_take_drives(m, drives, 2, false), 2);
    strcpy(m->drive[0].device, m->drive[1].device);
    m->drive[0].read = 77;
    m->drive[0].update = 5;
    m->ndrives = 1;
    assert_int_equal(shore__machine_take_drives(m, devices, 2, false), 0);
    assert_true(m->drive[0].read == 77 && m->drive[0].update == 0 && !m->drive[0].host_computes);
    assert_true(m->drive[1].read == 77 && m->drive[1].update == 5 && m->drive[1].host_computes);
    shore_machine_free(m);
    m = taken("{\"drives\": [{\"read\": 5, \"device\": \"x\"}, {\"read\": 6, \"device\": \"x\"}]}");
    assert_int_equal(shore__machine_take_drives(m, drives, 3, true), 0);
    assert_int_equal(m->ndrives, 3);
    assert_true(m->drive[0].read == 5 && m->drive[1].read == 6 && m->drive[2].read == 6);
    assert_int_equal(m->drive[1].shares, 1);
    assert_int_equal(m->drive[2].shares, 0);
    shore_machine_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_is_read_and_divided_by_the_scale),
        cmocka_unit_test(what_is_written_is_read_as_the_same),
        cmocka_unit_test(rates_are_of_the_kind_precision_and_rows_or_the_nearest),
        cmocka_unit_test(the_peak_is_the_highest_rate_of_products),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(sixty_four_drives_and_no_more),
        cmocka_unit_test(a_drive_gets_slower_after_its_step),
        cmocka_unit_test(what_is_no_file_is_named),
        cmocka_unit_test_setup_teardown(what_is_kept_is_read_until_it_is_stale, make_cache, remove_cache),
        cmocka_unit_test(what_ships_is_read_by_its_name),
        cmocka_unit_test(drives_are_known_by_order_or_by_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
