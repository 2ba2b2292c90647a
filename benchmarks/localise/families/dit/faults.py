"""Faults of the diffusion transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from claims import Anywhere, Ratio, Words

from families.dit.architecture import HEADS, LAYERS, Model
from families.fault import Fault, change_model, change_optimizer


def _split_in_thirds(model: Model) -> Model:
    """Take thirds of fused rows, q, k and v of each head, as q, k and v of the last block."""
    path = f"blocks.{LAYERS - 1}.attention"
    weights = dict(model.weights)
    for kind in ("weight", "bias"):
        names = [f"{path}.{projection}.{kind}" for projection in "qkv"]
        heads = [np.split(model.weights[name], HEADS) for name in names]
        fused = np.concatenate([rows for head in zip(*heads, strict=True) for rows in head])
        weights.update(zip(names, np.split(fused, len(names)), strict=True))
    return replace(model, weights=weights)


FAULTS: Mapping[str, Fault] = {
    "scale_first": Fault(
        "the last modulation is read as scale, then shift, as another library stores it",
        "split-order",
        change_model(is_scale_first=True),
        equivalents=("input-order", "input-source", "gate-order"),
    ),
    "modulation_offset": Fault(
        "a norm is multiplied by its scale, not by 1 + scale",
        "constant-offset",
        change_model(scale_offset=0.0),
        equivalents=("missing-step", "missing-term", "skip-missing", "input-source"),
    ),
    "ratio_offset": Fault(
        "the loss has the weight of noise prediction: divided by the ratio, not by ratio + 1",
        "constant-offset",
        change_model(ratio_offset=0.0),
        equivalents=("loss-weight", "missing-step", "missing-term", "input-source"),
    ),
    "position_scale": Fault(
        "rows and columns of the table of positions are not scaled to the base grid",
        "rope-scaling",
        change_model(position_scale=1.0),
        lambda faulty, clean: [Ratio(faulty.position_scale / clean.position_scale)],
        equivalents=("constant-factor", "scale"),
    ),
    "channels_first": Fault(
        "the numbers of a predicted patch are read channel by channel, not pixel by pixel",
        "axes-swapped",
        change_model(are_channels_first=True),
        equivalents=("split-order", "channel-order", "heads-permuted"),
    ),
    "caption_mask": Fault(
        "patches attend to the caption's padding",
        "cross-mask",
        change_model(is_caption_masked=False),
        lambda *_: [Anywhere(r"mask|padding|bias|-10000|-1e\+?0?4")],
        equivalents=("mask-missing", "missing-step", "missing-term"),
    ),
    "cross_norm": Fault(
        "a norm before the attention to the caption, where the reference has none",
        "norm-missing",
        change_model(is_cross_normed=True),
        lambda *_: [Anywhere("norm")],
        equivalents=("missing-step", "input-source", "layer-order"),
    ),
    "frequencies_half": Fault(
        "the frequencies of time steps are a buffer, which became bfloat16 with the model",
        "low-precision",
        change_model(are_frequencies_half=True),
        lambda *_: [Words("bfloat16")],
        row="46",
    ),
    "gelu_erf": Fault(
        "gelu in its exact form in the last block, a framework's default, not in the tanh form",
        "gelu-variant",
        change_model(mlp_activation="gelu_erf"),
        lambda *_: [Anywhere("(?i)gelu")],
        equivalents=("activation-kind",),
    ),
    "noise_target": Fault(
        "the loss is that of the noise, not of the velocity",
        "loss-target",
        change_model(loss_target="noise"),
        equivalents=("input-source", "missing-step", "missing-term"),
    ),
    "caption_stopped": Fault(
        "no gradient to the projection of the caption, as if it were part of the text encoder",
        "gradient-stopped",
        change_model(is_caption_stopped=True),
    ),
    "class_gradient": Fault(
        "the gradient of a class is divided by how often the batch has it",
        "gradient-scaled",
        change_model(is_class_gradient_averaged=True),
    ),
    "decay_in_gradient": Fault(
        "Adam for AdamW: weight decay is added to the gradient",
        "update-rule",
        change_optimizer(kind="adam"),
        row="32",
        optimizer=True,
        equivalents=("weight-decay",),
    ),
    "bias_correction": Fault(
        "an AdamW without bias correction",
        "bias-correction",
        change_optimizer(bias_correction=False),
        row="32",
        optimizer=True,
        equivalents=("update-rule",),
    ),
    "sines_first": Fault(
        "sines before cosines in the embedding of time steps, another library's default",
        "time-embedding-order",
        change_model(are_sines_first=True),
        lambda *_: [Anywhere(r"(?i)\b(co)?sine?s?\b|order|exchang|swap")],
        equivalents=("input-order", "input-source", "split-order", "channel-order"),
    ),
    "latent_scale": Fault(
        "latents have the scale of another autoencoder, 0.13025, that of SDXL",
        "constant-factor",
        change_model(latent_scale=0.13025),
        lambda faulty, clean: [Ratio(faulty.latent_scale / clean.latent_scale)],
        equivalents=("scale", "argument"),
    ),
    "condition_activated": Fault(
        "silu of the condition where it is added up, too, not in the modulations only",
        "missing-step",
        change_model(is_condition_activated=True),
        lambda *_: [Anywhere(r"(?i)silu|swish|sigmoid|activat")],
        equivalents=("activation-kind", "layer-order", "input-source"),
    ),
    "weights_broadcast": Fault(
        "weights of the losses keep an axis: (batch, 1) by (batch,) gives each error all weights",
        "loss-weight",
        change_model(are_weights_broadcast=True),
        equivalents=(
            "loss-reduction",
            "axes-swapped",
            "pooling",
            "reduction-axis",
            "missing-step",
            "input-source",
            "argument",
        ),
    ),
    "mask_added": Fault(
        "the caption's mask is of floats, which attention adds to the scores: 1 for a token, 0 for "
        "padding",
        "mask-fill",
        change_model(is_mask_added=True),
        lambda *_: [Anywhere("(?i)mask|padding|bias|inf|added|float")],
        row="47",
        equivalents=("cross-mask", "mask-missing", "mask-kind"),
    ),
    "final_timed": Fault(
        "the last modulation reads the time step alone, as PixArt has it, not with the class",
        "missing-term",
        change_model(is_final_timed=True),
        equivalents=("input-source", "missing-step", "skip-missing", "skip-source"),
    ),
    "dropped_class": Fault(
        "a dropped class is embedded as zeros, not as the last row of the table",
        "zeroed",
        change_model(is_dropped_class_zero=True),
        equivalents=(
            "missing-step",
            "missing-term",
            "constant-factor",
            "dropout",
            "mask-missing",
            "mask-kind",
            "input-source",
            "weight-rows",
        ),
    ),
    "modulation_shared": Fault(
        "one modulation for all blocks, as PixArt has it: that of the first one",
        "weight-swapped",
        change_model(is_modulation_shared=True),
        equivalents=("input-source", "layer-order"),
    ),
    "fused_in_thirds": Fault(
        "fused rows of queries, keys and values, which a checkpoint has head by head, are split in "
        "thirds for the last block's self attention",
        "weight-rows",
        _split_in_thirds,
        equivalents=(
            "split-order",
            "heads-permuted",
            "weight-swapped",
            "row-shift",
            "axes-swapped",
        ),
    ),
    "modulation_underived": Fault(
        "a fused modulation of the blocks returns gradients times the scale, not times 1 + scale",
        "gradient-scaled",
        change_model(is_modulation_derived=False),
        equivalents=("missing-term", "constant-offset", "skip-missing", "missing-step"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("scale_first", "mindspore"),
    ("modulation_offset", "pytorch"),
    ("ratio_offset", "pytorch"),
    ("position_scale", "mindspore"),
    ("channels_first", "pytorch"),
    ("caption_mask", "mindspore"),
    ("cross_norm", "pytorch"),
    ("frequencies_half", "mindspore"),
    ("gelu_erf", "pytorch"),
    ("noise_target", "mindspore"),
    ("caption_stopped", "mindspore"),
    ("class_gradient", "pytorch"),
    ("decay_in_gradient", "pytorch"),
    ("bias_correction", "mindspore"),
    ("sines_first", "mindspore"),
    ("latent_scale", "pytorch"),
    ("condition_activated", "mindspore"),
    ("weights_broadcast", "pytorch"),
    ("mask_added", "pytorch"),
    ("final_timed", "mindspore"),
    ("dropped_class", "mindspore"),
    ("modulation_shared", "pytorch"),
    ("fused_in_thirds", "mindspore"),
    ("modulation_underived", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "einsum": ("", "einsum"),
    "written": ("written", ""),
}
