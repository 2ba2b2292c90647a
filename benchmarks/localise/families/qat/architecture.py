"""A residual classifier with fake quantization (https://arxiv.org/abs/1712.05877, section 3).

Weights have 8 bits, symmetric, with one scale per row. Activations have 8 bits with one scale and a
zero point, from a calibration that is over. Gradients pass straight through the rounding, but not
where a value was clipped. The head is not quantized.

Weights are float32, linear ones (out, in), named canonically:

    embed.{weight,bias} blocks.N.{up,down}.{weight,bias} head.{weight,bias}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from architecture import Optimizer

from families.weights import Weights

FEATURES, WIDTH, CLASSES, BLOCKS, BATCH, SEED = 20, 32, 10, 2, 24, 34
WEIGHT_LIMIT = 127  #: symmetric: -127 to 127
#: Calibrated ranges of the inputs of the linear layers: of embed and up, and of down, behind a
#: rectifier. Some elements of the batch lie outside.
RANGES = {"embed": (-2.5, 2.5), "up": (-3.5, 3.0), "down": (0.0, 2.5)}


@dataclass(frozen=True)
class Quantizer:
    """q = clip(round(x / scale) + zero_point, low, high); the value is (q - zero_point) * scale."""

    scale: np.ndarray  #: float32, (), or (rows,) for one scale per row of a weight
    zero_point: int
    low: int
    high: int
    axis: int = 0  #: of a weight, that of its scales
    rounding: str = "nearest"  #: or 'floor'
    passes_gradient: bool = True  #: straight through the rounding
    passes_clipped: bool = False  #: the gradient passes where the value was clipped, too


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault.

    Knobs of quantizers are those of the last block's down layer.
    """

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first: PyTorch's operators for fake quantization, MindSpore's
    #: arithmetic; 'function' (PyTorch): an autograd function; 'detached' (PyTorch): clipped, plus
    #: what rounding changes without a gradient; 'reciprocal' (MindSpore): a cell with a bprop that
    #: multiplies by 1 / scale
    variant: str = ""
    zero_point_shift: int = 0  #: of the activation's quantizer
    n_levels: int = 256  #: of the activation: 128 for a signed type that wastes half its range
    scale_factor: float = 1.0  #: of the activation's scale
    is_activation_quantized: bool = True
    is_scale_per_row: bool = True  #: else one scale for the whole weight
    scale_axis: int = 0  #: 1: the scales of the rows are used for the columns of a square weight
    weight_rounding: str = "nearest"
    passes_gradient: bool = True  #: of the activation
    passes_clipped: bool = False  #: of the activation
    has_bias: bool = True
    has_skip: bool = True  #: of the last block
    label_smoothing: float = 0.0
    activation: str = "relu"  #: of the last block; or 'gelu', in the form with erf
    branch_scale: float = 1.0  #: of the last block in its sum with the skip connection
    is_head_half: bool = False  #: the head computes in float16
    weight_gradient: float = 1.0  #: the gradient of the quantized weight is multiplied by it
    is_skip_quantized: bool = False  #: the last block adds its input as it was quantized
    is_bias_doubled: bool = False  #: it is added twice
    loss_reduction: str = "mean"  #: over the batch; or 'sum'
    is_sum_rectified: bool = False  #: relu behind the last block's sum
    optimizer: Optimizer = field(default_factory=lambda: Optimizer(weight_decay=0.1, clip=0.0))

    def layer(self, name: str) -> Model:
        """Return the model for a linear layer: only the last block's down layer has the knobs."""
        if name == f"blocks.{BLOCKS - 1}.down":
            return self
        return replace(build_clean(), weights=self.weights, variant=self.variant)

    def weight_quantizer(self, name: str) -> Quantizer:
        """Return the quantizer of a linear layer's weight."""
        largest = np.abs(self.weights[f"{name}.weight"]).max(axis=1)
        knobs = self.layer(name)
        if not knobs.is_scale_per_row:
            largest = largest.max()
        scale = (largest / WEIGHT_LIMIT).astype(np.float32)
        return Quantizer(
            scale,
            0,
            -WEIGHT_LIMIT,
            WEIGHT_LIMIT,
            knobs.scale_axis,
            knobs.weight_rounding,
        )

    def input_quantizer(self, name: str) -> Quantizer:
        """Return the quantizer of a linear layer's input."""
        low, high = RANGES[name.rpartition(".")[2]]
        knobs = self.layer(name)
        highest = knobs.n_levels - 1
        scale = (high - low) / highest
        zero_point = round(-low / scale) + knobs.zero_point_shift
        return Quantizer(
            np.array(scale * knobs.scale_factor, dtype=np.float32),
            zero_point,
            0,
            highest,
            passes_gradient=knobs.passes_gradient,
            passes_clipped=knobs.passes_clipped,
        )

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return features, float32 (batch, FEATURES), and labels, int32 (batch,)."""
        rng = np.random.default_rng(SEED + 1)
        features = rng.standard_normal((BATCH, FEATURES)).astype(np.float32)
        return features, rng.integers(0, CLASSES, BATCH).astype(np.int32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    shapes = {"embed": (WIDTH, FEATURES), "head": (CLASSES, WIDTH)}
    for n in range(BLOCKS):
        shapes |= {f"blocks.{n}.up": (WIDTH, WIDTH), f"blocks.{n}.down": (WIDTH, WIDTH)}
    for name, (rows, columns) in sorted(shapes.items()):
        matrix = weights.rng.standard_normal((rows, columns)) / np.sqrt(columns)
        # rows of different size: one scale for all of them is worse than one for each
        matrix = matrix * weights.rng.uniform(0.4, 1.4, (rows, 1))
        weights[f"{name}.weight"] = matrix.astype(np.float32)
        weights.add_bias(name, rows)
    return Model("qat", weights)
