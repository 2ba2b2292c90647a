"""Which rule moved the weights, for people and for programs, for ``dumpdiff optimizer``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from ... import __version__
from ...model.formatting import number, printable
from ...optimizers.comparison import Comparison
from ...optimizers.fit import Fit
from ...optimizers.groups import UNEXPLAINED, Group
from ...optimizers.rule import NUMBERS
from ...optimizers.run_analysis import Moved
from ...optimizers.summary import described, headline, listed, roles
from .sections import Lines, Part, Rows, write_parts

#: Major: a reader of the old form breaks. Minor: something was added.
#: History:
#:   1.0  first published form
SCHEMA_VERSION = "1.0"

_FEW = 3  #: parameters of a group that are named
_COLOUR = {"same rule": "bold green", "different rules": "bold red", "cannot tell": "bold yellow"}


def write(
    found: Moved | Comparison, console: Console, *, quiet: bool = False, verbose: bool = False
) -> None:
    """Print the answer, then each group with its rule, the next best rule, and what they leave."""
    line = headline(found)
    colour = next((style for start, style in _COLOUR.items() if line.startswith(start)), "bold")
    console.print(Text(printable(line), style=colour), soft_wrap=True)
    if quiet:
        return
    write_parts(console, parts(found, verbose=verbose))


def sides(found: Comparison) -> tuple[str, str]:
    """What target and reference are, a line each."""
    return _side(found.target), _side(found.reference)


def _side(run: Moved) -> str:
    return (
        f"{run.parameters} parameters, {run.steps} step{'s' if run.steps > 1 else ''}, {run.path}"
    )


def parts(found: Moved | Comparison, *, verbose: bool = False) -> Iterator[Part]:
    """What is different, then each group with its rule, the next best rule, and what they leave."""
    if isinstance(found, Comparison):
        said = (
            f"{d.name}: {d.text}{_whose(d.parameters, found.paired)}" for d in found.differences
        )
        yield Lines("differences", tuple(said))
    for role, run in roles(found):
        columns = ("rule", "residual", "next best", "residual")
        rows = tuple(_row(group, run, verbose) for group in run.groups)
        yield Rows(f"{role}, {run.steps} step{'s' if run.steps > 1 else ''}", columns, rows)
        yield Lines(f"notes on the {role}", tuple(_notes(run)))


def _row(group: Group, run: Moved, verbose: bool) -> tuple[str, str, str, str, str]:
    names = group.parameters if verbose else group.parameters[:_FEW]
    more = (
        f", ... {len(group.parameters) - len(names)} more"
        if len(names) < len(group.parameters)
        else ""
    )
    who = f"{len(group.parameters)} of {run.parameters}: {', '.join(names)}{more}"
    if group.fit is None:
        return who, "did not move", "", "", ""
    rule = described(group.fit, group.unseen)
    if group.state == UNEXPLAINED:
        rule = f"no rule explains this; nearest: {rule}"
    if group.same:
        rule += f"; or {listed([described(fit) for fit in group.same])}"
    other = group.runner_up
    return (
        who,
        rule,
        number(group.fit.residual),
        other.rule.name if other is not None else "",
        number(other.residual) if other is not None else "",
    )


def _notes(run: Moved) -> list[str]:
    """What else was found, or could not be seen."""
    notes = []
    for name, (said, found) in run.contradicted.items():
        spoken = NUMBERS[name].said if name in NUMBERS else name.replace("_", " ")
        notes.append(f"the settings say {spoken} {said:.4g}; the weights moved by {found:.4g}")
    if run.clipped_before is not None:
        notes.append(f"the recorded gradients have the same norm at every step, {run.clipped_before:.4g}: "
                     "they were clipped before they were recorded")  # fmt: skip
    for at, group in enumerate(run.groups):
        who = f"{len(group.parameters)} parameters from {group.parameters[0]}"
        if group.unseen:
            notes.append(
                f"{who}: these data say nothing of {listed([NUMBERS[n].said for n in group.unseen])}"
            )
        if at in run.copies:
            notes.append(f"{who}: {_copies(run, at)}")
    return [*notes, *run.problems]


def _copies(run: Moved, at: int) -> str:
    found = run.copies[at]
    stored = run.data.of(run.groups[at].parameters[:1]).histories[0].stored
    shares = f"rounding explains every step of {found.master:.1%} of the weights with one, of {found.without:.1%} without"
    if found.has_master is None:
        return f"kept in {stored}; whether a float32 copy stands behind cannot be told ({shares})"
    return f"kept in {stored}, {'with a' if found.has_master else 'without a'} float32 copy behind ({shares})"


def _whose(names: Sequence[str], paired: int) -> str:
    if not names or len(names) == paired:
        return ""
    return f" (for {', '.join(names[:_FEW])}{f', ... {len(names) - _FEW} more' if len(names) > _FEW else ''})"


def to_json(found: Moved | Comparison) -> dict[str, Any]:
    """All of it as plain data; docs/triage.schema.json says what is in it, docs/optimizer.md what it means."""
    head = {
        "schema_version": SCHEMA_VERSION,
        "dumpdiff_version": __version__,
        "headline": headline(found),
    }
    if isinstance(found, Moved):
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
        "paired": found.paired,
        "differences": [vars(difference) for difference in found.differences],
    }


def _run(run: Moved) -> dict[str, Any]:
    return {
        "path": run.path,
        "state": run.state,
        "steps": run.steps,
        "gradient_norms": run.norms,
        "contradicted": {
            name: {"said": said, "found": found} for name, (said, found) in run.contradicted.items()
        },
        "groups": [
            {
                "parameters": group.parameters,
                "state": group.state,
                "rule": _fit(group.fit),
                "next_best": _fit(group.runner_up),
                "as_good": [_fit(fit) for fit in group.same],
                "unseen": group.unseen,
                "master_copy": run.copies[at].has_master if at in run.copies else None,
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
        "numbers": fit.numbers,
        "learning_rates": fit.rates,
        "gradients": fit.clipping.kind,
        "residual": fit.residual,
        "of_allowed": fit.excess,
        "elements": fit.elements,
    }
