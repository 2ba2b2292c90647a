"""Faults of the spiking transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere

from families.fault import Fault, change_model
from families.spiking.architecture import Model


def _negate_leaks(model: Model) -> Model:
    """Give PLIF neurons what another library stores: the decay's logit, not that of 1 - decay."""
    leaks = {
        name: np.negative(values)
        for name, values in model.weights.items()
        if name.endswith(".leak")
    }
    return replace(model, weights={**model.weights, **leaks})


FAULTS: Mapping[str, Fault] = {
    "norm_unscaled": Fault(
        "norms are a library's batch norm: what they normalize is not multiplied by alpha and the "
        "threshold",
        "missing-step",
        change_model(is_norm_scaled=False),
        lambda *_: [Anywhere(r"(?<![\w.])(?:0\.8(?!\d)|0\.80\d*|0\.79\d*|1\.2[45]\d*)")],
        equivalents=("constant-factor", "scale", "weight-scaled", "argument"),
    ),
    "heads_merged_plain": Fault(
        "the context (batch, heads, tokens, features) is reshaped to tokens without exchanging "
        "heads and tokens",
        "axes-swapped",
        change_model(are_heads_merged_plain=True),
        equivalents=(
            "heads-permuted",
            "missing-step",
            "input-order",
            "channel-order",
            "split-order",
            "row-shift",
        ),
    ),
    "reset_hard": Fault(
        "potentials of neurons of convolutions are reset to 0 after a spike, the default of "
        "libraries, not lowered by the threshold",
        "cell-form",
        change_model(is_reset_hard=True),
        equivalents=(
            "hidden-state-reset",
            "missing-step",
            "missing-term",
            "input-source",
            "argument",
        ),
    ),
    "surrogate_steep": Fault(
        "the backward pass of a fast sigmoid has the slope 25, snnTorch's default, not 4",
        "gradient-scaled",
        change_model(slope=25.0),
        lambda *_: [
            Anywhere(
                r"(?i)surrogate|derivative|slope|steep|sigmoid|element|backward|straight|"
                r"(?<![\w.])(?:25|6\.2\d*)(?![\w.]*\w)"
            )
        ],
        equivalents=("straight-through", "activation-kind", "argument", "missing-step"),
    ),
    "leaks_negated": Fault(
        "neurons of convolutions are loaded from a library that learns the decay's logit, not that "
        "of 1 - decay: their weights have the other sign",
        "weight-scaled",
        _negate_leaks,
        lambda *_: [
            Anywhere(r"(?i)(?<![\w.])-(?:1(?:\.0+\d*)?|0\.99\d*)(?![\w.])|negat|sign|minus")
        ],
        equivalents=("constant-factor", "scale", "missing-step"),
    ),
    "time_averaged_first": Fault(
        "the cross entropy is that of the mean over time, as before TET, not the mean of those of "
        "all time steps",
        "layer-order",
        change_model(is_time_averaged_first=True),
        equivalents=(
            "pooling",
            "loss-reduction",
            "reduction-axis",
            "input-source",
            "missing-step",
            "loss-kind",
        ),
    ),
    "image_interleaved": Fault(
        "images are repeated by repeat_interleave and then seen as time steps of the batch: a time "
        "step has several copies of one image",
        "axes-swapped",
        change_model(is_image_interleaved=True),
        equivalents=(
            "input-order",
            "row-shift",
            "heads-permuted",
            "channel-order",
            "split-order",
            "input-source",
            "missing-step",
            "argument",
        ),
    ),
    "input_decayed": Fault(
        "the input of neurons of tokens is multiplied by 1 - decay, as by SpikingJelly's default "
        "decay_input",
        "constant-factor",
        change_model(is_input_decayed=True),
        lambda *_: [
            Anywhere(
                r"(?i)half|halv|(?<![\w.])(?:0\.5|0\.50\d*|0\.49\d*|2|2\.0\d*|1\.99\d*)(?![\w.]*\w)"
            )
        ],
        equivalents=("scale", "missing-step", "argument"),
    ),
    "refractory_missing": Fault(
        "neurons of convolutions may spike at the step after a spike: the library has no "
        "refractory time",
        "mask-missing",
        change_model(is_refractory=False),
        equivalents=("mask-kind", "missing-step", "missing-term", "input-source"),
    ),
    "reset_not_detached": Fault(
        "spikes are not detached in the reset, SpikingJelly's default: it has a gradient",
        "gradient-stopped",
        change_model(is_reset_detached=False),
        equivalents=("missing-term",),
    ),
    "divergence_meaned": Fault(
        "kl_div has its default reduction, the mean over classes, too, not 'batchmean'",
        "loss-reduction",
        change_model(is_divergence_meaned=True),
        lambda *_: [
            Anywhere(
                r"(?i)mean|class|1/7|(?<![\w.])(?:0\.14[23]\d*|7|7\.0\d*|6\.99\d*)(?![\w.]*\w)"
            )
        ],
        equivalents=(
            "constant-factor",
            "scale",
            "loss-weight",
            "pooling",
            "argument",
            "missing-step",
        ),
    ),
    "channels_reversed": Fault(
        "images were read by OpenCV, blue first, and normalized with the statistics of red first",
        "batch",
        change_model(are_channels_reversed=True),
        equivalents=("channel-order", "input-order", "input-source"),
    ),
    "threshold_exclusive": Fault(
        "neurons spike above their threshold, as snnTorch's do, not also at it: the potentials of "
        "the context are sums of spikes and often equal it",
        "mask-kind",
        change_model(is_threshold_exclusive=True),
        lambda *_: [
            Anywhere(r"(?i)greater|equal|threshold|compar|strict|heaviside|spike|[<>]=?|at least")
        ],
        equivalents=("activation-kind", "argument", "rounding-mode"),
    ),
    "potentials_detached": Fault(
        "the states of all neurons are detached behind each time step, not behind each batch: no "
        "gradient goes back in time",
        "gradient-stopped",
        change_model(are_potentials_detached=True),
        equivalents=("missing-term",),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("norm_unscaled", "mindspore"),
    ("heads_merged_plain", "mindspore"),
    ("reset_hard", "mindspore"),
    ("surrogate_steep", "mindspore"),
    ("leaks_negated", "mindspore"),
    ("time_averaged_first", "mindspore"),
    ("image_interleaved", "pytorch"),
    ("input_decayed", "pytorch"),
    ("refractory_missing", "pytorch"),
    ("reset_not_detached", "pytorch"),
    ("divergence_meaned", "pytorch"),
    ("channels_reversed", "pytorch"),
    ("threshold_exclusive", "mindspore"),
    ("potentials_detached", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "functional": ("", "functional"),
    "written": ("written", ""),
    "both": ("written", "functional"),
}
