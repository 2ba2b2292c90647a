"""A video classifier in NumPy: sizes, knobs, weights and batch.

Tubelets, as in ViViT (https://arxiv.org/abs/2103.15691): a 3-d convolution whose stride is its
kernel gives a token for TUBELET pixels (frames, rows, columns). Learned positions in space and in
time are added, and a class token comes first. The tokens behind it are in the order (space, time):
the times of a patch are neighbours.

Blocks have divided attention, as in TimeSformer (https://arxiv.org/abs/2102.05095). Each patch
attends to itself at all times, behind that is a linear layer, and the sum with the block's input
goes on. Then all patches of one time, and a copy of the class token, attend to each other. The
class token gets the mean of what its copies get. The third part is a feed-forward with gelu. Each
part has a norm in front.

The head has two factors. Over space, the mean of the normed tokens gives a feature for each time;
over time, attention with a learned query, query * tanh(keys(feature)), gives one for the clip. It
is joined behind the normed class token, reduced to REDUCED and classified.

Clips and targets are mixed with those of the flipped batch (https://arxiv.org/abs/1710.09412), by
a share for each clip; targets are smoothed. A second loss, with ORDER_WEIGHT, asks a score of each
time to grow: the mean of softplus(earlier - later) over all pairs of times. Linear weights are
(out, in):

    tubelet (HIDDEN, CHANNELS, *TUBELET)
    class_token (1, 1, HIDDEN), space (1, 1 + PATCHES, HIDDEN), time (1, TIMES, HIDDEN)
    blocks.N.  time_norm, time.{q, k, v, o}, time_fc, space_norm, space.{q, k, v, o},
               mlp_norm, mlp.{up, down}
    norm, pool.keys, pool.query (1, KEYS) without bias
    head.reduce (REDUCED, 2 * HIDDEN), head.classes
    order (1, HIDDEN) without bias
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from families.weights import Weights

BATCH, CHANNELS, FRAMES, HEIGHT, WIDTH = 4, 3, 10, 12, 28
TUBELET = (2, 4, 4)
TIMES, ROWS, COLUMNS = FRAMES // TUBELET[0], HEIGHT // TUBELET[1], WIDTH // TUBELET[2]
PATCHES = ROWS * COLUMNS
HIDDEN, HEADS, FFN, BLOCKS = 26, 2, 44, 2
HEAD_DIM = HIDDEN // HEADS
KEYS, REDUCED, CLASSES = 11, 17, 9
EPS = 1e-6
SMOOTHING = 0.1
ORDER_WEIGHT = 0.2
SEED = 2011


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'written' (MindSpore): tubelets by reshaping and a linear
    #: layer, norms and losses written out, one projection for q, k and v, mint, the head as a sum;
    #: 'separate' (PyTorch): Hugging Face's names, q, k and v apart, fused attention, tokens as
    #: (time, space) with the class token apart, losses written out
    variant: str = ""
    is_time_first: bool = False  #: tokens in the order (time, space); MindSpore only
    is_skip_early: bool = False  #: space adds to what came before time; MindSpore only
    pooling_axis: int = 1  #: of the softmax of scores (batch, time, 1); MindSpore only
    is_copy_gradient_mean: bool = False  #: of the class token's copies; MindSpore only
    is_order_detached: bool = False  #: no gradient from the order to features; MindSpore only
    is_first_copy_taken: bool = (
        False  #: the class token gets what its first copy gets; PyTorch only
    )
    scale_dim: int = HEAD_DIM  #: scores are divided by its root; PyTorch only
    is_smoothed_again: bool = False  #: the loss smooths the smoothed targets; PyTorch only
    is_pooling_detached: bool = False  #: no gradient to the weights of times; PyTorch only
    has_diagonal: bool = False  #: pairs of a time with itself; PyTorch only
    is_time_interleaved: bool = False  #: positions in time repeated one by one; PyTorch only
    query_gradient: float = 1.0  #: factor of that of queries over time; MindSpore only
    are_shares_exchanged: bool = False  #: of own and other target; PyTorch only
    is_token_position_read: bool = False  #: positions of patches begin with it; PyTorch only

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return clips, labels and shares: float32 clips (BATCH, CHANNELS, FRAMES, HEIGHT, WIDTH).

        Labels are int32 (BATCH,), the shares of the own clip in the mix float32 (BATCH,).
        """
        rng = np.random.default_rng(SEED + 1)
        scenes = rng.standard_normal((BATCH, CHANNELS, 1, HEIGHT, WIDTH))
        motion = 0.6 * rng.standard_normal((BATCH, CHANNELS, FRAMES, HEIGHT, WIDTH))
        clips = (scenes + np.cumsum(motion, axis=2)) / 2
        labels = rng.permutation(CLASSES)[:BATCH]
        shares = rng.uniform(0.55, 0.95, BATCH)
        return clips.astype(np.float32), labels.astype(np.int32), shares.astype(np.float32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    weights.add_linear("tubelet", HIDDEN, CHANNELS, *TUBELET)
    weights.add_table("class_token", 1, 1, HIDDEN, deviation=0.7)
    weights.add_table("space", 1, 1 + PATCHES, HIDDEN, deviation=0.5)
    weights.add_table("time", 1, TIMES, HIDDEN, deviation=0.5)
    for n in range(BLOCKS):
        _add_block(weights, f"blocks.{n}")
    weights.add_norm("norm", HIDDEN)
    weights.add_linear("pool.keys", KEYS, HIDDEN)
    weights.add_matrix("pool.query", 1, KEYS)
    weights["pool.query.weight"] *= 3  # times are to differ in their weights
    weights.add_linear("head.reduce", REDUCED, 2 * HIDDEN)
    weights.add_linear("head.classes", CLASSES, REDUCED)
    weights.add_matrix("order", 1, HIDDEN)
    return Model("video", weights)


def _add_block(weights: Weights, path: str) -> None:
    for kind in ("time", "space"):
        weights.add_norm(f"{path}.{kind}_norm", HIDDEN)
        for name in "qkvo":
            weights.add_linear(f"{path}.{kind}.{name}", HIDDEN, HIDDEN)
    weights.add_linear(f"{path}.time_fc", HIDDEN, HIDDEN)
    weights.add_norm(f"{path}.mlp_norm", HIDDEN)
    weights.add_linear(f"{path}.mlp.up", FFN, HIDDEN)
    weights.add_linear(f"{path}.mlp.down", HIDDEN, FFN)
