"""What a collective or transfer brought is read by the calls after it, as in other layers."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from ..communication.collectives import TRANSFERS
from ..model.trace import COMMUNICATION
from .step import Step, name_roles
from .violations import InvariantCheck, Violation

#: An output is read as its like are if the like that are read so are this many times the others.
_MIN_MAJORITY = 2


@dataclass(frozen=True)
class _Output:
    """One output of a collective or transfer."""

    role: tuple[object, ...]
    rank: int
    op: int
    tensor: int
    group: int
    readers: frozenset[str]  #: kinds of the calls after it that read it


def check_readings(step: Step) -> InvariantCheck:
    """Check that outputs of exchanges are read by calls of the kinds that read their like."""
    outputs = _list_outputs(step)
    n_outputs = Counter(output.role for output in outputs)
    n_read: Counter[tuple[tuple[object, ...], str]] = Counter()
    for output in outputs:
        n_read.update((output.role, kind) for kind in output.readers)
    usual_readers: defaultdict[object, set[str]] = defaultdict(set)
    for (role, kind), count in n_read.items():
        n_others = n_outputs[role] - count
        if count >= _MIN_MAJORITY * n_others:
            usual_readers[role].add(kind)
    violations, n_checked = [], 0
    for output in outputs:
        usual = usual_readers[output.role]
        n_checked += bool(usual)
        if not usual or output.readers & usual:
            continue
        op = step.traces[output.rank].ops.iloc[output.op]
        kind = sorted(usual)[0]
        actual = f"only {', '.join(sorted(output.readers))}" if output.readers else "no call"
        violations.append(
            Violation(
                "read", step.number, (output.rank,), op["name"],
                step.traces[output.rank].tensors["slot"].iat[output.tensor], op["scope"],
                f"{actual} reads its output, {step.describe(output.rank, output.tensor)}",
                f"{kind} reads those of {n_read[output.role, kind]} calls of its kind",
                str(step.exchanges.groups[output.group]),
            )
        )  # fmt: skip
    return InvariantCheck("read", n_checked, tuple(violations))


def _list_outputs(step: Step) -> list[_Output]:
    """Return the outputs of all exchanges that tell something."""
    table = step.exchanges.table
    readers = {rank: _collect_readers(step, rank) for rank in step.traces}
    role_of = {rank: name_roles(trace) for rank, trace in step.traces.items()}
    kinds = {rank: trace.ops["kind"].tolist() for rank, trace in step.traces.items()}
    outputs = []
    columns = (table[name].tolist() for name in ("rank", "op", "kind", "group", "outputs"))
    for rank, op, kind, group, tensors in zip(*columns, strict=True):
        place: object = "" if kind in TRANSFERS else role_of[rank][op]
        role: tuple[object, ...] = (kind, place, step.exchanges.groups[group].kind)
        for tensor in tensors:
            key = int(step.keys[rank][tensor])
            if key < 0 or not step.informative[rank][tensor]:
                continue
            later_kinds = frozenset(
                kinds[rank][reader] for reader in readers[rank].get(key, ()) if reader > op
            )
            outputs.append(_Output(role, rank, op, tensor, group, later_kinds))
    return outputs


def _collect_readers(step: Step, rank: int) -> dict[int, list[int]]:
    """Return key of a value -> ops that read it and are neither exchanges nor modules."""
    trace, keys = step.traces[rank], step.keys[rank]
    owners = trace.tensors["op"].to_numpy()
    is_exchange = (trace.ops["phase"] == COMMUNICATION).to_numpy()
    is_module = (trace.ops["level"] == "module").to_numpy()
    is_read = (trace.tensors["slot_kind"] == "input").to_numpy() & (keys >= 0)
    rows = np.flatnonzero(is_read & ~is_exchange[owners] & ~is_module[owners])
    readers: defaultdict[int, list[int]] = defaultdict(list)
    for key, op in zip(keys[rows].tolist(), owners[rows].tolist(), strict=True):
        readers[key].append(op)
    return dict(readers)
