"""Read ``ms_output_trace_code_graph_N.ir``, a printed MindSpore graph (1.6 to 2.10).

It has the nodes of the .pb file, and what the .pb leaves out: the values of tensor constants, the
shapes inside tuples, and which parameters are weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from ...model.dtypes import normalize_dtype
from ...model.errors import DumpError
from ...model.input_files import read_input_text
from ...tensor_files.npy import validate_shape
from .nodes import (
    COMMUNICATION_ATTRIBUTES,
    CONSTANT,
    NODE,
    NOTHING,
    PARAMETER,
    Graph,
    Input,
    Node,
    Output,
    Parameter,
)
from .op_types import COMMUNICATIONS

_PARAMETER = re.compile(
    r"^%para\d+_(?P<name>.*?)\s*: (?P<type><.*?>)  :(?P<rest>.*)$", re.MULTILINE
)
_SUBGRAPH = re.compile(r"^subgraph @", re.MULTILINE)
_NODE = re.compile(r"^  (?P<key>%\w+)\((?P<alias>[^\n]*?)\) = (?P<kind>[\w:.]+)\(", re.MULTILINE)
_NAME = re.compile(
    r"(?:Fullname with scope|full_name_with_scope): \((?P<name>[^\n]*)\)"
    r"|^ +: \((?P<old>[\w./ -]+)\)$",
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
_ATTRIBUTE = re.compile(
    rf"\b(?P<name>{'|'.join(sorted(COMMUNICATION_ATTRIBUTES))}): "
    r'(?:"(?P<text>[^"\n]*)"|[IU]\d+\((?P<number>-?\d+)\)'
    r"|\((?P<tuple>(?:\d+|[IU]\d+\(\d+\)|[, ])*)\))"
)
_TUPLE_NUMBER = re.compile(r"(?<![A-Za-z\d])\d+")  #: printed as 2 or as I64(2)
_MAX_ARGUMENTS_LENGTH = 1_000_000  #: characters between the brackets of one node
_MAX_TUPLE_TYPES = 10_000  #: elements of one dtype in a printed tuple type
_CONTAINER_TYPES = {"Tensor", "Tuple", "Ref", "List"}


def read_ir(path: Path) -> Graph:
    """Return the graph in an .ir file.

    Raises DumpError if the file is unreadable or holds no node.
    """
    try:
        text = read_input_text(path, errors="replace")
    except OSError as error:
        raise DumpError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        nodes, parameters = list(_parse_nodes(text)), dict(_parse_parameters(text))
    except ValueError as error:
        raise DumpError(f"{path}: not a MindSpore graph (.ir): {error}") from error
    if not nodes:
        raise DumpError(f"{path}: no node found, expected a MindSpore graph (.ir)")
    return Graph(nodes, parameters)


def _parse_parameters(text: str) -> Iterator[tuple[str, Parameter]]:
    for match in _PARAMETER.finditer(text):
        outputs = _parse_outputs(match["type"])
        output = outputs[0] if outputs else Output("", None)
        attributes = match["rest"]
        if "IsWeight:" in attributes:
            is_weight = "IsWeight: true" in attributes
        else:
            is_weight = "ref_key=" in match["type"]
        yield match["name"], Parameter(output.dtype, output.shape, is_weight)


def _parse_nodes(text: str) -> Iterator[Node]:
    """Yield every node.

    Keys start from %0 in every subgraph, so the number of the subgraph is part of the key.
    """
    subgraph_starts = [match.start() for match in _SUBGRAPH.finditer(text)]
    node_matches = list(_NODE.finditer(text))
    if not node_matches:
        return
    node_ends = [*(match.start() for match in node_matches[1:]), len(text)]
    subgraph = 0
    for match, end in zip(node_matches, node_ends, strict=True):
        while subgraph < len(subgraph_starts) and subgraph_starts[subgraph] < match.start():
            subgraph += 1
        arguments, arguments_end = _split_arguments(text, match.end(), end)
        body = text[arguments_end:end]
        name, frames = _parse_name_and_frames(body)
        kind = match["kind"].removeprefix("PrimFunc_")
        yield Node(
            f"{subgraph}{match['key']}",
            kind,
            name,
            tuple(_parse_input(argument, subgraph) for argument in arguments),
            tuple(_parse_outputs(_find_output_type(body))),
            frames,
            _parse_attributes(body) if kind in COMMUNICATIONS else (),
        )


def _parse_attributes(body: str) -> tuple[tuple[str, str], ...]:
    """Return the attributes of a communication, which are printed on the line of the node."""
    line = body.partition("\n")[0]
    attributes = []
    for match in _ATTRIBUTE.finditer(line):
        value = match["text"] if match["text"] is not None else match["number"]
        if value is None:
            value = " ".join(_TUPLE_NUMBER.findall(match["tuple"]))
        attributes.append((match["name"], value))
    return tuple(attributes)


def _parse_name_and_frames(body: str) -> tuple[str, str]:
    """Return the full name of a node and its stack as text, innermost frame first.

    '' if not printed.
    """
    match = _NAME.search(body)
    if match is None:
        return "", ""
    frames = "\n".join(reversed(body[match.end() :].splitlines()))
    return match["name"] or match["old"], frames


def _split_arguments(text: str, start: int, end: int) -> tuple[list[str], int]:
    """Return the arguments of a node, and the position after its closing bracket.

    ``start`` is the position after the opening bracket.
    """
    arguments: list[str] = []
    depth, begin, is_quoted = 0, start, False
    for position in range(start, min(end, start + _MAX_ARGUMENTS_LENGTH)):
        char = text[position]
        if char == '"':
            is_quoted = not is_quoted
        elif is_quoted:
            continue
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            if depth == 0:
                last_argument = text[begin:position].strip()
                if last_argument:
                    arguments.append(last_argument)
                return arguments, position + 1
            depth -= 1
        elif char == "," and depth == 0:
            arguments.append(text[begin:position].strip())
            begin = position + 1
    return arguments, end


def _parse_input(argument: str, subgraph: int) -> Input:
    if argument.startswith("%para"):
        return Input(PARAMETER, argument.partition("_")[2])
    if argument.startswith("%"):
        return Input(NODE, f"{subgraph}{argument}")
    tensor_match = _TENSOR.match(argument)
    if tensor_match:
        return _parse_tensor_constant(tensor_match)
    scalars = _SCALAR.findall(argument)
    if not scalars:
        return Input(NOTHING)
    values = tuple(value for _, text in scalars for value in _parse_numbers(text))
    if len(values) != len(scalars):
        return Input(CONSTANT)
    shape = (len(values),) if argument.startswith(("(", "[")) else ()
    return Input(CONSTANT, "", values, _parse_dtype(scalars[0][0]), shape)


def _parse_tensor_constant(match: re.Match[str]) -> Input:
    shape = _parse_extents(match["shape"])
    values: tuple[float, ...] | None = None
    if "..." not in match["value"]:  # a long tensor is abbreviated
        values = _parse_numbers(match["value"])
        if len(values) != math.prod(shape):
            values = None
    return Input(CONSTANT, "", values, _parse_dtype(match["dtype"]), shape)


def _parse_extents(text: str) -> tuple[int, ...]:
    return tuple(int(extent) for extent in text.split(",") if extent.strip())


def _parse_numbers(text: str) -> tuple[float, ...]:
    booleans = {"True": "1", "False": "0"}
    return tuple(float(booleans.get(number, number)) for number in _NUMBER.findall(text))


def _parse_dtype(spelling: str) -> str:
    short = re.fullmatch(r"(BF|[IUF])(\d+)", spelling)
    return normalize_dtype(_SCALAR_TYPES[short[1]] + short[2] if short else spelling)


def _find_output_type(body: str) -> str:
    start = body.find(_ARROW)
    return body[start + len(_ARROW) : body.find("\n", start)] if start >= 0 else ""


def _parse_outputs(type_text: str) -> list[Output]:
    """Return the tensors of a printed type.

    Example: ``<Tuple[Tensor[Float32]*2], TupleShape((2, 4), (2, 4))>``.
    """
    dtype_text, _, shape_text = type_text.partition("], ")
    if not shape_text:
        dtype_text, _, shape_text = type_text.partition(", ")
    dtypes: list[str] = []
    for name, repetitions in re.findall(r"(\w+)\]*(?:\*(\d+))?(?=[,\]]|$)", dtype_text):
        if name not in _CONTAINER_TYPES:
            dtypes += [normalize_dtype(name)] * min(int(repetitions or 1), _MAX_TUPLE_TYPES)
    if "Monad" in type_text or not dtypes:
        return []
    shape_text = shape_text.partition(", elements_use_flags")[0].partition("ref_key")[0]
    shapes = [_parse_shape(match) for match in _SHAPE.finditer(shape_text)]
    if len(shapes) != len(dtypes):
        shapes = [None] * len(dtypes)
    return [Output(dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=True)]


def _parse_shape(match: re.Match[str]) -> tuple[int, ...] | None:
    if match[0] == "NoShape":
        return ()
    return validate_shape(_parse_extents(match[1]))
