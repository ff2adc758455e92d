/* libOpenCL.so.1 in front of the real one: preloaded, or found first. FAKE_OPENCL has words that make it another
 * device, and a new value begins to count anew:
 *
 *     none              there is no platform
 *     discrete          memory of its own
 *     p2p               drives write into its memory (Xilinx)
 *     inexact           divides and takes roots roughly
 *     flushing          drops denormal numbers
 *     wrong             computes something else
 *     memory=BYTES      has that much memory
 *     lost=N:CODE       from the Nth event on, commands have failed
 *     FUNCTION=N:CODE   that function fails from its Nth call on */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define P2P_POINTER (1u << 31)

/* Preloaded: whoever asks for the library by name gets this one. */
void *dlopen(const char *name, int flags) {
    void *(*real)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    Dl_info here;
    bool ours = name && strcmp(name, "libOpenCL.so.1") == 0 && dladdr((void *)clFlush, &here);
    return real(ours ? here.dli_fname : name, flags);
}

static void *find(const char *name) {
    static const char *const places[] = {"/usr/lib/x86_64-linux-gnu/libOpenCL.so.1", "/usr/lib64/libOpenCL.so.1",
                                         "/usr/lib/aarch64-linux-gnu/libOpenCL.so.1", "/usr/lib/libOpenCL.so.1"};
    static void *library;
    for (int i = 0; !library && i < 4; i++)
        library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    return library ? dlsym(library, name) : NULL;
}

/* What stands behind a word, from its '=' on; NULL: the word is not there. */
static const char *word(const char *name) {
    const char *order = getenv("FAKE_OPENCL"), *at = order;
    size_t n = strlen(name);
    for (; at && (at = strstr(at, name)); at += n)
        if ((at == order || at[-1] == ' ') && (at[n] == '\0' || at[n] == ' ' || at[n] == '=')) return at + n;
    return NULL;
}

static cl_int fails(const char *name) {
    static char order[64][128];
    static long seen[64];
    const char *at = word(name);
    long from = 0;
    int code = 0, slot = 0;
    if (!at || sscanf(at, "=%ld:%d", &from, &code) != 2) return 0;
    while (slot < 63 && order[slot][0] && strcmp(order[slot], name) != 0)
        slot++;
    static char last[512];
    const char *all = getenv("FAKE_OPENCL");
    if (strcmp(last, all) != 0) memset(seen, 0, sizeof seen);
    snprintf(last, sizeof last, "%s", all);
    snprintf(order[slot], sizeof order[slot], "%s", name);
    return ++seen[slot] >= from ? code : 0;
}

#define REAL(name) ((__typeof__(&name))find(#name))
#define CALL(name, parameters, arguments)                      \
    cl_int name parameters {                                   \
        const cl_int code_ = find(#name) ? fails(#name) : -58; \
        return code_ ? code_ : REAL(name) arguments;           \
    }
#define MAKE(type, name, parameters, arguments)     \
    type name parameters {                          \
        const cl_int code_ = fails(#name);          \
        if (code_) *error = code_;                  \
        return code_ ? NULL : REAL(name) arguments; \
    }

cl_int clGetPlatformIDs(cl_uint n, cl_platform_id *out, cl_uint *count) {
    if (!find("clGetPlatformIDs") || word("none")) return -1001;
    return REAL(clGetPlatformIDs)(n, out, count);
}
CALL(clGetPlatformInfo, (cl_platform_id p, cl_platform_info i, size_t n, void *v, size_t *r), (p, i, n, v, r))
CALL(clGetDeviceIDs, (cl_platform_id p, cl_device_type t, cl_uint n, cl_device_id *d, cl_uint *c), (p, t, n, d, c))

cl_int clGetDeviceInfo(cl_device_id d, cl_device_info what, size_t bytes, void *value, size_t *used) {
    const char *memory = word("memory");
    cl_int code = REAL(clGetDeviceInfo)(d, what, bytes, value, used);
    if (code) return code;
    if (what == CL_DEVICE_EXTENSIONS && word("p2p")) {
        if (used) *used = sizeof "cl_xilinx_p2p";
        if (value) snprintf(value, bytes, "cl_xilinx_p2p");
    }
    if (!value) return 0;
    if (what == CL_DRIVER_VERSION && word("wrong")) snprintf(value, bytes, "0");
    if (what == CL_DEVICE_HOST_UNIFIED_MEMORY && (word("discrete") || word("p2p"))) *(cl_bool *)value = CL_FALSE;
    if (what == CL_DEVICE_SINGLE_FP_CONFIG && word("inexact"))
        *(cl_device_fp_config *)value &= ~(cl_device_fp_config)CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT;
    if (what == CL_DEVICE_SINGLE_FP_CONFIG && word("flushing"))
        *(cl_device_fp_config *)value &= ~(cl_device_fp_config)CL_FP_DENORM;
    if (what == CL_DEVICE_GLOBAL_MEM_SIZE && memory) *(cl_ulong *)value = strtoull(memory + 1, NULL, 10);
    return 0;
}

typedef void(CL_CALLBACK *said)(const char *, const void *, size_t, void *);
MAKE(cl_context, clCreateContext,
     (const cl_context_properties *p, cl_uint n, const cl_device_id *d, said f, void *u, cl_int *error),
     (p, n, d, f, u, error))
CALL(clReleaseContext, (cl_context c), (c))
MAKE(cl_command_queue, clCreateCommandQueue,
     (cl_context c, cl_device_id d, cl_command_queue_properties p, cl_int *error), (c, d, p, error))
CALL(clReleaseCommandQueue, (cl_command_queue q), (q))

cl_program clCreateProgramWithSource(cl_context c, cl_uint n, const char **text, const size_t *bytes, cl_int *error) {
    static const char right[] = "g - *m,", other[] = "*m - g,";
    char *copy = strdup(text[0]), *at = word("wrong") ? strstr(copy, right) : NULL;
    const char *given = copy;
    if (at) memcpy(at, other, sizeof other - 1);
    cl_program program = REAL(clCreateProgramWithSource)(c, n, &given, bytes, error);
    free(copy);
    return program;
}
MAKE(cl_program, clCreateProgramWithBinary,
     (cl_context c, cl_uint n, const cl_device_id *d, const size_t *b, const unsigned char **t, cl_int *s,
      cl_int *error),
     (c, n, d, b, t, s, error))
CALL(clBuildProgram,
     (cl_program p, cl_uint n, const cl_device_id *d, const char *o, void(CL_CALLBACK *f)(cl_program, void *), void *u),
     (p, n, d, o, f, u))
CALL(clGetProgramBuildInfo, (cl_program p, cl_device_id d, cl_program_build_info i, size_t n, void *v, size_t *r),
     (p, d, i, n, v, r))
CALL(clGetProgramInfo, (cl_program p, cl_program_info i, size_t n, void *v, size_t *r), (p, i, n, v, r))
CALL(clReleaseProgram, (cl_program p), (p))
MAKE(cl_kernel, clCreateKernel, (cl_program p, const char *name, cl_int *error), (p, name, error))
CALL(clReleaseKernel, (cl_kernel k), (k))
CALL(clSetKernelArg, (cl_kernel k, cl_uint i, size_t n, const void *v), (k, i, n, v))

cl_mem clCreateBuffer(cl_context c, cl_mem_flags flags, size_t bytes, void *host, cl_int *error) {
    *error = fails("clCreateBuffer");
    if (*error) return NULL;
    if (flags & P2P_POINTER) {
        host = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
        flags = (flags & ~(cl_mem_flags)P2P_POINTER) | CL_MEM_USE_HOST_PTR;
    }
    return REAL(clCreateBuffer)(c, flags, bytes, host, error);
}
CALL(clReleaseMemObject, (cl_mem m), (m))
CALL(clEnqueueNDRangeKernel,
     (cl_command_queue q, cl_kernel k, cl_uint d, const size_t *o, const size_t *g, const size_t *l, cl_uint n,
      const cl_event *w, cl_event *e),
     (q, k, d, o, g, l, n, w, e))
CALL(clEnqueueWriteBuffer,
     (cl_command_queue q, cl_mem m, cl_bool b, size_t o, size_t s, const void *p, cl_uint n, const cl_event *w,
      cl_event *e),
     (q, m, b, o, s, p, n, w, e))
CALL(clEnqueueReadBuffer,
     (cl_command_queue q, cl_mem m, cl_bool b, size_t o, size_t s, void *p, cl_uint n, const cl_event *w, cl_event *e),
     (q, m, b, o, s, p, n, w, e))
MAKE(void *, clEnqueueMapBuffer,
     (cl_command_queue q, cl_mem m, cl_bool b, cl_map_flags f, size_t o, size_t s, cl_uint n, const cl_event *w,
      cl_event *e, cl_int *error),
     (q, m, b, f, o, s, n, w, e, error))
CALL(clEnqueueUnmapMemObject, (cl_command_queue q, cl_mem m, void *p, cl_uint n, const cl_event *w, cl_event *e),
     (q, m, p, n, w, e))
CALL(clFlush, (cl_command_queue q), (q))
CALL(clFinish, (cl_command_queue q), (q))
CALL(clWaitForEvents, (cl_uint n, const cl_event *e), (n, e))
CALL(clReleaseEvent, (cl_event e), (e))

cl_int clGetEventInfo(cl_event e, cl_event_info what, size_t bytes, void *value, size_t *used) {
    cl_int code = REAL(clGetEventInfo)(e, what, bytes, value, used);
    cl_int lost = what == CL_EVENT_COMMAND_EXECUTION_STATUS && !code ? fails("lost") : 0;
    if (lost) *(cl_int *)value = lost;
    return code;
}
