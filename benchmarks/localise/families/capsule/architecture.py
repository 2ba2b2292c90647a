"""A capsule network for images in NumPy: sizes, knobs, weights and batch.

In the manner of CapsNet (https://arxiv.org/abs/1710.09829), with activations, coordinates and the
spread loss of matrix capsules with EM routing (https://openreview.net/forum?id=HJWLfGWRb) and a
layer with inverted dot-product routing (https://arxiv.org/abs/2002.04764). Images with colors from
0 to 1 have different sizes and are padded with 0 at the bottom and on the right. MEAN is subtracted
and they are divided by DEVIATION. A cell is STRIDE x STRIDE pixels, and padding if its first pixel
is; capsules of the same type have weights in common.

    stem              convolution with stride 2 and a ReLU
    primary.pose      convolution with stride 2; channels type * DIM + element are capsules (DIM,)
                      of TYPES types in each cell, which are squashed
    primary.gate      the same with one channel of each type: sigmoid gives activations
    mixer             p + LayerNorm(sum over types i of r_ij v_ij) for each type j, in each cell,
                      with votes v_ij = W_ij p_i. At first r_ij = 1 / TYPES, then, as often as
                      MIXER_ROUTINGS - 1, softmax over j of v_ij q_j / sqrt(DIM) with the last
                      LayerNorm q_j
    classes           votes u_ij = W_ij p_i + (COORDINATE * row, COORDINATE * column, 0, ...) of all
                      capsules i for all classes j, where row and column are those of the center of
                      the cell, as shares of the height and width of the padded image. Logits b_ij
                      are at first ``prior``, of the pair of class and type. ROUTINGS times, the
                      couplings are c_ij = softmax over j of b_ij, class capsules are
                      v_j = squash(sum over i of activation c_ij u_ij), without capsules of padding,
                      and u_ij v_j is added to b_ij. Only the last sum has a gradient through u_ij
    decoder           capsules of classes, of which all but that of the label are set to 0; two
                      linear layers with a ReLU and one with a sigmoid; an image

Squashing is |x|^2 / (1 + |x|^2) x / |x| with |x| = sqrt(x x + EPS). The length of a class capsule,
computed in the same way, is the score of the class. The loss is the sum of

    margin            mean over images of the sum over classes of max(0, UPPER - length)^2 for the
                      label, DOWN_WEIGHT max(0, length - LOWER)^2 for all others
    SPREAD_WEIGHT     mean over images of the sum over other classes of
                      max(0, m - (length of the label - length))^2, where
                      m = 0.2 + 0.79 sigmoid(min(10, step / MARGIN_STEPS - 4))
    RECONSTRUCTION    mean over images of the sum of squared errors of the pixels that are no
                      padding
    ENTROPY           mean entropy of the last couplings of all capsules that are no padding

each times what is on its left. Weights are float32:

    stem, primary.pose, primary.gate    convolutions (out, in, height, width) with bias
    mixer                               (TYPES of p, TYPES of q, DIM, DIM), with mixer.norm
    classes, classes.prior              (CLASSES, TYPES, CLASS_DIM, DIM); (CLASSES, TYPES)
    decoder.N                           linear (out, in) with bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

BATCH, CLASSES, CHANNELS = 5, 5, 3
HEIGHT, WIDTH, STRIDE = 16, 20, 4
ROWS, COLUMNS = HEIGHT // STRIDE, WIDTH // STRIDE
CELLS = ROWS * COLUMNS
#: Heights and widths of the images without padding.
SIZES = ((16, 20), (11, 18), (16, 12), (9, 20), (14, 7))
MEAN, DEVIATION = (0.49, 0.45, 0.41), (0.24, 0.27, 0.22)
STEM, TYPES, DIM, CLASS_DIM = 10, 4, 6, 8
CAPSULES = TYPES * CELLS
DECODER = (24, 30)
ROUTINGS, MIXER_ROUTINGS = 3, 2
COORDINATE = 0.12
UPPER, LOWER, DOWN_WEIGHT = 0.9, 0.1, 0.5
SPREAD_WEIGHT, RECONSTRUCTION, ENTROPY = 0.6, 0.005, 0.3
STEP, MARGIN_STEPS = 11000, 5000
EPS, NORM_EPS = 1e-7, 1e-5
SEED = 1770


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): votes as sums of products, softmax and
    #: norms in plain arithmetic, poses and activations from one convolution; 'einsum' (PyTorch):
    #: other names, types behind cells, the decoder's first layer from the capsule of the label only
    variant: str = ""
    are_inputs_normalized: bool = False  #: softmax over capsules, not classes; MindSpore only
    are_logits_replaced: bool = False  #: by the last agreement; MindSpore only
    is_padding_routed: bool = False  #: capsules of padding vote; MindSpore only
    are_votes_detached: bool = True  #: but in the last routing; MindSpore only
    down_weight: float = DOWN_WEIGHT  #: MindSpore only
    are_capsules_viewed: bool = False  #: channels and cells as they lie in memory; PyTorch only
    cell_center: float = 0.5  #: in cells; PyTorch only
    is_squash_gradient_plain: bool = False  #: as of a constant factor; PyTorch only
    is_longest_decoded: bool = False  #: not the label's capsule; PyTorch only
    spread_power: int = 2  #: PyTorch only
    are_sizes_exchanged: bool = False  #: width before height

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return images, their sizes, labels and the number of the step.

        Images are float32 (BATCH, CHANNELS, HEIGHT, WIDTH), sizes int32 (BATCH, 2): height and
        width; labels int32 (BATCH,) and the step int32 ().
        """
        rng = np.random.default_rng(SEED + 1)
        images = np.zeros((BATCH, CHANNELS, HEIGHT, WIDTH))
        for image, (height, width) in zip(images, SIZES, strict=True):
            image[:, :height, :width] = _draw_image(rng)[:, :height, :width]
        sizes = np.array(SIZES, np.int32)
        if self.are_sizes_exchanged:
            sizes = np.ascontiguousarray(sizes[:, ::-1])
        labels = rng.permutation(CLASSES)[:BATCH].astype(np.int32)
        return images.astype(np.float32), sizes, labels, np.array(STEP, np.int32)


def _draw_image(rng: np.random.Generator) -> np.ndarray:
    """Return a disc on a background of patches."""
    image = rng.uniform(0.1, 0.9, (CHANNELS, HEIGHT // 4, WIDTH // 4))
    image = image.repeat(4, axis=1).repeat(4, axis=2)
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    distance = np.hypot(rows - rng.uniform(3, 8), columns - rng.uniform(3, 7))
    color = rng.uniform(0, 1, (CHANNELS, 1, 1))
    image = np.where(distance < rng.uniform(2.5, 5), color, image)
    return np.clip(image + 0.05 * rng.standard_normal(image.shape), 0, 1)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_linear("stem", STEM, CHANNELS, 5, 5)
    weights.add_linear("primary.pose", TYPES * DIM, STEM, 3, 3)
    weights.add_linear("primary.gate", TYPES, STEM, 3, 3)
    weights["mixer.weight"] = _draw_votes(weights.rng, TYPES, TYPES, DIM, DIM)
    weights.add_norm("mixer.norm", DIM)
    weights["mixer.norm.weight"] *= np.float32(0.6)
    weights["classes.weight"] = _draw_votes(weights.rng, CLASSES, TYPES, CLASS_DIM, DIM)
    weights["classes.weight"] *= np.float32(0.3)
    prior = 0.4 * weights.rng.standard_normal((CLASSES, TYPES))
    weights["classes.prior"] = prior.astype(np.float32)
    n_in = CLASSES * CLASS_DIM
    for n, n_out in enumerate((*DECODER, CHANNELS * HEIGHT * WIDTH)):
        weights.add_linear(f"decoder.{n}", n_out, n_in)
        weights[f"decoder.{n}.weight"] *= np.float32(2)
        n_in = n_out
    return Model("capsule", weights)


def _draw_votes(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return a matrix for each pair of capsules."""
    return (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
