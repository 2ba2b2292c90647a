"""The equivariant graph network in PyTorch, with modules named as in the authors' code.

Variant 'dense': messages of all pairs of atoms in one tensor, sums over one of its axes, means of
molecules by masks, Gaussians and losses in other terms, modules named as in lucidrains's package.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.egnn.architecture import (
    ATOMS,
    CENTERS,
    CUTOFF,
    DIPOLE_WEIGHT,
    DISTANCE_EPS,
    ENERGY_DEVIATION,
    EPS,
    FORCE_WEIGHT,
    GAUSSIAN_FACTOR,
    HUBER_DELTA,
    LAYERS,
    MOLECULES,
    SPACING,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return DenseLoss(model) if model.variant == "dense" else MoleculeLoss(model)


def copy_parameter(values: np.ndarray) -> nn.Parameter:
    """Return a parameter with these values."""
    return nn.Parameter(torch.from_numpy(np.array(values)))


def load_linear(model: Model, path: str) -> nn.Linear:
    """Return the linear layer at ``path``, with the bias if there is one."""
    weight, bias = model.weights[f"{path}.weight"], model.weights.get(f"{path}.bias")
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = copy_parameter(weight)
    if bias is not None:
        layer.bias = copy_parameter(bias)
    return layer


def load_embedding(model: Model, path: str) -> nn.Embedding:
    """Return the embedding at ``path``."""
    table = torch.from_numpy(np.array(model.weights[f"{path}.weight"]))
    return nn.Embedding.from_pretrained(table, freeze=False)


def load_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at ``path``."""
    weight, bias = (model.weights[f"{path}.{name}"] for name in ("weight", "bias"))
    norm = nn.LayerNorm(len(weight), eps=EPS)
    norm.weight, norm.bias = copy_parameter(weight), copy_parameter(bias)
    return norm


def load_mlp(model: Model, path: str, *last: nn.Module) -> nn.Sequential:
    """Return two linear layers with a SiLU between them, and what comes last."""
    first, second = (load_linear(model, f"{path}.{name}") for name in ("first", "second"))
    return nn.Sequential(first, nn.SiLU(), second, *last)


def unsorted_segment_sum(data: Tensor, segment_ids: Tensor, num_segments: int) -> Tensor:
    """Return the sums of rows by the segment that each of them belongs to."""
    return data.new_zeros(num_segments, data.shape[1]).index_add(0, segment_ids, data)


class _Distance(torch.autograd.Function):
    """The length of differences, with the gradient of half its square."""

    @staticmethod
    def forward(context, difference: Tensor) -> Tensor:
        context.save_for_backward(difference)
        return torch.sqrt(difference.square().sum(-1, keepdim=True) + DISTANCE_EPS)

    @staticmethod
    def backward(context, gradient: Tensor) -> Tensor:
        (difference,) = context.saved_tensors
        return gradient * difference


class _DampedGradient(torch.autograd.Function):
    """The same values; the gradient is multiplied on its way back."""

    @staticmethod
    def forward(context, x: Tensor, factor: float) -> Tensor:
        context.factor = factor
        return x.clone()

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * context.factor, None


class GaussianSmearing(nn.Module):
    """Gaussians of distances around equally spaced centers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.register_buffer("offset", torch.from_numpy(CENTERS), persistent=False)
        self.coeff = -model.gaussian_factor / SPACING**2

    def forward(self, distance: Tensor) -> Tensor:
        return torch.exp(self.coeff * (distance - self.offset).pow(2))


class CosineCutoff(nn.Module):
    """Half a period of a cosine, from one to zero at the cutoff."""

    def forward(self, distance: Tensor) -> Tensor:
        cutoffs = 0.5 * (torch.cos(distance * math.pi / CUTOFF) + 1.0)
        return cutoffs * (distance < CUTOFF).float()


class E_GCL(nn.Module):
    """Messages along all edges, which move the atoms and change their features."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.smearing, self.cutoff = GaussianSmearing(model), CosineCutoff()
        self.edge_mlp = load_mlp(model, f"{path}.edge", nn.SiLU())
        self.att_mlp = nn.Sequential(load_linear(model, f"{path}.gate"), nn.Sigmoid())
        self.coord_mlp = load_mlp(model, f"{path}.position", nn.Tanh())
        self.node_norm = load_norm(model, f"{path}.node.norm")
        self.node_mlp = load_mlp(model, f"{path}.node")
        self.is_root_ignored = model.is_root_ignored
        self.are_directions_normed = model.are_directions_normed

    def coord2radial(self, coord: Tensor, row: Tensor, col: Tensor) -> tuple[Tensor, Tensor]:
        """Return distances and directions of edges."""
        coord_diff = coord[row] - coord[col]
        if self.is_root_ignored:
            distance = _Distance.apply(coord_diff)
        else:
            distance = torch.sqrt(coord_diff.pow(2).sum(1, keepdim=True) + DISTANCE_EPS)
        if not self.are_directions_normed:
            return distance, coord_diff
        return distance, coord_diff / distance

    def edge_model(self, source: Tensor, target: Tensor, radial: Tensor) -> Tensor:
        """Return messages without their cutoff."""
        out = self.edge_mlp(torch.cat([source, target, radial], dim=1))
        return out * self.att_mlp(out)

    def coord_model(
        self, coord: Tensor, row: Tensor, translation: Tensor, edge_mask: Tensor
    ) -> Tensor:
        """Return the positions of moved atoms."""
        count = unsorted_segment_sum(edge_mask, row, coord.shape[0]).clamp(min=1)
        return coord + unsorted_segment_sum(translation, row, coord.shape[0]) / count

    def forward(
        self,
        h: Tensor,
        coord: Tensor,
        row: Tensor,
        col: Tensor,
        node_mask: Tensor,
        edge_mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        distance, direction = self.coord2radial(coord, row, col)
        cutoff = self.cutoff(distance) * edge_mask
        edge_feat = self.edge_model(h[row], h[col], self.smearing(distance)) * cutoff
        translation = direction * self.coord_mlp(edge_feat) * cutoff
        coord = self.coord_model(coord, row, translation, edge_mask)
        agg = unsorted_segment_sum(edge_feat, row, h.shape[0])
        h = h + self.node_mlp(torch.cat([self.node_norm(h), agg], dim=1))
        return h * node_mask, coord


class EGNN(nn.Module):
    """Energies (MOLECULES,), forces (atoms, 3) and dipoles (MOLECULES, 3)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.embedding = load_embedding(model, "elements")
        self.atomref = load_embedding(model, "reference")
        for n in range(LAYERS):
            self.add_module(f"gcl_{n}", E_GCL(model, f"layers.{n}"))
        self.norm = load_norm(model, "norm")
        self.energy_dec, self.charge_dec = load_mlp(model, "energy"), load_mlp(model, "charge")
        self.position_gradient = model.position_gradient

    def forward(
        self,
        elements: Tensor,
        coord: Tensor,
        node_mask: Tensor,
        row: Tensor,
        col: Tensor,
        batch: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        edge_mask = node_mask[row] * node_mask[col]
        h, x = self.embedding(elements) * node_mask, coord
        for n in range(LAYERS):
            if n > 0 and self.position_gradient != 1:
                x = _DampedGradient.apply(x, self.position_gradient)
            h, x = self._modules[f"gcl_{n}"](h, x, row, col, node_mask, edge_mask)
        h = self.norm(h)

        energy = self.energy_dec(h) * ENERGY_DEVIATION + self.atomref(elements)
        energy = unsorted_segment_sum(energy * node_mask, batch, MOLECULES).squeeze(1)
        dipole = unsorted_segment_sum(self.charge_dec(h) * node_mask * coord, batch, MOLECULES)

        displacement = (x - coord) * node_mask
        n_atoms = unsorted_segment_sum(node_mask, batch, MOLECULES)
        mean = unsorted_segment_sum(displacement, batch, MOLECULES) / n_atoms
        return energy, (displacement - mean[batch]) * node_mask, dipole


class MoleculeLoss(nn.Module):
    """The weighted sum of the losses of energies, forces and dipoles."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = EGNN(model)
        self.is_force_mean_of_all = model.is_force_mean_of_all

    def forward(
        self,
        elements: Tensor,
        coord: Tensor,
        node_mask: Tensor,
        row: Tensor,
        col: Tensor,
        batch: Tensor,
        energies: Tensor,
        forces: Tensor,
        dipoles: Tensor,
    ) -> Tensor:
        energy, force, dipole = self.model(elements, coord, node_mask, row, col, batch)
        n_atoms = node_mask.view(MOLECULES, -1).sum(dim=1)
        energy_loss = F.huber_loss(energy / n_atoms, energies / n_atoms, delta=HUBER_DELTA)
        errors = (force - forces).pow(2) * node_mask
        if self.is_force_mean_of_all:
            force_loss = errors.mean()
        else:
            force_loss = errors.sum() / (3 * node_mask.sum())
        dipole_loss = F.l1_loss(dipole, dipoles)
        return energy_loss + FORCE_WEIGHT * force_loss + DIPOLE_WEIGHT * dipole_loss


class DenseLayer(nn.Module):
    """The layer on molecules (molecules, atoms, ...) with all pairs of their atoms."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.edge_mlp = load_mlp(model, f"{path}.edge", nn.SiLU())
        self.edge_gate = nn.Sequential(load_linear(model, f"{path}.gate"), nn.Sigmoid())
        self.coors_mlp = load_mlp(model, f"{path}.position", nn.Tanh())
        self.node_norm = load_norm(model, f"{path}.node.norm")
        self.node_mlp = load_mlp(model, f"{path}.node")
        self.register_buffer("centers", torch.from_numpy(CENTERS), persistent=False)

    def forward(
        self, feats: Tensor, coors: Tensor, mask: Tensor, pair_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        rel_coors = coors.unsqueeze(2) - coors.unsqueeze(1)
        rel_dist = (torch.einsum("bijc,bijc->bij", rel_coors, rel_coors) + DISTANCE_EPS).sqrt()
        scaled = (rel_dist.unsqueeze(-1) - self.centers) / SPACING
        gaussians = torch.exp(-GAUSSIAN_FACTOR * scaled * scaled)
        weights = torch.cos(rel_dist * (0.5 * math.pi / CUTOFF)).square()
        weights = weights.masked_fill(~pair_mask | (rel_dist >= CUTOFF), 0.0)

        shape = (-1, -1, feats.shape[1], -1)
        feats_i = feats.unsqueeze(2).expand(shape)
        feats_j = feats_i.transpose(1, 2)
        edges = self.edge_mlp(torch.cat((feats_i, feats_j, gaussians), dim=-1))
        m_ij = edges * (self.edge_gate(edges) * weights.unsqueeze(-1))

        coor_weights = self.coors_mlp(m_ij).squeeze(-1) * weights / rel_dist
        n_neighbors = pair_mask.sum(dim=2, keepdim=True).clamp(min=1)
        coors_out = coors + torch.einsum("bij,bijc->bic", coor_weights, rel_coors) / n_neighbors

        node_input = torch.cat((self.node_norm(feats), m_ij.sum(dim=2)), dim=-1)
        return (feats + self.node_mlp(node_input)) * mask, coors_out


class DenseLoss(nn.Module):
    """The loss by molecules (molecules, atoms, ...); index tensors are not read."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.token_emb = load_embedding(model, "elements")
        self.reference = load_embedding(model, "reference")
        self.layers = nn.ModuleList(DenseLayer(model, f"layers.{n}") for n in range(LAYERS))
        self.norm = load_norm(model, "norm")
        self.to_energy, self.to_charge = load_mlp(model, "energy"), load_mlp(model, "charge")

    def predict(self, tokens: Tensor, coors: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return energies, forces and dipoles."""
        is_valid = mask.squeeze(-1) > 0
        pair_mask = is_valid.unsqueeze(2) & is_valid.unsqueeze(1) & ~torch.eye(ATOMS).bool()
        feats, moved = self.token_emb(tokens) * mask, coors
        for layer in self.layers:
            feats, moved = layer(feats, moved, mask, pair_mask)
        feats = self.norm(feats)

        energies = ENERGY_DEVIATION * self.to_energy(feats) + self.reference(tokens)
        energies = (energies * mask).sum(dim=(1, 2))
        dipoles = torch.einsum("bno,bno,bnc->bc", self.to_charge(feats), mask, coors)
        displacements = (moved - coors) * mask
        means = displacements.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True)
        return energies, (displacements - means) * mask, dipoles

    def forward(self, *batch: Tensor) -> Tensor:
        tokens, coors, mask, _, _, _, energies, forces, dipoles = batch
        tokens = tokens.view(MOLECULES, ATOMS)
        coors, mask, forces = (x.view(MOLECULES, ATOMS, -1) for x in (coors, mask, forces))
        predicted_energies, predicted_forces, predicted_dipoles = self.predict(tokens, coors, mask)

        errors = (predicted_energies - energies) / mask.sum(dim=(1, 2))
        near = errors.abs().clamp(max=HUBER_DELTA)
        energy_loss = (near * (errors.abs() - 0.5 * near)).mean()
        valid_errors = (predicted_forces - forces)[mask.squeeze(-1) > 0]
        force_loss = valid_errors.square().mean()
        dipole_loss = (predicted_dipoles - dipoles).abs().mean()
        return energy_loss + FORCE_WEIGHT * force_loss + DIPOLE_WEIGHT * dipole_loss
