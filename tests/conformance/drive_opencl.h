/* Steps of fleets with drives that compute on an OpenCL device, beside the plain arrays. */
#ifndef SHORE_TESTS_DRIVE_OPENCL_H
#define SHORE_TESTS_DRIVE_OPENCL_H

#include "conformance/drive_bench.h"

#include <stdatomic.h>

#include "near/opencl/opencl_library.h"

static struct shore__cl real; /* NULLs: there is no OpenCL here */
static struct shore__cl *changed;
static atomic_uint kernels; /* that were started */

static inline cl_int counted_kernel(cl_command_queue queue, cl_kernel kernel, cl_uint dims, const size_t *offset,
                                    const size_t *items, const size_t *local, cl_uint nwait, const cl_event *wait,
                                    cl_event *done) {
    kernels++;
    return real.clEnqueueNDRangeKernel(queue, kernel, dims, offset, items, local, nwait, wait, done);
}

/* The functions of OpenCL, which a test may change. */
static inline void opencl_take(void) {
    const struct shore__cl *loaded;
    if (shore__cl_load(&loaded, NULL)) return; /* each test says so */
    changed = (struct shore__cl *)(uintptr_t)loaded;
    real = *loaded;
    changed->clEnqueueNDRangeKernel = counted_kernel;
}

static const struct {
    enum shore_optimizer optimizer;
    bool momentum;
} optimizers[] = {
    {SHORE_ADAMW, false}, {SHORE_ADAM, false}, {SHORE_SGD, false}, {SHORE_SGD, true}, {SHORE_ADAGRAD, false}};
enum { OPTIMIZERS = sizeof optimizers / sizeof optimizers[0] };

/* Two steps; false: there is no OpenCL here. */
static inline bool opencl_steps(const char *kinds, uint32_t chunk, size_t optimizer, enum shore_moments moments,
                                enum shore_gradient_form form) {
    const struct config config = {kinds, kinds, SHORE_IO_AUTO, chunk, chunk == 1, moments};
    struct bench b;
    if (!bench_open(&b, &config, optimizers[optimizer].optimizer, optimizers[optimizer].momentum)) return false;
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

#endif
