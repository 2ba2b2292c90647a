"""Faults of the ranking model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Ratio, Values, Words

from families.fault import Fault, change_model, change_weight
from families.ranker.architecture import BATCH

FAULTS: Mapping[str, Fault] = {
    "history_sum": Fault(
        "the sum of a history, not its mean",
        "pooling",
        change_model(history_pooling="sum"),
        lambda *_: [Anywhere("sum|mean|count|length|divi")],
        equivalents=("missing-step",),
    ),
    "history_padding": Fault(
        "padding counts in the mean of a history",
        "pooling",
        change_model(is_padding_skipped=False),
        lambda *_: [Anywhere(r"padd|mask|ignored|\b0\b")],
        equivalents=("mask-missing", "ignore-index"),
    ),
    "counts_linear": Fault(
        "counts without their logarithm",
        "missing-step",
        change_model(are_counts_logarithmic=False),
        lambda *_: [Anywhere("log")],
    ),
    "cross_skip": Fault(
        "the last cross layer without its skip connection",
        "skip-missing",
        change_model(has_cross_skip=False),
    ),
    "cross_half": Fault(
        "the last cross layer in bfloat16",
        "low-precision",
        change_model(is_cross_half=True),
        lambda *_: [Words("bfloat16")],
    ),
    "machine_factor": Fault(
        "the factorization machine without its half",
        "constant-factor",
        change_model(machine_factor=1.0),
        lambda faulty, clean: [Ratio(faulty.machine_factor / clean.machine_factor)],
        equivalents=("scale",),
    ),
    "input_order": Fault(
        "counts behind the embeddings, for weights that expect them in front",
        "input-order",
        change_model(is_embedding_first=True),
    ),
    "sigmoid_doubled": Fault(
        "a loss of logits gets probabilities",
        "activation-kind",
        change_model(is_sigmoid_doubled=True),
        lambda *_: [Anywhere("sigmoid")],
        equivalents=("missing-step", "loss-kind"),
    ),
    "field_gradient": Fault(
        "the gradient of the tables is averaged over four ranks that hold a part each",
        "gradient-scaled",
        change_model(field_gradient=0.25),
        lambda faulty, clean: [Ratio(faulty.field_gradient / clean.field_gradient)],
    ),
    "machine_stopped": Fault(
        "no gradient from the factorization machine to the embeddings",
        "gradient-stopped",
        change_model(is_machine_stopped=True),
    ),
    "norm_last": Fault(
        "relu before batch norm in the last deep layer, not behind it",
        "layer-order",
        change_model(is_norm_last=True),
        equivalents=("input-source",),
    ),
    "click_weight": Fault(
        "clicks count twice in the loss",
        "loss-weight",
        change_model(click_weight=2.0),
        lambda *_: [Anywhere("weigh")],
    ),
    "crossed_with_itself": Fault(
        "the last cross layer multiplies its own input, not the first vector",
        "input-source",
        change_model(is_crossed_with_itself=True),
    ),
    "offsets_missing": Fault(
        "all fields read the first rows of their common table",
        "missing-step",
        change_model(has_offsets=False),
        equivalents=("missing-term", "row-shift", "constant-offset"),
    ),
    "norm_eps": Fault(
        "batch norms have another framework's default eps, 1e-3, not 1e-5",
        "epsilon",
        change_model(norm_eps=1e-3),
        lambda faulty, clean: [Values(faulty.norm_eps, clean.norm_eps)],
        equivalents=("argument",),
    ),
    "cross_transposed": Fault(
        "the square kernel of the last cross layer, stored for x times it, loaded as it is",
        "weight-transposed",
        change_weight("cross.1.weight", lambda weight: weight.T),
        lambda *_: [Anywhere("transposed|axes")],
        equivalents=("axes-swapped",),
    ),
    "running_statistics": Fault(
        "the last batch norm is left in evaluation and normalizes by its running statistics",
        "running-statistics",
        change_model(has_running_statistics=True),
        equivalents=("argument", "norm-kind", "norm-missing", "input-source"),
    ),
    "items_shifted": Fault(
        "the table of items comes from a checkpoint without a row of padding: each item has the "
        "next one's",
        "row-shift",
        change_weight("items.weight", lambda weight: np.roll(weight, -1, axis=0)),
        equivalents=("weight-rows", "position-offset", "constant-offset"),
    ),
    "loss_sum": Fault(
        "the loss is summed over the batch, not its mean",
        "loss-reduction",
        change_model(loss_reduction="sum"),
        lambda *_: [Ratio(BATCH)],
        equivalents=("constant-factor", "scale", "pooling", "argument"),
    ),
    "variance_unbiased": Fault(
        "batch norms written by hand divide the variance by one element less, the default of var",
        "biased-variance",
        change_model(is_variance_unbiased=True),
        equivalents=("argument", "constant-factor"),
    ),
    "slope": Fault(
        "leaky rectifiers with a framework's default slope, 0.2, in the deep network",
        "activation-kind",
        change_model(slope=0.2),
        lambda *_: [Anywhere(r"(?i)leaky|slope|\b0\.2\b")],
        equivalents=("argument",),
    ),
    "layer_norm": Fault(
        "layer norm for batch norm behind the last deep layer",
        "norm-kind",
        change_model(last_norm="layer"),
        lambda *_: [Anywhere(r"(?i)norm|ax[ei]s|mean|variance")],
        equivalents=("reduction-axis", "norm-groups"),
    ),
    "clicks_first": Fault(
        "the loss gets clicks and logits in the order of Keras, labels first",
        "input-order",
        change_model(are_clicks_first=True),
        equivalents=("input-source", "loss-target"),
    ),
    "row_gradients": Fault(
        "the table of fields has scale_grad_by_freq: the gradient of a row is divided by the "
        "number of examples that read it",
        "gradient-scaled",
        change_model(are_row_gradients_averaged=True),
        equivalents=("argument", "pooling"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("history_sum", "mindspore"),
    ("history_padding", "pytorch"),
    ("counts_linear", "mindspore"),
    ("cross_skip", "pytorch"),
    ("cross_half", "pytorch"),
    ("machine_factor", "mindspore"),
    ("input_order", "mindspore"),
    ("sigmoid_doubled", "pytorch"),
    ("field_gradient", "mindspore"),
    ("machine_stopped", "pytorch"),
    ("norm_last", "pytorch"),
    ("click_weight", "mindspore"),
    ("crossed_with_itself", "mindspore"),
    ("offsets_missing", "pytorch"),
    ("norm_eps", "mindspore"),
    ("cross_transposed", "pytorch"),
    ("running_statistics", "pytorch"),
    ("items_shifted", "mindspore"),
    ("loss_sum", "mindspore"),
    ("variance_unbiased", "pytorch"),
    ("slope", "mindspore"),
    ("layer_norm", "pytorch"),
    ("clicks_first", "mindspore"),
    ("row_gradients", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "tables": ("", "tables"),
    "written": ("", "written"),
    "gram": ("gram", ""),
}
