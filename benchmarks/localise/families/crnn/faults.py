"""Faults of the text-line recognizer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Ratio

from families.crnn.architecture import BATCH, CTC_WEIGHT, LSTM_NAMES, Model
from families.fault import Fault, change_model, change_weight


def _order_gates(model: Model) -> Model:
    """Put the rows of the decoder's cell into the order i, g, f, o."""
    weights = dict(model.weights)
    for name in LSTM_NAMES:
        i, f, g, o = np.split(weights[f"decoder.{name}"], 4)
        weights[f"decoder.{name}"] = np.concatenate([i, g, f, o])
    return change_model(weights=weights)(model)


FAULTS: Mapping[str, Fault] = {
    "steps_reshaped": Fault(
        "logarithms of (batch, columns, classes) are reshaped to CTC's (columns, batch, classes), "
        "not transposed",
        "axes-swapped",
        change_model(are_steps_reshaped=True),
        equivalents=("input-order", "input-source", "missing-step", "row-shift", "split-order"),
    ),
    "norm_last": Fault(
        "the last stage has its batch norm behind the rectifier, as older layers have it",
        "layer-order",
        change_model(is_norm_last=True),
        equivalents=("input-source", "input-order", "missing-step", "activation-kind"),
    ),
    "fill_tiny": Fault(
        "a typing error: scores of padding are filled with -1e-9, not -1e9",
        "mask-fill",
        change_model(masked_score=-1e-9),
        lambda *_: [Anywhere(r"(?i)mask|padding|fill|1e[-+]?0?9|column")],
        equivalents=("mask-missing", "mask-kind", "argument"),
    ),
    "keys_stopped": Fault(
        "keys are computed once, before the loop over characters, from states without a gradient",
        "gradient-stopped",
        change_model(are_keys_stopped=True),
        equivalents=("missing-term",),
    ),
    "kernel_axes": Fault(
        "kernels of the second stage are loaded with height and width exchanged",
        "kernel-axes",
        change_weight("stages.1.weight", lambda kernel: kernel.swapaxes(2, 3)),
        equivalents=("axes-swapped", "weight-transposed"),
    ),
    "ctc_gradient": Fault(
        "CTC's own backward pass divides by the batch, over which its mean is taken already",
        "gradient-scaled",
        change_model(ctc_gradient=1 / BATCH),
        lambda faulty, clean: [Ratio(faulty.ctc_gradient / clean.ctc_gradient)],
        equivalents=("constant-factor", "scale"),
    ),
    "start_column": Fault(
        "the decoder begins with the states of the last column in both directions, where the "
        "backward one has read one column only",
        "input-source",
        change_model(is_start_of_last_column=True),
        equivalents=(
            "pooling",
            "position-offset",
            "row-shift",
            "scan-direction",
            "missing-step",
            "argument",
        ),
    ),
    "columns_all": Fault(
        "CTC is given the number of all columns for each image, padding included",
        "mask-missing",
        change_model(are_all_columns_aligned=True),
        equivalents=("argument", "input-source", "mask-kind", "loss-reduction", "missing-step"),
    ),
    "locations_last": Fault(
        "attention's convolution reads the weights of the step before, not the sum of all so far",
        "missing-term",
        change_model(are_locations_summed=False),
        equivalents=(
            "input-source",
            "missing-step",
            "skip-missing",
            "skip-source",
            "hidden-state-reset",
        ),
    ),
    "energy_gradient": Fault(
        "the backward pass of a fused energy takes the input of tanh for its result",
        "gradient-scaled",
        change_model(is_energy_gradient_of_input=True),
        lambda *_: [Anywhere(r"(?i)tanh|activation|derivative|squar|\b1 - ")],
        equivalents=("activation-kind", "argument", "input-source", "missing-step"),
    ),
    "edge_repeated": Fault(
        "images are padded by their last column, as the loader of a known benchmark does it, not "
        "by zeros",
        "padding-mode",
        change_model(is_edge_repeated=True),
        equivalents=("batch", "input-source", "mask-missing", "argument"),
    ),
    "losses_exchanged": Fault(
        "CTC and attention have each other's weight in the loss",
        "loss-weight",
        change_model(ctc_weight=1 - CTC_WEIGHT),
        lambda *_: [
            Anywhere(r"(?<![\w.])(?:0?\.(?:[37]0*|[26]99\d*|42[89]\d*)|2\.33\d*)(?!\d)|exchang")
        ],
        equivalents=("constant-factor", "scale", "argument", "input-order"),
    ),
    "decoder_gates": Fault(
        "the decoder's cell comes from a TensorFlow checkpoint, whose rows are input, candidate, "
        "forget, output",
        "gate-order",
        _order_gates,
        lambda *_: [Anywhere("(?i)gate|order|row|block|exchang|swap|permut|split")],
        equivalents=("weight-rows", "split-order", "heads-permuted", "channel-order"),
    ),
    "columns_floored": Fault(
        "an image of an odd width has the number of columns of a pooling that drops its last "
        "pixel: half of the width is rounded down, not up",
        "rounding-mode",
        change_model(are_columns_floored=True),
        equivalents=(
            "argument",
            "constant-offset",
            "missing-step",
            "missing-term",
            "mask-shifted",
        ),
    ),
    "texts_undivided": Fault(
        "CTC's loss of a text is not divided by its characters, as in warp-ctc without "
        "length_average",
        "loss-reduction",
        change_model(is_text_divided=False),
        equivalents=("missing-step", "loss-weight", "argument"),
    ),
    "padding_read": Fault(
        "images of a batch are not packed: the backward LSTM reads padding first and begins a text "
        "with a state that is not zero",
        "mask-missing",
        change_model(is_padding_read=True),
        equivalents=("mask-kind", "hidden-state-reset", "missing-step"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("steps_reshaped", "mindspore"),
    ("norm_last", "mindspore"),
    ("fill_tiny", "mindspore"),
    ("keys_stopped", "mindspore"),
    ("kernel_axes", "mindspore"),
    ("ctc_gradient", "mindspore"),
    ("start_column", "pytorch"),
    ("columns_all", "pytorch"),
    ("locations_last", "pytorch"),
    ("energy_gradient", "pytorch"),
    ("edge_repeated", "pytorch"),
    ("losses_exchanged", "pytorch"),
    ("decoder_gates", "mindspore"),
    ("columns_floored", "pytorch"),
    ("texts_undivided", "mindspore"),
    ("padding_read", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "stepped": ("", "stepped"),
    "written": ("written", ""),
    "both": ("written", "stepped"),
}
