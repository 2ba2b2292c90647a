"""Faults and cases of the U-Net."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio, Values, Words

from families.fault import Fault, change_model, change_weight
from families.unet.architecture import MAX_PERIOD, N_STEPS, Model


def _compute_base(model: Model) -> float:
    """Return the base of the frequencies, base ** (-k / half), of the time steps."""
    half = model.width // 2
    return MAX_PERIOD ** (half / (half - model.frequency_shift))


def _split_by_head(model: Model) -> Model:
    """Read the joined rows of q, k and v as if those of a head were together."""
    weights = dict(model.weights)
    for kind in ("weight", "bias"):
        names = [f"middle.attention.{name}.{kind}" for name in "qkv"]
        joined = np.concatenate([weights[name] for name in names])
        by_head = np.split(joined, len(names) * model.heads)
        for number, name in enumerate(names):
            weights[name] = np.concatenate(by_head[number :: len(names)])
    return replace(model, weights=weights)


FAULTS: Mapping[str, Fault] = {
    "norm_groups": Fault(
        "a group norm has 8 groups for 4",
        "norm-groups",
        change_model(middle_groups=8),
        lambda faulty, clean: [Values(faulty.middle_groups, clean.middle_groups)],
    ),
    "norm_eps": Fault(
        "group norms of a block have eps 1e-3 for 1e-5",
        "epsilon",
        change_model(down_eps=1e-3),
        lambda faulty, clean: [Values(faulty.down_eps, clean.down_eps)],
    ),
    "padding_same": Fault(
        'the strided convolution is padded on one side, as "same" does it',
        "padding-mode",
        change_model(downsample_padding="same"),
        lambda *_: [Anywhere("padd(ed|ing)")],
    ),
    "resize_bilinear": Fault(
        "bilinear upsampling for nearest",
        "resize-mode",
        change_model(resize_mode="bilinear"),
        lambda *_: [Words("bilinear", "nearest")],
    ),
    "time_order": Fault(
        "sine before cosine in the time embedding",
        "time-embedding-order",
        change_model(time_order="sin_cos"),
        lambda *_: [Anywhere("sin")],
    ),
    "attention_scale": Fault(
        "scores divided by the head's size, not its root",
        "scale",
        change_model(attention_scale=8**-0.5),
        lambda faulty, clean: [Ratio(faulty.attention_scale / clean.attention_scale)],
    ),
    "activation": Fault(
        "gelu for silu in one block",
        "activation-kind",
        change_model(up_activation="gelu"),
        lambda *_: [Words(r"gelu \(erf\)", "silu")],
    ),
    "skip_source": Fault(
        "a skip connection comes from the first convolution, not from its block",
        "skip-source",
        change_model(skip_source="conv_in"),
    ),
    "skip_order": Fault(
        "skip connection and hidden state joined in the other order",
        "input-order",
        change_model(skip_order="skip_first"),
    ),
    "kernel_axes": Fault(
        "a kernel's height and width exchanged on load",
        "kernel-axes",
        change_weight("middle.0.conv2.weight", lambda kernel: kernel.swapaxes(2, 3)),
        lambda *_: [Anywhere("axes|transposed")],
    ),
    "time_bias": Fault(
        "the bias of a time projection was not loaded",
        "zeroed",
        change_weight("down.1.time.bias", np.zeros_like),
        lambda *_: [Anywhere("filled with 0|all zeros")],
    ),
    "skip_detached": Fault(
        "no gradient through a skip connection",
        "gradient-stopped",
        change_model(is_skip_detached=True),
    ),
    "loss_target": Fault(
        "the prediction is compared with the images, not with the noise",
        "loss-target",
        change_model(loss_target="images"),
    ),
    "frequency_shift": Fault(
        "the last frequency of the time steps is 1 / MAX_PERIOD, another library's default",
        "rope-theta",
        change_model(frequency_shift=1),
        lambda faulty, clean: [Values(_compute_base(faulty), _compute_base(clean))],
    ),
    "output_scale": Fault(
        "a residual sum divided by the root of 2",
        "constant-factor",
        change_model(output_scale=2**-0.5),
        lambda faulty, clean: [Ratio(faulty.output_scale / clean.output_scale)],
    ),
    "loss_kind": Fault(
        "the mean of absolute differences, not of squared ones",
        "loss-kind",
        change_model(loss_kind="l1"),
        lambda *_: [Words("L1|l1|absolute", "square|mse")],
    ),
    "middle_skip": Fault(
        "a block in the middle without its skip connection",
        "skip-missing",
        change_model(has_middle_skip=False),
    ),
    "softmax_axis": Fault(
        "softmax over the queries",
        "softmax-axis",
        change_model(softmax_axis=-2),
        lambda faulty, clean: [Values(faulty.softmax_axis, clean.softmax_axis)],
    ),
    "time_gradient": Fault(
        "the gradient of the time embedding is a tenth, as in fine-tuning",
        "gradient-scaled",
        change_model(time_gradient=0.1),
        lambda faulty, clean: [Ratio(faulty.time_gradient / clean.time_gradient)],
    ),
    "time_late": Fault(
        "the time embedding is added behind the second norm of a block, not before it",
        "layer-order",
        change_model(is_time_added_late=True),
        equivalents=("input-source",),
    ),
    "step_scale": Fault(
        "time steps between 0 and 1 for an embedding of whole numbers",
        "rope-scaling",
        change_model(step_scale=1 / N_STEPS),
        lambda faulty, clean: [Ratio(faulty.step_scale / clean.step_scale)],
        equivalents=("constant-factor", "scale"),
    ),
    "schedule_offset": Fault(
        "time steps count from one where they read the noise schedule",
        "position-offset",
        change_model(schedule_offset=-1),
        lambda *_: [Anywhere(r"shift|offset|added|constant|row|\b1\b")],
        equivalents=(
            "constant-offset",
            "label-shift",
            "row-shift",
            "missing-step",
            "missing-term",
            "argument",
            "input-source",
        ),
    ),
    "variance_unbiased": Fault(
        "group norms of a block divide the variance by one element less, the default of var",
        "biased-variance",
        change_model(is_variance_unbiased=True),
        lambda *_: [Anywhere(r"bias|n - 1|correction|freedom|ddof|\b0\.99|\b1\.00")],
        equivalents=("scale", "constant-factor", "argument"),
    ),
    "time_activation": Fault(
        "the blocks project the time embedding without its silu",
        "missing-step",
        change_model(is_time_activated=False),
        lambda *_: [Anywhere(r"(?i)silu|swish|sigmoid|activation|identity")],
        equivalents=("activation-kind", "input-source", "layer-order"),
    ),
    "heads_interleaved": Fault(
        "the heads of an attention are every fourth channel, not eight channels in a row",
        "heads-permuted",
        change_model(are_heads_interleaved=True),
        equivalents=("split-order", "axes-swapped", "input-order"),
    ),
    "angles_half": Fault(
        "the angles of the time steps are computed in float16, the type of the other inputs",
        "low-precision",
        change_model(are_angles_half=True),
        lambda *_: [Words(r"\bfloat16")],
        row="46",
    ),
    "output_transposed": Fault(
        "the output projection of an attention loaded as (in, out), as the first code has it",
        "weight-transposed",
        change_weight("middle.attention.o.weight", np.transpose),
        lambda *_: [Anywhere("transposed")],
        equivalents=("axes-swapped",),
    ),
    "snr_weight": Fault(
        "losses are weighted by the ratio of signal to noise, limited to 5, as in later recipes",
        "loss-weight",
        change_model(snr_limit=5.0),
        equivalents=(
            "loss-reduction",
            "loss-kind",
            "constant-factor",
            "scale",
            "missing-step",
            "missing-term",
        ),
    ),
    "padding_reflected": Fault(
        "the first convolution reflects the image at its edges, not zeros around it",
        "padding-mode",
        change_model(first_padding="reflect"),
        lambda *_: [Anywhere("(?i)pad|reflect|mirror|edge")],
        equivalents=("argument", "missing-step", "input-source"),
    ),
    "pixels_unmoved": Fault(
        "an attention reshapes (channels, pixels) to (pixels, channels) without exchanging them",
        "axes-swapped",
        change_model(are_pixels_unmoved=True),
        equivalents=("missing-step", "channel-order", "split-order", "input-order"),
    ),
    "attention_input_normed": Fault(
        "an attention is added to the norm of its input, not to its input",
        "residual-order",
        change_model(is_attention_input_normed=True),
        equivalents=("input-source", "skip-source", "layer-order"),
    ),
    "softmax_gradient": Fault(
        "the backward pass of a fused attention kernel does not subtract the sum of gradients "
        "times probabilities of each query",
        "missing-term",
        change_model(is_softmax_gradient_partial=True),
        equivalents=("missing-step", "straight-through", "gradient-stopped", "constant-offset"),
    ),
    "split_by_head": Fault(
        "the joined rows of queries, keys and values of an attention are split by head first, as "
        "the older code of guided diffusion has them, not by kind",
        "weight-rows",
        _split_by_head,
        equivalents=(
            "split-order",
            "heads-permuted",
            "weight-swapped",
            "row-shift",
            "axes-swapped",
            "input-order",
        ),
    ),
    "norm_mean_constant": Fault(
        "the backward pass of a fused group norm subtracts what goes through the deviation, but "
        "not the mean gradient of a group, which goes through its mean",
        "missing-term",
        change_model(is_norm_mean_constant=True),
        equivalents=("missing-step", "gradient-stopped", "constant-offset", "norm-kind"),
    ),
    "shortcut_activated": Fault(
        "shortcuts with a convolution read the normed and activated input, as in the second "
        "version of residual networks",
        "skip-source",
        change_model(is_shortcut_activated=True),
        equivalents=("input-source", "residual-order", "layer-order"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("norm_groups", "mindspore"),
    ("norm_eps", "pytorch"),
    ("padding_same", "mindspore"),
    ("resize_bilinear", "pytorch"),
    ("time_order", "mindspore"),
    ("attention_scale", "pytorch"),
    ("activation", "mindspore"),
    ("skip_source", "pytorch"),
    ("skip_order", "mindspore"),
    ("kernel_axes", "pytorch"),
    ("time_bias", "mindspore"),
    ("skip_detached", "pytorch"),
    ("loss_target", "mindspore"),
    ("frequency_shift", "mindspore"),
    ("output_scale", "pytorch"),
    ("loss_kind", "mindspore"),
    ("middle_skip", "pytorch"),
    ("softmax_axis", "mindspore"),
    ("time_gradient", "pytorch"),
    ("time_late", "mindspore"),
    ("step_scale", "pytorch"),
    ("schedule_offset", "mindspore"),
    ("variance_unbiased", "pytorch"),
    ("time_activation", "mindspore"),
    ("heads_interleaved", "pytorch"),
    ("angles_half", "mindspore"),
    ("output_transposed", "pytorch"),
    ("snr_weight", "mindspore"),
    ("padding_reflected", "pytorch"),
    ("pixels_unmoved", "mindspore"),
    ("attention_input_normed", "pytorch"),
    ("softmax_gradient", "mindspore"),
    ("split_by_head", "pytorch"),
    ("norm_mean_constant", "mindspore"),
    ("shortcut_activated", "pytorch"),
)

#: Other module names in PyTorch; group norm, attention and loss written out in MindSpore, and other
#: operators for attention, upsampling and the joined convolution in PyTorch.
VARIANTS: Mapping[str, tuple[str, str]] = {
    "names": ("", "names"),
    "decomposition": ("decomposition", "decomposition"),
    "unfolded": ("", "unfolded"),
    "unfolded_decomposition": ("decomposition", "unfolded"),
    "expanded": ("", "expanded"),
}
