/* The figures of `longshore plan`, as its JSON has them. */
#include "base/units.h"
#include "cli/outlook.h"

static double written_per_day(const struct shore__forecast *w) {
    return w->step_seconds > 0 ? (double)w->drive_write_bytes / w->step_seconds * SHORE__DAY_SECONDS : 0;
}

/* Days until the drive that wears fastest has written so much. */
static double days_until(const struct shore__forecast *w, uint64_t tbw_bytes) {
    double per_day = (double)w->drive_write_most_bytes / w->step_seconds * SHORE__DAY_SECONDS;
    return (double)tbw_bytes / per_day;
}

static const char *const parts[SHORE__STEP_PARTS] = {"forward", "head", "backward", "commit"};
static const char *const moves[SHORE__MOVED_CLASSES] = {"parameters", "activations", "updates"};

static json_t *bytes_json(uint64_t bytes) {
    return json_integer((json_int_t)bytes);
}

static json_t *classes_json(const uint64_t bytes[SHORE__MEMORY_CLASSES]) {
    json_t *o = json_object();
    for (int c = 0; c < SHORE__MEMORY_CLASSES; c++)
        json_object_set_new(o, shore__memory_class_name((enum shore__memory_class)c), bytes_json(bytes[c]));
    return o;
}

/* Lanes of one name count as the busier one. */
static json_t *lanes_json(const struct shore__forecast *w) {
    json_t *o = json_object();
    for (int lane = 0; lane < SHORE_LANES; lane++) {
        const char *name = shore_lane_name((enum shore_lane)lane);
        if (json_real_value(json_object_get(o, name)) <= w->lane_seconds[lane])
            json_object_set_new(o, name, json_real(w->lane_seconds[lane]));
    }
    return o;
}

static json_t *changes_json(const struct shore__plan_report *r) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < r->what_ifs; i++) {
        const struct shore__forecast *w = &r->what_if[i].forecast;
        json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:I}", "change", r->what_if[i].change, "step_seconds",
                                              w->step_seconds, "tokens_per_second", w->tokens_per_second,
                                              "budget_bytes", (json_int_t)w->budget_bytes));
    }
    return list;
}

static json_t *notes_json(const struct shore__plan_report *r) {
    const struct shore__outlook *o = r->outlook;
    json_t *list = json_array();
    if (o->model->adapters.count)
        json_array_append_new(
            list, json_sprintf("adapters of rank %u are trained, and the model is frozen", o->model->adapters.rank));
    if (o->forecast.gathers)
        json_array_append_new(list, json_string("forward fetches the rows of the embedding that a batch looks up, and "
                                                "not all of it (--gather)"));
    else if (o->settings->gather == SHORE__ON && o->facts.model->arch.tied)
        json_array_append_new(list, json_string(SHORE__GATHER_TIED));
    if (o->forecast.budget_bytes < o->settings->memory_bytes)
        json_array_append_new(list, json_sprintf("%s has no more memory that can be pinned", o->machine->name));
    if (!o->facts.one_memory)
        json_array_append_new(list, json_sprintf("a step computes on the GPU of %s, which train cannot do yet: 'python "
                                                 "-m longshore plan' says what the package takes",
                                                 o->machine->name));
    return list;
}

json_t *shore__plan_json(const struct shore__plan_report *r) {
    const struct shore__outlook *o = r->outlook;
    const struct shore__forecast *w = &o->forecast;
    json_t *over_step = json_object(), *moved = json_object(), *j = json_object();
    for (int c = 0; c < SHORE__MOVED_CLASSES; c++)
        json_object_set_new(moved, moves[c],
                            json_pack("{s:I, s:I, s:I}", "link", (json_int_t)w->moved[c].link, "read",
                                      (json_int_t)w->moved[c].read, "written", (json_int_t)w->moved[c].written));
    for (int part = 0; part < SHORE__STEP_PARTS; part++)
        json_object_set_new(over_step, parts[part], classes_json(w->part_bytes[part]));
    const struct {
        const char *key;
        uint64_t bytes;
    } sizes[] = {
        {"minimum_bytes", w->minimum_bytes},
        {"useful_bytes", r->useful_bytes},
        {"comfortable_bytes", w->comfortable_bytes},
        {"budget_bytes", w->budget_bytes},
        {"peak_bytes", w->peak_bytes},
        {"disk_bytes", w->disk_bytes},
        {"link_bytes", w->link_bytes},
        {"drive_read_bytes", w->drive_read_bytes},
        {"drive_write_bytes", w->drive_write_bytes},
        {"parameters", o->model->parameters},
        {"tokens", o->facts.batch.rows},
        {"batch", o->settings->batch},
        {"drives", o->settings->drives.count},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        json_object_set_new(j, sizes[i].key, bytes_json(sizes[i].bytes));
    json_object_set_new(j, "model", json_string(o->settings->model ? o->settings->model : o->settings->init));
    json_object_set_new(j, "rates", json_string(r->rates));
    json_object_set_new(j, "step_seconds", json_real(w->step_seconds));
    json_object_set_new(j, "tokens_per_second", json_real(w->tokens_per_second));
    json_object_set_new(j, "bound", json_string(shore_lane_name(w->bound)));
    json_object_set_new(j, "lanes", lanes_json(w));
    json_object_set_new(j, "memory", classes_json(w->memory_bytes));
    json_object_set_new(j, "memory_over_step", over_step);
    if (!o->facts.one_memory)
        json_object_set_new(j, "places",
                            json_pack("{s:I, s:I, s:I}", "gpu", (json_int_t)w->place_bytes[SHORE_PLACE_DEVICE],
                                      "pinned", (json_int_t)w->place_bytes[SHORE_PLACE_PINNED], "host",
                                      (json_int_t)w->place_bytes[SHORE_PLACE_PLAIN]));
    json_object_set_new(j, "activations",
                        json_pack("{s:I, s:I, s:I}", "kept", (json_int_t)w->kept_bytes, "recomputed",
                                  (json_int_t)w->recomputed_bytes, "offloaded", (json_int_t)w->offloaded_bytes));
    json_object_set_new(j, "gather", json_boolean(w->gathers));
    json_object_set_new(j, "moved", moved);
    json_object_set_new(j, "written_bytes_per_day", bytes_json((uint64_t)written_per_day(w)));
    if (r->tbw_bytes && w->drive_write_most_bytes)
        json_object_set_new(j, "days_until_tbw", json_real(days_until(w, r->tbw_bytes)));
    json_object_set_new(j, "plan_seconds", json_real(w->plan_seconds));
    json_object_set_new(j, "notes", notes_json(r));
    json_object_set_new(j, "what_if", changes_json(r));
    return j;
}

json_t *shore__outlook_json(const struct shore__outlook *o, const char *rates, struct shore_diag *diag) {
    struct shore__plan_report report = {.rates = rates};
    return shore__outlook_report(o, &report, diag) ? NULL : shore__plan_json(&report);
}
