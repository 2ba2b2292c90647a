"""MindSpore's own dump (``MINDSPORE_DUMP_CONFIG``): folders ``rank_{id}/{net}/{graph}/{iteration}`` of npy files, a
statistic.csv or both, and beside them the compiled graphs, which give names, order, dataflow and source lines.

Everything but one of npy files and statistic.csv may be missing.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from ...model.trace import Problem, Source, Trace
from .. import npy
from ..parts import Part
from .graph import Dataflow, find_graph_files, read_dataflow
from .join import Join, join_records
from .records import CSV, Records, is_npy_folder, read_records
from .statistic_csv import RESOLUTION, is_statistic_csv
from .tables import build_tables

FORMAT = "mindspore"

_DEEPEST = 8  #: levels below the given folder; the GE layout has six
_RANK = re.compile(r"rank_?(\d{1,9})")
_NUMBER = re.compile(r"\d{1,9}")
_ABOVE = 3  #: levels from an iteration up to the folder of the rank, which holds graphs/


def find_parts(path: Path) -> list[Part]:
    """One part per iteration folder at or below ``path``, or for the statistic.csv that ``path`` is."""
    if path.is_file():
        return [_part(path, path.resolve().parent, False)] if is_statistic_csv(path) else []
    parts = []
    depth = len(path.parts)
    for root, folders, files in os.walk(path):
        folder = Path(root)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if len(folder.parts) - depth >= _DEEPEST:
            folders.clear()
        whole = is_npy_folder(folder, files)
        if whole or (CSV in files and is_statistic_csv(folder / CSV)):
            parts.append(_part(folder, folder.resolve(), whole))
    return sorted(parts, key=_order)


def read_part(part: Part) -> Trace:
    """The trace of one iteration. Raises DumpError if not one tensor of it can be read."""
    folder, csv = part.path, part.path / CSV
    if part.path.is_file():
        folder, csv = part.path.parent, part.path
    records = read_records(folder, csv if csv.is_file() else None, whole_folder=part.path.is_dir())
    flow, problems = _dataflow(folder, part.graph)
    joined = None
    if flow is not None:
        joined = join_records(flow, records.places)
        if joined.n_matched:
            problems += _doubts(joined)
        else:
            problems.append(
                Problem(
                    "graphs", "not one recorded op is in the graph, which is therefore not used"
                )
            )
            flow = joined = None
    ops, tensors, matched = build_tables(records, flow, joined)
    if flow is not None and matched < len(records.places):
        problems.append(
            Problem(
                "graphs",
                "recorded tensor whose op is not in the graph",
                count=len(records.places) - matched,
            )
        )
    source = Source(
        path=str(folder),
        format=FORMAT,
        era=records.era,
        framework="mindspore",
        step=part.step,
        rank=part.rank,
        graph=part.graph,
        resolution=RESOLUTION if records.statistics is not None else 1e-7,
        details=_details(folder, records, flow, joined, matched),
    )
    return Trace(source, ops, tensors, (*records.problems, *problems), npy.make_loader(folder))


def _part(path: Path, folder: Path, whole: bool) -> Part:
    """What the folder names say: .../rank_0/net/1/0 is graph 1, iteration 0 of rank 0."""
    step = int(folder.name) if _NUMBER.fullmatch(folder.name) else None
    graph = (
        int(folder.parent.name)
        if step is not None and _NUMBER.fullmatch(folder.parent.name)
        else None
    )
    ranks = [int(found[1]) for part in reversed(folder.parts) if (found := _RANK.fullmatch(part))]
    return Part(FORMAT, path, step, ranks[0] if ranks else None, graph=graph, has_tensors=whole)


def _order(part: Part) -> tuple[int, str, int, int]:
    numbers = [-1 if number is None else number for number in (part.rank, part.graph, part.step)]
    net = str(part.path.parent.parent) if part.graph is not None else str(part.path.parent)
    return numbers[0], net, numbers[1], numbers[2]


def _dataflow(folder: Path, graph: int | None) -> tuple[Dataflow | None, list[Problem]]:
    graphs = _beside(folder, "graphs")
    if graphs is None:
        return None, []
    known = list(find_graph_files(graphs))
    if graph is None and len(known) == 1:
        graph = known[0]
    return (None, []) if graph is None else read_dataflow(graphs, graph)


def _beside(folder: Path, name: str) -> Path | None:
    """``name`` in the folder or above it, up to the folder of the rank: what lies higher belongs to other dumps."""
    start = folder.resolve()
    for above in (start, *start.parents[:_ABOVE]):
        if (above / name).is_dir():
            return above / name
        if _RANK.fullmatch(above.name):
            break
    return None


def _doubts(joined: Join) -> list[Problem]:
    wrong = joined.n_checkable - joined.n_verified
    if wrong <= joined.n_checkable * 0.01:
        return []
    return [
        Problem(
            "graphs",
            "what an op wrote is not what the graph says its reader read: op names may be mixed up",
            count=wrong,
        )
    ]


def _details(
    folder: Path, records: Records, flow: Dataflow | None, joined: Join | None, matched: int
) -> dict[str, Any]:
    details: dict[str, Any] = {"npy_files": records.n_files, **_metadata(folder)}
    if records.statistics is not None:
        details["statistics"] = tuple(sorted(records.statistics.recorded))
    if flow is not None and joined is not None:
        details["graph_files"] = flow.files
        details["op_numbers"] = joined.numbering
        details["npy_matched"] = (matched, len(records.places))
        details["edges_verified"] = (joined.n_verified, joined.n_checkable)
    return details


def _metadata(folder: Path) -> dict[str, str]:
    """MindSpore version and device, where the dumper left a note of them."""
    metadata = _beside(folder, ".dump_metadata")
    if metadata is None:
        return {}
    try:
        said = json.loads((metadata / "config.json").read_text(encoding="utf-8")[:10_000])
    except (OSError, ValueError, RecursionError):
        return {}
    wanted = {"ms_version": "version", "device_target": "device"}
    return {
        name: str(said[key])
        for key, name in wanted.items()
        if isinstance(said, dict) and key in said
    }
