#include "model/config_keys.h"

#include <string.h>

#include "base/diag.h"
#include "base/suggest.h"
#include "model/families/families.h"

/* ---- keys of all families --------------------------------------------------------------------------------------- */

/* With each family's own: every key of transformers' configurations, versions 4 and 5. */
static const struct shore__key_row common[] = {
    {SHORE__KEY_READ,
     "model_type architectures vocab_size initializer_range tie_word_embeddings bos_token_id eos_token_id "
     "layer_types dtype torch_dtype quantization_config"},
    /* Layers, masks, weights or losses of another kind. */
    {SHORE__KEY_TRUE, "is_causal"},
    {SHORE__KEY_FALSE, "is_encoder_decoder add_cross_attention per_layer_config pruned_heads "
                       "transformers_weights fusion_config"},
    /* transformers 4 trains copies of tied weights with it. */
    {SHORE__KEY_FALSE, "torchscript"},
    /* Where a model comes from, and how the library runs it: the results are the same. */
    {SHORE__KEY_IDLE,
     "_name_or_path _commit_hash transformers_version auto_map use_cache gradient_checkpointing "
     "chunk_size_feed_forward attn_implementation _attn_implementation _attn_implementation_autoset "
     "_attn_implementation_internal experts_implementation _experts_implementation "
     "_experts_implementation_internal distributed_config compile_config use_bfloat16 tf_legacy_loss is_decoder"},
    /* What forward() returns beside the logits. */
    {SHORE__KEY_IDLE, "return_dict output_attentions _output_attentions output_hidden_states"},
    /* Other heads than a language model's, and encoders. */
    {SHORE__KEY_IDLE,
     "id2label label2id num_labels problem_type finetuning_task task_specific_params classifier_dropout "
     "tie_encoder_decoder cross_attention_hidden_size"},
    /* What generate() and the tokenizer read. */
    {SHORE__KEY_IDLE,
     "tokenizer_class prefix sep_token_id decoder_start_token_id bad_words_ids begin_suppress_tokens "
     "diversity_penalty do_sample early_stopping encoder_no_repeat_ngram_size exponential_decay_length_penalty "
     "forced_bos_token_id forced_eos_token_id length_penalty max_length min_length no_repeat_ngram_size "
     "num_beam_groups num_beams num_return_sequences output_scores remove_invalid_values repetition_penalty "
     "return_dict_in_generate suppress_tokens temperature top_k top_p typical_p"},
};

/* Of families whose configuration follows Llama's. */
static const struct shore__key_row rotary[] = {
    {SHORE__KEY_READ,
     "num_hidden_layers hidden_size num_attention_heads num_key_value_heads head_dim intermediate_size "
     "max_position_embeddings hidden_act rms_norm_eps pad_token_id rope_theta rope_scaling rope_parameters "
     "partial_rotary_factor original_max_position_embeddings"},
    {SHORE__KEY_IDLE, "attention_dropout"}, /* no run applies it: it is read to say so */
    {SHORE__KEY_IDLE, "pretraining_tp"},    /* transformers reads it no more */
};

/* ---- what follows ------------------------------------------------------------------------------------------------ */

static const struct shore__key_row *find(const struct shore__key_row *rows, size_t n, const char *key) {
    for (size_t i = 0; i < n; i++)
        if (shore__has_word(rows[i].keys, key)) return &rows[i];
    return NULL;
}

/* A family's own row goes first. */
static const struct shore__key_row *row_of(const char *key, const struct shore__family *f) {
    const struct shore__key_row *row = find(f->keys, f->nkeys, key);
    if (!row && f->rotary) row = find(rotary, SHORE__COUNT(rotary), key);
    return row ? row : find(common, SHORE__COUNT(common), key);
}

static bool counts_as_false(const json_t *v) {
    if (json_is_string(v)) return json_string_length(v) == 0;
    if (json_is_number(v)) return json_number_value(v) == 0;
    return !json_is_true(v) && json_array_size(v) == 0 && json_object_size(v) == 0;
}

void shore__config_keys_check(struct shore__keys *k, const struct shore__family *family) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)k->object, key, value) {
        const struct shore__key_row *row = row_of(key, family);
        bool other = row && (row->kind == SHORE__KEY_TRUE ? !json_is_true(value)
                                                          : row->kind == SHORE__KEY_FALSE && !counts_as_false(value));
        if (!other) continue;
        shore__keys_refuse(k, key,
                           row->kind == SHORE__KEY_TRUE ? "only true is supported; from Python, any model trains"
                           : json_is_boolean(value)     ? "only false is supported; from Python, any model trains"
                                                        : "only null is supported; from Python, any model trains");
    }
}

/* Of a multimodal model: all of it, with what is kept of text_config. */
static json_t *kept_around(const json_t *config, const json_t *text, const struct shore__family *family) {
    json_t *kept = json_copy((json_t *)config);
    json_object_del(kept, "quantization_config");
    json_object_del(kept, "dtype");
    json_object_del(kept, "torch_dtype");
    if (!json_object_set_new(kept, "text_config", shore__config_keys_kept(text, family))) return kept;
    json_decref(kept);
    return NULL;
}

json_t *shore__config_keys_kept(const json_t *config, const struct shore__family *family) {
    const json_t *text = json_object_get(config, "text_config");
    if (json_is_object(text)) return kept_around(config, text, family);
    json_t *kept = json_object(), *value;
    const char *key;
    json_object_foreach((json_t *)config, key, value) {
        const struct shore__key_row *row = row_of(key, family);
        if (row && row->kind == SHORE__KEY_READ) continue;
        if (json_object_set(kept, key, value)) {
            json_decref(kept);
            return NULL;
        }
    }
    return kept;
}

size_t shore__config_keys_unknown(const json_t *kept, const struct shore__family *family, char *out, size_t bytes) {
    size_t count = 0;
    const char *key;
    json_t *value, *text = json_object_get(kept, "text_config");
    *out = 0;
    json_object_foreach(text ? text : (json_t *)kept, key, value) {
        if (row_of(key, family)) continue;
        shore__append(out, bytes, "%s\"%s\"", count++ ? ", " : "", shore__shown(key).text);
    }
    return count;
}
