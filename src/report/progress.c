#include <math.h>

#include "base/diag.h"
#include "base/units.h"
#include "report/report.h"

static double percent(double part, double whole) {
    return whole > 0 ? 100.0 * part / whole : 0;
}

const char *shore__charges_text(const double seconds[SHORE_CHARGES], uint64_t steps, char *out, size_t bytes) {
    double all = 0;
    bool said[SHORE_CHARGES] = {false};
    out[0] = 0;
    for (int i = 0; i < SHORE_CHARGES; i++)
        all += seconds[i];
    if (!(all > 0) || !steps) return out;
    shore__append(out, bytes, "of a step of %s", shore__format_seconds(all / (double)steps).text);
    for (int n = 0, most = 0; n < SHORE_CHARGES; n++, most = 0) {
        while (said[most])
            most++;
        for (int i = 0; i < SHORE_CHARGES; i++)
            if (!said[i] && seconds[i] > seconds[most]) most = i;
        said[most] = true;
        if (percent(seconds[most], all) < 0.5) break;
        shore__append(out, bytes, "%s %s %.0f %%", n ? "," : ":", shore_charge_name((enum shore_charge)most),
                      percent(seconds[most], all));
    }
    return out;
}

double shore__progress_jump(struct shore__progress *p, double norm) {
    const double weight = 0.1, far = 50;
    if (!isfinite(norm)) return 0;
    double times = p->mean_norm > 0 ? norm / p->mean_norm : 0;
    p->mean_norm = p->mean_norm > 0 ? (1 - weight) * p->mean_norm + weight * norm : norm;
    return times >= far ? times : 0;
}

bool shore__progress_due(struct shore__progress *p, const struct shore__pace *pace, uint64_t step, uint64_t now_ns) {
    bool first = p->logged_ns == 0, last = step == p->last_step;
    bool due = pace->steps ? step % pace->steps == 0 : (double)(now_ns - p->logged_ns) >= pace->seconds * 1e9;
    if (first || due) p->logged_ns = now_ns;
    return first || last || due;
}

const char *shore__progress_line(struct shore__progress *p, const struct shore_step_report *r, char *out,
                                 size_t bytes) {
    /* A plain mean at first, without the first step, which makes code and opens files. */
    uint64_t seen = p->steps++;
    double weight = seen < 2 ? 1 : seen < 10 ? 1.0 / (double)seen : 0.1;
    p->smooth_seconds = (1 - weight) * p->smooth_seconds + weight * r->step_seconds;
    out[0] = 0;
    if (r->emulated) shore__append(out, bytes, "emulated ");
    shore__append(out, bytes, "step %llu/%llu", (unsigned long long)r->step, (unsigned long long)p->last_step);
    if (r->slow_drive) /* early: a terminal shows the start of the line */
        shore__append(out, bytes, "  slow: %s works %.1f times as long as the others", shore__shown(r->slow_drive).text,
                      r->slow_factor);
    if (isnan(r->loss)) /* printf would show its sign, which means nothing */
        shore__append(out, bytes, "  loss nan");
    else
        shore__append(out, bytes, "  loss %.4f", r->loss);
    if (isinf(r->val_loss))
        shore__append(out, bytes, "  val not finite");
    else if (!isnan(r->val_loss))
        shore__append(out, bytes, "  val %.4f", r->val_loss);
    shore__append(out, bytes, "  %s/step", shore__format_seconds(r->step_seconds).text);
    if (r->step < p->last_step)
        shore__append(out, bytes, "  ETA %s",
                      shore__format_seconds(p->smooth_seconds * (double)(p->last_step - r->step)).text);
    shore__append(out, bytes, "  norm %.3g  lr %.3g", r->grad_norm, r->lr);
    if (!isnan(r->dropped_energy)) shore__append(out, bytes, "  dropped %.0f%%", 100 * r->dropped_energy);
    shore__append(out, bytes, "  %.0f tok/s", r->step_seconds > 0 ? (double)r->tokens / r->step_seconds : 0.0);
    if (r->mfu > 0) shore__append(out, bytes, "  mfu %.*f%%", r->mfu < 0.1 ? 1 : 0, 100 * r->mfu);
    shore__append(out, bytes, "  mem %s", shore__format_size(r->resident_bytes).text);
    if (p->budget_bytes) shore__append(out, bytes, " of %s", shore__format_size(p->budget_bytes).text);
    shore__append(out, bytes, "  wait %.0f%% commit %.0f%%", percent(r->wait_seconds, r->step_seconds),
                  percent(r->commit_seconds, r->step_seconds));
    if (r->paced_seconds > 0) shore__append(out, bytes, " paced %.0f%%", percent(r->paced_seconds, r->step_seconds));
    if (r->replays) shore__append(out, bytes, "  replays %u", r->replays);
    if (r->skipped) shore__append(out, bytes, "  skipped: not finite");
    return out;
}
