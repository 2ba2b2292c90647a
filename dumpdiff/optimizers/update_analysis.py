"""One run: what moved its weights, group by group, and what its settings say otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .fit import UpdateData, Fit
from .groups import AMBIGUOUS, EXPLAINED, UNMOVED, UNEXPLAINED, ParameterGroup, group_parameters
from .history import History
from .rule import Rule
from .search import RULES, KnownSettings
from .master_copy import MasterCopyShares, measure_master_copy

_STEADY = (
    1e-3  #: relative spread of the norms of gradients that were clipped before they were recorded
)


@dataclass(frozen=True)
class UpdateAnalysis:
    """How one run moved its weights."""

    path: str
    data: UpdateData
    groups: tuple[ParameterGroup, ...]
    master_copies: Mapping[
        int, MasterCopyShares
    ]  #: by number of the group: whether a wider copy stands behind narrow weights
    contradicted_settings: Mapping[str, tuple[float, float]] = field(
        default_factory=dict
    )  #: setting: as said, as found
    problems: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """EXPLAINED if every group that moved is; else the worse of AMBIGUOUS and UNEXPLAINED; STILL if none moved."""
        states = [group.state for group in self.groups if group.state != UNMOVED]
        if not states:
            return UNMOVED
        return next((state for state in (UNEXPLAINED, AMBIGUOUS) if state in states), EXPLAINED)

    @property
    def n_steps(self) -> int:
        """How many updates are known."""
        return self.data.n_steps

    @property
    def n_parameters(self) -> int:
        """How many there are."""
        return len(self.data.histories)

    @property
    def norms(self) -> tuple[float, ...]:
        """L2 norm of all recorded gradients together, at each step."""
        return tuple(float(norm) for norm in self.data.norms)

    @property
    def recorded_norm_limit(self) -> float | None:
        """The norm that gradients were clipped to before they were recorded, if all steps have the same."""
        norms = self.data.norms
        steady = len(norms) > 1 and np.ptp(norms) <= _STEADY * norms.max() and norms.max() > 0
        return float(norms.mean()) if steady else None


def analyze_updates(
    path: str,
    histories: Sequence[History],
    known: KnownSettings,
    rules: Sequence[Rule] = RULES,
    problems: Sequence[str] = (),
) -> UpdateAnalysis:
    """What moved these parameters, which are all of the model that have gradients.

    Where no rule explains them with the numbers that are said to be known, all numbers are solved for, and those that
    come out otherwise are told.
    """
    data = UpdateData(
        tuple(histories), np.sqrt(np.sum([history.norms**2 for history in histories], axis=0))
    )
    groups = group_parameters(data, known, rules)
    contradicted: dict[str, tuple[float, float]] = {}
    if known != KnownSettings() and _unexplained(groups):
        free = group_parameters(data, KnownSettings(), rules)
        if _unexplained(free) < _unexplained(groups):
            groups, contradicted = free, _contradicted(free, known)
    shares = {
        number: found
        for number, group in enumerate(groups)
        if group.fit is not None and group.state != UNEXPLAINED
        and (found := measure_master_copy(group.fit, data.select(group.parameters).histories, data.norms)) is not None
    }  # fmt: skip
    return UpdateAnalysis(path, data, groups, shares, contradicted, tuple(problems))


def _unexplained(groups: Sequence[ParameterGroup]) -> int:
    return sum(len(group.parameters) for group in groups if group.state == UNEXPLAINED)


def _contradicted(groups: Sequence[ParameterGroup], known: KnownSettings) -> dict[str, tuple[float, float]]:
    """Settings that the largest explained group was not moved by."""
    best: Fit | None = next(
        (group.fit for group in groups if group.state in (EXPLAINED, AMBIGUOUS)), None
    )
    if best is None:
        return {}
    found = {name: (said, best.values[name]) for name, said in known.values.items()
             if name in best.values and not np.isclose(said, best.values[name], rtol=0.01, atol=0)}  # fmt: skip
    if known.rates is not None and not np.allclose(known.rates, best.rates, rtol=0.01, atol=0):
        found["learning_rate"] = (known.rates[0], best.rates[0])
    return found
