"""Parse ``manifest.json``: its tensors and calls, checked; what is wrong becomes a problem.

The format is docs/manifest.schema.json. A manifest that another program wrote may be wrong in any
place, so a wrong value is left out and reported, and only a document without calls is refused.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from ...model.dtypes import normalize_dtype
from ...model.errors import DumpError
from ...model.input_files import read_input_bytes
from ...model.trace import FORWARD, PHASES, Problem
from ...tensor_files.npy import validate_shape

#: The first key of the document, by which it is recognized; its value is the version.
RECOGNITION_KEY = "dumpdiff_manifest"
VERSION = 1
#: Keys of a call that hold tensors -> kind of slot, in the order of the table.
SLOT_KINDS = {"inputs": "input", "parameters": "parameter", "outputs": "output"}
LEVELS = ("op", "module")
#: Keys of the lists of the document; all others are the header.
_TABLES = ("tensors", "calls", "stacks")
STATISTICS = ("max", "min", "mean", "norm")

_MAX_SHOWN_VALUE = 60  #: characters of a wrong value in a message


@dataclass(frozen=True)
class ManifestTensor:
    """One tensor of a manifest; what is not given has its neutral value."""

    dtype: str = ""
    shape: tuple[int, ...] | None = None
    statistics: tuple[float, float, float, float] = (math.nan,) * 4  #: max, min, mean, norm
    l1: float = math.nan  #: L1 norm; no manifest has it, recorders of other formats write it
    nonfinite: int = -1
    hash: str = ""
    value: float | None = None  #: of a Python scalar
    file: str = ""  #: relative to the manifest
    key: str = ""  #: name of the tensor in a file of several
    sketch: int = -1  #: row of the file of sketches
    parameter: str = ""
    gradient_of: str = ""
    update_of: str = ""

    @property
    def size(self) -> int:
        """Number of elements, -1 if unknown."""
        return -1 if self.shape is None else math.prod(self.shape)


@dataclass(frozen=True)
class ManifestCall:
    """One call of a manifest. ``slots`` has (slot, kind of slot, index of the tensor)."""

    name: str
    kind: str
    slots: tuple[tuple[str, str, int], ...]
    phase: str = FORWARD
    level: str = "op"
    module: str = ""
    parent: int = -1
    forward: int = -1
    recomputed: bool = False
    source: str = ""
    stack: str = ""
    group: str = ""
    members: tuple[int, ...] | None = None
    reduction: str = ""
    peer: int = -1


@dataclass(frozen=True)
class Manifest:
    """A manifest that was read."""

    header: Mapping[str, Any]
    tensors: Sequence[ManifestTensor]
    calls: Sequence[ManifestCall]
    problems: Sequence[Problem]


def read_manifest(path: Path) -> Manifest:
    """Return a manifest. Raises DumpError if it is no JSON, of a later version, or has no calls."""
    document = _parse_json(path)
    version = document.get(RECOGNITION_KEY)
    if type(version) is not int or version > VERSION:
        raise DumpError(
            f"{path}: has {RECOGNITION_KEY} {version!r}, expected {VERSION}; "
            "a later dumpdiff can read it"
        )
    complaints = _Complaints(path.name)
    tensors = [
        _parse_tensor(entry, f"tensors[{index}]", complaints)
        for index, entry in enumerate(_get_list(document, "tensors", path))
    ]
    entries = _get_list(document, "calls", path)
    stacks = document.get("stacks")
    shared_stacks = stacks if isinstance(stacks, list) else []
    calls = [
        _parse_call(entry, index, len(entries), len(tensors), shared_stacks, complaints)
        for index, entry in enumerate(entries)
    ]
    if not calls:
        raise DumpError(f"{path}: holds no calls; was anything recorded?")
    problems = complaints.list_problems()
    if document.get("complete") is False:
        message = "the recorded step did not end; what came before the end is here"
        problems.append(Problem(path.name, message, weakens=True))
    header = {key: value for key, value in document.items() if key not in _TABLES}
    return Manifest(header, tensors, calls, problems)


def _parse_json(path: Path) -> dict[str, Any]:
    try:
        content = read_input_bytes(path)
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        document = orjson.loads(content)
    except ValueError:
        try:  # Python's parser accepts NaN and Infinity
            document = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise DumpError(
                f"{path}: broken JSON ({error}); record it again or copy it again"
            ) from None
    if not isinstance(document, dict):
        raise DumpError(f"{path}: expected an object with {RECOGNITION_KEY}")
    return document


def _get_list(document: Mapping[str, Any], key: str, path: Path) -> list[Any]:
    entries = document.get(key)
    if not isinstance(entries, list):
        raise DumpError(f'{path}: expected a list "{key}"; see docs/manifest.schema.json')
    return entries


@dataclass
class _Complaints:
    """What is wrong in a document, counted by kind."""

    file: str
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, place: str, key: str, value: Any, expected: str) -> None:
        """Count a wrong value; the first of its kind is shown."""
        kind = f"{place.partition('[')[0]}.{key}: {expected}"
        self.counts[kind] += 1
        shown = repr(value)[:_MAX_SHOWN_VALUE]
        self.examples.setdefault(kind, f"{place}.{key} is {shown}, expected {expected}; left out")

    def list_problems(self) -> list[Problem]:
        """Return one problem for each kind of wrong value."""
        return [
            Problem(self.file, self.examples[kind], count=count, weakens=True)
            for kind, count in self.counts.items()
        ]


def _parse_tensor(entry: Any, place: str, complaints: _Complaints) -> ManifestTensor:
    if not isinstance(entry, dict):
        complaints.add(place, "", entry, "an object")
        return ManifestTensor()
    get = _make_getter(entry, place, complaints)
    shape = get("shape", _to_shape, "a list of numbers of elements", None)
    statistics = [get(name, _to_float, "a number or null", math.nan) for name in STATISTICS]
    max_value, min_value, mean, norm = statistics
    nonfinite = get("nonfinite", _to_bool, "true or false", None)
    return ManifestTensor(
        dtype=normalize_dtype(get("dtype", _to_text, "text", "")),
        shape=shape,
        statistics=(max_value, min_value, mean, norm),
        nonfinite=-1 if nonfinite is None else int(nonfinite),
        hash=get("hash", _to_text, "text", ""),
        value=get("value", _to_number, "a number, true or false", None),
        file=get("file", _to_text, "text", ""),
        key=get("key", _to_text, "text", ""),
        sketch=get("sketch", _to_index, "the number of a sketch", -1),
        parameter=get("parameter", _to_text, "text", ""),
        gradient_of=get("gradient_of", _to_text, "text", ""),
        update_of=get("update_of", _to_text, "text", ""),
    )


def _parse_call(
    entry: Any,
    index: int,
    n_calls: int,
    n_tensors: int,
    stacks: Sequence[Any],
    complaints: _Complaints,
) -> ManifestCall:
    place = f"calls[{index}]"
    if not isinstance(entry, dict):
        complaints.add(place, "", entry, "an object")
        return ManifestCall(f"call {index}", "", ())
    get = _make_getter(entry, place, complaints)

    def to_call(value: Any) -> int | None:
        number = _to_index(value)
        return number if number is not None and number < n_calls and number != index else None

    slots = []
    for key, slot_kind in SLOT_KINDS.items():
        for slot, tensor in _iterate_slots(entry.get(key), slot_kind):
            number = _to_index(tensor)
            if number is None or number >= n_tensors:
                complaints.add(place, key, tensor, f"the number of one of {n_tensors} tensors")
            else:
                slots.append((slot, slot_kind, number))
    stack = entry.get("stack")
    if type(stack) is int:  # several calls share it
        stack = stacks[stack] if 0 <= stack < len(stacks) else None
    frames = stack if isinstance(stack, list) else []
    members = get("members", _to_ranks, "a list of ranks", None)
    return ManifestCall(
        name=get("name", _to_text, "text", "") or f"call {index}",
        kind=get("kind", _to_text, "text", ""),
        slots=tuple(slots),
        phase=get("phase", _choose(PHASES), f"one of {', '.join(PHASES)}", FORWARD),
        level=get("level", _choose(LEVELS), f"one of {', '.join(LEVELS)}", "op"),
        module=get("module", _to_text, "text", ""),
        parent=get("parent", to_call, f"the number of one of {n_calls} calls", -1),
        forward=get("forward", to_call, f"the number of one of {n_calls} calls", -1),
        recomputed=get("recomputed", _to_bool, "true or false", False),
        source=get("source", _to_text, "text", ""),
        stack="\n".join(str(frame) for frame in frames),
        group=get("group", _to_text, "text", ""),
        members=members,
        reduction=get("reduction", _to_text, "text", ""),
        peer=get("peer", _to_index, "a rank", -1),
    )


def _make_getter(entry: Mapping[str, Any], place: str, complaints: _Complaints) -> Any:
    """Return a function (key, conversion, what is expected, default) -> value."""

    def get(key: str, convert: Callable[[Any], Any], expected: str, default: Any) -> Any:
        value = entry.get(key)
        if value is None:
            return default
        converted = convert(value)
        if converted is None:
            complaints.add(place, key, value, expected)
            return default
        return converted

    return get


def _iterate_slots(tensors: Any, slot_kind: str) -> Iterator[tuple[str, Any]]:
    """Yield (slot, number of the tensor) of a list or an object; null in a list is left out."""
    if isinstance(tensors, list):
        for position, tensor in enumerate(tensors):
            if tensor is not None:
                yield f"{slot_kind}.{position}", tensor
    elif isinstance(tensors, dict):
        for name, tensor in tensors.items():
            yield f"{slot_kind}.{name}", tensor


def _to_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _to_bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _to_float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _to_number(value: Any) -> float | None:
    return float(value) if isinstance(value, bool) else _to_float(value)


def _to_index(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _to_shape(value: Any) -> tuple[int, ...] | None:
    return validate_shape(value) if isinstance(value, list) else None


def _to_ranks(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or any(_to_index(rank) is None for rank in value):
        return None
    return tuple(value)


def _choose(words: Sequence[str]) -> Callable[[Any], str | None]:
    return lambda value: value if value in words else None
