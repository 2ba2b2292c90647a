"""Which rule moved the weights, in words: the answer in one line, and a rule with its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from ..model.formatting import number
from .clip_factor import NOTHING
from .comparison import DIFFERENT, SAME, Comparison, rates, scaled
from .fit import Fit
from .groups import AMBIGUOUS, EXPLAINED, STILL, UNEXPLAINED
from .rule import NUMBERS
from .run_analysis import Moved


def headline(found: Moved | Comparison) -> str:
    """The answer in one line."""
    if isinstance(found, Moved):
        return _one_side(found)
    if found.verdict == SAME:
        return f"same rule: {_one_side(found.target)}"
    if found.verdict == DIFFERENT:
        more = f" (and {len(found.differences) - 1} more)" if len(found.differences) > 1 else ""
        return f"different rules: {found.differences[0].text}{more}"
    if not found.paired:
        return "cannot tell: no parameter of the one run could be paired with one of the other"
    unsure = [(role, run) for role, run in roles(found) if run.state != EXPLAINED]
    role, run = unsure[0] if unsure else ("target", found.target)
    return f"cannot tell: {role}: {_one_side(run).removeprefix('cannot tell: ')}"


def _one_side(run: Moved) -> str:
    """What moved one run's weights, or why nobody can say."""
    if run.state == STILL:
        return "cannot tell: no weight moved"
    if run.state == UNEXPLAINED:
        lost = [group for group in run.groups if group.state == UNEXPLAINED]
        count = sum(len(group.parameters) for group in lost)
        nearest = lost[0].fit
        near = (
            f"; nearest is {nearest.rule.name}, residual {number(nearest.residual)}"
            if nearest
            else ""
        )
        return f"cannot tell: no rule explains {count} of {run.parameters} parameters{near}"
    if run.state == AMBIGUOUS:
        group = next(group for group in run.groups if group.state == AMBIGUOUS)
        names = [fit.rule.name for fit in (group.fit, *group.same) if fit is not None]
        advice = (
            "record a second step" if run.steps == 1 else "give the learning rates with --settings"
        )
        return f"cannot tell: {listed(names)} explain these steps equally well; {advice}"
    return "; ".join(
        f"{described(group.fit, group.unseen)} ({len(group.parameters)} of {run.parameters} parameters)"
        for group in run.groups
        if group.state == EXPLAINED and group.fit is not None
    )


def described(fit: Fit, unseen: Sequence[str] = ()) -> str:
    """A rule with its numbers; those in ``unseen`` are left out."""
    said = [fit.rule.name, f"learning rate {rates(fit)}"]
    said += [f"{NUMBERS[name].said} {fit.numbers[name]:.4g}" for name in fit.rule.numbers
             if name != "decay" and name not in unseen]  # fmt: skip
    said += [f"weight decay {fit.numbers['decay']:.3g}"] if fit.numbers["decay"] else []
    return ", ".join(said + ([scaled(fit, unseen)] if fit.clipping.kind != NOTHING else []))


def listed(names: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def roles(found: Moved | Comparison) -> list[tuple[str, Moved]]:
    """The run or runs, each with what it is."""
    if isinstance(found, Moved):
        return [("run", found)]
    return [("target", found.target), ("reference", found.reference)]
