"""Parameters whose names tell of a fault that no pair of values shows: another shape, or in each other's place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..alignment import Alignment
from ..graph import Flow
from ..model.finding import Cause, Finding, Kind
from ..model.trace import FORWARD
from ..rulebook import Rules

_LAYER = re.compile(r"\d+")
_GATE = re.compile(r"\b(?:gate|up)\b")


def find_shape_mismatches(alignment: Alignment, rules: Rules) -> tuple[Finding, ...]:
    """One finding per parameter of one canonical name but other sizes on the two sides; fused ones left out."""
    ours, theirs = _named(alignment.target, rules), _named(alignment.reference, rules)
    grouped_t = {value for group in alignment.groups for value in group.target}
    grouped_r = {value for group in alignment.groups for value in group.reference}
    found: list[Finding] = []
    for name, r in sorted(
        theirs.items(), key=lambda item: alignment.reference.consumers[item[1]][:1]
    ):
        t = ours.get(name)
        if t is None or t in grouped_t or r in grouped_r:
            continue
        if alignment.target.sizes[t] != alignment.reference.sizes[r]:
            shapes = [_shape(alignment.target, t), _shape(alignment.reference, r)]
            sizes = {
                "target_size": float(alignment.target.sizes[t]),
                "reference_size": float(alignment.reference.sizes[r]),
            }
            title = f"parameter {name} has shape {shapes[0]} against {shapes[1]}"
            found.append(
                _finding("shape", name, title, sizes, "one canonical name", alignment, (t, r))
            )
    return tuple(found)


def find_exchanged_parameters(alignment: Alignment, rules: Rules, parted: Sequence[str]) -> tuple[Finding, ...]:
    """One finding per parameter that holds what another one holds on the other side, both sides having both names.

    Names may be used another way by one side (which of w1, w2, w3 is the gate?): such an exchange is a fault only where
    values part in the same module, or if other layers have it right while something parted. ``parted`` are the
    canonical scopes of what is introduced.
    """
    ours, theirs = _named(alignment.target, rules), _named(alignment.reference, rules)
    names_r = {value: name for name, value in theirs.items()}
    partner = dict(
        zip(
            alignment.classes["target"].tolist(),
            alignment.classes["reference"].tolist(),
            strict=True,
        )
    )
    holds = {
        name: names_r[partner[t]]
        for name, t in ours.items()
        if partner.get(t) in names_r and name in theirs
    }
    crossed = {name: other for name, other in holds.items() if other != name and other in ours}
    right = {_LAYER.sub("", name) for name in holds.keys() - crossed.keys()}
    return tuple(
        _finding(
            "parameter",
            name,
            f"parameter {name} holds what {other} holds in the reference",
            {},
            "both names on both sides, and equal values under the other name",
            alignment,
            (ours[name], theirs[name]),
            (
                Cause(
                    _exchange(name, other),
                    f"{name} and {other} changed places",
                    0.0,
                ),
            ),
        )
        for name, other in sorted(
            crossed.items(), key=lambda item: alignment.target.consumers[ours[item[0]]][:1]
        )
        if any(scope.startswith(_module(name)) for scope in parted)
        or (parted and _LAYER.sub("", name) in right)
    )


def _exchange(name: str, other: str) -> str:
    """What it is called, see docs/explain.md: two experts, gate and up, or any two weights changed places."""
    if "experts." in name and _LAYER.sub("", name) == _LAYER.sub("", other):
        return "experts-permuted"
    return "gate-up-swapped" if _GATE.search(name) else "weight-swapped"


def _module(name: str) -> str:
    """The module around the one that owns a parameter.

    >>> _module("layers.1.attention.q.weight")
    'layers.1.attention'
    """
    return name.rpartition(".")[0].rpartition(".")[0]


def _named(flow: Flow, rules: Rules) -> dict[str, int]:
    names = flow.classes["parameter"].tolist()
    canonical = rules.resolve_parameters(name for name in names if name)
    return {
        canonical[name]: value
        for value, name in enumerate(names)
        if name in canonical and flow.producers[value] < 0
    }


def _shape(flow: Flow, value: int) -> tuple[int, ...] | None:
    shape: tuple[int, ...] | None = flow.tensors["shape"].iat[int(flow.list_column("tensor")[value])]
    return shape


def _finding(
    kind: Kind,
    name: str,
    title: str,
    metrics: Mapping[str, float],
    evidence: str,
    alignment: Alignment,
    values: tuple[int, int],
    causes: tuple[Cause, ...] = (),
) -> Finding:
    """Without a rank; ``values`` are the classes of both sides."""
    readers = [
        tuple(str(flow.trace.ops["name"].iat[op]) for op in flow.consumers[value][:1])
        for flow, value in zip((alignment.target, alignment.reference), values, strict=True)
    ]
    return Finding(
        rank=0,
        kind=kind,
        phase=FORWARD,
        scope=name.rpartition(".")[0],
        title=title,
        target_ops=readers[0],
        reference_ops=readers[1],
        slots=(),
        metrics=metrics,
        tolerance=0.0,
        confidence=0.9,
        evidence=(evidence,),
        causes=causes,
    )
