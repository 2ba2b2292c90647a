"""Read what SGLang's dumper (0.4 to 0.5, also imported by other programs) writes.

Each value is a file of ``torch.save`` whose name has its tags:
``step=0___rank=0___dump_index=4___name=hidden___layer_id=1.pt``. The file is a dict of ``value``
and ``meta``, before 0.5.9 the value itself. Its hooks of modules write
``non_intrusive__MODULE.inputs.0`` and ``non_intrusive__MODULE.output``; ``param__NAME`` is a
parameter, ``grad__`` before a name its gradient.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..checkpoints.torch_zip import read_archive
from ..model.errors import DumpError
from ..model.input_files import iterate_folders, read_head
from ..model.trace import BACKWARD, FORWARD, Problem, Source, Trace
from ..tensor_files.pickles import get_mapping_items
from .files import Listing
from .manifest import Manifest, ManifestCall, ManifestTensor, build_trace
from .parts import Part

FORMAT = "sglang"

_SUFFIX = ".pt"
_SEPARATOR = "___"
#: The step, as newer and older versions call it.
_STEP_TAGS = ("step", "forward_pass_id")
_VALUE = "value"
_GRADIENT, _PARAMETER, _MODULE = "grad__", "param__", "non_intrusive__"
_MODULE_VALUE = re.compile(
    r"(?:(?P<module>.+?)\.)?(?P<slot>inputs\.[^.]+|output)(?:\.(?P<part>[^.]+))?"
)
_RECOMPUTED = "recompute"
_MAX_DIGITS = 15


@dataclass(frozen=True)
class _File:
    """One file, by what its name says."""

    name: str  #: of the file
    tags: Mapping[str, str]

    def get_number(self, *keys: str) -> int | None:
        """Return the number of the first of these tags."""
        for key in keys:
            text = self.tags.get(key, "")
            if text.isdecimal() and len(text) <= _MAX_DIGITS:
                return int(text)
        return None


def find_parts(listing: Listing) -> list[Part]:
    """List the steps and ranks of the dumps, by the names of their files."""
    parts = []
    for folder, _, file_names in listing.folders:
        files = [file for name in file_names if (file := _parse_name(name)) is not None]
        if not files or read_head(folder / files[0].name, 4) != b"PK\x03\x04":
            continue
        places = {(file.get_number(*_STEP_TAGS), file.get_number("rank")) for file in files}
        for step, rank in sorted(places, key=lambda place: [n is not None and n for n in place]):
            parts.append(Part(FORMAT, folder, step, rank, has_whole_tensors=True))
    return parts


def _parse_name(name: str) -> _File | None:
    """Return the tags of a file name; None if it is of another format."""
    if not name.endswith(_SUFFIX) or f"{_SEPARATOR}name=" not in name:
        return None
    tags = {}
    for tag in name.removesuffix(_SUFFIX).split(_SEPARATOR):
        key, separator, value = tag.partition("=")
        if separator:
            tags[key] = value
    file = _File(name, tags)
    return file if file.get_number(*_STEP_TAGS) is not None else None


def read_part(part: Part) -> Trace:
    """Return the trace of one step of one rank. Raises DumpError if no file of it can be read."""
    names = next((files for _, _, files in iterate_folders(part.path)), [])
    files = [file for name in names if (file := _parse_name(name)) is not None]
    files = [
        file
        for file in files
        if (file.get_number(*_STEP_TAGS), file.get_number("rank")) == (part.step, part.rank)
    ]
    files.sort(key=lambda file: (file.get_number("dump_index") or 0, file.name))
    builder = _Builder(part.path)
    for file in files:
        builder.add_file(file)
    calls = builder.finish()
    if not calls:
        reason = f"; {builder.problems[0]}" if builder.problems else ""
        raise DumpError(f"{part.path}: holds no tensor that can be read{reason}")
    source = Source(
        path=str(part.path),
        format=FORMAT,
        format_variant="SGLang's dumper",
        framework="pytorch",
        step=part.step,
        rank=part.rank,
    )
    return build_trace(Manifest({}, builder.tensors, calls, builder.problems), source)


@dataclass
class _Call:
    """A call whose values are being collected."""

    name: str
    kind: str
    module: str
    phase: str = FORWARD
    recomputed: bool = False
    forward: _Call | None = None
    has_output: bool = False
    contains_calls: bool = False
    slots: list[tuple[str, str, int]] = field(default_factory=list)


@dataclass
class _Builder:
    """The calls and tensors of the files so far."""

    folder: Path
    tensors: list[ManifestTensor] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    _calls: list[_Call] = field(default_factory=list)
    _open: list[_Call] = field(default_factory=list)  #: module calls without an output so far
    #: name of a value, with its module -> the calls that wrote it
    _values: dict[str, list[_Call]] = field(default_factory=dict)
    _backward: dict[int, _Call] = field(default_factory=dict)  #: id of a forward call -> its own

    def add_file(self, file: _File) -> None:
        """Add the values of one file; what cannot be read becomes a problem."""
        name = file.tags["name"]
        is_gradient = name.startswith(_GRADIENT)
        name = name.removeprefix(_GRADIENT)
        parameter = name.removeprefix(_PARAMETER) if name.startswith(_PARAMETER) else ""
        for part, tensor in self._read_tensors(file):
            if is_gradient:
                self.tensors.append(replace(tensor, gradient_of=parameter))
            else:
                self.tensors.append(replace(tensor, parameter=parameter))
            number = len(self.tensors) - 1
            if parameter:
                self._add_parameter(file, parameter, number, is_gradient)
            elif name.startswith(_MODULE):
                self._add_module_value(
                    file, f"{name.removeprefix(_MODULE)}{part}", number, is_gradient
                )
            else:
                self._add_value(file, f"{_name_place(file)}{name}{part}", number, is_gradient)

    def finish(self) -> list[ManifestCall]:
        """Return the calls in the order in which they ended."""
        self._calls += self._open
        numbers = {id(call): number for number, call in enumerate(self._calls)}
        return [
            ManifestCall(
                name=call.name,
                kind=call.kind,
                slots=tuple(call.slots),
                phase=call.phase,
                level="module" if call.contains_calls else "op",
                module=call.module,
                forward=-1 if call.forward is None else numbers[id(call.forward)],
                recomputed=call.recomputed,
            )
            for call in self._calls
        ]

    def _read_tensors(self, file: _File) -> list[tuple[str, ManifestTensor]]:
        """Return (what follows the name, tensor) of a file of one tensor or a dict of them."""
        try:
            archive = read_archive(self.folder / file.name, file.name)
            content = get_mapping_items(archive.value) or {}
            value = content.get(_VALUE, archive.value)
            items = get_mapping_items(value)
            values = (
                {"": value} if items is None else {f".{key}": item for key, item in items.items()}
            )
            tensors = []
            for part, item in values.items():
                entry = archive.build_entry(file.tags["name"], item)
                if entry is None:
                    continue
                key = f"{_VALUE}{part}" if _VALUE in content else part.removeprefix(".")
                tensor = ManifestTensor(entry.dtype, tuple(entry.shape), file=file.name, key=key)
                tensors.append((part, tensor))
        except DumpError as error:
            self.problems.append(Problem(file.name, str(error), weakens=True))
            return []
        if not tensors:
            self.problems.append(Problem(file.name, "holds no tensor, but another value; left out"))
        return tensors

    def _add_parameter(self, file: _File, name: str, number: int, is_gradient: bool) -> None:
        """Add a parameter or its gradient to the only call of its module, else as a value."""
        module, _, own_name = name.rpartition(".")
        calls = [call for call in self._values.get(module, []) if call.kind]
        if len(calls) != 1:
            self._add_value(file, name, number, is_gradient)
        elif is_gradient:
            self._find_backward_call(calls[0]).slots.append(
                (f"output.{own_name}", "output", number)
            )
        else:
            calls[0].slots.append((f"parameter.{own_name}", "parameter", number))

    def _add_value(self, file: _File, name: str, number: int, is_gradient: bool) -> None:
        """Add a value that a script saved, as an op of its own."""
        call = _Call(name, "", name, recomputed=_is_recomputed(file))
        slot_kind = "output"
        if is_gradient:
            call.name, call.phase = f"{name}.gradient", BACKWARD
            forward_calls = self._values.get(name, [])
            if len(forward_calls) == 1:
                call.forward, slot_kind = forward_calls[0], "input"
        else:
            self._values.setdefault(name, []).append(call)
        call.slots.append((f"{slot_kind}.0", slot_kind, number))
        self._calls.append(call)

    def _add_module_value(self, file: _File, name: str, number: int, is_gradient: bool) -> None:
        """Add what a module was given or returned, or its gradient, to the call of the module."""
        match = _MODULE_VALUE.fullmatch(name)
        if match is None:
            self._add_value(file, name, number, is_gradient)
            return
        module = match["module"] or ""
        is_output = match["slot"] == "output"
        place = match["part"] or ("0" if is_output else "")
        slot = match["slot"].replace("inputs", "input") + (f".{place}" if place else "")
        if is_gradient:
            calls = self._values.get(module, [])
            if len(calls) == 1:
                self._add_gradient(calls[0], slot, number)
            else:
                self._add_value(file, name, number, is_gradient)
            return
        call = self._find_open_call(file, module)
        call.slots.append((slot, "output" if is_output else "input", number))
        if is_output and not call.has_output:
            call.has_output = True
            self._open.remove(call)
            self._calls.append(call)

    def _find_open_call(self, file: _File, module: str) -> _Call:
        for call in reversed(self._open):
            if call.module == module:
                return call
        if self._calls and self._calls[-1].module == module and self._calls[-1].kind:
            return self._calls[-1]  # the next of several outputs
        kind = f"Module.{module.rpartition('.')[2] or 'root'}"
        call = _Call(module or "root", kind, module, recomputed=_is_recomputed(file))
        for outer_call in self._open:
            outer_call.contains_calls = True
        self._values.setdefault(module, []).append(call)
        self._open.append(call)
        return call

    def _add_gradient(self, forward_call: _Call, slot: str, number: int) -> None:
        """Add a gradient to the backward call of a module: it reads those of the outputs."""
        place = slot.partition(".")[2]
        slot_kind = "input" if slot.startswith("output") else "output"
        call = self._find_backward_call(forward_call)
        call.slots.append((f"{slot_kind}.{place}", slot_kind, number))

    def _find_backward_call(self, forward_call: _Call) -> _Call:
        call = self._backward.get(id(forward_call))
        if call is None:
            call = _Call(
                f"{forward_call.name}.backward",
                forward_call.kind,
                forward_call.module,
                BACKWARD,
                forward=forward_call,
                contains_calls=forward_call.contains_calls,
            )
            self._backward[id(forward_call)] = call
            self._calls.append(call)
        return call


def _name_place(file: _File) -> str:
    """Return the module that the tags of a value name: 'layers.3.'; '' if there is none."""
    layer = file.tags.get("layer_id", "")
    return f"layers.{layer}." if layer.isdecimal() else ""


def _is_recomputed(file: _File) -> bool:
    return file.tags.get("recompute_status") == _RECOMPUTED
