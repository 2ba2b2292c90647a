"""One step of all ranks, with a key for every value, so that equal values are found at once."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from ..communication import (
    Exchanges,
    Group,
    SiblingCalls,
    compute_value_keys,
    join_collectives,
    match_siblings,
    match_tensors,
)
from ..graph.statistics import complete_statistics
from ..model.arrays import AnyArray, Flags, Floats, Ints
from ..model.dtypes import get_unit_roundoff, is_floating
from ..model.errors import DumpError
from ..model.recorded_shapes import load_readable_tensor
from ..model.threads import map_in_threads
from ..model.trace import COMMUNICATION, FORWARD, Trace

#: Elements. Smaller values may be equal by chance, and are no evidence of replication.
MIN_SIZE = 8
#: Units of the last place by which a value may differ that two ranks compute alike: kernels that
#: are not deterministic add in another order.
_ROUNDING_FACTOR = 16
#: Number of a layer: a component of a path of its own, in MindSpore's scopes with the class of the
#: cell. Other numbers tell modules apart (linear_fc1).
_NUMBER = re.compile(r"(?:^|(?<=[./]))\d+(?=[./-]|$)")
STATISTICS = ("max", "min", "mean", "norm")


@dataclass(frozen=True)
class Step:
    """All ranks of one step."""

    number: int | None
    traces: Mapping[int, Trace]  #: by rank, with statistics and fingerprints where files exist
    exchanges: Exchanges
    siblings: tuple[SiblingCalls, ...]
    numbers: dict[object, int]  #: value -> its key, of all steps of the run

    @cached_property
    def keys(self) -> Mapping[int, Ints]:
        """Key of every tensor of each rank; equal keys are equal values, -1 is unknown."""
        numbers = self.numbers
        keys: dict[int, Ints] = {}
        for rank, trace in self.traces.items():
            values = compute_value_keys(trace)
            keys[rank] = np.array(
                [
                    -1 if value is None else numbers.setdefault(value, len(numbers))
                    for value in values
                ],
                dtype=np.int64,
            )
        return keys

    @cached_property
    def informative(self) -> Mapping[int, Flags]:
        """Which tensors of each rank are so particular that equal ones are copies.

        Floating-point tensors of several elements that are not all equal.
        """
        flags: dict[int, Flags] = {}
        for rank, trace in self.traces.items():
            tensors = trace.tensors
            is_float = tensors["dtype"].map(is_floating).to_numpy(dtype=bool)
            is_varied = (tensors["max"] > tensors["min"]).to_numpy()
            is_large = (tensors["size"] >= MIN_SIZE).to_numpy()
            is_constant = tensors["constant"].to_numpy()
            flags[rank] = is_float & is_varied & is_large & ~is_constant
        return flags

    @cached_property
    def ranks_with_own_data(self) -> frozenset[int]:
        """Ranks whose forward pass is given other data than that of a sibling: samples, slices."""
        own: set[int] = set()
        for siblings in self.siblings:
            first_keys = {rank: self._find_first_input(rank) for rank in siblings.ranks}
            if len(set(first_keys.values()) - {-1}) > 1:
                own.update(siblings.ranks)
        return frozenset(own)

    def _find_first_input(self, rank: int) -> int:
        """Return the key of the first tensor that the forward pass reads, -1 if it is unknown."""
        trace = self.traces[rank]
        tensors = trace.tensors
        is_data = (tensors["slot_kind"] == "input").to_numpy() & (self.keys[rank] >= 0)
        is_data &= (tensors["parameter"] == "").to_numpy() & ~tensors["constant"].to_numpy()
        # memory that nothing was written to is no data
        is_data &= (tensors["size"] >= MIN_SIZE).to_numpy() & (tensors["nonfinite"] != 1).to_numpy()
        is_data &= (trace.ops["phase"] == FORWARD).to_numpy()[tensors["op"].to_numpy()]
        return int(self.keys[rank][np.argmax(is_data)]) if is_data.any() else -1

    def find_siblings(self, group: Group) -> SiblingCalls | None:
        """Return the siblings that have all members of a group, None if there are none."""
        for siblings in self.siblings:
            if set(group.members) <= set(siblings.ranks):
                return siblings
        return None

    def list_sibling_groups(self) -> list[tuple[Group, SiblingCalls]]:
        """Return the groups of siblings that reduce or gather, each set of members once.

        A group of a purpose comes before that of all ranks.
        """
        pairs: dict[tuple[int, ...], tuple[Group, SiblingCalls]] = {}
        for group in sorted(self.exchanges.groups, key=lambda group: group.kind in ("", "world")):
            siblings = self.find_siblings(group)
            is_many = len(group.members) > 1 and not group.is_transfer
            if siblings is not None and is_many:
                pairs.setdefault(tuple(sorted(group.members)), (group, siblings))
        return list(pairs.values())

    def load(self, rank: int, tensor: int) -> AnyArray | None:
        """Return a whole tensor, None if only statistics exist or the file is damaged."""
        return load_readable_tensor(self.traces[rank], tensor)

    def describe(self, rank: int, tensor: int) -> str:
        """Return the shape and the norm of a tensor, in words."""
        row = self.traces[rank].tensors.iloc[tensor]
        if row["size"] == 1:
            return f"{row['max']:.9g} on rank {rank}"
        norm = "unknown" if np.isnan(row["norm"]) else f"{row['norm']:.9g}"
        return f"norm {norm} on rank {rank}"


@dataclass(frozen=True)
class SiblingTensors:
    """The tensors in corresponding slots of the ranks of a group."""

    ranks: tuple[int, ...]
    rows: Ints  #: (slots, ranks): tensor ids, -1 where a rank has no such slot
    keys: Ints  #: (slots, ranks): keys of the values, -1 if unknown


def match_group_tensors(
    step: Step, members: tuple[int, ...], siblings: SiblingCalls
) -> SiblingTensors:
    """Return the corresponding tensors of some sibling ranks, one row per tensor of the first."""
    ranks = tuple(rank for rank in siblings.ranks if rank in members)
    first = ranks[0]
    columns = [np.arange(len(step.traces[first].tensors), dtype=np.int64)]
    ops = siblings.ops[:, siblings.ranks.index(first)]
    for rank in ranks[1:]:
        other_ops = siblings.ops[:, siblings.ranks.index(rank)]
        columns.append(match_tensors(step.traces[first], ops, step.traces[rank], other_ops))
    rows = np.stack(columns, axis=1)
    keys = np.full(rows.shape, -1, dtype=np.int64)
    for position, rank in enumerate(ranks):
        has_tensor = rows[:, position] >= 0
        keys[has_tensor, position] = step.keys[rank][rows[has_tensor, position]]
    return SiblingTensors(ranks, rows, keys)


def measure_differences(step: Step, matched: SiblingTensors) -> tuple[Floats, Floats]:
    """Return how far the statistics of corresponding tensors differ, and what rounding explains.

    Both are relative to the largest element, or to the norm. NaN where statistics are unknown.
    """
    names = ("max", "min", "norm")
    table = np.full((*matched.rows.shape, len(names)), np.nan)
    for position, rank in enumerate(matched.ranks):
        statistics = step.traces[rank].tensors[list(names)].to_numpy()
        has_tensor = matched.rows[:, position] >= 0
        table[has_tensor, position] = statistics[matched.rows[has_tensor, position]]
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = table.max(axis=1) - table.min(axis=1)
        extent = np.abs(table[:, :, :2]).max(axis=(1, 2))
        norm = np.abs(table[:, :, 2]).max(axis=1)
        by_extent = spread[:, :2].max(axis=1) / extent
        by_norm = spread[:, 2] / norm
    difference = np.where(np.isnan(by_norm), by_extent, np.fmax(by_extent, by_norm))
    dtypes = step.traces[matched.ranks[0]].tensors["dtype"]
    roundoffs = {
        dtype: get_unit_roundoff(dtype) if is_floating(dtype) else 0.0 for dtype in set(dtypes)
    }
    tolerance = _ROUNDING_FACTOR * dtypes.map(roundoffs).to_numpy(dtype=np.float64)
    return difference.astype(np.float64), tolerance.astype(np.float64)


def name_roles(trace: Trace) -> list[tuple[object, ...]]:
    """Return the role of each op: what it is in its layer, whichever layer that is.

    Calls of one kind in one module have one role in all layers, told apart by their order. A
    gradient has the role of its forward call: recorders name other modules for gradients. In a
    compiled graph names lie, so a role is what an op computes from what.
    """
    if (trace.tensors["source_tensor"] >= 0).any():
        return _name_graph_roles(trace)
    ops = trace.ops
    counts: dict[tuple[object, ...], int] = {}
    roles: list[tuple[object, ...]] = []
    columns = (ops[name].tolist() for name in ("phase", "kind", "scope", "source", "forward"))
    for phase, kind, scope, source, forward in zip(*columns, strict=True):
        if 0 <= forward < len(roles):
            roles.append((phase, kind, *roles[forward][2:]))
            continue
        place = (phase, kind, scope, source)
        occurrence = counts.get(place, 0)
        counts[place] = occurrence + 1
        roles.append((phase, kind, generalize(scope), source, occurrence))
    return roles


#: Levels of producers that tell the role of an op in a graph.
_ROLE_DEPTH = 3


def _name_graph_roles(trace: Trace) -> list[tuple[object, ...]]:
    """Return the role of each op of a graph: kind, line, parameters, and those of its producers.

    Collectives are passed over: with and without one, what follows has one role.
    """
    tensors, ops = trace.tensors, trace.ops
    owners, sources = tensors["op"].to_numpy(), tensors["source_tensor"].to_numpy()
    is_exchange = (ops["phase"] == COMMUNICATION).to_numpy()
    passed = _pass_over_exchanges(sources, owners, is_exchange)
    reads: list[list[tuple[str, str, int]]] = [[] for _ in range(len(ops))]
    is_input = (tensors["slot_kind"] == "input").to_numpy()
    slots, parameters = tensors["slot"].tolist(), tensors["parameter"].tolist()
    for row in np.flatnonzero(is_input).tolist():
        producer = int(owners[passed[row]]) if passed[row] >= 0 else -1
        reads[owners[row]].append((slots[row], generalize(parameters[row]), producer))
    columns = (ops[name].tolist() for name in ("phase", "kind", "source"))
    local = [hash(values) for values in zip(*columns, strict=True)]
    signatures = local
    for _ in range(_ROLE_DEPTH):
        signatures = [
            hash(
                (
                    local[op],
                    tuple(
                        (slot, name, signatures[producer] if producer >= 0 else 0)
                        for slot, name, producer in reads[op]
                    ),
                )
            )
            for op in range(len(ops))
        ]
    phases, kinds = ops["phase"].tolist(), ops["kind"].tolist()
    return [
        (phase, kind, sign) for phase, kind, sign in zip(phases, kinds, signatures, strict=True)
    ]


def _pass_over_exchanges(sources: Ints, owners: Ints, is_exchange: Flags) -> Ints:
    """Return the source of each tensor, that of a collective's output being its input's."""
    first_input = np.full(len(is_exchange), -1, dtype=np.int64)
    for row in np.flatnonzero(sources >= 0)[::-1].tolist():
        first_input[owners[row]] = row
    passed = sources.copy()
    for _ in range(_ROLE_DEPTH):
        rows = np.flatnonzero(passed >= 0)
        producers = owners[passed[rows]]
        rows = rows[is_exchange[producers] & (first_input[producers] >= 0)]
        if not len(rows):
            break
        passed[rows] = sources[first_input[owners[passed[rows]]]]
    return passed


def generalize(scope: str) -> str:
    """Return a scope or a parameter name without the numbers of layers.

    >>> generalize("decoder.layers.1.mlp.linear_fc1")
    'decoder.layers.#.mlp.linear_fc1'
    """
    return _NUMBER.sub("#", scope)


def build_step(
    number: int | None,
    traces: Mapping[int, Trace],
    numbers: dict[object, int] | None = None,
    progress: Callable[[float], None] | None = None,
) -> Step:
    """Read the files of all ranks of a step once, and join their communication.

    With the same ``numbers``, equal values of several steps have equal keys.
    """
    complete_traces = {}
    for position, (rank, trace) in enumerate(sorted(traces.items())):
        complete_traces[rank] = _read_files(trace)
        if progress:
            progress((position + 1) / len(traces))
    exchanges = join_collectives(complete_traces)
    siblings = tuple(match_siblings(complete_traces, exchanges))
    return Step(number, complete_traces, exchanges, siblings, {} if numbers is None else numbers)


def _read_files(trace: Trace) -> Trace:
    """Return a trace with a fingerprint of every file, and statistics where none are recorded."""
    tensors, problems = complete_statistics(trace)
    content = tensors["content"].to_numpy(copy=True)
    rows = np.flatnonzero((tensors["file"] != "").to_numpy() & (content == 0))

    def read(row: int) -> tuple[int, int]:
        try:
            array = np.ascontiguousarray(trace.array(row))
        except (DumpError, OSError, ValueError):
            return row, 0
        return row, zlib.crc32(array.data.cast("B")) + 1

    sizes = tensors["size"].to_numpy()[rows].tolist()
    for row, fingerprint in map_in_threads(read, rows.tolist(), sizes):
        content[row] = fingerprint
    tensors = tensors.assign(content=content)
    return replace(trace, tensors=tensors, problems=(*trace.problems, *problems))


def count_rows(flags: Flags | pd.Series[bool]) -> int:
    """Return how many are set."""
    return int(np.asarray(flags).sum())
