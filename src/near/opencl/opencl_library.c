#include "near/opencl/opencl_library.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#include "base/diag.h"

#define LIBRARY "libOpenCL.so.1"

static struct shore__cl functions;
static struct shore_diag trouble;
static int trouble_rc;

#define FIND(name)                                                                                       \
    if (!trouble_rc && !(functions.name = (__typeof__(functions.name))(uintptr_t)dlsym(library, #name))) \
        trouble_rc = shore__fail(&trouble, SHORE_EUSAGE, "OpenCL: " LIBRARY " has no function %s", #name);

static void load(void) {
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        trouble_rc = shore__fail(&trouble, SHORE_EUSAGE,
                                 "OpenCL: there is no " LIBRARY " here; on Debian, ocl-icd-libopencl1 brings it, and "
                                 "pocl-opencl-icd a device that is this processor");
    SHORE__CL_FUNCTIONS(FIND)
}

int shore__cl_load(const struct shore__cl **out, struct shore_diag *diag) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    *out = &functions;
    return trouble_rc ? shore__fail(diag, trouble_rc, "%s", trouble.text) : 0;
}

static const char *name_of(cl_int code) {
#define NAME(error) \
    case error:     \
        return #error;
    switch (code) {
        NAME(CL_DEVICE_NOT_FOUND)
        NAME(CL_DEVICE_NOT_AVAILABLE)
        NAME(CL_COMPILER_NOT_AVAILABLE)
        NAME(CL_MEM_OBJECT_ALLOCATION_FAILURE)
        NAME(CL_OUT_OF_RESOURCES)
        NAME(CL_OUT_OF_HOST_MEMORY)
        NAME(CL_MAP_FAILURE)
        NAME(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
        NAME(CL_BUILD_PROGRAM_FAILURE)
        NAME(CL_INVALID_VALUE)
        NAME(CL_INVALID_DEVICE)
        NAME(CL_INVALID_CONTEXT)
        NAME(CL_INVALID_COMMAND_QUEUE)
        NAME(CL_INVALID_MEM_OBJECT)
        NAME(CL_INVALID_BINARY)
        NAME(CL_INVALID_KERNEL_NAME)
        NAME(CL_INVALID_KERNEL_ARGS)
        NAME(CL_INVALID_WORK_GROUP_SIZE)
        NAME(CL_INVALID_BUFFER_SIZE)
    default:
        return code == -1001 ? "CL_PLATFORM_NOT_FOUND_KHR" : "an error";
    }
}

int shore__cl_fail(struct shore_diag *diag, const char *what, const char *function, cl_int code) {
    return shore__fail(diag, -EIO, "%s: %s: %s (%d)", what, function, name_of(code), code);
}
