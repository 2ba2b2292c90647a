"""Gaussian splatting of a small scene in NumPy: sizes, knobs, weights and batch.

3D Gaussian splatting (https://arxiv.org/abs/2308.04079) with the antialiasing of Mip-Splatting
(https://arxiv.org/abs/2311.16493) and colors that depend on the image as in WildGaussians
(https://arxiv.org/abs/2407.08447). Of POINTS points, rotations R come from normalized quaternions
(w, x, y, z), sizes S are exp(log_scales), opacities a sigmoid. VIEWS cameras see a scene at once: a
point is at t = V[:3, :3] position + V[:3, 3], x to the right, y down, z forward, and

    means          fx * x / z + cx, fy * y / z + cy
    covariances    J V R S S R^T V^T J^T + BLUR on the diagonal, with the Jacobian J at
                   (x / z, y / z) clamped to FRUSTUM * size / 2 / focal length
    opacities      times sqrt(det before the blur / det behind it)

Points with z <= NEAR are not seen. Colors are relu(0.5 + sum of coefficients times harmonics of
degree 2), in the direction from the camera to the point. An mlp reads [embedding of the image,
feature of the point, color] and gives gains and shifts: relu(color * (1 + gain) + shift).

Points are sorted by z. At a pixel, whose center is at column + 0.5, row + 0.5,

    alpha    min(opacity * exp(-d^T covariance^-1 d / 2), MAX_ALPHA), 0 if below MIN_ALPHA
    weight   alpha * product of 1 - alpha of the points before

An image is the sum of weight * color and of what is left times sigmoid(background). A depth is the
sum of weight * z divided by that of the weights. The loss is the sum of

    l1         (1 - SSIM_SHARE) of it, mean of colors of the pixels that count
    dssim      SSIM_SHARE of 1 - SSIM, of images that are zero where pixels do not count, with a
               Gaussian window and zeros outside, mean of the same pixels
    depth      smooth L1 of the sparse depths, weighted by their confidences, mean of images
    entropy    of the opacities, mean of points
    size       mean of sizes
    ratio      of largest and smallest size of a point, as far as it is above MAX_RATIO, mean

the last four times DEPTH, ENTROPY, SIZE and RATIO. Weights are float32:

    positions, log_scales          (POINTS, 3)
    quaternions, opacities         (POINTS, 4), of any length, and (POINTS,)
    harmonics.dc, harmonics.rest   (POINTS, 1, 3), (POINTS, HARMONICS - 1, 3)
    features                       (POINTS, FEATURE)
    images.weight                  (IMAGES, EMBEDDING)
    mlp.N                          linear (out, in) with bias, relu between them
    background                     (3,)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

BALL, WALLS = 18, 2
POINTS = BALL + WALLS + 3  #: the others are in front of and behind cameras
HEIGHT, WIDTH = 15, 20
SIZES = ((15, 17), (13, 20), (14, 19))  #: height and width of the images without their padding
VIEWS = len(SIZES)
PIXELS = HEIGHT * WIDTH
INTRINSICS = ((21.0, 22.5, 8.7, 7.2), (19.5, 18.5, 9.6, 6.8), (23.0, 24.0, 10.1, 6.6))
DISTANCE, ANGLES, LIFTS = 3.0, (-0.5, 0.1, 0.6), (-0.3, 0.5, 0.2)  #: of cameras
NEAR, FRUSTUM, BLUR = 0.2, 1.3, 0.3
HARMONICS = 9
C0, C1 = 0.28209479177387814, 0.4886025119029199
C2 = (
    1.0925484305920792,
    -1.0925484305920792,
    0.31539156525252005,
    -1.0925484305920792,
    0.5462742152960396,
)
IMAGES, IMAGE_IDS, EMBEDDING, FEATURE = 5, (3, 0, 4), 6, 5
LAYERS = (EMBEDDING + FEATURE + 3, 18, 18, 6)  #: sizes of the mlp
MIN_ALPHA, MAX_ALPHA = 1 / 255, 0.99
WINDOW, SIGMA, SSIM_C1, SSIM_C2 = 7, 1.5, 0.01**2, 0.03**2
LABELS = (9, 6, 7)  #: sparse depths of each image
SSIM_SHARE, DEPTH, ENTROPY, SIZE, RATIO, MAX_RATIO = 0.2, 0.2, 0.05, 0.05, 0.02, 2.0
SEED = 2308


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'unsorted' (MindSpore): transmittances from all pairs of
    #: points, rotations from products of quaternions, windows as products with bands; 'inria'
    #: (PyTorch): other names, covariances from their square roots, points sorted by indices,
    #: transmittances from sums of logarithms, windows in two passes
    variant: str = ""
    is_compensated: bool = True  #: opacities, for the blur; MindSpore only
    is_rotation_transposed: bool = False  #: of points; MindSpore only
    near: float = NEAR  #: MindSpore only
    is_normalization_passed: bool = False  #: by the gradient of quaternions; MindSpore only
    are_hidden_counted: bool = False  #: in the divisor of the L1 distance; MindSpore only
    is_opacity_gradient_full: bool = False  #: not times the compensation; MindSpore only
    are_views_reversed: bool = False  #: from the point to the camera; PyTorch only
    pixel_center: float = 0.5  #: PyTorch only
    is_covariance_gradient_halved: bool = False  #: beside the diagonal; PyTorch only
    are_views_detached: bool = False  #: no gradient through directions; PyTorch only
    are_depths_distances: bool = False  #: from the camera, not along its axis

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return of VIEWS cameras, float32 if nothing else is said:

        matrices from world to camera (VIEWS, 4, 4), focal lengths and centers (VIEWS, 4), heights
        and widths, int32 (VIEWS, 2), numbers of images, int32 (VIEWS,), images from 0 to 1 (VIEWS,
        HEIGHT, WIDTH, 3), which of their pixels count (VIEWS, HEIGHT, WIDTH), and of the sparse
        depths pixels, int32, row * WIDTH + column, depths and confidences (VIEWS, max(LABELS)).
        Padding of images, at bottom and right, and of sparse depths is 0.
        """
        rng = np.random.default_rng(SEED + 1)
        viewmats = _make_cameras()
        images = np.zeros((VIEWS, HEIGHT, WIDTH, 3))
        masks = np.zeros((VIEWS, HEIGHT, WIDTH))
        pixels, depths, confidences = np.zeros((3, VIEWS, max(LABELS)))
        for n, (height, width) in enumerate(SIZES):
            patches = rng.uniform(0.15, 0.85, (height // 3 + 1, width // 3 + 1, 3))
            patches = patches.repeat(3, axis=0).repeat(3, axis=1)[:height, :width]
            grain = 0.08 * rng.standard_normal((height, width, 3))
            images[n, :height, :width] = np.clip(patches + grain, 0, 1)
            masks[n, :height, :width] = 1
            top, start = rng.integers(1, (height - 6, width - 6))
            masks[n, top : top + 4, start : start + 5] = 0
            seen = _draw_positions()[:BALL] @ viewmats[n, :3, :3].T + viewmats[n, :3, 3]
            fx, fy, cx, cy = INTRINSICS[n]
            columns = (fx * seen[:, 0] / seen[:, 2] + cx).astype(int)
            rows = (fy * seen[:, 1] / seen[:, 2] + cy).astype(int)
            is_inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
            chosen = rng.permutation(np.flatnonzero(is_inside))[: LABELS[n]]
            along = np.linalg.norm(seen, axis=1) if self.are_depths_distances else seen[:, 2]
            labels = slice(len(chosen))
            pixels[n, labels] = rows[chosen] * WIDTH + columns[chosen]
            depths[n, labels] = along[chosen] * rng.uniform(0.9, 1.1, len(chosen))
            confidences[n, labels] = rng.uniform(0.3, 1, len(chosen))
        return (
            viewmats.astype(np.float32),
            np.array(INTRINSICS, np.float32),
            np.array(SIZES, np.int32),
            np.array(IMAGE_IDS, np.int32),
            images.astype(np.float32),
            masks.astype(np.float32),
            pixels.astype(np.int32),
            depths.astype(np.float32),
            confidences.astype(np.float32),
        )


def make_window() -> np.ndarray:
    """Return the Gaussian of SSIM, one axis of it."""
    places = np.arange(WINDOW) - WINDOW // 2
    values = np.exp(-(places**2) / (2 * SIGMA**2))
    return (values / values.sum()).astype(np.float32)


def _make_cameras() -> np.ndarray:
    """Return matrices from world to camera, (VIEWS, 4, 4); cameras look about at the origin."""
    viewmats = np.tile(np.eye(4), (VIEWS, 1, 1))
    for n, (angle, lift) in enumerate(zip(ANGLES, LIFTS, strict=True)):
        center = DISTANCE * np.array([np.sin(angle), lift / DISTANCE, -np.cos(angle)])
        forward = np.array([0.1 * n, 0.05, 0.2]) - center
        forward /= np.linalg.norm(forward)
        right = np.cross([0.08 * (n - 1), 1.0, 0.0], forward)
        right /= np.linalg.norm(right)
        rotation = np.stack([right, np.cross(forward, right), forward])
        viewmats[n, :3, :3] = rotation
        viewmats[n, :3, 3] = -rotation @ center
    return viewmats


def _draw_positions() -> np.ndarray:
    """Return a ball of points, walls behind it, and a point close to each camera."""
    rng = np.random.default_rng(SEED + 2)
    directions = rng.standard_normal((BALL, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    ball = directions * rng.uniform(0.3, 1.1, (BALL, 1))
    walls = np.array([(-0.7, -0.2, 1.6), (0.9, 0.3, 1.9)])
    offsets = np.array([(0.02, -0.03, 0.09), (0.1, 0.05, -0.9), (-0.03, 0.02, 0.12)])
    close = [
        viewmat[:3, :3].T @ (offset - viewmat[:3, 3])
        for viewmat, offset in zip(_make_cameras(), offsets, strict=True)
    ]
    return np.concatenate([ball, walls, close])


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    rng = weights.rng
    log_scales = np.log(0.28) + 0.4 * rng.standard_normal((POINTS, 3))
    log_scales[BALL : BALL + WALLS] = np.log([(1.9, 1.6, 0.6), (1.5, 2.0, 0.8)])
    log_scales[BALL + WALLS :] -= 0.8
    quaternions = rng.standard_normal((POINTS, 4))
    quaternions /= np.linalg.norm(quaternions, axis=1, keepdims=True)
    opacities = 0.4 + rng.standard_normal(POINTS)
    opacities[BALL : BALL + WALLS] = 6.2, 5.8
    arrays = {
        "positions": _draw_positions(),
        "log_scales": log_scales,
        "quaternions": quaternions * rng.uniform(0.6, 1.6, (POINTS, 1)),
        "opacities": opacities,
        "harmonics.dc": rng.standard_normal((POINTS, 1, 3)) * 0.3 / C0,
        "harmonics.rest": 0.25 * rng.standard_normal((POINTS, HARMONICS - 1, 3)),
        "features": rng.standard_normal((POINTS, FEATURE)),
    }
    for name, values in arrays.items():
        weights[name] = values.astype(np.float32)
    weights.add_table("images", IMAGES, EMBEDDING)
    for n in range(len(LAYERS) - 1):
        weights.add_linear(f"mlp.{n}", LAYERS[n + 1], LAYERS[n])
    weights["mlp.2.weight"] *= np.float32(0.4)
    weights["background"] = np.array([0.6, -0.4, 0.3], np.float32)
    return Model("splat", weights)
