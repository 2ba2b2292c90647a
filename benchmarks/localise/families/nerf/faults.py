"""Faults of the radiance field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from claims import Anywhere, Ratio, Values

from families.fault import Fault, change_model, change_optimizer
from families.nerf.architecture import Model


def _swap_networks(model: Model) -> Model:
    """Exchange the weights of the coarse and the fine network."""
    exchanged = {"coarse": "fine", "fine": "coarse"}
    swapped = {}
    for name in model.weights:
        network, _, rest = name.partition(".")
        swapped[name] = model.weights[f"{exchanged[network]}.{rest}"]
    return replace(model, weights=swapped)


FAULTS: Mapping[str, Fault] = {
    "frequencies_pi": Fault(
        "frequencies of the encodings times pi, as the paper has them, not the released code",
        "constant-factor",
        change_model(frequency_factor=3.141592653589793),
        lambda faulty, clean: [Ratio(faulty.frequency_factor / clean.frequency_factor)],
        equivalents=("scale", "argument", "missing-step"),
    ),
    "sines_grouped": Fault(
        "encodings hold all sines before all cosines, not both frequency by frequency",
        "axes-swapped",
        change_model(are_sines_grouped=True),
        lambda *_: [
            Anywhere(r"(?i)\b(co)?sine?s?\b|order|exchang|swap|transpos|interleav|ax[ei]s")
        ],
        equivalents=(
            "time-embedding-order",
            "input-order",
            "input-source",
            "split-order",
            "channel-order",
            "rope-layout",
        ),
    ),
    "views_unnormalized": Fault(
        "directions of view are encoded with the length that rays have, not as unit vectors",
        "missing-step",
        change_model(are_views_normalized=False),
        equivalents=("norm-missing", "input-source", "scale", "missing-term"),
    ),
    "last_endless": Fault(
        "the last interval of a ray is endless, 1e10, as in the first code, not up to the far end",
        "argument",
        change_model(is_last_endless=True),
        equivalents=("input-source", "padding-mode", "missing-step", "constant-offset"),
    ),
    "product_inclusive": Fault(
        "the product of the transmittance is not exclusive: a sample hides itself",
        "row-shift",
        change_model(is_product_inclusive=True),
        equivalents=(
            "argument",
            "causal-shift",
            "mask-shifted",
            "position-offset",
            "label-shift",
            "missing-step",
            "input-source",
        ),
    ),
    "shift_missing": Fault(
        "densities are softplus without the shift by -1",
        "constant-offset",
        change_model(density_shift=0.0),
        lambda *_: [Anywhere(r"\b1\b|missing|left out|without")],
        equivalents=("missing-step", "missing-term", "argument", "input-source"),
    ),
    "skip_last": Fault(
        "the encoded point is joined behind the hidden layer at the skip, not before it",
        "input-order",
        change_model(is_skip_last=True),
        equivalents=("split-order", "input-source", "channel-order"),
    ),
    "background_missing": Fault(
        "colors are composited without the white background",
        "missing-term",
        change_model(has_background=False),
        equivalents=("missing-step", "skip-missing", "input-source"),
    ),
    "coarse_weight": Fault(
        "the coarse color counts like the fine one in the loss, not a tenth of it",
        "loss-weight",
        change_model(coarse_weight=1.0),
        lambda faulty, clean: [Ratio(faulty.coarse_weight / clean.coarse_weight)],
        equivalents=("constant-factor", "scale", "missing-step", "argument"),
    ),
    "distortion_stopped": Fault(
        "the distortion reads detached weights",
        "gradient-stopped",
        change_model(is_distortion_stopped=True),
    ),
    "networks_swapped": Fault(
        "the checkpoints of the coarse and the fine network exchanged",
        "weight-swapped",
        _swap_networks,
    ),
    "adam_eps": Fault(
        "Adam has the default eps of both frameworks, 1e-8, not 1e-6",
        "optimizer-epsilon",
        change_optimizer(eps=1e-8),
        lambda faulty, clean: [Values(faulty.optimizer.eps, clean.optimizer.eps)],
        optimizer=True,
        equivalents=("argument",),
    ),
    "density_relu": Fault(
        "densities are relu of what the network gives, as in the first code, not softplus",
        "activation-kind",
        change_model(density_activation="relu"),
        lambda *_: [Anywhere("(?i)relu|softplus|maximum|clamp")],
        equivalents=("missing-step", "clamp"),
    ),
    "gradient_by_distance": Fault(
        "gradients of samples are multiplied by their squared distances, against floaters near "
        "the camera",
        "gradient-scaled",
        change_model(is_gradient_by_distance=True),
        lambda *_: [Anywhere("(?i)row|sample|point|distance|depth|each|element|z_vals")],
        equivalents=("missing-step", "input-source"),
    ),
    "depth_expected": Fault(
        "depths are divided by the opacity of their rays, as nerfstudio's expected ones are",
        "missing-step",
        change_model(is_depth_expected=True),
        equivalents=("norm-missing", "pooling"),
    ),
    "views_tiled": Fault(
        "directions are repeated as a whole for the samples, not each of them, while points are "
        "flattened ray by ray",
        "axes-swapped",
        change_model(are_views_tiled=True),
        equivalents=(
            "input-order",
            "row-shift",
            "heads-permuted",
            "channel-order",
            "split-order",
            "input-source",
            "argument",
        ),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("frequencies_pi", "mindspore"),
    ("sines_grouped", "mindspore"),
    ("views_unnormalized", "pytorch"),
    ("last_endless", "mindspore"),
    ("product_inclusive", "mindspore"),
    ("shift_missing", "pytorch"),
    ("skip_last", "mindspore"),
    ("background_missing", "pytorch"),
    ("coarse_weight", "pytorch"),
    ("distortion_stopped", "mindspore"),
    ("networks_swapped", "pytorch"),
    ("adam_eps", "pytorch"),
    ("density_relu", "pytorch"),
    ("gradient_by_distance", "mindspore"),
    ("depth_expected", "mindspore"),
    ("views_tiled", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fields": ("", "fields"),
    "split": ("split", ""),
}
