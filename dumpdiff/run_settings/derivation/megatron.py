"""What follows from several options of Megatron-LM and Megatron-SWIFT, as ``validate_args`` of Megatron-LM has it.

One function per row of ``rules/settings.yaml`` that says ``derive``, of its name. Each raises
:class:`~dumpdiff.triage.settings.reading.Silent` where too little is set.
"""

from __future__ import annotations

import math
from typing import Any

from ..row_value import Reading, Silent
from .forms import layer_pattern, needed, shares


def implementation(r: Reading) -> str:
    """Core models, unless the older ones are asked for."""
    if r.is_set("use-mcore-models") and r.boolean("use-mcore-models"):
        return "core"
    return "legacy" if r.boolean("use-legacy-models") else "core"


def ffn_hidden_size(r: Reading) -> int:
    """4 h; with SwiGLU 2/3 of that, rounded down to a multiple of 64 (Megatron-LM validate_args)."""
    size = r.integer("ffn-hidden-size")
    if size is not None:
        return size
    hidden = needed(r.integer("hidden-size"), "hidden-size")
    return int(4 * hidden * 2 / 3) // 64 * 64 if r.boolean("swiglu") else 4 * hidden


def head_dim(r: Reading) -> int:
    """Hidden size over heads if nothing else is set."""
    size = r.integer("kv-channels")
    if size is not None:
        return size
    return needed(r.integer("hidden-size"), "hidden-size") // needed(
        r.integer("num-attention-heads"), "the heads"
    )


def query_groups(r: Reading) -> int:
    """The heads unless grouped-query attention is on: without it num-query-groups is ignored."""
    if r.boolean("group-query-attention"):
        return needed(r.integer("num-query-groups"), "num-query-groups")
    return needed(r.integer("num-attention-heads"), "num-attention-heads")


def grouped_queries(r: Reading) -> bool:
    """Whether several heads share their keys; a switch with as many groups as heads changes nothing."""
    return query_groups(r) != r.integer("num-attention-heads")


def position_embedding(r: Reading) -> str:
    """``--use-rotary-position-embeddings`` stands for the type 'rope'; ``--no-position-embedding`` for none."""
    if r.is_set("use-rotary-position-embeddings") and r.boolean("use-rotary-position-embeddings"):
        return "rope"
    kind = r.text("position-embedding-type") or "none"
    if (
        kind == "learned_absolute"
        and r.is_set("no-position-embedding")
        and not r.boolean("no-position-embedding")
    ):
        return "none"
    return kind


def qkv_bias(r: Reading) -> bool:
    """A bias of all linear layers is one of query, key and value too."""
    return r.boolean("disable-bias-linear") or r.boolean("add-qkv-bias")


def vocabulary(r: Reading) -> int:
    """Rows of the embedding: the tokenizer's, filled up to a multiple of make-vocab-size-divisible-by x TP."""
    if r.is_set("padded-vocab-size"):
        return needed(r.integer("padded-vocab-size"), "padded-vocab-size")
    size = needed(r.integer("vocab-size"), "vocab-size (the tokenizer decides)")
    multiple = (r.integer("make-vocab-size-divisible-by") or 1) * (
        r.integer("tensor-model-parallel-size") or 1
    )
    return multiple * math.ceil(size / multiple)


def activation(r: Reading) -> str:
    """silu for --swiglu, else relu2, gelu (tanh form: --openai-gelu) or gelu."""
    for option, name in (
        ("swiglu", "silu"),
        ("squared-relu", "squared_relu"),
        ("openai-gelu", "gelu_tanh"),
    ):
        if r.boolean(option):
            return name
    return "gelu"


def gated(r: Reading) -> bool:
    """Only --swiglu makes the unit gated."""
    return r.boolean("swiglu")


def untied(r: Reading) -> bool:
    """Whether the output layer has a weight of its own."""
    return r.boolean("untie-embeddings-and-output-weights")


def compute_dtype(r: Reading) -> str:
    """bf16, fp16 or neither."""
    if r.boolean("bf16"):
        return "bfloat16"
    return "float16" if r.boolean("fp16") else "float32"


def gradient_dtype(r: Reading) -> str:
    """--bf16 turns accumulation in fp32 on by itself, unless gradients are reduced in bf16."""
    computed = compute_dtype(r)
    if r.boolean("accumulate-allreduce-grads-in-fp32"):
        return "float32"
    if computed == "bfloat16":
        reduced = r.is_set("grad-reduce-in-bf16") and r.boolean("grad-reduce-in-bf16")
        return "bfloat16" if reduced else "float32"
    return computed


def weight_dtype(r: Reading) -> str:
    """The optimizer keeps weights in float32, whatever the model computes in."""
    main = r.dtype("main-params-dtype") if r.is_set("main-params-dtype") else None
    return main or "float32"


def softmax_dtype(r: Reading) -> str:
    """float32 on demand, or with query-key layer scaling; else the model's."""
    if r.boolean("attention-softmax-in-fp32") or r.boolean("apply-query-key-layer-scaling"):
        return "float32"
    return compute_dtype(r)


def rotary_dtype(r: Reading) -> str:
    """Fused: float32. Unfused: sine and cosine are cast to the model's dtype before they multiply."""
    return "float32" if r.boolean("no-rope-fusion") else compute_dtype(r)


def router_dtype(r: Reading) -> str:
    """The model's dtype if none is set."""
    name = r.text("moe-router-dtype")
    if name in (None, "none"):
        return compute_dtype(r)
    return needed(r.dtype("moe-router-dtype"), "moe-router-dtype")


def betas(r: Reading) -> tuple[float | None, ...]:
    """Both decay rates of the moments."""
    return r.number("adam-beta1"), r.number("adam-beta2")


def clip_grad(r: Reading) -> float:
    """0 is no clipping."""
    return r.number("clip-grad") or 0.0


def learning_rate(r: Reading) -> float:
    """The peak."""
    return needed(r.number("lr"), "lr")


def schedule(r: Reading) -> str:
    """The form of the decay."""
    return needed(r.text("lr-decay-style"), "lr-decay-style")


def decay_steps(r: Reading) -> int:
    """The steps of the training if none are set."""
    steps = r.integer("lr-decay-iters")
    if steps is None:
        samples = r.integer("lr-decay-samples")
        return samples // global_batch(r) if samples is not None else train_iterations(r)
    return steps


def warmup_steps(r: Reading) -> int:
    """A fraction is one of the steps of the decay."""
    fraction = r.number("lr-warmup-fraction")
    if fraction:
        return int(fraction * decay_steps(r))
    if r.is_set("lr-warmup-samples") and (samples := r.integer("lr-warmup-samples")):
        return samples // global_batch(r)
    return r.integer("lr-warmup-iters") or 0


def data_parallel(r: Reading) -> int:
    """World size over tensor, pipeline and context parallel; the world size is the launcher's."""
    if r.is_set("data-parallel-size"):
        return needed(r.integer("data-parallel-size"), "data-parallel-size")
    world = r.integer("world-size") if r.is_set("world-size") else None
    split = math.prod(
        r.integer(f"{kind}-size") or 1
        for kind in ("tensor-model-parallel", "pipeline-model-parallel", "context-parallel")
    )
    ranks = needed(world, "the world size (nproc_per_node x nnodes)")
    if ranks % split:
        raise Silent(
            f"{ranks} processes cannot be split into {split} parts by tensor, pipeline and context parallel"
        )
    return ranks // split


def sequence_parallel(r: Reading) -> bool:
    """Without tensor parallel it is turned off."""
    return r.boolean("sequence-parallel") and (r.integer("tensor-model-parallel-size") or 1) > 1


def optimizer_parallel(r: Reading) -> bool:
    """The distributed optimizer shards its states over data parallel."""
    return r.boolean("use-distributed-optimizer")


def flash_attention(r: Reading) -> bool:
    """``auto``, ``flash`` and ``fused`` do not hold the matrix of scores; needs Transformer Engine."""
    if r.is_set("use-flash-attn") and r.boolean("use-flash-attn"):
        return True
    return (
        r.text("attention-backend") in ("auto", "flash", "fused")
        and r.text("transformer-impl") != "local"
    )


def global_batch(r: Reading) -> int:
    """Samples of one step: micro batch x data parallel if it is not set."""
    size = (
        r.integer("global-batch-size")
        if r.is_set("global-batch-size") or r.settings.framework == "swift"
        else None
    )
    if size is not None:
        return size
    return needed(r.integer("micro-batch-size"), "micro-batch-size") * data_parallel(r)


def train_samples(r: Reading) -> int:
    """Iterations x global batch if it is not set."""
    samples = r.integer("train-samples")
    return (
        samples
        if samples is not None
        else needed(r.integer("train-iters"), "train-iters") * global_batch(r)
    )


def train_iterations(r: Reading) -> int:
    """Samples over global batch if it is not set."""
    steps = r.integer("train-iters")
    if steps is not None:
        return steps
    return needed(
        r.integer("train-samples"), "neither train-iters nor train-samples"
    ) // global_batch(r)


def seq_length(r: Reading) -> int:
    """Tokens of a sample."""
    return needed(r.integer("seq-length", "encoder-seq-length", "max-length"), "seq-length")


def split(r: Reading) -> Any:
    """The shares of training, validation and test data, scaled to sum to 1."""
    return shares(r.raw("split"))


def experts(r: Reading) -> int | None:
    """None without a mixture; a mixture of one is none."""
    count = r.integer("num-experts")
    return count if count is not None and count > 1 else None


def moe_layers(r: Reading) -> str:
    """Which layers are mixtures, as a text of 0 and 1."""
    return layer_pattern(
        r.raw("moe-layer-freq"), needed(r.integer("num-layers", "encoder-num-layers"), "the layers")
    )


def topk_normalised(r: Reading) -> bool:
    """The chosen scores sum to 1 unless softmax came before the choice; a sigmoid's are divided by their sum."""
    return r.text("moe-router-score-function") == "sigmoid" or not r.boolean(
        "moe-router-pre-softmax"
    )


def moe_ffn_hidden_size(r: Reading) -> int:
    """That of the dense layers if it is not set."""
    size = r.integer("moe-ffn-hidden-size")
    return size if size is not None else ffn_hidden_size(r)


def shared_expert_size(r: Reading) -> int | None:
    """The width of all shared experts together."""
    return r.integer("moe-shared-expert-intermediate-size")


def router_scaling(r: Reading) -> float:
    """No factor is a factor of 1."""
    return r.number("moe-router-topk-scaling-factor") or 1.0


def z_loss(r: Reading) -> float:
    """No coefficient is a coefficient of 0."""
    return r.number("moe-z-loss-coeff") or 0.0


def mtp_layers(r: Reading) -> int:
    """None is 0."""
    return r.integer("mtp-num-layers") or 0


def recompute(r: Reading) -> bool:
    """Whether anything is computed twice."""
    return r.text("recompute-granularity") not in (None, "none")
