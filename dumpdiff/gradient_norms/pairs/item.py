"""An entry of a list of norms, and how far it is from one of the other side's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...model.arrays import Flags, Floats
from ..parameter_place import is_vector
from ..side import Norms

_ZERO = 1e-30  #: stands for a norm of zero where a logarithm is taken
_NO_NUMBER = 1e3  #: how far what is no number is from anything: farther than any two norms, nearer than another size

Names = Mapping[int, str]  #: row -> canonical name


@dataclass(frozen=True)
class Item:
    """A parameter, or parts of one that the other side may hold fused."""

    rows: tuple[int, ...]
    path: str  #: canonical name, '' if unknown
    value: float
    slack: float  #: relative: what the digits leave open
    size: int  #: -1 if unknown
    vector: int  #: 1 if it has one axis, 0 if more, -1 if unknown


Lists = tuple[list[Item], list[Item]]  #: of target and reference


def items_of(side: Norms, rows: Sequence[int], names: Names) -> list[Item]:
    """One item for each row."""
    values, slack = side.values, side.slack
    found = []
    for row in rows:
        path, value = names.get(row, ""), float(values[row])
        vector = (
            int(side.vectors[row]) if side.vectors[row] >= 0 or not path else int(is_vector(path))
        )
        found.append(
            Item(
                (row,),
                path,
                value,
                float(slack[row]) / max(value, _ZERO),
                int(side.sizes[row]),
                vector,
            )
        )
    return found


def together(items: Sequence[Item], path: str = "") -> Item:
    """Parts as one: squares add up, and so do sizes."""
    value = float(np.sqrt(sum(item.value**2 for item in items)))
    slack = sum(item.slack * item.value**2 for item in items) / max(value**2, _ZERO)
    size = sum(item.size for item in items) if all(item.size >= 0 for item in items) else -1
    return Item(
        tuple(row for item in items for row in item.rows), path, value, slack, size, items[0].vector
    )


def distances(t: Sequence[Item], r: Sequence[Item], scale: float) -> Floats:
    """(target, reference): how far apart norms are beyond their digits, as logarithms; infinite if sizes differ.

    ``scale`` is the logarithm of the factor between the sides.
    """
    return _far(tuple(one[:, None] for one in _columns(t)), _columns(r), scale)


def distances_beside(t: Sequence[Item], r: Sequence[Item], scale: float) -> Floats:
    """The distance of each item from that in the same place of a list as long."""
    return _far(_columns(t), _columns(r), scale)


def _columns(items: Sequence[Item]) -> tuple[Floats, ...]:
    """Logarithms of the values, slack, sizes."""
    with np.errstate(invalid="ignore"):
        logs = np.log(np.maximum([item.value for item in items], _ZERO))
    return (
        logs,
        np.array([item.slack for item in items]),
        np.array([item.size for item in items], dtype=float),
    )


def _far(t: tuple[Floats, ...], r: tuple[Floats, ...], scale: float) -> Floats:
    with np.errstate(invalid="ignore"):
        far = np.abs(t[0] - r[0] - scale) - t[1] - r[1]
    far = np.where(np.isnan(far), _NO_NUMBER, np.maximum(far, 0))
    other: Flags = (t[2] >= 0) & (r[2] >= 0) & (t[2] != r[2])
    return np.where(other, np.inf, far)
