"""Both sides read and their records checked, large ones at the same time in two processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from .. import readers
from ..capture.completion import CompletedTrace, complete_trace, read_request
from ..model.gc_pause import pause_gc
from ..model.trace import Trace
from ..readers.parts import Part
from ..verification import TraceChecks, attach_all_checks, attach_checks
from .inputs import Inputs, PathLike
from .processes import count_cores, is_worker, open_pool, submit_calls
from .progress import Progress, narrow_progress, report_progress

_NAMES = ("target", "reference")
#: Bytes of the index files of either side from which on two processes read them. To start one and
#: to hand its tables over takes as long as to read and check some 25 MiB of msprobe's dump.json.
_MIN_BYTES = 64 << 20


@dataclass(frozen=True)
class Side:
    """What was read of one side."""

    checks: TraceChecks  #: of its trace
    remarks: tuple[str, ...]  #: on what completed it


def read_sides(
    inputs: Inputs, parts: tuple[Part, Part], progress: Progress | None
) -> tuple[Side, Side]:
    """Read the target and the reference.

    Narrowed dumps complete them, and checkpoints name the parameters, if there are any. Raises
    DumpError if one of them cannot be read.
    """
    is_large = min(map(readers.measure_index, parts)) >= _MIN_BYTES
    if is_large and count_cores() > 1 and not is_worker():
        report_progress(progress, "reading both dumps", 0.0)
        try:
            with open_pool(len(parts)) as pool:
                calls = [(inputs, number, part) for number, part in enumerate(parts)]
                target, reference = submit_calls(pool, read_side, calls)
                return target.result(), reference.result()
        except BrokenProcessPool:
            pass  # the system ended a process; one after the other they need less memory
    return read_side(inputs, 0, parts[0], progress), read_side(inputs, 1, parts[1], progress)


@pause_gc()
def read_side(inputs: Inputs, number: int, part: Part, progress: Progress | None = None) -> Side:
    """Read the target (``number`` 0) or the reference (1) and check its records."""
    side = _NAMES[number]
    checkpoint = (inputs.weights_target, inputs.weights_reference)[number]
    remarks = []
    report_progress(progress, f"reading the {side}", 0.0)
    trace = readers.read_part(part)
    for folder in inputs.narrowed:
        requested_ops = read_request(Path(folder), side)
        if requested_ops:
            completed = _complete_from_folder(trace, part, Path(folder) / side, requested_ops)
            trace = completed.trace
            remarks.append(completed.summarize(side, Path(folder)))
    if checkpoint is not None:
        move_bar = narrow_progress(progress, f"weights of the {side}")
        trace = _name_parameters(trace, checkpoint, move_bar)
    if inputs.verify:
        move_bar = narrow_progress(progress, f"files of the {side}")
        checks = attach_all_checks(trace, inputs.book, move_bar)
    else:
        checks = attach_checks(trace, inputs.book)
    return Side(checks, tuple(remarks))


def _complete_from_folder(
    trace: Trace, part: Part, dump: Path, requested_ops: Sequence[str]
) -> CompletedTrace:
    """Complete a trace with the dump of the same step, rank and graph that was asked for."""
    narrowed_part, _ = readers.choose_parts(
        readers.find_parts(dump),
        [part],
        step=part.step,
        rank=None if part.is_unranked else part.rank,
        graph=part.graph,
        side_names=(f"narrowed dump {dump}", "first dump"),
    )
    return complete_trace(trace, readers.read_part(narrowed_part), requested_ops)


def _name_parameters(
    trace: Trace, checkpoint: PathLike, progress: Callable[[float], None] | None
) -> Trace:
    from .. import checkpoints
    from ..weight_comparison.dump_names import add_parameter_names

    return add_parameter_names(trace, checkpoints.open(Path(checkpoint).absolute()), progress)
