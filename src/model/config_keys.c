#include "model/config_keys.h"

#include <stdio.h>
#include <string.h>

#include "base/diag.h"

/* ---- the table -------------------------------------------------------------------------------------------------- */

/* Every key of transformers' GPT2Config, LlamaConfig, MistralConfig and Qwen2Config, versions 4 and 5. */
enum { GPT2 = 1, LLAMA = 2, MISTRAL = 4, QWEN2 = 8, ROTARY = LLAMA | MISTRAL | QWEN2, ALL = GPT2 | ROTARY };
static const char *const families[] = {"gpt2", "llama", "mistral", "qwen2"};

enum kind {
    READ,
    IDLE,  /* changes nothing that is computed */
    FALSE, /* only what Python takes for false is supported */
    TRUE,  /* only true is supported */
};

static const struct row {
    const char *key;
    unsigned families;
    enum kind kind;
} rows[] = {
    /* Read by arch.c and rope.c, and written anew by an export. */
    {"model_type", ALL, READ},
    {"architectures", ALL, READ},
    {"vocab_size", ALL, READ},
    {"initializer_range", ALL, READ},
    {"tie_word_embeddings", ALL, READ},
    {"bos_token_id", ALL, READ},
    {"eos_token_id", ALL, READ},
    {"layer_types", ALL, READ},
    {"dtype", ALL, READ},
    {"torch_dtype", ALL, READ},
    {"n_layer", GPT2, READ},
    {"n_embd", GPT2, READ},
    {"n_head", GPT2, READ},
    {"n_inner", GPT2, READ},
    {"n_positions", GPT2, READ},
    {"n_ctx", GPT2, READ},
    {"num_hidden_layers", GPT2, READ},
    {"hidden_size", GPT2, READ},
    {"num_attention_heads", GPT2, READ},
    {"max_position_embeddings", GPT2, READ},
    {"activation_function", GPT2, READ},
    {"layer_norm_epsilon", GPT2, READ},
    {"num_hidden_layers", ROTARY, READ},
    {"hidden_size", ROTARY, READ},
    {"num_attention_heads", ROTARY, READ},
    {"num_key_value_heads", ROTARY, READ},
    {"head_dim", ROTARY, READ},
    {"intermediate_size", ROTARY, READ},
    {"max_position_embeddings", ROTARY, READ},
    {"hidden_act", ROTARY, READ},
    {"rms_norm_eps", ROTARY, READ},
    {"pad_token_id", ROTARY, READ},
    {"rope_theta", ROTARY, READ},
    {"rope_scaling", ROTARY, READ},
    {"rope_parameters", ROTARY, READ},
    {"partial_rotary_factor", ROTARY, READ},
    {"original_max_position_embeddings", ROTARY, READ},
    {"attention_bias", LLAMA, READ},
    {"mlp_bias", LLAMA, READ},
    {"sliding_window", MISTRAL, READ},
    /* Layers, masks, weights or losses of another kind. */
    {"is_causal", ALL, TRUE},
    {"is_encoder_decoder", ALL, FALSE},
    {"add_cross_attention", ALL, FALSE},
    {"per_layer_config", ALL, FALSE},
    {"pruned_heads", ALL, FALSE},
    {"quantization_config", ALL, FALSE},
    {"transformers_weights", ALL, FALSE},
    {"fusion_config", ALL, FALSE},
    /* transformers 4 trains copies of tied weights with it. */
    {"torchscript", ALL, FALSE},
    {"scale_attn_weights", GPT2, TRUE},
    {"scale_attn_by_inverse_layer_idx", GPT2, FALSE},
    {"use_sliding_window", QWEN2, FALSE},
    /* Dropout: no run applies it. arch.c reads it to say so. */
    {"resid_pdrop", GPT2, IDLE},
    {"embd_pdrop", GPT2, IDLE},
    {"attn_pdrop", GPT2, IDLE},
    {"attention_dropout", ROTARY, IDLE},
    /* Where a model comes from, and how the library runs it: the results are the same. */
    {"_name_or_path", ALL, IDLE},
    {"_commit_hash", ALL, IDLE},
    {"transformers_version", ALL, IDLE},
    {"auto_map", ALL, IDLE},
    {"use_cache", ALL, IDLE},
    {"gradient_checkpointing", ALL, IDLE},
    {"chunk_size_feed_forward", ALL, IDLE},
    {"attn_implementation", ALL, IDLE},
    {"_attn_implementation", ALL, IDLE},
    {"_attn_implementation_autoset", ALL, IDLE},
    {"_attn_implementation_internal", ALL, IDLE},
    {"experts_implementation", ALL, IDLE},
    {"_experts_implementation", ALL, IDLE},
    {"_experts_implementation_internal", ALL, IDLE},
    {"distributed_config", ALL, IDLE},
    {"compile_config", ALL, IDLE},
    {"use_bfloat16", ALL, IDLE},
    {"tf_legacy_loss", ALL, IDLE},
    {"is_decoder", ALL, IDLE},
    /* What forward() returns beside the logits. */
    {"return_dict", ALL, IDLE},
    {"output_attentions", ALL, IDLE},
    {"_output_attentions", ALL, IDLE},
    {"output_hidden_states", ALL, IDLE},
    /* Other heads than a language model's, and encoders. */
    {"id2label", ALL, IDLE},
    {"label2id", ALL, IDLE},
    {"num_labels", ALL, IDLE},
    {"problem_type", ALL, IDLE},
    {"finetuning_task", ALL, IDLE},
    {"task_specific_params", ALL, IDLE},
    {"classifier_dropout", ALL, IDLE},
    {"tie_encoder_decoder", ALL, IDLE},
    {"cross_attention_hidden_size", ALL, IDLE},
    {"summary_type", GPT2, IDLE},
    {"summary_use_proj", GPT2, IDLE},
    {"summary_activation", GPT2, IDLE},
    {"summary_proj_to_labels", GPT2, IDLE},
    {"summary_first_dropout", GPT2, IDLE},
    {"hidden_dropout", GPT2, IDLE},
    /* What generate() and the tokenizer read. */
    {"tokenizer_class", ALL, IDLE},
    {"prefix", ALL, IDLE},
    {"sep_token_id", ALL, IDLE},
    {"decoder_start_token_id", ALL, IDLE},
    {"bad_words_ids", ALL, IDLE},
    {"begin_suppress_tokens", ALL, IDLE},
    {"diversity_penalty", ALL, IDLE},
    {"do_sample", ALL, IDLE},
    {"early_stopping", ALL, IDLE},
    {"encoder_no_repeat_ngram_size", ALL, IDLE},
    {"exponential_decay_length_penalty", ALL, IDLE},
    {"forced_bos_token_id", ALL, IDLE},
    {"forced_eos_token_id", ALL, IDLE},
    {"length_penalty", ALL, IDLE},
    {"max_length", ALL, IDLE},
    {"min_length", ALL, IDLE},
    {"no_repeat_ngram_size", ALL, IDLE},
    {"num_beam_groups", ALL, IDLE},
    {"num_beams", ALL, IDLE},
    {"num_return_sequences", ALL, IDLE},
    {"output_scores", ALL, IDLE},
    {"remove_invalid_values", ALL, IDLE},
    {"repetition_penalty", ALL, IDLE},
    {"return_dict_in_generate", ALL, IDLE},
    {"suppress_tokens", ALL, IDLE},
    {"temperature", ALL, IDLE},
    {"top_k", ALL, IDLE},
    {"top_p", ALL, IDLE},
    {"typical_p", ALL, IDLE},
    /* GPT-2's table has no row for padding. Its order of the products that attention computes is the same in fp32. */
    {"pad_token_id", GPT2, IDLE},
    {"reorder_and_upcast_attn", GPT2, IDLE},
    /* Of layers that use_sliding_window, which is refused, would give a window. */
    {"sliding_window", QWEN2, IDLE},
    {"max_window_layers", QWEN2, IDLE},
    /* transformers reads it no more. */
    {"pretraining_tp", LLAMA, IDLE},
};

/* ---- what follows ------------------------------------------------------------------------------------------------ */

static const struct row *row_of(const char *key, const char *model_type) {
    unsigned family = 1;
    for (const char *const *f = families; strcmp(*f, model_type) != 0; f++)
        family <<= 1;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if ((rows[i].families & family) && strcmp(rows[i].key, key) == 0) return &rows[i];
    return NULL;
}

static bool counts_as_false(const json_t *v) {
    if (json_is_string(v)) return json_string_length(v) == 0;
    if (json_is_number(v)) return json_number_value(v) == 0;
    return !json_is_true(v) && json_array_size(v) == 0 && json_object_size(v) == 0;
}

void shore__config_keys_check(struct shore__keys *k, const char *model_type) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)k->object, key, value) {
        const struct row *row = row_of(key, model_type);
        bool other = row && (row->kind == TRUE ? !json_is_true(value) : row->kind == FALSE && !counts_as_false(value));
        if (!other) continue;
        shore__keys_refuse(k, key,
                           row->kind == TRUE        ? "only true is supported; from Python, any model trains"
                           : json_is_boolean(value) ? "only false is supported; from Python, any model trains"
                                                    : "only null is supported; from Python, any model trains");
    }
}

json_t *shore__config_keys_kept(const json_t *config, const char *model_type) {
    json_t *kept = json_object(), *value;
    const char *key;
    json_object_foreach((json_t *)config, key, value) {
        const struct row *row = row_of(key, model_type);
        if (row && row->kind == READ) continue;
        if (json_object_set(kept, key, value)) {
            json_decref(kept);
            return NULL;
        }
    }
    return kept;
}

size_t shore__config_keys_unknown(const json_t *kept, const char *model_type, char *out, size_t bytes) {
    size_t count = 0, used = 0;
    const char *key;
    json_t *value;
    *out = 0;
    json_object_foreach((json_t *)kept, key, value) {
        if (row_of(key, model_type)) continue;
        const struct shore__shown shown = shore__shown(key);
        if (used < bytes) used += (size_t)snprintf(out + used, bytes - used, "%s\"%s\"", count ? ", " : "", shown.text);
        count++;
    }
    return count;
}
