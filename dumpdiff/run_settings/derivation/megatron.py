"""Values that follow from several options of Megatron-LM and Megatron-SWIFT.

They are derived as in ``validate_args`` of Megatron-LM.
``derive_<name>`` belongs to the rows of ``rules/settings.yaml`` with ``derive: <name>``. Each
function raises UnknownValueError if too little is set.
"""

from __future__ import annotations

import math
from typing import Any

from ..row_value import SettingsLookup, UnknownValueError
from .forms import (
    expand_layer_pattern,
    normalize_shares,
    require,
    require_layers,
    require_nonzero,
    require_number,
)

#: With SwiGLU, the default width of the feed-forward layer is rounded down to a multiple of this.
_SWIGLU_MULTIPLE = 64


def derive_implementation(lookup: SettingsLookup) -> str:
    """Return 'core', or 'legacy' if the older models are set."""
    if lookup.is_set("use-mcore-models") and lookup.get_boolean("use-mcore-models"):
        return "core"
    if lookup.get_boolean("use-legacy-models"):
        return "legacy"
    return "core"


def derive_ffn_hidden_size(lookup: SettingsLookup) -> int:
    """Return the width of the feed-forward layer: 4 h if it is not set, 2/3 of that with SwiGLU."""
    size = lookup.get_integer("ffn-hidden-size")
    if size is not None:
        return size
    hidden_size = require(lookup.get_integer("hidden-size"), "hidden-size")
    if lookup.get_boolean("swiglu"):
        return int(4 * hidden_size * 2 / 3) // _SWIGLU_MULTIPLE * _SWIGLU_MULTIPLE
    return 4 * hidden_size


def derive_head_dim(lookup: SettingsLookup) -> int:
    """Return the size of a head: hidden size / heads if it is not set."""
    size = lookup.get_integer("kv-channels")
    if size is not None:
        return size
    hidden_size = require(lookup.get_integer("hidden-size"), "hidden-size")
    heads = lookup.get_integer("num-attention-heads")
    return hidden_size // require_nonzero(heads, "num-attention-heads")


def derive_query_groups(lookup: SettingsLookup) -> int:
    """Return the number of key-value heads.

    It is the number of heads unless grouped-query attention is on; num-query-groups is ignored
    without it.
    """
    if lookup.get_boolean("group-query-attention"):
        return require(lookup.get_integer("num-query-groups"), "num-query-groups")
    return require(lookup.get_integer("num-attention-heads"), "num-attention-heads")


def derive_grouped_queries(lookup: SettingsLookup) -> bool:
    """Return whether several heads share their keys: whether there are fewer groups than heads."""
    return derive_query_groups(lookup) != lookup.get_integer("num-attention-heads")


def derive_position_embedding(lookup: SettingsLookup) -> str:
    """Return the type of position embedding.

    ``--use-rotary-position-embeddings`` means 'rope', ``--no-position-embedding`` means none.
    """
    rotary = "use-rotary-position-embeddings"
    if lookup.is_set(rotary) and lookup.get_boolean(rotary):
        return "rope"
    kind = lookup.get_text("position-embedding-type") or "none"
    option = "no-position-embedding"
    if kind == "learned_absolute" and lookup.is_set(option):
        has_position_embedding = lookup.get_boolean(option)
        return kind if has_position_embedding else "none"
    return kind


def derive_qkv_bias(lookup: SettingsLookup) -> bool:
    """Return whether query, key and value have a bias, alone or as all linear layers."""
    return lookup.get_boolean("disable-bias-linear") or lookup.get_boolean("add-qkv-bias")


def derive_vocabulary(lookup: SettingsLookup) -> int:
    """Return the rows of the embedding.

    They are the tokenizer's, padded to a multiple of make-vocab-size-divisible-by x tensor
    parallel.
    """
    if lookup.is_set("padded-vocab-size"):
        return require(lookup.get_integer("padded-vocab-size"), "padded-vocab-size")
    size = require(lookup.get_integer("vocab-size"), "vocab-size (the tokenizer decides)")
    divisor = lookup.get_integer("make-vocab-size-divisible-by") or 1
    multiple = divisor * (lookup.get_integer("tensor-model-parallel-size") or 1)
    if multiple <= 0:
        raise UnknownValueError("the vocabulary is padded to a negative multiple")
    return multiple * math.ceil(size / multiple)


def derive_activation(lookup: SettingsLookup) -> str:
    """Return silu for --swiglu, else squared_relu, gelu_tanh (--openai-gelu) or gelu."""
    for option, name in (
        ("swiglu", "silu"),
        ("squared-relu", "squared_relu"),
        ("openai-gelu", "gelu_tanh"),
    ):
        if lookup.get_boolean(option):
            return name
    return "gelu"


def derive_gated_linear_unit(lookup: SettingsLookup) -> bool:
    """Return whether the feed-forward layer is gated, which only --swiglu sets."""
    return lookup.get_boolean("swiglu")


def derive_untied_embeddings(lookup: SettingsLookup) -> bool:
    """Return whether the output layer has its own weight."""
    return lookup.get_boolean("untie-embeddings-and-output-weights")


def derive_compute_dtype(lookup: SettingsLookup) -> str:
    """Return the dtype of --bf16, --fp16 or neither."""
    if lookup.get_boolean("bf16"):
        return "bfloat16"
    return "float16" if lookup.get_boolean("fp16") else "float32"


def derive_gradient_dtype(lookup: SettingsLookup) -> str:
    """Return the dtype of accumulated gradients.

    --bf16 turns accumulation in float32 on, unless gradients are reduced in bfloat16.
    """
    compute_dtype = derive_compute_dtype(lookup)
    if lookup.get_boolean("accumulate-allreduce-grads-in-fp32"):
        return "float32"
    if compute_dtype != "bfloat16":
        return compute_dtype
    if lookup.is_set("grad-reduce-in-bf16") and lookup.get_boolean("grad-reduce-in-bf16"):
        return "bfloat16"
    return "float32"


def derive_weight_dtype(lookup: SettingsLookup) -> str:
    """Return the dtype of the optimizer's weights: float32 for any compute dtype by default."""
    dtype = lookup.get_dtype("main-params-dtype") if lookup.is_set("main-params-dtype") else None
    return dtype or "float32"


def derive_softmax_dtype(lookup: SettingsLookup) -> str:
    """Return float32 if it is set, or with query-key layer scaling; else the model's dtype."""
    if lookup.get_boolean("attention-softmax-in-fp32"):
        return "float32"
    if lookup.get_boolean("apply-query-key-layer-scaling"):
        return "float32"
    return derive_compute_dtype(lookup)


def derive_rotary_dtype(lookup: SettingsLookup) -> str:
    """Return the dtype of the rotary embedding.

    Fused: float32. Unfused: sine and cosine are cast to the model's dtype before the
    multiplication.
    """
    return "float32" if lookup.get_boolean("no-rope-fusion") else derive_compute_dtype(lookup)


def derive_router_dtype(lookup: SettingsLookup) -> str:
    """Return the dtype of the router: the model's if none is set."""
    if lookup.get_text("moe-router-dtype") in (None, "none"):
        return derive_compute_dtype(lookup)
    return require(lookup.get_dtype("moe-router-dtype"), "moe-router-dtype")


def derive_betas(lookup: SettingsLookup) -> tuple[float | None, ...]:
    """Return both decay rates of Adam."""
    return lookup.get_number("adam-beta1"), lookup.get_number("adam-beta2")


def derive_clip_grad(lookup: SettingsLookup) -> float:
    """Return the norm at which gradients are clipped, 0 if they are not."""
    return lookup.get_number("clip-grad") or 0.0


def derive_learning_rate(lookup: SettingsLookup) -> float:
    """Return the peak learning rate."""
    return require(lookup.get_number("lr"), "lr")


def derive_schedule(lookup: SettingsLookup) -> str:
    """Return the form of the decay."""
    return require(lookup.get_text("lr-decay-style"), "lr-decay-style")


def derive_decay_steps(lookup: SettingsLookup) -> int:
    """Return the steps of the decay: those of the training if none are set."""
    steps = lookup.get_integer("lr-decay-iters")
    if steps is not None:
        return steps
    samples = lookup.get_integer("lr-decay-samples")
    if samples is not None:
        return samples // _derive_batch_divisor(lookup)
    return derive_train_iterations(lookup)


def derive_warmup_steps(lookup: SettingsLookup) -> int:
    """Return the steps of the warmup; a fraction is a fraction of the decay's steps."""
    fraction = lookup.get_number("lr-warmup-fraction")
    if fraction:
        return require_number(fraction * derive_decay_steps(lookup), "lr-warmup-fraction")
    if lookup.is_set("lr-warmup-samples"):
        samples = lookup.get_integer("lr-warmup-samples")
        if samples:
            return samples // _derive_batch_divisor(lookup)
    return lookup.get_integer("lr-warmup-iters") or 0


def derive_data_parallel(lookup: SettingsLookup) -> int:
    """Return world size / (tensor x pipeline x context parallel).

    The launcher sets the world size.
    """
    if lookup.is_set("data-parallel-size"):
        return require(lookup.get_integer("data-parallel-size"), "data-parallel-size")
    world_size = lookup.get_integer("world-size") if lookup.is_set("world-size") else None
    model_ranks = 1
    for kind in ("tensor-model-parallel", "pipeline-model-parallel", "context-parallel"):
        model_ranks *= lookup.get_integer(f"{kind}-size") or 1
    n_ranks = require(world_size, "the world size (nproc_per_node x nnodes)")
    if model_ranks <= 0 or n_ranks % model_ranks:
        raise UnknownValueError(
            f"{n_ranks} processes cannot be split into {model_ranks} parts by tensor, pipeline and"
            " context parallel"
        )
    return n_ranks // model_ranks


def derive_sequence_parallel(lookup: SettingsLookup) -> bool:
    """Return whether sequences are split, which needs tensor parallel."""
    if not lookup.get_boolean("sequence-parallel"):
        return False
    return (lookup.get_integer("tensor-model-parallel-size") or 1) > 1


def derive_optimizer_parallel(lookup: SettingsLookup) -> bool:
    """Return whether optimizer states are sharded over data parallel."""
    return lookup.get_boolean("use-distributed-optimizer")


def derive_flash_attention(lookup: SettingsLookup) -> bool:
    """Return whether attention is computed without the matrix of scores in memory.

    That are the backends ``auto``, ``flash`` and ``fused`` of Transformer Engine.
    """
    if lookup.is_set("use-flash-attn") and lookup.get_boolean("use-flash-attn"):
        return True
    if lookup.get_text("attention-backend") not in ("auto", "flash", "fused"):
        return False
    return lookup.get_text("transformer-impl") != "local"


def derive_global_batch(lookup: SettingsLookup) -> int:
    """Return the samples of one step: micro batch x data parallel if they are not set."""
    if lookup.is_set("global-batch-size") or lookup.settings.framework == "swift":
        size = lookup.get_integer("global-batch-size")
        if size is not None:
            return size
    micro_batch = require(lookup.get_integer("micro-batch-size"), "micro-batch-size")
    return micro_batch * derive_data_parallel(lookup)


def derive_train_samples(lookup: SettingsLookup) -> int:
    """Return the samples of the training: iterations x global batch if they are not set."""
    samples = lookup.get_integer("train-samples")
    if samples is not None:
        return samples
    return require(lookup.get_integer("train-iters"), "train-iters") * derive_global_batch(lookup)


def derive_train_iterations(lookup: SettingsLookup) -> int:
    """Return the steps of the training: samples / global batch if they are not set."""
    steps = lookup.get_integer("train-iters")
    if steps is not None:
        return steps
    samples = require(lookup.get_integer("train-samples"), "neither train-iters nor train-samples")
    return samples // _derive_batch_divisor(lookup)


def derive_seq_length(lookup: SettingsLookup) -> int:
    """Return the tokens of a sample."""
    length = lookup.get_integer("seq-length", "encoder-seq-length", "max-length")
    return require(length, "seq-length")


def derive_split(lookup: SettingsLookup) -> Any:
    """Return the shares of training, validation and test data, which sum to 1."""
    return normalize_shares(lookup.get_raw("split"))


def derive_experts(lookup: SettingsLookup) -> int | None:
    """Return the number of experts, None without a mixture; one expert is no mixture."""
    count = lookup.get_integer("num-experts")
    return count if count is not None and count > 1 else None


def derive_moe_layers(lookup: SettingsLookup) -> str:
    """Return one digit per layer, 1 for a mixture of experts."""
    frequency = lookup.get_raw("moe-layer-freq")
    layers = require_layers(lookup.get_integer("num-layers", "encoder-num-layers"))
    return expand_layer_pattern(frequency, layers)


def derive_topk_normalized(lookup: SettingsLookup) -> bool:
    """Return whether the scores of the chosen experts sum to 1.

    They do unless softmax is applied before the choice. Sigmoid scores are divided by their sum.
    """
    if lookup.get_text("moe-router-score-function") == "sigmoid":
        return True
    return not lookup.get_boolean("moe-router-pre-softmax")


def derive_moe_ffn_hidden_size(lookup: SettingsLookup) -> int:
    """Return the width of an expert: that of the dense layers if it is not set."""
    size = lookup.get_integer("moe-ffn-hidden-size")
    return size if size is not None else derive_ffn_hidden_size(lookup)


def derive_shared_expert_size(lookup: SettingsLookup) -> int | None:
    """Return the width of all shared experts together, None without shared experts."""
    return lookup.get_integer("moe-shared-expert-intermediate-size")


def derive_router_scaling(lookup: SettingsLookup) -> float:
    """Return the factor of the router's scores, 1 if none is set."""
    return lookup.get_number("moe-router-topk-scaling-factor") or 1.0


def derive_z_loss(lookup: SettingsLookup) -> float:
    """Return the coefficient of the z-loss, 0 if none is set."""
    return lookup.get_number("moe-z-loss-coeff") or 0.0


def derive_mtp_layers(lookup: SettingsLookup) -> int:
    """Return the number of layers for multi-token prediction, 0 if none is set."""
    return lookup.get_integer("mtp-num-layers") or 0


def derive_recompute(lookup: SettingsLookup) -> bool:
    """Return whether anything is recomputed."""
    return lookup.get_text("recompute-granularity") not in (None, "none")


def _derive_batch_divisor(lookup: SettingsLookup) -> int:
    """Return the global batch size as a divisor of samples, which cannot be 0."""
    return require_nonzero(derive_global_batch(lookup), "global-batch-size")
