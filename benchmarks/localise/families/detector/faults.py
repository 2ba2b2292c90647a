"""Faults of the detector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from claims import Anywhere, Claim, Ratio, Values

from families.detector.architecture import BACKGROUND, Model
from families.fault import Fault, change_model, change_optimizer


def _claim_normalizer(faulty: Model, clean: Model) -> Sequence[Claim]:
    labels = clean.batch()[1]
    return [Ratio(float((labels > BACKGROUND).sum() / labels.size))]


FAULTS: Mapping[str, Fault] = {
    "output_upsampled": Fault(
        "the finer level gets the coarse level's output, not what goes into its convolution",
        "input-source",
        change_model(is_output_upsampled=True),
        equivalents=("skip-source",),
    ),
    "anchor_corner": Fault(
        "anchors lie at the corners of their cells, not at the centers",
        "position-offset",
        change_model(anchor_offset=0.0),
        lambda *_: [Anywhere(r"shift|offset|added|constant|-?\b[24]\b|0\.5")],
        equivalents=("constant-offset",),
    ),
    "channels_first": Fault(
        "class scores cut into anchors with the channels still before the cells",
        "axes-swapped",
        change_model(are_channels_first=True),
    ),
    "height_first": Fault(
        "heights of boxes read before their widths, as another framework writes them",
        "split-order",
        change_model(is_height_first=True),
        equivalents=("input-order", "input-source", "axes-swapped"),
    ),
    "center_scale": Fault(
        "offsets of centers times a variance of 0.1, as SSD's boxes are coded",
        "constant-factor",
        change_model(center_scale=0.1),
        lambda faulty, clean: [Ratio(faulty.center_scale / clean.center_scale)],
        equivalents=("scale",),
    ),
    "ignored_counted": Fault(
        "anchors near to an object count as background",
        "ignore-index",
        change_model(are_ignored_counted=True),
        equivalents=("mask-missing", "missing-step"),
    ),
    "alpha": Fault(
        "alpha weighs background, 1 - alpha objects",
        "loss-weight",
        change_model(alpha=0.75),
        lambda *_: [Anywhere(r"weigh|0\.[27]5|\b3\b|0\.333")],
        equivalents=("constant-factor", "scale", "argument"),
    ),
    "enclosing_missing": Fault(
        "IoU for GIoU: the term of the box around both is missing",
        "missing-term",
        change_model(has_enclosing_term=False),
        equivalents=("missing-step", "loss-kind", "skip-missing"),
    ),
    "normalizer": Fault(
        "the focal loss is divided by all anchors, not by those with an object",
        "loss-reduction",
        change_model(normalizer="anchors"),
        _claim_normalizer,
        equivalents=("constant-factor", "scale", "pooling"),
    ),
    "modulation_stopped": Fault(
        "no gradient through the focal loss's weights",
        "gradient-stopped",
        change_model(is_modulation_stopped=True),
    ),
    "decay_all": Fault(
        "weight decay of biases and batch norms too",
        "weight-decay",
        change_optimizer(decay_all=True),
        lambda faulty, clean: [Values(faulty.optimizer.weight_decay, 0.0)],
        optimizer=True,
    ),
    "bias_rate": Fault(
        "biases and batch norms learn twice as fast, as Caffe's do",
        "learning-rate",
        change_optimizer(group="vectors", group_rate=2.0),
        lambda faulty, clean: [Ratio(faulty.optimizer.group_rate)],
        optimizer=True,
    ),
    "stem_same": Fault(
        "'same' padding of the strided stem: one pixel below and on the right, none on the others",
        "padding-mode",
        change_model(is_stem_padded_behind=True),
        equivalents=("causal-shift", "row-shift", "argument"),
    ),
    "slope": Fault(
        "leaky relu with PyTorch's slope, 0.01, not Darknet's 0.1",
        "argument",
        change_model(slope=0.01),
        lambda *_: [Anywhere(r"\b(0\.01|0\.1|10)\b|slope")],
        equivalents=("activation-kind", "constant-factor", "scale"),
    ),
    "targets_sized": Fault(
        "the second corner of an object is taken for width and height, the format of COCO",
        "loss-target",
        change_model(are_targets_sized=True),
        equivalents=("missing-term", "missing-step", "constant-offset", "input-source", "batch"),
    ),
    "norms_frozen": Fault(
        "the backbone's batch norms are frozen in evaluation: they read their running statistics",
        "running-statistics",
        change_model(are_norms_frozen=True),
        equivalents=("argument", "norm-kind", "norm-missing", "input-source"),
    ),
    "pools_chained": Fault(
        "the wide pooling reads the result of the narrow one, as in SPPF, though it still has the "
        "wide window of SPP",
        "input-source",
        change_model(are_pools_chained=True),
        equivalents=("layer-order", "skip-source", "pooling", "argument"),
    ),
    "pooling_gradient": Fault(
        "the backward pass of the poolings assigns gradients to the largest elements where windows "
        "overlap, and does not add them up",
        "missing-term",
        change_model(is_pooling_gradient_assigned=True),
        equivalents=("gradient-stopped", "gradient-scaled", "missing-step"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("output_upsampled", "mindspore"),
    ("anchor_corner", "pytorch"),
    ("channels_first", "mindspore"),
    ("height_first", "pytorch"),
    ("center_scale", "mindspore"),
    ("ignored_counted", "pytorch"),
    ("alpha", "mindspore"),
    ("enclosing_missing", "pytorch"),
    ("normalizer", "mindspore"),
    ("modulation_stopped", "pytorch"),
    ("decay_all", "pytorch"),
    ("bias_rate", "mindspore"),
    ("stem_same", "mindspore"),
    ("slope", "pytorch"),
    ("targets_sized", "mindspore"),
    ("norms_frozen", "pytorch"),
    ("pools_chained", "mindspore"),
    ("pooling_gradient", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "masked": ("", "masked"),
    "written": ("written", ""),
}
