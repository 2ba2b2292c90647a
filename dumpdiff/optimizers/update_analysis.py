"""The update analysis of one run: the rule of each group, and settings that it contradicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from .fit import UpdateData
from .groups import (
    AMBIGUOUS,
    EXPLAINED,
    UNEXPLAINED,
    UNMOVED,
    ParameterGroup,
    group_parameters,
)
from .hidden_decay import determine_decay
from .history import History
from .master_copy import MasterCopyShares, measure_master_copy
from .rule import DECAY, Rule
from .search import RULES, KnownSettings

#: Relative spread of the norms of gradients that were clipped before they were recorded.
_CLIPPED_SPREAD = 1e-3
#: Relative difference from which a setting contradicts the value that was found.
_SETTING_TOLERANCE = 0.01


@dataclass(frozen=True)
class UpdateAnalysis:
    """How one run updated its weights."""

    path: str
    data: UpdateData
    groups: tuple[ParameterGroup, ...]
    #: Index of a group -> whether there is a wider copy of its narrow weights.
    master_copies: Mapping[int, MasterCopyShares]
    #: Setting -> value in the settings, value that was found.
    contradicted_settings: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """EXPLAINED if every moved group is, else the worse of AMBIGUOUS and UNEXPLAINED.

        UNMOVED if no group moved.
        """
        states = {group.state for group in self.groups}
        for state in (UNEXPLAINED, AMBIGUOUS, EXPLAINED):
            if state in states:
                return state
        return UNMOVED

    @property
    def n_steps(self) -> int:
        """Number of updates."""
        return self.data.n_steps

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""
        return len(self.data.histories)

    @property
    def norms(self) -> tuple[float, ...]:
        """L2 norm of all recorded gradients together, at each step."""
        return tuple(float(norm) for norm in self.data.norms)

    @property
    def recorded_norm_limit(self) -> float | None:
        """The norm of the recorded gradients if it is the same at all steps, else None.

        The gradients were then clipped before they were recorded.
        """
        norms = self.data.norms
        if len(norms) < 2 or norms.max() <= 0:
            return None
        is_constant = np.ptp(norms) <= _CLIPPED_SPREAD * norms.max()
        return float(norms.mean()) if is_constant else None


def analyze_updates(
    path: str,
    histories: Sequence[History],
    settings: KnownSettings,
    rules: Sequence[Rule] = RULES,
    problems: Sequence[str] = (),
) -> UpdateAnalysis:
    """Return which rules updated all parameters of a model that have gradients.

    If no rule explains them with the known settings, all values are solved for, and settings that
    have other values are reported.
    """
    square_norms = [history.norms**2 for history in histories]
    data = UpdateData(tuple(histories), np.sqrt(np.sum(square_norms, axis=0)))
    groups = group_parameters(data, settings, rules)
    contradicted_settings: dict[str, tuple[float, float]] = {}
    if settings != KnownSettings() and _count_unexplained(groups):
        free_groups = group_parameters(data, KnownSettings(), rules)
        if _count_unexplained(free_groups) < _count_unexplained(groups):
            groups = free_groups
            contradicted_settings = _find_contradicted_settings(groups, settings)
    has_free_decay = DECAY.name not in settings.values or bool(contradicted_settings)
    groups, master_copies = _examine_narrow_weights(groups, data, rules, has_free_decay)
    return UpdateAnalysis(
        path,
        data,
        groups,
        master_copies,
        contradicted_settings,
        tuple(problems),
    )


def _examine_narrow_weights(
    groups: Sequence[ParameterGroup], data: UpdateData, rules: Sequence[Rule], has_free_decay: bool
) -> tuple[tuple[ParameterGroup, ...], dict[int, MasterCopyShares]]:
    """Return the groups with the decay that narrow weights show, and whether there is a copy."""
    examined_groups = []
    shares_by_group = {}
    for index, group in enumerate(groups):
        examined, shares = group, None
        if group.fit is not None and group.state != UNEXPLAINED:
            if has_free_decay:
                examined, shares = determine_decay(group, data, rules)
            else:
                histories = data.select(group.parameters).histories
                shares = measure_master_copy(group.fit, histories, data.norms)
        examined_groups.append(examined)
        if shares is not None:
            shares_by_group[index] = shares
    return tuple(examined_groups), shares_by_group


def _count_unexplained(groups: Sequence[ParameterGroup]) -> int:
    """Return the number of parameters that no rule explains."""
    return sum(len(group.parameters) for group in groups if group.state == UNEXPLAINED)


def _find_contradicted_settings(
    groups: Sequence[ParameterGroup], settings: KnownSettings
) -> dict[str, tuple[float, float]]:
    """Return the settings that differ from the largest explained group."""
    explained_fits = [group.fit for group in groups if group.state in (EXPLAINED, AMBIGUOUS)]
    fit = explained_fits[0] if explained_fits else None
    if fit is None:
        return {}
    contradicted = {}
    for name, value in settings.values.items():
        if name not in fit.values:
            continue
        if not np.isclose(value, fit.values[name], rtol=_SETTING_TOLERANCE, atol=0):
            contradicted[name] = (value, fit.values[name])
    if settings.rates is None:
        return contradicted
    if not np.allclose(settings.rates, fit.rates, rtol=_SETTING_TOLERANCE, atol=0):
        contradicted["learning_rate"] = (settings.rates[0], fit.rates[0])
    return contradicted
