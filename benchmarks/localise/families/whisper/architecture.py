"""A speech recognizer (https://arxiv.org/abs/2212.04356, section 2.2) in NumPy: sizes, knobs,
weights, constant tables and batch.

Powers of mel bands become logarithms, not more than FLOOR decades below the loudest one of their
recording. Two convolutions with gelu follow, the second one strided, and sinusoids of the position
(https://arxiv.org/abs/1706.03762, section 3.5; sines, then cosines, as tensor2tensor has them). All
sublayers have their norm before them; keys have no bias. The decoder has learned positions, and its
head is the table of its tokens. The loss is the smoothed cross entropy
(https://arxiv.org/abs/1512.00567, section 7). Weights:

    encoder.conv1 (HIDDEN, MELS, 3), encoder.conv2 (HIDDEN, HIDDEN, 3)        with bias
    encoder.N.: norm1, attention.{q,k,v,o}, norm2, mlp.{up,down}
    decoder.tokens (VOCAB, HIDDEN), decoder.positions (POSITIONS, HIDDEN)
    decoder.N.: norm1, attention.{q,k,v,o}, norm2, cross.{q,k,v,o}, norm3, mlp.{up,down}
    encoder.norm, decoder.norm
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

MELS, FRAMES, STRIDE, KERNEL = 16, 32, 2, 3
SOURCE = FRAMES // STRIDE  #: positions of the encoder
HIDDEN, HEADS, FFN, LAYERS = 32, 4, 96, 2
HEAD_DIM = HIDDEN // HEADS
VOCAB, POSITIONS = 50, 12
FRAME_LENGTHS, TARGET_LENGTHS = (32, 24, 28), (9, 6, 7)
BATCH, TARGET = len(TARGET_LENGTHS), max(TARGET_LENGTHS)
#: Decades: mean of the bands' powers in each recording, and their deviation.
LEVELS, LEVEL_DEVIATION = (1.0, -2.5, -1.0), 1.2
SMALLEST_POWER, FLOOR = 1e-10, 8.0
END, BEGIN = 0, 1  #: tokens
IGNORED = -100  #: label of padding
SMOOTHING = 0.1
BASE = 10000.0  #: of the sinusoids
EPS = 1e-5
SEED = 181


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'fused' (PyTorch): one layer for queries, keys and values,
    #: fused attention, einsum for the head, loss from logarithms; 'written' (MindSpore): norms and
    #: gelu in plain arithmetic, batched products, the framework's cross entropy
    variant: str = ""
    peak: str = "recording"  #: powers are limited by the loudest one of it; or of the 'batch'
    conv_padding: str = "both"  #: sides of the second convolution; or 'end', as by pad_mode same
    conv_activation: str = "gelu"  #: of both convolutions; or 'relu'
    frequency_divisor: int = HIDDEN // 2 - 1  #: exponents of BASE are numbers divided by it
    score_scale: float = HEAD_DIM**-0.5  #: of all attention scores
    are_cross_heads_moved: bool = True  #: behind the positions, before they are joined
    norm_type: str = "float32"  #: of the encoder's last norm; or 'float16'
    smoothing_classes: int = VOCAB  #: that share SMOOTHING; one less: all but the label
    is_head_stopped: bool = False  #: no gradient from the head to the table of tokens
    position_gradient: float = 1.0  #: the gradient of the learned positions is multiplied by it
    log_base: float = 10.0  #: of the powers' logarithms; or e
    first_position: int = 0  #: row of the learned positions that the first token has
    padding_feature: str = "silence"  #: of frames behind a recording; or 'zero'
    is_end_ignored: bool = False  #: labels that are END do not count, as if they were padding
    is_cache_stopped: bool = False  #: no gradient from keys and values of the last cross attention
    embedding_scale: float = 1.0  #: embedded tokens are multiplied by it; MindSpore only
    is_cross_causal: bool = False  #: tokens see positions up to their own number; PyTorch only
    is_begin_doubled: bool = False  #: tokens and labels have one BEGIN more in front of them
    are_sinusoids_alternating: bool = False  #: a sine, its cosine, the next sine and so on
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(
            learning_rate=1.5e-3, weight_decay=0.1, beta2=0.98, clip=1.0
        )
    )

    @property
    def label_smoothing(self) -> float:
        """Return the share that all classes get, the label included."""
        return SMOOTHING * VOCAB / self.smoothing_classes

    def sinusoids(self) -> np.ndarray:
        """Return the positions of the encoder, float32 (SOURCE, HIDDEN): sines, then cosines."""
        frequencies = BASE ** (-np.arange(HIDDEN // 2) / self.frequency_divisor)
        angles = np.outer(np.arange(SOURCE), frequencies)
        parts = np.sin(angles), np.cos(angles)
        if self.are_sinusoids_alternating:
            return np.stack(parts, axis=2).reshape(SOURCE, HIDDEN).astype(np.float32)
        return np.concatenate(parts, axis=1).astype(np.float32)

    def frames(self) -> np.ndarray:
        """Return float32 (BATCH, 1, FRAMES), 0 for those behind a recording."""
        is_frame = np.arange(FRAMES) < np.reshape(FRAME_LENGTHS, (BATCH, 1, 1))
        return is_frame.astype(np.float32)

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return powers, float32 (batch, MELS, FRAMES), tokens of the decoder and labels, int32
        (batch, TARGET).

        Powers of padding are 0, its labels are IGNORED. A label is the token one step later, and
        END behind the last one.
        """
        rng = np.random.default_rng(SEED + 1)
        bands = rng.standard_normal((BATCH, MELS, 1))
        cells = rng.standard_normal((BATCH, MELS, FRAMES))
        decades = LEVEL_DEVIATION * (0.6 * bands + 0.8 * cells) + np.reshape(LEVELS, (BATCH, 1, 1))
        powers = (10.0**decades).astype(np.float32)
        for recording, length in zip(powers, FRAME_LENGTHS, strict=True):
            recording[:, length:] = 0
        tokens = rng.integers(BEGIN + 1, VOCAB, (BATCH, TARGET)).astype(np.int32)
        tokens[:, 0] = BEGIN
        labels = np.full((BATCH, TARGET), IGNORED, dtype=np.int32)
        for n, length in enumerate(TARGET_LENGTHS):
            tokens[n, length:] = END
            labels[n, : length - 1] = tokens[n, 1:length]
            labels[n, length - 1] = IGNORED if self.is_end_ignored else END
        if self.is_begin_doubled:
            begin = np.full((BATCH, 1), BEGIN, dtype=np.int32)
            tokens, labels = (
                np.concatenate([begin, rows[:, :-1]], axis=1) for rows in (tokens, labels)
            )
        return powers, tokens, labels


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)

    def add_attention(path: str) -> None:
        for projection in "qvo":
            weights.add_linear(f"{path}.{projection}", HIDDEN, HIDDEN)
        weights.add_matrix(f"{path}.k", HIDDEN, HIDDEN)

    weights.add_linear("encoder.conv1", HIDDEN, MELS, KERNEL)
    weights.add_linear("encoder.conv2", HIDDEN, HIDDEN, KERNEL)
    weights.add_table("decoder.tokens", VOCAB, HIDDEN, deviation=0.25)
    weights.add_table("decoder.positions", POSITIONS, HIDDEN, deviation=0.2)
    for stack, sublayers in (("encoder", ("attention",)), ("decoder", ("attention", "cross"))):
        for n in range(LAYERS):
            for number, sublayer in enumerate(sublayers, 1):
                weights.add_norm(f"{stack}.{n}.norm{number}", HIDDEN)
                add_attention(f"{stack}.{n}.{sublayer}")
            weights.add_norm(f"{stack}.{n}.norm{len(sublayers) + 1}", HIDDEN)
            weights.add_linear(f"{stack}.{n}.mlp.up", FFN, HIDDEN)
            weights.add_linear(f"{stack}.{n}.mlp.down", HIDDEN, FFN)
        weights.add_norm(f"{stack}.norm", HIDDEN)
    return Model("whisper", weights)
