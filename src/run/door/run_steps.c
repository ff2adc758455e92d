/* Steps of another program: records its changes, and commits its steps with their metrics. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/sized.h"
#include "drive/counters.h"
#include "files/json.h"
#include "run/door/door.h"
#include "run/internal.h"

int shore__door_writable(const struct shore_run *r, struct shore_diag *diag) {
    return r->read_only ? shore__fail(diag, -EROFS, "%s: is open for reading only", r->run->path) : 0;
}

int shore__door_idle(const struct shore_run *r, struct shore_diag *diag) {
    if (!r->fleet) return shore__fail(diag, -EINVAL, "%s: was opened without its drives", r->run->path);
    if (!r->pending) return 0;
    return shore__fail(diag, -EBUSY, "%s: step %" PRIu64 " is still being committed", r->run->path, r->step);
}

int shore_run_record(struct shore_run *r, uint64_t step, const char *what, const char *program,
                     struct shore_diag *diag) {
    int rc = shore__door_writable(r, diag);
    if (rc == 0 && program && !r->run->contents)
        rc = shore__fail(diag, SHORE_EINPUT,
                         "%s: was made by longshore train, so it has no room for another program's data", r->run->path);
    if (rc == 0 && program) rc = shore__contents_take_program(r->run->contents, program, diag);
    return rc || r->run->joins ? rc : shore__run_record_change(r->run, step, what, diag);
}

/* ---- metrics ----------------------------------------------------------------------------------------------------- */

void shore__door_say(struct shore_run *r) {
    if (r->run->note && r->note) r->note(r->note_ctx, r->run->note);
    free(r->run->note);
    r->run->note = NULL;
}

int shore__door_recover_metrics(struct shore_run *r, struct shore_diag *diag) {
    char line[4096];
    uint32_t bytes = sizeof line - 1;
    const struct shore_fleet_info info = shore__fleet_info(r->fleet);
    if (shore_fleet_metrics(r->fleet, line, &bytes)) bytes = 0;
    line[bytes] = '\0';
    int rc = shore__metrics_recover(r->run, info.step, line, diag);
    shore__door_say(r);
    return rc;
}

/* Makes the line of a step. The step comes first: readers of the last line alone expect it there. */
static int make_line(uint64_t step, const char *metrics, char **out, struct shore_diag *diag) {
    char name[64], *rest = NULL;
    json_t *j = NULL;
    snprintf(name, sizeof name, "the metrics of step %" PRIu64, step);
    int rc = metrics ? shore__json_parse(metrics, strlen(metrics), name, &j, diag) : 0;
    if (rc == 0 && j) json_object_del(j, "step");
    if (rc == 0 && json_object_size(j)) {
        rest = json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(9));
        if (!rest) rc = shore__out_of_memory(diag);
    }
    int bytes = rc ? 0 : asprintf(out, "{\"step\":%" PRIu64 "%s%s", step, rest ? "," : "}", rest ? rest + 1 : "");
    if (bytes < 0) rc = shore__out_of_memory(diag);
    if (bytes >= (int)SHORE__METRICS_LINE_MOST) {
        free(*out);
        rc = shore__fail(diag, SHORE_EINPUT, "%s have %d bytes, and less than %u are allowed", name, bytes,
                         SHORE__METRICS_LINE_MOST);
    }
    json_decref(j);
    free(rest);
    return rc;
}

/* ---- commits ----------------------------------------------------------------------------------------------------- */

int shore_run_commit(struct shore_run *r, const struct shore_commit *given, const char *metrics,
                     struct shore_diag *diag) {
    struct shore_commit commit;
    char *line = NULL, record[SHORE__METRICS_BYTES];
    int rc = shore__door_writable(r, diag);
    if (rc == 0) rc = shore__door_idle(r, diag);
    if (rc == 0 && r->unconfirmed)
        rc = shore__fail(diag, -EBUSY, "%s: step %" PRIu64 " is not confirmed yet", r->run->path, r->step);
    if (rc == 0) rc = shore__sized_in(&commit, sizeof commit, given, "shore_commit", diag);
    if (rc == 0 && (commit.metrics || commit.metrics_bytes || commit.how == SHORE_COMMIT_RESTORED))
        rc = shore__fail(diag, -EINVAL,
                         "give the metrics of a run's commit to shore_run_commit(), and restore by a rollback");
    if (rc == 0 && r->behind) rc = shore__door_recover_metrics(r, diag);
    if (rc == 0) r->behind = false;
    if (rc == 0) rc = make_line(commit.step, metrics, &line, diag);
    if (rc < 0) return rc;
    commit.metrics = record;
    commit.metrics_bytes = shore__metrics_fit(line, record);
    shore_wait_init(&r->commit);
    rc = shore_fleet_commit_with(r->fleet, &commit, shore_wait_completion(&r->commit));
    if (rc < 0) {
        free(line);
        return shore__fail(diag, rc, "step %" PRIu64 " cannot be committed: %s", commit.step, shore_error_text(rc));
    }
    r->pending = true;
    r->step = commit.step;
    r->line = line;
    return 0;
}

int shore_run_drives(struct shore_run *r, const struct shore_meter *meter, struct shore_diag *diag) {
    int rc = shore__door_writable(r, diag);
    if (rc == 0) rc = shore__door_idle(r, diag);
    if (rc || r->run->joins) return rc;
    free(r->drives);
    r->drives = shore__drives_line(r->run, meter);
    return r->drives ? 0 : shore__out_of_memory(diag);
}

void shore__door_forget_lines(struct shore_run *r) {
    free(r->line);
    free(r->drives);
    r->line = r->drives = NULL;
}

/* Writes the committed step's lines. */
static int put_lines(struct shore_run *r, struct shore_diag *diag) {
    int rc = r->run->joins ? 0 : shore__metrics_append(r->run, r->step, r->line, diag);
    r->behind = rc < 0;
    if (rc == 0 && r->drives) rc = shore__drives_append(r->run, r->drives, diag);
    shore__door_forget_lines(r);
    return rc;
}

int shore_run_commit_wait(struct shore_run *r, struct shore_diag *diag) {
    if (!r->pending) return 0;
    int rc = shore__fleet_wait(r->fleet, SHORE_LANE_COMMIT, &r->commit, diag);
    r->pending = false;
    r->unconfirmed = r->part && rc == 0;
    if (rc == 0) return r->part ? 0 : put_lines(r, diag);
    shore__door_forget_lines(r);
    return rc;
}

int shore_run_confirm(struct shore_run *r, uint64_t step, struct shore_diag *diag) {
    if (!r->part) return 0;
    int rc = shore__door_idle(r, diag);
    if (rc == 0 && !(r->unconfirmed && step == r->step))
        rc = shore__fail(diag, SHORE_ESTALE, "%s: step %" PRIu64 " does not wait for the other processes", r->run->path,
                         step);
    if (rc) return rc;
    rc = shore_fleet_confirm(r->fleet, step);
    if (rc) return shore__fail(diag, rc, "step %" PRIu64 " cannot be confirmed: %s", step, shore_error_text(rc));
    r->unconfirmed = false;
    return put_lines(r, diag);
}

int shore_run_reconnect(struct shore_run *r, struct shore_diag *diag) {
    if (!r->fleet) return shore__door_idle(r, diag);
    if (r->pending) shore_wait(&r->commit, NULL);
    r->pending = false;
    shore__door_forget_lines(r);
    int rc = shore_fleet_reconnect(r->fleet, diag);
    return rc || r->read_only ? rc : shore__door_recover_metrics(r, diag);
}

int shore_endurance_open(struct shore_run *r, const uint64_t *most, uint64_t step_bytes, struct shore_endurance **out,
                         struct shore_diag *diag) {
    *out = NULL;
    if (!r->fleet) return shore__door_idle(r, diag);
    if (r->part) return shore__fail(diag, -EINVAL, "%s: is open in parts", r->run->path);
    return shore__endurance_open(r->run, r->fleet, most, step_bytes, out, diag);
}
