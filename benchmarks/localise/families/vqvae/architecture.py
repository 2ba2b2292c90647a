"""A VQ-VAE in NumPy: sizes, knobs, weights and batch.

Two strided convolutions, residual blocks and attention encode an image
(https://arxiv.org/abs/2012.09841, appendix A). Each cell of the encoding is replaced by the nearest
row of a codebook; the gradient passes straight through (https://arxiv.org/abs/1711.00937, section
3.2). The decoder goes back by a transposed convolution and an upsampling of nearest pixels. The
loss is the squared error of the pixels, divided by their variance, plus codebook and commitment
loss (ibid., equation 3). Weights:

    encoder.conv_in, encoder.down             4x4 convolutions of stride 2, with bias
    encoder.block.N, decoder.block.N          conv1 (3x3), norm, conv2 (1x1); N = 0 and decoder's
                                              N = 2 are at the higher resolution
    encoder.attention, decoder.attention      norm, q, k, v, o (1x1 convolutions)
    encoder.norm, encoder.conv_out            group norm, 1x1 convolution to EMBED
    codebook.weight (CODES, EMBED)
    decoder.conv_in, decoder.conv_up, decoder.conv_out        3x3 convolutions
    decoder.up.weight (in, out, 3, 3), decoder.up.bias        transposed convolution of stride 2;
                                              its last row and column are cut off
    decoder.norm                                              group norm
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, IMAGE, STEM, CHANNELS, EMBED, CODES = 3, 16, 12, 24, 8, 20
GROUPS = 4
CELLS = IMAGE // 4  #: along an edge, where the codebook is looked up
EPS = 1e-6
BETA = 0.25  #: weight of the commitment loss
VARIANCE = 0.3  #: of the pixels of all images, in [-1, 1]
CODEBOOK_DIMENSIONS = 2
SEED = 151


@dataclass(frozen=True)
class CodebookOptimizer(Optimizer):
    """AdamW whose codebook learns faster than the rest."""

    learning_rate: float = 2e-3
    codebook_rate: float = 5.0  #: factor of its learning rate

    def get_rate(self, n_dimensions: int) -> float:
        """Return the learning rate of a weight; only the codebook has two dimensions."""
        rate = super().get_rate(n_dimensions)
        return rate * (self.codebook_rate if n_dimensions == CODEBOOK_DIMENSIONS else 1)


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault, of all blocks."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'fused' (PyTorch): one projection and the framework's fused
    #: attention, distances from differences, rows of the codebook by one-hot vectors; 'written'
    #: (MindSpore): group norm, silu and softmax in plain arithmetic, upsampling by repetition,
    #: rows of the codebook by gathering
    variant: str = ""
    #: the transposed convolution loses its first row and column, not its last ones
    is_transposed_shifted: bool = False
    product_factor: float = 2.0  #: of the products in the squared distances
    is_channel_read_first: bool = False  #: encodings are cut into rows without moving the channels
    is_residual_activated: bool = False  #: residual blocks add their activated input
    is_scaled_by_cells: bool = False  #: scores divided by the root of the cells, not the channels
    are_weights_transposed: bool = True  #: the attention's, before they multiply (channels, cells)
    is_commitment_detached: bool = True  #: no gradient of the commitment loss to the codebook
    quantizer_reduction: str = "elements"  #: or 'cells': squared distances, averaged over cells
    is_target_raw: bool = False  #: the decoder is compared with pixels in [0, 1]
    is_beta_exchanged: bool = False  #: beta weighs the codebook loss, not the commitment
    is_straight_through: bool = True  #: else the decoder reads the rows of the codebook
    #: the straight-through gradient goes to the rows of the codebook, too; MindSpore only
    is_gradient_passed_twice: bool = False
    softmax_axis: int = 2  #: of the attention's scores (batch, queries, keys); PyTorch only
    groups: int = GROUPS  #: of all group norms
    resize_mode: str = "nearest"  #: or 'bilinear', of the decoder's upsampling
    pixel_variance: float = VARIANCE  #: the squared error of the pixels is divided by it
    is_pixel_error_absolute: bool = False  #: not squared; MindSpore only
    #: a pixel's gradient is the mean, not the sum, of those of its copies in the decoder's
    #: upsampling; PyTorch only
    is_upsampling_gradient_mean: bool = False
    optimizer: Optimizer = field(default_factory=CodebookOptimizer)

    @property
    def score_scale(self) -> float:
        """Return the factor of the attention's scores."""
        return (CELLS**2 if self.is_scaled_by_cells else CHANNELS) ** -0.5

    def batch(self) -> tuple[np.ndarray]:
        """Return images, float32 (batch, 3, IMAGE, IMAGE), in [0, 1]."""
        rng = np.random.default_rng(SEED + 1)
        return (rng.uniform(0, 1, (BATCH, 3, IMAGE, IMAGE)).astype(np.float32),)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)

    def add_block(path: str, channels: int) -> None:
        weights.add_linear(f"{path}.conv1", channels, channels, 3, 3)
        weights.add_norm(f"{path}.norm", channels)
        weights.add_linear(f"{path}.conv2", channels, channels, 1, 1)

    def add_attention(path: str) -> None:
        weights.add_norm(f"{path}.norm", CHANNELS)
        for name in "qkvo":
            weights.add_linear(f"{path}.{name}", CHANNELS, CHANNELS, 1, 1)

    weights.add_linear("encoder.conv_in", STEM, 3, 4, 4)
    add_block("encoder.block.0", STEM)
    weights.add_linear("encoder.down", CHANNELS, STEM, 4, 4)
    add_block("encoder.block.1", CHANNELS)
    add_attention("encoder.attention")
    add_block("encoder.block.2", CHANNELS)
    weights.add_norm("encoder.norm", CHANNELS)
    weights.add_linear("encoder.conv_out", EMBED, CHANNELS, 1, 1)
    weights.add_table("codebook", CODES, EMBED, deviation=0.6)
    weights.add_linear("decoder.conv_in", CHANNELS, EMBED, 3, 3)
    add_block("decoder.block.0", CHANNELS)
    add_attention("decoder.attention")
    add_block("decoder.block.1", CHANNELS)
    weights.add_matrix("decoder.up", CHANNELS, STEM, 3, 3)
    weights.add_bias("decoder.up", STEM)
    add_block("decoder.block.2", STEM)
    weights.add_linear("decoder.conv_up", STEM, STEM, 3, 3)
    weights.add_norm("decoder.norm", STEM)
    weights.add_linear("decoder.conv_out", 3, STEM, 3, 3)
    return Model("vqvae", weights)
