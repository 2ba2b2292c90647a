"""Mutations of real inputs that keep most of their structure, so that a reader gets far into them.

A mutation takes the bytes of a file and a source of random numbers, and returns other bytes.
"""

from __future__ import annotations

import copy
import csv
import io
import json
import re
import struct
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

import yaml

Mutation = Callable[[bytes, Random], bytes]

#: What no recorder writes, and what a damaged or hostile file may hold in any place.
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 7, 2**31, 2**53, 2**63, -(2**63), 2**64, 10**400, 0.5, 1e308,
    -1e308, 1e-320, float("nan"), float("inf"), float("-inf"), "", "0", "-1", "NaN", "None", "null",
    "x" * 2000, "../../../etc/passwd", "/etc/passwd", "a\0b", "\x1b[2J", "=1+1", "\ud7ff", "²",
    "9" * 400, "float32", "bfloat16", "int64", "torch.float64", [], {}, [[]], [None], [-1], [0],
    [1, -1], [2**40, 2**40], [1] * 70, ["x"], {"": ""}, {"type": "torch.Tensor"}, [1e400],
)  # fmt: skip
_ODD_TEXTS = tuple(str(value) for value in ODD_VALUES if not isinstance(value, (list, dict)))
_ODD_BYTES = (b"\0", b"\xff", b"\x80", b"\x7f", b"\n", b'"', b"[", b"]", b"{", b",", b"\xc3(")
_EDGES = (0, 1, -1, 2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63))
_NUMBER = re.compile(rb"-?\d+(\.\d+)?([eE][+-]?\d+)?")


def mutate_bytes(data: bytes, draw: Random) -> bytes:
    """Change, insert, remove or repeat a few bytes anywhere, or cut the file short."""
    content = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        position = draw.randrange(len(content) + 1)
        length = draw.choice((1, 1, 2, 4, 8, 64))
        action = draw.randrange(6)
        if action == 0:
            content[position : position + 1] = bytes([draw.randrange(256)])
        elif action == 1:
            content[position:position] = draw.choice(_ODD_BYTES) * draw.choice((1, 1, 9))
        elif action == 2:
            del content[position : position + length]
        elif action == 3:
            content[position:position] = content[position : position + length]
        elif action == 4:
            edge = struct.pack("<q", draw.choice(_EDGES))[: draw.choice((4, 8))]
            content[position : position + len(edge)] = edge
        else:
            del content[position:]
    return bytes(content)


def mutate_lines(data: bytes, draw: Random) -> bytes:
    """Change numbers and words of a text, and remove, repeat, exchange or cut its lines."""
    lines = data.split(b"\n")
    for _ in range(draw.choice((1, 1, 2, 4))):
        row = draw.randrange(len(lines))
        action = draw.randrange(6)
        if action == 0:
            lines[row] = _replace_number(lines[row], draw)
        elif action == 1:
            words = lines[row].split(b" ")
            words[draw.randrange(len(words))] = draw.choice(_ODD_TEXTS).encode()
            lines[row] = b" ".join(words)
        elif action == 2 and len(lines) > 1:
            del lines[row]
        elif action == 3:
            lines.insert(row, lines[draw.randrange(len(lines))])
        elif action == 4:
            other = draw.randrange(len(lines))
            lines[row], lines[other] = lines[other], lines[row]
        else:
            lines[row] = mutate_bytes(lines[row], draw)
    return b"\n".join(lines)


def _replace_number(line: bytes, draw: Random) -> bytes:
    numbers = list(_NUMBER.finditer(line))
    if not numbers:
        return line
    number = draw.choice(numbers)
    return line[: number.start()] + draw.choice(_ODD_TEXTS).encode() + line[number.end() :]


def mutate_json(data: bytes, draw: Random) -> bytes:
    """Replace, remove, repeat or rename values of a JSON document."""
    tree = _mutate_tree(json.loads(data), draw)
    return json.dumps(tree, indent=draw.choice((None, 1)), ensure_ascii=True).encode()


def mutate_json_lines(data: bytes, draw: Random) -> bytes:
    """Mutate one line of JSON, or the lines as a text."""
    lines = data.split(b"\n")
    row = draw.randrange(len(lines))
    if draw.random() < 0.4 or not lines[row].strip():
        return mutate_lines(data, draw)
    lines[row] = mutate_json(lines[row], draw)
    return b"\n".join(lines)


def mutate_yaml(data: bytes, draw: Random) -> bytes:
    """Mutate the tree of a YAML document, or its lines."""
    if draw.random() < 0.4:
        return mutate_lines(data, draw)
    tree = _mutate_tree(yaml.load(data, Loader=yaml.CSafeLoader), draw)
    return yaml.dump(tree, Dumper=yaml.CSafeDumper, allow_unicode=True).encode()


def _mutate_tree(tree: Any, draw: Random) -> Any:
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        container, key = _choose_place(tree, draw)
        if container is None:
            return copy.deepcopy(draw.choice(ODD_VALUES))
        action = draw.randrange(6)
        if action <= 2:
            container[key] = copy.deepcopy(draw.choice(ODD_VALUES))
        elif action == 3:
            del container[key]
        elif action == 4 and isinstance(container, dict):
            container[draw.choice(_ODD_TEXTS)] = container.pop(key)
        else:
            other_container, other_key = _choose_place(tree, draw)
            if other_container is not None:
                # The same object in two places would be an alias of YAML, or a circle.
                container[key] = copy.deepcopy(other_container[other_key])
    return tree


def _choose_place(tree: Any, draw: Random) -> tuple[Any, Any]:
    """Return a container in the tree and a key of it; (None, None) if the tree has none."""
    container, key = None, None
    value = tree
    while isinstance(value, (dict, list)) and value:
        if container is not None and draw.random() < 0.15:
            break
        container = value
        key = draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
        value = container[key]
    return container, key


def mutate_csv(data: bytes, draw: Random) -> bytes:
    """Replace cells, and remove or repeat rows and columns."""
    rows = list(csv.reader(io.StringIO(data.decode("utf-8", errors="replace"))))
    for _ in range(draw.choice((1, 1, 2, 4))):
        row = rows[draw.randrange(len(rows))]
        action = draw.randrange(5)
        if action <= 1 and row:
            row[draw.randrange(len(row))] = draw.choice(_ODD_TEXTS)
        elif action == 2 and len(rows) > 2:
            rows.remove(row)
        elif action == 3:
            rows.append(list(row))
        elif row:
            column = draw.randrange(len(row))
            for other_row in rows:
                del other_row[column : column + 1]
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", errors="replace")


def mutate_npy(data: bytes, draw: Random) -> bytes:
    """Change the dictionary in the header of an .npy file, or any bytes."""
    length = int.from_bytes(data[8:10], "little")
    header = data[10 : 10 + length].decode("latin1")
    shape = re.search(r"\([^)]*\)", header)
    if shape is None or draw.random() < 0.4:
        return mutate_bytes(data, draw)
    descriptors = ("<f4", "<f8", ">f8", "|O", "<E2", "|b1", "<c16", "|S0", "|V8", "<M8[ns]", "x")
    new_shape = str(tuple(draw.choice(_EDGES) for _ in range(draw.choice((0, 1, 2, 40)))))
    header = header.replace(shape[0], draw.choice((shape[0], new_shape, "None", "(1,", "'a'")))
    header = re.sub(r"'[<>|][a-z]\d+'", repr(draw.choice(descriptors)), header)
    text = header.encode("latin1", errors="replace")
    return data[:8] + len(text).to_bytes(2, "little") + text + data[10 + length :]


def mutate_safetensors(data: bytes, draw: Random) -> bytes:
    """Change the JSON header, or any bytes."""
    if draw.random() < 0.4:
        return mutate_bytes(data, draw)
    length = int.from_bytes(data[:8], "little")
    header = mutate_json(data[8 : 8 + length], draw)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def mutate_zip(data: bytes, draw: Random) -> bytes:
    """Change, remove, rename, repeat or compress a member of an archive, or any bytes."""
    if draw.random() < 0.2:
        return mutate_bytes(data, draw)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    number = draw.randrange(len(members))
    name, content = members[number]
    action = draw.randrange(8)
    if action <= 4:
        members[number] = (name, _mutate_member(content, draw))
    elif action == 5:
        del members[number]
    elif action == 6:
        members[number] = (draw.choice(("../x", "/x", "data.pkl", name + "/", "x" * 300)), content)
    else:
        members.append((draw.choice(members)[0] + "_", content))
    compression = zipfile.ZIP_DEFLATED if draw.random() < 0.1 else zipfile.ZIP_STORED
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for member_name, member in members:
            archive.writestr(member_name, member)
    return stream.getvalue()


def _mutate_member(content: bytes, draw: Random) -> bytes:
    if content.startswith(b"\x93NUMPY"):
        return mutate_npy(content, draw)
    return mutate_bytes(content, draw)
