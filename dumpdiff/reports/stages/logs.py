"""A comparison of training logs in a terminal and as JSON, for ``dumpdiff logs``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from ...model.formatting import format_number
from ...training_logs import Curves, LogComparison
from ...training_logs.comparison import Band
from ...training_logs.curve_shape import Fluctuation
from ...training_logs.migration_standard import Check
from ..formats.blocks import Block, ListBlock, TableBlock
from .stage import build_document, write_stage

_FORMAT_NAMES = {
    "megatron": "Megatron-LM",
    "mindformers": "MindSpore Transformers",
    "trainer": "Trainer",
    "nemo": "NeMo",
    "torchtitan": "torchtitan",
    "verl": "verl",
    "tensorboard": "TensorBoard",
    "table": "table of metrics",
}
_MAX_SPIKES = 5  #: spikes that are listed
#: With fewer steps, nothing is said about whether the difference fluctuates around zero: its mean
#: is too uncertain.
_MIN_STEPS_FOR_BIAS = 16


def write(
    comparison: LogComparison, console: Console, *, quiet: bool = False, verbose: bool = False
) -> None:
    """Print every criterion, then the shape of the difference; with ``verbose`` also the steps."""
    write_stage(
        comparison.to_stage(),
        format_sides(comparison),
        build_blocks(comparison, verbose=verbose),
        console,
        quiet=quiet,
    )


def format_sides(comparison: LogComparison) -> tuple[str, str]:
    """Describe target and reference, one line each."""
    return _format_curves(comparison.target), _format_curves(comparison.reference)


def build_blocks(comparison: LogComparison, *, verbose: bool = False) -> Iterator[Block]:
    """Yield every criterion, then the shape of the difference; with ``verbose`` also the steps."""
    checks = tuple((check.name, check.verdict, check.summary) for check in comparison.checks)
    yield TableBlock("criterion", ("", "what was measured"), checks)
    yield ListBlock("the difference", tuple(_describe_difference(comparison)))
    if verbose:
        rows = tuple(_list_steps(comparison))
        yield TableBlock("step", ("target", "reference", "difference"), rows)
    yield ListBlock("notes", comparison.notes)


def _list_steps(comparison: LogComparison) -> Iterator[tuple[str, ...]]:
    losses = zip(comparison.steps, comparison.target_loss, comparison.reference_loss, strict=True)
    for step, target_loss, reference_loss in losses:
        difference = format_number(abs(target_loss - reference_loss))
        yield str(step), f"{target_loss:.6f}", f"{reference_loss:.6f}", difference


def _format_curves(curves: Curves) -> str:
    interval = f", every {curves.interval} steps" if curves.interval > 1 else ""
    steps = f"steps {curves.steps[0]} to {curves.steps[-1]}{interval}"
    return f"{_FORMAT_NAMES[curves.format]} ({curves.format_variant}): {steps}, {curves.path}"


def _describe_difference(comparison: LogComparison) -> Iterator[str]:
    fluctuation, band = comparison.fluctuation, comparison.band
    if comparison.divergence_step is not None:
        yield f"grows permanently from step {comparison.divergence_step}"
    if comparison.drift is not None:
        yield comparison.drift.summarize()
    is_finite = math.isfinite(fluctuation.bias)
    if is_finite and len(comparison.steps) >= _MIN_STEPS_FOR_BIAS:
        shape = "fluctuates around zero" if fluctuation.is_unbiased else "has a bias to one side"
        error = format_number(fluctuation.standard_error)
        mean = f"mean {format_number(fluctuation.bias)} (error {error})"
        share = f"{100 * fluctuation.positive_share:.0f} %"
        yield f"{shape}: {mean}, positive in {share} of the steps"
    if band is not None:
        position = "inside" if band.contains_target else "outside"
        runs = f"{band.runs} further run{'s' if band.runs > 1 else ''} of the reference"
        distances = f"{format_number(band.distance)} against {format_number(band.spread)}"
        yield f"{position} the band of {runs}: {distances} (root mean square)"
    if comparison.spikes:
        listed_spikes = comparison.spikes[:_MAX_SPIKES]
        spikes = ", ".join(f"step {step} ({side})" for side, step in listed_spikes)
        n_more = len(comparison.spikes) - len(listed_spikes)
        if n_more:
            spikes += f" and {n_more} more"
        yield f"spikes on one side only: {spikes}"


def to_json(comparison: LogComparison) -> dict[str, Any]:
    """Return the comparison as plain data: criteria, shape, both curves at the common steps."""
    return build_document(
        comparison.to_stage(),
        target=_convert_curves(comparison.target),
        reference=_convert_curves(comparison.reference),
        checks=[_convert_check(check) for check in comparison.checks],
        onset=comparison.onset,
        divergence_step=comparison.divergence_step,
        fluctuation=_convert_fluctuation(comparison.fluctuation),
        band=None if comparison.band is None else _convert_band(comparison.band),
        spikes=[{"side": side, "step": step} for side, step in comparison.spikes],
        notes=comparison.notes,
        curves={
            "step": comparison.steps.tolist(),
            "target": comparison.target_loss.tolist(),
            "reference": comparison.reference_loss.tolist(),
        },
    )


def _convert_fluctuation(fluctuation: Fluctuation) -> dict[str, Any]:
    return {
        "bias": fluctuation.bias,
        "standard_error": fluctuation.standard_error,
        "positive_share": fluctuation.positive_share,
        "unbiased": fluctuation.is_unbiased,
    }


def _convert_band(band: Band) -> dict[str, Any]:
    return {
        "runs": band.runs,
        "steps": band.steps,
        "spread": band.spread,
        "distance": band.distance,
        "contains_target": band.contains_target,
    }


def _convert_check(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "verdict": check.verdict,
        "summary": check.summary,
        "value": check.value,
        "limit": check.limit,
    }


def _convert_curves(curves: Curves) -> dict[str, Any]:
    return {
        "path": curves.path,
        "format": curves.format,
        "era": curves.format_variant,
        "steps": len(curves),
        "first_step": int(curves.steps[0]),
        "last_step": int(curves.steps[-1]),
        "interval": curves.interval,
        "restarts": curves.restarts,
        "skipped": curves.steps[curves.skipped].tolist(),
        "nonfinite": curves.steps[curves.nonfinite].tolist(),
    }
