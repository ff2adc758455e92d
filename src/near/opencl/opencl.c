#include "near/opencl/opencl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "near/gradient.h"
#include "near/moments.h"
#include "near/opencl/opencl_program.h"
#include "near/rule.h"
#include "number/sparse.h"

enum { IN = 1, OUT = 2, HELD_MOST = 6, KERNELS = 3, GROUP_ITEMS = 256 };

/* struct rule of update.cl */
struct opencl_rule {
    float coefficient, lr, eps, weight_decay, decay, momentum, m_weight, beta2, one_minus_beta2, step_size;
    float inv_sqrt_bias2;
    uint32_t from_gradient, decays_gradient, first_step, frozen, with_momentum;
};

struct slot {
    unsigned char *planes;
    cl_mem state;
    cl_command_queue queue;
    cl_event done; /* NULL: the job failed when it was submitted */
    bool mapped;   /* state: the host may use planes */
    struct {
        cl_mem mem;
        void *mapped;
    } held[HELD_MOST]; /* by the job */
    unsigned nheld;
    struct opencl_rule *rules;
    const char *failed; /* the function that failed first */
    cl_int code;
};

struct opencl {
    struct shore__engine engine;
    struct shore__opencl_config config;
    struct shore__cl_device device;
    const struct shore__cl *cl;
    cl_context context;
    struct shore__cl_program program;
    cl_kernel kernel[KERNELS];
    cl_mem codes;
    bool shared;                        /* the kernel works on planes where they are */
    bool whole;                         /* kernel[0] is that of hls/: it takes a chunk at once, in any form */
    uint64_t at[SHORE_PLANE_COUNT + 1]; /* where each plane of a slot's state begins; the last: where all end */
    struct slot slot[];
};

static struct opencl *opencl_of(const struct shore__engine *engine) {
    return (struct opencl *)(uintptr_t)engine;
}

/* ---- a job's calls: after one that failed, the others do nothing ------------------------------------------------- */

static bool went_well(struct slot *s, const char *function, cl_int code) {
    if (code && !s->failed) {
        s->failed = function;
        s->code = code;
    }
    return !s->failed;
}

/* Memory of the host that a kernel reads or writes: lent, or a buffer that it is copied to. */
static cl_mem lend(struct opencl *o, struct slot *s, unsigned way, const void *host, size_t bytes) {
    cl_int code = 0;
    void *data = (void *)(uintptr_t)host;
    cl_mem_flags flags = way == IN ? CL_MEM_READ_ONLY : way == OUT ? CL_MEM_WRITE_ONLY : CL_MEM_READ_WRITE;
    if (s->failed) return NULL;
    cl_mem mem = o->device.unified ? o->cl->clCreateBuffer(o->context, flags | CL_MEM_USE_HOST_PTR, bytes, data, &code)
                                   : o->cl->clCreateBuffer(o->context, flags, (bytes + 63) / 64 * 64, NULL,
                                                           &code); /* words of hls/ */
    if (!went_well(s, "clCreateBuffer", code)) return NULL;
    s->held[s->nheld].mapped = NULL;
    s->held[s->nheld++].mem = mem;
    if (way & IN && !o->device.unified)
        went_well(s, "clEnqueueWriteBuffer",
                  o->cl->clEnqueueWriteBuffer(s->queue, mem, CL_FALSE, 0, bytes, data, 0, NULL, NULL));
    return mem;
}

static void start_read(struct opencl *o, struct slot *s, cl_mem mem, size_t from, void *host, size_t bytes,
                       cl_event *done) {
    if (!s->failed)
        went_well(s, "clEnqueueReadBuffer",
                  o->cl->clEnqueueReadBuffer(s->queue, mem, CL_FALSE, from, bytes, host, 0, NULL, done));
}

/* Gives what was lent last back to the host, or copies it there. */
static void take_back(struct opencl *o, struct slot *s, unsigned held, void *host, size_t bytes, cl_event *done) {
    cl_int code = 0;
    if (s->failed) return;
    if (!o->device.unified) {
        start_read(o, s, s->held[held].mem, 0, host, bytes, done);
        return;
    }
    s->held[held].mapped =
        o->cl->clEnqueueMapBuffer(s->queue, s->held[held].mem, CL_FALSE, CL_MAP_READ, 0, bytes, 0, NULL, done, &code);
    went_well(s, "clEnqueueMapBuffer", code);
}

static void set(struct opencl *o, struct slot *s, cl_kernel kernel, cl_uint number, size_t bytes, const void *value) {
    if (!s->failed) went_well(s, "clSetKernelArg", o->cl->clSetKernelArg(kernel, number, bytes, value));
}

/* ---- submitting -------------------------------------------------------------------------------------------------- */

static void make_rules(const struct opencl *o, const struct shore_update *u, struct opencl_rule *out) {
    const bool takes = shore__optimizer(o->config.optimizer)->takes_momentum;
    for (uint32_t g = 0; g < u->ngroups; g++) {
        const struct shore_hyper *h = &u->groups[g];
        struct shore__rule r = shore__rule_make(o->config.optimizer, h, u->coefficient);
        out[g] = (struct opencl_rule){r.coefficient,
                                      r.lr,
                                      r.eps,
                                      r.weight_decay,
                                      r.decay,
                                      r.momentum,
                                      r.m_weight,
                                      r.beta2,
                                      r.one_minus_beta2,
                                      r.step_size,
                                      r.inv_sqrt_bias2,
                                      r.m_from_gradient,
                                      r.decays_gradient,
                                      r.first_step,
                                      h->frozen,
                                      o->config.plane_bytes[SHORE_PLANE_M] && !(takes && h->momentum == 0)};
    }
}

/* Where each block's entries begin, for codes from the first one's on. The codes are checked here, and nowhere else. */
static int make_starts(const struct shore_update *u, uint32_t *out, struct shore_diag *diag) {
    const unsigned char *codes = (const unsigned char *)u->gradient + u->offsets[0];
    const uint32_t blocks = SHORE_SEGMENT_ELEMS / SHORE__ENGINE_BLOCK_ELEMS;
    float unused[SHORE__ENGINE_BLOCK_ELEMS];
    uint32_t *form = out + 4 * blocks * u->count;
    for (uint32_t i = 0; i < u->count; i++) {
        struct shore__sparse_reader r;
        uint32_t begin = u->offsets[i], end = u->offsets[i + 1];
        if (end < begin || shore__sparse_open(codes + (begin - u->offsets[0]), end - begin, &r))
            return shore__fail(diag, SHORE_ECORRUPT,
                               "the compressed gradient of block %u, segment %u arrived damaged at its drive", u->block,
                               u->segment + i);
        for (uint32_t b = 0; b < blocks; b++, out += 4) {
            out[0] = (uint32_t)(r.index - codes);
            out[1] = (uint32_t)(r.value - codes);
            out[2] = r.position;
            out[3] = r.left;
            *form++ = (uint32_t)r.indices | (uint32_t)r.values << 4;
            shore__sparse_scatter(&r, b * SHORE__ENGINE_BLOCK_ELEMS, (b + 1) * SHORE__ENGINE_BLOCK_ELEMS, unused);
        }
    }
    return 0;
}

/* Moves the planes between the host and the device; where it works in place, hands them over. */
static void planes_in(struct opencl *o, struct slot *s, uint32_t count) {
    const uint32_t *bytes = o->config.plane_bytes;
    if (s->mapped && went_well(s, "clEnqueueUnmapMemObject",
                               o->cl->clEnqueueUnmapMemObject(s->queue, s->state, s->planes, 0, NULL, NULL)))
        s->mapped = false;
    for (int p = 0; p <= SHORE_PLANE_V && !o->shared; p++)
        if (bytes[p] && !s->failed)
            went_well(s, "clEnqueueWriteBuffer",
                      o->cl->clEnqueueWriteBuffer(s->queue, s->state, CL_FALSE, o->at[p], (size_t)count * bytes[p],
                                                  s->planes + o->at[p], 0, NULL, NULL));
}

static void planes_out(struct opencl *o, struct slot *s, uint32_t count) {
    const uint32_t *bytes = o->config.plane_bytes;
    cl_int code = 0;
    if (o->device.unified && !s->failed) {
        o->cl->clEnqueueMapBuffer(s->queue, s->state, CL_FALSE, CL_MAP_READ | CL_MAP_WRITE, 0, o->at[SHORE_PLANE_COUNT],
                                  0, NULL, NULL, &code);
        s->mapped = went_well(s, "clEnqueueMapBuffer", code);
    }
    for (int p = 0; p <= SHORE_PLANE_V && !o->shared; p++)
        if (bytes[p]) start_read(o, s, s->state, o->at[p], s->planes + o->at[p], (size_t)count * bytes[p], NULL);
}

static size_t gradient_bytes(const struct shore_update *u) {
    return u->form == SHORE_GRADIENT_SPARSE ? u->offsets[u->count] - u->offsets[0]
                                            : u->count * shore__gradient_segment_bytes(u->form);
}

/* What the kernel of hls/ takes behind the arguments of update_sparse(): hls/kernel.h. */
static void set_whole(struct opencl *o, struct slot *s, cl_uint arg, const cl_mem *blocks,
                      const struct shore_update *u) {
    const uint32_t *bytes = o->config.plane_bytes;
    const uint32_t numbers[] = {
        u->form,
        o->config.optimizer,
        (bytes[SHORE_PLANE_M] ? 1u << SHORE_PLANE_M : 0) | (bytes[SHORE_PLANE_V] ? 1u << SHORE_PLANE_V : 0),
        (bytes[SHORE_PLANE_M] ? bytes[SHORE_PLANE_M] : bytes[SHORE_PLANE_V]) / 64,
        u->count,
    };
    for (int i = 0; i < 7; i++)
        set(o, s, o->kernel[0], arg++, sizeof s->state, &s->state);
    set(o, s, o->kernel[0], arg++, sizeof *blocks, blocks);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        set(o, s, o->kernel[0], arg++, sizeof numbers[i], &numbers[i]);
}

static void queue_job(struct opencl *o, struct slot *s, struct shore__engine_job *job) {
    const struct shore_update *u = &job->update;
    const size_t blocks = (size_t)u->count * (SHORE_SEGMENT_ELEMS / SHORE__ENGINE_BLOCK_ELEMS);
    const size_t elems = blocks * SHORE__ENGINE_BLOCK_ELEMS, local = o->whole ? 1 : GROUP_ITEMS;
    const size_t items = o->whole ? 1 : elems / o->device.width;
    const size_t params_bytes = u->params_out ? elems * (o->config.fp32_params ? 4 : 2) : 0;
    const bool sparse = u->form == SHORE_GRADIENT_SPARSE;
    const cl_uint params_form = !u->params_out ? 0 : o->config.fp32_params ? 2 : 1;
    cl_uint arg = 0;
    planes_in(o, s, u->count);
    cl_kernel kernel = o->kernel[o->whole ? 0 : u->form];
    const unsigned char *codes = u->gradient;
    cl_mem gradient = lend(o, s, IN, sparse ? codes + u->offsets[0] : codes, gradient_bytes(u));
    cl_mem rules = lend(o, s, IN, s->rules, u->ngroups * sizeof *s->rules);
    cl_mem starts = sparse ? lend(o, s, IN, job->starts, blocks * SHORE__ENGINE_START_WORDS * 4) : NULL;
    const unsigned back = s->nheld;
    cl_mem flags = lend(o, s, IN | OUT, job->blocks, blocks * sizeof *job->blocks);
    cl_mem params = params_bytes ? lend(o, s, OUT, u->params_out, params_bytes) : NULL;
    set(o, s, kernel, arg++, sizeof gradient, &gradient);
    if (sparse || o->whole) set(o, s, kernel, arg++, sizeof starts, sparse ? &starts : NULL);
    set(o, s, kernel, arg++, sizeof s->state, &s->state);
    for (int p = SHORE_PLANE_LO; p <= SHORE_PLANE_V; p++) {
        const cl_uint at = (cl_uint)o->at[p];
        set(o, s, kernel, arg++, sizeof at, &at);
    }
    set(o, s, kernel, arg++, sizeof params, params_bytes ? &params : NULL);
    set(o, s, kernel, arg++, sizeof params_form, &params_form);
    set(o, s, kernel, arg++, sizeof flags, &flags);
    set(o, s, kernel, arg++, sizeof rules, &rules);
    set(o, s, kernel, arg++, sizeof o->codes, &o->codes);
    if (o->whole) set_whole(o, s, arg, &flags, u);
    if (!s->failed)
        went_well(s, "clEnqueueNDRangeKernel",
                  o->cl->clEnqueueNDRangeKernel(s->queue, kernel, 1, NULL, &items, &local, 0, NULL, NULL));
    if (params_bytes) take_back(o, s, back + 1, u->params_out, params_bytes, NULL);
    planes_out(o, s, u->count);
    take_back(o, s, back, job->blocks, blocks * sizeof *job->blocks, &s->done);
    if (!s->failed) went_well(s, "clFlush", o->cl->clFlush(s->queue));
}

static void opencl_submit(struct shore__engine *engine, struct shore__engine_job *job) {
    struct opencl *o = opencl_of(engine);
    struct slot *s = &o->slot[job->slot];
    s->done = NULL;
    s->failed = NULL;
    job->rc = job->update.form == SHORE_GRADIENT_SPARSE ? make_starts(&job->update, job->starts, &job->diag) : 0;
    struct opencl_rule *rules = realloc(s->rules, job->update.ngroups * sizeof *rules);
    if (rules) s->rules = rules;
    if (!rules) job->rc = shore__out_of_memory(&job->diag);
    if (!job->rc) {
        make_rules(o, &job->update, rules);
        queue_job(o, s, job);
    }
    shore__engine_push(engine, job);
}

/* ---- reaping ----------------------------------------------------------------------------------------------------- */

static void end_job(struct opencl *o, struct slot *s, struct shore__engine_job *job) {
    if (s->failed) o->cl->clFinish(s->queue); /* what was queued before may still run */
    for (unsigned i = 0; i < s->nheld; i++) {
        if (s->held[i].mapped)
            o->cl->clEnqueueUnmapMemObject(s->queue, s->held[i].mem, s->held[i].mapped, 0, NULL, NULL);
        o->cl->clReleaseMemObject(s->held[i].mem);
    }
    s->nheld = 0;
    if (s->done) o->cl->clReleaseEvent(s->done);
    s->done = NULL;
    if (s->failed) {
        char what[400];
        snprintf(what, sizeof what, "%s: OpenCL device %s", o->config.drive, o->device.name);
        job->rc = shore__cl_fail(&job->diag, what, s->failed, s->code);
    }
    uint32_t blocks = job->update.count * (SHORE_SEGMENT_ELEMS / SHORE__ENGINE_BLOCK_ELEMS);
    for (uint32_t b = 0; b < blocks && !job->rc; b++)
        if (job->blocks[b].nonfinite) job->rc = SHORE_ENONFINITE;
}

static struct shore__engine_job *opencl_reap(struct shore__engine *engine, bool wait) {
    struct opencl *o = opencl_of(engine);
    if (!engine->first) return NULL;
    struct slot *s = &o->slot[engine->first->slot];
    cl_int status = CL_COMPLETE;
    if (s->done && !s->failed) {
        cl_int code = wait ? o->cl->clWaitForEvents(1, &s->done) : 0;
        if (code == 0 || code == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST)
            went_well(s, "clGetEventInfo",
                      o->cl->clGetEventInfo(s->done, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof status, &status, NULL));
        else
            went_well(s, "clWaitForEvents", code);
        if (!s->failed && status > 0) return NULL;
        if (status < 0) went_well(s, "running the kernel", status);
    }
    struct shore__engine_job *job = shore__engine_pop(engine);
    end_job(o, s, job);
    return job;
}

static const char *opencl_name(const struct shore__engine *engine) {
    return opencl_of(engine)->device.name;
}

static void opencl_close(struct shore__engine *engine) {
    struct opencl *o = opencl_of(engine);
    for (uint32_t i = 0; i < o->config.slots; i++) {
        struct slot *s = &o->slot[i];
        if (s->mapped) o->cl->clEnqueueUnmapMemObject(s->queue, s->state, s->planes, 0, NULL, NULL);
        if (s->queue) o->cl->clFinish(s->queue);
        if (s->state) o->cl->clReleaseMemObject(s->state);
        if (s->queue) o->cl->clReleaseCommandQueue(s->queue);
        free(s->rules);
    }
    for (int k = 0; k < KERNELS; k++)
        if (o->kernel[k]) o->cl->clReleaseKernel(o->kernel[k]);
    if (o->codes) o->cl->clReleaseMemObject(o->codes);
    if (o->program.program) o->cl->clReleaseProgram(o->program.program);
    if (o->context) o->cl->clReleaseContext(o->context);
    free(o);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Memory of a slot with chunks of so many segments. */
static uint64_t slot_bytes(const struct shore__opencl_config *c, uint64_t segments) {
    uint64_t state = 0, blocks = SHORE_SEGMENT_ELEMS / SHORE__ENGINE_BLOCK_ELEMS;
    for (int p = 0; p < SHORE_PLANE_COUNT; p++)
        state += c->plane_bytes[p];
    uint64_t gradient = SHORE_SEGMENT_ELEMS * 4 + SHORE__SPARSE_HEADER_BYTES + SHORE_SEGMENT_ELEMS / 8;
    uint64_t tables = blocks * (sizeof(struct shore__engine_block) + SHORE__ENGINE_START_WORDS * 4);
    return segments * (state + gradient + tables + SHORE_SEGMENT_ELEMS * (c->fp32_params ? 4 : 2));
}

/* Lowers the number of slots to 2, then the size of chunks. */
static int fit(struct opencl *o, const struct shore__opencl_options *given, struct shore_diag *diag) {
    struct shore__opencl_config *c = &o->config;
    uint64_t memory = o->device.memory;
    if (given->memory && given->memory > memory)
        return shore__fail(diag, SHORE_EUSAGE, "opencl memory=%s: the device %s has %s",
                           shore__format_size(given->memory).text, o->device.name, shore__format_size(memory).text);
    if (given->memory)
        memory = given->memory;
    else if (memory > SHORE__OPENCL_MEMORY)
        memory = SHORE__OPENCL_MEMORY;
    while (c->slots > 2 && c->slots * slot_bytes(c, c->chunk_segments) > memory)
        c->slots--;
    while (c->chunk_segments > 1 &&
           (c->slots * slot_bytes(c, c->chunk_segments) > memory || slot_bytes(c, c->chunk_segments) > o->device.alloc))
        c->chunk_segments--;
    if (c->slots * slot_bytes(c, c->chunk_segments) <= memory) return 0;
    return shore__fail(
        diag, SHORE_EUSAGE, "%s: %s of memory on the OpenCL device %s is too little: at least %s is needed", c->drive,
        shore__format_size(memory).text, o->device.name, shore__format_size_up(c->slots * slot_bytes(c, 1)).text);
}

static int make_kernels(struct opencl *o, const char *binary, struct shore_diag *diag) {
    static const char *const names[KERNELS] = {[SHORE_GRADIENT_FP32] = "update_fp32",
                                               [SHORE_GRADIENT_BF16] = "update_bf16",
                                               [SHORE_GRADIENT_SPARSE] = "update_sparse"};
    char macros[128];
    cl_int code = 0;
    const uint32_t *bytes = o->config.plane_bytes;
    snprintf(macros, sizeof macros, "-DOPTIMIZER=%d -DWITH_M=%d -DWITH_V=%d -DCODED=%d", (int)o->config.optimizer,
             bytes[SHORE_PLANE_M] > 0, bytes[SHORE_PLANE_V] > 0, o->config.moments != SHORE_MOMENTS_FP32);
    int rc = shore__cl_program_open(&o->device, o->context, macros, binary, &o->program, diag);
    if (!rc && *binary) o->kernel[0] = o->cl->clCreateKernel(o->program.program, "update", &code);
    o->whole = !rc && *binary && !code;
    for (int k = 0; !rc && !o->whole && k < KERNELS; k++) {
        o->kernel[k] = o->cl->clCreateKernel(o->program.program, names[k], &code);
        if (code && *binary)
            rc = shore__fail(diag, SHORE_EUSAGE, "opencl binary=%s: has no kernel update, and no %s",
                             shore__shown(binary).text, names[k]);
        else if (code)
            rc = shore__cl_fail(diag, o->device.name, "clCreateKernel", code);
    }
    return rc;
}

static int make_codes(struct opencl *o, struct shore_diag *diag) {
    struct shore__dynamic_code both[2] = {*shore__dynamic_code(false), *shore__dynamic_code(true)};
    cl_int code = 0;
    o->codes = o->cl->clCreateBuffer(o->context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, sizeof both, both, &code);
    return code ? shore__cl_fail(diag, o->device.name, "clCreateBuffer", code) : 0;
}

int shore__opencl_open(struct shore__opencl_config *config, struct shore__engine **out, struct shore_diag *diag) {
    static const struct shore__engine_ops ops = {opencl_submit, opencl_reap, opencl_name, opencl_close};
    struct shore__opencl_options given;
    cl_int code = 0;
    int rc = shore__opencl_parse(config->options, &given, diag);
    if (rc) return rc;
    struct opencl *o = calloc(1, sizeof *o + config->slots * sizeof o->slot[0]);
    if (!o) return shore__out_of_memory(diag);
    o->engine.ops = &ops;
    o->config = *config;
    rc = shore__opencl_device(&given, config->number, &o->device, diag);
    o->cl = o->device.cl;
    if (!rc) rc = fit(o, &given, diag);
    if (!rc) o->context = o->cl->clCreateContext(NULL, 1, &o->device.id, NULL, NULL, &code);
    if (!rc && code) rc = shore__cl_fail(diag, o->device.name, "clCreateContext", code);
    if (!rc) rc = make_kernels(o, given.binary, diag);
    if (!rc) rc = make_codes(o, diag);
    for (uint32_t i = 0; !rc && i < o->config.slots; i++) {
        o->slot[i].queue = o->cl->clCreateCommandQueue(o->context, o->device.id, 0, &code);
        if (code) rc = shore__cl_fail(diag, o->device.name, "clCreateCommandQueue", code);
    }
    if (rc) {
        opencl_close(&o->engine);
        return rc;
    }
    o->shared = o->device.unified || o->device.p2p;
    for (int p = 0; p < SHORE_PLANE_COUNT; p++)
        o->at[p + 1] = o->at[p] + (uint64_t)o->config.chunk_segments * o->config.plane_bytes[p];
    config->chunk_segments = o->config.chunk_segments;
    config->slots = o->config.slots;
    *out = &o->engine;
    return 0;
}

/* Xilinx: a buffer of the device that drives read into over the bus (XCL_MEM_EXT_P2P_BUFFER). */
struct p2p {
    unsigned flags;
    void *object, *parameter;
};
#define P2P_BUFFER (1u << 30)
#define P2P_POINTER (1u << 31)

int shore__opencl_attach(struct shore__engine *engine, uint32_t slot, unsigned char **planes, struct shore_diag *diag) {
    struct opencl *o = opencl_of(engine);
    struct slot *s = &o->slot[slot];
    struct p2p where = {.flags = P2P_BUFFER};
    cl_int code = 0;
    const char *function = "clCreateBuffer";
    cl_mem_flags flags = o->device.unified ? CL_MEM_USE_HOST_PTR : o->device.p2p ? P2P_POINTER : 0;
    s->planes = *planes;
    s->state = o->cl->clCreateBuffer(o->context, CL_MEM_READ_WRITE | flags, o->at[SHORE_PLANE_COUNT],
                                     o->device.unified ? (void *)*planes
                                     : o->device.p2p   ? (void *)&where
                                                       : NULL,
                                     &code);
    if (!code && o->shared) {
        function = "clEnqueueMapBuffer";
        void *at = o->cl->clEnqueueMapBuffer(s->queue, s->state, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0,
                                             o->at[SHORE_PLANE_COUNT], 0, NULL, NULL, &code);
        s->mapped = !code && o->device.unified; /* Xilinx's stays mapped while kernels run */
        if (!code) *planes = s->planes = at;
    }
    return code ? shore__cl_fail(diag, o->device.name, function, code) : 0;
}

int shore__opencl_check(struct shore__engine *engine, unsigned char *planes, struct shore__engine_block *blocks,
                        uint32_t *starts, double *seconds, struct shore_diag *diag) {
    struct opencl *o = opencl_of(engine);
    *seconds = 0;
    if (o->program.kept) return 0;
    const uint64_t start = shore__now_ns();
    struct shore_diag why = {0};
    int rc = shore__engine_check(engine, &o->config, planes, blocks, starts, &why);
    if (rc == SHORE_EUSAGE) return shore__fail(diag, rc, "OpenCL device %s %s", o->device.name, why.text);
    if (rc) return shore__fail_of(diag, rc, &why, "%s", why.text);
    *seconds = o->program.seconds + (double)(shore__now_ns() - start) * 1e-9;
    shore__cl_program_keep(&o->device, &o->program);
    return 0;
}
