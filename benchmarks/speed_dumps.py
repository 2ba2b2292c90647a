"""Write msprobe dumps of any number of calls: the layers of one real recording, cut or repeated.

The recording is one of statistics (level mix) of a model with decoder layers. Names and counters of
calls are those that a model with as many layers would have. A repeated layer has the recorded
numbers times a factor of its own, so that its values are its own and flow as recorded.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

Json = dict[str, Any]

NOISE = 1e-7  #: error of one element relative to the root mean square, as between two machines
FAULT = 1.01  #: factor of the faulty output and of all that follows from it
#: Everything after its result depends on it. The middle layer's call is faulty.
_FAULTY_API, _FAULTY_MODULE = "Functional.linear", ".down_proj."
_MASK = 1e8  #: magnitude from which on a number is the constant of a mask, which no fault changes
_STATISTICS = ("Max", "Min", "Mean", "Norm")
_LAYER = re.compile(r"(?<=\blayers\.)\d+")
_API = re.compile(r"(?!Module)(?P<api>.+)\.(?P<number>\d+)\.(?P<direction>forward|backward)")
_MAX_NESTING = 20  #: modules around a call


@dataclass(frozen=True)
class Recording:
    """A dump of one step as its files hold it."""

    header: Json
    entries: dict[str, Json]
    construct: dict[str, str | None]
    stacks: dict[str, list[list[str]]]
    n_layers: int


@dataclass(frozen=True)
class Variant:
    """What a dump has of the recording."""

    n_layers: int
    has_noise: bool = False  #: every computed value is off by rounding
    has_fault: bool = False
    is_linked: bool = True  #: False: no op reads a value that another one wrote


@dataclass(frozen=True)
class _Call:
    name: str  #: as recorded
    repetition: int  #: of the recorded layers


def read_recording(folder: Path) -> Recording:
    """Read the one dump below a folder."""
    (path,) = folder.rglob("dump.json")
    header = orjson.loads(path.read_bytes())
    entries = header.pop("data")
    construct = orjson.loads(path.with_name("construct.json").read_bytes())
    stacks = orjson.loads(path.with_name("stack.json").read_bytes())
    layers = {_find_layer(name, construct) for name in entries}
    return Recording(header, entries, construct, stacks, max(layers) + 1)


def write_dump(recording: Recording, folder: Path, variant: Variant) -> None:
    """Write the files of a dump to ``folder``/step0/proc0."""
    calls = _list_calls(recording, variant.n_layers)
    names = _name_calls(recording, calls)
    edit = _Edit(recording, variant)
    fault = _find_faulty_call(recording, calls) if variant.has_fault else None
    process = folder / "step0" / "proc0"
    process.mkdir(parents=True)
    with (process / "dump.json").open("wb") as file:
        file.write(orjson.dumps(recording.header)[:-1] + b', "data": {\n')
        for position, call in enumerate(calls):
            content = orjson.loads(orjson.dumps(recording.entries[call.name]))  # a deep copy
            edit.change_entry(content, call, call == fault)
            # indented below its name, as msprobe prints it
            text = orjson.dumps(content, option=orjson.OPT_INDENT_2).replace(b"\n", b"\n  ")
            separator = b"" if position == 0 else b",\n"
            file.write(b"%s  %s: %s" % (separator, orjson.dumps(names[call]), text))
        file.write(b"\n}}\n")
    (process / "construct.json").write_bytes(orjson.dumps(_build_construct(recording, names)))
    (process / "stack.json").write_bytes(orjson.dumps(_build_stacks(recording, names)))


def _find_layer(name: str, construct: dict[str, str | None]) -> int:
    """Return the decoder layer that a call is in, -1 if it is in none."""
    outer_name: str | None = name
    for _ in range(_MAX_NESTING):
        if outer_name is None:
            return -1
        match = _LAYER.search(outer_name)
        if match:
            return int(match[0])
        outer_name = construct.get(outer_name)
    return -1


def _list_calls(recording: Recording, n_layers: int) -> list[_Call]:
    """Return the calls of a model of so many layers in the order of the run."""
    layer_of = {name: _find_layer(name, recording.construct) for name in recording.entries}
    names = list(recording.entries)
    n_forward = next(i for i, name in enumerate(names) if "backward" in name)
    n_repetitions = -(-n_layers // recording.n_layers)
    calls: list[_Call] = []
    for part, repetitions in (
        (names[:n_forward], range(n_repetitions)),
        (names[n_forward:], reversed(range(n_repetitions))),
    ):
        in_layers = [position for position, name in enumerate(part) if layer_of[name] >= 0]
        before, after = part[: in_layers[0]], part[in_layers[0] :]
        calls += [_Call(name, 0) for name in before]
        for repetition in repetitions:
            first_layer = repetition * recording.n_layers
            for name in after:
                if layer_of[name] >= 0 and first_layer + layer_of[name] < n_layers:
                    calls.append(_Call(name, repetition))
        calls += [_Call(name, 0) for name in after if layer_of[name] < 0]
    return calls


def _name_calls(recording: Recording, calls: list[_Call]) -> dict[_Call, str]:
    """Return the names that the calls have in the dump; msprobe counts the calls of every API."""
    names: dict[_Call, str] = {}
    numbers: dict[tuple[str, str, int], int] = {}
    counts: Counter[str] = Counter()
    for call in calls:
        match = _API.fullmatch(call.name)
        if match is None:
            names[call] = _rename_module(recording, call.name, call.repetition)
            continue
        key = (match["api"], match["number"], call.repetition)
        if key not in numbers:
            numbers[key] = counts[match["api"]]
            counts[match["api"]] += 1
        names[call] = f"{match['api']}.{numbers[key]}.{match['direction']}"
    return names


def _rename_module(recording: Recording, name: str, repetition: int) -> str:
    first_layer = repetition * recording.n_layers
    return _LAYER.sub(lambda match: str(int(match[0]) + first_layer), name)


def _find_faulty_call(recording: Recording, calls: list[_Call]) -> _Call:
    candidates = [
        call
        for call in calls
        if call.name.startswith(_FAULTY_API)
        and call.name.endswith(".forward")
        and _FAULTY_MODULE in (recording.construct.get(call.name) or "")
    ]
    return candidates[len(candidates) // 2]


def _build_construct(recording: Recording, names: dict[_Call, str]) -> dict[str, str | None]:
    construct = {}
    for call, name in names.items():
        module = recording.construct.get(call.name)
        if module is not None:
            module = _rename_module(recording, module, call.repetition)
        construct[name] = module
    return construct


def _build_stacks(recording: Recording, names: dict[_Call, str]) -> dict[str, list[list[str]]]:
    group_of = {name: key for key, (members, _) in recording.stacks.items() for name in members}
    members: dict[str, list[str]] = {}
    for call, name in names.items():
        if call.name in group_of:
            members.setdefault(group_of[call.name], []).append(name)
    return {key: [group, recording.stacks[key][1]] for key, group in members.items()}


class _Edit:
    """Changes of the recorded numbers, entry by entry in the order of the run."""

    def __init__(self, recording: Recording, variant: Variant) -> None:
        self.variant = variant
        self.links = random.Random(1)
        self.errors = random.Random(2)
        self.weights = {
            _get_numbers(tensor)
            for entry in recording.entries.values()
            for tensor in _iterate_tensors(entry.get("parameters"))
        }
        self.noisy_numbers: dict[tuple[float, ...], tuple[float, ...]] = {}
        self.is_after_fault = False
        self.sound_values: set[tuple[float, ...]] = set()

    def change_entry(self, entry: Json, call: _Call, is_faulty: bool) -> None:
        """Change all numbers of an entry in place."""
        scale = 1 + call.repetition / 7
        if is_faulty:
            self.is_after_fault = True
            self.sound_values.update(map(_get_numbers, _iterate_tensors(entry["input_args"])))
        for tensor in _iterate_tensors(entry):
            recorded = _get_numbers(tensor)
            numbers = tuple(number * scale for number in recorded)
            if recorded not in self.weights:
                numbers = self._change_computed(tensor, recorded, numbers)
            tensor.update(zip(_STATISTICS, numbers, strict=True))

    def _change_computed(
        self, tensor: Json, recorded: tuple[float, ...], numbers: tuple[float, ...]
    ) -> tuple[float, ...]:
        if not self.variant.is_linked:
            factor = 1 + self.links.random()
            numbers = tuple(number * factor for number in numbers)
        if self.variant.has_fault and not self.is_after_fault:
            self.sound_values.add(recorded)
        elif self.variant.has_fault and recorded not in self.sound_values:
            numbers = tuple(number * FAULT if abs(number) < _MASK else number for number in numbers)
        if self.variant.has_noise:
            if numbers not in self.noisy_numbers:
                self.noisy_numbers[numbers] = self._add_noise(tensor, numbers)
            numbers = self.noisy_numbers[numbers]
        return numbers

    def _add_noise(self, tensor: Json, numbers: tuple[float, ...]) -> tuple[float, ...]:
        """Return the numbers as another machine would have them; equal tensors stay equal."""
        size = 1
        for extent in tensor["shape"]:
            size *= extent
        if size == 1:
            factor = 1 + NOISE * self.errors.gauss(0, 1)
            return tuple(number * factor for number in numbers)
        high, low, _, norm = numbers
        scales = (abs(high), abs(low), norm / max(1, size) ** 0.5, norm)
        return tuple(
            number if number.is_integer() else number + NOISE * self.errors.gauss(0, 1) * scale
            for number, scale in zip(numbers, scales, strict=True)
        )


def _get_numbers(tensor: Json) -> tuple[float, ...]:
    return tuple(tensor[name] for name in _STATISTICS)


def _iterate_tensors(content: Any) -> Iterator[Json]:
    """Yield the floating tensors below a piece of an entry."""
    if isinstance(content, dict):
        if isinstance(content.get("Norm"), float):
            yield content
        else:
            for value in content.values():
                yield from _iterate_tensors(value)
    elif isinstance(content, list):
        for value in content:
            yield from _iterate_tensors(value)
