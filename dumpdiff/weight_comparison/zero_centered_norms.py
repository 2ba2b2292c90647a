"""Norms whose weight is stored as its distance from one, so that zeros are where the other side has ones.

Megatron-core's ``layernorm_zero_centered_gamma`` (``--apply-layernorm-1p``) does so, and the models of transformers
whose norm multiplies by ``1 + weight`` (models/{gemma,qwen3_next,nemotron}/modeling_*.py and their relatives).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..model.arrays import Floats
from .computed_matrix import add_matrices
from .distance import compute_noise
from .matrix import Matrix
from .row_permutation import RowOrder

_NORM = re.compile(r"(norm|_ln|ln_\w+)\.weight$")
#: The gated norm of Qwen3-Next is stored as it is, though all its others are not.
_NEVER = re.compile(r"linear_attn\.norm\.weight$")
_FLAGS = ("apply_layernorm_1p", "layernorm_zero_centered_gamma")
_MODELS = re.compile(
    r"gemma[23]?(_text)?|recurrent_gemma|vaultgemma|t5gemma2?|nemotron|qwen3_next|qwen3_5(_moe)?(_text)?"
)


def has_zero_centered_norms(settings: Mapping[str, Any]) -> bool | None:
    """Whether a checkpoint of these settings keeps norms as their distance from one; None if they do not say."""
    for flag in _FLAGS:
        if isinstance(settings.get(flag), bool):
            return bool(settings[flag])
    model = settings.get("model_type")
    return _MODELS.fullmatch(model) is not None if isinstance(model, str) else None


def is_norm(path: str) -> bool:
    """Whether a canonical name is that of the weight of a norm."""
    return _NORM.search(path) is not None and _NEVER.search(path) is None


@dataclass(frozen=True)
class RecenteredNorm:
    """The weights of a norm on both sides as what the norm multiplies by, where one side keeps less than that."""

    target: Matrix
    reference: Matrix
    order: RowOrder
    right: bool | None  #: None where only the other norms of the model can tell


def recenter_norm(
    target: Matrix, reference: Matrix, known: tuple[bool | None, bool | None]
) -> RecenteredNorm | None:
    """One of two weights of a norm plus one, where it is its distance from one; None where they are as they stand.

    ``known`` is what :func:`stored_centred` says of target and reference. Where it says nothing of one of them, values
    decide; a constant decides nothing.
    """
    if known[0] is not None and known[0] == known[1]:
        return None
    a, b = (matrix.read_values(slice(0, matrix.shape[0])) for matrix in (target, reference))
    noise = compute_noise(target.precision, reference.precision)
    plain = _near(a, b, noise)
    ways = {
        True: (1.0, 0.0),
        False: (0.0, 1.0),
    }  # what is added to target and reference, by whether the target is it
    if None not in known:
        added = ways[bool(known[0])]
        if plain and not _near(a + added[0], b + added[1], noise):
            return RecenteredNorm(target, reference, _kept(added), False)
        return _with(target, reference, added, True)
    if plain or not (np.ptp(a) and np.ptp(b)):
        return None
    for added in ways.values():
        if _near(a + added[0], b + added[1], noise):
            return _with(target, reference, added, None)
    return None


def _near(a: Floats, b: Floats, noise: float) -> bool:
    return bool(np.linalg.norm(a - b) <= noise * np.linalg.norm(b))


def _with(
    target: Matrix, reference: Matrix, added: tuple[float, float], right: bool | None
) -> RecenteredNorm:
    one, other = (
        add_matrices((1.0, matrix), constant=number) if number else matrix
        for matrix, number in zip((target, reference), added, strict=True)
    )
    kept = f"the {_side(added)} keeps the distance of a norm's weight from one"
    return RecenteredNorm(
        one, other, RowOrder("centred", f"the reference's plus {added[1] - added[0]:g}: {kept}"), right
    )


def _side(added: tuple[float, float]) -> str:
    return "target" if added[0] else "reference"


def _kept(added: tuple[float, float]) -> RowOrder:
    """The other mistake: one side multiplies by one more than is stored, and both store the same."""
    return RowOrder(
        "centred",
        f"the reference's as it stands, though the {_side(added)} keeps a norm's distance from one",
    )
