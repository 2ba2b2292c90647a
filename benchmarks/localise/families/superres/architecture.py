"""Super-resolution of images in NumPy: sizes, knobs, weights and batch.

The trunk is that of https://arxiv.org/abs/1807.02758 (section 3), small: images minus the mean of
their training set, a convolution, residual groups with a short skip each, a convolution and the
long skip, one up-sampling by pixel shuffle, the last convolution. What it returns is added to the
images resized by bicubic interpolation (-0.75, no anti-aliasing), and the mean is added again. A
group has two blocks, both x + RESIDUAL_SCALE * f(x) (https://arxiv.org/abs/1707.02921, section 3):

    channel  convolution, relu, convolution; times a sigmoid for each channel, of its mean over all
             pixels behind two 1x1 convolutions with a relu between them
    large    u = gelu(proj1(x)); proj2(u * pointwise(dilated(depthwise(u)))), the attention of
             https://arxiv.org/abs/2202.09741 (section 3.1); gelu by the error function

The loss of one step is the sum of

    pixels    sqrt(error^2 + EPSILON), its mean (https://arxiv.org/abs/1710.01992, equation 3)
    edges     L1 between Sobel derivatives, an eighth of the kernels' sums, of images whose border
              is repeated; times EDGE_WEIGHT
    features  L1 between activations of a small network without training, the sum of its layers,
              times FEATURE_WEIGHT; it reads images cut to 0..1, minus FEATURE_MEAN, by FEATURE_STD

Convolutions have a bias, and 'same' padding with zeros. Weights:

    head, fuse, tail           3x3: to FEATURES, of the long skip, to colors
    up                         3x3 to FACTOR**2 times the channels; channel before offset
    groups.N.conv              3x3
    groups.N.channel.          conv1, conv2 3x3; squeeze, excite 1x1
    groups.N.large.            proj1, pointwise, proj2 1x1; depthwise, dilated
    judge.N                    3x3 with relu, of the network without training; stride N + 1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, HEIGHT, WIDTH, COLORS = 2, 9, 11, 3  #: of the images that are read
FACTOR = 2
FEATURES, SQUEEZED, GROUPS = 14, 5, 2
DEPTHWISE_KERNEL, DILATED_KERNEL, DILATION = 5, 7, 2
JUDGE_CHANNELS = (6, 10)
MEAN = (0.4488, 0.4371, 0.4040)  #: of red, green, blue in DIV2K
FEATURE_MEAN, FEATURE_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RESIDUAL_SCALE = 0.2
EPSILON = 1e-6
EDGE_WEIGHT, FEATURE_WEIGHT = 2.0, 0.1
CUBIC = -0.75  #: coefficient of the bicubic interpolation
SOBEL = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], np.float32) / 8
MARGIN = 4  #: pixels of a photo beyond the crop, on the side of the images that are read
ORIGIN = (2, 3)  #: row and column of the crop, on the same side
SEED = 1807


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (PyTorch): other names, 1x1 convolutions by einsum,
    #: depthwise ones from patches, bicubic matrices, pixel shuffle, gelu and Sobel written out;
    #: 'joined' (PyTorch): one batch of images and targets in the losses, the gate by linear layers,
    #: fused residual sums, the mean subtracted; 'products' (MindSpore): 1x1 convolutions as matrix
    #: products, the gate by dense layers, the derivatives of the error, pixel shuffle written out
    variant: str = ""
    mean: tuple[float, ...] = MEAN  #: PyTorch only
    is_antialiased: bool = False  #: the bicubic interpolation; PyTorch only
    dilation: int = DILATION  #: MindSpore only
    is_input_gated: bool = False  #: large attention multiplies the block's input; MindSpore only
    is_skip_last: bool = False  #: the long skip begins behind the groups; MindSpore only
    epsilon: float = EPSILON  #: of the loss of pixels; PyTorch only
    edge_padding: str = "replicate"  #: or 'zeros'; PyTorch only
    are_features_constant: bool = False  #: no gradient of the loss of features; MindSpore only
    is_cut_passed: bool = False  #: the gradient passes the cut to 0..1 as it is; MindSpore only
    branch_gradient: float = 1.0  #: factor of the gradient of channel branches; PyTorch only
    are_features_normed: bool = True  #: what the network without training reads; MindSpore only
    is_skip_detached: bool = False  #: no gradient through the long skip; PyTorch only
    are_features_raw: bool = False  #: activations before their relu are compared; MindSpore only
    has_contrast: bool = False  #: gates read mean plus deviation of pixels; PyTorch only
    target_origin: tuple[int, int] = (FACTOR * ORIGIN[0], FACTOR * ORIGIN[1])
    optimizer: Optimizer = field(default_factory=Optimizer)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return images, float32 (BATCH, COLORS, HEIGHT, WIDTH), 0 to 1, and larger targets."""
        photos = _draw_photos()
        top, left = ORIGIN
        means = photos.reshape(BATCH, COLORS, HEIGHT + MARGIN, FACTOR, WIDTH + MARGIN, FACTOR)
        images = means.mean((3, 5))[:, :, top : top + HEIGHT, left : left + WIDTH]
        top, left = self.target_origin
        rows, columns = slice(top, top + FACTOR * HEIGHT), slice(left, left + FACTOR * WIDTH)
        targets = photos[:, :, rows, columns]
        return images.astype(np.float32), targets.astype(np.float32)


def _draw_photos() -> np.ndarray:
    """Return images with areas of 3x3 pixels of like color, 0 to 1, larger than the targets."""
    rng = np.random.default_rng(SEED + 1)
    height, width = FACTOR * (HEIGHT + MARGIN), FACTOR * (WIDTH + MARGIN)
    areas = rng.uniform(size=(BATCH, COLORS, height // 3 + 1, width // 3 + 1))
    areas = areas.repeat(3, axis=2).repeat(3, axis=3)[:, :, :height, :width]
    return 0.8 * areas + 0.2 * rng.uniform(size=areas.shape)


def build_bicubic(length: int) -> np.ndarray:
    """Return the matrix (FACTOR * length, length) that resizes an axis."""
    matrix = np.zeros((FACTOR * length, length))
    for row in range(len(matrix)):
        position = (row + 0.5) / FACTOR - 0.5
        first = int(np.floor(position)) - 1
        for column in range(first, first + 4):
            matrix[row, np.clip(column, 0, length - 1)] += _compute_cubic(abs(position - column))
    return matrix.astype(np.float32)


def _compute_cubic(distance: float) -> float:
    """Return the share of a pixel at a distance (Keys' kernel)."""
    if distance <= 1:
        return (CUBIC + 2) * distance**3 - (CUBIC + 3) * distance**2 + 1
    return CUBIC * (distance**3 - 5 * distance**2 + 8 * distance - 4)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_linear("head", FEATURES, COLORS, 3, 3)
    for n in range(GROUPS):
        _add_group(weights, f"groups.{n}")
    weights.add_linear("fuse", FEATURES, FEATURES, 3, 3)
    weights.add_linear("up", FACTOR**2 * FEATURES, FEATURES, 3, 3)
    weights.add_linear("tail", COLORS, FEATURES, 3, 3)
    n_in = COLORS
    for n, channels in enumerate(JUDGE_CHANNELS):
        weights.add_linear(f"judge.{n}", channels, n_in, 3, 3)
        n_in = channels
    return Model("superres", weights)


def _add_group(weights: Weights, path: str) -> None:
    for name in ("channel.conv1", "channel.conv2", "conv"):
        weights.add_linear(f"{path}.{name}", FEATURES, FEATURES, 3, 3)
    weights.add_linear(f"{path}.channel.squeeze", SQUEEZED, FEATURES, 1, 1)
    weights.add_linear(f"{path}.channel.excite", FEATURES, SQUEEZED, 1, 1)
    for name in ("proj1", "pointwise", "proj2"):
        weights.add_linear(f"{path}.large.{name}", FEATURES, FEATURES, 1, 1)
    for name, kernel in (("depthwise", DEPTHWISE_KERNEL), ("dilated", DILATED_KERNEL)):
        weights.add_linear(f"{path}.large.{name}", FEATURES, 1, kernel, kernel)
