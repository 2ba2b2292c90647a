"""A network of point clouds in NumPy: sizes, knobs, weights and batch.

A feature transform (https://arxiv.org/abs/1612.00593, section 4.2) multiplies the features of
points by a matrix A near the identity; the loss has the norm of I - A A^T. Edge convolutions
(https://arxiv.org/abs/1801.07829, section 3.1) read the differences to the K nearest points, and
the point itself; the first graph is that of the coordinates, the second one that of the features.
Neighbours of some centers are grouped, and features come back to all points from the three nearest
centers, weighted by inverse squared distances (https://arxiv.org/abs/1706.02413, sections 3.2 and
3.4). Coordinates in a group are relative to its center, in units of RADIUS
(https://arxiv.org/abs/2206.04670, section 3.2.1). The maximum and the mean of a cloud give its
category, and go to all points with the category for their parts. All layers but the last ones have
a batch norm and a leaky relu. Weights, each (outputs, inputs):

    stem, edge1.{0,1}, edge2.0, lift, group.{0,1}, cloud, propagation
                            shared by all points or edges, without bias, and NAME.norm
    transform.points, transform.hidden       without bias, and NAME.norm
    transform.out           linear, to FEATURES * FEATURES
    classifier.hidden, segmenter.hidden      without bias, and NAME.norm
    classifier.out, segmenter.out            linear

The inputs of an edge are the difference, then the point; those of a group the coordinates, then the
features; those of the propagation what is interpolated, then the features of both edge
convolutions; those of the segmenter the point, the cloud, and the category.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, POINTS, CENTERS, NEIGHBORS, NEAREST = 4, 32, 8, 6, 3
FEATURES, EDGE1, EDGE2, LIFTED, GROUPED, CLOUD, HIDDEN = 12, 16, 24, 32, 40, 48, 28
CATEGORIES, PARTS = 5, 4
RADIUS = 0.5
SLOPE, EPS, MOMENTUM = 0.2, 1e-5, 0.1
MIN_DISTANCE = 1e-8  #: added to squared distances before they are inverted
SMOOTHING, REGULARIZER_WEIGHT = 0.2, 0.01
PART_WEIGHTS = (0.6, 1.0, 1.7, 2.4)  #: rare parts count more
SEED = 251


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'linear' (PyTorch): linear layers for shared ones, neighbours
    #: by cdist, the transform by einsum, losses from log-probabilities; 'split' (MindSpore): the
    #: first layer of an edge convolution before its points are gathered, batch norm in plain
    #: arithmetic, interpolation by a matrix
    variant: str = ""
    are_differences_reversed: bool = False  #: edges have x_i - x_j, not x_j - x_i
    is_point_excluded: bool = False  #: a point is no neighbour of itself
    is_graph_static: bool = False  #: the second graph is that of the coordinates, too
    has_row_offset: bool = True  #: rows of neighbours count on from cloud to cloud
    is_transform_transposed: bool = False  #: features are multiplied by the transposed matrix
    is_distance_rooted: bool = False  #: inverse distances, not squared ones
    are_parts_weighted: bool = True  #: the loss has PART_WEIGHTS
    are_others_smoothed: bool = False  #: the smoothed share goes to the other categories only
    is_regularizer_stopped: bool = False  #: no gradient from the regularizer
    transform_gradient: float = 1.0  #: the gradient of the matrix is multiplied by it
    are_groups_centered: bool = True  #: coordinates in a group are relative to its center
    is_gradient_weighted: bool = True  #: centers get theirs by the interpolation's weights
    optimizer: Optimizer = field(
        default_factory=lambda: Optimizer(learning_rate=2e-3, weight_decay=0.05, clip=10.0)
    )

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return coordinates and normals, float32 (BATCH, POINTS, 3) each, the points that are
        centers, int32 (BATCH, CENTERS), categories, int32 (BATCH,), and parts, int32 (BATCH,
        POINTS).
        """
        rng = np.random.default_rng(SEED + 1)
        points = rng.uniform(-1, 1, (BATCH, POINTS, 3))
        normals = rng.standard_normal((BATCH, POINTS, 3))
        normals /= np.linalg.norm(normals, axis=-1, keepdims=True)
        centers = np.stack([_sample_farthest(cloud) for cloud in points])
        categories = rng.permutation(CATEGORIES)[:BATCH]
        parts = rng.choice(PARTS, (BATCH, POINTS), p=(0.4, 0.3, 0.2, 0.1))
        return (
            points.astype(np.float32),
            normals.astype(np.float32),
            centers.astype(np.int32),
            categories.astype(np.int32),
            parts.astype(np.int32),
        )


def _sample_farthest(points: np.ndarray) -> np.ndarray:
    """Return points of which each is the farthest one from those before it."""
    centers = [0]
    distances = np.full(len(points), np.inf)
    while len(centers) < CENTERS:
        squares = ((points - points[centers[-1]]) ** 2).sum(axis=-1)
        distances = np.minimum(distances, squares)
        centers.append(int(distances.argmax()))
    return np.array(centers)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)

    def add_normed(name: str, n_out: int, n_in: int) -> None:
        weights.add_matrix(name, n_out, n_in)
        weights.add_norm(f"{name}.norm", n_out)

    add_normed("stem", FEATURES, 6)
    add_normed("transform.points", HIDDEN, FEATURES)
    add_normed("transform.hidden", HIDDEN, HIDDEN)
    weights.add_linear("transform.out", FEATURES * FEATURES, HIDDEN)
    weights["transform.out.weight"] *= np.float32(0.3)  # the matrix is near the identity
    add_normed("edge1.0", EDGE1, 2 * FEATURES)
    add_normed("edge1.1", EDGE1, EDGE1)
    add_normed("edge2.0", EDGE2, 2 * EDGE1)
    add_normed("lift", LIFTED, EDGE1 + EDGE2)
    add_normed("group.0", LIFTED, 3 + LIFTED)
    add_normed("group.1", GROUPED, LIFTED)
    add_normed("cloud", CLOUD, GROUPED)
    add_normed("classifier.hidden", HIDDEN, 2 * CLOUD)
    weights.add_linear("classifier.out", CATEGORIES, HIDDEN)
    add_normed("propagation", LIFTED, GROUPED + EDGE1 + EDGE2)
    add_normed("segmenter.hidden", HIDDEN, LIFTED + 2 * CLOUD + CATEGORIES)
    weights.add_linear("segmenter.out", PARTS, HIDDEN)
    return Model("pointcloud", weights)
