"""A parameter or a table that differs: what one tensor must have gone through to become the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...comparison.narrow_dtypes import round_to_dtype
from ...model.arrays import AnyArray, Ints
from ..parameter_fit import fit_factor
from ..hypothesis import Candidate, Hypothesis
from ..fault_case import FaultCase

_FEW_ROWS = 0.25  # of all rows: more of them wrong are no accident of some rows
_EXPERTS = ("expert", "moe")


def _given(s: FaultCase) -> bool:
    return s.finding.is_given and not s.is_discrete


def constant(s: FaultCase) -> Iterator[Candidate]:
    """Zeros, or ones: what a layer holds before a checkpoint is loaded."""
    if _given(s) and s.faithful.size > 1 and np.ptp(s.faithful) > 0 and np.ptp(s.faulty) == 0:
        value = float(s.faulty.flat[0])
        yield Candidate(
            np.full_like(s.faithful, value),
            f"filled with {value:g}, as if never loaded",
            "",
            {},
            s.faithful,
        )


def rows_of_zeros(s: FaultCase) -> Iterator[Candidate]:
    """Part of a fused weight holds zeros: the rows of one of its parts."""
    if _given(s) and s.faithful.ndim == 2:
        gone = ~np.any(s.faulty, axis=1) & np.any(s.faithful, axis=1)
        if 0 < gone.sum() < len(gone):
            said = f"{int(gone.sum())} of {len(gone)} rows filled with zeros, as if never loaded"
            made = np.where(gone[:, None], 0.0, s.faithful)
            yield Candidate(made, said, "", {"rows": float(gone.sum())}, s.faithful)


def scaled(s: FaultCase) -> Iterator[Candidate]:
    """t = c r."""
    if _given(s) and s.faithful.size > 1:
        c = fit_factor(s.faithful, s.faulty)
        if np.isfinite(c) and c != 0:
            yield Candidate(
                c * s.faithful,
                f"a weight {c:.6g} times the {s.faithful_role}'s",
                "",
                {"factor": c},
                s.faithful,
            )


def transposed(s: FaultCase) -> Iterator[Candidate]:
    """A square matrix transposed; a convolution's kernel flipped."""
    if not _given(s):
        return
    if s.faithful.ndim == 2 and s.faithful.shape[0] == s.faithful.shape[1]:
        yield Candidate(s.faithful.T.copy(), "the weight transposed", "", {}, s.faithful)
    if s.faithful.ndim == 2 and s.faithful.shape[0] != s.faithful.shape[1]:
        yield Candidate(
            s.faithful.T.reshape(s.faithful.shape), "the weight transposed in memory", "", {}, s.faithful
        )
    if s.faithful.ndim == 4:
        yield Candidate(s.faithful[:, :, ::-1, ::-1], "the kernel flipped", "", {}, s.faithful)
        yield Candidate(
            np.swapaxes(s.faithful, 2, 3).reshape(s.faithful.shape),
            "the kernel transposed",
            "",
            {},
            s.faithful,
        )


def another(s: FaultCase) -> Iterator[Candidate]:
    """Another parameter of the same shape stands in its place."""
    own = [o for o in s.parameters if o.shape == s.faithful.shape and np.array_equal(o.array, s.faithful)]
    mine = own[0].parameter if own else ""
    for o in s.parameters if _given(s) else ():
        if o.shape == s.faithful.shape and o.parameter != mine:
            gates = _is_gate(mine) != _is_gate(o.parameter) and "mlp" in s.finding.scope + mine
            experts = any(word in o.parameter for word in _EXPERTS) and mine.count(
                "."
            ) == o.parameter.count(".")
            cause = "experts-permuted" if experts and _leaf(mine) == _leaf(o.parameter) else ""
            cause = cause or (
                "gate-up-swapped" if gates and _fed_alike(mine, o.parameter) else "weight-swapped"
            )
            yield Candidate(o.array, f"{o.parameter} in its place", "", {}, s.faithful, cause)


def _is_gate(name: str) -> bool:
    return any(part in name for part in ("gate", "w1."))


def _fed_alike(a: str, b: str) -> bool:
    """Two names in one module: gate and up are brothers."""
    return a.rsplit(".", 2)[0] == b.rsplit(".", 2)[0]


def _leaf(name: str) -> str:
    return ".".join(part for part in name.split(".")[-2:] if not part.isdigit())


def moved_rows(s: FaultCase) -> Iterator[Candidate]:
    """The rows in another order: shifted by one, whole heads, or experts."""
    if not (s.is_source or "matmul" in s.kinds) or s.is_discrete or s.faithful.ndim < 2:
        return
    for axis, side in ((0, "rows"), (s.faithful.ndim - 1, "columns")):
        order = _permutation(np.moveaxis(s.faithful, axis, 0), np.moveaxis(s.faulty, axis, 0))
        if order is None:
            continue
        made = np.take(s.faithful, order, axis=axis)
        shift = (order - np.arange(len(order))) % len(order)
        if np.all(shift == shift[0]) and min(shift[0], len(order) - shift[0]) == 1:
            step = 1 if shift[0] == 1 else -1
            yield Candidate(
                made,
                f"{side} shifted by {-step}",
                "",
                {"shift": float(-step)},
                s.faithful,
                "row-shift",
            )
        elif s.faithful.ndim == 3 and axis == 0 and s.finding.is_given:
            yield Candidate(
                made, f"experts in the order {order.tolist()}", "", {}, s.faithful, "experts-permuted"
            )
        elif s.finding.kind == "input":
            yield Candidate(made, f"{side} in another order", "", {}, s.faithful, "row-shift")
        else:
            block = _block(order)
            said = (
                f"{side} in another order, in blocks of {block}"
                if block > 1
                else f"{side} in another order"
            )
            yield Candidate(made, said, "", {"block": float(block)}, s.faithful, "heads-permuted")
        return


def _permutation(plain: AnyArray, other: AnyArray) -> Ints | None:
    """order with other[i] = plain[order[i]], if there is one and it is not the identity."""
    a, b = (rows.reshape(len(rows), -1) for rows in (plain, other))
    probe = np.random.default_rng(7).standard_normal(a.shape[1])
    keys, sought = a @ probe, b @ probe
    place_a, place_b = np.argsort(keys, kind="stable"), np.argsort(sought, kind="stable")
    close = 1e-5 * max(float(np.abs(keys).max()), 1e-30)
    if np.abs(keys[place_a] - sought[place_b]).max() > close:
        return None
    order = np.empty(len(a), dtype=np.int64)
    order[place_b] = place_a
    return None if np.array_equal(order, np.arange(len(order))) else order


def _block(order: Ints) -> int:
    """How many rows stay together, at least."""
    breaks = np.flatnonzero(np.diff(order) != 1) + 1
    return int(np.gcd.reduce(np.append(breaks, len(order))))


def wrong_rows(s: FaultCase) -> Iterator[Candidate]:
    """All equal but a few rows; of a table of any kind, or of what was read from one."""
    if s.faithful.ndim < 2 or not (_given(s) or "gather_rows" in s.kinds):
        return
    rows = s.faithful.reshape(-1, s.faithful.shape[-1])
    gaps = np.linalg.norm(s.faulty.reshape(rows.shape) - rows, axis=1)
    wrong = np.flatnonzero(gaps > s.tolerance * np.maximum(np.linalg.norm(rows, axis=1), 1e-30))
    if 0 < len(wrong) <= max(1, _FEW_ROWS * len(rows)):
        made = rows.copy()
        made[wrong] = s.faulty.reshape(rows.shape)[wrong]
        said = ", ".join(str(row) for row in wrong[:8].tolist()) + (
            ", ..." if len(wrong) > 8 else ""
        )
        c = fit_factor(rows[wrong], made[wrong])
        alike = np.linalg.norm(c * rows[wrong] - made[wrong]) <= s.limit * np.linalg.norm(
            made[wrong]
        )
        more = f", {c:.6g} times the other side's" if np.isfinite(c) and alike else ""
        yield Candidate(
            made,
            f"wrong rows ({len(wrong)} of {len(rows)}: {said}){more}",
            "",
            {"rows": float(len(wrong))},
            s.faithful,
        )


def rounded(s: FaultCase) -> Iterator[Candidate]:
    """Rounded to a narrower type on the way."""
    for dtype in ("float16", "bfloat16") if _given(s) else ():
        made = round_to_dtype(s.faithful.astype(np.float32), dtype).astype(np.float64)
        yield Candidate(made, f"rounded to {dtype}", "", {}, s.faithful)


HYPOTHESES = (
    Hypothesis("zeroed", constant),
    Hypothesis("zeroed", rows_of_zeros),
    Hypothesis("weight-scaled", scaled),
    Hypothesis("low-precision", rounded),
    Hypothesis("weight-transposed", transposed),
    Hypothesis("weight-swapped", another),
    Hypothesis("heads-permuted", moved_rows),
    Hypothesis("weight-rows", wrong_rows),
)
