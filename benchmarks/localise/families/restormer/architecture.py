"""A transformer that restores images in NumPy: sizes, knobs, weights and batch.

Restormer (https://arxiv.org/abs/2111.09881), with two levels. Convolutions have no bias but that of
``lower``, and zeros as padding. A block is x += attention(norm1(x)); x += feed(norm2(x)), with

    norm1, norm2  over the channels of each pixel. Those of the lower level have no bias, and do not
                  subtract the mean: x / sqrt(variance + NORM_EPS) * weight
    attention     q, k, v = depthwise(qkv(x)); q and k are 0 in pixels beyond the image. They are
                  divided by their L2 norms along the pixels, channel by channel. The scores of the
                  channels of a head are q k^T * temperature; out(softmax(scores) v)
    feed          a, b = depthwise(in(x)); out(gelu(a) * b), gelu by the error function

The features of the embedded image pass the encoder, and ``down``, which halves the channels before
a pixel unshuffle, the latent blocks, and ``up``, which doubles them before a pixel shuffle. ``up``
and the encoder's features, in this order, are joined; ``reduce`` halves the channels for the
decoder. What ``output`` returns is added to the image, what ``lower`` makes of the latent features
to the mean of each 2x2 pixels of it.

Images are padded to HEIGHT x WIDTH by reflection; the mask is 1 in their own pixels. The mask of
the lower level is every second pixel of it. With c(x) = sqrt(x^2 + CHARBONNIER_EPS^2), the loss of
an image is the sum of

    pixels  c(output - target)
    edges   c(l(mask * output) - l(mask * target)) * EDGE_WEIGHT, with the Laplacian l
    lower   c(lower - mean of each 2x2 pixels of the target) * LOWER_WEIGHT

each as mean of the mask's pixels. The loss is the mean of the images, weighted by their weights.

Weights are float32, 1x1 convolutions but for what is named:

    embed, output, lower, down, up         3x3; lower has a bias
    reduce
    {encoder, latent, decoder}.N.{norm1, norm2}
    {encoder, latent, decoder}.N.attention.{qkv, depthwise, out}, depthwise (3 * channels, 1, 3, 3)
    {encoder, latent, decoder}.N.attention.temperature (heads, 1, 1)
    {encoder, latent, decoder}.N.feed.{in, depthwise, out}, depthwise (2 * hidden, 1, 3, 3)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

SIZES = ((12, 16), (9, 13), (11, 10))  #: height and width of each image
BATCH, HEIGHT, WIDTH = len(SIZES), 12, 16
COLORS, CHANNELS, FACTOR = 3, 12, 2
LATENT = FACTOR * CHANNELS  #: channels of the lower level
HEADS, LATENT_HEADS = 3, 4
EXPANSION = 2.66  #: of the channels between the feed-forward's convolutions
BLOCKS = {"encoder": 1, "latent": 2, "decoder": 1}
NORM_EPS, CHARBONNIER_EPS = 1e-5, 1e-3
EDGE_WEIGHT, LOWER_WEIGHT = 0.4, 0.25
LAPLACIAN = np.array([[0, 1, 0], [1, -4, 1], [0, 1, 0]], np.float32)
IMAGE_WEIGHTS = (1.0, 0.55, 1.6)
HEAD_SCALE = 0.25  #: of the weights that draw what is added to the images
NOISE = 0.08  #: standard deviation
FLIPPED = 1  #: the image whose target a fault turns over
SEED = 2111


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): 1x1 convolutions as products, norms,
    #: softmax, gelu, pixel shuffles, means and Laplacian in plain arithmetic; 'split' (PyTorch):
    #: other names, convolutions of q, k, v and of the gate apart, fused attention, the three
    #: losses as sums of products with maps of weights
    variant: str = ""
    is_norm_of_channels: bool = False  #: L2 norms along a head's channels; MindSpore only
    is_offset_first: bool = False  #: the pixel unshuffle's channels; MindSpore only
    are_keys_masked: bool = True  #: MindSpore only
    is_lower_detached: bool = False  #: no gradient from lower to latent features; MindSpore only
    lower_weight: float = LOWER_WEIGHT  #: MindSpore only
    is_eps_squared: bool = True  #: that of the Charbonnier loss; MindSpore only
    is_lower_centered: bool = False  #: norms of the lower level subtract the mean; PyTorch only
    are_pixels_pooled: bool = False  #: means of all images' pixels; PyTorch only
    temperature_gradient: float = 1.0  #: factor of the temperatures' gradient; PyTorch only
    is_mean_constant: bool = False  #: for the gradient of the upper level's norms; PyTorch only
    are_heads_interleaved: bool = False  #: every HEADS-th channel; PyTorch only
    is_target_flipped: bool = False  #: left to right, of the image FLIPPED

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return images and targets, float32 (BATCH, COLORS, HEIGHT, WIDTH), the mask, float32
        (BATCH, 1, HEIGHT, WIDTH), and the images' weights, float32 (BATCH,).
        """
        rng = np.random.default_rng(SEED + 1)
        shape = (BATCH, COLORS, HEIGHT, WIDTH)
        images, targets = np.zeros(shape), np.zeros(shape)
        mask = np.zeros((BATCH, 1, HEIGHT, WIDTH))
        for n, (height, width) in enumerate(SIZES):
            target = _draw_photo(rng, height, width)
            image = _blur(target) + NOISE * rng.standard_normal(target.shape)
            if self.is_target_flipped and n == FLIPPED:
                target = target[..., ::-1]
            images[n], targets[n] = _pad(image), _pad(target)
            mask[n, :, :height, :width] = 1
        arrays = (images, targets, mask, np.array(IMAGE_WEIGHTS))
        return tuple(array.astype(np.float32) for array in arrays)


def _draw_photo(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Return an image with areas of 3x3 pixels of like color, 0 to 1."""
    areas = rng.uniform(size=(COLORS, height // 3 + 1, width // 3 + 1))
    areas = areas.repeat(3, axis=1).repeat(3, axis=2)[:, :height, :width]
    return 0.8 * areas + 0.2 * rng.uniform(size=areas.shape)


def _blur(image: np.ndarray) -> np.ndarray:
    """Return the image behind a binomial filter along its rows and columns."""
    for axis in (1, 2):
        margin = [(int(axis == other),) * 2 for other in range(3)]
        padded = np.moveaxis(np.pad(image, margin, mode="reflect"), axis, 0)
        image = np.moveaxis((padded[:-2] + 2 * padded[1:-1] + padded[2:]) / 4, 0, axis)
    return image


def _pad(image: np.ndarray) -> np.ndarray:
    """Return the image with its reflection below and on the right."""
    _, height, width = image.shape
    return np.pad(image, ((0, 0), (0, HEIGHT - height), (0, WIDTH - width)), mode="reflect")


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_matrix("embed", CHANNELS, COLORS, 3, 3)
    weights.add_matrix("down", CHANNELS // FACTOR, CHANNELS, 3, 3)
    weights.add_matrix("up", FACTOR * LATENT, LATENT, 3, 3)
    weights.add_matrix("reduce", CHANNELS, 2 * CHANNELS, 1, 1)
    weights.add_matrix("output", COLORS, CHANNELS, 3, 3)
    weights.add_linear("lower", COLORS, LATENT, 3, 3)
    for head in ("output.weight", "lower.weight"):
        weights[head] *= np.float32(HEAD_SCALE)
    for level, n_blocks in BLOCKS.items():
        for n in range(n_blocks):
            _add_block(weights, f"{level}.{n}", is_lower=level == "latent")
    return Model("restormer", weights)


def _add_block(weights: Weights, path: str, *, is_lower: bool) -> None:
    channels, heads = (LATENT, LATENT_HEADS) if is_lower else (CHANNELS, HEADS)
    hidden = int(EXPANSION * channels)
    for norm in ("norm1", "norm2"):
        weights.add_norm(f"{path}.{norm}", channels, has_bias=not is_lower)
    temperature = weights.rng.uniform(2, 7, (heads, 1, 1))
    weights[f"{path}.attention.temperature"] = temperature.astype(np.float32)
    weights.add_matrix(f"{path}.attention.qkv", 3 * channels, channels, 1, 1)
    weights.add_matrix(f"{path}.attention.depthwise", 3 * channels, 1, 3, 3)
    weights.add_matrix(f"{path}.attention.out", channels, channels, 1, 1)
    weights.add_matrix(f"{path}.feed.in", 2 * hidden, channels, 1, 1)
    weights.add_matrix(f"{path}.feed.depthwise", 2 * hidden, 1, 3, 3)
    weights.add_matrix(f"{path}.feed.out", channels, hidden, 1, 1)
