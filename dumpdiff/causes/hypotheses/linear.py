"""Linear layers: a bias left out or added twice, a weight used transposed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import numpy as np

from ...model.arrays import AnyArray
from ...operators.linear import linear
from ..hypothesis import Candidate, Hypothesis
from ..fault_case import ZERO, FaultCase, compute_residual

_COSTLY = 2e9  #: multiplications beyond which a product is not tried


def bias(s: FaultCase) -> Iterator[Candidate]:
    """t = r - b and t = r + b for a bias b of the neighbourhood; not if it is r that was made without b."""
    if not s.is_forward_value or s.faithful.ndim < 1:
        return
    for o in s.find_vector_operands():
        b = o.array if s.faithful.ndim != 4 else o.array.reshape(-1, 1, 1)
        if not np.any(b) or "norm" in o.parameter:
            continue
        for sign, cause, said in (
            (-1, "bias-missing", "without its bias"),
            (1, "bias-doubled", "its bias added twice"),
        ):
            made = s.faithful + sign * b
            if compute_residual(made, s.faulty) <= s.limit and not any(
                map(s.matches_faithful, _products(s, s.faithful.shape))
            ):
                name = f" ({o.parameter})" if o.parameter else ""
                yield Candidate(made, f"{said}{name}", "", {}, _with_bias(s, b), cause)


def _with_bias(s: FaultCase, b: AnyArray) -> AnyArray | None:
    """The faithful side's value made with the bias counted once; None if that cannot be shown."""
    inputs = [o.array.reshape(s.faithful.shape) for o in s.find_same_size_operands()]
    for y in inputs:
        if s.matches_faithful(y + b):
            return y + b
    for plain in _products(s, s.faithful.shape):
        for rest in (ZERO, *inputs):
            made: AnyArray = plain + b + rest
            if s.matches_faithful(made):
                return made
    return None


def _products(s: FaultCase, shape: tuple[int, ...]) -> Iterator[AnyArray]:
    """x W^T of the operands that go together, in a shape; channels of images are no such thing."""
    size = int(np.prod(shape))
    for weight in s.find_matrix_operands():
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


def bias_before(s: FaultCase) -> Iterator[Candidate]:
    """The bias of an input of the last op, as of the queries before their scores: taken off it, or added once more."""
    for o in s.operands if s.is_forward_value and s.call is not None else ():
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
                    made = s.repeat_call(
                        [other if j == i else given for j, given in enumerate(s.call.inputs)]
                    )
                    if made is not None and once is not False:
                        plain = s.faithful if once else None
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


def _adds_once(s: FaultCase, rows: AnyArray, bias: AnyArray) -> bool | None:
    """Whether the faithful side's own product and one bias give this value; None if no product of it was recorded."""
    bare = False
    for made in _products(s, rows.shape):
        if compute_residual(made + bias, rows) <= s.limit:
            return True
        bare = bare or compute_residual(made, rows) <= s.limit
    return False if bare else None


def transposed(s: FaultCase) -> Iterator[Candidate]:
    """t = x W where r = x W^T, the weight square."""
    if not s.is_forward_value or s.faithful.ndim < 2:
        return
    for weight in s.find_matrix_operands():
        if weight.shape[0] != weight.shape[1] or not weight.parameter:
            continue
        for x in s.find_same_size_operands():
            if x.shape[-1:] != weight.shape[:1]:
                continue
            rows = x.array.reshape(-1, weight.shape[0])
            for w, b in product(
                (weight.array, weight.array.T),
                (ZERO, *(v.array for v in s.find_vector_operands() if v.shape == weight.shape[:1])),
            ):
                plain = linear(rows, w, b).reshape(s.faithful.shape)
                if s.matches_faithful(plain):
                    made = linear(rows, w.T, b).reshape(s.faithful.shape)
                    yield Candidate(made, f"{weight.parameter} transposed", "", {}, plain)


HYPOTHESES = (
    Hypothesis("bias-missing", bias),
    Hypothesis("bias-missing", bias_before),
    Hypothesis("weight-transposed", transposed),
)
