"""Gradients: a branch that does not come back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...model.arrays import Floats
from ...model.trace import BACKWARD
from ..hypothesis import Candidate, Hypothesis
from ..fault_case import FaultCase

_LARGEST_SEARCH = 1 << 21
_MOST = 40  # operands of both sides


def branch_of_vector(s: FaultCase) -> Iterator[Candidate]:
    """The gradient of a vector, sum of G X over all but the last axis: with one addend of G in place of the sum."""
    if s.phase != BACKWARD or s.faithful.ndim != 1 or s.faithful.size < 2:
        return
    inputs = [
        o
        for o in s.list_shared_operands()
        if len(o.shape) >= 2 and o.shape[-1] == s.faithful.size and o.array.dtype.kind == "f"
    ][:16]
    arrays = [o.array.reshape(-1, s.faithful.size) for o in inputs]
    if sum(a.size for a in arrays) > _LARGEST_SEARCH:
        return
    for i, x in enumerate(arrays):
        for j, g in enumerate(arrays):
            if i == j or x.shape != g.shape or not s.matches_faithful(plain := _summed(g, x)):
                continue
            for k, part in enumerate(arrays):
                if k not in (i, j) and part.shape == x.shape:
                    yield Candidate(
                        _summed(part, x), "the gradient of one branch missing", "", {}, plain
                    )
                    yield Candidate(
                        _summed(g - part, x), "the gradient of one branch missing", "", {}, plain
                    )
            return


def _summed(g: Floats, x: Floats) -> Floats:
    result: Floats = np.einsum("ij,ij->j", g, x)
    return result


def branch_of_product(s: FaultCase) -> Iterator[Candidate]:
    """r = G w or the sum of G w over the last axis, w another operand; with one addend of G in place of G."""
    if s.phase != BACKWARD or s.faithful.ndim < 2:
        return
    inputs = [o for o in s.list_shared_operands() if o.array.dtype.kind == "f" and o.shape][:_MOST]
    for sums in (False, True):
        for total in inputs:
            g = total.array
            if total.agrees or (g.size == s.faithful.size) == sums or g.ndim < 2:
                continue
            parts = [
                o.array.reshape(g.shape)
                for o in inputs
                if o is not total and o.array.size == g.size
            ]
            for o in inputs:
                w = o.array.reshape(g.shape) if o.array.size == g.size else o.array
                if o is total or w.shape not in (g.shape, g.shape[-1:]):
                    continue
                plain = _product(g, w, sums)
                if not s.matches_faithful(plain):
                    continue
                for part in parts:
                    for kept in (part, g - part):
                        yield Candidate(
                            _product(kept, w, sums),
                            "the gradient of one branch missing",
                            "",
                            {},
                            plain,
                        )
                return


def _product(g: Floats, w: Floats, sums: bool) -> Floats:
    made: Floats = g * w
    return made.sum(axis=-1, keepdims=True) if sums else made


def difference(s: FaultCase) -> Iterator[Candidate]:
    """t = r - a for an operand a: what one branch would have added."""
    if s.phase != BACKWARD or s.faithful.size < 2:
        return
    for o in list(s.find_same_size_operands())[:16]:
        part = o.array.reshape(s.faithful.shape)
        if np.any(part):
            yield Candidate(s.faithful - part, "the gradient of one branch missing", "", {}, s.faithful)
            yield Candidate(part, "the gradient of one branch missing", "", {}, s.faithful)


HYPOTHESES = (
    Hypothesis("gradient-stopped", branch_of_product),
    Hypothesis("gradient-stopped", branch_of_vector),
    Hypothesis("gradient-stopped", difference),
)
