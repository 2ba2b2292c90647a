"""Link prediction on a knowledge graph in NumPy: sizes, knobs, weights and batch.

The graph is triples (head, relation, tail); each one is an edge from head to tail, and one from
tail to head with the inverse relation, which has the number RELATIONS + relation.

Entities begin with a table. Numeric attributes, literals, are fused into them by a gate, as
LiteralE (https://arxiv.org/abs/1802.00934) has it:

    gate    sigmoid(gate_entity(e) + gate_literal(literals)), the second one with bias
    fused   gate * tanh(value([e, literals])) + (1 - gate) * e

Each entity has a list of neighbours with the relation of the edge from them, padded with entity 0
and relation 0. What is attended to, n, is a neighbour times a relation's row of a table:

    x + sum of softmax(score(tanh(query(x) + key(n)))) * value(n) over neighbours without padding

R-GCN layers (https://arxiv.org/abs/1703.06103) follow. A relation's matrix is the sum of bases
(in, out), each times a coefficient of the relation. A message along an edge is the source times the
matrix, divided by the number of edges with the same relation and target:

    norm(sum of messages to an entity + loop(x)), with ReLU but for the last layer, and dropout of 0

Three decoders score triples with tables of relations of their own, the last two with vectors whose
first half is real and second half imaginary:

    DistMult    sum of h * r * t
    ComplEx     real part of the sum of h * r * conjugate(t), for all entities as t, plus their bias
    RotatE      MARGIN less the sum of |h * exp(i * phase) - t|, computed as |conjugate of the
                rotation * t - h| for negative heads; the phase is the row, divided by RANGE, times
                pi (https://arxiv.org/abs/1902.10197)

A triple has NEGATIVES heads and as many tails, of which some make a true triple and do not count.
The loss is the sum of

    adversarial  of RotatE: (-log sigmoid(score) + the mean of heads and tails of the negatives'
                 -log sigmoid(-score), weighted by softmax(TEMPERATURE * score) of what counts) / 2.
                 No gradient goes through the softmax. Mean over triples with their weights
    entropy      binary cross entropy of ComplEx, for tails of (head, relation) and for heads as
                 tails of (tail, inverse relation); labels are (1 - SMOOTHING) * label +
                 SMOOTHING / ENTITIES. Mean over everything
    ranking      RANKING_WEIGHT * mean of max(RANKING_MARGIN - score + negative's score, 0) of
                 DistMult over negatives that count
    N3           N3_WEIGHT * sum of cubes of absolute values of what ComplEx looked up, entities
                 behind the layers and relations, per query (https://arxiv.org/abs/1806.07297)
    L2           L2_WEIGHT * sum of the mean squares of the table's heads and tails and of
                 DistMult's relations

Weights are float32, linear (out, in), with a bias where it is said:

    entities (ENTITIES, HIDDEN)
    literals.gate_entity, gate_literal, value         the last two with bias
    context.relations (2 * RELATIONS, HIDDEN), context.query, key, value, score
    layers.N.bases (BASES, in, out), coefficients (2 * RELATIONS, BASES)
    layers.N.loop, layers.N.norm                      with bias
    distmult.relations (RELATIONS, HIDDEN), rotate.relations (RELATIONS, HALF)
    complex.relations (2 * RELATIONS, HIDDEN), complex.bias (ENTITIES,)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

ENTITIES, RELATIONS, TRIPLES, LITERALS = 14, 4, 26, 3
EDGE_TYPES = 2 * RELATIONS
NEIGHBOURS = 5
BATCH, NEGATIVES = 6, 5
HIDDEN, BASES, LAYERS = 20, 3, 2
HALF = HIDDEN // 2
MARGIN = 15.0
RANGE = (MARGIN + 2) / HALF  #: the largest row of RotatE's relations, which is a phase of pi
TEMPERATURE, SMOOTHING = 0.5, 0.1
RANKING_MARGIN, RANKING_WEIGHT = 1.0, 0.5
N3_WEIGHT, L2_WEIGHT = 0.005, 0.1
MASKED = -1e9  #: score of what does not count
EPS = 1e-5
SEED = 1703


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): sums to entities by a matrix of zeros
    #: and ones, bases before relations, norms, softmax and losses in plain arithmetic; 'dense'
    #: (PyTorch): other names, edges as dense matrices, one form of RotatE, losses by softplus
    variant: str = ""
    is_degree_of_all: bool = False  #: divides by edges of all relations; MindSpore only
    are_parts_alternating: bool = False  #: ComplEx has re, im, re, im, ...; MindSpore only
    is_filter_multiplied: bool = False  #: scores before the softmax, by 0; MindSpore only
    are_shares_attached: bool = False  #: those of the negatives; MindSpore only
    has_neighbour_of_padding: bool = False  #: one more than there are; PyTorch only
    is_rotation_repeated: bool = False  #: that of heads, without conjugate; PyTorch only
    smoothing_offset: float = SMOOTHING / ENTITIES  #: of labels; PyTorch only
    is_degree_differentiated: bool = True  #: in the backward pass of the sum; PyTorch only
    is_n3_of_parts: bool = False  #: not of absolute values; PyTorch only
    are_literals_standardized: bool = False  #: not from 0 to 1

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return the graph, neighbours, literals, triples, negatives and labels.

        The graph's heads, relations and tails are int32 (TRIPLES,). Neighbours and their relations
        are int32 (ENTITIES, NEIGHBOURS), their numbers int32 (ENTITIES,). Literals are float32
        (ENTITIES, LITERALS) from 0 to 1. Heads, relations and tails of the batch are int32
        (BATCH,), their weights float32 (BATCH,). Negative heads and tails are int32 (BATCH,
        NEGATIVES), with ones of those that count, float32. Labels are float32 (2 * BATCH,
        ENTITIES).
        """
        rng = np.random.default_rng(SEED + 1)
        graph = _draw_graph(rng)
        neighbours, neighbour_relations = (
            np.zeros((ENTITIES, NEIGHBOURS), np.int32) for _ in range(2)
        )
        counts = np.zeros(ENTITIES, np.int32)
        inverse = [(tail, relation + RELATIONS, head) for head, relation, tail in graph]
        for source, relation, target in graph + inverse:
            if counts[target] < NEIGHBOURS:
                neighbours[target, counts[target]] = source
                neighbour_relations[target, counts[target]] = relation
                counts[target] += 1

        literals = rng.lognormal(3, 0.8, (ENTITIES, LITERALS))
        if self.are_literals_standardized:
            literals = (literals - literals.mean(0)) / literals.std(0)
        else:
            literals = (literals - literals.min(0)) / (literals.max(0) - literals.min(0))

        triples = [graph[n] for n in rng.permutation(TRIPLES)[:BATCH]]
        weights = np.zeros(BATCH)
        negatives = rng.integers(0, ENTITIES, (2, BATCH, NEGATIVES))
        labels = np.zeros((2 * BATCH, ENTITIES), np.float32)
        for n, (head, relation, tail) in enumerate(triples):
            tails = [triple[2] for triple in graph if triple[:2] == (head, relation)]
            heads = [triple[0] for triple in graph if triple[1:] == (relation, tail)]
            weights[n] = (len(tails) + len(heads) + 4) ** -0.5
            labels[n, tails] = 1
            labels[BATCH + n, heads] = 1
            if n % 2:  # a true triple, as a sampler draws it now and then
                negatives[0, n, n % NEGATIVES], negatives[1, n, 0] = heads[0], tails[-1]
        counted = [
            np.take_along_axis(1 - rows, columns, axis=1)
            for rows, columns in zip((labels[BATCH:], labels[:BATCH]), negatives, strict=True)
        ]
        return (
            *np.array(graph, np.int32).T.copy(),
            neighbours,
            neighbour_relations,
            counts,
            literals.astype(np.float32),
            *np.array(triples, np.int32).T.copy(),
            weights.astype(np.float32),
            *negatives.astype(np.int32),
            *counted,
            labels,
        )


def _draw_graph(rng: np.random.Generator) -> list[tuple[int, int, int]]:
    """Return different triples; each entity is in one of them."""
    graph = [
        (int(rng.integers(0, tail)), int(rng.integers(0, RELATIONS)), tail)
        for tail in rng.permutation(np.arange(1, ENTITIES)).tolist()
    ]
    hub = 2  # has several edges of one relation, in both directions
    graph += [(hub, 1, tail) for tail in (7, 9, 12)] + [(head, 3, hub) for head in (5, 8, 11)]
    graph = list(dict.fromkeys(graph))
    while len(graph) < TRIPLES:
        head, tail = rng.choice(ENTITIES, 2, replace=False).tolist()
        triple = (head, int(rng.integers(0, RELATIONS)), tail)
        if triple not in graph:
            graph.append(triple)
    return [graph[n] for n in rng.permutation(TRIPLES)]


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_table("entities", ENTITIES, HIDDEN)
    weights.add_matrix("literals.gate_entity", HIDDEN, HIDDEN)
    weights.add_linear("literals.gate_literal", HIDDEN, LITERALS)
    weights.add_linear("literals.value", HIDDEN, HIDDEN + LITERALS)
    weights.add_table("context.relations", EDGE_TYPES, HIDDEN)
    for name in ("query", "key", "value"):
        weights.add_matrix(f"context.{name}", HIDDEN, HIDDEN)
    weights.add_matrix("context.score", 1, HIDDEN)
    weights["context.score.weight"] *= np.float32(3)
    for n in range(LAYERS):
        weights[f"layers.{n}.bases"] = _draw(weights, (BASES, HIDDEN, HIDDEN), HIDDEN**-0.5)
        weights[f"layers.{n}.coefficients"] = _draw(weights, (EDGE_TYPES, BASES), 0.7)
        weights.add_linear(f"layers.{n}.loop", HIDDEN, HIDDEN)
        weights.add_norm(f"layers.{n}.norm", HIDDEN)
    weights.add_table("distmult.relations", RELATIONS, HIDDEN, deviation=0.3)
    weights.add_table("complex.relations", EDGE_TYPES, HIDDEN, deviation=0.3)
    weights["complex.bias"] = _draw(weights, (ENTITIES,), 0.2)
    rows = weights.rng.uniform(-RANGE, RANGE, (RELATIONS, HALF))
    weights["rotate.relations.weight"] = rows.astype(np.float32)
    return Model("kgraph", weights)


def _draw(weights: Weights, shape: tuple[int, ...], deviation: float) -> np.ndarray:
    return (deviation * weights.rng.standard_normal(shape)).astype(np.float32)
