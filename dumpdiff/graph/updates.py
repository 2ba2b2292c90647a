"""What a step leaves behind: the new value of each weight, and the state of its optimizer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..model.arrays import Ints
from ..model.trace import COMMUNICATION, OPTIMIZER
from ..readers.call_records import is_in_place
from .dataflow import Flow

#: Values of one parameter's update that are followed; the longest rule has about twenty.
_MAX_UPDATE_VALUES = 64


@dataclass(frozen=True)
class Update:
    """The update of one weight, by value classes of one side."""

    new_weight: int  #: -1 if it was not recorded, or equals the old weight
    states: tuple[int, ...]  #: moments and the like after the step, in order of execution
    is_unchanged: bool = False  #: the new weight was recorded, and equals the old one


def list_kept_values(update: Update) -> tuple[int, ...]:
    """Return the new weight, if it was recorded, and the states."""
    return update.states if update.new_weight < 0 else (update.new_weight, *update.states)


def is_used_by_update(flow: Flow, gradient: int) -> bool:
    """Return whether the optimizer combines a gradient with another tensor of its size.

    That is the weight, or a state. The gradient may be added up over ranks and scaled before. An
    in-place call often has no record of what it overwrites, but it has one of the gradient.
    """
    sizes, slot_kinds = flow.tensors["size"].to_numpy(), flow.tensors["slot_kind"].to_numpy()
    todo = [gradient]
    for value in todo:  # grows on the way
        results = list(flow.multiples_of_gradients.get(value, ()))
        for op in flow.users[value]:
            if flow.phases[op] not in (OPTIMIZER, COMMUNICATION):
                continue
            rows = flow.get_tensor_ids(op)
            is_operand = (slot_kinds[rows] == "input") & (sizes[rows] == flow.sizes[gradient])
            if flow.phases[op] == OPTIMIZER and is_operand.sum() > 1:
                return True
            results += flow.writes[op]
        for result in results:
            if result not in todo and flow.sizes[result] == flow.sizes[gradient]:
                todo.append(result)
    return False


@dataclass(frozen=True)
class _Memory:
    """What in-place calls of the optimizer do to the memory that they write."""

    origins: Mapping[int, int]  #: value written in place -> first value that this memory held
    final_values: frozenset[int]  #: values that no later call overwrites


def find_updates(flow: Flow, gradient_of: Mapping[int, int]) -> dict[int, Update]:
    """Return the update of each weight that has one; ``gradient_of`` maps weights to gradients.

    Graph dumps name what they update. In API dumps a new weight is what in-place calls make of the
    old one, and states are what they make of other memory from before the step, with a value
    that depends on the weight's gradient.
    """
    names = flow.list_column("update_of")
    if any(names):
        return _find_named_updates(flow, names)
    if OPTIMIZER not in flow.phases:
        return {}
    memory = _follow_memory(flow)
    updates = {}
    for weight, gradient in gradient_of.items():
        if flow.producers[weight] >= 0 and flow.phases[flow.producers[weight]] != OPTIMIZER:
            continue
        update = _find_update(flow, memory, weight, gradient)
        if update.new_weight >= 0 or update.states or update.is_unchanged:
            updates[weight] = update
    return updates


def find_updated_weights(
    flow: Flow, gradient_of: Mapping[int, int], updates: Mapping[int, Update]
) -> Ints:
    """Return (classes,) the weight that each value of the optimizer updates, -1 if unclear.

    It is the one whose gradient or states the value follows from, through values of its size. Two
    weights may share a gradient.
    """
    weights_of: defaultdict[int, set[int]] = defaultdict(set)
    for weight, update in updates.items():
        for value in (weight, gradient_of.get(weight, weight), *list_kept_values(update)):
            weights_of[value].add(weight)
    sizes = flow.sizes.tolist()
    for op in np.flatnonzero(flow.flag_phase(OPTIMIZER)).tolist():
        for result in flow.writes[op]:
            if result not in weights_of:
                operands = (x for x in flow.operands[op] if sizes[x] == sizes[result])
                weights_of[result] = set().union(*(weights_of.get(x, ()) for x in operands))
    updated_weights = np.full(len(sizes), -1)
    for value, weights in weights_of.items():
        if len(weights) == 1:
            updated_weights[value] = weights.pop()
    return updated_weights


def _find_named_updates(flow: Flow, names: Sequence[str]) -> dict[int, Update]:
    """Return the updates of a dump that names the parameters it updates.

    MindSpore calls the state of the weight W ``moment1.W``, ``exp_avg.W`` and so on.
    """
    new_values = {name: value for value, name in enumerate(names) if name}
    states: defaultdict[str, list[int]] = defaultdict(list)
    for name, value in new_values.items():
        states[name.partition(".")[2]].append(value)
    updates = {}
    for weight, name in enumerate(flow.list_column("parameter")):
        if not name or not (name in new_values or name in states):
            continue
        new_weight = new_values.get(name, -1)
        state = sorted(states[name], key=lambda value: (int(flow.producers[value]), value))
        is_unchanged = new_weight == weight
        updates[weight] = Update(-1 if is_unchanged else new_weight, tuple(state), is_unchanged)
    return updates


def _follow_memory(flow: Flow) -> _Memory:
    """Return the origin of every value that an in-place call of the optimizer writes."""
    kinds = flow.trace.ops["kind"].tolist()
    origins: dict[int, int] = {}
    overwritten: set[int] = set()
    for op, phase in enumerate(flow.phases):
        if phase != OPTIMIZER or not is_in_place(kinds[op]):
            continue
        old_value, new_value = _find_first_values(flow, op)
        if new_value < 0 or new_value == old_value:
            continue
        overwritten.add(old_value)
        overwritten.discard(new_value)
        origins[new_value] = origins.get(old_value, old_value)
    return _Memory(origins, frozenset(origins.keys() - overwritten))


def _find_first_values(flow: Flow, op: int) -> tuple[int, int]:
    """Return the classes of the first input and of the first output of an op, -1 if unknown."""
    values = {"input.0": -1, "output.0": -1}
    rows = flow.get_tensor_ids(op)
    slots = flow.tensors["slot"].to_numpy()[rows].tolist()
    for slot, value in zip(slots, flow.tensor_class[rows].tolist(), strict=True):
        if slot in values:
            values[slot] = value
    return values["input.0"], values["output.0"]


def _find_update(flow: Flow, memory: _Memory, weight: int, gradient: int) -> Update:
    """Return what the optimizer computes from a weight or its gradient and keeps.

    Between the backward pass and the update, ranks may add up the gradient, and clipping may
    scale it. If a call of the optimizer has the weight itself as result, it left it as it was.
    """
    reached_values = {weight: None, gradient: None}
    todo = [weight, gradient]
    for value in todo:
        results = [
            output
            for op in flow.users[value]
            if flow.phases[op] in (OPTIMIZER, COMMUNICATION)
            for output in flow.writes[op]
            if flow.producers[output] == op
        ]
        for result in (*results, *flow.multiples_of_gradients.get(value, ())):
            is_new = result not in reached_values and flow.sizes[result] == flow.sizes[weight]
            if is_new and len(todo) <= _MAX_UPDATE_VALUES:
                reached_values[result] = None
                todo.append(result)
    new_weight, states = -1, []
    for value in reached_values:
        if value == weight or value not in memory.final_values:
            continue
        origin = memory.origins[value]
        if origin == weight:
            new_weight = value
        elif origin < 0 or _is_before_step(flow, origin):
            states.append(value)
    states.sort(key=lambda value: int(flow.producers[value]))
    return Update(new_weight, tuple(states), is_unchanged=int(flow.producers[weight]) >= 0)


def _is_before_step(flow: Flow, value: int) -> bool:
    """Return whether a value was there before the step: the state that an optimizer kept.

    A gradient, too, has no producer in some API dumps, but it has the phase of its record.
    """
    is_computed = flow.producers[value] >= 0
    return not is_computed and flow.list_column("phase")[value] == OPTIMIZER
