"""Build a trace of the module calls, parameters and gradients that a monitor of msprobe wrote."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ...model.errors import DumpError
from ...model.trace import BACKWARD, FORWARD, OPTIMIZER, Problem, Source, Trace
from ..files import Listing
from ..manifest import Manifest, ManifestCall, ManifestTensor, build_trace
from ..parts import Part
from .rows import (
    NEW_PARAMETER,
    OLD_PARAMETER,
    REDUCED,
    UNREDUCED,
    Row,
    find_rank,
    find_scope_v1,
    is_monitor_file,
    list_columns,
    read_rows,
)

FORMAT = "monitor"

#: Statistics of six decimals keep this relative resolution, because smaller ones are left out.
_RESOLUTION_V1 = 1e-4
_RESOLUTION = 1e-7
#: ``model.norm.input``, ``model.norm.input_1`` (version 1), ``model.norm.grad_input.1`` (2).
_SLOT = re.compile(
    r"(?:(?P<module>.*)\.)?(?:grad_)?(?P<kind>input|output)(?:[._](?P<place>\d{1,9}))?"
)
_STEPS = re.compile(r"_(?:step)?(\d{1,15})-(\d{1,15})\.csv")
_GRADIENT = "parameters_grad"  #: as msprobe's dumps call the gradients of a module
_READ_SCOPES = {FORWARD, BACKWARD, REDUCED, UNREDUCED, OLD_PARAMETER, NEW_PARAMETER}

_Place = tuple[int, str]  #: stage of the virtual pipeline, module or parameter


def is_index_file(head: bytes) -> bool:
    """Whether a file that begins like this is a CSV file of a monitor."""
    return is_monitor_file(head)


def find_parts(listing: Listing) -> list[Part]:
    """List the steps of each folder in which calls of modules were monitored.

    Without them there is nothing to align: gradients alone are norms.
    """
    files_of_folder: dict[Path, list[Path]] = {}
    for file in listing.index_files[FORMAT]:
        files_of_folder.setdefault(file.parent, []).append(file)
    parts = []
    for folder, files in files_of_folder.items():
        module_files = [file for file in files if _has_modules(file)]
        steps = {step for file in module_files for step in _list_steps(file)}
        path = listing.path if listing.path.is_file() else folder
        parts += [Part(FORMAT, path, step, find_rank(module_files[0])) for step in sorted(steps)]
    return parts


def read_part(part: Part) -> Trace:
    """Return the trace of one step of one rank. Raises DumpError if it holds no call."""
    files = sorted(part.path.glob("*.csv")) if part.path.is_dir() else [part.path]
    rows: list[Row] = []
    problems: list[Problem] = []
    for file in files:
        if list_columns(file):
            file_rows, file_problems = read_rows(file)
            rows += [row for row in file_rows if row.step == part.step and not row.is_empty]
            problems += file_problems
    builder = _Builder()
    builder.add_rows(rows)
    calls = builder.finish()
    if not calls:
        raise DumpError(f"{part.path}: holds no call of a module of step {part.step}")
    unread_scopes = sorted({row.scope for row in rows} - _READ_SCOPES)
    if unread_scopes:
        message = f"rows of {', '.join(unread_scopes)} are not compared"
        problems.append(Problem(part.path.name, message))
    has_all_digits = not any(row.rounding for row in rows)
    source = Source(
        path=str(part.path if part.path.is_dir() else part.path.parent),
        format=FORMAT,
        format_variant="TrainerMonitorV2" if has_all_digits else "TrainerMon",
        framework="",
        step=part.step,
        rank=part.rank,
        resolution=_RESOLUTION if has_all_digits else _RESOLUTION_V1,
    )
    return build_trace(Manifest({}, builder.tensors, calls, problems), source)


def _has_modules(file: Path) -> bool:
    """Return whether the rows of a file are of modules: its name, or its first row, says so."""
    if "scope" not in list_columns(file):
        return find_scope_v1(file) in (FORWARD, BACKWARD)
    rows, _ = read_rows(file)
    return any(row.scope in (FORWARD, BACKWARD) for row in rows[:1])


def _list_steps(file: Path) -> set[int]:
    """Return the steps of a file: that of its name, or those of its rows."""
    match = _STEPS.search(file.name)
    if match is not None and int(match[1]) == int(match[2]):
        return {int(match[1])}
    rows, _ = read_rows(file)
    return {row.step for row in rows}


@dataclass(eq=False)
class _Call:
    """A call of a module that is being put together."""

    place: _Place
    phase: str
    slots: dict[str, int] = field(default_factory=dict)  #: slot -> number of its tensor
    micro_step: int = 0
    end: int = 0  #: number of its last tensor
    forward: _Call | None = None
    contains_calls: bool = False

    @property
    def module(self) -> str:
        """Path of the module; '' of the model itself."""
        return self.place[1]


@dataclass
class _Builder:
    """The tensors and calls of the rows of one step."""

    tensors: list[ManifestTensor] = field(default_factory=list)
    _calls: list[_Call] = field(default_factory=list)
    _latest: dict[tuple[_Place, str], _Call] = field(default_factory=dict)
    _forward_calls: dict[_Place, list[_Call]] = field(default_factory=dict)
    _parameters: dict[_Place, int] = field(default_factory=dict)
    _gradients: dict[_Place, int] = field(default_factory=dict)
    _updates: dict[_Place, int] = field(default_factory=dict)

    def add_rows(self, rows: Iterable[Row]) -> None:
        """Add the rows of all files: calls first, then parameters and gradients."""
        by_scope: dict[str, list[Row]] = {}
        for row in rows:
            by_scope.setdefault(row.scope, []).append(row)
        for scope in (FORWARD, BACKWARD):
            for row in by_scope.get(scope, []):
                self._add_module_row(row)
        for row in by_scope.get(OLD_PARAMETER, []):
            self._parameters[row.stage, row.name] = self._add(row, parameter=row.name)
        # The last micro-batch has the sum of all gradients; after their exchange, if it is there.
        for row in by_scope.get(REDUCED, by_scope.get(UNREDUCED, [])):
            self._gradients[row.stage, row.name] = self._add(row, gradient_of=row.name)
        for row in by_scope.get(NEW_PARAMETER, []):
            self._updates[row.stage, row.name] = self._add(row, update_of=row.name)

    def finish(self) -> list[ManifestCall]:
        """Return the calls of modules, then those of gradients, then the updates."""
        if not self._calls:
            return []
        for (stage, name), number in self._parameters.items():
            module, _, own_name = name.rpartition(".")
            for call in self._forward_calls.get((stage, module), []):
                call.slots[f"parameter.{own_name}"] = number
        self._calls.sort(key=lambda call: call.end)
        self._mark_outer_calls()
        numbers = {id(call): number for number, call in enumerate(self._calls)}
        calls = [_build_call(call, numbers) for call in self._calls]
        for place, number in self._gradients.items():
            name = f"{place[1]}.{_GRADIENT}"
            written = (("output.0", "output", number),)
            calls.append(ManifestCall(name, _GRADIENT, written, phase=BACKWARD))
        for place, number in self._updates.items():
            known = [values[place] for values in (self._parameters, self._gradients)
                     if place in values]  # fmt: skip
            read = [(f"input.{i}", "input", value) for i, value in enumerate(known)]
            slots = (*read, ("output.0", "output", number))
            calls.append(ManifestCall(f"Optimizer.{place[1]}", "Optimizer", slots, phase=OPTIMIZER))
        return calls

    def _add_module_row(self, row: Row) -> None:
        match = _SLOT.fullmatch(row.name)
        if match is None:
            return
        place = row.stage, match["module"] or ""
        kind = match["kind"]
        if row.scope == BACKWARD:  # it reads the gradients of outputs
            kind = "input" if kind == "output" else "output"
        slot = f"{kind}.{match['place'] or 0}"
        call = self._latest.get((place, row.scope))
        if call is None or slot in call.slots or call.micro_step != row.micro_step:
            call = self._begin_call(place, row)
        call.slots[slot] = call.end = self._add(row)

    def _begin_call(self, place: _Place, row: Row) -> _Call:
        call = _Call(place, row.scope, micro_step=row.micro_step)
        forward_calls = self._forward_calls.setdefault(place, [])
        if row.scope == FORWARD:
            forward_calls.append(call)
        elif len(forward_calls) == 1:
            call.forward = forward_calls[0]
        self._latest[place, row.scope] = call
        self._calls.append(call)
        return call

    def _mark_outer_calls(self) -> None:
        """Mark the calls of modules that contain others that were called."""
        outer_modules = {""}
        for call in self._calls:
            module = call.module
            while module := module.rpartition(".")[0]:
                outer_modules.add(module)
        has_inner = any(call.module for call in self._calls)
        for call in self._calls:
            call.contains_calls = has_inner and call.module in outer_modules

    def _add(
        self, row: Row, *, parameter: str = "", gradient_of: str = "", update_of: str = ""
    ) -> int:
        self.tensors.append(
            ManifestTensor(
                row.dtype,
                row.shape,
                _keep_exact(row),
                nonfinite=row.nonfinite,
                parameter=parameter,
                gradient_of=gradient_of,
                update_of=update_of,
            )
        )
        return len(self.tensors) - 1


def _keep_exact(row: Row) -> tuple[float, float, float, float]:
    """Return the statistics, without those of which too few digits were written."""
    if not row.rounding:
        return row.statistics
    numbers = np.array(row.statistics)
    numbers[np.abs(numbers) < row.rounding / _RESOLUTION_V1] = math.nan
    high, low, mean, norm = numbers.tolist()
    return high, low, mean, norm


def _build_call(call: _Call, numbers: dict[int, int]) -> ManifestCall:
    name = call.module or "root"
    return ManifestCall(
        name=name if call.phase == FORWARD else f"{name}.backward",
        kind=f"Module.{name.rpartition('.')[2]}",
        slots=_order_slots(call.slots),
        phase=call.phase,
        level="module" if call.contains_calls else "op",
        module=call.module,
        forward=-1 if call.forward is None else numbers[id(call.forward)],
    )


def _order_slots(slots: dict[str, int]) -> tuple[tuple[str, str, int], ...]:
    """Return (slot, its kind, tensor) of inputs, then parameters, then outputs."""
    order: Sequence[str] = ("input", "parameter", "output")
    kinds = {slot: slot.partition(".")[0] for slot in slots}
    ordered = sorted(slots, key=lambda slot: order.index(kinds[slot]))
    return tuple((slot, kinds[slot], slots[slot]) for slot in ordered)
