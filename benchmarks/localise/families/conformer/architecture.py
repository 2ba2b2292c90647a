"""A Conformer (https://arxiv.org/abs/2005.08100, section 2) in NumPy: sizes, knobs, weights, batch.

Two strided convolutions make one position of four frames. Each block has half a feed-forward,
attention with relative positions (https://arxiv.org/abs/1901.02860, section 3.3), a convolution
module with batch norm, and another half feed-forward. Padding is masked in the scores, and before
the depthwise convolution. Weights:

    subsampling.0, subsampling.1      3x3 convolutions of stride 2 with bias
    projection                        linear: channels and mels, channel by channel, to HIDDEN
    layers.N.: norm1, ffn1.{up,down}, norm2, attention.{q,k,v,o}, attention.position (no bias),
               attention.content_bias and attention.position_bias (HEADS, head size), norm3,
               conv.in (2 * HIDDEN, HIDDEN, 1), conv.depthwise (HIDDEN, 1, KERNEL), conv.norm with
               running mean and variance, conv.out (HIDDEN, HIDDEN, 1), norm4, ffn2.{up,down}, norm5
    head                              linear
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from families.weights import Weights

MELS, CHANNELS, HIDDEN, HEADS, FFN, KERNEL, LAYERS, VOCAB = 16, 8, 32, 4, 48, 7, 2, 20
HEAD_DIM = HIDDEN // HEADS
STRIDE = 4  #: frames of one position
FRAME_LENGTHS, LABEL_LENGTHS = (44, 37, 30), (4, 3, 3)
FRAMES, LABELS = max(FRAME_LENGTHS), max(LABEL_LENGTHS)
SEQ = FRAMES // STRIDE
BLANK = 0  #: label of CTC
MASKED = -10000.0  #: scores of padding
EPS = 1e-5  #: of all norms
MOMENTUM = 0.1  #: share of the batch in the running statistics
SEED = 51


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault.

    Knobs of a block are those of the last one.
    """

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'names' (PyTorch): ESPnet's modules; 'indexed' (PyTorch): the
    #: scores of relative positions are gathered by index, batch norm and products are written out;
    #: 'linear' (MindSpore): linear layers in place of convolutions of one step, gates by split
    variant: str = ""
    half_step: float = 0.5  #: share of the first feed-forward in the sum
    are_gates_first: bool = False  #: the first half of the channels is the gate
    is_conv_causal: bool = False  #: padding only before the sequence
    are_statistics_running: bool = False  #: batch norm does not use those of the batch
    first_frame: int = 0  #: the mask of a position is that of this one of its frames
    activation: str = "silu"  #: of the second feed-forward; or 'relu'
    position_offset: int = 0  #: added to all relative positions, in all blocks
    are_mels_first: bool = False  #: the projection reads mel by mel
    frontend_gradient: float = 1.0  #: the gradient of the projected frames is multiplied by it
    loss_reduction: str = "labels"  #: each loss is divided by its number of labels; or 'sequences'
    score_dim: int = HEAD_DIM  #: scores are divided by its root
    is_position_stopped: bool = False  #: no gradient through the scores of relative positions
    embedding_scale: float = HIDDEN**0.5  #: of the projected frames
    is_convolution_masked: bool = True  #: padding is zero before the depthwise convolution
    are_lengths_floored: bool = False  #: positions of the CTC loss are rounded down
    are_scores_shifted: bool = True  #: scores of relative positions are moved to their keys
    is_past_flipped: bool = True  #: in relative positions the largest distance to the past is first
    blank: int = BLANK  #: label of the CTC loss
    are_sines_first: bool = False  #: in relative positions all sines come before all cosines
    conv_norm: str = "batch"  #: of the convolution module; or 'layer', over the channels
    #: of the strided convolutions: 'symmetric', one around; or 'same': none before and one after
    subsampling_padding: str = "symmetric"
    is_convolution_first: bool = False  #: the convolution module comes before the attention
    #: the gradient of the second feed-forward is multiplied by it; MindSpore only
    step_gradient: float = 1.0
    padding_level: float = 0.0  #: of features behind the last frame
    chunk: int = SEQ  #: attention sees no position behind its own chunk of so many; MindSpore only
    are_logits_normalized: bool = True  #: by a softmax before the CTC loss; PyTorch only

    def block(self, n: int) -> Model:
        """Return the model for block n: only the last one has the knobs of a block."""
        if n == LAYERS - 1:
            return self
        return replace(
            self,
            half_step=0.5,
            are_gates_first=False,
            is_conv_causal=False,
            are_statistics_running=False,
            activation="silu",
            score_dim=HEAD_DIM,
            is_position_stopped=False,
            is_convolution_masked=True,
            are_scores_shifted=True,
            conv_norm="batch",
            is_convolution_first=False,
            step_gradient=1.0,
        )

    def relative_positions(self) -> np.ndarray:
        """Return the sinusoids (2 * SEQ - 1, HIDDEN), float32, of the distances SEQ - 1 downwards.

        Sines and cosines alternate, if ``are_sines_first`` does not say otherwise.
        """
        distances = np.arange(SEQ - 1, -SEQ, -1) + self.position_offset
        if not self.is_past_flipped:
            distances[:SEQ] = distances[:SEQ][::-1].copy()
        frequencies = np.exp(-np.log(10000.0) * np.arange(0, HIDDEN, 2) / HIDDEN)
        angles = np.outer(distances, frequencies)
        axis = 1 if self.are_sines_first else -1
        table = np.stack([np.sin(angles), np.cos(angles)], axis=axis)
        return table.reshape(len(distances), HIDDEN).astype(np.float32)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return features, float32 (batch, FRAMES, MELS), their lengths, int32 (batch,), labels,
        int32 (batch, LABELS), and their lengths. Padding is 0, that of features padding_level.
        """
        rng = np.random.default_rng(SEED + 1)
        features = rng.standard_normal((len(FRAME_LENGTHS), FRAMES, MELS)).astype(np.float32)
        labels = rng.integers(1, VOCAB, (len(LABEL_LENGTHS), LABELS)).astype(np.int32)
        for row, length in zip(features, FRAME_LENGTHS, strict=True):
            row[length:] = self.padding_level
        for row, length in zip(labels, LABEL_LENGTHS, strict=True):
            row[length:] = BLANK
        lengths = (np.array(values, dtype=np.int32) for values in (FRAME_LENGTHS, LABEL_LENGTHS))
        frame_lengths, label_lengths = lengths
        return features, frame_lengths, labels, label_lengths


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    rng = weights.rng
    weights.add_linear("subsampling.0", CHANNELS, 1, 3, 3)
    weights.add_linear("subsampling.1", CHANNELS, CHANNELS, 3, 3)
    weights.add_linear("projection", HIDDEN, CHANNELS * MELS // STRIDE)
    for n in range(LAYERS):
        path = f"layers.{n}"
        for number in (1, 2, 3, 4, 5):
            weights.add_norm(f"{path}.norm{number}", HIDDEN)
        for number in (1, 2):
            weights.add_linear(f"{path}.ffn{number}.up", FFN, HIDDEN)
            weights.add_linear(f"{path}.ffn{number}.down", HIDDEN, FFN)
        for projection in "qkvo":
            weights.add_linear(f"{path}.attention.{projection}", HIDDEN, HIDDEN)
        weights.add_matrix(f"{path}.attention.position", HIDDEN, HIDDEN)
        for bias in ("content_bias", "position_bias"):
            values = 0.5 * rng.standard_normal((HEADS, HEAD_DIM))
            weights[f"{path}.attention.{bias}"] = values.astype(np.float32)
        weights.add_linear(f"{path}.conv.in", 2 * HIDDEN, HIDDEN, 1)
        weights.add_linear(f"{path}.conv.depthwise", HIDDEN, 1, KERNEL)
        weights.add_norm(f"{path}.conv.norm", HIDDEN)
        mean, variance = 0.1 * rng.standard_normal(HIDDEN), rng.uniform(0.2, 0.6, HIDDEN)
        weights[f"{path}.conv.norm.mean"] = mean.astype(np.float32)
        weights[f"{path}.conv.norm.variance"] = variance.astype(np.float32)
        weights.add_linear(f"{path}.conv.out", HIDDEN, HIDDEN, 1)
    weights.add_linear("head", VOCAB, HIDDEN)
    return Model("conformer", weights)
