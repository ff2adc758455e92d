#!/usr/bin/env python3
"""Expected rotary frequencies: what transformers makes of configurations, as a header for tests/unit/model/test_rope.c.

    pip install torch 'transformers==5.*'
    python3 tests/numeric/make_rope.py | clang-format >tests/unit/model/rope_expected.h
"""
import json

import transformers
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)
LONG = dict(type="longrope", short_factor=[1.0, 1.1, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0],
            long_factor=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
CASES = [
    {},
    dict(rope_theta=500000.0, rope_scaling=dict(type="linear", factor=2.5)),
    dict(rope_parameters=dict(rope_type="linear", factor=2.5, rope_theta=500000.0)),
    dict(rope_scaling=dict(type="dynamic", factor=2.0)),
    dict(rope_parameters=dict(rope_type="dynamic", factor=2.0, rope_theta=70000.0)),
    dict(rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                           original_max_position_embeddings=32)),
    dict(rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)),
    dict(rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=32)),
    dict(rope_parameters=dict(YARN, rope_theta=500000.0)),
    dict(rope_scaling=YARN, original_max_position_embeddings=32),
    dict(rope_scaling=dict(rope_type="yarn", factor=8.0), original_max_position_embeddings=16),
    dict(rope_scaling=dict(rope_type="yarn", factor=8.0)),
    dict(rope_scaling=dict(YARN, factor=None)),
    dict(rope_scaling=dict(YARN, attention_factor=1.7)),
    dict(rope_scaling=dict(YARN, mscale=0.7, mscale_all_dim=1.3)),
    dict(rope_scaling=dict(YARN, mscale=0.7)),
    dict(rope_scaling=dict(YARN, beta_fast=6, beta_slow=0.5)),
    dict(rope_scaling=dict(YARN, beta_fast=4.5, beta_slow=2, truncate=False)),
    dict(rope_scaling=dict(YARN, truncate=None)),
    dict(rope_scaling=dict(YARN, factor=1.0, original_max_position_embeddings=128)),
    dict(rope_scaling=LONG, original_max_position_embeddings=32),
    dict(rope_scaling=dict(LONG, factor=9.0)),
    dict(rope_scaling=dict(LONG, attention_factor=1.3), original_max_position_embeddings=64),
]
SIZES = dict(model_type="llama", hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
             vocab_size=260, max_position_embeddings=128)

print(f"""/* Made by tests/numeric/make_rope.py with transformers {transformers.__version__}. */
#define SIZES {json.dumps(json.dumps(SIZES))}
static const struct {{
    const char *config;
    float scale, frequency[8];
}} expected[] = {{""")
for case in CASES:
    text = json.dumps(case)
    config = LlamaConfig.from_dict(dict(SIZES, **json.loads(text)))
    config.validate_rope()
    rotary = LlamaRotaryEmbedding(config)
    values = ", ".join(f"{v:.9g}" for v in rotary.inv_freq.tolist())
    print(f"    {{{json.dumps(text)}, {rotary.attention_scaling:.9g}, {{{values}}}}},")
print("};")
