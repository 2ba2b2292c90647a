"""Faults of the forecaster."""

from __future__ import annotations

from collections.abc import Mapping

from claims import Anywhere, Ratio, Values

from families.fault import Fault, change_model, change_optimizer
from families.forecast.architecture import CHANNELS

FAULTS: Mapping[str, Fault] = {
    "missing_counted": Fault(
        "sums over the observed steps of a series are divided by the number of all steps",
        "pooling",
        change_model(are_all_steps_counted=True),
        equivalents=("mask-missing", "missing-step", "missing-term", "input-source", "argument"),
    ),
    "affine_late": Fault(
        "forecasts get back deviation and mean before weight and bias are inverted",
        "layer-order",
        change_model(is_affine_inverted_late=True),
        equivalents=("input-source", "input-order"),
    ),
    "average_padding": Fault(
        "the moving average is padded with zeros, not with the first and the last step",
        "padding-mode",
        change_model(average_padding="zeros"),
        lambda *_: [Anywhere(r"padd|zero|pool|edge|replicat|repeat")],
        equivalents=("missing-step", "pooling", "input-source"),
    ),
    "last_norm": Fault(
        "layer norm for batch norm behind the last feed-forward",
        "norm-kind",
        change_model(last_norm="layer"),
        lambda *_: [Anywhere(r"norm|ax[ei]s|mean|variance")],
        equivalents=("reduction-axis", "norm-groups"),
    ),
    "scores_missing": Fault(
        "the scores of the layer before are not added to those of the last layer",
        "missing-term",
        change_model(has_score_residual=False),
        equivalents=("skip-missing", "missing-step", "mask-missing", "relative-bias"),
    ),
    "selection_axis": Fault(
        "softmax of the selection over the batch: what PyTorch takes for three axes by default",
        "softmax-axis",
        change_model(selection_axis=0),
        lambda *_: [Anywhere(r"ax[ei]s|dim")],
    ),
    "error_negated": Fault(
        "the pinball loss of prediction minus target, so that high quantiles become low ones",
        "input-order",
        change_model(is_error_negated=True),
        equivalents=("constant-factor", "scale", "loss-target", "input-source", "missing-step"),
    ),
    "calendar_divisor": Fault(
        "hours divided by their number, 24, not by the last one, 23",
        "constant-factor",
        change_model(calendar_divisor=24.0),
        lambda faulty, clean: [Ratio(clean.calendar_divisor / faulty.calendar_divisor)],
        equivalents=("scale", "argument"),
    ),
    "selection_stopped": Fault(
        "the weights of the selection are detached for plots, and then used",
        "gradient-stopped",
        change_model(is_selection_stopped=True),
    ),
    "context_gradient": Fault(
        "the gradient of the static context is the mean over the channels, not the sum",
        "gradient-scaled",
        change_model(context_gradient=1 / CHANNELS),
        lambda faulty, clean: [Ratio(faulty.context_gradient / clean.context_gradient)],
    ),
    "norm_counted_twice": Fault(
        "two ranks that hold the same gradients both count in the norm that clips them",
        "gradient-norm",
        change_optimizer(norm_factor=2**0.5),
        lambda *_: [Anywhere(r"\b1\.41|\b0\.70|root|sqrt")],
        row="25",
        optimizer=True,
        equivalents=("clip", "gradient-scaled"),
    ),
    "weight_decay": Fault(
        "weight decay 0.05 for 0.005",
        "weight-decay",
        change_optimizer(weight_decay=5e-2),
        lambda faulty, clean: [Values(faulty.optimizer.weight_decay, clean.optimizer.weight_decay)],
        optimizer=True,
    ),
    "deviation_unbiased": Fault(
        "deviations of the series are unbiased, the default of PyTorch's std",
        "biased-variance",
        change_model(is_deviation_unbiased=True),
        lambda *_: [Anywhere(r"bias|variance|n - 1|- ?1\b|less|one")],
        equivalents=("argument", "constant-offset", "missing-step", "pooling", "input-source"),
    ),
    "head_by_patch": Fault(
        "the head reads the encoded patches one after the other, not number by number",
        "axes-swapped",
        change_model(is_head_by_patch=True),
        equivalents=("missing-step", "split-order", "input-order", "channel-order"),
    ),
    "gate_first": Fault(
        "gated networks take the first half as the gate, as another port writes them",
        "split-order",
        change_model(is_gate_first=True),
        equivalents=("gate-order", "gate-up-swapped", "input-order", "input-source", "weight-rows"),
    ),
    "local_centered": Fault(
        "the local convolutions are padded on both sides, pad_mode same, not causally",
        "causal-shift",
        change_model(is_local_centered=True),
        equivalents=("padding-mode", "row-shift", "argument"),
    ),
    "mean_weighted": Fault(
        "the loss is divided by the sum of the weights of observed targets, not by their number",
        "loss-reduction",
        change_model(is_mean_weighted=True),
        equivalents=(
            "loss-weight",
            "constant-factor",
            "scale",
            "pooling",
            "missing-step",
            "input-source",
        ),
    ),
    "biases_undecayed": Fault(
        "biases and norms are not decayed, as a model zoo has it, where PyTorch's SGD decays all",
        "weight-decay",
        change_optimizer(decay_all=False),
        lambda _, clean: [Values(0.0, clean.optimizer.weight_decay)],
        optimizer=True,
        equivalents=("update-rule",),
    ),
    "category_code": Fault(
        "codes of categories begin at 1, since an encoder keeps 0 for unknown ones, but the table "
        "has no row for these",
        "constant-offset",
        change_model(first_category=1),
        lambda *_: [
            Anywhere(
                r"(?i)shift|offset|\badd|constant|\brow|order|code|categor|batch|input|data|index|"
                r"(?<![\w.])-?1(?![\w.]*\w)"
            )
        ],
        equivalents=(
            "batch",
            "row-shift",
            "position-offset",
            "label-shift",
            "input-source",
            "missing-term",
            "missing-step",
        ),
    ),
    "context_tiled": Fault(
        "static contexts are repeated by repeat, not repeat_interleave: rows, whose channels "
        "follow each other, get the context of another item",
        "axes-swapped",
        change_model(is_context_tiled=True),
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
    "missing_uncleared": Fault(
        "missing steps, which are filled with 0, are normalized as if they had been observed, not "
        "set to 0 behind it",
        "mask-missing",
        change_model(are_missing_cleared=False),
        equivalents=("missing-step", "missing-term", "mask-fill", "input-source"),
    ),
    "previous_scores_stopped": Fault(
        "the scores of the layer before are kept without a gradient and added to the next ones",
        "gradient-stopped",
        change_model(are_previous_scores_stopped=True),
        equivalents=("missing-term",),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("missing_counted", "mindspore"),
    ("affine_late", "pytorch"),
    ("average_padding", "mindspore"),
    ("last_norm", "pytorch"),
    ("scores_missing", "mindspore"),
    ("selection_axis", "pytorch"),
    ("error_negated", "mindspore"),
    ("calendar_divisor", "pytorch"),
    ("selection_stopped", "pytorch"),
    ("context_gradient", "mindspore"),
    ("norm_counted_twice", "mindspore"),
    ("weight_decay", "pytorch"),
    ("deviation_unbiased", "pytorch"),
    ("head_by_patch", "mindspore"),
    ("gate_first", "pytorch"),
    ("local_centered", "mindspore"),
    ("mean_weighted", "pytorch"),
    ("biases_undecayed", "mindspore"),
    ("category_code", "mindspore"),
    ("context_tiled", "pytorch"),
    ("missing_uncleared", "mindspore"),
    ("previous_scores_stopped", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("written", ""),
}
