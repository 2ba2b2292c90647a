"""Faults of the network for tables."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere

from families.fault import Fault, change_model, change_weight
from families.tabular.architecture import OFFSETS


def _transpose_layers(weight: np.ndarray) -> np.ndarray:
    """Return the square layer of each number transposed."""
    return weight.transpose(0, 2, 1)


def _join_by_name(table: np.ndarray) -> np.ndarray:
    """Return the common table with the categories' parts in the order of their names."""
    parts = np.split(table, OFFSETS[1:])
    return np.concatenate([parts[n] for n in (1, 3, 0, 2)])


FAULTS: Mapping[str, Fault] = {
    "first_norm": Fault(
        "the first block has a norm before its attention, as all others, which stays as it was "
        "initialized",
        "norm-missing",
        change_model(is_first_norm_kept=True),
        equivalents=("missing-step", "input-source", "layer-order"),
    ),
    "offsets_short": Fault(
        "offsets of categories into the common table are sums of their numbers of codes without "
        "the one for missing",
        "constant-offset",
        change_model(are_missing_codes_counted=False),
        equivalents=("row-shift", "position-offset", "weight-rows", "argument", "input-source"),
    ),
    "mask_shifted": Fault(
        "the mask of tokens is that of features with a place for [CLS] at its end, where the first "
        "version of the library has it",
        "mask-shifted",
        change_model(is_mask_shifted=True),
        equivalents=("mask-kind", "row-shift", "input-order"),
    ),
    "support_ignored": Fault(
        "sparsemax's own backward pass subtracts the mean over all features, not over those of "
        "the support",
        "gradient-scaled",
        change_model(is_support_averaged=False),
        equivalents=(
            "pooling",
            "constant-factor",
            "scale",
            "missing-step",
            "mask-missing",
            "input-source",
        ),
    ),
    "class_weights": Fault(
        "the weighted loss of classes is divided by the number of rows, not by the sum of their "
        "weights",
        "loss-reduction",
        change_model(are_class_weights_summed=False),
        equivalents=(
            "loss-weight",
            "constant-factor",
            "scale",
            "pooling",
            "missing-step",
            "input-source",
        ),
    ),
    "filled_first": Fault(
        "missing numbers are filled with zeros before numbers are standardized, not behind it",
        "batch",
        change_model(is_filled_first=True),
        equivalents=(
            "input-source",
            "mask-fill",
            "mask-missing",
            "constant-offset",
            "missing-step",
            "layer-order",
        ),
    ),
    "periodic_transposed": Fault(
        "layers behind periodic embeddings, which are square, are loaded as those of nn.Linear",
        "weight-transposed",
        change_weight("periodic.weight", _transpose_layers),
        equivalents=("axes-swapped",),
    ),
    "frequency_plain": Fault(
        "numbers are multiplied by their frequencies without 2 pi",
        "constant-factor",
        change_model(frequency_scale=1.0),
        lambda *_: [Anywhere(r"(?i)(?<![\d.])(?:0\.159\d*|0\.16|6\.28\d*)(?!\d)|\bpi\b|π")],
        equivalents=("scale", "missing-step", "rope-scaling", "argument", "missing-term"),
    ),
    "virtual_batch": Fault(
        "virtual batches have the library's default size of 128 rows, so that a batch is one",
        "norm-groups",
        change_model(virtual_batch=128),
        equivalents=(
            "norm-kind",
            "reduction-axis",
            "pooling",
            "missing-step",
            "argument",
            "input-source",
        ),
    ),
    "prior_detached": Fault(
        "the prior is a state that masks leave behind without a gradient",
        "gradient-stopped",
        change_model(is_prior_detached=True),
        equivalents=("missing-term",),
    ),
    "rectifier_passed": Fault(
        "the backward pass of a fused ReGLU forgets the rectifier: the gradient of its gate "
        "passes where the gate is negative",
        "straight-through",
        change_model(is_rectifier_passed=True),
        equivalents=("gradient-scaled", "activation-kind", "mask-missing", "missing-step"),
    ),
    "exposure_plain": Fault(
        "the exposure is added to the logarithm of the rate as it is, without its logarithm",
        "missing-step",
        change_model(is_exposure_logarithmic=False),
        equivalents=("activation-kind", "input-source", "constant-offset", "missing-term"),
    ),
    "tables_by_name": Fault(
        "the categories' tables of a checkpoint are joined in the alphabetical order of their "
        "names, not in that of the columns",
        "weight-rows",
        change_weight("categories.weight", _join_by_name),
        lambda *_: [Anywhere("(?i)order|row|shift|roll|permut|swap|weight|table")],
        equivalents=("row-shift", "weight-swapped", "split-order", "heads-permuted", "input-order"),
    ),
    "entropy_maximized": Fault(
        "the masks' loss of pytorch-tabnet, which is the negative entropy and is subtracted there, "
        "is added",
        "constant-factor",
        change_model(is_mask_entropy_maximized=True),
        lambda *_: [
            Anywhere(
                r"(?i)(?<![\w.])-(?:1(?:\.0+\d*)?|0\.99\d*|0\.05\d*)(?![\w.])"
                "|negat|sign|minus|subtract"
            )
        ],
        equivalents=("scale", "loss-weight", "missing-step"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("first_norm", "mindspore"),
    ("offsets_short", "mindspore"),
    ("mask_shifted", "mindspore"),
    ("support_ignored", "mindspore"),
    ("class_weights", "mindspore"),
    ("filled_first", "mindspore"),
    ("periodic_transposed", "pytorch"),
    ("frequency_plain", "pytorch"),
    ("virtual_batch", "pytorch"),
    ("prior_detached", "pytorch"),
    ("rectifier_passed", "pytorch"),
    ("exposure_plain", "pytorch"),
    ("tables_by_name", "mindspore"),
    ("entropy_maximized", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("written", ""),
    "both": ("written", "fused"),
}
