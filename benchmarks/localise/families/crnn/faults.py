"""Faults of the text-line recognizer."""

from __future__ import annotations

from collections.abc import Mapping

from claims import Anywhere, Ratio

from families.crnn.architecture import BATCH, CTC_WEIGHT
from families.fault import Fault, change_model, change_weight

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
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "stepped": ("", "stepped"),
    "written": ("written", ""),
    "both": ("written", "stepped"),
}
