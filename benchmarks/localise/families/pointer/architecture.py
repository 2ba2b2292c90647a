"""An attention model for vehicle routing in NumPy: sizes, knobs, weights and batch.

In the manner of Kool's attention model (https://arxiv.org/abs/1803.08475) with several tours of an
instance, each from another first customer, as POMO (https://arxiv.org/abs/2010.16011) has them. An
instance has a depot, node 0, and at most CUSTOMERS customers; it is padded with customers at the
origin, without demand. A vehicle has the capacity 1 and is full whenever it is at the depot.

The encoder embeds the depot's coordinates with ``embed.depot`` and a customer's coordinates and
demand with ``embed.customer``. A layer is attention, norm, feed-forward with ReLU, norm; attention
and feed-forward are added to their input; padding is no key. A norm is a batch norm of the nodes of
all instances without padding, for which it returns zeros. The graph is the mean of an instance's
nodes.

The decoder follows tours that are given. At each step but the first one, of which the customer is
given to the policy, too,

    query     fixed_context(graph) + step_context([last node, remaining capacity])
    glimpse   out(attention of the query to nodes, with glimpse_key and glimpse_value), in HEADS
    logits    CLIP * tanh(glimpse * logit_key(node) / sqrt(HIDDEN))

Hidden from glimpse and logits are padding, customers that were visited or have more demand than
the remaining capacity, and the depot behind the depot while customers are left. A tour ends with
the return to the depot behind the last customer; steps behind that are padding, at the depot. A
tour's likelihood is the sum of the logarithms of its actions' probabilities without padding. Its
length is the sum of all legs, with those from the depot and back to it.

The critic returns a length for the graph, by a layer with ReLU and a linear one. The loss is the
sum of

    policy    mean of advantage * logarithm of the likelihood. The advantage is the length less the
              baseline, less its mean and divided by its deviation over all tours of the batch. The
              baseline is MIX times the critic's length and 1 - MIX times the mean length of the
              instance's tours. No gradient goes through the advantage
    critic    VALUE_WEIGHT * mean of (the critic's length - length)^2 over all tours
    entropy   -ENTROPY_WEIGHT * mean entropy of the probabilities over all steps but the first
              one, without padding

Weights are float32, linear (out, in), with a bias where it is said:

    embed.depot, embed.customer                   with bias
    layers.N.q, k, v, out
    layers.N.up, down                             the first one with bias
    layers.N.attention_norm, feed_forward_norm    with bias
    decoder.fixed_context, step_context, glimpse_key, glimpse_value, logit_key, out
    critic.hidden, out                            with bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

BATCH, CUSTOMERS, STARTS = 4, 8, 3
SIZES = (6, 8, 5, 7)  #: customers of instances
NODES, STEPS = CUSTOMERS + 1, 11
HIDDEN, HEADS, FFN, LAYERS = 20, 4, 28, 2
HEAD_DIM = HIDDEN // HEADS
CRITIC = 18
CLIP = 10.0
MASKED = -1e9  #: logit of what is hidden
TOLERANCE = 1e-5  #: of demand above the remaining capacity
CAPACITIES = {10: 20.0, 20: 30.0}  #: by the size of a problem, of demands from 1 to 9
MIX, VALUE_WEIGHT, ENTROPY_WEIGHT = 0.6, 0.5, 0.2
EPS, TINY = 1e-5, 1e-8
SEED = 1805


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): norms and softmax in plain arithmetic,
    #: masks that are added, one matrix for several layers; 'parallel' (PyTorch): other names, all
    #: steps of the decoder at once, fused attention
    variant: str = ""
    is_load_given: bool = False  #: the decoder reads the used capacity; MindSpore only
    is_clipped_late: bool = False  #: logits are clipped behind the mask; MindSpore only
    is_entropy_of_padding: bool = False  #: padding is in its mean, too; MindSpore only
    are_nodes_stopped: bool = False  #: the decoder's keys and values; MindSpore only
    are_coordinates_tiled: bool = False  #: for tours; MindSpore only
    is_padding_normed: bool = False  #: norms have its statistics, too; PyTorch only
    baseline_axis: int = 1  #: of the mean length; PyTorch only
    is_mask_recomputed: bool = True  #: in the backward pass of the glimpse; PyTorch only
    node_gradient: float = 1.0  #: factor of the encoder's gradient; PyTorch only
    capacity: float = CAPACITIES[10]

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return depots, customers, demands, sizes, rows of nodes, tours and their lengths.

        Coordinates are float32 (BATCH, 2) and (BATCH, CUSTOMERS, 2), demands as shares of the
        capacity float32 (BATCH, CUSTOMERS). Sizes are numbers of customers, int32 (BATCH,). Rows
        are those of BATCH * NODES that are not padding, int32. Tours are int32 (BATCH, STARTS,
        STEPS), and their numbers of steps without padding int32 (BATCH, STARTS).
        """
        rng = np.random.default_rng(SEED + 1)
        depots = rng.uniform(0, 1, (BATCH, 2))
        customers = np.zeros((BATCH, CUSTOMERS, 2))
        demands = np.zeros((BATCH, CUSTOMERS))
        tours = np.zeros((BATCH, STARTS, STEPS), np.int32)
        lengths = np.zeros((BATCH, STARTS), np.int32)
        for n, size in enumerate(SIZES):
            customers[n, :size] = rng.uniform(0, 1, (size, 2))
            demands[n, :size] = rng.integers(1, 10, size)
            for start, first in enumerate(rng.permutation(size)[:STARTS] + 1):
                tour = _draw_tour(rng, demands[n, :size], int(first))
                tours[n, start, : len(tour)] = tour
                lengths[n, start] = len(tour)
        rows = np.flatnonzero(np.arange(NODES) <= np.array(SIZES)[:, None])
        return (
            depots.astype(np.float32),
            customers.astype(np.float32),
            (demands / self.capacity).astype(np.float32),
            np.array(SIZES, np.int32),
            rows.astype(np.int32),
            tours,
            lengths,
        )


def _draw_tour(rng: np.random.Generator, demands: np.ndarray, first: int) -> list[int]:
    """Return nodes from a first customer to the return behind the last one."""
    tour, left = [first], CAPACITIES[10] - demands[first - 1]
    open_nodes = set(range(1, len(demands) + 1)) - {first}
    while open_nodes:
        choices = [node for node in sorted(open_nodes) if demands[node - 1] <= left]
        if not choices or (tour[-1] and rng.uniform() < 0.15):
            tour.append(0)
            left = CAPACITIES[10]
            continue
        node = int(rng.choice(choices))
        tour.append(node)
        left -= demands[node - 1]
        open_nodes.remove(node)
    return [*tour, 0]


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_linear("embed.depot", HIDDEN, 2)
    weights.add_linear("embed.customer", HIDDEN, 3)
    for name in ("depot", "customer"):
        weights[f"embed.{name}.weight"] *= np.float32(2)
    for n in range(LAYERS):
        for name in ("q", "k", "v", "out"):
            weights.add_matrix(f"layers.{n}.{name}", HIDDEN, HIDDEN)
        weights.add_norm(f"layers.{n}.attention_norm", HIDDEN)
        weights.add_linear(f"layers.{n}.up", FFN, HIDDEN)
        weights.add_matrix(f"layers.{n}.down", HIDDEN, FFN)
        weights.add_norm(f"layers.{n}.feed_forward_norm", HIDDEN)
    weights.add_matrix("decoder.fixed_context", HIDDEN, HIDDEN)
    weights.add_matrix("decoder.step_context", HIDDEN, HIDDEN + 1)
    for name in ("glimpse_key", "glimpse_value", "logit_key", "out"):
        weights.add_matrix(f"decoder.{name}", HIDDEN, HIDDEN)
    weights["decoder.logit_key.weight"] *= np.float32(0.3)
    weights.add_linear("critic.hidden", CRITIC, HIDDEN)
    weights.add_linear("critic.out", 1, CRITIC)
    weights["critic.out.bias"] += np.float32(3)
    return Model("pointer", weights)
