"""Groups of parameters: those that one rule with one set of hyperparameters explains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .fit import Attempt, Fit, UpdateData, fit_rule
from .gradient_scaling import GLOBAL_NORM, GradientScaling
from .history import SEARCH_SAMPLE_SIZE, History
from .rule import DECAY, EPSILON, HYPERPARAMETERS, NO_DECAY, Rule
from .search import (
    ROUNDED_TOLERANCE_SHARE,
    RULES,
    KnownSettings,
    find_best_fit,
    find_candidates,
    is_applicable,
)

EXPLAINED, AMBIGUOUS, UNEXPLAINED, UNMOVED = "explained", "ambiguous", "unexplained", "did not move"

#: Of two rules that explain the data, one with a residual this many times larger is no rival.
_RIVAL_RATIO = 3.0
#: Smallest residual that is used for that comparison: below it, both residuals may be only the
#: framework's rounding of its constants.
_RESIDUAL_FLOOR = 2e-6

_MOST_GROUPS = 32  #: groups that are searched for; a run has two or three, or one per layer
_MOST_OTHERS = 8  #: other rules that are fitted to the full group, to find the runner-up
_MOST_UNEXPLAINED = 2  #: unexplained parameters after which the search is given up for the others
_EXTRA_CHOICES = 1  #: choices that a rival may need in addition to the cheapest fit
_RATE_DIGITS = 4  #: digits up to which learning rates are rounded


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


def apply_fit(fit: Fit, data: UpdateData) -> Fit:
    """Return the same rule with the same values on other data; nothing is solved for."""
    attempt = Attempt(fit.rule, fit.scaling, data, fit.values, fit.rates, fit.values["decay"])
    return fit_rule(attempt)


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
        for fit in _select_minimal_fits(equivalent_fits, data)
    ]
    largest = max(len(histories) for _, histories in grown)
    # A rule that explains fewer parameters with the same values than another is no rival of it.
    (best_fit, histories), *rivals = [
        (fit, histories) for fit, histories in grown if len(histories) == largest
    ]
    group_data = replace(data, histories=tuple(histories))
    final_fit = _refit(best_fit, group_data, settings)
    state = EXPLAINED if final_fit.explains else UNEXPLAINED
    if rivals:
        state = AMBIGUOUS
    equivalent_rules = {fit.rule.essence for fit in equivalent_fits}
    other_fits = [fit for fit in fits if fit.rule.essence not in equivalent_rules]
    group = ParameterGroup(
        tuple(history.name for history in histories),
        state,
        final_fit,
        _find_runner_up(other_fits, group_data, settings),
        tuple(_refit(fit, group_data, settings) for fit, _ in rivals),
        _find_undetermined(final_fit, group_data, settings),
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
            if is_applicable(fit.rule, pair) and _refit(candidate, pair, settings).explains:
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
    if new_fit.explains and _count_choices(new_fit) <= _count_choices(fit):
        new_members = select_explained(new_fit)
        if len(new_members) > len(members):
            fit, members = new_fit, new_members
    return fit, [seed, *members]


def select_equivalent_fits(fits: Sequence[Fit]) -> list[Fit]:
    """Return the fits that explain the data almost as well as the best, by plausibility."""
    explaining_fits = [fit for fit in fits if fit.explains]
    smallest_residual = min(map(_get_residual, explaining_fits))
    limit = _RIVAL_RATIO * max(smallest_residual, _RESIDUAL_FLOOR)
    equivalent_fits = [fit for fit in explaining_fits if fit.residual <= limit]
    return sorted(equivalent_fits, key=_rank_plausibility)


def _get_residual(fit: Fit) -> float:
    return fit.residual


def _rank_plausibility(fit: Fit) -> tuple[int, float]:
    return _count_choices(fit) + fit.rule.complexity, fit.residual


def _count_choices(fit: Fit) -> int:
    """Return how many values of a fit were chosen: learning rates, and all that is no default."""
    n_choices = len(set(fit.rates))
    for name, value in fit.values.items():
        if name in HYPERPARAMETERS and value != HYPERPARAMETERS[name].default:
            n_choices += 1
    if fit.scaling != GradientScaling():
        n_choices += 1
    return n_choices


def _select_minimal_fits(fits: Sequence[Fit], data: UpdateData) -> list[Fit]:
    """Return one fit per essence, without those that reduce to a simpler one."""
    fits_by_essence: dict[Rule, Fit] = {}
    for fit in fits:
        fits_by_essence.setdefault(fit.rule.essence, fit)
    fewest_choices = min(map(_count_choices, fits_by_essence.values()))
    n_steps = data.n_steps
    if data.histories[0].first_moment is not None:
        n_steps += 1
    minimal_fits = []
    for essence, fit in fits_by_essence.items():
        has_simpler = any(
            simpler in fits_by_essence for simpler in _list_simpler_rules(essence, n_steps)
        )
        is_cheap = _count_choices(fit) <= fewest_choices + _EXTRA_CHOICES
        if is_cheap and not has_simpler:
            minimal_fits.append(fit)
    return minimal_fits


def _list_simpler_rules(rule: Rule, n_steps: int) -> list[Rule]:
    """Return the essences of simpler rules that ``n_steps`` can tell from the rule."""
    simpler_rules = _iterate_reductions(rule)
    if rule.steps_to_identify > n_steps:
        simpler_rules = [
            simpler for simpler in simpler_rules if simpler.steps_to_identify > n_steps
        ]
    return [simpler.essence for simpler in simpler_rules]


def _iterate_reductions(rule: Rule) -> Iterable[Rule]:
    for simpler in rule.reductions:
        yield simpler
        yield from _iterate_reductions(simpler)


def _refit(fit: Fit, data: UpdateData, settings: KnownSettings) -> Fit:
    """Solve for learning rate and linear decay on these data; keep the old ones if better."""
    by_step = len(set(fit.rates)) > 1
    decay = settings.values.get("decay")
    attempt = Attempt(fit.rule, fit.scaling, data, fit.values, settings.rates, decay, by_step)
    best_fit = min((apply_fit(fit, data), fit_rule(attempt)), key=_get_relative_to_tolerance)
    if any(history.is_narrow for history in data.histories):
        return _round_rates(best_fit, data)
    return best_fit


def _get_relative_to_tolerance(fit: Fit) -> float:
    return fit.relative_to_tolerance


def _round_rates(fit: Fit, data: UpdateData) -> Fit:
    """Use the learning rates with the fewest digits that explain the data as well.

    Rounding to a narrow type allows a range of learning rates.
    """
    for digits in range(_RATE_DIGITS):
        rates = tuple(float(f"{rate:.{digits}e}") for rate in fit.rates)
        rounded = apply_fit(replace(fit, rates=rates), data)
        if rounded.relative_to_tolerance <= max(fit.relative_to_tolerance, ROUNDED_TOLERANCE_SHARE):
            return rounded
    return fit


def _find_runner_up(
    other_fits: Sequence[Fit], data: UpdateData, settings: KnownSettings
) -> Fit | None:
    """Return the best of the other rules on the group's parameters (on samples of large ones)."""
    applicable_fits = [fit for fit in other_fits if is_applicable(fit.rule, data)]
    search_sample = data.take_search_sample()
    refits = [
        _refit(fit, search_sample if fit.rule.elementwise else data, settings)
        for fit in applicable_fits[:_MOST_OTHERS]
    ]
    return min(refits, key=_get_residual, default=None)


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
    undetermined = _find_undetermined(undecayed_fit, undecayed_data, settings)
    if runner_up.rule == best_fit.rule and _are_as_good(runner_up, undecayed_fit):
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


def _are_as_good(fit: Fit, other: Fit) -> bool:
    """Return whether a fit leaves no more than rounding allows, compared with another."""
    return fit.residual <= _RIVAL_RATIO * max(other.residual, _RESIDUAL_FLOOR)


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
        related_rules = (fit.rule.essence, *_iterate_reductions(fit.rule.essence))
        if undecayed_rule.essence not in related_rules and not fit.explains:
            other_fits.append(fit)
    values = {name: value for name, value in settings.values.items() if name != "decay"}
    runner_up = _find_runner_up(other_fits, data, replace(settings, values=values))
    decayed = apply_fit(decayed_fit, data)
    if runner_up is None or decayed.residual <= runner_up.residual:
        return decayed
    return runner_up


def _find_undetermined(fit: Fit, data: UpdateData, settings: KnownSettings) -> tuple[str, ...]:
    """Return hyperparameters that can be changed without a larger residual.

    Examples: beta2 in a single step, epsilon with large gradients.
    """
    names = (*fit.rule.hyperparameters, *fit.scaling.list_hyperparameters(data.n_steps))
    return tuple(name for name in names if _is_undetermined(name, fit, data, settings))


def _is_undetermined(name: str, fit: Fit, data: UpdateData, settings: KnownSettings) -> bool:
    if name not in HYPERPARAMETERS:
        return False
    if _is_limit_hidden(fit, data, settings) and name in ("clip", EPSILON.name):
        return True  # epsilon is known as a share of the limit only
    are_as_good = [
        _is_as_good_with(fit, name, value, data, settings)
        for value in _list_other_values(name, fit)
    ]
    # A rate near one that may be nearer to one as well is known in one direction only.
    return any(are_as_good) if _is_near_one(name, fit) else all(are_as_good)


def _is_limit_hidden(fit: Fit, data: UpdateData, settings: KnownSettings) -> bool:
    """Return whether a norm limit is below the norms of all steps, and so only a factor.

    The factor is part of SGD's learning rate, unless that is known; other rules do not depend on
    it.
    """
    if fit.rule.family == "SGD" and settings.rates is not None:
        return False
    if fit.scaling.kind != GLOBAL_NORM:
        return False
    return bool(fit.values["clip"] < data.norms.min())


def _list_other_values(name: str, fit: Fit) -> tuple[float, ...]:
    """Return the values with which the fit is repeated: half and double, or an alternative."""
    hyperparameter = HYPERPARAMETERS[name]
    value = fit.values[name]
    if _is_near_one(name, fit):
        return 0.5 * value, 1 - 0.5 * (1 - value)
    return (0.5 * value, 2.0 * value) if value else (hyperparameter.alternatives[0],)


def _is_near_one(name: str, fit: Fit) -> bool:
    """Return whether a number is a share of which the distance from one matters, as of betas."""
    return HYPERPARAMETERS[name].search_scale == "share" and fit.values[name] > 0.5


def _is_as_good_with(
    fit: Fit, name: str, value: float, data: UpdateData, settings: KnownSettings
) -> bool:
    """Return whether the fit with another value of one hyperparameter has no larger residual."""
    by_step = len(set(fit.rates)) > 1
    values, decay = {**fit.values, name: value}, fit.values["decay"]
    changed = fit_rule(Attempt(fit.rule, fit.scaling, data, values, settings.rates, decay, by_step))
    return changed.explains and _are_as_good(changed, fit)


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
