/* The description of this machine that was kept: where, and whether it still is one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cache_file.h"
#include "base/diag.h"
#include "base/units.h"
#include "files/atomic.h"
#include "machine/machine.h"

#define KEPT "machine.json"
#define DAYS_MOST 90
#define MEMORY_DIFFERS 0.02 /* what the kernel keeps for itself changes with its version */

/* Why a description is not this machine's any more; NULL: it is. */
static const char *stale(const struct shore_machine *m, char *why, size_t bytes) {
    struct shore_machine here;
    shore__machine_here(&here);
    double memory = (double)m->host_memory, now = (double)here.host_memory;
    double days = (double)(here.measured - m->measured) / SHORE__DAY_SECONDS;
    if (m->format != SHORE__MACHINE_FORMAT)
        snprintf(why, bytes, "another version of the program wrote it");
    else if (strcmp(m->processor, here.processor) != 0)
        snprintf(why, bytes, "it is of another processor (%s, and this is %s)", m->processor, here.processor);
    else if (m->cores != here.cores)
        snprintf(why, bytes, "it is of %u cores, and there are %u", m->cores, here.cores);
    else if (memory < now * (1 - MEMORY_DIFFERS) || memory > now * (1 + MEMORY_DIFFERS))
        snprintf(why, bytes, "it is of %s of memory, and there are %s", shore__format_size(m->host_memory).text,
                 shore__format_size(here.host_memory).text);
    else if (days > DAYS_MOST || days < -1)
        snprintf(why, bytes, days < 0 ? "it was measured in the future" : "it was measured %.0f days ago", days);
    else
        return NULL;
    return why;
}

int shore_machine_kept(struct shore_machine **out, struct shore_diag *diag) {
    const char *named = getenv("LONGSHORE_MACHINE");
    char why[256];
    struct shore_diag reason = {0};
    *out = NULL;
    if (named && strcmp(named, "none") == 0)
        return shore__fail(diag, SHORE_EMISSING, "LONGSHORE_MACHINE=none: no machine is read");
    if (named && *named) return shore_machine_read(named, out, diag);
    char *path = shore__cache_file(KEPT);
    if (!path || access(path, F_OK) != 0) {
        free(path);
        return shore__fail(diag, SHORE_EMISSING, "this machine was not measured");
    }
    int rc = shore_machine_read(path, out, &reason);
    if (rc)
        rc = shore__fail_of(diag, SHORE_EMISSING, &reason, "%s", reason.text);
    else if (stale(*out, why, sizeof why))
        rc = shore__fail(diag, SHORE_EMISSING, "%s is stale: %s", shore__shown(path).text, why);
    if (rc) {
        shore_machine_free(*out);
        *out = NULL;
    }
    free(path);
    return rc;
}

/* What only the package measures stays, if a measurement without it comes after. */
static void take_from_kept(struct shore_machine *m, const char *path) {
    struct shore_machine *old;
    struct shore_diag reason;
    char why[256];
    if (!path || shore_machine_read(path, &old, &reason)) return;
    if (!stale(old, why, sizeof why)) {
        if (!shore__rates_given(m->torch_rate)) memcpy(m->torch_rate, old->torch_rate, sizeof m->torch_rate);
        if (!m->gpu_memory && !m->pinned_memory) {
            m->gpu_memory = old->gpu_memory;
            m->pinned_memory = old->pinned_memory;
        }
        if (!(m->bus_in > 0 || m->bus_out > 0)) {
            m->bus_in = old->bus_in;
            m->bus_out = old->bus_out;
            m->bus_both = old->bus_both;
        }
    }
    shore_machine_free(old);
}

int shore_machine_keep(const struct shore_machine *given, struct shore_diag *diag) {
    char *path = shore__cache_file(KEPT), *text;
    struct shore_machine machine = *given;
    struct shore__atomic file;
    int rc = 0;
    take_from_kept(&machine, path);
    text = shore_machine_json(&machine);
    if (!text)
        rc = shore__out_of_memory(diag);
    else if (!path)
        rc = shore__fail(diag, SHORE_EMISSING, "there is no home directory to keep it in: set XDG_CACHE_HOME");
    if (!rc) rc = shore__cache_directories(path, diag);
    if (!rc) rc = shore__atomic_open(path, &file, diag);
    if (!rc) {
        rc = shore__write_at(file.fd, text, strlen(text), 0, path, diag);
        if (rc)
            shore__atomic_abort(&file);
        else
            rc = shore__atomic_commit(&file, diag);
    }
    free(text);
    free(path);
    return rc;
}
