/* OpenCL's library, which is loaded when a drive asks for it: the program starts without it. */
#ifndef SHORE_NEAR_OPENCL_OPENCL_LIBRARY_H
#define SHORE_NEAR_OPENCL_OPENCL_LIBRARY_H

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include "longshore/error.h"

// clang-format off
#define SHORE__CL_FUNCTIONS(F)                                                                        \
    F(clGetPlatformIDs) F(clGetPlatformInfo) F(clGetDeviceIDs) F(clGetDeviceInfo) F(clCreateContext)  \
    F(clReleaseContext) F(clCreateCommandQueue) F(clReleaseCommandQueue) F(clCreateProgramWithSource) \
    F(clCreateProgramWithBinary) F(clBuildProgram) F(clGetProgramBuildInfo) F(clGetProgramInfo)       \
    F(clReleaseProgram) F(clCreateKernel) F(clReleaseKernel) F(clSetKernelArg) F(clCreateBuffer)      \
    F(clReleaseMemObject) F(clEnqueueNDRangeKernel) F(clEnqueueWriteBuffer) F(clEnqueueReadBuffer)    \
    F(clEnqueueMapBuffer) F(clEnqueueUnmapMemObject) F(clFlush) F(clFinish) F(clWaitForEvents)        \
    F(clGetEventInfo) F(clReleaseEvent)
// clang-format on

#define SHORE__CL_MEMBER(name) __typeof__(name) *name;
struct shore__cl {
    SHORE__CL_FUNCTIONS(SHORE__CL_MEMBER)
};

/* Loads it once. SHORE_EUSAGE: it is not there; diag says which package brings it. Threading: any. */
int shore__cl_load(const struct shore__cl **out, struct shore_diag *diag);

/* "clFlush: CL_OUT_OF_RESOURCES (-5)" behind what the caller says; returns -EIO. */
int shore__cl_fail(struct shore_diag *diag, const char *what, const char *function, cl_int code);

#endif
