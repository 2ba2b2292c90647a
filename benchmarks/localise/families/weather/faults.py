"""Faults of the weather forecaster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio

from families.fault import Fault, change_model
from families.weather.architecture import GRIDS, Model


def _reshape_tables(model: Model) -> Model:
    """Give all blocks tables of a checkpoint with kinds before positions, by a reshape."""
    weights = dict(model.weights)
    for name, values in model.weights.items():
        if name.endswith("attention.table.weight"):
            kinds_first = np.ascontiguousarray(values.swapaxes(0, 1))
            weights[name] = kinds_first.reshape(values.shape)
    return replace(model, weights=weights)


FAULTS: Mapping[str, Fault] = {
    "columns_masked": Fault(
        "the mask after a roll is Swin's: columns that are neighbors around the globe are cut, too",
        "mask-kind",
        change_model(are_columns_masked=True),
        lambda *_: [Anywhere("(?i)mask|fill|region|column|window")],
        equivalents=("mask-shifted", "mask-missing", "cross-mask", "input-source"),
    ),
    "cells_last": Fault(
        "upsampled channels are read as a pixel shuffle has them, (channels, row, column)",
        "axes-swapped",
        change_model(are_cells_last=True),
        equivalents=("channel-order", "split-order", "heads-permuted", "input-order"),
    ),
    "modes_single": Fault(
        "the inverse transform by tables counts each mode once, without its conjugate",
        "constant-factor",
        change_model(are_modes_single=True),
        lambda *_: [
            Anywhere(
                r"(?i)half|halv|twice|doubl|(?<![\w.])(?:2(?:\.0\d*)?|0\.5|0\.49\d*)(?![\w.]*\d)"
            )
        ],
        equivalents=("scale", "missing-step", "missing-term"),
    ),
    "inverse_gradient": Fault(
        "the own backward pass of the inverse transform is a forward one: not divided by columns",
        "gradient-scaled",
        change_model(is_inverse_gradient_undivided=True),
        lambda *_: [Ratio(float(GRIDS[1][2]))],
        equivalents=("constant-factor", "scale", "missing-step"),
    ),
    "correlation_joint": Fault(
        "the anomaly correlation sums over the batch as well as the globe, and is one for all",
        "reduction-axis",
        change_model(is_correlation_joint=True),
        lambda *_: [Anywhere("(?i)ax[ei]s|dim|sum|mean|batch|sample|reduc|row")],
        equivalents=("loss-reduction", "argument"),
    ),
    "constants_upside_down": Fault(
        "land, soil and topography are from files whose first row is the south pole, not flipped",
        "batch",
        change_model(are_constants_upside_down=True),
        equivalents=("input-order", "row-shift", "scan-direction", "input-source"),
    ),
    "longitude_replicated": Fault(
        "the grid is padded by its edge in longitude, too, not by columns from around the globe",
        "padding-mode",
        change_model(longitude_padding="replicate"),
        equivalents=("argument", "input-source", "row-shift"),
    ),
    "differences_unscaled": Fault(
        "outputs are added to the state as if they were in its deviations, not in those of a "
        "step's differences",
        "missing-step",
        change_model(are_differences_scaled=False),
        equivalents=("residual-scale", "constant-factor", "scale"),
    ),
    "level_weights_reversed": Fault(
        "weights of levels begin at the top, as ERA5 lists them; states begin at the ground",
        "loss-weight",
        change_model(are_level_weights_reversed=True),
        equivalents=(
            "channel-order",
            "input-order",
            "heads-permuted",
            "constant-factor",
            "scale",
            "scan-direction",
        ),
    ),
    "state_detached": Fault(
        "the second step begins from a detached state, as in the pushforward trick",
        "gradient-stopped",
        change_model(is_state_detached=True),
        equivalents=("missing-term",),
    ),
    "padding_gradient_cropped": Fault(
        "the own backward pass of the padding around the globe crops the gradient: columns at the "
        "edges do not get that of their copies",
        "gradient-stopped",
        change_model(is_padding_gradient_cropped=True),
        equivalents=("missing-term", "missing-step", "padding-mode"),
    ),
    "tables_reshaped": Fault(
        "tables of positions come from a checkpoint with kinds of windows first, and are reshaped "
        "where they were to be transposed",
        "weight-transposed",
        _reshape_tables,
        lambda *_: [Anywhere("(?i)transpos|ax[ei]s|order|reshap|permut|row")],
        equivalents=("axes-swapped", "weight-rows", "relative-bias", "heads-permuted"),
    ),
    "crop_late": Fault(
        "recovered latitudes are cropped by the row that the input was padded with in front, "
        "though they begin at the first one: outputs are those of the next latitude",
        "row-shift",
        change_model(first_row=1),
        lambda *_: [Anywhere("(?i)shift|offset|crop|slice|row|latitude|position|index|pad")],
        equivalents=("position-offset", "padding-mode", "input-source", "argument"),
    ),
    "sun_still": Fault(
        "the second step gets the sun's height of the first one: forcings do not go on with time",
        "input-source",
        change_model(is_sun_still=True),
        equivalents=("row-shift", "position-offset", "input-order", "argument"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("columns_masked", "mindspore"),
    ("cells_last", "mindspore"),
    ("modes_single", "mindspore"),
    ("inverse_gradient", "mindspore"),
    ("correlation_joint", "mindspore"),
    ("constants_upside_down", "mindspore"),
    ("longitude_replicated", "pytorch"),
    ("differences_unscaled", "pytorch"),
    ("level_weights_reversed", "pytorch"),
    ("state_detached", "pytorch"),
    ("padding_gradient_cropped", "pytorch"),
    ("tables_reshaped", "pytorch"),
    ("crop_late", "mindspore"),
    ("sun_still", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("written", ""),
    "both": ("written", "fused"),
}
