"""The equivariant graph network in MindSpore for graph mode, with segment sums over an edge list.

Variant 'written': the first layer of edges in parts that are computed of atoms before they are
gathered, sums by products with a matrix of zeros and ones, both heads' first layers in one, norms,
activations and losses in plain arithmetic.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from families.egnn.architecture import (
    ATOMS,
    CENTERS,
    CUTOFF,
    DIPOLE_WEIGHT,
    DISTANCE_EPS,
    ELEMENTS,
    ENERGY_DEVIATION,
    EPS,
    FORCE_WEIGHT,
    GAUSSIAN_FACTOR,
    HEAD,
    HIDDEN,
    HUBER_DELTA,
    LAYERS,
    MOLECULES,
    ROWS,
    SPACING,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return MoleculeLoss(model)


def make_dense(weight: np.ndarray, bias: np.ndarray | None) -> nn.Dense:
    """Return a linear layer with these weights."""
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=Tensor(weight),
        bias_init=None if bias is None else Tensor(bias),
        has_bias=bias is not None,
    )


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``, with the bias if there is one."""
    return make_dense(model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias"))


def build_table(model: Model, path: str) -> nn.Embedding:
    """Return the embedding at ``path``."""
    table = Tensor(model.weights[f"{path}.weight"])
    return nn.Embedding(ELEMENTS, table.shape[1], embedding_table=table)


class WrittenNorm(nn.Cell):
    """Layer norm from means."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.gamma, self.beta = Parameter(weight, name="gamma"), Parameter(bias, name="beta")

    def construct(self, x):
        centered = x - x.mean(-1, keep_dims=True)
        variance = ops.square(centered).mean(-1, keep_dims=True)
        return centered * ops.rsqrt(variance + EPS) * self.gamma + self.beta


def build_norm(model: Model, path: str) -> nn.Cell:
    """Return the layer norm at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    if model.variant == "written":
        return WrittenNorm(weight, bias)
    return nn.LayerNorm((HIDDEN,), gamma_init=weight, beta_init=bias, epsilon=EPS)


class WrittenSiLU(nn.Cell):
    """SiLU as a product."""

    def construct(self, x):
        return x * ops.sigmoid(x)


def build_activation(model: Model) -> nn.Cell:
    """Return a SiLU."""
    return WrittenSiLU() if model.variant == "written" else nn.SiLU()


def build_mlp(model: Model, path: str) -> nn.SequentialCell:
    """Return two linear layers with a SiLU between them."""
    return nn.SequentialCell(
        build_dense(model, f"{path}.first"),
        build_activation(model),
        build_dense(model, f"{path}.second"),
    )


class SegmentSum(nn.Cell):
    """Sums of rows by the segment that each of them belongs to."""

    def __init__(self, model: Model, segments: int) -> None:
        super().__init__()
        self.segments, self.is_product = segments, model.variant == "written"

    def construct(self, x, index):
        if self.is_product:
            members = ops.expand_dims(ops.arange(self.segments), 1) == index
            return ops.matmul(members.astype(ms.float32), x)
        return ops.unsorted_segment_sum(x, index, self.segments)


class Geometry(nn.Cell):
    """Directions, Gaussians of distances and cutoffs of edges."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.centers = Tensor(CENTERS)
        self.is_cutoff_open = model.is_cutoff_open
        self.is_norm_stopped = model.is_norm_stopped

    def construct(self, positions, mask, first, second):
        difference = ops.gather(positions, first, 0) - ops.gather(positions, second, 0)
        squares = ops.square(difference).sum(-1, keepdims=True)
        distance = ops.sqrt(squares + DISTANCE_EPS)
        gaussians = ops.exp(-GAUSSIAN_FACTOR * ops.square((distance - self.centers) / SPACING))
        envelope = 0.5 * (ops.cos(distance * (math.pi / CUTOFF)) + 1)
        if not self.is_cutoff_open:
            envelope = envelope * (distance < CUTOFF).astype(ms.float32)
        length = ops.stop_gradient(distance) if self.is_norm_stopped else distance
        return difference / length, gaussians, envelope * mask


class EdgeMLP(nn.Cell):
    """Two linear layers, each with a SiLU, of both atoms' features and the Gaussians."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.mlp = build_mlp(model, path)
        self.act = build_activation(model)

    def construct(self, h, gaussians, first, second):
        x = ops.concat((ops.gather(h, first, 0), ops.gather(h, second, 0), gaussians), -1)
        return self.act(self.mlp(x))


class PartedEdgeMLP(nn.Cell):
    """The same; parts of the first layer are computed of atoms."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        weight = model.weights[f"{path}.first.weight"]
        parts = [np.ascontiguousarray(x) for x in np.split(weight, (HIDDEN, 2 * HIDDEN), axis=1)]
        self.reader, self.neighbour = make_dense(parts[0], None), make_dense(parts[1], None)
        self.distance = make_dense(parts[2], model.weights[f"{path}.first.bias"])
        self.dense = build_dense(model, f"{path}.second")
        self.act1, self.act2 = build_activation(model), build_activation(model)

    def construct(self, h, gaussians, first, second):
        x = ops.gather(self.reader(h), first, 0) + ops.gather(self.neighbour(h), second, 0)
        return self.act2(self.dense(self.act1(x + self.distance(gaussians))))


class EquivariantLayer(nn.Cell):
    """Messages along all edges, which move the atoms and change their features."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.geometry = Geometry(model)
        edge_mlp = PartedEdgeMLP if model.variant == "written" else EdgeMLP
        self.edge_mlp = edge_mlp(model, f"{path}.edge")
        self.gate = build_dense(model, f"{path}.gate")
        self.position_mlp = build_mlp(model, f"{path}.position")
        self.node_norm = build_norm(model, f"{path}.node.norm")
        self.node_mlp = build_mlp(model, f"{path}.node")
        self.segment_sum = SegmentSum(model, ROWS)
        self.is_summed_at_second = model.is_summed_at_second

    def construct(self, h, positions, valid, mask, first, second):
        directions, gaussians, envelope = self.geometry(positions, mask, first, second)
        edges = self.edge_mlp(h, gaussians, first, second)
        messages = edges * ops.sigmoid(self.gate(edges)) * envelope

        receiver = second if self.is_summed_at_second else first
        moves = directions * ops.tanh(self.position_mlp(messages)) * envelope
        neighbours = ops.maximum(self.segment_sum(mask, receiver), 1.0)
        positions = positions + self.segment_sum(moves, receiver) / neighbours

        sums = self.segment_sum(messages, receiver)
        h = h + self.node_mlp(ops.concat((self.node_norm(h), sums), -1))
        return h * valid, positions


class Heads(nn.Cell):
    """An energy and a charge of each atom."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.energy_head, self.charge_head = build_mlp(model, "energy"), build_mlp(model, "charge")

    def construct(self, h):
        return self.energy_head(h), self.charge_head(h)


class JoinedHeads(nn.Cell):
    """The same with one first layer for both."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        weight, bias = (
            np.concatenate([model.weights[f"{head}.first.{name}"] for head in ("energy", "charge")])
            for name in ("weight", "bias")
        )
        self.dense, self.act = make_dense(weight, bias), build_activation(model)
        self.energy_out = build_dense(model, "energy.second")
        self.charge_out = build_dense(model, "charge.second")

    def construct(self, h):
        energy, charge = ops.split(self.act(self.dense(h)), HEAD, axis=1)
        return self.energy_out(energy), self.charge_out(charge)


class EGNN(nn.Cell):
    """Energies (MOLECULES,), forces (ROWS, 3) and dipoles (MOLECULES, 3)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embedding = build_table(model, "elements")
        self.reference = build_table(model, "reference")
        self.layers = nn.CellList(
            [EquivariantLayer(model, f"layers.{n}") for n in range(LAYERS)],
        )
        self.norm = build_norm(model, "norm")
        self.heads = (JoinedHeads if model.variant == "written" else Heads)(model)
        self.pool = SegmentSum(model, MOLECULES)
        self.are_padded_neighbours_read = model.are_padded_neighbours_read

    def construct(self, elements, positions, valid, first, second, molecules):
        mask = ops.gather(valid, first, 0)
        if not self.are_padded_neighbours_read:
            mask = mask * ops.gather(valid, second, 0)
        h, moved = self.embedding(elements) * valid, positions
        for layer in self.layers:
            h, moved = layer(h, moved, valid, mask, first, second)

        energies, charges = self.heads(self.norm(h))
        energies = (ENERGY_DEVIATION * energies + self.reference(elements)) * valid
        dipoles = self.pool(charges * valid * positions, molecules)

        displacements = (moved - positions) * valid
        means = self.pool(displacements, molecules) / self.pool(valid, molecules)
        forces = (displacements - ops.gather(means, molecules, 0)) * valid
        return self.pool(energies, molecules).squeeze(-1), forces, dipoles


class MoleculeLoss(nn.Cell):
    """The weighted sum of the losses of energies, forces and dipoles."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = EGNN(model)
        self.are_energies_divided = model.are_energies_divided
        self.is_written = model.variant == "written"

    def compute_energy_loss(self, energies, targets, valid):
        """Return the Huber loss of energies."""
        if self.are_energies_divided:
            sizes = valid.reshape(MOLECULES, ATOMS).sum(-1)
            energies, targets = energies / sizes, targets / sizes
        if self.is_written:
            errors = ops.abs(energies - targets)
            near = 0.5 * ops.square(errors)
            far = HUBER_DELTA * (errors - 0.5 * HUBER_DELTA)
            return ops.where(errors <= HUBER_DELTA, near, far).mean()
        return ops.huber_loss(energies, targets, delta=HUBER_DELTA)

    def construct(
        self, elements, positions, valid, first, second, molecules, energies, forces, dipoles
    ):
        predictions = self.network(elements, positions, valid, first, second, molecules)
        energy_loss = self.compute_energy_loss(predictions[0], energies, valid)
        force_loss = (ops.square(predictions[1] - forces) * valid).sum() / (3 * valid.sum())
        if self.is_written:
            dipole_loss = ops.abs(predictions[2] - dipoles).mean()
        else:
            dipole_loss = ops.l1_loss(predictions[2], dipoles)
        return energy_loss + FORCE_WEIGHT * force_loss + DIPOLE_WEIGHT * dipole_loss
