"""Which family of names a checkpoint speaks, and the numbers of its model that its settings give.

The names of one family can hold different things in another: ``linear_fc1`` is all gates, then all ups in
Megatron-core, and gate and up in turns in MindSpore Transformers. See :mod:`.family_layouts` for what each reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .zero_centered_norms import has_zero_centered_norms

MEGATRON, MEGATRON_LEGACY, MINDFORMERS, MINDFORMERS_LEGACY = (
    "megatron", "megatron_legacy", "mindformers", "mindformers_legacy",
)  # fmt: skip
HUGGINGFACE, GPT2, META, OTHER = "huggingface", "gpt2", "meta", "other"

#: What tells a family: the first whose pattern any name fits. Of the formats that only one framework writes, that one.
_SIGNS: tuple[tuple[str, str], ...] = (
    (GPT2, r"\.attn\.c_attn\.weight$"),
    (MEGATRON_LEGACY, r"\.dense_h_to_4h\."),
    (
        MINDFORMERS_LEGACY,
        r"tok_embeddings\.embedding_weight|\.feed_forward\.w_gate_hidden\.|\.attention\.w_qkv\.",
    ),
    (META, r"(^|\.)tok_embeddings\.weight$"),
    (MEGATRON, r"\.linear_(fc1|qkv|proj)\."),
    (HUGGINGFACE, r"\.(self_attn|block_sparse_moe)\.|embed_tokens\."),
)
_MEGATRON_FORMATS = ("megatron", "torch_dist", "torch")


def detect_family(names: Iterable[str], form: str) -> str:
    """The family that a checkpoint's names are of; ``form`` is its format."""
    text = "\n".join(names)
    for family, sign in _SIGNS:
        if re.search(sign, text, re.MULTILINE):
            return MINDFORMERS if family == MEGATRON and form not in _MEGATRON_FORMATS else family
    return OTHER


@dataclass(frozen=True)
class ModelConfig:
    """What settings say of a model; None for what they do not."""

    heads: int | None = None
    groups: int | None = None  #: of queries that share a key and a value
    head_size: int | None = None
    hidden: int | None = None
    experts: int | None = None
    vocabulary: int | None = None  #: without padding
    tied: bool | None = None  #: the head is the embedding
    zero_centered_norms: bool | None = None  #: norms are stored as their distance from one


#: Field -> its names in config.json (transformers, MindSpore Transformers) and in Megatron's arguments.
_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "groups": ("num_key_value_heads", "num_query_groups", "n_kv_heads"),
    "head_size": ("head_dim", "kv_channels"),
    "hidden": ("hidden_size", "n_embd"),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts", "num_moe_experts"),
    "vocabulary": ("vocab_size",),
}


def read_model_config(settings: Mapping[str, Any]) -> ModelConfig:
    """The numbers in a configuration; those of a nested ``text_config`` count where the outer one is silent."""
    nested = settings.get("text_config")
    layers = [settings, nested if isinstance(nested, Mapping) else {}]
    found: dict[str, Any] = {"centred": has_zero_centered_norms(settings)}
    for field, spellings in _SPELLINGS.items():
        values = [
            layer[name] for layer in layers for name in spellings if type(layer.get(name)) is int
        ]
        found[field] = next((value for value in values if value > 0), None)
    for layer in layers:
        if isinstance(layer.get("tie_word_embeddings"), bool):
            found["tied"] = layer["tie_word_embeddings"]
        elif isinstance(layer.get("untie_embeddings_and_output_weights"), bool):
            found["tied"] = not layer["untie_embeddings_and_output_weights"]
    if not found["heads"] or settings.get("group_query_attention") is False:
        found["groups"] = found[
            "heads"
        ]  # Megatron's arguments keep num_query_groups = 1 where groups are not used
    found["groups"] = found["groups"] or found["heads"]
    if found["heads"] and found["hidden"] and not found["head_size"]:
        found["head_size"] = found["hidden"] // found["heads"]
    return ModelConfig(**found)
