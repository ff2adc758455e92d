/* Models: one description per architecture, the canonical layout that follows from it, and the mathematics of a block.
 *
 * Blocks: 0 is the embedding (token table first, so that its slices are whole segments; then learned positions), 1 ..
 * n_layer are the layers, n_layer + 1 is the head (an untied output table first, then the final norm). A block of which
 * a part rests is two: see freeze.c. */
#ifndef SHORE_MODEL_MODEL_H
#define SHORE_MODEL_MODEL_H

#include <jansson.h>

#include "compute/compute.h"
#include "files/quantized.h"
#include "longshore/state.h"
#include "model/layer_table.h"

#define SHORE__EOS_MOST 16u

enum shore__rope_kind {
    SHORE__ROPE_DEFAULT,
    SHORE__ROPE_LINEAR,
    SHORE__ROPE_DYNAMIC, /* like default up to max_positions; longer texts are refused */
    SHORE__ROPE_LLAMA3,
    SHORE__ROPE_YARN,
    SHORE__ROPE_LONGROPE, /* which of its factors count depends on the length of a text */
};

#define SHORE__ROPE_FACTORS 256u

/* Rotary positions, as config.json describes them. */
struct shore__rope {
    enum shore__rope_kind kind;
    double theta, factor;                                                  /* factor: of all kinds except default */
    double original_positions;                                             /* llama3, yarn */
    double low_freq, high_freq;                                            /* llama3 */
    double attention_factor, beta_fast, beta_slow, mscale, mscale_all_dim; /* yarn; 0: not given */
    double query_beta; /* queries are scaled by their position, from original_positions on; 0: they are not */
    uint32_t nfactors; /* longrope: of each list */
    float short_factor[SHORE__ROPE_FACTORS], long_factor[SHORE__ROPE_FACTORS];
    bool fractional; /* yarn: the range of dimensions is not rounded to whole ones ("truncate": false) */
};

#define SHORE__LAYERS_MOST 4096u
#define SHORE__LAYER_KINDS 4u
#define SHORE__ROTARY_TABLES 2u

/* What differs from layer to layer. */
struct shore__layer_kind {
    uint32_t window; /* 0: none */
    uint8_t rope;    /* which of the rotary tables */
    bool unrotated;  /* positions are not rotated */
};

/* An architecture. Filled from a Hugging Face config.json or a named preset. */
struct shore__arch {
    const char *model_type; /* a family's */
    const char *wrapper;    /* model_type of the multimodal model that this is the text of; NULL: it stands alone */
    uint32_t n_layer, d_model, n_head, n_kv_head, head_dim, d_ff, vocab, max_positions;
    enum shore__norm_kind norm;
    bool heads_normed_together; /* norms of queries and keys: over all heads, not over each */
    float norm_eps;
    enum shore__act_fn act;
    bool gated;
    bool qkv_bias, out_bias, mlp_bias;
    bool scaled_embedding;                       /* times the root of d_model */
    float attention_scale;                       /* 0: 1 / sqrt(head_dim) */
    float attention_cap, logit_cap;              /* 0: none */
    bool learned_positions;                      /* else rotary */
    uint32_t rotary_dim;                         /* elements of a head that are rotated */
    uint32_t experts, experts_chosen, expert_ff; /* of a layer; of a row; 0: none */
    bool experts_renormalised;                   /* weights of a row's experts sum to 1 */
    double balance;                              /* coefficient of the loss that balances experts; 0: there is none */
    struct shore__rope rope[SHORE__ROTARY_TABLES];
    struct shore__layer_kind kinds[SHORE__LAYER_KINDS];
    uint8_t kind_of[SHORE__LAYERS_MOST]; /* of layer 1 at [0] */
    bool tied;
    bool head_parted; /* the configuration says tied, but the files hold another head; the user is told */
    bool has_dropout; /* configured but not applied; the user is told */
    float init_std;
    int64_t padding; /* token whose table row starts at 0 and gets no gradient from lookups; -1: none */
    int64_t bos;     /* -1: none */
    uint32_t neos;
    int64_t eos[SHORE__EOS_MOST];            /* each ends a text */
    struct shore__quantization quantization; /* of the files that the model comes from; a run's are of none */
};

/* A tensor of Hugging Face's files that holds canonical rows [row, row + rows) of one of ours. */
struct shore__part {
    char *name; /* as exported, for example "transformer.h.0.attn.c_attn.weight" */
    uint64_t row, rows;
    bool transposed;         /* stored as [cols, rows] */
    uint32_t nslices, slice; /* it is a slice of the tensor of this name, which has so many; 0: it is all of it */
};

/* Of all names of a multimodal model's text; what is within its "model." has another beginning in newer files, and in
 * PEFT's. */
#define SHORE__TEXT_PREFIX "language_model."
#define SHORE__TEXT_OLD SHORE__TEXT_PREFIX "model."
#define SHORE__TEXT_NEW "model." SHORE__TEXT_PREFIX
struct shore__newer_name {
    char text[256];
};
/* The name of a tensor as newer files have it: of other models than these as it is. */
struct shore__newer_name shore__newer_name(const char *name);

struct shore__model_tensor {
    enum shore__role role;
    uint32_t expert;     /* 1: of a layer's first expert, and so on; 0: of none */
    uint64_t rows, cols; /* vectors: [rows, 1], stored with rank 1 */
    bool matrix;         /* two dimensions: weight decay applies */
    bool rests;          /* it is not trained */
    uint64_t draws;      /* the stream of its random initial values */
    uint32_t nparts;
    struct shore__part *parts;
};

/* Parameter groups: 0 decays (matrices), 1 does not (vectors). The same two of the first expert of a layer follow, then
 * those of the second, and so on. */
#define SHORE__MODEL_GROUPS 2u
#define SHORE__MODEL_EXPERTS 510u /* at most: remote drives take groups below 1,024 */

struct shore__model_block {
    uint32_t ntensors;
    struct shore__model_tensor *tensors; /* in the order of the layout's tensors */
    int of_role[SHORE__ROLE_COUNT];      /* index into tensors, or -1 */
    /* The part that is not a vocabulary table: segments [tail_segment, tail_segment + tail_segments). A layer is all
     * tail. In other blocks, the first tail segment may also hold the end of the table. */
    uint32_t tail_segment, tail_segments;
    /* If some of its tensors rest and others are trained: the block that has those which are not as the first. Of such
     * a side: the block that it belongs to. Otherwise 0. */
    uint32_t side;
};

/* Adapters, which lie beside products of every layer: see adapters.h. a [rank, in], b [out, rank]; what they make is
 * added to columns [first, first + out) of the product with this weight. */
struct shore__adapter_place {
    enum shore__role weight;
    uint32_t first, out, in;
};
struct shore__adapters {
    uint32_t count, rank;
    float scale;
    struct shore__adapter_place of[SHORE__ADAPTERS_MOST];
};

struct shore__model {
    struct shore__arch arch;
    const struct shore__family *family;
    struct shore__layer_shape layer;
    uint32_t nblocks; /* n_layer + 2, and behind them sides */
    struct shore__model_block *blocks;
    struct shore_layout *layout;
    uint64_t parameters; /* tied tables counted once */
    uint64_t trained;    /* of these */
    struct shore__adapters adapters;
    uint32_t lowest; /* layer down to which backward is computed: at least 1; n_layer + 1: it is of none */
    /* widths */
    uint32_t attn_width, kv_width, qkv_width, up_width;
    uint32_t ngroups;        /* of parameters */
    uint32_t expert_tensors; /* of an expert; those of all experts of a layer lie in a row */
    uint32_t nrotary;        /* rotary tables that layers use */
    uint32_t slice_rows;     /* vocabulary rows of a slice: whole segments */
    uint32_t nslices;
    json_t *kept; /* what config.json says beside arch, for an export; NULL: nothing */
};

/* Reads an architecture from config.json. Errors (SHORE_EINPUT) name the key and its value. Unsupported architectures
 * and features are refused by name. name: the file, for messages. */
int shore__arch_from_json(const json_t *config, const char *name, struct shore__arch *out, struct shore_diag *diag);
/* Makes a config.json that transformers loads, without what the model keeps beside arch. It borrows nothing; the caller
 * json_decref()s it. */
json_t *shore__arch_to_json(const struct shore__arch *arch);
/* Adds the eos_token_id of a generation_config.json, which names more ends for chat models than config.json. Skips a
 * file that was made from config.json. */
int shore__arch_add_ends(const json_t *generation, const char *name, struct shore__arch *arch, struct shore_diag *diag);
/* The value of eos_token_id in Hugging Face's files: null, a number, or a list. */
json_t *shore__arch_eos_to_json(const struct shore__arch *arch);
/* Presets: gpt2-124m, -350m, -774m, -1.5b, llama3-8b, -70b, -405b (3.1), qwen3-0.6b, -8b, gemma3-1b, smollm3-3b, and
 * small ones for first tries. vocab: the
 * tokenizer's size; small presets take it, the others have at least that; 0: the preset's own. NULL ends the list of
 * shore__arch_presets(). */
int shore__arch_preset(const char *name, uint32_t vocab, struct shore__arch *out, struct shore_diag *diag);
const char *const *shore__arch_presets(void);

/* How many positions a text can have that begins with so many tokens; 0: any number. Positions are learned, or
 * frequencies or queries would change with the length. */
static inline uint32_t shore__arch_most_positions(const struct shore__arch *a, size_t begins_with) {
    if (a->learned_positions || a->rope[0].kind == SHORE__ROPE_DYNAMIC) return a->max_positions;
    double original = a->rope[0].original_positions;
    bool ends =
        a->rope[0].query_beta != 0 || (a->rope[0].kind == SHORE__ROPE_LONGROPE && (double)begins_with <= original);
    return ends ? (uint32_t)original : 0;
}

/* What a layer attends to, and how it is rotated. layer: from 1. */
static inline const struct shore__layer_kind *shore__layer_kind(const struct shore__arch *a, uint32_t layer) {
    return &a->kinds[a->kind_of[layer - 1]];
}

int shore__model_make(const struct shore__arch *arch, struct shore__model **out, struct shore_diag *diag);
/* Makes a model of a config.json from which arch was read; keeps what arch does not hold. */
int shore__model_of_config(const struct shore__arch *arch, const json_t *config, struct shore__model **out,
                           struct shore_diag *diag);
/* The model's config.json: that of its arch, and what it keeps beside. The caller json_decref()s it. */
json_t *shore__model_to_json(const struct shore__model *m, const struct shore__arch *arch);
void shore__model_free(struct shore__model *m);

/* freeze.c: lets the tensors rest whose names in files match a pattern of the shell: as requires_grad = False does in
 * PyTorch, they have no gradient, no moments and no update. A pattern may match a name from one of its dots on. A tied
 * head is its table. Errors (SHORE_EUSAGE): a pattern that matches nothing, part of a matrix, all tensors; -ENOMEM. */
int shore__model_freeze(struct shore__model *m, const char *const *patterns, size_t count, struct shore_diag *diag);
/* Makes m->layout, and what follows from it, of the blocks' tensors. -ENOMEM, SHORE_EINPUT. */
int shore__model_lay_out(struct shore__model *m);

static inline uint32_t shore__model_head(const struct shore__model *m) {
    return m->arch.n_layer + 1;
}
static inline bool shore__model_rests(const struct shore__model *m, uint32_t block) {
    return m->layout->blocks[block].tensors[0].group == SHORE_GROUP_RESTS;
}
/* Of a block and its side, the one that is trained; UINT32_MAX: none. */
static inline uint32_t shore__model_trained(const struct shore__model *m, uint32_t block) {
    if (!shore__model_rests(m, block)) return block;
    return m->blocks[block].side ? m->blocks[block].side : UINT32_MAX;
}
/* The block of n_layer + 2 that a block is, or whose side it is. */
static inline uint32_t shore__model_main(const struct shore__model *m, uint32_t block) {
    return block > shore__model_head(m) ? m->blocks[block].side : block;
}
/* Rows [first, first + n) of slice i, and its segments in the table's block. */
struct shore__slice {
    uint32_t first, rows;
    uint32_t segment, segments; /* in the table's block; the last slice ends with the table */
};
struct shore__slice shore__model_slice(const struct shore__model *m, uint32_t i);
/* The block that holds the output table: the head's, or the embedding if tied. */
static inline uint32_t shore__model_table_block(const struct shore__model *m) {
    return m->arch.tied ? 0 : shore__model_head(m);
}

/* Initial values of segments [segment, segment + count) of a block: normal(0, init_std), with residual projections
 * scaled by 1 / sqrt(2 n_layer); gains 1; biases, the padding's row and gaps 0. They depend on (seed, block, position)
 * alone. */
void shore__model_init(const struct shore__model *m, uint64_t seed, uint32_t block, uint32_t segment, uint32_t count,
                       float *out);

/* Number of whole sequences that one product covers: max(1, floor(1024 / seq_len)). */
static inline size_t shore__unit_sequences(size_t seq_len) {
    return seq_len >= 1024 ? 1 : 1024 / seq_len;
}
/* Shapes that compute prepares for. Rows of a full unit, and of the short one (0: none). */
struct shore__shapes shore__model_shapes(const struct shore__model *m, size_t unit_rows, size_t short_rows,
                                         size_t seq_len, bool backward);

/* ---- a layer's mathematics, on one unit of rows ------------------------------------------------------------------ */

/* A block's tensors as products read them: matrices in the product type, vectors widened to fp32. */
struct shore__weights {
    shore__buf role[SHORE__ROLE_COUNT];
};
/* Bytes of a block's prepared tail beside its raw form, and its preparation. raw: the tail's segments as fetched (bf16,
 * or fp32 in mode SHORE__F32). which: [1 + experts], whether to prepare what is no expert's, and each expert's tensors;
 * NULL: all. out gets these roles; others stay. Slices of tables are widened by shore__slice_prepare(). */
size_t shore__prepared_bytes(const struct shore__model *m, uint32_t block, enum shore__mode mode);
int shore__block_prepare(const struct shore__model *m, struct shore__compute *c, struct shore__stream *s,
                         uint32_t block, shore__buf raw, shore__buf prepared, const bool *which,
                         struct shore__weights *out);
/* Prepares a table slice for products: out is raw itself, or raw widened into prepared (rows * d * 4 bytes). */
size_t shore__slice_prepared_bytes(const struct shore__model *m, enum shore__mode mode);
int shore__slice_prepare(const struct shore__model *m, struct shore__compute *c, struct shore__stream *s, uint32_t rows,
                         shore__buf raw, shore__buf prepared, shore__buf *out);
/* Places of a block's gradients, by role. add: gradients of matrices are added to the old values instead of replacing
 * them. Gradients of vectors are always added. */
struct shore__gradients {
    shore__buf role[SHORE__ROLE_COUNT];
    bool add;
};
/* gradient: fp32, canonical, starting with segment `segment`. Roles before it get no place. */
void shore__block_gradients(const struct shore__model *m, uint32_t block, uint32_t segment, shore__buf gradient,
                            struct shore__gradients *out);
/* Clears the gradients of a layer outside its matrices. gradient: of the whole layer. */
int shore__clear_vectors(const struct shore__model *m, struct shore__compute *c, struct shore__stream *s,
                         uint32_t layer, shore__buf gradient);

/* Inner activations of one unit of a layer: a place for each value that its table saves. The "cheap" ones are computed
 * again from the others at little cost. */
struct shore__inner {
    shore__buf at[SHORE__VALUES];
};
size_t shore__inner_bytes(const struct shore__model *m, enum shore__mode mode, size_t rows, bool cheap_too);
/* Of all of them, and of what is in forward alone. */
size_t shore__inner_work_bytes(const struct shore__model *m, enum shore__mode mode, size_t rows);
/* Lays out inner activations in `kept`. Without the cheap ones, those lie in `work`, which has room for all; none: kept
 * has it. */
struct shore__inner shore__inner_at(const struct shore__model *m, enum shore__mode mode, size_t rows, shore__buf kept,
                                    bool cheap_too, shore__buf work);

/* Moves inner activations to `kept`, or back from it: all of them, or all but the cheap ones. Uses ops->store() and
 * load(), with the layout and sizes of shore__stored_mode(). */
int shore__inner_store(const struct shore__model *m, struct shore__compute *c, struct shore__stream *s, size_t rows,
                       const struct shore__inner *inner, shore__buf kept, bool cheap_too);
int shore__inner_load(const struct shore__model *m, struct shore__compute *c, struct shore__stream *s, size_t rows,
                      const struct shore__inner *inner, shore__buf kept, bool cheap_too);

size_t shore__backward_scratch_bytes(const struct shore__model *m, enum shore__mode mode, size_t rows);

/* One unit of rows in one layer. rotary: rotary tables one after another, each of so many positions; none with learned
 * positions. */
struct shore__layer_call {
    const struct shore__model *m;
    struct shore__compute *c;
    struct shore__stream *s;
    uint32_t layer; /* from 1 */
    const struct shore__weights *w;
    shore__buf rotary;
    shore__buf adapting; /* scratch of adapters */
    size_t rotary_positions, first_position;
    size_t rows, seq_len;
    /* Other attention than over whole sequences: fills out from qkv, which is rotated. NULL: none. */
    int (*attend)(void *ctx, const struct shore__layer_call *call, shore__buf out, shore__buf qkv);
    /* Is told which experts rows go to, before the experts' weights are read. NULL: nobody. */
    int (*routed)(void *ctx, const struct shore__layer_call *call, shore__buf route);
    void *ctx;
    shore__buf balance; /* see ops->route_backward() */
};
/* Of a model's experts. */
struct shore__routing shore__model_routing(const struct shore__model *m, enum shore__mode mode);
/* Of this layer, without a limit to whole sequences. */
struct shore__attention shore__layer_attention(const struct shore__layer_call *call);
/* Forward of a layer: out [rows, d] from in. out may be in, or none, which fills inner only. */
int shore__layer_forward(const struct shore__layer_call *call, shore__buf in, const struct shore__inner *inner,
                         shore__buf out);
/* Computes the cheap inner activations again. */
int shore__layer_remake_cheap(const struct shore__layer_call *call, shore__buf in, const struct shore__inner *inner);
/* Backward of a layer. dx: gradient of out on entry, gradient of in on return. Gradients of weights go to g. inner is
 * overwritten. */
int shore__layer_backward(const struct shore__layer_call *call, const struct shore__gradients *g, shore__buf in,
                          const struct shore__inner *inner, shore__buf scratch, shore__buf dx);

/* By which a scaled embedding is multiplied: the root of d_model, as a number of the mode's parameters. */
float shore__embedding_factor(const struct shore__model *m, enum shore__mode mode);

/* Angle by which pair i of a head turns from one position to the next, by one of the rotary tables. */
float shore__rope_frequency(const struct shore__arch *arch, uint32_t table, size_t i);
/* A rotary table in host memory: fp32 [positions, rotary dim], cosines then sines. */
void shore__rope_table(const struct shore__arch *arch, uint32_t table, size_t positions, float *out);
/* Bytes of all rotary tables that a model uses. */
static inline uint64_t shore__rotary_bytes(const struct shore__model *m, uint64_t positions) {
    return m->nrotary * positions * m->arch.rotary_dim * 4;
}

#endif
