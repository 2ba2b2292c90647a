"""An equivariant graph network for molecules in NumPy: sizes, knobs, weights and batch.

E(n)-equivariant message passing (https://arxiv.org/abs/2102.09844, section 3) over all pairs of
atoms of a molecule, with SchNet's Gaussians of distances (https://arxiv.org/abs/1706.08566) and a
cosine cutoff. Molecules are padded to ATOMS atoms; ``first`` and ``second`` hold the two atoms of
each edge as rows of all MOLECULES * ATOMS atoms, and ``molecules`` the molecule of each atom. With
x the positions, h the features, and an edge from j to i:

    d       = sqrt(|x_i - x_j|^2 + DISTANCE_EPS)
    g_k     = exp(-1/2 ((d - center_k) / SPACING)^2)
    s       = (cos(pi d / CUTOFF) + 1) / 2 if d < CUTOFF, else 0; 0 if one of them is padding
    e_ij    = silu(edge.second(silu(edge.first([h_i, h_j, g]))))
    m_ij    = s * sigmoid(gate(e_ij)) * e_ij
    x_i    += mean of s * (x_i - x_j) / d * tanh(position.second(silu(position.first(m_ij))))
    h_i    += node.second(silu(node.first([norm(h_i), sum of m_ij])))

The mean is one of the valid neighbours; padded atoms keep zeros as features. The features after the
last layer are normed. An atom's energy is that of a head, times ENERGY_DEVIATION, plus one of its
element; a molecule's energy is the sum. Forces are how far the atoms have moved, less the mean of
the molecule. A second head gives charges; the dipole is the sum of charges times first positions.
The loss is the weighted sum of

    energy  Huber loss of energies divided by the numbers of atoms, mean of the molecules
    force   squared error, mean of the valid atoms' components
    dipole  absolute error, mean of all components

Weights are float32, linear ones (out, in):

    elements, reference                  (ELEMENTS, HIDDEN), (ELEMENTS, 1)
    layers.N.edge.{first, second}, layers.N.gate, layers.N.node.{norm, first, second}
    layers.N.position.{first, second}    no bias in the second one
    norm
    energy.{first, second}, charge.{first, second}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

SIZES = (6, 4, 7, 5)  #: atoms of each molecule
MOLECULES, ATOMS = len(SIZES), max(SIZES)
ROWS = MOLECULES * ATOMS
ELEMENTS = 6  #: with padding, which is element 0
HIDDEN, MESSAGE, HEAD, LAYERS = 18, 22, 11, 2
GAUSSIANS, CUTOFF = 9, 3.2
CENTERS = np.linspace(0, CUTOFF, GAUSSIANS, dtype=np.float32)
SPACING = CUTOFF / (GAUSSIANS - 1)
GAUSSIAN_FACTOR = 0.5
EPS, DISTANCE_EPS = 1e-5, 1e-8
ENERGY_DEVIATION, HUBER_DELTA = 0.8, 0.3
FORCE_WEIGHT, DIPOLE_WEIGHT = 4.0, 0.5
BOHR = 1.8897261  #: of an angstrom
SEED = 2102


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first: edges in a list, sums by index; 'written' (MindSpore): parts of
    #: an edge's first layer computed apart, sums by products with a matrix of zeros and ones, both
    #: heads from one layer, norms, activations and losses in plain arithmetic; 'dense' (PyTorch):
    #: messages of all pairs in one tensor and sums over one of its axes, lucidrains's names
    variant: str = ""
    is_summed_at_second: bool = False  #: messages go to the other atom of the edge; MindSpore only
    is_cutoff_open: bool = False  #: the cosine goes on behind the cutoff; MindSpore only
    are_padded_neighbours_read: bool = False  #: only the atom that reads is masked; MindSpore only
    is_norm_stopped: bool = False  #: no gradient by the length of a direction; MindSpore only
    are_energies_divided: bool = True  #: by the numbers of atoms, in the loss; MindSpore only
    gaussian_factor: float = GAUSSIAN_FACTOR  #: of the squares in the exponents; PyTorch only
    position_gradient: float = (
        1.0  #: factor of the positions' gradient between layers; PyTorch only
    )
    is_root_ignored: bool = False  #: by the gradient of distances; PyTorch only
    is_force_mean_of_all: bool = False  #: padded atoms are counted; PyTorch only
    position_unit: float = 1.0  #: in which the batch has the first positions; PyTorch only
    are_directions_normed: bool = True  #: to length 1; PyTorch only
    force_sign: float = 1.0  #: of the forces in the batch

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return elements, int32 (ROWS,), positions, float32 (ROWS, 3), which atoms are valid,
        float32 (ROWS, 1), first and second atoms of the edges, int32 (edges,), molecules, int32
        (ROWS,), and targets, float32: energies (MOLECULES,), forces (ROWS, 3), dipoles (MOLECULES,
        3). What belongs to padding is 0.
        """
        rng = np.random.default_rng(SEED + 1)
        valid = np.arange(ATOMS) < np.array(SIZES)[:, None]
        elements = np.where(valid, rng.integers(1, ELEMENTS, valid.shape), 0)
        positions = np.zeros((MOLECULES, ATOMS, 3))
        for molecule, size in enumerate(SIZES):
            positions[molecule, :size] = _place_atoms(rng, size)
        forces = 0.4 * rng.standard_normal(positions.shape) * valid[..., None]
        energies = 0.5 * np.array(SIZES) * rng.standard_normal(MOLECULES)
        dipoles = rng.standard_normal((MOLECULES, 3))
        pairs = [(i, j) for i in range(ATOMS) for j in range(ATOMS) if i != j]
        edges = (ATOMS * np.arange(MOLECULES)[:, None, None] + np.array(pairs)).reshape(-1, 2)
        first, second = np.ascontiguousarray(edges.T, np.int32)
        return (
            elements.reshape(ROWS).astype(np.int32),
            (self.position_unit * positions).reshape(ROWS, 3).astype(np.float32),
            valid.reshape(ROWS, 1).astype(np.float32),
            first,
            second,
            np.repeat(np.arange(MOLECULES, dtype=np.int32), ATOMS),
            energies.astype(np.float32),
            (self.force_sign * forces).reshape(ROWS, 3).astype(np.float32),
            dipoles.astype(np.float32),
        )


def _place_atoms(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return positions (size, 3) around their center of mass, none too near to another one."""
    positions = np.zeros((1, 3))
    while len(positions) < size:
        candidate = rng.uniform(-2.2, 2.2, 3)
        if np.linalg.norm(positions - candidate, axis=1).min() > 0.95:
            positions = np.vstack([positions, candidate])
    return positions - np.average(positions, axis=0, weights=rng.uniform(1, 16, size))


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_table("elements", ELEMENTS, HIDDEN)
    weights.add_table("reference", ELEMENTS, 1, deviation=0.5)
    for n in range(LAYERS):
        path = f"layers.{n}"
        weights.add_linear(f"{path}.edge.first", MESSAGE, 2 * HIDDEN + GAUSSIANS)
        weights.add_linear(f"{path}.edge.second", MESSAGE, MESSAGE)
        weights.add_linear(f"{path}.gate", 1, MESSAGE)
        weights.add_norm(f"{path}.node.norm", HIDDEN)
        weights.add_linear(f"{path}.node.first", MESSAGE, HIDDEN + MESSAGE)
        weights.add_linear(f"{path}.node.second", HIDDEN, MESSAGE)
        weights.add_linear(f"{path}.position.first", MESSAGE, MESSAGE)
        values = 3 * weights.rng.standard_normal((1, MESSAGE)) / np.sqrt(MESSAGE)
        weights[f"{path}.position.second.weight"] = values.astype(np.float32)
    weights.add_norm("norm", HIDDEN)
    for head in ("energy", "charge"):
        weights.add_linear(f"{head}.first", HEAD, HIDDEN)
        weights.add_linear(f"{head}.second", 1, HEAD)
    return Model("egnn", weights)
