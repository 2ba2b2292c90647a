"""Reads ``ms_output_trace_code_graph_N.ir``, the printed form of a compiled graph.

It repeats what the .pb file says, and adds what that leaves out: the values of tensor constants, the shapes
inside tuples, and which parameters are weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from ...model.dtypes import normalise
from ...model.errors import DumpError
from ..npy import validate_shape
from .nodes import CONSTANT, NODE, NOTHING, PARAMETER, Graph, Input, Node, Output, Parameter

_PARAMETER = re.compile(
    r"^%para\d+_(?P<name>.*?)\s*: (?P<type><.*?>)  :(?P<rest>.*)$", re.MULTILINE
)
_SUBGRAPH = re.compile(r"^subgraph @", re.MULTILINE)
_NODE = re.compile(r"^  (?P<key>%\w+)\((?P<alias>[^\n]*?)\) = (?P<kind>[\w:.]+)\(", re.MULTILINE)
_NAME = re.compile(
    r"(?:Fullname with scope|full_name_with_scope): \((?P<name>[^\n]*)\)|^ +: \((?P<old>[\w./ -]+)\)$",
    re.M,
)
_ARROW = " -> ("
_SHAPE = re.compile(r"\(([-\d, ]*)\)|NoShape")
_TENSOR = re.compile(
    r"Tensor\(shape=\[(?P<shape>[^\]]*)\], dtype=(?P<dtype>\w+), value=(?P<value>.*)\)$", re.DOTALL
)
_SCALAR = re.compile(
    r"(?P<type>Bool|[IUF]\d+|BF16|Int\d+|UInt\d+|Float\d+|BFloat16)\((?P<value>[^()]*)\)"
)
_NUMBER = re.compile(
    r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|inf|nan)|True|False"
)
_SCALAR_TYPES = {"I": "int", "U": "uint", "F": "float", "BF": "bfloat"}
_LONGEST_ARGUMENTS = 1_000_000  #: characters


def read_ir(path: Path) -> Graph:
    """The graph in an .ir file. Raises DumpError if the file is unreadable or holds no node."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DumpError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        nodes, parameters = list(_nodes(text)), dict(_parameters(text))
    except ValueError as error:
        raise DumpError(f"{path}: not a MindSpore graph (.ir): {error}") from error
    if not nodes:
        raise DumpError(f"{path}: no node found, expected a MindSpore graph (.ir)")
    return Graph(nodes, parameters)


def _parameters(text: str) -> Iterator[tuple[str, Parameter]]:
    for found in _PARAMETER.finditer(text):
        output = (_outputs(found["type"]) or [Output("", None)])[0]
        rest = found["rest"]
        weight = "IsWeight: true" in rest if "IsWeight:" in rest else "ref_key=" in found["type"]
        yield found["name"], Parameter(output.dtype, output.shape, weight)


def _nodes(text: str) -> Iterator[Node]:
    """Every node; keys of different subgraphs, which all count from %0, are told apart by the subgraph's number."""
    starts = [found.start() for found in _SUBGRAPH.finditer(text)]
    found_nodes = list(_NODE.finditer(text))
    subgraph = 0
    for number, found in enumerate(found_nodes):
        end = found_nodes[number + 1].start() if number + 1 < len(found_nodes) else len(text)
        while subgraph < len(starts) and starts[subgraph] < found.start():
            subgraph += 1
        arguments, after = _arguments(text, found.end(), end)
        body = text[after:end]
        name = _NAME.search(body)
        yield Node(
            f"{subgraph}{found['key']}",
            found["kind"].removeprefix("PrimFunc_"),
            (name["name"] or name["old"]) if name else "",
            tuple(_input(argument, subgraph) for argument in arguments),
            tuple(_outputs(_output_type(body))),
            "\n".join(reversed(body[name.end() :].splitlines())) if name else "",
        )


def _arguments(text: str, start: int, end: int) -> tuple[list[str], int]:
    """The arguments between the bracket opened before ``start`` and its partner, and where that ends."""
    parts: list[str] = []
    depth, begin, quoted = 0, start, False
    for at in range(start, min(end, start + _LONGEST_ARGUMENTS)):
        char = text[at]
        if char == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            if depth == 0:
                last = text[begin:at].strip()
                return parts + ([last] if last else []), at + 1
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[begin:at].strip())
            begin = at + 1
    return parts, end


def _input(argument: str, subgraph: int) -> Input:
    if argument.startswith("%para"):
        return Input(PARAMETER, argument.partition("_")[2])
    if argument.startswith("%"):
        return Input(NODE, f"{subgraph}{argument}")
    tensor = _TENSOR.match(argument)
    if tensor:
        shape = tuple(int(size) for size in tensor["shape"].split(",") if size.strip())
        values = None if "..." in tensor["value"] else _numbers(tensor["value"])
        complete = values is not None and len(values) == math.prod(shape)
        return Input(CONSTANT, "", values if complete else None, _dtype(tensor["dtype"]), shape)
    scalars = _SCALAR.findall(argument)
    if not scalars:
        return Input(NOTHING)
    values = tuple(value for _, text in scalars for value in _numbers(text))
    if len(values) != len(scalars):
        return Input(CONSTANT)
    shape = (len(values),) if argument.startswith(("(", "[")) else ()
    return Input(CONSTANT, "", values, _dtype(scalars[0][0]), shape)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(
        float({"True": "1", "False": "0"}.get(number, number)) for number in _NUMBER.findall(text)
    )


def _dtype(spelling: str) -> str:
    short = re.fullmatch(r"(BF|[IUF])(\d+)", spelling)
    return normalise(_SCALAR_TYPES[short[1]] + short[2] if short else spelling)


def _output_type(body: str) -> str:
    start = body.find(_ARROW)
    return body[start + len(_ARROW) : body.find("\n", start)] if start >= 0 else ""


def _outputs(type_text: str) -> list[Output]:
    """The tensors of a printed type such as ``<Tuple[Tensor[Float32]*2], TupleShape((2, 4), (2, 4))>``."""
    head, _, tail = type_text.partition("], ")
    if not tail:
        head, _, tail = type_text.partition(", ")
    dtypes: list[str] = []
    for name, times in re.findall(r"(\w+)\]*(?:\*(\d+))?(?=[,\]]|$)", head):
        if name not in {"Tensor", "Tuple", "Ref", "List"}:
            dtypes += [normalise(name)] * min(int(times or 1), 10_000)
    shapes = [
        _shape(found)
        for found in _SHAPE.finditer(
            tail.partition(", elements_use_flags")[0].partition("ref_key")[0]
        )
    ]
    if "Monad" in type_text or not dtypes:
        return []
    if len(shapes) != len(dtypes):
        shapes = [None] * len(dtypes)
    return [Output(dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=True)]


def _shape(found: re.Match[str]) -> tuple[int, ...] | None:
    if found[0] == "NoShape":
        return ()
    return validate_shape(int(size) for size in found[1].split(",") if size.strip())
