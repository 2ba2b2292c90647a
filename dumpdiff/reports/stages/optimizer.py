"""Which rule moved the weights, for people and for programs, for ``dumpdiff optimizer``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ... import __version__
from ...model.formatting import number, printable
from ...optimizers.comparison import UpdateComparison
from ...optimizers.fit import Fit
from ...optimizers.groups import UNEXPLAINED, ParameterGroup
from ...optimizers.rule import HYPERPARAMETERS
from ...optimizers.summary import format_fit, format_headline, join_names, list_roles
from ...optimizers.update_analysis import UpdateAnalysis
from .sections import Block, ListBlock, TableBlock, write_blocks

#: Major: a reader of the old form breaks. Minor: something was added.
#: History:
#:   1.0  first published form
SCHEMA_VERSION = "1.0"

_FEW = 3  #: parameters of a group that are named
_COLOUR = {"same rule": "bold green", "different rules": "bold red", "inconclusive": "bold yellow"}


def write(
    found: UpdateAnalysis | UpdateComparison,
    console: Console,
    *,
    quiet: bool = False,
    verbose: bool = False,
) -> None:
    """Print the answer, then each group with its rule, the next best rule, and what they leave."""
    line = format_headline(found)
    colour = next((style for start, style in _COLOUR.items() if line.startswith(start)), "bold")
    console.print(Text(printable(line), style=colour), soft_wrap=True)
    if quiet:
        return
    write_blocks(console, build_blocks(found, verbose=verbose))


def format_sides(found: UpdateComparison) -> tuple[str, str]:
    """What target and reference are, a line each."""
    return _side(found.target), _side(found.reference)


def _side(run: UpdateAnalysis) -> str:
    return f"{run.n_parameters} parameters, {run.n_steps} step{'s' if run.n_steps > 1 else ''}, {run.path}"


def build_blocks(
    found: UpdateAnalysis | UpdateComparison, *, verbose: bool = False
) -> Iterator[Block]:
    """What is different, then each group with its rule, the next best rule, and what they leave."""
    if isinstance(found, UpdateComparison):
        said = (
            f"{d.name}: {d.text}{_whose(d.parameters, found.n_paired)}" for d in found.differences
        )
        yield ListBlock("differences", tuple(said))
    for role, run in list_roles(found):
        columns = ("rule", "residual", "next best", "residual")
        rows = tuple(_row(group, run, verbose) for group in run.groups)
        yield TableBlock(
            f"{role}, {run.n_steps} step{'s' if run.n_steps > 1 else ''}", columns, rows
        )
        yield ListBlock(f"notes on the {role}", tuple(_notes(run)))


def _row(
    group: ParameterGroup, run: UpdateAnalysis, verbose: bool
) -> tuple[str, str, str, str, str]:
    names = group.parameters if verbose else group.parameters[:_FEW]
    more = (
        f", ... {len(group.parameters) - len(names)} more"
        if len(names) < len(group.parameters)
        else ""
    )
    who = f"{len(group.parameters)} of {run.n_parameters}: {', '.join(names)}{more}"
    if group.fit is None:
        return who, "did not move", "", "", ""
    rule = format_fit(group.fit, group.undetermined)
    if group.state == UNEXPLAINED:
        rule = f"no rule explains this; nearest: {rule}"
    if group.equivalent_fits:
        rule += f"; or {join_names([format_fit(fit) for fit in group.equivalent_fits])}"
    other = group.runner_up
    return (
        who,
        rule,
        number(group.fit.residual),
        other.rule.name if other is not None else "",
        number(other.residual) if other is not None else "",
    )


def _notes(run: UpdateAnalysis) -> list[str]:
    """What else was found, or could not be seen."""
    notes = []
    for name, (said, found) in run.contradicted_settings.items():
        spoken = HYPERPARAMETERS[name].label if name in HYPERPARAMETERS else name.replace("_", " ")
        notes.append(f"the settings say {spoken} {said:.4g}; the weights moved by {found:.4g}")
    if run.recorded_norm_limit is not None:
        notes.append(f"the recorded gradients have the same norm at every step, {run.recorded_norm_limit:.4g}: "
                     "they were clipped before they were recorded")  # fmt: skip
    for at, group in enumerate(run.groups):
        who = f"{len(group.parameters)} parameters from {group.parameters[0]}"
        if group.undetermined:
            notes.append(
                f"{who}: these data say nothing of {join_names([HYPERPARAMETERS[n].label for n in group.undetermined])}"
            )
        if at in run.master_copies:
            notes.append(f"{who}: {_copies(run, at)}")
    return [*notes, *run.problems]


def _copies(run: UpdateAnalysis, at: int) -> str:
    found = run.master_copies[at]
    stored = run.data.select(run.groups[at].parameters[:1]).histories[0].stored_dtype
    shares = f"rounding explains every step of {found.with_master:.1%} of the weights with one, of {found.without_master:.1%} without"
    if found.has_master is None:
        return f"kept in {stored}; whether a float32 copy stands behind cannot be told ({shares})"
    return f"kept in {stored}, {'with a' if found.has_master else 'without a'} float32 copy behind ({shares})"


def _whose(names: Sequence[str], paired: int) -> str:
    if not names or len(names) == paired:
        return ""
    return f" (for {', '.join(names[:_FEW])}{f', ... {len(names) - _FEW} more' if len(names) > _FEW else ''})"


def to_json(found: UpdateAnalysis | UpdateComparison) -> dict[str, Any]:
    """All of it as plain data; docs/triage.schema.json says what is in it, docs/optimizer.md what it means."""
    head = {
        "schema_version": SCHEMA_VERSION,
        "dumpdiff_version": __version__,
        "headline": format_headline(found),
    }
    if isinstance(found, UpdateAnalysis):
        return {
            **head,
            "verdict": found.state,
            "target": _run(found),
            "reference": None,
            "differences": [],
        }
    return {
        **head,
        "verdict": found.verdict,
        "target": _run(found.target),
        "reference": _run(found.reference),
        "paired": found.n_paired,
        "differences": [vars(difference) for difference in found.differences],
    }


def _run(run: UpdateAnalysis) -> dict[str, Any]:
    return {
        "path": run.path,
        "state": run.state,
        "steps": run.n_steps,
        "gradient_norms": run.norms,
        "contradicted": {
            name: {"said": said, "found": found}
            for name, (said, found) in run.contradicted_settings.items()
        },
        "groups": [
            {
                "parameters": group.parameters,
                "state": group.state,
                "rule": _fit(group.fit),
                "next_best": _fit(group.runner_up),
                "as_good": [_fit(fit) for fit in group.equivalent_fits],
                "unseen": group.undetermined,
                "master_copy": run.master_copies[at].has_master
                if at in run.master_copies
                else None,
            }
            for at, group in enumerate(run.groups)
        ],
        "problems": run.problems,
    }


def _fit(fit: Fit | None) -> dict[str, Any] | None:
    if fit is None:
        return None
    return {
        "name": fit.rule.name,
        "family": fit.rule.family,
        "aspects": fit.rule.aspects,
        "numbers": fit.values,
        "learning_rates": fit.rates,
        "gradients": fit.scaling.kind,
        "residual": fit.residual,
        "of_allowed": fit.excess,
        "elements": fit.n_elements,
    }
