"""Small models of several kinds, and batches for them."""

import torch
from torch import nn

VOCAB = 96
HANGS_SECONDS = 900  # of a process that a test starts: one on a busy machine ends before


def gpt2(dropout=0.0, layers=3):
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB,
            n_embd=48,
            n_layer=layers,
            n_head=4,
            n_positions=32,
            attn_pdrop=dropout,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def llama(**changes):
    from transformers import LlamaConfig, LlamaForCausalLM

    usual = {
        "vocab_size": VOCAB,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return LlamaForCausalLM(LlamaConfig(**{**usual, **changes}))


def deepseek(layers=2):
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    return DeepseekV3ForCausalLM(
        DeepseekV3Config(
            vocab_size=96,
            hidden_size=32,
            intermediate_size=48,
            moe_intermediate_size=16,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=4,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            q_lora_rank=16,
            kv_lora_rank=8,
            qk_nope_head_dim=8,
            qk_rope_head_dim=8,
            v_head_dim=8,
            initializer_range=0.2,
        )
    )


def bert():
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            vocab_size=VOCAB,
            hidden_size=48,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=80,
            max_position_embeddings=64,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCAB,
            d_model=48,
            d_kv=12,
            d_ff=80,
            num_layers=2,
            num_decoder_layers=2,
            num_heads=4,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        )
    )


class Cnn(nn.Module):
    """No language model: convolutions, norms with running statistics, a scalar."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.stages = nn.Sequential(
            *[nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(3)]
        )
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.stages(self.stem(x)).mean((2, 3)) * self.scale)


LANGUAGE = {"gpt2": gpt2, "llama": llama, "bert": bert, "t5": t5}


class Reads(nn.Module):
    """Reads values in forward, so that it cannot be traced."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        return self.layers[0](x) * float(x.detach().numpy().sum())


def check_gradients(model, plain):
    """Each parameter has the gradient that PyTorch's has, which a norm of all would not say."""
    for (name, p), q in zip(model.named_parameters(), plain.parameters()):
        assert (p.grad is None) == (q.grad is None), name
        if q.grad is not None:
            bound = 1e-5 * max(q.grad.norm().item(), 1e-3)
            assert (p.grad - q.grad).norm().item() <= bound, name


def tokens(n=6, batch=2, length=12, seed=7):
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(n):
        x = torch.randint(1, VOCAB, (batch, length), generator=g)
        out.append({"input_ids": x, "labels": x.clone()})
    return out
