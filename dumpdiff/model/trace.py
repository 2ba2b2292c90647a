"""A trace: what one training process did in one step, as recorded.

A :class:`Trace` is two tables (pandas, one row per op and one row per slot of an op), lazy access
to whole tensors and the list of problems met while reading. Only readers, which
make traces, know the formats of dumps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from .arrays import AnyArray, Flags, Objects

if TYPE_CHECKING:
    import networkx as nx

FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION = "forward", "backward", "optimizer", "communication"
PHASES = (FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION)

#: One row per executed operator, API call or module call, in execution order
#: (topological order where a graph was read). The row number is the op's id.
OP_COLUMNS: Mapping[str, tuple[str, str]] = {
    "name": ("object", "the dump's own name; repeats inside one dump get '#2', '#3', ..."),
    "kind": (
        "object",
        "the operator as its framework spells it: MatMul, Functional.linear, Module.Linear",
    ),
    "phase": ("object", "forward, backward, optimizer or communication"),
    "level": (
        "object",
        "'op' for an operator or API call, 'module' for a call that contains others",
    ),
    "scope": (
        "object",
        "the module path as recorded; '' if unknown. A hint: graph-mode scopes lie",
    ),
    "parent": ("int64", "op id of the module call this one ran in, -1 if unknown"),
    "forward": (
        "int64",
        "op id of the forward call that this backward op differentiates, -1 if unknown",
    ),
    "recomputed": ("bool", "a second forward run inside the backward pass"),
    "source": ("object", "the user's line that called it, 'model.py:46'; '' if unknown"),
    "stack": ("object", "the user's frames, innermost first, one a line; '' if unknown"),
}

#: One row per tensor or scalar that an op reads or writes. The row number is the tensor's id.
TENSOR_COLUMNS: Mapping[str, tuple[str, str]] = {
    "op": ("int64", "id of the op"),
    "slot": ("object", "input.0, input.0.1, output.1, parameter.weight"),
    "slot_kind": ("object", "input, output or parameter"),
    "dtype": (
        "object",
        "float32, bfloat16, int64, bool, ...; int, float or bool for a Python scalar",
    ),
    "shape": ("object", "tuple of ints; None if unknown"),
    "size": ("int64", "number of elements, -1 if unknown"),
    "max": ("float64", "largest element, NaN if not recorded (then see nonfinite)"),
    "min": ("float64", "smallest element"),
    "mean": ("float64", "arithmetic mean"),
    "norm": ("float64", "L2 norm"),
    "l1": (
        "float64",
        "L1 norm, NaN if not recorded. Recorders that write it write no L2 norm, or few",
    ),
    "addends": (
        "float64",
        "what the root mean squares of the tensors of ranks add up to whose sum it is; NaN if none",
    ),
    "nonfinite": ("int8", "1 if it holds NaN or Inf, 0 if it does not, -1 if unknown"),
    "hash": ("object", "checksum as recorded (CRC-32, MD5, ...); '' if none"),
    "constant": (
        "bool",
        "an immediate value (Python scalar, graph constant), not a computed tensor",
    ),
    "parameter": ("object", "name of the parameter this tensor holds, '' if none or unknown"),
    "gradient_of": (
        "object",
        "name of the parameter whose gradient this is, '' if none or unknown",
    ),
    "update_of": (
        "object",
        "name of the parameter whose value after the step this is, '' if none or unknown",
    ),
    "source_tensor": (
        "int64",
        "id of the output tensor that this input reads, if the dump's graph says so; -1 if unknown",
    ),
    "trusted": (
        "bool",
        "false where the recorder is known to write something else (stale or updated memory)",
    ),
    "file": ("object", "the whole tensor, relative to Source.path; '' if only statistics exist"),
    "content": (
        "int64",
        "fingerprint of the file, equal for equal bytes of any shape; 0 if the reader read none",
    ),
    "sketch": ("object", "(192,) float32 as in model.sketches; None if none was recorded"),
}


#: What the dump says about collectives and transfers between ranks, one row for each op of the
#: phase communication, and one for each transfer of an op that makes several. The rows are ordered
#: by op and slot. Values that the dump does not record are '', None or -1.
COMMUNICATION_COLUMNS: Mapping[str, tuple[str, str]] = {
    "op": ("int64", "id of the op"),
    "slot": ("object", "input slot of one transfer of several, such as input.0.1; else ''"),
    "transfer": ("object", "send or recv, for one transfer of several; else ''"),
    "group": ("object", "name or id of the group as recorded"),
    "members": ("object", "ranks of the group, a tuple in its order"),
    "reduction": ("object", "sum, mean, max, min or product"),
    "peer": ("int64", "rank of the whole run that sends, receives, or is the root"),
    "group_peer": ("int64", "the same as a position in the group"),
    "asynchronous": ("bool", "the call returned before its output was complete"),
}


@dataclass(frozen=True)
class Problem:
    """Something in the dump that could not be read or trusted; the rest was used."""

    file: str  #: relative to the dump
    message: str  #: what was expected, what was found
    line: int | None = None
    count: int = 1  #: how many records it concerns
    op: str = ""  #: the op whose record it is, '' if it is not about one op
    #: an answer that rests on these records is less certain: they are damaged, missing, mixed with
    #: those of another process, or contradict themselves
    weakens: bool = False

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line is not None else self.file
        repetitions = f" ({self.count} times)" if self.count > 1 else ""
        return f"{place}: {self.message}{repetitions}"


@dataclass(frozen=True)
class Source:
    """Origin of a trace, and precision of its numbers."""

    path: str  #: folder that Tensor ``file`` entries are relative to
    format: str  #: mindspore, ptdbg, msprobe
    format_variant: str  #: generation of the format, in words
    framework: str  #: mindspore or pytorch
    step: int | None = None
    rank: int | None = None
    process: int | None = None  #: its number, where the recorder knew no rank
    graph: int | None = None
    #: relative resolution of the recorded statistics (6 printed digits: 1e-6)
    resolution: float = 1e-7
    #: mean and norm were computed in the tensor's own dtype
    low_precision_statistics: bool = False
    #: versions, level, task, verified edges, ...
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def number(self) -> int | None:
        """The number that ``--rank`` selects it by: the rank, else the number of the process."""
        return self.process if self.rank is None else self.rank


@dataclass(frozen=True)
class Trace:
    """One step of one rank, as recorded.

    ``ops`` has the columns of :data:`OP_COLUMNS`, ``tensors`` those of :data:`TENSOR_COLUMNS`;
    both have a plain 0..n-1 index which is the id used by all references between them.
    """

    source: Source
    ops: pd.DataFrame
    tensors: pd.DataFrame
    problems: tuple[Problem, ...] = ()
    load: Callable[[str], AnyArray] | None = None  #: file -> array, memory-mapped where possible
    #: has the columns of :data:`COMMUNICATION_COLUMNS`; ``op`` refers to ``ops``
    communications: pd.DataFrame = field(default_factory=lambda: build_communication_table({}))

    def array(self, tensor: int) -> AnyArray:
        """Return the whole tensor, as float32 for bfloat16, else in its own dtype.

        Its shape may be flat or transposed.

        Raises DumpError if the file is unreadable, KeyError if only statistics were recorded.
        """
        name = self.tensors["file"].iat[tensor]
        if not name or self.load is None:
            raise KeyError(f"tensor {tensor} of {self.source.path} has statistics only")
        return self.load(name)

    @cached_property
    def graph(self) -> nx.DiGraph:
        """Dataflow between ops as far as the dump itself records it.

        Nodes are op ids, with the op's name.

        API dumps record no edges: there ``dumpdiff.graph.build_flow(trace).graph`` has those that
        equal values prove.
        """
        op_of_tensor = self.tensors["op"].to_numpy()
        inputs = self.tensors[self.tensors["source_tensor"] >= 0]
        producers = op_of_tensor[inputs["source_tensor"].to_numpy()].tolist()
        consumers = inputs["op"].tolist()
        return build_digraph(self.ops, zip(producers, consumers, strict=True))


def build_digraph(ops: pd.DataFrame, edges: Iterable[tuple[int, int]]) -> nx.DiGraph:
    """Return a networkx graph of ops.

    Node ids are row numbers of ``ops``; nodes have the attributes name, kind and phase.
    """
    import networkx as nx

    graph = nx.DiGraph()
    columns = zip(ops["name"], ops["kind"], ops["phase"], strict=True)
    graph.add_nodes_from(
        (op, {"name": name, "kind": kind, "phase": phase})
        for op, (name, kind, phase) in enumerate(columns)
    )
    graph.add_edges_from(edges)
    return graph


def build_op_table(columns: Mapping[str, Sequence[Any] | AnyArray]) -> pd.DataFrame:
    """Return an op table; a missing column gets its neutral value.

    Neutral values: '', -1, False; phase forward, level op.
    """
    return _build_table(OP_COLUMNS, {"phase": FORWARD, "level": "op"}, columns)


def build_tensor_table(columns: Mapping[str, Sequence[Any] | AnyArray]) -> pd.DataFrame:
    """Return a tensor table; a missing column gets its neutral value.

    Neutral values: '', -1, NaN, False; shape and sketch None, trusted True, content 0.
    """
    neutral = {"trusted": True, "shape": None, "content": 0, "sketch": None}
    return _build_table(TENSOR_COLUMNS, neutral, columns)


def build_communication_table(columns: Mapping[str, Sequence[Any] | AnyArray]) -> pd.DataFrame:
    """Return a table of communications; a missing column gets its neutral value.

    Neutral values: '', -1, False; members None.
    """
    return _build_table(COMMUNICATION_COLUMNS, {"members": None}, columns)


def flag_words(column: pd.Series[Any], test: Callable[[str], bool]) -> Flags:
    """Return (rows,) a test of the words in a column; it is made once for each different word."""
    codes, words = pd.factorize(column)
    flags: Flags = np.array([test(word) for word in words], dtype=bool)[codes]
    return flags


_NEUTRAL = {"object": "", "int64": -1, "int8": -1, "bool": False, "float64": np.nan}


def _build_table(
    schema: Mapping[str, tuple[str, str]],
    neutral: Mapping[str, Any],
    columns: Mapping[str, Sequence[Any] | AnyArray],
) -> pd.DataFrame:
    unknown = set(columns) - set(schema)
    if unknown:
        raise TypeError(f"no such column: {', '.join(sorted(unknown))}")
    rows = max((len(values) for values in columns.values()), default=0)
    data: dict[str, Any] = {}
    for name, (dtype, _) in schema.items():
        if name not in columns:
            neutral_value = np.array(neutral.get(name, _NEUTRAL[dtype]), dtype=dtype)
            column = np.broadcast_to(neutral_value, rows)
        elif dtype == "object":
            column = _share_repeated(_copy_objects(columns[name]))
        else:
            column = _share_repeated(np.array(columns[name], dtype=dtype))
        # pandas 3 guesses another type for objects
        data[name] = pd.Series(column, dtype=column.dtype, copy=False)
    return pd.DataFrame(data, copy=False)


def _copy_objects(values: Sequence[Any] | AnyArray) -> Objects:
    """Return an array of Python objects, also of tuples; strings stay Python strings."""
    if isinstance(values, np.ndarray) and values.dtype == object:
        return values.copy()
    return np.fromiter(values, dtype=object, count=len(values))


def _share_repeated(column: AnyArray) -> AnyArray:
    """Return a column; one that repeats a text or a number only as a view of that element.

    A dump without checksums, files and L1 norms has a dozen such columns.
    """
    if not len(column):
        return column
    first, last = column[:1].copy(), column[-1]
    if column.dtype == object:
        is_repeated = type(last) is str and last == first[0] and bool((column == first).all())
    else:
        is_repeated = np.array_equal(column, np.broadcast_to(first, len(column)), equal_nan=True)
    return np.broadcast_to(first, len(column)) if is_repeated else column
