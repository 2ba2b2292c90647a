"""The comparison of two runs' first batches, with checks of each one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ..model.arrays import AnyArray
from ..model.stage import Stage
from ..model.verdict import Verdict
from .batch import FIELDS, Batch, TensorStatistics
from .checks import (
    MIN_EVIDENCE,
    UNKNOWN_VOCABULARY,
    Finding,
    Vocabulary,
    check_batch,
    find_label_shift,
    find_loss_labels,
)
from .rank_distribution import judge_tokens
from .relation import Relation, relate_tokens

_FIELD_NAMES = {
    "tokens": "token ids",
    "labels": "labels",
    "loss_mask": "loss mask",
    "positions": "positions",
}
#: Shifts between both sides' labels that are recognized, in the order in which they are tried.
_LABEL_SHIFTS = (1, -1, 2, -2)
#: Relative difference of norms of the same integers, summed in float32 in any order.
_NORM_TOLERANCE = 1e-5


@dataclass(frozen=True)
class DataComparison:
    """The result of a comparison."""

    target: Batch
    reference: Batch
    findings: tuple[Finding, ...]  #: those about both sides first
    relation: Relation | None  #: of the tokens; None if one side knows statistics only
    missing: tuple[str, ...] = ()
    #: decoded samples, if a tokenizer was given: "target, sample 3" -> its text
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """Differ if a finding does, else inconclusive if one is, else agree."""
        states = {finding.state for finding in self.findings}
        verdicts: tuple[Verdict, ...] = ("differ", "inconclusive")
        for verdict in verdicts:
            if verdict in states:
                return verdict
        return "agree"

    @property
    def compares_labels(self) -> bool:
        """Whether the labels of both sides are known, and equal or different."""
        return any(
            finding.name == "labels" and not finding.side and finding.state in ("agree", "differ")
            for finding in self.findings
        )

    def to_stage(self) -> Stage:
        """Return the comparison as one stage of a triage."""
        verdict = self.verdict
        lines_of_verdict = self._list_lines(verdict)
        warnings = self._list_lines("warning")
        inconclusive_lines = self._list_lines("inconclusive")
        common_findings = [finding for finding in self.findings if not finding.side]
        common_lines = [
            _format_finding(finding) for finding in common_findings if finding.state == "agree"
        ]
        if verdict == "agree":
            headline = _format_finding(self.findings[0])
            other_warnings = [line for line in warnings if line != headline]
            if other_warnings:
                headline += f"; {len(other_warnings)} to look at: {other_warnings[0]}"
        else:
            headline = lines_of_verdict[0]
            if verdict == "differ" and len(lines_of_verdict) > 1:
                headline += f"; {len(lines_of_verdict) - 1} more"
        evidence = dict.fromkeys((*lines_of_verdict, *warnings, *common_lines))
        missing = (*inconclusive_lines, *self.missing)
        return Stage("data", verdict, headline, tuple(evidence), missing)

    def _list_lines(self, state: str) -> list[str]:
        return [_format_finding(finding) for finding in self.findings if finding.state == state]


def compare(
    target: Batch, reference: Batch, vocabulary: Vocabulary = UNKNOWN_VOCABULARY
) -> DataComparison:
    """Compare the target with the reference; ``vocabulary`` is used to check each side."""
    relation = None
    findings: list[Finding] = []
    missing: list[str] = []
    if target.tokens is not None and reference.tokens is not None:
        relation = relate_tokens(target.tokens, reference.tokens)
        findings += judge_tokens(target, reference, relation)
        if relation.reference_samples:
            findings += _compare_shared_samples(target, reference, relation)
        missing += _list_missing_fields(target, reference)
    else:
        findings += _compare_statistics(target, reference)
        if not findings:
            summary = "no field is known on both sides"
            findings.append(Finding("token ids", "inconclusive", summary))
    findings += check_batch(target, vocabulary, "target")
    findings += check_batch(reference, vocabulary, "reference")
    return DataComparison(target, reference, tuple(findings), relation, tuple(missing))


def choose_comparison(dumped: DataComparison, given: DataComparison) -> DataComparison:
    """Return the comparison that decides: the one of the dumps, if it is decided.

    A dump holds what the network read; a file that was given holds what it should have read. Dumps
    that agree without their labels decide nothing against files that do not agree. What the other
    comparison says becomes a line of ``missing``, if it is not the same.
    """
    is_incomplete = (
        dumped.verdict == "agree" and given.verdict != "agree" and not dumped.compares_labels
    )
    is_undecided = dumped.verdict == "inconclusive" or is_incomplete
    first, second = (given, dumped) if is_undecided else (dumped, given)
    if first.verdict == second.verdict:
        return first
    other = "the dumps" if second is dumped else "the batches that were given"
    line = f"{other}: {second.verdict}: {second.to_stage().headline}"
    return replace(first, missing=(*first.missing, line))


def _format_finding(finding: Finding) -> str:
    line = f"{finding.name}: {finding.summary}"
    return f"{finding.side}, {line}" if finding.side else line


def _compare_shared_samples(
    target: Batch, reference: Batch, relation: Relation
) -> Iterator[Finding]:
    """Compare labels, masks and positions of the samples of both sides, in the target's order."""
    target_samples = relation.find_shared_samples()
    reference_samples = [relation.reference_samples[sample] for sample in target_samples]
    n_samples = len(relation.reference_samples)
    target = _select_samples(target, target_samples, n_samples)
    reference = _select_samples(reference, reference_samples, n_samples)
    yield from _compare_labels(target, reference)
    yield from _compare_masks(target, reference)
    yield from _compare_positions(target, reference)


def _select_samples(batch: Batch, samples: list[int], n_samples: int) -> Batch:
    """Select samples of all arrays; an array of one flat row is split if it fits."""
    arrays = {}
    for name in FIELDS:
        array = batch.arrays.get(name)
        if array is None:
            continue
        is_flat = len(array) == 1 != n_samples and max(samples, default=0) > 0
        if is_flat:
            if array.size % len(samples):
                continue
            array = array.reshape(len(samples), -1)
        arrays[name] = array[samples]
    return Batch(batch.path, batch.kind, batch.source, arrays)


def _cut_to_common_length(target: AnyArray, reference: AnyArray) -> tuple[AnyArray, AnyArray]:
    length = min(target.shape[1], reference.shape[1])
    return target[:, :length], reference[:, :length]


def _find_first(flags: AnyArray) -> tuple[int, int]:
    """Return the sample and the position of the first true (or nonzero) element."""
    sample, position = np.argwhere(flags)[0].tolist()
    return sample, position


def _compare_labels(target: Batch, reference: Batch) -> Iterator[Finding]:
    if target.labels is None or reference.labels is None:
        return
    target_labels, reference_labels = _cut_to_common_length(target.labels, reference.labels)
    is_used = (target_labels >= 0) & (reference_labels >= 0)
    if is_used.any() and np.array_equal(target_labels[is_used], reference_labels[is_used]):
        n_ignored = int(((target_labels < 0) != (reference_labels < 0)).sum())
        if n_ignored and not _have_same_loss_labels(target, reference):
            summary = f"equal, but {n_ignored} are ignored (negative) on one side only"
            yield Finding("labels", "differ", summary)
        else:
            yield Finding("labels", "agree", "equal")
        return
    for shift in _LABEL_SHIFTS:
        if _are_shifted_labels(target_labels, reference_labels, shift):
            yield _describe_label_shift(target, reference, shift)
            return
    differs = target_labels != reference_labels
    sample, position = _find_first(differs)
    summary = (
        f"{int(differs.sum())} of {differs.size} differ, first at sample {sample}, position"
        f" {position}: {target_labels[sample, position]} against"
        f" {reference_labels[sample, position]}"
    )
    yield Finding("labels", "differ", summary)


def _are_shifted_labels(target: AnyArray, reference: AnyArray, shift: int) -> bool:
    """Whether the target's labels are the reference's, which are ``shift`` positions later."""
    if shift > 0:
        target, reference = target[:, :-shift], reference[:, shift:]
    else:
        target, reference = target[:, -shift:], reference[:, :shift]
    is_used = (target >= 0) & (reference >= 0)
    is_match = np.array_equal(target[is_used], reference[is_used])
    return is_match and bool(is_used.sum() >= MIN_EVIDENCE)


def _describe_label_shift(target: Batch, reference: Batch, shift: int) -> Finding:
    direction = "forward" if shift > 0 else "backward"
    summary = f"the target's are the reference's, shifted {direction} by {abs(shift)}"
    target_shift, reference_shift = _find_batch_shift(target), _find_batch_shift(reference)
    if target_shift is not None and reference_shift is not None:
        summary += f" ({target_shift} ahead of the inputs, against {reference_shift})"
    if target.kind == reference.kind == "dump":
        return Finding("labels", "differ", summary)
    summary += ": correct only if one of the models shifts them itself"
    return Finding("labels", "inconclusive", summary)


def _find_batch_shift(batch: Batch) -> int | None:
    """Return how far the labels are ahead of the tokens, None if unknown."""
    if batch.tokens is None or batch.labels is None:
        return None
    return find_label_shift(batch.tokens, batch.labels)


def _have_same_loss_labels(target: Batch, reference: Batch) -> bool:
    """Whether the same labels enter the loss on both sides, by masks and negative labels."""
    target_flags, reference_flags = find_loss_labels(target), find_loss_labels(reference)
    if target_flags is None or reference_flags is None:
        return False
    return np.array_equal(target_flags, reference_flags)


def _compare_masks(target: Batch, reference: Batch) -> Iterator[Finding]:
    if target.loss_mask is None or reference.loss_mask is None:
        return
    target_mask, reference_mask = _cut_to_common_length(target.loss_mask, reference.loss_mask)
    if np.array_equal(target_mask, reference_mask):
        yield Finding("loss mask", "agree", "equal")
        return
    sample, position = _find_first(target_mask != reference_mask)
    target_count, reference_count = np.count_nonzero(target_mask), np.count_nonzero(reference_mask)
    summary = (
        f"{target_count} tokens count against {reference_count}, first at sample {sample},"
        f" position {position}"
    )
    yield Finding("loss mask", "differ", summary)


def _compare_positions(target: Batch, reference: Batch) -> Iterator[Finding]:
    if target.positions is None or reference.positions is None:
        return
    target_positions, reference_positions = _cut_to_common_length(
        target.positions, reference.positions
    )
    differences = target_positions - reference_positions
    if not differences.any():
        yield Finding("positions", "agree", "equal")
    elif len(np.unique(differences)) == 1:
        summary = f"the target's are higher by {int(differences.flat[0])}"
        yield Finding("positions", "differ", summary)
    else:
        sample, position = _find_first(differences)
        summary = (
            f"{np.count_nonzero(differences)} of {differences.size} differ, first at sample"
            f" {sample}, position {position}"
        )
        yield Finding("positions", "differ", summary)


def _list_missing_fields(target: Batch, reference: Batch) -> Iterator[str]:
    """Yield the fields that could not be compared because a side does not have them."""
    for name in FIELDS[1:]:
        in_target, in_reference = name in target.arrays, name in reference.arrays
        only_side = "target" if in_target else "reference"
        missing_side = "reference" if in_target else "target"
        if in_target != in_reference:
            if name == "labels":
                yield f"labels: not found in the {missing_side}"
            else:
                yield f"{_FIELD_NAMES[name]}: known for the {only_side} only"
        elif name == "labels" and not in_target:
            yield "labels: not found in either side"


def _compare_statistics(target: Batch, reference: Batch) -> Iterator[Finding]:
    """Compare the statistics of tokens and labels, if one side has nothing else."""
    for name in ("tokens", "labels"):
        target_statistics = _get_statistics(target, name)
        reference_statistics = _get_statistics(reference, name)
        if target_statistics is None or reference_statistics is None:
            continue
        yield _judge_statistics(_FIELD_NAMES[name], target_statistics, reference_statistics)


def _judge_statistics(name: str, target: TensorStatistics, reference: TensorStatistics) -> Finding:
    if target.hash and reference.hash and target.dtype == reference.dtype:
        if target.hash == reference.hash:
            return Finding(name, "agree", "equal checksums")
        return Finding(name, "differ", "different checksums")
    differing, equal = [], []
    for statistic in ("max", "min", "norm"):
        target_value = getattr(target, statistic)
        reference_value = getattr(reference, statistic)
        if np.isnan([target_value, reference_value]).any():
            continue
        tolerance = _NORM_TOLERANCE * abs(reference_value) if statistic == "norm" else 0
        if abs(target_value - reference_value) > tolerance:
            differing.append(f"{statistic} {target_value:g} against {reference_value:g}")
        else:
            equal.append(f"{statistic} {target_value:g}")
    if differing:
        return Finding(name, "differ", ", ".join(differing))
    if equal:
        summary = f"{', '.join(equal)} on both sides; this is no proof, dump whole tensors"
        return Finding(name, "inconclusive", summary)
    summary = "the two dumps recorded different statistics of them, which cannot be compared"
    return Finding(name, "inconclusive", summary)


def _get_statistics(batch: Batch, name: str) -> TensorStatistics | None:
    """Return recorded statistics, or those of the array; None if the field is unknown."""
    array = batch.arrays.get(name)
    if array is None:
        return batch.statistics.get(name)
    norm = float(np.sqrt(np.square(array.astype(np.float64)).sum()))
    return TensorStatistics(array.shape, "", float(array.max()), float(array.min()), norm, "")
