/* Files that describe a machine to emulate. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "files/json.h"
#include "run/emulation/emulate.h"

static int read_text(const char *text, struct shore__emulation *out, struct shore_diag *diag) {
    json_t *json;
    assert_int_equal(shore__json_parse(text, strlen(text), "test.json", &json, diag), 0);
    int rc = shore__emulation_from_json(json, "test.json", out, diag);
    json_decref(json);
    return rc;
}

static void refused(const char *text, const char *because) {
    struct shore__emulation e;
    struct shore_diag diag = {0};
    assert_int_equal(read_text(text, &e, &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "test.json"));
    if (!strstr(diag.text, because)) fail_msg("'%s' does not say '%s'", diag.text, because);
}

static void everything_is_read_and_divided_by_the_scale(void **state) {
    struct shore__emulation e;
    struct shore_diag diag = {0};
    const char *text = "{\"name\": \"rack\", \"about\": \"of 2030\", \"scale\": 10, \"link\": {\"shared\": \"8GB\"},"
                       "\"drives\": [{\"read\": 2800, \"write\": \"1650\", \"mixed\": 3000, \"compute\": \"8KB\","
                       "\"memory\": \"4KiB\"}, {\"read\": 50}],"
                       "\"compute\": {\"forward\": 0.5, \"backward\": 4},"
                       "\"host-update\": {\"rate\": \"3GB\", \"buffers\": 3}}";
    assert_int_equal(read_text(text, &e, &diag), 0);
    assert_string_equal(e.name, "rack");
    assert_true(e.link_shared);
    assert_int_equal(e.link[0], 800000000);
    assert_int_equal(e.ndrives, 2);
    assert_int_equal(e.drive[0].read, 280);
    assert_int_equal(e.drive[0].write, 165);
    assert_int_equal(e.drive[0].mixed, 300);
    assert_int_equal(e.drive[0].compute, 800);
    assert_int_equal(e.drive[0].memory_bytes, 410);
    assert_int_equal(e.drive[1].read, 5);
    assert_int_equal(e.drive[1].write, 0);
    assert_true(e.forward_seconds == 0.5 && e.backward_seconds == 4);
    assert_int_equal(e.host_update, 300000000);
    assert_int_equal(e.host_buffers, 3);

    assert_int_equal(read_text("{\"link\": {\"in\": 100, \"out\": 200}}", &e, &diag), 0);
    assert_false(e.link_shared);
    assert_int_equal(e.link[0], 100);
    assert_int_equal(e.link[1], 200);
    assert_int_equal(e.ndrives, 0);
    assert_string_equal(e.name, "test.json");
}

static void what_is_wrong_is_named(void **state) {
    refused("{}", "sets no limit");
    refused("{\"lnik\": {}}", "did you mean \"link\"");
    refused("{\"engine\": {}}", "there are name");
    refused("{\"link\": {\"shard\": 5}}", "did you mean \"shared\"");
    refused("{\"link\": 5}", "not an object");
    refused("{\"link\": {\"shared\": 5, \"in\": 5}}", "does not go with");
    refused("{\"link\": {\"shared\": \"fast\"}}", "size from 1 B");
    refused("{\"link\": {\"shared\": 0}}", "size from 1 B");
    refused("{\"link\": {\"shared\": -1}}", "size from 1 B");
    refused("{\"link\": {\"shared\": 1e30}}", "size from 1 B");
    refused("{\"link\": {\"shared\": null}}", "size from 1 B");
    refused("{\"drives\": []}", "list of 1 to");
    refused("{\"drives\": {}}", "list of 1 to");
    refused("{\"drives\": [5]}", "drive 1 is not an object");
    refused("{\"drives\": [{}, {\"raed\": 5}]}", "drive 2: did you mean \"read\"");
    refused("{\"compute\": {\"forward\": \"fast\"}}", "number from 0 to 86400");
    refused("{\"compute\": {\"forward\": -1}}", "number from 0 to 86400");
    refused("{\"host-update\": {\"buffers\": 1}}", "from 2 to 16");
    refused("{\"host-update\": {\"buffers\": 2.5}}", "from 2 to 16");
    refused("{\"scale\": 0, \"link\": {}}", "scale");
    refused("{\"scale\": \"ten\", \"link\": {}}", "scale");
    refused("{\"name\": 5, \"link\": {}}", "not a text");
}

static void sixty_four_drives_and_no_more(void **state) {
    struct shore__emulation e;
    struct shore_diag diag = {0};
    json_t *json = json_object(), *drives = json_array();
    json_object_set_new(json, "drives", drives);
    for (uint32_t i = 0; i < SHORE__EMULATED_DRIVES_MAX; i++)
        json_array_append_new(drives, json_pack("{s:i}", "read", 100));
    assert_int_equal(shore__emulation_from_json(json, "test.json", &e, &diag), 0);
    assert_int_equal(e.ndrives, SHORE__EMULATED_DRIVES_MAX);
    json_array_append_new(drives, json_object());
    assert_int_equal(shore__emulation_from_json(json, "test.json", &e, &diag), SHORE_EINPUT);
    json_decref(json);
}

static void what_is_no_file_is_named(void **state) {
    struct shore__emulation e;
    struct shore_diag diag = {0};
    assert_int_equal(shore__emulation_open("smart-infinity", &e, &diag), SHORE_EUSAGE);
    assert_non_null(strstr(diag.text, "smart-infinity is not a file"));
    assert_int_equal(shore__emulation_open("/", &e, &diag), SHORE_EINPUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_is_read_and_divided_by_the_scale),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(sixty_four_drives_and_no_more),
        cmocka_unit_test(what_is_no_file_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
