"""Where a fault of a parallel run first shows, from the recorded numbers only.

Each rank of the faulty run is compared with the same rank of the clean run of the same layout, as
``benchmarks/localise/truth.py`` does it for one process. A rank on which the fault is not put in
only receives it: what is found there is no right answer.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

import cases
import dumps
import truth
from injections import parse_injection
from layouts import parse_layout
from network import get_network
from runs import MINDSPORE, Recording
from shards import list_stage_layers

from dumpdiff.model.trace import COMMUNICATION, FORWARD, Trace


@dataclass(frozen=True)
class RunTruth:
    """What a right answer names; no ranks if the fault changes nothing that was recorded."""

    step: int
    ranks: tuple[int, ...]
    ops: Mapping[int, tuple[str, ...]]  #: rank -> names; a finding on it names one of them
    #: names of the same ops as rank 0 calls them, for runs whose ranks are merged
    merged_ops: tuple[str, ...]
    first: str  #: the earliest op on the first rank
    phase: str


def find_truth(fault: cases.Fault, work: Path) -> RunTruth:
    """Return the truth of a fault; it is computed once."""
    folder = "truths_held_out" if fault.name in cases.list_held_out() else "truths"
    file = work / folder / f"{fault.name}.json"
    if file.exists():
        values = json.loads(file.read_text())
        ops = {int(rank): tuple(names) for rank, names in values["ops"].items()}
        ranks, merged_ops = tuple(values["ranks"]), tuple(values["merged_ops"])
        return RunTruth(**{**values, "ops": ops, "ranks": ranks, "merged_ops": merged_ops})
    run_truth = _compute_truth(fault.recording, work)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(run_truth), indent=1))
    return run_truth


def list_rank_paths(recording: Recording, work: Path) -> dict[tuple[int, int], Path]:
    """Return the folder of each (step, rank)."""
    path = cases.get_path(recording, work)
    if recording.framework == MINDSPORE:
        return {(0, _read_number(folder)): folder for folder in path.glob("rank_*")}
    folders = {}
    for folder in path.glob("step*/*"):
        rank = _read_number(folder) if folder.name.startswith("rank") else 0
        folders[_read_number(folder.parent), rank] = folder
    return folders


def _read_number(folder: Path) -> int:
    return int(re.sub(r"\D", "", folder.name))


def _compute_truth(recording: Recording, work: Path) -> RunTruth:
    faulty_paths = list_rank_paths(recording, work)
    clean_paths = list_rank_paths(recording.clean(), work)
    faulty_ranks = _list_faulty_ranks(recording)
    for step in sorted({step for step, _ in faulty_paths}):
        ops, firsts, traces = {}, {}, {}
        for rank in sorted({0, *faulty_ranks}):
            faulty = _load(faulty_paths[step, rank])
            traces[rank] = faulty.trace
            if rank not in faulty_ranks:
                continue
            clean = _load(clean_paths[step, rank])
            rank_truth = truth.find_truth(clean, faulty)
            if rank_truth.ops:
                ops[rank] = tuple(sorted(_add_producers(clean, faulty, rank_truth)))
                firsts[rank] = rank_truth
        if not ops:
            continue
        merged_ops = {name for rank in ops for name in _rename_ops(ops[rank], traces, rank)}
        first = firsts[min(ops)]
        return RunTruth(step, tuple(ops), ops, tuple(sorted(merged_ops)), first.first, first.phase)
    return RunTruth(0, (), {}, (), "", "")


def _list_faulty_ranks(recording: Recording) -> tuple[int, ...]:
    """Return the ranks on which the fault is put in: of a layer, those that hold the layer."""
    injection, layout = parse_injection(recording.fault), parse_layout(recording.layout)
    if injection.ranks:
        return injection.ranks
    ranks = range(layout.n_ranks)
    if injection.layer < 0:
        return tuple(ranks)
    network = get_network(recording.network)
    return tuple(
        rank
        for rank in ranks
        if injection.layer in list_stage_layers(network, layout, layout.locate(rank)["pp"])
    )


@lru_cache(maxsize=8)
def _load(path: Path) -> dumps.Dump:
    """Read a rank; a collective belongs to the phase in which it is called."""
    dump = dumps.load(path)
    phases = dump.trace.ops["phase"]
    called_in = phases.where(phases != COMMUNICATION).ffill().fillna(FORWARD)
    ops = dump.trace.ops.assign(phase=called_in)
    return replace(dump, trace=replace(dump.trace, ops=ops))


def _add_producers(
    clean: dumps.Dump, faulty: dumps.Dump, rank_truth: truth.Truth
) -> frozenset[str]:
    """Return the right ops and the producers of what they read wrongly.

    A collective that is missing leaves the value before it: its producer is as right an answer as
    the op that reads it, which may be of another phase. Where a change was not recorded, so is the
    producer of what the clean run reads there.
    """
    names = faulty.trace.ops["name"].tolist()
    roots = [op for op, name in enumerate(names) if name in rank_truth.ops]
    pairs = dumps.pair_ops(clean, faulty)
    producers = truth.find_rewired_producers(clean, faulty, pairs, rank_truth.changed, roots)
    faulty_op = {clean_op: op for op, clean_op in enumerate(pairs) if clean_op >= 0}
    slots = faulty.trace.tensors["slot"].tolist()
    for root in roots:
        for row in faulty.reads[root]:
            if faulty.op[row] != root or rank_truth.changed[row] != truth.CHANGED:
                continue
            twin = clean.slots.get((pairs[root], slots[row]), -1)
            if faulty.makers[row] < 0 and twin >= 0 and clean.makers[twin] >= 0:
                producers.add(faulty_op.get(clean.op[clean.makers[twin]], root))
    producers |= _find_sends(faulty, roots)
    producers |= _find_readers_of_numbers(faulty, rank_truth, max(roots))
    return rank_truth.ops | {names[op] for op in producers}


def _find_sends(faulty: dumps.Dump, roots: list[int]) -> set[int]:
    """Return the ops that send what a root writes: the last ones of their rank to have it."""
    table = faulty.trace.tensors
    columns = (table[name].tolist() for name in ("shape", "max", "min", "norm"))
    # what isend reads may be overwritten while it is sent, so its statistics stand for it
    values = list(zip(*columns, strict=True))
    written = {values[row] for root in roots for row in faulty.writes[root]}
    kinds = faulty.trace.ops["kind"].tolist()
    return {
        op
        for row, op in enumerate(faulty.op)
        if "send" in kinds[op] and faulty.role[row] != "output" and values[row] in written
    }


def _find_readers_of_numbers(
    faulty: dumps.Dump, rank_truth: truth.Truth, last_root: int
) -> set[int]:
    """Return the ops up to the last root that read other tokens, labels or positions.

    These are given to the run: whatever reads them first is a right answer.
    """
    dtypes = faulty.trace.tensors["dtype"].tolist()
    readers = set()
    for row, op in enumerate(faulty.op):
        is_given = faulty.role[row] != "output" and faulty.makers[row] < 0
        is_given &= "int" in str(dtypes[row]).lower()
        if is_given and op <= last_root and rank_truth.changed[row] == truth.CHANGED:
            readers.add(op)
    return readers


def _rename_ops(names: tuple[str, ...], traces: Mapping[int, Trace], rank: int) -> set[str]:
    """Return the names that rank 0 has for these ops, and their own."""
    renamed = set(names)
    if rank == 0:
        return renamed
    places = _list_places(traces[0])
    name_of_place = {place: name for name, place in places.items()}
    for name, place in _list_places(traces[rank]).items():
        if name in names and place in name_of_place:
            renamed.add(name_of_place[place])
    return renamed


def _list_places(trace: Trace) -> dict[str, tuple[str, str, str, int]]:
    """Return scope, kind, phase and number among such ops of each op name."""
    counts: dict[tuple[str, str, str], int] = defaultdict(int)
    places = {}
    columns = (trace.ops[column] for column in ("name", "scope", "kind", "phase"))
    for name, *place in zip(*columns, strict=True):
        key = (place[0], place[1], place[2])
        places[name] = (*key, counts[key])
        counts[key] += 1
    return places
