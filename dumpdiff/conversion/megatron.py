"""Names of Megatron-core, with local or Transformer Engine layers, and of Megatron before it.

Sources: Megatron-LM megatron/core/models/gpt/gpt_layer_specs.py, core/transformer/{attention,mlp,
multi_latent_attention}.py, core/transformer/moe/{experts,shared_experts}.py, and
megatron/legacy/model.
"""

from __future__ import annotations

from dataclasses import replace

from . import mamba
from .canonical import CanonicalCheckpoint
from .target_layout import Fusion, TargetLayout

#: Names in one layer; MindSpore Transformers has them too.
BLOCK = {
    "input_norm": "input_layernorm",
    "post_attention_norm": "pre_mlp_layernorm",
    "attention.qkv": "self_attention.linear_qkv",
    "attention.out": "self_attention.linear_proj",
    "attention.q_norm": "self_attention.q_layernorm",
    "attention.k_norm": "self_attention.k_layernorm",
    "mlp.gate_up_proj": "mlp.linear_fc1",
    "mlp.down_proj": "mlp.linear_fc2",
    "mlp.router": "mlp.router",
    "mlp.shared_experts.gate_up_proj": "mlp.shared_experts.linear_fc1",
    "mlp.shared_experts.down_proj": "mlp.shared_experts.linear_fc2",
}
#: Names outside the layers; MindSpore Transformers has them too.
MODEL = {
    "embedding": "embedding.word_embeddings",
    "position_embedding": "embedding.position_embeddings",
    "final_norm": "decoder.final_layernorm",
    "head": "output_layer",
}
_LOCAL = {
    **BLOCK,
    "attention.sinks": "self_attention.core_attention.softmax_offset",
    "mlp.shared_gate.weight": "mlp.shared_experts.gate_weight",
    "mlp.experts.{}.gate_up_proj": "mlp.experts.local_experts.{}.linear_fc1",
    "mlp.experts.{}.down_proj": "mlp.experts.local_experts.{}.linear_fc2",
}
_MLA = {
    "attention.q": "self_attention.linear_q_proj",
    "attention.q_a": "self_attention.linear_q_down_proj",
    "attention.q_b": "self_attention.linear_q_up_proj",
    "attention.kv_a": "self_attention.linear_kv_down_proj",
    "attention.kv_b": "self_attention.linear_kv_up_proj",
    "attention.k_norm": "self_attention.kv_layernorm",
}
_TE_EXPERTS = {
    "mlp.experts.{}.gate_up_proj.weight": "mlp.experts.linear_fc1.weight{}",
    "mlp.experts.{}.gate_up_proj.bias": "mlp.experts.linear_fc1.bias{}",
    "mlp.experts.{}.down_proj.weight": "mlp.experts.linear_fc2.weight{}",
    "mlp.experts.{}.down_proj.bias": "mlp.experts.linear_fc2.bias{}",
}
#: Norms that Transformer Engine keeps in the linear layer that follows them. The input norm of MLA
#: and the norm before a MoE layer are modules of their own.
_TE_INPUT = {
    f"input_norm.{leaf}": f"self_attention.linear_qkv.layer_norm_{leaf}"
    for leaf in ("weight", "bias")
}
_TE_MLP = {
    f"post_attention_norm.{leaf}": f"mlp.linear_fc1.layer_norm_{leaf}"
    for leaf in ("weight", "bias")
}
_TE_MLA = {
    "attention.q_norm.weight": "self_attention.linear_q_up_proj.layer_norm_weight",
    "attention.k_norm.weight": "self_attention.linear_kv_up_proj.layer_norm_weight",
}
#: Layers of multi-token prediction: core/transformer/multi_token_prediction.py.
_PREDICTIONS = {
    "enorm": "mtp.layers.{}.enorm",
    "hnorm": "mtp.layers.{}.hnorm",
    "eh_proj": "mtp.layers.{}.eh_proj",
    "final_norm": "mtp.layers.{}.final_layernorm",
    "block": "mtp.layers.{}.transformer_layer",
}
_GATE_UP = Fusion("gate_up_proj", ("gate_proj", "up_proj"), "concatenated")
_QKV = Fusion("qkv", ("q", "k", "v"), "grouped")


#: MambaModel has layers of Transformer Engine only: models/mamba/mamba_layer_specs.py.
_MAMBA = {
    "norm.weight": "mixer.in_proj.layer_norm_weight",
    "mixer": "mixer",
    "mixer.in_proj": "mixer.in_proj",
    "mixer.conv1d": "mixer.conv1d",
    "mixer.norm": "mixer.norm",
    "mixer.out_proj": "mixer.out_proj",
}
_MAMBA_MODEL = {**MODEL, "final_norm": "decoder.final_norm"}
_MAMBA_FUSIONS = tuple(
    Fusion(fused, parts, "concatenated", r".*\bmixer") for fused, parts in mamba.PARTS.items()
)


def build_core_layout(model: CanonicalCheckpoint, transformer_engine: bool) -> TargetLayout:
    """Return the layout of Megatron-core for this model."""
    if model.has_mixers:
        return TargetLayout(
            "Megatron-core", "decoder.layers.{}.", _MAMBA, _MAMBA_MODEL, fusions=_MAMBA_FUSIONS
        )
    down_projections = frozenset({"q_a", "kv_a"})  # of multi-head latent attention
    block = dict(_LOCAL)
    if model.has_mla:
        block |= _MLA
    if transformer_engine:
        block |= _TE_EXPERTS
        block |= _TE_MLA if model.has_mla else _TE_INPUT
    return TargetLayout(
        "Megatron-core",
        "decoder.layers.{}.",
        block,
        MODEL,
        dense=_TE_MLP if transformer_engine else {},
        fusions=(_QKV, _GATE_UP),
        replicated=down_projections if transformer_engine else frozenset(),
        sharded_by_rows=frozenset() if transformer_engine else down_projections,
        predictions=_PREDICTIONS,
    )


def build_distributed_layout(model: CanonicalCheckpoint, transformer_engine: bool) -> TargetLayout:
    """Return the layout of Megatron-core's distributed checkpoints for this model.

    Norms of local layers have the names that they have with Transformer Engine, except next to
    latent attention: ``sharded_state_dict_keys_map`` of the specs of layers. The parts of a mixer's
    weights are tensors of their own.
    """
    layout = build_core_layout(model, transformer_engine)
    if model.has_mixers:
        return replace(layout, block={**_MAMBA, **mamba.DISTRIBUTED_NAMES}, fusions=())
    if transformer_engine or model.has_mla:
        return layout
    return replace(layout, block={**layout.block, **_TE_INPUT, **_TE_MLP})


_LEGACY = {
    "input_norm": "input_norm",
    "post_attention_norm": "post_attention_norm",
    "attention.qkv": "self_attention.query_key_value",
    "attention.out": "self_attention.dense",
    "mlp.gate_up_proj": "mlp.dense_h_to_4h",
    "mlp.down_proj": "mlp.dense_4h_to_h",
    "mlp.router": "mlp.router",
    "mlp.experts.{}.gate_up_proj": "mlp.local_experts.{}.dense_h_to_4h",
    "mlp.experts.{}.down_proj": "mlp.local_experts.{}.dense_4h_to_h",
}


def build_legacy_layout() -> TargetLayout:
    """Return the layout before Megatron-core (``--use-legacy-models``)."""
    return TargetLayout(
        "Megatron before Megatron-core",
        "language_model.encoder.layers.{}.",
        _LEGACY,
        {
            "embedding": "language_model.embedding.word_embeddings",
            "position_embedding": "language_model.embedding.position_embeddings",
            "final_norm": "language_model.encoder.final_norm",
            "head": "language_model.output_layer",
        },
        fusions=(_QKV, _GATE_UP),
    )
