"""Normalisations: another epsilon, the other kind of norm, its weight left out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from ...model.arrays import AnyArray, Floats
from ...model.trace import BACKWARD, OPTIMIZER
from ..hypothesis import Candidate, Hypothesis
from ..fault_case import ONE, ZERO, FaultCase

_ROOTS = {"div", "addcdiv", "rsqrt", "sqrt", "pow", "reciprocal"}
_LARGEST_EPS = 1.0
_FEWEST = 4  #: values; any one number is some epsilon away from any other


def added_to_variance(s: FaultCase) -> Iterator[Candidate]:
    """The sum under the root: t - r is one number, and a root follows."""
    if (
        s.faithful.size < _FEWEST
        or not (s.consumer_kinds & _ROOTS)
        or s.phase == BACKWARD
        or s.is_source
        or s.is_discrete
    ):
        return
    for o in s.find_same_size_operands():
        theirs, ours = (
            float(np.mean(v.reshape(-1) - o.array.reshape(-1))) for v in (s.faithful, s.faulty)
        )
        if -1e-9 < theirs < _LARGEST_EPS and 0 <= ours < _LARGEST_EPS and np.min(o.array) >= 0:
            base = o.array.reshape(s.faithful.shape)
            yield _epsilon(s, base + ours, ours, base + theirs, theirs)


def root_of_variance(s: FaultCase) -> Iterator[Candidate]:
    """1 / sqrt(v + eps) and sqrt(v + eps) of a non-negative operand."""
    if not s.is_forward_value or s.faithful.size < _FEWEST:
        return
    for o in s.find_same_size_operands():
        if o.array.min() < 0 or np.min(s.faithful) <= 0 or np.min(s.faulty) <= 0:
            continue
        v = o.array.reshape(s.faithful.shape)
        for power in (-0.5, 0.5):
            ours, theirs = (float(np.median(x ** (1 / power) - v)) for x in (s.faulty, s.faithful))
            if 0 <= ours < _LARGEST_EPS and abs(theirs) < _LARGEST_EPS:
                yield _epsilon(s, (v + ours) ** power, ours, (v + theirs) ** power, theirs)


def whole_norm(s: FaultCase) -> Iterator[Candidate]:
    """y = norm(x) w + b with the epsilon of either side solved for, and the other kind of norm with it."""
    if not s.is_forward_value or s.faithful.ndim < 1:
        return
    vectors: list[AnyArray] = [o.array for o in s.find_vector_operands()]
    for o in list(s.find_same_size_operands()):
        x = o.array.reshape(s.faithful.shape)
        for axes in ((-1,), (0, 2, 3)) if x.ndim == 4 else ((-1,),):
            shaped = [_along(v, x.ndim, axes) for v in vectors]
            fitted = _fitted(s, x, axes, shaped)
            if fitted is None:
                continue
            kind, weight, bias, theirs = fitted
            plain = _normalised(kind, x, axes, theirs) * weight + bias
            for other in ("rms", "layer"):
                for added in {id(bias): bias, 0: ZERO}.values() if other != kind else (bias,):
                    ours = _solved(other, x, axes, weight, added, s.faulty)
                    if ours is None:
                        continue
                    made = _normalised(other, x, axes, ours) * weight + added
                    if other == kind:
                        yield _epsilon(s, made, ours, plain, theirs)
                    else:
                        names = {"rms": "RMS norm", "layer": "layer norm"}
                        yield Candidate(made, f"{names[other]}, epsilon {ours:.2g}", f"has {names[kind]}",
                                        {"epsilon": ours}, plain, "norm-kind")  # fmt: skip
            return


def centred(s: FaultCase) -> Iterator[Candidate]:
    """Inside a norm: the mean taken off, or the squares of it, where the other side takes none."""
    if not s.is_forward_value:
        return
    for o in list(s.operands):
        x = o.array
        if x.dtype.kind != "f" or x.ndim < 2:
            continue
        y = x - x.mean(axis=-1, keepdims=True)
        forms: list[tuple[AnyArray, AnyArray]] = [(x, y), (x * x, y * y)]
        forms.append((np.mean(x * x, -1, keepdims=True), np.mean(y * y, -1, keepdims=True)))
        for rms, layer in forms:
            if rms.size != s.faithful.size:
                continue
            for plain, made, name, other in (
                (rms, layer, "layer norm", "RMS norm"),
                (layer, rms, "RMS norm", "layer norm"),
            ):
                yield Candidate(made, f"{name}", f"has {other}", {}, plain, "norm-kind")


def _fitted(
    s: FaultCase, x: AnyArray, axes: tuple[int, ...], vectors: list[AnyArray]
) -> tuple[str, AnyArray, AnyArray, float] | None:
    """(kind, weight, bias, epsilon) with which the norm of x is the faithful side's output."""
    for kind in ("rms", "layer"):
        for weight, bias in product(
            [*vectors, ONE], [ZERO, *vectors] if kind == "layer" else [ZERO]
        ):
            eps = _solved(kind, x, axes, weight, bias, s.faithful)
            if eps is not None and s.matches_faithful(_normalised(kind, x, axes, eps) * weight + bias):
                return kind, weight, bias, eps
    return None


def _solved(
    kind: str, x: AnyArray, axes: tuple[int, ...], weight: AnyArray, bias: AnyArray, y: AnyArray
) -> float | None:
    """epsilon = 1 / f^2 - variance with f = <x w, y - b> / <x w, x w> per row: the median over the rows."""
    centre = x - x.mean(axis=axes, keepdims=True) if kind == "layer" else x
    direction = centre * weight
    with np.errstate(all="ignore"):
        f = np.sum(direction * (y - bias), axis=axes) / np.sum(direction * direction, axis=axes)
        eps = float(np.median(1 / (f * f) - np.mean(centre * centre, axis=axes)))
    return max(eps, 0.0) if np.isfinite(eps) and abs(eps) < 10 * _LARGEST_EPS else None


def _normalised(kind: str, x: AnyArray, axes: tuple[int, ...], eps: float) -> Floats:
    centre = x - x.mean(axis=axes, keepdims=True) if kind == "layer" else x
    result: Floats = centre / np.sqrt(np.mean(centre * centre, axis=axes, keepdims=True) + eps)
    return result


def _along(vector: AnyArray, ndim: int, axes: tuple[int, ...]) -> AnyArray:
    """A vector of channels as it broadcasts: along the last axis, or along axis 1."""
    return vector if axes == (-1,) else vector.reshape(-1, *([1] * (ndim - 2)))


def _epsilon(
    s: FaultCase, made: AnyArray, ours: float, plain: AnyArray, theirs: float
) -> Candidate:
    used = min(
        (n for n in s.numbers if 0 < n < _LARGEST_EPS),
        key=lambda n: abs(n - theirs),
        default=theirs,
    )
    theirs = used if abs(used - theirs) < 0.2 * used + 1e-7 else theirs
    cause = "optimizer-epsilon" if s.phase == OPTIMIZER else "epsilon"
    return Candidate(
        made,
        f"epsilon = {ours:.2g}",
        f"uses {max(theirs, 0.0):.2g}",
        {"epsilon": ours},
        plain,
        cause,
    )


HYPOTHESES = (
    Hypothesis("epsilon", added_to_variance),
    Hypothesis("epsilon", root_of_variance),
    Hypothesis("epsilon", whole_norm),
    Hypothesis("norm-kind", centred),
)
