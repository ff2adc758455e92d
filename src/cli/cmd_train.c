#include "train/train.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/outlook.h"
#include "cli/summary.h"
#include "cli/train_options.h"
#include "files/json.h"
#include "report/tensorboard.h"
#include "run/paths.h"

static const char promise[] = "longshore: finishing and committing this step; once more stops at once\n";

enum { TIMED_STEPS = 256 }; /* whose median is compared with the plan */

/* What is planned, and by which rates. */
struct ahead {
    struct shore__plan_rates rates;
    struct shore__forecast forecast;
    json_t *plan; /* all of it, for RUN/plan.json; NULL: nothing was planned */
};

/* State of one training's callbacks. */
struct watch {
    const struct shore__run *run;
    const struct shore__settings *settings;
    const struct ahead *ahead;
    struct shore__progress progress;
    struct shore__tensorboard board;
    bool board_failed; /* that was said */
    uint64_t steps;    /* seen */
    double first_loss;
    uint64_t start_ns;             /* of the first step */
    double seconds[TIMED_STEPS];   /* of the last steps */
    double charges[SHORE_CHARGES]; /* of all steps but the first, which opens files */
};

/* A full disk costs steps in TensorBoard, not the run. */
static void add_to_board(struct watch *w, const struct shore_step_report *r) {
    struct shore_diag diag;
    if (!w->board.directory || !shore__tensorboard_add(&w->board, r, &diag)) return;
    if (!w->board_failed)
        shore__cli_say(
            "warning: TensorBoard lacks step %llu, and others if that goes on: %s; RUN/metrics.jsonl has all",
            (unsigned long long)r->step, diag.text);
    w->board_failed = true;
}

static void on_step(void *ctx, const struct shore_step_report *r) {
    struct watch *w = ctx;
    w->seconds[w->steps % TIMED_STEPS] = r->step_seconds;
    for (int i = 0; i < SHORE_CHARGES; i++)
        w->charges[i] = (w->steps > 1 ? w->charges[i] : 0) + r->charge_seconds[i];
    if (w->steps++ == 0) {
        w->first_loss = r->loss;
        w->start_ns = shore__now_ns() - (uint64_t)(r->step_seconds * 1e9);
    }
    add_to_board(w, r);
    char line[512];
    shore__progress_line(&w->progress, r, line, sizeof line);
    double jump = shore__progress_jump(&w->progress, r->grad_norm);
    if (w->settings->quiet) return;
    bool last = r->step == w->progress.last_step;
    bool due = shore__progress_due(&w->progress, &w->settings->log_every, r->step, shore__now_ns());
    bool kept = last || jump > 0 || !isnan(r->val_loss) || r->skipped;
    shore__cli_progress(line, kept || (due && !shore__cli_redraws()));
    if (jump > 0)
        shore__cli_say("step %llu: the norm of the gradients is %.0f times its running mean; if the loss stays high, a "
                       "lower --lr or a longer --warmup helps",
                       (unsigned long long)r->step, jump);
}

static void on_sample(void *ctx, uint64_t step, const char *text, size_t bytes) {
    shore__cli_progress_end();
    fprintf(stderr, "sample after step %llu: ", (unsigned long long)step);
    shore__cli_put_text(stderr, text, bytes);
    fputc('\n', stderr);
}

static int on_should_stop(void *ctx) {
    return shore__cli_stop_wanted();
}

static int on_making(void *ctx, uint64_t done_bytes, uint64_t total_bytes) {
    struct watch *w = ctx;
    return shore__cli_work(w->settings->quiet ? NULL : (void *)"writing the initial state", done_bytes, total_bytes);
}

/* Keeps the plan beside the metrics, which say how it went. */
static void on_opened(void *ctx) {
    const struct watch *w = ctx;
    struct shore_diag diag;
    if (w->ahead->plan && shore__json_write_in(w->run->path, SHORE__RUN_PLAN, json_incref(w->ahead->plan), &diag))
        shore__cli_say("the plan is not kept: %s", diag.text);
}

static int missing(const struct shore__train_args *a, struct shore_diag *diag) {
    const struct shore__settings *s = &a->settings;
    if (a->accept) return shore__fail(diag, SHORE_EUSAGE, "--accept-step goes with --resume only");
    if (a->json && !a->dry_run) return shore__fail(diag, SHORE_EUSAGE, "--json is for --dry-run: give that too");
    if (a->dry_run) return 0;
    if (!s->data.count) return shore__fail(diag, SHORE_EUSAGE, "which text? Give --data FILE...");
    if (!s->drives.count)
        return shore__fail(diag, SHORE_EUSAGE,
                           "where is the state to live? Give --drive DIR (a directory on the drive), or --drive ram:");
    if (!a->out) return shore__fail(diag, SHORE_EUSAGE, "where does the run go? Give --out RUN");
    return 0;
}

static int print_needs_json(const struct shore__needs *needs, uint64_t memory_bytes) {
    json_t *o = json_pack("{s:I, s:I, s:I, s:I}", "minimum_bytes", (json_int_t)needs->minimum_bytes,
                          "comfortable_bytes", (json_int_t)needs->comfortable_bytes, "disk_bytes",
                          (json_int_t)needs->disk_bytes, "activations", (json_int_t)needs->pairs);
    if (o && memory_bytes >= needs->minimum_bytes) {
        json_object_set_new(o, "memory_bytes", json_integer((json_int_t)memory_bytes));
        json_object_set_new(o, "activations_kept", json_integer((json_int_t)needs->kept_pairs));
        json_object_set_new(o, "activations_on_drives", json_integer((json_int_t)needs->offloaded_pairs));
    }
    return shore__cli_print_json(o);
}

static void print_needs_text(const struct shore__needs *needs, uint64_t memory_bytes) {
    printf("memory: minimum %s\n", shore__format_size_up(needs->minimum_bytes).text);
    printf("memory: everything kept from %s on\n", shore__format_size_up(needs->comfortable_bytes).text);
    if (memory_bytes >= needs->minimum_bytes)
        printf("memory: with %s, inner activations kept for %llu of %llu (a layer and a unit each), stored on the "
               "drives for %llu, the others computed again\n",
               shore__format_size(memory_bytes).text, (unsigned long long)needs->kept_pairs,
               (unsigned long long)needs->pairs, (unsigned long long)needs->offloaded_pairs);
    printf("disk: %s\n", shore__format_size_up(needs->disk_bytes).text);
}

/* Prints the answer to --dry-run, and looks at memory and room as the start does. fresh: the run is yet to be made. */
static int answer(const struct shore__train_args *args, struct shore__settings *s, const struct shore__model *model,
                  const struct shore__needs *needs, bool fresh) {
    struct shore_diag diag = {0};
    uint64_t given = s->memory_bytes;
    int code = SHORE__EXIT_DONE;
    if (args->json)
        code = print_needs_json(needs, given);
    else
        print_needs_text(needs, given);
    int rc = shore_budget(given, needs->minimum_bytes, needs->comfortable_bytes, &given, &diag);
    if (!rc && fresh) rc = shore__cli_room_for_run(s, model, args->out, args->overwrite, &diag);
    return rc ? shore__cli_fail(rc, &diag) : code;
}

static struct shore__train_events events_of(struct watch *w) {
    return (struct shore__train_events){
        .ctx = w,
        .step = on_step,
        .note = shore__cli_note,
        .sample = on_sample,
        .should_stop = on_should_stop,
        .making = on_making,
        .opened = on_opened,
    };
}

/* Takes the rates of the trainer's plan from a committed step on. The caller closes them, whatever is returned. */
static int take_rates(const struct shore__train_args *args, struct shore__settings *s, uint64_t step,
                      struct ahead *ahead, struct shore_diag *diag) {
    int rc = shore__plan_rates_open(args->machine, s, false, &ahead->rates, diag);
    if (ahead->rates.machine) shore__machine_take_step(ahead->rates.machine, step + 1);
    s->machine = ahead->rates.machine;
    return rc;
}

static void close_ahead(struct ahead *ahead) {
    json_decref(ahead->plan);
    shore__plan_rates_close(&ahead->rates);
}

/* Plans the training, and says the short of it. */
static int look_ahead(const struct shore__settings *s, const struct shore__model *model, struct ahead *ahead,
                      struct shore_diag *diag) {
    char text[320];
    struct shore__outlook o = {.settings = s, .model = model, .machine = s->machine};
    int rc = shore__outlook_make(&o, true, diag);
    ahead->forecast = o.forecast;
    if (rc) return rc;
    ahead->plan = shore__outlook_json(&o, ahead->rates.from, diag);
    if (!ahead->plan) shore__cli_say("the plan is not kept: %s", diag->text);
    if (s->quiet) return 0;
    shore__cli_say("plan: %s", shore__outlook_text(&o, text, sizeof text));
    shore__cli_say("plan: %s", ahead->rates.from);
    return 0;
}

/* Median of the steps seen, without the first one, which opens files and makes code. */
static double usual_seconds(struct watch *w) {
    uint64_t n = w->steps < TIMED_STEPS ? w->steps : TIMED_STEPS, skip = w->steps > 1 && w->steps <= TIMED_STEPS;
    return shore__median(w->seconds + skip, n - skip);
}

/* Says why --stop-after-no-gain has ended a run, and what goes on with it: the count is over resumes. */
static void say_no_gain(const struct shore__run *run, uint64_t step) {
    const struct shore__measured *m = &run->measured;
    char least[96] = "no validation loss has been finite";
    if (m->least_step)
        snprintf(least, sizeof least, "the least validation loss is %.6g, of step %llu", m->least,
                 (unsigned long long)m->least_step);
    shore__cli_say("stopped after step %llu of %llu by --stop-after-no-gain %llu: %s, and the last %llu are not below "
                   "it; to go on: longshore train --resume %s --stop-after-no-gain 0 (or more than %llu)",
                   (unsigned long long)step, (unsigned long long)run->settings.steps,
                   (unsigned long long)run->settings.stop_after_no_gain, least, (unsigned long long)m->since, run->word,
                   (unsigned long long)m->since);
}

/* Trains a prepared or opened run to its end, and reports. Returns the exit code. */
static int train_and_report(struct shore__run *run, bool fresh, const struct shore__train_args *args,
                            const struct ahead *ahead) {
    struct shore_diag diag = {0};
    struct watch w = {.run = run, .settings = &run->settings, .ahead = ahead, .first_loss = NAN};
    uint64_t last = run->settings.steps;
    if (run->settings.stop_at && run->settings.stop_at < last) last = run->settings.stop_at;
    w.board.directory = run->settings.tensorboard;
    if (fresh && !args->overwrite && w.board.directory && shore__tensorboard_is_used(w.board.directory))
        shore__cli_say("warning: %s holds event files already, which TensorBoard shows as one run with this one: give "
                       "each run a directory of its own",
                       shore__shown(w.board.directory).text);
    w.progress = (struct shore__progress){.last_step = last, .budget_bytes = run->settings.memory_bytes};
    struct shore__train_events events = events_of(&w);
    struct shore__train_result result = {0};
    int rc = shore__train(run, fresh, fresh && args->overwrite, fresh ? NULL : args->accept, &events, &result, &diag);
    shore__tensorboard_close(&w.board);
    shore__cli_progress_end();
    if (rc == -ECANCELED && w.steps == 0) {
        shore__cli_say(fresh ? "stopped before the run was made: the same command makes it again"
                             : "stopped before a step was made: the same command goes on");
        return (int)args->stopped_exit;
    }
    if (rc && !result.opened) return fresh ? shore__cli_fail_making(run, rc, &diag) : shore__cli_fail(rc, &diag);
    if (rc) {
        shore__cli_fail_running(rc, &diag);
        if (rc != SHORE_ELINK && rc != SHORE_ENONFINITE) /* their messages say how to go on */
            shore__cli_say("step %llu is committed; once that is mended, go on with: longshore train "
                           "--resume %s",
                           (unsigned long long)result.step, run->word);
        if (rc == SHORE_ECORRUPT && result.step > 0)
            shore__cli_say("if that is impossible, add --accept-step %llu to go on from the step before, if it is "
                           "still whole on every drive",
                           (unsigned long long)result.step - 1);
        return SHORE__EXIT_FAILED;
    }

    bool finished = result.step >= run->settings.steps;
    if (!finished && result.no_gain) say_no_gain(run, result.step);
    if (w.steps == 0 && finished)
        shore__cli_say("the run is finished: it has made its %llu steps; --steps N extends it",
                       (unsigned long long)result.step);
    else if (!finished && !result.no_gain && (shore__cli_stop_wanted() || !run->settings.quiet))
        shore__cli_say("stopped after step %llu of %llu; go on with: longshore train --resume %s",
                       (unsigned long long)result.step, (unsigned long long)run->settings.steps, run->word);
    if (!run->settings.quiet && w.steps) {
        struct shore__summary summary = {
            .steps = w.steps,
            .first_loss = w.first_loss,
            .last_loss = result.last_loss,
            .val_loss = result.last_val_loss,
            .seconds = (double)(shore__now_ns() - w.start_ns) * 1e-9,
            .budget_bytes = run->settings.memory_bytes,
            .emulated = result.emulated,
            .missed_snapshots = result.missed_snapshots,
            .step_seconds = usual_seconds(&w),
            .charges = w.charges,
            .planned_seconds = ahead->forecast.step_seconds,
            .planned_bytes = ahead->forecast.peak_bytes,
        };
        shore__summary_print(run, &summary);
    }
    printf("step %llu digest %s%s\n", (unsigned long long)result.step, shore__format_digest(result.digest).text,
           result.emulated ? " emulated" : "");
    return !finished && shore__cli_stop_wanted() ? (int)args->stopped_exit : SHORE__EXIT_DONE;
}

/* Notes stop settings that mean nothing. made: steps. */
static void say_of_stop(const struct shore__settings *s, uint64_t made) {
    unsigned long long stop_at = s->stop_at, steps = s->steps;
    if (stop_at && stop_at < made)
        shore__cli_say("--stop-at %llu is behind the run, which is at step %llu: no step is made", stop_at,
                       (unsigned long long)made);
    else if (stop_at && steps && stop_at > steps)
        shore__cli_say("--stop-at %llu has no effect: the run ends with step %llu", stop_at, steps);
}

/* Refuses everything that can be refused before anything is written. */
static int check_fresh(struct shore__train_args *args, const struct shore__parsed *parsed, struct shore__new_run *new,
                       struct ahead *ahead, struct shore__needs *needs, struct shore_diag *diag) {
    struct shore__settings *s = &args->settings;
    int rc = shore__train_take_names(args, diag);
    if (!rc) rc = missing(args, diag);
    if (!rc && args->dry_run && !s->drives.count) rc = shore__outlook_assume_drives(s, NULL, diag);
    bool validates = s->val_data.count || s->val_share > 0;
    if (!rc) rc = shore__train_model(args, parsed, validates, new, diag);
    if (!rc) rc = shore__settings_check(s, diag); /* again, with the chosen values */
    if (!rc) say_of_stop(s, 0);
    if (!rc) rc = take_rates(args, s, 0, ahead, diag);
    if (!rc) rc = shore__train_needs(s, new->model, needs, diag);
    return rc;
}

static int fresh_run(struct shore__train_args *args, const struct shore__parsed *parsed) {
    struct shore__settings *s = &args->settings;
    struct shore__new_run new = {0};
    struct shore__needs needs;
    struct ahead ahead = {.rates.machine = NULL};
    struct shore_diag diag = {0};
    int code = SHORE__EXIT_DONE, rc = check_fresh(args, parsed, &new, &ahead, &needs, &diag);
    if (!rc) shore__cli_say_model(new.model, true);
    if (!rc && args->dry_run) {
        code = answer(args, s, new.model, &needs, args->drives.count > 0);
    } else if (!rc) {
        rc = shore_budget(s->memory_bytes, needs.minimum_bytes, needs.comfortable_bytes, &s->memory_bytes, &diag);
        if (!rc) rc = shore__cli_room_for_run(s, new.model, args->out, args->overwrite, &diag);
        if (!rc) rc = look_ahead(s, new.model, &ahead, &diag);
        if (!rc) rc = shore__train_prepare(args, promise, &new, &diag);
        if (!rc) code = train_and_report(new.run, true, args, &ahead);
    }
    int made = shore__train_made(args, &new, rc, &diag);
    close_ahead(&ahead);
    return rc ? made : code;
}

/* Refuses flags that mean something else with --resume, or nothing. */
static int check_resume_flags(const struct shore__train_args *args, struct shore_diag *diag) {
    const struct shore__strings *moved = &args->drives;
    if (args->json && !args->dry_run) return shore__fail(diag, SHORE_EUSAGE, "--json is for --dry-run: give that too");
    if (args->out && strcmp(args->out, args->resume) != 0)
        return shore__fail(diag, SHORE_EUSAGE, "--out does not go with --resume: the run stays where it is");
    for (size_t i = 0; i < moved->count; i++)
        if (!strchr(moved->item[i], '='))
            return shore__fail(diag, SHORE_EUSAGE,
                               "with --resume, --drive takes OLD=NEW: where a drive was and where it is");
    return 0;
}

/* Applies the given flags. changes: the part that the run records. */
static int change_run(const struct shore__train_args *args, const struct shore__parsed *parsed, struct shore__run *run,
                      char *changes, size_t bytes, struct shore_diag *diag) {
    struct shore__settings *s = &run->settings;
    const struct shore__strings *moved = &args->drives;
    int rc = shore__train_change(args, parsed, s, changes, bytes, diag);
    if (!rc) rc = shore__train_take_new_data(args, run, changes, bytes, diag);
    if (!rc) rc = shore__train_check_given(parsed, s, run->val || s->val_data.count || s->val_share > 0, diag);
    if (rc) return rc;
    for (size_t i = 0; i < moved->count; i++)
        shore__append(changes, bytes, "%sdrive %s", *changes ? ", " : "", shore__shown(moved->item[i]).text);
    if (args->accept)
        shore__append(changes, bytes, "%saccept-step %llu", *changes ? ", " : "", (unsigned long long)*args->accept);
    if (shore__option_given(&shore__train_line, parsed, "steps") && s->steps < run->hint_step)
        return shore__fail(diag, SHORE_EUSAGE, "--steps %llu is behind the run, which is at step %llu",
                           (unsigned long long)s->steps, (unsigned long long)run->hint_step);
    return 0;
}

/* Prepares the first step. -ECANCELED: a signal came. */
static int prepare_to_go_on(const struct shore__train_args *args, struct shore__run *run, const char *changes,
                            struct shore_diag *diag) {
    struct shore__settings *s = &run->settings;
    int rc = 0;
    if (!s->quiet) shore__cli_say_drives(&s->drives, false);
    shore__cli_catch_signals(promise);
    void *reading = s->quiet ? NULL : (void *)"reading the text";
    if (!args->new_data) shore__run_remove_old_data(run);
    if (args->new_data && run->train)
        rc = shore__run_replace_data(run, args->new_val_data, shore__cli_work, reading, diag);
    else if (args->new_data)
        rc = shore__run_take_data(run, shore__cli_work, reading, diag);
    else if (run->hint_step < s->steps)
        rc = shore__run_check_data(run, false, shore__cli_work, s->quiet ? NULL : (void *)"checking the text", diag);
    shore__cli_progress_end();
    if (!rc && changes[0] && !(run->change = strdup(changes))) rc = shore__out_of_memory(diag);
    return rc;
}

static int resumed_run(struct shore__train_args *args, const struct shore__parsed *parsed) {
    struct shore__run *run = NULL;
    struct shore__needs needs;
    struct ahead ahead = {.rates.machine = NULL};
    struct shore_diag diag = {0};
    char changes[768];
    const struct shore__strings *moved = &args->drives;
    int code = SHORE__EXIT_DONE, rc = check_resume_flags(args, &diag);
    if (!rc && args->itself) rc = shore__run_claim(args->resume, &diag);
    if (!rc) rc = shore__run_open(args->resume, true, moved->count ? moved : NULL, &run, &diag);
    if (rc) return shore__cli_fail(rc, &diag);
    struct shore__settings *s = &run->settings;
    rc = shore__run_refuse_contents(run, &diag);
    if (!rc && run->no_data)
        rc = shore__fail(&diag, run->no_data_rc, "%s; a new run on the same data makes the same file", run->no_data);
    bool without_data = !run->train;
    if (!rc) rc = shore__train_new_data(args, run, &diag);
    if (!rc) rc = change_run(args, parsed, run, changes, sizeof changes, &diag);
    if (!rc && !without_data) say_of_stop(s, args->accept ? *args->accept : run->hint_step);
    if (!rc) rc = shore__settings_check(s, &diag);
    if (!rc) rc = shore__tensorboard_settle(&s->tensorboard, &diag);
    double best;
    if (!rc && s->keep_best) rc = shore__snapshot_best_loss(run, &best, &diag);
    if (!rc) rc = take_rates(args, s, run->hint_step, &ahead, &diag);
    if (!rc) rc = shore__train_needs(s, run->model, &needs, &diag);
    if (!rc && args->dry_run) {
        code = answer(args, s, run->model, &needs, false);
    } else if (!rc) {
        rc = shore_budget(s->memory_bytes, needs.minimum_bytes, needs.comfortable_bytes, &s->memory_bytes, &diag);
        if (rc && !shore__option_given(&shore__train_line, parsed, "memory"))
            rc =
                shore__fail_of(&diag, rc, &diag, "%s; that is the run's budget, and --memory gives another", diag.text);
        if (!rc && run->hint_step < s->steps) rc = look_ahead(s, run->model, &ahead, &diag);
        if (!rc) rc = prepare_to_go_on(args, run, changes, &diag);
        if (!rc) {
            code = train_and_report(run, false, args, &ahead);
        } else if (rc == -ECANCELED) {
            shore__cli_say("stopped before %s: the same command goes on",
                           without_data ? "the run had its data" : "a step was made");
            code = (int)args->stopped_exit;
            rc = 0;
        }
    }
    if (rc) code = shore__cli_fail(rc, &diag);
    shore__run_close(run);
    close_ahead(&ahead);
    return code;
}

static int train(const struct shore__parsed *parsed, void *ctx) {
    struct shore__train_args *args = ctx;
    if (shore__option_given(&shore__train_line, parsed, "accept-step")) args->accept = &args->accept_step;
    if (args->stop_on_usr1) shore__cli_stop_on_usr1();
    return args->resume ? resumed_run(args, parsed) : fresh_run(args, parsed);
}

int shore__cli_train(int argc, char **argv) {
    struct shore__train_args args = {0};
    return shore__train_command(&shore__train_line, argc, argv, &args, train);
}
