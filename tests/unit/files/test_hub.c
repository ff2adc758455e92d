/* What is taken for a hub's name, and what for a name of this machine. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <stdlib.h>

#include "files/hub.h"

static void says(const char *flag, const char *path, enum shore__hub_kind kind, const char *wanted) {
    struct shore_diag diag = {0};
    int rc = shore__hub_refuse(flag, path, kind, &diag);
    if (rc != (wanted ? SHORE_EMISSING : 0) || (wanted && !strstr(diag.text, wanted)))
        fail_msg("%s: %d, %s", path, rc, diag.text);
}

static void names_of_models_are_known(void **state) {
    says("model", "Qwen/Qwen2.5-0.5B", SHORE__HUB_MODEL,
         "Longshore does not download: 'hf download Qwen/Qwen2.5-0.5B --local-dir DIR' gets it");
    says("model", "Qwen/Qwen2.5-0.5B", SHORE__HUB_MODEL, "; then name DIR");
    says("tokenizer", "gpt2", SHORE__HUB_MODEL, "'hf download gpt2 --local-dir DIR'");
    says("", "a/b", SHORE__HUB_MODEL, "; then name DIR");
    says("model", "https://huggingface.co/Qwen/Q-1/tree/main", SHORE__HUB_MODEL, "'hf download Qwen/Q-1 --local-dir");
    says("model", "hf://Qwen/Q-1", SHORE__HUB_MODEL, "'hf download Qwen/Q-1 --local-dir");
    says("model", "https://huggingface.co/", SHORE__HUB_MODEL, "fetch it first");
}

static void names_of_data_are_known(void **state) {
    says("", "roneneldan/TinyStories", SHORE__HUB_DATA,
         "'hf download --repo-type dataset roneneldan/TinyStories --local-dir DIR'");
    says("", "https://huggingface.co/datasets/a/b", SHORE__HUB_MODEL, "--repo-type dataset a/b --local-dir");
    says("", "https://example.org/book.txt", SHORE__HUB_DATA, "fetch it first (curl -LO), then name FILE...");
    says("val-data", "s3://bucket/x", SHORE__HUB_DATA, "Longshore does not download");
    says("", "book", SHORE__HUB_DATA, NULL);
    says("", "none/book.txt", SHORE__HUB_DATA, NULL);
}

static void names_of_this_machine_are_left_alone(void **state) {
    static const char *const paths[] = {"/none", "./none", "../none/x", "a/b/c",   "a//b", "a/",  "/",
                                        "",      "~/x",    "a b/c",     "a/b'; c", "-a/b", "a/-b"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        says("model", paths[i], SHORE__HUB_MODEL, NULL);
    assert_int_equal(mkdir("models", 0777), 0);
    says("model", "models", SHORE__HUB_MODEL, NULL);
    says("model", "models/llama", SHORE__HUB_MODEL, NULL);
    assert_int_equal(rmdir("models"), 0);
    says("model", "models/llama", SHORE__HUB_MODEL, "hf download models/llama");
}

static void long_names_are_none(void **state) {
    char name[400];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    says("model", name, SHORE__HUB_MODEL, NULL);
    name[150] = '/';
    says("model", name, SHORE__HUB_MODEL, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_models_are_known),
        cmocka_unit_test(names_of_data_are_known),
        cmocka_unit_test(names_of_this_machine_are_left_alone),
        cmocka_unit_test(long_names_are_none),
    };
    char place[] = "/tmp/longshore-hub-XXXXXX";
    if (!mkdtemp(place) || chdir(place)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(place);
    return failed;
}
