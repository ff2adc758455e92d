#include "run/directory/draft.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "run/directory/journal.h"
#include "run/paths.h"

#define DRAFT "making/plan.json"

/* Reads the fleet and its new volumes. */
static int read_fields(const json_t *j, struct shore__draft *out) {
    const json_t *volumes = json_object_get(j, "volumes");
    if (!shore__fleet_id_parse(json_string_value(json_object_get(j, "fleet")), out->fleet_id)) return -EINVAL;
    return volumes ? shore__addresses_from_json(volumes, &out->fresh) : 0;
}

int shore__draft_read(const char *run_path, struct shore__draft *out, struct shore_diag *diag) {
    json_t *j = NULL;
    *out = (struct shore__draft){0};
    int rc = shore__journal_read(run_path, DRAFT, &j, diag);
    if (rc == 0 && read_fields(j, out))
        rc = shore__fail(diag, SHORE_EINPUT, "%s/" DRAFT ": has been changed by hand; remove %s/making", run_path,
                         run_path);
    const char *home = json_string_value(json_object_get(j, "home"));
    const char *mark = json_string_value(json_object_get(j, "directory"));
    const char *maker = json_string_value(json_object_get(j, "maker"));
    out->maker = maker ? strdup(maker) : NULL;
    out->origin = (struct shore__origin){home ? strdup(home) : NULL, mark ? strdup(mark) : NULL};
    if (rc < 0) shore__draft_free(out);
    json_decref(j);
    return rc;
}

void shore__draft_free(struct shore__draft *draft) {
    shore__addresses_free(&draft->fresh);
    shore__origin_free(&draft->origin);
    free(draft->maker);
    draft->maker = NULL;
}

/* Whether a later start reads the same draft from it. */
static bool reads_back(const json_t *j, const struct shore__draft *draft) {
    struct shore__draft back = {0};
    int rc = read_fields(j, &back);
    bool same = rc == 0 && back.fresh.count == draft->fresh.count &&
                memcmp(back.fleet_id, draft->fleet_id, sizeof back.fleet_id) == 0;
    shore__addresses_free(&back.fresh);
    return rc == -ENOMEM || same;
}

int shore__draft_write(const char *run_path, const struct shore__draft *draft, struct shore_diag *diag) {
    struct shore__origin origin = {0};
    char fleet[33];
    int rc = shore__origin_take(run_path, &origin, diag);
    if (rc < 0) return rc;
    shore__fleet_id_text(draft->fleet_id, fleet);
    json_t *home = json_string(origin.home); /* NULL: not in UTF-8 */
    json_t *j = json_pack("{s:s, s:o, s:o, s:s*, s:s*}", "fleet", fleet, "volumes",
                          shore__texts_to_json(draft->fresh.text, draft->fresh.count), "home",
                          home ? home : json_null(), "directory", origin.mark, "maker", draft->maker);
    assert(!j || reads_back(j, draft));
    rc = shore__journal_write(run_path, DRAFT, j, diag);
    shore__origin_free(&origin);
    return rc;
}
