"""Image-to-image translation in NumPy: sizes, knobs, weights and batch.

The generator is that of https://arxiv.org/abs/1711.11585 (section 3.2, appendix 8), small:
convolutions with reflection padding, instance norm with weight and bias, residual blocks, one
upsampling by pixel shuffle (https://arxiv.org/abs/1609.05158, section 2.2), tanh. The discriminator
judges patches of an image that is joined with the source. The loss of one step is the sum of

    discriminator: mean of (D(real) - 1)^2 and D(generated)^2, generated images without a gradient
    adversarial:   (D(generated) - 1)^2 (https://arxiv.org/abs/1611.04076, equation 9)
    features:      L1 between the discriminator's activations of generated and real images (without
                   a gradient), mean over layers, times FEATURE_WEIGHT
    images:        L1 between generated images and targets, times IMAGE_WEIGHT

One optimizer has the weights of both networks. Weights, convolutions before a norm without bias:

    stem, stem_norm, down, down_norm     7x7; 3x3 with stride 2
    blocks.N: conv1, norm1, conv2, norm2 3x3
    up, up_norm                          3x3 to four times the channels; behind the pixel shuffle
    out                                  7x7, with bias
    judge.0, judge.1, judge.norm, judge.2  4x4, the first two with stride 2; 0 and 2 with bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, IMAGE, CHANNELS, WIDTH, BLOCKS = 2, 16, 3, 8, 2
FACTOR = 2  #: of the pixel shuffle
SLOPE = 0.2  #: of the leaky rectifier
EPS = 1e-5
FEATURE_WEIGHT, IMAGE_WEIGHT = 10.0, 25.0
N_FEATURES = 2  #: layers of the discriminator whose activations are compared
LEARNING_RATE, BETA1 = 2e-4, 0.5
SEED = 451


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (PyTorch): the convolutions pad, instance norm, pixel
    #: shuffle and losses in plain arithmetic; 'joined' (MindSpore): the discriminator judges real
    #: and generated images in one batch, instance norm as group norm, pixel shuffle by a cell
    variant: str = ""
    block_padding: str = "reflect"  #: of the residual blocks; or 'zeros'
    has_block_affine: bool = True  #: the last norm of the last residual block has weight and bias
    slope: float = SLOPE
    gradient_slope: float = SLOPE  #: of the leaky rectifiers in the backward pass
    score_loss: str = "squares"  #: of the discriminator's scores; or 'logistic'
    is_shuffle_channels_last: bool = False  #: a pixel's offset comes before its channel
    has_judge_sigmoid: bool = False  #: at the end of the discriminator
    real_label: float = 1.0  #: of real images in the discriminator's loss
    first_feature: int = 0  #: the first layer whose activations are compared
    are_features_raw: bool = False  #: those compared are taken before their activation
    beta1: float = BETA1  #: of the optimizer
    is_image_first: bool = False  #: the discriminator reads the image, then the source
    is_fake_detached: bool = True  #: generated images, in the discriminator's loss
    trunk_gradient: float = 1.0  #: the gradient of the residual blocks' output is multiplied by it
    is_image_smooth: bool = False  #: images are compared by smooth L1; MindSpore only
    is_variance_unbiased: bool = False  #: of the instance norms; PyTorch only
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(learning_rate=LEARNING_RATE, weight_decay=0.0, clip=0.0)
    )

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return sources and targets, float32 (BATCH, CHANNELS, IMAGE, IMAGE), -1 to 1."""
        rng = np.random.default_rng(SEED + 1)
        shape = (BATCH, CHANNELS, IMAGE, IMAGE)
        sources = np.tanh(rng.standard_normal(shape))
        targets = np.tanh(0.5 * sources + 0.5 * rng.standard_normal(shape))
        return sources.astype(np.float32), targets.astype(np.float32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    wide = 2 * WIDTH
    weights.add_matrix("stem", WIDTH, CHANNELS, 7, 7)
    weights.add_norm("stem_norm", WIDTH)
    weights.add_matrix("down", wide, WIDTH, 3, 3)
    weights.add_norm("down_norm", wide)
    for n in range(BLOCKS):
        for layer in (1, 2):
            weights.add_matrix(f"blocks.{n}.conv{layer}", wide, wide, 3, 3)
            weights.add_norm(f"blocks.{n}.norm{layer}", wide)
    weights.add_matrix("up", WIDTH * FACTOR**2, wide, 3, 3)
    weights.add_norm("up_norm", WIDTH)
    weights.add_linear("out", CHANNELS, WIDTH, 7, 7)
    weights.add_linear("judge.0", WIDTH, 2 * CHANNELS, 4, 4)
    weights.add_matrix("judge.1", wide, WIDTH, 4, 4)
    weights.add_norm("judge.norm", wide)
    weights.add_linear("judge.2", 1, wide, 4, 4)
    return Model("gan", weights)
