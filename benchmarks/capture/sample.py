"""The cases of the benchmark: 40 of those of benchmarks/localise, half of them held out.

The held-out ones are all of families: these were written last, by somebody who had not seen what
dumpdiff answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import families
import faults
import recordings

_N_PER_GROUP = {"mindspore": 15, "mindspore_pynative": 5}


def list_cases() -> list[faults.Case]:
    """Return 20 cases to tune on and 20 held-out ones, evenly spread over all by name."""
    cases = []
    for held_out in (False, True):
        graph_cases = [
            case
            for case in faults.CASES
            if not case.benign
            and case.held_out == held_out
            and (case.model in families.NAMES or not held_out)
        ]
        # The network of each family is also recorded in PyNative mode, without a fault and without
        # an update: so the reference has it.
        pynative_cases = [
            replace(case, name=f"{case.name}-pynative", target_framework="mindspore_pynative")
            for case in graph_cases
            if case.model in families.NAMES
            and case.side == recordings.PYTORCH
            and not case.target_options
        ]
        cases += _spread(graph_cases, _N_PER_GROUP["mindspore"])
        cases += _spread(pynative_cases, _N_PER_GROUP["mindspore_pynative"])
    return cases


def _spread(cases: Sequence[faults.Case], count: int) -> list[faults.Case]:
    """Return ``count`` cases at equal distances in the order of their names."""
    ordered = sorted(cases, key=lambda case: case.name)
    return [ordered[number * len(ordered) // count] for number in range(count)]
