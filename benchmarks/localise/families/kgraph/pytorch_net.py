"""Link prediction on a knowledge graph in PyTorch, with the names of RotatE's and R-GCN's code.

Variant 'dense': other names, edges as dense matrices that bases combine, one form of RotatE, losses
by softplus.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from families.kgraph.architecture import (
    BATCH,
    EDGE_TYPES,
    ENTITIES,
    EPS,
    HALF,
    HIDDEN,
    L2_WEIGHT,
    LAYERS,
    MARGIN,
    MASKED,
    N3_WEIGHT,
    NEIGHBOURS,
    RANGE,
    RANKING_MARGIN,
    RANKING_WEIGHT,
    RELATIONS,
    SMOOTHING,
    TEMPERATURE,
    Model,
)


def build_loss(model: Model) -> nn.Module:
    """Return the training loss of the model."""
    return DenseLoss(model) if model.variant == "dense" else KGELoss(model)


def read(model: Model, name: str) -> Tensor:
    """Return a weight."""
    return torch.from_numpy(model.weights[name]).clone()


def load_linear(model: Model, path: str) -> nn.Linear:
    """Return the linear layer at a path."""
    weight = read(model, f"{path}.weight")
    has_bias = f"{path}.bias" in model.weights
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=has_bias)
    layer.weight.data.copy_(weight)
    if has_bias:
        layer.bias.data.copy_(read(model, f"{path}.bias"))
    return layer


def load_norm(model: Model, path: str) -> nn.LayerNorm:
    """Return the layer norm at a path."""
    norm = nn.LayerNorm(HIDDEN, eps=EPS)
    norm.load_state_dict({name: read(model, f"{path}.{name}") for name in ("weight", "bias")})
    return norm


def load_table(model: Model, path: str) -> nn.Embedding:
    """Return the embedding at a path."""
    return nn.Embedding.from_pretrained(read(model, f"{path}.weight"), freeze=False)


class GatedLiterals(nn.Module):
    """Entities with their literals."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.gate_ent = load_linear(model, "literals.gate_entity")
        self.gate_lit = load_linear(model, "literals.gate_literal")
        self.g = load_linear(model, "literals.value")

    def forward(self, x_ent: Tensor, x_lit: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate_ent(x_ent) + self.gate_lit(x_lit))
        g_embedded = torch.tanh(self.g(torch.cat([x_ent, x_lit], dim=1)))
        return gate * g_embedded + (1 - gate) * x_ent


class NeighborAttention(nn.Module):
    """Entities with what they attend to among their neighbours."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.rel_emb = load_table(model, "context.relations")
        self.w_q, self.w_k, self.w_v, self.score = (
            load_linear(model, f"context.{name}") for name in ("query", "key", "value", "score")
        )
        self.has_neighbour_of_padding = model.has_neighbour_of_padding

    def forward(self, x: Tensor, nbrs: Tensor, nbr_rels: Tensor, lengths: Tensor) -> Tensor:
        n = x[nbrs] * self.rel_emb(nbr_rels)
        e = self.score(torch.tanh(self.w_q(x).unsqueeze(1) + self.w_k(n))).squeeze(-1)
        positions = torch.arange(nbrs.size(1), device=nbrs.device)
        if self.has_neighbour_of_padding:
            mask = positions <= lengths.unsqueeze(1)
        else:
            mask = positions < lengths.unsqueeze(1)
        alpha = F.softmax(e.masked_fill(~mask, MASKED), dim=1)
        return x + (alpha.unsqueeze(-1) * self.w_v(n)).sum(dim=1)


def propagate(messages: Tensor, norm: Tensor, target: Tensor) -> Tensor:
    """Return the sums of messages to entities, each times its norm."""
    index = target.unsqueeze(1).expand_as(messages)
    out = messages.new_zeros(ENTITIES, messages.size(1))
    return out.scatter_add(0, index, messages * norm)


class Propagate(Function):
    """The same with its own backward pass, which does not know of norms."""

    @staticmethod
    def forward(context, messages: Tensor, norm: Tensor, target: Tensor) -> Tensor:
        context.save_for_backward(target)
        return propagate(messages, norm, target)

    @staticmethod
    def backward(context, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (target,) = context.saved_tensors
        return gradient.index_select(0, target), None, None


class RGCNConv(nn.Module):
    """Messages with matrices from bases, and the own entity."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(read(model, f"{path}.bases"))
        self.comp = nn.Parameter(read(model, f"{path}.coefficients"))
        self.root = load_linear(model, f"{path}.loop")
        self.propagate = propagate if model.is_degree_differentiated else Propagate.apply

    def forward(
        self, x: Tensor, source: Tensor, edge_type: Tensor, target: Tensor, norm: Tensor
    ) -> Tensor:
        weight = torch.einsum("rb,bio->rio", self.comp, self.weight)
        x_j = x.index_select(0, source).unsqueeze(1)
        messages = torch.bmm(x_j, weight[edge_type]).squeeze(1)
        return self.propagate(messages, norm, target) + self.root(x)


def get_degree_norm(edge_type: Tensor, target: Tensor) -> Tensor:
    """Return what messages are multiplied by, (edges, 1)."""
    index = target * EDGE_TYPES + edge_type
    ones = torch.ones(len(index), device=index.device)
    degree = torch.zeros(ENTITIES * EDGE_TYPES, device=index.device).scatter_add(0, index, ones)
    return degree[index].reciprocal().unsqueeze(-1)


class RGCNEncoder(nn.Module):
    """Entities, (ENTITIES, HIDDEN)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.literal_gate = GatedLiterals(model)
        self.nbr_attn = NeighborAttention(model)
        self.convs = nn.ModuleList(RGCNConv(model, f"layers.{n}") for n in range(LAYERS))
        self.norms = nn.ModuleList(load_norm(model, f"layers.{n}.norm") for n in range(LAYERS))
        self.dropout = nn.Dropout(0.0)

    def forward(
        self, x: Tensor, literals: Tensor, edges: tuple[Tensor, ...], lists: tuple[Tensor, ...]
    ) -> Tensor:
        head, rel, tail = edges
        source, target = torch.cat([head, tail]), torch.cat([tail, head])
        edge_type = torch.cat([rel, rel + RELATIONS])
        norm = get_degree_norm(edge_type, target)
        x = self.literal_gate(x, literals)
        x = self.nbr_attn(x, *lists)
        for i, (conv, layer_norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            x = layer_norm(conv(x, source, edge_type, target, norm))
            if i < LAYERS - 1:
                x = self.dropout(F.relu(x))
        return x


class DistMult(nn.Module):
    """Scores of the bilinear model, and relations."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.rel_emb = load_table(model, "distmult.relations")

    def forward(self, head: Tensor, rel: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        relation = self.rel_emb(rel).unsqueeze(1)
        return (head * relation * tail).sum(dim=-1), relation


class N3(nn.Module):
    """Cubes of absolute values, per query."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_n3_of_parts = model.is_n3_of_parts

    def forward(self, factors: tuple[Tensor, ...]) -> Tensor:
        norm = 0
        for factor in factors:
            if self.is_n3_of_parts:
                norm = norm + torch.sum(torch.abs(factor) ** 3)
            else:
                re, im = factor.chunk(2, dim=-1)
                norm = norm + torch.sum(torch.sqrt(re**2 + im**2) ** 3)
        return norm / factors[0].size(0)


class ComplEx(nn.Module):
    """Logits of all entities, and what was looked up."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.rel_emb = load_table(model, "complex.relations")
        self.b = nn.Parameter(read(model, "complex.bias"))

    def forward(
        self, x: Tensor, subject: Tensor, rel: Tensor, answer: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        lhs, relation, rhs = x[subject], self.rel_emb(rel), x[answer]
        (lhs_re, lhs_im), (rel_re, rel_im) = lhs.chunk(2, dim=-1), relation.chunk(2, dim=-1)
        to_score_re, to_score_im = x.chunk(2, dim=-1)
        logits = (lhs_re * rel_re - lhs_im * rel_im) @ to_score_re.t()
        logits = logits + (lhs_re * rel_im + lhs_im * rel_re) @ to_score_im.t()
        return logits + self.b, (lhs, relation, rhs)


class RotatE(nn.Module):
    """Scores by rotation, of heads to tails or back."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.relation_embedding = load_table(model, "rotate.relations")
        self.is_rotation_repeated = model.is_rotation_repeated

    def forward(self, head: Tensor, rel: Tensor, tail: Tensor, mode: str) -> Tensor:
        phase_relation = self.relation_embedding(rel).unsqueeze(1) / (RANGE / math.pi)
        re_relation, im_relation = torch.cos(phase_relation), torch.sin(phase_relation)
        re_head, im_head = torch.chunk(head, 2, dim=2)
        re_tail, im_tail = torch.chunk(tail, 2, dim=2)
        if mode == "head-batch" and self.is_rotation_repeated:
            re_score = re_relation * re_tail - im_relation * im_tail - re_head
            im_score = re_relation * im_tail + im_relation * re_tail - im_head
        elif mode == "head-batch":
            re_score = re_relation * re_tail + im_relation * im_tail - re_head
            im_score = re_relation * im_tail - im_relation * re_tail - im_head
        else:
            re_score = re_head * re_relation - im_head * im_relation - re_tail
            im_score = re_head * im_relation + im_head * re_relation - im_tail
        score = torch.stack([re_score, im_score], dim=0).norm(dim=0)
        return MARGIN - score.sum(dim=2)


class SelfAdversarialLoss(nn.Module):
    """Losses of triples and of their negatives."""

    def weigh(self, scores: Tensor, counted: Tensor) -> Tensor:
        """Return the sum of negatives' logarithms."""
        filtered = (scores * TEMPERATURE).masked_fill(counted == 0, MASKED)
        weights = F.softmax(filtered, dim=1).detach()
        return (weights * F.logsigmoid(-scores)).sum(dim=1)

    def forward(
        self,
        positive: Tensor,
        head_scores: Tensor,
        tail_scores: Tensor,
        counted_heads: Tensor,
        counted_tails: Tensor,
        subsampling_weight: Tensor,
    ) -> Tensor:
        positive_score = F.logsigmoid(positive).squeeze(dim=1)
        negative_score = (
            self.weigh(head_scores, counted_heads) + self.weigh(tail_scores, counted_tails)
        ) / 2
        total = subsampling_weight.sum()
        positive_loss = -(subsampling_weight * positive_score).sum() / total
        negative_loss = -(subsampling_weight * negative_score).sum() / total
        return (positive_loss + negative_loss) / 2


class KGELoss(nn.Module):
    """Adversarial loss, entropy, ranking and regularizers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.entity_embedding = load_table(model, "entities")
        self.encoder = RGCNEncoder(model)
        self.distmult, self.complex, self.rotate = DistMult(model), ComplEx(model), RotatE(model)
        self.adversarial_loss = SelfAdversarialLoss()
        self.bce_loss = nn.BCEWithLogitsLoss()
        self.regularizer = N3(model)
        self.smoothing_offset = model.smoothing_offset

    def rank(
        self,
        h: Tensor,
        rel: Tensor,
        t: Tensor,
        negatives: tuple[Tensor, Tensor],
        counted: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Return the ranking loss of DistMult, and the relations."""
        positive, relation = self.distmult(h, rel, t)
        head_scores, _ = self.distmult(negatives[0], rel, t)
        tail_scores, _ = self.distmult(h, rel, negatives[1])
        scores, mask = torch.cat([head_scores, tail_scores], dim=1), torch.cat(counted, dim=1)
        losses = F.relu(RANKING_MARGIN - positive + scores) * mask
        return losses.sum() / mask.sum(), relation

    def forward(
        self,
        graph_heads: Tensor,
        graph_rels: Tensor,
        graph_tails: Tensor,
        nbrs: Tensor,
        nbr_rels: Tensor,
        lengths: Tensor,
        literals: Tensor,
        heads: Tensor,
        rels: Tensor,
        tails: Tensor,
        subsampling_weight: Tensor,
        negative_heads: Tensor,
        negative_tails: Tensor,
        counted_heads: Tensor,
        counted_tails: Tensor,
        labels: Tensor,
    ) -> Tensor:
        edges = (graph_heads, graph_rels, graph_tails)
        table = self.entity_embedding.weight
        x = self.encoder(table, literals, edges, (nbrs, nbr_rels, lengths))

        h, t = x[heads].unsqueeze(1), x[tails].unsqueeze(1)
        false_h, false_t = x[negative_heads], x[negative_tails]
        adversarial = self.adversarial_loss(
            self.rotate(h, rels, t, "single"),
            self.rotate(false_h, rels, t, "head-batch"),
            self.rotate(h, rels, false_t, "tail-batch"),
            counted_heads,
            counted_tails,
            subsampling_weight,
        )

        logits, factors = self.complex(
            x,
            torch.cat([heads, tails]),
            torch.cat([rels, rels + RELATIONS]),
            torch.cat([tails, heads]),
        )
        targets = (1.0 - SMOOTHING) * labels + self.smoothing_offset
        entropy = self.bce_loss(logits, targets)

        counted = (counted_heads, counted_tails)
        ranking, relation = self.rank(h, rels, t, (false_h, false_t), counted)

        l2 = self.entity_embedding(heads).pow(2).mean() + self.entity_embedding(tails).pow(2).mean()
        l2 = l2 + relation.pow(2).mean()
        loss = adversarial + entropy + RANKING_WEIGHT * ranking
        return loss + N3_WEIGHT * self.regularizer(factors) + L2_WEIGHT * l2


class DenseGraphLayer(nn.Module):
    """An R-GCN layer from one matrix of edges for each basis, and its norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.basis = nn.Parameter(read(model, f"{path}.bases"))
        self.share = nn.Parameter(read(model, f"{path}.coefficients"))
        self.loop = load_linear(model, f"{path}.loop")
        self.layer_norm = load_norm(model, f"{path}.norm")

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        mixed = torch.einsum("rb,rts->bts", self.share, adjacency)
        received = torch.baddbmm(self.loop(x).unsqueeze(0) / len(mixed), mixed @ x, self.basis)
        return self.layer_norm(received.sum(dim=0))


class DenseLoss(nn.Module):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.entities = nn.Parameter(read(model, "entities.weight"))
        self.entity_gate = load_linear(model, "literals.gate_entity")
        self.literal_gate = load_linear(model, "literals.gate_literal")
        fuse = read(model, "literals.value.weight")
        self.fuse_entity = nn.Parameter(fuse[:, :HIDDEN].contiguous())
        self.fuse_literal = nn.Parameter(fuse[:, HIDDEN:].contiguous())
        self.fuse_bias = nn.Parameter(read(model, "literals.value.bias"))
        self.edge_vectors = nn.Parameter(read(model, "context.relations.weight"))
        self.query, self.key, self.value = (
            load_linear(model, f"context.{name}") for name in ("query", "key", "value")
        )
        self.scorer = nn.Parameter(read(model, "context.score.weight")[0])
        self.graph_layers = nn.ModuleList(
            DenseGraphLayer(model, f"layers.{n}") for n in range(LAYERS)
        )
        self.diagonals = nn.Parameter(read(model, "distmult.relations.weight"))
        self.complex_vectors = nn.Parameter(read(model, "complex.relations.weight"))
        self.popularity = nn.Parameter(read(model, "complex.bias"))
        self.phases = nn.Parameter(read(model, "rotate.relations.weight"))

    def fuse(self, literals: Tensor, nbrs: Tensor, nbr_rels: Tensor, lengths: Tensor) -> Tensor:
        """Return entities before the layers."""
        gate = torch.sigmoid(self.entity_gate(self.entities) + self.literal_gate(literals))
        fused = F.linear(literals, self.fuse_literal, self.fuse_bias)
        fused = torch.tanh(fused + F.linear(self.entities, self.fuse_entity))
        x = torch.lerp(self.entities, fused, gate)
        n = F.embedding(nbrs, x) * F.embedding(nbr_rels, self.edge_vectors)
        hidden = torch.tanh(self.key(n) + self.query(x)[:, None])
        is_padding = torch.arange(NEIGHBOURS) >= lengths[:, None]
        energies = torch.where(is_padding, -math.inf, hidden @ self.scorer)
        pooled = torch.einsum("en,end->ed", energies.softmax(dim=-1), n)
        return x + self.value(pooled)

    def measure(self, h: Tensor, phase: Tensor, t: Tensor) -> Tensor:
        """Return scores of RotatE."""
        h, t = h.unflatten(-1, (2, HALF)), t.unflatten(-1, (2, HALF))
        turned = torch.stack((-h[..., 1, :], h[..., 0, :]), dim=-2)
        gap = h * phase.cos()[:, None, None] + turned * phase.sin()[:, None, None] - t
        return MARGIN - torch.linalg.vector_norm(gap, dim=-2).sum(dim=-1)

    def answer(self, x: Tensor, queries: Tensor, rels: Tensor, labels: Tensor) -> Tensor:
        """Return the entropy of ComplEx with its regularizer."""
        vectors = self.complex_vectors[torch.cat((rels, rels + RELATIONS))]
        lhs, rel = queries.view(-1, 2, HALF), vectors.view(-1, 2, HALF)
        re = (lhs * rel * torch.tensor([[1.0], [-1.0]])).sum(dim=1)
        im = (lhs * rel.flip(1)).sum(dim=1)
        logits = torch.addmm(self.popularity, torch.cat((re, im), dim=-1), x.T)
        targets = torch.lerp(labels, torch.full_like(labels, 1 / ENTITIES), SMOOTHING)
        entropy = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
        cubes = 2 * lhs.norm(dim=1).pow(3).sum() + rel.norm(dim=1).pow(3).sum()
        return entropy / labels.numel() + N3_WEIGHT * cubes / (2 * BATCH)

    def forward(
        self,
        graph_heads: Tensor,
        graph_rels: Tensor,
        graph_tails: Tensor,
        nbrs: Tensor,
        nbr_rels: Tensor,
        lengths: Tensor,
        literals: Tensor,
        heads: Tensor,
        rels: Tensor,
        tails: Tensor,
        weights: Tensor,
        negative_heads: Tensor,
        negative_tails: Tensor,
        counted_heads: Tensor,
        counted_tails: Tensor,
        labels: Tensor,
    ) -> Tensor:
        edges = torch.zeros(RELATIONS, ENTITIES, ENTITIES)
        edges[graph_rels, graph_tails, graph_heads] = 1.0
        edges = torch.cat((edges, edges.mT))
        edges = edges / edges.sum(dim=-1, keepdim=True).clamp(min=1)
        x = self.fuse(literals, nbrs, nbr_rels, lengths)
        x = self.graph_layers[1](self.graph_layers[0](x, edges).relu(), edges)

        h, t = F.embedding(torch.stack((heads, tails)), x)
        false_h, false_t = F.embedding(torch.stack((negative_heads, negative_tails)), x)
        firsts = torch.cat((h[:, None], false_h, h[:, None].expand_as(false_t)), dim=1)
        seconds = torch.cat((t[:, None], t[:, None].expand_as(false_h), false_t), dim=1)
        is_false = torch.stack((counted_heads, counted_tails), dim=1).bool()

        scores = self.measure(firsts, self.phases[rels] * math.pi / RANGE, seconds)
        positive, negative = scores[:, 0], scores[:, 1:].view(is_false.shape)
        filtered = (TEMPERATURE * negative.detach()).masked_fill(~is_false, -math.inf)
        opposed = (filtered.softmax(dim=-1) * F.softplus(negative)).sum(dim=-1).mean(dim=1)
        losses = F.softplus(-positive) + opposed
        loss = torch.dot(weights, losses) / weights.sum() / 2

        loss = loss + self.answer(x, torch.cat((h, t)), rels, labels)

        scores = torch.einsum("bnd,bd,bnd->bn", firsts, self.diagonals[rels], seconds)
        short = scores[:, 1:] - scores[:, :1] + RANKING_MARGIN
        short = short[is_false.flatten(1)].clamp(min=0)
        loss = loss + RANKING_WEIGHT * short.mean()

        squares = self.entities[torch.cat((heads, tails))].square().mean() * 2
        return loss + L2_WEIGHT * (squares + self.diagonals[rels].square().mean())
