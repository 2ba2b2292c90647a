"""Faults and cases of the benchmark: which fault goes into which model and side.

A fault turns a knob of :mod:`architecture` or changes a weight. ``cause`` is the class of the right
explanation, as ``dumpdiff explain`` names it; ``row`` is the row of a survey of published bugs
that the fault represents. Where a fault first shows is not written here: ``truth`` derives it from
the recorded tensors.

A third of the faults, and all faults of the model ``mla``, are held out: nobody looks at them while
tuning. The faults of other architectures are in :mod:`families`, a package for each; their cases
are among ``CASES``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import families
import numpy as np
from architecture import (
    MODELS,
    OPTIMIZERS,
    Model,
    build_clean,
    replace_layer,
    round_bfloat16,
)

HELD_OUT_MODEL = "mla"


@dataclass(frozen=True)
class Fault:
    """One fault, its cause, and how it changes a model."""

    summary: str
    cause: str
    apply: Callable[[Model, int], Model]
    row: str = ""
    held_out: bool = False
    optimizer: bool = False  #: shows only in the optimizer step
    #: further causes that are as right as ``cause``, as another description of the same difference
    equivalents: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """One pair of recordings: a model, a fault in one of them, and the options of both scripts."""

    name: str
    model: str
    fault: str = "none"
    side: str = ""  #: 'mindspore' or 'pytorch': which of the two carries the fault
    target_options: tuple[str, ...] = ()
    reference_options: tuple[str, ...] = ()
    #: 'mindspore', which is graph mode and its built-in dump, 'mindspore_pynative' with msprobe, or
    #: 'mindspore_recorder', which is PyNative with dumpdiff.record
    target_framework: str = "mindspore"
    #: 'pytorch', which is msprobe, or 'pytorch_recorder', which is dumpdiff.record
    reference_framework: str = "pytorch"

    @property
    def benign(self) -> bool:
        """Return whether the case has no fault, so that a finding is a false alarm."""
        return self.fault == "none"

    @property
    def cause(self) -> str:
        """Return the right explanation, '' for a benign case."""
        return get_fault(self.model, self.fault).cause

    @property
    def right_causes(self) -> frozenset[str]:
        """Return the right explanation and those that are as right; empty for a benign case."""
        fault = get_fault(self.model, self.fault)
        return frozenset({fault.cause, *fault.equivalents}) - {""}

    @property
    def row(self) -> str:
        """Return the row of the survey that the fault represents, or ''."""
        return get_fault(self.model, self.fault).row

    @property
    def held_out(self) -> bool:
        """Return whether nobody may look at the case while tuning."""
        is_model_held_out = self.model in (HELD_OUT_MODEL, *families.HELD_OUT)
        is_pair_held_out = self.name in families.HELD_OUT_PAIRS
        has_pynative_fault = (self.target_framework, self.side) == _HELD_OUT_SIDE
        is_held_out = is_model_held_out or is_pair_held_out or has_pynative_fault
        return is_held_out or get_fault(self.model, self.fault).held_out


#: Of the pairs of PyNative by msprobe, every second fault: those in MindSpore.
_HELD_OUT_SIDE = ("mindspore_pynative", "mindspore")

Change = Callable[[Model, int], Model]


def _change_layer(**knobs: object) -> Change:
    return lambda model, n: replace_layer(model, n, **knobs)


def _change_model(**knobs: object) -> Change:
    return lambda model, _: replace(model, **knobs)


def _change_optimizer(**knobs: object) -> Change:
    return lambda model, _: replace(model, optimizer=replace(model.optimizer, **knobs))


def _change_weight(name: str, change: Callable[[np.ndarray, Model], np.ndarray]) -> Change:
    def apply(model: Model, n: int) -> Model:
        key = name.format(n=n)
        return replace(
            model,
            weights={
                **model.weights,
                key: change(model.weights[key].copy(), model).astype(np.float32),
            },
        )

    return apply


def _swap_weights(first: str, second: str) -> Change:
    def apply(model: Model, n: int) -> Model:
        a, b = first.format(n=n), second.format(n=n)
        return replace(model, weights={**model.weights, a: model.weights[b], b: model.weights[a]})

    return apply


def _permute_heads(weight: np.ndarray, model: Model) -> np.ndarray:
    heads = weight.reshape(-1, model.size.head_dim, weight.shape[1])
    return np.roll(heads, 1, axis=0).reshape(weight.shape)


def _interleave_halves(weight: np.ndarray, model: Model) -> np.ndarray:
    """Order the rows for interleaved rotary pairs, as if a conversion did not permute them."""
    heads = weight.reshape(-1, 2, model.size.head_dim // 2, weight.shape[1])
    return heads.swapaxes(1, 2).reshape(weight.shape)


def _shift_one_row(table: np.ndarray, model: Model) -> np.ndarray:
    table[int(model.batch()[0][0, 3])] *= 0.9
    return table


def _change_per_rank(weight: np.ndarray, model: Model) -> np.ndarray:
    """Interleave the rows of two tensor-parallel ranks by blocks instead of joining them."""
    blocks = weight.reshape(4, -1, weight.shape[1])
    return blocks[[0, 2, 1, 3]].reshape(weight.shape)


def _tie_weights(model: Model, _: int) -> Model:
    return replace(model, head_from="embedding.weight")


FAULTS: Mapping[str, Fault] = {
    "none": Fault("no fault", "", lambda model, _: model),
    # norms
    "eps": Fault(
        "input norm has eps 1e-3 for 1e-5", "epsilon", _change_layer(input_eps=1e-3), "48"
    ),
    "eps_large": Fault("second norm has eps 1e-1", "epsilon", _change_layer(post_eps=1e-1)),
    "eps_subtle": Fault(
        "second norm has eps 1e-4 for 1e-5", "epsilon", _change_layer(post_eps=1e-4), held_out=True
    ),
    "norm_kind": Fault(
        "layer norm for RMS norm, or the other way",
        "norm-kind",
        lambda m, n: replace_layer(
            m, n, input_norm_kind="layer" if m.size.norm == "rms" else "rms"
        ),
    ),
    "norm_weight_ones": Fault(
        "the norm's weight was not loaded",
        "zeroed",
        _change_weight("layers.{n}.input_norm.weight", lambda w, _: np.ones_like(w)),
    ),
    # attention
    "score_scale": Fault(
        "scores divided by the head's size, not its root", "scale", _change_layer(score_scale=0.25)
    ),
    "score_scale_small": Fault(
        "scores 5 % too large", "scale", _change_layer(score_scale=1.05), held_out=True
    ),
    "mask_none": Fault("causal flag ignored", "mask-missing", _change_layer(mask="none"), "47"),
    "mask_shifted": Fault(
        "a token sees the one after it", "mask-shifted", _change_layer(mask="shifted")
    ),
    "rope_layout": Fault(
        "rotary pairs interleaved, not halves",
        "rope-layout",
        _change_layer(rope_interleaved=True),
        "43",
    ),
    "rope_theta": Fault(
        "rotary base 500000 for 10000", "rope-theta", _change_model(rope_theta=5e5)
    ),
    "rope_half": Fault(
        "inverse frequencies rounded to bfloat16",
        "low-precision",
        _change_model(rope_half=True),
        "46",
        True,
    ),
    "position_offset": Fault(
        "positions begin at 1", "position-offset", _change_layer(position_offset=1)
    ),
    "softmax_half": Fault("softmax in float16", "low-precision", _change_layer(softmax_half=True)),
    "softmax_axis": Fault(
        "softmax over the queries", "softmax-axis", _change_layer(softmax_axis=-2), held_out=True
    ),
    "dropout": Fault("dropout left on", "dropout", _change_layer(dropout=0.1)),
    "residual_scale": Fault(
        "attention output scaled by 0.9", "residual-scale", _change_layer(residual_scale=0.9)
    ),
    "residual_order": Fault(
        "residual taken after the norm",
        "residual-order",
        _change_layer(residual="after"),
        held_out=True,
    ),
    # feed-forward
    "gelu_erf": Fault(
        "exact gelu for the tanh form", "gelu-variant", _change_layer(activation="gelu_erf")
    ),
    "gelu_for_silu": Fault(
        "gelu for silu", "activation-kind", _change_layer(activation="gelu_tanh")
    ),
    "relu": Fault(
        "relu for the activation",
        "activation-kind",
        _change_layer(activation="relu"),
        held_out=True,
    ),
    "half_layer": Fault(
        "one feed-forward in float16", "low-precision", _change_layer(compute="float16")
    ),
    "bias_missing": Fault(
        "the bias of one projection is left out", "bias-missing", _change_layer(no_bias="q")
    ),
    "bias_missing_mlp": Fault(
        "the bias of the second layer is left out",
        "bias-missing",
        _change_layer(no_bias="down"),
        held_out=True,
    ),
    "bias_twice": Fault(
        "the bias of the output projection is added by every rank",
        "bias-doubled",
        _change_layer(double_bias="o"),
    ),
    "head_bias_missing": Fault(
        "the bias of the head is left out", "bias-missing", _change_layer(no_bias="head")
    ),
    # weights
    "weight_scaled": Fault(
        "one weight 1 % too large",
        "weight-scaled",
        _change_weight("layers.{n}.mlp.up.weight", lambda w, _: w * 1.01),
    ),
    "weight_scaled_v": Fault(
        "the values' weight 1 % too large",
        "weight-scaled",
        _change_weight("layers.{n}.attention.v.weight", lambda w, _: w * 1.01),
        held_out=True,
    ),
    "weight_transposed": Fault(
        "a square weight transposed",
        "weight-transposed",
        _change_weight("layers.{n}.attention.o.weight", lambda w, _: w.T),
    ),
    "qk_swapped": Fault(
        "the weights of q and k swapped",
        "weight-swapped",
        _swap_weights("layers.{n}.attention.q.weight", "layers.{n}.attention.k.weight"),
    ),
    "gate_up_swapped": Fault(
        "gate and up swapped",
        "gate-up-swapped",
        _swap_weights("layers.{n}.mlp.gate.weight", "layers.{n}.mlp.up.weight"),
        held_out=True,
    ),
    "heads_permuted": Fault(
        "heads of q in another order",
        "heads-permuted",
        _change_weight("layers.{n}.attention.q.weight", _permute_heads),
        "43",
    ),
    "rope_rows": Fault(
        "rows of k not permuted for the rotary halves",
        "heads-permuted",
        _change_weight("layers.{n}.attention.k.weight", _interleave_halves),
        "43",
        True,
    ),
    "rows_per_rank": Fault(
        "tensor-parallel rows put together wrongly",
        "heads-permuted",
        _change_weight("layers.{n}.attention.q.weight", _change_per_rank),
        "42",
    ),
    "zero_values": Fault(
        "the values' weight filled with zeros on load",
        "zeroed",
        _change_weight("layers.{n}.attention.v.weight", lambda w, _: 0 * w),
        "44",
    ),
    "zero_keys": Fault(
        "the keys' weight filled with zeros on load",
        "zeroed",
        _change_weight("layers.{n}.attention.k.weight", lambda w, _: 0 * w),
        "44",
        True,
    ),
    "embedding_row": Fault(
        "one row of the embedding 10 % too small",
        "weight-rows",
        _change_weight("embedding.weight", _shift_one_row),
    ),
    "embedding_shift": Fault(
        "rows of the embedding shifted by one",
        "row-shift",
        _change_weight("embedding.weight", lambda w, _: np.roll(w, 1, axis=0)),
        held_out=True,
    ),
    "tied_head": Fault(
        "the head's own weight lost, the embedding in its place",
        "weight-swapped",
        _tie_weights,
        "45",
    ),
    "weight_rounded": Fault(
        "a weight rounded to bfloat16 on the way",
        "low-precision",
        _change_weight("layers.{n}.attention.o.weight", lambda w, _: round_bfloat16(w)),
    ),
    "conv_scaled": Fault(
        "a convolution's weight 1 % too large",
        "weight-scaled",
        _change_weight("stages.{n}.conv2.weight", lambda w, _: w * 1.01),
    ),
    "conv_transposed": Fault(
        "a convolution's kernel flipped",
        "kernel-flipped",
        _change_weight("stages.{n}.conv2.weight", lambda w, _: w[:, :, ::-1, ::-1]),
        held_out=True,
    ),
    "batch_norm_eps": Fault(
        "batch norm has eps 1e-3 for 1e-5", "epsilon", _change_layer(stage_eps=1e-3), "49"
    ),
    # low-rank attention
    "latent_norm_ones": Fault(
        "the norm of the latent was not loaded",
        "zeroed",
        _change_weight("layers.{n}.attention.kv_norm.weight", lambda w, _: np.ones_like(w)),
    ),
    "latent_scaled": Fault(
        "the latent's projection 1 % too large",
        "weight-scaled",
        _change_weight("layers.{n}.attention.kv_b.weight", lambda w, _: w * 1.01),
    ),
    # experts
    "expert_order": Fault(
        "two experts change places", "experts-permuted", _change_layer(expert_order=(1, 0, 2, 3))
    ),
    "router_normalisation": Fault(
        "router weights not normalised",
        "router-normalisation",
        _change_layer(normalise_router=False),
    ),
    "router_sigmoid": Fault(
        "sigmoid scores for softmax",
        "router-normalisation",
        _change_layer(router_sigmoid=True),
        held_out=True,
    ),
    "capacity": Fault(
        "tokens dropped for lack of capacity", "capacity", _change_layer(capacity=10)
    ),
    "expert_missing": Fault(
        "one expert contributes nothing",
        "expert-missing",
        _change_layer(missing_expert=2),
        held_out=True,
    ),
    # loss and data
    "loss_all": Fault("mean over padding too", "loss-reduction", _change_model(loss="all"), "8"),
    "loss_sum": Fault(
        "the sum of the loss, not its mean", "loss-reduction", _change_model(loss="sum"), "9", True
    ),
    "loss_scale": Fault("loss times two", "constant-factor", _change_model(loss_scale=2.0), "1"),
    "label_shift": Fault(
        "labels are the tokens themselves", "label-shift", _change_model(label_shift=0)
    ),
    "label_shift_two": Fault(
        "labels moved twice", "label-shift", _change_model(label_shift=2), "40", True
    ),
    "batch_order": Fault(
        "the sequences in another order",
        "row-shift",
        _change_model(batch_order=(1, 0)),
        held_out=True,
    ),
    "loss_twice": Fault(
        "the vocabulary gathered twice: log 2 too much",
        "loss-reduction",
        _change_model(loss="twice"),
        "33",
    ),
    "mask_fewer": Fault(
        "the loss mask shrinks", "loss-reduction", _change_model(loss="fewer"), "39", True
    ),
    # backward
    "stop_gate": Fault(
        "no gradient through the gate", "gradient-stopped", _change_layer(detached="gate")
    ),
    "stop_attention": Fault(
        "no gradient through the attention",
        "gradient-stopped",
        _change_layer(detached="attention"),
        "17",
        True,
    ),
    "stop_keys": Fault(
        "the keys' gradient stays local",
        "gradient-stopped",
        _change_layer(detached="k"),
        "16",
        True,
    ),
    "gradient_double": Fault(
        "a gradient doubled", "gradient-scaled", _change_layer(gradient_scale=2.0), "21"
    ),
    "gradient_halved": Fault(
        "a gradient averaged, not summed",
        "gradient-scaled",
        _change_layer(gradient_scale=0.5),
        "15",
        True,
    ),
    "stop_router": Fault(
        "no gradient reaches the router", "gradient-stopped", _change_layer(detached="router"), "6"
    ),
    "norm_gradient": Fault(
        "a norm's gradient times two ranks",
        "gradient-scaled",
        _change_layer(norm_gradient=2.0),
        "12",
    ),
    # optimizer
    "adam_eps": Fault(
        "AdamW eps 1e-3 for 1e-8",
        "optimizer-epsilon",
        _change_optimizer(eps=1e-3),
        "32",
        optimizer=True,
    ),
    "bias_correction": Fault(
        "AdamW without bias correction",
        "bias-correction",
        _change_optimizer(bias_correction=False),
        "32",
        optimizer=True,
    ),
    "decay_all": Fault(
        "weight decay on biases and norms",
        "weight-decay",
        _change_optimizer(decay_all=True),
        optimizer=True,
    ),
    "decay_none": Fault(
        "no weight decay",
        "weight-decay",
        _change_optimizer(weight_decay=0.0),
        "32",
        True,
        optimizer=True,
    ),
    "learning_rate": Fault(
        "learning rate three times as large",
        "learning-rate",
        _change_optimizer(learning_rate=3e-3),
        optimizer=True,
    ),
    "clip_none": Fault(
        "gradients not clipped", "clip", _change_optimizer(clip=0.0), "29", optimizer=True
    ),
    "clip_norm": Fault(
        "tied embedding counted twice in the norm",
        "clip",
        _change_optimizer(norm_factor=2**0.5),
        "27",
        optimizer=True,
    ),
    "clip_after": Fault(
        "gradients halved in place of clipped",
        "clip",
        _change_optimizer(gradient_factor=0.5, clip=0.0),
        "28",
        True,
        optimizer=True,
    ),
    "double_before_clip": Fault(
        "gradients doubled by data parallelism; clipping cancels it",
        "gradient-scaled",
        _change_optimizer(gradient_factor=2.0),
        "15",
        optimizer=True,
    ),
    # the optimizer, in one parameter group
    "rate_matrices": Fault(
        "learning rate of matrices doubled",
        "learning-rate",
        _change_optimizer(group="matrices", group_rate=2.0),
        optimizer=True,
    ),
    "rate_vectors": Fault(
        "learning rate of biases and norms doubled",
        "learning-rate",
        _change_optimizer(group="vectors", group_rate=2.0),
        held_out=True,
        optimizer=True,
    ),
    "decay_matrices": Fault(
        "weight decay of matrices doubled",
        "weight-decay",
        _change_optimizer(group="matrices", group_decay=2.0),
        optimizer=True,
    ),
    "beta_matrices": Fault(
        "beta2 of matrices 0.99 for 0.999",
        "beta",
        _change_optimizer(group="matrices", group_beta2=0.99),
        held_out=True,
        optimizer=True,
    ),
    "beta_vectors": Fault(
        "beta2 of biases and norms 0.99 for 0.999",
        "beta",
        _change_optimizer(group="vectors", group_beta2=0.99),
        optimizer=True,
    ),
    "clip_matrices": Fault(
        "gradients of matrices not clipped",
        "clip",
        _change_optimizer(group="matrices", group_clipped=False),
        optimizer=True,
    ),
    "clip_vectors": Fault(
        "gradients of biases and norms not clipped",
        "clip",
        _change_optimizer(group="vectors", group_clipped=False),
        held_out=True,
        optimizer=True,
    ),
    # state that is updated in the forward pass
    "norm_momentum": Fault(
        "running statistics of batch norm with momentum 0.9 for 0.1",
        "norm-momentum",
        _change_layer(norm_momentum=0.9),
        "49",
    ),
}

_NORMS = "eps eps_large eps_subtle norm_kind norm_weight_ones"
_ATTENTION = (
    "score_scale score_scale_small mask_none mask_shifted softmax_half "
    "softmax_axis dropout residual_scale residual_order"
)
_ROTARY = "rope_layout rope_theta rope_half stop_keys"
_WEIGHTS = (
    "weight_scaled weight_transposed heads_permuted zero_keys embedding_row embedding_shift "
    "weight_rounded"
)
_LOSS = "loss_all loss_sum loss_scale label_shift label_shift_two batch_order loss_twice mask_fewer"
_BACKWARD = "stop_attention gradient_double gradient_halved norm_gradient"
_OPTIMIZER = (
    "adam_eps bias_correction decay_all decay_none learning_rate clip_none clip_norm clip_after"
)

#: The faults of each model; they go into the two sides in turn. An offset of all positions is a
#: fault of learned positions only: rotary scores depend on differences of positions.
FAULTS_OF_MODEL: Mapping[str, str] = {
    "llama": f"{_NORMS} {_ATTENTION} {_ROTARY} {_WEIGHTS} {_LOSS} {_BACKWARD} {_OPTIMIZER} "
    "gelu_for_silu relu half_layer weight_scaled_v qk_swapped gate_up_swapped "
    "rope_rows rows_per_rank zero_values tied_head stop_gate",
    "gpt2": "eps eps_large norm_kind score_scale mask_none position_offset gelu_erf relu "
    "half_layer bias_missing "
    "bias_missing_mlp bias_twice weight_scaled weight_transposed embedding_row loss_all "
    "label_shift gradient_double",
    "gqa": "eps_large score_scale mask_shifted rope_layout rope_theta residual_scale "
    "gelu_for_silu weight_scaled_v "
    "heads_permuted rows_per_rank zero_values weight_rounded stop_keys gradient_double",
    "moe": "eps score_scale expert_order router_normalisation router_sigmoid capacity "
    "expert_missing loss_scale "
    "residual_order gradient_halved stop_router",
    "mla": "eps norm_kind score_scale mask_none rope_layout rope_theta stop_gate latent_norm_ones "
    "latent_scaled "
    "gelu_for_silu weight_scaled weight_transposed loss_all label_shift gradient_double",
    "resnet": "batch_norm_eps conv_scaled conv_transposed residual_scale gelu_for_silu "
    "head_bias_missing batch_order",
}

#: Faults of the update: model, kind of optimizer, and the faults, which go into the two sides in
#: turn. MindSpore's own optimizers have one beta2 for all weights, so beta is wrong in AdamW.
_UPDATE_FAULTS: tuple[tuple[str, str, str], ...] = (
    ("llama", "adam", "rate_matrices decay_matrices clip_matrices rate_vectors"),
    ("gqa", "adamw", "beta_vectors double_before_clip rate_matrices beta_matrices decay_matrices"),
    ("gpt2", "sgd", "double_before_clip rate_matrices clip_vectors decay_matrices"),
    ("resnet", "momentum", "rate_vectors rate_matrices clip_matrices decay_matrices"),
)

#: Options of the two sides of a model: the families of names, and how parameters are fused.
_STYLES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "llama": (("--names", "legacy"), ("--names", "hf")),
    "gpt2": (("--names", "mcore"), ("--names", "hf")),
    "gqa": (("--names", "legacy"), ("--names", "mcore", "--fused", "blocks")),
    "moe": (("--names", "mcore"), ("--names", "hf")),
    "mla": (("--names", "legacy"), ("--names", "mcore")),
    "resnet": ((), ()),
}

_BENIGN: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("order", "llama", ("--order", "vkq"), ()),
    ("decomposition", "llama", ("--attention", "bmm"), ("--attention", "sdpa")),
    ("no_scopes", "llama", ("--style", "jit"), ()),
    ("bf16", "llama", (), ("--dtype", "bf16")),
    ("bf16", "gpt2", (), ("--dtype", "bf16")),
    ("recompute", "llama", (), ("--recompute",)),
    ("recompute", "gqa", (), ("--recompute",)),
    ("optimizer", "llama", ("--optimizer",), ("--optimizer",)),
    ("no_scopes", "gqa", ("--style", "jit"), ()),
    ("decomposition", "gpt2", ("--attention", "bmm"), ("--attention", "sdpa")),
    ("order", "mla", ("--order", "vkq"), ()),
    ("no_scopes", "moe", ("--style", "jit"), ()),
)

#: Pairs without a fault in which both sides run one step of an optimizer.
_UPDATES: tuple[tuple[str, str], ...] = (
    *((model, kind) for model in MODELS for kind in ("adam", "adamw", "momentum", "sgd")),
    ("gpt2", "adam_weight_decay"),
    ("llama", "assign_sub"),
    ("resnet", "assign_sub"),
)


#: Pairs of other recorders, with faults of models from :data:`FAULTS_OF_MODEL`.
_RECORDERS: tuple[tuple[str, str, str], ...] = (
    ("pynative", "mindspore_pynative", "pytorch"),
    ("recorder", "mindspore_recorder", "pytorch_recorder"),
    ("recorder_msprobe", "mindspore_recorder", "pytorch"),
)
_RECORDED_FAULTS: Mapping[str, str] = {
    "llama": "eps_large score_scale mask_none gelu_for_silu half_layer weight_scaled "
    "rope_theta loss_scale",
    "moe": "eps score_scale expert_order router_normalisation expert_missing loss_scale",
    "resnet": "batch_norm_eps conv_scaled conv_transposed residual_scale gelu_for_silu "
    "head_bias_missing",
}


def get_fault(model: str, fault: str) -> Fault | families.Fault:
    """Return a fault of a model."""
    if fault != "none" and model in families.NAMES:
        return families.get_fault(model, fault)
    return FAULTS[fault]


def build(model: str, fault: str = "none") -> Model:
    """Return a model with the fault ``NAME`` or ``NAME@LAYER``; default: layer ``layers // 2``.

    A family's model is of its own class, and its faults have no layer.
    """
    if model in families.NAMES:
        return families.build(model, fault)
    name, _, layer = fault.partition("@")
    clean_model = build_clean(model)
    return FAULTS[name].apply(clean_model, int(layer) if layer else clean_model.size.layers // 2)


def _list_cases() -> tuple[Case, ...]:
    cases = [Case(f"{model}-clean", model, "none", "", *_STYLES[model]) for model in MODELS]
    for twin, model, target, reference in _BENIGN:
        styles = _STYLES[model]
        cases.append(
            Case(f"{model}-{twin}", model, "none", "", styles[0] + target, styles[1] + reference)
        )
    for model, names in FAULTS_OF_MODEL.items():
        for turn, fault in enumerate(names.split()):
            options = ("--optimizer",) if FAULTS[fault].optimizer else ()
            target, reference = (style + options for style in _STYLES[model])
            cases.append(
                Case(
                    f"{model}-{fault}",
                    model,
                    fault,
                    ("mindspore", "pytorch")[turn % 2],
                    target,
                    reference,
                )
            )
    # PyTorch's recorders hold the momentum only as an argument, where the truth is not looked for
    cases.append(
        Case("resnet-norm_momentum", "resnet", "norm_momentum", "mindspore", *_STYLES["resnet"])
    )
    for model, kind in _UPDATES:
        if (model, kind) != ("llama", "adamw"):  # that is the benign case "optimizer"
            cases.append(_make_update_case(model, kind))
    for model, kind, names in _UPDATE_FAULTS:
        for turn, fault in enumerate(names.split()):
            cases.append(_make_update_case(model, kind, fault, ("mindspore", "pytorch")[turn % 2]))
    for pair, target_framework, reference_framework in _RECORDERS:
        cases += _list_recorder_cases(pair, target_framework, reference_framework)
    for family in families.NAMES:
        cases += _list_family_cases(family)
    return tuple(cases)


def _list_recorder_cases(pair: str, *frameworks: str) -> list[Case]:
    """Return the cases of a pair of recorders: a clean one and the faults of each model in turn."""
    cases = []
    for model, names in _RECORDED_FAULTS.items():
        for turn, fault in enumerate(["none", *names.split()]):
            side = "" if fault == "none" else ("pytorch", "mindspore")[turn % 2]
            name = f"{pair}-{model}-{'clean' if fault == 'none' else fault}"
            cases.append(Case(name, model, fault, side, *_STYLES[model], *frameworks))
    return cases


def _list_family_cases(family: str) -> list[Case]:
    faults_of_family = families.get_faults(family)
    cases = [
        Case(f"{family}-clean", family),
        Case(f"{family}-pynative", family, target_framework="mindspore_pynative"),
    ]
    for name, variants in faults_of_family.VARIANTS.items():
        options = [("--variant", variant) if variant else () for variant in variants]
        cases.append(Case(f"{family}-{name}", family, "none", "", *options))
    update = (("--optimizer",), ("--optimizer",))
    if any(fault.optimizer for fault in faults_of_family.FAULTS.values()):
        cases.append(Case(f"{family}-optimizer", family, "none", "", *update))
    for fault, side in faults_of_family.CASES:
        options = update if faults_of_family.FAULTS[fault].optimizer else ()
        cases.append(Case(f"{family}-{fault}-{side}", family, fault, side, *options))
    return cases


def _make_update_case(model: str, kind: str, fault: str = "none", side: str = "") -> Case:
    options = ("--optimizer", *([] if kind == "adamw" else [kind]))
    target, reference = (style + options for style in _STYLES[model])
    name = "clean" if fault == "none" else fault
    return Case(f"{model}-{kind}-{name}", model, fault, side, target, reference)


CASES = _list_cases()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that both recording scripts have."""
    parser.add_argument("out", help="folder to make; the dump goes into it")
    parser.add_argument("--model", choices=list(MODELS), required=True)
    parser.add_argument(
        "--fault", default="none", help=f"one of {', '.join(FAULTS)}; NAME@LAYER chooses the layer"
    )
    parser.add_argument(
        "--optimizer",
        nargs="?",
        choices=OPTIMIZERS,
        const="adamw",
        help="also run one step of an optimizer; default: adamw",
    )


def parse_model(args: argparse.Namespace) -> Model:
    """Return the model that the command line requests."""
    if args.fault.partition("@")[0] not in FAULTS:
        raise SystemExit(f"no fault {args.fault!r}; there are: {', '.join(FAULTS)}")
    model = build(args.model, args.fault)
    if args.optimizer is None:
        return model
    return replace(model, optimizer=replace(model.optimizer, kind=args.optimizer))
