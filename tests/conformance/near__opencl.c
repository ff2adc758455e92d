/* The OpenCL engine on the devices that are here, and on others that a library in front of it stands in for: the bits
 * of the reference, bounded memory, and errors. Skipped, with the reason, where no platform is. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "near/opencl/opencl.h"

struct opened {
    struct shore__opencl_config config;
    struct shore__engine *engine;
    unsigned char *planes;
    struct shore__engine_block *blocks;
    uint32_t *starts;
    struct shore_diag diag;
    double seconds;
    int rc;
};

static struct shore__opencl_config wanted(enum shore_optimizer optimizer, bool coded) {
    const unsigned stored = shore_optimizer_planes(optimizer, true);
    struct shore__opencl_config c = {.drive = "the drive", .optimizer = optimizer, .chunk_segments = 2, .slots = 4};
    c.moments = coded ? SHORE_MOMENTS_8BIT : SHORE_MOMENTS_FP32;
    for (int p = 0; p <= SHORE_PLANE_V; p++)
        if (stored & 1u << p) c.plane_bytes[p] = p <= SHORE_PLANE_LO ? 131072 : coded ? 69632 : 262144;
    return c;
}

/* Opens an engine as a drive does, on the device that `fake` describes. */
static struct opened open_on(const char *fake, const char *options, struct shore__opencl_config config) {
    struct opened o = {.config = config};
    setenv("FAKE_OPENCL", fake, 1);
    o.config.options = options;
    o.rc = shore__opencl_open(&o.config, &o.engine, &o.diag);
    if (o.rc) return o;
    size_t bytes = 0;
    for (int p = 0; p < SHORE_PLANE_COUNT; p++)
        bytes += (size_t)o.config.plane_bytes[p] * o.config.chunk_segments;
    o.planes = aligned_alloc(4096, bytes);
    o.blocks = aligned_alloc(4096, o.config.chunk_segments * 4096);
    o.starts = aligned_alloc(4096, o.config.chunk_segments * 8192);
    unsigned char *planes = o.planes;
    o.rc = shore__opencl_attach(o.engine, 0, &planes, &o.diag);
    if (!o.rc) o.rc = shore__opencl_check(o.engine, planes, o.blocks, o.starts, &o.seconds, &o.diag);
    return o;
}

static void close_it(struct opened *o) {
    if (o->engine) o->engine->ops->close(o->engine);
    free(o->planes);
    free(o->blocks);
    free(o->starts);
    setenv("FAKE_OPENCL", "", 1);
}

static void passes(const char *fake, struct shore__opencl_config config) {
    struct opened o = open_on(fake, "", config);
    if (o.rc)
        fail_msg("%s, optimizer %d, moments %d: %s", fake, (int)config.optimizer, (int)config.moments, o.diag.text);
    close_it(&o);
}

static void refused(const char *fake, const char *options, int rc, const char *sentence) {
    struct opened o = open_on(fake, options, wanted(SHORE_ADAMW, false));
    if (o.rc != rc || !strstr(o.diag.text, sentence))
        fail_msg("%s %s: %d, '%s' has no '%s'", fake, options, o.rc, o.diag.text, sentence);
    close_it(&o);
}

/* Each start tests the device with a million hard cases, in every form of gradients; see opencl_check.c. */
static void the_bits_are_the_references(void **state) {
    for (int optimizer = 0; optimizer < (int)SHORE_OPTIMIZER_COUNT; optimizer++)
        for (int coded = 0; coded < 2; coded++) {
            struct shore__opencl_config config = wanted((enum shore_optimizer)optimizer, coded);
            config.fp32_params = coded != (optimizer & 1);
            passes("", config);
        }
    struct shore__opencl_config config = wanted(SHORE_SGD, false);
    config.plane_bytes[SHORE_PLANE_M] = 0;
    passes("", config);
}

static void other_devices_have_the_same_bits(void **state) {
    passes("discrete", wanted(SHORE_ADAMW, false));
    passes("p2p", wanted(SHORE_ADAMW, false));
    passes("inexact", wanted(SHORE_ADAMW, false));
    passes("inexact discrete", wanted(SHORE_ADAGRAD, true));
}

static void a_device_that_differs_is_refused(void **state) {
    refused("wrong", "", SHORE_EUSAGE, "computes other parameters than this program must");
    refused("flushing", "", SHORE_EUSAGE, "does not keep denormal numbers");
    refused("none", "", SHORE_EUSAGE, "no platform here has a device");
}

static void options_are_checked(void **state) {
    refused("", "device=no such thing", SHORE_EUSAGE, "there is no such device; there are: 0 ");
    refused("", "device=99", SHORE_EUSAGE, "there is no such device");
    refused("", "colour=red", SHORE_EUSAGE, "takes device=NAME|INDEX, memory=SIZE and binary=FILE");
    refused("", "device=0,memory=1GiB,device=1", SHORE_EUSAGE, "device is given twice");
    refused("", "memory", SHORE_EUSAGE, "not 'memory'");
    refused("", "memory=much", SHORE_EUSAGE, "takes a size such as 2GiB, not 'much'");
    refused("", "memory=1000TB", SHORE_EUSAGE, "909.49 TiB: the device");
    refused("", "memory=2MiB", SHORE_EUSAGE, "is too little: at least 3.00 MiB is needed");
    refused("memory=1000000", "", SHORE_EUSAGE, "is too little: at least 3.00 MiB is needed");
    refused("", "binary=/nowhere", -ENOENT, "/nowhere: cannot be read");
    refused("", "binary=/proc/self/exe", SHORE_EUSAGE, "is no program for the device");
}

static void memory_is_bounded(void **state) {
    struct opened o = open_on("", "memory=3MiB,device=0", wanted(SHORE_ADAMW, false));
    assert_int_equal(o.rc, 0);
    assert_int_equal(o.config.slots, 2);
    assert_int_equal(o.config.chunk_segments, 1);
    close_it(&o);
}

/* Kernels are kept after they have passed, and are a program that can be named. */
static void kernels_are_kept(void **state) {
    char cache[] = "/tmp/longshore-opencl.XXXXXX", command[400], options[400];
    assert_non_null(mkdtemp(cache));
    char *before = strdup(getenv("XDG_CACHE_HOME"));
    setenv("XDG_CACHE_HOME", cache, 1);
    refused("wrong", "", SHORE_EUSAGE, "computes other");
    struct opened o = open_on("", "", wanted(SHORE_ADAMW, false));
    assert_true(o.rc == 0 && o.seconds > 0);
    close_it(&o);
    o = open_on("", "", wanted(SHORE_ADAMW, false));
    assert_true(o.rc == 0 && o.seconds == 0);
    close_it(&o);
    /* what is kept is a key, a zero, a hash and the program */
    snprintf(command, sizeof command, "cd %s && perl -0777 -pe 's/^[^\\0]*\\0.{8}//s' longshore/opencl/* >program",
             cache);
    assert_int_equal(system(command), 0);
    snprintf(options, sizeof options, "binary=%s/program", cache);
    o = open_on("", options, wanted(SHORE_ADAMW, false));
    if (o.rc || o.seconds == 0) fail_msg("%s: %s", options, o.diag.text);
    close_it(&o);
    o = open_on("wrong", options, wanted(SHORE_ADAM, false));
    assert_true(o.rc == SHORE_EUSAGE && strstr(o.diag.text, "computes other"));
    close_it(&o);
    setenv("XDG_CACHE_HOME", before, 1);
    free(before);
    snprintf(command, sizeof command, "rm -rf %s", cache);
    assert_int_equal(system(command), 0);
}

/* A function that fails while a job runs ends the job with its name and code, and the next one works. */
static void errors_end_a_job(void **state) {
    static const struct {
        const char *fake, *sentence;
    } cases[] = {
        {"clEnqueueNDRangeKernel=1:-5", "clEnqueueNDRangeKernel: CL_OUT_OF_RESOURCES (-5)"},
        {"clCreateBuffer=3:-4", "clCreateBuffer: CL_MEM_OBJECT_ALLOCATION_FAILURE (-4)"},
        {"clSetKernelArg=2:-30", "clSetKernelArg: CL_INVALID_VALUE (-30)"},
        {"clFlush=1:-6", "clFlush: CL_OUT_OF_HOST_MEMORY (-6)"},
        {"clWaitForEvents=1:-2", "clWaitForEvents: CL_DEVICE_NOT_AVAILABLE (-2)"},
        {"lost=1:-9999", "(-9999)"},
        {"clEnqueueMapBuffer=1:-12", "clEnqueueMapBuffer: CL_MAP_FAILURE (-12)"},
        {"discrete clEnqueueWriteBuffer=4:-5", "clEnqueueWriteBuffer: CL_OUT_OF_RESOURCES (-5)"},
        {"discrete clEnqueueReadBuffer=2:-5", "clEnqueueReadBuffer: CL_OUT_OF_RESOURCES (-5)"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        bool discrete = strncmp(cases[c].fake, "discrete", 8) == 0;
        struct opened o = open_on(discrete ? "discrete" : "", "", wanted(SHORE_ADAMW, false));
        assert_int_equal(o.rc, 0);
        struct shore_hyper groups[4] = {{.lr = 1, .eps = 1, .beta2 = 0.5f}};
        float *gradient = calloc(SHORE_SEGMENT_ELEMS, sizeof *gradient);
        struct shore__engine_job job = {
            .update = {.count = 1, .gradient = gradient, .groups = groups, .ngroups = 4, .coefficient = 1},
            .blocks = o.blocks,
            .starts = o.starts,
        };
        memset(o.blocks, 0, 4096);
        setenv("FAKE_OPENCL", cases[c].fake, 1);
        o.engine->ops->submit(o.engine, &job);
        assert_ptr_equal(o.engine->ops->reap(o.engine, true), &job);
        if (job.rc != -EIO || !strstr(job.diag.text, cases[c].sentence) || !strstr(job.diag.text, "the drive: "))
            fail_msg("%s: %d, %s", cases[c].fake, job.rc, job.diag.text);
        setenv("FAKE_OPENCL", discrete ? "discrete" : "", 1);
        o.engine->ops->submit(o.engine, &job);
        assert_ptr_equal(o.engine->ops->reap(o.engine, true), &job);
        assert_true(job.rc == 0 || job.rc == SHORE_ENONFINITE);
        free(gradient);
        close_it(&o);
    }
}

/* With the library in front of it, which the loader finds by name. */
static void begin_again(char **argv) {
    if (getenv("FAKE_OPENCL")) return;
    setenv("FAKE_OPENCL", "", 1);
    setenv("LD_LIBRARY_PATH", SHORE_FAKE_OPENCL, 1);
    setenv("XDG_CACHE_HOME", SHORE_FAKE_OPENCL, 1);
    execv("/proc/self/exe", argv);
    perror("execv");
    exit(1);
}

int main(int argc, char **argv) {
    const struct shore__opencl_options options = {.memory = 0};
    struct shore__cl_device device;
    struct shore_diag diag = {0};
    begin_again(argv);
    if (shore__opencl_device(&options, 0, &device, &diag)) {
        printf("skipped: %s\n", diag.text);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_the_references),
        cmocka_unit_test(other_devices_have_the_same_bits),
        cmocka_unit_test(a_device_that_differs_is_refused),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(kernels_are_kept),
        cmocka_unit_test(errors_end_a_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
