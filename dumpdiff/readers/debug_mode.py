"""Read what ``torch.utils._debug_mode.DebugMode`` of PyTorch (2.10 to 2.13) prints.

``debug_string()`` has one line for each call, indented by its depth: ``[nn.Mod]`` where a module
call begins, ``[record function]``, calls of Python functions, and operators such as
``aten::mm(t$0: f32[8, 4], t$1: f32[4, 2])  ->  t$2: f32[8, 2]  # {'hash': 3.1}``. With
``log_tensor_hashes`` a line ends with one number for each tensor: its L1 norm ("norm"), a checksum
of its elements in any order ("hash_tensor"), or both. No other numbers are printed, and no names of
parameters.

Operators are the calls of the trace. Numbers after ``$`` (``record_ids``) are the dataflow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..model.dtypes import is_floating
from ..model.errors import DumpError
from ..model.input_files import open_input_text
from ..model.trace import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER, Problem, Source, Trace
from ..tensor_files.npy import validate_shape
from .files import Listing, find_folder_number
from .manifest import Manifest, ManifestCall, ManifestTensor, build_trace
from .parts import Part
from .stack_frames import Frame, build_site

FORMAT = "debug_mode"

_HEAD_SIZE = 16384  #: bytes of a file that decide whether it is a log of DebugMode
_MAX_LINE_LENGTH = 1 << 20  #: characters; the longest lines are those of fused optimizer steps
#: An operator with a tensor among its arguments, as no other log has it.
_HEAD = re.compile(rb"(?m)^ {2,}\w+::[\w.]+\([^\n]{0,4000}?\b(?:dt|ft|t)(?:\$\d+)?: \w+\[[\d, ]*\]")
_LINE = re.compile(r"(?P<indent>(?: {2})+)(?P<content>\S.*)")
_OPERATOR = re.compile(r"(?P<namespace>\w+)::(?P<name>\w+)(?:\.\w+)?\(")
_MODULE = re.compile(r"\[nn\.Mod(?: \(compile(?: bwd)?\))?\] (?P<path>.*)")
_FUNCTION = re.compile(r"\[record function\] (?P<tag>.*)")
_LOCATION = re.compile(
    r"# File: (?P<file>.+):(?P<line>\d+) in (?P<function>.+?), code: (?P<code>.*)"
)
_TOKEN = re.compile(
    r"(?P<tensor>\b(?P<type>dt|ft|t)(?:\$(?P<id>\d{1,18}))?: (?P<dtype>\w+)\[(?P<shape>[^\[\]]*)\]"
    r"(?:\{[^{}]*\})?(?:\| [^,\]]*)?)"
    r"|(?P<key>[A-Za-z_]\w*)=|(?P<word>[A-Za-z_<][^\s,\[\](){}=']*)"
    r"|(?P<number>[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)|(?P<open>[\[({])|(?P<close>[\])}])"
    r"|(?P<comma>,)",
    re.ASCII,
)
_LOG_START = "  # {"
#: A result whose shape is not complete: the line was cut off.
_CUT_RESULT = re.compile(r"\b(?:dt|ft|t)(?:\$\d*)?(?:: ?\w*(?:\[[^\]]*)?)?$")
_HASH = re.compile(r"(?<![\w.$'])[-+]?(?:nan|inf|\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?!\w)", re.ASCII)
_MAX_DIGITS = 18  #: of an extent or an id
_DTYPES = {
    "bf16": "bfloat16", "b8": "bool", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
    **{f"{letter}{bits}": f"{name}{bits}" for letter, name, all_bits in (
        ("f", "float", (16, 32, 64)), ("i", "int", (8, 16, 32, 64)),
        ("u", "uint", (8, 16, 32, 64)), ("c", "complex", (32, 64, 128)),
    ) for bits in all_bits},
}  # fmt: skip
#: Operators whose result has the elements of their first argument, where its L1 norm is the same.
_SAME_ELEMENTS = frozenset({
    "_reshape_alias", "_unsafe_view", "alias", "clone", "contiguous", "detach", "flatten",
    "lift_fresh", "permute", "reshape", "squeeze", "t", "transpose", "unflatten", "unsqueeze",
    "view", "view_as", "wait_tensor",
})  # fmt: skip
#: Printed digits from which on equal L1 norms mean equal elements, apart from signs and order. An
#: L1 norm of ones, zeros or ids has fewer, that of other float32 numbers 15 to 17.
_MIN_DIGITS = 12
_MAX_CHECKSUM_DIGITS = 20
#: Simple numbers (1.0, 0.5, 8.0, small integers) have at least 44 zeros at the end of their float64
#: pattern. By chance one of 32,000 sums of float32 numbers has, whose patterns end with 29.
_SIMPLE_BITS = 1 << 44
#: The L1 norm of the same elements in another order, as summed in float64.
_SUMMATION_ERROR = 1e-9
_COLLECTIVES = ("c10d", "_c10d_functional")
_KERNEL = "[triton] "
#: Lines that are neither an operator nor a Python function.
_NO_CALLS = ("[", "# ", "redistribute_input", "-> output: ")
_OPTIMIZER_TAG = "Optimizer."


def is_index_file(head: bytes) -> bool:
    """Whether a file that begins like this is a log, judged by the form of its operators."""
    return _HEAD.search(head, 0, _HEAD_SIZE) is not None


def find_parts(listing: Listing) -> list[Part]:
    """List the logs.

    Step and rank are the numbers of the folders stepN and rankN.
    """
    return [
        Part(FORMAT, file, find_folder_number(file, "step"), find_folder_number(file, "rank"))
        for file in listing.index_files[FORMAT]
    ]


def read_part(part: Part) -> Trace:
    """Return the trace of one log. Raises DumpError if it holds no operator with a result."""
    log = _Log(part.path.name)
    try:
        with open_input_text(part.path) as stream:
            for number, line in enumerate(stream, 1):
                log.add_line(number, line.rstrip("\n"))
    except OSError as error:
        raise DumpError(f"{part.path}: cannot be read ({error.strerror})") from None
    if not log.calls:
        raise DumpError(
            f"{part.path}: holds no operator with a result; was it recorded with "
            "record_realtensor=True and record_output=True?"
        )
    source = Source(
        path=str(part.path.parent),
        format=FORMAT,
        format_variant=log.describe_hashes(),
        framework="pytorch",
        step=part.step,
        rank=part.rank,
    )
    return build_trace(Manifest({}, log.tensors, log.calls, log.list_problems()), source)


class _Tensor(NamedTuple):
    """A tensor as it is printed among arguments or results."""

    slot: str  #: of the argument or result, without the kind of slot
    id: int  #: -1 without ``record_ids``
    dtype: str
    shape: tuple[int, ...] | None
    is_distributed: bool


class _Scalar(NamedTuple):
    """A number among the arguments."""

    slot: str
    dtype: str
    value: float


class _Hash(NamedTuple):
    """What is printed of the elements of one tensor."""

    l1: float = math.nan
    nonfinite: int = -1  #: 1 if the L1 norm is NaN or Inf, 0 if it is a number
    text: str = ""  #: as printed, if no other tensor has the same by chance


@dataclass
class _Scope:
    """A call that contains the following lines, as long as their depth is at least ``depth``."""

    depth: int
    module: str | None = None
    is_optimizer: bool = False


@dataclass
class _Log:
    """The calls and tensors of the lines so far."""

    file: str
    tensors: list[ManifestTensor] = field(default_factory=list)
    calls: list[ManifestCall] = field(default_factory=list)
    _scopes: list[_Scope] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)  #: id of a tensor -> its number
    #: (what is printed of its elements, dtype, size) -> number of the latest such tensor
    _latest: dict[tuple[str, str, int], int] = field(default_factory=dict)
    _n_given: dict[str, int] = field(default_factory=dict)  #: module -> values that it was given
    _site: tuple[str, str] = ("", "")
    _has_functions: bool = False  #: Python functions are recorded, too
    _has_backward: bool = False
    _hash_kinds: set[str] = field(default_factory=set)
    _compiled_lines: list[int] = field(default_factory=list)
    _unparsed_lines: list[int] = field(default_factory=list)
    _unknown_hashes: list[int] = field(default_factory=list)
    _lacks_ids: bool = False

    def add_line(self, number: int, line: str) -> None:
        """Add what one line says; lines of other logs in the same file say nothing."""
        match = _LINE.fullmatch(line) if len(line) <= _MAX_LINE_LENGTH else None
        if match is None:
            if "::" in line and _HEAD.search(line[:_HEAD_SIZE].encode()):
                self._unparsed_lines.append(number)
            return
        depth, content = len(match["indent"]) // 2 - 1, match["content"]
        location = _LOCATION.fullmatch(content)
        if location is not None:
            site = build_site(
                [Frame(location["file"], location["line"], location["function"], location["code"])]
            )
            self._site = (site.source, site.stack)
            return
        module = _MODULE.fullmatch(content)
        if module is not None:
            self._leave_scopes(depth - 1)
            if "." not in module["path"]:
                self._has_backward = False  # the next micro-batch
            self._scopes.append(_Scope(depth, module["path"].partition(".")[2]))
            return
        function = _FUNCTION.fullmatch(content)
        if function is not None:
            # where Python functions are recorded, the line is inside the one that begins it
            depth_inside = depth if self._has_functions else depth + 1
            self._leave_scopes(depth_inside - 1)
            is_optimizer = function["tag"].startswith(_OPTIMIZER_TAG)
            self._scopes.append(_Scope(depth_inside, None, is_optimizer))
            return
        if content.startswith(_KERNEL):
            self._compiled_lines.append(number)
        if content.startswith(_NO_CALLS):
            return
        operator = _OPERATOR.match(content)
        if operator is None:
            self._has_functions = True
            self._leave_scopes(depth)
        else:
            self._add_operator(number, depth, operator["namespace"], operator["name"], content)

    def describe_hashes(self) -> str:
        """Return what is printed of the elements, in words."""
        if not self._hash_kinds:
            return "DebugMode without numbers"
        return f"DebugMode with {' and '.join(sorted(self._hash_kinds))}"

    def list_problems(self) -> list[Problem]:
        """Return what could not be read or is not there."""
        problems = []
        for lines, message in (
            (self._unparsed_lines, "operator in an unknown form; was the line cut off? Left out"),
            (self._compiled_lines, "a compiled kernel, not read; record without torch.compile"),
            (
                self._unknown_hashes,
                "expected one L1 norm or checksum for each tensor, as log_tensor_hashes prints "
                "them; found other numbers, which were not used",
            ),
        ):
            if lines:
                count = len(lines)
                problems.append(Problem(self.file, message, lines[0], count, weakens=True))
        if self._lacks_ids:
            message = "recorded without record_ids=True: the dataflow is that of equal numbers"
            problems.append(Problem(self.file, message))
        if not self._hash_kinds:
            message = "holds no numbers; record with DebugMode.log_tensor_hashes(hash_inputs=True)"
            problems.append(Problem(self.file, message))
        return problems

    def _leave_scopes(self, depth: int) -> None:
        while self._scopes and self._scopes[-1].depth > depth:
            self._scopes.pop()

    def _add_operator(
        self, number: int, depth: int, namespace: str, name: str, content: str
    ) -> None:
        call, _, rest = content.partition("  ->  ")
        result, _, log = rest.rpartition(_LOG_START) if _LOG_START in rest else (rest, "", "")
        if not rest:
            call, _, log = content.partition(_LOG_START)
        is_cut = not call.endswith(")") or (_LOG_START in content and content[-1] != "}")
        if is_cut or _CUT_RESULT.search(result):
            self._unparsed_lines.append(number)
            return
        arguments = [*_parse_values(call[call.index("(") + 1 : -1])]
        result = result.strip()
        if result[:1] in ("(", "["):  # several results
            result = result[1:-1]
        results = [value for value in _parse_values(result) if isinstance(value, _Tensor)]
        inputs = [value for value in arguments if isinstance(value, _Tensor)]
        is_distributed = any(tensor.is_distributed for tensor in (*inputs, *results))
        # an operator of DTensors only contains those of its local tensors
        self._leave_scopes(depth if is_distributed else depth - 1)
        if is_distributed or not results or name.startswith(("empty", "new_empty")):
            return
        input_text, _, output_text = log.partition("'hash': ")
        input_hashes = self._parse_hashes(number, input_text, inputs)
        output_hashes = self._parse_hashes(number, output_text, results)
        phase, is_recomputed = self._find_phase(namespace, name, results)
        slots = []
        hashes = iter(input_hashes)
        for value in arguments:
            if isinstance(value, _Tensor):
                tensor = self._find_input(value, next(hashes))
            else:
                tensor = self._add_tensor(ManifestTensor(value.dtype, value=value.value))
            slots.append((f"input.{value.slot}", "input", tensor))
        if name in _SAME_ELEMENTS and inputs and len(results) == 1:
            first_tensor = slots[0][2]
            if _have_same_elements(self.tensors[first_tensor], results[0], output_hashes[0]):
                self._bind(results[0], output_hashes[0], first_tensor)
                return
        for tensor_printed, tensor_hash in zip(results, output_hashes, strict=True):
            tensor = self._add_tensor(_build_tensor(tensor_printed, tensor_hash))
            self._bind(tensor_printed, tensor_hash, tensor)
            slots.append((f"output.{tensor_printed.slot}", "output", tensor))
        kind = f"Aten.{name}" if namespace == "aten" else f"{namespace}.{name}"
        self.calls.append(
            ManifestCall(
                name=f"{kind}.{len(self.calls)}",
                kind=kind,
                slots=tuple(slots),
                phase=phase,
                module=self._find_module(),
                recomputed=is_recomputed,
                source=self._site[0],
                stack=self._site[1],
            )
        )

    def _find_module(self) -> str:
        for scope in reversed(self._scopes):
            if scope.module is not None:
                return scope.module
        return ""

    def _find_phase(
        self, namespace: str, name: str, results: Sequence[_Tensor]
    ) -> tuple[str, bool]:
        """Return the phase of an operator, and whether a forward operator runs again.

        The backward pass begins with the gradient of the loss with respect to itself, or with an
        operator that is named so. Modules that are called in it run again.
        """
        if any(scope.is_optimizer for scope in self._scopes):
            return OPTIMIZER, False
        if namespace in _COLLECTIVES:
            return COMMUNICATION, False
        is_in_module = any(scope.module is not None for scope in self._scopes)
        is_seed = name == "ones_like" and results[0].shape == () and not is_in_module
        if is_seed or "_backward" in name:
            self._has_backward = True
        if not self._has_backward:
            return FORWARD, False
        return (FORWARD, True) if is_in_module else (BACKWARD, False)

    def _parse_hashes(self, line: int, text: str, tensors: Sequence[_Tensor]) -> Sequence[_Hash]:
        """Return what is printed of each tensor; in the order in which the tensors are."""
        words = _HASH.findall(text)
        unknown = [_Hash()] * len(tensors)
        if not words or not tensors:
            return unknown
        n_words = len(words) // len(tensors)
        kinds = [_name_hash(word) for word in words[:n_words]]
        if n_words * len(tensors) != len(words) or len(set(kinds)) != len(kinds):
            self._unknown_hashes.append(line)
            return unknown
        hashes = []
        for start in range(0, len(words), n_words):
            numbers = dict(zip(kinds, words[start : start + n_words], strict=True))
            hashes.append(_build_hash(numbers.get(_L1), numbers.get(_CHECKSUM, "")))
        self._hash_kinds.update(kinds)
        return hashes

    def _find_input(self, tensor: _Tensor, tensor_hash: _Hash) -> int:
        """Return the number of a tensor that is read; a new one if its elements are others now."""
        self._lacks_ids |= tensor.id < 0
        number = self._numbers.get(tensor.id, -1)
        if number < 0:  # what autograd saved has another id than the result that it is
            number = self._latest.get((tensor_hash.text, tensor.dtype, _count(tensor)), -1)
        if number >= 0 and not _is_other(self.tensors[number], tensor_hash):
            return number
        number = self._add_tensor(_build_tensor(tensor, tensor_hash, self._name_given(tensor)))
        self._bind(tensor, tensor_hash, number)
        return number

    def _name_given(self, tensor: _Tensor) -> str:
        """Return a name for a value that a module reads and no recorded operator wrote.

        Such are its parameters, whose own names are not printed. Their order is that in which the
        module first reads them, so they have equal names in two runs of one model.
        """
        module = self._find_module()
        if not module or self._has_backward or not is_floating(tensor.dtype):
            return ""
        number = self._n_given.get(module, 0)
        self._n_given[module] = number + 1
        return f"{module}.given{number}"

    def _bind(self, tensor: _Tensor, tensor_hash: _Hash, number: int) -> None:
        if tensor.id >= 0:
            self._numbers[tensor.id] = number
        if tensor_hash.text:
            self._latest[tensor_hash.text, tensor.dtype, _count(tensor)] = number

    def _add_tensor(self, tensor: ManifestTensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1


_L1, _CHECKSUM = "L1 norms", "checksums"


def _name_hash(word: str) -> str:
    """Return what a printed number is: checksums are integers, norms are not."""
    return _CHECKSUM if word.isdecimal() else _L1


def _build_hash(norm: str | None, checksum: str) -> _Hash:
    if norm is None:
        return _Hash(text=checksum if _is_informative(checksum) else "")
    l1 = float(norm)
    is_unique = sum(map(str.isdecimal, norm)) >= _MIN_DIGITS
    return _Hash(l1, int(not math.isfinite(l1)), norm if is_unique else "")


def _is_informative(checksum: str) -> bool:
    """Whether a checksum is not that of one simple number: the XOR of float64 bit patterns.

    Pairs of equal numbers leave 0, others a pattern whose low bits are 0 in simple numbers. That
    is why a checksum says less than an L1 norm, and is used only where there is none.
    """
    return len(checksum) <= _MAX_CHECKSUM_DIGITS and int(checksum) % _SIMPLE_BITS != 0


def _parse_values(text: str) -> Iterator[_Tensor | _Scalar]:
    """Yield the tensors and numbers among arguments or results, with their places."""
    places: list[int | str] = [0]
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        slot = ".".join(map(str, places))
        if token["tensor"]:
            yield _Tensor(
                slot,
                int(token["id"]) if token["id"] else -1,
                _DTYPES.get(token["dtype"], token["dtype"]),
                parse_shape(token["shape"]),
                token["type"] == "dt",
            )
        elif kind == "key" and len(places) == 1:
            places[0] = token["key"]
        elif kind == "number":
            word = token["number"]
            dtype = "int" if re.fullmatch(r"[-+]?\d+", word) else "float"
            yield _Scalar(slot, dtype, float(word))
        elif token["word"] in ("True", "False"):
            yield _Scalar(slot, "bool", float(token["word"] == "True"))
        elif kind == "open":
            places.append(0)
        elif kind == "close" and len(places) > 1:
            places.pop()
        elif kind == "comma":
            last = places[-1]
            places[-1] = last + 1 if isinstance(last, int) else 0


def parse_shape(text: str) -> tuple[int, ...] | None:
    """Return the extents of '4, 8'; None if they are symbolic, or more than a tensor can have."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(word.isdecimal() and len(word) <= _MAX_DIGITS for word in words):
        return None
    return validate_shape(map(int, words))


def _count(tensor: _Tensor) -> int:
    return -1 if tensor.shape is None else math.prod(tensor.shape)


def _build_tensor(tensor: _Tensor, tensor_hash: _Hash, name: str = "") -> ManifestTensor:
    return ManifestTensor(
        dtype=tensor.dtype,
        shape=tensor.shape,
        l1=tensor_hash.l1,
        nonfinite=tensor_hash.nonfinite,
        hash=tensor_hash.text,
        parameter=name,
    )


def _is_other(tensor: ManifestTensor, tensor_hash: _Hash) -> bool:
    """Whether numbers are not those of a tensor: its memory was written to since."""
    first, second = tensor.l1, tensor_hash.l1
    if math.isnan(first) or math.isnan(second):
        return bool(tensor.hash and tensor_hash.text) and tensor.hash != tensor_hash.text
    return first != second and abs(first - second) > _SUMMATION_ERROR * max(first, second)


def _have_same_elements(tensor: ManifestTensor, result: _Tensor, tensor_hash: _Hash) -> bool:
    is_rearranged = tensor.dtype == result.dtype and tensor.size == _count(result)
    return is_rearranged and not _is_other(tensor, tensor_hash)
