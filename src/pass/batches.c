#include "pass/batches.h"

#include "model/adapters.h"
#include "pass/row_tensor.h"

struct shore__batch_shape shore__batch_shape(size_t sequences, size_t seq_len) {
    size_t rows = sequences * seq_len, unit = shore__unit_sequences(seq_len) * seq_len;
    if (unit > rows) unit = rows;
    return (struct shore__batch_shape){sequences, seq_len, rows, unit, (rows + unit - 1) / unit};
}

struct shore__shapes shore__batch_shapes(const struct shore__model *m, const struct shore__batch_shape *b,
                                         bool backward) {
    return shore__model_shapes(m, b->unit_rows, b->rows % b->unit_rows, b->seq_len, backward);
}

void shore__batch_describe(const struct shore__model *m, enum shore__mode mode, const struct shore__batch_shape *b,
                           struct shore_program *program) {
    size_t e = shore__mode_bytes(mode);
    const struct {
        enum shore__row key;
        enum shore_place place;
        uint64_t bytes;
    } row[] = {
        {SHORE__ROW_TOKENS, SHORE_PLACE_BOTH, b->rows * 4},
        {SHORE__ROW_TARGETS, SHORE_PLACE_BOTH, b->rows * 4},
        {SHORE__ROW_NORMED, SHORE_PLACE_DEVICE, b->rows * m->arch.d_model * e},
        {SHORE__ROW_STATS, SHORE_PLACE_DEVICE, b->rows * 8},
        {SHORE__ROW_MAX, SHORE_PLACE_DEVICE, b->rows * 4},
        {SHORE__ROW_SUM, SHORE_PLACE_DEVICE, b->rows * 4},
        {SHORE__ROW_TARGET_LOGIT, SHORE_PLACE_DEVICE, b->rows * 4},
        {SHORE__ROW_LOSS, SHORE_PLACE_BOTH, b->rows * 4},
        {SHORE__ROW_LOGITS, SHORE_PLACE_DEVICE, b->unit_rows * (uint64_t)m->slice_rows * 4},
        {SHORE__ROW_INNER, SHORE_PLACE_DEVICE, shore__inner_work_bytes(m, mode, b->unit_rows)},
        {SHORE__ROW_ROTARY, SHORE_PLACE_BOTH, shore__rotary_bytes(m, b->seq_len)},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        shore__row_add(program, row[i].key, 0, row[i].place, row[i].bytes);
    if (m->adapters.count)
        shore__row_add(program, SHORE__ROW_ADAPTING, 0, SHORE_PLACE_DEVICE,
                       shore__adapters_bytes(m, mode, b->unit_rows));
}

size_t shore__generate_positions(const struct shore__model *m, size_t prompt, size_t tokens) {
    uint32_t most = shore__arch_most_positions(&m->arch, prompt);
    return most && tokens > most ? most : tokens;
}

uint64_t shore__generate_cache_bytes(const struct shore__model *m, enum shore__mode mode, size_t positions) {
    return (uint64_t)positions * m->kv_width * shore__mode_bytes(mode);
}

uint64_t shore__generate_rows(const struct shore__model *m, enum shore__mode mode, size_t positions,
                              struct shore__region_list *rows) {
    uint64_t row_bytes = m->arch.d_model * shore__mode_bytes(mode);
    const struct {
        enum shore__row key;
        uint64_t bytes;
    } row[] = {
        {SHORE__ROW_X, SHORE__PROMPT_ROWS * row_bytes},
        {SHORE__ROW_NORMED, row_bytes},
        {SHORE__ROW_STATS, 8},
        {SHORE__ROW_INNER, shore__inner_work_bytes(m, mode, SHORE__PROMPT_ROWS)},
        {SHORE__ROW_ADAPTING, shore__adapters_bytes(m, mode, SHORE__PROMPT_ROWS)},
        {SHORE__ROW_TOKENS, SHORE__PROMPT_ROWS * 4},
        {SHORE__ROW_LOGITS, (uint64_t)m->arch.vocab * 4},
        {SHORE__ROW_ROTARY, shore__rotary_bytes(m, positions)},
        {SHORE__ROW_CACHE, 2 * shore__generate_cache_bytes(m, mode, positions) * m->arch.n_layer},
    };
    shore__regions_open(rows, 1, true);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        shore__regions_add(rows, row[i].key, 0, shore__row_name(row[i].key), SHORE_PLACE_DEVICE, row[i].bytes,
                           (struct shore__lifetime){0, 0});
    uint64_t bytes = shore__regions_lay_out(rows);
    return rows->failed ? UINT64_MAX : bytes;
}

uint64_t shore__generate_bytes(const struct shore__model *m, enum shore__mode mode, size_t positions) {
    struct shore__region_list rows;
    uint64_t bytes = shore__generate_rows(m, mode, positions, &rows);
    shore__regions_close(&rows);
    return bytes;
}

struct within {
    const struct shore__model *m;
    enum shore__mode mode;
    size_t positions;
};

static uint64_t bytes_of(void *ctx) {
    const struct within *w = ctx;
    return shore__generate_bytes(w->m, w->mode, w->positions);
}

size_t shore__generate_positions_within(const struct shore__model *m, enum shore__mode mode, size_t least, size_t most,
                                        uint64_t bytes) {
    struct within w = {m, mode, least};
    if (most < least || bytes_of(&w) > bytes) return 0;
    shore__raise(&w.positions, most, bytes, bytes_of, &w);
    return w.positions;
}
