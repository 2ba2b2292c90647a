"""Read the ``RunResults`` that Polygraphy (0.38 to 0.53) saves: ``polygraphy run --save-outputs``.

A JSON file has, for each runner (ONNX Runtime, TensorRT) and iteration, the tensors that were
marked as outputs, each as a ``.npy`` file in base64. Only results are in it, in order of execution,
not what an operator read.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ..model.arrays import AnyArray
from ..model.errors import DumpError
from ..model.input_files import read_input_bytes
from ..model.trace import Problem, Source, Trace
from ..tensor_files.npy import Header, decode_bfloat16, read_open_header
from .files import Listing, find_folder_number
from .manifest import Manifest, ManifestCall, ManifestTensor, build_trace
from .parts import Part

FORMAT = "polygraphy"

_HEAD = re.compile(rb'\s*\{\s*"lst"\s*:\s*\[\s*\[\s*"[^"]*"\s*,\s*\[')
_HEAD_SIZE = 4096
#: A value of a network that PyTorch's exporter wrote: /layers.0/attention/q/MatMul_output_0.
_EXPORTED = re.compile(r"/(?:(?P<module>.+)/)?(?P<op>[A-Z][A-Za-z]*)(?:_\d+)?_output_\d+")


def is_index_file(head: bytes) -> bool:
    """Whether a file that begins like this holds results of runners."""
    return _HEAD.match(head, 0, _HEAD_SIZE) is not None


def find_parts(listing: Listing) -> list[Part]:
    """List the iterations of each runner in the files.

    An iteration is a step. If a file has several runners, the number of the runner is the graph.
    """
    parts = []
    for file in listing.index_files[FORMAT]:
        rank = find_folder_number(file, "rank")
        try:
            runners = _read_runners(file)
        except DumpError:  # reading the part says why
            runners = [("", [None])]
        for number, (_, iterations) in enumerate(runners):
            graph = number if len(runners) > 1 else None
            parts += [
                Part(FORMAT, file, step, rank, graph=graph, has_whole_tensors=True)
                for step in range(len(iterations))
            ]
    return parts


def read_part(part: Part) -> Trace:
    """Return the trace of one iteration. Raises DumpError if the file is damaged or empty."""
    runner, iterations = _read_runners(part.path)[part.graph or 0]
    iteration = iterations[part.step or 0]
    outputs = iteration.get("outputs") if isinstance(iteration, dict) else None
    if not isinstance(outputs, dict):
        raise DumpError(f"{part.path}: expected an object outputs in each iteration")
    payloads: dict[str, bytes] = {}
    tensors: list[ManifestTensor] = []
    calls: list[ManifestCall] = []
    problems: list[Problem] = []
    for name, value in outputs.items():
        try:
            payload = _decode_payload(value)
            header = _read_header(payload, name)
        except (ValueError, DumpError) as error:
            problems.append(Problem(part.path.name, f"{name}: {error}", op=name, weakens=True))
            continue
        payloads[name] = payload
        match = _EXPORTED.fullmatch(name)
        calls.append(
            ManifestCall(
                name=name,
                kind=match["op"] if match else "",
                slots=(("output.0", "output", len(tensors)),),
                module=(match["module"] or "").replace("/", ".") if match else name,
            )
        )
        tensors.append(ManifestTensor(header.dtype, header.shape, file=name))
    if not calls:
        reason = f"; {problems[0]}" if problems else ""
        raise DumpError(f"{part.path}: holds no tensor that can be read{reason}")
    source = Source(
        path=str(part.path),
        format=FORMAT,
        format_variant=f"RunResults of {runner.partition('-')[0]}",
        framework="onnx",
        step=part.step,
        rank=part.rank,
        graph=part.graph,
    )
    trace = build_trace(Manifest({}, tensors, calls, problems), source)
    return replace(trace, load=partial(_load, payloads))


def _read_runners(path: Path) -> list[tuple[str, list[Any]]]:
    """Return (name, iterations) of each runner. Raises DumpError if the file is damaged."""
    try:
        document = orjson.loads(read_input_bytes(path))
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise DumpError(f"{path}: broken JSON ({error}); save it again or copy it again") from None
    runners = list(_iterate_runners(document))
    if not runners:
        raise DumpError(f"{path}: expected a list of runners with iterations, found none")
    return runners


def _iterate_runners(document: Any) -> Iterator[tuple[str, list[Any]]]:
    entries = document.get("lst") if isinstance(document, dict) else None
    for entry in entries if isinstance(entries, list) else []:
        match entry:
            case [str(name), [_, *_] as iterations]:
                yield name, iterations


def _decode_payload(value: Any) -> bytes:
    """Return the .npy file in a value. Raises ValueError if there is none."""
    if isinstance(value, dict) and value.get("polygraphy_class") == "LazyArray":
        value = value.get("values")
    if not isinstance(value, dict) or value.get("polygraphy_class") != "ndarray":
        kind = value.get("polygraphy_class") if isinstance(value, dict) else type(value).__name__
        raise ValueError(f"expected an array of NumPy, found {str(kind)[:60]!r}; left out")
    text = value.get("array")
    if not isinstance(text, str):
        raise ValueError("expected an array in base64; left out")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("broken base64; left out") from None


def _read_header(payload: bytes, name: str) -> Header:
    return read_open_header(io.BytesIO(payload), len(payload), name)


def _load(payloads: Mapping[str, bytes], name: str) -> AnyArray:
    payload = payloads[name]
    header = _read_header(payload, name)
    elements = np.frombuffer(payload, header.stored, header.n_elements, header.offset)
    array: AnyArray = elements.reshape(header.shape, order="F" if header.fortran_order else "C")
    return decode_bfloat16(array) if header.dtype == "bfloat16" else array
