"""What a collective or transfer brought is read by the calls after it."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from ..communication.collectives import TRANSFERS
from ..model.trace import COMMUNICATION
from .step import Step, name_roles
from .violations import InvariantCheck, Violation


def check_readings(step: Step) -> InvariantCheck:
    """Check that outputs of exchanges are read, as those of their like are."""
    table = step.exchanges.table
    read_by = {rank: _collect_read_keys(step, rank) for rank in step.traces}
    role_of = {rank: name_roles(trace) for rank, trace in step.traces.items()}
    rows: list[tuple[tuple[object, ...], bool, int, int, int, int]] = []
    columns = (table[name].tolist() for name in ("rank", "op", "kind", "group", "outputs"))
    for rank, op, kind, group, outputs in zip(*columns, strict=True):
        step.traces[rank]
        place: object = "" if kind in TRANSFERS else role_of[rank][op]
        role: tuple[object, ...] = (kind, place, step.exchanges.groups[group].kind)
        for tensor in outputs:
            key = int(step.keys[rank][tensor])
            if key >= 0 and step.informative[rank][tensor]:
                last_read = read_by[rank].get(key, -1)
                rows.append((role, last_read > op, rank, op, tensor, group))
    n_read = Counter(role for role, is_read, *_ in rows if is_read)
    n_unread = Counter(role for role, is_read, *_ in rows if not is_read)
    violations = []
    for role, is_read, rank, op, tensor, group in rows:
        if is_read or not 0 < n_unread[role] <= n_read[role]:
            continue
        record = step.traces[rank].ops.iloc[op]
        violations.append(
            Violation(
                "read", step.number, (rank,), record["name"],
                step.traces[rank].tensors["slot"].iat[tensor], record["scope"],
                f"no call reads its output, {step.describe(rank, tensor)}",
                f"the outputs of {n_read[role]} calls of its kind are read",
                str(step.exchanges.groups[group]),
            )
        )  # fmt: skip
    n_checked = sum(n_read.values()) + len(violations)
    return InvariantCheck("read", n_checked, tuple(violations))


def _collect_read_keys(step: Step, rank: int) -> dict[int, int]:
    """Return key of a value -> last op that reads it and is no exchange."""
    trace, keys = step.traces[rank], step.keys[rank]
    owners = trace.tensors["op"].to_numpy()
    is_exchange = (trace.ops["phase"] == COMMUNICATION).to_numpy()
    is_module = (trace.ops["level"] == "module").to_numpy()
    is_read = (trace.tensors["slot_kind"] == "input").to_numpy() & (keys >= 0)
    rows = np.flatnonzero(is_read & ~is_exchange[owners] & ~is_module[owners])
    last_read: defaultdict[int, int] = defaultdict(lambda: -1)
    for key, op in zip(keys[rows].tolist(), owners[rows].tolist(), strict=True):
        last_read[key] = max(last_read[key], op)
    return dict(last_read)
