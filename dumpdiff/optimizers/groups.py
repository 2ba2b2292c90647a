"""Groups of parameters: those that one rule with one set of hyperparameters explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .fit import Fit, UpdateData
from .history import SEARCH_SAMPLE_SIZE, History
from .identifiability import find_undetermined
from .refits import apply_fit, refit
from .rivals import (
    are_as_good,
    count_choices,
    find_runner_up,
    iterate_reductions,
    select_equivalent_fits,
    select_minimal_fits,
)
from .rule import DECAY, NO_DECAY, Rule
from .search import (
    RULES,
    KnownSettings,
    find_best_fit,
    find_candidates,
    is_applicable,
)

EXPLAINED, AMBIGUOUS, UNEXPLAINED, UNMOVED = "explained", "ambiguous", "unexplained", "did not move"

_MOST_GROUPS = 32  #: groups that are searched for; a run has two or three, or one per layer
_MOST_UNEXPLAINED = 2  #: unexplained parameters after which the search is given up for the others


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with the same rule and the same hyperparameters."""

    parameters: tuple[str, ...]
    state: str  #: EXPLAINED, AMBIGUOUS, UNEXPLAINED or UNMOVED
    fit: Fit | None  #: the nearest one if none explains; None if nothing moved
    runner_up: Fit | None = None  #: the best of the other rules
    equivalent_fits: tuple[Fit, ...] = ()  #: other rules that explain these data as well
    undetermined: tuple[str, ...] = ()  #: hyperparameters that these data do not determine
    largest_decay: float = np.inf  #: if ``decay`` is undetermined: it is at most this


def group_parameters(
    data: UpdateData, settings: KnownSettings, rules: Sequence[Rule] = RULES
) -> tuple[ParameterGroup, ...]:
    """Return groups of all parameters, the largest first; every parameter is in one group."""
    remaining: list[History] = []
    unmoved: list[str] = []
    for history in data.histories:
        if history.sample.updates.any():
            remaining.append(history)
        else:
            unmoved.append(history.name)
    groups: list[ParameterGroup] = []
    unexplained: list[tuple[History, Fit]] = []
    hint: Fit | None = None
    while remaining:
        remaining.sort(key=_rank_history, reverse=True)
        seed = remaining[0]
        fits: list[Fit] = []
        if len(groups) < _MOST_GROUPS and len(unexplained) < _MOST_UNEXPLAINED:
            fits = _search_fits(replace(data, histories=(seed,)), settings, rules, hint)
        if not fits or not fits[0].explains:
            nearest = _find_nearest(fits, unexplained, hint)
            if nearest is not None:
                unexplained.append((seed, nearest))
            remaining.remove(seed)
            continue
        group, members = _grow_group(fits, remaining, data, settings)
        remaining = [history for history in remaining if history not in members]
        hint = hint or group.fit
        group, group_without_decay = _split_off_undecayed(
            group, fits, members, remaining, data, settings
        )
        groups.append(group)
        if group_without_decay is not None:
            groups.append(group_without_decay)
            names = set(group_without_decay.parameters)
            remaining = [history for history in remaining if history.name not in names]
    groups = [*_merge_groups(groups, data), *_build_unexplained_group(unexplained)]
    groups.sort(key=lambda group: -len(group.parameters))
    if unmoved:
        groups.append(ParameterGroup(tuple(unmoved), UNMOVED, None))
    return tuple(groups)


def _find_nearest(
    fits: Sequence[Fit], unexplained: Sequence[tuple[History, Fit]], hint: Fit | None
) -> Fit | None:
    """Return the nearest fit for an unexplained parameter, or that of the previous one."""
    if fits:
        return fits[0]
    return unexplained[-1][1] if unexplained else hint


def _merge_groups(groups: Sequence[ParameterGroup], data: UpdateData) -> list[ParameterGroup]:
    """Join groups of one rule whose values explain both."""
    merged: list[ParameterGroup] = []
    for group in groups:
        for index, other in enumerate(merged):
            joint_fit = _find_joint_fit(other, group, data)
            if joint_fit is not None:
                names = other.parameters + group.parameters
                merged[index] = replace(other, parameters=names, fit=joint_fit)
                break
        else:
            merged.append(group)
    return merged


def _find_joint_fit(first: ParameterGroup, second: ParameterGroup, data: UpdateData) -> Fit | None:
    """Return the fit of one group that explains both groups; None if there is none."""
    if first.fit is None or second.fit is None:
        return None
    if first.fit.rule.essence != second.fit.rule.essence:
        return None
    joint_data = data.select(first.parameters + second.parameters)
    for fit in (first.fit, second.fit):
        joint_fit = apply_fit(fit, joint_data)
        if joint_fit.explains:
            return joint_fit
    return None


def _rank_history(history: History) -> tuple[int, float]:
    """Return a sort key: number of moved elements, then their movement relative to rounding."""
    sample = history.sample
    n_moved = int(np.count_nonzero(sample.updates.any(axis=0)))
    noise = float(np.linalg.norm(sample.noise))
    movement = float(np.linalg.norm(sample.updates))
    return min(n_moved, SEARCH_SAMPLE_SIZE), movement / noise if noise else np.inf


def _search_fits(
    data: UpdateData, settings: KnownSettings, rules: Sequence[Rule], hint: Fit | None
) -> list[Fit]:
    """Return the fits for one parameter; the values of the first group are tried first."""
    if hint is not None:
        hint_values = {name: value for name, value in hint.values.items() if name != "decay"}
        hinted = replace(settings, values={**hint_values, **settings.values})
        fits = find_candidates(data, hinted, rules)
        if fits[0].explains:
            return fits
    return find_candidates(data, settings, rules)


def _grow_group(
    fits: Sequence[Fit], remaining: Sequence[History], data: UpdateData, settings: KnownSettings
) -> tuple[ParameterGroup, list[History]]:
    """Return the group of the rule that explains most other parameters too, and its histories.

    The first of ``remaining`` is the parameter that was fitted.
    """
    seed, other_histories = remaining[0], remaining[1:]
    equivalent_fits = select_equivalent_fits(fits)
    grown = [
        _find_members(fit, seed, other_histories, data, settings)
        for fit in select_minimal_fits(equivalent_fits, data)
    ]
    largest = max(len(histories) for _, histories in grown)
    # A rule that explains fewer parameters with the same values than another is no rival of it.
    (best_fit, histories), *rivals = [
        (fit, histories) for fit, histories in grown if len(histories) == largest
    ]
    group_data = replace(data, histories=tuple(histories))
    final_fit = refit(best_fit, group_data, settings)
    state = EXPLAINED if final_fit.explains else UNEXPLAINED
    if rivals:
        state = AMBIGUOUS
    equivalent_rules = {fit.rule.essence for fit in equivalent_fits}
    other_fits = [fit for fit in fits if fit.rule.essence not in equivalent_rules]
    group = ParameterGroup(
        tuple(history.name for history in histories),
        state,
        final_fit,
        find_runner_up(other_fits, group_data, settings),
        tuple(refit(fit, group_data, settings) for fit, _ in rivals),
        find_undetermined(final_fit, group_data, settings),
    )
    return group, histories


def _find_members(
    fit: Fit,
    seed: History,
    other_histories: Sequence[History],
    data: UpdateData,
    settings: KnownSettings,
) -> tuple[Fit, list[History]]:
    """Return the parameters that the rule explains together with ``seed``, and the fit.

    Learning rate and linear decay are solved for on both. If a parameter is not explained, the
    other values may be too imprecise (a weight decay has little effect on small weights), so they
    are searched for once more, on both.
    """
    seed_sample = seed.take_search_sample() if fit.rule.elementwise else seed

    def select_explained(candidate: Fit) -> list[History]:
        explained = []
        for history in other_histories:
            pair = replace(data, histories=(seed_sample, history))
            if is_applicable(fit.rule, pair) and refit(candidate, pair, settings).explains:
                explained.append(history)
        return explained

    members = select_explained(fit)
    outsider = next((history for history in other_histories if history not in members), None)
    can_search = fit.rule.hyperparameters and not fit.rule.needs_matrix
    if outsider is None or not can_search:
        return fit, [seed, *members]
    by_step = len(set(fit.rates)) > 1
    pair = replace(data, histories=(seed_sample, outsider))
    if not is_applicable(fit.rule, pair):
        return fit, [seed, *members]
    if fit.rule.elementwise:
        pair = pair.take_search_sample()
    new_fit = find_best_fit(fit.rule, fit.scaling, by_step, pair, settings)
    # Common values are not replaced by unusual ones that explain one more parameter.
    if new_fit.explains and count_choices(new_fit) <= count_choices(fit):
        new_members = select_explained(new_fit)
        if len(new_members) > len(members):
            fit, members = new_fit, new_members
    return fit, [seed, *members]


def _split_off_undecayed(
    group: ParameterGroup,
    fits: Sequence[Fit],
    members: Sequence[History],
    remaining: Sequence[History],
    data: UpdateData,
    settings: KnownSettings,
) -> tuple[ParameterGroup, ParameterGroup | None]:
    """Return the group, and the parameters that its rule moved without its decay.

    This is common for biases and norms. Weights near zero hardly decay, so members of the group
    that both variants explain go with the other parameters of as many dimensions.
    """
    best_fit = group.fit
    if best_fit is None or best_fit.rule.decay == NO_DECAY:
        return group, None
    undecayed_fit = replace(
        best_fit, rule=best_fit.rule.without_decay, values={**best_fit.values, "decay": 0.0}
    )
    undecayed = _select_explained(undecayed_fit, remaining, data)
    if not undecayed:
        return group, None
    moved_members = _select_undecayed_members(undecayed_fit, members, undecayed, data)
    undecayed_data = replace(data, histories=(*undecayed, *moved_members))
    undecayed_fit = apply_fit(undecayed_fit, undecayed_data)
    runner_up = _find_undecayed_runner_up(
        best_fit, undecayed_fit.rule, fits, undecayed_data, settings
    )
    undetermined = find_undetermined(undecayed_fit, undecayed_data, settings)
    if runner_up.rule == best_fit.rule and are_as_good(runner_up, undecayed_fit):
        undetermined = (*undetermined, DECAY.name)  # weights so small that a decay hardly shows
    names = tuple(history.name for history in undecayed_data.histories)
    undecayed_group = ParameterGroup(
        names,
        group.state,
        undecayed_fit,
        runner_up,
        (),
        undetermined,
    )
    decayed_names = tuple(name for name in group.parameters if name not in names)
    return replace(group, parameters=decayed_names), undecayed_group


def _select_explained(fit: Fit, histories: Sequence[History], data: UpdateData) -> list[History]:
    """Return the histories that a fit explains as it is."""
    explained_histories = []
    for history in histories:
        single = replace(data, histories=(history,))
        if is_applicable(fit.rule, single):
            result = apply_fit(fit, single)
            explained_histories += [history] if result.explains else []
    return explained_histories


def _select_undecayed_members(
    undecayed_fit: Fit,
    members: Sequence[History],
    undecayed: Sequence[History],
    data: UpdateData,
) -> list[History]:
    """Return the members that go with the undecayed parameters.

    They need no decay, and have as many dimensions as an undecayed parameter. A number of
    dimensions for which a member needs the decay stays in the group. If all members would leave,
    none does.
    """
    explained_members = _select_explained(undecayed_fit, members, data)
    decayed_members = [history for history in members if history not in explained_members]
    undecayed_dims = _collect_dims(undecayed) - _collect_dims(decayed_members)
    moved_members = [
        history for history in explained_members if len(history.shape) in undecayed_dims
    ]
    if len(moved_members) == len(members):
        return []
    return moved_members


def _collect_dims(histories: Sequence[History]) -> set[int]:
    """Return the numbers of dimensions of the parameters."""
    return {len(history.shape) for history in histories}


def _find_undecayed_runner_up(
    decayed_fit: Fit,
    undecayed_rule: Rule,
    fits: Sequence[Fit],
    data: UpdateData,
    settings: KnownSettings,
) -> Fit:
    """Return the best other rule for the undecayed parameters, or the rule with its decay."""
    other_fits = []
    for fit in fits:
        related_rules = (fit.rule.essence, *iterate_reductions(fit.rule.essence))
        if undecayed_rule.essence not in related_rules and not fit.explains:
            other_fits.append(fit)
    values = {name: value for name, value in settings.values.items() if name != "decay"}
    runner_up = find_runner_up(other_fits, data, replace(settings, values=values))
    decayed = apply_fit(decayed_fit, data)
    if runner_up is None or decayed.residual <= runner_up.residual:
        return decayed
    return runner_up


def _build_unexplained_group(
    unexplained: Sequence[tuple[History, Fit]],
) -> list[ParameterGroup]:
    """Return one group of all unexplained parameters, with the rule nearest for most of them."""
    if not unexplained:
        return []
    rules = [fit.rule for _, fit in unexplained]
    most_common_rule = max(rules, key=rules.count)
    nearest = next(fit for _, fit in unexplained if fit.rule == most_common_rule)
    names = tuple(history.name for history, _ in unexplained)
    return [ParameterGroup(names, UNEXPLAINED, nearest)]
