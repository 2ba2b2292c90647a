"""Speaker verification in the manner of ECAPA-TDNN: sizes, knobs, weights and batch.

As in https://arxiv.org/abs/2005.07143, small. Each layer is a convolution over time with a bias, a
rectifier and a batch norm of all frames. Frames behind an example's length are padding. Blocks:

    layer of single frames; Res2Net (https://arxiv.org/abs/1904.01169): the channels are split into
    SCALES pieces, the first is passed on, the others have a dilated layer each, which reads the
    piece plus what the layer before it returned; layer of single frames; squeeze-and-excitation by
    the mean of the valid frames; plus the block's input, which is the sum of the first layer's and
    all earlier blocks' outputs

A layer of single frames reads the outputs of all blocks, joined. Attentive statistics pooling
scores each frame and channel by the frame, joined with mean and deviation of the valid ones, and
returns mean and deviation weighted by the softmax over time, with the variance at least CLAMP. Then
come a batch norm and a linear layer, the embedding. Its cosines with normalized class weights,
those of the right class with an angular margin (https://arxiv.org/abs/1801.07698), times SCALE are
the logits. Beyond the angle pi - MARGIN, the cosine minus MARGIN * sin(MARGIN) is taken. Weights of
convolutions are (out, in, frames):

    entry, aggregate                layers, each with NAME.norm
    blocks.N.  in, scales.K, out    layers, each with NAME.norm
               squeeze, excite      convolutions of single frames
    attention.in, attention.out     a layer with NAME.norm, whose result has a tanh; a convolution
    pool_norm, embed                batch norm; convolution of single frames
    classes                         (SPEAKERS, EMBEDDING)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

MELS, FRAMES, SPEAKERS = 15, 19, 13
LENGTHS = (19, 14, 10, 17, 12, 8)  #: valid frames of each example
BATCH = len(LENGTHS)
CHANNELS, SCALES, SQUEEZED, AGGREGATED, ATTENTION, EMBEDDING = 28, 4, 9, 34, 11, 22
WIDTH = CHANNELS // SCALES
ENTRY_KERNEL, KERNEL, DILATIONS = 5, 3, (2, 3, 4)
BLOCKS = len(DILATIONS)
EPS, CLAMP = 1e-5, 1e-4
SCALE, MARGIN = 30.0, 0.2
SEED = 2005


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'functional' (PyTorch): other names, norms, pooling and losses
    #: from elementary functions, joined inputs as sums; 'products' (MindSpore): convolutions of
    #: single frames as products, norms and softmax in plain arithmetic, channels joined by sums
    variant: str = ""
    are_pieces_raw: bool = False  #: a piece is added to the piece before it; MindSpore only
    is_last_passed: bool = False  #: the last piece is passed on, not the first; PyTorch only
    dilation: int = DILATIONS[-1]  #: of the last block; MindSpore only
    is_last_input_summed: bool = True  #: of the last block; PyTorch only
    has_attention_tanh: bool = True  #: PyTorch only
    is_squeeze_mean_of_all: bool = False  #: divided by all frames; MindSpore only
    is_margin_of_cosine: bool = False  #: the margin is subtracted from the cosine; PyTorch only
    is_context_stopped: bool = False  #: no gradient from what attention reads; MindSpore only
    is_length_stopped: bool = False  #: of embeddings, for the gradient; PyTorch only
    embedding_gradient: float = 1.0  #: factor of the gradient of embeddings; MindSpore only
    is_end_valid: bool = False  #: the frame behind the last one counts as valid; MindSpore only
    is_attention_masked: bool = True  #: MindSpore only
    class_axis: int = 1  #: the sum of squares of the classes' weights is over it; PyTorch only
    is_context_unbiased: bool = False  #: the variance that attention reads; MindSpore only
    padding_mode: str = "zeros"  #: of convolutions over time; or 'reflect'; PyTorch only
    optimizer: Optimizer = field(default_factory=Optimizer)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return filter banks (BATCH, FRAMES, MELS), lengths and labels, int32 (BATCH,)."""
        rng = np.random.default_rng(SEED + 1)
        lengths = np.array(LENGTHS, np.int32)
        voices = rng.standard_normal((BATCH, 1, MELS))
        features = voices + rng.standard_normal((BATCH, FRAMES, MELS))
        is_valid = np.arange(FRAMES) < lengths[:, None]
        features = np.where(is_valid[..., None], features, 0.0)
        labels = rng.permutation(SPEAKERS)[:BATCH]
        return features.astype(np.float32), lengths, labels.astype(np.int32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    _add_layer(weights, "entry", CHANNELS, MELS, ENTRY_KERNEL)
    for n in range(BLOCKS):
        path = f"blocks.{n}"
        _add_layer(weights, f"{path}.in", CHANNELS, CHANNELS)
        for piece in range(SCALES - 1):
            _add_layer(weights, f"{path}.scales.{piece}", WIDTH, WIDTH, KERNEL)
        _add_layer(weights, f"{path}.out", CHANNELS, CHANNELS)
        weights.add_linear(f"{path}.squeeze", SQUEEZED, CHANNELS, 1)
        weights.add_linear(f"{path}.excite", CHANNELS, SQUEEZED, 1)
    _add_layer(weights, "aggregate", AGGREGATED, BLOCKS * CHANNELS)
    _add_layer(weights, "attention.in", ATTENTION, 3 * AGGREGATED)
    weights.add_linear("attention.out", AGGREGATED, ATTENTION, 1)
    weights.add_norm("pool_norm", 2 * AGGREGATED)
    weights.add_linear("embed", EMBEDDING, 2 * AGGREGATED, 1)
    weights.add_matrix("classes", SPEAKERS, EMBEDDING)
    return Model("speaker", weights)


def _add_layer(weights: Weights, path: str, n_out: int, n_in: int, kernel: int = 1) -> None:
    weights.add_linear(path, n_out, n_in, kernel)
    weights.add_norm(f"{path}.norm", n_out)
