"""Exchange target and reference: the answer must be the same, with the roles exchanged.

An alignment that depends on which dump is given first rests on something other than the two runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

import faults
import formats
import recordings

import dumpdiff
from dumpdiff.model.finding import Kind
from dumpdiff.model.result import Result

_SIDES = ("target", "reference")
#: Kind of finding -> the kind that counts as equal. An op that only the reference has is "missing",
#: one that only the target has makes a region.
_EXCHANGED_KINDS = {kind: kind for kind in ("", *get_args(Kind))} | {"missing": "region"}
#: Forms that are compared: the richest record of either kind.
FORMS = ("tensors", "statistics")


@dataclass(frozen=True)
class Answer:
    """What one direction says, by framework: first MindSpore's dump, then PyTorch's."""

    verdict: str
    kind: str  #: of the first finding, '' if there is none
    title: str
    place: tuple[tuple[str, ...], tuple[str, ...]]  #: sorted ops of the first finding
    coverage: tuple[Mapping[str, Mapping[str, float]], ...]
    states: tuple[Mapping[str, Mapping[str, Mapping[str, int]]], ...]


@dataclass(frozen=True)
class Mirror:
    """The two answers to one case in one form."""

    case: str
    held_out: bool
    form: str
    forward: Answer  #: MindSpore's dump is the target
    backward: Answer  #: PyTorch's dump is the target

    @property
    def has_same_verdict(self) -> bool:
        """Whether both directions have one verdict."""
        return self.forward.verdict == self.backward.verdict

    @property
    def has_same_place(self) -> bool:
        """Whether the first findings are of one kind and name the same ops."""
        forward, backward = self.forward, self.backward
        has_same_kind = _EXCHANGED_KINDS[forward.kind] == _EXCHANGED_KINDS[backward.kind]
        return has_same_kind and forward.place == backward.place

    @property
    def has_same_counts(self) -> bool:
        """Whether coverage and states of either dump are the same in both directions."""
        forward, backward = self.forward, self.backward
        return forward.coverage == backward.coverage and forward.states == backward.states


def compare_directions(
    cases: Sequence[faults.Case], work: Path, processes: int, report: Callable[[str], None]
) -> list[Mirror]:
    """Compare every case in both directions, in the forms :data:`FORMS`."""
    mirrors: list[Mirror] = []
    with ProcessPoolExecutor(processes) as pool:
        answers = pool.map(partial(_compare_case, work=work), cases)
        for count, case_mirrors in enumerate(answers, 1):
            mirrors += case_mirrors
            report(f"mirrored {count}/{len(cases)}")
    return mirrors


def _compare_case(case: faults.Case, work: Path) -> list[Mirror]:
    paths = [recordings.get_path(side, work) for side in recordings.list_recordings(case)]
    mirrors = []
    for name in FORMS:
        dumps = formats.make_pair(formats.FORMS[name], *paths)
        forward = summarize_answer(dumpdiff.align(*dumps, explained=()), _SIDES)
        backward = summarize_answer(dumpdiff.align(*dumps[::-1], explained=()), _SIDES[::-1])
        mirrors.append(Mirror(case.name, case.held_out, name, forward, backward))
    return mirrors


def summarize_answer(result: Result, sides: Iterable[str]) -> Answer:
    """Return what does not depend on the direction; ``sides`` are the roles of the two dumps."""
    sides = tuple(sides)
    finding = result.findings[0] if result.findings else None
    ops = {"target": (), "reference": ()}
    if finding is not None:
        ops = {"target": finding.target_ops, "reference": finding.reference_ops}
    return Answer(
        verdict=result.verdict,
        kind=finding.kind if finding else "",
        title=finding.title if finding else "",
        place=(tuple(sorted(ops[sides[0]])), tuple(sorted(ops[sides[1]]))),
        coverage=tuple(result.coverage[side] for side in sides),
        states=tuple(result.states[side] for side in sides),
    )


def format_mirrors(mirrors: Sequence[Mirror], *, held_out: bool) -> str:
    """Return the totals, and each tuned pair whose place or verdict depends on the direction."""
    lines = []
    for form in FORMS:
        for name, is_held_out in (("tuned", False), ("held out", True)):
            chosen = [m for m in mirrors if m.form == form and m.held_out == is_held_out]
            n_verdicts = sum(m.has_same_verdict for m in chosen)
            n_places = sum(m.has_same_verdict and m.has_same_place for m in chosen)
            n_counts = sum(m.has_same_counts for m in chosen)
            lines.append(
                f"{form}, {name}: {len(chosen)} pairs, same verdict {n_verdicts}, "
                f"same verdict and place {n_places}, same counts {n_counts}"
            )
    for mirror in mirrors:
        is_same = mirror.has_same_verdict and mirror.has_same_place
        if is_same or (mirror.held_out and not held_out):
            continue
        lines.append(f"\n### {mirror.case} [{mirror.form}]")
        answers = (mirror.forward, mirror.backward)
        lines += [f"- {answer.verdict}: {answer.title} {answer.place}" for answer in answers]
    return "\n".join(lines)
