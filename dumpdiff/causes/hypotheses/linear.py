"""Linear layers: a bias left out or added twice, a weight used transposed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np

from ...model.arrays import AnyArray
from ...operators.linear import linear
from ..hypothesis import Candidate, Hypothesis
from ..situation import ZERO, Situation, residual

_COSTLY = 2e9  #: multiplications beyond which a product is not tried


def bias(s: Situation) -> Iterator[Candidate]:
    """t = r - b and t = r + b for a bias b of the neighbourhood; not if it is r that was made without b."""
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
            if residual(made, s.departing) <= s.limit and not any(
                map(s.fits, _products(s, s.plain.shape))
            ):
                name = f" ({o.parameter})" if o.parameter else ""
                yield Candidate(made, f"{said}{name}", "", {}, _with_bias(s, b), cause)


def _with_bias(s: Situation, b: AnyArray) -> AnyArray | None:
    """The faithful side's value made with the bias counted once; None if that cannot be shown."""
    inputs = [o.array.reshape(s.plain.shape) for o in s.alike()]
    for y in inputs:
        if s.fits(y + b):
            return y + b
    for plain in _products(s, s.plain.shape):
        for rest in (ZERO, *inputs):
            made: AnyArray = plain + b + rest
            if s.fits(made):
                return made
    return None


def _products(s: Situation, shape: tuple[int, ...]) -> Iterator[AnyArray]:
    """x W^T of the operands that go together, in a shape; channels of images are no such thing."""
    size = int(np.prod(shape))
    for weight in s.matrices():
        for x in s.operands:
            if (
                not x.shape
                or x.array.dtype.kind != "f"
                or x is weight
                or x.shape[-1] != weight.shape[-1]
            ):
                continue
            if int(np.prod(x.shape[:-1])) * weight.shape[0] != size or len(x.shape) < 2:
                continue
            if float(size) * weight.shape[1] <= _COSTLY:
                yield linear(x.array.reshape(-1, x.shape[-1]), weight.array).reshape(shape)


def bias_before(s: Situation) -> Iterator[Candidate]:
    """The bias of an input of the last op, as of the queries before their scores: taken off it, or added once more."""
    for o in s.operands if s.forward and s.call is not None else ():
        if len(o.shape) != 1 or not o.parameter.endswith("bias") or s.call is None:
            continue
        for i, value in enumerate(s.call.inputs):
            for rows, back in _by_rows(value, o.array.size):
                once = _adds_once(s, rows, o.array)
                for sign, cause, said in (
                    (-1, "bias-missing", "without"),
                    (1, "bias-doubled", "twice"),
                ):
                    other = back(rows + sign * o.array)
                    made = s.again(
                        [other if j == i else given for j, given in enumerate(s.call.inputs)]
                    )
                    if made is not None and once is not False:
                        plain = s.plain if once else None
                        yield Candidate(
                            made, f"{said} the bias {o.parameter}", "", {}, plain, cause
                        )


def _by_rows(
    value: AnyArray, width: int
) -> Iterator[tuple[AnyArray, Callable[[AnyArray], AnyArray]]]:
    """An input as (tokens, width), and the way back to its own axes.

    It lies so, or is cut into heads: (batch, heads, tokens, size) or (batch, heads, size, tokens).
    """
    if value.shape[-1:] == (width,):
        yield (
            value.reshape(-1, width),
            partial(_cut, shape=value.shape, axes=tuple(range(value.ndim))),
        )
    for axes in ((0, 2, 1, 3), (0, 3, 1, 2)) if value.ndim == 4 else ():
        tokens = value.transpose(axes)
        if tokens.shape[2] * tokens.shape[3] == width:
            yield tokens.reshape(-1, width), partial(_cut, shape=tokens.shape, axes=axes)


def _cut(rows: AnyArray, shape: tuple[int, ...], axes: tuple[int, ...]) -> AnyArray:
    heads: AnyArray = rows.reshape(shape).transpose(np.argsort(axes))
    return heads


def _adds_once(s: Situation, rows: AnyArray, bias: AnyArray) -> bool | None:
    """Whether the faithful side's own product and one bias give this value; None if no product of it was recorded."""
    bare = False
    for made in _products(s, rows.shape):
        if residual(made + bias, rows) <= s.limit:
            return True
        bare = bare or residual(made, rows) <= s.limit
    return False if bare else None


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
                (weight.array, weight.array.T),
                (ZERO, *(v.array for v in s.vectors() if v.shape == weight.shape[:1])),
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
