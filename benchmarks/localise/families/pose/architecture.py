"""A net for human poses in NumPy: sizes, knobs, weights and batch.

As HRNet (https://arxiv.org/abs/1902.09212, section 3): a stem of two strided convolutions, then two
branches, one of half the resolution of the other, each with a residual block in each stage. At the
end of a stage, a branch gets the sum of both, behind a rectifier: the coarse one by a 1x1
convolution and upsampling by the nearest pixel, the fine one by a strided convolution. The last
stage only has the fine sum. A 1x1 convolution makes a heatmap of each keypoint. The losses are

    heatmaps     half the mean squared difference to a Gaussian around the keypoint, without those
                 of keypoints that are not labeled
    coordinates  smooth L1 of the expected coordinates, from -1 to 1, under the softmax of
                 TEMPERATURE times the heatmap (https://arxiv.org/abs/1711.08229, section 2; pixels
                 have their centers as in https://arxiv.org/abs/1801.07372, section 4), mean over
                 labeled keypoints
    limbs        absolute difference of the lengths of limbs, mean over those with two labeled ends

Keypoints of the batch are in pixels of the image; visibility is 0 (not labeled), 1 (hidden) or 2
(visible), as in COCO. Weights, 3x3 convolutions without bias, each with NAME.norm, a batch norm,
if not said otherwise:

    stem.0, stem.1                  strided
    transition.fine, transition.coarse      the latter strided
    stages.N.{fine, coarse}.{0, 1}  of residual blocks
    stages.N.up                     1x1
    stages.N.down                   strided; not in the last stage
    head                            1x1 with bias, without norm
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, IMAGE_HEIGHT, IMAGE_WIDTH = 4, 56, 40
STRIDE = 4  #: pixels of the image in one of a heatmap
HEIGHT, WIDTH = IMAGE_HEIGHT // STRIDE, IMAGE_WIDTH // STRIDE
STEM, FINE, COARSE, STAGES = 16, 12, 20, 2
KEYPOINTS = 9
#: Ends of limbs as COCO has them: the first keypoint is 1. The last one is the nose, of no limb.
SKELETON = ((1, 2), (1, 3), (2, 4), (3, 5), (4, 6), (5, 7), (1, 8), (2, 8))
FLIPPED = (1, 0, 3, 2, 5, 4, 6, 7, 8)  #: keypoints of a mirrored image
SIGMA, TEMPERATURE, BETA = 1.5, 4.0, 0.1
EPS, LENGTH_EPS = 1e-5, 1e-6
HEATMAP_WEIGHT, LIMB_WEIGHT = 10.0, 0.5
SPOT = 3.0  #: deviation of the spot of a keypoint in an image, in pixels
SEED = 2409


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'functional' (PyTorch): other names, batch norm, upsampling,
    #: softmax and losses in plain arithmetic; 'looped' (PyTorch): sums of stacked parts, the
    #: heatmap loss keypoint by keypoint, coordinates from the sums of rows and columns; 'written'
    #: (MindSpore): batch norm, upsampling, softmax and smooth L1 in plain arithmetic, Gaussians as
    #: products
    variant: str = ""
    is_down_rectified: bool = False  #: behind its norm, before the sum; PyTorch only
    upsampling: str = "nearest"  #: or 'bilinear', with aligned corners; MindSpore only
    softmax_axis: int = -1  #: of heatmaps (BATCH, KEYPOINTS, pixels); PyTorch only
    are_corners_aligned: bool = False  #: the centers of the outer pixels have coordinates -1 and 1
    is_sum_reused: bool = False  #: the coarse sum reads the fine one; MindSpore only
    is_visibility_weight: bool = False  #: visible keypoints count 2; PyTorch only
    coordinate_loss: str = "smooth_l1"  #: or 'huber'; PyTorch only
    is_parent_stopped: bool = False  #: no gradient to the first end of a limb; PyTorch only
    is_upsampling_averaged: bool = False  #: in the backward pass, over four pixels; MindSpore only
    is_softmax_uncentered: bool = False  #: its gradient lacks the sum of its terms; MindSpore only
    first_keypoint: int = 1  #: what is subtracted from SKELETON
    are_spots_rounded: bool = False  #: centers of Gaussians are whole pixels; MindSpore only
    are_coordinates_stopped: bool = False  #: no gradient from them to heatmaps; MindSpore only
    are_pixels_centered: bool = True  #: positions count from the middle of a pixel; PyTorch only
    optimizer: Optimizer = field(default_factory=Optimizer)

    def centers(self, length: int) -> np.ndarray:
        """Return the coordinates of the pixels of a row or column, float32 (length,)."""
        if self.are_corners_aligned:
            return np.linspace(-1, 1, length, dtype=np.float32)
        return ((2 * np.arange(length) + 1) / length - 1).astype(np.float32)

    def limbs(self) -> np.ndarray:
        """Return the keypoints at both ends of limbs, int32 (2, limbs)."""
        return np.array(SKELETON, np.int32).T - np.int32(self.first_keypoint)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return images, float32 (BATCH, 3, IMAGE_HEIGHT, IMAGE_WIDTH), keypoints, x before y,
        float32 (BATCH, KEYPOINTS, 2), and their visibility, int32 (BATCH, KEYPOINTS).
        """
        rng = np.random.default_rng(SEED + 1)
        size = np.array((IMAGE_WIDTH, IMAGE_HEIGHT))
        keypoints = rng.uniform(0.1, 0.9, (BATCH, KEYPOINTS, 2)) * size
        images = 0.5 * rng.standard_normal((BATCH, 3, IMAGE_HEIGHT, IMAGE_WIDTH))
        colors = rng.standard_normal((KEYPOINTS, 3))
        columns, rows = np.arange(IMAGE_WIDTH), np.arange(IMAGE_HEIGHT)[:, None]
        x, y = keypoints[..., 0, None, None], keypoints[..., 1, None, None]
        spots = np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * SPOT**2))
        images += np.einsum("bkhw,kc->bchw", spots, colors)
        visibility = rng.choice(3, (BATCH, KEYPOINTS), p=(0.2, 0.3, 0.5))
        return images.astype(np.float32), keypoints.astype(np.float32), visibility.astype(np.int32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)

    def add_normed(name: str, *shape: int) -> None:
        weights.add_matrix(name, *shape)
        weights.add_norm(f"{name}.norm", shape[0])

    add_normed("stem.0", STEM, 3, 3, 3)
    add_normed("stem.1", STEM, STEM, 3, 3)
    add_normed("transition.fine", FINE, STEM, 3, 3)
    add_normed("transition.coarse", COARSE, STEM, 3, 3)
    for n in range(STAGES):
        for branch, channels in (("fine", FINE), ("coarse", COARSE)):
            for layer in range(2):
                add_normed(f"stages.{n}.{branch}.{layer}", channels, channels, 3, 3)
        add_normed(f"stages.{n}.up", FINE, COARSE, 1, 1)
        if n < STAGES - 1:
            add_normed(f"stages.{n}.down", COARSE, FINE, 3, 3)
    weights.add_linear("head", KEYPOINTS, FINE, 1, 1)
    weights["head.weight"] *= np.float32(0.3)  # heatmaps are small at first
    return Model("pose", weights)
