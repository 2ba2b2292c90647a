"""A neural transducer for speech in NumPy: sizes, knobs, weights, constants and batch.

In the manner of Graves' transducer (https://arxiv.org/abs/1211.3711) as toolkits for streaming
train it: an encoder whose attention sees chunks (https://arxiv.org/abs/2012.05481), a second,
simple loss on the sum of two projections (https://arxiv.org/abs/2206.13236), and FastEmit
(https://arxiv.org/abs/2010.11148).

Features are logarithms of MELS powers for each frame, padded with zeros. Each recording's mels are
normalized by their mean and deviation over its frames; padding becomes 0. SpecAugment makes frames
and mels 0 of which the batch has the first one and the number. Two convolutions with kernel 3,
stride 2 and relu leave TIMES steps, a step's channels, each with all its mels, go through a linear
layer. A layer of the encoder is

    x = x + out(attention(norm1(x)));  x = x + down(silu(up(norm2(x))))

with a norm behind the last one. A step sees all of its own chunk of CHUNK steps and the LEFT chunks
before it, without padding. A score gets a bias from a table of offsets, key less query, for each
head; the first row is that of the earliest key a step can see.

The predictor embeds the start, which is the blank, and all labels, and reads them by a GRU from a
state of zeros and a norm. The state behind u labels is that of row u. The joiner adds projections
of steps and rows, and has tanh and a linear layer for VOCAB classes. The log-likelihood is that of
the lattice of blanks (steps, rows) and labels (steps, rows - 1), the last blank included.

FastEmit has no value: the gradient of labels' log-probabilities of the joiner's lattice is
multiplied by 1 + FASTEMIT. The simple loss has the lattice of am + lm, projections of steps and
rows to VOCAB classes, less their logarithm of summed exponentials, times 1 - LM_SCALE, plus
LM_SCALE times the log-softmax of lm. A head for frames has a cross entropy with smoothed labels
to an alignment, mean over all steps without padding. The loss is

    transducer + SIMPLE_WEIGHT * simple + FRAME_WEIGHT * frames

where the first two are means over recordings of the negative log-likelihood per label. Weights:

    subsampling.{0,1}                     (out, in, 3, 3), time before mel, with bias
    subsampling.out                       linear with bias
    layers.N.norm1, norm2, encoder.norm   with bias
    layers.N.attention.q, k, v, out       linear, the last one with bias
    layers.N.attention.table              (OFFSETS, HEADS)
    layers.N.up, down                     linear with bias
    predictor.embedding                   (VOCAB, EMBED)
    predictor.ih, hh                      linear with bias; rows are reset, update, candidate
    predictor.norm                        with bias
    joiner.encoder, predictor, out        linear, with bias except the second
    simple.am, simple.lm, frames.out      linear with bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

FRAME_LENGTHS = (40, 33, 26, 37)  #: of recordings
LABEL_LENGTHS = (5, 3, 4, 2)
BATCH, FRAMES, LABELS = len(FRAME_LENGTHS), max(FRAME_LENGTHS), max(LABEL_LENGTHS)
MELS, CHANNELS = 15, 6
TIMES, SUBSAMPLED_MELS = 9, 3  #: behind the convolutions
SUBSAMPLING = 4
HIDDEN, HEADS, FFN, LAYERS = 16, 4, 24, 2
HEAD_DIM = HIDDEN // HEADS
CHUNK, LEFT = 3, 1
EARLIEST, LATEST = -(LEFT + 1) * CHUNK + 1, CHUNK - 1  #: offsets of keys that a step can see
OFFSETS = LATEST - EARLIEST + 1
EMBED, STATE = 10, 14
ROWS = LABELS + 1  #: of the lattice
JOINT, VOCAB, BLANK = 20, 12, 0
MASKED = -1e9  #: score of what is hidden
IGNORED = -100  #: class of a step of padding
EPS, DEVIATION_EPS = 1e-5, 1e-5
FASTEMIT = 0.02
LM_SCALE, SIMPLE_WEIGHT, FRAME_WEIGHT, SMOOTHING = 0.25, 0.5, 0.3, 0.1
SEED = 1211


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): norms, softmax, losses in plain
    #: arithmetic, labels by one-hot vectors, one matrix for several layers, the lattice by its
    #: diagonals; 'parallel' (PyTorch): other names, fused attention, the GRU step by step, both
    #: lattices at once, a time's row by a cumulative sum
    variant: str = ""
    is_masked_first: bool = False  #: SpecAugment is before the normalization; MindSpore only
    is_state_reset_first: bool = False  #: before the product with it; MindSpore only
    has_last_blank: bool = True  #: MindSpore only
    fastemit: float = FASTEMIT  #: MindSpore only
    is_transpose_forgotten: bool = False  #: before channels and mels are joined; PyTorch only
    is_mean_of_labels: bool = False  #: not of recordings; PyTorch only
    is_joint_gradient_mean: bool = False  #: over rows, not a sum; PyTorch only
    padding_index: int | None = None  #: of the embedding; PyTorch only
    left_chunks: int = LEFT
    are_offsets_negated: bool = False  #: query less key
    alignment_frame: int = 3  #: of the SUBSAMPLING frames of a step

    def mask(self) -> np.ndarray:
        """Return what steps can see if nothing is padding, bool (TIMES, TIMES)."""
        chunks = np.arange(TIMES) // CHUNK
        distances = chunks[:, None] - chunks
        return (distances >= 0) & (distances <= self.left_chunks)

    def offset_index(self) -> np.ndarray:
        """Return rows of the table of offsets, int32 (TIMES, TIMES), of queries and keys."""
        steps = np.arange(TIMES)
        offsets = steps - steps[:, None]
        if self.are_offsets_negated:
            offsets = -offsets
        return (np.clip(offsets, EARLIEST, LATEST) - EARLIEST).astype(np.int32)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return features, lengths, masks, labels, their lengths and alignments.

        Features are float32 (BATCH, FRAMES, MELS), lengths are numbers of frames, int32 (BATCH,).
        Masks of mels and of frames are first ones and numbers, int32 (BATCH, masks, 2). Labels are
        int32 (BATCH, LABELS), padded with the blank, with lengths int32 (BATCH,). Alignments are
        classes of steps, int32 (BATCH, TIMES).
        """
        rng = np.random.default_rng(SEED + 1)
        features = np.zeros((BATCH, FRAMES, MELS))
        mel_masks = np.zeros((BATCH, 1, 2), np.int32)
        time_masks = np.zeros((BATCH, 2, 2), np.int32)
        labels = np.full((BATCH, LABELS), BLANK, np.int32)
        alignments = np.full((BATCH, TIMES), IGNORED, np.int32)
        patterns = rng.standard_normal((VOCAB, MELS))
        for n, (length, n_labels) in enumerate(zip(FRAME_LENGTHS, LABEL_LENGTHS, strict=True)):
            labels[n, :n_labels] = rng.integers(1, VOCAB, n_labels)
            frames = _draw_alignment(rng, labels[n, :n_labels], length)
            noise = rng.standard_normal((length, MELS))
            tilt = np.linspace(-3, -7, MELS)
            features[n, :length] = tilt + 1.5 * patterns[frames] + noise
            steps = frames[self.alignment_frame :: SUBSAMPLING][: count_steps(length)]
            alignments[n, : len(steps)] = steps
            width = rng.integers(2, 4)
            mel_masks[n, 0] = rng.integers(0, MELS - width), width
            for mask in time_masks[n]:
                width = rng.integers(2, 6)
                mask[:] = rng.integers(0, length - width), width
        return (
            features.astype(np.float32),
            np.array(FRAME_LENGTHS, np.int32),
            mel_masks,
            time_masks,
            labels,
            np.array(LABEL_LENGTHS, np.int32),
            alignments,
        )


def count_steps(frames: int) -> int:
    """Return the number of steps behind the convolutions."""
    return ((frames - 1) // 2 - 1) // 2


def _draw_alignment(rng: np.random.Generator, labels: np.ndarray, length: int) -> np.ndarray:
    """Return the class of each frame: labels in their order, with blanks around them."""
    classes = np.full(2 * len(labels) + 1, BLANK)
    classes[1::2] = labels
    cuts = rng.choice(np.arange(1, length), len(classes) - 1, replace=False)
    durations = np.diff(np.concatenate([[0], np.sort(cuts), [length]]))
    return np.repeat(classes, durations)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_linear("subsampling.0", CHANNELS, 1, 3, 3)
    weights.add_linear("subsampling.1", CHANNELS, CHANNELS, 3, 3)
    weights["subsampling.1.weight"] *= np.float32(1.5)
    weights.add_linear("subsampling.out", HIDDEN, CHANNELS * SUBSAMPLED_MELS)
    weights["subsampling.out.weight"] *= np.float32(1.5)
    for n in range(LAYERS):
        path = f"layers.{n}"
        weights.add_norm(f"{path}.norm1", HIDDEN)
        for name in ("q", "k", "v"):
            weights.add_matrix(f"{path}.attention.{name}", HIDDEN, HIDDEN)
        weights.add_linear(f"{path}.attention.out", HIDDEN, HIDDEN)
        weights.add_table(f"{path}.attention.table", OFFSETS, HEADS)
        weights.add_norm(f"{path}.norm2", HIDDEN)
        weights.add_linear(f"{path}.up", FFN, HIDDEN)
        weights.add_linear(f"{path}.down", HIDDEN, FFN)
    weights.add_norm("encoder.norm", HIDDEN)
    weights.add_table("predictor.embedding", VOCAB, EMBED)
    weights.add_linear("predictor.ih", 3 * STATE, EMBED)
    weights.add_linear("predictor.hh", 3 * STATE, STATE)
    weights.add_norm("predictor.norm", STATE)
    weights.add_linear("joiner.encoder", JOINT, HIDDEN)
    weights.add_matrix("joiner.predictor", JOINT, STATE)
    weights.add_linear("joiner.out", VOCAB, JOINT)
    weights["joiner.out.weight"] *= np.float32(1.5)
    weights.add_linear("simple.am", VOCAB, HIDDEN)
    weights.add_linear("simple.lm", VOCAB, STATE)
    weights.add_linear("frames.out", VOCAB, HIDDEN)
    return Model("transducer", weights)
