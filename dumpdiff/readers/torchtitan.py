"""Read the activation logs that torchtitan's tracer of numerics writes (``dump_numerics``).

``rank_N_activations.log`` has one block for each operator of a step: ``[module/op_N_name]``, the
statistics of its first floating result, the L1 norms of its results and of what it read, and the
operators that computed these. Views, copies, concatenations and results of fewer than 1,000
elements are not in it. The tracer is built on PyTorch's DebugMode.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..model.dtypes import normalize_dtype
from ..model.errors import DumpError
from ..model.input_files import open_input_text
from ..model.trace import BACKWARD, FORWARD, OPTIMIZER, Problem, Source, Trace
from .debug_mode import parse_shape
from .files import Listing, find_folder_number
from .manifest import Manifest, ManifestCall, ManifestTensor, build_trace
from .parts import Part

FORMAT = "torchtitan"

_HEAD = re.compile(rb"Total captured activations: (\d+)\s")
_RANK = re.compile(r"rank_(\d{1,9})_activations")
_KEY = re.compile(r"\[(?P<module>.*)/op_\d+_(?P<op>\w+)\]")
_FIELD = re.compile(r"  (?P<name>[A-Z][A-Za-z0-9 ]*): (?P<value>.*)")
_SHAPE = re.compile(r"torch\.Size\(\[(?P<shape>[\d, ]*)\]\), Dtype: (?P<dtype>[\w.]+)")
_STATISTICS = ("Max", "Min", "Mean", "L2 norm")
_FIELDS = (*_STATISTICS, "Shape", "L1 norm", "Output hash", "Input hashes", "Input producers",
           "Location", "Phase")  # fmt: skip
_NO_MODULE = "<none>"
#: Numbers are printed with six decimals after the first digit.
_RESOLUTION = 1e-6
_MAX_DIGITS = 18  #: of the number of operators


def is_index_file(head: bytes) -> bool:
    """Whether a file that begins like this is a log."""
    return _HEAD.match(head, 0, 256) is not None


def find_parts(listing: Listing) -> list[Part]:
    """List the logs; the rank is in the name of the file."""
    parts = []
    for file in listing.index_files[FORMAT]:
        match = _RANK.search(file.name)
        rank = int(match[1]) if match else find_folder_number(file, "rank")
        parts.append(Part(FORMAT, file, find_folder_number(file, "step"), rank))
    return parts


def read_part(part: Part) -> Trace:
    """Return the trace of one log. Raises DumpError if it holds no operator."""
    try:
        with open_input_text(part.path) as stream:
            lines = [line.rstrip("\n") for line in stream]
    except OSError as error:
        raise DumpError(f"{part.path}: cannot be read ({error.strerror})") from None
    blocks, problems = _parse_blocks(lines, part.path.name)
    if not blocks:
        raise DumpError(f"{part.path}: holds no operator; was the step captured?")
    builder = _Builder(part.path.name, problems)
    for block in blocks:
        builder.add_block(block)
    source = Source(
        path=str(part.path.parent),
        format=FORMAT,
        format_variant="activations",
        framework="pytorch",
        step=part.step,
        rank=part.rank,
        resolution=_RESOLUTION,
    )
    return build_trace(Manifest({}, builder.tensors, builder.calls, builder.problems), source)


@dataclass(frozen=True)
class _Block:
    """One operator as written."""

    line: int
    key: str
    fields: Mapping[str, str]


def _parse_blocks(lines: Sequence[str], file: str) -> tuple[list[_Block], list[Problem]]:
    """Return the operators of a log, and what is wrong with its lines."""
    blocks: list[_Block] = []
    unknown_lines = []
    fields: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        match = _FIELD.fullmatch(line)
        if match is not None and match["name"] in _FIELDS and blocks:
            fields[match["name"]] = match["value"]
        elif _KEY.fullmatch(line):
            fields = {}
            blocks.append(_Block(number, line[1:-1], fields))
        elif blocks and line.strip():
            unknown_lines.append(number)
    problems = []
    if unknown_lines:
        message = "line in an unknown form, left out; was the file cut off?"
        count = len(unknown_lines)
        problems.append(Problem(file, message, unknown_lines[0], count, weakens=True))
    head = _HEAD.match(lines[0].encode() + b"\n") if lines else None
    n_stated = int(head[1][:_MAX_DIGITS]) if head else len(blocks)
    if n_stated != len(blocks):
        message = f"states {n_stated} operators and holds {len(blocks)}; copy it again"
        problems.append(Problem(file, message, weakens=True))
    return blocks, problems


@dataclass
class _Builder:
    """The calls and tensors of the blocks so far."""

    file: str
    problems: list[Problem]
    tensors: list[ManifestTensor] = field(default_factory=list)
    calls: list[ManifestCall] = field(default_factory=list)
    #: key of an operator -> printed L1 norm and number of each of its results
    _results: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    _results_by_norm: dict[str, list[int]] = field(default_factory=dict)
    _n_given: dict[str, int] = field(default_factory=dict)
    _has_backward: bool = False

    def add_block(self, block: _Block) -> None:
        """Add one operator, what it read and what it wrote."""
        fields = block.fields
        match = _KEY.fullmatch(f"[{block.key}]")
        assert match is not None
        module = "" if match["module"] == _NO_MODULE else match["module"]
        phase = self._find_phase(fields.get("Phase", FORWARD), module)
        input_norms = _split(fields.get("Input hashes", ""), ",")
        producers = [producer.strip() for producer in fields.get("Input producers", "").split(";")]
        if len(producers) != len(input_norms):
            producers = [""] * len(input_norms)
        slots = []
        for position, (norm, producer) in enumerate(zip(input_norms, producers, strict=True)):
            number = self._find_input(norm, producer)
            if number < 0:
                is_id = match["op"] == "embedding" and position > 0
                name = self._name_given(module) if phase == FORWARD and not is_id else ""
                number = self._add(_parse_norm(norm, name))
            slots.append((f"input.{position}", "input", number))
        results = self._add_results(block)
        slots += [
            (f"output.{position}", "output", number) for position, (_, number) in enumerate(results)
        ]
        self._results[block.key] = results
        for norm, number in results:
            self._results_by_norm.setdefault(norm, []).append(number)
        self.calls.append(
            ManifestCall(
                name=block.key,
                kind=f"Aten.{match['op']}",
                slots=tuple(slots),
                phase=phase,
                module=module,
                source=fields.get("Location", "").rpartition("/")[2],
            )
        )

    def _find_phase(self, stated: str, module: str) -> str:
        """Return the phase. The log calls all that is not backward forward.

        What no module runs after the backward pass belongs to the optimizer.
        """
        if stated == BACKWARD:
            self._has_backward = True
            return BACKWARD
        return OPTIMIZER if self._has_backward and not module else FORWARD

    def _find_input(self, norm: str, producer: str) -> int:
        """Return the result that was read, -1 if it is none or no longer the same.

        Views and copies are not in the log. So where no operator is stated, the only result with
        the same printed norm was read.
        """
        if producer:
            numbers = [n for text, n in self._results.get(producer, ()) if text == norm]
        else:
            numbers = self._results_by_norm.get(norm, [])
        return numbers[0] if len(numbers) == 1 and _is_informative(norm) else -1

    def _name_given(self, module: str) -> str:
        if not module:
            return ""
        number = self._n_given.get(module, 0)
        self._n_given[module] = number + 1
        return f"{module}.given{number}"

    def _add_results(self, block: _Block) -> list[tuple[str, int]]:
        """Add the results of an operator; the statistics are those of its first floating one.

        This is the first one whose L1 norm is possible with the stated L2 norm and size.
        """
        fields = block.fields
        match = _SHAPE.fullmatch(fields.get("Shape", ""))
        statistics = [_parse_number(fields.get(name, "")) for name in _STATISTICS]
        norms = _split(fields.get("Output hash", fields.get("L1 norm", "")), ",")
        if match is None:
            if "Shape" in fields:
                message = f"Shape is {fields['Shape'][:60]!r}, expected torch.Size and Dtype"
                self.problems.append(
                    Problem(self.file, message, block.line, op=block.key, weakens=True)
                )
            return [(norm, self._add(_parse_norm(norm))) for norm in norms]
        shape = parse_shape(match["shape"])
        high, low, mean, l2 = statistics
        measured = ManifestTensor(normalize_dtype(match["dtype"]), shape, (high, low, mean, l2))
        if not norms:
            return [("", self._add(measured))]
        results = []
        is_open = True
        for norm in norms:
            plain = _parse_norm(norm)
            if is_open and _is_possible(plain.l1, l2, measured.size):
                is_open = False
                plain = ManifestTensor(
                    measured.dtype,
                    shape,
                    measured.statistics,
                    l1=plain.l1,
                    nonfinite=plain.nonfinite,
                )
            results.append((norm, self._add(plain)))
        return results

    def _add(self, tensor: ManifestTensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1


def _is_possible(l1: float, l2: float, size: int) -> bool:
    """Whether n elements can have both norms: l2 <= l1 <= sqrt(n) l2, apart from printed digits."""
    if not math.isfinite(l1) or not math.isfinite(l2) or size < 0:
        return True
    slack = 1 + 4 * _RESOLUTION
    return l2 <= l1 * slack and l1 <= math.sqrt(size) * l2 * slack


def _is_informative(norm: str) -> bool:
    """Whether a printed norm is not a simple number, as that of ones or zeros is."""
    digits = norm.partition("e")[0].replace(".", "").strip("0")
    return len(digits) > 4


def _parse_norm(norm: str, name: str = "") -> ManifestTensor:
    l1 = _parse_number(norm)
    return ManifestTensor(
        l1=l1, nonfinite=-1 if not norm else int(not math.isfinite(l1)), parameter=name
    )


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _split(text: str, separator: str) -> list[str]:
    return [word.strip() for word in text.split(separator) if word.strip()]
