"""Values that no correct run has: NaN, Inf, gradients of zeros."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..model.arrays import Flags
from ..model.dtypes import is_floating
from ..model.trace import Trace
from ..rulebook import Rules
from .step import Step, generalize
from .violations import InvariantCheck, Violation

#: Part of a name of what computes nothing where no token is routed to it.
_EXPERT = "expert"


def check_finite(step: Step, rules: Rules) -> InvariantCheck:
    """Check that outputs are finite; an output of -inf alone is a mask.

    Of each rank, the first op is named whose inputs are finite. Inputs alone say nothing, and
    neither do views of them: an op may be given memory that it does not read.
    """
    n_checked = 0
    violations: list[Violation] = []
    for rank, trace in step.traces.items():
        tensors = trace.tensors
        owners = tensors["op"].to_numpy()
        is_float = tensors["dtype"].map(is_floating).to_numpy(dtype=bool)
        nonfinite = tensors["nonfinite"].to_numpy()
        high, low = tensors["max"].to_numpy(), tensors["min"].to_numpy()
        is_mask = (low == -np.inf) & ~np.isnan(high) & (high < np.inf)
        is_result = is_float & (tensors["slot_kind"] != "input").to_numpy()
        is_result &= ~tensors["constant"].to_numpy() & tensors["trusted"].to_numpy()
        n_checked += int((is_result & (nonfinite >= 0)).sum())
        is_input = (tensors["slot_kind"] == "input").to_numpy()
        has_bad_input = np.zeros(len(trace.ops), dtype=bool)
        has_bad_input[owners[is_input & (nonfinite == 1)]] = True
        is_moved = (has_bad_input & _flag_layout_ops(trace, rules))[owners]
        rows = np.flatnonzero(is_result & (nonfinite == 1) & ~is_mask & ~is_moved)
        if not len(rows):
            continue
        sources = rows[~has_bad_input[owners[rows]]]
        expected = "its inputs are finite" if len(sources) else "values of a correct run are finite"
        first = int((sources if len(sources) else rows)[0])
        op = trace.ops.iloc[owners[first]]
        violations.append(
            Violation(
                "finite", step.number, (rank,), op["name"], tensors["slot"].iat[first],
                op["scope"], f"max {high[first]:.9g} and min {low[first]:.9g} on rank {rank}",
                expected, "", len(rows) - 1,
            )
        )  # fmt: skip
    return InvariantCheck("finite", n_checked, tuple(violations))


def _flag_layout_ops(trace: Trace, rules: Rules) -> Flags:
    """Return (ops,) whether each op only moves or selects numbers of its input."""
    kinds = trace.ops["kind"]
    layouts = {kind: bool(rules.get_layout(rules.resolve_kind(kind))) for kind in kinds.unique()}
    flags: Flags = kinds.map(layouts).to_numpy(dtype=bool)
    return flags


def check_zero_gradients(step: Step) -> InvariantCheck:
    """Check that no gradient is zero where those of its like, or on sibling ranks, are not.

    Gradients of experts are left out: no token may be routed to one.
    """
    zero: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    nonzero: defaultdict[str, int] = defaultdict(int)
    n_checked = 0
    for rank, trace in step.traces.items():
        tensors = trace.tensors
        names = tensors["gradient_of"].to_numpy()
        high, low = tensors["max"].to_numpy(), tensors["min"].to_numpy()
        for row in np.flatnonzero((names != "") & ~np.isnan(high)).tolist():
            name = names[row]
            if _EXPERT in name.lower():
                continue
            n_checked += 1
            if high[row] == 0 and low[row] == 0:
                zero[generalize(name)].append((rank, row))
            else:
                nonzero[generalize(name)] += 1
    violations = []
    for role, places in zero.items():
        if not nonzero[role]:
            continue
        rank, row = places[0]
        trace = step.traces[rank]
        op = trace.ops["name"].iat[int(trace.tensors["op"].iat[row])]
        ranks = tuple(sorted({owner for owner, _ in places}))
        violations.append(
            Violation(
                "zero gradient", step.number, ranks, op, trace.tensors["slot"].iat[row],
                trace.tensors["gradient_of"].iat[row], f"the gradient is zero on rank {rank}",
                f"{nonzero[role]} gradients of its like are not", "", len(places) - 1,
            )
        )  # fmt: skip
    return InvariantCheck("zero gradient", n_checked, tuple(violations))
