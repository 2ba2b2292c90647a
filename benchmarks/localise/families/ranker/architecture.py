"""A ranking model for clicks in NumPy: sizes, knobs, weights and batch.

Counts and embeddings of fields, and the mean embedding of the items of a history, are one vector.
A cross network of full matrices (https://arxiv.org/abs/2008.13535, section 3.2) and a deep network
with batch norm read it side by side; a factorization machine
(https://arxiv.org/abs/1703.04247, section 2.1) without weights of its own reads the embeddings.
Weights:

    fields.weight (FIELDS * ROWS, EMBED)      one table for all fields, one after the other
    items.weight (ITEMS, EMBED)               row 0 is padding
    cross.N                                   linear (WIDTH, WIDTH)
    deep.N, deep.N.norm                       linear, batch norm
    head                                      linear, of cross and deep network, to one logit

The vector holds counts, then fields, then history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

BATCH, COUNTS, FIELDS, ROWS, ITEMS, HISTORY, EMBED = 24, 6, 4, 12, 20, 5, 8
WIDTH = COUNTS + (FIELDS + 1) * EMBED
CROSS_LAYERS, DEEP = 2, (32, 24)
PADDING = 0  #: item of a history
EPS, MOMENTUM = 1e-5, 0.1  #: of batch norm; share of the batch in the running statistics
SEED = 81


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault.

    Knobs of the cross network are those of its last layer.
    """

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'tables' (PyTorch): a table for each field, the history by a
    #: mask, the machine by pairs; 'written' (PyTorch): batch norm, cross network, machine and loss
    #: in plain arithmetic; 'gram' (MindSpore): the machine from all products of embeddings, batch
    #: norm and linear layers from other operators
    variant: str = ""
    history_pooling: str = "mean"  #: or 'sum'
    is_padding_skipped: bool = True  #: padding does not count in the mean of a history
    are_counts_logarithmic: bool = True  #: log(1 + count)
    has_cross_skip: bool = True
    is_cross_half: bool = False  #: the linear layer in bfloat16
    machine_factor: float = 0.5  #: of the difference of squares in the factorization machine
    is_machine_stopped: bool = False  #: no gradient from the factorization machine
    is_embedding_first: bool = False  #: the vector holds counts last
    is_sigmoid_doubled: bool = False  #: the loss of logits gets probabilities
    is_norm_last: bool = False  #: relu before batch norm in the last deep layer
    click_weight: float = 1.0  #: of the clicks in the loss
    field_gradient: float = 1.0  #: the gradient of the fields' embeddings is multiplied by it
    is_crossed_with_itself: bool = False  #: the last cross layer multiplies its own input
    has_offsets: bool = True  #: of the fields in their common table
    norm_eps: float = EPS  #: of the batch norms
    has_running_statistics: bool = False  #: the last batch norm normalizes by them
    loss_reduction: str = "mean"  #: or 'sum'
    is_variance_unbiased: bool = False  #: the batch norms divide it by one element less
    slope: float = 0.0  #: of negative values, in the rectifiers of the deep network
    last_norm: str = "batch"  #: of the deep network; or 'layer', over the channels of an example
    are_clicks_first: bool = False  #: the loss reads clicks, then logits
    #: the gradient of a field's row is divided by its number of examples
    are_row_gradients_averaged: bool = False

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return counts, float32 (batch, COUNTS), fields, int32 (batch, FIELDS), a history of
        items, int32 (batch, HISTORY), and clicks, float32 (batch,).
        """
        rng = np.random.default_rng(SEED + 1)
        counts = rng.poisson(3.0, (BATCH, COUNTS)).astype(np.float32)
        fields = rng.integers(0, ROWS, (BATCH, FIELDS)).astype(np.int32)
        history = rng.integers(1, ITEMS, (BATCH, HISTORY)).astype(np.int32)
        for row, length in zip(history, rng.integers(1, HISTORY + 1, BATCH), strict=True):
            row[length:] = PADDING
        clicks = (rng.random(BATCH) < 0.3).astype(np.float32)
        return counts, fields, history, clicks


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_table("fields", FIELDS * ROWS, EMBED, deviation=0.6)
    weights.add_table("items", ITEMS, EMBED, deviation=0.6)
    for n in range(CROSS_LAYERS):
        weights.add_linear(f"cross.{n}", WIDTH, WIDTH)
    n_inputs = WIDTH
    for n, n_outputs in enumerate(DEEP):
        weights.add_linear(f"deep.{n}", n_outputs, n_inputs)
        weights.add_norm(f"deep.{n}.norm", n_outputs)
        n_inputs = n_outputs
    weights.add_linear("head", 1, WIDTH + n_inputs)
    return Model("ranker", weights)
