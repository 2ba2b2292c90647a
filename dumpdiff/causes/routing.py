"""Routing of one layer of experts, read from one side of a comparison.

The two sides write the way from scores to weights in different operators, in tables of all experts
or of the chosen ones. Both become one table: the weight of every expert for every token, zero for
experts that were not chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..graph import Flow
from ..model.arrays import AnyArray, Flags, Floats
from ..model.recorded_shapes import load_readable_tensor
from ..model.trace import FORWARD
from .comparison_index import ComparisonIndex, find_inputs, find_whole_tensor

#: Values between the scores of a router and the choice, and between the choice and the weights.
_MAX_VALUES = 48
#: Largest table of tokens and experts.
_MAX_ELEMENTS = 1 << 22
#: Relative L2 within which the scores of the two sides are the same.
_EQUAL_DISTANCE = 1e-4
#: Share of the chosen experts that have a weight; with fewer, another table was read.
_MIN_WEIGHTED = 0.5
_PRODUCT_KINDS = ("matmul", "addmm")
#: Choices of which the values are asked for: the last before a value and the first after it.
_MAX_NEAREST_CHOICES = 2


@dataclass(frozen=True, eq=False)
class Routing:
    """Choice and weights of one router; tokens in rows, experts in columns."""

    logits: Floats  #: (tokens, experts): the product from which the scores are computed
    weights: Floats  #: (tokens, experts): zero for experts that a token does not use
    is_chosen: Flags  #: (tokens, experts): the largest values of the choice
    #: vectors (experts,) that are added to scores: parameters or buffers
    biases: tuple[Floats, ...]


def find_routings(
    index: ComparisonIndex, values: tuple[int, int]
) -> tuple[Routing, Routing] | None:
    """Return the routing of target and reference next to two compared values.

    None if a side has none, if its tensors were not recorded, or if the scores already differ.
    """
    routings = [list(_read_routings(index, side, values[side])) for side in (0, 1)]
    for target in routings[0]:
        for reference in routings[1]:
            if target.logits.shape != reference.logits.shape:
                continue
            distance = np.linalg.norm(target.logits - reference.logits)
            if distance <= _EQUAL_DISTANCE * np.linalg.norm(reference.logits):
                return target, reference
    return None


def list_routing_values(index: ComparisonIndex, side: int, value: int) -> list[int]:
    """Return the values from which the routing next to a value is read, the scores first."""
    flow = index.flows[side]
    routing_values: list[int] = []
    for op in _list_choices(index, side, value)[:_MAX_NEAREST_CHOICES]:
        inputs, outputs = _split_rows(flow, op)
        size = _get_table_size(flow, inputs)
        if size is None or not outputs:
            continue
        n_tokens, n_experts = size
        for upstream_value in _iterate_upstream(flow, int(flow.tensor_class[inputs[0]])):
            is_bias = flow.sizes[upstream_value] == n_experts
            if is_bias or flow.sizes[upstream_value] == n_tokens * n_experts:
                routing_values.append(upstream_value)
            if _is_product(index, side, upstream_value, n_tokens * n_experts):
                break
        chosen_values = [int(flow.tensor_class[row]) for row in outputs]
        sizes = {n_tokens * n_experts, *flow.tensors["size"].to_numpy()[outputs].tolist()}
        following_values = _iterate_following(flow, chosen_values, n_tokens, n_experts)
        routing_values += [value for value in following_values if flow.sizes[value] in sizes]
    return list(dict.fromkeys(routing_values))


def _read_routings(index: ComparisonIndex, side: int, value: int) -> Iterator[Routing]:
    """Yield the routings of the choices next to a value."""
    for op in _list_choices(index, side, value):
        routing = _read_routing(index, side, op)
        if routing is not None:
            yield routing


def _list_choices(index: ComparisonIndex, side: int, value: int) -> list[int]:
    """Return the last choice before a value, the first after it, then the next of either."""
    flow = index.flows[side]
    phases = flow.trace.ops["phase"].to_numpy()
    kinds = index.kinds[side]
    choices = [op for op in range(len(kinds)) if kinds[op] == "topk" and phases[op] == FORWARD]
    producer = int(flow.producers[value])
    before = [op for op in choices if op <= producer][::-1]
    after = [op for op in choices if op > producer]
    return [*before[:1], *after[:1], *before[1:2], *after[1:2]]


def _split_rows(flow: Flow, op: int) -> tuple[list[int], list[int]]:
    """Return the tensors that an op reads, and those that it writes."""
    rows = flow.get_tensor_ids(op).tolist()
    slot_kinds = flow.tensors["slot_kind"].to_numpy()[rows]
    inputs = [row for row, kind in zip(rows, slot_kinds, strict=True) if kind == "input"]
    outputs = [row for row, kind in zip(rows, slot_kinds, strict=True) if kind == "output"]
    return inputs, outputs


def _get_table_size(flow: Flow, inputs: Sequence[int]) -> tuple[int, int] | None:
    """Return the numbers of tokens and experts of the first input; None if it is no table."""
    if not inputs or flow.tensor_class[inputs[0]] < 0:
        return None
    shape = flow.tensors["shape"].iat[inputs[0]]
    if not shape or len(shape) < 2 or np.prod(shape) > _MAX_ELEMENTS:
        return None
    n_experts = int(shape[-1])
    return int(np.prod(shape)) // n_experts, n_experts


def _iterate_upstream(flow: Flow, value: int) -> Iterator[int]:
    """Yield a value and what it was computed from, the nearest first."""
    values = [value]
    for upstream_value in values:  # grows while it is read
        yield upstream_value
        for input_value, _ in find_inputs(flow, upstream_value):
            if input_value not in values and len(values) < _MAX_VALUES:
                values.append(input_value)


def _iterate_following(
    flow: Flow, chosen_values: Sequence[int], n_tokens: int, n_experts: int
) -> Iterator[int]:
    """Yield the values of a choice and the small forward values computed from them."""
    phases = flow.list_column("phase")
    values = [value for value in chosen_values if value >= 0]
    for value in values:  # grows while it is read
        yield value
        for consumer in flow.users[value]:
            for written_value in flow.writes[consumer]:
                is_small = flow.sizes[written_value] <= n_tokens * n_experts * n_experts
                is_new = written_value not in values and phases[written_value] == FORWARD
                if is_small and is_new and len(values) < _MAX_VALUES:
                    values.append(written_value)


def _is_product(index: ComparisonIndex, side: int, value: int, size: int) -> bool:
    producer = int(index.flows[side].producers[value])
    is_product = producer >= 0 and index.kinds[side][producer] in _PRODUCT_KINDS
    return is_product and int(index.flows[side].sizes[value]) == size


def _read_routing(index: ComparisonIndex, side: int, op: int) -> Routing | None:
    """Return the routing whose experts an op chooses; None if it chooses something else."""
    flow = index.flows[side]
    inputs, outputs = _split_rows(flow, op)
    size = _get_table_size(flow, inputs)
    if size is None or not outputs:
        return None
    n_tokens, n_experts = size
    scores = _find_scores(index, side, int(flow.tensor_class[inputs[0]]), n_tokens, n_experts)
    indices = _read_indices(flow, outputs, n_tokens, n_experts)
    if scores is None or indices is None:
        return None
    logits, biases = scores
    is_chosen = np.zeros((n_tokens, n_experts), dtype=bool)
    np.put_along_axis(is_chosen, indices, values=True, axis=1)
    weights = _find_weights(index, side, outputs, indices, is_chosen)
    if weights is None or np.mean(weights[is_chosen] != 0) < _MIN_WEIGHTED:
        return None
    return Routing(logits, weights, is_chosen, biases)


def _read_indices(
    flow: Flow, outputs: Sequence[int], n_tokens: int, n_experts: int
) -> AnyArray | None:
    """Return the numbers of the chosen experts (tokens, chosen), from one of the outputs."""
    for row in outputs:
        array = load_readable_tensor(flow.trace, row)
        if array is None or array.dtype.kind not in "iu" or array.size % n_tokens:
            continue
        indices = array.reshape(n_tokens, -1).astype(np.int64)
        if indices.size and indices.min() >= 0 and indices.max() < n_experts:
            return indices
    return None


def _find_scores(
    index: ComparisonIndex, side: int, value: int, n_tokens: int, n_experts: int
) -> tuple[Floats, tuple[Floats, ...]] | None:
    """Return the product from which the chosen values follow, and the vectors added on the way."""
    flow = index.flows[side]
    biases: list[Floats] = []
    for upstream_value in _iterate_upstream(flow, value):
        if _is_product(index, side, upstream_value, n_tokens * n_experts):
            logits = _load_value(flow, upstream_value)
            if logits is None or logits.shape[-1] != n_experts:
                return None
            return logits.reshape(n_tokens, n_experts), tuple(biases)
        if flow.sizes[upstream_value] == n_experts and flow.producers[upstream_value] < 0:
            bias = _load_value(flow, upstream_value)
            if bias is not None:
                biases.append(bias.reshape(-1))
    return None


def _find_weights(
    index: ComparisonIndex,
    side: int,
    outputs: Sequence[int],
    indices: AnyArray,
    is_chosen: Flags,
) -> Floats | None:
    """Return the last table downstream of the choice that has a weight for each chosen expert."""
    flow = index.flows[side]
    dtypes = flow.list_column("dtype")
    chosen_values = [int(flow.tensor_class[row]) for row in outputs]
    tables: list[tuple[int, Floats]] = []
    for value in _iterate_following(flow, chosen_values, *is_chosen.shape):
        is_floating_value = str(dtypes[value]).startswith(("float", "bfloat"))
        if is_floating_value and flow.sizes[value] in (indices.size, is_chosen.size):
            table = _load_table(flow, value, indices, is_chosen)
            if table is not None:
                tables.append((int(flow.producers[value]), table))
    return max(tables, key=lambda entry: entry[0])[1] if tables else None


def _load_table(flow: Flow, value: int, indices: AnyArray, is_chosen: Flags) -> Floats | None:
    """Return a value as a table of all experts; None if it is no table of the chosen ones."""
    array = _load_value(flow, value)
    if array is None:
        return None
    table = np.zeros(is_chosen.shape)
    if array.size == indices.size and array.shape[-1] == indices.shape[-1]:
        np.put_along_axis(table, indices, array.reshape(indices.shape), axis=1)
    elif array.size == is_chosen.size and array.shape[-1] == is_chosen.shape[-1]:
        table = array.reshape(is_chosen.shape)
    else:
        return None
    has_weight = table != 0
    is_mask = np.all((table == 0) | (table == 1))
    if is_mask or not has_weight.any() or (has_weight & ~is_chosen).any():
        return None
    return table if np.isfinite(table).all() else None


def _load_value(flow: Flow, value: int) -> Floats | None:
    """Return the whole tensor of a value in float64; None if it was not recorded."""
    tensor = find_whole_tensor(flow, value)
    if tensor < 0 or flow.sizes[value] > _MAX_ELEMENTS:
        return None
    array = load_readable_tensor(flow.trace, tensor)
    return None if array is None else array.astype(np.float64)
