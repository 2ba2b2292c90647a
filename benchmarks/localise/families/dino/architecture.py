"""Self-distillation of a vision transformer as DINOv2 in NumPy: sizes, knobs, weights and batch.

A student and a teacher without gradients are vision transformers with a class token and register
tokens (https://arxiv.org/abs/2309.16588). Patches come from a convolution. Positions are those of
the class token and of the patches of a global crop; those of the smaller local crop are
interpolated between them, bilinearly. Registers have none. Blocks have layer norms in front of
attention and SwiGLU, and both branches are multiplied by a learned scale before they are added. A
head of three layers with gelu, a division by the length, and a linear layer whose rows have the
length 1 makes scores of PROTOTYPES. The loss of one step is the sum of

    classes: cross entropy between the teacher's softmax of (scores - center) / TEACHER_TEMPERATURE
             and the student's of scores / STUDENT_TEMPERATURE, mean over all pairs of different
             crops, of which the teacher sees the global ones (https://arxiv.org/abs/2104.14294)
    patches: the same between patches that are masked for the student only; mean over the patches
             of a crop, then over crops (https://arxiv.org/abs/2111.07832)
    spread:  minus the logarithm of the distance of a student's class token, divided by its length,
             to the nearest one of the same global crop of other images, times KOLEO_WEIGHT
             (https://arxiv.org/abs/2304.07193, section 4)

Weights, for student and teacher each:

    patch                               (HIDDEN, 3, PATCH, PATCH)
    class_token, registers, mask_token  (1, 1, HIDDEN), (1, REGISTERS, HIDDEN), (1, HIDDEN)
    positions                           (1, 1 + ROWS * COLUMNS, HIDDEN), the class token's first
    layers.N.norm1, norm2, scale1, scale2
    layers.N.attention.{q, k, v, o}
    layers.N.mlp.joined                 (2 * FFN, HIDDEN): what SiLU is taken of, then its factor
    layers.N.mlp.down
    norm
    head.{0, 1, 2}                      linear layers
    head.last                           (PROTOTYPES, BOTTLENECK), the length of its rows is ignored

and centers.class, centers.patch, (PROTOTYPES,), which have no gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from architecture import Optimizer

from families.weights import Weights

BATCH, CROPS, CHANNELS, PATCH = 5, 2, 3, 3  #: CROPS: global ones of an image
ROWS, COLUMNS = 7, 4  #: patches of a global crop
LOCAL_ROWS, LOCAL_COLUMNS = 3, 2
PATCHES = ROWS * COLUMNS
HIDDEN, HEADS, LAYERS, FFN, REGISTERS = 26, 2, 2, 34, 2
HEAD_DIM = HIDDEN // HEADS
HEAD_HIDDEN, BOTTLENECK, PROTOTYPES = 30, 14, 37
EPS, LENGTH_EPS, KOLEO_EPS = 1e-6, 1e-12, 1e-8
STUDENT_TEMPERATURE, TEACHER_TEMPERATURE = 0.1, 0.04
KOLEO_WEIGHT = 0.1
SEED = 2104
STUDENT, TEACHER = "student", "teacher"


@dataclass(frozen=True)
class Model:
    """Weights, knobs and batch. A knob turned away from its default is a fault."""

    name: str
    weights: Mapping[str, np.ndarray]
    #: '' as a user writes it first; 'transformers' (PyTorch): modules of Hugging Face, fused
    #: attention, losses by matrix products; 'joined' (PyTorch): one call of the head on class
    #: tokens and patches, a linear layer for patches, einsum; 'dense' (MindSpore): the head on all
    #: patches and a mask, separate halves of SwiGLU, norms written out with mint
    variant: str = ""
    are_corners_aligned: bool = False  #: of interpolated positions; MindSpore only
    has_last_scale: bool = True  #: the SwiGLU of the last block has its scale; MindSpore only
    is_center_behind: bool = False  #: subtracted behind the temperature; MindSpore only
    are_same_crops_paired: bool = False  #: MindSpore only
    is_neighbor_stopped: bool = False  #: no gradient through the nearest token; PyTorch only
    is_mask_behind_positions: bool = False  #: PyTorch only
    is_second_half_gate: bool = False  #: of SwiGLU; PyTorch only
    is_patch_mean: bool = False  #: the mean over masked patches of all crops; PyTorch only
    are_registers_read: bool = False  #: patches begin behind the class token; PyTorch only
    patch_gradient: float = 1.0  #: factor of the gradient of embedded patches; MindSpore only
    is_length_stopped: bool = False  #: no gradient through the length of rows; PyTorch only
    is_teacher_masked: bool = False  #: MindSpore only
    optimizer: Optimizer = field(default_factory=Optimizer)

    def interpolation(self) -> np.ndarray:
        """Return positions of a local crop from those of a global one, (local, PATCHES)."""
        rows = _interpolate(LOCAL_ROWS, ROWS, self.are_corners_aligned)
        columns = _interpolate(LOCAL_COLUMNS, COLUMNS, self.are_corners_aligned)
        return np.kron(rows, columns).astype(np.float32)

    def batch(self) -> tuple[np.ndarray, ...]:
        """Return crops, masks, and of each masked patch its number and its weight in the loss.

        Global crops (CROPS * BATCH, CHANNELS, height, width), the first ones of all images before
        the second ones, local crops (BATCH, ...), masks, bool (CROPS * BATCH, PATCHES), numbers in
        all patches of global crops, int32, and weights, float32: one over the masked patches of
        the crop.
        """
        rng = np.random.default_rng(SEED + 1)
        images = rng.standard_normal((BATCH, CHANNELS, PATCH * ROWS, PATCH * COLUMNS))
        noise = rng.standard_normal((CROPS, *images.shape))
        global_crops = (images + 0.7 * noise).reshape(CROPS * BATCH, *images.shape[1:])
        height, width = PATCH * LOCAL_ROWS, PATCH * LOCAL_COLUMNS
        part = images[:, :, 3 : 3 + height, 2 : 2 + width]
        local_crops = part + 0.7 * rng.standard_normal(part.shape)
        counts = rng.permutation(np.arange(4, 4 + CROPS * BATCH))
        order = np.argsort(rng.random((CROPS * BATCH, PATCHES)), axis=1)
        masks = order < counts[:, None]
        numbers = np.flatnonzero(masks)
        weights = 1 / counts[numbers // PATCHES]
        return (
            global_crops.astype(np.float32),
            local_crops.astype(np.float32),
            masks,
            numbers.astype(np.int32),
            weights.astype(np.float32),
        )


def _interpolate(n_out: int, n_in: int, are_corners_aligned: bool) -> np.ndarray:
    """Return the matrix (n_out, n_in) of a linear interpolation."""
    if are_corners_aligned:
        places = np.linspace(0, n_in - 1, n_out)
    else:
        places = (np.arange(n_out) + 0.5) * n_in / n_out - 0.5
    return np.maximum(0, 1 - np.abs(places[:, None] - np.arange(n_in)))


def build_clean() -> Model:
    """Return the model without a fault."""
    weights = Weights(SEED)
    _add_backbone(weights, STUDENT)
    _add_head(weights, f"{STUDENT}.head")
    for name, values in list(weights.items()):  # an average of earlier students is near this one
        factors = 1 + 0.3 * weights.rng.standard_normal(values.shape)
        weights[name.replace(STUDENT, TEACHER)] = (values * factors).astype(np.float32)
    for kind in ("class", "patch"):
        center = 0.1 * weights.rng.standard_normal(PROTOTYPES)
        weights[f"centers.{kind}"] = center.astype(np.float32)
    return Model("dino", weights)


def _add_backbone(weights: Weights, path: str) -> None:
    weights.add_linear(f"{path}.patch", HIDDEN, CHANNELS, PATCH, PATCH)
    weights.add_table(f"{path}.class_token", 1, 1, HIDDEN, deviation=0.3)
    weights.add_table(f"{path}.registers", 1, REGISTERS, HIDDEN)
    weights.add_table(f"{path}.mask_token", 1, HIDDEN)
    weights.add_table(f"{path}.positions", 1, 1 + PATCHES, HIDDEN, deviation=0.7)
    for n in range(LAYERS):
        layer = f"{path}.layers.{n}"
        for branch in (1, 2):
            weights.add_norm(f"{layer}.norm{branch}", HIDDEN)
            scale = 0.6 + 0.15 * weights.rng.standard_normal(HIDDEN)
            weights[f"{layer}.scale{branch}.weight"] = scale.astype(np.float32)
        for name in "qkvo":
            weights.add_linear(f"{layer}.attention.{name}", HIDDEN, HIDDEN)
        weights.add_linear(f"{layer}.mlp.joined", 2 * FFN, HIDDEN)
        weights.add_linear(f"{layer}.mlp.down", HIDDEN, FFN)
    weights.add_norm(f"{path}.norm", HIDDEN)


def _add_head(weights: Weights, path: str) -> None:
    weights.add_linear(f"{path}.0", HEAD_HIDDEN, HIDDEN)
    weights.add_linear(f"{path}.1", HEAD_HIDDEN, HEAD_HIDDEN)
    weights.add_linear(f"{path}.2", BOTTLENECK, HEAD_HIDDEN)
    weights.add_matrix(f"{path}.last", PROTOTYPES, BOTTLENECK)
