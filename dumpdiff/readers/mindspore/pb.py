"""Reads ``ms_output_trace_code_graph_N.pb``: protobuf wire format of MindSpore's ``debugger.ModelProto``.

Field numbers are those of ``debug_graph.proto`` (the same from MindSpore 1.6 to 2.10); only what is needed is decoded.
Encoding: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from ...model.errors import DumpError
from ..npy import validate_shape
from .nodes import CONSTANT, NODE, NOTHING, PARAMETER, Graph, Input, Node, Output, Parameter

_DTYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64",
    10: "float16", 11: "float32", 12: "float64", 46: "bfloat16",
}  # fmt: skip
_STRING, _TUPLE, _LIST = 13, 31, 32
_MODEL_GRAPH = 4
_DEEPEST = 32  #: nesting of tuples in tuples

_Field = tuple[int, int | bytes]


def read_pb(path: Path) -> Graph:
    """The graph in a .pb file. Raises DumpError if the file is unreadable or no such graph."""
    try:
        data = path.read_bytes()
        graph = next(
            value
            for field, value in _fields(data)
            if field == _MODEL_GRAPH and isinstance(value, bytes)
        )
        return _graph(graph)
    except OSError as error:
        raise DumpError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, IndexError, StopIteration, RecursionError, struct.error) as error:
        raise DumpError(f"{path}: not a MindSpore graph (.pb) or cut short") from error


def read_pb_names(path: Path) -> list[str]:
    """Only the full names of the nodes, in order. Raises DumpError like :func:`read_pb`."""
    try:
        data = path.read_bytes()
        graph = next(
            value
            for field, value in _fields(data)
            if field == _MODEL_GRAPH and isinstance(value, bytes)
        )
        return [_text(dict(_fields(value)).get(8)) for field, value in _fields(graph) if field == 1]
    except OSError as error:
        raise DumpError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, IndexError, StopIteration) as error:
        raise DumpError(f"{path}: not a MindSpore graph (.pb) or cut short") from error


def _fields(data: int | bytes) -> Iterator[_Field]:
    """(field number, value) of one message; value is an int (varint, fixed) or bytes (everything else)."""
    if isinstance(data, int):
        raise ValueError("expected a message")
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 2:
            length, at = _varint(data, at)
            if at + length > end:
                raise ValueError("cut short")
            yield key >> 3, data[at : at + length]
            at += length
        elif wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
        elif wire in {1, 5}:
            width = 8 if wire == 1 else 4
            yield key >> 3, data[at : at + width]
            at += width
        else:
            raise ValueError(f"wire type {wire}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 128:
        return byte, at + 1
    result, shift = byte & 127, 7
    while True:
        at += 1
        byte = data[at]
        result |= (byte & 127) << shift
        if byte < 128:
            return result, at + 1
        shift += 7
        if shift > 63:
            raise ValueError("varint too long")


def _text(value: int | bytes | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _graph(data: bytes) -> Graph:
    nodes: list[bytes] = []
    parameters: dict[str, Parameter] = {}
    constants: dict[str, Input] = {}
    for field, value in _fields(data):
        if field == 1 and isinstance(value, bytes):
            nodes.append(value)
        elif field == 3:
            said = dict(_fields(value))
            outputs = _outputs(said[2]) if 2 in said else [Output("", None)]
            parameters[_text(said.get(1))] = Parameter(
                *(outputs or [Output("", None)])[0], is_weight=None
            )
        elif field == 5:
            said = dict(_fields(value))
            constants[_text(said.get(1))] = _constant(said.get(2))
    return Graph([_node(node, constants, parameters) for node in nodes], parameters)


def _node(data: bytes, constants: dict[str, Input], parameters: dict[str, Parameter]) -> Node:
    key = kind = name = frames = ""
    inputs: list[Input] = []
    outputs: list[Output] = []
    for field, value in _fields(data):
        if field == 1:
            source = _text(dict(_fields(value)).get(1))
            if source in constants:
                inputs.append(constants[source])
            elif source in parameters:
                inputs.append(Input(PARAMETER, source))
            else:
                inputs.append(Input(NODE, source))
        elif field == 2:
            key = _text(value)
        elif field == 3:
            kind = _text(value)
        elif field == 6:
            outputs += _outputs(value)
        elif field == 8:
            name = _text(value)
        elif field == 9:
            frames = _text(value)
    return Node(key, kind.removeprefix("PrimFunc_"), name, tuple(inputs), tuple(outputs), frames)


def _outputs(data: int | bytes, depth: int = 0) -> list[Output]:
    """The tensors of a type: one, or those of a tuple (whose elements have no shape in this file), flattened."""
    if depth > _DEEPEST:
        raise ValueError("tuples nested too deeply")
    said = dict(_fields(data))
    if 2 in said:
        tensor = dict(_fields(said[2]))
        shape = _shape(tensor[2]) if 2 in tensor else (None if depth else ())
        return [Output(_dtype(tensor.get(1)), shape)]
    if 3 in said:
        return [out for _, element in _fields(said[3]) for out in _outputs(element, depth + 1)]
    dtype = _dtype(said.get(1))
    return [Output(dtype, ())] if dtype else []


def _shape(data: int | bytes) -> tuple[int, ...] | None:
    return validate_shape(
        _signed(dict(_fields(dim)).get(1, 0)) for field, dim in _fields(data) if field == 1
    )


def _dtype(number: int | bytes | None) -> str:
    return _DTYPES.get(number, "") if isinstance(number, int) else ""


def _signed(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("expected a number")
    return value - (1 << 64) if value >= 1 << 63 else value


def _constant(data: int | bytes | None) -> Input:
    """A scalar or a tuple of scalars; tensors come without their values."""
    if data is None:
        return Input(CONSTANT)
    said = list(_fields(data))
    if not said:
        return Input(NOTHING)
    numbers = dict(said)
    number = numbers.get(1)
    if number in {_TUPLE, _LIST}:
        items = [_constant(value) for field, value in said if field == 18]
        flat = [item.values[0] for item in items if item.values]
        if len(flat) != len(items) or not items:
            return Input(NOTHING) if not items else Input(CONSTANT)
        return Input(CONSTANT, "", tuple(flat), items[0].dtype, (len(flat),))
    value = _scalar(numbers)
    if value is None:
        return Input(NOTHING if number == _STRING or 7 in numbers else CONSTANT)
    return Input(CONSTANT, "", (value,), _dtype(number), ())


def _scalar(numbers: dict[int, int | bytes]) -> float | None:
    for field, value in numbers.items():
        if field in {2, 3, 4}:
            return float(_signed(value)) if field == 3 else float(value)
        if field == 5 and isinstance(value, bytes):
            return float(struct.unpack("<f", value)[0])
        if field == 6 and isinstance(value, bytes):
            return float(struct.unpack("<d", value)[0])
    return None
