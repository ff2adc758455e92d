#include "run/exchange/tensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/suggest.h"
#include "model/families/families.h"

static const char head_name[] = "lm_head.weight";

int shore__tensors_open(const char *directory, const struct shore__arch *arch, struct shore__safetensors **out,
                        struct shore_diag *diag) {
    int rc = shore__safetensors_open(directory, out, diag);
    if (rc == 0) rc = shore__quantized_resolve(*out, &arch->quantization, diag);
    return rc;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static const struct shore__st_tensor *find_stored(const struct shore__safetensors *files,
                                                  const struct shore__arch *arch, const char *name) {
    const struct shore__st_tensor *t = shore__safetensors_find(files, name);
    const char *prefix = shore__family_of(arch->model_type)->prefix;
    if (!t && arch->wrapper) return shore__safetensors_find(files, shore__newer_name(name).text);
    if (!t && strncmp(name, prefix, strlen(prefix)) == 0) t = shore__safetensors_find(files, name + strlen(prefix));
    return t;
}

/* As the family's table has it. */
static const char *embedding_name(const struct shore__arch *arch, char out[200]) {
    const struct shore__family *family = shore__family_of(arch->model_type);
    const struct shore__tensor_row *row = family->tensors;
    while (row->role != SHORE__TOKEN_TABLE)
        row++;
    snprintf(out, 200, "%s%s%s", arch->wrapper ? SHORE__TEXT_PREFIX : "", family->prefix, row->parts[0].name);
    return out;
}
static const struct shore__st_tensor *find_head(const struct shore__safetensors *files,
                                                const struct shore__arch *arch) {
    return arch->wrapper ? find_stored(files, arch, SHORE__TEXT_PREFIX "lm_head.weight")
                         : shore__safetensors_find(files, head_name);
}

const struct shore__st_tensor *shore__tensor_find(const struct shore__safetensors *files,
                                                  const struct shore__arch *arch, const char *name) {
    const struct shore__st_tensor *t = find_stored(files, arch, name);
    /* safetensors' save_model keeps one of the names that share memory: the alphabetically first */
    char embedding[200];
    return t || !arch->tied || strcmp(name, embedding_name(arch, embedding)) != 0 ? t : find_head(files, arch);
}

const struct shore__st_tensor *shore__tensor_of_expert(const struct shore__safetensors *files,
                                                       const struct shore__arch *arch, const char *name,
                                                       struct shore__st_tensor *out) {
    static const struct {
        const char *part, *whole;
        uint32_t nth, of; /* its rows among those of the expert */
    } parts[] = {{".gate_proj.weight", "gate_up_proj", 0, 2},
                 {".up_proj.weight", "gate_up_proj", 1, 2},
                 {".down_proj.weight", "down_proj", 0, 1}};
    const char *experts = shore__family_of(arch->model_type)->experts, *at = experts ? strstr(name, experts) : NULL;
    if (!at) return NULL;
    at += strlen(experts);
    char *part, whole[200];
    uint64_t expert = strtoul(at, &part, 10);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strcmp(part, parts[i].part) != 0) continue;
        snprintf(whole, sizeof whole, "%.*s%s", (int)(at - name), name, parts[i].whole);
        const struct shore__st_tensor *t = find_stored(files, arch, whole);
        if (!t || t->flipped || t->rank != 3 || t->shape[0] != arch->experts || t->shape[1] % parts[i].of) return NULL;
        *out = shore__safetensors_slice(t, expert);
        out->shape[0] /= parts[i].of;
        out->elems /= parts[i].of;
        out->first += parts[i].nth * out->elems;
        return t;
    }
    return NULL;
}

const struct shore__st_tensor *shore__tensor_prefixed(const struct shore__safetensors *files, const char *name) {
    for (uint32_t i = 0; i < files->ntensors; i++) {
        const char *theirs = files->tensors[i].name;
        size_t n = strlen(theirs), m = strlen(name);
        if (n > m + 1 && shore__ends_with(theirs, name) && theirs[n - m - 1] == '.') return &files->tensors[i];
    }
    return NULL;
}

/* Whether a name holds these words as whole parts between dots. */
static bool has_words(const char *name, const char *words) {
    size_t n = strlen(words);
    for (const char *at = strstr(name, words); at; at = strstr(at + 1, words))
        if ((at == name || at[-1] == '.') && (at[n] == '.' || !at[n])) return true;
    return false;
}

int shore__tensors_refuse_wrapped(const struct shore__safetensors *files, struct shore_diag *diag) {
    static const struct {
        const char *words, *whose;
    } wrappers[] = {
        {"base_model.model", NULL},
        {"base_layer", NULL},
        {"lora_A", NULL},
        {"_orig_mod", "torch.compile"},
        {"module", "DataParallel or DistributedDataParallel"},
        {"_fsdp_wrapped_module", "FSDP"},
        {"_checkpoint_wrapped_module", "activation checkpointing"},
        {"_forward_module", "Lightning or DeepSpeed"},
    };
    for (uint32_t i = 0; i < files->ntensors; i++)
        for (size_t w = 0; w < sizeof wrappers / sizeof wrappers[0]; w++) {
            const struct shore__st_tensor *t = &files->tensors[i];
            const char *words = wrappers[w].words, *whose = wrappers[w].whose;
            if (!has_words(t->name, words)) continue;
            if (!whose)
                return shore__st_refuse(
                    files, t, diag,
                    "has \"%s.\" in its name: these are the weights of a PEFT model whose adapter is not "
                    "merged; in Python, model.merge_and_unload().save_pretrained(DIR) does that",
                    words);
            return shore__st_refuse(
                files, t, diag,
                "has \"%s.\" in its name, which %s adds: save the model inside it (save_pretrained), or "
                "rename the tensors, in Python with safetensors.torch: "
                "save_file({k.replace(\"%s.\", \"\"): v for k, v in load_file(F).items()}, F)",
                words, whose, words);
        }
    return 0;
}

/* ---- the head of a tied model ------------------------------------------------------------------------------------ */

/* Compares two tensors by value, whatever their types. */
static int compare(const struct shore__safetensors *files, const struct shore__st_tensor *a,
                   const struct shore__st_tensor *b, bool *same, struct shore_diag *diag) {
    enum { AT_ONCE = 1 << 16 };
    *same = a->rank == b->rank && memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) == 0 &&
            shore__st_is_weight(a) && shore__st_is_weight(b);
    if (!*same) return 0;
    float *x = malloc(2 * AT_ONCE * sizeof *x), *y = x ? x + AT_ONCE : NULL;
    int rc = x ? 0 : shore__out_of_memory(diag);
    for (uint64_t first = 0; rc == 0 && *same && first < a->elems; first += AT_ONCE) {
        uint64_t n = a->elems - first < AT_ONCE ? a->elems - first : AT_ONCE;
        rc = shore__safetensors_read(files, a, first, n, x, diag);
        if (rc == 0) rc = shore__safetensors_read(files, b, first, n, y, diag);
        for (uint64_t i = 0; rc == 0 && *same && i < n; i++)
            *same = x[i] == y[i];
    }
    free(x);
    return rc;
}

static int head_is_embedding(const struct shore__safetensors *files, const struct shore__arch *arch, bool *same,
                             struct shore_diag *diag) {
    const struct shore__st_tensor *head = find_head(files, arch);
    char name[200];
    const struct shore__st_tensor *embedding = find_stored(files, arch, embedding_name(arch, name));
    *same = true;
    return head && embedding ? compare(files, head, embedding, same, diag) : 0;
}

int shore__tensors_untie(const struct shore__safetensors *files, struct shore__arch *arch, struct shore_diag *diag) {
    bool same = true;
    int rc = arch->tied ? head_is_embedding(files, arch, &same, diag) : 0;
    if (rc == 0 && !same) {
        arch->tied = false;
        arch->head_parted = true;
    }
    return rc;
}

/* ---- tensors that are no parameters ------------------------------------------------------------------------------ */

/* Tolerates 16 bits: models were saved with these frequencies in 16 bits, and before their scaling. The smallest are
 * denormal as F16. */
static bool are_alike(double stored, double computed) {
    return fabs(stored - computed) <= computed / 256 + 0x1p-24;
}

static int check_frequencies(const struct shore__safetensors *files, const struct shore__arch *arch,
                             const struct shore__st_tensor *t, struct shore_diag *diag) {
    struct shore__arch unscaled = *arch;
    float stored[2048];
    unscaled.rope[0].kind = SHORE__ROPE_DEFAULT;
    size_t half = arch->rotary_dim / 2;
    if (t->elems != half || half > sizeof stored / sizeof *stored)
        return shore__st_refuse(files, t, diag, "holds %llu rotary frequencies, but config.json asks for %zu",
                                (unsigned long long)t->elems, half);
    int rc = shore__safetensors_read(files, t, 0, half, stored, diag);
    for (size_t i = 0; rc == 0 && i < half; i++) {
        float wanted = shore__rope_frequency(arch, 0, i);
        if (are_alike(stored[i], wanted) || are_alike(stored[i], shore__rope_frequency(&unscaled, 0, i))) continue;
        rc = shore__st_refuse(
            files, t, diag,
            "holds the rotary frequency %g at [%zu], but rope_theta and rope_scaling of config.json make it "
            "%g: they do not belong to these weights",
            (double)stored[i], i, (double)wanted);
    }
    return rc;
}

/* Checks that the mask is what attention does in any case: position r sees columns up to r. */
static int check_mask(const struct shore__safetensors *files, const struct shore__st_tensor *t,
                      struct shore_diag *diag) {
    uint64_t n = t->rank >= 2 ? t->shape[t->rank - 1] : 0;
    if (n == 0 || t->elems / n != n || t->elems % n || t->shape[t->rank - 2] != n)
        return shore__st_refuse(files, t, diag, "is not a mask of attention, which a gpt2 model has by this name");
    float *row = malloc(n * sizeof *row);
    int rc = row ? 0 : shore__out_of_memory(diag);
    for (uint64_t r = 0; rc == 0 && r < n; r++) {
        rc = shore__safetensors_read(files, t, r * n, n, row, diag);
        for (uint64_t c = 0; rc == 0 && c < n; c++)
            if (row[c] != (c <= r))
                rc = shore__st_refuse(
                    files, t, diag,
                    "is a mask that hides other positions than those that follow (%g at [%llu, %llu]): such a "
                    "model is not supported",
                    (double)row[c], (unsigned long long)r, (unsigned long long)c);
    }
    free(row);
    return rc;
}

/* Checks the score that replaced those of masked positions: -10000, or as low as the type went. */
static int check_masked_score(const struct shore__safetensors *files, const struct shore__st_tensor *t,
                              struct shore_diag *diag) {
    float value = 0;
    int rc = t->elems == 1 ? shore__safetensors_read(files, t, 0, 1, &value, diag) : 0;
    if (rc == 0 && !(value <= -9000))
        rc = shore__st_refuse(files, t, diag, "is above -10000, so masked positions would count");
    return rc;
}

static const char *which_says_no(const struct shore__arch *arch, const char *name) {
    if (strcmp(arch->model_type, "llama") != 0 || !shore__ends_with(name, "_proj.bias")) return "";
    return strstr(name, ".mlp.") ? ", whose \"mlp_bias\" is false" : ", whose \"attention_bias\" is false";
}

int shore__tensor_check_unused(const struct shore__safetensors *files, const struct shore__arch *arch,
                               const struct shore__st_tensor *t, struct shore_diag *diag) {
    if (arch->learned_positions && shore__ends_with(t->name, ".attn.bias")) return check_mask(files, t, diag);
    if (arch->learned_positions && shore__ends_with(t->name, ".attn.masked_bias"))
        return check_masked_score(files, t, diag);
    if (!arch->learned_positions && shore__ends_with(t->name, "rotary_emb.inv_freq"))
        return check_frequencies(files, arch, t, diag);
    bool same = false, head = t == find_head(files, arch);
    if (arch->wrapper && !head && !has_words(t->name, "language_model")) /* of what reads images */
        return t->coding ? shore__st_refuse(
                               files, t, diag,
                               "is quantised, but is not of the text, which alone is widened: dequantise the model "
                               "(in Python, model.dequantize()) and save it")
                         : 0;
    int rc = arch->tied && head ? head_is_embedding(files, arch, &same, diag) : 0;
    if (rc < 0 || same) return rc;
    return shore__st_refuse(files, t, diag, "is not part of a %s model as config.json has it%s", arch->model_type,
                            which_says_no(arch, t->name));
}
