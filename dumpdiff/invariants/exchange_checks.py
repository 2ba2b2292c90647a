"""Collectives and transfers: what each rank gets follows from what all ranks gave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

from ..communication.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    GATHER,
    RECV,
    REDUCE,
    REDUCE_SCATTER,
    SCATTER,
    SEND,
)
from .exchange import Exchange, Tally, list_exchanges
from .moved_values import (
    check_all_to_all,
    check_broadcast,
    check_equal_outputs,
    check_gather,
    check_scatter,
    check_transfer,
)
from .reductions import check_reduce_scatter, check_reduction
from .step import Step
from .violations import InvariantCheck

#: Kind of collective -> invariant -> how it is checked.
_CHECKS: Mapping[str, Mapping[str, Callable[[Step, Exchange, Tally], None]]] = {
    ALL_REDUCE: {"equal outputs": check_equal_outputs, "reduction": check_reduction},
    REDUCE: {"reduction": check_reduction},
    ALL_GATHER: {"equal outputs": check_equal_outputs, "gathered": check_gather},
    GATHER: {"gathered": check_gather},
    SCATTER: {"scattered": check_scatter},
    REDUCE_SCATTER: {"scattered": check_reduce_scatter},
    BROADCAST: {"equal outputs": check_equal_outputs, "broadcast": check_broadcast},
    ALL_TO_ALL: {"exchanged": check_all_to_all},
}
#: Invariants that need all members of a group.
_OF_ALL_MEMBERS = ("reduction", "gathered", "scattered", "exchanged")


def check_exchanges(step: Step) -> list[InvariantCheck]:
    """Check every collective and transfer whose ranks were all read."""
    tallies_by_group: defaultdict[int, defaultdict[str, Tally]]
    tallies_by_group = defaultdict(lambda: defaultdict(Tally))
    for exchange in list_exchanges(step):
        tallies = tallies_by_group[exchange.group]
        if exchange.kinds <= {SEND, RECV}:
            check_transfer(step, exchange, tallies["received"])
            continue
        if len(exchange.members) < len(step.exchanges.groups[exchange.group].members):
            tallies["reduction"].unchecked["a rank of the group was not read"] += 1
            continue
        for invariant, check in _CHECKS[exchange.members[0].kind].items():
            check(step, exchange, tallies[invariant])
    checks = []
    for group, tallies in tallies_by_group.items():
        if not step.exchanges.groups[group].is_recorded:
            _discard_sums_of_others(tallies)
        for name, tally in tallies.items():
            unchecked = dict(tally.unchecked)
            checks.append(InvariantCheck(name, tally.checked, tuple(tally.violations), unchecked))
    return checks


def _discard_sums_of_others(tallies: dict[str, Tally]) -> None:
    """Discard what needs all members of a group that is not recorded, if most of it contradicts.

    Then other ranks take part, of which there is no dump.
    """
    group_tallies = [
        tallies[name] for name in _OF_ALL_MEMBERS if name in tallies and tallies[name].checked
    ]
    n_violations = sum(len(tally.violations) for tally in group_tallies)
    if 2 * n_violations <= sum(tally.checked for tally in group_tallies):
        return
    for tally in group_tallies:
        tally.unchecked["the group seems to have further ranks"] += tally.checked
        tally.checked = 0
        tally.violations.clear()
