"""Faults of the self-supervised speech encoder."""

from __future__ import annotations

from collections.abc import Mapping

from claims import Anywhere, Ratio, Values

from families.fault import Fault, change_model, change_optimizer
from families.wav2vec.architecture import FRAMES, MASKED, Model


def _swap_projections(model: Model) -> Model:
    """Give the projections of hidden states and of codewords each other's weights."""
    swapped = dict(model.weights)
    for name in ("weight", "bias"):
        hidden, codes = f"project_hidden.{name}", f"project_codes.{name}"
        swapped[hidden], swapped[codes] = model.weights[codes], model.weights[hidden]
    return change_model(weights=swapped)(model)


FAULTS: Mapping[str, Fault] = {
    "norm_groups": Fault(
        "the norm behind the first convolution has one group, not one per channel",
        "norm-groups",
        change_model(norm_groups=1),
        lambda faulty, clean: [Values(faulty.norm_groups, clean.norm_groups)],
        equivalents=("norm-kind", "reduction-axis", "argument"),
    ),
    "magnitude_axes": Fault(
        "weight norm takes the norm of each output, the usual axis, not of each tap",
        "reduction-axis",
        change_model(magnitude_axes=(1, 2)),
        lambda *_: [Anywhere(r"(?i)norm|ax[ei]s|magnitude|direction|sum")],
        equivalents=("argument", "input-source"),
    ),
    "tanh_gelu": Fault(
        "gelu behind convolutions in the tanh form, the default of nn.GELU",
        "gelu-variant",
        change_model(gelu="tanh"),
        lambda *_: [Anywhere(r"(?i)tanh")],
        equivalents=("activation-kind", "argument"),
    ),
    "position_bias": Fault(
        "the convolution of the positions has no bias, the default of MindSpore's",
        "bias-missing",
        change_model(has_position_bias=False),
        equivalents=("missing-term", "missing-step"),
    ),
    "equal_negatives": Fault(
        "negatives with the codewords of the own frame count in the softmax",
        "mask-missing",
        change_model(are_equal_negatives_masked=False),
        equivalents=("missing-step", "missing-term", "mask-kind"),
    ),
    "all_frames": Fault(
        "the sum of the masked frames' losses is divided by all frames",
        "loss-reduction",
        change_model(are_all_frames_counted=True),
        lambda *_: [Ratio(MASKED / FRAMES)],
        equivalents=("constant-factor", "scale", "pooling", "loss-weight", "ignore-index"),
    ),
    "same_padding": Fault(
        "padding 'same' for the positions: the longer side of an even kernel is behind the frames",
        "padding-mode",
        change_model(position_padding="behind"),
        lambda *_: [Anywhere(r"(?i)pad|shift")],
        equivalents=("causal-shift", "row-shift", "argument"),
    ),
    "norm_behind": Fault(
        "the encoder's norm is behind its layers, as in models with norms before the sublayers",
        "layer-order",
        change_model(is_norm_behind_layers=True),
        equivalents=("norm-missing", "missing-step", "input-source"),
    ),
    "straight_missing": Fault(
        "codewords are taken by the largest score: no gradient passes to the scores",
        "gradient-stopped",
        change_model(is_straight_through=False),
        equivalents=("straight-through", "missing-step", "missing-term", "input-source"),
    ),
    "temperature": Fault(
        "cosine similarities are divided by 0.07, a default of contrastive losses, not by 0.1",
        "constant-factor",
        change_model(temperature=0.07),
        lambda faulty, clean: [Ratio(clean.temperature / faulty.temperature)],
        equivalents=("scale", "argument"),
    ),
    "projections_swapped": Fault(
        "the projections of hidden states and codewords exchanged on load: they have one shape",
        "weight-swapped",
        _swap_projections,
        lambda *_: [Anywhere("bias|parameter|weight|project")],
        equivalents=("input-order", "input-source"),
    ),
    "adam_eps": Fault(
        "AdamW has the framework's eps, 1e-8, not 1e-6",
        "optimizer-epsilon",
        change_optimizer(eps=1e-8),
        lambda faulty, clean: [Values(faulty.optimizer.eps, clean.optimizer.eps)],
        optimizer=True,
        equivalents=("argument",),
    ),
    "padding_seen": Fault(
        "the encoder gets no mask, as for checkpoints with a group norm: frames of padding are not "
        "made zero, and all frames attend to them",
        "mask-missing",
        change_model(is_padding_hidden=False),
        equivalents=("missing-step", "mask-kind", "argument"),
    ),
    "feature_gradient": Fault(
        "the gradient of the convolutions is multiplied by 0.1, fairseq's feature_grad_mult",
        "gradient-scaled",
        change_model(feature_gradient=0.1),
        lambda faulty, clean: [Ratio(faulty.feature_gradient / clean.feature_gradient)],
        equivalents=("constant-factor", "scale"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("norm_groups", "mindspore"),
    ("magnitude_axes", "mindspore"),
    ("tanh_gelu", "mindspore"),
    ("position_bias", "mindspore"),
    ("equal_negatives", "mindspore"),
    ("all_frames", "mindspore"),
    ("same_padding", "pytorch"),
    ("norm_behind", "pytorch"),
    ("straight_missing", "pytorch"),
    ("temperature", "pytorch"),
    ("projections_swapped", "pytorch"),
    ("adam_eps", "pytorch"),
    ("padding_seen", "mindspore"),
    ("feature_gradient", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fairseq": ("", "fairseq"),
    "written": ("written", ""),
}
