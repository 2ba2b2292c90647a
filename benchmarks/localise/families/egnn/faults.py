"""Faults of the equivariant graph network."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from claims import Anywhere, Ratio

from families.egnn.architecture import ATOMS, BOHR, HIDDEN, LAYERS, SIZES, Model
from families.fault import Fault, change_model


def _exchange_columns(model: Model) -> Model:
    """Exchange the columns of an edge's two atoms in the first layers of edges."""
    weights = dict(model.weights)
    for n in range(LAYERS):
        name = f"layers.{n}.edge.first.weight"
        first, second, gaussians = np.split(weights[name], (HIDDEN, 2 * HIDDEN), axis=1)
        weights[name] = np.concatenate([second, first, gaussians], axis=1)
    return change_model(weights=weights)(model)


def _reuse_positions(model: Model) -> Model:
    """Give the last layer the weights that move the atoms in the first one."""
    weights = dict(model.weights)
    prefix = f"layers.{LAYERS - 1}.position."
    for name in model.weights:
        if name.startswith(prefix):
            weights[name] = model.weights[f"layers.0.position.{name.removeprefix(prefix)}"]
    return change_model(weights=weights)(model)


FAULTS: Mapping[str, Fault] = {
    "summed_at_second": Fault(
        "messages are summed up at the second atom of an edge, as PyTorch Geometric does it, not "
        "at the first one, as the authors' code does it",
        "input-source",
        change_model(is_summed_at_second=True),
        equivalents=("input-order", "axes-swapped", "split-order", "argument"),
    ),
    "cutoff_open": Fault(
        "the cosine of the cutoff is not set to zero behind it, where it rises again",
        "mask-missing",
        change_model(is_cutoff_open=True),
        equivalents=("missing-step", "missing-term", "clamp", "mask-kind", "input-source"),
    ),
    "padded_neighbours": Fault(
        "the mask of edges is that of the atoms that read: padded atoms send messages",
        "mask-kind",
        change_model(are_padded_neighbours_read=True),
        equivalents=(
            "mask-missing",
            "cross-mask",
            "missing-step",
            "missing-term",
            "input-source",
        ),
    ),
    "norm_stopped": Fault(
        "a direction is divided by a length without a gradient, as in the authors' code",
        "gradient-stopped",
        change_model(is_norm_stopped=True),
        equivalents=("missing-term",),
    ),
    "columns_exchanged": Fault(
        "first layers of edges come from a checkpoint whose edges have the neighbour in front of "
        "the atom that reads it",
        "channel-order",
        _exchange_columns,
        lambda *_: [Anywhere("(?i)order|column|exchang|swap|permut|row|concat|half|split|part")],
        equivalents=("input-order", "weight-rows", "split-order", "weight-swapped"),
    ),
    "energies_undivided": Fault(
        "the energies' loss is one of whole molecules, not of energies divided by their numbers of "
        "atoms",
        "missing-step",
        change_model(are_energies_divided=False),
        equivalents=(
            "loss-weight",
            "loss-reduction",
            "loss-target",
            "scale",
            "constant-factor",
            "missing-term",
            "input-source",
            "pooling",
        ),
    ),
    "gaussian_factor": Fault(
        "exponents of the Gaussians lack the factor 1/2, as in another code, whose gamma is the "
        "inverse square of the spacing",
        "constant-factor",
        change_model(gaussian_factor=1.0),
        lambda faulty, clean: [Ratio(faulty.gaussian_factor / clean.gaussian_factor)],
        equivalents=("scale", "missing-step", "argument"),
    ),
    "position_gradient": Fault(
        "the gradient of the positions between two layers is damped to a tenth, for stability",
        "gradient-scaled",
        change_model(position_gradient=0.1),
        lambda faulty, clean: [Ratio(faulty.position_gradient / clean.position_gradient)],
        equivalents=("constant-factor", "scale"),
    ),
    "root_ignored": Fault(
        "a fused distance, written against NaN at zero, has the gradient of half its square: it is "
        "not divided by the distance",
        "gradient-scaled",
        change_model(is_root_ignored=True),
        lambda *_: [
            Anywhere("(?i)row|distance|norm|length|root|sqrt|squar|divi|edge|each|element")
        ],
        equivalents=("missing-step", "missing-term", "straight-through", "input-source"),
    ),
    "force_mean_of_all": Fault(
        "squared errors of forces are divided by the number of all atoms, padding too",
        "loss-reduction",
        change_model(is_force_mean_of_all=True),
        lambda *_: [Ratio(sum(SIZES) / (len(SIZES) * ATOMS))],
        equivalents=("constant-factor", "scale", "pooling", "loss-weight", "mask-missing"),
    ),
    "positions_reused": Fault(
        "the last layer moves atoms with the weights of the first one: a name's pattern fits both",
        "weight-swapped",
        _reuse_positions,
        equivalents=("input-source", "layer-order"),
    ),
    "positions_in_bohr": Fault(
        "the batch has its positions in bohr, not in angstrom",
        "constant-factor",
        change_model(position_unit=BOHR),
        lambda *_: [Anywhere(r"(?i)1\.89|0\.529|batch|input|data|position|coordinate")],
        equivalents=("batch", "scale", "missing-step"),
    ),
    "forces_negated": Fault(
        "the data set has gradients of the energy, which the loader takes for forces: their sign "
        "is the other one",
        "loss-target",
        change_model(force_sign=-1.0),
        lambda *_: [
            Anywhere(
                r"(?i)(?<![\w.])-(?:1|1\.0+\d*|0?\.99\d*)(?![\w.])|sign|negat|batch|input|force"
            )
        ],
        equivalents=("batch", "constant-factor", "scale", "missing-step"),
    ),
    "directions_unnormed": Fault(
        "atoms are moved along differences of positions that are not divided by their lengths, as "
        "by the default of the authors' code",
        "missing-step",
        change_model(are_directions_normed=False),
        equivalents=("norm-missing", "input-source", "argument"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("summed_at_second", "mindspore"),
    ("cutoff_open", "mindspore"),
    ("padded_neighbours", "mindspore"),
    ("norm_stopped", "mindspore"),
    ("columns_exchanged", "mindspore"),
    ("energies_undivided", "mindspore"),
    ("gaussian_factor", "pytorch"),
    ("position_gradient", "pytorch"),
    ("root_ignored", "pytorch"),
    ("force_mean_of_all", "pytorch"),
    ("positions_reused", "pytorch"),
    ("positions_in_bohr", "pytorch"),
    ("forces_negated", "mindspore"),
    ("directions_unnormed", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "dense": ("", "dense"),
    "written": ("written", ""),
    "both": ("written", "dense"),
}
