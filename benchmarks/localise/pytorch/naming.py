"""The spec's names, and the names under which modules are registered in Hugging Face and
Megatron-core.
"""

from __future__ import annotations

from collections.abc import Mapping

from architecture import Size
from torch import nn

HUGGING_FACE = {
    "embedding": "model.embed_tokens",
    "layers": "model.layers",
    "norm": "model.norm",
    "head": "lm_head",
    "input_norm": "input_layernorm",
    "post_norm": "post_attention_layernorm",
    "attention": "self_attn",
    "q": "q_proj",
    "k": "k_proj",
    "v": "v_proj",
    "o": "o_proj",
    "qkv": "qkv_proj",
    "q_a": "q_a_proj",
    "q_norm": "q_a_layernorm",
    "q_b": "q_b_proj",
    "kv_a": "kv_a_proj_with_mqa",
    "kv_norm": "kv_a_layernorm",
    "kv_b": "kv_b_proj",
    "gate": "gate_proj",
    "up": "up_proj",
    "down": "down_proj",
    "gate_up": "gate_up_proj",
    "router": "gate",
}
#: Hugging Face's GPT-2 has one matrix for q, k and v; where they are apart they are called as in
#: its GPT-J.
HUGGING_FACE_GPT2 = HUGGING_FACE | {
    "embedding": "transformer.wte",
    "position": "transformer.wpe",
    "layers": "transformer.h",
    "norm": "transformer.ln_f",
    "input_norm": "ln_1",
    "post_norm": "ln_2",
    "attention": "attn",
    "o": "c_proj",
    "qkv": "c_attn",
    "up": "c_fc",
    "down": "c_proj",
}
#: Megatron-core holds q, k, v and gate, up together; where they are apart they are called as its
#: converters do.
MEGATRON_CORE = {
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
    "qkv": "linear_qkv",
    "q_a": "linear_q_down_proj",
    "q_norm": "q_layernorm",
    "q_b": "linear_q_up_proj",
    "kv_a": "linear_kv_down_proj",
    "kv_norm": "kv_layernorm",
    "kv_b": "linear_kv_up_proj",
    "gate": "gating",
    "up": "hidden",
    "down": "linear_fc2",
    "gate_up": "linear_fc1",
    "experts": "experts.local_experts",
}
#: As torchvision names the parts of a ResNet.
RESNET = {
    "stem": "conv1",
    "stem_norm": "bn1",
    "norm1": "bn1",
    "norm2": "bn2",
    "short": "downsample",
    "head": "fc",
}


def names_of(family: str, size: Size) -> Mapping[str, str]:
    """The table of one family, 'hf' or 'mcore', for a model of this size."""
    if size.image:
        return RESNET
    if family == "hf":
        return HUGGING_FACE_GPT2 if size.positions == "learned" else HUGGING_FACE
    return MEGATRON_CORE | ({"up": "linear_fc1"} if size.mlp == "gelu" else {})


def rename(module: nn.Module, names: Mapping[str, str]) -> None:
    """Register the children, and theirs, under the names of a family; code goes on using the spec's
    names.

    A dotted name makes modules in between that nobody calls. One family's name may be another
    thing's name in the spec (Hugging Face's ``gate`` is the router), so all old names go before the
    first new one comes.
    """
    children = dict(module.named_children())
    module._modules.clear()
    for name, child in children.items():
        rename(child, names)
        *holders, last = names.get(name, name).split(".")
        holder = module
        for part in holders:
            holder = holder._modules.setdefault(part, nn.Module())
        holder._modules[last] = child
        if name in names:
            object.__setattr__(module, name, child)
