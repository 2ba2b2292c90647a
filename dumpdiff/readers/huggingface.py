"""Read what ``model_addition_debugger_context`` of Hugging Face's transformers (4.52 to 5) writes.

``*_debug_tree_FULL_TENSORS.json`` is a tree of module calls of one forward pass. Tensors have
shape, dtype and, of float16, float32 and bfloat16, mean, standard deviation, minimum and maximum as
printed. With ``use_repr=False`` their values are in safetensors files. ``*_SUMMARY.json`` is the
same tree without values. Modules that contain others have no outputs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..model.dtypes import normalize_dtype
from ..model.errors import DumpError
from ..model.input_files import is_plain_name, read_input_bytes
from ..model.trace import Problem, Source, Trace
from ..tensor_files.npy import validate_shape
from .files import Listing
from .manifest import Manifest, ManifestCall, ManifestTensor, build_trace
from .parts import Part

FORMAT = "huggingface"

_HEAD = re.compile(rb'\s*\{\s*"module_path"\s*:\s*"')
_SUMMARY, _FULL = "_SUMMARY.json", "_FULL_TENSORS.json"
#: Numbers are printed with four decimals after the first digit.
_RESOLUTION = 1e-4
_MAX_DEPTH = 200  #: modules in modules, and lists in arguments
_NUMBER = re.compile(r"tensor\(([^,)]+)")
_SIZE = re.compile(r"torch\.Size\(\[([\d, ]*)\]\)")
_KEY = "data"  #: name of the tensor in its safetensors file


def is_index_file(head: bytes) -> bool:
    """Whether a file that begins like this is a tree."""
    return _HEAD.match(head, 0, 256) is not None


def find_parts(listing: Listing) -> list[Part]:
    """List the trees; of two files of one tree the one with values."""
    files = listing.index_files[FORMAT]
    parts = []
    for file in files:
        full_file = file.with_name(file.name.removesuffix(_SUMMARY) + _FULL)
        if file.name.endswith(_SUMMARY) and full_file in files:
            continue
        has_files = any(file.parent.glob("*.safetensors"))
        parts.append(Part(FORMAT, file, has_whole_tensors=has_files))
    return parts


def read_part(part: Part) -> Trace:
    """Return the trace of one tree. Raises DumpError if it is damaged or holds no call."""
    tree = _read_tree(part.path)
    tensors: list[ManifestTensor] = []
    calls: list[ManifestCall] = []
    problems: list[Problem] = []
    _add_calls(tree, tensors, calls, 0)
    unusable_files = {tensor.file for tensor in tensors if not _is_usable(tensor, part.path)}
    if unusable_files:
        name = sorted(unusable_files)[0]
        message = f"the tensor file {name[:80]!r} is missing or elsewhere, its statistics were used"
        problems.append(Problem(part.path.name, message, count=len(unusable_files)))
        tensors = [
            replace(tensor, file="", key="") if tensor.file in unusable_files else tensor
            for tensor in tensors
        ]
    if not any(call.slots for call in calls):
        raise DumpError(f"{part.path}: holds no call with tensors; was the model called?")
    source = Source(
        path=str(part.path.parent),
        format=FORMAT,
        format_variant="model_addition_debugger",
        framework="pytorch",
        step=part.step,
        rank=part.rank,
        resolution=_RESOLUTION,
    )
    return build_trace(Manifest({}, tensors, calls, problems), source)


def _read_tree(path: Path) -> dict[str, Any]:
    try:
        tree = json.loads(read_input_bytes(path))
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise DumpError(f"{path}: broken JSON ({error}); record it again") from None
    if not isinstance(tree, dict):
        raise DumpError(f"{path}: expected an object with module_path and children")
    return tree


def _add_calls(
    node: Any, tensors: list[ManifestTensor], calls: list[ManifestCall], depth: int
) -> None:
    """Add the calls of a module and of those in it, in the order in which they ended."""
    if not isinstance(node, dict) or depth > _MAX_DEPTH:
        return
    children = node.get("children")
    inner_calls = children if isinstance(children, list) else []
    for child in inner_calls:
        _add_calls(child, tensors, calls, depth + 1)
    path = str(node.get("module_path", ""))
    slots = []
    for slot_kind, key in (("input", "inputs"), ("output", "outputs")):
        for slot, record in _iterate_tensors(node.get(key), slot_kind, 0):
            slots.append((slot, slot_kind, len(tensors)))
            tensors.append(_parse_tensor(record))
    scope = path.partition(".")[2]
    calls.append(
        ManifestCall(
            name=path,
            kind=f"Module.{scope.rpartition('.')[2]}" if scope else f"Module.{path}",
            slots=tuple(slots),
            level="module" if inner_calls else "op",
            module=scope,
        )
    )


def _iterate_tensors(value: Any, slot: str, depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (slot, record) of the tensors in arguments or results; a single output is output.0."""
    if isinstance(value, dict) and isinstance(value.get("shape"), str) and "dtype" in value:
        yield (f"{slot}.0" if slot == "output" else slot), value
        return
    if depth > _MAX_DEPTH:
        return
    items: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, dict):
        items = iter(value.items())
    elif isinstance(value, list):
        items = iter(enumerate(value))
    for key, item in items:
        is_group = slot == "input" and key in ("args", "kwargs")
        yield from _iterate_tensors(item, slot if is_group else f"{slot}.{key}", depth + 1)


def _parse_tensor(record: dict[str, Any]) -> ManifestTensor:
    shape = _parse_shape(record["shape"])
    high, low, mean, deviation = (
        _parse_number(record.get(name)) for name in ("max", "min", "mean", "std")
    )
    value = record.get("value")
    has_file = isinstance(value, str) and value.endswith(".safetensors")
    count = math.prod(shape) if shape is not None else 0
    # Of n elements with mean m and (n - 1)-weighted deviation s: norm^2 = (n - 1) s^2 + n m^2.
    # What is squared twice may be beyond a float, and then it is unknown.
    squares = (count - 1) * deviation * deviation + count * mean * mean
    norm = math.sqrt(squares) if math.isfinite(squares) and count > 1 else math.nan
    return ManifestTensor(
        dtype=normalize_dtype(str(record["dtype"])),
        shape=shape,
        statistics=(high, low, mean, norm),
        file=str(value).removeprefix("./") if has_file else "",
        key=_KEY if has_file else "",
    )


def _is_usable(tensor: ManifestTensor, path: Path) -> bool:
    if not tensor.file:
        return True
    return is_plain_name(tensor.file) and (path.parent / tensor.file).is_file()


def _parse_shape(text: str) -> tuple[int, ...] | None:
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    return validate_shape(int(extent) for extent in match[1].split(",") if extent.strip())


def _parse_number(text: Any) -> float:
    """Return the number in 'tensor(1.2345e-01, dtype=...)', NaN if there is none."""
    match = _NUMBER.match(text) if isinstance(text, str) else None
    try:
        return math.nan if match is None else float(match[1])
    except ValueError:
        return math.nan
