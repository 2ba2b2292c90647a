"""Values that follow from several options of the Hugging Face Trainer.

LLaMA-Factory and ms-swift have its options, too. The structure of the model is that of its
config.json and of the model class that its model_type names.
"""

from __future__ import annotations

import math
from typing import Any

from ..row_value import SettingsLookup, UnknownValueError
from .forms import require, require_finite

_MODEL_TYPE = "model_config.model_type"
_HEADS = ("model_config.num_attention_heads", "model_config.n_head")
_HIDDEN_SIZE = ("model_config.hidden_size", "model_config.n_embd")
_BATCH = ("per_device_train_batch_size", "train_batch_size")


def derive_compute_dtype(lookup: SettingsLookup) -> str:
    """Return the dtype of torch_dtype, of --bf16, of --fp16 or of none of them.

    The Trainer refuses --bf16 with --fp16, so that either leaves no doubt about the other.
    """
    if lookup.is_set("torch_dtype"):
        return require(lookup.get_dtype("torch_dtype"), "torch_dtype")
    if lookup.is_set("fp16") and lookup.get_boolean("fp16"):
        return "float16"
    if lookup.get_boolean("bf16"):
        return "bfloat16"
    return "float16" if lookup.get_boolean("fp16") else "float32"


def derive_betas(lookup: SettingsLookup) -> tuple[float | None, ...]:
    """Return both decay rates of Adam."""
    return lookup.get_number("adam_beta1"), lookup.get_number("adam_beta2")


def derive_learning_rate(lookup: SettingsLookup) -> float:
    """Return the peak learning rate."""
    return require(lookup.get_number("learning_rate"), "learning_rate")


def derive_train_iterations(lookup: SettingsLookup) -> int:
    """Return max_steps; without it, the length of the data decides."""
    steps = lookup.get_integer("max_steps")
    if steps is None or steps <= 0:
        raise UnknownValueError("max_steps is not set: the length of the data decides")
    return steps


def derive_warmup_steps(lookup: SettingsLookup) -> int:
    """Return the warmup steps: a share of all steps is rounded up, and steps override it."""
    steps = lookup.get_number("warmup_steps")
    if steps and steps >= 1:
        return int(steps)
    share = steps or lookup.get_number("warmup_ratio")
    if not share:
        return 0
    warmup_steps = share * derive_train_iterations(lookup)
    return math.ceil(require_finite(warmup_steps, "warmup_ratio"))


def derive_global_batch(lookup: SettingsLookup) -> int:
    """Return samples per device x accumulation x processes."""
    batch = require(lookup.get_integer(*_BATCH), "per_device_train_batch_size")
    accumulation = lookup.get_integer("gradient_accumulation_steps") or 1
    if not lookup.is_set("world_size"):
        raise UnknownValueError(
            f"{batch} per device x {accumulation} accumulated; the number of devices is not said"
        )
    return batch * accumulation * require(lookup.get_integer("world_size"), "the world size")


def derive_recompute(lookup: SettingsLookup) -> bool:
    """Return whether activations are recomputed."""
    return lookup.get_boolean("gradient_checkpointing")


def derive_deterministic(lookup: SettingsLookup) -> bool:
    """Return whether deterministic kernels are asked for."""
    return lookup.get_boolean("full_determinism")


def derive_query_groups(lookup: SettingsLookup) -> int:
    """Return the number of key-value heads: the heads if it is not set."""
    if lookup.is_set("model_config.num_key_value_heads"):
        groups = lookup.get_integer("model_config.num_key_value_heads")
    else:
        groups = lookup.get_integer(*_HEADS)
    return require(groups, "num_attention_heads")


def derive_head_dim(lookup: SettingsLookup) -> int:
    """Return the size of a head: hidden size / heads if it is not set."""
    if lookup.is_set("model_config.head_dim"):
        return require(lookup.get_integer("model_config.head_dim"), "head_dim")
    hidden_size = require(lookup.get_integer(*_HIDDEN_SIZE), "hidden_size")
    return hidden_size // (lookup.get_integer(*_HEADS) or 1)


def derive_activation(lookup: SettingsLookup) -> str:
    """Return the activation function as Megatron-LM names it."""
    name = lookup.get_text("model_config.hidden_act", "model_config.activation_function")
    if name in ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"):
        return "gelu_tanh"
    return require(name, "hidden_act")


def derive_normalization(lookup: SettingsLookup) -> str:
    """Return the kind of norm of the model class."""
    return str(_get_architecture(lookup, "normalization"))


def derive_gated_linear_unit(lookup: SettingsLookup) -> bool:
    """Return whether the feed-forward layer of the model class is gated."""
    return bool(_get_architecture(lookup, "gated_linear_unit"))


def derive_linear_bias(lookup: SettingsLookup) -> bool:
    """Return whether the linear layers of the model class have a bias."""
    return bool(_get_architecture(lookup, "linear_bias"))


def derive_qkv_bias(lookup: SettingsLookup) -> bool:
    """Return whether query, key and value have a bias: as set, else as the model class has it."""
    if lookup.is_set("model_config.attention_bias"):
        return lookup.get_boolean("model_config.attention_bias")
    return bool(_get_architecture(lookup, "qkv_bias"))


def derive_qk_norm(lookup: SettingsLookup) -> bool:
    """Return whether the model class normalizes query and key."""
    return bool(_get_architecture(lookup, "qk_norm"))


def derive_position_embedding(lookup: SettingsLookup) -> str:
    """Return the kind of position embedding of the model class."""
    return str(_get_architecture(lookup, "position_embedding"))


def derive_untied_embeddings(lookup: SettingsLookup) -> bool:
    """Return whether the output layer has its own weight, if the config.json says so."""
    if not lookup.is_set("model_config.tie_word_embeddings"):
        raise UnknownValueError("tie_word_embeddings is not set: the model class decides")
    return not lookup.get_boolean("model_config.tie_word_embeddings")


def _get_architecture(lookup: SettingsLookup, row: str) -> Any:
    """Return what the model class computes. Raises UnknownValueError if it is not in the table."""
    model_type = require(lookup.get_text(_MODEL_TYPE), "model_type")
    facts = lookup.table.architectures.get(model_type, {})
    if row not in facts:
        raise UnknownValueError(f"what the model class of {model_type} does is not known")
    return facts[row]
