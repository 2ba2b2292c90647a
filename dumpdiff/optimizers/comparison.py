"""Comparison of the update rules of two runs, with their hyperparameters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ..model.verdict import Verdict
from ..rulebook import load_rules
from .fit import Fit
from .gradient_scaling import STEP_FACTORS, UNSCALED
from .groups import AMBIGUOUS, UNEXPLAINED, UNMOVED, ParameterGroup
from .history import History
from .refits import apply_fit
from .rule import (
    CORRECTION,
    DECAY,
    DECAY_KIND,
    EPSILON_PLACE,
    HYPERPARAMETERS,
    MOMENTUM_KIND,
    UNCORRECTED,
)
from .search import is_applicable
from .update_analysis import UpdateAnalysis

#: Names of differences in the order of their effect on the weights; all others come after them.
_NAMES_BY_EFFECT = (
    "rule",
    "frozen",
    CORRECTION,
    "learning-rate",
    "gradient-scaling",
    MOMENTUM_KIND,
    "momentum",
    "decay-kind",
    "weight-decay",
)

#: Relative difference up to which the hyperparameters of two runs are the same value, solved for
#: twice.
_TOLERANCE = 2e-3
#: The same for a decay, which is known less precisely.
_DECAY_TOLERANCE = 10 * _TOLERANCE
#: First elements that are compared to identify a parameter by its initial weights.
_COMPARED_ELEMENTS = 256
#: Tolerances of that comparison.
_WEIGHT_RTOL, _WEIGHT_ATOL = 1e-2, 1e-8


@dataclass(frozen=True)
class Difference:
    """One difference, and the parameters (names in the target) that have it."""

    name: str  #: bias-correction, weight-decay, learning-rate, ...
    target: str
    reference: str
    summary: str
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class UpdateComparison:
    """The update analyses of two runs, and their differences."""

    target: UpdateAnalysis
    reference: UpdateAnalysis
    verdict: Verdict
    differences: tuple[Difference, ...]
    n_paired: int  #: parameters of the target that are paired with one of the reference


def compare_updates(target: UpdateAnalysis, reference: UpdateAnalysis) -> UpdateComparison:
    """Compare the groups that have parameters in common.

    Parameters are paired by name, by canonical name, or by their initial weights.
    """
    pairs = _pair_parameters(target.data.histories, reference.data.histories)
    target_groups, reference_groups = _index_groups(target), _index_groups(reference)
    names_by_groups: dict[tuple[int, int], list[str]] = {}
    for target_name, reference_name in pairs.items():
        group_pair = (target_groups[target_name], reference_groups[reference_name])
        names_by_groups.setdefault(group_pair, []).append(target_name)
    differences: list[Difference] = []
    is_certain = bool(pairs)
    for (target_index, reference_index), names in names_by_groups.items():
        target_group = target.groups[target_index]
        reference_group = reference.groups[reference_index]
        states = (target_group.state, reference_group.state)
        if UNEXPLAINED in states:
            is_certain = False
            continue
        reference_names = [pairs[name] for name in names]
        if _groups_agree(target_group, reference_group, target, reference, names, reference_names):
            is_certain = is_certain and AMBIGUOUS not in states
            continue
        group_differences = _find_fewest_differences(target_group, reference_group)
        differences += [
            replace(difference, parameters=tuple(names)) for difference in group_differences
        ]
    differences += _compare_master_copies(target, reference)
    merged_differences = _merge_differences(differences)
    verdict: Verdict = "agree" if is_certain else "inconclusive"
    if merged_differences:
        verdict = "differ"
    return UpdateComparison(target, reference, verdict, merged_differences, len(pairs))


def _pair_parameters(
    target_histories: Sequence[History], reference_histories: Sequence[History]
) -> dict[str, str]:
    """Return target name -> reference name."""
    references = {history.name: history for history in reference_histories}
    names = _pair_names([history.name for history in target_histories], references)
    pairs = {}
    for history in target_histories:
        name = names.get(history.name)
        if name is not None and np.prod(references[name].shape) == np.prod(history.shape):
            pairs[history.name] = name
    paired_names = set(pairs.values())
    unpaired_targets = [history for history in target_histories if history.name not in pairs]
    unpaired_references = [
        history for history in reference_histories if history.name not in paired_names
    ]
    return pairs | _pair_by_weights(unpaired_targets, unpaired_references)


def _pair_by_weights(
    target_histories: Sequence[History], reference_histories: Sequence[History]
) -> dict[str, str]:
    """Return target name -> name of the only remaining reference with equal weights."""
    pairs = {}
    unpaired = list(reference_histories)
    for history in target_histories:
        matches = [other for other in unpaired if _have_equal_weights(history, other)]
        if len(matches) == 1:
            pairs[history.name] = matches[0].name
            unpaired.remove(matches[0])
    return pairs


def _pair_names(target_names: Sequence[str], reference_names: Collection[str]) -> dict[str, str]:
    """Return target name -> reference name, where the names or the canonical names are equal."""
    rules = load_rules()
    target_paths = rules.resolve_parameters(target_names)
    reference_paths = rules.resolve_parameters(reference_names)
    names_by_path = {path: name for name, path in reference_paths.items()}
    pairs = {}
    for name in target_names:
        path = target_paths.get(name, "")
        if name in reference_names:
            pairs[name] = name
        elif path in names_by_path:
            pairs[name] = names_by_path[path]
    return pairs


def _have_equal_weights(target: History, reference: History) -> bool:
    """Return whether the first weights are equal, and not all the same number."""
    if target.weights.shape[1] != reference.weights.shape[1]:
        return False
    target_weights = target.weights[0, :_COMPARED_ELEMENTS]
    reference_weights = reference.weights[0, :_COMPARED_ELEMENTS]
    are_close = np.allclose(target_weights, reference_weights, rtol=_WEIGHT_RTOL, atol=_WEIGHT_ATOL)
    return bool(np.ptp(target_weights) > 0) and are_close


def _index_groups(run: UpdateAnalysis) -> dict[str, int]:
    """Return parameter name -> index of its group."""
    return {name: index for index, group in enumerate(run.groups) for name in group.parameters}


def _groups_agree(
    target_group: ParameterGroup,
    reference_group: ParameterGroup,
    target: UpdateAnalysis,
    reference: UpdateAnalysis,
    target_names: Sequence[str],
    reference_names: Sequence[str],
) -> bool:
    """Return whether the fit of one side explains the updates of the other."""
    if UNMOVED in (target_group.state, reference_group.state):
        return target_group.state == reference_group.state
    if _has_other_decay(target_group, reference_group):  # which rounding hides in each step
        return False
    if _explains_run(reference_group.fit, target, target_names):
        return True
    return _explains_run(target_group.fit, reference, reference_names)


def _explains_run(fit: Fit | None, run: UpdateAnalysis, names: Sequence[str]) -> bool:
    if fit is None:
        return False
    if len(fit.rates) != run.n_steps:
        if len(set(fit.rates)) > 1 or fit.scaling.kind == STEP_FACTORS:
            return False
        fit = replace(fit, rates=(fit.rates[0],) * run.n_steps)
    data = run.data.select(names)
    return is_applicable(fit.rule, data) and apply_fit(fit, data).explains


def _find_fewest_differences(target: ParameterGroup, reference: ParameterGroup) -> list[Difference]:
    """Return the differences of two groups.

    If several rules explain a group, the pair of rules with the fewest differences is used.
    """
    if UNMOVED in (target.state, reference.state):
        target_text = "did not move" if target.state == UNMOVED else "moved"
        reference_text = "did not move" if reference.state == UNMOVED else "moved"
        text = f"{target_text} in the target, {reference_text} in the reference"
        return [Difference("frozen", target_text, reference_text, text, ())]
    undetermined = {*target.undetermined, *reference.undetermined}
    if DECAY.name in undetermined and _has_other_decay(target, reference):
        undetermined.remove(DECAY.name)
    target_fits = [fit for fit in (target.fit, *target.equivalent_fits) if fit is not None]
    reference_fits = [fit for fit in (reference.fit, *reference.equivalent_fits) if fit is not None]
    fit_pairs = list(product(target_fits, reference_fits))
    differences = min((_list_differences(*fits, undetermined) for fits in fit_pairs), key=len)
    if differences:
        return differences
    # The groups do not agree, so they differ in what only one side determines.
    undetermined = set(target.undetermined) & set(reference.undetermined)
    return min((_list_differences(*fits, undetermined) for fits in fit_pairs), key=len)


def _has_other_decay(first: ParameterGroup, second: ParameterGroup) -> bool:
    """Return whether only one group's decay is known, and the other's cannot be as large."""
    return _is_decay_beyond(first, second) or _is_decay_beyond(second, first)


def _is_decay_beyond(group: ParameterGroup, other: ParameterGroup) -> bool:
    """Return whether a group decays by more than the other, of unknown decay, can."""
    if group.fit is None or DECAY.name in group.undetermined:
        return False
    return DECAY.name in other.undetermined and group.fit.values[DECAY.name] > other.largest_decay


def _list_differences(
    target: Fit, reference: Fit, undetermined: Collection[str]
) -> list[Difference]:
    """Return the differences of two fits: the rule, then its hyperparameters."""
    if target.rule.family != reference.rule.family:
        return [_make_difference("rule", target.rule.name, reference.rule.name)]
    return [
        *_compare_aspects(target, reference, undetermined),
        *_compare_hyperparameters(target, reference, undetermined),
        *_compare_decay(target, reference, undetermined),
        *_compare_rates(target, reference),
        *_compare_scaling(target, reference, undetermined),
    ]


def _compare_aspects(
    target: Fit, reference: Fit, undetermined: Collection[str]
) -> list[Difference]:
    differences = []
    reference_aspects = reference.rule.aspects
    for aspect, description in target.rule.aspects.items():
        other_description = reference_aspects.get(aspect, description)
        is_unknown_decay = aspect == DECAY_KIND and DECAY.name in undetermined
        if description == other_description or is_unknown_decay:
            continue
        if aspect == CORRECTION:
            differences.append(_describe_correction(target, reference))
        elif aspect != EPSILON_PLACE:
            differences.append(_make_difference(aspect, description, other_description))
        elif "epsilon" not in undetermined:
            effect = "; this matters only where gradients are near epsilon"
            differences.append(_make_difference(aspect, description, other_description, effect))
    return differences


def _compare_hyperparameters(
    target: Fit, reference: Fit, undetermined: Collection[str]
) -> list[Difference]:
    differences = []
    names = dict.fromkeys((*target.rule.hyperparameters, *reference.rule.hyperparameters))
    for name in names:
        if name == DECAY.name or name in undetermined:
            continue
        values = (target.values.get(name), reference.values.get(name))
        if values[0] is None or values[1] is None or _are_close(values[0], values[1]):
            continue
        label = HYPERPARAMETERS[name].label
        texts = [f"{label} {value:.4g}" for value in values]
        differences.append(_make_difference(name, *texts))
    return differences


def _compare_decay(target: Fit, reference: Fit, undetermined: Collection[str]) -> list[Difference]:
    if DECAY.name in undetermined:
        return []
    decays = (target.values["decay"], reference.values["decay"])
    if _are_close(*decays, _DECAY_TOLERANCE):
        return []
    texts = [f"weight decay {decay:.3g}" if decay else "no weight decay" for decay in decays]
    return [_make_difference("weight-decay", *texts)]


def _describe_correction(target: Fit, reference: Fit) -> Difference:
    """Return the difference between a rule with bias correction and one without.

    Without it, step t is (1 - beta1^t) / sqrt(1 - beta2^t) times as long.
    """
    is_target_uncorrected = target.rule.aspects[CORRECTION] == UNCORRECTED
    uncorrected = target if is_target_uncorrected else reference
    beta1, beta2 = uncorrected.values["beta1"], uncorrected.values["beta2"]
    texts = [
        "no bias correction (as MindSpore AdamWeightDecay)",
        "bias correction (as AdamW)",
    ]
    if not is_target_uncorrected:
        texts.reverse()
    steps = np.arange(1, len(uncorrected.rates) + 1)
    ratios = (1 - beta1**steps) / np.sqrt(1 - beta2**steps)
    ratio_texts = [f"{ratio:.3g}" for ratio in ratios]
    effect = (
        f": without it the steps are {', '.join(ratio_texts)} times as long; losses agree at "
        "step 1, before any update, and diverge from step 2 on"
    )
    return _make_difference(CORRECTION, texts[0], texts[1], effect)


def _compare_rates(target: Fit, reference: Fit) -> list[Difference]:
    """Compare the learning rates of the steps that both runs have."""
    n_shared = min(len(target.rates), len(reference.rates))
    rate_pairs = zip(target.rates[:n_shared], reference.rates[:n_shared], strict=True)
    if all(_are_close(*rates) for rates in rate_pairs):
        return []
    texts = [f"learning rate {format_rates(fit)}" for fit in (target, reference)]
    return [_make_difference("learning-rate", *texts)]


def _compare_scaling(
    target: Fit, reference: Fit, undetermined: Collection[str]
) -> list[Difference]:
    """Compare how gradients were scaled."""
    kinds = (target.scaling.kind, reference.scaling.kind)
    if kinds == (UNSCALED, UNSCALED):
        return []
    limits = (target.values.get("clip", 0.0), reference.values.get("clip", 0.0))
    is_same_limit = "clip" in undetermined or _are_close(*limits)
    if kinds[0] == kinds[1] and is_same_limit:
        return []
    texts = [format_scaling(fit, undetermined) for fit in (target, reference)]
    return [_make_difference("gradient-scaling", *texts)]


def format_rates(fit: Fit) -> str:
    """Return one learning rate if all are equal, else all of them."""
    rates = fit.rates[:1] if len(set(fit.rates)) == 1 else fit.rates
    return ", ".join(f"{rate:.4g}" for rate in rates)


def format_scaling(fit: Fit, undetermined: Collection[str] = ()) -> str:
    """Return how the gradients were scaled after they were recorded."""
    kind = fit.scaling.kind
    if kind == UNSCALED:
        return "gradients as recorded"
    if "clip" in undetermined:
        return f"gradients clipped by {kind} at every step, to an unknown limit"
    if "clip" in fit.values:
        return f"gradients clipped by {kind} to {fit.values['clip']:.4g}"
    factors = [value for name, value in fit.values.items() if name.startswith("factor")]
    if kind == STEP_FACTORS:
        ratio = " : ".join(f"{factor:.4g}" for factor in factors)
        return f"gradients times factors in the ratio 1 : {ratio}"
    text = f"gradients times {factors[0]:.4g}"
    if fit.rule.family == "SGD":
        text += f" (or the learning rate was {fit.rates[0] * factors[0]:.4g})"
    return text


def _make_difference(name: str, target: str, reference: str, effect: str = "") -> Difference:
    return Difference(name, target, reference, f"{target} against {reference}{effect}", ())


def _are_close(first: float, second: float, tolerance: float = _TOLERANCE) -> bool:
    return bool(abs(first - second) <= tolerance * max(abs(first), abs(second)))


def _compare_master_copies(target: UpdateAnalysis, reference: UpdateAnalysis) -> list[Difference]:
    """Return the difference if only one side has a float32 master copy."""
    target_answers = _collect_master_answers(target)
    reference_answers = _collect_master_answers(reference)
    is_unanimous = len(target_answers) == len(reference_answers) == 1
    if not is_unanimous or target_answers == reference_answers:
        return []
    texts = ["a float32 master copy", "no master copy"]
    if True not in target_answers:
        texts.reverse()
    return [_make_difference("master-weights", *texts)]


def _collect_master_answers(run: UpdateAnalysis) -> set[bool]:
    """Return whether groups have a master copy; groups whose data cannot tell are skipped."""
    answers = {shares.has_master for shares in run.master_copies.values()}
    return {answer for answer in answers if answer is not None}


def _merge_differences(differences: Sequence[Difference]) -> tuple[Difference, ...]:
    """Merge differences with the same text, and sort them by their effect."""
    merged: dict[str, Difference] = {}
    for difference in differences:
        earlier = merged.get(difference.summary)
        if earlier is None:
            merged[difference.summary] = difference
        else:
            names = (*earlier.parameters, *difference.parameters)
            merged[difference.summary] = replace(difference, parameters=names)
    return tuple(sorted(merged.values(), key=_rank_difference))


def _rank_difference(difference: Difference) -> int:
    if difference.name in _NAMES_BY_EFFECT:
        return _NAMES_BY_EFFECT.index(difference.name)
    return len(_NAMES_BY_EFFECT)
