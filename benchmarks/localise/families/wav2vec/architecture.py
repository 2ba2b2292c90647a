"""A self-supervised speech encoder (https://arxiv.org/abs/2006.11477, sections 2 and 3) in NumPy:
sizes, knobs, weights and batch.

Strided convolutions with gelu read the waveform; the first one has a group norm with one group per
channel. Features are normed and projected; masked frames become a learned vector, and those of
padding zero. A grouped convolution with weight norm (https://arxiv.org/abs/1602.07868, section 2),
one magnitude per tap, gives positions: half of its even kernel on both sides, and the last frame is
cut. Its gelu is added, and the sum is normed. Layers have their norms behind the sums. In each
group, the quantizer takes one codeword by logits, noise and temperature; the gradient passes
straight through to the softmax. The loss picks the own quantized frame among those of other masked
frames by cosine similarity, plus DIVERSITY_WEIGHT times the share of codewords that is not used.
Weights:

    conv.N (CHANNELS, inputs, kernel)       without bias
    conv.norm, projection.norm              norms of CHANNELS
    projection                              linear: CHANNELS to HIDDEN
    masked                                  vector of HIDDEN
    position.direction (HIDDEN, HIDDEN / POSITION_GROUPS, POSITION_KERNEL), position.magnitude (1,
                                            1, POSITION_KERNEL), position.bias
    norm                                    behind the positions
    layers.N.: attention.{q,k,v,o}, norm1, ffn.{up,down}, norm2
    quantizer                               linear: CHANNELS to BOOKS * CODES
    codewords (BOOKS, CODES, CODE_DIM / BOOKS)
    project_hidden, project_codes           linear: to TARGET_DIM
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

KERNELS, STRIDES = (10, 3, 2), (5, 2, 2)
CHANNELS, HIDDEN, HEADS, FFN, LAYERS = 24, 32, 4, 64, 2
HEAD_DIM = HIDDEN // HEADS
POSITION_KERNEL, POSITION_GROUPS = 8, 4
BOOKS, CODES, CODE_DIM, TARGET_DIM = 2, 5, 32, 16
SAMPLE_LENGTHS = (640, 548, 604)
BATCH, SAMPLES = len(SAMPLE_LENGTHS), max(SAMPLE_LENGTHS)
LOUDNESS = 0.3  #: deviation of the samples
SPAN, SPANS, NEGATIVES = 3, 3, 6
MASKED = SPAN * SPANS  #: frames of a recording
EPS = 1e-5  #: of all norms
GUMBEL_TEMPERATURE, TEMPERATURE = 2.0, 0.1
DIVERSITY_WEIGHT = 0.1
SMALLEST_PROBABILITY = 1e-7  #: added in the logarithm of the perplexity
SEED = 211


def count_frames(n_samples: int) -> int:
    """Return how many frames the convolutions make."""
    for kernel, stride in zip(KERNELS, STRIDES, strict=True):
        n_samples = (n_samples - kernel) // stride + 1
    return n_samples


FRAMES = count_frames(SAMPLES)


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'fairseq' (PyTorch): its modules, time before the batch in the
    #: encoder, batched products, logits of masked frames only; 'written' (MindSpore): norms, gelu
    #: and cross entropy in plain arithmetic, positions tap by tap, codewords by a product
    variant: str = ""
    norm_groups: int = CHANNELS  #: of the norm behind the first convolution
    magnitude_axes: tuple[int, ...] = (0, 1)  #: of the direction, over which its norm is taken
    gelu: str = "erf"  #: form of the gelu behind convolutions; or 'tanh'
    has_position_bias: bool = True
    are_equal_negatives_masked: bool = True  #: those with the codewords of the own frame
    are_all_frames_counted: bool = False  #: the sum of losses is divided by all frames
    position_padding: str = "before"  #: side with the longer padding; or 'behind'
    is_norm_behind_layers: bool = False  #: the encoder's norm is behind its layers
    is_straight_through: bool = True  #: else the choice of codewords has no gradient
    temperature: float = TEMPERATURE  #: cosine similarities are divided by it
    is_padding_hidden: bool = True  #: its frames are zeros, and no keys
    feature_gradient: float = 1.0  #: factor of the gradient of the convolutions
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(learning_rate=5e-4, eps=1e-6, beta2=0.98)
    )

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return waveforms, float32 (batch, SAMPLES), their lengths, int32 (batch,), mask, int32
        (batch, FRAMES), negatives, int32 (batch, FRAMES, NEGATIVES), and noise, float32 (batch,
        FRAMES, BOOKS, CODES).

        Padding is 0. Masked frames are 1 in the mask. Negatives are indices of other masked frames
        of the same recording, in the frames of the whole batch; those of unmasked frames are the
        first frame of the recording.
        """
        rng = np.random.default_rng(SEED + 1)
        time = np.arange(SAMPLES)
        waveforms = rng.standard_normal((BATCH, SAMPLES))
        for waveform, length in zip(waveforms, SAMPLE_LENGTHS, strict=True):
            periods, phases = rng.uniform(8, 60, (3, 1)), rng.uniform(0, 2 * np.pi, (3, 1))
            waveform[:] += np.sin(2 * np.pi * time / periods + phases).sum(axis=0)
            waveform[length:] = 0
        mask = np.zeros((BATCH, FRAMES), dtype=np.int32)
        negatives = np.zeros((BATCH, FRAMES, NEGATIVES), dtype=np.int32)
        for n, length in enumerate(SAMPLE_LENGTHS):
            starts = rng.choice(count_frames(length) // (SPAN + 1), SPANS, replace=False)
            for start in starts * (SPAN + 1):
                mask[n, start : start + SPAN] = 1
            masked_frames = np.flatnonzero(mask[n])
            for frame in masked_frames:
                others = masked_frames[masked_frames != frame]
                negatives[n, frame] = rng.choice(others, NEGATIVES, replace=False)
            negatives[n] += n * FRAMES
        noise = rng.gumbel(size=(BATCH, FRAMES, BOOKS, CODES))
        scaled = (LOUDNESS / 2 * waveforms).astype(np.float32)
        lengths = np.array(SAMPLE_LENGTHS, dtype=np.int32)
        return scaled, lengths, mask, negatives, noise.astype(np.float32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    rng = weights.rng
    for n, kernel in enumerate(KERNELS):
        weights.add_matrix(f"conv.{n}", CHANNELS, CHANNELS if n else 1, kernel)
    weights.add_norm("conv.norm", CHANNELS)
    weights.add_norm("projection.norm", CHANNELS)
    weights.add_linear("projection", HIDDEN, CHANNELS)
    weights["masked"] = rng.uniform(0, 1, HIDDEN).astype(np.float32)
    shape = (HIDDEN, HIDDEN // POSITION_GROUPS, POSITION_KERNEL)
    weights["position.direction"] = (0.2 * rng.standard_normal(shape)).astype(np.float32)
    magnitude = rng.uniform(1.5, 3, (1, 1, POSITION_KERNEL))
    weights["position.magnitude"] = magnitude.astype(np.float32)
    weights.add_bias("position", HIDDEN)
    weights.add_norm("norm", HIDDEN)
    for n in range(LAYERS):
        path = f"layers.{n}"
        for name in "qkvo":
            weights.add_linear(f"{path}.attention.{name}", HIDDEN, HIDDEN)
        weights.add_norm(f"{path}.norm1", HIDDEN)
        weights.add_linear(f"{path}.ffn.up", FFN, HIDDEN)
        weights.add_linear(f"{path}.ffn.down", HIDDEN, FFN)
        weights.add_norm(f"{path}.norm2", HIDDEN)
    weights.add_linear("quantizer", BOOKS * CODES, CHANNELS)
    codewords = rng.uniform(-1, 1, (BOOKS, CODES, CODE_DIM // BOOKS))
    weights["codewords"] = codewords.astype(np.float32)
    weights.add_linear("project_hidden", TARGET_DIM, HIDDEN)
    weights.add_linear("project_codes", TARGET_DIM, CODE_DIM)
    return Model("wav2vec", weights)
