"""Closeups of the first findings: everything a drawing needs that the tables of a result do not hold."""

from __future__ import annotations

import numpy as np

from ..alignment import Alignment
from ..causes.context import Sought, Surroundings
from ..causes.situation_builder import arrays_of
from ..comparison import Comparison
from ..comparison.layouts import laid_out
from ..comparison.whole_tensors import shaped
from ..divergence.joint_graph import joined
from ..model.arrays import AnyArray
from ..model.errors import DumpError
from ..model.finding_context import Closeup
from ..model.result import Result
from ..rulebook import Rules
from .dataflow import dataflows
from .neighbourhood import Sides, neighbourhoods, scopes_of
from .tensor_figures import pictures
from .value_states import judged

DRAWN = 10  #: findings: later ones mostly follow from these
LARGEST = (
    1 << 27
)  #: elements, 512 MiB of float32: two seconds to walk; of larger tensors no picture is made


def closeups(comparison: Comparison, result: Result, rules: Rules) -> tuple[Closeup, ...]:
    """One closeup for each of the first ten findings of a result that was located in this comparison."""
    chosen = result.findings[:DRAWN]
    if not chosen:
        return ()
    around = Surroundings(comparison, rules)
    graph = joined(comparison)
    sides = Sides(
        flows=dataflows(graph),
        judged=judged(graph, result),
        partners=_partners(comparison.alignment),
        ops_by_name=around.ops_by_name,
        scopes=scopes_of(result),
    )
    drawn = []
    for finding in chosen:
        sought = around.find(finding)
        target, reference = neighbourhoods(
            sides, finding, None if sought is None else sought.classes
        )
        arrays = None if sought is None else _arrays(around, sought)
        histogram, difference = (None, None) if arrays is None else pictures(*arrays)
        drawn.append(Closeup(finding.rank, target, reference, histogram, difference))
    return tuple(drawn)


def _partners(alignment: Alignment) -> tuple[dict[int, int], dict[int, int]]:
    ours, theirs = alignment.ops["target"].tolist(), alignment.ops["reference"].tolist()
    return dict(zip(ours, theirs, strict=True)), dict(zip(theirs, ours, strict=True))


def _arrays(around: Surroundings, sought: Sought) -> tuple[AnyArray, AnyArray] | None:
    """Both whole tensors of a finding in one shape and order; None where one is missing, unreadable or too large."""
    if sought.group is not None:
        return arrays_of(around, sought)
    flows = around.flows
    sizes = [
        int(flow.tensors["size"].iat[tensor])
        for flow, tensor in zip(flows, sought.tensors, strict=True)
    ]
    try:
        if max(sizes) > LARGEST:
            return None
        t, r = (shaped(flow, tensor) for flow, tensor in zip(flows, sought.tensors, strict=True))
    except (DumpError, KeyError, OSError, ValueError):
        return None
    if t.size != r.size:
        return None
    if sought.layout not in ("same", "reshape"):
        with np.errstate(all="ignore"):
            _, t, r = laid_out(t, r)
    return t.reshape(r.shape), r
