"""A matcher of two images' key points in NumPy: sizes, knobs, weights and batch.

SuperGlue (https://arxiv.org/abs/1911.11763) with the rotary positions and the confidence of
LightGlue (https://arxiv.org/abs/2306.13643). An image has up to POINTS key points, padded to as
many. A point's position is (its pixel - SIZE / 2) / POSITION_SCALE. What a point begins with is

    x = input(descriptor / its length) + encoder.second(relu(encoder.norm(encoder.first(p))))

with p the position and the score, and batch norm of all points of the pairs' first or second
images, padding too. Then LAYERS times, first with the image's own points (self), then with those
of the other image (cross):

    message = out(attention of HEADS heads, query of x, key and value of the context)
    x      += second(gelu(norm(first([x, message]))))

Padding is no context. Queries and keys of self-attention are rotated: pair k of a head, which is
its numbers 2k and 2k + 1, by the angle rotary(position)_k. Scores of all pairs of points are

    s_ij = final(x_i) . final(y_j) / sqrt(WIDTH)

Sinkhorn: a row and a column with one learned number, dustbin, are added. With m and n points, each
point has the mass 1 / (m + n), the added row m's n / (m + n), the added column m / (m + n): of
rows, the added one is as large as all columns. In logarithms, ITERATIONS times rows then columns;
padding has no mass. The result is times (m + n). The loss is the weighted sum of

    match       -result at the given matches, mean of a pair's matches, mean of the pairs
    unmatched   -result of the other points in the added column or row, mean of both images' such
                points, mean of the pairs
    confidence  binary cross-entropy of whether a point has a match, of descriptors without a
                gradient behind each layer but the last one, mean of all points of all pairs

Weights are float32, linear ones (out, in):

    input, encoder.{first, norm, second}, rotary      no bias in first and rotary
    layers.N.{self, cross}.{query, key, value}        no bias
    layers.N.{self, cross}.{out, first, norm, second}
    layers.N.confidence
    final
    dustbin                                           (1,)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

COUNTS = ((9, 8, 6), (6, 8, 5))  #: points of each pair's first and second images
MATCHES = (5, 4, 3)  #: of each pair
PAIRS, POINTS = len(MATCHES), max(map(max, COUNTS))
SIZE = (64.0, 48.0)  #: of an image in pixels: width and height
POSITION_SCALE = 0.7 * max(SIZE)
DESCRIPTOR, ENCODER, WIDTH, HEADS, LAYERS = 14, 10, 16, 2, 2
HEAD_WIDTH = WIDTH // HEADS
ITERATIONS = 3
UNMATCHED = -1  #: match of a point that has none
MASKED_SCORE = -1e9
EPS = 1e-5
MATCH_WEIGHT, UNMATCHED_WEIGHT, CONFIDENCE_WEIGHT = 0.6, 0.4, 0.3
SEED = 1911


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): both images in one batch, projections of
    #: self-attention in one, norms, activations and logarithms of sums in plain arithmetic,
    #: Sinkhorn on the matrix, losses by a matrix of weights; 'convolved' (PyTorch): SuperGlue's
    #: names and convolutions of one point, channels first, rotations of pairs
    variant: str = ""
    are_halves_rotated: bool = False  #: pair k is k and k + HEAD_WIDTH / 2; MindSpore only
    is_cross_mask_own: bool = False  #: of the points that read; MindSpore only
    are_counts_exchanged: bool = False  #: in the mass of the added row and column; MindSpore only
    is_confidence_stopped: bool = True  #: no gradient to the descriptors; MindSpore only
    are_matches_pooled: bool = False  #: mean of all pairs' matches; MindSpore only
    position_scale: float = POSITION_SCALE  #: MindSpore only
    normalized_axis: int = -1  #: of the descriptors; PyTorch only
    encoding_gradient: float = 1.0  #: factor of the encoder's gradient; PyTorch only
    is_column_gradient_of_rows: bool = False  #: of Sinkhorn's sums of columns; PyTorch only
    is_added_column_reused: bool = False  #: for the second images' unmatched; PyTorch only
    are_projections_interleaved: bool = False  #: query, key and value by number; PyTorch only
    are_rows_first: bool = False  #: the batch has points as (y, x)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return of first and second images in turn, padding being 0 and in matches UNMATCHED:

        points in pixels, float32 (PAIRS, POINTS, 2), their scores (PAIRS, POINTS), descriptors
        (PAIRS, POINTS, DESCRIPTOR), numbers of points, int32 (PAIRS,), and each point's match in
        the other image, int32 (PAIRS, POINTS).
        """
        rng = np.random.default_rng(SEED + 1)
        points = np.zeros((2, PAIRS, POINTS, 2))
        scores = np.zeros((2, PAIRS, POINTS))
        descriptors = np.zeros((2, PAIRS, POINTS, DESCRIPTOR))
        matches = np.full((2, PAIRS, POINTS), UNMATCHED)
        for pair, n_matches in enumerate(MATCHES):
            orders = []
            for image, counts in enumerate(COUNTS):
                n_points = counts[pair]
                points[image, pair, :n_points] = rng.uniform(0, SIZE, (n_points, 2))
                scores[image, pair, :n_points] = rng.uniform(0.1, 1, n_points)
                descriptors[image, pair, :n_points] = rng.standard_normal((n_points, DESCRIPTOR))
                orders.append(rng.permutation(n_points)[:n_matches])
            first, second = orders
            matches[0, pair, first], matches[1, pair, second] = second, first
            points[1, pair, second] = _move(points[0, pair, first], rng)
            noise = 0.5 * rng.standard_normal((n_matches, DESCRIPTOR))
            descriptors[1, pair, second] = descriptors[0, pair, first] + noise
        if self.are_rows_first:
            points = points[..., ::-1]
        arrays = (points, scores, descriptors)
        return (
            *(values[image].astype(np.float32) for values in arrays for image in (0, 1)),
            *(np.array(counts, np.int32) for counts in COUNTS),
            *(matches[image].astype(np.int32) for image in (0, 1)),
        )


def _move(points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return where a camera that is turned, nearer and shifted sees points."""
    angle, scale, shift = rng.uniform(-0.4, 0.4), rng.uniform(0.8, 1.1), rng.uniform(-4, 4, 2)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    center = np.array(SIZE) / 2
    moved = scale * (points - center) @ rotation.T + center + shift
    return np.clip(moved + 0.3 * rng.standard_normal(points.shape), 0, SIZE)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_linear("input", WIDTH, DESCRIPTOR)
    weights["input.weight"] *= 2
    weights.add_matrix("encoder.first", ENCODER, 3)
    weights.add_norm("encoder.norm", ENCODER)
    weights.add_linear("encoder.second", WIDTH, ENCODER)
    weights.add_table("rotary", HEAD_WIDTH // 2, 2, deviation=2.0)
    for n in range(LAYERS):
        for kind in ("self", "cross"):
            path = f"layers.{n}.{kind}"
            for name in ("query", "key", "value"):
                weights.add_matrix(f"{path}.{name}", WIDTH, WIDTH)
            weights.add_linear(f"{path}.out", WIDTH, WIDTH)
            weights.add_linear(f"{path}.first", 2 * WIDTH, 2 * WIDTH)
            weights.add_norm(f"{path}.norm", 2 * WIDTH)
            weights.add_linear(f"{path}.second", WIDTH, 2 * WIDTH)
        if n < LAYERS - 1:
            weights.add_linear(f"layers.{n}.confidence", 1, WIDTH)
    weights.add_linear("final", WIDTH, WIDTH)
    weights["dustbin"] = np.array([0.7], np.float32)
    return Model("matcher", weights)
