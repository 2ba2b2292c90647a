"""A joint-embedding predictive model of images in NumPy: sizes, knobs, weights, positions, batch.

In the manner of I-JEPA (https://arxiv.org/abs/2301.08243) with the regularizer in V-JEPA's code
(https://arxiv.org/abs/2404.08471). An image is a grid of ROWS x COLUMNS patches. It has BLOCKS
target blocks of BLOCK patches each, which may overlap, and one context: the first KEEP patches of a
larger block that are in no target block, as lists of patches are cut to one length.

Two encoders of the same form have a convolution of the stride PATCH, add fixed positions, and end
in blocks and a norm. That of the context reads its KEEP patches only. That of the target is a
moving average of the other one, has no gradient, and reads all patches. Its result is normed once
more, without weights (TARGET_EPS), before target blocks are chosen from it. A block, with HEADS
heads, is

    x + attention(norm1(x)), then x + mlp(norm2(x))

with exact gelu. The predictor begins with a linear layer to fewer channels and adds positions of
the context's patches. For each target block it puts mask tokens with the positions of the block's
patches behind them, and ends in blocks, a norm, and a linear layer back to the encoder's channels;
what is read of it are the mask tokens.

Positions have sines and then cosines of the column in the first half of channels, and those of the
row in the second one.

The loss is

    smooth L1 (threshold 1) of predictions and targets, mean over all numbers
    + SPREAD_WEIGHT * mean over images and channels of max(0, SPREAD - deviation)

A deviation is the mean over target blocks of root(variance + SPREAD_EPS), with the unbiased
variance of a channel of the predictions over the patches of a block.

Weights are float32, linear (out, in), all with bias:

    context, target          patch (convolution), N (blocks), norm
    predictor                embed, N (blocks), norm, proj
    mask_token               (1, 1, NARROW), without bias
    blocks                   norm1, qkv, out, norm2, up, down
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

BATCH, COLORS, HEIGHT, WIDTH = 3, 3, 24, 32
PATCH = 4
ROWS, COLUMNS = HEIGHT // PATCH, WIDTH // PATCH
PATCHES = ROWS * COLUMNS
BLOCKS, BLOCK, CONTEXT_BLOCK = 4, (2, 3), (5, 7)  #: rows and columns of blocks
SIZE, KEEP = BLOCK[0] * BLOCK[1], 15  #: patches of a target block and of a context
WIDE, NARROW, HEADS, EXPANSION = 24, 16, 2, 3
LAYERS, PREDICTOR_LAYERS = 2, 2
EPS, TARGET_EPS, SPREAD_EPS = 1e-6, 1e-5, 1e-4
SPREAD, SPREAD_WEIGHT = 0.25, 0.5
SEED = 2301


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): norms, softmax and loss in plain
    #: arithmetic, queries, keys and values in one matrix, patches chosen by products;
    #: 'transformers' (PyTorch): modules of Hugging Face, a built-in attention, patches chosen by
    #: index, target blocks image by image
    variant: str = ""
    is_context_interleaved: bool = False  #: repeated image by image; MindSpore only
    are_targets_normed_jointly: bool = False  #: all patches of an image; MindSpore only
    is_deviation_gradient_biased: bool = False  #: MindSpore only
    are_outputs_first: bool = False  #: predictions are read from the context; MindSpore only
    are_maps_detached: bool = False  #: attention maps of the context encoder; PyTorch only
    predictor_heads: int = HEADS  #: PyTorch only
    is_hinge_first: bool = False  #: of each block, before their mean; PyTorch only
    is_target_half: bool = False  #: its encoder computes in bfloat16; PyTorch only
    has_class_position: bool = False  #: the encoders' tables begin with the class token's
    are_overlaps_allowed: bool = False  #: contexts keep patches of target blocks

    def positions(self) -> np.ndarray:
        """Return positions of patches in the encoders, float32 (1, PATCHES, WIDE)."""
        table = build_positions(WIDE)
        if self.has_class_position:
            table = np.concatenate([np.zeros_like(table[:, :1]), table[:, :-1]], axis=1)
        return table

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return images, the patches of contexts and those of target blocks.

        Images are float32 (BATCH, COLORS, HEIGHT, WIDTH), of the mean 0 and the deviation 1 of a
        data set. Numbers of patches, row by row, are int32 (BATCH, KEEP) and (BLOCKS, BATCH, SIZE).
        """
        rng = np.random.default_rng(SEED + 1)
        images = np.zeros((BATCH, COLORS, HEIGHT, WIDTH))
        y, x = np.mgrid[:HEIGHT, :WIDTH]
        for image in images:
            for color in range(COLORS):
                for _ in range(3):
                    pitch, phase = rng.uniform(-0.7, 0.7, 2), rng.uniform(0, 2 * np.pi)
                    wave = np.cos(pitch[0] * y + pitch[1] * x + phase)
                    image[color] += rng.uniform(0.3, 0.8) * wave
        images += rng.normal(0, 0.3, (BATCH, COLORS, 1, 1))
        images += 0.2 * rng.standard_normal(images.shape)

        contexts, targets = [], []
        while len(contexts) < BATCH:
            blocks = [_draw_block(rng, BLOCK) for _ in range(BLOCKS)]
            context = _draw_block(rng, CONTEXT_BLOCK)
            left = np.setdiff1d(context, np.concatenate(blocks))
            if len(left) >= KEEP:
                contexts.append((context if self.are_overlaps_allowed else left)[:KEEP])
                targets.append(blocks)
        return (
            images.astype(np.float32),
            np.stack(contexts).astype(np.int32),
            np.ascontiguousarray(np.stack(targets, axis=1).astype(np.int32)),
        )


def build_positions(channels: int) -> np.ndarray:
    """Return positions of patches, float32 (1, PATCHES, channels)."""
    rows, columns = np.divmod(np.arange(PATCHES), COLUMNS)
    frequencies = 10000.0 ** -(np.arange(channels // 4) / (channels // 4))
    halves = []
    for places in (columns, rows):
        angles = places[:, None] * frequencies
        halves.append(np.concatenate([np.sin(angles), np.cos(angles)], axis=1))
    return np.concatenate(halves, axis=1)[None].astype(np.float32)


def _draw_block(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Return the patches of a block somewhere in the grid, in their order."""
    n_rows, n_columns = shape
    top, left = rng.integers(0, (ROWS - n_rows + 1, COLUMNS - n_columns + 1))
    rows, columns = np.arange(top, top + n_rows), np.arange(left, left + n_columns)
    return (rows[:, None] * COLUMNS + columns).ravel()


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_linear("context.patch", WIDE, COLORS, PATCH, PATCH)
    for n in range(LAYERS):
        _add_block(weights, f"context.{n}", WIDE)
    weights.add_norm("context.norm", WIDE)
    gains = np.exp(0.5 * weights.rng.standard_normal(WIDE))
    weights["context.norm.weight"] *= gains.astype(np.float32)
    weights["context.norm.bias"] *= np.float32(3)
    for name, values in list(weights.items()):
        drift = weights.rng.standard_normal(values.shape) * values.std()
        average = (values + 0.3 * drift).astype(np.float32)
        weights[name.replace("context", "target")] = average
    weights.add_linear("predictor.embed", NARROW, WIDE)
    mask_token = 0.4 * weights.rng.standard_normal((1, 1, NARROW))
    weights["mask_token"] = mask_token.astype(np.float32)
    for n in range(PREDICTOR_LAYERS):
        _add_block(weights, f"predictor.{n}", NARROW)
    weights.add_norm("predictor.norm", NARROW)
    weights.add_linear("predictor.proj", WIDE, NARROW)
    weights["predictor.proj.weight"] *= np.float32(1.6)
    return Model("jepa", weights)


def _add_block(weights: Weights, path: str, channels: int) -> None:
    weights.add_norm(f"{path}.norm1", channels)
    weights.add_linear(f"{path}.qkv", 3 * channels, channels)
    weights[f"{path}.qkv.weight"][: 2 * channels] *= np.float32(1.4)
    weights.add_linear(f"{path}.out", channels, channels)
    weights.add_norm(f"{path}.norm2", channels)
    weights.add_linear(f"{path}.up", EXPANSION * channels, channels)
    weights.add_linear(f"{path}.down", channels, EXPANSION * channels)
