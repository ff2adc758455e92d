/* Calls of OpenCL that fail in the middle of a step: the error is the drive's, names it and the call, and fails this
 * attempt alone. The committed step is still there, and the step can be taken again. Then devices that cannot be used.
 */
#include "fault/faulty_fleet.h"

#include <errno.h>

#include "near/opencl/opencl_device.h"

/* One call of a function fails: the first of `after` that are counted down; -1: none. */
static struct shore__cl real, *changed;
static int after = -1;

static bool fails(void) {
    return after >= 0 && after-- == 0;
}

/* clCreateBuffer and clEnqueueMapBuffer hand out what they made, and the code. */
static cl_mem create_buffer(cl_context context, cl_mem_flags flags, size_t bytes, void *host, cl_int *code) {
    if (!fails()) return real.clCreateBuffer(context, flags, bytes, host, code);
    *code = CL_MEM_OBJECT_ALLOCATION_FAILURE;
    return NULL;
}
static void *map(cl_command_queue queue, cl_mem mem, cl_bool blocking, cl_map_flags flags, size_t offset, size_t bytes,
                 cl_uint nwait, const cl_event *wait, cl_event *done, cl_int *code) {
    if (!fails()) return real.clEnqueueMapBuffer(queue, mem, blocking, flags, offset, bytes, nwait, wait, done, code);
    *code = CL_MAP_FAILURE;
    return NULL;
}
static cl_int unmap(cl_command_queue queue, cl_mem mem, void *at, cl_uint nwait, const cl_event *wait, cl_event *done) {
    return fails() ? CL_OUT_OF_RESOURCES : real.clEnqueueUnmapMemObject(queue, mem, at, nwait, wait, done);
}
static cl_int set_arg(cl_kernel kernel, cl_uint number, size_t bytes, const void *value) {
    return fails() ? CL_OUT_OF_RESOURCES : real.clSetKernelArg(kernel, number, bytes, value);
}
static cl_int run_kernel(cl_command_queue queue, cl_kernel kernel, cl_uint dims, const size_t *offset,
                         const size_t *items, const size_t *local, cl_uint nwait, const cl_event *wait,
                         cl_event *done) {
    return fails() ? CL_OUT_OF_RESOURCES
                   : real.clEnqueueNDRangeKernel(queue, kernel, dims, offset, items, local, nwait, wait, done);
}
static cl_int flush(cl_command_queue queue) {
    return fails() ? CL_OUT_OF_RESOURCES : real.clFlush(queue);
}
/* What a kernel ended with; a device that is lost says so here. */
static cl_int event_info(cl_event event, cl_event_info what, size_t bytes, void *value, size_t *used) {
    cl_int code = real.clGetEventInfo(event, what, bytes, value, used);
    if (what == CL_EVENT_COMMAND_EXECUTION_STATUS && *(cl_int *)value == CL_COMPLETE && fails())
        *(cl_int *)value = CL_OUT_OF_RESOURCES;
    return code;
}
static cl_int device_info(cl_device_id id, cl_device_info what, size_t bytes, void *value, size_t *used) {
    cl_int code = real.clGetDeviceInfo(id, what, bytes, value, used);
    if (what == CL_DEVICE_SINGLE_FP_CONFIG && value && fails())
        *(cl_device_fp_config *)value &= ~(cl_device_fp_config)CL_FP_DENORM;
    return code;
}

static int find_opencl(void **state) {
    const struct shore__cl *loaded;
    struct shore_diag diag = {0};
    struct shore__cl_device device;
    const struct shore__opencl_options options = {.memory = 0};
    const char *ci = getenv("CI");
    (void)state;
    if (shore__opencl_device(&options, 0, &device, &diag) || shore__cl_load(&loaded, &diag)) {
        print_message("not here: %s\n", diag.text);
        return ci && strcmp(ci, "true") == 0;
    }
    changed = (struct shore__cl *)(uintptr_t)loaded;
    real = *loaded;
    return 0;
}

static int restore(void **state) {
    (void)state;
    if (changed) *changed = real;
    after = -1;
    return 0;
}

/* A step in which one call fails, and the step again. */
static void once(struct fault *t, int which, const char *function) {
    struct step_how how = {.coefficient = 1};
    bool failed = false;
    for (int calls = which; !failed; calls = calls ? calls / 2 : 0) {
        after = calls;
        int rc = fleet_updates(t->fleet, &t->plain, t->plain.step, &how, &t->diag);
        failed = after < 0;
        after = -1;
        assert_true(failed || calls > 0); /* it is called */
        if (rc != (failed ? -EIO : 0)) fail_msg("%s, call %d: %d: %s", function, calls, rc, t->diag.text);
        if (failed) {
            says(t, function);
            says(t, ".volume");
            assert_int_equal(fleet_commit(t->fleet, t->plain.step, false, &t->diag), -EIO);
        }
        shore_fleet_discard(t->fleet);
        assert_digest(t->fleet, &t->plain, true);
    }
    step(t);
    assert_digest(t->fleet, &t->plain, true);
}

static void a_failed_call_fails_its_attempt_only(void **state) {
    if (!changed) skip();
    struct fault t;
    start(&t, "of");
    for (int which = 0; which < 8; which += 7) {
        changed->clCreateBuffer = create_buffer;
        once(&t, which, "clCreateBuffer: CL_MEM_OBJECT_ALLOCATION_FAILURE (-4)");
        *changed = real;
        changed->clEnqueueMapBuffer = map;
        once(&t, which, "clEnqueueMapBuffer: CL_MAP_FAILURE (-12)");
        *changed = real;
        changed->clEnqueueUnmapMemObject = unmap; /* of planes; behind a kernel, there is nothing to lose */
        once(&t, 0, "clEnqueueUnmapMemObject");
        *changed = real;
        changed->clSetKernelArg = set_arg;
        once(&t, which, "clSetKernelArg");
        *changed = real;
        changed->clEnqueueNDRangeKernel = run_kernel;
        once(&t, which, "clEnqueueNDRangeKernel: CL_OUT_OF_RESOURCES (-5)");
        *changed = real;
        changed->clFlush = flush;
        once(&t, which, "clFlush");
        *changed = real;
        changed->clGetEventInfo = event_info;
        once(&t, which, "CL_OUT_OF_RESOURCES");
        *changed = real;
    }
    must(&t, open_again(&t));
    assert_digest(t.fleet, &t.plain, true);
    finish(&t);
}

/* Each is refused with a sentence, and nothing is made. */
static void devices_that_cannot_be_used(void **state) {
    static const struct {
        const char *options, *sentence;
    } cases[] = {
        {"device=no such", "there is no such device; there are: 0 "},
        {"device=99", "there is no such device"},
        {"memory=64KiB", "is too little: at least"},
        {"memory=100TiB", "the device"},
        {"memory=much", "memory takes a size"},
        {"speed=1", "takes device=NAME|INDEX, memory=SIZE and binary=FILE"},
        {"binary=/proc/self/exe", "is no program for the device"},
        {"binary=no such file", "cannot be read"},
    };
    if (!changed) skip();
    struct place place;
    struct plain plain;
    struct shore_fleet *fleet;
    struct fault t = {.note = ""};
    place_open(&place, "o");
    plain_open(&plain, SHORE_ADAMW, false);
    struct shore_fleet_options options = {.size = sizeof options, .drives = place.paths, .ndrives = 1};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        setenv(SHORE__OPENCL_VARIABLE, cases[i].options, 1);
        int rc = shore_fleet_create(plain.layout, &options, &fleet, &t.diag);
        if (rc == 0) fail_msg("%s is accepted", cases[i].options);
        says(&t, cases[i].sentence);
        assert_int_not_equal(access(place.path[0], F_OK), 0);
    }
    unsetenv(SHORE__OPENCL_VARIABLE);
    changed->clGetDeviceInfo = device_info;
    after = 0;
    assert_int_equal(shore_fleet_create(plain.layout, &options, &fleet, &t.diag), SHORE_EUSAGE);
    says(&t, "does not keep denormal numbers");
    assert_int_not_equal(access(place.path[0], F_OK), 0);
    plain_close(&plain);
    place_close(&place);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_failed_call_fails_its_attempt_only, restore),
        cmocka_unit_test_teardown(devices_that_cannot_be_used, restore),
    };
    return cmocka_run_group_tests(tests, find_opencl, NULL);
}
