#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/clean_text.h"
#include "cli/cli.h"
#include "drive/counters.h"
#include "plan/transfers.h"
#include "report/report.h"

struct args {
    struct shore__strings moved;
    uint64_t memory, accept_step;
    const uint64_t *accept; /* NULL: not given */
    bool digest, deep, json;
};

#define OPTION(...) SHORE__OPTION(struct args, __VA_ARGS__)
static const struct shore__option options[] = {
    OPTION(FLAG, "digest", digest, NULL, "print 'step N digest HEX': a hash of all parameters and optimizer state"),
    OPTION(FLAG, "deep", deep, NULL, "as --digest, with every byte read and compared with its checksum first"),
    OPTION(SIZE, "memory", memory, "SIZE", "the budget; otherwise little is taken"),
    SHORE__MOVED_OPTION(struct args, moved),
    OPTION(WHOLE, "accept-step", accept_step, "N",
           "with --digest: take whole step N, the one before, although the newest is damaged"),
    OPTION(FLAG, "json", json, NULL, "one JSON object on one line"),
};

/* ---- the digest -------------------------------------------------------------------------------------------------- */

/* opened: whether the drives were opened. */
static int print_digest(struct shore__run *run, const struct args *a, bool *opened, struct shore_diag *diag) {
    struct shore_fleet *fleet = NULL;
    unsigned char digest[16];
    uint64_t now, peak;
    int rc = 0;
    if (a->memory) {
        struct shore_fleet_options fleet_options;
        shore__run_fleet_options(&run->settings, 0, false, &fleet_options);
        shore__transfer_rings(&fleet_options);
        shore__resident_bytes(&now, &peak);
        rc = shore__budget_measured(a->memory, peak + shore__transfer_fleet_bytes(run->layout, &fleet_options), diag);
    }
    if (!rc) rc = shore__cli_open_fleet(run, a->accept, &fleet, diag);
    *opened = !rc;
    if (!rc && a->deep) rc = shore__run_check_data(run, false, NULL, NULL, diag);
    if (!rc) rc = shore_fleet_digest(fleet, a->deep, digest, diag);
    if (!rc) {
        const uint64_t step = shore__fleet_info(fleet).step;
        const struct shore__written hex = shore__format_digest(digest);
        if (a->json)
            shore__cli_print_json(
                json_pack("{s:I,s:s,s:b}", "step", (json_int_t)step, "digest", hex.text, "deep", a->deep));
        else
            printf("step %llu digest %s\n", (unsigned long long)step, hex.text);
    }
    shore_fleet_close(fleet);
    return rc;
}

/* ---- the explanation --------------------------------------------------------------------------------------------- */

static void explain_model(struct shore__run *run, json_t *o) {
    char text[160];
    json_object_set_new(o, "model", shore__model_to_json(run->model, &run->model->arch));
    shore__run_tokenizer_text(run, text, sizeof text);
    json_object_set_new(o, "tokenizer", json_string(text));
    json_object_set_new(o, "emulated", json_boolean(shore__settings_emulated(&run->settings)));
    json_object_set_new(o, "train_tokens",
                        json_integer(run->train ? (json_int_t)shore__dataset_tokens(run->train) : 0));
    json_object_set_new(o, "val_tokens", json_integer(run->val ? (json_int_t)shore__dataset_tokens(run->val) : 0));
    json_object_set_new(o, "bad_rows", json_integer((json_int_t)shore__run_bad_rows(run)));
}

static void explain_contents(const struct shore__contents *c, json_t *o) {
    json_object_set(o, "program", c->program);
    json_object_set_new(o, "blocks", shore__contents_to_json(c));
}

/* A snapshot of the run's last steps and its current user, valid for a moment. */
struct moment {
    struct shore__pulse pulse;
    struct shore__worker worker;
    bool in_use;
};

static void look(const struct shore__run *run, struct moment *m) {
    *m = (struct moment){0};
    m->in_use = shore__run_worker(run->path, &m->worker);
    shore__run_pulse(run, &m->pulse);
}

static void explain_moment(const struct moment *m, json_t *o) {
    const struct shore__worker *w = &m->worker;
    if (!isnan(m->pulse.loss)) json_object_set_new(o, "last_loss", json_real(m->pulse.loss));
    if (m->pulse.step_seconds > 0) json_object_set_new(o, "step_seconds", json_real(m->pulse.step_seconds));
    if (m->pulse.steps_charged) {
        json_t *charges = json_object();
        for (int i = 0; i < SHORE_CHARGES; i++)
            json_object_set_new(charges, shore_charge_name((enum shore_charge)i),
                                json_real(m->pulse.charges[i] / m->pulse.steps_charged));
        json_object_set_new(o, "charges", charges);
    }
    if (m->pulse.remaining_seconds > 0)
        json_object_set_new(o, "remaining_seconds", json_real(m->pulse.remaining_seconds));
    json_object_set_new(o, "in_use", json_boolean(m->in_use));
    if (m->in_use && w->pid)
        json_object_set_new(o, "worker",
                            json_pack("{s:I, s:s, s:I, s:s}", "pid", (json_int_t)w->pid, "host", w->host, "since",
                                      (json_int_t)w->since, "process", w->process));
}

static void print_moment(const struct moment *m) {
    const struct shore__worker *w = &m->worker;
    char text[256];
    if (!isnan(m->pulse.loss) || m->pulse.step_seconds > 0) printf("last steps:");
    if (!isnan(m->pulse.loss)) printf(" loss %.4f", m->pulse.loss);
    if (m->pulse.step_seconds > 0)
        printf("%s %s a step", isnan(m->pulse.loss) ? "" : ",", shore__format_seconds(m->pulse.step_seconds).text);
    if (m->pulse.remaining_seconds > 0) printf(", %s to go", shore__format_seconds(m->pulse.remaining_seconds).text);
    if (!isnan(m->pulse.loss) || m->pulse.step_seconds > 0) putchar('\n');
    if (shore__charges_text(m->pulse.charges, m->pulse.steps_charged, text, sizeof text)[0]) printf("%s\n", text);
    if (!m->in_use) return;
    fputs("in use: by ", stdout);
    if (w->pid) {
        const time_t since = (time_t)w->since;
        struct tm tm;
        strftime(text, sizeof text, "%F %T", localtime_r(&since, &tm));
        printf("process %lld (%s) on %s since %s", (long long)w->pid, w->process, shore__shown(w->host).text, text);
    } else {
        fputs("another process", stdout);
    }
    puts("; this was read without its lock");
}

static json_t *explanation(struct shore__run *run) {
    char fleet[33];
    snprintf(fleet, sizeof fleet, "%016llx%016llx", (unsigned long long)run->fleet_id[0],
             (unsigned long long)run->fleet_id[1]);
    json_t *o = json_object();
    json_object_set_new(o, "run", shore__clean_json(run->path, strlen(run->path)));
    json_object_set_new(o, "step", json_integer((json_int_t)run->hint_step));
    if (run->model) json_object_set_new(o, "steps", json_integer((json_int_t)run->settings.steps));
    json_object_set_new(o, "fleet", json_string(fleet));
    json_object_set_new(o, "generation", json_integer((json_int_t)run->generation));
    if (run->model) json_object_set_new(o, "processor", json_string(run->processor));
    json_object_set_new(o, "parameters", json_integer((json_int_t)run->layout->elems));
    if (run->model) json_object_set_new(o, "trained_parameters", json_integer((json_int_t)run->model->trained));
    json_object_set_new(o, "segments", json_integer((json_int_t)run->layout->segments));
    if (run->model)
        explain_model(run, o);
    else
        explain_contents(run->contents, o);
    json_object_set_new(o, "settings", shore__run_settings_json(run));
    json_object_set_new(o, "changes", run->changes ? json_incref(run->changes) : json_array());
    return o;
}

static void print_value(const json_t *value) {
    char *text = json_is_string(value)    ? strdup(json_string_value(value))
                 : json_is_boolean(value) ? strdup(json_is_true(value) ? "on" : "off")
                                          : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (text) printf(" %s", shore__shown(text).text);
    free(text);
}

/* Prints the settings that decide the bits, as flags. */
static void print_identity(const json_t *settings) {
    const char *key;
    const json_t *value;
    printf("identity (what decides the bits):\n");
    json_object_foreach((json_t *)settings, key, value) {
        if (json_is_null(value) || shore__role_of_setting(key) != SHORE__IDENTITY) continue;
        printf("  %-17s", key);
        if (json_is_array(value)) {
            size_t k;
            json_t *item;
            json_array_foreach((json_t *)value, k, item) print_value(item);
        } else {
            print_value(value);
        }
        putchar('\n');
    }
}

static void print_model(const struct shore__run *run, const json_t *o) {
    const struct shore__settings *s = &run->settings;
    const struct shore__arch *arch = &run->model->arch;
    printf("run %s: step %llu of %llu%s\n", shore__shown(run->path).text, (unsigned long long)run->hint_step,
           (unsigned long long)s->steps, run->hint_step >= s->steps ? ", finished" : "");
    printf("model: %s, %u layers of width %u, %u heads (%u for keys), vocabulary %u, %llu parameters", arch->model_type,
           arch->n_layer, arch->d_model, arch->n_head, arch->n_kv_head, arch->vocab,
           (unsigned long long)run->model->parameters);
    if (run->model->trained < run->model->parameters)
        printf(", of which %llu are trained", (unsigned long long)run->model->trained);
    puts("");
    printf("tokenizer: %s\n", json_string_value(json_object_get(o, "tokenizer")));
    printf("data: %llu tokens to train on, %llu to validate on\n",
           (unsigned long long)(run->train ? shore__dataset_tokens(run->train) : 0),
           (unsigned long long)(run->val ? shore__dataset_tokens(run->val) : 0));
    if (shore__run_bad_rows(run))
        printf("bad rows: %llu, skipped when the data were read\n", (unsigned long long)shore__run_bad_rows(run));
    printf("last trained on: %s\n", run->processor);
    if (shore__settings_emulated(s))
        printf("emulated: the times of its steps are those of %s\n", shore__shown(s->emulate).text);
}

static void print_contents(const struct shore__run *run) {
    const struct shore__contents *c = run->contents;
    const char *maker = shore__contents_maker(c);
    printf("run %s: step %llu\n", shore__shown(run->path).text, (unsigned long long)run->hint_step);
    printf("made by: %s\n", shore__shown(maker).text);
    printf("tensors: %u in %u blocks, %llu parameters\n", c->nshapes, run->layout->nblocks,
           (unsigned long long)run->layout->elems);
}

static int explain(struct shore__run *run, const struct args *a) {
    const struct shore__settings *s = &run->settings;
    json_t *o = explanation(run), *volumes = json_array();
    struct shore_diag diag = {0};
    struct moment moment;
    look(run, &moment);
    explain_moment(&moment, o);
    if (!a->json) {
        if (run->model)
            print_model(run, o);
        else
            print_contents(run);
        print_moment(&moment);
        print_identity(json_object_get(o, "settings"));
        if (run->model || s->memory_bytes) printf("budget: %s\n", shore__format_size(s->memory_bytes).text);
        puts("volumes:");
    }
    for (size_t i = 0; i < s->drives.count; i++) {
        json_t *drive = shore__cli_drive_json(run, i);
        if (!a->json) {
            fputs("  ", stdout);
            shore__cli_drive_print(drive);
        }
        json_array_append_new(volumes, drive);
    }
    json_object_set_new(o, "volumes", volumes);
    json_t *snapshots = shore__cli_snapshots_json(run->path, &diag);
    json_object_set_new(o, "snapshots", snapshots ? snapshots : json_array());
    if (a->json) return shore__cli_print_json(o);
    size_t i;
    json_t *change, *snapshot;
    printf("placement: %llu\n", (unsigned long long)run->generation);
    json_array_foreach(json_object_get(o, "snapshots"), i, snapshot) {
        printf("%s  %s: step %lld, %s\n", i ? "" : "snapshots:\n", json_string_value(json_object_get(snapshot, "name")),
               (long long)json_integer_value(json_object_get(snapshot, "step")),
               json_string_value(json_object_get(snapshot, "date")));
    }
    json_array_foreach(json_object_get(o, "changes"), i, change) {
        const char *what = json_string_value(json_object_get(change, "what"));
        printf("%s  from step %lld on: %s\n", i ? "" : "changes:\n",
               (long long)json_integer_value(json_object_get(change, "step")), what ? shore__shown(what).text : "");
    }
    json_decref(o);
    return SHORE__EXIT_DONE;
}

static int inspect(const struct shore__parsed *parsed, void *args) {
    struct args *a = args;
    struct shore_diag diag = {0};
    struct shore__run *run = NULL;
    bool opened = false;
    int code = SHORE__EXIT_DONE, rc = 0;
    a->digest |= a->deep;
    if (shore__option_given(&shore__cli_inspect, parsed, "accept-step")) a->accept = &a->accept_step;
    if (!a->digest && (a->accept || a->memory))
        rc =
            shore__fail(&diag, SHORE_EUSAGE, "--%s goes with --digest or --deep", a->accept ? "accept-step" : "memory");
    const struct shore__strings *moved = a->moved.count ? &a->moved : NULL;
    if (!rc && a->digest) rc = shore__run_open(parsed->positional[0], false, moved, &run, &diag);
    if (!rc && !a->digest) rc = shore__run_look(parsed->positional[0], moved, &run, &diag);
    if (!rc && run->note) shore__cli_say("%s", run->note);
    if (!rc && run->no_data) shore__cli_say("%s", run->no_data);
    if (!rc && a->digest) rc = print_digest(run, a, &opened, &diag);
    if (!rc && !a->digest) {
        struct shore_diag damaged; /* of a damaged tokenizer: only its name is printed */
        if (run->model) shore__run_tokenizer(run, &damaged);
        code = explain(run, a);
    }
    if (rc) code = opened ? shore__cli_fail_opened(rc, &diag) : shore__cli_fail(rc, &diag);
    shore__run_close(run);
    return code;
}

const struct shore__command_line shore__cli_inspect = {
    .command = "inspect",
    .remote = true,
    .synopsis = "inspect RUN [--json]\ninspect RUN --digest|--deep [--json]",
    .about =
        "Explains a run: its model, its identity, how far it is, who works on it, and the volumes that hold its "
        "state.\n"
        "A run in use may be looked at, too. The digest does not depend on where or in what pieces the state lies.",
    SHORE__OPTIONS(options),
    .positional = 1,
    .missing = "which run? longshore inspect RUN",
    SHORE__RUNS(inspect, struct args, .json = false),
};
