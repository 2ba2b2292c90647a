"""Which ranks a finding of merged runs concerns: those whose shards differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..comparison import Comparison
from ..graph import Flow
from ..model.arrays import Floats
from ..model.finding import Finding
from ..model.recorded_shapes import load_readable_tensor
from ..sharding import Merged, Shards

#: Share of the squared difference that the named ranks have together.
_MAIN_SHARE = 0.99


def add_shard_evidence(
    findings: Sequence[Finding], comparison: Comparison, merged_runs: tuple[Merged, Merged]
) -> tuple[Finding, ...]:
    """Return the findings, each with the ranks whose shards differ, where whole tensors tell it."""
    extended = []
    for finding in findings:
        sentence = _describe_ranks(finding, comparison, merged_runs)
        evidence = (*finding.evidence, sentence) if sentence else finding.evidence
        extended.append(replace(finding, evidence=evidence))
    return tuple(extended)


def _describe_ranks(
    finding: Finding, comparison: Comparison, merged_runs: tuple[Merged, Merged]
) -> str:
    alignment = comparison.alignment
    flows = (alignment.target, alignment.reference)
    partners = (alignment.partners, {r: t for t, r in alignment.partners.items()})
    for side, ops in ((0, finding.target_ops), (1, finding.reference_ops)):
        if not merged_runs[side].ranks:
            continue
        for value in _list_results(flows[side], ops):
            partner = partners[side].get(value, -1)
            if partner < 0:
                continue
            ranks = _find_ranks(flows[side], value, flows[1 - side], partner, merged_runs[side])
            if ranks:
                side_name = ("target", "reference")[side]
                return f"the difference is in the shard of {ranks} of the {side_name}"
    return ""


def _list_results(flow: Flow, ops: Sequence[str]) -> list[int]:
    """Return the values that the ops write, those of the last op first."""
    names = {name: op for op, name in enumerate(flow.trace.ops["name"].tolist())}
    return [value for name in reversed(ops) if name in names for value in flow.writes[names[name]]]


def _find_ranks(flow: Flow, value: int, other: Flow, partner: int, merged: Merged) -> str:
    """Return the ranks whose elements differ; '' if all do, or if it cannot be told."""
    tensor = int(flow.classes["tensor"].iat[value])
    shards = merged.find_shards(str(flow.tensors["file"].iat[tensor]))
    if shards is None:
        return ""
    array = load_readable_tensor(flow.trace, tensor)
    wanted = load_readable_tensor(other.trace, int(other.classes["tensor"].iat[partner]))
    if array is None or wanted is None or array.size != wanted.size:
        return ""
    difference = array.astype(np.float64) - wanted.astype(np.float64).reshape(array.shape)
    squares = np.nan_to_num(np.square(difference)).ravel()
    totals = np.bincount(shards.parts.ravel(), weights=squares).astype(np.float64)
    return _name_main_parts(shards, totals)


def _name_main_parts(shards: Shards, squares: Floats) -> str:
    """Return the fewest ranks that have nearly all of the difference; '' if all of them do."""
    total = float(squares.sum())
    if total <= 0:
        return ""
    chosen: list[int] = []
    for part in np.argsort(-squares).tolist():
        if squares[chosen].sum() >= _MAIN_SHARE * total:
            break
        chosen.append(part)
    if len(chosen) == len(shards.names):
        return ""
    return " and ".join(shards.names[part] for part in sorted(chosen))
