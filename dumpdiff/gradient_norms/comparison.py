"""Two sides' gradient norms against each other: every parameter judged, and what the differing ones have in common."""

from __future__ import annotations

from collections.abc import Iterator

from ..model.errors import DumpError
from ..rulebook import Rules, load_rules
from .patterns import patterns
from .result import NormComparison
from .row import Row
from .side import Norms
from .squares_or_roots import Paired, paired
from .tolerance import Judged, judge, precision_of, without_vanishing


def compare(
    target: Norms, reference: Norms, rules: Rules | None = None, precision: str = ""
) -> NormComparison:
    """Judge ``target`` by ``reference``; ``precision`` is the dtype that the models were computed in, if it is known.

    Raises DumpError if nothing could be paired.
    """
    rules = load_rules() if rules is None else rules
    sides = paired(target, reference, rules)
    if not sides.pairing.couples:
        raise DumpError(
            f"{target.path} ({len(target)} norms) and {reference.path} ({len(reference)} norms) have no parameter in"
            " common, by name or by value; give norms of the same model and step"
        )
    judged = judge(sides.values(), precision_of(target, reference, precision))
    rows = without_vanishing(_rows(sides, judged))
    target_alone = tuple(map(target.label, sides.pairing.target_alone))
    reference_alone = tuple(map(reference.label, sides.pairing.reference_alone))
    return NormComparison(
        target=sides.target,
        reference=sides.reference,
        rows=tuple(sorted(rows, key=lambda row: (-row.beyond, row.path))),
        target_alone=target_alone,
        reference_alone=reference_alone,
        ambiguous=sides.pairing.ambiguous,
        allowed=judged.allowed,
        noise=judged.noise,
        precision=judged.precision,
        factor=judged.factor,
        coverage=(1 - len(target_alone) / len(target), 1 - len(reference_alone) / len(reference)),
        patterns=patterns(rows, judged.factor, (target_alone, reference_alone), rules),
        notes=tuple(_notes(sides)),
    )


def _rows(sides: Paired, judged: Judged) -> list[Row]:
    return [
        Row(
            path=couple.path,
            target=" + ".join(map(sides.target.label, couple.target)),
            reference=" + ".join(map(sides.reference.label, couple.reference)),
            target_norm=float(judged.target[at]),
            reference_norm=float(judged.reference[at]),
            relative=float(judged.relative[at]),
            tolerance=float(judged.tolerance[at]),
            state=judged.states[at],
            by=couple.by,
        )
        for at, couple in enumerate(sides.pairing.couples)
    ]


def _notes(sides: Paired) -> Iterator[str]:
    target, reference, pairing = sides.target, sides.reference, sides.pairing
    for role, side in (("target", target), ("reference", reference)):
        yield from (f"{role}: {note}" for note in side.notes)
        yield from (f"{role}: {problem}" for problem in side.problems)
    if target.step is not None and reference.step is not None and target.step != reference.step:
        yield f"step {target.step} of the target is compared with step {reference.step} of the reference"
    for by, how in (("order", "their place in both lists"), ("value", "their values")):
        count = sum(couple.by == by for couple in pairing.couples)
        if count:
            yield f"{count} norms were paired by {how}, since not both sides name them"
    if pairing.ambiguous:
        yield f"for {pairing.ambiguous} of them others would fit as well"
