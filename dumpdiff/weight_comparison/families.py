"""How a checkpoint names its weights, and the model configuration in its settings.

The same name can hold different contents in two families: ``linear_fc1`` is all gate rows, then all
up rows in Megatron-core, and alternating gate and up rows in MindSpore Transformers. See
:mod:`.family_layouts`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..rulebook import ModelFamily, Rules
from .zero_centered_norms import has_zero_centered_norms

MEGATRON, MEGATRON_LEGACY = "megatron", "megatron_legacy"
MINDFORMERS, MINDFORMERS_LEGACY = "mindformers", "mindformers_legacy"
HUGGINGFACE, META, OTHER = "huggingface", "meta", "other"

#: Patterns of the families; the first pattern that any name matches decides.
_PATTERNS: tuple[tuple[str, str], ...] = (
    (MEGATRON_LEGACY, r"\.dense_h_to_4h\."),
    (
        MINDFORMERS_LEGACY,
        r"tok_embeddings\.embedding_weight|\.feed_forward\.w_gate_hidden\.|\.attention\.w_qkv\.",
    ),
    (META, r"(^|\.)tok_embeddings\.weight$"),
    (MEGATRON, r"\.linear_(fc1|qkv|proj)\."),
    (HUGGINGFACE, r"\.(self_attn|block_sparse_moe)\.|embed_tokens\."),
)
#: Formats that only Megatron writes: with any other format, its names are those of MindSpore
#: Transformers.
_MEGATRON_FOLDERS = ("megatron", "torch_dist")
_MEGATRON_FORMATS = (*_MEGATRON_FOLDERS, "torch")


#: Families whose names may be those of a model of transformers that rules/families describes.
_NAMES_OF_TRANSFORMERS = (HUGGINGFACE, MEGATRON_LEGACY, OTHER)


@dataclass(frozen=True)
class Naming:
    """How the names of a checkpoint are read, and the rows behind them."""

    family: str  #: of the names: megatron, huggingface, ...
    model: ModelFamily | None = None  #: of transformers, if the names are its


def read_naming(
    names: Collection[str], settings: Mapping[str, Any], checkpoint_format: str, rules: Rules
) -> Naming:
    """Return how a checkpoint is read: by its names, and by the ``model_type`` of its settings."""
    family = detect_family(names, checkpoint_format)
    if family not in _NAMES_OF_TRANSFORMERS or checkpoint_format in _MEGATRON_FOLDERS:
        return Naming(family)
    model = find_model_family(settings, rules)
    if model is None and not isinstance(settings.get("model_type"), str):
        model = rules.families.recognize_names(names)
    return Naming(family) if model is None else Naming(HUGGINGFACE, model)


def find_model_family(settings: Mapping[str, Any], rules: Rules) -> ModelFamily | None:
    """Return the family of the ``model_type`` in settings; None if there is none or it is new."""
    model_type = settings.get("model_type")
    return rules.families.find(model_type) if isinstance(model_type, str) else None


def detect_family(names: Iterable[str], checkpoint_format: str) -> str:
    """Return the family that the parameter names of a checkpoint belong to."""
    text = "\n".join(names)
    for family, pattern in _PATTERNS:
        if not re.search(pattern, text, re.MULTILINE):
            continue
        if family == MEGATRON and checkpoint_format not in _MEGATRON_FORMATS:
            return MINDFORMERS
        return family
    return OTHER


@dataclass(frozen=True)
class ModelConfig:
    """The configuration of a model; None for what its settings do not contain."""

    heads: int | None = None
    groups: int | None = None  #: of queries that share a key and a value
    head_size: int | None = None
    hidden: int | None = None
    experts: int | None = None
    vocabulary: int | None = None  #: without padding
    tied: bool | None = None  #: the head is the embedding
    zero_centered_norms: bool | None = None  #: norms are stored minus one


#: Field -> its names in config.json (transformers, MindSpore Transformers) and in Megatron's
#: arguments.
_SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "heads": ("num_attention_heads", "n_head", "num_heads"),
    "groups": ("num_key_value_heads", "num_query_groups", "n_kv_heads"),
    "head_size": ("head_dim", "kv_channels"),
    "hidden": ("hidden_size", "n_embd"),
    "experts": ("n_routed_experts", "num_local_experts", "num_experts", "num_moe_experts"),
    "vocabulary": ("vocab_size",),
}


def read_model_config(settings: Mapping[str, Any], model: ModelFamily | None) -> ModelConfig:
    """Read the configuration from settings; ``model`` is the family of their ``model_type``.

    Values of a nested ``text_config`` are used if the outer level has none.
    """
    nested = settings.get("text_config")
    levels = [settings, nested if isinstance(nested, Mapping) else {}]
    fields: dict[str, Any] = {"zero_centered_norms": has_zero_centered_norms(settings, model)}
    for field, spellings in _SPELLINGS.items():
        fields[field] = _find_positive_integer(levels, spellings)
    for level in levels:
        if isinstance(level.get("tie_word_embeddings"), bool):
            fields["tied"] = level["tie_word_embeddings"]
        elif isinstance(level.get("untie_embeddings_and_output_weights"), bool):
            fields["tied"] = not level["untie_embeddings_and_output_weights"]
    # Megatron's arguments keep num_query_groups = 1 if groups are not used.
    if not fields["heads"] or settings.get("group_query_attention") is False:
        fields["groups"] = fields["heads"]
    fields["groups"] = _count_groups(settings, fields["groups"]) or fields["heads"]
    if fields["heads"] and fields["hidden"] and not fields["head_size"]:
        fields["head_size"] = fields["hidden"] // fields["heads"]
    return ModelConfig(**fields)


def _count_groups(settings: Mapping[str, Any], groups: int | None) -> int | None:
    """Return the number of query groups; Falcon states it by two flags."""
    if settings.get("new_decoder_architecture") is True:
        return _find_positive_integer([settings], ("num_kv_heads",))
    if settings.get("multi_query") is True:
        return 1
    return groups


def _find_positive_integer(levels: Iterable[Mapping[str, Any]], names: Iterable[str]) -> int | None:
    for level in levels:
        for name in names:
            value = level.get(name)
            if type(value) is int and value > 0:
                return value
    return None
