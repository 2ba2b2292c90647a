"""A net for re-identification in NumPy: sizes, knobs, weights and batch.

Stages of a 3x3 convolution without bias, a norm and a relu. All but the last norm are those of
IBN-Net-a (https://arxiv.org/abs/1807.09441): the first half of the channels has an instance norm,
the second half a batch norm. The last one is a batch norm. Pixels are pooled by the generalized
mean (https://arxiv.org/abs/1711.02512) with a learned exponent, and a linear layer without bias
makes features. As in the strong baseline (https://arxiv.org/abs/1903.07071), the batch-hard triplet
loss with a soft margin and the center loss read the features, and a batch norm, the neck, is in
between those and the normalized embedding. Its cosines with normalized class weights, those of the
right class with an angular margin (https://arxiv.org/abs/1801.07698), times SCALE are the logits.
Beyond the angle pi - MARGIN, the cosine minus MARGIN * sin(MARGIN) is taken. Weights:

    stages.N                    convolutions, each with NAME.instance and NAME.batch, norms of half
                                of the channels, or with NAME.batch only
    pool.weight                 (1,), the exponent
    reduce                      linear layer without bias
    neck                        batch norm
    classes, centers            (LABELS, FEATURES)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

PERSONS, SHOTS = 3, 2
BATCH, HEIGHT, WIDTH, LABELS = PERSONS * SHOTS, 16, 12, 10
CHANNELS, STRIDES = (8, 16, 24), (1, 2, 2)
FEATURES = 20
EPS, POOL_EPS, DISTANCE_EPS = 1e-5, 1e-6, 1e-12
SCALE, MARGIN = 16.0, 0.4
CENTER_WEIGHT = 0.05
HARD_MARGIN = 0.3  #: of the baseline's own triplet loss
SEED = 1811


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'functional' (PyTorch): other names, norms, pooling and losses
    #: from elementary functions; 'angles' (PyTorch): the margin by arccos, distances by products;
    #: 'written' (MindSpore): norms in plain arithmetic, distances by products; 'gathered'
    #: (MindSpore): margin and cross entropy of the gathered cosine, pooling by logarithms
    variant: str = ""
    is_batch_first: bool = False  #: the first half of the channels has the batch norm
    is_pool_mean: bool = False  #: the mean of the pixels
    is_triplet_behind_neck: bool = False
    is_margin_easy: bool = False  #: beyond the right angle, the cosine has no margin
    scale: float = SCALE
    are_negatives_others: bool = False  #: all other images, not those of other persons
    is_center_sum: bool = False
    is_center_stopped: bool = False  #: no gradient from the center loss to the features
    center_gradient: float = 1.0  #: factor of the gradient of the centers
    are_distances_squared: bool = False  #: those of the triplet loss; MindSpore only
    are_norms_detached: bool = False  #: of embeddings and class weights; PyTorch only
    is_angle_derived: bool = True  #: in the gradient of the cosine with its margin; MindSpore only
    is_triplet_hinge: bool = False  #: with HARD_MARGIN, not the soft margin; PyTorch only
    optimizer: Optimizer = field(default_factory=Optimizer)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return images, float32 (BATCH, 3, HEIGHT, WIDTH), and labels, int32 (BATCH,)."""
        rng = np.random.default_rng(SEED + 1)
        persons = rng.standard_normal((PERSONS, 1, 3, HEIGHT, WIDTH))
        contrast = rng.uniform(0.7, 1.5, (PERSONS, 1, 3, 1, 1))
        shots = 0.5 * rng.standard_normal((PERSONS, SHOTS, 3, HEIGHT, WIDTH))
        images = (contrast * persons + shots).reshape(BATCH, 3, HEIGHT, WIDTH)
        labels = np.repeat(rng.permutation(LABELS)[:PERSONS], SHOTS)
        return images.astype(np.float32), labels.astype(np.int32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    n_in = 3
    for n, channels in enumerate(CHANNELS):
        weights.add_matrix(f"stages.{n}", channels, n_in, 3, 3)
        is_last = n == len(CHANNELS) - 1
        if not is_last:
            weights.add_norm(f"stages.{n}.instance", channels // 2)
        weights.add_norm(f"stages.{n}.batch", channels if is_last else channels // 2)
        n_in = channels
    weights["pool.weight"] = np.array([3.0], np.float32)
    weights.add_matrix("reduce", FEATURES, n_in)
    weights.add_norm("neck", FEATURES)
    weights.add_matrix("classes", LABELS, FEATURES)
    weights.add_table("centers", LABELS, FEATURES, deviation=0.5)
    return Model("reid", weights)
