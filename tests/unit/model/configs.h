/* Texts of config.json, read or refused. */
#ifndef TESTS_UNIT_MODEL_CONFIGS_H
#define TESTS_UNIT_MODEL_CONFIGS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "model/families/families.h"

static inline int read_config(const char *text, struct shore__arch *arch, struct shore_diag *diag) {
    json_t *config = json_loads(text, 0, NULL);
    assert_non_null(config);
    int rc = shore__arch_from_json(config, "config.json", arch, diag);
    json_decref(config);
    return rc;
}

static inline struct shore__arch arch_of(const char *text) {
    struct shore_diag diag = {0};
    struct shore__arch arch;
    if (read_config(text, &arch, &diag)) fail_msg("%s", diag.text);
    return arch;
}

static inline void expect_refusal(const char *text, const char *part) {
    struct shore_diag diag = {0};
    struct shore__arch arch;
    assert_int_equal(read_config(text, &arch, &diag), SHORE_EINPUT);
    if (!strstr(diag.text, part)) fail_msg("\"%s\" does not say \"%s\"", diag.text, part);
}

#endif
