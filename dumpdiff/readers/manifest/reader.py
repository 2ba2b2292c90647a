"""Build a trace from a manifest: its calls are ops, and each of their slots is a tensor."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...model.arrays import AnyArray
from ...model.errors import DumpError
from ...model.sketches import LENGTH, VERSION
from ...model.trace import (
    COMMUNICATION,
    Problem,
    Source,
    Trace,
    build_communication_table,
    build_op_table,
    build_tensor_table,
)
from ...tensor_files.npy import open_array, resolve_inside
from ..files import Listing, find_folder_number
from ..parts import Part
from ..reductions import normalize_reduction
from ..tensor_folder import load_folder_tensor
from .document import RECOGNITION_KEY, Manifest, ManifestTensor, read_manifest

FORMAT = "manifest"

_HEAD_SIZE = 4096  #: bytes of a file that decide whether it is a manifest


def is_index_file(head: bytes) -> bool:
    """Whether a file that begins like this is a manifest, judged by its first key."""
    head = head[:_HEAD_SIZE].lstrip()
    return head.startswith(b"{") and f'"{RECOGNITION_KEY}"'.encode() in head


def find_parts(listing: Listing) -> list[Part]:
    """List every manifest.

    Step and rank are those that it states, else the numbers of the folders stepN and rankN.
    """
    parts = []
    for file in listing.index_files[FORMAT]:
        step, rank = find_folder_number(file, "step"), find_folder_number(file, "rank")
        has_whole_tensors = any(file.parent.glob("tensors/*"))
        parts.append(Part(FORMAT, file, step, rank, has_whole_tensors=has_whole_tensors))
    return parts


def read_part(part: Part) -> Trace:
    """Return the trace of one manifest. Raises DumpError if it cannot be used."""
    manifest = read_manifest(part.path)
    header = manifest.header
    details = header.get("details")
    source = Source(
        path=str(part.path.parent),
        format=FORMAT,
        format_variant=str(header.get("recorder", "recorder unknown")),
        framework=str(header.get("framework", "")),
        step=_get_number(header, "step", part.step),
        rank=_get_number(header, "rank", part.rank),
        resolution=_get_resolution(header),
        details=details if isinstance(details, dict) else {},
    )
    return build_trace(manifest, source)


def build_trace(manifest: Manifest, source: Source) -> Trace:
    """Return the trace of a manifest whose files are in ``source.path``."""
    folder = Path(source.path)
    problems = list(manifest.problems)
    names = _number_repeats([call.name for call in manifest.calls])
    ops = build_op_table({
        "name": names,
        "kind": [call.kind for call in manifest.calls],
        "phase": [call.phase for call in manifest.calls],
        "level": [call.level for call in manifest.calls],
        "scope": [call.module for call in manifest.calls],
        "parent": [call.parent for call in manifest.calls],
        "forward": [call.forward for call in manifest.calls],
        "recomputed": [call.recomputed for call in manifest.calls],
        "source": [call.source for call in manifest.calls],
        "stack": [call.stack for call in manifest.calls],
    })  # fmt: skip
    sketches, sketch_problems = _read_sketches(folder, manifest)
    tensors = _build_tensors(manifest, sketches)
    problems += sketch_problems
    loader = partial(load_folder_tensor, folder)
    return Trace(source, ops, tensors, tuple(problems), loader, _build_communications(manifest))


def _build_tensors(manifest: Manifest, sketches: AnyArray | None) -> pd.DataFrame:
    """Return one row for each slot of each call, in order.

    An input reads the output of the first call that has its tensor as output.
    """
    rows: list[tuple[int, str, str, ManifestTensor]] = []
    sources: list[int] = []
    producer_rows: dict[int, int] = {}  # number of a tensor -> row of the output that wrote it
    for op, call in enumerate(manifest.calls):
        for slot, slot_kind, number in call.slots:
            is_read = slot_kind != "output"
            sources.append(producer_rows.get(number, -1) if is_read else -1)
            if not is_read and call.level == "op":
                producer_rows.setdefault(number, len(rows))
            rows.append((op, slot, slot_kind, manifest.tensors[number]))
    tensors = [row[-1] for row in rows]
    statistics = [_get_statistics(tensor) for tensor in tensors]
    columns: dict[str, Any] = {
        "op": [op for op, *_ in rows],
        "slot": [slot for _, slot, *_ in rows],
        "slot_kind": [slot_kind for _, _, slot_kind, _ in rows],
        "shape": [tensor.shape for tensor in tensors],
        "size": [tensor.size for tensor in tensors],
        "constant": [tensor.value is not None for tensor in tensors],
        "source_tensor": sources,
        "file": [_name_file(tensor) for tensor in tensors],
        "sketch": [_get_sketch(tensor, sketches) for tensor in tensors],
    }
    for name in ("dtype", "l1", "nonfinite", "hash", "parameter", "gradient_of", "update_of"):
        columns[name] = [getattr(tensor, name) for tensor in tensors]
    for position, name in enumerate(("max", "min", "mean", "norm")):
        columns[name] = [numbers[position] for numbers in statistics]
    return build_tensor_table(columns)


def _get_statistics(tensor: ManifestTensor) -> tuple[float, float, float, float]:
    if tensor.value is None:
        return tensor.statistics
    return (tensor.value, tensor.value, tensor.value, abs(tensor.value))


def _name_file(tensor: ManifestTensor) -> str:
    """Return the file as :func:`load_folder_tensor` reads it, with the key of a tensor in it."""
    return f"{tensor.file}#{tensor.key}" if tensor.key else tensor.file


def _get_sketch(tensor: ManifestTensor, sketches: AnyArray | None) -> AnyArray | None:
    if sketches is None or not 0 <= tensor.sketch < len(sketches):
        return None
    sketch: AnyArray = sketches[tensor.sketch]
    return sketch


def _read_sketches(folder: Path, manifest: Manifest) -> tuple[AnyArray | None, list[Problem]]:
    """Return (sketches, 192), None without a file that can be used, and what is wrong with it."""
    name, definition = manifest.header.get("sketches"), manifest.header.get("sketch")
    if not isinstance(name, str):
        return None, []
    version = definition.get("version") if isinstance(definition, dict) else None
    if version != VERSION:
        message = f"sketches of version {version!r}, expected {VERSION}; not used"
        return None, [Problem(name, message)]
    try:
        sketches = open_array(resolve_inside(folder, name))
    except (DumpError, OSError) as error:
        return None, [Problem(name, f"{error}; not used")]
    if sketches.dtype != np.float32 or sketches.ndim != 2 or sketches.shape[1] != LENGTH:
        message = f"expected float32 of shape (tensors, {LENGTH}), found {sketches.dtype}"
        return None, [Problem(name, f"{message} of shape {sketches.shape}; not used")]
    return sketches, []


def _build_communications(manifest: Manifest) -> pd.DataFrame:
    ops = [op for op, call in enumerate(manifest.calls) if call.phase == COMMUNICATION]
    calls = [manifest.calls[op] for op in ops]
    return build_communication_table({
        "op": ops,
        "group": [call.group for call in calls],
        "members": [call.members for call in calls],
        "reduction": [normalize_reduction(call.reduction) for call in calls],
        "peer": [call.peer for call in calls],
    })  # fmt: skip


def _number_repeats(names: list[str]) -> list[str]:
    """Return the names, the second of a name as 'name#2' and so on."""
    counts: dict[str, int] = {}
    numbered = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        numbered.append(name if counts[name] == 1 else f"{name}#{counts[name]}")
    return numbered


def _get_number(header: Any, key: str, default: int | None) -> int | None:
    value = header.get(key)
    return value if type(value) is int and value >= 0 else default


def _get_resolution(header: Any) -> float:
    """Return the relative resolution of the statistics; that of float32 if none is stated."""
    value = header.get("resolution")
    if isinstance(value, float) and math.isfinite(value) and value > 0:
        return value
    return 1e-7
