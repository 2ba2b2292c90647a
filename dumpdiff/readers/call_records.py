"""What is known about records of API and module calls, whichever tool hooked them: phases, second runs, trust.

Both ptdbg_ascend and msprobe hook Python calls and write the same things wrongly; only here is said which.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from ..model.arrays import AnyArray, Flags, Floats, Ints
from ..model.trace import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER
from .stack_frames import Site

#: Python's in-place operators (language reference 3.3.8), and assignment to elements.
_IN_PLACE_DUNDERS = {
    "__iadd__", "__isub__", "__imul__", "__imatmul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__",
    "__ilshift__", "__irshift__", "__iand__", "__ixor__", "__ior__", "__idiv__", "__setitem__",
}  # fmt: skip

#: Norms of the same values in another order of summation (a view, a transpose), relatively: seen up to 1e-6 in float32.
_SUMMATION = 1e-5


@lru_cache(maxsize=1 << 12)
def is_in_place(kind: str) -> bool:
    """Whether a call overwrites its first input, told from its name.

    >>> [is_in_place(kind) for kind in ("Tensor.add_", "Tensor.__iadd__", "Tensor.__add__", "Torch.add")]
    [True, True, False, False]
    """
    name = kind.rpartition(".")[2]
    return name in _IN_PLACE_DUNDERS or (name.endswith("_") and not name.endswith("__"))


def is_communication(kind: str) -> bool:
    """Whether a call is a collective or a point-to-point transfer."""
    return kind.startswith(("Distributed.", "MintDistributed."))


def number(value: Any) -> float:
    """A recorded statistic as a float; NaN for what stands for 'not computed': null, [] and the string "Nan"."""
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return math.nan


def numbers(values: Sequence[Any]) -> Floats:
    """A column of recorded statistics as float64, as :func:`number` does it for one."""
    try:
        return np.array(values, dtype=np.float64)  # None becomes NaN, and so does "Nan"
    except (ValueError, TypeError, OverflowError):
        return np.array([number(value) for value in values], dtype=np.float64)


def shape_and_size(value: Any) -> tuple[tuple[int, ...] | None, int]:
    """A recorded shape as a tuple and its number of elements, (None, -1) if unknown.

    () for Python scalars, whose shape ptdbg writes as the string "[]".
    """
    if type(value) is list:
        try:
            return _extents(*value)
        except TypeError:  # a list in the list
            return None, -1
    return ((), 1) if value == "[]" else (None, -1)


@lru_cache(maxsize=1 << 12, typed=True)
def _extents(*extents: Any) -> tuple[tuple[int, ...] | None, int]:
    if any(type(extent) is not int or extent < 0 for extent in extents):
        return None, -1
    size = math.prod(extents)
    return extents, size if size < 2**62 else -1


def statistics(
    recorded: Iterable[Sequence[Any]], dtypes: Sequence[str], sizes: Sequence[int]
) -> dict[str, AnyArray]:
    """The columns max, min, mean, norm and nonfinite from columns of max, min, mean and norm as recorded.

    A float64 beyond the range of float32 is recorded as Infinity (statistics go through float32): unknown, not Inf.
    A mean or norm that overflowed while max and min are finite is the recorder's, not the tensor's: dropped.
    Of a single element, mean and norm are known though not recorded.
    """
    columns = list(recorded)
    table = np.column_stack([numbers(column) for column in columns])
    kinds = (int, float, bool)
    known = np.array([type(value) in kinds for value in columns[0]], dtype=bool)
    finite = np.isfinite(table[:, :2]).all(axis=1)
    nonfinite = np.where(known, ~finite, -1).astype(np.int8)
    wide = np.array([dtype in ("float64", "complex128") for dtype in dtypes], dtype=bool)
    clipped = wide & known & ~finite & ~np.isnan(table[:, :2]).any(axis=1)
    nonfinite[clipped] = -1
    table[clipped] = math.nan
    table[(nonfinite == 0)[:, None] & ~np.isfinite(table)] = math.nan
    single = np.asarray(sizes, dtype=np.int64) == 1
    table[single, 2] = table[single, 0]
    table[single, 3] = np.abs(table[single, 0])
    return dict(zip(("max", "min", "mean", "norm"), table.T, strict=True)) | {
        "nonfinite": nonfinite
    }


def passes(
    kinds: Sequence[str], backward: Sequence[bool], forward: Sequence[int], sites: Sequence[Site]
) -> tuple[list[str], Flags]:
    """The phase of every call and whether it is a second forward run, from the order of calls and from stacks.

    ``backward`` marks gradient records, ``forward`` gives the id of the forward call each belongs to (-1 unknown).
    A stack decides where there is one. Without: a forward call between gradient records is a second run as long as
    gradients of calls from before the pass still follow; a call after the last gradient record is the optimizer's.
    """
    steps = [index for index, flag in enumerate(backward) if flag]
    first, last = (steps[0], steps[-1]) if steps else (len(kinds), len(kinds))
    older = max((index for index in steps if 0 <= forward[index] < first), default=-1)
    phases: list[str] = []
    again = np.zeros(len(kinds), dtype=bool)
    for index, (kind, call) in enumerate(zip(kinds, sites, strict=True)):
        phase = FORWARD
        if is_communication(kind):
            phase = COMMUNICATION
        elif backward[index]:
            phase = BACKWARD
        elif call.in_optimizer or (index > last and (not call.stack or is_in_place(kind))):
            phase = OPTIMIZER
        elif kind == "Torch.ones_like" and index + 1 < len(kinds) and backward[index + 1]:
            phase = BACKWARD  # autograd's seed: the gradient of the loss with respect to itself
        else:
            again[index] = call.in_backward if call.stack else first < index < older
        phases.append(phase)
    return phases, again


def trusted(
    ops: pd.DataFrame,
    tensors: pd.DataFrame,
    *,
    inputs_before: bool,
    gradients_complete: bool,
    modules: bool,
) -> Flags:
    """Which records hold what their slot says; False where a hook is known to write something else.

    - Inputs of in-place calls recorded after the call hold the result. Recorders that take inputs before the call
      (``inputs_before``) are doubted only where such an input equals the output.
    - ``backward output`` of PyTorch API calls is what left the last autograd node of the call, often the gradient that
      came in, reshaped, or that of an inner call: believed only if it has the forward input's shape and differs from
      what came in. With ``gradients_complete`` (MindSpore) the shape is enough; ``modules`` says whether those of
      module calls are believed.
    """
    believed = np.ones(len(tensors), dtype=bool)
    rows = _by_slot(tensors)
    op, slot, role, shape = (tensors[name].to_numpy() for name in ("op", "slot", "role", "shape"))
    kind, module = ops["kind"].to_numpy()[op], (ops["level"] == "module").to_numpy()[op]
    phase, forward = ops["phase"].to_numpy()[op], ops["forward"].to_numpy()[op]

    gradients = np.flatnonzero((phase == BACKWARD) & (role == "output") & (forward >= 0))
    believed[gradients] = modules
    gradients = gradients[~module[gradients]]
    partner = _rows(
        rows, forward[gradients], [name.replace("output", "input", 1) for name in slot[gradients]]
    )
    believed[gradients] = (partner >= 0) & (shape[partner] == shape[gradients])
    if not gradients_complete:
        came_in = _rows(rows, op[gradients], ["input.0"] * len(gradients))
        believed[gradients] &= (came_in < 0) | ~_same(tensors, gradients, came_in, _SUMMATION)

    first = np.flatnonzero((phase != BACKWARD) & (role == "input") & (slot == "input.0"))
    sent = first[phase[first] == COMMUNICATION]
    believed[sent] = _rows(rows, op[sent], ["output.0"] * len(sent)) >= 0
    first = first[phase[first] != COMMUNICATION]
    first = first[np.fromiter(map(is_in_place, kind[first]), dtype=bool, count=len(first))]
    result = _rows(rows, op[first], ["output.0"] * len(first))
    believed[first] = inputs_before & (result >= 0) & ~_same(tensors, first, result, 0.0)
    return believed


def swapped(ops: pd.DataFrame, tensors: pd.DataFrame) -> bool:
    """Whether ``backward input`` holds gradients of inputs and ``output`` those of outputs, as before 2023-02-27.

    Decided by vote of the calls whose shapes tell: the gradient of an output has the output's shape.
    """
    rows = _by_slot(tensors)
    shapes, forward = tensors["shape"].tolist(), ops["forward"].tolist()

    def shape(op: int, slot: str) -> Any:
        row = rows.get((op, slot))
        return None if row is None else shapes[row]

    votes = 0
    for op, source in enumerate(forward):
        if source < 0:
            continue
        result, came_in, went_out = (
            shape(source, "output.0"),
            shape(op, "input.0"),
            shape(op, "output.0"),
        )
        if (
            result is not None
            and came_in is not None
            and went_out is not None
            and came_in != went_out
        ):
            votes += (went_out == result) - (came_in == result)
    return votes > 0


def exchange(
    slots: Sequence[str], roles: Sequence[str], where: Flags
) -> tuple[list[str], list[str]]:
    """Slots and roles with input and output exchanged in the rows of ``where``."""
    other: Mapping[str, str] = {"input": "output", "output": "input"}
    new_slots, new_roles = list(slots), list(roles)
    for row in np.flatnonzero(where).tolist():
        role = roles[row]
        if role in other:
            new_roles[row] = other[role]
            new_slots[row] = slots[row].replace(role, other[role], 1)
    return new_slots, new_roles


def _by_slot(tensors: pd.DataFrame) -> dict[tuple[int, str], int]:
    keys = zip(tensors["op"].tolist(), tensors["slot"].tolist(), strict=True)
    return dict(zip(keys, range(len(tensors)), strict=True))


def _rows(rows: Mapping[tuple[int, str], int], ops: Ints, slots: Sequence[str]) -> Ints:
    """The rows of slots of ops, -1 where an op has no such slot."""
    found = [rows.get(key, -1) for key in zip(ops.tolist(), slots, strict=True)]
    return np.array(found, dtype=np.int64)


def _same(tensors: pd.DataFrame, ones: Ints, others: Ints, tolerance: float) -> Flags:
    """Whether rows hold the same by checksum, else by max, min and norm; two values not recorded are equal."""
    sums = tensors["hash"].to_numpy()
    close = np.ones(len(ones), dtype=bool)
    for name in ("max", "min", "norm"):
        column = tensors[name].to_numpy()
        one, other = column[ones], column[others]
        with np.errstate(invalid="ignore"):
            gap = np.abs(one - other)  # NaN between infinities of one sign
        near = np.isfinite(gap) & (gap <= tolerance * np.maximum(np.abs(one), np.abs(other)))
        close &= near | (one == other) | (np.isnan(one) & np.isnan(other))
    hashed = (sums[ones] != "") | (sums[others] != "")
    same: Flags = np.where(hashed, sums[ones] == sums[others], close)
    return same
