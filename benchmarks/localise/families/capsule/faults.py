"""Faults of the capsule network."""

from __future__ import annotations

from collections.abc import Mapping

from claims import Anywhere

from families.fault import Fault, change_model, change_weight

FAULTS: Mapping[str, Fault] = {
    "inputs_normalized": Fault(
        "couplings are a softmax over the capsules that vote, not over the classes: the axis that "
        "a well-known implementation has",
        "softmax-axis",
        change_model(are_inputs_normalized=True),
        lambda *_: [Anywhere("(?i)ax[ei]s|dim|softmax")],
        equivalents=("reduction-axis", "axes-swapped", "argument"),
    ),
    "logits_replaced": Fault(
        "the agreement is assigned to the logits of the routing, not added to them: prior and "
        "earlier agreements are lost",
        "missing-term",
        change_model(are_logits_replaced=True),
        equivalents=(
            "missing-step",
            "skip-missing",
            "hidden-state-reset",
            "input-source",
            "skip-source",
        ),
    ),
    "padding_routed": Fault(
        "capsules of cells that are padding vote for classes, too",
        "mask-missing",
        change_model(is_padding_routed=True),
        equivalents=("mask-kind", "missing-step", "input-source"),
    ),
    "votes_attached": Fault(
        "votes are not detached in the first routings: they have a gradient in all of them",
        "gradient-stopped",
        change_model(are_votes_detached=False),
        equivalents=("missing-term",),
    ),
    "absent_full": Fault(
        "classes that are not in the image have the full weight in the margin loss, not the half",
        "loss-weight",
        change_model(down_weight=1.0),
        lambda *_: [
            Anywhere(
                r"(?i)half|halv|twice|doubl|"
                r"(?<![\w.])(?:0\.5|0\.50\d*|0\.49\d*|2|2\.0\d*|1\.99\d*)(?![\w.]*\w)"
            )
        ],
        equivalents=("constant-factor", "scale", "missing-step", "argument"),
    ),
    "sizes_exchanged": Fault(
        "sizes of images come from PIL, width before height",
        "batch",
        change_model(are_sizes_exchanged=True),
        equivalents=(
            "input-order",
            "axes-swapped",
            "channel-order",
            "split-order",
            "mask-kind",
            "input-source",
        ),
    ),
    "capsules_viewed": Fault(
        "the convolution's result is viewed as capsules, as in a port of code with channels last: "
        "the elements of a capsule are neighbouring cells of one channel",
        "axes-swapped",
        change_model(are_capsules_viewed=True),
        equivalents=(
            "missing-step",
            "input-order",
            "channel-order",
            "heads-permuted",
            "split-order",
            "row-shift",
        ),
    ),
    "cells_cornered": Fault(
        "coordinates of a cell are those of its first corner, not of its center",
        "position-offset",
        change_model(cell_center=0.0),
        equivalents=(
            "constant-offset",
            "missing-term",
            "missing-step",
            "input-source",
            "align-corners",
            "argument",
        ),
    ),
    "squash_gradient_plain": Fault(
        "the backward pass that squashing has of its own is that of a product with a constant: it "
        "lacks the gradient through the length",
        "gradient-stopped",
        change_model(is_squash_gradient_plain=True),
        equivalents=("missing-term", "missing-step", "straight-through"),
    ),
    "longest_decoded": Fault(
        "the decoder reads the longest capsule in training, too, not that of the label",
        "input-source",
        change_model(is_longest_decoded=True),
        equivalents=("mask-kind", "loss-target", "missing-step", "argument"),
    ),
    "mixer_transposed": Fault(
        "the square matrices of the residual routing come from a checkpoint that has them (in, "
        "out) and are loaded as they are",
        "weight-transposed",
        change_weight("mixer.weight", lambda weight: weight.swapaxes(2, 3)),
        lambda *_: [Anywhere("(?i)transpos|ax[ei]s|swap|exchang")],
        equivalents=("axes-swapped",),
    ),
    "spread_linear": Fault(
        "the spread loss has the power 1, the default of the framework's loss of several margins, "
        "not 2",
        "loss-kind",
        change_model(spread_power=1),
        equivalents=("missing-step", "activation-kind", "argument"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("inputs_normalized", "mindspore"),
    ("logits_replaced", "mindspore"),
    ("padding_routed", "mindspore"),
    ("votes_attached", "mindspore"),
    ("absent_full", "mindspore"),
    ("sizes_exchanged", "mindspore"),
    ("capsules_viewed", "pytorch"),
    ("cells_cornered", "pytorch"),
    ("squash_gradient_plain", "pytorch"),
    ("longest_decoded", "pytorch"),
    ("mixer_transposed", "pytorch"),
    ("spread_linear", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "einsum": ("", "einsum"),
    "written": ("written", ""),
    "both": ("written", "einsum"),
}
