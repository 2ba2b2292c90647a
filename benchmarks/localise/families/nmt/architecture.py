"""A recurrent translator (https://arxiv.org/abs/1409.0473, section 3 and appendix A) in NumPy:
sizes, knobs, weights and batch.

A bidirectional layer of gated recurrent units reads the source. The decoder begins with the last
state of the backward direction; each of its steps reads the token before and a context, which
additive attention to the source gives from the state before. Weights:

    source.embedding, target.embedding
    encoder.forward.*, encoder.backward.*, decoder.*:
                    weight_ih (3 * HIDDEN, inputs), weight_hh (3 * HIDDEN, HIDDEN), bias_ih, bias_hh
    bridge          linear, (HIDDEN, HIDDEN), to the first state of the decoder
    attention.query (ATTENTION, HIDDEN), attention.energy (1, ATTENTION)         without bias
    attention.key   linear, (ATTENTION, 2 * HIDDEN)
    readout         linear, of state, context and token before
    head            linear

The rows of a recurrent layer are those of the gates reset and update, then of the candidate, as
PyTorch stores them. The inputs of the decoder are the token before, then the context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

SOURCE_VOCAB, TARGET_VOCAB = 40, 36
EMBED, HIDDEN, ATTENTION, READOUT = 16, 20, 18, 24
SOURCE_LENGTHS, TARGET_LENGTHS = (7, 5, 6, 4), (6, 4, 5, 6)
BATCH, SOURCE, TARGET = len(SOURCE_LENGTHS), max(SOURCE_LENGTHS), max(TARGET_LENGTHS)
PADDING, BEGIN = 0, 1  #: tokens of both vocabularies
SEED = 71


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (PyTorch): recurrence in plain arithmetic; 'joint'
    #: (PyTorch): attention reads state and source together; 'projected' (MindSpore): the inputs of
    #: all steps are projected at once, and the biases of the gates are added up before
    variant: str = ""
    #: which rows of the decoder's recurrent layer are read as reset, update and candidate
    gate_order: tuple[int, int, int] = (0, 1, 2)
    is_source_masked: bool = True  #: no attention to the padding of the source
    is_energy_activated: bool = True  #: tanh of the sum of query and key
    is_state_bridged: bool = True  #: the decoder begins with the encoder's state, else with zeros
    is_backward_restored: bool = True  #: states of the backward direction in the source's order
    are_energies_half: bool = False  #: the sum of query and key, and the energies, in float16
    loss_reduction: str = "tokens"  #: the sum is divided by all tokens, or by all 'sentences'
    is_alignment_stopped: bool = False  #: no gradient through the attention's weights
    is_gradient_by_count: bool = False  #: a target's gradient is divided by its number of uses
    is_update_exchanged: bool = False  #: the decoder's update gate keeps the candidate
    is_readout_early: bool = False  #: the readout reads the state before a step
    is_reset_early: bool = False  #: the decoder's reset gate multiplies the state, not its product
    label_smoothing: float = 0.0
    is_padding_counted: bool = False  #: labels of padding have a loss, too
    energy_scale: float = 1.0  #: of the energies before their softmax
    is_mask_late: bool = False  #: padding's weights are set to zero behind the softmax
    #: of the backward direction, for the decoder: the one computed 'last', their 'mean', or the one
    #: at the 'end' of the source, which was computed first
    bridged_state: str = "last"
    are_parts_activated: bool = False  #: tanh of query and key each, before they are added
    is_padding_skipped: bool = False  #: the encoder's states stay as they are at padding
    softmax_axis: int = -1  #: of the energies (batch, SOURCE)
    begin: int = BEGIN  #: the decoder's first token

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return source (batch, SOURCE), tokens of the decoder and labels (batch, TARGET), int32.

        The tokens of the decoder are the labels, one step later, after ``begin``.
        """
        rng = np.random.default_rng(SEED + 1)
        source = draw_tokens(rng, SOURCE_VOCAB, SOURCE_LENGTHS)
        labels = draw_tokens(rng, TARGET_VOCAB, TARGET_LENGTHS)
        tokens = np.pad(labels[:, :-1], ((0, 0), (1, 0)), constant_values=self.begin)
        return source, tokens.astype(np.int32), labels


def draw_tokens(rng: np.random.Generator, vocab: int, lengths: tuple[int, ...]) -> np.ndarray:
    """Return sequences of these lengths, int32, with padding behind them."""
    tokens = rng.integers(BEGIN + 1, vocab, (len(lengths), max(lengths))).astype(np.int32)
    for row, length in zip(tokens, lengths, strict=True):
        row[length:] = PADDING
    return tokens


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)

    def add_recurrent(path: str, n_inputs: int) -> None:
        for name, width in (("ih", n_inputs), ("hh", HIDDEN)):
            matrix = weights.rng.standard_normal((3 * HIDDEN, width)) / np.sqrt(width)
            bias = 0.3 * weights.rng.standard_normal(3 * HIDDEN)
            weights[f"{path}.weight_{name}"] = matrix.astype(np.float32)
            weights[f"{path}.bias_{name}"] = bias.astype(np.float32)

    weights.add_table("source.embedding", SOURCE_VOCAB, EMBED)
    weights.add_table("target.embedding", TARGET_VOCAB, EMBED)
    add_recurrent("encoder.forward", EMBED)
    add_recurrent("encoder.backward", EMBED)
    weights.add_linear("bridge", HIDDEN, HIDDEN)
    weights.add_matrix("attention.query", ATTENTION, HIDDEN)
    weights.add_linear("attention.key", ATTENTION, 2 * HIDDEN)
    energy = weights.rng.standard_normal((1, ATTENTION)).astype(np.float32)
    weights["attention.energy.weight"] = energy
    add_recurrent("decoder", EMBED + 2 * HIDDEN)
    weights.add_linear("readout", READOUT, 3 * HIDDEN + EMBED)
    weights.add_linear("head", TARGET_VOCAB, READOUT)
    return Model("nmt", weights)
