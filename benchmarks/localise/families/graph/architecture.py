"""A graph network in NumPy: sizes, knobs, weights and batch.

Nodes begin with the embeddings of their atom and of their number of neighbours. The first layer
sums messages of neighbours and bonds (https://arxiv.org/abs/1905.12265, section 5.1), the second
one attends to them (https://arxiv.org/abs/1710.10903, section 2.1). A graph is the mean of its
gated nodes. Weights:

    atoms (ATOMS, HIDDEN), degrees (DEGREES, HIDDEN), bonds.0, bonds.1 (BONDS, HIDDEN)
    isomorphism.factor (1,)           of the own node, on top of 1
    isomorphism.up, isomorphism.norm, isomorphism.down       linear, batch norm, linear
    attention.value                   linear, to HEADS heads of HEAD_DIM
    attention.source, attention.target (HEADS, HEAD_DIM)     of the scores
    attention.norm                    layer norm
    readout.gate, readout.value       linear
    head.0, head.1                    linear, to one number

Heads are one after the other in HIDDEN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

ATOMS, DEGREES, BONDS, HIDDEN, HEADS, HEAD, WIDE = 9, 10, 4, 24, 3, 16, 40
HEAD_DIM = HIDDEN // HEADS
GRAPH_SIZES = (5, 7, 4, 6, 3, 5)  #: nodes of each graph
GRAPHS, NODES = len(GRAPH_SIZES), sum(GRAPH_SIZES)
EPS, MOMENTUM = 1e-5, 0.1
SLOPE, BETA = 0.2, 0.5  #: of the leaky relu of scores; where the loss becomes linear
SEED = 91


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'incidence' (PyTorch): neighbours by products with matrices of
    #: zeros and ones; 'written' (PyTorch): norms, activations and loss in plain arithmetic;
    #: 'scattered' (MindSpore): sums by scattering, scores from joined nodes, norms written out
    variant: str = ""
    degree_offset: int = 0  #: added to the numbers of neighbours: 1 counts the node itself
    is_target_read: bool = False  #: messages of the second layer are read at their targets
    has_own_factor: bool = True  #: the own node counts 1 + factor times, else once
    are_sums_half: bool = False  #: messages of the first layer are summed in bfloat16
    are_bonds_summed: bool = True  #: by the attention, with nodes; else bonds are in scores only
    is_gradient_averaged: bool = False  #: sums of the first layer have the gradient of means
    are_bonds_shared: bool = False  #: the second layer reads the bonds of the first one
    slope: float = SLOPE
    softmax_over: str = "neighbours"  #: or 'edges': all edges of the batch
    is_normalizer_stopped: bool = False  #: no gradient through the sum of the exponentials
    are_heads_last: bool = False  #: a node's values are read as (HEAD_DIM, HEADS)
    activation: str = "elu"  #: behind the attention; or 'selu'
    pooling: str = "mean"  #: of the nodes of a graph; or 'max'
    beta: float = BETA
    has_loops: bool = False  #: in the attention each node is a neighbour of itself, without a bond
    has_skip: bool = True  #: nodes are added to what their attention gives
    is_value_gated: bool = False  #: the readout's sigmoid is of its values, not of its gates
    is_norm_first: bool = False  #: the norm is that of the attention, before the sum with the nodes
    is_norm_of_all: bool = False  #: the layer norm's mean and variance are those of all nodes
    are_bonds_unordered: bool = False  #: not in the order of the edges, but as they were read
    is_output_squeezed: bool = True  #: predictions are (GRAPHS,), not (GRAPHS, 1); PyTorch only

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return atoms, int32 (NODES,), sources, targets and bonds of the edges, int32 (edges,),
        the graph of each node, int32 (NODES,), and labels, float32 (GRAPHS,).

        Each bond is an edge in both directions.
        """
        rng = np.random.default_rng(SEED + 1)
        atoms = rng.integers(0, ATOMS, NODES).astype(np.int32)
        pairs: list[tuple[int, int]] = []
        begin = 0
        for size in GRAPH_SIZES:
            pairs += [(begin + node, begin + int(rng.integers(0, node))) for node in range(1, size)]
            if size > 3:
                pairs.append((begin, begin + size - 1))  # a ring
            begin += size
        pairs = sorted({(min(pair), max(pair)) for pair in pairs})
        kinds = rng.integers(0, BONDS, len(pairs))
        first, second = np.array(pairs, dtype=np.int32).T
        order = rng.permutation(2 * len(pairs))
        source = np.concatenate([first, second])[order]
        target = np.concatenate([second, first])[order]
        bonds = np.concatenate([kinds, kinds]).astype(np.int32)
        if not self.are_bonds_unordered:
            bonds = bonds[order]
        graph = np.repeat(np.arange(GRAPHS), GRAPH_SIZES).astype(np.int32)
        labels = rng.standard_normal(GRAPHS).astype(np.float32)
        return atoms, source, target, bonds, graph, labels


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_table("atoms", ATOMS, HIDDEN)
    weights.add_table("degrees", DEGREES, HIDDEN, deviation=0.5)
    for n in range(2):
        weights.add_table(f"bonds.{n}", BONDS, HIDDEN, deviation=0.7)
    weights["isomorphism.factor"] = np.array([0.3], dtype=np.float32)
    weights.add_linear("isomorphism.up", WIDE, HIDDEN)
    weights.add_norm("isomorphism.norm", WIDE)
    weights.add_linear("isomorphism.down", HIDDEN, WIDE)
    weights.add_linear("attention.value", HIDDEN, HIDDEN)
    for name in ("source", "target"):
        values = 0.6 * weights.rng.standard_normal((HEADS, HEAD_DIM))
        weights[f"attention.{name}"] = values.astype(np.float32)
    weights.add_norm("attention.norm", HIDDEN)
    weights.add_linear("readout.gate", HIDDEN, HIDDEN)
    weights.add_linear("readout.value", HIDDEN, HIDDEN)
    weights.add_linear("head.0", HEAD, HIDDEN)
    weights.add_linear("head.1", 1, HEAD)
    return Model("graph", weights)
