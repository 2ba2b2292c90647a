"""An EfficientNet (https://arxiv.org/abs/1905.11946, section 4) in NumPy: sizes, knobs, weights and
batch, with the conventions of its weights for TensorFlow.

A block (https://arxiv.org/abs/1801.04381, section 3) widens its channels by a 1x1 convolution,
filters each of them by a depthwise convolution, weighs them by squeeze-and-excitation
(https://arxiv.org/abs/1709.01507, section 3) and projects them to few channels without an
activation. Its input is added if the shapes agree. Each convolution of a block is followed by a
batch norm. The squeezed channels are a quarter of the block's input. Activations are swish,
x sigmoid(x) (https://arxiv.org/abs/1710.05941). Convolutions have 'SAME' padding: of one pixel more
below and on the right if the whole is odd. Class 0 is the background, which no image has; labels
begin with the class behind it. The loss is the cross entropy of smoothed labels. Weights:

    stem, top               convolutions without bias, each with NAME.norm, a batch norm
    blocks.N.: expand, depthwise (channels, 1, kernel, kernel), project    as above; the first block
                            has no expand
               squeeze, excite     1x1 convolutions with bias
    classifier              linear layer
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, IMAGE, STEM, TOP, LABELS = 4, 32, 8, 40, 10
CLASSES = LABELS + 1  #: with the background
EPS, MOMENTUM = 1e-3, 0.01  #: of batch norm; share of the batch in the running statistics
SMOOTHING, SQUEEZE = 0.1, 4
DECAY = 0.01  #: of matrices
SEED = 191


@dataclass(frozen=True)
class Block:
    """Sizes of one block."""

    expansion: int
    kernel: int
    stride: int
    n_in: int
    n_out: int

    @property
    def n_wide(self) -> int:
        """Return the channels of the depthwise convolution."""
        return self.expansion * self.n_in

    @property
    def has_skip(self) -> bool:
        """Return whether the input is added."""
        return self.stride == 1 and self.n_in == self.n_out


BLOCKS = (
    Block(1, 3, 1, STEM, 8),
    Block(4, 3, 2, 8, 12),
    Block(4, 3, 1, 12, 12),
    Block(4, 5, 2, 12, 16),
    Block(4, 5, 1, 16, 16),
    Block(4, 3, 1, 16, 20),
)
LAST = len(BLOCKS) - 1
LAST_PIXELS = (IMAGE // 8) ** 2  #: of a channel in the last block


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault, of all blocks."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'linear' (PyTorch): squeeze-and-excitation by linear layers,
    #: swish and loss written out, the framework's mean of pixels; 'padded' (MindSpore): 'SAME'
    #: padding by an operator of its own, batch norm in plain arithmetic, fused swish
    variant: str = ""
    is_padded_evenly: bool = False  #: depthwise convolutions of stride 2
    squeeze_activation: str = "swish"  #: or 'relu'
    is_excited_early: bool = False  #: squeeze-and-excitation in front of the depthwise activation
    norm_eps: float = EPS
    is_projection_activated: bool = False
    is_classifier_half: bool = False  #: float16
    first_label: int = 1  #: class of the label 0
    is_gate_stopped: bool = False  #: no gradient through the sigmoid of swish
    squeeze_gradient: float = 1.0  #: the gradient of the last block's squeeze is multiplied by it
    drop_rate: float = 0.0  #: branches of residual sums are divided by what drop connect leaves
    is_first_skip_missing: bool = False  #: of the first block
    is_stem_norm_frozen: bool = False  #: in evaluation; PyTorch only
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(kind="momentum", weight_decay=DECAY, clip=0.5)
    )

    def get_kept_share(self, n: int) -> float:
        """Return the share of a block's branches that drop connect keeps; it falls with depth."""
        return 1 - self.drop_rate * n / len(BLOCKS)

    def has_skip(self, n: int) -> bool:
        """Return whether a block's input is added."""
        return BLOCKS[n].has_skip and not (n == 0 and self.is_first_skip_missing)

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Return images, float32 (BATCH, 3, IMAGE, IMAGE), and labels, int32 (BATCH,)."""
        rng = np.random.default_rng(SEED + 1)
        images = rng.standard_normal((BATCH, 3, IMAGE, IMAGE)).astype(np.float32)
        return images, rng.integers(0, LABELS, BATCH).astype(np.int32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)

    def add_normed(name: str, *shape: int) -> None:
        weights.add_matrix(name, *shape)
        weights.add_norm(f"{name}.norm", shape[0])

    add_normed("stem", STEM, 3, 3, 3)
    for n, block in enumerate(BLOCKS):
        path = f"blocks.{n}"
        if block.expansion > 1:
            add_normed(f"{path}.expand", block.n_wide, block.n_in, 1, 1)
        add_normed(f"{path}.depthwise", block.n_wide, 1, block.kernel, block.kernel)
        n_squeezed = block.n_in // SQUEEZE
        weights.add_linear(f"{path}.squeeze", n_squeezed, block.n_wide, 1, 1)
        weights.add_linear(f"{path}.excite", block.n_wide, n_squeezed, 1, 1)
        # means of many pixels are small: without this, all gates would be nearly the same
        for name in ("squeeze", "excite"):
            weights[f"{path}.{name}.weight"] *= np.float32(3)
        add_normed(f"{path}.project", block.n_out, block.n_wide, 1, 1)
    add_normed("top", TOP, BLOCKS[LAST].n_out, 1, 1)
    weights.add_linear("classifier", CLASSES, TOP)
    return Model("efficientnet", weights)
