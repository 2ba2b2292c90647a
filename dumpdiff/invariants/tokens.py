"""Tokens that are sent to experts come back: each is routed once and combined once."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np

from ..communication.collectives import ALL_TO_ALL
from ..model.dtypes import is_floating
from ..model.trace import BACKWARD
from .step import Step
from .violations import InvariantCheck, Violation


def check_tokens(step: Step) -> InvariantCheck:
    """Check that what an exchange of all with all sends away comes back in another one.

    The numbers of elements that each rank gives and gets are those that it gets and gives there.
    """
    table = step.exchanges.table
    rows = table[table["kind"] == ALL_TO_ALL]
    sizes: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    places: dict[int, tuple[int, int, int]] = {}
    for exchange in sorted(set(rows["exchange"].tolist())):
        members = rows[rows["exchange"] == exchange]
        given, got, is_forward = [], [], True
        for rank, op, inputs, outputs in zip(
            *(members[name] for name in ("rank", "op", "inputs", "outputs")), strict=True
        ):
            tensors = step.traces[rank].tensors
            if not inputs or not outputs or not is_floating(tensors["dtype"].iat[inputs[0]]):
                break
            is_forward &= op < _find_first_backward(step, rank)
            given.append(int(tensors["size"].to_numpy()[list(inputs)].sum()))
            got.append(int(tensors["size"].to_numpy()[list(outputs)].sum()))
        if is_forward and len(given) == len(members):
            first = members.iloc[0]
            sizes[exchange] = (tuple(given), tuple(got))
            places[exchange] = (int(first["rank"]), int(first["op"]), int(first["group"]))
    by_group: defaultdict[int, Counter[tuple[tuple[int, ...], tuple[int, ...]]]]
    by_group = defaultdict(Counter)
    for exchange, pair in sizes.items():
        by_group[places[exchange][2]][pair] += 1
    n_checked, violations = 0, []
    for exchange, (given_sizes, got_sizes) in sizes.items():
        rank, op, group = places[exchange]
        if sum(by_group[group].values()) < 2:
            continue
        n_checked += 1
        if by_group[group][got_sizes, given_sizes]:
            continue
        record = step.traces[rank].ops.iloc[op]
        members_text = step.exchanges.groups[group]
        violations.append(
            Violation(
                "tokens", step.number, members_text.members, record["name"], "input.0",
                record["scope"],
                f"the ranks give {_format_sizes(given_sizes)} elements and get "
                f"{_format_sizes(got_sizes)}",
                "no other exchange brings as many back", str(members_text),
            )
        )  # fmt: skip
    return InvariantCheck("tokens", n_checked, tuple(violations))


def _find_first_backward(step: Step, rank: int) -> int:
    trace = step.traces[rank]
    rows = np.flatnonzero((trace.ops["phase"] == BACKWARD).to_numpy())
    return int(rows[0]) if len(rows) else len(trace.ops)


def _format_sizes(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))
