/* Finds and opens backends by name. */
#include <omp.h>
#include <stdio.h>
#include <string.h>

#include "base/diag.h"
#include "compute/compute.h"

#define MOST_BACKENDS 8
static const struct shore__compute_backend *backends[MOST_BACKENDS] = {&shore__compute_cpu};

void shore__compute_register(const struct shore__compute_backend *backend) {
    for (size_t i = 0; i < MOST_BACKENDS; i++) {
        if (backends[i] && backends[i] != backend) continue;
        backends[i] = backend;
        return;
    }
}

static const struct shore__compute_backend *find(const char *name, struct shore_diag *diag) {
    if (!name) name = shore__compute_cpu.name;
    for (size_t i = 0; i < MOST_BACKENDS && backends[i]; i++)
        if (!strcmp(name, backends[i]->name)) return backends[i];
    shore__fail(diag, SHORE_EUSAGE, "there is no compute backend '%s'", name);
    return NULL;
}

int shore__compute_describe(const struct shore__compute_options *options, const struct shore__shapes *shapes,
                            struct shore__compute_description *out, struct shore_diag *diag) {
    const struct shore__compute_backend *backend = find(options->device, diag);
    return !backend ? SHORE_EUSAGE : backend->describe(options, shapes, out, diag);
}

void shore__compute_identity(const struct shore__compute_description *d, char *out, size_t bytes) {
    snprintf(out, bytes, "%s, %s products, %d threads, kernels %d", d->kind, d->mode == SHORE__BF16 ? "bf16" : "fp32",
             d->threads, d->kernels);
}

int shore__compute_open(const struct shore__compute_options *options, struct shore__compute **out,
                        struct shore_diag *diag) {
    const struct shore__compute_backend *backend = find(options->device, diag);
    int rc = !backend ? SHORE_EUSAGE : backend->open(options, out, diag);
    if (!rc) omp_set_num_threads((*out)->threads);
    return rc;
}
