"""A FastSpeech 2 (https://arxiv.org/abs/2006.04558, section 2) in NumPy: sizes, knobs, weights.

Feed-forward transformer blocks with convolutions (https://arxiv.org/abs/1905.09263, section 3.1)
encode phonemes. The speaker is added. Predictors of convolutions with relu and layer norm give the
logarithm of the durations, pitch and energy of each phoneme. True pitch and energy are quantized,
embedded and added; each phoneme is repeated for the frames of its duration, and blocks of the same
kind decode the frames. A postnet of convolutions with batch norm and tanh (https://arxiv.org/abs/
1712.05884, section 2.2) adds to the projected mels. Blocks have their norms after the sums. Padding
is masked in the scores, and zero behind each half of a block. Weights:

    embedding.weight (VOCAB, HIDDEN), row PADDING is 0; speakers.weight (SPEAKERS, HIDDEN)
    encoder.N, decoder.N:  attention.{q,k,v,o} linear, norm1, ffn.up (FFN, HIDDEN, KERNEL), ffn.down
                           (HIDDEN, FFN, 1), norm2
    duration, pitch, energy:  conv.{0,1} (PREDICTOR, channels, 3), norm.{0,1}, out, linear to 1
    pitch.table.weight, energy.table.weight (BINS, HIDDEN)
    mels                   linear
    postnet.N.weight       convolution without bias, and postnet.N.norm, a batch norm
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

VOCAB, SPEAKERS, HIDDEN, HEADS, FFN, KERNEL, LAYERS = 24, 4, 24, 2, 40, 5, 2
HEAD_DIM = HIDDEN // HEADS
PREDICTOR, BINS, MELS = 16, 12, 10
POSTNET, POSTNET_KERNEL, POSTNET_LAYERS = 14, 5, 3
PADDING = 0  #: phoneme
TOKEN_LENGTHS = (9, 7, 6)
MAX_DURATION = 4
BATCH, TOKENS = len(TOKEN_LENGTHS), max(TOKEN_LENGTHS)
MAX_POSITIONS = TOKENS * MAX_DURATION
LAST_BOUNDARY = 2.5  #: of the bins of normalized pitch and energy; the first one is its negative
VARIANCE_WEIGHT = 0.1  #: of the losses of durations, pitch and energy, each
EPS, MOMENTUM = 1e-5, 0.1
WARMUP = 40
SEED = 171


def compute_noam_rate(step: int, dimension: int) -> float:
    """Return the learning rate of a step (https://arxiv.org/abs/1706.03762, equation 3)."""
    return dimension**-0.5 * min(step**-0.5, step * WARMUP**-1.5)


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'aligned' (PyTorch): one projection for q, k and v and fused
    #: attention, phonemes repeated by a matrix, sums in place of selected elements; 'written'
    #: (MindSpore): norms in plain arithmetic, heads in the batch, linear layers for kernels of one
    #: step, phonemes gathered by frame
    variant: str = ""
    is_norm_first: bool = False  #: norm, then relu, in the predictors
    is_last_squashed: bool = False  #: tanh behind the last convolution of the postnet too
    are_sines_first: bool = False  #: positions: all sines, then all cosines, not in turn
    is_projection_half: bool = False  #: the projection to mels in float16
    is_energy_early: bool = False  #: energy is predicted from what has no pitch yet
    first_bin: int = 0  #: row of the values below the first boundary
    are_padded_frames_counted: bool = False  #: mel losses are divided by the number of all frames
    mel_loss: str = "l1"  #: of both mels; or 'mse'
    duration_gradient: float = 1.0  #: the gradient from the durations is multiplied by it
    is_postnet_stopped: bool = False  #: no gradient through the postnet to what it reads
    are_frames_masked: bool = True  #: padding gets no attention in the decoder
    embedding_scale: float = 1.0  #: of what the positions are added to
    has_predictor_bias: bool = True  #: of the convolutions of the predictors
    is_postnet_added: bool = True  #: to the mels that it reads
    first_position: int = 0  #: of phonemes and of frames
    min_duration: int = 0  #: targets are log(max(d, it)) if it is positive, not log(d + 1)
    is_speaker_late: bool = False  #: added behind the predictors, in front of the frames
    postnet_eps: float = EPS  #: of its batch norms
    has_running_statistics: bool = False  #: the postnet's batch norms use them
    has_first_gradient: bool = False  #: a phoneme gets the gradient of its first frame only
    is_pitch_stopped: bool = False  #: no gradient from the pitch's predictor; MindSpore only
    is_padding_zeroed: bool = True  #: behind each half of a block; PyTorch only
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(
            kind="adam",
            learning_rate=compute_noam_rate(1, HIDDEN),
            eps=1e-9,
            beta2=0.98,
            weight_decay=0.0,
            clip=1.0,
        )
    )

    def positions(self) -> np.ndarray:
        """Return the table of positions, float32 (1, MAX_POSITIONS, HIDDEN)."""
        frequencies = 10000.0 ** (-np.arange(0, HIDDEN, 2) / HIDDEN)
        angles = np.outer(self.first_position + np.arange(MAX_POSITIONS), frequencies)
        parts = np.sin(angles), np.cos(angles)
        if self.are_sines_first:
            table = np.concatenate(parts, axis=1)
        else:
            table = np.stack(parts, axis=-1).reshape(MAX_POSITIONS, HIDDEN)
        return table[None].astype(np.float32)

    def boundaries(self) -> np.ndarray:
        """Return the boundaries of the bins, float32 (BINS - 1,)."""
        return np.linspace(-LAST_BOUNDARY, LAST_BOUNDARY, BINS - 1).astype(np.float32)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return phonemes, int32 (BATCH, TOKENS), speakers, int32 (BATCH,), durations, int32
        (BATCH, TOKENS), pitch and energy, float32 (BATCH, TOKENS), and mels, float32 (BATCH,
        frames, MELS). Padding is 0 everywhere.
        """
        rng = np.random.default_rng(SEED + 1)
        is_token = np.arange(TOKENS) < np.array(TOKEN_LENGTHS)[:, None]
        tokens = (rng.integers(1, VOCAB, (BATCH, TOKENS)) * is_token).astype(np.int32)
        speakers = rng.permutation(SPEAKERS)[:BATCH].astype(np.int32)
        durations = rng.integers(1, MAX_DURATION + 1, (BATCH, TOKENS)) * is_token
        limit = LAST_BOUNDARY - 0.2
        pitch, energy = (
            (np.clip(rng.standard_normal((BATCH, TOKENS)), -limit, limit) * is_token)
            for _ in range(2)
        )
        lengths = durations.sum(axis=1)
        mels = rng.standard_normal((BATCH, lengths.max(), MELS)) - 1
        mels[np.arange(lengths.max()) >= lengths[:, None]] = 0
        return (
            tokens,
            speakers,
            durations.astype(np.int32),
            pitch.astype(np.float32),
            energy.astype(np.float32),
            mels.astype(np.float32),
        )


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_table("embedding", VOCAB, HIDDEN)
    weights["embedding.weight"][PADDING] = 0
    weights.add_table("speakers", SPEAKERS, HIDDEN, deviation=0.5)
    for stack in ("encoder", "decoder"):
        for n in range(LAYERS):
            path = f"{stack}.{n}"
            for projection in "qkvo":
                weights.add_linear(f"{path}.attention.{projection}", HIDDEN, HIDDEN)
            weights.add_norm(f"{path}.norm1", HIDDEN)
            weights.add_linear(f"{path}.ffn.up", FFN, HIDDEN, KERNEL)
            weights.add_linear(f"{path}.ffn.down", HIDDEN, FFN, 1)
            weights.add_norm(f"{path}.norm2", HIDDEN)
    for predictor in ("duration", "pitch", "energy"):
        for n, channels in enumerate((HIDDEN, PREDICTOR)):
            weights.add_linear(f"{predictor}.conv.{n}", PREDICTOR, channels, 3)
            weights.add_norm(f"{predictor}.norm.{n}", PREDICTOR)
        weights.add_linear(f"{predictor}.out", 1, PREDICTOR)
    for table in ("pitch.table", "energy.table"):
        weights.add_table(table, BINS, HIDDEN, deviation=0.5)
    weights.add_linear("mels", MELS, HIDDEN)
    channels = [MELS, *(POSTNET,) * (POSTNET_LAYERS - 1), MELS]
    for n in range(POSTNET_LAYERS):
        weights.add_matrix(f"postnet.{n}", channels[n + 1], channels[n], POSTNET_KERNEL)
        weights.add_norm(f"postnet.{n}.norm", channels[n + 1])
    return Model("tts", weights)
