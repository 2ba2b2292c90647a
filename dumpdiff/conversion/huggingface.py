"""Names of Hugging Face transformers, by model type.

Sources: transformers models/{llama,qwen2,qwen3,gpt2,mixtral,qwen3_moe,deepseek_v3}/modeling_*.py,
and conversion_mapping.py for where files differ from memory; pytorch_utils.py for Conv1D.
"""

from __future__ import annotations

from collections.abc import Mapping

from .canonical import CanonicalCheckpoint
from .target_layout import Fusion, TargetLayout

_MLP = {f"mlp.{part}": f"mlp.{part}" for part in ("gate_proj", "up_proj", "down_proj")}
_LLAMA = {
    "input_norm": "input_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    **{f"attention.{part}": f"self_attn.{part}_proj" for part in "qkv"},
    "attention.out": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    **_MLP,
}
_EXPERTS = {
    "mlp.router": "mlp.gate",
    **{
        f"mlp.experts.{{}}.{part}": f"mlp.experts.{{}}.{part}"
        for part in ("gate_proj", "up_proj", "down_proj")
    },
}
_MIXTRAL = {
    "mlp.router": "block_sparse_moe.gate",
    "mlp.experts.{}.gate_proj": "block_sparse_moe.experts.{}.w1",
    "mlp.experts.{}.up_proj": "block_sparse_moe.experts.{}.w3",
    "mlp.experts.{}.down_proj": "block_sparse_moe.experts.{}.w2",
}
_SHARED = {
    f"mlp.shared_experts.{part}": f"mlp.shared_experts.{part}"
    for part in ("gate_proj", "up_proj", "down_proj")
}
_QWEN2_SHARED = {
    **{module: module.replace("experts", "expert") for module in _SHARED},
    "mlp.shared_gate": "mlp.shared_expert_gate",
}
_DEEPSEEK = {
    **_EXPERTS,
    **_SHARED,
    "attention.q_a": "self_attn.q_a_proj",
    "attention.q_norm": "self_attn.q_a_layernorm",
    "attention.q_b": "self_attn.q_b_proj",
    "attention.kv_a": "self_attn.kv_a_proj_with_mqa",
    "attention.k_norm": "self_attn.kv_a_layernorm",
    "attention.kv_b": "self_attn.kv_b_proj",
    "mlp.router.expert_bias": "mlp.gate.e_score_correction_bias",
}
_LLAMA_MODEL = {"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}

_GPT2 = {
    "input_norm": "ln_1",
    "post_attention_norm": "ln_2",
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "mlp.gate_up_proj": "mlp.c_fc",
    "mlp.down_proj": "mlp.c_proj",
}
_GPT2_MODEL = {
    "embedding": "transformer.wte",
    "position_embedding": "transformer.wpe",
    "final_norm": "transformer.ln_f",
    "head": "lm_head",
}

#: model_type -> names that it adds to those of Llama.
_ADDITIONS: Mapping[str, Mapping[str, str]] = {
    "llama": {},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
    "mixtral": _MIXTRAL,
    "qwen2_moe": {**_EXPERTS, **_QWEN2_SHARED},
    "qwen3_moe": _EXPERTS,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
}
#: model_type -> architectures of config.json.
CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}

#: model_type, and suffixes of parameters that none of the later types has. The default is Llama.
_CHARACTERISTIC_PARAMETERS = (
    ("gpt2", ("position_embedding.weight",)),
    ("deepseek_v3", (".attention.kv_b.weight", ".expert_bias")),
    ("deepseek_v2", (".attention.kv_b.weight",)),
    ("qwen2_moe", (".mlp.router.weight", ".mlp.shared_gate.weight")),
    ("qwen3_moe", (".mlp.router.weight", ".attention.q_norm.weight")),
    ("mixtral", (".mlp.router.weight",)),
    ("qwen3", (".attention.q_norm.weight",)),
    ("qwen2", (".attention.q.bias",)),
)


def detect_model_type(model: CanonicalCheckpoint) -> str:
    """Return the ``model_type`` of a model: from its settings, else by its parameters."""
    model_type = model.settings.get("model_type")
    if model_type in CLASSES:
        return str(model_type)
    for candidate, suffixes in _CHARACTERISTIC_PARAMETERS:
        if all(map(model.has_parameter, suffixes)):
            return candidate
    return "llama"


def build_layout(model_type: str) -> TargetLayout:
    """Return the layout of a model type of :data:`CLASSES`."""
    if model_type == "gpt2":
        return TargetLayout(
            "Hugging Face gpt2",
            "transformer.h.{}.",
            _GPT2,
            _GPT2_MODEL,
            fusions=(Fusion("qkv", ("q", "k", "v"), "concatenated"),),
            transposed=frozenset(set(_GPT2) - {"input_norm", "post_attention_norm"}),
        )
    return TargetLayout(
        f"Hugging Face {model_type}",
        "model.layers.{}.",
        {**_LLAMA, **_ADDITIONS[model_type]},
        _LLAMA_MODEL,
    )
