"""A ConvNeXt (https://arxiv.org/abs/2201.03545, section 2) in NumPy: sizes, knobs, weights, batch.

A convolution of PATCH x PATCH pixels and a norm over the channels make the first stage's input.
Between stages come a norm and a 2x2 convolution of stride 2. A block is a depthwise 7x7
convolution, a norm over the channels, a linear layer to EXPANSION times the channels, gelu, a
linear layer back, and a factor per channel (layer scale,
https://arxiv.org/abs/2103.17239, section 2), added to its input. The head has a norm of the mean
of all pixels, and a linear layer. The loss is the cross entropy of smoothed labels
(https://arxiv.org/abs/1512.00567, section 7). Weights:

    stem, stem.norm                         convolution with bias, layer norm
    down.S.norm, down.S                     in front of stage S (1 and 2): layer norm, convolution
    stages.S.N.: depthwise (channels, 1, KERNEL, KERNEL), norm, up, down, all with bias
                 scale (channels,)
    norm, head                              layer norm, linear layer
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, IMAGE, PATCH, KERNEL, EXPANSION, CLASSES = 4, 32, 2, 7, 4, 10
CHANNELS, DEPTHS = (16, 24, 32), (2, 2, 2)
EPS = 1e-6  #: of all norms
SMOOTHING = 0.1
IMAGENET_MEAN, IMAGENET_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LAST_STAGE = len(CHANNELS) - 1
SEED = 121


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault.

    Knobs of a block are those of the last one.
    """

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'conv_mlp' (PyTorch): blocks stay channels-first, linear layers
    #: are 1x1 convolutions, norms are written out; 'unfolded' (MindSpore): patches by reshaping and
    #: a linear layer, norms over the second axis, gelu and loss written out
    variant: str = ""
    pixel_mean: tuple[float, ...] = IMAGENET_MEAN
    pixel_deviation: tuple[float, ...] = IMAGENET_DEVIATION
    is_stem_stopped: bool = False  #: no gradient through the first norm
    is_last_down_grouped: bool = False  #: the last norm between stages is over pixels, too
    has_depthwise_bias: bool = True
    is_residual_filtered: bool = False  #: a block joins the result of its depthwise convolution
    gelu: str = "none"  #: approximation of a block's gelu; or 'tanh'
    mlp_dtype: str = "float32"  #: of the linear layers of a block; or 'float16'
    scale_gradient: float = 1.0  #: the gradient of a block's layer scale is multiplied by it
    is_scale_spatial: bool = False  #: layer scales have the shape (channels, 1, 1)
    path_scale: float = 1.0  #: of what a block adds to its input
    is_pooled_last: bool = False  #: the head's norm is of each pixel, the mean comes after it
    smoothed_classes: str = "all"  #: which share the smoothing; or 'wrong', without the label's own
    are_pixels_exchanged: bool = False  #: rows of what a block adds are columns, in all blocks
    are_logits_normalized: bool = False  #: the loss reads probabilities
    mirrored: tuple[int, ...] = ()  #: images whose columns are in the other order
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(learning_rate=4e-3, weight_decay=0.05, clip=0.0)
    )

    def block(self, stage: int, n: int) -> Model:
        """Return the model for block n of a stage: only the last one has the knobs of a block."""
        if (stage, n) == (LAST_STAGE, DEPTHS[LAST_STAGE] - 1):
            return self
        return replace(
            self,
            has_depthwise_bias=True,
            is_residual_filtered=False,
            gelu="none",
            mlp_dtype="float32",
            scale_gradient=1.0,
            path_scale=1.0,
        )

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Return images, float32 (batch, 3, IMAGE, IMAGE) from 0 to 1, and labels.

        Labels are int32 (batch,).
        """
        rng = np.random.default_rng(SEED + 1)
        images = rng.random((BATCH, 3, IMAGE, IMAGE)).astype(np.float32)
        for n in self.mirrored:
            images[n] = images[n, :, :, ::-1].copy()
        return images, rng.integers(0, CLASSES, BATCH).astype(np.int32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_linear("stem", CHANNELS[0], 3, PATCH, PATCH)
    weights.add_norm("stem.norm", CHANNELS[0])
    for stage, (channels, depth) in enumerate(zip(CHANNELS, DEPTHS, strict=True)):
        if stage:
            weights.add_norm(f"down.{stage}.norm", CHANNELS[stage - 1])
            weights.add_linear(f"down.{stage}", channels, CHANNELS[stage - 1], 2, 2)
        for n in range(depth):
            path = f"stages.{stage}.{n}"
            weights.add_linear(f"{path}.depthwise", channels, 1, KERNEL, KERNEL)
            weights.add_norm(f"{path}.norm", channels)
            weights.add_linear(f"{path}.up", EXPANSION * channels, channels)
            weights.add_linear(f"{path}.down", channels, EXPANSION * channels)
            scale = weights.rng.uniform(0.3, 0.7, channels)
            weights[f"{path}.scale"] = scale.astype(np.float32)
    weights.add_norm("norm", CHANNELS[-1])
    weights.add_linear("head", CLASSES, CHANNELS[-1])
    return Model("convnext", weights)
