"""Parameters of one name and another number of elements: no pair, and a finding before all others."""

from __future__ import annotations

from ..alignment import Alignment
from ..graph import Flow
from ..result import Finding
from ..rules import Rules


def other_shapes(alignment: Alignment, rules: Rules) -> tuple[Finding, ...]:
    """One finding per parameter of one canonical name but other sizes on the two sides; fused ones left out."""
    ours, theirs = _named(alignment.target, rules), _named(alignment.reference, rules)
    grouped_t = {value for group in alignment.groups for value in group.target}
    grouped_r = {value for group in alignment.groups for value in group.reference}
    found: list[Finding] = []
    for name, r in sorted(theirs.items(), key=lambda item: alignment.reference.readers[item[1]][:1]):
        t = ours.get(name)
        if t is None or t in grouped_t or r in grouped_r:
            continue
        if alignment.target.sizes[t] != alignment.reference.sizes[r]:
            found.append(_finding(len(found) + 1, name, alignment, t, r))
    return tuple(found)


def _named(flow: Flow, rules: Rules) -> dict[str, int]:
    names = flow.classes["parameter"].tolist()
    canonical = rules.parameters(name for name in names if name)
    return {
        canonical[name]: value for value, name in enumerate(names) if name in canonical and flow.producers[value] < 0
    }


def _finding(rank: int, name: str, alignment: Alignment, t: int, r: int) -> Finding:
    sides = ((alignment.target, t), (alignment.reference, r))
    shapes = [flow.tensors["shape"].iat[int(flow.column("tensor")[value])] for flow, value in sides]
    readers = [tuple(str(flow.trace.ops["name"].iat[op]) for op in flow.readers[value][:1]) for flow, value in sides]
    return Finding(
        rank=rank,
        kind="shape",
        phase="forward",
        scope=name.rpartition(".")[0],
        title=f"parameter {name} has shape {shapes[0]} against {shapes[1]}",
        target_ops=readers[0],
        reference_ops=readers[1],
        slots=(),
        metrics={
            "target_size": float(alignment.target.sizes[t]),
            "reference_size": float(alignment.reference.sizes[r]),
        },
        tolerance=0.0,
        confidence=0.9,
        evidence=("one canonical name",),
    )
