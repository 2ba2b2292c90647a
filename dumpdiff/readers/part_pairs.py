"""Which steps and ranks of two dumps are compared with each other: all that both have."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ..model.formatting import format_number_ranges
from .parts import Part, choose_parts, find_common_steps

_SIDES = ("target", "reference")


@dataclass(frozen=True)
class PartPair:
    """The recordings of one step of one rank of both dumps: what one task compares.

    A side has several parts if there are several graphs, or recordings of several forms, of that
    step and rank, and if several of its ranks make up one rank of the other side.
    """

    step: int | None
    rank: int | None  #: the target's, which is the reference's too except for two explicit ranks
    target: tuple[Part, ...]
    reference: tuple[Part, ...]


@dataclass(frozen=True)
class PartPairs:
    """Everything that is compared, and what is not read."""

    pairs: tuple[PartPair, ...]
    #: sentences: what was left out because it was not selected, or because one side lacks the step
    unread: tuple[str, ...] = ()
    #: sentences: what should have been compared and has no partner. The answer cannot be
    #: ``aligned``.
    unpaired: tuple[str, ...] = ()
    recorded_ranks: frozenset[int] = frozenset()  #: those that either dump holds


@dataclass(frozen=True)
class _StepRanks:
    """The ranks of one step: the common ones, and those of one side only."""

    ranks: tuple[int | None, ...]
    missing: dict[str, tuple[int, ...]] = field(default_factory=dict)


def pair_parts(
    target: Sequence[Part],
    reference: Sequence[Part],
    *,
    steps: Collection[int] | None = None,
    ranks: Collection[int] | None = None,
    graph: int | None = None,
    has_other_layouts: bool = False,
) -> PartPairs:
    """Pair every step and rank that both dumps have, or the selected ones, in order.

    A part without a step or rank matches any; a run of one process without a rank is compared with
    the first rank of the other side. Two dumps of one rank each are compared whatever their
    numbers are. In runs that are spread over their ranks in other ways, all ranks of a step make
    one pair. Raises DumpError as :func:`~.parts.choose_parts` does: if nothing is common, or if
    a selected step or rank is missing in a dump.
    """
    pairs: list[PartPair] = []
    unpaired: list[str] = []
    selected_steps = _select_steps((list(target), list(reference)), steps)
    sides = (list(target), list(reference))
    for step in selected_steps:
        step_sides = (_list_step_parts(sides[0], step), _list_step_parts(sides[1], step))
        if has_other_layouts:
            pairs.append(PartPair(step, None, tuple(step_sides[0]), tuple(step_sides[1])))
            continue
        if ranks is None:
            step_ranks = _find_common_ranks(step_sides, step)
        else:
            step_ranks = _StepRanks(tuple(sorted(ranks)))
        for side, missing_ranks in step_ranks.missing.items():
            if missing_ranks:
                place = _describe_numbers("rank", missing_ranks)
                of_step = "" if step is None else f" of step {step}"
                unpaired.append(f"the {side} has no {place}{of_step}")
        pairs += [_pair_rank(step_sides, step, rank, graph) for rank in step_ranks.ranks]
    unread = _describe_unread(sides, pairs)
    recorded_ranks = {part.rank for parts in sides for part in parts if part.rank is not None}
    return PartPairs(tuple(pairs), unread, tuple(unpaired), frozenset(recorded_ranks))


def _select_steps(
    sides: tuple[list[Part], list[Part]], steps: Collection[int] | None
) -> Sequence[int | None]:
    """Return the selected steps, or all common ones; None if a side has no numbers."""
    if steps is not None:
        return sorted(steps)
    return find_common_steps(*sides)


def _list_step_parts(parts: Sequence[Part], step: int | None) -> list[Part]:
    """Return the parts of a step; of a dump without that number, those that may be of any step."""
    if step is None:
        return list(parts)
    return (
        [part for part in parts if part.step == step]
        or [part for part in parts if part.step is None]
        or list(parts)
    )


def _find_common_ranks(step_sides: Sequence[Sequence[Part]], step: int | None) -> _StepRanks:
    """Return the ranks that both sides have; (None,) leaves the choice to ``choose_parts``."""
    side_ranks = [{part.rank for part in parts if part.rank is not None} for parts in step_sides]
    target_ranks, reference_ranks = side_ranks
    if not target_ranks or not reference_ranks:
        return _StepRanks((None,))
    common_ranks = target_ranks & reference_ranks
    if not common_ranks or target_ranks == reference_ranks:
        return _StepRanks(tuple(sorted(common_ranks)) or (None,))
    missing = {
        "target": tuple(sorted(reference_ranks - target_ranks)),
        "reference": tuple(sorted(target_ranks - reference_ranks)),
    }
    return _StepRanks(tuple(sorted(common_ranks)), missing)


def _pair_rank(
    step_sides: tuple[list[Part], list[Part]], step: int | None, rank: int | None, graph: int | None
) -> PartPair:
    """Return the recordings of one step and rank. Raises DumpError if a side has none."""
    chosen_parts = choose_parts(*step_sides, step=step, rank=rank, graph=graph)
    candidates = []
    for parts, chosen_part in zip(step_sides, chosen_parts, strict=True):
        candidates.append(tuple(part for part in parts if _is_same_place(part, chosen_part)))
    return PartPair(
        _take_first_number(step, *(part.step for part in chosen_parts)),
        _take_first_number(*(part.rank for part in chosen_parts), rank),
        candidates[0],
        candidates[1],
    )


def _take_first_number(*numbers: int | None) -> int | None:
    """Return the first that is not None, if any."""
    return next((number for number in numbers if number is not None), None)


def _is_same_place(part: Part, chosen_part: Part) -> bool:
    return (part.step, part.rank, part.process) == (
        chosen_part.step,
        chosen_part.rank,
        chosen_part.process,
    )


def _describe_unread(
    sides: tuple[list[Part], list[Part]], pairs: Sequence[PartPair]
) -> tuple[str, ...]:
    """Return a sentence for the steps, and one for the ranks, of a side that no pair has."""
    sentences = []
    for side_number, (side, parts) in enumerate(zip(_SIDES, sides, strict=True)):
        read_parts = [part for pair in pairs for part in (pair.target, pair.reference)[side_number]]
        for attribute, label in (("step", "step"), ("rank", "rank")):
            all_numbers = {getattr(part, attribute) for part in parts} - {None}
            read_numbers = {getattr(part, attribute) for part in read_parts}
            unread_numbers = sorted(all_numbers - read_numbers)
            if unread_numbers:
                place = _describe_numbers(label, unread_numbers)
                verb = "was" if len(unread_numbers) == 1 else "were"
                sentences.append(f"{place} of the {side} {verb} not read")
    return tuple(sentences)


def _describe_numbers(label: str, numbers: Sequence[int]) -> str:
    """Return 'rank 3' or 'ranks 0 to 3 and 6'."""
    plural = "s" if len(numbers) > 1 else ""
    return f"{label}{plural} {format_number_ranges(numbers)}"
