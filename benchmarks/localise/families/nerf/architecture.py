"""A neural radiance field in NumPy: sizes, knobs, weights and batch.

Points along rays are encoded by sines and cosines (https://arxiv.org/abs/2003.08934, section 5.1).
A network gives the density of a point, and with the encoded direction of view its color. Samples
are composited to the color of a ray over a white background (section 4). There is a coarse and a
fine network of the same form; the depths of the samples of both come with the batch, as does the
noise of the densities. Densities are shifted softplus, and the last interval of a ray ends at FAR.
The loss is the squared error of both colors, COARSE_WEIGHT times that of the coarse one
(https://arxiv.org/abs/2103.13415, section 3.3), the squared error of the fine depth
(https://arxiv.org/abs/2107.02791, section 3.2), the distortion of the fine weights
(https://arxiv.org/abs/2111.12077, section 4), and the entropy of the fine opacity. Weights, each
(outputs, inputs), of NETWORK = coarse, fine:

    NETWORK.points.{0..3}   linear, each with a relu
    NETWORK.density         linear, to one number
    NETWORK.feature         linear
    NETWORK.view            linear, with a relu
    NETWORK.color           linear, with a sigmoid

An encoding is the vector itself, then the sines of its three coordinates times 1, their cosines,
the sines of twice the coordinates, and so on. The inputs of points.SKIP are the encoded point, then
the layer before; those of the view the feature, then the encoded direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

RAYS, COARSE_SAMPLES, FINE_SAMPLES = 24, 12, 16
POINT_FREQUENCIES, VIEW_FREQUENCIES = 4, 2
POINT_SIZE, VIEW_SIZE = 3 + 6 * POINT_FREQUENCIES, 3 + 6 * VIEW_FREQUENCIES
WIDTH, VIEW_WIDTH, LAYERS, SKIP = 32, 20, 4, 2
NEAR, FAR = 2.0, 6.0
COARSE_WEIGHT, DEPTH_WEIGHT, DISTORTION_WEIGHT, OPACITY_WEIGHT = 0.1, 0.02, 0.05, 0.01
TINY = 1e-10
SEED = 401


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'fields' (PyTorch): encoding, field and renderer as modules of
    #: their own, weights from optical depths, the distortion by sums over the samples before;
    #: 'split' (MindSpore): joined inputs by a product for each part, one pass through lists of
    #: sines and cosines, weights as differences of transmittances
    variant: str = ""
    frequency_factor: float = 1.0
    are_sines_grouped: bool = False  #: all sines before all cosines
    are_views_normalized: bool = True
    is_last_endless: bool = False  #: the last interval has the length 1e10, not up to FAR
    is_product_inclusive: bool = False  #: the transmittance has the sample's own opacity, too
    density_shift: float = -1.0  #: added before the softplus
    is_skip_last: bool = False  #: the encoded point comes behind the layer before
    has_background: bool = True
    coarse_weight: float = COARSE_WEIGHT
    is_distortion_stopped: bool = False  #: no gradient from the distortion
    density_activation: str = "softplus"  #: or 'relu'
    is_gradient_by_distance: bool = False  #: of colors and densities: smaller near the camera
    is_depth_expected: bool = False  #: divided by the opacity; MindSpore only
    are_views_tiled: bool = False  #: repeated as a whole, not each of them; PyTorch only
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(
            kind="adam", learning_rate=2e-3, eps=1e-6, weight_decay=0.0, clip=1e-3
        )
    )

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return origins and directions, float32 (RAYS, 3) each; depths of coarse and of fine
        samples, (RAYS, COARSE_SAMPLES) and (RAYS, FINE_SAMPLES); noise of their densities, of the
        same shapes; the right colors, (RAYS, 3), and depths, (RAYS,).
        """
        rng = np.random.default_rng(SEED + 1)
        pixels = rng.uniform(-0.6, 0.6, (RAYS, 2))
        directions = np.concatenate((pixels, -np.ones((RAYS, 1))), axis=1)
        turn, _ = np.linalg.qr(rng.standard_normal((3, 3)))
        directions = directions @ turn.T
        origins = np.tile(4 * turn[:, 2], (RAYS, 1)) + 0.1 * rng.standard_normal((RAYS, 3))
        starts = np.linspace(NEAR, FAR, COARSE_SAMPLES, endpoint=False)
        length = (FAR - NEAR) / COARSE_SAMPLES
        coarse = starts + length * rng.uniform(0.05, 0.95, (RAYS, COARSE_SAMPLES))
        true_depths = rng.uniform(3.0, 5.0, RAYS)
        near_surface = rng.normal(
            true_depths[:, None], 0.5, (RAYS, FINE_SAMPLES - COARSE_SAMPLES // 2)
        ).clip(NEAR + 0.01, FAR - 0.01)
        fine = np.sort(np.concatenate((coarse[:, ::2], near_surface), axis=1), axis=1)
        coarse_noise = 0.5 * rng.standard_normal(coarse.shape)
        fine_noise = 0.5 * rng.standard_normal(fine.shape)
        colors = rng.uniform(0.05, 0.95, (RAYS, 3))
        arrays = (origins, directions, coarse, fine, coarse_noise, fine_noise, colors, true_depths)
        return tuple(np.ascontiguousarray(array, dtype=np.float32) for array in arrays)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    for network in ("coarse", "fine"):
        for n in range(LAYERS):
            n_in = POINT_SIZE if n == 0 else WIDTH
            if n == SKIP:
                n_in += POINT_SIZE
            weights.add_linear(f"{network}.points.{n}", WIDTH, n_in)
        weights.add_linear(f"{network}.density", 1, WIDTH)
        weights.add_linear(f"{network}.feature", WIDTH, WIDTH)
        weights.add_linear(f"{network}.view", VIEW_WIDTH, WIDTH + VIEW_SIZE)
        weights.add_linear(f"{network}.color", 3, VIEW_WIDTH)
    return Model("nerf", weights)
