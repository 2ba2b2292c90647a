"""Paths of a gradient: the forward steps after a value, differentiated one by one.

A recorded backward pass may hold one gradient for many steps. The forward steps of either side,
whose values agree, show what flows back along each way, recorded or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..graph import Flow
from ..graph.missing_edges import find_bridge
from ..model.arrays import AnyArray, Floats, Ints
from ..model.dtypes import is_floating
from ..model.recorded_shapes import load_readable_tensor
from ..model.trace import FORWARD
from .comparison_index import ComparisonIndex, find_whole_tensor, list_cut_sources
from .element_places import find_order
from .region import Step
from .region_builder import BRIDGE_KINDS, read_step
from .step_derivatives import Derivative, find_derivative

#: Forward steps between a value and the known gradients after it, and values that may have one
#: gradient, at most.
_MAX_STEPS, _MAX_VALUES = 48, 3
#: Relative L2 between both sides' gradients where a path may end: what sums that cancel leave.
_MAX_NOISE = 1e-3


@dataclass(frozen=True, eq=False)
class PathEdge:
    """One input of one forward step, along which a gradient flows back."""

    step: Step
    contribution: Floats  #: what flows back along it to the value, in the value's layout
    #: what would flow back if the step passed the gradient on as it is; None if it cannot
    straight: Floats | None
    is_own: bool  #: the input is the value itself


@dataclass(frozen=True, eq=False)
class GradientPaths:
    """The forward steps from a value to values whose gradients are known, in execution order."""

    steps: tuple[Step, ...]
    value: int
    array: AnyArray  #: the value
    known: Mapping[int, Floats]  #: value -> its gradient, one element after the other

    @cached_property
    def _derivatives(self) -> dict[tuple[int, int], Derivative | None]:
        return {}

    @cached_property
    def _orders(self) -> dict[tuple[int, int], Ints | None]:
        return {}

    @cached_property
    def _bases(self) -> dict[int, AnyArray]:
        """The array of each value in the layout in which its gradient is kept."""
        return {self.value: self.array, **{step.value: step.output for step in self.steps}}

    @cached_property
    def gradients(self) -> dict[int, Floats] | None:
        """Value -> its gradient, as differentiated; None if a step cannot be differentiated."""
        gradients = {value: np.zeros(array.size) for value, array in self._bases.items()}
        gradients.update(self.known)
        return gradients if self._flow_back(gradients, len(self.steps)) else None

    def _flow_back(self, gradients: dict[int, Floats], n_steps: int) -> bool:
        """Let gradients flow back through the first steps; return whether all can be computed."""
        for number in reversed(range(n_steps)):
            step = self.steps[number]
            gradient = gradients.get(step.value)
            if gradient is None or not gradient.any():
                continue
            for position in self._list_positions(step):
                value = step.inputs[position].value
                part = self._derive(number, position, gradient)
                if part is None:
                    return False
                if value not in self.known:
                    gradients[value] = gradients.get(value, 0.0) + part
        return True

    def _list_positions(self, step: Step) -> list[int]:
        return [
            position
            for position, item in enumerate(step.inputs)
            if item.value in self._bases and item.array.dtype.kind == "f"
        ]

    def _derive(self, number: int, position: int, gradient: Floats) -> Floats | None:
        """Return what flows back through one input of a step, in the layout of the value."""
        step = self.steps[number]
        key = number, position
        if key not in self._derivatives:
            self._derivatives[key] = find_derivative(step, position)
        derivative = self._derivatives[key]
        if derivative is None:
            return None
        return self._arrange(number, position, derivative(gradient))

    def _arrange(self, number: int, position: int, part: AnyArray) -> Floats | None:
        """Return the gradient of an input in the layout of the value that it is."""
        step_input = self.steps[number].inputs[position]
        key = number, position
        if key not in self._orders:
            is_found, order = find_order(self._bases[step_input.value], step_input.array)
            if not is_found:
                return None
            self._orders[key] = order
        own_order = self._orders[key]
        flat = np.asarray(part, dtype=np.float64).reshape(-1)
        if own_order is None:
            return flat
        arranged = np.empty_like(flat)
        arranged[own_order] = flat
        return arranged

    def iterate_edges(self) -> Iterator[PathEdge]:
        """Yield the inputs of all steps along which something flows back, the first steps first."""
        gradients = self.gradients
        if gradients is None:
            return
        for number, step in enumerate(self.steps):
            gradient = gradients[step.value]
            if not gradient.any():
                continue
            for position in self._list_positions(step):
                step_input = step.inputs[position]
                if step_input.value in self.known:
                    continue
                part = self._derive(number, position, gradient)
                contribution = self._flow_to_value(number, step_input.value, part)
                if contribution is None or not contribution.any():
                    continue
                straight = None
                if step_input.array.size == step.output.size and step.places is None:
                    passed = self._arrange(number, position, gradient)
                    straight = self._flow_to_value(number, step_input.value, passed)
                is_own = step_input.value == self.value
                yield PathEdge(step, contribution, straight, is_own)

    def _flow_to_value(self, number: int, value: int, part: Floats | None) -> Floats | None:
        """Return what of a gradient of an input of a step arrives at the value."""
        if part is None or value == self.value:
            return part
        gradients = {value: part}
        if not self._flow_back(gradients, number):
            return None
        return gradients.get(self.value)


def find_gradient_paths(
    index: ComparisonIndex, side: int, gradients: tuple[int, int], tolerance: float
) -> Iterator[GradientPaths]:
    """Yield the paths of one side after the values that have a pair of gradients.

    A value whose gradient only the other side's dataflow shows has that of its partner.
    """
    values: dict[int, None] = {}
    for own in (side, 1 - side):
        for value, gradient in _get_gradients(index, own).items():
            if gradient == gradients[own]:
                partner = value if own == side else index.partners[own].get(value, -1)
                values.setdefault(partner)
    for value in list(values)[:_MAX_VALUES]:
        paths = _read_paths(index, side, value, tolerance) if value >= 0 else None
        if paths is not None:
            yield paths


def _get_gradients(index: ComparisonIndex, side: int) -> Mapping[int, int]:
    """Return value -> its gradient, of one side."""
    gradients = index.comparison.alignment.gradients
    return {} if gradients is None else gradients[side].by_value


def _read_paths(
    index: ComparisonIndex, side: int, value: int, tolerance: float
) -> GradientPaths | None:
    """Return the paths after a value; None if a step cannot be run again, or if they are many."""
    flow = index.flows[side]
    array = _load_floats(flow, value)
    if array is None:
        return None
    unrecorded_values = _list_unrecorded_values(flow)
    steps: dict[int, Step] = {}
    known: dict[int, Floats] = {}
    front = [value]
    for source in front:  # grows while it is read
        written_values = _list_written_values(flow, source)
        children = [child for child in unrecorded_values if _may_follow(flow, child, source)]
        if not written_values and not children and flow.sizes[source] == 1:
            known[source] = np.ones(1)  # the loss
        for written in dict.fromkeys((*written_values, *children)):
            if written in steps:
                continue
            step = read_step(index, side, written, tolerance)
            if step is None and _is_recorded(flow, written):
                return None
            if step is None or source not in [item.value for item in step.inputs]:
                continue
            if len(steps) == _MAX_STEPS:
                return None
            steps[written] = step
            gradient = _load_known_gradient(index, side, written)
            if gradient is None:
                front.append(written)
            else:
                known[written] = gradient
    return GradientPaths(_sort_steps(steps), value, array, known)


def _sort_steps(steps: Mapping[int, Step]) -> tuple[Step, ...]:
    """Return the steps so that each follows those that it reads from."""
    sorted_values: dict[int, None] = {}

    def visit(value: int, above: frozenset[int]) -> None:
        if value in sorted_values or value not in steps or value in above:
            return
        for item in steps[value].inputs:
            visit(item.value, above | {value})
        sorted_values[value] = None

    for value in steps:
        visit(value, frozenset())
    return tuple(steps[value] for value in sorted_values)


def _list_written_values(flow: Flow, value: int) -> list[int]:
    """Return the floating values that forward ops compute from a value."""
    dtypes = flow.list_column("dtype")
    return [
        written
        for op in flow.users[value]
        if flow.phases[op] == FORWARD
        for written in flow.writes[op]
        if flow.producers[written] == op and written != value and is_floating(str(dtypes[written]))
    ]


def _is_recorded(flow: Flow, value: int) -> bool:
    """Return whether an op that computes a value was recorded, not just a module around it."""
    producer = int(flow.producers[value])
    return producer >= 0 and flow.levels[producer] == "op"


def _list_unrecorded_values(flow: Flow) -> list[int]:
    """Return the floating values that a forward op without a record must have computed.

    A module may return them.
    """
    dtypes, phases = flow.list_column("dtype"), flow.list_column("phase")
    return [
        value
        for value, producer in enumerate(flow.producers.tolist())
        if phases[value] == FORWARD
        and is_floating(str(dtypes[value]))
        and not _is_recorded(flow, value)
        and (producer >= 0 or flow.missing_producers.get(value))
    ]


def _may_follow(flow: Flow, value: int, source: int) -> bool:
    """Return whether an op without a record may have computed a value from another one."""
    bridge = find_bridge(flow, value)
    if bridge is not None and bridge.evidence in BRIDGE_KINDS:
        return source in bridge.parents
    return source in list_cut_sources(flow, value)


def _load_known_gradient(index: ComparisonIndex, side: int, value: int) -> Floats | None:
    """Return the gradient of a value if the other side has the same one, up to noise."""
    gradient = _get_gradients(index, side).get(value, -1)
    partner = index.partners[side].get(gradient, -1)
    row = index.pair_rows.get((gradient, partner) if side == 0 else (partner, gradient))
    if row is None or not index.comparison.pairs["error"].iat[row] <= _MAX_NOISE:
        return None
    array = _load_floats(index.flows[side], gradient)
    if array is None or array.size != index.flows[side].sizes[value]:
        return None
    return array.reshape(-1)


def _load_floats(flow: Flow, value: int) -> AnyArray | None:
    """Return a whole floating tensor of a value in float64, None if there is none."""
    tensor = find_whole_tensor(flow, value)
    array = load_readable_tensor(flow.trace, tensor) if tensor >= 0 else None
    if array is None or array.dtype.kind in "iub":
        return None
    return array.astype(np.float64)
