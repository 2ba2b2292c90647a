"""Stereo depth estimation in NumPy: sizes, knobs, weights and batch.

In the manner of GC-Net (https://arxiv.org/abs/1703.04309), PSMNet
(https://arxiv.org/abs/1803.08669) and GwcNet (https://arxiv.org/abs/1903.04025). An encoder is
applied to each of two images: a strided convolution, a block of stride 2 and one of dilation 2, and
spatial pyramid pooling, whose branches are averages of POOLS x POOLS cells, upsampled bilinearly.
All norms are batch norms that train, and each call of the encoder has its own statistics.

A disparity d compares a left cell at column x with the right one at x - d. The volume has for each
of LEVELS disparities the correlation in each of GROUPS groups of channels, the mean of products,
and the reduced features of both images; it is zero where x - d is outside. Convolutions in three
dimensions make a first cost of it. An hourglass, which is a strided convolution, another one and a
transposed one, with a skip connection, makes what is added to the first cost. Costs are upsampled
trilinearly; a disparity is the mean of all, 0 to MAX_DISPARITY - 1, weighted by softmax(-cost).

The refinement warps the right image by the disparity, takes the distance of colors from the left
one, and adds a residual that it computes of left image, distance and disparity / MAX_DISPARITY.
A warp reads an image at x - d, linear in columns, the first or last column outside. The disparity
of the right image, without refinement, is that of both images mirrored and exchanged. The loss is
the sum of

    labels        smooth L1 of first, second and refined disparity, times STAGE_WEIGHTS, mean of
                  the pixels whose label is above 0 and below MAX_DISPARITY
    photometric   SSIM_SHARE * (1 - SSIM) / 2 of windows of 3 x 3, clipped to 0..1, and
                  1 - SSIM_SHARE of the L1 distance, between an image and the other one warped, for
                  left and right
    smoothness    the refined disparity, divided by the mean of its image, has gradients whose sizes
                  are times exp(-EDGE_FACTOR * mean of the colors' gradients)
    consistency   L1 distance of the refined disparity and the right image's, warped, a constant

the last three times PHOTOMETRIC, SMOOTHNESS and CONSISTENCY, means over pixels without padding.
Weights are float32, convolutions before a norm without bias:

    stem, blocks.0.{first, second, shortcut}, blocks.1.{first, second}, branches.N, fusion
                                    each with NAME.norm
    features, reduction             1x1, for the correlation and to be joined
    volume.0, volume.1, hourglass.{down, middle, up}, costs.N.0
                                    3x3x3, each with NAME.norm; 'up' is (in, out, ...)
    costs.N.1                       3x3x3, to one channel
    refinement.N                    3x3, with bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

HEIGHT, WIDTH, STRIDE = 24, 48, 4
SIZES = ((24, 43), (19, 48))  #: height and width of the images without their padding
BATCH = len(SIZES)
ROWS, COLUMNS = HEIGHT // STRIDE, WIDTH // STRIDE
MAX_DISPARITY = 16
LEVELS = MAX_DISPARITY // STRIDE
CHANNELS, POOLS, BRANCH, FUSED = (9, 14), (2, 3), 5, 13
FEATURES, GROUPS, REDUCED = 15, 3, 4
VOLUME, HOURGLASS, COST = 10, 11, 7
REFINEMENT, DILATIONS, SLOPE = 11, (1, 2, 1), 0.2
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STAGES = 2  #: without the refinement
STAGE_WEIGHTS = (0.5, 0.7, 1.0)
PHOTOMETRIC, SMOOTHNESS, CONSISTENCY = 2.0, 0.5, 0.2
SSIM_SHARE, C1, C2 = 0.85, 0.01**2, 0.03**2
EDGE_FACTOR = 10.0
EPS = 1e-5
SEED = 1703


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): norms, SSIM and softmax in plain
    #: arithmetic, resizing and warps as products with shares of cells; 'openstereo' (PyTorch):
    #: other names, volumes from slices of a padded image, warps by grid_sample, functional norms
    variant: str = ""
    are_corners_aligned: bool = False  #: of upsampled costs; MindSpore only
    are_groups_interleaved: bool = False  #: channels of the correlation; MindSpore only
    are_far_counted: bool = False  #: labels of MAX_DISPARITY and above; MindSpore only
    is_correlation_gradient_summed: bool = False  #: without the mean's divisor; MindSpore only
    are_edges_summed: bool = False  #: over colors, not averaged; MindSpore only
    is_mask_mirrored: bool = True  #: that of padding, with the images; MindSpore only
    is_volume_rolled: bool = False  #: columns from the other end, not zeros; PyTorch only
    is_cost_similarity: bool = False  #: softmax(cost); PyTorch only
    is_consistency_attached: bool = False  #: the right disparity is no constant; PyTorch only
    is_warp_gradient_positive: bool = False  #: as if a warp read at x + d; PyTorch only
    is_volume_leftward: bool = True  #: right columns are at x - d, not x + d; PyTorch only
    are_warp_corners_aligned: bool = True  #: by the sampler, as its places are; PyTorch only
    are_labels_upside_down: bool = False  #: the last row of an image first

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return left and right images, disparities of the left one, and sizes of the images.

        Images are float32 (BATCH, 3, HEIGHT, WIDTH) from 0 to 1, disparities float32 (BATCH,
        HEIGHT, WIDTH), 0 where unknown, sizes int32 (BATCH, 2). Padding, at bottom and right, is 0.
        """
        rng = np.random.default_rng(SEED + 1)
        left, right = np.zeros((2, BATCH, 3, HEIGHT, WIDTH))
        disparities = np.zeros((BATCH, HEIGHT, WIDTH))
        for n, (height, width) in enumerate(SIZES):
            rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
            scene = 2 + 7 * rows / height + 2 * np.sin(columns / 9 + n)
            top, start = rng.integers(2, (height - 14, width - 18))
            scene[top : top + 12, start : start + 16] = 12 + n
            scene[top : top + 4, start : start + 5] = MAX_DISPARITY + 4
            texture = _draw_texture(rng, height, width)
            places = np.clip(columns - scene, 0, width - 1)
            low = np.minimum(places.astype(int), width - 2)
            share = places - low
            shown = texture[:, rows, low] * (1 - share) + texture[:, rows, low + 1] * share
            noise = 0.02 * rng.standard_normal((2, 3, height, width))
            left[n, :, :height, :width] = shown + noise[0]
            right[n, :, :height, :width] = texture + noise[1]
            labels = np.where(rng.random((height, width)) < 0.8, scene, 0)
            disparities[n, :height, :width] = (
                labels[::-1] if self.are_labels_upside_down else labels
            )
        return (
            np.clip(left, 0, 1).astype(np.float32),
            np.clip(right, 0, 1).astype(np.float32),
            disparities.astype(np.float32),
            np.array(SIZES, np.int32),
        )


def _draw_texture(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Return an image (3, height, width) of patches and grain."""
    patches = rng.uniform(0.2, 0.8, (3, height // 4 + 1, width // 4 + 1))
    patches = patches.repeat(4, axis=1).repeat(4, axis=2)[:, :height, :width]
    return patches + 0.06 * rng.standard_normal((3, height, width))


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)

    def add_normed(name: str, *shape: int) -> None:
        weights.add_matrix(name, *shape)
        weights.add_norm(f"{name}.norm", shape[0])

    narrow, wide = CHANNELS
    add_normed("stem", narrow, 3, 3, 3)
    add_normed("blocks.0.first", wide, narrow, 3, 3)
    add_normed("blocks.0.second", wide, wide, 3, 3)
    add_normed("blocks.0.shortcut", wide, narrow, 1, 1)
    add_normed("blocks.1.first", wide, wide, 3, 3)
    add_normed("blocks.1.second", wide, wide, 3, 3)
    for n in range(len(POOLS)):
        add_normed(f"branches.{n}", BRANCH, wide, 1, 1)
    add_normed("fusion", FUSED, 2 * wide + len(POOLS) * BRANCH, 3, 3)
    weights.add_matrix("features", FEATURES, FUSED, 1, 1)
    weights.add_matrix("reduction", REDUCED, FUSED, 1, 1)
    add_normed("volume.0", VOLUME, GROUPS + 2 * REDUCED, 3, 3, 3)
    add_normed("volume.1", VOLUME, VOLUME, 3, 3, 3)
    add_normed("hourglass.down", HOURGLASS, VOLUME, 3, 3, 3)
    add_normed("hourglass.middle", HOURGLASS, HOURGLASS, 3, 3, 3)
    weights.add_matrix("hourglass.up", HOURGLASS, VOLUME, 3, 3, 3)
    weights.add_norm("hourglass.up.norm", VOLUME)
    for n in range(STAGES):
        add_normed(f"costs.{n}.0", COST, VOLUME, 3, 3, 3)
        weights.add_matrix(f"costs.{n}.1", 1, COST, 3, 3, 3)
        weights[f"costs.{n}.1.weight"] *= np.float32(2)
    for n, (n_in, n_out) in enumerate(((7, REFINEMENT), (REFINEMENT,) * 2, (REFINEMENT, 1))):
        weights.add_linear(f"refinement.{n}", n_out, n_in, 3, 3)
    return Model("stereo", weights)
