#include "longshore/clip.h"

#include <math.h>
#include <string.h>

#include "number/gather.h"
#include "number/norm.h"

void shore_clip_begin(struct shore_clip *clip, const struct shore_layout *layout, double limit, double *sums) {
    *clip = (struct shore_clip){.layout = layout, .limit = limit, .sums = sums};
    memset(sums, 0, layout->segments * sizeof *sums);
}

static double *sums_of(const struct shore_clip *clip, uint32_t block, uint32_t segment) {
    return clip->sums + shore__segments_before(clip->layout, block) + segment;
}

static float coefficient_of(const struct shore_clip *clip, double norm) {
    if (!(clip->limit > 0)) return 1;
    float c = (float)clip->limit / ((float)norm + 1e-6f);
    return c < 1 ? c : 1;
}

double shore_clip_sum(const float *gradient) {
    return shore__sum_squares(gradient, SHORE_SEGMENT_ELEMS);
}

/* Adds to the running sum, which only grows, and returns whether nothing needs clipping so far. */
static bool run_on(struct shore_clip *clip, const double *sums, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        clip->running_sum += sums[i];
    double norm = sqrt(clip->running_sum);
    return isfinite(norm) && coefficient_of(clip, norm) >= 1;
}

bool shore_clip_add(struct shore_clip *clip, uint32_t block, uint32_t segment, uint32_t count, const float *gradient) {
    double *sums = sums_of(clip, block, segment);
#pragma omp parallel for schedule(static)
    for (uint32_t i = 0; i < count; i++)
        sums[i] = shore_clip_sum(gradient + (size_t)i * SHORE_SEGMENT_ELEMS);
    return run_on(clip, sums, count);
}

/* Sum of squares of a segment that starts at an element of its block. */
static double gathered_sum(const struct shore__gather_list *list, uint64_t first) {
    double lane[SHORE__SQUARES_LANES] = {0};
    float tile[1024];
    for (uint64_t at = 0, n; at < SHORE_SEGMENT_ELEMS; at += n) {
        n = SHORE_SEGMENT_ELEMS - at;
        const float *there = shore__gather_view(list, first + at, &n);
        n -= n % SHORE__SQUARES_LANES;
        if (!there || n == 0) {
            n = sizeof tile / sizeof tile[0];
            if (n > SHORE_SEGMENT_ELEMS - at) n = SHORE_SEGMENT_ELEMS - at;
            shore__gather_fill(list, first + at, n, tile);
            there = tile;
        }
        shore__squares_add(lane, there, n);
    }
    return shore__squares_sum(lane);
}

bool shore_clip_add_gathered(struct shore_clip *clip, uint32_t block, uint32_t segment, uint32_t count,
                             const struct shore_gather *gather, uint32_t ngather) {
    const struct shore__gather_list list = {gather, ngather};
    double *sums = sums_of(clip, block, segment);
#pragma omp parallel for schedule(static)
    for (uint32_t i = 0; i < count; i++)
        sums[i] = gathered_sum(&list, (uint64_t)(segment + i) * SHORE_SEGMENT_ELEMS);
    return run_on(clip, sums, count);
}

struct shore_clipping shore_clip_decide(const struct shore_clip *clip) {
    double sum = 0;
    for (uint64_t i = 0; i < clip->layout->segments; i++)
        sum += clip->sums[i];
    double norm = sqrt(sum);
    float coefficient = coefficient_of(clip, norm); /* 0: fp32 cannot hold the norm */
    return (struct shore_clipping){norm, coefficient, isfinite(norm) && coefficient > 0};
}
