#include "near/opencl/opencl_program.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/cache_file.h"
#include "base/diag.h"
#include "base/units.h"

enum { HASH_BYTES = 8 };

static const char source[] =
#include "near/update_cl.inc"
    ;

static void find_cache(struct shore__cl_program *p) {
    char name[64];
    snprintf(name, sizeof name, "opencl/%016llx", (unsigned long long)XXH3_64bits(p->key, strlen(p->key)));
    char *file = shore__cache_file(name);
    if (file && strlen(file) < sizeof p->file) snprintf(p->file, sizeof p->file, "%s", file);
    free(file);
}

/* malloc'ed; NULL: cannot be read. */
static unsigned char *read_all(const char *file, size_t *bytes) {
    struct stat st;
    unsigned char *data = NULL;
    bool there = !stat(file, &st);
    if (there && !S_ISREG(st.st_mode)) errno = EINVAL; /* opening a pipe waits for ever */
    FILE *f = there && S_ISREG(st.st_mode) ? fopen(file, "re") : NULL;
    if (f && (data = malloc((size_t)st.st_size + 1))) *bytes = fread(data, 1, (size_t)st.st_size, f);
    if (f) fclose(f);
    return data;
}

static cl_int load(const struct shore__cl_device *d, cl_context context, const unsigned char *data, size_t bytes,
                   cl_program *out) {
    cl_int code, status = 0;
    *out = d->cl->clCreateProgramWithBinary(context, 1, &d->id, &bytes, &data, &status, &code);
    if (!code) code = status;
    if (!code) code = d->cl->clBuildProgram(*out, 1, &d->id, "", NULL, NULL);
    if (code && *out) d->cl->clReleaseProgram(*out);
    return code;
}

/* The file is the key, a zero, the program's hash, and the program. A driver that is given half a program may end this
 * process. */
static bool load_kept(const struct shore__cl_device *d, cl_context context, struct shore__cl_program *p) {
    size_t bytes = 0, key = strlen(p->key) + 1, head = key + HASH_BYTES;
    unsigned char *data = *p->file ? read_all(p->file, &bytes) : NULL;
    p->kept = data && bytes > head && memcmp(data, p->key, key) == 0 &&
              shore__get_u64(data + key) == XXH3_64bits(data + head, bytes - head) &&
              load(d, context, data + head, bytes - head, &p->program) == 0;
    free(data);
    return p->kept;
}

static int load_binary(const struct shore__cl_device *d, cl_context context, const char *file,
                       struct shore__cl_program *p, struct shore_diag *diag) {
    size_t bytes = 0;
    unsigned char *data = read_all(file, &bytes);
    if (!data) return shore__fail_errno(diag, file, "cannot be read");
    cl_int code = bytes ? load(d, context, data, bytes, &p->program) : CL_INVALID_BINARY;
    free(data);
    return code ? shore__fail(diag, SHORE_EUSAGE, "opencl binary=%s: is no program for the device %s (error %d)",
                              shore__shown(file).text, d->name, code)
                : 0;
}

static int compile(const struct shore__cl_device *d, cl_context context, const char *options,
                   struct shore__cl_program *p, struct shore_diag *diag) {
    const char *text = source;
    const uint64_t start = shore__now_ns();
    char log[1024] = "";
    cl_int code;
    p->program = d->cl->clCreateProgramWithSource(context, 1, &text, NULL, &code);
    if (code) return shore__cl_fail(diag, d->name, "clCreateProgramWithSource", code);
    code = d->cl->clBuildProgram(p->program, 1, &d->id, options, NULL, NULL);
    p->seconds = (double)(shore__now_ns() - start) * 1e-9;
    if (!code) return 0;
    d->cl->clGetProgramBuildInfo(p->program, d->id, CL_PROGRAM_BUILD_LOG, sizeof log - 1, log, NULL);
    d->cl->clReleaseProgram(p->program);
    p->program = NULL;
    int rc = shore__cl_fail(diag, d->name, "clBuildProgram", code);
    return *log ? shore__fail_of(diag, rc, diag, "%s: %.200s", diag ? diag->text : "", shore__shown(log).text) : rc;
}

int shore__cl_program_open(const struct shore__cl_device *device, cl_context context, const char *macros,
                           const char *binary, struct shore__cl_program *out, struct shore_diag *diag) {
    char options[256];
    *out = (struct shore__cl_program){.program = NULL};
    if (*binary) return load_binary(device, context, binary, out, diag);
    snprintf(options, sizeof options, "-cl-std=CL1.2 %s -DWIDTH=%u -DEXACT=%d%s", macros, device->width, !device->exact,
             device->exact ? " -cl-fp32-correctly-rounded-divide-sqrt" : "");
    snprintf(out->key, sizeof out->key, "%s\n%s%s\n%016llx\n", device->name, device->version, options,
             (unsigned long long)XXH3_64bits(source, sizeof source));
    find_cache(out);
    return load_kept(device, context, out) ? 0 : compile(device, context, options, out, diag);
}

void shore__cl_program_keep(const struct shore__cl_device *device, const struct shore__cl_program *p) {
    char file[sizeof p->file + 16];
    size_t bytes = 0, key = strlen(p->key) + 1;
    if (!*p->file || device->cl->clGetProgramInfo(p->program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, NULL) ||
        bytes == 0 || shore__cache_directories(p->file, NULL))
        return;
    unsigned char *data = malloc(bytes), hash[HASH_BYTES];
    snprintf(file, sizeof file, "%s.%ld", p->file, (long)getpid());
    FILE *f = data && !device->cl->clGetProgramInfo(p->program, CL_PROGRAM_BINARIES, sizeof data, &data, NULL)
                  ? fopen(file, "we")
                  : NULL;
    if (f) {
        shore__put_u64(hash, XXH3_64bits(data, bytes));
        bool written =
            fwrite(p->key, key, 1, f) == 1 && fwrite(hash, sizeof hash, 1, f) == 1 && fwrite(data, bytes, 1, f) == 1;
        if (fclose(f) || !written || rename(file, p->file)) unlink(file);
    }
    free(data);
}
