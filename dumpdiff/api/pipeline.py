"""The dump path from two dumps to judged pairs: read, align, compare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .. import readers
from ..alignment import align
from ..comparison import Comparison, Spread, compare_pairs, measure_spread
from ..graph import Flow, build_flow
from ..model.trace import Trace
from ..readers.parts import Part
from ..rulebook import Rules, load_rules
from .progress import Progress, narrow_progress, report_progress

PathLike = str | Path


@dataclass(frozen=True)
class Inputs:
    """Everything that a comparison of two dumps depends on.

    The same inputs give the same result.
    """

    target: PathLike
    reference: PathLike
    step: int | None = None
    rank: int | None = None
    graph: int | None = None
    #: a second run of the reference
    baseline: PathLike | None = None
    #: further rule files
    rules: tuple[PathLike, ...] = ()
    #: checkpoints that name the parameters of a side by their values
    weights_target: PathLike | None = None
    weights_reference: PathLike | None = None
    #: parsed ``rules``
    book: Rules = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Load the rules, so that a wrong rule file is reported before any dump is read."""
        object.__setattr__(self, "book", load_rules([Path(file) for file in self.rules]))

    def choose_parts(self) -> tuple[Part, Part]:
        """Return the step, rank and graph of either dump that are compared.

        Raises DumpError if there are none.
        """
        target_parts = readers.find_parts(self.target)
        reference_parts = readers.find_parts(self.reference)
        return readers.choose_parts(
            target_parts, reference_parts, step=self.step, rank=self.rank, graph=self.graph
        )


def read_flows(
    inputs: Inputs, parts: tuple[Part, Part], progress: Progress | None
) -> tuple[Flow, Flow]:
    """Read both sides and return their dataflow.

    Checkpoints name the parameters, if there are any.
    """
    checkpoints = (inputs.weights_target, inputs.weights_reference)
    flows = []
    for side, part, checkpoint in zip(("target", "reference"), parts, checkpoints, strict=True):
        report_progress(progress, f"reading the {side}", 0.0)
        trace = readers.read_part(part)
        if checkpoint is not None:
            trace = _name_parameters(
                trace, checkpoint, narrow_progress(progress, f"weights of the {side}")
            )
        flows.append(build_flow(trace, narrow_progress(progress, f"statistics of the {side}")))
    return flows[0], flows[1]


def compare_dumps(inputs: Inputs, progress: Progress | None) -> Comparison:
    """Read, align and compare two dumps.

    With a baseline, the differences between two runs of the reference are allowed.
    """
    parts = inputs.choose_parts()
    flows = read_flows(inputs, parts, progress)
    spread = None
    if inputs.baseline is not None:
        spread = _measure_baseline(inputs.baseline, parts[1], flows[1], inputs.book, progress)
    report_progress(progress, "aligning", 0.0)
    alignment = align(*flows, inputs.book)
    return compare_pairs(alignment, inputs.book, narrow_progress(progress, "comparing"), spread)


def _name_parameters(
    trace: Trace, checkpoint: PathLike, progress: Callable[[float], None] | None
) -> Trace:
    from .. import checkpoints
    from ..weight_comparison.dump_names import add_parameter_names

    return add_parameter_names(trace, checkpoints.open(Path(checkpoint).absolute()), progress)


def _measure_baseline(
    baseline: PathLike, part: Part, reference: Flow, rules: Rules, progress: Progress | None
) -> Spread:
    """Compare the same step, rank and graph of another run of the reference with the reference."""
    rank = None if part.is_unranked else part.rank
    baseline_part, _ = readers.choose_parts(
        readers.find_parts(baseline),
        [part],
        step=part.step,
        rank=rank,
        graph=part.graph,
        side_names=("baseline", "reference"),
    )
    report_progress(progress, "reading the baseline", 0.0)
    baseline_trace = readers.read_part(baseline_part)
    flow = build_flow(baseline_trace, narrow_progress(progress, "statistics of the baseline"))
    alignment = align(flow, reference, rules)
    comparison = compare_pairs(
        alignment, rules, narrow_progress(progress, "comparing the baseline")
    )
    return measure_spread(comparison)
