#include "near/opencl/opencl_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"

enum { DEVICES_MOST = 64, PLATFORMS_MOST = 16 };

/* What stands behind "key="; NULL: the item has another key. */
static const char *value_of(const char *item, const char *key) {
    const size_t bytes = strlen(key);
    return strncmp(item, key, bytes) == 0 && item[bytes] == '=' ? item + bytes + 1 : NULL;
}

static int parse_item(const char *item, struct shore__opencl_options *out, struct shore_diag *diag) {
    const char *device = value_of(item, "device"), *memory = value_of(item, "memory");
    const char *binary = value_of(item, "binary");
    if ((device && *out->device) || (memory && out->memory) || (binary && *out->binary))
        return shore__fail(diag, SHORE_EUSAGE, "opencl %.6s is given twice", item);
    if (device && *device) {
        snprintf(out->device, sizeof out->device, "%s", device);
    } else if (memory) {
        if (shore__parse_size(memory, &out->memory) || out->memory == 0)
            return shore__fail(diag, SHORE_EUSAGE, "opencl memory takes a size such as 2GiB, not '%s'",
                               shore__shown(memory).text);
    } else if (binary && *binary) {
        if ((size_t)snprintf(out->binary, sizeof out->binary, "%s", binary) >= sizeof out->binary)
            return shore__fail(diag, SHORE_EUSAGE, "opencl binary: the path is too long");
    } else {
        return shore__fail(diag, SHORE_EUSAGE,
                           "opencl takes device=NAME|INDEX, memory=SIZE and binary=FILE, with commas between, not "
                           "'%s'",
                           shore__shown(item).text);
    }
    return 0;
}

int shore__opencl_parse(const char *text, struct shore__opencl_options *out, struct shore_diag *diag) {
    *out = (struct shore__opencl_options){.memory = 0};
    if (!text || !*text) return 0;
    char *copy = strdup(text), *rest = copy, *item;
    int rc = copy ? 0 : shore__out_of_memory(diag);
    while (!rc && (item = strsep(&rest, ",")))
        rc = parse_item(item, out, diag);
    free(copy);
    return rc;
}

static const char *text_of(const struct shore__cl *cl, cl_device_id id, cl_device_info what, char *out, size_t bytes) {
    size_t used = 0;
    out[0] = '\0';
    if (cl->clGetDeviceInfo(id, what, 0, NULL, &used) || used > bytes ||
        cl->clGetDeviceInfo(id, what, bytes, out, NULL))
        out[0] = '\0';
    return out;
}

static uint64_t number_of(const struct shore__cl *cl, cl_device_id id, cl_device_info what) {
    uint64_t value = 0; /* little-endian; shorter ones fill its lower half */
    return cl->clGetDeviceInfo(id, what, sizeof value, &value, NULL) ? 0 : value;
}

/* All devices, platform by platform. */
static int list(const struct shore__cl *cl, cl_device_id *ids, uint32_t *count, struct shore_diag *diag) {
    cl_platform_id platforms[PLATFORMS_MOST];
    cl_uint n = 0;
    *count = 0;
    cl_int code = cl->clGetPlatformIDs(PLATFORMS_MOST, platforms, &n);
    for (cl_uint p = 0; !code && p < n && p < PLATFORMS_MOST; p++) {
        cl_uint found = 0, room = DEVICES_MOST - *count;
        if (room && cl->clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, room, ids + *count, &found) == 0)
            *count += found < room ? found : room;
    }
    if (*count) return 0;
    if (n)
        return shore__fail(diag, SHORE_EUSAGE,
                           "OpenCL: a platform is here, but it gives no device; PoCL gives none where it cannot write "
                           "its cache: the directory POCL_CACHE_DIR, or pocl in XDG_CACHE_HOME or in ~/.cache");
    return shore__fail(diag, SHORE_EUSAGE,
                       "OpenCL: no platform here has a device; on Debian, pocl-opencl-icd brings one that is this "
                       "processor; OCL_ICD_VENDORS names the directory with the file of another (docs/opencl.md)");
}

static bool fits(const struct shore__cl *cl, cl_device_id id, uint32_t index, const char *wanted, cl_device_type best) {
    char name[128];
    char *end;
    unsigned long number = strtoul(wanted, &end, 10);
    if (!*wanted) return number_of(cl, id, CL_DEVICE_TYPE) & best;
    if (!*end) return number == index;
    return strstr(text_of(cl, id, CL_DEVICE_NAME, name, sizeof name), wanted);
}

static int describe(struct shore__cl_device *d, const struct shore__opencl_options *options, struct shore_diag *diag) {
    const struct shore__cl *cl = d->cl;
    char text[8192];
    cl_platform_id platform = NULL;
    text_of(cl, d->id, CL_DEVICE_NAME, d->name, sizeof d->name);
    snprintf(d->version, sizeof d->version, "%.120s\n", text_of(cl, d->id, CL_DEVICE_VERSION, text, sizeof text));
    shore__append(d->version, sizeof d->version, "%.60s\n", text_of(cl, d->id, CL_DRIVER_VERSION, text, sizeof text));
    if (!cl->clGetDeviceInfo(d->id, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL) &&
        !cl->clGetPlatformInfo(platform, CL_PLATFORM_VERSION, sizeof text, text, NULL))
        shore__append(d->version, sizeof d->version, "%.120s\n", text);
    d->p2p = strstr(text_of(cl, d->id, CL_DEVICE_EXTENSIONS, text, sizeof text), "cl_xilinx_p2p");
    d->unified = number_of(cl, d->id, CL_DEVICE_HOST_UNIFIED_MEMORY);
    d->memory = number_of(cl, d->id, CL_DEVICE_GLOBAL_MEM_SIZE);
    d->alloc = number_of(cl, d->id, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    const uint64_t config = number_of(cl, d->id, CL_DEVICE_SINGLE_FP_CONFIG);
    d->exact = config & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT;
    d->width = d->exact && number_of(cl, d->id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT) > 1 ? 16 : 1;
    if (!number_of(cl, d->id, CL_DEVICE_AVAILABLE))
        return shore__fail(diag, SHORE_EUSAGE, "OpenCL device %s is not available", d->name);
    if (*options->binary || (config & CL_FP_DENORM && config & CL_FP_ROUND_TO_NEAREST)) return 0;
    return shore__fail(diag, SHORE_EUSAGE,
                       "OpenCL device %s does not keep denormal numbers or does not round to nearest, so its updates "
                       "would differ: name another with opencl device=",
                       d->name);
}

int shore__opencl_device(const struct shore__opencl_options *options, uint32_t number, struct shore__cl_device *out,
                         struct shore_diag *diag) {
    static const cl_device_type kinds[] = {CL_DEVICE_TYPE_ACCELERATOR, CL_DEVICE_TYPE_GPU, CL_DEVICE_TYPE_ALL};
    cl_device_id ids[DEVICES_MOST], found[DEVICES_MOST];
    uint32_t count, n = 0;
    *out = (struct shore__cl_device){.memory = 0};
    int rc = shore__cl_load(&out->cl, diag);
    if (!rc) rc = list(out->cl, ids, &count, diag);
    if (rc) return rc;
    for (int k = 0; k < 3 && n == 0; k++)
        for (uint32_t i = 0; i < count; i++)
            if (fits(out->cl, ids[i], i, options->device, kinds[k])) found[n++] = ids[i];
    if (n) {
        out->id = found[number % n];
        return describe(out, options, diag);
    }
    char names[600] = "", name[128];
    for (uint32_t i = 0; i < count; i++)
        shore__append(names, sizeof names, "%s%u %s", i ? ", " : "", i,
                      text_of(out->cl, ids[i], CL_DEVICE_NAME, name, sizeof name));
    return shore__fail(diag, SHORE_EUSAGE, "opencl device=%s: there is no such device; there are: %s",
                       shore__shown(options->device).text, names);
}

int shore__opencl_device_here(uint32_t number, struct shore__cl_device *out, struct shore_diag *diag) {
    struct shore__opencl_options options;
    int rc = shore__opencl_parse(getenv(SHORE__OPENCL_VARIABLE), &options, diag);
    return rc ? rc : shore__opencl_device(&options, number, out, diag);
}
