/* Reports: one HTML page about runs, of what their directories tell: loss, throughput, where a step's time goes,
 * memory, bytes and wear, plan against truth, and what to buy. Of several runs, their losses and throughputs are
 * compared.
 *
 *     shore_report_html(runs, 1, NULL, &html, &bytes, &diag)
 *     shore_report_save(html, bytes, "report.html", &diag)
 *     free(html)
 *
 * The page needs nothing else: no network, no script, and no other file. A run may be in use.
 *
 * Paths are UTF-8. Threading: any.
 */
#ifndef LONGSHORE_REPORT_H
#define LONGSHORE_REPORT_H

#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHORE_REPORT_RUNS_MOST 32u

struct shore_report_options {
    size_t size;        /* sizeof(struct shore_report_options) */
    uint64_t tbw_bytes; /* what a drive may write in its life, for its days; 0: not said */
};

/* Makes the page of so many runs. options: may be NULL. Lines of metrics.jsonl that are damaged are left out, and the
 * page says how many; of a run without a step it says so. Ownership: *html is the caller's, for free(), and ends with a
 * 0 after so many bytes; NULL on failure. Errors: SHORE_EMISSING (there is no run), SHORE_EUSAGE (no run, too many, or
 * one twice), SHORE_EFORMAT, SHORE_EINPUT, SHORE_ECORRUPT (run.json), -EIO, -ENOMEM. */
int shore_report_html(const char *const *runs, uint32_t nruns, const struct shore_report_options *options, char **html,
                      size_t *bytes, struct shore_diag *diag);

/* Writes a page to a file, which is whole or not there. It replaces a report alone. Durable: on return. Errors:
 * SHORE_EEXISTS (something else has the name), -EIO, -ENOSPC and others of the file system. */
int shore_report_save(const char *html, size_t bytes, const char *path, struct shore_diag *diag);

#ifdef __cplusplus
}
#endif

#endif
