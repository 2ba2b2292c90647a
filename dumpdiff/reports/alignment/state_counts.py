"""What was compared and what was not, counted for every report.

All counts are pairs: of the target, of the reference.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from ...model.result import Result
from ...model.trace import PHASES
from ...model.verdict import VALUE_STATES

SIDES = ("target", "reference")
#: What is counted -> its share in the coverage.
_UNITS: Mapping[str, str] = {"values": "value_share", "ops": "share"}


@dataclass(frozen=True)
class StateRow:
    """The states of all values, or of all ops, of one phase."""

    phase: str
    unit: str  #: values or ops
    totals: tuple[int, int]
    shares: tuple[float, float]  #: share that was compared, NaN if the side has none
    counts: Mapping[str, tuple[int, int]]  #: state -> number, all of ``VALUE_STATES``


@dataclass(frozen=True)
class ReasonRow:
    """How much was not compared for one reason."""

    reason: str
    values: tuple[int, int]
    ops: tuple[int, int]


def list_state_rows(result: Result) -> tuple[StateRow, ...]:
    """Return a row for the values and a row for the ops of each phase that either side recorded."""
    rows = []
    for phase in PHASES:
        for unit, share_name in _UNITS.items():
            counts = [result.states.get(side, {}).get(phase, {}).get(unit, {}) for side in SIDES]
            totals = (sum(counts[0].values()), sum(counts[1].values()))
            if not any(totals):
                continue
            figures = [result.coverage.get(side, {}).get(phase, {}) for side in SIDES]
            shares = [float(side_figures.get(share_name, math.nan)) for side_figures in figures]
            state_counts = {
                state: (counts[0].get(state, 0), counts[1].get(state, 0)) for state in VALUE_STATES
            }
            rows.append(StateRow(phase, unit, totals, (shares[0], shares[1]), state_counts))
    return tuple(rows)


def list_occurring_states(rows: tuple[StateRow, ...]) -> tuple[str, ...]:
    """Return the states that some value or op has, worst first."""
    return tuple(state for state in VALUE_STATES if any(any(row.counts[state]) for row in rows))


def list_reasons(uncompared: pd.DataFrame, unmatched: pd.DataFrame) -> tuple[ReasonRow, ...]:
    """Return why values and ops were not compared, most frequent first.

    The tables are those of a result, or rows of them. An op is counted if none of its results was
    compared.
    """
    value_counts = Counter(zip(uncompared["side"], uncompared["reason"], strict=True))
    op_counts = Counter(zip(unmatched["side"], unmatched["reason"], strict=True))
    rows = []
    for reason in dict.fromkeys((*uncompared["reason"], *unmatched["reason"])):
        values = (value_counts["target", reason], value_counts["reference", reason])
        ops = (op_counts["target", reason], op_counts["reference", reason])
        rows.append(ReasonRow(str(reason), values, ops))
    return tuple(sorted(rows, key=lambda row: -sum(row.values) - sum(row.ops)))


def format_pair(pair: tuple[int, int]) -> str:
    """Format a number of the target and of the reference, '' if both are 0.

    >>> format_pair((12, 6)), format_pair((0, 0))
    ('12 / 6', '')
    """
    return f"{pair[0]} / {pair[1]}" if any(pair) else ""
