"""How the same model is written down: the names of its cells, the order of projections, the
attention's operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mindspore import nn

#: Our names as MindSpore Transformers registers the cells: its Llama, and its models with
#: Megatron-core's names. A dot stands for a cell that only holds others.
NAMES: Mapping[str, Mapping[str, str]] = {
    "legacy": {
        "embedding": "model.tok_embeddings",
        "position": "model.position_embeddings",
        "layers": "model.layers",
        "norm": "model.norm_out",
        "head": "lm_head",
        "input_norm": "attention_norm",
        "post_norm": "ffn_norm",
        "mlp": "feed_forward",
        "q": "wq",
        "k": "wk",
        "v": "wv",
        "o": "wo",
        "core": "flash_attention",
        "q_a": "q2l_proj",
        "q_norm": "lq_norm",
        "q_b": "l2q_proj",
        "kv_a": "kv2l",
        "kv_norm": "lkv_norm",
        "kv_b": "lkv2kv",
        "gate": "w1",
        "up": "w3",
        "down": "w2",
        "widen": "mapping",
        "narrow": "projection",
        "router": "router.dense",
    },
    "mcore": {
        "embedding": "embedding.word_embeddings",
        "position": "embedding.position_embeddings",
        "layers": "decoder.layers",
        "norm": "decoder.final_layernorm",
        "head": "output_layer",
        "input_norm": "input_layernorm",
        "post_norm": "pre_mlp_layernorm",
        "attention": "self_attention",
        "q": "linear_q",
        "k": "linear_k",
        "v": "linear_v",
        "o": "linear_proj",
        "core": "core_attention",
        "q_a": "linear_q_down_proj",
        "q_norm": "q_layernorm",
        "q_b": "linear_q_up_proj",
        "kv_a": "linear_kv_down_proj",
        "kv_norm": "kv_layernorm",
        "kv_b": "linear_kv_up_proj",
        "gate": "gating",
        "up": "hidden",
        "down": "linear_fc2",
        "widen": "linear_fc1",
        "narrow": "linear_fc2",
        "experts": "experts.local_experts",
    },
}


@dataclass(frozen=True)
class Style:
    """None of it changes what the model computes."""

    names: Mapping[str, str]
    attention: str = "plain"  #: plain, bmm
    order: str = "qkv"  #: in which order the projections run
    recompute: bool = False  #: each block again in the backward pass


class Named(nn.Cell):
    """A cell whose children are used by our names and registered, so that scopes show them, under
    others.
    """

    def __init__(self, names: Mapping[str, str], **children: nn.Cell) -> None:
        super().__init__()
        holders: dict[str, nn.Cell] = {}
        for ours, child in children.items():
            holder, _, last = names.get(ours, ours).rpartition(".")
            setattr(holders.setdefault(holder, nn.Cell()) if holder else self, last, child)
        for (
            holder,
            cell,
        ) in holders.items():  # now: a cell prefixes the weights that it has when it is taken in
            setattr(self, holder, cell)
        self.__dict__.update(children)
