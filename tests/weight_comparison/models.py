"""Script: create tiny models of transformers and save them with that library.

``python models.py FOLDER``: FOLDER/llama, qwen3, mixtral, deepseek, gpt2, each with config.json and
safetensors (Llama in several files with an index), and FOLDER/<name>.pt with what is in memory.
"""

from __future__ import annotations

import sys
from pathlib import Path

FAMILIES = ("llama", "qwen3", "mixtral", "deepseek", "gpt2")

#: The numbers of a tiny DeepSeek, besides those of its attention heads.
DEEPSEEK_SIZES = {
    "intermediate_size": 176,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}


def main(folder: Path) -> None:
    import torch
    from transformers import (
        DeepseekV3Config,
        DeepseekV3ForCausalLM,
        GPT2Config,
        GPT2LMHeadModel,
        LlamaConfig,
        LlamaForCausalLM,
        MixtralConfig,
        MixtralForCausalLM,
        Qwen3Config,
        Qwen3ForCausalLM,
    )

    attention = {
        "hidden_size": 64,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 250,
    }
    models = {
        "llama": LlamaForCausalLM(
            LlamaConfig(intermediate_size=176, num_hidden_layers=4, **attention)
        ),
        "qwen3": Qwen3ForCausalLM(
            Qwen3Config(
                intermediate_size=176,
                num_hidden_layers=2,
                head_dim=16,
                tie_word_embeddings=True,
                **attention,
            )
        ),
        "mixtral": MixtralForCausalLM(
            MixtralConfig(
                intermediate_size=96, num_hidden_layers=2, num_local_experts=4, **attention
            )
        ),
        "deepseek": DeepseekV3ForCausalLM(
            DeepseekV3Config(
                **{**attention, "num_key_value_heads": 8},
                **DEEPSEEK_SIZES,
            )
        ),
        "gpt2": GPT2LMHeadModel(
            GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=250, n_positions=64)
        ),
    }
    generator = torch.Generator().manual_seed(7)
    for name, model in models.items():
        for (
            key,
            value,
        ) in model.state_dict().items():  # norms and biases too, which a fresh model has at 1 and 0
            if value.ndim == 1:
                value.add_(0.1 * torch.randn(value.shape, generator=generator))
            elif "norm" not in key:
                value.copy_(0.05 * torch.randn(value.shape, generator=generator))
        model.save_pretrained(folder / name, max_shard_size="300KB" if name == "llama" else "5GB")
        torch.save(model.state_dict(), folder / f"{name}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
