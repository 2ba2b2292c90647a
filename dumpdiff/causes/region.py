"""A region: the operators between the last agreement and a value, run again in float64.

Each operator is run on its recorded inputs first, and must give its recorded output. Then the
region can be run with one change in it: the change spreads to the last value, whatever the other
side recorded in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations

import numpy as np

from ..graph.missing_edges import find_bridge
from ..model.arrays import AnyArray, Ints
from ..model.recorded_shapes import load_readable_tensor
from ..model.trace import FORWARD, OPTIMIZER
from ..operators import compute_interpretations, compute_outputs, compute_relative_distance
from ..operators.pooling import POOLING_KINDS, PoolingSettings, list_pooling_settings, pool
from .comparison_index import ComparisonIndex, depends_on, find_inputs, find_whole_tensor

#: Operators of a region at most, and elements of one operator's inputs and outputs together.
_MAX_STEPS, _MAX_STEP_ELEMENTS = 40, 1 << 20
#: Ops that multiply by a weight, of which one may read what follows from the input of another.
_MAX_READERS = 3
#: Gradients whose arithmetic costs too much to be repeated for every change.
_COSTLY_KINDS = {"grad:convolution"}
#: An operator is understood if it gives its recorded output to this many tolerances of the finding.
_STEP_TOLERANCES = 4
#: Share of elements that must be unique for their places to be recognized by value.
_MIN_UNIQUE_SHARE = 0.99
#: Axes of a tensor whose transpositions are tried.
_MAX_TRANSPOSED_AXES = 5
#: Elements that rule out most orders.
_ORDER_SAMPLE = 64
#: Relative L2 within which two records of one value are equal: a cast to bfloat16 and back.
_CAST_DISTANCE = 1e-2
#: Ops between an input of the run and its part that an op reads, and their kinds.
_MAX_SELECTIONS = 6
_SELECTING_BRIDGES = {"part", "rearranged", "cast", "stack", "joined"}
_SELECTING_KINDS = {"slice", "split", "reshape", "squeeze", "expand_dims", "transpose", "identity",
                    "contiguous", "gather_rows", "index", "unbind"}  # fmt: skip
#: Evidence of a missing edge that names the values that an unrecorded op read -> kind of that op.
_BRIDGE_KINDS = {
    "joined": "concat",
    "stack": "concat",
    "part": "slice",
    "rearranged": "reshape",
    "cast": "cast",
    "multiple": "mul",
}
#: Place of an element that is no element of an input: a zero of padding.
_PADDING = -1


@dataclass(frozen=True, eq=False)
class StepInput:
    """One input of a step, as the step read it; numbers have no axes and no value."""

    value: int  #: class of the value, -1 for an immediate number
    array: AnyArray
    name: str  #: of the parameter, of the producer, or of the argument
    is_parameter: bool
    agrees: bool  #: the other side has the same value
    producer_kind: str = ""  #: canonical kind of the op that computed it, '' if none did
    #: it was given to the run and is no parameter: a part of the batch, or a state
    is_given: bool = False
    #: it was computed with the weight by which the step multiplies it: the state of a recurrence
    is_state: bool = False
    #: places of its elements in the output of the step that computed it; None if the order is equal
    order: Ints | None = None


@dataclass(frozen=True, eq=False)
class Step:
    """One operator of a region with its inputs and its output."""

    name: str
    kind: str
    inputs: tuple[StepInput, ...]
    keywords: Mapping[str, AnyArray]
    value: int  #: class of the output
    output: AnyArray  #: as recorded
    interpretation: str = ""  #: the one that gives the recorded output
    #: places of the output's elements among the inputs' elements, for an operator that only moves
    #: them
    places: Ints | None = None
    #: factors of the first input's elements, for dropout: which elements it drops is drawn
    kept: AnyArray | None = None
    is_broadcast: bool = False  #: the input is repeated along axes of one element
    #: of a pooling of windows
    pooling: PoolingSettings | None = None

    def compute(self, inputs: Sequence[AnyArray]) -> AnyArray | None:
        """Return the output on other inputs; None if they do not fit."""
        if self.places is not None:
            return _take_places(inputs, self.places, self.output.shape)
        if self.kept is not None:
            return inputs[0].reshape(self.kept.shape) * self.kept
        if self.is_broadcast:
            return np.broadcast_to(inputs[0], self.output.shape)
        if self.pooling is not None:
            return pool(inputs[0], self.kind, self.pooling).reshape(self.output.shape)
        for name, output in self.interpret(inputs):
            if name == self.interpretation:
                return output
        return None

    def interpret(self, inputs: Sequence[AnyArray]) -> Iterator[tuple[str, AnyArray]]:
        """Yield (name, output) of every interpretation of the call on other inputs."""
        shape = self.output.shape
        yield from compute_interpretations(self.kind, inputs, self.keywords, output_shape=shape)
        if self.kind.startswith("grad:") and self.kind not in _COSTLY_KINDS:
            for name, outputs in compute_outputs(self.kind, inputs, self.keywords, shape):
                if outputs[0] is not None and outputs[0].size == self.output.size:
                    yield name, outputs[0].reshape(shape)

    def list_arrays(self) -> list[AnyArray]:
        """Return the recorded inputs."""
        return [step_input.array for step_input in self.inputs]


@dataclass(frozen=True, eq=False)
class Region:
    """The steps from agreeing values to one value, in execution order; the last one computes it."""

    steps: tuple[Step, ...]
    #: places of the elements of the compared value in the last step's output; None if all are equal
    order: Ints | None
    shape: tuple[int, ...]  #: of the compared value

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """Per step: the numbers of the steps that read its output."""
        readers: list[list[int]] = [[] for _ in self.steps]
        numbers = {step.value: number for number, step in enumerate(self.steps)}
        for number, step in enumerate(self.steps):
            for value in {step_input.value for step_input in step.inputs}:
                if value in numbers:
                    readers[numbers[value]].append(number)
        return tuple(map(tuple, readers))

    @cached_property
    def costs(self) -> tuple[int, ...]:
        """Per step: the elements that are computed again if its output changes."""
        own_costs = []
        for step in self.steps:
            n_elements = step.output.size + sum(item.array.size for item in step.inputs)
            if step.kind in ("matmul", "addmm", "attention"):
                n_elements += step.output.size * min(
                    item.array.shape[-1] for item in step.inputs[:1]
                )
            own_costs.append(n_elements)
        costs = []
        for number in range(len(self.steps)):
            followers = self._find_followers(number)
            costs.append(own_costs[number] + sum(own_costs[i] for i in followers))
        return tuple(costs)

    def _find_followers(self, number: int) -> set[int]:
        followers: set[int] = set()
        front = [number]
        while front:
            for consumer in self.consumers[front.pop()]:
                if consumer not in followers:
                    followers.add(consumer)
                    front.append(consumer)
        return followers

    def find_kinds_after(self, number: int) -> set[str]:
        """Return the kinds of the steps that follow from a step."""
        return {self.steps[follower].kind for follower in self._find_followers(number)}

    def run(self, number: int, output: AnyArray) -> AnyArray | None:
        """Return the compared value if one step had another output; None if it cannot be run."""
        return self.run_changes({number: output})

    def run_changes(self, outputs: Mapping[int, AnyArray]) -> AnyArray | None:
        """Return the compared value if some steps had other outputs; None if it cannot be run."""
        flat_outputs = {
            self.steps[number].value: output.reshape(-1) for number, output in outputs.items()
        }
        followers: set[int] = set()
        for number in outputs:
            followers |= self._find_followers(number)
        return self._run_steps(sorted(followers - set(outputs)), flat_outputs)

    def run_with_values(self, values: Mapping[int, AnyArray]) -> AnyArray | None:
        """Return the compared value with others in place of some; None if it cannot be run."""
        outputs = {value: array.reshape(-1) for value, array in values.items()}
        numbers = [number for number, step in enumerate(self.steps) if step.value not in values]
        return self._run_steps(numbers, outputs)

    @cached_property
    def unchanged(self) -> AnyArray | None:
        """The compared value, computed from the values that enter the region.

        None if it cannot be run.
        """
        return self._run_steps(range(len(self.steps)), {})

    def _run_steps(self, numbers: Iterable[int], outputs: dict[int, AnyArray]) -> AnyArray | None:
        """Return the compared value after the given steps; ``outputs`` holds flat ones by value."""
        with np.errstate(all="ignore"):
            for number in numbers:
                step = self.steps[number]
                new_output = step.compute([_read_input(item, outputs) for item in step.inputs])
                if new_output is None:
                    return None
                outputs[step.value] = new_output.reshape(-1)
        return self.arrange(outputs.get(self.steps[-1].value))

    def arrange(self, flat: AnyArray | None) -> AnyArray | None:
        """Return the last step's output in the layout of the compared value."""
        if flat is None:
            return None
        ordered = flat.reshape(-1) if self.order is None else flat.reshape(-1)[self.order]
        return ordered.reshape(self.shape)


def _read_input(step_input: StepInput, outputs: Mapping[int, AnyArray]) -> AnyArray:
    """Return an input of a step, from the outputs that were computed again if it is one."""
    flat = outputs.get(step_input.value)
    if flat is None or step_input.value < 0:
        return step_input.array
    if step_input.order is not None:
        flat = flat[step_input.order]
    return flat.reshape(step_input.array.shape)


def build_region(
    index: ComparisonIndex, side: int, value: int, array: AnyArray, tolerance: float
) -> Region | None:
    """Return the region of one side that ends in ``value``; ``array`` is its compared form.

    None if the op that computes it cannot be run again.
    """
    builder = _RegionBuilder(index, side, tolerance)
    last_step = builder.add_steps(value)
    if last_step is None:
        return None
    is_found, order = _find_order(last_step.output, array)
    if not is_found:
        return None
    return Region(tuple(builder.steps), order, array.shape)


class _RegionBuilder:
    """Collects the steps upstream of a value, in execution order."""

    def __init__(self, index: ComparisonIndex, side: int, tolerance: float) -> None:
        self.index, self.side, self.tolerance = index, side, tolerance
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
        if len(self._steps_by_value) > _MAX_STEPS:
            return None
        step = self._read_step(value)
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
        is_found, order = _find_order(producer.output, step_input.array)
        if not is_found:
            return replace(step_input, value=-1)  # read in an unknown order: no change reaches it
        return replace(step_input, order=order)

    def _read_step(self, value: int) -> Step | None:
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
        kind = self.index.kinds[self.side][op]
        wide_output = output if output.dtype.kind in "iub" else output.astype(np.float64)
        step = Step(name, kind, tuple(inputs), keywords, value, wide_output)
        return _understand_step(step, _STEP_TOLERANCES * self.tolerance)

    def _read_unrecorded_step(self, value: int) -> Step | None:
        """Return the op that must have made this value of recorded ones: joined, cut, multiplied.

        None if no missing edge is bridged, or if the numbers do not follow from its inputs.
        """
        bridge = find_bridge(self.flow, value)
        if bridge is None or bridge.evidence not in _BRIDGE_KINDS:
            return None
        output = self._load_value(value)
        if output is None:
            return None
        inputs = []
        for parent in bridge.parents:
            array = self._load_value(parent)
            if array is None:
                return None
            inputs.append(self._describe_input(parent, array))
        kind = _BRIDGE_KINDS[bridge.evidence]
        step = Step(f"an unrecorded {kind}", kind, tuple(inputs), {}, value, output)
        return _understand_step(step, _STEP_TOLERANCES * self.tolerance)

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
        producer = int(flow.producers[value])
        name = parameter
        if not parameter:
            name = str(flow.trace.ops["name"].iat[producer]) if producer >= 0 else "an input"
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
        computed from any recorded value was given to this side.
        """
        agreed_values = self.index.agreed_classes[self.side]
        agrees = False
        for _ in range(_MAX_SELECTIONS):
            agrees = agrees or value in agreed_values
            if self.flow.producers[value] < 0:
                bridge = find_bridge(self.flow, value)
                if bridge is None or bridge.evidence not in _SELECTING_BRIDGES:
                    is_parameter = bool(self.flow.list_column("parameter")[value])
                    return not is_parameter and (agrees or bridge is None)
                value = bridge.parents[0]
                continue
            if self.index.get_producer_kind(self.side, value) not in _SELECTING_KINDS:
                return False
            inputs = find_inputs(self.flow, value)
            if not inputs:
                return False
            value = inputs[0][0]
        return False


def _understand_step(step: Step, max_distance: float) -> Step | None:
    """Return the step with the interpretation that gives its recorded output; None if none does."""
    if step.kind in POOLING_KINDS:
        settings = _find_pooling_settings(step)
        return None if settings is None else replace(step, pooling=settings)
    if step.output.dtype.kind == "f":
        best_name, best_distance = "", float("inf")
        for name, output in step.interpret(step.list_arrays()):
            distance = compute_relative_distance(output, step.output)
            if distance < best_distance:
                best_name, best_distance = name, distance
            if distance <= max_distance:
                break
        if best_distance <= max_distance:
            return replace(step, interpretation=best_name)
    if step.kind == "expand" and _repeats_input(step):
        return replace(step, is_broadcast=True)
    kept = _find_kept_elements(step) if step.kind == "dropout" else None
    if kept is not None:
        return replace(step, kept=kept)
    places = _find_places(step)
    if places is None:
        return None
    return replace(step, places=places)


def _repeats_input(step: Step) -> bool:
    """Return whether the output is the first input, repeated along axes of one element."""
    if not step.inputs:
        return False
    try:
        output = np.broadcast_to(step.inputs[0].array, step.output.shape)
    except ValueError:
        return False
    return np.array_equal(output, step.output)


def _find_pooling_settings(step: Step) -> PoolingSettings | None:
    """Return the settings with which a pooling gives its recorded output; None if none do."""
    x = step.inputs[0].array if step.inputs else np.zeros(0)
    if x.dtype.kind != "f":
        return None
    for settings in list_pooling_settings(x.shape, step.output.shape):
        if compute_relative_distance(pool(x, step.kind, settings), step.output) <= _CAST_DISTANCE:
            return settings
    return None


def _find_kept_elements(step: Step) -> AnyArray | None:
    """Return 0 for each element that dropout drops, 1 / (1 - p) for the others; None if unclear."""
    x = step.inputs[0].array if step.inputs else np.zeros(0)
    if x.dtype.kind != "f" or x.size != step.output.size:
        return None
    x, output = x.reshape(step.output.shape), step.output
    is_kept = (output != 0) | (x == 0)
    factors = output[is_kept & (x != 0)] / x[is_kept & (x != 0)]
    if not factors.size or np.ptp(factors) > _CAST_DISTANCE * abs(factors[0]):
        return None
    return np.where(is_kept, float(np.median(factors)), 0.0)


def _find_places(step: Step) -> Ints | None:
    """Return where the output's elements are among the inputs' elements; None if they are not.

    Zeros may be padding. Elements are recognized by value, so nearly all must be unique.
    """
    arrays = [item.array.reshape(-1) for item in step.inputs if item.array.dtype.kind == "f"]
    if not arrays or step.output.dtype.kind != "f":
        return None
    source = _join_inputs(step.list_arrays())
    order = np.argsort(source, kind="stable")
    sorted_source = source[order]
    is_repeated = np.diff(sorted_source) == 0
    if is_repeated.mean() > 1 - _MIN_UNIQUE_SHARE if len(is_repeated) else False:
        return None
    flat = step.output.reshape(-1)
    rows = np.searchsorted(sorted_source, flat).clip(max=len(source) - 1)
    is_found = sorted_source[rows] == flat
    if not np.all(is_found | (flat == 0)) or not is_found.any():
        return None
    places: Ints = np.where(is_found, order[rows], _PADDING)
    return places


def _join_inputs(arrays: Sequence[AnyArray]) -> AnyArray:
    """Return the elements of all floating tensors, one after the other; masks become NaN."""
    parts = []
    for array in arrays:
        is_tensor = array.dtype.kind == "f" and array.ndim > 0
        parts.append(array.reshape(-1) if is_tensor else np.full(array.size, np.nan))
    joined: AnyArray = np.concatenate(parts)
    return joined


def _take_places(inputs: Sequence[AnyArray], places: Ints, shape: tuple[int, ...]) -> AnyArray:
    source = _join_inputs(inputs)
    taken: AnyArray = np.where(places == _PADDING, 0.0, source[places])
    return taken.reshape(shape)


def _find_order(source: AnyArray, array: AnyArray) -> tuple[bool, Ints | None]:
    """Return (whether the elements of ``array`` are those of ``source``, their places there).

    The places are None if both have one order. Small differences, as after a cast, do not count.
    """
    flat_source, flat = source.reshape(-1), array.reshape(-1)
    if flat_source.size == flat.size and np.array_equal(flat_source, flat, equal_nan=False):
        return True, None
    if flat_source.size != flat.size or source.dtype.kind != "f" or flat.size < 2:
        return False, None
    if compute_relative_distance(flat_source, flat) < _CAST_DISTANCE:
        return True, None
    transposed_order = _find_transposition(source, flat)
    if transposed_order is not None:
        return True, transposed_order
    order = np.argsort(flat_source, kind="stable")
    sorted_source = flat_source[order]
    is_unique = np.mean(np.diff(sorted_source) == 0) <= 1 - _MIN_UNIQUE_SHARE
    rows = np.searchsorted(sorted_source, flat).clip(max=len(order) - 1)
    if not is_unique or not np.array_equal(sorted_source[rows], flat):
        return False, None
    return True, order[rows]


def _find_transposition(source: AnyArray, flat: AnyArray) -> Ints | None:
    """Return the places of the elements of a transposed tensor; None if it is no transposition.

    Also of repeated elements, which are not recognized by value.
    """
    if not 1 < source.ndim <= _MAX_TRANSPOSED_AXES:
        return None
    flat_source = source.reshape(-1)
    places = np.arange(source.size).reshape(source.shape)
    for axes in permutations(range(source.ndim)):
        order: Ints = places.transpose(axes).reshape(-1)
        sample = order[:_ORDER_SAMPLE]
        is_likely = np.array_equal(flat_source[sample], flat[:_ORDER_SAMPLE])
        if is_likely and np.array_equal(flat_source[order], flat):
            return order
    return None
