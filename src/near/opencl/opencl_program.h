/* The kernels of a device: compiled once, and kept. */
#ifndef SHORE_NEAR_OPENCL_OPENCL_PROGRAM_H
#define SHORE_NEAR_OPENCL_OPENCL_PROGRAM_H

#include "near/opencl/opencl_device.h"

struct shore__cl_program {
    cl_program program;
    double seconds;  /* compiling took */
    bool kept;       /* the cache had it, so that this device has passed its test */
    char key[1024];  /* of the cache: what it was compiled of, for what */
    char file[1024]; /* of the cache; "": there is none */
};

/* macros: "-DNAME=..."; binary: "" or a file with a program for the device. -EIO, SHORE_EUSAGE (a binary for another).
 */
int shore__cl_program_open(const struct shore__cl_device *device, cl_context context, const char *macros,
                           const char *binary, struct shore__cl_program *out, struct shore_diag *diag);

/* Keeps it for the next start, in $XDG_CACHE_HOME/longshore or ~/.cache/longshore; where that fails, nothing. */
void shore__cl_program_keep(const struct shore__cl_device *device, const struct shore__cl_program *program);

#endif
