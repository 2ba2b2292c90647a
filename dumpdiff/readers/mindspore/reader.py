"""Read MindSpore's own dump (``MINDSPORE_DUMP_CONFIG``, all versions).

Folders ``rank_{id}/{net}/{graph}/{iteration}`` hold npy files, a statistic.csv or both. The
compiled graphs (``rank_{id}/graphs/*.pb`` and ``*.ir``, MindSpore 1.6 to 2.10) give names, order,
dataflow and source lines. All of it is optional, except that npy files or statistic.csv must exist.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ...model.input_files import read_input_text
from ...model.trace import Problem, Source, Trace
from ...tensor_files import npy
from ..files import Listing
from ..parts import Part
from .graph import Dataflow, find_graph_files, read_dataflow
from .join import Join, join_records
from .records import CSV, Records, is_npy_folder, read_records
from .statistic_csv import RESOLUTION, is_statistic_csv
from .tables import build_tables

FORMAT = "mindspore"

_MAX_DEPTH = 8  #: levels searched below the given folder; the GE layout has six
_RANK = re.compile(r"rank_?(\d{1,9})")
_NUMBER = re.compile(r"\d{1,9}")
_LEVELS_TO_RANK = 3  #: from an iteration up to the folder of the rank, which holds graphs/
_MAX_METADATA = 10_000  #: bytes of the dumper's config.json; a larger file is ignored
_FLOAT32_RESOLUTION = 1e-7  #: relative, of statistics computed from npy files
#: Share of the checkable edges that may hold different data without a problem being reported.
_MAX_UNVERIFIED_SHARE = 0.01


def find_parts(listing: Listing) -> list[Part]:
    """List one part for each iteration folder, or the single file if it is a statistic.csv."""
    path = listing.path
    if path.is_file():
        folder = path.resolve().parent
        return [_make_part(path, folder, has_whole_tensors=False)] if is_statistic_csv(path) else []
    parts = []
    for folder, _, files in listing.folders:
        levels = folder.parts[len(path.parts) :]
        if len(levels) > _MAX_DEPTH or any(name.startswith(".") for name in levels):
            continue
        has_whole_tensors = is_npy_folder(folder, files)
        if has_whole_tensors or (CSV in files and is_statistic_csv(folder / CSV)):
            parts.append(_make_part(folder, folder.resolve(), has_whole_tensors))
    return sorted(parts, key=_get_sort_key)


def read_part(part: Part) -> Trace:
    """Return the trace of one iteration. Raises DumpError if not one tensor of it can be read."""
    folder, csv = part.path, part.path / CSV
    if part.path.is_file():
        folder, csv = part.path.parent, part.path
    records = read_records(folder, csv if csv.is_file() else None, whole_folder=part.path.is_dir())
    flow, problems = _read_dataflow(folder, part.graph)
    join = None
    if flow is not None:
        join = join_records(flow, records.places)
        if join.n_matched:
            problems += _check_edges(join)
        else:
            message = "not one recorded op is in the graph, which is therefore not used"
            problems.append(Problem("graphs", message))
            flow = join = None
    device = _read_metadata(folder).get("device", "")
    tables = build_tables(records, flow, join, device)
    n_matched = tables.n_matched
    problems += tables.problems
    n_unmatched = len(records.places) - n_matched if flow is not None else 0
    if n_unmatched > 0:
        message = "recorded tensor whose op is not in the graph"
        problems.append(Problem("graphs", message, count=n_unmatched))
    source = Source(
        path=str(folder),
        format=FORMAT,
        format_variant=records.format_variant,
        framework="mindspore",
        step=part.step,
        rank=part.rank,
        graph=part.graph,
        resolution=RESOLUTION if records.statistics is not None else _FLOAT32_RESOLUTION,
        details=_collect_details(folder, records, flow, join, n_matched),
    )
    all_problems = (*records.problems, *problems)
    loader = npy.make_loader(folder)
    return Trace(source, tables.ops, tables.tensors, all_problems, loader, tables.communications)


def _make_part(path: Path, folder: Path, has_whole_tensors: bool) -> Part:
    """Return the part that the folder names describe.

    Example: .../rank_0/net/1/0 is graph 1, iteration 0 of rank 0.
    """
    step = _parse_number(folder.name)
    graph = _parse_number(folder.parent.name) if step is not None else None
    rank = None
    for name in reversed(folder.parts):
        match = _RANK.fullmatch(name)
        if match is not None:
            rank = int(match[1])
            break
    return Part(FORMAT, path, step, rank, graph=graph, has_whole_tensors=has_whole_tensors)


def _parse_number(name: str) -> int | None:
    return int(name) if _NUMBER.fullmatch(name) else None


def _get_sort_key(part: Part) -> tuple[int, str, int, int]:
    """Return (rank, folder of the net, graph, step), with -1 for unknown numbers."""
    rank, graph, step = (
        -1 if number is None else number for number in (part.rank, part.graph, part.step)
    )
    net_folder = part.path.parent if part.graph is None else part.path.parent.parent
    return rank, str(net_folder), graph, step


def _read_dataflow(folder: Path, graph: int | None) -> tuple[Dataflow | None, list[Problem]]:
    graph_folder = _find_folder_above(folder, "graphs")
    if graph_folder is None:
        return None, []
    graph_ids = list(find_graph_files(graph_folder))
    if graph is None and len(graph_ids) == 1:
        graph = graph_ids[0]
    return (None, []) if graph is None else read_dataflow(graph_folder, graph)


def _find_folder_above(folder: Path, name: str) -> Path | None:
    """Return the folder ``name`` in ``folder`` or above it, up to the folder of the rank.

    Higher folders belong to other dumps.
    """
    start = folder.resolve()
    for parent in (start, *start.parents[:_LEVELS_TO_RANK]):
        if (parent / name).is_dir():
            return parent / name
        if _RANK.fullmatch(parent.name):
            break
    return None


def _check_edges(join: Join) -> list[Problem]:
    n_wrong = join.n_checkable - join.n_verified
    if n_wrong <= join.n_checkable * _MAX_UNVERIFIED_SHARE:
        return []
    message = (
        "the input of an op differs from the output that the graph connects to it: "
        "op names may be mixed up"
    )
    return [Problem("graphs", message, count=n_wrong, weakens=True)]


def _collect_details(
    folder: Path, records: Records, flow: Dataflow | None, join: Join | None, n_matched: int
) -> dict[str, Any]:
    details: dict[str, Any] = {"npy_files": records.n_files, **_read_metadata(folder)}
    if records.statistics is not None:
        details["statistics"] = tuple(sorted(records.statistics.recorded))
    if flow is not None and join is not None:
        details["graph_files"] = flow.files
        details["op_numbers"] = join.numbering
        details["npy_matched"] = (n_matched, len(records.places))
        details["edges_verified"] = (join.n_verified, join.n_checkable)
    return details


def _read_metadata(folder: Path) -> dict[str, str]:
    """Return MindSpore version and device, if the dumper recorded them."""
    metadata = _find_folder_above(folder, ".dump_metadata")
    if metadata is None:
        return {}
    try:
        config = json.loads(read_input_text(metadata / "config.json", _MAX_METADATA))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(config, dict):
        return {}
    names = {"ms_version": "version", "device_target": "device"}
    return {name: str(config[key]) for key, name in names.items() if key in config}
