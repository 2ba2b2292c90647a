"""Names of MindSpore Transformers: from 1.5 on (like those of Megatron-core), and before.

Sources: mindformers
parallel_core/training_graph/transformer/{attention,mlp,multi_latent_attention}.py, moe/ffn.py;
models/llama/*.py; research/deepseek3/convert_weight.py of 1.6.
"""

from __future__ import annotations

from .canonical import FusionLayout
from .megatron import BLOCK, MODEL
from .target_layout import Fusion, TargetLayout

_CORE = {
    **BLOCK,
    "attention.q_b": "self_attention.linear_qb",
    "attention.kv_b": "self_attention.linear_kvb",
    "mlp.router.expert_bias": "mlp.router.expert_bias",
    "mlp.shared_gate": "mlp.shared_experts.shared_experts_gate",
}
_EXPERTS = r".*\.experts\.\d+"


def build_core_layout(qkv: FusionLayout, gate_up: FusionLayout) -> TargetLayout:
    """Return the layout from 1.5 on.

    ``qkv`` is 'concatenated' in 1.6 and with ``use_contiguous_weight_layout_attention``, else
    'grouped'; ``gate_up`` is 'concatenated' in 1.6 and without
    ``use_interleaved_weight_layout_mlp``, else 'interleaved'. Experts are always [E * H, 2I] and
    [E * I, H]. The down projections of MLA are fused.
    """
    return TargetLayout(
        "MindSpore Transformers",
        "decoder.layers.{}.",
        _CORE,
        MODEL,
        fusions=(
            Fusion("qkv", ("q", "k", "v"), qkv),
            Fusion("qkv", ("q_a", "kv_a"), "concatenated"),
            Fusion("qkv", ("q", "kv_a"), "concatenated"),
            Fusion("gate_up_proj", ("gate_proj", "up_proj"), "concatenated", _EXPERTS),
            Fusion("gate_up_proj", ("gate_proj", "up_proj"), gate_up),
        ),
        stacked={
            "mlp.experts.{}.gate_up_proj.weight": "mlp.experts.weight1",
            "mlp.experts.{}.down_proj.weight": "mlp.experts.weight2",
        },
        stack_axes=2,
        stack_transposed=True,
    )


_LEGACY = {
    "input_norm": "attention_norm",
    "post_attention_norm": "ffn_norm",
    "attention.q": "attention.wq",
    "attention.k": "attention.wk",
    "attention.v": "attention.wv",
    "attention.out": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.router": "feed_forward.routed_experts.router.dense",
    "mlp.router.expert_bias": "feed_forward.routed_experts.router.router.topk_bias",
    "mlp.shared_experts.gate_proj": "feed_forward.shared_experts.w1",
    "mlp.shared_experts.down_proj": "feed_forward.shared_experts.w2",
    "mlp.shared_experts.up_proj": "feed_forward.shared_experts.w3",
    "mlp.shared_gate": "feed_forward.shared_experts_gate",
}


def build_legacy_layout() -> TargetLayout:
    """Return the layout before 1.5, in which nothing is fused.

    Experts of Mixtral and Qwen2-MoE are [E, out, in].
    """
    return TargetLayout(
        "MindSpore Transformers before 1.5",
        "model.layers.{}.",
        _LEGACY,
        {
            "embedding.weight": "model.tok_embeddings.embedding_weight",
            "final_norm": "model.norm_out",
            "head": "lm_head",
        },
        stacked={
            "mlp.experts.{}.gate_proj.weight": "feed_forward.routed_experts.ffn.w1.weight",
            "mlp.experts.{}.up_proj.weight": "feed_forward.routed_experts.ffn.w3.weight",
            "mlp.experts.{}.down_proj.weight": "feed_forward.routed_experts.ffn.w2.weight",
        },
    )
