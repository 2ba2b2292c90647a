"""What lies around a finding, as plain data for reports that draw: dataflow, tensors, stacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Role = Literal["target", "reference"]


@dataclass(frozen=True)
class Node:
    """One op near a finding; what only passes a value on (a reshape, transpose or copy) is none."""

    op: str  #: the dump's own op name; a parameter's name where the finding is about a parameter
    #: the operator as its framework spells it; Parameter or Input for what nobody computed, Unrecorded for what nobody
    #: recorded computing
    kind: str
    scope: str  #: canonical, '' if unknown
    state: str  #: of its worst compared output: agreeing, introduced, propagated, amplified; unmatched if none is
    level: int  #: row in the drawing: matched ops of both sides have the same one, and data flows to larger ones
    partner: int  #: position of the op of the other side that it is drawn beside, -1 if it has none
    error: float  #: of that output, NaN if none is compared
    source: str  #: the user's line, '' if unknown
    stack: str  #: the user's frames, innermost first, one a line; '' if unknown


@dataclass(frozen=True)
class Edge:
    """A value that one of the drawn ops makes and another reads, be it through reshapes, transposes and copies."""

    maker: int  #: position in the nodes of the same side
    reader: int
    slot: str  #: the reader's, 'input.0'
    shape: str  #: '2 x 16 x 64', '' if unknown
    error: float  #: of the value against its partner, NaN if it has none
    state: str  #: agreeing, introduced, propagated, amplified or unmatched


@dataclass(frozen=True)
class Neighbourhood:
    """The dataflow around a finding, of one side."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    omitted: int  #: ops as near as these that were left out, to keep the drawing small


@dataclass(frozen=True)
class Histogram:
    """How the values of the two tensors are spread, in common bins; what is masked or not finite is in none."""

    edges: tuple[float, ...]  #: n + 1 bin edges, ascending
    target: tuple[int, ...]  #: n counts
    reference: tuple[int, ...]


@dataclass(frozen=True)
class DifferenceMap:
    """Where in the tensor the difference lies: the largest |target - reference| of every block of elements.

    The tensor is seen as a matrix, its last axis across and the others down (axes of one element do not count), and cut
    into at most 64 x 64 blocks. What is masked on both sides differs by 0.
    """

    #: rows of block maxima; NaN where one side is not finite and the other is, or in another way
    values: tuple[tuple[float, ...], ...]
    rows: str  #: what runs down: 'axes 0, 1 (2 x 16)'
    columns: str  #: what runs across: 'axis 2 (64)'
    scale: float  #: root mean square of the reference, to see a difference beside it


@dataclass(frozen=True)
class Closeup:
    """One finding, drawn."""

    rank: int  #: of the finding
    target: Neighbourhood
    reference: Neighbourhood
    histogram: Histogram | None  #: None without whole tensors
    difference: DifferenceMap | None
