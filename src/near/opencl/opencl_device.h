/* Which OpenCL device a drive computes on. */
#ifndef SHORE_NEAR_OPENCL_OPENCL_DEVICE_H
#define SHORE_NEAR_OPENCL_OPENCL_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "near/opencl/opencl_library.h"

#define SHORE__OPENCL_VARIABLE "LONGSHORE_OPENCL"

/* device=NAME|INDEX,memory=SIZE,binary=FILE */
struct shore__opencl_options {
    char device[128]; /* "": the best kind there is */
    uint64_t memory;  /* 0: not given */
    char binary[512]; /* "": kernels are compiled */
};
/* NULL or "": all defaults. SHORE_EUSAGE. */
int shore__opencl_parse(const char *text, struct shore__opencl_options *out, struct shore_diag *diag);

struct shore__cl_device {
    const struct shore__cl *cl;
    cl_device_id id;
    char name[128];
    char version[320]; /* of device, driver and platform */
    uint32_t width;    /* elements that an item of a kernel computes */
    bool unified;      /* it works on memory of the host */
    bool exact;        /* it divides and takes roots as IEEE 754 says, if asked */
    bool p2p;          /* Xilinx: drives write into its memory */
    uint64_t memory;   /* that it has */
    uint64_t alloc;    /* the largest buffer */
};

/* Several that fit take turns: number counts the drives. SHORE_EUSAGE: no library, no platform, no such
 * device, or one that cannot compute as UPDATE does (a binary may do so all the same). */
int shore__opencl_device(const struct shore__opencl_options *options, uint32_t number, struct shore__cl_device *out,
                         struct shore_diag *diag);
/* The same, with the options of LONGSHORE_OPENCL. */
int shore__opencl_device_here(uint32_t number, struct shore__cl_device *out, struct shore_diag *diag);

#endif
