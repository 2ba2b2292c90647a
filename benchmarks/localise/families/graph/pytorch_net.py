"""The graph network in PyTorch, with the modules of PyTorch Geometric and its scatter functions.

Variant 'incidence': sums over neighbours are products with matrices of zeros and ones, and the
softmax is one of rows. Variant 'written': norms, activations and loss in plain arithmetic.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.graph.architecture import (
    ATOMS,
    BETA,
    BONDS,
    DEGREES,
    EPS,
    GRAPHS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    MOMENTUM,
    WIDE,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    is_changed = (
        model.is_target_read
        or model.softmax_over != "neighbours"
        or model.are_heads_last
        or model.activation != "elu"
        or model.pooling != "mean"
        or model.beta != BETA
    )
    if is_changed:
        raise SystemExit("a fault of the MindSpore net")
    return PropertyLoss(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def load(module: nn.Module, model: Model, path: str) -> nn.Module:
    """Copy the weight and the bias at ``path`` into a module."""
    for name, _ in list(module.named_parameters()):
        setattr(module, name, copy_parameter(model.weights[f"{path}.{name}"]))
    return module


def load_linear(model: Model, path: str) -> nn.Module:
    """Return the linear layer at ``path``."""
    n_out, n_in = model.weights[f"{path}.weight"].shape
    return load(nn.Linear(n_in, n_out), model, path)


class Edges:
    """Sources and targets of edges: what is read along them and summed up behind them."""

    def __init__(self, source: Tensor, target: Tensor, nodes: int, *, is_product: bool) -> None:
        self.source, self.target, self.nodes = source, target, nodes
        self.is_product = is_product
        if is_product:
            self.from_source = F.one_hot(source, nodes).float()
            self.to_target = F.one_hot(target, nodes).float().T

    def read_sources(self, x: Tensor) -> Tensor:
        """Return for each edge the values of its source."""
        return self.from_source @ x if self.is_product else x.index_select(0, self.source)

    def read_targets(self, x: Tensor) -> Tensor:
        """Return for each edge the values of its target."""
        return self.to_target.T @ x if self.is_product else x.index_select(0, self.target)

    def add_loops(self) -> Edges:
        """Return these edges and, behind them, one from each node to itself."""
        nodes = torch.arange(self.nodes)
        source, target = torch.cat([self.source, nodes]), torch.cat([self.target, nodes])
        return Edges(source, target, self.nodes, is_product=self.is_product)

    def sum_up(self, messages: Tensor) -> Tensor:
        """Return for each node the sum over the edges to it."""
        if self.is_product:
            return (self.to_target @ messages.flatten(1)).unflatten(1, messages.shape[1:])
        sums = messages.new_zeros(self.nodes, *messages.shape[1:])
        return sums.index_add(0, self.target, messages)


class SumWithMeanGradient(torch.autograd.Function):
    """Sums over the edges to each node, with the gradient of means."""

    @staticmethod
    def forward(context, messages: Tensor, edges: Edges) -> Tensor:
        context.edges = edges
        return edges.sum_up(messages)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        edges = context.edges
        counts = torch.bincount(edges.target, minlength=edges.nodes).unsqueeze(-1)
        return edges.read_targets(gradient / counts), None


class BatchNorm(nn.BatchNorm1d):
    """Batch norm of (nodes, channels), also in plain arithmetic."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__(WIDE, eps=EPS, momentum=MOMENTUM)
        load(self, model, path)
        self.is_written_out = model.variant == "written"

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_written_out:
            return super().forward(x)
        variance, mean = torch.var_mean(x, dim=0, correction=0)
        return (x - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias


class LayerNorm(nn.LayerNorm):
    """Layer norm, also in plain arithmetic."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__(HIDDEN, eps=EPS)
        load(self, model, path)
        self.is_written_out = model.variant == "written"
        self.is_norm_of_all = model.is_norm_of_all

    def forward(self, x: Tensor) -> Tensor:
        if self.is_norm_of_all:
            return F.layer_norm(x, x.shape, eps=self.eps) * self.weight + self.bias
        if not self.is_written_out:
            return super().forward(x)
        centered = x - x.mean(dim=-1, keepdim=True)
        variance = centered.pow(2).mean(dim=-1, keepdim=True)
        return centered / torch.sqrt(variance + self.eps) * self.weight + self.bias


class GINEConv(nn.Module):
    """The own node and the sum of its messages, through two linear layers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.bond_encoder = load(nn.Embedding(BONDS, HIDDEN), model, "bonds.0")
        self.has_own_factor, self.are_sums_half = model.has_own_factor, model.are_sums_half
        self.is_gradient_averaged = model.is_gradient_averaged
        if self.has_own_factor:
            self.eps = copy_parameter(model.weights["isomorphism.factor"])
        self.lin1 = load_linear(model, "isomorphism.up")
        self.norm = BatchNorm(model, "isomorphism.norm")
        self.lin2 = load_linear(model, "isomorphism.down")

    def forward(self, x: Tensor, edges: Edges, bonds: Tensor) -> Tensor:
        messages = F.relu(edges.read_sources(x) + self.bond_encoder(bonds))
        if self.are_sums_half:
            sums = edges.sum_up(messages.bfloat16()).float()
        elif self.is_gradient_averaged:
            sums = SumWithMeanGradient.apply(messages, edges)
        else:
            sums = edges.sum_up(messages)
        own = (1 + self.eps) * x if self.has_own_factor else x
        return self.lin2(F.relu(self.norm(self.lin1(own + sums))))


class GATConv(nn.Module):
    """Attention of each node to its neighbours and their bonds."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        bonds = "bonds.0" if model.are_bonds_shared else "bonds.1"
        self.bond_encoder = load(nn.Embedding(BONDS, HIDDEN), model, bonds)
        self.lin = load_linear(model, "attention.value")
        self.att_src = copy_parameter(model.weights["attention.source"])
        self.att_dst = copy_parameter(model.weights["attention.target"])
        self.slope, self.is_stopped = model.slope, model.is_normalizer_stopped
        self.has_loops, self.are_bonds_summed = model.has_loops, model.are_bonds_summed
        self.is_written_out = model.variant == "written"

    def forward(self, x: Tensor, edges: Edges, bonds: Tensor) -> Tensor:
        values, encoded = self.lin(x), self.bond_encoder(bonds)
        if self.has_loops:
            edges = edges.add_loops()
            encoded = torch.cat([encoded, torch.zeros_like(values)])
        read = edges.read_sources(values)
        messages = (read + encoded).view(-1, HEADS, HEAD_DIM)
        by_target = (values.view(-1, HEADS, HEAD_DIM) * self.att_dst).sum(dim=-1)
        scores = (messages * self.att_src).sum(dim=-1) + edges.read_targets(by_target)
        if self.is_written_out:
            scores = torch.maximum(scores, self.slope * scores)
        else:
            scores = F.leaky_relu(scores, self.slope)
        shares = (
            self.softmax_rows(scores, edges) if edges.is_product else self.softmax(scores, edges)
        )
        if not self.are_bonds_summed:
            messages = read.view(-1, HEADS, HEAD_DIM)
        return edges.sum_up(shares.unsqueeze(-1) * messages).flatten(1)

    def softmax(self, scores: Tensor, edges: Edges) -> Tensor:
        """Return shares (edges, HEADS) that sum to one for each target."""
        index = edges.target.unsqueeze(-1).expand_as(scores)
        largest = scores.new_zeros(edges.nodes, HEADS)
        largest = largest.scatter_reduce(0, index, scores.detach(), "amax", include_self=False)
        exponentials = torch.exp(scores - largest.index_select(0, edges.target))
        sums = edges.sum_up(exponentials)
        if self.is_stopped:
            sums = sums.detach()
        return exponentials / sums.index_select(0, edges.target)

    def softmax_rows(self, scores: Tensor, edges: Edges) -> Tensor:
        """Return the same from a softmax of rows (HEADS, nodes, edges)."""
        rows = scores.T.unsqueeze(1).expand(-1, edges.nodes, -1)
        rows = rows.masked_fill(edges.to_target == 0, float("-inf"))
        shares = rows.softmax(dim=-1).masked_fill(edges.to_target == 0, 0.0)
        return shares.sum(dim=1).T


class Readout(nn.Module):
    """The mean of the gated nodes of each graph."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.gate_nn = load_linear(model, "readout.gate")
        self.nn = load_linear(model, "readout.value")
        self.is_product = model.variant == "incidence"
        self.is_value_gated = model.is_value_gated

    def forward(self, x: Tensor, graph: Tensor) -> Tensor:
        if self.is_value_gated:
            gated = self.gate_nn(x) * torch.sigmoid(self.nn(x))
        else:
            gated = torch.sigmoid(self.gate_nn(x)) * self.nn(x)
        if self.is_product:
            members = F.one_hot(graph, GRAPHS).float()
            return (members / members.sum(dim=0)).T @ gated
        sizes = gated.new_zeros(GRAPHS).index_add(0, graph, gated.new_ones(len(graph)))
        sums = gated.new_zeros(GRAPHS, HIDDEN).index_add(0, graph, gated)
        return sums / sizes.clamp(min=1).unsqueeze(-1)


class PropertyLoss(nn.Module):
    """Smooth L1 loss of one number of each graph."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.atom_encoder = load(nn.Embedding(ATOMS, HIDDEN), model, "atoms")
        self.degree_encoder = load(nn.Embedding(DEGREES, HIDDEN), model, "degrees")
        self.conv1, self.conv2 = GINEConv(model), GATConv(model)
        self.norm = LayerNorm(model, "attention.norm")
        self.pool = Readout(model)
        self.head = nn.Sequential(
            load_linear(model, "head.0"), nn.SiLU(), load_linear(model, "head.1")
        )

    def forward(
        self,
        atoms: Tensor,
        source: Tensor,
        target: Tensor,
        bonds: Tensor,
        graph: Tensor,
        labels: Tensor,
    ) -> Tensor:
        variant = self.model.variant
        edges = Edges(source, target, len(atoms), is_product=variant == "incidence")
        degrees = torch.bincount(target, minlength=len(atoms)) + self.model.degree_offset
        x = self.atom_encoder(atoms) + self.degree_encoder(degrees)
        x = F.relu(self.conv1(x, edges, bonds))
        attended = self.conv2(x, edges, bonds)
        if variant == "written":
            attended = torch.where(attended > 0, attended, torch.expm1(attended.clamp(max=0)))
        else:
            attended = F.elu(attended)
        if self.model.is_norm_first:
            x = x + self.norm(attended)
        else:
            x = self.norm(x + attended if self.model.has_skip else attended)
        predictions = self.head(self.pool(x, graph))
        if self.model.is_output_squeezed:
            predictions = predictions.squeeze(-1)
        if variant == "written":
            distances = torch.abs(predictions - labels)
            near = torch.clamp(distances, max=BETA)
            return (near * (distances - 0.5 * near) / BETA).mean()
        return F.smooth_l1_loss(predictions, labels, beta=BETA)
