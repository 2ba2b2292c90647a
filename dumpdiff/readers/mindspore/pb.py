"""Read ``ms_output_trace_code_graph_N.pb``: MindSpore's ``debugger.ModelProto`` as protobuf.

Field numbers are those of ``debug_graph.proto`` (the same from MindSpore 1.6 to 2.10). Only the
needed fields are decoded. Encoding: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from ...model.errors import DumpError
from ...model.input_files import read_input_bytes
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

_DTYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32",
    9: "uint64", 10: "float16", 11: "float32", 12: "float64", 46: "bfloat16",
}  # fmt: skip
_STRING, _TUPLE, _LIST = 13, 31, 32
_MODEL_GRAPH = 4  #: field of ModelProto
_GRAPH_NODE, _GRAPH_PARAMETER, _GRAPH_CONSTANT = 1, 3, 5  #: fields of GraphProto
_NODE_ATTRIBUTE, _NODE_NAME = 5, 8  #: fields of NodeProto
_TEXT_VALUE = 7  #: field of ValueProto
_TUPLE_ITEM = 18  #: field of ValueProto
_FLOAT_FORMATS = {5: "<f", 6: "<d"}  #: field of ValueProto -> format of its bytes
_MAX_DEPTH = 32  #: levels of tuples inside tuples

_Value = int | bytes
_Field = tuple[int, _Value]


def read_pb(path: Path) -> Graph:
    """Return the graph in a .pb file.

    Raises DumpError if the file is unreadable or holds no graph.
    """
    try:
        return _parse_graph(_read_graph_message(path))
    except (ValueError, IndexError, StopIteration, RecursionError, struct.error) as error:
        raise DumpError(f"{path}: not a MindSpore graph (.pb) or cut short") from error


def read_pb_names(path: Path) -> list[str]:
    """Return only the full names of the nodes, in order. Raises DumpError like :func:`read_pb`."""
    try:
        names = []
        for field, value in _iterate_fields(_read_graph_message(path)):
            if field == _GRAPH_NODE:
                names.append(_decode_text(_parse_message(value).get(_NODE_NAME)))
        return names
    except (ValueError, IndexError, StopIteration) as error:
        raise DumpError(f"{path}: not a MindSpore graph (.pb) or cut short") from error


def _read_graph_message(path: Path) -> bytes:
    """Return the bytes of the GraphProto. Raises StopIteration if the file has none."""
    try:
        data = read_input_bytes(path)
    except OSError as error:
        raise DumpError(f"{path}: cannot be read: {error.strerror}") from error
    return next(
        value
        for field, value in _iterate_fields(data)
        if field == _MODEL_GRAPH and isinstance(value, bytes)
    )


def _parse_message(data: _Value) -> dict[int, _Value]:
    """Return field number -> value of a message without repeated fields (of these, the last)."""
    return dict(_iterate_fields(data))


def _iterate_fields(data: _Value) -> Iterator[_Field]:
    """Yield (field number, value) of a message.

    The value is an int for a varint and bytes for every other wire type.
    """
    if isinstance(data, int):
        raise ValueError("expected a message")
    position, end = 0, len(data)
    while position < end:
        key, position = _parse_varint(data, position)
        wire_type = key & 7
        if wire_type == 2:
            length, position = _parse_varint(data, position)
            if position + length > end:
                raise ValueError("cut short")
            yield key >> 3, data[position : position + length]
            position += length
        elif wire_type == 0:
            value, position = _parse_varint(data, position)
            yield key >> 3, value
        elif wire_type in {1, 5}:
            width = 8 if wire_type == 1 else 4
            yield key >> 3, data[position : position + width]
            position += width
        else:
            raise ValueError(f"wire type {wire_type}")


def _parse_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the varint at ``position``, and the position after it."""
    byte = data[position]
    if byte < 128:
        return byte, position + 1
    result, shift = byte & 127, 7
    while True:
        position += 1
        byte = data[position]
        result |= (byte & 127) << shift
        if byte < 128:
            return result, position + 1
        shift += 7
        if shift > 63:
            raise ValueError("varint too long")


def _decode_text(value: _Value | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _parse_graph(data: bytes) -> Graph:
    node_messages: list[bytes] = []
    parameters: dict[str, Parameter] = {}
    constants: dict[str, Input] = {}
    for field, value in _iterate_fields(data):
        if field == _GRAPH_NODE and isinstance(value, bytes):
            node_messages.append(value)
        elif field == _GRAPH_PARAMETER:
            message = _parse_message(value)
            outputs = _parse_outputs(message[2]) if 2 in message else []
            output = outputs[0] if outputs else Output("", None)
            parameter = Parameter(output.dtype, output.shape, is_weight=None)
            parameters[_decode_text(message.get(1))] = parameter
        elif field == _GRAPH_CONSTANT:
            message = _parse_message(value)
            constants[_decode_text(message.get(1))] = _parse_constant(message.get(2))
    nodes = [_parse_node(message, constants, parameters) for message in node_messages]
    return Graph(nodes, parameters)


def _parse_node(data: bytes, constants: dict[str, Input], parameters: dict[str, Parameter]) -> Node:
    key = kind = name = frames = ""
    inputs: list[Input] = []
    outputs: list[Output] = []
    attribute_messages: list[bytes] = []
    for field, value in _iterate_fields(data):
        if field == 1:
            source = _decode_text(_parse_message(value).get(1))
            if source in constants:
                inputs.append(constants[source])
            elif source in parameters:
                inputs.append(Input(PARAMETER, source))
            else:
                inputs.append(Input(NODE, source))
        elif field == 2:
            key = _decode_text(value)
        elif field == 3:
            kind = _decode_text(value)
        elif field == _NODE_ATTRIBUTE and isinstance(value, bytes):
            attribute_messages.append(value)
        elif field == 6:
            outputs += _parse_outputs(value)
        elif field == _NODE_NAME:
            name = _decode_text(value)
        elif field == 9:
            frames = _decode_text(value)
    kind = kind.removeprefix("PrimFunc_")
    attributes = _parse_attributes(attribute_messages) if kind in COMMUNICATIONS else ()
    return Node(key, kind, name, tuple(inputs), tuple(outputs), frames, attributes)


def _parse_attributes(messages: list[bytes]) -> tuple[tuple[str, str], ...]:
    """Return the attributes of a communication."""
    attributes = []
    for data in messages:
        message = _parse_message(data)
        name = _decode_text(message.get(1))
        if name not in COMMUNICATION_ATTRIBUTES or 2 not in message:
            continue
        value = _parse_message(message[2])
        if _TEXT_VALUE in value:
            attributes.append((name, _decode_text(value[_TEXT_VALUE])))
        else:
            numbers = _parse_constant(message[2]).values
            if numbers is not None:
                attributes.append((name, " ".join(str(int(number)) for number in numbers)))
    return tuple(attributes)


def _parse_outputs(data: _Value, depth: int = 0) -> list[Output]:
    """Return the tensors of a type: one, or the elements of a tuple, flattened.

    Elements of a tuple have no shape in this file.
    """
    if depth > _MAX_DEPTH:
        raise ValueError("tuples nested too deeply")
    message = _parse_message(data)
    if 2 in message:
        tensor = _parse_message(message[2])
        shape: tuple[int, ...] | None = None if depth else ()
        if 2 in tensor:
            shape = _parse_shape(tensor[2])
        return [Output(_get_dtype(tensor.get(1)), shape)]
    if 3 in message:
        outputs: list[Output] = []
        for _, element in _iterate_fields(message[3]):
            outputs += _parse_outputs(element, depth + 1)
        return outputs
    dtype = _get_dtype(message.get(1))
    return [Output(dtype, ())] if dtype else []


def _parse_shape(data: _Value) -> tuple[int, ...] | None:
    extents = []
    for field, dimension in _iterate_fields(data):
        if field == 1:
            extent = _parse_message(dimension).get(1, 0)
            extents.append(_to_signed(extent))
    return validate_shape(extents)


def _get_dtype(number: _Value | None) -> str:
    return _DTYPES.get(number, "") if isinstance(number, int) else ""


def _to_signed(value: _Value) -> int:
    if not isinstance(value, int):
        raise ValueError("expected a number")
    return value - (1 << 64) if value >= 1 << 63 else value


def _parse_constant(data: _Value | None) -> Input:
    """Return a scalar or a tuple of scalars; the values of tensors are not in this file."""
    if data is None:
        return Input(CONSTANT)
    fields = list(_iterate_fields(data))
    if not fields:
        return Input(NOTHING)
    message = dict(fields)
    dtype_number = message.get(1)
    if dtype_number in {_TUPLE, _LIST}:
        return _parse_tuple_constant(fields)
    value = _parse_scalar(message)
    if value is not None:
        return Input(CONSTANT, "", (value,), _get_dtype(dtype_number), ())
    is_text = dtype_number == _STRING or 7 in message
    return Input(NOTHING if is_text else CONSTANT)


def _parse_tuple_constant(fields: list[_Field]) -> Input:
    dtypes: list[str] = []
    values: list[float] = []
    for field, value in fields:
        if field == _TUPLE_ITEM:
            item = _parse_constant(value)
            dtypes.append(item.dtype)
            values += (item.values or ())[:1]
    if not dtypes:
        return Input(NOTHING)
    if len(values) != len(dtypes):
        return Input(CONSTANT)
    return Input(CONSTANT, "", tuple(values), dtypes[0], (len(values),))


def _parse_scalar(message: dict[int, _Value]) -> float | None:
    for field, value in message.items():
        if field == 3:
            return float(_to_signed(value))
        if field in {2, 4}:
            return float(value)
        if field in _FLOAT_FORMATS and isinstance(value, bytes):
            return float(struct.unpack(_FLOAT_FORMATS[field], value)[0])
    return None
