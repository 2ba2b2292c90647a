"""An MLP-Mixer (https://arxiv.org/abs/2105.01601, section 2) whose every second block is one of
gMLP (https://arxiv.org/abs/2105.08050, section 2), in NumPy: sizes, knobs, weights and batch.

Patches are embedded by a convolution. A block of gMLP widens its channels, and one half of them
gates the other: it is normed and mixed over the tokens, by a matrix and one bias per token. A block
of a mixer has an mlp over the tokens and one over the channels. Each branch has a norm before it, a
layer scale (https://arxiv.org/abs/2103.17239, section 2) and stochastic depth
(https://arxiv.org/abs/1603.09382, section 3), whose masks are a part of the batch and whose rates
grow with depth. A box of each image is that of the reversed batch, and labels are mixed by its area
(https://arxiv.org/abs/1905.04899, section 3). The loss is that of the labels, that of the teacher's
logits at a temperature (https://arxiv.org/abs/1503.02531, section 2), and a penalty of the squared
weights of the gates. Weights:

    patch                   convolution of kernel and stride PATCH, with bias
    blocks.N.: norm, in, gate.norm, gate (TOKENS, TOKENS), out, gamma             of even N
               norm1, tokens.{up,down}, gamma1, norm2, channels.{up,down}, gamma2  of odd N
    norm, head
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, HEIGHT, WIDTH, PATCH, CLASSES = 4, 16, 24, 4, 10
ROWS, COLUMNS = HEIGHT // PATCH, WIDTH // PATCH
TOKENS = ROWS * COLUMNS
CHANNELS, GATED, TOKEN_HIDDEN, CHANNEL_HIDDEN = 20, 18, 14, 40
BLOCKS = 4
BRANCHES = (1, 2) * (BLOCKS // 2)  #: of each block
EPS = 1e-6
DROPPED = 0.3  #: probability that a branch of the last block is dropped
BOX = (9, 3, 19, 13)  #: first row and column, and those behind the last, before it is cut
SMOOTHING = 0.1
TEMPERATURE, TEACHER_SHARE, PENALTY = 3.0, 0.6, 0.005
MATRIX_DIMENSIONS = 2
PLACES = (2, 0, 3, 1)  #: of the batch's images, in the file before it was shuffled
SEED = 211


def is_gated(n: int) -> bool:
    """Return whether a block is one of gMLP."""
    return n % 2 == 0


@dataclass(frozen=True)
class MixerOptimizer(Optimizer):
    """AdamW with the decay of all weights that are no vectors."""

    learning_rate: float = 2e-3
    weight_decay: float = 0.1
    are_kernels_decayed: bool = True  #: else only matrices

    def get_decay(self, n_dimensions: int) -> float:
        """Return the weight decay of a weight."""
        if n_dimensions > MATRIX_DIMENSIONS and not self.are_kernels_decayed:
            return 0.0
        return super().get_decay(n_dimensions)


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault, of all blocks."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first. PyTorch: 'fused', tokens mixed by convolutions of width 1, and
    #: the framework's cross entropy; 'einsum', tokens mixed by einsum, gelu from erf, both losses
    #: from cross entropies; 'patches', patches cut by reshapes and a linear layer.
    #: MindSpore: 'written', norms, gelu and losses in plain arithmetic; 'conv', tokens mixed by
    #: convolutions of width 1, with other names of cells
    variant: str = ""
    gate_eps: float = EPS  #: of the gate's norm
    is_gate_activated: bool = True  #: gelu of both halves, else only of the one that is gated
    is_by_column: bool = False  #: patches in the order of columns
    is_first_dropped: bool = False  #: rates are (n + 1) / BLOCKS, not n / (BLOCKS - 1) of the last
    is_divided_by_all: bool = False  #: the teacher's loss is the mean of all terms
    is_box_cut: bool = True  #: the share of labels is that of the box in the image
    is_penalty_halved: bool = False
    is_student_stopped: bool = False  #: no gradient from the teacher's loss
    token_gradient: float = 1.0  #: that of the mixers' weights over tokens is multiplied by it
    is_gate_gradient_exchanged: bool = False  #: between both factors; MindSpore only
    is_teacher_unshuffled: bool = False  #: its logits are in the order of a file; PyTorch only
    are_halves_exchanged: bool = False  #: the first half gates the second one; MindSpore only
    is_keep_derived: bool = True  #: gradients of branches are divided by it; PyTorch only
    optimizer: Optimizer = field(default_factory=MixerOptimizer)

    def keep(self, n: int) -> float:
        """Return the probability that a branch of a block is kept."""
        if self.is_first_dropped:
            return 1 - DROPPED * (n + 1) / BLOCKS
        return 1 - DROPPED * n / (BLOCKS - 1)

    def box(self) -> np.ndarray:
        """Return which pixels are those of the reversed batch, bool (HEIGHT, WIDTH)."""
        top, left, bottom, right = BOX
        box = np.zeros((HEIGHT, WIDTH), bool)
        box[top:bottom, left:right] = True
        return box

    def share(self) -> float:
        """Return the share of the own label."""
        if self.is_box_cut:
            return 1 - float(self.box().mean())
        top, left, bottom, right = BOX
        return 1 - (bottom - top) * (right - left) / (HEIGHT * WIDTH)

    def batch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return images, float32 (BATCH, 3, HEIGHT, WIDTH), labels, int32 (BATCH,), the teacher's
        logits, float32 (BATCH, CLASSES), and which branches are kept, float32 (BLOCKS, 2, BATCH).
        """
        rng = np.random.default_rng(SEED + 1)
        images = rng.standard_normal((BATCH, 3, HEIGHT, WIDTH)).astype(np.float32)
        labels = rng.permutation(CLASSES)[:BATCH].astype(np.int32)
        teacher = 3 * rng.standard_normal((BATCH, CLASSES)) + 4 * np.eye(CLASSES)[labels]
        if self.is_teacher_unshuffled:
            teacher = teacher[np.argsort(PLACES)]
        rates = DROPPED * np.arange(BLOCKS) / (BLOCKS - 1)
        is_kept = rng.random((BLOCKS, 2, BATCH)) >= rates[:, None, None]
        return images, labels, teacher.astype(np.float32), is_kept.astype(np.float32)


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)

    def add_gamma(name: str) -> None:
        weights[name] = weights.rng.uniform(0.4, 0.9, CHANNELS).astype(np.float32)

    weights.add_linear("patch", CHANNELS, 3, PATCH, PATCH)
    for n in range(BLOCKS):
        path = f"blocks.{n}"
        if is_gated(n):
            weights.add_norm(f"{path}.norm", CHANNELS)
            weights.add_linear(f"{path}.in", 2 * GATED, CHANNELS)
            weights.add_norm(f"{path}.gate.norm", GATED)
            weights.add_norm(f"{path}.gate", TOKENS, has_bias=False)
            weights[f"{path}.gate.bias"] = weights[f"{path}.gate.weight"]  # they begin at one
            weights.add_matrix(f"{path}.gate", TOKENS, TOKENS)
            weights.add_linear(f"{path}.out", CHANNELS, GATED)
            add_gamma(f"{path}.gamma")
            continue
        weights.add_norm(f"{path}.norm1", CHANNELS)
        weights.add_linear(f"{path}.tokens.up", TOKEN_HIDDEN, TOKENS)
        weights.add_linear(f"{path}.tokens.down", TOKENS, TOKEN_HIDDEN)
        add_gamma(f"{path}.gamma1")
        weights.add_norm(f"{path}.norm2", CHANNELS)
        weights.add_linear(f"{path}.channels.up", CHANNEL_HIDDEN, CHANNELS)
        weights.add_linear(f"{path}.channels.down", CHANNELS, CHANNEL_HIDDEN)
        add_gamma(f"{path}.gamma2")
    weights.add_norm("norm", CHANNELS)
    weights.add_linear("head", CLASSES, CHANNELS)
    return Model("mixer", weights)
