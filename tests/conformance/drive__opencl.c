/* Drives whose UPDATE an OpenCL device computes give the bits of the plain arrays: all optimizers, moments and forms of
 * gradients, alone and beside drives of this host; also on devices that have a memory of their own, or that do not
 * divide as IEEE 754 says. (drive_bench.h has them among all drives.) */
#include "conformance/drive_opencl.h"

/* What a device says of itself, changed. */
static bool own_memory, inexact;

static cl_int answer(cl_device_id id, cl_device_info what, size_t bytes, void *value, size_t *used) {
    cl_int code = real.clGetDeviceInfo(id, what, bytes, value, used);
    if (own_memory && what == CL_DEVICE_HOST_UNIFIED_MEMORY && value) memset(value, 0, sizeof(cl_bool));
    if (inexact && what == CL_DEVICE_SINGLE_FP_CONFIG && value)
        *(cl_device_fp_config *)value &= ~(cl_device_fp_config)CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT;
    return code;
}

static void all_optimizers_moments_and_forms(void **state) {
    static const char *const kinds[] = {"o", "of", "oor", "ou"};
    (void)state;
    for (size_t o = 0; o < OPTIMIZERS; o++)
        for (int moments = SHORE_MOMENTS_FP32; moments <= SHORE_MOMENTS_8BIT; moments++)
            for (int form = SHORE_GRADIENT_FP32; form <= SHORE_GRADIENT_SPARSE; form++)
                if (!opencl_steps(kinds[(o + form) % 4], o % 3, o, moments, form)) skip();
}

static void devices_with_a_memory_of_their_own(void **state) {
    (void)state;
    own_memory = true;
    for (size_t o = 0; o < OPTIMIZERS; o++)
        for (int form = SHORE_GRADIENT_FP32; form <= SHORE_GRADIENT_SPARSE; form++)
            if (!opencl_steps("of", 3, o, (o + form) % 2 ? SHORE_MOMENTS_8BIT : SHORE_MOMENTS_FP32, form)) skip();
    own_memory = false;
}

/* Both that divide, each with a kind of moments: kernels take a second to compile. */
static void devices_that_divide_in_their_own_way(void **state) {
    (void)state;
    inexact = true;
    for (int form = SHORE_GRADIENT_FP32; form <= SHORE_GRADIENT_SPARSE; form++)
        if (!opencl_steps("o", 2, 0, SHORE_MOMENTS_8BIT, form) || !opencl_steps("of", 2, 4, SHORE_MOMENTS_FP32, form))
            skip();
    inexact = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_optimizers_moments_and_forms),
        cmocka_unit_test(devices_with_a_memory_of_their_own),
        cmocka_unit_test(devices_that_divide_in_their_own_way),
    };
    opencl_take();
    if (changed) changed->clGetDeviceInfo = answer;
    server_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    server_stop();
    return failed;
}
