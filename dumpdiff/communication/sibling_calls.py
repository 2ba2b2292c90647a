"""Sibling ranks, and which call of each of them corresponds.

Sibling ranks run the same program on other shards or other data: ranks of one tensor-, data-,
context- or expert-parallel group, not the stages of a pipeline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import pairwise

import numpy as np

from ..model.arrays import Flags, Ints
from ..model.trace import Trace
from .exchanges import Exchanges
from .groups import PP

#: Share of the calls of both ranks that must correspond. Ranks of one tensor-parallel group in
#: graph mode have at least 95 % in common (579 ops against 552, measured); other stages of a
#: pipeline have other parameters and no exchange but transfers, which is decided before.
_MIN_COMMON_SHARE = 0.7
#: Levels of producers that the signature of an op in a graph includes, tried one after the other.
_DEPTHS = (64, 6, 3, 1)
#: Ops between two anchors that are aligned by the quadratic comparison of sequences.
_MAX_SEGMENT = 4000


@dataclass(frozen=True)
class SiblingCalls:
    """Ranks that make the same calls, and which calls correspond."""

    ranks: tuple[int, ...]
    #: one row for each call, in the order of the first rank, and one column for each rank: op id,
    #: -1 where a rank has no such call
    ops: Ints

    def find_op(self, rank: int, op: int, other_rank: int) -> int:
        """Return the corresponding op of another rank, -1 if it has none."""
        rows = np.flatnonzero(self.ops[:, self.ranks.index(rank)] == op)
        if not len(rows):
            return -1
        return int(self.ops[rows[0], self.ranks.index(other_rank)])


def match_siblings(traces: Mapping[int, Trace], exchanges: Exchanges) -> list[SiblingCalls]:
    """Return the sets of sibling ranks with their corresponding ops; every rank is in one set."""
    siblings = []
    for stage in find_stages(exchanges):
        remaining = [rank for rank in stage if rank in traces]
        while remaining:
            first, *others = remaining
            columns, ranks = [np.arange(len(traces[first].ops), dtype=np.int64)], [first]
            extra_ops: list[tuple[int, Ints]] = []
            for rank in others:
                matched = _match_ops(traces, exchanges, first, rank)
                n_matched = int((matched >= 0).sum())
                n_ops = max(len(traces[first].ops), len(traces[rank].ops))
                if n_matched < _MIN_COMMON_SHARE * n_ops:
                    continue
                is_unmatched = np.ones(len(traces[rank].ops), dtype=bool)
                is_unmatched[matched[matched >= 0]] = False
                extra_ops.append((len(ranks), np.flatnonzero(is_unmatched)))
                columns.append(matched)
                ranks.append(rank)
            table = np.stack(columns, axis=1)
            blocks = [table]
            for position, ops in extra_ops:
                block = np.full((len(ops), len(ranks)), -1, dtype=np.int64)
                block[:, position] = ops
                blocks.append(block)
            siblings.append(SiblingCalls(tuple(ranks), np.concatenate(blocks)))
            remaining = [rank for rank in remaining if rank not in ranks]
    return siblings


def match_tensors(trace: Trace, ops: Ints, other_trace: Trace, other_ops: Ints) -> Ints:
    """Return, for each tensor of a trace, the tensor of the same slot of the corresponding op.

    ``ops`` and ``other_ops`` correspond element by element. -1 where there is none.
    """
    other_op_of = np.full(len(trace.ops), -1, dtype=np.int64)
    is_pair = (ops >= 0) & (other_ops >= 0)
    other_op_of[ops[is_pair]] = other_ops[is_pair]
    other = other_trace.tensors
    rows = {
        key: row
        for row, key in enumerate(zip(other["op"].tolist(), other["slot"].tolist(), strict=True))
    }
    wanted_ops = other_op_of[trace.tensors["op"].to_numpy()].tolist()
    keys = zip(wanted_ops, trace.tensors["slot"].tolist(), strict=True)
    return np.array([rows.get(key, -1) for key in keys], dtype=np.int64)


def find_stages(exchanges: Exchanges) -> list[tuple[int, ...]]:
    """Return the ranks of each pipeline stage; all ranks if there is no pipeline.

    Ranks that send to each other are in different stages. Ranks of a group are in one stage, unless
    a pipeline joins two of them: such a group (of the gradient norm, of tied embeddings) crosses
    stages.
    """
    pipeline = _UnionFind(exchanges.ranks)
    for group in exchanges.groups:
        if group.kind == PP and group.is_transfer:
            pipeline.join(group.members)
    if len(pipeline.list_sets()) == len(exchanges.ranks):
        return [exchanges.ranks]
    stages = _UnionFind(exchanges.ranks)
    for group in exchanges.groups:
        roots = {pipeline.find(rank) for rank in group.members if rank in exchanges.ranks}
        if not group.is_transfer and len(roots) == len(group.members):
            stages.join(group.members)
    return stages.list_sets()


class _UnionFind:
    """Disjoint sets of ranks."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._parent = {rank: rank for rank in ranks}

    def find(self, rank: int) -> int:
        while self._parent[rank] != rank:
            rank = self._parent[rank]
        return rank

    def join(self, ranks: Sequence[int]) -> None:
        known_ranks = [rank for rank in ranks if rank in self._parent]
        for rank in known_ranks[1:]:
            first, second = sorted((self.find(known_ranks[0]), self.find(rank)))
            self._parent[second] = first

    def list_sets(self) -> list[tuple[int, ...]]:
        sets: defaultdict[int, list[int]] = defaultdict(list)
        for rank in self._parent:
            sets[self.find(rank)].append(rank)
        return [tuple(ranks) for ranks in sets.values()]


def _match_ops(traces: Mapping[int, Trace], exchanges: Exchanges, first: int, rank: int) -> Ints:
    """Return the op of ``rank`` that corresponds to each op of ``first``, -1 for none."""
    trace, other_trace = traces[first], traces[rank]
    matched = _match_by_name(trace, other_trace)
    if matched is not None:
        return matched
    matched = np.full(len(trace.ops), -1, dtype=np.int64)
    is_taken = np.zeros(len(other_trace.ops), dtype=bool)
    for op, other_op in _list_common_collectives(exchanges, first, rank):
        if matched[op] < 0 and not is_taken[other_op]:
            matched[op] = other_op
            is_taken[other_op] = True
    if _has_graph(trace) and _has_graph(other_trace):
        for depth in _DEPTHS:
            _match_signatures(
                _compute_signatures(trace, depth),
                _compute_signatures(other_trace, depth),
                matched,
                is_taken,
            )
    for is_shaped in (True, False):
        tokens, other_tokens = _list_tokens(trace, is_shaped), _list_tokens(other_trace, is_shaped)
        _match_sequences(tokens, other_tokens, matched, is_taken)
    return matched


def _match_by_name(trace: Trace, other_trace: Trace) -> Ints | None:
    """Match ops of equal names, if both ranks recorded the same calls; else None.

    Only where names count the calls: names of compiled graphs differ between ranks.
    """
    if trace.source.format == "mindspore" or len(trace.ops) != len(other_trace.ops):
        return None
    other_rows = {name: row for row, name in enumerate(other_trace.ops["name"])}
    rows = np.array([other_rows.get(name, -1) for name in trace.ops["name"]], dtype=np.int64)
    if (rows < 0).any():
        return None
    for column in ("kind", "scope"):
        other_column = other_trace.ops[column].to_numpy()[rows]
        if not (trace.ops[column].to_numpy() == other_column).all():
            return None
    return rows


def _list_common_collectives(exchanges: Exchanges, first: int, rank: int) -> list[tuple[int, int]]:
    """Return the ops of both ranks that correspond because they are one collective.

    Collectives of a group that has only one of the ranks correspond if the groups of both ranks are
    of one kind and size; they are left to the alignment.
    """
    table = exchanges.table
    ops, other_ops = {}, {}
    for exchange, owner, op, peer in zip(
        table["exchange"], table["rank"], table["op"], table["peer"], strict=True
    ):
        if peer >= 0:
            continue
        if owner == first:
            ops[exchange] = op
        elif owner == rank:
            other_ops[exchange] = op
    return [(op, other_ops[exchange]) for exchange, op in ops.items() if exchange in other_ops]


def _has_graph(trace: Trace) -> bool:
    return bool((trace.tensors["source_tensor"] >= 0).any())


def _list_shapes(trace: Trace) -> list[tuple[object, ...]]:
    """Return the slots and shapes of each op."""
    shapes: list[list[object]] = [[] for _ in range(len(trace.ops))]
    tensors = trace.tensors
    for op, slot, shape in zip(tensors["op"], tensors["slot"], tensors["shape"], strict=True):
        shapes[op].append((slot, shape))
    return [tuple(items) for items in shapes]


def _list_tokens(trace: Trace, is_shaped: bool) -> list[Hashable]:
    ops = trace.ops
    columns: list[Sequence[object]] = [ops[name].tolist() for name in ("kind", "phase", "level")]
    if is_shaped:
        columns += [_list_shapes(trace), ops["scope"].tolist()]
    return list(zip(*columns, strict=True))


def _compute_signatures(trace: Trace, depth: int) -> list[Hashable]:
    """Return a signature of each op from its kind, shapes, parameters and producers.

    ``depth`` is the number of levels of producers that are included.
    """
    tensors = trace.tensors
    reads: list[list[tuple[str, str, int]]] = [[] for _ in range(len(trace.ops))]
    producers = np.full(len(tensors), -1, dtype=np.int64)
    sources = tensors["source_tensor"].to_numpy()
    producers[sources >= 0] = tensors["op"].to_numpy()[sources[sources >= 0]]
    for op, slot, parameter, producer in zip(
        tensors["op"].tolist(),
        tensors["slot"].tolist(),
        tensors["parameter"].tolist(),
        producers.tolist(),
        strict=True,
    ):
        reads[op].append((slot, parameter, producer))
    local = [
        hash(token)
        for token in zip(trace.ops["kind"], trace.ops["phase"], _list_shapes(trace), strict=True)
    ]
    signatures = local
    for _ in range(depth):
        new_signatures = []
        for op, token in enumerate(local):
            inputs = tuple(
                (slot, parameter, signatures[producer] if producer >= 0 else 0)
                for slot, parameter, producer in reads[op]
            )
            new_signatures.append(hash((token, inputs)))
        if len(set(new_signatures)) == len(set(signatures)) and signatures is not local:
            break
        signatures = new_signatures
    return list(signatures)


def _match_signatures(
    signatures: Sequence[Hashable],
    other_signatures: Sequence[Hashable],
    matched: Ints,
    is_taken: Flags,
) -> None:
    """Match the ops of each signature in order, where both ranks have equally many of them."""
    rows: defaultdict[Hashable, list[int]] = defaultdict(list)
    other_rows: defaultdict[Hashable, list[int]] = defaultdict(list)
    for row, signature in enumerate(signatures):
        if matched[row] < 0:
            rows[signature].append(row)
    for row, signature in enumerate(other_signatures):
        if not is_taken[row]:
            other_rows[signature].append(row)
    for signature, op_rows in rows.items():
        candidates = other_rows.get(signature, [])
        if len(candidates) == len(op_rows):
            matched[op_rows] = candidates
            is_taken[candidates] = True


def _match_sequences(
    tokens: Sequence[Hashable],
    other_tokens: Sequence[Hashable],
    matched: Ints,
    is_taken: Flags,
) -> None:
    """Match the ops between the matched ones by aligning the sequences of their tokens."""
    for rows, other_rows in _list_segments(matched, is_taken):
        if not rows or not other_rows or max(len(rows), len(other_rows)) > _MAX_SEGMENT:
            continue
        segment = [tokens[row] for row in rows]
        other_segment = [other_tokens[row] for row in other_rows]
        matcher = SequenceMatcher(None, segment, other_segment, autojunk=False)
        for start, other_start, size in matcher.get_matching_blocks():
            for offset in range(size):
                matched[rows[start + offset]] = other_rows[other_start + offset]
                is_taken[other_rows[other_start + offset]] = True


def _list_segments(matched: Ints, is_taken: Flags) -> list[tuple[list[int], list[int]]]:
    """Return the unmatched ops of both ranks between one pair of matched ops and the next.

    Pairs that cross others (the order of graphs may differ) do not separate anything.
    """
    anchors = []
    last = -1
    for row in np.flatnonzero(matched >= 0).tolist():
        if matched[row] > last:
            anchors.append((row, int(matched[row])))
            last = int(matched[row])
    bounds = [(-1, -1), *anchors, (len(matched), len(is_taken))]
    segments = []
    for (row, other_row), (next_row, next_other_row) in pairwise(bounds):
        rows = [index for index in range(row + 1, next_row) if matched[index] < 0]
        other_rows = [
            index for index in range(other_row + 1, next_other_row) if not is_taken[index]
        ]
        segments.append((rows, other_rows))
    return segments
