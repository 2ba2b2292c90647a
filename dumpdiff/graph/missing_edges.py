"""Holes in the record: values that ops read and nothing recorded made, bridged to what they must have come from.

Recorders leave out views, splits, casts, negations and more. By evidence, strongest first: a few functions whose
result can be told from statistics, then the module tree, then the order of execution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..model.dtypes import is_discrete, unit_roundoff
from ..model.trace import FORWARD
from .dataflow import Flow

_WINDOW = 48  # ops before the first reader that are looked at: a decoder layer or two
_SAME = 2e-6  # relative: the same numbers summed in another order
_SHARED = 0.25  # of the run: what is read over a longer stretch is a buffer, not a hole


@dataclass(frozen=True)
class Bridge:
    """Where a value without a maker comes from."""

    parents: tuple[int, ...]  #: classes
    evidence: str  #: rearranged, cast, part, module call, order


def has_missing_producer(flow: Flow, value: int) -> bool:
    """Nothing recorded made it, and it is no parameter, mask, shared buffer or batch read before the first op."""
    if flow.producers[value] >= 0 or flow.list_column("parameter")[value] or not flow.consumers[value]:
        return False
    readers, discrete = flow.consumers[value], is_discrete(str(flow.list_column("dtype")[value]))
    if discrete or not flow.list_column("evidence")[value] or _parameter_like(flow, value):
        return False
    phase = flow.phases[readers[0]]
    same = [op for op in readers if flow.phases[op] == phase]
    span = (same[-1] - same[0]) / max(1, len(flow.phases))
    computed_before = any(flow.writes[op] for op in range(max(0, readers[0] - _WINDOW), readers[0]))
    return computed_before and span < _SHARED


def is_graph_input(flow: Flow, value: int) -> bool:
    """Nothing computed it: a parameter, the batch, a buffer; no hole, and no gradient handed to a backward record."""
    return (
        bool(flow.producers[value] < 0)
        and not is_gradient(flow, value)
        and not has_missing_producer(flow, value)
    )


def find_bridge(flow: Flow, value: int) -> Bridge | None:
    """What a hole was most likely computed from; None if the value is no hole or nothing fits."""
    if not has_missing_producer(flow, value):
        return None
    reader = flow.consumers[value][0]
    before = _recent(flow, reader, value)
    for how, test in (("rearranged", _rearranged), ("cast", _cast), ("part", _part)):
        fitting = [other for other in before if test(flow, value, other)]
        if fitting:
            return Bridge((fitting[0],), how)
    if call := _call_inputs(flow, reader, value):
        return Bridge(call, "module call")
    return Bridge(before[:1], "order") if before else None


def find_enclosing_inputs(flow: Flow, reader: int, value: int) -> tuple[int, ...]:
    """What the innermost module call around the reader was given that was not given the value itself."""
    return next(
        (flow.reads[call] for call in flow.iterate_enclosing_calls(reader) if value not in flow.reads[call]),
        (),
    )


def _recent(flow: Flow, reader: int, value: int) -> tuple[int, ...]:
    """Values of the reader's phase that were made or read shortly before it, latest first, parameters left out."""
    found: dict[int, None] = {}
    for op in range(reader - 1, max(-1, reader - _WINDOW), -1):
        if flow.phases[op] != flow.phases[reader]:
            continue
        for other in (*flow.writes[op], *flow.reads[op]):
            if other != value and (flow.producers[other] >= 0 or is_gradient(flow, other)):
                found[other] = None
    return tuple(found)


def is_gradient(flow: Flow, value: int) -> bool:
    """Given to a backward record: not made by a recorded op, but computed all the same."""
    return bool(flow.list_column("phase")[value] != FORWARD)


def _rearranged(flow: Flow, value: int, other: int) -> bool:
    """The same elements in another order or with other signs, as rotating halves makes them: equal size and norm."""
    a, b = flow.norms[value], flow.norms[other]
    if flow.sizes[value] != flow.sizes[other] or not (np.isfinite(a) and np.isfinite(b)):
        return False
    return bool(a > 0 and abs(a - b) <= _SAME * b)


def _cast(flow: Flow, value: int, other: int) -> bool:
    """The same elements in another floating type: statistics agree to its roundoff."""
    types = [str(flow.list_column("dtype")[v]) for v in (value, other)]
    slack = 2 * max(map(unit_roundoff, types))
    if types[0] == types[1] or flow.sizes[value] != flow.sizes[other] or slack == 0:
        return False
    pairs = [
        (flow.list_column(name)[value], flow.list_column(name)[other]) for name in ("max", "min", "norm")
    ]
    return all(
        abs(a - b) <= slack * max(abs(a), abs(b))
        for a, b in pairs
        if np.isfinite(a) and np.isfinite(b)
    )


def _part(flow: Flow, value: int, other: int) -> bool:
    """A chunk: a whole fraction of the elements, a smaller norm, extremes within, and at least one of them shared."""
    whole, part = flow.sizes[other], flow.sizes[value]
    if part < 8 or whole <= part or whole % part or whole // part > 64:
        return False
    high, low = flow.list_column("max"), flow.list_column("min")
    within = (
        high[value] <= high[other]
        and low[value] >= low[other]
        and flow.norms[value] < flow.norms[other]
    )
    return bool(within and (high[value] == high[other] or low[value] == low[other]))


def _call_inputs(flow: Flow, reader: int, value: int) -> tuple[int, ...]:
    """What the module call around the reader was given."""
    call = int(flow.trace.ops["parent"].iat[reader])
    return flow.reads[call] if call >= 0 and value not in flow.reads[call] else ()


def _parameter_like(flow: Flow, value: int) -> bool:
    """A matrix or vector that an op reads beside its first input: a weight of an API record, which names none."""
    shape = flow.tensors["shape"].iat[int(flow.list_column("tensor")[value])]
    if shape is None or len(shape) > 2:
        return False
    rows = flow.get_tensor_ids(flow.consumers[value][0])
    slots = flow.tensors["slot"].to_numpy()[rows][flow.tensor_class[rows] == value]
    return "input.0" not in slots.tolist()
