#include "model/config_keys.h"

#include <string.h>

#include "base/diag.h"
#include "base/suggest.h"

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
    unsigned families;
    enum kind kind;
    const char *keys;
} rows[] = {
    /* Read by arch.c and rope.c, and written anew by an export. */
    {ALL, READ,
     "model_type architectures vocab_size initializer_range tie_word_embeddings bos_token_id eos_token_id "
     "layer_types dtype torch_dtype quantization_config"},
    {GPT2, READ,
     "n_layer n_embd n_head n_inner n_positions n_ctx num_hidden_layers hidden_size num_attention_heads "
     "max_position_embeddings activation_function layer_norm_epsilon"},
    {ROTARY, READ,
     "num_hidden_layers hidden_size num_attention_heads num_key_value_heads head_dim intermediate_size "
     "max_position_embeddings hidden_act rms_norm_eps pad_token_id rope_theta rope_scaling rope_parameters "
     "partial_rotary_factor original_max_position_embeddings"},
    {LLAMA, READ, "attention_bias mlp_bias"},
    {MISTRAL, READ, "sliding_window"},
    /* Layers, masks, weights or losses of another kind. */
    {ALL, TRUE, "is_causal"},
    {ALL, FALSE,
     "is_encoder_decoder add_cross_attention per_layer_config pruned_heads transformers_weights "
     " fusion_config"},
    /* transformers 4 trains copies of tied weights with it. */
    {ALL, FALSE, "torchscript"},
    {GPT2, TRUE, "scale_attn_weights"},
    {GPT2, FALSE, "scale_attn_by_inverse_layer_idx"},
    {QWEN2, FALSE, "use_sliding_window"},
    /* Dropout: no run applies it. arch.c reads it to say so. */
    {GPT2, IDLE, "resid_pdrop embd_pdrop attn_pdrop"},
    {ROTARY, IDLE, "attention_dropout"},
    /* Where a model comes from, and how the library runs it: the results are the same. */
    {ALL, IDLE,
     "_name_or_path _commit_hash transformers_version auto_map use_cache gradient_checkpointing "
     "chunk_size_feed_forward attn_implementation _attn_implementation _attn_implementation_autoset "
     "_attn_implementation_internal experts_implementation _experts_implementation "
     "_experts_implementation_internal distributed_config compile_config use_bfloat16 tf_legacy_loss is_decoder"},
    /* What forward() returns beside the logits. */
    {ALL, IDLE, "return_dict output_attentions _output_attentions output_hidden_states"},
    /* Other heads than a language model's, and encoders. */
    {ALL, IDLE,
     "id2label label2id num_labels problem_type finetuning_task task_specific_params classifier_dropout "
     "tie_encoder_decoder cross_attention_hidden_size"},
    {GPT2, IDLE,
     "summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout hidden_dropout"},
    /* What generate() and the tokenizer read. */
    {ALL, IDLE,
     "tokenizer_class prefix sep_token_id decoder_start_token_id bad_words_ids begin_suppress_tokens "
     "diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty "
     "forced_bos_token_id forced_eos_token_id length_penalty max_length min_length no_repeat_ngram_size "
     "num_beam_groups num_beams num_return_sequences output_scores remove_invalid_values repetition_penalty "
     "return_dict_in_generate suppress_tokens temperature top_k top_p typical_p"},
    /* GPT-2's table has no row for padding. Its order of the products that attention computes is the same in fp32. */
    {GPT2, IDLE, "pad_token_id reorder_and_upcast_attn"},
    /* Of layers that use_sliding_window, which is refused, would give a window. */
    {QWEN2, IDLE, "sliding_window max_window_layers"},
    /* transformers reads it no more. */
    {LLAMA, IDLE, "pretraining_tp"},
};

/* ---- what follows ------------------------------------------------------------------------------------------------ */

static const struct row *row_of(const char *key, const char *model_type) {
    unsigned family = 1;
    for (const char *const *f = families; strcmp(*f, model_type) != 0; f++)
        family <<= 1;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if ((rows[i].families & family) && shore__has_word(rows[i].keys, key)) return &rows[i];
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
    size_t count = 0;
    const char *key;
    json_t *value;
    *out = 0;
    json_object_foreach((json_t *)kept, key, value) {
        if (row_of(key, model_type)) continue;
        shore__append(out, bytes, "%s\"%s\"", count++ ? ", " : "", shore__shown(key).text);
    }
    return count;
}
