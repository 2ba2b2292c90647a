"""Tiny models of transformers with random weights, one for each family.

Every weight is random, norms and biases included: a norm of ones would be equal to any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

_DECODER = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 250,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
_LATENT = {
    "num_key_value_heads": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
_PLAIN = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": 250}
_LLAMA3_SCALING = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

#: Family -> class of transformers, class of its configuration, numbers.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Llama 2": ("LlamaForCausalLM", "LlamaConfig", _DECODER),
    "Llama 3": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**_DECODER, "rope_parameters": _LLAMA3_SCALING, "max_position_embeddings": 131072},
    ),
    "Qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _DECODER),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**_DECODER, "head_dim": 8}),
    "Qwen3-MoE": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {**_DECODER, **_EXPERTS, "head_dim": 8, "num_experts": 4},
    ),
    "Mixtral": ("MixtralForCausalLM", "MixtralConfig", {**_DECODER, "num_local_experts": 4}),
    "DeepSeek V2": (
        "DeepseekV2ForCausalLM",
        "DeepseekV2Config",
        {**_DECODER, **_EXPERTS, **_LATENT},
    ),
    "DeepSeek V3": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        {
            **_DECODER,
            **_EXPERTS,
            **_LATENT,
            "n_group": 2,
            "topk_group": 1,
            "num_nextn_predict_layers": 0,
        },
    ),
    "GLM-4": ("Glm4ForCausalLM", "Glm4Config", {**_DECODER, "head_dim": 8}),
    "GLM-4-MoE": (
        "Glm4MoeForCausalLM",
        "Glm4MoeConfig",
        {
            **_DECODER,
            **_EXPERTS,
            "head_dim": 8,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
        },
    ),
    "Gemma 2": ("Gemma2ForCausalLM", "Gemma2Config", {**_DECODER, "head_dim": 8}),
    "Gemma 3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**_DECODER, "head_dim": 8}),
    "Phi-3": ("Phi3ForCausalLM", "Phi3Config", _DECODER),
    "GPT-2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 64, "n_layer": 3, "n_head": 8, "vocab_size": 250, "n_positions": 64},
    ),
    "GPT-NeoX": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**_PLAIN, "intermediate_size": 96}),
    "Falcon": ("FalconForCausalLM", "FalconConfig", _PLAIN),
    "Falcon (groups)": (
        "FalconForCausalLM",
        "FalconConfig",
        {**_PLAIN, "new_decoder_architecture": True, "num_kv_heads": 4},
    ),
    "BLOOM": (
        "BloomForCausalLM",
        "BloomConfig",
        {"hidden_size": 64, "n_layer": 3, "n_head": 8, "vocab_size": 250},
    ),
    "Starcoder2": ("Starcoder2ForCausalLM", "Starcoder2Config", _DECODER),
    "Cohere": ("CohereForCausalLM", "CohereConfig", _DECODER),
    "OLMo2": ("Olmo2ForCausalLM", "Olmo2Config", _DECODER),
    "gpt-oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            **_DECODER,
            "head_dim": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 4,  # shorter than the tokens of the comparison of logits
        },
    ),
    "Mamba 2": (
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_heads": 8,
            "head_dim": 16,
            "n_groups": 2,
            "state_size": 16,
            "vocab_size": 250,
        },
    ),
    "ViT": (
        "ViTForImageClassification",
        "ViTConfig",
        {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 8,
            "image_size": 32,
            "patch_size": 8,
        },
    ),
    "Qwen3-Next": (
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {
            **_DECODER,
            **_EXPERTS,
            "num_hidden_layers": 8,  # every fourth has attention
            "head_dim": 16,
            "num_experts": 4,
            "shared_expert_intermediate_size": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
    ),
    "Qwen2.5-VL": (
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2_5_VLConfig",
        {
            "text_config": _DECODER,
            "vision_config": {
                "depth": 3,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_heads": 4,
                "out_hidden_size": 64,
                "patch_size": 4,
                "window_size": 16,
                "fullatt_block_indexes": [1],
            },
        },
    ),
    "T5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "d_model": 64,
            "d_kv": 8,
            "d_ff": 96,
            "num_layers": 3,
            "num_heads": 8,
            "vocab_size": 250,
            "decoder_start_token_id": 0,
        },
    ),
}

_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 40.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
_PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
#: Name -> family, and the numbers that are other ones: what converted arguments must say.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 2, linear RoPE": ("Llama 2", {"rope_parameters": _LINEAR}),
    "Llama 2, biases everywhere": ("Llama 2", {"attention_bias": True, "mlp_bias": True}),
    "Llama 2, wide heads": ("Llama 2", {"head_dim": 16}),
    "Llama 3, tied, another factor": (
        "Llama 3",
        {"rope_parameters": {**_LLAMA3_SCALING, "factor": 32.0}, "tie_word_embeddings": True},
    ),
    "Qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}),
    "Qwen2, windows in some layers": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "Mixtral, windows in all layers": ("Mixtral", {"sliding_window": 4}),
    "Phi-3, windows in all layers": ("Phi-3", {"sliding_window": 4}),
    "Phi-3, half of each head rotated": ("Phi-3", {"rope_parameters": _PARTIAL}),
    "Starcoder2, windows, untied": (
        "Starcoder2",
        {"sliding_window": 4, "tie_word_embeddings": False},
    ),
    "Qwen3-MoE, weights that add up to one": ("Qwen3-MoE", {"norm_topk_prob": True}),
    "Qwen3-MoE, every second layer dense": ("Qwen3-MoE", {"decoder_sparse_step": 2}),
    "Qwen3-MoE, one layer dense": ("Qwen3-MoE", {"mlp_only_layers": [1]}),
    "DeepSeek V2, queries not compressed": ("DeepSeek V2", {"q_lora_rank": None}),
    "DeepSeek V2, groups that are not read": ("DeepSeek V2", {"n_group": 2, "topk_group": 1}),
    "DeepSeek V2, YaRN": (
        "DeepSeek V2",
        {
            "rope_parameters": {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
            "routed_scaling_factor": 16.0,
        },
    ),
    "DeepSeek V3, YaRN": (
        "DeepSeek V3",
        {"rope_parameters": _YARN, "routed_scaling_factor": 2.5, "n_shared_experts": 2},
    ),
    "GLM-4-MoE, two dense layers, groups": (
        "GLM-4-MoE",
        {"first_k_dense_replace": 2, "n_group": 2, "topk_group": 1, "attention_bias": True},
    ),
    "gpt-oss, no windows": ("gpt-oss", {"layer_types": ["full_attention"] * 3}),
    "GPT-2, another width": ("GPT-2", {"n_inner": 80}),
    "Mamba 2, tied, one group": ("Mamba 2", {"tie_word_embeddings": True, "n_groups": 1}),
}

_SEED = 19
_NORM_SPREAD, _WEIGHT_SPREAD = 0.1, 0.05  #: standard deviations
#: Of the convolution of a mixer, and what is added to the bias of its time step: with less, the
#: logits would hardly depend on the states.
_KERNEL_SPREAD, _STEP_OFFSET = 1.0, 4.0


def build_model(family: str) -> Any:
    """Return the tiny model of a family or variant, with random weights, in float32."""
    import torch
    import transformers

    family, changes = VARIANTS.get(family, (family, {}))
    class_name, config_name, numbers = MODELS[family]
    numbers = {**numbers, **changes}
    config = getattr(transformers, config_name)(**numbers)
    torch.manual_seed(_SEED)
    model = getattr(transformers, class_name)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("dt_bias"):
                parameter.add_(_STEP_OFFSET)
            if name.endswith("conv1d.weight"):
                parameter.copy_(_KERNEL_SPREAD * torch.randn(parameter.shape))
            elif parameter.ndim == 1:
                parameter.add_(_NORM_SPREAD * torch.randn(parameter.shape))
            elif "norm" not in name:
                parameter.copy_(_WEIGHT_SPREAD * torch.randn(parameter.shape))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(_NORM_SPREAD * torch.randn(buffer.shape))
    return model


def list_families(names: Iterable[str], wanted: list[str]) -> Iterator[str]:
    """Yield the names that contain one of ``wanted``; all without."""
    for family in names:
        if not wanted or any(part.lower() in family.lower() for part in wanted):
            yield family


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """Return the weights in the safetensors files of a folder by name."""
    from safetensors.numpy import load_file

    weights: dict[str, np.ndarray] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
    return weights
