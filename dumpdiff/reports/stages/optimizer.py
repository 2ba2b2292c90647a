"""Which optimizer rule moved the weights, in a terminal and as JSON, for ``dumpdiff optimizer``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from ... import __version__
from ...model.formatting import format_number
from ...optimizers.comparison import Difference, UpdateComparison
from ...optimizers.fit import Fit
from ...optimizers.groups import UNEXPLAINED, ParameterGroup
from ...optimizers.rule import HYPERPARAMETERS
from ...optimizers.summary import format_fit, format_headline, join_names, list_sides
from ...optimizers.update_analysis import UpdateAnalysis
from ..formats.blocks import Block, ListBlock, TableBlock, translate_block, write_blocks
from ..language import use_chosen_language
from .stage import write_first_line

#: Major: programs that read the old form fail. Minor: something was added.
#: History:
#:   1.0  first published form
#:   2.0  renamed keys and words: of a difference text -> summary; contradicted ->
#:        contradicted_settings, of it said -> setting and found -> observed; of a group as_good ->
#:        equivalent_rules and unseen -> undetermined; of a rule numbers -> hyperparameters,
#:        of_allowed -> relative_to_tolerance, gradients -> gradient_scaling with nothing -> none,
#:        each tensor's norm -> tensor norm, any factors -> step factors
SCHEMA_VERSION = "2.0"

_MAX_NAMES = 3  #: parameters of a group that are named without -v
#: By the first words of the headline.
_COLORS = {"same rule": "bold green", "different rules": "bold red", "inconclusive": "bold yellow"}


@use_chosen_language()
def write(
    result: UpdateAnalysis | UpdateComparison,
    console: Console,
    *,
    quiet: bool = False,
    verbose: bool = False,
) -> None:
    """Print the answer, then each group with its rule, the next best rule, and both residuals."""
    headline = format_headline(result)
    colors = [color for start, color in _COLORS.items() if headline.startswith(start)]
    style = colors[0] if colors else "bold"
    write_first_line("", headline, style, console, quiet=quiet)
    if quiet:
        return
    write_blocks(console, map(translate_block, build_blocks(result, verbose=verbose)))


def format_sides(result: UpdateComparison) -> tuple[str, str]:
    """Describe target and reference, one line each."""
    return _format_side(result.target), _format_side(result.reference)


def _format_side(run: UpdateAnalysis) -> str:
    return f"{run.n_parameters} parameters, {_format_steps(run)}, {run.path}"


def _format_steps(run: UpdateAnalysis) -> str:
    return f"{run.n_steps} step{'s' if run.n_steps > 1 else ''}"


def build_blocks(
    result: UpdateAnalysis | UpdateComparison, *, verbose: bool = False
) -> Iterator[Block]:
    """Yield the differences, then each group with its rule, the next best, and the residuals."""
    if isinstance(result, UpdateComparison):
        differences = []
        for difference in result.differences:
            parameters = _format_parameters(difference.parameters, result.n_paired)
            differences.append(f"{difference.name}: {difference.summary}{parameters}")
        yield ListBlock("differences", tuple(differences))
    for side, run in list_sides(result):
        columns = ("rule", "residual", "next best", "residual")
        rows = tuple(_list_cells(group, run, verbose) for group in run.groups)
        yield TableBlock(f"{side}, {_format_steps(run)}", columns, rows)
        yield ListBlock(f"notes on the {side}", tuple(_list_notes(run)))


def _list_cells(group: ParameterGroup, run: UpdateAnalysis, verbose: bool) -> tuple[str, ...]:
    names = group.parameters if verbose else group.parameters[:_MAX_NAMES]
    label = f"{len(group.parameters)} of {run.n_parameters}: {', '.join(names)}"
    n_more = len(group.parameters) - len(names)
    if n_more:
        label += f", ... {n_more} more"
    if group.fit is None:
        return label, "did not move", "", "", ""
    rule = format_fit(group.fit, group.undetermined)
    if group.state == UNEXPLAINED:
        rule = f"no rule explains this; nearest: {rule}"
    if group.equivalent_fits:
        rule += f"; or {join_names([format_fit(fit) for fit in group.equivalent_fits])}"
    next_best, next_residual = "", ""
    if group.runner_up is not None:
        next_best = group.runner_up.rule.name
        next_residual = format_number(group.runner_up.residual)
    return label, rule, format_number(group.fit.residual), next_best, next_residual


def _list_notes(run: UpdateAnalysis) -> Iterator[str]:
    """Yield contradicted settings, clipping, master copies, undetermined numbers, and problems."""
    for name, (setting, value) in run.contradicted_settings.items():
        label = name.replace("_", " ")
        if name in HYPERPARAMETERS:
            label = HYPERPARAMETERS[name].label
        yield f"the settings say {label} {setting:.4g}; the weights moved by {value:.4g}"
    if run.recorded_norm_limit is not None:
        limit = f"{run.recorded_norm_limit:.4g}"
        yield (
            f"the recorded gradients have the same norm at every step, {limit}: "
            "they were clipped before they were recorded"
        )
    for index, group in enumerate(run.groups):
        label = f"{len(group.parameters)} parameters from {group.parameters[0]}"
        if group.undetermined:
            names = join_names([HYPERPARAMETERS[name].label for name in group.undetermined])
            yield f"{label}: these data do not determine {names}"
        if np.isfinite(group.largest_decay):
            yield f"{label}: the weight decay is at most {group.largest_decay:.2g}"
        if index in run.master_copies:
            yield f"{label}: {_format_master_copy(run, index)}"
    yield from run.problems


def _format_master_copy(run: UpdateAnalysis, index: int) -> str:
    copy = run.master_copies[index]
    dtype = run.data.select(run.groups[index].parameters[:1]).histories[0].stored_dtype
    if copy.is_stochastic:
        return f"stored in {dtype}, rounded stochastically, without a float32 master copy"
    shares = (
        f"rounding explains every step of {copy.with_master:.1%} of the weights with one, "
        f"of {copy.without_master:.1%} without"
    )
    if copy.has_master is None:
        return f"stored in {dtype}; whether there is a float32 master copy is unknown ({shares})"
    word = "with" if copy.has_master else "without"
    return f"stored in {dtype}, {word} a float32 master copy ({shares})"


def _format_parameters(names: Sequence[str], n_paired: int) -> str:
    """Return which parameters a difference is about, '' if it is about all."""
    if not names or len(names) == n_paired:
        return ""
    listed = ", ".join(names[:_MAX_NAMES])
    n_more = len(names) - _MAX_NAMES
    return f" (for {listed}, ... {n_more} more)" if n_more > 0 else f" (for {listed})"


def to_json(result: UpdateAnalysis | UpdateComparison) -> dict[str, Any]:
    """Return all of it as plain data, in the form of docs/triage.schema.json.

    docs/optimizer.md explains the fields.
    """
    head = {
        "schema_version": SCHEMA_VERSION,
        "dumpdiff_version": __version__,
        "headline": format_headline(result),
    }
    if isinstance(result, UpdateAnalysis):
        return {
            **head,
            "verdict": result.state,
            "target": _convert_run(result),
            "reference": None,
            "differences": [],
        }
    return {
        **head,
        "verdict": result.verdict,
        "target": _convert_run(result.target),
        "reference": _convert_run(result.reference),
        "paired": result.n_paired,
        "differences": [_convert_difference(difference) for difference in result.differences],
    }


def _convert_difference(difference: Difference) -> dict[str, Any]:
    return {
        "name": difference.name,
        "target": difference.target,
        "reference": difference.reference,
        "summary": difference.summary,
        "parameters": difference.parameters,
    }


def _convert_run(run: UpdateAnalysis) -> dict[str, Any]:
    contradicted_settings = {}
    for name, (setting, value) in run.contradicted_settings.items():
        contradicted_settings[name] = {"setting": setting, "observed": value}
    return {
        "path": run.path,
        "state": run.state,
        "steps": run.n_steps,
        "gradient_norms": run.norms,
        "contradicted_settings": contradicted_settings,
        "groups": [_convert_group(run, index) for index in range(len(run.groups))],
        "problems": run.problems,
    }


def _convert_group(run: UpdateAnalysis, index: int) -> dict[str, Any]:
    group, master_copy = run.groups[index], run.master_copies.get(index)
    return {
        "parameters": group.parameters,
        "state": group.state,
        "rule": _convert_fit(group.fit),
        "next_best": _convert_fit(group.runner_up),
        "equivalent_rules": [_convert_fit(fit) for fit in group.equivalent_fits],
        "undetermined": group.undetermined,
        "master_copy": None if master_copy is None else master_copy.has_master,
    }


def _convert_fit(fit: Fit | None) -> dict[str, Any] | None:
    if fit is None:
        return None
    return {
        "name": fit.rule.name,
        "family": fit.rule.family,
        "aspects": fit.rule.aspects,
        "hyperparameters": fit.values,
        "learning_rates": fit.rates,
        "gradient_scaling": fit.scaling.kind,
        "residual": fit.residual,
        "relative_to_tolerance": fit.relative_to_tolerance,
        "elements": fit.n_elements,
    }
