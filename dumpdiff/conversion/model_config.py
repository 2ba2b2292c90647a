"""What a model is, as its configuration says and its shapes do; and how each framework spells it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from .canonical import CanonicalCheckpoint
from .huggingface import CLASSES

#: Fact -> its names in config.json, those of GPT-2's, and in Megatron's arguments; '' where it has none.
_SPELLINGS: Mapping[str, tuple[str, str, str]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "hidden_size"),
    "heads": ("num_attention_heads", "n_head", "num_attention_heads"),
    "groups": ("num_key_value_heads", "", "num_query_groups"),
    "head_size": ("head_dim", "", "kv_channels"),
    "ffn": ("intermediate_size", "n_inner", "ffn_hidden_size"),
    "vocabulary": ("vocab_size", "vocab_size", "vocab_size"),
    "positions": ("max_position_embeddings", "n_positions", "max_position_embeddings"),
    "norm_epsilon": ("rms_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "rope_theta": ("rope_theta", "", "rotary_base"),
    "experts_ffn": ("moe_intermediate_size", "", "moe_ffn_hidden_size"),
    "experts_per_token": ("num_experts_per_tok", "", "moe_router_topk"),
    "expert_groups": ("n_group", "", "moe_router_num_groups"),
    "chosen_groups": ("topk_group", "", "moe_router_group_topk"),
    "routed_scale": ("routed_scaling_factor", "", "moe_router_topk_scaling_factor"),
    "shared_ffn": ("shared_expert_intermediate_size", "", "moe_shared_expert_intermediate_size"),
    "q_latent": ("q_lora_rank", "", "q_lora_rank"),
    "kv_latent": ("kv_lora_rank", "", "kv_lora_rank"),
    "rope_size": ("qk_rope_head_dim", "", "qk_pos_emb_head_dim"),
    "nope_size": ("qk_nope_head_dim", "", "qk_head_dim"),
    "value_size": ("v_head_dim", "", "v_head_dim"),
}
#: How a kind of model spells its number of experts, and what it calls the width of one where others differ.
_EXPERTS = {
    "mixtral": "num_local_experts",
    "deepseek_v2": "n_routed_experts",
    "deepseek_v3": "n_routed_experts",
}


def collect_facts(model: CanonicalCheckpoint) -> dict[str, Any]:
    """Fact -> value, of the table above, ``experts``, ``dense_layers`` and ``tied``; what is unknown is missing."""
    said = dict(model.settings)
    if isinstance(rope := said.get("rope_parameters"), Mapping):  # transformers 5
        said.setdefault("rope_theta", rope.get("rope_theta"))
    found = {}
    for fact, spellings in _SPELLINGS.items():
        values = [
            said[name] for name in spellings if name and isinstance(said.get(name), (int, float))
        ]
        if values:
            found[fact] = values[0]
    return found | {fact: value for fact, value in _measured(model).items() if value is not None}


def _measured(model: CanonicalCheckpoint) -> dict[str, Any]:
    """What shapes say."""
    numbers = model.numbers
    known = {"layers": model.n_layers, "heads": numbers.heads, "groups": numbers.groups}
    known["tied"] = not model.has_parameter("head.weight")
    for fact, ending, axis in (
        ("vocabulary", "embedding.weight", 0),
        ("hidden", "embedding.weight", 1),
        ("positions", "position_embedding.weight", 0),
        ("experts", "mlp.router.weight", 0),
        ("ffn", ".mlp.down_proj.weight", 1),
        ("experts_ffn", ".mlp.experts.0.down_proj.weight", 1),
        ("shared_ffn", ".mlp.shared_experts.down_proj.weight", 1),
        ("q_latent", ".attention.q_b.weight", 1),
        ("kv_latent", ".attention.kv_b.weight", 1),
    ):
        shapes = [
            rows.shape
            for path, rows in model.parameters.items()
            if path == ending or path.endswith(ending)
        ]
        if ending == "embedding.weight":
            shapes = [model.parameters[ending].shape] if ending in model.parameters else []
        if shapes:
            known[fact] = shapes[0][axis]
    if "experts" in known:
        routed = [
            model.parameters.get(f"layers.{n}.mlp.router.weight") is not None
            for n in range(model.n_layers)
        ]
        known["dense_layers"] = routed.index(True)
    query = model.parameters.get("layers.0.attention.q.weight")
    if query is not None and numbers.heads and not model.has_mla:
        known["head_size"] = query.shape[0] // numbers.heads
    return known


def build_config(model: CanonicalCheckpoint, kind: str, dtype: str | None) -> dict[str, Any] | None:
    """``config.json``: the source's, where it has one of transformers, else what is known; None without heads."""
    found = collect_facts(model)
    if model.settings.get("model_type"):
        made = {
            **model.settings,
            "vocab_size": found["vocabulary"],
            "tie_word_embeddings": found["tied"],
        }
        if dtype:
            made |= {name: dtype for name in ("dtype", "torch_dtype") if name in made}
        return made
    if "heads" not in found:
        return None
    column = 1 if kind == "gpt2" else 0
    made = {"architectures": [CLASSES[kind]], "model_type": kind}
    made |= {
        names[column]: found[fact]
        for fact, names in _SPELLINGS.items()
        if names[column] and fact in found
    }
    made |= {"tie_word_embeddings": found["tied"], "torch_dtype": dtype or _usual_dtype(model)}
    if kind == "gpt2":
        return made
    made["hidden_act"] = "silu"
    made["attention_bias"] = model.has_parameter(".attention.q.bias")
    if "experts" in found:
        made[_EXPERTS.get(kind, "num_experts")] = found["experts"]
        if kind == "mixtral":
            made["intermediate_size"] = made.pop("moe_intermediate_size")
        if kind in ("deepseek_v2", "deepseek_v3"):
            made["first_k_dense_replace"] = found["dense_layers"]
            made["n_shared_experts"] = found.get("shared_ffn", 0) // found["experts_ffn"]
            made.pop("shared_expert_intermediate_size", None)
    if model.has_mla:
        made |= {"q_lora_rank": found.get("q_latent"), "num_key_value_heads": found["heads"]}
        made.pop("head_dim", None)
    return made


def build_arguments(
    model: CanonicalCheckpoint, tensor: int, stages: int, padded: int, transformer_engine: bool
) -> dict[str, Any]:
    """What Megatron's ``args`` say of the model: names of megatron/training/arguments.py."""
    found = collect_facts(model)
    made = {names[2]: found[fact] for fact, names in _SPELLINGS.items() if fact in found}
    made.setdefault("ffn_hidden_size", made.get("moe_ffn_hidden_size"))
    learned = "position_embedding.weight" in model.parameters
    made |= {
        "tensor_model_parallel_size": tensor,
        "pipeline_model_parallel_size": stages,
        "vocab_size": model.numbers.vocabulary,
        "padded_vocab_size": padded,
        "group_query_attention": not model.has_mla and found.get("groups") != found.get("heads"),
        "untie_embeddings_and_output_weights": not found["tied"],
        "swiglu": model.has_parameter("gate_proj.weight"),
        "add_bias_linear": model.has_parameter(".attention.out.bias"),
        "add_qkv_bias": model.has_parameter(".attention.q.bias"),
        "normalization": "LayerNorm" if model.has_parameter("final_norm.bias") else "RMSNorm",
        "position_embedding_type": "learned_absolute" if learned else "rope",
        "qk_layernorm": model.has_parameter(".attention.q_norm.weight"),
        "multi_latent_attention": model.has_mla,
        "transformer_impl": "transformer_engine" if transformer_engine else "local",
        "use_checkpoint_args": False,
    }
    if "experts" in found:
        dense = found["dense_layers"]
        made |= {
            "num_experts": found["experts"],
            "moe_layer_freq": [0] * dense + [1] * (found["layers"] - dense),
            "moe_router_enable_expert_bias": model.has_parameter(".expert_bias"),
        }
    return made


def list_unknown_settings(model: CanonicalCheckpoint) -> tuple[str, ...]:
    """What computes the same only if it is set, and is not known: to be said beside a configuration."""
    found = collect_facts(model)
    wanted = ["norm_epsilon"]
    if "position_embedding.weight" not in model.parameters:
        wanted.append("rope_theta")
    if "experts" in found:
        wanted.append("experts_per_token")
    return tuple(_SPELLINGS[fact][0] for fact in wanted if fact not in found)


def _usual_dtype(model: CanonicalCheckpoint) -> str:
    """Of most parameters."""
    return Counter(rows.dtype for rows in model.parameters.values()).most_common(1)[0][0]
