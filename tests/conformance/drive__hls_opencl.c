/* Drives with `binary=`: a program with the kernel `update`, as src/near/hls/ is built for FPGAs. PoCL has the memory
 * of such a card, which has its own and does not keep denormals, and the kernel that is called is that of
 * src/near/hls/, built for this processor, with the arguments that the engine has set. */
#include "conformance/drive_opencl.h"

#include <dlfcn.h>
#include <pthread.h>

#include "near/hls/kernel.h"

enum { KERNELS_MOST = 64, ARGS = 24 };
struct argument {
    size_t bytes; /* 0: NULL */
    union {
        cl_mem mem;
        cl_uint number;
    } is;
};
static struct taken {
    cl_kernel kernel;
    struct argument arg[ARGS];
} taken[KERNELS_MOST];
static __typeof__(clGetMemObjectInfo) *size_of; /* which the library does not need */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static cl_int answer(cl_device_id id, cl_device_info what, size_t bytes, void *value, size_t *used) {
    cl_int code = real.clGetDeviceInfo(id, what, bytes, value, used);
    if (what == CL_DEVICE_HOST_UNIFIED_MEMORY && value) memset(value, 0, sizeof(cl_bool));
    if (what == CL_DEVICE_SINGLE_FP_CONFIG && value)
        *(cl_device_fp_config *)value &= ~(cl_device_fp_config)(CL_FP_DENORM | CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT);
    return code;
}

static cl_program from_binary(cl_context context, cl_uint n, const cl_device_id *ids, const size_t *bytes,
                              const unsigned char **data, cl_int *status, cl_int *code) {
    const char *text = "__kernel void update(__global int *unused) {}";
    if (status) *status = 0;
    return real.clCreateProgramWithSource(context, 1, &text, NULL, code);
}

/* Room of a kernel, which has its number again if it was released. */
static struct taken *of(cl_kernel kernel) {
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < KERNELS_MOST && taken[i].kernel && taken[i].kernel != kernel)
        i++;
    assert_true(i < KERNELS_MOST);
    taken[i].kernel = kernel;
    pthread_mutex_unlock(&lock);
    return &taken[i];
}

static cl_int set_arg(cl_kernel kernel, cl_uint number, size_t bytes, const void *value) {
    assert_true(number < ARGS);
    struct argument *arg = &of(kernel)->arg[number];
    *arg = (struct argument){.bytes = value ? bytes : 0};
    if (value) memcpy(&arg->is, value, bytes);
    return 0;
}

struct mapped {
    cl_mem mem;
    void *at;
};

static void *at_of(cl_command_queue queue, struct mapped mapped[ARGS], const struct argument *arg) {
    cl_int code = 0;
    size_t bytes = 0;
    int i = 0;
    if (!arg->bytes) return NULL;
    assert_int_equal(arg->bytes, sizeof(cl_mem));
    while (mapped[i].mem && mapped[i].mem != arg->is.mem)
        i++;
    if (mapped[i].mem) return mapped[i].at;
    size_of(arg->is.mem, CL_MEM_SIZE, sizeof bytes, &bytes, NULL);
    mapped[i].mem = arg->is.mem;
    mapped[i].at = real.clEnqueueMapBuffer(queue, arg->is.mem, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, bytes, 0, NULL,
                                           NULL, &code);
    assert_int_equal(code, 0);
    assert_int_equal((uintptr_t)mapped[i].at % 64, 0);
    return mapped[i].at;
}

struct call {
    void *p[ARGS];
    uint32_t n[ARGS];
};
static void *call(void *ctx) {
    const struct call *c = ctx;
    void *const *p = c->p;
    const uint32_t *n = c->n;
    update(p[0], p[1], p[2], n[3], n[4], n[5], p[6], n[7], p[8], p[9], p[10], p[11], p[12], p[13], p[14], p[15], p[16],
           p[17], p[18], n[19], n[20], n[21], n[22], n[23]);
    return NULL;
}

/* What the kernel has on the chip is on the stack here, and the threads of drives have a small one. */
static void call_with_room(struct call *c) {
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, (size_t)16 << 20);
    assert_int_equal(pthread_create(&thread, &attr, call, c), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
}

static cl_int run_kernel(cl_command_queue queue, cl_kernel kernel, cl_uint dims, const size_t *offset,
                         const size_t *items, const size_t *local, cl_uint nwait, const cl_event *wait,
                         cl_event *done) {
    struct mapped mapped[ARGS + 1] = {{NULL, NULL}};
    const struct argument *a = of(kernel)->arg;
    struct call c = {.n = {0}};
    assert_true(dims == 1 && *items == 1 && *local == 1);
    for (int i = 0; i < ARGS; i++) {
        if ((i >= 3 && i <= 5) || i == 7 || i >= 19) {
            assert_int_equal(a[i].bytes, sizeof(cl_uint));
            c.n[i] = a[i].is.number;
        } else {
            c.p[i] = at_of(queue, mapped, &a[i]);
        }
    }
    call_with_room(&c);
    for (int i = 0; mapped[i].mem; i++)
        real.clEnqueueUnmapMemObject(queue, mapped[i].mem, mapped[i].at, 0, NULL, NULL);
    kernels++;
    return 0;
}

static void the_kernel_for_fpgas_gives_the_bits(void **state) {
    (void)state;
    setenv(SHORE__OPENCL_VARIABLE, "binary=/proc/self/exe", 1);
    for (size_t o = 0; o < OPTIMIZERS; o++)
        for (int form = SHORE_GRADIENT_FP32; form <= SHORE_GRADIENT_SPARSE; form++)
            if (!opencl_steps(form ? "of" : "oo", (o + form) % 3, o,
                              (o + form) % 2 ? SHORE_MOMENTS_8BIT : SHORE_MOMENTS_FP32, form))
                skip();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_kernel_for_fpgas_gives_the_bits)};
    opencl_take();
    if (changed) {
        size_of = (__typeof__(size_of))(uintptr_t)dlsym(dlopen("libOpenCL.so.1", RTLD_NOW), "clGetMemObjectInfo");
        changed->clGetDeviceInfo = answer;
        changed->clCreateProgramWithBinary = from_binary;
        changed->clSetKernelArg = set_arg;
        changed->clEnqueueNDRangeKernel = run_kernel;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
