"""Texts about update rules: the result in one line, and a rule with its hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..model.formatting import format_number
from .comparison import UpdateComparison, format_rates, format_scaling
from .fit import Fit
from .gradient_scaling import UNSCALED
from .groups import AMBIGUOUS, EXPLAINED, UNEXPLAINED, UNMOVED
from .rule import HYPERPARAMETERS
from .update_analysis import UpdateAnalysis


def format_headline(result: UpdateAnalysis | UpdateComparison) -> str:
    """Return the result in one line."""
    if isinstance(result, UpdateAnalysis):
        return _format_run(result)
    if result.verdict == "agree":
        return f"same rule: {_format_run(result.target)}"
    if result.verdict == "differ":
        n_others = len(result.differences) - 1
        headline = f"different rules: {result.differences[0].summary}"
        return f"{headline} (and {n_others} more)" if n_others else headline
    if not result.n_paired:
        return "inconclusive: no parameter of one run could be paired with one of the other"
    for side, run in list_sides(result):
        if run.state != EXPLAINED:
            return _format_inconclusive(side, run)
    return _format_inconclusive("target", result.target)


def _format_inconclusive(side: str, run: UpdateAnalysis) -> str:
    return f"inconclusive: {side}: {_format_run(run).removeprefix('inconclusive: ')}"


def _format_run(run: UpdateAnalysis) -> str:
    """Return the rules of one run, or why they are unknown."""
    if run.state == UNMOVED:
        return "inconclusive: no weight moved"
    if run.state == UNEXPLAINED:
        return _format_unexplained(run)
    if run.state == AMBIGUOUS:
        return _format_ambiguous(run)
    texts = []
    for group in run.groups:
        if group.state == EXPLAINED and group.fit is not None:
            fit = format_fit(group.fit, group.undetermined)
            texts.append(f"{fit} ({len(group.parameters)} of {run.n_parameters} parameters)")
    return "; ".join(texts)


def _format_unexplained(run: UpdateAnalysis) -> str:
    groups = [group for group in run.groups if group.state == UNEXPLAINED]
    count = sum(len(group.parameters) for group in groups)
    text = f"inconclusive: no rule explains {count} of {run.n_parameters} parameters"
    nearest = groups[0].fit
    if nearest is not None:
        text += f"; nearest is {nearest.rule.name}, residual {format_number(nearest.residual)}"
    return text


def _format_ambiguous(run: UpdateAnalysis) -> str:
    group = next(group for group in run.groups if group.state == AMBIGUOUS)
    fits = (group.fit, *group.equivalent_fits)
    names = [fit.rule.name for fit in fits if fit is not None]
    advice = "give the learning rates with --settings"
    if run.n_steps == 1:
        advice = "record a second step"
    return f"inconclusive: {join_names(names)} explain these steps equally well; {advice}"


def format_fit(fit: Fit, undetermined: Sequence[str] = ()) -> str:
    """Return a rule with its hyperparameters, except those in ``undetermined``."""
    rate = f"learning rate {format_rates(fit)}"
    if fit.rule.family == "SGD" and "clip" in undetermined:
        products = replace(fit, rates=tuple(rate * fit.values["clip"] for rate in fit.rates))
        rate = f"learning rate times norm limit {format_rates(products)}"
    has_unknown_decay = "decay" in undetermined
    texts = [fit.rule.without_decay.name if has_unknown_decay else fit.rule.name, rate]
    names = [name for name in fit.rule.hyperparameters if name not in ("decay", *undetermined)]
    texts += [f"{HYPERPARAMETERS[name].label} {fit.values[name]:.4g}" for name in names]
    if has_unknown_decay:
        texts.append("weight decay unknown")
    elif fit.values["decay"]:
        texts.append(f"weight decay {fit.values['decay']:.3g}")
    if fit.scaling.kind != UNSCALED:
        texts.append(format_scaling(fit, undetermined))
    return ", ".join(texts)


def join_names(names: Sequence[str]) -> str:
    """Return ``a, b and c``."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def list_sides(
    result: UpdateAnalysis | UpdateComparison,
) -> list[tuple[str, UpdateAnalysis]]:
    """Return (side, run) of the run or runs."""
    if isinstance(result, UpdateAnalysis):
        return [("run", result)]
    return [("target", result.target), ("reference", result.reference)]
