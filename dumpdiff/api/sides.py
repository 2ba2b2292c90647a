"""Both sides read, large ones at the same time in two processes, and prepared for the alignment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import readers
from ..alignment import PreparedSide, prepare_side
from ..capture.completion import CompletedTrace, complete_trace, read_request
from ..graph import build_flow
from ..model.background import Background
from ..model.free_memory import return_free_memory
from ..model.gc_pause import pause_gc
from ..model.trace import Trace
from ..readers.parts import Part
from ..verification import TraceChecks, attach_all_checks, attach_file_checks
from .inputs import Inputs, PathLike
from .progress import Progress, narrow_progress, report_progress

_NAMES = ("target", "reference")
#: Bytes of the index files of either side from which on two processes read them. To copy a process
#: and to hand its tables over takes as long as to read some 2 MiB of msprobe's dump.json.
_MIN_BYTES = 4 << 20


@dataclass(frozen=True)
class Side:
    """What was read of one side."""

    prepared: PreparedSide
    checks: TraceChecks  #: of its trace; of records only if all files were read for them
    remarks: tuple[str, ...]  #: on what completed it


def read_sides(
    inputs: Inputs, parts: tuple[Part, Part], progress: Progress | None
) -> tuple[Side, Side]:
    """Read the target and the reference.

    Narrowed dumps complete them, and checkpoints name the parameters, if there are any. Raises
    DumpError if one of them cannot be read.
    """
    reference_call = (inputs, 1, parts[1])
    if min(map(readers.measure_index, parts)) < _MIN_BYTES:
        return read_side(inputs, 0, parts[0], progress), read_side(*reference_call, progress)
    pending_reference = Background(_read_large_side, *reference_call)
    target = _read_large_side(inputs, 0, parts[0], progress)
    return target, pending_reference.get_reply()


def _read_large_side(
    inputs: Inputs, number: int, part: Part, progress: Progress | None = None
) -> Side:
    """Return what :func:`read_side` returns; the other side needs the memory that this left."""
    side = read_side(inputs, number, part, progress)
    return_free_memory()
    return side


@pause_gc()
def read_side(inputs: Inputs, number: int, part: Part, progress: Progress | None = None) -> Side:
    """Read the target (``number`` 0) or the reference (1) and prepare it for the alignment."""
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
        checks = attach_file_checks(trace)
    flow = build_flow(checks.trace, narrow_progress(progress, f"statistics of the {side}"))
    prepared = prepare_side(flow, inputs.book, is_target=number == 0)
    return Side(prepared, checks, tuple(remarks))


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
