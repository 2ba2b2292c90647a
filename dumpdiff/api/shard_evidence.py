"""Which ranks a finding of merged runs concerns: those whose shards differ."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..comparison import Comparison
from ..graph import Flow
from ..model.arrays import Floats
from ..model.finding import Finding
from ..model.recorded_shapes import load_readable_tensor
from ..sharding import Merged, RankOps, Shards

#: Share of the squared difference that the named ranks have together.
_MAIN_SHARE = 0.99


def add_shard_evidence(
    findings: Sequence[Finding], comparison: Comparison, merged_runs: tuple[Merged, Merged]
) -> tuple[Finding, ...]:
    """Return the findings, each with the ranks whose shards differ, where whole tensors tell it.

    The ops of a merged run have the names of its first rank. A finding names the calls of the rank
    that differs, if they have other names, and what a rank calls in the place of an op it lacks.
    """
    return tuple(_name_ranks(finding, comparison, merged_runs) for finding in findings)


def _name_ranks(
    finding: Finding, comparison: Comparison, merged_runs: tuple[Merged, Merged]
) -> Finding:
    """Return the finding with the ranks that differ."""
    side, ranks = _find_differing_ranks(finding, comparison, merged_runs)
    if ranks:
        side_name = ("target", "reference")[side]
        sentence = f"the difference is in the shard of {' and '.join(ranks)} of the {side_name}"
        finding = replace(finding, evidence=(*finding.evidence, sentence))
    for number, merged in enumerate(merged_runs):
        finding = _rename_ops(finding, number, merged, ranks if number == side else ())
    return finding


def _find_differing_ranks(
    finding: Finding, comparison: Comparison, merged_runs: tuple[Merged, Merged]
) -> tuple[int, tuple[str, ...]]:
    """Return the side whose shards differ and on which ranks; no ranks: it cannot be told."""
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
                return side, ranks
    return 0, ()


def _rename_ops(finding: Finding, side: int, merged: Merged, ranks: Sequence[str]) -> Finding:
    """Return the finding with one side's ops as the differing ranks call them."""
    names: list[str] = []
    title, evidence = finding.title, finding.evidence
    ops_of_side = (finding.target_ops, finding.reference_ops)
    for merged_name in ops_of_side[side]:
        rank_ops = merged.find_rank_ops(merged_name)
        own_ranks = ranks or ([rank_ops.holder] if rank_ops.holder else [])
        own_name = _choose_name(merged_name, rank_ops, own_ranks)
        names.append(own_name)
        if own_name != merged_name:
            is_shared = merged_name in ops_of_side[1 - side]
            title = _replace_name(title, merged_name, own_name, side if is_shared else None)
        for rank, substitutes in rank_ops.substitutes.items():
            names += [f"{name} ({rank})" for name in substitutes]
            evidence = (*evidence, f"{rank} calls {', '.join(substitutes)} there")
    if side == 0:
        return replace(finding, title=title, evidence=evidence, target_ops=tuple(names))
    return replace(finding, title=title, evidence=evidence, reference_ops=tuple(names))


def _choose_name(merged_name: str, rank_ops: RankOps, ranks: Sequence[str]) -> str:
    """Return the name of an op on the first differing rank, with the rank if it is another."""
    rank_names = [(rank, rank_ops.names[rank]) for rank in ranks if rank in rank_ops.names]
    if not rank_names or merged_name in {name for _, name in rank_names}:
        return merged_name
    rank, name = rank_names[0]
    return f"{name} ({rank})"


def _replace_name(text: str, name: str, new_name: str, number: int | None) -> str:
    """Return a text with the name of an op replaced where it stands alone.

    With a number, only that occurrence is replaced: the target's call is named first, and the
    reference's second.
    """
    matches = list(re.finditer(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", text))
    if number is not None:
        matches = matches[number : number + 1]
    for match in reversed(matches):
        text = text[: match.start()] + new_name + text[match.end() :]
    return text


def _list_results(flow: Flow, ops: Sequence[str]) -> list[int]:
    """Return the values that the ops write, those of the last op first."""
    names = {name: op for op, name in enumerate(flow.trace.ops["name"].tolist())}
    return [value for name in reversed(ops) if name in names for value in flow.writes[names[name]]]


def _find_ranks(
    flow: Flow, value: int, other: Flow, partner: int, merged: Merged
) -> tuple[str, ...]:
    """Return the ranks whose elements differ; () if all do, or if it cannot be told."""
    tensor = int(flow.classes["tensor"].iat[value])
    file = str(flow.tensors["file"].iat[tensor])
    shards = merged.find_shards(file) if file else None
    if shards is None:
        return ()
    array = load_readable_tensor(flow.trace, tensor)
    wanted = load_readable_tensor(other.trace, int(other.classes["tensor"].iat[partner]))
    if array is None or wanted is None or array.size != wanted.size:
        return ()
    difference = array.astype(np.float64) - wanted.astype(np.float64).reshape(array.shape)
    squares = np.nan_to_num(np.square(difference)).ravel()
    totals = np.bincount(shards.parts.ravel(), weights=squares).astype(np.float64)
    return _name_main_parts(shards, totals)


def _name_main_parts(shards: Shards, squares: Floats) -> tuple[str, ...]:
    """Return the fewest ranks that have nearly all of the difference; () if all of them do."""
    total = float(squares.sum())
    if total <= 0:
        return ()
    chosen: list[int] = []
    for part in np.argsort(-squares).tolist():
        if squares[chosen].sum() >= _MAIN_SHARE * total:
            break
        chosen.append(part)
    if len(chosen) == len(shards.names):
        return ()
    return tuple(shards.names[part] for part in sorted(chosen))
