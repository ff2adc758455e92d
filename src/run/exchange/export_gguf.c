/* Exports a model as GGUF: its tensors under llama.cpp's names and in its order, and what llama.cpp needs to know. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "files/gguf_write.h"
#include "model/config/rope.h"
#include "model/families/families.h"
#include "number/fp16.h"
#include "run/run.h"
#include "text/tokenizer_gguf.h"

/* A family's architecture in llama.cpp. */
struct family {
    const char *model_type, *architecture;
    enum shore__act_fn act;
    bool pairs;        /* dimensions that rotate together lie side by side: those of queries and keys are moved */
    bool behind;       /* norms stand behind attention and product, too, and the one behind attention has that name */
    bool windows;      /* llama.cpp knows which layers have a window */
    bool thetas;       /* and that they have a base of their own for their angles */
    bool caps;         /* scores and logits are capped */
    bool renormalised; /* the weights of a row's experts sum to 1 */
    bool biased;       /* all products may have biases; otherwise queries, keys and values alone */
    enum { ANY_HEAD, OWN_HEAD, TIED_HEAD } head;
    uint32_t layers; /* of the size whose scores are divided by the root of d_model / n_head; 0: of none */
};
static const struct family families[] = {
    {"gpt2", "gpt2", SHORE__GELU_TANH, .biased = true},
    {"llama", "llama", SHORE__SILU, .pairs = true, .biased = true},
    {"mistral", "llama", SHORE__SILU, .pairs = true},
    {"smollm3", "smollm3", SHORE__SILU, .pairs = true},
    {"qwen2", "qwen2", SHORE__SILU, .pairs = false},
    {"qwen3", "qwen3", SHORE__SILU, .pairs = false},
    {"qwen3_moe", "qwen3moe", SHORE__SILU, .renormalised = true},
    {"olmoe", "olmoe", SHORE__SILU, .head = OWN_HEAD},
    {"phi3", "phi3", SHORE__SILU, .pairs = false},
    {"olmo2", "olmo2", SHORE__SILU, .behind = true, .head = OWN_HEAD},
    {"olmo3", "olmo2", SHORE__SILU, .behind = true, .windows = true, .head = OWN_HEAD},
    {"gemma2", "gemma2", SHORE__GELU_TANH, .behind = true, .windows = true, .caps = true, .head = TIED_HEAD,
     .layers = 46},
    {"gemma3_text", "gemma3", SHORE__GELU_TANH, .behind = true, .windows = true, .thetas = true, .layers = 62},
};

/* Modules by the names in Hugging Face's files; # is the number of a layer. */
static const struct {
    const char *theirs, *name;
} modules[] = {
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
    {"model.layers.#.input_layernorm", "blk.#.attn_norm"},
    {"model.layers.#.self_attn.q_proj", "blk.#.attn_q"},
    {"model.layers.#.self_attn.k_proj", "blk.#.attn_k"},
    {"model.layers.#.self_attn.v_proj", "blk.#.attn_v"},
    {"model.layers.#.self_attn.o_proj", "blk.#.attn_output"},
    {"model.layers.#.self_attn.qkv_proj", "blk.#.attn_qkv"},
    {"model.layers.#.self_attn.q_norm", "blk.#.attn_q_norm"},
    {"model.layers.#.self_attn.k_norm", "blk.#.attn_k_norm"},
    {"model.layers.#.post_attention_layernorm", "blk.#.ffn_norm"},
    {"model.layers.#.pre_feedforward_layernorm", "blk.#.ffn_norm"},
    {"model.layers.#.post_feedforward_layernorm", "blk.#.post_ffw_norm"},
    {"model.layers.#.mlp.gate_up_proj", "blk.#.ffn_up"},
    {"model.layers.#.mlp.gate", "blk.#.ffn_gate_inp"},
    {"model.layers.#.mlp.experts.gate_proj", "blk.#.ffn_gate_exps"},
    {"model.layers.#.mlp.experts.up_proj", "blk.#.ffn_up_exps"},
    {"model.layers.#.mlp.experts.down_proj", "blk.#.ffn_down_exps"},
    {"model.layers.#.mlp.gate_proj", "blk.#.ffn_gate"},
    {"model.layers.#.mlp.up_proj", "blk.#.ffn_up"},
    {"model.layers.#.mlp.down_proj", "blk.#.ffn_down"},
    {"transformer.wte", "token_embd"},
    {"transformer.wpe", "position_embd"},
    {"transformer.ln_f", "output_norm"},
    {"transformer.h.#.ln_1", "blk.#.attn_norm"},
    {"transformer.h.#.attn.c_attn", "blk.#.attn_qkv"},
    {"transformer.h.#.attn.c_proj", "blk.#.attn_output"},
    {"transformer.h.#.ln_2", "blk.#.ffn_norm"},
    {"transformer.h.#.mlp.c_fc", "blk.#.ffn_up"},
    {"transformer.h.#.mlp.c_proj", "blk.#.ffn_down"},
};

/* How a tensor of Hugging Face's files is written. */
struct written {
    uint32_t tensor;       /* its number in the file */
    uint64_t first;        /* elements before it: it is one of the experts of a layer */
    uint64_t cols, halves; /* halves: rows of half a head, whose dimensions are moved; 0: none are */
    bool narrowed;         /* fp32 in the file, with the numbers of fp16 */
    bool from_1;           /* 1 is added: the gain of the norm */
};

struct job {
    const struct family *family;
    const struct shore__arch *arch;
    struct shore__contents *contents;
    struct written *written; /* by contents->shapes */
    struct {                 /* tensors of all experts of a layer: of gates, ups and downs */
        char name[128];
        uint32_t tensor;
    } stacked[3];
    struct shore__gguf *gguf;
    enum shore__st_type type;
};

/* ---- metadata ---------------------------------------------------------------------------------------------------- */

struct key {
    char text[96];
};
static struct key key_of(const struct job *job, const char *name) {
    struct key key;
    snprintf(key.text, sizeof key.text, "%s.%s", job->family->architecture, name);
    return key;
}

static void put_count(const struct job *job, const char *name, uint32_t value) {
    shore__gguf_u32(job->gguf, key_of(job, name).text, value);
}

static void put_number(const struct job *job, const char *name, double value) {
    shore__gguf_f32(job->gguf, key_of(job, name).text, (float)value);
}

static int put_rope(const struct job *job, struct shore_diag *diag) {
    const struct shore__arch *a = job->arch;
    const struct shore__rope *r = &a->rope[0];
    bool yarn = r->kind == SHORE__ROPE_YARN, longer = r->kind == SHORE__ROPE_LONGROPE;
    bool own =
        r->attention_factor != 0 && !(yarn && fabs(r->attention_factor - shore__yarn_scale(r->factor, 1)) < 1e-6);
    /* llama.cpp has these, whatever a file says */
    own |= (r->beta_fast != 0 && r->beta_fast != 32) || (r->beta_slow != 0 && r->beta_slow != 1);
    put_count(job, "rope.dimension_count", a->rotary_dim);
    put_number(job, "rope.freq_base", r->theta);
    if (r->kind == SHORE__ROPE_DYNAMIC || own || r->mscale != 0 || r->mscale_all_dim != 0 || r->fractional ||
        r->query_beta != 0)
        return shore__fail(diag, SHORE_EINPUT,
                           "GGUF has no rotary positions that are scaled as this model's are (rope_scaling)");
    if (yarn || r->kind == SHORE__ROPE_LINEAR) {
        shore__gguf_text(job->gguf, key_of(job, "rope.scaling.type").text, yarn ? "yarn" : "linear");
        put_number(job, "rope.scaling.factor", r->factor);
    }
    if (yarn || longer || strcmp(job->family->architecture, "phi3") == 0)
        put_count(job, "rope.scaling.original_context_length",
                  r->original_positions > 0 ? (uint32_t)r->original_positions : a->max_positions);
    if (longer) put_number(job, "rope.scaling.attn_factor", shore__longrope_scale(r->factor, r->original_positions));
    return 0;
}

/* Layers that differ. llama.cpp knows which of SmolLM 3's are not rotated; the others' are all. */
static int put_layers(const struct job *job, struct shore_diag *diag) {
    const struct shore__arch *a = job->arch;
    const uint32_t step = strcmp(a->model_type, "smollm3") == 0 ? 4 : 0;
    const struct shore__rope *local = NULL;
    uint32_t window = 0;
    bool known = true;
    for (uint32_t i = 1; i <= a->n_layer; i++) {
        const struct shore__layer_kind *kind = shore__layer_kind(a, i);
        known &= kind->unrotated == (step && i % step == 0);
        known &= job->family->windows || (kind->window == a->kinds[0].window && !kind->rope);
        known &= !kind->window || !window || kind->window == window;
        if (kind->window) window = kind->window;
        if (kind->rope) local = &a->rope[kind->rope];
    }
    /* of OLMo 3, llama.cpp takes one base for both */
    known &=
        !local || (local->kind == SHORE__ROPE_DEFAULT && (job->family->thetas || local->theta == a->rope[0].theta));
    if (!known)
        return shore__fail(diag, SHORE_EINPUT, "llama.cpp expects other windows or rotations in layers of %s",
                           job->family->architecture);
    if (strcmp(job->family->architecture, "phi3") == 0) put_count(job, "attention.sliding_window", window);
    if (!job->family->windows) return 0;
    put_count(job, "attention.sliding_window", window);
    shore__gguf_list(job->gguf, key_of(job, "attention.sliding_window_pattern").text, SHORE__GGUF_BOOL, a->n_layer);
    for (uint32_t i = 1; i <= a->n_layer; i++)
        shore__gguf_item_bool(job->gguf, shore__layer_kind(a, i)->window > 0);
    if (local) put_number(job, "rope.freq_base_swa", local->theta);
    return 0;
}

/* Scores are divided by the root of what llama.cpp takes, and capped as it says. */
static int put_scores(const struct job *job, struct shore_diag *diag) {
    const struct shore__arch *a = job->arch;
    double divides = job->family->layers && a->n_layer == job->family->layers ? a->d_model / a->n_head : a->head_dim;
    bool scaled = a->attention_scale > 0 && fabs(a->attention_scale * sqrt(divides) - 1) > 1e-5;
    if (scaled || (job->family->caps && (a->attention_cap <= 0 || a->logit_cap <= 0)))
        return shore__fail(diag, SHORE_EINPUT, "llama.cpp scales or caps the scores of %s otherwise (%s)",
                           job->family->architecture,
                           scaled                  ? "query_pre_attn_scalar"
                           : a->attention_cap <= 0 ? "attn_logit_softcapping"
                                                   : "final_logit_softcapping");
    if (a->attention_cap > 0) put_number(job, "attn_logit_softcapping", a->attention_cap);
    if (a->logit_cap > 0) put_number(job, "final_logit_softcapping", a->logit_cap);
    return 0;
}

static int put_metadata(const struct job *job, const char *name, struct shore_diag *diag) {
    const struct shore__arch *a = job->arch;
    /* up to a window's length, a model is the same without it */
    const uint32_t window = job->family->windows ? 0 : a->kinds[0].window;
    shore__gguf_text(job->gguf, "general.architecture", job->family->architecture);
    shore__gguf_text(job->gguf, "general.type", "model");
    shore__gguf_text(job->gguf, "general.name", name);
    shore__gguf_u32(job->gguf, "general.file_type",
                    job->type == SHORE__ST_F32   ? 0
                    : job->type == SHORE__ST_F16 ? 1
                                                 : 32);
    shore__gguf_u32(job->gguf, "general.quantization_version", 2);
    put_count(job, "vocab_size", a->vocab);
    put_count(job, "block_count", a->n_layer);
    put_count(job, "context_length", window && window < a->max_positions ? window : a->max_positions);
    put_count(job, "embedding_length", a->d_model);
    put_count(job, "feed_forward_length", a->d_ff);
    put_count(job, "attention.head_count", a->n_head);
    if (a->experts) {
        put_count(job, "expert_count", a->experts);
        put_count(job, "expert_used_count", a->experts_chosen);
        put_count(job, "expert_feed_forward_length", a->expert_ff);
    }
    put_number(job, a->norm == SHORE__LAYER_NORM ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon",
               a->norm_eps);
    if (a->learned_positions) return 0;
    put_count(job, "attention.head_count_kv", a->n_kv_head);
    put_count(job, "attention.key_length", a->head_dim);
    put_count(job, "attention.value_length", a->head_dim);
    int rc = put_rope(job, diag);
    if (rc == 0) rc = put_layers(job, diag);
    return rc ? rc : put_scores(job, diag);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Writes text to out, with a number in the place of '#'. */
static void fill_in(const char *text, const char *number, size_t digits, char *out, size_t bytes) {
    const char *mark = strchr(text, '#');
    if (mark)
        snprintf(out, bytes, "%.*s%.*s%s", (int)(mark - text), text, (int)digits, number, mark + 1);
    else
        snprintf(out, bytes, "%s", text);
}

/* Finds the name in GGUF: that of the module, and the same end. */
static bool rename_tensor(const struct family *family, const char *theirs, char out[128]) {
    if (strncmp(theirs, SHORE__TEXT_PREFIX, strlen(SHORE__TEXT_PREFIX)) == 0) theirs += strlen(SHORE__TEXT_PREFIX);
    const char *number = strpbrk(theirs, "0123456789"), *end = strrchr(theirs, '.');
    size_t digits = number ? strspn(number, "0123456789") : 0;
    for (size_t i = 0; end && i < sizeof modules / sizeof *modules; i++) {
        char module[128], name[120];
        fill_in(modules[i].theirs, number, digits, module, sizeof module);
        if (strlen(module) != (size_t)(end - theirs) || strncmp(module, theirs, strlen(module)) != 0) continue;
        fill_in(modules[i].name, number, digits, name, sizeof name);
        bool behind = family->behind && strstr(module, "post_attention_layernorm");
        snprintf(out, 128, "%.*s%s%.7s", behind ? (int)(strrchr(name, '.') - name) : 120, name,
                 behind ? ".post_attention_norm" : "", end);
        return true;
    }
    return false;
}

/* The number of the expert in a name, which is cut out of it; -1: there is none. */
static int64_t cut_expert(char *name) {
    char *at = strstr(name, ".experts."), *end = NULL;
    if (!at) return -1;
    at += strlen(".experts.");
    long expert = strtol(at, &end, 10);
    if (end == at || *end != '.') return -1;
    memmove(at, end + 1, strlen(end + 1) + 1);
    return expert;
}

/* Declares the tensor of all experts of a layer, once. */
static uint32_t stack(struct job *job, const char *name, const struct shore_shape *s) {
    const uint64_t dims[3] = {job->arch->experts, s->dims[0], s->dims[1]};
    for (size_t i = 0; i < 3; i++)
        if (strcmp(job->stacked[i].name, name) == 0) return job->stacked[i].tensor;
    memmove(&job->stacked[1], &job->stacked[0], 2 * sizeof job->stacked[0]);
    snprintf(job->stacked[0].name, sizeof job->stacked[0].name, "%s", name);
    return job->stacked[0].tensor = shore__gguf_tensor(job->gguf, name, 3, dims, job->type);
}

/* Whether a name is that of a tensor of a module, which is named by the end of its own name. */
static bool is_of(const char *name, const char *module) {
    const char *at = strstr(name, module);
    return at && at[strlen(module)] == '.';
}

static int declare(struct job *job, uint32_t number, struct shore_diag *diag) {
    struct shore_shape *s = &job->contents->shapes[number];
    struct written *w = &job->written[number];
    char name[128], theirs[256];
    snprintf(theirs, sizeof theirs, "%s", s->name);
    const int64_t expert = cut_expert(theirs);
    if (!rename_tensor(job->family, theirs, name))
        return shore__fail(diag, SHORE_EINPUT, "the tensor %s has no name in GGUF that Longshore knows",
                           shore__shown(s->name).text);
    if (shore__family_of(job->arch->model_type)->inputs_first && s->rank == 2 && strstr(s->name, ".c_")) {
        const uint64_t rows = s->dims[0];
        s->dims[0] = s->dims[1];
        s->dims[1] = rows;
        s->transposed = !s->transposed;
    }
    /* what llama.cpp has in fp32 */
    bool plain = s->rank < 2 || strcmp(name, "position_embd.weight") == 0 || is_of(name, "ffn_gate_inp");
    w->from_1 = s->rank == 1 && job->arch->norm == SHORE__RMS_NORM_FROM_1 && is_of(name, "norm");
    w->narrowed = plain && job->type == SHORE__ST_F16;
    w->cols = s->rank == 2 ? s->dims[1] : 1;
    if (job->family->pairs && (is_of(s->name, "q_proj") || is_of(s->name, "k_proj")))
        w->halves = job->arch->head_dim / 2;
    w->first = expert > 0 ? (uint64_t)expert * s->dims[0] * s->dims[1] : 0;
    w->tensor = expert >= 0 ? stack(job, name, s)
                            : shore__gguf_tensor(job->gguf, name, s->rank, s->dims, plain ? SHORE__ST_F32 : job->type);
    return 0;
}

static int put_values(const struct job *job, const struct written *w, uint64_t first, uint64_t count,
                      const float *values, struct shore_diag *diag) {
    float changed[256];
    int rc = 0;
    first += w->first;
    if (!w->narrowed && !w->from_1) return shore__gguf_put(job->gguf, w->tensor, first, count, values, diag);
    for (uint64_t done = 0, n; rc == 0 && done < count; done += n) {
        n = count - done < 256 ? count - done : 256;
        for (uint64_t i = 0; i < n; i++)
            changed[i] = (w->narrowed ? shore__f16_to_f32(shore__f32_to_f16(values[done + i])) : values[done + i]) +
                         (w->from_1 ? 1 : 0);
        rc = shore__gguf_put(job->gguf, w->tensor, first + done, n, changed, diag);
    }
    return rc;
}

static int put(void *ctx, uint32_t number, uint64_t first, uint64_t count, const float *values,
               struct shore_diag *diag) {
    const struct job *job = ctx;
    const struct written *w = &job->written[number];
    int rc = 0;
    if (!w->halves) return put_values(job, w, first, count, values, diag);
    for (uint64_t end = first + count, n; rc == 0 && first < end; first += n, values += n) {
        uint64_t row = first / w->cols, col = first % w->cols, in_head = row % (2 * w->halves);
        uint64_t moved = row - in_head + in_head % w->halves * 2 + in_head / w->halves;
        n = end - first < w->cols - col ? end - first : w->cols - col;
        rc = put_values(job, w, moved * w->cols + col, n, values, diag);
    }
    return rc;
}

/* What divides the rotary frequencies: in Llama 3 the same for all texts, with longrope by their length. */
static const char *const factor_names[] = {"rope_freqs.weight", "rope_factors_short.weight",
                                           "rope_factors_long.weight"};
enum { FACTORS = sizeof factor_names / sizeof *factor_names };

static bool has_factors(const struct shore__arch *a, uint32_t which) {
    enum shore__rope_kind kind = which ? SHORE__ROPE_LONGROPE : SHORE__ROPE_LLAMA3;
    return !a->learned_positions && a->rope[0].kind == kind;
}

static int put_factors(const struct job *job, uint32_t which, uint32_t tensor, struct shore_diag *diag) {
    const struct shore__rope *r = &job->arch->rope[0];
    struct shore__arch unscaled = *job->arch;
    int rc = 0;
    unscaled.rope[0].kind = SHORE__ROPE_DEFAULT;
    for (uint32_t i = 0; rc == 0 && i < job->arch->rotary_dim / 2; i++) {
        float factor = which == 1   ? r->short_factor[i]
                       : which == 2 ? r->long_factor[i]
                                    : shore__rope_frequency(&unscaled, 0, i) / shore__rope_frequency(job->arch, 0, i);
        rc = shore__gguf_put(job->gguf, tensor, i, 1, &factor, diag);
    }
    return rc;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* What llama.cpp does otherwise in all models of a family; NULL: nothing. */
static const char *other_key(const struct shore__arch *a, const struct family *f) {
    if (a->experts && a->experts_renormalised != f->renormalised) return "norm_topk_prob";
    if (f->head != ANY_HEAD && a->tied != (f->head == TIED_HEAD)) return "tie_word_embeddings";
    if (a->mlp_bias && !f->biased) return "mlp_bias";
    if (a->out_bias && !f->biased) return "attention_bias";
    return a->act != f->act ? "activation" : NULL;
}

static int find_family(const struct shore__arch *a, const struct family **out, struct shore_diag *diag) {
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].model_type, a->model_type) == 0) *out = &families[i];
    if (!*out)
        return shore__fail(diag, SHORE_EINPUT,
                           "Longshore writes no GGUF of %s: export without GGUF, and convert that with llama.cpp's "
                           "convert_hf_to_gguf.py",
                           a->model_type);
    const char *other = other_key(a, *out);
    return !other ? 0
                  : shore__fail(diag, SHORE_EINPUT,
                                "llama.cpp computes %s with another %s than this model has: export without GGUF",
                                (*out)->architecture, other);
}

static int write_file(struct job *job, const struct shore__exporting *e, const struct shore__tokenizer *tokenizer,
                      const char *name, struct shore_diag *diag) {
    const struct shore__arch *a = job->arch;
    const int64_t ids[2] = {a->bos, a->neos ? a->eos[0] : shore__tokenizer_end_of_text(tokenizer)};
    const uint64_t half = a->rotary_dim / 2;
    uint32_t factors[FACTORS];
    int rc = put_metadata(job, name, diag);
    if (rc == 0) rc = shore__tokenizer_gguf(tokenizer, a->vocab, ids, job->gguf, diag);
    for (uint32_t k = 0; rc == 0 && k < FACTORS; k++)
        if (has_factors(a, k)) factors[k] = shore__gguf_tensor(job->gguf, factor_names[k], 1, &half, SHORE__ST_F32);
    for (uint32_t i = 0; rc == 0 && i < job->contents->nshapes; i++)
        rc = declare(job, i, diag);
    if (rc == 0) rc = shore__gguf_begin(job->gguf, diag);
    for (uint32_t k = 0; rc == 0 && k < FACTORS; k++)
        if (has_factors(a, k)) rc = put_factors(job, k, factors[k], diag);
    return rc ? rc : shore__export_masters(e, put, job, diag);
}

int shore__export_gguf(const struct shore__exporting *how, const struct shore__model *m,
                       const struct shore__tokenizer *tokenizer, const char *name, const char *path,
                       struct shore_diag *diag) {
    struct job job = {.arch = &m->arch, .type = *how->type};
    struct shore__exporting e = *how;
    int rc = find_family(&m->arch, &job.family, diag);
    if (rc == 0) rc = shore__gguf_open(path, &job.gguf, diag);
    if (rc == 0) rc = shore__contents_of_model(m, SHORE__WHOLE_MODEL, false, &job.contents, diag);
    if (rc == 0 && !(job.written = calloc(job.contents->nshapes + 1u, sizeof *job.written)))
        rc = shore__out_of_memory(diag);
    e.contents = job.contents;
    if (rc == 0) rc = write_file(&job, &e, tokenizer, name, diag);
    if (rc == 0)
        rc = shore__gguf_finish(job.gguf, diag);
    else
        shore__gguf_abort(job.gguf);
    free(job.written);
    shore__contents_free(job.contents);
    return rc;
}
