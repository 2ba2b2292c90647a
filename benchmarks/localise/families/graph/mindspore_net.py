"""The graph network in MindSpore, with the segment operators of its science kits.

Variant 'scattered': sums by scattering, scores from joined nodes, norms and loss written out.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from families.graph.architecture import (
    ATOMS,
    BONDS,
    DEGREES,
    EPS,
    GRAPHS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    MOMENTUM,
    NODES,
    SLOPE,
    Model,
)


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    is_changed = (
        model.degree_offset
        or not model.has_own_factor
        or model.are_sums_half
        or model.are_bonds_shared
        or model.slope != SLOPE
        or model.is_normalizer_stopped
        or not model.is_output_squeezed
    )
    if is_changed:
        raise SystemExit("a fault of the PyTorch net")
    return PropertyLoss(model)


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at ``path``."""
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.Dense(weight.shape[1], weight.shape[0], weight_init=weight, bias_init=bias)


def build_table(model: Model, path: str, rows: int) -> nn.Embedding:
    """Return the embedding at ``path``."""
    return nn.Embedding(rows, HIDDEN, embedding_table=Tensor(model.weights[f"{path}.weight"]))


class WrittenNorm(nn.Cell):
    """A norm over one axis of (nodes, channels), from reductions."""

    def __init__(self, model: Model, path: str, axis: int) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(model.weights[f"{path}.weight"]))
        self.beta = Parameter(Tensor(model.weights[f"{path}.bias"]))
        self.axis = axis

    def construct(self, x):
        centered = x - x.mean(self.axis, keep_dims=True)
        variance = (centered * centered).mean(self.axis, keep_dims=True)
        return self.gamma * (centered * ops.rsqrt(variance + EPS)) + self.beta


def build_batch_norm(model: Model, path: str) -> nn.Cell:
    """Return the batch norm at ``path``."""
    if model.variant == "scattered":
        return WrittenNorm(model, path, 0)
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.BatchNorm1d(
        len(weight), eps=EPS, momentum=1 - MOMENTUM, gamma_init=weight, beta_init=bias
    )


def build_layer_norm(model: Model, path: str) -> nn.Cell:
    """Return the layer norm at ``path``."""
    if model.variant == "scattered":
        return WrittenNorm(model, path, -1)
    weight, bias = (Tensor(model.weights[f"{path}.{name}"]) for name in ("weight", "bias"))
    return nn.LayerNorm(
        (HIDDEN,),
        begin_norm_axis=0 if model.is_norm_of_all else -1,
        gamma_init=weight,
        beta_init=bias,
        epsilon=EPS,
    )


class SegmentSum(nn.Cell):
    """Sums of rows by the segment that each of them belongs to."""

    def __init__(self, model: Model, segments: int) -> None:
        super().__init__()
        self.segments = segments
        self.is_scattered = model.variant == "scattered"

    def construct(self, x, index):
        if self.is_scattered:
            sums = ops.zeros((self.segments, *x.shape[1:]), x.dtype)
            return ops.tensor_scatter_add(sums, index.expand_dims(-1), x)
        return ops.unsorted_segment_sum(x, index, self.segments)


class SumWithMeanGradient(nn.Cell):
    """The same sums, with the gradient of means."""

    def __init__(self, segments: int) -> None:
        super().__init__()
        self.segments = segments

    def construct(self, x, index):
        return ops.unsorted_segment_sum(x, index, self.segments)

    def bprop(self, x, index, out, gradient):
        counts = ops.unsorted_segment_sum(ops.ones_like(x[:, :1]), index, self.segments)
        return ops.gather(gradient / counts, index, 0), ops.zeros_like(index)


class GINEConv(nn.Cell):
    """The own node and the sum of its messages, through two linear layers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.bond_embedding = build_table(model, "bonds.0", BONDS)
        self.eps = Parameter(Tensor(model.weights["isomorphism.factor"]))
        self.dense1 = build_dense(model, "isomorphism.up")
        self.bn = build_batch_norm(model, "isomorphism.norm")
        self.dense2 = build_dense(model, "isomorphism.down")
        if model.is_gradient_averaged:
            self.segment_sum = SumWithMeanGradient(NODES)
        else:
            self.segment_sum = SegmentSum(model, NODES)

    def construct(self, x, source, target, bonds):
        messages = ops.relu(ops.gather(x, source, 0) + self.bond_embedding(bonds))
        x = (1 + self.eps) * x + self.segment_sum(messages, target)
        return self.dense2(ops.relu(self.bn(self.dense1(x))))


class GATConv(nn.Cell):
    """Attention of each node to its neighbours and their bonds."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.bond_embedding = build_table(model, "bonds.1", BONDS)
        self.fc = build_dense(model, "attention.value")
        self.attn_s = Parameter(Tensor(model.weights["attention.source"]))
        self.attn_d = Parameter(Tensor(model.weights["attention.target"]))
        self.segment_sum = SegmentSum(model, NODES)
        self.is_joined = model.variant == "scattered"
        self.is_softmax_of_edges = model.softmax_over == "edges"
        self.are_heads_last, self.is_target_read = model.are_heads_last, model.is_target_read
        self.has_loops, self.are_bonds_summed = model.has_loops, model.are_bonds_summed
        self.nodes = Tensor(np.arange(NODES, dtype=np.int32))

    def split(self, x):
        """Return (rows, HEADS, HEAD_DIM)."""
        if self.are_heads_last:
            return x.reshape(-1, HEAD_DIM, HEADS).transpose(0, 2, 1)
        return x.reshape(-1, HEADS, HEAD_DIM)

    def score(self, values, messages, target):
        """Return the scores (edges, HEADS) before their activation."""
        if self.is_joined:
            pairs = ops.concat((messages, ops.gather(values, target, 0)), -1)
            weights = ops.concat((self.attn_s, self.attn_d), -1)
            return (pairs * weights).sum(-1)
        by_target = (values * self.attn_d).sum(-1)
        return (messages * self.attn_s).sum(-1) + ops.gather(by_target, target, 0)

    def softmax(self, scores, target):
        """Return shares (edges, HEADS) that sum to one for each target."""
        if self.is_softmax_of_edges:
            return ops.softmax(scores, 0)
        largest = ops.unsorted_segment_max(ops.stop_gradient(scores), target, NODES)
        exponentials = ops.exp(scores - ops.gather(largest, target, 0))
        sums = self.segment_sum(exponentials, target)
        return exponentials / ops.gather(sums, target, 0)

    def construct(self, x, source, target, bonds):
        values, bonds = self.fc(x), self.bond_embedding(bonds)
        if self.has_loops:
            source = ops.concat((source, self.nodes))
            target = ops.concat((target, self.nodes))
            bonds = ops.concat((bonds, ops.zeros_like(values)))
        read = target if self.is_target_read else source
        read_values = ops.gather(values, read, 0)
        messages = self.split(read_values + bonds)
        scores = self.score(self.split(values), messages, target)
        shares = self.softmax(ops.leaky_relu(scores, SLOPE), target)
        if not self.are_bonds_summed:
            messages = self.split(read_values)
        sums = self.segment_sum(shares.expand_dims(-1) * messages, target)
        return sums.reshape(-1, HIDDEN)


class Readout(nn.Cell):
    """The gated nodes of each graph, pooled."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.gate = build_dense(model, "readout.gate")
        self.transform = build_dense(model, "readout.value")
        self.segment_sum = SegmentSum(model, GRAPHS)
        self.is_max = model.pooling == "max"
        self.is_value_gated = model.is_value_gated

    def construct(self, x, graph):
        if self.is_value_gated:
            gated = self.gate(x) * ops.sigmoid(self.transform(x))
        else:
            gated = ops.sigmoid(self.gate(x)) * self.transform(x)
        if self.is_max:
            return ops.unsorted_segment_max(gated, graph, GRAPHS)
        sizes = self.segment_sum(ops.ones_like(gated[:, :1]), graph)
        return self.segment_sum(gated, graph) / sizes


class GraphNetwork(nn.Cell):
    """One number of each graph, (GRAPHS,)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.atom_embedding = build_table(model, "atoms", ATOMS)
        self.degree_embedding = build_table(model, "degrees", DEGREES)
        self.gin, self.gat = GINEConv(model), GATConv(model)
        self.norm = build_layer_norm(model, "attention.norm")
        self.readout = Readout(model)
        self.dense1, self.dense2 = build_dense(model, "head.0"), build_dense(model, "head.1")
        self.is_selu = model.activation == "selu"
        self.has_skip, self.is_norm_first = model.has_skip, model.is_norm_first

    def construct(self, atoms, source, target, bonds, graph):
        degrees = ops.unsorted_segment_sum(ops.ones_like(target), target, NODES)
        x = self.atom_embedding(atoms) + self.degree_embedding(degrees)
        x = ops.relu(self.gin(x, source, target, bonds))
        attended = self.gat(x, source, target, bonds)
        attended = ops.selu(attended) if self.is_selu else ops.elu(attended)
        if self.is_norm_first:
            x = x + self.norm(attended)
        else:
            x = self.norm(x + attended if self.has_skip else attended)
        return self.dense2(ops.silu(self.dense1(self.readout(x, graph)))).squeeze(-1)


class PropertyLoss(nn.Cell):
    """Smooth L1 loss of the labels."""

    def __init__(self, model: Model) -> None:
        super().__init__(auto_prefix=False)
        self.network = GraphNetwork(model)
        self.beta = model.beta
        self.is_written_out = model.variant == "scattered"

    def construct(self, atoms, source, target, bonds, graph, labels):
        predictions = self.network(atoms, source, target, bonds, graph)
        if self.is_written_out:
            distances = ops.abs(predictions - labels)
            is_near = (distances < self.beta).astype(ms.float32)
            near = 0.5 * ops.square(distances) / self.beta
            losses = is_near * near + (1 - is_near) * (distances - 0.5 * self.beta)
            return losses.mean()
        return ops.smooth_l1_loss(predictions, labels, beta=self.beta, reduction="mean")
