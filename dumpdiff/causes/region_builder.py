"""Regions read from a dump: the operators upstream of a value, as far as they are understood.

Each operator is run on its recorded inputs first, and must give its recorded output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ..graph.missing_edges import find_bridge, has_missing_producer
from ..graph.recent_values import list_recent_values
from ..model.arrays import AnyArray, Ints
from ..model.recorded_shapes import load_readable_tensor
from ..model.trace import FORWARD, OPTIMIZER
from ..operators.convolution_gradients import CONVOLUTION_GRADIENTS
from .comparison_index import (
    ComparisonIndex,
    depends_on,
    find_inputs,
    find_whole_tensor,
    list_cut_sources,
    name_producer,
)
from .element_places import find_order, find_places, find_window
from .interpretation import interpret_step
from .region import Region, Step, StepInput
from .unrecorded_ops import UnrecordedSource, find_unrecorded_op

#: Operators of a region at most, also of one in which a single change is tried, and elements of
#: one operator's inputs and outputs together.
_MAX_STEPS, LONG_REGION_STEPS, _MAX_STEP_ELEMENTS = 80, 256, 1 << 20
#: Ops that multiply by a weight, of which one may read what follows from the input of another.
_MAX_READERS = 3
#: An operator is understood if it gives its recorded output to this many tolerances of the finding.
_STEP_TOLERANCES = 4
#: Ops between an input of the run and its part that an op reads, and their kinds.
_MAX_SELECTIONS = 6
_SELECTING_BRIDGES = {"part", "rearranged", "cast", "stack", "joined"}
_SELECTING_KINDS = {"slice", "split", "reshape", "squeeze", "expand_dims", "transpose", "identity",
                    "contiguous", "gather_rows", "index", "unbind"}  # fmt: skip
#: Evidence of a missing edge that names the values that an unrecorded op read -> kind of that op.
BRIDGE_KINDS = {
    "joined": "concat",
    "stack": "concat",
    "part": "slice",
    "rearranged": "reshape",
    "cast": "cast",
    "multiple": "mul",
    "opposite": "logical_not",
    "one-hot": "one_hot",
}


def build_region(
    index: ComparisonIndex,
    side: int,
    value: int,
    array: AnyArray,
    tolerance: float,
    max_steps: int = _MAX_STEPS,
) -> Region | None:
    """Return the region of one side that ends in ``value``; ``array`` is its compared form.

    None if the op that computes it cannot be run again.
    """
    builder = _RegionBuilder(index, side, tolerance, max_steps)
    last_step = builder.add_steps(value)
    if last_step is None:
        return None
    is_found, order = find_order(last_step.output, array)
    if not is_found:
        return None
    return Region(tuple(builder.steps), order, array.shape)


def read_step(index: ComparisonIndex, side: int, value: int, tolerance: float) -> Step | None:
    """Return the op that computes a value, recorded or not; None if it cannot be run again."""
    return _RegionBuilder(index, side, tolerance).read_step(value)


class _RegionBuilder:
    """Collects the steps upstream of a value, in execution order."""

    def __init__(
        self, index: ComparisonIndex, side: int, tolerance: float, max_steps: int = _MAX_STEPS
    ) -> None:
        self.index, self.side, self.tolerance, self.max_steps = index, side, tolerance, max_steps
        self.flow = index.flows[side]
        self.steps: list[Step] = []
        self._steps_by_value: dict[int, Step | None] = {}

    def add_steps(self, value: int) -> Step | None:
        """Add the step that computes a value, after the steps that compute its inputs.

        Returns None, and adds nothing, if the op cannot be run again.
        """
        if value in self._steps_by_value:
            return self._steps_by_value[value]
        self._steps_by_value[value] = None  # a cycle ends here
        if len(self._steps_by_value) > self.max_steps:
            return None
        step = self.read_step(value)
        if step is None:
            return None
        linked_inputs = [self._link_input(step_input) for step_input in step.inputs]
        linked_step = replace(step, inputs=tuple(linked_inputs))
        self.steps.append(linked_step)
        self._steps_by_value[value] = linked_step
        return linked_step

    def _link_input(self, step_input: StepInput) -> StepInput:
        """Return the input with its places in the output of the step that computes it."""
        value = step_input.value
        is_boundary = value < 0 or step_input.agrees or step_input.is_parameter
        producer = None if is_boundary else self.add_steps(value)
        if producer is None:
            return step_input
        is_found, order = find_order(producer.output, step_input.array)
        if not is_found:
            return replace(step_input, value=-1)  # read in an unknown order: no change reaches it
        return replace(step_input, order=order)

    def read_step(self, value: int) -> Step | None:
        """Return the op that produced a value, if it can be run again."""
        flow = self.flow
        op = int(flow.producers[value])
        if op < 0:
            return self._read_unrecorded_step(value)
        rows = flow.get_tensor_ids(op).tolist()
        if flow.tensors["size"].to_numpy()[rows].clip(min=0).sum() > _MAX_STEP_ELEMENTS:
            return None
        inputs: list[StepInput] = []
        keywords: dict[str, AnyArray] = {}
        output: AnyArray | None = None
        for row in rows:
            is_output = flow.tensors["slot_kind"].iat[row] == "output"
            if is_output:
                if output is None and flow.tensor_class[row] == value:
                    output = load_readable_tensor(flow.trace, row)
                continue
            step_input = self._read_input(row)
            if step_input is None:
                continue
            slot_name = str(flow.tensors["slot"].iat[row]).partition(".")[2]
            is_positional = flow.tensors["slot_kind"].iat[row] == "parameter"
            if is_positional or slot_name.replace(".", "").isdecimal():
                inputs.append(step_input)
            else:
                keywords[slot_name] = step_input.array
        if output is None:
            return None
        inputs = self._mark_states(inputs)
        name = str(flow.trace.ops["name"].iat[op]).rpartition("/")[2]
        kind = self._get_kind(op)
        wide_output = output if output.dtype.kind in "iub" else output.astype(np.float64)
        step = Step(name, kind, tuple(inputs), keywords, value, wide_output)
        understood_step = interpret_step(step, _STEP_TOLERANCES * self.tolerance)
        if understood_step is None and flow.levels[op] != "op":
            # a module returns parts of what it computed, or joins them
            return self._read_cut(value, wide_output) or self._read_applied(value, wide_output)
        return understood_step

    def _get_kind(self, op: int) -> str:
        """Return the canonical kind of an op; of a convolution's gradient, the one with a name."""
        kind = self.index.kinds[self.side][op]
        recorded_kind = str(self.flow.trace.ops["kind"].iat[op]).lower()
        is_gradient = recorded_kind.startswith(CONVOLUTION_GRADIENTS)
        return recorded_kind if is_gradient else kind

    def _read_unrecorded_step(self, value: int) -> Step | None:
        """Return the op that must have made this value of recorded ones: joined, cut, multiplied.

        None if no missing edge is bridged, or if the numbers do not follow from its inputs.
        """
        if not has_missing_producer(self.flow, value):
            return None
        output = self._load_value(value)
        if output is None:
            return None
        bridge = find_bridge(self.flow, value)
        if bridge is None or bridge.evidence not in BRIDGE_KINDS:
            return self._read_cut(value, output) or self._read_applied(value, output)
        inputs = []
        for parent in bridge.parents:
            array = self._load_value(parent)
            if array is None:
                return None
            inputs.append(self._describe_input(parent, array))
        kind = BRIDGE_KINDS[bridge.evidence]
        if kind == "reshape" and _negates(inputs[0].array, output):
            kind = "neg"  # no recorder of APIs shows a unary minus
            output = output.reshape(inputs[0].array.shape)
        step = Step(f"an unrecorded {kind}", kind, tuple(inputs), {}, value, output)
        understood_step = interpret_step(step, _STEP_TOLERANCES * self.tolerance)
        if understood_step is None and bridge.evidence == "joined":
            return self._read_applied(value, output)  # not all parts are known
        return understood_step

    def _read_cut(self, value: int, output: AnyArray) -> Step | None:
        """Return the unrecorded slice that cut a value from a recent one along an axis, if any."""
        for source in list_cut_sources(self.flow, value):
            array = self._load_value(source)
            places = None if array is None else _find_cut(array, output)
            if array is not None and places is not None:
                inputs = (self._describe_input(source, array),)
                kind = BRIDGE_KINDS["part"]
                name = f"an unrecorded {kind}"
                return Step(name, kind, inputs, {}, value, output, places=places)
        return None

    def _read_applied(self, value: int, output: AnyArray) -> Step | None:
        """Return the unrecorded op that made a value of recent ones, if its numbers show it."""
        recent_values = list_recent_values(self.flow, value)
        sizes = self.flow.sizes[recent_values].tolist()
        sources = [
            UnrecordedSource(recent, size, partial(self._load_value, recent))
            for recent, size in zip(recent_values, sizes, strict=True)
        ]
        op = find_unrecorded_op(sources, output, _STEP_TOLERANCES * self.tolerance)
        if op is None:
            return None
        inputs = [self._describe_input(source, array) for source, array in op.inputs]
        inputs += [StepInput(-1, np.asarray(n), "a limit", False, False) for n in op.limits]
        if op.other_values is not None:
            inputs.append(StepInput(-1, op.other_values, "other values", False, False))
        name = f"an unrecorded {op.kind}"
        step = Step(name, op.kind, tuple(inputs), {}, value, output, places=op.places)
        if op.places is not None:
            return step
        return interpret_step(step, _STEP_TOLERANCES * self.tolerance)

    def _load_value(self, value: int) -> AnyArray | None:
        """Return a whole tensor of a value; None if there is none, or a too large one."""
        tensor = find_whole_tensor(self.flow, value)
        if tensor < 0 or self.flow.sizes[value] > _MAX_STEP_ELEMENTS:
            return None
        array = load_readable_tensor(self.flow.trace, tensor)
        if array is None or array.dtype.kind in "iub":
            return array
        return array.astype(np.float64)

    def _read_input(self, row: int) -> StepInput | None:
        """Return an input; None if neither a whole tensor nor a number was recorded."""
        tensors = self.flow.tensors
        value = int(self.flow.tensor_class[row])
        if tensors["file"].iat[row]:
            array = load_readable_tensor(self.flow.trace, row)
            if array is None:
                return None
            wide = array if array.dtype.kind in "iub" else array.astype(np.float64)
            step_input = self._describe_input(value, wide)
            is_weight = step_input.is_parameter or self._is_old_weight(row)
            return replace(step_input, is_parameter=is_weight)
        number = float(tensors["max"].iat[row])
        if not tensors["constant"].iat[row] or tensors["size"].iat[row] > 1 or np.isnan(number):
            return None
        slot_name = str(tensors["slot"].iat[row]).partition(".")[2]
        return StepInput(-1, np.asarray(number), slot_name, False, False)

    def _is_old_weight(self, row: int) -> bool:
        """Return whether the update reads, in this row, what was given to the forward pass."""
        flow, value = self.flow, int(self.flow.tensor_class[row])
        is_update = flow.phases[int(flow.tensors["op"].iat[row])] == OPTIMIZER
        is_given = value >= 0 and flow.producers[value] < 0
        return is_update and is_given and flow.list_column("phase")[value] == FORWARD

    def _describe_input(self, value: int, array: AnyArray) -> StepInput:
        flow = self.flow
        if value < 0:
            return StepInput(-1, array, "an argument", False, False)
        parameter = str(flow.list_column("parameter")[value])
        name = parameter or name_producer(flow, int(flow.producers[value]))
        agrees = value in self.index.agreed_classes[self.side]
        kind = self.index.get_producer_kind(self.side, value)
        is_given = not parameter and self._is_given(value)
        return StepInput(value, array, name, bool(parameter), agrees, kind, is_given)

    def _mark_states(self, inputs: Sequence[StepInput]) -> list[StepInput]:
        """Return the inputs; those that were computed with a weight among them are states."""
        weights = [item.value for item in inputs if item.is_parameter and item.array.ndim > 1]
        marked_inputs = []
        for step_input in inputs:
            is_computed = step_input.value >= 0 and not step_input.is_parameter
            is_state = is_computed and any(
                self._is_recurrent(step_input.value, weight) for weight in weights
            )
            marked_inputs.append(replace(step_input, is_state=is_state))
        return marked_inputs

    def _is_recurrent(self, value: int, weight: int) -> bool:
        """Return whether a weight multiplies a value and one that was computed from it."""
        if depends_on(self.flow, value, weight):
            return True
        levels, phases = self.flow.trace.ops["level"], self.flow.phases
        readers = [
            op
            for op in self.flow.consumers[weight]
            if levels.iat[op] == "op" and phases[op] == FORWARD and value not in self.flow.reads[op]
        ]
        return any(
            depends_on(self.flow, other, value)
            for op in readers[:_MAX_READERS]
            for other in self.flow.reads[op]
            if other != weight
        )

    def _is_given(self, value: int) -> bool:
        """Return whether a value is an input of the run, or a part that was selected from one.

        What agrees, and is no part of a recorded value, was given to both sides. What could not be
        computed from any recorded value was given to this side. Rows of a parameter are not given.
        """
        parameter_names = self.flow.list_column("parameter")
        agreed_values = self.index.agreed_classes[self.side]
        agrees = False
        for _ in range(_MAX_SELECTIONS):
            agrees = agrees or value in agreed_values
            if self.flow.producers[value] < 0:
                bridge = find_bridge(self.flow, value)
                if bridge is None or bridge.evidence not in _SELECTING_BRIDGES:
                    is_parameter = bool(parameter_names[value])
                    return not is_parameter and (agrees or bridge is None)
                value = bridge.parents[0]
                continue
            if self.index.get_producer_kind(self.side, value) not in _SELECTING_KINDS:
                return False
            inputs = find_inputs(self.flow, value)
            if not inputs or any(parameter_names[parent] for parent, _ in inputs):
                return False
            value = inputs[0][0]
        return False


def _find_cut(source: AnyArray, output: AnyArray) -> Ints | None:
    """Return the places in a source of what was cut from it, in any order; None if it was not."""
    places = find_window(source, output)
    if places is None:
        places = find_places([source], output)
    is_whole = places is not None and places.min() >= 0
    return places if is_whole else None


def _negates(array: AnyArray, output: AnyArray) -> bool:
    """Return whether an output holds the negative elements of an array, in their order."""
    is_floating = array.dtype.kind == output.dtype.kind == "f" and array.size == output.size
    return is_floating and np.array_equal(-array.reshape(-1), output.reshape(-1))
