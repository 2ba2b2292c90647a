"""A masked autoencoder of images in NumPy: sizes, knobs, weights, positions, filters and batch.

In the manner of MAE (https://arxiv.org/abs/2111.06377) with the latent targets of data2vec
(https://arxiv.org/abs/2202.03555). Images have HEIGHT rows and WIDTH columns; smaller ones are
padded behind their rows and columns. A patch is real if its first row and column are in the image.
Nothing attends to other patches, and they do not count in the loss.

The encoder has a convolution of the stride PATCH and adds fixed positions. Of each image it keeps
the first KEEP patches of a permutation that is given, and puts a class token, whose position is
zero, in front of them. A block, of which each has HEADS heads, is

    x + scale1 * attention(norm1(x)), then x + scale2 * mlp(norm2(x))

with LayerScale, exact gelu and stochastic depth of 0. A norm follows. The decoder begins with a
linear layer to fewer channels, puts mask tokens in the place of patches that were not kept, and all
of them in their order, adds positions again, and ends in blocks and a norm. Heads behind it are the
pixels of a patch (row, column, color) and latents.

Positions have sines and then cosines of the column in the first half of channels, and those of the
row in the second one.

The teacher has blocks of its own, a moving average of those of the student without a gradient; its
patches and class token are those of the student. It sees all patches. Latent targets are norms of
the outputs of its last TOP blocks, without weights, then their mean, then such a norm again.

The loss is the sum of means over patches that are real and were not kept, of

    pixels    mean squared error of a patch with pixels of the mean 0 and the unbiased variance 1
    latents   LATENT_WEIGHT * mean of smooth L1 (BETA) of latents
    spectrum  SPECTRUM_WEIGHT * mean of frequency weight * (root of (d ** 2 + SMALL ** 2)) over
              colors and frequencies. d is the difference of the same pixels and predictions, as
              luminance and chrominance, behind the two-dimensional orthonormal DCT of a patch. The
              frequency (u, v) has the weight 1 / (1 + u + v)

Weights are float32, linear (out, in), with a bias where it is said:

    patch                              convolution with bias
    class_token (1, 1, WIDE), mask_token (1, 1, NARROW)
    encoder.N, teacher.N, decoder.N    norm1, qkv, out, norm2, up, down, all with bias; scale1 and
                                       scale2 (channels,)
    encoder.norm, decoder.norm, decoder.embed, decoder.pixels, decoder.latents    all with bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

BATCH, COLORS, HEIGHT, WIDTH = 3, 3, 16, 24
SIZES = ((16, 24), (11, 22), (14, 15))  #: rows and columns of images
PATCH = 4
PIXELS = COLORS * PATCH**2
ROWS, COLUMNS = HEIGHT // PATCH, WIDTH // PATCH
PATCHES = ROWS * COLUMNS
KEEP = PATCHES // 4
WIDE, NARROW, HEADS, EXPANSION = 24, 16, 2, 2
LAYERS, TOP, DECODER_LAYERS = 3, 2, 1
EPS, VARIANCE_EPS, SMALL = 1e-6, 1e-6, 0.01
BETA = 0.5
LATENT_WEIGHT, SPECTRUM_WEIGHT = 0.8, 1.5
#: Y, Cb and Cr of red, green and blue
LUMA = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))
SEED = 2111


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): patches, gathers, norms and softmax in
    #: plain arithmetic, queries, keys and values apart; 'fused' (PyTorch): other names, patches by
    #: unfold, a built-in attention, patches put in order by index, losses of chosen patches
    variant: str = ""
    is_variance_biased: bool = False  #: of a patch's pixels; MindSpore only
    is_mask_shuffled: bool = False  #: it stays in the order of the permutation; MindSpore only
    is_teacher_attached: bool = False  #: targets have a gradient; MindSpore only
    are_targets_averaged_first: bool = False  #: before they are normed; MindSpore only
    is_order_repeated: bool = False  #: the permutation for its inverse; PyTorch only
    is_mean_of_images: bool = False  #: of means over patches; PyTorch only
    is_scale_differentiated: bool = True  #: in LayerScale's backward pass; PyTorch only
    is_mask_padded_behind: bool = False  #: for the class token, in the decoder; PyTorch only
    are_rows_first: bool = False  #: in positions
    are_columns_first: bool = False  #: in sizes

    def positions(self, channels: int) -> np.ndarray:
        """Return those of the class token and of patches, float32 (1, 1 + PATCHES, channels)."""
        rows, columns = np.divmod(np.arange(PATCHES), COLUMNS)
        frequencies = 10000.0 ** -(np.arange(channels // 4) / (channels // 4))
        halves = []
        for places in (rows, columns) if self.are_rows_first else (columns, rows):
            angles = places[:, None] * frequencies
            halves.append(np.concatenate([np.sin(angles), np.cos(angles)], axis=1))
        table = np.concatenate([np.zeros((1, channels)), np.concatenate(halves, axis=1)])
        return table[None].astype(np.float32)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return images, their sizes and permutations of patches.

        Images are float32 (BATCH, COLORS, HEIGHT, WIDTH), of the mean 0 and the deviation 1 of a
        data set, sizes int32 (BATCH, 2), and permutations int32 (BATCH, PATCHES).
        """
        rng = np.random.default_rng(SEED + 1)
        images = np.zeros((BATCH, COLORS, HEIGHT, WIDTH))
        for image, (height, width) in zip(images, SIZES, strict=True):
            y, x = np.mgrid[:height, :width]
            for color in range(COLORS):
                for _ in range(3):
                    pitch, phase = rng.uniform(-0.9, 0.9, 2), rng.uniform(0, 2 * np.pi)
                    wave = np.cos(pitch[0] * y + pitch[1] * x + phase)
                    image[color, :height, :width] += rng.uniform(0.2, 0.8) * wave
            image[:, :height, :width] += rng.normal(0, 0.3, (COLORS, 1, 1))
            image[:, :height, :width] += 0.2 * rng.standard_normal((COLORS, height, width))
        permutations = np.stack([rng.permutation(PATCHES) for _ in range(BATCH)])
        sizes = np.array(SIZES, np.int32)
        if self.are_columns_first:
            sizes = np.ascontiguousarray(sizes[:, ::-1])
        return images.astype(np.float32), sizes, permutations.astype(np.int32)


def build_cosines() -> np.ndarray:
    """Return filters of the DCT, float32 (PATCH ** 2, 1, PATCH, PATCH)."""
    frequencies, places = np.arange(PATCH)[:, None], np.arange(PATCH) + 0.5
    basis = np.cos(np.pi / PATCH * frequencies * places) * np.sqrt(2 / PATCH)
    basis[0] /= np.sqrt(2)
    filters = np.einsum("uy,vx->uvyx", basis, basis)
    return filters.reshape(-1, 1, PATCH, PATCH).astype(np.float32)


def build_luma() -> np.ndarray:
    """Return the filter from colors to luminance and chrominance, float32 (3, COLORS, 1, 1)."""
    return np.array(LUMA, np.float32)[:, :, None, None]


def build_frequency_weights() -> np.ndarray:
    """Return the weights of frequencies, float32 (PATCH ** 2,)."""
    u, v = np.divmod(np.arange(PATCH**2), PATCH)
    return (1 / (1 + u + v)).astype(np.float32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_linear("patch", WIDE, COLORS, PATCH, PATCH)
    weights["class_token"] = _draw(weights, (1, 1, WIDE))
    for n in range(LAYERS):
        _add_block(weights, f"encoder.{n}", WIDE)
    for name in [name for name in weights if name.startswith("encoder.")]:
        drift = weights.rng.standard_normal(weights[name].shape) * weights[name].std()
        average = weights[name] + 0.3 * drift
        weights[name.replace("encoder", "teacher")] = average.astype(np.float32)
    weights.add_norm("encoder.norm", WIDE)
    weights.add_linear("decoder.embed", NARROW, WIDE)
    weights["mask_token"] = _draw(weights, (1, 1, NARROW))
    for n in range(DECODER_LAYERS):
        _add_block(weights, f"decoder.{n}", NARROW)
    weights.add_norm("decoder.norm", NARROW)
    weights.add_linear("decoder.pixels", PIXELS, NARROW)
    weights.add_linear("decoder.latents", WIDE, NARROW)
    return Model("mae", weights)


def _add_block(weights: Weights, path: str, channels: int) -> None:
    weights.add_norm(f"{path}.norm1", channels)
    weights.add_linear(f"{path}.qkv", 3 * channels, channels)
    weights[f"{path}.qkv.weight"][: 2 * channels] *= np.float32(1.4)
    weights.add_linear(f"{path}.out", channels, channels)
    weights[f"{path}.scale1"] = np.exp(_draw(weights, (channels,)) - 0.4)
    weights.add_norm(f"{path}.norm2", channels)
    weights.add_linear(f"{path}.up", EXPANSION * channels, channels)
    weights.add_linear(f"{path}.down", channels, EXPANSION * channels)
    weights[f"{path}.scale2"] = np.exp(_draw(weights, (channels,)))


def _draw(weights: Weights, shape: tuple[int, ...]) -> np.ndarray:
    return (0.4 * weights.rng.standard_normal(shape)).astype(np.float32)
