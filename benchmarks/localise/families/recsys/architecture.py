"""A recommender for clicks in NumPy: sizes, knobs, weights and batch.

A vector joins the projection of standardized dense features, embeddings of fields, the mean of a
bag of tags, the candidate's embedding and the interest: states of a GRU over the history, pooled by
an attention unit that compares each with the candidate (https://arxiv.org/abs/1706.06978,
section 4.3; https://arxiv.org/abs/1809.03672, section 4.3), with softmax. A low-rank cross network
(https://arxiv.org/abs/2008.13535, section 3.2) and a deep network (linear, batch norm, prelu;
linear, dice) read the vector. The loss is a weighted binary cross entropy plus TOWERS_SHARE times
an in-batch softmax of two towers with corrected sampling (https://dl.acm.org/doi/10.1145/3298689
.3346996, section 3); the towers do not train the interest. Weights:

    dense.mean, dense.variance (DENSE,)       constants
    popularity (ITEMS,)                       constant: probability that a batch holds an item
    dense                                     linear (EMBED, DENSE)
    fields.weight (FIELDS * ROWS, EMBED)      one table for all fields, one after the other
    tags.weight, items.weight                 tables; row 0 is padding
    gru.{weight,bias}_{ih,hh}                 rows of reset, update, candidate
    attention.0                               linear; of state, candidate, difference, product
    attention.1                               linear without bias
    cross.N.v, cross.N.u                      (RANK, WIDTH) without bias; linear (WIDTH, RANK)
    deep.0, deep.0.norm, deep.0.slopes        linear without bias, batch norm, prelu
    deep.1, deep.1.slopes                     linear, dice
    head                                      linear, of cross and deep network, to one logit
    towers.user, towers.item                  linear; of fields and interest, of candidate and tags
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, DENSE, FIELDS, ROWS, TAGS, TAG_SLOTS, ITEMS, HISTORY, EMBED = 6, 5, 3, 6, 10, 4, 16, 6, 8
HIDDEN, ATTENTION, RANK, CROSS_LAYERS, DEEP, TOWER = EMBED, 12, 6, 2, (16, 8), 8
WIDTH = (FIELDS + 4) * EMBED
PADDING = 0  #: tag of a bag and item of a history
NORM_EPS, DICE_EPS, MOMENTUM = 1e-5, 1e-8, 0.1  #: of batch norm and dice
CLICK_WEIGHT, TOWERS_SHARE, TEMPERATURE = 2.0, 0.5, 0.2
MASKED = -1e9  #: score of padding and of a second copy of an item
LENGTHS, TAG_COUNTS = (6, 3, 5, 2, 4, 5), (2, 4, 1, 3, 3, 2)
RATE, DECAY = 1e-3, 0.01
SEED = 417


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault.

    Knobs of the cross network are those of its last layer.
    """

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'names' (PyTorch): other modules, a table for each field, the
    #: GRU cell by cell; 'written' (PyTorch): norms, GRU, rectifiers and losses in plain arithmetic;
    #: 'factored' (PyTorch): linear layers of joined inputs as sums of products; 'mint' (MindSpore):
    #: functions of mint and the framework's GRU cell; 'reductions' (MindSpore): norms, losses and
    #: products from other operators
    variant: str = ""
    is_bias_crossed: bool = True  #: the bias is multiplied by the first vector
    is_variance_rooted: bool = True  #: dense features are divided by their standard deviation
    is_hidden_bias_reset: bool = True  #: of the GRU's candidate, by the reset gate
    is_padding_filled: bool = True  #: with MASKED in the scores of a history; else they become 0
    is_dice_reversed: bool = False  #: the slope is on the side of the gate, not of the rest
    is_logq_divided: bool = False  #: the correction is subtracted before the temperature divides
    are_copies_masked: bool = True  #: of the own item among the negatives
    is_interest_stopped: bool = True  #: no gradient from the towers to the interest
    is_gradient_by_frequency: bool = False  #: of an item, divided by how often it is looked up
    is_mean_weighted: bool = False  #: losses of clicks are divided by the sum of their weights
    are_histories_last: bool = False  #: behind their padding
    is_gradient_overwritten: bool = False  #: of an item, by that of its last lookup
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(learning_rate=RATE, weight_decay=DECAY)
    )

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return dense features, float32 (batch, DENSE), and, int32, fields (batch, FIELDS), tags
        (batch, TAG_SLOTS), a history (batch, HISTORY) and candidates (batch,), and, float32
        (batch,), weights and clicks.
        """
        rng = np.random.default_rng(SEED + 1)
        dense = rng.lognormal(0.5, 0.7, (BATCH, DENSE)).astype(np.float32)
        fields = rng.integers(0, ROWS, (BATCH, FIELDS)).astype(np.int32)
        tags = rng.integers(1, TAGS, (BATCH, TAG_SLOTS)).astype(np.int32)
        history = rng.integers(1, ITEMS, (BATCH, HISTORY)).astype(np.int32)
        for n in range(BATCH):
            tags[n, TAG_COUNTS[n] :] = PADDING
            history[n, LENGTHS[n] :] = PADDING
            if self.are_histories_last:
                history[n] = np.roll(history[n], HISTORY - LENGTHS[n])
        candidates = rng.permutation(np.arange(1, ITEMS))[:BATCH].astype(np.int32)
        candidates[4] = candidates[1]
        weights = rng.uniform(0.5, 2.0, BATCH).astype(np.float32)
        clicks = np.array([1, 0, 0, 1, 0, 1], dtype=np.float32)
        return dense, fields, tags, history, candidates, weights, clicks


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    rng = weights.rng
    weights["dense.mean"] = rng.uniform(1.5, 2.5, DENSE).astype(np.float32)
    weights["dense.variance"] = rng.uniform(0.6, 4.0, DENSE).astype(np.float32)
    weights["popularity"] = rng.dirichlet(np.full(ITEMS, 2.0)).astype(np.float32)
    weights.add_linear("dense", EMBED, DENSE)
    weights.add_table("fields", FIELDS * ROWS, EMBED, deviation=0.6)
    weights.add_table("tags", TAGS, EMBED, deviation=0.6)
    weights.add_table("items", ITEMS, EMBED, deviation=0.8)
    for name, n_inputs in (("ih", EMBED), ("hh", HIDDEN)):
        values = rng.standard_normal((3 * HIDDEN, n_inputs)) / np.sqrt(n_inputs)
        weights[f"gru.weight_{name}"] = values.astype(np.float32)
        weights[f"gru.bias_{name}"] = (0.2 * rng.standard_normal(3 * HIDDEN)).astype(np.float32)
    weights.add_linear("attention.0", ATTENTION, 4 * EMBED)
    weights.add_matrix("attention.1", 1, ATTENTION)
    weights["attention.1.weight"] *= 4  # so that shares differ
    for n in range(CROSS_LAYERS):
        weights.add_matrix(f"cross.{n}.v", RANK, WIDTH)
        weights.add_linear(f"cross.{n}.u", WIDTH, RANK)
    weights.add_matrix("deep.0", DEEP[0], WIDTH)
    weights.add_norm("deep.0.norm", DEEP[0])
    weights.add_linear("deep.1", DEEP[1], DEEP[0])
    for n, width in enumerate(DEEP):
        weights[f"deep.{n}.slopes"] = rng.uniform(0.05, 0.45, width).astype(np.float32)
    weights.add_linear("head", 1, WIDTH + DEEP[1])
    weights.add_linear("towers.user", TOWER, FIELDS * EMBED + HIDDEN)
    weights.add_linear("towers.item", TOWER, 2 * EMBED)
    return Model("recsys", weights)
