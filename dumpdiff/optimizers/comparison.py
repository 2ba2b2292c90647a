"""Two runs: did the same rule with the same numbers move both, and if not, what is different."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ..model.verdict import Verdict
from ..rulebook import load_rules
from .gradient_scaling import STEP_FACTORS, UNSCALED
from .fit import Fit
from .groups import AMBIGUOUS, UNMOVED, UNEXPLAINED, ParameterGroup, apply_fit
from .history import History
from .rule import CORRECTION, DECAY, EPSILON_PLACE, MOMENTUM_KIND, HYPERPARAMETERS, UNCORRECTED
from .update_analysis import UpdateAnalysis
from .search import is_applicable

#: Names of differences, what moves the weights furthest first; the rest after them.
_WEIGHTY = ("rule", "frozen", CORRECTION, "learning-rate", "gradient-scaling", MOMENTUM_KIND, "momentum", "decay-kind",
            "weight-decay")  # fmt: skip

_NEAR = 2e-3  #: relative; two runs' numbers nearer than this are the same number solved for twice
_COMPARED = 256  #: first elements by which weights of two runs are known to be the same parameter


@dataclass(frozen=True)
class Difference:
    """One thing that is different, and for which parameters (as the target calls them)."""

    name: str  #: bias-correction, weight-decay, learning-rate, ...
    target: str
    reference: str
    text: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class UpdateComparison:
    """What two runs did, side by side."""

    target: UpdateAnalysis
    reference: UpdateAnalysis
    verdict: Verdict
    differences: tuple[Difference, ...]
    n_paired: int  #: parameters of the target that the reference has too


def compare_updates(target: UpdateAnalysis, reference: UpdateAnalysis) -> UpdateComparison:
    """Parameters are paired by name or by what they held at first; groups are compared where they share some."""
    partners = _partners(target.data.histories, reference.data.histories)
    cells: dict[tuple[int, int], list[str]] = {}
    ours, theirs = _places(target), _places(reference)
    for name, partner in partners.items():
        cells.setdefault((ours[name], theirs[partner]), []).append(name)
    found: list[Difference] = []
    sure = bool(partners)
    for (i, j), names in cells.items():
        one, other = target.groups[i], reference.groups[j]
        if UNEXPLAINED in (one.state, other.state):
            sure = False
            continue
        if _alike(one, other, target, reference, names, [partners[name] for name in names]):
            sure = sure and AMBIGUOUS not in (one.state, other.state)
            continue
        found += [
            replace(difference, parameters=tuple(names)) for difference in _fewest(one, other)
        ]
    found += _copies(target, reference)
    merged = _merged(found)
    verdict: Verdict = "agree" if sure else "inconclusive"
    if merged:
        verdict = "differ"
    return UpdateComparison(target, reference, verdict, merged, len(partners))


def _partners(ours: Sequence[History], theirs: Sequence[History]) -> dict[str, str]:
    rules = load_rules()
    canonical = {path: name for name, path in rules.resolve_parameters(h.name for h in theirs).items()}
    own = {history.name: history for history in theirs}
    paths = rules.resolve_parameters(h.name for h in ours)
    found = {}
    for history in ours:
        partner = (
            history.name if history.name in own else canonical.get(paths.get(history.name, ""), "")
        )
        if partner and np.prod(own[partner].shape) == np.prod(history.shape):
            found[history.name] = partner
    free = [h for h in theirs if h.name not in found.values()]
    for history in ours:
        if history.name not in found:
            alike = [
                h
                for h in free
                if h.weights.shape[1] == history.weights.shape[1] and _equal(history, h)
            ]
            if len(alike) == 1:
                found[history.name] = alike[0].name
                free.remove(alike[0])
    return found


def _equal(one: History, other: History) -> bool:
    first, second = (h.weights[0, :_COMPARED] for h in (one, other))
    return bool(np.ptp(first) > 0 and np.allclose(first, second, rtol=1e-2, atol=1e-8))


def _places(run: UpdateAnalysis) -> dict[str, int]:
    return {name: at for at, group in enumerate(run.groups) for name in group.parameters}


def _alike(
    one: ParameterGroup,
    other: ParameterGroup,
    target: UpdateAnalysis,
    reference: UpdateAnalysis,
    ours: Sequence[str],
    theirs: Sequence[str],
) -> bool:
    """One side's rule with its numbers explains what the other did: they cannot be told apart."""
    if UNMOVED in (one.state, other.state):
        return one.state == other.state
    return _explains(other.fit, target, ours) or _explains(one.fit, reference, theirs)


def _explains(fit: Fit | None, run: UpdateAnalysis, names: Sequence[str]) -> bool:
    if fit is None:
        return False
    if len(fit.rates) != run.n_steps:
        if len(set(fit.rates)) > 1 or fit.scaling.kind == STEP_FACTORS:
            return False
        fit = replace(fit, rates=(fit.rates[0],) * run.n_steps)
    data = run.data.select(names)
    return is_applicable(fit.rule, data) and apply_fit(fit, data).explains


def _fewest(one: ParameterGroup, other: ParameterGroup) -> list[Difference]:
    """What is different between two groups; where several rules explain one, the readings that differ least."""
    if UNMOVED in (one.state, other.state):
        said = ["did not move" if group.state == UNMOVED else "moved" for group in (one, other)]
        return [
            Difference(
                "frozen",
                said[0],
                said[1],
                f"{said[0]} in the target, {said[1]} in the reference",
                (),
            )
        ]
    readings = product((one.fit, *one.equivalent_fits), (other.fit, *other.equivalent_fits))
    unseen = {*one.undetermined, *other.undetermined}
    all_told = [_told(a, b, unseen) for a, b in readings if a is not None and b is not None]
    return min(all_told, key=len)


def _told(one: Fit, other: Fit, unseen: set[str]) -> list[Difference]:
    """Rule first, then its numbers."""
    if one.rule.family != other.rule.family:
        return [_said("rule", one.rule.name, other.rule.name)]
    found = []
    aspects, others = one.rule.aspects, other.rule.aspects
    for aspect in [name for name in aspects if name in others and aspects[name] != others[name]]:
        if aspect == CORRECTION:
            found.append(_correction(one, other))
        elif aspect != EPSILON_PLACE or "epsilon" not in unseen:
            effect = (
                "; shows only where gradients are near epsilon" if aspect == EPSILON_PLACE else ""
            )
            found.append(_said(aspect, aspects[aspect], others[aspect], effect))
    for name in dict.fromkeys((*one.rule.hyperparameters, *other.rule.hyperparameters)):
        pair = one.values.get(name), other.values.get(name)
        if name != DECAY.name and name not in unseen and None not in pair and not _near(*pair):  # type: ignore[arg-type]
            found.append(_said(name, *(f"{HYPERPARAMETERS[name].label} {value:.4g}" for value in pair)))
    decays_by = one.values["decay"], other.values["decay"]
    if not _near(*decays_by, 10 * _NEAR):
        found.append(_said("weight-decay", *(f"weight decay {value:.3g}" if value else "no weight decay"
                                             for value in decays_by)))  # fmt: skip
    return [*found, *_scaling(one, other, unseen)]


def _correction(one: Fit, other: Fit) -> Difference:
    """How much longer the steps without correction are: (1 - beta1^t) / sqrt(1 - beta2^t) of those with it."""
    bare = one if one.rule.aspects[CORRECTION] == UNCORRECTED else other
    beta1, beta2 = bare.values["beta1"], bare.values["beta2"]
    lengths = [(1 - beta1**t) / np.sqrt(1 - beta2**t) for t in range(1, len(bare.rates) + 1)]
    said = [
        "no bias correction (as MindSpore AdamWeightDecay)"
        if fit is bare
        else "bias correction (as AdamW)"
        for fit in (one, other)
    ]
    times = ", ".join(f"{length:.3g}" for length in lengths)
    text = (
        f"{said[0]} against {said[1]}: without it the steps are {times} times as long; "
        "losses agree at step 1, before any update, and part from step 2 on"
    )
    return Difference(CORRECTION, said[0], said[1], text, ())


def _scaling(one: Fit, other: Fit, unseen: Collection[str]) -> list[Difference]:
    """Learning rates, and what was done to the gradients."""
    found = []
    shared = min(len(one.rates), len(other.rates))
    if any(not _near(a, b) for a, b in zip(one.rates[:shared], other.rates[:shared], strict=True)):
        found.append(
            _said("learning-rate", *(f"learning rate {format_rates(fit)}" for fit in (one, other)))
        )
    kinds = one.scaling.kind, other.scaling.kind
    if kinds != (UNSCALED, UNSCALED):
        limits = [fit.values.get("clip", 0.0) for fit in (one, other)]
        if kinds[0] != kinds[1] or ("clip" not in unseen and not _near(*limits)):
            found.append(_said("gradient-scaling", *(format_scaling(fit, unseen) for fit in (one, other))))
    return found


def format_rates(fit: Fit) -> str:
    """One learning rate, or all of them."""
    return ", ".join(
        f"{rate:.4g}" for rate in (fit.rates[:1] if len(set(fit.rates)) == 1 else fit.rates)
    )


def format_scaling(fit: Fit, unseen: Collection[str] = ()) -> str:
    """What was done to the gradients after they were recorded."""
    kind = fit.scaling.kind
    if kind == UNSCALED:
        return "gradients as recorded"
    if "clip" in unseen:
        return f"gradients clipped by {kind} at every step, to a limit that does not show"
    if "clip" in fit.values:
        return f"gradients clipped by {kind} to {fit.values['clip']:.4g}"
    factors = [value for name, value in fit.values.items() if name.startswith("factor")]
    if kind == STEP_FACTORS:
        return f"gradients times factors in the ratio 1 : {' : '.join(f'{factor:.4g}' for factor in factors)}"
    other = (
        f" (or the learning rate was {fit.rates[0] * factors[0]:.4g})"
        if fit.rule.family == "SGD"
        else ""
    )
    return f"gradients times {factors[0]:.4g}{other}"


def _said(name: str, one: str, other: str, effect: str = "") -> Difference:
    return Difference(name, one, other, f"{one} against {other}{effect}", ())


def _near(one: float, other: float, tolerance: float = _NEAR) -> bool:
    return bool(abs(one - other) <= tolerance * max(abs(one), abs(other)))


def _copies(target: UpdateAnalysis, reference: UpdateAnalysis) -> list[Difference]:
    """A master copy on one side alone."""

    def masters(run: UpdateAnalysis) -> Mapping[bool, int]:
        told = [found.has_master for found in run.master_copies.values() if found.has_master is not None]
        return {has: told.count(has) for has in set(told)}

    ours, theirs = masters(target), masters(reference)
    if len(ours) == len(theirs) == 1 and set(ours) != set(theirs):
        said = [
            "a float32 master copy" if True in has else "no master copy" for has in (ours, theirs)
        ]
        return [_said("master-weights", *said)]
    return []


def _merged(found: Sequence[Difference]) -> tuple[Difference, ...]:
    """The same said of several groups is said once."""
    together: dict[str, Difference] = {}
    for difference in found:
        known = together.get(difference.text)
        names = (*known.parameters, *difference.parameters) if known else difference.parameters
        together[difference.text] = replace(difference, parameters=names)
    return tuple(sorted(together.values(), key=lambda difference: _order(difference.name)))


def _order(name: str) -> int:
    """What moves weights furthest first."""
    return _WEIGHTY.index(name) if name in _WEIGHTY else len(_WEIGHTY)
