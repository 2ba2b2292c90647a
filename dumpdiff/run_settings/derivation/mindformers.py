"""What follows from several keys of a MindSpore Transformers YAML, as its configuration classes and trainer have it.

One function per row of ``rules/settings.yaml`` that says ``derive``, of its name. Each raises
:class:`~dumpdiff.triage.settings.reading.Silent` where too little is set.
"""

from __future__ import annotations

import math
from typing import Any

from ..row_value import Reading, Silent
from .forms import layer_pattern, needed, shares

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


def implementation(r: Reading) -> str:
    """``use_legacy: False`` asks for the core models; before 1.5 there was nothing else than the legacy ones."""
    return "legacy" if r.boolean("top.use_legacy") else "core"


def ffn_hidden_size(r: Reading) -> int:
    """4 h; in LlamaConfig 8/3 h times ffn_dim_multiplier, rounded up to a multiple of multiple_of (256)."""
    size = r.integer(*_FFN) if r.is_set(*_FFN) or not _legacy(r) else None
    if size is not None:
        return size
    hidden = needed(r.integer("model.hidden_size"), "hidden_size")
    if not _legacy(r):
        return 4 * hidden
    multiple = (r.integer("model.multiple_of") if r.is_set("model.multiple_of") else None) or 256
    times = r.number("model.ffn_dim_multiplier") if r.is_set("model.ffn_dim_multiplier") else None
    size = int((times if times is not None else 1) * int(8 * hidden / 3))
    return multiple * math.ceil(size / multiple)


def head_dim(r: Reading) -> int:
    """Hidden size over heads if nothing else is set."""
    if r.is_set("model.head_dim", "model.kv_channels"):
        return needed(r.integer("model.head_dim", "model.kv_channels"), "head_dim")
    return needed(r.integer("model.hidden_size"), "hidden_size") // needed(
        r.integer(*_HEADS), "the heads"
    )


def query_groups(r: Reading) -> int:
    """The heads if no number of key-value heads is set."""
    groups = r.integer(*_GROUPS) if r.is_set(*_GROUPS) else None
    return groups if groups is not None else needed(r.integer(*_HEADS), "the heads")


def grouped_queries(r: Reading) -> bool:
    """Whether several heads share their keys."""
    return query_groups(r) != r.integer(*_HEADS)


def position_embedding(r: Reading) -> str:
    """Rotary, unless ALiBi or an extension (yarn, llama3, ...) is asked for."""
    if r.is_set("model.position_embedding_type"):
        return str(r.text("model.position_embedding_type"))
    if r.is_set("model.use_alibi_mask") and r.boolean("model.use_alibi_mask"):
        return "alibi"
    if r.is_set("model.extend_method"):
        return str(r.text("model.extend_method"))
    return "rope"


def qkv_bias(r: Reading) -> bool:
    """A bias of all linear layers of a core model is one of query, key and value too."""
    return r.boolean("model.qkv_has_bias", "model.attention_bias", "model.add_qkv_bias") or (
        not _legacy(r) and r.boolean("model.add_bias_linear")
    )


def activation(r: Reading) -> str:
    """``hidden_act: silu`` with ``gated_linear_unit``, or 'swiglu' in one word, is what --swiglu says."""
    name = needed(r.text("model.hidden_act"), "hidden_act")
    if name in ("swiglu", "fusedswiglu", "silu"):
        return "silu"
    return "gelu_tanh" if name in ("gelu_new", "fastgelu", "gelu_fast", "gelu_tanh") else name


def gated(r: Reading) -> bool:
    """'swiglu' says it in one word."""
    if r.is_set("model.hidden_act") and r.text("model.hidden_act") in ("swiglu", "fusedswiglu"):
        return True
    return r.boolean("model.gated_linear_unit")


def untied(r: Reading) -> bool:
    """Said either way round; legacy models know only ``tie_word_embeddings``."""
    if r.is_set("model.tie_word_embeddings") and not r.is_set(
        "model.untie_embeddings_and_output_weights"
    ):
        return not r.boolean("model.tie_word_embeddings")
    if _legacy(r):
        return not r.boolean("model.tie_word_embeddings")
    return r.boolean("model.untie_embeddings_and_output_weights")


def softmax_dtype(r: Reading) -> str:
    """A dtype, or a switch for float32."""
    if r.is_set("model.attention_softmax_in_fp32") and not r.is_set(*_SOFTMAX):
        return "float32" if r.boolean("model.attention_softmax_in_fp32") else compute_dtype(r)
    return needed(r.dtype(*_SOFTMAX), "softmax_compute_type")


def compute_dtype(r: Reading) -> str:
    """One key."""
    return needed(r.dtype("model.compute_dtype"), "compute_dtype")


def residual_fp32(r: Reading) -> bool:
    """A switch in core models, a dtype in legacy ones, where it is the computation's if it is not set."""
    for name in ("model.residual_dtype", "model.res_dtype"):
        if r.is_set(name):
            return r.dtype(name) == "float32" and compute_dtype(r) != "float32"
    return r.is_set("model.fp32_residual_connection") and r.boolean(
        "model.fp32_residual_connection"
    )


def betas(r: Reading) -> tuple[float | None, ...]:
    """One pair, or two keys; 0.9 and 0.999 in all of its Adam optimizers."""
    if r.is_set("optimizer.betas"):
        pair = r.raw("optimizer.betas")
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise Silent(f"betas is {pair!r}, expected two numbers")
        return float(pair[0]), float(pair[1])
    first = r.number("optimizer.beta1") if r.is_set("optimizer.beta1") else 0.9
    second = r.number("optimizer.beta2") if r.is_set("optimizer.beta2") else 0.999
    return first, second


def adam_epsilon(r: Reading) -> float:
    """1e-8 in AdamW, 1e-6 in those that stem from MindSpore's AdamWeightDecay."""
    if r.is_set("optimizer.eps"):
        return needed(r.number("optimizer.eps"), "eps")
    return 1e-6 if "weightdecay" in needed(r.text("optimizer.type"), "the optimizer") else 1e-8


def clip_grad(r: Reading) -> float:
    """0 is no clipping."""
    return (r.number("wrapper.max_grad_norm") or 0.0) if r.boolean("wrapper.use_clip_grad") else 0.0


def learning_rate(r: Reading) -> float:
    """The peak."""
    return needed(r.number("schedule.learning_rate"), "learning_rate")


def schedule(r: Reading) -> str:
    """The class; one without lr_schedule keeps the optimizer's rate. A polynomial of power 1 is linear."""
    if not r.is_set("schedule.type"):
        return "constant"
    name = _SCHEDULES.get(str(r.text("schedule.type")), str(r.text("schedule.type")))
    power = r.number("schedule.power") if r.is_set("schedule.power") else 1.0
    return "linear" if name == "polynomial" and power == 1 else name


def decay_steps(r: Reading) -> int:
    """``decay_steps``, else ``total_steps``, of which -1 means all steps of the training."""
    steps = (
        r.integer("schedule.decay_steps")
        if r.is_set("schedule.decay_steps")
        else r.integer("schedule.total_steps")
    )
    return steps if steps is not None and steps > 0 else train_iterations(r)


def warmup_steps(r: Reading) -> int:
    """A ratio is one of all steps, and counts more than warmup_steps."""
    ratio = r.number("schedule.warmup_ratio")
    if ratio:
        total = r.integer("schedule.total_steps")
        return int(ratio * (total if total is not None and total > 0 else train_iterations(r)))
    return r.integer("schedule.warmup_steps") or 0


def data_parallel(r: Reading) -> int:
    """Set, never derived from the number of devices."""
    return r.integer("parallel.data_parallel") or 1


def sequence_parallel(r: Reading) -> bool:
    """Without model parallel there is nothing to split."""
    return (
        r.boolean("parallel.use_seq_parallel") and (r.integer("parallel.model_parallel") or 1) > 1
    )


def optimizer_parallel(r: Reading) -> bool:
    """Shards weights and states over data parallel."""
    return r.boolean("context.enable_parallel_optimizer")


def flash_attention(r: Reading) -> bool:
    """One switch."""
    return r.boolean("model.use_flash_attention")


def global_batch(r: Reading) -> int:
    """batch_size x data_parallel x micro batches of the pipeline x interleaved micro batches x accumulation.

    Without pipeline parallel micro_batch_num is reset to 1 (trainer of MindSpore Transformers).
    """
    size = needed(r.integer("runner.batch_size"), "runner_config.batch_size")
    stages = r.integer("parallel.pipeline_stage") or 1
    micro = (r.integer("parallel.micro_batch_num") or 1) if stages > 1 else 1
    interleaved = r.integer("top.micro_batch_interleave_num") or 1
    accumulated = r.integer("runner.gradient_accumulation_steps") or 1
    return size * data_parallel(r) * micro * interleaved * accumulated


def train_samples(r: Reading) -> int:
    """The first of ``sizes``, once per epoch."""
    sizes = r.raw("data.sizes")
    if not isinstance(sizes, (list, tuple)) or not sizes:
        raise Silent("data_loader.sizes is not set: the length of the data set decides")
    return int(sizes[0]) * (r.integer("runner.epochs") or 1)


def train_iterations(r: Reading) -> int:
    """epochs x (samples // global batch): an incomplete last batch is dropped."""
    sizes = r.raw("data.sizes") if r.is_set("data.sizes") else None
    if not isinstance(sizes, (list, tuple)) or not sizes:
        raise Silent("the number of steps follows from the data set (data_loader.sizes is not set)")
    return (r.integer("runner.epochs") or 1) * (int(sizes[0]) // global_batch(r))


def seq_length(r: Reading) -> int:
    """The model's, else that of the data."""
    return needed(r.integer("model.seq_length", "data.seq_length"), "seq_length")


def split(r: Reading) -> Any:
    """The shares of training, validation and test data, scaled to sum to 1."""
    return shares(r.raw("data.split"))


def experts(r: Reading) -> int | None:
    """None without a mixture; a mixture of one is none."""
    count = r.integer(*_EXPERTS) if r.is_set(*_EXPERTS) else None
    return count if count is not None and count > 1 else None


def moe_layers(r: Reading) -> str:
    """Which layers are mixtures, as a text of 0 and 1."""
    layers = needed(r.integer(*_LAYERS), "the layers")
    dense = r.raw("moe.first_k_dense_replace") if r.is_set("moe.first_k_dense_replace") else None
    if isinstance(dense, int) and not isinstance(dense, bool):
        return "0" * dense + "1" * (layers - dense)
    return layer_pattern(r.raw("moe.moe_layer_freq"), layers)


def moe_ffn_hidden_size(r: Reading) -> int:
    """That of the dense layers if it is not set."""
    size = r.integer("moe.moe_intermediate_size", "moe.moe_ffn_hidden_size")
    return size if size is not None else ffn_hidden_size(r)


def shared_expert_size(r: Reading) -> int | None:
    """The width of all shared experts together."""
    if r.is_set("moe.moe_shared_expert_intermediate_size"):
        return r.integer("moe.moe_shared_expert_intermediate_size")
    count = r.integer("moe.shared_expert_num", "moe.n_shared_experts")
    return count * moe_ffn_hidden_size(r) if count else None


def router_scaling(r: Reading) -> float:
    """No factor is a factor of 1."""
    return r.number("moe.routed_scaling_factor", "moe.moe_router_topk_scaling_factor") or 1.0


def z_loss(r: Reading) -> float:
    """No coefficient is a coefficient of 0."""
    return r.number("moe.z_loss_factor", "moe.moe_z_loss_coeff") or 0.0


def mtp_layers(r: Reading) -> int:
    """None is 0."""
    return r.integer("moe.mtp_depth", "moe.num_nextn_predict_layers", "moe.mtp_num_layers") or 0


def recompute(r: Reading) -> bool:
    """Whether anything is computed twice: true, or a list of layers."""
    return any(
        r.raw(f"recompute.{name}") not in (False, None, [], "")
        for name in ("recompute", "select_recompute")
    )


def _legacy(r: Reading) -> bool:
    return implementation(r) == "legacy"
