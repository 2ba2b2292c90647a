"""Faults of speaker verification."""

from __future__ import annotations

from collections.abc import Mapping

from claims import Anywhere, Ratio, Values

from families.fault import Fault, change_model
from families.speaker.architecture import Model


def _swap_scales(model: Model) -> Model:
    """Exchange the convolutions of the first and the last dilated layer of the second block."""
    weights = dict(model.weights)
    first, last = "blocks.1.scales.0.weight", "blocks.1.scales.2.weight"
    weights[first], weights[last] = weights[last], weights[first]
    return change_model(weights=weights)(model)


FAULTS: Mapping[str, Fault] = {
    "pieces_raw": Fault(
        "a dilated layer reads its piece plus the piece before it, not what that one's layer "
        "returned",
        "skip-source",
        change_model(are_pieces_raw=True),
        equivalents=("input-source", "layer-order", "residual-order", "missing-step"),
    ),
    "last_passed": Fault(
        "the last piece of the channels is passed on, as in the authors' code, not the first",
        "split-order",
        change_model(is_last_passed=True),
        equivalents=("input-source", "input-order", "channel-order", "layer-order", "skip-source"),
    ),
    "dilation": Fault(
        "the last block has the dilation of the one before it",
        "dilation",
        change_model(dilation=3),
        lambda faulty, clean: [Values(faulty.dilation, clean.dilation)],
        equivalents=("argument",),
    ),
    "sum_missing": Fault(
        "the last block reads the output of the block before it only, not the sum of all",
        "skip-missing",
        change_model(is_last_input_summed=False),
        equivalents=("missing-term", "missing-step", "input-source", "skip-source"),
    ),
    "tanh_missing": Fault(
        "attention has no tanh between its layers, as the paper's formula can be read",
        "missing-step",
        change_model(has_attention_tanh=False),
        lambda *_: [Anywhere(r"(?i)tanh")],
        equivalents=("activation-kind", "input-source"),
    ),
    "squeeze_mean": Fault(
        "squeeze-and-excitation divides the sum of the valid frames by all frames",
        "pooling",
        change_model(is_squeeze_mean_of_all=True),
        equivalents=(
            "mask-missing",
            "reduction-axis",
            "constant-factor",
            "scale",
            "missing-step",
            "input-source",
        ),
    ),
    "cosine_margin": Fault(
        "the margin is subtracted from the cosine, as in AM-softmax, not added to the angle",
        "loss-kind",
        change_model(is_margin_of_cosine=True),
        equivalents=(
            "constant-offset",
            "missing-term",
            "missing-step",
            "loss-threshold",
            "activation-kind",
            "input-source",
        ),
    ),
    "context_stopped": Fault(
        "mean and deviation that attention reads are constants for the gradient",
        "gradient-stopped",
        change_model(is_context_stopped=True),
        equivalents=("missing-term",),
    ),
    "length_stopped": Fault(
        "the length that divides an embedding is a constant for the gradient",
        "gradient-stopped",
        change_model(is_length_stopped=True),
        equivalents=("missing-term",),
    ),
    "embedding_gradient": Fault(
        "gradients of embeddings from two ranks with half of the classes each are averaged, not "
        "summed",
        "gradient-scaled",
        change_model(embedding_gradient=0.5),
        lambda faulty, clean: [Ratio(faulty.embedding_gradient / clean.embedding_gradient)],
        equivalents=("constant-factor", "scale"),
    ),
    "scales_swapped": Fault(
        "the first and the last dilated convolution of a block have each other's weights",
        "weight-swapped",
        _swap_scales,
        lambda *_: [Anywhere("weight")],
        equivalents=("layer-order", "input-order", "weight-rows"),
    ),
    "end_valid": Fault(
        "the frame behind the last one counts as valid: lengths are compared by <=, not by <",
        "mask-shifted",
        change_model(is_end_valid=True),
        equivalents=("mask-kind", "position-offset", "row-shift", "constant-offset", "argument"),
    ),
    "attention_unmasked": Fault(
        "the pooling is called without lengths: its attention is shared with frames of padding",
        "mask-missing",
        change_model(is_attention_masked=False),
        equivalents=("mask-kind", "missing-term", "missing-step", "input-source"),
    ),
    "classes_axis": Fault(
        "the classes' weights are normalized over the classes, as in code that holds a class in "
        "each column",
        "reduction-axis",
        change_model(class_axis=0),
        lambda *_: [Anywhere(r"(?i)ax[ie]s|dim|row|column|norm|length|transpos")],
        equivalents=("argument", "axes-swapped", "norm-kind"),
    ),
    "context_unbiased": Fault(
        "the deviation that attention reads is that of torch.var, as in WeSpeaker, which divides "
        "by one frame less",
        "biased-variance",
        change_model(is_context_unbiased=True),
        equivalents=(
            "argument",
            "constant-factor",
            "scale",
            "constant-offset",
            "pooling",
            "missing-step",
            "input-source",
        ),
    ),
    "reflected": Fault(
        "convolutions over time are padded by reflected frames, the default of SpeechBrain's "
        "Conv1d, not by zeros",
        "padding-mode",
        change_model(padding_mode="reflect"),
        lambda *_: [Anywhere(r"(?i)pad|reflect|zero")],
        equivalents=("argument", "missing-step", "input-source"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("pieces_raw", "mindspore"),
    ("dilation", "mindspore"),
    ("squeeze_mean", "mindspore"),
    ("context_stopped", "mindspore"),
    ("embedding_gradient", "mindspore"),
    ("end_valid", "mindspore"),
    ("last_passed", "pytorch"),
    ("sum_missing", "pytorch"),
    ("tanh_missing", "pytorch"),
    ("cosine_margin", "pytorch"),
    ("length_stopped", "pytorch"),
    ("scales_swapped", "pytorch"),
    ("attention_unmasked", "mindspore"),
    ("classes_axis", "pytorch"),
    ("context_unbiased", "mindspore"),
    ("reflected", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "functional": ("", "functional"),
    "products": ("products", ""),
    "both": ("products", "functional"),
}
