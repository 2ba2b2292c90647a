"""A detector by set prediction, as DETR, in NumPy: sizes, knobs, weights and batch.

The model of https://arxiv.org/abs/2005.12872, small. A backbone of 3x3 convolutions without bias,
frozen batch norms and relus: three stages of stride 2, and one with a skip around convolution and
norm. A 1x1 convolution makes tokens. Images are padded on the right and at the bottom; the mask of
the padding, at every STRIDE-th pixel, hides tokens as keys. Positions of the tokens are cumulative
sums of what is no padding, rows first, divided by their last one (plus POSITION_EPS), times
2 pi. FEATURES waves of each, sine and cosine in turn, lie side by side, those of the rows first.

The encoder's layer and the decoder's layers are those of section A.4, with norms behind the sums.
Positions are added to queries and keys, not to values. The decoder's states begin as zeros; the
learned queries are its positions. All layers of the decoder share a last norm and the heads: a
linear layer for the classes, the last of which is 'no object', and an MLP with a sigmoid for boxes
(center x, center y, width, height; all in shares of the image).

The loss is the sum of those of all layers of the decoder. Each has a matching of objects and
queries of its own, which the batch holds:

    classes      cross entropy of all queries, 'no object' with NO_OBJECT_WEIGHT; a weighted mean
    boxes        L1_WEIGHT times the absolute errors and GIOU_WEIGHT times 1 - GIoU
                 (https://arxiv.org/abs/1902.09630) of matched queries, divided by all objects

Weights, linear ones (out, in):

    backbone.N                      convolutions, each with NAME.norm.{weight, bias, mean, variance}
    project                         1x1 convolution with bias
    encoder.N, decoder.N            attention.{q, k, v, o}, mlp.{up, down}, norm1, norm2; the
                                    decoder also has cross.{q, k, v, o} and norm3
    decoder.norm                    the last norm
    queries.weight                  (QUERIES, HIDDEN)
    classes, boxes.{0, 1, 2}        linear layers
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, HEIGHT, WIDTH, STRIDE = 2, 40, 72, 8
SIZES = ((40, 53), (30, 72))  #: height and width of the images without their padding
ROWS, COLUMNS = HEIGHT // STRIDE, WIDTH // STRIDE
TOKENS = ROWS * COLUMNS
CHANNELS = (10, 14, 20)
HEADS, HEAD_DIM, FFN = 3, 8, 38
HIDDEN = HEADS * HEAD_DIM
FEATURES, TEMPERATURE, POSITION_EPS = HIDDEN // 2, 10000.0, 1e-6
ENCODER_LAYERS, LAYERS, QUERIES, CLASSES = 1, 2, 11, 12
OWNERS = (0, 0, 0, 0, 1, 1, 1)  #: images of the objects
OBJECTS = len(OWNERS)
EPS = 1e-5
NO_OBJECT_WEIGHT, L1_WEIGHT, GIOU_WEIGHT = 0.1, 5.0, 2.0
BOX_LAYERS = 3
SEED = 2005


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'original' (PyTorch): the modules of the original repository,
    #: tokens before the batch, the framework's attention, losses of all layers at once; 'written'
    #: (MindSpore): norms, softmax and cross entropy in plain arithmetic, queries and keys by one
    #: layer, matched queries by one-hot vectors, cosines as shifted sines
    variant: str = ""
    are_values_positioned: bool = False  #: in the encoder; MindSpore only
    is_norm_frozen: bool = True  #: the backbone's; MindSpore only
    has_cross_positions: bool = True  #: of queries in the cross-attention; MindSpore only
    no_object_index: int = CLASSES  #: of NO_OBJECT_WEIGHT among those of classes; MindSpore only
    query_gradient: float = 1.0  #: factor of the gradient of attention's queries; MindSpore only
    position_scale: float = 2 * np.pi  #: PyTorch only
    are_states_normed: bool = True  #: those of all but the last layer; PyTorch only
    has_cross_mask: bool = True  #: PyTorch only
    are_states_stopped: bool = False  #: no gradient from layer to layer; PyTorch only
    is_enclosing_detached: bool = False  #: area of the enclosing boxes; PyTorch only
    are_objects_sorted: bool = False  #: in the matching of the batch, not in the queries' order
    are_boxes_at_corners: bool = False  #: of the batch: the left upper corner for the center
    are_states_queries: bool = False  #: before the first layer, not zeros; PyTorch only
    position_offset: float = 0.0  #: of rows and columns; MindSpore only
    is_mask_inverted: bool = False  #: of the batch: true where an image is
    optimizer: Optimizer = field(default_factory=Optimizer)

    def divisors(self) -> np.ndarray:
        """Return what positions are divided by, float32 (FEATURES,), pairs of equal numbers."""
        exponents = 2 * (np.arange(FEATURES) // 2) / FEATURES
        return (TEMPERATURE**exponents).astype(np.float32)

    def class_weights(self) -> np.ndarray:
        """Return the weights of the classes, float32 (CLASSES + 1,)."""
        values = np.ones(CLASSES + 1, np.float32)
        values[self.no_object_index] = NO_OBJECT_WEIGHT
        return values

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return images, float32 (BATCH, 3, HEIGHT, WIDTH), zero where padded; is padding, bool
        (BATCH, HEIGHT, WIDTH); labels, int32 (OBJECTS,); boxes, float32 (OBJECTS, 4); and the
        matched queries and objects, int32 (LAYERS, OBJECTS) each, queries in ascending order.
        """
        rng = np.random.default_rng(SEED + 1)
        images = rng.standard_normal((BATCH, 3, HEIGHT, WIDTH)).astype(np.float32)
        is_padding = np.ones((BATCH, HEIGHT, WIDTH), dtype=bool)
        for n, (height, width) in enumerate(SIZES):
            is_padding[n, :height, :width] = False
        images *= ~is_padding[:, None]
        if self.is_mask_inverted:
            is_padding = ~is_padding
        labels = rng.permutation(CLASSES)[:OBJECTS].astype(np.int32)
        centers, sizes = rng.uniform(0.3, 0.7, (OBJECTS, 2)), rng.uniform(0.15, 0.5, (OBJECTS, 2))
        places = centers - sizes / 2 if self.are_boxes_at_corners else centers
        boxes = np.concatenate([places, sizes], axis=1).astype(np.float32)
        queries, objects = zip(*(self._match(rng) for _ in range(LAYERS)), strict=True)
        return images, is_padding, labels, boxes, np.stack(queries), np.stack(objects)

    def _match(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return queries, ascending for each image, and the objects that they are matched with."""
        owners = np.array(OWNERS)
        queries, objects = [], []
        for image in range(BATCH):
            own = np.flatnonzero(owners == image)
            queries.append(np.sort(rng.permutation(QUERIES)[: len(own)]))
            order = rng.permutation(own)
            objects.append(own if self.are_objects_sorted else order)
        return np.concatenate(queries).astype(np.int32), np.concatenate(objects).astype(np.int32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    n_in = 3
    for n, channels in enumerate((*CHANNELS, CHANNELS[-1])):
        weights.add_matrix(f"backbone.{n}", channels, n_in, 3, 3)
        _add_frozen_norm(weights, f"backbone.{n}.norm", channels)
        n_in = channels
    weights.add_linear("project", HIDDEN, n_in, 1, 1)
    for n in range(ENCODER_LAYERS):
        _add_layer(weights, f"encoder.{n}", ("attention",))
    for n in range(LAYERS):
        _add_layer(weights, f"decoder.{n}", ("attention", "cross"))
    weights.add_norm("decoder.norm", HIDDEN)
    weights.add_table("queries", QUERIES, HIDDEN)
    weights.add_linear("classes", CLASSES + 1, HIDDEN)
    for n in range(BOX_LAYERS):
        weights.add_linear(f"boxes.{n}", 4 if n == BOX_LAYERS - 1 else HIDDEN, HIDDEN)
    return Model("detr", weights)


def _add_frozen_norm(weights: Weights, path: str, channels: int) -> None:
    weights.add_norm(path, channels)
    mean = 0.3 * weights.rng.standard_normal(channels)
    weights[f"{path}.mean"] = mean.astype(np.float32)
    weights[f"{path}.variance"] = weights.rng.uniform(0.4, 1.2, channels).astype(np.float32)


def _add_layer(weights: Weights, path: str, attentions: tuple[str, ...]) -> None:
    for attention in attentions:
        for name in "qkvo":
            weights.add_linear(f"{path}.{attention}.{name}", HIDDEN, HIDDEN)
    weights.add_linear(f"{path}.mlp.up", FFN, HIDDEN)
    weights.add_linear(f"{path}.mlp.down", HIDDEN, FFN)
    for n in range(len(attentions) + 1):
        weights.add_norm(f"{path}.norm{n + 1}", HIDDEN)
