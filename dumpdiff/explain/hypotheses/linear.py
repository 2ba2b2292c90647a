"""Linear layers: a bias left out or added twice, a weight used transposed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from ...arrays import AnyArray
from ...operators.linear import linear
from ..hypothesis import Candidate, Hypothesis
from ..situation import ZERO, Situation, residual

_COSTLY = 2e9  #: multiplications beyond which a product is not tried


def bias(s: Situation) -> Iterator[Candidate]:
    """t = r - b and t = r + b for a bias b of the neighbourhood."""
    if not s.forward or s.plain.ndim < 1:
        return
    for o in s.vectors():
        b = o.array if s.plain.ndim != 4 else o.array.reshape(-1, 1, 1)
        if not np.any(b) or "norm" in o.parameter:
            continue
        for sign, cause, said in (
            (-1, "bias-missing", "without its bias"),
            (1, "bias-doubled", "its bias added twice"),
        ):
            made = s.plain + sign * b
            if residual(made, s.departing) <= s.limit:
                name = f" ({o.parameter})" if o.parameter else ""
                yield Candidate(made, f"{said}{name}", "", {}, _with_bias(s, b), cause)


def _with_bias(s: Situation, b: AnyArray) -> AnyArray | None:
    """The faithful side's value made with the bias counted once; None if that cannot be shown."""
    inputs = [o.array.reshape(s.plain.shape) for o in s.alike()]
    for y in inputs:
        if s.fits(y + b):
            return y + b
    for plain in _products(s):
        for rest in (ZERO, *inputs):
            made: AnyArray = plain + b + rest
            if s.fits(made):
                return made
    return None


def _products(s: Situation) -> Iterator[AnyArray]:
    """x W^T of the operands that go together, in the output's shape; channels of images are no such thing."""
    for weight in s.matrices():
        for x in s.operands:
            if not x.shape or x.array.dtype.kind != "f" or x is weight or x.shape[-1] != weight.shape[-1]:
                continue
            if int(np.prod(x.shape[:-1])) * weight.shape[0] != s.plain.size or len(x.shape) < 2:
                continue
            if float(s.plain.size) * weight.shape[1] <= _COSTLY:
                yield linear(x.array.reshape(-1, x.shape[-1]), weight.array).reshape(s.plain.shape)


def bias_before(s: Situation) -> Iterator[Candidate]:
    """The bias of an input of the last op, as of the queries before their scores: taken off it, or added once more."""
    for o in s.operands if s.forward and s.call is not None else ():
        if len(o.shape) != 1 or not o.parameter.endswith("bias") or s.call is None:
            continue
        for i, value in enumerate(s.call.inputs):
            for b in _spread(o.array, value):
                for sign, cause, said in ((-1, "bias-missing", "without"), (1, "bias-doubled", "twice")):
                    inputs = [value + sign * b if j == i else other for j, other in enumerate(s.call.inputs)]
                    made = s.again(inputs)
                    if made is not None:
                        yield Candidate(made, f"{said} the bias {o.parameter}", "", {}, s.plain, cause)


def _spread(bias: AnyArray, value: AnyArray) -> Iterator[AnyArray]:
    """A bias as it lies in an input: along the last axis, or cut into (heads, 1, size) or (heads, size, 1)."""
    if value.shape[-1:] == bias.shape:
        yield bias
    if value.ndim == 4 and bias.size % value.shape[1] == 0:
        heads, size = value.shape[1], bias.size // value.shape[1]
        if value.shape[3] == size:
            yield bias.reshape(heads, 1, size)
        if value.shape[2] == size:
            yield bias.reshape(heads, size, 1)


def transposed(s: Situation) -> Iterator[Candidate]:
    """t = x W where r = x W^T, the weight square."""
    if not s.forward or s.plain.ndim < 2:
        return
    for weight in s.matrices():
        if weight.shape[0] != weight.shape[1] or not weight.parameter:
            continue
        for x in s.alike():
            if x.shape[-1:] != weight.shape[:1]:
                continue
            rows = x.array.reshape(-1, weight.shape[0])
            for w, b in product(
                (weight.array, weight.array.T), (ZERO, *(v.array for v in s.vectors() if v.shape == weight.shape[:1]))
            ):
                plain = linear(rows, w, b).reshape(s.plain.shape)
                if s.fits(plain):
                    made = linear(rows, w.T, b).reshape(s.plain.shape)
                    yield Candidate(made, f"{weight.parameter} transposed", "", {}, plain)


HYPOTHESES = (
    Hypothesis("bias-missing", bias),
    Hypothesis("bias-missing", bias_before),
    Hypothesis("weight-transposed", transposed),
)
