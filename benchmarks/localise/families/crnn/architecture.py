"""A text-line recognizer in NumPy: sizes, knobs, weights and batch.

The CRNN of https://arxiv.org/abs/1507.05717 with the joint losses of
https://arxiv.org/abs/1609.06773: convolutions without bias, each with batch norm, rectifier and a
pooling, which halves the height and, in the first stage only, the width. Behind each of them the
padding is set to zero. A column's channels and rows are one vector, channel by channel; a linear
layer and a bidirectional LSTM read them from left to right. LSTMs do not read padding. Three heads:

    ctc        a linear layer, and CTC: each text's loss divided by its characters, their mean
    decoder    an LSTM cell that begins with the last states of both directions behind a linear
               layer and tanh, and reads the characters so far. Attention as in
               https://arxiv.org/abs/1506.07503: energy(tanh(key(states) + query(hidden) +
               location(conv(sum of its own weights so far)))). Cross entropy of each next
               character; padding is no target
    length     a linear layer of the columns' mean; smooth L1 loss of the number of characters

The loss is CTC_WEIGHT * ctc + (1 - CTC_WEIGHT) * decoder + LENGTH_WEIGHT * length.

Weights are float32, linear ones (out, in); those of LSTMs have the gates i, f, g, o:

    stages.N.weight (out, in, 3, 3), stages.N.norm
    sequence
    lstm.{forward, backward}, decoder: {weight_ih, weight_hh, bias_ih, bias_hh}
    ctc, length
    decoder.{start, embedding, out}      out reads the hidden state, then the context
    attention.key, attention.{query, location, energy} without bias
    attention.conv.weight (FILTERS, 1, KERNEL)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

WIDTHS, LENGTHS = (32, 27, 23, 18), (5, 4, 4, 3)  #: of each image in pixels, and of its text
BATCH, HEIGHT, WIDTH = len(WIDTHS), 16, max(WIDTHS)
TEXT, STEPS = max(LENGTHS), max(LENGTHS) + 1  #: characters, and those with the end of the text
CHANNELS = (8, 10, 12)
POOLS = ((2, 2), (2, 1), (2, 1))  #: height and width
COLUMNS, ROWS = WIDTH // 2, HEIGHT // 8  #: behind the convolutions
INPUT, HIDDEN = 17, 11  #: of the LSTM
ATTENTION, FILTERS, KERNEL, DECODER, EMBED = 15, 4, 5, 13, 9
BLANK = PAD = 0  #: label of CTC, target without a loss
CHARACTERS = 11  #: from 1 on
CLASSES = CHARACTERS + 1  #: of CTC
BOUNDARY, VOCAB = CLASSES, CLASSES + 1  #: begin and end of a text, classes of the decoder
CTC_WEIGHT, LENGTH_WEIGHT = 0.3, 0.1
EPS = 1e-5
DIRECTIONS = ("forward", "backward")
LSTM_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
SEED = 1507


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): norms, pooling, LSTMs and losses in
    #: plain arithmetic, inputs of an LSTM joined; 'stepped' (PyTorch): other names, cells step by
    #: step, functions and einsum in place of modules, losses of gathered logarithms
    variant: str = ""
    are_steps_reshaped: bool = False  #: CTC's input, not transposed; MindSpore only
    is_norm_last: bool = False  #: behind the rectifier, in the last stage; MindSpore only
    masked_score: float = -1e9  #: of padding in the attention; MindSpore only
    are_keys_stopped: bool = False  #: no gradient from keys to states; MindSpore only
    ctc_gradient: float = 1.0  #: factor of the gradient that CTC returns; MindSpore only
    is_start_of_last_column: bool = False  #: the decoder's, in both directions; PyTorch only
    are_all_columns_aligned: bool = False  #: CTC is not told the widths; PyTorch only
    are_locations_summed: bool = True  #: else the last step's weights are read; PyTorch only
    is_energy_gradient_of_input: bool = False  #: tanh's derivative takes its input; PyTorch only
    ctc_weight: float = CTC_WEIGHT  #: PyTorch only
    are_columns_floored: bool = False  #: of images with an odd width; PyTorch only
    is_text_divided: bool = True  #: CTC's loss of a text, by its characters; MindSpore only
    is_padding_read: bool = False  #: by LSTMs, though it is no output of theirs; PyTorch only
    is_edge_repeated: bool = False  #: the last column of an image is its padding

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return images, float32 (BATCH, 1, HEIGHT, WIDTH), and int32 arrays.

        Those are widths (BATCH,), characters (BATCH, TEXT) and their numbers (BATCH,), what the
        decoder reads and what it is to return (BATCH, STEPS).
        """
        rng = np.random.default_rng(SEED + 1)
        rows, columns = np.arange(HEIGHT)[:, None], np.arange(WIDTH)
        phases = rng.uniform(0, 2 * np.pi, (BATCH, 2, 1, 1))
        strokes = np.sin(0.9 * columns + phases[:, 0]) * np.cos(0.5 * rows + phases[:, 1])
        images = strokes + 0.4 * rng.standard_normal((BATCH, HEIGHT, WIDTH))
        for image, width in zip(images, WIDTHS, strict=True):
            image[:, width:] = image[:, width - 1 : width] if self.is_edge_repeated else 0
        labels = rng.integers(1, CHARACTERS + 1, (BATCH, TEXT))
        inputs, targets = (np.full((BATCH, STEPS), value) for value in (BOUNDARY, PAD))
        for n, length in enumerate(LENGTHS):
            labels[n, length:] = PAD
            targets[n, length] = BOUNDARY
        inputs[:, 1:] = labels
        targets[:, :TEXT] += labels
        integers = (np.array(WIDTHS), labels, np.array(LENGTHS), inputs, targets)
        return images[:, None].astype(np.float32), *(x.astype(np.int32) for x in integers)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    n_in = 1
    for n, channels in enumerate(CHANNELS):
        weights.add_matrix(f"stages.{n}", channels, n_in, 3, 3)
        weights.add_norm(f"stages.{n}.norm", channels)
        n_in = channels
    weights.add_linear("sequence", INPUT, n_in * ROWS)
    for direction in DIRECTIONS:
        _add_lstm(weights, f"lstm.{direction}", INPUT, HIDDEN)
    weights.add_linear("ctc", CLASSES, 2 * HIDDEN)
    weights.add_linear("length", 1, 2 * HIDDEN)
    weights.add_linear("decoder.start", DECODER, 2 * HIDDEN)
    weights.add_table("decoder.embedding", VOCAB, EMBED)
    _add_lstm(weights, "decoder", EMBED + 2 * HIDDEN, DECODER)
    weights.add_linear("decoder.out", VOCAB, DECODER + 2 * HIDDEN)
    weights.add_linear("attention.key", ATTENTION, 2 * HIDDEN)
    weights.add_matrix("attention.query", ATTENTION, DECODER)
    weights.add_table("attention.conv", FILTERS, 1, KERNEL)
    weights.add_matrix("attention.location", ATTENTION, FILTERS)
    weights.add_table("attention.energy", 1, ATTENTION, deviation=2.0)
    return Model("crnn", weights)


def _add_lstm(weights: Weights, path: str, n_in: int, n_hidden: int) -> None:
    for name, width in (("ih", n_in), ("hh", n_hidden)):
        matrix = 1.7 * weights.rng.standard_normal((4 * n_hidden, width)) / np.sqrt(width)
        bias = 0.2 * weights.rng.standard_normal(4 * n_hidden)
        weights[f"{path}.weight_{name}"] = matrix.astype(np.float32)
        weights[f"{path}.bias_{name}"] = bias.astype(np.float32)
