"""A parameter or a table that differs: the change that turns one tensor into the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np

from ...comparison.narrow_dtypes import round_to_dtype
from ...model.arrays import AnyArray, Ints
from ...model.trace import BACKWARD
from ...operators.recurrence import GATE_COUNTS
from ..element_places import find_exchanged_lengths, is_rotation
from ..fault_case import FaultCase, have_same_elements
from ..hypothesis import Candidate, Hypothesis
from ..parameter_fit import fit_factor
from .attention import SCORE_KINDS, is_attention
from .wave_tables import holds_both_waves

#: Largest share of wrong rows; more of them are not a fault of single rows.
_MAX_WRONG_ROWS = 0.25
#: Numbers of wrong rows that are listed.
_MAX_LISTED_ROWS = 8
#: Ops whose result has rows of several values.
_JOINING_KINDS = {"concat", "stack"}
#: Relative distance within which projections of two rows are equal.
_MAX_PROJECTION_DIFFERENCE = 1e-5
_PROJECTION_SEED = 7
#: Elements of a weight of which blocks are transposed: a larger one would take seconds.
_MAX_BLOCK_ELEMENTS = 1 << 22
#: Smallest size of a head whose rotary pairs have two layouts.
_MIN_PAIRED_SIZE = 4
#: Nearest operands among which sines and cosines of a time embedding are.
_MAX_WAVE_OPERANDS = 8
#: Cause of two parts that are joined in the other order.
_EXCHANGED = "input-order"
#: Kinds of ops that read a table of positions.
_TABLE_READERS = {"add", "slice", "split", "expand"}
#: Kinds of ops that look rows up, of tokens of the batch.
_LOOKUP_KINDS = frozenset({"gather_rows", "gather_nd", "embedding_bag"})
#: Axes of a computed value: batch or windows, tokens, width.
_TOKEN_AXES = 3
#: Kinds of recurrent cells and of the activations of their gates; cells have three or four gates.
_CELL_KINDS, _GATE_COUNTS = {"lstm", "gru", "sigmoid", "tanh"}, (3, 4)
#: Words in names of experts and of gates.
_EXPERT_WORDS = ("expert", "moe")
_GATE_WORDS = ("gate", "w1.")


def _is_floating_parameter(case: FaultCase) -> bool:
    return case.finding.is_given and not case.is_discrete


def suggest_constant(case: FaultCase) -> Iterator[Candidate]:
    """Suggest one number everywhere, for example zeros: a layer whose checkpoint was not loaded."""
    if not _is_floating_parameter(case) or case.faithful.size < 2:
        return
    if case.finding.kind == "constant":
        return  # no checkpoint holds it
    if np.ptp(case.faithful) > 0 and np.ptp(case.faulty) == 0:
        value = float(case.faulty.flat[0]) + 0.0  # -0 becomes 0
        yield Candidate(
            np.full_like(case.faithful, value),
            f"filled with {value:g}, as if never loaded",
            unchanged=case.faithful,
        )


def suggest_zero_rows(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that some rows of a fused weight are zero: those of one of its parts."""
    if not _is_floating_parameter(case) or case.faithful.ndim != 2:
        return
    if "gather_rows" in case.consumer_kinds:
        return  # single rows of a table of embeddings, not a part of a fused weight
    is_zero = ~np.any(case.faulty, axis=1) & np.any(case.faithful, axis=1)
    n_zero = int(is_zero.sum())
    if 0 < n_zero < len(is_zero):
        yield Candidate(
            np.where(is_zero[:, None], 0.0, case.faithful),
            f"{n_zero} of {len(is_zero)} rows filled with zeros, as if never loaded",
            parameters={"rows": float(n_zero)},
            unchanged=case.faithful,
        )


def suggest_scaled(case: FaultCase) -> Iterator[Candidate]:
    """Suggest faulty = c faithful."""
    if not _is_floating_parameter(case) or case.faithful.size < 2:
        return
    factor = fit_factor(case.faithful, case.faulty)
    if np.isfinite(factor) and factor != 0:
        is_table = case.finding.kind == "constant"
        thing = "a constant table" if is_table else "a weight"
        yield Candidate(
            factor * case.faithful,
            f"{thing} {factor:.6g} times the {case.faithful_side}'s",
            parameters={"factor": factor},
            unchanged=case.faithful,
            cause="constant-factor" if is_table else "weight-scaled",
        )


def suggest_scaled_rows(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that some rows of a fused weight are multiplied by one number."""
    if not _is_floating_parameter(case) or case.faithful.ndim < 2:
        return
    rows = case.faithful.reshape(len(case.faithful), -1)
    faulty_rows = case.faulty.reshape(rows.shape)
    energies = np.maximum((rows**2).sum(axis=1), 1e-30)
    factors = (rows * faulty_rows).sum(axis=1) / energies
    is_changed = np.linalg.norm(faulty_rows - rows, axis=1) > case.tolerance * np.sqrt(energies)
    n_changed = int(is_changed.sum())
    if not _MAX_WRONG_ROWS * len(rows) < n_changed < len(rows):
        return  # few rows are wrong by themselves, all rows are the whole weight
    factor = float(np.median(factors[is_changed]))
    if factor != 0:
        yield Candidate(
            np.where(is_changed[:, None], factor * rows, rows).reshape(case.faithful.shape),
            f"{n_changed} of {len(rows)} rows {factor:.6g} times the {case.faithful_side}'s",
            parameters={"factor": factor},
            unchanged=case.faithful,
        )


def suggest_transposed(case: FaultCase) -> Iterator[Candidate]:
    """Suggest a transposed matrix, or a flipped or transposed kernel of a convolution."""
    if not _is_floating_parameter(case):
        return
    faithful = case.faithful
    if faithful.ndim == 2 and faithful.shape[0] == faithful.shape[1]:
        yield Candidate(faithful.T.copy(), "the weight transposed", unchanged=faithful)
    elif faithful.ndim == 2:
        predicted = faithful.T.reshape(faithful.shape)
        yield Candidate(predicted, "the weight transposed in memory", unchanged=faithful)
    if faithful.ndim == 2:
        yield from _transpose_blocks(faithful, case.faulty)
    elif faithful.ndim == 4:
        yield from _change_kernel_axes(faithful)
    elif faithful.ndim == 3 and "convolution" in case.consumer_kinds | set(case.kinds):
        flipped = np.flip(faithful, 2)
        yield Candidate(flipped, "the kernel flipped", unchanged=faithful, cause="kernel-flipped")
    if faithful.ndim > 2 and have_same_elements(faithful, case.faulty):
        yield from _reorder_axes(faithful)


def _transpose_blocks(weight: AnyArray, faulty: AnyArray) -> Iterator[Candidate]:
    """Yield a matrix with each of its blocks of rows or columns transposed, if that may be.

    Blocks are those of gates or heads. One that is not square is transposed in memory: it was
    stored as (heads, in, size of a head) and read as (heads, size of a head, in), or the reverse.
    """
    if weight.size > _MAX_BLOCK_ELEMENTS or not have_same_elements(weight, faulty):
        return
    for is_by_rows, matrix in ((True, weight), (False, weight.T)):
        n_rows, n_columns = matrix.shape
        for n_blocks in range(2, n_rows // 2 + 1):
            length, remainder = divmod(n_rows, n_blocks)
            if remainder:
                continue
            stored = matrix.reshape(n_blocks, length, n_columns).transpose(0, 2, 1)
            read = matrix.reshape(n_blocks, n_columns, length).transpose(0, 2, 1)
            for blocks in (stored, read) if length != n_columns else (stored,):
                transposed = blocks.reshape(matrix.shape)
                yield Candidate(
                    transposed if is_by_rows else transposed.T,
                    f"each of {n_blocks} blocks of {length} rows of the weight transposed"
                    if is_by_rows
                    else f"each of {n_blocks} blocks of {length} columns of the weight transposed",
                    unchanged=weight,
                )


def _reorder_axes(kernel: AnyArray) -> Iterator[Candidate]:
    """Yield a kernel with its axes in another order, or read from memory or stored in one.

    If the output channels stay where they are, the weight is not the transposed one.
    """
    shape = kernel.shape
    for axes in permutations(range(kernel.ndim)):
        if list(axes) == sorted(axes):
            continue
        cause = "kernel-axes" if axes[0] == 0 else ""
        stored = kernel.transpose(axes)
        text = f"the kernel with its axes in the order {axes}"
        if stored.shape != shape:
            text += ", read as if they were not"
        yield Candidate(stored.reshape(shape), text, unchanged=kernel, cause=cause)
        if stored.shape != shape:
            read = kernel.reshape(stored.shape).transpose(np.argsort(axes))
            text = f"the kernel read as if its axes were in the order {axes}"
            yield Candidate(read, text, unchanged=kernel, cause=cause)


def _change_kernel_axes(kernel: AnyArray) -> Iterator[Candidate]:
    """Yield a kernel (out, in, height, width) with its image axes reversed or exchanged.

    The output and input channels stay where they are, so it is not the weight that is transposed.
    """
    for axes, text in (
        ((2, 3), "the kernel flipped"),
        ((2,), "the kernel flipped along its height"),
        ((3,), "the kernel flipped along its width"),
    ):
        flipped = np.flip(kernel, axes)
        yield Candidate(flipped, text, unchanged=kernel, cause="kernel-flipped")
    if kernel.shape[2] == kernel.shape[3]:
        yield Candidate(
            np.swapaxes(kernel, 2, 3),
            "the kernel with its axes 2 and 3 (height and width) exchanged",
            unchanged=kernel,
            cause="kernel-axes",
        )
    else:
        yield Candidate(
            np.swapaxes(kernel, 2, 3).reshape(kernel.shape),
            "the kernel transposed in memory",
            unchanged=kernel,
            cause="kernel-axes",
        )


def suggest_other_parameter(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that another parameter of the same shape is in its place."""
    shape = case.faithful.shape
    same_shape = [operand for operand in case.parameters if operand.shape == shape]
    name = ""
    for operand in same_shape:
        if np.array_equal(operand.array, case.faithful):
            name = operand.parameter
            break
    if not _is_floating_parameter(case):
        return
    for operand in same_shape:
        if operand.parameter != name:
            yield Candidate(
                operand.array,
                f"{operand.parameter} in its place",
                unchanged=case.faithful,
                cause=_choose_swap_cause(case.finding.scope, name, operand.parameter),
            )


def suggest_mixed_rows(case: FaultCase) -> Iterator[Candidate]:
    """Suggest rows of several parameters that were joined, and cut in another way.

    Queries, keys and values are joined one after the other, or head by head; gate and up by ranks.
    """
    if not _is_floating_parameter(case) or case.faithful.ndim != 2:
        return
    n_rows = len(case.faithful)
    others = {
        operand.parameter: operand.array
        for operand in case.parameters
        if operand.shape == case.faithful.shape and not np.array_equal(operand.array, case.faithful)
    }
    if not others:
        return
    names, matrices = ["", *others], [case.faithful, *others.values()]
    places = _find_rows(matrices, case.faulty)
    owners = np.unique(places // n_rows)
    if owners[0] < 0 or len(owners) < 2:
        return
    n_others = int((places >= n_rows).sum())
    owner_names = " and ".join(names[owner] for owner in owners.tolist() if owner > 0)
    yield Candidate(
        np.stack([matrices[place // n_rows][place % n_rows] for place in places.tolist()]),
        f"{n_others} of {n_rows} rows are those of {owner_names}, as if all were "
        "joined and cut in another way",
        unchanged=case.faithful,
        parameters={"rows": float(n_others)},
        cause="split-order",
    )


def _find_rows(matrices: Sequence[AnyArray], rows: AnyArray) -> Ints:
    """Return the place of each row in the joined matrices, -1 if it is not there.

    It is found by a random projection.
    """
    width = rows.shape[-1]
    direction = np.random.default_rng(_PROJECTION_SEED).standard_normal(width)
    projections = np.concatenate([matrix @ direction for matrix in matrices])
    wanted = rows.reshape(-1, width) @ direction
    order = np.argsort(projections, kind="stable")
    sorted_projections = projections[order]
    after = np.searchsorted(sorted_projections, wanted).clip(1, len(projections) - 1)
    is_before = wanted - sorted_projections[after - 1] < sorted_projections[after] - wanted
    nearest = np.where(is_before, after - 1, after)
    max_difference = _MAX_PROJECTION_DIFFERENCE * float(np.abs(projections).max())
    is_found = np.abs(sorted_projections[nearest] - wanted) <= max_difference
    places: Ints = np.where(is_found, order[nearest], -1)
    return places


def _choose_swap_cause(scope: str, name: str, other_name: str) -> str:
    """Return the cause if the parameter ``other_name`` is in the place of ``name``."""
    has_expert_name = any(word in other_name for word in _EXPERT_WORDS)
    has_same_depth = name.count(".") == other_name.count(".")
    has_same_leaf = _strip_path(name) == _strip_path(other_name)
    is_other_expert = has_expert_name and has_same_depth and has_same_leaf
    if is_other_expert:
        return "experts-permuted"
    is_gate_and_up = _is_gate(name) != _is_gate(other_name)
    has_same_module = name.rsplit(".", 2)[0] == other_name.rsplit(".", 2)[0]
    is_same_mlp = has_same_module and "mlp" in scope + name
    if is_gate_and_up and is_same_mlp:
        return "gate-up-swapped"
    return "weight-swapped"


def _is_gate(name: str) -> bool:
    return any(word in name for word in _GATE_WORDS)


def _strip_path(name: str) -> str:
    """Return the last two parts of a name, without numbers."""
    return ".".join(part for part in name.split(".")[-2:] if not part.isdecimal())


def suggest_permuted_rows(case: FaultCase) -> Iterator[Candidate]:
    """Suggest rows or columns in another order: shifted by one, whole heads, or experts."""
    if case.is_discrete or case.faithful.ndim < 2:
        return
    is_given = case.is_source or _is_parameter(case)
    if not is_given and not {"matmul", "concat"} & set(case.kinds):
        yield from _suggest_pair_order(case)
        return
    first_axis = _find_first_axis(case.faithful)
    for axis, axis_name in ((first_axis, "rows"), (case.faithful.ndim - 1, "columns")):
        order = _find_permutation_along(case, axis)
        if order is not None:
            description = _describe_wave_order(case, order)
            if description:
                yield Candidate(
                    np.take(case.faithful, order, axis=axis),
                    description,
                    unchanged=case.faithful,
                    cause="time-embedding-order",
                )
            yield _make_permutation_candidate(case, order, axis, axis_name)
            return
    if case.faithful.ndim != 4 or is_given:
        return
    for axis in (1, 2):  # (batch, heads, tokens, size) or (batch, tokens, heads, size)
        order = _find_permutation_along(case, axis)
        if order is not None:
            description, cause = f"heads in the order {order.tolist()}", "heads-permuted"
            lengths = find_exchanged_lengths(order)
            if lengths is not None and not _is_of_heads(case):
                description, cause = _describe_exchange("channels", lengths), "axes-swapped"
            is_batched = axis == 1 or "matmul" not in case.list_consumer_kinds()
            is_exchange = is_rotation(order)
            if not is_batched and not is_exchange:
                return  # the axis that a product sums over, or that of the tokens
            if (is_exchange and not is_batched) or _joins_in_other_order(case, order):
                description, cause = f"the two parts joined along axis {axis} exchanged", _EXCHANGED
            yield Candidate(
                np.take(case.faithful, order, axis=axis),
                description,
                unchanged=case.faithful,
                cause=cause,
            )
            return


def _is_parameter(case: FaultCase) -> bool:
    """Return whether the faithful side's value is a parameter; the other side computed its own."""
    return any(
        np.array_equal(operand.array.reshape(-1), case.faithful.reshape(-1))
        for operand in case.find_parameters(case.faithful.size)
    )


def _find_first_axis(array: AnyArray) -> int:
    """Return the first axis of more than one element: a table may have axes for the batch."""
    return next((axis for axis, length in enumerate(array.shape) if length > 1), 0)


def _suggest_pair_order(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that queries or keys are ordered for rotary pairs of the other layout."""
    size = case.faithful.shape[-1]
    if not case.is_forward_value or size % 2 or size < _MIN_PAIRED_SIZE:
        return
    if not {"mul", "neg"} <= case.consumer_kinds | set(case.kinds):
        return
    pairs_first = np.concatenate([np.arange(0, size, 2), np.arange(1, size, 2)])
    orders = [
        (pairs_first, "interleaved", "halves"),
        (np.argsort(pairs_first), "halves", "interleaved"),
    ]
    if np.array_equal(pairs_first, orders[1][0]) and _holds_rows(case, case.faulty):
        orders = orders[::-1]  # two pairs: the order alone does not show which side changed it
    for order, layout, other_layout in orders:
        yield Candidate(
            case.faithful[..., order],
            f"rotary layout = {layout}",
            f"has {other_layout}",
            unchanged=case.faithful,
            cause="rope-layout",
        )


def _holds_rows(case: FaultCase, array: AnyArray) -> bool:
    """Return whether the first row of an array is in an operand, so its order was not changed."""
    row = array.reshape(-1, array.shape[-1])[0]
    for operand in case.list_shared_operands():
        flat = operand.array.reshape(-1)
        for start in np.flatnonzero(flat == row[0]).tolist():
            if np.array_equal(flat[start : start + row.size], row):
                return True
    return False


def _describe_wave_order(case: FaultCase, order: Ints) -> str:
    """Return how joined sines and cosines are reordered; '' if it is another order."""
    half = len(order) // 2
    operands = (*case.operands[:_MAX_WAVE_OPERANDS], *case.faulty_operands[:_MAX_WAVE_OPERANDS])
    kinds = {operand.kind for operand in operands}
    has_waves = {"sin", "cos"} <= kinds or holds_both_waves(case.faithful)
    if not has_waves or len(order) % 2:
        return ""
    places = np.arange(len(order))
    if np.array_equal(order, np.roll(places, half)):
        return "sines and cosines in the other order"
    interleaved = places.reshape(2, half).T.reshape(-1)
    if np.array_equal(order, interleaved):
        return "sines and cosines interleaved, not one after the other"
    if np.array_equal(order, np.argsort(interleaved)):
        return "sines and cosines one after the other, not interleaved"
    return ""


def _find_permutation_along(case: FaultCase, axis: int) -> Ints | None:
    """Return the order of the faithful side's slices along an axis; None if there is none."""
    faithful_rows = np.moveaxis(case.faithful, axis, 0)
    return find_permutation(faithful_rows, np.moveaxis(case.faulty, axis, 0))


def _make_permutation_candidate(
    case: FaultCase, order: Ints, axis: int, axis_name: str
) -> Candidate:
    parameters: dict[str, float] = {}
    shift = _find_unit_shift(order)
    description, cause = f"{axis_name} in another order", "heads-permuted"
    if case.faithful.ndim == 3 and axis == 0 and case.finding.is_given:
        description, cause = f"experts in the order {order.tolist()}", "experts-permuted"
    elif shift and case.list_consumer_kinds() == {"add"}:  # each row is added to its position
        description, cause = f"positions shifted by {-shift}, cyclically", "position-offset"
        parameters = {"offset": float(-shift)}
    elif shift:
        description, cause = f"{axis_name} shifted by {shift}", "row-shift"
        parameters = {"shift": float(shift)}
    elif case.finding.kind == "input" and axis_name == "columns":
        description, cause = f"columns in the order {order.tolist()}", "channel-order"
    elif case.finding.kind == "input" or (axis_name == "rows" and _holds_tokens(case)):
        cause = "row-shift"
    elif case.is_source and axis == 0 and "gather_rows" in case.list_consumer_kinds():
        n_moved = int((order != np.arange(len(order))).sum())
        description, cause = f"{n_moved} of {len(order)} rows in another order", "weight-rows"
    elif case.is_source and axis_name == "rows" and _is_table(case):
        lengths = find_exchanged_lengths(order)
        description = _describe_exchange("rows", lengths) if lengths else "rows in another order"
        cause = "weight-rows"
    else:
        parameters = {"block": float(find_block_length(order))}
        description, cause = _name_block_order(case, order, axis, axis_name)
    return Candidate(
        np.take(case.faithful, order, axis=axis),
        description,
        parameters=parameters,
        unchanged=case.faithful,
        cause=cause,
    )


def _name_block_order(case: FaultCase, order: Ints, axis: int, axis_name: str) -> tuple[str, str]:
    """Return (description, cause) of blocks of rows or columns in another order."""
    block = find_block_length(order)
    kinds = case.consumer_kinds | set(case.kinds)
    if kinds & _CELL_KINDS and len(order) // block in _GATE_COUNTS:
        return f"gates in the order {(order[::block] // block).tolist()}", "gate-order"
    exchanged_parts = ""
    if _joins_in_other_order(case, order) or _joins_operands(case, order, axis):
        exchanged_parts = f"the two parts joined along axis {axis} exchanged"
    elif axis_name == "columns" and case.is_source:
        exchanged_parts = _describe_exchanged_parts(case, order)
    if exchanged_parts:
        return exchanged_parts, _EXCHANGED
    if case.is_forward_value and _is_reversal(order):
        return f"{axis_name} in reverse order", "scan-direction"
    description = f"{axis_name} in another order"
    if block > 1:
        description = f"{description}, in blocks of {block}"
    if not case.is_forward_value or _is_of_heads(case):
        return description, "heads-permuted"
    lengths = find_exchanged_lengths(order)
    if lengths:
        return _describe_exchange(axis_name, lengths), "axes-swapped"
    is_lookup = axis_name == "rows" and bool(_LOOKUP_KINDS & {*case.kinds, *case.faulty_kinds})
    return description, "row-shift" if is_lookup else "split-order"


def _describe_exchange(axis_name: str, lengths: tuple[int, int]) -> str:
    return f"{axis_name} read with axes {lengths[0]} and {lengths[1]} exchanged"


def _is_table(case: FaultCase) -> bool:
    """Return whether a matrix of weights is added, or cut and added, rather than multiplied.

    If no reader is recorded, one axis for the batch says that it is added.
    """
    shape, kinds = case.faithful.shape, case.list_consumer_kinds()
    is_added = bool(_TABLE_READERS & kinds) or (not kinds and len(shape) == 3 and shape[0] == 1)
    return is_added and sum(length > 1 for length in shape) == 2


def _is_of_heads(case: FaultCase) -> bool:
    """Return whether a value belongs to attention, so that its columns are those of heads."""
    return is_attention(case.finding.scope) or bool(case.consumer_kinds & SCORE_KINDS)


def _holds_tokens(case: FaultCase) -> bool:
    """Return whether a value is a computed one of (batch or windows, tokens, width): no heads."""
    is_joined = "concat" in (*case.kinds, *case.faulty_kinds)
    return case.is_forward_value and case.faithful.ndim == _TOKEN_AXES and not is_joined


def _joins_in_other_order(case: FaultCase, order: Ints) -> bool:
    """Return whether a value is joined of two parts, and ``order`` exchanges these.

    A recurrent op joins the outputs of its two directions.
    """
    kinds = {*case.kinds, *case.faulty_kinds}
    is_joined = "concat" in kinds or bool(kinds & GATE_COUNTS.keys())
    return is_joined and not case.is_source and is_rotation(order)


def _is_reversal(order: Ints) -> bool:
    """Return whether an order runs from the end; of two rows, an exchange is likelier."""
    return len(order) > 2 and np.array_equal(order, np.arange(len(order))[::-1])


def _describe_exchanged_parts(case: FaultCase, order: Ints) -> str:
    """Return which neighboring parts of a weight's input are exchanged; '' if none are.

    All other columns keep their places. Single columns are no parts, and heads are not exchanged.
    """
    first, last = np.flatnonzero(order != np.arange(len(order)))[[0, -1]]
    second = order[first]
    is_exchange = find_block_length(order) > 1 and is_rotation(order[first : last + 1] - first)
    if not is_exchange or _is_of_heads(case):
        return ""
    return f"columns {first} to {second - 1} and {second} to {last} of its input exchanged"


def _joins_operands(case: FaultCase, order: Ints, axis: int) -> bool:
    """Return whether ``order`` exchanges two values that were joined without a record of it.

    Such are the outputs of the two directions of a recurrent layer, of which one is reversed.
    """
    if case.is_source or not is_rotation(order):
        return False
    parts = np.split(case.faithful, [int(order[0])], axis)
    return all(
        any(
            operand.is_floating and have_same_elements(operand.array, part)
            for operand in case.operands
        )
        for part in parts
    )


def _find_unit_shift(order: Ints) -> int:
    """Return 1 or -1 if all rows are shifted by one, cyclically; else 0.

    Two rows that change places are not shifted.
    """
    n_rows = len(order)
    if n_rows <= 2:
        return 0
    steps = (order - np.arange(n_rows)) % n_rows
    first_step = int(steps[0])
    if not np.all(steps == first_step) or min(first_step, n_rows - first_step) != 1:
        return 0
    return -1 if first_step == 1 else 1


def find_permutation(rows: AnyArray, other_rows: AnyArray) -> Ints | None:
    """Return ``order`` with other_rows[i] = rows[order[i]].

    None if there is none, or if it is the identity. Rows are compared by a random projection.
    """
    a, b = rows.reshape(len(rows), -1), other_rows.reshape(len(other_rows), -1)
    direction = np.random.default_rng(_PROJECTION_SEED).standard_normal(a.shape[1])
    projections, other_projections = a @ direction, b @ direction
    ranks = np.argsort(projections, kind="stable")
    other_ranks = np.argsort(other_projections, kind="stable")
    max_difference = _MAX_PROJECTION_DIFFERENCE * max(float(np.abs(projections).max()), 1e-30)
    if np.abs(projections[ranks] - other_projections[other_ranks]).max() > max_difference:
        return None
    order = np.empty(len(a), dtype=np.int64)
    order[other_ranks] = ranks
    return None if np.array_equal(order, np.arange(len(order))) else order


def find_block_length(order: Ints) -> int:
    """Return how many rows stay together, at least."""
    breaks = np.flatnonzero(np.diff(order) != 1) + 1
    return int(np.gcd.reduce(np.append(breaks, len(order))))


def suggest_wrong_rows(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that a few rows are wrong, of a table or of rows read from one.

    Rows of what is joined from several values are not rows of one table, nor are those of a sum of
    gradients.
    """
    if case.faithful.ndim < 2 or case.phase == BACKWARD:
        return
    reads_table = "gather_rows" in case.kinds and not _JOINING_KINDS & set(case.kinds)
    if case.is_discrete or not (case.finding.is_given or reads_table):
        return
    rows = case.faithful.reshape(-1, case.faithful.shape[-1])
    faulty_rows = case.faulty.reshape(rows.shape)
    distances = np.linalg.norm(faulty_rows - rows, axis=1)
    row_norms = np.maximum(np.linalg.norm(rows, axis=1), 1e-30)
    wrong_rows = np.flatnonzero(distances > case.tolerance * row_norms)
    n_wrong = len(wrong_rows)
    if not 0 < n_wrong <= max(1, _MAX_WRONG_ROWS * len(rows)):
        return
    predicted = rows.copy()
    predicted[wrong_rows] = faulty_rows[wrong_rows]
    cause, description, contrast = _describe_rows(case, rows, faulty_rows, wrong_rows)
    yield Candidate(
        predicted,
        description,
        contrast,
        parameters={"rows": float(n_wrong)},
        unchanged=case.faithful,
        cause=cause,
    )


def _describe_rows(
    case: FaultCase, rows: AnyArray, faulty_rows: AnyArray, wrong_rows: Ints
) -> tuple[str, str, str]:
    """Return the cause, what is said of wrong rows, and what is said of the faithful side."""
    numbers = ", ".join(str(row) for row in wrong_rows[:_MAX_LISTED_ROWS].tolist())
    if len(wrong_rows) > _MAX_LISTED_ROWS:
        numbers += ", ..."
    faithful, faulty = rows[wrong_rows], faulty_rows[wrong_rows]
    is_border = not case.finding.is_given and _are_border_rows(case.faithful.shape, wrong_rows)
    if is_border and not faulty.any():
        place = f"zeros in the rows at one end of each sequence ({numbers})"
        return "padding-mode", place, "has other numbers there"
    if is_border and not faithful.any():
        place = f"no zeros in the rows at one end of each sequence ({numbers})"
        return "padding-mode", place, "has zeros there"
    description = f"wrong rows ({len(wrong_rows)} of {len(rows)}: {numbers})"
    factor = fit_factor(faithful, faulty)
    residual = np.linalg.norm(factor * faithful - faulty)
    if np.isfinite(factor) and residual <= case.limit * np.linalg.norm(faulty):
        description += f", {factor:.6g} times the {case.faithful_side}'s"
    return "weight-rows", description, ""


def _are_border_rows(shape: tuple[int, ...], rows: Ints) -> bool:
    """Return whether rows are the first or the last ones of all sequences (..., length, size)."""
    if len(shape) < 3:
        return False
    length, n_sequences = shape[-2], math.prod(shape[:-2])
    places = np.unique(rows % length)
    is_at_end = places[-1] == len(places) - 1 or places[0] == length - len(places)
    return bool(is_at_end and len(rows) == len(places) * n_sequences < n_sequences * length)


def suggest_rounded(case: FaultCase) -> Iterator[Candidate]:
    """Suggest that the parameter was rounded to a narrower dtype."""
    if not _is_floating_parameter(case):
        return
    for dtype in ("bfloat16", "float16"):
        predicted = round_to_dtype(case.faithful.astype(np.float32), dtype).astype(np.float64)
        yield Candidate(predicted, f"rounded to {dtype}", unchanged=case.faithful)


HYPOTHESES = (
    Hypothesis("zeroed", suggest_constant),
    Hypothesis("zeroed", suggest_zero_rows),
    Hypothesis("weight-scaled", suggest_scaled),
    Hypothesis("weight-scaled", suggest_scaled_rows),
    Hypothesis("low-precision", suggest_rounded),
    Hypothesis("weight-transposed", suggest_transposed),
    Hypothesis("weight-swapped", suggest_other_parameter),
    Hypothesis("split-order", suggest_mixed_rows),
    Hypothesis("heads-permuted", suggest_permuted_rows),
    Hypothesis("weight-rows", suggest_wrong_rows),
)
