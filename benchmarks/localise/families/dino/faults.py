"""Faults of self-distillation."""

from __future__ import annotations

from collections.abc import Mapping

from claims import Anywhere, Ratio

from families.dino.architecture import Model
from families.fault import Fault, change_model, change_weight


def _share_center(model: Model) -> Model:
    """Give patches the center of class tokens."""
    return change_weight("centers.patch", lambda _: model.weights["centers.class"])(model)


FAULTS: Mapping[str, Fault] = {
    "corners_aligned": Fault(
        "positions of the local crop are interpolated with aligned corners",
        "align-corners",
        change_model(are_corners_aligned=True),
        lambda *_: [Anywhere(r"(?i)corner|interpol|bilinear|resize|position|matrix|pos_embed")],
        equivalents=("resize-mode", "input-source", "argument"),
    ),
    "last_scale_missing": Fault(
        "the SwiGLU of the last block has no LayerScale: its name is not in the checkpoint's map",
        "missing-step",
        change_model(has_last_scale=False),
        equivalents=("residual-scale", "constant-factor", "scale", "missing-term"),
    ),
    "center_behind": Fault(
        "the center is subtracted from scores that are already divided by the temperature",
        "layer-order",
        change_model(is_center_behind=True),
        equivalents=("constant-factor", "scale", "constant-offset", "missing-step"),
    ),
    "same_crops": Fault(
        "the student's view of a global crop is also paired with the teacher's of the same one",
        "mask-missing",
        change_model(are_same_crops_paired=True),
        equivalents=("mask-kind", "missing-step", "missing-term", "loss-reduction", "loss-weight"),
    ),
    "neighbor_stopped": Fault(
        "the nearest class token is gathered without a gradient, as its number is",
        "gradient-stopped",
        change_model(is_neighbor_stopped=True),
        equivalents=("missing-term",),
    ),
    "middle_transposed": Fault(
        "the square kernel of the middle layer of the student's head is not transposed on load",
        "weight-transposed",
        change_weight("student.head.1.weight", lambda weight: weight.T),
        lambda *_: [Anywhere("transposed|axes")],
        equivalents=("axes-swapped",),
    ),
    "mask_behind_positions": Fault(
        "masked patches are replaced behind the sum with their positions, which they lose",
        "layer-order",
        change_model(is_mask_behind_positions=True),
        equivalents=("missing-term", "input-source", "missing-step"),
    ),
    "second_half_gate": Fault(
        "SwiGLU takes SiLU of the second half, as checkpoints of another library have it",
        "gate-up-swapped",
        change_model(is_second_half_gate=True),
        equivalents=("gate-order", "split-order", "input-order", "input-source"),
    ),
    "patch_mean": Fault(
        "the loss of patches is their mean over all crops: crops with more masked ones count more",
        "loss-reduction",
        change_model(is_patch_mean=True),
        equivalents=("loss-weight", "pooling", "missing-step", "missing-term", "input-source"),
    ),
    "registers_read": Fault(
        "patches are read from behind the class token, as before there were registers",
        "row-shift",
        change_model(are_registers_read=True),
        equivalents=("input-source", "position-offset", "split-order", "missing-step", "argument"),
    ),
    "patch_gradient": Fault(
        "the factor 0.2 of the patch embedding's learning rate is applied to its gradient",
        "gradient-scaled",
        change_model(patch_gradient=0.2),
        lambda faulty, clean: [Ratio(faulty.patch_gradient / clean.patch_gradient)],
        equivalents=("constant-factor", "scale"),
    ),
    "length_stopped": Fault(
        "the length of the last layer's rows is a constant for the gradient",
        "gradient-stopped",
        change_model(is_length_stopped=True),
        equivalents=("missing-term",),
    ),
    "teacher_masked": Fault(
        "masks are given to the teacher, too, which should see all patches",
        "missing-step",
        change_model(is_teacher_masked=True),
        equivalents=("mask-missing", "mask-kind", "input-source"),
    ),
    "center_shared": Fault(
        "both losses have a buffer of the name center: that of patches gets the one of class "
        "tokens",
        "weight-swapped",
        _share_center,
        equivalents=("input-source", "constant-offset", "argument"),
    ),
}

CASES: tuple[tuple[str, str], ...] = (
    ("corners_aligned", "mindspore"),
    ("last_scale_missing", "mindspore"),
    ("center_behind", "mindspore"),
    ("same_crops", "mindspore"),
    ("patch_gradient", "mindspore"),
    ("middle_transposed", "mindspore"),
    ("mask_behind_positions", "pytorch"),
    ("second_half_gate", "pytorch"),
    ("patch_mean", "pytorch"),
    ("registers_read", "pytorch"),
    ("neighbor_stopped", "pytorch"),
    ("length_stopped", "pytorch"),
    ("teacher_masked", "mindspore"),
    ("center_shared", "pytorch"),
)

VARIANTS: Mapping[str, tuple[str, str]] = {
    "transformers": ("", "transformers"),
    "joined": ("", "joined"),
    "dense": ("dense", ""),
}
