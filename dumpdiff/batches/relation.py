"""How the tokens of two batches are related: the same, reordered, shifted, cut, or different."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..model.arrays import AnyArray

#: How the two batches are related:
#: identical  equal tokens in the same order
#: reordered  the same samples in another order
#: subset     all samples of one side are among those of the other side, which has more
#: longer     the samples of one side continue those of the other with more tokens
#: offset     the samples of the two sides begin at different tokens of one text
#: similar    the same shape, and some tokens differ
#: different  none of these
Kind = Literal["identical", "reordered", "subset", "longer", "offset", "similar", "different"]

#: From this share of equal tokens on, two batches are one batch with differences; below it, they
#: are two different batches.
_MIN_EQUAL_SHARE = 0.5
#: At most this many positions are tried as the offset of a sample.
_MAX_OFFSET_TRIES = 256
#: At most this many numbers are listed in a message.
_MAX_NUMBERS = 12


@dataclass(frozen=True)
class Relation:
    """The relation of a target's tokens to a reference's."""

    kind: Kind
    summary: str
    #: The reference sample that equals each target sample, -1 if none does; () if unknown.
    reference_samples: tuple[int, ...] = ()
    #: Sample and position of the first token that differs.
    first_difference: tuple[int, int] | None = None

    def find_shared_samples(self) -> list[int]:
        """Return the numbers of the target's samples that the reference has, too."""
        return _find_shared(self.reference_samples)


def relate_tokens(target: AnyArray, reference: AnyArray) -> Relation:
    """Return the closest relation of two arrays of shape (samples, length)."""
    target, reference = _match_shapes(target, reference)
    n_target, target_length = target.shape
    n_reference, reference_length = reference.shape
    plural = "s" if n_target > 1 else ""
    size = f"{n_target} sample{plural} of {target_length} tokens"
    if np.array_equal(target, reference):
        return Relation("identical", f"the same {size}, bit for bit", tuple(range(n_target)))
    if target_length == reference_length:
        return _relate_same_length(target, reference)
    if n_target == n_reference:
        return _relate_different_length(target, reference)
    return Relation(
        "different", f"different shapes: {size} against {n_reference} of {reference_length}"
    )


def _match_shapes(target: AnyArray, reference: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Reshape a side that is one flat row, as some operators read ids, to the other's shape."""
    if target.size != reference.size:
        return target, reference
    if len(target) == 1:
        return target.reshape(reference.shape), reference
    if len(reference) == 1:
        return target, reference.reshape(target.shape)
    return target, reference


def _relate_same_length(target: AnyArray, reference: AnyArray) -> Relation:
    """Relate samples of the same length that are not all the same."""
    reference_samples = _find_samples(target, reference)
    n_shared = len(_find_shared(reference_samples))
    n_target, n_reference = len(target), len(reference)
    if n_shared == n_target == n_reference:
        order = format_numbers(reference_samples)
        summary = f"the same {n_target} samples in another order: {order}"
        return Relation("reordered", summary, reference_samples)
    if n_shared == min(n_target, n_reference):
        return _describe_subset(reference_samples, n_target, n_reference)
    if n_target != n_reference:
        summary = f"{n_target} samples against {n_reference}, {n_shared} of them in both"
        return Relation("different", summary, reference_samples if n_shared else ())
    offset_relation = _find_offset_relation(target, reference)
    if offset_relation is not None:
        return offset_relation
    return _describe_differences(target, reference, reference_samples)


def _describe_subset(
    reference_samples: tuple[int, ...], n_target: int, n_reference: int
) -> Relation:
    """Describe a side whose samples are all among those of the other side."""
    smaller, larger = "reference", "target"
    shared_samples = _find_shared(reference_samples)
    n_larger = n_target
    if n_target < n_reference:
        smaller, larger = "target", "reference"
        shared_samples = list(reference_samples)
        n_larger = n_reference
    numbers = format_numbers(shared_samples)
    summary = (
        f"the {len(shared_samples)} samples of the {smaller} are numbers {numbers} of the"
        f" {larger}'s {n_larger}"
    )
    return Relation("subset", summary, reference_samples)


def _describe_differences(
    target: AnyArray, reference: AnyArray, reference_samples: tuple[int, ...]
) -> Relation:
    """Describe the tokens that differ between two arrays of the same shape."""
    differs = target != reference
    sample, position = (int(index) for index in np.argwhere(differs)[0])
    location = (
        f"first at sample {sample}, position {position}: {target[sample, position]} against"
        f" {reference[sample, position]}"
    )
    equal_share = 1 - float(differs.mean())
    n_shared = len(_find_shared(reference_samples))
    if equal_share < _MIN_EQUAL_SHARE and not n_shared:
        summary = f"another batch: {100 * equal_share:.0f} % of the tokens are equal, {location}"
        return Relation("different", summary, (), (sample, position))
    n_differing_samples = int(differs.any(axis=1).sum())
    summary = (
        f"{int(differs.sum())} of {target.size} tokens differ, in {n_differing_samples} of"
        f" {len(target)} samples, {location}"
    )
    if any(number not in (-1, index) for index, number in enumerate(reference_samples)):
        numbers = format_numbers(reference_samples)
        summary += f"; {n_shared} samples are in both, with numbers {numbers}"
    return Relation("similar", summary, tuple(range(len(target))), (sample, position))


def _find_samples(target: AnyArray, reference: AnyArray) -> tuple[int, ...]:
    """Return the reference sample that equals each target sample, -1 if none does.

    Samples that occur several times are paired one by one, in order.
    """
    numbers_by_sample: dict[bytes, list[int]] = {}
    for number in range(len(reference) - 1, -1, -1):
        sample = np.ascontiguousarray(reference[number]).tobytes()
        numbers_by_sample.setdefault(sample, []).append(number)
    reference_samples = []
    for row in target:
        numbers = numbers_by_sample.get(np.ascontiguousarray(row).tobytes())
        reference_samples.append(numbers.pop() if numbers else -1)
    return tuple(reference_samples)


def _find_shared(reference_samples: Sequence[int]) -> list[int]:
    return [index for index, number in enumerate(reference_samples) if number >= 0]


def _relate_different_length(target: AnyArray, reference: AnyArray) -> Relation:
    """Relate as many samples of different lengths."""
    longer, shorter, longer_side = target, reference, "target"
    if target.shape[1] < reference.shape[1]:
        longer, shorter, longer_side = reference, target, "reference"
    length = shorter.shape[1]
    n_more = longer.shape[1] - length
    lengths = f"{longer.shape[1]} tokens against {length}"
    summary = f"the same samples, {lengths}: in the {longer_side} "
    if np.array_equal(longer[:, :length], shorter):
        summary += _describe_addition(longer[:, length:], "after")
        return Relation("longer", summary, tuple(range(len(target))))
    if np.array_equal(longer[:, n_more:], shorter):
        summary += _describe_addition(longer[:, :n_more], "before")
        return Relation("longer", summary)
    share = float((longer[:, :length] == shorter).mean())
    return Relation("different", f"{lengths}, and {100 * share:.0f} % of the common ones are equal")


def _describe_addition(tokens: AnyArray, place: str) -> str:
    """Describe the additional tokens, which are 'before' or 'after' the common ones."""
    distinct_tokens = np.unique(tokens)
    n_more = tokens.shape[1]
    if len(distinct_tokens) == 1 and n_more > 1:
        return f"padded with {distinct_tokens[0]} {place} them"
    return f"{n_more} more {place} them"


def _find_offset_relation(target: AnyArray, reference: AnyArray) -> Relation | None:
    """Return the offset if each sample of one side begins within the other's; else None."""
    earlier, later = "reference", "target"
    offsets = _find_offsets(reference, target)
    if offsets is None:
        earlier, later = "target", "reference"
        offsets = _find_offsets(target, reference)
    if offsets is None:
        return None
    count = str(offsets[0]) if len(set(offsets)) == 1 else f"{min(offsets)} to {max(offsets)}"
    summary = f"the {later}'s samples begin {count} tokens after the {earlier}'s"
    return Relation("offset", summary)


def _find_offsets(earlier: AnyArray, later: AnyArray) -> list[int] | None:
    """Return how many tokens of each earlier sample come before the later one, None if unknown."""
    offsets = []
    for earlier_sample, later_sample in zip(earlier, later, strict=True):
        offset = _find_offset(earlier_sample, later_sample)
        if offset is None:
            return None
        offsets.append(offset)
    return offsets


def _find_offset(earlier: AnyArray, later: AnyArray) -> int | None:
    """Return how many tokens of ``earlier`` come before ``later`` begins; at most half of them."""
    half = len(earlier) // 2
    candidates = np.flatnonzero(earlier[: half + 1] == later[0])[:_MAX_OFFSET_TRIES]
    for candidate in candidates.tolist():
        if np.array_equal(earlier[candidate:], later[: len(later) - candidate]):
            return int(candidate)
    return None


def format_numbers(numbers: Sequence[int]) -> str:
    """Format numbers for a person, the first dozen; '-' for negative ones.

    >>> format_numbers([2, 0, 1])
    '2, 0, 1'
    """
    listed_numbers = ["-" if number < 0 else str(number) for number in numbers[:_MAX_NUMBERS]]
    text = ", ".join(listed_numbers)
    if len(numbers) > _MAX_NUMBERS:
        text += f", ... ({len(numbers)})"
    return text
