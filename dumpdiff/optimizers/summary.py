"""Which rule moved the weights, in words: the answer in one line, and a rule with its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from ..model.formatting import format_number
from .gradient_scaling import UNSCALED
from .comparison import UpdateComparison, format_rates, format_scaling
from .fit import Fit
from .groups import AMBIGUOUS, EXPLAINED, UNMOVED, UNEXPLAINED
from .rule import HYPERPARAMETERS
from .update_analysis import UpdateAnalysis


def format_headline(found: UpdateAnalysis | UpdateComparison) -> str:
    """The answer in one line."""
    if isinstance(found, UpdateAnalysis):
        return _one_side(found)
    if found.verdict == "agree":
        return f"same rule: {_one_side(found.target)}"
    if found.verdict == "differ":
        more = f" (and {len(found.differences) - 1} more)" if len(found.differences) > 1 else ""
        return f"different rules: {found.differences[0].text}{more}"
    if not found.n_paired:
        return "inconclusive: no parameter of the one run could be paired with one of the other"
    unsure = [(role, run) for role, run in list_roles(found) if run.state != EXPLAINED]
    role, run = unsure[0] if unsure else ("target", found.target)
    return f"inconclusive: {role}: {_one_side(run).removeprefix('inconclusive: ')}"


def _one_side(run: UpdateAnalysis) -> str:
    """What moved one run's weights, or why nobody can say."""
    if run.state == UNMOVED:
        return "inconclusive: no weight moved"
    if run.state == UNEXPLAINED:
        lost = [group for group in run.groups if group.state == UNEXPLAINED]
        count = sum(len(group.parameters) for group in lost)
        nearest = lost[0].fit
        near = (
            f"; nearest is {nearest.rule.name}, residual {format_number(nearest.residual)}"
            if nearest
            else ""
        )
        return f"inconclusive: no rule explains {count} of {run.n_parameters} parameters{near}"
    if run.state == AMBIGUOUS:
        group = next(group for group in run.groups if group.state == AMBIGUOUS)
        names = [fit.rule.name for fit in (group.fit, *group.equivalent_fits) if fit is not None]
        advice = (
            "record a second step" if run.n_steps == 1 else "give the learning rates with --settings"
        )
        return f"inconclusive: {join_names(names)} explain these steps equally well; {advice}"
    return "; ".join(
        f"{format_fit(group.fit, group.undetermined)} ({len(group.parameters)} of {run.n_parameters} parameters)"
        for group in run.groups
        if group.state == EXPLAINED and group.fit is not None
    )


def format_fit(fit: Fit, unseen: Sequence[str] = ()) -> str:
    """A rule with its numbers; those in ``unseen`` are left out."""
    said = [fit.rule.name, f"learning rate {format_rates(fit)}"]
    said += [f"{HYPERPARAMETERS[name].label} {fit.values[name]:.4g}" for name in fit.rule.hyperparameters
             if name != "decay" and name not in unseen]  # fmt: skip
    said += [f"weight decay {fit.values['decay']:.3g}"] if fit.values["decay"] else []
    return ", ".join(said + ([format_scaling(fit, unseen)] if fit.scaling.kind != UNSCALED else []))


def join_names(names: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def list_roles(found: UpdateAnalysis | UpdateComparison) -> list[tuple[str, UpdateAnalysis]]:
    """The run or runs, each with what it is."""
    if isinstance(found, UpdateAnalysis):
        return [("run", found)]
    return [("target", found.target), ("reference", found.reference)]
