"""Self-supervised depth from video in NumPy: sizes, knobs, weights, pixels and batch.

In the manner of Monodepth2 (https://arxiv.org/abs/1806.01260) with sparse depths. A sample has a
target frame, and a frame before and one behind it. Networks see frames with other brightness and
contrast, losses see the plain ones.

The depth encoder takes (image - MEAN) / DEVIATION. Its convolution with stride 2, batch norm and
ReLU, and its two residual blocks with stride 2 give features of a half, a fourth and an eighth of
the size. A decoder's stage 2, 1 and 0 has a convolution with ELU, nearest upsampling, the features
of the same size (but for stage 0), a convolution with ELU, and a convolution with sigmoid, the
disparity of its scale. All of them are padded by reflection, while the encoders' are padded with
zeros. Disparities get the full size by bilinear upsampling; a depth is

    1 / (1 / FARTHEST + (1 / NEAREST - 1 / FARTHEST) * disparity)

The pose network reads two frames in their order in time, normed likewise: convolutions with stride
2 and ReLU, one with kernel 1 and ReLU, one with kernel 1 to (axis-angle, translation), the mean
over cells, times POSE_SCALE. Its matrix is translation @ rotation, or that with the negative
translation behind the transposed rotation for the earlier frame: rotation^T @ translation.

Pixels (x, y, 1), times the inverse intrinsics and the depth, are points; points behind the matrix
and the intrinsics, divided by their distance + TINY, are places in the other frame, which is
sampled bilinearly, the nearest pixel of the border beyond it. The error of a pixel is

    SSIM_SHARE * (1 - SSIM) / 2, clipped to 0..1, + (1 - SSIM_SHARE) * distance, mean over colors

with means of 3 x 3 pixels, padded by reflection. The loss is, summed over scales n and divided by
SCALES,

    photometric   least error of two unwarped frames, with NOISE * noise, and two warped ones, mean
                  over pixels that the mask shows
    smoothness    SMOOTHNESS / 2^n * differences of the disparity / (its mean + TINY) of neighbours,
                  times exp(-mean difference of colors); means of columns and rows are added. Colors
                  of scale n are means of 2^n x 2^n pixels

plus DEPTH_WEIGHT * distance of the logarithm of sparse depths and of those of scale 0 at their
pixels, mean over points without padding. Depths are multiplied by the sum of the sample's sparse
ones divided by the sum of its own ones, which is a constant.

Weights are float32, of convolutions (out, in, rows, columns):

    encoder.stem, stem_norm
    encoder.1, 2                  conv1, norm1, conv2, norm2, down, down_norm; no bias but norms'
    decoder.2, 1, 0               up, join, disparity, with bias
    pose.0, 1, 2, squeeze, out    with bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

BATCH, COLORS, HEIGHT, WIDTH = 3, 3, 16, 24
PIXELS = HEIGHT * WIDTH
FRAMES, TARGET = 3, 1  #: of a sample: before, target and behind
SOURCES = (0, 2)
SCALES = 3
MEAN, DEVIATION = 0.45, 0.225
ENCODER = (8, 12, 16)
DECODER = (6, 10, 12)
POSE = (8, 12, 16)
SQUEEZED, MOTION = 10, 6
POSE_KERNEL = 5  #: of the first convolution
NEAREST, FARTHEST = 0.1, 100.0
POSE_SCALE = 0.01
SSIM_SHARE, C1, C2 = 0.85, 0.01**2, 0.03**2
NOISE, EPS, TINY = 1e-5, 1e-5, 1e-7
SMOOTHNESS, DEPTH_WEIGHT = 0.1, 0.05
COUNTS, POINTS = (9, 6, 11), 11  #: sparse depths of samples
MIRRORED = (False, True, False)  #: samples, as an augmentation
SEED = 1806


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): norms, padding, pooling and upsampling
    #: in plain arithmetic, sampling by triangular weights; 'batched' (PyTorch): other names, both
    #: frames and all scales in one batch, pooling by convolutions
    variant: str = ""
    is_inverse_in_order: bool = False  #: translation @ rotation of the inverse; MindSpore only
    is_ssim_padded_same: bool = False  #: pooling pads, and counts only pixels; MindSpore only
    is_warp_gradient_in_pixels: bool = False  #: that of places from -1 to 1; MindSpore only
    are_hidden_counted: bool = False  #: pixels that the mask hides; MindSpore only
    are_pixels_by_columns: bool = False  #: depths are by rows; PyTorch only
    are_corners_aligned: bool = True  #: of what is sampled; PyTorch only
    is_ratio_detached: bool = True  #: of sums of depths; PyTorch only
    is_inverse_detached: bool = False  #: the matrix of the earlier frame; PyTorch only
    is_smoothness_divided: bool = True  #: by 2^n; PyTorch only
    is_principal_mirrored: bool = True  #: the principal point, with the images

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return frames twice, intrinsics and inverse ones, mask, noise, and sparse depths.

        Frames for losses and for networks are float32 (BATCH, FRAMES, COLORS, HEIGHT, WIDTH) from
        0 to 1, intrinsics float32 (BATCH, 4, 4). The mask is float32 (BATCH, 1, HEIGHT, WIDTH),
        1 of pixels that count, noise float32 (BATCH, 2, HEIGHT, WIDTH). Numbers of pixels with a
        sparse depth are int32 (BATCH, POINTS), depths float32 (BATCH, POINTS) with zeros as
        padding, counts int32 (BATCH,).
        """
        rng = np.random.default_rng(SEED + 1)
        frames = np.zeros((BATCH, FRAMES, COLORS, HEIGHT, WIDTH))
        augmented = np.zeros_like(frames)
        intrinsics = np.tile(np.eye(4), (BATCH, 1, 1))
        mask = np.ones((BATCH, 1, HEIGHT, WIDTH))
        pixels = np.zeros((BATCH, POINTS), np.int32)
        depths = np.zeros((BATCH, POINTS))
        for n, count in enumerate(COUNTS):
            frames[n], mask[n, 0] = _draw_scene(rng)
            fx, fy = np.array([0.58 * WIDTH, 1.1 * HEIGHT]) * rng.uniform(0.9, 1.1, 2)
            cx, cy = 0.38 * WIDTH, 0.55 * HEIGHT
            if MIRRORED[n]:
                frames[n], mask[n] = frames[n, ..., ::-1].copy(), mask[n, ..., ::-1].copy()
                cx = WIDTH - 1 - cx if self.is_principal_mirrored else cx
            intrinsics[n, :2, :3] = [[fx, 0, cx], [0, fy, cy]]
            contrast, brightness = rng.uniform(0.8, 1.2), rng.uniform(-0.1, 0.1)
            augmented[n] = np.clip(contrast * (frames[n] - 0.5) + 0.5 + brightness, 0, 1)
            pixels[n, :count] = np.sort(rng.choice(PIXELS, count, replace=False))
            depths[n, :count] = rng.uniform(4, 30, count)
        inverses = np.linalg.inv(intrinsics)
        noise = rng.standard_normal((BATCH, len(SOURCES), HEIGHT, WIDTH))
        floats = (frames, augmented, intrinsics, inverses, mask, noise)
        return (
            *(values.astype(np.float32) for values in floats),
            pixels,
            depths.astype(np.float32),
            np.array(COUNTS, np.int32),
        )


def _draw_scene(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return frames (FRAMES, COLORS, HEIGHT, WIDTH) of a moving camera, and their mask.

    The mask hides an object that moves on its own, and the last row, the car with the camera.
    """
    rows, columns = np.meshgrid(np.arange(HEIGHT), np.arange(WIDTH), indexing="ij")
    waves = rng.uniform(-1.4, 1.4, (COLORS, 5, 2))
    phases = rng.uniform(0, 2 * np.pi, (COLORS, 5))
    motion = rng.uniform(0.8, 2.0, 2) * rng.choice([-1, 1], 2)
    top, left = rng.integers(2, HEIGHT - 7), rng.integers(3, WIDTH - 10)
    color = rng.uniform(0.2, 0.8, (COLORS, 1, 1))
    frames = np.zeros((FRAMES, COLORS, HEIGHT, WIDTH))
    for number in range(FRAMES):
        y, x = rows + motion[0] * (number - TARGET), columns + motion[1] * (number - TARGET)
        angles = y * waves[..., 0, None, None] + x * waves[..., 1, None, None]
        frames[number] = 0.5 + 0.09 * np.sin(angles + phases[..., None, None]).sum(1)
        first = left + number - TARGET
        frames[number, :, top : top + 4, first : first + 6] = color
    frames += rng.uniform(-0.05, 0.05, frames.shape)
    mask = np.ones((HEIGHT, WIDTH))
    mask[top : top + 4, left : left + 6] = mask[-1] = 0
    return np.clip(frames, 0, 1), mask


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_matrix("encoder.stem", ENCODER[0], COLORS, 3, 3)
    weights.add_norm("encoder.stem_norm", ENCODER[0])
    for n in (1, 2):
        n_in, n_out = ENCODER[n - 1 : n + 1]
        weights.add_matrix(f"encoder.{n}.conv1", n_out, n_in, 3, 3)
        weights.add_norm(f"encoder.{n}.norm1", n_out)
        weights.add_matrix(f"encoder.{n}.conv2", n_out, n_out, 3, 3)
        weights.add_norm(f"encoder.{n}.norm2", n_out)
        weights.add_matrix(f"encoder.{n}.down", n_out, n_in, 1, 1)
        weights.add_norm(f"encoder.{n}.down_norm", n_out)

    n_in = ENCODER[-1]
    for n in reversed(range(SCALES)):
        n_out = DECODER[n]
        weights.add_linear(f"decoder.{n}.up", n_out, n_in, 3, 3)
        n_joined = n_out + (ENCODER[n - 1] if n > 0 else 0)
        weights.add_linear(f"decoder.{n}.join", n_out, n_joined, 3, 3)
        weights.add_linear(f"decoder.{n}.disparity", 1, n_out, 3, 3)
        n_in = n_out

    # as pretrained for one image, repeated for two and divided, and trained further
    one = weights.rng.standard_normal((POSE[0], COLORS, POSE_KERNEL, POSE_KERNEL))
    further = 0.3 * weights.rng.standard_normal((POSE[0], 2 * COLORS, POSE_KERNEL, POSE_KERNEL))
    kernel = (np.concatenate([one, one], axis=1) / 2 + further) / (0.5 * POSE_KERNEL)
    weights["pose.0.weight"] = kernel.astype(np.float32)
    weights.add_bias("pose.0", POSE[0])
    for n in (1, 2):
        weights.add_linear(f"pose.{n}", POSE[n], POSE[n - 1], 3, 3)
    weights.add_linear("pose.squeeze", SQUEEZED, POSE[-1], 1, 1)
    weights.add_linear("pose.out", MOTION, SQUEEZED, 1, 1)
    for name in ("weight", "bias"):
        weights[f"pose.out.{name}"][:3] *= np.float32(11)
        weights[f"pose.out.{name}"][3:] *= np.float32(4)
    return Model("monodepth", weights)
