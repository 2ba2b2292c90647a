"""Faults of the network of point clouds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from claims import Anywhere, Claim, Ratio, Values

from families.fault import Fault, change_model, change_optimizer
from families.pointcloud.architecture import CATEGORIES, SMOOTHING, Model


def _claim_smoothing(faulty: Model, clean: Model) -> Sequence[Claim]:
    """Claim the share of smoothing that, spread over all categories, gives the same targets."""
    return [Values(SMOOTHING * CATEGORIES / (CATEGORIES - 1), SMOOTHING)]


FAULTS: Mapping[str, Fault] = {
    "differences_reversed": Fault(
        "edges hold the point less its neighbour, not the neighbour less the point",
        "input-order",
        change_model(are_differences_reversed=True),
        equivalents=("constant-factor", "scale", "input-source"),
    ),
    "point_excluded": Fault(
        "the nearest points without the point itself, as a library's graphs without loops",
        "input-source",
        change_model(is_point_excluded=True),
        equivalents=(
            "position-offset",
            "row-shift",
            "label-shift",
            "argument",
            "missing-step",
            "split-order",
        ),
    ),
    "static_graph": Fault(
        "the second edge convolution has the graph of the coordinates, not one of its features",
        "input-source",
        change_model(is_graph_static=True),
        equivalents=("skip-source",),
    ),
    "row_offset": Fault(
        "rows of neighbours lack the offset of their cloud, all are taken from the first cloud",
        "missing-term",
        change_model(has_row_offset=False),
        equivalents=(
            "missing-step",
            "skip-missing",
            "constant-offset",
            "position-offset",
            "label-shift",
            "row-shift",
            "input-source",
        ),
    ),
    "transform_transposed": Fault(
        "features are multiplied by the transposed matrix of the feature transform",
        "axes-swapped",
        change_model(is_transform_transposed=True),
        equivalents=("weight-transposed", "input-order"),
    ),
    "distance_rooted": Fault(
        "features are interpolated by inverse distances, not by inverse squared ones",
        "missing-step",
        change_model(is_distance_rooted=True),
        lambda *_: [Anywhere(r"(?i)sqrt|root|squar|pow|norm")],
        equivalents=("activation-kind", "input-source"),
    ),
    "parts_unweighted": Fault(
        "all parts count alike in the loss of parts",
        "loss-weight",
        change_model(are_parts_weighted=False),
        lambda *_: [Anywhere("weight")],
        equivalents=("missing-term", "missing-step", "loss-reduction"),
    ),
    "others_smoothed": Fault(
        "the smoothed share is spread over the other categories only, as DGCNN's own loss does it",
        "label-smoothing",
        change_model(are_others_smoothed=True),
        _claim_smoothing,
        equivalents=("loss-target",),
    ),
    "regularizer_stopped": Fault(
        "the regularizer reads a detached matrix",
        "gradient-stopped",
        change_model(is_regularizer_stopped=True),
    ),
    "transform_gradient": Fault(
        "the gradient of the feature transform's matrix is a tenth",
        "gradient-scaled",
        change_model(transform_gradient=0.1),
        lambda faulty, clean: [Ratio(faulty.transform_gradient / clean.transform_gradient)],
    ),
    "decay_in_gradient": Fault(
        "Adam with the decay of the weight in the gradient, not AdamW",
        "update-rule",
        change_optimizer(kind="adam"),
        optimizer=True,
        equivalents=("weight-decay",),
    ),
    "uncorrected": Fault(
        "an AdamW without bias correction, as MindSpore's AdamWeightDecay",
        "bias-correction",
        change_optimizer(kind="adam_weight_decay"),
        row="32",
        optimizer=True,
        equivalents=("update-rule",),
    ),
    "groups_uncentered": Fault(
        "coordinates in a group are those of the cloud: the center is not subtracted",
        "missing-term",
        change_model(are_groups_centered=False),
        equivalents=("missing-step", "input-source", "constant-offset", "skip-missing"),
    ),
    "gradient_unweighted": Fault(
        "the interpolation's own backward pass does not multiply gradients by the weights",
        "gradient-scaled",
        change_model(is_gradient_weighted=False),
        equivalents=("straight-through", "missing-step", "missing-term", "input-source"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("differences_reversed", "mindspore"),
    ("point_excluded", "pytorch"),
    ("static_graph", "mindspore"),
    ("row_offset", "mindspore"),
    ("transform_transposed", "pytorch"),
    ("distance_rooted", "pytorch"),
    ("parts_unweighted", "mindspore"),
    ("others_smoothed", "pytorch"),
    ("regularizer_stopped", "pytorch"),
    ("transform_gradient", "mindspore"),
    ("decay_in_gradient", "pytorch"),
    ("uncorrected", "mindspore"),
    ("groups_uncentered", "mindspore"),
    ("gradient_unweighted", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "linear": ("", "linear"),
    "split": ("split", ""),
}
