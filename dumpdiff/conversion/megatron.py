"""Megatron-LM: names of Megatron-core with its own layers (local) or Transformer Engine's, and of Megatron before it.

Sources: Megatron-LM megatron/core/models/gpt/gpt_layer_specs.py, core/transformer/{attention,mlp,
multi_latent_attention}.py, core/transformer/moe/{experts,shared_experts}.py, and megatron/legacy/model.
"""

from __future__ import annotations

from .canonical import CanonicalCheckpoint
from .target_layout import Fusion, TargetLayout

#: Of one layer, what MindSpore Transformers has from here too.
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
#: Outside of the layers, likewise.
MODEL = {
    "embedding": "embedding.word_embeddings",
    "position_embedding": "embedding.position_embeddings",
    "final_norm": "decoder.final_layernorm",
    "head": "output_layer",
}
_LOCAL = {
    **BLOCK,
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
    f"mlp.experts.{{}}.{module}.{leaf}": f"mlp.experts.{name}.{leaf}{{}}"
    for module, name in (("gate_up_proj", "linear_fc1"), ("down_proj", "linear_fc2"))
    for leaf in ("weight", "bias")
}
#: Norms that Transformer Engine keeps in the linear that follows them; MLA's input norm and a MoE layer's stay apart.
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
_GATE_UP = Fusion("gate_up_proj", ("gate_proj", "up_proj"), "concatenated")
_QKV = Fusion("qkv", ("q", "k", "v"), "grouped")


def build_core_layout(model: CanonicalCheckpoint, transformer_engine: bool) -> TargetLayout:
    """Megatron-core's names for this model."""
    block = {**_LOCAL, **(_MLA if model.has_mla else {})}
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
        replicated=frozenset({"q_a", "kv_a"} if transformer_engine else ()),
        sharded_by_rows=frozenset(() if transformer_engine else {"q_a", "kv_a"}),
    )


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
    """The names before Megatron-core (``--use-legacy-models``)."""
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
