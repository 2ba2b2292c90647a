"""Two runs' first batches against each other, and each by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..model.stage import Stage
from ..model.verdict import Verdict
from .batch import FIELDS, Batch, TensorStatistics
from .checks import UNKNOWN_VOCABULARY, Finding, Vocabulary, State, check_batch, find_loss_labels, find_label_shift
from .rank_distribution import judge_tokens
from .relation import Relation, relate_tokens

_SPOKEN = {
    "tokens": "token ids",
    "labels": "labels",
    "loss_mask": "loss mask",
    "positions": "positions",
}
_LABEL_SHIFTS = (1, -1, 2, -2)
_CLOSE = 1e-5  #: relative: norms of the same integers, summed in float32 in any order


@dataclass(frozen=True)
class DataComparison:
    """Everything that two batches say together."""

    target: Batch
    reference: Batch
    findings: tuple[Finding, ...]  #: those about both sides first
    relation: Relation | None  #: of the tokens; None if one side knows statistics only
    missing: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """differ if something makes the runs part, inconclusive if it cannot be told whether the tokens are the same."""
        states = {finding.state for finding in self.findings}
        return "differ" if "differ" in states else "inconclusive" if "inconclusive" in states else "agree"

    def to_stage(self) -> Stage:
        """The comparison as one stage of a triage."""
        telling = [
            _line(finding) for finding in self.findings if finding.state == self.verdict
        ]
        warned = [_line(finding) for finding in self.findings if finding.state == "warning"]
        others = [
            _line(finding)
            for finding in self.findings
            if finding.state == "agree" and not finding.side
        ]
        headline = _line(self.findings[0]) if self.verdict == "agree" else telling[0]
        if len(telling) > 1 and self.verdict == "differ":
            headline += f"; {len(telling) - 1} more"
        left = [line for line in warned if line != headline]
        if self.verdict == "agree" and left:
            headline += f"; {len(left)} to look at: {left[0]}"
        evidence = dict.fromkeys((*telling, *warned, *others))
        unknown = [_line(finding) for finding in self.findings if finding.state == "inconclusive"]
        return Stage("data", self.verdict, headline, tuple(evidence), (*unknown, *self.missing))


def compare(target: Batch, reference: Batch, vocabulary: Vocabulary = UNKNOWN_VOCABULARY) -> DataComparison:
    """Judge ``target`` by ``reference``; ``ids`` is what is known of the vocabulary."""
    relation = None
    findings: list[Finding] = []
    missing: list[str] = []
    if target.tokens is not None and reference.tokens is not None:
        relation = relate_tokens(target.tokens, reference.tokens)
        findings += judge_tokens(target, reference, relation)
        pairs = _paired(target, reference, relation)
        if pairs is not None:
            for name, compared in (
                ("labels", _labels),
                ("loss_mask", _masks),
                ("positions", _positions),
            ):
                findings += [
                    Finding(_SPOKEN[name], state, said) for state, said in compared(*pairs)
                ]
        missing += _missing(target, reference)
    else:
        findings += _statistics(target, reference)
        if not findings:
            findings.append(Finding("token ids", "inconclusive", "no field is known on both sides"))
    for side, batch in (("target", target), ("reference", reference)):
        findings += check_batch(batch, vocabulary, side)
    return DataComparison(target, reference, tuple(findings), relation, tuple(missing))


def _line(finding: Finding) -> str:
    return (
        f"{finding.side}, {finding.name}: {finding.summary}"
        if finding.side
        else f"{finding.name}: {finding.summary}"
    )


_Pair = tuple[Batch, Batch]


def _paired(target: Batch, reference: Batch, relation: Relation) -> _Pair | None:
    """Both sides with only the samples that are in both, in the target's order; None if none are."""
    if not relation.reference_samples:
        return None
    mine = [i for i, at in enumerate(relation.reference_samples) if at >= 0]
    theirs = [at for at in relation.reference_samples if at >= 0]
    return _chosen(target, mine, relation), _chosen(reference, theirs, relation)


def _chosen(batch: Batch, rows: list[int], relation: Relation) -> Batch:
    arrays = {}
    for name in FIELDS:
        array = batch.arrays.get(name)
        if array is None:
            continue
        if len(array) != len(relation.reference_samples) and len(array) == 1 and max(rows, default=0) > 0:
            if array.size % len(rows):
                continue
            array = array.reshape(len(rows), -1)  # one flat row
        arrays[name] = array[rows]
    return Batch(batch.path, batch.kind, batch.source, arrays)


_Said = tuple[State, str]


def _labels(target: Batch, reference: Batch) -> Iterator[_Said]:
    if target.labels is None or reference.labels is None:
        return
    width = min(target.labels.shape[1], reference.labels.shape[1])
    mine, theirs = target.labels[:, :width], reference.labels[:, :width]
    told = (mine >= 0) & (theirs >= 0)
    if np.array_equal(mine[told], theirs[told]) and told.any():
        ignored = int(((mine < 0) != (theirs < 0)).sum())
        if ignored and not _covered(target, reference):
            yield "differ", f"equal, but {ignored} are ignored (negative) on one side only"
        else:
            yield "agree", "equal"
        return
    for shift in _LABEL_SHIFTS:
        first, second = (
            (mine[:, :-shift], theirs[:, shift:])
            if shift > 0
            else (mine[:, -shift:], theirs[:, :shift])
        )
        told = (first >= 0) & (second >= 0)
        if told.sum() >= 2 and np.array_equal(first[told], second[told]):
            said = f"the target's are the reference's moved {'on' if shift > 0 else 'back'} by {abs(shift)}"
            said += _ahead(target, reference)
            if target.kind == reference.kind == "dump":
                yield "differ", said
            else:
                yield "inconclusive", f"{said}: right only if one of the models shifts them itself"
            return
    differing = mine != theirs
    i, j = (int(x) for x in np.argwhere(differing)[0])
    where = f"first at sample {i}, place {j}: {mine[i, j]} against {theirs[i, j]}"
    yield "differ", f"{int(differing.sum())} of {differing.size} differ, {where}"


def _ahead(target: Batch, reference: Batch) -> str:
    """How far either side's labels are ahead of its tokens, where that can be told."""
    shifts = [
        find_label_shift(batch.tokens, batch.labels)
        if batch.tokens is not None and batch.labels is not None
        else None
        for batch in (target, reference)
    ]
    return "" if None in shifts else f" ({shifts[0]} ahead of the inputs, against {shifts[1]})"


def _covered(target: Batch, reference: Batch) -> bool:
    """Whether masks make up for what labels alone do not say."""
    first, second = find_loss_labels(target), find_loss_labels(reference)
    return first is not None and second is not None and np.array_equal(first, second)


def _masks(target: Batch, reference: Batch) -> Iterator[_Said]:
    if target.loss_mask is None or reference.loss_mask is None:
        return
    width = min(target.loss_mask.shape[1], reference.loss_mask.shape[1])
    mine, theirs = target.loss_mask[:, :width], reference.loss_mask[:, :width]
    if np.array_equal(mine, theirs):
        yield "agree", "equal"
        return
    i, j = (int(x) for x in np.argwhere(mine != theirs)[0])
    counts = f"{int((mine != 0).sum())} tokens count against {int((theirs != 0).sum())}"
    yield "differ", f"{counts}, first at sample {i}, place {j}"


def _positions(target: Batch, reference: Batch) -> Iterator[_Said]:
    if target.positions is None or reference.positions is None:
        return
    width = min(target.positions.shape[1], reference.positions.shape[1])
    moved = target.positions[:, :width] - reference.positions[:, :width]
    if not moved.any():
        yield "agree", "equal"
    elif len(np.unique(moved)) == 1:
        yield "differ", f"the target's are higher by {int(moved.flat[0])}"
    else:
        i, j = (int(x) for x in np.argwhere(moved)[0])
        yield (
            "differ",
            f"{int((moved != 0).sum())} of {moved.size} differ, first at sample {i}, place {j}",
        )


def _missing(target: Batch, reference: Batch) -> Iterator[str]:
    """Fields that one side alone knows, where the other's may be other."""
    for name in FIELDS[1:]:
        known = [name in batch.arrays for batch in (target, reference)]
        if name == "labels" and not all(known):
            sides = (
                "either side"
                if not any(known)
                else "the target"
                if not known[0]
                else "the reference"
            )
            yield f"labels: not found in {sides}"
        elif known[0] != known[1]:
            yield f"{_SPOKEN[name]}: known of the {'target' if known[0] else 'reference'} alone"


def _statistics(target: Batch, reference: Batch) -> Iterator[Finding]:
    """Where a side has statistics only: what they can tell."""
    for name in ("tokens", "labels"):
        first, second = _numbers(target, name), _numbers(reference, name)
        if first is None or second is None:
            continue
        if first.hash and second.hash and first.dtype == second.dtype:
            same = first.hash == second.hash
            yield Finding(
                _SPOKEN[name],
                "agree" if same else "differ",
                f"{'equal' if same else 'other'} checksums",
            )
            continue
        names = ("max", "min", "norm")
        pairs = {n: (getattr(first, n), getattr(second, n)) for n in names}
        both = {n: pair for n, pair in pairs.items() if not np.isnan(pair).any()}
        wrong = [
            n for n, (a, b) in both.items() if abs(a - b) > (_CLOSE * abs(b) if n == "norm" else 0)
        ]
        if wrong:
            said = ", ".join(f"{n} {both[n][0]:g} against {both[n][1]:g}" for n in wrong)
            yield Finding(_SPOKEN[name], "differ", said)
        elif both:
            said = ", ".join(f"{n} {a:g}" for n, (a, _) in both.items())
            yield Finding(
                _SPOKEN[name],
                "inconclusive",
                f"{said} on both sides; statistics say no more, dump whole tensors",
            )
        else:
            yield Finding(
                _SPOKEN[name], "inconclusive", "what the two dumps recorded of them cannot be compared"
            )


def _numbers(batch: Batch, name: str) -> TensorStatistics | None:
    array = batch.arrays.get(name)
    if array is None:
        return batch.statistics.get(name)
    norm = float(np.sqrt(np.square(array.astype(np.float64)).sum()))
    return TensorStatistics(array.shape, "", float(array.max()), float(array.min()), norm, "")
