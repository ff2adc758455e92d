/* Drives whose UPDATE an OpenCL device computes give the bits of the plain arrays: all optimizers, moments and forms of
 * gradients, alone and beside drives of this host; also on devices that have a memory of their own, or that do not
 * divide as IEEE 754 says. (drive_bench.h has them among all drives.) */
#include "conformance/drive_bench.h"

#include <stdatomic.h>

#include "near/opencl/opencl_library.h"

/* What a device says of itself, changed. */
static struct shore__cl real;
static bool own_memory, inexact;
static atomic_uint kernels; /* that have run */

static cl_int run_kernel(cl_command_queue queue, cl_kernel kernel, cl_uint dims, const size_t *offset,
                         const size_t *items, const size_t *local, cl_uint nwait, const cl_event *wait,
                         cl_event *done) {
    kernels++;
    return real.clEnqueueNDRangeKernel(queue, kernel, dims, offset, items, local, nwait, wait, done);
}

static cl_int answer(cl_device_id id, cl_device_info what, size_t bytes, void *value, size_t *used) {
    cl_int code = real.clGetDeviceInfo(id, what, bytes, value, used);
    if (own_memory && what == CL_DEVICE_HOST_UNIFIED_MEMORY && value) memset(value, 0, sizeof(cl_bool));
    if (inexact && what == CL_DEVICE_SINGLE_FP_CONFIG && value)
        *(cl_device_fp_config *)value &= ~(cl_device_fp_config)CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT;
    return code;
}

static int opencl_setup(void **state) {
    const struct shore__cl *loaded;
    struct shore_diag diag = {0};
    (void)state;
    if (shore__cl_load(&loaded, &diag)) return 0; /* each test says so */
    real = *loaded;
    struct shore__cl *changed = (struct shore__cl *)(uintptr_t)loaded;
    changed->clGetDeviceInfo = answer;
    changed->clEnqueueNDRangeKernel = run_kernel;
    return 0;
}

static const struct {
    enum shore_optimizer optimizer;
    bool momentum;
} all[] = {{SHORE_ADAMW, false}, {SHORE_ADAM, false}, {SHORE_SGD, false}, {SHORE_SGD, true}, {SHORE_ADAGRAD, false}};
enum { OPTIMIZERS = sizeof all / sizeof all[0] };

/* Two steps; false: there is no OpenCL here. */
static bool steps(const char *kinds, uint32_t chunk, size_t optimizer, enum shore_moments moments,
                  enum shore_gradient_form form) {
    const struct config config = {kinds, kinds, SHORE_IO_AUTO, chunk, chunk == 1, moments};
    struct bench b;
    if (!bench_open(&b, &config, all[optimizer].optimizer, all[optimizer].momentum)) return false;
    b.plain.form = form;
    kernels = 0;
    step(&b);
    assert_true(kernels > 0);
    assert_digest(b.fleet, &b.plain, true);
    struct step_how how = {.coefficient = 0.37f, .spill = form != SHORE_GRADIENT_SPARSE, .params = true};
    for (uint32_t i = 0; i < BLOCKS; i++)
        how.params_out[i] = pages(b.plain.layout->blocks[i].padded_elems * 2);
    must(&b, fleet_updates(b.fleet, &b.plain, 1, &how, &b.diag));
    must(&b, fleet_commit(b.fleet, 1, false, &b.diag));
    plain_step(&b.plain, 0.37f);
    assert_digest(b.fleet, &b.plain, true);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        const uint16_t *params = how.params_out[i];
        for (uint64_t e = 0; e < b.plain.layout->blocks[i].elems; e++) {
            uint16_t hi, lo;
            shore__split_f32(b.plain.master[i][e], &hi, &lo);
            assert_int_equal(params[e], hi);
        }
        free(how.params_out[i]);
    }
    bench_close(&b);
    return true;
}

static void all_optimizers_moments_and_forms(void **state) {
    static const char *const kinds[] = {"o", "of", "oor", "ou"};
    (void)state;
    for (size_t o = 0; o < OPTIMIZERS; o++)
        for (int moments = SHORE_MOMENTS_FP32; moments <= SHORE_MOMENTS_8BIT; moments++)
            for (int form = SHORE_GRADIENT_FP32; form <= SHORE_GRADIENT_SPARSE; form++)
                if (!steps(kinds[(o + form) % 4], o % 3, o, moments, form)) skip();
}

static void devices_with_a_memory_of_their_own(void **state) {
    (void)state;
    own_memory = true;
    for (size_t o = 0; o < OPTIMIZERS; o++)
        for (int form = SHORE_GRADIENT_FP32; form <= SHORE_GRADIENT_SPARSE; form++)
            if (!steps("of", 3, o, (o + form) % 2 ? SHORE_MOMENTS_8BIT : SHORE_MOMENTS_FP32, form)) skip();
    own_memory = false;
}

/* Both that divide, each with a kind of moments: kernels take a second to compile. */
static void devices_that_divide_in_their_own_way(void **state) {
    (void)state;
    inexact = true;
    for (int form = SHORE_GRADIENT_FP32; form <= SHORE_GRADIENT_SPARSE; form++)
        if (!steps("o", 2, 0, SHORE_MOMENTS_8BIT, form) || !steps("of", 2, 4, SHORE_MOMENTS_FP32, form)) skip();
    inexact = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_optimizers_moments_and_forms),
        cmocka_unit_test(devices_with_a_memory_of_their_own),
        cmocka_unit_test(devices_that_divide_in_their_own_way),
    };
    server_start();
    int failed = cmocka_run_group_tests(tests, opencl_setup, NULL);
    server_stop();
    return failed;
}
