"""Link prediction on a knowledge graph in MindSpore for graph mode.

Variant 'written': sums to entities by a matrix of zeros and ones, bases multiplied before they are
combined, norms, softmax and losses in plain arithmetic, RotatE in one form.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from families.kgraph.architecture import (
    BASES,
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


def build_loss(model: Model) -> nn.Cell:
    """Return the training loss of the model."""
    return WrittenLoss(model) if model.variant == "written" else LinkPredictionLoss(model)


def read(model: Model, *names: str) -> Tensor:
    """Return a weight, or several ones behind each other."""
    return Tensor(np.concatenate([model.weights[name] for name in names]))


def build_dense(model: Model, path: str) -> nn.Dense:
    """Return the linear layer at a path."""
    weight = read(model, f"{path}.weight")
    has_bias = f"{path}.bias" in model.weights
    return nn.Dense(
        weight.shape[1],
        weight.shape[0],
        weight_init=weight,
        bias_init=read(model, f"{path}.bias") if has_bias else None,
        has_bias=has_bias,
    )


def build_table(model: Model, path: str) -> nn.Embedding:
    """Return the embedding at a path."""
    weight = read(model, f"{path}.weight")
    return nn.Embedding(*weight.shape, embedding_table=weight)


class LiteralGate(nn.Cell):
    """Entities with their literals."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.gate_entity = build_dense(model, "literals.gate_entity")
        self.gate_literal = build_dense(model, "literals.gate_literal")
        self.fc = build_dense(model, "literals.value")
        self.sigmoid, self.tanh = nn.Sigmoid(), nn.Tanh()

    def construct(self, x, literals):
        gate = self.sigmoid(self.gate_entity(x) + self.gate_literal(literals))
        fused = self.tanh(self.fc(ops.concat((x, literals), -1)))
        return gate * fused + (1 - gate) * x


class NeighbourAttention(nn.Cell):
    """Entities with what they attend to among their neighbours."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.relation_embedding = build_table(model, "context.relations")
        self.query, self.key, self.value, self.score = (
            build_dense(model, f"context.{name}") for name in ("query", "key", "value", "score")
        )
        self.softmax = nn.Softmax(axis=1)
        self.slots = Tensor(np.arange(NEIGHBOURS, dtype=np.int32))

    def construct(self, x, neighbours, relations, counts):
        n = ops.gather(x, neighbours, 0) * self.relation_embedding(relations)
        scores = self.score(ops.tanh(self.query(x).expand_dims(1) + self.key(n)))
        is_padding = (self.slots >= counts.expand_dims(1)).expand_dims(-1)
        weights = self.softmax(ops.masked_fill(scores, is_padding, MASKED))
        return x + (weights * self.value(n)).sum(1)


class Degrees(nn.Cell):
    """What messages are multiplied by, (edges, 1)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.is_degree_of_all = model.is_degree_of_all

    def construct(self, relation, target):
        ones = ops.ones((relation.shape[0],), ms.float32)
        if self.is_degree_of_all:
            degrees = ops.gather(ops.unsorted_segment_sum(ones, target, ENTITIES), target, 0)
        else:
            index = target * EDGE_TYPES + relation
            counts = ops.unsorted_segment_sum(ones, index, ENTITIES * EDGE_TYPES)
            degrees = ops.gather(counts, index, 0)
        return (1 / degrees).expand_dims(-1)


class RGCNLayer(nn.Cell):
    """Messages with matrices from bases, and the own entity."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.bases = Parameter(read(model, f"{path}.bases"))
        self.coefficients = Parameter(read(model, f"{path}.coefficients"))
        self.self_loop = build_dense(model, f"{path}.loop")
        self.bmm = ops.BatchMatMul()

    def construct(self, x, source, relation, target, norm):
        matrices = ops.matmul(self.coefficients, self.bases.reshape(BASES, -1))
        matrices = matrices.reshape(EDGE_TYPES, HIDDEN, HIDDEN)
        senders = ops.gather(x, source, 0).expand_dims(1)
        messages = self.bmm(senders, ops.gather(matrices, relation, 0)).squeeze(1)
        received = ops.unsorted_segment_sum(messages * norm, target, ENTITIES)
        return received + self.self_loop(x)


class Encoder(nn.Cell):
    """Entities, (ENTITIES, HIDDEN)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.literal_gate = LiteralGate(model)
        self.neighbour_attention = NeighbourAttention(model)
        self.degrees = Degrees(model)
        self.layers = nn.CellList([RGCNLayer(model, f"layers.{n}") for n in range(LAYERS)])
        self.norms = nn.CellList(
            [
                nn.LayerNorm(
                    (HIDDEN,),
                    gamma_init=read(model, f"layers.{n}.norm.weight"),
                    beta_init=read(model, f"layers.{n}.norm.bias"),
                    epsilon=EPS,
                )
                for n in range(LAYERS)
            ]
        )
        self.relu, self.dropout = nn.ReLU(), nn.Dropout(p=0.0)

    def construct(self, x, literals, graph, lists):
        head, relation, tail = graph
        source, target = ops.concat((head, tail)), ops.concat((tail, head))
        relation = ops.concat((relation, relation + RELATIONS))
        norm = self.degrees(relation, target)
        x = self.literal_gate(x, literals)
        x = self.neighbour_attention(x, *lists)
        for n in range(LAYERS):
            x = self.norms[n](self.layers[n](x, source, relation, target, norm))
            x = self.dropout(self.relu(x)) if n < LAYERS - 1 else x
        return x


class DistMult(nn.Cell):
    """Scores and relations of the bilinear model."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.relation_embedding = build_table(model, "distmult.relations")

    def construct(self, head, relation, tail):
        r = self.relation_embedding(relation).expand_dims(1)
        return (head * r * tail).sum(-1), r


class ComplEx(nn.Cell):
    """Logits of all entities, and the sum of cubes of what was looked up."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.relation_embedding = build_table(model, "complex.relations")
        self.bias = Parameter(read(model, "complex.bias"))
        self.matmul = ops.MatMul(transpose_b=True)
        self.are_parts_alternating = model.are_parts_alternating

    def split(self, x):
        """Return real and imaginary parts."""
        if self.are_parts_alternating:
            return x[:, ::2], x[:, 1::2]
        return x[:, :HALF], x[:, HALF:]

    def cube(self, real, imaginary):
        """Return the sum of cubes of absolute values."""
        return ops.pow(ops.sqrt(real * real + imaginary * imaginary), 3).sum()

    def construct(self, x, subject, relation, answer):
        h_re, h_im = self.split(ops.gather(x, subject, 0))
        r_re, r_im = self.split(self.relation_embedding(relation))
        t_re, t_im = self.split(ops.gather(x, answer, 0))
        x_re, x_im = self.split(x)
        logits = self.matmul(h_re * r_re - h_im * r_im, x_re)
        logits = logits + self.matmul(h_re * r_im + h_im * r_re, x_im) + self.bias
        cubes = self.cube(h_re, h_im) + self.cube(r_re, r_im) + self.cube(t_re, t_im)
        return logits, cubes / subject.shape[0]


class RotatE(nn.Cell):
    """Scores by rotation, of heads to tails or back."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.relation_embedding = build_table(model, "rotate.relations")

    def construct(self, head, relation, tail, is_head_negative=False):
        phase = self.relation_embedding(relation).expand_dims(1) / (RANGE / math.pi)
        r_re, r_im = ops.cos(phase), ops.sin(phase)
        h_re, h_im = ops.split(head, HALF, -1)
        t_re, t_im = ops.split(tail, HALF, -1)
        if is_head_negative:
            re = r_re * t_re + r_im * t_im - h_re
            im = r_re * t_im - r_im * t_re - h_im
        else:
            re = h_re * r_re - h_im * r_im - t_re
            im = h_re * r_im + h_im * r_re - t_im
        return MARGIN - ops.sqrt(re * re + im * im).sum(-1)


class SelfAdversarialLoss(nn.Cell):
    """Losses of triples and of their negatives."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.log_sigmoid = nn.LogSigmoid()
        self.softmax = nn.Softmax(axis=-1)
        self.is_filter_multiplied = model.is_filter_multiplied
        self.are_shares_attached = model.are_shares_attached

    def weigh(self, scores, counted):
        """Return the sum of negatives' losses."""
        scaled = TEMPERATURE * scores
        if self.is_filter_multiplied:
            scaled = scaled * counted
        else:
            scaled = ops.masked_fill(scaled, counted == 0, MASKED)
        shares = self.softmax(scaled)
        if not self.are_shares_attached:
            shares = ops.stop_gradient(shares)
        return -(shares * self.log_sigmoid(-scores)).sum(-1)

    def construct(self, score, head_scores, tail_scores, counted_heads, counted_tails, weights):
        positive = -self.log_sigmoid(score).squeeze(-1)
        negative = self.weigh(head_scores, counted_heads) + self.weigh(tail_scores, counted_tails)
        return (weights * (positive + negative / 2)).sum() / (2 * weights.sum())


class RankingLoss(nn.Cell):
    """Margins of triples to negatives that count."""

    def construct(self, score, head_scores, tail_scores, counted_heads, counted_tails):
        scores = ops.concat((head_scores, tail_scores), 1)
        counted = ops.concat((counted_heads, counted_tails), 1)
        losses = ops.relu(RANKING_MARGIN - score + scores) * counted
        return losses.sum() / counted.sum()


class LinkPredictionLoss(nn.Cell):
    """Adversarial loss, entropy, ranking and regularizers."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.entity_embedding = build_table(model, "entities")
        self.encoder = Encoder(model)
        self.distmult, self.complex, self.rotate = DistMult(model), ComplEx(model), RotatE(model)
        self.adversarial_loss = SelfAdversarialLoss(model)
        self.bce_loss = nn.BCEWithLogitsLoss()
        self.ranking_loss = RankingLoss()
        self.entities = Tensor(np.arange(ENTITIES, dtype=np.int32))

    def construct(
        self,
        graph_heads,
        graph_relations,
        graph_tails,
        neighbours,
        neighbour_relations,
        counts,
        literals,
        heads,
        relations,
        tails,
        weights,
        negative_heads,
        negative_tails,
        counted_heads,
        counted_tails,
        labels,
    ):
        table = self.entity_embedding(self.entities)
        graph = (graph_heads, graph_relations, graph_tails)
        x = self.encoder(table, literals, graph, (neighbours, neighbour_relations, counts))

        h, t = ops.gather(x, heads, 0).expand_dims(1), ops.gather(x, tails, 0).expand_dims(1)
        false_h, false_t = ops.gather(x, negative_heads, 0), ops.gather(x, negative_tails, 0)
        adversarial = self.adversarial_loss(
            self.rotate(h, relations, t),
            self.rotate(false_h, relations, t, True),
            self.rotate(h, relations, false_t),
            counted_heads,
            counted_tails,
            weights,
        )

        logits, cubes = self.complex(
            x,
            ops.concat((heads, tails)),
            ops.concat((relations, relations + RELATIONS)),
            ops.concat((tails, heads)),
        )
        entropy = self.bce_loss(logits, (1 - SMOOTHING) * labels + SMOOTHING / ENTITIES)

        score, r = self.distmult(h, relations, t)
        head_scores, _ = self.distmult(false_h, relations, t)
        tail_scores, _ = self.distmult(h, relations, false_t)
        ranking = self.ranking_loss(score, head_scores, tail_scores, counted_heads, counted_tails)

        squares = ops.square(self.entity_embedding(heads)).mean()
        squares = squares + ops.square(self.entity_embedding(tails)).mean()
        squares = squares + ops.square(r).mean()
        loss = adversarial + entropy + RANKING_WEIGHT * ranking
        return loss + N3_WEIGHT * cubes + L2_WEIGHT * squares


def build_weight(model: Model, path: str) -> Parameter:
    """Return the weight of a layer or table."""
    return Parameter(read(model, f"{path}.weight"))


def apply_linear(x, weight):
    """Return the product with a weight (out, in)."""
    return mint.matmul(x, weight.swapaxes(0, 1))


def apply_softmax(x, axis):
    """Return the softmax from exponentials."""
    shares = mint.exp(x - ops.stop_gradient(x.max(axis, keepdims=True)))
    return shares / mint.sum(shares, axis, True)


def apply_softplus(x):
    """Return log(1 + exp(x)) without a large exponential."""
    return mint.nn.functional.relu(x) + mint.log(1 + mint.exp(-mint.abs(x)))


class WrittenConv(nn.Cell):
    """An R-GCN layer that multiplies all entities by all bases first, and its norm."""

    def __init__(self, model: Model, path: str) -> None:
        super().__init__()
        self.matrices = Parameter(read(model, f"{path}.bases"))
        self.mixture = Parameter(read(model, f"{path}.coefficients"))
        self.own = build_weight(model, f"{path}.loop")
        self.shift = Parameter(read(model, f"{path}.loop.bias"))
        self.gain = build_weight(model, f"{path}.norm")
        self.offset = Parameter(read(model, f"{path}.norm.bias"))

    def construct(self, x, sources, kinds, targets):
        products = mint.matmul(x.expand_dims(0), self.matrices).permute(1, 0, 2)
        sent = mint.matmul(sources, products.reshape(ENTITIES, -1)).reshape(-1, BASES, HIDDEN)
        messages = mint.sum(mint.matmul(kinds, self.mixture).expand_dims(-1) * sent, 1)
        x = mint.matmul(targets, messages) + (apply_linear(x, self.own) + self.shift)
        centered = x - mint.mean(x, -1, True)
        variance = mint.mean(mint.square(centered), -1, True)
        return centered * mint.rsqrt(variance + EPS) * self.gain + self.offset


class WrittenLoss(nn.Cell):
    """The same loss in other steps."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.table = build_weight(model, "entities")
        gate, literal = (
            model.weights[f"literals.{name}.weight"] for name in ("gate_entity", "gate_literal")
        )
        self.gate = Parameter(Tensor(np.concatenate([gate, literal], axis=1)))
        self.gate_shift = Parameter(read(model, "literals.gate_literal.bias"))
        self.fuse = build_weight(model, "literals.value")
        self.fuse_shift = Parameter(read(model, "literals.value.bias"))
        self.ways = build_weight(model, "context.relations")
        self.ask = build_weight(model, "context.query")
        self.offer = Parameter(read(model, "context.key.weight", "context.value.weight"))
        self.rate = build_weight(model, "context.score")
        self.stack = nn.CellList([WrittenConv(model, f"layers.{n}") for n in range(LAYERS)])
        self.factors = build_weight(model, "distmult.relations")
        self.rotors = build_weight(model, "complex.relations")
        self.level = Parameter(read(model, "complex.bias"))
        self.angles = build_weight(model, "rotate.relations")
        self.entity_numbers = Tensor(np.arange(ENTITIES, dtype=np.int32))
        self.kind_numbers = Tensor(np.arange(EDGE_TYPES, dtype=np.int32))
        self.slots = Tensor(np.arange(NEIGHBOURS, dtype=np.int32))

    def choose(self, index):
        """Return one-hot entities."""
        return (index.expand_dims(-1) == self.entity_numbers).astype(ms.float32)

    def prepare(self, literals, neighbours, neighbour_relations, counts):
        """Return entities before the layers."""
        joined = mint.cat((self.table, literals), -1)
        gate = mint.sigmoid(apply_linear(joined, self.gate) + self.gate_shift)
        fused = mint.tanh(apply_linear(joined, self.fuse) + self.fuse_shift)
        x = self.table + gate * (fused - self.table)
        near = (
            mint.matmul(self.choose(neighbours.reshape(-1)), x)
            * self.ways[neighbour_relations.reshape(-1)]
        )
        offers = apply_linear(near, self.offer).reshape(ENTITIES, NEIGHBOURS, 2, HIDDEN)
        asked = mint.tanh(offers[:, :, 0] + apply_linear(x, self.ask).reshape(ENTITIES, 1, HIDDEN))
        is_near = (self.slots < counts.expand_dims(1)).astype(ms.float32)
        scores = mint.sum(asked * self.rate, -1) + MASKED * (1 - is_near)
        shares = apply_softmax(scores, 1).expand_dims(1)
        return x + mint.matmul(shares, offers[:, :, 1]).reshape(ENTITIES, HIDDEN)

    def connect(self, heads, relations, tails):
        """Return sources, kinds and targets of edges as matrices, the last one with degrees."""
        first, second = self.choose(heads), self.choose(tails)
        sources, targets = mint.cat((first, second), 0), mint.cat((second, first), 0)
        relation = mint.cat((relations, relations + RELATIONS), 0)
        kinds = (relation.expand_dims(-1) == self.kind_numbers).astype(ms.float32)
        alike = mint.matmul(kinds, kinds.swapaxes(0, 1))
        degrees = mint.sum(alike * mint.matmul(targets, targets.swapaxes(0, 1)), 1)
        return sources, kinds, targets.swapaxes(0, 1) / degrees

    def rotate(self, h, turn, t):
        """Return scores of RotatE."""
        re = h[..., :HALF] * mint.cos(turn) - h[..., HALF:] * mint.sin(turn) - t[..., :HALF]
        im = h[..., :HALF] * mint.sin(turn) + h[..., HALF:] * mint.cos(turn) - t[..., HALF:]
        return MARGIN - mint.sum(mint.sqrt(mint.square(re) + mint.square(im)), -1)

    def oppose(self, scores, counted):
        """Return the sum of negatives' losses."""
        shares = apply_softmax(TEMPERATURE * scores + MASKED * (1 - counted), -1)
        return mint.sum(ops.stop_gradient(shares) * apply_softplus(scores), -1)

    def cube(self, x):
        """Return the sum of cubes of absolute values."""
        squares = mint.square(x[:, :HALF]) + mint.square(x[:, HALF:])
        return mint.sum(squares * mint.sqrt(squares))

    def answer(self, x, h, t, relations, labels):
        """Return the entropy of ComplEx, and its regularizer."""
        r = mint.cat((self.rotors[relations], self.rotors[relations + RELATIONS]), 0)
        asked = mint.cat((h, t), 0)
        a, b, c, d = asked[:, :HALF], asked[:, HALF:], r[:, :HALF], r[:, HALF:]
        query = mint.cat((a * c - b * d, a * d + b * c), -1)
        logits = apply_linear(query, x) + self.level
        targets = labels * (1 - SMOOTHING) + SMOOTHING / ENTITIES
        entropy = mint.mean(apply_softplus(logits) - targets * logits)
        return entropy, (2 * self.cube(asked) + self.cube(r)) / (2 * BATCH)

    def construct(
        self,
        graph_heads,
        graph_relations,
        graph_tails,
        neighbours,
        neighbour_relations,
        counts,
        literals,
        heads,
        relations,
        tails,
        weights,
        negative_heads,
        negative_tails,
        counted_heads,
        counted_tails,
        labels,
    ):
        x = self.prepare(literals, neighbours, neighbour_relations, counts)
        edges = self.connect(graph_heads, graph_relations, graph_tails)
        x = mint.nn.functional.relu(self.stack[0](x, *edges))
        x = self.stack[1](x, *edges)

        of_heads, of_tails = self.choose(heads), self.choose(tails)
        h, t = mint.matmul(of_heads, x), mint.matmul(of_tails, x)
        one_h, one_t = h.expand_dims(1), t.expand_dims(1)
        false_h = mint.matmul(self.choose(negative_heads), x)
        false_t = mint.matmul(self.choose(negative_tails), x)

        turn = self.angles[relations].expand_dims(1) * (math.pi / RANGE)
        losses = apply_softplus(-self.rotate(one_h, turn, one_t)).reshape(BATCH)
        losses = losses + 0.5 * self.oppose(self.rotate(false_h, turn, one_t), counted_heads)
        losses = losses + 0.5 * self.oppose(self.rotate(one_h, turn, false_t), counted_tails)
        adversarial = 0.5 * mint.sum(losses * weights / mint.sum(weights))

        entropy, cubes = self.answer(x, h, t, relations, labels)

        r = self.factors[relations]
        with_t, with_h = (r * t).expand_dims(-1), (h * r).expand_dims(-1)
        score = mint.sum(h * r * t, -1).expand_dims(-1)
        short_h = mint.matmul(false_h, with_t).reshape(BATCH, -1) - score + RANKING_MARGIN
        short_t = mint.matmul(false_t, with_h).reshape(BATCH, -1) - score + RANKING_MARGIN
        ranking = mint.sum(mint.nn.functional.relu(short_h) * counted_heads)
        ranking = ranking + mint.sum(mint.nn.functional.relu(short_t) * counted_tails)
        ranking = ranking / (mint.sum(counted_heads) + mint.sum(counted_tails))

        squares = mint.mean(mint.square(mint.matmul(of_heads, self.table)))
        squares = squares + mint.mean(mint.square(mint.matmul(of_tails, self.table)))
        squares = squares + mint.mean(mint.square(r))
        loss = adversarial + entropy + RANKING_WEIGHT * ranking
        return loss + N3_WEIGHT * cubes + L2_WEIGHT * squares
