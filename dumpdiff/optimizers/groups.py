"""Parameters that were moved by the same rule with the same numbers, and what can be said of each such group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .gradient_scaling import GLOBAL_NORM, GradientScaling
from .fit import Attempt, UpdateData, Fit, fit_rule
from .history import SEARCH_SAMPLE_SIZE, History
from .rule import NO_DECAY, HYPERPARAMETERS, Rule
from .search import FINE, RULES, KnownSettings, is_applicable, find_candidates
from .search import find_best_fit as best_of

EXPLAINED, AMBIGUOUS, UNEXPLAINED, UNMOVED = "explained", "ambiguous", "unexplained", "did not move"

#: Of two rules that explain the data, the one that leaves so many times more is no rival; with a floor, since
#: what both leave may be no more than the framework's own rounding of its constants.
_RIVAL, _FLOOR = 3.0, 2e-6

_MOST = 32  #: groups that are searched for; a run has two or three, with a learning rate for each layer one each
_OTHERS = 8  #: other rules that are fitted to all of a group, to name the next best
_LOST = 2  #: parameters that no rule explains after which the search is given up for those that are left


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters moved alike."""

    parameters: tuple[str, ...]
    state: str  #: EXPLAINED, AMBIGUOUS, UNEXPLAINED or STILL
    fit: Fit | None  #: the rule; the nearest where none explains; None where nothing moved
    runner_up: Fit | None = None  #: the best of the other rules
    equivalent_fits: tuple[Fit, ...] = ()  #: other rules that explain these data as well
    undetermined: tuple[str, ...] = ()  #: numbers of the rule of which these data say nothing


def group_parameters(data: UpdateData, known: KnownSettings, rules: Sequence[Rule] = RULES) -> tuple[ParameterGroup, ...]:
    """Groups of all parameters, the largest first; every parameter is in one."""
    rest = [history for history in data.histories if history.sample.updates.any()]
    still = tuple(history.name for history in data.histories if not history.sample.updates.any())
    groups: list[ParameterGroup] = []
    lost: list[tuple[History, Fit]] = []
    hint: Fit | None = None
    while rest:
        rest.sort(key=_telling, reverse=True)
        seed = rest[0]
        searched = len(groups) < _MOST and len(lost) < _LOST
        found = _found(replace(data, histories=(seed,)), known, rules, hint) if searched else []
        if not found or not found[0].explains:
            nearest = found[0] if found else lost[-1][1] if lost else hint
            if nearest is not None:
                lost.append((seed, nearest))
            rest.remove(seed)
            continue
        group, members = _grown(found, rest, data, known)
        rest = [history for history in rest if history not in members]
        hint = hint or group.fit
        decayed, bare = _undecayed(group, found, members, rest, data, known)
        groups += [decayed] if bare is None else [decayed, bare]
        rest = [history for history in rest if bare is None or history.name not in bare.parameters]
    groups = [*_merged(groups, data), *_unexplained(lost)]
    groups.sort(key=lambda group: -len(group.parameters))
    return (*groups, ParameterGroup(still, UNMOVED, None)) if still else tuple(groups)


def apply_fit(known: Fit, data: UpdateData) -> Fit:
    """The same rule with the same numbers, nothing solved for, on other data."""
    decay = known.values["decay"]
    return fit_rule(Attempt(known.rule, known.scaling, data, known.values, known.rates, decay))


def _merged(groups: Sequence[ParameterGroup], data: UpdateData) -> list[ParameterGroup]:
    """A group whose numbers explain another of the same rule too takes its parameters."""
    kept: list[ParameterGroup] = []
    for group in groups:
        for at, other in enumerate(kept):
            if (
                group.fit is None
                or other.fit is None
                or group.fit.rule.essence != other.fit.rule.essence
            ):
                continue
            together = data.select(other.parameters + group.parameters)
            fits = [
                one
                for one in (apply_fit(other.fit, together), apply_fit(group.fit, together))
                if one.explains
            ]
            if fits:
                kept[at] = replace(
                    other, parameters=other.parameters + group.parameters, fit=fits[0]
                )
                break
        else:
            kept.append(group)
    return kept


def _telling(history: History) -> tuple[int, float]:
    """Prefer many elements that moved, then those that moved far beyond rounding."""
    few = history.sample
    moving = int(np.count_nonzero(few.updates.any(axis=0)))
    noise = float(np.linalg.norm(few.noise))
    return min(moving, SEARCH_SAMPLE_SIZE), float(np.linalg.norm(few.updates)) / noise if noise else np.inf


def _found(data: UpdateData, known: KnownSettings, rules: Sequence[Rule], hint: Fit | None) -> list[Fit]:
    """Candidates for one parameter; the numbers of a group that is already known are tried first."""
    if hint is not None:
        kept = {name: value for name, value in hint.values.items() if name != "decay"}
        found = find_candidates(data, replace(known, values={**kept, **known.values}), rules)
        if found[0].explains:
            return found
    return find_candidates(data, known, rules)


def _grown(
    found: Sequence[Fit], rest: Sequence[History], data: UpdateData, known: KnownSettings
) -> tuple[ParameterGroup, list[History]]:
    """The group of the rules that explain most of the other parameters too."""
    seed, others = rest[0], rest[1:]
    good = select_equivalent_fits(found)
    members = [_joined(one, seed, others, data, known) for one in _minimal(good, data)]
    most = max(len(histories) for _, histories in members)
    # A rule that explains fewer parameters with the same numbers than another is no rival of it
    (best, histories), *rivals = [
        (one, histories) for one, histories in members if len(histories) == most
    ]
    together = replace(data, histories=tuple(histories))
    final = _again(best, together, known)
    named = {one.rule.essence for one in good}
    group = ParameterGroup(
        tuple(history.name for history in histories),
        AMBIGUOUS if rivals else EXPLAINED if final.explains else UNEXPLAINED,
        final,
        _runner_up([one for one in found if one.rule.essence not in named], together, known),
        tuple(_again(one, together, known) for one, _ in rivals),
        _unseen(final, together, known),
    )
    return group, histories


def _joined(
    one: Fit, seed: History, others: Sequence[History], data: UpdateData, known: KnownSettings
) -> tuple[Fit, list[History]]:
    """The parameters that are explained together with ``seed``, learning rate and linear decay solved for on both.

    Where one is not, the other numbers may be too coarse (a weight decay that hardly shows in small weights): they
    are searched for once more, on both.
    """

    def alike(fitted: Fit) -> list[History]:
        pairs = [(h, replace(data, histories=(thin, h))) for h in others]
        return [
            h
            for h, pair in pairs
            if is_applicable(one.rule, pair) and _again(fitted, pair, known).explains
        ]

    thin = seed.take_search_sample() if one.rule.elementwise else seed
    members = alike(one)
    apart = next((h for h in others if h not in members), None)
    if apart is not None and one.rule.hyperparameters and one.rule.elementwise:
        by_step = len(set(one.rates)) > 1
        again = best_of(
            one.rule, one.scaling, by_step, replace(data, histories=(thin, apart)).take_search_sample(), known
        )
        # Usual numbers are not given up for odd ones that make one more parameter fit
        if (
            again.explains
            and _cost(again) <= _cost(one)
            and len(better := alike(again)) > len(members)
        ):
            one, members = again, better
    return one, [seed, *members]


def select_equivalent_fits(found: Sequence[Fit]) -> list[Fit]:
    """All that explain the data and leave hardly more than the one that leaves least; the most believable first."""
    explaining = [one for one in found if one.explains]
    least = min(one.residual for one in explaining)
    good = [one for one in explaining if one.residual <= _RIVAL * max(least, _FLOOR)]
    return sorted(good, key=lambda one: (_cost(one) + one.rule.complexity, one.residual))


def _cost(one: Fit) -> int:
    """How many numbers had to be chosen for it: learning rates, and what is not as usual."""
    unusual = sum(
        name in HYPERPARAMETERS and value != HYPERPARAMETERS[name].default for name, value in one.values.items()
    )
    return unusual + len(set(one.rates)) + (one.scaling != GradientScaling())


def _minimal(good: Sequence[Fit], data: UpdateData) -> list[Fit]:
    """One fit for each essentially different rule; none that is another with a decay or momentum of zero."""
    first: dict[Rule, Fit] = {}
    for one in good:
        first.setdefault(one.rule.essence, one)
    cheapest = min(_cost(one) for one in first.values())
    shown = data.n_steps if data.histories[0].first_moment is None else data.n_steps + 1
    kept = []
    for essence, one in first.items():
        simpler = [
            rule.essence
            for rule in _ancestors(essence)
            if essence.steps_to_identify <= shown or rule.steps_to_identify > shown
        ]
        if not any(rule in first for rule in simpler) and _cost(one) <= cheapest + 1:
            kept.append(one)
    return kept


def _ancestors(rule: Rule) -> Iterable[Rule]:
    for simpler in rule.reductions:
        yield simpler
        yield from _ancestors(simpler)


def _again(one: Fit, data: UpdateData, known: KnownSettings) -> Fit:
    """Learning rate and linear decay solved for on all of the group; as it was if that explains less."""
    by_step = len(set(one.rates)) > 1
    decay = known.values.get("decay")
    again = fit_rule(Attempt(one.rule, one.scaling, data, one.values, known.rates, decay, by_step))
    best = min((apply_fit(one, data), again), key=lambda fitted: fitted.excess)
    return _rounded(best, data) if any(history.is_narrow for history in data.histories) else best


def _rounded(one: Fit, data: UpdateData) -> Fit:
    """Rounding to a narrow type hides a range of learning rates: of those that explain as well, the roundest."""
    for digits in range(4):
        rates = tuple(float(f"{rate:.{digits}e}") for rate in one.rates)
        rounded = apply_fit(replace(one, rates=rates), data)
        if rounded.excess <= max(one.excess, FINE):
            return rounded
    return one


def _runner_up(others: Sequence[Fit], data: UpdateData, known: KnownSettings) -> Fit | None:
    """The best of the other rules, on all parameters of the group (of large ones, a sample)."""
    fitting = [one for one in others if is_applicable(one.rule, data)][:_OTHERS]
    thin = data.take_search_sample()
    again = (_again(one, thin if one.rule.elementwise else data, known) for one in fitting)
    return min(again, key=lambda one: one.residual, default=None)


def _undecayed(
    group: ParameterGroup,
    found: Sequence[Fit],
    members: Sequence[History],
    rest: Sequence[History],
    data: UpdateData,
    known: KnownSettings,
) -> tuple[ParameterGroup, ParameterGroup | None]:
    """The group, and the parameters that its rule moved without its decay, as is usual for biases and norms.

    Weights near zero hardly decay: those of the group that show none go with the others of as many dimensions.
    """
    best = group.fit
    if best is None or best.rule.decay == NO_DECAY:
        return group, None
    plain = replace(best, rule=best.rule.without_decay, values={**best.values, "decay": 0.0})

    def bare(histories: Sequence[History]) -> list[History]:
        alone = [(h, replace(data, histories=(h,))) for h in histories]
        return [h for h, one in alone if is_applicable(plain.rule, one) and apply_fit(plain, one).explains]

    undecayed, either = bare(rest), bare(members)
    shown = {len(history.shape) for history in members if history not in either}
    moved_on = [
        h
        for h in either
        if len(h.shape) not in shown and len(h.shape) in {len(u.shape) for u in undecayed}
    ]
    if not undecayed:
        return group, None
    moved_on = [] if len(moved_on) == len(members) else moved_on
    together = replace(data, histories=(*undecayed, *moved_on))
    own = plain.rule.essence
    others = [
        one
        for one in found
        if own not in (one.rule.essence, *_ancestors(one.rule.essence)) and not one.explains
    ]
    bare_known = replace(
        known, values={name: value for name, value in known.values.items() if name != "decay"}
    )
    rivals = [apply_fit(best, together), _runner_up(others, together, bare_known)]
    runner_up = min((one for one in rivals if one is not None), key=lambda one: one.residual)
    names = tuple(history.name for history in together.histories)
    left = tuple(name for name in group.parameters if name not in names)
    cousins = ParameterGroup(
        names, group.state, apply_fit(plain, together), runner_up, (), _unseen(plain, together, known)
    )
    return replace(group, parameters=left), cousins


def _unseen(best: Fit, data: UpdateData, known: KnownSettings) -> tuple[str, ...]:
    """Numbers of the rule that may be another and leave no more: a beta2 in one step, an epsilon beside large ones."""
    names = [
        name for name in (*best.rule.hyperparameters, *best.scaling.list_hyperparameters(data.n_steps)) if name in HYPERPARAMETERS
    ]
    return tuple(
        name
        for name in names
        if _hidden(name, best, data, known)
        or all(_leaves_no_more(best, name, value, data, known) for value in _others(name, best))
    )


def _hidden(name: str, best: Fit, data: UpdateData, known: KnownSettings) -> bool:
    """A limit below the norms of all steps is part of SGD's learning rate, and nothing at all to the other rules."""
    rated = best.rule.family == "SGD" and known.rates is not None
    return (
        name == "clip"
        and best.scaling.kind == GLOBAL_NORM
        and best.values[name] < data.norms.min()
        and not rated
    )


def _others(name: str, best: Fit) -> tuple[float, ...]:
    number = HYPERPARAMETERS[name]
    now = best.values[name]
    if number.search_scale == "share":
        return 0.5 * now, 1 - 0.5 * (1 - now)
    return (0.5 * now, 2.0 * now) if now else (number.alternatives[0],)


def _leaves_no_more(best: Fit, name: str, value: float, data: UpdateData, known: KnownSettings) -> bool:
    by_step = len(set(best.rates)) > 1
    numbers, decay = {**best.values, name: value}, best.values["decay"]
    other = fit_rule(Attempt(best.rule, best.scaling, data, numbers, known.rates, decay, by_step))
    return other.explains and other.residual <= _RIVAL * max(best.residual, _FLOOR)


def _unexplained(lost: Sequence[tuple[History, Fit]]) -> list[ParameterGroup]:
    """One group for all that no rule explains, with the rule that is nearest for most of them."""
    if not lost:
        return []
    rules = [nearest.rule for _, nearest in lost]
    nearest = next(one for _, one in lost if one.rule == max(rules, key=rules.count))
    return [ParameterGroup(tuple(history.name for history, _ in lost), UNEXPLAINED, nearest)]
