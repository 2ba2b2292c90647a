"""Sibling ranks make the same calls, and take part in the same collectives."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from ..communication.collectives import TRANSFERS
from ..model.trace import BACKWARD, FORWARD
from .step import Step, name_roles
from .violations import InvariantCheck, Violation


def check_calls(step: Step) -> InvariantCheck:
    """Check the calls of sibling ranks, layer by layer.

    A call that only some ranks make is a violation if all of them make it in another layer: one
    rank alone may add a bias, log, or count norms.
    """
    n_checked, violations = 0, list(_check_counts(step))
    for siblings in step.siblings:
        first = siblings.ranks[0]
        # names of compiled graphs are not those of the layer; their ops are merged by the compiler
        if len(siblings.ranks) < 2 or step.traces[first].source.format == "mindspore":
            continue
        has_call = siblings.ops >= 0
        roles: list[tuple[object, ...] | None] = []
        role_of = {rank: name_roles(step.traces[rank]) for rank in siblings.ranks}
        for row in range(len(siblings.ops)):
            position = int(np.argmax(has_call[row]))
            rank = siblings.ranks[position]
            role = role_of[rank][siblings.ops[row, position]]
            roles.append(role[:4] if role[0] in (FORWARD, BACKWARD) else None)
        is_complete = has_call.all(axis=1)
        n_complete = Counter(
            role for role, flag in zip(roles, is_complete, strict=True) if flag and role
        )
        n_checked += sum(n_complete.values())
        n_partial = Counter(
            role for role, flag in zip(roles, is_complete, strict=True) if not flag and role
        )
        for row in np.flatnonzero(~is_complete).tolist():
            role = roles[row]
            if role is None or not 0 < n_partial[role] < n_complete[role]:
                continue
            callers = [
                rank for rank, flag in zip(siblings.ranks, has_call[row], strict=True) if flag
            ]
            lacking = tuple(rank for rank in siblings.ranks if rank not in callers)
            op = siblings.ops[row, siblings.ranks.index(callers[0])]
            record = step.traces[callers[0]].ops.iloc[op]
            violations.append(
                Violation(
                    "same calls", step.number, lacking, record["name"], "", record["scope"],
                    f"rank {lacking[0]} does not call {record['kind']}",
                    f"rank {callers[0]} does, and all ranks do in {n_complete[role]} other places",
                )
            )  # fmt: skip
    return InvariantCheck("same calls", n_checked, tuple(violations))


def _check_counts(step: Step) -> list[Violation]:
    """Return the groups whose ranks took part in different numbers of collectives."""
    table = step.exchanges.table
    counts: defaultdict[tuple[int, str], Counter[int]] = defaultdict(Counter)
    for group, kind, rank in zip(table["group"], table["kind"], table["rank"], strict=True):
        if kind not in TRANSFERS:
            counts[group, kind][rank] += 1
    violations = []
    for (number, kind), by_rank in counts.items():
        group = step.exchanges.groups[number]
        present = [rank for rank in group.members if rank in step.traces]
        numbers = [by_rank[rank] for rank in present]
        if len(set(numbers)) <= 1:
            continue
        lowest = present[int(np.argmin(numbers))]
        highest = present[int(np.argmax(numbers))]
        violations.append(
            Violation(
                "same calls", step.number, (lowest,), kind, "", f"group {group}",
                f"rank {lowest} takes part in {min(numbers)} {kind}",
                f"rank {highest} takes part in {max(numbers)}", str(group),
            )
        )  # fmt: skip
    return violations
