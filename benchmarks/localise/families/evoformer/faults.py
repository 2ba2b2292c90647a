"""Faults of the blocks for protein structure prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from claims import Anywhere, Ratio, Values

from families.evoformer.architecture import BLOCKS, Model
from families.fault import Fault, change_model, change_optimizer


def _swap_outer_sides(model: Model) -> Model:
    """Give the projections of the last outer product each other's weight and bias."""
    weights = dict(model.weights)
    left, right = (f"blocks.{BLOCKS - 1}.outer.{side}" for side in ("left", "right"))
    for kind in ("weight", "bias"):
        weights[f"{left}.{kind}"] = model.weights[f"{right}.{kind}"]
        weights[f"{right}.{kind}"] = model.weights[f"{left}.{kind}"]
    return replace(model, weights=weights)


FAULTS: Mapping[str, Fault] = {
    "offset_reversed": Fault(
        "the offset of a pair is second minus first residue, not first minus second",
        "input-order",
        change_model(is_offset_reversed=True),
        equivalents=(
            "input-source",
            "axes-swapped",
            "constant-factor",
            "scale",
            "position-offset",
            "relative-bias",
            "scan-direction",
        ),
    ),
    "outer_mean_plain": Fault(
        "outer products are divided by the number of all rows: masked ones count in the mean",
        "pooling",
        change_model(is_outer_mean_plain=True),
        equivalents=(
            "input-source",
            "missing-step",
            "missing-term",
            "argument",
            "mask-missing",
            "mask-kind",
            "constant-factor",
            "reduction-axis",
        ),
    ),
    "bias_scaled": Fault(
        "scores are scaled after the bias of the pairs was added: it is scaled, too",
        "layer-order",
        change_model(is_bias_scaled=True),
        equivalents=("scale", "constant-factor", "relative-bias", "input-source"),
    ),
    "distogram_lopsided": Fault(
        "the distogram's logits are not added to those of the exchanged residues",
        "missing-term",
        change_model(is_distogram_symmetric=False),
        equivalents=("missing-step", "skip-missing", "input-source"),
    ),
    "incoming_outgoing": Fault(
        "the incoming multiplication of triangles has the equation of the outgoing one",
        "axes-swapped",
        change_model(is_incoming_outgoing=True),
        equivalents=("input-source", "input-order", "missing-step", "reduction-axis", "argument"),
    ),
    "triangle_gate_swapped": Fault(
        "in multiplications of triangles the sigmoid is on the projections, not on their gates",
        "gate-up-swapped",
        change_model(is_triangle_gate_swapped=True),
        equivalents=(
            "gate-order",
            "input-order",
            "input-source",
            "split-order",
            "weight-swapped",
        ),
    ),
    "gaps_attended": Fault(
        "attention along columns has the mask of the residues, not that of the alignment: gaps "
        "are seen",
        "mask-kind",
        change_model(are_gaps_masked=False),
        equivalents=("mask-missing", "input-source", "mask-shifted"),
    ),
    "breaks_plain": Fault(
        "squared distances are compared with limits of the bins that are not squared",
        "loss-target",
        change_model(are_breaks_squared=False),
        equivalents=("missing-step", "input-source", "label-shift", "batch", "argument"),
    ),
    "bias_stopped": Fault(
        "a fused attention that has no gradient of the bias: none reaches the pairs from the rows",
        "gradient-stopped",
        change_model(is_bias_stopped=True),
        equivalents=("missing-term",),
    ),
    "outer_gradient": Fault(
        "the gradient of the outer product mean is summed over two ranks that have the same",
        "gradient-scaled",
        change_model(outer_gradient=2.0),
        lambda faulty, clean: [Ratio(faulty.outer_gradient / clean.outer_gradient)],
        row="20",
    ),
    "default_eps": Fault(
        "Adam has the framework's epsilon, 1e-8, not 1e-6",
        "optimizer-epsilon",
        change_optimizer(eps=1e-8),
        lambda faulty, clean: [Values(faulty.optimizer.eps, clean.optimizer.eps)],
        row="32",
        optimizer=True,
        equivalents=("argument",),
    ),
    "decay_all": Fault(
        "biases and norms decay, too: all weights are in one group",
        "weight-decay",
        change_optimizer(decay_all=True),
        row="32",
        optimizer=True,
        equivalents=("update-rule", "argument"),
    ),
    "outer_sides_swapped": Fault(
        "the two projections of the last outer product exchanged by the table of names",
        "weight-swapped",
        _swap_outer_sides,
        lambda *_: [Anywhere("outer|projection|linear|parameter|weight|left|right")],
        equivalents=("input-order", "axes-swapped", "split-order"),
    ),
    "triangle_gate_raw": Fault(
        "the output gates of multiplications of triangles read the pairs in front of the norm",
        "input-source",
        change_model(is_triangle_gate_raw=True),
        equivalents=("layer-order", "norm-missing", "missing-step", "skip-source"),
    ),
    "offset_unclipped": Fault(
        "offsets of pairs are not clipped: vectors of those beyond the limit have no one",
        "clamp",
        change_model(are_offsets_clipped=False),
        equivalents=("missing-step", "input-source", "relative-bias", "clip", "argument"),
    ),
    "incoming_gradient_exchanged": Fault(
        "the incoming multiplication's own backward pass reads the gradient of the pair (j, i) for "
        "that of (i, j)",
        "axes-swapped",
        change_model(is_incoming_gradient_exchanged=True),
        equivalents=("input-source", "input-order", "missing-step", "weight-transposed"),
    ),
    "outer_first": Fault(
        "a block begins with the outer product mean, as in AlphaFold-Multimer, not after the "
        "alignment's transition",
        "layer-order",
        change_model(is_outer_first=True),
        equivalents=(
            "input-source",
            "residual-order",
            "skip-source",
            "input-order",
            "missing-term",
            "skip-missing",
        ),
    ),
    "nanometers": Fault(
        "coordinates are in nanometers, as a reader of trajectories has them, limits of the bins "
        "in angstrom",
        "constant-factor",
        change_model(coordinate_factor=0.1),
        lambda *_: [
            Anywhere(
                r"(?i)(?<![\w.])(?:10(?:\.0\d*)?|9\.99\d*|100(?:\.0\d*)?|99\.9\d*|0?\.10*|"
                r"0?\.0(?:1|99)\d*|0?\.1000\d*)(?![\w.]*\w)|batch|input|data|label|target"
            )
        ],
        equivalents=("scale", "batch", "loss-target", "input-source", "missing-step"),
    ),
    "ending_bias_kept": Fault(
        "the attention around the ending node exchanges both residues of its pairs, but not of the "
        "bias that it makes of them",
        "axes-swapped",
        change_model(is_ending_bias_kept=True),
        equivalents=(
            "missing-step",
            "input-source",
            "input-order",
            "layer-order",
            "relative-bias",
        ),
    ),
    "all_tokens_predicted": Fault(
        "the loss of masked residues has the mask of the alignment: residues that the model sees "
        "count, too",
        "mask-kind",
        change_model(are_all_tokens_predicted=True),
        equivalents=(
            "mask-missing",
            "loss-reduction",
            "ignore-index",
            "pooling",
            "input-source",
        ),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("offset_reversed", "mindspore"),
    ("outer_mean_plain", "mindspore"),
    ("bias_scaled", "mindspore"),
    ("distogram_lopsided", "mindspore"),
    ("incoming_outgoing", "pytorch"),
    ("triangle_gate_swapped", "pytorch"),
    ("gaps_attended", "pytorch"),
    ("breaks_plain", "pytorch"),
    ("bias_stopped", "mindspore"),
    ("outer_gradient", "pytorch"),
    ("default_eps", "mindspore"),
    ("decay_all", "pytorch"),
    ("outer_sides_swapped", "mindspore"),
    ("triangle_gate_raw", "pytorch"),
    ("offset_unclipped", "pytorch"),
    ("incoming_gradient_exchanged", "mindspore"),
    ("outer_first", "mindspore"),
    ("nanometers", "pytorch"),
    ("ending_bias_kept", "mindspore"),
    ("all_tokens_predicted", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "fused": ("", "fused"),
    "written": ("written", ""),
}
