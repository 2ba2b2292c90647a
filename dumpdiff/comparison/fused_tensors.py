"""Fused tensors put together: in which order one weight holds the rows of several, so that they can be compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from math import gcd

import numpy as np

from ..graph import Flow
from ..model.arrays import AnyArray

_MOST_BLOCKS = 4096


def fused(whole: AnyArray, parts: Sequence[AnyArray]) -> tuple[str, AnyArray]:
    """(layout, array): the parts put together in the order that comes nearest to ``whole``, in its shape.

    Tried along the first axis and along the last: one part after the other ('concat'), block by block ('blocks(g)':
    query groups with their keys and values), and element by element ('interleaved', as fused gate and up are), in every
    order of the parts. Raises ValueError if the shapes cannot be put together.
    """
    best: tuple[float, str, AnyArray] | None = None
    for name, candidate in _candidates(whole, parts):
        gap = float(np.linalg.norm((candidate - whole).astype(np.float64)))
        if best is None or gap < best[0]:
            best = (gap, name, candidate)
        if gap == 0:
            break
    if best is None:
        raise ValueError(f"parts of {[part.shape for part in parts]} do not make up {whole.shape}")
    return best[1], best[2]


def _candidates(whole: AnyArray, parts: Sequence[AnyArray]) -> Iterator[tuple[str, AnyArray]]:
    for axis in dict.fromkeys((0, whole.ndim - 1)):
        if axis == 0:
            target, *moved = whole, *parts
        else:  # leading axes may be merged: (batch, sequence, features) against (batch * sequence, features)
            target, *moved = (array.reshape(-1, array.shape[-1]).T for array in (whole, *parts))
        if any(part.shape[1:] != target.shape[1:] for part in moved):
            continue
        lengths = [part.shape[0] for part in moved]
        if sum(lengths) != target.shape[0]:
            continue
        side = "rows" if axis == 0 else "columns"
        for order in permutations(range(len(moved))):
            chosen = [moved[i] for i in order]
            for blocks in _divisors(gcd(*lengths)):
                pieces = [part.reshape(blocks, -1, *part.shape[1:]) for part in chosen]
                joined = np.concatenate(pieces, axis=1).reshape(target.shape)
                yield (
                    _name(blocks, lengths, order, side),
                    joined if axis == 0 else joined.T.reshape(whole.shape),
                )


def _name(blocks: int, lengths: Sequence[int], order: Sequence[int], side: str) -> str:
    said = ",".join(str(i) for i in order)
    if blocks == 1:
        return f"concat({said}) of {side}"
    return (
        f"interleaved({said}) of {side}"
        if set(lengths) == {blocks}
        else f"blocks({blocks}: {said}) of {side}"
    )


def _divisors(number: int) -> Iterator[int]:
    yield from (d for d in range(1, min(number, _MOST_BLOCKS) + 1) if number % d == 0)


def gathered(flow: Flow, parts: Sequence[int]) -> tuple[float, float, float, float]:
    """(max, min, mean, norm) of several classes taken as one tensor."""
    table = flow.classes.iloc[list(parts)]
    sizes = table["size"].to_numpy(dtype=float)
    mean = float((table["mean"].to_numpy() * sizes).sum() / sizes.sum())
    norm = float(np.sqrt((table["norm"].to_numpy() ** 2).sum()))
    return float(table["max"].max()), float(table["min"].min()), mean, norm
