"""A comparison of training logs for people and for programs, for ``dumpdiff logs``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console

from ...model.formatting import number
from ...training_logs import Curves, LogComparison
from .sections import Block, ListBlock, TableBlock, build_document, write_stage

_SPOKEN = {"megatron": "Megatron-LM", "mindformers": "MindSpore Transformers", "trainer": "Trainer"}
_FEW = 5  #: spikes that are named


def write(
    comparison: LogComparison, console: Console, *, quiet: bool = False, verbose: bool = False
) -> None:
    """Print every criterion with what was measured, then the shape of the difference; the steps with ``verbose``."""
    write_stage(
        comparison.to_stage(),
        format_sides(comparison),
        build_blocks(comparison, verbose=verbose),
        console,
        quiet=quiet,
    )


def format_sides(comparison: LogComparison) -> tuple[str, str]:
    """What target and reference are, a line each."""
    return _described(comparison.target), _described(comparison.reference)


def build_blocks(comparison: LogComparison, *, verbose: bool = False) -> Iterator[Block]:
    """Every criterion with what was measured, then the shape of the difference; the steps with ``verbose``."""
    checks = tuple((check.name, check.verdict, check.said) for check in comparison.checks)
    yield TableBlock("criterion", ("", "what was measured"), checks)
    yield ListBlock("the difference", tuple(_shape(comparison)))
    if verbose:
        both = zip(comparison.steps, comparison.target_loss, comparison.reference_loss, strict=True)
        steps = tuple(
            (str(step), f"{a:.6f}", f"{b:.6f}", number(abs(a - b))) for step, a, b in both
        )
        yield TableBlock("step", ("target", "reference", "difference"), steps)
    yield ListBlock("notes", comparison.notes)


def _described(curves: Curves) -> str:
    thinned = f", every {curves.interval} steps" if curves.interval > 1 else ""
    steps = f"steps {curves.steps[0]} to {curves.steps[-1]}{thinned}"
    return f"{_SPOKEN[curves.format]} ({curves.era}): {steps}, {curves.path}"


def _shape(comparison: LogComparison) -> Iterator[str]:
    wander, band = comparison.wander, comparison.band
    if comparison.divergence_step is not None:
        yield f"grows for good from step {comparison.divergence_step}"
    if len(comparison.steps) >= 16:
        where = "wanders around zero" if wander.around_zero else "leans to one side"
        mean = f"mean {number(wander.bias)} (error {number(wander.error)})"
        yield f"{where}: {mean}, above in {100 * wander.positive:.0f} % of the steps"
    if band is not None:
        where = "inside" if band.inside else "outside"
        own = f"{band.runs} further run{'s' if band.runs > 1 else ''} of the reference"
        yield f"{where} the band of {own}: {number(band.distance)} against {number(band.spread)} (root mean square)"
    if comparison.spikes:
        named = ", ".join(f"step {step} ({side})" for side, step in comparison.spikes[:_FEW])
        more = f" and {len(comparison.spikes) - _FEW} more" if len(comparison.spikes) > _FEW else ""
        yield f"spikes of one side alone: {named}{more}"


def to_json(comparison: LogComparison) -> dict[str, Any]:
    """The comparison as plain data: criteria, shape, and both curves at the common steps."""
    wander = comparison.wander
    return build_document(
        comparison.to_stage(),
        target=_side(comparison.target),
        reference=_side(comparison.reference),
        checks=[vars(check) for check in comparison.checks],
        begins=comparison.onset,
        departure=comparison.divergence_step,
        wander={**vars(wander), "around_zero": wander.around_zero},
        band=None if comparison.band is None else vars(comparison.band),
        spikes=[{"side": side, "step": step} for side, step in comparison.spikes],
        notes=comparison.notes,
        curves={
            "step": comparison.steps.tolist(),
            "target": comparison.target_loss.tolist(),
            "reference": comparison.reference_loss.tolist(),
        },
    )


def _side(curves: Curves) -> dict[str, Any]:
    return {
        "path": curves.path,
        "format": curves.format,
        "era": curves.era,
        "steps": len(curves),
        "first_step": int(curves.steps[0]),
        "last_step": int(curves.steps[-1]),
        "interval": curves.interval,
        "restarts": curves.restarts,
        "skipped": curves.steps[curves.skipped].tolist(),
        "nonfinite": curves.steps[curves.nonfinite].tolist(),
    }
