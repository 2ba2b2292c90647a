"""Norm weights that are stored minus one, so that zeros correspond to ones of the other side.

Megatron-core's ``layernorm_zero_centered_gamma`` (``--apply-layernorm-1p``) stores them so, and so
do the models of transformers whose norm multiplies by ``1 + weight`` (``norms_minus_one`` in
rules/families).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..model.arrays import Floats
from ..rulebook import ModelFamily
from .computed_matrix import add_matrices
from .distance import compute_noise
from .matrix import Matrix
from .row_permutation import RowOrder

_NORM = re.compile(r"(norm|_ln|ln_\w+)\.weight$")
#: The gated norm of Qwen3-Next is not stored minus one, although all other norms of the model are.
_NEVER_ZERO_CENTERED = re.compile(r"linear_attn\.norm\.weight$")
_FLAGS = ("apply_layernorm_1p", "layernorm_zero_centered_gamma")

#: Constants to add to target and reference if the target's norms are stored minus one, or the
#: reference's.
_TARGET_OFFSETS, _REFERENCE_OFFSETS = (1.0, 0.0), (0.0, 1.0)


def has_zero_centered_norms(settings: Mapping[str, Any], model: ModelFamily | None) -> bool | None:
    """Whether checkpoints with these settings store norms minus one; None if undefined.

    ``model`` is the family of the settings' ``model_type``, None if no rule knows it.
    """
    for flag in _FLAGS:
        if isinstance(settings.get(flag), bool):
            return bool(settings[flag])
    if not isinstance(settings.get("model_type"), str):
        return None
    return model is not None and model.norms_minus_one


def is_norm(path: str) -> bool:
    """Whether a canonical name is that of the weight of a norm."""
    return _NORM.search(path) is not None and _NEVER_ZERO_CENTERED.search(path) is None


@dataclass(frozen=True)
class RecenteredNorm:
    """The weights of a norm on both sides, with one added to the side that is stored minus one."""

    target: Matrix
    reference: Matrix
    order: RowOrder  #: description of the difference
    is_correct: bool | None  #: None if only the other norms of the model can decide


def recenter_norm(
    target: Matrix, reference: Matrix, settings: tuple[bool | None, bool | None]
) -> RecenteredNorm | None:
    """Add one to the side of a norm that is stored minus one; None if neither side is, or both are.

    ``settings`` are the results of :func:`has_zero_centered_norms` for target and reference. If one
    of them is None, the values decide; constant values decide nothing.
    """
    if settings[0] is not None and settings[0] == settings[1]:
        return None
    target_values = target.read_values(slice(0, target.shape[0]))
    reference_values = reference.read_values(slice(0, reference.shape[0]))
    noise = compute_noise(target.precision, reference.precision)
    is_stored_equal = _are_close(target_values, reference_values, noise)
    if None not in settings:
        offsets = _TARGET_OFFSETS if settings[0] else _REFERENCE_OFFSETS
        is_correct = _are_close(target_values + offsets[0], reference_values + offsets[1], noise)
        if is_stored_equal and not is_correct:
            return RecenteredNorm(target, reference, _describe_missing_offset(offsets), False)
        return _add_offsets(target, reference, offsets, True)
    if is_stored_equal or not (np.ptp(target_values) and np.ptp(reference_values)):
        return None
    for offsets in (_TARGET_OFFSETS, _REFERENCE_OFFSETS):
        if _are_close(target_values + offsets[0], reference_values + offsets[1], noise):
            return _add_offsets(target, reference, offsets, None)
    return None


def _are_close(a: Floats, b: Floats, noise: float) -> bool:
    return bool(np.linalg.norm(a - b) <= noise * np.linalg.norm(b))


def _add_offsets(
    target: Matrix, reference: Matrix, offsets: tuple[float, float], is_correct: bool | None
) -> RecenteredNorm:
    if offsets[0]:
        target = add_matrices((1.0, target), constant=offsets[0])
    if offsets[1]:
        reference = add_matrices((1.0, reference), constant=offsets[1])
    description = (
        f"the reference's plus {offsets[1] - offsets[0]:g}:"
        f" the {_get_side(offsets)} stores norm weights minus one"
    )
    return RecenteredNorm(target, reference, RowOrder("zero-centered", description), is_correct)


def _get_side(offsets: tuple[float, float]) -> str:
    return "target" if offsets == _TARGET_OFFSETS else "reference"


def _describe_missing_offset(offsets: tuple[float, float]) -> RowOrder:
    """Describe the mistake that stored weights are equal although only one side adds one."""
    description = (
        "equal to the stored weights of the reference,"
        f" although the {_get_side(offsets)} stores norm weights minus one"
    )
    return RowOrder("zero-centered", description)
