"""The surroundings of a finding as plain data for graphical reports: dataflow, tensors, stacks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    """One op near a finding.

    Ops that only pass a value on (a reshape, transpose or copy) are no nodes.
    """

    op: str  #: the dump's own op name; the parameter's name if the finding is about a parameter
    #: the operator as its framework spells it; Parameter or Input for a value that no op computes,
    #: Unrecorded for a value whose producer was not recorded
    kind: str
    scope: str  #: canonical, '' if unknown
    #: state of its worst output, one of ``model.verdict.VALUE_STATES``; unpaired without outputs
    state: str
    #: row in the drawing: paired ops of both sides have the same level, data flows to larger levels
    level: int
    partner: int  #: position of the paired op in the other side's nodes, -1 if it has none
    error: float  #: of that output, NaN if it was not compared
    source: str  #: the user's line, '' if unknown
    stack: str  #: the user's frames, innermost first, one per line; '' if unknown


@dataclass(frozen=True)
class Edge:
    """A value that one drawn op produces and another consumes.

    The value may pass through reshapes, transposes and copies on the way.
    """

    producer: int  #: position in the nodes of the same side
    consumer: int  #: position in the nodes of the same side
    slot: str  #: of the consumer, 'input.0'
    shape: str  #: '2 x 16 x 64', '' if unknown
    error: float  #: of the value against its partner, NaN if it was not compared
    state: str  #: one of ``model.verdict.VALUE_STATES``


@dataclass(frozen=True)
class Neighborhood:
    """The dataflow around a finding, of one side."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    omitted: int  #: ops at the same distance that were left out to keep the drawing small


@dataclass(frozen=True)
class Histogram:
    """The distribution of the values of both tensors, in common bins.

    Masked and non-finite elements are in no bin.
    """

    edges: tuple[float, ...]  #: n + 1 bin edges, ascending
    target: tuple[int, ...]  #: n counts
    reference: tuple[int, ...]  #: n counts


@dataclass(frozen=True)
class DifferenceMap:
    """The largest |target - reference| of every block of elements of a tensor.

    The tensor is treated as a matrix: its last axis is the columns and all other axes are the rows
    (axes of length one do not count). The matrix is cut into at most 64 x 64 blocks. Elements that
    are masked on both sides differ by 0.
    """

    #: rows of block maxima; NaN where the two sides are non-finite in different ways
    values: tuple[tuple[float, ...], ...]
    rows: str  #: which axes are the rows: 'axes 0, 1 (2 x 16)'
    columns: str  #: which axis is the columns: 'axis 2 (64)'
    scale: float  #: root mean square of the reference, to judge a difference by


@dataclass(frozen=True)
class SourceExcerpt:
    """The lines around the source line of a finding, of one side."""

    side: str  #: target or reference
    place: str  #: model.py:57
    first_number: int  #: of the first line, counted from 1
    number: int  #: of the finding's line
    lines: tuple[str, ...]


@dataclass(frozen=True)
class FindingContext:
    """The surroundings of one finding, on both sides."""

    rank: int  #: of the finding
    target: Neighborhood
    reference: Neighborhood
    histogram: Histogram | None  #: None without whole tensors
    difference: DifferenceMap | None  #: None without whole tensors
    #: of each side whose file is readable and has the recorded line
    sources: tuple[SourceExcerpt, ...] = ()
