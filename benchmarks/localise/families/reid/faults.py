"""Faults of the re-identification net."""

from __future__ import annotations

from collections.abc import Mapping

from claims import Anywhere, Ratio, Values

from families.fault import Fault, change_model, change_optimizer, change_weight
from families.reid.architecture import BATCH, CENTER_WEIGHT, Model


def _swap_norms(model: Model) -> Model:
    """Exchange the weights and biases of instance and batch norm of the second stage."""
    weights = dict(model.weights)
    for name in ("weight", "bias"):
        first, second = f"stages.1.instance.{name}", f"stages.1.batch.{name}"
        weights[first], weights[second] = weights[second], weights[first]
    return change_model(weights=weights)(model)


FAULTS: Mapping[str, Fault] = {
    "batch_first": Fault(
        "the first half of the channels has the batch norm, the second one the instance norm",
        "split-order",
        change_model(is_batch_first=True),
        equivalents=("input-order", "input-source", "norm-kind", "channel-order", "layer-order"),
    ),
    "pool_mean": Fault(
        "the mean of the pixels, not their generalized mean",
        "pooling",
        change_model(is_pool_mean=True),
        equivalents=("missing-step", "activation-kind", "argument"),
    ),
    "triplet_behind_neck": Fault(
        "the triplet loss reads what comes out of the neck, not what goes into it",
        "input-source",
        change_model(is_triplet_behind_neck=True),
        equivalents=("layer-order", "skip-source"),
    ),
    "margin_easy": Fault(
        "easy margin: beyond the right angle, a cosine stays as it is",
        "loss-threshold",
        change_model(is_margin_easy=True),
        equivalents=("missing-term", "missing-step", "constant-offset", "clamp", "argument"),
    ),
    "scale": Fault(
        "cosines times 30, as in CosFace, not 16",
        "scale",
        change_model(scale=30.0),
        lambda faulty, clean: [Values(faulty.scale, clean.scale)],
        equivalents=("constant-factor", "argument"),
    ),
    "negatives_others": Fault(
        "the hardest negative is the nearest other image, that of the same person included",
        "mask-kind",
        change_model(are_negatives_others=True),
        equivalents=("mask-missing", "mask-shifted", "input-source"),
    ),
    "center_sum": Fault(
        "the center loss is summed over the batch",
        "loss-reduction",
        change_model(is_center_sum=True),
        lambda *_: [Ratio(BATCH)],
        equivalents=("constant-factor", "loss-weight", "scale"),
    ),
    "center_stopped": Fault(
        "the center loss moves the centers only, no gradient goes to the features",
        "gradient-stopped",
        change_model(is_center_stopped=True),
    ),
    "center_gradient": Fault(
        "the gradient of the centers is divided by the weight of their loss, as in the baseline",
        "gradient-scaled",
        change_model(center_gradient=1 / CENTER_WEIGHT),
        lambda faulty, clean: [Ratio(faulty.center_gradient / clean.center_gradient)],
    ),
    "norms_swapped": Fault(
        "instance and batch norm of the second stage have each other's weights",
        "weight-swapped",
        _swap_norms,
        equivalents=("split-order", "weight-rows"),
    ),
    "classes_reshaped": Fault(
        "class weights of a checkpoint with classes last are reshaped, not transposed",
        "weight-transposed",
        change_weight("classes.weight", lambda values: values.T.reshape(values.shape)),
        equivalents=("axes-swapped", "weight-rows"),
    ),
    "vector_rate": Fault(
        "biases and norms have twice the learning rate",
        "learning-rate",
        change_optimizer(group="vectors", group_rate=2.0),
        lambda *_: [Ratio(2.0)],
        optimizer=True,
        equivalents=("update-rule", "constant-factor", "scale"),
    ),
    "distances_squared": Fault(
        "the triplet loss compares squared distances, as in FaceNet, not their roots",
        "missing-step",
        change_model(are_distances_squared=True),
        lambda *_: [Anywhere(r"(?i)sqrt|root|squar|power|exponent")],
        equivalents=("activation-kind", "loss-kind"),
    ),
    "norms_detached": Fault(
        "embeddings and class weights are divided by the norms of their .data, without gradient",
        "gradient-stopped",
        change_model(are_norms_detached=True),
        equivalents=("missing-term",),
    ),
    "angle_underived": Fault(
        "the margin is added to the angle in place and without a gradient, which goes on as that "
        "of the cosine",
        "straight-through",
        change_model(is_angle_derived=False),
        equivalents=("gradient-scaled", "gradient-stopped", "missing-step", "missing-term"),
    ),
    "triplet_hinge": Fault(
        "the triplet loss is a hinge with the margin 0.3, the baseline's default, not a soft one",
        "loss-kind",
        change_model(is_triplet_hinge=True),
        lambda *_: [Anywhere(r"(?i)margin|hinge|relu|rank|softplus|clamp|maximum|\b0\.3\b")],
        equivalents=("activation-kind", "loss-threshold", "missing-step", "clamp"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("batch_first", "pytorch"),
    ("pool_mean", "mindspore"),
    ("triplet_behind_neck", "mindspore"),
    ("margin_easy", "mindspore"),
    ("scale", "pytorch"),
    ("negatives_others", "pytorch"),
    ("center_sum", "mindspore"),
    ("center_stopped", "mindspore"),
    ("center_gradient", "pytorch"),
    ("norms_swapped", "pytorch"),
    ("classes_reshaped", "mindspore"),
    ("vector_rate", "pytorch"),
    ("distances_squared", "mindspore"),
    ("norms_detached", "pytorch"),
    ("angle_underived", "mindspore"),
    ("triplet_hinge", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "functional": ("", "functional"),
    "angles": ("", "angles"),
    "written": ("written", ""),
    "gathered": ("gathered", ""),
}
