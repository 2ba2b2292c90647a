"""The diffusion transformer in NumPy: sizes, knobs, weights, tables and batch.

Latents are mixed with noise by the schedule of their time steps. The net reads patches with a table
of positions. Each block is modulated by the time step and the class (https://arxiv.org/abs/
2212.09748, section 3.2, adaLN-Zero) and also attends to the tokens of a caption (https://arxiv.org/
abs/2310.00426, section 2.3). It predicts the velocity (https://arxiv.org/abs/2202.00512, section
4); each sample's error is weighted by its ratio of signal to noise (https://arxiv.org/abs/
2303.09556, section 3.4). Weights, linear ones (out, in):

    patch                                convolution of kernel and stride PATCH, with bias
    time.1, time.2, caption.1, caption.2      linear
    classes.weight (CLASSES + 1, HIDDEN)      its last row is for a dropped class
    blocks.N.: modulation                     6 * HIDDEN rows, see PARTS
               attention.{q,k,v,o}, cross.{q,k,v,o}, mlp.{up,down}
    final.modulation                          2 * HIDDEN rows: shift, then scale
    final.linear                              PATCH * PATCH * CHANNELS rows, the channel moves first

Norms have no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer, round_bfloat16

from families.weights import Weights

BATCH, CHANNELS, IMAGE, PATCH = 4, 4, 8, 2
GRID = IMAGE // PATCH  #: patches along an edge
HIDDEN, HEADS, FFN, LAYERS = 32, 4, 96, 2
TIME_DIM = 24  #: numbers of the sinusoidal embedding
CAPTION_TOKENS, CAPTION_DIM, CLASSES = 6, 20, 5
#: What the rows of a block's modulation are, HIDDEN each: those of the attention, then of the mlp.
PARTS = ("shift", "scale", "gate") * 2
N_STEPS, FIRST_BETA, LAST_BETA = 1000, 0.00085, 0.012  #: of the noise schedule
MAX_PERIOD = 10000.0
BASE_GRID = 2  #: patches along an edge that positions are scaled to
LATENT_SCALE = 0.18215  #: makes the deviation of an autoencoder's latents 1
MAX_RATIO = 5.0  #: of signal to noise, in the weight of the loss
EPS = 1e-6
MASKED = -10000.0  #: added to the scores of padding
SEED = 141


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'einsum' (PyTorch): the names of diffusers, separate
    #: projections, attention and unpatchify by einsum, patches by a linear layer; 'written'
    #: (MindSpore): one projection for q, k and v, norms, silu and softmax in plain arithmetic
    variant: str = ""
    is_scale_first: bool = False  #: rows of the last modulation are read as scale, then shift
    scale_offset: float = 1.0  #: the mlp's input of the last block is multiplied by it + scale
    ratio_offset: float = 1.0  #: weight of the loss: min(ratio, MAX_RATIO) / (ratio + it)
    position_scale: float = BASE_GRID / GRID  #: of rows and columns in the table of positions
    are_channels_first: bool = False  #: a patch is read with its channel moving last
    is_caption_masked: bool = True
    is_cross_normed: bool = False  #: a norm before the last block's attention to the caption
    are_frequencies_half: bool = False  #: those of time steps are rounded to bfloat16
    mlp_activation: str = "gelu_tanh"  #: of the last block; or 'gelu_erf'
    loss_target: str = "velocity"  #: or 'noise'
    are_sines_first: bool = False  #: in the embedding of time steps
    latent_scale: float = LATENT_SCALE
    is_caption_stopped: bool = False  #: no gradient to the projection of the caption
    is_class_gradient_averaged: bool = False  #: a row's gradient is divided by its occurrences
    is_condition_activated: bool = False  #: by silu, before the blocks, which do so too
    are_weights_broadcast: bool = False  #: each sample's error has the weights of all samples
    is_mask_added: bool = False  #: ones and zeros of the caption's mask are added to the scores
    is_final_timed: bool = False  #: the last modulation does not read the class
    is_dropped_class_zero: bool = False  #: it adds nothing to the condition, not the last row
    is_modulation_shared: bool = False  #: all blocks have that of the first one
    is_modulation_derived: bool = True  #: the blocks' wholly, with the 1 of 1 + scale; PyTorch only
    optimizer: Optimizer = field(default_factory=lambda: Optimizer(weight_decay=0.03, clip=0.1))

    def schedule(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the shares of latents and noise (N_STEPS,), float32, by time step.

        The roots of betas are equally spaced (https://arxiv.org/abs/2112.10752, its code).
        """
        betas = np.linspace(FIRST_BETA**0.5, LAST_BETA**0.5, N_STEPS) ** 2
        kept = np.cumprod(1 - betas)
        return np.sqrt(kept).astype(np.float32), np.sqrt(1 - kept).astype(np.float32)

    def frequencies(self) -> np.ndarray:
        """Return the frequencies of the time steps, float32 (TIME_DIM / 2,)."""
        half = TIME_DIM // 2
        frequencies = np.exp(-np.log(MAX_PERIOD) * np.arange(half) / half).astype(np.float32)
        return round_bfloat16(frequencies) if self.are_frequencies_half else frequencies

    def positions(self) -> np.ndarray:
        """Return the table of positions, float32 (1, GRID * GRID, HIDDEN), row by row.

        Sines and cosines of the column, then of the row.
        """
        quarter = HIDDEN // 4
        frequencies = MAX_PERIOD ** (-np.arange(quarter) / quarter)
        angles = np.outer(np.arange(GRID) * self.position_scale, frequencies)
        by_number = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        columns, rows = np.tile(by_number, (GRID, 1)), np.repeat(by_number, GRID, axis=0)
        return np.concatenate([columns, rows], axis=1)[None].astype(np.float32)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return latents and noise, float32 (batch, CHANNELS, IMAGE, IMAGE), time steps, classes,
        and whether each class is dropped, int32 (batch,), captions, float32 (batch,
        CAPTION_TOKENS, CAPTION_DIM), and their masks, int32 (batch, CAPTION_TOKENS), 0 for padding.
        """
        rng = np.random.default_rng(SEED + 1)
        shape = (BATCH, CHANNELS, IMAGE, IMAGE)
        latents = (rng.standard_normal(shape) / LATENT_SCALE).astype(np.float32)
        noise = rng.standard_normal(shape).astype(np.float32)
        steps = np.array([37, 431, 702, 188], dtype=np.int32)
        classes = np.array([3, 1, 4, 2], dtype=np.int32)
        is_dropped = np.array([0, 1, 0, 1], dtype=np.int32)
        captions = rng.standard_normal((BATCH, CAPTION_TOKENS, CAPTION_DIM)).astype(np.float32)
        lengths = np.array([6, 4, 3, 5])
        mask = (np.arange(CAPTION_TOKENS) < lengths[:, None]).astype(np.int32)
        return latents, noise, steps, classes, is_dropped, captions, mask


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_linear("patch", HIDDEN, CHANNELS, PATCH, PATCH)
    weights.add_linear("time.1", HIDDEN, TIME_DIM)
    weights.add_linear("time.2", HIDDEN, HIDDEN)
    weights.add_table("classes", CLASSES + 1, HIDDEN, deviation=0.5)
    weights.add_linear("caption.1", HIDDEN, CAPTION_DIM)
    weights.add_linear("caption.2", HIDDEN, HIDDEN)
    for n in range(LAYERS):
        weights.add_linear(f"blocks.{n}.modulation", len(PARTS) * HIDDEN, HIDDEN)
        for attention in ("attention", "cross"):
            for projection in "qkvo":
                weights.add_linear(f"blocks.{n}.{attention}.{projection}", HIDDEN, HIDDEN)
        weights.add_linear(f"blocks.{n}.mlp.up", FFN, HIDDEN)
        weights.add_linear(f"blocks.{n}.mlp.down", HIDDEN, FFN)
    weights.add_linear("final.modulation", 2 * HIDDEN, HIDDEN)
    weights.add_linear("final.linear", PATCH * PATCH * CHANNELS, HIDDEN)
    return Model("dit", weights)
