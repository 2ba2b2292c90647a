"""How the tokens of two batches are related: the same, in another order, moved, cut, partly or wholly other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..model.arrays import AnyArray

#: part: one side holds some samples of the other; longer: the same samples, one side goes on; some: tokens differ
#: here and there.
Kind = Literal["same", "order", "part", "longer", "offset", "some", "other"]

_ALIKE = 0.5  #: share of equal tokens from which two batches are the same one with differences, and not two batches
_TRIES = 256  #: places at which an offset is looked for


@dataclass(frozen=True)
class Relation:
    """Of a target's tokens to a reference's."""

    kind: Kind
    summary: str
    reference_samples: tuple[
        int, ...
    ] = ()  #: the reference's sample that each of the target is, -1 if none; () if not known
    first_difference: tuple[int, int] | None = None  #: sample and place of the first token that differs


def relate_tokens(target: AnyArray, reference: AnyArray) -> Relation:
    """The closest relation of (samples, length) to (samples, length)."""
    target, reference = _same_shape(target, reference)
    count = f"{len(target)} sample{'s' * (len(target) > 1)} of {target.shape[1]} tokens"
    if np.array_equal(target, reference):
        return Relation("same", f"the same {count}, bit for bit", tuple(range(len(target))))
    if target.shape[1] == reference.shape[1]:
        return _same_length(target, reference)
    if len(target) == len(reference):
        return _longer(target, reference)
    said = f"{count} against {len(reference)} of {reference.shape[1]}"
    return Relation("other", f"other shapes: {said}")


def _same_shape(target: AnyArray, reference: AnyArray) -> tuple[AnyArray, AnyArray]:
    """One side flat, as some operators read ids: in the shape of the other."""
    if target.size == reference.size and 1 in (len(target), len(reference)):
        shape = reference.shape if len(target) == 1 else target.shape
        return target.reshape(shape), reference.reshape(shape)
    return target, reference


def _same_length(target: AnyArray, reference: AnyArray) -> Relation:
    order = _order(target, reference)
    found = [i for i in order if i >= 0]
    if len(found) == len(target) == len(reference):
        return Relation(
            "order", f"the same {len(target)} samples in another order: {format_numbers(order)}", order
        )
    if len(found) == min(len(target), len(reference)):
        few, many = (
            ("target", "reference") if len(target) < len(reference) else ("reference", "target")
        )
        numbers = found if few == "target" else [i for i, at in enumerate(order) if at >= 0]
        of = f"the {many}'s {max(len(target), len(reference))}"
        said = f"the {len(found)} samples of the {few} are numbers {format_numbers(numbers)} of {of}"
        return Relation("part", said, order)
    if len(target) != len(reference):
        said = f"{len(target)} samples against {len(reference)}, {len(found)} of them in both"
        return Relation("other", said, order if found else ())
    moved = _moved(target, reference)
    if moved is not None:
        return moved
    differing = target != reference
    first = tuple(int(i) for i in np.argwhere(differing)[0])
    where = (
        f"first at sample {first[0]}, place {first[1]}: {target[first]} against {reference[first]}"
    )
    share = 1 - float(differing.mean())
    if share >= _ALIKE or found:
        rows = int(differing.any(axis=1).sum())
        shared = (
            f"; {len(found)} samples are in both, in places {format_numbers(order)}"
            if found and found != _kept(order)
            else ""
        )
        count = f"{int(differing.sum())} of {target.size} tokens differ, in {rows} of {len(target)} samples"
        said = f"{count}, {where}{shared}"
        return Relation("some", said, tuple(range(len(target))), (first[0], first[1]))
    return Relation(
        "other",
        f"another batch: {100 * share:.0f} % of the tokens are equal, {where}",
        (),
        (first[0], first[1]),
    )


def _kept(order: Sequence[int]) -> list[int]:
    return [i for i, at in enumerate(order) if at == i]


def _order(target: AnyArray, reference: AnyArray) -> tuple[int, ...]:
    """The reference's sample that each of the target is, -1 if none; repeats are paired one by one."""
    places: dict[bytes, list[int]] = {}
    for i in range(len(reference) - 1, -1, -1):
        places.setdefault(np.ascontiguousarray(reference[i]).tobytes(), []).append(i)
    order = []
    for row in target:
        left = places.get(np.ascontiguousarray(row).tobytes())
        order.append(left.pop() if left else -1)
    return tuple(order)


def _longer(target: AnyArray, reference: AnyArray) -> Relation:
    long, short, name = (target, reference, "target") if target.shape[1] > reference.shape[1] else (
        reference, target, "reference"
    )  # fmt: skip
    width, more = short.shape[1], long.shape[1] - short.shape[1]
    identity = tuple(range(len(target)))
    lengths = f"{long.shape[1]} tokens against {width}"
    for kept, rest, end in (
        (long[:, :width], long[:, width:], "behind"),
        (long[:, more:], long[:, :more], "before"),
    ):
        if not np.array_equal(kept, short):
            continue
        values = np.unique(rest)
        what = (
            f"padded with {values[0]} {end} them"
            if len(values) == 1 and more > 1
            else f"{more} more {end} them"
        )
        return Relation(
            "longer",
            f"the same samples, {lengths}: in the {name} {what}",
            identity if end == "behind" else (),
        )
    share = float((long[:, :width] == short).mean())
    return Relation("other", f"{lengths}, and {100 * share:.0f} % of what both have are equal")


def _moved(target: AnyArray, reference: AnyArray) -> Relation | None:
    """Each sample of one side is the other's from some token on; None if that is not so."""
    for ahead, behind, name in ((reference, target, "reference"), (target, reference, "target")):
        offsets = [_offset(a, b) for a, b in zip(ahead, behind, strict=True)]
        known = [offset for offset in offsets if offset is not None]
        if len(known) == len(offsets):
            by = str(known[0]) if len(set(known)) == 1 else f"{min(known)} to {max(known)}"
            other = "target" if name == "reference" else "reference"
            return Relation("offset", f"the {other}'s samples begin {by} tokens after the {name}'s")
    return None


def _offset(ahead: AnyArray, behind: AnyArray) -> int | None:
    """How many tokens of ``ahead`` come before ``behind`` begins; at most half of them."""
    half = len(ahead) // 2
    starts = np.flatnonzero(ahead[: half + 1] == behind[0])[:_TRIES]
    return next(
        (int(d) for d in starts if np.array_equal(ahead[d:], behind[: len(behind) - d])), None
    )


def format_numbers(order: Sequence[int]) -> str:
    """Numbers for a person, the first dozen.

    >>> spoken([2, 0, 1])
    '2, 0, 1'
    """
    shown = ", ".join("-" if i < 0 else str(i) for i in order[:12])
    return shown + (f", ... ({len(order)})" if len(order) > 12 else "")
