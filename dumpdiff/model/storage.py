"""A complete result in one file, from which every report can be made without the dumps.

The file is a NumPy archive (``.npz``) without pickled objects: columns of numbers as arrays,
columns of names and the rest of the result as JSON. It need not be trusted: nothing in it is
executed, and content that does not fit is an error.
"""

from __future__ import annotations

import dataclasses
import json
import tokenize
import types
import typing
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pandas as pd

from .arrays import AnyArray
from .errors import DumpError
from .input_files import open_input_file
from .output_files import open_output_file
from .result import PAIR_COLUMNS, UNCOMPARED_COLUMNS, UNMATCHED_COLUMNS, Result

#: To be increased when older versions of dumpdiff cannot read the file, or this one older files.
FORMAT = 2

#: Field of the result -> columns of its table.
_TABLES = {
    "pairs": tuple(PAIR_COLUMNS),
    "unmatched": tuple(UNMATCHED_COLUMNS),
    "uncompared": tuple(UNCOMPARED_COLUMNS),
}
_NOT_STORED = ("backend", "explainer")
_MEMBER = "result"  #: of the archive: all but the tables, as JSON
_COMPRESSION = 1  #: takes a third of the time of zlib's usual 6, and a seventh more space

#: What zipfile, NumPy and the functions below raise for damaged or foreign content: RuntimeError
#: for an encrypted archive, an unknown compression or JSON that is nested too deeply, MemoryError
#: for an array whose header claims more elements than fit, SyntaxError and TokenError for a
#: damaged header of one.
CONTENT_ERRORS = (
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    tokenize.TokenError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)


def write_result(result: Result, file: Path) -> None:
    """Write the complete result, without its backend, to ``file``.

    Raises DumpError if that fails.
    """
    with open_output_file(file) as stream:
        write_result_stream(result, stream)


def write_result_stream(result: Result, stream: typing.IO[bytes]) -> None:
    """Write the complete result, without its backend, to a stream."""
    document = {
        field.name: convert_to_plain(getattr(result, field.name))
        for field in dataclasses.fields(result)
        if field.name not in (*_TABLES, *_NOT_STORED)
    }
    # The first member, by which the file is recognized.
    arrays: dict[str, AnyArray] = {_MEMBER: _encode_json({"format": FORMAT, "result": document})}
    for table_name in _TABLES:
        arrays |= _encode_table(getattr(result, table_name), table_name)
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=_COMPRESSION) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.save(member, array, allow_pickle=False)


def read_result(file: Path) -> Result:
    """Read what :func:`write_result` wrote.

    Raises DumpError if the file is missing, damaged, or of another format.
    """
    expected = f"{file}: expected a complete result, as dumpdiff align -o FOLDER writes it"
    try:
        with (
            open_input_file(file) as stream,
            np.load(stream, allow_pickle=False) as archive,
        ):
            document = _decode_json(archive[_MEMBER])
            if document["format"] != FORMAT:
                raise DumpError(
                    f"{expected}, of format {FORMAT}, found format {document['format']}"
                )
            tables = {name: _decode_table(archive, name) for name in _TABLES}
        fields = {**document["result"], **tables}
        return typing.cast(Result, build_value(Result, fields))
    except FileNotFoundError as error:
        raise DumpError(f"{expected}, found no such file") from error
    except OSError as error:
        raise DumpError(f"{file}: cannot be read ({error.strerror or error})") from error
    except CONTENT_ERRORS as error:
        raise DumpError(f"{expected}, found something else") from error


def _encode_table(table: pd.DataFrame, name: str) -> dict[str, AnyArray]:
    """Return the arrays of a table: columns of numbers as they are, names and shapes as JSON."""
    columns = [str(column) for column in table.columns]
    arrays: dict[str, AnyArray] = {f"{name}/columns": _encode_json(columns)}
    for column in columns:
        values = table[column].to_numpy()
        is_object = values.dtype == object
        key = f"{name}/{'json' if is_object else 'array'}/{column}"
        arrays[key] = _encode_cells(values.tolist()) if is_object else values
    return arrays


def _encode_cells(values: list[Any]) -> AnyArray:
    """Return names and shapes as JSON: several times as fast as any values."""
    if {str, tuple}.issuperset(map(type, values)):
        with suppress(TypeError):  # a name that is not valid Unicode
            return np.frombuffer(orjson.dumps(values), dtype=np.uint8)
    return _encode_json(values)


def _decode_table(archive: Mapping[str, AnyArray], name: str) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    for column in _decode_json(archive[f"{name}/columns"]):
        if f"{name}/array/{column}" in archive:
            columns[column] = archive[f"{name}/array/{column}"]
        else:
            json_values = _decode_json(archive[f"{name}/json/{column}"])
            values = [_convert_list(value) for value in json_values]
            cells = np.fromiter(values, dtype=object, count=len(values))
            columns[column] = pd.Series(cells, dtype=object)
    if tuple(columns) != _TABLES[name]:
        raise ValueError(f"the columns of {name} are others")
    return pd.DataFrame(columns)


def _convert_list(value: Any) -> Any:
    """Return a list of JSON as the tuple that it was: shapes are tuples."""
    return tuple(value) if isinstance(value, list) else value


def _encode_json(value: Any) -> AnyArray:
    text = json.dumps(value, default=convert_scalar)
    return np.frombuffer(text.encode("utf-8"), dtype=np.uint8)


def _decode_json(array: AnyArray) -> Any:
    return json.loads(array.tobytes().decode("utf-8"))


def convert_scalar(value: Any) -> Any:
    """Return a scalar of NumPy as one of Python."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be stored in a result")


def convert_to_plain(value: Any) -> Any:
    """Return dataclasses as mappings, to any depth."""
    if dataclasses.is_dataclass(value):
        return {
            field.name: convert_to_plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.name not in _NOT_STORED
        }
    if isinstance(value, Mapping):
        return {str(key): convert_to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [convert_to_plain(item) for item in value]
    return value


def build_value(kind: Any, value: Any) -> Any:
    """Build a value of the annotated type ``kind`` from plain data.

    Raises TypeError or ValueError if it does not fit.
    """
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, value)
    if origin is tuple:
        return _build_tuple(arguments, value)
    if origin in (typing.Union, types.UnionType):
        return _build_optional(arguments, value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {key: build_value(arguments[1], item) for key, item in value.items()}
    if origin is typing.Literal and value not in arguments:
        raise ValueError(f"expected one of {arguments}, found {value!r}")
    if kind in (str, int, bool) and not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, found {type(value).__name__}")
    return float(value) if kind is float else value


def _build_dataclass(kind: Any, value: Any) -> Any:
    if not set(value).isdisjoint(_NOT_STORED):
        raise ValueError(f"a stored {kind.__name__} has no backend")
    hints = typing.get_type_hints(kind)
    return kind(**{name: build_value(hints[name], item) for name, item in value.items()})


def _build_tuple(kinds: Sequence[Any], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise TypeError(f"expected a list, found {type(value).__name__}")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = [kinds[0]] * len(value)
    return tuple(build_value(kind, item) for kind, item in zip(kinds, value, strict=True))


def _build_optional(kinds: Sequence[Any], value: Any) -> Any:
    if value is None:
        return None
    (inner_kind,) = [kind for kind in kinds if kind is not types.NoneType]
    return build_value(inner_kind, value)
