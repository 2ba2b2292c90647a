"""Records of API and module calls, as both ptdbg_ascend and msprobe hook them: phases and trust.

Both tools hook Python calls and record the same tensors wrongly. This module decides which phase a
call belongs to, which forward calls are recomputed, and which records can be trusted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from ..model.arrays import AnyArray, Flags, Floats, Ints, Objects, wrap_object
from ..model.trace import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER, Problem, flag_words
from ..tensor_files.npy import validate_shape
from .stack_frames import Site

#: Names of products, without underscores around them.
_PRODUCT_NAMES = {"mul", "rmul", "imul", "multiply"}
#: Python's in-place operators (language reference 3.3.8), and assignment to elements.
_IN_PLACE_DUNDERS = {
    "__iadd__", "__isub__", "__imul__", "__imatmul__", "__itruediv__", "__ifloordiv__", "__imod__",
    "__ipow__", "__ilshift__", "__irshift__", "__iand__", "__ixor__", "__ior__", "__idiv__",
    "__setitem__",
}  # fmt: skip

#: Relative difference up to which max, min and norm of two float32 records are those of equal
#: values. Another order of summation (of a view or a transpose) changes a norm by up to 1e-6 in the
#: dumps seen.
_SUMMATION_TOLERANCE = 1e-5

#: The number of a forward call precedes such an ending, that of a module follows it.
_FORWARD_ENDS = (".forward", "_forward")
_SEPARATORS = (".", "_")
_FORWARD_SEPARATORS = tuple(end + separator for end in _FORWARD_ENDS for separator in _SEPARATORS)
_DIGITS = "0123456789"
_MAX_NUMBER_DIGITS = 9
#: Share of the calls that may be missing from the numbering, or from another index of the dump:
#: more were never recorded, because the user listed the calls to record.
_MAX_MISSING_SHARE = 0.1
_MAX_SHOWN_CALLS = 3  #: missing calls, or undefined sums, that a message names


@lru_cache(maxsize=1 << 12)
def is_in_place(kind: str) -> bool:
    """Whether a call overwrites its first input, judged by its name.

    >>> [is_in_place(kind) for kind in ("Tensor.add_", "Tensor.__iadd__", "Tensor.__add__")]
    [True, True, False]
    """
    name = kind.rpartition(".")[2]
    return name in _IN_PLACE_DUNDERS or (name.endswith("_") and not name.endswith("__"))


def is_module(kind: str) -> bool:
    """Whether a call is one of a module (PyTorch) or cell (MindSpore)."""
    return kind.startswith(("Module.", "Cell."))


@lru_cache(maxsize=1 << 12)
def is_communication(kind: str) -> bool:
    """Whether a call is a collective or a point-to-point transfer."""
    return kind.startswith(("Distributed.", "MintDistributed."))


def to_float(value: Any) -> float:
    """Convert a recorded statistic to a float.

    NaN for the values that mean "not computed": null, [] and the string "Nan".
    """
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return math.nan


def to_float_array(values: Sequence[Any]) -> Floats:
    """Convert a column of recorded statistics to float64, each like :func:`to_float`."""
    try:
        return np.array(values, dtype=np.float64)  # None becomes NaN, and so does "Nan"
    except (ValueError, TypeError, OverflowError):
        return np.array([to_float(value) for value in values], dtype=np.float64)


def parse_shape_and_size(value: Any) -> tuple[tuple[int, ...] | None, int]:
    """Return a recorded shape as a tuple and its number of elements, (None, -1) if unknown.

    The shape is () for Python scalars, whose shape ptdbg writes as the string "[]".
    """
    if type(value) is list:
        try:
            return _check_extents(*value)
        except TypeError:  # a list inside the list cannot be hashed
            return None, -1
    return ((), 1) if value == "[]" else (None, -1)


@lru_cache(maxsize=1 << 12, typed=True)
def _check_extents(*extents: Any) -> tuple[tuple[int, ...] | None, int]:
    shape = validate_shape(extents)
    return (None, -1) if shape is None else (shape, math.prod(shape))


@dataclass(frozen=True)
class RecordedStatistics:
    """Max, min, mean and norm of records, and what their form says about them."""

    numbers: Floats  #: (rows, 4) max, min, mean and norm; NaN where none was computed
    is_recorded: Flags  #: (rows,) whether max is recorded as a number
    is_undefined: Flags  #: (rows,) max and min are finite, but the mean or the norm is NaN

    @staticmethod
    def concatenate(blocks: Sequence[RecordedStatistics]) -> RecordedStatistics:
        """Return the rows of several blocks, one after the other; there is at least one block."""
        return RecordedStatistics(
            np.concatenate([block.numbers for block in blocks]),
            np.concatenate([block.is_recorded for block in blocks]),
            np.concatenate([block.is_undefined for block in blocks]),
        )

    def take(self, rows: Ints) -> RecordedStatistics:
        """Return these rows."""
        return RecordedStatistics(
            self.numbers[rows], self.is_recorded[rows], self.is_undefined[rows]
        )


def parse_statistics(recorded: Sequence[Sequence[Any]]) -> RecordedStatistics:
    """Parse the recorded columns max, min, mean and norm."""
    numbers = np.column_stack([to_float_array(column) for column in recorded])
    is_recorded = _flag_numbers(recorded[0])
    is_finite = np.isfinite(numbers[:, :2]).all(axis=1)
    is_undefined = np.zeros(len(numbers), dtype=bool)
    for position in (2, 3):
        column = recorded[position]
        missing_rows = np.flatnonzero(np.isnan(numbers[:, position]) & is_finite).tolist()
        # other values than numbers mean "not computed"
        is_undefined[[row for row in missing_rows if type(column[row]) is float]] = True
    return RecordedStatistics(numbers, is_recorded, is_undefined)


def _flag_numbers(values: Sequence[Any]) -> Flags:
    """Return which values are numbers."""
    number_types = {int, float, bool}
    if number_types.issuperset(map(type, values)):
        return np.ones(len(values), dtype=bool)
    return np.array([type(value) in number_types for value in values], dtype=bool)


def build_statistic_columns(
    statistics: RecordedStatistics, dtypes: Sequence[str] | Objects, sizes: Sequence[int] | Ints
) -> dict[str, AnyArray]:
    """Return the columns max, min, mean, norm and nonfinite.

    - A float64 beyond the range of float32 is recorded as Infinity, because statistics go through
      float32: its value is unknown, not Inf.
    - A mean or norm that overflowed while max and min are finite is dropped: the overflow happened
      in the recorder.
    - The mean and norm of a single element are known even if they are not recorded.
    """
    table = statistics.numbers.copy()
    is_recorded = statistics.is_recorded
    is_finite = np.isfinite(table[:, :2]).all(axis=1)
    nonfinite = np.where(is_recorded, ~is_finite, -1).astype(np.int8)
    dtype_column = np.asarray(dtypes, dtype=object)
    is_wide = (dtype_column == "float64") | (dtype_column == "complex128")
    is_clipped = is_wide & is_recorded & ~is_finite & ~np.isnan(table[:, :2]).any(axis=1)
    nonfinite[is_clipped] = -1
    table[is_clipped] = math.nan
    table[(nonfinite == 0)[:, None] & ~np.isfinite(table)] = math.nan
    is_single = np.asarray(sizes, dtype=np.int64) == 1
    table[is_single, 2] = table[is_single, 0]
    table[is_single, 3] = np.abs(table[is_single, 0])
    columns = dict(zip(("max", "min", "mean", "norm"), table.T, strict=True))
    return columns | {"nonfinite": nonfinite}


def find_undefined_sums(
    statistics: RecordedStatistics,
    ops: Sequence[int] | Ints,
    names: Sequence[str] | Objects,
    file: str,
) -> list[Problem]:
    """Return a problem if a mean or norm is NaN although max and min are finite numbers.

    ``ops`` has the op of every row, ``names`` the names of the ops. A sum that overflows is
    infinite; no finite elements have a NaN as mean or norm.
    """
    rows = np.flatnonzero(statistics.is_undefined).tolist()
    if not rows:
        return []
    op_names = list(dict.fromkeys(names[ops[row]] for row in rows))
    shown_names = ", ".join(op_names[:_MAX_SHOWN_CALLS])
    message = f"mean or norm is NaN although max and min are finite: {shown_names}"
    return [Problem(file, message, count=len(rows), op=op_names[0], weakens=True)]


def find_missing_calls(
    names: Iterable[str], file: str, listed_names: Iterable[str] = ()
) -> list[Problem]:
    """Return a problem if records of a few calls were lost.

    The recorders number the calls of every API and module without gaps, so a number between two
    recorded ones belongs to a call whose record was lost. So does a name in ``listed_names``, which
    are those of another index of the same dump, that is not among ``names``.
    """
    recorded_names = set(names)
    missing_calls = [name for name in listed_names if name not in recorded_names]
    missing_calls += _list_skipped_calls(recorded_names)
    missing_calls = sorted(set(missing_calls))
    if not 0 < len(missing_calls) <= _MAX_MISSING_SHARE * len(recorded_names):
        return []
    shown_calls = ", ".join(missing_calls[:_MAX_SHOWN_CALLS])
    message = f"calls without a record, which the rest of the dump names: {shown_calls}"
    op = missing_calls[0]
    return [Problem(file, message, count=len(missing_calls), op=op, weakens=True)]


def _list_skipped_calls(names: Iterable[str]) -> list[str]:
    """Return the forward calls that the numbering of the recorded ones skips.

    Nothing is listed if it skips more than a few.
    """
    numbers_of: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    n_calls = 0
    for name in names:
        front, number, end = _split_forward_name(name)
        if number:
            numbers_of[front, end].append(int(number))
            n_calls += 1
    missing_numbers: dict[tuple[str, str], Iterable[int]] = {}
    n_missing = 0
    for call, numbers in numbers_of.items():
        first, last = min(numbers), max(numbers)
        n_skipped = last - first + 1 - len(numbers)
        if n_skipped:
            missing_numbers[call] = range(first, last)
            n_missing += n_skipped
    if n_missing > _MAX_MISSING_SHARE * n_calls:
        return []
    missing_calls: list[str] = []
    for (front, end), numbers_between in missing_numbers.items():
        skipped_numbers = sorted(set(numbers_between).difference(numbers_of[front, end]))
        missing_calls += [f"{front}{number}{end}" for number in skipped_numbers]
    return missing_calls


def _split_forward_name(name: str) -> tuple[str, str, str]:
    """Return what is before and after the number of a forward call, and the number, else ''.

    >>> _split_forward_name("Tensor.add.12.forward")
    ('Tensor.add.', '12', '.forward')
    >>> _split_forward_name("Module.net.Net.forward.0")
    ('Module.net.Net.forward.', '0', '')
    """
    end = name[-len(".forward") :] if name.endswith(_FORWARD_ENDS) else ""
    numbered_name = name.removesuffix(end)
    front = numbered_name.rstrip(_DIGITS)
    number = numbered_name[len(front) :]
    separators = _SEPARATORS if end else _FORWARD_SEPARATORS
    if not front.endswith(separators) or len(number) > _MAX_NUMBER_DIGITS:
        return "", "", ""
    return front, number, end


def assign_phases(
    kinds: Sequence[str],
    backward: Sequence[bool] | Flags,
    forward: Sequence[int] | Ints,
    sites: Sequence[Site],
) -> tuple[Objects, Flags]:
    """Return the phase of every call, and whether it is recomputed.

    ``backward`` marks gradient records; ``forward`` gives the id of the forward call that each
    belongs to (-1 unknown). A recorded stack decides. Without a stack, a forward call between
    gradient records is recomputed as long as gradients of calls from before the backward pass still
    follow. What follows the last gradient record belongs to the optimizer (the norm of the
    gradients, clipping, the update), except calls of modules. Calls in a user's own backward
    function belong to the backward pass.
    """
    n_calls = len(kinds)
    is_gradient = np.asarray(backward, dtype=bool)
    forward_calls = np.asarray(forward, dtype=np.int64)
    gradient_calls = np.flatnonzero(is_gradient)
    first_gradient = int(gradient_calls[0]) if len(gradient_calls) else n_calls
    last_gradient = int(gradient_calls[-1]) if len(gradient_calls) else n_calls
    origins = forward_calls[gradient_calls]
    is_older = (origins >= 0) & (origins < first_gradient)
    # last gradient record of a call from before the backward pass
    last_older_gradient = int(gradient_calls[is_older].max(initial=-1))

    kind_codes, different_kinds = pd.factorize(np.asarray(kinds, dtype=object))
    is_transfer, is_module_call, is_ones_like = (
        np.array([test(kind) for kind in different_kinds], dtype=bool)[kind_codes]
        for test in (is_communication, is_module, _is_ones_like)
    )
    has_stack, in_backward, in_optimizer, computes_gradient = (
        np.array([bool(getattr(site, name)) for site in sites], dtype=bool)
        for name in ("stack", "in_backward", "in_optimizer", "computes_gradient")
    )
    calls = np.arange(n_calls)
    in_update = in_optimizer | ((calls > last_gradient) & ~is_module_call)
    # the gradient of the loss with respect to itself, created by autograd
    is_first_gradient = is_ones_like & np.append(is_gradient[1:], False)
    phases = np.full(n_calls, wrap_object(FORWARD))
    phases[is_first_gradient] = BACKWARD
    phases[in_update] = OPTIMIZER
    phases[is_gradient | computes_gradient] = BACKWARD
    phases[is_transfer] = COMMUNICATION
    is_between = (calls > first_gradient) & (calls < last_older_gradient)
    recomputed = (phases == FORWARD) & np.where(has_stack, in_backward, is_between)
    return phases, recomputed


def _is_ones_like(kind: str) -> bool:
    return kind == "Torch.ones_like"


def _is_product(kind: str) -> bool:
    return kind.rpartition(".")[2].strip("_").lower() in _PRODUCT_NAMES


def find_trusted_rows(
    ops: pd.DataFrame,
    tensors: pd.DataFrame,
    *,
    inputs_before: bool,
    gradients_complete: bool,
    modules: bool,
) -> Flags:
    """Return which tensor rows hold what their slot says.

    False where a hook is known to write another tensor.

    - Inputs of in-place calls recorded after the call hold the result. If the recorder takes inputs
      before the call (``inputs_before``), such an input is distrusted only if it equals the output.
    - ``backward output`` of a PyTorch API call is what left the last autograd node of the call. It
      is often the incoming gradient, reshaped, or that of an inner call. It is trusted only if it
      has the shape of the forward input and differs from the incoming gradient, and only if the
      node has no more outputs than the call has inputs: x / norm(x) ends in a division of two. With
      ``gradients_complete`` (MindSpore) the shape is enough; ``modules`` says whether gradients of
      module calls are trusted.
    - A product of a value with itself has a gradient for each factor, which are shares of that of
      the value. A square has the whole one.
    """
    trusted = np.ones(len(tensors), dtype=bool)
    index = SlotIndex(tensors)
    op, slot, slot_kind, shape = (
        tensors[name].to_numpy() for name in ("op", "slot", "slot_kind", "shape")
    )
    kind, is_module = ops["kind"].to_numpy()[op], (ops["level"].to_numpy() == "module")[op]
    phase, forward = ops["phase"].to_numpy()[op], ops["forward"].to_numpy()[op]

    gradients = np.flatnonzero((phase == BACKWARD) & (slot_kind == "output") & (forward >= 0))
    trusted[gradients] = modules
    gradients = gradients[~is_module[gradients]]
    input_slots = [name.replace("output", "input", 1) for name in slot[gradients]]
    forward_inputs = index.find_rows(forward[gradients], input_slots)
    trusted[gradients] = (forward_inputs >= 0) & (shape[forward_inputs] == shape[gradients])
    if not gradients_complete:
        incoming = index.find_rows(op[gradients], ["input.0"] * len(gradients))
        is_equal = _have_equal_content(tensors, gradients, incoming, _SUMMATION_TOLERANCE)
        trusted[gradients] &= (incoming < 0) | ~is_equal
        n_outputs = np.bincount(op[gradients], minlength=len(ops))
        is_tensor_input = (slot_kind == "input") & ~tensors["constant"].to_numpy()
        n_inputs = np.bincount(op[is_tensor_input], minlength=len(ops))
        trusted[gradients] &= n_outputs[op[gradients]] <= n_inputs[forward[gradients]]
    shares = gradients[flag_words(pd.Series(kind[gradients], dtype=object), _is_product)]
    calls = forward[shares]
    first, second = (index.find_rows(calls, [slot] * len(calls)) for slot in ("input.0", "input.1"))
    is_square = _have_equal_content(tensors, first, second, 0.0) & (first >= 0) & (second >= 0)
    trusted[shares[is_square]] = False

    first_inputs = np.flatnonzero(
        (phase != BACKWARD) & (slot_kind == "input") & (slot == "input.0")
    )
    sent = first_inputs[phase[first_inputs] == COMMUNICATION]
    trusted[sent] = index.find_rows(op[sent], ["output.0"] * len(sent)) >= 0

    overwritten = first_inputs[phase[first_inputs] != COMMUNICATION]
    in_place = np.fromiter(map(is_in_place, kind[overwritten]), dtype=bool, count=len(overwritten))
    overwritten = overwritten[in_place]
    results = index.find_rows(op[overwritten], ["output.0"] * len(overwritten))
    is_equal = _have_equal_content(tensors, overwritten, results, 0.0)
    trusted[overwritten] = inputs_before & (results >= 0) & ~is_equal
    return trusted


def has_swapped_gradients(ops: pd.DataFrame, tensors: pd.DataFrame) -> bool:
    """Whether ``backward input`` holds gradients of inputs and ``output`` those of outputs.

    The recorders wrote them that way before 2023-02-27. Decided by a vote of the calls whose shapes
    tell the two apart: the gradient of an output has the output's shape.
    """
    index = SlotIndex(tensors)
    forward = ops["forward"].to_numpy()
    calls = np.flatnonzero(forward >= 0)

    def list_shapes(owners: Ints, slot: str) -> list[Any]:
        rows = index.find_rows(owners, [slot] * len(owners))
        shapes = tensors["shape"].to_numpy()[rows]
        shapes[rows < 0] = None
        return list(shapes)

    result_shapes = list_shapes(forward[calls], "output.0")
    own_shapes = list_shapes(calls, "input.0"), list_shapes(calls, "output.0")
    votes = 0
    for result_shape, input_shape, output_shape in zip(result_shapes, *own_shapes, strict=True):
        if result_shape is None or input_shape is None or output_shape is None:
            continue
        if input_shape != output_shape:
            votes += (output_shape == result_shape) - (input_shape == result_shape)
    return votes > 0


def swap_inputs_and_outputs(
    slots: Sequence[str], slot_kinds: Sequence[str], where: Flags
) -> tuple[list[str], list[str]]:
    """Return slots and their kinds with input and output swapped in the rows of ``where``."""
    opposite_kinds: Mapping[str, str] = {"input": "output", "output": "input"}
    new_slots, new_slot_kinds = list(slots), list(slot_kinds)
    for row in np.flatnonzero(where).tolist():
        slot_kind = slot_kinds[row]
        if slot_kind in opposite_kinds:
            new_slot_kinds[row] = opposite_kinds[slot_kind]
            new_slots[row] = slots[row].replace(slot_kind, opposite_kinds[slot_kind], 1)
    return new_slots, new_slot_kinds


class SlotIndex:
    """Finds the tensor rows of slots of ops."""

    def __init__(self, tensors: pd.DataFrame) -> None:
        slot_codes, slots = pd.factorize(tensors["slot"])
        self.code_of_slot = {slot: code for code, slot in enumerate(slots)}
        keys = tensors["op"].to_numpy() * (len(slots) + 1) + slot_codes
        self.order = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]

    def find_rows(self, ops: Ints, slots: Sequence[str]) -> Ints:
        """Return the last row of each slot of each op, -1 where an op has no such slot."""
        unknown = len(self.code_of_slot)
        codes = np.array([self.code_of_slot.get(slot, unknown) for slot in slots], dtype=np.int64)
        keys = ops * (unknown + 1) + codes
        positions = np.searchsorted(self.keys, keys, side="right") - 1
        is_present = (positions >= 0) & (self.keys[positions] == keys)
        rows: Ints = np.where(is_present, self.order[positions], -1)
        return rows


def _have_equal_content(
    tensors: pd.DataFrame, rows: Ints, other_rows: Ints, tolerance: float
) -> Flags:
    """Return which pairs of rows are equal by checksum, else by max, min and norm.

    ``tolerance`` is relative. Two values that are both not recorded are equal.
    """
    checksums = tensors["hash"].to_numpy()
    has_equal_statistics = np.ones(len(rows), dtype=bool)
    for name in ("max", "min", "norm"):
        column = tensors[name].to_numpy()
        values, other_values = column[rows], column[other_rows]
        with np.errstate(invalid="ignore"):
            gap = np.abs(values - other_values)  # NaN between infinities of one sign
            scale = np.maximum(np.abs(values), np.abs(other_values))
            is_close = np.isfinite(gap) & (gap <= tolerance * scale)
        is_absent = np.isnan(values) & np.isnan(other_values)
        has_equal_statistics &= is_close | (values == other_values) | is_absent
    is_hashed = (checksums[rows] != "") | (checksums[other_rows] != "")
    has_equal_checksum = checksums[rows] == checksums[other_rows]
    is_equal: Flags = np.where(is_hashed, has_equal_checksum, has_equal_statistics)
    return is_equal
