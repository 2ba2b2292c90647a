"""Rotary position embedding: pairs of the other layout, another base, other positions; in the tables and in use."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...comparison.narrow_dtypes import round_to_dtype
from ...model.arrays import AnyArray, Floats
from ...model.trace import FORWARD
from ...operators.rotary import PAIR_LAYOUTS, make_rotary_tables
from ..parameter_fit import minimize
from ..hypothesis import Candidate, Hypothesis
from ..fault_case import FaultCase

_OFFSETS = (1, -1, 2, -2)
_SAME_COLUMN = 1e-2  #: bfloat16 tables are off by 4e-3
_BASES = np.logspace(2, 8, 61)


def table(s: FaultCase) -> Iterator[Candidate]:
    """A table of cosines or sines (positions, size), which the faithful side's base and layout reproduce."""
    rows = _as_table(s.faithful)
    if s.phase != FORWARD or rows is None:
        return
    other = s.faulty.reshape(rows.shape)
    fitted = _fitted(rows, s)
    if fitted is None:
        return
    which, theta, interleaved, start = fitted
    count, size = rows.shape
    plain = _values(which, count, size, theta, interleaved, start)

    def made(theta: float = theta, interleaved: bool = interleaved, start: int = start) -> Floats:
        return _values(which, count, size, theta, interleaved, start)

    yield Candidate(
        made(interleaved=not interleaved),
        "rotary pairs of the other layout",
        "",
        {},
        plain,
        "rope-layout",
    )
    for offset in _OFFSETS:
        said, figures = f"positions moved by {offset}", {"offset": float(offset)}
        yield Candidate(made(start=start + offset), said, "", figures, plain, "position-offset")
    ours = minimize(lambda x: float(np.linalg.norm(made(theta=np.exp(x)) - other)), np.log(_BASES))
    base = float(f"{np.exp(ours):.4g}")
    yield Candidate(
        made(theta=base),
        f"base {base:.6g}",
        f"has {theta:.6g}",
        {"theta": base},
        plain,
        "rope-theta",
    )
    for dtype in ("bfloat16", "float16"):
        frequencies = round_to_dtype(
            (theta ** (-2.0 * np.arange(size // 2) / size)).astype(np.float32), dtype
        )
        yield Candidate(_values(which, count, size, theta, interleaved, start, frequencies.astype(np.float64)),
                        f"inverse frequencies rounded to {dtype}", "", {}, plain, "low-precision")  # fmt: skip


def _as_table(array: AnyArray) -> AnyArray | None:
    """(positions, size) of at least three positions with entries in -1..1; leading axes of length 1 fall away."""
    if (
        array.dtype.kind != "f"
        or array.ndim < 2
        or array.shape[-1] % 2
        or int(np.prod(array.shape[:-2])) != 1
    ):
        return None
    rows = array.reshape(array.shape[-2:])
    return rows if len(rows) > 2 and np.abs(rows).max() <= 1 + 1e-3 else None


def _fitted(rows: AnyArray, s: FaultCase) -> tuple[str, float, bool, int] | None:
    """(cosine or sine, base, interleaved, first position) of a table; a common base is tried first."""
    count, size = rows.shape
    scale = float(np.linalg.norm(rows)) or 1.0
    for which in ("cos", "sin"):
        for start in (0, 1):
            # The first pair turns by the position itself, whatever the base: this rules out all other matrices.
            if (
                np.abs(rows[:, 0] - getattr(np, which)(np.arange(start, start + count))).max()
                > _SAME_COLUMN
            ):
                continue
            for interleaved in (False, True):

                def cost(
                    x: float,
                    which: str = which,
                    start: int = start,
                    interleaved: bool = interleaved,
                ) -> float:
                    made = _values(which, count, size, float(np.exp(x)), interleaved, start)
                    return float(np.linalg.norm(made - rows)) / scale

                if cost(np.log(1e4)) <= s.limit:
                    return which, 1e4, interleaved, start
                theta = float(f"{np.exp(minimize(cost, np.log(_BASES))):.4g}")
                if cost(np.log(theta)) <= s.limit:
                    return which, theta, interleaved, start
    return None


def _values(
    which: str,
    count: int,
    size: int,
    theta: float,
    interleaved: bool,
    start: int,
    frequencies: AnyArray | None = None,
) -> Floats:
    if frequencies is None:
        return make_rotary_tables(np.arange(start, start + count), size, theta, interleaved)[which == "sin"]
    half: Floats = np.multiply.outer(
        np.arange(start, start + count).astype(np.float64), frequencies
    )
    angles = np.repeat(half, 2, axis=-1) if interleaved else np.concatenate([half, half], axis=-1)
    return np.cos(angles) if which == "cos" else np.sin(angles)


def in_use(s: FaultCase) -> Iterator[Candidate]:
    """turned(x), turned(x) sin, x cos + turned(x) sin, with the pairs in the other layout."""
    if not s.is_forward_value or s.faithful.ndim < 2 or s.faithful.shape[-1] % 2:
        return
    small = [
        o.array for o in s.operands if o.array.dtype.kind == "f" and _as_table(o.array) is not None
    ]
    small = [t for t in small if _broadcasts(t.shape, s.faithful.shape)]
    for o in list(s.find_same_size_operands()):
        for x in _arrangements(o.array, s.faithful.shape):
            for plain, made in _turned(s, x, small):
                yield Candidate(
                    made, "rotary pairs of the other layout", "", {}, plain, "rope-layout"
                )


def _arrangements(x: AnyArray, shape: tuple[int, ...]) -> Iterator[AnyArray]:
    """An operand in the shape of the output; (batch, seq, heads x size) also cut into heads that are moved forward."""
    yield x.reshape(shape)
    if len(shape) == 4:
        moved = (shape[0], shape[2], shape[1], shape[3])
        yield np.swapaxes(x.reshape(moved), 1, 2)


def _turned(
    s: FaultCase, x: AnyArray, small: list[AnyArray]
) -> Iterator[tuple[AnyArray, AnyArray]]:
    for cos in small:
        if s.matches_faithful(x * cos):
            yield from ((x * cos, x * _relaid(cos, other)) for other in PAIR_LAYOUTS)
    for name, other in (("halves", "interleaved"), ("interleaved", "halves")):
        plain, made = PAIR_LAYOUTS[name](x), PAIR_LAYOUTS[other](x)
        if s.matches_faithful(plain):
            yield plain, made
        for sin in small:
            if s.matches_faithful(plain * sin):
                yield plain * sin, made * sin
                yield plain * sin, made * _relaid(sin, other)
            for cos in small:
                if cos is not sin and s.matches_faithful(x * cos + plain * sin):
                    yield x * cos + plain * sin, x * cos + made * sin
                    yield (
                        x * cos + plain * sin,
                        x * _relaid(cos, other) + made * _relaid(sin, other),
                    )


def _relaid(values: AnyArray, layout: str) -> AnyArray:
    """A table of one layout in another: each angle stands twice."""
    half = values.shape[-1] // 2
    if layout == "interleaved":
        return np.repeat(values[..., :half], 2, axis=-1)
    return np.concatenate([values[..., ::2], values[..., ::2]], axis=-1)


def _broadcasts(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(small, large) == large
    except ValueError:
        return False


HYPOTHESES = (Hypothesis("rope-theta", table), Hypothesis("rope-layout", in_use))
