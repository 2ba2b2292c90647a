"""Values that follow from several keys of a MindSpore Transformers YAML.

They are derived as in its configuration classes and its trainer.
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
    parse_counts,
    require,
    require_layers,
    require_nonzero,
    require_number,
)

_LAYERS = ("model.num_layers", "model.num_hidden_layers", "model.n_layer")
_HEADS = ("model.num_heads", "model.num_attention_heads", "model.n_head")
_GROUPS = ("model.n_kv_heads", "model.num_key_value_heads", "model.num_query_groups")
_FFN = ("model.intermediate_size", "model.ffn_hidden_size")
_EXPERTS = ("moe.num_experts", "moe.expert_num", "moe.n_routed_experts", "moe.num_moe_experts")
_SOFTMAX = ("model.softmax_compute_type", "model.softmax_compute_dtype")
_SCHEDULES = {
    "constantwarmuplr": "constant",
    "linearwithwarmuplr": "linear",
    "cosinewithwarmuplr": "cosine",
    "cosineannealinglr": "cosine",
    "polynomialwithwarmuplr": "polynomial",
    "warmupstabledecaylr": "wsd",
}


#: ``multiple_of`` of LlamaConfig if it is not set.
_LLAMA_MULTIPLE = 256

#: Default decay rates of all Adam optimizers of MindSpore Transformers.
_DEFAULT_BETAS = (0.9, 0.999)

#: Default epsilon of AdamW, and of the optimizers based on MindSpore's AdamWeightDecay.
_ADAMW_EPSILON = 1e-8
_ADAM_WEIGHT_DECAY_EPSILON = 1e-6


def derive_implementation(lookup: SettingsLookup) -> str:
    """Return 'core' for ``use_legacy: False``, else 'legacy'.

    Before version 1.5 all models were legacy.
    """
    return "legacy" if lookup.get_boolean("top.use_legacy") else "core"


def derive_ffn_hidden_size(lookup: SettingsLookup) -> int:
    """Return the width of the feed-forward layer: 4 h if it is not set.

    LlamaConfig: 8/3 h times ffn_dim_multiplier, rounded up to a multiple of multiple_of.
    """
    if lookup.is_set(*_FFN) or not _is_legacy(lookup):
        size = lookup.get_integer(*_FFN)
        if size is not None:
            return size
    hidden_size = require(lookup.get_integer("model.hidden_size"), "hidden_size")
    if not _is_legacy(lookup):
        return 4 * hidden_size
    multiple = None
    if lookup.is_set("model.multiple_of"):
        multiple = lookup.get_integer("model.multiple_of")
    multiple = multiple or _LLAMA_MULTIPLE
    factor = None
    if lookup.is_set("model.ffn_dim_multiplier"):
        factor = lookup.get_number("model.ffn_dim_multiplier")
    if factor is None:
        factor = 1.0
    size = require_number(factor * int(8 * hidden_size / 3), "ffn_dim_multiplier")
    return multiple * math.ceil(size / multiple)


def derive_head_dim(lookup: SettingsLookup) -> int:
    """Return the size of a head: hidden size / heads if it is not set."""
    if lookup.is_set("model.head_dim", "model.kv_channels"):
        return require(lookup.get_integer("model.head_dim", "model.kv_channels"), "head_dim")
    hidden_size = require(lookup.get_integer("model.hidden_size"), "hidden_size")
    return hidden_size // require_nonzero(lookup.get_integer(*_HEADS), "num_heads")


def derive_query_groups(lookup: SettingsLookup) -> int:
    """Return the number of key-value heads: the heads if it is not set."""
    groups = lookup.get_integer(*_GROUPS) if lookup.is_set(*_GROUPS) else None
    return groups if groups is not None else require(lookup.get_integer(*_HEADS), "the heads")


def derive_grouped_queries(lookup: SettingsLookup) -> bool:
    """Return whether several heads share their keys."""
    return derive_query_groups(lookup) != lookup.get_integer(*_HEADS)


def derive_position_embedding(lookup: SettingsLookup) -> str:
    """Return 'rope', unless ALiBi or an extension (yarn, llama3, ...) is set."""
    if lookup.is_set("model.position_embedding_type"):
        return str(lookup.get_text("model.position_embedding_type"))
    if lookup.is_set("model.use_alibi_mask") and lookup.get_boolean("model.use_alibi_mask"):
        return "alibi"
    if lookup.is_set("model.extend_method"):
        return str(lookup.get_text("model.extend_method"))
    return "rope"


def derive_qkv_bias(lookup: SettingsLookup) -> bool:
    """Return whether query, key and value have a bias.

    In core models ``add_bias_linear`` includes them.
    """
    if lookup.get_boolean("model.qkv_has_bias", "model.attention_bias", "model.add_qkv_bias"):
        return True
    return not _is_legacy(lookup) and lookup.get_boolean("model.add_bias_linear")


def derive_activation(lookup: SettingsLookup) -> str:
    """Return the activation as Megatron-LM names it; 'swiglu' is silu with a gate."""
    name = require(lookup.get_text("model.hidden_act"), "hidden_act")
    if name in ("swiglu", "fusedswiglu", "silu"):
        return "silu"
    if name in ("gelu_new", "fastgelu", "gelu_fast", "gelu_tanh"):
        return "gelu_tanh"
    return name


def derive_gated_linear_unit(lookup: SettingsLookup) -> bool:
    """Return whether the feed-forward layer is gated; the activation 'swiglu' includes the gate."""
    name = lookup.get_text("model.hidden_act") if lookup.is_set("model.hidden_act") else None
    if name in ("swiglu", "fusedswiglu"):
        return True
    return lookup.get_boolean("model.gated_linear_unit")


def derive_untied_embeddings(lookup: SettingsLookup) -> bool:
    """Return whether the output layer has its own weight.

    Two keys with opposite meaning say so; legacy models know only ``tie_word_embeddings``.
    """
    untie_is_set = lookup.is_set("model.untie_embeddings_and_output_weights")
    if lookup.is_set("model.tie_word_embeddings") and not untie_is_set:
        return not lookup.get_boolean("model.tie_word_embeddings")
    if _is_legacy(lookup):
        return not lookup.get_boolean("model.tie_word_embeddings")
    return lookup.get_boolean("model.untie_embeddings_and_output_weights")


def derive_softmax_dtype(lookup: SettingsLookup) -> str:
    """Return the dtype of the softmax, which is set as a dtype or as a switch for float32."""
    if lookup.is_set("model.attention_softmax_in_fp32") and not lookup.is_set(*_SOFTMAX):
        if lookup.get_boolean("model.attention_softmax_in_fp32"):
            return "float32"
        return derive_compute_dtype(lookup)
    return require(lookup.get_dtype(*_SOFTMAX), "softmax_compute_type")


def derive_compute_dtype(lookup: SettingsLookup) -> str:
    """Return ``compute_dtype``."""
    return require(lookup.get_dtype("model.compute_dtype"), "compute_dtype")


def derive_residual_fp32(lookup: SettingsLookup) -> bool:
    """Return whether residuals have a wider dtype than the computation.

    Core models have a switch for it, legacy models a dtype, by default that of the computation.
    """
    for name in ("model.residual_dtype", "model.res_dtype"):
        if lookup.is_set(name):
            return lookup.get_dtype(name) == "float32" and derive_compute_dtype(lookup) != "float32"
    if not lookup.is_set("model.fp32_residual_connection"):
        return False
    return lookup.get_boolean("model.fp32_residual_connection")


def derive_betas(lookup: SettingsLookup) -> tuple[float | None, ...]:
    """Return both decay rates, which are set as one pair or as two keys."""
    beta1: float | None
    beta2: float | None
    if lookup.is_set("optimizer.betas"):
        pair = lookup.get_raw("optimizer.betas")
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise UnknownValueError(f"betas is {pair!r}, expected two numbers")
        beta1, beta2 = parse_counts(pair, "betas")
        return beta1, beta2
    beta1, beta2 = _DEFAULT_BETAS
    if lookup.is_set("optimizer.beta1"):
        beta1 = lookup.get_number("optimizer.beta1")
    if lookup.is_set("optimizer.beta2"):
        beta2 = lookup.get_number("optimizer.beta2")
    return beta1, beta2


def derive_adam_epsilon(lookup: SettingsLookup) -> float:
    """Return the epsilon; its default depends on the optimizer."""
    if lookup.is_set("optimizer.eps"):
        return require(lookup.get_number("optimizer.eps"), "eps")
    optimizer = require(lookup.get_text("optimizer.type"), "the optimizer")
    return _ADAM_WEIGHT_DECAY_EPSILON if "weightdecay" in optimizer else _ADAMW_EPSILON


def derive_clip_grad(lookup: SettingsLookup) -> float:
    """Return the norm at which gradients are clipped, 0 if they are not."""
    if not lookup.get_boolean("wrapper.use_clip_grad"):
        return 0.0
    return lookup.get_number("wrapper.max_grad_norm") or 0.0


def derive_learning_rate(lookup: SettingsLookup) -> float:
    """Return the peak learning rate."""
    return require(lookup.get_number("schedule.learning_rate"), "learning_rate")


def derive_schedule(lookup: SettingsLookup) -> str:
    """Return the form of the decay. Without ``lr_schedule`` the optimizer's rate is constant.

    A polynomial of power 1 is linear.
    """
    if not lookup.is_set("schedule.type"):
        return "constant"
    class_name = str(lookup.get_text("schedule.type"))
    schedule = _SCHEDULES.get(class_name, class_name)
    power = lookup.get_number("schedule.power") if lookup.is_set("schedule.power") else 1.0
    return "linear" if schedule == "polynomial" and power == 1 else schedule


def derive_decay_steps(lookup: SettingsLookup) -> int:
    """Return ``decay_steps``, else ``total_steps``; -1 means all steps of the training."""
    if lookup.is_set("schedule.decay_steps"):
        steps = lookup.get_integer("schedule.decay_steps")
    else:
        steps = lookup.get_integer("schedule.total_steps")
    if steps is not None and steps > 0:
        return steps
    return derive_train_iterations(lookup)


def derive_warmup_steps(lookup: SettingsLookup) -> int:
    """Return the warmup steps. A ratio of all steps overrides ``warmup_steps``."""
    ratio = lookup.get_number("schedule.warmup_ratio")
    if not ratio:
        return lookup.get_integer("schedule.warmup_steps") or 0
    total_steps = lookup.get_integer("schedule.total_steps")
    if total_steps is None or total_steps <= 0:
        total_steps = derive_train_iterations(lookup)
    return require_number(ratio * total_steps, "warmup_ratio")


def derive_data_parallel(lookup: SettingsLookup) -> int:
    """Return ``data_parallel``; it is never derived from the number of devices."""
    return lookup.get_integer("parallel.data_parallel") or 1


def derive_sequence_parallel(lookup: SettingsLookup) -> bool:
    """Return whether sequences are split, which needs model parallel."""
    if not lookup.get_boolean("parallel.use_seq_parallel"):
        return False
    return (lookup.get_integer("parallel.model_parallel") or 1) > 1


def derive_optimizer_parallel(lookup: SettingsLookup) -> bool:
    """Return whether weights and optimizer states are sharded over data parallel."""
    return lookup.get_boolean("context.enable_parallel_optimizer")


def derive_flash_attention(lookup: SettingsLookup) -> bool:
    """Return ``use_flash_attention``."""
    return lookup.get_boolean("model.use_flash_attention")


def derive_global_batch(lookup: SettingsLookup) -> int:
    """Return the samples of one step.

    batch_size x data_parallel x micro batches of the pipeline x interleaved micro batches x
    accumulation. Without pipeline parallel, micro_batch_num is reset to 1 (trainer of MindSpore
    Transformers).
    """
    batch_size = require(lookup.get_integer("runner.batch_size"), "runner_config.batch_size")
    pipeline_stages = lookup.get_integer("parallel.pipeline_stage") or 1
    micro_batches = 1
    if pipeline_stages > 1:
        micro_batches = lookup.get_integer("parallel.micro_batch_num") or 1
    interleaved = lookup.get_integer("top.micro_batch_interleave_num") or 1
    accumulation = lookup.get_integer("runner.gradient_accumulation_steps") or 1
    return batch_size * derive_data_parallel(lookup) * micro_batches * interleaved * accumulation


def derive_train_samples(lookup: SettingsLookup) -> int:
    """Return the first of ``sizes`` times the epochs."""
    sizes = lookup.get_raw("data.sizes")
    if not isinstance(sizes, (list, tuple)) or not sizes:
        raise UnknownValueError("data_loader.sizes is not set: the length of the data set decides")
    return int(parse_counts(sizes, "data_loader.sizes")[0]) * (
        lookup.get_integer("runner.epochs") or 1
    )


def derive_train_iterations(lookup: SettingsLookup) -> int:
    """Return epochs x (samples // global batch): an incomplete last batch is dropped."""
    sizes = lookup.get_raw("data.sizes") if lookup.is_set("data.sizes") else None
    if not isinstance(sizes, (list, tuple)) or not sizes:
        raise UnknownValueError(
            "the number of steps follows from the data set (data_loader.sizes is not set)"
        )
    epochs = lookup.get_integer("runner.epochs") or 1
    samples = int(parse_counts(sizes, "data_loader.sizes")[0])
    global_batch = require_nonzero(derive_global_batch(lookup), "the global batch size")
    return epochs * (samples // global_batch)


def derive_seq_length(lookup: SettingsLookup) -> int:
    """Return the sequence length of the model, else that of the data."""
    return require(lookup.get_integer("model.seq_length", "data.seq_length"), "seq_length")


def derive_split(lookup: SettingsLookup) -> Any:
    """Return the shares of training, validation and test data, which sum to 1."""
    return normalize_shares(lookup.get_raw("data.split"))


def derive_experts(lookup: SettingsLookup) -> int | None:
    """Return the number of experts, None without a mixture; one expert is no mixture."""
    count = lookup.get_integer(*_EXPERTS) if lookup.is_set(*_EXPERTS) else None
    return count if count is not None and count > 1 else None


def derive_moe_layers(lookup: SettingsLookup) -> str:
    """Return one digit per layer, 1 for a mixture of experts."""
    layers = require_layers(lookup.get_integer(*_LAYERS))
    dense_layers = None
    if lookup.is_set("moe.first_k_dense_replace"):
        dense_layers = lookup.get_raw("moe.first_k_dense_replace")
    if isinstance(dense_layers, int) and not isinstance(dense_layers, bool):
        dense_layers = require_layers(dense_layers)
        return "0" * dense_layers + "1" * (layers - dense_layers)
    return expand_layer_pattern(lookup.get_raw("moe.moe_layer_freq"), layers)


def derive_moe_ffn_hidden_size(lookup: SettingsLookup) -> int:
    """Return the width of an expert: that of the dense layers if it is not set."""
    size = lookup.get_integer("moe.moe_intermediate_size", "moe.moe_ffn_hidden_size")
    return size if size is not None else derive_ffn_hidden_size(lookup)


def derive_shared_expert_size(lookup: SettingsLookup) -> int | None:
    """Return the width of all shared experts together, None without shared experts."""
    if lookup.is_set("moe.moe_shared_expert_intermediate_size"):
        return lookup.get_integer("moe.moe_shared_expert_intermediate_size")
    count = lookup.get_integer("moe.shared_expert_num", "moe.n_shared_experts")
    return count * derive_moe_ffn_hidden_size(lookup) if count else None


def derive_router_scaling(lookup: SettingsLookup) -> float:
    """Return the factor of the router's scores, 1 if none is set."""
    factor = lookup.get_number("moe.routed_scaling_factor", "moe.moe_router_topk_scaling_factor")
    return factor or 1.0


def derive_z_loss(lookup: SettingsLookup) -> float:
    """Return the coefficient of the z-loss, 0 if none is set."""
    return lookup.get_number("moe.z_loss_factor", "moe.moe_z_loss_coeff") or 0.0


def derive_mtp_layers(lookup: SettingsLookup) -> int:
    """Return the number of layers for multi-token prediction, 0 if none is set."""
    layers = lookup.get_integer(
        "moe.mtp_depth", "moe.num_nextn_predict_layers", "moe.mtp_num_layers"
    )
    return layers or 0


def derive_recompute(lookup: SettingsLookup) -> bool:
    """Return whether anything is recomputed; the keys hold true or a list of layers."""
    keys = ("recompute", "select_recompute")
    return any(lookup.get_raw(f"recompute.{key}") not in (False, None, [], "") for key in keys)


def _is_legacy(lookup: SettingsLookup) -> bool:
    return derive_implementation(lookup) == "legacy"
