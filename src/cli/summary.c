#include "cli/summary.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/units.h"
#include "report/report.h"

/* With more tokens, decoding the text again would take longer than people wait for a summary. */
#define DECODE_TOKENS_MAX 100000000u
#define SPAN_TOKENS 8192u

uint64_t shore__summary_text_bytes(struct shore__dataset *data, struct shore__tokenizer *tokenizer) {
    uint64_t tokens = shore__dataset_tokens(data);
    const struct shore__dataset_stats *stats = shore__dataset_stats(data);
    if (shore__dataset_marked(data)) return 0; /* the loss is not of all of them */
    if (tokens > DECODE_TOKENS_MAX)
        return stats->tokens ? (uint64_t)((double)stats->text_bytes / (double)stats->tokens * (double)tokens) : 0;
    int32_t *ids = malloc(SPAN_TOKENS * sizeof *ids);
    struct shore__text text = {0};
    struct shore_diag diag;
    uint64_t bytes = 0, at = 0;
    while (ids && at < tokens) {
        size_t n = tokens - at < SPAN_TOKENS ? (size_t)(tokens - at) : SPAN_TOKENS;
        text.count = 0;
        if (shore__dataset_read(data, at, n, ids, &diag)) break;
        if (shore__tokenizer_decode(tokenizer, (const uint32_t *)ids, n, &text)) break;
        bytes += text.count;
        at += n;
    }
    free(ids);
    free(text.bytes);
    return at == tokens ? bytes : 0;
}

static const char *number(double value, char *out, size_t bytes) {
    snprintf(out, bytes, isfinite(value) ? "%.4f" : "not finite", value);
    return out;
}

void shore__summary_print(struct shore__run *run, const struct shore__summary *s) {
    uint64_t now, peak_bytes;
    shore__resident_bytes(&now, &peak_bytes); /* of training: the code below reads the text again */
    char first[32], last[32], val[32];
    const struct shore__measured *m = &run->measured;
    printf("loss %s at the first step, %s at the last of %llu", number(s->first_loss, first, sizeof first),
           number(s->last_loss, last, sizeof last), (unsigned long long)s->steps);
    if (!isnan(s->val_loss)) printf("; validation loss %s", number(s->val_loss, val, sizeof val));
    if (!isnan(s->val_loss) && m->since && m->least_step)
        printf(" (the least is %.4f, of step %llu)", m->least, (unsigned long long)m->least_step);
    putchar('\n');

    struct shore_diag diag;
    if (run->val && isfinite(s->val_loss) && shore__run_tokenizer(run, &diag) == 0) {
        uint64_t bytes = shore__summary_text_bytes(run->val, run->tokenizer);
        uint64_t tokens = shore__dataset_tokens(run->val);
        if (bytes && tokens > 1)
            printf("validation: %.4f bits per byte\n", s->val_loss / log(2) * (double)tokens / (double)bytes);
    }
    char text[256];
    printf("tokenizer: %s\n", shore__run_tokenizer_text(run, text, sizeof text));
    printf("memory: budget %s, peak %s; training took %s%s\n", shore__format_size(s->budget_bytes).text,
           shore__format_size(peak_bytes).text, shore__format_seconds(s->seconds).text,
           s->emulated ? ", emulated" : "");
    printf("plan: a step of %s, measured %s; a peak of %s, measured %s\n",
           shore__format_seconds(s->planned_seconds).text, shore__format_seconds(s->step_seconds).text,
           shore__format_size(s->planned_bytes).text, shore__format_size(peak_bytes).text);
    if (shore__charges_text(s->charges, s->steps > 1 ? s->steps - 1 : 1, text, sizeof text)[0]) puts(text);
    if (s->missed_snapshots)
        printf("snapshots: %llu could not be made, as the warnings say\n", (unsigned long long)s->missed_snapshots);
}
