"""A language model of two LSTM layers: embedding, recurrence, head.

Weights are float32, named canonically:

    embedding.weight (VOCAB, WIDTH)
    layers.N.{weight_ih, weight_hh} (4 * WIDTH, WIDTH), layers.N.{bias_ih, bias_hh} (4 * WIDTH,)
    head.weight (VOCAB, WIDTH), head.bias

The rows of a layer are those of the gates i, f, g, o, as PyTorch stores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

VOCAB, WIDTH, LAYERS, SEQ, BATCH, SEED = 60, 24, 2, 8, 3, 31
#: Probability of the fault that leaves dropout between the layers on.
DROPOUT = 0.2


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'cells' (PyTorch): one nn.LSTMCell for each layer, called step
    #: by step; 'written' (PyTorch): in plain arithmetic; 'projected' (MindSpore): the inputs of all
    #: steps are projected at once; 'joined' (MindSpore): one product of input and state together,
    #: steps come first; 'stacked' (PyTorch): an nn.LSTM for each layer, steps come first, the head
    #: is a product
    variant: str = ""
    #: which rows of a layer's weights the net reads as the gates i, f, g, o
    gate_order: tuple[int, ...] = (0, 1, 2, 3)
    has_hidden_bias: bool = True  #: the second bias, of the previous state, in the last layer
    is_state_carried: bool = True  #: the recurrence begins with the state of the previous batch
    forget_bias: float = 0.0  #: added to the forget gate before the sigmoid
    #: of the gates: 'sigmoid', or 'hard' for Keras's clip(0.2 x + 0.5, 0, 1)
    gate_activation: str = "sigmoid"
    detached_step: int = 0  #: > 0: no gradient flows back from this step into the previous one
    is_reversed: bool = False  #: the sequence is read from its end
    padding_row: int = -1  #: >= 0: row of the embedding that gets no gradient
    dropout: float = 0.0  #: between the layers; PyTorch only
    label_shift: int = 1  #: a label is the token so many steps later
    is_head_half: bool = False  #: the head computes in float16
    embedding_scale: float = 1.0
    embedding_gradient: float = 1.0  #: the gradient of the embedded tokens is multiplied by it
    #: the gradient of a row of the embedding is divided by how often the batch has its token
    is_gradient_averaged: bool = False
    are_cells_read: bool = False  #: the head reads the cell states of the last layer
    are_states_exchanged: bool = False  #: hidden and cell state of the previous batch
    is_cell_activated: bool = True  #: tanh of the cell state, in the last layer
    cell_limit: float = (
        0.0  #: > 0: largest cell state, and its negative the least, in the last layer
    )
    loss_reduction: str = "tokens"  #: the sum is divided by all tokens, or by all 'sequences'
    ignored_label: int = -1  #: >= 0: label that has no loss
    label_smoothing: float = 0.0
    are_logits_by_step: bool = (
        False  #: the loss reads logits step by step, labels still by sequence
    )
    #: > 0: largest gradient of what goes into a gate, and its negative the least, in the last layer
    gradient_limit: float = 0.0
    is_hidden_stopped: bool = False  #: no gradient from gates to hidden states, in the last layer
    are_states_reshaped: bool = False  #: from (batch, layers, width), not transposed
    #: plain steps along clipped gradients, as in PyTorch's example of a word language model
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(kind="sgd", weight_decay=0.0, clip=0.25)
    )

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return tokens and labels, int32 (batch, seq), and the state: hidden and cell, float32
        (layers, batch, width).
        """
        rng = np.random.default_rng(SEED + 1)
        tokens = rng.integers(0, VOCAB, (BATCH, SEQ + 1)).astype(np.int32)
        tokens[:, -3] = 0  # the row of the padding token is read, too
        begin = self.label_shift
        hidden = np.tanh(0.5 * rng.standard_normal((LAYERS, BATCH, WIDTH)))
        cell = 0.5 * rng.standard_normal((LAYERS, BATCH, WIDTH))
        if self.are_states_reshaped:
            hidden, cell = (state.swapaxes(0, 1).reshape(state.shape) for state in (hidden, cell))
        return (
            tokens[:, :-1].copy(),
            tokens[:, begin : begin + SEQ].copy(),
            hidden.astype(np.float32),
            cell.astype(np.float32),
        )


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_table("embedding", VOCAB, WIDTH)
    for n in range(LAYERS):
        for name in ("ih", "hh"):
            matrix = weights.rng.standard_normal((4 * WIDTH, WIDTH)) / np.sqrt(WIDTH)
            bias = 0.2 * weights.rng.standard_normal(4 * WIDTH)
            weights[f"layers.{n}.weight_{name}"] = matrix.astype(np.float32)
            weights[f"layers.{n}.bias_{name}"] = bias.astype(np.float32)
    weights.add_linear("head", VOCAB, WIDTH)
    return Model("lstm", weights)
